//! What `check` asks the service: whether mails would be taken. Nothing is sent.

use serde_json::Value;

use crate::domain::ids::Address;
use crate::http::{Answer, Reply};
use crate::secret::{Secret, SecretError};

use super::Resend;
use super::answers::Said;

/// More domains than these pages hold are not looked through.
const PAGES_MAX: usize = 10;

/// What was found.
#[derive(Debug)]
pub struct Look {
    /// What the key may do.
    pub rights: Rights,
    /// The domain that mails come from; none where the key may not ask.
    pub domain: Option<DomainSeen>,
}

/// What a key may do.
#[derive(Debug)]
pub enum Rights {
    /// Send, and read what became of mails.
    Full,
    /// Send, and know no more.
    SendOnly,
    /// Nothing: the service refuses it, in these words.
    Refused(String),
    /// Nobody knows: the service cannot be reached, or is out of order, in these words.
    NotKnown(String),
    /// There is no key.
    NoKey(SecretError),
}

/// How a domain stands with the service.
#[derive(Debug, PartialEq, Eq)]
pub enum DomainSeen {
    /// Mails from it are taken.
    Verified,
    /// Not yet, in the service's word: `pending`, `not_started`, `failed`.
    Not(String),
    /// The account does not have it.
    Absent,
    /// Nobody knows, in these words.
    NotKnown(String),
}

pub(super) fn look(resend: &Resend, from: &Address) -> Look {
    let rights = rights(resend);
    let domain = matches!(rights, Rights::Full).then(|| domain(resend, from));
    Look { rights, domain }
}

fn rights(resend: &Resend) -> Rights {
    match resend.get("/emails?limit=1") {
        Ok((Reply::Answered(answer), key)) => told(&answer, key),
        Ok((Reply::NotWritten { reason } | Reply::Lost { reason }, _)) => Rights::NotKnown(reason),
        Err(error) => Rights::NoKey(error),
    }
}

/// What an answer to a read tells of the key.
fn told(answer: &Answer, key: &Secret) -> Rights {
    let said = Said::of(answer, key);
    match (answer.status, said.name.as_str(), answer.body.as_deref()) {
        (200..=299, _, None) => Rights::NotKnown(format!("{}, and the rest was cut off", said.reason())),
        (200..=299, _, Some(body)) if super::list::page(body).is_ok() => Rights::Full,
        (200..=299, ..) => Rights::Refused(format!("{}, and it is no list of mails", said.reason())),
        (401, "restricted_api_key", _) => Rights::SendOnly,
        // As with mails: these say nothing of the key, and the next answer may be another.
        (408 | 409 | 425 | 429 | 500.., ..) => Rights::NotKnown(said.reason()),
        _ => Rights::Refused(said.reason()),
    }
}

/// The service takes mails from exactly the domains it has verified; one above or below is another.
fn domain(resend: &Resend, from: &Address) -> DomainSeen {
    let from = from.buyer();
    let ours = from.as_str().rsplit_once('@').map_or("", |(_, domain)| domain).to_owned();
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let body = match resend.read(&format!("/domains?limit=100{after}")) {
            Ok(body) => body,
            Err(super::Unreadable::NotAllowed) => {
                return DomainSeen::NotKnown("the key may not ask".to_owned());
            }
            Err(super::Unreadable::Failed { reason, .. }) => return DomainSeen::NotKnown(reason),
        };
        match on_page(&body, &ours) {
            OnPage::Seen(seen) => return seen,
            OnPage::After(id) => after = format!("&after={id}"),
        }
    }
    DomainSeen::NotKnown("the account has more domains than are looked through".to_owned())
}

/// What one page says of a domain.
#[derive(Debug, PartialEq, Eq)]
enum OnPage {
    Seen(DomainSeen),
    /// It is not on this one; another follows the domain of this id.
    After(String),
}

/// Absent is only what was looked for to the end: `check` tells the operator to add the domain.
fn on_page(body: &[u8], ours: &str) -> OnPage {
    let not_known = |why: &str| OnPage::Seen(DomainSeen::NotKnown(why.to_owned()));
    let Ok(page) = serde_json::from_slice::<Value>(body) else {
        return not_known("the service's list of domains is no JSON");
    };
    let Some(rows) = page.get("data").and_then(Value::as_array) else {
        return not_known("the service's list of domains cannot be read");
    };
    let text = |row: &Value, name: &str| row.get(name).and_then(Value::as_str).map(str::to_ascii_lowercase);
    // The name of a domain in another language has two spellings, of which ours is one.
    let is_ours = |name: &str| {
        let there = format!("x@{name}").parse::<Address>().map(|address| address.buyer());
        there.is_ok_and(|there| there.as_str().strip_prefix("x@") == Some(ours))
    };
    let found = rows.iter().find(|row| text(row, "name").is_some_and(|name| is_ours(&name)));
    if let Some(row) = found {
        let is_word = |status: &String| {
            (1..=40).contains(&status.len()) && status.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        };
        return OnPage::Seen(match text(row, "status").filter(is_word) {
            Some(status) if status == "verified" => DomainSeen::Verified,
            Some(status) => DomainSeen::Not(status),
            None => DomainSeen::Not("unknown".to_owned()),
        });
    }
    match page.get("has_more") {
        // Older forms of this list have no `has_more`, and are whole.
        None | Some(Value::Bool(false)) => return OnPage::Seen(DomainSeen::Absent),
        Some(Value::Bool(true)) => {}
        Some(_) => return not_known("the service's list of domains does not say whether it goes on"),
    }
    let last = rows.last().and_then(|row| row.get("id")).and_then(Value::as_str);
    match last.filter(|id| super::list::is_id(id)) {
        Some(id) => OnPage::After(id.to_owned()),
        None => not_known("the service's list of domains goes on, and does not say where"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(body: &str) -> OnPage {
        on_page(body.as_bytes(), "example.com")
    }

    fn rights(status: u16, body: Option<&str>) -> Rights {
        let answer = Answer { status, body: body.map(|body| body.as_bytes().to_vec()), ..Answer::default() };
        told(&answer, &Secret::of("re_Abcdefgh_1234567890"))
    }

    #[test]
    fn r13_what_a_key_may_do_is_told_by_one_read_and_a_service_out_of_order_refuses_no_key() {
        assert!(matches!(rights(200, Some(r#"{"data":[],"has_more":false}"#)), Rights::Full));
        assert!(matches!(rights(401, Some(r#"{"name":"restricted_api_key"}"#)), Rights::SendOnly));
        for (status, body) in
            [(401, "{}"), (403, "<h1>no</h1>"), (404, "{}"), (302, ""), (200, "{}"), (200, "<h1>")]
        {
            assert!(matches!(rights(status, Some(body)), Rights::Refused(_)), "{status} {body}");
        }
        for status in [200, 408, 409, 425, 429, 500, 502, 503] {
            assert!(matches!(rights(status, None), Rights::NotKnown(_)), "{status}, cut off");
        }
        assert!(matches!(rights(503, Some(r#"{"name":"restricted_api_key"}"#)), Rights::NotKnown(_)));
    }

    #[test]
    fn a_domain_is_ours_in_both_its_spellings_and_no_other_is() {
        let from: Address = "hello@例え.example".parse().unwrap();
        let from = from.buyer();
        let ours = from.as_str().rsplit_once('@').unwrap().1;
        let of = |name: &str| {
            let body = serde_json::json!({ "data": [{ "name": name, "status": "verified" }] });
            on_page(body.to_string().as_bytes(), ours)
        };
        for name in ["例え.example", "xn--r8jz45g.example", "XN--R8JZ45G.Example"] {
            assert_eq!(of(name), OnPage::Seen(DomainSeen::Verified), "{name}");
        }
        for name in
            ["example", "mail.例え.example", "x例え.example", "例え.example.org", "a@例え.example", "", "@"]
        {
            assert_eq!(of(name), OnPage::Seen(DomainSeen::Absent), "{name}");
        }
    }

    #[test]
    fn an_operator_is_told_that_the_domain_is_missing_only_where_the_whole_list_was_read() {
        let absent = OnPage::Seen(DomainSeen::Absent);
        assert_eq!(seen(r#"{"data":[]}"#), absent);
        assert_eq!(seen(r#"{"data":[],"has_more":false}"#), absent);
        let other = r#"{"name":"mail.example.com","status":"verified","id":"d1"}"#;
        assert_eq!(
            seen(&format!(r#"{{"data":[{other}],"has_more":false}}"#)),
            absent,
            "one below is another"
        );
        let more = format!(r#"{{"data":[{other}],"has_more":true}}"#);
        assert_eq!(seen(&more), OnPage::After("d1".to_owned()));
        for body in [
            r#"{"data":[],"has_more":true}"#,
            r#"{"data":[],"has_more":"no"}"#,
            r#"{"data":[],"has_more":null}"#,
            r#"{"data":[{"name":"example.org"}],"has_more":true}"#,
            r#"{"data":[{"name":"example.org","id":"a/../b"}],"has_more":true}"#,
            r#"{"data":{}}"#,
            "null",
            "<h1>",
            "",
        ] {
            assert!(matches!(seen(body), OnPage::Seen(DomainSeen::NotKnown(_))), "{body}: {:?}", seen(body));
        }
    }

    #[test]
    fn a_domain_that_is_not_verified_is_told_in_the_services_word() {
        let of = |status: &str| seen(&format!(r#"{{"data":[{{"name":"Example.com","status":{status}}}]}}"#));
        assert_eq!(of(r#""verified""#), OnPage::Seen(DomainSeen::Verified));
        for word in ["pending", "not_started", "failed", "temporary_failure", "partially_verified"] {
            assert_eq!(of(&format!("\"{word}\"")), OnPage::Seen(DomainSeen::Not(word.to_owned())));
        }
        for odd in ["null", "1", "\"\"", "\"h@example.com\"", "[]"] {
            assert_eq!(of(odd), OnPage::Seen(DomainSeen::Not("unknown".to_owned())), "{odd}");
        }
    }
}
