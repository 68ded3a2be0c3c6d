//! What starts stepmail every hour: the files for launchd and systemd and the README's line for cron, as the schedulers
//! would use them, in a bare environment. `.ci/run` has systemd look at its units too.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::shop::{Ran, STEPMAIL, Shop, skipped};

const README: &str = include_str!("../../README.md");
const PLIST: &str = include_str!("../../launchd/stepmail.hourly.plist");
const SERVICE: &str = include_str!("../../systemd/stepmail.service");
const TIMER: &str = include_str!("../../systemd/stepmail.timer");
const FAILURE: &str = include_str!("../../systemd/stepmail-failure.service");

const AGENT: &str = "Library/LaunchAgents/stepmail.hourly.plist";

/// Fills the agent in by the README's own line, in a home folder with a blank in its name.
fn filled() -> (Shop, String) {
    let shop = Shop::bare();
    shop.write("clone/launchd/stepmail.hourly.plist", PLIST);
    shop.write("Hanako Shop/Library/LaunchAgents/.keep", "");
    let home = shop.path("Hanako Shop").display().to_string();
    let sed = README.lines().find(|line| line.starts_with("sed ")).expect("a line of sed in the README");
    let mut shell = Command::new("sh");
    shell.args(["-c", sed]).current_dir(shop.path("clone")).env("HOME", &home);
    Ran::of(&shell.output().unwrap()).exits(0);
    (shop, home)
}

fn checked(file: &Path, home: &str) -> Ran {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/plist.py");
    Ran::of(&Command::new("python3").arg(script).arg(file).arg(home).output().unwrap())
}

#[test]
fn the_agent_that_the_readme_fills_in_has_every_key_launchd_needs_and_no_other() {
    let (shop, home) = filled();
    let agent = format!("Hanako Shop/{AGENT}");
    let good = shop.read(&agent);
    assert!(!good.contains('@'), "a placeholder was left");
    checked(&shop.path(&agent), &home).exits(0);
    // What launchd takes without a word, or refuses without one.
    let label = "<key>Label</key>";
    for (part, broken, said) in [
        ("<integer>63</integer>", "<string>0077</string>", "Umask: '0077' is str, and int belongs there"),
        ("<integer>63</integer>", "<integer>77</integer>", "Umask: 77, and 63 belongs there"),
        ("<integer>7</integer>", "<string>7</string>", "StartCalendarIntervalMinute"),
        ("<key>Minute</key>", "<key>Minutes</key>", "Minutes: is not a key"),
        ("<key>Umask</key>", "<key>UMask</key>", "UMask: is not a key"),
        ("<true/>", "<integer>1</integer>", "RunAtLoad: 1 is int"),
        ("<key>RunAtLoad</key>\n  <true/>", "", "RunAtLoad: is missing"),
        (&home, ".", "belongs there"),
        (&home, "~", "belongs there"),
        ("Application Support", "../Documents", "WorkingDirectory"),
        (
            label,
            &format!("<key>EnvironmentVariables</key><dict><key>K</key><string>re_1</string></dict>{label}"),
            "EnvironmentVariables: is not a key",
        ),
        (
            "<string>--quiet</string>",
            "<string>--quiet</string><string>--key=re_1</string>",
            "ProgramArguments",
        ),
        ("</plist>", "", "no element found"),
    ] {
        assert!(good.contains(part), "{part} is not in the agent");
        shop.write("broken.plist", good.replace(part, broken));
        checked(&shop.path("broken.plist"), &home).exits(1).says(said);
    }
}

#[test]
fn the_agents_command_runs_in_silence_where_the_readme_puts_the_shop() {
    let (shop, home) = filled();
    let dump = "import json, plistlib, sys; print(json.dumps(plistlib.load(open(sys.argv[1], 'rb'))))";
    let agent = shop.path(&format!("Hanako Shop/{AGENT}"));
    let agent =
        Ran::of(&Command::new("python3").args(["-c", dump]).arg(agent).output().unwrap()).exits(0).json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let arguments: Vec<String> = agent["ProgramArguments"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(arguments[0], format!("{home}/.cargo/bin/stepmail"), "where `cargo install` puts it");
    let data = text(&agent["WorkingDirectory"]);
    shop.command(&["init", "-q", &data]).env("HOME", &home).status().unwrap();
    let mut run = Command::new(STEPMAIL);
    run.args(&arguments[1..]).current_dir(&data).env_clear().env("HOME", &home).stdin(Stdio::null());
    is_silent(&Ran::of(&run.output().unwrap()).exits(0));
}

#[track_caller]
fn is_silent(ran: &Ran) {
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("", ""),
        "a scheduler would mail this every hour"
    );
}

/// A shop that belongs to another user than the one who tests, with the program in it: what cron and systemd have.
struct Servant {
    shop: Shop,
    user: Option<u32>,
}

impl Servant {
    fn new() -> Self {
        let shop = Shop::bare();
        std::fs::create_dir_all(shop.path(".cargo/bin")).unwrap();
        std::fs::copy(STEPMAIL, shop.path(".cargo/bin/stepmail")).unwrap();
        let servant = Self { shop, user: None };
        servant.command("$HOME/.cargo/bin/stepmail init -q shop").exits(0);
        let owner = Command::new("chown").args(["-R", "12345:12345"]).arg(servant.shop.path("")).output();
        if owner.is_ok_and(|ran| ran.status.success()) {
            return Self { user: Some(12_345), ..servant };
        }
        skipped("only root can run a shop as somebody else; it was run as this user");
        servant
    }

    /// A command as cron runs it: a shell, HOME, the shortest PATH, and nothing else.
    fn command(&self, line: &str) -> Ran {
        let home = self.shop.path("").display().to_string();
        let home = home.trim_end_matches('/');
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", line]).current_dir(home).env_clear().stdin(Stdio::null());
        shell.envs([
            ("HOME", home),
            ("PATH", "/usr/bin:/bin"),
            ("SHELL", "/bin/sh"),
            ("LOGNAME", "stepmail"),
        ]);
        if let Some(user) = self.user {
            shell.uid(user).gid(user);
        }
        Ran::of(&shell.output().unwrap())
    }

    /// One line, so that a mail of cron's is one sentence.
    #[track_caller]
    fn complains(&self, line: &str, code: i32, said: &str) {
        let ran = self.command(line).exits(code).says(said).hides_addresses();
        assert_eq!(
            ran.stdout.lines().count() + ran.stderr.lines().count(),
            1,
            "{}{}",
            ran.stdout,
            ran.stderr
        );
    }
}

#[test]
fn the_line_for_cron_is_silent_on_success_and_says_one_line_on_trouble() {
    let (_, line) = README.split_once("echo '7 * * * * ").expect("the line for cron in the README");
    let (line, _) = line.split_once('\'').unwrap();
    assert!(!line.contains('%'), "cron ends a command at a percent sign");
    for word in line.split(' ').filter(|word| word.contains('/')) {
        assert!(
            word.starts_with("\"$HOME/") && word.ends_with('"'),
            "{word} is no absolute path that may hold a blank"
        );
    }
    let cron = Servant::new();
    is_silent(&cron.command(line).exits(0));
    is_silent(&cron.command(line).exits(0));
    let now = cron.command("date -u +%Y-%m-%dT%H:%M:%SZ").stdout;
    let bought = format!(
        r#"{{"id":"e1","type":"checkout.completed","session":"cs_1","email":"a@example.com","paid_at":"{}"}}"#,
        now.trim()
    );
    cron.shop.write("shop/spool/one.jsonl", format!("{bought}\n"));
    is_silent(&cron.command(line).exits(0));
    assert!(cron.shop.path("shop/outbox/pp.cs_1.d0.eml").exists(), "the mail of the purchase is not there");
    cron.shop.write("shop/spool/two.jsonl", format!("{}\n", &bought[..40]));
    cron.command(line).exits(65).says("two.jsonl");
    is_silent(&cron.command(line).exits(0));
    let ledger = cron.shop.read("shop/ledger.json");
    cron.shop.write("shop/ledger.json", &ledger[..ledger.len() / 2]);
    cron.complains(line, 65, "ledger.json");
    cron.shop.write("shop/ledger.json", ledger);
    is_silent(&cron.command(line).exits(0));
    cron.shop.rename("shop/stepmail.toml", "shop/stepmail.toml.away");
    cron.complains(line, 78, "stepmail.toml");
}

#[test]
fn the_services_command_runs_in_silence_in_the_environment_that_the_unit_gives() {
    let servant = Servant::new();
    let here = servant.shop.path("shop").display().to_string();
    let values = |name: &'static str| {
        let lines = SERVICE.lines().filter_map(move |line| line.strip_prefix(name));
        lines.map(|value| value.replace("/var/lib/stepmail", &here)).collect::<Vec<_>>()
    };
    let environment = values("Environment=");
    let [command] = &values("ExecStart=")[..] else { panic!("one command") };
    let command = command.replace("/usr/local/bin/stepmail", "$PROGRAM");
    let [folder] = &values("WorkingDirectory=")[..] else { panic!("one folder") };
    let program = format!("PROGRAM={}", servant.shop.path(".cargo/bin/stepmail").display());
    let line = format!("cd {folder} && env -i {program} {} sh -c '{command}'", environment.join(" "));
    is_silent(&servant.command(&line).exits(0));
    // The settings' `~` is a place within the one folder that the sandbox lets it write.
    assert!(servant.shop.path("shop/.local/state/stepmail/installation").exists());
    let names: Vec<&str> = environment.iter().map(|value| value.split('=').next().unwrap()).collect();
    assert_eq!(names, ["HOME", "STEPMAIL_CONFIG"], "every user may read a unit: no key has a place in it");
}

#[test]
fn each_line_of_the_units_that_a_promise_hangs_on_is_there() {
    for (unit, line, why) in [
        (SERVICE, "Type=oneshot", "a run ends; the timer must not take the first second for success"),
        (SERVICE, "User=stepmail", "the ledger has one owner, and that is not root (C063)"),
        (SERVICE, "TimeoutStartSec=50min", "a oneshot has none, and a run that hangs would be the last"),
        (SERVICE, "SuccessExitStatus=75", "\"try again later\" is not a failure"),
        (
            SERVICE,
            "OnFailure=stepmail-failure.service",
            "else a shop that sends nothing is noticed by its buyers",
        ),
        (SERVICE, "StateDirectory=stepmail", "the one place that is written, and that survives an update"),
        (SERVICE, "WorkingDirectory=/var/lib/stepmail", "a relative path means the same as by hand"),
        (SERVICE, "UMask=0077", "addresses are for the owner alone (R17)"),
        (SERVICE, "LimitCORE=0", "a core dump holds keys and texts (R17)"),
        (SERVICE, "NoNewPrivileges=yes", "what reads mail replies some day gets no more rights"),
        (SERVICE, "ProtectSystem=strict", "only the state folder and the spool can be written"),
        (SERVICE, "ReadWritePaths=-/var/spool/stepmail", "a web server's events need a place outside 0700"),
        (SERVICE, "ProtectHome=yes", "nobody's home is its business"),
        (SERVICE, "PrivateTmp=yes", "nobody can put a link in its way"),
        (TIMER, "OnCalendar=*-*-* *:00:00 UTC", "by local time summer time skips an hour"),
        (TIMER, "Persistent=true", "the hours a machine was off are made up for"),
        (TIMER, "RandomizedDelaySec=5min", "not all shops ask the mail service in the same second"),
        (TIMER, "FixedRandomDelay=true", "two runs stay an hour apart"),
        (TIMER, "WantedBy=timers.target", "else it is gone after the next boot"),
        (FAILURE, "SyslogLevel=err", "`journalctl -p err` finds it"),
        (FAILURE, "Type=oneshot", "it says its line and ends"),
    ] {
        assert!(unit.lines().any(|found| found == line), "`{line}` is missing: {why}");
    }
    // The lock's record needs the boot id in /proc/sys, or a dead holder of no installation is never known as dead.
    assert!(!SERVICE.lines().any(|line| line.starts_with("ProcSubset=")));
    // systemd does not start a unit whose credential is not there, and this version needs none.
    assert!(!SERVICE.lines().any(|line| line.starts_with("LoadCredential")));
    assert!(SERVICE.contains("\n#LoadCredential="), "the line to enable is not shown");
    let says = FAILURE.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
    assert!(says.ends_with("${MONITOR_EXIT_STATUS}\""), "empty before systemd 251: nothing may follow it");
    assert!(README.contains("2770 /var/spool/stepmail"), "the folder that the unit lets the service write");
    let (_, sed) = README.split_once("sudo sed -i 's|").unwrap();
    let from = sed.split('|').next().unwrap().trim_start_matches('^');
    let sample = include_str!("../../src/config/stepmail.toml");
    assert_eq!(
        sample.matches(&format!("\n{from}")).count(),
        1,
        "the README changes another line of the settings"
    );
    assert!(!TIMER.contains("OnFailure") && !FAILURE.contains("OnFailure"), "a notice must not start itself");
}
