//! What the service tells afterwards: which mails it has, and what became of them (R10, R13).

use std::time::Duration;

use serde_json::json;

use crate::double::{Act, Double, refuse};
use crate::shop::{Ran, Shop};

const PAID: &str = "2026-10-01T00:00:00Z";
const FIRST: &str = "2026-10-01T01:00:00Z";
/// When the service may have forgotten a key of [`FIRST`].
const A_DAY_LATER: &str = "2026-10-02T01:00:00Z";

fn shop() -> (Double, Shop) {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    shop.buys("cs_1", "hanako@example.com", PAID);
    (double, shop)
}

fn run(double: &Double, shop: &Shop, now: &str) -> Ran {
    double.set_now(now);
    shop.run(now).hides_addresses()
}

fn lost() -> Act {
    Act::AcceptThen(Box::new(Act::Drop))
}

/// A shop whose buyer's d0 got no answer: it arrived, or it did not.
fn answer_lost(arrived: bool) -> (Double, Shop) {
    let (double, shop) = shop();
    double.somebody_sends("other@example.com", "Hello", "2026-09-30T00:00:00Z");
    double.next(if arrived { lost() } else { Act::Drop });
    run(&double, &shop, FIRST).exits(75);
    (double, shop)
}

#[test]
fn r10_a_lost_answer_that_no_retry_cleared_up_is_found_in_the_list_and_nobody_has_to_settle_it() {
    let (double, shop) = answer_lost(true);
    for page in [100, 1] {
        double.page_of(page);
        let ran = shop.dry_run(A_DAY_LATER).exits(0);
        assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"], "with {page} on a page");
    }
    let ran = run(&double, &shop, A_DAY_LATER).exits(0).says("it is in the mail service's list");
    assert_eq!(ran.json()["mails"][0]["message_id"], json!(double.deliveries()[0].id));
    assert_eq!((shop.step("cs_1", "d0").as_str(), double.posts()), ("sent", 1));
    // The spacing counts from the try that arrived.
    assert_eq!(run(&double, &shop, "2026-10-04T00:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn r10_a_mail_that_the_service_never_took_goes_out_after_all() {
    let (double, shop) = answer_lost(false);
    let ran = run(&double, &shop, A_DAY_LATER).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    let asked = double.asked("pp:cs_1:d0");
    assert_eq!((asked.len(), double.delivered("pp:cs_1:d0")), (2, 1));
    assert_eq!(asked[0], asked[1], "other bytes");
}

#[test]
fn r10_a_d3_that_never_left_is_not_sent_after_its_window() {
    let (double, shop) = shop();
    run(&double, &shop, FIRST).exits(0);
    double.next(Act::Drop);
    run(&double, &shop, "2026-10-07T23:00:00Z").exits(75);
    let ran = run(&double, &shop, "2026-10-08T00:30:00Z").exits(0);
    assert_eq!(ran.closed(), ["cs_1 d3 stale"], "{}", ran.stdout);
    assert_eq!(ran.mails(), ["pp:cs_1:d7 sent"], "what never left keeps nothing away");
    assert_eq!(double.delivered("pp:cs_1:d3"), 0);
}

type MakeUnsure = fn(&Double);

#[test]
fn r10_a_try_of_a_few_minutes_ago_is_asked_for_again_before_anything_is_said_of_it() {
    for arrived in [true, false] {
        let (double, shop) = shop();
        run(&double, &shop, FIRST).exits(0);
        double.next(Act::Drop);
        run(&double, &shop, "2026-10-07T23:58:00Z").exits(75);
        let ran = run(&double, &shop, "2026-10-08T00:02:00Z").exits(0);
        assert_eq!((ran.closed().len(), shop.step("cs_1", "d3").as_str()), (0, "planned"));
        if arrived {
            // The request was on its way all the time.
            let (key, body) = ("pp:cs_1:d3", double.asked("pp:cs_1:d3")[0].clone());
            double.takes(key, &body);
        }
        run(&double, &shop, "2026-10-08T01:00:00Z").exits(0);
        assert_eq!(shop.step("cs_1", "d3"), if arrived { "sent" } else { "stale" });
        assert_eq!(double.twice(), [""; 0]);
    }
}

#[test]
fn r10_a_list_that_proves_nothing_leaves_it_to_a_person() {
    let made_unsure: [(&str, MakeUnsure); 5] = [
        ("it keeps mails for a day only", |double| double.list_keeps(24)),
        ("it cannot be read", |double| double.for_reads(refuse(500, "application_error", "no"))),
        ("the key may not read", |double| double.may_only_send(true)),
        ("its pages repeat", Double::repeats_its_first_page),
        ("it is no list", |double| {
            double.for_reads(Act::Raw(200, "application/json", b"{\"data\":{}}".into()));
        }),
    ];
    for (what, make_unsure) in made_unsure {
        let (double, shop) = answer_lost(false);
        double.page_of(if what == "its pages repeat" { 1 } else { 100 });
        double.somebody_sends("other@example.com", "Hello", "2026-10-01T12:00:00Z");
        make_unsure(&double);
        let ran = run(&double, &shop, A_DAY_LATER).exits(1);
        assert_eq!(ran.closed(), ["cs_1 d0 unknown_result"], "{what}");
        assert_eq!((ran.notices(), double.posts()), (vec!["unknown_result".to_owned()], 1), "{what}");
        assert_eq!(double.notices().len(), 1, "{what}");
    }
}

#[test]
fn r10_the_list_of_another_account_is_not_believed() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    shop.buys("cs_1", "hanako@example.com", PAID).buys("cs_2", "taro@example.com", "2026-10-01T00:10:00Z");
    double.somebody_sends("other@example.com", "Hello", "2026-09-30T00:00:00Z");
    double.for_recipient("hanako@example.com", lost());
    run(&double, &shop, FIRST).exits(75);
    assert_eq!(double.deliveries().len(), 2);
    // The key in the settings is now one of another team, which has sent mails of its own.
    let other = Double::new();
    other.somebody_sends("other@example.com", "Hello", "2026-09-30T00:00:00Z");
    shop.write("stepmail.toml", shop.read("stepmail.toml").replace(&double.url(), &other.url()));
    let ran = run(&other, &shop, A_DAY_LATER).exits(1);
    assert_eq!(ran.closed(), ["cs_1 d0 unknown_result"]);
    assert!(other.deliveries().is_empty(), "the buyer got a second mail, through another account");
}

#[test]
fn r9_a_conflict_is_looked_up_before_it_becomes_a_persons_work() {
    for arrived in [true, false] {
        let (double, shop) = shop();
        if arrived {
            double.next(lost());
            run(&double, &shop, FIRST).exits(75);
            // The plan is lost with a ledger that is put back by hand; its mail has left.
            shop.edit(|ledger| {
                ledger["buyers"][0]["purchases"][0]["steps"]["d0"] = json!({ "state": "pending" });
            });
            shop.buys("cs_1", "hanako@example.com", PAID);
            shop.set("[vars]\nproduct = \"Another\"");
        } else {
            double.next(refuse(409, "invalid_idempotent_request", "other content"));
        }
        run(&double, &shop, "2026-10-01T02:00:00Z").exits(i32::from(!arrived));
        assert_eq!(shop.step("cs_1", "d0"), if arrived { "sent" } else { "unknown_result" });
        assert_eq!(double.twice(), [""; 0]);
    }
}

#[test]
fn reconcile_settles_what_a_run_had_to_leave_to_a_person() {
    for arrived in [true, false] {
        let (double, shop) = answer_lost(arrived);
        double.for_reads(refuse(503, "application_error", "no"));
        run(&double, &shop, A_DAY_LATER).exits(1);
        assert_eq!(shop.step("cs_1", "d0"), "unknown_result");
        let now = "2026-10-02T03:00:00Z";
        double.set_now(now);
        shop.stepmail(&["reconcile", "--now", now]).exits(1).says("cannot tell").hides_addresses();
        double.is_well();
        let before = shop.kept();
        let dry = shop.stepmail(&["reconcile", "--dry-run", "--now", now]).exits(0);
        assert_eq!(shop.kept(), before);
        let told = shop.stepmail(&["reconcile", "pp:cs_1:d0", "--now", now]).exits(0);
        assert!(dry.stdout.contains(told.stdout.lines().next().unwrap()), "{}\n{}", dry.stdout, told.stdout);
        if arrived {
            told.says("d0 of cs_1 is sent, as of 2026-10-01T01:00:00Z, through resend");
        } else {
            told.says("d0 of cs_1 never left and is open again");
        }
        shop.stepmail(&["reconcile", "--now", now]).exits(0).says("no mail is closed with an unknown result");
        run(&double, &shop, "2026-10-02T04:00:00Z").exits(0);
        assert_eq!((double.delivered("pp:cs_1:d0"), shop.step("cs_1", "d0").as_str()), (1, "sent"));
        assert!(shop.ledger()["matters"].as_array().unwrap().is_empty(), "a matter that is settled stays");
    }
}

#[test]
fn reconcile_says_what_it_cannot_ask() {
    Shop::new().stepmail(&["reconcile"]).exits(1).says("the outbox has no list");
    let (double, shop) = answer_lost(true);
    double.may_only_send(true);
    run(&double, &shop, A_DAY_LATER).exits(1);
    shop.stepmail(&["reconcile", "--now", A_DAY_LATER]).exits(1).says("may send and not read");
    shop.stepmail(&["reconcile", "pp:cs_1:d3", "--now", A_DAY_LATER]).exits(0).says("left as it is");
    drop(double);
    let ran = shop.stepmail(&["reconcile", "--json", "--now", A_DAY_LATER]).exits(1).says("no connection");
    assert_eq!(ran.json()["schema"], "stepmail-hand/1");
}

#[test]
fn r12_a_backup_that_is_adopted_asks_the_service_what_left_meanwhile() {
    let (double, shop) = shop();
    double.somebody_sends("other@example.com", "Hello", "2026-09-30T00:00:00Z");
    run(&double, &shop, FIRST).exits(0);
    let backup = shop.read("ledger.json");
    run(&double, &shop, "2026-10-04T00:30:00Z").exits(0);
    assert_eq!(double.delivered("pp:cs_1:d3"), 1);
    shop.write("ledger.json", backup);
    run(&double, &shop, "2026-10-05T00:00:00Z").exits(1);
    shop.stepmail(&["adopt", "--now", "2026-10-05T00:00:00Z"])
        .exits(0)
        .says("d3 of cs_1 is sent")
        .says("resend");
    assert_eq!(shop.steps("cs_1"), ["sent", "sent", "pending", "pending"]);
    run(&double, &shop, "2026-10-05T01:00:00Z").exits(0);
    assert_eq!(double.twice(), [""; 0]);
}

#[test]
fn r13_a_bounce_stops_the_buyer_and_the_owner_is_told_once() {
    let (double, shop) = shop();
    run(&double, &shop, FIRST).exits(0);
    double.set_fate("pp:cs_1:d0", "bounced");
    let ran = run(&double, &shop, "2026-10-01T02:00:00Z").exits(1);
    assert_eq!(ran.notices(), ["bounced"]);
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"]);
    assert_eq!(shop.ledger()["buyers"][0]["stopped"]["reason"], "bounced");
    shop.stepmail(&["show", "cs_1", "--now", "2026-10-01T03:00:00Z"])
        .exits(0)
        .says("bounced: the buyer's mail server");
    run(&double, &shop, "2026-10-01T03:00:00Z").exits(0);
    assert_eq!(double.notices().len(), 1);
    // The address works after all: the bounce that is known does not stop the buyer a second time.
    shop.stepmail(&["resume", "hanako@example.com", "--now", "2026-10-01T04:00:00Z"]).exits(0);
    run(&double, &shop, "2026-10-01T05:00:00Z").exits(0);
    assert_eq!(run(&double, &shop, "2026-10-04T00:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn r13_a_complaint_after_the_delivery_stops_the_buyer_days_later() {
    let (double, shop) = shop();
    run(&double, &shop, FIRST).exits(0);
    double.set_fate("pp:cs_1:d0", "delivered");
    run(&double, &shop, "2026-10-01T02:00:00Z").exits(0);
    assert_eq!(shop.purchase("cs_1")["steps"]["d0"]["fate"]["what"], "delivered");
    double.set_fate("pp:cs_1:d0", "complained");
    let ran = run(&double, &shop, "2026-10-04T00:00:00Z").exits(1);
    assert_eq!(
        (ran.notices(), ran.mails().len()),
        (vec!["complained".to_owned()], 0),
        "d3 left after a complaint"
    );
}

#[test]
fn r13_a_way_in_that_was_never_delivered_is_told() {
    for fate in ["suppressed", "failed"] {
        let (double, shop) = shop();
        run(&double, &shop, FIRST).exits(0);
        double.set_fate("pp:cs_1:d0", fate);
        run(&double, &shop, "2026-10-01T02:00:00Z").exits(1).says("has not been told the way in");
        assert_eq!(double.notices().len(), 1);
        assert!(shop.ledger()["buyers"][0]["stopped"].is_null());
    }
}

#[test]
fn r13_a_hundred_mails_are_looked_up_by_one_request() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    for n in 0..100 {
        shop.buys(&format!("cs_{n}"), &format!("b{n}@example.com"), PAID);
    }
    run(&double, &shop, FIRST).exits(0);
    let reads = double.reads();
    run(&double, &shop, "2026-10-01T02:00:00Z").exits(0);
    assert_eq!(double.reads() - reads, 1);
    let reads = double.reads();
    double.may_only_send(true);
    run(&double, &shop, "2026-10-01T03:00:00Z").exits(0);
    assert_eq!(double.reads() - reads, 1, "a key that may not read is no trouble");
}

#[test]
fn a_service_whose_bounces_were_not_read_for_six_hours_lets_only_d0_leave() {
    let (double, shop) = shop();
    run(&double, &shop, FIRST).exits(0);
    run(&double, &shop, "2026-10-03T18:00:00Z").exits(0);
    double.for_reads(refuse(500, "application_error", "no"));
    shop.buys("cs_2", "taro@example.com", "2026-10-04T00:10:00Z");
    let ran = run(&double, &shop, "2026-10-04T00:30:00Z").exits(75);
    assert_eq!(ran.mails(), ["pp:cs_2:d0 sent"]);
    double.is_well();
    assert_eq!(run(&double, &shop, "2026-10-04T01:30:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn r15_new_matters_go_in_one_mail_and_a_notice_that_fails_is_repeated_alone() {
    let (double, shop) = shop();
    for n in 0..3 {
        shop.event(&format!(
            r#"{{"id":"e{n}","type":"checkout.completed","session":"cs_x{n}","email":null,"paid_at":"{PAID}"}}"#
        ));
    }
    double.for_notices(lost());
    let ran = run(&double, &shop, FIRST).exits(1);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    let told = ran.notices().len();
    assert!(told >= 3, "{:?}", ran.notices());
    double.is_well();
    run(&double, &shop, "2026-10-01T02:00:00Z").exits(0);
    for hour in 3..8 {
        run(&double, &shop, &format!("2026-10-01T{hour:02}:00:00Z")).exits(0);
    }
    let [notice] = &double.notices()[..] else { panic!("{:?}", double.notices()) };
    assert!(notice.subject.contains(&format!("{told} things")) && notice.to == "owner@example.com");
    assert_eq!(double.asked(&notice.key).len(), 2, "one try that got lost, one that did not");
    assert_eq!(double.posts(), 1, "a buyer's mail was repeated with a notice");
}

#[test]
fn r15_a_run_that_a_guard_holds_tells_its_owner_once_though_the_first_try_gets_lost() {
    let (double, shop) = shop();
    run(&double, &shop, FIRST).exits(0);
    double.for_notices(lost());
    let ledger = shop.read("ledger.json");
    run(&double, &shop, "2026-09-20T00:00:00Z").exits(1);
    double.is_well();
    for hour in 1..4 {
        run(&double, &shop, &format!("2026-09-20T{hour:02}:00:00Z")).exits(1);
    }
    assert_eq!((double.notices().len(), double.posts()), (1, 1));
    assert_eq!(shop.read("ledger.json"), ledger);
}

#[test]
fn r15_a_held_run_that_is_killed_while_it_tells_its_owner_tells_it_once() {
    let (double, shop) = shop();
    run(&double, &shop, FIRST).exits(0);
    double.for_notices(Act::Slow(Duration::from_secs(2)));
    let mut child = shop.spawn(&["run", "--now", "2026-09-20T00:00:00Z"]);
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while double.notices().is_empty() {
        assert!(std::time::Instant::now() < until, "the owner was never told");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    double.is_well();
    std::thread::sleep(Duration::from_secs(2));
    for hour in 1..3 {
        run(&double, &shop, &format!("2026-09-20T{hour:02}:00:00Z")).exits(1);
    }
    assert_eq!(double.notices().len(), 1, "the owner was told twice");
}

#[test]
fn a_trial_that_becomes_real_sends_nothing_until_a_person_says_what_the_trial_counts_for() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    let real = shop.read("stepmail.toml");
    shop.write("stepmail.toml", real.replace("transport = \"resend\"", "transport = \"outbox\""));
    shop.buys("cs_1", "hanako@example.com", PAID);
    shop.run(FIRST).exits(0);
    shop.write("stepmail.toml", real);
    run(&double, &shop, "2026-10-01T02:00:00Z").exits(1).says("adopt --outbox");
    assert_eq!(double.posts(), 0);
    shop.stepmail(&["adopt", "--outbox", "reopen", "--now", "2026-10-01T02:30:00Z"]).exits(0);
    assert_eq!(run(&double, &shop, "2026-10-01T03:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(double.delivered("pp:cs_1:d0"), 1);
}

#[test]
fn a_list_that_answers_slowly_costs_minutes_at_most_and_no_mail() {
    let (double, shop) = shop();
    run(&double, &shop, FIRST).exits(0);
    double.for_reads(Act::Slow(Duration::from_millis(500)));
    shop.buys("cs_2", "taro@example.com", "2026-10-01T01:30:00Z");
    assert_eq!(run(&double, &shop, "2026-10-01T02:00:00Z").exits(0).mails(), ["pp:cs_2:d0 sent"]);
}
