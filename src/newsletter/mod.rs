//! The newsletter's contacts, at Resend (R14): looked up, and marked by an update that names only the mark. No contact is made
//! and none is subscribed; there is no code for it.
//!
//! Nothing waits here but for the pace, which is shared with the mails: the service's limit is one for all keys of a team.

mod answers;

use std::cell::OnceCell;
use std::collections::HashSet;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::clock::Clock;
use crate::domain::ids::{Address, BuyerId};
use crate::domain::newsletter::Contact;
use crate::http::{BaseUrl, Method, Reply, Request, Service};
use crate::secret::{Found, Places, SecretError};

/// How often a request is made that comes too soon each time.
const TRIES: usize = 3;
/// What stands for "yes" in a property.
const YES: &str = "true";
/// What stands there after a mark was taken away.
const NO: &str = "false";

/// Its settings, checked.
#[derive(Clone, Debug)]
pub struct NewsletterSettings {
    /// Where it is.
    pub base_url: BaseUrl,
    /// Our share of the team's limit.
    pub requests_per_second: u32,
    /// Where the key is.
    pub key: Places,
    /// What is set.
    pub mark: Mark,
    /// How a contact is known to have confirmed.
    pub confirmed: Confirmed,
    /// Whether a refund takes the mark away.
    pub refunds_unmark: bool,
}

/// The purchaser mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// This property is `true`.
    Property(String),
    /// The contact is in this segment.
    Segment(String),
}

/// The sign of a confirmed contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// This property has this value.
    Property {
        /// Its name.
        name: String,
        /// Its value, as text.
        value: String,
    },
    /// The contact is in this segment.
    Segment(String),
}

/// The contacts.
#[derive(Debug)]
pub struct Contacts {
    service: Rc<Service>,
    settings: NewsletterSettings,
    key: OnceCell<Found>,
    clock: Clock,
}

/// Why contacts could not be read or marked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContactError {
    /// The key or the settings: a person must act.
    #[error("{0}")]
    Refused(String),
    /// The next run asks again.
    #[error("{0}")]
    Failed(String),
}

/// One row of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The contact's id.
    pub id: String,
    /// Its address; none where it is no address that a buyer could have.
    pub address: Option<BuyerId>,
}

/// One page of the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Its rows.
    pub rows: Vec<Row>,
    /// The id that the next page begins after; none where this is the last.
    pub next: Option<String>,
}

impl Contacts {
    /// The contacts of these settings. `mails` is the service that mails go through, whose pace is shared where it is the same.
    #[must_use]
    pub fn new(settings: NewsletterSettings, mails: Option<Rc<Service>>, clock: &Clock) -> Self {
        let shared = mails.filter(|mails| *mails.base() == settings.base_url);
        let service = shared.unwrap_or_else(|| {
            Rc::new(Service::new(settings.base_url.clone(), settings.requests_per_second, clock.clone()))
        });
        Self { service, settings, key: OnceCell::new(), clock: clock.clone() }
    }

    /// Reads the key, so that a missing one is known before anything is done. Says where it was found.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn unlock(&self) -> Result<&str, SecretError> {
        Ok(&self.found()?.place)
    }

    /// Whether nothing that is asked leaves this machine.
    #[must_use]
    pub fn stays_here(&self) -> bool {
        self.service.base().is_loopback()
    }

    /// Whether a refund takes the mark away.
    #[must_use]
    pub fn refunds_unmark(&self) -> bool {
        self.settings.refunds_unmark
    }

    /// Nothing more is asked once `pulse` says no.
    pub fn while_alive(&self, pulse: Rc<dyn Fn() -> bool>) {
        self.service.while_alive(pulse);
    }

    /// How long to wait before the next request.
    #[must_use]
    pub fn delay(&self) -> std::time::Duration {
        self.service.delay()
    }

    /// One page of all contacts.
    ///
    /// # Errors
    /// [`ContactError`].
    pub fn page(&self, after: Option<&str>) -> Result<Page, ContactError> {
        let after = after.map_or(String::new(), |id| format!("&after={}", encoded(id)));
        let body = self
            .read(&format!("/contacts?limit=100{after}"))?
            .ok_or_else(|| failed("it has no list of contacts"))?;
        let (rows, next) = answers::page(&body)?;
        let row = |row: &Value| {
            let text = |name: &str| row.get(name).and_then(Value::as_str);
            let address = text("email").and_then(|email| email.parse::<Address>().ok());
            let id = text("id")
                .filter(|id| !id.is_empty())
                .ok_or_else(|| failed("a contact in its list has no id"))?;
            Ok(Row { id: id.to_owned(), address: address.map(|address| address.buyer()) })
        };
        Ok(Page { rows: rows.iter().map(row).collect::<Result<_, ContactError>>()?, next })
    }

    /// One contact; none where there is no contact of exactly this id.
    ///
    /// # Errors
    /// [`ContactError`], also for an answer that does not say whether the contact has unsubscribed.
    pub fn contact(&self, id: &str) -> Result<Option<Contact>, ContactError> {
        // Such a path would be another.
        if id.bytes().all(|b| b == b'.') {
            return Ok(None);
        }
        let path = format!("/contacts/{}", encoded(id));
        let Some(body) = self.read(&path)? else { return Ok(None) };
        let value: Value =
            serde_json::from_slice(&body).map_err(|_| failed("its answer about a contact is no JSON"))?;
        // The service takes an address for an id, and answers with whoever has it.
        if value
            .get("id")
            .and_then(Value::as_str)
            .ok_or_else(|| failed("its answer about a contact has no id"))?
            != id
        {
            return Ok(None);
        }
        let unsubscribed = value.get("unsubscribed").and_then(Value::as_bool);
        let unsubscribed = unsubscribed
            .ok_or_else(|| failed("its answer about a contact does not say whether it has unsubscribed"))?;
        let of_segments = self.segments_of(&path)?;
        let has = |property: &str, wanted: &str| {
            Ok(answers::property(&value, property)?.as_deref() == Some(wanted))
        };
        let confirmed = match &self.settings.confirmed {
            Confirmed::Property { name, value } => has(name, value)?,
            Confirmed::Segment(segment) => of_segments.contains(segment),
        };
        let marked = match &self.settings.mark {
            Mark::Property(name) => has(name, YES)?,
            Mark::Segment(segment) => of_segments.contains(segment),
        };
        Ok(Some(Contact { id: id.to_owned(), unsubscribed, confirmed, marked }))
    }

    /// The segments of a contact, where the settings ask for any.
    fn segments_of(&self, contact: &str) -> Result<HashSet<String>, ContactError> {
        let mut segments = HashSet::new();
        if !matches!(self.settings.mark, Mark::Segment(_))
            && !matches!(self.settings.confirmed, Confirmed::Segment(_))
        {
            return Ok(segments);
        }
        let mut after = String::new();
        loop {
            let body = self.read(&format!("{contact}/segments?limit=100{after}"))?;
            let body = body.ok_or_else(|| failed("it has no list of a contact's segments"))?;
            let (rows, next) = answers::page(&body)?;
            let before = segments.len();
            segments.extend(rows.iter().filter_map(|row| row.get("id")?.as_str()).map(str::to_owned));
            match next {
                None => return Ok(segments),
                Some(_) if segments.len() == before => {
                    return Err(failed("a page of a contact's segments repeats another"));
                }
                Some(next) => after = format!("&after={}", encoded(&next)),
            }
        }
    }

    /// Sets the mark, or takes it away. Nothing else of the contact is named.
    ///
    /// # Errors
    /// [`ContactError`]: it may have been set all the same, and setting it again is the same.
    pub fn set(&self, contact: &str, marked: bool) -> Result<(), ContactError> {
        let path = format!("/contacts/{}", encoded(contact));
        let (method, path, body) = match &self.settings.mark {
            Mark::Property(name) => {
                let value = if marked { YES } else { NO };
                (Method::Patch, path, Some(json!({ "properties": { name.as_str(): value } }).to_string()))
            }
            Mark::Segment(segment) => {
                let method = if marked { Method::Post } else { Method::Delete };
                (method, format!("{path}/segments/{}", encoded(segment)), None)
            }
        };
        self.ask(method, &path, body.as_deref())?.map(drop).ok_or_else(|| {
            ContactError::Refused(
                "the service knows no such contact, or no such segment, to be marked".to_owned(),
            )
        })
    }

    fn found(&self) -> Result<&Found, SecretError> {
        if let Some(found) = self.key.get() {
            return Ok(found);
        }
        let found = self.settings.key.read(&self.clock)?;
        Ok(self.key.get_or_init(|| found))
    }

    fn read(&self, path: &str) -> Result<Option<Vec<u8>>, ContactError> {
        self.ask(Method::Get, path, None)
    }

    /// One request; none where there is no such thing. One that came too soon is made again, after the pause that the service
    /// asks for.
    fn ask(&self, method: Method, path: &str, body: Option<&str>) -> Result<Option<Vec<u8>>, ContactError> {
        let key = self.found().map_err(|error| ContactError::Refused(error.why))?;
        let request = Request { method, path, key: &key.secret, headers: &[], body };
        let mut tries = 0;
        loop {
            self.clock.sleep(self.service.delay());
            tries += 1;
            match self.service.ask(&request) {
                Reply::Answered(answer) if answer.status == 429 && tries < TRIES => {}
                Reply::Answered(answer) => return answers::classify(answer),
                Reply::NotWritten { reason } | Reply::Lost { reason } => {
                    return Err(ContactError::Failed(reason));
                }
            }
        }
    }
}

fn failed(why: &str) -> ContactError {
    ContactError::Failed(why.to_owned())
}

/// One segment of a path: what is neither a letter nor a digit nor one of `-_.~` is percent-encoded.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let part = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_id_reaches_no_other_path() {
        assert_eq!(encoded("520784e2-887d_4.c25~"), "520784e2-887d_4.c25~");
        assert_eq!(encoded("a/../b?c#d%e f+g@h\n"), "a%2F..%2Fb%3Fc%23d%25e%20f%2Bg%40h%0A");
        assert_eq!(encoded("花"), "%E8%8A%B1");
    }
}
