//! The ledger in memory, and the shape it has on disk (DESIGN 5).
//!
//! Reading is strict: unknown fields, duplicate keys and wrong shapes are refused, because a misspelt `stopped` must
//! never read as "go on". The only ways to change a ledger are the facts of `fact.rs`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::event::Amount;
use super::fate::Fate;
use super::forgotten::Forgotten;
use super::ids::{Address, BuyerId, EventId, SessionId, Step};
use super::matter::{Matter, MatterKind};
use super::newsletter::Standing;
use super::time::Timestamp;

pub use super::loose::{FailedPayment, LooseMark, LooseRefund, LooseStop, PassedOver, Waiting, WaitingFor};

/// The word in `format`.
pub const FORMAT: &str = "stepmail-ledger";
/// What the outbox calls itself where a mail is recorded as sent: no buyer has it.
pub const OUTBOX: &str = "outbox";
/// The transport of an attempt that nobody knows of.
const OF_A_GAP: &str = "unknown";
/// The version this program reads and writes.
pub const VERSION: u32 = 1;

/// Everything stepmail knows: the sum of its facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// Always [`FORMAT`].
    pub format: String,
    /// Always [`VERSION`]; a newer one is refused, never overwritten.
    pub version: u32,
    /// Random; given at the first run where a hand-made ledger has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_id: Option<String>,
    /// Counts the snapshots.
    pub generation: u64,
    /// The lock's token when this snapshot was written. It only grows.
    #[serde(default)]
    pub lock_token: u64,
    /// R4: what was paid before this is history.
    pub go_live: Timestamp,
    /// The last run that had something to record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<LastRun>,
    /// R4: a human's go for more mails than the brake lets through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Allowed>,
    /// R12: a time this ledger knows nothing of, since it was adopted in place of a newer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
    /// R12: mails that the outbox took until then count as sent, though a real mail service is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbox_kept: Option<Timestamp>,
    /// The people, with their purchases.
    #[serde(default)]
    pub buyers: Buyers,
    /// Checkouts that are no purchases yet.
    #[serde(default)]
    pub waiting: Vec<Waiting>,
    /// Stops whose purchase is not known yet.
    #[serde(default)]
    pub loose_stops: Vec<LooseStop>,
    /// Refunds whose purchase is not known yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loose_refunds: Vec<LooseRefund>,
    /// Sessions that were for something else than what is meant, so that nobody is asked of them twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<PassedOver>,
    /// R1: sessions whose payment failed, which an older event that comes later does not make wait again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedPayment>,
    /// Marks for sessions that are not known yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loose_marks: Vec<LooseMark>,
    /// What a human must know.
    #[serde(default)]
    pub matters: Vec<Matter>,
    /// R17: keyed hashes of the people who were forgotten.
    #[serde(default, skip_serializing_if = "Forgotten::is_empty")]
    pub forgotten: Forgotten,
}

/// Who ran this ledger last, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastRun {
    /// The run's `now`.
    pub at: Timestamp,
    /// The random id in the state folder, not a host name; none where no state folder can be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<String>,
    /// Where the ledger lay, so that a copy beside it can be told from the one that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A span of time in which mails may have left that no version of this ledger tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// The newest time the ledger knew when it was adopted.
    pub since: Timestamp,
    /// When it was adopted.
    pub until: Timestamp,
}

/// A human's go: up to so many mails per run, for 24 hours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allowed {
    /// When it was given.
    pub at: Timestamp,
    /// Up to so many per run.
    pub mails: usize,
}

/// One person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buyer {
    /// Normalised; tells people apart.
    pub address: BuyerId,
    /// R7: nothing more is sent to this person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Mark>,
    /// R7: a person must read something first; d3, d7 and d14 wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Mark>,
    /// R7: has started; d3 is not needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Mark>,
    /// R3: bought before this ledger existed, so that every purchase here is a repurchase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bought_before: Option<Mark>,
    /// R16: reached the goal. Absent is unknown, never "not reached".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Mark>,
    /// Events about the person rather than a purchase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventId>,
    /// In the order of admission.
    #[serde(default, deserialize_with = "tight")]
    pub purchases: Vec<Purchase>,
}

/// A flag with its time and reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// When it was set.
    pub at: Timestamp,
    /// Why: `asked`, `refund`, a seller's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A paid session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Purchase {
    /// Its identity.
    pub session: SessionId,
    /// The address as the buyer wrote it; mails go here.
    pub email: Address,
    /// Days count from here.
    pub paid_at: Timestamp,
    /// First, repurchase or history.
    pub kind: Kind,
    /// The buyer's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// BCP 47 language of the checkout page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// New sale or renewal, as the source called it; never a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billing: Option<String>,
    /// The newsletter's id of this person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber_id: Option<String>,
    /// What was paid; R2 compares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// The events that spoke of this purchase.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "tight")]
    pub events: Vec<EventId>,
    /// The payment service's other names for it.
    #[serde(default, skip_serializing_if = "Refs::is_empty")]
    pub refs: Refs,
    /// Values for templates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "unique_keys")]
    pub vars: BTreeMap<String, String>,
    /// R7: nothing more is sent for this purchase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Mark>,
    /// R7: has started with this purchase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Mark>,
    /// R3: a hand said that this is a repurchase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marked_repurchase: Option<Mark>,
    /// R16: reached the goal with this purchase. Absent is unknown, never "not reached".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Mark>,
    /// R7: money that went back, by the refunds' ids. All of it together stops the purchase.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "tight")]
    pub refunds: Vec<Refunded>,
    /// R14: where it stands with the newsletter; absent where it was never looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newsletter: Option<Standing>,
    /// The four steps. All four are written out: an absent step must not read as "to be sent".
    pub steps: Steps,
}

/// What a purchase is to the ledger (R3, R4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// This buyer's first: all four steps.
    First,
    /// A further one: d0 only.
    Repurchase,
    /// Paid before go-live: mailed nothing.
    History,
}

/// The payment service's other names for a purchase, by which a refund or cancellation finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refs {
    /// `pi_…`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment_intent: Option<String>,
    /// `in_…`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoice: Option<String>,
    /// `sub_…`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// `cus_…`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<String>,
}

/// One refund.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refunded {
    /// `re_…`
    pub id: String,
    /// When it was first told of.
    pub at: Timestamp,
    /// How much.
    pub amount: Amount,
    /// Whether the money stayed after all. That is final: another try is another refund.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

impl Refunded {
    /// Adds it to a list that is sorted by id. Events of one refund come in any order, and give the same.
    pub(super) fn add_to(&self, list: &mut Vec<Self>) {
        match list.binary_search_by(|other| other.id.cmp(&self.id)) {
            Ok(at) => list[at].merge(self),
            Err(at) => list.insert(at, self.clone()),
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.at = self.at.min(other.at);
        self.failed |= other.failed;
    }
}

impl Refs {
    /// Whether none of its ids names a purchase rather than a person.
    #[must_use]
    pub fn is_only_a_customer(&self) -> bool {
        self.payment_intent.is_none() && self.invoice.is_none() && self.subscription.is_none()
    }

    /// The id that names one purchase most surely.
    #[must_use]
    pub fn strongest(&self) -> Option<&str> {
        let ids = [&self.payment_intent, &self.invoice, &self.subscription, &self.customer];
        ids.into_iter().find_map(|id| id.as_deref())
    }

    /// Whether no id is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// R2: what is absent here is taken from what another event said.
    pub(super) fn fill_in(&mut self, said: &Self) {
        absent(&mut self.payment_intent, said.payment_intent.as_ref());
        absent(&mut self.invoice, said.invoice.as_ref());
        absent(&mut self.subscription, said.subscription.as_ref());
        absent(&mut self.customer, said.customer.as_ref());
    }
}

/// R2: an absent field is filled in, and one that stands there stays.
pub(super) fn absent<T: Clone>(slot: &mut Option<T>, value: Option<&T>) {
    if slot.is_none() {
        *slot = value.cloned();
    }
}

/// The four steps of a purchase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// The way in.
    pub d0: StepState,
    /// Where did you stop?
    pub d3: StepState,
    /// Was it usable?
    pub d7: StepState,
    /// Could you use it again?
    pub d14: StepState,
}

impl Steps {
    /// Four steps to be sent.
    #[must_use]
    pub fn pending() -> Self {
        Self {
            d0: StepState::pending(),
            d3: StepState::pending(),
            d7: StepState::pending(),
            d14: StepState::pending(),
        }
    }

    /// The state of one step.
    #[must_use]
    pub fn get(&self, step: Step) -> &StepState {
        match step {
            Step::D0 => &self.d0,
            Step::D3 => &self.d3,
            Step::D7 => &self.d7,
            Step::D14 => &self.d14,
        }
    }

    /// The state of one step, to change it.
    pub fn get_mut(&mut self, step: Step) -> &mut StepState {
        match step {
            Step::D0 => &mut self.d0,
            Step::D3 => &mut self.d3,
            Step::D7 => &mut self.d7,
            Step::D14 => &mut self.d14,
        }
    }

    /// All four, in the order of days.
    pub fn iter(&self) -> impl Iterator<Item = (Step, &StepState)> {
        Step::ALL.into_iter().map(|step| (step, self.get(step)))
    }
}

/// Where one mail stands: a step of a purchase, or a notice to the operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase", deny_unknown_fields)]
pub enum StepState {
    /// Not sent; whether it is due is for `decide` to say.
    Pending {
        /// R9: the mail service refused it, up to three times.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<Refusals>,
    },
    /// About to be sent, or sent with an unknown result. Found in a ledger when a run starts, it is the latter.
    Planned {
        /// When the plan was saved.
        at: Timestamp,
        /// The first attempt whose outcome is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_unknown_at: Option<Timestamp>,
        /// The latest such attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_unknown_at: Option<Timestamp>,
        /// R11: what is sent, byte for byte, at every try.
        message: Box<Frozen>,
        /// R9: refusals before this plan.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<Refusals>,
    },
    /// The mail service took it.
    Sent {
        /// The time of the attempt that was accepted.
        at: Timestamp,
        /// The service's id.
        message_id: String,
        /// The transport.
        via: String,
        /// R13: what became of it then, as far as the service told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fate: Option<Fate>,
    },
    /// Will never be sent, or nobody knows whether it was.
    Closed {
        /// When it was closed.
        at: Timestamp,
        /// Why.
        reason: CloseReason,
        /// An attempt that may have arrived all the same; it counts for the spacing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
    },
}

impl StepState {
    /// Not sent, never refused.
    #[must_use]
    pub fn pending() -> Self {
        Self::Pending { refused: None }
    }

    /// Closed without any attempt.
    #[must_use]
    pub fn closed(at: Timestamp, reason: CloseReason) -> Self {
        Self::Closed { at, reason, attempt: None }
    }

    /// R12: closed, since it may have left in a time the ledger knows nothing of. What is known of an attempt stays; the
    /// spacing counts from the end of that time.
    #[must_use]
    pub fn may_have_left(gap: &Gap, known: Option<Attempt>) -> Self {
        let attempt = known.map_or_else(
            || Attempt::within(gap),
            |known| Attempt { last_at: known.last_at.max(gap.until), ..known },
        );
        Self::Closed { at: gap.until, reason: CloseReason::UnknownResult, attempt: Some(attempt) }
    }

    /// The attempt of an open plan, as far as it may have arrived.
    #[must_use]
    pub fn open_attempt(&self) -> Option<Attempt> {
        match self {
            Self::Planned { at, first_unknown_at, last_unknown_at, message, .. } => Some(Attempt {
                first_at: first_unknown_at.unwrap_or(*at),
                last_at: last_unknown_at.or(*first_unknown_at).unwrap_or(*at),
                via: message.via.clone(),
                subject: message.subject.clone(),
            }),
            _ => None,
        }
    }

    /// When this mail was, or may have been, last sent (R6: what the spacing counts).
    #[must_use]
    pub fn last_left_at(&self) -> Option<Timestamp> {
        match self {
            Self::Pending { .. } => None,
            Self::Planned { at, first_unknown_at, last_unknown_at, .. } => {
                Some(last_unknown_at.or(*first_unknown_at).unwrap_or(*at))
            }
            Self::Sent { at, .. } => Some(*at),
            Self::Closed { attempt, .. } => attempt.as_ref().map(|attempt| attempt.last_at),
        }
    }

    /// The refusals so far, while the step is open.
    #[must_use]
    pub fn refusals(&self) -> Option<Refusals> {
        match self {
            Self::Pending { refused } | Self::Planned { refused, .. } => refused.clone(),
            _ => None,
        }
    }

    /// Whether the step still wants something done.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Pending { .. } | Self::Planned { .. })
    }
}

/// R9: refusals of the same content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusals {
    /// How often.
    pub count: u32,
    /// Of this content.
    pub hash: String,
    /// When last.
    pub at: Timestamp,
    /// The service's reason, without personal data.
    pub reason: String,
}

/// An attempt whose outcome is unknown, kept beside a closed step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// The first such attempt.
    pub first_at: Timestamp,
    /// The latest.
    pub last_at: Timestamp,
    /// Through this transport.
    pub via: String,
    /// The subject, by which a person finds it in the service's list.
    pub subject: String,
}

impl Attempt {
    /// R12: of a mail that may have left in a time nobody knows of; the spacing counts from its end.
    #[must_use]
    pub fn within(gap: &Gap) -> Self {
        Self { first_at: gap.since, last_at: gap.until, via: OF_A_GAP.to_owned(), subject: String::new() }
    }

    /// Whether nothing is known of it but the time in which it may have been.
    #[must_use]
    pub fn is_of_a_gap(&self) -> bool {
        self.via == OF_A_GAP
    }
}

/// A message as the transport will send it, opaque to everyone else.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frozen {
    /// The transport that froze it; no other may send it.
    pub via: String,
    /// The one recipient.
    pub to: Address,
    /// The subject, for people.
    pub subject: String,
    /// What goes over the wire, byte for byte.
    pub body: String,
    /// SHA-256 of what it says (recipient, subject, text, HTML), hex: equal content is known as equal (R9).
    pub hash: String,
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen")
            .field("via", &self.via)
            .field("to", &self.to)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// Why a step was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// R5: its window ended.
    Stale,
    /// R7.
    Stopped,
    /// R7: d3, for one who has started.
    Started,
    /// R3: d3, d7, d14 of a repurchase.
    Repurchase,
    /// R4: paid before go-live.
    History,
    /// R9: refused three times.
    Rejected,
    /// R9: nobody knows whether it left.
    UnknownResult,
}

impl CloseReason {
    /// The name in ledgers and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Stopped => "stopped",
            Self::Started => "started",
            Self::Repurchase => "repurchase",
            Self::History => "history",
            Self::Rejected => "rejected",
            Self::UnknownResult => "unknown_result",
        }
    }
}

/// The flags a hand can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// Nothing more is sent.
    Stopped,
    /// d3 is not needed.
    Started,
    /// d0 only.
    Repurchase,
    /// R16: reached the goal. It changes no mail.
    Outcome,
}

impl MarkKind {
    /// The hand command that sets it.
    #[must_use]
    pub const fn command(self) -> &'static str {
        match self {
            Self::Stopped => "mark-stopped",
            Self::Started => "mark-started",
            Self::Repurchase => "mark-repurchase",
            Self::Outcome => "mark-outcome",
        }
    }
}

/// The buyers, found by address and by session. Both are unique, or the ledger is refused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buyers {
    list: Vec<Buyer>,
    by_address: HashMap<BuyerId, usize>,
    by_session: HashMap<SessionId, (usize, usize)>,
}

impl Buyers {
    /// Indexes a list.
    ///
    /// # Errors
    /// Says which two records name the same person or the same session.
    pub fn new(list: Vec<Buyer>) -> Result<Self, String> {
        let mut buyers = Self {
            by_address: HashMap::with_capacity(list.len()),
            by_session: HashMap::with_capacity(list.len()),
            list: Vec::new(),
        };
        for (b, buyer) in list.iter().enumerate() {
            if let Some(other) = buyers.by_address.insert(buyer.address.clone(), b) {
                return Err(format!("buyers[{other}] and buyers[{b}] have the same address"));
            }
            for (p, purchase) in buyer.purchases.iter().enumerate() {
                if purchase.email.buyer() != buyer.address {
                    return Err(format!(
                        "buyers[{b}].purchases[{p}].email: purchase {} has another address than its buyer",
                        purchase.session
                    ));
                }
                if let Some((other, q)) = buyers.by_session.insert(purchase.session.clone(), (b, p)) {
                    return Err(format!(
                        "buyers[{other}].purchases[{q}] and buyers[{b}].purchases[{p}] are both session {}",
                        purchase.session
                    ));
                }
            }
        }
        buyers.list = list;
        Ok(buyers)
    }

    /// All of them, in the order of admission.
    #[must_use]
    pub fn all(&self) -> &[Buyer] {
        &self.list
    }

    /// All of them, to change flags and steps; addresses and sessions stay as they are.
    pub(super) fn all_mut(&mut self) -> &mut [Buyer] {
        &mut self.list
    }

    /// How many people.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether nobody is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The person of this address.
    #[must_use]
    pub fn get(&self, address: &BuyerId) -> Option<&Buyer> {
        self.by_address.get(address).map(|&b| &self.list[b])
    }

    /// The purchase of this session, and whose it is.
    #[must_use]
    pub fn purchase(&self, session: &SessionId) -> Option<(&Buyer, &Purchase)> {
        self.by_session.get(session).map(|&(b, p)| (&self.list[b], &self.list[b].purchases[p]))
    }

    pub(super) fn purchase_mut(&mut self, session: &SessionId) -> Option<&mut Purchase> {
        self.by_session.get(session).map(|&(b, p)| &mut self.list[b].purchases[p])
    }

    /// The person of this address, new and without purchases if need be.
    pub(super) fn entry(&mut self, address: &BuyerId) -> &mut Buyer {
        let b = *self.by_address.entry(address.clone()).or_insert_with(|| {
            self.list.push(Buyer {
                address: address.clone(),
                stopped: None,
                paused: None,
                started: None,
                bought_before: None,
                outcome: None,
                events: Vec::new(),
                purchases: Vec::new(),
            });
            self.list.len() - 1
        });
        &mut self.list[b]
    }

    /// Adds a purchase to its buyer, unless the session is known already.
    pub(super) fn add(&mut self, purchase: Purchase) {
        if self.by_session.contains_key(&purchase.session) {
            return;
        }
        let address = purchase.email.buyer();
        let session = purchase.session.clone();
        let purchases = &mut self.entry(&address).purchases;
        purchases.push(purchase);
        let p = purchases.len() - 1;
        self.by_session.insert(session, (self.by_address[&address], p));
    }
}

/// What [`Buyers::take_out`] took.
#[derive(Debug, Default)]
pub(super) struct TakenOut {
    /// Who is gone. Their purchases are not in it.
    pub(super) people: Vec<Buyer>,
    /// How many purchases.
    pub(super) purchases: usize,
}

impl Buyers {
    /// R17: takes out purchases, and the people of whom none is left because of that, or who are `nobody` and have none.
    /// Of those who stay, the `event`s are taken out.
    pub(super) fn take_out(
        &mut self,
        gone: impl Fn(&Purchase) -> bool,
        event: impl Fn(&EventId) -> bool,
        nobody: impl Fn(&Buyer) -> bool,
    ) -> TakenOut {
        let mut taken = TakenOut::default();
        let mut kept = Vec::with_capacity(self.list.len());
        for mut buyer in std::mem::take(&mut self.list) {
            let before = buyer.purchases.len();
            buyer.purchases.retain(|purchase| !gone(purchase));
            let theirs = before - buyer.purchases.len();
            taken.purchases += theirs;
            if buyer.purchases.is_empty() && (theirs > 0 || nobody(&buyer)) {
                taken.people.push(buyer);
                continue;
            }
            if theirs > 0 {
                buyer.events.retain(|id| !event(id));
            }
            kept.push(buyer);
        }
        self.list = kept;
        if taken.purchases > 0 || !taken.people.is_empty() {
            self.index();
        }
        taken
    }

    /// Finds everybody anew after some were taken out.
    fn index(&mut self) {
        self.by_address.clear();
        self.by_session.clear();
        for (b, buyer) in self.list.iter().enumerate() {
            self.by_address.insert(buyer.address.clone(), b);
            for (p, purchase) in buyer.purchases.iter().enumerate() {
                self.by_session.insert(purchase.session.clone(), (b, p));
            }
        }
    }
}

impl Serialize for Buyers {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.list.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Buyers {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(d)?).map_err(de::Error::custom)
    }
}

impl Ledger {
    /// An empty ledger, as `init` makes it.
    #[must_use]
    pub fn empty(go_live: Timestamp, ledger_id: Option<String>) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            ledger_id,
            generation: 0,
            lock_token: 0,
            go_live,
            last_run: None,
            allowed: None,
            gap: None,
            outbox_kept: None,
            buyers: Buyers::default(),
            waiting: Vec::new(),
            loose_stops: Vec::new(),
            loose_refunds: Vec::new(),
            passed_over: Vec::new(),
            failed: Vec::new(),
            loose_marks: Vec::new(),
            matters: Vec::new(),
            forgotten: Forgotten::default(),
        }
    }

    /// The matter of that kind and subject, if it is known.
    #[must_use]
    pub fn matter(&self, kind: MatterKind, subject: &str) -> Option<&Matter> {
        self.matters.iter().find(|matter| matter.is(kind, subject))
    }

    /// Whether this event was taken in.
    #[must_use]
    pub fn knows_event(&self, event: &EventId) -> bool {
        let of_buyers = self.buyers.all().iter().any(|buyer| {
            buyer.events.contains(event)
                || buyer.purchases.iter().any(|purchase| purchase.events.contains(event))
        });
        of_buyers
            || self.loose_stops.iter().any(|stop| stop.event.as_ref() == Some(event))
            || self.loose_refunds.iter().any(|refund| refund.events.contains(event))
    }

    /// The newest time that stepmail itself recorded (R12): no clock that is right can lie before it. Payment times
    /// and stops come from elsewhere and do not count; a matter's own time is part of its key and never changes.
    #[must_use]
    pub fn newest_recorded(&self) -> Option<Timestamp> {
        let mut newest = self.last_run.as_ref().map(|run| run.at).max(self.allowed.as_ref().map(|go| go.at));
        let mut see = |time: Option<Timestamp>| newest = newest.max(time);
        let mark = |mark: &Option<Mark>| mark.as_ref().map(|mark| mark.at);
        for buyer in self.buyers.all() {
            see(mark(&buyer.started).max(mark(&buyer.bought_before)).max(mark(&buyer.outcome)));
            for purchase in &buyer.purchases {
                see(mark(&purchase.started).max(mark(&purchase.marked_repurchase)));
                see(mark(&purchase.outcome));
                for (_, state) in purchase.steps.iter() {
                    see(state.newest());
                }
            }
        }
        for matter in &self.matters {
            see(matter.notice.newest());
        }
        newest
    }
}

impl StepState {
    /// The newest time in this state.
    fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Pending { refused } => refused.as_ref().map(|refused| refused.at),
            Self::Planned { at, last_unknown_at, .. } => Some(*at).max(*last_unknown_at),
            Self::Sent { at, fate, .. } => Some(*at).max(fate.as_ref().map(|fate| fate.at)),
            Self::Closed { at, attempt, .. } => {
                Some(*at).max(attempt.as_ref().map(|attempt| attempt.last_at))
            }
        }
    }

    /// Lowers times that lie after `now` to `now` (`--accept-clock`, R12).
    pub(super) fn lower_to(&mut self, now: Timestamp) {
        let lower = |time: &mut Timestamp| *time = (*time).min(now);
        match self {
            Self::Pending { refused } => {
                if let Some(refused) = refused {
                    lower(&mut refused.at);
                }
            }
            Self::Planned { at, first_unknown_at, last_unknown_at, refused, .. } => {
                lower(at);
                first_unknown_at.iter_mut().chain(last_unknown_at).for_each(lower);
                if let Some(refused) = refused {
                    lower(&mut refused.at);
                }
            }
            Self::Sent { at, fate, .. } => {
                lower(at);
                if let Some(fate) = fate {
                    lower(&mut fate.at);
                }
            }
            Self::Closed { at, attempt, .. } => {
                lower(at);
                if let Some(attempt) = attempt {
                    lower(&mut attempt.first_at);
                    lower(&mut attempt.last_at);
                }
            }
        }
    }
}

/// Reads a list that takes no more room than it needs. A list grows to four places at its first element, and most buyers
/// have one purchase: the other three would be most of the memory of a large ledger.
fn tight<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    let mut list = Vec::deserialize(d)?;
    list.shrink_to_fit();
    Ok(list)
}

/// Reads a map whose keys may not repeat: serde's own maps let the last one win without a word (C060).
///
/// # Errors
/// Names the key that stands twice.
pub fn unique_keys<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Unique;
    impl<'de> Visitor<'de> for Unique {
        type Value = BTreeMap<String, String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("names with text values")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = access.next_entry::<String, String>()? {
                if map.contains_key(&key) {
                    return Err(de::Error::custom(format!("`{key}` stands twice")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    d.deserialize_map(Unique)
}
