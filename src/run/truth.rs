//! R10: before a mail is closed because nobody knows whether it left, the service is asked.

use crate::domain::ids::{SessionId, Step};
use crate::domain::time::Timestamp;
use crate::domain::truth::{Question, Truth, is_our_account};
use crate::mail::Unreadable;
use crate::store::StoreError;

use super::listing::Listing;
use super::{Book, Shop};

/// Asks about one step. Without a list, or about a step that did not go through this service, nothing is known.
///
/// # Errors
/// [`StoreError`]: nothing more may be asked or recorded.
pub fn ask(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    listing: Option<&mut Listing<'_>>,
    (session, step): (&SessionId, Step),
    now: Timestamp,
) -> Result<Truth, StoreError> {
    let Some(question) = Question::of(book.ledger(), session, step, shop.transport.name()) else {
        return Ok(Truth::NotKnown("it did not go through this mail service".to_owned()));
    };
    ask_about(book, shop, listing, &question, now)
}

/// Asks this question.
///
/// # Errors
/// [`StoreError`]: nothing more may be asked or recorded.
pub(super) fn ask_about(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    listing: Option<&mut Listing<'_>>,
    question: &Question,
    now: Timestamp,
) -> Result<Truth, StoreError> {
    let not_known = |why: &str| Ok(Truth::NotKnown(why.to_owned()));
    let Some(listing) = listing else { return not_known("the mail service has no list that can be asked") };
    let back_to = question.back_to();
    let reached = listing.read_back_to(back_to, book, shop)?;
    // What was read is looked through in any case: a find is a find.
    let mut doubt = reached.err().map(|end| end.in_words());
    let candidates: Vec<_> = question.candidates(listing.mails()).into_iter().cloned().collect();
    for mail in candidates {
        match listing.whose(&mail.id, book, shop)? {
            Ok(tags) => match question.is_answered_by(&mail, tags.as_ref()) {
                Some(true) => return Ok(Truth::Sent { id: mail.id, at: mail.created_at }),
                Some(false) => {}
                None => doubt = Some(format!("mail {} of this subject does not say whose it is", mail.id)),
            },
            Err(Unreadable::NotAllowed) => return not_known("the key may send and not read"),
            Err(Unreadable::Failed { reason, .. }) => doubt = Some(reason),
        }
    }
    if let Some(doubt) = doubt {
        return Ok(Truth::NotKnown(doubt));
    }
    if !is_our_account(book.ledger(), shop.transport.name(), listing.mails(), back_to) {
        return not_known(
            "the service's list has none of the mails that this ledger sent: the key belongs to another account",
        );
    }
    Ok(if question.is_too_fresh(now) { Truth::NotYet } else { Truth::NotSent })
}
