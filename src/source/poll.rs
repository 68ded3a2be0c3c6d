//! The payment service's API: what happened there since the last good reading (`GET /v1/events`). The hourly job runs
//! behind a router that no webhook passes, so it asks.
//!
//! A poll is all or nothing: a fault on its second page yields nothing, and the reading does not move on. Events show up
//! late and with earlier times, so each poll goes back six hours before the last; what is known already counts once (R2).

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::{Reading, Rules, parse};
use crate::clock::Clock;
use crate::domain::ledger::Refs;
use crate::domain::time::{Seconds, Timestamp};
use crate::http::{Answer, BaseUrl, Method, Reply, Request, Service, jitter};
use crate::secret::{Found, Places, SecretError};

/// How far each poll goes back before the last good one: an event can appear late with an earlier time.
const OVERLAP: Seconds = Seconds::hours(6);
/// What is younger may not be there yet, while what is younger still is.
const YOUNGEST: Seconds = Seconds(60);
/// Events are kept for thirty days, less one for whatever is between the two clocks.
const KEPT: Seconds = Seconds::days(29);
/// A poll ends after this, whatever is left.
const POLL_MAX: Duration = Duration::from_secs(5 * 60);
/// Before a request is made again that had no answer.
const PAUSES: [Duration; 2] = [Duration::from_millis(700), Duration::from_secs(3)];
/// A page of a hundred events, each with the whole object it is about.
const BODY_MAX: u64 = 16 * 1024 * 1024;
/// All that start or stop something; the service takes up to twenty.
const TYPES: [&str; 8] = [
    "checkout.session.completed",
    "checkout.session.async_payment_succeeded",
    "checkout.session.async_payment_failed",
    "charge.refunded",
    "charge.dispute.created",
    "customer.subscription.deleted",
    "customer.subscription.updated",
    "customer.deleted",
];

/// What a key must be allowed to read, and the cheapest way to see it.
const NEEDED: [(&str, &str); 8] = [
    ("events", "/v1/events?limit=1"),
    ("checkout sessions", "/v1/checkout/sessions?limit=1"),
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
}

/// The service, as far as it is read.
#[derive(Debug)]
pub struct Stripe {
    service: Service,
    settings: StripeSettings,
    key: OnceCell<Found>,
    clock: Clock,
}

/// Why a poll yielded nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PollError {
    /// The key, or what it may do, is wrong: a person must act.
    #[error("Stripe refuses the key: {0}")]
    Refused(String),
    /// It cannot be reached, or is out of order: the next run asks again.
    #[error("Stripe cannot be read: {0}")]
    Failed(String),
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

    /// Everything since the last good reading, or since `go_live` where there was none. What R1 to R4 make of it is not
    /// said here.
    ///
    /// # Errors
    /// [`PollError`]: nothing was read, and the next poll begins where this one did.
    pub fn poll(
        &self,
        last: Option<Timestamp>,
        go_live: Timestamp,
        now: Timestamp,
    ) -> Result<Reading, PollError> {
        // A reading that lies ahead was dated by a clock that was wrong.
        let since = last.map_or(go_live, |last| last.min(now) - OVERLAP);
        let until = now - YOUNGEST;
        let mut path =
            format!("/v1/events?limit=100&created[gte]={}&created[lte]={}", since.unix(), until.unix());
        for stripe_type in TYPES {
            path.push_str("&types[]=");
            path.push_str(stripe_type);
        }
        let (started, mut seen) = (self.clock.running(), HashSet::new());
        let (mut all, mut after) = (Reading::default(), String::new());
        loop {
            if self.clock.running().saturating_sub(started) > POLL_MAX {
                return Err(PollError::Failed("reading its events takes more than 5 minutes".to_owned()));
            }
            let body = self.get(&format!("{path}{after}"))?;
            let page = Page::of(&body)?;
            let reading = parse("Stripe", &body, self.settings.rules)
                .map_err(|error| PollError::Failed(error.to_string()))?;
            all.incoming.extend(reading.incoming);
            all.other_mode += reading.other_mode;
            all.thin += reading.thin;
            match page.last {
                Some(last) if page.more => {
                    after = format!("&starting_after={last}");
                    if !seen.insert(last) {
                        return Err(PollError::Failed("a page of its events repeats another".to_owned()));
                    }
                }
                None if page.more => {
                    return Err(PollError::Failed(
                        "a page of its events is empty, and more are to follow".to_owned(),
                    ));
                }
                _ => return Ok(all),
            }
        }
    }

    /// The time since the last good reading that no poll can tell of any more: events are kept for 30 days.
    #[must_use]
    pub fn missed(last: Option<Timestamp>, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        last.filter(|last| now - *last > KEPT).map(|last| (last, now - KEPT))
    }

    /// The first invoice of a subscription, and that subscription, which a payment was made for; nothing where it was made
    /// for neither. Since 2025 a charge does not name its invoice, and the session of a subscription names no payment, so
    /// that a refund finds its purchase by these alone. A renewal is not the purchase, and not named.
    ///
    /// # Errors
    /// [`PollError`].
    pub fn paid_for(&self, payment_intent: &str) -> Result<Refs, PollError> {
        if !is_id(payment_intent) {
            return Ok(Refs::default());
        }
        let path = format!(
            "/v1/invoice_payments?limit=1&payment[type]=payment_intent&payment[payment_intent]={payment_intent}"
        );
        let page = json(&self.get(&path)?)?;
        let invoice = page.pointer("/data/0/invoice").and_then(id_of).filter(|id| is_id(id));
        let Some(invoice) = invoice else { return Ok(Refs::default()) };
        let found = json(&self.get(&format!("/v1/invoices/{invoice}"))?)?;
        if found.get("billing_reason").and_then(Value::as_str) != Some("subscription_create") {
            return Ok(Refs { invoice: Some(invoice), ..Refs::default() });
        }
        // Where the subscription stands in an invoice changed in 2025.
        let subscription = found
            .pointer("/parent/subscription_details/subscription")
            .or(found.get("subscription"))
            .and_then(id_of);
        Ok(Refs { invoice: Some(invoice), subscription, ..Refs::default() })
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

    fn found(&self) -> Result<&Found, SecretError> {
        if let Some(found) = self.key.get() {
            return Ok(found);
        }
        let found = self.settings.key.read(&self.clock)?;
        Ok(self.key.get_or_init(|| found))
    }

    /// One read, up to three times: it changes nothing, so that asking again costs nothing.
    fn get(&self, path: &str) -> Result<Vec<u8>, PollError> {
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
        let request = Request { method: Method::Get, path, key: &key.secret, headers: &[], body: None };
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
            (401 | 403, _) => Err((PollError::Refused(why), false)),
            // The next hour is soon enough.
            (429, _) => Err((PollError::Failed(why), false)),
            (500.., _) => Err((PollError::Failed(why), answer.should_retry.unwrap_or(true))),
            _ => Err((PollError::Failed(why), answer.should_retry.unwrap_or(false))),
        }
    }
}

/// What an answer says, without anything that may be a key: its status, its code, and the permission that is missing.
fn why(answer: &Answer) -> String {
    let value: Value =
        answer.body.as_ref().and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
    let text = |name: &str| value.get("error").and_then(|error| error.get(name)).and_then(Value::as_str);
    let is_word = |word: &&str| {
        (1..=64).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    let mut why = format!("it answered {}", answer.status);
    if let Some(code) = text("code").or(text("type")).filter(is_word) {
        why.push(' ');
        why.push_str(code);
    }
    let message = text("message").unwrap_or_default();
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

fn json(body: &[u8]) -> Result<Value, PollError> {
    serde_json::from_slice(body).map_err(|_| PollError::Failed("its answer is no JSON".to_owned()))
}

/// Another object's id: bare, or inside the object itself.
fn id_of(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("id")?.as_str()).map(str::to_owned)
}

/// Whether an id can stand in an address as it is.
fn is_id(id: &str) -> bool {
    (1..=200).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// What a page says of the ones that follow. Its events are read elsewhere, as those of a file are.
struct Page {
    more: bool,
    /// The id of its last event, which the next page begins after.
    last: Option<String>,
}

impl Page {
    fn of(body: &[u8]) -> Result<Self, PollError> {
        let failed = |what: &str| PollError::Failed(format!("its list of events cannot be read: {what}"));
        let value: Value = serde_json::from_slice(body).map_err(|_| failed("it is no JSON"))?;
        let rows = value.get("data").and_then(Value::as_array).ok_or_else(|| failed("`data` is no list"))?;
        let more = value.get("has_more").and_then(Value::as_bool);
        let more = more.ok_or_else(|| failed("`has_more` is neither true nor false"))?;
        let last = rows.last().and_then(|row| row.get("id")).and_then(Value::as_str).filter(|id| is_id(id));
        Ok(Self { more, last: last.map(str::to_owned) })
    }
}
