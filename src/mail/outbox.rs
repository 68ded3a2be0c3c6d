//! The transport that sends nothing: each mail becomes a file named by its key.
//!
//! As safe to ask twice as the real thing: a file is put in place whole and only if absent, so the first one stands.
//! Notices to the operator lie in `notices/`, apart from what buyers get.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::mime::{self, KEY_HEADER};
use super::{FreezeError, Message, Transport};
use crate::disk::{self, Created, FileError, Naming as _};
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::{Frozen, OUTBOX};
use crate::domain::outcome::Outcome;
use crate::domain::policy::Retention;

/// A mail's headers end long before this.
const HEAD_MAX: u64 = 64 * 1024;

/// A folder of `.eml` files.
#[derive(Clone, Debug)]
pub struct Outbox {
    dir: PathBuf,
}

impl Outbox {
    /// Its name in ledger and settings.
    pub const NAME: &'static str = OUTBOX;

    /// The outbox in `dir`, which is made when the first mail needs it.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Where the mail of that key lies or will lie: `pp.cs_123.d3.eml`.
    #[must_use]
    pub fn path(&self, key: &IdempotencyKey) -> PathBuf {
        let name = format!("{}.eml", key.to_string().replace(':', "."));
        match key {
            IdempotencyKey::Notice(_) => self.dir.join("notices").join(name),
            IdempotencyKey::Step(..) => self.dir.join(name),
        }
    }
}

/// What [`Outbox::erase`] came to.
#[derive(Debug, Default)]
pub struct Swept {
    /// How many mails and notices were removed, or would be.
    pub mails: usize,
    /// What could not be looked at or removed.
    pub failures: Vec<FileError>,
}

impl Outbox {
    /// R17: removes the mails that are `theirs`, the notices about them, and what a dead run left half-written. To be
    /// called under the ledger's lock. With `dry` nothing is removed.
    ///
    /// A mail is known by its name, or where that was cut, by its header. What has neither is half a mail of a run that
    /// died, and of no use to anybody.
    #[must_use]
    pub fn erase(&self, theirs: &dyn Fn(&IdempotencyKey) -> bool, dry: bool) -> Swept {
        let mut swept = Swept::default();
        for folder in [self.dir.clone(), self.dir.join("notices")] {
            erase_in(&folder, theirs, dry, &mut swept);
        }
        swept
    }
}

fn erase_in(folder: &Path, theirs: &dyn Fn(&IdempotencyKey) -> bool, dry: bool, swept: &mut Swept) {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        read => read.naming("look into", folder),
    };
    let entries = match entries {
        Ok(entries) => entries,
        Err(error) => return swept.failures.push(error),
    };
    let mut removed = false;
    for entry in entries {
        let path = match entry.naming("look into", folder) {
            Ok(entry) => entry.path(),
            Err(error) => return swept.failures.push(error),
        };
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let unfinished = disk::is_left_over(name);
        let key = match named(name) {
            Some(key) => Some(key),
            None if unfinished => key_within(&path),
            None => continue,
        };
        if !key.as_ref().map_or(unfinished, theirs) {
            continue;
        }
        if !dry && let Err(source) = fs::remove_file(&path) {
            swept.failures.push(FileError { doing: "remove", path, source });
            continue;
        }
        removed = !dry;
        swept.mails += usize::from(!unfinished);
    }
    if removed && let Err(error) = disk::sync_folder_of(&folder.join("any")) {
        swept.failures.push(error);
    }
}

/// The mail that a file's name says it is: `pp.cs_123.d3.eml`.
fn named(name: &str) -> Option<IdempotencyKey> {
    name.strip_suffix(".eml")?.replacen('.', ":", 2).parse().ok()
}

/// The mail that a file's header says it is.
fn key_within(path: &Path) -> Option<IdempotencyKey> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD_MAX).read_to_end(&mut head).ok()?;
    mime::header(&String::from_utf8_lossy(&head), KEY_HEADER)?.parse().ok()
}

impl Transport for Outbox {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn stays_here(&self) -> bool {
        true
    }

    fn tries_again_soon(&self) -> bool {
        false
    }

    fn freeze(&self, message: &Message) -> Result<Frozen, FreezeError> {
        let body =
            mime::compose(message).map_err(|reason| FreezeError { key: message.key.clone(), reason })?;
        Ok(Frozen {
            via: Self::NAME.to_owned(),
            to: message.to.clone(),
            subject: message.subject.clone(),
            body,
            hash: message.content_hash(),
        })
    }

    /// Accepted with the Message-ID of the file that lies there, as its header has it.
    fn send(&self, key: &IdempotencyKey, frozen: &Frozen) -> Outcome {
        let not_sent = |reason: String| Outcome::NotSent { reason, retry_after: None };
        if frozen.via != Self::NAME {
            return not_sent(format!("it was prepared for `{}`, not for the outbox", frozen.via));
        }
        let ours = mime::header(&frozen.body, "Message-ID");
        let (Some(message_id), true) =
            (ours, mime::header(&frozen.body, KEY_HEADER) == Some(key.to_string()))
        else {
            return not_sent("its bytes do not carry this key and a Message-ID".to_owned());
        };
        let path = self.path(key);
        if let Err(error) = disk::make_folder(disk::folder_of(&path)) {
            return not_sent(error.to_string());
        }
        // What a try that died left half-written under this name.
        disk::sweep(&path);
        match disk::create(&path, frozen.body.as_bytes(), disk::PRIVATE) {
            Ok(Created::New) => Outcome::Accepted { message_id },
            Ok(Created::AlreadyThere) => what_lies_there(&path, key),
            // The file is in place, but a power cut may take its name.
            Err(error) if error.doing == "sync the folder" => Outcome::unknown(error.to_string()),
            // This try wrote nothing, an earlier one did.
            Err(_) if path.symlink_metadata().is_ok() => what_lies_there(&path, key),
            Err(error) => not_sent(error.to_string()),
        }
    }

    fn retention(&self) -> Retention {
        Retention::Forever
    }
}

/// The first file stands, whatever it says; but it must be this key's. On macOS `cs_A` and `cs_a` share a name.
fn what_lies_there(path: &Path, key: &IdempotencyKey) -> Outcome {
    let unknown = |why: &str| Outcome::unknown(format!("`{}` is there, but {why}", path.display()));
    let mut head = Vec::new();
    // Headers are ASCII: a file cut within a character of its body can still be read.
    let read = File::open(path).and_then(|file| file.take(HEAD_MAX).read_to_end(&mut head));
    if let Err(error) = read {
        return unknown(&error.to_string());
    }
    let head = String::from_utf8_lossy(&head);
    let Some(message_id) = mime::header(&head, "Message-ID") else {
        return unknown("has no Message-ID");
    };
    match mime::header(&head, KEY_HEADER) {
        Some(other) if other != key.to_string() => {
            Outcome::Conflict { reason: format!("`{}` is another mail's file", path.display()) }
        }
        None => unknown("does not say which mail it is"),
        // An earlier try may have died before the name was durable.
        Some(_) => match disk::sync_folder_of(path) {
            Ok(()) => Outcome::Accepted { message_id },
            Err(error) => Outcome::unknown(error.to_string()),
        },
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
