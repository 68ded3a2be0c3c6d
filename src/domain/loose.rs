//! What is no purchase, or belongs to none yet: checkouts that wait, stops, refunds and marks for purchases to come, and sessions
//! of which nothing is to come.

use serde::{Deserialize, Serialize};

use super::event::Checkout;
use super::ids::{EventId, SessionId};
use super::ledger::{MarkKind, Refs, Refunded};
use super::time::Timestamp;

/// A completed checkout that is no purchase yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// What it waits for.
    pub why: WaitingFor,
    /// When it was first seen.
    pub since: Timestamp,
    /// The checkout as it came.
    pub checkout: Checkout,
    /// Further events that spoke of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventId>,
    /// R2: those of its events that contradicted what was known of it when they came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contradicts: Vec<EventId>,
}

/// What a checkout waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// The money (R1).
    Payment,
    /// A usable address (C034, C044).
    Address,
    /// Its own date, which lies ahead (R12).
    ItsDate,
    /// To be told what was bought: the shop sells other things too.
    Items,
}

impl Waiting {
    /// Whether what it waits for can stay away for good. What is paid never ends.
    #[must_use]
    pub fn can_end(&self) -> bool {
        self.why == WaitingFor::Payment
    }
}

/// A stop whose purchase is not known yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LooseStop {
    /// When it happened.
    pub at: Timestamp,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The event that said so; none where a hand did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventId>,
    /// The session it names, or else:
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// the ids it names.
    #[serde(default, skip_serializing_if = "Refs::is_empty")]
    pub refs: Refs,
    /// Whether the payment service was asked whose it is. A stop that came by a file or a webhook was not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
    /// R7: lifted by hand then. It stops nothing any more and is kept for its event, which may come again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifted: Option<Timestamp>,
}

impl LooseStop {
    /// Whether it stops its purchase when that comes.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        self.lifted.is_none()
    }
}

/// A mark for a session that is not known yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LooseMark {
    /// The session to come.
    pub session: SessionId,
    /// Which flag.
    pub mark: MarkKind,
    /// When it was set.
    pub at: Timestamp,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A refund whose purchase is not known yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LooseRefund {
    /// The refund.
    pub refund: Refunded,
    /// The ids it names.
    #[serde(default, skip_serializing_if = "Refs::is_empty")]
    pub refs: Refs,
    /// The session it is of, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The events that told of it.
    pub events: Vec<EventId>,
}

/// A session whose payment failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedPayment {
    /// The session.
    pub session: SessionId,
    /// When that was taken in.
    pub at: Timestamp,
}

/// A session that was for something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassedOver {
    /// The session.
    pub session: SessionId,
    /// When that was told.
    pub at: Timestamp,
    /// The prices and products it was for, should one of them be meant later.
    pub items: Vec<String>,
}
