//! A shop that sells all the time and suddenly nothing: more likely something is wrong with the asking than with the
//! selling.

use super::ledger::Ledger;
use super::time::{Seconds, Timestamp};

/// So many gaps between purchases tell what is usual.
const GAPS: usize = 20;
/// Fewer tell nothing.
const GAPS_MIN: usize = 4;
/// So many times the usual gap is a long silence.
const TIMES: i64 = 5;
/// And nothing shorter than this.
const SILENCE_MIN: Seconds = Seconds::days(14);

/// Since when no purchase was made, where that is unusually long.
#[must_use]
pub fn silent_since(ledger: &Ledger, now: Timestamp) -> Option<Timestamp> {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let mut paid: Vec<Timestamp> = purchases.map(|purchase| purchase.paid_at).collect();
    paid.sort_unstable();
    let newest = *paid.last()?;
    let recent = &paid[paid.len().saturating_sub(GAPS + 1)..];
    let mut gaps: Vec<i64> = recent.windows(2).map(|pair| (pair[1] - pair[0]).0).collect();
    if gaps.len() < GAPS_MIN {
        return None;
    }
    gaps.sort_unstable();
    // The median: one campaign, or one holiday, does not make a habit.
    let usual = gaps[gaps.len() / 2];
    let quiet = now - newest;
    (quiet >= SILENCE_MIN && quiet.0 >= usual.saturating_mul(TIMES)).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ledger::{Kind, Purchase, Refs, Steps};
    use std::collections::BTreeMap;

    fn day(day: i64) -> Timestamp {
        Timestamp::parse("2026-01-01T00:00:00Z").unwrap() + Seconds::days(day)
    }

    /// A shop with a purchase on each of these days, which came in any order.
    fn sold_on(days: &[i64]) -> Ledger {
        let mut ledger = Ledger::empty(day(0), None);
        for (n, at) in days.iter().enumerate() {
            ledger.buyers.add(Purchase {
                session: format!("cs_{n}").parse().unwrap(),
                email: format!("b{n}@example.com").parse().unwrap(),
                paid_at: day(*at),
                kind: Kind::First,
                name: None,
                locale: None,
                billing: None,
                subscriber_id: None,
                amount: None,
                events: Vec::new(),
                refs: Refs::default(),
                vars: BTreeMap::new(),
                stopped: None,
                started: None,
                marked_repurchase: None,
                outcome: None,
                refunds: Vec::new(),
                newsletter: None,
                steps: Steps::pending(),
            });
        }
        ledger
    }

    #[test]
    fn a_silence_is_five_times_what_is_usual_and_at_least_two_weeks() {
        for (days, first_said) in [
            (&[1, 2, 3, 4, 5][..], Some(5 + 14)),
            (&[5, 3, 1, 2, 4], Some(5 + 14)),
            (&[10, 20, 30, 40, 50], Some(50 + 50)),
            // One long pause makes no habit.
            (&[1, 2, 3, 60, 61], Some(61 + 14)),
            // Too few to know what is usual.
            (&[1, 2, 3, 4], None),
            (&[], None),
        ] {
            let ledger = sold_on(days);
            let said = (0..400).find(|now| silent_since(&ledger, day(*now)).is_some());
            assert_eq!(said, first_said, "{days:?}");
        }
    }
}
