//! Step 6 of a run: what a human must know is told, once per matter (R15).
//!
//! A notice is a mail with a state of its own, planned, sent and recorded like any other. A held run writes nothing into
//! the ledger; what it told is remembered in the state folder.

use tracing::warn;

use crate::clock::Moment;
use crate::domain::fact::Fact;
use crate::domain::guard::Held;
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::{CloseReason, Frozen, StepState};
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::outcome::{Outcome, settle};
use crate::domain::time::Timestamp;
use crate::mail::{FreezeError, notice};
use crate::report::run::{Hold, Notice, RunReport};
use crate::store::{StoreError, Told};

use super::send::Sending;
use super::{Book, Shop, over, raise};

/// Tells every matter that has not been told.
///
/// # Errors
/// [`StoreError`] when something could not be recorded.
pub(super) fn tell(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    moment: Moment,
    sending: &Sending,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    no_mark(book, moment.now, report)?;
    let open: Vec<Matter> =
        book.ledger().matters.iter().filter(|matter| matter.notice.is_open()).cloned().collect();
    for matter in open {
        if book.is_dry() {
            continue;
        }
        if sending.stopped || sending.is_over(shop) {
            report.untold += 1;
            continue;
        }
        let at = shop.clock.later(moment);
        let key = matter.key();
        let (frozen, retry) = match &matter.notice {
            StepState::Planned { message, .. } if message.via == shop.transport.name() => {
                ((**message).clone(), true)
            }
            StepState::Planned { .. } => {
                report.untold += 1;
                continue;
            }
            _ => match freeze(shop, &matter, at) {
                Ok(frozen) => (frozen, false),
                Err(error) => {
                    warn!(%error, "notice not told");
                    report.untold += 1;
                    continue;
                }
            },
        };
        let ended =
            matter.notice.open_attempt().and_then(|attempt| shop.policy.retention.ends(attempt.first_at));
        if retry && ended.is_some_and(|end| at >= end) {
            book.record(&[Fact::Closed { key, at, reason: CloseReason::UnknownResult }])?;
            continue;
        }
        if !retry {
            book.record(&[Fact::Planned { key: key.clone(), at, message: Box::new(frozen.clone()) }])?;
        }
        book.ready_to_send()?;
        let outcome = shop.transport.send(&key, &frozen);
        let told = matches!(outcome, Outcome::Accepted { .. });
        let state = book
            .ledger()
            .matter(matter.kind, &matter.subject)
            .map_or_else(StepState::pending, |m| m.notice.clone());
        let settled = settle(&key, &state, retry, shop.policy.retention, &outcome, at);
        if !settled.facts.is_empty() {
            book.record(&settled.facts)?;
        }
        if !told {
            warn!(%key, "notice not told");
            report.untold += 1;
        }
    }
    Ok(())
}

fn freeze(shop: &Shop<'_>, matter: &Matter, at: Timestamp) -> Result<Frozen, FreezeError> {
    shop.transport.freeze(&notice(matter, &shop.mail.from, &shop.mail.operator, at))
}

/// R12: that no mark can be kept is said once; the ledger alone is trusted then.
fn no_mark(book: &mut dyn Book, now: Timestamp, report: &mut RunReport) -> Result<(), StoreError> {
    let Some(why) = book.no_mark() else { return over(book, MatterKind::NoMark, "state_dir") };
    let text = format!(
        "{why}; the ledger alone is trusted, so a copy of it or a backup that is put back is not noticed; make the state \
         folder writable"
    );
    raise(book, Matter::new(MatterKind::NoMark, "state_dir", now, None, text), report)
}

/// Tells the guards that hold this run, once for as long as they hold, and writes nothing into the ledger.
pub(super) fn guards(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    held: &[Held],
    now: Timestamp,
    had_events: bool,
    report: &mut RunReport,
) {
    report.held_by.push(Hold::Guard);
    let texts: Vec<&str> = held.iter().map(|guard| guard.text.as_str()).collect();
    report.stopped_early = Some(texts.join("; "));
    if had_events {
        report.not_taken.push("the events handed in were not taken in either; hand them in again".to_owned());
    }
    let told = book.told();
    let mut still = Vec::new();
    for guard in held {
        let before = told.iter().find(|told| told.kind == guard.kind);
        let at = before.map_or(now, |told| told.at);
        let matter = Matter::new(guard.kind, "run", at, None, guard.text.clone());
        report.notices.push(Notice::of(&matter));
        let known = Told { kind: guard.kind, subject: "run".to_owned(), at };
        if before.is_some() || book.is_dry() || announce(shop, &matter, &matter.key()) {
            still.push(known);
        } else {
            report.untold += 1;
        }
    }
    if still != told {
        // Told again at the next run at worst.
        if let Err(error) = book.set_told(still) {
            warn!(%error, "cannot remember that the guard was told about");
        }
    }
}

fn announce(shop: &Shop<'_>, matter: &Matter, key: &IdempotencyKey) -> bool {
    freeze(shop, matter, matter.at)
        .is_ok_and(|frozen| matches!(shop.transport.send(key, &frozen), Outcome::Accepted { .. }))
}

/// A run that no guard holds ends what was told about guards: if one comes back it is a new matter.
pub(super) fn guards_passed(book: &mut dyn Book) {
    if !book.told().is_empty()
        && let Err(error) = book.set_told(Vec::new())
    {
        // At worst a guard that comes back is not told anew; no mail waits for that.
        warn!(%error, "cannot forget which guards were told about");
    }
}
