//! The payment service's list of events.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};
use stepmail::domain::time::Timestamp;

use super::{Act, Answer, Double, Seen, answer};

/// The key that it knows.
pub(crate) const KEY: &str = "rk_test_Sentinel_1234567890";

#[derive(Default)]
pub(super) struct Stripe {
    /// In the order in which they showed up.
    events: Vec<Value>,
    next: VecDeque<Act>,
    always: Option<Act>,
    forbidden: Vec<String>,
    is_live: bool,
    /// Each with the payment that paid it.
    invoices: Vec<(Value, String)>,
    /// Checkout sessions, newest last. Other objects stand in them by their ids.
    sessions: Vec<Value>,
    /// What was bought in a session: prices and products.
    items: HashMap<String, Vec<(String, String)>>,
    /// Payments, each with its latest charge in it; and subscriptions.
    others: HashMap<String, Value>,
}

/// A paid checkout, as an event.
pub(crate) fn paid(session: &str, email: &str, at: &str) -> Value {
    json!({
        "id": format!("evt_{session}"), "object": "event", "api_version": "2026-01-28.clover", "livemode": false,
        "type": "checkout.session.completed", "created": Timestamp::parse(at).unwrap().unix(),
        "data": { "object": {
            "id": session, "object": "checkout.session", "mode": "payment", "payment_status": "paid",
            "customer_details": { "email": email, "name": "Hanako" }, "payment_intent": format!("pi_{session}"),
        } },
    })
}

/// Any event.
pub(crate) fn event(id: &str, kind: &str, at: &str, object: &Value) -> Value {
    json!({
        "id": id, "object": "event", "livemode": false, "type": kind, "created": Timestamp::parse(at).unwrap().unix(),
        "data": { "object": object },
    })
}

/// The same checkout, as the list of sessions shows it.
pub(crate) fn session(id: &str, email: &str, at: &str) -> Value {
    let mut session = paid(id, email, at)["data"]["object"].clone();
    session["created"] = Timestamp::parse(at).unwrap().unix().into();
    session["livemode"] = false.into();
    session["status"] = "complete".into();
    session
}

impl Double {
    /// A checkout session is there.
    pub(crate) fn has_session(&self, session: Value) -> &Self {
        self.state().stripe.sessions.push(session);
        self
    }

    pub(crate) fn change_session(&self, id: &str, change: impl FnOnce(&mut Value)) {
        change(self.state().stripe.sessions.iter_mut().find(|session| session["id"] == id).unwrap());
    }

    /// These prices and products were bought in it.
    pub(crate) fn bought(&self, session: &str, items: &[(&str, &str)]) -> &Self {
        let items =
            items.iter().map(|(price, product)| ((*price).to_owned(), (*product).to_owned())).collect();
        self.state().stripe.items.insert(session.to_owned(), items);
        self
    }

    /// A payment or a subscription is there.
    pub(crate) fn has(&self, object: Value) -> &Self {
        self.state().stripe.others.insert(object["id"].as_str().unwrap().to_owned(), object);
        self
    }

    /// An event shows up in the payment service's list.
    pub(crate) fn happens(&self, event: Value) -> &Self {
        self.state().stripe.events.push(event);
        self
    }

    /// For the next request to the payment service.
    pub(crate) fn stripe_next(&self, act: Act) -> &Self {
        self.state().stripe.next.push_back(act);
        self
    }

    /// For every request to it, until told otherwise.
    pub(crate) fn stripe_always(&self, act: Option<Act>) {
        self.state().stripe.always = act;
    }

    /// An invoice was paid by this payment.
    pub(crate) fn invoice(&self, invoice: Value, payment: &str) {
        self.state().stripe.invoices.push((invoice, payment.to_owned()));
    }

    /// The key may not read this.
    pub(crate) fn forbid(&self, path: &str) {
        self.state().stripe.forbidden.push(path.to_owned());
    }

    /// Its key is one of the live mode.
    pub(crate) fn takes_the_live_key(&self) {
        self.state().stripe.is_live = true;
    }

    /// It may read everything again.
    pub(crate) fn allow(&self) {
        self.state().stripe.forbidden.clear();
    }

    /// The requests to it.
    pub(crate) fn polls(&self) -> Vec<Seen> {
        self.requests().into_iter().filter(|seen| seen.path.starts_with("/v1/")).collect()
    }
}

fn refused(status: u16, code: &str, message: &str) -> Answer {
    let mut refused = answer(
        status,
        &json!({ "error": { "type": "invalid_request_error", "code": code, "message": message } }),
    );
    refused.headers.push(("request-id", "req_1".to_owned()));
    refused
}

impl Stripe {
    pub(super) fn act(&mut self) -> Act {
        self.next.pop_front().or_else(|| self.always.clone()).unwrap_or(Act::Accept)
    }

    pub(super) fn answer(&self, seen: &Seen) -> Answer {
        let key = if self.is_live { KEY.replace("_test_", "_live_") } else { KEY.to_owned() };
        if seen.headers.get("authorization") != Some(&format!("Bearer {key}")) {
            return refused(401, "api_key_invalid", "Invalid API Key provided: rk_test_****");
        }
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        if self.forbidden.iter().any(|other| other == path) {
            return refused(
                403,
                "more_permissions_required",
                "Having the 'rak_charge_read' permission would allow this.",
            );
        }
        if !seen.headers.contains_key("stripe-version") {
            return refused(400, "parameter_missing", "This double speaks one version");
        }
        let pairs: Vec<(String, &str)> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.replace("%5B", "[").replace("%5D", "]"), value))
            .collect();
        if let Some(rest) = path.strip_prefix("/v1/checkout/sessions/") {
            return self.session(rest, &pairs);
        }
        if path == "/v1/checkout/sessions" {
            return self.sessions(&pairs);
        }
        if let Some(id) = path.strip_prefix("/v1/invoices/") {
            return match self.invoices.iter().find(|(invoice, ..)| invoice["id"] == id) {
                Some((invoice, _)) => answer(200, invoice),
                None => refused(404, "resource_missing", "No such invoice"),
            };
        }
        if path == "/v1/invoice_payments" {
            let by = |name: &str, value: &str| one(&pairs, name).is_none_or(|wanted| wanted == value);
            let paid = self.invoices.iter().filter(|(invoice, payment)| {
                by("payment[payment_intent]", payment) && by("invoice", invoice["id"].as_str().unwrap())
            });
            let row = |(invoice, payment): &(Value, String)| {
                let payment = self.shown(payment, "data.payment.payment_intent.latest_charge", &pairs);
                json!({ "id": "inpay_1", "invoice": invoice["id"], "payment": { "payment_intent": payment } })
            };
            let data: Vec<Value> = paid.map(row).collect();
            return answer(200, &json!({ "object": "list", "has_more": false, "data": data }));
        }
        let others = ["payment_intents", "charges", "disputes", "customers", "subscriptions", "invoices"];
        if others.iter().any(|other| path == format!("/v1/{other}")) {
            return answer(200, &json!({ "object": "list", "has_more": false, "data": [] }));
        }
        if path != "/v1/events" {
            return refused(404, "resource_missing", "Unrecognized request URL");
        }
        let types: Vec<&str> =
            pairs.iter().filter(|(n, _)| n == "types[]").map(|(_, value)| *value).collect();
        if types.len() > 20 {
            return refused(400, "parameter_invalid", "Too many types");
        }
        let is_asked = |event: &&Value| types.is_empty() || types.contains(&event["type"].as_str().unwrap());
        list(self.events.iter().rev().filter(is_asked).cloned().collect(), &pairs)
    }

    /// Another object: its id, or itself where it was asked for.
    fn shown(&self, id: &str, expand: &str, pairs: &[(String, &str)]) -> Value {
        let asked = pairs.iter().any(|(name, value)| name == "expand[]" && *value == expand);
        match self.others.get(id).filter(|_| asked) {
            Some(object) => object.clone(),
            None if asked => json!({ "id": id, "status": "active" }),
            None => id.into(),
        }
    }

    fn expanded(&self, session: &Value, before: &str, pairs: &[(String, &str)]) -> Value {
        let mut session = session.clone();
        for (name, what) in
            [("payment_intent", "payment_intent.latest_charge"), ("subscription", "subscription")]
        {
            if let Some(id) = session[name].as_str() {
                session[name] = self.shown(id, &format!("{before}{what}"), pairs);
            }
        }
        session
    }

    fn session(&self, path: &str, pairs: &[(String, &str)]) -> Answer {
        let (id, of) = path.split_once('/').unwrap_or((path, ""));
        match (self.sessions.iter().find(|session| session["id"] == id), self.items.get(id), of) {
            (Some(session), _, "") => answer(200, &self.expanded(session, "", pairs)),
            (_, Some(items), "line_items") => {
                let item = |(price, product): &(String, String)| json!({ "id": format!("li_{price}"), "price": { "id": price, "product": product } });
                list(items.iter().map(item).collect(), pairs)
            }
            _ => refused(404, "resource_missing", "No such checkout.session"),
        }
    }

    fn sessions(&self, pairs: &[(String, &str)]) -> Answer {
        let fits = |session: &&Value| {
            ["payment_intent", "subscription", "status"]
                .iter()
                .all(|name| one(pairs, name).is_none_or(|wanted| session[*name] == wanted))
        };
        let rows =
            self.sessions.iter().rev().filter(fits).map(|session| self.expanded(session, "data.", pairs));
        list(rows.collect(), pairs)
    }
}

fn one<'a>(pairs: &[(String, &'a str)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
}

/// A page of rows, as the query wants it.
fn list(rows: Vec<Value>, pairs: &[(String, &str)]) -> Answer {
    let limit: usize = one(pairs, "limit").map_or(Ok(10), str::parse).unwrap_or(0);
    if !(1..=100).contains(&limit) {
        return refused(400, "parameter_invalid", "Invalid limit");
    }
    let bound = |name: &str, plain: i64| one(pairs, name).map_or(plain, |value| value.parse().unwrap());
    let span = bound("created[gte]", i64::MIN)..=bound("created[lte]", i64::MAX);
    let mut rows: Vec<Value> =
        rows.into_iter().filter(|row| row["created"].as_i64().is_none_or(|at| span.contains(&at))).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row["created"].as_i64()));
    let from = match one(pairs, "starting_after") {
        Some(id) => match rows.iter().position(|row| row["id"] == id) {
            Some(at) => at + 1,
            None => return refused(400, "resource_missing", "No such object"),
        },
        None => 0,
    };
    let data: Vec<&Value> = rows.iter().skip(from).take(limit).collect();
    let more = rows.len() > from + limit;
    answer(200, &json!({ "object": "list", "has_more": more, "data": data }))
}
