//! Reading the ledger, strictly: what is not exactly a ledger of this version is refused, named, and left alone.
//!
//! It never writes. What must hold: a file that was cut, doubled, merged, mistyped or written by a newer stepmail never
//! reads as a ledger with less in it (C057 to C061, C066).

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::error::{NOTHING_DONE, StoreError, redact};
use super::place;
use crate::disk::FileError;
use crate::domain::ledger::{FORMAT, Ledger, VERSION};

/// Above this a counter was not counted by us; below it, adding one is safe for every reader of JSON.
pub(super) const COUNTER_MAX: u64 = 1 << 53;

/// The version of a file, as far as it can be told without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    dev: u64,
    ino: u64,
    len: u64,
    mtime: i64,
    mtime_nsec: i64,
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            len: metadata.len(),
            mtime: metadata.mtime(),
            mtime_nsec: metadata.mtime_nsec(),
        }
    }
}

/// What a snapshot is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) identity: Identity,
    pub(super) len: u64,
    pub(super) crc: u32,
    pub(super) generation: u64,
}

/// A ledger as it was read.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) ledger: Ledger,
    pub(super) base: Base,
}

/// Reads the ledger at a canonical path.
pub(super) fn snapshot(path: &Path) -> Result<Snapshot, StoreError> {
    let (bytes, identity) = whole(path)?;
    let ledger = parse(&bytes).map_err(|why| StoreError::damaged_ledger(path, &why))?;
    let base = Base {
        identity,
        len: bytes.len() as u64,
        crc: crc32fast::hash(&bytes),
        generation: ledger.generation,
    };
    Ok(Snapshot { ledger, base })
}

/// The version of the ledger that is there now; none where there is none.
pub(super) fn identity(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().map(|metadata| Identity::from(&metadata))
}

/// Reads a file that nobody changed while it was read.
fn whole(path: &Path) -> Result<(Vec<u8>, Identity), StoreError> {
    let mut tries = 0;
    loop {
        let fault = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => StoreError::missing(path),
            _ => StoreError::file(
                &FileError { doing: "read ledger", path: path.to_owned(), source },
                NOTHING_DONE,
            ),
        };
        place::is_plain_file(path, &fs::symlink_metadata(path).map_err(fault)?)?;
        let mut file = File::open(path).map_err(fault)?;
        let before = file.metadata().map_err(fault)?;
        let mut bytes = Vec::with_capacity(usize::try_from(before.len()).unwrap_or(0).min(1 << 30));
        file.read_to_end(&mut bytes).map_err(fault)?;
        let after = file.metadata().map_err(fault)?;
        tries += 1;
        if Identity::from(&before) == Identity::from(&after) || tries == 5 {
            return Ok((bytes, Identity::from(&after)));
        }
    }
}

/// Reads a ledger, or says why it is none.
pub(super) fn parse(bytes: &[u8]) -> Result<Ledger, String> {
    let text = without_mark(bytes);
    // An array would be taken for a ledger, field by field; and a file of blanks need not go through the parser.
    if text.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(why_not(bytes));
    }
    let ledger: Ledger = serde_json::from_slice(text).map_err(|_| why_not(bytes))?;
    if ledger.format != FORMAT || ledger.version != VERSION {
        return Err(why_not(bytes));
    }
    for (name, counter) in [("generation", ledger.generation), ("lock_token", ledger.lock_token)] {
        if counter > COUNTER_MAX {
            return Err(format!("field `{name}`: {counter} is too large to have been counted"));
        }
    }
    if ledger.ledger_id.as_ref().is_some_and(String::is_empty) {
        return Err("field `ledger_id`: it is empty; leave it out and the next run gives one".to_owned());
    }
    Ok(ledger)
}

/// Editors on Windows put a byte-order mark before the text (C058).
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// The two fields that say what a file is, whatever else is in it.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    format: Value,
    #[serde(default)]
    version: Value,
}

/// Says what is wrong with a file that was refused. It takes its time; a good ledger never comes here.
fn why_not(bytes: &[u8]) -> String {
    let text = without_mark(bytes);
    if text.iter().all(u8::is_ascii_whitespace) {
        return "it is empty".to_owned();
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return "it is UTF-16 text; save it as UTF-8".to_owned();
    }
    if let Some(at) = text.iter().position(|&b| b == 0) {
        return format!("it holds NUL bytes from byte {at} on, as a disk that lost power leaves them");
    }
    if let Some(line) = conflict_line(text) {
        return format!("line {line}: a merge conflict was left in it");
    }
    if let Some(why) = other_make(text) {
        return why;
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    match serde_path_to_error::deserialize::<_, Ledger>(&mut reader) {
        Ok(_) => match reader.end() {
            Ok(()) => "it is no ledger".to_owned(),
            Err(error) => {
                format!("line {}: something stands behind the end of the ledger", error.line())
            }
        },
        Err(error) => {
            let field = error.path().to_string();
            let why = redact(&error.inner().to_string());
            // Where the syntax is broken there is no field to name.
            if field == "." || field == "?" { why } else { format!("field `{}`: {why}", redact(&field)) }
        }
    }
}

fn conflict_line(text: &[u8]) -> Option<usize> {
    let marks: [&[u8]; 3] = [b"<<<<<<< ", b">>>>>>> ", b"||||||| "];
    text.split(|&b| b == b'\n')
        .position(|line| marks.iter().any(|mark| line.starts_with(mark)))
        .map(|line| line + 1)
}

/// Whether it is whole JSON, but not ours or not of this version. Trailing bytes are no matter here.
fn other_make(text: &[u8]) -> Option<String> {
    if text.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Some("it is no stepmail ledger: a ledger is one JSON object".to_owned());
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let header = Header::deserialize(&mut reader).ok()?;
    if header.format != FORMAT {
        return Some(format!("it is no stepmail ledger: field `format` is not \"{FORMAT}\""));
    }
    match header.version.as_u64() {
        Some(version) if version == u64::from(VERSION) => None,
        Some(version) if version > u64::from(VERSION) => Some(format!(
            "field `version`: it was written by a newer stepmail (version {version}, this one knows {VERSION})"
        )),
        _ => Some(format!("field `version`: it is not {VERSION}, the version this stepmail knows")),
    }
}
