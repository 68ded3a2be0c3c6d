//! `ingest`: purchases and stops only. What it has to tell is told by the next run.

use crate::cli::Ingest;
use crate::clock::Clock;
use crate::exit::Exit;
use crate::report::Style;
use crate::report::run::RunReport;
use crate::run::take_in;
use crate::source;

use super::Place;

pub(super) fn ingest(asked: &Ingest, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let mut report = RunReport::ingest();
    let reading = source::read(&asked.path, place.settings.livemode)?;
    super::say_what_was_dropped(&reading, place.settings.livemode);
    let mut book = place.lock(asked.wait.seconds, clock, style)?;
    let now = clock.now();
    report.now = Some(now);
    take_in(&mut book, reading.incoming, now, &mut report)?;
    book.finish(None)?;
    report.conclude();
    report.print(style);
    Ok(report.exit)
}
