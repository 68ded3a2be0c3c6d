//! The report of a run: one JSON object (`stepmail-run/1`), or a few lines.

use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::domain::admit::Counts;
use crate::domain::decide::Due;
use crate::domain::ids::{IdempotencyKey, SessionId, Step};
use crate::domain::ledger::CloseReason;
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::outcome::MailResult;
use crate::domain::time::Timestamp;
use crate::exit::Exit;

use super::Style;

/// The schema of `run --json`.
const RUN: &str = "stepmail-run/1";

/// What a run did.
#[derive(Debug, Serialize)]
pub struct RunReport {
    schema: &'static str,
    /// The run's `now`; none where it failed before the clock was read.
    pub now: Option<Timestamp>,
    /// Whether nothing was written or sent.
    pub dry_run: bool,
    /// What was taken in.
    pub ingested: Counts,
    /// The files of the spool that were left, since they do not end in a line break.
    pub waiting: Vec<String>,
    /// Each attempt, in order.
    pub mails: Vec<MailLine>,
    /// What this run closed, without history.
    pub closed: Vec<Closed>,
    /// The newsletter's marks that were set or taken away; absent where there were none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<MarkLine>,
    /// What this run has to say to a human.
    pub notices: Vec<Notice>,
    /// Why not everything was done that is due.
    pub stopped_early: Option<String>,
    /// The exit code.
    pub exit: Exit,
    /// Whether the run came to its end. One that failed cannot say that nothing is due.
    #[serde(skip)]
    concluded: bool,
    /// What holds mails though they are due.
    #[serde(skip)]
    pub held_by: Vec<Hold>,
    /// Where mails lie that did not leave this machine.
    #[serde(skip)]
    pub outbox: Option<PathBuf>,
    /// What was handed in and not taken in, and why.
    #[serde(skip)]
    pub not_taken: Vec<String>,
    /// Notices that could not be told.
    #[serde(skip)]
    pub untold: usize,
}

/// What can hold the mails of a run until a person has looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// R12: a clock, a copy, a backup.
    Guard,
    /// R4: very many mails.
    Brake,
    /// R9: the mail service refuses the account.
    Account,
    /// R12: no service could be asked what time it is. The next run tries again.
    Offline,
}

/// One attempt, or one that a dry run would make.
#[derive(Debug, Serialize)]
pub struct MailLine {
    /// The idempotency key.
    pub key: IdempotencyKey,
    /// The purchase.
    pub session: SessionId,
    /// The step.
    pub step: Step,
    /// What became of it.
    pub result: MailResult,
    /// The mail service's id.
    pub message_id: Option<String>,
    /// Why it is due, or why it was not accepted.
    pub reason: Option<String>,
    /// For people, so that swapped templates are seen.
    #[serde(skip)]
    pub subject: String,
}

impl MailLine {
    /// A line without a message id.
    #[must_use]
    pub fn new(
        key: &IdempotencyKey,
        due: &Due,
        result: MailResult,
        subject: &str,
        reason: Option<String>,
    ) -> Self {
        Self {
            key: key.clone(),
            session: due.session.clone(),
            step: due.step,
            result,
            message_id: None,
            reason,
            subject: subject.to_owned(),
        }
    }
}

/// A purchaser mark in the newsletter.
#[derive(Debug, Serialize)]
pub struct MarkLine {
    /// The purchase.
    pub session: SessionId,
    /// Whether it was set, and not taken away.
    pub marked: bool,
}

/// A step that was closed.
#[derive(Debug, Serialize)]
pub struct Closed {
    /// The purchase.
    pub session: SessionId,
    /// The step.
    pub step: Step,
    /// Why.
    pub reason: CloseReason,
}

/// Something a human must know.
#[derive(Debug, Serialize)]
pub struct Notice {
    /// The matter's id.
    pub id: String,
    /// Its kind.
    pub kind: MatterKind,
    /// The purchase concerned.
    pub session: Option<SessionId>,
    /// What, what it means for the mails, what to do.
    pub text: String,
}

impl Notice {
    /// The notice of a matter.
    #[must_use]
    pub fn of(matter: &Matter) -> Self {
        Self {
            id: matter.id(),
            kind: matter.kind,
            session: matter.session.clone(),
            text: matter.text.clone(),
        }
    }
}

impl RunReport {
    /// A run that has done nothing yet.
    #[must_use]
    pub fn new(dry_run: bool) -> Self {
        Self {
            schema: RUN,
            now: None,
            dry_run,
            ingested: Counts::default(),
            waiting: Vec::new(),
            mails: Vec::new(),
            closed: Vec::new(),
            marks: Vec::new(),
            notices: Vec::new(),
            stopped_early: None,
            exit: Exit::Done,
            concluded: false,
            held_by: Vec::new(),
            outbox: None,
            not_taken: Vec::new(),
            untold: 0,
        }
    }

    /// An `ingest` that has done nothing yet.
    #[must_use]
    pub fn ingest() -> Self {
        Self { schema: "stepmail-ingest/1", ..Self::new(false) }
    }

    /// Draws the exit code of a run that came to its end: 1 where a person must look, 65 where an input could not be
    /// read, 75 where a mail that is due has not been accepted and the next run tries again.
    pub fn conclude(&mut self) {
        self.concluded = true;
        let held = self.held_by.iter().any(|hold| *hold != Hold::Offline);
        self.exit = if self.is_held_by(Hold::Offline) && !held {
            Exit::Later
        } else if !self.not_taken.is_empty() && !held {
            Exit::Damaged
        } else if held || self.untold > 0 || !self.notices.is_empty() {
            Exit::Look
        } else if self.not_accepted() > 0 || self.stopped_early.is_some() {
            Exit::Later
        } else {
            Exit::Done
        };
        if !self.not_taken.is_empty() {
            let texts = self.stopped_early.iter().chain(&self.not_taken).map(String::as_str);
            self.stopped_early = Some(texts.collect::<Vec<_>>().join("; "));
        }
    }

    /// Notes why not everything was done that is due.
    pub fn stop_early(&mut self, text: &str) {
        self.stopped_early = Some(match self.stopped_early.take() {
            Some(before) => format!("{before}; {text}"),
            None => text.to_owned(),
        });
    }

    fn not_accepted(&self) -> usize {
        let accepted = |mail: &&MailLine| !matches!(mail.result, MailResult::Sent | MailResult::WouldSend);
        self.mails.iter().filter(accepted).count()
    }

    /// Whether this holds the run.
    #[must_use]
    pub fn is_held_by(&self, hold: Hold) -> bool {
        self.held_by.contains(&hold)
    }

    /// Notes what ended the run before its end.
    pub fn fail(&mut self, exit: Exit, text: String) {
        self.exit = exit;
        self.stopped_early = Some(text);
    }

    /// Prints the report.
    pub fn print(&self, style: Style) {
        match style {
            Style::Json => super::print_json(self),
            Style::Text => super::print(|out| self.write_text(out, false)),
            Style::Quiet => super::print(|out| self.write_text(out, true)),
        }
    }

    fn write_text(&self, out: &mut impl Write, quiet: bool) -> io::Result<()> {
        if !quiet {
            self.write_doings(out)?;
        } else if self.not_accepted() > 0 {
            let reason =
                self.mails.iter().rev().find_map(|mail| mail.reason.as_deref()).unwrap_or("no reason given");
            writeln!(
                out,
                "later     {} mail(s) not accepted ({reason}); the next run tries again",
                self.not_accepted()
            )?;
        }
        for notice in &self.notices {
            writeln!(out, "look      {}: {}", notice.kind.name(), notice.text)?;
        }
        if self.untold > 0 {
            writeln!(
                out,
                "look      {} notice(s) to the operator could not be sent; the next run tries again",
                self.untold
            )?;
        }
        for text in &self.not_taken {
            writeln!(out, "look      {text}")?;
        }
        if let Some(text) = &self.stopped_early {
            // Whatever stands above already is not said twice.
            let said = self.notices.iter().map(|notice| &notice.text).chain(&self.not_taken);
            if !said.into_iter().any(|said| text.contains(said)) {
                writeln!(out, "stopped   {text}")?;
            }
        }
        Ok(())
    }

    fn write_doings(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(now) = self.now {
            let dry = if self.dry_run { ", dry run: nothing was sent or written" } else { "" };
            writeln!(out, "stepmail  {now}{dry}")?;
        }
        let counts = &self.ingested;
        let said: Vec<String> = [
            (counts.purchases, if counts.purchases == 1 { "purchase" } else { "purchases" }),
            (counts.history, "from before go-live"),
            (counts.waiting, "waiting"),
            (counts.stops, if counts.stops == 1 { "stop" } else { "stops" }),
            (counts.duplicates, "known already"),
            (counts.ignored, "ignored"),
            (counts.invalid, "invalid"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        if !said.is_empty() {
            writeln!(out, "took in   {}", said.join(", "))?;
        }
        for file in &self.waiting {
            writeln!(out, "waits     {file}  no line break at its end; read when it is 5 minutes old")?;
        }
        for closed in &self.closed {
            writeln!(out, "closed    {:<4} {}  {}", closed.step, closed.session, closed.reason.name())?;
        }
        for mail in &self.mails {
            let reason = mail.reason.as_ref().map_or(String::new(), |reason| format!("  ({reason})"));
            writeln!(
                out,
                "{:<9} {:<4} {}  {}{reason}",
                word(mail.result),
                mail.step,
                mail.session,
                mail.subject
            )?;
        }
        for mark in &self.marks {
            let what = if mark.marked { "marked" } else { "unmarked" };
            writeln!(out, "{what:<9} {}  purchaser in the newsletter", mark.session)?;
        }
        if self.concluded && self.mails.is_empty() && self.stopped_early.is_none() && self.schema == RUN {
            let why = if self.notices.is_empty() { "nothing is due" } else { "no mail left" };
            writeln!(out, "{why}")?;
        }
        if let Some(outbox) =
            self.outbox.as_ref().filter(|_| self.mails.iter().any(|mail| mail.result == MailResult::Sent))
        {
            writeln!(out, "the mails lie in {}", outbox.display())?;
        }
        Ok(())
    }
}

fn word(result: MailResult) -> &'static str {
    match result {
        MailResult::WouldSend => "would go",
        MailResult::Sent => "sent",
        MailResult::Deferred => "deferred",
        MailResult::Refused => "refused",
        MailResult::Unknown => "unknown",
    }
}
