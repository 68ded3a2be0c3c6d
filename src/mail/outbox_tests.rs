//! What lies in the folder after a try, and after the next one.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::super::mime::tests::message;
use super::*;

struct Trial {
    folder: tempfile::TempDir,
}

impl Trial {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn outbox(&self) -> Outbox {
        Outbox::new(self.folder.path().join("a/outbox"))
    }

    fn send(&self, key: &str, subject: &str) -> Outcome {
        let frozen = self.outbox().freeze(&message(key, "buyer@example.com", subject)).unwrap();
        self.outbox().send(&key.parse().unwrap(), &frozen)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("a/outbox").join(name)
    }

    /// Puts a file where the mail of `pp:cs_1:d3` will lie.
    fn put(&self, content: &[u8]) {
        let path = self.file("pp.cs_1.d3.eml");
        disk::make_folder(path.parent().unwrap()).unwrap();
        disk::create(&path, content, 0o600).unwrap();
    }
}

fn accepted(outcome: Outcome) -> String {
    match outcome {
        Outcome::Accepted { message_id } => message_id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mail_is_a_private_file_named_by_its_key_and_notices_lie_apart() {
    let trial = Trial::new();
    let id = accepted(trial.send("pp:cs_1:d3", "s"));
    let text = fs::read_to_string(trial.file("pp.cs_1.d3.eml")).unwrap();
    assert!(text.contains(&format!("Message-ID: {id}\r\n")), "{text}");
    assert_eq!(fs::metadata(trial.file("pp.cs_1.d3.eml")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(trial.file("")).unwrap().permissions().mode() & 0o777, 0o700);
    accepted(trial.send("pp:notice:brake.x.1", "s"));
    assert!(trial.file("notices/pp.notice.brake.x.1.eml").is_file());
    assert_eq!(fs::read_dir(trial.file("")).unwrap().count(), 2);
    accepted(trial.send(&format!("pp:{}:d14", "x".repeat(200)), "s"));
}

#[test]
fn asking_twice_leaves_the_first_mail_as_it_was() {
    let trial = Trial::new();
    let first = accepted(trial.send("pp:cs_1:d3", "first"));
    let bytes = fs::read(trial.file("pp.cs_1.d3.eml")).unwrap();
    assert_eq!(accepted(trial.send("pp:cs_1:d3", "second")), first);
    assert_eq!(fs::read(trial.file("pp.cs_1.d3.eml")).unwrap(), bytes);
}

#[test]
fn a_file_of_unknown_make_settles_nothing() {
    for content in
        [&b""[..], b"hello", b"Message-ID: <a@b>\r\n\r\n", b"Subject: x\r\n\r\nMessage-ID: <a@b>\r\n"]
    {
        let trial = Trial::new();
        trial.put(content);
        assert!(matches!(trial.send("pp:cs_1:d3", "s"), Outcome::Unknown { .. }), "{content:?}");
        assert_eq!(fs::read(trial.file("pp.cs_1.d3.eml")).unwrap(), content);
    }
    let trial = Trial::new();
    disk::make_folder(&trial.file("pp.cs_1.d3.eml")).unwrap();
    assert!(matches!(trial.send("pp:cs_1:d3", "s"), Outcome::Unknown { .. }));
}

#[test]
fn where_two_sessions_share_a_file_name_the_second_is_no_success() {
    let trial = Trial::new();
    // As on macOS, where `pp.cs_A.d3.eml` is this file.
    trial.put(b"Message-ID: <a@b>\r\nX-Stepmail-Key: pp:cs_A:d3\r\n\r\n");
    assert!(matches!(trial.send("pp:cs_1:d3", "s"), Outcome::Conflict { .. }));
}

#[test]
fn a_place_that_cannot_be_written_is_not_sent_and_the_reason_names_it() {
    let trial = Trial::new();
    disk::create(&trial.folder.path().join("a"), b"a file", 0o600).unwrap();
    match trial.send("pp:cs_1:d3", "s") {
        Outcome::NotSent { reason, retry_after: None } => assert!(reason.contains("/a`"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_of_another_transport_or_another_key_are_not_sent() {
    let trial = Trial::new();
    let outbox = trial.outbox();
    let mut frozen = outbox.freeze(&message("pp:cs_1:d3", "buyer@example.com", "s")).unwrap();
    let other = "pp:cs_2:d3".parse().unwrap();
    assert!(matches!(outbox.send(&other, &frozen), Outcome::NotSent { .. }));
    frozen.via = "resend".to_owned();
    assert!(matches!(outbox.send(&"pp:cs_1:d3".parse().unwrap(), &frozen), Outcome::NotSent { .. }));
    assert!(!trial.file("").exists());
    assert_eq!((outbox.name(), outbox.retention()), ("outbox", Retention::Forever));
}

#[test]
fn r17_mails_of_one_buyer_go_and_what_a_dead_run_left_of_them_and_all_others_stay() {
    let trial = Trial::new();
    let long = format!("cs_live_{}", "a".repeat(60));
    let [hers, others] = [format!("{long}1"), format!("{long}2")];
    for key in [
        format!("pp:{hers}:d0"),
        format!("pp:{others}:d0"),
        format!("pp:notice:conflict.{hers}.1"),
        "pp:notice:brake.run.1".into(),
    ] {
        accepted(trial.send(&key, "s"));
    }
    // Names this long are cut, so only the header tells whose they were; the last one died before it.
    let half = |random: &str, text: &str| {
        let name = format!(".stepmail-pp.{long}-{random}").chars().take(60).collect::<String>();
        disk::create(&trial.file(&format!("{name}-{random}")), text.as_bytes(), 0o600).unwrap();
    };
    half("AbC123", &format!("X-Stepmail-Key: pp:{hers}:d3\r\n\r\nDear"));
    half("AbC124", &format!("X-Stepmail-Key: pp:{others}:d3\r\n\r\nDear"));
    half("AbC125", "Date: to");
    disk::create(&trial.file("notes.txt"), hers.as_bytes(), 0o600).unwrap();
    let count = || {
        fs::read_dir(trial.file("")).unwrap().count() + fs::read_dir(trial.file("notices")).unwrap().count()
    };
    let theirs = |key: &IdempotencyKey| key.to_string().contains(&hers);
    assert_eq!((trial.outbox().erase(&theirs, true).mails, count()), (2, 9));
    let swept = trial.outbox().erase(&theirs, false);
    assert!(swept.failures.is_empty());
    assert_eq!((swept.mails, count()), (2, 5));
    assert!(trial.file(&format!("pp.{others}.d0.eml")).exists() && trial.file("notes.txt").exists());
    assert_eq!(Outbox::new(trial.folder.path().join("none")).erase(&theirs, false).mails, 0);
}
