//! `mark-stopped`, `mark-started`, `mark-repurchase`, `mark-outcome`: a hand sets a flag, and the next run draws the
//! consequences; none of the last (R16).

use crate::cli::Hand;
use crate::clock::Clock;
use crate::domain::fact::{Fact, Whom};
use crate::domain::ledger::{Kind, Ledger, MarkKind};
use crate::domain::settle::stops_to_come;
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::report::Style;
use crate::store::StoreError;

use super::desk::{Answer, Desk, is_forgotten, is_known};
use super::{Place, said};

pub(super) fn mark(
    kind: MarkKind,
    hand: &Hand,
    place: &Place,
    style: Style,
    clock: &Clock,
) -> anyhow::Result<Exit> {
    let mut desk = Desk::open(place, hand.how, clock, style)?;
    let mut answer = Answer::new(kind.command(), place, hand.how, clock.now())?;
    let now = clock.now();
    if is_forgotten(desk.ledger(), &hand.who) {
        mark_forgotten(kind, hand, &mut desk, &mut answer, now)?;
        desk.finish()?;
        answer.print(style);
        return Ok(answer.exit);
    }
    let known = is_known(desk.ledger(), &hand.who);
    answer.changed = !is_set(desk.ledger(), &hand.who, kind);
    if answer.changed {
        let reason = hand
            .reason
            .as_deref()
            .map(one_line)
            .or_else(|| (kind == MarkKind::Stopped).then(|| "asked".into()));
        desk.record(&[Fact::Marked { whom: hand.who.clone(), mark: kind, at: now, reason, event: None }])?;
    }
    let (who, what) = (said(&hand.who), in_words(kind, &hand.who));
    if known {
        let before = if answer.changed { "" } else { " (it was before; nothing changed)" };
        answer.says.push(format!("{who} is {what}{before}"));
    } else {
        let before = if answer.changed { "" } else { " (as it was before; nothing changed)" };
        answer.says.push(format!(
            "{who} is not in `{}`; noted for the future: when it comes it is {what}{before}; check the spelling and the \
             ledger",
            answer.ledger()
        ));
        answer.exit = Exit::Look;
    }
    let held = desk.held(place, clock);
    answer.look_ahead(desk.buyer(&hand.who).filter(|_| known), &place.policy, &held);
    desk.finish()?;
    answer.print(style);
    Ok(answer.exit)
}

/// Somebody who was forgotten can be stopped, in case they buy again. The rest has no meaning any more.
fn mark_forgotten(
    kind: MarkKind,
    hand: &Hand,
    desk: &mut Desk,
    answer: &mut Answer,
    now: Timestamp,
) -> Result<(), StoreError> {
    let who = said(&hand.who);
    let Some(person) = desk.ledger().forgotten.person(&hand.who).cloned() else { return Ok(()) };
    let forgotten = match hand.who {
        Whom::Address(_) => format!("{who} was forgotten at {}", person.at),
        Whom::Session(_) => format!("the buyer of {who} was forgotten at {}", person.at),
    };
    answer.says.push(match (kind, &hand.who, person.address) {
        (MarkKind::Stopped, Whom::Address(_), Some(address)) if person.is_stopped().is_none() => {
            desk.record(&[Fact::ForgottenStopped { address, at: now, event: None }])?;
            answer.changed = true;
            format!("{forgotten}; from now on a new purchase gets nothing, and is told")
        }
        (MarkKind::Stopped, Whom::Address(_), _) => {
            format!("{forgotten}, and is stopped: a new purchase gets nothing, and is told; nothing changed")
        }
        (MarkKind::Repurchase, Whom::Address(_), _) => {
            format!("{forgotten}: a new purchase counts as a repurchase as it is; nothing changed")
        }
        _ => format!("{forgotten}: nothing is sent for what was bought before; nothing changed"),
    });
    Ok(())
}

fn in_words(kind: MarkKind, whom: &Whom) -> &'static str {
    match (kind, whom) {
        (MarkKind::Stopped, _) => "stopped",
        (MarkKind::Started, _) => "started",
        (MarkKind::Repurchase, Whom::Session(_)) => "a repurchase",
        (MarkKind::Repurchase, Whom::Address(_)) => "a buyer from before this ledger",
        (MarkKind::Outcome, _) => "noted as having reached the goal (it changes no mail)",
    }
}

/// Whether the flag is set already: twice is once.
fn is_set(ledger: &Ledger, whom: &Whom, kind: MarkKind) -> bool {
    match whom {
        Whom::Address(address) => ledger.buyers.get(&address.buyer()).is_some_and(|buyer| match kind {
            MarkKind::Stopped => buyer.stopped.is_some(),
            MarkKind::Started => buyer.started.is_some(),
            MarkKind::Repurchase => buyer.bought_before.is_some(),
            MarkKind::Outcome => buyer.outcome.is_some(),
        }),
        Whom::Session(session) => match ledger.buyers.purchase(session) {
            Some((_, purchase)) => match kind {
                MarkKind::Stopped => purchase.stopped.is_some(),
                MarkKind::Started => purchase.started.is_some(),
                MarkKind::Outcome => purchase.outcome.is_some(),
                MarkKind::Repurchase => {
                    purchase.kind == Kind::Repurchase || purchase.marked_repurchase.is_some()
                }
            },
            None if kind == MarkKind::Stopped => stops_to_come(ledger, session).next().is_some(),
            None => ledger.loose_marks.iter().any(|mark| mark.session == *session && mark.mark == kind),
        },
    }
}

fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}
