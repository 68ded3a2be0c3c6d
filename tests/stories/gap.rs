//! A time of which the payment service has no events any more: the computer was off, or the ledger begins earlier.

use serde_json::{Value, json};
use stepmail::domain::time::Timestamp;

use crate::double::{Act, Double, paid, session};
use crate::shop::Shop;

const BEFORE: &str = "2026-09-10T00:00:00Z";
/// In the time that nobody has read, and of which no event is left.
const AWAY: &str = "2026-09-12T00:00:00Z";
const BACK: &str = "2026-10-15T00:00:00Z";
const NEXT: &str = "2026-10-15T01:00:00Z";

fn unix(at: &str) -> i64 {
    Timestamp::parse(at).unwrap().unix()
}

fn shop() -> (Double, Shop) {
    let double = Double::new();
    let shop = Shop::polling(&double);
    (double, shop)
}

/// A payment with its charge.
fn payment(session: &str, charge: &Value) -> Value {
    let mut charge = charge.clone();
    (charge["id"], charge["object"]) = (format!("ch_{session}").into(), "charge".into());
    json!({ "id": format!("pi_{session}"), "object": "payment_intent", "status": "succeeded", "latest_charge": charge })
}

fn whole() -> Value {
    json!({ "amount": 100, "amount_refunded": 0, "refunded": false, "disputed": false, "created": unix("2026-09-12T00:05:00Z") })
}

fn with(mut charge: Value, field: &str, value: Value) -> Value {
    charge[field] = value;
    charge
}

fn subscribed(id: &str, at: &str) -> Value {
    let mut bought = session(id, &format!("{id}@example.com"), at);
    (bought["mode"], bought["payment_intent"]) = ("subscription".into(), Value::Null);
    (bought["subscription"], bought["invoice"]) = (format!("sub_{id}").into(), format!("in_{id}").into());
    bought
}

fn purchase(shop: &Shop, session: &str) -> Value {
    let ledger = shop.ledger();
    let buyers = ledger["buyers"].as_array().unwrap();
    let mut purchases = buyers.iter().flat_map(|buyer| buyer["purchases"].as_array().unwrap());
    purchases.find(|purchase| purchase["session"] == session).cloned().unwrap_or_default()
}

#[test]
fn after_35_days_off_buyers_of_that_time_get_their_way_in_and_those_whose_money_went_back_get_nothing() {
    let (double, shop) = shop();
    shop.run(BEFORE).exits(0);
    double.has_session(session("cs_paid", "paid@example.com", AWAY)).has(payment("cs_paid", &whole()));
    for (id, field, value) in [
        ("cs_refunded", "refunded", json!(true)),
        ("cs_all", "amount_refunded", json!(100)),
        ("cs_disputed", "disputed", json!(true)),
    ] {
        double.has_session(session(id, &format!("{id}@example.com"), AWAY));
        double.has(payment(id, &with(whole(), field, value)));
    }
    // Part of the money, and a subscription that goes on, stop nothing.
    double.has_session(session("cs_part", "part@example.com", AWAY));
    double.has(payment("cs_part", &with(whole(), "amount_refunded", json!(40))));
    for (id, field, value) in [
        ("cs_goes_on", "status", json!("active")),
        ("cs_ended", "status", json!("canceled")),
        ("cs_ending", "cancel_at_period_end", json!(true)),
        ("cs_ends", "cancel_at", json!(1_900_000_000)),
    ] {
        double.has_session(subscribed(id, AWAY));
        let subscription = json!({ "id": format!("sub_{id}"), "object": "subscription", "status": "active" });
        double.has(with(subscription, field, value));
    }
    // The first payment of a subscription went back.
    double.has_session(subscribed("cs_first", AWAY));
    double.invoice(json!({ "id": "in_cs_first", "object": "invoice" }), "pi_cs_first");
    double.has(payment("cs_first", &with(whole(), "refunded", json!(true))));
    // What is no purchase of ours.
    double.has_session(with(session("cs_open", "open@example.com", AWAY), "status", json!("open")));
    double.has_session(with(session("cs_live", "live@example.com", AWAY), "livemode", json!(true)));
    double.has_session(with(session("cs_setup", "setup@example.com", AWAY), "mode", json!("setup")));
    let unpaid = with(session("cs_unpaid", "unpaid@example.com", AWAY), "payment_status", json!("unpaid"));
    double.has_session(unpaid);

    // Yesterday's purchase is told by its event.
    double.happens(paid("cs_new", "new@example.com", "2026-10-14T00:00:00Z"));
    double.has_session(session("cs_new", "new@example.com", "2026-10-14T00:00:00Z"));

    let ran = shop.run(BACK).exits(1).hides_addresses().says("tell of the last 30 days only");
    assert_eq!(
        ran.mails(),
        ["pp:cs_goes_on:d0 sent", "pp:cs_paid:d0 sent", "pp:cs_part:d0 sent", "pp:cs_new:d0 sent"]
    );
    assert_eq!(ran.notices(), ["partial_refund", "missed"]);
    for id in ["cs_refunded", "cs_all", "cs_disputed", "cs_ended", "cs_ending", "cs_ends", "cs_first"] {
        assert_eq!(shop.steps(id), ["stopped"; 4], "{id}");
    }
    for id in ["cs_open", "cs_live", "cs_setup"] {
        assert!(!shop.read("ledger.json").contains(id), "{id}");
    }
    assert_eq!(purchase(&shop, "cs_paid")["paid_at"], "2026-09-12T00:05:00Z", "the charge's time");
    assert_eq!(purchase(&shop, "cs_goes_on")["paid_at"], AWAY, "the session's, where no charge is told");
    assert_eq!(shop.ledger()["waiting"][0]["checkout"]["session"], "cs_unpaid");
    let asked = double.polls().len();
    assert!(shop.run(NEXT).exits(0).notices().is_empty(), "told again");
    assert_eq!(double.polls().len(), asked + 1, "the sessions are read again each hour");
}

#[test]
fn what_was_known_before_the_time_off_is_asked_for_by_its_id() {
    let (double, shop) = shop();
    for id in ["cs_waits", "cs_fails", "cs_expires", "cs_still"] {
        let mut unpaid = paid(id, &format!("{id}@example.com"), "2026-09-09T23:00:00Z");
        unpaid["data"]["object"]["payment_status"] = "unpaid".into();
        double.happens(unpaid);
    }
    shop.run(BEFORE).exits(0);
    // Taken in, and not mailed before the computer went off.
    shop.buys("cs_open", "open@example.com", BEFORE).buys("cs_by_hand", "hand@example.com", BEFORE);
    shop.stepmail(&["ingest", "events.jsonl", "--now", BEFORE]).exits(0);
    let unpaid = |id: &str| {
        let of = session(id, &format!("{id}@example.com"), "2026-09-09T23:00:00Z");
        with(of, "payment_status", json!("unpaid"))
    };
    double.has_session(session("cs_waits", "cs_waits@example.com", "2026-09-09T23:00:00Z"));
    double.has(payment("cs_waits", &with(whole(), "created", json!(unix("2026-09-11T00:00:00Z")))));
    double.has_session(unpaid("cs_fails"));
    double
        .has(json!({ "id": "pi_cs_fails", "object": "payment_intent", "status": "requires_payment_method" }));
    double.has_session(with(unpaid("cs_expires"), "status", json!("expired")));
    double.has_session(unpaid("cs_still"));
    double.has(json!({ "id": "pi_cs_still", "object": "payment_intent", "status": "processing" }));
    double.has_session(session("cs_open", "other@example.com", BEFORE));
    double.has(payment("cs_open", &with(whole(), "refunded", json!(true))));

    let ran = shop.run(BACK).exits(1);
    assert_eq!(ran.notices(), ["missed"], "{}", ran.stdout);
    assert_eq!(ran.mails(), ["pp:cs_by_hand:d0 sent", "pp:cs_waits:d0 sent"]);
    assert_eq!(purchase(&shop, "cs_waits")["paid_at"], "2026-09-11T00:00:00Z");
    assert_eq!(shop.step("cs_open", "d0"), "stopped");
    let ledger = shop.ledger();
    let waiting: Vec<&Value> =
        ledger["waiting"].as_array().unwrap().iter().map(|one| &one["checkout"]["session"]).collect();
    assert_eq!(waiting, ["cs_still"]);
}

#[test]
fn a_service_that_fails_half_way_loses_nobody() {
    let (double, shop) = shop();
    shop.run(BEFORE).exits(0);
    for n in 0..150 {
        let id = format!("cs_{n}");
        double.has_session(session(&id, &format!("b{n}@example.com"), AWAY)).has(payment(&id, &whole()));
    }
    let before = shop.read("ledger.json");
    // The events, the first page of sessions, and not the second.
    double.stripe_next(Act::Accept).stripe_next(Act::Accept);
    for _ in 0..3 {
        double.stripe_next(Act::Raw(500, "application/json", b"{}".into()));
    }
    let ran = shop.run(BACK).exits(75);
    assert!(ran.mails().is_empty() && ran.notices().is_empty());
    assert_eq!(shop.ledger()["buyers"], serde_json::from_str::<Value>(&before).unwrap()["buyers"]);
    double.happens(paid("cs_new", "new@example.com", "2026-10-14T00:00:00Z"));
    let ran = shop.run_with(NEXT, &["--allow", "200"]).exits(1);
    assert_eq!((ran.mails().len(), ran.notices()), (151, vec!["missed".to_owned()]));
}

#[test]
fn one_odd_session_is_told_and_costs_nobody_else_a_mail() {
    let (double, shop) = shop();
    shop.run(BEFORE).exits(0);
    double.has_session(session("cs_paid", "paid@example.com", AWAY)).has(payment("cs_paid", &whole()));
    double.has_session(with(session("cs_odd", "odd@example.com", AWAY), "amount_total", json!("much")));
    let ran = shop.run(BACK).exits(1).hides_addresses().says("`amount_total` must be a whole number");
    assert_eq!(ran.mails(), ["pp:cs_paid:d0 sent"]);
    let mut notices = ran.notices();
    notices.sort();
    assert_eq!(notices, ["invalid_event", "missed"]);
}

#[test]
fn other_products_of_that_time_get_no_mail() {
    let (double, shop) = shop();
    shop.sets("products = [\"prod_1\"]");
    shop.run(BEFORE).exits(0);
    for (id, product) in [("cs_ours", "prod_1"), ("cs_other", "prod_9"), ("cs_back", "prod_9")] {
        double
            .has_session(session(id, &format!("{id}@example.com"), AWAY))
            .bought(id, &[("price_1", product)]);
        double.has(payment(id, &with(whole(), "refunded", json!(id == "cs_back"))));
    }
    let ran = shop.run(BACK).exits(1);
    assert_eq!(
        (ran.mails(), ran.notices()),
        (vec!["pp:cs_ours:d0 sent".to_owned()], vec!["missed".to_owned()])
    );
}

#[test]
fn who_bought_before_go_live_is_history_by_a_backfill_and_their_next_purchase_is_a_repurchase() {
    let (double, shop) = shop();
    let before = "2026-07-01T00:00:00Z";
    double.has_session(session("cs_old", "hanako@example.com", before));
    double.has(payment("cs_old", &with(whole(), "created", json!(unix(before)))));
    double.happens(paid("cs_1", "hanako@example.com", "2026-09-09T00:00:00Z"));
    let ran = shop.run_with(BEFORE, &["--backfill", "2026-06-01T00:00:00Z"]).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(ran.json()["ingested"]["history"], 1);
    assert_eq!(shop.steps("cs_old"), ["history"; 4]);
    assert_eq!(shop.steps("cs_1")[1..], ["repurchase"; 3]);
    // Without it she would have been taken for a new buyer.
    let (double, other) = self::shop();
    double.happens(paid("cs_1", "hanako@example.com", "2026-09-09T00:00:00Z"));
    other.run(BEFORE).exits(0);
    assert_eq!(other.step("cs_1", "d3"), "pending");
}

#[test]
fn a_first_reading_long_after_go_live_begins_at_go_live() {
    let (double, shop) = shop();
    double.has_session(session("cs_paid", "paid@example.com", AWAY)).has(payment("cs_paid", &whole()));
    double.has_session(session("cs_old", "old@example.com", "2026-08-30T00:00:00Z"));
    let ran = shop.run(BACK).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_paid:d0 sent"]);
    assert!(!shop.read("ledger.json").contains("cs_old"));
}

#[test]
fn a_backfill_without_a_payment_service_is_refused() {
    let shop = Shop::new();
    shop.run_with(BACK, &["--backfill", BEFORE]).exits(78).says("--backfill");
}

/// Twice away: in the first time off the voucher was not paid yet, in the second it was.
#[test]
fn a_buyer_who_paid_late_is_found_by_a_second_look_at_the_same_session() {
    let (double, shop) = shop();
    shop.run(BEFORE).exits(0);
    double.has_session(with(session("cs_late", "late@example.com", AWAY), "payment_status", json!("unpaid")));
    shop.run(BACK).exits(1);
    assert_eq!(shop.ledger()["waiting"][0]["checkout"]["session"], "cs_late");
    double.change_session("cs_late", |session| session["payment_status"] = "paid".into());
    double.has(payment("cs_late", &with(whole(), "created", json!(unix("2026-10-20T00:00:00Z")))));
    let ran = shop.run("2026-11-14T00:00:00Z");
    assert_eq!(ran.mails(), ["pp:cs_late:d0 sent"], "{}", ran.stdout);
    assert_eq!(purchase(&shop, "cs_late")["paid_at"], "2026-10-20T00:00:00Z");
}

#[test]
fn a_long_time_is_read_in_pieces_the_oldest_first() {
    let (double, shop) = shop();
    double.has_session(session("cs_paid", "paid@example.com", AWAY)).has(payment("cs_paid", &whole()));
    let ran = shop.run_with(BACK, &["--backfill", "2026-06-10T00:00:00Z"]).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_paid:d0 sent"]);
    let lists: Vec<String> = double
        .polls()
        .into_iter()
        .map(|seen| seen.path)
        .filter(|path| path.contains("created[lte]") && path.contains("sessions"))
        .collect();
    assert_eq!(lists.len(), 4, "{lists:?}");
    assert!(lists.iter().all(|path| path.contains("status=complete")));
}
