//! A service reached over HTTP: its address, its pace, and what becomes of a request.
//!
//! What matters most is told apart here: a request of which nothing left this machine, and one that may have been read.

mod pace;

use std::cell::{Cell, OnceCell, RefCell};
use std::error::Error as _;
use std::fmt;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use reqwest::Url;
use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use crate::clock::Clock;
use crate::domain::time::{Seconds, Timestamp};
use crate::secret::Secret;

use pace::Pace;

/// Longer answers are not read, unless a service is known to send some.
const BODY_MAX: u64 = 1024 * 1024;
/// A server that closes a connection it kept open makes the next request one whose fate is unknown, so none is kept long.
const IDLE_MAX: Duration = Duration::from_secs(15);
/// No service means a longer pause than a week.
const RETRY_AFTER_MAX: i64 = 7 * 86_400;

/// Where a service is: `https://` anywhere, `http://` on loopback only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// Without a slash at its end.
    text: String,
    loopback: bool,
}

impl BaseUrl {
    /// Checks an address.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("is no address of a service: {error}"))?;
        let host = url.host_str().unwrap_or_default();
        let loopback = host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
            || host.trim_matches(['[', ']']).parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback());
        match url.scheme() {
            "https" if !host.is_empty() => {}
            "http" if loopback => {}
            "http" => return Err("must begin with https://, or the key would travel in the clear".to_owned()),
            _ => return Err("must begin with https://".to_owned()),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("must not hold a user name or a password".to_owned());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("must not hold `?` or `#`".to_owned());
        }
        Ok(Self { text: url.as_str().trim_end_matches('/').to_owned(), loopback })
    }

    /// Whether nothing that is sent there leaves this machine: the host is a loopback IP literal. A name, `localhost` too,
    /// can lead anywhere. No proxy is used then.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Makes.
    Post,
    /// Changes what it names.
    Patch,
    /// Takes away.
    Delete,
}

/// One request.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// How.
    pub method: Method,
    /// Below the base, with its query: `/emails?limit=100`.
    pub path: &'a str,
    /// Goes into `Authorization: Bearer`.
    pub key: &'a Secret,
    /// Further headers.
    pub headers: &'a [(&'static str, &'a str)],
    /// JSON.
    pub body: Option<&'a str>,
}

/// What became of a request.
#[derive(Debug)]
pub enum Reply {
    /// The service, or something in between, answered.
    Answered(Answer),
    /// Nothing of it left this machine: no name, no connection, no TLS.
    NotWritten {
        /// In words, without address, key or body.
        reason: String,
    },
    /// It may have been read: no answer came in time, or the connection was lost.
    Lost {
        /// In words, without address, key or body.
        reason: String,
    },
}

/// An answer. Its body may hold anything, and goes into no `Debug`.
#[derive(Clone, Default)]
pub struct Answer {
    /// 100 to 599.
    pub status: u16,
    /// The whole body; none where it was longer than 1 MiB, or cut off.
    pub body: Option<Vec<u8>>,
    /// `Content-Type`, without parameters, lower case.
    pub content_type: Option<String>,
    /// `Retry-After`, as a span from now; none where absent or not understood.
    pub retry_after: Option<Seconds>,
    /// `Date`.
    pub date: Option<Timestamp>,
    /// `Request-Id`, by which the service's people find it.
    pub request_id: Option<String>,
    /// `Stripe-Should-Retry`: what the service itself says of another try.
    pub should_retry: Option<bool>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Answer {
    /// The word by which the service calls a fault: the first of these fields that holds one, of the body or of `error` in it.
    /// A message is no word: it may repeat anything.
    #[must_use]
    pub fn word(&self, fields: &[&str]) -> Option<String> {
        let value: serde_json::Value = serde_json::from_slice(self.body.as_deref()?).ok()?;
        let fault = value.get("error").filter(|fault| fault.is_object()).unwrap_or(&value);
        let is_word = |word: &&str| {
            (1..=64).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        };
        fields.iter().find_map(|name| fault.get(*name)?.as_str().filter(is_word)).map(str::to_owned)
    }
}

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    connect: Duration,
    /// From the first byte of the request to the last of the answer.
    total: Duration,
}

/// A service: one address, one client, one pace for everything that is asked of it.
pub struct Service {
    base: BaseUrl,
    clock: Clock,
    limits: Limits,
    body_max: u64,
    /// Made when first needed, and kept: connections and trusted roots are costly.
    client: OnceCell<Client>,
    pace: RefCell<Pace>,
    /// Whether a request may be made: asked before each.
    pulse: RefCell<Option<Rc<dyn Fn() -> bool>>>,
    /// The newest `Date` it sent, and when that was on the clock's running time.
    time: Cell<Option<(Timestamp, Duration)>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Service {
    /// A service that is asked at most so many times a second. Nothing is opened before the first request.
    #[must_use]
    pub fn new(base: BaseUrl, requests_per_second: u32, clock: Clock) -> Self {
        let limits = Limits { connect: Duration::from_secs(5), total: Duration::from_secs(30) };
        let pace = RefCell::new(Pace::new(requests_per_second, clock.running()));
        Self {
            base,
            clock,
            limits,
            body_max: BODY_MAX,
            client: OnceCell::new(),
            pace,
            pulse: RefCell::default(),
            time: Cell::new(None),
        }
    }

    /// The same, whose answers may be so long.
    #[must_use]
    pub fn reading_up_to(self, body_max: u64) -> Self {
        Self { body_max, ..self }
    }

    /// From now on no request is made where `pulse` says no: the ledger that the answer is for is no longer ours.
    pub fn while_alive(&self, pulse: Rc<dyn Fn() -> bool>) {
        *self.pulse.borrow_mut() = Some(pulse);
    }

    /// Where it is.
    #[must_use]
    pub fn base(&self) -> &BaseUrl {
        &self.base
    }

    /// How long to wait before the next request, by our pace and by what the service said of its limit.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.pace.borrow_mut().delay(self.clock.running())
    }

    /// What its clock says now, as far as an answer of this process told.
    #[must_use]
    pub fn time(&self) -> Option<Timestamp> {
        let (said, then) = self.time.get()?;
        let since = self.clock.running().saturating_sub(then).as_secs();
        Some(said + Seconds(i64::try_from(since).unwrap_or(i64::MAX)))
    }

    /// Makes one request, at once: connect 5 s, 30 s in all, no redirect followed, no try of its own.
    #[must_use]
    pub fn ask(&self, request: &Request<'_>) -> Reply {
        if self.pulse.borrow().as_ref().is_some_and(|pulse| !pulse()) {
            return Reply::NotWritten { reason: "the ledger is no longer this command's".to_owned() };
        }
        self.pace.borrow_mut().take(self.clock.running());
        let client = match self.client() {
            Ok(client) => client,
            Err(reason) => return Reply::NotWritten { reason },
        };
        let url = format!("{}{}", self.base.text, request.path);
        let mut builder = match request.method {
            Method::Get => client.get(url),
            Method::Post => client.post(url),
            Method::Patch => client.patch(url),
            Method::Delete => client.delete(url),
        };
        let Ok(headers) = headers(request) else {
            return Reply::NotWritten { reason: "the request has a header that cannot be sent".to_owned() };
        };
        builder = builder.headers(headers);
        if let Some(body) = request.body {
            builder = builder.body(body.to_owned());
        }
        // On the request and not on the client, whose limit would begin anew with each piece of the answer.
        match builder.timeout(self.limits.total).send() {
            Ok(response) => Reply::Answered(self.read(response)),
            // hyper says `connect` of what failed before it had a connection: not a byte of the request was written. A kept
            // connection that the server has closed meanwhile is no such case, and counts as lost, though hyper itself takes
            // a new one where it knows that nothing was written.
            Err(error) if error.is_connect() => Reply::NotWritten { reason: self.no_connection(&error) },
            Err(error) if error.is_builder() => {
                Reply::NotWritten { reason: "the request cannot be made".to_owned() }
            }
            Err(error) if error.is_timeout() => {
                Reply::Lost { reason: format!("no answer within {} s", self.limits.total.as_secs()) }
            }
            Err(error) => Reply::Lost { reason: format!("the connection was lost: {}", innermost(&error)) },
        }
    }

    fn client(&self) -> Result<&Client, String> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let mut builder = Client::builder()
            .user_agent(concat!("stepmail/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.limits.connect)
            .timeout(self.limits.total)
            .pool_idle_timeout(IDLE_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .http1_only();
        if self.base.loopback {
            builder = builder.no_proxy();
        }
        let client =
            builder.build().map_err(|error| format!("no HTTP client can be made: {}", innermost(&error)))?;
        Ok(self.client.get_or_init(|| client))
    }

    fn read(&self, response: Response) -> Answer {
        let text = |name: &HeaderName| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.map(|value| value.trim().to_owned())
        };
        let date = text(&DATE).and_then(|text| http_date(&text));
        // A cache in between may answer with an old one.
        if let Some(date) = date.filter(|date| self.time().is_none_or(|before| *date >= before - Seconds(2)))
        {
            self.time.set(Some((date, self.clock.running())));
        }
        let now = date.unwrap_or_else(|| self.clock.machine());
        let retry_after = text(&RETRY_AFTER).and_then(|text| retry_after(&text, now));
        let content_type = text(&CONTENT_TYPE)
            .map(|text| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
        let is_plain = |id: &String| {
            id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        };
        let request_id = text(&HeaderName::from_static("request-id")).filter(is_plain);
        let should_retry =
            text(&HeaderName::from_static("stripe-should-retry")).and_then(|text| text.parse().ok());
        let number = |name: &'static str| text(&HeaderName::from_static(name))?.parse::<u64>().ok();
        let status = response.status().as_u16();
        let mut pace = self.pace.borrow_mut();
        let running = self.clock.running();
        if number("ratelimit-remaining") == Some(0) {
            pace.hold(running, Duration::from_secs(number("ratelimit-reset").unwrap_or(1)));
        }
        if let (429, Some(span)) = (status, retry_after) {
            pace.hold(running, Duration::from_secs(span.0.unsigned_abs()));
        }
        drop(pace);
        let mut body = Vec::new();
        let read = response.take(self.body_max + 1).read_to_end(&mut body);
        let is_whole = read.is_ok() && body.len() as u64 <= self.body_max;
        let body = is_whole.then_some(body);
        Answer { status, body, content_type, retry_after, date, request_id, should_retry }
    }

    fn no_connection(&self, error: &reqwest::Error) -> String {
        if error.is_dns() {
            "its name cannot be resolved".to_owned()
        } else if error.is_timeout() {
            format!("no connection within {} s", self.limits.connect.as_secs())
        } else {
            format!("no connection: {}", innermost(error))
        }
    }
}

/// Between 0 and 1, by which two programs that were refused together do not come back together. Without chance (which
/// hardly can be) nothing breaks but the spread.
#[must_use]
pub fn jitter() -> f64 {
    getrandom::u32().map_or(0.5, |draw| f64::from(draw) / f64::from(u32::MAX))
}

fn headers(request: &Request<'_>) -> Result<HeaderMap, reqwest::header::InvalidHeaderValue> {
    let mut headers = HeaderMap::new();
    let mut key = HeaderValue::from_str(&format!("Bearer {}", request.key.expose()))?;
    key.set_sensitive(true);
    headers.insert(AUTHORIZATION, key);
    if request.body.is_some() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, value) in request.headers {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
    }
    Ok(headers)
}

/// The cause at the root, in one line. The outer errors say the address of the request; this one does not.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    let text = cause.map_or_else(|| "no reason given".to_owned(), ToString::to_string);
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}

/// `Date` and its kind, as RFC 9110 wants it.
fn http_date(text: &str) -> Option<Timestamp> {
    let date = chrono::DateTime::parse_from_rfc2822(text).ok()?;
    Timestamp::from_unix(date.timestamp()).ok()
}

/// Seconds, or a date.
fn retry_after(text: &str, now: Timestamp) -> Option<Seconds> {
    let seconds = match text.parse::<i64>() {
        Ok(seconds) => seconds,
        Err(_) => (http_date(text)? - now).0.max(0),
    };
    (seconds >= 0).then(|| Seconds(seconds.min(RETRY_AFTER_MAX)))
}

#[cfg(test)]
#[path = "http/tests.rs"]
mod tests;
