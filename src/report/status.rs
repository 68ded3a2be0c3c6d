//! Where every purchase stands and what comes next: `status`.

use std::io::{self, Write};

use serde::Serialize;

use crate::domain::decide::{Verdict, Wait, verdict};
use crate::domain::guard::Held;
use crate::domain::ids::{IdempotencyKey, SessionId, Step};
use crate::domain::ledger::{Buyer, CloseReason, Kind, Ledger, Mark, Purchase, StepState, WaitingFor};
use crate::domain::policy::Policy;
use crate::domain::time::{Seconds, Timestamp};

/// A purchase younger than this is listed even if all its steps are settled.
const RECENT: Seconds = Seconds::days(30);

/// The whole answer.
#[derive(Debug, Serialize)]
pub struct StatusReport {
    schema: &'static str,
    ledger: String,
    now: Timestamp,
    go_live: Timestamp,
    last_run: Option<Timestamp>,
    buyers: usize,
    purchases: usize,
    not_listed: usize,
    listed: Vec<PurchaseLine>,
    waiting: Vec<WaitingLine>,
    noted_for_the_future: usize,
    matters: Vec<MatterLine>,
    held: Vec<String>,
}

/// One purchase.
#[derive(Debug, Serialize)]
pub struct PurchaseLine {
    /// The session.
    pub session: SessionId,
    /// The buyer, masked.
    pub buyer: String,
    /// When it was paid.
    pub paid_at: Timestamp,
    /// First, repurchase or history.
    pub kind: Kind,
    /// Flags, for people: `stopped (asked)`.
    pub flags: Vec<String>,
    /// The four steps.
    pub steps: Vec<StepLine>,
}

/// One step.
#[derive(Debug, Serialize)]
pub struct StepLine {
    /// Which.
    pub step: Step,
    /// `pending`, `planned`, `sent` or `closed`.
    pub state: &'static str,
    /// What that means and what comes next.
    pub says: String,
}

#[derive(Debug, Serialize)]
struct WaitingLine {
    session: SessionId,
    since: Timestamp,
    waits_for: WaitingFor,
}

#[derive(Debug, Serialize)]
struct MatterLine {
    id: String,
    at: Timestamp,
    told: bool,
    /// Told, it asks for nothing more.
    #[serde(skip)]
    news: bool,
    text: String,
}

impl StatusReport {
    /// Looks at a ledger at `now`; `held` are the guards that would hold a run, `all` lists settled purchases and old
    /// news too.
    #[must_use]
    pub fn of(
        ledger: &Ledger,
        path: &str,
        policy: &Policy,
        held: Vec<Held>,
        last_run: Option<Timestamp>,
        now: Timestamp,
        all: bool,
    ) -> Self {
        let purchases: Vec<(&Buyer, &Purchase)> = ledger
            .buyers
            .all()
            .iter()
            .flat_map(|buyer| buyer.purchases.iter().map(move |p| (buyer, p)))
            .collect();
        let is_listed = |purchase: &Purchase| {
            all || now - purchase.paid_at < RECENT || purchase.steps.iter().any(|(_, state)| state.is_open())
        };
        let listed: Vec<PurchaseLine> = purchases
            .iter()
            .filter(|(_, purchase)| is_listed(purchase))
            .map(|(buyer, purchase)| PurchaseLine::of(buyer, purchase, policy, now))
            .collect();
        Self {
            schema: "stepmail-status/1",
            ledger: path.to_owned(),
            now,
            go_live: ledger.go_live,
            last_run,
            buyers: ledger.buyers.len(),
            purchases: purchases.len(),
            not_listed: purchases.len() - listed.len(),
            listed,
            held: held.into_iter().map(|guard| guard.text).collect(),
            noted_for_the_future: ledger.loose_stops.iter().filter(|stop| stop.is_in_force()).count()
                + ledger.loose_marks.len()
                + ledger.buyers.all().iter().filter(|buyer| buyer.purchases.is_empty()).count(),
            waiting: ledger
                .waiting
                .iter()
                .map(|waiting| WaitingLine {
                    session: waiting.checkout.session.clone(),
                    since: waiting.since,
                    waits_for: waiting.why,
                })
                .collect(),
            matters: ledger
                .matters
                .iter()
                .filter(|matter| {
                    all || matter.is_unsettled() || matter.notice.is_open() || now - matter.at < RECENT
                })
                .map(|matter| MatterLine {
                    id: matter.id(),
                    at: matter.at,
                    told: !matter.notice.is_open(),
                    news: !matter.is_unsettled(),
                    text: matter.text.clone(),
                })
                .collect(),
        }
    }

    /// Writes what a person must see: what holds the next run, and what is not told or not settled.
    ///
    /// # Errors
    /// The output is closed or full.
    pub fn write_quiet(&self, out: &mut impl Write) -> io::Result<()> {
        for guard in &self.held {
            writeln!(out, "the next run is held: {guard}")?;
        }
        for matter in self.matters.iter().filter(|matter| !(matter.told && matter.news)) {
            writeln!(out, "{}  {}", matter.at, matter.text)?;
        }
        Ok(())
    }

    /// Writes it for people.
    ///
    /// # Errors
    /// The output is closed or full.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let last = self.last_run.map_or("never".to_owned(), |at| at.to_string());
        writeln!(
            out,
            "{}: buyers {}, purchases {}; live since {}, last run {last}",
            self.ledger, self.buyers, self.purchases, self.go_live
        )?;
        for guard in &self.held {
            writeln!(out, "\nthe next run is held: {guard}")?;
        }
        for purchase in &self.listed {
            writeln!(out)?;
            purchase.write_text(out)?;
        }
        if self.not_listed > 0 {
            let settled = if self.not_listed == 1 { "purchase is" } else { "purchases are" };
            writeln!(out, "\nsettled long ago: {} {settled} not listed (--all lists them)", self.not_listed)?;
        }
        if !self.waiting.is_empty() {
            writeln!(out, "\nnot purchases yet:")?;
            for waiting in &self.waiting {
                writeln!(
                    out,
                    "  {}  since {}, waits for {}",
                    waiting.session,
                    waiting.since,
                    waits_for(waiting.waits_for)
                )?;
            }
        }
        if self.noted_for_the_future > 0 {
            writeln!(
                out,
                "\nstops and marks of people and purchases that are not known yet: {}",
                self.noted_for_the_future
            )?;
        }
        if !self.matters.is_empty() {
            writeln!(out, "\nfor you to know:")?;
            for matter in &self.matters {
                let told = if matter.told { "" } else { " (not told yet)" };
                writeln!(out, "  {}{told}  {}", matter.at, matter.text)?;
            }
        }
        Ok(())
    }
}

/// What a purchase is, in words.
pub(super) fn in_words(kind: Kind) -> &'static str {
    match kind {
        Kind::First => "first purchase",
        Kind::Repurchase => "repurchase",
        Kind::History => "from before go-live",
    }
}

/// What a checkout waits for, in words.
pub(super) fn waits_for(why: WaitingFor) -> &'static str {
    match why {
        WaitingFor::Payment => "its payment",
        WaitingFor::Address => "a usable address",
        WaitingFor::ItsDate => "its date, which lies ahead",
        WaitingFor::Items => "word of what was bought",
    }
}

impl PurchaseLine {
    /// One purchase of a buyer at `now`.
    #[must_use]
    pub fn of(buyer: &Buyer, purchase: &Purchase, policy: &Policy, now: Timestamp) -> Self {
        let steps = Step::ALL
            .into_iter()
            .map(|step| StepLine {
                step,
                state: state_name(purchase.steps.get(step)),
                says: says(buyer, purchase, step, policy, now),
            })
            .collect();
        Self {
            session: purchase.session.clone(),
            buyer: buyer.address.masked(),
            paid_at: purchase.paid_at,
            kind: purchase.kind,
            flags: flags(buyer, purchase),
            steps,
        }
    }

    /// Writes it for people.
    ///
    /// # Errors
    /// The output is closed or full.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let kind = in_words(self.kind);
        write!(out, "{}  {}  {kind}, paid {}", self.session, self.buyer, self.paid_at)?;
        for flag in &self.flags {
            write!(out, ", {flag}")?;
        }
        writeln!(out)?;
        for line in &self.steps {
            writeln!(out, "  {:<4} {}", line.step, line.says)?;
        }
        Ok(())
    }
}

fn flags(buyer: &Buyer, purchase: &Purchase) -> Vec<String> {
    let marks = [
        ("stopped", &purchase.stopped),
        ("started", &purchase.started),
        ("marked as repurchase", &purchase.marked_repurchase),
        ("outcome: reached", &purchase.outcome),
    ];
    buyer_flags(buyer).chain(marks.into_iter().filter_map(said)).collect()
}

/// What holds for a person, for people.
pub(super) fn buyer_flags(buyer: &Buyer) -> impl Iterator<Item = String> {
    let marks = [
        ("buyer stopped", &buyer.stopped),
        ("buyer paused", &buyer.paused),
        ("buyer started", &buyer.started),
        ("bought before", &buyer.bought_before),
        ("outcome: reached", &buyer.outcome),
    ];
    marks.into_iter().filter_map(said)
}

fn said((name, mark): (&str, &Option<Mark>)) -> Option<String> {
    let mark = mark.as_ref()?;
    let reason = mark.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
    Some(format!("{name}{reason}"))
}

fn state_name(state: &StepState) -> &'static str {
    match state {
        StepState::Pending { .. } => "pending",
        StepState::Planned { .. } => "planned",
        StepState::Sent { .. } => "sent",
        StepState::Closed { .. } => "closed",
    }
}

/// What a person can do about a step that waits for their word.
pub(super) fn to_settle(session: &SessionId, step: Step, state: &StepState) -> Option<String> {
    let key = IdempotencyKey::Step(session.clone(), step);
    match state {
        StepState::Closed { reason: CloseReason::UnknownResult, .. } => {
            Some(format!("to settle it: `stepmail resolve {key} --sent` or `--not-sent`"))
        }
        StepState::Closed { reason: CloseReason::Rejected, .. } => {
            Some(format!("to try it again: `stepmail resolve {key} --not-sent`"))
        }
        _ => None,
    }
}

/// What one step's state means, and what comes next and when.
pub(super) fn says(
    buyer: &Buyer,
    purchase: &Purchase,
    step: Step,
    policy: &Policy,
    now: Timestamp,
) -> String {
    let state = purchase.steps.get(step);
    match state {
        StepState::Sent { at, via, .. } => return format!("sent {at} ({via})"),
        StepState::Closed { at, reason, attempt } => {
            let maybe = attempt.as_ref().map_or(String::new(), |attempt| {
                format!("; an attempt at {} may have arrived", attempt.last_at)
            });
            let settle =
                to_settle(&purchase.session, step, state).map_or(String::new(), |s| format!("; {s}"));
            return format!("closed {at}: {}{maybe}{settle}", reason.name());
        }
        StepState::Pending { .. } | StepState::Planned { .. } => {}
    }
    let next = match verdict(buyer, purchase, step, policy, now) {
        Verdict::Close(reason) => format!("the next run closes it: {}", reason.name()),
        Verdict::Due { retry: false } => "due; a buyer gets one mail per run".to_owned(),
        Verdict::Due { retry: true } => "the next run tries the same mail with the same key".to_owned(),
        Verdict::Wait(Wait::Window(opens)) => format!("from {opens}"),
        Verdict::Wait(Wait::Spacing(free)) => format!("from {free}: two days after the mail before"),
        Verdict::Wait(Wait::UnsentD0) => "after d0 has been sent".to_owned(),
        Verdict::Wait(Wait::Paused) => "paused: a person must read a reply first".to_owned(),
        Verdict::Settled => String::new(),
    };
    match state.open_attempt() {
        Some(attempt) => format!("planned, result unknown since {}; {next}", attempt.first_at),
        None => match state.refusals() {
            Some(refused) => format!("refused {} time(s) ({}); {next}", refused.count, refused.reason),
            None => next,
        },
    }
}
