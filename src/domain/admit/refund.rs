//! R7: money that goes back in parts. Several refunds stop a purchase together, once their sum reaches what was paid.

use super::Clerk;
use super::stop::Link;
use crate::domain::event::{Amount, RefundSignal, StopSignal, StopTarget};
use crate::domain::fact::{Fact, Whom};
use crate::domain::ids::{EventId, SessionId};
use crate::domain::ledger::{LooseRefund, Purchase, Refs, Refunded};
use crate::domain::matter::MatterKind;

/// What went back, of refunds in the currency that was paid in, less those that failed.
fn sum<'a>(paid: &Amount, refunds: impl Iterator<Item = &'a Refunded>) -> i64 {
    let counted = refunds.filter(|refund| !refund.failed && refund.amount.currency == paid.currency);
    counted.fold(0, |sum, refund| sum.saturating_add(refund.amount.value.max(0)))
}

/// Whether refunds add up to what was paid. What is not known is not reached.
pub(super) fn is_all_of<'a>(paid: Option<&Amount>, refunds: impl Iterator<Item = &'a Refunded>) -> bool {
    paid.is_some_and(|paid| paid.value > 0 && sum(paid, refunds) >= paid.value)
}

impl Clerk {
    /// Notes all refunds of a batch, then draws the consequences: two halves that came together are one whole.
    pub(super) fn refunds(&mut self, refunds: Vec<RefundSignal>) {
        let mut of_purchases = Vec::new();
        for RefundSignal { signal, refund, amount, failed } in refunds {
            if self.known.contains_key(&signal.event) || self.of_the_forgotten(&signal) {
                self.intake.counts.duplicates += 1;
                continue;
            }
            self.known.insert(signal.event.clone(), None);
            let refund = Refunded { id: refund, at: signal.at, amount, failed };
            match self.purchase_of(&signal) {
                Some(session) => {
                    let (id, event) = (refund.id.clone(), signal.event.clone());
                    let is_news = self.note(&session, refund, vec![signal.event]);
                    if failed {
                        self.tell_of_failure(&session, &id);
                    }
                    // What a person has lifted is not set again by the same money.
                    if is_news {
                        of_purchases.push((session, event));
                    } else {
                        self.intake.counts.ignored += 1;
                    }
                }
                None => self.keep(signal, refund),
            }
        }
        for (session, event) in of_purchases {
            self.settle_refunds(&session, &event);
        }
    }

    /// The purchase that a refund is of. The customer alone does not tell which of several purchases the sum is of.
    fn purchase_of(&self, signal: &StopSignal) -> Option<SessionId> {
        let session = match &signal.target {
            StopTarget::Refs(refs) => {
                let (link, mut sessions) = self.sessions_of(refs, signal.at)?;
                (link == Link::Exact).then(|| sessions.pop()).flatten()
            }
            StopTarget::Session(session) => Some(session.clone()),
            StopTarget::Buyer(_) => None,
        };
        session.filter(|session| self.ledger.buyers.purchase(session).is_some())
    }

    /// Notes a refund of a purchase. Says whether that changes what counts.
    fn note(&mut self, session: &SessionId, refund: Refunded, events: Vec<EventId>) -> bool {
        let before = self.refunds_of(session);
        self.found(Fact::Refunded { session: session.clone(), refund: Box::new(refund), events });
        self.refunds_of(session) != before
    }

    fn refunds_of(&self, session: &SessionId) -> Vec<Refunded> {
        self.ledger.buyers.purchase(session).map_or_else(Vec::new, |(_, purchase)| purchase.refunds.clone())
    }

    /// Keeps a refund until its purchase comes. Nobody is told: it may be of a purchase that never comes here, and if all of
    /// the money went back, the charge's own event says so.
    fn keep(&mut self, signal: StopSignal, refund: Refunded) {
        self.intake.counts.ignored += 1;
        let (refs, session) = match signal.target {
            StopTarget::Refs(refs) => (refs, None),
            StopTarget::Session(session) => (Refs::default(), Some(session)),
            StopTarget::Buyer(_) => return,
        };
        if signal.quiet {
            return;
        }
        let events = vec![signal.event];
        self.found(Fact::RefundKept { refund: Box::new(LooseRefund { refund, refs, session, events }) });
    }

    /// The refunds that were told before their purchase.
    pub(super) fn loose_refunds_of(&self, session: &SessionId, refs: &Refs) -> Vec<LooseRefund> {
        let is_its = |loose: &&LooseRefund| {
            let pairs = [
                (&refs.payment_intent, &loose.refs.payment_intent),
                (&refs.invoice, &loose.refs.invoice),
                (&refs.subscription, &loose.refs.subscription),
            ];
            loose.session.as_ref() == Some(session) || pairs.iter().any(|(a, b)| a.is_some() && a == b)
        };
        self.ledger.loose_refunds.iter().filter(is_its).cloned().collect()
    }

    /// Gives a purchase that was just admitted the refunds that were told before.
    pub(super) fn link_refunds(&mut self, session: &SessionId, refunds: Vec<LooseRefund>) {
        let mut last = None;
        for LooseRefund { refund, events, .. } in refunds {
            last = events.last().cloned().or(last);
            self.note(session, refund, events);
        }
        if let Some(event) = last {
            self.settle_refunds(session, &event);
        }
    }

    /// Stops a purchase whose money went back, or tells of a part.
    pub(super) fn settle_refunds(&mut self, session: &SessionId, event: &EventId) {
        let Some((_, purchase)) = self.ledger.buyers.purchase(session) else { return };
        if purchase.refunds.is_empty() {
            return;
        }
        if is_all_of(purchase.amount.as_ref(), purchase.refunds.iter()) {
            let counted = purchase.refunds.iter().filter(|refund| !refund.failed);
            let Some(at) = counted.map(|refund| refund.at).max() else { return };
            self.intake.counts.stops += usize::from(purchase.stopped.is_none());
            let reason = Some("refund".to_owned());
            return self.mark_stopped(Whom::Session(session.clone()), at, reason, Some(event.clone()));
        }
        self.intake.counts.ignored += 1;
        let total = total_of(purchase);
        if total > 0 {
            self.tell_of_part(Some(session), event, Some(total));
        }
    }

    /// A charge says that part of it went back.
    pub(super) fn partial_refund(&mut self, partial: &StopSignal, total: Option<i64>) {
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
        let is_known = |session: &SessionId| self.ledger.buyers.purchase(session).is_some();
        if partial.quiet && !sessions.iter().any(is_known) {
            return;
        }
        self.tell_of_part(sessions.first(), &partial.event, total);
    }

    /// Once per sum: the charge and each of its refunds tell of the same money.
    fn tell_of_part(&mut self, session: Option<&SessionId>, event: &EventId, total: Option<i64>) {
        let purchase = session.and_then(|session| self.ledger.buyers.purchase(session));
        if purchase.is_some_and(|(_, purchase)| purchase.stopped.is_some()) {
            return;
        }
        let subject = match (session, total) {
            (Some(session), Some(total)) => format!("{session}.{total}"),
            _ => event.to_string(),
        };
        let whose =
            session.map_or("a purchase not known here".to_owned(), |session| format!("session {session}"));
        let text = format!(
            "part of the money of {whose} went back (event {event}); that stops nothing; to stop the mails: stepmail \
             mark-stopped SESSION"
        );
        self.tell(MatterKind::PartialRefund, &subject, session, text);
    }

    /// R7: stopped is final. Whether the mails go on is for a person to say.
    fn tell_of_failure(&mut self, session: &SessionId, refund: &str) {
        let is_stopped =
            self.ledger.buyers.purchase(session).is_some_and(|(_, purchase)| purchase.stopped.is_some());
        let therefore = if is_stopped {
            "its mails stay stopped; if the buyer keeps the product and wants them: stepmail resume SESSION"
        } else {
            "its mails go on"
        };
        let text =
            format!("refund {refund} of session {session} failed, and the money stays with you; {therefore}");
        self.tell(MatterKind::RefundFailed, refund, Some(session), text);
    }
}

fn total_of(purchase: &Purchase) -> i64 {
    match &purchase.amount {
        Some(paid) => sum(paid, purchase.refunds.iter()),
        // How much was paid is not known, so that the parts tell only themselves.
        None => {
            purchase.refunds.iter().filter(|refund| !refund.failed).map(|refund| refund.amount.value).sum()
        }
    }
}
