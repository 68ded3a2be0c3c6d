//! What can go wrong with the ledger on disk, sorted by what a caller does about it.
//!
//! A text names the file (with line and field where there are any), what that means for the mails, and the next step.
//! Nothing that was read from a ledger stands in it but names of fields, sessions and ids: see [`redact`].

use std::io;
use std::path::Path;

use crate::disk::FileError;
use crate::domain::ids::IdempotencyKey;

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
#[error("{what}; {meaning}{}{next}", if next.is_empty() { "" } else { "; " })]
pub struct StoreError {
    kind: StoreErrorKind,
    /// What failed, on which file.
    what: String,
    /// What that means for the mails.
    meaning: &'static str,
    /// What to do.
    next: String,
}

/// Why the store failed; `exit.rs` has the exit code of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// What is there cannot be read as a ledger (or journal, or mark) of ours.
    Damaged,
    /// There is no ledger.
    Missing,
    /// It must not be used where it lies, or cannot be written.
    CannotWrite,
    /// Another command works on it, or may: try again later.
    Busy,
    /// Another command holds it and gave no sign of life for over half an hour: a person must look.
    Silent,
    /// This command no longer holds the lock, or slept too long to be sure. What it recorded stands; the next run does
    /// the rest, which is why this is "try again later" and not a failure.
    LostLock,
    /// R12: the ledger is older than its own journal. A person must look.
    PutBack,
}

/// What a failure before the first change means.
pub(super) const NOTHING_DONE: &str = "nothing was sent and nothing was changed";
/// What a failure in mid-command means.
pub(super) const STOPPED_HERE: &str = "this command stops here and sends nothing more; what it recorded before stands, \
                                       and the next run goes on from it";

impl StoreError {
    /// Adds what the mail service had answered when the answer could not be recorded.
    #[must_use]
    pub fn after_answer(self, key: &IdempotencyKey, accepted: bool) -> Self {
        let answer = if accepted { "accepted" } else { "answered" };
        let what = format!("{key}: {answer} but not recorded: {}", self.what);
        Self { what, next: "it asks again with the same key".to_owned(), ..self }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    pub(super) fn new(kind: StoreErrorKind, what: String, meaning: &'static str, next: String) -> Self {
        Self { kind, what, meaning, next }
    }

    /// The same failure, met when mails may have left already.
    pub(super) fn in_mid_command(self) -> Self {
        Self { meaning: STOPPED_HERE, ..self }
    }

    pub(super) fn missing(path: &Path) -> Self {
        Self::new(
            StoreErrorKind::Missing,
            format!("no ledger at `{}`", path.display()),
            NOTHING_DONE,
            "a missing ledger is no empty ledger: `stepmail init` makes one, and if it was there before, put it back"
                .to_owned(),
        )
    }

    pub(super) fn damaged_ledger(path: &Path, why: &str) -> Self {
        Self::new(
            StoreErrorKind::Damaged,
            format!("cannot read ledger `{}`: {why}", path.display()),
            NOTHING_DONE,
            format!(
                "mend the file by hand, or put a copy back (`{}.bak` is the version before the last)",
                path.display()
            ),
        )
    }

    pub(super) fn damaged_journal(path: &Path, why: &str) -> Self {
        Self::new(
            StoreErrorKind::Damaged,
            format!("cannot read journal `{}`: {why}", path.display()),
            NOTHING_DONE,
            "it may hold mails that left and are not in the ledger yet, so put the right file back rather than remove it"
                .to_owned(),
        )
    }

    pub(super) fn damaged_mark(path: &Path, why: &str) -> Self {
        Self::new(
            StoreErrorKind::Damaged,
            format!("cannot read mark `{}`: {why}", path.display()),
            NOTHING_DONE,
            "the mark tells a restored ledger from the newest one: remove it if you are sure that this is the newest \
             ledger"
                .to_owned(),
        )
    }

    pub(super) fn refused(path: &Path, why: &str, next: &str) -> Self {
        Self::new(
            StoreErrorKind::CannotWrite,
            format!("will not use `{}`: {why}", path.display()),
            NOTHING_DONE,
            next.to_owned(),
        )
    }

    pub(super) fn file(error: &FileError, meaning: &'static str) -> Self {
        let next = match error.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room on this disk",
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "run stepmail as the user it belongs to, on a disk that can be written"
            }
            _ => "",
        };
        Self::new(StoreErrorKind::CannotWrite, error.to_string(), meaning, next.to_owned())
    }

    pub(super) fn put_back(path: &Path, ledger: u64, newer: u64) -> Self {
        Self::new(
            StoreErrorKind::PutBack,
            format!(
                "ledger `{}` is older (generation {ledger}) than the work recorded since (generation {newer}): it was \
                 put back, or its newest version was lost",
                path.display()
            ),
            "nothing more is sent",
            "put the newest ledger back, or, if it is lost, run `stepmail adopt`".to_owned(),
        )
    }
}

/// Takes out of a parser's message what may be personal: texts it quotes, and everything that looks like an address.
pub(super) fn redact(message: &str) -> String {
    // `invalid type: string "Dear Hanako …", expected a time`
    let mut text = message.to_owned();
    if let Some(start) = text.find("string \"")
        && let Some(end) = text.rfind("\", expected")
        && start + 7 < end
    {
        text.replace_range(start + 6..=end, "");
    }
    let mut out = String::with_capacity(text.len());
    let mut word = String::new();
    let flush = |word: &mut String, out: &mut String| {
        out.push_str(if word.contains('@') { "(address)" } else { word });
        word.clear();
    };
    for c in text.chars() {
        if c.is_whitespace() || "\"'`,;:()<>[]=".contains(c) {
            flush(&mut word, &mut out);
            out.push(if c.is_control() { ' ' } else { c });
        } else if !c.is_control() {
            word.push(c);
        }
    }
    flush(&mut word, &mut out);
    if out.chars().count() > 300 {
        // The end names the place, the beginning the fault.
        let chars: Vec<char> = out.chars().collect();
        let (head, tail) = (&chars[..240], &chars[chars.len() - 50..]);
        out = head.iter().chain(['…'].iter()).chain(tail).collect();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_and_no_text_of_a_mail_stands_in_an_error() {
        for (message, said) in [
            (
                "invalid type: string \"hanako@example.com\", expected u64 at line 3 column 4",
                "invalid type: string, expected u64 at line 3 column 4",
            ),
            (
                "invalid type: string \"Dear \"x\", expected\", expected a time",
                "invalid type: string, expected a time",
            ),
            ("unknown field `hanako@example.com`, expected `at`", "unknown field `(address)`, expected `at`"),
            ("`a.b@c.d\u{1b}[31m` stands twice", "`(address)31m` stands twice"),
            ("string \"", "string \""),
            ("string \", expected", "string \", expected"),
            ("", ""),
        ] {
            assert_eq!(redact(message).replace("[31m", "31m"), said);
        }
        assert!(redact(&"あ@".repeat(10_000)).len() < 100);
        assert!(redact(&"é ".repeat(10_000)).chars().count() <= 300);
    }
}
