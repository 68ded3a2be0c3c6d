//! What the service's answers mean (R9). The status alone is not enough: `name` is read first, then the status, then the
//! kind of status.
//!
//! What is kept of an answer goes into ledger, log and notices, and a service may put the key or a buyer's address into
//! it. So its words are kept only after everything that could be either was taken out, and of what is no JSON, nothing.

use std::fmt::Write as _;

use serde_json::Value;

use crate::domain::outcome::Outcome;
use crate::http::Answer;
use crate::mail::{Unreadable, clean};
use crate::secret::Secret;

/// A message id is not longer.
const ID_MAX: usize = 200;
/// The most of the service's own words that is kept.
const WORDS_MAX: usize = 200;
/// A longer word is no word: a key, a token, an address.
const WORD_MAX: usize = 40;

/// Fields of the request that are the same in every mail: a fault in one of them is about all.
const OURS: [&str; 6] = ["from", "reply_to", "replyto", "headers", "tags", "api_key"];
/// Fields of the request, which are known as such in any quotes.
const FIELDS: [&str; 11] = [
    "from", "to", "subject", "html", "text", "reply_to", "reply-to", "replyTo", "headers", "tags", "api_key",
];

/// What a page shows as a sign that matters here. The first one first: it may have been escaped twice.
const ESCAPED: [(&str, &str); 14] = [
    ("&amp;", "&"),
    ("&quot;", "\""),
    ("&#34;", "\""),
    ("&#x22;", "\""),
    ("&apos;", "'"),
    ("&#39;", "'"),
    ("&#039;", "'"),
    ("&#x27;", "'"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&#64;", "@"),
    ("&#064;", "@"),
    ("&#x40;", "@"),
    ("&commat;", "@"),
];

/// Names that are about the account, whatever the status beside them.
const ACCOUNT: [&str; 8] = [
    "daily_quota_exceeded",
    "monthly_quota_exceeded",
    "missing_api_key",
    "invalid_api_key",
    "suspended_api_key",
    "invalid_permission",
    "restricted_api_key",
    "invalid_from_address",
];

/// What an answer to `POST /emails` means.
pub(super) fn classify(answer: &Answer, key: &Secret) -> Outcome {
    let said = Said::of(answer, key);
    let reason = said.reason();
    let account = |why: &str| Outcome::RefusedAccount { reason: format!("{reason}{why}") };
    let later = || Outcome::NotSent { reason: reason.clone(), retry_after: answer.retry_after };
    match (answer.status, said.name.as_str()) {
        (200..=299, _) => match said.id {
            Some(message_id) => Outcome::Accepted { message_id },
            None => Outcome::unknown(format!("{reason}, and no message id")),
        },
        // Whatever it says, services are known to have taken a mail and answered so.
        (500.., _) => Outcome::unknown(reason),
        (..=399, _) => account("; this is not the service's API: is resend.base_url right?"),
        (_, "invalid_idempotent_request") => Outcome::Conflict { reason },
        (_, "concurrent_idempotent_requests") => Outcome::Unknown { reason, in_progress: true },
        (_, "rate_limit_exceeded") => later(),
        (400, "invalid_idempotency_key") => account("; this is a fault of stepmail"),
        (404 | 405, _) => account("; is resend.base_url right?"),
        (403, _) if !said.is_json => account("; something between here and the service refuses it"),
        (401..=403 | 407 | 451, _) => account(""),
        (_, name) if ACCOUNT.contains(&name) => account(""),
        // The service gave up waiting, or does not want to be asked so early: it says nothing of what it has read.
        (408 | 409 | 425, _) => Outcome::unknown(reason),
        (429, _) => later(),
        _ if said.is_about_all() => account(""),
        _ => Outcome::RefusedMail { reason },
    }
}

/// The body of an answer to a read.
pub(super) fn read(answer: Answer, key: &Secret) -> Result<Vec<u8>, Unreadable> {
    let said = Said::of(&answer, key);
    match (answer.status, said.name.as_str(), answer.body) {
        (200..=299, _, Some(body)) => Ok(body),
        (401, "restricted_api_key", _) => Err(Unreadable::NotAllowed),
        _ => Err(Unreadable::Failed { reason: said.reason(), retry_after: answer.retry_after }),
    }
}

/// What of an answer may be repeated.
pub(super) struct Said {
    status: u16,
    content_type: Option<String>,
    is_json: bool,
    /// `name`, else `type`, if it looks like one; else empty.
    pub(super) name: String,
    /// `message`, without what it says of anybody.
    words: String,
    id: Option<String>,
}

impl Said {
    pub(super) fn of(answer: &Answer, key: &Secret) -> Self {
        let value: Value =
            answer.body.as_ref().and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
        let fault = value.get("error").filter(|fault| fault.is_object()).unwrap_or(&value);
        let text = |name: &str| fault.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        // A key may be written in the letters of a name.
        let is_name = |name: &String| {
            (1..=64).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
                && key.hide(name) == *name
        };
        let is_id = |id: &&str| (1..=ID_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
        Self {
            status: answer.status,
            content_type: answer.content_type.clone(),
            is_json: value.is_object(),
            name: [text("name"), text("type")].into_iter().find(is_name).unwrap_or_default(),
            words: without_persons(&text("message"), key),
            id: value.get("id").and_then(Value::as_str).filter(is_id).map(|id| key.hide(id)),
        }
    }

    /// One line: status, name, and its words. Equal faults have equal reasons.
    pub(super) fn reason(&self) -> String {
        let mut reason = format!("it answered {}", self.status);
        if !self.name.is_empty() {
            reason.push(' ');
            reason.push_str(&self.name);
        }
        if !self.words.is_empty() {
            reason.push_str(": ");
            reason.extend(self.words.chars().take(WORDS_MAX));
        } else if !self.is_json {
            let kind = self.content_type.as_deref().unwrap_or_default();
            let is_kind = |kind: &str| {
                kind.len() <= 40 && kind.bytes().all(|b| b.is_ascii_lowercase() || b"/-+.".contains(&b))
            };
            if !kind.is_empty() && is_kind(kind) && kind != "application/json" {
                let _ = write!(reason, " ({kind})");
            }
        }
        reason
    }

    /// Whether a fault of a message is one of every message: it names the key, or a field that all mails have in common.
    /// The first field in quotes decides, since a fault of `to` may go on to speak of an address "from" somewhere. Values
    /// are taken out before: a buyer whose address is `headers@…` must not stop the mails of all others.
    fn is_about_all(&self) -> bool {
        let message = self.words.to_ascii_lowercase();
        if let Some(field) = message.split('`').nth(1) {
            return OURS.contains(&field.replace('-', "_").as_str());
        }
        if message.contains("api key") || message.contains("api_key") {
            return true;
        }
        let words: Vec<&str> = message
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))
            .filter(|word| !word.is_empty())
            .collect();
        words.iter().any(|word| ["reply_to", "reply-to", "replyto", "headers", "tags", "tag"].contains(word))
            || words.windows(2).any(|pair| matches!(pair, ["from", "field" | "address"]))
    }
}

/// A service's words without what may be a key, an address, a name or a number that differs each time. Fields stand in
/// backquotes, and nothing else does.
fn without_persons(message: &str, key: &Secret) -> String {
    let mut message = clean::line(&key.hide(message));
    for (escaped, sign) in ESCAPED {
        message = message.replace(escaped, sign);
    }
    let words: Vec<String> = without_quoted(&message).split_whitespace().map(word).collect();
    words.join(" ")
}

/// A word, or `…` where it may say who or what this is about.
fn word(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let is_personal =
        lower.contains(['@', '＠', '﹫']) || lower.contains("%40") || word.chars().count() > WORD_MAX;
    let is_key = lower.contains("re_") && word.len() > 8;
    let is_number = word.chars().filter(|c| c.is_numeric()).count() > 3;
    if is_personal || is_key || is_number { "…".to_owned() } else { word.to_owned() }
}

/// The signs that close what this one opens; none where it opens nothing.
const fn closing(open: char) -> &'static [char] {
    match open {
        '"' => &['"'],
        '\'' => &['\''],
        '`' => &['`'],
        '<' => &['>'],
        '“' | '”' => &['”'],
        '„' => &['“', '”'],
        '‘' | '’' => &['’'],
        '‚' => &['‘', '’'],
        '«' | '»' => &['«', '»'],
        '「' => &['」'],
        '『' => &['』'],
        '《' => &['》'],
        '＂' => &['＂'],
        '＇' => &['＇'],
        '＜' => &['＞'],
        _ => &[],
    }
}

/// A letter of a language that has apostrophes within words. Behind a Japanese one a quote begins.
fn joins(c: char) -> bool {
    c.is_alphanumeric() && c < '\u{2e80}'
}

/// What stands in quotes or angle brackets may be a value, and a value may hold the same quote again (`O'Brien`). So it
/// ends at the last one that can close it: rather a word too few than half a name. A plain word in backquotes is the name
/// of a field.
fn without_quoted(text: &str) -> String {
    let mut shown = String::new();
    let mut last = ' ';
    let mut rest = text;
    while let Some(open) = rest.chars().next() {
        let inside = &rest[open.len_utf8()..];
        let is_apostrophe = matches!(open, '\'' | '’' | '＇') && joins(last);
        if closing(open).is_empty() || is_apostrophe {
            shown.push(open);
            (rest, last) = (inside, open);
            continue;
        }
        last = ' ';
        if let Some((field, after)) =
            inside.split_once(closing(open)).filter(|(field, _)| is_field(field, open))
        {
            let _ = write!(shown, "`{field}`");
            rest = after;
            continue;
        }
        shown.push('…');
        // Where nothing closes it, nobody knows where the value ends.
        let Some(after) = after_value(inside, open) else { return shown };
        rest = after;
    }
    shown
}

fn is_field(value: &str, open: char) -> bool {
    let is_plain =
        (1..=32).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    FIELDS.contains(&value) || open == '`' && is_plain
}

/// What follows the sign that closes a value.
fn after_value(inside: &str, open: char) -> Option<&str> {
    if open == '`' {
        return inside.split_once('`').map(|(_, after)| after);
    }
    inside.rmatch_indices(closing(open)).find_map(|(at, close)| {
        let after = &inside[at + close.len()..];
        let is_apostrophe = matches!(close, "'" | "’" | "＇") && after.chars().next().is_some_and(joins);
        (!is_apostrophe).then_some(after)
    })
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "classes_tests.rs"]
mod classes;
