//! The whole story of one buyer or purchase: `show`.

use std::io::{self, Write};

use serde::Serialize;

use crate::domain::fact::Whom;
use crate::domain::ids::SessionId;
use crate::domain::ledger::{Buyer, Ledger, Purchase, Waiting};
use crate::domain::matter::Matter;
use crate::domain::policy::Policy;
use crate::domain::time::Timestamp;

use super::status::{PurchaseLine, buyer_flags, waits_for};

/// One buyer with all purchases, or one purchase.
#[derive(Debug, Serialize)]
pub struct ShowReport {
    schema: &'static str,
    now: Timestamp,
    address: Option<String>,
    /// What holds for the person: `buyer stopped (asked)`.
    flags: Vec<String>,
    purchases: Vec<PurchaseLine>,
    /// What is known of sessions that are no purchases yet.
    noted: Vec<String>,
    matters: Vec<String>,
}

impl ShowReport {
    /// The story of whom is asked for; none if the ledger knows nothing of them.
    #[must_use]
    pub fn of(ledger: &Ledger, whom: &Whom, policy: &Policy, now: Timestamp) -> Option<Self> {
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
            schema: "stepmail-show/1",
            now,
            address: buyer.map(|buyer| buyer.address.to_string()),
            flags: buyer.map_or(Vec::new(), |buyer| buyer_flags(buyer).collect()),
            matters: ledger.matters.iter().filter(about).map(|m| format!("{}  {}", m.at, m.text)).collect(),
            purchases: purchases.iter().map(|(buyer, p)| with_outcome(buyer, p, policy, now)).collect(),
            noted,
        })
    }

    /// Writes it for people.
    ///
    /// # Errors
    /// The output is closed or full.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(address) = &self.address {
            write!(out, "{address}")?;
            for flag in &self.flags {
                write!(out, ", {flag}")?;
            }
            writeln!(out)?;
        }
        if self.purchases.is_empty() {
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
        Ok(())
    }
}

/// R16: one whose outcome is not noted has none that is known.
fn with_outcome(buyer: &Buyer, purchase: &Purchase, policy: &Policy, now: Timestamp) -> PurchaseLine {
    let mut line = PurchaseLine::of(buyer, purchase, policy, now);
    if buyer.outcome.is_none() && purchase.outcome.is_none() {
        line.flags.push("outcome: unknown".to_owned());
    }
    line
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
            None => format!("{session} is stopped when it comes (noted {})", stop.at),
            Some(lifted) => format!("{session} had a stop (noted {}) that was lifted {lifted}", stop.at),
        })
    });
    let marks = ledger.loose_marks.iter().filter(|mark| is_theirs(&mark.session));
    let marks = marks.map(|mark| format!("{} is marked when it comes (noted {})", mark.session, mark.at));
    waiting.chain(stops).chain(marks).collect()
}
