//! Clocks that are wrong, copies, backups put back, state folders and disks that cannot be written.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::crash::was_planned_before_it_left;
use crate::shop::{Ran, STEPMAIL, Shop, skipped};

/// A guard holds this run: nothing is sent, closed or recorded, and what was told is the only thing written.
#[track_caller]
fn held(shop: &Shop, now: &str, kind: &str) -> Ran {
    let (ledger, mails) = (shop.read("ledger.json"), shop.outbox());
    let marks = marks(shop);
    let ran = shop.run(now).exits(1).hides_addresses();
    assert_eq!(ran.notices(), [kind]);
    assert!(ran.mails().is_empty() && ran.closed().is_empty(), "{}", ran.stdout);
    assert!(
        ran.json()["stopped_early"].as_str().is_some_and(|text| text.contains("nothing is closed or sent"))
    );
    assert!(
        shop.read("ledger.json") == ledger
            && shop.outbox() == mails
            && !shop.path("ledger.json.journal").exists()
    );
    assert_eq!(marks, self::marks(shop), "the mark was changed");
    ran
}

fn marks(shop: &Shop) -> Vec<(PathBuf, Vec<u8>)> {
    let told = |path: &PathBuf| path.to_string_lossy().ends_with(".told.json");
    let in_marks = |path: &PathBuf| path.starts_with(shop.path("state/marks")) && !told(path);
    shop.everything().into_iter().filter(|(path, _)| in_marks(path)).collect()
}

#[test]
fn c024_a_clock_that_fell_back_sends_nothing_and_is_told_once() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T00:30:00Z").exits(0);
    shop.run("2026-10-04T00:30:00Z").exits(0);
    shop.run("2026-10-08T00:30:00Z").exits(0);
    // The clock of two weeks ago; a purchase comes in meanwhile.
    shop.buys("cs_2", "b@example.com", "2026-09-24T00:00:00Z");
    held(&shop, "2026-09-24T00:30:00Z", "clock_behind").says("--accept-clock");
    held(&shop, "2026-09-24T01:30:00Z", "clock_behind");
    held(&shop, "2026-10-08T00:24:59Z", "clock_behind");
    assert_eq!(shop.notices().len(), 1, "told once");
    // Right again, but for what two readings of one clock may differ by.
    assert_eq!(shop.run("2026-10-08T00:25:00Z").exits(0).mails(), ["pp:cs_2:d0 sent"]);
    assert_eq!(shop.run("2026-10-15T00:00:00Z").exits(0).mails(), ["pp:cs_2:d14 sent", "pp:cs_1:d14 sent"]);
    held(&shop, "2026-10-01T00:00:00Z", "clock_behind");
    assert_eq!(shop.notices().len(), 2, "it came back: a new matter");
}

#[test]
fn c024_a_quiet_run_is_a_recorded_time_as_well() {
    let shop = Shop::new();
    shop.run("2026-10-01T00:00:00Z").exits(0);
    shop.run("2026-10-10T00:00:00Z").exits(0);
    held(&shop, "2026-10-05T00:00:00Z", "clock_behind");
}

#[test]
fn r12_a_person_can_say_that_the_clock_is_right_after_all() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-20T00:00:00Z").exits(0);
    held(&shop, "2026-10-03T00:00:00Z", "clock_behind");
    let ran = shop.run_with("2026-10-03T00:00:00Z", &["--accept-clock"]).exits(0);
    assert!(ran.mails().is_empty());
    // It holds on: the times that lay ahead were lowered.
    let ran = shop.run("2026-10-03T01:00:00Z").exits(0);
    assert!(ran.notices().is_empty(), "{}", ran.stdout);
}

#[test]
fn r12_a_clock_far_ahead_sends_and_closes_nothing_until_a_person_agrees() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T00:30:00Z").exits(0);
    held(&shop, "2026-11-15T00:30:01Z", "clock_ahead").says("--accept-clock");
    held(&shop, "2036-10-01T00:00:00Z", "clock_ahead");
    assert_eq!(shop.notices().len(), 1, "told once");
    assert_eq!(shop.run("2026-10-04T00:30:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"], "right again");

    held(&shop, "2026-11-18T00:30:01Z", "clock_ahead");
    let ran = shop.run_with("2026-11-18T00:30:01Z", &["--accept-clock"]).exits(0);
    assert_eq!(ran.closed(), ["cs_1 d7 stale", "cs_1 d14 stale"]);
    shop.run("2026-11-18T01:30:00Z").exits(0);

    let other = Shop::new();
    other.run("2026-10-01T00:30:00Z").exits(0);
    other.run("2026-11-15T00:30:00Z").exits(0);
}

#[test]
fn r12_a_clock_before_the_programs_own_release_is_wrong() {
    if Command::new("faketime").arg("--version").stdout(Stdio::null()).status().is_err() {
        skipped("faketime is needed for this story: apt-get install faketime");
        return;
    }
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2020-01-01T00:00:00Z");
    shop.edit(|ledger| ledger["go_live"] = "2019-01-01T00:00:00Z".into());
    let run = |extra: &[&str]| {
        let mut command = Command::new("faketime");
        command
            .args(["-f", "@2020-01-01 01:00:00", STEPMAIL, "run", "--json", "--events", "events.jsonl"])
            .args(extra);
        command.current_dir(shop.path("")).env_clear().env("TZ", "UTC").env("HOME", shop.path(""));
        command.env("PATH", std::env::var("PATH").unwrap());
        Ran::of(&command.output().unwrap())
    };
    let ledger = shop.read("ledger.json");
    for _ in 0..2 {
        let ran = run(&[]).exits(1).says("before this program was released");
        assert!(
            ran.json()["now"].as_str().unwrap().starts_with("2020-01-01T01:0"),
            "faketime does not work here"
        );
        assert_eq!((ran.notices(), ran.mails().len()), (vec!["clock_behind".into()], 0));
    }
    assert!(shop.outbox().is_empty() && shop.read("ledger.json") == ledger);
    assert_eq!(shop.notices().len(), 1, "told once");
    assert_eq!(shop.run("2020-01-01T01:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"], "`--now` is no clock");
}

#[test]
fn c062_a_backup_that_was_put_back_sends_nothing_twice() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let backup = shop.read("ledger.json");
    shop.run("2026-10-04T01:00:00Z").exits(0);
    shop.run("2026-10-08T01:00:00Z").exits(0);
    let newest = shop.read("ledger.json");
    shop.write("ledger.json", &backup);
    held(&shop, "2026-10-08T02:00:00Z", "restored");
    held(&shop, "2026-10-10T02:00:00Z", "restored");
    let accepted = shop.run_with("2026-10-10T02:30:00Z", &["--accept-clock", "--allow", "9"]).exits(1);
    assert!(accepted.mails().is_empty(), "a right clock does not make an old ledger new");
    assert_eq!(shop.read("ledger.json"), backup);
    assert_eq!((shop.notices().len(), shop.outbox().len()), (1, 3), "told once, and nothing new");
    shop.write("ledger.json", &newest);
    assert!(shop.run("2026-10-10T03:00:00Z").exits(0).mails().is_empty());
    assert_eq!(shop.run("2026-10-15T01:00:00Z").exits(0).mails(), ["pp:cs_1:d14 sent"]);
}

#[test]
fn c062_no_hand_command_makes_an_old_ledger_the_newest() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.stepmail(&["ingest", "events.jsonl", "--now", "2026-10-01T00:30:00Z"]).exits(0);
    let backup = shop.read("ledger.json");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    // The outbox is emptied too: if the mail left again it would lie there.
    std::fs::remove_file(shop.path("outbox/pp.cs_1.d0.eml")).unwrap();
    shop.write("ledger.json", &backup);
    held(&shop, "2026-10-01T02:00:00Z", "restored");
    for _ in 0..3 {
        for command in ["mark-started", "mark-stopped", "mark-repurchase"] {
            let refused =
                shop.stepmail(&[command, "nobody@example.com", "--now", "2026-10-01T02:10:00Z"]).exits(1);
            refused.says("put the newest ledger back");
        }
        shop.stepmail(&["ingest", "events.jsonl", "--now", "2026-10-01T02:10:00Z"]).exits(1);
    }
    assert_eq!(shop.read("ledger.json"), backup);
    held(&shop, "2026-10-01T03:00:00Z", "restored");
    assert!(shop.outbox().is_empty(), "the mail left a second time");
}

#[test]
fn what_was_handed_to_a_held_run_is_said_to_be_handed_in_again() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.buys("cs_2", "b@example.com", "2027-02-28T00:00:00Z");
    let held = shop.run("2027-03-01T00:00:00Z").exits(1);
    assert!(held.json()["stopped_early"].as_str().unwrap().contains("hand them in again"));
    let args = ["run", "--now", "2027-03-01T00:00:00Z", "--events", "events.jsonl"];
    shop.stepmail(&args).exits(1).says("hand them in again");
}

#[test]
fn r12_marks_that_cannot_be_kept_are_said_once_and_mails_go_on() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.write("state/marks", "a file where the folder should be");
    let ran = shop.run("2026-10-01T01:00:00Z").exits(1);
    assert_eq!((ran.notices(), ran.mails()), (vec!["no_mark".into()], vec!["pp:cs_1:d0 sent".into()]));
    shop.run("2026-10-01T02:00:00Z").exits(0);
    // The ledger alone says when it ran: once a day.
    let written = shop.read("ledger.json");
    shop.run("2026-10-01T20:00:00Z").exits(0);
    assert_eq!(written, shop.read("ledger.json"));
    shop.run("2026-10-02T02:00:00Z").exits(0);
    assert_eq!(shop.ledger()["last_run"]["at"], "2026-10-02T02:00:00Z");
}

#[test]
fn c062_a_backup_beside_the_journal_of_a_newer_ledger_is_known_without_a_mark() {
    let shop = Shop::new();
    shop.write("state", "in the way of the state folder");
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(1);
    let backup = shop.read("ledger.json");
    shop.run("2026-10-04T01:00:00Z").exits(0);
    // The next run dies with a plan in its journal; then somebody puts the backup back.
    let strace = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"])
        .args(["-e", "inject=fdatasync:signal=KILL:when=2", STEPMAIL, "run", "--now", "2026-10-08T01:00:00Z"])
        .current_dir(shop.path(""))
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let died = strace.expect("strace is needed for this story: apt-get install strace");
    assert!(!died.success() && shop.path("ledger.json.journal").exists(), "it should have died in mid-run");
    shop.write("ledger.json", &backup);
    let ran = shop.run("2026-10-08T02:00:00Z").exits(1);
    assert_eq!((ran.notices(), ran.mails().len()), (vec!["restored".into()], 0));
    assert_eq!(shop.read("ledger.json"), backup);
}

#[test]
fn c077_a_copy_on_another_machine_sends_nothing() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let copy = Shop::new();
    for file in ["ledger.json", "stepmail.toml", "events.jsonl"] {
        copy.write(file, shop.read(file));
    }
    held(&copy, "2026-10-04T01:00:00Z", "other_installation");
    held(&copy, "2026-10-05T03:00:00Z", "other_installation");
    assert_eq!(copy.notices().len(), 1, "told once");
    assert_eq!(
        shop.run("2026-10-04T01:00:00Z").exits(0).mails(),
        ["pp:cs_1:d3 sent"],
        "the right one goes on"
    );
    // The state folder lost is the same as another machine.
    fs::remove_dir_all(shop.path("state")).unwrap();
    held(&shop, "2026-10-08T01:00:00Z", "other_installation");
}

#[test]
fn c076_a_dry_run_meets_the_same_guards_and_writes_nothing() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let backup = shop.read("ledger.json");
    shop.run("2026-10-04T01:00:00Z").exits(0);
    shop.write("ledger.json", backup);
    let before = shop.everything();
    assert_eq!(shop.dry_run("2026-10-08T01:00:00Z").exits(1).notices(), ["restored"]);
    assert_eq!(shop.dry_run("2026-09-08T01:00:00Z").exits(1).notices(), ["clock_behind", "restored"]);
    shop.rename("state", "lost");
    let notices = shop.dry_run("2026-10-08T01:00:00Z").exits(1).notices();
    assert_eq!(notices, ["other_installation"]);
    assert!(!shop.path("state").exists(), "a dry run made a state folder");
    shop.rename("lost", "state");
    assert!(shop.everything() == before);
}

#[test]
fn r12_where_no_mark_can_be_kept_that_is_said_once_and_mails_go_on() {
    let shop = Shop::new();
    shop.write("state", "in the way of the state folder");
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    let ran = shop.run("2026-10-01T01:00:00Z").exits(1).hides_addresses();
    assert_eq!((ran.notices(), ran.mails()), (vec!["no_mark".into()], vec!["pp:cs_1:d0 sent".into()]));
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    assert_eq!(shop.notices().len(), 1, "said once");
    assert_eq!(shop.read("state"), "in the way of the state folder");
    // The ledger alone still knows a clock that fell back.
    assert_eq!(shop.run("2026-10-03T01:00:00Z").exits(1).notices(), ["clock_behind"]);
    fs::remove_file(shop.path("state")).unwrap();
    assert!(shop.run("2026-10-05T01:00:00Z").exits(0).notices().is_empty(), "mended");
}

#[test]
fn what_lies_in_the_state_folder_and_cannot_be_read_is_refused() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    let mark = marks(&shop).pop().unwrap();
    let mark_file = mark.0.strip_prefix(shop.path("")).unwrap().display().to_string();
    let installation = shop.read("state/installation");
    for (file, good) in
        [(mark_file.as_str(), String::from_utf8(mark.1).unwrap()), ("state/installation", installation)]
    {
        for bad in ["", "{", "null", "\u{feff}\u{feff}", "0123", &good[..good.len() / 2]] {
            shop.write(file, bad);
            let before = shop.kept();
            let ran = shop.run("2026-10-04T01:00:00Z").exits(65).says(file).hides_addresses();
            assert!(ran.mails().is_empty() && shop.kept() == before, "{file} {bad:?}");
        }
        shop.write(file, good);
    }
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
}

/// A small disk of our own, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir_all(&at).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "stepmail-story"])
            .arg(&at)
            .stderr(Stdio::null());
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(Self(at));
        }
        skipped("only root can mount the small disk of this story");
        None
    }

    /// Leaves so many bytes free.
    fn fill(&self, free: u64) {
        let room = fs2::available_space(&self.0).unwrap();
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        let zeros = vec![0; usize::try_from(room.saturating_sub(free)).unwrap()];
        std::io::Write::write_all(&mut file, &zeros).unwrap();
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn c064_on_a_full_disk_nothing_is_sent_and_nothing_is_lost() {
    let shop = Shop::new();
    let Some(disk) = SmallDisk::mount(shop.path("data"), "3m") else { return };
    shop.write("data/ledger.json", shop.read("ledger.json"));
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    let run = |now: &str| shop.run_with(now, &["--ledger", "data/ledger.json"]);
    run("2026-10-01T01:00:00Z").exits(0);
    let ledger = shop.read("data/ledger.json");
    // No byte left; one page, which the journal's first lines may take; then less than the room a run asks for.
    for free in [0, 4096, 8192, 65_536, 1_000_000] {
        disk.fill(free);
        let ran = run("2026-10-04T01:00:00Z").exits(73).hides_addresses().says("make room");
        assert!(ran.mails().is_empty(), "{free} bytes free: {}", ran.stdout);
        assert_eq!(shop.outbox(), ["pp:cs_1:d0"], "{free} bytes free");
        assert_eq!(shop.read("data/ledger.json"), ledger, "{free} bytes free");
        disk.empty();
    }
    assert_eq!(run("2026-10-04T02:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
    assert!(run("2026-10-04T03:00:00Z").exits(0).mails().is_empty());
}

#[test]
fn c064_a_disk_that_fills_before_marks_are_written_loses_no_mark_in_silence() {
    let shop = Shop::new();
    let Some(disk) = SmallDisk::mount(shop.path("data"), "3m") else { return };
    shop.write("data/ledger.json", shop.read("ledger.json"));
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run_with("2026-10-01T01:00:00Z", &["--ledger", "data/ledger.json"]).exits(0);
    disk.fill(0);
    let mark = ["mark-stopped", "cs_1", "--ledger", "data/ledger.json", "--now", "2026-10-02T00:00:00Z"];
    shop.stepmail(&mark).exits(73).says("nothing");
    disk.empty();
    shop.stepmail(&mark).exits(0);
    let ran = shop.run_with("2026-10-04T01:00:00Z", &["--ledger", "data/ledger.json"]).exits(0);
    assert_eq!(ran.closed(), ["cs_1 d3 stopped", "cs_1 d7 stopped", "cs_1 d14 stopped"]);
}

#[test]
fn c064_a_full_outbox_defers_the_mail_to_a_later_run() {
    let shop = Shop::new();
    let Some(disk) = SmallDisk::mount(shop.path("outbox"), "1m") else { return };
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    disk.fill(0);
    let ran = shop.run("2026-10-01T01:00:00Z").hides_addresses();
    assert_eq!(ran.mails(), ["pp:cs_1:d0 deferred"], "{}{}", ran.stdout, ran.stderr);
    assert!(shop.outbox().is_empty());
    assert_eq!(shop.step("cs_1", "d0"), "pending");
    disk.empty();
    assert_eq!(shop.run("2026-10-01T02:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(shop.outbox(), ["pp:cs_1:d0"]);
}

#[test]
fn c062_the_backup_put_back_after_a_run_was_killed_anywhere_sends_nothing_twice() {
    let mut kills = 0;
    for syscall in ["rename", "fsync", "unlink"] {
        for k in 1.. {
            let shop = Shop::new();
            shop.edit(|ledger| ledger["ledger_id"] = "0123456789abcdef0123456789abcdef".into());
            shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
            shop.run("2026-10-01T01:00:00Z").exits(0);
            fs::remove_dir_all(shop.path("outbox")).unwrap();
            let args = ["run", "--now", "2026-10-04T01:00:00Z"];
            let died = shop.under_strace(&args, syscall, &format!("signal=KILL:when={k}")) != Some(0);
            if shop.path("ledger.json.bak").exists() {
                fs::copy(shop.path("ledger.json.bak"), shop.path("ledger.json")).unwrap();
            }
            let ran = shop.dry_run("2026-10-04T02:00:00Z");
            if ran.notices() != ["restored"] {
                was_planned_before_it_left(&shop, &format!("killed at {syscall} {k}"));
            }
            if !died {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 5, "only {kills} kills");
}

#[test]
fn r12_a_ledger_fresh_from_init_is_guarded_from_its_first_mail_on() {
    let shop = Shop::bare();
    shop.stepmail(&["init", "--go-live", "2026-09-01T00:00:00Z"]).exits(0);
    shop.set("");
    let backup = shop.read("ledger.json");
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.write("ledger.json", backup);
    held(&shop, "2026-10-01T02:00:00Z", "restored");
}

#[test]
fn r4_init_beside_the_backup_of_a_ledger_that_is_gone_makes_no_empty_one() {
    let shop = Shop::new();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.rename("ledger.json", "ledger-old.json");
    shop.stepmail(&["init"]).exits(65).says("put that ledger back");
    assert!(!shop.path("ledger.json").exists());
}
