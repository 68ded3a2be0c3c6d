//! The README's "Moving and mending": each paragraph is a story here, told with the commands that stand there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::readme::block;
use crate::shop::{Ran, STEPMAIL, Shop};

const PAID: &str = "2026-10-01T00:00:00Z";

/// Types the lines of a block of the README, at `now`; the last one's result counts, and none before it may fail.
fn types(shop: &Shop, marker: &str, now: &str) -> Ran {
    shop.write("bin/stepmail", format!("#!/bin/sh\nexec {STEPMAIL} \"$@\" --now {now}\n"));
    fs::set_permissions(shop.path("bin/stepmail"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", block(marker)]).current_dir(shop.path("")).env_clear();
    shell.env("HOME", shop.path("")).env("PATH", format!("{}:/usr/bin:/bin", shop.path("bin").display()));
    let ran = Ran::of(&shell.output().unwrap());
    fs::remove_dir_all(shop.path("bin")).unwrap();
    ran
}

/// A shop with a spool, as `init` makes it, in which a buyer got d0.
fn shop() -> Shop {
    let shop = Shop::new();
    sells(&shop, "cs_1", "a@example.com", PAID);
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop
}

fn sells(shop: &Shop, session: &str, email: &str, paid_at: &str) {
    let event = format!(
        r#"{{"id":"evt_{session}","type":"checkout.completed","session":"{session}","email":"{email}","paid_at":"{paid_at}"}}"#
    );
    shop.write(&format!("spool/{session}.json"), event + "\n");
}

#[test]
fn a_new_laptop() {
    let old = shop();
    let new = Shop::bare();
    for name in
        ["stepmail.toml", "ledger.json", "ledger.json.bak", "ledger.json.lock", "spool/done/cs_1.json"]
    {
        new.write(name, fs::read(old.path(name)).unwrap());
    }
    old.rename("ledger.json", "ledger.moved.json");
    assert!(new.run("2026-10-04T00:30:00Z").exits(1).mails().is_empty());
    types(&new, "a new laptop", "2026-10-04T01:00:00Z").exits(0).says("would go  d3   cs_1");
    assert_eq!(new.run("2026-10-04T02:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    old.run("2026-10-04T02:00:00Z").exits(66);
}

#[test]
fn a_backup_is_put_back() {
    let shop = shop();
    let backup = shop.read("ledger.json");
    sells(&shop, "cs_2", "b@example.com", "2026-10-03T00:00:00Z");
    shop.run("2026-10-04T01:00:00Z").exits(0);
    shop.write("ledger.json", backup);
    // The outbox keeps one file per key and would hide a second mail; another mail service would not.
    fs::remove_dir_all(shop.path("outbox")).unwrap();
    assert!(shop.run("2026-10-04T02:00:00Z").exits(1).mails().is_empty());
    types(&shop, "a backup", "2026-10-05T00:00:00Z").says("session cs_2 is new to this ledger");
    assert!(shop.outbox().is_empty(), "{:?}", shop.outbox());
    assert_eq!(
        (shop.step("cs_1", "d3"), shop.step("cs_2", "d0")),
        ("unknown_result".into(), "unknown_result".into())
    );
    // One is found in the mail service's list, the other is not.
    types(&shop, "settling", "2026-10-05T01:00:00Z").exits(0);
    assert_eq!((shop.step("cs_1", "d3"), shop.step("cs_2", "d0")), ("sent".into(), "pending".into()));
    assert_eq!(shop.ledger()["matters"], serde_json::json!([]), "nothing is left to tell");
    assert_eq!(shop.run("2026-10-05T02:00:00Z").exits(0).mails(), ["pp:cs_2:d0 sent"]);
    assert!(shop.stepmail(&["status", "--now", "2026-10-05T03:00:00Z"]).exits(0).stdout.contains("cs_2"));
}

#[test]
fn an_edited_ledger() {
    let shop = shop();
    shop.edit(|ledger| ledger["buyers"][0]["stopped"] = serde_json::json!({ "at": PAID, "reason": "asked" }));
    types(&shop, "an edited ledger", "2026-10-01T02:00:00Z").exits(0);
    let edited = shop.read("ledger.json");
    shop.write("ledger.json", edited.replace("\"stopped\"", "\"stoped\""));
    types(&shop, "an edited ledger", "2026-10-01T02:00:00Z")
        .exits(65)
        .says("unknown field `stoped`")
        .says("line ");
    shop.run("2026-10-04T02:00:00Z").exits(65);
    shop.write("ledger.json", edited);
    assert!(shop.run("2026-10-04T02:00:00Z").exits(0).mails().is_empty());
    assert_eq!(shop.steps("cs_1"), ["sent", "stopped", "stopped", "stopped"]);
}

#[test]
fn a_lock_that_is_held() {
    let shop = Shop::new();
    for n in 0..100 {
        sells(&shop, &format!("cs_{n}"), &format!("b{n}@example.com"), PAID);
    }
    let mut hung = shop.spawn(&["run", "--now", "2026-10-01T01:00:00Z"]);
    let began = Instant::now();
    while shop.outbox().is_empty() && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Command::new("kill").args(["-STOP", &hung.id().to_string()]).status().unwrap();
    assert!(shop.outbox().len() < 100, "the run was over too soon for this story");
    let process = format!("process {}", hung.id());
    shop.run("2026-10-01T01:00:00Z").exits(75).says(&process);
    types(&shop, "a lock", "2026-10-01T01:00:00Z").exits(0).says("a command is at work").says(&process);
    // It is ended, and the next run finishes its work.
    hung.kill().unwrap();
    hung.wait().unwrap();
    types(&shop, "a lock", "2026-10-01T01:00:00Z").exits(0).says("the next one takes over");
    shop.run("2026-10-01T01:10:00Z").exits(0);
    assert_eq!(shop.outbox().len(), 100);
}

#[test]
fn a_ledger_that_is_refused() {
    let shop = shop();
    shop.run("2026-10-04T01:00:00Z").exits(0);
    cut_short(&shop);
    fs::remove_dir_all(shop.path("outbox")).unwrap();
    shop.run("2026-10-04T02:00:00Z").exits(65);
    types(&shop, "a refused ledger", "2026-10-04T03:00:00Z")
        .exits(0)
        .says("may have left in that time")
        .says("pp:cs_1:d3");
    assert!(shop.run("2026-10-04T04:00:00Z").exits(0).mails().is_empty());
    assert_eq!(shop.run("2026-10-08T01:00:00Z").exits(0).mails(), ["pp:cs_1:d7 sent"]);
}

#[test]
fn a_stop_that_only_the_refused_ledger_held_is_marked_again() {
    let shop = shop();
    sells(&shop, "cs_2", "b@example.com", PAID);
    shop.run("2026-10-01T02:00:00Z").exits(0);
    let stop = |now| shop.stepmail(&["mark-stopped", "b@example.com", "--now", now]).exits(0);
    stop("2026-10-01T03:00:00Z");
    cut_short(&shop);
    types(&shop, "a refused ledger", "2026-10-02T00:00:00Z").exits(0).says("set again by hand");
    assert!(!shop.read("ledger.json").contains("stopped"), "the story needs a stop that was lost");
    let (_, after) = include_str!("../../README.md").split_once("<!-- a refused ledger -->").unwrap();
    let after = after.split("\n### ").next().unwrap();
    assert!(after.contains("Before the next run, mark again what you marked by hand"));
    stop("2026-10-02T00:30:00Z");
    assert_eq!(shop.run("2026-10-04T02:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    assert_eq!(shop.steps("cs_2"), ["sent", "stopped", "stopped", "stopped"]);
}

/// What a full disk makes of the newest version.
fn cut_short(shop: &Shop) {
    let ledger = shop.read("ledger.json");
    shop.write("ledger.json", &ledger[..ledger.len() / 2]);
}

#[test]
fn a_run_that_a_guard_holds() {
    let shop = shop();
    shop.run("2026-12-01T00:00:00Z").exits(1).says("--accept-clock");
    types(&shop, "a guard", "2026-12-01T01:00:00Z").exits(0);
    assert_eq!(shop.steps("cs_1"), ["sent", "stale", "stale", "stale"]);
}
