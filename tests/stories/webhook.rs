//! Events that somebody's web handler hands over at once, each with the signature it came with.

use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use stepmail::domain::time::Timestamp;

use crate::double::paid;
use crate::shop::{Ran, Shop};

const SECRET: &str = "whsec_Sentinel_1234567890";
const PAID: &str = "2026-10-01T00:00:00Z";
const NOW: &str = "2026-10-01T00:00:10Z";

fn signature(body: &str, at: &str, secret: &str) -> String {
    let time = Timestamp::parse(at).unwrap().unix();
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{time}.{body}").as_bytes());
    let hex: Vec<String> = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={time},v1={}", hex.concat())
}

fn shop() -> Shop {
    let mut shop = Shop::new();
    shop.variable("STRIPE_WEBHOOK_SECRET", SECRET);
    shop
}

fn hand_over(shop: &Shop, body: &str, header: &str) -> Ran {
    let ran = shop.stepmail_reading(body, &["ingest", "-", "--stripe-signature", header, "--now", NOW]);
    assert!(!ran.stdout.contains("Sentinel") && !ran.stderr.contains("Sentinel"), "the secret is shown");
    ran.hides_addresses()
}

fn signed(shop: &Shop, body: &str) -> Ran {
    hand_over(shop, body, &signature(body, PAID, SECRET))
}

fn receipt(ran: &Ran) -> Value {
    ran.json()
}

#[test]
fn a_purchase_handed_over_at_once_is_mailed_by_the_next_run_and_the_same_event_gets_the_same_receipt() {
    let shop = shop();
    let body = serde_json::to_string_pretty(&paid("cs_1", "hanako@example.com", PAID)).unwrap();
    let first = receipt(&signed(&shop, &body).exits(0));
    assert_eq!(
        first,
        json!({ "schema": "stepmail-receipt/1", "event": "evt_cs_1", "session": "cs_1", "result": "recorded", "reason": null, "exit": 0 })
    );
    assert_eq!(receipt(&signed(&shop, &body).exits(0)), first);
    assert_eq!(shop.run("2026-10-01T01:00:00Z").mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(receipt(&signed(&shop, &body).exits(0)), first, "after its mail");
    assert_eq!(shop.ledger()["buyers"].as_array().unwrap().len(), 1);
}

#[test]
fn the_same_session_with_other_content_is_a_conflict_each_time_and_the_record_stands() {
    let shop = shop();
    signed(&shop, &paid("cs_1", "hanako@example.com", PAID).to_string()).exits(0);
    for (field, value) in [("email", json!("other@example.com")), ("amount", json!(500))] {
        let mut other = paid("cs_1", "hanako@example.com", PAID);
        other["id"] = format!("evt_{field}").into();
        let object = &mut other["data"]["object"];
        if field == "email" {
            object["customer_details"]["email"] = value;
        } else {
            // What was paid is filled in by the first event that says it, and contradicted by the second.
            (object["amount_total"], object["currency"]) = (json!(400), "jpy".into());
            signed(&shop, &other.to_string()).exits(0);
            (other["id"], other["data"]["object"]["amount_total"]) = ("evt_amount_2".into(), value);
        }
        for _ in 0..2 {
            let said = receipt(&signed(&shop, &other.to_string()).exits(1));
            assert_eq!((&said["result"], &said["exit"]), (&json!("conflict"), &json!(1)), "{field}");
        }
    }
    assert_eq!(shop.ledger()["buyers"][0]["purchases"][0]["email"], "hanako@example.com");
    // An id that was another session's.
    let mut other = paid("cs_2", "taro@example.com", PAID);
    other["id"] = "evt_cs_1".into();
    assert_eq!(receipt(&signed(&shop, &other.to_string()).exits(1))["result"], "conflict");
    // While it waits for its money: told each time too.
    let mut unpaid = paid("cs_3", "ume@example.com", PAID);
    unpaid["data"]["object"]["payment_status"] = "unpaid".into();
    assert_eq!(receipt(&signed(&shop, &unpaid.to_string()).exits(0))["result"], "recorded");
    unpaid["id"] = "evt_3b".into();
    unpaid["data"]["object"]["customer_details"]["email"] = "other@example.com".into();
    for _ in 0..2 {
        assert_eq!(receipt(&signed(&shop, &unpaid.to_string()).exits(1))["result"], "conflict");
    }
}

#[test]
fn what_is_not_signed_or_not_now_is_not_taken_in() {
    let shop = shop();
    let body = paid("cs_1", "hanako@example.com", PAID).to_string();
    let before = shop.everything();
    for (header, said) in [
        (signature(&body, PAID, "whsec_of_another_endpoint"), "does not fit"),
        (signature("{}", PAID, SECRET), "does not fit"),
        ("t=1790812800,v1=00".to_owned(), "does not fit"),
        ("sha256=abc".to_owned(), "no signature of Stripe's"),
        (signature(&body, "2026-09-30T23:55:00Z", SECRET), "made 310 s ago"),
        (signature(&body, "2026-10-01T00:06:00Z", SECRET), "made 350 s ahead"),
    ] {
        let ran = hand_over(&shop, &body, &header).exits(65);
        let said_to = receipt(&ran);
        assert!(said_to["reason"].as_str().unwrap().contains(said), "{header}: {said_to}");
        assert_eq!((&said_to["result"], &said_to["exit"]), (&Value::Null, &json!(65)));
    }
    assert_eq!(shop.everything(), before);
    // A body that was changed by a single byte, as a proxy or a logger does.
    hand_over(&shop, &format!("{body}\n"), &signature(&body, PAID, SECRET)).exits(65);
    // Several endpoints have several secrets; the header has a signature for each.
    let other = signature(&body, PAID, "whsec_of_another_endpoint");
    let both = format!("{other},{}", signature(&body, PAID, SECRET).split_once(',').unwrap().1);
    assert_eq!(receipt(&hand_over(&shop, &body, &both).exits(0))["result"], "recorded");
}

#[test]
fn what_is_no_single_event_of_ours_is_answered_and_starts_nothing() {
    let shop = shop();
    let said = |body: &str, exit: i32| receipt(&signed(&shop, body).exits(exit));
    let mut live = paid("cs_1", "hanako@example.com", PAID);
    live["livemode"] = true.into();
    let other_mode = said(&live.to_string(), 0);
    assert_eq!((&other_mode["result"], &other_mode["event"]), (&json!("ignored"), &json!("evt_cs_1")));
    assert_eq!(other_mode["reason"], "it is of Stripe's other mode");
    let mut renewal = paid("cs_1", "hanako@example.com", PAID);
    renewal["type"] = "invoice.paid".into();
    assert_eq!(said(&renewal.to_string(), 0)["result"], "ignored");
    let thin = json!({ "id": "evt_9", "object": "v2.core.event", "type": "v2.core.account.created" });
    assert!(said(&thin.to_string(), 0)["reason"].as_str().unwrap().contains("thin"));
    let mut odd = paid("cs_1", "hanako@example.com", PAID);
    odd["created"] = "yesterday".into();
    let invalid = said(&odd.to_string(), 1);
    assert_eq!(invalid["result"], "invalid");
    assert!(invalid["reason"].as_str().unwrap().contains("`created` must be a whole number"));
    assert_eq!(said(&odd.to_string(), 1), invalid, "again");
    for body in ["", "[]", "hello", &format!("[{renewal},{renewal}]")] {
        assert_eq!(said(body, 65)["result"], Value::Null, "{body}");
    }
    assert!(shop.ledger()["buyers"].as_array().unwrap().is_empty());
}

#[test]
fn a_stop_handed_over_at_once_stops_the_mails() {
    let shop = shop();
    signed(&shop, &paid("cs_1", "hanako@example.com", PAID).to_string()).exits(0);
    let charge = json!({ "id": "ch_1", "object": "charge", "amount": 100, "amount_refunded": 100, "refunded": true, "payment_intent": "pi_cs_1" });
    let refund = json!({ "id": "evt_2", "object": "event", "livemode": false, "type": "charge.refunded",
        "created": Timestamp::parse(PAID).unwrap().unix(), "data": { "object": charge } });
    let first = receipt(&signed(&shop, &refund.to_string()).exits(0));
    assert_eq!(first["result"], "recorded");
    assert_eq!(receipt(&signed(&shop, &refund.to_string()).exits(0)), first);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    assert_eq!(shop.steps("cs_1"), ["stopped"; 4]);
}

#[test]
fn without_a_secret_or_a_ledger_a_handler_is_told_to_come_again() {
    let mut shop = shop();
    let body = paid("cs_1", "hanako@example.com", PAID).to_string();
    shop.variable("STRIPE_WEBHOOK_SECRET", "sk_live_Sentinel_is_no_webhook_secret");
    assert!(receipt(&signed(&shop, &body).exits(78))["reason"].as_str().unwrap().contains("whsec_"));
    shop.without_variable("STRIPE_WEBHOOK_SECRET");
    let said = receipt(&signed(&shop, &body).exits(78));
    assert!(said["reason"].as_str().unwrap().contains("stripe.webhook_secret_file"), "{said}");
    shop.write("hook.key", SECRET);
    shop.sets("webhook_secret_file = \"hook.key\"");
    assert!(
        receipt(&signed(&shop, &body).exits(78))["reason"]
            .as_str()
            .unwrap()
            .contains("may be read by others")
    );
    std::fs::set_permissions(shop.path("hook.key"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    signed(&shop, &body).exits(0);
    std::fs::remove_file(shop.path("ledger.json")).unwrap();
    assert_eq!(receipt(&signed(&shop, &body).exits(66))["exit"], 66);
    shop.stepmail(&["ingest", "events.jsonl", "--stripe-signature", "x"]).exits(2);
    let settings = shop.read("stepmail.toml").replace("hook.key", SECRET);
    shop.write("stepmail.toml", settings);
    let ran = shop.stepmail_reading(&body, &["ingest", "-", "--stripe-signature", "x"]).exits(78);
    assert!(!ran.stdout.contains("Sentinel") && !ran.stderr.contains("Sentinel"));
}

/// `stripe listen --print-json > events.jsonl`, and what it says of itself between the events.
#[test]
fn what_stripes_own_program_prints_is_an_events_file() {
    let shop = Shop::new();
    let pretty = |session: &str| {
        serde_json::to_string_pretty(&paid(session, &format!("{session}@example.com"), PAID)).unwrap()
    };
    let listened = format!(
        "> Ready! You are using Stripe API Version [2026-01-28.clover]. Your webhook signing secret is whsec_x (^C to quit)\n\
         {}\n2026-10-01 09:00:00  <--  [200] POST http://localhost:4242/webhook [evt_cs_1]\n\
         2026-10-01 09:00:01   --> charge.succeeded [evt_5]\nSession expired, reconnecting...\n{}\n",
        pretty("cs_1"),
        pretty("cs_2")
    );
    shop.write("events.jsonl", listened);
    let ran = shop.run(NOW).exits(0);
    assert_eq!(
        (ran.mails(), ran.notices()),
        (vec!["pp:cs_1:d0 sent".to_owned(), "pp:cs_2:d0 sent".to_owned()], vec![])
    );
    // Anything else between them is told.
    shop.write("events.jsonl", format!("{}\n2026-10-01 a note of mine\n", pretty("cs_3")));
    assert_eq!(shop.run(NOW).exits(1).notices(), ["invalid_event"]);
}
