//! What the hand commands have in common: they wait for the lock, change flags, say what they changed and what the next
//! run does because of it. With `--dry-run` they do the same to a copy in memory.

use std::io::{self, Write};

use serde::Serialize;

use crate::cli::How;
use crate::clock::Clock;
use crate::domain::decide::decide;
use crate::domain::fact::{Fact, Whom};
use crate::domain::guard::{Held, guard};
use crate::domain::ids::{BuyerId, SessionId};
use crate::domain::ledger::{Buyer, Ledger, Waiting};
use crate::domain::matter::MatterKind;
use crate::domain::policy::Policy;
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::report::next::next;
use crate::report::{Style, print, print_json};
use crate::run::{Book, DryBook};
use crate::store::{LockedLedger, StoreError};

use super::forget::Counts;
use super::{Place, Refused, Seen};

/// More lines than this of what the next run will do are not read by anybody.
const NEXT_MAX: usize = 20;

/// The ledger a hand command works on.
pub(super) struct Desk {
    book: Hold,
    seen: Seen,
}

enum Hold {
    /// This command alone may change it.
    Locked(Box<LockedLedger>),
    /// A copy in memory.
    Dry(Box<DryBook>),
}

impl Desk {
    /// Opens the ledger: under the lock, or for a dry run without.
    ///
    /// # Errors
    /// Those of the store; [`Refused`] for a ledger that has been copied here from a place that still runs it: what is said
    /// to the copy would never reach the buyers' mails.
    pub(super) fn open(place: &Place, how: How, clock: &Clock, style: Style) -> anyhow::Result<Self> {
        let desk = if how.dry_run {
            let view = place.view()?;
            Self { seen: Seen::in_view(&view), book: Hold::Dry(Box::new(DryBook::new(view))) }
        } else {
            let book = place.lock(how.wait.seconds, clock, style)?;
            Self { seen: Seen::of(&book), book: Hold::Locked(Box::new(book)) }
        };
        desk.seen.refuse_copy()?;
        Ok(desk)
    }

    /// The guards that hold the next run (R12).
    pub(super) fn held(&self, place: &Place, clock: &Clock) -> Vec<Held> {
        guard(self.ledger(), &self.seen.known(place.transport(), clock, false), clock.now())
    }

    /// Refuses a clock that a run would not close or send by (R12), where `now` decides what is over.
    pub(super) fn trust(&self, place: &Place, clock: &Clock) -> Result<(), Refused> {
        self.held(place, clock).iter().find(|held| held.is_of_the_clock()).map_or(Ok(()), |held| {
            Err(Refused {
                why: format!("whether a window is over is read off the clock, and {}", held.text),
                next: "do that first".to_owned(),
            })
        })
    }

    /// What the guards know besides the ledger.
    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The ledger as a run writes into it.
    pub(super) fn book(&mut self) -> &mut dyn Book {
        match &mut self.book {
            Hold::Locked(book) => &mut **book,
            Hold::Dry(book) => &mut **book,
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        match &self.book {
            Hold::Locked(book) => book.ledger(),
            Hold::Dry(book) => Book::ledger(&**book),
        }
    }

    /// Records facts together, or none of them.
    pub(super) fn record(&mut self, facts: &[Fact]) -> Result<(), StoreError> {
        match &mut self.book {
            Hold::Locked(book) => book.record(facts),
            Hold::Dry(book) => book.record(facts),
        }
    }

    /// Writes the new version of the ledger and lets the lock go.
    pub(super) fn finish(self) -> Result<(), StoreError> {
        match self.book {
            Hold::Locked(book) => super::finish(*book, None),
            Hold::Dry(_) => Ok(()),
        }
    }

    /// Whose a session is.
    pub(super) fn address_of(&self, session: &SessionId) -> Option<BuyerId> {
        self.ledger().buyers.purchase(session).map(|(buyer, _)| buyer.address.clone())
    }

    /// The buyer of an address or a session.
    pub(super) fn buyer(&self, whom: &Whom) -> Option<&Buyer> {
        let buyers = &self.ledger().buyers;
        match whom {
            Whom::Address(address) => buyers.get(&address.buyer()),
            Whom::Session(session) => buyers.purchase(session).map(|(buyer, _)| buyer),
        }
    }
}

/// Whether the ledger holds a purchase of the person, or the session, be it waiting for its payment.
pub(super) fn is_known(ledger: &Ledger, whom: &Whom) -> bool {
    match whom {
        Whom::Address(address) => {
            ledger.buyers.get(&address.buyer()).is_some_and(|buyer| !buyer.purchases.is_empty())
        }
        Whom::Session(session) => {
            let waits = |waiting: &Waiting| waiting.checkout.session == *session;
            ledger.buyers.purchase(session).is_some() || ledger.waiting.iter().any(waits)
        }
    }
}

/// What a hand command answers.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    schema: &'static str,
    command: &'static str,
    ledger: String,
    now: Timestamp,
    dry_run: bool,
    /// Whether the ledger is another than before.
    pub(super) changed: bool,
    /// What was changed, or why nothing was.
    pub(super) says: Vec<String>,
    /// R17: what was erased, where somebody was forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) erased: Option<Counts>,
    /// Which steps the next run closes because of it: `d3 of cs_1: stopped`.
    next_run_closes: Vec<String>,
    /// What the next run does for those concerned, and what comes after.
    pub(super) next: Vec<String>,
    /// How it ends.
    pub(super) exit: Exit,
}

impl Answer {
    pub(super) fn new(
        command: &'static str,
        place: &Place,
        how: How,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            schema: "stepmail-hand/1",
            command,
            ledger: place.store()?.path().display().to_string(),
            now,
            dry_run: how.dry_run,
            changed: false,
            says: Vec::new(),
            erased: None,
            next_run_closes: Vec::new(),
            next: Vec::new(),
            exit: Exit::Done,
        })
    }

    /// The ledger's path, for texts.
    pub(super) fn ledger(&self) -> &str {
        &self.ledger
    }

    /// Looks at what the next run will do for these buyers, which is nothing while a guard holds it. If that is because
    /// another installation runs this ledger, a person must look: it does not hear of what was said here.
    pub(super) fn look_ahead<'a>(
        &mut self,
        buyers: impl IntoIterator<Item = &'a Buyer>,
        policy: &Policy,
        held: &[Held],
    ) {
        if held.iter().any(|held| held.kind == MatterKind::OtherInstallation) {
            self.exit = Exit::Look;
        }
        if !held.is_empty() {
            self.next.extend(held.iter().map(|held| format!("the next run is held: {}", held.text)));
            return;
        }
        for buyer in buyers {
            let closings = decide(buyer, policy, self.now).closings;
            let words = closings.iter().map(|c| format!("{} of {}: {}", c.step, c.session, c.reason.name()));
            self.next_run_closes.extend(words);
            self.next.extend(next(buyer, policy, self.now));
        }
    }

    /// Prints it: text for people, one object for programs.
    pub(super) fn print(&self, style: Style) {
        match style {
            Style::Json => print_json(self),
            // What a person must see is said also under `-q`.
            Style::Quiet if self.exit == Exit::Done => {}
            Style::Text | Style::Quiet => print(|out| self.write_text(out)),
        }
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        if self.dry_run {
            writeln!(out, "dry run: nothing was changed; without --dry-run:")?;
        }
        for line in &self.says {
            writeln!(out, "{line}")?;
        }
        for line in self.next.iter().take(NEXT_MAX) {
            writeln!(out, "{line}")?;
        }
        if self.next.len() > NEXT_MAX {
            writeln!(out, "… and {} more; `stepmail run --dry-run` shows all", self.next.len() - NEXT_MAX)?;
        }
        Ok(())
    }
}

/// Whether all that is left of whom this concerns are hashes (R17).
pub(super) fn is_forgotten(ledger: &Ledger, whom: &Whom) -> bool {
    let bought_again =
        matches!(whom, Whom::Address(address) if ledger.buyers.get(&address.buyer()).is_some());
    !bought_again && ledger.forgotten.person(whom).is_some()
}
