//! The numbers of the rules: windows, spacing, limits.

use super::ids::Step;
use super::time::{Seconds, Timestamp};

/// What of the rules a seller may set, and what the transport in use adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// R6: how long d3, d7 and d14 keep away from any other mail to the same buyer.
    pub spacing: Seconds,
    /// R4: with more mails due than this, a run sends none of them and asks.
    pub max_mails_per_run: usize,
    /// R9: how long the mail service remembers a key.
    pub retention: Retention,
}

/// How long the same key sends nothing twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// For ever: the outbox, where the key is a file name.
    Forever,
    /// For so long after the first attempt; zero where the service knows no keys.
    For(Seconds),
}

/// R9: taken off the retention for clocks that differ and answers that come late.
pub const RETENTION_MARGIN: Seconds = Seconds::minutes(15);

/// R4: how long a human's `--allow` holds, and how old a d0 may be that the brake does not count.
pub const ONE_DAY: Seconds = Seconds::days(1);

impl Default for Policy {
    fn default() -> Self {
        Self { spacing: Seconds::hours(48), max_mails_per_run: 200, retention: Retention::Forever }
    }
}

impl Retention {
    /// The instant from which no further try with the same key is safe; `None`: always safe.
    #[must_use]
    pub fn ends(self, first_unknown: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Forever => None,
            Self::For(span) => Some(first_unknown + span - RETENTION_MARGIN),
        }
    }
}

/// The half-open span of time in which a step may leave: from `opens`, up to but not including `closes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Elapsed since payment.
    pub opens: Seconds,
    /// Elapsed since payment; `None` for d0, which has no end (R5).
    pub closes: Option<Seconds>,
}

/// R5: `3 <= days < 7`, `7 <= days < 14`, `14 <= days < 28`; d0 at once and without end.
#[must_use]
pub const fn window(step: Step) -> Window {
    match step {
        Step::D0 => Window { opens: Seconds(0), closes: None },
        Step::D3 => Window { opens: Seconds::days(3), closes: Some(Seconds::days(7)) },
        Step::D7 => Window { opens: Seconds::days(7), closes: Some(Seconds::days(14)) },
        Step::D14 => Window { opens: Seconds::days(14), closes: Some(Seconds::days(28)) },
    }
}
