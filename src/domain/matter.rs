//! What a human must know, and the telling of it: once per matter.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ids::{IdempotencyKey, SessionId, Step};
use super::ledger::{Attempt, StepState};
use super::time::Timestamp;

/// A subject's length at most: with kind and time it must fit into a key of 256 characters.
const SUBJECT_MAX: usize = 200;

/// Something a human must know. It is the same matter as long as kind and subject are the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matter {
    /// What it is about.
    pub kind: MatterKind,
    /// What of that kind: a session, an event, a template. Letters, digits, `_`, `.` and `-` only, at most 200.
    pub subject: String,
    /// When it was first seen.
    pub at: Timestamp,
    /// The purchase concerned, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// One or two sentences: what, what it means for the mails, what to do. No full address, no secret.
    pub text: String,
    /// R15: the notice is a mail with a state of its own.
    pub notice: StepState,
    /// R15: the matter in whose notice this one is told, while that is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_with: Option<String>,
}

/// The kinds of matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MatterKind {
    /// R2: a known session came with another address or amount.
    Conflict,
    /// A paid checkout without an address to write to.
    NoAddress,
    /// A paid checkout whose address cannot be used.
    BadAddress,
    /// An event or a line that cannot be read.
    InvalidEvent,
    /// R1: a completed checkout whose `payment_status` is missing or unknown.
    PaymentStatus,
    /// R12: a purchase dated more than ten minutes ahead.
    PaidAhead,
    /// Part of the money went back.
    PartialRefund,
    /// A refund did not come about.
    RefundFailed,
    /// Nobody can tell what a paid session was for.
    ItemsUnknown,
    /// A refund, dispute or cancellation of no purchase known here.
    UnlinkedStop,
    /// R7: a stopped buyer bought again.
    StoppedBuyer,
    /// R9: a step is closed and nobody knows whether its mail left.
    UnknownResult,
    /// R9: a step is closed since the mail service refused its mail three times.
    Rejected,
    /// R11: a template that must not leave as it is.
    TemplateFault,
    /// A plan frozen by another mail service than the one in the settings.
    ForeignPlan,
    /// R9: the mail service refuses the account.
    Account,
    /// R4: more mails are due than a run may send unasked.
    Brake,
    /// R12: the clock is behind times already recorded, or behind this program's release.
    ClockBehind,
    /// R12: the last run was more than 45 days ago.
    ClockAhead,
    /// R12: another installation ran this ledger last.
    OtherInstallation,
    /// R12: this ledger is older than the last one this installation wrote.
    Restored,
    /// R12: no mark can be kept in the state folder.
    NoMark,
    /// R12: the ledger was adopted in place of a newer one, and steps were closed that may have left meanwhile.
    Adopted,
    /// R12: the mail service is real, and the ledger has mails that only the outbox took.
    Trial,
    /// R13: the buyer's mail server refused a mail for good.
    Bounced,
    /// R13: the buyer called a mail spam.
    Complained,
    /// R13: the mail service took a d0 and did not send it.
    NotDelivered,
    /// A source of purchases and stops refuses to be read.
    Source,
    /// A source was not read for so long that it no longer knows everything.
    Missed,
    /// No purchase for unusually long.
    Silence,
    /// R14: a buyer's contact in the newsletter is not as it must be to be marked, or contacts cannot be read.
    Newsletter,
    /// R14: buyers of whom the newsletter has no contact.
    NewsletterNone,
}

impl MatterKind {
    /// The name in ids, ledgers and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::NoAddress => "no_address",
            Self::BadAddress => "bad_address",
            Self::InvalidEvent => "invalid_event",
            Self::PaymentStatus => "payment_status",
            Self::PaidAhead => "paid_ahead",
            Self::PartialRefund => "partial_refund",
            Self::RefundFailed => "refund_failed",
            Self::ItemsUnknown => "items_unknown",
            Self::UnlinkedStop => "unlinked_stop",
            Self::StoppedBuyer => "stopped_buyer",
            Self::UnknownResult => "unknown_result",
            Self::Rejected => "rejected",
            Self::TemplateFault => "template_fault",
            Self::ForeignPlan => "foreign_plan",
            Self::Account => "account",
            Self::Brake => "brake",
            Self::ClockBehind => "clock_behind",
            Self::ClockAhead => "clock_ahead",
            Self::OtherInstallation => "other_installation",
            Self::Restored => "restored",
            Self::NoMark => "no_mark",
            Self::Adopted => "adopted",
            Self::Trial => "trial",
            Self::Bounced => "bounced",
            Self::Complained => "complained",
            Self::NotDelivered => "not_delivered",
            Self::Source => "source",
            Self::Missed => "missed",
            Self::Silence => "silence",
            Self::Newsletter => "newsletter",
            Self::NewsletterNone => "newsletter_none",
        }
    }
}

impl Matter {
    /// A matter that has not been told yet.
    #[must_use]
    pub fn new(
        kind: MatterKind,
        subject: &str,
        at: Timestamp,
        session: Option<SessionId>,
        text: String,
    ) -> Self {
        let text = without_addresses(text);
        let (subject, notice) = (subject_text(subject), StepState::pending());
        Self { kind, subject, at, session, text, notice, told_with: None }
    }

    /// R9: a step was closed, and nobody knows whether its mail left.
    #[must_use]
    pub fn unknown_result(session: &SessionId, step: Step, attempt: Option<&Attempt>, at: Timestamp) -> Self {
        let key = IdempotencyKey::Step(session.clone(), step);
        let tried = attempt.map_or(String::new(), |attempt| {
            format!(
                " (tried through {} from {} to {}, subject \"{}\")",
                attempt.via, attempt.first_at, attempt.last_at, attempt.subject
            )
        });
        let text = format!(
            "nobody knows whether {step} of session {session} left{tried}; it is closed and will not be sent again; look \
             for it in the mail service's list, then say what you found: `stepmail resolve {key} --sent` or `stepmail \
             resolve {key} --not-sent`"
        );
        Self::new(MatterKind::UnknownResult, &format!("{session}.{step}"), at, Some(session.clone()), text)
    }

    /// R9: a step was closed since its mail was refused three times.
    #[must_use]
    pub fn rejected(session: &SessionId, step: Step, reason: &str, at: Timestamp) -> Self {
        let key = IdempotencyKey::Step(session.clone(), step);
        let text = format!(
            "the mail service refused {step} of session {session} three times ({reason}); it is closed and will not be \
             sent; mend what it names, then `stepmail resolve {key} --not-sent` tries it again"
        );
        Self::new(MatterKind::Rejected, &format!("{session}.{step}"), at, Some(session.clone()), text)
    }

    /// Whether it lasts until a person, or a later run, has done away with its cause. The others were news: told, they
    /// ask for nothing more.
    #[must_use]
    pub const fn is_unsettled(&self) -> bool {
        match self.kind {
            MatterKind::UnknownResult
            | MatterKind::Rejected
            | MatterKind::Adopted
            | MatterKind::TemplateFault
            | MatterKind::ForeignPlan
            | MatterKind::Account
            | MatterKind::Brake
            | MatterKind::ClockBehind
            | MatterKind::ClockAhead
            | MatterKind::OtherInstallation
            | MatterKind::Restored
            | MatterKind::NoMark
            | MatterKind::Source
            | MatterKind::Newsletter
            | MatterKind::Trial => true,
            MatterKind::Conflict
            | MatterKind::NoAddress
            | MatterKind::BadAddress
            | MatterKind::InvalidEvent
            | MatterKind::PaymentStatus
            | MatterKind::PaidAhead
            | MatterKind::PartialRefund
            | MatterKind::RefundFailed
            | MatterKind::ItemsUnknown
            | MatterKind::UnlinkedStop
            | MatterKind::StoppedBuyer
            | MatterKind::Bounced
            | MatterKind::Complained
            | MatterKind::NotDelivered
            | MatterKind::Missed
            | MatterKind::NewsletterNone
            | MatterKind::Silence => false,
        }
    }

    /// The id: kind, subject, and when it was first seen, so that the notice of a condition that comes back does not
    /// carry the key of the one before.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}.{}.{}", self.kind.name(), self.subject, self.at.unix())
    }

    /// The key of its notice.
    #[must_use]
    pub fn key(&self) -> IdempotencyKey {
        IdempotencyKey::Notice(self.id())
    }

    /// Whether this is the matter of that kind and subject.
    #[must_use]
    pub fn is(&self, kind: MatterKind, subject: &str) -> bool {
        self.kind == kind && self.subject == subject_text(subject)
    }
}

/// R17: what an event calls itself, or gives as a reason, may hold somebody's address; a notice must not.
fn without_addresses(text: String) -> String {
    if !text.contains(['@', '＠']) {
        return text;
    }
    let ends = |c: char| c.is_whitespace() || "\"'`,;:()<>[]".contains(c);
    let words = text.split_inclusive(ends).map(|word| {
        let end = word.chars().next_back().filter(|c| ends(*c));
        match (word.contains(['@', '＠']), end) {
            (true, end) => format!("(address){}", end.map_or(String::new(), String::from)),
            (false, _) => word.to_owned(),
        }
    });
    words.collect()
}

/// Makes any text fit to stand in a key. One that is changed by that gets a hash, so that two texts stay two subjects.
fn subject_text(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if text.len() <= SUBJECT_MAX && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let plain = text.chars().map(|c| if is_plain(c) { c } else { '-' });
    let hash = Sha256::digest(text.as_bytes());
    plain.take(SUBJECT_MAX - 9).chain(['-']).chain(hash.iter().take(4).flat_map(|byte| hex(*byte))).collect()
}

/// A byte in two digits.
fn hex(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 15].map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_events_with_odd_ids_are_two_matters_with_sound_keys() {
        let at = Timestamp::parse("2026-10-01T00:00:00Z").unwrap();
        let matter = |subject: &str| Matter::new(MatterKind::Conflict, subject, at, None, String::new());
        assert_ne!(matter("a:b").id(), matter("a-b").id());
        assert!(
            matter("a:b").is(MatterKind::Conflict, "a:b") && !matter("a:b").is(MatterKind::Conflict, "a-b")
        );
        assert_ne!(matter(&"x".repeat(250)).id(), matter(&"x".repeat(251)).id());
        for subject in ["cs_1", "a:b/../c\u{3042}", &"x".repeat(255)] {
            let key = matter(subject).key().to_string();
            assert!(key.parse::<IdempotencyKey>().is_ok(), "{key}");
        }
    }

    #[test]
    fn r17_a_notice_holds_no_address_whatever_an_event_says_of_itself() {
        let at = Timestamp::parse("2026-10-01T00:00:00Z").unwrap();
        let text = |text: &str| Matter::new(MatterKind::Conflict, "s", at, None, text.to_owned()).text;
        assert_eq!(text("no address here, and no at sign"), "no address here, and no at sign");
        assert_eq!(
            text("event hanako@example.com (wish of Hanako＠example.com) stops `a@b`, now"),
            "event (address) (wish of (address)) stops `(address)`, now"
        );
    }
}
