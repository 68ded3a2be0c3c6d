//! What the ledger says of an event that was handed in: told from the record and not from what the handing in did, so that the
//! same event again gets the same answer.

use super::admit::contradiction;
use super::event::{Checkout, Incoming};
use super::ids::SessionId;
use super::ledger::Ledger;

/// Where an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It is in the ledger, or has had its effect.
    Recorded,
    /// It starts and stops nothing here.
    Ignored,
    /// R2: it contradicts what is on record, which stands.
    Conflict,
    /// It cannot be what it claims to be.
    Invalid,
}

/// Where an event stands, once it was admitted to this ledger.
#[must_use]
pub fn standing(ledger: &Ledger, incoming: &Incoming) -> Standing {
    match incoming {
        Incoming::Ignored => Standing::Ignored,
        Incoming::Invalid(_) => Standing::Invalid,
        Incoming::Checkout(checkout) | Incoming::Unsorted { checkout, .. } => of_checkout(ledger, checkout),
        Incoming::PaymentFailed { .. }
        | Incoming::Stop(_)
        | Incoming::PartialRefund { .. }
        | Incoming::Refund(_) => Standing::Recorded,
    }
}

fn of_checkout(ledger: &Ledger, checkout: &Checkout) -> Standing {
    if let Some((buyer, purchase)) = ledger.buyers.purchase(&checkout.session) {
        let stands = contradiction(checkout, buyer, purchase).is_none();
        return if stands { Standing::Recorded } else { Standing::Conflict };
    }
    let is_of = |session: &SessionId| *session == checkout.session;
    if let Some(waiting) = ledger.waiting.iter().find(|waiting| is_of(&waiting.checkout.session)) {
        let stands = !waiting.contradicts.contains(&checkout.event);
        return if stands { Standing::Recorded } else { Standing::Conflict };
    }
    if ledger.forgotten.knows_session(&checkout.session) {
        return Standing::Recorded;
    }
    // Its id is that of another session's event.
    if ledger.knows_event(&checkout.event) || ledger.forgotten.knows_id(checkout.event.as_str()) {
        return Standing::Conflict;
    }
    // Another product, or a wait that is over.
    Standing::Ignored
}
