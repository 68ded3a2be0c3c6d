//! The forgotten of a ledger in the state folder (R17): the key of the hashes, which lies nowhere else, and the list, so
//! that a ledger that is put back forgets again.
//!
//! It leaves out what the hashes mean: `domain::forgotten`. What must hold: the list is durable before anything is erased;
//! from then on no ledger is loaded without erasing what it names; and a ledger whose hashes nobody can compute any more
//! is refused, since everybody in it would look like a new buyer.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{NOTHING_DONE, StoreError, StoreErrorKind, redact};
use super::installation::StateFolder;
use super::mark::{file_name, nothing_there, write_json};
use super::place::Place;
use super::read;
use crate::disk::{self, FileError, Naming};
use crate::domain::erase::Theirs;
use crate::domain::fact::Whom;
use crate::domain::forgotten::{Person, check};
use crate::domain::keyed::Key;
use crate::domain::ledger::Ledger;

const VERSION: u32 = 1;
/// The folder of the lists in the state folder.
const FORGOTTEN: &str = "forgotten";

/// What stands in the file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    v: u32,
    ledger_id: String,
    key: Key,
    people: Vec<Person>,
}

/// Reads the list of a ledger. None where there is none, or no state can be kept.
fn read(state: &StateFolder, ledger_id: &str) -> Result<Option<List>, StoreError> {
    let Some(path) = file(state, ledger_id) else { return Ok(None) };
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if nothing_there(&error) => return Ok(None),
        Err(source) => {
            let error = FileError { doing: "read the list of the forgotten", path, source };
            return Err(StoreError::file(&error, NOTHING_DONE));
        }
    };
    let list: List =
        serde_json::from_slice(&bytes).map_err(|error| damaged(&path, &redact(&error.to_string())))?;
    if list.v != VERSION {
        return Err(damaged(&path, "field `v`: it was written by another version of stepmail"));
    }
    if list.ledger_id != ledger_id {
        return Err(damaged(&path, "field `ledger_id`: it speaks of another ledger"));
    }
    check(&list.people).map_err(|why| damaged(&path, &format!("field `people`: {why}")))?;
    Ok(Some(list))
}

/// Gives a ledger its key, and the people it does not know any more. Says whether there were any.
///
/// # Errors
/// [`StoreErrorKind::Damaged`] for a list that cannot be read, and for a ledger whose key is not there.
pub(super) fn take(place: &Place, state: &StateFolder, ledger: &mut Ledger) -> Result<bool, StoreError> {
    let list = match &ledger.ledger_id {
        Some(id) => read(state, id)?,
        None => None,
    };
    match list {
        None if ledger.forgotten.is_empty() => Ok(false),
        None => Err(no_key(place, state, ledger, "is not there")),
        Some(List { key, people, .. }) => ledger
            .forgotten
            .take(&key, people)
            .map_err(|_| no_key(place, state, ledger, "is another one than the ledger's")),
    }
}

/// Makes the list in the state folder say what the ledger says. Nothing is written where it does already.
pub(super) fn keep(state: &StateFolder, ledger: &Ledger) -> Result<(), StoreError> {
    let (false, Some(key)) = (ledger.forgotten.is_empty(), ledger.forgotten.key()) else { return Ok(()) };
    let (Some(id), true) = (&ledger.ledger_id, state.installation().is_some()) else {
        return Err(nowhere(state));
    };
    let Some(path) = file(state, id) else { return Err(nowhere(state)) };
    let people = ledger.forgotten.people().to_vec();
    let list = List { v: VERSION, ledger_id: id.clone(), key: key.clone(), people };
    if read(state, id)?.is_some_and(|there| there == list) {
        return Ok(());
    }
    write_json(&path, &list).map_err(|error| StoreError::file(&error, NOTHING_DONE))
}

/// Looks whether a list can be kept at all.
pub(super) fn can_keep(state: &StateFolder) -> Result<(), StoreError> {
    if state.installation().is_some() { Ok(()) } else { Err(nowhere(state)) }
}

/// A new key.
pub(super) fn new_key() -> Result<Key, StoreError> {
    super::installation::random::<32>().map(Key::new)
}

/// Removes what dead processes left half-written of the list. To be called under the ledger's lock.
pub(super) fn sweep(state: &StateFolder, ledger_id: Option<&str>) {
    if let Some(path) = ledger_id.and_then(|id| file(state, id)) {
        disk::sweep(&path);
    }
}

/// Looks a person up in the ledger, and in the version before it. Says also whether anything is known of them there.
pub(super) fn look_up(place: &Place, ledger: &Ledger, whom: &Whom) -> (Theirs, bool) {
    let mut theirs = Theirs::of(ledger, whom);
    let known = !theirs.is_nobody(ledger);
    let buyer = theirs.address.as_ref().and_then(|address| ledger.buyers.get(address));
    theirs.is_not_stopped = buyer.is_some_and(|buyer| buyer.stopped.is_none());
    // What cannot be read is nobody's.
    let Some(before) = fs::read(&place.backup).ok().and_then(|bytes| read::parse(&bytes).ok()) else {
        return (theirs, known);
    };
    // A purchase may have been taken out of the ledger by hand.
    let mut both = if known { theirs } else { Theirs::of(&before, whom) };
    let known = known || !both.is_nobody(&before);
    let stopped = both.stopped;
    both.look(&before);
    if buyer.is_some() {
        // The version before may have a stop that was lifted since.
        both.stopped = stopped;
    }
    (both, known)
}

/// Makes the backup a copy of `bytes`: a second name of the same file would be edited with it.
pub(super) fn replace_backup(place: &Place, bytes: &[u8]) -> Result<(), FileError> {
    disk::replace(&place.backup, bytes, disk::PRIVATE, || Ok(()))
}

/// Whether the backup may hold something of people whom this ledger has forgotten. One that cannot be parsed may: whom it
/// speaks of, under which of their names and in which writing, nobody can know.
///
/// # Errors
/// The backup.
pub(super) fn backup_is_dirty(place: &Place, ledger: &Ledger) -> Result<bool, FileError> {
    let bytes = match fs::read(&place.backup) {
        Err(error) if nothing_there(&error) => return Ok(false),
        read => read.naming("read", &place.backup)?,
    };
    let Ok(mut before) = read::parse(&bytes) else { return Ok(true) };
    // The people it forgot itself are known here as well.
    before.forgotten.clone_from(&ledger.forgotten);
    Ok(!before.erase_forgotten().is_nothing())
}

/// Makes the backup a copy of the ledger, if it [is dirty](backup_is_dirty). Says whether it was.
///
/// # Errors
/// The backup, which is as it was.
pub(super) fn clean_backup(place: &Place, ledger: &Ledger) -> Result<bool, FileError> {
    let dirty = backup_is_dirty(place, ledger)?;
    if dirty {
        let clean = fs::read(&place.ledger).naming("read", &place.ledger)?;
        replace_backup(place, &clean)?;
    }
    Ok(dirty)
}

fn file(state: &StateFolder, ledger_id: &str) -> Option<PathBuf> {
    state.file(&format!("{FORGOTTEN}/{}.json", file_name(ledger_id)))
}

fn damaged(path: &Path, why: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Damaged,
        format!("cannot read the list of the forgotten `{}`: {why}", path.display()),
        NOTHING_DONE,
        "put a copy of this file back; without it people who were forgotten would be mailed as new buyers"
            .to_owned(),
    )
}

fn no_key(place: &Place, state: &StateFolder, ledger: &Ledger, what: &str) -> StoreError {
    let name = ledger.ledger_id.as_deref().map_or("of a ledger without an id".to_owned(), file_name);
    let path = state.path().join(FORGOTTEN).join(format!("{name}.json"));
    StoreError::new(
        StoreErrorKind::Damaged,
        format!(
            "ledger `{}` has forgotten people, and their key `{}` {what}",
            place.ledger.display(),
            path.display()
        ),
        NOTHING_DONE,
        format!(
            "put the folder `{FORGOTTEN}` of the former state folder back: without it they would be mailed as new \
             buyers; it goes along to a new machine, the rest of the state folder does not"
        ),
    )
}

fn nowhere(state: &StateFolder) -> StoreError {
    StoreError::new(
        StoreErrorKind::CannotWrite,
        format!(
            "cannot keep the list of the forgotten in the state folder `{}`: it cannot be written",
            state.path().display()
        ),
        "nobody was forgotten and nothing was changed",
        "make the state folder writable: without the list the person would come back with the next backup or event"
            .to_owned(),
    )
}
