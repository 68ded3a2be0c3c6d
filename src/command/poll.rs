//! What a run asks the payment service, and how the answers meet the ledger.

use std::collections::HashSet;

use crate::clock::Clock;
use crate::domain::admit::Bought;
use crate::domain::event::{Incoming, StopTarget};
use crate::domain::guard::ServiceClock;
use crate::domain::ids::{SessionId, Step};
use crate::domain::ledger::{Ledger, Purchase, Refs};
use crate::domain::policy::window;
use crate::domain::time::Timestamp;
use crate::run::{Asked, Book, Catalogue, Task, Unread};
use crate::source::stripe::{Asking, By, Origin, missed};
use crate::source::{PollError, Reading, Stripe};

use super::Place;

impl Catalogue for Stripe {
    fn bought(&self, session: &SessionId) -> Result<Option<Bought>, Unread> {
        match self.items(session) {
            Ok(Some(items)) => {
                let is_meant = items.iter().any(|item| self.wants(item));
                Ok(Some(Bought { session: session.clone(), items, is_meant }))
            }
            Ok(None) => Ok(None),
            Err(error @ PollError::Refused(_)) => Err(Unread::Refused(error.to_string())),
            Err(error) => Err(Unread::Later(error.to_string())),
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
    let polled = stripe.poll(&asking).and_then(|mut reading| {
        find_purchases(stripe, ledger, &mut reading)?;
        Ok(reading)
    });
    if let (Some(said), false) = (stripe.time(), clock.is_fixed()) {
        task.known.service = Some(ServiceClock { said, ours: clock.later(task.moment) });
    }
    let failed = match polled {
        Ok(reading) => {
            super::say_what_was_dropped(&reading, place.settings.rules.livemode);
            task.batch.extend(reading.incoming);
            None
        }
        Err(error @ PollError::Refused(_)) => Some(Unread::Refused(error.to_string())),
        Err(error) => Some(Unread::Later(error.to_string())),
    };
    task.readings.push(Asked { source: Stripe::NAME, failed, missed: missed(last, now) });
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

/// The ids by which a stop can find its purchase: those on record, and those of the checkouts of this batch.
struct KnownIds(HashSet<String>);

impl KnownIds {
    fn of(ledger: &Ledger, reading: &Reading) -> Self {
        let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
        let waiting = ledger.waiting.iter().map(|waiting| &waiting.checkout);
        let batch = reading.incoming.iter().filter_map(Incoming::checkout);
        let all = purchases
            .map(|purchase| &purchase.refs)
            .chain(waiting.chain(batch).map(|checkout| &checkout.refs));
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
/// go-live, or something else that the shop sells.
///
/// # Errors
/// [`PollError::Failed`]: the reading is to be made again.
fn find_purchases(stripe: &Stripe, ledger: &Ledger, reading: &mut Reading) -> Result<(), PollError> {
    let known = KnownIds::of(ledger, reading);
    for incoming in &mut reading.incoming {
        let Some(signal) = incoming.signal_mut() else { continue };
        let StopTarget::Refs(refs) = &mut signal.target else { continue };
        if known.have(refs) || ledger.knows_event(&signal.event) {
            continue;
        }
        match origin(stripe, &known, refs) {
            // It never becomes a purchase here.
            Ok(Some(origin)) if !origin.is_ours => *incoming = Incoming::Ignored,
            Ok(Some(origin)) => {
                // One from before go-live will not come either, unless its money came late.
                signal.quiet =
                    origin.created < ledger.go_live && ledger.buyers.purchase(&origin.session).is_none();
                signal.target = StopTarget::Session(origin.session);
            }
            Ok(None) => {}
            // `check` says so; the stop is told as one that finds no purchase.
            Err(error @ PollError::Refused(_)) => {
                tracing::warn!(%error, "a refund may not find its purchase");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
