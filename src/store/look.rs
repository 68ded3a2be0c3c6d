//! What can be seen of the lock and of the state folder by somebody who takes and writes nothing: for `check`.
//!
//! Without trying the advisory lock nobody can know whether its holder lives, and trying it would keep a run away at that
//! instant. So this says what the record says, and lets only what is plain count as dead. It decides about nothing: a
//! command that wants the lock goes by [`super::lock`].

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Store;
use super::error::{NOTHING_DONE, StoreError};
use super::installation::{MARKS, StateFolder, id_file};
use super::lock::{Holder, Record, SILENT, State, failed, is_ours, read_record, us, who};
use crate::clock::Clock;
use crate::disk;
use crate::domain::time::Seconds;

/// What the lock file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockSeen {
    /// Nobody holds it.
    Free,
    /// A command of this installation holds it; nothing shows that it ended.
    Held(Holder),
    /// The same, and it gave no sign of life for over half an hour: it hangs, or died.
    Silent(Holder),
    /// Its holder is gone: the next command takes over.
    LeftBehind(Holder),
    /// Not of this installation: it counts as held until it has been silent for 30 minutes.
    Foreign(Holder),
}

/// What the state folder is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateSeen {
    /// It holds this installation's id, and can be written.
    Known(String),
    /// Nothing is there yet; the next command can make it.
    New,
    /// It cannot be used: R12's marks cannot be kept. Says why.
    Unusable(String),
}

impl Store {
    /// Looks at the lock without taking it, and at whether this user could. Nothing is written.
    ///
    /// # Errors
    /// [`super::StoreErrorKind::CannotWrite`] where the lock is no file, or not this user's to open;
    /// [`super::StoreErrorKind::Damaged`] for an installation id that cannot be read.
    pub fn look_at_lock(&self, clock: &Clock) -> Result<LockSeen, StoreError> {
        let path = &self.place.lock;
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => return Err(StoreError::refused(path, "a lock is a regular file", "move it away")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LockSeen::Free),
            Err(source) => return Err(failed("look at lock", path, source)),
        }
        disk::may_write(path).map_err(|error| StoreError::file(&error, NOTHING_DONE))?;
        let file = File::open(path).map_err(|source| failed("open lock", path, source))?;
        let metadata = file.metadata().map_err(|source| failed("look at lock", path, source))?;
        let record = read_record(&file);
        if record.as_ref().is_some_and(|record| record.state == State::Free) {
            return Ok(LockSeen::Free);
        }
        // A time that lies ahead says nothing; a command counts from when it saw that first.
        let silent = Seconds(clock.machine().unix().saturating_sub(metadata.mtime()).max(0));
        let holder = |alive| Holder { lock: path.clone(), who: record.as_ref().map(who), silent, alive };
        let us = us(&StateFolder::look(&self.state_dir)?, clock);
        Ok(match &record {
            Some(record) if is_ours(record, &us) && has_ended(record, &us) => {
                LockSeen::LeftBehind(holder(false))
            }
            Some(record) if is_ours(record, &us) && silent > SILENT => LockSeen::Silent(holder(true)),
            Some(record) if is_ours(record, &us) => LockSeen::Held(holder(true)),
            _ if silent >= SILENT => LockSeen::LeftBehind(holder(false)),
            _ => LockSeen::Foreign(holder(false)),
        })
    }
}

/// Whether a holder on this machine is plainly gone: the machine was started anew since, or no process has its number.
/// Where there is no `/proc` nobody is plainly gone.
fn has_ended(record: &Record, us: &Record) -> bool {
    if record.boot.is_empty() || us.boot.is_empty() || record.host != us.host {
        return false;
    }
    let processes = Path::new("/proc");
    record.boot != us.boot
        || (processes.join("self").exists() && !processes.join(record.pid.to_string()).exists())
}

/// Looks at a state folder; nothing is written.
///
/// # Errors
/// [`super::StoreErrorKind::Damaged`] for an installation id that cannot be read.
pub fn look_at_state(path: &Path) -> Result<StateSeen, StoreError> {
    let folder = StateFolder::look(path)?;
    // A command writes into both; where the id is there and one of them cannot be written, no mark can be kept.
    let writable = disk::may_make_folder(path).and_then(|()| disk::may_make_folder(&path.join(MARKS)));
    Ok(match (folder.installation(), writable) {
        (_, Err(error)) => StateSeen::Unusable(error.to_string()),
        (None, Ok(())) => StateSeen::Unusable(format!("cannot read `{}`", id_file(path).display())),
        (Some(_), Ok(())) if id_file(path).symlink_metadata().is_err() => StateSeen::New,
        (Some(id), Ok(())) => StateSeen::Known(id.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_holder_of_this_machine_is_ever_called_dead() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::new(None);
        let us = us(&StateFolder::open(folder.path()).unwrap().0, &clock);
        if us.boot.is_empty() {
            return;
        }
        let mut record = us.clone();
        assert!(!has_ended(&record, &us), "we live");
        record.pid = u32::MAX;
        assert!(has_ended(&record, &us));
        record.host.push('x');
        assert!(!has_ended(&record, &us), "a pid of another machine");
        record = us.clone();
        record.boot.push('0');
        assert!(has_ended(&record, &us), "before the restart");
        record.boot.clear();
        record.pid = u32::MAX;
        assert!(!has_ended(&record, &us), "nobody knows");
    }
}
