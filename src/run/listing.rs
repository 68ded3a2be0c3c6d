//! The mail service's list of mails, read once per run and no further back than needed (R13).

use std::collections::HashSet;
use std::time::Duration;

use crate::domain::fate::{Listed, Tagged};
use crate::domain::outcome::PAUSE_MAX;
use crate::domain::time::Timestamp;
use crate::mail::{Archive, Unreadable};
use crate::store::StoreError;

use super::pause::pause;
use super::{Book, Shop};

/// What was read of the list so far.
pub struct Listing<'a> {
    archive: &'a dyn Archive,
    mails: Vec<Listed>,
    seen: HashSet<String>,
    after: Option<String>,
    end: Option<End>,
    until: Duration,
}

/// Why nothing more can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The list ends.
    Over,
    /// It cannot be read any further.
    Unreadable(Unreadable),
}

/// How long a run reads lists and asks questions, in all.
const READING_MAX: Duration = Duration::from_secs(5 * 60);
/// Before a question is asked again that had no answer.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

impl<'a> Listing<'a> {
    /// The list of the shop's mail service, where that can be asked. Nothing is read yet.
    #[must_use]
    pub fn of(shop: &Shop<'a>) -> Option<Self> {
        let archive = shop.transport.archive()?;
        let until = shop.clock.running() + READING_MAX;
        Some(Self { archive, mails: Vec::new(), seen: HashSet::new(), after: None, end: None, until })
    }

    /// What was read.
    pub(super) fn mails(&self) -> &[Listed] {
        &self.mails
    }

    /// Whether a mail from before `back_to` was seen. That the list merely ends proves nothing: services keep it for days.
    pub(super) fn reaches(&self, back_to: Timestamp) -> bool {
        self.mails.iter().any(|mail| mail.created_at.is_some_and(|at| at < back_to))
    }

    /// Reads until a mail from before `back_to` was seen; else says why not.
    ///
    /// # Errors
    /// [`StoreError`]: nothing more may be asked.
    pub(super) fn read_back_to(
        &mut self,
        back_to: Timestamp,
        book: &mut dyn Book,
        shop: &Shop<'_>,
    ) -> Result<Result<(), End>, StoreError> {
        while !self.reaches(back_to) {
            if let Some(end) = &self.end {
                return Ok(Err(end.clone()));
            }
            let after = self.after.clone();
            match self.ask(book, shop, &|archive| archive.page(after.as_deref()))? {
                Ok(page) => {
                    self.after = page.mails.last().map(|mail| mail.id.clone());
                    let before = self.mails.len();
                    self.mails
                        .extend(page.mails.into_iter().filter(|mail| self.seen.insert(mail.id.clone())));
                    if self.mails.iter().skip(before).any(|mail| mail.created_at.is_none()) {
                        self.fail("a listed mail has no time that can be read");
                    } else if !page.more {
                        self.end = Some(End::Over);
                    } else if self.mails.len() == before {
                        self.fail("a page of the list repeats the one before");
                    }
                }
                Err(why) => self.end = Some(End::Unreadable(why)),
            }
        }
        Ok(Ok(()))
    }

    /// Whose a listed mail is.
    ///
    /// # Errors
    /// [`StoreError`]: nothing more may be asked.
    pub(super) fn whose(
        &mut self,
        id: &str,
        book: &mut dyn Book,
        shop: &Shop<'_>,
    ) -> Result<Result<Option<Tagged>, Unreadable>, StoreError> {
        self.ask(book, shop, &|archive| archive.whose(id))
    }

    /// One question, up to three times: a service that stumbles for a second should not leave a mail to a person.
    fn ask<T>(
        &mut self,
        book: &mut dyn Book,
        shop: &Shop<'_>,
        question: &dyn Fn(&dyn Archive) -> Result<T, Unreadable>,
    ) -> Result<Result<T, Unreadable>, StoreError> {
        for wait in PAUSES {
            if !self.turn(book, shop)? {
                return Ok(Err(out_of_time()));
            }
            match question(self.archive) {
                Err(Unreadable::Failed { retry_after, .. })
                    if retry_after.is_none_or(|asked| asked <= PAUSE_MAX) =>
                {
                    if !pause(book, shop, wait, self.until)? {
                        return Ok(Err(out_of_time()));
                    }
                }
                told => return Ok(told),
            }
        }
        if self.turn(book, shop)? { Ok(question(self.archive)) } else { Ok(Err(out_of_time())) }
    }

    /// Waits for the service's pace. Says false where no time is left.
    fn turn(&self, book: &mut dyn Book, shop: &Shop<'_>) -> Result<bool, StoreError> {
        book.ready_to_send()?;
        pause(book, shop, shop.transport.delay(), self.until)
    }

    fn fail(&mut self, reason: &str) {
        self.end = Some(End::Unreadable(Unreadable::Failed { reason: reason.to_owned(), retry_after: None }));
    }
}

fn out_of_time() -> Unreadable {
    let reason = "reading it takes more than 5 minutes, or the service wants a longer pause".to_owned();
    Unreadable::Failed { reason, retry_after: None }
}

impl End {
    /// In words, for reports.
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Over => "the service's list does not reach back so far".to_owned(),
            Self::Unreadable(Unreadable::NotAllowed) => "the key may send and not read".to_owned(),
            Self::Unreadable(Unreadable::Failed { reason, .. }) => reason.clone(),
        }
    }
}
