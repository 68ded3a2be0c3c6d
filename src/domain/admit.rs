//! R1 to R4: what a batch of events means to the ledger.
//!
//! [`admit`] looks at the whole batch at once, so that the order inside it does not matter, and returns facts: nothing
//! is changed here. It works on an excerpt of the ledger (the buyers the batch can concern), to which each fact is
//! applied as it is found, so that the second event of a batch sees what the first one did.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::adopt::may_have_left;
use super::event::{Checkout, Incoming, Invalid, Payment, StopSignal, StopTarget};
use super::fact::{Fact, Whom, apply};
use super::ids::{Address, BuyerId, EventId, IdempotencyKey, SessionId, Step};
use super::ledger::{
    Attempt, Buyers, CloseReason, Kind, Ledger, LooseStop, MarkKind, Purchase, Refs, StepState, Steps,
    Waiting, WaitingFor,
};
use super::matter::{Matter, MatterKind};
use super::time::{Seconds, Timestamp};

/// R12: how far ahead of the clock a purchase may be dated.
pub(super) const AHEAD_MAX: Seconds = Seconds::minutes(10);

/// How long a checkout waits for its money: the slowest way to pay takes sixty days.
const WAIT_MAX: Seconds = Seconds::days(65);

/// What a batch comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intake {
    /// To be recorded together.
    pub facts: Vec<Fact>,
    /// For the report.
    pub counts: Counts,
}

/// What was taken in, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// New purchases that are mailed.
    pub purchases: usize,
    /// Events or sessions that were known.
    pub duplicates: usize,
    /// Purchases from before go-live.
    pub history: usize,
    /// Checkouts that wait for their money, an address, or their date.
    pub waiting: usize,
    /// Events that start and stop nothing.
    pub ignored: usize,
    /// Refunds, disputes, cancellations, wishes.
    pub stops: usize,
    /// What could not be read, or contradicts the record.
    pub invalid: usize,
}

/// Admits a batch. Checkouts that waited for their date and have reached it are admitted along with it.
#[must_use]
pub fn admit(ledger: &Ledger, batch: Vec<Incoming>, now: Timestamp) -> Intake {
    let ripe: Vec<Checkout> = ledger
        .waiting
        .iter()
        .filter(|waiting| waiting.why == WaitingFor::ItsDate && waiting.checkout.at <= now + AHEAD_MAX)
        .map(|waiting| waiting.checkout.clone())
        .collect();
    let over: Vec<SessionId> = ledger
        .waiting
        .iter()
        .filter(|waiting| waiting.why == WaitingFor::Payment && now - waiting.checkout.at > WAIT_MAX)
        .map(|waiting| waiting.checkout.session.clone())
        .collect();
    if batch.is_empty() && ripe.is_empty() && over.is_empty() {
        return Intake::default();
    }
    let mut sorted = Sorted::new(batch);
    let mut clerk = Clerk::new(ledger, &sorted, &ripe, now);
    clerk.intake.counts.ignored = sorted.ignored;

    // R3: the earlier payment is admitted first, then by session.
    sorted.checkouts.sort_by(|a, b| (a.at, &a.session, &a.event).cmp(&(b.at, &b.session, &b.event)));
    let (paid, unpaid): (Vec<_>, Vec<_>) =
        sorted.checkouts.into_iter().partition(|checkout| checkout.payment == Payment::Paid);
    let mut paid: Vec<(bool, Checkout)> = ripe
        .into_iter()
        .map(|checkout| (true, checkout))
        .chain(paid.into_iter().map(|c| (false, c)))
        .collect();
    paid.sort_by(|(_, a), (_, b)| (a.at, &a.session).cmp(&(b.at, &b.session)));
    for (was_waiting, checkout) in paid {
        if was_waiting || clerk.is_news(&checkout) {
            clerk.paid(checkout);
        }
    }
    for checkout in unpaid {
        if clerk.is_news(&checkout) {
            clerk.unpaid(checkout);
        }
    }
    for session in sorted.failed {
        clerk.failed(&session);
    }
    // After what this batch says: the money may have come at the last moment.
    for session in over {
        if clerk.waiting(&session).is_some_and(|waiting| waiting.why == WaitingFor::Payment) {
            clerk.found(Fact::WaitOver { session });
        }
    }
    for stop in sorted.stops {
        clerk.stop(stop);
    }
    for partial in sorted.partial {
        clerk.partial_refund(&partial);
    }
    for invalid in sorted.invalid {
        clerk.invalid(&invalid);
    }
    clerk.intake
}

/// A batch by kind.
#[derive(Default)]
struct Sorted {
    checkouts: Vec<Checkout>,
    failed: Vec<SessionId>,
    stops: Vec<StopSignal>,
    partial: Vec<StopSignal>,
    invalid: Vec<Invalid>,
    ignored: usize,
}

impl Sorted {
    fn new(batch: Vec<Incoming>) -> Self {
        let mut sorted = Self::default();
        for incoming in batch {
            match incoming {
                Incoming::Checkout(checkout) => sorted.checkouts.push(*checkout),
                Incoming::PaymentFailed { session, .. } => sorted.failed.push(session),
                Incoming::Stop(stop) => sorted.stops.push(stop),
                Incoming::PartialRefund(partial) => sorted.partial.push(partial),
                Incoming::Invalid(invalid) => sorted.invalid.push(invalid),
                Incoming::Ignored => sorted.ignored += 1,
            }
        }
        // Of several stops of one purchase the earliest gives the reason; any order is the same.
        sorted.stops.sort_by(|a, b| (a.at, &a.event).cmp(&(b.at, &b.event)));
        sorted
    }

    fn events(&self) -> HashSet<&EventId> {
        let checkouts = self.checkouts.iter().map(|checkout| &checkout.event);
        let signals = self.stops.iter().chain(&self.partial).map(|stop| &stop.event);
        checkouts.chain(signals).collect()
    }

    fn refs(&self) -> Vec<&Refs> {
        let signals = self.stops.iter().chain(&self.partial);
        signals
            .filter_map(|stop| match &stop.target {
                StopTarget::Refs(refs) => Some(refs),
                _ => None,
            })
            .collect()
    }
}

/// How surely a stop's ids name a purchase.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    /// Only the customer is the same, and nothing speaks against it.
    Customer,
    /// The payment, the invoice or the subscription is the same.
    Exact,
}

/// Whether `stop` names the purchase with `refs`. The customer is the last resort, never used against an id that
/// differs, and never for a purchase made after the stop; the address is never used.
fn link(refs: &Refs, paid_at: Timestamp, stop: &Refs, stopped_at: Timestamp) -> Option<Link> {
    let pairs = [
        (&refs.payment_intent, &stop.payment_intent),
        (&refs.invoice, &stop.invoice),
        (&refs.subscription, &stop.subscription),
    ];
    if pairs.iter().any(|(a, b)| a.is_some() && a == b) {
        return Some(Link::Exact);
    }
    let contradicted = pairs.iter().any(|(a, b)| a.is_some() && b.is_some());
    let same_customer = refs.customer.is_some() && refs.customer == stop.customer;
    (same_customer && !contradicted && paid_at <= stopped_at).then_some(Link::Customer)
}

/// Works through one batch.
struct Clerk {
    /// The part of the ledger that this batch can concern, with the facts found so far.
    ledger: Ledger,
    /// Events of the batch that the ledger knows, and the session each of them spoke of.
    known: HashMap<EventId, Option<SessionId>>,
    now: Timestamp,
    intake: Intake,
}

impl Clerk {
    fn new(ledger: &Ledger, sorted: &Sorted, ripe: &[Checkout], now: Timestamp) -> Self {
        let events = sorted.events();
        let refs = sorted.refs();
        let mut known = HashMap::new();
        let mut concerned: HashSet<BuyerId> = HashSet::new();
        for checkout in sorted.checkouts.iter().chain(ripe) {
            concerned.extend(checkout.email.as_ref().map(Address::buyer));
            concerned
                .extend(ledger.buyers.purchase(&checkout.session).map(|(buyer, _)| buyer.address.clone()));
        }
        // A checkout that waits may know the address that this batch's event of it lacks.
        let sessions: HashSet<&SessionId> =
            sorted.checkouts.iter().map(|checkout| &checkout.session).collect();
        let waiting = ledger.waiting.iter().map(|waiting| &waiting.checkout);
        concerned.extend(
            waiting.filter(|c| sessions.contains(&c.session)).filter_map(|c| Some(c.email.as_ref()?.buyer())),
        );
        for stop in &sorted.stops {
            match &stop.target {
                StopTarget::Session(session) => {
                    concerned.extend(ledger.buyers.purchase(session).map(|(buyer, _)| buyer.address.clone()));
                }
                StopTarget::Buyer(address) => {
                    concerned.insert(address.buyer());
                }
                StopTarget::Refs(_) => {}
            }
        }
        for buyer in ledger.buyers.all() {
            let mut learn = |event: &EventId, session: Option<&SessionId>| {
                if events.contains(event) {
                    known.insert(event.clone(), session.cloned());
                }
            };
            buyer.events.iter().for_each(|event| learn(event, None));
            for purchase in &buyer.purchases {
                purchase.events.iter().for_each(|event| learn(event, Some(&purchase.session)));
                // The exact time of the stop is judged later; here any likeness is enough to look closer.
                if refs
                    .iter()
                    .any(|stop| link(&purchase.refs, now - Seconds::days(36_500), stop, now).is_some())
                {
                    concerned.insert(buyer.address.clone());
                }
            }
        }
        for waiting in &ledger.waiting {
            for event in waiting.events.iter().chain([&waiting.checkout.event]) {
                if events.contains(event) {
                    known.insert(event.clone(), Some(waiting.checkout.session.clone()));
                }
            }
        }
        for event in ledger.loose_stops.iter().filter_map(|stop| stop.event.as_ref()) {
            if events.contains(event) {
                known.insert(event.clone(), None);
            }
        }
        let buyers =
            ledger.buyers.all().iter().filter(|buyer| concerned.contains(&buyer.address)).cloned().collect();
        let mut excerpt = Ledger::empty(ledger.go_live, None);
        excerpt.gap = ledger.gap;
        // An excerpt of a sound ledger is sound.
        excerpt.buyers = Buyers::new(buyers).unwrap_or_default();
        excerpt.waiting.clone_from(&ledger.waiting);
        excerpt.loose_stops.clone_from(&ledger.loose_stops);
        excerpt.loose_marks.clone_from(&ledger.loose_marks);
        excerpt.matters.clone_from(&ledger.matters);
        excerpt.forgotten.clone_from(&ledger.forgotten);
        Self { ledger: excerpt, known, now, intake: Intake::default() }
    }

    fn found(&mut self, fact: Fact) {
        // The excerpt holds every purchase that a fact of this batch can speak of.
        let _ = apply(&mut self.ledger, &fact);
        self.intake.facts.push(fact);
    }

    fn tell(&mut self, kind: MatterKind, subject: &str, session: Option<&SessionId>, text: String) {
        if self.ledger.matter(kind, subject).is_none() {
            let matter = Matter::new(kind, subject, self.now, session.cloned(), text);
            self.found(Fact::Matter { matter: Box::new(matter) });
        }
    }

    /// R2: whether this event is new. One id for two sessions is a slip that must not swallow a buyer in silence.
    fn is_news(&mut self, checkout: &Checkout) -> bool {
        let session = &checkout.session;
        // R17: what was forgotten starts nothing again, and leaves nothing behind.
        if self.ledger.forgotten.knows_session(session) {
            self.intake.counts.duplicates += 1;
            return false;
        }
        if self.ledger.forgotten.knows_id(checkout.event.as_str()) {
            let text = format!(
                "session {session} came with the id of an event that was taken in before, for somebody who was \
                 forgotten; it was not admitted and gets no mails; if it is a purchase of its own, give its event an id \
                 of its own"
            );
            self.intake.counts.invalid += 1;
            self.tell(MatterKind::Conflict, session.as_str(), Some(&session.clone()), text);
            return false;
        }
        match self.known.get(&checkout.event) {
            None => {
                self.known.insert(checkout.event.clone(), Some(session.clone()));
                true
            }
            Some(Some(other)) if other != session => {
                let text = format!(
                    "event {} was taken in for session {other} and came again for session {session}; the latter was \
                     not admitted and gets no mails; if it is a purchase of its own, give its event an id of its own",
                    checkout.event
                );
                self.intake.counts.invalid += 1;
                self.tell(MatterKind::Conflict, checkout.event.as_str(), Some(&session.clone()), text);
                false
            }
            Some(_) => {
                self.intake.counts.duplicates += 1;
                false
            }
        }
    }

    fn paid(&mut self, mut checkout: Checkout) {
        if self.is_known_session(&checkout) {
            return;
        }
        if let Some(before) = self.waiting(&checkout.session).map(|waiting| waiting.checkout.clone())
            && self.agrees(&before, &checkout)
        {
            checkout.fill_in(&before);
            // It was paid when the first event said so, though it could not be admitted then (R1).
            if before.payment == Payment::Paid {
                checkout.at = checkout.at.min(before.at);
            }
        }
        self.admit_or_wait(checkout);
    }

    /// What is paid becomes a purchase as soon as it has an address and its date is there.
    fn admit_or_wait(&mut self, checkout: Checkout) {
        let session = checkout.session.clone();
        if checkout.email.is_none() {
            let (kind, what) = match &checkout.email_fault {
                Some(fault) => {
                    (MatterKind::BadAddress, format!("has an address that cannot be used: the {fault}"))
                }
                None => (MatterKind::NoAddress, "came without a mail address".to_owned()),
            };
            let text = format!(
                "session {session} is paid and {what}; it gets no mails; if you know the address, hand in an event of \
                 your own for this session with it"
            );
            self.wait(checkout, WaitingFor::Address);
            self.tell(kind, session.as_str(), Some(&session), text);
        } else if checkout.at > self.now + AHEAD_MAX {
            let text = format!(
                "session {session} is dated {}, which lies ahead of this machine's clock ({}); it waits for that time",
                checkout.at, self.now
            );
            self.wait(checkout, WaitingFor::ItsDate);
            self.tell(MatterKind::PaidAhead, session.as_str(), Some(&session), text);
        } else {
            self.purchase(checkout);
        }
    }

    fn unpaid(&mut self, checkout: Checkout) {
        if self.is_known_session(&checkout) {
            return;
        }
        if self.now - checkout.at > WAIT_MAX {
            // Its wait is over; an events file that is handed in every hour must not begin it anew.
            self.intake.counts.ignored += 1;
            return;
        }
        let session = checkout.session.clone();
        let unclear = checkout.payment == Payment::Unknown;
        self.wait(checkout, WaitingFor::Payment);
        match self.waiting(&session).map(|waiting| (waiting.why, waiting.checkout.clone())) {
            // The event that said "paid" had no address; this one, which is older, has it.
            Some((WaitingFor::Address, paid)) if paid.email.is_some() => self.admit_or_wait(paid),
            Some((WaitingFor::Payment, _)) if unclear => {
                let text = format!(
                    "session {session} is complete, but its event does not say in a known word whether it is paid; it \
                     counts as not paid and gets no mails until an event says that it is"
                );
                self.tell(MatterKind::PaymentStatus, session.as_str(), Some(&session), text);
            }
            _ => {}
        }
    }

    fn waiting(&self, session: &SessionId) -> Option<&Waiting> {
        self.ledger.waiting.iter().find(|waiting| waiting.checkout.session == *session)
    }

    /// R2, while a session waits: whether two events of it can both be true. If not, a human is told, and the fields of
    /// one do not mend the other.
    fn agrees(&mut self, before: &Checkout, checkout: &Checkout) -> bool {
        let buyer = |checkout: &Checkout| checkout.email.as_ref().map(Address::buyer);
        let what = match (buyer(before), buyer(checkout), &before.amount, &checkout.amount) {
            (Some(a), Some(b), _, _) if a != b => "another mail address",
            (_, _, Some(a), Some(b)) if a != b => "another amount",
            _ => return true,
        };
        let session = checkout.session.clone();
        let text = format!(
            "event {} names session {session} with {what} than event {}, while it waits; mails go where the event \
             that says \"paid\" sends them",
            checkout.event, before.event
        );
        self.tell(MatterKind::Conflict, session.as_str(), Some(&session), text);
        false
    }

    /// R2: a known session is admitted once. What was absent is filled in; another address or amount is refused.
    fn is_known_session(&mut self, checkout: &Checkout) -> bool {
        let Some((buyer, purchase)) = self.ledger.buyers.purchase(&checkout.session) else { return false };
        let other_address = checkout.email.as_ref().is_some_and(|email| email.buyer() != buyer.address);
        let other_amount =
            matches!((&checkout.amount, &purchase.amount), (Some(said), Some(known)) if said != known);
        if other_address || other_amount {
            let what = if other_address { "another mail address" } else { "another amount" };
            let text = format!(
                "event {} names session {} with {what} than the purchase on record; the record stands, and mails go \
                 where they went",
                checkout.event, checkout.session
            );
            self.intake.counts.invalid += 1;
            let session = checkout.session.clone();
            self.tell(MatterKind::Conflict, session.as_str(), Some(&session), text);
        } else {
            self.intake.counts.duplicates += 1;
            self.found(Fact::Filled { checkout: Box::new(checkout.clone()) });
        }
        true
    }

    /// Keeps a checkout until it can be admitted. What is known of it already is not forgotten.
    fn wait(&mut self, checkout: Checkout, why: WaitingFor) {
        let mut waiting = Waiting { why, since: self.now, checkout, events: Vec::new() };
        if let Some(mut before) = self.waiting(&waiting.checkout.session).cloned() {
            let agrees = self.agrees(&before.checkout, &waiting.checkout);
            // A paid one does not become unpaid because the older event came later.
            if before.why != WaitingFor::Payment && why == WaitingFor::Payment {
                waiting.why = before.why;
                std::mem::swap(&mut waiting.checkout, &mut before.checkout);
            }
            if agrees {
                waiting.checkout.fill_in(&before.checkout);
            }
            waiting.since = before.since;
            waiting.events = before.events;
            waiting.events.push(before.checkout.event);
        }
        self.intake.counts.waiting += 1;
        self.found(Fact::Waits { waiting: Box::new(waiting) });
    }

    /// R3, R4, R7: a new purchase, with what is closed at admission.
    fn purchase(&mut self, checkout: Checkout) {
        let Some(email) = checkout.email else { return };
        let session = checkout.session;
        let buyer = self.ledger.buyers.get(&email.buyer());
        let marks: Vec<MarkKind> = self
            .ledger
            .loose_marks
            .iter()
            .filter(|mark| mark.session == session)
            .map(|mark| mark.mark)
            .collect();
        let was_forgotten = self.ledger.forgotten.knows_address(&email.buyer());
        let bought = was_forgotten
            || buyer.is_some_and(|buyer| !buyer.purchases.is_empty() || buyer.bought_before.is_some());
        let kind = if checkout.at < self.ledger.go_live {
            Kind::History
        } else if bought || marks.contains(&MarkKind::Repurchase) {
            Kind::Repurchase
        } else {
            Kind::First
        };
        // R17: a stop outlives being forgotten.
        let stopped_before = self.ledger.forgotten.stopped(&email.buyer());
        let buyer_stopped = stopped_before.is_some() || buyer.is_some_and(|buyer| buyer.stopped.is_some());
        let address = email.clone();
        let kept_stops = self.loose_stops_of(&session, &checkout.refs, checkout.at);
        let mut steps = steps_at_admission(kind, buyer_stopped || !kept_stops.is_empty(), self.now);
        let doubted = self.doubt(&mut steps, checkout.at);

        let before = self.waiting(&session);
        let mut events = vec![checkout.event];
        if let Some(before) = before {
            events.extend(before.events.iter().chain([&before.checkout.event]).cloned());
            self.found(Fact::WaitOver { session: session.clone() });
        }
        events.sort();
        events.dedup();
        let purchase = Purchase {
            session: session.clone(),
            email,
            paid_at: checkout.at,
            kind,
            name: checkout.name,
            locale: checkout.locale,
            billing: checkout.billing,
            subscriber_id: checkout.subscriber_id,
            amount: checkout.amount,
            events,
            refs: checkout.refs,
            vars: checkout.vars,
            stopped: None,
            started: None,
            marked_repurchase: None,
            outcome: None,
            steps,
        };
        self.found(Fact::Admitted { purchase: Box::new(purchase) });
        match kind {
            Kind::History => self.intake.counts.history += 1,
            Kind::First | Kind::Repurchase => self.intake.counts.purchases += 1,
        }
        self.tell_of_doubts(&session, &doubted);
        if let Some(at) = stopped_before {
            self.mark_stopped(Whom::Address(address), at, Some("asked".to_owned()), None);
        }
        self.link_marks(&session);
        for (link, stop) in kept_stops {
            self.mark_stopped(
                Whom::Session(session.clone()),
                stop.at,
                stop.reason.clone(),
                stop.event.clone(),
            );
            if link == Link::Exact {
                self.found(Fact::StopLinked { stop: Box::new(stop) });
            }
        }
        if buyer_stopped && kind != Kind::History {
            let text = format!(
                "a stopped buyer bought again (session {session}); nothing is sent for it, not even the way in; if the \
                 buyer wants the mails: stepmail resume EMAIL"
            );
            self.tell(MatterKind::StoppedBuyer, session.as_str(), Some(&session), text);
        }
    }

    /// R12: closes what a lost newer version of this ledger may have sent already, and says which steps those are.
    fn doubt(&self, steps: &mut Steps, paid_at: Timestamp) -> Vec<Step> {
        let Some(gap) = &self.ledger.gap else { return Vec::new() };
        let in_doubt = |step: &Step| steps.get(*step).is_open() && may_have_left(paid_at, *step, gap);
        let doubted: Vec<Step> = Step::ALL.into_iter().filter(in_doubt).collect();
        for step in &doubted {
            *steps.get_mut(*step) = StepState::may_have_left(gap, None);
        }
        // What a stop closes may have left before the stop was set.
        for step in Step::ALL {
            if let StepState::Closed { reason: CloseReason::Stopped, attempt, .. } = steps.get_mut(step)
                && may_have_left(paid_at, step, gap)
            {
                *attempt = Some(Attempt::within(gap));
            }
        }
        doubted
    }

    fn tell_of_doubts(&mut self, session: &SessionId, doubted: &[Step]) {
        let (Some(gap), false) = (self.ledger.gap, doubted.is_empty()) else { return };
        let keys: Vec<String> =
            doubted.iter().map(|step| IdempotencyKey::Step(session.clone(), *step).to_string()).collect();
        let text = format!(
            "session {session} is new to this ledger, but may have been known to the newer one in whose place it was \
             adopted (nothing is known of the time from {} to {}); what may have left then is closed; look for it in the \
             mail service's list, then: stepmail resolve {} --sent, or --not-sent",
            gap.since,
            gap.until,
            keys.join(" ")
        );
        self.tell(MatterKind::Adopted, session.as_str(), Some(session), text);
    }

    fn link_marks(&mut self, session: &SessionId) {
        let marks: Vec<_> =
            self.ledger.loose_marks.iter().filter(|mark| mark.session == *session).cloned().collect();
        if marks.is_empty() {
            return;
        }
        for mark in marks {
            let whom = Whom::Session(session.clone());
            self.found(Fact::Marked { whom, mark: mark.mark, at: mark.at, reason: mark.reason, event: None });
        }
        self.found(Fact::MarkLinked { session: session.clone() });
    }

    fn loose_stops_of(&self, session: &SessionId, refs: &Refs, paid_at: Timestamp) -> Vec<(Link, LooseStop)> {
        let hidden = self.ledger.forgotten.hidden_refs(refs);
        let linked = |stop: &LooseStop| {
            if let Some(named) = &stop.session {
                return (named == session).then_some(Link::Exact);
            }
            let by = |refs: &Refs| link(refs, paid_at, &stop.refs, stop.at);
            by(refs).max(hidden.as_ref().and_then(by))
        };
        let in_force = self.ledger.loose_stops.iter().filter(|stop| stop.is_in_force());
        in_force.filter_map(|stop| Some((linked(stop)?, stop.clone()))).collect()
    }

    fn failed(&mut self, session: &SessionId) {
        self.intake.counts.ignored += 1;
        let waits =
            |waiting: &Waiting| waiting.checkout.session == *session && waiting.why == WaitingFor::Payment;
        if self.ledger.waiting.iter().any(waits) {
            self.found(Fact::WaitOver { session: session.clone() });
        }
    }

    fn stop(&mut self, stop: StopSignal) {
        if self.known.contains_key(&stop.event) || self.of_the_forgotten(&stop) {
            self.intake.counts.duplicates += 1;
            return;
        }
        self.known.insert(stop.event.clone(), None);
        self.intake.counts.stops += 1;
        let event = Some(stop.event.clone());
        let reason = Some(stop.reason.clone());
        match stop.target {
            StopTarget::Buyer(address) if self.ledger.buyers.get(&address.buyer()).is_none() => {
                match self.ledger.forgotten.address_hash(&address.buyer()) {
                    Some(address) => {
                        let event = self.ledger.forgotten.id_hash(stop.event.as_str());
                        self.found(Fact::ForgottenStopped { address, at: stop.at, event });
                    }
                    None => self.mark_stopped(Whom::Address(address), stop.at, reason, event),
                }
            }
            StopTarget::Buyer(address) => {
                self.mark_stopped(Whom::Address(address), stop.at, reason, event);
            }
            StopTarget::Session(session) if self.ledger.buyers.purchase(&session).is_some() => {
                self.mark_stopped(Whom::Session(session), stop.at, reason, event);
            }
            StopTarget::Session(session) => {
                let (session, refs) = (Some(session), Refs::default());
                self.keep_unlinked(LooseStop { at: stop.at, reason, event, session, refs, lifted: None });
            }
            StopTarget::Refs(refs) => {
                let Some((link, sessions)) = self.sessions_of(&refs, stop.at) else {
                    let (session, lifted) = (None, None);
                    let stop = LooseStop { at: stop.at, reason, event, session, refs, lifted };
                    return self.keep_unlinked(stop);
                };
                for session in sessions {
                    self.mark_stopped(Whom::Session(session), stop.at, reason.clone(), event.clone());
                }
                // The purchase that it names exactly, or another of this customer, may still come.
                if link == Link::Customer {
                    let kept = LooseStop { at: stop.at, reason, event, session: None, refs, lifted: None };
                    let kept = self.ledger.forgotten.hidden(&kept).unwrap_or(kept);
                    self.found(Fact::StopKept { stop: Box::new(kept) });
                }
            }
        }
    }

    /// R17: whether a stop is of what was forgotten, and of nothing else: there is nothing left to stop.
    fn of_the_forgotten(&self, stop: &StopSignal) -> bool {
        let forgotten = &self.ledger.forgotten;
        if forgotten.is_empty() {
            return false;
        }
        if forgotten.knows_id(stop.event.as_str()) {
            return true;
        }
        // It was kept with its ids hashed, and may have found its purchase since.
        if let Some(hidden) = forgotten.hidden_event(&stop.event) {
            let mut purchases = self.ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
            if self.ledger.loose_stops.iter().any(|kept| kept.event.as_ref() == Some(&hidden))
                || purchases.any(|purchase| purchase.events.contains(&hidden))
            {
                return true;
            }
        }
        match &stop.target {
            StopTarget::Session(session) => forgotten.knows_session(session),
            StopTarget::Buyer(_) => false,
            StopTarget::Refs(refs) => {
                let exact = self.sessions_of(refs, stop.at).is_some_and(|(link, _)| link == Link::Exact);
                !exact && forgotten.knows_purchase(refs)
            }
        }
    }

    fn keep_unlinked(&mut self, stop: LooseStop) {
        if let Some(hidden) = self.ledger.forgotten.hidden(&stop) {
            // It names a customer who was forgotten: most likely a purchase of then. One that the customer makes anew
            // is stopped by it when it comes; nobody needs to be told.
            return self.found(Fact::StopKept { stop: Box::new(hidden) });
        }
        let (event, reason) = (stop.event.clone(), stop.reason.clone().unwrap_or_default());
        let session = stop.session.clone();
        self.found(Fact::StopKept { stop: Box::new(stop) });
        let Some(event) = event else { return };
        let text = format!(
            "event {event} ({reason}) stops a purchase that is not known here; if the purchase comes later it is \
             stopped then; if it is one of those on record, stop it by hand: stepmail mark-stopped SESSION"
        );
        self.tell(MatterKind::UnlinkedStop, event.as_str(), session.as_ref(), text);
    }

    fn mark_stopped(&mut self, whom: Whom, at: Timestamp, reason: Option<String>, event: Option<EventId>) {
        self.found(Fact::Marked { whom, mark: MarkKind::Stopped, at, reason, event });
    }

    /// The purchases a stop names: exactly, or else all that have only the customer in common with it.
    fn sessions_of(&self, refs: &Refs, at: Timestamp) -> Option<(Link, Vec<SessionId>)> {
        let mut by_link: BTreeMap<Link, Vec<SessionId>> = BTreeMap::new();
        for purchase in self.ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases) {
            if let Some(link) = link(&purchase.refs, purchase.paid_at, refs, at) {
                by_link.entry(link).or_default().push(purchase.session.clone());
            }
        }
        by_link.pop_last()
    }

    fn partial_refund(&mut self, partial: &StopSignal) {
        self.intake.counts.ignored += 1;
        if self.of_the_forgotten(partial) {
            return;
        }
        let sessions = match &partial.target {
            StopTarget::Refs(refs) => {
                self.sessions_of(refs, partial.at).map_or(Vec::new(), |(_, sessions)| sessions)
            }
            StopTarget::Session(session) => vec![session.clone()],
            StopTarget::Buyer(_) => Vec::new(),
        };
        let whose = sessions
            .first()
            .map_or("a purchase not known here".to_owned(), |session| format!("session {session}"));
        let text = format!(
            "part of the money of {whose} went back (event {}); that stops nothing; to stop the mails: stepmail \
             mark-stopped SESSION",
            partial.event
        );
        self.tell(MatterKind::PartialRefund, partial.event.as_str(), sessions.first(), text);
    }

    fn invalid(&mut self, invalid: &Invalid) {
        self.intake.counts.invalid += 1;
        let text = format!(
            "{}: {}; that was not taken in; if it is a purchase, its buyer gets no mails until it is mended",
            invalid.place, invalid.why
        );
        self.tell(MatterKind::InvalidEvent, &invalid.subject, None, text);
    }
}

/// R7: at admission the reasons go `history`, `repurchase`, `stopped`.
fn steps_at_admission(kind: Kind, stopped: bool, now: Timestamp) -> Steps {
    let mut steps = Steps::pending();
    for step in Step::ALL {
        let reason = match kind {
            Kind::History => Some(CloseReason::History),
            Kind::Repurchase if step != Step::D0 => Some(CloseReason::Repurchase),
            _ if stopped => Some(CloseReason::Stopped),
            _ => None,
        };
        if let Some(reason) = reason {
            *steps.get_mut(step) = StepState::closed(now, reason);
        }
    }
    steps
}
