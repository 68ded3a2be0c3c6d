//! The whole story of one buyer, purchase or mail: `show`. It hides nothing from its user but the texts of mails.

use std::io::{self, Write};

use serde::Serialize;

use crate::domain::fact::Whom;
use crate::domain::ids::{EventId, IdempotencyKey, SessionId};
use crate::domain::ledger::{Buyer, Ledger, MarkKind, Purchase, StepState, Waiting};
use crate::domain::matter::Matter;
use crate::domain::policy::Policy;
use crate::domain::time::Timestamp;

use super::next::next;
use super::status::{PurchaseLine, buyer_flags, in_words, waits_for};
use super::story::{Happened, story, to_come};

/// Whose story is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A person's, or one purchase's.
    Whom(Whom),
    /// That of the purchase, or the matter, that a mail belongs to.
    Mail(IdempotencyKey),
}

/// One buyer with all purchases, or one purchase.
#[derive(Debug, Serialize)]
pub struct ShowReport {
    schema: &'static str,
    now: Timestamp,
    /// The key of the mail that was asked for, if one was.
    mail: Option<IdempotencyKey>,
    address: Option<String>,
    /// What holds for the person: `buyer stopped (asked)`.
    flags: Vec<String>,
    purchases: Vec<PurchaseStory>,
    /// What is known of sessions that are no purchases yet.
    noted: Vec<String>,
    matters: Vec<String>,
    /// What the next run does for the person, or when the next mail may leave.
    next: Vec<String>,
}

/// One purchase with its story.
#[derive(Debug, Serialize)]
struct PurchaseStory {
    #[serde(flatten)]
    line: PurchaseLine,
    /// The events that spoke of it.
    events: Vec<EventId>,
    story: Vec<Happened>,
    next: Vec<String>,
}

impl ShowReport {
    /// The story that is asked for; none if the ledger knows nothing of it.
    #[must_use]
    pub fn of(ledger: &Ledger, subject: &Subject, policy: &Policy, now: Timestamp) -> Option<Self> {
        let mut report = match subject {
            Subject::Whom(whom) => Self::of_whom(ledger, whom, policy, now),
            Subject::Mail(IdempotencyKey::Step(session, _)) => {
                Self::of_whom(ledger, &Whom::Session(session.clone()), policy, now)
            }
            Subject::Mail(IdempotencyKey::Notice(id)) => {
                let matter = ledger.matters.iter().find(|matter| matter.id() == *id)?;
                let of_session = matter
                    .session
                    .as_ref()
                    .and_then(|session| Self::of_whom(ledger, &Whom::Session(session.clone()), policy, now));
                let report = of_session.unwrap_or_else(|| Self::empty(now));
                Some(Self { matters: vec![matter_line(matter)], ..report })
            }
        }?;
        if let Subject::Mail(key) = subject {
            report.mail = Some(key.clone());
        }
        Some(report)
    }

    fn of_whom(ledger: &Ledger, whom: &Whom, policy: &Policy, now: Timestamp) -> Option<Self> {
        let (buyer, only) = match whom {
            Whom::Address(address) => (ledger.buyers.get(&address.buyer()), None),
            Whom::Session(session) => {
                (ledger.buyers.purchase(session).map(|(buyer, _)| buyer), Some(session))
            }
        };
        let noted = noted(ledger, whom);
        if buyer.is_none() && noted.is_empty() {
            return None;
        }
        let purchases: Vec<_> = buyer
            .into_iter()
            .flat_map(|buyer| buyer.purchases.iter().map(move |purchase| (buyer, purchase)))
            .filter(|(_, purchase)| only.is_none_or(|only| purchase.session == *only))
            .collect();
        let concerns = |session: &SessionId| {
            only == Some(session) || purchases.iter().any(|(_, purchase)| purchase.session == *session)
        };
        let about = |matter: &&Matter| matter.session.as_ref().is_some_and(concerns);
        Some(Self {
            address: buyer.map(|buyer| buyer.address.to_string()),
            flags: buyer.map_or(Vec::new(), |buyer| buyer_flags(buyer).collect()),
            matters: ledger.matters.iter().filter(about).map(matter_line).collect(),
            purchases: purchases
                .iter()
                .map(|(buyer, purchase)| PurchaseStory::of(buyer, purchase, ledger.go_live, policy, now))
                .collect(),
            noted,
            next: buyer.map_or(Vec::new(), |buyer| next(buyer, policy, now)),
            ..Self::empty(now)
        })
    }

    fn empty(now: Timestamp) -> Self {
        Self {
            schema: "stepmail-show/1",
            now,
            mail: None,
            address: None,
            flags: Vec::new(),
            purchases: Vec::new(),
            noted: Vec::new(),
            matters: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Writes it for people.
    ///
    /// # Errors
    /// The output is closed or full.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        match &self.mail {
            Some(IdempotencyKey::Step(session, step)) => writeln!(out, "{step} of {session}")?,
            Some(notice) => writeln!(out, "{notice}, a notice to you")?,
            None => {}
        }
        if let Some(address) = &self.address {
            write!(out, "{address}")?;
            for flag in &self.flags {
                write!(out, ", {flag}")?;
            }
            writeln!(out)?;
        }
        if self.purchases.is_empty() && self.mail.is_none() {
            writeln!(out, "no purchase yet")?;
        }
        for noted in &self.noted {
            writeln!(out, "{noted}")?;
        }
        for purchase in &self.purchases {
            writeln!(out)?;
            purchase.write_text(out)?;
        }
        for matter in &self.matters {
            writeln!(out, "\nfor you to know: {matter}")?;
        }
        let bought = !self.purchases.is_empty();
        if !bought || self.purchases.iter().any(|purchase| !purchase.next.is_empty()) {
            if !self.next.is_empty() {
                writeln!(out)?;
            }
            for line in &self.next {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }

    /// Writes what a person must see: what waits for their word.
    ///
    /// # Errors
    /// The output is closed or full.
    pub fn write_quiet(&self, out: &mut impl Write) -> io::Result<()> {
        for line in self.purchases.iter().flat_map(|purchase| &purchase.next) {
            if line.contains("stepmail resolve") {
                writeln!(out, "{line}")?;
            }
        }
        for matter in &self.matters {
            writeln!(out, "{matter}")?;
        }
        Ok(())
    }
}

impl PurchaseStory {
    fn of(buyer: &Buyer, purchase: &Purchase, go_live: Timestamp, policy: &Policy, now: Timestamp) -> Self {
        let mut line = PurchaseLine::of(buyer, purchase, policy, now);
        // R16: one whose outcome is not noted has none that is known.
        if buyer.outcome.is_none() && purchase.outcome.is_none() {
            line.flags.push("outcome: unknown".to_owned());
        }
        Self {
            line,
            events: purchase.events.clone(),
            story: story(buyer, purchase, go_live),
            next: to_come(buyer, purchase, policy, now),
        }
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, "{}  {}, paid {}", self.line.session, in_words(self.line.kind), self.line.paid_at)?;
        for flag in &self.line.flags {
            write!(out, ", {flag}")?;
        }
        writeln!(out)?;
        for happened in &self.story {
            writeln!(out, "  {}  {}", happened.at, happened.what)?;
        }
        if !self.events.is_empty() {
            let events: Vec<&str> = self.events.iter().map(EventId::as_str).collect();
            writeln!(out, "  events: {}", events.join(", "))?;
        }
        if self.next.is_empty() {
            return writeln!(out, "  next: nothing more is to come");
        }
        writeln!(out, "  next:")?;
        for line in &self.next {
            writeln!(out, "    {line}")?;
        }
        Ok(())
    }
}

fn matter_line(matter: &Matter) -> String {
    let told = match &matter.notice {
        StepState::Sent { at, message_id, .. } => format!("told {at}, message id {message_id}"),
        _ => "not told yet".to_owned(),
    };
    format!("{}  {} ({told})", matter.at, matter.text)
}

fn because(reason: Option<&String>) -> String {
    reason.map_or(String::new(), |reason| format!(": {reason}"))
}

/// What is known of sessions that are no purchases yet: checkouts that wait, stops and marks for the future.
fn noted(ledger: &Ledger, whom: &Whom) -> Vec<String> {
    let is_theirs = |session: &SessionId| matches!(whom, Whom::Session(asked) if asked == session);
    let waits = |waiting: &&Waiting| match whom {
        Whom::Session(session) => waiting.checkout.session == *session,
        Whom::Address(asked) => {
            waiting.checkout.email.as_ref().is_some_and(|email| email.buyer() == asked.buyer())
        }
    };
    let waiting = ledger.waiting.iter().filter(waits).map(|waiting| {
        format!("{} since {}, waits for {}", waiting.checkout.session, waiting.since, waits_for(waiting.why))
    });
    let stops = ledger.loose_stops.iter().filter_map(|stop| {
        let session = stop.session.as_ref().filter(|session| is_theirs(session))?;
        Some(match stop.lifted {
            None => {
                format!(
                    "{session} is stopped when it comes (noted {}{})",
                    stop.at,
                    because(stop.reason.as_ref())
                )
            }
            Some(lifted) => format!("{session} had a stop (noted {}) that was lifted {lifted}", stop.at),
        })
    });
    let marks = ledger.loose_marks.iter().filter(|mark| is_theirs(&mark.session));
    let marks = marks.map(|mark| {
        let what = match mark.mark {
            MarkKind::Stopped => "is stopped",
            MarkKind::Started => "counts as started",
            MarkKind::Repurchase => "counts as a repurchase",
            MarkKind::Outcome => "counts as having reached the goal",
        };
        format!("{} {what} when it comes (noted {}{})", mark.session, mark.at, because(mark.reason.as_ref()))
    });
    waiting.chain(stops).chain(marks).collect()
}
