//! The service's list of mails: `GET /emails` and `GET /emails/{id}`. Read loosely where that hides no mail; a page that is
//! not understood is no empty page.

use serde_json::Value;

use crate::domain::fate::{FateKind, Listed, Tagged};
use crate::domain::ids::{Address, BuyerId};
use crate::domain::time::Timestamp;
use crate::mail::Page;

/// Whether an id can stand in an address as it is.
pub(super) fn is_id(id: &str) -> bool {
    (1..=200).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// One page. An error says in words what cannot be read.
pub(super) fn page(body: &[u8]) -> Result<Page, String> {
    let not_read = |what: &str| format!("the service's list cannot be read: {what}");
    let value: Value = serde_json::from_slice(body).map_err(|_| not_read("it is no JSON"))?;
    let rows = value.get("data").and_then(Value::as_array).ok_or_else(|| not_read("`data` is no array"))?;
    let more = value.get("has_more").and_then(Value::as_bool);
    let more = more.ok_or_else(|| not_read("`has_more` is neither true nor false"))?;
    let mails = rows.iter().map(listed).collect::<Option<Vec<Listed>>>();
    Ok(Page { mails: mails.ok_or_else(|| not_read("a mail has no id"))?, more })
}

fn listed(row: &Value) -> Option<Listed> {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    Some(Listed {
        id: text("id").filter(|id| is_id(id))?.to_owned(),
        to: recipients(row.get("to")),
        subject: text("subject").unwrap_or_default().to_owned(),
        created_at: text("created_at").and_then(time),
        fate: text("last_event").and_then(fate),
    })
}

/// None where they cannot be read: such a mail may be anybody's.
fn recipients(to: Option<&Value>) -> Option<Vec<BuyerId>> {
    let texts: Vec<&str> = match to? {
        Value::String(text) => vec![text],
        Value::Array(texts) => texts.iter().map(Value::as_str).collect::<Option<_>>()?,
        _ => return None,
    };
    texts.into_iter().map(recipient).collect::<Option<Vec<_>>>().filter(|to| !to.is_empty())
}

/// `a@example.com`, `<a@example.com>`, `Name <a@example.com>`, and `"a..b"@example.com`.
fn recipient(text: &str) -> Option<BuyerId> {
    let text = text.trim();
    let text = match text.strip_suffix('>') {
        Some(named) => named.rsplit_once('<')?.1,
        None => text,
    };
    let plain = match text.strip_prefix('"').and_then(|rest| rest.split_once("\"@")) {
        Some((local, domain)) => format!("{local}@{domain}"),
        None => text.to_owned(),
    };
    plain.parse::<Address>().ok().map(|address| address.buyer())
}

/// `2023-04-03T22:13:42.674981+00:00`, and `2023-04-03 22:13:42.674981+00`.
fn time(text: &str) -> Option<Timestamp> {
    let mut text = text.trim().replacen(' ', "T", 1);
    let bytes = text.as_bytes();
    let is_short_offset = bytes.len() > 3
        && matches!(bytes[bytes.len() - 3], b'+' | b'-')
        && bytes[bytes.len() - 2..].iter().all(u8::is_ascii_digit)
        && text.contains(':');
    if is_short_offset {
        text.push_str(":00");
    }
    let time = chrono::DateTime::parse_from_rfc3339(&text).ok()?;
    Timestamp::from_unix(time.timestamp()).ok()
}

/// `last_event`. What is on its way says nothing yet.
fn fate(event: &str) -> Option<FateKind> {
    match event {
        "delivered" | "opened" | "clicked" => Some(FateKind::Delivered),
        "bounced" => Some(FateKind::Bounced),
        "complained" => Some(FateKind::Complained),
        "suppressed" => Some(FateKind::Suppressed),
        // Somebody called it off at the service: it did not leave either.
        "failed" | "canceled" => Some(FateKind::Failed),
        _ => None,
    }
}

/// Whose a mail is, by its tags; none where they do not say.
pub(super) fn tags(body: &[u8]) -> Result<Option<Tagged>, String> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|_| "the service's answer about a mail is no JSON".to_owned())?;
    if value.get("id").and_then(Value::as_str).is_none() {
        return Err("the service's answer about a mail is none".to_owned());
    }
    let tag = |name: &str| {
        let tags = value.get("tags")?.as_array()?;
        tags.iter().find(|tag| tag.get("name").and_then(Value::as_str) == Some(name))?.get("value")?.as_str()
    };
    let (Some(session), Some(step)) = (tag("session"), tag("step")) else { return Ok(None) };
    Ok(session.parse().ok().zip(step.parse().ok()).map(|(session, step)| Tagged { session, step }))
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
