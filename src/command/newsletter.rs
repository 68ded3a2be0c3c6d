//! `newsletter link` and `newsletter ignore`: a person's word on whose contact a buyer is (R14).

use crate::cli::{Newsletter, NewsletterAsk};
use crate::clock::Clock;
use crate::domain::newsletter::{Reason, Standing, settled};
use crate::exit::Exit;
use crate::report::Style;

use super::desk::{Answer, Desk};
use super::{NotKnown, Place, Refused};

pub(super) fn newsletter(
    asked: &Newsletter,
    place: &Place,
    style: Style,
    clock: &Clock,
) -> anyhow::Result<Exit> {
    let (session, contact, how) = match &asked.ask {
        NewsletterAsk::Link { session, contact, how } => (session, Some(contact), *how),
        NewsletterAsk::Ignore { session, how } => (session, None, *how),
    };
    if place.newsletter.is_none() {
        return Err(Refused {
            why: "the settings have no [newsletter], so that no contact is ever marked".to_owned(),
            next: "set it up first".to_owned(),
        }
        .into());
    }
    let mut desk = Desk::open(place, how, clock, style)?;
    let now = clock.now();
    let Some((_, purchase)) = desk.ledger().buyers.purchase(session) else {
        return Err(NotKnown { what: format!("session {session}"), ledger: place.ledger.clone() }.into());
    };
    let before = purchase.newsletter.clone();
    let mut answer = Answer::new("newsletter", place, how, now)?;
    let (standing, says) = match (contact, &before) {
        (Some(contact), Some(Standing::Marked { contact: marked, unmarked: None, .. }))
            if contact == marked =>
        {
            (None, format!("session {session}: that contact carries the mark already; nothing changed"))
        }
        (Some(contact), _) => (
            Some(Standing::Open { contact: Some(contact.clone()) }),
            format!("session {session}: the next run marks contact {contact}, as it is"),
        ),
        (None, Some(Standing::Told { reason: Reason::Ignored, .. })) => {
            (None, format!("session {session} is left out already; nothing changed"))
        }
        (None, _) => (
            Some(Standing::Told { at: now, reason: Reason::Ignored, untold: false }),
            format!("session {session}: no contact is marked for it, and nobody is asked again"),
        ),
    };
    answer.says.push(says);
    if let Some(standing) = standing {
        answer.changed = true;
        let facts = settled(desk.ledger(), session, standing);
        desk.record(&facts)?;
    }
    desk.finish()?;
    answer.print(style);
    Ok(answer.exit)
}
