//! What a run takes its events from, once it knows that it may (R12: a run that a guard holds changes nothing).

use crate::domain::event::Incoming;
use crate::domain::time::Timestamp;
use crate::source::Spools;

/// Events that wait somewhere until a run comes for them.
pub trait Feed {
    /// Whether there may be something to take. Changes nothing.
    fn may_have_some(&self) -> bool;

    /// Takes what is there for this ledger. Called once, under the lock, after the guards have passed. `machine` is the
    /// machine's own time; a hand-made ledger has no id before its first record.
    fn take(&mut self, ledger_id: Option<&str>, machine: Timestamp) -> Vec<Incoming>;

    /// Called when all that [`Feed::take`] gave is durable in the ledger; not called where it could not be recorded.
    /// `forgotten` knows the names of people of whom nothing is to be kept (R17).
    fn admitted(&mut self, forgotten: &dyn Fn(&str) -> bool);

    /// What a person must see, since the last time this was asked.
    fn told(&mut self) -> Vec<String>;

    /// What was left for a later run, since it may not be whole yet.
    fn waiting(&self) -> Vec<String>;
}

impl Feed for Spools {
    fn may_have_some(&self) -> bool {
        self.may_have_some()
    }

    fn take(&mut self, ledger_id: Option<&str>, machine: Timestamp) -> Vec<Incoming> {
        self.take(ledger_id, machine)
    }

    fn admitted(&mut self, forgotten: &dyn Fn(&str) -> bool) {
        self.admitted(forgotten);
    }

    fn told(&mut self) -> Vec<String> {
        self.told()
    }

    fn waiting(&self) -> Vec<String> {
        self.waiting()
    }
}
