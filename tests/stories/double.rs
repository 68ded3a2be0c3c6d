//! The mail service as the stories meet it: on loopback, with a clock of its own, and with every fault on command.
//!
//! It keeps keys for 24 hours of its clock together with the exact bytes, refuses what the real one refuses, and counts what
//! it delivers. [`Double::twice`] is what everything is about.

mod contacts;
mod stripe;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepmail::clock::Clock;
use stepmail::domain::time::{Seconds, Timestamp};

/// The key that the double knows. It is searched for in everything that is written and said.
pub(crate) const KEY: &str = "re_Sentinel_1234567890abcdef";

pub(crate) use contacts::contact;
pub(crate) use stripe::{KEY as STRIPE_KEY, event, paid, session};

/// What is done with a request instead of the plain thing.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The plain thing.
    Accept,
    /// `{statusCode, name, message}` and further headers.
    Refuse(u16, &'static str, String, Vec<(&'static str, String)>),
    /// Any answer: status, content type, body.
    Raw(u16, &'static str, Vec<u8>),
    /// The mail is accepted and delivered, and then this is done.
    AcceptThen(Box<Act>),
    /// The connection ends before the body was read.
    DropBeforeReading,
    /// The connection ends without an answer.
    Drop,
    /// Half an answer, and then the connection ends.
    HalfAnAnswer,
    /// The plain thing, so late.
    Slow(Duration),
    /// No answer for as long as the client waits.
    Hold,
    /// The plain answer, so long for each byte.
    Drip(Duration),
    /// To that address, with this status.
    Redirect(u16, String),
    /// A refusal that repeats the key and the recipient in every way it can.
    Echo(u16, &'static str),
}

/// A refusal without further headers.
pub(crate) fn refuse(status: u16, name: &'static str, message: &str) -> Act {
    Act::Refuse(status, name, message.to_owned(), Vec::new())
}

/// A mail that was delivered.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) to: String,
    pub(crate) subject: String,
    pub(crate) body: Value,
    at: Timestamp,
    fate: String,
}

impl Delivery {
    fn tag(&self, name: &str) -> Option<&str> {
        let tags = self.body["tags"].as_array()?;
        tags.iter().find(|tag| tag["name"] == name)?["value"].as_str()
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// Which connection it came by.
    pub(crate) connection: usize,
}

#[derive(Default)]
struct State {
    now: Option<Timestamp>,
    date_off_by: i64,
    undated: bool,
    taken: HashMap<String, (Timestamp, Vec<u8>, Vec<u8>)>,
    running: HashSet<String>,
    mails: Vec<Delivery>,
    requests: Vec<Seen>,
    next: VecDeque<Act>,
    always: Option<Act>,
    recipients: HashMap<String, Act>,
    notices: Option<Act>,
    reads: Option<Act>,
    by_count: Option<fn(usize) -> Act>,
    posts: usize,
    send_only: bool,
    domains: Vec<(String, String)>,
    list_keeps: Option<Seconds>,
    page_max: Option<usize>,
    repeats: bool,
    limit: Option<usize>,
    last_second: VecDeque<Instant>,
    quota: Option<usize>,
    stripe: stripe::Stripe,
    contacts: contacts::Contacts,
}

/// The service.
pub(crate) struct Double {
    state: Arc<Mutex<State>>,
    ended: Arc<AtomicBool>,
    port: u16,
}

impl Double {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let domains = vec![("example.com".to_owned(), "verified".to_owned())];
        let state = Arc::new(Mutex::new(State { domains, ..State::default() }));
        let ended = Arc::new(AtomicBool::new(false));
        let (of_thread, end) = (Arc::clone(&state), Arc::clone(&ended));
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let (state, end) = (Arc::clone(&of_thread), Arc::clone(&end));
                // A connection that breaks is the client's business.
                std::thread::spawn(move || stream.map(|stream| serve(stream, n, &state, &end)));
            }
        });
        Self { state, ended, port }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the double's own clock.
    pub(crate) fn set_now(&self, now: &str) {
        self.state().now = Some(Timestamp::parse(now).unwrap());
    }

    /// The `Date` header, which is the machine's time, is off by so many seconds.
    pub(crate) fn date_off_by(&self, seconds: i64) {
        self.state().date_off_by = seconds;
    }

    pub(crate) fn without_date(&self, undated: bool) {
        self.state().undated = undated;
    }

    /// For the next mail to a buyer.
    pub(crate) fn next(&self, act: Act) -> &Self {
        self.state().next.push_back(act);
        self
    }

    /// For every mail to a buyer, until told otherwise.
    pub(crate) fn always(&self, act: Act) {
        self.state().always = Some(act);
    }

    pub(crate) fn is_well(&self) {
        let mut state = self.state();
        (state.always, state.notices, state.reads) = (None, None, None);
        state.next.clear();
        state.recipients.clear();
    }

    pub(crate) fn for_recipient(&self, address: &str, act: Act) {
        self.state().recipients.insert(address.to_owned(), act);
    }

    pub(crate) fn for_notices(&self, act: Act) {
        self.state().notices = Some(act);
    }

    pub(crate) fn for_reads(&self, act: Act) {
        self.state().reads = Some(act);
    }

    /// For the nth mail to a buyer, counted from 1.
    pub(crate) fn by_count(&self, act: fn(usize) -> Act) {
        self.state().by_count = Some(act);
    }

    pub(crate) fn may_only_send(&self, only: bool) {
        self.state().send_only = only;
    }

    pub(crate) fn domain(&self, name: &str, status: &str) {
        self.state().domains = vec![(name.to_owned(), status.to_owned())];
    }

    /// Older mails are not listed.
    pub(crate) fn list_keeps(&self, hours: i64) {
        self.state().list_keeps = Some(Seconds::hours(hours));
    }

    /// So many mails on a page, whatever is asked for.
    pub(crate) fn page_of(&self, mails: usize) {
        self.state().page_max = Some(mails);
    }

    pub(crate) fn repeats_its_first_page(&self) {
        self.state().repeats = true;
    }

    /// So many requests a second, of any kind.
    pub(crate) fn limit(&self, per_second: usize) {
        self.state().limit = Some(per_second);
    }

    /// So many mails, and then none until it is lifted.
    pub(crate) fn quota(&self, mails: Option<usize>) {
        self.state().quota = mails;
    }

    /// A mail that somebody else sent by this account.
    pub(crate) fn somebody_sends(&self, to: &str, subject: &str, at: &str) {
        let mut state = self.state();
        let id = format!("00000000-0000-4000-8000-{:012}", state.mails.len());
        let (to, subject) = (to.to_owned(), subject.to_owned());
        let (at, fate) = (Timestamp::parse(at).unwrap(), "delivered".to_owned());
        state.mails.push(Delivery { id, key: String::new(), to, subject, body: json!({}), at, fate });
    }

    /// A request that was on its way for long arrives now.
    pub(crate) fn takes(&self, key: &str, body: &[u8]) {
        let headers = [("user-agent", "late"), ("authorization", &format!("Bearer {KEY}"))];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let (method, path) = ("POST".to_owned(), "/emails".to_owned());
        let answer =
            self.state().answer(&Seen { method, path, headers, body: body.to_vec(), connection: 0 }, key);
        assert_eq!(answer.status, 200);
    }

    pub(crate) fn set_fate(&self, key: &str, fate: &str) {
        let mut state = self.state();
        let mail = state.mails.iter_mut().find(|mail| mail.key == key).unwrap();
        fate.clone_into(&mut mail.fate);
    }

    /// What buyers found in their mailboxes.
    pub(crate) fn deliveries(&self) -> Vec<Delivery> {
        let state = self.state();
        state
            .mails
            .iter()
            .filter(|mail| mail.key.starts_with("pp:") && !is_notice(&mail.key))
            .cloned()
            .collect()
    }

    /// What the operator found.
    pub(crate) fn notices(&self) -> Vec<Delivery> {
        self.state().mails.iter().filter(|mail| is_notice(&mail.key)).cloned().collect()
    }

    pub(crate) fn delivered(&self, key: &str) -> usize {
        self.state().mails.iter().filter(|mail| mail.key == key).count()
    }

    /// Mails that came more than once, under one key or another.
    pub(crate) fn twice(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        let state = self.state();
        let names = state.mails.iter().filter(|mail| !mail.key.is_empty()).map(|mail| {
            match (mail.tag("session"), mail.tag("step")) {
                (Some(session), Some(step)) => format!("{session} {step}"),
                _ => mail.key.clone(),
            }
        });
        names.filter(|name| !seen.insert(name.clone())).collect()
    }

    /// Everything that was asked.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.state().requests.clone()
    }

    /// The bodies that came under a key.
    pub(crate) fn asked(&self, key: &str) -> Vec<Vec<u8>> {
        let of_key = |seen: &&Seen| seen.headers.get("idempotency-key").is_some_and(|k| k == key);
        self.state().requests.iter().filter(of_key).map(|seen| seen.body.clone()).collect()
    }

    /// How many mails to buyers were asked for.
    pub(crate) fn posts(&self) -> usize {
        self.state().posts
    }

    /// Waits until so many mails to buyers were asked for. A program that never asks fails the story.
    #[track_caller]
    pub(crate) fn waits_for(&self, posts: usize) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.posts() < posts {
            assert!(Instant::now() < until, "{} requests, and {posts} were waited for", self.posts());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn reads(&self) -> usize {
        self.state().requests.iter().filter(|seen| seen.method == "GET").count()
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the listener, so that its thread ends.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn is_notice(key: &str) -> bool {
    key.starts_with("pp:notice:")
}

/// An answer, ready to be written.
struct Answer {
    status: u16,
    content_type: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn answer(status: u16, body: &Value) -> Answer {
    Answer {
        status,
        content_type: "application/json; charset=utf-8",
        headers: Vec::new(),
        body: body.to_string().into(),
    }
}

fn fault(status: u16, name: &str, message: &str) -> Answer {
    answer(status, &json!({ "statusCode": status, "name": name, "message": message }))
}

/// Requests of one connection, one after the other.
fn serve(stream: TcpStream, connection: usize, state: &Mutex<State>, ended: &AtomicBool) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    stream.set_nodelay(true).ok()?;
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let key = headers.get("idempotency-key").cloned().unwrap_or_default();
        let drops_early = method == "POST" && !is_notice(&key) && lock(state).drops_early();
        let mut body = Vec::new();
        if !drops_early {
            let length: usize = headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
            body.resize(length, 0);
            reader.read_exact(&mut body).ok()?;
        }
        let seen = Seen { method, path, headers, body, connection };
        let act = {
            let mut state = lock(state);
            state.requests.push(seen.clone());
            state.act(&seen, &key)
        };
        play(&act, &seen, &key, state, ended, &mut writer)?;
    }
}

impl State {
    fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(|| Clock::new(None).machine())
    }

    /// Whether the next mail to a buyer is dropped before its body was read.
    fn drops_early(&self) -> bool {
        let act = self.next.front().or(self.always.as_ref());
        matches!(act, Some(Act::DropBeforeReading))
    }

    /// What is to be done with this request.
    fn act(&mut self, seen: &Seen, key: &str) -> Act {
        if seen.path.starts_with("/v1/") {
            return self.stripe.act();
        }
        if seen.path.starts_with("/contacts") {
            return self.contacts.act();
        }
        if seen.method == "GET" {
            return self.reads.clone().unwrap_or(Act::Accept);
        }
        if is_notice(key) {
            return self.notices.clone().unwrap_or(Act::Accept);
        }
        self.posts += 1;
        let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
        let to = body["to"][0].as_str().unwrap_or_default();
        let by_count = self.by_count.map(|act| act(self.posts)).filter(|act| !matches!(act, Act::Accept));
        self.next
            .pop_front()
            .or_else(|| self.recipients.get(to).cloned())
            .or(by_count)
            .or_else(|| self.always.clone())
            .unwrap_or(Act::Accept)
    }

    /// The plain answer.
    fn answer(&mut self, seen: &Seen, key: &str) -> Answer {
        if !seen.headers.contains_key("user-agent") {
            return Answer {
                status: 403,
                content_type: "text/html",
                headers: vec![],
                body: b"<h1>1010</h1>".into(),
            };
        }
        let second_ago = Instant::now().checked_sub(Duration::from_secs(1));
        self.last_second.push_back(Instant::now());
        while self.last_second.front().is_some_and(|then| second_ago.is_some_and(|ago| *then < ago)) {
            self.last_second.pop_front();
        }
        if self.limit.is_some_and(|limit| self.last_second.len() > limit) {
            let mut refused = fault(429, "rate_limit_exceeded", "Too many requests.");
            refused.headers.push(("retry-after", "1".to_owned()));
            return refused;
        }
        if seen.path.starts_with("/v1/") {
            return self.stripe.answer(seen);
        }
        match seen.headers.get("authorization").map(String::as_str) {
            None => return fault(401, "missing_api_key", "Missing API Key"),
            Some(bearer) if bearer != format!("Bearer {KEY}") => {
                return fault(400, "validation_error", "API key is invalid");
            }
            Some(_) => {}
        }
        if seen.path.starts_with("/contacts") {
            if self.send_only {
                return fault(401, "restricted_api_key", "This API key is restricted to only send emails");
            }
            return self.contacts.answer(seen);
        }
        if seen.method == "GET" {
            return self.read(&seen.path);
        }
        if !(1..=256).contains(&key.len()) {
            return fault(400, "invalid_idempotency_key", "The key must be between 1-256 chars");
        }
        let now = self.now();
        if self.running.contains(key) {
            return fault(409, "concurrent_idempotent_requests", "Same key, in progress");
        }
        if let Some((at, bytes, given)) = self.taken.get(key)
            && now - *at < Seconds::days(1)
        {
            if *bytes != seen.body {
                return fault(409, "invalid_idempotent_request", "Same key, different payload");
            }
            let body = serde_json::from_slice(given).unwrap();
            return answer(200, &body);
        }
        if let Err(what) = sound(&seen.body) {
            return fault(422, "validation_error", &what);
        }
        if self.quota.is_some_and(|quota| self.mails.len() >= quota) {
            return fault(429, "daily_quota_exceeded", "You have reached your daily email sending quota.");
        }
        let body: Value = serde_json::from_slice(&seen.body).unwrap();
        let id = format!("4ef9a417-02e9-4d39-ad75-{:012}", self.mails.len());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (to, subject) = (text(&body["to"][0]), text(&body["subject"]));
        let fate = "sent".to_owned();
        self.mails.push(Delivery { id: id.clone(), key: key.to_owned(), to, subject, body, at: now, fate });
        let given = json!({ "id": id });
        self.taken.insert(key.to_owned(), (now, seen.body.clone(), given.to_string().into()));
        answer(200, &given)
    }

    fn read(&self, path: &str) -> Answer {
        if self.send_only {
            return fault(401, "restricted_api_key", "This API key is restricted to only send emails");
        }
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let asked = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
        if path == "/domains" {
            let rows: Vec<Value> = self
                .domains
                .iter()
                .map(|(name, status)| json!({ "id": format!("d-{name}").replace('.', "-"), "name": name, "status": status }))
                .collect();
            return answer(200, &json!({ "object": "list", "has_more": false, "data": rows }));
        }
        let since = self.list_keeps.map(|span| self.now() - span);
        let listed = self.mails.iter().rev().filter(|mail| since.is_none_or(|since| mail.at >= since));
        let mut listed: Vec<&Delivery> = listed.collect();
        listed.sort_by_key(|mail| std::cmp::Reverse(mail.at));
        if let Some(id) = path.strip_prefix("/emails/") {
            return match listed.iter().find(|mail| mail.id == id) {
                Some(mail) => {
                    let mut row = row(mail);
                    row["object"] = "email".into();
                    row["tags"] = mail.body["tags"].clone();
                    answer(200, &row)
                }
                None => fault(404, "not_found", "Email not found"),
            };
        }
        if path != "/emails" {
            return fault(404, "not_found", "The requested endpoint does not exist");
        }
        let limit: usize = asked("limit").map_or(Ok(20), str::parse).unwrap_or(0);
        if !(1..=100).contains(&limit) {
            return fault(422, "validation_error", "`limit` must be between 1 and 100");
        }
        let limit = self.page_max.unwrap_or(limit);
        let after = asked("after").filter(|_| !self.repeats);
        let from = after.and_then(|id| listed.iter().position(|mail| mail.id == id)).map_or(0, |at| at + 1);
        let rest = &listed[from..];
        let data: Vec<Value> = rest.iter().take(limit).map(|mail| row(mail)).collect();
        answer(
            200,
            &json!({ "object": "list", "has_more": rest.len() > limit || self.repeats, "data": data }),
        )
    }
}

fn row(mail: &Delivery) -> Value {
    let at = mail.at.to_string().replace('T', " ").replace('Z', ".674981+00");
    json!({
        "id": mail.id, "to": [mail.to], "from": mail.body["from"], "created_at": at, "subject": mail.subject,
        "bcc": null, "cc": null, "reply_to": null, "last_event": mail.fate, "scheduled_at": null,
    })
}

/// What the real service refuses is refused here, so that nobody finds out in earnest.
fn sound(body: &[u8]) -> Result<(), String> {
    let body: Value = serde_json::from_slice(body).map_err(|_| "the body is no JSON".to_owned())?;
    let fields = body.as_object().ok_or("the body is no object")?;
    let known = ["from", "to", "subject", "html", "text", "reply_to", "headers", "tags"];
    if let Some(odd) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("unknown field `{odd}`"));
    }
    for name in ["from", "subject", "html", "text"] {
        if fields.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(format!("Missing `{name}` field"));
        }
    }
    if body["to"]
        .as_array()
        .is_none_or(|to| to.len() != 1 || !to[0].as_str().is_some_and(|to| to.contains('@')))
    {
        return Err("Invalid `to` field".to_owned());
    }
    let plain = |text: &str| {
        (1..=256).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    for tag in body["tags"].as_array().unwrap_or(&Vec::new()) {
        if ![&tag["name"], &tag["value"]].iter().all(|text| text.as_str().is_some_and(plain)) {
            return Err("Tags should only contain ASCII letters, numbers, underscores, or dashes.".to_owned());
        }
    }
    Ok(())
}

/// Does what the act says. None: the connection is over.
fn play(
    act: &Act,
    seen: &Seen,
    key: &str,
    state: &Mutex<State>,
    ended: &AtomicBool,
    writer: &mut TcpStream,
) -> Option<()> {
    let plain = || lock(state).answer(seen, key);
    match act {
        Act::Accept => {
            let answer = plain();
            write(writer, &answer, state, None)
        }
        Act::AcceptThen(then) => {
            plain();
            play(then, seen, key, state, ended, writer)
        }
        Act::Refuse(status, name, message, headers) => {
            let mut answer = fault(*status, name, message);
            answer.headers.clone_from(headers);
            write(writer, &answer, state, None)
        }
        Act::Raw(status, content_type, body) => {
            let (headers, body) = (Vec::new(), body.clone());
            write(writer, &Answer { status: *status, content_type, headers, body }, state, None)
        }
        Act::Redirect(status, location) => {
            let mut answer = fault(*status, "", "");
            answer.headers.push(("location", location.clone()));
            write(writer, &answer, state, None)
        }
        Act::Echo(status, name) => {
            let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
            let to = body["to"][0].as_str().unwrap_or_default();
            let bearer = seen.headers.get("authorization").cloned().unwrap_or_default();
            let message = format!(
                "Invalid value {to} (\"{to}\", <{to}>, {}) for {bearer}: {} {}",
                to.replace('@', "%40"),
                body["subject"],
                body["html"]
            );
            write(writer, &fault(*status, name, &message), state, None)
        }
        Act::DropBeforeReading | Act::Drop => {
            let _ = writer.shutdown(Shutdown::Both);
            None
        }
        Act::HalfAnAnswer => {
            writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"id\":").ok()?;
            writer.flush().ok()?;
            let _ = writer.shutdown(Shutdown::Both);
            None
        }
        Act::Slow(span) => {
            let answer = plain();
            lock(state).running.insert(key.to_owned());
            wait(*span, ended);
            lock(state).running.remove(key);
            write(writer, &answer, state, None)
        }
        Act::Hold => {
            lock(state).running.insert(key.to_owned());
            // A little longer than the client waits.
            wait(Duration::from_secs(32), ended);
            lock(state).running.remove(key);
            None
        }
        Act::Drip(each) => {
            let answer = plain();
            write(writer, &answer, state, Some((*each, ended)))
        }
    }
}

fn wait(span: Duration, ended: &AtomicBool) {
    let until = Instant::now() + span;
    while Instant::now() < until && !ended.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn write(
    writer: &mut TcpStream,
    answer: &Answer,
    state: &Mutex<State>,
    drip: Option<(Duration, &AtomicBool)>,
) -> Option<()> {
    let mut head = format!(
        "HTTP/1.1 {} Whatever\r\nContent-Type: {}\r\nContent-Length: {}\r\n",
        answer.status,
        answer.content_type,
        answer.body.len()
    );
    {
        let state = lock(state);
        if !state.undated {
            let date = Clock::new(None).machine() + Seconds(state.date_off_by);
            let date = chrono::DateTime::from_timestamp(date.unix(), 0).unwrap();
            let _ = write!(head, "Date: {}\r\n", date.format("%a, %d %b %Y %H:%M:%S GMT"));
        }
    }
    for (name, value) in &answer.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.push_str("\r\n");
    let bytes = [head.as_bytes(), &answer.body].concat();
    if let Some((each, ended)) = drip {
        for byte in bytes {
            wait(each, ended);
            writer.write_all(&[byte]).ok()?;
        }
        return writer.flush().ok();
    }
    writer.write_all(&bytes).ok()?;
    writer.flush().ok()
}
