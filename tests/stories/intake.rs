//! R1 to R4 through the real program: what a checkout service says, and what comes of it.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::shop::{Ran, Shop};

/// A file of `tests/data/stripe-events`, by the number its name begins with.
fn stripe(number: &str) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/stripe-events");
    let found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let begins = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(number);
    let path = found.into_iter().find(begins).unwrap();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A shop from before the oldest of those events, with these files in its folder.
fn shop_with(numbers: &[&str]) -> Shop {
    let shop = Shop::new();
    shop.edit(|ledger| ledger["go_live"] = json!("2019-01-01T00:00:00Z"));
    for number in numbers {
        shop.write(&format!("{number}.json"), stripe(number).to_string());
    }
    shop
}

fn hour_after(event: &Value) -> String {
    let at = event["created"].as_i64().unwrap() + 3_600;
    chrono::DateTime::from_timestamp(at, 0).unwrap().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

fn take_in(shop: &Shop, number: &str) -> Ran {
    let now = hour_after(&stripe(number));
    shop.stepmail(&["run", "--json", "--accept-clock", "--now", &now, "--events", &format!("{number}.json")])
}

fn counted(ran: &Ran) -> Vec<(String, u64)> {
    let report = ran.json();
    let counts = report["ingested"].as_object().unwrap().iter();
    counts
        .map(|(name, count)| (name.clone(), count.as_u64().unwrap()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[test]
fn each_of_the_twelve_stripe_events_is_what_it_is() {
    for (number, count, exit, notices) in [
        // 2019: no payment_status. Not paid, and said.
        ("01", "waiting", 1, &["payment_status"][..]),
        ("02", "purchases", 0, &[]),
        ("03", "ignored", 0, &[]),
        ("04", "purchases", 0, &[]),
        ("05", "purchases", 0, &[]),
        ("06", "waiting", 0, &[]),
        ("07", "purchases", 0, &[]),
        ("08", "stops", 1, &["unlinked_stop"]),
        ("09", "ignored", 1, &["partial_refund"]),
        ("10", "stops", 1, &["unlinked_stop"]),
        ("11", "stops", 1, &["unlinked_stop"]),
        ("12", "ignored", 0, &[]),
    ] {
        let shop = shop_with(&[number]);
        // The list page has no time of its own.
        let ran = if number == "12" {
            shop.stepmail(&["run", "--json", "--now", "2026-01-01T00:00:00Z", "--events", "12.json"])
        } else {
            take_in(&shop, number)
        };
        let ran = ran.exits(exit);
        assert_eq!(counted(&ran), [(count.to_owned(), 1)], "file {number}");
        assert_eq!(ran.notices(), notices, "file {number}");
        assert_eq!(ran.mails().len(), usize::from(count == "purchases"), "file {number}");
    }
}

#[test]
fn c074_events_of_the_other_mode_start_nothing() {
    let numbers = ["01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12"];
    let shop = shop_with(&numbers);
    shop.write("stepmail.toml", "state_dir = \"state\"\n[stripe]\nlivemode = true\n");
    let mut odd = stripe("05");
    odd["livemode"] = json!("true");
    shop.write("odd.json", odd.to_string());
    let mut args = vec!["run", "--json", "--now", "2026-06-01T00:00:00Z"];
    let names: Vec<String> = numbers.iter().map(|number| format!("{number}.json")).collect();
    for name in names.iter().map(String::as_str).chain(["odd.json"]) {
        args.extend(["--events", name]);
    }
    let ran = shop.stepmail(&args).exits(0).says("were dropped, since stripe.livemode is true");
    assert_eq!(counted(&ran), [("ignored".to_owned(), 13)]);
    assert!(shop.outbox().is_empty());
}

#[test]
fn c033_who_pays_at_the_convenience_store_is_welcomed_when_the_money_is_there() {
    let shop = shop_with(&["06", "07"]);
    let session = stripe("06")["data"]["object"]["id"].as_str().unwrap().to_owned();
    assert!(take_in(&shop, "06").exits(0).mails().is_empty());
    assert_eq!(shop.ledger()["waiting"][0]["checkout"]["session"], json!(session));
    let paid = take_in(&shop, "07").exits(0);
    assert_eq!(paid.mails(), [format!("pp:{session}:d0 sent")]);
    assert_eq!(shop.ledger()["waiting"], json!([]));
    // Days count from the payment, not from the order two days before.
    assert_eq!(shop.purchase(&session)["paid_at"], json!("2026-02-16T04:05:00Z"));
    // The mail is in the language of the checkout page, and goes where the buyer said.
    let mail = shop.mail(&session, "d0");
    assert!(mail.contains("To: Kaimono.Hanako@Example.COM"), "{mail}");
    assert!(mail.contains("=?utf-8?"), "a Japanese subject was expected: {mail}");
    // The event of the order, delivered again, brings nothing back.
    take_in(&shop, "06").exits(0);
    assert_eq!(shop.ledger()["waiting"], json!([]));
}

#[test]
fn c033_a_payment_that_fails_ends_the_wait_and_nothing_is_sent() {
    let shop = shop_with(&["06"]);
    take_in(&shop, "06").exits(0);
    let mut failed = stripe("07");
    failed["type"] = json!("checkout.session.async_payment_failed");
    failed["data"]["object"]["payment_status"] = json!("unpaid");
    shop.write("07.json", failed.to_string());
    take_in(&shop, "07").exits(0);
    assert_eq!(shop.ledger()["waiting"], json!([]));
    assert!(shop.outbox().is_empty());
}

/// A Stripe event about the purchase of file 05 or 04, in the shape of another file.
fn about(number: &str, purchase: &str) -> Value {
    let mut event = stripe(number);
    let bought = stripe(purchase);
    let object = &mut event["data"]["object"];
    for name in ["payment_intent", "invoice", "customer"] {
        if object.get(name).is_some() {
            object[name] = bought["data"]["object"][name].clone();
        }
    }
    if number == "11" {
        object["id"] = bought["data"]["object"]["subscription"].clone();
    }
    event["created"] = json!(bought["created"].as_i64().unwrap() + 86_400);
    event
}

#[test]
fn c018_c021_refund_dispute_and_cancellation_stop_the_right_purchase_before_and_after_it() {
    for (kind, purchase, reason) in
        [("08", "05", "refund"), ("10", "05", "dispute"), ("11", "04", "canceled"), ("08", "04", "refund")]
    {
        let session = stripe(purchase)["data"]["object"]["id"].as_str().unwrap().to_owned();
        let later = hour_after(&about(kind, purchase));
        // The stop comes after its purchase.
        let shop = shop_with(&[purchase]);
        shop.write("stop.json", about(kind, purchase).to_string());
        shop.write("other.json", stripe("02").to_string());
        take_in(&shop, purchase).exits(0);
        let run = |shop: &Shop, file: &str| {
            shop.stepmail(&["run", "--json", "--accept-clock", "--now", &later, "--events", file])
        };
        run(&shop, "other.json").exits(0);
        run(&shop, "stop.json").exits(0);
        assert_eq!(shop.steps(&session), ["sent", "stopped", "stopped", "stopped"], "{reason}");
        assert_eq!(shop.purchase(&session)["stopped"]["reason"], json!(reason));
        let other = stripe("02")["data"]["object"]["id"].as_str().unwrap().to_owned();
        assert_eq!(shop.purchase(&other)["stopped"], Value::Null, "the stop of one purchase hit another");

        // The stop comes first: the purchase is stopped when it arrives, and the shop was told once.
        let shop = shop_with(&[purchase]);
        shop.write("stop.json", about(kind, purchase).to_string());
        assert_eq!(run(&shop, "stop.json").exits(1).notices(), ["unlinked_stop"]);
        assert!(run(&shop, "stop.json").exits(0).notices().is_empty());
        let ran = run(&shop, &format!("{purchase}.json")).exits(0);
        assert!(ran.mails().is_empty(), "{reason}: mailed after the stop");
        assert_eq!(shop.steps(&session), ["stopped", "stopped", "stopped", "stopped"], "{reason}");
    }
}

#[test]
fn part_of_the_money_back_stops_nothing_and_is_told_once() {
    let shop = shop_with(&["05", "09"]);
    take_in(&shop, "05").exits(0);
    let session = stripe("05")["data"]["object"]["id"].as_str().unwrap().to_owned();
    let told = take_in(&shop, "09").exits(1);
    assert_eq!(told.notices(), ["partial_refund"]);
    assert_eq!(told.json()["notices"][0]["session"], json!(session));
    assert!(take_in(&shop, "09").notices().is_empty());
    assert_eq!(shop.purchase(&session)["stopped"], Value::Null);
}

#[test]
fn c003_an_event_delivered_four_times_is_one_purchase_and_one_mail() {
    let shop = Shop::new();
    for _ in 0..4 {
        shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    }
    let ran = shop.run("2026-10-01T01:00:00Z").exits(0);
    assert_eq!(counted(&ran), [("duplicates".to_owned(), 3), ("purchases".to_owned(), 1)]);
    let ran = shop.run("2026-10-01T02:00:00Z").exits(0);
    assert_eq!(counted(&ran), [("duplicates".to_owned(), 4)]);
    assert_eq!(shop.outbox(), ["pp:cs_1:d0"]);
}

#[test]
fn a_file_that_is_handed_in_every_hour_writes_the_ledger_once() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z").event("{\"id\":\"odd\"}");
    shop.run("2026-10-01T01:00:00Z").exits(1);
    let before = shop.read("ledger.json");
    for hour in 2..6 {
        shop.run(&format!("2026-10-01T0{hour}:00:00Z")).exits(0);
        assert_eq!(before, shop.read("ledger.json"), "hour {hour}");
    }
}

#[test]
fn r2_another_address_for_a_known_session_is_refused_and_told_once() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.event(r#"{"id":"other","type":"checkout.completed","session":"cs_1","email":"b@example.com","paid_at":"2026-10-01T00:00:00Z"}"#);
    let told = shop.run("2026-10-01T02:00:00Z").exits(1);
    assert_eq!(told.notices(), ["conflict"]);
    assert!(!told.stdout.contains("b@example.com") && !told.stderr.contains("b@example.com"));
    assert!(shop.run("2026-10-01T03:00:00Z").exits(0).notices().is_empty());
    assert_eq!(shop.purchase("cs_1")["email"], json!("a@example.com"));
}

#[test]
fn c034_a_buyer_without_an_address_waits_and_holds_up_nobody() {
    let shop = shop_with(&["05"]);
    let mut event = stripe("05");
    event["data"]["object"]["customer_details"] = Value::Null;
    let session = event["data"]["object"]["id"].as_str().unwrap().to_owned();
    shop.write("05.json", event.to_string());
    assert_eq!(take_in(&shop, "05").exits(1).notices(), ["no_address"]);
    // The seller knows the address and hands it in.
    shop.event(&format!(
        r#"{{"id":"by_hand","type":"checkout.completed","session":"{session}","email":"a@example.com","paid_at":"2026-02-14T05:00:00Z"}}"#
    ));
    assert_eq!(shop.run("2026-02-14T06:00:00Z").exits(0).mails(), [format!("pp:{session}:d0 sent")]);
}

#[test]
fn c013_c014_c015_each_of_many_buyers_gets_their_own_mail_and_nobody_elses() {
    let shop = Shop::new();
    for n in 0..10 {
        let name = if n % 2 == 0 { format!("\"name\":\"Buyer Number{n}\",") } else { String::new() };
        let product = format!("\"vars\":{{\"product\":\"Thing{n}\"}}");
        shop.event(&format!(
            r#"{{"id":"e{n}","type":"checkout.completed","session":"cs_{n}","email":"b{n}@example.com","paid_at":"2026-10-01T00:00:00Z",{name}{product}}}"#
        ));
    }
    assert_eq!(shop.run("2026-10-01T01:00:00Z").exits(0).mails().len(), 10);
    // Read by somebody else's parser.
    let script = r#"
import email, email.policy, sys
m = email.message_from_bytes(open(sys.argv[1], "rb").read(), policy=email.policy.default)
assert not m.defects, m.defects
assert [p.get_content_type() for p in m.walk()] == ["multipart/alternative", "text/plain", "text/html"]
for h in ("To", "From", "Subject", "Date", "Message-ID", "MIME-Version"):
    assert len(m.get_all(h)) == 1, h
assert m["Cc"] is None and m["Bcc"] is None and m["Auto-Submitted"] == "auto-generated"
print(m["To"]); print(m["Subject"])
for kind in ("plain", "html"):
    print(m.get_body((kind,)).get_content())
"#;
    for n in 0..10 {
        let path = shop.path(&format!("outbox/pp.cs_{n}.d0.eml"));
        let read = std::process::Command::new("python3").args(["-c", script]).arg(path).output().unwrap();
        let mail = String::from_utf8(read.stdout).unwrap();
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        assert!(mail.starts_with(&format!("b{n}@example.com\n")), "{mail}");
        assert!(mail.matches(&format!("Thing{n}")).count() >= 2, "{mail}");
        for other in (0..10).filter(|other| *other != n) {
            assert!(
                !mail.contains(&format!("Thing{other}")) && !mail.contains(&format!("Number{other}")),
                "{n}: {mail}"
            );
        }
        if n % 2 == 0 {
            assert!(mail.contains(&format!("Hello Buyer Number{n},")), "{mail}");
        } else {
            // C041: nobody is greeted by a part of their address.
            assert!(mail.contains("Hello,") && !mail.contains(&format!("Hello b{n}")), "{mail}");
        }
        for never in ["None", "undefined", "null", "{{"] {
            assert!(!mail.contains(never), "{never} left: {mail}");
        }
    }
}

#[test]
fn c022_c023_c026_the_machines_time_zone_changes_nothing() {
    let mut told = Vec::new();
    for zone in ["UTC", "America/New_York", "Asia/Tokyo"] {
        let shop = Shop::new();
        // 00:30 on the 30th of October in Tokyo; the clocks go back in New York on the 1st of November.
        shop.buys("cs_1", "a@example.com", "2026-10-30T00:30:00+09:00").buys(
            "cs_2",
            "b@example.com",
            "2027-01-31T00:00:00Z",
        );
        let mut all = String::new();
        for now in [
            "2026-10-29T15:30:00Z",
            "2026-11-01T05:30:00Z",
            "2026-11-01T06:30:00Z",
            "2026-11-01T15:29:59Z",
            "2026-11-01T15:30:00Z",
            "2026-11-05T15:29:59Z",
            "2026-11-05T15:30:00Z",
            "2026-12-14T00:00:00Z",
            "2027-01-20T00:00:00Z",
            "2027-01-31T00:00:00Z",
            "2027-02-02T23:59:59Z",
            "2027-02-03T00:00:00Z",
            "2027-02-14T00:00:00Z",
            "2027-02-27T23:59:59Z",
        ] {
            let mut command = shop.command(&["run", "--json", "--now", now, "--events", "events.jsonl"]);
            let ran = Ran::of(&command.env("TZ", zone).output().unwrap());
            writeln!(all, "{now} {:?} {:?}", ran.mails(), ran.closed()).unwrap();
        }
        told.push(all);
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0], told[2]);
    for expected in [
        "2026-11-01T15:29:59Z [] []",
        "2026-11-01T15:30:00Z [\"pp:cs_1:d3 sent\"] []",
        "2026-11-05T15:30:00Z [\"pp:cs_1:d7 sent\"] []",
        "2027-02-02T23:59:59Z [] []",
        "2027-02-03T00:00:00Z [\"pp:cs_2:d3 sent\"] []",
        "2027-02-14T00:00:00Z [\"pp:cs_2:d14 sent\"]",
    ] {
        assert!(told[0].contains(expected), "`{expected}` is not in\n{}", told[0]);
    }
}

#[test]
fn c005_c007_one_buyer_whose_mail_cannot_be_put_down_holds_up_nobody() {
    for place in [0, 2, 4] {
        let shop = Shop::new();
        for n in 0..5 {
            shop.buys(&format!("cs_{n}"), &format!("b{n}@example.com"), &format!("2026-10-01T00:0{n}:00Z"));
        }
        // A folder stands where this buyer's mail should go.
        let blocked = format!("outbox/pp.cs_{place}.d0.eml");
        std::fs::create_dir_all(shop.path(&blocked)).unwrap();
        let ran = shop.run("2026-10-01T01:00:00Z");
        assert_eq!(ran.mails().iter().filter(|mail| mail.ends_with(" sent")).count(), 4, "{}", ran.stdout);
        std::fs::remove_dir(shop.path(&blocked)).unwrap();
        assert_eq!(shop.run("2026-10-01T02:00:00Z").exits(0).mails(), [format!("pp:cs_{place}:d0 sent")]);
    }
}

#[test]
fn c081_r15_a_notice_that_cannot_be_told_is_told_later_and_once() {
    let shop = Shop::new();
    shop.event("{\"id\":\"odd\",\"type\":\"checkout.completed\"}");
    shop.write("outbox/notices", "a file where the folder should be");
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    // The buyer's mail does not wait for the notice.
    assert_eq!(shop.run("2026-10-01T01:00:00Z").exits(1).mails(), ["pp:cs_1:d0 sent"]);
    shop.run("2026-10-01T02:00:00Z").exits(1);
    std::fs::remove_file(shop.path("outbox/notices")).unwrap();
    shop.run("2026-10-01T03:00:00Z").exits(0);
    shop.run("2026-10-01T04:00:00Z").exits(0);
    assert_eq!(shop.notices().len(), 1, "{:?}", shop.notices());
    assert!(shop.notices()[0].starts_with("pp:notice:invalid_event."));
    assert_eq!(shop.outbox(), ["pp:cs_1:d0"]);
}
