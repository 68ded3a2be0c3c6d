//! One command at a time: who holds the lock, who waits, and when a lock that nobody vouches for is taken over.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::shop::{Ran, Shop, skipped};

const LOCK: &str = "ledger.json.lock";
const D3_DUE: &str = "2026-10-04T01:00:00Z";

fn shop_with_d3_due() -> Shop {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop
}

/// A story, how its lock file is made from a record of ours, and who is said to hold it.
type Foreign<'a> = (&'a str, &'a dyn Fn(String) -> String, &'a str);

/// Makes the lock look as if it had been written so many minutes ago; less than none lies ahead.
#[expect(clippy::disallowed_methods, reason = "the age of a lock is measured on the machine's own clock")]
fn age(shop: &Shop, minutes: i64) {
    let by = Duration::from_secs(minutes.unsigned_abs() * 60 + 2);
    let now = SystemTime::now();
    let then = if minutes < 0 { now + by } else { now - by };
    File::options().append(true).open(shop.path(LOCK)).unwrap().set_modified(then).unwrap();
}

/// The run did nothing at all.
#[track_caller]
fn did_nothing(shop: &Shop, ran: Ran, code: i32) -> Ran {
    let ran = ran.exits(code).hides_addresses().says("nothing was sent");
    assert!(ran.mails().is_empty() && shop.outbox().len() == 1, "{}", ran.stdout);
    assert_eq!(shop.step("cs_1", "d3"), "pending");
    ran
}

#[test]
fn c004_c009_a_run_beside_a_living_one_says_who_holds_the_lock_and_how_long() {
    let shop = Shop::new();
    let buyers = 150;
    for n in 0..buyers {
        shop.buys(&format!("cs_{n}"), &format!("b{n}@example.com"), "2026-10-01T00:00:00Z");
    }
    let args = ["run", "--json", "--now", "2026-10-01T01:00:00Z", "--events", "events.jsonl"];
    let living = shop.spawn(&args);
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &living.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    let began = Instant::now();
    while shop.outbox().is_empty() && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    signal("-STOP");
    let before = shop.kept();
    assert!(shop.outbox().len() < buyers, "the run was over too soon for this story");
    let busy = shop.run("2026-10-01T01:00:00Z").exits(75).hides_addresses();
    let busy = busy.says(LOCK).says(&format!("process {}", living.id())).says("last sign of life");
    assert!(busy.mails().is_empty());
    let hand = ["mark-stopped", "cs_1", "--wait", "0", "--now", "2026-10-01T01:00:00Z"];
    shop.stepmail(&hand).exits(75).says(&format!("process {}", living.id()));
    // Who only looks needs no lock.
    shop.stepmail(&["status", "--now", "2026-10-01T01:00:00Z"]).exits(0);
    shop.dry_run("2026-10-01T01:00:00Z");
    assert!(shop.kept() == before, "something was changed beside the living run");
    signal("-CONT");
    let ended = Ran::of(&living.wait_with_output().unwrap()).exits(0);
    assert_eq!((ended.mails().len(), shop.outbox().len()), (buyers, buyers));
    shop.stepmail(&hand).exits(0);
}

#[test]
fn c050_a_living_holder_that_is_silent_for_over_half_an_hour_is_for_a_person() {
    let shop = shop_with_d3_due();
    let holder = File::open(shop.path(LOCK)).unwrap();
    fs2::FileExt::lock_exclusive(&holder).unwrap();
    shop.write(LOCK, shop.read(LOCK).replace("\"free\"", "\"held\""));
    did_nothing(&shop, shop.run(D3_DUE), 75);
    age(&shop, 29);
    did_nothing(&shop, shop.run(D3_DUE), 75).says("29 min");
    age(&shop, 31);
    did_nothing(&shop, shop.run(D3_DUE), 1).says("it hangs").says("31 min");
    fs2::FileExt::unlock(&holder).unwrap();
    assert_eq!(shop.run(D3_DUE).exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn c067_a_lock_left_by_a_run_of_ours_that_died_is_taken_over_at_once() {
    let shop = shop_with_d3_due();
    shop.write(LOCK, shop.read(LOCK).replace("\"free\"", "\"held\""));
    let ran = shop.run(D3_DUE).exits(0).says("did not end as it should").says("taken over");
    assert_eq!(ran.mails(), ["pp:cs_1:d3 sent"]);
    assert!(!shop.run("2026-10-04T02:00:00Z").exits(0).stderr.contains("taken over"), "said once");
}

#[test]
fn c009_c067_c068_a_lock_of_unknown_make_holds_for_half_an_hour_and_no_longer() {
    let of_another_machine = |record: String| {
        let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
        record["installation"] = "00000000000000000000000000000000".into();
        record["host"] = "other-machine".into();
        record["state"] = "held".into();
        record.to_string()
    };
    let rows: &[Foreign<'_>] = &[
        ("empty", &|_| String::new(), "unknown"),
        ("text", &|_| "locked by hand, do not touch\n".into(), "unknown"),
        ("a pid", &|_| "1\n".into(), "unknown"),
        ("pid 0", &|_| "0".into(), "unknown"),
        ("NUL bytes", &|_| "\0".repeat(1024), "unknown"),
        ("half a record", &|record| record[..40].into(), "unknown"),
        ("long", &|_| "x".repeat(100_000), "unknown"),
        ("another machine", &of_another_machine, "other-machine"),
    ];
    for (story, make, who) in rows {
        let shop = shop_with_d3_due();
        shop.write(LOCK, make(shop.read(LOCK)));
        for minutes in [0, 5, 29] {
            age(&shop, minutes);
            let before = shop.everything();
            did_nothing(&shop, shop.run(D3_DUE), 75).says(LOCK).says(who).says(&format!("{minutes} min"));
            assert!(shop.everything() == before, "{story}: the lock of another was changed");
        }
        age(&shop, 31);
        let ran = shop.run(D3_DUE).exits(0).says("taken over").says("31 min");
        assert_eq!(ran.mails(), ["pp:cs_1:d3 sent"], "{story}");
        assert!(!shop.run("2026-10-04T02:00:00Z").exits(0).stderr.contains("taken over"), "{story}");
    }
}

#[test]
fn c067_a_lock_dated_ahead_is_not_stuck_for_ever() {
    let shop = shop_with_d3_due();
    shop.write(LOCK, "of a machine whose clock is wrong");
    age(&shop, -60 * 24 * 365);
    did_nothing(&shop, shop.run(D3_DUE), 75).says(LOCK);
    did_nothing(&shop, shop.run(D3_DUE), 75);
    // Half an hour later. The state folder remembers since when the lock was seen so; the story turns that back.
    let seen = fs::read_dir(shop.path("state")).unwrap().map(|entry| entry.unwrap().file_name());
    let seen = seen.map(|name| name.into_string().unwrap()).find(|name| name.starts_with("seen-lock-"));
    let seen = format!("state/{}", seen.expect("since when must be remembered"));
    let mut memory: serde_json::Value = serde_json::from_str(&shop.read(&seen)).unwrap();
    let since = chrono::DateTime::parse_from_rfc3339(memory["since"].as_str().unwrap()).unwrap();
    memory["since"] = (since - chrono::TimeDelta::minutes(31))
        .to_utc()
        .to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
        .into();
    shop.write(&seen, memory.to_string());
    assert_eq!(shop.run(D3_DUE).exits(0).says("taken over").mails(), ["pp:cs_1:d3 sent"]);
}

#[test]
fn c067_a_lock_that_is_no_file_is_refused_and_named() {
    let shop = shop_with_d3_due();
    fs::remove_file(shop.path(LOCK)).unwrap();
    fs::create_dir(shop.path(LOCK)).unwrap();
    did_nothing(&shop, shop.run(D3_DUE), 73).says(LOCK);
    fs::remove_dir(shop.path(LOCK)).unwrap();
    symlink("elsewhere", shop.path(LOCK)).unwrap();
    did_nothing(&shop, shop.run(D3_DUE), 73).says(LOCK);
    assert!(!shop.path("elsewhere").exists());
    fs::remove_file(shop.path(LOCK)).unwrap();
    let fifo = Command::new("mkfifo").arg(shop.path(LOCK)).status();
    if fifo.is_ok_and(|status| status.success()) {
        let child = shop
            .command(&["run", "--json", "--now", D3_DUE])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        did_nothing(&shop, Ran::of(&child.unwrap().wait_with_output().unwrap()), 73).says(LOCK);
        fs::remove_file(shop.path(LOCK)).unwrap();
    } else {
        skipped("no mkfifo here");
    }
    // Removed while nobody runs: a new one is made, and all goes on.
    assert_eq!(shop.run(D3_DUE).exits(0).mails(), ["pp:cs_1:d3 sent"]);
    fs::remove_file(shop.path(LOCK)).unwrap();
    assert!(shop.run("2026-10-04T02:00:00Z").exits(0).mails().is_empty());
    assert!(shop.path(LOCK).exists());
}

#[test]
fn c020_a_hand_waits_for_a_command_to_end_and_says_so() {
    let shop = shop_with_d3_due();
    let holder = File::open(shop.path(LOCK)).unwrap();
    fs2::FileExt::lock_exclusive(&holder).unwrap();
    let stop = ["mark-stopped", "cs_1", "--now", "2026-10-02T00:00:00Z"];
    let began = Instant::now();
    shop.stepmail(&[&stop[..], &["--wait", "0"]].concat()).exits(75).says("nothing was sent");
    assert!(began.elapsed() < Duration::from_secs(5), "at once");
    shop.stepmail(&[&stop[..], &["--wait", "1"]].concat()).exits(75).says("waiting for another command");
    assert!(began.elapsed() >= Duration::from_secs(1), "it did not wait");
    let patient = shop.spawn(&stop);
    std::thread::sleep(Duration::from_millis(600));
    fs2::FileExt::unlock(&holder).unwrap();
    Ran::of(&patient.wait_with_output().unwrap()).exits(0).says("waiting for another command");
    let ran = shop.run(D3_DUE).exits(0);
    assert_eq!(ran.closed(), ["cs_1 d3 stopped", "cs_1 d7 stopped", "cs_1 d14 stopped"]);
}

#[test]
fn two_names_of_one_ledger_have_one_lock() {
    let shop = shop_with_d3_due();
    symlink("ledger.json", shop.path("link.json")).unwrap();
    let holder = File::open(shop.path(LOCK)).unwrap();
    fs2::FileExt::lock_exclusive(&holder).unwrap();
    let through_the_link = || shop.run_with(D3_DUE, &["--ledger", "link.json"]);
    did_nothing(&shop, through_the_link(), 75);
    fs2::FileExt::unlock(&holder).unwrap();
    assert_eq!(through_the_link().exits(0).mails(), ["pp:cs_1:d3 sent"]);
    assert!(!shop.path("link.json.lock").exists());
    assert!(shop.path("link.json").is_symlink(), "the link was replaced by a file");
    assert!(shop.run("2026-10-04T02:00:00Z").exits(0).mails().is_empty());
}

#[test]
fn what_was_piped_into_a_run_that_found_the_lock_held_is_said_to_be_handed_in_again() {
    let shop = shop_with_d3_due();
    let holder = File::open(shop.path(LOCK)).unwrap();
    fs2::FileExt::lock_exclusive(&holder).unwrap();
    let event = r#"{"id":"e2","type":"checkout.completed","session":"cs_2","email":"b@example.com","paid_at":"2026-10-04T00:30:00Z"}"#;
    let run = |how: &[&str]| {
        shop.stepmail_reading(event, &[&["run", "--now", D3_DUE, "--events", "-"], how].concat())
    };
    let busy = run(&["--json"]).exits(75);
    let told = busy.json()["stopped_early"].as_str().unwrap().to_owned();
    assert!(told.contains("standard input") && told.contains("hand them in again"), "{told}");
    run(&[]).exits(75).says("hand them in again");
    run(&["-q"]).exits(75).says("hand them in again");
    let ingest = ["ingest", "-", "--wait", "0", "--now", D3_DUE];
    shop.stepmail_reading("", &ingest).exits(75).says("hand them in again");
    fs2::FileExt::unlock(&holder).unwrap();
    assert!(run(&["--json"]).exits(0).mails().contains(&"pp:cs_2:d0 sent".to_owned()));
}
