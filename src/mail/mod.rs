//! From a step that is due to bytes a mail service can take: templates, checks, messages, and the services behind one
//! trait.
//!
//! Nothing here decides whether a mail may leave; it makes sure that what leaves is whole, says nothing that was not
//! meant, and goes to one person. Addresses and bodies stay out of every error and `Debug`.

use std::fmt::{self, Write as _};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::domain::ids::{Address, IdempotencyKey};
use crate::domain::ledger::Frozen;
use crate::domain::outcome::Outcome;
use crate::domain::policy::Retention;
use crate::domain::time::Timestamp;

pub mod archive;
pub mod check;
pub mod clean;
mod fill;
mod layout;
mod link;
mod markdown;
mod mime;
pub mod notice;
pub mod outbox;
pub mod resend;
pub mod template;
pub mod values;

pub use archive::{Archive, Page, Unreadable};
pub use notice::notice;
pub use outbox::Outbox;
pub use resend::Resend;
pub use template::{Language, Rendered, TemplateFault, Templates};
pub use values::Values;

/// Whom a mail comes from. Name and address are never one text.
#[derive(Clone, PartialEq, Eq)]
pub struct Sender {
    /// The name beside the address.
    pub name: Option<String>,
    /// The address.
    pub address: Address,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Who writes, and in which language.
#[derive(Debug, Clone)]
pub struct MailSettings {
    /// The sender of every mail.
    pub from: Sender,
    /// Where answers go.
    pub reply_to: Address,
    /// Who is told of matters.
    pub operator: Address,
    /// The name in the sender block.
    pub business: String,
    /// The postal address in the sender block.
    pub business_address: String,
    /// For purchases whose language is not known.
    pub language: Language,
}

/// One message, complete, before a transport freezes it. Exactly one recipient: there is no place for a second.
///
/// Whether it goes to the operator is told by its key ([`IdempotencyKey::Notice`]).
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Names it to the mail service, so that asking twice sends once.
    pub key: IdempotencyKey,
    /// When it is being sent.
    pub date: Timestamp,
    /// Whom it comes from.
    pub from: Sender,
    /// Where answers go.
    pub reply_to: Address,
    /// The one recipient.
    pub to: Address,
    /// One line.
    pub subject: String,
    /// The plain part.
    pub text: String,
    /// The HTML part.
    pub html: String,
}

impl Message {
    /// SHA-256, hex, of what it says: recipient, subject, text, HTML. Not the date, so equal content is known as equal
    /// on another day (R9).
    #[must_use]
    pub fn content_hash(&self) -> String {
        hash(&[self.to.as_str(), &self.subject, &self.text, &self.html])
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("key", &self.key).field("date", &self.date).finish_non_exhaustive()
    }
}

/// SHA-256 over several texts; each is preceded by its length, so that no two lists run into one.
fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Why a message cannot be put into the form a service wants. Names no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot prepare the mail {key}: {reason}")]
pub struct FreezeError {
    /// The mail.
    pub key: IdempotencyKey,
    /// In words.
    pub reason: String,
}

/// One way for mails to leave.
pub trait Transport {
    /// Its name in ledger and settings.
    fn name(&self) -> &'static str;

    /// Whether no mail can leave this machine: the outbox, a service on loopback.
    fn stays_here(&self) -> bool;

    /// Makes the bytes that every try of this mail will send.
    ///
    /// # Errors
    /// [`FreezeError`] where the message has no such form; nothing was sent.
    fn freeze(&self, message: &Message) -> Result<Frozen, FreezeError>;

    /// Sends frozen bytes under a key, at once. May be asked again with the same key: it sends once.
    fn send(&self, key: &IdempotencyKey, frozen: &Frozen) -> Outcome;

    /// How long the same key sends nothing twice.
    fn retention(&self) -> Retention;

    /// Whether a mail that it could not take now may be taken within seconds. What a disk refuses, it refuses then too.
    fn tries_again_soon(&self) -> bool {
        true
    }

    /// How long to wait before the next request of any kind.
    fn delay(&self) -> Duration {
        Duration::ZERO
    }

    /// R12: whether there is a service whose clock can be asked.
    fn keeps_time(&self) -> bool {
        false
    }

    /// R12: what the service's clock says now: its last answer's, else that of one cheap request.
    ///
    /// # Errors
    /// [`NoClock`]: nothing may be closed or sent by our clock alone.
    fn service_clock(&self) -> Result<Timestamp, NoClock> {
        Err(NoClock::Undated)
    }

    /// R13: the service's list of mails, where it can be asked.
    fn archive(&self) -> Option<&dyn Archive> {
        None
    }
}

/// R12: a service's clock could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoClock {
    /// The service cannot be reached, in these words.
    Offline(String),
    /// It answered without a `Date`.
    Undated,
}
