//! Step 6 of a run: the newsletter's purchaser marks (R14). They come after the mails, hold none, and are held by none.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tracing::warn;

use crate::domain::fact::Fact;
use crate::domain::ids::{BuyerId, SessionId};
use crate::domain::newsletter::{
    By, Contact, Reason, Standing, Verdict, gathered, left, to_look_up, to_unmark, trouble, trouble_over,
    unreadable, verdict,
};
use crate::domain::time::Timestamp;
use crate::newsletter::{ContactError, Contacts};
use crate::report::run::{MarkLine, Notice, RunReport};
use crate::store::StoreError;

use super::{Book, Shop};

/// Looking up and marking ends after this; the next run goes on.
const MARKING_MAX: Duration = Duration::from_secs(5 * 60);

/// So many contacts that cannot be read or marked are the service's trouble, and nobody else is asked for in this run.
const FAILURES_MAX: usize = 3;

/// Marks the contacts of buyers, takes away the marks of those whose money went back where that is wanted, and notes what a
/// human must know.
///
/// # Errors
/// [`StoreError`]: something could not be recorded, and is looked up again.
pub(super) fn mark(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let Some(contacts) = shop.newsletter.filter(|_| !book.is_dry()) else { return Ok(()) };
    let mut marking =
        Marking { book, contacts, shop, report, now, until: shop.clock.running() + MARKING_MAX };
    match marking.work() {
        Ok(()) => {
            let over: Vec<Fact> = trouble_over(marking.book.ledger()).into_iter().collect();
            marking.record(&over)?;
        }
        Err(Halt::Store(error)) => return Err(error),
        Err(Halt::Time) => warn!("marking the newsletter's contacts takes long; the next run goes on"),
        Err(Halt::Service(error)) => marking.note(&error)?,
    }
    let notice = gathered(marking.book.ledger(), now);
    marking.record(&notice)
}

/// Why marking ends before its end.
enum Halt {
    /// What was learned cannot be recorded.
    Store(StoreError),
    /// The contacts cannot be read or marked.
    Service(ContactError),
    /// It takes too long.
    Time,
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<ContactError> for Halt {
    fn from(error: ContactError) -> Self {
        Self::Service(error)
    }
}

struct Marking<'m, 'a> {
    book: &'m mut dyn Book,
    contacts: &'a Contacts,
    shop: &'m Shop<'a>,
    report: &'m mut RunReport,
    now: Timestamp,
    until: Duration,
}

impl Marking<'_, '_> {
    fn work(&mut self) -> Result<(), Halt> {
        let unmark = self.contacts.refunds_unmark();
        if unmark {
            for (session, contact) in to_unmark(self.book.ledger()) {
                self.take_away(&session, contact)?;
            }
        }
        let open = to_look_up(self.book.ledger(), unmark);
        let wanted: HashSet<&BuyerId> = open
            .iter()
            .filter_map(|(_, by)| match by {
                By::Address(address) => Some(address),
                _ => None,
            })
            .collect();
        let by_address = if wanted.is_empty() { HashMap::new() } else { self.whose(&wanted)? };
        let mut failed = Vec::new();
        for (session, by) in &open {
            let ids: &[String] = match by {
                By::Hand(id) | By::SubscriberId(id) => std::slice::from_ref(id),
                By::Address(address) => by_address.get(address).map_or(&[], Vec::as_slice),
            };
            let done = match ids {
                [] => self.leave(session, Reason::None),
                [id] => self.look_up(session, id, by),
                _ => self.leave(session, Reason::Several),
            };
            match done {
                // One contact that cannot be read or marked must not cost all the others theirs.
                Err(Halt::Service(error)) if failed.len() + 1 < FAILURES_MAX => failed.push(error),
                done => done?,
            }
        }
        failed.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The contacts of these addresses. The whole list is read for it: one address may stand there in several spellings (C080),
    /// and what was not read to the end proves nothing (C079).
    fn whose(&mut self, wanted: &HashSet<&BuyerId>) -> Result<HashMap<BuyerId, Vec<String>>, Halt> {
        let (mut found, mut seen, mut after) = (HashMap::<BuyerId, Vec<String>>::new(), HashSet::new(), None);
        loop {
            self.go_on()?;
            let page = self.contacts.page(after.as_deref())?;
            for row in page.rows {
                let Some(address) = row.address.filter(|address| wanted.contains(address)) else { continue };
                let ids = found.entry(address).or_default();
                // A list that moves while it is read shows one contact on two pages.
                if !ids.contains(&row.id) {
                    ids.push(row.id);
                }
            }
            let Some(next) = page.next else { return Ok(found) };
            if !seen.insert(next.clone()) {
                let why = "a page of the list of contacts repeats another".to_owned();
                return Err(ContactError::Failed(why).into());
            }
            after = Some(next);
        }
    }

    /// Looks at the one contact that was found, and marks it if it may be.
    fn look_up(&mut self, session: &SessionId, id: &str, by: &By) -> Result<(), Halt> {
        self.go_on()?;
        let Some(contact) = self.contacts.contact(id)? else {
            return match by {
                // It was in the list a moment ago.
                By::Address(_) => {
                    Err(ContactError::Failed("a contact is in the list and cannot be read".to_owned()).into())
                }
                By::Hand(_) | By::SubscriberId(_) => self.leave(session, Reason::None),
            };
        };
        match verdict(&contact, by) {
            Verdict::Leave(reason) => self.leave(session, reason),
            Verdict::IsMarked => self.is_marked(session, contact.id, None),
            Verdict::Mark => {
                self.contacts.set(&contact.id, true)?;
                self.verify(&contact, true)?;
                self.is_marked(session, contact.id, None)
            }
        }
    }

    fn take_away(&mut self, session: &SessionId, id: String) -> Result<(), Halt> {
        self.go_on()?;
        if let Some(contact) = self.contacts.contact(&id)?.filter(|contact| contact.marked) {
            self.contacts.set(&id, false)?;
            self.verify(&contact, false)?;
        }
        self.is_marked(session, id, Some(self.now))
    }

    /// Reads back what was set, and that nothing else has changed by it.
    fn verify(&self, before: &Contact, marked: bool) -> Result<(), Halt> {
        let after = self.contacts.contact(&before.id)?;
        if after == Some(Contact { marked, ..before.clone() }) {
            return Ok(());
        }
        let why = match after {
            Some(after) if after.unsubscribed != before.unsubscribed => {
                "the service changed a contact's subscription when it was marked, which must not be"
            }
            _ => "the service said that it marked a contact, and the contact does not show it",
        };
        Err(ContactError::Failed(why.to_owned()).into())
    }

    fn is_marked(
        &mut self,
        session: &SessionId,
        contact: String,
        unmarked: Option<Timestamp>,
    ) -> Result<(), Halt> {
        let standing = Standing::Marked { at: self.now, contact, unmarked };
        self.record(&[Fact::Newsletter { session: session.clone(), standing }])?;
        self.report.marks.push(MarkLine { session: session.clone(), marked: unmarked.is_none() });
        Ok(())
    }

    fn leave(&mut self, session: &SessionId, reason: Reason) -> Result<(), Halt> {
        Ok(self.record(&left(session, reason, self.now))?)
    }

    /// The service cannot be read: what waits for it is noted, and a human told when it is time.
    fn note(&mut self, error: &ContactError) -> Result<(), StoreError> {
        warn!(%error, "the newsletter's contacts cannot be read or marked");
        let open = to_look_up(self.book.ledger(), self.contacts.refunds_unmark());
        let sessions: Vec<SessionId> = open.into_iter().map(|(session, _)| session).collect();
        let facts = unreadable(self.book.ledger(), &sessions, self.now);
        self.record(&facts)?;
        let is_refusal = matches!(error, ContactError::Refused(_));
        match trouble(self.book.ledger(), &error.to_string(), is_refusal, self.now) {
            Some(matter) => super::raise(self.book, matter, self.report),
            None => Ok(()),
        }
    }

    fn record(&mut self, facts: &[Fact]) -> Result<(), StoreError> {
        for fact in facts {
            if let Fact::Matter { matter } = fact {
                self.report.notices.push(Notice::of(matter));
            }
        }
        if facts.is_empty() { Ok(()) } else { self.book.record(facts) }
    }

    fn go_on(&self) -> Result<(), Halt> {
        if self.shop.clock.running() < self.until { Ok(()) } else { Err(Halt::Time) }
    }
}
