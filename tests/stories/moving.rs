//! A new laptop, a backup that was put back, a copy that runs beside the first, a trial that becomes real.

use std::fs;

use serde_json::json;

use crate::shop::{Ran, Shop};

const PAID: &str = "2026-10-01T00:00:00Z";

/// What a seller copies to another machine: the settings and the ledger, and not the state folder.
fn moved(shop: &Shop) -> Shop {
    let other = Shop::bare();
    for name in ["stepmail.toml", "ledger.json", "ledger.json.bak", "events.jsonl"] {
        if let Ok(content) = fs::read(shop.path(name)) {
            other.write(name, content);
        }
    }
    other
}

fn adopt(shop: &Shop, now: &str, how: &[&str]) -> Ran {
    shop.stepmail(&[&["adopt", "--now", now], how].concat())
}

fn closed_between(text: &str) -> bool {
    text.contains("from 2026-10-01T01:00:00Z to 2026-10-09T00:00:00Z")
}

/// Two buyers; the first got d0 before the backup, d3 and d7 after it, and the second bought after it.
fn a_backup_is_put_back() -> Shop {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let backup = shop.read("ledger.json");
    shop.run("2026-10-04T01:00:00Z").exits(0);
    shop.buys("cs_2", "b@example.com", "2026-10-07T00:00:00Z");
    shop.run("2026-10-08T01:00:00Z").exits(0);
    assert_eq!(shop.outbox().len(), 4);
    shop.write("ledger.json", backup);
    // The outbox keeps one file per key and would hide a second mail; another mail service would not.
    fs::remove_dir_all(shop.path("outbox")).unwrap();
    shop
}

#[test]
fn r12_a_new_laptop_goes_on_where_the_old_one_stood() {
    let old = Shop::new();
    old.buys("cs_1", "a@example.com", PAID);
    old.run("2026-10-01T01:00:00Z").exits(0);
    let new = moved(&old);
    drop(old);
    let ran = new.run("2026-10-04T01:00:00Z").exits(1).says("stepmail adopt --newest");
    assert_eq!((ran.notices(), ran.mails().len()), (vec!["other_installation".to_owned()], 0));

    let before = new.kept();
    adopt(&new, "2026-10-04T01:10:00Z", &[])
        .exits(1)
        .says("only you can know")
        .says("--newest")
        .says("--older");
    adopt(&new, "2026-10-04T01:10:00Z", &["--newest", "--dry-run"]).exits(0).says("nothing was changed");
    assert_eq!(new.kept(), before);
    let adopted = adopt(&new, "2026-10-04T01:10:00Z", &["--newest"]).exits(0);
    adopted.says("goes on where it stood").says("the next run has 1 mails to send");
    assert_eq!(new.run("2026-10-04T02:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    let ledger = new.read("ledger.json");
    adopt(&new, "2026-10-04T02:10:00Z", &["--newest"]).exits(0).says("nothing to adopt");
    assert_eq!(new.read("ledger.json"), ledger, "twice is once");
}

#[test]
fn r12_a_stop_said_before_the_first_run_on_a_new_laptop_is_missed_if_the_backup_is_put_back() {
    let old = Shop::new();
    old.buys("cs_1", "a@example.com", PAID);
    old.run("2026-10-01T01:00:00Z").exits(0);
    let new = moved(&old);
    drop(old);
    adopt(&new, "2026-10-04T01:00:00Z", &["--newest"]).exits(0);
    new.stepmail(&["mark-stopped", "a@example.com", "--now", "2026-10-04T01:10:00Z"]).exits(0);
    new.write("ledger.json", new.read("ledger.json.bak"));
    let ran = new.run("2026-10-04T02:00:00Z").exits(1);
    assert_eq!((ran.notices(), ran.mails().len()), (vec!["restored".to_owned()], 0));
}

#[test]
fn r12_the_old_copy_that_is_started_again_beside_the_new_one_is_noticed() {
    let old = Shop::new();
    old.buys("cs_1", "a@example.com", PAID);
    old.run("2026-10-01T01:00:00Z").exits(0);
    let new = moved(&old);
    let refused = adopt(&new, "2026-10-04T01:00:00Z", &["--newest"]).exits(1);
    refused.says("is still there").says(old.path("ledger.json").canonicalize().unwrap().to_str().unwrap());
    new.run("2026-10-04T01:00:00Z").exits(1).says("both mail the buyers");
    old.rename("ledger.json", "ledger-moved-away.json");
    adopt(&new, "2026-10-04T01:10:00Z", &["--newest"]).exits(0);
    assert_eq!(new.run("2026-10-04T02:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn c077_a_copy_of_the_folder_on_the_same_machine_does_not_mail_beside_the_first() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let copy = moved(&shop);
    // Both have the same state folder, as two folders of one user have.
    let state = format!("state_dir = {:?}\n", shop.path("state"));
    copy.write("stepmail.toml", shop.read("stepmail.toml").replace("state_dir = \"state\"\n", &state));
    let ran = copy.run("2026-10-04T01:00:00Z").exits(1).says("one of the two is a copy");
    assert!(ran.mails().is_empty());
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    assert!(copy.run("2026-10-04T02:00:00Z").exits(1).mails().is_empty());
    assert!(copy.outbox().is_empty());
}

#[test]
fn a_folder_that_is_renamed_is_no_copy() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    fs::create_dir(shop.path("shop")).unwrap();
    for name in ["stepmail.toml", "ledger.json", "ledger.json.bak", "state", "events.jsonl"] {
        shop.rename(name, &format!("shop/{name}"));
    }
    let args = ["run", "--json", "--config", "shop/stepmail.toml", "--now", "2026-10-04T01:00:00Z"];
    assert_eq!(shop.stepmail(&args).exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn c062_an_adopted_backup_sends_nothing_twice_and_says_what_may_have_left() {
    let shop = a_backup_is_put_back();
    let now = "2026-10-09T00:00:00Z";
    shop.run("2026-10-08T02:00:00Z").exits(1).says("stepmail adopt");
    adopt(&shop, now, &["--newest"]).exits(1).says("a newer version of this ledger ran here");
    let before = shop.kept();
    let dry = adopt(&shop, now, &["--dry-run"]).exits(0);
    assert_eq!(shop.kept(), before);
    let adopted =
        adopt(&shop, now, &[]).exits(0).says("pp:cs_1:d3 pp:cs_1:d7").says("hand in the events since");
    assert!(closed_between(&adopted.stdout), "{}", adopted.stdout);
    assert!(dry.stdout.ends_with(&adopted.stdout), "{}\n{}", dry.stdout, adopted.stdout);
    assert_eq!(shop.steps("cs_1"), ["sent", "unknown_result", "unknown_result", "pending"]);
    let ledger = shop.read("ledger.json");
    adopt(&shop, now, &[]).exits(0).says("nothing to adopt");
    assert_eq!(shop.read("ledger.json"), ledger, "twice is once");

    // The events are handed in again. The second buyer's d0 left before the ledger was lost.
    let ran = shop.run("2026-10-09T01:00:00Z").exits(1).hides_addresses();
    assert!(ran.mails().is_empty(), "{}", ran.stdout);
    assert_eq!(ran.notices(), ["adopted"]);
    ran.says("stepmail resolve pp:cs_2:d0");
    assert_eq!(shop.steps("cs_2"), ["unknown_result", "pending", "pending", "pending"]);
    assert_eq!(
        shop.notices().len(),
        2,
        "the guard; the closed steps together with the purchase that was new"
    );
    // What could not have left goes on, and keeps two days away from what may have left.
    assert!(shop.run("2026-10-10T23:00:00Z").exits(0).mails().is_empty());
    assert_eq!(shop.run("2026-10-11T00:00:00Z").exits(0).mails(), ["pp:cs_2:d3 sent"]);
    assert_eq!(shop.run("2026-10-15T00:00:00Z").exits(0).mails(), ["pp:cs_2:d7 sent", "pp:cs_1:d14 sent"]);
    // A purchase made after that is like any other.
    shop.buys("cs_3", "c@example.com", "2026-10-15T00:30:00Z");
    assert_eq!(shop.run("2026-10-15T01:00:00Z").exits(0).mails(), ["pp:cs_3:d0 sent"]);
}

#[test]
fn r12_a_backup_on_a_new_machine_sends_nothing_twice() {
    let old = a_backup_is_put_back();
    let new = moved(&old);
    drop(old);
    new.run("2026-10-09T00:00:00Z").exits(1).says("--older");
    adopt(&new, "2026-10-09T00:00:00Z", &["--older"]).exits(0).says("pp:cs_1:d3 pp:cs_1:d7");
    let ran = new.run("2026-10-09T01:00:00Z").exits(1);
    assert!(ran.mails().is_empty(), "{}", ran.stdout);
}

#[test]
fn c062_what_a_dead_runs_journal_tells_of_is_not_lost_with_its_ledger() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", PAID).buys("cs_2", "b@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let backup = shop.read("ledger.json");
    shop.stepmail(&["mark-started", "cs_9", "--now", "2026-10-02T00:00:00Z"]).exits(1);
    // A run dies when it is about to write the ledger: its mails are in the journal alone.
    let args = ["run", "--now", "2026-10-04T01:00:00Z"];
    assert_ne!(shop.under_strace(&args, "linkat", "signal=KILL:when=1"), Some(0));
    assert_eq!(shop.read("ledger.json.journal").matches("\"fact\":\"sent\"").count(), 2);
    shop.write("ledger.json", backup);
    shop.run("2026-10-04T02:00:00Z").exits(1).says("stepmail adopt");
    let journal = shop.read("ledger.json.journal");
    adopt(&shop, "2026-10-04T02:10:00Z", &["--dry-run"]).exits(0);
    assert_eq!(shop.read("ledger.json.journal"), journal);
    adopt(&shop, "2026-10-04T02:10:00Z", &[]).exits(0);
    assert_eq!((shop.step("cs_1", "d3"), shop.step("cs_2", "d3")), ("sent".into(), "sent".into()));
    assert!(!shop.path("ledger.json.journal").exists());
    assert!(shop.run("2026-10-04T03:00:00Z").exits(0).mails().is_empty());
}

#[test]
fn an_adoption_that_is_killed_has_happened_or_has_not() {
    let mut kills = 0;
    for syscall in ["rename", "renameat2", "linkat", "unlink", "fsync", "fdatasync", "pwrite64"] {
        for k in 1.. {
            let shop = a_backup_is_put_back();
            let when = format!("killed at {syscall} {k}");
            let died = shop.under_strace(
                &["adopt", "--now", "2026-10-09T00:00:00Z"],
                syscall,
                &format!("signal=KILL:when={k}"),
            ) != Some(0);
            let ran = shop.run("2026-10-09T00:30:00Z");
            assert!(ran.mails().is_empty(), "{when}: {}", ran.stdout);
            if ran.notices().contains(&"restored".to_owned()) {
                adopt(&shop, "2026-10-09T00:40:00Z", &[]).exits(0);
            }
            let ran = shop.run("2026-10-09T01:00:00Z");
            assert!(ran.mails().is_empty(), "{when}: {}", ran.stdout);
            assert_eq!(shop.steps("cs_1"), ["sent", "unknown_result", "unknown_result", "pending"], "{when}");
            assert_eq!(shop.step("cs_2", "d0"), "unknown_result", "{when}");
            if !died {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 8, "only {kills} kills");
}

#[test]
fn an_adoption_with_a_clock_that_fell_back_is_refused() {
    let shop = a_backup_is_put_back();
    let before = shop.kept();
    adopt(&shop, "2026-09-30T00:00:00Z", &[]).exits(1).says("set the clock");
    // Nor with one that ran ahead: it would close what is still due.
    adopt(&shop, "2036-09-30T00:00:00Z", &[]).exits(1).says("--accept-clock");
    assert_eq!(shop.kept(), before);
}

#[test]
fn r12_a_backup_from_before_a_clock_ran_ahead_can_be_gone_on_with() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let backup = shop.read("ledger.json");
    // Four weeks ahead for one run: all is closed as stale.
    shop.run("2026-10-30T00:00:00Z").exits(0);
    shop.write("ledger.json", backup);
    let now = "2026-10-02T00:00:00Z";
    shop.run(now).exits(1);
    shop.run_with(now, &["--accept-clock"]).exits(1);
    adopt(&shop, now, &[]).exits(1).says("--accept-clock");
    adopt(&shop, now, &["--accept-clock"]).exits(0).says("the next run has no mail to send");
    assert_eq!(shop.steps("cs_1"), ["sent", "pending", "pending", "pending"]);
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn r12_a_stop_lifted_after_the_backup_does_not_bring_the_mail_a_second_time() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.stepmail(&["mark-stopped", "cs_1", "--now", "2026-10-02T00:00:00Z"]).exits(0);
    shop.run("2026-10-02T01:00:00Z").exits(0);
    let backup = shop.read("ledger.json");
    shop.stepmail(&["resume", "cs_1", "--now", "2026-10-03T00:00:00Z"]).exits(0);
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    shop.write("ledger.json", backup);
    fs::remove_dir_all(shop.path("outbox")).unwrap();
    adopt(&shop, "2026-10-05T00:00:00Z", &[]).exits(0);
    let said = shop.stepmail(&["resume", "cs_1", "--now", "2026-10-05T01:00:00Z"]).exits(0);
    said.says("d3 of cs_1 stays closed: an attempt of it may have arrived")
        .says("stepmail resolve pp:cs_1:d3");
    assert!(shop.run("2026-10-05T02:00:00Z").exits(0).mails().is_empty());
    assert_eq!(shop.run("2026-10-08T01:00:00Z").exits(0).mails(), ["pp:cs_1:d7 sent"]);
}

#[test]
fn r12_what_this_machine_ran_later_is_not_called_older_than_a_rescued_copy() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let rescued = shop.read("ledger.json");
    shop.run("2026-10-04T01:00:00Z").exits(0);
    fs::remove_dir_all(shop.path("outbox")).unwrap();
    // Another machine ran it on, and counted higher.
    let mut other: serde_json::Value = serde_json::from_str(&rescued).unwrap();
    other["generation"] = 9.into();
    other["last_run"]["installation"] = "0".repeat(32).into();
    shop.write("ledger.json", other.to_string());
    shop.run("2026-10-04T02:00:00Z").exits(1);
    let before = shop.kept();
    adopt(&shop, "2026-10-04T02:10:00Z", &["--newest"])
        .exits(1)
        .says("ran here later, at 2026-10-04T01:00:00Z");
    assert_eq!(shop.kept(), before);
    adopt(&shop, "2026-10-04T02:10:00Z", &["--older"]).exits(0).says("pp:cs_1:d3");
    assert!(shop.run("2026-10-04T03:00:00Z").exits(0).mails().is_empty());
}

#[test]
fn r12_newest_said_by_mistake_can_be_taken_back_before_the_next_run() {
    let old = a_backup_is_put_back();
    let new = moved(&old);
    drop(old);
    adopt(&new, "2026-10-09T00:00:00Z", &["--newest"]).exits(0);
    adopt(&new, "2026-10-09T00:10:00Z", &["--older"]).exits(0).says("pp:cs_1:d3 pp:cs_1:d7");
    let ledger = new.read("ledger.json");
    adopt(&new, "2026-10-09T00:20:00Z", &["--older"]).exits(0).says("nothing to adopt");
    assert_eq!(new.read("ledger.json"), ledger, "twice is once");
    assert!(new.run("2026-10-09T01:00:00Z").mails().is_empty());
}

#[test]
fn r7_what_is_said_to_a_copy_is_said_to_nobody_and_the_answer_says_so() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.write("copy/ledger.json", shop.read("ledger.json"));
    let before = shop.kept();
    for command in ["mark-stopped", "mark-started", "mark-outcome", "resume"] {
        let hand = [command, "cs_1", "--ledger", "copy/ledger.json", "--now", "2026-10-02T00:00:00Z"];
        shop.stepmail(&hand).exits(1).says("one of the two is a copy").says("nothing was changed");
    }
    let ingest = ["ingest", "events.jsonl", "--ledger", "copy/ledger.json", "--now", "2026-10-02T00:00:00Z"];
    shop.stepmail(&ingest).exits(1).says("one of the two is a copy");
    let mut after = shop.kept();
    after.remove(&shop.path("copy/ledger.json.lock"));
    assert_eq!(after, before, "a hand on the copy changed something, be it the mark of both");
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);

    // On another machine nobody can see the first; what is said is kept, and where it does not reach is said.
    let other = moved(&shop);
    drop(shop);
    let said = other.stepmail(&["mark-stopped", "cs_1", "--now", "2026-10-05T00:00:00Z"]).exits(1);
    said.says("cs_1 is stopped").says("the next run is held: another installation ran this ledger last");
    let ingest = ["ingest", "events.jsonl", "--now", "2026-10-05T00:00:00Z"];
    other.stepmail(&ingest).exits(1).says("the next run is held");
}

#[test]
fn r12_a_trial_becomes_real_and_its_mails_count_as_a_person_says() {
    let trial = || {
        let shop = Shop::new();
        shop.buys("cs_1", "a@example.com", PAID).buys("cs_old", "b@example.com", "2026-09-01T00:00:00Z");
        shop.run("2026-10-01T01:00:00Z").exits(0);
        shop.run("2026-10-04T01:00:00Z").exits(0);
        shop.run("2026-10-10T01:00:00Z").exits(0);
        assert_eq!(shop.steps("cs_1"), ["sent", "sent", "sent", "pending"]);
        shop
    };
    let kept = trial();
    let said = adopt(&kept, "2026-10-10T02:00:00Z", &["--outbox", "keep", "--json"]).exits(0).json();
    assert_eq!((&said["changed"], &said["dry_run"], &said["exit"]), (&json!(true), &json!(false), &json!(0)));
    assert_eq!(kept.steps("cs_1"), ["sent", "sent", "sent", "pending"]);
    assert!(kept.run("2026-10-10T03:00:00Z").exits(0).mails().is_empty());
    adopt(&kept, "2026-10-10T04:00:00Z", &["--outbox", "reopen"]).exits(0).says("no mail on record");

    let reopened = trial();
    let before = reopened.kept();
    adopt(&reopened, "2026-10-10T02:00:00Z", &["--outbox", "reopen", "--dry-run"]).exits(0);
    assert_eq!(reopened.kept(), before);
    let said = adopt(&reopened, "2026-10-10T02:00:00Z", &["--outbox", "reopen"]).exits(0);
    said.says("3 mails are to be sent again").says("still `outbox`");
    // d3's window has ended: it is not sent late.
    assert_eq!(reopened.steps("cs_1"), ["pending", "sent", "pending", "pending"]);
    assert_eq!(reopened.step("cs_old", "d0"), "pending");
}
