//! Step 5 of a run: per mail render, check, plan, send, record (R8 to R11).
//!
//! The order of the lines is the promise. The plan is durable before the request; the result is durable before the next
//! plan. A process that dies in between leaves a plan, and the next run asks again with the same key and the same
//! bytes.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::{info, info_span, warn};

use crate::clock::Moment;
use crate::domain::decide::{Due, decide};
use crate::domain::fact::Fact;
use crate::domain::ids::{IdempotencyKey, Step};
use crate::domain::ledger::{CloseReason, Frozen, Ledger, Purchase, StepState};
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::outcome::{MailResult, Outcome, StopSending, Streak, settle};
use crate::domain::time::Timestamp;
use crate::mail::{FreezeError, Message, TemplateFault, Values};
use crate::report::run::{Closed, Hold, MailLine, Notice, RunReport};
use crate::store::StoreError;

use super::{Book, SENDING_MAX, Shop, over, raise};

/// How the sending went, as far as the notices must know.
pub(super) struct Sending {
    streak: Streak,
    pub(super) stopped: bool,
    started: Duration,
}

impl Sending {
    /// Whether this run has sent for as long as it may.
    pub(super) fn is_over(&self, shop: &Shop<'_>) -> bool {
        shop.clock.running().saturating_sub(self.started) > SENDING_MAX
    }
}

/// The conditions met in this run.
type Conditions = BTreeSet<(MatterKind, String)>;

/// Why a mail is not even planned.
enum Held {
    Fault(TemplateFault),
    Foreign(String),
    Form(FreezeError),
}

/// Sends what is due, in this order. `braked` says that the brake took mails from the list (R4).
///
/// # Errors
/// [`StoreError`] when a plan or a result could not be recorded: nothing more may be sent then.
pub(super) fn send(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    mails: &[Due],
    braked: bool,
    moment: Moment,
    report: &mut RunReport,
) -> Result<Sending, StoreError> {
    let mut sending = Sending { streak: Streak::default(), stopped: false, started: shop.clock.running() };
    // A quiet run with the built-in templates does not look at them: it is to cost milliseconds.
    let checked = braked || !mails.is_empty() || !shop.templates.are_built_in();
    let mut met = if checked { template_faults(book, shop, moment.now, report)? } else { Conditions::new() };
    let mut prepared = BTreeSet::new();
    if !mails.is_empty() {
        book.room_to_send()?;
    }
    for due in mails {
        let _span = info_span!("mail", session = %due.session, step = %due.step).entered();
        if sending.is_over(shop) {
            report.stopped_early =
                Some("20 minutes of sending are over; what is left waits for the next run".into());
            sending.stopped = true;
        }
        if sending.stopped {
            break;
        }
        let at = shop.clock.later(moment);
        let Some((buyer, purchase)) = book.ledger().buyers.purchase(&due.session) else { continue };
        // Time has passed since the list was made: a window may have ended, and the rules are asked again.
        let still_due = decide(buyer, &shop.policy, at).mail;
        if still_due.is_none_or(|mail| mail.step != due.step || mail.session != due.session) {
            info!("no longer due");
            continue;
        }
        let key = IdempotencyKey::Step(due.session.clone(), due.step);
        let frozen = match prepare(shop, purchase, due, &key, at) {
            Ok(frozen) => frozen,
            Err(held) => {
                let matter = held.matter(due, &met, at);
                met.insert((matter.kind, matter.subject.clone()));
                raise(book, matter, report)?;
                continue;
            }
        };
        prepared.insert(mail_subject(due));
        if book.is_dry() {
            let reason = Some(why(due));
            report.mails.push(MailLine::new(&key, due, MailResult::WouldSend, &frozen.subject, reason));
            continue;
        }
        deliver(book, shop, due, &key, &frozen, at, &mut sending, report)?;
    }
    conditions_over(book, checked, &met, &prepared)?;
    Ok(sending)
}

/// One mail: plan, send, record.
#[expect(clippy::too_many_arguments, reason = "one caller; a struct would only rename the arguments")]
fn deliver(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    due: &Due,
    key: &IdempotencyKey,
    frozen: &Frozen,
    at: Timestamp,
    sending: &mut Sending,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let subject = frozen.subject.clone();
    if due.retry {
        // Written ahead: if this try arrives and the process dies, the two days of R6 must count from it.
        book.record(&[Fact::Unknown { key: key.clone(), at }])?;
    } else {
        book.record(&[Fact::Planned { key: key.clone(), at, message: Box::new(frozen.clone()) }])?;
    }
    book.ready_to_send()?;
    let outcome = shop.transport.send(key, frozen);
    let (outcome, stop) = sending.streak.see(outcome);

    let state =
        book.ledger().buyers.purchase(&due.session).map(|(_, purchase)| purchase.steps.get(due.step).clone());
    let state = state.unwrap_or_else(StepState::pending);
    let settled = settle(key, &state, due.retry, shop.policy.retention, &outcome, at);
    let mut line = MailLine::new(key, due, settled.result, &subject, reason_of(&outcome));
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
        Some(StopSending::Account(reason)) => {
            sending.stopped = true;
            report.held_by.push(Hold::Account);
            let text = format!(
                "the mail service refuses this account: {reason}; what is due waits for the next run"
            );
            report.stopped_early = Some(text.clone());
            raise(book, Matter::new(MatterKind::Account, shop.transport.name(), at, None, text), report)?;
        }
        Some(StopSending::Trouble(reason)) => {
            sending.stopped = true;
            report.stopped_early = Some(format!(
                "five attempts in a row got no clear answer ({reason}); what is left waits for the next run"
            ));
        }
        None if matches!(outcome, Outcome::Accepted { .. }) => {
            over(book, MatterKind::Account, shop.transport.name())?;
        }
        None => {}
    }
    Ok(())
}

/// The message of an open plan, byte for byte; else a new one, rendered and checked (R11).
fn prepare(
    shop: &Shop<'_>,
    purchase: &Purchase,
    due: &Due,
    key: &IdempotencyKey,
    at: Timestamp,
) -> Result<Frozen, Held> {
    if let StepState::Planned { message, .. } = purchase.steps.get(due.step) {
        if message.via != shop.transport.name() {
            return Err(Held::Foreign(message.via.clone()));
        }
        return Ok((**message).clone());
    }
    let language = shop.templates.language(purchase.locale.as_deref(), shop.mail.language);
    let mut of_purchase = purchase.vars.clone();
    of_purchase.insert("name".to_owned(), purchase.name.clone().unwrap_or_default());
    let values = Values::new(shop.values_for(language), &of_purchase);
    let rendered = shop.templates.render(due.step, language, &values).map_err(Held::Fault)?;
    let message = Message {
        key: key.clone(),
        date: at,
        from: shop.mail.from.clone(),
        reply_to: shop.mail.reply_to.clone(),
        to: purchase.email.clone(),
        subject: rendered.subject,
        text: rendered.text,
        html: rendered.html,
    };
    shop.transport.freeze(&message).map_err(Held::Form)
}

impl Held {
    fn matter(&self, due: &Due, met: &Conditions, now: Timestamp) -> Matter {
        let session = Some(due.session.clone());
        match self {
            // A fault that is in the template itself is one matter, however many buyers wait for it.
            Self::Fault(fault) if met.contains(&(MatterKind::TemplateFault, fault.subject())) => {
                template_matter(fault, now)
            }
            Self::Fault(fault) => held_matter(due, fault, now),
            Self::Form(error) => held_matter(due, error, now),
            Self::Foreign(via) => {
                let key = IdempotencyKey::Step(due.session.clone(), due.step);
                let text = format!(
                    "{} of session {} was planned through `{via}` and may have left that way; it is not sent through \
                     another mail service; set the transport back, or look for it there and say what you found: `stepmail \
                     resolve {key} --sent` or `stepmail resolve {key} --not-sent`",
                    due.step, due.session
                );
                Matter::new(MatterKind::ForeignPlan, &mail_subject(due), now, session, text)
            }
        }
    }
}

/// What a matter about one mail is called.
fn mail_subject(due: &Due) -> String {
    format!("{}.{}", due.session, due.step)
}

/// A mail that cannot be made for this buyer.
fn held_matter(due: &Due, why: &dyn std::fmt::Display, now: Timestamp) -> Matter {
    let with_it = if due.step == Step::D0 { ", and this buyer's later mails with it" } else { "" };
    let text = format!("{why}; {} of session {} is held until it is mended{with_it}", due.step, due.session);
    Matter::new(MatterKind::TemplateFault, &mail_subject(due), now, Some(due.session.clone()), text)
}

fn template_matter(fault: &TemplateFault, now: Timestamp) -> Matter {
    let text = format!("{fault}; mails from it are held until it is mended, the others go on");
    Matter::new(MatterKind::TemplateFault, &fault.subject(), now, None, text)
}

/// The names that open purchases bring for templates; a template may use them beside the settings' own.
#[must_use]
pub fn names_brought(ledger: &Ledger) -> BTreeSet<String> {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let open = purchases.filter(|purchase| purchase.steps.iter().any(|(_, state)| state.is_open()));
    open.flat_map(|purchase| purchase.vars.keys().cloned()).collect()
}

/// R11, C040: all templates are looked at before the first send, so that a fault is known before its step is due.
fn template_faults(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<Conditions, StoreError> {
    let mut faults = Conditions::new();
    let values = |language| shop.values_for(language).clone();
    let brought = names_brought(book.ledger());
    for fault in shop.templates.faults_offered(shop.mail.language, values, &brought) {
        let matter = template_matter(&fault, now);
        faults.insert((matter.kind, matter.subject.clone()));
        raise(book, matter, report)?;
    }
    Ok(faults)
}

/// Conditions that were looked for and not met again are over; if they come back they are told again. A mail that this
/// run did not come to is not looked for.
fn conditions_over(
    book: &mut dyn Book,
    templates_checked: bool,
    met: &Conditions,
    prepared: &BTreeSet<String>,
) -> Result<(), StoreError> {
    let ledger = book.ledger();
    let is_settled = |matter: &Matter| {
        let step = matter.subject.rsplit_once('.').and_then(|(_, step)| step.parse::<Step>().ok());
        let purchase = matter.session.as_ref().and_then(|session| ledger.buyers.purchase(session));
        matches!((step, purchase), (Some(step), Some((_, purchase))) if !purchase.steps.get(step).is_open())
    };
    let ended: Vec<Fact> = ledger
        .matters
        .iter()
        .filter(|matter| matches!(matter.kind, MatterKind::TemplateFault | MatterKind::ForeignPlan))
        .filter(|matter| !met.contains(&(matter.kind, matter.subject.clone())))
        .filter(|matter| match matter.session {
            None => templates_checked,
            Some(_) => prepared.contains(&matter.subject) || is_settled(matter),
        })
        .map(|matter| Fact::MatterOver { kind: matter.kind, subject: matter.subject.clone() })
        .collect();
    if ended.is_empty() { Ok(()) } else { book.record(&ended) }
}

fn reason_of(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Accepted { .. } => None,
        Outcome::NotSent { reason, .. }
        | Outcome::RefusedMail { reason }
        | Outcome::RefusedAccount { reason }
        | Outcome::Unknown { reason }
        | Outcome::Conflict { reason } => Some(reason.clone()),
    }
}

/// Why a mail is due, for the dry run.
fn why(due: &Due) -> String {
    match (due.retry, due.closes) {
        (true, _) => "an earlier attempt has no known result: the same mail with the same key".to_owned(),
        (false, None) => format!("paid at {}", due.paid_at),
        (false, Some(closes)) => format!("paid at {}, window until {closes}", due.paid_at),
    }
}
