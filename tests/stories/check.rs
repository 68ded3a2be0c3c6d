//! `check`: the seller asks whether the next run will do what it should, and nothing is touched by asking.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::Value;

use crate::shop::{Ran, Shop, skipped};

/// Half an hour after the last run.
const NOW: &str = "2026-10-02T01:30:00Z";

const OWN: &str = r#"state_dir = "state"

[mail]
from = "Tea Shop <hello@tea.example>"
reply_to = "hello@tea.example"
operator = "owner@tea.example"
business = "Tea Shop"
business_address = "1 Tea Street, Uji"
language = "en"

[stripe]
livemode = false

[vars]
login_url = "https://tea.example/login"
"#;

/// A shop with its own settings, a buyer, and a run half an hour ago.
fn healthy() -> Shop {
    let shop = Shop::new();
    shop.write("stepmail.toml", OWN);
    shop.buys("cs_1", "a@buyer.example", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.run("2026-10-02T01:00:00Z").exits(0);
    shop
}

/// Asks, and makes sure that asking changed nothing.
#[track_caller]
fn check_with(shop: &Shop, now: &str, more: &[&str]) -> Ran {
    let before = shop.everything();
    let ran = shop.stepmail(&[&["check", "--now", now], more].concat()).hides_addresses();
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert!(shop.everything() == before, "a check changed something");
    ran
}

#[track_caller]
fn check(shop: &Shop) -> Ran {
    check_with(shop, NOW, &[])
}

/// Asserts a line with that beginning which says all of these.
#[track_caller]
fn has(ran: &Ran, verdict: &str, item: &str, says: &[&str]) {
    let begins = format!("{verdict:<8} {item:<10} ");
    let found = ran
        .stdout
        .lines()
        .any(|line| line.starts_with(&begins) && says.iter().all(|said| line.contains(said)));
    assert!(found, "no `{verdict}` of {item} with {says:?} in\n{}{}", ran.stdout, ran.stderr);
}

/// Asserts that this is the only line that is not ok.
#[track_caller]
fn alone(ran: &Ran) {
    let bad: Vec<&str> =
        ran.stdout.lines().filter(|line| !line.starts_with("ok ") && !line.starts_with("- ")).collect();
    assert_eq!(bad.len(), 1, "{bad:?}");
}

#[test]
fn a_healthy_shop_is_ok_line_by_line_and_quiet_where_that_is_asked() {
    let shop = healthy();
    let ran = check(&shop).exits(0);
    for item in [
        "settings",
        "folder",
        "state",
        "lock",
        "ledger",
        "clock",
        "disk",
        "templates",
        "spool",
        "outbox",
        "last run",
        "matters",
    ] {
        has(&ran, "ok", item, &[]);
    }
    assert_eq!((ran.stdout.lines().count(), ran.stderr.as_str()), (12, ""), "{}", ran.stdout);
    has(&ran, "ok", "ledger", &["generation", "buyers 1, purchases 1"]);
    has(&ran, "ok", "last run", &["30 min ago"]);
    let quiet = check_with(&shop, NOW, &["-q"]).exits(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    // The same questions for a program.
    let json = check_with(&shop, NOW, &["--json"]).exits(0).json();
    assert_eq!((&json["schema"], &json["exit"]), (&Value::from("stepmail-check/1"), &Value::from(0)));
    assert_eq!(json["now"], NOW);
    let lines = json["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 12);
    assert!(lines.iter().all(|line| line["verdict"] == "ok" && line["text"].is_string()), "{json}");
    assert_eq!(lines[10]["item"], "last_run");
}

#[test]
fn a_new_shop_hears_what_is_left_to_do_and_no_fault() {
    let shop = Shop::bare();
    shop.stepmail(&["init", "--now", "2026-10-01T00:00:00Z"]).exits(0);
    let ran = check(&shop).exits(0);
    let says = ["mail.from", "mail.business_address", "vars.login_url", "stepmail.toml", "before mails go"];
    has(&ran, "warning", "settings", &says);
    has(&ran, "warning", "last run", &["never", "Every hour"]);
    has(&ran, "ok", "state", &["first run"]);
    has(&ran, "ok", "lock", &["free"]);
    assert!(!shop.path(".local").exists() && !shop.path("outbox").exists());
    // Not even settings.
    let bare = Shop::bare();
    let ran = check(&bare).exits(66);
    has(&ran, "fault", "ledger", &["no ledger at", "stepmail init"]);
    for item in ["disk", "last run", "matters"] {
        has(&ran, "-", item, &["not looked at"]);
    }
    has(&ran, "ok", "templates", &["built in", "ja and en"]);
    assert!(bare.everything().is_empty());
}

#[test]
fn broken_settings_are_named_and_end_with_78() {
    let shop = healthy();
    shop.write("stepmail.toml", OWN.replace("reply_to", "replay_to"));
    let ran = check(&shop).exits(78);
    has(&ran, "fault", "settings", &["stepmail.toml", "line 5", "replay_to", "mend"]);
    assert_eq!(ran.stdout.lines().count(), 1);
    check_with(&shop, NOW, &["-q"]).exits(78).says("replay_to");
    let json = check_with(&shop, NOW, &["--json"]).exits(78).json();
    assert_eq!((&json["lines"][0]["verdict"], &json["exit"]), (&Value::from("fault"), &Value::from(78)));
}

#[test]
fn a_template_that_would_hold_its_mails_is_named_and_the_others_are_not() {
    let shop = healthy();
    shop.write("stepmail.toml", format!("{OWN}\n[templates]\ndir = \"texts\"\n"));
    for step in ["d0", "d3", "d7", "d14"] {
        shop.write(&format!("texts/{step}.en.md"), "Subject: Hello\n\nHello {{ name }}.\n");
    }
    let ran = check(&shop).exits(0);
    has(&ran, "ok", "templates", &["texts", "in en"]);
    shop.write("texts/d7.en.md", "Subject: Hello\n\nHello {{ nmae }}.\n");
    let ran = check(&shop).exits(1);
    has(&ran, "fault", "templates", &["d7.en.md", "nmae", "held until it is mended"]);
    alone(&ran);
    fs::remove_file(shop.path("texts/d14.en.md")).unwrap();
    has(&check(&shop).exits(1), "fault", "templates", &["d14.en.md"]);
    // A run says the same.
    assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(1).notices(), ["template_fault", "template_fault"]);
}

#[test]
fn a_ledger_that_a_run_would_refuse_ends_with_the_runs_own_code() {
    let shop = healthy();
    let good = shop.read("ledger.json");
    let ledger = shop.path("ledger.json");
    // Damaged.
    shop.write("ledger.json", good.replace("\"go_live\"", "\"go_life\""));
    let ran = check(&shop).exits(65);
    has(&ran, "fault", "ledger", &["go_life", "mend the file"]);
    alone(&ran);
    has(&ran, "ok", "state", &[]);
    has(&ran, "ok", "lock", &[]);
    // Gone.
    fs::remove_file(&ledger).unwrap();
    let ran = check(&shop).exits(66);
    has(&ran, "fault", "ledger", &["put it back"]);
    alone(&ran);
    shop.write("ledger.json", &good);
    // C063: read-only, or with a second name.
    fs::set_permissions(&ledger, fs::Permissions::from_mode(0o400)).unwrap();
    let ran = check(&shop).exits(73);
    has(&ran, "fault", "folder", &["read-only", "chmod u+w"]);
    alone(&ran);
    fs::set_permissions(&ledger, fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&ledger, shop.path("other.json")).unwrap();
    has(&check(&shop).exits(73), "fault", "folder", &["second name"]);
    fs::remove_file(shop.path("other.json")).unwrap();
    check(&shop).exits(0);
}

#[test]
fn c077_a_synchronised_folder_is_a_fault_and_the_rest_is_looked_at_all_the_same() {
    let shop = healthy();
    shop.write("Dropbox/.keep", "");
    shop.rename("ledger.json", "Dropbox/ledger.json");
    let ran = check_with(&shop, NOW, &["--ledger", "Dropbox/ledger.json"]).exits(73);
    has(&ran, "fault", "folder", &["Dropbox", "allow_shared_folder"]);
    has(&ran, "ok", "ledger", &["buyers 1"]);
    alone(&ran);
    shop.write("stepmail.toml", format!("allow_shared_folder = true\n{OWN}"));
    check_with(&shop, NOW, &["--ledger", "Dropbox/ledger.json"]).exits(0);
}

#[test]
fn c063_what_a_run_with_sudo_left_behind_is_named_before_it_keeps_a_run_away() {
    let shop = healthy();
    let me = |args: &[&str]| {
        let home = shop.path("");
        // The program lies where another user may not look: a copy of it is in the shop.
        let mut command = Command::new(shop.path("stepmail"));
        command.args(args).current_dir(&home).env_clear().env("HOME", &home).uid(12_345).gid(12_345);
        Ran::of(&command.output().unwrap()).hides_addresses()
    };
    fs::copy(crate::shop::STEPMAIL, shop.path("stepmail")).unwrap();
    let give = |name: &str, owner: &str| {
        let owner = format!("{owner}:{owner}");
        let chown = Command::new("chown").args(["-R", &owner]).arg(shop.path(name)).output();
        chown.is_ok_and(|ran| ran.status.success())
    };
    if !give("", "12345") {
        skipped("only root can give files to somebody else");
        return;
    }
    // Another user's shop, looked at as root.
    has(&check(&shop).exits(73), "fault", "folder", &["belongs to user 12345", "owner"]);
    let ask = ["check", "--now", NOW];
    let ran = me(&ask).exits(0);
    assert!(ran.stdout.lines().all(|line| line.starts_with("ok ")), "{}", ran.stdout);
    for (file, verdict, item, code) in [
        ("ledger.json", "fault", "folder", 73),
        ("ledger.json.lock", "fault", "lock", 73),
        ("outbox", "fault", "outbox", 75),
        ("state", "warning", "state", 0),
    ] {
        assert!(give(file, "0"));
        let before = shop.everything();
        let ran = me(&ask).exits(code);
        has(&ran, verdict, item, &[file]);
        assert!(shop.everything() == before, "{file}");
        assert!(give(file, "12345"));
    }
    // The folder itself.
    fs::set_permissions(shop.path(""), fs::Permissions::from_mode(0o500)).unwrap();
    let ran = me(&ask).exits(73);
    has(&ran, "fault", "folder", &["cannot write", "can be written"]);
    fs::set_permissions(shop.path(""), fs::Permissions::from_mode(0o700)).unwrap();
    me(&ask).exits(0);
}

#[test]
fn c064_a_full_disk_is_told_before_a_run_meets_it() {
    let shop = healthy();
    shop.write("small/.keep", "");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=512k", "stepmail-story"])
        .arg(shop.path("small"))
        .output();
    if !mount.is_ok_and(|ran| ran.status.success()) {
        skipped("only root can mount the small disk of this story");
        return;
    }
    shop.write("small/ledger.json", shop.read("ledger.json"));
    fs::remove_file(shop.path("ledger.json")).unwrap();
    let before = shop.everything();
    let args = ["check", "--now", NOW, "--ledger", "small/ledger.json"];
    let ran = shop.stepmail(&args);
    let after = shop.everything();
    let _ = Command::new("umount").arg(shop.path("small")).status();
    let ran = ran.exits(73);
    has(&ran, "fault", "disk", &["bytes are free", "make room"]);
    alone(&ran);
    assert!(before == after);
}

#[test]
fn r12_what_the_guards_hold_a_run_for_is_a_fault_with_their_own_words() {
    let shop = healthy();
    let ran = check_with(&shop, "2026-09-20T00:00:00Z", &[]).exits(1);
    has(&ran, "fault", "clock", &["something was recorded here", "--accept-clock"]);
    let ran = check_with(&shop, "2026-12-20T00:00:00Z", &[]).exits(1);
    has(&ran, "fault", "clock", &["the last run was"]);
    has(&ran, "warning", "last run", &["Every hour"]);
    // A copy on another machine, or a lost state folder.
    shop.rename("state", "state-away");
    let ran = check(&shop).exits(1);
    has(&ran, "fault", "state", &["another installation", "nothing is closed or sent"]);
    fs::remove_dir_all(shop.path("state")).ok();
    shop.rename("state-away", "state");
    // A backup that was put back.
    let newest = shop.read("ledger.json");
    shop.edit(|ledger| ledger["generation"] = 1.into());
    let ran = check(&shop).exits(1);
    has(&ran, "fault", "ledger", &["older than the last one", "put the newest ledger back"]);
    alone(&ran);
    shop.write("ledger.json", newest);
    check(&shop).exits(0);
    // An installation id that cannot be read is refused, and told once.
    shop.write("state/installation", "mine\n");
    let ran = check(&shop).exits(65);
    has(&ran, "fault", "state", &["32 hex digits"]);
    alone(&ran);
}

#[test]
fn r12_a_clock_before_the_release_is_a_fault() {
    let shop = healthy();
    let out = Command::new("faketime")
        .args(["-f", "@2020-01-01 00:00:00", crate::shop::STEPMAIL, "check"])
        .current_dir(shop.path(""))
        .env("HOME", shop.path(""))
        .output();
    let Ok(out) = out else { return skipped("no faketime here") };
    has(&Ran::of(&out).exits(1), "fault", "clock", &["set the clock"]);
}

#[test]
fn the_age_of_the_last_run_tells_whether_the_schedule_is_on() {
    let shop = healthy();
    // That run had nothing to record: the mark alone knows of it.
    assert_eq!(shop.ledger()["last_run"]["at"], "2026-10-01T01:00:00Z");
    has(&check_with(&shop, "2026-10-02T04:00:00Z", &[]).exits(0), "ok", "last run", &["3 h ago"]);
    let ran = check_with(&shop, "2026-10-02T04:00:01Z", &[]).exits(0);
    has(&ran, "warning", "last run", &["2026-10-02T01:00:00Z", "is the schedule on?"]);
    alone(&ran);
    check_with(&shop, "2026-10-02T04:00:01Z", &["-q"]).exits(0).says("warning  last run");
}

#[test]
fn what_waits_for_a_person_is_counted() {
    let shop = healthy();
    shop.event(r#"{"id":"evt_x","type":"checkout.completed","session":"cs_1","email":"b@buyer.example","paid_at":"2026-10-01T00:00:00Z"}"#);
    assert_eq!(shop.run("2026-10-02T01:10:00Z").exits(1).notices(), ["conflict"]);
    let ran = check(&shop).exits(0);
    // News that was told asks for nothing more.
    has(&ran, "ok", "matters", &["nothing waits", "1 were told", "stepmail status"]);
    let closed =
        serde_json::json!({ "state": "closed", "at": "2026-10-02T01:00:00Z", "reason": "unknown_result" });
    shop.edit(|ledger| {
        ledger["buyers"][0]["purchases"][0]["steps"]["d3"] = closed;
        let mut unknown = ledger["matters"][0].clone();
        unknown["kind"] = "unknown_result".into();
        unknown["subject"] = "cs_1.d3".into();
        ledger["matters"].as_array_mut().unwrap().push(unknown);
    });
    let ran = check(&shop).exits(0);
    has(&ran, "warning", "matters", &["2 for a person", "0 of them not told", "1 to be settled"]);
    alone(&ran);
}

#[test]
fn what_a_run_would_not_take_from_the_spool_is_a_fault_and_what_waits_is_said() {
    let shop = healthy();
    shop.write("spool/half.json", "{\"id\":");
    has(&check(&shop).exits(0), "ok", "spool", &["1 file(s) without a line break", "5 minutes"]);
    fs::remove_file(shop.path("spool/half.json")).unwrap();
    std::os::unix::fs::symlink("elsewhere", shop.path("spool/link.json")).unwrap();
    fs::create_dir(shop.path("spool/more")).unwrap();
    let ran = check(&shop).exits(65);
    has(&ran, "fault", "spool", &["link.json", "is a link"]);
    has(&ran, "fault", "spool", &["more", "is a folder"]);
    // A run says and ends with the same.
    shop.run("2026-10-02T01:10:00Z").exits(65).says("is a link").says("is a folder");
    fs::remove_file(shop.path("spool/link.json")).unwrap();
    fs::remove_dir(shop.path("spool/more")).unwrap();
    shop.write("spool/broken.json", "{broken\n");
    let ran = check(&shop).exits(65);
    has(&ran, "fault", "spool", &["broken.json", "a run moves it to `rejected`"]);
    alone(&ran);
    assert!(shop.path("spool/broken.json").exists(), "a check takes nothing");
}

#[test]
fn c067_the_lock_of_a_dead_command_is_no_trouble_and_that_of_another_machine_is_named() {
    let shop = healthy();
    let free = shop.read("ledger.json.lock");
    // Its process has ended: the story waited for it.
    shop.write("ledger.json.lock", free.replace("\"free\"", "\"held\""));
    let ran = check(&shop).exits(0);
    has(&ran, "ok", "lock", &["did not end as it should", "the next one takes over"]);
    let mut record: Value = serde_json::from_str(&free).unwrap();
    record["state"] = "held".into();
    record["pid"] = std::process::id().into();
    let living = record.to_string();
    shop.write("ledger.json.lock", &living);
    let ran = check(&shop).exits(0);
    has(&ran, "ok", "lock", &["a command is at work", &format!("process {}", std::process::id())]);
    // Half an hour without a sign of life.
    let touch =
        Command::new("touch").args(["-d", "31 minutes ago"]).arg(shop.path("ledger.json.lock")).status();
    assert!(touch.unwrap().success());
    let ran = check(&shop).exits(1);
    has(
        &ran,
        "fault",
        "lock",
        &["hangs, or died", &format!("process {}", std::process::id()), "last sign of life 31 min"],
    );
    alone(&ran);
    record["installation"] = "00000000000000000000000000000000".into();
    record["host"] = "other-machine".into();
    for other in [record.to_string(), "locked by hand".to_owned()] {
        shop.write("ledger.json.lock", &other);
        let ran = check(&shop).exits(0);
        has(&ran, "warning", "lock", &["not of this installation", "30 minutes", "no other machine"]);
        alone(&ran);
    }
    fs::remove_file(shop.path("ledger.json.lock")).unwrap();
    fs::create_dir(shop.path("ledger.json.lock")).unwrap();
    has(&check(&shop).exits(73), "fault", "lock", &["regular file", "move it away"]);
}

#[test]
fn a_check_beside_a_running_command_neither_waits_nor_disturbs() {
    let shop = healthy();
    let lock = fs::File::options().read(true).write(true).open(shop.path("ledger.json.lock")).unwrap();
    fs2::FileExt::lock_exclusive(&lock).unwrap();
    check(&shop).exits(0);
    fs2::FileExt::unlock(&lock).unwrap();
    // It never asks for the lock itself: a run that starts meanwhile must not find it busy.
    let trace = shop.path("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "trace=flock,fcntl,openat,connect,rename,unlink,mkdir", "-o"]).arg(&trace);
    strace.arg(crate::shop::STEPMAIL).args(["check", "--now", NOW]).current_dir(shop.path(""));
    match strace.output() {
        Ok(out) if trace.exists() && out.status.success() => {}
        _ => return skipped("no strace here"),
    }
    let calls = shop.read("trace");
    assert!(calls.contains("ledger.json"), "{calls}");
    for call in [
        "flock(",
        "F_SETLK",
        "F_OFD_SETLK",
        "O_WRONLY",
        "O_RDWR",
        "O_CREAT",
        "connect(",
        "rename",
        "unlink",
        "mkdir",
    ] {
        assert!(!calls.contains(call), "{call} in\n{calls}");
    }
}

#[test]
fn a_journal_left_by_a_dead_command_is_told_and_stays_for_the_next_run() {
    let shop = healthy();
    let trace = shop.path("trace");
    let mut strace = Command::new("strace");
    // It dies before its snapshot replaces the ledger: a mark is in the journal alone.
    strace.args(["-f", "-o"]).arg(&trace).args(["-e", "trace=link,linkat"]);
    strace.args(["-e", "inject=link,linkat:signal=KILL:when=1"]);
    strace.arg(crate::shop::STEPMAIL).args(["mark-started", "cs_1", "--now", NOW]).current_dir(shop.path(""));
    let died = strace.output().is_ok_and(|out| !out.status.success());
    if !died || !shop.path("ledger.json.journal").exists() {
        return skipped("strace cannot stop a program here");
    }
    let ran = check(&shop).exits(0);
    has(&ran, "ok", "ledger", &["journal has 1 record(s)", "nothing of them is lost"]);
    has(&ran, "ok", "lock", &["did not end as it should"]);
    shop.run("2026-10-02T02:00:00Z").exits(0);
    assert_eq!(shop.step("cs_1", "d3"), "started");
}

#[test]
fn a_spool_that_is_gone_or_holds_what_could_not_be_read_is_told() {
    let shop = healthy();
    has(&check(&shop).exits(0), "ok", "spool", &["none"]);
    fs::create_dir(shop.path("spool")).unwrap();
    has(&check(&shop).exits(0), "ok", "spool", &["./spool"]);
    shop.write("spool/one.jsonl", "no event\n");
    has(&check(&shop).exits(65), "fault", "spool", &["one.jsonl", "a run moves it"]);
    shop.run("2026-10-02T01:00:00Z").exits(65);
    has(&check(&shop).exits(0), "warning", "spool", &["1 file(s)", "move it back"]);
    shop.write("stepmail.toml", format!("{OWN}\n[spool]\ndir = \"events\"\n"));
    let ran = check(&shop).exits(65);
    has(&ran, "fault", "spool", &["events` is no folder", "make it"]);
}
