//! What is kept per ledger in the state folder, away from the ledger: the mark, by which a copy or a restored backup is
//! known (R12), and what of the guards' findings was told already, since a guard-held run writes nothing else.
//!
//! What must hold: the mark is written after the snapshot it speaks of is durable, never before; and before the journal
//! that this snapshot contains is gone, which else is what tells that the version before is not the newest.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{NOTHING_DONE, StoreError, redact};
use super::installation::{MARKS, StateFolder};
use crate::disk::{self, FileError, Naming};
use crate::domain::matter::MatterKind;
use crate::domain::time::Timestamp;

const VERSION: u32 = 1;

/// How far this installation has brought a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The version of this file.
    pub v: u32,
    /// Of this ledger.
    pub ledger_id: String,
    /// The newest snapshot known to be durable.
    pub generation: u64,
    /// The last run's `now`, whether or not it had something to record; absent where none ran here yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_at: Option<Timestamp>,
    /// When each source of stops was last read well.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub read_at: BTreeMap<String, Timestamp>,
}

impl Mark {
    pub(super) fn new(
        ledger_id: String,
        generation: u64,
        last_run_at: Option<Timestamp>,
        read_at: BTreeMap<String, Timestamp>,
    ) -> Self {
        Self { v: VERSION, ledger_id, generation, last_run_at, read_at }
    }
}

/// A finding of a guard that the operator was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// What it is about.
    pub kind: MatterKind,
    /// What of that kind.
    pub subject: String,
    /// When the matter was first seen; part of the notice's key.
    pub at: Timestamp,
    /// Whether the notice arrived, as far as is known; absent where it did.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub arrived: bool,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over like that")]
fn is_true(it: &bool) -> bool {
    *it
}

/// Reads the mark of a ledger. None where there is none, or no state can be kept.
pub(super) fn read(state: &StateFolder, ledger_id: Option<&str>) -> Result<Option<Mark>, StoreError> {
    let Some(path) = mark_file(state, ledger_id) else { return Ok(None) };
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if nothing_there(&error) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            return Err(StoreError::damaged_mark(&path, "it is a folder"));
        }
        Err(source) => {
            let error = FileError { doing: "read mark", path, source };
            return Err(StoreError::file(&error, NOTHING_DONE));
        }
    };
    // A mark that was read as none would silently switch off the guard it serves.
    let mark: Mark = serde_json::from_slice(&bytes)
        .map_err(|error| StoreError::damaged_mark(&path, &redact(&error.to_string())))?;
    if mark.v != VERSION {
        return Err(StoreError::damaged_mark(
            &path,
            "field `v`: it was written by another version of stepmail",
        ));
    }
    if Some(mark.ledger_id.as_str()) != ledger_id {
        return Err(StoreError::damaged_mark(&path, "field `ledger_id`: it speaks of another ledger"));
    }
    Ok(Some(mark))
}

/// Writes the mark. Says whether one can be kept at all.
pub(super) fn write(state: &StateFolder, mark: &Mark) -> Result<bool, FileError> {
    let Some(path) = mark_file(state, Some(&mark.ledger_id)) else { return Ok(false) };
    write_json(&path, mark)?;
    Ok(true)
}

/// Reads what was told. A file that cannot be read counts as nothing told: the worst is a notice too many, and its key
/// is the same.
pub(super) fn read_told(state: &StateFolder, name: &str) -> Vec<Told> {
    told_file(state, name)
        .and_then(|path| fs::read(path).ok())
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Writes what was told; nothing where no state can be kept.
pub(super) fn write_told(state: &StateFolder, name: &str, told: &[Told]) -> Result<(), FileError> {
    let Some(path) = told_file(state, name) else { return Ok(()) };
    if told.is_empty() && !path.exists() {
        return Ok(());
    }
    write_json(&path, told)
}

/// Removes what dead processes left half-written of these files. To be called under the ledger's lock.
pub(super) fn sweep(state: &StateFolder, ledger_id: Option<&str>, name: &str) {
    mark_file(state, ledger_id).into_iter().chain(told_file(state, name)).for_each(|path| disk::sweep(&path));
}

/// Puts a small JSON file in place.
pub(super) fn write_json<T: Serialize + ?Sized>(path: &Path, value: &T) -> Result<(), FileError> {
    disk::make_folder(disk::folder_of(path))?;
    let mut bytes = serde_json::to_vec(value).map_err(io::Error::from).naming("write", path)?;
    bytes.push(b'\n');
    disk::replace(path, &bytes, disk::PRIVATE, || Ok(()))
}

fn mark_file(state: &StateFolder, ledger_id: Option<&str>) -> Option<PathBuf> {
    state.file(&format!("{MARKS}/{}.json", file_name(ledger_id?)))
}

fn told_file(state: &StateFolder, name: &str) -> Option<PathBuf> {
    state.file(&format!("{MARKS}/{}.told.json", file_name(name)))
}

pub(super) fn nothing_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// An id is a file's name as it stands if it is a plain word; a hand-made one (`…`, `../x`) is named by its hash.
pub(super) fn file_name(id: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if id.len() <= 64 && id.bytes().all(plain) {
        return id.to_owned();
    }
    Sha256::digest(id.as_bytes()).iter().take(16).fold("hash-".to_owned(), |mut name, byte| {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_made_id_never_leads_out_of_the_state_folder() {
        assert_eq!(file_name("0123abc_-X"), "0123abc_-X");
        for odd in ["../../etc/x", "…", "a.b", &"a".repeat(65), "a/b", "a\0b"] {
            let name = file_name(odd);
            assert!(name.starts_with("hash-") && name.len() == 37 && !name.contains('/'), "{odd}: {name}");
        }
        assert_ne!(file_name("../a"), file_name("../b"));
    }
}
