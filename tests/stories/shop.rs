//! A shop in an empty folder, and short ways to say what happens in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::double::{Double, KEY, STRIPE_KEY};

/// The program under test.
pub(crate) const STEPMAIL: &str = env!("CARGO_BIN_EXE_stepmail");

/// The settings of every story: everything inside the shop's folder.
const SETTINGS: &str = "state_dir = \"state\"\n\n[mail]\nlanguage = \"en\"\n\n[stripe]\nlivemode = false\n";

/// A shop with settings and an empty ledger that went live on 2026-09-01.
pub(crate) struct Shop {
    folder: TempDir,
    settings: String,
    variables: Vec<(&'static str, String)>,
}

/// How a command ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Shop {
    pub(crate) fn new() -> Self {
        Self::with_settings(SETTINGS.to_owned())
    }

    /// A shop whose mails go to this service.
    pub(crate) fn with_service(double: &Double) -> Self {
        let settings = SETTINGS.replace("[mail]\n", "[mail]\ntransport = \"resend\"\n");
        let settings =
            format!("{settings}\n[resend]\nbase_url = \"{}\"\nrequests_per_second = 1000\n", double.url());
        let mut shop = Self::with_settings(settings);
        shop.variable("RESEND_API_KEY", KEY);
        shop
    }

    /// A shop that asks this payment service what happened; its mails go to the outbox.
    pub(crate) fn polling(double: &Double) -> Self {
        let stripe = format!("[stripe]\nbase_url = \"{}\"\n", double.url());
        let mut shop = Self::with_settings(SETTINGS.replace("[stripe]\n", &stripe));
        shop.variable("STRIPE_API_KEY", STRIPE_KEY);
        shop
    }

    fn with_settings(settings: String) -> Self {
        let mut shop = Self::bare();
        shop.write("stepmail.toml", &settings);
        shop.settings = settings;
        let ledger =
            r#"{"format":"stepmail-ledger","version":1,"generation":1,"go_live":"2026-09-01T00:00:00Z"}"#;
        shop.write("ledger.json", ledger);
        shop
    }

    /// A line more in the settings' section `[stripe]`.
    pub(crate) fn sets(&self, line: &str) {
        let settings = self.read("stepmail.toml");
        assert!(settings.contains("[stripe]\n"));
        self.write("stepmail.toml", settings.replacen("[stripe]\n", &format!("[stripe]\n{line}\n"), 1));
    }

    /// A folder and nothing in it.
    pub(crate) fn bare() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, settings: SETTINGS.to_owned(), variables: Vec::new() }
    }

    /// A variable in the environment of every command.
    pub(crate) fn variable(&mut self, name: &'static str, value: &str) {
        self.variables.retain(|(other, _)| *other != name);
        self.variables.push((name, value.to_owned()));
    }

    pub(crate) fn without_variable(&mut self, name: &str) {
        self.variables.retain(|(other, _)| *other != name);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = fs::File::create(path).unwrap();
        std::io::Write::write_all(&mut file, content.as_ref()).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Moves something aside, or back, as a person would.
    #[expect(clippy::disallowed_methods, reason = "what a person does by hand needs no care for power cuts")]
    pub(crate) fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Adds settings.
    pub(crate) fn set(&self, toml: &str) -> &Self {
        self.write("stepmail.toml", format!("{}\n{toml}\n", self.settings));
        self
    }

    /// Notes a paid checkout for the next [`Shop::run`]: the events file grows as a real one would.
    pub(crate) fn buys(&self, session: &str, email: &str, paid_at: &str) -> &Self {
        self.event(&format!(
            r#"{{"id":"evt_{session}","type":"checkout.completed","session":"{session}","email":{},"paid_at":"{paid_at}","name":"Hanako"}}"#,
            Value::from(email)
        ))
    }

    /// Adds a line to the events file.
    pub(crate) fn event(&self, json: &str) -> &Self {
        let before = fs::read_to_string(self.path("events.jsonl")).unwrap_or_default();
        self.write("events.jsonl", format!("{before}{json}\n"));
        self
    }

    /// Any command, not yet started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(STEPMAIL);
        command.args(args).current_dir(self.folder.path()).env_clear().env("HOME", self.folder.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn stepmail(&self, args: &[&str]) -> Ran {
        Ran::of(&self.command(args).output().unwrap())
    }

    /// A command that reads `input` from its standard input.
    pub(crate) fn stepmail_reading(&self, input: &str, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may end without reading; what it says then is what counts.
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes());
        Ran::of(&child.wait_with_output().unwrap())
    }

    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Any command under strace, which does this to that syscall. Returns the exit code, if it came to one.
    pub(crate) fn under_strace(&self, args: &[&str], syscall: &str, what: &str) -> Option<i32> {
        let inject = format!("inject={syscall}:{what}");
        let status = Command::new("strace")
            .args([
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                &format!("trace={syscall}"),
                "-e",
                &inject,
                STEPMAIL,
            ])
            .args(args)
            .current_dir(self.path(""))
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("HOME", self.path(""))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("strace is needed for this story: apt-get install strace");
        status.code()
    }

    /// The hourly run at `now`, over the events file if there is one.
    pub(crate) fn run(&self, now: &str) -> Ran {
        self.run_with(now, &[])
    }

    pub(crate) fn run_with(&self, now: &str, more: &[&str]) -> Ran {
        let mut args = vec!["run", "--json", "--now", now];
        if self.path("events.jsonl").exists() {
            args.extend(["--events", "events.jsonl"]);
        }
        args.extend(more);
        let ran = self.stepmail(&args);
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        ran
    }

    pub(crate) fn dry_run(&self, now: &str) -> Ran {
        self.run_with(now, &["--dry-run"])
    }

    /// The keys of the mails that lie in the outbox, sorted.
    pub(crate) fn outbox(&self) -> Vec<String> {
        names(&self.path("outbox"), ".eml")
    }

    /// The notices to the operator in the outbox.
    pub(crate) fn notices(&self) -> Vec<String> {
        names(&self.path("outbox/notices"), ".eml")
    }

    /// A mail in the outbox, by session and step.
    pub(crate) fn mail(&self, session: &str, step: &str) -> String {
        self.read(&format!("outbox/pp.{session}.{step}.eml"))
    }

    pub(crate) fn ledger(&self) -> Value {
        serde_json::from_str(&self.read("ledger.json")).unwrap()
    }

    /// The purchase of a session in the ledger.
    pub(crate) fn purchase(&self, session: &str) -> Value {
        let ledger = self.ledger();
        let purchases = ledger["buyers"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|buyer| buyer["purchases"].as_array().unwrap());
        purchases.clone().find(|purchase| purchase["session"] == session).unwrap_or(&Value::Null).clone()
    }

    /// `sent`, `pending`, `planned`, or the reason it was closed for.
    pub(crate) fn step(&self, session: &str, step: &str) -> String {
        let state = &self.purchase(session)["steps"][step];
        let word = if state["state"] == "closed" { &state["reason"] } else { &state["state"] };
        word.as_str().unwrap_or("absent").to_owned()
    }

    /// All four steps at once.
    pub(crate) fn steps(&self, session: &str) -> [String; 4] {
        ["d0", "d3", "d7", "d14"].map(|step| self.step(session, step))
    }

    /// Edits the ledger as a person would.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut ledger = self.ledger();
        edit(&mut ledger);
        self.write("ledger.json", serde_json::to_string_pretty(&ledger).unwrap());
    }

    /// [`Shop::everything`] but the lock, which a command that refuses afterwards has held.
    pub(crate) fn kept(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut kept = self.everything();
        kept.remove(&self.path("ledger.json.lock"));
        kept
    }

    /// Every file below the shop with its content, to see that nothing changed.
    pub(crate) fn everything(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        collect(self.folder.path(), &mut found);
        found
    }
}

/// Says that a story could not be told on this machine, past the test harness, which keeps quiet about what passes.
pub(crate) fn skipped(why: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("\nSKIPPED: {why}\n").as_bytes());
}

fn collect(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap_or_default());
        }
    }
}

fn names(folder: &Path, ending: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter_map(|name| name.strip_suffix(ending).map(|name| name.replacen('.', ":", 2)))
        .collect();
    names.sort();
    names
}

impl Ran {
    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts the exit code, showing what was said otherwise.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// Asserts that something was said on either stream.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(
            self.stdout.contains(text) || self.stderr.contains(text),
            "`{text}` was not said\nstdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that no whole mail address was said (R17). Every address of the stories is at some `example`; a masked
    /// one reads `h…@e….com`, and a Message-ID of ours is 40 hex digits at the shop's domain.
    #[track_caller]
    pub(crate) fn hides_addresses(self) -> Self {
        for said in [&self.stdout, &self.stderr] {
            let told = said.to_ascii_lowercase();
            let whole = told.match_indices("@example").any(|(at, _)| {
                let name = told[..at].rsplit('<').next().unwrap();
                name.len() != 40 || !name.bytes().all(|b| b.is_ascii_hexdigit())
            });
            assert!(!whole && !told.contains('＠'), "a whole address was said: {said}");
        }
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}\nstdout: {}\nstderr: {}", self.stdout, self.stderr))
    }

    /// The mails of the report: `pp:cs_1:d3 sent`.
    pub(crate) fn mails(&self) -> Vec<String> {
        let report = self.json();
        let mails = report["mails"].as_array().unwrap().iter();
        mails
            .map(|mail| format!("{} {}", mail["key"].as_str().unwrap(), mail["result"].as_str().unwrap()))
            .collect()
    }

    /// The closings of the report: `cs_1 d3 stale`.
    pub(crate) fn closed(&self) -> Vec<String> {
        let report = self.json();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let closed = report["closed"].as_array().unwrap().iter();
        closed
            .map(|step| {
                format!("{} {} {}", word(&step["session"]), word(&step["step"]), word(&step["reason"]))
            })
            .collect()
    }

    /// The kinds of the notices in the report.
    pub(crate) fn notices(&self) -> Vec<String> {
        let report = self.json();
        report["notices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|notice| notice["kind"].as_str().unwrap().to_owned())
            .collect()
    }
}
