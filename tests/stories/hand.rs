//! What a person says by hand: of buyers nobody knows yet, twice, and beside a run.

use serde_json::json;

use crate::shop::{Ran, Shop};

const NOW: &str = "2026-10-01T00:00:00Z";
/// Before any of the purchases of a story.
const BOUGHT: &str = "2026-10-01T12:00:00Z";

#[test]
fn a_mark_on_somebody_nobody_knows_is_kept_for_the_future_and_said() {
    for command in ["mark-stopped", "mark-started", "mark-repurchase", "mark-outcome"] {
        for who in ["cs_new", "new@example.com"] {
            let shop = Shop::new();
            let mark = [command, who, "--now", NOW];
            let said = shop.stepmail(&mark).exits(1).says("noted for the future").says(who);
            said.says(shop.path("ledger.json").to_str().unwrap());
            let once = shop.read("ledger.json");
            shop.stepmail(&mark).exits(1);
            let again = shop.stepmail(&[&mark[..], &["--json"]].concat()).exits(1).json();
            assert_eq!((&again["exit"], &again["changed"]), (&json!(1), &json!(false)), "{command} {who}");
            assert_eq!(shop.read("ledger.json"), once, "{command} {who}: twice is once");
            assert!(shop.run("2026-10-01T01:00:00Z").exits(0).mails().is_empty());

            shop.buys("cs_new", "New@example.com", BOUGHT).buys("cs_other", "o@example.com", BOUGHT);
            let told = i32::from((command, who) == ("mark-stopped", "new@example.com"));
            let ran = shop.run("2026-10-01T13:00:00Z").exits(told).hides_addresses();
            assert!(ran.mails().contains(&"pp:cs_other:d0 sent".into()), "{command} {who}");
            shop.run("2026-10-01T14:00:00Z").exits(0);
            shop.run("2026-10-04T13:00:00Z").exits(0);
            shop.run("2026-10-08T13:00:00Z").exits(0);
            let steps = match command {
                // A stop of a person is the case of R7 that is told; the steps are all closed either way.
                "mark-stopped" => ["stopped", "stopped", "stopped", "stopped"],
                "mark-started" => ["sent", "started", "sent", "pending"],
                "mark-outcome" => ["sent", "sent", "sent", "pending"],
                _ => ["sent", "repurchase", "repurchase", "repurchase"],
            };
            assert_eq!(shop.steps("cs_new"), steps, "{command} {who}");
            assert_eq!(shop.steps("cs_other"), ["sent", "sent", "sent", "pending"], "{command} {who}");
        }
    }
}

#[test]
fn a_mark_twice_is_once_and_keeps_the_first_reason() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", NOW);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    for (command, who) in [
        ("mark-stopped", "a@example.com"),
        ("mark-started", "cs_1"),
        ("mark-repurchase", "cs_1"),
        ("mark-outcome", "cs_1"),
    ] {
        let mark = |reason: &str, now: &str| {
            shop.stepmail(&[command, who, "--reason", reason, "--json", "--now", now]).exits(0).json()["changed"].clone()
        };
        assert_eq!(mark("she\nasked\tby \u{7}phone", "2026-10-02T00:00:00Z"), true, "{command}");
        let once = shop.read("ledger.json");
        assert_eq!(mark("another", "2026-10-02T01:00:00Z"), false, "{command}");
        assert_eq!(shop.read("ledger.json"), once, "{command}");
    }
    assert_eq!(shop.ledger()["buyers"][0]["stopped"]["reason"], "she asked by phone");
    assert_eq!(shop.outbox().len(), 1, "a mark sends nothing");
}

#[test]
fn a_mark_says_what_the_next_run_will_close_and_it_does() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", NOW);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let said =
        shop.stepmail(&["mark-stopped", "cs_1", "--json", "--now", "2026-10-02T00:00:00Z"]).exits(0).json();
    assert_eq!(
        said["next_run_closes"],
        json!(["d3 of cs_1: stopped", "d7 of cs_1: stopped", "d14 of cs_1: stopped"])
    );
    assert_eq!(shop.steps("cs_1"), ["sent", "pending", "pending", "pending"], "a mark only sets a flag");
    let ran = shop.run("2026-10-02T01:00:00Z").exits(0);
    assert_eq!(ran.closed(), ["cs_1 d3 stopped", "cs_1 d7 stopped", "cs_1 d14 stopped"]);
}

#[test]
fn show_of_somebody_nobody_knows_is_exit_1_and_names_the_ledger() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", NOW);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let before = shop.everything();
    for who in ["cs_2", "b@example.com"] {
        let ran = shop.stepmail(&["show", who]).exits(1).says(who).says("check the spelling");
        assert!(ran.says(shop.path("ledger.json").to_str().unwrap()).stdout.is_empty());
    }
    shop.stepmail(&["show", "A@example.com"]).exits(0).says("cs_1");
    assert!(shop.everything() == before, "who only looks writes nothing");
}

#[test]
fn ingest_takes_in_and_sends_nothing() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", NOW).event("{broken").buys("cs_2", "b@example.com", NOW);
    let ran = shop.stepmail(&["ingest", "events.jsonl", "--json", "--now", "2026-10-01T01:00:00Z"]).exits(1);
    let ran = ran.hides_addresses();
    assert_eq!(
        (&ran.json()["ingested"]["purchases"], ran.notices()),
        (&json!(2), vec!["invalid_event".into()])
    );
    assert!(!shop.path("outbox").exists(), "a mail or a notice left");
    let again =
        shop.stepmail(&["ingest", "events.jsonl", "--json", "--now", "2026-10-01T01:10:00Z"]).exits(0);
    assert_eq!(again.json()["ingested"]["duplicates"], 2);
    std::fs::remove_file(shop.path("events.jsonl")).unwrap();
    let run = shop.run("2026-10-01T02:00:00Z").exits(0);
    assert_eq!(run.mails(), ["pp:cs_1:d0 sent", "pp:cs_2:d0 sent"]);
    assert_eq!(shop.notices().len(), 1, "the next run tells what it had to tell");
    let piped = r#"{"id":"s1","type":"stop","session":"cs_1","at":"2026-10-01T02:30:00Z"}"#;
    shop.stepmail_reading(piped, &["ingest", "-", "--now", "2026-10-01T03:00:00Z"]).exits(0);
    assert_eq!(shop.run("2026-10-04T00:00:00Z").exits(0).mails(), ["pp:cs_2:d3 sent"]);
}

#[test]
fn c020_c069_marks_set_beside_a_run_are_never_lost() {
    std::thread::scope(|scope| {
        for part in 0..8 {
            scope.spawn(move || marks_beside_runs(part));
        }
    });
}

/// So many rounds of the two hundred are played in each of the eight shops.
const ROUNDS: usize = 25;

/// An eighth of the rounds, in a shop of their own.
fn marks_beside_runs(part: usize) {
    let shop = Shop::new();
    for n in 0..ROUNDS {
        shop.buys(&format!("cs_stop{n}"), &format!("s{n}@example.com"), NOW);
        shop.buys(&format!("cs_again{n}"), &format!("r{n}@example.com"), NOW);
    }
    shop.run("2026-10-01T01:00:00Z").exits(0);
    for n in 0..ROUNDS {
        let now = format!("2026-10-02T{:02}:{:02}:00Z", n / 12, n % 12 * 5);
        let (stop, again) = (format!("s{n}@example.com"), format!("cs_again{n}"));
        // Something to record for the run as well.
        let new = format!(
            r#"{{"id":"evt_n{n}","type":"checkout.completed","session":"cs_new{n}","email":"n{n}@example.com","paid_at":"2026-10-01T20:00:00Z"}}"#
        );
        shop.write("new.jsonl", new);
        let children = [
            shop.spawn(&["mark-stopped", &stop, "--now", &now]),
            shop.spawn(&["run", "--now", &now, "--wait", "60", "--events", "new.jsonl"]),
            shop.spawn(&["mark-repurchase", &again, "--now", &now]),
        ];
        for child in children {
            let ran = Ran::of(&child.wait_with_output().unwrap());
            assert_eq!(ran.code, 0, "part {part} round {n}: {} {}", ran.stdout, ran.stderr);
        }
    }
    shop.run("2026-10-02T12:00:00Z").exits(0);
    shop.run("2026-10-04T00:00:00Z").exits(0);
    for n in 0..ROUNDS {
        assert_eq!(
            shop.steps(&format!("cs_stop{n}")),
            ["sent", "stopped", "stopped", "stopped"],
            "part {part} {n}"
        );
        let again = ["sent", "repurchase", "repurchase", "repurchase"];
        assert_eq!(shop.steps(&format!("cs_again{n}")), again, "part {part} {n}");
        assert_eq!(shop.step(&format!("cs_new{n}"), "d0"), "sent", "part {part} {n}");
    }
    assert_eq!(shop.outbox().len(), 3 * ROUNDS, "each d0 once, and no d3 to anybody");
}

#[test]
fn c020_a_stop_said_while_a_run_is_in_the_middle_of_its_list_holds_or_says_that_it_waited() {
    let shop = Shop::new();
    for n in 0..100 {
        shop.buys(&format!("cs_{n:02}"), &format!("b{n}@example.com"), NOW);
    }
    let run = shop.spawn(&["run", "--now", "2026-10-01T01:00:00Z", "--events", "events.jsonl"]);
    while shop.outbox().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // The last of the list.
    let stop = shop.spawn(&["mark-stopped", "b99@example.com", "--now", "2026-10-01T01:00:00Z"]);
    let stop = Ran::of(&stop.wait_with_output().unwrap()).exits(0);
    let when_it_came_back = shop.outbox();
    Ran::of(&run.wait_with_output().unwrap()).exits(0);
    let waited = stop.stderr.contains("waiting for another command to end");
    assert!(waited || !when_it_came_back.contains(&"pp:cs_99:d0".to_owned()), "{}", stop.stderr);
    // From when it came back nothing more is sent.
    assert_eq!(shop.outbox(), when_it_came_back, "a mail left after the stop was said to be set");
    shop.run("2026-10-04T01:00:00Z").exits(0);
    assert_eq!(shop.step("cs_99", "d3"), "stopped");
    assert_eq!(shop.step("cs_98", "d3"), "sent");
}

#[test]
fn a_stop_for_the_future_and_a_checkout_that_waits_can_be_looked_up() {
    let shop = Shop::new();
    shop.stepmail(&["mark-stopped", "zed@example.com", "--now", "2026-10-01T00:00:00Z"]).exits(1);
    shop.stepmail(&["show", "zed@example.com"]).exits(0).says("buyer stopped (asked)");
    shop.stepmail(&["mark-stopped", "cs_7", "--now", "2026-10-01T00:00:00Z"]).exits(1);
    shop.stepmail(&["show", "cs_7"]).exits(0).says("is stopped when it comes");
    shop.buys("cs_ahead", "a@example.com", "2026-10-02T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(1);
    shop.stepmail(&["show", "cs_ahead"]).exits(0).says("waits for its date");
    shop.stepmail(&["mark-stopped", "cs_ahead", "--now", "2026-10-01T02:00:00Z"]).exits(0);
    assert!(shop.run("2026-10-02T01:00:00Z").exits(0).mails().is_empty());
    assert_eq!(shop.steps("cs_ahead"), ["stopped", "stopped", "stopped", "stopped"]);
}

#[test]
fn a_dry_run_of_a_mark_says_the_same_and_changes_not_one_byte() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", NOW);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let before = shop.everything();
    let mark = ["mark-stopped", "a@example.com", "--now", "2026-10-02T00:00:00Z"];
    let dry = shop.stepmail(&[&mark[..], &["--dry-run"]].concat()).exits(0).says("nothing was changed");
    assert_eq!(shop.everything(), before);
    let real = shop.stepmail(&mark).exits(0).says("the next run closes d3 of cs_1: stopped");
    assert!(dry.stdout.ends_with(&real.stdout), "{}\n{}", dry.stdout, real.stdout);
}

#[test]
fn r16_an_outcome_is_noted_and_changes_no_mail_and_its_lack_is_unknown() {
    let shop = Shop::new();
    for (session, email) in [("cs_1", "a@example.com"), ("cs_2", "b@example.com"), ("cs_3", "c@example.com")]
    {
        shop.buys(session, email, NOW);
    }
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let mark = |who: &str| {
        shop.stepmail(&["mark-outcome", who, "--reason", "won a prize", "--now", "2026-10-02T00:00:00Z"])
            .exits(0)
    };
    mark("cs_1").says("reached the goal").says("the next is d3 of cs_1");
    mark("b@example.com").says("it changes no mail");
    assert_eq!(shop.purchase("cs_1")["outcome"]["reason"], "won a prize");
    for (who, outcome) in [
        ("cs_1", "outcome: reached (won a prize)"),
        ("cs_2", "outcome: reached (won a prize)"),
        ("cs_3", "outcome: unknown"),
    ] {
        let shown = shop.stepmail(&["show", who, "--now", "2026-10-02T01:00:00Z"]).exits(0).says(outcome);
        assert!(!shown.stdout.contains("not reached"), "{}", shown.stdout);
    }
    let status = shop.stepmail(&["status", "--now", "2026-10-02T01:00:00Z"]).exits(0);
    assert_eq!(status.stdout.matches("outcome: reached (won a prize)").count(), 2, "{}", status.stdout);
    assert_eq!(
        shop.run("2026-10-04T00:00:00Z").exits(0).mails().len(),
        3,
        "all three are asked where they stand"
    );
}

#[test]
fn who_looks_is_told_of_people_noted_for_the_future_and_of_a_run_that_had_nothing_to_do() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", NOW);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let at = "2026-10-02T00:00:00Z";
    shop.stepmail(&["mark-started", "new@example.com", "--now", at]).exits(1);
    shop.stepmail(&["mark-repurchase", "cs_new", "--reason", "by phone", "--now", at]).exits(1);
    let see = |args: &[&str]| shop.stepmail(&[args, &["--now", "2026-10-03T01:00:00Z"]].concat()).exits(0);
    see(&["show", "cs_new"]).says("cs_new counts as a repurchase when it comes").says(": by phone)");
    see(&["show", "new@example.com"]).says("nothing bought yet; a purchase starts its mails");
    see(&["status"]).says("people and purchases that are not known yet: 2");
    shop.stepmail(&["mark-stopped", "new@example.com", "--now", at]).exits(1);
    see(&["show", "new@example.com"]).says("a purchase is closed as stopped");
    // Nothing to record: only the mark knows of this run.
    shop.run("2026-10-02T03:00:00Z").exits(0);
    let before = shop.read("ledger.json");
    shop.run("2026-10-02T04:00:00Z").exits(0);
    assert_eq!(shop.read("ledger.json"), before, "the story needs a run that recorded nothing");
    see(&["status"]).says("last run 2026-10-02T04:00:00Z");
    // A message id that is no address is looked for.
    shop.stepmail(&["show", "abc@x", "--now", at]).exits(1).says("abc@x is not in");
}

#[test]
fn with_q_who_looks_sees_only_what_waits_for_a_person_and_old_news_is_left_out() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", NOW).event("{broken");
    shop.run("2026-10-01T01:00:00Z").exits(1);
    let see = |now: &str, args: &[&str]| shop.stepmail(&[args, &["--now", now]].concat()).exits(0).stdout;
    let (soon, late) = ("2026-10-01T02:00:00Z", "2026-11-10T00:00:00Z");
    assert!(see(soon, &["status"]).contains("for you to know"));
    for quiet in [&["status", "-q"][..], &["show", "cs_1", "-q"]] {
        assert_eq!(see(soon, quiet), "", "{quiet:?}");
    }
    assert!(!see(late, &["status"]).contains("for you to know"), "told, and forty days old");
    assert!(see(late, &["status", "--all"]).contains("for you to know"));
    shop.edit(|ledger| {
        ledger["buyers"][0]["purchases"][0]["steps"]["d3"] =
            json!({ "state": "closed", "at": "2026-10-05T00:00:00Z", "reason": "unknown_result" });
        let mut unknown = ledger["matters"][0].clone();
        unknown["kind"] = "unknown_result".into();
        unknown["subject"] = "cs_1.d3".into();
        unknown["text"] = "nobody knows".into();
        ledger["matters"].as_array_mut().unwrap().push(unknown);
    });
    assert!(see(late, &["status", "-q"]).contains("nobody knows"), "unsettled, however old");
    assert!(see(late, &["show", "cs_1", "-q"]).contains("stepmail resolve pp:cs_1:d3"));
}

#[test]
fn c019_who_opts_out_by_address_after_the_second_mail_gets_none_of_the_others() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", NOW).buys("cs_2", "b@example.com", NOW);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.run("2026-10-04T01:00:00Z").exits(0);
    shop.event(r#"{"id":"evt_no","type":"stop","email":"A@Example.com","reason":"unsubscribed","at":"2026-10-05T00:00:00Z"}"#);
    let ran = shop.run("2026-10-08T01:00:00Z").exits(0);
    assert_eq!(
        (ran.mails(), ran.closed()),
        (vec!["pp:cs_2:d7 sent".into()], vec!["cs_1 d7 stopped".into(), "cs_1 d14 stopped".into()])
    );
    shop.stepmail(&["show", "cs_1", "--now", "2026-10-08T02:00:00Z"]).exits(0).says("unsubscribed");
    assert_eq!(shop.run("2026-10-15T01:00:00Z").exits(0).mails(), ["pp:cs_2:d14 sent"]);
}
