//! `ingest - --stripe-signature`: one event, as a web handler got it. The handler hands the body over as it came, with the
//! header that signs it, and answers its caller by the receipt.

use crate::clock::Clock;
use crate::domain::event::{Incoming, Invalid};
use crate::domain::ids::EventId;
use crate::domain::receipt::standing;
use crate::exit::Exit;
use crate::report::receipt::Receipt;
use crate::report::run::RunReport;
use crate::report::{Style, print_json};
use crate::run::take_in;
use crate::source::stripe::signature;
use crate::source::{self, Reading};

use super::{Place, Seen};

pub(super) fn webhook(header: &str, wait: u64, place: &Place, style: Style, clock: &Clock) -> Exit {
    let receipt = match take(header, wait, place, style, clock) {
        Ok(receipt) => receipt,
        // Whoever handed the event in hands it in again; the payment service does so for days.
        Err(error) => Receipt::failed(format!("{error:#}"), Exit::of(&error)),
    };
    print_json(&receipt);
    receipt.exit
}

fn take(header: &str, wait: u64, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Receipt> {
    let secret = place.settings.webhook.read(clock)?;
    let body = source::read_pipe()?;
    signature::check(header, &body, &secret.secret, clock.now())?;
    let reading = source::parse("the webhook's body", &body, &place.settings.rules)?;
    let id = serde_json::from_slice::<serde_json::Value>(&body).ok();
    let id: Option<EventId> = id.and_then(|value| value.get("id")?.as_str()?.parse().ok());
    let reason = match (&reading.incoming[..], &reading) {
        ([Incoming::Invalid(Invalid { why, .. })], _) => Some(why.clone()),
        ([Incoming::Ignored], Reading { other_mode: 1.., .. }) => {
            Some("it is of Stripe's other mode".to_owned())
        }
        ([Incoming::Ignored], Reading { thin: 1.., .. }) => {
            Some("it is a thin event, which does not hold what it tells of".to_owned())
        }
        ([Incoming::Ignored], _) => Some("it starts and stops nothing here".to_owned()),
        ([_], _) => None,
        (several, _) => return Err(NotOne(several.len()).into()),
    };
    let mut book = place.lock(wait, clock, style)?;
    Seen::of(&book).refuse_copy()?;
    let now = clock.now();
    let mut report = RunReport::ingest();
    take_in(&mut book, reading.incoming.clone(), now, &mut report)?;
    let results = reading.incoming.iter().map(|incoming| (incoming, standing(book.ledger(), incoming)));
    let receipts: Vec<Receipt> =
        results.map(|(incoming, result)| Receipt::of(id.clone(), incoming, result, reason.clone())).collect();
    super::finish(book, None)?;
    receipts.into_iter().next().ok_or_else(|| NotOne(0).into())
}

/// A body that is something else than one event.
#[derive(Debug, thiserror::Error)]
#[error("the body holds {0} events, and a webhook brings one; nothing was taken in")]
pub struct NotOne(usize);
