//! What a hand settles: the steps that lifting a stop opens again (R7), and the results that a person knows and
//! stepmail does not (R10). It finds the facts; what they mean for the mails `decide` says.

use super::adopt::may_have_left;
use super::decide::closes;
use super::fact::{Fact, Whom};
use super::ids::{IdempotencyKey, SessionId, Step};
use super::ledger::{Buyer, CloseReason, Ledger, LooseStop, Purchase, StepState};
use super::matter::MatterKind;
use super::time::Timestamp;

/// The message id of a mail that a person knows to be sent, and the transport where none is known.
pub const BY_HAND: &str = "by-hand";

/// What lifting a stop comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resumption {
    /// To be recorded together; none where whom it names is neither stopped nor paused.
    pub facts: Vec<Fact>,
    /// What was lifted.
    pub lifted: Lifted,
    /// The steps that this stop had closed, in the order of purchases and days.
    pub steps: Vec<(SessionId, Step, Fate)>,
    /// Purchases of the buyer with a stop of their own, which stays.
    pub sessions_stopped: Vec<SessionId>,
    /// A session was named, and its buyer has a stop, which stays.
    pub buyer_stopped: bool,
    /// A session was named, and its buyer has a pause, which stays.
    pub buyer_paused: bool,
}

/// Which flags are lifted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifted {
    /// The stop.
    pub stop: bool,
    /// The pause, which only a buyer has.
    pub pause: bool,
}

/// What becomes of a step that a stop had closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is open again.
    Reopened,
    /// An attempt of it may have arrived: a person must settle it first.
    Unknown,
    /// Its window ended then.
    Over(Timestamp),
}

/// R7: lifts the stop that is named, address or session, and finds the steps closed by it whose window has not ended at
/// `now`. One that another stop still holds stays closed, and one whose outcome is unknown.
#[must_use]
pub fn resume(ledger: &Ledger, whom: &Whom, now: Timestamp) -> Resumption {
    let (buyer, concerned): (Option<&Buyer>, Vec<&Purchase>) = match whom {
        Whom::Address(address) => {
            let buyer = ledger.buyers.get(&address.buyer());
            (buyer, buyer.map_or(Vec::new(), |buyer| buyer.purchases.iter().collect()))
        }
        Whom::Session(session) => match ledger.buyers.purchase(session) {
            Some((buyer, purchase)) => (Some(buyer), vec![purchase]),
            None => (None, Vec::new()),
        },
    };
    let mut resumption = Resumption::default();
    match whom {
        Whom::Address(_) => {
            resumption.lifted.stop = buyer.is_some_and(|buyer| buyer.stopped.is_some());
            resumption.lifted.pause = buyer.is_some_and(|buyer| buyer.paused.is_some());
            let stopped = concerned.iter().filter(|purchase| purchase.stopped.is_some());
            resumption.sessions_stopped = stopped.map(|purchase| purchase.session.clone()).collect();
        }
        Whom::Session(session) => {
            resumption.lifted.stop = concerned.iter().any(|purchase| purchase.stopped.is_some())
                || stops_to_come(ledger, session).next().is_some();
            resumption.buyer_stopped = buyer.is_some_and(|buyer| buyer.stopped.is_some());
            resumption.buyer_paused = buyer.is_some_and(|buyer| buyer.paused.is_some());
        }
    }
    let Lifted { stop, pause } = resumption.lifted;
    if stop || pause {
        // What stands there is lifted, also if a clock that was ahead has dated it; what is set later is not.
        let flags = match whom {
            Whom::Address(_) => buyer.map_or(Vec::new(), |buyer| vec![&buyer.stopped, &buyer.paused]),
            Whom::Session(_) => concerned.iter().map(|purchase| &purchase.stopped).collect(),
        };
        let to_come = match whom {
            Whom::Session(session) => stops_to_come(ledger, session).map(|stop| stop.at).max(),
            Whom::Address(_) => None,
        };
        let set = flags.into_iter().flatten().map(|mark| mark.at).max().max(to_come);
        resumption.facts.push(Fact::Resumed { whom: whom.clone(), at: set.map_or(now, |set| set.max(now)) });
    }
    if !stop {
        return resumption;
    }
    for purchase in concerned {
        let is_held = resumption.buyer_stopped || resumption.sessions_stopped.contains(&purchase.session);
        if !is_held {
            resumption.reopen(ledger, purchase, now);
        }
    }
    if let Whom::Session(session) = whom
        && stops_to_come(ledger, session).next().is_some()
    {
        resumption.facts.extend(over(ledger, MatterKind::UnlinkedStop, session.as_str()));
    }
    resumption
}

impl Resumption {
    fn reopen(&mut self, ledger: &Ledger, purchase: &Purchase, now: Timestamp) {
        let mut reopened = false;
        for (step, state) in purchase.steps.iter() {
            let StepState::Closed { at, reason: CloseReason::Stopped, attempt } = state else { continue };
            // R12: a newer version of this ledger, which was lost, may have lifted the stop and sent the mail.
            let lost =
                ledger.gap.filter(|gap| *at <= gap.until && may_have_left(purchase.paid_at, step, gap));
            let fate = match (attempt, closes(purchase, step)) {
                (Some(_), _) => Fate::Unknown,
                (None, _) if lost.is_some() => Fate::Unknown,
                (None, Some(end)) if now >= end => Fate::Over(end),
                (None, _) => Fate::Reopened,
            };
            let key = IdempotencyKey::Step(purchase.session.clone(), step);
            if fate == Fate::Reopened {
                reopened = true;
                self.facts.push(Fact::Reopened { key });
            } else if let (None, Some(gap)) = (attempt, lost) {
                self.facts.push(Fact::MayHaveLeft { key, gap });
            }
            self.steps.push((purchase.session.clone(), step, fate));
        }
        if reopened {
            self.facts.extend(over(ledger, MatterKind::StoppedBuyer, purchase.session.as_str()));
        }
    }
}

/// The stops that wait for a session which is not known yet.
pub fn stops_to_come<'a>(
    ledger: &'a Ledger,
    session: &'a SessionId,
) -> impl Iterator<Item = &'a LooseStop> + 'a {
    ledger.loose_stops.iter().filter(move |stop| stop.session.as_ref() == Some(session) && stop.is_in_force())
}

/// What a person found out about a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was sent, under this message id if that is known.
    Sent(Option<String>),
    /// It never left.
    NotSent,
}

/// What a person's word comes to for one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// To be recorded together.
    pub facts: Vec<Fact>,
    /// What the step is then.
    pub becomes: Becomes,
}

/// What a settled step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Becomes {
    /// What it was: twice is once.
    AsItWas,
    /// Sent, for good.
    Sent,
    /// To be sent, if the rules still say so.
    Pending,
    /// Closed for this reason, and no attempt of it counts any more.
    Closed(CloseReason),
}

/// Why a person's word is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such purchase.
    #[error("is not in the ledger; check the spelling and the ledger")]
    NotKnown,
    /// It was accepted, or a person said so.
    #[error("is sent, and sent is final: a mail that left cannot be sent again under its key")]
    SentIsFinal,
    /// It was sent under another message id.
    #[error("is sent already, under another message id; the one on record stands")]
    OtherId,
    /// R9: the service refused it.
    #[error("was refused by the mail service, so it cannot have been sent; `--not-sent` opens it again")]
    ServiceSaidNo,
    /// There is nothing to settle.
    #[error("was never handed to a mail service as far as is known, so it cannot have been sent")]
    NeverTried,
}

/// R10: settles one step by what a person found. What is settled already stays as it is.
///
/// # Errors
/// [`Refusal`]: nothing may be recorded for it.
pub fn resolve(
    ledger: &Ledger,
    session: &SessionId,
    step: Step,
    found: &Found,
    now: Timestamp,
) -> Result<Settlement, Refusal> {
    let (buyer, purchase) = ledger.buyers.purchase(session).ok_or(Refusal::NotKnown)?;
    let state = purchase.steps.get(step);
    let as_it_was = Settlement { facts: Vec::new(), becomes: Becomes::AsItWas };
    if let StepState::Sent { message_id, .. } = state {
        return match found {
            Found::NotSent => Err(Refusal::SentIsFinal),
            Found::Sent(Some(id)) if id != message_id => Err(Refusal::OtherId),
            Found::Sent(_) => Ok(as_it_was),
        };
    }
    if !is_unsettled(state) {
        return if *found == Found::NotSent { Ok(as_it_was) } else { Err(Refusal::NeverTried) };
    }
    let key = IdempotencyKey::Step(session.clone(), step);
    let (fact, becomes) = match found {
        Found::Sent(id) => (sent(key, state, id.as_deref(), now)?, Becomes::Sent),
        Found::NotSent => {
            let (at, reason) = closed_again(buyer, purchase, step, now).unzip();
            let fact = Fact::FoundUnsent { key, at: at.unwrap_or(now), closed: reason };
            (fact, reason.map_or(Becomes::Pending, Becomes::Closed))
        }
    };
    let subject = format!("{session}.{step}");
    let kinds = [MatterKind::UnknownResult, MatterKind::Rejected];
    let facts = [fact].into_iter().chain(kinds.into_iter().filter_map(|kind| over(ledger, kind, &subject)));
    Ok(Settlement { facts: facts.collect(), becomes })
}

/// R10: the closed steps that a person may settle and whose attempt touches `since <= t < until`; of one without an
/// attempt its closing counts. An open plan is still the run's to settle.
#[must_use]
pub fn unsettled_between(ledger: &Ledger, since: Timestamp, until: Timestamp) -> Vec<(SessionId, Step)> {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let steps = purchases
        .flat_map(|purchase| purchase.steps.iter().map(move |(step, state)| (purchase, step, state)));
    let in_range = |state: &StepState| {
        let StepState::Closed { at, attempt, .. } = state else { return false };
        let (first, last) =
            attempt.as_ref().map_or((*at, *at), |attempt| (attempt.first_at, attempt.last_at));
        is_unsettled(state) && first < until && last >= since
    };
    steps
        .filter(|(.., state)| in_range(state))
        .map(|(purchase, step, _)| (purchase.session.clone(), step))
        .collect()
}

/// Whether a person may say what became of it: an attempt of it may have arrived, or a person was asked.
#[must_use]
pub fn is_unsettled(state: &StepState) -> bool {
    match state {
        StepState::Planned { .. } => true,
        StepState::Closed { reason, attempt, .. } => {
            attempt.is_some() || matches!(reason, CloseReason::UnknownResult | CloseReason::Rejected)
        }
        StepState::Pending { .. } | StepState::Sent { .. } => false,
    }
}

/// The fact that an unsettled step was sent, as of its last attempt: from then the two days of R6 count.
fn sent(key: IdempotencyKey, state: &StepState, id: Option<&str>, now: Timestamp) -> Result<Fact, Refusal> {
    let attempt = match state {
        StepState::Closed { reason: CloseReason::Rejected, .. } => return Err(Refusal::ServiceSaidNo),
        StepState::Closed { attempt, .. } => attempt.clone(),
        plan => plan.open_attempt(),
    };
    let (at, via) = match (attempt, state) {
        (Some(attempt), _) => (attempt.last_at, attempt.via),
        // Later than any attempt can have been.
        (None, StepState::Closed { at, .. }) => (*at, BY_HAND.to_owned()),
        (None, _) => (now, BY_HAND.to_owned()),
    };
    Ok(Fact::Sent { key, at, message_id: id.unwrap_or(BY_HAND).to_owned(), via })
}

/// Why a step stays closed though it never left, and since when; none where it is open again.
fn closed_again(
    buyer: &Buyer,
    purchase: &Purchase,
    step: Step,
    now: Timestamp,
) -> Option<(Timestamp, CloseReason)> {
    if let StepState::Closed { at, reason, .. } = purchase.steps.get(step) {
        let stays = match reason {
            // A stop that was lifted since no longer closes anything.
            CloseReason::Stopped => buyer.stopped.is_some() || purchase.stopped.is_some(),
            CloseReason::Started | CloseReason::Repurchase | CloseReason::History => true,
            CloseReason::Stale | CloseReason::Rejected | CloseReason::UnknownResult => false,
        };
        if stays {
            return Some((*at, *reason));
        }
    }
    closes(purchase, step).filter(|end| now >= *end).map(|_| (now, CloseReason::Stale))
}

/// The fact that a matter is over, where there is one.
fn over(ledger: &Ledger, kind: MatterKind, subject: &str) -> Option<Fact> {
    ledger.matter(kind, subject).map(|_| Fact::MatterOver { kind, subject: subject.to_owned() })
}
