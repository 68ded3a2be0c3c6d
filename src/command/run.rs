//! `run`: the hourly command. It opens everything, hands it to [`crate::run`], and closes it again.

use std::path::{Path, PathBuf};

use crate::cli;
use crate::clock::Clock;
use crate::config::ConfigError;
use crate::domain::ledger::OUTBOX;
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::report::Style;
use crate::report::run::RunReport;
use crate::run::{DryBook, Ended, Task};
use crate::source;
use crate::source::spool::Manner;
use crate::store::{LockedLedger, StoreError};

use super::poll::poll;
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
    if asked.backfill.is_some() && place.stripe.is_none() {
        let why = "--backfill reads the payment service again, and the settings name none: set [stripe] up with a key".to_owned();
        return Err(ConfigError { place: None, why }.into());
    }
    let mut batch = Vec::new();
    let (mut folders, files): (Vec<PathBuf>, _) =
        asked.events.iter().cloned().partition(|path| path.is_dir());
    folders.extend(settings.spool());
    let mut spools = place.spools(folders, if asked.dry_run { Manner::Look } else { Manner::Claim });
    for path in &files {
        match source::read(path, &settings.rules) {
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
        poll(&place, &book, &mut task, asked.backfill, clock);
        crate::run::run(&mut book, &shop, task, report)?;
    } else {
        let mut book = place.lock(asked.wait, clock, style).inspect_err(|_| {
            if files.iter().any(|path| path == Path::new("-")) {
                report.not_taken.push(super::PIPE_LOST.to_owned());
            }
        })?;
        place.keep_alive(&book);
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
        poll(&place, &book, &mut task, asked.backfill, clock);
        let ended = crate::run::run(&mut book, &shop, task, report);
        finish(book, ended, now)?;
    }
    super::say_what_was_dropped(spools.dropped(), settings.rules.livemode);
    report.conclude();
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
