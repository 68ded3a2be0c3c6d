//! The state folder: who we are (a random id, not a host name), and the small files kept per ledger.
//!
//! What must hold: an id, once given, never changes by itself; a folder that cannot be used is said, and the ledger
//! alone is trusted then (R12).

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{NOTHING_DONE, StoreError, StoreErrorKind};
use crate::disk::{self, FileError, Naming};

/// The folder of the marks in it.
pub(super) const MARKS: &str = "marks";

/// The state folder as far as this command can use it.
#[derive(Clone, Debug)]
pub(super) struct StateFolder {
    path: PathBuf,
    installation: Option<String>,
}

impl StateFolder {
    /// Makes the folder and the id if need be. What could not be done comes back as a note.
    pub(super) fn open(path: &Path) -> Result<(Self, Option<String>), StoreError> {
        match make(path) {
            Ok(id) => Ok((Self { path: path.to_owned(), installation: Some(checked(path, &id)?) }, None)),
            Err(error) => {
                let note = format!(
                    "{error}; without a state folder stepmail cannot tell a restored ledger or another machine's \
                     from the newest, and trusts the ledger alone"
                );
                Ok((Self { path: path.to_owned(), installation: None }, Some(note)))
            }
        }
    }

    /// Looks, and writes nothing. Where a run would make a new id, one is made up, so that a dry run finds itself to
    /// be another installation just as the run would.
    pub(super) fn look(path: &Path) -> Result<Self, StoreError> {
        let installation = match fs::read_to_string(id_file(path)) {
            Ok(_) | Err(_) if path.join(MARKS).symlink_metadata().is_ok_and(|marks| !marks.is_dir()) => None,
            Ok(id) => Some(checked(path, &id)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound && could_be_made(path) => {
                Some(random_id()?)
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Some(checked(path, "")?),
            Err(_) => None,
        };
        Ok(Self { path: path.to_owned(), installation })
    }

    /// The random id; none where no state can be kept.
    pub(super) fn installation(&self) -> Option<&str> {
        self.installation.as_deref()
    }

    /// Removes what dead processes left half-written of the id. To be called under a lock, when the id is known.
    pub(super) fn sweep(&self) {
        if self.installation.is_some() {
            disk::sweep(&id_file(&self.path));
        }
    }

    /// The folder, whether or not it can be used.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A file of that name in the folder, if the folder can be used.
    pub(super) fn file(&self, name: &str) -> Option<PathBuf> {
        self.installation.as_ref().map(|_| self.path.join(name))
    }
}

/// So many random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        StoreError::new(
            StoreErrorKind::CannotWrite,
            format!("cannot get random numbers from the system: {error}"),
            NOTHING_DONE,
            String::new(),
        )
    })?;
    Ok(bytes)
}

/// 32 random hex digits.
pub(super) fn random_id() -> Result<String, StoreError> {
    Ok(random::<16>()?.iter().fold(String::new(), |mut id, byte| {
        // Writing to a String cannot fail.
        let _ = write!(id, "{byte:02x}");
        id
    }))
}

pub(super) fn id_file(folder: &Path) -> PathBuf {
    folder.join("installation")
}

fn make(folder: &Path) -> Result<String, FileError> {
    // Where the marks cannot lie, no id helps.
    disk::make_folder(&folder.join(MARKS))?;
    let path = id_file(folder);
    match read_id(&path) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
        read => return read,
    }
    let id = random_id().map_err(io::Error::other).naming("make an id for", &path)?;
    // Whoever comes second takes the id of the first, also if the first has swept the second's file away meanwhile.
    match disk::create(&path, format!("{id}\n").as_bytes(), disk::PRIVATE) {
        Ok(disk::Created::New) => Ok(id),
        Ok(disk::Created::AlreadyThere) => read_id(&path),
        Err(error) if error.source.kind() == io::ErrorKind::NotFound && path.exists() => read_id(&path),
        Err(error) => Err(error),
    }
}

fn read_id(path: &Path) -> Result<String, FileError> {
    match fs::read_to_string(path) {
        // Not even text: as damaged as an empty one, and to be refused like it.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(String::new()),
        read => read.naming("read", path),
    }
}

/// Refuses an id that we did not write: taking a new one in silence would make this machine another installation.
fn checked(folder: &Path, id: &str) -> Result<String, StoreError> {
    let id = id.trim();
    if id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Ok(id.to_owned());
    }
    Err(StoreError::new(
        StoreErrorKind::Damaged,
        format!("cannot read installation id `{}`: it is not 32 hex digits", id_file(folder).display()),
        NOTHING_DONE,
        "put the file back, or, if this ledger runs nowhere else, remove it and run `stepmail adopt --newest`"
            .to_owned(),
    ))
}

/// Whether a run could probably make the folder, or the file in it.
fn could_be_made(folder: &Path) -> bool {
    folder.ancestors().find_map(|part| fs::metadata(part).ok()).is_none_or(|metadata| metadata.is_dir())
}
