//! R12: clocks that are wrong, copies, and backups that were put back. Any of these holds all closing and sending.

use super::adopt::has_trial;
use super::decide::Closing;
use super::ledger::{CloseReason, Ledger};
use super::matter::MatterKind;
use super::policy::Retention;
use super::time::{Seconds, Timestamp};

/// How far a clock may lie behind a recorded time: two readings of one clock, corrected in between.
const BEHIND_MAX: Seconds = Seconds::minutes(5);
/// How far a clock may lie from a service's.
const APART_MAX: Seconds = Seconds::minutes(10);
/// A longer pause than this is more likely a wrong clock than a holiday.
const PAUSE_MAX: Seconds = Seconds::days(45);

/// What is known besides the ledger when a run starts.
#[derive(Clone, Debug, Default)]
pub struct Known<'a> {
    /// This installation's id; none where no state folder can be kept.
    pub installation: Option<&'a str>,
    /// What the mark in the state folder says of this ledger.
    pub mark: Option<MarkSeen>,
    /// Whether a journal lies beside the ledger that extends a newer ledger than this one.
    pub journal_ahead: bool,
    /// Where this ledger ran before, if it is another place that still holds it.
    pub former: Option<&'a str>,
    /// Whether the mail service is a real one: what it takes reaches buyers.
    pub real: bool,
    /// The day this program was released; none where `--now` sets the clock.
    pub released: Option<Timestamp>,
    /// A service's clock, where one was asked in this run.
    pub service: Option<ServiceClock>,
    /// Whether a human accepted the clock for this run.
    pub clock_accepted: bool,
}

/// A service's `Date`, beside ours at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceClock {
    /// What the service's clock said.
    pub said: Timestamp,
    /// What ours said.
    pub ours: Timestamp,
}

impl ServiceClock {
    /// Whether the two tell the same time.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.apart().is_none()
    }

    /// How far the two lie apart, if that is too far.
    fn apart(&self) -> Option<Seconds> {
        let apart = Seconds((self.said - self.ours).0.abs());
        (apart > APART_MAX).then_some(apart)
    }
}

/// What the mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkSeen {
    /// The newest generation this installation wrote.
    pub generation: u64,
    /// When it last ran; none where only hands have worked here.
    pub last_run_at: Option<Timestamp>,
}

/// Why a run neither closes nor sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which guard.
    pub kind: MatterKind,
    /// What, and what to do about it.
    pub text: String,
}

impl Held {
    /// Whether it is the clock that is doubted.
    #[must_use]
    pub fn is_of_the_clock(&self) -> bool {
        matches!(self.kind, MatterKind::ClockBehind | MatterKind::ClockAhead)
    }
}

/// Names every guard that holds this run.
#[must_use]
pub fn guard(ledger: &Ledger, known: &Known<'_>, now: Timestamp) -> Vec<Held> {
    let mut held = Vec::new();
    if !known.clock_accepted {
        held.extend(clock(ledger, known, now));
    }
    held.extend(copy(ledger, known));
    if known.journal_ahead || known.mark.is_some_and(|mark| mark.generation > ledger.generation) {
        held.push(Held {
            kind: MatterKind::Restored,
            text: format!(
                "this ledger (generation {}) is older than the last one written here{}: a backup was put back; \
                 nothing is closed or sent, because it does not know what was sent since; put the newest ledger back, \
                 or, if it is lost, run `stepmail adopt`",
                ledger.generation,
                known.mark.map_or(String::new(), |mark| format!(" (generation {})", mark.generation)),
            ),
        });
    }
    if known.real && has_trial(ledger) {
        held.push(Held {
            kind: MatterKind::Trial,
            text: "mails that only the outbox took stand in this ledger as sent, and now mails would leave for real; \
                   nothing is closed or sent until a person says what they count for: `stepmail adopt --outbox keep` \
                   (they count as sent) or `stepmail adopt --outbox reopen` (they are sent to their buyers)"
                .to_owned(),
        });
    }
    held
}

fn copy(ledger: &Ledger, known: &Known<'_>) -> Option<Held> {
    let run = ledger.last_run.as_ref()?;
    let other =
        run.installation.as_deref().zip(known.installation).is_some_and(|(theirs, ours)| theirs != ours);
    let text = match known.former {
        Some(former) => format!(
            "this ledger ran at `{former}` before and is still there: one of the two is a copy; nothing is closed or \
             sent, so that they do not both mail the buyers; remove or rename the one that is not to go on, and stop its \
             schedule"
        ),
        None if other => format!(
            "another installation ran this ledger last, at {}: it is a copy, or the state folder was lost; nothing is \
             closed or sent, so that two copies do not both mail the buyers; once the other schedule is gone run \
             `stepmail adopt --newest`, or, if mails left after this copy was made, `stepmail adopt --older`",
            run.at
        ),
        None => return None,
    };
    Some(Held { kind: MatterKind::OtherInstallation, text })
}

fn clock(ledger: &Ledger, known: &Known<'_>, now: Timestamp) -> Option<Held> {
    let mark_run = known.mark.and_then(|mark| mark.last_run_at);
    let newest = ledger.newest_recorded().max(mark_run);
    if let Some(newest) = newest.filter(|newest| now + BEHIND_MAX < *newest) {
        return Some(Held {
            kind: MatterKind::ClockBehind,
            text: format!(
                "the clock says {now}, but something was recorded here at {newest}; nothing is closed or sent; \
                 set the clock, or run once with --accept-clock if the recorded time was the wrong one"
            ),
        });
    }
    if let Some(released) = known.released.filter(|released| now < *released) {
        return Some(Held {
            kind: MatterKind::ClockBehind,
            text: format!(
                "the clock says {now}, which is before this program was released ({released}); \
                 nothing is closed or sent; set the clock"
            ),
        });
    }
    if let Some(service) = &known.service {
        return service.apart().map(|apart| Held {
            kind: if service.ours > service.said { MatterKind::ClockAhead } else { MatterKind::ClockBehind },
            text: format!(
                "the clock says {}, and the mail service's says {}: {apart} apart; by a wrong clock mails would be closed \
                 or sent at the wrong time, so nothing is; set the clock",
                service.ours, service.said
            ),
        });
    }
    let last_run = ledger.last_run.as_ref().map(|run| run.at).max(mark_run)?;
    (now - last_run > PAUSE_MAX).then(|| Held {
        kind: MatterKind::ClockAhead,
        text: format!(
            "the clock says {now}, and the last run was {} before, at {last_run}; a clock that is ahead would close \
             what is still due, so nothing is closed or sent; if the clock is right, run once with --accept-clock",
            now - last_run
        ),
    })
}

/// Plans dated ahead of a clock that a human has accepted: they were dated by a wrong one. How long ago their attempts
/// were made cannot be known, nor whether the mail service still remembers the keys, so they are not tried again.
#[must_use]
pub fn plans_from_ahead(ledger: &Ledger, retention: Retention, now: Timestamp) -> Vec<Closing> {
    if retention == Retention::Forever {
        return Vec::new();
    }
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let steps = purchases
        .flat_map(|purchase| purchase.steps.iter().map(move |(step, state)| (purchase, step, state)));
    steps
        .filter(|(_, _, state)| state.open_attempt().is_some_and(|attempt| attempt.first_at > now))
        .map(|(purchase, step, _)| Closing {
            session: purchase.session.clone(),
            step,
            reason: CloseReason::UnknownResult,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ledger::LastRun;

    fn time(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn known() -> Known<'static> {
        Known { installation: Some("here"), ..Known::default() }
    }

    fn ledger(last_run: &str, installation: &str) -> Ledger {
        let mut ledger = Ledger::empty(time("2026-09-01T00:00:00Z"), None);
        ledger.generation = 7;
        ledger.last_run =
            Some(LastRun { at: time(last_run), installation: Some(installation.into()), path: None });
        ledger
    }

    fn kinds(ledger: &Ledger, known: &Known<'_>, now: &str) -> Vec<MatterKind> {
        guard(ledger, known, time(now)).into_iter().map(|held| held.kind).collect()
    }

    #[test]
    fn c024_a_clock_may_be_five_minutes_behind_and_no_more() {
        let ledger = ledger("2026-10-01T00:05:00Z", "here");
        assert_eq!(kinds(&ledger, &known(), "2026-10-01T00:00:00Z"), []);
        assert_eq!(kinds(&ledger, &known(), "2026-09-30T23:59:59Z"), [MatterKind::ClockBehind]);
        let accepted = Known { clock_accepted: true, ..known() };
        assert_eq!(kinds(&ledger, &accepted, "2026-09-30T23:59:59Z"), []);
        let mark = Known {
            mark: Some(MarkSeen { generation: 7, last_run_at: Some(time("2026-10-02T00:00:00Z")) }),
            ..known()
        };
        assert_eq!(kinds(&ledger, &mark, "2026-10-01T12:00:00Z"), [MatterKind::ClockBehind]);
    }

    #[test]
    fn r12_a_clock_before_the_release_is_wrong() {
        let empty = Ledger::empty(time("2026-09-01T00:00:00Z"), None);
        let known = Known { released: Some(time("2026-12-01T00:00:00Z")), ..known() };
        assert_eq!(kinds(&empty, &known, "2026-11-30T23:59:59Z"), [MatterKind::ClockBehind]);
        assert_eq!(kinds(&empty, &known, "2026-12-01T00:00:00Z"), []);
    }

    #[test]
    fn r12_forty_five_days_without_a_run_and_no_more() {
        let ledger = ledger("2026-10-01T00:00:00Z", "here");
        assert_eq!(kinds(&ledger, &known(), "2026-11-15T00:00:00Z"), []);
        assert_eq!(kinds(&ledger, &known(), "2026-11-15T00:00:01Z"), [MatterKind::ClockAhead]);
        // A quiet run writes only the mark; it is a run all the same.
        let mark = Known {
            mark: Some(MarkSeen { generation: 7, last_run_at: Some(time("2026-11-01T00:00:00Z")) }),
            ..known()
        };
        assert_eq!(kinds(&ledger, &mark, "2026-12-10T00:00:00Z"), []);
        let accepted = Known { clock_accepted: true, ..known() };
        assert_eq!(kinds(&ledger, &accepted, "2027-11-15T00:00:01Z"), []);
    }

    #[test]
    fn r12_a_service_that_says_another_time_holds_the_run_and_one_that_agrees_explains_a_pause() {
        let now = "2026-12-10T00:00:00Z";
        let service = |said: &str| Known {
            service: Some(ServiceClock { said: time(said), ours: time(now) }),
            ..known()
        };
        let recent = ledger("2026-12-09T00:00:00Z", "here");
        assert_eq!(kinds(&recent, &service("2026-12-10T00:10:00Z"), now), []);
        assert_eq!(kinds(&recent, &service("2026-12-09T23:50:00Z"), now), []);
        assert_eq!(kinds(&recent, &service("2026-12-10T00:10:01Z"), now), [MatterKind::ClockBehind]);
        assert_eq!(kinds(&recent, &service("2026-12-09T23:49:59Z"), now), [MatterKind::ClockAhead]);
        let accepted = Known { clock_accepted: true, ..service("2026-12-01T00:00:00Z") };
        assert_eq!(kinds(&recent, &accepted, now), []);
        let long_ago = ledger("2026-10-01T00:00:00Z", "here");
        assert_eq!(kinds(&long_ago, &known(), now), [MatterKind::ClockAhead]);
        assert_eq!(kinds(&long_ago, &service(now), now), []);
    }

    #[test]
    fn c062_c077_copies_and_backups_do_not_send() {
        let ours = ledger("2026-10-01T00:00:00Z", "here");
        let theirs = ledger("2026-10-01T00:00:00Z", "there");
        let now = "2026-10-02T00:00:00Z";
        let mark = |generation| Known {
            mark: Some(MarkSeen { generation, last_run_at: Some(time("2026-10-01T00:00:00Z")) }),
            ..known()
        };
        assert_eq!(kinds(&ours, &mark(7), now), []);
        // A crash between the snapshot and the mark leaves the mark behind: that is no backup.
        assert_eq!(kinds(&ours, &mark(6), now), []);
        assert_eq!(kinds(&ours, &mark(8), now), [MatterKind::Restored]);
        assert_eq!(kinds(&ours, &Known { journal_ahead: true, ..known() }, now), [MatterKind::Restored]);
        assert_eq!(kinds(&theirs, &known(), now), [MatterKind::OtherInstallation]);
        // A copy beside the one that runs, with the same state folder.
        assert_eq!(
            kinds(&ours, &Known { former: Some("/shop/ledger.json"), ..known() }, now),
            [MatterKind::OtherInstallation]
        );
        // Without a state folder the ledger alone is trusted.
        assert_eq!(kinds(&theirs, &Known { installation: None, ..known() }, now), []);
        // --accept-clock is about the clock alone.
        assert_eq!(
            kinds(&theirs, &Known { clock_accepted: true, ..known() }, now),
            [MatterKind::OtherInstallation]
        );
    }
}
