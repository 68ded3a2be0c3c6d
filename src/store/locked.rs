//! The ledger while one command holds it: facts are recorded, a snapshot is written, the lock is let go.
//!
//! It leaves out how a line or a file gets to disk. What must hold: nothing is in memory as recorded that is not durable;
//! after a failed write nothing more is recorded; and a ledger that somebody edited meanwhile is read again, never
//! overwritten unread.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::error::{NOTHING_DONE, STOPPED_HERE, StoreError, StoreErrorKind, redact};
use super::installation::{self, StateFolder};
use super::journal::{Header, InPlace, Over, Writer};
use super::lock::Lock;
use super::mark::{self, Mark, Told};
use super::place::Place;
use super::read::{self, Base, COUNTER_MAX, Snapshot};
use super::snapshot::{self, Before, Replaced};
use super::{Forgot, Found, fit, forgotten, replay};
use crate::disk::{self, FileError, Naming};
use crate::domain::erase::Erased;
use crate::domain::fact::{Fact, Whom, apply};
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::Ledger;
use crate::domain::time::Timestamp;

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The generation of the snapshot that is there now.
    pub generation: u64,
    /// Whether this command wrote it.
    pub written: bool,
    /// Whether the mark is up to date. Not so where no state can be kept, or the ledger has no id yet.
    pub marked: bool,
    /// What is to be said, that was not among [`LockedLedger::notes`] before.
    pub notes: Vec<String>,
}

/// A ledger that this command alone may change, until it finishes, abandons it, or drops it.
#[derive(Debug)]
pub struct LockedLedger {
    place: Place,
    state: StateFolder,
    /// Shared with whoever gives signs of life while nothing is recorded ([`LockedLedger::pulse`]).
    pub(super) lock: Rc<RefCell<Lock>>,
    ledger: Ledger,
    base: Base,
    journal: Option<Writer>,
    /// Where no journal is being written: whether one lies there of which the snapshot holds all. It may be what keeps another
    /// version from being taken for the newest, so it goes when something is saved or recorded, and not before.
    beside: Over,
    replayed: bool,
    /// R17: whether the ledger on disk still holds somebody who was forgotten, or lacks that somebody was: then what is in
    /// memory must be saved, and the version on disk must not stay.
    on_disk: Before,
    /// What was taken out of the ledger when it was loaded.
    erased: Erased,
    written: bool,
    /// R12: the newest generation known of this ledger, where that is not this one: its journal extends it, or the mark
    /// names it. Nothing is recorded then, by no command: each would bring the old ledger one generation nearer.
    newer: Option<u64>,
    beyond: Vec<Fact>,
    mark: Option<Mark>,
    /// R12: a clock that a person accepted, when the mark may say that a run was later than that.
    lowered: Option<Timestamp>,
    /// When the sources of stops were last read well. A run that ends well writes it into the mark.
    readings: BTreeMap<String, Timestamp>,
    /// Why the mark could not be written, as long as that is so.
    unmarked: Option<String>,
    notes: Vec<String>,
    /// How many of the notes were there when the ledger was loaded.
    said: usize,
    /// After a failed write nothing more is recorded: the disk cannot be trusted to tell the truth a second time.
    broken: bool,
}

impl LockedLedger {
    pub(super) fn load(
        place: Place,
        state: StateFolder,
        mut lock: Lock,
        mut notes: Vec<String>,
    ) -> Result<Self, StoreError> {
        let loaded = super::load(&place, &state)?;
        let on_disk = Before::erased_if(loaded.owes_erasing());
        lock.raise_token(loaded.token)?;
        notes.extend(loaded.notes);
        let nothing_done = |error: FileError| StoreError::file(&error, NOTHING_DONE);
        let (mut journal, mut beside, mut replayed, mut ahead) = (None, Over::Nothing, false, None);
        match loaded.journal {
            Found::None => {}
            Found::Ahead(generation) => ahead = Some(generation),
            Found::Live { end, records } => {
                if end.torn {
                    notes.push(
                        "the last entry of the journal was not finished when a command died; it was cut off"
                            .to_owned(),
                    );
                }
                if records > 0 {
                    replayed = true;
                    journal = Some(Writer::resume(&place.journal, end).map_err(nothing_done)?);
                } else {
                    beside = Over::Contained;
                }
            }
            Found::Contained => beside = Over::Contained,
        }
        let mark = mark::read(&state, loaded.ledger.ledger_id.as_deref())?;
        let newer = super::newest_known(&loaded.base, ahead, mark.as_ref());
        let readings = mark.as_ref().map_or_else(BTreeMap::new, |mark| mark.read_at.clone());
        let locked = Self {
            place,
            state,
            lock: Rc::new(RefCell::new(lock)),
            ledger: loaded.ledger,
            base: loaded.base,
            journal,
            beside,
            replayed,
            on_disk,
            erased: loaded.erased,
            written: false,
            newer,
            beyond: loaded.beyond,
            mark,
            lowered: None,
            readings,
            unmarked: None,
            said: notes.len(),
            notes,
            broken: false,
        };
        for path in [&locked.place.ledger, &locked.place.journal, &locked.place.lock, &locked.place.backup] {
            disk::sweep(path);
        }
        locked.state.sweep();
        forgotten::sweep(&locked.state, locked.ledger.ledger_id.as_deref());
        mark::sweep(&locked.state, locked.ledger.ledger_id.as_deref(), &locked.told_name());
        Ok(locked)
    }

    /// The ledger, with all that was recorded.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The ledger's canonical path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.ledger
    }

    /// R12: how far this installation has brought this ledger.
    #[must_use]
    pub fn mark(&self) -> Option<&Mark> {
        self.mark.as_ref()
    }

    /// R12: a person accepted this clock. Where the mark says that a run was later, the next mark that this command writes
    /// says `now`.
    pub fn lower_mark(&mut self, now: Timestamp) {
        let lies_ahead =
            |mark: &Mark| mark.last_run_at.iter().chain(mark.read_at.values()).any(|at| *at > now);
        if self.mark.as_ref().is_some_and(lies_ahead) {
            self.lowered = Some(now);
        }
    }

    /// When a source of stops was last read well, as far as a mark tells.
    #[must_use]
    pub fn last_reading(&self, source: &str) -> Option<Timestamp> {
        self.readings.get(source).copied()
    }

    /// Notes that it was, or that it is no such source. Durable with the mark of a run that ends well.
    pub fn note_reading(&mut self, source: &str, at: Option<Timestamp>) {
        match at {
            Some(at) => self.readings.insert(source.to_owned(), at),
            None => self.readings.remove(source),
        };
    }

    /// This installation's id; none where no state can be kept.
    #[must_use]
    pub fn installation(&self) -> Option<&str> {
        self.state.installation()
    }

    /// Whether this command recorded anything, or found something recorded that no snapshot held.
    #[must_use]
    pub fn has_recorded(&self) -> bool {
        self.journal.is_some() || self.written
    }

    /// Whether a newer version of this ledger is known, by its journal or its mark: it was put back (R12). Nothing can be
    /// recorded then.
    #[must_use]
    pub fn journal_ahead(&self) -> bool {
        self.newer.is_some()
    }

    /// What the journal of a newer version of this ledger holds, in order; empty where there is none. Some of it may
    /// speak of what only the newer version knew.
    #[must_use]
    pub fn beyond(&self) -> &[Fact] {
        &self.beyond
    }

    /// Where this ledger ran before, if that is another place and still holds it: two copies would both mail the buyers.
    #[must_use]
    pub fn former_place(&self) -> Option<PathBuf> {
        super::place::former(&self.place.ledger, &self.ledger)
    }

    /// R12: makes this version the newest, whatever was known of newer ones, and records `facts` with it.
    ///
    /// Where a newer version is known the facts are not journalled: a journal of the newer version may lie there and
    /// must stay until the snapshot that takes its place is durable. A process that dies before leaves everything as it
    /// was.
    ///
    /// # Errors
    /// Those of [`LockedLedger::record`] and [`LockedLedger::finish`].
    pub fn adopt(&mut self, facts: &[Fact]) -> Result<(), StoreError> {
        let Some(newer) = self.newer else { return self.record(facts) };
        if newer >= COUNTER_MAX {
            let why = "the newer version's `generation` is too large to have been counted";
            return Err(StoreError::damaged_ledger(&self.place.ledger, why));
        }
        self.newer = None;
        self.may_record()?;
        self.lock.borrow_mut().alive()?;
        // Until the snapshot is there, what is in memory is not what is on disk.
        self.broken = true;
        for fact in facts {
            apply(&mut self.ledger, fact).map_err(|unfit| {
                StoreError::damaged_ledger(&self.place.ledger, &redact(&unfit.to_string()))
            })?;
        }
        // The newer version's journal may speak of somebody who was forgotten since.
        let erased = self.ledger.erase_forgotten();
        self.owe_erasing(!erased.is_nothing());
        forgotten::keep(&self.state, &self.ledger)?;
        self.ledger.generation = newer + 1;
        self.ledger.lock_token = self.lock.borrow().token();
        match snapshot::replace(&self.place, &self.ledger, &self.base, self.on_disk) {
            Ok(Replaced::Done(base)) => self.base = base,
            Ok(Replaced::Edited) => {
                return Err(StoreError::new(
                    StoreErrorKind::CannotWrite,
                    format!(
                        "ledger `{}` was changed by something else meanwhile",
                        self.place.ledger.display()
                    ),
                    NOTHING_DONE,
                    "try again".to_owned(),
                ));
            }
            Err(error) => return Err(StoreError::file(&error, NOTHING_DONE)),
        }
        self.journal = None;
        // Of the newer version, if there is one.
        self.beside = Over::Contained;
        self.broken = false;
        self.saved(None)
    }

    /// What is to be said about how this ledger was found.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes what was replayed from a dead command's journal into a new snapshot, or what was loaded less the forgotten.
    /// Does nothing where neither is so.
    ///
    /// # Errors
    /// Those of [`LockedLedger::finish`].
    pub fn consolidate(&mut self) -> Result<(), StoreError> {
        if !(self.replayed || self.owes_erasing()) || self.newer.is_some() {
            return Ok(());
        }
        self.save(None)
    }

    /// Makes facts durable, all of them or none, and adds them to the ledger.
    ///
    /// # Errors
    /// [`StoreErrorKind::CannotWrite`]: nothing more can be recorded by this command, and nothing more may be sent.
    /// [`StoreErrorKind::LostLock`]: the same. [`StoreErrorKind::PutBack`] where the ledger is older than its journal or mark.
    /// [`StoreErrorKind::Damaged`] for a fact that speaks of something the ledger does not hold; nothing was recorded.
    pub fn record(&mut self, facts: &[Fact]) -> Result<(), StoreError> {
        if facts.is_empty() {
            return Ok(());
        }
        self.may_record()?;
        self.lock.borrow_mut().alive()?;
        if self.owes_erasing() {
            // A journal must not extend a snapshot that holds somebody whom its facts take for gone.
            self.save(None)?;
        }
        self.fits(facts)?;
        match self.journal.as_ref().map_or(InPlace::Yes, Writer::in_place) {
            InPlace::Yes => {}
            InPlace::Gone => {
                // What is known is still in memory and in the open file: a snapshot saves it.
                self.notes
                    .push("the journal was removed during this command; what it held was saved".to_owned());
                self.save(None)?;
            }
            InPlace::Other => {
                self.broken = true;
                let why = "it was replaced while a command worked";
                return Err(StoreError::damaged_journal(&self.place.journal, why).in_mid_command());
            }
        }
        let (facts, ledger_id) = if let Some(id) = &self.ledger.ledger_id {
            (Cow::Borrowed(facts), id.clone())
        } else if let [Fact::Named { ledger_id }, ..] = facts {
            (Cow::Borrowed(facts), ledger_id.clone())
        } else {
            let ledger_id = installation::random_id().map_err(StoreError::in_mid_command)?;
            let named = Fact::Named { ledger_id: ledger_id.clone() };
            (Cow::Owned([&[named], facts].concat()), ledger_id)
        };
        let token = self.lock.borrow().token();
        let appended = if let Some(journal) = &mut self.journal {
            journal.append(token, &facts)
        } else {
            self.begin_journal(ledger_id, token, &facts)
        };
        appended.map_err(|error| {
            self.broken = true;
            StoreError::file(&error, STOPPED_HERE)
        })?;
        for fact in facts.iter() {
            apply(&mut self.ledger, fact).map_err(|unfit| {
                self.broken = true;
                let why = redact(&unfit.to_string());
                StoreError::damaged_journal(&self.place.journal, &why).in_mid_command()
            })?;
        }
        Ok(())
    }

    /// Makes sure, before a request, that the lock is still ours and that this command did not sleep; gives a sign of
    /// life. To be called also in long work without requests: after five minutes without it the lock counts as lost.
    ///
    /// # Errors
    /// [`StoreErrorKind::LostLock`]: the request must not be made. Also where nothing could be recorded about it.
    pub fn ready_to_send(&mut self) -> Result<(), StoreError> {
        self.may_record()?;
        self.lock.borrow_mut().alive()
    }

    /// The same, for whoever asks other services meanwhile: to be called before each request, at least every five minutes.
    /// False where the request must not be made.
    #[must_use]
    pub fn pulse(&self) -> Rc<dyn Fn() -> bool> {
        let lock = Rc::downgrade(&self.lock);
        Rc::new(move || lock.upgrade().is_some_and(|lock| lock.borrow_mut().alive().is_ok()))
    }

    /// Looks, before the first request, whether the disk has room for what will be recorded: twice the ledger and 1 MiB.
    ///
    /// # Errors
    /// [`StoreErrorKind::CannotWrite`] (C064).
    pub fn room_to_send(&self) -> Result<(), StoreError> {
        room_to_send(&self.place.ledger, self.base.len)
    }

    /// What of the guards' findings was told already (kept in the state folder, since a guard-held run writes nothing
    /// else).
    #[must_use]
    pub fn told(&self) -> Vec<Told> {
        mark::read_told(&self.state, &self.told_name())
    }

    /// Keeps what was told. Nothing is kept where no state can be.
    ///
    /// # Errors
    /// [`StoreErrorKind::CannotWrite`].
    pub fn set_told(&mut self, told: &[Told]) -> Result<(), StoreError> {
        mark::write_told(&self.state, &self.told_name(), told)
            .map_err(|error| StoreError::file(&error, "what was told may be told again"))
    }

    /// R17: forgets a person. Returns none, and changes nothing, where neither the ledger nor its backup nor the list of the
    /// forgotten knows them.
    ///
    /// In this order: the list in the state folder; then ledger, journal and backup, in one snapshot that no journal
    /// leads to, since no line may be written about somebody who is being erased. Whenever a command dies in between,
    /// the next one that loads the ledger goes on with it.
    ///
    /// # Errors
    /// [`StoreErrorKind::CannotWrite`] where no list can be kept; then nothing was changed. Else those of
    /// [`LockedLedger::finish`]: the person may still be in the files, is in no ledger that is loaded, and the next
    /// command erases them.
    pub fn forget(&mut self, whom: &Whom, at: Timestamp) -> Result<Option<Forgot>, StoreError> {
        self.may_record()?;
        self.lock.borrow_mut().alive()?;
        forgotten::can_keep(&self.state)?;
        let Some((theirs, before)) = super::find(&self.place, &self.ledger, whom) else { return Ok(None) };
        if self.ledger.ledger_id.is_none() {
            // The list is found by the ledger's id, so the id is there before the list.
            let ledger_id = installation::random_id()?;
            self.record(&[Fact::Named { ledger_id }])?;
            self.save(None)?;
        }
        if self.ledger.forgotten.key().is_none() {
            let key = forgotten::new_key()?;
            self.ledger.forgotten.take(&key, Vec::new()).map_err(|_| super::lost_key())?;
        }
        let is_new = self.ledger.forgotten.remember(&theirs, at);
        if let Err(error) = forgotten::keep(&self.state, &self.ledger) {
            // In memory the person is on the list already.
            self.broken = true;
            return Err(error);
        }
        let erased = self.ledger.erase_forgotten();
        self.owe_erasing(is_new || !erased.is_nothing());
        let erased = std::mem::take(&mut self.erased).and(erased);
        let mut changed = self.owes_erasing();
        if changed {
            self.save(None)?;
        } else {
            changed = forgotten::clean_backup(&self.place, &self.ledger)
                .map_err(|error| StoreError::file(&error, STOPPED_HERE))?;
            self.written |= changed;
            if self.beside == Over::Contained {
                // The command that died may have been the one that forgot this person.
                self.write_mark(None);
                self.remove_contained()?;
            }
        }
        Ok(Some(Forgot { theirs, before, erased, changed }))
    }

    /// Writes a snapshot if anything was recorded, then the mark, and releases the lock.
    ///
    /// `run` is the `now` of a run; a hand command gives none, and writes a mark only if it wrote a snapshot. A run gives a
    /// ledger without an id one.
    ///
    /// # Errors
    /// [`StoreErrorKind::CannotWrite`], [`StoreErrorKind::LostLock`], or [`StoreErrorKind::Damaged`] and
    /// [`StoreErrorKind::PutBack`] for a ledger that was changed by hand meanwhile and can no longer be used: the
    /// journal stays, and with it all that was recorded. [`StoreErrorKind::PutBack`] where the ledger is older
    /// than its journal or mark.
    pub fn finish(mut self, run: Option<Timestamp>) -> Result<Finished, StoreError> {
        self.may_record()?;
        if run.is_some() && self.ledger.ledger_id.is_none() {
            let ledger_id = installation::random_id()?;
            self.record(&[Fact::Named { ledger_id }])?;
        }
        if self.journal.is_some() || self.owes_erasing() {
            self.save(run)?;
        } else {
            // One that slept while another command went on must not set the mark back.
            self.lock.borrow_mut().alive()?;
            if run.is_some() || self.lowered.is_some() || (self.written && !self.is_marked()) {
                self.write_mark(run);
                self.drop_contained()?;
            }
        }
        let marked = self.is_marked();
        let mut notes = self.notes.split_off(self.said);
        notes.extend(self.unmarked.take());
        let finished = Finished { generation: self.base.generation, written: self.written, marked, notes };
        self.lock.borrow_mut().release();
        Ok(finished)
    }

    /// Releases the lock and writes nothing more. What was recorded stays in the journal.
    pub fn abandon(self) {
        self.lock.borrow_mut().release();
    }

    fn owes_erasing(&self) -> bool {
        self.on_disk == Before::Erased
    }

    fn owe_erasing(&mut self, owes: bool) {
        if owes {
            self.on_disk = Before::Erased;
        }
    }

    fn may_record(&self) -> Result<(), StoreError> {
        if let Some(newer) = self.newer {
            return Err(StoreError::put_back(&self.place.ledger, self.base.generation, newer));
        }
        if self.broken {
            return Err(StoreError::new(
                StoreErrorKind::CannotWrite,
                format!("an earlier write beside `{}` failed", self.place.ledger.display()),
                STOPPED_HERE,
                String::new(),
            ));
        }
        Ok(())
    }

    /// Whether the mark in the state folder speaks of the snapshot that is there.
    fn is_marked(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.generation >= self.base.generation)
    }

    /// Writes the mark after the snapshot it speaks of. That it cannot be written is said and no failure: the ledger
    /// is safe, and an older mark holds nothing up.
    fn write_mark(&mut self, run: Option<Timestamp>) {
        let Some(ledger_id) = self.ledger.ledger_id.clone() else { return };
        let before = self.mark.as_ref().and_then(|mark| mark.last_run_at);
        let last_run_at = run.or_else(|| match (before, self.lowered) {
            (Some(before), Some(now)) => Some(before.min(now)),
            _ => before,
        });
        let mut read_at = match (run, &self.mark) {
            (None, Some(before)) => before.read_at.clone(),
            _ => self.readings.clone(),
        };
        if let Some(now) = self.lowered {
            for at in read_at.values_mut() {
                *at = (*at).min(now);
            }
        }
        let mark = Mark::new(ledger_id, self.base.generation, last_run_at, read_at);
        match mark::write(&self.state, &mark) {
            Ok(true) => {
                self.mark = Some(mark);
                (self.lowered, self.unmarked) = (None, None);
            }
            Ok(false) => {}
            Err(error) => self.unmarked = Some(format!("{error}; the ledger itself is saved")),
        }
    }

    /// Writes a new snapshot and removes the journal that is contained in it.
    ///
    /// `run` is the `now` of a run that ends with this.
    fn save(&mut self, run: Option<Timestamp>) -> Result<(), StoreError> {
        self.may_record()?;
        self.lock.borrow_mut().alive()?;
        forgotten::keep(&self.state, &self.ledger).map_err(StoreError::in_mid_command)?;
        // An editor that saves all the time must not keep this from ending.
        for _ in 0..5 {
            if self.base.generation >= COUNTER_MAX {
                return Err(StoreError::damaged_ledger(
                    &self.place.ledger,
                    "field `generation`: it is too large",
                ));
            }
            self.ledger.generation = self.base.generation + 1;
            self.ledger.lock_token = self.lock.borrow().token();
            let replaced = snapshot::replace(&self.place, &self.ledger, &self.base, self.on_disk);
            if !matches!(replaced, Ok(Replaced::Done(_))) {
                self.ledger.generation = self.base.generation;
            }
            match replaced {
                Ok(Replaced::Done(base)) => {
                    self.base = base;
                    tracing::debug!(generation = self.base.generation, "snapshot written");
                    if let Some(journal) = self.journal.take() {
                        let ours = journal.in_place() == InPlace::Yes;
                        self.beside = if ours { Over::Contained } else { Over::Nothing };
                    }
                    return self.saved(run);
                }
                Ok(Replaced::Edited) => self.take_over_edit()?,
                Err(error) => {
                    self.broken = true;
                    return Err(StoreError::file(&error, STOPPED_HERE));
                }
            }
        }
        self.broken = true;
        Err(StoreError::new(
            StoreErrorKind::CannotWrite,
            format!(
                "cannot write ledger `{}`: something else changes it again and again",
                self.place.ledger.display()
            ),
            STOPPED_HERE,
            String::new(),
        ))
    }

    /// A snapshot is durable: says so in the mark, and then lets the journal go, in this order (R12). Whoever dies in between
    /// leaves a journal beside the version before, should that be put back.
    fn saved(&mut self, run: Option<Timestamp>) -> Result<(), StoreError> {
        self.written = true;
        self.replayed = false;
        self.write_mark(run);
        let before = std::mem::replace(&mut self.on_disk, Before::Kept);
        match before {
            Before::Kept => self.drop_contained(),
            // R17: it may speak of somebody who was forgotten. `.bak` is a copy of the new version, and needs no keeper.
            Before::Erased => self.remove_contained(),
        }
    }

    /// Removes a journal that is contained in the snapshot, unless the mark could not be written: then it alone tells that
    /// `.bak`, which it extends, is not the newest. Where no state can be kept the ledger alone is trusted.
    fn drop_contained(&mut self) -> Result<(), StoreError> {
        if self.is_marked() || self.state.installation().is_none() { self.remove_contained() } else { Ok(()) }
    }

    fn remove_contained(&mut self) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.beside, Over::Nothing) == Over::Nothing {
            return Ok(());
        }
        self.before_contained_goes().and_then(|()| disk::remove(&self.place.journal)).map_err(|error| {
            self.broken = true;
            StoreError::file(&error, STOPPED_HERE)
        })
    }

    /// Whoever wrote this snapshot may have been killed before the folder's sync. Were the journal's end to reach the disk
    /// before the snapshot's name, a power cut would leave neither.
    fn before_contained_goes(&self) -> Result<(), FileError> {
        disk::sync_folder_of(&self.place.ledger)
    }

    fn begin_journal(&mut self, ledger_id: String, token: u64, facts: &[Fact]) -> Result<(), FileError> {
        let header = Header::new(ledger_id, self.base.generation, self.base.len, self.base.crc);
        if self.beside == Over::Contained {
            self.before_contained_goes()?;
        }
        self.journal = Some(Writer::create(&self.place.journal, &header, token, facts, self.beside)?);
        self.beside = Over::Nothing;
        Ok(())
    }

    /// Somebody edited the ledger while this command worked: reads it again and adds what was recorded since.
    fn take_over_edit(&mut self) -> Result<(), StoreError> {
        let taken = self.edited();
        // Whatever is wrong with the edit, this command's view of the ledger is no longer true.
        self.broken = taken.is_err();
        let (Snapshot { ledger, base }, owes_erasing) = taken.map_err(StoreError::in_mid_command)?;
        self.ledger = ledger;
        self.owe_erasing(owes_erasing);
        self.base = base;
        tracing::info!(
            "the ledger was edited by hand during this command; its facts were added to the edited version"
        );
        self.notes.push(format!(
            "ledger `{}` was edited by hand during this command; what the command recorded is added to the edited \
             version",
            self.place.ledger.display()
        ));
        Ok(())
    }

    /// The edited ledger with what was recorded, and whether somebody who was forgotten had to be taken out of it.
    fn edited(&self) -> Result<(Snapshot, bool), StoreError> {
        self.place.check()?;
        let Snapshot { mut ledger, base } = read::snapshot(&self.place.ledger)?;
        let mut owes_erasing =
            ledger.ledger_id.is_some() && forgotten::take(&self.place, &self.state, &mut ledger)?;
        // A generation raised by hand is taken as it stands: refusing it would leave a journal that looks contained.
        if base.generation < self.base.generation {
            return Err(StoreError::put_back(&self.place.ledger, base.generation, self.base.generation));
        }
        if let Some(journal) = &self.journal {
            let contents = journal.read_back()?;
            fit(&self.place, &ledger, &contents)?;
            replay(&self.place, &mut ledger, &contents)?;
        }
        owes_erasing |= forgotten::take(&self.place, &self.state, &mut ledger)?;
        owes_erasing |= !ledger.erase_forgotten().is_nothing();
        Ok((Snapshot { ledger, base }, owes_erasing))
    }

    /// Refuses a batch that could not be replayed later: it would make the journal unreadable for every command after.
    fn fits(&self, facts: &[Fact]) -> Result<(), StoreError> {
        let mut sessions = HashSet::new();
        let mut matters = HashSet::new();
        for fact in facts {
            let needed = match fact {
                Fact::Admitted { purchase } => {
                    sessions.insert(&purchase.session);
                    continue;
                }
                Fact::Matter { matter } => {
                    matters.insert(matter.id());
                    continue;
                }
                Fact::Filled { checkout } => Err(&checkout.session),
                fact => match fact.key() {
                    Some(IdempotencyKey::Step(session, _)) => Err(session),
                    Some(IdempotencyKey::Notice(id)) => Ok(id),
                    None => continue,
                },
            };
            let known = match needed {
                Ok(id) => matters.contains(id) || self.ledger.matters.iter().any(|matter| matter.id() == *id),
                Err(session) => sessions.contains(session) || self.ledger.buyers.purchase(session).is_some(),
            };
            if !known {
                let about = match needed {
                    Ok(id) => format!("matter {id}"),
                    Err(session) => format!("session {session}"),
                };
                return Err(StoreError::new(
                    StoreErrorKind::Damaged,
                    format!(
                        "ledger `{}` does not hold {about}, of which something was to be recorded",
                        self.place.ledger.display()
                    ),
                    STOPPED_HERE,
                    String::new(),
                ));
            }
        }
        Ok(())
    }

    /// What the state folder calls this ledger where it has no id.
    fn told_name(&self) -> String {
        super::told_name(&self.place, &self.ledger)
    }
}

/// Whether the disk has room for the results of a run: see [`LockedLedger::room_to_send`].
pub(super) fn room_to_send(path: &Path, len: u64) -> Result<(), StoreError> {
    let folder = disk::folder_of(path);
    let free = fs2::available_space(folder)
        .naming("ask for the free space of", folder)
        .map_err(|error| StoreError::file(&error, NOTHING_DONE))?;
    enough_room(folder, free, len)
}

/// Twice the ledger (a snapshot beside the old one) and 1 MiB for the journal.
pub(super) fn enough_room(folder: &Path, free: u64, ledger: u64) -> Result<(), StoreError> {
    let needed = ledger.saturating_mul(2).saturating_add(1 << 20);
    if free >= needed {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::CannotWrite,
        format!(
            "cannot be sure to write in `{}`: {free} bytes are free and {needed} may be needed",
            folder.display()
        ),
        "nothing was sent",
        "make room on this disk".to_owned(),
    ))
}
