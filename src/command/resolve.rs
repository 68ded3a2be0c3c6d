//! `resolve`: a person says what became of mails whose result is unknown, and opens rejected ones again (R9, R10).

use std::collections::BTreeSet;

use crate::cli::Resolve;
use crate::clock::Clock;
use crate::domain::adopt::settled;
use crate::domain::decide::closes;
use crate::domain::fact::{Fact, apply};
use crate::domain::ids::{IdempotencyKey, SessionId, Step};
use crate::domain::ledger::{CloseReason, Ledger, StepState};
use crate::domain::settle::{Becomes, Found, Refusal, Settlement, resolve as settle, unsettled_between};
use crate::exit::Exit;
use crate::report::Style;

use super::Place;
use super::desk::{Answer, Desk};

/// One mail.
type Mail = (SessionId, Step);

pub(super) fn resolve(asked: &Resolve, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let mut desk = Desk::open(place, asked.how, clock, style)?;
    desk.trust(place, clock)?;
    let now = clock.now();
    let mut answer = Answer::new("resolve", place, asked.how, now)?;
    let found = match &asked.sent {
        Some(id) => Found::Sent(id.clone()),
        None => Found::NotSent,
    };
    let range = asked.since.zip(asked.until);
    let mails: Vec<Mail> = match range {
        Some((since, until)) => unsettled_between(desk.ledger(), since, until),
        None => named(&asked.keys),
    };
    let mut facts: Vec<Fact> = Vec::new();
    let mut refused = Vec::new();
    for (session, step) in &mails {
        match settle(desk.ledger(), session, *step, &found, now) {
            Ok(settlement) => {
                answer.says.push(in_words(desk.ledger(), session, *step, &settlement));
                facts.extend(settlement.facts);
            }
            // A range takes what it finds; whoever names a mail means that one.
            Err(refusal @ Refusal::ServiceSaidNo) if range.is_some() => {
                answer.says.push(format!("{step} of {session} is left alone: it {refusal}"));
            }
            Err(refusal) => refused.push(format!("{step} of {session} {refusal}")),
        }
    }
    if let (Some((since, until)), true) = (range, mails.is_empty()) {
        answer
            .says
            .push(format!("no mail with an unknown result, and none rejected, from {since} to {until}"));
    }
    if refused.is_empty() {
        answer.changed = !facts.is_empty();
        let mut after = desk.ledger().clone();
        for fact in &facts {
            // Each was found for this very ledger.
            let _ = apply(&mut after, fact);
        }
        if answer.changed {
            facts.extend(settled(&after));
        }
        desk.record(&facts)?;
        let of: BTreeSet<_> = mails.iter().filter_map(|(s, _)| desk.address_of(s)).collect();
        let buyers = of.iter().filter_map(|address| desk.ledger().buyers.get(address));
        answer.look_ahead(buyers, &place.policy, &desk.held(place, clock));
    } else {
        refused.push("nothing was changed".to_owned());
        answer.says = refused;
        answer.exit = Exit::Look;
    }
    desk.finish()?;
    answer.print(style);
    Ok(answer.exit)
}

/// Each mail once, in the order in which they were named. Keys of notices were refused by the command line.
pub(super) fn named(keys: &[IdempotencyKey]) -> Vec<Mail> {
    let mut mails = Vec::new();
    for key in keys {
        if let IdempotencyKey::Step(session, step) = key {
            let mail = (session.clone(), *step);
            if !mails.contains(&mail) {
                mails.push(mail);
            }
        }
    }
    mails
}

/// What a settlement comes to. The ledger is the one from before it.
pub(super) fn in_words(ledger: &Ledger, session: &SessionId, step: Step, settlement: &Settlement) -> String {
    let purchase = ledger.buyers.purchase(session).map(|(_, purchase)| purchase);
    let mail = format!("{step} of {session}");
    match settlement.becomes {
        Becomes::AsItWas => {
            let is = match purchase.map(|purchase| purchase.steps.get(step)) {
                Some(StepState::Sent { at, .. }) => format!("sent, as of {at}"),
                Some(StepState::Closed { reason, .. }) => {
                    format!("closed as {}, without an attempt", reason.name())
                }
                _ => "open".to_owned(),
            };
            format!("{mail} is {is}; nothing changed")
        }
        Becomes::Sent => {
            let sent = settlement.facts.iter().find_map(|fact| match fact {
                Fact::Sent { at, message_id, via, .. } => {
                    Some(format!("{mail} is sent, as of {at}, through {via}, message id {message_id}"))
                }
                _ => None,
            });
            sent.unwrap_or(mail)
        }
        Becomes::Pending => format!("{mail} never left and is open again"),
        Becomes::Closed(CloseReason::Stale) => {
            let ended = purchase.and_then(|purchase| closes(purchase, step));
            let ended = ended.map_or(String::new(), |end| format!(": its window ended on {end}"));
            format!("{mail} never left and is closed as stale{ended}")
        }
        Becomes::Closed(reason) => format!("{mail} never left and stays closed as {}", reason.name()),
    }
}
