//! Where a run writes its facts: the locked ledger, or a copy in memory.

use std::path::Path;

use crate::domain::fact::{Fact, apply};
use crate::domain::ledger::Ledger;
use crate::domain::time::{Seconds, Timestamp};
use crate::store::{LockedLedger, StoreError, Told, View};

/// A ledger that facts can be written into.
pub trait Book {
    /// The ledger with everything recorded so far.
    fn ledger(&self) -> &Ledger;

    /// Where the ledger lies.
    fn path(&self) -> &Path;

    /// Records facts together. When this returns they are durable (but for a dry run's).
    ///
    /// # Errors
    /// Nothing was recorded; nothing more may be sent.
    fn record(&mut self, facts: &[Fact]) -> Result<(), StoreError>;

    /// Whether anything was recorded.
    fn has_recorded(&self) -> bool;

    /// Whether this run must write down that it ran, though it recorded nothing: where no mark can be kept, once a day.
    fn owes_last_run(&self, now: Timestamp) -> bool;

    /// Writes what a dead process left in the journal into a new snapshot, before the first send.
    ///
    /// # Errors
    /// Nothing may be sent.
    fn consolidate(&mut self) -> Result<(), StoreError>;

    /// Before the first send: whether the results will find room.
    ///
    /// # Errors
    /// Nothing may be sent.
    fn room_to_send(&self) -> Result<(), StoreError>;

    /// Before each send: whether the ledger is still ours.
    ///
    /// # Errors
    /// Nothing more may be sent.
    fn ready_to_send(&mut self) -> Result<(), StoreError>;

    /// Guards that were told about, and still hold.
    fn told(&self) -> Vec<Told>;

    /// Replaces that list.
    ///
    /// # Errors
    /// They will be told about again.
    fn set_told(&mut self, told: Vec<Told>) -> Result<(), StoreError>;

    /// When a source of stops was last read well; none where it never was, or where no mark can be kept.
    fn last_reading(&self, source: &str) -> Option<Timestamp>;

    /// Notes that it was, or that it is no such source. Kept in the mark when the run ends well.
    fn note_reading(&mut self, source: &str, at: Option<Timestamp>);

    /// Why no mark can be kept in the state folder, if so (R12).
    fn no_mark(&self) -> Option<String>;

    /// Whether nothing leaves and nothing is written.
    fn is_dry(&self) -> bool;
}

impl Book for LockedLedger {
    fn ledger(&self) -> &Ledger {
        self.ledger()
    }

    fn path(&self) -> &Path {
        self.path()
    }

    fn record(&mut self, facts: &[Fact]) -> Result<(), StoreError> {
        self.record(facts)
    }

    fn has_recorded(&self) -> bool {
        self.has_recorded()
    }

    fn owes_last_run(&self, now: Timestamp) -> bool {
        owes_last_run(self.installation().is_none(), self.ledger(), now)
    }

    fn consolidate(&mut self) -> Result<(), StoreError> {
        self.consolidate()
    }

    fn room_to_send(&self) -> Result<(), StoreError> {
        self.room_to_send()
    }

    fn ready_to_send(&mut self) -> Result<(), StoreError> {
        self.ready_to_send()
    }

    fn told(&self) -> Vec<Told> {
        self.told()
    }

    fn set_told(&mut self, told: Vec<Told>) -> Result<(), StoreError> {
        self.set_told(&told)
    }

    fn last_reading(&self, source: &str) -> Option<Timestamp> {
        self.last_reading(source)
    }

    fn note_reading(&mut self, source: &str, at: Option<Timestamp>) {
        self.note_reading(source, at);
    }

    fn no_mark(&self) -> Option<String> {
        self.installation().is_none().then(no_mark)
    }

    fn is_dry(&self) -> bool {
        false
    }
}

fn owes_last_run(no_mark: bool, ledger: &Ledger, now: Timestamp) -> bool {
    no_mark && ledger.last_run.as_ref().is_none_or(|run| now - run.at >= Seconds::days(1))
}

fn no_mark() -> String {
    "no mark can be kept, since the state folder cannot be written".to_owned()
}

/// A dry run's book: facts change a copy in memory.
pub struct DryBook {
    view: View,
    told: Vec<Told>,
    recorded: bool,
}

impl DryBook {
    /// Opens a view of the ledger for writing in memory.
    #[must_use]
    pub fn new(view: View) -> Self {
        let told = view.told.clone();
        Self { view, told, recorded: false }
    }
}

impl Book for DryBook {
    fn ledger(&self) -> &Ledger {
        &self.view.ledger
    }

    fn path(&self) -> &Path {
        self.view.path()
    }

    fn record(&mut self, facts: &[Fact]) -> Result<(), StoreError> {
        self.view.may_record()?;
        for fact in facts {
            // Facts of this very run speak of what this ledger holds.
            let _ = apply(&mut self.view.ledger, fact);
        }
        self.recorded |= !facts.is_empty();
        Ok(())
    }

    fn has_recorded(&self) -> bool {
        self.recorded
    }

    fn owes_last_run(&self, _now: Timestamp) -> bool {
        false
    }

    fn consolidate(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn room_to_send(&self) -> Result<(), StoreError> {
        self.view.room_to_send()
    }

    fn ready_to_send(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn told(&self) -> Vec<Told> {
        self.told.clone()
    }

    fn set_told(&mut self, told: Vec<Told>) -> Result<(), StoreError> {
        self.told = told;
        Ok(())
    }

    fn last_reading(&self, source: &str) -> Option<Timestamp> {
        self.view.mark.as_ref().and_then(|mark| mark.read_at.get(source).copied())
    }

    fn note_reading(&mut self, _source: &str, _at: Option<Timestamp>) {}

    fn no_mark(&self) -> Option<String> {
        self.view.installation.is_none().then(no_mark)
    }

    fn is_dry(&self) -> bool {
        true
    }
}
