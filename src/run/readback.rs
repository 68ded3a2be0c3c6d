//! Step 2 of a run, as far as the mail service knows of stop signals: bounces and complaints (R13).

use tracing::{info, warn};

use crate::clock::Moment;
use crate::domain::fact::Fact;
use crate::domain::fate::{learned, look_back_to};
use crate::domain::guard::{Known, ServiceClock};
use crate::domain::time::Seconds;
use crate::mail::Unreadable;
use crate::report::run::{Notice, RunReport};
use crate::store::StoreError;

use super::listing::{End, Listing};
use super::{Book, Shop, needs_time};

/// A stop source that was last read longer ago than this lets only d0 leave (DESIGN 4).
const STALE: Seconds = Seconds::hours(6);

/// Reads what became of the mails of the last days, and records it. Says why only d0 may leave, if so.
///
/// # Errors
/// [`StoreError`]: what was learned could not be recorded.
pub(super) fn read_back(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    listing: Option<&mut Listing<'_>>,
    (known, moment): (&Known<'_>, Moment),
    report: &mut RunReport,
) -> Result<Option<String>, StoreError> {
    let (via, now) = (shop.transport.name(), moment.now);
    let Some(listing) = listing else { return Ok(None) };
    let Some(back_to) = look_back_to(book.ledger(), via, now) else {
        // Nothing can have been missed.
        book.note_reading(via, Some(now));
        return Ok(None);
    };
    let read = listing.read_back_to(back_to, book, shop)?;
    let mut facts = learned(book.ledger(), via, listing.mails(), now);
    // An idle run has not asked for the time before; what it writes carries its clock's.
    if !facts.is_empty() && needs_time(shop, known) {
        let agrees = |said| ServiceClock { said, ours: shop.clock.later(moment) }.agrees();
        if !shop.transport.service_clock().is_ok_and(agrees) {
            warn!("what became of the mails is not recorded, since the service's clock says another time");
            facts.clear();
        }
    }
    for fact in &facts {
        if let Fact::Matter { matter } = fact {
            report.notices.push(Notice::of(matter));
        }
    }
    if !facts.is_empty() {
        book.record(&facts)?;
    }
    match read {
        Ok(()) | Err(End::Over) => {
            book.note_reading(via, Some(now));
            Ok(None)
        }
        // Off by itself; `check` says so.
        Err(End::Unreadable(Unreadable::NotAllowed)) => {
            info!("the key may send and not read: what became of mails is not known");
            book.note_reading(via, None);
            Ok(None)
        }
        Err(end) => {
            let why = end.in_words();
            warn!(why, "cannot read what became of the mails");
            Ok(book.last_reading(via).filter(|last| now - *last > STALE).map(|last| {
                format!(
                    "bounces and complaints were last read at {last} ({why}); until they can be read again only d0 leaves"
                )
            }))
        }
    }
}
