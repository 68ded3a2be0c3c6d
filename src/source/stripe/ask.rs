//! What no event tells: which session a payment or a subscription came from, and what was bought in it.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::json::{Fault, Fields};
use super::api::{Page, PollError, Stripe, id_of, is_id, json};
use super::{Payment, payment, purchase};
use crate::domain::event::Incoming;
use crate::domain::ids::{EventId, SessionId};
use crate::domain::ledger::Refs;
use crate::domain::time::Timestamp;

/// The session that something was bought in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its id.
    pub session: SessionId,
    /// When it was opened; it was paid later.
    pub created: Timestamp,
    /// Whether the seller's choice has it. If not, it never becomes a purchase here.
    pub is_ours: bool,
}

/// By what a session is looked up.
#[derive(Clone, Copy, Debug)]
pub enum By<'a> {
    /// `pi_…`
    Payment(&'a str),
    /// `sub_…`
    Subscription(&'a str),
}

impl Stripe {
    /// The session of a payment or of a subscription; none where it came another way.
    ///
    /// # Errors
    /// [`PollError`].
    pub fn origin(&self, by: By<'_>) -> Result<Option<Origin>, PollError> {
        let (name, id) = match by {
            By::Payment(id) => ("payment_intent", id),
            By::Subscription(id) => ("subscription", id),
        };
        if !is_id(id) {
            return Ok(None);
        }
        let body = self.get(&format!("/v1/checkout/sessions?limit=1&{name}={id}"))?;
        let Some(row) = Page::of(&body)?.rows.first().copied() else { return Ok(None) };
        let (session, created, incoming) = self.seen(row, None).map_err(odd)?;
        let is_ours = match incoming {
            Incoming::Unsorted { wanted, .. } => {
                let items = self.items(&session)?.unwrap_or_default();
                items.iter().any(|item| wanted.contains(item))
            }
            incoming => matches!(incoming, Incoming::Checkout(_)),
        };
        Ok(Some(Origin { session, created, is_ours }))
    }

    /// A session as the API shows it: its id, when it was opened, and what it says. `paid_at` is its payment's time, where that
    /// is known.
    pub(super) fn seen(
        &self,
        row: &RawValue,
        paid_at: Option<Timestamp>,
    ) -> Result<(SessionId, Timestamp, Incoming), Fault> {
        let fields = Fields::read(row)?;
        let id: SessionId = fields.name("id")?;
        let seconds = fields.need("created", fields.integer("created")?)?;
        let created = Timestamp::from_unix(seconds)
            .map_err(|error| fields.fault("created", format_args!("is refused: {error}")))?;
        // It stands for the event that is gone, of which there is one for each state of the payment.
        let status = payment("checkout.session.completed", fields.text("payment_status")?.as_deref());
        let word = if status == Payment::Paid { "paid" } else { "seen" };
        let event: EventId = format!("{id}.{word}")
            .parse()
            .map_err(|error| fields.fault("id", format_args!("is refused: {error}")))?;
        let at = paid_at.filter(|_| status == Payment::Paid).unwrap_or(created);
        let incoming = purchase(&fields, event, at, status, self.rules())?;
        Ok((id, created, incoming))
    }

    /// The prices and products that a session was for; none where there is no such session.
    ///
    /// # Errors
    /// [`PollError`].
    pub fn items(&self, session: &SessionId) -> Result<Option<Vec<String>>, PollError> {
        let mut items = Vec::new();
        let path = format!("/v1/checkout/sessions/{session}/line_items?limit=100");
        let read = self.pages(&path, |_, page| {
            for row in &page.rows {
                let row = json(row.get().as_bytes())?;
                let price = row.get("price").unwrap_or(&Value::Null);
                items.extend(id_of(price));
                items.extend(price.get("product").and_then(id_of));
            }
            Ok(())
        });
        match read {
            Ok(()) => Ok(Some(items)),
            Err(PollError::Absent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first invoice of a subscription, and that subscription, which a payment was made for; nothing where it was made
    /// for neither. Since 2025 a charge does not name its invoice, and the session of a subscription names no payment, so
    /// that a refund finds its purchase by these alone. A renewal is not the purchase, and its subscription is not named.
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
        match invoice {
            Some(invoice) => self.first_of(&invoice),
            None => Ok(Refs::default()),
        }
    }

    /// An invoice, and its subscription if it is the first one of it.
    ///
    /// # Errors
    /// [`PollError`].
    pub fn first_of(&self, invoice: &str) -> Result<Refs, PollError> {
        let refs = Refs { invoice: Some(invoice.to_owned()), ..Refs::default() };
        if !is_id(invoice) {
            return Ok(refs);
        }
        let Some(body) = self.object(&format!("/v1/invoices/{invoice}"))? else { return Ok(refs) };
        let found = json(&body)?;
        if found.get("billing_reason").and_then(Value::as_str) != Some("subscription_create") {
            return Ok(refs);
        }
        // Where the subscription stands in an invoice changed in 2025.
        let subscription = found
            .pointer("/parent/subscription_details/subscription")
            .or(found.get("subscription"))
            .and_then(id_of);
        Ok(Refs { subscription, ..refs })
    }
}

/// A session that cannot be read. The fault names a field, and nothing of what it holds.
fn odd(Fault(why): Fault) -> PollError {
    PollError::Odd(format!("a checkout session of it cannot be read: {why}"))
}
