//! Writing the ledger: a new version takes the place of the old one, whole or not at all (DURABILITY 2).
//!
//! It leaves out what is written and when. What must hold: a version that somebody put there meanwhile is never
//! overwritten unread, and the version before stays as `.bak`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::forgotten;
use super::place::Place;
use super::read::{self, Base, Identity};
use crate::disk::{self, FileError, Naming, PRIVATE};
use crate::domain::ledger::Ledger;

/// What became of a replacement.
pub(super) enum Replaced {
    /// The new version is there, and durable.
    Done(Base),
    /// The old one was no longer what this command had read; nothing was changed.
    Edited,
}

/// The ledger as it stands on disk.
pub(super) fn bytes(ledger: &Ledger) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(ledger)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// What becomes of the version before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// It stays as `.bak`.
    Kept,
    /// R17: it holds somebody who was forgotten. `.bak` becomes a copy of the new version, and it does so first: as long
    /// as somebody is still in `.bak`, the ledger holds them too, and the next load sees that it is not done.
    Erased,
}

impl Before {
    pub(super) fn erased_if(owed: bool) -> Self {
        if owed { Self::Erased } else { Self::Kept }
    }
}

/// Puts a new version in place of the one described by `base`.
pub(super) fn replace(
    place: &Place,
    ledger: &Ledger,
    base: &Base,
    before: Before,
) -> Result<Replaced, FileError> {
    let bytes = bytes(ledger).naming("write ledger", &place.ledger)?;
    let mut edited = false;
    let mut is_as_read = || {
        edited = read::identity(&place.ledger) != Some(base.identity);
        if edited { Err(io::Error::other("it was changed")).naming("replace", &place.ledger) } else { Ok(()) }
    };
    let replaced = disk::replace_seen(&place.ledger, &bytes, PRIVATE, || {
        // Before the backup is touched: an unreadable edit must not take the place of the last good version there.
        is_as_read()?;
        match before {
            Before::Kept => {
                disk::keep_as(&place.ledger, &place.backup)?;
                make_private(&place.backup)?;
            }
            Before::Erased => forgotten::replace_backup(place, &bytes)?,
        }
        is_as_read()
    });
    match replaced {
        _ if edited => Ok(Replaced::Edited),
        Err(error) => Err(error),
        Ok(seen) => Ok(Replaced::Done(Base {
            identity: Identity::from(&seen),
            len: bytes.len() as u64,
            crc: crc32fast::hash(&bytes),
            generation: ledger.generation,
        })),
    }
}

/// R17: a ledger that was made by hand may have been readable by everyone; its backup is not.
fn make_private(path: &Path) -> Result<(), FileError> {
    let mode = fs::metadata(path).naming("look at", path)?.permissions().mode();
    if mode & 0o7777 & !PRIVATE == 0 {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & PRIVATE)).naming("make private", path)
}
