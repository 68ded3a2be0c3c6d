//! The payment service's list of events.

use std::collections::VecDeque;

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
    /// Each with the payment that paid it.
    invoices: Vec<(Value, String)>,
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

impl Double {
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
        if seen.headers.get("authorization") != Some(&format!("Bearer {KEY}")) {
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
        if let Some(id) = path.strip_prefix("/v1/invoices/") {
            return match self.invoices.iter().find(|(invoice, ..)| invoice["id"] == id) {
                Some((invoice, _)) => answer(200, invoice),
                None => refused(404, "resource_missing", "No such invoice"),
            };
        }
        if path == "/v1/invoice_payments" {
            let query = query.replace("%5B", "[").replace("%5D", "]");
            let paid = self
                .invoices
                .iter()
                .filter(|(_, payment)| query.contains(&format!("payment[payment_intent]={payment}")));
            let data: Vec<Value> =
                paid.map(|(invoice, _)| json!({ "id": "inpay_1", "invoice": invoice["id"] })).collect();
            return answer(200, &json!({ "object": "list", "has_more": false, "data": data }));
        }
        let others = ["checkout/sessions", "charges", "disputes", "customers", "subscriptions", "invoices"];
        if others.iter().any(|other| path == format!("/v1/{other}")) {
            return answer(200, &json!({ "object": "list", "has_more": false, "data": [] }));
        }
        if path != "/v1/events" {
            return refused(404, "resource_missing", "Unrecognized request URL");
        }
        let pairs: Vec<(String, &str)> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.replace("%5B", "[").replace("%5D", "]"), value))
            .collect();
        let one = |name: &str| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
        let types: Vec<&str> =
            pairs.iter().filter(|(n, _)| n == "types[]").map(|(_, value)| *value).collect();
        let limit: usize = one("limit").map_or(Ok(10), str::parse).unwrap_or(0);
        if types.len() > 20 || !(1..=100).contains(&limit) {
            return refused(400, "parameter_invalid", "Invalid types or limit");
        }
        let bound = |name: &str, plain: i64| one(name).map_or(plain, |value| value.parse().unwrap());
        let span = bound("created[gte]", i64::MIN)..=bound("created[lte]", i64::MAX);
        let mut rows: Vec<&Value> = self
            .events
            .iter()
            .rev()
            .filter(|event| span.contains(&event["created"].as_i64().unwrap()))
            .filter(|event| types.is_empty() || types.contains(&event["type"].as_str().unwrap()))
            .collect();
        rows.sort_by_key(|event| std::cmp::Reverse(event["created"].as_i64()));
        let from = match one("starting_after") {
            Some(id) => match rows.iter().position(|event| event["id"] == id) {
                Some(at) => at + 1,
                None => return refused(400, "resource_missing", "No such event"),
            },
            None => 0,
        };
        let data: Vec<&Value> = rows.iter().skip(from).take(limit).copied().collect();
        let more = rows.len() > from + limit;
        answer(200, &json!({ "object": "list", "url": "/v1/events", "has_more": more, "data": data }))
    }
}
