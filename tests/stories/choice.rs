//! A shop that sells several things, and mails about one of them.

use serde_json::{Value, json};

use crate::double::{Act, Double, event, paid, session};
use crate::shop::Shop;

const PAID: &str = "2026-10-01T00:00:00Z";
const FIRST: &str = "2026-10-01T01:00:00Z";
const SECOND: &str = "2026-10-01T02:00:00Z";
const THIRD: &str = "2026-10-01T03:00:00Z";

fn shop(choice: &str) -> (Double, Shop) {
    let double = Double::new();
    let shop = Shop::polling(&double);
    shop.sets(choice);
    (double, shop)
}

fn refund(payment: &str) -> Value {
    json!({ "id": "ch_1", "object": "charge", "amount": 100, "amount_refunded": 100, "refunded": true, "payment_intent": payment })
}

#[test]
fn a_buyer_of_another_product_gets_no_mail_by_the_api_and_by_files() {
    for (choice, field, ours, other) in [
        ("payment_links = [\"plink_1\", \"plink_2\"]", "payment_link", json!("plink_2"), json!("plink_9")),
        ("payment_links = [\"plink_1\"]", "payment_link", json!({ "id": "plink_1" }), Value::Null),
        ("modes = [\"subscription\"]", "mode", json!("subscription"), json!("payment")),
        (
            "metadata = { course = \"a\" }",
            "metadata",
            json!({ "course": "a", "x": "y" }),
            json!({ "course": "b" }),
        ),
        ("metadata = { course = \"a\" }", "metadata", json!({ "course": "a" }), json!([])),
        (
            "metadata = { course = \"a\", level = \"1\" }",
            "metadata",
            json!({ "course": "a", "level": "1" }),
            json!({ "course": "a" }),
        ),
    ] {
        let (double, by_api) = shop(choice);
        let by_file = Shop::new();
        by_file.sets(choice);
        for (name, value) in [("cs_ours", &ours), ("cs_other", &other)] {
            let mut bought = paid(name, &format!("{name}@example.com"), PAID);
            bought["data"]["object"][field] = value.clone();
            double.happens(bought.clone());
            by_file.event(&bought.to_string());
        }
        for shop in [&by_api, &by_file] {
            let ran = shop.run(FIRST).exits(0).hides_addresses();
            assert_eq!(ran.mails(), ["pp:cs_ours:d0 sent"], "{choice}");
            assert_eq!(ran.json()["ingested"]["ignored"], 1);
            assert!(!shop.read("ledger.json").contains("cs_other"), "{choice}");
        }
    }
}

#[test]
fn what_was_bought_is_asked_once_per_session_and_only_where_the_settings_name_products() {
    let (double, shop) = shop("prices = [\"price_1\"]\nproducts = [\"prod_2\"]");
    for (name, items) in [
        ("cs_1", vec![("price_9", "prod_9"), ("price_1", "prod_1")]),
        ("cs_2", vec![("price_7", "prod_2")]),
        ("cs_3", vec![("price_9", "prod_9")]),
        ("cs_4", vec![]),
    ] {
        double.happens(paid(name, &format!("{name}@example.com"), PAID)).bought(name, &items);
    }
    let ran = shop.run(FIRST).exits(0).hides_addresses();
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent", "pp:cs_2:d0 sent"]);
    let counts = &ran.json()["ingested"];
    assert_eq!(
        (&counts["purchases"], &counts["ignored"], &counts["waiting"]),
        (&json!(2), &json!(2), &json!(0))
    );
    let asked = || double.polls().iter().filter(|seen| seen.path.contains("line_items")).count();
    assert_eq!(asked(), 4);
    // The list goes back six hours, and an events file is handed in every hour.
    shop.event(&paid("cs_3", "cs_3@example.com", PAID).to_string());
    for now in [SECOND, THIRD, "2026-10-20T00:00:00Z"] {
        assert_eq!(shop.run(now).json()["ingested"]["purchases"], 0);
    }
    assert_eq!(asked(), 4, "asked again");
    assert!(!shop.read("ledger.json").contains("cs_3@"), "the address of somebody else's buyer is kept");
}

#[test]
fn a_session_of_which_nobody_can_tell_yet_waits_and_is_lost_by_nothing() {
    let (double, shop) = shop("products = [\"prod_1\"]");
    // The same buyer: the earlier payment is the first purchase, whichever can be told first (R3).
    double.happens(paid("cs_2", "hanako@example.com", FIRST)).bought("cs_2", &[("price_1", "prod_1")]);
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    let no = || Act::Raw(500, "application/json", b"{}".into());
    let (events, sessions) = (Act::Accept, Act::Accept);
    double.stripe_next(events).stripe_next(sessions).stripe_next(no()).stripe_next(no()).stripe_next(no());
    let ran = shop.run(SECOND).exits(75).says("what was bought is asked again");
    assert!(ran.mails().is_empty(), "a later purchase went ahead of an earlier one");
    // Of the later one it could be told now.
    double.forbid("/v1/checkout/sessions/cs_1/line_items");
    assert!(shop.run(SECOND).mails().is_empty(), "a later purchase went ahead of an earlier one");
    double.allow();
    double.bought("cs_1", &[("price_1", "prod_1")]);
    assert_eq!(shop.run(THIRD).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    shop.run("2026-10-01T04:00:00Z").exits(0);
    assert_eq!(shop.steps("cs_1"), ["sent", "pending", "pending", "pending"]);
    assert_eq!(shop.steps("cs_2")[1..], ["repurchase"; 3]);
}

#[test]
fn a_key_that_may_not_read_what_was_bought_is_told_once_and_a_session_that_nobody_knows_too() {
    let (double, shop) = shop("products = [\"prod_1\"]");
    double.happens(paid("cs_1", "hanako@example.com", PAID)).bought("cs_1", &[("price_1", "prod_1")]);
    double.forbid("/v1/checkout/sessions/cs_1/line_items");
    assert_eq!(shop.run(FIRST).exits(1).says("it is not told what was bought").notices(), ["source"]);
    assert!(shop.run(SECOND).notices().is_empty(), "told again");
    double.allow();
    double.happens(paid("cs_2", "taro@example.com", FIRST));
    let ran = shop.run(THIRD).exits(1);
    assert_eq!(
        (ran.notices(), ran.mails()),
        (vec!["items_unknown".to_owned()], vec!["pp:cs_1:d0 sent".to_owned()])
    );
    assert!(shop.run("2026-10-01T04:00:00Z").exits(0).notices().is_empty(), "told again");
    // The seller says what it is.
    let own = json!({ "id": "mine_1", "type": "checkout.completed", "session": "cs_2", "email": "taro@example.com", "paid_at": FIRST });
    shop.event(&own.to_string());
    let ran = shop.run("2026-10-01T05:00:00Z");
    assert_eq!(ran.mails(), ["pp:cs_2:d0 sent"]);
    assert!(!shop.ledger()["matters"].to_string().contains("\"source\""), "mended, and still a matter");
}

#[test]
fn a_convenience_store_buyer_is_sorted_when_the_money_is_there() {
    let (double, shop) = shop("products = [\"prod_1\"]");
    double.bought("cs_1", &[("price_1", "prod_1")]).bought("cs_9", &[("price_9", "prod_9")]);
    for name in ["cs_1", "cs_9"] {
        let mut unpaid = paid(name, &format!("{name}@example.com"), PAID);
        unpaid["data"]["object"]["payment_status"] = "unpaid".into();
        double.happens(unpaid.clone());
        let mut succeeded = unpaid;
        succeeded["id"] = format!("evt_paid_{name}").into();
        succeeded["type"] = "checkout.session.async_payment_succeeded".into();
        succeeded["created"] =
            stepmail::domain::time::Timestamp::parse("2026-10-04T00:00:00Z").unwrap().unix().into();
        succeeded["data"]["object"]["payment_status"] = "paid".into();
        double.happens(succeeded);
    }
    assert!(shop.run(FIRST).exits(0).mails().is_empty());
    let asked = double.polls().iter().filter(|seen| seen.path.contains("line_items")).count();
    assert_eq!(asked, 0, "asked before the money was there");
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(shop.ledger()["buyers"].as_array().unwrap().len(), 1);
    assert!(shop.ledger()["waiting"].as_array().unwrap().is_empty());
}

#[test]
fn a_choice_that_was_wrong_is_mended_by_reading_again() {
    let (double, shop) = shop("products = [\"prod_wrong\"]");
    double.happens(paid("cs_1", "hanako@example.com", PAID)).bought("cs_1", &[("price_1", "prod_1")]);
    for now in [FIRST, "2026-10-01T12:00:00Z"] {
        assert!(shop.run(now).exits(0).mails().is_empty());
    }
    let settings = shop.read("stepmail.toml").replace("prod_wrong", "prod_1");
    shop.write("stepmail.toml", settings);
    assert!(shop.run("2026-10-02T00:00:00Z").exits(0).mails().is_empty());
    let ran = shop.run_with("2026-10-02T01:00:00Z", &["--backfill", "2026-10-01T00:00:00Z"]).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn a_refund_of_another_product_is_nobodys_business() {
    for (choice, field, value) in [
        ("payment_links = [\"plink_1\"]", "payment_link", json!("plink_9")),
        ("products = [\"prod_1\"]", "x", json!(1)),
    ] {
        let (double, shop) = shop(choice);
        let mut other = session("cs_9", "hanako@example.com", PAID);
        other[field] = value;
        double.has_session(other).bought("cs_9", &[("price_9", "prod_9")]);
        double.happens(event("evt_1", "charge.refunded", PAID, &refund("pi_cs_9")));
        double.happens(event("evt_2", "refund.created", PAID, &json!({ "id": "re_1", "object": "refund", "amount": 1, "currency": "jpy", "payment_intent": "pi_cs_9" })));
        let ran = shop.run(FIRST).exits(0).hides_addresses();
        assert!(ran.notices().is_empty(), "{choice}: {}", ran.stdout);
        // One that nobody knows is told.
        double.happens(event("evt_3", "charge.refunded", PAID, &refund("pi_unknown")));
        assert_eq!(shop.run(SECOND).exits(1).notices(), ["unlinked_stop"]);
        double.happens(event(
            "evt_4",
            "charge.dispute.created",
            FIRST,
            &json!({ "id": "dp_1", "object": "dispute", "payment_intent": "pi_unknown" }),
        ));
        assert!(shop.run(THIRD).notices().is_empty(), "one payment, told twice");
    }
}

/// A subscriber of before go-live cancels: nobody has mails to stop, and nobody needs to be told.
#[test]
fn the_end_of_what_was_bought_before_go_live_is_not_told() {
    let (double, shop) = shop("");
    let mut old = session("cs_old", "old@example.com", "2026-08-01T00:00:00Z");
    (old["mode"], old["payment_intent"], old["subscription"]) =
        ("subscription".into(), Value::Null, "sub_old".into());
    double.has_session(old);
    let ended = json!({ "id": "sub_old", "object": "subscription", "status": "canceled" });
    double.happens(event("evt_1", "customer.subscription.deleted", PAID, &ended));
    double.invoice(
        json!({ "id": "in_old", "object": "invoice", "billing_reason": "subscription_cycle" }),
        "pi_renewal",
    );
    assert!(shop.run(FIRST).exits(0).notices().is_empty());
}

/// Two things bought by one customer: the money of one going back says nothing of the other.
#[test]
fn a_refund_of_one_purchase_does_not_stop_another_of_the_same_customer() {
    let (double, shop) = shop("");
    let mut subscribed = paid("cs_1", "hanako@example.com", PAID);
    let of = &mut subscribed["data"]["object"];
    (of["mode"], of["payment_intent"], of["subscription"], of["customer"]) =
        ("subscription".into(), Value::Null, "sub_1".into(), "cus_1".into());
    double.happens(subscribed);
    shop.run(FIRST).exits(0);
    let mut other = session("cs_2", "hanako@example.com", "2026-08-01T00:00:00Z");
    other["customer"] = "cus_1".into();
    double.has_session(other);
    let mut charge = refund("pi_cs_2");
    charge["customer"] = "cus_1".into();
    double.happens(event("evt_2", "charge.refunded", FIRST, &charge));
    shop.run(SECOND).exits(0);
    assert_eq!(shop.step("cs_1", "d3"), "pending");
}

#[test]
fn a_choice_that_can_fit_nothing_is_refused_and_named() {
    for (choice, said) in [
        ("payment_links = []", "payment_links is empty"),
        ("payment_links = [\"https://buy.example.com/x\"]", "begins with `plink_`"),
        ("prices = [\"prod_1\"]", "begins with `price_`"),
        ("prices = []", "prices is empty"),
        ("products = [\"\"]", "products is empty"),
        ("modes = [\"setup\"]", "may have `payment` and `subscription`"),
        ("modes = []", "modes is empty"),
        ("metadata = { course = 5 }", "line 7"),
        ("payment_link = \"plink_1\"", "payment_link"),
    ] {
        let (double, shop) = shop(choice);
        double.happens(paid("cs_1", "hanako@example.com", PAID));
        shop.run(FIRST).exits(78).says(said);
        assert!(double.polls().is_empty() && shop.outbox().is_empty(), "{choice}");
    }
    // Nobody can be asked what was bought.
    let shop = Shop::new();
    shop.sets("prices = [\"price_1\"]");
    shop.run(FIRST).exits(78).says("need a key");
}

/// The seller's own word counts for more than the choice: what is on record is stopped with its money.
#[test]
fn a_refund_stops_a_purchase_that_the_seller_handed_in_though_the_choice_leaves_it_out() {
    let (double, shop) = shop("products = [\"prod_1\"]");
    double.happens(paid("cs_9", "hanako@example.com", PAID)).bought("cs_9", &[("price_9", "prod_9")]);
    double.has_session(session("cs_9", "hanako@example.com", PAID));
    shop.run(FIRST).exits(0);
    let own = json!({ "id": "mine_1", "type": "checkout.completed", "session": "cs_9", "email": "hanako@example.com", "paid_at": PAID });
    shop.event(&own.to_string());
    assert_eq!(shop.run(SECOND).exits(0).mails(), ["pp:cs_9:d0 sent"]);
    double.happens(event("evt_r", "charge.refunded", SECOND, &refund("pi_cs_9")));
    assert!(shop.run(THIRD).exits(0).notices().is_empty());
    assert_eq!(shop.step("cs_9", "d3"), "stopped");
}

#[test]
fn buyers_who_wait_to_be_sorted_are_not_lost_when_the_seller_drops_the_choice() {
    let (double, shop) = shop("products = [\"prod_1\"]");
    double.happens(paid("cs_1", "hanako@example.com", PAID)).bought("cs_1", &[("price_9", "prod_9")]);
    double.forbid("/v1/checkout/sessions/cs_1/line_items");
    for now in [FIRST, "2026-10-02T00:00:00Z"] {
        assert!(shop.run(now).mails().is_empty());
    }
    let settings = shop.read("stepmail.toml").replace("products = [\"prod_1\"]\n", "");
    shop.write("stepmail.toml", settings);
    assert_eq!(shop.run("2026-10-02T01:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

/// One session that the service stumbles over every time.
#[test]
fn a_session_that_can_never_be_sorted_is_told_once_and_holds_up_nobody() {
    let (double, shop) = shop("products = [\"prod_1\"]");
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    double.happens(paid("cs_2", "taro@example.com", FIRST)).bought("cs_2", &[("price_1", "prod_1")]);
    let no = Act::Raw(
        400,
        "application/json",
        br#"{"error":{"type":"invalid_request_error","code":"odd"}}"#.into(),
    );
    double.stripe_next(Act::Accept).stripe_next(Act::Accept).stripe_next(no);
    let ran = shop.run(SECOND).exits(1);
    assert_eq!(
        (ran.mails(), ran.notices()),
        (vec!["pp:cs_2:d0 sent".to_owned()], vec!["items_unknown".to_owned()])
    );
    assert!(shop.run(THIRD).exits(0).notices().is_empty(), "told again");
    // Paid is paid: it waits for longer than a payment would.
    shop.run("2026-11-01T00:00:00Z");
    shop.run("2026-12-10T00:00:00Z");
    assert_eq!(shop.ledger()["waiting"][0]["checkout"]["session"], "cs_1");
}

#[test]
fn a_refund_of_a_checkout_that_waits_is_not_told_as_one_of_nobody() {
    let (double, shop) = shop("products = [\"prod_1\"]");
    double.happens(paid("cs_1", "hanako@example.com", PAID)).bought("cs_1", &[("price_1", "prod_1")]);
    double.has_session(session("cs_1", "hanako@example.com", PAID));
    double.happens(event("evt_r", "charge.refunded", PAID, &refund("pi_cs_1")));
    double.forbid("/v1/checkout/sessions/cs_1/line_items");
    assert_eq!(shop.run(FIRST).notices(), ["source"]);
    double.allow();
    assert!(shop.run(SECOND).exits(0).notices().is_empty());
    assert_eq!(shop.steps("cs_1"), ["stopped"; 4]);
    assert!(shop.outbox().is_empty());
}

/// One odd answer about one refund: the others, and all purchases, are read all the same.
#[test]
fn a_refund_that_the_service_cannot_place_does_not_stop_the_reading() {
    let (double, shop) = shop("");
    double.happens(paid("cs_1", "hanako@example.com", FIRST));
    double.happens(event("evt_r", "charge.refunded", FIRST, &refund("pi_odd")));
    for act in [
        Act::Raw(400, "application/json", br#"{"error":{"code":"resource_missing"}}"#.into()),
        Act::Raw(200, "application/json", br#"{"data":[{"id":"cs 1"}],"has_more":false}"#.into()),
    ] {
        let (events, sessions) = (Act::Accept, Act::Accept);
        double.stripe_next(sessions).stripe_next(events).stripe_next(act);
        let ran = shop.run(SECOND);
        assert!(ran.code == 1 || ran.code == 0, "{}", ran.stdout);
        assert_eq!(shop.step("cs_1", "d0"), "sent");
        assert!(shop.ledger()["loose_stops"][0]["asked"].as_bool().unwrap());
    }
}
