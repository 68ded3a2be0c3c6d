//! The story of one purchase: what happened, in the order of time, each with its reason; and what is still to come.

use serde::Serialize;

use crate::domain::decide::{Verdict, closes, verdict};
use crate::domain::event::Amount;
use crate::domain::ids::{IdempotencyKey, Step};
use crate::domain::ledger::{Buyer, CloseReason, Kind, Mark, Purchase, StepState};
use crate::domain::newsletter::Standing;
use crate::domain::policy::Policy;
use crate::domain::time::Timestamp;

use super::status::{says, to_settle};

/// One thing that happened.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Happened {
    /// When.
    pub at: Timestamp,
    /// What, and why.
    pub what: String,
}

/// Everything that is on record of a purchase, and of its buyer as far as it concerns the mails, in the order of time.
/// Events carry no time of their own but where they set a flag.
#[must_use]
pub fn story(buyer: &Buyer, purchase: &Purchase, go_live: Timestamp) -> Vec<Happened> {
    let mut story = vec![Happened { at: purchase.paid_at, what: taken_in(purchase, go_live) }];
    let flags = [
        (&buyer.bought_before, "the buyer is noted as one from before this ledger", "d0 only"),
        (&purchase.marked_repurchase, "marked as a repurchase", "d0 only"),
        (&buyer.started, "the buyer has started", "d3 is not needed"),
        (&purchase.started, "started", "d3 is not needed"),
        (&buyer.paused, "the buyer is paused", "only d0 is sent until `stepmail resume`"),
        (&buyer.stopped, "the buyer is stopped", "nothing more is sent to this person"),
        (&purchase.stopped, "stopped", "nothing more is sent for this purchase"),
        (&buyer.outcome, "the buyer reached the goal", "it changes no mail"),
        (&purchase.outcome, "reached the goal", "it changes no mail"),
    ];
    for (mark, what, therefore) in flags {
        if let Some(mark) = mark {
            story.push(Happened { at: mark.at, what: format!("{what}{}: {therefore}", reason_of(mark)) });
        }
    }
    story.extend(purchase.newsletter.as_ref().and_then(newsletter));
    for refund in &purchase.refunds {
        let Amount { value, currency } = &refund.amount;
        let failed = if refund.failed { " failed: the money stayed" } else { "" };
        story.push(Happened {
            at: refund.at,
            what: format!("refund {} of {value} {currency}{failed}", refund.id),
        });
    }
    for (step, state) in purchase.steps.iter() {
        tell_step(&mut story, buyer, purchase, step, state, go_live);
    }
    // Stable: what happened in one second stays in the order above.
    story.sort_by_key(|happened| happened.at);
    story
}

/// What comes next for each open step and when, and what waits for a person's word.
#[must_use]
pub fn to_come(buyer: &Buyer, purchase: &Purchase, policy: &Policy, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    for (step, state) in purchase.steps.iter() {
        if state.is_open() {
            let leaves =
                matches!(verdict(buyer, purchase, step, policy, now), Verdict::Wait(_) | Verdict::Due { .. });
            let ends = closes(purchase, step).filter(|_| leaves);
            let ends = ends.map_or(String::new(), |end| format!("; its window ends on {end}"));
            lines.push(format!("{step}: {}{ends}", says(buyer, purchase, step, policy, now)));
        } else if let Some(settle) = to_settle(&purchase.session, step, state) {
            lines.push(format!("{step}: {settle}"));
        }
    }
    lines
}

fn taken_in(purchase: &Purchase, go_live: Timestamp) -> String {
    match purchase.kind {
        Kind::First => "paid; the first purchase of this buyer: d0, d3, d7 and d14".to_owned(),
        // What it was taken in as is told by the mark then.
        Kind::Repurchase if purchase.marked_repurchase.is_some() => "paid".to_owned(),
        Kind::Repurchase => "paid; a repurchase: d0 only".to_owned(),
        Kind::History => format!("paid before go-live ({go_live}): history, mailed nothing"),
    }
}

fn newsletter(standing: &Standing) -> Option<Happened> {
    let (at, what) = match standing {
        Standing::Open { .. } => return None,
        Standing::Marked { at, contact, unmarked: None } => {
            (*at, format!("newsletter: contact {contact} carries the purchaser mark"))
        }
        Standing::Marked { contact, unmarked: Some(at), .. } => {
            (*at, format!("newsletter: the purchaser mark was taken away from contact {contact}"))
        }
        Standing::Told { at, reason, .. } => {
            (*at, format!("newsletter: no purchaser mark ({})", reason.in_words()))
        }
        Standing::NotKnown { since, .. } => {
            (*since, "newsletter: its contacts cannot be read; asked again every run".to_owned())
        }
    };
    Some(Happened { at, what })
}

fn reason_of(mark: &Mark) -> String {
    mark.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"))
}

/// The attempts of a step, and what came of them.
fn tell_step(
    story: &mut Vec<Happened>,
    buyer: &Buyer,
    purchase: &Purchase,
    step: Step,
    state: &StepState,
    go_live: Timestamp,
) {
    let key = IdempotencyKey::Step(purchase.session.clone(), step);
    let mut happened =
        |at: Timestamp, what: String| story.push(Happened { at, what: format!("{step} {what}") });
    if let Some(refused) = state.refusals() {
        let times = if refused.count == 1 { "once".to_owned() } else { format!("{} times", refused.count) };
        happened(refused.at, format!("refused by the mail service, {times} so far: {}", refused.reason));
    }
    match state {
        StepState::Pending { .. } => {}
        StepState::Planned { at, message, last_unknown_at, .. } => {
            let what = format!("planned through {} as {key}, subject \"{}\"", message.via, message.subject);
            happened(*at, format!("{what}; its result is unknown"));
            if let Some(last) = last_unknown_at.filter(|last| last != at) {
                happened(
                    last,
                    "tried again, the same mail with the same key; its result is unknown".to_owned(),
                );
            }
        }
        StepState::Sent { at, message_id, via, fate } => {
            happened(*at, format!("sent through {via} as {key}, message id {message_id}"));
            if let Some(fate) = fate {
                happened(fate.at, format!("{via} says of {key}: {}", fate.what.in_words()));
            }
        }
        StepState::Closed { at, reason, attempt } => {
            if let Some(attempt) = attempt {
                let what = format!("tried through {} as {key}, subject \"{}\"", attempt.via, attempt.subject);
                happened(attempt.first_at, format!("{what}; it may have arrived"));
                if attempt.last_at != attempt.first_at {
                    happened(attempt.last_at, "tried for the last time; it may have arrived".to_owned());
                }
            }
            let why = why_closed(buyer, purchase, step, *reason, go_live);
            happened(*at, format!("closed as {}: {why}", reason.name()));
        }
    }
}

fn why_closed(
    buyer: &Buyer,
    purchase: &Purchase,
    step: Step,
    reason: CloseReason,
    go_live: Timestamp,
) -> String {
    let by = |marks: [(&Option<Mark>, &str); 2], lifted: &str| {
        let found = marks.into_iter().find_map(|(mark, what)| Some((mark.as_ref()?, what)));
        found.map_or(lifted.to_owned(), |(mark, what)| format!("{what} {}{}", mark.at, reason_of(mark)))
    };
    match reason {
        CloseReason::Stale => closes(purchase, step)
            .map_or("it is too late".to_owned(), |end| format!("its window ended on {end}")),
        CloseReason::Stopped => by(
            [
                (&purchase.stopped, "a stop of this purchase from"),
                (&buyer.stopped, "a stop of the buyer from"),
            ],
            "a stop that was lifted since",
        ),
        CloseReason::Started => by(
            [(&purchase.started, "the buyer had started on"), (&buyer.started, "the buyer had started on")],
            "the buyer had started",
        ),
        CloseReason::Repurchase => "a repurchase gets d0 only".to_owned(),
        CloseReason::History => format!("paid before go-live, {go_live}"),
        CloseReason::Rejected => "the mail service refused it three times".to_owned(),
        CloseReason::UnknownResult => {
            "nobody knows whether it arrived, and it may no longer be asked again with the same key"
                .to_owned()
        }
    }
}
