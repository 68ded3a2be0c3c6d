//! `mark-stopped`, `mark-started`, `mark-repurchase`: a hand sets a flag, and the next run draws the consequences.

use std::io::{self, Write};

use serde::Serialize;

use crate::cli::Hand;
use crate::clock::Clock;
use crate::domain::decide::{Closing, decide};
use crate::domain::fact::{Fact, Whom};
use crate::domain::ledger::{Kind, Ledger, MarkKind, Waiting};
use crate::exit::Exit;
use crate::report::{Style, print, print_json};

use super::{Place, said};

#[derive(Serialize)]
struct MarkReport {
    schema: &'static str,
    ledger: String,
    mark: MarkKind,
    known: bool,
    changed: bool,
    next_run_closes: Vec<String>,
    exit: Exit,
}

pub(super) fn mark(
    kind: MarkKind,
    hand: &Hand,
    place: &Place,
    style: Style,
    clock: &Clock,
) -> anyhow::Result<Exit> {
    let mut book = place.lock(hand.wait.seconds, clock, style)?;
    let now = clock.now();
    let known = match &hand.who {
        Whom::Address(address) => {
            book.ledger().buyers.get(&address.buyer()).is_some_and(|buyer| !buyer.purchases.is_empty())
        }
        Whom::Session(session) => {
            let waits = |waiting: &Waiting| waiting.checkout.session == *session;
            book.ledger().buyers.purchase(session).is_some() || book.ledger().waiting.iter().any(waits)
        }
    };
    let changed = !is_set(book.ledger(), &hand.who, kind);
    if changed {
        let reason = hand
            .reason
            .as_deref()
            .map(one_line)
            .or_else(|| (kind == MarkKind::Stopped).then(|| "asked".into()));
        book.record(&[Fact::Marked { whom: hand.who.clone(), mark: kind, at: now, reason, event: None }])?;
    }
    let closings: Vec<Closing> = match &hand.who {
        Whom::Address(address) => book.ledger().buyers.get(&address.buyer()),
        Whom::Session(session) => book.ledger().buyers.purchase(session).map(|(buyer, _)| buyer),
    }
    .map_or(Vec::new(), |buyer| decide(buyer, &place.policy, now).closings);
    let ledger = place.store()?.path().display().to_string();
    book.finish(None)?;

    let report = MarkReport {
        schema: "stepmail-mark/1",
        ledger,
        mark: kind,
        known,
        changed,
        next_run_closes: closings
            .iter()
            .map(|closing| format!("{} of {}: {}", closing.step, closing.session, closing.reason.name()))
            .collect(),
        exit: if known { Exit::Done } else { Exit::Look },
    };
    match style {
        Style::Json => print_json(&report),
        Style::Text | Style::Quiet => print(|out| report.say(out, &hand.who, style)),
    }
    Ok(report.exit)
}

impl MarkReport {
    fn say(&self, out: &mut impl Write, whom: &Whom, style: Style) -> io::Result<()> {
        let who = said(whom);
        let what = match (self.mark, whom) {
            (MarkKind::Stopped, _) => "stopped",
            (MarkKind::Started, _) => "started",
            (MarkKind::Repurchase, Whom::Session(_)) => "a repurchase",
            (MarkKind::Repurchase, Whom::Address(_)) => "a buyer from before this ledger",
        };
        if !self.known {
            return writeln!(
                out,
                "{who} is not in {}; noted for the future: when it comes it is {what}. Check the spelling and the ledger.",
                self.ledger
            );
        }
        if style == Style::Quiet {
            return Ok(());
        }
        writeln!(
            out,
            "{who} is {what}{}",
            if self.changed { "" } else { " (it was before; nothing changed)" }
        )?;
        for closing in &self.next_run_closes {
            writeln!(out, "the next run closes {closing}")?;
        }
        if self.next_run_closes.is_empty() {
            writeln!(out, "the next run has nothing to close for it")?;
        }
        Ok(())
    }
}

/// Whether the flag is set already: twice is once.
fn is_set(ledger: &Ledger, whom: &Whom, kind: MarkKind) -> bool {
    match whom {
        Whom::Address(address) => ledger.buyers.get(&address.buyer()).is_some_and(|buyer| match kind {
            MarkKind::Stopped => buyer.stopped.is_some(),
            MarkKind::Started => buyer.started.is_some(),
            MarkKind::Repurchase => buyer.bought_before.is_some(),
        }),
        Whom::Session(session) => match ledger.buyers.purchase(session) {
            Some((_, purchase)) => match kind {
                MarkKind::Stopped => purchase.stopped.is_some(),
                MarkKind::Started => purchase.started.is_some(),
                MarkKind::Repurchase => {
                    purchase.kind == Kind::Repurchase || purchase.marked_repurchase.is_some()
                }
            },
            None if kind == MarkKind::Stopped => {
                ledger.loose_stops.iter().any(|stop| stop.session.as_ref() == Some(session))
            }
            None => ledger.loose_marks.iter().any(|mark| mark.session == *session && mark.mark == kind),
        },
    }
}

fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}
