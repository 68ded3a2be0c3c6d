//! What comes next for one buyer, in words: what the next run closes and sends, or else when the next mail may leave.

use crate::domain::decide::{Verdict, Wait, decide, verdict};
use crate::domain::ledger::Buyer;
use crate::domain::policy::Policy;
use crate::domain::time::Timestamp;

/// A line for each closing and for the mail of the next run; without either, one line for what comes after.
#[must_use]
pub fn next(buyer: &Buyer, policy: &Policy, now: Timestamp) -> Vec<String> {
    let decision = decide(buyer, policy, now);
    let closings = decision.closings.iter().map(|closing| {
        format!("the next run closes {} of {}: {}", closing.step, closing.session, closing.reason.name())
    });
    let mail = decision.mail.iter().map(|due| {
        let what = if due.retry { "tries again" } else { "sends" };
        format!("the next run {what} {} of {}", due.step, due.session)
    });
    let mut lines: Vec<String> = closings.chain(mail).collect();
    if decision.mail.is_none() {
        lines.push(after(buyer, policy, now));
    }
    lines
}

/// What a purchase of somebody would do who is known by marks alone.
fn nothing_bought(buyer: &Buyer) -> &'static str {
    if buyer.stopped.is_some() {
        "nothing bought yet; a purchase is closed as stopped"
    } else if buyer.bought_before.is_some() {
        "nothing bought yet; a purchase gets d0 only"
    } else {
        "nothing bought yet; a purchase starts its mails"
    }
}

/// The first mail that may leave later.
fn after(buyer: &Buyer, policy: &Policy, now: Timestamp) -> String {
    let mut first: Option<(Timestamp, String)> = None;
    let mut waits = false;
    for purchase in &buyer.purchases {
        for (step, _) in purchase.steps.iter() {
            match verdict(buyer, purchase, step, policy, now) {
                Verdict::Wait(Wait::Window(at) | Wait::Spacing(at))
                    if first.as_ref().is_none_or(|(soonest, _)| at < *soonest) =>
                {
                    first = Some((at, format!("{step} of {}", purchase.session)));
                }
                Verdict::Wait(Wait::Paused | Wait::UnsentD0) => waits = true,
                _ => {}
            }
        }
    }
    match (first, buyer.paused.is_some()) {
        (_, true) => "the buyer is paused: nothing but d0 is sent until `stepmail resume`".to_owned(),
        (Some((at, what)), false) => format!("nothing is due; the next is {what}, from {at}"),
        (None, false) if waits => "nothing is due until d0 has been sent".to_owned(),
        (None, false) if buyer.purchases.is_empty() => nothing_bought(buyer).to_owned(),
        (None, false) => "nothing more is to come".to_owned(),
    }
}
