//! The mail service Resend: `POST /emails`, and its list of mails. What its answers mean stands in `answers.rs`; here
//! nothing waits and nothing is tried twice.

mod answers;
mod list;
mod look;
mod request;

use std::cell::OnceCell;
use std::rc::Rc;

use crate::clock::Clock;
use crate::domain::fate::Tagged;
use crate::domain::ids::{Address, IdempotencyKey};
use crate::domain::ledger::Frozen;
use crate::domain::outcome::Outcome;
use crate::domain::policy::Retention;
use crate::domain::time::{Seconds, Timestamp};
use crate::http::{BaseUrl, Method, Reply, Request, Service};
use crate::secret::{Found, Places, Secret, SecretError};

use super::{Archive, FreezeError, Message, NoClock, Page, Transport, Unreadable};

pub use look::{DomainSeen, Look, Rights};

/// Its settings, checked.
#[derive(Clone, Debug)]
pub struct ResendSettings {
    /// Where it is.
    pub base_url: BaseUrl,
    /// Our share of the team's limit.
    pub requests_per_second: u32,
    /// Where the key is.
    pub key: Places,
}

/// The service.
#[derive(Debug)]
pub struct Resend {
    service: Rc<Service>,
    places: Places,
    key: OnceCell<Found>,
    clock: Clock,
}

impl Resend {
    /// Its name in ledger and settings.
    pub const NAME: &'static str = "resend";

    /// The service of these settings. Neither the key is read nor a connection made before the first use.
    #[must_use]
    pub fn new(settings: ResendSettings, clock: &Clock) -> Self {
        let service = Rc::new(Service::new(settings.base_url, settings.requests_per_second, clock.clone()));
        Self { service, places: settings.key, key: OnceCell::new(), clock: clock.clone() }
    }

    /// The service itself, for whatever else is asked of it: its limit is one for all keys of a team.
    #[must_use]
    pub fn service(&self) -> Rc<Service> {
        self.service.clone()
    }

    /// Reads the key, so that a missing one is known before anything is done. Says where it was found.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn unlock(&self) -> Result<&str, SecretError> {
        Ok(&self.found()?.place)
    }

    /// What `check` wants to know, by reads that send and change nothing: the rights of the key, and whether mails from
    /// this address will be taken.
    pub fn look(&self, from: &Address) -> Look {
        look::look(self, from)
    }

    fn found(&self) -> Result<&Found, SecretError> {
        if let Some(found) = self.key.get() {
            return Ok(found);
        }
        let found = self.places.read(&self.clock)?;
        Ok(self.key.get_or_init(|| found))
    }

    fn secret(&self) -> Result<&Secret, SecretError> {
        Ok(&self.found()?.secret)
    }

    /// One read. The secret comes along, so that what is said of the answer can be kept free of it.
    fn get(&self, path: &str) -> Result<(Reply, &Secret), SecretError> {
        let key = self.secret()?;
        let request = Request { method: Method::Get, path, key, headers: &[], body: None };
        Ok((self.service.ask(&request), key))
    }

    /// One read whose answer is a body.
    fn read(&self, path: &str) -> Result<Vec<u8>, Unreadable> {
        let failed = |reason: String| Unreadable::Failed { reason, retry_after: None };
        match self.get(path).map_err(|error| failed(error.to_string()))? {
            (Reply::Answered(answer), key) => answers::read(answer, key),
            (Reply::NotWritten { reason } | Reply::Lost { reason }, _) => Err(failed(reason)),
        }
    }
}

/// Whether the service takes it as `Idempotency-Key`. Another is not to be tried: a mail without a key can leave twice.
fn is_sendable(key: &str) -> bool {
    (1..=256).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic())
}

impl Transport for Resend {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn stays_here(&self) -> bool {
        self.service.base().is_loopback()
    }

    fn freeze(&self, message: &Message) -> Result<Frozen, FreezeError> {
        let body =
            request::body(message).map_err(|reason| FreezeError { key: message.key.clone(), reason })?;
        Ok(Frozen {
            via: Self::NAME.to_owned(),
            to: message.to.clone(),
            subject: message.subject.clone(),
            body,
            hash: message.content_hash(),
        })
    }

    fn send(&self, key: &IdempotencyKey, frozen: &Frozen) -> Outcome {
        if frozen.via != Self::NAME {
            let reason = format!(
                "it was prepared for `{}`, not for {}; this is a fault of stepmail",
                frozen.via,
                Self::NAME
            );
            return Outcome::RefusedAccount { reason };
        }
        let secret = match self.secret() {
            Ok(secret) => secret,
            Err(error) => return Outcome::RefusedAccount { reason: error.why },
        };
        let key = key.to_string();
        if !is_sendable(&key) {
            let reason = "its key is not what the service takes as one; this is a fault of stepmail";
            return Outcome::RefusedAccount { reason: reason.to_owned() };
        }
        let headers = [("idempotency-key", key.as_str())];
        let request = Request {
            method: Method::Post,
            path: "/emails",
            key: secret,
            headers: &headers,
            body: Some(&frozen.body),
        };
        match self.service.ask(&request) {
            Reply::Answered(answer) => answers::classify(&answer, secret),
            Reply::NotWritten { reason } => Outcome::NotSent { reason, retry_after: None },
            Reply::Lost { reason } => Outcome::unknown(reason),
        }
    }

    fn retention(&self) -> Retention {
        Retention::For(Seconds::days(1))
    }

    fn delay(&self) -> std::time::Duration {
        self.service.delay()
    }

    fn keeps_time(&self) -> bool {
        true
    }

    fn service_clock(&self) -> Result<Timestamp, NoClock> {
        if let Some(time) = self.service.time() {
            return Ok(time);
        }
        // With a key that may only send, the refusal has a `Date` too.
        match self.get("/emails?limit=1") {
            Ok((Reply::Answered(_), _)) => self.service.time().ok_or(NoClock::Undated),
            Ok((Reply::NotWritten { reason } | Reply::Lost { reason }, _)) => Err(NoClock::Offline(reason)),
            Err(error) => Err(NoClock::Offline(error.to_string())),
        }
    }

    fn archive(&self) -> Option<&dyn Archive> {
        Some(self)
    }
}

impl Archive for Resend {
    fn page(&self, after: Option<&str>) -> Result<Page, Unreadable> {
        let after = match after {
            Some(id) if list::is_id(id) => format!("&after={id}"),
            Some(_) => {
                let reason = "the service's list has an id that cannot be asked for".to_owned();
                return Err(Unreadable::Failed { reason, retry_after: None });
            }
            None => String::new(),
        };
        let body = self.read(&format!("/emails?limit=100{after}"))?;
        list::page(&body).map_err(|reason| Unreadable::Failed { reason, retry_after: None })
    }

    fn whose(&self, id: &str) -> Result<Option<Tagged>, Unreadable> {
        if !list::is_id(id) {
            return Ok(None);
        }
        let body = self.read(&format!("/emails/{id}"))?;
        list::tags(&body).map_err(|reason| Unreadable::Failed { reason, retry_after: None })
    }
}

#[cfg(test)]
#[path = "resend/tests.rs"]
mod tests;
