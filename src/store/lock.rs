//! The lock: one command at a time works on a ledger (DESIGN 5, DURABILITY 1).
//!
//! The kernel's advisory lock on `ledger.json.lock` says whether somebody lives; the record in the file says who, to
//! people and to the next command. The file is never unlinked: a file that is removed and made again has two owners.
//! A pid is for people only, since it may be reused or hidden (C068); an mtime decides only about holders that no
//! advisory lock can vouch for.
//!
//! What must hold: a living holder on this machine is never robbed; nobody carries on without the lock (C069); no lock
//! stands for ever (C009, C067); and a holder that was robbed all the same, or slept, finds out before it saves or sends.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{NOTHING_DONE, STOPPED_HERE, StoreError, StoreErrorKind};
use super::installation::StateFolder;
use super::journal::write_once;
use super::place::Place;
use super::read::COUNTER_MAX;
use crate::clock::Clock;
use crate::disk::{self, FileError, Naming};
use crate::domain::time::{Seconds, Timestamp};

/// A record has always this length, so that one positioned write replaces it whole.
const RECORD_LEN: usize = 1024;
const VERSION: u32 = 1;
/// After this a holder is thought to hang, and one that no advisory lock vouches for to be gone.
pub(super) const SILENT: Seconds = Seconds::minutes(30);
/// A command that did not look at its lock for longer has slept.
const SLEPT: Seconds = Seconds::minutes(5);
/// How often a busy lock is tried again.
const SLICE: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Held,
    Free,
}

/// What stands in the lock file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    v: u32,
    token: u64,
    pub(super) installation: String,
    pub(super) host: String,
    pub(super) boot: String,
    pub(super) pid: u32,
    started: Timestamp,
    beat: Timestamp,
    pub(super) state: State,
}

/// Who holds the lock, as far as can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The lock file.
    pub lock: PathBuf,
    /// Who it says it is; none where the file says nothing that can be read.
    pub who: Option<Who>,
    /// How long there was no sign of life.
    pub silent: Seconds,
    /// Whether the advisory lock is taken: the holder lives, on this machine. Else it may be another machine, or a file
    /// of unknown make, which counts as held until it has been silent for 30 minutes.
    pub alive: bool,
}

/// What a holder says of itself. For people only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The machine's name.
    pub host: String,
    /// The process there.
    pub pid: u32,
    /// When it took the lock.
    pub started: Timestamp,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Some(who) => {
                write!(f, "process {} on {}, since {}, ", who.pid, who.host, who.started)?;
            }
            None => f.write_str("unknown, ")?,
        }
        write!(f, "last sign of life {} ago", self.silent)
    }
}

/// The lock, held. It is released when dropped.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    path: PathBuf,
    record: Record,
    clock: Clock,
    checked: Checked,
    released: bool,
}

/// When the lock was last looked at.
#[derive(Clone, Copy, Debug)]
struct Checked {
    machine: Timestamp,
    running: Duration,
}

impl Checked {
    fn now(clock: &Clock) -> Self {
        Self { machine: clock.machine(), running: clock.running() }
    }
}

/// What one try came to.
enum Try {
    Ours {
        file: File,
        token: u64,
        note: Option<String>,
    },
    Busy(Holder),
    /// The file was replaced under our hands.
    Again,
}

impl Lock {
    /// Takes the lock, waiting for it up to `wait`. `waiting` is called once, if it has to wait.
    ///
    /// What comes back beside it is to be said: that a dead holder's lock was taken over.
    pub(super) fn take(
        place: &Place,
        state: &StateFolder,
        wait: Duration,
        clock: &Clock,
        mut waiting: impl FnMut(&Holder),
    ) -> Result<(Self, Option<String>), StoreError> {
        let began = clock.running();
        let (mut said, mut again, mut doubted) = (false, 0, 0);
        loop {
            let holder = match attempt(&place.lock, state, clock)? {
                Try::Ours { file, token, note } => {
                    return Self::claim(place, state, clock, file, token).map(|lock| (lock, note));
                }
                Try::Again if again < 100 => {
                    again += 1;
                    continue;
                }
                Try::Again => {
                    let next = "find out what replaces it again and again";
                    return Err(StoreError::refused(&place.lock, "somebody keeps replacing it", next));
                }
                Try::Busy(holder) => holder,
            };
            let left = wait.saturating_sub(clock.running().saturating_sub(began));
            if left.is_zero() {
                // Between taking the lock and writing its record a command shows the record of one that died long
                // ago. Looking again tells it from one that hangs.
                if holder.alive && holder.silent > SILENT && doubted < 5 {
                    doubted += 1;
                    std::thread::sleep(Duration::from_millis(40));
                    continue;
                }
                return Err(busy(&holder));
            }
            if !said {
                waiting(&holder);
                said = true;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    /// Puts our record into a lock file whose advisory lock we hold.
    fn claim(
        place: &Place,
        state: &StateFolder,
        clock: &Clock,
        file: File,
        token: u64,
    ) -> Result<Self, StoreError> {
        let mut record = us(state, clock);
        record.token = token + 1;
        let lock = Self {
            file,
            path: place.lock.clone(),
            record,
            clock: clock.clone(),
            checked: Checked::now(clock),
            released: false,
        };
        lock.write_claim()?;
        Ok(lock)
    }

    fn write_claim(&self) -> Result<(), StoreError> {
        let written = write_once(&self.file, &bytes(&self.record), 0)
            // What a file of unknown make held behind our record must not stay there as part of it.
            .and_then(|()| self.file.set_len(RECORD_LEN as u64))
            .and_then(|()| self.file.sync_all());
        written.naming("write lock", &self.path).map_err(|error| StoreError::file(&error, NOTHING_DONE))
    }

    /// The token: it grows with every holder.
    pub(super) fn token(&self) -> u64 {
        self.record.token
    }

    /// Raises the token above one found in the ledger or its journal: a lock file that was made anew counts from zero.
    pub(super) fn raise_token(&mut self, found: u64) -> Result<(), StoreError> {
        if found < self.record.token {
            return Ok(());
        }
        self.record.token = found + 1;
        self.write_claim()
    }

    /// Makes sure that the lock is still ours, and gives a sign of life. To be called before every save and every send,
    /// and at least every five minutes.
    pub(super) fn alive(&mut self) -> Result<(), StoreError> {
        let (now, running) = (self.clock.machine(), self.clock.running());
        let slept = (now - self.checked.machine).max(Seconds(
            i64::try_from((running.saturating_sub(self.checked.running)).as_secs()).unwrap_or(i64::MAX),
        ));
        if slept > SLEPT {
            return Err(self.lost(&format!("this command stood still for {slept} (did the machine sleep?)")));
        }
        if !self.in_place() {
            return Err(self.lost("its lock file was removed or replaced"));
        }
        if !self.is_our_record() {
            return Err(self.lost("another command has taken the lock over"));
        }
        self.checked = Checked { machine: now, running };
        self.record.beat = now;
        // Not synced: a sign of life need not outlive a power cut.
        write_once(&self.file, &bytes(&self.record), 0)
            .naming("write lock", &self.path)
            .map_err(|error| StoreError::file(&error, STOPPED_HERE))
    }

    fn lost(&self, why: &str) -> StoreError {
        let what = format!("lost the lock `{}`: {why}", self.path.display());
        StoreError::new(StoreErrorKind::LostLock, what, STOPPED_HERE, String::new())
    }

    fn in_place(&self) -> bool {
        match (fs::symlink_metadata(&self.path), self.file.metadata()) {
            (Ok(there), Ok(ours)) => same_file(&there, &ours),
            _ => false,
        }
    }

    fn is_our_record(&self) -> bool {
        read_record(&self.file).is_some_and(|record| {
            record.state == State::Held
                && record.token == self.record.token
                && record.pid == self.record.pid
                && record.installation == self.record.installation
        })
    }

    /// Lets go as a killed process does: the advisory lock is gone, the record stays.
    #[cfg(test)]
    pub(super) fn forget_release(&mut self) {
        self.released = true;
    }

    /// Marks the record free and lets go.
    pub(super) fn release(&mut self) {
        self.let_go();
    }

    fn let_go(&mut self) {
        if std::mem::replace(&mut self.released, true) || !self.is_our_record() {
            return;
        }
        self.record.state = State::Free;
        self.record.beat = self.clock.machine();
        // Best effort: a record that stays `held` without the advisory lock is taken over at once, and said.
        let _ = write_once(&self.file, &bytes(&self.record), 0).and_then(|()| self.file.sync_all());
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Tries once. Nothing is written but a new lock file where there is none, and the note of when an odd one was seen.
fn attempt(path: &Path, state: &StateFolder, clock: &Clock) -> Result<Try, StoreError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => {
            // A link could lead two ledgers to one lock, or one to two; opening a pipe would wait for ever.
            return Err(StoreError::refused(path, "a lock is a regular file", "move it away"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return make(path, clock),
        Err(source) => return Err(failed("look at lock", path, source)),
    }
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Try::Again),
        Err(source) => return Err(failed("open lock", path, source)),
    };
    let locked = loop {
        // By path: today's `File` has methods of the same names.
        match fs2::FileExt::try_lock_exclusive(&file) {
            Ok(()) => break true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
            // A file system that cannot lock (ENOTSUP, ENOLCK) protects nobody.
            Err(source) => return Err(failed("take lock", path, source)),
        }
    };
    let metadata = file.metadata().map_err(|source| failed("look at lock", path, source))?;
    match fs::symlink_metadata(path) {
        Ok(there) if same_file(&there, &metadata) => {}
        // We locked a file that is no longer the lock.
        _ => return Ok(Try::Again),
    }
    let record = read_record(&file);
    let silent = silence(&metadata, path, state, clock);
    let who = record.as_ref().filter(|record| record.state == State::Held).map(who);
    if !locked {
        // A free record under a taken lock belongs to a command that has just begun, or is just ending.
        let free = record.is_some_and(|record| record.state == State::Free);
        let silent = if free { Seconds(0) } else { silent.unwrap_or(Seconds(0)) };
        return Ok(Try::Busy(Holder { lock: path.to_owned(), who, silent, alive: true }));
    }
    let Some(record) = record else {
        return Ok(reclaim(file, path, None, 0, silent));
    };
    let token = record.token;
    if record.state == State::Free {
        return Ok(Try::Ours { file, token, note: None });
    }
    if is_ours(&record, &us(state, clock)) {
        let note = format!(
            "the command before this one did not end as it should (process {} on {}, since {}, last sign of life {}); \
             its lock was taken over",
            record.pid, record.host, record.started, record.beat
        );
        return Ok(Try::Ours { file, token, note: Some(note) });
    }
    Ok(reclaim(file, path, who, token, silent))
}

/// Decides about a holder that no advisory lock vouches for.
fn reclaim(file: File, path: &Path, who: Option<Who>, token: u64, silent: Option<Seconds>) -> Try {
    match silent {
        Some(silent) if silent >= SILENT => {
            let holder = match &who {
                Some(who) => format!("process {} on {}, since {}", who.pid, who.host, who.started),
                None => "of unknown make".to_owned(),
            };
            let note = format!(
                "the lock `{}` ({holder}) was silent for {silent}; it was taken over",
                path.display()
            );
            Try::Ours { file, token, note: Some(note) }
        }
        // Where nothing can be remembered a time that lies ahead says nothing; a person must look.
        None => Try::Busy(Holder { lock: path.to_owned(), who, silent: Seconds(SILENT.0 + 1), alive: false }),
        Some(silent) => Try::Busy(Holder { lock: path.to_owned(), who, silent, alive: false }),
    }
}

/// Whether a record is of this installation, so that a free advisory lock proves its holder dead.
///
/// Where no state can be kept there is no id, and an empty one proves nothing: two such machines on a shared folder
/// would rob each other. Then only the machine's boot id together with its name will do.
pub(super) fn is_ours(record: &Record, us: &Record) -> bool {
    if us.installation.is_empty() {
        return record.installation.is_empty()
            && !us.boot.is_empty()
            && record.boot == us.boot
            && record.host == us.host;
    }
    record.installation == us.installation
}

/// How long the lock file was not written, by the machine's own clock. Where its time lies ahead: since we first saw it
/// so, which the state folder remembers; none where that cannot be.
fn silence(metadata: &Metadata, path: &Path, state: &StateFolder, clock: &Clock) -> Option<Seconds> {
    #[derive(PartialEq, Serialize, Deserialize)]
    struct Seen {
        inode: u64,
        mtime: (i64, i64),
        /// First seen so.
        since: Timestamp,
    }
    let now = clock.machine();
    let age = now.unix().saturating_sub(metadata.mtime());
    if age >= 0 {
        return Some(Seconds(age));
    }
    let name = format!("seen-lock-{:08x}.json", crc32fast::hash(path.as_os_str().as_encoded_bytes()));
    let memory = state.file(&name)?;
    let fresh = Seen { inode: metadata.ino(), mtime: (metadata.mtime(), metadata.mtime_nsec()), since: now };
    let known: Option<Seen> = fs::read(&memory).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(known) = known
        && (known.inode, known.mtime) == (fresh.inode, fresh.mtime)
        && known.since <= now
    {
        return Some(now - known.since);
    }
    let bytes = serde_json::to_vec(&fresh).ok()?;
    disk::replace(&memory, &bytes, disk::PRIVATE, || Ok(())).ok()?;
    Some(Seconds(0))
}

/// Makes the lock file, whole from birth: an empty one is always of unknown make.
fn make(path: &Path, clock: &Clock) -> Result<Try, StoreError> {
    let now = clock.machine();
    let free = Record {
        v: VERSION,
        token: 0,
        installation: String::new(),
        host: String::new(),
        boot: String::new(),
        pid: 0,
        started: now,
        beat: now,
        state: State::Free,
    };
    match disk::create(path, &bytes(&free), disk::PRIVATE) {
        Ok(_) => Ok(Try::Again),
        // Whoever holds the lock by now has swept our unfinished file away.
        Err(error) if error.source.kind() == io::ErrorKind::NotFound && path.exists() => Ok(Try::Again),
        Err(error) => Err(StoreError::file(&error, NOTHING_DONE)),
    }
}

/// The record of this process.
pub(super) fn us(state: &StateFolder, clock: &Clock) -> Record {
    let now = clock.machine();
    Record {
        v: VERSION,
        token: 0,
        installation: state.installation().unwrap_or_default().to_owned(),
        host: host(),
        boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| word(&id)).unwrap_or_default(),
        pid: std::process::id(),
        started: now,
        beat: now,
        state: State::Held,
    }
}

/// The machine's name, for people.
fn host() -> String {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| word(&name))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Keeps what may stand in a record of fixed length.
fn word(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || "_.-".contains(*c)).take(64).collect()
}

pub(super) fn who(record: &Record) -> Who {
    // The record may be of any make; what is shown to people holds no control characters.
    Who { host: word(&record.host), pid: record.pid, started: record.started }
}

fn bytes(record: &Record) -> Vec<u8> {
    // A record of texts and numbers always has a JSON form; were it not so, the file would read as of unknown make.
    let mut bytes = serde_json::to_vec(record).unwrap_or_default();
    bytes.resize(RECORD_LEN - 1, b' ');
    bytes.push(b'\n');
    bytes
}

pub(super) fn read_record(file: &File) -> Option<Record> {
    let mut buffer = [0; RECORD_LEN + 1];
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    serde_json::from_slice::<Record>(&buffer[..length])
        .ok()
        .filter(|record| record.v == VERSION && record.token < COUNTER_MAX)
}

fn same_file(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

pub(super) fn failed(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::file(&FileError { doing, path: path.to_owned(), source }, NOTHING_DONE)
}

fn busy(holder: &Holder) -> StoreError {
    const DID_NOTHING: &str = "this one did nothing; nothing was sent";
    let what = format!("another command holds `{}` ({holder})", holder.lock.display());
    let hangs = holder.silent > SILENT;
    let next = match (&holder.who, holder.alive) {
        (_, true) if !hangs => "try again later".to_owned(),
        (_, false) if !hangs => {
            "it is not of this installation, and counts as held until it has been silent for 30 minutes"
                .to_owned()
        }
        (Some(who), true) => format!("it hangs: end process {} on {}, and run again", who.pid, who.host),
        (None, true) => "something else keeps this file locked: find out what, and end it".to_owned(),
        (_, false) => {
            "its time lies ahead of the clock: if no other machine works on this ledger, remove the file"
                .to_owned()
        }
    };
    let kind = if hangs { StoreErrorKind::Silent } else { StoreErrorKind::Busy };
    StoreError::new(kind, what, DID_NOTHING, next)
}
