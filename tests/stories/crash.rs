//! A process that dies, one that comes second, and what the next run makes of it.

use std::time::{Duration, Instant};

use crate::shop::{Ran, Shop};

#[test]
fn c004_two_runs_at_once_send_each_mail_once() {
    for round in 0..100 {
        let shop = Shop::new();
        for n in 0..3 {
            shop.buys(&format!("cs_{n}"), &format!("buyer{n}@example.com"), "2026-10-01T00:00:00Z");
        }
        let args = ["run", "--json", "--now", "2026-10-01T01:00:00Z", "--events", "events.jsonl"];
        let (one, two) = (shop.spawn(&args), shop.spawn(&args));
        let ended = [one, two].map(|child| Ran::of(&child.wait_with_output().unwrap()));
        let sent: usize =
            ended.iter().map(|ran| ran.mails().iter().filter(|mail| mail.ends_with(" sent")).count()).sum();
        assert_eq!(sent, 3, "round {round}");
        for ran in ended {
            assert!(ran.code == 0 || ran.code == 75, "round {round}: {} {}", ran.code, ran.stderr);
        }
        assert_eq!(shop.outbox().len(), 3);
    }
}

#[test]
fn c001_killed_after_any_mail_each_mail_is_there_once() {
    let buyers = 8;
    for k in 1..=buyers {
        let shop = Shop::new();
        for n in 0..buyers {
            shop.buys(&format!("cs_{n}"), &format!("buyer{n}@example.com"), "2026-10-01T00:00:00Z");
        }
        let mut child =
            shop.spawn(&["run", "--json", "--now", "2026-10-01T01:00:00Z", "--events", "events.jsonl"]);
        let patience = Instant::now();
        while shop.outbox().len() < k && patience.elapsed() < Duration::from_secs(20) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let before: Vec<_> = shop
            .everything()
            .into_iter()
            .filter(|(path, _)| path.extension() == Some("eml".as_ref()))
            .collect();
        assert!(before.len() >= k.min(buyers), "the kill came before mail {k}");
        was_planned_before_it_left(&shop, &format!("killed at mail {k}"));

        let recovery = shop.run("2026-10-01T02:00:00Z").exits(0);
        assert_eq!(shop.outbox().len(), buyers, "after a kill at mail {k}");
        for n in 0..buyers {
            assert_eq!(shop.step(&format!("cs_{n}"), "d0"), "sent", "after a kill at mail {k}");
        }
        let after = shop.everything();
        assert!(
            before.iter().all(|(path, mail)| after[path] == *mail),
            "a mail that lay in the outbox was changed"
        );
        assert!(recovery.mails().iter().all(|mail| mail.ends_with(" sent")));
        assert!(shop.run("2026-10-01T03:00:00Z").exits(0).mails().is_empty());
    }
}

/// Every mail that left is known to the ledger as planned or sent, whenever the process died. The outbox keeps one file
/// per key, so that it would hide a mail that was sent before its plan was saved; another mail service would not.
pub(crate) fn was_planned_before_it_left(shop: &Shop, when: &str) {
    let status =
        shop.stepmail(&["status", "--json", "--all", "--now", "2026-10-01T01:00:10Z"]).exits(0).json();
    let purchases = status["listed"].as_array().unwrap();
    for key in shop.outbox() {
        let (session, step) = key.strip_prefix("pp:").unwrap().split_once(':').unwrap();
        let purchase = purchases.iter().find(|purchase| purchase["session"] == session);
        let steps = purchase.and_then(|purchase| purchase["steps"].as_array());
        let state =
            steps.and_then(|steps| steps.iter().find(|line| line["step"] == step)).map(|line| &line["state"]);
        let known = state.and_then(|state| state.as_str());
        assert!(
            matches!(known, Some("planned" | "sent")),
            "{when}: {key} left, and the ledger says {known:?}"
        );
    }
}

/// Runs once under strace, dying at the `k`-th call of `syscall`.
fn dies_at(shop: &Shop, syscall: &str, k: usize) -> bool {
    run_under_strace(shop, syscall, &format!("signal=KILL:when={k}")) != Some(0)
}

/// Runs once under strace, which does this to that syscall. Returns the exit code, if it came to one.
fn run_under_strace(shop: &Shop, syscall: &str, what: &str) -> Option<i32> {
    let args = ["run", "--json", "--now", "2026-10-01T01:00:00Z", "--events", "events.jsonl"];
    shop.under_strace(&args, syscall, what)
}

#[test]
fn r8_a_plan_that_cannot_be_saved_is_not_sent() {
    // What was taken in is the journal's first record and comes with its birth; the plan is the first append to it.
    for error in ["EIO", "ENOSPC"] {
        let shop = Shop::new();
        shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
        assert_eq!(run_under_strace(&shop, "fdatasync", &format!("error={error}:when=1")), Some(73));
        assert!(shop.outbox().is_empty(), "{error}: sent without a plan");
        assert_eq!(shop.run("2026-10-01T02:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
    }
}

#[test]
fn r8_a_result_that_cannot_be_saved_ends_the_sending_and_the_next_run_asks_with_the_same_key() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z").buys(
        "cs_2",
        "b@example.com",
        "2026-10-01T00:10:00Z",
    );
    assert_eq!(run_under_strace(&shop, "fdatasync", "error=EIO:when=2"), Some(73));
    assert_eq!(shop.outbox(), ["pp:cs_1:d0"], "the second buyer's mail left after a result was lost");
    let first = shop.mail("cs_1", "d0");
    assert_eq!(shop.run("2026-10-01T02:00:00Z").exits(0).mails(), ["pp:cs_2:d0 sent", "pp:cs_1:d0 sent"]);
    assert_eq!(shop.mail("cs_1", "d0"), first);
}

#[test]
fn c001_killed_at_any_write_sync_or_rename_nothing_is_lost_and_nothing_doubled() {
    for syscall in ["fdatasync", "fsync", "rename", "renameat2", "linkat", "pwrite64", "unlink"] {
        for k in 1.. {
            let shop = Shop::new();
            shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z").buys(
                "cs_2",
                "b@example.com",
                "2026-10-01T00:30:00Z",
            );
            let died = dies_at(&shop, syscall, k);
            was_planned_before_it_left(&shop, &format!("died at {syscall} {k}"));
            shop.run("2026-10-01T01:00:30Z").exits(0);
            assert_eq!(shop.outbox(), ["pp:cs_1:d0", "pp:cs_2:d0"], "died at {syscall} {k}");
            for session in ["cs_1", "cs_2"] {
                assert_eq!(shop.step(session, "d0"), "sent", "died at {syscall} {k}");
            }
            assert!(shop.run("2026-10-01T02:00:00Z").exits(0).mails().is_empty(), "died at {syscall} {k}");
            if !died {
                break;
            }
            assert!(k < 200, "{syscall} never ends");
        }
    }
}

#[test]
fn a_quiet_run_on_ten_thousand_purchases_writes_no_byte_of_the_ledger() {
    use std::os::unix::fs::MetadataExt;
    let shop = Shop::new();
    shop.edit(|ledger| {
        let closed = |reason: &str| serde_json::json!({ "state": "closed", "at": "2026-09-30T00:00:00Z", "reason": reason });
        let sent = serde_json::json!({ "state": "sent", "at": "2026-09-01T01:00:00Z", "message_id": "<m@example.com>", "via": "outbox" });
        let buyers = (0..10_000).map(|n| {
            serde_json::json!({ "address": format!("b{n}@example.com"), "purchases": [{
                "session": format!("cs_{n}"), "email": format!("b{n}@example.com"), "paid_at": "2026-09-01T00:00:00Z", "kind": "first",
                "steps": { "d0": sent, "d3": closed("stale"), "d7": closed("stale"), "d14": closed("stale") } }] })
        });
        ledger["buyers"] = buyers.collect();
    });
    let identity = || {
        let meta = std::fs::metadata(shop.path("ledger.json")).unwrap();
        (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size())
    };
    // The first run gives a hand-made ledger its id.
    shop.run("2026-09-30T23:00:00Z").exits(0);
    std::fs::remove_file(shop.path("ledger.json.bak")).unwrap();
    let before = identity();
    shop.run("2026-10-01T00:00:00Z").exits(0);
    assert_eq!(before, identity());
    assert!(!shop.path("ledger.json.journal").exists());
    assert!(!shop.path("ledger.json.bak").exists());
}
