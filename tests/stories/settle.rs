//! What a hand takes back and what it settles: `resume`, `resolve`, and the story that `show` tells of it.

use serde_json::{Value, json};

use crate::shop::{Ran, Shop};

/// When the purchases of most stories were paid.
const BOUGHT: &str = "2026-10-01T00:00:00Z";
/// An hour after.
const FIRST: &str = "2026-10-01T01:00:00Z";
/// d3 has been tried, and is in its window.
const TRIED: &str = "2026-10-04T05:00:00Z";
const IN_WINDOW: &str = "2026-10-05T00:00:00Z";

/// A shop whose buyers have had their way in. The n-th bought as `cs_n`.
fn shop_of(buyers: &[&str]) -> Shop {
    let shop = Shop::new();
    for (n, buyer) in (1..).zip(buyers) {
        shop.buys(&format!("cs_{n}"), &format!("{buyer}@example.com"), BOUGHT);
    }
    shop.run(FIRST).exits(0);
    shop
}

fn closed_after(reason: &str, tried: &str) -> Value {
    let attempt =
        json!({ "first_at": tried, "last_at": tried, "via": "outbox", "subject": "How far did you come?" });
    json!({ "state": "closed", "at": TRIED, "reason": reason, "attempt": attempt })
}

fn rejected() -> Value {
    json!({ "state": "closed", "at": TRIED, "reason": "rejected" })
}

fn plan() -> Value {
    let frozen = json!({ "via": "post", "to": "a@example.com", "subject": "s", "body": "b", "hash": "h" });
    json!({ "state": "planned", "at": TRIED, "message": frozen })
}

impl Shop {
    /// Puts a step of the n-th buyer's purchase into a state, as a mail service's answers would.
    fn put(&self, n: usize, step: &str, state: &Value) -> &Self {
        self.edit(|ledger| ledger["buyers"][n - 1]["purchases"][0]["steps"][step] = state.clone());
        self
    }

    fn at(&self, now: &str, args: &[&str]) -> Ran {
        self.stepmail(&[args, &["--now", now]].concat())
    }
}

// resume

#[test]
fn r7_a_buyer_who_wants_the_mails_again_gets_those_whose_window_has_not_ended() {
    let shop = shop_of(&["a"]);
    shop.at("2026-10-02T00:00:00Z", &["mark-stopped", "a@example.com"]).exits(0);
    shop.run("2026-10-02T01:00:00Z").exits(0);
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"]);
    let said = shop.at("2026-10-08T00:00:00Z", &["resume", "A@example.com"]).exits(0);
    let said =
        said.says("is no longer stopped").says("d3 of cs_1 stays closed: its window ended on 2026-10-08");
    said.says("d7 of cs_1 is open again").says("the next run sends d7 of cs_1");
    assert_eq!(shop.run("2026-10-08T01:00:00Z").exits(0).mails(), ["pp:cs_1:d7 sent"]);
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "sent", "pending"]);
    // Twice is once.
    let once = shop.read("ledger.json");
    shop.at("2026-10-08T02:00:00Z", &["resume", "a@example.com"]).exits(0).says("nothing changed");
    assert_eq!(shop.read("ledger.json"), once);
    assert_eq!(shop.run("2026-10-15T00:00:00Z").exits(0).mails(), ["pp:cs_1:d14 sent"]);
}

#[test]
fn r7_resume_lifts_only_the_stop_it_names() {
    for (first, second, other) in [
        ("a@example.com", "cs_1", "stepmail resume cs_1"),
        ("cs_1", "a@example.com", "stepmail resume EMAIL"),
    ] {
        let shop = shop_of(&["a"]);
        shop.at("2026-10-02T00:00:00Z", &["mark-stopped", "a@example.com"]).exits(0);
        shop.at("2026-10-02T00:00:00Z", &["mark-stopped", "cs_1"]).exits(0);
        shop.run("2026-10-02T01:00:00Z").exits(0);
        shop.at("2026-10-03T00:00:00Z", &["resume", first]).exits(0).says(other);
        assert!(shop.run("2026-10-04T01:00:00Z").exits(0).mails().is_empty(), "the other stop holds");
        shop.at("2026-10-04T02:00:00Z", &["resume", second]).exits(0).says("d3 of cs_1 is open again");
        assert_eq!(shop.run("2026-10-04T03:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    }
}

#[test]
fn r7_a_mail_that_may_have_arrived_is_not_sent_again_by_resume() {
    let shop = shop_of(&["a"]);
    shop.put(1, "d3", &plan());
    shop.at(TRIED, &["mark-stopped", "cs_1"]).exits(0);
    assert_eq!(
        shop.run("2026-10-04T06:00:00Z").exits(0).closed(),
        ["cs_1 d3 stopped", "cs_1 d7 stopped", "cs_1 d14 stopped"]
    );
    let said = shop.at("2026-10-04T07:00:00Z", &["resume", "cs_1"]).exits(0);
    said.says("d3 of cs_1 stays closed").says("`stepmail resolve pp:cs_1:d3 --not-sent`");
    assert!(shop.run("2026-10-04T08:00:00Z").exits(0).mails().is_empty());
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "pending", "pending"]);
    // A person who has looked can still send it.
    shop.at("2026-10-04T09:00:00Z", &["resolve", "pp:cs_1:d3", "--not-sent"]).exits(0).says("is open again");
    assert_eq!(shop.run("2026-10-04T10:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn r7_a_refund_that_is_read_again_after_resume_does_not_stop_again() {
    let shop = shop_of(&["a"]);
    let refund = |session: &str| {
        format!(
            r#"{{"id":"evt_r_{session}","type":"stop","session":"{session}","reason":"refund","at":"2026-10-02T00:00:00Z"}}"#
        )
    };
    shop.event(&refund("cs_1")).event(&refund("cs_later"));
    shop.run("2026-10-02T01:00:00Z").exits(1);
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"]);
    shop.at("2026-10-03T00:00:00Z", &["resume", "cs_1"]).exits(0);
    let said = shop.at("2026-10-03T00:00:00Z", &["resume", "cs_later"]).exits(0);
    said.says("session cs_later is no longer stopped when it comes");
    shop.at("2026-10-03T00:00:00Z", &["show", "cs_later"]).exits(0).says("was lifted 2026-10-03T00:00:00Z");
    // The events file still holds the refunds, and is read by every run.
    shop.buys("cs_later", "later@example.com", "2026-10-03T01:00:00Z");
    assert_eq!(shop.run("2026-10-04T00:00:00Z").exits(0).mails(), ["pp:cs_later:d0 sent", "pp:cs_1:d3 sent"]);
}

#[test]
fn r7_a_purchase_made_while_stopped_is_let_in_by_resume() {
    let shop = shop_of(&["a"]);
    shop.at("2026-10-02T00:00:00Z", &["mark-stopped", "a@example.com"]).exits(0);
    shop.buys("cs_again", "a@example.com", "2026-10-03T00:00:00Z");
    assert_eq!(shop.run("2026-10-03T01:00:00Z").exits(1).notices(), ["stopped_buyer"]);
    shop.at("2026-10-03T02:00:00Z", &["resume", "a@example.com"])
        .exits(0)
        .says("d0 of cs_again is open again");
    assert_eq!(shop.ledger()["matters"], json!([]), "what was told of it is over");
    assert_eq!(shop.run("2026-10-03T03:00:00Z").exits(0).mails(), ["pp:cs_again:d0 sent"]);
}

#[test]
fn r7_a_paused_buyer_gets_nothing_but_the_way_in_until_resume_and_the_windows_go_on() {
    let shop = shop_of(&["a"]);
    shop.edit(|ledger| {
        ledger["buyers"][0]["paused"] = json!({ "at": "2026-10-02T00:00:00Z", "reason": "reply" });
    });
    shop.buys("cs_2", "a@example.com", "2026-10-04T00:00:00Z");
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_2:d0 sent"]);
    assert!(shop.run("2026-10-07T00:00:00Z").exits(0).mails().is_empty());
    shop.at("2026-10-07T01:00:00Z", &["show", "cs_1"]).exits(0).says("paused");
    shop.at("2026-10-07T01:00:00Z", &["resume", "cs_1"]).exits(0).says("the buyer is paused, which stays");
    assert_eq!(shop.run("2026-10-08T01:00:00Z").exits(0).closed(), ["cs_1 d3 stale"]);
    shop.at("2026-10-08T02:00:00Z", &["resume", "a@example.com"]).exits(0).says("no longer paused");
    assert_eq!(shop.run("2026-10-08T03:00:00Z").exits(0).mails(), ["pp:cs_1:d7 sent"]);
}

#[test]
fn resume_of_somebody_nobody_knows_notes_nothing_and_says_so() {
    let shop = shop_of(&["a"]);
    let before = shop.kept();
    for who in ["nobody@example.com", "cs_nobody"] {
        shop.at(IN_WINDOW, &["resume", who]).exits(1).says(who).says("check the spelling");
        let said = shop.at(IN_WINDOW, &["resume", who, "--json"]).exits(1).json();
        assert_eq!((&said["exit"], &said["changed"]), (&json!(1), &json!(false)));
    }
    assert!(shop.kept() == before);
    // A mark for the future can be taken back before it has come true.
    shop.at(IN_WINDOW, &["mark-stopped", "cs_soon"]).exits(1);
    shop.at(IN_WINDOW, &["mark-stopped", "soon@example.com"]).exits(1);
    shop.at(IN_WINDOW, &["resume", "cs_soon"]).exits(0).says("no longer stopped when it comes");
    shop.at(IN_WINDOW, &["resume", "soon@example.com"]).exits(0).says("no longer stopped");
    shop.buys("cs_soon", "soon@example.com", IN_WINDOW);
    assert!(shop.run("2026-10-05T01:00:00Z").exits(0).mails().contains(&"pp:cs_soon:d0 sent".to_owned()));
}

// resolve

#[test]
fn r10_a_mail_that_a_person_found_is_sent_for_good_and_keeps_the_next_two_days_away() {
    let shop = shop_of(&["a", "b"]);
    let late = "2026-10-07T23:00:00Z";
    for n in [1, 2] {
        shop.put(n, "d3", &closed_after("unknown_result", late));
    }
    shop.at(late, &["resolve", "pp:cs_1:d3", "--sent", "re_123"]).exits(0).says("message id re_123");
    shop.at(late, &["resolve", "pp:cs_2:d3", "--sent"]).exits(0).says("message id by-hand");
    let d3 = &shop.purchase("cs_1")["steps"]["d3"];
    assert_eq!(*d3, json!({ "state": "sent", "at": late, "message_id": "re_123", "via": "outbox" }));
    let once = shop.read("ledger.json");
    // Twice is once; and nothing makes it unsent.
    shop.at(late, &["resolve", "pp:cs_1:d3", "--sent", "re_123"]).exits(0).says("nothing changed");
    shop.at(late, &["resolve", "pp:cs_1:d3", "--sent"]).exits(0).says("nothing changed");
    shop.at(late, &["resolve", "pp:cs_1:d3", "--not-sent"]).exits(1).says("sent is final");
    shop.at(late, &["resolve", "pp:cs_1:d3", "--sent", "another"]).exits(1).says("another message id");
    assert_eq!(shop.read("ledger.json"), once);
    assert!(shop.run("2026-10-09T22:59:59Z").exits(0).mails().is_empty(), "d7 within two days of d3");
    assert_eq!(shop.run("2026-10-09T23:00:00Z").exits(0).mails(), ["pp:cs_1:d7 sent", "pp:cs_2:d7 sent"]);
}

#[test]
fn r10_a_mail_that_never_left_is_sent_by_the_next_run_while_its_window_lasts() {
    let shop = shop_of(&["a", "b", "c"]);
    shop.put(1, "d3", &closed_after("unknown_result", TRIED)).put(2, "d3", &rejected());
    shop.put(3, "d3", &closed_after("unknown_result", TRIED));
    let said = shop.at(IN_WINDOW, &["resolve", "pp:cs_1:d3", "pp:cs_2:d3", "--not-sent"]).exits(0);
    said.says("d3 of cs_1 never left and is open again").says("the next run sends d3 of cs_2");
    let once = shop.read("ledger.json");
    shop.at(IN_WINDOW, &["resolve", "pp:cs_2:d3", "pp:cs_1:d3", "--not-sent"])
        .exits(0)
        .says("nothing changed");
    assert_eq!(shop.read("ledger.json"), once);
    assert_eq!(shop.run(IN_WINDOW).exits(0).mails(), ["pp:cs_1:d3 sent", "pp:cs_2:d3 sent"]);
    let late = "2026-10-08T00:00:00Z";
    let said = shop.at(late, &["resolve", "pp:cs_3:d3", "--not-sent"]).exits(0);
    said.says("closed as stale: its window ended on 2026-10-08T00:00:00Z");
    shop.at(late, &["resolve", "pp:cs_3:d3", "--not-sent"]).exits(0).says("nothing changed");
    assert!(!shop.run(late).exits(0).mails().contains(&"pp:cs_3:d3 sent".to_owned()));
    assert_eq!(shop.step("cs_3", "d3"), "stale");
}

#[test]
fn r10_the_matter_names_the_command_and_is_over_with_it() {
    let shop = shop_of(&["a"]);
    shop.put(1, "d3", &plan());
    // Past its window, a plan without a result is for a person.
    let late = "2026-10-08T00:00:00Z";
    let told = shop.run(late).exits(1);
    assert_eq!(told.notices(), ["unknown_result"]);
    let command = "stepmail resolve pp:cs_1:d3 --not-sent";
    assert!(told.json()["notices"][0]["text"].as_str().unwrap().contains(command));
    shop.at(late, &["status"])
        .exits(0)
        .says(command)
        .says("to settle it: `stepmail resolve pp:cs_1:d3 --sent`");
    shop.at(late, &["resolve", "pp:cs_1:d3", "--sent"]).exits(0);
    assert_eq!(shop.ledger()["matters"], json!([]));
}

#[test]
fn r7_a_mail_that_never_left_to_a_buyer_who_said_stop_is_not_sent() {
    let shop = shop_of(&["a", "b"]);
    shop.put(1, "d3", &closed_after("unknown_result", TRIED)).put(2, "d3", &plan());
    for who in ["a@example.com", "b@example.com"] {
        shop.at(TRIED, &["mark-stopped", who]).exits(0);
    }
    shop.run("2026-10-04T06:00:00Z").exits(0);
    let said = shop.at(IN_WINDOW, &["resolve", "pp:cs_1:d3", "pp:cs_2:d3", "--not-sent"]).exits(0);
    said.says("the next run closes d3 of cs_1: stopped")
        .says("d3 of cs_2 never left and stays closed as stopped");
    assert!(shop.run(IN_WINDOW).exits(0).mails().is_empty());
    assert_eq!((shop.step("cs_1", "d3"), shop.step("cs_2", "d3")), ("stopped".into(), "stopped".into()));
}

#[test]
fn r9_an_open_plan_is_settled_by_its_key_and_never_by_a_range() {
    for (word, after) in [("--sent", "sent"), ("--not-sent", "pending")] {
        let shop = shop_of(&["a"]);
        shop.put(1, "d3", &plan());
        let range = ["resolve", "--since", TRIED, "--until", IN_WINDOW, word];
        shop.at(IN_WINDOW, &range).exits(0).says("no mail with an unknown result");
        assert_eq!(shop.step("cs_1", "d3"), "planned");
        shop.at(IN_WINDOW, &["resolve", "pp:cs_1:d3", word]).exits(0);
        assert_eq!(shop.step("cs_1", "d3"), after);
    }
}

#[test]
fn r10_one_key_that_cannot_be_settled_leaves_all_as_they_were_and_each_is_named() {
    let shop = shop_of(&["a", "b", "c"]);
    shop.put(1, "d3", &closed_after("unknown_result", TRIED)).put(2, "d3", &rejected());
    let before = shop.kept();
    let keys = ["resolve", "pp:cs_1:d3", "pp:cs_2:d3", "pp:cs_3:d3", "pp:cs_9:d3", "--sent"];
    let said = shop.at(IN_WINDOW, &keys).exits(1).says("nothing was changed");
    let said = said.says("d3 of cs_2 was refused by the mail service").says("d3 of cs_3 was never handed");
    let said = said.says("d3 of cs_9 is not in the ledger");
    assert!(!said.stdout.contains("cs_1"), "{}", said.stdout);
    shop.at(IN_WINDOW, &["resolve", "pp:cs_9:d3", "--not-sent", "-q"]).exits(1).says("cs_9");
    assert!(shop.kept() == before);
}

#[test]
fn r10_after_an_outage_all_mails_of_a_night_are_settled_at_once() {
    let night = ["--since", "2026-10-04T04:00:00Z", "--until", "2026-10-04T06:00:00Z"];
    let set_up = || {
        let shop = shop_of(&["a", "b", "c", "d"]);
        shop.put(1, "d3", &closed_after("unknown_result", TRIED)).put(2, "d3", &rejected());
        shop.put(3, "d3", &closed_after("unknown_result", "2026-10-04T06:00:00Z"));
        shop.put(4, "d3", &closed_after("started", TRIED));
        shop
    };
    let unsent = set_up();
    let said = unsent.at(IN_WINDOW, &[&["resolve", "--not-sent"], &night[..]].concat()).exits(0);
    said.says("d3 of cs_1").says("d3 of cs_2").says("d3 of cs_4 never left and stays closed as started");
    let steps = |shop: &Shop| ["cs_1", "cs_2", "cs_3", "cs_4"].map(|session| shop.step(session, "d3"));
    assert_eq!(steps(&unsent), ["pending", "pending", "unknown_result", "started"]);
    assert_eq!(unsent.run(IN_WINDOW).exits(0).mails(), ["pp:cs_1:d3 sent", "pp:cs_2:d3 sent"]);

    let sent = set_up();
    let said = sent.at(IN_WINDOW, &[&["resolve", "--sent"], &night[..]].concat()).exits(0);
    said.says("d3 of cs_2 is left alone");
    assert_eq!(steps(&sent), ["sent", "rejected", "unknown_result", "sent"]);
}

#[test]
fn r10_what_cannot_be_meant_is_wrong_usage_and_changes_nothing() {
    let shop = shop_of(&["a"]);
    shop.put(1, "d3", &closed_after("unknown_result", TRIED));
    let before = shop.kept();
    let long = "x".repeat(201);
    let (key, since, until) = ("pp:cs_1:d3", ["--since", TRIED], ["--until", IN_WINDOW]);
    let rows: &[(&[&str], &str)] = &[
        (&[key], "--sent"),
        (&["--sent"], "KEY"),
        (&[key, "--sent", "--not-sent"], "cannot be used with"),
        (&["--sent", key], "put the keys before --sent"),
        (&[key, "pp:cs_1:d7", "--sent", "re_1"], "exactly one key"),
        (&["--since", TRIED, "--until", IN_WINDOW, "--sent", "re_1"], "exactly one key"),
        (&[key, "--sent", "two\nlines"], "one line"),
        (&[key, "--sent", ""], "one line"),
        (&[key, "--sent", &long], "at most 200"),
        (&["pp:notice:unknown_result.cs_1.d3.1", "--not-sent"], "notice"),
        (&["cs_1", "--not-sent"], "must look like"),
        (&["pp:cs_1:d4", "--not-sent"], "d0, d3, d7 or d14"),
        (&[key, since[0], since[1], until[0], until[1], "--not-sent"], "cannot be used with"),
        (&[since[0], since[1], "--not-sent"], "--until"),
        (&[until[0], until[1], "--not-sent"], "--since"),
        (&["--since", IN_WINDOW, "--until", TRIED, "--not-sent"], "--since must lie before --until"),
    ];
    for (args, says) in rows {
        shop.at(IN_WINDOW, &[&["resolve"], *args].concat()).exits(2).says(says);
    }
    assert!(shop.kept() == before);
}

// all of them

/// A shop in which each of the commands has something to do.
fn shop_with_everything() -> Shop {
    let shop = shop_of(&["a", "b", "c"]);
    shop.at("2026-10-02T00:00:00Z", &["mark-stopped", "a@example.com"]).exits(0);
    shop.run("2026-10-02T01:00:00Z").exits(0);
    shop.put(2, "d3", &closed_after("unknown_result", TRIED)).put(3, "d3", &rejected());
    shop
}

const EACH: [&[&str]; 10] = [
    &["mark-stopped", "cs_3"],
    &["mark-started", "cs_3"],
    &["mark-repurchase", "cs_3"],
    &["adopt", "--outbox", "keep"],
    &["forget", "a@example.com"],
    &["resume", "a@example.com"],
    &["mark-outcome", "cs_1"],
    &["resolve", "pp:cs_2:d3", "--sent", "re_1"],
    &["resolve", "pp:cs_2:d3", "pp:cs_3:d3", "--not-sent"],
    &["resolve", "--since", "2026-10-04T00:00:00Z", "--until", "2026-10-05T00:00:00Z", "--not-sent"],
];

#[test]
fn a_dry_run_of_each_says_the_same_and_changes_not_one_byte() {
    for command in EACH {
        let shop = shop_with_everything();
        let before = shop.everything();
        let dry =
            shop.at(IN_WINDOW, &[command, &["--dry-run"]].concat()).exits(0).says("nothing was changed");
        assert!(shop.everything() == before, "{command:?}");
        let real = shop.at(IN_WINDOW, command).exits(0);
        assert!(shop.everything() != before, "{command:?} does nothing, so this tries nothing");
        assert!(
            dry.stdout.ends_with(&real.stdout) && !real.stdout.is_empty(),
            "{}\n{}",
            dry.stdout,
            real.stdout
        );
    }
}

#[test]
fn each_gives_programs_one_object_and_a_quiet_person_nothing() {
    for command in EACH {
        let shop = shop_with_everything();
        let said = |now| shop.at(now, &[command, &["--json"]].concat()).exits(0).json();
        let first = said(IN_WINDOW);
        assert_eq!(first["schema"], "stepmail-hand/1", "{command:?}");
        assert_eq!(first["command"], command[0]);
        assert_eq!((&first["exit"], &first["changed"]), (&json!(0), &json!(true)), "{command:?}");
        assert!(
            !first["says"].as_array().unwrap().is_empty() && !first["next"].as_array().unwrap().is_empty()
        );
        // Twice is once.
        let once = shop.read("ledger.json");
        assert_eq!(said("2026-10-05T01:00:00Z")["changed"], false, "{command:?}");
        assert_eq!(shop.read("ledger.json"), once, "{command:?}");

        let quiet = shop_with_everything().at(IN_WINDOW, &[command, &["-q"]].concat()).exits(0);
        assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""), "{command:?}");
    }
}

#[test]
fn each_waits_for_the_lock_and_says_so() {
    for command in EACH {
        let shop = shop_with_everything();
        let lock = std::fs::File::options().write(true).open(shop.path("ledger.json.lock")).unwrap();
        fs2::FileExt::lock_exclusive(&lock).unwrap();
        let before = shop.kept();
        shop.at(IN_WINDOW, &[command, &["--wait", "0"]].concat()).exits(75);
        assert!(shop.kept() == before, "{command:?}");
        let child = shop.spawn(&[command, &["--now", IN_WINDOW]].concat());
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(shop.kept() == before, "{command:?} did not wait");
        fs2::FileExt::unlock(&lock).unwrap();
        let ran = Ran::of(&child.wait_with_output().unwrap()).exits(0);
        assert!(ran.stderr.contains("waiting for another command to end"), "{command:?}: {}", ran.stderr);
        assert!(shop.kept() != before, "{command:?}");
    }
}

// show

#[test]
fn show_tells_the_whole_story_in_order_with_reasons_and_what_comes_next() {
    let shop = shop_of(&["a"]);
    shop.run("2026-10-04T01:00:00Z").exits(0);
    shop.at("2026-10-05T00:00:00Z", &["mark-outcome", "cs_1", "--reason", "first invoice"]).exits(0);
    shop.event(
        r#"{"id":"evt_r","type":"stop","session":"cs_1","reason":"refund","at":"2026-10-06T00:00:00Z"}"#,
    );
    shop.run("2026-10-06T01:00:00Z").exits(0);
    shop.buys("cs_again", "a@example.com", "2026-10-07T00:00:00Z");
    let shown = shop.at("2026-10-07T01:00:00Z", &["show", "cs_1"]).exits(0);
    let story: Vec<&str> = shown.stdout.lines().filter(|line| line.starts_with("  2026-")).collect();
    let begins = [
        "  2026-10-01T00:00:00Z  paid; the first purchase of this buyer: d0, d3, d7 and d14",
        "  2026-10-01T01:00:00Z  d0 sent through outbox as pp:cs_1:d0, message id <",
        "  2026-10-04T01:00:00Z  d3 sent through outbox as pp:cs_1:d3, message id <",
        "  2026-10-05T00:00:00Z  reached the goal (first invoice): it changes no mail",
        "  2026-10-06T00:00:00Z  stopped (refund): nothing more is sent for this purchase",
        "  2026-10-06T01:00:00Z  d7 closed as stopped: a stop of this purchase from 2026-10-06T00:00:00Z (refund)",
        "  2026-10-06T01:00:00Z  d14 closed as stopped: a stop of this purchase from 2026-10-06T00:00:00Z (refund)",
    ];
    assert_eq!(story.len(), begins.len(), "{}", shown.stdout);
    for (line, begin) in story.iter().zip(begins) {
        assert!(line.starts_with(begin), "{line}\n{begin}");
    }
    shown.says("next: nothing more is to come").says("events: evt_cs_1, evt_r").says("a@example.com");
    shop.run("2026-10-07T01:00:00Z").exits(0);
    let all = shop.at("2026-10-07T02:00:00Z", &["show", "a@example.com"]).exits(0);
    all.says("paid; a repurchase: d0 only").says("d7 closed as repurchase: a repurchase gets d0 only");
}

#[test]
fn show_says_what_is_next_and_when_for_each_open_step_and_what_waits_for_a_person() {
    let shop = shop_of(&["a"]);
    let closed = json!({ "state": "closed", "at": "2026-10-08T00:00:00Z", "reason": "stale" });
    shop.put(1, "d3", &closed).put(1, "d0", &closed_after("unknown_result", BOUGHT));
    let shown = shop.at("2026-10-08T01:00:00Z", &["show", "cs_1"]).exits(0);
    let shown = shown.says("d3 closed as stale: its window ended on 2026-10-08T00:00:00Z");
    let shown = shown.says("it may have arrived").says("subject \"How far did you come?\"");
    let shown = shown.says("d0: to settle it: `stepmail resolve pp:cs_1:d0 --sent`");
    let shown = shown.says("d7: due; a buyer gets one mail per run; its window ends on 2026-10-15T00:00:00Z");
    let shown = shown.says("d14: from 2026-10-15T00:00:00Z; its window ends on 2026-10-29T00:00:00Z");
    shown.says("the next run sends d7 of cs_1");
    let json = shop.at("2026-10-08T01:00:00Z", &["show", "cs_1", "--json"]).exits(0).json();
    assert_eq!(json["schema"], "stepmail-show/1");
    let purchase = &json["purchases"][0];
    assert_eq!((&purchase["session"], purchase["steps"].as_array().unwrap().len()), (&json!("cs_1"), 4));
    assert_eq!(purchase["story"][0]["at"], BOUGHT);
    assert!(purchase["story"][0]["what"].as_str().unwrap().starts_with("paid"), "{purchase}");
    assert_eq!(purchase["next"].as_array().unwrap().len(), 3, "{purchase}");
    assert_eq!(json["next"], json!(["the next run sends d7 of cs_1"]));
}

#[test]
fn show_finds_a_mail_by_its_key_and_by_its_message_id() {
    let shop = shop_of(&["a", "b"]);
    let id = shop.purchase("cs_2")["steps"]["d0"]["message_id"].as_str().unwrap().to_owned();
    let bare = id.trim_matches(['<', '>']);
    assert!(bare.contains('@') && bare != id, "{id}");
    for what in ["pp:cs_2:d0", &id, bare] {
        let shown = shop.at(IN_WINDOW, &["show", what]).exits(0).says("d0 of cs_2").says("b@example.com");
        assert!(!shown.stdout.contains("cs_1"), "{what}: {}", shown.stdout);
        assert_eq!(shop.at(IN_WINDOW, &["show", what, "--json"]).exits(0).json()["mail"], "pp:cs_2:d0");
    }
    // A mail that was settled by hand has no id of its own.
    shop.put(1, "d3", &plan());
    shop.at(IN_WINDOW, &["resolve", "pp:cs_1:d3", "--sent"]).exits(0);
    for what in ["by-hand", "pp:cs_9:d0", "<nobody@example.com>", "pp:notice:nothing.1"] {
        shop.at(IN_WINDOW, &["show", what]).exits(1).says(what).says("check the spelling");
    }
    for what in ["pp:cs_2:d4", "pp:cs_2", "cs 2", "a@b@c"] {
        shop.at(IN_WINDOW, &["show", what]).exits(2);
    }
    // What was told to the seller is a mail as well.
    shop.event("{broken");
    shop.run(IN_WINDOW).exits(1);
    let matter = shop.ledger()["matters"][0].clone();
    let notice = &shop.notices()[0];
    for what in [notice, matter["notice"]["message_id"].as_str().unwrap()] {
        shop.at(IN_WINDOW, &["show", what])
            .exits(0)
            .says(matter["text"].as_str().unwrap())
            .says("told 2026-10-05");
    }
}

#[test]
fn r12_a_clock_far_ahead_lifts_no_stop_that_it_would_then_call_over() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.stepmail(&["mark-stopped", "cs_1", "--now", "2026-10-01T02:00:00Z"]).exits(0);
    shop.run("2026-10-01T03:00:00Z").exits(0);
    for wrong in ["2036-10-02T00:00:00Z", "2026-09-01T00:00:00Z"] {
        let before = shop.kept();
        let resume = ["resume", "cs_1", "--now", wrong];
        shop.stepmail(&resume).exits(1).says("nothing was changed").says("the clock says");
        shop.stepmail(&[&resume[..], &["--dry-run"]].concat()).exits(1).says("the clock says");
        shop.stepmail(&["resolve", "pp:cs_1:d3", "--not-sent", "--now", wrong])
            .exits(1)
            .says("the clock says");
        assert_eq!(shop.kept(), before, "{wrong}");
    }
    shop.stepmail(&["resume", "cs_1", "--now", "2026-10-02T00:00:00Z"]).exits(0);
    assert_eq!(shop.steps("cs_1"), ["sent", "pending", "pending", "pending"]);
}
