//! A spool: a folder in which other programs put files of events.
//!
//! They write beside, under a name that begins with a dot, and rename. A run claims each file by rename, reads it, and
//! moves it on once its events are durable in the ledger. A file is never overwritten and never removed; its events count
//! once however often it is read (R2), so that every doubt is settled by reading it again.
//!
//! # Where a crash can leave a file, and what the next run does
//!
//! | the file lies in | its events are | next run |
//! | --- | --- | --- |
//! | the folder itself | not recorded | claims it |
//! | `claimed` | recorded or not | reads it first, moves it on |
//! | `done` | recorded, durably, before the move | leaves it alone |
//! | `rejected` | recorded, but for those the reason names | leaves it alone: a person mends it and puts it back |
//! | `rejected` has the reason only | the file is in `claimed` still | the same reason is used again |
//!
//! To be used under the ledger's lock only: the names in our three folders belong to whoever holds it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::disk::{self, Created, FileError, Naming as _};
use crate::domain::event::{Incoming, Invalid};
use crate::domain::time::{Seconds, Timestamp};

use super::erase::erase as without;
use super::{Reading, Rules, SourceError, file};

/// Files that a run has taken and not yet moved on.
pub const CLAIMED: &str = "claimed";
/// Files that were taken in whole.
pub const DONE: &str = "done";
/// Files of which something could not be read; beside each lies its reason.
pub const REJECTED: &str = "rejected";
/// Says whose the spool is: two ledgers at one spool would each get some of the purchases.
pub const OWNER: &str = ".ledger";
/// What is added to the name of a rejected file to name its reason.
pub const REASON: &str = ".reason";

/// How long a file without a line break at its end may still be in the hands of its writer.
const UNFINISHED_MAX: Seconds = Seconds::minutes(5);
/// How many single troubles of one folder are told; the others are counted.
const TOLD_MAX: usize = 10;
/// How many faults of one file its reason lists; the others are counted.
const FAULTS_MAX: usize = 100;
/// The longest name, in bytes, that still has room for a number and [`REASON`] (255 is the limit everywhere).
const NAME_MAX: usize = 225;

/// What a command may do to a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Claim the files, and move them on.
    Claim,
    /// Read them where they lie: a dry run writes not one byte.
    Look,
}

/// The spools of one command. Their files make one batch.
#[derive(Debug)]
pub struct Spools {
    folders: Vec<PathBuf>,
    manner: Manner,
    rules: Rules,
    taken: Vec<Taken>,
    told: Vec<String>,
    waiting: Vec<String>,
    dropped: Reading,
}

/// A file whose events are in the batch.
#[derive(Debug)]
struct Taken {
    folder: PathBuf,
    /// Where it lies now.
    path: PathBuf,
    name: OsString,
    seen: Seen,
    /// Why it goes to [`REJECTED`], if it does.
    reason: Option<String>,
}

/// What a file was like when it was read: one that differs has more to say.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    file: (u64, u64),
    len: u64,
    modified: (i64, i64),
}

impl Seen {
    fn of(meta: &Metadata, len: u64) -> Self {
        Self { file: (meta.dev(), meta.ino()), len, modified: (meta.mtime(), meta.mtime_nsec()) }
    }
}

/// What is in a folder.
#[derive(Debug, Default)]
struct Listing {
    files: Vec<OsString>,
    others: Vec<(OsString, &'static str)>,
}

/// How many files of a spool wait in [`REJECTED`] for a person.
#[must_use]
pub fn rejected(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder.join(REJECTED)) else { return 0 };
    entries.flatten().filter(|entry| !entry.file_name().as_bytes().ends_with(REASON.as_bytes())).count()
}

/// What `forget` did in a spool.
#[derive(Debug, Default)]
pub struct Swept {
    /// How many files held something of theirs.
    pub files: usize,
    /// What could not be looked at or changed.
    pub failures: Vec<FileError>,
}

/// R17: takes one person's events out of the files that were taken in, and of those that wait, which `waiting` judges: it
/// must know nothing of a purchase that is new. A file of which nothing is left goes, with its reason. `dry` only counts.
#[must_use]
pub fn erase(folder: &Path, theirs: Theirs<'_>, waiting: Theirs<'_>, dry: bool) -> Swept {
    let mut swept = Swept::default();
    let here = (folder.to_owned(), waiting);
    let parts =
        [(CLAIMED, waiting), (DONE, theirs), (REJECTED, theirs)].map(|(name, of)| (folder.join(name), of));
    for (folder, of) in parts.into_iter().chain([here]) {
        let Ok(meta) = fs::symlink_metadata(&folder) else { continue };
        if !meta.is_dir() {
            continue;
        }
        match list(&folder).naming("look into", &folder) {
            Ok(listed) => {
                for name in listed.files {
                    match erase_in(&folder.join(name), of, dry) {
                        Ok(changed) => swept.files += usize::from(changed),
                        Err(error) => swept.failures.push(error),
                    }
                }
            }
            Err(error) => swept.failures.push(error),
        }
    }
    swept
}

/// Whether a text in an event names the person.
pub type Theirs<'a> = &'a dyn Fn(&str) -> bool;

/// Says whether there was anything of theirs.
fn erase_in(path: &Path, theirs: Theirs<'_>, dry: bool) -> Result<bool, FileError> {
    let bytes = fs::read(path).naming("read", path)?;
    let Some(left) = without(&bytes, theirs) else { return Ok(false) };
    if dry {
        return Ok(true);
    }
    if left.iter().all(u8::is_ascii_whitespace) {
        disk::remove(path)?;
        let mut reason = path.as_os_str().to_owned();
        reason.push(REASON);
        disk::remove(Path::new(&reason))?;
    } else {
        let mode = fs::metadata(path).naming("look at", path)?.permissions().mode();
        disk::replace(path, &left, mode & 0o777, || Ok(()))?;
    }
    Ok(true)
}

impl Spools {
    /// Names the spools. A folder that is named twice counts once; one of `ours` (the ledger's folder, say) is refused,
    /// since everything in it would be taken for events. Nothing is touched yet.
    #[must_use]
    pub fn new(named: Vec<PathBuf>, ours: &[PathBuf], manner: Manner, rules: Rules) -> Self {
        let mut spools = Self { manner, rules, ..Self::none() };
        let ours: Vec<PathBuf> = ours.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let mut known = Vec::new();
        for folder in named {
            // One that is not there is told when it is to be read.
            let real = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            let is_part = real.file_name().is_some_and(is_part);
            if ours.contains(&real) || is_part {
                let what = if is_part { "it is part of a spool" } else { "stepmail's own files lie in it" };
                let name = folder.display();
                spools.told.push(format!(
                    "`{name}` cannot be a spool: {what}; nothing in it was touched or taken in; name a folder that holds \
                     files of events only, and move files that are to be read again into it"
                ));
            } else if !known.contains(&real) {
                known.push(real);
                spools.folders.push(folder);
            }
        }
        spools
    }

    /// No spool at all.
    #[must_use]
    pub fn none() -> Self {
        Self {
            folders: Vec::new(),
            manner: Manner::Look,
            rules: Rules::plain(true),
            taken: Vec::new(),
            told: Vec::new(),
            waiting: Vec::new(),
            dropped: Reading::default(),
        }
    }

    /// Whether there may be something to take. A folder that cannot be read is found out by taking.
    #[must_use]
    pub fn may_have_some(&self) -> bool {
        let has_files = |folder: &Path| list(folder).is_ok_and(|listed| !listed.files.is_empty());
        self.folders.iter().any(|folder| has_files(folder) || has_files(&folder.join(CLAIMED)))
    }

    /// Claims and reads every file: first those a dead run has claimed, then the others by name. To be called once, when
    /// nothing holds the run any more.
    ///
    /// `machine` is the machine's own time; file times mean nothing in a pretended one. A spool that has given files to
    /// another ledger gives none to this one.
    pub fn take(&mut self, ledger_id: Option<&str>, machine: Timestamp) -> Vec<Incoming> {
        let mut incoming = Vec::new();
        for folder in std::mem::take(&mut self.folders) {
            let mut told = Told::default();
            if let Err(trouble) = self.take_folder(&folder, ledger_id, machine, &mut incoming, &mut told) {
                told.say(|| trouble);
            }
            self.told.extend(told.texts(&folder));
        }
        incoming
    }

    /// Moves on what was taken, now that its events are durable, less what names somebody who was forgotten (R17).
    pub fn admitted(&mut self, forgotten: Theirs<'_>) {
        let taken = std::mem::take(&mut self.taken);
        let mut files = taken.into_iter().peekable();
        while let Some(folder) = files.peek().map(|taken| taken.folder.clone()) {
            let mut told = Told::default();
            while let Some(taken) = files.next_if(|taken| taken.folder == folder) {
                if let Err(error) = self.move_on(&taken, forgotten, &mut told) {
                    told.say(|| stays(&error));
                }
            }
            if self.manner == Manner::Claim {
                sync([DONE, REJECTED, CLAIMED].map(|part| folder.join(part)), &mut told);
            }
            self.told.extend(told.texts(&folder));
        }
    }

    /// What a person must see of this, since the last time this was asked.
    pub fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }

    /// The files that were left, since they do not end in a line break and their writer may not be done.
    #[must_use]
    pub fn waiting(&self) -> Vec<String> {
        self.waiting.clone()
    }

    /// How many events were dropped, and why; see [`Reading`].
    #[must_use]
    pub fn dropped(&self) -> &Reading {
        &self.dropped
    }

    /// # Errors
    /// Why nothing new of this folder can be taken in, for people.
    fn take_folder(
        &mut self,
        folder: &Path,
        ledger_id: Option<&str>,
        machine: Timestamp,
        incoming: &mut Vec<Incoming>,
        told: &mut Told,
    ) -> Result<(), String> {
        let listed = list(folder).map_err(|error| {
            format!(
                "cannot read the spool `{}`: {error}; nothing in it was taken in; make the folder or mend its rights, and \
                 run again",
                folder.display()
            )
        })?;
        owned_by(folder, ledger_id)?;
        let claimed = folder.join(CLAIMED);
        let before = match part(folder, CLAIMED).and_then(|path| list(&path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Listing::default(),
            listed => listed.map_err(|error| no_part(folder, CLAIMED, &error))?,
        };
        for (name, kind) in listed.others.iter().chain(&before.others) {
            told.say(|| {
                let name = shown(folder, name);
                format!("`{name}` is {kind} and no file of events; it was left where it is; take it out of the spool")
            });
        }
        for name in before.files {
            let path = claimed.join(&name);
            match read(&path, machine) {
                Ok(Some((bytes, seen))) => self.read_in(folder, path, name, &bytes, seen, incoming),
                Ok(None) => self.waits(folder, &path, &name),
                Err(source) => told.say(|| cannot_read(folder, &name, source)),
            }
        }
        let mut moved = false;
        for name in listed.files {
            let path = folder.join(&name);
            let (bytes, seen) = match read(&path, machine) {
                Ok(Some(read)) => read,
                Ok(None) => {
                    self.waits(folder, &path, &name);
                    continue;
                }
                Err(source) => {
                    told.say(|| cannot_read(folder, &name, source));
                    continue;
                }
            };
            let path = if self.manner == Manner::Look {
                path
            } else {
                if !moved {
                    own(folder, ledger_id).map_err(|error| no_part(folder, OWNER, &error.source))?;
                    make_part(folder, CLAIMED).map_err(|error| no_part(folder, CLAIMED, &error))?;
                    moved = true;
                }
                match move_into(&path, &claimed, &name) {
                    Ok(path) => path,
                    Err(error) if error.source.kind() == io::ErrorKind::NotFound && folder.is_dir() => {
                        continue;
                    }
                    Err(error) => {
                        told.say(|| {
                            format!(
                                "cannot take `{}` from the spool: {}; nothing of it was taken in; let the user who runs \
                                 stepmail move files in `{}`",
                                shown(folder, &name),
                                error.source,
                                folder.display()
                            )
                        });
                        continue;
                    }
                }
            };
            self.read_in(folder, path, name, &bytes, seen, incoming);
        }
        if moved {
            sync([claimed, folder.to_owned()], told);
        }
        Ok(())
    }

    /// Notes a file that was not read; one that is gone does not wait.
    fn waits(&mut self, folder: &Path, path: &Path, name: &OsStr) {
        if path.exists() {
            self.waiting.push(shown(folder, name));
        }
    }

    /// Adds what a file says to the batch.
    fn read_in(
        &mut self,
        folder: &Path,
        path: PathBuf,
        name: OsString,
        bytes: &[u8],
        seen: Seen,
        incoming: &mut Vec<Incoming>,
    ) {
        let shown = shown(folder, &name);
        let reason = match file::parse(&shown, bytes, &self.rules) {
            Ok(reading) => {
                self.dropped.other_mode += reading.other_mode;
                self.dropped.thin += reading.thin;
                let reason = reason_for_part(&shown, &reading.incoming);
                incoming.extend(reading.incoming);
                reason
            }
            Err(error) => {
                // The file is moved away: only the ledger can see to it that a person is told.
                incoming.push(Incoming::Invalid(Invalid {
                    subject: file::subject_of(bytes),
                    place: shown,
                    why: format!("not one event could be read: {}", error.fault()),
                }));
                Some(reason_for_all(&error))
            }
        };
        self.taken.push(Taken { folder: folder.to_owned(), path, name, seen, reason });
    }

    /// # Errors
    /// The file stays where it is.
    fn move_on(&self, taken: &Taken, forgotten: Theirs<'_>, told: &mut Told) -> Result<(), FileError> {
        let Taken { folder, path, name, seen, reason } = taken;
        let shown = || shown(folder, name);
        if self.manner == Manner::Look {
            if reason.is_some() {
                told.say(|| {
                    format!("not everything in `{}` can be read; a run moves it to `{REJECTED}`", shown())
                });
            }
            return Ok(());
        }
        match fs::symlink_metadata(path) {
            // Somebody took it away; what it said is recorded.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            meta => {
                let meta = meta.naming("look at", path)?;
                if Seen::of(&meta, meta.len()) != *seen {
                    tracing::info!("a file of the spool was changed while it was read; it is read again");
                    return Ok(());
                }
            }
        }
        if erase_in(path, forgotten, false)? && !path.exists() {
            return Ok(());
        }
        let Some(reason) = reason else {
            let done = make_part(folder, DONE).naming("use the folder", &folder.join(DONE))?;
            return move_into(path, &done, name).map(drop);
        };
        let rejected = make_part(folder, REJECTED).naming("use the folder", &folder.join(REJECTED))?;
        let path = reject(path, &rejected, name, reason)?;
        told.say(|| {
            let now = path.file_name().map(|name| self::shown(&rejected, name)).unwrap_or_default();
            format!(
                "not everything in `{}` could be read; it lies in `{now}` now, with the reason beside it; mend it and \
                 put it back into the spool",
                shown()
            )
        });
        Ok(())
    }
}

/// Texts for people, not too many of them.
#[derive(Default)]
struct Told {
    texts: Vec<String>,
    more: usize,
}

impl Told {
    fn say(&mut self, text: impl FnOnce() -> String) {
        if self.texts.len() < TOLD_MAX {
            self.texts.push(text());
        } else {
            self.more += 1;
        }
    }

    fn texts(mut self, folder: &Path) -> Vec<String> {
        if self.more > 0 {
            let (more, name) = (self.more, folder.display());
            self.texts
                .push(format!("the same, or something like it, goes for {more} more in the spool `{name}`"));
        }
        self.texts
    }
}

/// # Errors
/// The spool is another ledger's; for people.
fn owned_by(folder: &Path, ledger_id: Option<&str>) -> Result<(), String> {
    let word = folder.join(OWNER);
    match fs::read_to_string(&word) {
        Ok(whose) if ledger_id == Some(whose.trim()) => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(no_part(folder, OWNER, &error)),
    }
    Err(format!(
        "the spool `{}` belongs to another ledger, as `{OWNER}` in it says; nothing in it was taken in; name a spool of \
         this ledger's own, or remove that file if the other ledger is gone",
        folder.display()
    ))
}

/// Makes the spool this ledger's, if it is nobody's.
fn own(folder: &Path, ledger_id: Option<&str>) -> Result<(), FileError> {
    let Some(id) = ledger_id else { return Ok(()) };
    let word = folder.join(OWNER);
    if word.exists() || !folder.is_dir() {
        return Ok(());
    }
    disk::create(&word, format!("{id}\n").as_bytes(), disk::PRIVATE).map(drop)
}

fn is_part(name: &OsStr) -> bool {
    [CLAIMED, DONE, REJECTED].iter().any(|part| name == *part)
}

/// Everything in a folder, by name, but what begins with a dot (other programs' unfinished work) and our own folders.
fn list(folder: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_bytes().starts_with(b".") {
            continue;
        }
        let kind = match entry.file_type() {
            // Gone again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            kind => kind?,
        };
        if kind.is_file() {
            listing.files.push(name);
        } else if !is_part(&name) {
            let kind = match kind {
                kind if kind.is_dir() => "a folder",
                kind if kind.is_symlink() => "a link",
                _ => "a device or a pipe",
            };
            listing.others.push((name, kind));
        }
    }
    listing.files.sort();
    listing.others.sort();
    Ok(listing)
}

/// One of our folders, which must not lead elsewhere.
fn part(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let path = folder.join(name);
    if fs::symlink_metadata(&path)?.is_dir() { Ok(path) } else { Err(io::Error::other("it is no folder")) }
}

fn make_part(folder: &Path, name: &str) -> io::Result<PathBuf> {
    match part(folder, name) {
        // Never the spool itself: one that vanished is not made anew.
        Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => {
            disk::make_folder(&folder.join(name)).map_err(|error| error.source)?;
            part(folder, name)
        }
        part => part,
    }
}

/// Reads a file whole. None where there is nothing to read: it is gone, or its writer may not be done with it.
fn read(path: &Path, machine: Timestamp) -> io::Result<Option<(Vec<u8>, Seen)>> {
    let mut file = match disk::open_as_it_is(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if bytes.last() != Some(&b'\n') && may_be_unfinished(meta.mtime(), meta.ctime(), machine.unix()) {
        return Ok(None);
    }
    // Times from before the reading, the length from after: whatever came in between makes a difference.
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    Ok(Some((bytes, Seen::of(&meta, len))))
}

/// Whether a file was last written to so short a time ago that more may follow. All in seconds of the machine's clock.
///
/// A file that was copied keeps the time of another clock. If that lies far ahead, it says nothing; the time of the last
/// change of any kind, which nobody can set, counts then. If that lies far ahead as well, the clock was put back, and to
/// wait for it to catch up could take years.
fn may_be_unfinished(modified: i64, changed: i64, now: i64) -> bool {
    let age = |then: i64| now.saturating_sub(then);
    let is_far_ahead = |then: i64| age(then) < -UNFINISHED_MAX.0;
    match (is_far_ahead(modified), is_far_ahead(changed)) {
        (false, _) => age(modified) < UNFINISHED_MAX.0,
        (true, false) => age(changed) < UNFINISHED_MAX.0,
        (true, true) => false,
    }
}

/// Moves a file into a folder under its own name, or with a number behind it.
fn move_into(path: &Path, folder: &Path, name: &OsStr) -> Result<PathBuf, FileError> {
    let to = folder.join(name);
    if disk::move_new(path, &to)? == Created::New {
        return Ok(to);
    }
    let is_taken = |n: u64| fs::symlink_metadata(folder.join(numbered(name, n))).is_ok();
    for n in free_number(is_taken).. {
        let to = folder.join(numbered(name, n));
        if disk::move_new(path, &to)? == Created::New {
            return Ok(to);
        }
    }
    Err(io::Error::other("no name is free")).naming("move", path)
}

/// Moves a file into a folder, its reason beside it. The reason comes first, so that no file lies there without one.
fn reject(path: &Path, folder: &Path, name: &OsStr, reason: &str) -> Result<PathBuf, FileError> {
    let places = |n: u64| {
        let name = if n == 0 { cut(name) } else { numbered(name, n) };
        let mut of_reason = name.clone();
        of_reason.push(REASON);
        (folder.join(name), folder.join(of_reason))
    };
    let is_taken = |n: u64| {
        let (to, beside) = places(n);
        let other_reason = || match fs::read(&beside) {
            // A run that died between the two left it.
            Ok(found) => found != reason.as_bytes(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        fs::symlink_metadata(&to).is_ok() || other_reason()
    };
    let first = if is_taken(0) { free_number(is_taken) } else { 0 };
    for n in first.. {
        let (to, beside) = places(n);
        if is_taken(n) {
            continue;
        }
        disk::leave_word(&beside, reason)?;
        if disk::move_new(path, &to)? == Created::New {
            return Ok(to);
        }
    }
    Err(io::Error::other("no name is free")).naming("move", path)
}

/// A number from 1 on that is free, found in few steps where the first thousands are taken.
fn free_number(is_taken: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, 1);
    while is_taken(high) && high < 1 << 60 {
        (low, high) = (high, high * 2);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_taken(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

fn numbered(name: &OsStr, n: u64) -> OsString {
    let mut name = cut(name);
    name.push(format!(".{n}"));
    name
}

/// A name with room behind it; never half a letter where it is text.
fn cut(name: &OsStr) -> OsString {
    if name.len() <= NAME_MAX {
        return name.to_owned();
    }
    if let Some(text) = name.to_str() {
        let end = (0..=NAME_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        return OsString::from(&text[..end]);
    }
    OsString::from_vec(name.as_bytes().iter().take(NAME_MAX).copied().collect())
}

/// The name of a file for people and logs: on one line, and without an address that somebody put into it (R17).
fn shown(folder: &Path, name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let name: String = if name.contains(['@', '＠']) {
        "(a name with an address in it)".to_owned()
    } else {
        name.chars().flat_map(char::escape_debug).collect()
    };
    format!("{}/{name}", folder.display())
}

fn cannot_read(folder: &Path, name: &OsStr, source: io::Error) -> String {
    SourceError::Io { name: shown(folder, name), source }.to_string()
}

fn no_part(folder: &Path, part: &str, error: &io::Error) -> String {
    format!(
        "cannot use the folder `{part}` in the spool `{}`: {error}; nothing new in it was taken in; let the user who runs \
         stepmail make folders and move files there",
        folder.display()
    )
}

/// For a file that could not be moved on.
fn stays(error: &FileError) -> String {
    // The error's own text names the file, which may carry an address.
    let what = if error.path.file_name().is_some_and(is_part) {
        format!("`{}`", error.path.display())
    } else {
        format!("a file in `{}`", disk::folder_of(&error.path).display())
    };
    format!(
        "cannot {} {what}: {}; its events were taken in and count once, but every run reads it again; let the user who \
         runs stepmail make folders and move files there",
        error.doing, error.source
    )
}

/// Makes the names in folders durable, so many as are there. That it fails loses nothing: a file that is back where it
/// was is read again.
fn sync<const N: usize>(folders: [PathBuf; N], told: &mut Told) {
    for folder in folders {
        match disk::sync_folder(&folder) {
            Err(error) if error.source.kind() != io::ErrorKind::NotFound => {
                told.say(|| format!("{error}; no event is lost by that; look after this disk"));
            }
            _ => {}
        }
    }
}

/// The reason for a file of which nothing was taken in. Like the other one it is the same whenever the same is found, so
/// that a run that died is understood by the next.
fn reason_for_all(error: &SourceError) -> String {
    let fault = error.fault();
    format!(
        "Nothing of this file could be read: {fault}.\n\nMend it, move it back into the spool, and remove this note.\n"
    )
}

/// The reason for a file of which the rest was taken in; none where all of it was.
fn reason_for_part(shown: &str, incoming: &[Incoming]) -> Option<String> {
    let fault = |incoming: &Incoming| match incoming {
        Incoming::Invalid(Invalid { place, why, .. }) => {
            Some(format!("{}: {why}\n", place.strip_prefix(shown).unwrap_or(place).trim_start()))
        }
        _ => None,
    };
    let mut faults = incoming.iter().filter_map(fault);
    let mut text: String = faults.by_ref().take(FAULTS_MAX).collect();
    if text.is_empty() {
        return None;
    }
    match faults.count() {
        0 => {}
        more => text.push_str(&["and ", &more.to_string(), " more\n"].concat()),
    }
    Some(format!(
        "These places could not be read; the rest of the file was taken in.\n\n{text}\nMend them, move the file back into \
         the spool, and remove this note. What was taken in counts once.\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_last_line_break_waits_five_minutes_and_never_for_ever() {
        const NOW: i64 = 1_000_000;
        const YEARS: i64 = 100_000_000;
        for (modified, changed, waits, why) in [
            (NOW, NOW, true, "just written"),
            (NOW - 299, NOW - 299, true, "a moment too young"),
            (NOW - 300, NOW - 300, false, "five minutes old"),
            (NOW - YEARS, NOW, false, "moved here, written long ago"),
            (NOW + 300, NOW, true, "a clock that differs a little"),
            (NOW + YEARS, NOW - 299, true, "the time of a wrong clock, changed just now"),
            (NOW + YEARS, NOW - 300, false, "the time of a wrong clock, changed five minutes ago"),
            (NOW + YEARS, NOW + YEARS, false, "this machine's clock was put back"),
            (NOW + 301, NOW + 301, false, "the same, by little"),
        ] {
            assert_eq!(may_be_unfinished(modified, changed, NOW), waits, "{why}");
        }
    }

    #[test]
    fn a_free_number_is_found_among_many_and_with_gaps() {
        for taken in [0, 1, 2, 3, 7, 8, 9, 5_000] {
            let asked = std::cell::Cell::new(0);
            let found = free_number(|n| {
                asked.set(asked.get() + 1);
                n <= taken
            });
            assert_eq!(found, taken + 1);
            assert!(asked.get() < 40, "{} questions", asked.get());
        }
        assert_eq!(free_number(|n| n % 2 == 1), 2);
    }

    #[test]
    fn names_are_said_on_one_line_and_without_addresses_and_are_cut_between_letters() {
        let say = |name: &str| shown(Path::new("spool"), OsStr::new(name));
        assert_eq!(say("a\nlook: all is well.json"), "spool/a\\nlook: all is well.json");
        assert_eq!(say("注文.json"), "spool/注文.json");
        assert!(!say("hanako@example.com.json").contains("hanako"));
        let long = "あ".repeat(85);
        assert_eq!(cut(OsStr::new(&long)), OsString::from("あ".repeat(75)));
        assert!(numbered(OsStr::new(&long), u64::MAX).len() + REASON.len() <= 255);
        assert_eq!(cut(OsStr::from_bytes(&[0xff; 255])).len(), NAME_MAX);
    }

    #[test]
    fn a_folder_that_vanishes_under_a_run_is_told_and_not_made_anew() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("spool");
        fs::create_dir(&folder).unwrap();
        disk::leave_word(&folder.join("a"), "{\"id\":\"e1\",\"type\":\"x\"}\n").unwrap();
        let now = Timestamp::parse("2026-10-01T00:00:00Z").unwrap();
        let mut spools = Spools::new(vec![folder.clone()], &[], Manner::Claim, Rules::plain(true));
        assert_eq!(spools.take(None, now), [Incoming::Ignored]);
        fs::remove_dir_all(&folder).unwrap();
        spools.admitted(&|_| false);
        assert!(!folder.exists());
        assert!(make_part(&folder, CLAIMED).is_err() && !folder.exists());
        let mut again = Spools::new(vec![folder], &[], Manner::Claim, Rules::plain(true));
        assert!(again.take(None, now).is_empty());
        assert!(again.told().concat().contains("make the folder"));
    }
}
