//! What a run asks the payment service, and how the answers meet the ledger.

use std::collections::{HashMap, HashSet};

use crate::clock::Clock;
use crate::domain::admit::Bought;
use crate::domain::event::{Incoming, StopSignal, StopTarget};
use crate::domain::guard::ServiceClock;
use crate::domain::ids::{SessionId, Step};
use crate::domain::ledger::{Ledger, Purchase, Refs, WaitingFor};
use crate::domain::policy::window;
use crate::domain::time::Timestamp;
use crate::run::{Asked, Book, Catalogue, Task, Unread as Unasked};
use crate::source::stripe::{Asking, By, Origin, Polled, missed};
use crate::source::{PollError, Reading, Stripe};

use super::Place;

/// What the seller says is meant, and who can be asked what was bought.
pub(super) struct Counter<'a> {
    pub(super) stripe: Option<&'a Stripe>,
    pub(super) wanted: &'a [String],
}

impl Catalogue for Counter<'_> {
    fn bought(&self, session: &SessionId) -> Result<Option<Bought>, Unasked> {
        if self.wanted.is_empty() {
            // The choice was dropped while this one waited: everything is meant now.
            return Ok(Some(Bought { session: session.clone(), items: Vec::new(), is_meant: true }));
        }
        let Some(stripe) = self.stripe else {
            return Err(Unasked::Later("nobody can be asked what was bought".to_owned()));
        };
        match stripe.items(session) {
            Ok(Some(items)) => {
                let is_meant = items.iter().any(|item| self.wanted.contains(item));
                Ok(Some(Bought { session: session.clone(), items, is_meant }))
            }
            Ok(None) | Err(PollError::Absent | PollError::Odd(_)) => Ok(None),
            Err(error @ PollError::Refused(_)) => Err(Unasked::Refused(error.to_string())),
            Err(error @ PollError::Failed(_)) => Err(Unasked::Later(error.to_string())),
        }
    }
}

/// Reads what happened at the payment service. That is a batch like any other: what a held run leaves is read again. A
/// pretended time would move the reading to where no event is.
pub(super) fn poll(
    place: &Place,
    book: &dyn Book,
    task: &mut Task<'_>,
    backfill: Option<Timestamp>,
    clock: &Clock,
) {
    let Some(stripe) = &place.stripe else { return };
    if !super::asks(stripe, clock) {
        tracing::warn!("Stripe is not asked, since --now pretends a time");
        return;
    }
    let (now, ledger) = (task.moment.now, book.ledger());
    let last = book.last_reading(Stripe::NAME);
    let asking = Asking {
        last,
        backfill,
        go_live: ledger.go_live,
        now,
        open: open(ledger, now),
        knows: &|session| {
            ledger.buyers.purchase(session).is_some() || ledger.forgotten.knows_session(session)
        },
    };
    let polled = stripe.poll(&asking).and_then(|mut polled| {
        find_purchases(stripe, ledger, &mut polled.reading)?;
        Ok(polled)
    });
    if let (Some(said), false) = (stripe.time(), clock.is_fixed()) {
        task.known.service = Some(ServiceClock { said, ours: clock.later(task.moment) });
    }
    let (failed, until) = match polled {
        Ok(Polled { reading, until }) => {
            super::say_what_was_dropped(&reading, place.settings.rules.livemode);
            task.batch.extend(reading.incoming);
            (None, until)
        }
        Err(error @ PollError::Refused(_)) => (Some(Unasked::Refused(error.to_string())), None),
        Err(error) => (Some(Unasked::Later(error.to_string())), None),
    };
    task.readings.push(Asked { source: Stripe::NAME, failed, until, missed: missed(last, now) });
}

/// The sessions of which an event that is gone may have told something that matters: those that wait, and those with mails to
/// come.
fn open(ledger: &Ledger, now: Timestamp) -> Vec<SessionId> {
    let may_leave = |purchase: &Purchase, step: Step| {
        let closes = window(step).closes;
        purchase.steps.get(step).is_open() && closes.is_none_or(|span| now < purchase.paid_at + span)
    };
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let with_mails = purchases.filter(|purchase| Step::ALL.into_iter().any(|step| may_leave(purchase, step)));
    let waiting = ledger.waiting.iter().map(|waiting| waiting.checkout.session.clone());
    waiting.chain(with_mails.map(|purchase| purchase.session.clone())).collect()
}

/// The ids by which a stop can find its purchase: those on record, and those of the checkouts of this batch. What may be
/// something else that the shop sells is not among them.
struct KnownIds(HashSet<String>);

impl KnownIds {
    fn of(ledger: &Ledger, reading: &Reading) -> Self {
        let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
        let waiting = ledger.waiting.iter().filter(|waiting| waiting.why != WaitingFor::Items);
        let batch = reading.incoming.iter().filter_map(|incoming| match incoming {
            Incoming::Checkout(checkout) => Some(&checkout.refs),
            _ => None,
        });
        let waiting = waiting.map(|waiting| &waiting.checkout.refs);
        let all = purchases.map(|purchase| &purchase.refs).chain(waiting).chain(batch);
        Self(
            all.flat_map(|refs| [&refs.payment_intent, &refs.invoice, &refs.subscription])
                .flatten()
                .cloned()
                .collect(),
        )
    }

    fn have(&self, refs: &Refs) -> bool {
        let ids = [&refs.payment_intent, &refs.invoice, &refs.subscription];
        ids.into_iter().flatten().any(|id| self.0.contains(id))
    }
}

/// Asks whose they are, of those stops that name no purchase on record: a subscription's first payment, one from before
/// go-live, or something else that the shop sells. So it does for those that files and webhooks brought, of which nobody
/// has asked.
///
/// # Errors
/// [`PollError::Failed`]: the reading is to be made again.
fn find_purchases(stripe: &Stripe, ledger: &Ledger, reading: &mut Reading) -> Result<(), PollError> {
    let known = KnownIds::of(ledger, reading);
    let loose =
        ledger.loose_stops.iter().filter(|stop| !stop.asked && stop.is_in_force() && stop.session.is_none());
    let again = loose.filter_map(|stop| {
        let (reason, event) = (stop.reason.clone().unwrap_or_default(), stop.event.clone()?);
        let target = StopTarget::Refs(stop.refs.clone());
        // It was told when it came.
        Some(Incoming::Stop(StopSignal { event, at: stop.at, reason, target, quiet: true, asked: false }))
    });
    let again: Vec<Incoming> = again.collect();
    let from = reading.incoming.len();
    reading.incoming.extend(again);
    let mut answers: HashMap<Refs, Option<(Refs, Option<Origin>)>> = HashMap::new();
    for (n, incoming) in reading.incoming.iter_mut().enumerate() {
        let Some(signal) = incoming.signal_mut() else { continue };
        let StopTarget::Refs(refs) = &mut signal.target else { continue };
        if known.have(refs) || refs.is_only_a_customer() || n < from && ledger.knows_event(&signal.event) {
            continue;
        }
        if !answers.contains_key(refs) {
            answers.insert(refs.clone(), place_of(stripe, &known, refs)?);
        }
        let answer = answers.get(refs).cloned().flatten();
        let Some((found, origin)) = answer else { continue };
        signal.asked = true;
        *refs = found;
        let Some(origin) = origin else { continue };
        let on_record = ledger.buyers.purchase(&origin.session).is_some()
            || ledger.waiting.iter().any(|waiting| waiting.checkout.session == origin.session);
        if origin.is_ours || on_record {
            // One from before go-live will not come any more, unless its money came late.
            signal.quiet |= origin.created < ledger.go_live && !on_record;
            signal.target = StopTarget::Session(origin.session);
        } else if n < from {
            // It never becomes a purchase here.
            *incoming = Incoming::Ignored;
        }
    }
    Ok(())
}

/// What the service says of a stop's ids; none where it may not tell.
fn place_of(
    stripe: &Stripe,
    known: &KnownIds,
    refs: &Refs,
) -> Result<Option<(Refs, Option<Origin>)>, PollError> {
    let mut found = refs.clone();
    match origin(stripe, known, &mut found) {
        Ok(origin) => Ok(Some((found, origin))),
        Err(PollError::Absent | PollError::Odd(_)) => Ok(Some((refs.clone(), None))),
        // `check` says so; the stop is told as one that finds no purchase, and asked of again.
        Err(error @ PollError::Refused(_)) => {
            tracing::warn!(%error, "a refund may not find its purchase");
            Ok(None)
        }
        Err(error @ PollError::Failed(_)) => Err(error),
    }
}

/// The session that a stop is of, as far as that can be told; what is learned of its ids is added.
fn origin(stripe: &Stripe, known: &KnownIds, refs: &mut Refs) -> Result<Option<Origin>, PollError> {
    if let Some(payment) = &refs.payment_intent {
        if let Some(origin) = stripe.origin(By::Payment(payment))? {
            return Ok(Some(origin));
        }
        let found = match &refs.invoice {
            Some(invoice) => stripe.first_of(invoice)?,
            None => stripe.paid_for(payment)?,
        };
        (refs.invoice, refs.subscription) = (found.invoice, found.subscription);
    }
    match &refs.subscription {
        Some(subscription) if !known.have(refs) => stripe.origin(By::Subscription(subscription)),
        _ => Ok(None),
    }
}
