//! Step 6 of a run: what a human must know is told, once per matter (R15).
//!
//! A notice is a mail with a state of its own, planned, sent and recorded like any other. A held run writes nothing into
//! the ledger; what it told is remembered in the state folder.

use std::time::Duration;

use tracing::warn;

use crate::clock::Moment;
use crate::domain::fact::Fact;
use crate::domain::guard::Held;
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::{CloseReason, Frozen, StepState};
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::outcome::{Outcome, settle};
use crate::domain::time::Timestamp;
use crate::mail::{FreezeError, NoClock, notice};
use crate::report::run::{Hold, Notice, RunReport};
use crate::store::{StoreError, Told};

use super::deliver::reason_of;
use super::pause::pause;
use super::send::Sending;
use super::{Book, Shop, over, raise};

const HAND_IN_AGAIN: &str = "the events handed in were not taken in either; hand them in again";

/// No mail of a reasonable length tells more.
const GATHERED_MAX: usize = 100;

/// Tells what has not been told: one mail per run, of everything that is new. A mail that may have arrived is asked for
/// again first, the same bytes under the same key, and what is new waits for the next run.
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
    if book.is_dry() {
        return Ok(());
    }
    let at = shop.clock.later(moment);
    close_forgotten(book, shop, at)?;
    if !sending.stopped
        && let Some(letter) = letter(book, shop, at)
    {
        send(book, shop, &letter, moment, sending.until)?;
    }
    report.untold += book.ledger().matters.iter().filter(|matter| matter.notice.is_open()).count();
    Ok(())
}

/// A notice to be sent now.
struct Letter {
    key: IdempotencyKey,
    frozen: Frozen,
    retry: bool,
    /// The other matters that are told in it.
    others: Vec<Matter>,
}

/// Whether this notice's mail may have left through the transport in use.
fn is_open_plan(matter: &Matter, shop: &Shop<'_>) -> bool {
    matches!(&matter.notice, StepState::Planned { message, .. } if message.via == shop.transport.name())
}

/// A notice that may have arrived is no longer asked for when the service may have forgotten its key: nobody is told
/// twice, and `status` goes on to show the matter.
fn close_forgotten(book: &mut dyn Book, shop: &Shop<'_>, at: Timestamp) -> Result<(), StoreError> {
    let ended = |matter: &&Matter| {
        let attempt = matter.notice.open_attempt().filter(|_| is_open_plan(matter, shop));
        attempt.and_then(|attempt| shop.policy.retention.ends(attempt.first_at)).is_some_and(|end| at >= end)
    };
    let closed = |matter: &Matter| Fact::Closed { key: matter.key(), at, reason: CloseReason::UnknownResult };
    let facts: Vec<Fact> = book.ledger().matters.iter().filter(ended).map(closed).collect();
    if facts.is_empty() { Ok(()) } else { book.record(&facts) }
}

fn letter(book: &dyn Book, shop: &Shop<'_>, at: Timestamp) -> Option<Letter> {
    let matters = &book.ledger().matters;
    if let Some(matter) = matters.iter().find(|matter| is_open_plan(matter, shop)) {
        let StepState::Planned { message, .. } = &matter.notice else { return None };
        return Some(Letter {
            key: matter.key(),
            frozen: (**message).clone(),
            retry: true,
            others: Vec::new(),
        });
    }
    // No mail is on its way, so nothing waits for one. What another transport froze is told anew through this one: better
    // twice than never, for the operator.
    let new = matters.iter().filter(|matter| matter.notice.is_open());
    let mut new: Vec<Matter> = new.take(GATHERED_MAX).cloned().collect();
    match freeze(shop, &new, at) {
        Ok(frozen) => {
            let frozen = frozen?;
            let first = new.remove(0);
            Some(Letter { key: first.key(), frozen, retry: false, others: new })
        }
        Err(error) => {
            warn!(%error, "notices not told");
            None
        }
    }
}

fn send(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    letter: &Letter,
    moment: Moment,
    until: Duration,
) -> Result<(), StoreError> {
    let Letter { key, frozen, retry, others } = letter;
    if !pause(book, shop, shop.transport.delay(), until)? {
        return Ok(());
    }
    let at = shop.clock.later(moment);
    if !retry {
        let mut facts = vec![Fact::Planned { key: key.clone(), at, message: Box::new(frozen.clone()) }];
        let IdempotencyKey::Notice(with) = key else { return Ok(()) };
        facts.extend(others.iter().map(|matter| Fact::Gathered {
            kind: matter.kind,
            subject: matter.subject.clone(),
            with: with.clone(),
        }));
        book.record(&facts)?;
    }
    book.ready_to_send()?;
    let outcome = shop.transport.send(key, frozen);
    if let Some(reason) = reason_of(&outcome) {
        warn!(%key, reason, "notice not told");
    }
    let matters = &book.ledger().matters;
    let state = matters.iter().find(|matter| matter.key() == *key).map(|matter| matter.notice.clone());
    let state = state.unwrap_or_else(StepState::pending);
    let settled = settle(key, &state, *retry, shop.policy.retention, &outcome, at);
    if settled.facts.is_empty() { Ok(()) } else { book.record(&settled.facts) }
}

fn freeze(shop: &Shop<'_>, matters: &[Matter], at: Timestamp) -> Result<Option<Frozen>, FreezeError> {
    let message = notice(matters, &shop.mail.from, &shop.mail.operator, at);
    message.map(|message| shop.transport.freeze(&message)).transpose()
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
        report.not_taken.push(HAND_IN_AGAIN.to_owned());
    }
    let told = book.told();
    let (mut still, mut new) = (Vec::new(), Vec::new());
    for guard in held {
        let before = told.iter().find(|told| told.kind == guard.kind);
        let at = before.map_or(now, |told| told.at);
        let matter = Matter::new(guard.kind, "run", at, None, guard.text.clone());
        report.notices.push(Notice::of(&matter));
        match before {
            Some(told) if told.arrived => still.push(told.clone()),
            _ => new.push(matter),
        }
    }
    if !book.is_dry() {
        // Written ahead, so that a try whose answer is lost is repeated under the same key.
        let not_yet = new.iter().map(|matter| told_of(matter, false));
        remember(book, &told, still.iter().cloned().chain(not_yet).collect());
        let arrived = new.is_empty() || announce(shop, &new, now);
        if !arrived {
            report.untold += new.len();
        }
        let before = book.told();
        still.extend(new.iter().map(|matter| told_of(matter, arrived)));
        remember(book, &before, still);
    }
}

fn told_of(matter: &Matter, arrived: bool) -> Told {
    Told { kind: matter.kind, subject: matter.subject.clone(), at: matter.at, arrived }
}

fn remember(book: &mut dyn Book, before: &[Told], told: Vec<Told>) {
    if told != before
        // Told again at the next run at worst.
        && let Err(error) = book.set_told(told)
    {
        warn!(%error, "cannot remember that the guard was told about");
    }
}

/// Says whether the operator has it. That an earlier body was taken under this key says so too: only the time in its text
/// can differ.
fn announce(shop: &Shop<'_>, matters: &[Matter], at: Timestamp) -> bool {
    let Ok(Some(frozen)) = freeze(shop, matters, at) else { return false };
    let Some(first) = matters.first() else { return true };
    let outcome = shop.transport.send(&first.key(), &frozen);
    if let Some(reason) = reason_of(&outcome) {
        warn!(reason, "the guard was not told about");
    }
    matches!(outcome, Outcome::Accepted { .. } | Outcome::Conflict { .. })
}

/// R12: no service could be asked for the time.
pub(super) fn no_clock(why: &NoClock, had_events: bool, report: &mut RunReport) {
    report.held_by.push(Hold::Offline);
    report.stop_early(&match why {
        NoClock::Offline(reason) => format!(
            "the mail service cannot be reached ({reason}), so nothing confirms this machine's clock: nothing was taken in, \
             closed or sent; the next run tries again"
        ),
        NoClock::Undated => "the mail service answered without a Date, so nothing confirms this machine's clock: nothing was \
                             taken in, closed or sent; is resend.base_url right? If the clock is, `--accept-clock` lets one \
                             run pass"
            .to_owned(),
    });
    if had_events {
        report.not_taken.push(HAND_IN_AGAIN.to_owned());
    }
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
