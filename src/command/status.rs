//! `status`: where every purchase stands. Reads only.

use crate::cli::Status;
use crate::clock::Clock;
use crate::domain::guard::guard;
use crate::exit::Exit;
use crate::report::status::StatusReport;
use crate::report::{Style, print, print_json};

use super::{Place, Seen};

pub(super) fn status(asked: &Status, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let view = place.view()?;
    let now = clock.now();
    let held = guard(&view.ledger, &Seen::in_view(&view).known(place.transport(), clock, false), now);
    let path = place.store()?.path().display().to_string();
    let report =
        StatusReport::of(&view.ledger, &path, &place.policy, held, super::last_run(&view), now, asked.all);
    match style {
        Style::Json => print_json(&report),
        Style::Text => print(|out| report.write_text(out)),
        Style::Quiet => print(|out| report.write_quiet(out)),
    }
    Ok(Exit::Done)
}
