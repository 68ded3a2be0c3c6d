//! A time of which no events are left: the sessions of then are read instead, each with its charge and subscription, since
//! what became of them is told by no event any more.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::Reading;
use super::super::json::{self, Fault, Fields, Kind};
use super::api::{PollError, Stripe, id_of, is_id, json as parsed};
use super::is_refunded;
use super::poll::Asking;
use crate::domain::event::{Incoming, Invalid, StopSignal, StopTarget};
use crate::domain::ids::{EventId, SessionId};
use crate::domain::time::{Seconds, Timestamp};

/// A session is completed within a day, or never.
const OPEN_MAX: Seconds = Seconds::hours(24);
/// What is wanted of a session besides itself.
const WITH: [&str; 2] = ["payment_intent.latest_charge", "subscription"];

/// Why a session is looked at.
#[derive(Clone, Copy)]
enum Why<'a> {
    /// It is of that time; those that are not new are passed over.
    Listed(&'a dyn Fn(&SessionId) -> bool),
    /// It waits, or its purchase has mails to come: what was to stop them is told by no event any more.
    Open { on_record: bool },
}

/// Why a row yields nothing.
enum Odd {
    /// It cannot be read: one session's fault, and nobody else's.
    Row(Fault),
    /// The service cannot be asked.
    Service(PollError),
}

impl From<Fault> for Odd {
    fn from(fault: Fault) -> Self {
        Self::Row(fault)
    }
}

impl From<PollError> for Odd {
    fn from(error: PollError) -> Self {
        Self::Service(error)
    }
}

impl Stripe {
    /// Adds the sessions that were opened from `since` to `until`, as far as they are new here and complete.
    pub(super) fn fill(
        &self,
        since: Timestamp,
        until: Timestamp,
        asking: &Asking<'_>,
        all: &mut Reading,
    ) -> Result<(), PollError> {
        let (from, wanted) = ((since - OPEN_MAX).unix(), expanded("data."));
        let path = format!(
            "/v1/checkout/sessions?limit=100&status=complete&created[gte]={from}&created[lte]={}{wanted}",
            until.unix()
        );
        let is_new = |session: &SessionId| !(asking.knows)(session);
        self.pages(&path, |_, page| {
            for row in &page.rows {
                all.incoming.extend(self.row(row, Why::Listed(&is_new), asking.now)?);
            }
            Ok(())
        })
    }

    /// Adds what came of the sessions that wait, and of those with mails to come, whose events may be gone.
    pub(super) fn look_at_open(&self, asking: &Asking<'_>, all: &mut Reading) -> Result<(), PollError> {
        for session in &asking.open {
            let path = format!("/v1/checkout/sessions/{session}?{}", expanded("").trim_start_matches('&'));
            let body = match self.object(&path) {
                Ok(Some(body)) => body,
                // A session that came by hand is not known there.
                Ok(None) | Err(PollError::Odd(_)) => continue,
                Err(error) => return Err(error),
            };
            let row = serde_json::from_slice::<&RawValue>(&body)
                .map_err(|_| PollError::Failed("its answer is no JSON".to_owned()))?;
            let why = Why::Open { on_record: (asking.knows)(session) };
            all.incoming.extend(self.row(row, why, asking.now)?);
        }
        Ok(())
    }

    /// What one session says.
    fn row(&self, row: &RawValue, why: Why<'_>, now: Timestamp) -> Result<Vec<Incoming>, PollError> {
        match self.past(row, why, now) {
            Ok(found) => Ok(found),
            Err(Odd::Service(error)) => Err(error),
            Err(Odd::Row(Fault(why))) => {
                let row: Value = serde_json::from_str(row.get()).unwrap_or_default();
                let subject = id_of(&row).filter(|id| is_id(id)).unwrap_or_else(|| "session".to_owned());
                let place = format!("Stripe's checkout session {subject}");
                Ok(vec![Incoming::Invalid(Invalid { subject, place, why })])
            }
        }
    }

    fn past(&self, row: &RawValue, why: Why<'_>, now: Timestamp) -> Result<Vec<Incoming>, Odd> {
        let fields = Fields::read(row)?;
        let session: SessionId = fields.name("id")?;
        let is_ours = fields.raw("livemode").map(json::kind) == Some(Kind::Bool(self.rules().livemode));
        if !is_ours || matches!(why, Why::Listed(is_new) if !is_new(&session)) {
            return Ok(Vec::new());
        }
        let event = |what: &str| -> Result<EventId, Fault> {
            format!("{session}.{what}")
                .parse()
                .map_err(|error| fields.fault("id", format_args!("is refused: {error}")))
        };
        let failed = || -> Result<Incoming, Fault> {
            Ok(Incoming::PaymentFailed { event: event("failed")?, session: session.clone() })
        };
        match fields.text("status")?.as_deref() {
            None | Some("complete") => {}
            Some("expired") if matches!(why, Why::Open { .. }) => return Ok(vec![failed()?]),
            Some(_) => return Ok(Vec::new()),
        }
        let payment = inside(&fields, "payment_intent")?;
        let subscription = inside(&fields, "subscription")?;
        let charge = match (&payment, &subscription) {
            (Some(payment), _) => charge_of(payment),
            (None, Some(_)) if fields.text("payment_status")?.as_deref() == Some("paid") => {
                self.first_charge(super::reference(&fields, "invoice")?.as_deref())?
            }
            (None, _) => None,
        };
        let paid_at = match &charge {
            Some(charge) => charge.created()?,
            None => None,
        };
        let (_, _, incoming) = self.seen(row, paid_at)?;
        // What is on record is a purchase, whatever the seller's choice is now.
        let on_record = matches!(why, Why::Open { on_record: true });
        if matches!(incoming, Incoming::Ignored) && !on_record {
            return Ok(Vec::new());
        }
        let gave_up = match &payment {
            Some(payment) => {
                matches!(payment.text("status")?.as_deref(), Some("canceled" | "requires_payment_method"))
            }
            None => false,
        };
        let mut found = match (on_record, gave_up) {
            // The record stands, whatever was written into it by hand.
            (true, _) => Vec::new(),
            (false, true) => vec![failed()?],
            (false, false) => vec![incoming],
        };
        let signal = |what: &str| -> Result<StopSignal, Fault> {
            let target = StopTarget::Session(session.clone());
            // Its purchase is in the same batch, or is left out by the seller's choice.
            Ok(StopSignal {
                event: event(what)?,
                at: now,
                reason: what.to_owned(),
                target,
                asked: true,
                quiet: true,
            })
        };
        if let Some(charge) = &charge {
            let charge = charge.fields()?;
            let total = charge.integer("amount_refunded")?;
            if is_refunded(&charge)? || total > Some(0) && self.rules().partial_refund_stops {
                found.push(Incoming::Stop(signal("refund")?));
            } else if total > Some(0) {
                found.push(Incoming::PartialRefund { signal: signal("refund")?, total });
            }
            if charge.boolean("disputed")? == Some(true) {
                found.push(Incoming::Stop(signal("dispute")?));
            }
        }
        if let Some(subscription) = &subscription {
            let is_to_end = subscription.boolean("cancel_at_period_end")? == Some(true)
                || subscription.integer("cancel_at")?.is_some();
            if matches!(subscription.text("status")?.as_deref(), Some("canceled" | "incomplete_expired")) {
                found.push(Incoming::Stop(signal("canceled")?));
            } else if is_to_end && self.rules().cancel_scheduled_stops {
                found.push(Incoming::Stop(signal("cancel_scheduled")?));
            }
        }
        Ok(found)
    }

    /// The charge that paid the first invoice of a subscription.
    fn first_charge(&self, invoice: Option<&str>) -> Result<Option<Charge>, PollError> {
        let Some(invoice) = invoice.filter(|id| is_id(id)) else { return Ok(None) };
        let path = format!(
            "/v1/invoice_payments?limit=1&status=paid&invoice={invoice}&expand[]=data.payment.payment_intent.latest_charge"
        );
        let page = parsed(&self.get(&path)?)?;
        let charge = page.pointer("/data/0/payment/payment_intent/latest_charge");
        Ok(charge.filter(|charge| charge.is_object()).map(|charge| Charge(charge.to_string())))
    }
}

/// A charge, as text.
struct Charge(String);

impl Charge {
    fn fields(&self) -> Result<Fields<'_>, Fault> {
        let raw = serde_json::from_str(&self.0).map_err(|_| Fault("its charge cannot be read".to_owned()))?;
        Fields::read(raw)
    }

    fn created(&self) -> Result<Option<Timestamp>, Fault> {
        let fields = self.fields()?;
        let Some(seconds) = fields.integer("created")? else { return Ok(None) };
        Timestamp::from_unix(seconds)
            .map(Some)
            .map_err(|error| fields.fault("created", format_args!("of its charge is refused: {error}")))
    }
}

fn charge_of(payment: &Fields<'_>) -> Option<Charge> {
    let raw = payment.raw("latest_charge").filter(|raw| json::kind(raw) == Kind::Object);
    raw.map(|raw| Charge(raw.get().to_owned()))
}

/// Another object, where it stands in this one and not only its id.
fn inside<'a>(fields: &Fields<'a>, name: &str) -> Result<Option<Fields<'a>>, Fault> {
    if fields.raw(name).map(json::kind) == Some(Kind::Object) { fields.object(name) } else { Ok(None) }
}

/// What is to stand in the answer itself.
fn expanded(before: &str) -> String {
    WITH.map(|what| format!("&expand[]={before}{what}")).concat()
}
