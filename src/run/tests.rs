//! A run against a mail service that answers as it is told: what the outbox never does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::*;
use crate::domain::fact::{Fact, apply};
use crate::domain::fate::{FateKind, Listed, Tagged};
use crate::domain::ids::{IdempotencyKey, Step};
use crate::domain::ledger::{CloseReason, Frozen, Ledger, StepState};
use crate::domain::outcome::Outcome;
use crate::domain::policy::Retention;
use crate::domain::time::Seconds;
use crate::mail::{Archive, FreezeError, Message, NoClock, Page, Sender, Unreadable};
use crate::source;
use crate::store::Told;

mod service;

/// A mail service with a script: one answer for each request to a buyer, then it accepts. Notices arrive unless told
/// otherwise.
#[derive(Default)]
struct Script {
    answers: RefCell<Vec<Outcome>>,
    notices: RefCell<Vec<Outcome>>,
    asked: RefCell<Vec<(String, String)>>,
    /// How long each answer takes, in seconds, on this clock.
    slow: Option<(Clock, u64)>,
    /// What its clock says, if it has one.
    time: Option<Result<Timestamp, NoClock>>,
    times_asked: Cell<usize>,
    /// So often it cannot be reached first.
    offline: Cell<usize>,
    list: Option<List>,
}

/// The list of the mails it took.
#[derive(Default)]
struct List {
    /// Newest first, with whose each is.
    mails: RefCell<Vec<(Listed, Option<Tagged>)>>,
    per_page: usize,
    /// Each page is the first.
    repeats: bool,
    fails: RefCell<Option<Unreadable>>,
    /// So often it fails first.
    stumbles: Cell<usize>,
    pages: Cell<usize>,
}

impl Archive for List {
    fn page(&self, after: Option<&str>) -> Result<Page, Unreadable> {
        self.pages.set(self.pages.get() + 1);
        if let Some(left) = self.stumbles.get().checked_sub(1) {
            self.stumbles.set(left);
            return Err(Unreadable::Failed { reason: "503".to_owned(), retry_after: None });
        }
        if let Some(why) = self.fails.borrow().clone() {
            return Err(why);
        }
        let all: Vec<Listed> = self.mails.borrow().iter().map(|(mail, _)| mail.clone()).collect();
        let from = after.filter(|_| !self.repeats).and_then(|id| all.iter().position(|mail| mail.id == id));
        let mut rest = all[from.map_or(0, |at| at + 1)..].to_vec();
        let more = rest.len() > self.per_page || self.repeats;
        rest.truncate(self.per_page);
        Ok(Page { mails: rest, more })
    }

    fn whose(&self, id: &str) -> Result<Option<Tagged>, Unreadable> {
        Ok(self.mails.borrow().iter().find(|(mail, _)| mail.id == id).and_then(|(_, tags)| tags.clone()))
    }
}

impl Script {
    fn new(mut answers: Vec<Outcome>) -> Self {
        answers.reverse();
        Self { answers: RefCell::new(answers), ..Self::default() }
    }

    /// It has a list with these mails in it, newest first.
    fn listing(answers: Vec<Outcome>, mails: Vec<(Listed, Option<Tagged>)>) -> Self {
        let list = List { mails: RefCell::new(mails), per_page: 100, ..List::default() };
        Self { list: Some(list), ..Self::new(answers) }
    }

    /// The keys of the notices that were asked for, in order.
    fn notices(&self) -> Vec<String> {
        self.asked.borrow().iter().map(|(key, _)| key.clone()).filter(|key| key.contains("notice")).collect()
    }

    /// The keys that were asked for, in order.
    fn keys(&self) -> Vec<String> {
        self.asked.borrow().iter().map(|(key, _)| key.clone()).filter(|key| !key.contains("notice")).collect()
    }
}

impl Transport for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn stays_here(&self) -> bool {
        true
    }

    fn freeze(&self, message: &Message) -> Result<Frozen, FreezeError> {
        let body = format!("{} {}", message.date, message.text);
        let (to, subject, hash) = (message.to.clone(), message.subject.clone(), message.content_hash());
        Ok(Frozen { via: self.name().to_owned(), to, subject, body, hash })
    }

    fn send(&self, key: &IdempotencyKey, frozen: &Frozen) -> Outcome {
        self.asked.borrow_mut().push((key.to_string(), frozen.body.clone()));
        if let Some((clock, seconds)) = &self.slow {
            clock.shift_running(*seconds);
        }
        let accepted = Outcome::Accepted { message_id: format!("id of {key}") };
        if matches!(key, IdempotencyKey::Notice(_)) {
            return self.notices.borrow_mut().pop().unwrap_or(accepted);
        }
        self.answers.borrow_mut().pop().unwrap_or(accepted)
    }

    fn retention(&self) -> Retention {
        Retention::For(Seconds::days(1))
    }

    fn keeps_time(&self) -> bool {
        self.time.is_some()
    }

    fn service_clock(&self) -> Result<Timestamp, NoClock> {
        self.times_asked.set(self.times_asked.get() + 1);
        if let Some(left) = self.offline.get().checked_sub(1) {
            self.offline.set(left);
            return Err(NoClock::Offline("no connection".to_owned()));
        }
        self.time.clone().unwrap()
    }

    fn archive(&self) -> Option<&dyn Archive> {
        self.list.as_ref().map(|list| list as &dyn Archive)
    }
}

/// A book in memory that is written for good, with when each source was read.
struct Sheet(Ledger, BTreeMap<String, Timestamp>);

impl Book for Sheet {
    fn path(&self) -> &std::path::Path {
        std::path::Path::new("/shop/ledger.json")
    }

    fn ledger(&self) -> &Ledger {
        &self.0
    }
    fn record(&mut self, facts: &[Fact]) -> Result<(), StoreError> {
        for fact in facts {
            apply(&mut self.0, fact).unwrap();
        }
        Ok(())
    }
    fn has_recorded(&self) -> bool {
        true
    }
    fn owes_last_run(&self, _now: Timestamp) -> bool {
        false
    }
    fn consolidate(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    fn room_to_send(&self) -> Result<(), StoreError> {
        Ok(())
    }
    fn ready_to_send(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    fn told(&self) -> Vec<Told> {
        Vec::new()
    }
    fn set_told(&mut self, _told: Vec<Told>) -> Result<(), StoreError> {
        Ok(())
    }
    fn last_reading(&self, source: &str) -> Option<Timestamp> {
        self.1.get(source).copied()
    }
    fn note_reading(&mut self, source: &str, at: Option<Timestamp>) {
        match at {
            Some(at) => self.1.insert(source.to_owned(), at),
            None => self.1.remove(source),
        };
    }
    fn no_mark(&self) -> Option<String> {
        None
    }
    fn is_dry(&self) -> bool {
        false
    }
}

fn time(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

/// A shop with so many buyers who have just paid.
fn shop_of(buyers: usize, service: &Script) -> Sheet {
    let mut page =
        Sheet(Ledger::empty(time("2026-09-01T00:00:00Z"), Some("test".to_owned())), BTreeMap::new());
    let line = |n: usize| {
        format!(
            r#"{{"id":"e{n}","type":"checkout.completed","session":"cs_{n}","email":"b{n}@example.com","paid_at":"2026-10-01T00:00:{n:02}Z"}}"#
        )
    };
    let events: Vec<String> = (0..buyers).map(line).collect();
    let batch =
        source::parse("events", events.join("\n").as_bytes(), &source::Rules::plain(true)).unwrap().incoming;
    let moment = Clock::new(Some(time("2026-10-01T00:30:00Z"))).moment();
    intake::take_in(&mut page, batch, moment.now, &mut RunReport::new(false)).unwrap();
    assert!(service.keys().is_empty());
    page
}

fn run_at(page: &mut Sheet, service: &Script, now: &str) -> RunReport {
    let (ended, report) = run_by(page, service, &Clock::new(Some(time(now))), Known::default());
    assert_eq!(ended, Ended::Done);
    report
}

fn run_by(page: &mut Sheet, service: &Script, clock: &Clock, known: Known<'_>) -> (Ended, RunReport) {
    let mail = MailSettings {
        from: Sender { name: None, address: "shop@example.com".parse().unwrap() },
        reply_to: "shop@example.com".parse().unwrap(),
        operator: "owner@example.com".parse().unwrap(),
        business: "Shop".to_owned(),
        business_address: "Tokyo".to_owned(),
        language: Language::En,
    };
    let value = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let values: BTreeMap<String, String> = [
        value("product", "Tool"),
        value("login_url", "https://example.com/login"),
        value("business", "Shop"),
        value("business_address", "Tokyo"),
        value("reply_to", "shop@example.com"),
    ]
    .into();
    let shop = Shop {
        templates: &Templates::builtin(),
        transport: service,
        mail: &mail,
        values: Language::ALL.into_iter().map(|language| (language, values.clone())).collect(),
        policy: Policy { retention: service.retention(), ..Policy::default() },
        catalogue: None,
        newsletter: None,
        clock,
    };
    let mut feed = source::Spools::none();
    let (batch, readings, moment) = (Vec::new(), Vec::new(), clock.moment());
    let task = Task { batch, readings, feed: &mut feed, allow: None, known, moment };
    let mut report = RunReport::new(false);
    let ended = run(page, &shop, task, &mut report).unwrap();
    report.conclude();
    (ended, report)
}

fn d0<'a>(page: &'a Sheet, session: &str) -> &'a StepState {
    &page.0.buyers.purchase(&session.parse().unwrap()).unwrap().1.steps.d0
}

fn kinds(report: &RunReport) -> Vec<MatterKind> {
    report.notices.iter().map(|notice| notice.kind).collect()
}

fn unknown() -> Outcome {
    Outcome::unknown("connection lost")
}

#[test]
fn c002_a_lost_answer_is_asked_for_again_with_the_same_key_and_the_same_bytes() {
    let service = Script::new(vec![unknown(), unknown()]);
    let mut page = shop_of(1, &service);
    for now in ["2026-10-01T01:00:00Z", "2026-10-01T02:00:00Z"] {
        let report = run_at(&mut page, &service, now);
        assert_eq!(u8::from(report.exit), 75);
        assert!(matches!(d0(&page, "cs_0"), StepState::Planned { .. }), "{now}");
    }
    assert_eq!(u8::from(run_at(&mut page, &service, "2026-10-01T03:00:00Z").exit), 0);
    assert!(matches!(d0(&page, "cs_0"), StepState::Sent { .. }));
    let asked = service.asked.borrow();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|request| *request == asked[0]), "another key or other bytes: {asked:?}");
}

#[test]
fn c006_after_a_day_of_lost_answers_nobody_is_asked_again_and_a_human_is_told_once() {
    let service = Script::new(vec![unknown(), unknown()]);
    let mut page = shop_of(1, &service);
    run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    run_at(&mut page, &service, "2026-10-02T00:44:59Z");
    assert_eq!(service.keys().len(), 2);
    let report = run_at(&mut page, &service, "2026-10-02T00:45:00Z");
    assert_eq!((kinds(&report), u8::from(report.exit)), (vec![MatterKind::UnknownResult], 1));
    assert!(matches!(
        d0(&page, "cs_0"),
        StepState::Closed { reason: CloseReason::UnknownResult, attempt: Some(_), .. }
    ));
    assert!(kinds(&run_at(&mut page, &service, "2026-10-02T02:00:00Z")).is_empty());
    assert_eq!(service.keys().len(), 2, "asked after the service may have forgotten the key");
}

#[test]
fn c007_a_refused_mail_is_tried_three_times_told_once_and_holds_up_nobody() {
    let no = || Outcome::RefusedMail { reason: "no such mailbox".to_owned() };
    let accepted = Outcome::Accepted { message_id: "m".to_owned() };
    let service = Script::new(vec![no(), accepted, no(), no()]);
    let mut page = shop_of(2, &service);
    run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    assert!(matches!(d0(&page, "cs_1"), StepState::Sent { .. }));
    assert!(kinds(&run_at(&mut page, &service, "2026-10-01T02:00:00Z")).is_empty());
    let third = run_at(&mut page, &service, "2026-10-01T03:00:00Z");
    assert_eq!(kinds(&third), [MatterKind::Rejected]);
    assert!(matches!(d0(&page, "cs_0"), StepState::Closed { reason: CloseReason::Rejected, .. }));
    run_at(&mut page, &service, "2026-10-01T04:00:00Z");
    assert_eq!(service.keys(), ["pp:cs_0:d0", "pp:cs_1:d0", "pp:cs_0:d0", "pp:cs_0:d0"]);
}

#[test]
fn c055_a_refused_account_ends_the_sending_marks_nothing_and_is_told_anew_only_after_it_was_well() {
    let no = || Outcome::RefusedAccount { reason: "suspended".to_owned() };
    let service = Script::new(vec![no(), no()]);
    let mut page = shop_of(3, &service);
    let first = run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    assert_eq!((kinds(&first), first.mails.len(), u8::from(first.exit)), (vec![MatterKind::Account], 1, 1));
    assert_eq!(*d0(&page, "cs_0"), StepState::pending());
    let second = run_at(&mut page, &service, "2026-10-01T02:00:00Z");
    assert_eq!((kinds(&second).len(), u8::from(second.exit)), (0, 1), "told again, or not said to hold");
    assert_eq!(u8::from(run_at(&mut page, &service, "2026-10-01T03:00:00Z").exit), 0);
    assert!(page.0.matter(MatterKind::Account, "script").is_none(), "a condition that ended stayed");
    assert_eq!(service.keys().len(), 5);
}

#[test]
fn r9_five_lost_answers_in_a_row_end_the_sending_of_this_run() {
    let service = Script::new((0..5).map(|_| unknown()).collect());
    let mut page = shop_of(8, &service);
    let report = run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    assert_eq!((report.mails.len(), u8::from(report.exit)), (5, 75));
    // What was not tried comes first in the next hour, the retries last.
    let next = run_at(&mut page, &service, "2026-10-01T02:00:00Z");
    assert_eq!(next.mails.len(), 8);
    assert_eq!(next.mails[0].session.as_str(), "cs_5");
}

#[test]
fn r9_a_conflict_is_closed_for_a_human_and_never_asked_with_another_key() {
    let service = Script::new(vec![Outcome::Conflict { reason: "same key, other content".to_owned() }]);
    let mut page = shop_of(1, &service);
    assert_eq!(kinds(&run_at(&mut page, &service, "2026-10-01T01:00:00Z")), [MatterKind::UnknownResult]);
    run_at(&mut page, &service, "2026-10-01T02:00:00Z");
    assert_eq!(service.keys(), ["pp:cs_0:d0"]);
}

#[test]
fn a_plan_of_another_mail_service_is_not_sent_through_this_one() {
    let service = Script::new(vec![unknown()]);
    let mut page = shop_of(1, &service);
    run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    let session = "cs_0".parse().unwrap();
    let key = IdempotencyKey::Step(session, Step::D0);
    let StepState::Planned { message, .. } = d0(&page, "cs_0").clone() else { panic!("no plan") };
    let other = Frozen { via: "elsewhere".to_owned(), ..*message };
    page.record(&[Fact::Planned { key, at: time("2026-10-01T01:00:00Z"), message: Box::new(other) }])
        .unwrap();
    assert_eq!(kinds(&run_at(&mut page, &service, "2026-10-01T02:00:00Z")), [MatterKind::ForeignPlan]);
    assert_eq!(service.keys().len(), 1);
}

#[test]
fn r12_a_plan_dated_by_a_clock_that_was_ahead_is_not_tried_again() {
    let service = Script::new(vec![unknown()]);
    let mut page = shop_of(1, &service);
    run_at(&mut page, &service, "2026-10-01T20:00:00Z");
    let closings = |retention, now| guard_closings(&page, retention, now);
    let day = service.retention();
    assert_eq!(closings(day, "2026-10-01T19:59:59Z"), 1);
    assert_eq!(closings(day, "2026-10-01T20:00:00Z"), 0);
    assert_eq!(closings(Retention::Forever, "2026-10-01T19:59:59Z"), 0);
}

fn guard_closings(page: &Sheet, retention: Retention, now: &str) -> usize {
    crate::domain::guard::plans_from_ahead(&page.0, retention, time(now)).len()
}
