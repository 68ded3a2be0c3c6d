//! A spool: other programs put files of events into a folder, and no run loses one or counts one twice.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::crash::was_planned_before_it_left;
use crate::shop::{Ran, STEPMAIL, Shop};

const SOON: &str = "2026-10-01T01:00:00Z";
const LATER: &str = "2026-10-01T02:00:00Z";
/// What strace saw; nothing the program looks at.
const LOG: &str = ".strace";
const RUN: [&str; 6] = ["run", "--json", "--now", SOON, "--events", "spool"];

/// A shop with an empty spool in its settings.
fn shop() -> Shop {
    let shop = Shop::new();
    shop.set("[spool]\ndir = \"spool\"");
    fs::create_dir(shop.path("spool")).unwrap();
    shop
}

/// The event of a purchase, without a line break.
fn sale(session: &str) -> String {
    format!(
        r#"{{"id":"evt_{session}","type":"checkout.completed","session":"{session}","email":"{session}@example.com","paid_at":"2026-10-01T00:00:00Z"}}"#
    )
}

/// Puts a file into the spool as the README asks for: beside, then renamed.
fn put(shop: &Shop, name: &str, content: &str) {
    shop.write("spool/.unfinished", content);
    shop.rename("spool/.unfinished", &format!("spool/{name}"));
}

/// The files below a folder of the spool that do not begin with a dot, by their shown names, sorted.
fn files(shop: &Shop, folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(shop.path(folder)) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

/// Where the files of the spool lie: in itself, claimed, done, rejected.
fn lie(shop: &Shop) -> [Vec<String>; 4] {
    ["spool", "spool/claimed", "spool/done", "spool/rejected"].map(|folder| files(shop, folder))
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn in_done(list: &[&str]) -> [Vec<String>; 4] {
    [vec![], vec![], names(list), vec![]]
}

/// Makes a file look as if it had been written so many seconds ago; less than none lies ahead.
#[expect(clippy::disallowed_methods, reason = "the age of a file is measured on the machine's own clock")]
fn age(path: &Path, seconds: i64) {
    let by = Duration::from_secs(seconds.unsigned_abs());
    let now = SystemTime::now();
    let then = if seconds < 0 { now + by } else { now - by };
    File::options().append(true).open(path).unwrap().set_modified(then).unwrap();
}

fn append(path: &Path, text: &str) {
    let mut file = File::options().append(true).open(path).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
}

/// The hourly run under strace, which does `what` to `syscall`; where a path is given, to calls on that path only.
fn strace(shop: &Shop, path: Option<&str>, syscall: &str, what: &str) -> Command {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", &format!("trace={syscall}"), "-e", &format!("inject={syscall}:{what}")]);
    command.arg("-o").arg(shop.path(LOG));
    if let Some(path) = path {
        // As the program writes it, and as the kernel knows it.
        command.args(["-P", path]).arg("-P").arg(shop.path("").canonicalize().unwrap().join(path));
    }
    command.arg(STEPMAIL).args(RUN).current_dir(shop.path("")).env_clear().env("HOME", shop.path(""));
    command.env("PATH", std::env::var("PATH").unwrap()).stdin(Stdio::null());
    command
}

fn under_strace(shop: &Shop, path: Option<&str>, syscall: &str, what: &str) -> Ran {
    let output = strace(shop, path, syscall, what).output();
    Ran::of(&output.expect("strace is needed for this story: apt-get install strace"))
}

#[test]
fn a_checkout_that_writes_beside_and_renames_gets_its_buyer_d0_in_the_next_hour() {
    let shop = shop();
    shop.write("spool/.order-1.json", sale("cs_1"));
    assert!(shop.run(SOON).exits(0).mails().is_empty(), "unfinished work was taken");
    shop.write("spool/.order-1.json", sale("cs_1") + "\n");
    shop.rename("spool/.order-1.json", "spool/order-1.json");
    let ran = shop.run(SOON).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(ran.json()["ingested"]["purchases"], 1);
    assert_eq!(lie(&shop), in_done(&["order-1.json"]));
    assert_eq!(shop.read("spool/done/order-1.json"), sale("cs_1") + "\n");
    assert!(shop.run(LATER).exits(0).mails().is_empty());
}

#[test]
fn a_folder_named_by_hand_is_a_spool_as_well_and_counts_once_however_it_is_named() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    shop.write("more/b.json", sale("cs_2") + "\n");
    shop.buys("cs_3", "c@example.com", "2026-10-01T00:00:00Z");
    symlink("spool", shop.path("by-link")).unwrap();
    let ran =
        shop.run_with(SOON, &["--events", "spool/", "--events", "more", "--events", "by-link"]).exits(0);
    assert_eq!(ran.mails().len(), 3);
    assert_eq!(
        (ran.json()["ingested"]["purchases"].clone(), 0.into()),
        (3.into(), ran.json()["ingested"]["duplicates"].clone())
    );
    assert_eq!(lie(&shop), in_done(&["a.json"]));
    assert_eq!(files(&shop, "more/done"), ["b.json"]);
}

#[test]
fn r3_the_files_of_a_run_are_one_batch_whatever_their_names() {
    let shop = shop();
    let of_hanako = |session: &str, paid_at: &str| {
        format!(
            r#"{{"id":"e{session}","type":"checkout.completed","session":"{session}","email":"hanako@example.com","paid_at":"{paid_at}"}}"#
        )
    };
    put(&shop, "a.json", &(of_hanako("cs_late", "2026-10-01T00:30:00Z") + "\n"));
    put(&shop, "b.json", &(of_hanako("cs_early", "2026-10-01T00:10:00Z") + "\n"));
    shop.run(SOON).exits(0);
    assert_eq!(shop.purchase("cs_early")["kind"], "first");
    assert_eq!(shop.purchase("cs_late")["kind"], "repurchase");
}

#[test]
fn ingest_of_a_spool_takes_it_in_and_sends_nothing() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    let ran = shop.stepmail(&["ingest", "spool", "--json", "--now", SOON]).exits(0);
    assert_eq!(ran.json()["ingested"]["purchases"], 1);
    assert!(shop.outbox().is_empty());
    assert_eq!(lie(&shop), in_done(&["a.json"]));
    put(&shop, "b.json", "<html>\n");
    shop.stepmail(&["ingest", "spool", "--json", "--now", SOON]).exits(65).says("spool/rejected/b.json");
}

#[test]
fn a_spool_with_nothing_in_it_costs_no_write() {
    let shop = shop();
    shop.run(SOON).exits(0);
    let ledger = shop.read("ledger.json");
    shop.run(LATER).exits(0);
    assert_eq!(fs::read_dir(shop.path("spool")).unwrap().count(), 0, "a folder was made for nothing");
    assert_eq!(shop.read("ledger.json"), ledger);
}

#[test]
fn r12_a_dry_run_says_what_would_go_and_changes_not_one_byte() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    shop.write("spool/claimed/b.json", sale("cs_2") + "\n");
    put(&shop, "c.json", &(sale("cs_3") + "\n{broken\n"));
    let before = shop.everything();
    let ran = shop.dry_run(SOON).exits(65).says("spool/c.json").hides_addresses();
    assert_eq!(ran.mails().len(), 3);
    assert!(shop.everything() == before);
    assert!(!shop.path("spool/done").exists() && !shop.path("spool/rejected").exists());
}

#[test]
fn r12_a_run_that_a_guard_holds_claims_nothing() {
    let shop = shop();
    shop.run("2026-10-10T00:00:00Z").exits(0);
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    shop.write("spool/claimed/b.json", sale("cs_2") + "\n");
    let held = shop.run(SOON).exits(1);
    assert_eq!(held.notices(), ["clock_behind"]);
    assert_eq!(lie(&shop), [names(&["a.json"]), names(&["b.json"]), vec![], vec![]]);
    assert_eq!(shop.run("2026-10-10T01:00:00Z").exits(0).mails().len(), 2);
    assert_eq!(lie(&shop), in_done(&["a.json", "b.json"]));
}

#[test]
fn r12_ingest_into_a_ledger_that_was_put_back_claims_nothing() {
    let shop = shop();
    let early = shop.read("ledger.json");
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    shop.run(SOON).exits(0);
    let (id, generation) = (shop.ledger()["ledger_id"].clone(), 0);
    shop.write("ledger.json", early);
    shop.edit(|ledger| {
        ledger["ledger_id"] = id;
        ledger["generation"] = generation.into();
    });
    put(&shop, "b.json", &(sale("cs_2") + "\n"));
    shop.stepmail(&["ingest", "spool", "--json", "--now", LATER]).exits(1);
    assert_eq!(lie(&shop), [names(&["b.json"]), vec![], names(&["a.json"]), vec![]]);
}

#[test]
fn what_a_dead_run_has_claimed_is_read_first_and_counts_once() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    shop.run(SOON).exits(0);
    // One was recorded before that run died, one was not; a new file has the name of one of them.
    shop.rename("spool/done/a.json", "spool/claimed/a.json");
    shop.write("spool/claimed/z.json", sale("cs_2") + "\n");
    put(&shop, "z.json", &(sale("cs_3") + "\n"));
    let ran = shop.run(LATER).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_2:d0 sent", "pp:cs_3:d0 sent"]);
    assert_eq!(ran.json()["ingested"]["duplicates"], 1);
    assert_eq!(lie(&shop), in_done(&["a.json", "z.json", "z.json.1"]));
    assert_eq!(shop.read("spool/done/z.json"), sale("cs_2") + "\n", "the claimed one came first");
}

#[test]
fn a_program_that_always_uses_one_name_loses_no_file() {
    let shop = shop();
    for n in 0..5 {
        put(&shop, "events.jsonl", &(sale(&format!("cs_{n}")) + "\n"));
        shop.run(SOON).exits(0);
    }
    assert_eq!(
        lie(&shop),
        in_done(&["events.jsonl", "events.jsonl.1", "events.jsonl.2", "events.jsonl.3", "events.jsonl.4"])
    );
    for n in 0..5 {
        let name = if n == 0 { "events.jsonl".to_owned() } else { format!("events.jsonl.{n}") };
        assert_eq!(shop.read(&format!("spool/done/{name}")), sale(&format!("cs_{n}")) + "\n");
    }
    // Emptied at any time.
    fs::remove_dir_all(shop.path("spool/done")).unwrap();
    put(&shop, "events.jsonl", &(sale("cs_9") + "\n"));
    assert_eq!(shop.run(SOON).exits(0).mails(), ["pp:cs_9:d0 sent"]);
    assert_eq!(lie(&shop), in_done(&["events.jsonl"]));
}

#[test]
fn a_lost_ledger_is_fed_again_from_what_is_done() {
    let shop = shop();
    let fresh = shop.read("ledger.json");
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    shop.run(SOON).exits(0);
    shop.write("ledger.json", fresh);
    fs::remove_dir_all(shop.path("state")).unwrap();
    // Not where it lies: its own `done` would lie inside it.
    shop.run_with(LATER, &["--events", "spool/done"]).exits(65).says("part of a spool");
    assert_eq!(lie(&shop), in_done(&["a.json"]));
    shop.rename("spool/done/a.json", "spool/a.json");
    shop.run(LATER).exits(0);
    assert_eq!(shop.step("cs_1", "d0"), "sent");
    assert_eq!(shop.outbox().len(), 1);
}

#[test]
fn odd_names_are_taken_like_any_other_and_said_on_one_line() {
    let shop = shop();
    let odd = ["-rf", "a..b", "new\nline", "sp ace", "注文.json", "'; rm *", "%2e%2e", "*", "--events"];
    for (n, name) in odd.iter().enumerate() {
        put(&shop, name, &(sale(&format!("cs_{n}")) + "\n"));
    }
    let raw = std::ffi::OsStr::from_bytes(b"\xff\xfe.json");
    shop.write("spool/.raw", sale("cs_raw") + "\n");
    #[expect(clippy::disallowed_methods, reason = "what another program does needs no care for power cuts")]
    fs::rename(shop.path("spool/.raw"), shop.path("spool").join(raw)).unwrap();
    let long = "l".repeat(255);
    put(&shop, &long, &(sale("cs_long") + "\n"));
    assert_eq!(shop.run(SOON).exits(0).mails().len(), odd.len() + 2);
    assert_eq!(files(&shop, "spool/done").len(), odd.len() + 2);
    assert!(shop.path("spool/done").join(&long).exists() && shop.path("spool/done").join(raw).exists());

    // Twice, and bad: room for a number and for the reason.
    for content in [sale("cs_long2") + "\n", "bad\n".to_owned(), "worse\n".to_owned()] {
        put(&shop, &long, &content);
        shop.run(SOON);
    }
    assert_eq!(files(&shop, "spool/rejected").len(), 4);
    put(&shop, "x\nlook all is well", "bad too\n");
    put(&shop, "hanako@example.com", "as bad\n");
    let ran = shop.stepmail(&["run", "-q", "--now", SOON]).exits(65).hides_addresses();
    assert!(!ran.stdout.contains("\nlook all"), "{}", ran.stdout);
}

#[test]
fn links_folders_pipes_and_sockets_are_told_and_left_and_block_nobody() {
    let shop = shop();
    shop.write("secret.json", sale("cs_secret") + "\n");
    symlink(shop.path("secret.json"), shop.path("spool/a-link.json")).unwrap();
    symlink("nowhere", shop.path("spool/broken")).unwrap();
    shop.write("spool/old/x.json", sale("cs_old") + "\n");
    let status = Command::new("mkfifo").arg(shop.path("spool/pipe")).status();
    assert!(status.unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(shop.path("spool/socket")).unwrap();
    put(&shop, "z.json", &(sale("cs_1") + "\n"));
    let ran = shop.run(SOON).exits(65).hides_addresses();
    for name in [
        "a-link.json` is a link",
        "broken` is a link",
        "old` is a folder",
        "pipe` is a device",
        "socket` is a device",
    ] {
        assert_eq!(ran.stdout.matches(name).count(), 1, "{name}: {}", ran.stdout);
    }
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    for name in ["a-link.json", "broken", "old", "pipe", "socket"] {
        assert!(shop.path("spool").join(name).symlink_metadata().is_ok(), "{name} was taken");
    }
    assert_eq!(shop.read("secret.json"), sale("cs_secret") + "\n");
    assert!(shop.purchase("cs_secret").is_null() && shop.purchase("cs_old").is_null());
}

#[test]
fn a_folder_of_ours_that_leads_elsewhere_is_not_followed() {
    for part in ["claimed", "done"] {
        let shop = shop();
        fs::create_dir(shop.path("elsewhere")).unwrap();
        symlink("../elsewhere", shop.path("spool").join(part)).unwrap();
        put(&shop, "a.json", &(sale("cs_1") + "\n"));
        shop.run(SOON).exits(65).says("it is no folder").hides_addresses();
        assert!(files(&shop, "elsewhere").is_empty(), "{part}");
        fs::remove_file(shop.path("spool").join(part)).unwrap();
        shop.run(LATER).exits(0);
        assert_eq!(shop.step("cs_1", "d0"), "sent", "{part}");
        assert_eq!(lie(&shop), in_done(&["a.json"]), "{part}");
    }
}

#[test]
fn ten_thousand_files_are_one_append_and_all_done() {
    let shop = shop();
    for n in 0..10_000 {
        // From before go-live, so that this story is one of files and not of mails.
        let event = sale(&format!("cs_{n}")).replace("2026-10-01", "2026-08-01");
        shop.write(&format!("spool/{n}.json"), event + "\n");
    }
    let log = shop.path("syncs");
    let ended = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", log.to_str().unwrap(), STEPMAIL])
        .args(RUN)
        .current_dir(shop.path(""))
        .output();
    let ran = Ran::of(&ended.unwrap()).exits(0);
    assert_eq!(ran.json()["ingested"]["history"], 10_000);
    assert_eq!(files(&shop, "spool/done").len(), 10_000);
    assert!(files(&shop, "spool").is_empty() && files(&shop, "spool/claimed").is_empty());
    let syncs = shop.read("syncs").lines().count();
    assert!(syncs < 40, "{syncs} syncs: something is synced once per file");
}

#[test]
fn a_last_line_without_a_line_break_waits_until_the_file_is_five_minutes_old() {
    let shop = shop();
    put(&shop, "a.json", &sale("cs_1"));
    put(&shop, "b.json", &(sale("cs_2") + "\n"));
    // A file that a dead run claimed, and whose writer went on.
    shop.write("spool/claimed/c.json", format!("{}\n{}", sale("cs_3"), &sale("cs_4")[..30]));
    put(&shop, "empty", "");
    // The time that decides is the machine's, not this one.
    let ran = shop.run("2026-12-24T00:00:00Z").exits(0);
    assert_eq!(ran.json()["ingested"]["purchases"], 1);
    assert_eq!(lie(&shop), [names(&["a.json", "empty"]), names(&["c.json"]), names(&["b.json"]), vec![]]);
    append(&shop.path("spool/claimed/c.json"), &(sale("cs_4")[30..].to_owned() + "\n"));
    for name in ["a.json", "empty"] {
        age(&shop.path("spool").join(name), 301);
    }
    let ran = shop.run("2026-12-24T01:00:00Z").exits(0);
    assert_eq!(ran.json()["ingested"]["purchases"], 3);
    assert_eq!(lie(&shop), in_done(&["a.json", "b.json", "c.json", "empty"]));
}

#[test]
fn a_time_that_lies_ahead_keeps_no_purchase_waiting_for_ever() {
    let shop = shop();
    put(&shop, "a.json", &sale("cs_1"));
    age(&shop.path("spool/a.json"), -100_000_000);
    assert!(shop.run(SOON).exits(0).mails().is_empty(), "it may have been written just now");
    // Ten minutes later by the machine's clock; the times of files are left as they are.
    let mut command = Command::new("faketime");
    command.args(["-f", "+10m", STEPMAIL]).args(RUN).current_dir(shop.path("")).env_clear();
    command.env("NO_FAKE_STAT", "1").env("HOME", shop.path("")).env("PATH", std::env::var("PATH").unwrap());
    let output = command.output().expect("faketime is needed for this story: apt-get install faketime");
    assert_eq!(Ran::of(&output).exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn a_file_that_grows_while_it_is_read_is_read_again() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    put(&shop, "b.json", &(sale("cs_2") + "\n"));
    // The run stops when everything has been read and claimed, and nothing is moved on yet.
    let stopped = stopped_after_claiming(&shop);
    append(&shop.path("spool/claimed/a.json"), &(sale("cs_3") + "\n"));
    let ran = stopped.goes_on().exits(0);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent", "pp:cs_2:d0 sent"]);
    assert_eq!(lie(&shop), [vec![], names(&["a.json"]), names(&["b.json"]), vec![]]);
    let ran = shop.run(LATER).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_3:d0 sent"]);
    assert_eq!(lie(&shop), in_done(&["a.json", "b.json"]));
}

/// A run that was stopped in the middle.
struct Stopped {
    run: std::process::Child,
    pid: String,
}

fn stopped_after_claiming(shop: &Shop) -> Stopped {
    let mut command = strace(shop, Some("spool/claimed"), "fsync", "signal=STOP:when=1");
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let run = run.expect("strace is needed for this story: apt-get install strace");
    let patience = Instant::now();
    while !fs::read_to_string(shop.path(LOG)).is_ok_and(|log| log.contains("stopped by SIGSTOP")) {
        assert!(patience.elapsed() < Duration::from_secs(20), "it did not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(files(shop, "spool/claimed").len(), 2);
    let lock: serde_json::Value = serde_json::from_str(&shop.read("ledger.json.lock")).unwrap();
    Stopped { run, pid: lock["pid"].to_string() }
}

impl Stopped {
    fn goes_on(self) -> Ran {
        assert!(Command::new("kill").args(["-CONT", &self.pid]).status().unwrap().success());
        Ran::of(&self.run.wait_with_output().unwrap())
    }
}

#[test]
fn a_disk_that_is_pulled_out_in_the_middle_of_a_run_loses_no_purchase_and_doubles_none() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    put(&shop, "b.json", &(sale("cs_2") + "\n"));
    let stopped = stopped_after_claiming(&shop);
    shop.rename("spool", "unplugged");
    let ran = stopped.goes_on();
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent", "pp:cs_2:d0 sent"], "what was read is taken in");
    assert!(!shop.path("spool").exists(), "a folder was made in its place");
    shop.rename("unplugged", "spool");
    let ran = shop.run(LATER).exits(0);
    assert_eq!((ran.mails().len(), ran.json()["ingested"]["duplicates"].clone()), (0, 2.into()));
    assert_eq!(lie(&shop), in_done(&["a.json", "b.json"]));
}

#[test]
fn c004_a_second_run_beside_one_that_has_claimed_touches_nothing() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    put(&shop, "b.json", &(sale("cs_2") + "\n"));
    let stopped = stopped_after_claiming(&shop);
    put(&shop, "c.json", &(sale("cs_3") + "\n"));
    let before = shop.kept();
    shop.run(SOON).exits(75);
    shop.stepmail(&["ingest", "spool", "--wait", "0"]).exits(75);
    assert!(shop.kept() == before);
    assert_eq!(stopped.goes_on().exits(0).mails().len(), 2);
    assert_eq!(shop.run(LATER).exits(0).mails(), ["pp:cs_3:d0 sent"]);
    assert_eq!(lie(&shop), in_done(&["a.json", "b.json", "c.json"]));
}

#[test]
fn c004_two_runs_at_the_same_time_admit_each_file_once() {
    for round in 0..20 {
        let shop = shop();
        for n in 0..3 {
            put(&shop, &format!("{n}.json"), &(sale(&format!("cs_{n}")) + "\n"));
        }
        let runs = [shop.spawn(&RUN), shop.spawn(&RUN)];
        let ended = runs.map(|run| Ran::of(&run.wait_with_output().unwrap()));
        let purchases = |ran: &Ran| ran.json()["ingested"]["purchases"].as_u64().unwrap();
        assert_eq!(ended.iter().map(purchases).sum::<u64>(), 3, "round {round}");
        for ran in ended {
            assert!(ran.code == 0 || ran.code == 75, "round {round}: {} {}", ran.code, ran.stderr);
        }
        assert_eq!(lie(&shop), in_done(&["0.json", "1.json", "2.json"]), "round {round}");
        assert_eq!(shop.outbox().len(), 3, "round {round}");
    }
}

#[test]
fn c007_a_bad_line_blocks_nobody_and_its_file_waits_for_a_person() {
    let shop = shop();
    put(&shop, "a.json", &format!("{}\n{{broken hanako@example.com\n{}\n", sale("cs_1"), sale("cs_2")));
    put(&shop, "b.json", &(sale("cs_3") + "\n"));
    let ran =
        shop.run(SOON).exits(65).says("spool/rejected/a.json").says("spool/a.json line 2").hides_addresses();
    assert_eq!((ran.mails().len(), ran.notices()), (3, names(&["invalid_event"])));
    assert_eq!(shop.notices().len(), 1);
    assert_eq!(lie(&shop), [vec![], vec![], names(&["b.json"]), names(&["a.json", "a.json.reason"])]);
    let reason = shop.read("spool/rejected/a.json.reason");
    assert!(
        reason.contains("\nline 2: ") && reason.contains("the rest of the file was taken in"),
        "{reason}"
    );
    assert!(!reason.contains("hanako"), "{reason}");
    shop.run(LATER).exits(0);

    // A person mends it and puts it back: only what was missing is new.
    put(&shop, "a.json", &format!("{}\n{}\n{}\n", sale("cs_1"), sale("cs_4"), sale("cs_2")));
    let ran = shop.run(LATER).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_4:d0 sent"]);
    assert_eq!(ran.json()["ingested"]["duplicates"], 2);
}

#[test]
fn c007_a_file_of_which_nothing_can_be_read_goes_away_whole_with_its_reason_and_a_person_is_told() {
    let shop = shop();
    put(&shop, "page.html", "<!DOCTYPE html>\n<p>502 hanako@example.com\n");
    put(&shop, "z.json", &(sale("cs_1") + "\n"));
    let ran = shop.run(SOON).exits(65).says("spool/rejected/page.html").hides_addresses();
    assert_eq!((ran.mails(), ran.notices()), (names(&["pp:cs_1:d0 sent"]), names(&["invalid_event"])));
    assert_eq!(
        shop.notices().len(),
        1,
        "the operator gets a mail: the file is no longer in the way to remind anybody"
    );
    assert_eq!(lie(&shop), [vec![], vec![], names(&["z.json"]), names(&["page.html", "page.html.reason"])]);
    assert!(shop.read("spool/rejected/page.html.reason").contains("line 1"));
    assert!(!shop.read("spool/rejected/page.html.reason").contains("hanako"));
    // The same page again, each hour: said each time, mailed once, nothing overwritten.
    put(&shop, "page.html", "<!DOCTYPE html>\n<p>502 hanako@example.com\n");
    let ran = shop.run(LATER).exits(65).says("spool/rejected/page.html.1");
    assert!(ran.notices().is_empty() && shop.notices().len() == 1);
    assert_eq!(
        files(&shop, "spool/rejected"),
        ["page.html", "page.html.1", "page.html.1.reason", "page.html.reason"]
    );
    shop.run("2026-10-01T03:00:00Z").exits(0);
}

#[test]
fn a_hundred_bad_files_are_counted_not_listed() {
    let shop = shop();
    for n in 0..100 {
        put(&shop, &format!("{n}.json"), "the same trouble\n");
    }
    let ran = shop.stepmail(&["run", "-q", "--now", SOON]).exits(65).says("90 more");
    assert!(ran.stdout.lines().count() < 20, "{}", ran.stdout);
    assert_eq!(files(&shop, "spool/rejected").len(), 200);
}

#[test]
fn a_file_that_may_not_be_read_stays_and_the_others_go_on() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    put(&shop, "b.json", &(sale("cs_2") + "\n"));
    for (error, said) in [("EACCES", "Permission denied"), ("EIO", "Input/output error")] {
        let ran = under_strace(&shop, Some("spool/a.json"), "?open,openat", &format!("error={error}"));
        let ran = ran.exits(65).says("spool/a.json").says(said).hides_addresses();
        assert!(ran.mails().len() < 2);
        assert_eq!(lie(&shop), [names(&["a.json"]), vec![], names(&["b.json"]), vec![]], "{error}");
    }
    assert_eq!(shop.step("cs_2", "d0"), "sent");
    assert_eq!(shop.run(LATER).exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn a_spool_in_which_nothing_can_be_moved_is_told_and_stops_nobody_else() {
    let rows = [
        ("mkdir", "spool/claimed", "EACCES"),
        ("renameat2", "spool/a.json", "EROFS"),
        ("renameat2", "spool/a.json", "EACCES"),
    ];
    for (syscall, path, error) in rows {
        let shop = shop();
        shop.set("[spool]\ndir = \"more\"");
        put(&shop, "a.json", &(sale("cs_1") + "\n"));
        shop.write("more/b.json", sale("cs_2") + "\n");
        let ran = under_strace(&shop, Some(path), syscall, &format!("error={error}"));
        let ran = ran.exits(65).says("let the user who runs stepmail").hides_addresses();
        assert_eq!(ran.mails(), ["pp:cs_2:d0 sent"], "{syscall} {error}");
        assert_eq!(files(&shop, "spool"), ["a.json"], "{syscall} {error}");
        let ran = shop.run_with(LATER, &["--events", "spool"]).exits(0);
        assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    }
}

#[test]
fn a_file_that_cannot_be_moved_on_is_told_and_its_purchase_counts_once() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    let stuck = |shop: &Shop| under_strace(shop, Some("spool/claimed/a.json"), "renameat2", "error=EACCES");
    // The claim names that path as well: it is made before.
    fs::create_dir_all(shop.path("spool/claimed")).unwrap();
    shop.rename("spool/a.json", "spool/claimed/a.json");
    let ran = stuck(&shop).exits(65).says("count once").hides_addresses();
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    assert!(stuck(&shop).exits(65).says("count once").mails().is_empty());
    assert_eq!(files(&shop, "spool/claimed"), ["a.json"]);
    shop.run(LATER).exits(0);
    assert_eq!(lie(&shop), in_done(&["a.json"]));
}

#[test]
fn a_file_system_without_such_a_rename_serves_as_well() {
    let shop = shop();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    put(&shop, "b.json", "bad\n");
    shop.write("spool/done/a.json", "another\n");
    let ran = under_strace(&shop, None, "renameat2", "error=EINVAL").exits(65);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(
        lie(&shop),
        [vec![], vec![], names(&["a.json", "a.json.1"]), names(&["b.json", "b.json.reason"])]
    );
    assert_eq!(shop.read("spool/done/a.json"), "another\n");
    assert_eq!(shop.read("spool/done/a.json.1"), sale("cs_1") + "\n");
}

#[test]
fn a_spool_that_is_not_there_is_told_and_stops_nobody_else() {
    let shop = shop();
    shop.set("[spool]\ndir = \"disk/spool\"").buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    let ran = shop.run(SOON).exits(65).says("make the folder").hides_addresses();
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
    assert!(!shop.path("disk").exists(), "a disk that is not mounted must not get a folder in its place");
    // A file where a folder should be.
    shop.write("disk/spool", "x");
    shop.run(LATER).exits(65).says("cannot read the spool");
}

#[test]
fn the_spool_that_nobody_named_need_not_be_there() {
    let shop = Shop::new();
    shop.run(SOON).exits(0);
    fs::create_dir(shop.path("spool")).unwrap();
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    assert_eq!(shop.run(LATER).exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn a_spool_gives_no_purchase_of_one_shop_to_another() {
    let shop = shop();
    shop.write("other/ledger.json", shop.read("ledger.json"));
    shop.run(SOON).exits(0);
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    assert_eq!(shop.run(SOON).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    // Tried out with another ledger and the shop's own settings.
    put(&shop, "b.json", &(sale("cs_2") + "\n"));
    let other = ["run", "--json", "--ledger", "other/ledger.json", "--now", LATER];
    for more in [&["--dry-run"][..], &[]] {
        let ran = shop.stepmail(&[&other[..], more].concat()).exits(65).says("belongs to another ledger");
        assert!(ran.mails().is_empty(), "{}", ran.stdout);
    }
    shop.stepmail(&["ingest", "spool", "--ledger", "other/ledger.json", "--now", LATER]).exits(65);
    assert_eq!(shop.run(LATER).exits(0).mails(), ["pp:cs_2:d0 sent"]);
    // The shop is gone, and a new one takes its place.
    fs::remove_file(shop.path("spool/.ledger")).unwrap();
    put(&shop, "c.json", &(sale("cs_3") + "\n"));
    assert_eq!(shop.stepmail(&other).exits(0).mails(), ["pp:cs_3:d0 sent"]);
}

#[test]
fn the_folder_of_the_ledger_is_never_taken_for_a_spool() {
    let shop = shop();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run(SOON).exits(0);
    for folder in [".", "state", "outbox"] {
        let before = shop.kept();
        shop.stepmail(&["ingest", folder, "--now", SOON]).exits(65).says("cannot be a spool");
        shop.stepmail(&["run", "--events", folder, "--now", SOON, "--dry-run"])
            .exits(65)
            .says("cannot be a spool");
        assert!(shop.kept() == before, "{folder}");
    }
}

#[test]
fn r8_what_cannot_be_recorded_stays_claimed_and_is_read_first_in_the_next_hour() {
    let shop = shop();
    shop.run(SOON).exits(0);
    put(&shop, "a.json", &(sale("cs_1") + "\n"));
    // The journal is born by rename; what is taken in is its first record.
    let ran =
        under_strace(&shop, Some("ledger.json.journal"), "renameat2,rename,linkat,link", "error=ENOSPC");
    assert!(ran.exits(73).mails().is_empty());
    assert_eq!(lie(&shop), [vec![], names(&["a.json"]), vec![], vec![]]);
    assert_eq!(shop.run(LATER).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!(lie(&shop), in_done(&["a.json"]));
}

#[test]
fn c001_killed_at_any_move_or_sync_each_file_is_admitted_once_and_none_is_lost() {
    let content = [sale("cs_1") + "\n", sale("cs_2") + "\n", sale("cs_3") + "\n{broken\n"];
    for syscall in ["renameat2", "rename", "linkat", "unlink", "mkdir", "fsync", "fdatasync"] {
        for k in 1.. {
            let when = format!("died at {syscall} {k}");
            let shop = shop();
            for (n, content) in content.iter().enumerate() {
                put(&shop, &format!("{n}.json"), content);
            }
            let died = under_strace(&shop, None, syscall, &format!("signal=KILL:when={k}")).code == -1;
            was_planned_before_it_left(&shop, &when);
            // Whatever lies in `done` is in the ledger already.
            let status = shop.stepmail(&["status", "--json", "--all", "--now", SOON]).exits(0).stdout;
            for name in files(&shop, "spool/done") {
                let session = ["cs_1", "cs_2"][name[..1].parse::<usize>().unwrap()];
                assert!(status.contains(session), "{when}: {name} is done and not recorded");
            }
            shop.run("2026-10-01T01:00:30Z");
            shop.run(LATER).exits(0);
            let steps: Vec<String> = ["cs_1", "cs_2", "cs_3"].map(|session| shop.step(session, "d0")).into();
            assert_eq!(steps, ["sent", "sent", "sent"], "{when}");
            assert_eq!(shop.outbox().len(), 3, "{when}");
            assert_eq!(shop.ledger()["buyers"].as_array().unwrap().len(), 3, "{when}");
            assert_eq!(
                lie(&shop),
                [vec![], vec![], names(&["0.json", "1.json"]), names(&["2.json", "2.json.reason"])],
                "{when}"
            );
            for (n, content) in content.iter().enumerate() {
                let folder = if n == 2 { "rejected" } else { "done" };
                assert_eq!(shop.read(&format!("spool/{folder}/{n}.json")), *content, "{when}");
            }
            if !died {
                break;
            }
            assert!(k < 300, "{syscall} never ends");
        }
    }
}

#[test]
fn a_file_that_waits_for_its_line_break_is_named_by_every_command_that_leaves_it() {
    let shop = Shop::new();
    shop.write("spool/n.json", r#"{"id":"e1","type":"checkout.completed"}"#);
    let waits = "waits     ./spool/n.json  no line break at its end; read when it is 5 minutes old";
    for command in [&["run"][..], &["run", "--dry-run"], &["ingest", "spool"]] {
        let said = |more: &[&str]| {
            shop.stepmail(&[command, more, &["--now", "2026-10-01T01:00:00Z"]].concat()).exits(0)
        };
        assert!(said(&[]).stdout.contains("no line break at its end"), "{command:?}");
        assert_eq!(said(&["--json"]).json()["waiting"].as_array().unwrap().len(), 1, "{command:?}");
        assert_eq!(said(&["-q"]).stdout, "", "{command:?}");
    }
    shop.stepmail(&["run", "--now", "2026-10-01T01:00:00Z"]).exits(0).says(waits);
    // Once it ends in a line break, it is read.
    shop.write("spool/n.json", "{\"id\":\"e1\",\"type\":\"other\"}\n");
    assert_eq!(shop.run("2026-10-01T02:00:00Z").exits(0).json()["waiting"], serde_json::json!([]));
    assert!(!shop.path("spool/n.json").exists());
}
