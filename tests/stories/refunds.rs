//! Money that goes back, in one piece or in parts, told by events that come in any order.

use serde_json::{Value, json};

use crate::double::{Double, event, paid};
use crate::shop::Shop;

const PAID: &str = "2026-10-01T00:00:00Z";
const HOURS: [&str; 5] = [
    "2026-10-01T01:00:00Z",
    "2026-10-01T02:00:00Z",
    "2026-10-01T03:00:00Z",
    "2026-10-01T04:00:00Z",
    "2026-10-01T05:00:00Z",
];

/// One refund of the purchase `cs_1`, which cost 3000.
fn refund(event_id: &str, kind: &str, refund: &str, amount: i64, status: &str, at: &str) -> Value {
    let object = json!({
        "id": refund, "object": "refund", "amount": amount, "currency": "jpy", "charge": "ch_1", "payment_intent": "pi_cs_1",
        "status": status,
    });
    event(event_id, kind, at, &object)
}

fn charge(event_id: &str, refunded: i64, at: &str) -> Value {
    let object = json!({
        "id": "ch_1", "object": "charge", "amount": 3000, "amount_refunded": refunded, "refunded": refunded >= 3000,
        "payment_intent": "pi_cs_1",
    });
    event(event_id, "charge.refunded", at, &object)
}

fn bought() -> Value {
    let mut bought = paid("cs_1", "hanako@example.com", PAID);
    bought["data"]["object"]["amount_total"] = 3000.into();
    bought["data"]["object"]["currency"] = "jpy".into();
    bought
}

fn shop() -> (Double, Shop) {
    let double = Double::new();
    let shop = Shop::polling(&double);
    (double, shop)
}

/// The money waits at the service until the buyer says where it is to go, and the charge does not count it.
#[test]
fn a_convenience_store_refund_stops_the_mails_before_the_buyer_has_the_money() {
    let (double, shop) = shop();
    double.happens(bought());
    shop.run(HOURS[0]).exits(0);
    double.happens(refund("evt_1", "refund.created", "re_1", 3000, "requires_action", HOURS[0]));
    assert!(shop.run(HOURS[1]).exits(0).hides_addresses().notices().is_empty());
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"]);
    let stopped = shop.ledger()["buyers"][0]["purchases"][0]["stopped"].clone();
    assert_eq!(stopped, json!({ "at": HOURS[0], "reason": "refund" }));
    // It succeeds: no news. It fails: told, and nothing starts again.
    double.happens(refund("evt_2", "refund.updated", "re_1", 3000, "succeeded", HOURS[1]));
    assert!(shop.run(HOURS[2]).exits(0).notices().is_empty());
    double.happens(refund("evt_3", "refund.failed", "re_1", 3000, "failed", HOURS[2]));
    double.happens(refund("evt_4", "charge.refund.updated", "re_1", 3000, "failed", HOURS[2]));
    let ran = shop.run(HOURS[3]).exits(1).says("stepmail resume");
    assert_eq!(ran.notices(), ["refund_failed"]);
    assert!(shop.run(HOURS[4]).exits(0).notices().is_empty(), "told again");
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"]);
    shop.stepmail(&["show", "cs_1"]).exits(0).says("refund re_1 of 3000 jpy failed: the money stayed");
}

#[test]
fn parts_are_told_once_each_however_many_events_tell_of_them_and_all_of_it_stops_the_mails() {
    let (double, shop) = shop();
    double.happens(bought());
    shop.run(HOURS[0]).exits(0);
    double.happens(refund("evt_1", "refund.created", "re_1", 1000, "pending", HOURS[0]));
    double.happens(refund("evt_2", "refund.updated", "re_1", 1000, "succeeded", HOURS[0]));
    double.happens(charge("evt_3", 1000, HOURS[0]));
    assert_eq!(shop.run(HOURS[1]).exits(1).notices(), ["partial_refund"]);
    assert_eq!(shop.step("cs_1", "d3"), "pending");
    // One that fails counts for nothing.
    double.happens(refund("evt_4", "refund.created", "re_2", 2000, "failed", HOURS[1]));
    assert_eq!(shop.run(HOURS[2]).exits(1).notices(), ["refund_failed"]);
    assert_eq!(shop.step("cs_1", "d3"), "pending");
    double.happens(refund("evt_5", "refund.created", "re_3", 2000, "succeeded", HOURS[2]));
    assert!(shop.run(HOURS[3]).exits(0).notices().is_empty());
    assert_eq!(shop.step("cs_1", "d3"), "stopped");
}

#[test]
fn two_halves_that_are_told_together_or_before_their_purchase_are_one_whole() {
    for before in [false, true] {
        let (double, shop) = shop();
        let halves = || {
            double.happens(refund("evt_1", "refund.created", "re_1", 1500, "succeeded", PAID));
            double.happens(refund("evt_2", "refund.created", "re_2", 1500, "succeeded", PAID));
        };
        if before {
            halves();
            assert!(shop.run(HOURS[0]).exits(0).notices().is_empty());
            double.happens(bought());
        } else {
            double.happens(bought());
            shop.run(HOURS[0]).exits(0);
            halves();
        }
        assert!(shop.run(HOURS[1]).exits(0).notices().is_empty(), "before: {before}");
        let d0 = if before { "stopped" } else { "sent" };
        assert_eq!(shop.steps("cs_1"), [d0, "stopped", "stopped", "stopped"]);
        assert!(shop.ledger()["loose_refunds"].is_null());
        assert_eq!(shop.outbox().len(), usize::from(!before));
    }
}

#[test]
fn part_of_the_money_in_another_currency_is_not_added_up() {
    let (double, shop) = shop();
    double.happens(bought());
    shop.run(HOURS[0]).exits(0);
    let mut dollars = refund("evt_1", "refund.created", "re_1", 3000, "succeeded", HOURS[0]);
    dollars["data"]["object"]["currency"] = "usd".into();
    double.happens(dollars);
    shop.run(HOURS[1]).exits(0);
    assert_eq!(shop.step("cs_1", "d3"), "pending");
    // The charge knows.
    double.happens(charge("evt_2", 3000, HOURS[1]));
    shop.run(HOURS[2]).exits(0);
    assert_eq!(shop.step("cs_1", "d3"), "stopped");
}

#[test]
fn where_the_seller_says_so_a_part_stops_the_mails_and_a_failed_part_does_not() {
    let (double, shop) = shop();
    shop.sets("on_partial_refund = \"stop\"");
    double.happens(bought());
    shop.run(HOURS[0]).exits(0);
    double.happens(refund("evt_1", "refund.created", "re_1", 1, "failed", HOURS[0]));
    shop.run(HOURS[1]);
    assert_eq!(shop.step("cs_1", "d3"), "pending");
    double.happens(refund("evt_2", "refund.created", "re_2", 1, "pending", HOURS[1]));
    shop.run(HOURS[2]).exits(0);
    assert_eq!(shop.step("cs_1", "d3"), "stopped");
}

#[test]
fn a_refund_by_files_is_the_same_as_one_by_the_api() {
    let shop = Shop::new();
    shop.event(&refund("evt_1", "refund.created", "re_1", 3000, "requires_action", PAID).to_string());
    shop.run(HOURS[0]).exits(0);
    shop.event(&bought().to_string());
    shop.run(HOURS[1]).exits(0);
    assert_eq!(shop.steps("cs_1"), ["stopped"; 4]);
    assert!(shop.outbox().is_empty());
}

/// A dispute names the payment alone, and the session of a subscription does not.
#[test]
fn a_dispute_that_came_by_a_file_finds_its_subscription_when_the_service_is_asked() {
    let (double, shop) = shop();
    let mut subscribed = bought();
    let of = &mut subscribed["data"]["object"];
    (of["mode"], of["payment_intent"], of["subscription"], of["invoice"]) =
        ("subscription".into(), Value::Null, "sub_1".into(), "in_1".into());
    double.happens(subscribed);
    double.invoice(json!({ "id": "in_1", "object": "invoice", "billing_reason": "subscription_create", "subscription": "sub_1" }), "pi_sub");
    shop.run(HOURS[0]).exits(0);
    let dispute = json!({ "id": "dp_1", "object": "dispute", "payment_intent": "pi_sub" });
    let told = event("evt_1", "charge.dispute.created", HOURS[0], &dispute);
    // By a webhook, where nobody is asked; the service's own list has it too, as one that is known.
    shop.event(&told.to_string());
    shop.stepmail(&["ingest", "events.jsonl", "--now", HOURS[1]]);
    assert_eq!(shop.ledger()["loose_stops"].as_array().unwrap().len(), 1);
    double.happens(told);
    shop.run(HOURS[1]);
    assert_eq!(shop.step("cs_1", "d3"), "stopped", "mailed on, though the payment is disputed");
    assert!(shop.ledger()["loose_stops"].as_array().unwrap().is_empty());
    // What belongs to nothing here is asked of once.
    let other = json!({ "id": "dp_2", "object": "dispute", "payment_intent": "pi_other" });
    shop.event(&event("evt_2", "charge.dispute.created", HOURS[2], &other).to_string());
    shop.run(HOURS[3]);
    shop.run(HOURS[4]);
    let asked = double.polls().len();
    shop.run("2026-10-01T06:00:00Z");
    assert_eq!(double.polls().len(), asked + 1, "asked again each hour");
}

#[test]
fn what_a_person_has_lifted_is_not_stopped_again_by_the_same_refund() {
    let (double, shop) = shop();
    double.happens(bought());
    shop.run(HOURS[0]).exits(0);
    double.happens(refund("evt_1", "refund.created", "re_1", 3000, "pending", HOURS[0]));
    shop.run(HOURS[1]).exits(0);
    shop.stepmail(&["resume", "cs_1", "--now", HOURS[2]]).exits(0);
    double.happens(refund("evt_2", "refund.updated", "re_1", 3000, "succeeded", HOURS[2]));
    shop.run(HOURS[3]).exits(0);
    assert_eq!(shop.step("cs_1", "d3"), "pending");
}

#[test]
fn a_refund_that_failed_before_anybody_heard_of_it_stops_nothing_and_says_so() {
    let (double, shop) = shop();
    double.happens(bought());
    shop.run(HOURS[0]).exits(0);
    double.happens(refund("evt_1", "refund.created", "re_1", 3000, "pending", HOURS[0]));
    double.happens(refund("evt_2", "refund.failed", "re_1", 3000, "failed", HOURS[0]));
    let ran = shop.run(HOURS[1]).exits(1).says("its mails go on");
    assert_eq!(ran.notices(), ["refund_failed"]);
    assert_eq!(shop.step("cs_1", "d3"), "pending");
}
