//! Stripe: its events, of every API version since 2019, in the terms of the domain; and its API, which is asked for them.
//!
//! What starts something is named here type by type; everything else is counted and forgotten. An invoice event starts
//! nothing: it comes at every renewal (R1). Of a session's metadata only the entries named `stepmail_…` are taken, as
//! values for templates: the rest is the seller's own business and often holds personal data.

mod api;
mod ask;
mod choice;
mod gap;
mod poll;
pub mod signature;

use std::collections::BTreeMap;

use super::Rules;
use super::json::{self, Fault, Fields, Kind};
use super::neutral::is_identifier;
use crate::domain::event::{Amount, Checkout, Incoming, Payment, RefundSignal, StopSignal, StopTarget};
use crate::domain::ids::{Address, BadName, EventId};
use crate::domain::ledger::Refs;
use crate::domain::time::Timestamp;

use choice::Chosen;

pub use api::{PollError, Stripe, StripeSettings};
pub use ask::{By, Origin};
pub use choice::Choice;
pub use poll::{Asking, Polled, missed};

/// Metadata whose name begins so becomes a value for templates, less this beginning.
const VAR: &str = "stepmail_";

/// What a Stripe event says, or `None` if it is of the other mode.
pub(super) fn read(event: &Fields<'_>, rules: &Rules) -> Result<Option<Incoming>, Fault> {
    // Only the literal value passes: missing or `"false"` belongs to no mode and must start nothing (C074). The inner
    // object's own `livemode` is not asked; real events exist where the two differ.
    if event.raw("livemode").map(json::kind) != Some(Kind::Bool(rules.livemode)) {
        return Ok(None);
    }
    let stripe_type = event.need("type", event.text("type")?)?;
    let read = match stripe_type.as_str() {
        "checkout.session.completed" | "checkout.session.async_payment_succeeded" => checkout,
        "checkout.session.async_payment_failed" => payment_failed,
        "charge.refunded" => refunded_charge,
        // What became of one refund has had four names.
        "refund.created" | "refund.updated" | "refund.failed" | "charge.refund.updated" => refund,
        "charge.dispute.created" => dispute,
        "customer.subscription.deleted" => subscription_deleted,
        "customer.subscription.updated" => subscription_updated,
        "customer.deleted" => customer_deleted,
        _ => return Ok(Some(Incoming::Ignored)),
    };
    read(&Event { fields: event, stripe_type: &stripe_type, rules }).map(Some)
}

/// An event whose type concerns us.
struct Event<'e, 'a> {
    fields: &'e Fields<'a>,
    stripe_type: &'e str,
    rules: &'e Rules,
}

impl<'a> Event<'_, 'a> {
    /// The object the event is about.
    fn object(&self, kind: &str) -> Result<Fields<'a>, Fault> {
        let data = self.fields.need("data", self.fields.object("data")?)?;
        let object = data.need("object", data.object("object")?)?;
        match object.text("object")? {
            Some(other) if other != kind => Err(object.fault("object", format_args!("is not `{kind}`"))),
            _ => Ok(object),
        }
    }

    /// When the event happened.
    fn at(&self) -> Result<Timestamp, Fault> {
        let seconds = self.fields.need("created", self.fields.integer("created")?)?;
        Timestamp::from_unix(seconds)
            .map_err(|error| self.fields.fault("created", format_args!("is refused: {error}")))
    }

    fn stop(&self, reason: &str, refs: Refs) -> Result<StopSignal, Fault> {
        Ok(StopSignal {
            event: self.fields.name("id")?,
            at: self.at()?,
            reason: reason.to_owned(),
            target: StopTarget::Refs(refs),
            asked: false,
            quiet: false,
        })
    }
}

fn checkout(event: &Event<'_, '_>) -> Result<Incoming, Fault> {
    let session = event.object("checkout.session")?;
    let payment = payment(event.stripe_type, session.text("payment_status")?.as_deref());
    purchase(&session, event.fields.name("id")?, event.at()?, payment, event.rules)
}

/// A checkout session, as an event or the API shows it. `at` is when it was paid, if it is.
fn purchase(
    session: &Fields<'_>,
    event: EventId,
    at: Timestamp,
    payment: Payment,
    rules: &Rules,
) -> Result<Incoming, Fault> {
    // `setup` only stores a card. Events of 2019 have no `mode` at all.
    let mode = session.text("mode")?;
    if !matches!(mode.as_deref(), None | Some("payment" | "subscription")) {
        return Ok(Incoming::Ignored);
    }
    let is_free = session.text("payment_status")?.as_deref() == Some("no_payment_required");
    // Without a mode that may be a card which was only stored.
    let payment = if mode.is_none() && is_free { Payment::Unknown } else { payment };
    let chosen = rules.choice.of(session)?;
    if chosen == Chosen::No {
        return Ok(Incoming::Ignored);
    }
    let details = session.object("customer_details")?;
    let (email, email_fault) = match address(session, details.as_ref())? {
        Some(Ok(address)) => (Some(address), None),
        Some(Err(why)) => (None, Some(why.to_string())),
        None => (None, None),
    };
    let name = match &details {
        Some(details) => details.filled("name")?.or(details.filled("individual_name")?),
        None => None,
    };
    let amount = match (session.integer("amount_total")?, session.filled("currency")?) {
        (Some(value), Some(currency)) => Some(Amount { value, currency }),
        _ => None,
    };
    let checkout = Box::new(Checkout {
        event,
        at,
        session: session.name("id")?,
        payment,
        email,
        email_fault,
        name,
        // `auto` says that the buyer's browser chose, not what it chose.
        locale: session.filled("locale")?.filter(|locale| locale != "auto"),
        billing: None,
        subscriber_id: subscriber_id(session, rules)?,
        amount,
        refs: Refs {
            payment_intent: reference(session, "payment_intent")?,
            invoice: reference(session, "invoice")?,
            subscription: reference(session, "subscription")?,
            customer: reference(session, "customer")?,
        },
        vars: vars(session)?,
    });
    Ok(match chosen {
        Chosen::ByItems => Incoming::Unsorted { checkout, wanted: rules.choice.items.clone() },
        _ => Incoming::Checkout(checkout),
    })
}

/// R1. "Completed" does not mean paid (C033).
fn payment(stripe_type: &str, status: Option<&str>) -> Payment {
    let succeeded = stripe_type == "checkout.session.async_payment_succeeded";
    match status {
        // A payment that succeeded and is unpaid contradicts itself: a person must look.
        Some("unpaid") if succeeded => Payment::Unknown,
        _ if succeeded => Payment::Paid,
        Some("paid" | "no_payment_required") => Payment::Paid,
        Some("unpaid") => Payment::Unpaid,
        _ => Payment::Unknown,
    }
}

/// The address from the documented places in order (C034): what the buyer typed, else what the shop filled in before.
fn address(
    session: &Fields<'_>,
    details: Option<&Fields<'_>>,
) -> Result<Option<Result<Address, BadName>>, Fault> {
    let typed = details.map(|details| details.filled("email")).transpose()?.flatten();
    let given = match typed {
        Some(typed) => Some(typed),
        None => session.filled("customer_email")?,
    };
    Ok(given.map(|text| text.parse()))
}

fn payment_failed(event: &Event<'_, '_>) -> Result<Incoming, Fault> {
    let session = event.object("checkout.session")?;
    // It ends the wait whenever it happened; a broken time is still a broken event.
    event.at()?;
    Ok(Incoming::PaymentFailed { event: event.fields.name("id")?, session: session.name("id")? })
}

fn refunded_charge(event: &Event<'_, '_>) -> Result<Incoming, Fault> {
    let charge = event.object("charge")?;
    let refs = Refs {
        payment_intent: reference(&charge, "payment_intent")?,
        invoice: reference(&charge, "invoice")?,
        subscription: None,
        customer: reference(&charge, "customer")?,
    };
    let signal = event.stop("refund", refs)?;
    Ok(if event.rules.partial_refund_stops || is_refunded(&charge)? {
        Incoming::Stop(signal)
    } else {
        Incoming::PartialRefund { signal, total: charge.integer("amount_refunded")? }
    })
}

/// Whether all of a charge went back: it says so itself, or by its amounts.
fn is_refunded(charge: &Fields<'_>) -> Result<bool, Fault> {
    let all_of_it = match (charge.integer("amount")?, charge.integer("amount_refunded")?) {
        (Some(amount), Some(refunded)) => amount > 0 && refunded >= amount,
        _ => false,
    };
    Ok(all_of_it || charge.boolean("refunded")? == Some(true))
}

/// One refund. Some wait until the buyer says where the money is to go, and the charge does not count them before.
fn refund(event: &Event<'_, '_>) -> Result<Incoming, Fault> {
    let refund = event.object("refund")?;
    let payment_intent = reference(&refund, "payment_intent")?;
    let amount = match (refund.integer("amount")?, refund.filled("currency")?) {
        (Some(value), Some(currency)) if payment_intent.is_some() => Amount { value, currency },
        // The event of its charge tells what this one does not.
        _ => return Ok(Incoming::Ignored),
    };
    let failed = matches!(refund.text("status")?.as_deref(), Some("failed" | "canceled"));
    let signal = event.stop("refund", Refs { payment_intent, ..Refs::default() })?;
    if event.rules.partial_refund_stops && !failed {
        return Ok(Incoming::Stop(signal));
    }
    let refund = refund.need("id", refund.filled("id")?)?;
    Ok(Incoming::Refund(RefundSignal { signal, refund, amount, failed }))
}

fn dispute(event: &Event<'_, '_>) -> Result<Incoming, Fault> {
    let dispute = event.object("dispute")?;
    // Without a payment intent nothing links it to a purchase; it is yielded all the same, so that a person is told.
    let refs = Refs { payment_intent: reference(&dispute, "payment_intent")?, ..Refs::default() };
    Ok(Incoming::Stop(event.stop("dispute", refs)?))
}

fn subscription_deleted(event: &Event<'_, '_>) -> Result<Incoming, Fault> {
    // Not the customer: one person's other subscriptions and purchases go on.
    let subscription = own_id(&event.object("subscription")?)?;
    Ok(Incoming::Stop(event.stop("canceled", Refs { subscription, ..Refs::default() })?))
}

/// A subscription changes for many reasons; one counts. It says `cancel_at_period_end`, or in newer versions `cancel_at`.
fn subscription_updated(event: &Event<'_, '_>) -> Result<Incoming, Fault> {
    let object = event.object("subscription")?;
    let is_to_end =
        object.boolean("cancel_at_period_end")? == Some(true) || object.integer("cancel_at")?.is_some();
    if !is_to_end || !event.rules.cancel_scheduled_stops {
        return Ok(Incoming::Ignored);
    }
    let subscription = own_id(&object)?;
    Ok(Incoming::Stop(event.stop("cancel_scheduled", Refs { subscription, ..Refs::default() })?))
}

fn customer_deleted(event: &Event<'_, '_>) -> Result<Incoming, Fault> {
    let customer = own_id(&event.object("customer")?)?;
    Ok(Incoming::Stop(event.stop("customer_deleted", Refs { customer, ..Refs::default() })?))
}

/// The id of an object that is itself what a stop is about.
fn own_id(object: &Fields<'_>) -> Result<Option<String>, Fault> {
    object.need("id", object.filled("id")?).map(Some)
}

/// Another object's id: bare, or inside the object itself where the event was made with `expand`.
fn reference(object: &Fields<'_>, name: &str) -> Result<Option<String>, Fault> {
    match object.raw(name).map(json::kind) {
        Some(Kind::Object) => match object.object(name)? {
            Some(expanded) => expanded.filled("id"),
            None => Ok(None),
        },
        _ => object.filled(name),
    }
}

/// The newsletter's id of the buyer, from where the seller puts it.
fn subscriber_id(session: &Fields<'_>, rules: &Rules) -> Result<Option<String>, Fault> {
    let Some(name) = &rules.subscriber_id_metadata else { return session.filled("client_reference_id") };
    match metadata(session)? {
        Some(metadata) if metadata.raw(name).map(json::kind) == Some(Kind::Text) => metadata.filled(name),
        _ => Ok(None),
    }
}

/// The metadata of a session. An empty list is what PHP makes of an empty object.
fn metadata<'a>(session: &Fields<'a>) -> Result<Option<Fields<'a>>, Fault> {
    if session.raw("metadata").map(json::kind) == Some(Kind::Object) {
        session.object("metadata")
    } else {
        Ok(None)
    }
}

/// Values for templates. An entry that cannot be one is left out rather than refused: an event of Stripe's cannot be
/// mended, and a template that needs the value holds its mail and names it (R11).
fn vars(session: &Fields<'_>) -> Result<BTreeMap<String, String>, Fault> {
    let Some(metadata) = metadata(session)? else { return Ok(BTreeMap::new()) };
    let mut vars = BTreeMap::new();
    for name in metadata.names() {
        let Some(short) = name.strip_prefix(VAR).filter(|short| is_identifier(short)) else { continue };
        if metadata.raw(name).map(json::kind) == Some(Kind::Text)
            && let Some(text) = metadata.text(name)?
        {
            vars.insert(short.to_owned(), text);
        }
    }
    Ok(vars)
}

#[cfg(test)]
mod tests;
