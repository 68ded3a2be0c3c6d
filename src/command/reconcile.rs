//! `reconcile`: asks the mail service about mails that were closed since nobody knows whether they left (R10, R13).

use std::collections::BTreeSet;

use crate::cli::Reconcile;
use crate::clock::Clock;
use crate::domain::adopt::settled;
use crate::domain::fact::Fact;
use crate::domain::guard::{Held, ServiceClock, guard};
use crate::domain::ids::{IdempotencyKey, SessionId, Step};
use crate::domain::ledger::{Ledger, StepState};
use crate::domain::settle::{Found, resolve as settle};
use crate::domain::time::Timestamp;
use crate::domain::truth::{Question, Truth};
use crate::exit::Exit;
use crate::mail::NoClock;
use crate::report::Style;
use crate::run::{Book, Listing, Shop, ask};

use super::desk::{Answer, Desk};
use super::resolve::{in_words, named};
use super::{Place, Refused};

/// One mail.
type Mail = (SessionId, Step);

pub(super) fn reconcile(
    asked: &Reconcile,
    place: &Place,
    style: Style,
    clock: &Clock,
) -> anyhow::Result<Exit> {
    let templates = place.templates();
    let shop = place.shop(&templates, clock);
    if shop.transport.archive().is_none() {
        return Err(Refused {
            why: format!("the {} has no list of mails that could be asked", shop.transport.name()),
            next: "look for them yourself, and say what you found with `stepmail resolve`".to_owned(),
        }
        .into());
    }
    place.ready_to_mail()?;
    let mut desk = Desk::open(place, asked.how, clock, style)?;
    desk.trust(place, clock)?;
    let now = clock.now();
    let mut answer = Answer::new("reconcile", place, asked.how, now)?;
    if let Some(why) = time_is_doubted(&desk, place, &shop, now)? {
        answer.says = vec![format!("{why}; nothing was changed; try again later")];
        answer.exit = Exit::Later;
        desk.finish()?;
        answer.print(style);
        return Ok(answer.exit);
    }
    let via = shop.transport.name();
    let mails = if asked.keys.is_empty() { unknown(desk.ledger(), via) } else { named(&asked.keys) };
    if mails.is_empty() {
        answer.says.push("no mail is closed with an unknown result".to_owned());
    }
    let told = ask_about(desk.book(), &shop, &mails, now)?;
    answer.changed = told.changed;
    answer.says.extend(told.says);
    if told.unknown > 0 {
        answer.exit = Exit::Look;
    }
    let of: BTreeSet<_> = mails.iter().filter_map(|(session, _)| desk.address_of(session)).collect();
    let buyers = of.iter().filter_map(|address| desk.ledger().buyers.get(address));
    answer.look_ahead(buyers, &place.policy, &desk.held(place, clock));
    desk.finish()?;
    answer.print(style);
    Ok(answer.exit)
}

/// R12: what is over is read off the clock, so a service has confirmed it first. Says why the service cannot be asked.
fn time_is_doubted(
    desk: &Desk,
    place: &Place,
    shop: &Shop<'_>,
    now: Timestamp,
) -> Result<Option<String>, Refused> {
    if shop.clock.is_fixed() {
        return Ok(None);
    }
    let said = match shop.transport.service_clock() {
        Ok(said) => said,
        Err(NoClock::Offline(reason)) => {
            return Ok(Some(format!("the mail service cannot be reached ({reason})")));
        }
        Err(NoClock::Undated) => {
            return Ok(Some("the mail service answers without a Date".to_owned()));
        }
    };
    let mut known = desk.seen().known(place.transport(), shop.clock, false);
    known.service = Some(ServiceClock { said, ours: shop.clock.now() });
    let held = guard(desk.ledger(), &known, now);
    held.into_iter().find(Held::is_of_the_clock).map_or(Ok(None), |held| {
        Err(Refused {
            why: format!("whether a window is over is read off the clock, and {}", held.text),
            next: "do that first".to_owned(),
        })
    })
}

/// The closed steps of which an attempt may have arrived through this service.
fn unknown(ledger: &Ledger, via: &str) -> Vec<Mail> {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let steps = purchases
        .flat_map(|purchase| purchase.steps.iter().map(move |(step, state)| (purchase, step, state)));
    steps
        .filter(|(purchase, step, state)| {
            matches!(state, StepState::Closed { .. })
                && Question::of(ledger, &purchase.session, *step, via).is_some()
        })
        .map(|(purchase, step, _)| (purchase.session.clone(), step))
        .collect()
}

/// What came of asking.
#[derive(Default)]
pub(super) struct Told {
    pub(super) says: Vec<String>,
    pub(super) changed: bool,
    /// How many the service could not tell of.
    pub(super) unknown: usize,
}

/// Of a mail that was lost with a newer ledger nothing was known; the service knows that it took it, and when.
fn seen_there(fact: &mut Fact, by: &str, seen_at: Option<Timestamp>) {
    if let (Fact::Sent { at, via, .. }, Some(seen_at)) = (fact, seen_at)
        && via != by
    {
        (*at, *via) = (seen_at, by.to_owned());
    }
}

/// Asks about each of these mails and records what the service tells.
///
/// # Errors
/// What was recorded before stays.
pub(super) fn ask_about(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    mails: &[Mail],
    now: Timestamp,
) -> anyhow::Result<Told> {
    let (mut told, mut listing) = (Told::default(), Listing::of(shop));
    for (session, step) in mails {
        let key = IdempotencyKey::Step(session.clone(), *step);
        let is_closed = book
            .ledger()
            .buyers
            .purchase(session)
            .is_some_and(|(_, purchase)| matches!(purchase.steps.get(*step), StepState::Closed { .. }));
        if !is_closed || Question::of(book.ledger(), session, *step, shop.transport.name()).is_none() {
            told.says.push(format!(
                "{key} is not closed with an attempt that went through {}; it is left as it is",
                shop.transport.name()
            ));
            continue;
        }
        let (mut found_at, via) = (None, shop.transport.name());
        let found = match ask(book, shop, listing.as_mut(), (session, *step), now)? {
            Truth::Sent { id, at } => {
                found_at = at;
                Found::Sent(Some(id))
            }
            Truth::NotSent => Found::NotSent,
            Truth::NotYet => {
                told.says.push(format!(
                    "{key} is not there, but its last try was a few minutes ago; ask again in ten"
                ));
                told.unknown += 1;
                continue;
            }
            Truth::NotKnown(why) => {
                told.says.push(format!("{key}: {} cannot tell: {why}", shop.transport.name()));
                told.unknown += 1;
                continue;
            }
        };
        match settle(book.ledger(), session, *step, &found, now) {
            Ok(mut settlement) => {
                let seen_at = found_at.map(|at| at.min(now));
                settlement.facts.iter_mut().for_each(|fact| seen_there(fact, via, seen_at));
                told.says.push(in_words(book.ledger(), session, *step, &settlement));
                told.changed |= !settlement.facts.is_empty();
                book.record(&settlement.facts)?;
            }
            Err(refusal) => told.says.push(format!("{key} {refusal}")),
        }
    }
    if told.changed {
        let over = settled(book.ledger());
        book.record(&over)?;
    }
    Ok(told)
}
