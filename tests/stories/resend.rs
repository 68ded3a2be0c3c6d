//! Real mails: what leaves, what the service answers, and what the buyer finds.

use std::time::Duration;

use serde_json::{Value, json};

use crate::double::{Act, Double, KEY, refuse};
use crate::shop::{Ran, Shop};

const PAID: &str = "2026-10-01T00:00:00Z";
const FIRST: &str = "2026-10-01T01:00:00Z";
const SECOND: &str = "2026-10-01T02:00:00Z";

/// A service, and a shop with one buyer who has just paid.
fn shop() -> (Double, Shop) {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    shop.buys("cs_1", "hanako@example.com", PAID);
    (double, shop)
}

/// The run of that time, by the double's clock too.
fn run(double: &Double, shop: &Shop, now: &str) -> Ran {
    double.set_now(now);
    shop.run(now).hides_addresses()
}

/// `count` buyers, who paid one after the other.
fn buyers(shop: &Shop, count: usize) {
    for n in 0..count {
        let paid = format!("2026-10-01T00:{:02}:{:02}Z", n / 60 % 60, n % 60);
        shop.buys(&format!("cs_{n:04}"), &format!("b{n}@example.com"), &paid);
    }
}

#[test]
fn a_buyer_pays_and_gets_one_mail_through_the_service() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    shop.buys("cs_1", "Hanako@example.com", PAID);
    assert_eq!(run(&double, &shop, FIRST).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    let [mail] = &double.deliveries()[..] else { panic!("{:?}", double.deliveries()) };
    assert_eq!((mail.key.as_str(), mail.to.as_str()), ("pp:cs_1:d0", "Hanako@example.com"));
    assert_eq!(
        mail.body["tags"],
        json!([{"name": "session", "value": "cs_1"}, {"name": "step", "value": "d0"}])
    );
    let sent = &shop.purchase("cs_1")["steps"]["d0"];
    assert_eq!((&sent["message_id"], &sent["via"]), (&json!(mail.id), &json!("resend")));
    let requests = double.requests();
    let post = requests.iter().find(|seen| seen.method == "POST").unwrap();
    assert_eq!(
        (post.path.as_str(), post.headers["authorization"].as_str()),
        ("/emails", &*format!("Bearer {KEY}"))
    );
    assert_eq!(post.headers["content-type"], "application/json");
    assert!(post.headers["user-agent"].starts_with("stepmail/"));
    assert!(!shop.path("outbox").exists(), "a mail that left lies in the outbox");
    run(&double, &shop, SECOND).exits(0);
    assert_eq!(double.posts(), 1);
}

/// What the ledger says of a d0 after an answer, and what the next run does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    Accepted,
    /// Nothing more is sent in this run, and a human is told.
    Account,
    ThisMail,
    Later,
    Unknown,
    Conflict,
}

#[test]
fn r9_each_answer_of_the_service_and_what_becomes_of_the_mail() {
    use Class::{Accepted, Account, Conflict, Later, ThisMail, Unknown};
    let raw = |status, kind, body: &str| Act::Raw(status, kind, body.into());
    let json = |status, body: &str| raw(status, "application/json", body);
    let after = |span: &str| {
        Act::Refuse(429, "rate_limit_exceeded", "slow down".into(), vec![("retry-after", span.into())])
    };
    let elsewhere = Double::new();
    let page = format!("{}/login", elsewhere.url());
    let table = [
        (Act::Accept, Accepted),
        // The account.
        (refuse(401, "missing_api_key", "Missing API Key"), Account),
        (refuse(401, "validation_error", "API key is invalid"), Account),
        (refuse(403, "validation_error", "API key is invalid"), Account),
        (refuse(400, "validation_error", "API key is invalid"), Account),
        (refuse(403, "invalid_api_key", "no"), Account),
        (refuse(403, "suspended_api_key", "no"), Account),
        (refuse(403, "invalid_permission", "no"), Account),
        (refuse(403, "restricted_api_key", "no"), Account),
        (refuse(401, "restricted_api_key", "no"), Account),
        (refuse(403, "validation_error", "The example.com domain is not verified."), Account),
        (
            refuse(403, "validation_error", "You can only send testing emails to your own email address"),
            Account,
        ),
        (refuse(422, "validation_error", "Invalid `from` field. It needs to be an address."), Account),
        (refuse(422, "validation_error", "Invalid `reply_to` field."), Account),
        (refuse(422, "validation_error", "The `headers` must be an object."), Account),
        (refuse(422, "validation_error", "Tags should only contain ASCII letters."), Account),
        (refuse(429, "daily_quota_exceeded", "You have reached your daily quota."), Account),
        (refuse(429, "monthly_quota_exceeded", "You have reached your monthly quota."), Account),
        (refuse(451, "security_error", "no"), Account),
        (refuse(402, "payment_required", "no"), Account),
        // The program or its settings, treated the same.
        (refuse(400, "invalid_idempotency_key", "The key must be between 1-256 chars"), Account),
        (refuse(404, "not_found", "no such endpoint"), Account),
        (refuse(405, "method_not_allowed", "no"), Account),
        (raw(403, "text/html", "<h1>Forbidden</h1>"), Account),
        (Act::Redirect(301, page.clone()), Account),
        (Act::Redirect(302, page.clone()), Account),
        (Act::Redirect(307, page), Account),
        // This mail.
        (
            refuse(422, "validation_error", "Invalid `to` field. It needs to be like email@example.com"),
            ThisMail,
        ),
        (refuse(400, "validation_error", "The html is wrong"), ThisMail),
        (refuse(422, "missing_required_field", "Missing `subject` field"), ThisMail),
        (refuse(422, "invalid_parameter", "no"), ThisMail),
        (refuse(422, "invalid_attachment", "no"), ThisMail),
        (refuse(413, "too_large", "no"), ThisMail),
        (refuse(418, "teapot", "no"), ThisMail),
        // Later. Three further tries are made within the run, so each of these takes seconds.
        (after("3600"), Later),
        (after("abc"), Later),
        (raw(429, "text/html", "<h1>Too many</h1>"), Later),
        // Nobody knows.
        (refuse(500, "application_error", "no"), Unknown),
        (refuse(500, "validation_error", "API key is invalid"), Unknown),
        (refuse(503, "rate_limit_exceeded", "no"), Unknown),
        (raw(502, "text/html", "<h1>Bad Gateway</h1>"), Unknown),
        (json(200, "{}"), Unknown),
        (json(200, "[]"), Unknown),
        (json(200, ""), Unknown),
        (json(200, r#"{"id":null}"#), Unknown),
        (json(200, r#"{"id":""}"#), Unknown),
        (json(200, r#"{"data":null,"error":{"name":"validation_error","message":"no"}}"#), Unknown),
        (json(200, r#"{"status":"rejected"}"#), Unknown),
        (Act::Raw(200, "application/json", vec![b' '; 3 << 20]), Unknown),
        (Act::DropBeforeReading, Unknown),
        (Act::Drop, Unknown),
        (Act::HalfAnAnswer, Unknown),
        (Act::AcceptThen(Box::new(Act::Drop)), Unknown),
        (Act::AcceptThen(Box::new(refuse(500, "application_error", "no"))), Unknown),
        (Act::AcceptThen(Box::new(raw(502, "text/html", "<h1>Bad Gateway</h1>"))), Unknown),
        (refuse(409, "concurrent_idempotent_requests", "in progress"), Unknown),
        (refuse(409, "something_else", "no"), Unknown),
        (refuse(408, "timeout", "no"), Unknown),
        // An earlier body was taken.
        (refuse(409, "invalid_idempotent_request", "Same key, different payload"), Conflict),
    ];
    // Some rows wait for seconds, so several are tried at once.
    let rows = std::sync::Mutex::new(table.into_iter());
    let next = || rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some((act, class)) = next() {
                    becomes(act, class);
                }
            });
        }
    });
    assert_eq!(elsewhere.requests().len(), 0, "a redirect was followed, with the key");
}

/// One row: the answer, what the ledger says then, and what the next run with a healthy service does.
fn becomes(act: Act, class: Class) {
    use Class::{Accepted, Account, Conflict, Later, ThisMail, Unknown};
    let what = format!("{act:?}").chars().take(120).collect::<String>();
    let (double, shop) = shop();
    double.always(act);
    let ran = run(&double, &shop, FIRST);
    let first = shop.purchase("cs_1")["steps"]["d0"].clone();
    let (state, exit) = match class {
        Accepted => ("sent", 0),
        Account => ("pending", 1),
        ThisMail | Later => ("pending", 75),
        Unknown => ("planned", 75),
        Conflict => ("closed", 1),
    };
    assert_eq!((first["state"].as_str().unwrap(), ran.code), (state, exit), "{what}: {}", ran.stdout);
    assert_eq!(first["refused"]["count"] == 1, class == ThisMail, "{what}");
    assert_eq!(first["first_unknown_at"].is_string(), class == Unknown, "{what}");
    assert_eq!(ran.notices() == ["account"], class == Account, "{what}: {:?}", ran.notices());
    let before = double.asked("pp:cs_1:d0");
    double.is_well();
    let ran = run(&double, &shop, SECOND);
    match class {
        Accepted | Conflict => {
            assert_eq!(double.asked("pp:cs_1:d0").len(), before.len(), "{what}: asked again");
        }
        _ => {
            assert_eq!((shop.step("cs_1", "d0").as_str(), ran.code), ("sent", 0), "{what}: {}", ran.stdout);
            assert_eq!(double.delivered("pp:cs_1:d0"), 1, "{what}");
        }
    }
    if class == Unknown {
        let asked = double.asked("pp:cs_1:d0");
        assert!(
            asked.iter().all(|body| *body == asked[asked.len() - 1] || body.is_empty()),
            "{what}: other bytes"
        );
    }
    assert_eq!(double.twice(), [""; 0], "{what}");
}

#[test]
fn c047_a_mail_that_is_to_come_in_two_seconds_comes_in_this_run() {
    let (double, shop) = shop();
    let soon =
        |span: String| Act::Refuse(429, "rate_limit_exceeded", "no".into(), vec![("retry-after", span)]);
    let date =
        chrono::DateTime::from_timestamp(stepmail::clock::Clock::new(None).machine().unix() + 2, 0).unwrap();
    double.next(soon("1".into())).next(soon(date.format("%a, %d %b %Y %H:%M:%S GMT").to_string()));
    assert_eq!(run(&double, &shop, FIRST).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!((double.posts(), double.delivered("pp:cs_1:d0")), (3, 1));
}

#[test]
fn c047_a_service_that_asks_for_an_hour_is_not_asked_for_the_others() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    buyers(&shop, 4);
    double.next(Act::Accept).always(Act::Refuse(
        429,
        "rate_limit_exceeded",
        "no".into(),
        vec![("retry-after", "3600".into())],
    ));
    run(&double, &shop, FIRST).exits(75).says("asks to wait until 2026-10-01T02:00:00Z");
    assert_eq!(double.posts(), 2);
    double.is_well();
    run(&double, &shop, SECOND).exits(0);
    assert_eq!((double.deliveries().len(), double.twice().len()), (4, 0));
}

#[test]
fn c002_c053_an_answer_that_gets_lost_four_times_is_one_mail() {
    for lost in [Act::Drop, refuse(500, "application_error", "no")] {
        let (double, shop) = shop();
        double.always(Act::AcceptThen(Box::new(lost)));
        for hour in 1..5 {
            run(&double, &shop, &format!("2026-10-01T{hour:02}:00:00Z")).exits(75);
        }
        double.is_well();
        run(&double, &shop, "2026-10-01T05:00:00Z").exits(0);
        assert_eq!((double.posts(), double.delivered("pp:cs_1:d0")), (5, 1));
        let asked = double.asked("pp:cs_1:d0");
        assert!(asked.iter().all(|body| *body == asked[0]));
        assert_eq!(shop.step("cs_1", "d0"), "sent");
    }
}

#[test]
fn c001_a_run_that_is_killed_between_the_answer_and_the_record_delivers_once() {
    let (double, shop) = shop();
    double.set_now(FIRST);
    double.next(Act::Slow(Duration::from_secs(2)));
    let mut child = shop.spawn(&["run", "--now", FIRST, "--events", "events.jsonl"]);
    double.waits_for(1);
    std::thread::sleep(Duration::from_millis(200));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(double.delivered("pp:cs_1:d0"), 1, "the service had accepted it");
    std::thread::sleep(Duration::from_millis(2200));
    // The texts are edited before it is tried again.
    shop.stepmail(&["init", "--templates", "templates-of-mine"]).exits(0);
    shop.set("[templates]\ndir = \"templates-of-mine/templates\"");
    let text = shop.read("templates-of-mine/templates/d0.en.md").replace("Thank", "Many thanks! Thank");
    shop.write("templates-of-mine/templates/d0.en.md", text);
    run(&double, &shop, SECOND).exits(0);
    let asked = double.asked("pp:cs_1:d0");
    assert_eq!((asked.len(), double.delivered("pp:cs_1:d0")), (2, 1));
    assert_eq!(asked[0], asked[1], "r11: a retry brought other bytes");
    assert_eq!(shop.step("cs_1", "d0"), "sent");
}

#[test]
fn c006_the_same_key_is_asked_for_until_23_h_45_min_and_not_after_whatever_the_clock_did_meanwhile() {
    for (now, back, tries) in [
        ("2026-10-02T00:44:00Z", None, 2),
        ("2026-10-02T00:46:00Z", None, 1),
        ("2026-10-02T00:46:00Z", Some("2026-10-01T00:56:00Z"), 2),
    ] {
        let (double, shop) = shop();
        double.list_keeps(0);
        double.always(Act::AcceptThen(Box::new(Act::Drop)));
        run(&double, &shop, FIRST).exits(75);
        if let Some(back) = back {
            // Five minutes back is within what a clock may do; the 24 hours go on from the first try.
            run(&double, &shop, back).exits(75);
        }
        run(&double, &shop, now);
        assert_eq!(double.posts(), tries, "{now} {back:?}");
        assert_eq!(
            shop.step("cs_1", "d0"),
            if now.contains("44") { "planned" } else { "unknown_result" },
            "{now}"
        );
        let posts = double.posts();
        let after = run(&double, &shop, "2026-10-02T03:00:00Z");
        assert_eq!(double.posts(), posts, "{}", after.stdout);
        assert_eq!(double.twice(), [""; 0]);
        assert_eq!(double.notices().len(), 1, "told once");
    }
}

#[test]
fn c020_a_stop_between_the_lost_answer_and_the_retry_holds() {
    let (double, shop) = shop();
    double.next(Act::AcceptThen(Box::new(Act::Drop)));
    run(&double, &shop, FIRST).exits(75);
    shop.stepmail(&["mark-stopped", "hanako@example.com", "--now", "2026-10-01T01:30:00Z"]).exits(0);
    run(&double, &shop, SECOND).exits(0);
    assert_eq!((double.posts(), shop.step("cs_1", "d0").as_str()), (1, "stopped"));
    assert!(
        shop.purchase("cs_1")["steps"]["d0"]["attempt"].is_object(),
        "that it may have left is forgotten"
    );
}

#[test]
fn r5_a_window_that_ends_between_the_lost_answer_and_the_retry_ends_the_tries() {
    let (double, shop) = shop();
    double.list_keeps(0);
    run(&double, &shop, FIRST).exits(0);
    double.next(Act::Drop);
    run(&double, &shop, "2026-10-07T23:30:00Z").exits(75);
    let closed = run(&double, &shop, "2026-10-08T00:30:00Z").exits(1).closed();
    assert_eq!(closed, ["cs_1 d3 unknown_result"]);
    assert_eq!(double.asked("pp:cs_1:d3").len(), 1);
}

#[test]
fn c005_of_thirteen_buyers_the_last_ones_trouble_costs_the_others_nothing() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    buyers(&shop, 13);
    double.for_recipient("b12@example.com", refuse(500, "application_error", "no"));
    for hour in 1..6 {
        run(&double, &shop, &format!("2026-10-01T{hour:02}:00:00Z")).exits(75);
        assert_eq!(double.deliveries().len(), 12);
    }
    double.is_well();
    run(&double, &shop, "2026-10-01T06:00:00Z").exits(0);
    assert_eq!((double.posts(), double.deliveries().len(), double.twice().len()), (12 + 6, 13, 0));
}

#[test]
fn c051_c055_a_quota_from_the_sixth_on_ends_the_run_is_told_once_and_loses_nothing() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    buyers(&shop, 9);
    double.quota(Some(5));
    let ran = run(&double, &shop, FIRST).exits(1);
    assert_eq!((ran.notices(), double.posts()), (vec!["account".to_owned()], 6));
    let again = run(&double, &shop, SECOND).exits(1);
    assert_eq!((again.notices().len(), double.posts()), (0, 7), "told again, or hammered");
    double.quota(None);
    run(&double, &shop, "2026-10-02T00:10:00Z").exits(0);
    assert_eq!((double.deliveries().len(), double.twice().len()), (9, 0));
    // What the refusing service could not carry is over by now; the owner saw the run's exit code.
    assert!(!shop.ledger()["matters"].to_string().contains("account"), "{}", shop.ledger()["matters"]);
}

/// The three that wait for the limit of 30 seconds, side by side.
#[test]
fn c050_c054_a_service_that_answers_never_too_late_or_byte_by_byte_costs_thirty_seconds_and_no_mail() {
    std::thread::scope(|scope| {
        for story in [never_answered, answered_too_late, answered_byte_by_byte] {
            scope.spawn(move || {
                let before = std::time::Instant::now();
                story();
                assert!(before.elapsed() < Duration::from_secs(60), "{:?}", before.elapsed());
            });
        }
    });
}

fn never_answered() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    buyers(&shop, 5);
    double.for_recipient("b1@example.com", Act::Hold);
    run(&double, &shop, FIRST).exits(75).says("no answer within 30 s");
    assert_eq!(double.deliveries().len(), 4, "one slow buyer held up the others");
    double.is_well();
    run(&double, &shop, SECOND).exits(0);
    assert_eq!((double.deliveries().len(), double.twice().len()), (5, 0));
}

fn answered_too_late() {
    let (double, shop) = shop();
    double.next(Act::Slow(Duration::from_secs(31)));
    run(&double, &shop, FIRST).exits(75);
    run(&double, &shop, SECOND).exits(0);
    assert_eq!((double.delivered("pp:cs_1:d0"), shop.step("cs_1", "d0").as_str()), (1, "sent"));
}

fn answered_byte_by_byte() {
    let (double, shop) = shop();
    double.next(Act::Drip(Duration::from_millis(400)));
    run(&double, &shop, FIRST).exits(75);
    assert_eq!(shop.step("cs_1", "d0"), "planned");
    run(&double, &shop, SECOND).exits(0);
    assert_eq!(double.delivered("pp:cs_1:d0"), 1);
}

#[test]
fn c054_a_mail_that_is_still_being_worked_on_is_sent_once() {
    let (double, shop) = shop();
    double.set_now(FIRST);
    double.next(Act::Slow(Duration::from_secs(5)));
    let mut first = shop.spawn(&["run", "--now", FIRST, "--events", "events.jsonl"]);
    double.waits_for(1);
    std::thread::sleep(Duration::from_millis(100));
    first.kill().unwrap();
    first.wait().unwrap();
    // The next run finds it in progress, waits, and gets the first answer.
    assert_eq!(run(&double, &shop, SECOND).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert!(double.posts() > 2, "it was never in progress");
    assert_eq!(double.delivered("pp:cs_1:d0"), 1);
}

#[test]
fn c001_a_run_that_is_killed_at_its_second_try_of_a_mail_delivers_once() {
    let (double, shop) = shop();
    double.list_keeps(0);
    double.set_now(FIRST);
    double.next(refuse(429, "rate_limit_exceeded", "slow down")).next(Act::Slow(Duration::from_secs(2)));
    let mut child = shop.spawn(&["run", "--now", FIRST, "--events", "events.jsonl"]);
    double.waits_for(2);
    std::thread::sleep(Duration::from_millis(200));
    child.kill().unwrap();
    child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(2200));
    // Nobody came for it before the service had forgotten the key.
    run(&double, &shop, "2026-10-02T02:00:00Z").exits(1);
    assert_eq!((double.delivered("pp:cs_1:d0"), shop.step("cs_1", "d0").as_str()), (1, "unknown_result"));
}

#[test]
fn r9_five_lost_answers_in_a_row_leave_the_rest_to_the_next_hour() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    buyers(&shop, 8);
    double.always(Act::AcceptThen(Box::new(Act::Drop)));
    run(&double, &shop, FIRST).exits(75).says("five attempts in a row");
    assert_eq!(double.posts(), 5);
    double.is_well();
    run(&double, &shop, SECOND).exits(0);
    assert_eq!((double.deliveries().len(), double.twice().len()), (8, 0));
}

#[test]
fn c013_c015_ten_buyers_get_their_own_name_key_and_address() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    for n in 0..10 {
        shop.event(&format!(
            r#"{{"id":"e{n}","type":"checkout.completed","session":"cs_{n}","email":"b{n}@example.com","paid_at":"{PAID}","name":"Name{n}x"}}"#
        ));
    }
    run(&double, &shop, FIRST).exits(0);
    for mail in double.deliveries() {
        let n = mail.to.trim_start_matches('b').trim_end_matches("@example.com");
        assert_eq!(mail.key, format!("pp:cs_{n}:d0"));
        let text = mail.body["text"].as_str().unwrap();
        assert_eq!(text.matches("Name").count(), text.matches(&format!("Name{n}x")).count(), "{text}");
        assert!(text.contains(&format!("Name{n}x")));
        assert!(mail.body.get("cc").is_none() && mail.body.get("bcc").is_none());
    }
    assert_eq!(double.deliveries().len(), 10);
}

#[test]
fn keep_alive_many_mails_go_over_one_connection() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    buyers(&shop, 20);
    run(&double, &shop, FIRST).exits(0);
    let connections: std::collections::HashSet<usize> =
        double.requests().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections.len(), 1);
}

#[test]
fn c056_a_hundred_and_twenty_buyers_at_once_and_a_service_that_takes_few() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    buyers(&shop, 120);
    double.limit(30);
    let mut runs = 0;
    while double.deliveries().len() < 120 {
        runs += 1;
        assert!(runs < 12, "{} of 120 after {runs} runs", double.deliveries().len());
        run(&double, &shop, &format!("2026-10-01T{runs:02}:00:00Z"));
    }
    assert_eq!(double.twice(), [""; 0]);
    // No hot loop: a refused request is followed by a pause.
    assert!(double.posts() < 400, "{} requests for 120 mails", double.posts());
}

/// DURABILITY 3, the whole of it in one: 1,000 buyers and a service that is a little out of order in every way.
#[test]
fn a_thousand_buyers_get_one_mail_each_from_a_service_that_fails_in_one_of_a_hundred_in_four_ways() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    buyers(&shop, 1000);
    double.by_count(|n| match n % 100 {
        7 => Act::AcceptThen(Box::new(Act::Drop)),
        31 => Act::AcceptThen(Box::new(refuse(500, "application_error", "no"))),
        57 => refuse(429, "rate_limit_exceeded", "no"),
        83 => Act::Slow(Duration::from_millis(300)),
        _ => Act::Accept,
    });
    let mut runs = 0;
    loop {
        runs += 1;
        let ran = run(&double, &shop, &format!("2026-10-01T{runs:02}:00:00Z"));
        if ran.code == 0 {
            break;
        }
        assert!(runs < 10, "not done after {runs} runs: {}", ran.stderr);
    }
    assert_eq!((double.deliveries().len(), double.twice()), (1000, Vec::new()));
    let ledger = shop.ledger();
    let sent = |buyer: &Value| buyer["purchases"][0]["steps"]["d0"]["state"] == "sent";
    assert!(ledger["buyers"].as_array().unwrap().iter().all(sent));
}

/// R17, C070, C071: whatever the service repeats, neither key nor address is written or said.
#[test]
fn c070_c071_a_service_that_repeats_key_and_address_makes_nobody_write_them_down() {
    for act in [
        Act::Echo(422, "validation_error"),
        Act::Echo(403, "validation_error"),
        Act::Echo(429, "daily_quota_exceeded"),
        Act::Echo(500, "application_error"),
        Act::Echo(409, "invalid_idempotent_request"),
        Act::Raw(502, "text/html", format!("<h1>hanako@example.com {KEY}</h1>").into_bytes()),
        Act::Raw(200, "application/json", format!(r#"{{"id":"{KEY}"}}"#).into_bytes()),
        Act::Redirect(302, format!("https://example.com/?key={KEY}&to=hanako@example.com")),
    ] {
        let (double, shop) = shop();
        let what = format!("{act:?}");
        double.always(act.clone());
        double.for_reads(act);
        for (now, more) in
            [(FIRST, vec!["-vv"]), (SECOND, vec![]), ("2026-10-01T03:00:00Z", vec!["--dry-run"])]
        {
            double.set_now(now);
            let ran = shop.run_with(now, &more).hides_addresses();
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert!(!said.contains(KEY) && !said.contains("Sentinel"), "{what}: {said}");
        }
        let check = shop.stepmail(&["check", "--now", SECOND, "-vv"]);
        assert!(!check.stdout.contains("Sentinel") && !check.stderr.contains("Sentinel"), "{what}");
        for (path, bytes) in shop.everything() {
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains("Sentinel"), "{what}: the key is in {}", path.display());
            let of_ours =
                ["ledger.json", "ledger.json.bak", "events.jsonl"].iter().any(|name| path.ends_with(name));
            assert!(
                of_ours || !text.contains("hanako@example"),
                "{what}: an address is in {}",
                path.display()
            );
        }
        // In the ledger the address stands where it belongs, and in no reason.
        let ledger = shop.ledger();
        let matters = ledger["matters"].to_string();
        let refused = ledger["buyers"][0]["purchases"][0]["steps"]["d0"]["refused"].to_string();
        for text in [matters, refused] {
            assert!(!text.contains("hanako@") && !text.contains("hanako%40"), "{what}: {text}");
        }
    }
}
