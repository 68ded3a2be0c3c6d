//! What a mail service can be asked about the mails it took (R10, R13).

use crate::domain::fate::{Listed, Tagged};
use crate::domain::time::Seconds;

/// One page of the service's list, newest first.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The mails on it.
    pub mails: Vec<Listed>,
    /// Whether the service says that older ones follow.
    pub more: bool,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The key may send and not read.
    NotAllowed,
    /// Anything else; the next run asks again.
    Failed {
        /// In words, without personal data.
        reason: String,
        /// How long the service asked to wait.
        retry_after: Option<Seconds>,
    },
}

/// A mail service that can be asked. Each call is one request, made at once; the caller keeps the pace
/// ([`Transport::delay`](super::Transport::delay)).
pub trait Archive {
    /// The page that follows the mail of this id; the first where there is none.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn page(&self, after: Option<&str>) -> Result<Page, Unreadable>;

    /// Whose the mail of this id is; none where its tags do not say.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn whose(&self, id: &str) -> Result<Option<Tagged>, Unreadable>;
}
