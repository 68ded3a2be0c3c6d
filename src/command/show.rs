//! `show`: the whole story of one buyer, purchase or mail. Reads only.

use std::io::Write;

use crate::cli::{Show, Sought};
use crate::clock::Clock;
use crate::domain::fact::Whom;
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::{Ledger, StepState};
use crate::domain::settle::BY_HAND;
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::report::show::{ShowReport, Subject};
use crate::report::{Style, print, print_json};

use super::Place;

pub(super) fn show(asked: &Show, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let view = place.view()?;
    let subject = subject(&view.ledger, &asked.what);
    let report =
        subject.and_then(|subject| ShowReport::of(&view.ledger, &subject, &place.policy, clock.now()));
    let Some(report) = report else {
        if let Some(at) = forgotten_at(&view.ledger, &asked.what) {
            tell_forgotten(&said(&asked.what), at, clock.now(), style);
            return Ok(Exit::Done);
        }
        anyhow::bail!(super::NotKnown { what: said(&asked.what), ledger: place.store()?.path().to_owned() });
    };
    match style {
        Style::Json => print_json(&report),
        Style::Text => print(|out| report.write_text(out)),
        Style::Quiet => print(|out| report.write_quiet(out)),
    }
    Ok(Exit::Done)
}

/// R17: when the person of whom nothing else is left was forgotten.
fn forgotten_at(ledger: &Ledger, sought: &Sought) -> Option<Timestamp> {
    let whom = match sought {
        Sought::Key(IdempotencyKey::Step(session, _)) => Whom::Session(session.clone()),
        Sought::Text { whom: Some(whom), .. } => whom.clone(),
        _ => return None,
    };
    ledger.forgotten.person(&whom).map(|person| person.at)
}

fn tell_forgotten(who: &str, at: Timestamp, now: Timestamp, style: Style) {
    match style {
        Style::Json => print_json(&serde_json::json!({
            "schema": "stepmail-show/1", "now": now, "forgotten_at": at, "exit": Exit::Done
        })),
        Style::Text | Style::Quiet => print(|out| {
            writeln!(
                out,
                "{who} was forgotten at {at}; nothing is kept but hashes, so that nothing starts again"
            )
        }),
    }
}

/// Whose story it is. Message ids may look like addresses, or like sessions, so they are looked for first.
fn subject(ledger: &Ledger, sought: &Sought) -> Option<Subject> {
    match sought {
        Sought::Key(key) => Some(Subject::Mail(key.clone())),
        Sought::Text { text, whom } => {
            mail_of(ledger, text).map(Subject::Mail).or_else(|| whom.clone().map(Subject::Whom))
        }
    }
}

/// The mail that was sent under this message id, with or without its angle brackets.
fn mail_of(ledger: &Ledger, message_id: &str) -> Option<IdempotencyKey> {
    fn bare(id: &str) -> &str {
        id.strip_prefix('<').and_then(|id| id.strip_suffix('>')).unwrap_or(id)
    }
    // Many mails may be settled without an id of their own.
    let is_it = |state: &StepState| matches!(state, StepState::Sent { message_id: id, .. } if id != BY_HAND && bare(id) == bare(message_id));
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let mut mails = purchases.flat_map(|p| p.steps.iter().map(move |(step, state)| (p, step, state)));
    mails
        .find(|(.., state)| is_it(state))
        .map(|(purchase, step, _)| IdempotencyKey::Step(purchase.session.clone(), step))
        .or_else(|| ledger.matters.iter().find(|m| is_it(&m.notice)).map(|m| IdempotencyKey::Notice(m.id())))
}

fn said(sought: &Sought) -> String {
    match sought {
        Sought::Key(key) => key.to_string(),
        Sought::Text { whom: Some(whom), .. } => super::said(whom),
        Sought::Text { text, .. } => text.clone(),
    }
}
