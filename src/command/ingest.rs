//! `ingest`: purchases and stops only. What it has to tell is told by the next run.

use std::path::Path;

use crate::cli::Ingest;
use crate::clock::Clock;
use crate::domain::guard::guard;
use crate::domain::matter::MatterKind;
use crate::exit::Exit;
use crate::report::run::RunReport;
use crate::report::{Style, complain};
use crate::run::take_in_all;
use crate::source::spool::Manner;
use crate::source::{self, Reading};

use super::{Place, Seen};

pub(super) fn ingest(asked: &Ingest, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let mut report = RunReport::ingest();
    let livemode = place.settings.rules.livemode;
    let is_spool = asked.path.is_dir();
    let folders = if is_spool { vec![asked.path.clone()] } else { Vec::new() };
    let mut spools = place.spools(folders, Manner::Claim);
    let reading =
        if is_spool { Reading::default() } else { source::read(&asked.path, &place.settings.rules)? };
    super::say_what_was_dropped(&reading, livemode);
    let mut book = place.lock(asked.wait.seconds, clock, style).inspect_err(|_| {
        if asked.path == Path::new("-") {
            complain(&format!("stepmail: {}", super::PIPE_LOST));
        }
    })?;
    let seen = Seen::of(&book);
    seen.refuse_copy()?;
    if is_spool {
        // No file is claimed for a ledger that nothing can be recorded in.
        book.ready_to_send()?;
    }
    let now = clock.now();
    report.now = Some(now);
    take_in_all(&mut book, reading.incoming, &mut spools, clock, now, &mut report)?;
    super::say_what_was_dropped(spools.dropped(), livemode);
    let held = guard(book.ledger(), &seen.known(place.transport(), clock, false), now);
    super::finish(book, None)?;
    report.conclude();
    for held in held.iter().filter(|held| held.kind == MatterKind::OtherInstallation) {
        // What was taken in here is known to nobody who sends.
        tracing::warn!("the next run is held: {}", held.text);
        if report.exit == Exit::Done {
            report.exit = Exit::Look;
        }
    }
    report.print(style);
    Ok(report.exit)
}
