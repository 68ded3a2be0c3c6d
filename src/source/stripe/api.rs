//! The API: one client, its key, its errors, its lists. Everything is read, and nothing changed.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Rules;
use crate::clock::Clock;
use crate::domain::time::Timestamp;
use crate::http::{Answer, BaseUrl, Method, Reply, Request, Service, jitter};
use crate::secret::{Found, Places, SecretError};

/// The shape that objects are asked for in, whatever the account's own version is. Events keep the shape they were made in.
const VERSION: &str = "2026-01-28.clover";
/// Reading a list ends after this, whatever is left of it.
const LIST_MAX: Duration = Duration::from_secs(10 * 60);
/// Before a request is made again that had no answer.
const PAUSES: [Duration; 2] = [Duration::from_millis(700), Duration::from_secs(3)];
/// A page of a hundred events, each with the whole object it is about.
const BODY_MAX: u64 = 16 * 1024 * 1024;

/// What a key must be allowed to read, and the cheapest way to see it.
const NEEDED: [(&str, &str); 9] = [
    ("events", "/v1/events?limit=1"),
    ("checkout sessions", "/v1/checkout/sessions?limit=1"),
    ("payment intents", "/v1/payment_intents?limit=1"),
    ("charges and refunds", "/v1/charges?limit=1"),
    ("disputes", "/v1/disputes?limit=1"),
    ("customers", "/v1/customers?limit=1"),
    ("subscriptions", "/v1/subscriptions?limit=1"),
    ("invoices", "/v1/invoices?limit=1"),
    ("payments of invoices", "/v1/invoice_payments?limit=1"),
];

/// Its settings, checked.
#[derive(Clone, Debug)]
pub struct StripeSettings {
    /// Where it is.
    pub base_url: BaseUrl,
    /// What of the events counts.
    pub rules: Rules,
    /// Where the key is.
    pub key: Places,
    /// Where the secret is that webhooks are signed with.
    pub webhook: Places,
}

/// The service, as far as it is read.
#[derive(Debug)]
pub struct Stripe {
    service: Service,
    settings: StripeSettings,
    key: OnceCell<Found>,
    clock: Clock,
}

/// Why nothing was learned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PollError {
    /// The key, or what it may do, is wrong: a person must act.
    #[error("Stripe refuses the key: {0}")]
    Refused(String),
    /// It cannot be reached, or is out of order: the next run asks again.
    #[error("Stripe cannot be read: {0}")]
    Failed(String),
    /// There is no such object.
    #[error("Stripe cannot be read: it knows no such object")]
    Absent,
    /// This request, or what it is about, is odd, and will be the next hour: others may be answered.
    #[error("Stripe cannot be read: {0}")]
    Odd(String),
}

impl Stripe {
    /// The name under which its readings are kept.
    pub const NAME: &'static str = "stripe";

    /// The service of these settings. Nothing is read or opened before the first use.
    #[must_use]
    pub fn new(settings: StripeSettings, clock: &Clock) -> Self {
        // The service allows a hundred reads a second, and a poll makes one.
        let service = Service::new(settings.base_url.clone(), 10, clock.clone()).reading_up_to(BODY_MAX);
        Self { service, settings, key: OnceCell::new(), clock: clock.clone() }
    }

    /// Reads the key, so that a missing one is known before anything is done. Says where it was found.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn unlock(&self) -> Result<&str, SecretError> {
        Ok(&self.found()?.place)
    }

    /// Whether a key may do more than it needs to: one that is not restricted can move money.
    #[must_use]
    pub fn key_is_too_strong(&self) -> bool {
        self.key.get().is_some_and(|found| found.secret.expose().starts_with("sk_"))
    }

    /// Whether nothing that is asked leaves this machine.
    #[must_use]
    pub fn stays_here(&self) -> bool {
        self.settings.base_url.is_loopback()
    }

    /// What its clock says, as far as an answer of this process told.
    #[must_use]
    pub fn time(&self) -> Option<Timestamp> {
        self.service.time()
    }

    /// Asks by one cheap read each for all that a key must be allowed to read: with one permission missing, the events it
    /// is about do not show up, and nobody would notice. Says what is missing.
    ///
    /// # Errors
    /// [`PollError`]: the service cannot be asked, or refuses the key altogether.
    pub fn look(&self) -> Result<Vec<(&'static str, PollError)>, PollError> {
        let mut missing = Vec::new();
        for (what, path) in NEEDED {
            match self.get(path) {
                Ok(body) => drop(Page::of(&body)?),
                Err(error @ PollError::Refused(_)) if missing.len() + 1 < NEEDED.len() => {
                    missing.push((what, error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    /// Nothing more is asked once `pulse` says no.
    pub fn while_alive(&self, pulse: Rc<dyn Fn() -> bool>) {
        self.service.while_alive(pulse);
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.settings.rules
    }

    /// Reads a list page by page to its end. `path` has its question mark.
    pub(super) fn pages(
        &self,
        path: &str,
        mut each: impl FnMut(&[u8], &Page<'_>) -> Result<(), PollError>,
    ) -> Result<(), PollError> {
        let (started, mut seen, mut after) = (self.clock.running(), HashSet::new(), String::new());
        loop {
            if self.clock.running().saturating_sub(started) > LIST_MAX {
                return Err(PollError::Failed("reading a list of it takes more than 10 minutes".to_owned()));
            }
            let body = self.get(&format!("{path}{after}"))?;
            let page = Page::of(&body)?;
            each(&body, &page)?;
            match page.last() {
                Some(last) if page.more => {
                    after = format!("&starting_after={last}");
                    if !seen.insert(last) {
                        return Err(PollError::Failed("a page of its list repeats another".to_owned()));
                    }
                }
                None if page.more => {
                    return Err(PollError::Failed(
                        "a page of its list is empty, and more are to follow".to_owned(),
                    ));
                }
                _ => return Ok(()),
            }
        }
    }

    /// One object; none where there is no such object.
    pub(super) fn object(&self, path: &str) -> Result<Option<Vec<u8>>, PollError> {
        match self.get(path) {
            Ok(body) => Ok(Some(body)),
            Err(PollError::Absent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn found(&self) -> Result<&Found, SecretError> {
        if let Some(found) = self.key.get() {
            return Ok(found);
        }
        let found = self.settings.key.read(&self.clock)?;
        Ok(self.key.get_or_init(|| found))
    }

    /// One read, up to three times: it changes nothing, so that asking again costs nothing.
    pub(super) fn get(&self, path: &str) -> Result<Vec<u8>, PollError> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let (error, again) = match self.ask(path) {
                Ok(body) => return Ok(body),
                Err(failed) => failed,
            };
            let Some(pause) = pauses.next().filter(|_| again) else { return Err(error) };
            tracing::warn!(%error, "asked again");
            self.clock.sleep((pause.mul_f64(0.75 + jitter() / 2.0)).max(self.service.delay()));
        }
    }

    /// One read. An error says whether another try may do better.
    fn ask(&self, path: &str) -> Result<Vec<u8>, (PollError, bool)> {
        let key = self.found().map_err(|error| (PollError::Refused(error.to_string()), false))?;
        let request = Request {
            method: Method::Get,
            path,
            key: &key.secret,
            headers: &[("stripe-version", VERSION)],
            body: None,
        };
        let answer = match self.service.ask(&request) {
            Reply::Answered(answer) => answer,
            Reply::NotWritten { reason } | Reply::Lost { reason } => {
                return Err((PollError::Failed(reason), true));
            }
        };
        let why = why(&answer);
        match (answer.status, answer.body) {
            (200, Some(body)) => Ok(body),
            (200, None) => {
                Err((PollError::Failed("its answer was cut off, or is longer than 16 MiB".to_owned()), true))
            }
            (400 | 404, _) if why.contains("resource_missing") => Err((PollError::Absent, false)),
            (401 | 403, _) => Err((PollError::Refused(why), false)),
            // The next hour is soon enough.
            (429, _) => Err((PollError::Failed(why), false)),
            (500.., _) => Err((PollError::Failed(why), answer.should_retry.unwrap_or(true))),
            (400..=499, _) if answer.should_retry != Some(true) => Err((PollError::Odd(why), false)),
            _ => Err((PollError::Failed(why), answer.should_retry.unwrap_or(false))),
        }
    }
}

/// What an answer says, without anything that may be a key: its status, its code, and the permission that is missing.
fn why(answer: &Answer) -> String {
    let mut why = format!("it answered {}", answer.status);
    if let Some(code) = answer.word(&["code", "type"]) {
        why.push(' ');
        why.push_str(&code);
    }
    let value: Value =
        answer.body.as_ref().and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
    let message = value.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
    let mut words = message.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    if let Some(permission) = words.find(|word| word.starts_with("rak_")) {
        why.push_str("; the key lacks the permission ");
        why.push_str(permission);
    }
    if let Some(id) = &answer.request_id {
        let _ = write!(why, " (request {id})");
    }
    why
}

pub(super) fn json(body: &[u8]) -> Result<Value, PollError> {
    serde_json::from_slice(body).map_err(|_| PollError::Failed("its answer is no JSON".to_owned()))
}

/// Another object's id: bare, or inside the object itself.
pub(super) fn id_of(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("id")?.as_str()).map(str::to_owned)
}

/// Whether an id can stand in an address as it is.
pub(super) fn is_id(id: &str) -> bool {
    (1..=200).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// One page of a list, each row still raw.
pub(super) struct Page<'a> {
    pub(super) rows: Vec<&'a RawValue>,
    pub(super) more: bool,
}

impl<'a> Page<'a> {
    pub(super) fn of(body: &'a [u8]) -> Result<Self, PollError> {
        #[derive(Deserialize)]
        struct Body<'a> {
            #[serde(borrow)]
            data: Vec<&'a RawValue>,
            has_more: bool,
        }
        // The parser's own words may repeat what stands there.
        let body: Body<'a> = serde_json::from_slice(body).map_err(|_| {
            PollError::Failed(
                "its list cannot be read: it is no JSON, or has no `data`, or does not say whether more follows".to_owned(),
            )
        })?;
        Ok(Self { rows: body.data, more: body.has_more })
    }

    /// The id of its last row, which the next page begins after.
    fn last(&self) -> Option<String> {
        let row: Value = serde_json::from_str(self.rows.last()?.get()).ok()?;
        row.get("id").and_then(Value::as_str).filter(|id| is_id(id)).map(str::to_owned)
    }
}
