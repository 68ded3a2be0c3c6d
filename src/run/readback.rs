//! Step 2 of a run, as far as the mail service knows of stop signals: bounces and complaints (R13).

use tracing::{info, warn};

use crate::domain::fact::Fact;
use crate::domain::fate::{learned, look_back_to};
use crate::domain::guard::ServiceClock;
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::silence::silent_since;
use crate::domain::time::{Seconds, Timestamp};
use crate::mail::Unreadable;
use crate::report::run::{Notice, RunReport};
use crate::store::StoreError;

use super::listing::{End, Listing};
use super::{Asked, Book, Shop, Task, Unread, needs_time};

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
    task: &Task<'_>,
    report: &mut RunReport,
) -> Result<Option<String>, StoreError> {
    let (via, now) = (shop.transport.name(), task.moment.now);
    let Some(listing) = listing else { return Ok(None) };
    let Some(back_to) = look_back_to(book.ledger(), via, now) else {
        // Nothing can have been missed.
        book.note_reading(via, Some(now));
        return Ok(None);
    };
    let read = listing.read_back_to(back_to, book, shop)?;
    let mut facts = learned(book.ledger(), via, listing.mails(), now);
    // An idle run has not asked for the time before; what it writes carries its clock's.
    if !facts.is_empty() && shop.transport.keeps_time() && needs_time(shop, task) {
        let agrees = |said| ServiceClock { said, ours: shop.clock.later(task.moment) }.agrees();
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
            Ok(stale(book, via, &why, now))
        }
    }
}

/// Notes how a source of stops could be read. Says why only d0 may leave, if so.
///
/// # Errors
/// [`StoreError`]: what a human must know of it could not be recorded.
pub(super) fn note(
    book: &mut dyn Book,
    asked: &Asked,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<Option<String>, StoreError> {
    let source = asked.source;
    let Some(failed) = &asked.failed else {
        if let Some((since, until)) = asked.missed.filter(|_| asked.until.is_none()) {
            let text = format!(
                "{source} was not read from {since} to {until}, and its events tell of the last 30 days only; the checkout \
                 sessions of that time were read instead, and whose money went back or whose subscription ended gets no \
                 mails; should somebody have asked you in another way, say it by hand: stepmail mark-stopped EMAIL"
            );
            super::raise(book, Matter::new(MatterKind::Missed, &since.to_string(), now, None, text), report)?;
        }
        book.note_reading(source, Some(asked.until.unwrap_or(now)));
        super::over(book, MatterKind::Source, source)?;
        if let Some(until) = asked.until {
            return Ok(Some(format!(
                "{source} was read until {until} so far, since there is much to read; the next run reads on, and until it has \
                 come to now only d0 leaves"
            )));
        }
        silence(book, source, now, report)?;
        return Ok(None);
    };
    if let Unread::Refused(why) = failed {
        let text = format!(
            "{why}; neither purchases nor refunds are learned of until that is mended; `stepmail check` tells whether it is"
        );
        super::raise(book, Matter::new(MatterKind::Source, source, now, None, text), report)?;
    }
    let only_d0 = stale(book, source, failed.why(), now);
    if only_d0.is_none() {
        report
            .stop_early(&format!("{}; the next run reads on from where the last one came to", failed.why()));
    }
    Ok(only_d0)
}

/// A long silence is said once. It holds nothing.
fn silence(
    book: &mut dyn Book,
    source: &str,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let Some(since) = silent_since(book.ledger(), now) else {
        return super::over(book, MatterKind::Silence, source);
    };
    let text = format!(
        "no purchase since {since}, which is long for this shop; if you did sell, see whether {source} is asked with the right \
         key (`stepmail check`) and for the right mode"
    );
    super::raise(book, Matter::new(MatterKind::Silence, source, now, None, text), report)
}

/// DESIGN 4: a buyer may have asked for their money back in the time that nobody has read of.
fn stale(book: &dyn Book, source: &str, why: &str, now: Timestamp) -> Option<String> {
    let last = match book.last_reading(source) {
        Some(last) if now - last <= STALE => return None,
        Some(last) => format!("was last read at {last}"),
        None => "was never read".to_owned(),
    };
    Some(format!("what {source} says {last} ({why}); until it can be read again only d0 leaves"))
}
