//! The ledger on disk: `ledger.json`, its journal, its lock, its backup, and its mark in the state folder.
//!
//! A command takes the lock, gets a [`LockedLedger`], records facts in it, and finishes. Only a locked ledger can be
//! changed. Reading without a lock ([`Store::view`]) writes not one byte. This room knows facts and ledgers and nothing
//! of mails, rules or settings; it decides nothing but whether a file can be trusted.
//!
//! What must hold: what [`LockedLedger::record`] acknowledged survives a kill and a power cut; a file that cannot be
//! read is never rewritten; a flag that a person sets in the file by hand, at any time, is never lost.
//!
//! # What a crash can leave, and who cleans it up
//!
//! | left behind | how the next command finds it | who cleans up |
//! | --- | --- | --- |
//! | S1: lock record `held`, advisory lock free | a dead holder of this installation | the next lock takes over, and says so |
//! | S2: `.stepmail-ledger.json…-XXXXXX` beside the ledger, or in the state folder | never read | swept under the lock |
//! | S3: journal of the ledger's generation | what was recorded and is in no snapshot yet | replayed when loaded; `consolidate` or `finish` writes the snapshot and removes it |
//! | S4: the same with an unfinished last line | a tear: never acknowledged | cut when loaded, in the file at the next write |
//! | S5: `.bak` is the same file as the ledger | a snapshot was about to be renamed | nobody needs to; the next snapshot makes a new `.bak` |
//! | S6: no `.bak` at all | the same, a moment earlier | the next snapshot |
//! | S7: new snapshot, and a journal of a lower generation | contained in the snapshot, and ignored; should the version it extends be put back, it is there to be replayed | the next record or snapshot, or a run that no guard holds; not before the mark speaks of the snapshot, where one can be kept |
//! | S8: new snapshot, old mark, S7's journal | the mark lags behind, which no guard minds, since the journal is there | the next snapshot's or run's mark |
//! | S9: no ledger, a temporary file | `init` died | `init` again; the sweep takes the file |
//! | S10: state folder without id or marks | made anew, exclusively | the next lock |
//! | S11: a list of the forgotten that names people who are still in the ledger, its journal or its `.bak` | `forget` died, or the ledger was put back: they are erased from what is loaded (R17) | `consolidate`, the first record, or `finish` writes the ledger without them, and its `.bak` before it |
//! | S12: `.bak` is a copy of a ledger that is not there yet | the same, a moment later | the same |
//! | S13: mails of the forgotten in the outbox | `forget` died after the snapshot | `forget` again |
//! | S14: a lock file with a record that is no record | of unknown make: held until silent for 30 minutes | the lock after that |
//!
//! A journal of a *higher* generation than the ledger is none of these: the ledger was put back (R12). Nothing is
//! recorded then until a person has decided.

mod error;
mod forgotten;
mod installation;
mod journal;
mod lock;
mod locked;
mod look;
mod mark;
mod place;
mod read;
mod snapshot;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::{StoreError, StoreErrorKind};
pub use lock::{Holder, Who};
pub use locked::{Finished, LockedLedger};
pub use look::{LockSeen, StateSeen, look_at_state};
pub use mark::{Mark, Told};

pub use crate::disk::Created;

use error::NOTHING_DONE;
use installation::StateFolder;
use journal::{Contents, End};
use lock::Lock;
use place::Place;
use read::{Base, Snapshot};

use crate::clock::Clock;
use crate::disk::{self, Naming};
use crate::domain::erase::{Erased, Theirs};
use crate::domain::fact::{Fact, Whom, apply};
use crate::domain::keyed::Key;
use crate::domain::ledger::Ledger;
use crate::domain::time::Timestamp;

/// How often a reader starts again because a command replaced the ledger under its eyes.
const READS_MAX: usize = 20;

/// A ledger on disk, not opened yet.
#[derive(Clone, Debug)]
pub struct Store {
    place: Place,
    state_dir: PathBuf,
}

/// A ledger as it was when somebody looked, with all that was recorded.
#[derive(Clone, Debug)]
pub struct View {
    /// Snapshot and journal together.
    pub ledger: Ledger,
    /// R12: how far this installation has brought it.
    pub mark: Option<Mark>,
    /// This installation's id; one made up for the occasion where a run would make a new one; none where no state can
    /// be kept.
    pub installation: Option<String>,
    /// What is to be said.
    pub notes: Vec<String>,
    /// R12: the ledger was put back; see [`LockedLedger::journal_ahead`].
    pub journal_ahead: bool,
    /// How many records of the journal are in no snapshot yet: of a command at work, or of one that died.
    pub unsaved: usize,
    /// What of the guards' findings was told already.
    pub told: Vec<Told>,
    /// R17: what was taken out of the ledger when it was read.
    erased: Erased,
    /// R17: whether the ledger on disk is to be written anew because of the forgotten.
    owes_erasing: bool,
    path: PathBuf,
    len: u64,
    /// R12: the newest generation known of this ledger, where that is not this one.
    newer: Option<u64>,
    /// What the journal of a newer version holds; see [`LockedLedger::beyond`].
    pub beyond: Vec<Fact>,
    /// The ledger's place and the state folder, for what else lies there.
    place: Place,
    state: StateFolder,
}

impl View {
    /// The ledger's canonical path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where this ledger ran before, if it is still there; see [`LockedLedger::former_place`].
    #[must_use]
    pub fn former_place(&self) -> Option<PathBuf> {
        place::former(&self.path, &self.ledger)
    }

    /// Whether a command that takes the lock could record anything in this ledger.
    ///
    /// # Errors
    /// [`StoreErrorKind::PutBack`], as [`LockedLedger::record`].
    pub fn may_record(&self) -> Result<(), StoreError> {
        self.newer
            .map_or(Ok(()), |newer| Err(StoreError::put_back(&self.path, self.ledger.generation, newer)))
    }

    /// R17: forgets a person in memory, and says what a real [`LockedLedger::forget`] would erase.
    ///
    /// # Errors
    /// As for the real one.
    pub fn forget(&mut self, whom: &Whom, at: Timestamp) -> Result<Option<Forgot>, StoreError> {
        self.may_record()?;
        forgotten::can_keep(&self.state)?;
        let Some((theirs, before)) = find(&self.place, &self.ledger, whom) else { return Ok(None) };
        if self.ledger.forgotten.key().is_none() {
            // A real one draws its key; which one is no matter here.
            self.ledger.forgotten.take(&Key::new([0; 32]), Vec::new()).map_err(|_| lost_key())?;
        }
        let is_new = self.ledger.forgotten.remember(&theirs, at);
        let erased = self.ledger.erase_forgotten();
        let dirty = || {
            forgotten::backup_is_dirty(&self.place, &self.ledger)
                .map_err(|error| StoreError::file(&error, NOTHING_DONE))
        };
        let changed = is_new || self.owes_erasing || !erased.is_nothing() || dirty()?;
        Ok(Some(Forgot { theirs, before, erased: self.erased.and(erased), changed }))
    }

    /// Whether a run would find room for its results; see [`LockedLedger::room_to_send`].
    ///
    /// # Errors
    /// [`StoreErrorKind::CannotWrite`], as for the run.
    pub fn room_to_send(&self) -> Result<(), StoreError> {
        locked::room_to_send(&self.path, self.len)
    }
}

impl Store {
    /// Finds a ledger and looks whether it may be used where it lies. Nothing is written.
    ///
    /// # Errors
    /// [`StoreErrorKind::Missing`] where nothing is there, or a link leads nowhere; [`StoreErrorKind::CannotWrite`]
    /// where it belongs to somebody else, is read-only, has a second name, or lies on a network or synchronised folder;
    /// [`StoreErrorKind::Damaged`] where it is no file.
    pub fn new(ledger: &Path, state_dir: &Path, allow_shared_folder: bool) -> Result<Self, StoreError> {
        let place = Place::find(ledger, allow_shared_folder)?;
        place.check()?;
        Ok(Self { place, state_dir: state_dir.to_owned() })
    }

    /// The ledger's canonical path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.ledger
    }

    /// Makes a new ledger where nothing is, with an id if it has none: a ledger without one has no mark, and no guard knows
    /// that it was put back (R12).
    ///
    /// # Errors
    /// [`StoreErrorKind::CannotWrite`]; [`StoreErrorKind::Damaged`] where the journal or the backup of a lost ledger is
    /// there: an empty ledger beside it would send again what that one had sent.
    pub fn create(path: &Path, ledger: &Ledger) -> Result<Created, StoreError> {
        let is_there = |path: &Path| std::fs::symlink_metadata(path).is_ok();
        let parts = [(".journal", "journal"), (".bak", "backup")];
        let left = parts.into_iter().find(|(ending, _)| is_there(&place::beside(path, ending)));
        if let Some((ending, what)) = left.filter(|_| !is_there(path)) {
            return Err(StoreError::new(
                StoreErrorKind::Damaged,
                format!(
                    "will not make a new ledger `{}`: the {what} `{}` of one that is gone is beside it",
                    path.display(),
                    place::beside(path, ending).display()
                ),
                NOTHING_DONE,
                format!(
                    "put that ledger back (`{}` may be its version before the last)",
                    place::beside(path, ".bak").display()
                ),
            ));
        }
        let mut ledger = ledger.clone();
        if ledger.ledger_id.is_none() {
            ledger.ledger_id = Some(installation::random_id()?);
        }
        snapshot::bytes(&ledger)
            .naming("write ledger", path)
            .and_then(|bytes| disk::create(path, &bytes, disk::PRIVATE))
            .map_err(|error| StoreError::file(&error, NOTHING_DONE))
    }

    /// Reads the ledger as it is, with all that was recorded in its journal. No lock is taken and not one byte written.
    ///
    /// # Errors
    /// The same as [`Store::lock`] would meet, but for a lock that is busy and a disk that cannot be written.
    pub fn view(&self) -> Result<View, StoreError> {
        let state = StateFolder::look(&self.state_dir)?;
        let mut reads = 0;
        let loaded = loop {
            // A command that ends meanwhile removes the journal after its facts went into a new snapshot: the old
            // snapshot without the journal would lack them.
            let before = read::identity(&self.place.ledger);
            let loaded = load(&self.place, &state);
            reads += 1;
            if before == read::identity(&self.place.ledger) || reads == READS_MAX {
                break loaded?;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let owes_erasing = loaded.owes_erasing();
        let mut notes = loaded.notes;
        if matches!(loaded.journal, Found::Live { end: End { torn: true, .. }, .. }) {
            notes.push(
                "the last entry of the journal is unfinished (a command is at work, or died): it does not count"
                    .to_owned(),
            );
        }
        let mark = mark::read(&state, loaded.ledger.ledger_id.as_deref())?;
        let ahead = match loaded.journal {
            Found::Ahead(generation) => Some(generation),
            _ => None,
        };
        Ok(View {
            newer: newest_known(&loaded.base, ahead, mark.as_ref()),
            beyond: loaded.beyond,
            mark,
            installation: state.installation().map(str::to_owned),
            notes,
            told: mark::read_told(&state, &told_name(&self.place, &loaded.ledger)),
            journal_ahead: matches!(loaded.journal, Found::Ahead(_)),
            unsaved: match loaded.journal {
                Found::Live { records, .. } => records,
                Found::None | Found::Contained | Found::Ahead(_) => 0,
            },
            path: self.place.ledger.clone(),
            len: loaded.base.len,
            owes_erasing,
            ledger: loaded.ledger,
            erased: loaded.erased,
            place: self.place.clone(),
            state,
        })
    }

    /// Takes the lock, waiting for it up to `wait`, and loads the ledger. `waiting` is called once, if it has to wait.
    ///
    /// # Errors
    /// [`StoreErrorKind::Busy`] or [`StoreErrorKind::Silent`] where another command holds it; the rest as
    /// [`Store::new`], and [`StoreErrorKind::Damaged`] for a ledger, journal, mark or installation id that cannot be
    /// read. Neither ledger nor journal is changed in any of these cases.
    pub fn lock(
        &self,
        wait: Duration,
        clock: &Clock,
        waiting: impl FnMut(&Holder),
    ) -> Result<LockedLedger, StoreError> {
        self.place.check()?;
        let (state, note) = StateFolder::open(&self.state_dir)?;
        let mut notes: Vec<String> = note.into_iter().collect();
        let (lock, note) = Lock::take(&self.place, &state, wait, clock, waiting)?;
        notes.extend(note);
        LockedLedger::load(self.place.clone(), state, lock, notes)
    }
}

/// What a journal is to its ledger.
#[derive(Clone, Copy, Debug)]
enum Found {
    None,
    /// Its facts are in the snapshot.
    Contained,
    /// The ledger was put back to an older version.
    Ahead(u64),
    /// Its facts come on top of the snapshot.
    Live {
        end: End,
        records: usize,
    },
}

struct Loaded {
    ledger: Ledger,
    base: Base,
    journal: Found,
    /// The facts of a journal that extends a newer version of this ledger.
    beyond: Vec<Fact>,
    token: u64,
    notes: Vec<String>,
    /// R17: what was taken out in memory, and is still on disk.
    erased: Erased,
    /// Whether the list of the forgotten in the state folder knew more than the ledger.
    grown: bool,
}

impl Loaded {
    /// R17: whether the ledger on disk still holds somebody who was forgotten, or lacks that somebody was.
    fn owes_erasing(&self) -> bool {
        self.grown || !self.erased.is_nothing()
    }
}

/// Reads snapshot and journal, and adds up.
fn load(place: &Place, state: &StateFolder) -> Result<Loaded, StoreError> {
    place.check()?;
    let Snapshot { mut ledger, base } = read::snapshot(&place.ledger)?;
    // Before the journal, whose facts may speak of the forgotten.
    let named = ledger.ledger_id.is_some();
    let mut grown = named && forgotten::take(place, state, &mut ledger)?;
    let mut notes = Vec::new();
    let mut token = ledger.lock_token;
    let mut beyond = Vec::new();
    let journal = match journal::read(&place.journal)? {
        None => Found::None,
        Some(contents) => {
            token = token.max(contents.end.token);
            let found = fit(place, &ledger, &contents)?;
            if let Found::Live { records: 1.., .. } = found {
                if (contents.header.snapshot_len, contents.header.snapshot_crc) != (base.len, base.crc) {
                    notes.push(format!(
                        "ledger `{}` was edited by hand; what a command had recorded before is added to the edited \
                         version",
                        place.ledger.display()
                    ));
                }
                replay(place, &mut ledger, &contents)?;
            }
            if let Found::Ahead(_) = found {
                beyond = contents.facts().cloned().collect();
            }
            found
        }
    };
    // A hand-made ledger may have got its id just now.
    grown |= !named && forgotten::take(place, state, &mut ledger)?;
    // After the journal: its facts may speak of purchases that are erased.
    let erased = ledger.erase_forgotten();
    Ok(Loaded { ledger, base, journal, beyond, token, notes, erased, grown })
}

/// What `forget` found and did.
#[derive(Clone, Debug)]
pub struct Forgot {
    /// What was known of the person. To be dropped when the answer is given.
    pub theirs: Theirs,
    /// When the person was forgotten before, if so.
    pub before: Option<Timestamp>,
    /// What was taken out of the ledger, now or when it was loaded.
    pub erased: Erased,
    /// Whether ledger or backup were written anew because of it.
    pub changed: bool,
}

/// Looks a person up in the ledger, its backup, and among the forgotten.
fn find(place: &Place, ledger: &Ledger, whom: &Whom) -> Option<(Theirs, Option<Timestamp>)> {
    let (theirs, known) = forgotten::look_up(place, ledger, whom);
    let before = ledger.forgotten.person(whom).map(|person| person.at);
    (known || before.is_some()).then_some((theirs, before))
}

fn lost_key() -> StoreError {
    StoreError::new(
        StoreErrorKind::Damaged,
        "the key of the forgotten is not the ledger's".to_owned(),
        NOTHING_DONE,
        String::new(),
    )
}

/// R12: the newest generation known of a ledger by its journal and its mark, where that is not its own.
fn newest_known(base: &Base, journal: Option<u64>, mark: Option<&Mark>) -> Option<u64> {
    journal.max(mark.map(|mark| mark.generation)).filter(|generation| *generation > base.generation)
}

/// Finds out what a journal is to a ledger.
fn fit(place: &Place, ledger: &Ledger, contents: &Contents) -> Result<Found, StoreError> {
    let id = &contents.header.ledger_id;
    let same = match (&ledger.ledger_id, contents.facts().next()) {
        // A hand-made ledger gets its id by the first fact recorded for it.
        (Some(ledger_id), _) | (None, Some(Fact::Named { ledger_id })) => ledger_id == id,
        (None, first) => first.is_none(),
    };
    if !same {
        return Err(StoreError::damaged_journal(&place.journal, "line 1: it belongs to another ledger"));
    }
    let generation = contents.header.generation;
    Ok(match generation.cmp(&ledger.generation) {
        std::cmp::Ordering::Less => Found::Contained,
        std::cmp::Ordering::Greater => Found::Ahead(generation),
        std::cmp::Ordering::Equal => Found::Live { end: contents.end, records: contents.records.len() },
    })
}

fn replay(place: &Place, ledger: &mut Ledger, contents: &Contents) -> Result<(), StoreError> {
    for record in &contents.records {
        for fact in record.facts.iter() {
            apply(ledger, fact).map_err(|unfit| {
                let why = format!("record {}: {}", record.seq, error::redact(&unfit.to_string()));
                StoreError::damaged_journal(&place.journal, &why)
            })?;
        }
    }
    Ok(())
}

/// What the state folder calls a ledger, also one that has no id.
fn told_name(place: &Place, ledger: &Ledger) -> String {
    ledger.ledger_id.clone().unwrap_or_else(|| {
        format!("path-{:08x}", crc32fast::hash(place.ledger.as_os_str().as_encoded_bytes()))
    })
}
