//! `show`: the whole story of one buyer or purchase. Reads only.

use crate::cli::Show;
use crate::clock::Clock;
use crate::exit::Exit;
use crate::report::show::ShowReport;
use crate::report::{Style, print, print_json};

use super::Place;

pub(super) fn show(asked: &Show, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let view = place.view()?;
    let Some(report) = ShowReport::of(&view.ledger, &asked.who, &place.policy, clock.now()) else {
        anyhow::bail!(super::NotKnown {
            what: super::said(&asked.who),
            ledger: place.store()?.path().to_owned()
        });
    };
    match style {
        Style::Json => print_json(&report),
        Style::Text | Style::Quiet => print(|out| report.write_text(out)),
    }
    Ok(Exit::Done)
}
