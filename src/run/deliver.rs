//! One mail: plan, send, record (R8, R9).
//!
//! The order of the lines is the promise. The plan is durable before the request; the result is durable before the next
//! plan. A process that dies in between leaves a plan, and the next run asks again with the same key and the same
//! bytes.

use std::time::Duration;

use tracing::{info, warn};

use crate::clock::Moment;
use crate::domain::decide::Due;
use crate::domain::fact::Fact;
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::{CloseReason, Frozen, StepState};
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::outcome::{MailResult, Outcome, Retries, StopSending, settle};
use crate::domain::policy::{RETENTION_MARGIN, Retention};
use crate::domain::time::Timestamp;
use crate::domain::truth::{Question, Truth};
use crate::http::jitter;
use crate::report::run::{Closed, Hold, MailLine, Notice, RunReport};
use crate::store::StoreError;

use super::listing::Listing;
use super::pause::pause;
use super::send::{Sending, is_still_due};
use super::{Book, Shop, over, raise, truth};

/// A mail that may leave now.
pub(super) struct Mail<'a> {
    /// Why.
    pub(super) due: &'a Due,
    /// Its key.
    pub(super) key: &'a IdempotencyKey,
    /// Its bytes, the same at every try.
    pub(super) frozen: &'a Frozen,
    /// When this run read the clock.
    pub(super) moment: Moment,
}

/// Sends one mail, and writes down what became of it.
///
/// # Errors
/// [`StoreError`]: a plan or a result could not be recorded, and nothing more may be sent.
pub(super) fn deliver(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    mail: &Mail<'_>,
    sending: &mut Sending,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let Mail { due, key, frozen, .. } = mail;
    let (outcome, at) = try_it(book, shop, mail, sending.until)?;
    let (outcome, stop) = sending.streak.see(look_for_it(book, shop, mail, outcome, at)?);

    let state =
        book.ledger().buyers.purchase(&due.session).map(|(_, purchase)| purchase.steps.get(due.step).clone());
    let state = state.unwrap_or_else(StepState::pending);
    let settled = settle(key, &state, due.retry, shop.policy.retention, &outcome, at);
    let mut line = MailLine::new(key, due, settled.result, &frozen.subject, reason_of(&outcome));
    if let Outcome::Accepted { message_id } = &outcome {
        line.message_id = Some(message_id.clone());
        info!(%key, "mail accepted");
    } else {
        warn!(%key, result = ?settled.result, reason = line.reason.as_deref(), "mail not accepted");
    }
    report.mails.push(line);
    let mut facts = settled.facts;
    if let Some(reason) = settled.closed {
        report.closed.push(Closed { session: due.session.clone(), step: due.step, reason });
        let matter = match reason {
            CloseReason::Rejected => {
                Matter::rejected(&due.session, due.step, &reason_of(&outcome).unwrap_or_default(), at)
            }
            _ => Matter::unknown_result(&due.session, due.step, state.open_attempt().as_ref(), at),
        };
        // In one append: a step that is closed, by a process that dies before it says so, would never be told.
        if book.ledger().matter(matter.kind, &matter.subject).is_none() {
            report.notices.push(Notice::of(&matter));
            facts.push(Fact::Matter { matter: Box::new(matter) });
        }
    }
    if !facts.is_empty() {
        book.record(&facts).map_err(|error| error.after_answer(key, settled.result == MailResult::Sent))?;
    }
    match stop {
        Some(stop) => stop_sending(book, shop, stop, at, sending, report)?,
        None if matches!(outcome, Outcome::Accepted { .. }) => {
            over(book, MatterKind::Account, shop.transport.name())?;
        }
        None => {}
    }
    Ok(())
}

/// Tries, and where the answer promises something within seconds, tries again: the same key, the same bytes. Returns
/// the last outcome and the time of its try.
fn try_it(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    mail: &Mail<'_>,
    until: Duration,
) -> Result<(Outcome, Timestamp), StoreError> {
    let Mail { due, key, frozen, moment } = mail;
    let (key, mut retries) = (*key, Retries::default());
    let mut at = shop.clock.later(*moment);
    let mut may_have_left = due.retry;
    loop {
        if may_have_left {
            // Written ahead: if this try arrives and the process dies, the two days of R6 must count from it.
            book.record(&[Fact::Unknown { key: key.clone(), at }])?;
        } else {
            book.record(&[Fact::Planned { key: key.clone(), at, message: Box::new((*frozen).clone()) }])?;
        }
        book.ready_to_send()?;
        let outcome = shop.transport.send(key, frozen);
        let wait = if shop.transport.tries_again_soon() { retries.after(&outcome, jitter()) } else { None };
        let Some(wait) = wait else { return Ok((outcome, at)) };
        warn!(%key, reason = reason_of(&outcome).as_deref(), seconds = wait.as_secs_f64(), "tried again soon");
        // It is on record with the next try, or with the last outcome; until then the plan itself says so.
        may_have_left |= matches!(outcome, Outcome::Unknown { .. });
        if !pause(book, shop, wait.max(shop.transport.delay()), until)? {
            return Ok((outcome, at));
        }
        let later = shop.clock.later(*moment);
        // Its window may have ended meanwhile, or the time in which the service remembers the key.
        if !is_still_due(book.ledger(), shop, due, later) {
            return Ok((outcome, at));
        }
        at = later;
    }
}

/// A conflict says that an earlier body was taken under this key. Where the service can be asked for it, it was sent.
fn look_for_it(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    mail: &Mail<'_>,
    outcome: Outcome,
    at: Timestamp,
) -> Result<Outcome, StoreError> {
    let (Outcome::Conflict { .. }, Retention::For(memory)) = (&outcome, shop.policy.retention) else {
        return Ok(outcome);
    };
    let question = Question::of(book.ledger(), &mail.due.session, mail.due.step, shop.transport.name());
    let Some(mut question) = question else { return Ok(outcome) };
    // It was taken whenever the key is remembered from, which may be before this plan.
    question.first_at = question.first_at.min(at - memory - RETENTION_MARGIN);
    let mut listing = Listing::of(shop);
    Ok(match truth::ask_about(book, shop, listing.as_mut(), &question, at)? {
        Truth::Sent { id, .. } => Outcome::Accepted { message_id: id },
        Truth::NotSent | Truth::NotYet | Truth::NotKnown(_) => outcome,
    })
}

/// Notes that nothing more is sent in this run, and tells a human where one must act.
fn stop_sending(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    stop: StopSending,
    at: Timestamp,
    sending: &mut Sending,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    sending.stopped = true;
    match stop {
        StopSending::Account(reason) => {
            report.held_by.push(Hold::Account);
            let text = format!(
                "the mail service refuses this account: {reason}; what is due waits for the next run"
            );
            report.stop_early(&text);
            raise(book, Matter::new(MatterKind::Account, shop.transport.name(), at, None, text), report)?;
        }
        StopSending::Trouble(reason) => report.stop_early(&format!(
            "five attempts in a row got no clear answer ({reason}); what is left waits for the next run"
        )),
        StopSending::Wait(span) => report.stop_early(&format!(
            "the mail service asks to wait until {}; what is left waits for the next run after that",
            at + span
        )),
    }
    Ok(())
}

pub(super) fn reason_of(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Accepted { .. } => None,
        Outcome::NotSent { reason, .. }
        | Outcome::RefusedMail { reason }
        | Outcome::RefusedAccount { reason }
        | Outcome::Unknown { reason, .. }
        | Outcome::Conflict { reason } => Some(reason.clone()),
    }
}
