//! Steps 2 and 3 of a run: what the sources yielded becomes facts, in one durable append.

use crate::domain::admit::admit;
use crate::domain::event::Incoming;
use crate::domain::fact::Fact;
use crate::domain::ledger::{CloseReason, StepState};
use crate::domain::time::Timestamp;
use crate::report::run::{Closed, Notice, RunReport};
use crate::store::StoreError;

use super::Book;

/// Admits a batch and writes it down.
///
/// # Errors
/// Nothing of the batch was recorded; it is to be handed in again.
pub fn take_in(
    book: &mut dyn Book,
    batch: Vec<Incoming>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let intake = admit(book.ledger(), batch, now);
    if !intake.facts.is_empty() {
        book.record(&intake.facts)?;
    }
    report.ingested = intake.counts;
    for fact in &intake.facts {
        match fact {
            Fact::Admitted { purchase } => {
                report.closed.extend(purchase.steps.iter().filter_map(|(step, state)| match state {
                    StepState::Closed { reason, .. } if *reason != CloseReason::History => {
                        Some(Closed { session: purchase.session.clone(), step, reason: *reason })
                    }
                    _ => None,
                }));
            }
            Fact::Matter { matter } => report.notices.push(Notice::of(matter)),
            _ => {}
        }
    }
    Ok(())
}
