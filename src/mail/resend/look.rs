//! What `check` asks the service: whether mails would be taken. Nothing is sent.

use serde_json::Value;

use crate::domain::ids::Address;
use crate::http::Reply;
use crate::secret::SecretError;

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
    let (answer, key) = match resend.get("/emails?limit=1") {
        Ok((Reply::Answered(answer), key)) => (answer, key),
        Ok((Reply::NotWritten { reason } | Reply::Lost { reason }, _)) => return Rights::NotKnown(reason),
        Err(error) => return Rights::NoKey(error),
    };
    let said = Said::of(&answer, key);
    match (answer.status, said.name.as_str()) {
        (200..=299, _) => match answer.body.as_deref().map(super::list::page) {
            Some(Ok(_)) => Rights::Full,
            _ => Rights::Refused(format!("{}, and it is no list of mails", said.reason())),
        },
        (401, "restricted_api_key") => Rights::SendOnly,
        (429 | 500.., _) => Rights::NotKnown(said.reason()),
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
        let Ok(page) = serde_json::from_slice::<Value>(&body) else {
            return DomainSeen::NotKnown("the service's list of domains is no JSON".to_owned());
        };
        let Some(rows) = page.get("data").and_then(Value::as_array) else {
            return DomainSeen::NotKnown("the service's list of domains cannot be read".to_owned());
        };
        let text =
            |row: &Value, name: &str| row.get(name).and_then(Value::as_str).map(str::to_ascii_lowercase);
        let found = rows.iter().find(|row| text(row, "name").as_deref() == Some(ours.as_str()));
        if let Some(row) = found {
            return match text(row, "status").as_deref() {
                Some("verified") => DomainSeen::Verified,
                Some(status)
                    if status.len() <= 40 && status.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') =>
                {
                    DomainSeen::Not(status.to_owned())
                }
                _ => DomainSeen::Not("unknown".to_owned()),
            };
        }
        let last = rows.last().and_then(|row| row.get("id")).and_then(Value::as_str);
        match (page.get("has_more").and_then(Value::as_bool), last.filter(|id| super::list::is_id(id))) {
            (Some(true), Some(id)) => after = format!("&after={id}"),
            _ => return DomainSeen::Absent,
        }
    }
    DomainSeen::Absent
}
