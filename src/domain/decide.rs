//! R5 to R7: what is to be closed for a buyer, and which one mail may leave now.
//!
//! Everything here is a function of one buyer's record, the policy and `now`. It is asked when a run makes its list,
//! and again immediately before each request.

use super::ids::{SessionId, Step};
use super::ledger::{Allowed, Buyer, CloseReason, Kind, Purchase, StepState};
use super::policy::{ONE_DAY, Policy, window};
use super::time::Timestamp;

/// What is to be done for one buyer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Steps that are over.
    pub closings: Vec<Closing>,
    /// R6: at most one mail.
    pub mail: Option<Due>,
}

/// A step that is over without having been sent, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    /// Of this purchase.
    pub session: SessionId,
    /// This step.
    pub step: Step,
    /// For this reason.
    pub reason: CloseReason,
}

/// A mail that may leave now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Of this purchase.
    pub session: SessionId,
    /// This step.
    pub step: Step,
    /// Whether an open plan is tried again, with the same key and the same bytes.
    pub retry: bool,
    /// When the purchase was paid.
    pub paid_at: Timestamp,
    /// When its window ends; d0 has no end.
    pub closes: Option<Timestamp>,
}

/// Where one step stands at `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Sent or closed.
    Settled,
    /// To be closed by the next run.
    Close(CloseReason),
    /// Not yet.
    Wait(Wait),
    /// May leave, unless another mail to this buyer comes first.
    Due {
        /// Whether an open plan is tried again.
        retry: bool,
    },
}

/// Why a step does not leave yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Its window opens then.
    Window(Timestamp),
    /// R6: another mail to this buyer left, or may have left, less than the spacing ago.
    Spacing(Timestamp),
    /// R6: this buyer has a d0 that has not been sent.
    UnsentD0,
    /// R7: a person must read a reply first.
    Paused,
}

/// Decides for one buyer.
#[must_use]
pub fn decide(buyer: &Buyer, policy: &Policy, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    let mut best: Option<((u8, Timestamp), &Purchase, Due)> = None;
    for purchase in &buyer.purchases {
        for (step, state) in purchase.steps.iter() {
            if !state.is_open() {
                continue;
            }
            match verdict(buyer, purchase, step, policy, now) {
                Verdict::Close(reason) => {
                    decision.closings.push(Closing { session: purchase.session.clone(), step, reason });
                }
                Verdict::Due { retry } => {
                    let due = Due {
                        session: purchase.session.clone(),
                        step,
                        retry,
                        paid_at: purchase.paid_at,
                        closes: closes(purchase, step),
                    };
                    let rank = due.rank_for_buyer();
                    let first = best
                        .as_ref()
                        .is_none_or(|(other, of, _)| (rank, &purchase.session) < (*other, &of.session));
                    if first {
                        best = Some((rank, purchase, due));
                    }
                }
                Verdict::Wait(_) | Verdict::Settled => {}
            }
        }
    }
    decision.mail = best.map(|(_, _, due)| due);
    decision
}

/// Where one step of a buyer stands.
#[must_use]
pub fn verdict(buyer: &Buyer, purchase: &Purchase, step: Step, policy: &Policy, now: Timestamp) -> Verdict {
    let (reason, retry) = match purchase.steps.get(step) {
        StepState::Sent { .. } | StepState::Closed { .. } => return Verdict::Settled,
        StepState::Pending { .. } => (closes_pending(buyer, purchase, step, now), false),
        plan @ StepState::Planned { .. } => (closes_plan(buyer, purchase, step, plan, policy, now), true),
    };
    if let Some(reason) = reason {
        return Verdict::Close(reason);
    }
    if step == Step::D0 {
        return Verdict::Due { retry };
    }
    let opens = purchase.paid_at + window(step).opens;
    if now < opens {
        return Verdict::Wait(Wait::Window(opens));
    }
    if buyer.paused.is_some() {
        return Verdict::Wait(Wait::Paused);
    }
    if has_unsent_d0(buyer) {
        return Verdict::Wait(Wait::UnsentD0);
    }
    match latest_other(buyer, purchase, step).map(|left| left + policy.spacing) {
        Some(free) if now < free => Verdict::Wait(Wait::Spacing(free)),
        _ => Verdict::Due { retry },
    }
}

/// R7's order for a step without an attempt. R3 and R4 come first: they hold whatever a hand says later.
fn closes_pending(buyer: &Buyer, purchase: &Purchase, step: Step, now: Timestamp) -> Option<CloseReason> {
    if purchase.kind == Kind::History {
        return Some(CloseReason::History);
    }
    if is_repurchase(buyer, purchase) && step != Step::D0 {
        return Some(CloseReason::Repurchase);
    }
    closes_by_hand(buyer, purchase, step)
        .or_else(|| closes(purchase, step).is_some_and(|end| now >= end).then_some(CloseReason::Stale))
}

/// R7's order for an open plan. Its mail may have left, so neither its window's end nor the service's memory running
/// out can make it `stale`: nobody knows.
fn closes_plan(
    buyer: &Buyer,
    purchase: &Purchase,
    step: Step,
    plan: &StepState,
    policy: &Policy,
    now: Timestamp,
) -> Option<CloseReason> {
    let forgotten = plan
        .open_attempt()
        .and_then(|attempt| policy.retention.ends(attempt.first_at))
        .is_some_and(|end| now >= end);
    let over = closes(purchase, step).is_some_and(|end| now >= end);
    closes_by_hand(buyer, purchase, step)
        .or_else(|| (is_repurchase(buyer, purchase) && step != Step::D0).then_some(CloseReason::Repurchase))
        .or_else(|| (forgotten || over).then_some(CloseReason::UnknownResult))
}

fn closes_by_hand(buyer: &Buyer, purchase: &Purchase, step: Step) -> Option<CloseReason> {
    if buyer.stopped.is_some() || purchase.stopped.is_some() {
        Some(CloseReason::Stopped)
    } else if step == Step::D3 && (buyer.started.is_some() || purchase.started.is_some()) {
        Some(CloseReason::Started)
    } else {
        None
    }
}

fn is_repurchase(buyer: &Buyer, purchase: &Purchase) -> bool {
    purchase.kind == Kind::Repurchase || buyer.bought_before.is_some()
}

/// When the step's window ends; none for d0.
#[must_use]
pub fn closes(purchase: &Purchase, step: Step) -> Option<Timestamp> {
    window(step).closes.map(|span| purchase.paid_at + span)
}

/// A d0 that is still to leave, be it late, refused or held by a template fault, holds the later mails: nobody is asked
/// how far they came before they were told the way in.
fn has_unsent_d0(buyer: &Buyer) -> bool {
    buyer.purchases.iter().any(|purchase| {
        purchase.steps.d0.is_open()
            && purchase.kind != Kind::History
            && closes_by_hand(buyer, purchase, Step::D0).is_none()
    })
}

/// When another mail to this buyer last left or may have left. A plan's own attempts do not count against it.
fn latest_other(buyer: &Buyer, purchase: &Purchase, step: Step) -> Option<Timestamp> {
    let mails =
        buyer.purchases.iter().flat_map(|other| other.steps.iter().map(move |(s, state)| (other, s, state)));
    mails
        .filter(|(other, s, _)| !(*s == step && other.session == purchase.session))
        .filter_map(|(_, _, state)| state.last_left_at())
        .max()
}

impl Due {
    /// R6, for one buyer: a d0 first, be it new or open, by payment; then an open plan of another step; then a new step.
    fn rank_for_buyer(&self) -> (u8, Timestamp) {
        match (self.step, self.retry) {
            (Step::D0, _) => (0, self.paid_at),
            (_, true) => (1, self.paid_at),
            (_, false) => (2, self.closes.unwrap_or(self.paid_at)),
        }
    }

    /// DESIGN 4, over all buyers: d0, then the window that ends soonest; retries last, so that a mail that always fails
    /// starves nobody.
    fn rank_over_all(&self) -> (u8, Timestamp, &SessionId) {
        let class = if self.retry { 2 } else { u8::from(self.step != Step::D0) };
        (class, self.closes.unwrap_or(self.paid_at), &self.session)
    }
}

/// Sorts the mails of a run into the order in which they are sent.
pub fn sort_for_sending(mails: &mut [Due]) {
    mails.sort_by(|a, b| a.rank_over_all().cmp(&b.rank_over_all()));
}

/// R4: whether the brake counts this mail. A d0 within a day of payment is what the program is for, and a retry was let
/// through before.
#[must_use]
pub fn counts_for_brake(mail: &Due, now: Timestamp) -> bool {
    let fresh_d0 = mail.step == Step::D0 && now - mail.paid_at <= ONE_DAY;
    !mail.retry && !fresh_d0
}

/// R4: how many mails a run may send unasked, or as a human allowed within the last day.
#[must_use]
pub fn mails_allowed(policy: &Policy, allowed: Option<&Allowed>, now: Timestamp) -> usize {
    match allowed {
        Some(go) if now - go.at < ONE_DAY => go.mails.max(policy.max_mails_per_run),
        _ => policy.max_mails_per_run,
    }
}
