//! What a source yields, whatever service it came from: a checkout, a failed payment, a stop, or something to count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ids::{Address, EventId, SessionId};
use super::ledger::{Refs, absent, unique_keys};
use super::time::Timestamp;

/// One thing read from a source. A source never judges: whether a checkout becomes a purchase is `admit`'s to say.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A completed checkout session, paid or not.
    Checkout(Box<Checkout>),
    /// A payment that had been waited for will not come (R1: it ends the wait).
    PaymentFailed {
        /// The event that says so.
        event: EventId,
        /// The session that was waiting.
        session: SessionId,
    },
    /// The same, of a shop that sells other things too: whether it is meant is told by what was bought, which no event says.
    Unsorted {
        /// The checkout.
        checkout: Box<Checkout>,
        /// The prices and products that are meant.
        wanted: Vec<String>,
    },
    /// Refunded, disputed, cancelled, or asked for: nothing more is to be sent.
    Stop(StopSignal),
    /// Part of the money went back. It stops nothing; a human is told.
    PartialRefund {
        /// What it would stop.
        signal: StopSignal,
        /// How much went back until then, in the currency's smallest unit.
        total: Option<i64>,
    },
    /// One refund of possibly several, which stop the mails together.
    Refund(RefundSignal),
    /// A known event that starts and stops nothing, an unknown type, or the other mode's. Only counted.
    Ignored,
    /// A line or an object that cannot be what it claims to be.
    Invalid(Invalid),
}

impl Incoming {
    /// The checkout that it brings.
    #[must_use]
    pub fn checkout(&self) -> Option<&Checkout> {
        match self {
            Self::Checkout(checkout) | Self::Unsorted { checkout, .. } => Some(checkout),
            _ => None,
        }
    }

    /// What it would stop, to be said more exactly.
    pub fn signal_mut(&mut self) -> Option<&mut StopSignal> {
        match self {
            Self::Stop(signal)
            | Self::PartialRefund { signal, .. }
            | Self::Refund(RefundSignal { signal, .. }) => Some(signal),
            _ => None,
        }
    }
}

/// A completed checkout session as an event describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkout {
    /// The event that brought it.
    pub event: EventId,
    /// When it was paid, if it is: the time of the event (R1).
    pub at: Timestamp,
    /// The session.
    pub session: SessionId,
    /// Whether the money is there.
    pub payment: Payment,
    /// Where mails go; absent where the service gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<Address>,
    /// Why the address that was given cannot be used (never the text itself).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email_fault: Option<String>,
    /// The buyer's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// BCP 47, as the checkout page was shown (`ja`, `en-GB`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// New sale or renewal, as the source calls it. Recorded, never a condition (R1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billing: Option<String>,
    /// The newsletter's id of this person, if the checkout carried one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber_id: Option<String>,
    /// What was paid; only compared, never shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// The service's other names for this purchase, by which a refund finds it.
    #[serde(default, skip_serializing_if = "Refs::is_empty")]
    pub refs: Refs,
    /// Values for templates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "unique_keys")]
    pub vars: BTreeMap<String, String>,
}

impl Checkout {
    /// R2: what is absent here is taken from what another event of this session said.
    pub(super) fn fill_in(&mut self, said: &Self) {
        absent(&mut self.email, said.email.as_ref());
        absent(&mut self.name, said.name.as_ref());
        absent(&mut self.locale, said.locale.as_ref());
        absent(&mut self.billing, said.billing.as_ref());
        absent(&mut self.subscriber_id, said.subscriber_id.as_ref());
        absent(&mut self.amount, said.amount.as_ref());
        self.refs.fill_in(&said.refs);
        for (name, value) in &said.vars {
            self.vars.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// Whether a completed checkout has been paid (R1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payment {
    /// Paid, or nothing to pay.
    Paid,
    /// To be paid later: convenience store, bank transfer, direct debit.
    Unpaid,
    /// The event does not say, or says a word we do not know: not paid, and said.
    Unknown,
}

/// An amount in the currency's smallest unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// In the currency's smallest unit.
    pub value: i64,
    /// ISO 4217, lower case as the service writes it.
    pub currency: String,
}

/// A reason to send nothing more, and whom it concerns.
#[derive(Clone, Debug, PartialEq)]
pub struct StopSignal {
    /// The event that says so.
    pub event: EventId,
    /// When it happened.
    pub at: Timestamp,
    /// `refund`, `dispute`, `canceled`, or what a neutral event says.
    pub reason: String,
    /// Whom it concerns.
    pub target: StopTarget,
    /// Whether the payment service was asked whose it is.
    pub asked: bool,
    /// Whether nobody is to be told where its purchase is not known: it is one of those that never come here.
    pub quiet: bool,
}

/// One refund, as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct RefundSignal {
    /// Whose money, and when.
    pub signal: StopSignal,
    /// Its id.
    pub refund: String,
    /// How much.
    pub amount: Amount,
    /// Whether the money stayed after all.
    pub failed: bool,
}

/// Whom a stop concerns.
#[derive(Clone, Debug, PartialEq)]
pub enum StopTarget {
    /// One purchase.
    Session(SessionId),
    /// A person, with all purchases past and to come.
    Buyer(Address),
    /// Whatever purchase carries these ids of the payment service.
    Refs(Refs),
}

/// Something that could not be read as what it claims to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// A short, stable name for the matter: the event's id where there is one, else a hash of the text.
    pub subject: String,
    /// Where it stood, for people: `events.jsonl line 3`.
    pub place: String,
    /// What is wrong, field named, no personal data.
    pub why: String,
}
