//! The receipt of one event that was handed in: `stepmail-receipt/1`.

use serde::Serialize;

use crate::domain::event::{Incoming, StopTarget};
use crate::domain::ids::{EventId, SessionId};
use crate::domain::receipt::Standing;
use crate::exit::Exit;

/// What whoever handed an event in gets for it. The same event gets the same receipt.
#[derive(Debug, Serialize)]
pub struct Receipt {
    schema: &'static str,
    /// The event; none where it has no id that can be repeated.
    pub event: Option<EventId>,
    /// The session it speaks of.
    pub session: Option<SessionId>,
    /// Where it stands; none where nothing was taken in.
    pub result: Option<Standing>,
    /// Why it was ignored, refused, or not taken in.
    pub reason: Option<String>,
    /// The exit code.
    pub exit: Exit,
}

impl Receipt {
    /// The receipt of an event.
    #[must_use]
    pub fn of(event: Option<EventId>, incoming: &Incoming, result: Standing, reason: Option<String>) -> Self {
        let session = match incoming {
            Incoming::PaymentFailed { session, .. } => Some(session.clone()),
            Incoming::Stop(stop) => match &stop.target {
                StopTarget::Session(session) => Some(session.clone()),
                _ => None,
            },
            other => other.checkout().map(|checkout| checkout.session.clone()),
        };
        let exit = match result {
            Standing::Recorded | Standing::Ignored => Exit::Done,
            Standing::Conflict | Standing::Invalid => Exit::Look,
        };
        Self { schema: SCHEMA, event, session, result: Some(result), reason, exit }
    }

    /// Nothing was taken in.
    #[must_use]
    pub fn failed(reason: String, exit: Exit) -> Self {
        Self { schema: SCHEMA, event: None, session: None, result: None, reason: Some(reason), exit }
    }
}

const SCHEMA: &str = "stepmail-receipt/1";
