//! Facts: the things that happened, of which the ledger is the sum.
//!
//! A fact belongs to one buyer, or is a matter, or a mark of the run itself. The journal holds facts, replay applies
//! them again, and a hand edit made meanwhile must not lose one: so [`apply`] never fails on a state it did not
//! expect. It fails only when the purchase a fact speaks of is gone.

use serde::{Deserialize, Serialize};

use super::event::Checkout;
use super::fate::Fate;
use super::ids::{Address, EventId, IdempotencyKey, SessionId, Step};
use super::keyed::KeyedHash;
use super::ledger::{
    Allowed, Attempt, CloseReason, FailedPayment, Frozen, Gap, Kind, LastRun, Ledger, LooseMark, LooseRefund,
    LooseStop, Mark, MarkKind, OUTBOX, PassedOver, Purchase, Refs, Refunded, Refusals, StepState, Waiting,
    WaitingFor, absent,
};
use super::matter::{Matter, MatterKind};
use super::newsletter::Standing;
use super::time::{Seconds, Timestamp};

/// How long it is remembered what a session of no concern was for: as long as a payment service tells of it by itself.
const PASSED_OVER_MAX: Seconds = Seconds::days(35);
/// How long it is remembered that a payment failed: by then no event of it comes.
const FAILED_MAX: Seconds = Seconds::days(100);
/// How long a refund waits for its purchase, which may have waited for its money for 65 days before.
const LOOSE_REFUND_MAX: Seconds = Seconds::days(100);

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fact {
    /// The ledger got its id.
    Named {
        /// Random.
        ledger_id: String,
    },
    /// R1 to R4: a purchase, with the steps that were closed at admission.
    Admitted {
        /// The whole record.
        purchase: Box<Purchase>,
    },
    /// R2: another event spoke of a known purchase; what was absent is filled in.
    Filled {
        /// What the event said.
        checkout: Box<Checkout>,
    },
    /// A checkout that is no purchase yet, new or said more fully.
    Waits {
        /// The whole record; it replaces an earlier one of the session.
        waiting: Box<Waiting>,
    },
    /// A checkout waits no more: it became a purchase, or its payment failed.
    WaitOver {
        /// Of this session.
        session: SessionId,
    },
    /// R1: the payment of a session failed, which ends its wait.
    PaymentFailed {
        /// Which, and when.
        failed: FailedPayment,
    },
    /// R3, R7, R16: a flag. The next run draws the consequences.
    Marked {
        /// Whom it concerns.
        whom: Whom,
        /// Which flag.
        mark: MarkKind,
        /// When it was set, or happened.
        at: Timestamp,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The event that said so, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<EventId>,
    },
    /// R7, R17: somebody who was forgotten is stopped. The address does not come back for that.
    ForgottenStopped {
        /// The hash of the address.
        address: KeyedHash,
        /// When it was set, or happened.
        at: Timestamp,
        /// The hash of the event that said so, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<KeyedHash>,
    },
    /// R7, R17: the stop of somebody who was forgotten is lifted.
    ForgottenResumed {
        /// The hash of the address.
        address: KeyedHash,
        /// When.
        at: Timestamp,
    },
    /// A stop of a purchase that is not known yet.
    StopKept {
        /// What is known of it.
        stop: Box<LooseStop>,
    },
    /// Such a stop has found its purchase, and names no other.
    StopLinked {
        /// The stop as it was kept.
        stop: Box<LooseStop>,
    },
    /// R7: money of a purchase went back, or stayed after all.
    Refunded {
        /// The purchase.
        session: SessionId,
        /// The refund.
        refund: Box<Refunded>,
        /// The events that said so.
        events: Vec<EventId>,
    },
    /// A refund of a purchase that is not known yet.
    RefundKept {
        /// What is known of it.
        refund: Box<LooseRefund>,
    },
    /// R14: where a purchase stands with the newsletter.
    Newsletter {
        /// The purchase.
        session: SessionId,
        /// Where it stands now.
        standing: Standing,
    },
    /// A session was for something else than what is meant.
    PassedOver {
        /// Which, and for what.
        over: PassedOver,
    },
    /// A mark for a session has found its purchase.
    MarkLinked {
        /// Of this session.
        session: SessionId,
    },
    /// A step was closed.
    Closed {
        /// Which mail.
        key: IdempotencyKey,
        /// When.
        at: Timestamp,
        /// Why.
        reason: CloseReason,
    },
    /// R8: about to be sent.
    Planned {
        /// Which mail.
        key: IdempotencyKey,
        /// When the plan was made.
        at: Timestamp,
        /// What will be sent.
        message: Box<Frozen>,
    },
    /// R9: the outcome of an attempt is unknown.
    Unknown {
        /// Which mail.
        key: IdempotencyKey,
        /// The attempt's time.
        at: Timestamp,
    },
    /// R9: nothing left the machine; the plan is removed.
    NotSent {
        /// Which mail.
        key: IdempotencyKey,
    },
    /// R9: the service refuses this mail; the plan is removed.
    Refused {
        /// Which mail.
        key: IdempotencyKey,
        /// The attempt's time.
        at: Timestamp,
        /// Of the content that was refused.
        hash: String,
        /// The service's reason, without personal data.
        reason: String,
    },
    /// The service took the mail.
    Sent {
        /// Which mail.
        key: IdempotencyKey,
        /// The attempt's time.
        at: Timestamp,
        /// The service's id.
        message_id: String,
        /// The transport.
        via: String,
    },
    /// R13: the mail service told what became of a mail it took.
    Fated {
        /// Which mail.
        key: IdempotencyKey,
        /// What, and when it was read.
        fate: Fate,
    },
    /// R15: a matter is told in the mail of another one, whose notice is being sent.
    Gathered {
        /// Its kind.
        kind: MatterKind,
        /// Its subject.
        subject: String,
        /// The id of the matter in whose mail it is told.
        with: String,
    },
    /// R7: a hand lifted the stop of whom it names; of a buyer the pause too.
    Resumed {
        /// Whom it concerns.
        whom: Whom,
        /// When.
        at: Timestamp,
    },
    /// R7: a step that a lifted stop had closed is open again.
    Reopened {
        /// Which mail.
        key: IdempotencyKey,
    },
    /// R10: a person says that no attempt of this mail left. It is open again, or closed without an attempt.
    FoundUnsent {
        /// Which mail.
        key: IdempotencyKey,
        /// When it was said, or closed.
        at: Timestamp,
        /// Why it stays closed; none where it is open again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        closed: Option<CloseReason>,
    },
    /// Something a human must know.
    Matter {
        /// The whole record.
        matter: Box<Matter>,
    },
    /// A condition has ended; if it comes back it is a new matter.
    MatterOver {
        /// Its kind.
        kind: MatterKind,
        /// Its subject.
        subject: String,
    },
    /// R4: a human's go.
    Allowed {
        /// When.
        at: Timestamp,
        /// Up to so many mails per run.
        mails: usize,
    },
    /// R12: a human accepted the clock; recorded times that lie ahead of it are lowered.
    ClockAccepted {
        /// The clock.
        now: Timestamp,
    },
    /// A run had something to record.
    Ran {
        /// Its `now`.
        at: Timestamp,
        /// Whose it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        installation: Option<String>,
        /// Where the ledger lay.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
    /// R12: this installation runs the ledger from now on.
    Adopted {
        /// Whose it is now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        installation: Option<String>,
        /// Where it lies now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// What it knows nothing of, if a newer version was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gap: Option<Gap>,
    },
    /// R12: a mail may have left in a time this ledger knows nothing of; its step is closed as `unknown_result`.
    MayHaveLeft {
        /// Which mail.
        key: IdempotencyKey,
        /// In that time.
        gap: Gap,
    },
    /// R12: a mail that only the outbox took is to be sent to its buyer after all.
    TrialUndone {
        /// Which mail.
        key: IdempotencyKey,
    },
    /// R12: mails that only the outbox took until then count as sent.
    TrialKept {
        /// When a person said so.
        at: Timestamp,
    },
}

impl Fact {
    /// The mail whose state it moves on, if it is a fact of one mail.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        match self {
            Self::Closed { key, .. }
            | Self::Planned { key, .. }
            | Self::Unknown { key, .. }
            | Self::NotSent { key }
            | Self::Refused { key, .. }
            | Self::MayHaveLeft { key, .. }
            | Self::TrialUndone { key }
            | Self::Reopened { key }
            | Self::FoundUnsent { key, .. }
            | Self::Fated { key, .. }
            | Self::Sent { key, .. } => Some(key),
            _ => None,
        }
    }
}

/// Whom a flag concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whom {
    /// A person, with all purchases past and to come.
    Address(Address),
    /// One purchase.
    Session(SessionId),
}

/// A fact whose purchase or matter is not in the ledger: somebody removed it by hand while a command worked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal speaks of {about}, which the ledger no longer holds")]
pub struct Unfit {
    /// The session, or the id of the matter.
    pub about: String,
}

/// Adds one fact to the ledger. Adding it twice is adding it once.
///
/// # Errors
/// [`Unfit`] when the purchase it speaks of is gone; the ledger is unchanged then.
pub fn apply(ledger: &mut Ledger, fact: &Fact) -> Result<(), Unfit> {
    match fact {
        Fact::Named { ledger_id } => ledger.ledger_id = Some(ledger_id.clone()),
        Fact::Admitted { purchase } => {
            ledger.buyers.add((**purchase).clone());
            ledger.failed.retain(|failed| failed.session != purchase.session);
        }
        Fact::Filled { checkout } => fill(purchase_mut(ledger, &checkout.session)?, checkout),
        Fact::Waits { waiting } => {
            ledger.waiting.retain(|other| other.checkout.session != waiting.checkout.session);
            ledger.waiting.push((**waiting).clone());
        }
        Fact::WaitOver { session } => ledger.waiting.retain(|waiting| waiting.checkout.session != *session),
        Fact::Marked { whom, mark, at, reason, event } => {
            set_mark(ledger, whom, *mark, &Mark { at: *at, reason: reason.clone() }, event.as_ref());
        }
        Fact::Resumed { whom, at } => lift(ledger, whom, *at),
        Fact::ForgottenStopped { address, at, event } => ledger.forgotten.stop(*address, *at, *event),
        Fact::ForgottenResumed { address, at } => ledger.forgotten.resume(*address, *at),
        Fact::StopKept { stop } => {
            if !ledger.loose_stops.contains(stop) {
                ledger.loose_stops.push((**stop).clone());
            }
        }
        Fact::StopLinked { stop } => ledger.loose_stops.retain(|other| *other != **stop),
        Fact::Refunded { session, refund, events } => {
            let purchase = purchase_mut(ledger, session)?;
            refund.add_to(&mut purchase.refunds);
            for event in events {
                remember(&mut purchase.events, Some(event));
            }
            ledger.loose_refunds.retain(|loose| loose.refund.id != refund.id);
        }
        Fact::Newsletter { session, standing } => {
            purchase_mut(ledger, session)?.newsletter = Some(standing.clone());
        }
        Fact::RefundKept { refund } => keep_refund(&mut ledger.loose_refunds, refund),
        Fact::PaymentFailed { failed } => fail(ledger, failed),
        Fact::PassedOver { over } => {
            let others = &mut ledger.passed_over;
            others.retain(|other| other.session != over.session && over.at - other.at <= PASSED_OVER_MAX);
            others.push(over.clone());
        }
        Fact::MarkLinked { session } => ledger.loose_marks.retain(|other| other.session != *session),
        Fact::Matter { matter } => {
            if ledger.matter(matter.kind, &matter.subject).is_none() {
                ledger.matters.push((**matter).clone());
            }
        }
        Fact::MatterOver { kind, subject } => {
            let gone = ledger.matter(*kind, subject).map(Matter::id);
            ledger.matters.retain(|matter| !matter.is(*kind, subject));
            if let Some(id) = gone {
                told_apart(ledger, &id);
            }
        }
        Fact::Gathered { kind, subject, with } => {
            let matter = ledger.matters.iter_mut().find(|matter| matter.is(*kind, subject));
            if let Some(matter) = matter.filter(|matter| matter.notice.is_open()) {
                matter.told_with = Some(with.clone());
            }
        }
        Fact::Allowed { at, mails } => ledger.allowed = Some(Allowed { at: *at, mails: *mails }),
        Fact::ClockAccepted { now } => lower_times(ledger, *now),
        Fact::Ran { at, installation, path } => {
            ledger.last_run =
                Some(LastRun { at: *at, installation: installation.clone(), path: path.clone() });
        }
        Fact::Adopted { installation, path, gap } => {
            if let Some(run) = &mut ledger.last_run {
                run.installation.clone_from(installation);
                run.path.clone_from(path);
            }
            ledger.gap = gap.or(ledger.gap);
        }
        Fact::TrialKept { at } => ledger.outbox_kept = Some(*at),
        Fact::Closed { key, .. }
        | Fact::Planned { key, .. }
        | Fact::Unknown { key, .. }
        | Fact::NotSent { key }
        | Fact::Refused { key, .. }
        | Fact::MayHaveLeft { key, .. }
        | Fact::TrialUndone { key }
        | Fact::Reopened { key }
        | Fact::FoundUnsent { key, .. }
        | Fact::Fated { key, .. }
        | Fact::Sent { key, .. } => {
            advance(state_mut(ledger, key)?, fact);
            if let IdempotencyKey::Notice(id) = key {
                share(ledger, id);
            }
        }
    }
    Ok(())
}

/// Moves one mail's state on. `sent` is final: nothing that is recorded later makes a mail unsent, but for one that
/// never left the machine.
fn advance(state: &mut StepState, fact: &Fact) {
    if let StepState::Sent { via, fate, .. } = state {
        match fact {
            Fact::TrialUndone { .. } if via == OUTBOX => *state = StepState::pending(),
            Fact::Fated { fate: told, .. } => *fate = Some(*told),
            _ => {}
        }
        return;
    }
    match fact {
        Fact::Planned { at, message, .. } => {
            let refused = state.refusals();
            *state = StepState::Planned {
                at: *at,
                first_unknown_at: None,
                last_unknown_at: None,
                message: message.clone(),
                refused,
            };
        }
        Fact::Sent { at, message_id, via, .. } => {
            let (message_id, via) = (message_id.clone(), via.clone());
            *state = StepState::Sent { at: *at, message_id, via, fate: None };
        }
        Fact::Closed { at, reason, .. } => {
            let attempt = match state {
                StepState::Closed { attempt, .. } => attempt.take(),
                _ => state.open_attempt(),
            };
            *state = StepState::Closed { at: *at, reason: *reason, attempt };
        }
        Fact::Unknown { at, .. } => {
            // The 24 hours of R9 count from the plan: its own attempt may be the one that arrived.
            if let StepState::Planned { at: planned, first_unknown_at, last_unknown_at, .. } = state {
                first_unknown_at.get_or_insert(*planned);
                *last_unknown_at = Some(*at);
            }
        }
        Fact::MayHaveLeft { gap, .. } => match state {
            // A stop keeps what it had closed; of that it is no longer sure that it never left.
            StepState::Closed { reason: CloseReason::Stopped, attempt: attempt @ None, .. } => {
                *attempt = Some(Attempt::within(gap));
            }
            StepState::Closed {
                reason: CloseReason::Rejected | CloseReason::UnknownResult, attempt, ..
            } => {
                let known = attempt.take();
                *state = StepState::may_have_left(gap, known);
            }
            StepState::Pending { .. } | StepState::Planned { .. } => {
                *state = StepState::may_have_left(gap, state.open_attempt());
            }
            StepState::Closed { .. } | StepState::Sent { .. } => {}
        },
        Fact::TrialUndone { .. } if state.open_attempt().is_some_and(|attempt| attempt.via == OUTBOX) => {
            *state = StepState::pending();
        }
        Fact::NotSent { .. } => {
            if matches!(state, StepState::Planned { .. }) {
                *state = StepState::Pending { refused: state.refusals() };
            }
        }
        Fact::Refused { at, hash, reason, .. } => {
            if matches!(state, StepState::Planned { .. }) {
                let before = state
                    .refusals()
                    .filter(|refused| refused.hash == *hash)
                    .map_or(0, |refused| refused.count);
                let refused =
                    Refusals { count: before + 1, hash: hash.clone(), at: *at, reason: reason.clone() };
                *state = StepState::Pending { refused: Some(refused) };
            }
        }
        Fact::Reopened { .. } => {
            // A step that an edit gave an attempt meanwhile may have been sent.
            if matches!(state, StepState::Closed { reason: CloseReason::Stopped, attempt: None, .. }) {
                *state = StepState::pending();
            }
        }
        Fact::FoundUnsent { at, closed, .. } if !matches!(state, StepState::Pending { .. }) => {
            *state = match closed {
                Some(reason) => StepState::closed(*at, *reason),
                None => StepState::Pending { refused: state.refusals() },
            };
        }
        _ => {}
    }
}

fn purchase_mut<'a>(ledger: &'a mut Ledger, session: &SessionId) -> Result<&'a mut Purchase, Unfit> {
    ledger.buyers.purchase_mut(session).ok_or_else(|| Unfit { about: format!("session {session}") })
}

fn state_mut<'a>(ledger: &'a mut Ledger, key: &IdempotencyKey) -> Result<&'a mut StepState, Unfit> {
    match key {
        IdempotencyKey::Step(session, step) => Ok(purchase_mut(ledger, session)?.steps.get_mut(*step)),
        IdempotencyKey::Notice(id) => ledger
            .matters
            .iter_mut()
            .find(|matter| matter.id() == *id)
            .map(|matter| &mut matter.notice)
            .ok_or_else(|| Unfit { about: format!("matter {id}") }),
    }
}

/// R15: what became of a notice became of every matter that was told in it. One that did not leave leaves them to be
/// gathered anew.
fn share(ledger: &mut Ledger, id: &str) {
    let Some(notice) = ledger.matters.iter().find(|matter| matter.id() == id).map(|m| m.notice.clone())
    else {
        return;
    };
    match notice {
        StepState::Planned { .. } => {}
        StepState::Pending { .. } => told_apart(ledger, id),
        StepState::Sent { .. } | StepState::Closed { .. } => {
            for matter in ledger.matters.iter_mut().filter(|matter| matter.told_with.as_deref() == Some(id)) {
                matter.notice = notice.clone();
                matter.told_with = None;
            }
        }
    }
}

/// The matters that were to be told in that one's mail wait for another.
fn told_apart(ledger: &mut Ledger, id: &str) {
    for matter in ledger.matters.iter_mut().filter(|matter| matter.told_with.as_deref() == Some(id)) {
        matter.told_with = None;
    }
}

fn fill(purchase: &mut Purchase, said: &Checkout) {
    absent(&mut purchase.name, said.name.as_ref());
    absent(&mut purchase.locale, said.locale.as_ref());
    absent(&mut purchase.billing, said.billing.as_ref());
    absent(&mut purchase.subscriber_id, said.subscriber_id.as_ref());
    absent(&mut purchase.amount, said.amount.as_ref());
    purchase.refs.fill_in(&said.refs);
    for (name, value) in &said.vars {
        purchase.vars.entry(name.clone()).or_insert_with(|| value.clone());
    }
    remember(&mut purchase.events, Some(&said.event));
}

fn remember(events: &mut Vec<EventId>, event: Option<&EventId>) {
    if let Some(event) = event
        && !events.contains(event)
    {
        events.push(event.clone());
    }
}

/// Sets one flag. The first one stays: stopped is final, and a second command is no second reason. But of events, the one that
/// happened first gives the reason, in whatever order they come.
fn set(flag: &mut Option<Mark>, kind: MarkKind, mark: &Mark, event: Option<&EventId>) {
    let is_earlier = |known: &Mark| (mark.at, &mark.reason) < (known.at, &known.reason);
    let is_event = kind == MarkKind::Stopped && event.is_some();
    if flag.as_ref().is_none_or(|known| is_event && is_earlier(known)) {
        *flag = Some(mark.clone());
    }
}

/// Sets a flag of a person or of a purchase.
fn set_mark(ledger: &mut Ledger, whom: &Whom, kind: MarkKind, mark: &Mark, event: Option<&EventId>) {
    match whom {
        Whom::Address(address) => {
            let buyer = ledger.buyers.entry(&address.buyer());
            let flag = match kind {
                MarkKind::Stopped => &mut buyer.stopped,
                MarkKind::Started => &mut buyer.started,
                MarkKind::Repurchase => &mut buyer.bought_before,
                MarkKind::Outcome => &mut buyer.outcome,
            };
            set(flag, kind, mark, event);
            remember(&mut buyer.events, event);
        }
        Whom::Session(session) => {
            if let Some(purchase) = ledger.buyers.purchase_mut(session) {
                let flag = match kind {
                    MarkKind::Stopped => &mut purchase.stopped,
                    MarkKind::Started => &mut purchase.started,
                    MarkKind::Outcome => &mut purchase.outcome,
                    MarkKind::Repurchase => {
                        if purchase.kind == Kind::First {
                            purchase.kind = Kind::Repurchase;
                        }
                        &mut purchase.marked_repurchase
                    }
                };
                set(flag, kind, mark, event);
                remember(&mut purchase.events, event);
            } else {
                keep_mark(ledger, session, kind, mark, event);
            }
        }
    }
}

/// Lifts the stop of a buyer or a session, and no other. That a stop's event was seen is remembered: one that comes again
/// does not stop again.
fn lift(ledger: &mut Ledger, whom: &Whom, at: Timestamp) {
    match whom {
        Whom::Address(address) => {
            // A stop outlives being forgotten (R17), but not being lifted.
            if let Some(hash) = ledger.forgotten.address_hash(&address.buyer()) {
                ledger.forgotten.resume(hash, at);
            }
            // Nobody is entered for a stop that is not there.
            if ledger.buyers.get(&address.buyer()).is_some() {
                let buyer = ledger.buyers.entry(&address.buyer());
                drop_until(&mut buyer.stopped, at);
                drop_until(&mut buyer.paused, at);
            }
        }
        Whom::Session(session) => {
            if let Some(purchase) = ledger.buyers.purchase_mut(session) {
                drop_until(&mut purchase.stopped, at);
            }
            let is_its = |stop: &LooseStop| stop.session.as_ref() == Some(session) && stop.at <= at;
            ledger.loose_stops.retain(|stop| !is_its(stop) || stop.event.is_some());
            for stop in ledger.loose_stops.iter_mut().filter(|stop| is_its(stop)) {
                stop.lifted.get_or_insert(at);
            }
        }
    }
}

/// Lifts a flag, unless it was set later: somebody set it by hand, while a command that died had lifted the one before.
fn drop_until(flag: &mut Option<Mark>, at: Timestamp) {
    if flag.as_ref().is_some_and(|mark| mark.at <= at) {
        *flag = None;
    }
}

/// Keeps a mark for a session that may still come.
fn keep_mark(ledger: &mut Ledger, session: &SessionId, kind: MarkKind, mark: &Mark, event: Option<&EventId>) {
    if kind == MarkKind::Stopped {
        let is_kept = |stop: &LooseStop| stop.session.as_ref() == Some(session) && stop.is_in_force();
        if !ledger.loose_stops.iter().any(is_kept) {
            ledger.loose_stops.push(LooseStop {
                at: mark.at,
                reason: mark.reason.clone(),
                event: event.cloned(),
                session: Some(session.clone()),
                refs: Refs::default(),
                asked: false,
                lifted: None,
            });
        }
    } else if !ledger.loose_marks.iter().any(|other| other.session == *session && other.mark == kind) {
        ledger.loose_marks.push(LooseMark {
            session: session.clone(),
            mark: kind,
            at: mark.at,
            reason: mark.reason.clone(),
        });
    }
}

/// Ends the wait of a session whose payment failed.
fn fail(ledger: &mut Ledger, failed: &FailedPayment) {
    let is_its =
        |waiting: &Waiting| waiting.checkout.session == failed.session && waiting.why == WaitingFor::Payment;
    ledger.waiting.retain(|waiting| !is_its(waiting));
    let others = &mut ledger.failed;
    others.retain(|other| failed.at - other.at <= FAILED_MAX);
    if !others.iter().any(|other| other.session == failed.session) {
        others.push(failed.clone());
    }
}

/// Keeps a refund for a purchase that may still come; those whose purchase has not come for so long are let go.
fn keep_refund(kept: &mut Vec<LooseRefund>, refund: &LooseRefund) {
    kept.retain(|other| refund.refund.at - other.refund.at <= LOOSE_REFUND_MAX);
    match kept.iter_mut().find(|other| other.refund.id == refund.refund.id) {
        Some(known) => {
            known.refund.merge(&refund.refund);
            known.refs.fill_in(&refund.refs);
            absent(&mut known.session, refund.session.as_ref());
            for event in &refund.events {
                remember(&mut known.events, Some(event));
            }
        }
        None => kept.push(refund.clone()),
    }
}

fn lower_times(ledger: &mut Ledger, now: Timestamp) {
    let lower_mark = |mark: &mut Option<Mark>| {
        if let Some(mark) = mark {
            mark.at = mark.at.min(now);
        }
    };
    if let Some(run) = &mut ledger.last_run {
        run.at = run.at.min(now);
    }
    if let Some(go) = &mut ledger.allowed {
        go.at = go.at.min(now);
    }
    if let Some(gap) = &mut ledger.gap {
        gap.until = gap.until.min(now);
    }
    if let Some(kept) = &mut ledger.outbox_kept {
        *kept = (*kept).min(now);
    }
    for buyer in ledger.buyers.all_mut() {
        lower_mark(&mut buyer.started);
        lower_mark(&mut buyer.bought_before);
        lower_mark(&mut buyer.outcome);
        for purchase in &mut buyer.purchases {
            lower_mark(&mut purchase.started);
            lower_mark(&mut purchase.marked_repurchase);
            lower_mark(&mut purchase.outcome);
            for step in Step::ALL {
                purchase.steps.get_mut(step).lower_to(now);
            }
        }
    }
    for matter in &mut ledger.matters {
        matter.notice.lower_to(now);
    }
}
