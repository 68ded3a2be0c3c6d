//! The clock: the only place that reads it.
//!
//! Three readings that must not be mixed up. `now` is what decisions are made at; `--now` fixes it. `machine` is always
//! the machine's own: ages of locks and signs of life (DESIGN 2) mean nothing in a pretended time. `running` only ever
//! grows, whatever is done to the machine's clock meanwhile.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::domain::time::{Seconds, Timestamp};

/// When a command read the clock.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time of its decisions.
    pub now: Timestamp,
    running: Duration,
}

/// A source of time.
#[derive(Clone, Debug)]
pub struct Clock {
    fixed: Option<Timestamp>,
    started: Instant,
    #[cfg(test)]
    shift: std::sync::Arc<Shift>,
}

/// What a test adds to the two readings of the machine, in seconds.
#[cfg(test)]
#[derive(Debug, Default)]
struct Shift {
    machine: std::sync::atomic::AtomicI64,
    running: std::sync::atomic::AtomicU64,
}

impl Clock {
    /// The machine's clock, or `--now` where it is given.
    #[must_use]
    pub fn new(fixed: Option<Timestamp>) -> Self {
        Self {
            fixed,
            started: Instant::now(),
            #[cfg(test)]
            shift: std::sync::Arc::default(),
        }
    }

    /// The time that decisions are made at. To be read once per command, after the lock is held.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.fixed.unwrap_or_else(|| self.machine())
    }

    /// Whether `now` stands still.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// The machine's own time, whatever `--now` says. A clock outside the years 2000 to 2200 counts as the nearest end.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    pub fn machine(&self) -> Timestamp {
        let seconds = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            Err(_) => 0,
        };
        #[cfg(test)]
        let seconds = seconds.saturating_add(self.shift.machine.load(std::sync::atomic::Ordering::SeqCst));
        Timestamp::from_clock(seconds)
    }

    /// Reads `now`, once per command (DESIGN 2), together with the span that later times are measured from.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment { now: self.now(), running: self.running() }
    }

    /// The time for a decision made later in the same command: `now` plus the span that passed since it was read, unless
    /// `now` is pretended.
    #[must_use]
    pub fn later(&self, moment: Moment) -> Timestamp {
        let passed = self.running().saturating_sub(moment.running).as_secs();
        if self.is_fixed() {
            moment.now
        } else {
            moment.now + Seconds(i64::try_from(passed).unwrap_or(i64::MAX))
        }
    }

    /// How long this clock exists, by a reading that nobody can set. It may stand still while the machine sleeps.
    #[must_use]
    pub fn running(&self) -> Duration {
        let running = self.started.elapsed();
        #[cfg(test)]
        let running =
            running + Duration::from_secs(self.shift.running.load(std::sync::atomic::Ordering::SeqCst));
        running
    }

    /// Lets time pass. In tests nobody waits for it.
    pub fn sleep(&self, span: Duration) {
        #[cfg(not(test))]
        std::thread::sleep(span);
        #[cfg(test)]
        self.shift_running(span.as_secs() + u64::from(span.subsec_nanos() > 0));
    }

    /// Lets another process work for a moment, before it is looked at again.
    pub fn wait_a_little(&self) {
        std::thread::sleep(Duration::from_millis(10));
    }

    /// Puts the machine's clock forward or back.
    #[cfg(test)]
    pub(crate) fn shift_machine(&self, seconds: i64) {
        self.shift.machine.fetch_add(seconds, std::sync::atomic::Ordering::SeqCst);
    }

    /// Lets time pass by the monotonic reading alone.
    #[cfg(test)]
    pub(crate) fn shift_running(&self, seconds: u64) {
        self.shift.running.fetch_add(seconds, std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_dated_by_the_span_since_now_was_read() {
        let clock = Clock::new(None);
        let moment = clock.moment();
        clock.shift_running(90);
        // The wall clock may be set meanwhile; the span is what counts.
        clock.shift_machine(-7_200);
        assert!((90..100).contains(&(clock.later(moment) - moment.now).0));
        let pretended = Clock::new(Some(moment.now));
        let then = pretended.moment();
        pretended.shift_running(90);
        assert_eq!(pretended.later(then), moment.now);
    }

    #[test]
    fn a_pretended_now_moves_neither_signs_of_life_nor_spans() {
        let pretended = Timestamp::parse("2031-01-01T00:00:00Z").unwrap();
        let clock = Clock::new(Some(pretended));
        assert_eq!(clock.now(), pretended);
        assert!(clock.is_fixed());
        assert_ne!(clock.machine(), pretended);
        let before = clock.running();
        clock.shift_machine(-7_200);
        assert!(clock.running() >= before, "a clock put back shortened a span");
        assert!((clock.machine() - Clock::new(None).machine()).0 < -7_000);
        clock.shift_machine(-4_000_000_000);
        assert_eq!(clock.machine().to_string(), "2000-01-01T00:00:00Z");
    }
}
