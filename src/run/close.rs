//! Step 4 of a run, the first half: closing what is over. It comes before any mail, so that a stop holds at once.

use crate::domain::decide::{Closing, decide};
use crate::domain::fact::Fact;
use crate::domain::guard::plans_from_ahead;
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::CloseReason;
use crate::domain::matter::Matter;
use crate::domain::time::Timestamp;
use crate::report::run::{Closed, Notice, RunReport};
use crate::store::StoreError;

use super::{Book, Shop};

/// R12: closes the plans that a wrong clock dated ahead of the one a human has accepted.
///
/// # Errors
/// Nothing was closed.
pub(super) fn close_plans_from_ahead(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let closings = plans_from_ahead(book.ledger(), shop.policy.retention, now);
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
