//! R17: people who were forgotten. What is left of them are keyed hashes of their address, their sessions and the payment
//! service's ids, so that nothing starts again; without the key nobody can compute or try one out.
//!
//! The ledger carries the hashes; the key comes from the state folder and is put in here when a ledger is loaded. It
//! leaves out where the key lies and how ledgers and files are made clean. What must hold: no text of a person who is
//! forgotten is ever written here.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::erase::Theirs;
use super::fact::Whom;
use super::ids::{Address, BuyerId, EventId, IdempotencyKey, SessionId};
use super::keyed::{Key, KeyedHash};
use super::ledger::{LooseStop, Refs};
use super::matter::Matter;
use super::time::{Seconds, Timestamp};

/// How an id begins that was replaced by its hash.
pub(super) const HIDDEN: &str = "forgotten:";

/// What is left of one person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Person {
    /// Of the normalised address; none for a checkout that never had a usable one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<KeyedHash>,
    /// Of the sessions.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sessions: BTreeSet<KeyedHash>,
    /// Of events and of the payment service's other ids, by which a later refund is known as theirs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ids: BTreeSet<KeyedHash>,
    /// R7: since when nothing is to be sent to this person, should they buy again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Timestamp>,
    /// R7: when such a stop was lifted. Of two lists of one person, as a restored ledger's and the state folder's, the
    /// later word counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Timestamp>,
    /// When the person was last forgotten.
    pub at: Timestamp,
}

impl Person {
    /// Since when the person is stopped, if so.
    #[must_use]
    pub fn is_stopped(&self) -> Option<Timestamp> {
        self.stopped.filter(|stopped| self.resumed.is_none_or(|resumed| *stopped > resumed))
    }

    fn is_same(&self, other: &Self) -> bool {
        match (&self.address, &other.address) {
            (Some(a), Some(b)) => a == b,
            // A checkout without an address is known by its session alone.
            _ => !self.sessions.is_disjoint(&other.sessions),
        }
    }

    /// Adds what another record of the same person knows.
    fn join(&mut self, other: Self) {
        self.address = self.address.or(other.address);
        self.sessions.extend(other.sessions);
        self.ids.extend(other.ids);
        self.stopped = self.stopped.max(other.stopped);
        self.resumed = self.resumed.max(other.resumed);
        self.at = self.at.max(other.at);
    }
}

/// The forgotten of one ledger.
#[derive(Clone, Default)]
pub struct Forgotten {
    /// Which key the hashes were made with.
    key_id: Option<KeyedHash>,
    people: Vec<Person>,
    /// From the state folder; never written into a ledger.
    key: Option<Key>,
    /// Which person a hash belongs to.
    index: HashMap<KeyedHash, usize>,
}

/// The key is another than the one that the ledger's hashes were made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the key that this ledger's forgotten people were hashed with")]
pub struct WrongKey;

impl Forgotten {
    /// Whether nobody was forgotten.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.people.is_empty()
    }

    /// Who was forgotten.
    #[must_use]
    pub fn people(&self) -> &[Person] {
        &self.people
    }

    /// The key, where it has been put in.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Puts in the key, and adds the people of another list made with it. Says whether that told anything new.
    ///
    /// # Errors
    /// [`WrongKey`]; nothing was changed.
    pub fn take(&mut self, key: &Key, people: Vec<Person>) -> Result<bool, WrongKey> {
        if self.key_id.is_some_and(|id| id != key.id()) {
            return Err(WrongKey);
        }
        let before = self.people.clone();
        self.key_id = Some(key.id());
        self.key = Some(key.clone());
        (0..self.people.len()).for_each(|p| self.index(p));
        for person in people {
            self.add(person);
        }
        Ok(self.people != before)
    }

    /// Adds a person, or what is new about one. Says whether anything was. The time alone is nothing new.
    pub fn remember(&mut self, theirs: &Theirs, at: Timestamp) -> bool {
        let (Some(key), false) = (&self.key, theirs.address.is_none() && theirs.sessions.is_empty()) else {
            return false;
        };
        let person = Person {
            address: theirs.address.as_ref().map(|address| key.hash("address", address.as_str())),
            sessions: theirs.sessions.iter().map(|session| key.hash("session", session.as_str())).collect(),
            ids: theirs.ids.iter().map(|id| key.hash("id", id)).collect(),
            stopped: theirs.stopped,
            // An older ledger may still have a stop that was lifted since.
            resumed: theirs.is_not_stopped.then_some(at),
            at,
        };
        let known = self.place_of(&person).map(|p| &self.people[p]).is_some_and(|known| {
            let mut joined = known.clone();
            joined.join(person.clone());
            Person { at: known.at, ..joined } == *known
        });
        if !known {
            self.add(person);
        }
        !known
    }

    /// Where this person is in the list.
    fn place_of(&self, person: &Person) -> Option<usize> {
        let hashes = person.address.iter().chain(&person.sessions);
        hashes.filter_map(|hash| self.index.get(hash).copied()).find(|&p| self.people[p].is_same(person))
    }

    fn add(&mut self, person: Person) {
        let p = self.place_of(&person).unwrap_or(self.people.len());
        match self.people.get_mut(p) {
            Some(known) => known.join(person),
            None => self.people.push(person),
        }
        self.index(p);
    }

    fn index(&mut self, p: usize) {
        let person = &self.people[p];
        let hashes = person.address.iter().chain(&person.sessions).chain(&person.ids);
        self.index.extend(hashes.map(|hash| (*hash, p)));
    }

    fn find(&self, kind: &str, name: &str) -> Option<&Person> {
        // Nothing is hashed where nobody was forgotten.
        if self.people.is_empty() {
            return None;
        }
        self.index.get(&self.key.as_ref()?.hash(kind, name)).map(|&p| &self.people[p])
    }

    /// Whether this address belongs to somebody who was forgotten.
    #[must_use]
    pub fn knows_address(&self, address: &BuyerId) -> bool {
        self.find("address", address.as_str()).is_some()
    }

    /// Whether this session does.
    #[must_use]
    pub fn knows_session(&self, session: &SessionId) -> bool {
        self.find("session", session.as_str()).is_some()
    }

    /// Whether this event, or this id of the payment service, does.
    #[must_use]
    pub fn knows_id(&self, id: &str) -> bool {
        self.find("id", id).is_some()
    }

    /// What is left of a person, by the address or a session.
    #[must_use]
    pub fn person(&self, whom: &Whom) -> Option<&Person> {
        match whom {
            Whom::Address(address) => self.find("address", address.buyer().as_str()),
            Whom::Session(session) => self.find("session", session.as_str()),
        }
    }

    /// The hash by which facts speak of somebody who was forgotten; none for anybody else.
    #[must_use]
    pub fn address_hash(&self, address: &BuyerId) -> Option<KeyedHash> {
        self.find("address", address.as_str())?.address
    }

    /// The hash of an id, where there is a key.
    #[must_use]
    pub fn id_hash(&self, id: &str) -> Option<KeyedHash> {
        self.key.as_ref().map(|key| key.hash("id", id))
    }

    /// Since when this person is stopped, if so (R7).
    #[must_use]
    pub fn stopped(&self, address: &BuyerId) -> Option<Timestamp> {
        self.find("address", address.as_str())?.is_stopped()
    }

    /// Whether these ids name a purchase that was forgotten, by the payment, the invoice or the subscription. The
    /// customer alone does not: the same customer may have bought again.
    #[must_use]
    pub fn knows_purchase(&self, refs: &Refs) -> bool {
        [&refs.payment_intent, &refs.invoice, &refs.subscription]
            .into_iter()
            .flatten()
            .any(|id| self.knows_id(id))
    }

    /// Whether a text is a name of somebody who was forgotten: an address in any writing, a session, an id.
    #[must_use]
    pub fn knows_text(&self, text: &str) -> bool {
        !self.is_empty()
            && (self.find("session", text).is_some()
                || self.knows_id(text)
                || text.parse::<Address>().is_ok_and(|address| self.knows_address(&address.buyer())))
    }

    /// Whether a mail was to such a person, or a notice about one.
    #[must_use]
    pub fn knows_mail(&self, key: &IdempotencyKey) -> bool {
        match key {
            IdempotencyKey::Step(session, _) => self.knows_session(session),
            // The kind, the subject, and the time: none of the first and last holds a dot.
            IdempotencyKey::Notice(id) => id
                .split_once('.')
                .and_then(|(_, rest)| rest.rsplit_once('.'))
                .is_some_and(|(subject, _)| self.knows_subject(subject)),
        }
    }

    fn knows_subject(&self, subject: &str) -> bool {
        let session = subject.split_once('.').map_or(subject, |(session, _)| session);
        !self.is_empty() && (self.find("session", session).is_some() || self.knows_id(subject))
    }

    /// Whether a matter is about such a person. Its text may hold the subject of a mail, and that a name.
    #[must_use]
    pub fn knows_matter(&self, matter: &Matter) -> bool {
        !self.is_empty()
            && (matter.session.as_ref().is_some_and(|session| self.knows_session(session))
                || self.knows_subject(&matter.subject)
                || sessions_in(&matter.text).any(|session| self.find("session", session).is_some()))
    }

    /// A stop in which no id of such a person stands in plain, if there was one in it. It may concern a purchase that
    /// the same customer makes later, so it is not dropped.
    #[must_use]
    pub fn hidden(&self, stop: &LooseStop) -> Option<LooseStop> {
        let ids =
            [&stop.refs.payment_intent, &stop.refs.invoice, &stop.refs.subscription, &stop.refs.customer];
        if self.is_empty() || !ids.into_iter().flatten().any(|id| self.knows_id(id)) {
            return None;
        }
        let event = stop.event.as_ref().and_then(|event| self.hidden_event(event));
        Some(LooseStop { refs: self.hidden_refs(&stop.refs)?, event, ..stop.clone() })
    }

    /// An event's id, hidden.
    #[must_use]
    pub fn hidden_event(&self, event: &EventId) -> Option<EventId> {
        self.hide(event.as_str())?.parse().ok()
    }

    /// Ids of the payment service, hidden.
    #[must_use]
    pub fn hidden_refs(&self, refs: &Refs) -> Option<Refs> {
        let hide = |id: &Option<String>| id.as_ref().map(|id| self.hide(id));
        Some(Refs {
            payment_intent: hide(&refs.payment_intent).unwrap_or(None),
            invoice: hide(&refs.invoice).unwrap_or(None),
            subscription: hide(&refs.subscription).unwrap_or(None),
            customer: hide(&refs.customer).unwrap_or(None),
        })
        .filter(|_| self.key.is_some())
    }

    fn hide(&self, id: &str) -> Option<String> {
        if id.starts_with(HIDDEN) {
            return Some(id.to_owned());
        }
        self.id_hash(id).map(|hash| format!("{HIDDEN}{}", String::from(hash)))
    }

    /// R7: somebody who was forgotten is stopped, and this event said so.
    pub(super) fn stop(&mut self, address: KeyedHash, at: Timestamp, event: Option<KeyedHash>) {
        let Some(p) = self.people.iter().position(|person| person.address == Some(address)) else { return };
        let person = &mut self.people[p];
        if person.is_stopped().is_none() {
            // Said after the stop before was lifted, whenever it happened.
            person.stopped = Some(person.resumed.map_or(at, |resumed| at.max(resumed + Seconds(1))));
        }
        person.ids.extend(event);
        self.index(p);
    }

    /// R7: a ledger that is older than the list had a stop of this person. If it was lifted since, it stays lifted.
    pub(super) fn was_stopped(&mut self, address: KeyedHash, at: Timestamp) {
        if let Some(person) = self.people.iter_mut().find(|person| person.address == Some(address)) {
            person.stopped = person.stopped.max(Some(at));
        }
    }

    /// R7: the stop of somebody who was forgotten is lifted.
    pub(super) fn resume(&mut self, address: KeyedHash, at: Timestamp) {
        if let Some(person) = self.people.iter_mut().find(|person| person.address == Some(address)) {
            person.resumed = person.resumed.max(Some(at)).max(person.stopped);
        }
    }
}

/// The sessions that a matter's text names: our own texts put the word before each.
fn sessions_in(text: &str) -> impl Iterator<Item = &str> {
    text.split("session ").skip(1).filter_map(|rest| {
        let end =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).unwrap_or(rest.len());
        rest.get(..end).filter(|word| !word.is_empty())
    })
}

impl PartialEq for Forgotten {
    fn eq(&self, other: &Self) -> bool {
        self.key_id == other.key_id && self.people == other.people
    }
}

impl fmt::Debug for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forgotten")
            .field("people", &self.people.len())
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// The shape in a ledger.
#[derive(Serialize)]
struct WrittenRef<'a> {
    key_id: Option<KeyedHash>,
    people: &'a [Person],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    key_id: KeyedHash,
    people: Vec<Person>,
}

impl Serialize for Forgotten {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        WrittenRef { key_id: self.key_id, people: &self.people }.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Forgotten {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Written { key_id, people } = Written::deserialize(d)?;
        check(&people).map_err(de::Error::custom)?;
        Ok(Self { key_id: Some(key_id), people, ..Self::default() })
    }
}

/// Looks whether a list of people can be one of ours.
///
/// # Errors
/// Says which entry is wrong.
pub fn check(people: &[Person]) -> Result<(), String> {
    if people.is_empty() {
        return Err("people: it is empty; where nobody was forgotten the whole field is left out".to_owned());
    }
    let mut known = HashMap::new();
    for (p, person) in people.iter().enumerate() {
        if person.address.is_none() && person.sessions.is_empty() {
            return Err(format!("people[{p}]: neither an address nor a session"));
        }
        if let Some(other) = person.address.and_then(|address| known.insert(address, p)) {
            return Err(format!("people[{other}] and people[{p}] have the same address"));
        }
    }
    Ok(())
}
