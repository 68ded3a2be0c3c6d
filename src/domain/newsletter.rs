//! R14: which contact of the newsletter is a buyer, and whether it may carry the purchaser mark. Buying is no consent, so that
//! nobody is subscribed, made, or guessed here.

use serde::{Deserialize, Serialize};

use super::fact::Fact;
use super::ids::{BuyerId, SessionId};
use super::ledger::{Ledger, Purchase};
use super::matter::{Matter, MatterKind};
use super::time::{Seconds, Timestamp};

/// What cannot be read for so long is told.
const NOT_KNOWN_MAX: Seconds = Seconds::hours(24);
/// Buyers who read no newsletter are the normal case: they are told of together, once in so long.
const GATHERED_EVERY: Seconds = Seconds::hours(24);
/// No notice names more sessions than this.
const NAMED_MAX: usize = 20;
/// The subject of what concerns the service as a whole.
const SERVICE: &str = "service";

/// Where a purchase stands with the newsletter. None is the same as open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case", deny_unknown_fields)]
pub enum Standing {
    /// To be looked up.
    Open {
        /// The contact that a person named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        contact: Option<String>,
    },
    /// The contact carries the mark.
    Marked {
        /// Since when that is known.
        at: Timestamp,
        /// The contact.
        contact: String,
        /// When the mark was taken away again, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unmarked: Option<Timestamp>,
    },
    /// No mark, for this reason.
    Told {
        /// Since when.
        at: Timestamp,
        /// Why.
        reason: Reason,
        /// Whether it still waits for the daily notice.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        untold: bool,
    },
    /// The newsletter's service could not be read; asked again.
    NotKnown {
        /// Since when.
        since: Timestamp,
        /// The contact that a person named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        contact: Option<String>,
    },
}

/// Why a purchase has no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No contact.
    None,
    /// More than one.
    Several,
    /// One that has not confirmed.
    Unconfirmed,
    /// One that has unsubscribed.
    Unsubscribed,
    /// A person said so.
    Ignored,
}

impl Reason {
    /// In words, after "the contact" or "it".
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::None => "no contact of the newsletter is this buyer",
            Self::Several => "several contacts of the newsletter are this buyer",
            Self::Unconfirmed => "this buyer's contact in the newsletter has not confirmed",
            Self::Unsubscribed => "this buyer's contact has unsubscribed from the newsletter",
            Self::Ignored => "left out by hand",
        }
    }
}

/// By what the contact of a purchase is sought. Never by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A person named it: it is marked as it is.
    Hand(String),
    /// The subscriber id that came with the purchase, which alone counts where there is one.
    SubscriberId(String),
    /// The address, in any spelling of upper and lower case.
    Address(BuyerId),
}

/// A contact, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Its id.
    pub id: String,
    /// Whether it wants no newsletter.
    pub unsubscribed: bool,
    /// Whether it has said that it wants one.
    pub confirmed: bool,
    /// Whether it carries the mark.
    pub marked: bool,
}

/// What is to be done with the one contact that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Set the mark.
    Mark,
    /// It is set.
    IsMarked,
    /// Leave it alone.
    Leave(Reason),
}

/// R14: only a confirmed, subscribed contact is marked; one that a person named, as it is.
#[must_use]
pub fn verdict(contact: &Contact, by: &By) -> Verdict {
    let by_hand = matches!(by, By::Hand(_));
    if contact.unsubscribed && !by_hand {
        Verdict::Leave(Reason::Unsubscribed)
    } else if !contact.confirmed && !by_hand {
        Verdict::Leave(Reason::Unconfirmed)
    } else if contact.marked {
        Verdict::IsMarked
    } else {
        Verdict::Mark
    }
}

/// The purchases whose contact is to be looked up, in the order of admission. With `refunds_unmark`, those whose money went
/// back are left out.
#[must_use]
pub fn to_look_up(ledger: &Ledger, refunds_unmark: bool) -> Vec<(SessionId, By)> {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    purchases.filter(|purchase| !(refunds_unmark && is_refunded(purchase))).filter_map(sought).collect()
}

fn sought(purchase: &Purchase) -> Option<(SessionId, By)> {
    let named = match &purchase.newsletter {
        None => None,
        Some(Standing::Open { contact } | Standing::NotKnown { contact, .. }) => contact.clone(),
        Some(Standing::Marked { .. } | Standing::Told { .. }) => return None,
    };
    let by = match (named, &purchase.subscriber_id) {
        (Some(contact), _) => By::Hand(contact),
        (None, Some(id)) => By::SubscriberId(id.clone()),
        (None, None) => By::Address(purchase.email.buyer()),
    };
    Some((purchase.session.clone(), by))
}

/// Whether a purchase's money went back, or is disputed.
fn is_refunded(purchase: &Purchase) -> bool {
    let reason = purchase.stopped.as_ref().and_then(|mark| mark.reason.as_deref());
    matches!(reason, Some("refund" | "dispute"))
}

/// The marks that are to be taken away: of purchases whose money went back, whose contact no other purchase marks.
#[must_use]
pub fn to_unmark(ledger: &Ledger) -> Vec<(SessionId, String)> {
    let marked: Vec<(&Purchase, &String)> = ledger
        .buyers
        .all()
        .iter()
        .flat_map(|buyer| &buyer.purchases)
        .filter_map(|purchase| match &purchase.newsletter {
            Some(Standing::Marked { contact, unmarked: None, .. }) => Some((purchase, contact)),
            _ => None,
        })
        .collect();
    let stays =
        |contact: &String| marked.iter().any(|(purchase, other)| *other == contact && !is_refunded(purchase));
    marked
        .iter()
        .filter(|(purchase, contact)| is_refunded(purchase) && !stays(contact))
        .map(|(purchase, contact)| (purchase.session.clone(), (*contact).clone()))
        .collect()
}

/// What is recorded of a purchase that gets no mark. That nobody was found is told of with others ([`gathered`]).
#[must_use]
pub fn left(session: &SessionId, reason: Reason, at: Timestamp) -> Vec<Fact> {
    let untold = reason == Reason::None;
    let standing = Standing::Told { at, reason, untold };
    let mut facts = vec![Fact::Newsletter { session: session.clone(), standing }];
    if !untold {
        let text = format!(
            "{} (session {session}): no purchaser mark was set; if you know which contact it is: `stepmail newsletter link \
             {session} CONTACT_ID`, else `stepmail newsletter ignore {session}`; the mails are not concerned",
            reason.in_words()
        );
        let matter = Matter::new(MatterKind::Newsletter, session.as_str(), at, Some(session.clone()), text);
        facts.push(Fact::Matter { matter: Box::new(matter) });
    }
    facts
}

/// The service could not be read: what is recorded of the purchases that wait for it. Nothing is where that is known.
#[must_use]
pub fn unreadable(ledger: &Ledger, sessions: &[SessionId], at: Timestamp) -> Vec<Fact> {
    let mut facts = Vec::new();
    for session in sessions {
        let Some((_, purchase)) = ledger.buyers.purchase(session) else { continue };
        let contact = match &purchase.newsletter {
            Some(Standing::NotKnown { .. }) => continue,
            Some(Standing::Open { contact }) => contact.clone(),
            _ => None,
        };
        let standing = Standing::NotKnown { since: at, contact };
        facts.push(Fact::Newsletter { session: session.clone(), standing });
    }
    facts
}

/// What a human must know of a service that cannot be read: at once where only a person can help, else after a day.
#[must_use]
pub fn trouble(ledger: &Ledger, why: &str, is_refusal: bool, now: Timestamp) -> Option<Matter> {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let since = purchases.filter_map(|purchase| match &purchase.newsletter {
        Some(Standing::NotKnown { since, .. }) => Some(*since),
        _ => None,
    });
    let is_long = since.min().is_some_and(|since| now - since >= NOT_KNOWN_MAX);
    (is_refusal || is_long).then(|| {
        let text = format!(
            "the newsletter's contacts cannot be read or marked: {why}; buyers stay without the purchaser mark until they \
             can, and every run tries again; `stepmail check` tells more; the mails are not concerned"
        );
        Matter::new(MatterKind::Newsletter, SERVICE, now, None, text)
    })
}

/// The end of that trouble.
#[must_use]
pub fn trouble_over(ledger: &Ledger) -> Option<Fact> {
    ledger
        .matter(MatterKind::Newsletter, SERVICE)
        .map(|_| Fact::MatterOver { kind: MatterKind::Newsletter, subject: SERVICE.to_owned() })
}

/// The daily notice of buyers who were not found, if it is time for one.
#[must_use]
pub fn gathered(ledger: &Ledger, now: Timestamp) -> Vec<Fact> {
    let purchases = ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let untold: Vec<(&SessionId, Timestamp)> = purchases
        .filter_map(|purchase| match &purchase.newsletter {
            Some(Standing::Told { at, reason: Reason::None, untold: true }) => Some((&purchase.session, *at)),
            _ => None,
        })
        .collect();
    let before = ledger.matters.iter().filter(|matter| matter.kind == MatterKind::NewsletterNone);
    if untold.is_empty() || before.clone().any(|matter| now - matter.at < GATHERED_EVERY) {
        return Vec::new();
    }
    // What was told is done with.
    let mut facts: Vec<Fact> = before
        .filter(|matter| !matter.notice.is_open())
        .map(|matter| Fact::MatterOver { kind: matter.kind, subject: matter.subject.clone() })
        .collect();
    let names: Vec<&str> = untold.iter().take(NAMED_MAX).map(|(session, _)| session.as_str()).collect();
    let more = match untold.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "{} of which no contact of the newsletter is the buyer, so that no purchaser mark was set: {}{more}; that is the normal \
         case; if you know better: stepmail newsletter link SESSION CONTACT_ID",
        match untold.len() {
            1 => "1 purchase".to_owned(),
            many => format!("{many} purchases"),
        },
        names.join(", "),
    );
    let matter = Matter::new(MatterKind::NewsletterNone, &now.unix().to_string(), now, None, text);
    facts.push(Fact::Matter { matter: Box::new(matter) });
    facts.extend(untold.into_iter().map(|(session, at)| Fact::Newsletter {
        session: session.clone(),
        standing: Standing::Told { at, reason: Reason::None, untold: false },
    }));
    facts
}

/// R14: a person named the contact of a purchase, or said that there is none; what was told of it is over.
#[must_use]
pub fn settled(ledger: &Ledger, session: &SessionId, standing: Standing) -> Vec<Fact> {
    let mut facts = vec![Fact::Newsletter { session: session.clone(), standing }];
    if ledger.matter(MatterKind::Newsletter, session.as_str()).is_some() {
        facts.push(Fact::MatterOver { kind: MatterKind::Newsletter, subject: session.to_string() });
    }
    facts
}
