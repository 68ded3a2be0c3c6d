//! R1 to R8 and the stop rules, from a purchase to the last mail.

use serde_json::json;

use crate::shop::Shop;

#[test]
fn a_buyer_gets_four_mails_on_their_days_and_no_more() {
    let shop = Shop::new();
    shop.buys("cs_1", "Hanako@example.com", "2026-10-01T10:00:00Z");
    assert_eq!(shop.run("2026-10-01T10:30:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert!(shop.run("2026-10-04T09:59:59Z").exits(0).mails().is_empty(), "d3 before three days");
    assert_eq!(shop.run("2026-10-04T10:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    assert!(shop.run("2026-10-08T09:59:59Z").exits(0).mails().is_empty(), "d7 before seven days");
    assert_eq!(shop.run("2026-10-08T10:00:00Z").exits(0).mails(), ["pp:cs_1:d7 sent"]);
    assert_eq!(shop.run("2026-10-15T10:00:00Z").exits(0).mails(), ["pp:cs_1:d14 sent"]);
    assert!(shop.run("2026-10-29T10:00:00Z").exits(0).mails().is_empty());
    assert_eq!(shop.outbox(), ["pp:cs_1:d0", "pp:cs_1:d14", "pp:cs_1:d3", "pp:cs_1:d7"]);
    assert!(shop.mail("cs_1", "d0").contains("To: Hanako@example.com"), "{}", shop.mail("cs_1", "d0"));
}

#[test]
fn c008_r5_a_mail_that_is_late_is_never_sent() {
    let a = Shop::new();
    a.buys("cs_a", "a@example.com", "2026-10-01T00:00:00Z");
    a.run("2026-10-01T01:00:00Z").exits(0);
    assert_eq!(a.run("2026-10-07T23:00:00Z").exits(0).mails(), ["pp:cs_a:d3 sent"]);
    assert!(a.run("2026-10-08T01:00:00Z").exits(0).mails().is_empty(), "d7 within two days of d3");
    assert!(a.run("2026-10-09T22:59:59Z").exits(0).mails().is_empty(), "d7 within two days of d3");
    assert_eq!(a.run("2026-10-09T23:00:00Z").exits(0).mails(), ["pp:cs_a:d7 sent"]);

    let b = Shop::new();
    b.buys("cs_b", "b@example.com", "2026-10-01T00:00:00Z");
    b.run("2026-10-01T01:00:00Z").exits(0);
    let late = b.run("2026-10-08T01:00:00Z").exits(0);
    assert_eq!(late.closed(), ["cs_b d3 stale"]);
    assert_eq!(late.mails(), ["pp:cs_b:d7 sent"]);
    assert_eq!(b.run("2026-11-10T00:00:00Z").exits(0).closed(), ["cs_b d14 stale"]);
}

#[test]
fn r5_a_d0_has_no_window() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    let late = shop.run("2026-11-05T00:00:00Z").exits(0);
    assert_eq!(late.mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(late.closed(), ["cs_1 d3 stale", "cs_1 d7 stale", "cs_1 d14 stale"]);
}

#[test]
fn c025_ten_days_of_pause_come_to_one_mail_and_not_a_burst() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T00:10:00Z").exits(0);
    for minute in 0..12 {
        shop.run(&format!("2026-10-11T00:{minute:02}:00Z")).exits(0);
    }
    assert_eq!(shop.outbox(), ["pp:cs_1:d0", "pp:cs_1:d7"]);
}

#[test]
fn c030_c031_a_buyer_who_comes_back_gets_the_way_in_and_nothing_else() {
    let shop = Shop::new();
    shop.buys("cs_first", "a@example.com", "2026-10-01T00:00:00Z").buys(
        "cs_second",
        "A@Example.com",
        "2026-10-01T00:00:05Z",
    );
    let first = shop.run("2026-10-01T00:10:00Z").exits(0);
    assert_eq!(first.mails(), ["pp:cs_first:d0 sent"], "one mail per person and run");
    assert_eq!(
        first.closed(),
        ["cs_second d3 repurchase", "cs_second d7 repurchase", "cs_second d14 repurchase"]
    );
    assert_eq!(shop.run("2026-10-01T01:10:00Z").exits(0).mails(), ["pp:cs_second:d0 sent"]);
    assert!(shop.run("2026-10-03T01:09:59Z").exits(0).mails().is_empty());
    assert_eq!(shop.run("2026-10-04T00:00:00Z").exits(0).mails(), ["pp:cs_first:d3 sent"]);
    shop.run("2026-10-15T00:00:00Z").exits(0);

    shop.buys("cs_much_later", "a@example.com", "2026-11-20T00:00:00Z");
    assert_eq!(shop.run("2026-11-20T01:00:00Z").exits(0).mails(), ["pp:cs_much_later:d0 sent"]);
    assert!(shop.run("2026-11-24T01:00:00Z").exits(0).mails().is_empty());
}

#[test]
fn c016_two_spellings_of_one_address_are_one_person() {
    let shop = Shop::new();
    shop.buys("cs_1", "Buyer@Example.com", "2026-10-01T00:00:00Z").buys(
        "cs_2",
        "buyer@example.com",
        "2026-10-02T00:00:00Z",
    );
    shop.run("2026-10-02T01:00:00Z").exits(0);
    shop.run("2026-10-02T02:00:00Z").exits(0);
    assert!(shop.mail("cs_1", "d0").contains("Buyer@Example.com"));
    assert!(shop.mail("cs_2", "d0").contains("buyer@example.com"));
    shop.stepmail(&["mark-stopped", "BUYER@EXAMPLE.COM", "--now", "2026-10-02T03:00:00Z"]).exits(0);
    assert_eq!(
        shop.run("2026-10-04T05:00:00Z").exits(0).closed(),
        ["cs_1 d3 stopped", "cs_1 d7 stopped", "cs_1 d14 stopped"]
    );
}

#[test]
fn c017_dots_and_plus_parts_make_other_people() {
    let shop = Shop::new();
    shop.buys("cs_1", "a.b@example.com", "2026-10-01T00:00:00Z")
        .buys("cs_2", "ab@example.com", "2026-10-01T00:00:00Z")
        .buys("cs_3", "ab+shop@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.stepmail(&["mark-stopped", "ab@example.com", "--now", "2026-10-01T02:00:00Z"]).exits(0);
    assert_eq!(shop.run("2026-10-04T00:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent", "pp:cs_3:d3 sent"]);
    assert!(shop.mail("cs_3", "d0").contains("ab+shop@example.com"));
}

#[test]
fn c018_after_a_stop_nothing_leaves() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.run("2026-10-04T01:00:00Z").exits(0);
    let said = shop
        .stepmail(&["mark-stopped", "cs_1", "--reason", "refund", "--now", "2026-10-06T00:00:00Z"])
        .exits(0);
    said.says("the next run closes d7 of cs_1: stopped");
    for day in 6..=20 {
        shop.run(&format!("2026-10-{day:02}T01:00:00Z")).exits(0);
    }
    assert_eq!(shop.outbox(), ["pp:cs_1:d0", "pp:cs_1:d3"]);
    assert_eq!(shop.steps("cs_1"), ["sent", "sent", "stopped", "stopped"]);
}

#[test]
fn c019_a_stop_of_one_purchase_leaves_the_other_alone() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z").buys(
        "cs_2",
        "a@example.com",
        "2026-10-01T02:00:00Z",
    );
    shop.run("2026-10-01T02:10:00Z").exits(0);
    shop.stepmail(&["mark-stopped", "cs_1", "--now", "2026-10-01T02:20:00Z"]).exits(0);
    assert_eq!(shop.run("2026-10-01T03:00:00Z").exits(0).mails(), ["pp:cs_2:d0 sent"]);
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"]);
}

#[test]
fn r7_one_who_has_started_is_not_asked_where_they_stopped() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.stepmail(&["mark-started", "a@example.com", "--now", "2026-10-02T00:00:00Z"])
        .exits(0)
        .says("d3 of cs_1: started");
    assert_eq!(shop.run("2026-10-04T00:00:00Z").exits(0).closed(), ["cs_1 d3 started"]);
    assert_eq!(shop.run("2026-10-08T00:00:00Z").exits(0).mails(), ["pp:cs_1:d7 sent"]);
}

#[test]
fn r7_a_stopped_buyer_who_buys_again_gets_nothing_and_the_shop_is_told_once() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.stepmail(&["mark-stopped", "a@example.com", "--now", "2026-10-02T00:00:00Z"]).exits(0);
    shop.buys("cs_2", "a@example.com", "2026-10-03T00:00:00Z");
    let told = shop.run("2026-10-03T01:00:00Z").exits(1);
    assert_eq!(told.notices(), ["stopped_buyer"]);
    assert!(told.mails().is_empty());
    assert_eq!(shop.steps("cs_2"), ["stopped", "repurchase", "repurchase", "repurchase"]);
    assert!(shop.run("2026-10-03T02:00:00Z").exits(0).notices().is_empty());
    assert_eq!(shop.notices().len(), 1);
}

#[test]
fn r3_a_hand_can_say_that_a_purchase_is_a_repurchase_or_that_somebody_bought_before() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z").buys(
        "cs_2",
        "b@example.com",
        "2026-10-01T00:00:00Z",
    );
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.stepmail(&["mark-repurchase", "cs_1", "--now", "2026-10-01T02:00:00Z"]).exits(0);
    shop.stepmail(&["mark-repurchase", "b@example.com", "--now", "2026-10-01T02:00:00Z"]).exits(0);
    shop.run("2026-10-04T00:00:00Z").exits(0);
    for session in ["cs_1", "cs_2"] {
        assert_eq!(shop.steps(session), ["sent", "repurchase", "repurchase", "repurchase"]);
    }
    assert_eq!(shop.outbox(), ["pp:cs_1:d0", "pp:cs_2:d0"]);
}

#[test]
fn c028_r4_what_was_paid_before_go_live_is_mailed_nothing() {
    let shop = Shop::new();
    shop.buys("cs_before", "a@example.com", "2026-08-31T23:59:59Z").buys(
        "cs_at",
        "b@example.com",
        "2026-09-01T00:00:00Z",
    );
    let run = shop.run("2026-09-01T01:00:00Z").exits(0);
    assert_eq!(run.mails(), ["pp:cs_at:d0 sent"]);
    assert_eq!(
        (&run.json()["ingested"]["history"], &run.json()["ingested"]["purchases"]),
        (&json!(1), &json!(1))
    );
    assert!(run.closed().is_empty(), "history is not what this run closed");
    shop.buys("cs_again", "a@example.com", "2026-09-02T00:00:00Z");
    shop.run("2026-09-02T01:00:00Z").exits(0);
    assert_eq!(shop.steps("cs_again"), ["sent", "repurchase", "repurchase", "repurchase"]);
}

#[test]
fn c028_r4_a_run_that_would_mail_very_many_asks_first() {
    let shop = Shop::new();
    shop.set("[policy]\nmax_mails_per_run = 3");
    for n in 0..4 {
        shop.buys(&format!("cs_old{n}"), &format!("old{n}@example.com"), "2026-10-01T00:00:00Z");
    }
    shop.buys("cs_fresh", "fresh@example.com", "2026-10-02T23:00:00Z");
    let held = shop.run("2026-10-03T00:00:00Z").exits(1);
    assert_eq!(held.mails(), ["pp:cs_fresh:d0 sent"], "a fresh d0 is not held");
    assert_eq!(held.notices(), ["brake"]);
    assert!(held.json()["stopped_early"].as_str().unwrap().contains("--allow 4"));
    // It still holds, and is not told again.
    let again = shop.run("2026-10-03T01:00:00Z").exits(1);
    assert!(again.notices().is_empty() && again.mails().is_empty());
    assert_eq!(shop.notices().len(), 1);

    assert_eq!(shop.run_with("2026-10-03T02:00:00Z", &["--allow", "4"]).exits(0).mails().len(), 4);
    // The go holds for 24 hours, and not a second longer.
    for n in 0..4 {
        shop.buys(&format!("cs_more{n}"), &format!("more{n}@example.com"), "2026-10-02T00:00:00Z");
    }
    shop.run("2026-10-04T02:00:00Z").exits(1);
    assert_eq!(shop.notices().len(), 2, "the brake came back after a good run: a new matter");
}

#[test]
fn r6_a_d0_that_cannot_leave_holds_the_later_mails() {
    let shop = Shop::new();
    shop.set("[templates]\ndir = \"templates\"");
    shop.stepmail(&["init", ".", "--templates"]).exits(0);
    shop.write("templates/d0.en.md", "Subject: Hello\n\n{{ nothing_of_that_name }}\n");
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    assert_eq!(shop.run("2026-10-01T01:00:00Z").exits(1).notices(), ["template_fault"]);
    assert!(shop.run("2026-10-05T00:00:00Z").exits(0).mails().is_empty());
    shop.write("templates/d0.en.md", "Subject: Hello\n\nCome in: {{ login_url }}\n");
    assert_eq!(shop.run("2026-10-05T01:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert!(shop.run("2026-10-07T00:59:59Z").exits(0).mails().is_empty());
    assert_eq!(shop.run("2026-10-07T01:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn c076_a_dry_run_changes_no_byte_and_says_what_the_run_then_does() {
    type Scene = (&'static str, fn(&Shop));
    let scenes: [Scene; 8] = [
        ("new purchases and a broken line", |shop| {
            shop.buys("cs_3", "c@example.com", "2026-10-08T00:00:00Z").event("{broken");
        }),
        ("the brake", |shop| {
            for n in 0..5 {
                shop.buys(&format!("cs_old{n}"), &format!("old{n}@example.com"), "2026-10-03T00:00:00Z");
            }
        }),
        ("a guard", |shop| {
            shop.edit(|ledger| ledger["last_run"]["at"] = json!("2026-10-09T00:00:00Z"));
        }),
        ("a copy", |shop| {
            shop.edit(|ledger| ledger["last_run"]["installation"] = json!("somebody else's"));
        }),
        ("a template fault", |shop| {
            shop.stepmail(&["init", ".", "--templates"]);
            shop.set("[templates]\ndir = \"templates\"\n[policy]\nmax_mails_per_run = 3");
            shop.write("templates/d7.en.md", "Subject: x\n\n{{ nobody_knows }}\n");
        }),
        ("a checkout that waited for its date", |shop| {
            shop.buys("cs_ahead", "d@example.com", "2026-10-08T00:30:00Z");
            shop.run("2026-10-08T00:00:00Z").exits(1);
        }),
        ("marks", |shop| {
            shop.stepmail(&["mark-stopped", "a@example.com", "--now", "2026-10-02T00:00:00Z"]).exits(0);
            shop.stepmail(&["mark-stopped", "cs_9", "--now", "2026-10-02T00:00:00Z"]).exits(1);
            shop.buys("cs_9", "z@example.com", "2026-10-03T00:00:00Z");
        }),
        ("an open plan, and a disk in the way", |shop| {
            shop.buys("cs_4", "f@example.com", "2026-10-07T00:00:00Z");
            let frozen = json!({ "via": "outbox", "to": "b@example.com", "subject": "s", "body": "no mail", "hash": "h" });
            shop.edit(|ledger| {
                let plan = json!({ "state": "planned", "at": "2026-10-01T00:30:00Z", "message": frozen });
                ledger["buyers"][1]["purchases"][0]["steps"]["d14"] = plan;
            });
        }),
    ];
    for (scene, set_up) in scenes {
        let shop = Shop::new();
        shop.set("[policy]\nmax_mails_per_run = 3");
        shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
        shop.buys("cs_2", "b@example.com", "2026-09-24T00:00:00Z");
        shop.run("2026-10-01T01:00:00Z").exits(0);
        set_up(&shop);
        let before = shop.everything();
        let dry = shop.dry_run("2026-10-08T01:00:00Z");
        assert_eq!(before, shop.everything(), "{scene}: a dry run wrote something");
        let run = shop.run("2026-10-08T01:00:00Z");
        let keys = |ran: &crate::shop::Ran| -> Vec<String> {
            ran.mails().iter().map(|mail| mail.split(' ').next().unwrap().to_owned()).collect()
        };
        assert_eq!(keys(&dry), keys(&run), "{scene}");
        for same in ["ingested", "closed", "notices", "stopped_early", "now"] {
            assert_eq!(dry.json()[same], run.json()[same], "{scene}: {same}");
        }
        if run.mails().iter().all(|mail| mail.ends_with(" sent")) {
            assert_eq!(dry.code, run.code, "{scene}");
        }
    }
}
