//! Waiting within a run: for the service's pace, and before a further try.

use std::time::Duration;

use crate::store::StoreError;

use super::{Book, Shop};

/// No sign of life is further apart than this (DURABILITY 1): a lock that is silent for 30 minutes is reclaimed.
const SLICE: Duration = Duration::from_secs(20);

/// Waits, and gives a sign of life meanwhile. Says false, at once, where the wait would not end before `until` on the
/// clock's running time.
///
/// # Errors
/// [`StoreError`]: the ledger is no longer ours, and nothing more may be asked or sent.
pub(super) fn pause(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    span: Duration,
    until: Duration,
) -> Result<bool, StoreError> {
    let mut left = span;
    if shop.clock.running() + left > until {
        return Ok(false);
    }
    while !left.is_zero() {
        let slice = left.min(SLICE);
        shop.clock.sleep(slice);
        left -= slice;
        book.ready_to_send()?;
    }
    Ok(true)
}
