//! Step 3 of a run, as far as no event tells it: what was bought in the sessions that wait to be sorted.

use std::time::Duration;

use crate::domain::admit::{Bought, sort as sorted};
use crate::domain::ids::SessionId;
use crate::domain::ledger::WaitingFor;
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::time::Timestamp;
use crate::report::run::RunReport;
use crate::store::StoreError;

use super::{Book, Shop, Unread, intake};

/// Asking ends after this; the next run asks for the rest.
const ASKING_MAX: Duration = Duration::from_secs(5 * 60);
/// What was told is recorded after so many: a run that dies has not asked in vain.
const RECORDED_AFTER: usize = 50;
/// The matter of a service that refuses to tell.
const REFUSED: &str = "stripe_items";

/// Who knows what was bought in a session.
pub trait Catalogue {
    /// What was bought; none where there is no such session.
    ///
    /// # Errors
    /// Why that cannot be told now.
    fn bought(&self, session: &SessionId) -> Result<Option<Bought>, Unread>;
}

/// Asks for each session that waits for it, once, and admits those that are meant.
///
/// # Errors
/// [`StoreError`]: what was learned could not be recorded, and is asked again.
pub(super) fn sort(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let waiting = book.ledger().waiting.iter().filter(|waiting| waiting.why == WaitingFor::Items);
    let mut sessions: Vec<(Timestamp, SessionId)> =
        waiting.map(|waiting| (waiting.checkout.at, waiting.checkout.session.clone())).collect();
    if sessions.is_empty() {
        return super::over(book, MatterKind::Source, REFUSED);
    }
    let Some(catalogue) = &shop.catalogue else {
        report.stop_early("some sessions wait to be told what was bought in them, and nobody can be asked");
        return Ok(());
    };
    // R3: the earlier payment is admitted first. So where one cannot be told, the later ones wait with it.
    sessions.sort();
    let started = shop.clock.running();
    let mut told = Vec::new();
    for (_, session) in sessions {
        if shop.clock.running().saturating_sub(started) > ASKING_MAX {
            report.stop_early("asking what was bought takes long; the next run asks for the rest");
            break;
        }
        match catalogue.bought(&session) {
            Ok(Some(bought)) => {
                told.push(bought);
                if told.len() == RECORDED_AFTER {
                    record(book, std::mem::take(&mut told), now, report)?;
                    super::over(book, MatterKind::Source, REFUSED)?;
                }
            }
            Ok(None) => {
                let text = format!(
                    "session {session} is paid, and the payment service does not tell what was bought in it; it gets no mails; if \
                     it is a purchase of what the mails are about, hand in an event of your own for it"
                );
                let subject = session.to_string();
                let matter = Matter::new(MatterKind::ItemsUnknown, &subject, now, Some(session), text);
                super::raise(book, matter, report)?;
            }
            Err(Unread::Later(why)) => {
                report.stop_early(&format!("{why}; what was bought is asked again by the next run"));
                break;
            }
            Err(Unread::Refused(why)) => {
                let text = format!(
                    "{why}; it is not told what was bought, so that new purchases get no mails until that is mended; `stepmail \
                     check` tells whether it is"
                );
                super::raise(book, Matter::new(MatterKind::Source, REFUSED, now, None, text), report)?;
                return record(book, told, now, report);
            }
        }
    }
    if !told.is_empty() {
        super::over(book, MatterKind::Source, REFUSED)?;
    }
    record(book, told, now, report)
}

/// Writes down what was told.
fn record(
    book: &mut dyn Book,
    told: Vec<Bought>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    report.ingested.waiting = report.ingested.waiting.saturating_sub(told.len());
    let intake = sorted(book.ledger(), told, now);
    intake::absorb(book, &intake, report)
}
