//! Step 5 of a run: which mails, in which order, and what each says (R6, R11). The sending of one is `deliver`'s.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::{info, info_span};

use crate::clock::Moment;
use crate::domain::decide::{Due, decide};
use crate::domain::fact::Fact;
use crate::domain::ids::{IdempotencyKey, Step};
use crate::domain::ledger::{Frozen, Ledger, Purchase, StepState};
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::outcome::{MailResult, Streak};
use crate::domain::time::Timestamp;
use crate::mail::{FreezeError, Message, TemplateFault, Values};
use crate::report::run::{MailLine, RunReport};
use crate::store::StoreError;

use super::deliver::{Mail, deliver};
use super::pause::pause;
use super::{Book, SENDING_MAX, Shop, raise};

/// How the sending goes.
pub(super) struct Sending {
    pub(super) streak: Streak,
    /// Nothing more is sent in this run.
    pub(super) stopped: bool,
    /// When it ends, on the clock's running time.
    pub(super) until: Duration,
}

impl Sending {
    /// Notes that this run has sent for as long as it may.
    pub(super) fn is_over(&mut self, report: &mut RunReport) {
        report.stop_early("20 minutes of sending are over; what is left waits for the next run");
        self.stopped = true;
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
    let until = shop.clock.running() + SENDING_MAX;
    let mut sending = Sending { streak: Streak::default(), stopped: false, until };
    // A quiet run with the built-in templates does not look at them: it is to cost milliseconds.
    let checked = braked || !mails.is_empty() || !shop.templates.are_built_in();
    let mut met = if checked { template_faults(book, shop, moment.now, report)? } else { Conditions::new() };
    let mut prepared = BTreeSet::new();
    if !mails.is_empty() {
        book.room_to_send()?;
    }
    for due in mails {
        let _span = info_span!("mail", session = %due.session, step = %due.step).entered();
        // The pace comes before the question whether it may leave: it is asked at the time of the request.
        if !sending.stopped && !book.is_dry() && !pause(book, shop, shop.transport.delay(), sending.until)? {
            sending.is_over(report);
        }
        if sending.stopped {
            break;
        }
        let at = shop.clock.later(moment);
        let Some((_, purchase)) = book.ledger().buyers.purchase(&due.session) else { continue };
        if !is_still_due(book.ledger(), shop, due, at) {
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
        deliver(book, shop, &Mail { due, key: &key, frozen: &frozen, moment }, &mut sending, report)?;
    }
    conditions_over(book, checked, &met, &prepared)?;
    Ok(sending)
}

/// Time has passed since the list was made: a window may have ended, and the rules are asked again.
pub(super) fn is_still_due(ledger: &Ledger, shop: &Shop<'_>, due: &Due, at: Timestamp) -> bool {
    let buyer = ledger.buyers.purchase(&due.session).map(|(buyer, _)| buyer);
    let mail = buyer.and_then(|buyer| decide(buyer, &shop.policy, at).mail);
    mail.is_some_and(|mail| mail.step == due.step && mail.session == due.session)
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

/// Why a mail is due, for the dry run.
fn why(due: &Due) -> String {
    match (due.retry, due.closes) {
        (true, _) => "an earlier attempt has no known result: the same mail with the same key".to_owned(),
        (false, None) => format!("paid at {}", due.paid_at),
        (false, Some(closes)) => format!("paid at {}, window until {closes}", due.paid_at),
    }
}
