//! R1 to R4: what a batch of events means, rule by rule, and that its order means nothing.

use super::*;
use crate::domain::admit::admit;
use crate::domain::event::{Invalid, RefundSignal};
use crate::domain::ledger::WaitingFor;
use proptest::prelude::*;

const OTHER: &str = "other@example.com";
const ALL_PENDING: &str = "pending pending pending pending";
const D0_ONLY: &str = "pending repurchase repurchase repurchase";
const ALL_STOPPED: &str = "stopped stopped stopped stopped";

/// Something else that an event says.
type Change = fn(&mut Checkout);

fn with(incoming: Incoming, change: impl FnOnce(&mut Checkout)) -> Incoming {
    let Incoming::Checkout(mut checkout) = incoming else { return incoming };
    change(&mut checkout);
    Incoming::Checkout(checkout)
}

fn failed(event: &str, session: &str) -> Incoming {
    Incoming::PaymentFailed { event: event.parse().unwrap(), session: sid(session) }
}

fn by_session(session: &str) -> StopTarget {
    StopTarget::Session(sid(session))
}

fn intent(id: &str) -> Refs {
    Refs { payment_intent: Some(id.into()), ..Refs::default() }
}

fn customer(id: &str) -> Refs {
    Refs { customer: Some(id.into()), ..Refs::default() }
}

// R1

#[test]
fn c033_an_unpaid_checkout_waits_and_its_days_count_from_the_event_that_paid_it() {
    let mut shop = Shop::new();
    let counts = shop.take(paid_at(), vec![unpaid("evt_1", "cs_1", BUYER, paid_at(), Payment::Unpaid)]);
    assert_eq!((counts.waiting, counts.purchases), (1, 0));
    assert!(!shop.knows("cs_1"));
    assert_eq!(shop.told(), Vec::<String>::new());

    let later = paid_at() + days(2);
    let counts = shop.take(later, vec![bought("evt_2", "cs_1", BUYER, later)]);
    assert_eq!((counts.waiting, counts.purchases), (0, 1));
    assert_eq!(shop.purchase("cs_1").paid_at, later);
    assert_eq!(shop.events("cs_1"), ["evt_1", "evt_2"]);
    assert!(shop.ledger.waiting.is_empty());
    // Neither event comes in again.
    let before = shop.ledger.clone();
    let again = vec![
        bought("evt_2", "cs_1", BUYER, later),
        unpaid("evt_1", "cs_1", BUYER, paid_at(), Payment::Unpaid),
    ];
    assert_eq!(shop.take(later, again).duplicates, 2);
    assert_eq!(shop.ledger, before);
}

#[test]
fn r1_of_several_paying_events_in_one_batch_the_earliest_counts() {
    let mut shop = Shop::new();
    shop.take(
        paid_at() + days(1),
        vec![
            bought("evt_3", "cs_1", BUYER, paid_at() + hours(5)),
            unpaid("evt_1", "cs_1", BUYER, paid_at() - hours(5), Payment::Unpaid),
            bought("evt_2", "cs_1", BUYER, paid_at()),
        ],
    );
    assert_eq!(shop.purchase("cs_1").paid_at, paid_at());
    assert_eq!(shop.events("cs_1"), ["evt_1", "evt_2", "evt_3"]);
    assert_eq!(shop.told(), Vec::<String>::new());
}

#[test]
fn r1_an_unknown_payment_status_is_not_paid_and_is_told_once() {
    let mut shop = Shop::new();
    let event = |id: &str| unpaid(id, "cs_1", BUYER, paid_at(), Payment::Unknown);
    shop.take(paid_at(), vec![event("evt_1")]);
    shop.take(paid_at() + hours(1), vec![event("evt_2")]);
    assert!(!shop.knows("cs_1"));
    assert_eq!(shop.told(), ["payment_status cs_1"]);
    shop.take(paid_at() + hours(2), vec![bought("evt_3", "cs_1", BUYER, paid_at() + hours(2))]);
    assert_eq!(shop.steps("cs_1", paid_at() + hours(2)), ALL_PENDING);
    assert_eq!(shop.events("cs_1"), ["evt_1", "evt_2", "evt_3"]);
}

#[test]
fn c033_a_failed_payment_ends_the_wait_and_nothing_else() {
    let mut shop = Shop::new();
    let wait = unpaid("evt_1", "cs_1", BUYER, paid_at(), Payment::Unpaid);
    shop.take(paid_at(), vec![wait.clone()]);
    shop.take(paid_at() + days(2), vec![failed("evt_2", "cs_1")]);
    assert!(shop.ledger.waiting.is_empty() && !shop.knows("cs_1"));
    // In one batch too, whatever stands first.
    let mut shop = Shop::new();
    shop.take(paid_at(), vec![failed("evt_2", "cs_1"), wait]);
    assert!(shop.ledger.waiting.is_empty());
    // What is paid stays paid.
    shop.take(paid_at(), vec![failed("evt_4", "cs_2"), bought("evt_3", "cs_2", BUYER, paid_at())]);
    shop.take(paid_at(), vec![failed("evt_5", "cs_2")]);
    assert_eq!(shop.steps("cs_2", paid_at()), ALL_PENDING);
    // Nor does it end the wait for an address.
    shop.take(paid_at(), vec![bought("evt_6", "cs_3", "", paid_at()), failed("evt_7", "cs_3")]);
    assert_eq!(shop.ledger.waiting.len(), 1);
}

#[test]
fn r1_a_renewal_classification_is_recorded_and_is_no_condition() {
    let mut shop = Shop::new();
    for (n, word) in [Some("renewal"), Some("new"), None].into_iter().enumerate() {
        let (event, session, email) = (format!("evt_{n}"), format!("cs_{n}"), format!("b{n}@example.com"));
        let event = with(bought(&event, &session, &email, paid_at()), |c| c.billing = word.map(Into::into));
        shop.take(paid_at(), vec![event]);
        assert_eq!(shop.steps(&session, paid_at()), ALL_PENDING, "{word:?}");
        assert_eq!(shop.purchase(&session).billing.as_deref(), word);
    }
}

#[test]
fn r1_what_only_the_waiting_event_said_is_not_lost_when_the_money_comes() {
    // In either order: the checkout that waited knows the address, the event that says "paid" does not.
    let told = |c: &mut Checkout| {
        c.name = Some("Hanako".into());
        c.amount = Some(yen(500));
        c.refs = intent("pi_1");
        c.vars.insert("plan".into(), "basic".into());
    };
    let first = with(unpaid("evt_1", "cs_1", BUYER, paid_at() - hours(1), Payment::Unpaid), told);
    let money = bought("evt_2", "cs_1", "", paid_at());
    for batches in [
        vec![vec![first.clone()], vec![money.clone()]],
        vec![vec![money.clone()], vec![first.clone()]],
        vec![vec![first.clone(), money.clone()]],
        vec![vec![money, first]],
    ] {
        let mut shop = Shop::new();
        for batch in batches.clone() {
            shop.take(paid_at(), batch);
        }
        assert_eq!(shop.steps("cs_1", paid_at()), ALL_PENDING, "{batches:?}");
        let purchase = shop.purchase("cs_1");
        assert_eq!(purchase.paid_at, paid_at());
        assert_eq!(purchase.name.as_deref(), Some("Hanako"));
        assert_eq!((&purchase.amount, &purchase.refs), (&Some(yen(500)), &intent("pi_1")));
        assert_eq!(purchase.vars["plan"], "basic");
        assert_eq!(shop.events("cs_1"), ["evt_1", "evt_2"]);
        assert!(shop.ledger.waiting.is_empty());
    }
}

// R2

#[test]
fn c003_one_event_four_times_in_a_batch_and_again_in_the_next_run_is_one_purchase() {
    let mut shop = Shop::new();
    let event = || bought("evt_1", "cs_1", BUYER, paid_at());
    let counts = shop.take(paid_at(), vec![event(), event(), event(), event()]);
    assert_eq!((counts.purchases, counts.duplicates, counts.invalid), (1, 3, 0));
    let before = shop.ledger.clone();
    // A run that learns nothing records nothing (R12).
    let intake = admit(&shop.ledger, vec![event()], paid_at() + hours(1));
    assert_eq!((intake.counts.duplicates, intake.facts.len()), (1, 0));
    assert_eq!(shop.ledger, before);
}

#[test]
fn r2_another_event_of_a_known_session_fills_in_what_was_absent() {
    let mut shop = Shop::new();
    shop.take(
        paid_at(),
        vec![with(bought("evt_1", "cs_1", BUYER, paid_at()), |c| c.name = Some("Hanako".into()))],
    );
    let fuller = with(bought("evt_2", "cs_1", " BUYER@Example.com ", paid_at() + hours(3)), |c| {
        c.name = Some("Somebody else".into());
        c.locale = Some("ja".into());
        c.amount = Some(yen(500));
        c.refs = intent("pi_1");
    });
    let counts = shop.take(paid_at() + hours(3), vec![fuller, bought("evt_3", "cs_1", "", paid_at())]);
    assert_eq!((counts.purchases, counts.duplicates, counts.invalid), (0, 2, 0));
    let purchase = shop.purchase("cs_1");
    assert_eq!((purchase.paid_at, purchase.email.as_str()), (paid_at(), BUYER));
    assert_eq!((purchase.name.as_deref(), purchase.locale.as_deref()), (Some("Hanako"), Some("ja")));
    assert_eq!((&purchase.amount, &purchase.refs), (&Some(yen(500)), &intent("pi_1")));
    assert_eq!(shop.events("cs_1"), ["evt_1", "evt_2", "evt_3"]);
    assert_eq!(shop.told(), Vec::<String>::new());
}

#[test]
fn r2_another_address_or_amount_is_refused_and_told_once_and_the_record_stands() {
    let change: [(&str, Change); 3] = [
        ("address", |c| c.email = Some(address(OTHER))),
        ("amount", |c| c.amount = Some(yen(501))),
        ("currency", |c| c.amount = Some(Amount { value: 500, currency: "usd".into() })),
    ];
    for (what, change) in change {
        let mut shop = Shop::new();
        let event = |id: &str| with(bought(id, "cs_1", BUYER, paid_at()), |c| c.amount = Some(yen(500)));
        shop.take(paid_at(), vec![event("evt_1")]);
        let before = shop.ledger.clone();
        for id in ["evt_2", "evt_3", "evt_2"] {
            let counts = shop.take(paid_at() + hours(1), vec![with(event(id), change)]);
            assert_eq!((counts.purchases, counts.invalid), (0, 1), "{what}");
        }
        assert_eq!(shop.told(), ["conflict cs_1"], "{what}");
        assert_eq!(shop.ledger.buyers, before.buyers, "{what}");
    }
}

#[test]
fn r2_a_paid_event_that_contradicts_what_waited_is_followed_and_told() {
    let waited = unpaid("evt_1", "cs_1", OTHER, paid_at() - hours(1), Payment::Unpaid);
    let paid = bought("evt_2", "cs_1", BUYER, paid_at());
    for order in [[waited.clone(), paid.clone()], [paid, waited]] {
        let mut shop = Shop::new();
        for event in order {
            shop.take(paid_at(), vec![event]);
        }
        // Mails go to the address that was paid with, in either order.
        assert_eq!(shop.purchase("cs_1").email.as_str(), BUYER);
        assert_eq!(shop.told(), ["conflict cs_1"]);
    }
}

#[test]
fn c016_c017_letter_case_is_one_person_and_mails_go_to_the_address_as_written() {
    let mut shop = Shop::new();
    shop.take(paid_at(), vec![bought("evt_1", "cs_1", "Buyer@Example.com", paid_at())]);
    let later = paid_at() + days(1);
    let others = vec![
        bought("evt_2", "cs_2", BUYER, later),
        bought("evt_3", "cs_3", "buy.er@example.com", later),
        bought("evt_4", "cs_4", "buyer+shop@example.com", later),
    ];
    shop.take(later, others);
    assert_eq!(shop.ledger.buyers.len(), 3);
    assert_eq!(shop.purchase("cs_1").email.as_str(), "Buyer@Example.com");
    assert_eq!(shop.purchase("cs_2").email.as_str(), BUYER);
    shop.mark(Whom::Address(address("BUYER@EXAMPLE.COM")), MarkKind::Stopped, later);
    assert_eq!(shop.steps("cs_1", later), ALL_STOPPED);
    assert_eq!(shop.steps("cs_2", later), "stopped repurchase repurchase repurchase");
    assert_eq!(shop.steps("cs_3", later), ALL_PENDING);
    assert_eq!(shop.steps("cs_4", later), ALL_PENDING);
}

#[test]
fn r2_one_event_id_for_two_sessions_is_told_and_swallows_nobody_in_silence() {
    let slip = bought("evt_1", "cs_2", OTHER, paid_at() + ONE);
    for in_one_batch in [true, false] {
        let mut shop = Shop::new();
        let first = bought("evt_1", "cs_1", BUYER, paid_at());
        let counts = if in_one_batch {
            shop.take(paid_at() + ONE, vec![slip.clone(), first])
        } else {
            shop.take(paid_at(), vec![first]);
            shop.take(paid_at() + ONE, vec![slip.clone()])
        };
        assert_eq!(counts.invalid, 1);
        assert!(shop.knows("cs_1") && !shop.knows("cs_2"));
        assert_eq!(shop.told(), ["conflict evt_1"]);
        // An id held by a session that only waits is held all the same.
        shop.take(paid_at(), vec![unpaid("evt_5", "cs_5", OTHER, paid_at(), Payment::Unpaid)]);
        shop.take(paid_at(), vec![bought("evt_5", "cs_6", OTHER, paid_at())]);
        assert!(!shop.knows("cs_6"));
        assert_eq!(shop.told(), ["conflict evt_1", "conflict evt_5"]);
    }
}

// R3

#[test]
fn c030_c031_a_further_purchase_gets_the_way_in_alone_and_the_first_goes_on() {
    for gap in [Seconds(5), days(5), days(400)] {
        let mut shop = Shop::new();
        shop.take(paid_at(), vec![bought("evt_1", "cs_1", BUYER, paid_at())]);
        let later = paid_at() + gap;
        let counts = shop.take(later, vec![bought("evt_2", "cs_2", BUYER, later)]);
        assert_eq!(counts.purchases, 1);
        assert_eq!(shop.purchase("cs_2").kind, Kind::Repurchase);
        assert_eq!(shop.steps("cs_2", paid_at()), D0_ONLY, "{gap}");
        assert_eq!(shop.steps("cs_1", paid_at()), ALL_PENDING, "{gap}");
    }
}

#[test]
fn c030_in_one_batch_the_earlier_payment_is_the_first_purchase_then_the_session_decides() {
    let table = [
        // (session, seconds after paid_at) twice; which of them is the first purchase.
        (("cs_1", 5), ("cs_2", 0), "cs_2"),
        (("cs_1", 0), ("cs_2", 5), "cs_1"),
        (("cs_2", 0), ("cs_1", 0), "cs_1"),
    ];
    for (a, b, first) in table {
        for (a, b) in [(a, b), (b, a)] {
            let event = |id: &str, (session, after): (&str, i64)| {
                bought(id, session, BUYER, paid_at() + Seconds(after))
            };
            // The event ids must not decide.
            for (x, y) in [("evt_1", "evt_2"), ("evt_2", "evt_1")] {
                let mut shop = Shop::new();
                shop.take(paid_at() + hours(1), vec![event(x, a), event(y, b)]);
                for session in ["cs_1", "cs_2"] {
                    let kind = if session == first { Kind::First } else { Kind::Repurchase };
                    assert_eq!(shop.purchase(session).kind, kind, "{session} of {a:?} {b:?}");
                }
            }
        }
    }
}

#[test]
fn r3_history_and_a_hands_word_count_but_stops_and_waiting_checkouts_do_not() {
    let event = || bought("evt_9", "cs_9", BUYER, paid_at());
    let kind = |prepare: &dyn Fn(&mut Shop)| {
        let mut shop = Shop::new();
        prepare(&mut shop);
        shop.take(paid_at(), vec![event()]);
        shop.purchase("cs_9").kind
    };
    let old = t("2026-08-01T00:00:00Z");
    assert_eq!(kind(&|_| ()), Kind::First);
    assert_eq!(kind(&|s| _ = s.take(old, vec![bought("evt_1", "cs_1", BUYER, old)])), Kind::Repurchase);
    let whom = || Whom::Address(address(BUYER));
    assert_eq!(kind(&|s| s.mark(whom(), MarkKind::Repurchase, old)), Kind::Repurchase);
    assert_eq!(kind(&|s| s.mark(Whom::Session(sid("cs_9")), MarkKind::Repurchase, old)), Kind::Repurchase);
    assert_eq!(kind(&|s| s.mark(Whom::Session(sid("cs_8")), MarkKind::Repurchase, old)), Kind::First);
    assert_eq!(kind(&|s| s.mark(whom(), MarkKind::Stopped, old)), Kind::First);
    assert_eq!(kind(&|s| s.mark(whom(), MarkKind::Started, old)), Kind::First);
    let waits = || unpaid("evt_1", "cs_1", BUYER, paid_at(), Payment::Unpaid);
    assert_eq!(kind(&|s| _ = s.take(paid_at(), vec![waits()])), Kind::First);
}

#[test]
fn r3_marks_for_a_session_to_come_find_it() {
    let mut shop = Shop::new();
    let whom = || Whom::Session(sid("cs_1"));
    for kind in [MarkKind::Repurchase, MarkKind::Started, MarkKind::Stopped] {
        shop.mark(whom(), kind, paid_at() - hours(1));
    }
    assert_eq!((shop.ledger.loose_marks.len(), shop.ledger.loose_stops.len()), (2, 1));
    shop.take(paid_at(), vec![bought("evt_1", "cs_1", BUYER, paid_at())]);
    let purchase = shop.purchase("cs_1");
    let at = |mark: &Option<Mark>| mark.as_ref().map(|mark| mark.at);
    for mark in [&purchase.marked_repurchase, &purchase.started, &purchase.stopped] {
        assert_eq!(at(mark), Some(paid_at() - hours(1)));
    }
    assert_eq!(shop.steps("cs_1", paid_at()), "stopped repurchase repurchase repurchase");
    assert!(shop.ledger.loose_marks.is_empty() && shop.ledger.loose_stops.is_empty());
}

// R4

#[test]
fn c028_what_was_paid_before_go_live_is_mailed_nothing_to_the_second() {
    let live = t("2026-09-01T00:00:00Z");
    let mut shop = Shop::new();
    let batch = vec![
        bought("evt_1", "cs_1", BUYER, live - ONE),
        bought("evt_2", "cs_2", OTHER, live),
        bought("evt_3", "cs_3", BUYER, live),
    ];
    let counts = shop.take(live, batch);
    assert_eq!((counts.history, counts.purchases), (1, 2));
    assert_eq!(shop.steps("cs_1", live), "history history history history");
    assert_eq!(shop.steps("cs_2", live), ALL_PENDING);
    assert_eq!(shop.steps("cs_3", live), D0_ONLY);
    // A stop does not change the reason; nor is a human told of a purchase that is mailed nothing anyway.
    shop.mark(Whom::Address(address("x@example.com")), MarkKind::Stopped, live);
    shop.take(live, vec![bought("evt_4", "cs_4", "x@example.com", live - days(1))]);
    assert_eq!(shop.steps("cs_4", live), "history history history history");
    assert_eq!(shop.told(), Vec::<String>::new());
}

// R12

#[test]
fn r12_a_purchase_dated_more_than_ten_minutes_ahead_waits_for_its_date() {
    let minutes = Seconds::minutes;
    let mut shop = Shop::new();
    let batch = vec![
        bought("evt_1", "cs_1", BUYER, paid_at() + minutes(10)),
        bought("evt_2", "cs_2", OTHER, paid_at() + minutes(10) + ONE),
    ];
    let counts = shop.take(paid_at(), batch);
    assert_eq!((counts.purchases, counts.waiting), (1, 1));
    assert!(shop.knows("cs_1") && !shop.knows("cs_2"));
    assert_eq!(shop.told(), ["paid_ahead cs_2"]);
    // Later runs bring no event at all.
    shop.take(paid_at(), vec![]);
    assert!(!shop.knows("cs_2"));
    shop.take(paid_at() + ONE, vec![]);
    assert_eq!(shop.purchase("cs_2").paid_at, paid_at() + minutes(10) + ONE);
    assert_eq!(shop.steps("cs_2", paid_at() + ONE), ALL_PENDING);
    assert_eq!(shop.events("cs_2"), ["evt_2"]);
    assert!(shop.ledger.waiting.is_empty());
    assert_eq!(shop.told().len(), 1);
}

#[test]
fn r12_a_purchase_that_waited_for_its_date_is_still_sorted_in_by_payment() {
    let mut shop = Shop::new();
    let date = paid_at() + hours(1);
    shop.take(paid_at(), vec![bought("evt_1", "cs_1", BUYER, date)]);
    shop.take(date + hours(1), vec![bought("evt_2", "cs_2", BUYER, date - ONE)]);
    assert_eq!(shop.purchase("cs_2").kind, Kind::First);
    assert_eq!(shop.purchase("cs_1").kind, Kind::Repurchase);
}

// Addresses

#[test]
fn c034_a_paid_checkout_without_a_usable_address_waits_is_told_once_and_can_be_mended() {
    let faults: [(&str, Change); 2] =
        [("no_address cs_1", |_| ()), ("bad_address cs_1", |c| c.email_fault = Some("has no @".into()))];
    for (told, change) in faults {
        let mut shop = Shop::new();
        let event = |id: &str| with(bought(id, "cs_1", "", paid_at()), change);
        let counts = shop
            .take(paid_at(), vec![event("evt_1"), event("evt_2"), bought("evt_9", "cs_9", OTHER, paid_at())]);
        // The rest of the batch is processed.
        assert_eq!((counts.waiting, counts.purchases), (2, 1));
        assert_eq!(shop.told(), [told]);
        assert_eq!(shop.ledger.waiting[0].why, WaitingFor::Address);
        // An older event that says "unpaid" changes nothing.
        let older = with(unpaid("evt_0", "cs_1", "", paid_at() - ONE, Payment::Unpaid), change);
        shop.take(paid_at(), vec![older]);
        assert_eq!(shop.ledger.waiting[0].why, WaitingFor::Address);
        shop.take(paid_at() + hours(1), vec![bought("own_1", "cs_1", BUYER, paid_at())]);
        assert_eq!(shop.steps("cs_1", paid_at()), ALL_PENDING);
        assert_eq!(shop.events("cs_1"), ["evt_0", "evt_1", "evt_2", "own_1"]);
        assert!(shop.ledger.waiting.is_empty());
        assert_eq!(shop.told(), [told]);
    }
}

#[test]
fn c034_an_address_that_is_known_from_a_purchase_dated_ahead_is_not_forgotten() {
    let ahead = bought("evt_1", "cs_1", BUYER, paid_at() + hours(1));
    let bare = bought("evt_2", "cs_1", "", paid_at());
    for order in [[ahead.clone(), bare.clone()], [bare, ahead]] {
        let mut shop = Shop::new();
        for event in order {
            shop.take(paid_at(), vec![event]);
        }
        shop.take(paid_at() + hours(1), vec![]);
        assert_eq!(shop.steps("cs_1", paid_at() + hours(1)), ALL_PENDING);
        assert_eq!(shop.events("cs_1"), ["evt_1", "evt_2"]);
    }
}

// Stops

#[test]
fn r7_a_stop_finds_its_purchase_by_session_by_address_and_by_the_services_ids() {
    let refs = Refs {
        payment_intent: Some("pi_1".into()),
        invoice: Some("in_1".into()),
        subscription: Some("sub_1".into()),
        customer: Some("cus_1".into()),
    };
    let only = |change: fn(&mut Refs)| {
        let mut refs = Refs::default();
        change(&mut refs);
        StopTarget::Refs(refs)
    };
    let table: [(&str, StopTarget, Seconds, bool); 13] = [
        ("session", by_session("cs_1"), days(1), true),
        ("address", StopTarget::Buyer(address("Buyer@example.com")), days(1), true),
        ("payment", only(|r| r.payment_intent = Some("pi_1".into())), days(1), true),
        ("invoice", only(|r| r.invoice = Some("in_1".into())), days(1), true),
        ("subscription", only(|r| r.subscription = Some("sub_1".into())), days(1), true),
        (
            "an exact id counts whenever it was paid",
            only(|r| r.payment_intent = Some("pi_1".into())),
            days(-1),
            true,
        ),
        ("customer, paid before", only(|r| r.customer = Some("cus_1".into())), Seconds(0), true),
        ("customer, paid after", only(|r| r.customer = Some("cus_1".into())), Seconds(-1), false),
        (
            "customer, and an id that differs",
            only(|r| (r.customer, r.payment_intent) = (Some("cus_1".into()), Some("pi_9".into()))),
            days(1),
            false,
        ),
        (
            "one id is the same, another differs",
            only(|r| (r.invoice, r.payment_intent) = (Some("in_1".into()), Some("pi_9".into()))),
            days(1),
            true,
        ),
        ("another customer", only(|r| r.customer = Some("cus_9".into())), days(1), false),
        ("no id at all", StopTarget::Refs(Refs::default()), days(1), false),
        ("another session", by_session("cs_9"), days(1), false),
    ];
    let event = with(bought("evt_1", "cs_1", BUYER, paid_at()), |c| c.refs = refs.clone());
    for (what, target, after, hits) in table {
        // After the purchase, in one batch with it, and before it.
        let signal = stop("evt_2", paid_at() + after, target.clone());
        for batches in [
            vec![vec![event.clone()], vec![signal.clone()]],
            vec![vec![signal.clone(), event.clone()]],
            vec![vec![signal.clone()], vec![event.clone()]],
        ] {
            let mut shop = Shop::new();
            let mut stops = 0;
            for batch in batches {
                stops += shop.take(paid_at() + days(1), batch).stops;
            }
            assert_eq!(stops, 1, "{what}");
            let expected = if hits { ALL_STOPPED } else { ALL_PENDING };
            assert_eq!(shop.steps("cs_1", paid_at() + days(1)), expected, "{what}");
            // The same stop once more is a duplicate, linked or not.
            let before = shop.ledger.clone();
            assert_eq!(shop.take(paid_at() + days(2), vec![signal.clone()]).duplicates, 1, "{what}");
            assert_eq!(shop.ledger, before, "{what}");
        }
    }
}

#[test]
fn r7_a_stop_before_its_purchase_is_kept_told_once_and_stops_it_at_admission() {
    for (target, named) in [(by_session("cs_1"), "cs_1"), (StopTarget::Refs(intent("pi_1")), "pi_1")] {
        let mut shop = Shop::new();
        shop.take(paid_at(), vec![stop("evt_1", paid_at(), target.clone())]);
        assert_eq!(shop.told(), [format!("unlinked_stop {named}")]);
        assert_eq!(shop.ledger.loose_stops.len(), 1);
        let event = with(bought("evt_2", "cs_1", BUYER, paid_at()), |c| c.refs = intent("pi_1"));
        let intake = admit(&shop.ledger, vec![event.clone()], paid_at());
        let admitted = intake.facts.iter().find_map(|fact| match fact {
            Fact::Admitted { purchase } => Some(purchase),
            _ => None,
        });
        // Not a moment open.
        assert!(admitted.unwrap().steps.iter().all(|(_, state)| !state.is_open()));
        shop.record(&intake.facts);
        assert_eq!(shop.steps("cs_1", paid_at()), ALL_STOPPED);
        assert!(shop.purchase("cs_1").stopped.is_some());
        assert!(shop.ledger.loose_stops.is_empty());
        assert_eq!(shop.told(), [format!("unlinked_stop {named}")]);
    }
}

#[test]
fn r7_a_stop_that_only_the_customer_links_still_finds_the_purchase_it_names_exactly() {
    let gift = with(bought("evt_1", "cs_1", BUYER, paid_at()), |c| c.refs = customer("cus_1"));
    let other_gift = with(bought("evt_4", "cs_4", OTHER, paid_at() + ONE), |c| c.refs = customer("cus_1"));
    let refunded = with(bought("evt_2", "cs_2", OTHER, paid_at()), |c| {
        c.refs = Refs { customer: Some("cus_1".into()), ..intent("pi_2") };
    });
    let refs = Refs { customer: Some("cus_1".into()), ..intent("pi_2") };
    let refund = stop("evt_3", paid_at() + hours(1), StopTarget::Refs(refs));
    // The refund overtakes the purchase it belongs to, while another of this customer is on record.
    let mut shop = Shop::new();
    for event in [gift, refund.clone(), refunded, other_gift] {
        shop.take(paid_at() + hours(2), vec![event]);
    }
    assert_eq!(shop.steps("cs_2", paid_at() + hours(2)), ALL_STOPPED);
    assert_eq!(shop.take(paid_at() + hours(3), vec![refund]).duplicates, 1);
}

#[test]
fn r7_of_several_purchases_the_exact_one_is_stopped_and_else_all_of_the_customer() {
    let event = |n: i64, refs: Refs| {
        let (event, session, email) = (format!("evt_{n}"), format!("cs_{n}"), format!("b{n}@example.com"));
        with(bought(&event, &session, &email, paid_at()), |c| c.refs = refs)
    };
    let both = || Refs { customer: Some("cus_1".into()), ..intent("pi_1") };
    let stopped = |refs: Refs| {
        let mut shop = Shop::new();
        shop.take(
            paid_at(),
            vec![event(1, both()), event(2, customer("cus_1")), event(3, customer("cus_1"))],
        );
        shop.take(paid_at() + ONE, vec![stop("evt_9", paid_at() + ONE, StopTarget::Refs(refs))]);
        ["cs_1", "cs_2", "cs_3"].map(|session| shop.purchase(session).stopped.is_some())
    };
    assert_eq!(stopped(both()), [true, false, false]);
    assert_eq!(stopped(customer("cus_1")), [true, true, true]);
}

#[test]
fn r7_the_earliest_of_several_stops_gives_the_reason() {
    let mut shop = Shop::new();
    shop.take(
        paid_at() + days(2),
        vec![
            stop("evt_3", paid_at() + days(2), by_session("cs_1")),
            bought("evt_1", "cs_1", BUYER, paid_at()),
            stop("evt_2", paid_at() + days(1), by_session("cs_1")),
        ],
    );
    assert_eq!(shop.purchase("cs_1").stopped.as_ref().unwrap().at, paid_at() + days(1));
}

#[test]
fn r7_a_partial_refund_stops_nothing_and_is_told_once() {
    let partial = |event: &str, refs: Refs| {
        let signal = StopSignal {
            event: event.parse().unwrap(),
            at: paid_at() + ONE,
            reason: "refund".into(),
            target: StopTarget::Refs(refs),
            asked: false,
            quiet: false,
        };
        Incoming::PartialRefund { signal, total: Some(40) }
    };
    let mut shop = Shop::new();
    let event = with(bought("evt_1", "cs_1", BUYER, paid_at()), |c| c.refs = intent("pi_1"));
    let counts = shop.take(paid_at() + ONE, vec![partial("evt_2", intent("pi_1")), event]);
    assert_eq!((counts.stops, counts.ignored), (0, 1));
    shop.take(paid_at() + hours(1), vec![partial("evt_2", intent("pi_1"))]);
    assert_eq!(shop.told(), ["partial_refund cs_1.40"]);
    assert_eq!(shop.ledger.matters[0].session, Some(sid("cs_1")));
    shop.take(paid_at() + hours(1), vec![partial("evt_3", intent("pi_9"))]);
    assert_eq!(shop.ledger.matters[1].session, None);
    assert_eq!(shop.steps("cs_1", paid_at()), ALL_PENDING);
    assert!(shop.ledger.loose_stops.is_empty());
}

#[test]
fn r7_a_stopped_buyers_new_purchase_is_recorded_closed_and_told() {
    let mut shop = Shop::new();
    shop.take(paid_at(), vec![stop("evt_1", paid_at(), StopTarget::Buyer(address("BUYER@example.com")))]);
    let later = paid_at() + days(9);
    shop.take(later, vec![bought("evt_2", "cs_2", BUYER, later)]);
    assert_eq!(shop.steps("cs_2", later), ALL_STOPPED);
    assert_eq!(shop.told(), ["stopped_buyer cs_2"]);
    shop.take(later, vec![bought("evt_3", "cs_3", BUYER, later)]);
    assert_eq!(shop.steps("cs_3", later), "stopped repurchase repurchase repurchase");
    assert_eq!(shop.told(), ["stopped_buyer cs_2", "stopped_buyer cs_3"]);
}

#[test]
fn c019_a_stopped_session_does_not_stop_the_buyers_next_purchase() {
    let mut shop = Shop::new();
    shop.take(
        paid_at(),
        vec![bought("evt_1", "cs_1", BUYER, paid_at()), stop("evt_2", paid_at(), by_session("cs_1"))],
    );
    shop.take(paid_at() + ONE, vec![bought("evt_3", "cs_3", BUYER, paid_at() + ONE)]);
    assert_eq!(shop.steps("cs_1", paid_at()), ALL_STOPPED);
    assert_eq!(shop.steps("cs_3", paid_at()), D0_ONLY);
    assert_eq!(shop.told(), Vec::<String>::new());
}

// The rest of a batch

#[test]
fn c074_what_starts_nothing_is_counted_and_what_cannot_be_read_is_told_once() {
    let broken = || {
        Incoming::Invalid(Invalid {
            subject: "evt_9".into(),
            place: "events.jsonl line 3".into(),
            why: "session is missing".into(),
        })
    };
    let mut shop = Shop::new();
    let counts = shop.take(
        paid_at(),
        vec![broken(), Incoming::Ignored, Incoming::Ignored, bought("evt_1", "cs_1", BUYER, paid_at())],
    );
    assert_eq!((counts.ignored, counts.invalid, counts.purchases), (2, 1, 1));
    assert_eq!(shop.take(paid_at() + hours(1), vec![broken()]).invalid, 1);
    assert_eq!(shop.told(), ["invalid_event evt_9"]);
    assert!(shop.ledger.matters[0].text.contains("events.jsonl line 3: session is missing"));
}

// Order

/// What events of one session may be: the session, its address, its payment.
fn event_of(n: usize) -> impl Strategy<Value = Incoming> {
    let session = format!("cs_{n}");
    let kind = 0..9usize;
    // Half an hour ahead of the batch's `now` at most; some before go-live.
    let at = prop_oneof![-30i64..0, Just(0i64), -1000i64..-400];
    (kind, at, 0..3usize, any::<bool>(), 0..1_000_000u32).prop_map(move |(kind, at, whose, bare, id)| {
        let at = paid_at() + hours(at);
        let email = ["a@example.com", "B@example.com", "b@EXAMPLE.com"][whose];
        let event = format!("evt_{n}_{id}");
        let refs = Refs { customer: Some(format!("cus_{whose}")), ..intent(&format!("pi_{n}")) };
        let full = |incoming| {
            with(incoming, |c| {
                c.refs = refs.clone();
                c.name = (!bare).then(|| format!("name {id}"));
                c.amount = if kind == 2 { Some(yen(i64::from(id % 2))) } else { None };
            })
        };
        match kind {
            0..3 => full(bought(&event, &session, email, at)),
            3 => full(bought(&event, &session, if bare { "" } else { email }, at + hours(40))),
            4 => full(unpaid(&event, &session, email, at, Payment::Unpaid)),
            5 => full(unpaid(&event, &session, if bare { "" } else { email }, at, Payment::Unknown)),
            6 => failed(&event, &session),
            7 => stop(&event, at, if bare { by_session(&session) } else { StopTarget::Refs(refs) }),
            _ => stop(&event, at, StopTarget::Buyer(address(email))),
        }
    })
}

fn id_of(incoming: &Incoming) -> String {
    match incoming {
        Incoming::Checkout(c) | Incoming::Unsorted { checkout: c, .. } => c.event.to_string(),
        Incoming::PaymentFailed { event, .. } => event.to_string(),
        Incoming::Stop(signal) | Incoming::PartialRefund { signal, .. } => signal.event.to_string(),
        Incoming::Refund(refund) => refund.signal.event.to_string(),
        Incoming::Ignored | Incoming::Invalid(_) => String::new(),
    }
}

/// Distinct events, as they came and in another order.
fn batch_and_permutation() -> impl Strategy<Value = (Vec<Incoming>, Vec<Incoming>)> {
    let events = prop::collection::vec((0..4usize).prop_flat_map(event_of), 1..10);
    let distinct = events.prop_map(|mut events| {
        events.sort_by_key(id_of);
        events.dedup_by_key(|event| id_of(event));
        events
    });
    distinct.prop_flat_map(|events| (Just(events.clone()).prop_shuffle(), Just(events).prop_shuffle()))
}

/// The ledger without the order of its lists.
fn unordered(ledger: &Ledger) -> serde_json::Value {
    fn sort(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Array(list) => {
                list.iter_mut().for_each(sort);
                list.sort_by_key(ToString::to_string);
            }
            serde_json::Value::Object(map) => map.values_mut().for_each(sort),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(ledger).unwrap();
    sort(&mut value);
    value
}

/// What each session will be mailed: to whom, from when, and the state of each step.
fn mails(shop: &mut Shop, now: Timestamp) -> Vec<String> {
    let all = shop.ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
    let mut sessions: Vec<String> = all.map(|purchase| purchase.session.to_string()).collect();
    sessions.sort();
    let mut mails = Vec::new();
    for session in sessions {
        let steps = shop.steps(&session, now);
        let purchase = shop.purchase(&session);
        mails.push(format!("{session} {} {} {steps}", purchase.email.buyer(), purchase.paid_at));
    }
    mails
}

/// One session per address, one payment per session, in any order of arrival.
fn arrivals() -> impl Strategy<Value = (Vec<Incoming>, Vec<Incoming>)> {
    let session = |n: usize| {
        let at = prop_oneof![-30i64..0, -1000i64..-400];
        let flags = prop::collection::vec(any::<bool>(), 6);
        (at, flags).prop_map(move |(at, flags)| {
            let (session, email) = (format!("cs_{n}"), format!("b{n}@example.com"));
            let at = paid_at() + hours(at);
            let id = |what: &str| format!("evt_{n}_{what}");
            // Two buyers share a customer, and one purchase has no payment of its own.
            let shared = Refs { customer: Some(format!("cus_{}", n / 2)), ..Refs::default() };
            let own = Refs { payment_intent: Some(format!("pi_{n}")), ..shared.clone() };
            // A refund of 2 that named the customer too would take 3 along while 2 is not known yet.
            let refund = if n == 2 { intent("pi_2") } else { own.clone() };
            let refs = if n == 3 { shared.clone() } else { own.clone() };
            let full = |incoming| with(incoming, |c| c.refs = refs.clone());
            let first = full(unpaid(&id("first"), &session, &email, at - hours(9), Payment::Unpaid));
            // The event that pays may lack the address, if the one before had it.
            let bare = flags[0] && flags[1];
            let paid = full(bought(&id("paid"), &session, if bare { "" } else { &email }, at));
            let mut events = vec![paid];
            let more = [
                (flags[0], first),
                (flags[2], stop(&id("stop"), at + hours(5), by_session(&session))),
                (flags[3] && flags[4], stop(&id("refund"), at + hours(5), StopTarget::Refs(refund))),
                (flags[5] && flags[4], stop(&id("gone"), at + hours(5), StopTarget::Buyer(address(&email)))),
                (flags[5] && flags[3], stop(&id("lost"), paid_at() - hours(15), StopTarget::Refs(shared))),
            ];
            events.extend(more.into_iter().filter(|(on, _)| *on).map(|(_, event)| event));
            events
        })
    };
    (session(0), session(1), session(2), session(3)).prop_flat_map(|(a, b, c, d)| {
        let all = [a, b, c, d].concat();
        (Just(all.clone()), Just(all).prop_shuffle())
    })
}

/// What a shop's payment service says of six sessions of four buyers, without a contradiction: each event with the run that
/// learns of it, some of them twice. A buyer's earlier payment comes no later than the next one.
fn runs() -> impl Strategy<Value = Vec<(usize, Incoming)>> {
    let session = |n: usize| {
        let flags = prop::collection::vec(any::<bool>(), 8);
        let runs = prop::collection::vec((0..4usize, 0..4usize), 9);
        (-30i64..0, flags, runs, 0..3i64).prop_map(move |(at, flags, runs, parts)| {
            let (session, email) = (format!("cs_{n}"), format!("b{}@example.com", n % 4));
            let at = paid_at() + hours(at);
            let id = |what: &str| format!("evt_{n}_{what}");
            let refs = Refs { subscription: Some(format!("sub_{n}")), ..intent(&format!("pi_{n}")) };
            let full = |incoming| {
                with(incoming, |c| {
                    c.refs = refs.clone();
                    c.amount = Some(yen(300));
                    c.name = Some(format!("name {n}"));
                })
            };
            let fails = flags[0] && flags[1] && flags[2];
            let first = full(unpaid(&id("first"), &session, &email, at - hours(9), Payment::Unpaid));
            let paid = full(bought(&id("paid"), &session, &email, at));
            let signal = |what: &str, after: i64, refs: Refs| {
                let Incoming::Stop(signal) = stop(&id(what), at + hours(after), StopTarget::Refs(refs))
                else {
                    panic!()
                };
                signal
            };
            let refund = |what: &str, part: i64| {
                let (refund, amount) = (format!("re_{n}_{part}"), yen(150));
                let signal = signal(what, 2 + part, intent(&format!("pi_{n}")));
                Incoming::Refund(RefundSignal { signal, refund, amount, failed: false })
            };
            let canceled = Refs { subscription: Some(format!("sub_{n}")), ..Refs::default() };
            let all = [
                (!fails, paid),
                (flags[0], first),
                (fails, failed(&id("failed"), &session)),
                (parts > 0, refund("refund_1", 1)),
                (parts > 0, refund("refund_1_again", 1)),
                (parts > 1, refund("refund_2", 2)),
                (flags[3] && flags[4], Incoming::Stop(signal("dispute", 3, intent(&format!("pi_{n}"))))),
                (flags[5] && flags[4], Incoming::Stop(signal("canceled", 1, canceled))),
                (flags[6] && flags[7], stop(&id("asked"), at + hours(4), StopTarget::Buyer(address(&email)))),
            ];
            let mut told = Vec::new();
            for ((on, event), (run, again)) in all.into_iter().zip(runs) {
                if on {
                    told.push((run, event.clone()));
                    told.push((run.max(again), event));
                }
            }
            told
        })
    };
    let all = (session(0), session(1), session(2), session(3), session(4), session(5));
    let all = all.prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].concat());
    all.prop_map(|mut told| {
        // R3: "already has" is the one thing that order may change.
        for whose in 0..2 {
            let payments = |told: &[(usize, Incoming)], session: &str| {
                let of = |(_, event): &(usize, Incoming)| {
                    event
                        .checkout()
                        .filter(|c| c.session.as_str() == session && c.payment == Payment::Paid)
                        .map(|c| c.at)
                };
                told.iter().find_map(of)
            };
            let (one, other) = (format!("cs_{whose}"), format!("cs_{}", whose + 4));
            let (Some(a), Some(b)) = (payments(&told, &one), payments(&told, &other)) else { continue };
            let (earlier, later) = if (a, &one) <= (b, &other) { (&one, &other) } else { (&other, &one) };
            let is_of = |event: &Incoming, session: &str| {
                event.checkout().is_some_and(|c| c.session.as_str() == session)
            };
            let last = told.iter().filter(|(_, event)| is_of(event, earlier)).map(|(run, _)| *run).max();
            for (run, event) in &mut told {
                if is_of(event, later) {
                    *run = (*run).max(last.unwrap_or(0));
                }
            }
        }
        told
    })
}

/// Takes each run's events in, draws what follows, and says what the ledger comes to, less the times at which that was.
fn after(told: &[(usize, Incoming)], run_of: impl Fn(usize) -> usize) -> serde_json::Value {
    fn forget_times(value: &mut serde_json::Value) {
        if let serde_json::Value::Object(map) = value {
            if map.get("state").is_some_and(|state| state == "closed") {
                map.remove("at");
            }
            map.remove("since");
            map.values_mut().for_each(forget_times);
        } else if let serde_json::Value::Array(list) = value {
            list.iter_mut().for_each(forget_times);
        }
    }
    let mut shop = Shop::new();
    for run in 0..4 {
        let now = paid_at() + hours(40 + i64::try_from(run).unwrap());
        let batch = told.iter().filter(|(of, _)| run_of(*of) == run).map(|(_, event)| event.clone());
        shop.take(now, batch.collect());
    }
    let now = paid_at() + hours(50);
    let buyers: Vec<Buyer> = shop.ledger.buyers.all().to_vec();
    for closing in buyers.iter().flat_map(|buyer| ask(buyer, &Policy::default(), now).closings) {
        let key = IdempotencyKey::Step(closing.session, closing.step);
        shop.record(&[Fact::Closed { key, at: now, reason: closing.reason }]);
    }
    // What was told on the way is told of the way.
    shop.ledger.matters.clear();
    for failed in &mut shop.ledger.failed {
        failed.at = now;
    }
    let mut value = unordered(&shop.ledger);
    forget_times(&mut value);
    value
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn r1_the_order_inside_a_batch_means_nothing((one, other) in batch_and_permutation()) {
        let (mut a, mut b) = (Shop::new(), Shop::new());
        let counts = a.take(paid_at(), one.clone());
        prop_assert_eq!(counts, b.take(paid_at(), other.clone()));
        prop_assert_eq!(unordered(&a.ledger), unordered(&b.ledger));
        // And onto a ledger that knows something already.
        let half = one.len() / 2;
        let (mut a, mut b) = (Shop::new(), Shop::new());
        a.take(paid_at() - hours(1), one[..half].to_vec());
        b.take(paid_at() - hours(1), one[..half].to_vec());
        a.take(paid_at(), one);
        b.take(paid_at(), other);
        prop_assert_eq!(unordered(&a.ledger), unordered(&b.ledger));
    }

    #[test]
    fn r2_a_batch_that_comes_again_records_nothing((one, other) in batch_and_permutation()) {
        let mut shop = Shop::new();
        shop.take(paid_at(), one);
        let again = admit(&shop.ledger, other, paid_at() + ONE);
        prop_assert_eq!(again.facts, vec![]);
        prop_assert_eq!(again.counts.purchases, 0);
    }

    #[test]
    fn r1_any_order_doubling_and_split_over_runs_gives_the_same_ledger(
        (told, shuffled) in runs().prop_flat_map(|told| (Just(told.clone()), Just(told).prop_shuffle()))
    ) {
        let at_once = after(&told, |_| 0);
        prop_assert_eq!(&after(&told, |run| run), &at_once);
        prop_assert_eq!(&after(&shuffled, |run| run), &at_once);
        prop_assert_eq!(&after(&shuffled, |_| 3), &at_once);
    }

    #[test]
    fn r1_any_order_of_arrival_gives_the_same_mails((events, shuffled) in arrivals()) {
        let now = paid_at() + hours(9);
        let mut whole = Shop::new();
        whole.take(now, events);
        let mut single = Shop::new();
        for event in shuffled {
            single.take(now, vec![event]);
        }
        prop_assert_eq!(mails(&mut whole, now), mails(&mut single, now));
    }
}
