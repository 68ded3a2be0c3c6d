//! The journal: what a command recorded since the last snapshot, one durable line per batch of facts (DURABILITY 2).
//!
//! A line is a CRC-32 as 8 hex digits, a space, JSON on one line, LF. Each CRC is seeded with that of the line before,
//! so that a line of another journal, a skipped, swapped or repeated one fails. The first line names the ledger and the
//! snapshot that the journal extends; the file is born with it by rename, so it can never be torn.
//!
//! It leaves out what the facts mean, and whether a journal fits a ledger: `mod.rs`. What must hold: what was recorded
//! is read back whole, or the journal is refused; the only thing ever cut off is an append that was never finished.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{NOTHING_DONE, StoreError, redact};
use super::read::COUNTER_MAX;
use crate::disk::{self, FileError, Naming};
use crate::domain::fact::Fact;

const FORMAT: &str = "stepmail-journal";
const VERSION: u32 = 1;
/// 8 hex digits and a space.
const CRC_LEN: usize = 9;

/// The first line: which snapshot this extends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) ledger_id: String,
    pub(super) generation: u64,
    pub(super) snapshot_len: u64,
    pub(super) snapshot_crc: u32,
}

impl Header {
    pub(super) fn new(ledger_id: String, generation: u64, snapshot_len: u64, snapshot_crc: u32) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            ledger_id,
            generation,
            snapshot_len,
            snapshot_crc,
        }
    }
}

/// Every other line: a batch of facts, recorded at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record<'a> {
    pub(super) seq: u64,
    pub(super) token: u64,
    pub(super) facts: Cow<'a, [Fact]>,
}

/// Where the good part of a journal ends, and what the next line must continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Length of the good part.
    pub(super) good: u64,
    crc: u32,
    seq: u64,
    /// The highest lock token in it.
    pub(super) token: u64,
    /// Whether an unfinished append stands behind it.
    pub(super) torn: bool,
}

/// A journal as it was read.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) header: Header,
    pub(super) records: Vec<Record<'static>>,
    pub(super) end: End,
}

impl Contents {
    pub(super) fn facts(&self) -> impl Iterator<Item = &Fact> {
        self.records.iter().flat_map(|record| record.facts.iter())
    }
}

/// Reads a journal, if there is one.
pub(super) fn read(path: &Path) -> Result<Option<Contents>, StoreError> {
    let unreadable = |source| {
        StoreError::file(&FileError { doing: "read journal", path: path.to_owned(), source }, NOTHING_DONE)
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
        Ok(metadata) if !metadata.is_file() => {
            return Err(StoreError::damaged_journal(path, "it is no regular file"));
        }
        Ok(_) => {}
    }
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(unreadable)?,
    };
    parse(&bytes).map(Some).map_err(|why| StoreError::damaged_journal(path, &why))
}

/// Reads a journal, or says why it is none.
pub(super) fn parse(bytes: &[u8]) -> Result<Contents, String> {
    let Some((first, mut rest)) = split_line(bytes) else {
        return Err("its first line is not whole, and it is born with it".to_owned());
    };
    let (json, crc) = checked(first, 0).ok_or("line 1 does not match its checksum")?;
    let header: Header = serde_json::from_slice(json).map_err(|error| in_line(1, &error))?;
    if header.format != FORMAT || header.version != VERSION {
        return Err("line 1: it is no stepmail journal of a version known here".to_owned());
    }
    let mut end = End { good: (first.len() + 1) as u64, crc, seq: 0, token: 0, torn: false };
    let mut records = Vec::new();
    while !rest.is_empty() {
        let line = records.len() + 2;
        let good = split_line(rest).and_then(|(text, after)| {
            checked(text, end.crc).map(|(json, crc)| (json, crc, text.len() + 1, after))
        });
        let Some((json, crc, length, after)) = good else {
            if !is_tear(rest) {
                return Err(format!("line {line} does not match its checksum"));
            }
            end.torn = true;
            break;
        };
        // The checksum is right, so nothing below can be the work of a disk.
        let record: Record<'static> = serde_json::from_slice(json).map_err(|error| in_line(line, &error))?;
        if record.seq != end.seq + 1 {
            return Err(format!("line {line}: record {} follows record {}", record.seq, end.seq));
        }
        if record.token < end.token || record.token > COUNTER_MAX {
            return Err(format!("line {line}: lock token {} follows {}", record.token, end.token));
        }
        end = End { good: end.good + length as u64, crc, seq: record.seq, token: record.token, torn: false };
        records.push(record);
        rest = after;
    }
    Ok(Contents { header, records, end })
}

fn in_line(line: usize, error: &serde_json::Error) -> String {
    format!("line {line}: {}", redact(&error.to_string()))
}

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let lf = bytes.iter().position(|&b| b == b'\n')?;
    Some((&bytes[..lf], &bytes[lf + 1..]))
}

/// The JSON of a line and its CRC, if they belong together and follow the line before.
fn checked(line: &[u8], before: u32) -> Option<(&[u8], u32)> {
    let (written, json) = line.split_at_checked(CRC_LEN)?;
    let crc = crc(before, json);
    (written == format!("{crc:08x} ").as_bytes()).then_some((json, crc))
}

fn crc(before: u32, json: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(json);
    hasher.finalize()
}

/// Whether what follows the last good line can be an append that was never finished: it has no LF, or it holds NUL
/// bytes where a disk that lost power had not written yet. An append is one line, so the LF of a tear can only be the
/// last byte; behind any other LF stand records that were acknowledged, and cutting those off would send mails twice.
fn is_tear(tail: &[u8]) -> bool {
    match tail.iter().position(|&b| b == b'\n') {
        None => true,
        Some(lf) => lf + 1 == tail.len() && tail.contains(&0),
    }
}

/// A journal that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    file: File,
    path: PathBuf,
    end: End,
}

/// Whether the file being written is still the one in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InPlace {
    Yes,
    /// Somebody removed it.
    Gone,
    /// Somebody put something else there.
    Other,
}

/// What a new journal may take the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Nothing,
    /// Of a journal that the snapshot contains.
    Contained,
}

impl Writer {
    /// Makes a journal that holds its first batch from birth.
    pub(super) fn create(
        path: &Path,
        header: &Header,
        token: u64,
        facts: &[Fact],
        over: Over,
    ) -> Result<Self, FileError> {
        let mut content = Vec::new();
        let crc = push_line(&mut content, 0, header).naming("write journal", path)?;
        let record = Record { seq: 1, token, facts: Cow::Borrowed(facts) };
        let crc = push_line(&mut content, crc, &record).naming("write journal", path)?;
        let end = End { good: content.len() as u64, crc, seq: 1, token, torn: false };
        let created = match over {
            Over::Nothing => disk::create(path, &content, disk::PRIVATE),
            Over::Contained => {
                disk::replace(path, &content, disk::PRIVATE, || Ok(())).map(|()| disk::Created::New)
            }
        };
        match created {
            Ok(disk::Created::New) => {}
            Ok(disk::Created::AlreadyThere) => {
                return Err(io::Error::from(io::ErrorKind::AlreadyExists)).naming("create journal", path);
            }
            // Which of the two is there cannot be known, and the contained one must stay.
            Err(error) if over == Over::Contained => return Err(error),
            Err(error) => {
                // Only the last step, the sync of the folder, leaves it there. What is not acknowledged should not be
                // replayed; if it cannot be removed either, replaying it does no harm (R9: a plan without a result).
                let _ = disk::remove(path);
                return Err(error);
            }
        }
        let file = open(path)?;
        Ok(Self { file, path: path.to_owned(), end })
    }

    /// Goes on with a journal that was read. Whoever wrote it may have been killed before a sync of the file or of the
    /// folder: what was read is made durable before anything is built on it.
    pub(super) fn resume(path: &Path, end: End) -> Result<Self, FileError> {
        let file = open(path)?;
        file.sync_all().naming("sync journal", path)?;
        disk::sync_folder_of(path)?;
        Ok(Self { file, path: path.to_owned(), end })
    }

    /// Makes one batch durable: one positioned write, one sync.
    ///
    /// After an error the writer must not be used again: a kernel that failed to sync may have dropped the data and
    /// report success the next time.
    pub(super) fn append(&mut self, token: u64, facts: &[Fact]) -> Result<(), FileError> {
        if self.end.torn {
            self.file.set_len(self.end.good).naming("cut journal", &self.path)?;
            self.end.torn = false;
        }
        let mut line = Vec::new();
        let record = Record { seq: self.end.seq + 1, token, facts: Cow::Borrowed(facts) };
        let crc = push_line(&mut line, self.end.crc, &record).naming("write journal", &self.path)?;
        if let Err(error) = write_once(&self.file, &line, self.end.good).and_then(|()| self.file.sync_data())
        {
            // Best effort: what stays behind is a tear, or a record that was never acknowledged and does no harm.
            let _ = self.file.set_len(self.end.good);
            return Err(error).naming("write journal", &self.path);
        }
        self.end = End { good: self.end.good + line.len() as u64, crc, seq: record.seq, token, torn: false };
        Ok(())
    }

    /// Looks whether the journal was removed or replaced behind our back.
    pub(super) fn in_place(&self) -> InPlace {
        match (fs::symlink_metadata(&self.path), self.file.metadata()) {
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => InPlace::Gone,
            (Ok(there), Ok(ours)) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => InPlace::Yes,
            _ => InPlace::Other,
        }
    }

    /// Reads again what was recorded, from the open file: its name may be gone.
    pub(super) fn read_back(&self) -> Result<Contents, StoreError> {
        let mut bytes = Vec::new();
        let mut at = 0;
        let mut reader = io::BufReader::new(PositionedReader { file: &self.file, at: &mut at });
        reader
            .read_to_end(&mut bytes)
            .naming("read journal", &self.path)
            .map_err(|error| StoreError::file(&error, NOTHING_DONE))?;
        parse(&bytes).map_err(|why| StoreError::damaged_journal(&self.path, &why))
    }
}

struct PositionedReader<'a> {
    file: &'a File,
    at: &'a mut u64,
}

impl Read for PositionedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buffer, *self.at)?;
        *self.at += n as u64;
        Ok(n)
    }
}

fn open(path: &Path) -> Result<File, FileError> {
    OpenOptions::new().read(true).write(true).open(path).naming("open journal", path)
}

fn push_line<T: Serialize>(out: &mut Vec<u8>, before: u32, value: &T) -> io::Result<u32> {
    let json = serde_json::to_vec(value)?;
    let crc = crc(before, &json);
    out.extend_from_slice(format!("{crc:08x} ").as_bytes());
    out.extend_from_slice(&json);
    out.push(b'\n');
    Ok(crc)
}

/// Writes all in one call. A short write means that the disk is full: no second try.
pub(super) fn write_once(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    loop {
        match file.write_at(bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(n) => {
                let text = format!("only {n} of {} bytes could be written", bytes.len());
                return Err(io::Error::new(io::ErrorKind::StorageFull, text));
            }
        }
    }
}
