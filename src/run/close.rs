//! Step 4 of a run, the first half: closing what is over. It comes before any mail, so that a stop holds at once.

use tracing::info;

use crate::domain::decide::{Closing, decide};
use crate::domain::fact::Fact;
use crate::domain::guard::plans_from_ahead;
use crate::domain::ids::IdempotencyKey;
use crate::domain::ledger::CloseReason;
use crate::domain::matter::Matter;
use crate::domain::outcome::MailResult;
use crate::domain::time::Timestamp;
use crate::domain::truth::settle_plan;
use crate::report::run::{Closed, MailLine, Notice, RunReport};
use crate::store::StoreError;

use super::listing::Listing;
use super::{Book, Shop, truth};

/// R12: closes the plans that a wrong clock dated ahead of the one a human has accepted.
///
/// # Errors
/// Nothing was closed.
pub(super) fn close_plans_from_ahead(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let closings = plans_from_ahead(book.ledger(), shop.policy.retention, now);
    close(book, closings, now, report)
}

/// Closes every step that is over, of all buyers, in one durable append. What may have left is asked for first (R10).
///
/// # Errors
/// What was closed before stays closed.
pub(super) fn close_what_is_over(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    mut listing: Option<&mut Listing<'_>>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let ledger = book.ledger();
    let mut closings: Vec<Closing> =
        ledger.buyers.all().iter().flat_map(|buyer| decide(buyer, &shop.policy, now).closings).collect();
    let asked: Vec<Closing> =
        closings.extract_if(.., |closing| closing.reason == CloseReason::UnknownResult).collect();
    close(book, closings, now, report)?;
    let mut unknown = Vec::new();
    for closing in asked {
        let about = (&closing.session, closing.step);
        let told = truth::ask(book, shop, listing.as_deref_mut(), about, now)?;
        let Closing { session, step, .. } = &closing;
        let retention = shop.policy.retention;
        let Some(facts) = settle_plan(book.ledger(), session, *step, &told, retention, now) else {
            info!(session = %closing.session, step = %closing.step, ?told, "the service cannot tell");
            unknown.push(closing);
            continue;
        };
        say_settled(book, &facts, report);
        if !facts.is_empty() {
            book.record(&facts)?;
        }
    }
    close(book, unknown, now, report)
}

/// The mail service knows what became of an open plan. The ledger is the one from before.
fn say_settled(book: &dyn Book, facts: &[Fact], report: &mut RunReport) {
    for fact in facts {
        let Some(key @ IdempotencyKey::Step(session, step)) = fact.key() else { continue };
        match fact {
            Fact::Sent { message_id, .. } => {
                let purchase = book.ledger().buyers.purchase(session).map(|(_, purchase)| purchase);
                let attempt = purchase.and_then(|purchase| purchase.steps.get(*step).open_attempt());
                report.mails.push(MailLine {
                    key: key.clone(),
                    session: session.clone(),
                    step: *step,
                    result: MailResult::Sent,
                    message_id: Some(message_id.clone()),
                    reason: Some(
                        "an earlier attempt had arrived: it is in the mail service's list".to_owned(),
                    ),
                    subject: attempt.map_or_else(String::new, |attempt| attempt.subject),
                });
            }
            Fact::FoundUnsent { closed: Some(reason), .. } => {
                report.closed.push(Closed { session: session.clone(), step: *step, reason: *reason });
            }
            _ => info!(%key, "not in the service's list: tried anew"),
        }
    }
}

fn close(
    book: &mut dyn Book,
    closings: Vec<Closing>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<(), StoreError> {
    let ledger = book.ledger();
    if closings.is_empty() {
        return Ok(());
    }
    let mut facts = Vec::new();
    for Closing { session, step, reason } in closings {
        let key = IdempotencyKey::Step(session.clone(), step);
        if reason == CloseReason::UnknownResult {
            let attempt =
                ledger.buyers.purchase(&session).and_then(|(_, p)| p.steps.get(step).open_attempt());
            let matter = Matter::unknown_result(&session, step, attempt.as_ref(), now);
            if ledger.matter(matter.kind, &matter.subject).is_none() {
                report.notices.push(Notice::of(&matter));
                facts.push(Fact::Matter { matter: Box::new(matter) });
            }
        }
        facts.push(Fact::Closed { key, at: now, reason });
        if reason != CloseReason::History {
            report.closed.push(Closed { session, step, reason });
        }
    }
    book.record(&facts)
}
