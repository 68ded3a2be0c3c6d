//! Steps 2 and 3 of a run: what the sources yielded becomes facts, in one durable append.

use crate::clock::Clock;
use crate::domain::admit::{Intake, admit};
use crate::domain::event::Incoming;
use crate::domain::fact::Fact;
use crate::domain::ledger::{CloseReason, StepState};
use crate::domain::time::Timestamp;
use crate::report::run::{Closed, Notice, RunReport};
use crate::store::StoreError;

use super::{Book, Feed};

/// Admits a batch together with what waits in the feed, in one append, and lets the feed know when it is durable.
///
/// # Errors
/// Nothing was recorded; what the feed gave stays with it for the next command, the batch is to be handed in again.
pub fn take_in_all(
    book: &mut dyn Book,
    mut batch: Vec<Incoming>,
    feed: &mut dyn Feed,
    clock: &Clock,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    batch.extend(feed.take(book.ledger().ledger_id.as_deref(), clock.machine()));
    report.waiting = feed.waiting();
    report.not_taken.extend(feed.told());
    take_in(book, batch, now, report)?;
    feed.admitted(&|text| book.ledger().has_forgotten(text));
    report.not_taken.extend(feed.told());
    Ok(())
}

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
    absorb(book, &intake, report)
}

/// Writes down what a batch came to.
///
/// # Errors
/// As [`take_in`].
pub(super) fn absorb(book: &mut dyn Book, intake: &Intake, report: &mut RunReport) -> Result<(), StoreError> {
    if !intake.facts.is_empty() {
        book.record(&intake.facts)?;
    }
    report.ingested += intake.counts;
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
