//! Where purchases and stops come from: event files, standard input and spools, in Stripe's form or the neutral one.
//!
//! A source yields [`Incoming`] and judges nothing: whether a checkout becomes a purchase is `domain::admit`'s to say.
//! One bad line or object never blocks the rest (C007); it becomes [`Incoming::Invalid`] with a subject that stays the
//! same from run to run, so that a human is told once. What the events hold of people never reaches an error text.

pub mod erase;
pub mod file;
mod json;
mod neutral;
pub mod spool;
pub mod stripe;

use std::io;
use std::path::Path;

use crate::domain::event::Incoming;

pub use erase::erase;
pub use file::{parse, read_file, read_pipe, read_stdin};
pub use spool::Spools;
pub use stripe::{Choice, PollError, Stripe};

/// Reads a file, or standard input where the path is `-`.
///
/// # Errors
/// As [`read_file`].
pub fn read(path: &Path, rules: &Rules) -> Result<Reading, SourceError> {
    if path == Path::new("-") { read_stdin(rules) } else { read_file(path, rules) }
}

/// What of a source's events counts, and for what: the seller's to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// R1: which mode of Stripe's events.
    pub livemode: bool,
    /// Whether a subscription that is to end stops the mails at once, and not only when it has ended.
    pub cancel_scheduled_stops: bool,
    /// Whether part of the money back stops them.
    pub partial_refund_stops: bool,
    /// Which purchases are meant.
    pub choice: Choice,
    /// The entry of a session's metadata that holds the newsletter's id of its buyer; none: `client_reference_id`.
    pub subscriber_id_metadata: Option<String>,
}

impl Rules {
    /// The plain rules for the events of one mode.
    #[must_use]
    pub fn plain(livemode: bool) -> Self {
        let choice = Choice::default();
        Self {
            livemode,
            cancel_scheduled_stops: true,
            partial_refund_stops: false,
            choice,
            subscriber_id_metadata: None,
        }
    }
}

/// What was read from one source, in the order in which it stood there.
#[derive(Debug, Default, PartialEq)]
pub struct Reading {
    /// One entry for each event, and for each piece of text that should have been one.
    pub incoming: Vec<Incoming>,
    /// How many of the ignored were dropped for their `livemode` (C074). A run that drops all of them should say so.
    pub other_mode: usize,
    /// How many of the ignored were Stripe's thin events (`v2.core.event`), which do not hold what they tell of.
    pub thin: usize,
}

/// Nothing of a source could be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Missing, no right to read it, a fault of the disk.
    #[error("cannot read events `{name}`: {source}; nothing of it was taken in; mend that and run again")]
    Io {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A folder where a file is expected.
    #[error("cannot read events `{name}`: it is a folder; nothing in it was taken in; name a file in it")]
    Folder {
        /// The folder.
        name: String,
    },
    /// UTF-16 or UTF-32, as some editors save.
    #[error(
        "cannot read events `{name}`: it is UTF-16 or UTF-32 from line 1 column 1 on; nothing of this file was taken \
         in; save it as UTF-8 and run again"
    )]
    Wide {
        /// The file.
        name: String,
    },
    /// Another encoding, and no event that could be read in spite of it.
    #[error(
        "cannot read events `{name}`: not UTF-8 at line {line} column {column}; nothing of this file was taken in; \
         save it as UTF-8 and run again"
    )]
    NotUtf8 {
        /// The file.
        name: String,
        /// Of the first byte that is wrong, from 1.
        line: usize,
        /// In bytes, from 1.
        column: usize,
    },
    /// Not JSON, and no event beside the fault.
    #[error(
        "cannot read events `{name}`: {why} at line {line} column {column}; nothing of this file was taken in; mend it \
         and run again"
    )]
    NotJson {
        /// The file.
        name: String,
        /// What the parser said; it repeats nothing of the text.
        why: String,
        /// From 1.
        line: usize,
        /// In bytes, from 1.
        column: usize,
    },
}

impl SourceError {
    /// What is wrong, without the name and without what follows from it.
    fn fault(&self) -> String {
        match self {
            Self::Io { source, .. } => source.to_string(),
            Self::Folder { .. } => "it is a folder".to_owned(),
            Self::Wide { .. } => "it is UTF-16 or UTF-32".to_owned(),
            Self::NotUtf8 { line, column, .. } => format!("not UTF-8 at line {line} column {column}"),
            Self::NotJson { why, line, column, .. } => format!("{why} at line {line} column {column}"),
        }
    }
}
