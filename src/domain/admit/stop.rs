//! R7: what stops a purchase, and how it finds it.

use std::collections::BTreeMap;

use super::Clerk;
use crate::domain::event::{StopSignal, StopTarget};
use crate::domain::fact::{Fact, Whom};
use crate::domain::ids::{EventId, SessionId};
use crate::domain::ledger::{LooseStop, MarkKind, Refs};
use crate::domain::matter::MatterKind;
use crate::domain::time::Timestamp;

/// How surely a stop's ids name a purchase.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Link {
    /// Only the customer is the same, and nothing speaks against it.
    Customer,
    /// The payment, the invoice or the subscription is the same.
    Exact,
}

/// Whether `stop` names the purchase with `refs`. The customer is the last resort, never used against an id that
/// differs, and never for a purchase made after the stop; the address is never used.
pub(super) fn link(refs: &Refs, paid_at: Timestamp, stop: &Refs, stopped_at: Timestamp) -> Option<Link> {
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

impl Clerk {
    pub(super) fn loose_stops_of(
        &self,
        session: &SessionId,
        refs: &Refs,
        paid_at: Timestamp,
    ) -> Vec<(Link, LooseStop)> {
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

    pub(super) fn stop(&mut self, stop: StopSignal) {
        if stop.asked {
            self.ask_no_more(&stop.event);
        }
        if self.known.contains_key(&stop.event) || self.of_the_forgotten(&stop) {
            self.intake.counts.duplicates += 1;
            return;
        }
        self.known.insert(stop.event.clone(), None);
        self.intake.counts.stops += 1;
        let event = Some(stop.event.clone());
        let reason = Some(stop.reason.clone());
        let (quiet, asked) = (stop.quiet, stop.asked);
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
                let stop = LooseStop { at: stop.at, reason, event, session, refs, asked, lifted: None };
                self.keep_unlinked(stop, quiet);
            }
            StopTarget::Refs(refs) => {
                let Some((link, sessions)) = self.sessions_of(&refs, stop.at) else {
                    let (session, lifted) = (None, None);
                    let stop = LooseStop { at: stop.at, reason, event, session, refs, asked, lifted };
                    return self.keep_unlinked(stop, quiet);
                };
                for session in sessions {
                    self.mark_stopped(Whom::Session(session), stop.at, reason.clone(), event.clone());
                }
                // The purchase that it names exactly, or another of this customer, may still come.
                if link == Link::Customer {
                    let kept =
                        LooseStop { at: stop.at, reason, event, session: None, refs, asked, lifted: None };
                    let kept = self.ledger.forgotten.hidden(&kept).unwrap_or(kept);
                    self.found(Fact::StopKept { stop: Box::new(kept) });
                }
            }
        }
    }

    /// The payment service was asked whose a stop is that was kept before: it is taken in anew, with what was told.
    fn ask_no_more(&mut self, event: &EventId) {
        let kept =
            self.ledger.loose_stops.iter().find(|kept| kept.event.as_ref() == Some(event) && !kept.asked);
        if let Some(kept) = kept.filter(|kept| kept.is_in_force()).cloned() {
            self.found(Fact::StopLinked { stop: Box::new(kept) });
            self.known.remove(event);
        }
    }

    /// R17: whether a stop is of what was forgotten, and of nothing else: there is nothing left to stop.
    pub(super) fn of_the_forgotten(&self, stop: &StopSignal) -> bool {
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

    fn keep_unlinked(&mut self, stop: LooseStop, quiet: bool) {
        if let Some(hidden) = self.ledger.forgotten.hidden(&stop) {
            // It names a customer who was forgotten: most likely a purchase of then. One that the customer makes anew
            // is stopped by it when it comes; nobody needs to be told.
            return self.found(Fact::StopKept { stop: Box::new(hidden) });
        }
        let (event, reason) = (stop.event.clone(), stop.reason.clone().unwrap_or_default());
        let session = stop.session.clone();
        // Two events of one refund are one matter.
        if self.is_of_waiting(&stop) {
            self.found(Fact::StopKept { stop: Box::new(stop) });
            return;
        }
        let named = session.as_ref().map(SessionId::as_str).or(stop.refs.strongest()).map(str::to_owned);
        self.found(Fact::StopKept { stop: Box::new(stop) });
        let Some(event) = event.filter(|_| !quiet) else { return };
        let text = format!(
            "event {event} ({reason}) stops a purchase that is not known here; if the purchase comes later it is \
             stopped then; if it is one of those on record, stop it by hand: stepmail mark-stopped SESSION"
        );
        let subject = named.as_deref().unwrap_or(event.as_str());
        self.tell(MatterKind::UnlinkedStop, subject, session.as_ref(), text);
    }

    /// Whether a stop is of a checkout that waits, and will be found when that becomes a purchase.
    fn is_of_waiting(&self, stop: &LooseStop) -> bool {
        self.ledger.waiting.iter().map(|waiting| &waiting.checkout).any(|checkout| {
            let named = stop.session.as_ref() == Some(&checkout.session);
            named || link(&checkout.refs, checkout.at, &stop.refs, stop.at) == Some(Link::Exact)
        })
    }

    pub(super) fn mark_stopped(
        &mut self,
        whom: Whom,
        at: Timestamp,
        reason: Option<String>,
        event: Option<EventId>,
    ) {
        self.found(Fact::Marked { whom, mark: MarkKind::Stopped, at, reason, event });
    }

    /// The purchases a stop names: exactly, or else all that have only the customer in common with it.
    pub(super) fn sessions_of(&self, refs: &Refs, at: Timestamp) -> Option<(Link, Vec<SessionId>)> {
        let mut by_link: BTreeMap<Link, Vec<SessionId>> = BTreeMap::new();
        for purchase in self.ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases) {
            if let Some(link) = link(&purchase.refs, purchase.paid_at, refs, at) {
                by_link.entry(link).or_default().push(purchase.session.clone());
            }
        }
        by_link.pop_last()
    }
}
