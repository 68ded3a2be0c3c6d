//! R13: what became of a mail after the mail service took it. "Accepted" means queued, not delivered.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::fact::{Fact, Whom};
use super::ids::{BuyerId, IdempotencyKey, SessionId, Step};
use super::ledger::{Ledger, MarkKind, Purchase, StepState};
use super::matter::{Matter, MatterKind};
use super::time::{Seconds, Timestamp};

/// How long a mail's fate is asked for.
const LOOK_BACK: Seconds = Seconds::days(7);

/// What became of a mail, and when stepmail learned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fate {
    /// The word.
    pub what: FateKind,
    /// When it was read.
    pub at: Timestamp,
}

/// The fates that matter; what else a service tells (queued, opened, clicked) says no more than these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FateKind {
    /// The buyer's mail server took it. A complaint can follow.
    Delivered,
    /// The buyer's mail server refused it for good.
    Bounced,
    /// The buyer called it spam.
    Complained,
    /// The service did not send it: the address bounced or complained before.
    Suppressed,
    /// The service could not send it.
    Failed,
}

impl FateKind {
    /// Whether nothing can follow.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Delivered)
    }

    /// The name in reports and reasons.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Bounced => "bounced",
            Self::Complained => "complained",
            Self::Suppressed => "suppressed",
            Self::Failed => "failed",
        }
    }

    /// What it means.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Bounced => "bounced: the buyer's mail server refused it for good",
            Self::Complained => "complained: the buyer called it spam",
            Self::Suppressed => "suppressed: not sent, since the address bounced or complained before",
            Self::Failed => "failed: it could not be sent",
        }
    }
}

/// A mail as the service's list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The service's id.
    pub id: String,
    /// Its recipients; none where they cannot be read.
    pub to: Option<Vec<BuyerId>>,
    /// Its subject.
    pub subject: String,
    /// When the service took it, by the service's clock; none where it cannot be read.
    pub created_at: Option<Timestamp>,
    /// What became of it, as far as is known.
    pub fate: Option<FateKind>,
}

/// Whose mail a listed one is: what its tags say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Of this purchase.
    pub session: SessionId,
    /// This step.
    pub step: Step,
}

/// The mails of this transport whose fate is still asked for, by the service's id.
fn open_fates<'a>(
    ledger: &'a Ledger,
    via: &'a str,
    now: Timestamp,
) -> impl Iterator<Item = (&'a Purchase, Step, Timestamp, &'a str, Option<FateKind>)> + 'a {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let steps = purchases
        .flat_map(|purchase| purchase.steps.iter().map(move |(step, state)| (purchase, step, state)));
    steps.filter_map(move |(purchase, step, state)| match state {
        StepState::Sent { at, message_id, via: through, fate }
            if through == via && now - *at <= LOOK_BACK && fate.is_none_or(|fate| !fate.what.is_final()) =>
        {
            Some((purchase, step, *at, message_id.as_str(), fate.map(|fate| fate.what)))
        }
        _ => None,
    })
}

/// The oldest mail whose fate is still to be learned: so far back the service's list is to be read. None where there is
/// no such mail.
#[must_use]
pub fn look_back_to(ledger: &Ledger, via: &str, now: Timestamp) -> Option<Timestamp> {
    open_fates(ledger, via, now).map(|(_, _, at, _, _)| at).min()
}

/// What the service's list tells that is not on record: fates, and what follows from them. Bounced and complained stop
/// the buyer and tell a human; a d0 that never left is told, since the buyer cannot log in.
#[must_use]
pub fn learned(ledger: &Ledger, via: &str, listed: &[Listed], now: Timestamp) -> Vec<Fact> {
    let told: HashMap<&str, FateKind> =
        listed.iter().filter_map(|mail| Some((mail.id.as_str(), mail.fate?))).collect();
    let mut facts = Vec::new();
    for (purchase, step, _, id, known) in open_fates(ledger, via, now) {
        let Some(what) = told.get(id).copied().filter(|what| known != Some(*what)) else { continue };
        let key = IdempotencyKey::Step(purchase.session.clone(), step);
        facts.push(Fact::Fated { key, fate: Fate { what, at: now } });
        if matches!(what, FateKind::Bounced | FateKind::Complained) {
            facts.push(Fact::Marked {
                whom: Whom::Address(purchase.email.clone()),
                mark: MarkKind::Stopped,
                at: now,
                reason: Some(what.name().to_owned()),
                event: None,
            });
        }
        facts.extend(
            matter(purchase, step, what, now).map(|matter| Fact::Matter { matter: Box::new(matter) }),
        );
    }
    facts
}

fn matter(purchase: &Purchase, step: Step, what: FateKind, now: Timestamp) -> Option<Matter> {
    let session = &purchase.session;
    let cannot_log_in = if step == Step::D0 { "; the buyer has not been told the way in" } else { "" };
    let (kind, text) = match what {
        FateKind::Bounced => (
            MatterKind::Bounced,
            format!(
                "{step} of session {session} bounced: the buyer's mail server refused it for good; nothing more is sent to \
                 this person{cannot_log_in}; reach this person another way; if the address works after all, lift the stop with \
                 `stepmail resume` and the address"
            ),
        ),
        FateKind::Complained => (
            MatterKind::Complained,
            format!(
                "the buyer of session {session} called {step} spam; nothing more is sent to this person, and nothing by \
                 hand should be, unless they ask"
            ),
        ),
        FateKind::Suppressed | FateKind::Failed if step == Step::D0 => (
            MatterKind::NotDelivered,
            format!(
                "the mail service took d0 of session {session} and did not send it ({}){cannot_log_in}; look there, and reach \
                 this person another way",
                what.in_words()
            ),
        ),
        _ => return None,
    };
    Some(Matter::new(kind, &format!("{session}.{step}"), now, Some(session.clone()), text))
}
