//! What happened since the last good reading (`GET /v1/events`). The hourly job runs behind a router that no webhook
//! passes, so it asks.
//!
//! A poll is all or nothing: a fault on its second page yields nothing, and the reading does not move on. Events show up
//! late and with earlier times, so each poll goes back six hours before the last; what is known already counts once (R2).

use std::collections::HashSet;
use std::time::Duration;

use super::super::{Reading, parse};
use super::api::{PollError, Stripe};
use crate::domain::event::Incoming;
use crate::domain::ids::SessionId;
use crate::domain::time::{Seconds, Timestamp};

/// How far each poll goes back before the last good one: an event can appear late with an earlier time.
const OVERLAP: Seconds = Seconds::hours(6);
/// What is younger may not be there yet, while what is younger still is.
const YOUNGEST: Seconds = Seconds(60);
/// Events are kept for thirty days, less one for whatever is between the two clocks.
const KEPT: Seconds = Seconds::days(29);
/// So much of a time without events is read at once,
const PIECE: Seconds = Seconds::days(30);
/// and no further piece is begun after this.
const PIECES_MAX: Duration = Duration::from_secs(5 * 60);
/// All that start or stop something; the service takes up to twenty.
const TYPES: [&str; 12] = [
    "checkout.session.completed",
    "checkout.session.async_payment_succeeded",
    "checkout.session.async_payment_failed",
    "charge.refunded",
    "charge.refund.updated",
    "refund.created",
    "refund.updated",
    "refund.failed",
    "charge.dispute.created",
    "customer.subscription.deleted",
    "customer.subscription.updated",
    "customer.deleted",
];

/// From when on is asked, and what of it is known.
pub struct Asking<'a> {
    /// The last good reading.
    pub last: Option<Timestamp>,
    /// Read from then on, though the reading has come further.
    pub backfill: Option<Timestamp>,
    /// R4: where the first reading begins.
    pub go_live: Timestamp,
    /// Now.
    pub now: Timestamp,
    /// The sessions of which something may be missed where events are gone: those that wait, and those with mails to come.
    pub open: Vec<SessionId>,
    /// Whether a session is on record.
    pub knows: &'a dyn Fn(&SessionId) -> bool,
}

impl Asking<'_> {
    fn since(&self) -> Timestamp {
        // A reading that lies ahead was dated by a clock that was wrong.
        let last = self.last.map_or(self.go_live, |last| last.min(self.now));
        self.backfill.map_or(last, |backfill| backfill.min(last))
    }
}

/// The time since the last good reading of which no events are left.
#[must_use]
pub fn missed(last: Option<Timestamp>, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    last.filter(|last| now - *last > KEPT).map(|last| (last, now - KEPT))
}

/// What a poll came to.
#[derive(Debug, Default)]
pub struct Polled {
    /// What happened.
    pub reading: Reading,
    /// Until when it is known; none: all of it. A long time is read in pieces, run by run.
    pub until: Option<Timestamp>,
}

impl Stripe {
    /// Everything since the last good reading, or since `go_live` where there was none. What R1 to R4 make of it is not
    /// said here. Of the time of which no events are left, the sessions themselves tell.
    ///
    /// # Errors
    /// [`PollError`]: nothing was read, and the next poll begins where this one did.
    pub fn poll(&self, asking: &Asking<'_>) -> Result<Polled, PollError> {
        let (since, now) = (asking.since(), asking.now);
        let first = if asking.last.is_some() || asking.backfill.is_some() { since - OVERLAP } else { since };
        let mut all = Reading::default();
        let kept = now - KEPT;
        if since < kept {
            // The oldest first: what is left for the next run is then younger than all that is on record (R3).
            let started = self.clock().running();
            let mut from = first;
            while from < kept {
                let until = kept.min(from + PIECE);
                self.fill(from, until, asking, &mut all)?;
                from = until;
                if until < kept && self.clock().running().saturating_sub(started) > PIECES_MAX {
                    return Ok(Polled { reading: all, until: Some(until) });
                }
            }
        }
        let mut path = format!(
            "/v1/events?limit=100&created[gte]={}&created[lte]={}",
            first.unix(),
            (now - YOUNGEST).unix()
        );
        for stripe_type in TYPES {
            path.push_str("&types[]=");
            path.push_str(stripe_type);
        }
        let mut events = Reading::default();
        self.pages(&path, |body, _| {
            let page =
                parse("Stripe", body, self.rules()).map_err(|error| PollError::Failed(error.to_string()))?;
            events.incoming.extend(page.incoming);
            events.other_mode += page.other_mode;
            events.thin += page.thin;
            Ok(())
        })?;
        if since < kept {
            // A session that an event tells of is told by that.
            let told: HashSet<SessionId> =
                events.incoming.iter().filter_map(Incoming::checkout).map(|c| c.session.clone()).collect();
            all.incoming.retain(|incoming| incoming.checkout().is_none_or(|c| !told.contains(&c.session)));
            self.look_at_open(asking, &mut all)?;
        }
        events.incoming.extend(all.incoming);
        Ok(Polled { reading: events, until: None })
    }
}
