//! Step 4 of a run, the first half: closing what is over. It comes before any mail, so that a stop holds at once.

use crate::domain::decide::{Closing, decide};
use crate::domain::fact::Fact;
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::CloseReason;
use crate::domain::matter::Matter;
use crate::domain::policy::Retention;
use crate::domain::time::Timestamp;
use crate::report::run::{Closed, Notice, RunReport};
use crate::store::StoreError;

use super::{Book, Shop};

/// R12: a human says that the clock is right, so a plan from ahead of it was dated by a wrong one. How long ago its
/// attempt was made cannot be known, nor whether the mail service still remembers the key: it is not tried again.
///
/// # Errors
/// Nothing was closed.
pub(super) fn close_plans_from_ahead(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    if shop.policy.retention == Retention::Forever {
        return Ok(());
    }
    let mut closings = Vec::new();
    for purchase in book.ledger().buyers.all().iter().flat_map(|buyer| &buyer.purchases) {
        for (step, state) in purchase.steps.iter() {
            if state.open_attempt().is_some_and(|attempt| attempt.first_at > now) {
                let session = purchase.session.clone();
                closings.push(Closing { session, step, reason: CloseReason::UnknownResult });
            }
        }
    }
    close(book, closings, now, report)
}

/// Closes every step that is over, of all buyers, in one durable append.
///
/// # Errors
/// Nothing was closed.
pub(super) fn close_what_is_over(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let ledger = book.ledger();
    let closings: Vec<Closing> =
        ledger.buyers.all().iter().flat_map(|buyer| decide(buyer, &shop.policy, now).closings).collect();
    close(book, closings, now, report)
}

fn close(
    book: &mut dyn Book,
    closings: Vec<Closing>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let ledger = book.ledger();
    if closings.is_empty() {
        return Ok(());
    }
    let mut facts = Vec::new();
    for Closing { session, step, reason } in closings {
        let key = IdempotencyKey::Step(session.clone(), step);
        if reason == CloseReason::UnknownResult {
            let attempt =
                ledger.buyers.purchase(&session).and_then(|(_, p)| p.steps.get(step).open_attempt());
            let matter = Matter::unknown_result(&session, step, attempt.as_ref(), now);
            if ledger.matter(matter.kind, &matter.subject).is_none() {
                report.notices.push(Notice::of(&matter));
                facts.push(Fact::Matter { matter: Box::new(matter) });
            }
        }
        facts.push(Fact::Closed { key, at: now, reason });
        if reason != CloseReason::History {
            report.closed.push(Closed { session, step, reason });
        }
    }
    book.record(&facts)
}
