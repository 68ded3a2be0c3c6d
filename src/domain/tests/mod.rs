//! The rules as buyers see them. Test names carry the rule (DESIGN 3) or the case that they come from.
//!
//! This file is the short builder: fixed instants, a buyer, purchases, states, and a shop that takes batches in.

mod admit;
mod adopt;
mod decide;
mod fact;
mod forgotten;
mod newsletter;
mod properties;
mod settle;

use super::decide::{Decision, decide as ask};
use super::event::{Amount, Checkout, Incoming, Payment, StopSignal, StopTarget};
use super::fact::{Fact, Whom, apply};
use super::ids::{Address, EventId, IdempotencyKey, SessionId, Step};
use super::ledger::{
    Attempt, Buyer, CloseReason, Frozen, Kind, Ledger, Mark, MarkKind, Purchase, Refs, Refunded, Refusals,
    StepState, Steps,
};
use super::policy::{Policy, Retention};
use super::time::{Seconds, Timestamp};

/// The buyer of most tests.
const BUYER: &str = "buyer@example.com";
const ONE: Seconds = Seconds(1);

fn t(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

/// When the first purchase of most tests was paid.
fn paid_at() -> Timestamp {
    t("2026-09-21T01:00:00Z")
}

fn days(n: i64) -> Seconds {
    Seconds::days(n)
}

fn hours(n: i64) -> Seconds {
    Seconds::hours(n)
}

fn plus(span: Seconds, more: Seconds) -> Seconds {
    Seconds(span.0 + more.0)
}

fn minus(span: Seconds, less: Seconds) -> Seconds {
    Seconds(span.0 - less.0)
}

fn sid(text: &str) -> SessionId {
    text.parse().unwrap()
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn key(session: &str, step: Step) -> IdempotencyKey {
    IdempotencyKey::Step(sid(session), step)
}

fn mark(at: Timestamp) -> Mark {
    Mark { at, reason: Some("asked".into()) }
}

fn buyer(purchases: impl IntoIterator<Item = Purchase>) -> Buyer {
    Buyer {
        address: address(BUYER).buyer(),
        stopped: None,
        paused: None,
        started: None,
        bought_before: None,
        outcome: None,
        events: Vec::new(),
        purchases: purchases.into_iter().collect(),
    }
}

fn purchase(session: &str, paid_at: Timestamp) -> Purchase {
    Purchase {
        session: sid(session),
        email: address(BUYER),
        paid_at,
        kind: Kind::First,
        name: None,
        locale: None,
        billing: None,
        subscriber_id: None,
        amount: None,
        events: Vec::new(),
        refs: Refs::default(),
        vars: std::collections::BTreeMap::new(),
        stopped: None,
        started: None,
        marked_repurchase: None,
        outcome: None,
        refunds: Vec::new(),
        newsletter: None,
        steps: Steps::pending(),
    }
}

impl Purchase {
    fn with(mut self, step: Step, state: StepState) -> Self {
        *self.steps.get_mut(step) = state;
        self
    }

    /// A purchase whose way in left at once.
    fn let_in(self) -> Self {
        let at = self.paid_at;
        self.with(Step::D0, sent(at))
    }

    fn again(mut self) -> Self {
        self.kind = Kind::Repurchase;
        for step in [Step::D3, Step::D7, Step::D14] {
            *self.steps.get_mut(step) = StepState::closed(self.paid_at, CloseReason::Repurchase);
        }
        self
    }
}

fn frozen() -> Frozen {
    Frozen { via: "post".into(), to: address(BUYER), subject: "s".into(), body: "b".into(), hash: "h".into() }
}

fn sent(at: Timestamp) -> StepState {
    StepState::Sent { at, message_id: "m".into(), via: "post".into(), fate: None }
}

/// A plan without a result: the run died.
fn plan(at: Timestamp) -> StepState {
    StepState::Planned {
        at,
        first_unknown_at: None,
        last_unknown_at: None,
        message: Box::new(frozen()),
        refused: None,
    }
}

/// A plan whose answers were lost.
fn lost(first: Timestamp, last: Timestamp) -> StepState {
    StepState::Planned {
        at: first,
        first_unknown_at: Some(first),
        last_unknown_at: Some(last),
        message: Box::new(frozen()),
        refused: None,
    }
}

fn closed(at: Timestamp, reason: CloseReason) -> StepState {
    StepState::closed(at, reason)
}

/// Closed, though an attempt may have arrived.
fn closed_after(last: Timestamp, at: Timestamp, reason: CloseReason) -> StepState {
    let attempt =
        Attempt { first_at: last - hours(5), last_at: last, via: "post".into(), subject: "s".into() };
    StepState::Closed { at, reason, attempt: Some(attempt) }
}

fn refused(count: u32, at: Timestamp) -> StepState {
    StepState::Pending { refused: Some(Refusals { count, hash: "h".into(), at, reason: "no".into() }) }
}

/// A service that remembers keys for so long.
fn remembers(span: Seconds) -> Policy {
    Policy { retention: Retention::For(span), ..Policy::default() }
}

/// A decision in words: `close cs_1:d3 stale`, `send cs_1:d7`, `retry cs_1:d3`.
fn words(decision: &Decision) -> Vec<String> {
    let close = |c: &super::decide::Closing| format!("close {}:{} {}", c.session, c.step, c.reason.name());
    let mail = |m: &super::decide::Due| {
        format!("{} {}:{}", if m.retry { "retry" } else { "send" }, m.session, m.step)
    };
    decision.closings.iter().map(close).chain(decision.mail.iter().map(mail)).collect()
}

/// What a run at `now` does for this buyer.
fn does(buyer: &Buyer, policy: &Policy, now: Timestamp) -> Vec<String> {
    words(&ask(buyer, policy, now))
}

fn checkout(event: &str, session: &str, email: &str, at: Timestamp) -> Checkout {
    Checkout {
        event: event.parse().unwrap(),
        at,
        session: sid(session),
        payment: Payment::Paid,
        email: (!email.is_empty()).then(|| address(email)),
        email_fault: None,
        name: None,
        locale: None,
        billing: None,
        subscriber_id: None,
        amount: None,
        refs: Refs::default(),
        vars: std::collections::BTreeMap::new(),
    }
}

/// A paid checkout as it comes in.
fn bought(event: &str, session: &str, email: &str, at: Timestamp) -> Incoming {
    Incoming::Checkout(Box::new(checkout(event, session, email, at)))
}

/// The same checkout, not yet paid (or who knows).
fn unpaid(event: &str, session: &str, email: &str, at: Timestamp, payment: Payment) -> Incoming {
    Incoming::Checkout(Box::new(Checkout { payment, ..checkout(event, session, email, at) }))
}

/// Part of the money, going back.
fn part(id: &str, value: i64, at: Timestamp) -> Refunded {
    Refunded { id: id.to_owned(), at, amount: yen(value), failed: false }
}

fn yen(value: i64) -> Amount {
    Amount { value, currency: "jpy".to_owned() }
}

fn stop(event: &str, at: Timestamp, target: StopTarget) -> Incoming {
    Incoming::Stop(StopSignal {
        event: event.parse().unwrap(),
        at,
        reason: "refund".into(),
        target,
        asked: false,
        quiet: false,
    })
}

/// A ledger to which batches and marks come.
#[derive(Clone)]
struct Shop {
    ledger: Ledger,
}

impl Shop {
    /// Live since 1 September 2026.
    fn new() -> Self {
        Self { ledger: Ledger::empty(t("2026-09-01T00:00:00Z"), None) }
    }

    /// Takes a batch in, and returns what the report counts.
    fn take(&mut self, now: Timestamp, batch: Vec<Incoming>) -> super::admit::Counts {
        let intake = super::admit::admit(&self.ledger, batch, now);
        self.record(&intake.facts);
        intake.counts
    }

    fn record(&mut self, facts: &[Fact]) {
        for fact in facts {
            apply(&mut self.ledger, fact).unwrap();
        }
    }

    fn mark(&mut self, whom: Whom, mark: MarkKind, at: Timestamp) {
        self.record(&[Fact::Marked { whom, mark, at, reason: None, event: None }]);
    }

    fn buyer(&self, email: &str) -> &Buyer {
        self.ledger.buyers.get(&address(email).buyer()).unwrap()
    }

    fn purchase(&self, session: &str) -> &Purchase {
        self.ledger.buyers.purchase(&sid(session)).unwrap().1
    }

    fn knows(&self, session: &str) -> bool {
        self.ledger.buyers.purchase(&sid(session)).is_some()
    }

    /// Closes what is over, as a run at `now` does, and says what each step of a purchase came to.
    fn steps(&mut self, session: &str, now: Timestamp) -> String {
        let closings: Vec<_> = self
            .ledger
            .buyers
            .all()
            .iter()
            .flat_map(|buyer| ask(buyer, &Policy::default(), now).closings)
            .map(|c| Fact::Closed { key: IdempotencyKey::Step(c.session, c.step), at: now, reason: c.reason })
            .collect();
        self.record(&closings);
        let word = |state: &StepState| match state {
            StepState::Pending { .. } => "pending",
            StepState::Planned { .. } => "planned",
            StepState::Sent { .. } => "sent",
            StepState::Closed { reason, .. } => reason.name(),
        };
        let steps = &self.purchase(session).steps;
        steps.iter().map(|(_, state)| word(state)).collect::<Vec<_>>().join(" ")
    }

    /// What a human was told: kind and subject, in order.
    fn told(&self) -> Vec<String> {
        self.ledger.matters.iter().map(|m| format!("{} {}", m.kind.name(), m.subject)).collect()
    }

    fn events(&self, session: &str) -> Vec<&str> {
        let mut events: Vec<_> = self.purchase(session).events.iter().map(EventId::as_str).collect();
        events.sort_unstable();
        events
    }
}
