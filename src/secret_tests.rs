use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

const KEY: &str = "re_Sentinel_1234";

struct Shop {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, OsString)>,
}

impl Shop {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::io::Write::write_all(&mut File::create(&path).unwrap(), content.as_ref()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn read(&self, file: Option<PathBuf>, command: Option<&[&str]>) -> Result<Found, String> {
        let places = Places {
            setting: "resend.api_key",
            what: "key for the service",
            prefixes: &["re_"],
            file,
            command: command.map(|words| words.iter().map(ToString::to_string).collect()),
            credential: "resend_api_key",
            variable: "RESEND_API_KEY",
        };
        let env =
            |name: &str| self.variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
        let found = places.read_with(&env, Duration::from_millis(600), &Clock::new(None));
        found.map_err(|error| {
            let said = format!("{error} {error:?}");
            assert!(!said.contains("Sentinel"), "a fault shows the key: {said}");
            error.to_string()
        })
    }

    #[track_caller]
    fn finds(&self, file: Option<PathBuf>, command: Option<&[&str]>) -> String {
        let found = self.read(file, command).unwrap();
        assert_eq!(found.secret.expose(), KEY);
        assert!(!format!("{found:?}").contains("Sentinel"));
        found.place
    }

    #[track_caller]
    fn refuses(&self, file: Option<PathBuf>, command: Option<&[&str]>, said: &str) {
        let error = self.read(file, command).map(|found| found.place).unwrap_err();
        assert!(error.contains(said), "`{said}` is not in: {error}");
        assert!(error.ends_with("nothing was sent or changed"), "{error}");
    }
}

#[test]
fn the_first_place_that_is_there_counts_and_one_that_cannot_be_used_is_never_passed_over() {
    let mut shop = Shop::new();
    shop.refuses(None, None, "resend.api_key_file");
    shop.variables.push(("RESEND_API_KEY", KEY.into()));
    assert_eq!(shop.finds(None, None), "the variable `RESEND_API_KEY`");
    shop.variables.push(("CREDENTIALS_DIRECTORY", shop.path("cred").into()));
    assert_eq!(
        shop.finds(None, None),
        "the variable `RESEND_API_KEY`",
        "other credentials, and not this one"
    );
    shop.file("cred/resend_api_key", "re_wrong", 0o444);
    shop.refuses(None, None, "may be read by others");
    shop.file("cred/resend_api_key", KEY, 0o440);
    assert!(shop.finds(None, None).starts_with("the credential `"));
    let command = ["printf", "%s", KEY];
    assert_eq!(shop.finds(None, Some(&command)), "resend.api_key_command `printf`");
    assert!(shop.finds(Some(shop.file("key", KEY, 0o600)), None).starts_with("resend.api_key_file `"));
    shop.refuses(Some(shop.path("gone")), None, "cannot be read");
    shop.refuses(None, Some(&["/no/such/program"]), "cannot be started");
}

#[test]
fn c011_a_variable_that_is_empty_or_blank_is_a_fault_and_not_no_key() {
    for (value, said) in
        [("", "is empty"), ("  \n", "is empty"), ("\"re_Sentinel_1234\"", "does not begin with `re_`")]
    {
        let mut shop = Shop::new();
        shop.variables.push(("RESEND_API_KEY", value.into()));
        shop.refuses(None, None, said);
    }
    let mut shop = Shop::new();
    shop.variables
        .push(("RESEND_API_KEY", std::os::unix::ffi::OsStringExt::from_vec(vec![b'r', b'e', b'_', 0xff])));
    shop.refuses(None, None, "is no text");
}

#[test]
fn a_key_is_trimmed_and_must_look_like_one() {
    let shop = Shop::new();
    for text in [KEY.to_owned(), format!("{KEY}\n"), format!(" \t{KEY}\r\n\n")] {
        shop.finds(Some(shop.file("key", text, 0o600)), None);
    }
    for (text, said) in [
        ("", "is empty"),
        ("\n", "is empty"),
        ("re_Sentinel_1234\nre_Sentinel_5678", "more than one line"),
        ("sk_Sentinel_1234", "does not begin with `re_`"),
        ("RE_Sentinel_1234", "does not begin with `re_`"),
        ("re_Sentinel 1234", "a character that no key has"),
        ("re_Sentinel_1234\"", "a character that no key has"),
        ("re_Sentinel\u{200b}1234", "a character that no key has"),
        ("re_Se", "holds 5 characters"),
    ] {
        shop.refuses(Some(shop.file("key", text, 0o600)), None, said);
    }
    shop.refuses(
        Some(shop.file("key", format!("re_{}", "x".repeat(198)), 0o600)),
        None,
        "holds 201 characters",
    );
    shop.refuses(Some(shop.file("key", [0xff, 0xfe], 0o600)), None, "is no text");
    shop.refuses(Some(shop.file("key", [b' '; 5000], 0o600)), None, "is too long");
}

#[test]
fn a_file_that_others_may_read_or_that_is_none_is_refused() {
    let shop = Shop::new();
    for mode in [0o640, 0o604, 0o660, 0o644, 0o601, 0o610] {
        shop.refuses(Some(shop.file("key", KEY, mode)), None, "chmod 600");
    }
    for mode in [0o600, 0o400] {
        shop.finds(Some(shop.file(&format!("key{mode}"), KEY, mode)), None);
    }
    symlink(shop.file("kept/key", KEY, 0o600), shop.path("link")).unwrap();
    shop.finds(Some(shop.path("link")), None);
    symlink(shop.file("open/key", KEY, 0o644), shop.path("link2")).unwrap();
    shop.refuses(Some(shop.path("link2")), None, "chmod 600");
    shop.refuses(Some(shop.folder.path().to_owned()), None, "is no file");
    shop.refuses(Some(PathBuf::from("/dev/null")), None, "is no file");
    // A pipe that nobody writes into would hold the run up for ever.
    let fifo = shop.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    shop.refuses(Some(fifo), None, "is no file");
}

#[test]
fn what_systemd_hands_over_may_be_roots_and_nobody_elses() {
    for (mode, is_taken) in
        [(0o400, true), (0o440, true), (0o600, true), (0o444, false), (0o420, false), (0o460, false)]
    {
        let mut shop = Shop::new();
        shop.variables.push(("CREDENTIALS_DIRECTORY", shop.path("").into()));
        shop.file("resend_api_key", KEY, mode);
        assert_eq!(shop.read(None, None).is_ok(), is_taken, "{mode:o}");
    }
}

#[test]
fn a_credentials_folder_that_cannot_be_searched_does_not_lead_to_somebody_elses_key() {
    let mut shop = Shop::new();
    shop.variables.push(("RESEND_API_KEY", KEY.into()));
    let folder = shop.file("cred", "no folder", 0o600);
    shop.variables.push(("CREDENTIALS_DIRECTORY", folder.into()));
    shop.refuses(None, None, "the credential `");
}

#[test]
fn a_key_in_another_users_file_is_refused_whatever_its_rights() {
    if !rustix::process::geteuid().is_root() {
        let _ =
            std::io::Write::write_all(&mut std::io::stderr(), b"\nSKIPPED: only root can give a file away\n");
        return;
    }
    let mut shop = Shop::new();
    let key = shop.file("resend_api_key", KEY, 0o600);
    std::os::unix::fs::chown(&key, Some(65_534), None).unwrap();
    shop.refuses(Some(key), None, "belongs to another user");
    shop.variables.push(("CREDENTIALS_DIRECTORY", shop.path("").into()));
    shop.refuses(None, None, "belongs to another user");
}

#[test]
fn a_command_is_no_shell_and_what_it_says_is_never_shown() {
    let shop = Shop::new();
    shop.finds(None, Some(&["printf", "  %s\n", KEY]));
    shop.refuses(None, Some(&["printf", "%s", "$(echo re_Sentinel_1234)"]), "does not begin with `re_`");
    shop.refuses(
        None,
        Some(&["sh", "-c", "echo re_Sentinel_1234; echo re_Sentinel_1234 >&2; exit 3"]),
        "failed (exit status: 3)",
    );
    shop.refuses(None, Some(&["sh", "-c", "kill -9 $$"]), "failed (signal: 9");
    shop.refuses(None, Some(&["true"]), "is empty");
    shop.refuses(None, Some(&["sh", "-c", "head -c 1000000 /dev/zero"]), "says too much");
}

#[test]
fn a_command_that_waits_for_somebody_is_ended() {
    let shop = Shop::new();
    let before = std::time::Instant::now();
    shop.refuses(None, Some(&["sleep", "30"]), "did not end within");
    shop.refuses(None, Some(&["sh", "-c", "printf re_Sentinel_1234; exec sleep 30"]), "did not end within");
    // It reads from nothing, and not from the terminal.
    shop.refuses(None, Some(&["cat"]), "is empty");
    // A helper that it leaves behind keeps the pipe open, and holds nobody up.
    shop.finds(None, Some(&["sh", "-c", "sleep 30 & printf re_Sentinel_1234"]));
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
}

#[test]
fn c070_a_key_that_a_service_repeats_is_taken_out() {
    let secret = Secret::of(KEY);
    assert_eq!(secret.hide("a re_Sentinel_1234, b:re_Sentinel_1234"), "a …, b:…");
    assert_eq!(format!("{secret:?}"), "Secret");
}
