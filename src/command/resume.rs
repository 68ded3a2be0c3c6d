//! `resume`: lifts a stop or a pause, and opens again what the stop had closed.

use crate::cli::Resume;
use crate::clock::Clock;
use crate::domain::fact::{Fact, Whom};
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::Ledger;
use crate::domain::settle::{Fate, Lifted, Resumption, resume as settle};
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::report::Style;
use crate::store::StoreError;

use super::desk::{Answer, Desk, is_forgotten, is_known};
use super::{NotKnown, Place, said};

pub(super) fn resume(asked: &Resume, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let mut desk = Desk::open(place, asked.how, clock, style)?;
    desk.trust(place, clock)?;
    let now = clock.now();
    let mut answer = Answer::new("resume", place, asked.how, now)?;
    if is_forgotten(desk.ledger(), &asked.who) {
        resume_forgotten(asked, &mut desk, &mut answer, now)?;
        desk.finish()?;
        answer.print(style);
        return Ok(answer.exit);
    }
    let known = is_known(desk.ledger(), &asked.who) || is_noted(desk.ledger(), &asked.who);
    let resumption = settle(desk.ledger(), &asked.who, now);
    answer.changed = !resumption.facts.is_empty();
    if known {
        desk.record(&resumption.facts)?;
        answer.says = says(&asked.who, &resumption, desk.buyer(&asked.who).is_some());
        answer.look_ahead(desk.buyer(&asked.who), &place.policy, &desk.held(place, clock));
    } else {
        let unknown = NotKnown { what: said(&asked.who), ledger: place.store()?.path().to_owned() };
        answer.says.push(format!("{unknown}; nothing was changed"));
        answer.exit = Exit::Look;
    }
    desk.finish()?;
    answer.print(style);
    Ok(answer.exit)
}

/// Somebody who was forgotten may be stopped for when they buy again.
fn resume_forgotten(
    asked: &Resume,
    desk: &mut Desk,
    answer: &mut Answer,
    now: Timestamp,
) -> Result<(), StoreError> {
    let who = said(&asked.who);
    let Some(person) = desk.ledger().forgotten.person(&asked.who).cloned() else { return Ok(()) };
    answer.says.push(match (&asked.who, person.address, person.is_stopped()) {
        (Whom::Address(_), Some(address), Some(_)) => {
            desk.record(&[Fact::ForgottenResumed { address, at: now }])?;
            answer.changed = true;
            format!("{who} was forgotten at {}, and is no longer stopped: a new purchase gets d0", person.at)
        }
        (Whom::Address(_), ..) => format!("{who} was forgotten at {}, and is not stopped; nothing changed", person.at),
        (Whom::Session(_), ..) => format!(
            "the buyer of {who} was forgotten at {}: nothing is sent for what was bought before; nothing changed",
            person.at
        ),
    });
    Ok(())
}

/// Whether anything was noted of one who has bought nothing yet.
fn is_noted(ledger: &Ledger, whom: &Whom) -> bool {
    match whom {
        Whom::Address(address) => ledger.buyers.get(&address.buyer()).is_some(),
        Whom::Session(session) => {
            ledger.loose_stops.iter().any(|stop| stop.session.as_ref() == Some(session))
                || ledger.loose_marks.iter().any(|mark| mark.session == *session)
        }
    }
}

fn says(whom: &Whom, resumption: &Resumption, has_come: bool) -> Vec<String> {
    let who = said(whom);
    let mut says = vec![match (resumption.lifted, has_come) {
        (Lifted { stop: true, pause: true }, _) => format!("{who} is no longer stopped, nor paused"),
        (Lifted { stop: true, .. }, true) => format!("{who} is no longer stopped"),
        (Lifted { stop: true, .. }, false) => format!("{who} is no longer stopped when it comes"),
        (Lifted { pause: true, .. }, _) => format!("{who} is no longer paused"),
        _ if matches!(whom, Whom::Address(_)) => {
            format!("{who} is neither stopped nor paused; nothing changed")
        }
        _ => format!("{who} is not stopped by itself; nothing changed"),
    }];
    for (session, step, fate) in &resumption.steps {
        says.push(match fate {
            Fate::Reopened => format!("{step} of {session} is open again"),
            Fate::Over(end) => format!("{step} of {session} stays closed: its window ended on {end}"),
            Fate::Unknown => {
                let key = IdempotencyKey::Step(session.clone(), *step);
                format!(
                    "{step} of {session} stays closed: an attempt of it may have arrived; look for it, then \
                     `stepmail resolve {key} --sent` or `stepmail resolve {key} --not-sent`"
                )
            }
        });
    }
    for session in &resumption.sessions_stopped {
        says.push(format!(
            "session {session} has a stop of its own, which stays; `stepmail resume {session}` lifts it"
        ));
    }
    if resumption.buyer_stopped {
        says.push(
            "the buyer's address is stopped as well, which stays; `stepmail resume EMAIL` lifts it"
                .to_owned(),
        );
    }
    if resumption.buyer_paused {
        says.push("the buyer is paused, which stays; `stepmail resume EMAIL` lifts it".to_owned());
    }
    says
}
