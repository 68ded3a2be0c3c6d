//! R17: what of a ledger is one person's, and taking it out.
//!
//! It leaves out the files; `store` sees to it that nothing of them stays there. What must hold: a purchase that is new
//! stays, with its buyer, and nobody else loses anything but a reason that names the person.

use std::collections::BTreeSet;

use super::event::Checkout;
use super::fact::Whom;
use super::forgotten::HIDDEN;
use super::ids::{Address, BuyerId, SessionId, Step};
use super::ledger::{Buyer, Ledger, Purchase, Refs};
use super::matter::MatterKind;
use super::newsletter::{Reason, Standing};
use super::time::Timestamp;

/// Everything by which a ledger knows one person: what is to be forgotten. Its names hide themselves in `Debug`, but for
/// sessions.
#[derive(Clone, Debug, Default)]
pub struct Theirs {
    /// The address; none for a checkout that never had a usable one.
    pub address: Option<BuyerId>,
    /// The sessions.
    pub sessions: BTreeSet<SessionId>,
    /// Events, and the payment service's ids.
    pub ids: BTreeSet<String>,
    /// R7: since when the person is stopped.
    pub stopped: Option<Timestamp>,
    /// R7: the ledger knows the person, and of no stop.
    pub is_not_stopped: bool,
    /// Mails whose result is not known.
    pub may_have_left: Vec<MayHaveLeft>,
}

/// A mail that was planned, and whose result is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MayHaveLeft {
    /// Of this purchase.
    pub session: SessionId,
    /// Which mail.
    pub step: Step,
    /// When it was planned, or tried first.
    pub at: Timestamp,
}

impl Theirs {
    /// Looks a person up, by the address or by one of the sessions.
    #[must_use]
    pub fn of(ledger: &Ledger, whom: &Whom) -> Self {
        let mut theirs = Self::default();
        match whom {
            Whom::Address(address) => theirs.address = Some(address.buyer()),
            Whom::Session(session) => {
                let buyer = ledger.buyers.purchase(session).map(|(buyer, _)| buyer.address.clone());
                let waits = ledger.waiting.iter().find(|waiting| waiting.checkout.session == *session);
                theirs.address = buyer
                    .or_else(|| waits.and_then(|waiting| Some(waiting.checkout.email.as_ref()?.buyer())))
                    .or_else(|| came_back(ledger, whom));
                let noted = ledger.loose_marks.iter().any(|mark| mark.session == *session)
                    || ledger.loose_stops.iter().any(|stop| stop.session.as_ref() == Some(session));
                theirs.sessions.extend((noted || waits.is_some()).then(|| session.clone()));
            }
        }
        theirs.look(ledger);
        theirs
    }

    /// Adds what another ledger, the version before say, knows of the same person.
    pub fn look(&mut self, ledger: &Ledger) {
        if let Some(buyer) = self.address.as_ref().and_then(|address| ledger.buyers.get(address)) {
            self.stopped = self.stopped.or(buyer.stopped.as_ref().map(|mark| mark.at));
            self.ids.extend(buyer.events.iter().map(ToString::to_string));
            buyer.purchases.iter().for_each(|purchase| self.purchase(purchase));
        }
        for waiting in &ledger.waiting {
            let Checkout { session, email, event, refs, .. } = &waiting.checkout;
            let same = email.as_ref().is_some_and(|email| Some(email.buyer()) == self.address);
            if same || self.sessions.contains(session) {
                self.sessions.insert(session.clone());
                self.ids.extend(waiting.events.iter().chain([event]).map(ToString::to_string));
                self.refs(refs);
            }
        }
        for stop in &ledger.loose_stops {
            let exact = [&stop.refs.payment_intent, &stop.refs.invoice, &stop.refs.subscription];
            let named = stop.session.as_ref().is_some_and(|session| self.sessions.contains(session));
            if named || exact.into_iter().flatten().any(|id| self.ids.contains(id)) {
                self.ids.extend(stop.event.iter().map(ToString::to_string));
                self.refs(&stop.refs);
            }
        }
        for loose in &ledger.loose_refunds {
            let exact = [&loose.refs.payment_intent, &loose.refs.invoice, &loose.refs.subscription];
            let named = loose.session.as_ref().is_some_and(|session| self.sessions.contains(session));
            if named || exact.into_iter().flatten().any(|id| self.ids.contains(id)) {
                self.ids.extend(loose.events.iter().map(ToString::to_string));
            }
        }
        // Some matters are called by an event that stands nowhere else; their notices are known by it.
        for matter in &ledger.matters {
            let session = matter.session.as_ref().filter(|session| self.sessions.contains(session));
            let by_session = |session: &SessionId| {
                matter
                    .subject
                    .strip_prefix(session.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            // An odd id stands in a subject in other letters.
            let by_id = || self.ids.iter().any(|id| matter.is(matter.kind, id));
            // A notice that tells of several names them in its text only.
            let among_others = || {
                let several = matter.kind == MatterKind::NewsletterNone;
                several && sessions_in(&matter.text).any(|session| self.sessions.contains(&session))
            };
            if session.is_some_and(|session| !by_session(session)) || by_id() || among_others() {
                self.ids.insert(matter.subject.clone());
            }
        }
    }

    /// Whether nothing is known of such a person.
    #[must_use]
    pub fn is_nobody(&self, ledger: &Ledger) -> bool {
        let listed = self.address.as_ref().is_some_and(|address| ledger.buyers.get(address).is_some());
        self.sessions.is_empty() && self.ids.is_empty() && !listed
    }

    fn purchase(&mut self, purchase: &Purchase) {
        self.sessions.insert(purchase.session.clone());
        self.ids.extend(purchase.events.iter().map(ToString::to_string));
        self.refs(&purchase.refs);
        for (step, state) in purchase.steps.iter() {
            if let Some(attempt) = state.open_attempt() {
                let left = MayHaveLeft { session: purchase.session.clone(), step, at: attempt.first_at };
                if !self
                    .may_have_left
                    .iter()
                    .any(|known| (&known.session, known.step) == (&left.session, step))
                {
                    self.may_have_left.push(left);
                }
            }
        }
    }

    fn refs(&mut self, refs: &Refs) {
        let ids = [&refs.payment_intent, &refs.invoice, &refs.subscription, &refs.customer];
        self.ids.extend(ids.into_iter().flatten().filter(|id| !id.starts_with(HIDDEN)).cloned());
    }
}

/// The address of somebody who was forgotten, named by a session of then, if they have bought again since.
fn came_back(ledger: &Ledger, whom: &Whom) -> Option<BuyerId> {
    let hash = ledger.forgotten.person(whom)?.address?;
    let is_theirs = |address: &BuyerId| ledger.forgotten.address_hash(address) == Some(hash);
    let buyer =
        ledger.buyers.all().iter().map(|buyer| &buyer.address).find(|address| is_theirs(address)).cloned();
    let waiting =
        || ledger.waiting.iter().filter_map(|waiting| Some(waiting.checkout.email.as_ref()?.buyer()));
    buyer.or_else(|| waiting().find(is_theirs))
}

/// What was taken out of a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Erased {
    /// People of whom nothing is left.
    pub buyers: usize,
    /// Purchases.
    pub purchases: usize,
    /// Checkouts that were no purchases yet.
    pub waiting: usize,
    /// Stops and marks for the future.
    pub marks: usize,
    /// What a human was to know of them.
    pub matters: usize,
}

impl Erased {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            buyers: self.buyers + other.buyers,
            purchases: self.purchases + other.purchases,
            waiting: self.waiting + other.waiting,
            marks: self.marks + other.marks,
            matters: self.matters + other.matters,
        }
    }

    /// Whether nothing was.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Ledger {
    /// Whether a text names somebody who was forgotten. The address of one who has bought again is somebody's who is
    /// known; what was bought before is still forgotten.
    #[must_use]
    pub fn has_forgotten(&self, text: &str) -> bool {
        self.forgotten.knows_text(text)
            && !text.parse::<Address>().is_ok_and(|address| self.buyers.get(&address.buyer()).is_some())
    }

    /// Takes out what is there of people who were forgotten. A purchase whose session was not forgotten is a new one,
    /// and stays with its buyer.
    pub fn erase_forgotten(&mut self) -> Erased {
        if self.forgotten.is_empty() {
            return Erased::default();
        }
        let mut forgotten = std::mem::take(&mut self.forgotten);
        let taken = self.buyers.take_out(
            |purchase| forgotten.knows_session(&purchase.session),
            |event| forgotten.knows_id(event.as_str()),
            |buyer| forgotten.knows_address(&buyer.address),
        );
        for buyer in &taken.people {
            if let (Some(stop), Some(address)) = (&buyer.stopped, forgotten.address_hash(&buyer.address)) {
                forgotten.was_stopped(address, stop.at);
            }
        }
        let (waiting, matters) = (self.waiting.len(), self.matters.len());
        self.waiting.retain(|waiting| !forgotten.knows_session(&waiting.checkout.session));
        let untold = self.matters.iter().filter(|matter| {
            matter.kind == MatterKind::NewsletterNone
                && matter.notice.is_open()
                && forgotten.knows_matter(matter)
        });
        let untold: BTreeSet<SessionId> = untold.flat_map(|matter| sessions_in(&matter.text)).collect();
        self.matters.retain(|matter| !forgotten.knows_matter(matter));
        // The others whom it named are told of anew.
        for purchase in self.buyers.all_mut().iter_mut().flat_map(|buyer| &mut buyer.purchases) {
            if let Some(Standing::Told { reason: Reason::None, untold: still, .. }) = &mut purchase.newsletter
            {
                *still |= untold.contains(&purchase.session);
            }
        }
        let mut erased = Erased {
            buyers: taken.people.len(),
            purchases: taken.purchases,
            waiting: waiting - self.waiting.len(),
            marks: self.loose_stops.len() + self.loose_marks.len(),
            matters: matters - self.matters.len(),
        };
        self.loose_marks.retain(|mark| !forgotten.knows_session(&mark.session));
        self.loose_stops.retain(|stop| {
            let event = stop.event.as_ref().is_some_and(|event| forgotten.knows_id(event.as_str()));
            let session = stop.session.as_ref().is_some_and(|session| forgotten.knows_session(session));
            !event && !session && !forgotten.knows_purchase(&stop.refs)
        });
        erased.marks -= self.loose_stops.len() + self.loose_marks.len();
        self.loose_refunds.retain(|loose| {
            let event = loose.events.iter().any(|event| forgotten.knows_id(event.as_str()));
            let session = loose.session.as_ref().is_some_and(|session| forgotten.knows_session(session));
            !event && !session && !forgotten.knows_purchase(&loose.refs)
        });
        self.passed_over.retain(|over| !forgotten.knows_session(&over.session));
        self.failed.retain(|failed| !forgotten.knows_session(&failed.session));
        for stop in &mut self.loose_stops {
            if let Some(hidden) = forgotten.hidden(stop) {
                *stop = hidden;
                erased.marks += 1;
            }
        }
        self.forgotten = forgotten;
        erased.marks += self.drop_reasons_that_name_the_forgotten();
        erased
    }

    /// Words about one person may name another: `same as ken@example.com`. Returns of how many flags the reason went.
    fn drop_reasons_that_name_the_forgotten(&mut self) -> usize {
        let named: Vec<String> =
            self.reasons().flatten().flat_map(|words| addresses_in(words)).map(str::to_owned).collect();
        let theirs: BTreeSet<String> = named.into_iter().filter(|word| self.has_forgotten(word)).collect();
        if theirs.is_empty() {
            return 0;
        }
        let names = |reason: &Option<String>| {
            reason.as_deref().is_some_and(|words| addresses_in(words).any(|word| theirs.contains(word)))
        };
        self.reasons().filter(|reason| names(reason)).map(|reason| *reason = None).count()
    }

    /// Every place in which a person may have said why.
    fn reasons(&mut self) -> impl Iterator<Item = &mut Option<String>> {
        let of_buyers = self.buyers.all_mut().iter_mut().flat_map(|buyer| {
            let Buyer { stopped, paused, started, bought_before, outcome, purchases, .. } = buyer;
            let of_purchases = purchases.iter_mut().flat_map(|purchase| {
                let Purchase { stopped, started, marked_repurchase, outcome, .. } = purchase;
                [stopped, started, marked_repurchase, outcome]
            });
            let marks = [stopped, paused, started, bought_before, outcome].into_iter().chain(of_purchases);
            marks.flatten().map(|mark| &mut mark.reason)
        });
        of_buyers
            .chain(self.loose_stops.iter_mut().map(|stop| &mut stop.reason))
            .chain(self.loose_marks.iter_mut().map(|mark| &mut mark.reason))
    }
}

/// The sessions that a text may name.
fn sessions_in(text: &str) -> impl Iterator<Item = SessionId> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
    words.filter_map(|word| word.parse().ok())
}

/// What may be addresses in somebody's words: the words between blanks, and, since not everybody writes blanks, what of them
/// is made of an address's plain letters; both without the punctuation around them.
fn addresses_in(words: &str) -> impl Iterator<Item = &str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._%+-@".contains(c);
    words
        .split_whitespace()
        .chain(words.split(move |c| !is_plain(c)))
        .filter(|word| word.contains('@'))
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
}
