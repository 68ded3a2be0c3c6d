//! How fast a service may be asked: a token bucket, and pauses that the service asks for. It reads no clock.

use std::time::Duration;

/// A pause that the service asks for is kept for so long at most; whoever asks for more ends the run's sending.
const HOLD_MAX: Duration = Duration::from_secs(60);

/// A bucket that fills with so many tokens a second, and holds the tokens of one second.
#[derive(Debug)]
pub(super) struct Pace {
    per_second: f64,
    /// Below zero where more was asked than the pace allows.
    tokens: f64,
    filled: Duration,
    /// Nothing before then.
    held: Duration,
}

impl Pace {
    /// A full bucket.
    pub(super) fn new(per_second: u32, running: Duration) -> Self {
        let per_second = f64::from(per_second.max(1));
        Self { per_second, tokens: per_second, filled: running, held: Duration::ZERO }
    }

    /// How long to wait before a token is there.
    pub(super) fn delay(&mut self, running: Duration) -> Duration {
        self.fill(running);
        let missing = (1.0 - self.tokens).max(0.0) / self.per_second;
        Duration::from_secs_f64(missing).max(self.held.saturating_sub(running))
    }

    /// Takes a token, be it there or not.
    pub(super) fn take(&mut self, running: Duration) {
        self.fill(running);
        self.tokens -= 1.0;
    }

    /// The service asks for a pause.
    pub(super) fn hold(&mut self, running: Duration, span: Duration) {
        self.held = self.held.max(running + span.min(HOLD_MAX));
    }

    fn fill(&mut self, running: Duration) {
        let passed = running.saturating_sub(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.per_second);
        self.filled = self.filled.max(running);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn c056_a_burst_of_one_second_and_then_the_pace() {
        let mut pace = Pace::new(4, ms(0));
        for _ in 0..4 {
            assert_eq!(pace.delay(ms(0)), ms(0));
            pace.take(ms(0));
        }
        assert_eq!(pace.delay(ms(0)), ms(250));
        assert_eq!(pace.delay(ms(200)), ms(50));
        assert_eq!(pace.delay(ms(250)), ms(0));
        // Whoever does not wait owes it.
        pace.take(ms(250));
        pace.take(ms(250));
        assert_eq!(pace.delay(ms(250)), ms(500));
        // An hour of rest saves no more than one second's worth.
        for _ in 0..4 {
            pace.take(ms(3_600_000));
        }
        assert_eq!(pace.delay(ms(3_600_000)), ms(250));
    }

    #[test]
    fn a_pause_that_the_service_asks_for_is_kept_and_never_shortened_nor_endless() {
        let mut pace = Pace::new(10, ms(0));
        pace.hold(ms(1_000), ms(2_000));
        pace.hold(ms(1_000), ms(500));
        assert_eq!(pace.delay(ms(1_000)), ms(2_000));
        assert_eq!(pace.delay(ms(2_500)), ms(500));
        assert_eq!(pace.delay(ms(3_000)), ms(0));
        pace.hold(ms(3_000), Duration::from_secs(86_400));
        assert_eq!(pace.delay(ms(3_000)), Duration::from_secs(60));
    }
}
