//! What `check` found: a line per thing that was looked at.

use std::io::{self, Write};

use serde::Serialize;

use super::Style;
use crate::domain::time::Timestamp;
use crate::exit::Exit;

/// The whole answer.
#[derive(Debug, Serialize)]
pub struct CheckReport {
    schema: &'static str,
    now: Timestamp,
    lines: Vec<Line>,
    /// 0 where there is no fault, else the code that a run would end with for the first one.
    pub exit: Exit,
}

#[derive(Debug, Serialize)]
struct Line {
    item: Item,
    verdict: Verdict,
    text: String,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// `stepmail.toml`.
    Settings,
    /// The mail service.
    Mail,
    /// The payment service.
    Stripe,
    /// Whether the newsletter's contacts can be read.
    Newsletter,
    /// Where the ledger lies, and whose it is.
    Folder,
    /// The state folder.
    State,
    /// Who works on the ledger.
    Lock,
    /// Ledger and journal.
    Ledger,
    /// The machine's clock.
    Clock,
    /// The room on the ledger's disk.
    Disk,
    /// The texts.
    Templates,
    /// Where other programs put events.
    Spool,
    /// Where mails go.
    Outbox,
    /// When the last run was.
    LastRun,
    /// What a person should know.
    Matters,
}

impl Item {
    const fn name(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Mail => "mail",
            Self::Stripe => "stripe",
            Self::Newsletter => "newsletter",
            Self::Folder => "folder",
            Self::State => "state",
            Self::Lock => "lock",
            Self::Ledger => "ledger",
            Self::Clock => "clock",
            Self::Disk => "disk",
            Self::Templates => "templates",
            Self::Spool => "spool",
            Self::Outbox => "outbox",
            Self::LastRun => "last run",
            Self::Matters => "matters",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Skipped,
    Warning,
    Fault,
}

impl CheckReport {
    /// Nothing looked at yet.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { schema: "stepmail-check/1", now, lines: Vec::new(), exit: Exit::Done }
    }

    /// As it should be.
    pub fn ok(&mut self, item: Item, text: impl Into<String>) {
        self.lines.push(Line { item, verdict: Verdict::Ok, text: text.into() });
    }

    /// It could not be looked at, for a reason that was told as a fault.
    pub fn skip(&mut self, item: Item, text: impl Into<String>) {
        self.lines.push(Line { item, verdict: Verdict::Skipped, text: text.into() });
    }

    /// Runs go on, but a person should know; `text` says what to do.
    pub fn warn(&mut self, item: Item, text: impl Into<String>) {
        self.lines.push(Line { item, verdict: Verdict::Warning, text: text.into() });
    }

    /// A run would do less than it should, and end with `exit`; `text` says what to do.
    pub fn fault(&mut self, item: Item, exit: Exit, text: impl Into<String>) {
        if self.exit == Exit::Done {
            self.exit = exit;
        }
        self.lines.push(Line { item, verdict: Verdict::Fault, text: text.into() });
    }

    /// Whether a fault of this item was found.
    #[must_use]
    pub fn has_fault(&self, item: Item) -> bool {
        self.lines.iter().any(|line| line.item == item && line.verdict == Verdict::Fault)
    }

    /// Prints it.
    pub fn print(&self, style: Style) {
        match style {
            Style::Json => super::print_json(self),
            Style::Text => super::print(|out| self.write_text(out, false)),
            Style::Quiet => super::print(|out| self.write_text(out, true)),
        }
    }

    fn write_text(&self, out: &mut impl Write, quiet: bool) -> io::Result<()> {
        for line in
            self.lines.iter().filter(|line| !quiet || !matches!(line.verdict, Verdict::Ok | Verdict::Skipped))
        {
            let verdict = match line.verdict {
                Verdict::Ok => "ok",
                Verdict::Skipped => "-",
                Verdict::Warning => "warning",
                Verdict::Fault => "fault",
            };
            writeln!(out, "{verdict:<8} {:<10} {}", line.item.name(), line.text)?;
        }
        Ok(())
    }
}
