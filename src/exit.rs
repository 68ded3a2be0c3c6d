//! From what went wrong to the exit code. The codes say what happens next: done, a person must look, try next hour.

use crate::command::{NotKnown, NotOne, RealTime, Refused};
use crate::config::ConfigError;
use crate::disk::FileError;
use crate::secret::SecretError;
use crate::source::SourceError;
use crate::source::stripe::signature::SignatureError;
use crate::store::{StoreError, StoreErrorKind};

/// How a command ends. `--help` and the README list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(into = "u8")]
pub enum Exit {
    /// Done.
    Done,
    /// A person must look.
    Look,
    /// The command line is wrong.
    Usage,
    /// The ledger or an input is damaged.
    Damaged,
    /// There is no ledger.
    NoLedger,
    /// Cannot write.
    CannotWrite,
    /// Try again later.
    Later,
    /// The settings are wrong.
    Settings,
}

impl From<Exit> for u8 {
    fn from(exit: Exit) -> u8 {
        match exit {
            Exit::Done => 0,
            Exit::Look => 1,
            Exit::Usage => 2,
            Exit::Damaged => 65,
            Exit::NoLedger => 66,
            Exit::CannotWrite => 73,
            Exit::Later => 75,
            Exit::Settings => 78,
        }
    }
}

impl Exit {
    /// The code for an error, by the kind at its root.
    #[must_use]
    pub fn of(error: &anyhow::Error) -> Self {
        for cause in error.chain() {
            if let Some(error) = cause.downcast_ref::<StoreError>() {
                return error.kind().into();
            }
            if cause.is::<SignatureError>() || cause.is::<NotOne>() {
                return Self::Damaged;
            }
            if cause.is::<RealTime>() {
                return Self::Usage;
            }
            if cause.is::<ConfigError>() || cause.is::<SecretError>() {
                return Self::Settings;
            }
            if cause.is::<SourceError>() {
                return Self::Damaged;
            }
            if cause.is::<NotKnown>() || cause.is::<Refused>() {
                return Self::Look;
            }
            if cause.is::<FileError>() {
                return Self::CannotWrite;
            }
        }
        Self::CannotWrite
    }
}

impl From<StoreErrorKind> for Exit {
    fn from(kind: StoreErrorKind) -> Self {
        match kind {
            StoreErrorKind::Damaged => Self::Damaged,
            StoreErrorKind::Missing => Self::NoLedger,
            StoreErrorKind::CannotWrite => Self::CannotWrite,
            // What was recorded stands, and the next run does the rest.
            StoreErrorKind::Busy | StoreErrorKind::LostLock => Self::Later,
            StoreErrorKind::Silent | StoreErrorKind::PutBack => Self::Look,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_trouble_with_the_ledger_has_its_code() {
        use StoreErrorKind as Kind;
        for (kind, code) in [
            (Kind::Damaged, 65),
            (Kind::Missing, 66),
            (Kind::CannotWrite, 73),
            (Kind::Busy, 75),
            (Kind::LostLock, 75),
            (Kind::Silent, 1),
            (Kind::PutBack, 1),
        ] {
            assert_eq!(u8::from(Exit::from(kind)), code, "{kind:?}");
        }
    }
}
