//! What the seller and the buyer see of all this, with real files.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use super::journal::{Header, Over, Writer};
use super::locked::enough_room;
use super::*;
use crate::domain::fact::Whom;
use crate::domain::ids::{IdempotencyKey, Step};
use crate::domain::ledger::{Frozen, Kind, MarkKind, Purchase, Refs, StepState, Steps};
use crate::domain::matter::MatterKind;
use crate::domain::time::Timestamp;

mod forget;

const NOW: &str = "2026-10-01T00:00:00Z";
const ID: &str = "0123456789abcdef0123456789abcdef";

struct Shop {
    folder: tempfile::TempDir,
    clock: Clock,
}

impl Shop {
    /// A shop with one buyer, `cs_1`, in a ledger of generation 3.
    fn new() -> Self {
        let shop = Self { folder: tempfile::tempdir().unwrap(), clock: Clock::new(None) };
        shop.put("ledger.json", &snapshot::bytes(&one_buyer()).unwrap());
        fs::set_permissions(shop.at("ledger.json"), Permissions::from_mode(0o600)).unwrap();
        shop
    }
    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    fn put(&self, name: &str, content: &[u8]) {
        File::create(self.at(name)).unwrap().write_all(content).unwrap();
    }
    fn get(&self, name: &str) -> Vec<u8> {
        fs::read(self.at(name)).unwrap()
    }
    fn store(&self) -> Store {
        self.try_store().unwrap()
    }
    fn try_store(&self) -> Result<Store, StoreError> {
        Store::new(&self.at("ledger.json"), &self.at("state"), false)
    }
    fn try_lock(&self) -> Result<LockedLedger, StoreError> {
        self.try_store()?.lock(Duration::ZERO, &self.clock, |_| {})
    }
    fn lock(&self) -> LockedLedger {
        self.try_lock().unwrap()
    }
    fn view(&self) -> View {
        self.store().view().unwrap()
    }
    /// Locks, records, and dies.
    fn dies_after(&self, batches: &[&[Fact]]) {
        let mut locked = self.lock();
        for batch in batches {
            locked.record(batch).unwrap();
        }
        die(locked);
    }
    fn edit(&self, from: &str, to: &str) {
        let text = String::from_utf8(self.get("ledger.json")).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        self.put("ledger.json", text.replacen(from, to, 1).as_bytes());
    }
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
    fn refused(&self, kind: StoreErrorKind, said: &str) {
        let before = fs::read(self.at("ledger.json")).ok();
        let journal = fs::read(self.at("ledger.json.journal")).ok();
        for error in [self.try_store().and_then(|store| store.view().map(drop)), self.try_lock().map(drop)]
            .map(|result| result.unwrap_err())
        {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(said), "`{said}` is not in: {error}");
            assert!(error.to_string().contains("nothing was sent"), "{error}");
            assert!(!error.to_string().contains('@'), "an address is in: {error}");
            let text = error.to_string();
            assert!(!text.ends_with('.') && !text.contains('\n'), "{text}");
        }
        assert_eq!(fs::read(self.at("ledger.json")).ok(), before, "a refused ledger was rewritten");
        assert_eq!(fs::read(self.at("ledger.json.journal")).ok(), journal, "a refused journal was rewritten");
    }
    fn age_lock(&self, minutes: i64) {
        let time = SystemTime::UNIX_EPOCH
            + Duration::from_secs(u64::try_from(self.clock.machine().unix() - minutes * 60).unwrap());
        let file = File::options().write(true).open(self.at("ledger.json.lock")).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
    }
    fn d0(&self) -> StepState {
        self.view().ledger.buyers.purchase(&"cs_1".parse().unwrap()).unwrap().1.steps.d0.clone()
    }
}

/// Ends a command as a kill does: the advisory lock goes, nothing else is written.
fn die(locked: LockedLedger) {
    locked.lock.borrow_mut().forget_release();
    drop(locked);
}

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

fn purchase(session: &str) -> Purchase {
    Purchase {
        session: session.parse().unwrap(),
        email: format!("{session}@example.com").parse().unwrap(),
        paid_at: at("2026-09-21T01:00:00Z"),
        kind: Kind::First,
        name: Some("花子".to_owned()),
        locale: None,
        billing: None,
        subscriber_id: None,
        amount: None,
        events: vec!["evt_9".parse().unwrap()],
        refs: Refs::default(),
        vars: std::collections::BTreeMap::new(),
        stopped: None,
        started: None,
        marked_repurchase: None,
        outcome: None,
        refunds: Vec::new(),
        newsletter: None,
        steps: Steps::pending(),
    }
}

fn one_buyer() -> Ledger {
    let mut ledger = Ledger::empty(at("2026-09-01T00:00:00Z"), Some(ID.to_owned()));
    ledger.generation = 3;
    ledger.lock_token = 7;
    apply(&mut ledger, &admitted("cs_1")).unwrap();
    ledger
}

fn admitted(session: &str) -> Fact {
    Fact::Admitted { purchase: Box::new(purchase(session)) }
}

fn key(session: &str, step: Step) -> IdempotencyKey {
    IdempotencyKey::Step(session.parse().unwrap(), step)
}

fn planned(session: &str) -> Fact {
    let message = Frozen {
        via: "outbox".to_owned(),
        to: format!("{session}@example.com").parse().unwrap(),
        subject: "ログイン".to_owned(),
        body: "line\nline @ \u{0}".to_owned(),
        hash: "ab".to_owned(),
    };
    Fact::Planned { key: key(session, Step::D0), at: at(NOW), message: Box::new(message) }
}

fn sent(session: &str) -> Fact {
    Fact::Sent {
        key: key(session, Step::D0),
        at: at(NOW),
        message_id: "m_1".to_owned(),
        via: "outbox".to_owned(),
    }
}

fn is_sent(state: &StepState) -> bool {
    matches!(state, StepState::Sent { .. })
}

// ---- a command from beginning to end ----

#[test]
fn a_mail_recorded_as_sent_is_sent_for_every_later_command() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    assert_eq!(locked.notes(), [] as [&str; 0]);
    assert_eq!(locked.mark(), None);
    let installation = locked.installation().unwrap().to_owned();
    locked.room_to_send().unwrap();
    locked.record(&[planned("cs_1")]).unwrap();
    assert!(matches!(shop.d0(), StepState::Planned { .. }), "a view does not see the plan");
    locked.ready_to_send().unwrap();
    locked.record(&[sent("cs_1")]).unwrap();
    assert!(is_sent(&locked.ledger().buyers.all()[0].purchases[0].steps.d0));
    let finished = locked.finish(Some(at(NOW))).unwrap();
    assert_eq!((finished.generation, finished.written, finished.marked), (4, true, true));
    assert_eq!(shop.names(), ["ledger.json", "ledger.json.bak", "ledger.json.lock", "state"]);
    assert!(is_sent(&shop.d0()));
    let view = shop.view();
    assert_eq!(view.mark, Some(Mark::new(ID.to_owned(), 4, Some(at(NOW)), BTreeMap::new())));
    assert_eq!(view.installation, Some(installation));
    assert_eq!(view.ledger.lock_token, 8, "the token did not grow above the ledger's");
    assert!(shop.get("ledger.json").ends_with(b"}\n"));
    for name in ["ledger.json", "ledger.json.bak", "ledger.json.lock", "state/installation"] {
        assert_eq!(fs::metadata(shop.at(name)).unwrap().mode() & 0o777, 0o600, "{name}");
    }
    assert_eq!(fs::metadata(shop.at("state")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_run_with_nothing_to_record_writes_the_mark_and_not_the_ledger() {
    let shop = Shop::new();
    let before = (shop.get("ledger.json"), fs::metadata(shop.at("ledger.json")).unwrap().mtime_nsec());
    let finished = shop.lock().finish(Some(at(NOW))).unwrap();
    assert_eq!((finished.generation, finished.written, finished.marked), (3, false, true));
    let after = (shop.get("ledger.json"), fs::metadata(shop.at("ledger.json")).unwrap().mtime_nsec());
    assert_eq!(before, after);
    assert_eq!(shop.names(), ["ledger.json", "ledger.json.lock", "state"]);
    assert_eq!(shop.view().mark.unwrap().last_run_at, Some(at(NOW)));
}

#[test]
fn c076_a_dry_run_writes_not_one_byte() {
    let shop = Shop::new();
    let view = shop.view();
    assert_eq!(view.ledger, one_buyer());
    assert!(view.installation.is_some(), "a dry run must find itself a new installation, as the run would");
    assert_eq!(shop.names(), ["ledger.json"]);
    shop.dies_after(&[&[planned("cs_1")]]);
    let before: Vec<_> =
        shop.names().iter().map(|name| fs::metadata(shop.at(name)).unwrap().mtime_nsec()).collect();
    assert!(matches!(shop.d0(), StepState::Planned { .. }));
    let after: Vec<_> =
        shop.names().iter().map(|name| fs::metadata(shop.at(name)).unwrap().mtime_nsec()).collect();
    assert_eq!(before, after);
}

#[test]
fn a_hand_command_raises_the_mark_so_that_its_flag_is_missed_if_the_ledger_is_put_back() {
    let shop = Shop::new();
    let flag = || Fact::Marked {
        whom: crate::domain::fact::Whom::Session("cs_1".parse().unwrap()),
        mark: MarkKind::Stopped,
        at: at(NOW),
        reason: None,
        event: None,
    };
    let mut locked = shop.lock();
    locked.record(&[flag()]).unwrap();
    assert!(locked.finish(None).unwrap().marked);
    assert_eq!(
        shop.view().mark,
        Some(Mark::new(ID.to_owned(), 4, None, BTreeMap::new())),
        "no run was here yet"
    );
    shop.lock().finish(Some(at(NOW))).unwrap();
    let old = shop.get("ledger.json");
    let mut locked = shop.lock();
    locked.record(&[admitted("cs_2")]).unwrap();
    assert!(locked.finish(None).unwrap().marked);
    assert_eq!(shop.view().mark, Some(Mark::new(ID.to_owned(), 5, Some(at(NOW)), BTreeMap::new())));
    // An old copy does not become the newest by a hand command.
    let mut locked = shop.lock();
    locked.record(&[admitted("cs_3")]).unwrap();
    locked.finish(None).unwrap();
    shop.put("ledger.json", &old);
    let mut locked = shop.lock();
    assert_eq!((locked.ledger().generation, locked.mark().unwrap().generation), (4, 6));
    assert!(locked.journal_ahead());
    let refused = locked.record(&[flag()]).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::PutBack, "{refused}");
    locked.abandon();
    assert_eq!(shop.get("ledger.json"), old);
    assert_eq!(shop.view().mark.unwrap().generation, 6);
}

#[test]
fn a_guard_held_run_leaves_nothing_but_that_it_was_told() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    assert_eq!(locked.told(), []);
    let told =
        [Told { kind: MatterKind::ClockBehind, subject: "clock".to_owned(), at: at(NOW), arrived: true }];
    locked.set_told(&told).unwrap();
    locked.abandon();
    let locked = shop.lock();
    assert_eq!(locked.told(), told);
    assert_eq!((locked.mark(), locked.notes()), (None, [].as_slice()));
    assert_eq!(snapshot::bytes(locked.ledger()).unwrap(), shop.get("ledger.json"));
    drop(locked);
    shop.put(&format!("state/marks/{ID}.told.json"), b"[{");
    assert_eq!(shop.lock().told(), [], "an unreadable note of what was told is told again");
}

#[test]
fn an_empty_ledger_is_made_once_and_never_over_another_or_beside_a_lost_ones_journal() {
    let shop = Shop::new();
    let ledger = Ledger::empty(at(NOW), Some(ID.to_owned()));
    let path = shop.at("ledger.json");
    assert_eq!(Store::create(&path, &ledger).unwrap(), Created::AlreadyThere);
    shop.dies_after(&[&[planned("cs_1")]]);
    fs::remove_file(&path).unwrap();
    let error = Store::create(&path, &ledger).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
    fs::remove_file(shop.at("ledger.json.journal")).unwrap();
    shop.put("ledger.json.bak", b"");
    let error = Store::create(&path, &ledger).unwrap_err();
    assert!(error.to_string().contains("put that ledger back"), "{error}");
    fs::remove_file(shop.at("ledger.json.bak")).unwrap();
    assert_eq!(Store::create(&path, &ledger).unwrap(), Created::New);
    assert_eq!(shop.view().ledger, ledger);
    symlink("/nowhere/x", shop.at("link.json")).unwrap();
    assert_eq!(Store::create(&shop.at("link.json"), &ledger).unwrap(), Created::AlreadyThere);
}

#[test]
fn a_hand_made_ledger_gets_its_id_at_the_first_record_or_the_first_run() {
    let shop = Shop::new();
    shop.edit(&format!("  \"ledger_id\": \"{ID}\",\n"), "");
    let mut locked = shop.lock();
    locked.record(&[planned("cs_1")]).unwrap();
    let id = locked.ledger().ledger_id.clone().unwrap();
    die(locked);
    assert_eq!(shop.view().ledger.ledger_id, Some(id.clone()), "the id changed with a crash");
    shop.lock().finish(None).unwrap();
    assert_eq!(shop.view().ledger.ledger_id, Some(id));
    let shop = Shop::new();
    shop.edit(&format!("  \"ledger_id\": \"{ID}\",\n"), "");
    let finished = shop.lock().finish(Some(at(NOW))).unwrap();
    assert!(finished.marked && finished.written);
    assert!(shop.view().mark.is_some());
}

// ---- reading ----

#[test]
fn c057_c058_c059_c060_c061_c066_what_is_no_ledger_is_refused_named_and_left_alone() {
    let whole = String::from_utf8(snapshot::bytes(&one_buyer()).unwrap()).unwrap();
    let put = |from: &str, to: &str| {
        assert!(whole.contains(from), "{from} is not in {whole}");
        whole.replacen(from, to, 1).into_bytes()
    };
    let utf16: Vec<u8> =
        [0xff, 0xfe].into_iter().chain(whole.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    let d0 = "\"d0\": {\n              \"state\": \"pending\"\n            }";
    let step = |json: &str| put(d0, &format!("\"d0\": {json}"));
    let rows: Vec<(Vec<u8>, &str)> = vec![
        (b"".to_vec(), "it is empty"),
        (b" \n\t ".to_vec(), "it is empty"),
        (b"\xef\xbb\xbf".to_vec(), "it is empty"),
        (b"[]".to_vec(), "one JSON object"),
        (b"null".to_vec(), "one JSON object"),
        (b"{}".to_vec(), "`format`"),
        (b"{\"format\":\"other\",\"version\":1}".to_vec(), "no stepmail ledger"),
        (b"{\"format\":\"stepmail-ledger\"}".to_vec(), "`version`"),
        (format!("{whole}{whole}").into_bytes(), "behind the end"),
        (format!("{whole}x").into_bytes(), "behind the end"),
        (vec![0; 4096], "NUL bytes"),
        (format!("{whole}\0\0").into_bytes(), "NUL bytes"),
        (utf16, "UTF-16"),
        (b"\xfe\xff\0{".to_vec(), "UTF-16"),
        (whole.clone().into_bytes().into_iter().map(|b| if b == b'3' { 0xff } else { b }).collect(), "line"),
        (put("\"generation\": 3", "\"generation\": 3, \"generation\": 4"), "duplicate field `generation`"),
        (
            put("\"paid_at\"", "\"paid_at\": \"2026-09-21T01:00:00Z\", \"paid_at\""),
            "duplicate field `paid_at`",
        ),
        (put("\"kind\": \"first\"", "\"stoped\": {}, \"kind\": \"first\""), "unknown field `stoped`"),
        (
            put("\"kind\": \"first\"", "\"hanako@example.com\": 1, \"kind\": \"first\""),
            "unknown field `(address)`",
        ),
        (put("\"kind\": \"first\"", "\"kind\": \"third\""), "buyers[0].purchases[0].kind"),
        (put("\"d14\"", "\"d15\""), "unknown field `d15`"),
        (put(d0, "\"d0\": {\"state\": \"pending\"}, \"d5\": {\"state\": \"pending\"}"), "unknown field `d5`"),
        (put("\"version\": 1", "\"version\": 2"), "newer stepmail (version 2"),
        (put("\"version\": 1", "\"version\": 2, \"new_field\": {}"), "newer stepmail (version 2"),
        (put("\"version\": 1", "\"version\": \"1\""), "`version`"),
        (put("\"version\": 1", "\"version\": 0"), "`version`"),
        (put("\"generation\": 3", "\"generation\": NaN"), "line 5"),
        (put("\"generation\": 3", "\"generation\": -1"), "field `generation`"),
        (put("\"generation\": 3", "\"generation\": 3.5"), "field `generation`"),
        (put("\"generation\": 3", "\"generation\": \"hanako@example.com\""), "field `generation`"),
        (put("\"generation\": 3", "\"generation\": 18446744073709551615"), "field `generation`"),
        (put("\"lock_token\": 7", "\"lock_token\": 18446744073709551615"), "field `lock_token`"),
        (put("2026-09-21T01:00:00Z", "2027-02-29T01:00:00Z"), "buyers[0].purchases[0].paid_at"),
        (put("2026-09-21T01:00:00Z", "a@b.example"), "buyers[0].purchases[0].paid_at"),
        (put("\"cs_1\"", "[\"cs_1\"]"), "buyers[0].purchases[0].session"),
        (put("\"waiting\": []", "\"waiting\": {}"), "field `waiting`"),
        (put("  \"waiting\"", "<<<<<<< HEAD\n=======\n>>>>>>> other\n  \"waiting\""), "merge conflict"),
        (put(ID, ""), "ledger_id"),
        (step("{}"), "steps.d0"),
        (step("{\"state\": \"pending\", \"state\": \"pending\"}"), "steps.d0"),
        (step("{\"state\": \"pending\", \"at\": \"2026-09-21T01:00:00Z\"}"), "unknown field `at`"),
        (step("{\"state\": \"pending\", \"sent\": true}"), "unknown field `sent`"),
        (step("{\"state\": \"waiting\"}"), "steps.d0"),
        (step("{\"state\": \"sent\"}"), "steps.d0"),
        (step("\"pending\""), "steps.d0"),
        (step("null"), "steps.d0"),
        (
            step(
                "{\"state\":\"closed\",\"at\":\"2026-09-21T01:00:00Z\",\"reason\":\"stale\",\"reason\":\"stopped\"}",
            ),
            "duplicate field `reason`",
        ),
        (
            step(
                "{\"state\":\"closed\",\"at\":\"2026-09-21T01:00:00Z\",\"reason\":\"stale\",\"attempts\":1}",
            ),
            "unknown field `attempts`",
        ),
        (
            step(
                "{\"state\":\"pending\",\"refused\":{\"count\":1,\"count\":2,\"hash\":\"\",\"at\":\"2026-09-21T01:00:00Z\",\"reason\":\"\"}}",
            ),
            "duplicate field `count`",
        ),
        (put("\"events\": [", "\"vars\": {\"a\": \"1\", \"a\": \"2\"}, \"events\": ["), "`a` stands twice"),
        ("[".repeat(1_000_000).into_bytes(), "one JSON object"),
        (put("\"waiting\": []", &format!("\"waiting\": {}", "[".repeat(10_000))), "line"),
    ];
    let shop = Shop::new();
    for (content, said) in rows {
        shop.put("ledger.json", &content);
        shop.refused(StoreErrorKind::Damaged, said);
    }
    assert!(!shop.at("ledger.json.bak").exists());
}

#[test]
fn c058_a_byte_order_mark_and_crlf_are_no_damage() {
    let shop = Shop::new();
    let text = String::from_utf8(shop.get("ledger.json")).unwrap();
    shop.put("ledger.json", format!("\u{feff}{}\r\n\r\n", text.replace('\n', "\r\n")).as_bytes());
    assert_eq!(shop.view().ledger, one_buyer());
}

#[test]
fn c057_a_ledger_cut_at_any_byte_is_refused_or_whole() {
    let whole = snapshot::bytes(&one_buyer()).unwrap();
    for length in 0..whole.len() {
        // The last byte is the final LF; without it the ledger is whole.
        assert_eq!(read::parse(&whole[..length]).is_ok(), length + 1 == whole.len(), "cut at {length}");
        let mut filled = whole.clone();
        filled[length..].fill(0);
        assert!(read::parse(&filled).is_err(), "NUL from {length} on");
    }
}

#[test]
fn a_hundred_megabytes_of_blanks_are_refused_at_once() {
    let shop = Shop::new();
    shop.put("ledger.json", &vec![b' '; 100_000_000]);
    shop.refused(StoreErrorKind::Damaged, "it is empty");
}

#[test]
fn a_folder_or_a_pipe_in_the_ledgers_place_is_refused() {
    let shop = Shop::new();
    fs::remove_file(shop.at("ledger.json")).unwrap();
    fs::create_dir(shop.at("ledger.json")).unwrap();
    let error = shop.try_store().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Damaged);
    assert!(error.to_string().contains("it is a folder"), "{error}");
    let error = Store::new(Path::new("/dev/zero"), &shop.at("state"), false).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
}

#[test]
fn c057_a_missing_ledger_is_no_empty_ledger() {
    let shop = Shop::new();
    fs::remove_file(shop.at("ledger.json")).unwrap();
    shop.refused(StoreErrorKind::Missing, "`stepmail init` makes one");
    symlink("/nowhere/at/all", shop.at("ledger.json")).unwrap();
    shop.refused(StoreErrorKind::Missing, "put it back");
    fs::remove_file(shop.at("ledger.json")).unwrap();
    symlink("ledger.json", shop.at("ledger.json")).unwrap();
    shop.refused(StoreErrorKind::Missing, "put it back");
    assert_eq!(shop.names(), ["ledger.json"], "something was made where no ledger is");
}

#[test]
fn a_ledger_removed_between_finding_and_locking_it_is_missing() {
    let shop = Shop::new();
    let store = shop.store();
    fs::remove_file(shop.at("ledger.json")).unwrap();
    for error in [store.view().map(drop), store.lock(Duration::ZERO, &shop.clock, |_| {}).map(drop)] {
        assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Missing);
    }
}

// ---- place ----

#[test]
fn c063_a_ledger_of_another_user_is_refused_with_both_named() {
    let shop = Shop::new();
    if std::os::unix::fs::chown(shop.at("ledger.json"), Some(12_345), None).is_err() {
        return; // Only root can give a file away.
    }
    let me = rustix::process::geteuid().as_raw();
    shop.refused(StoreErrorKind::CannotWrite, &format!("belongs to user 12345, and this is user {me}"));
}

#[test]
fn a_read_only_ledger_is_refused_before_a_mail_leaves() {
    let shop = Shop::new();
    fs::set_permissions(shop.at("ledger.json"), Permissions::from_mode(0o444)).unwrap();
    shop.refused(StoreErrorKind::CannotWrite, "read-only");
}

#[test]
fn two_names_of_one_ledger_are_one_ledger_or_refused() {
    let shop = Shop::new();
    symlink(shop.at("ledger.json"), shop.at("other.json")).unwrap();
    let held = shop.lock();
    let other = Store::new(&shop.at("other.json"), &shop.at("state"), false).unwrap();
    assert_eq!(other.path(), shop.store().path());
    let busy = other.lock(Duration::ZERO, &shop.clock, |_| {}).unwrap_err();
    assert_eq!(busy.kind(), StoreErrorKind::Busy, "{busy}");
    drop(held);
    let mut locked = other.lock(Duration::ZERO, &shop.clock, |_| {}).unwrap();
    locked.record(&[planned("cs_1"), sent("cs_1")]).unwrap();
    locked.finish(None).unwrap();
    assert!(fs::symlink_metadata(shop.at("other.json")).unwrap().is_symlink(), "the link was replaced");
    assert!(is_sent(&shop.d0()));
    fs::hard_link(shop.at("ledger.json"), shop.at("third.json")).unwrap();
    shop.refused(StoreErrorKind::CannotWrite, "a second name");
}

#[test]
fn a_run_that_died_just_before_the_rename_leaves_a_second_name_of_our_own_making() {
    let shop = Shop::new();
    fs::hard_link(shop.at("ledger.json"), shop.at("ledger.json.bak")).unwrap();
    fs::hard_link(shop.at("ledger.json"), shop.at(".stepmail-ledger.json-AbCdEf")).unwrap();
    shop.view();
    let mut locked = shop.lock();
    locked.record(&[planned("cs_1")]).unwrap();
    locked.finish(None).unwrap();
    assert_eq!(shop.names(), ["ledger.json", "ledger.json.bak", "ledger.json.lock", "state"]);
    assert_eq!(fs::metadata(shop.at("ledger.json")).unwrap().nlink(), 1);
}

#[test]
fn a_synchronised_folder_is_refused_unless_the_seller_insists() {
    let shop = Shop::new();
    fs::create_dir(shop.at("Dropbox")).unwrap();
    fs::copy(shop.at("ledger.json"), shop.at("Dropbox/ledger.json")).unwrap();
    let path = shop.at("Dropbox/ledger.json");
    let error = Store::new(&path, &shop.at("state"), false).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotWrite);
    assert!(error.to_string().contains("allow_shared_folder"), "{error}");
    Store::new(&path, &shop.at("state"), true).unwrap().view().unwrap();
}

#[test]
fn c064_a_full_disk_is_noticed_before_the_first_mail() {
    let mib = 1 << 20;
    assert!(enough_room(Path::new("/x"), mib + 200, 100).is_ok());
    let error = enough_room(Path::new("/x"), mib + 199, 100).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotWrite, "{error}");
    assert!(enough_room(Path::new("/x"), u64::MAX - 1, u64::MAX).is_err());
}

// ---- lock ----

fn is_busy(result: Result<LockedLedger, StoreError>) -> StoreError {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
    error
}

#[test]
fn c004_a_second_run_does_nothing_and_says_who_works() {
    let shop = Shop::new();
    let held = shop.lock();
    let error = is_busy(shop.try_lock());
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert!(error.to_string().contains("this one did nothing"), "{error}");
    held.finish(None).unwrap();
    shop.lock();
}

#[test]
fn c004_of_eight_that_start_at_once_each_records_alone() {
    let shop = Shop::new();
    let inside = AtomicUsize::new(0);
    let tokens = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (shop, inside, tokens) = (&shop, &inside, &tokens);
            scope.spawn(move || {
                let mut said = 0;
                let mut locked =
                    shop.store().lock(Duration::from_secs(60), &shop.clock, |_| said += 1).unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                assert!(said <= 1, "waiting was said {said} times");
                locked.record(&[admitted(&format!("cs_1{n}"))]).unwrap();
                tokens.lock().unwrap().push(locked.lock.borrow().token());
                inside.fetch_sub(1, Ordering::SeqCst);
                locked.finish(Some(at(NOW))).unwrap();
            });
        }
    });
    let tokens = tokens.into_inner().unwrap();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let view = shop.view();
    assert_eq!((view.ledger.buyers.len(), view.ledger.generation), (9, 11));
    assert_eq!(shop.names(), ["ledger.json", "ledger.json.bak", "ledger.json.lock", "state"]);
}

#[test]
fn looking_while_others_write_never_shows_less_than_was_recorded() {
    let shop = Shop::new();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..30 {
                let mut locked = shop.lock();
                locked.record(&[admitted(&format!("cs_a{n}"))]).unwrap();
                locked.record(&[admitted(&format!("cs_b{n}"))]).unwrap();
                locked.finish(None).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut seen = 0;
        while !done.load(Ordering::SeqCst) {
            let view = shop.view();
            assert!(view.ledger.buyers.len() >= seen, "a view went back");
            assert!(!view.journal_ahead);
            seen = view.ledger.buyers.len();
        }
    });
    assert_eq!(shop.view().ledger.buyers.len(), 61);
}

#[test]
fn c067_a_dead_runs_lock_is_taken_over_at_once_and_said() {
    let shop = Shop::new();
    shop.dies_after(&[&[planned("cs_1")]]);
    let locked = shop.lock();
    assert!(locked.notes()[0].contains("did not end as it should"), "{:?}", locked.notes());
    assert_eq!(locked.lock.borrow().token(), 9);
}

#[test]
fn c068_a_lock_of_unknown_make_holds_for_thirty_minutes_and_no_longer() {
    let another = |state: &str, token: u64| {
        let mut text = format!(
            "{{\"v\":1,\"token\":{token},\"installation\":\"ff\",\"host\":\"nas\",\"boot\":\"\",\"pid\":1,\
             \"started\":\"{NOW}\",\"beat\":\"{NOW}\",\"state\":\"{state}\"}}"
        );
        text.push('\n');
        text.into_bytes()
    };
    for content in [
        Vec::new(),
        b"12345\n".to_vec(),
        vec![0; 1024],
        vec![b'x'; 100_000],
        another("held", 40),
        another("held", u64::MAX),
        another("odd", 1),
    ] {
        let shop = Shop::new();
        shop.put("ledger.json.lock", &content);
        shop.age_lock(5);
        let error = is_busy(shop.try_lock());
        assert!(error.to_string().contains("5 min ago"), "{error}");
        shop.age_lock(29);
        is_busy(shop.try_lock());
        assert_eq!(shop.get("ledger.json.lock"), content, "a foreign lock was written");
        shop.age_lock(31);
        let mut locked = shop.lock();
        assert!(locked.notes()[0].contains("silent for 31 min; it was taken over"), "{:?}", locked.notes());
        assert_eq!(locked.lock.borrow().token(), if content == another("held", 40) { 41 } else { 8 });
        locked.ready_to_send().unwrap();
        locked.finish(None).unwrap();
        shop.lock();
    }
    let shop = Shop::new();
    shop.put("ledger.json.lock", &another("free", 40));
    assert_eq!(shop.lock().lock.borrow().token(), 41, "a free lock was not free");
}

#[test]
fn c067_a_lock_from_the_future_counts_from_when_it_was_first_seen() {
    let shop = Shop::new();
    shop.put("ledger.json.lock", b"");
    shop.age_lock(-20 * 365 * 24 * 60);
    is_busy(shop.try_lock());
    shop.clock.shift_machine(29 * 60);
    is_busy(shop.try_lock());
    shop.clock.shift_machine(2 * 60);
    assert!(shop.lock().notes()[0].contains("taken over"));
    // Where nothing can be remembered, a person is told instead of waiting for twenty years.
    let shop = Shop::new();
    shop.put("state", b"a file, not a folder");
    shop.put("ledger.json.lock", b"");
    shop.age_lock(-60);
    let error = shop.try_lock().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Silent, "{error}");
}

#[test]
fn c009_a_run_that_hangs_is_an_alarm_and_is_not_robbed() {
    let shop = Shop::new();
    let mut held = shop.lock();
    shop.age_lock(29);
    is_busy(shop.try_lock());
    shop.age_lock(31);
    let error = shop.try_lock().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Silent, "{error}");
    assert!(error.to_string().contains("it hangs"), "{error}");
    held.ready_to_send().unwrap();
    is_busy(shop.try_lock());
}

#[test]
fn waiting_is_said_once_and_ends_when_the_lock_is_free() {
    let shop = Shop::new();
    let held = shop.lock();
    let mut said = Vec::new();
    let error =
        shop.store().lock(Duration::from_millis(600), &shop.clock, |holder| said.push(holder.clone()));
    is_busy(error);
    assert_eq!(said.len(), 1);
    assert!(said[0].alive && said[0].who.as_ref().unwrap().pid == std::process::id());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let clock = Clock::new(None);
            shop.store().lock(Duration::from_secs(20), &clock, |_| {}).map(drop)
        });
        std::thread::sleep(Duration::from_millis(300));
        drop(held);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn c069_a_run_whose_lock_file_is_removed_sends_nothing_more() {
    let shop = Shop::new();
    let mut first = shop.lock();
    first.record(&[planned("cs_1")]).unwrap();
    fs::remove_file(shop.at("ledger.json.lock")).unwrap();
    let mut second = shop.lock();
    for error in [first.ready_to_send(), first.record(&[sent("cs_1")])] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::LostLock, "{error}");
    }
    assert_eq!(second.lock.borrow().token(), 9, "the token did not grow over a removed lock");
    second.consolidate().unwrap();
    let before = shop.get("ledger.json");
    assert_eq!(first.finish(Some(at(NOW))).unwrap_err().kind(), StoreErrorKind::LostLock);
    assert_eq!(shop.get("ledger.json"), before);
    second.ready_to_send().unwrap();
    second.finish(None).unwrap();
}

#[test]
fn c069_a_run_that_was_robbed_on_paper_sends_nothing_more() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    let text = String::from_utf8(shop.get("ledger.json.lock")).unwrap();
    for other in [text.replace("\"token\":8", "\"token\":7"), text.replace("\"token\":8", "\"token\":9")] {
        assert_ne!(other, text);
        shop.put("ledger.json.lock", other.as_bytes());
        let error = locked.ready_to_send().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::LostLock, "{error}");
        assert!(error.to_string().contains("taken the lock over"), "{error}");
    }
    let other = shop.get("ledger.json.lock");
    locked.abandon();
    assert_eq!(shop.get("ledger.json.lock"), other, "another's record was marked free");
}

#[test]
fn a_run_that_slept_sends_nothing_more() {
    type Pass = fn(&Clock, i64);
    let both: [Pass; 2] = [
        |clock, seconds| clock.shift_machine(seconds),
        |clock, seconds| clock.shift_running(u64::try_from(seconds).unwrap()),
    ];
    for pass in both {
        let shop = Shop::new();
        let mut locked = shop.lock();
        pass(&shop.clock, 290);
        locked.ready_to_send().unwrap();
        pass(&shop.clock, 290);
        locked.record(&[planned("cs_1")]).unwrap();
        pass(&shop.clock, 302);
        for error in [locked.ready_to_send(), locked.record(&[sent("cs_1")]), locked.consolidate()] {
            match error {
                Ok(()) => {} // Nothing had been replayed.
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::LostLock, "{error}"),
            }
        }
        assert_eq!(locked.finish(Some(at(NOW))).unwrap_err().kind(), StoreErrorKind::LostLock);
        assert!(matches!(shop.d0(), StepState::Planned { .. }), "what was recorded before was lost");
        assert_eq!(shop.view().mark, None);
    }
    // A clock put back is no sleep.
    let shop = Shop::new();
    let mut locked = shop.lock();
    shop.clock.shift_machine(-7_200);
    locked.ready_to_send().unwrap();
}

#[test]
fn what_is_no_file_in_the_locks_place_is_refused() {
    let shop = Shop::new();
    let path = shop.at("ledger.json.lock");
    symlink("/nowhere", &path).unwrap();
    assert_eq!(shop.try_lock().unwrap_err().kind(), StoreErrorKind::CannotWrite);
    assert!(!Path::new("/nowhere").exists());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(shop.try_lock().unwrap_err().kind(), StoreErrorKind::CannotWrite);
    fs::remove_dir(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(shop.try_lock().unwrap_err().kind(), StoreErrorKind::CannotWrite);
    shop.view();
}

#[test]
fn a_damaged_ledger_leaves_the_lock_free_behind_it() {
    let shop = Shop::new();
    let good = shop.get("ledger.json");
    shop.put("ledger.json", b"{");
    shop.try_lock().unwrap_err();
    shop.put("ledger.json", &good);
    assert_eq!(shop.lock().notes(), [] as [&str; 0]);
}

// ---- state folder ----

#[test]
fn without_a_state_folder_the_ledger_alone_is_trusted_and_that_is_said() {
    let shop = Shop::new();
    shop.put("state", b"a file, not a folder");
    assert_eq!(shop.view().installation, None);
    let mut locked = shop.lock();
    assert_eq!((locked.installation(), locked.mark()), (None, None));
    assert!(locked.notes()[0].contains("without a state folder"), "{:?}", locked.notes());
    locked.record(&[planned("cs_1")]).unwrap();
    locked.set_told(&[]).unwrap();
    let finished = locked.finish(Some(at(NOW))).unwrap();
    assert!(finished.written && !finished.marked);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").is_ok();
    let locked = shop.lock();
    die(locked);
    // By boot id and name the dead holder is known to be of this machine; without a boot id nothing is known.
    assert_eq!(shop.try_lock().is_ok(), boot);
}

#[test]
fn a_lock_without_an_id_is_not_ours_because_ours_has_none_either() {
    let shop = Shop::new();
    shop.put("state", b"a file, not a folder");
    shop.lock().abandon();
    let text = String::from_utf8(shop.get("ledger.json.lock")).unwrap().replace("\"free\"", "\"held\"");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    shop.put("ledger.json.lock", text.replace(boot.trim(), "another-boot").as_bytes());
    is_busy(shop.try_lock());
}

#[test]
fn a_damaged_installation_id_is_refused_and_not_replaced() {
    for bad in [&b""[..], b"xyz", b"\xff\xff", b"0123456789ABCDEF0123456789ABCDEF"] {
        let shop = Shop::new();
        fs::create_dir(shop.at("state")).unwrap();
        shop.put("state/installation", bad);
        shop.refused(StoreErrorKind::Damaged, "installation id");
        assert_eq!(shop.get("state/installation"), bad);
    }
}

#[test]
fn a_damaged_mark_does_not_switch_off_the_guard_it_serves() {
    let shop = Shop::new();
    shop.lock().finish(Some(at(NOW))).unwrap();
    let name = format!("state/marks/{ID}.json");
    let good = String::from_utf8(shop.get(&name)).unwrap();
    for bad in [
        String::new(),
        good[..good.len() / 2].to_owned(),
        good.replace("\"v\":1", "\"v\":2"),
        good.replace(ID, "another"),
        good.replace('}', ",\"x\":1}"),
    ] {
        shop.put(&name, bad.as_bytes());
        shop.refused(StoreErrorKind::Damaged, "remove it if you are sure that this is the newest ledger");
    }
    shop.put(&name, good.as_bytes());
    shop.lock();
}

// ---- journal ----

/// A journal of three records, and the ledger after each.
fn worked() -> (Shop, Vec<u8>, Vec<Ledger>) {
    let shop = Shop::new();
    let mut states = vec![one_buyer()];
    let mut locked = shop.lock();
    for batch in [vec![planned("cs_1")], vec![sent("cs_1"), admitted("cs_2")], vec![planned("cs_2")]] {
        locked.record(&batch).unwrap();
        states.push(locked.ledger().clone());
    }
    die(locked);
    let journal = shop.get("ledger.json.journal");
    (shop, journal, states)
}

/// What a journal makes of the ledger; none where it is refused.
fn replayed(journal: &[u8]) -> Option<Ledger> {
    let contents = journal::parse(journal).ok()?;
    let mut ledger = one_buyer();
    for fact in contents.facts() {
        apply(&mut ledger, fact).unwrap();
    }
    Some(ledger)
}

#[test]
fn what_a_dead_run_recorded_is_replayed_once_and_written_before_the_first_mail() {
    let (shop, _, states) = worked();
    assert_eq!(shop.view().ledger, states[3]);
    let mut locked = shop.lock();
    assert_eq!(*locked.ledger(), states[3]);
    locked.consolidate().unwrap();
    assert!(!shop.at("ledger.json.journal").exists());
    assert_eq!(locked.ledger().generation, 4);
    locked.consolidate().unwrap();
    assert_eq!(locked.ledger().generation, 4, "nothing was to be consolidated");
    locked.record(&[sent("cs_2")]).unwrap();
    die(locked);
    let locked = shop.lock();
    assert!(locked.ledger().buyers.all().iter().all(|buyer| is_sent(&buyer.purchases[0].steps.d0)));
    assert_eq!(locked.finish(None).unwrap().generation, 5);
}

#[test]
fn a_journal_is_continued_after_a_death_and_replaying_it_twice_is_replaying_it_once() {
    let (shop, _, states) = worked();
    shop.dies_after(&[&[sent("cs_2")]]);
    let journal = shop.get("ledger.json.journal");
    assert_eq!(journal::parse(&journal).unwrap().records.len(), 4);
    let once = replayed(&journal).unwrap();
    assert_ne!(once, states[3]);
    let mut twice = once.clone();
    for fact in journal::parse(&journal).unwrap().facts() {
        apply(&mut twice, fact).unwrap();
    }
    assert_eq!(once, twice);
    assert_eq!(shop.view().ledger, once);
}

#[test]
fn a_snapshot_whose_journal_was_not_removed_in_time_is_not_given_it_again() {
    let (shop, journal, _) = worked();
    let mut locked = shop.lock();
    locked.consolidate().unwrap();
    locked.abandon();
    let after = shop.view().ledger;
    shop.put("ledger.json.journal", &journal);
    assert_eq!(shop.view().ledger, after);
    assert!(shop.at("ledger.json.journal").exists(), "a view removed it");
    shop.lock().abandon();
    shop.lock().finish(None).unwrap();
    assert!(shop.at("ledger.json.journal").exists(), "a command that recorded nothing removed it");
    assert!(shop.lock().finish(Some(at(NOW))).unwrap().marked);
    assert!(!shop.at("ledger.json.journal").exists());
    assert_eq!(shop.view().ledger, after);
}

#[test]
fn c062_the_version_before_is_held_or_knows_what_was_sent_whether_or_not_the_mark_could_be_written() {
    let put_back = |shop: &Shop| shop.put("ledger.json", &shop.get("ledger.json.bak"));
    // Saved before the mails, by a run that died then.
    let shop = Shop::new();
    shop.dies_after(&[&[planned("cs_1")], &[sent("cs_1")]]);
    let mut locked = shop.lock();
    locked.consolidate().unwrap();
    die(locked);
    assert_eq!(shop.view().mark, Some(Mark::new(ID.to_owned(), 4, None, BTreeMap::new())));
    put_back(&shop);
    assert!(shop.lock().journal_ahead());

    // The state folder's disk is full.
    let shop = Shop::new();
    let mut locked = shop.lock();
    locked.record(&[planned("cs_1")]).unwrap();
    locked.record(&[sent("cs_1")]).unwrap();
    let mark = format!("state/marks/{ID}.json");
    fs::create_dir(shop.at(&mark)).unwrap();
    let finished = locked.finish(Some(at(NOW))).unwrap();
    assert!(finished.written && !finished.marked);
    assert!(matches!(finished.notes.as_slice(), [note] if note.contains("the ledger itself is saved")));
    fs::remove_dir(shop.at(&mark)).unwrap();
    let (newest, journal) = (shop.get("ledger.json"), shop.get("ledger.json.journal"));
    put_back(&shop);
    assert!(is_sent(&shop.d0()), "what was sent is lost");
    // What comes next keeps it so.
    for ends in [false, true] {
        shop.put("ledger.json", &newest);
        shop.put("ledger.json.journal", &journal);
        let mut locked = shop.lock();
        locked.record(&[admitted("cs_2")]).unwrap();
        if ends {
            assert!(locked.finish(None).unwrap().marked);
            assert!(!shop.at("ledger.json.journal").exists());
        } else {
            die(locked);
        }
        let before = if ends { newest.clone() } else { shop.get("ledger.json.bak") };
        shop.put("ledger.json", &before);
        assert!(shop.lock().journal_ahead(), "ends: {ends}");
    }
}

#[test]
fn c077_a_copy_that_was_laid_over_a_ledger_does_not_cost_it_its_journal() {
    let (shop, journal, states) = worked();
    let ours = shop.get("ledger.json");
    shop.edit("\"generation\": 3", "\"generation\": 8");
    shop.view();
    shop.lock().abandon();
    let mut refused = shop.lock();
    refused.record(&[planned("cs_7")]).unwrap_err();
    refused.finish(None).unwrap();
    assert_eq!(shop.get("ledger.json.journal"), journal);
    shop.put("ledger.json", &ours);
    assert_eq!(shop.view().ledger, states[3]);
}

#[test]
fn a_clock_that_a_person_accepted_lowers_the_mark() {
    let shop = Shop::new();
    shop.lock().finish(Some(at(NOW))).unwrap();
    let now = at("2026-09-30T00:00:00Z");
    let mut locked = shop.lock();
    locked.lower_mark(at("2026-10-05T00:00:00Z"));
    locked.finish(None).unwrap();
    assert_eq!(shop.view().mark.unwrap().last_run_at, Some(at(NOW)), "it does not lie ahead");
    let mut locked = shop.lock();
    locked.lower_mark(now);
    locked.record(&[admitted("cs_2")]).unwrap();
    locked.finish(None).unwrap();
    assert_eq!(shop.view().mark, Some(Mark::new(ID.to_owned(), 4, Some(now), BTreeMap::new())));
}

#[test]
fn c062_a_ledger_put_back_below_its_journal_is_held() {
    let shop = Shop::new();
    let old = shop.get("ledger.json");
    let mut locked = shop.lock();
    locked.record(&[admitted("cs_2")]).unwrap();
    locked.finish(None).unwrap();
    shop.dies_after(&[&[planned("cs_2")]]);
    let journal = shop.get("ledger.json.journal");
    shop.put("ledger.json", &old);
    assert!(shop.view().journal_ahead);
    let mut locked = shop.lock();
    assert!(locked.journal_ahead());
    assert_eq!(*locked.ledger(), one_buyer());
    locked.consolidate().unwrap();
    for error in [locked.record(&[planned("cs_1")]), locked.ready_to_send()] {
        assert_eq!(error.unwrap_err().kind(), StoreErrorKind::PutBack);
    }
    assert_eq!(locked.finish(Some(at(NOW))).unwrap_err().kind(), StoreErrorKind::PutBack);
    assert_eq!((shop.get("ledger.json"), shop.get("ledger.json.journal")), (old, journal));
    assert_eq!(shop.view().mark, Some(Mark::new(ID.to_owned(), 4, None, BTreeMap::new())));
}

#[test]
fn a_flag_set_by_hand_after_a_crash_and_what_the_dead_run_recorded_both_count() {
    let (shop, _, _) = worked();
    shop.edit("\"kind\": \"first\",", &format!("\"kind\": \"first\", \"stopped\": {{\"at\": \"{NOW}\"}},"));
    let view = shop.view();
    assert!(view.notes[0].contains("edited by hand"), "{:?}", view.notes);
    let locked = shop.lock();
    let first = &locked.ledger().buyers.all()[0].purchases[0];
    assert!(first.stopped.is_some() && is_sent(&first.steps.d0));
    locked.finish(None).unwrap();
    assert!(shop.view().ledger.buyers.all()[0].purchases[0].stopped.is_some());
}

#[test]
fn a_flag_set_by_hand_during_a_command_and_what_it_recorded_both_count() {
    for by_rename in [false, true] {
        let (shop, _, _) = worked();
        let mut locked = shop.lock();
        locked.consolidate().unwrap();
        locked.record(&[sent("cs_2")]).unwrap();
        if by_rename {
            fs::copy(shop.at("ledger.json"), shop.at("x")).unwrap();
            fs::remove_file(shop.at("ledger.json")).unwrap();
            fs::copy(shop.at("x"), shop.at("ledger.json")).unwrap();
        }
        shop.edit(
            "\"kind\": \"first\",",
            &format!("\"kind\": \"first\", \"stopped\": {{\"at\": \"{NOW}\"}},"),
        );
        let finished = locked.finish(Some(at(NOW))).unwrap();
        assert!(finished.notes[0].contains("edited by hand during this command"), "{:?}", finished.notes);
        let view = shop.view();
        assert_eq!(view.ledger.generation, 5);
        assert!(view.ledger.buyers.all()[0].purchases[0].stopped.is_some(), "the flag was lost");
        assert!(is_sent(&view.ledger.buyers.all()[1].purchases[0].steps.d0), "the mail would be sent again");
    }
}

#[test]
fn c061_a_slip_by_hand_during_a_command_loses_nothing_and_is_loud() {
    let (shop, _, _) = worked();
    let mut locked = shop.lock();
    locked.consolidate().unwrap();
    locked.record(&[sent("cs_2")]).unwrap();
    let (good, backup) = (shop.get("ledger.json"), shop.get("ledger.json.bak"));
    shop.put("ledger.json", b"{ \"format\": ");
    let error = locked.finish(Some(at(NOW))).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
    assert_eq!(shop.get("ledger.json"), b"{ \"format\": ", "the seller's slip was overwritten");
    assert_eq!(shop.get("ledger.json.bak"), backup, "the last good version was lost");
    shop.put("ledger.json", &good);
    assert!(is_sent(&shop.view().ledger.buyers.all()[1].purchases[0].steps.d0), "what was recorded was lost");
    // The same with a ledger that is gone, or put back to an older one.
    let mut locked = shop.lock();
    locked.consolidate().unwrap();
    locked.record(&[admitted("cs_3")]).unwrap();
    shop.put("ledger.json", &good);
    assert_eq!(locked.finish(None).unwrap_err().kind(), StoreErrorKind::PutBack);
    assert!(shop.view().journal_ahead);
    let locked = shop.lock();
    locked.abandon();
    let shop = Shop::new();
    let mut locked = shop.lock();
    locked.record(&[planned("cs_1")]).unwrap();
    fs::remove_file(shop.at("ledger.json")).unwrap();
    assert_eq!(locked.finish(None).unwrap_err().kind(), StoreErrorKind::Missing);
    assert!(shop.at("ledger.json.journal").exists());
    assert!(!shop.at("ledger.json").exists(), "a ledger was made where the seller removed it");
}

#[test]
fn a_journal_removed_or_replaced_during_a_command_loses_nothing() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    locked.record(&[planned("cs_1")]).unwrap();
    fs::remove_file(shop.at("ledger.json.journal")).unwrap();
    locked.record(&[sent("cs_1")]).unwrap();
    die(locked);
    assert!(is_sent(&shop.d0()));
    let mut locked = shop.lock();
    locked.record(&[admitted("cs_2")]).unwrap();
    let journal = shop.get("ledger.json.journal");
    fs::remove_file(shop.at("ledger.json.journal")).unwrap();
    shop.put("ledger.json.journal", &journal);
    assert_eq!(locked.record(&[planned("cs_2")]).unwrap_err().kind(), StoreErrorKind::Damaged);
    assert_eq!(locked.ready_to_send().unwrap_err().kind(), StoreErrorKind::CannotWrite);
    drop(locked);
    assert_eq!(shop.view().ledger.buyers.len(), 2);
}

#[test]
fn a_fact_that_could_not_be_replayed_is_not_recorded() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    let error = locked.record(&[planned("cs_1"), planned("cs_9")]).unwrap_err();
    assert!(error.to_string().contains("session cs_9"), "{error}");
    assert!(!shop.at("ledger.json.journal").exists());
    let notice = Fact::Closed {
        key: IdempotencyKey::Notice("brake.x.1".to_owned()),
        at: at(NOW),
        reason: crate::domain::ledger::CloseReason::Stale,
    };
    locked.record(&[notice]).unwrap_err();
    locked.record(&[admitted("cs_9"), planned("cs_9")]).unwrap();
    locked.record(&[]).unwrap();
}

#[test]
fn a_journal_whose_purchase_was_removed_by_hand_is_refused_and_named() {
    let (shop, _, _) = worked();
    let other = snapshot::bytes(&{
        let mut ledger = Ledger::empty(at(NOW), Some(ID.to_owned()));
        ledger.generation = 3;
        ledger
    })
    .unwrap();
    shop.put("ledger.json", &other);
    shop.refused(StoreErrorKind::Damaged, "session cs_1");
}

#[test]
fn a_journal_of_another_ledger_or_of_unknown_make_is_refused() {
    let (shop, journal, _) = worked();
    for (content, said) in [
        (Vec::new(), "first line"),
        (b"\0\0\0\0".to_vec(), "first line"),
        (b"00000000 {}\n".to_vec(), "line 1"),
        (journal[..20].to_vec(), "first line"),
        (journal.iter().skip_while(|&&b| b != b'\n').skip(1).copied().collect(), "line 1"),
    ] {
        shop.put("ledger.json.journal", &content);
        shop.refused(StoreErrorKind::Damaged, said);
    }
    shop.put("ledger.json.journal", &journal);
    shop.edit(ID, "another");
    shop.refused(StoreErrorKind::Damaged, "another ledger");
    fs::remove_file(shop.at("ledger.json.journal")).unwrap();
    fs::create_dir(shop.at("ledger.json.journal")).unwrap();
    let error = shop.try_lock().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
}

#[test]
fn every_bit_flipped_in_a_journal_is_refused_or_costs_only_the_last_record() {
    let (_, journal, states) = worked();
    let (mut refused, mut prefix) = (0, 0);
    for bit in 0..journal.len() * 8 {
        let mut flipped = journal.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match replayed(&flipped) {
            None => refused += 1,
            Some(ledger) => {
                assert_eq!(ledger, states[2], "bit {bit}: an acknowledged record before the last was lost");
                prefix += 1;
            }
        }
    }
    assert!(refused > 100 * prefix, "{refused} refused, {prefix} cut");
}

#[test]
fn a_journal_cut_at_any_byte_or_filled_with_nul_is_a_clean_prefix_or_refused() {
    let (_, journal, states) = worked();
    let ends: Vec<usize> =
        journal.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(n, _)| n + 1).collect();
    for length in 0..journal.len() {
        // Lines that are whole, less the header.
        let whole = ends.iter().filter(|end| **end <= length).count();
        let expected = whole.checked_sub(1).map(|n| &states[n]);
        assert_eq!(replayed(&journal[..length]).as_ref(), expected, "cut at {length}");
        let mut filled = journal.clone();
        filled[length..].fill(0);
        assert_eq!(replayed(&filled).as_ref(), expected, "NUL from {length} on");
        // A block in the middle of the last record that never reached the disk.
        let last = ends[ends.len() - 2];
        if length >= last && length + 1 < journal.len() {
            let mut holed = journal.clone();
            holed[last..=length].fill(0);
            assert_eq!(replayed(&holed).as_ref(), Some(&states[2]), "NUL up to {length}");
        }
    }
}

#[test]
fn lines_of_a_journal_cannot_be_repeated_swapped_left_out_or_borrowed() {
    let (_, journal, _) = worked();
    let (_, other, _) = worked();
    let lines: Vec<&[u8]> = journal.split_inclusive(|&b| b == b'\n').collect();
    let borrowed: Vec<&[u8]> = other.split_inclusive(|&b| b == b'\n').collect();
    assert_eq!(lines.len(), 4);
    for a in 0..4 {
        let mut repeated = lines.clone();
        repeated.insert(a, lines[a]);
        assert!(replayed(&repeated.concat()).is_none(), "line {a} repeated");
        if a < 3 {
            let mut shorter = lines.clone();
            shorter.remove(a);
            assert!(replayed(&shorter.concat()).is_none(), "line {a} left out");
            let mut swapped = lines.clone();
            swapped.swap(a, a + 1);
            assert!(replayed(&swapped.concat()).is_none(), "line {a} swapped");
        }
    }
    // Two journals that began alike are alike; one that did not shares nothing.
    assert_eq!(lines[0], borrowed[0]);
    let mut third = Shop::new();
    third.clock = Clock::new(None);
    third.dies_after(&[&[admitted("cs_7")], &[planned("cs_7")]]);
    let third = third.get("ledger.json.journal");
    let foreign: Vec<&[u8]> = third.split_inclusive(|&b| b == b'\n').collect();
    assert!(replayed(&[lines[0], lines[1], foreign[2]].concat()).is_none());
}

#[test]
fn a_record_with_a_lower_token_is_refused() {
    let shop = Shop::new();
    let header = Header::new(ID.to_owned(), 3, 0, 0);
    let path = shop.at("ledger.json.journal");
    let mut journal = Writer::create(&path, &header, 9, &[planned("cs_1")], Over::Nothing).unwrap();
    journal.append(9, &[sent("cs_1")]).unwrap();
    assert_eq!(shop.lock().lock.borrow().token(), 10, "the journal's token does not count");
    journal.append(8, &[admitted("cs_2")]).unwrap();
    shop.refused(StoreErrorKind::Damaged, "lock token 8 follows 9");
}

#[test]
fn a_torn_tail_is_cut_and_said_and_what_comes_after_is_whole() {
    for tail in [&b"1234"[..], b"00000000 {\"seq\"", b"\0\0\0\0\0", b"abc\0\0def\n"] {
        let (shop, journal, states) = worked();
        shop.put("ledger.json.journal", &[&journal, tail].concat());
        let view = shop.view();
        assert_eq!(view.ledger, states[3]);
        assert!(view.notes.iter().any(|note| note.contains("unfinished")), "{:?}", view.notes);
        let mut locked = shop.lock();
        assert!(locked.notes().iter().any(|note| note.contains("cut off")), "{:?}", locked.notes());
        locked.record(&[sent("cs_2")]).unwrap();
        die(locked);
        assert_eq!(journal::parse(&shop.get("ledger.json.journal")).unwrap().records.len(), 4);
        shop.lock().finish(None).unwrap();
    }
    // A journal with nothing whole in it but its header is none.
    let (shop, journal, states) = worked();
    let header: Vec<u8> = journal.split_inclusive(|&b| b == b'\n').next().unwrap().to_vec();
    shop.put("ledger.json.journal", &[&header, &b"torn"[..]].concat());
    let locked = shop.lock();
    assert_eq!(*locked.ledger(), states[0]);
    assert!(!locked.finish(Some(at(NOW))).unwrap().written);
    assert!(!shop.at("ledger.json.journal").exists());
}

#[test]
fn c064_a_record_that_cannot_be_written_ends_the_sending() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    // Something in the journal's place: it cannot be born.
    fs::create_dir(shop.at("ledger.json.journal")).unwrap();
    let error = locked.record(&[planned("cs_1")]).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotWrite, "{error}");
    fs::remove_dir(shop.at("ledger.json.journal")).unwrap();
    for error in [locked.ready_to_send(), locked.record(&[planned("cs_1")])] {
        assert_eq!(error.unwrap_err().kind(), StoreErrorKind::CannotWrite, "a second try was made");
    }
    assert!(!is_sent(&locked.ledger().buyers.all()[0].purchases[0].steps.d0));
    locked.finish(Some(at(NOW))).unwrap_err();
    assert!(matches!(shop.d0(), StepState::Pending { .. }));
}

#[test]
fn left_overs_of_a_dead_run_are_swept_and_a_neighbours_are_not() {
    let shop = Shop::new();
    shop.lock().finish(Some(at(NOW))).unwrap();
    let ours = [
        ".stepmail-ledger.json-AbCdEf".to_owned(),
        ".stepmail-ledger.json.journal-AbCdEf".to_owned(),
        ".stepmail-ledger.json.lock-AbCdEf".to_owned(),
        format!("state/marks/.stepmail-{ID}.json-AbCdEf"),
        "state/.stepmail-installation-AbCdEf".to_owned(),
    ];
    for name in ours.iter().map(String::as_str).chain([".stepmail-other.json-AbCdEf"]) {
        shop.put(name, b"half");
    }
    shop.lock().abandon();
    for name in &ours {
        assert!(!shop.at(name).exists(), "{name} was left");
    }
    assert!(shop.at(".stepmail-other.json-AbCdEf").exists());
}

#[test]
fn r17_a_hand_made_ledger_that_all_could_read_becomes_private() {
    let shop = Shop::new();
    fs::set_permissions(shop.at("ledger.json"), Permissions::from_mode(0o644)).unwrap();
    let mut locked = shop.lock();
    locked.record(&[planned("cs_1")]).unwrap();
    assert_eq!(fs::metadata(shop.at("ledger.json.journal")).unwrap().mode() & 0o777, 0o600);
    locked.finish(None).unwrap();
    for name in ["ledger.json", "ledger.json.bak"] {
        assert_eq!(fs::metadata(shop.at(name)).unwrap().mode() & 0o777, 0o600, "{name}");
    }
}

// ---- real processes ----

const CHILD: &str = "STEPMAIL_TEST_CHILD_FOLDER";

#[test]
#[ignore = "a process of its own, started by the test below"]
fn child_that_records_a_plan_and_hangs() {
    let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let store = Store::new(&folder.join("ledger.json"), &folder.join("state"), false).unwrap();
    let mut locked = store.lock(Duration::ZERO, &Clock::new(None), |_| {}).unwrap();
    locked.record(&[planned("cs_1")]).unwrap();
    File::create(folder.join("recorded")).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn c001_c067_a_killed_process_leaves_its_plan_and_no_lock() {
    let shop = Shop::new();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "store::tests::child_that_records_a_plan_and_hangs"])
        .env(CHILD, shop.folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !shop.at("recorded").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "the child ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    let error = is_busy(shop.try_lock());
    assert!(error.to_string().contains(&format!("process {} on ", child.id())), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    let mut locked = shop.lock();
    assert!(locked.notes()[0].contains(&format!("process {} on ", child.id())), "{:?}", locked.notes());
    locked.consolidate().unwrap();
    assert!(
        matches!(shop.d0(), StepState::Planned { .. }),
        "the plan was lost, and the mail may go out twice"
    );
}
