//! R1 to R4: what a batch of events means to the ledger.
//!
//! [`admit`] looks at the whole batch at once, so that the order inside it does not matter, and returns facts: nothing
//! is changed here. It works on an excerpt of the ledger (the buyers the batch can concern), to which each fact is
//! applied as it is found, so that the second event of a batch sees what the first one did.

mod refund;
mod stop;

use std::collections::{HashMap, HashSet};

use super::adopt::may_have_left;
use super::event::{Checkout, Incoming, Invalid, Payment, RefundSignal, StopSignal, StopTarget};
use super::fact::{Fact, Whom, apply};
use super::ids::{Address, BuyerId, EventId, IdempotencyKey, SessionId, Step};
use super::ledger::{
    Attempt, Buyer, Buyers, CloseReason, FailedPayment, Kind, Ledger, MarkKind, PassedOver, Purchase, Refs,
    StepState, Steps, Waiting, WaitingFor,
};
use super::matter::{Matter, MatterKind};
use super::time::{Seconds, Timestamp};

use stop::{Link, link};

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

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.purchases += more.purchases;
        self.duplicates += more.duplicates;
        self.history += more.history;
        self.waiting += more.waiting;
        self.ignored += more.ignored;
        self.stops += more.stops;
        self.invalid += more.invalid;
    }
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
        .filter(|waiting| waiting.can_end() && now - waiting.checkout.at > WAIT_MAX)
        .map(|waiting| waiting.checkout.session.clone())
        .collect();
    if batch.is_empty() && ripe.is_empty() && over.is_empty() {
        return Intake::default();
    }
    let mut sorted = Sorted::new(batch);
    let mut clerk = Clerk::new(ledger, &sorted, &ripe, now);
    clerk.intake.counts.ignored = sorted.ignored;

    // R3: the earlier payment is admitted first, then by session.
    sorted
        .checkouts
        .sort_by(|(a, _), (b, _)| (a.at, &a.session, &a.event).cmp(&(b.at, &b.session, &b.event)));
    let (paid, unpaid): (Vec<_>, Vec<_>) =
        sorted.checkouts.into_iter().partition(|(checkout, _)| checkout.payment == Payment::Paid);
    let mut paid: Vec<(bool, Checkout, Wanted)> = ripe
        .into_iter()
        .map(|checkout| (true, checkout, None))
        .chain(paid.into_iter().map(|(checkout, wanted)| (false, checkout, wanted)))
        .collect();
    paid.sort_by(|(_, a, _), (_, b, _)| (a.at, &a.session).cmp(&(b.at, &b.session)));
    for (was_waiting, checkout, wanted) in paid {
        if was_waiting || clerk.is_news(&checkout) {
            clerk.paid(checkout, wanted.as_deref());
        }
    }
    for (checkout, wanted) in unpaid {
        if clerk.is_news(&checkout) {
            clerk.unpaid(checkout, wanted.as_deref());
        }
    }
    for session in sorted.failed {
        clerk.failed(session);
    }
    // After what this batch says: the money may have come at the last moment.
    for session in over {
        if clerk.waiting(&session).is_some_and(Waiting::can_end) {
            clerk.found(Fact::WaitOver { session });
        }
    }
    for stop in sorted.stops {
        clerk.stop(stop);
    }
    clerk.refunds(sorted.refunds);
    for (partial, total) in sorted.partial {
        clerk.partial_refund(&partial, total);
    }
    for invalid in sorted.invalid {
        clerk.invalid(&invalid);
    }
    clerk.intake
}

/// What was bought in a session that waits to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bought {
    /// The session.
    pub session: SessionId,
    /// Prices and products.
    pub items: Vec<String>,
    /// Whether one of them is meant.
    pub is_meant: bool,
}

/// Admits the sessions that are meant, of those that waited to be told what they are for, and passes over the others.
#[must_use]
pub fn sort(ledger: &Ledger, bought: Vec<Bought>, now: Timestamp) -> Intake {
    let is_meant: HashSet<&SessionId> =
        bought.iter().filter(|one| one.is_meant).map(|one| &one.session).collect();
    let waits = ledger.waiting.iter().filter(|waiting| waiting.why == WaitingFor::Items);
    let mut meant: Vec<Checkout> =
        waits.map(|waiting| waiting.checkout.clone()).filter(|c| is_meant.contains(&c.session)).collect();
    meant.sort_by(|a, b| (a.at, &a.session).cmp(&(b.at, &b.session)));
    let mut clerk = Clerk::new(ledger, &Sorted::default(), &meant, now);
    for checkout in meant {
        clerk.paid(checkout, None);
    }
    for Bought { session, items, .. } in bought.into_iter().filter(|one| !one.is_meant) {
        clerk.intake.counts.ignored += 1;
        clerk.found(Fact::WaitOver { session: session.clone() });
        clerk.found(Fact::PassedOver { over: PassedOver { session, at: now, items } });
    }
    clerk.intake
}

/// The prices and products that are meant, of a session of which it is not known what it is for.
type Wanted = Option<Vec<String>>;

/// A batch by kind.
#[derive(Default)]
struct Sorted {
    checkouts: Vec<(Checkout, Wanted)>,
    failed: Vec<SessionId>,
    stops: Vec<StopSignal>,
    partial: Vec<(StopSignal, Option<i64>)>,
    refunds: Vec<RefundSignal>,
    invalid: Vec<Invalid>,
    ignored: usize,
}

impl Sorted {
    fn new(batch: Vec<Incoming>) -> Self {
        let mut sorted = Self::default();
        for incoming in batch {
            match incoming {
                Incoming::Checkout(checkout) => sorted.checkouts.push((*checkout, None)),
                Incoming::Unsorted { checkout, wanted } => sorted.checkouts.push((*checkout, Some(wanted))),
                Incoming::PaymentFailed { session, .. } => sorted.failed.push(session),
                Incoming::Stop(stop) => sorted.stops.push(stop),
                Incoming::PartialRefund { signal, total } => sorted.partial.push((signal, total)),
                Incoming::Refund(refund) => sorted.refunds.push(refund),
                Incoming::Invalid(invalid) => sorted.invalid.push(invalid),
                Incoming::Ignored => sorted.ignored += 1,
            }
        }
        // Of several stops of one purchase the earliest gives the reason; any order is the same.
        sorted.stops.sort_by(|a, b| (a.at, &a.event).cmp(&(b.at, &b.event)));
        sorted.partial.sort_by(|(a, _), (b, _)| (a.at, &a.event).cmp(&(b.at, &b.event)));
        sorted.refunds.sort_by(|a, b| (a.signal.at, &a.signal.event).cmp(&(b.signal.at, &b.signal.event)));
        sorted.invalid.sort_by(|a, b| a.subject.cmp(&b.subject));
        sorted
    }

    fn signals(&self) -> impl Iterator<Item = &StopSignal> {
        let refunds = self.refunds.iter().map(|refund| &refund.signal);
        self.stops.iter().chain(self.partial.iter().map(|(partial, _)| partial)).chain(refunds)
    }

    fn events(&self) -> HashSet<&EventId> {
        let checkouts = self.checkouts.iter().map(|(checkout, _)| &checkout.event);
        checkouts.chain(self.signals().map(|stop| &stop.event)).collect()
    }

    fn refs(&self) -> Vec<&Refs> {
        self.signals()
            .filter_map(|stop| match &stop.target {
                StopTarget::Refs(refs) => Some(refs),
                _ => None,
            })
            .collect()
    }
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
        for checkout in sorted.checkouts.iter().map(|(checkout, _)| checkout).chain(ripe) {
            concerned.extend(checkout.email.as_ref().map(Address::buyer));
            concerned
                .extend(ledger.buyers.purchase(&checkout.session).map(|(buyer, _)| buyer.address.clone()));
        }
        // A checkout that waits may know the address that this batch's event of it lacks.
        let sessions: HashSet<&SessionId> =
            sorted.checkouts.iter().map(|(checkout, _)| &checkout.session).collect();
        let waiting = ledger.waiting.iter().map(|waiting| &waiting.checkout);
        concerned.extend(
            waiting.filter(|c| sessions.contains(&c.session)).filter_map(|c| Some(c.email.as_ref()?.buyer())),
        );
        for stop in sorted.signals() {
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
        let of_refunds = ledger.loose_refunds.iter().flat_map(|loose| &loose.events);
        for event in ledger.loose_stops.iter().filter_map(|stop| stop.event.as_ref()).chain(of_refunds) {
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
        excerpt.loose_refunds.clone_from(&ledger.loose_refunds);
        excerpt.failed.clone_from(&ledger.failed);
        excerpt.passed_over.clone_from(&ledger.passed_over);
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

    fn paid(&mut self, mut checkout: Checkout, wanted: Option<&[String]>) {
        if self.is_known_session(&checkout) || self.is_passed_over(&checkout, wanted) {
            return;
        }
        // One that waits for something else was told what it is for.
        let is_sorted = |waiting: &Waiting| !matches!(waiting.why, WaitingFor::Payment | WaitingFor::Items);
        let is_told = wanted.is_none()
            || self.waiting(&checkout.session).is_some_and(is_sorted)
            || self.passed_over(&checkout.session).is_some();
        if let Some(before) = self.waiting(&checkout.session).map(|waiting| waiting.checkout.clone())
            && self.agrees(&before, &checkout)
        {
            checkout.fill_in(&before);
            // It was paid when the first event said so, though it could not be admitted then (R1).
            if before.payment == Payment::Paid {
                checkout.at = checkout.at.min(before.at);
            }
        }
        if is_told {
            self.admit_or_wait(checkout);
        } else {
            self.wait(checkout, WaitingFor::Items);
        }
    }

    fn passed_over(&self, session: &SessionId) -> Option<&PassedOver> {
        self.ledger.passed_over.iter().find(|over| over.session == *session)
    }

    /// Whether it is known that a session is for something else than what is meant.
    fn is_passed_over(&mut self, checkout: &Checkout, wanted: Option<&[String]>) -> bool {
        let Some((over, wanted)) = self.passed_over(&checkout.session).zip(wanted) else { return false };
        let is_meant = over.items.iter().any(|item| wanted.contains(item));
        self.intake.counts.ignored += usize::from(!is_meant);
        !is_meant
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

    fn unpaid(&mut self, checkout: Checkout, wanted: Option<&[String]>) {
        if self.is_known_session(&checkout) || self.is_passed_over(&checkout, wanted) {
            return;
        }
        if self.now - checkout.at > WAIT_MAX || self.has_failed(&checkout.session) {
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
        if let Some(what) = contradiction(checkout, buyer, purchase) {
            let text = format!(
                "event {} names session {} with {what} than the purchase on record; the record stands, and mails go \
                 where they went",
                checkout.event, checkout.session
            );
            self.intake.counts.invalid += 1;
            let session = checkout.session.clone();
            self.tell(MatterKind::Conflict, session.as_str(), Some(&session), text);
        } else {
            // Refunds can be added up from now on.
            let tells_the_amount = purchase.amount.is_none() && checkout.amount.is_some();
            self.intake.counts.duplicates += 1;
            self.found(Fact::Filled { checkout: Box::new(checkout.clone()) });
            if tells_the_amount {
                self.settle_refunds(&checkout.session, &checkout.event);
            }
        }
        true
    }

    /// Keeps a checkout until it can be admitted. What is known of it already is not forgotten.
    fn wait(&mut self, checkout: Checkout, why: WaitingFor) {
        let (events, contradicts) = (Vec::new(), Vec::new());
        let mut waiting = Waiting { why, since: self.now, checkout, events, contradicts };
        if let Some(mut before) = self.waiting(&waiting.checkout.session).cloned() {
            let agrees = self.agrees(&before.checkout, &waiting.checkout);
            waiting.contradicts.append(&mut before.contradicts);
            if !agrees {
                waiting.contradicts.push(waiting.checkout.event.clone());
            }
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
        let refunds = self.loose_refunds_of(&session, &checkout.refs);
        let is_refunded =
            refund::is_all_of(checkout.amount.as_ref(), refunds.iter().map(|loose| &loose.refund));
        let is_stopped = buyer_stopped || is_refunded || !kept_stops.is_empty();
        let mut steps = steps_at_admission(kind, is_stopped, self.now);
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
            refunds: Vec::new(),
            newsletter: None,
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
        self.link_refunds(&session, refunds);
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

    fn failed(&mut self, session: SessionId) {
        self.intake.counts.ignored += 1;
        if !self.has_failed(&session) && self.ledger.buyers.purchase(&session).is_none() {
            self.found(Fact::PaymentFailed { failed: FailedPayment { session, at: self.now } });
        }
    }

    fn has_failed(&self, session: &SessionId) -> bool {
        self.ledger.failed.iter().any(|failed| failed.session == *session)
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

/// R2: what an event says otherwise than the purchase of its session on record. A field that one of them lacks is no
/// difference.
pub(super) fn contradiction(checkout: &Checkout, buyer: &Buyer, purchase: &Purchase) -> Option<&'static str> {
    if checkout.email.as_ref().is_some_and(|email| email.buyer() != buyer.address) {
        return Some("another mail address");
    }
    let is_other = matches!((&checkout.amount, &purchase.amount), (Some(said), Some(known)) if said != known);
    is_other.then_some("another amount")
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
