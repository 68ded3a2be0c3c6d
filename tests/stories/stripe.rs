//! The payment service is asked what happened, every hour.

use serde_json::{Value, json};

use crate::double::{Act, Double, STRIPE_KEY, event, paid};
use crate::shop::{Ran, Shop};

const PAID: &str = "2026-10-01T00:00:00Z";
const FIRST: &str = "2026-10-01T01:00:00Z";
const SECOND: &str = "2026-10-01T02:00:00Z";

fn shop() -> (Double, Shop) {
    let double = Double::new();
    let shop = Shop::polling(&double);
    (double, shop)
}

fn run(shop: &Shop, now: &str) -> Ran {
    shop.run(now).hides_addresses()
}

fn error(status: u16, code: &str, message: &str) -> Act {
    let body = json!({ "error": { "type": "api_error", "code": code, "message": message } });
    Act::Raw(status, "application/json", body.to_string().into_bytes())
}

#[test]
fn a_purchase_at_the_payment_service_is_mailed_within_the_hour_and_a_quiet_hour_costs_one_request_and_writes_nothing()
 {
    let (double, shop) = shop();
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    assert_eq!(run(&shop, FIRST).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    let ledger = shop.read("ledger.json");
    let before = double.polls().len();
    let quiet = run(&shop, SECOND).exits(0);
    assert_eq!((quiet.mails().len(), double.polls().len()), (0, before + 1));
    assert_eq!(shop.read("ledger.json"), ledger, "a quiet poll wrote the ledger");
    let state: Vec<_> =
        shop.everything().into_iter().filter(|(path, _)| path.starts_with(shop.path("state"))).collect();
    let is_kept =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("\"stripe\":\"2026-10-01T02:00:00Z\"");
    assert!(state.iter().any(|(_, bytes)| is_kept(bytes)), "the reading is not kept: {state:?}");
}

#[test]
fn what_was_paid_before_go_live_is_not_even_asked_for_and_what_shows_up_late_is_not_missed() {
    let (double, shop) = shop();
    double.happens(paid("cs_old", "old@example.com", "2026-08-31T23:59:59Z"));
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    assert_eq!(run(&shop, FIRST).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    // It happened five hours before, and nobody was told then.
    double.happens(paid("cs_late", "taro@example.com", "2026-09-30T20:00:00Z"));
    assert_eq!(run(&shop, SECOND).exits(0).mails(), ["pp:cs_late:d0 sent"]);
    // And what is younger than a minute waits for its neighbours.
    double.happens(paid("cs_young", "ume@example.com", "2026-10-01T02:59:30Z"));
    assert!(run(&shop, "2026-10-01T03:00:00Z").exits(0).mails().is_empty());
    assert_eq!(run(&shop, "2026-10-01T04:00:00Z").exits(0).mails(), ["pp:cs_young:d0 sent"]);
}

#[test]
fn c035_of_250_events_none_is_lost_though_40_share_a_second_and_the_second_page_fails() {
    let (double, shop) = shop();
    for n in 0..250 {
        let second = if (100..140).contains(&n) { 100 } else { n };
        let at = format!("2026-10-01T00:{:02}:{:02}Z", second / 60, second % 60);
        double.happens(paid(&format!("cs_{n}"), &format!("b{n}@example.com"), &at));
    }
    // The same event twice, and an event of nobody's concern.
    double.happens(paid("cs_7", "b7@example.com", "2026-10-01T00:00:07Z"));
    for act in [error(500, "api_error", "no"), Act::Drop, Act::HalfAnAnswer] {
        double.stripe_next(Act::Accept).stripe_next(act.clone()).stripe_next(act.clone()).stripe_next(act);
        run(&shop, FIRST).exits(75).says("Stripe cannot be read");
        assert!(shop.ledger()["buyers"].as_array().unwrap().is_empty(), "half a reading was taken in");
    }
    let ran = shop.run_with(FIRST, &["--allow", "300"]).exits(0);
    assert_eq!(ran.json()["ingested"]["purchases"], 250);
    assert_eq!(shop.outbox().len(), 250);
    assert_eq!(run(&shop, SECOND).exits(0).json()["ingested"]["purchases"], 0);
}

#[test]
fn a_stumble_of_the_service_is_asked_over_within_the_run() {
    let (double, shop) = shop();
    run(&shop, PAID).exits(0);
    let before = double.polls().len();
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    double.stripe_next(error(503, "api_error", "no")).stripe_next(Act::Drop);
    assert_eq!(run(&shop, FIRST).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(double.polls().len(), before + 3);
    // An answer that takes its time is an answer.
    double.stripe_next(Act::Slow(std::time::Duration::from_secs(2)));
    run(&shop, FIRST).exits(0);
    // Too many requests: the next hour is soon enough.
    double.stripe_next(error(429, "rate_limit", "no"));
    run(&shop, SECOND).exits(75);
    assert_eq!(double.polls().len(), before + 5);
}

#[test]
fn c070_a_key_that_is_refused_is_told_once_with_the_permission_that_is_missing() {
    let (double, shop) = shop();
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    let message = format!(
        "The provided key '{STRIPE_KEY}' does not have the required permissions for this endpoint on account 'acct_1'. \
         Having the 'rak_event_read' permission would allow this request to continue. hanako@example.com"
    );
    double.stripe_always(Some(error(403, "more_permissions_required", &message)));
    let ran = shop.run_with(FIRST, &["-vv"]).exits(1).hides_addresses().says("rak_event_read");
    assert_eq!(ran.notices(), ["source"]);
    assert!(run(&shop, SECOND).exits(75).notices().is_empty(), "told again");
    for (path, bytes) in shop.everything() {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("Sentinel") && !text.contains("hanako"), "{}", path.display());
    }
    assert!(!ran.stdout.contains("Sentinel") && !ran.stderr.contains("Sentinel"));
    double.stripe_always(None);
    assert_eq!(run(&shop, "2026-10-01T03:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert!(shop.ledger()["matters"].as_array().unwrap().is_empty());
}

#[test]
fn what_is_no_list_of_events_moves_nothing() {
    let (double, shop) = shop();
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    let json = |body: &str| Act::Raw(200, "application/json", body.into());
    for act in [
        Act::Raw(200, "text/html", b"<h1>Welcome</h1>".into()),
        json("{}"),
        json("[]"),
        json(r#"{"data":[]}"#),
        json(r#"{"data":[],"has_more":true}"#),
        json(r#"{"data":[{"id":"evt_x"}],"has_more":"yes"}"#),
        Act::Redirect(302, "https://example.com/login".to_owned()),
    ] {
        let what = format!("{act:?}");
        double.stripe_always(Some(act));
        let ran = run(&shop, FIRST);
        assert_eq!(ran.code, 75, "{what}: {} {}", ran.stdout, ran.stderr);
    }
    double.stripe_always(None);
    assert_eq!(run(&shop, SECOND).exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn a_payment_service_that_is_away_for_seven_hours_lets_only_d0_leave_after_six() {
    let (double, shop) = shop();
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    run(&shop, FIRST).exits(0);
    run(&shop, "2026-10-03T20:00:00Z").exits(0);
    double.stripe_always(Some(error(500, "api_error", "no")));
    // d3 opens at midnight, four hours after the last good reading.
    shop.buys("cs_2", "taro@example.com", "2026-10-04T02:30:00Z");
    let ran = run(&shop, "2026-10-04T03:00:00Z").exits(75).says("only d0 leaves");
    assert_eq!(ran.mails(), ["pp:cs_2:d0 sent"]);
    double.stripe_always(None);
    assert_eq!(run(&shop, "2026-10-04T04:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn a_convenience_store_buyer_waits_for_the_money_and_a_refund_stops_what_is_left() {
    for days in [3, 40] {
        let (double, shop) = shop();
        let mut unpaid = paid("cs_1", "hanako@example.com", PAID);
        unpaid["data"]["object"]["payment_status"] = "unpaid".into();
        double.happens(unpaid.clone());
        run(&shop, FIRST).exits(0);
        assert!(shop.outbox().is_empty(), "mailed before the money was there");
        let then = stepmail::domain::time::Timestamp::parse(PAID).unwrap()
            + stepmail::domain::time::Seconds::days(days);
        let mut succeeded = unpaid;
        succeeded["id"] = "evt_2".into();
        succeeded["type"] = "checkout.session.async_payment_succeeded".into();
        succeeded["created"] = then.unix().into();
        succeeded["data"]["object"]["payment_status"] = "paid".into();
        double.happens(succeeded);
        for day in (2..days).step_by(7) {
            let on_the_way = stepmail::domain::time::Timestamp::parse(PAID).unwrap()
                + stepmail::domain::time::Seconds::days(day);
            assert!(run(&shop, &on_the_way.to_string()).exits(0).mails().is_empty());
        }
        let hour = stepmail::domain::time::Seconds::hours(1);
        assert_eq!(run(&shop, &(then + hour).to_string()).exits(0).mails(), ["pp:cs_1:d0 sent"], "{days}");
        let charge = json!({ "id": "ch_1", "object": "charge", "amount": 100, "amount_refunded": 100, "refunded": true, "payment_intent": "pi_cs_1" });
        double.happens(event("evt_3", "charge.refunded", &(then + hour).to_string(), &charge));
        run(&shop, &(then + hour + hour).to_string()).exits(0);
        assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"]);
    }
}

#[test]
fn a_refund_that_is_told_before_its_purchase_stops_it_when_it_comes() {
    let (double, shop) = shop();
    let charge = json!({ "id": "ch_1", "object": "charge", "amount": 100, "amount_refunded": 100, "refunded": true, "payment_intent": "pi_cs_1" });
    double.happens(event("evt_r", "charge.refunded", PAID, &charge));
    run(&shop, FIRST);
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    run(&shop, SECOND);
    assert!(shop.outbox().is_empty(), "mailed somebody whose money went back");
    assert_eq!(shop.steps("cs_1"), ["stopped"; 4]);
}

/// The bodies of `tests/data/stripe-events`, each event by itself.
fn bodies() -> Vec<Value> {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/stripe-events")).unwrap();
    let mut bodies: Vec<Value> = Vec::new();
    for path in files.map(|entry| entry.unwrap().path()) {
        let Ok(body) = serde_json::from_str::<Value>(&std::fs::read_to_string(path).unwrap()) else {
            continue;
        };
        match body["data"].as_array() {
            Some(page) => bodies.extend(page.clone()),
            None => bodies.push(body),
        }
    }
    assert!(bodies.len() > 11);
    bodies
}

/// Hands the same events in by both doors. Says what the ledger came to, and what was told.
fn by_both_doors(bodies: Vec<Value>) -> (Value, Vec<String>) {
    let double = Double::new();
    let (by_api, by_file) = (Shop::polling(&double), Shop::new());
    for shop in [&by_api, &by_file] {
        shop.edit(|ledger| ledger["go_live"] = "2001-01-01T00:00:00Z".into());
        shop.edit(|ledger| ledger["ledger_id"] = "one".into());
    }
    for body in bodies {
        by_file.event(&body.to_string());
        double.happens(body);
    }
    let now = "2027-01-01T00:00:00Z";
    let (api, file) = (by_api.run(now), by_file.run(now));
    // Only a service that is asked can be silent.
    let told = |ran: &Ran| ran.notices().into_iter().filter(|kind| kind != "silence").collect::<Vec<_>>();
    assert_eq!(told(&api), told(&file));
    let what = |shop: &Shop| {
        let mut ledger = shop.ledger();
        for key in ["last_run", "lock_token", "generation"] {
            ledger[key] = Value::Null;
        }
        // The place of an event that cannot be read is named, and is another for each door.
        for stop in ledger["loose_stops"].as_array_mut().unwrap() {
            // Whose they are was asked by one door.
            stop.as_object_mut().unwrap().remove("asked");
        }
        ledger["matters"].as_array_mut().unwrap().retain(|matter| matter["kind"] != "silence");
        for matter in ledger["matters"].as_array_mut().unwrap() {
            let text = matter["text"].as_str().unwrap();
            let from = text.find(": `").unwrap_or(0);
            matter["text"] = text[from..].into();
            // One mail tells of all, of the silence too.
            (matter["notice"], matter["told_with"]) = (Value::Null, Value::Null);
        }
        assert!(ledger.to_string().contains("cs_test_"), "nothing was taken in");
        ledger
    };
    let (one, other) = (what(&by_api), what(&by_file));
    for (key, value) in one.as_object().unwrap() {
        assert!(*value == other[key], "{key}\n{value}\n{}", other[key]);
    }
    (one, told(&api))
}

#[test]
fn each_body_is_the_same_by_the_api_and_by_a_file() {
    by_both_doors(bodies());
}

/// A service leaves a field out, or gives nothing for it, from one version to the next.
#[test]
fn a_field_that_is_null_or_missing_loses_no_purchase_and_is_the_same_by_both_doors() {
    let mut variants = Vec::new();
    for body in bodies() {
        let object = body["data"]["object"].as_object().unwrap();
        let inner = |name: &str| {
            object[name].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        let mut fields: Vec<(String, Option<String>)> =
            object.keys().map(|name| (name.clone(), None)).collect();
        let of_objects =
            object.keys().flat_map(|name| inner(name).into_iter().map(|key| (name.clone(), Some(key))));
        fields.extend(of_objects);
        for (name, key) in fields {
            // Without these nothing can be told apart.
            if name == "id" || name == "object" && key.is_none() {
                continue;
            }
            for null in [true, false] {
                let mut variant = body.clone();
                let holder = match &key {
                    Some(_) => &mut variant["data"]["object"][&name],
                    None => &mut variant["data"]["object"],
                };
                let holder = holder.as_object_mut().unwrap();
                let field = key.as_ref().unwrap_or(&name);
                if null {
                    holder.insert(field.clone(), Value::Null);
                } else {
                    holder.remove(field);
                }
                // Each is a session, a payment and an event of its own.
                let n = variants.len();
                let mut text = variant.to_string();
                for id in [
                    body["id"].as_str(),
                    object["id"].as_str(),
                    object.get("payment_intent").and_then(Value::as_str),
                ] {
                    let id = id.unwrap_or("nothing");
                    text = text.replace(&format!("\"{id}\""), &format!("\"{id}_v{n}\""));
                }
                variants.push(serde_json::from_str(&text).unwrap());
            }
        }
    }
    let checkouts = variants.iter().filter(|v: &&Value| v["type"] == "checkout.session.completed").count();
    assert!(variants.len() > 800 && checkouts > 300, "{} {checkouts}", variants.len());
    let (ledger, notices) = by_both_doors(variants);
    assert!(!notices.iter().any(|kind| kind == "invalid_event"), "a missing field made an event unreadable");
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    let purchases: usize =
        ledger["buyers"].as_array().unwrap().iter().map(|buyer| count(&buyer["purchases"])).sum();
    // What does not say that it is paid, or where mails go, waits; nothing is lost.
    assert!(purchases > 500 && count(&ledger["waiting"]) > 7, "{purchases} {}", count(&ledger["waiting"]));
}

#[test]
fn a_key_of_the_other_mode_reads_the_other_modes_events_and_is_refused() {
    let (double, mut shop) = shop();
    for key in
        ["rk_live_Sentinel_1234567890", "sk_live_Sentinel_1234567890", "pk_test_Sentinel_1234567890", ""]
    {
        shop.variable("STRIPE_API_KEY", key);
        let ran = shop.run(FIRST).exits(78);
        assert!(!ran.stdout.contains("Sentinel") && !ran.stderr.contains("Sentinel"));
    }
    assert!(double.requests().is_empty());
    // Without a key anywhere nobody is asked, and event files go on.
    shop.without_variable("STRIPE_API_KEY");
    shop.buys("cs_1", "hanako@example.com", PAID);
    assert_eq!(shop.run(FIRST).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert!(double.requests().is_empty());
}

#[test]
fn r12_the_payment_services_clock_is_a_witness_and_without_one_nothing_is_taken_in_or_sent() {
    let (double, shop) = shop();
    let ago = |minutes| {
        (stepmail::clock::Clock::new(None).machine() - stepmail::domain::time::Seconds::minutes(minutes))
            .to_string()
    };
    double.happens(paid("cs_1", "hanako@example.com", &ago(5)));
    double.date_off_by(11 * 60);
    let ledger = shop.read("ledger.json");
    assert_eq!(shop.stepmail(&["run", "--json"]).exits(1).notices(), ["clock_behind"]);
    double.date_off_by(0);
    double.stripe_always(Some(Act::Drop));
    shop.buys("cs_2", "taro@example.com", &ago(5));
    shop.stepmail(&["run", "--json", "--events", "events.jsonl"]).exits(75).says("nothing confirms");
    assert_eq!(shop.read("ledger.json"), ledger);
    double.stripe_always(None);
    let ran = shop.stepmail(&["run", "--json", "--events", "events.jsonl"]).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent", "pp:cs_2:d0 sent"]);
}

#[test]
fn a_rehearsal_with_a_pretended_time_does_not_move_the_reading_of_a_real_service() {
    let (double, shop) = shop();
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    let settings = shop.read("stepmail.toml");
    shop.write("stepmail.toml", settings.replace(&double.url(), "https://pay.shop.example"));
    shop.run("2031-01-01T00:00:00Z").says("Stripe is not asked");
    assert!(double.requests().is_empty());
}

#[test]
fn a_dry_run_reads_the_events_and_writes_nothing() {
    let (double, shop) = shop();
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    let before = shop.everything();
    assert_eq!(shop.dry_run(FIRST).exits(0).mails(), ["pp:cs_1:d0 would_send"]);
    assert_eq!(shop.everything(), before);
}

#[test]
fn r1_a_checkout_that_was_never_paid_waits_for_65_days_and_no_longer() {
    let (double, shop) = shop();
    let mut unpaid = paid("cs_1", "hanako@example.com", PAID);
    unpaid["data"]["object"]["payment_status"] = "unpaid".into();
    shop.event(&unpaid.to_string());
    let waits = |shop: &Shop| shop.ledger()["waiting"].as_array().unwrap().len();
    run(&shop, FIRST).exits(0);
    for now in ["2026-10-20T00:00:00Z", "2026-11-15T00:00:00Z", "2026-12-05T00:00:00Z"] {
        run(&shop, now).exits(0);
    }
    assert_eq!(waits(&shop), 1, "64 days and it is forgotten");
    run(&shop, "2026-12-05T01:00:00Z");
    for now in ["2026-12-05T02:00:00Z", "2026-12-05T03:00:00Z"] {
        run(&shop, now);
        assert_eq!(waits(&shop), 0, "an events file that is handed in each hour began the wait anew");
    }
    // The money comes all the same, against all that the service says.
    let mut succeeded = unpaid;
    succeeded["id"] = "evt_2".into();
    succeeded["type"] = "checkout.session.async_payment_succeeded".into();
    let then = stepmail::domain::time::Timestamp::parse("2026-12-05T03:30:00Z").unwrap();
    succeeded["created"] = then.unix().into();
    succeeded["data"]["object"]["payment_status"] = "paid".into();
    double.happens(succeeded);
    assert_eq!(run(&shop, "2026-12-05T04:00:00Z").mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn a_subscription_that_is_to_end_stops_the_mails_unless_the_seller_says_otherwise() {
    for (setting, ended) in [("", "stopped"), ("on_cancel_scheduled = \"continue\"\n", "pending")] {
        for field in ["cancel_at_period_end", "cancel_at"] {
            let (double, shop) = shop();
            let settings = shop.read("stepmail.toml").replace("[stripe]\n", &format!("[stripe]\n{setting}"));
            shop.write("stepmail.toml", settings);
            let mut bought = paid("cs_1", "hanako@example.com", PAID);
            bought["data"]["object"]["mode"] = "subscription".into();
            bought["data"]["object"]["subscription"] = "sub_1".into();
            double.happens(bought);
            run(&shop, FIRST).exits(0);
            let mut changed = json!({ "id": "sub_1", "object": "subscription", "cancel_at_period_end": false, "cancel_at": null });
            double.happens(event("evt_2", "customer.subscription.updated", FIRST, &changed));
            run(&shop, SECOND).exits(0);
            assert_eq!(shop.step("cs_1", "d3"), "pending", "a change of another kind stopped the mails");
            changed[field] = if field == "cancel_at" { 1_800_000_000.into() } else { true.into() };
            double.happens(event("evt_3", "customer.subscription.updated", SECOND, &changed));
            run(&shop, "2026-10-01T03:00:00Z").exits(0);
            assert_eq!(shop.step("cs_1", "d3"), ended, "{field}, {setting}");
        }
    }
}

#[test]
fn part_of_the_money_back_stops_the_mails_where_the_seller_says_so() {
    let (double, shop) = shop();
    let settings =
        shop.read("stepmail.toml").replace("[stripe]\n", "[stripe]\non_partial_refund = \"stop\"\n");
    shop.write("stepmail.toml", settings);
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    run(&shop, FIRST).exits(0);
    let charge = json!({ "id": "ch_1", "object": "charge", "amount": 100, "amount_refunded": 40, "refunded": false, "payment_intent": "pi_cs_1" });
    double.happens(event("evt_2", "charge.refunded", FIRST, &charge));
    assert!(run(&shop, SECOND).exits(0).notices().is_empty());
    assert_eq!(shop.step("cs_1", "d3"), "stopped");
    let wrong = shop.read("stepmail.toml").replace("\"stop\"", "\"perhaps\"");
    shop.write("stepmail.toml", wrong);
    shop.run(SECOND).exits(78).says("on_partial_refund");
}

#[test]
fn a_long_silence_is_said_once_and_holds_nothing() {
    let (double, shop) = shop();
    for day in 1..8 {
        double.happens(paid(
            &format!("cs_{day}"),
            &format!("b{day}@example.com"),
            &format!("2026-10-0{day}T00:00:00Z"),
        ));
    }
    shop.run_with("2026-10-07T01:00:00Z", &["--allow", "100"]);
    let at = |day: u8| format!("2026-10-{day}T00:00:00Z");
    assert!(run(&shop, &at(20)).notices().is_empty());
    let ran = run(&shop, &at(21)).exits(1);
    assert_eq!(ran.notices(), ["silence"]);
    let next = run(&shop, &at(22));
    assert!(next.notices().is_empty() && !next.mails().is_empty(), "told again, or mails were held");
    double.happens(paid("cs_9", "b9@example.com", "2026-10-22T12:00:00Z"));
    run(&shop, &at(23));
    assert!(!shop.ledger()["matters"].to_string().contains("silence"), "it is over and still a matter");
}

#[test]
fn thirty_five_days_off_are_said_once_since_the_service_forgets() {
    let (double, shop) = shop();
    double.happens(paid("cs_1", "hanako@example.com", PAID));
    run(&shop, FIRST).exits(0);
    let ran = run(&shop, "2026-11-05T00:00:00Z").exits(1).says("tell of the last 30 days only");
    assert_eq!(ran.notices(), ["missed"]);
    assert!(run(&shop, "2026-11-05T01:00:00Z").notices().is_empty());
}

#[test]
fn check_says_whether_the_key_may_read_all_that_stops_a_mail() {
    let (double, mut shop) = shop();
    let check = |shop: &Shop| shop.stepmail(&["check"]).hides_addresses();
    let before = shop.everything();
    check(&shop).exits(0).says("may read what tells of purchases and stops");
    double.forbid("/v1/charges");
    check(&shop).exits(1).says("may not read charges and refunds").says("rak_charge_read");
    double.stripe_always(Some(error(401, "api_key_invalid", "no")));
    check(&shop).exits(1).says("refuses the key");
    double.stripe_always(Some(error(500, "api_error", "no")));
    check(&shop).exits(75).says("cannot be read");
    shop.variable("STRIPE_API_KEY", "");
    check(&shop).exits(78).says("STRIPE_API_KEY");
    assert_eq!(shop.everything(), before);
}

/// Since 2025 neither the session of a subscription names its payment, nor the charge its invoice.
#[test]
fn a_refund_of_a_subscriptions_first_payment_stops_the_mails_and_one_of_a_renewal_does_not() {
    let bought = || {
        let mut bought = paid("cs_1", "hanako@example.com", PAID);
        let session = &mut bought["data"]["object"];
        (session["mode"], session["payment_intent"]) = ("subscription".into(), Value::Null);
        (session["subscription"], session["invoice"]) = ("sub_1".into(), "in_1".into());
        bought
    };
    let charge = json!({ "id": "ch_1", "object": "charge", "amount": 100, "amount_refunded": 100, "refunded": true, "payment_intent": "pi_sub" });
    let first = json!({ "id": "in_1", "object": "invoice", "billing_reason": "subscription_create", "parent": { "subscription_details": { "subscription": "sub_1" } } });
    let old = json!({ "id": "in_9", "object": "invoice", "billing_reason": "subscription_create", "subscription": "sub_1" });
    let renewal = json!({ "id": "in_2", "object": "invoice", "billing_reason": "subscription_cycle", "parent": { "subscription_details": { "subscription": "sub_1" } } });
    for (invoice, d3) in [(first, "stopped"), (old, "stopped"), (renewal, "pending")] {
        let (double, shop) = shop();
        let what = invoice["id"].clone();
        double.happens(bought());
        double.invoice(invoice, "pi_sub");
        run(&shop, FIRST).exits(0);
        double.happens(event("evt_2", "charge.refunded", FIRST, &charge));
        let ran = run(&shop, SECOND);
        assert_eq!(shop.step("cs_1", "d3"), d3, "{what}: {}", ran.stdout);
        // What is known is not asked for again, though each poll goes back six hours.
        let asked = double.polls().len();
        run(&shop, "2026-10-01T03:00:00Z");
        assert_eq!(double.polls().len(), asked + 1, "{what}");
    }
    // The service stumbles over that question: the refund is not lost, and not told as one of nobody.
    let (double, shop) = shop();
    double.happens(bought());
    run(&shop, FIRST).exits(0);
    double.happens(event("evt_2", "charge.refunded", FIRST, &charge));
    double.invoice(
        json!({ "id": "in_1", "object": "invoice", "billing_reason": "subscription_create" }),
        "pi_sub",
    );
    let no = || error(500, "api_error", "no");
    double.stripe_next(Act::Accept).stripe_next(no()).stripe_next(no()).stripe_next(no());
    run(&shop, SECOND).exits(75);
    run(&shop, "2026-10-01T03:00:00Z").exits(0);
    assert_eq!(shop.step("cs_1", "d3"), "stopped");
}

#[test]
fn both_events_of_one_payment_in_one_batch_are_one_purchase_in_either_order() {
    for turned in [false, true] {
        let (double, shop) = shop();
        let mut unpaid = paid("cs_1", "hanako@example.com", PAID);
        unpaid["data"]["object"]["payment_status"] = "unpaid".into();
        let mut succeeded = paid("cs_1", "hanako@example.com", "2026-10-01T00:30:00Z");
        succeeded["id"] = "evt_2".into();
        succeeded["type"] = "checkout.session.async_payment_succeeded".into();
        let mut both = vec![unpaid, succeeded];
        if turned {
            both.reverse();
        }
        for event in both {
            double.happens(event);
        }
        let ran = run(&shop, FIRST).exits(0);
        assert_eq!((ran.mails(), ran.notices()), (vec!["pp:cs_1:d0 sent".to_owned()], vec![]), "{turned}");
        let ledger = shop.ledger();
        assert_eq!(ledger["buyers"][0]["purchases"].as_array().unwrap().len(), 1);
        assert_eq!(ledger["buyers"][0]["purchases"][0]["paid_at"], "2026-10-01T00:30:00Z");
        assert!(ledger["waiting"].as_array().unwrap().is_empty());
    }
}

/// An invoice is paid at every renewal, and at the first payment often before the checkout is complete.
#[test]
fn an_invoice_that_is_told_before_its_checkout_starts_nothing_and_hides_nothing() {
    let (double, shop) = shop();
    let invoice = json!({ "id": "in_1", "object": "invoice", "customer_email": "hanako@example.com", "status": "paid" });
    for (id, kind) in
        [("evt_a", "invoice.paid"), ("evt_b", "invoice.payment_succeeded"), ("evt_c", "invoice_payment.paid")]
    {
        let told = event(id, kind, PAID, &invoice);
        double.happens(told.clone());
        shop.event(&told.to_string());
    }
    assert!(run(&shop, FIRST).exits(0).mails().is_empty());
    let mut bought = paid("cs_1", "hanako@example.com", FIRST);
    bought["data"]["object"]["invoice"] = "in_1".into();
    double.happens(bought);
    let ran = run(&shop, SECOND).exits(0);
    assert_eq!((ran.mails(), ran.notices()), (vec!["pp:cs_1:d0 sent".to_owned()], vec![]));
}

#[test]
fn a_dispute_and_the_end_of_a_subscription_or_of_a_customer_stop_the_mails_for_good() {
    let dispute = json!({ "id": "dp_1", "object": "dispute", "charge": "ch_1", "payment_intent": "pi_cs_1" });
    let ended = json!({ "id": "sub_1", "object": "subscription", "status": "canceled" });
    let gone = json!({ "id": "cus_1", "object": "customer", "deleted": true });
    for (kind, object) in [
        ("charge.dispute.created", dispute),
        ("customer.subscription.deleted", ended),
        ("customer.deleted", gone),
    ] {
        let (double, shop) = shop();
        let mut bought = paid("cs_1", "hanako@example.com", PAID);
        let of = &mut bought["data"]["object"];
        (of["subscription"], of["customer"]) = ("sub_1".into(), "cus_1".into());
        double.happens(bought);
        run(&shop, FIRST).exits(0);
        double.happens(event("evt_2", kind, FIRST, &object));
        assert!(run(&shop, SECOND).exits(0).notices().is_empty(), "{kind}");
        assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"], "{kind}");
    }
}

#[test]
fn a_test_modes_purchase_gets_no_mail_from_a_live_shop_and_the_other_way_round() {
    for livemode in [true, false] {
        let (double, mut shop) = shop();
        if livemode {
            let settings = shop.read("stepmail.toml").replace("livemode = false", "livemode = true");
            shop.write("stepmail.toml", settings);
            shop.variable("STRIPE_API_KEY", &STRIPE_KEY.replace("_test_", "_live_"));
            double.takes_the_live_key();
        }
        let mut other = paid("cs_1", "hanako@example.com", PAID);
        other["livemode"] = (!livemode).into();
        double.happens(other);
        let ran = run(&shop, FIRST).exits(0).says(if livemode {
            "test mode were dropped"
        } else {
            "live mode were dropped"
        });
        assert!(ran.mails().is_empty() && shop.ledger()["buyers"].as_array().unwrap().is_empty());
    }
}

/// Before 2025 a charge names its invoice, and the invoice its subscription.
#[test]
fn a_refund_in_the_shape_of_before_2025_stops_the_mails_too() {
    let (double, shop) = shop();
    let mut bought = paid("cs_1", "hanako@example.com", PAID);
    let session = &mut bought["data"]["object"];
    (session["mode"], session["payment_intent"], session["subscription"]) =
        ("subscription".into(), Value::Null, "sub_1".into());
    double.happens(bought);
    run(&shop, FIRST).exits(0);
    // The session of 2020 named no invoice, so that only the invoice tells whose it is.
    double.invoice(json!({ "id": "in_1", "object": "invoice", "billing_reason": "subscription_create", "subscription": "sub_1" }), "pi_sub");
    let charge = json!({ "id": "ch_1", "object": "charge", "amount": 100, "amount_refunded": 100, "refunded": true, "payment_intent": "pi_sub", "invoice": "in_1" });
    double.happens(event("evt_2", "charge.refunded", FIRST, &charge));
    assert!(run(&shop, SECOND).exits(0).notices().is_empty());
    assert_eq!(shop.step("cs_1", "d3"), "stopped");
}

/// Nobody has ever read what went back, so that nobody knows whom not to write to.
#[test]
fn a_payment_service_that_was_never_read_lets_only_d0_leave() {
    let (double, shop) = shop();
    double.stripe_always(Some(error(403, "more_permissions_required", "no")));
    shop.buys("cs_1", "hanako@example.com", PAID);
    assert_eq!(run(&shop, FIRST).exits(1).mails(), ["pp:cs_1:d0 sent"]);
    assert!(run(&shop, "2026-10-04T01:00:00Z").exits(75).says("was never read").mails().is_empty());
    double.stripe_always(None);
    assert_eq!(run(&shop, "2026-10-04T02:00:00Z").mails(), ["pp:cs_1:d3 sent"]);
}
