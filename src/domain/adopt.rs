//! R12: what it takes to go on with a ledger that is a copy, or older than one that was lost, or whose mails only the
//! outbox took so far.
//!
//! Nothing is sent twice: whatever may have left in the time the ledger knows nothing of is closed as `unknown_result`,
//! and a person settles it. The same holds for purchases that are told again and were paid before the ledger was
//! adopted: see [`may_have_left`], which admission asks too.

use super::admit::AHEAD_MAX;
use super::decide::{Verdict, verdict};
use super::fact::{Fact, apply};
use super::ids::{IdempotencyKey, Step};
use super::ledger::{Buyer, CloseReason, Gap, Ledger, OUTBOX, Purchase, StepState};
use super::matter::{Matter, MatterKind};
use super::policy::{Policy, window};
use super::time::{Seconds, Timestamp};

/// What to do with mails that only the outbox took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// They count as sent.
    Keep,
    /// They are sent to their buyers after all, while their windows last.
    Reopen,
}

/// Facts of a newer version's journal that this version can hold; the rest speaks of what only the newer one knew.
#[must_use]
pub fn what_fits(ledger: &Ledger, beyond: &[Fact]) -> Vec<Fact> {
    let mut trial = ledger.clone();
    beyond.iter().filter(|fact| apply(&mut trial, fact).is_ok()).cloned().collect()
}

/// The time a ledger that is not the newest knows nothing of: from the newest time recorded in it until now.
#[must_use]
pub fn gap(ledger: &Ledger, now: Timestamp) -> Gap {
    Gap { since: ledger.newest_recorded().unwrap_or(ledger.go_live).min(now), until: now }
}

/// Whether a step that is open may have left in that time, as far as its window says.
#[must_use]
pub fn may_have_left(paid_at: Timestamp, step: Step, gap: &Gap) -> bool {
    let window = window(step);
    // A purchase may be dated a little ahead of the clock that admits it, and its d0 leaves at once.
    let opens = if step == Step::D0 { paid_at - AHEAD_MAX } else { paid_at + window.opens };
    opens <= gap.until && window.closes.is_none_or(|end| paid_at + end > gap.since)
}

/// The facts that close what may have left in `gap`, and the matter that tells of them.
#[must_use]
pub fn doubts(ledger: &Ledger, gap: Gap, policy: &Policy) -> Vec<Fact> {
    let mut facts = Vec::new();
    for buyer in ledger.buyers.all() {
        for purchase in &buyer.purchases {
            for (step, state) in purchase.steps.iter() {
                let in_doubt = match state {
                    StepState::Pending { .. } | StepState::Planned { .. } => {
                        is_in_doubt(buyer, purchase, step, gap, policy)
                    }
                    // A person may have opened it again meanwhile.
                    StepState::Closed {
                        reason: CloseReason::Rejected | CloseReason::UnknownResult,
                        attempt,
                        ..
                    } => {
                        let known = attempt.as_ref().is_some_and(|attempt| attempt.last_at >= gap.until);
                        !known && may_have_left(purchase.paid_at, step, &gap)
                    }
                    StepState::Closed { .. } | StepState::Sent { .. } => false,
                };
                if in_doubt {
                    facts.push(Fact::MayHaveLeft {
                        key: IdempotencyKey::Step(purchase.session.clone(), step),
                        gap,
                    });
                }
            }
        }
    }
    if !facts.is_empty() {
        let text = format!(
            "this ledger was adopted in place of a newer one and knows nothing of the time from {} to {}; {} mails may \
             have left in it and are closed; look for them in the mail service's list, then settle them: `stepmail \
             resolve --since {} --until {} --sent` or `--not-sent`, or one by one by their keys",
            gap.since,
            gap.until,
            facts.len(),
            gap.since,
            gap.until + Seconds(1),
        );
        let matter = Matter::new(MatterKind::Adopted, &gap.until.unix().to_string(), gap.until, None, text);
        facts.push(Fact::Matter { matter: Box::new(matter) });
    }
    facts
}

/// The matters of an adoption of which every mail was settled since, by `resolve` or by a stop.
#[must_use]
pub fn settled(ledger: &Ledger) -> Vec<Fact> {
    let in_doubt = |state: &StepState| {
        matches!(state, StepState::Closed { reason: CloseReason::UnknownResult, attempt: Some(_), .. })
    };
    let is_open = |matter: &Matter| match &matter.session {
        Some(session) => ledger
            .buyers
            .purchase(session)
            .is_some_and(|(_, purchase)| purchase.steps.iter().any(|(_, state)| in_doubt(state))),
        // Those that were closed at the adoption itself.
        None => steps(ledger).any(|(_, _, state)| {
            // An accepted clock lowers the times of steps and of the gap alike, and not that of a matter.
            let then = |at: &Timestamp| *at == matter.at || ledger.gap.is_some_and(|gap| *at == gap.until);
            in_doubt(state) && matches!(state, StepState::Closed { at, .. } if then(at))
        }),
    };
    let adopted = ledger.matters.iter().filter(|matter| matter.kind == MatterKind::Adopted);
    adopted
        .filter(|matter| !is_open(matter))
        .map(|matter| Fact::MatterOver { kind: matter.kind, subject: matter.subject.clone() })
        .collect()
}

/// What a stop, a start or a repurchase closes anyway did not leave either: those were known before.
fn is_in_doubt(buyer: &Buyer, purchase: &Purchase, step: Step, gap: Gap, policy: &Policy) -> bool {
    let planned = matches!(purchase.steps.get(step), StepState::Planned { .. });
    if planned {
        return true;
    }
    let over = match verdict(buyer, purchase, step, policy, gap.until) {
        Verdict::Close(reason) => reason != CloseReason::Stale,
        _ => false,
    };
    !over && may_have_left(purchase.paid_at, step, &gap)
}

/// Whether mails that only the outbox took stand in the ledger as sent, and nobody has said yet what they count for.
#[must_use]
pub fn has_trial(ledger: &Ledger) -> bool {
    steps(ledger).any(|(_, _, state)| is_trial(ledger, state))
}

/// The facts that make a trial real.
#[must_use]
pub fn end_trial(ledger: &Ledger, trial: Trial, now: Timestamp) -> Vec<Fact> {
    if !has_trial(ledger) {
        return Vec::new();
    }
    let lasts =
        |purchase: &Purchase, step: Step| window(step).closes.is_none_or(|end| now < purchase.paid_at + end);
    let undone = steps(ledger)
        .filter(|(_, _, state)| trial == Trial::Reopen && (is_trial(ledger, state) || is_trial_plan(state)))
        .filter(|(purchase, step, _)| lasts(purchase, *step))
        .map(|(purchase, step, _)| Fact::TrialUndone {
            key: IdempotencyKey::Step(purchase.session.clone(), step),
        });
    undone.chain([Fact::TrialKept { at: now }]).collect()
}

fn is_trial(ledger: &Ledger, state: &StepState) -> bool {
    matches!(state, StepState::Sent { at, via, .. }
        if via == OUTBOX && ledger.outbox_kept.is_none_or(|kept| *at > kept))
}

fn is_trial_plan(state: &StepState) -> bool {
    matches!(state, StepState::Planned { message, .. } if message.via == OUTBOX)
}

fn steps(ledger: &Ledger) -> impl Iterator<Item = (&Purchase, Step, &StepState)> {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    purchases.flat_map(|purchase| purchase.steps.iter().map(move |(step, state)| (purchase, step, state)))
}
