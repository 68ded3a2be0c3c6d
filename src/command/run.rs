//! `run`: the hourly command. It opens everything, hands it to [`crate::run`], and closes it again.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::cli;
use crate::clock::Clock;
use crate::domain::event::{Incoming, StopTarget};
use crate::domain::guard::ServiceClock;
use crate::domain::ledger::{Ledger, OUTBOX};
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::report::Style;
use crate::report::run::RunReport;
use crate::run::{Asked, Book, DryBook, Ended, Task, Unread};
use crate::source::spool::Manner;
use crate::source::{self, PollError, Reading, Stripe};
use crate::store::{LockedLedger, StoreError};

use super::{Place, Seen};

pub(super) fn run(
    asked: &cli::Run,
    global: &cli::Global,
    style: Style,
    clock: &Clock,
) -> anyhow::Result<Exit> {
    let mut report = RunReport::new(asked.dry_run);
    match (attempt(asked, global, style, clock, &mut report), style) {
        (Ok(()), _) => {
            report.print(style);
            Ok(report.exit)
        }
        // Programs read the failure in the object; people on standard error, after what was done until then.
        (Err(error), Style::Json) if Exit::of(&error) != Exit::Usage => {
            let told = std::iter::once(error.to_string()).chain(report.not_taken.iter().cloned());
            report.fail(Exit::of(&error), told.collect::<Vec<_>>().join("; "));
            report.print(style);
            Ok(report.exit)
        }
        (Err(error), _) => {
            if style != Style::Json {
                report.print(style);
            }
            Err(error)
        }
    }
}

fn attempt(
    asked: &cli::Run,
    global: &cli::Global,
    style: Style,
    clock: &Clock,
    report: &mut RunReport,
) -> anyhow::Result<()> {
    let place = Place::find(global, clock)?;
    let settings = &place.settings;
    let templates = place.templates();
    if !asked.dry_run {
        place.allows(clock)?;
    }
    report.outbox = (place.transport().name() == OUTBOX).then(|| place.outbox_dir.clone());
    let shop = place.shop(&templates, clock);
    // Whether there is a ledger that may be used, and a way for mails to leave, before anything is read from a pipe.
    place.store()?;
    place.ready()?;
    let mut batch = Vec::new();
    let (mut folders, files): (Vec<PathBuf>, _) =
        asked.events.iter().cloned().partition(|path| path.is_dir());
    folders.extend(settings.spool());
    let mut spools = place.spools(folders, if asked.dry_run { Manner::Look } else { Manner::Claim });
    for path in &files {
        match source::read(path, settings.rules) {
            Ok(reading) => {
                super::say_what_was_dropped(&reading, settings.rules.livemode);
                batch.extend(reading.incoming);
            }
            // A failure in one source never stops the others.
            Err(error) => report.not_taken.push(error.to_string()),
        }
    }
    let accepted = asked.accept_clock;
    if asked.dry_run {
        let view = place.view()?;
        let seen = Seen::in_view(&view);
        let known = seen.known(place.transport(), clock, accepted);
        let mut task = Task {
            batch,
            readings: Vec::new(),
            feed: &mut spools,
            allow: asked.allow,
            known,
            moment: clock.moment(),
        };
        report.now = Some(task.moment.now);
        let mut book = DryBook::new(view);
        poll(&place, &book, &mut task, clock);
        crate::run::run(&mut book, &shop, task, report)?;
    } else {
        let mut book = place.lock(asked.wait, clock, style).inspect_err(|_| {
            if files.iter().any(|path| path == Path::new("-")) {
                report.not_taken.push(super::PIPE_LOST.to_owned());
            }
        })?;
        let seen = Seen::of(&book);
        let known = seen.known(place.transport(), clock, accepted);
        let mut task = Task {
            batch,
            readings: Vec::new(),
            feed: &mut spools,
            allow: asked.allow,
            known,
            moment: clock.moment(),
        };
        let now = task.moment.now;
        report.now = Some(now);
        poll(&place, &book, &mut task, clock);
        let ended = crate::run::run(&mut book, &shop, task, report);
        finish(book, ended, now)?;
    }
    super::say_what_was_dropped(spools.dropped(), settings.rules.livemode);
    report.conclude();
    Ok(())
}

/// Reads what happened at the payment service. That is a batch like any other: what a held run leaves is read again. A
/// pretended time would move the reading to where no event is.
fn poll(place: &Place, book: &dyn Book, task: &mut Task<'_>, clock: &Clock) {
    let Some(stripe) = &place.stripe else { return };
    if clock.is_fixed() && !stripe.stays_here() {
        tracing::warn!("Stripe is not asked, since --now pretends a time");
        return;
    }
    let now = task.moment.now;
    let last = book.last_reading(Stripe::NAME);
    let polled = stripe.poll(last, book.ledger().go_live, now);
    let polled = polled.and_then(|mut reading| {
        find_purchases(stripe, book.ledger(), &mut reading)?;
        Ok(reading)
    });
    if let (Some(said), false) = (stripe.time(), clock.is_fixed()) {
        task.known.service = Some(ServiceClock { said, ours: clock.later(task.moment) });
    }
    let failed = match polled {
        Ok(reading) => {
            super::say_what_was_dropped(&reading, place.settings.rules.livemode);
            task.batch.extend(reading.incoming);
            None
        }
        Err(error @ PollError::Failed(_)) => Some(Unread::Later(error.to_string())),
        Err(error @ PollError::Refused(_)) => Some(Unread::Refused(error.to_string())),
    };
    let missed = Stripe::missed(last, now);
    task.readings.push(Asked { source: Stripe::NAME, failed, missed });
}

/// Asks which subscription's first payment was given back, of those stops that name a payment which no purchase does.
///
/// # Errors
/// [`PollError::Failed`]: the reading is to be made again.
fn find_purchases(stripe: &Stripe, ledger: &Ledger, reading: &mut Reading) -> Result<(), PollError> {
    let of_checkouts = |incoming: &Incoming| match incoming {
        Incoming::Checkout(checkout) => checkout.refs.payment_intent.clone(),
        _ => None,
    };
    let bought: HashSet<String> = reading.incoming.iter().filter_map(of_checkouts).collect();
    let waiting = ledger.waiting.iter().map(|waiting| &waiting.checkout.refs);
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let known: HashSet<&String> = purchases
        .map(|purchase| &purchase.refs)
        .chain(waiting)
        .filter_map(|refs| refs.payment_intent.as_ref())
        .chain(&bought)
        .collect();
    for incoming in &mut reading.incoming {
        let (Incoming::Stop(signal) | Incoming::PartialRefund(signal)) = incoming else { continue };
        let StopTarget::Refs(refs) = &mut signal.target else { continue };
        let Some(payment) = refs.payment_intent.clone().filter(|id| !known.contains(id)) else { continue };
        if refs.invoice.is_some() || refs.subscription.is_some() || ledger.knows_event(&signal.event) {
            continue;
        }
        match stripe.paid_for(&payment) {
            Ok(found) => (refs.invoice, refs.subscription) = (found.invoice, found.subscription),
            // `check` says so; the stop is told as one that finds no purchase.
            Err(error @ PollError::Refused(_)) => {
                tracing::warn!(%error, "a refund may not find its subscription");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the sum of a run. A run that failed leaves its journal to the next one, which replays it.
fn finish(book: LockedLedger, ended: Result<Ended, StoreError>, now: Timestamp) -> Result<(), StoreError> {
    match ended {
        Ok(Ended::Done) => super::finish(book, Some(now)),
        Ok(Ended::Held) => {
            book.abandon();
            Ok(())
        }
        Err(error) => {
            book.abandon();
            Err(error)
        }
    }
}
