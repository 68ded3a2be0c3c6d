//! `status`: where every purchase stands. Reads only.

use crate::cli::Status;
use crate::clock::Clock;
use crate::domain::guard::guard;
use crate::exit::Exit;
use crate::report::status::StatusReport;
use crate::report::{Style, print, print_json};

use super::Place;

pub(super) fn status(asked: &Status, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let view = place.view()?;
    let now = clock.now();
    let known =
        super::known(view.installation.as_deref(), view.mark.as_ref(), view.journal_ahead, clock, false);
    let held = guard(&view.ledger, &known, now);
    let path = place.store()?.path().display().to_string();
    let report = StatusReport::of(&view.ledger, &path, &place.policy, held, now, asked.all);
    match style {
        Style::Json => print_json(&report),
        Style::Text | Style::Quiet => print(|out| report.write_text(out)),
    }
    Ok(Exit::Done)
}
