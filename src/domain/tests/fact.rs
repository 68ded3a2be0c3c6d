//! What facts do to the ledger, and what a ledger's JSON may not say.

use super::*;
use crate::domain::ledger::{
    Gap, LastRun, LooseRefund, LooseStop, MarkKind, OUTBOX, PassedOver, Waiting, WaitingFor,
};
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::newsletter::{Reason, Standing};
use Step::{D0, D3, D7, D14};

fn later(n: i64) -> Timestamp {
    paid_at() + hours(n)
}

fn matter() -> Matter {
    Matter::new(MatterKind::NoAddress, "cs_2", paid_at(), Some(sid("cs_2")), "no address".into())
}

fn loose() -> LooseStop {
    LooseStop {
        at: paid_at(),
        reason: Some("refund".into()),
        event: Some("evt_s".parse().unwrap()),
        session: None,
        refs: Refs { payment_intent: Some("pi_9".into()), ..Refs::default() },
        asked: false,
        lifted: None,
    }
}

/// A ledger with something of everything, so that each fact has something to act on.
fn ledger() -> Ledger {
    let mut shop = Shop::new();
    let trial = StepState::Sent { at: paid_at(), message_id: "m".into(), via: OUTBOX.into(), fate: None };
    let rich = Purchase {
        name: Some("Hanako".into()),
        amount: Some(Amount { value: 500, currency: "jpy".into() }),
        events: vec!["evt_1".parse().unwrap()],
        refs: Refs { payment_intent: Some("pi_1".into()), ..Refs::default() },
        vars: [("plan".to_owned(), "basic".to_owned())].into(),
        ..purchase("cs_1", paid_at())
            .with(D0, trial)
            .with(D3, plan(later(80)))
            .with(D7, refused(2, later(90)))
    };
    let stopped = Purchase { stopped: Some(mark(paid_at())), ..purchase("cs_4", paid_at()).again() }
        .with(D0, closed(paid_at(), CloseReason::Stopped));
    let waiting = Waiting {
        why: WaitingFor::Address,
        since: paid_at(),
        checkout: checkout("evt_2", "cs_2", "", paid_at()),
        events: vec!["evt_0".parse().unwrap()],
        contradicts: Vec::new(),
    };
    shop.record(&[
        Fact::Admitted { purchase: Box::new(rich) },
        Fact::Admitted { purchase: Box::new(stopped) },
        Fact::Waits { waiting: Box::new(waiting) },
        Fact::StopKept { stop: Box::new(loose()) },
        Fact::Matter { matter: Box::new(matter()) },
    ]);
    shop.mark(Whom::Session(sid("cs_7")), MarkKind::Started, paid_at());
    shop.mark(Whom::Session(sid("cs_6")), MarkKind::Stopped, paid_at());
    shop.ledger
}

/// One fact of every kind, and of every target.
fn facts() -> Vec<Fact> {
    let at = later(81);
    let d3 = || key("cs_1", D3);
    let session = |text| Whom::Session(sid(text));
    let mut facts = vec![
        Fact::Named { ledger_id: "abc".into() },
        Fact::Admitted { purchase: Box::new(purchase("cs_2", paid_at()).again()) },
        Fact::Filled {
            checkout: Box::new(Checkout {
                locale: Some("ja".into()),
                name: Some("Another".into()),
                vars: [("plan".to_owned(), "other".to_owned()), ("x".to_owned(), "y".to_owned())].into(),
                ..checkout("evt_3", "cs_1", BUYER, paid_at())
            }),
        },
        Fact::Waits {
            waiting: Box::new(Waiting {
                why: WaitingFor::Payment,
                since: at,
                checkout: checkout("evt_4", "cs_2", "", at),
                events: Vec::new(),
                contradicts: Vec::new(),
            }),
        },
        Fact::Refunded {
            session: sid("cs_1"),
            refund: Box::new(part("re_1", 30, at)),
            events: vec!["evt_5".parse().unwrap()],
        },
        Fact::RefundKept {
            refund: Box::new(LooseRefund {
                refund: part("re_2", 30, at),
                refs: Refs { payment_intent: Some("pi_9".to_owned()), ..Refs::default() },
                session: None,
                events: vec!["evt_6".parse().unwrap()],
            }),
        },
        Fact::Newsletter {
            session: sid("cs_1"),
            standing: Standing::Told { at, reason: Reason::Several, untold: false },
        },
        Fact::PassedOver { over: PassedOver { session: sid("cs_9"), at, items: vec!["price_1".to_owned()] } },
        Fact::WaitOver { session: sid("cs_2") },
        Fact::StopKept { stop: Box::new(LooseStop { at, ..loose() }) },
        Fact::StopLinked { stop: Box::new(loose()) },
        Fact::MarkLinked { session: sid("cs_7") },
        Fact::Closed { key: d3(), at, reason: CloseReason::UnknownResult },
        Fact::Closed { key: key("cs_1", D14), at, reason: CloseReason::Stale },
        Fact::Planned { key: key("cs_1", D7), at, message: Box::new(frozen()) },
        Fact::Unknown { key: d3(), at },
        Fact::NotSent { key: d3() },
        Fact::Refused { key: d3(), at, hash: "h".into(), reason: "no".into() },
        Fact::Sent { key: d3(), at, message_id: "m".into(), via: "post".into() },
        Fact::Resumed { whom: session("cs_4"), at },
        Fact::Resumed { whom: session("cs_6"), at },
        Fact::Reopened { key: key("cs_4", D0) },
        Fact::FoundUnsent { key: d3(), at, closed: None },
        Fact::FoundUnsent { key: d3(), at, closed: Some(CloseReason::Stale) },
        Fact::Planned { key: matter().key(), at, message: Box::new(frozen()) },
        Fact::Matter { matter: Box::new(Matter { subject: "cs_8".into(), ..matter() }) },
        Fact::MatterOver { kind: MatterKind::NoAddress, subject: "cs_2".into() },
        Fact::Allowed { at, mails: 300 },
        Fact::ClockAccepted { now: paid_at() - hours(1) },
        Fact::Ran { at, installation: Some("here".into()), path: Some("/shop/ledger.json".into()) },
        Fact::Adopted {
            installation: Some("here".into()),
            path: None,
            gap: Some(Gap { since: paid_at(), until: at }),
        },
        Fact::MayHaveLeft { key: d3(), gap: Gap { since: paid_at(), until: at } },
        Fact::MayHaveLeft { key: key("cs_1", D14), gap: Gap { since: paid_at(), until: at } },
        Fact::TrialUndone { key: key("cs_1", D0) },
        Fact::TrialKept { at },
    ];
    for whom in [
        session("cs_1"),
        session("cs_9"),
        Whom::Address(address(BUYER)),
        Whom::Address(address("n@example.com")),
    ] {
        for mark in [MarkKind::Stopped, MarkKind::Started, MarkKind::Repurchase, MarkKind::Outcome] {
            let event = Some("evt_m".parse().unwrap());
            facts.push(Fact::Marked { whom: whom.clone(), mark, at, reason: Some("why".into()), event });
        }
    }
    facts
}

#[test]
fn r8_a_fact_that_is_replayed_counts_once() {
    for fact in facts() {
        let mut once = ledger();
        apply(&mut once, &fact).unwrap();
        assert_ne!(once, ledger(), "{fact:?} changes nothing, so this test tries nothing");
        let mut twice = once.clone();
        apply(&mut twice, &fact).unwrap();
        assert_eq!(twice, once, "{fact:?}");
        // The indexes agree with the list: the ledger is read back as it was.
        let text = serde_json::to_string(&once).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), once, "{fact:?}");
    }
}

#[test]
fn every_fact_comes_back_from_the_journal_as_it_was() {
    for fact in facts() {
        let text = serde_json::to_string(&fact).unwrap();
        assert_eq!(serde_json::from_str::<Fact>(&text).unwrap(), fact, "{text}");
        let odd = text.replacen('{', "{\"odd\":1,", 1);
        assert!(serde_json::from_str::<Fact>(&odd).is_err(), "{odd}");
    }
}

#[test]
fn a_fact_about_a_purchase_that_is_gone_says_so_and_changes_nothing() {
    let (empty, at) = (Shop::new().ledger, paid_at());
    let gone = [
        Fact::Planned { key: key("cs_9", D0), at, message: Box::new(frozen()) },
        Fact::Sent { key: key("cs_9", D0), at, message_id: "m".into(), via: "post".into() },
        Fact::Filled { checkout: Box::new(checkout("evt_9", "cs_9", BUYER, at)) },
        Fact::NotSent { key: matter().key() },
        Fact::Reopened { key: key("cs_9", D0) },
        Fact::FoundUnsent { key: key("cs_9", D0), at, closed: None },
    ];
    for fact in gone {
        let mut ledger = empty.clone();
        let error = apply(&mut ledger, &fact).unwrap_err();
        assert!(error.about.contains("cs_"), "{error}");
        assert_eq!(ledger, empty);
    }
}

#[test]
fn never_twice_what_is_sent_stays_sent_whatever_is_recorded_later() {
    let at = later(90);
    let of = key("cs_1", D3);
    for fact in [
        Fact::Planned { key: of.clone(), at, message: Box::new(frozen()) },
        Fact::Unknown { key: of.clone(), at },
        Fact::NotSent { key: of.clone() },
        Fact::Refused { key: of.clone(), at, hash: "h".into(), reason: "no".into() },
        Fact::Closed { key: of.clone(), at, reason: CloseReason::Stopped },
        Fact::Sent { key: of.clone(), at, message_id: "another".into(), via: "x".into() },
        Fact::Reopened { key: of.clone() },
        Fact::FoundUnsent { key: of.clone(), at, closed: None },
        Fact::FoundUnsent { key: of.clone(), at, closed: Some(CloseReason::Stale) },
    ] {
        let mut ledger = ledger();
        let sent = Fact::Sent { key: of.clone(), at: later(81), message_id: "m".into(), via: "post".into() };
        apply(&mut ledger, &sent).unwrap();
        let before = ledger.clone();
        apply(&mut ledger, &fact).unwrap();
        assert_eq!(ledger, before, "{fact:?}");
    }
}

fn advance(session: &str, step: Step, facts: &[Fact]) -> StepState {
    let mut shop = Shop { ledger: ledger() };
    shop.record(facts);
    shop.purchase(session).steps.get(step).clone()
}

#[test]
fn r9_a_plan_keeps_the_refusals_before_it_and_counts_only_those_of_the_same_content() {
    let of = || key("cs_1", D7);
    let planned = || Fact::Planned { key: of(), at: later(100), message: Box::new(frozen()) };
    let no = |hash: &str| Fact::Refused { key: of(), at: later(100), hash: hash.into(), reason: "no".into() };
    let count = |facts: &[Fact]| advance("cs_1", D7, facts).refusals().map(|refused| refused.count);
    assert_eq!(count(&[]), Some(2));
    assert_eq!(count(&[planned()]), Some(2));
    assert_eq!(count(&[planned(), Fact::NotSent { key: of() }]), Some(2));
    assert_eq!(count(&[planned(), no("h")]), Some(3));
    assert_eq!(count(&[planned(), no("mended")]), Some(1));
    // Without a plan there was no attempt to refuse.
    assert_eq!(count(&[no("h")]), Some(2));
}

#[test]
fn c006_the_first_unknown_attempt_is_dated_from_its_plan_and_stays_the_first() {
    let unknown = |n| Fact::Unknown { key: key("cs_1", D3), at: later(n) };
    let state = advance("cs_1", D3, &[unknown(81), unknown(85)]);
    let StepState::Planned { first_unknown_at, last_unknown_at, .. } = &state else { panic!("{state:?}") };
    assert_eq!((*first_unknown_at, *last_unknown_at), (Some(later(80)), Some(later(85))));
    // Closing keeps both times; what was only pending has no attempt.
    let over = |step| Fact::Closed { key: key("cs_1", step), at: later(90), reason: CloseReason::Stopped };
    let StepState::Closed { attempt: Some(attempt), .. } =
        advance("cs_1", D3, &[unknown(81), unknown(85), over(D3)])
    else {
        panic!("the attempt is forgotten")
    };
    assert_eq!((attempt.first_at, attempt.last_at), (later(80), later(85)));
    assert_eq!(advance("cs_1", D14, &[over(D14)]), closed(later(90), CloseReason::Stopped));
    // Without a plan no attempt can have been made.
    let stray = Fact::Unknown { key: key("cs_1", D14), at: later(81) };
    assert_eq!(advance("cs_1", D14, &[stray]), StepState::pending());
}

#[test]
fn r7_the_first_stop_stays_and_a_second_is_no_new_reason() {
    let mut shop = Shop { ledger: ledger() };
    for whom in [Whom::Session(sid("cs_1")), Whom::Address(address(BUYER)), Whom::Session(sid("cs_9"))] {
        shop.mark(whom.clone(), MarkKind::Stopped, later(1));
        let before = shop.ledger.clone();
        shop.mark(whom, MarkKind::Stopped, later(2));
        assert_eq!(shop.ledger, before);
    }
}

#[test]
fn r7_what_is_lifted_is_the_stop_that_is_named_and_an_event_that_was_seen_stays_seen() {
    let mut shop = Shop { ledger: ledger() };
    let of_event =
        |session: &str| LooseStop { session: Some(sid(session)), refs: Refs::default(), ..loose() };
    let waits = of_event("cs_8");
    shop.record(&[Fact::StopKept { stop: Box::new(waits.clone()) }]);
    shop.mark(Whom::Address(address(BUYER)), MarkKind::Stopped, later(1));
    shop.mark(Whom::Session(sid("cs_1")), MarkKind::Stopped, later(1));
    let before = shop.ledger.clone();
    let lift = |shop: &mut Shop, whom| shop.record(&[Fact::Resumed { whom, at: later(2) }]);

    lift(&mut shop, Whom::Address(address("nobody@example.com")));
    lift(&mut shop, Whom::Session(sid("cs_nobody")));
    assert_eq!(shop.ledger, before, "nobody is entered for a stop that is not there");
    lift(&mut shop, Whom::Session(sid("cs_1")));
    assert!(shop.purchase("cs_1").stopped.is_none() && shop.purchase("cs_4").stopped.is_some());
    assert!(shop.buyer(BUYER).stopped.is_some());
    lift(&mut shop, Whom::Address(address("Buyer@Example.com")));
    assert!(shop.buyer(BUYER).stopped.is_none() && shop.purchase("cs_4").stopped.is_some());
    // Of a hand nothing stays; of an event its id, which may come again.
    lift(&mut shop, Whom::Session(sid("cs_6")));
    lift(&mut shop, Whom::Session(sid("cs_8")));
    assert_eq!(shop.ledger.loose_stops, [loose(), LooseStop { lifted: Some(later(2)), ..waits }]);
    // A hand that stops it again does so.
    shop.mark(Whom::Session(sid("cs_8")), MarkKind::Stopped, later(3));
    assert_eq!(shop.ledger.loose_stops.iter().filter(|stop| stop.is_in_force()).count(), 2);
}

#[test]
fn r7_a_lifted_stop_opens_nothing_that_may_have_been_sent_or_was_closed_for_another_reason() {
    let at = later(1);
    let reopened = [Fact::Reopened { key: key("cs_1", D14) }];
    for (state, opens) in [
        (closed(at, CloseReason::Stopped), true),
        (closed(at, CloseReason::Started), false),
        (closed(at, CloseReason::UnknownResult), false),
        (closed_after(at, at, CloseReason::Stopped), false),
        (plan(at), false),
        (sent(at), false),
        (refused(1, at), false),
    ] {
        let mut shop = Shop::new();
        let purchase = purchase("cs_1", paid_at()).with(D14, state.clone());
        shop.record(&[Fact::Admitted { purchase: Box::new(purchase) }]);
        shop.record(&reopened);
        let now = shop.purchase("cs_1").steps.d14.clone();
        assert_eq!(now, if opens { StepState::pending() } else { state });
    }
}

#[test]
fn r12_an_accepted_clock_lowers_what_stepmail_recorded_and_not_what_others_said() {
    let mut shop = Shop { ledger: ledger() };
    shop.mark(Whom::Address(address(BUYER)), MarkKind::Stopped, later(500));
    shop.mark(Whom::Address(address(BUYER)), MarkKind::Started, later(500));
    for whom in [Whom::Address(address(BUYER)), Whom::Session(sid("cs_1"))] {
        shop.mark(whom, MarkKind::Outcome, later(500));
    }
    shop.record(&[
        Fact::Unknown { key: key("cs_1", D3), at: later(85) },
        Fact::Allowed { at: later(500), mails: 3 },
        Fact::Ran { at: later(500), installation: Some("here".into()), path: None },
    ]);
    let now = later(-1);
    shop.record(&[Fact::ClockAccepted { now }]);
    assert_eq!(shop.ledger.newest_recorded(), Some(now));
    assert_eq!(
        shop.ledger.last_run,
        Some(LastRun { at: now, installation: Some("here".into()), path: None })
    );
    assert_eq!(shop.purchase("cs_1").paid_at, paid_at());
    assert_eq!(shop.buyer(BUYER).stopped.as_ref().unwrap().at, later(500));
}

#[test]
fn r7_a_stop_set_by_hand_after_a_resume_that_died_is_not_lifted_by_its_replay() {
    for whom in [Whom::Address(address(BUYER)), Whom::Session(sid("cs_1"))] {
        let mut shop = Shop { ledger: ledger() };
        shop.mark(whom.clone(), MarkKind::Stopped, later(3));
        shop.record(&[Fact::Resumed { whom: whom.clone(), at: later(2) }]);
        let stopped = shop.buyer(BUYER).stopped.is_some() || shop.purchase("cs_1").stopped.is_some();
        assert!(stopped, "{whom:?}: no flag is ever lost");
        shop.record(&[Fact::Resumed { whom, at: later(3) }]);
        assert!(shop.buyer(BUYER).stopped.is_none() && shop.purchase("cs_1").stopped.is_none());
    }
}

// The file

/// A ledger as a seller might have it, to be spoilt in one place.
fn text() -> String {
    let mut ledger = ledger();
    let second = Purchase { email: address("n@example.com"), ..purchase("cs_5", paid_at()) };
    apply(&mut ledger, &Fact::Admitted { purchase: Box::new(second) }).unwrap();
    serde_json::to_string(&ledger).unwrap()
}

fn read(text: &str) -> Result<Ledger, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn c060_a_ledger_that_says_something_else_than_we_read_is_refused() {
    let text = text();
    assert!(read(&text).is_ok());
    let d14 = r#""d14":{"state":"pending"}"#;
    let table: [(&str, &str, &str, &str); 27] = [
        // (what, replaced, by, what the error names)
        ("unknown field of the ledger", r#""version":1"#, r#""version":1,"stoped":[]"#, "stoped"),
        ("unknown field of a buyer", r#""purchases":["#, r#""stoped":null,"purchases":["#, "stoped"),
        ("unknown field of a purchase", r#""kind":"first""#, r#""kind":"first","stoped":null"#, "stoped"),
        ("unknown field of a pending step", d14, r#""d14":{"state":"pending","sent":true}"#, "sent"),
        ("unknown field of a sent step", r#""via":"outbox"}"#, r#""via":"outbox","to":"x"}"#, "to"),
        ("unknown field of a plan", r#""state":"planned","#, r#""state":"planned","key":"x","#, "key"),
        ("unknown field of refusals", r#""refused":{"count":2,"#, r#""refused":{"count":2,"n":1,"#, "`n`"),
        ("unknown step", d14, r#""d14":{"state":"pending"},"d30":{"state":"pending"}"#, "d30"),
        ("unknown state", d14, r#""d14":{"state":"done"}"#, "done"),
        ("unknown kind", r#""kind":"first""#, r#""kind":"third""#, "third"),
        ("unknown refs", r#""refs":{"#, r#""refs":{"charge":"ch_1","#, "charge"),
        ("a step without a state", d14, r#""d14":{}"#, "state"),
        ("a step that is a word", d14, r#""d14":"pending""#, "invalid type"),
        ("a step that is null", d14, r#""d14":null"#, "null"),
        ("a state twice", d14, r#""d14":{"state":"pending","state":"pending"}"#, "duplicate field `state`"),
        (
            "a message id twice",
            r#""message_id":"m""#,
            r#""message_id":"m","message_id":"n""#,
            "duplicate field",
        ),
        (
            "refusals twice",
            r#""refused":{"count":2,"#,
            r#""refused":null,"refused":{"count":2,"#,
            "duplicate field",
        ),
        ("a count twice", r#"{"count":2,"#, r#"{"count":2,"count":0,"#, "duplicate field"),
        (
            "a step twice",
            d14,
            r#""d14":{"state":"pending"},"d14":{"state":"pending"}"#,
            "duplicate field `d14`",
        ),
        (
            "stopped twice",
            r#""kind":"first""#,
            r#""stopped":null,"stopped":null,"kind":"first""#,
            "duplicate",
        ),
        ("a variable twice", r#""plan":"basic""#, r#""plan":"basic","plan":"x""#, "`plan` stands twice"),
        ("stopped: true", r#""kind":"first""#, r#""stopped":true,"kind":"first""#, "invalid type"),
        ("stopped: a date", r#""kind":"first""#, r#""stopped":"2026-09-21","kind":"first""#, "invalid type"),
        ("stopped: {}", r#""kind":"first""#, r#""stopped":{},"kind":"first""#, "missing field `at`"),
        ("a buyer stopped: true", r#""purchases":["#, r#""stopped":true,"purchases":["#, "invalid type"),
        ("a step missing", &format!(",{d14}"), "", "missing field `d14`"),
        ("a paid_at missing", r#""paid_at":"2026-09-21T01:00:00Z","#, "", "missing field `paid_at`"),
    ];
    for (what, from, to, names) in table {
        let spoilt = text.replacen(from, to, 1);
        assert_ne!(spoilt, text, "{what}: nothing was spoilt");
        match read(&spoilt) {
            Err(error) => assert!(error.contains(names), "{what}: {error}"),
            Ok(_) => panic!("{what} was read"),
        }
    }
}

#[test]
fn c060_a_purchase_without_steps_is_not_read_as_one_to_be_mailed() {
    let mut value: serde_json::Value = serde_json::from_str(&text()).unwrap();
    value["buyers"][0]["purchases"][0].as_object_mut().unwrap().remove("steps");
    assert!(read(&value.to_string()).unwrap_err().contains("missing field `steps`"));
    // Twice: the second one must not win in silence.
    let steps = serde_json::to_string(&purchase("cs_1", paid_at()).steps).unwrap();
    let twice = text().replacen("\"steps\":", &format!("\"steps\":{steps},\"steps\":"), 1);
    assert!(read(&twice).unwrap_err().contains("duplicate field `steps`"));
}

#[test]
fn c016_two_records_of_one_person_or_one_session_are_refused() {
    let change = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_str(&text()).unwrap();
        change(&mut value["buyers"]);
        read(&value.to_string()).unwrap_err()
    };
    let twin = |buyers: &mut serde_json::Value| {
        let mut twin = buyers[0].clone();
        twin["address"] = " Buyer@EXAMPLE.com".into();
        twin["purchases"] = serde_json::json!([]);
        buyers.as_array_mut().unwrap().push(twin);
    };
    assert!(change(&twin).contains("buyers[0] and buyers[2] have the same address"));
    let foreign = |buyers: &mut serde_json::Value| {
        buyers[1]["purchases"][0]["email"] = BUYER.into();
    };
    assert!(change(&foreign).contains("buyers[1].purchases[0].email"));
    let same_buyer = |buyers: &mut serde_json::Value| {
        let again = buyers[0]["purchases"][0].clone();
        buyers[0]["purchases"].as_array_mut().unwrap().push(again);
    };
    assert!(change(&same_buyer).contains("are both session cs_1"));
    let other_buyer = |buyers: &mut serde_json::Value| buyers[1]["purchases"][0]["session"] = "cs_1".into();
    assert!(change(&other_buyer).contains("are both session cs_1"));
}
