//! R10, R13: what a mail service's list proves about a mail whose result is unknown. "Not in the list" is a proof only
//! where the list was read back to before the first attempt, and is the list of the account that sent.

use super::decide::closes;
use super::fact::Fact;
use super::fate::{Listed, Tagged};
use super::ids::{Address, IdempotencyKey, SessionId, Step};
use super::ledger::{Ledger, StepState};
use super::policy::Retention;
use super::settle::{BY_HAND, Found, resolve};
use super::time::{Seconds, Timestamp};

/// How far the service's clock may lie from ours, and how late a request may arrive.
pub const SLACK: Seconds = Seconds::minutes(10);

/// A mail that may have left, to be looked for in the service's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Of this purchase.
    pub session: SessionId,
    /// This step.
    pub step: Step,
    /// To this address.
    pub to: Address,
    /// With this subject; empty where it is not known.
    pub subject: String,
    /// The first attempt that may have arrived.
    pub first_at: Timestamp,
    /// The latest.
    pub last_at: Timestamp,
}

/// What the list says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Truth {
    /// The service took it.
    Sent {
        /// Under this id.
        id: String,
        /// When, by its clock; none where that cannot be read.
        at: Option<Timestamp>,
    },
    /// The service never took it.
    NotSent,
    /// It is not there, but its last try may still be on its way: to be asked again.
    NotYet,
    /// The list proves nothing, for this reason.
    NotKnown(String),
}

impl Question {
    /// The question about a step that may have left through `via`. None where it was sent, never tried, or tried through
    /// another service. What was lost with a newer ledger may have left through any.
    #[must_use]
    pub fn of(ledger: &Ledger, session: &SessionId, step: Step, via: &str) -> Option<Self> {
        let (_, purchase) = ledger.buyers.purchase(session)?;
        let state = purchase.steps.get(step);
        let attempt = match state {
            StepState::Planned { .. } => state.open_attempt()?,
            StepState::Closed { attempt, .. } => attempt.clone()?,
            StepState::Pending { .. } | StepState::Sent { .. } => return None,
        };
        let to = match state {
            StepState::Planned { message, .. } => message.to.clone(),
            _ => purchase.email.clone(),
        };
        (attempt.via == via || attempt.is_of_a_gap()).then(|| Self {
            session: session.clone(),
            step,
            to,
            subject: attempt.subject,
            first_at: attempt.first_at,
            last_at: attempt.last_at,
        })
    }

    /// The mail's key.
    #[must_use]
    pub fn key(&self) -> IdempotencyKey {
        IdempotencyKey::Step(self.session.clone(), self.step)
    }

    /// The list must be read until a mail from before this was seen.
    #[must_use]
    pub fn back_to(&self) -> Timestamp {
        self.first_at - SLACK
    }

    /// The listed mails that may be this one: to the same buyer as far as can be read, and not from before. The tags of each say whose it is;
    /// those with the same subject are asked first. A subject that the service may have written otherwise rules nothing
    /// out.
    #[must_use]
    pub fn candidates<'a>(&self, listed: &'a [Listed]) -> Vec<&'a Listed> {
        let to = self.to.buyer();
        let mut candidates: Vec<&Listed> = listed
            .iter()
            .filter(|mail| {
                mail.to.as_ref().is_none_or(|listed| listed.contains(&to))
                    && mail.created_at.is_none_or(|at| at >= self.back_to())
            })
            .collect();
        candidates.sort_by_key(|mail| mail.subject != self.subject);
        candidates
    }

    /// Whether a listed mail with these tags is this one; none where it carries no tags and cannot be told.
    #[must_use]
    pub fn is_answered_by(&self, mail: &Listed, tags: Option<&Tagged>) -> Option<bool> {
        match tags {
            Some(tags) => Some(tags.session == self.session && tags.step == self.step),
            // A mail that the seller wrote by hand carries none either, but not our subject.
            None if mail.subject == self.subject || mail.subject.is_empty() || self.subject.is_empty() => {
                None
            }
            None => Some(false),
        }
    }

    /// Whether a try that was made last may still be on its way into the list.
    #[must_use]
    pub fn is_too_fresh(&self, now: Timestamp) -> bool {
        now < self.last_at + SLACK
    }
}

/// What follows from the truth for an open plan that is over. None where nobody knows: then it is closed for a human. No
/// facts where it is to be asked again: then it stays as it is for now.
///
/// A mail that never arrived has its time anew while its window lasts: the same bytes under the same key, so that a
/// service that still remembers the key answers as it did then, and no other body can be in conflict with it. Where the
/// service remembers no keys it is open again as if it had never been tried.
#[must_use]
pub fn settle_plan(
    ledger: &Ledger,
    session: &SessionId,
    step: Step,
    told: &Truth,
    retention: Retention,
    now: Timestamp,
) -> Option<Vec<Fact>> {
    let (_, purchase) = ledger.buyers.purchase(session)?;
    let StepState::Planned { message, .. } = purchase.steps.get(step) else { return None };
    let is_over = closes(purchase, step).is_some_and(|end| now >= end);
    let has_keys = retention.ends(now).is_none_or(|end| now < end);
    let found = match told {
        Truth::NotKnown(_) => return None,
        Truth::NotYet => return Some(Vec::new()),
        Truth::Sent { id, .. } => Found::Sent(Some(id.clone())),
        Truth::NotSent if is_over || !has_keys => Found::NotSent,
        Truth::NotSent => {
            let key = IdempotencyKey::Step(session.clone(), step);
            return Some(vec![Fact::Planned { key, at: now, message: message.clone() }]);
        }
    };
    resolve(ledger, session, step, &found, now).ok().map(|settlement| settlement.facts)
}

/// Whether a list that was read back to `reached` can be that of the account that sent: where this ledger knows of mails
/// that were sent since, at least one of them must be there. A key of another team would prove that nothing was ever sent.
#[must_use]
pub fn is_our_account(ledger: &Ledger, via: &str, listed: &[Listed], reached: Timestamp) -> bool {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let states = purchases.flat_map(|purchase| purchase.steps.iter().map(|(_, state)| state));
    let mut sent = states
        .filter_map(|state| match state {
            StepState::Sent { at, message_id, via: through, .. }
                if through == via && message_id != BY_HAND && *at >= reached + SLACK =>
            {
                Some(message_id)
            }
            _ => None,
        })
        .peekable();
    sent.peek().is_none() || sent.any(|id| listed.iter().any(|mail| mail.id == *id))
}
