//! Before the first mail: keys, settings, the service's clock, and being offline (R12, C011).

use std::process::Command;

use stepmail::clock::Clock;
use stepmail::domain::time::{Seconds, Timestamp};

use crate::double::{Act, Double, KEY, refuse};
use crate::readme::block;
use crate::shop::{Ran, STEPMAIL, Shop};

fn now() -> Timestamp {
    Clock::new(None).machine()
}

fn ago(span: Seconds) -> String {
    (now() - span).to_string()
}

/// A shop whose buyer paid a minute ago, by the machine's own clock.
fn shop() -> (Double, Shop) {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    shop.buys("cs_1", "hanako@example.com", &ago(Seconds::minutes(1)));
    (double, shop)
}

/// The run as cron starts it, without `--now`.
fn run(shop: &Shop) -> Ran {
    shop.stepmail(&["run", "--json", "--events", "events.jsonl"])
}

/// The same shop with another address of the service, and a seller's own names.
fn moved_to(shop: &Shop, from: &str, to: &str) {
    let own = "from = \"Shop <hello@shop.example>\"\nreply_to = \"hello@shop.example\"\noperator = \"owner@shop.example\"\n\
               business = \"Shop\"\nbusiness_address = \"Kyoto\"\n";
    let settings =
        shop.read("stepmail.toml").replace(from, to).replace("[mail]\n", &format!("[mail]\n{own}"));
    shop.write("stepmail.toml", settings + "\n[vars]\nlogin_url = \"https://shop.example/login\"\n");
}

#[test]
fn r12_a_run_by_the_machines_clock_asks_the_service_for_its_time_first() {
    let (double, shop) = shop();
    assert_eq!(run(&shop).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    let methods: Vec<String> = double.requests().iter().map(|seen| seen.method.clone()).collect();
    assert_eq!(methods, ["GET", "POST"]);
    // A key that may only send is refused with a Date, and that will do.
    let (double, shop) = self::shop();
    double.may_only_send(true);
    assert_eq!(run(&shop).exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn r12_a_run_that_has_nothing_to_do_asks_nobody() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    shop.stepmail(&["run"]).exits(0);
    assert_eq!(double.requests().len(), 0);
}

#[test]
fn r12_a_clock_that_differs_from_the_services_holds_the_run_and_the_owner_is_told_once() {
    for (off, kind) in [(11 * 60, "clock_behind"), (-11 * 60, "clock_ahead"), (86_400 * 400, "clock_behind")]
    {
        let (double, shop) = shop();
        double.date_off_by(off);
        let ledger = shop.read("ledger.json");
        for _ in 0..2 {
            let ran = run(&shop).exits(1).says("apart");
            assert_eq!((ran.notices(), ran.mails().len()), (vec![kind.to_owned()], 0));
        }
        assert_eq!((double.posts(), double.notices().len()), (0, 1), "{off}");
        assert_eq!(shop.read("ledger.json"), ledger, "a held run wrote something");
        double.date_off_by(9 * 60);
        assert_eq!(run(&shop).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    }
}

#[test]
fn r12_a_service_without_a_date_is_no_witness_and_a_person_may_vouch_for_the_clock() {
    let (double, shop) = shop();
    double.without_date(true);
    run(&shop).exits(75).says("without a Date");
    assert_eq!(double.posts(), 0);
    let ran = shop.stepmail(&["run", "--json", "--accept-clock", "--events", "events.jsonl"]).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn r12_a_long_pause_is_explained_by_a_service_whose_clock_agrees() {
    let (double, shop) = shop();
    shop.edit(|ledger| ledger["last_run"] = serde_json::json!({ "at": ago(Seconds::days(50)) }));
    shop.edit(|ledger| ledger["go_live"] = "2026-01-01T00:00:00Z".into());
    double.date_off_by(86_400 * 50);
    run(&shop).exits(1);
    double.date_off_by(0);
    assert_eq!(run(&shop).exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn r12_offline_nothing_is_taken_in_closed_or_sent_and_the_way_in_still_comes_when_the_line_is_back() {
    let (double, shop) = shop();
    shop.write("spool/order.json", shop.read("events.jsonl"));
    let ledger = shop.read("ledger.json");
    let settings = shop.read("stepmail.toml");
    // Refused; TLS with what is no TLS; and a name that cannot be resolved, with every way to a resolver closed.
    let closed = { Double::new().url() };
    std::thread::sleep(std::time::Duration::from_millis(100));
    for url in [closed, double.url().replace("http://", "https://")] {
        shop.write("stepmail.toml", settings.replace(&double.url(), &url));
        shop.stepmail(&["run"]).exits(75).says("cannot be reached").hides_addresses();
        shop.stepmail(&["run", "-q"]).exits(75);
    }
    shop.write("stepmail.toml", &settings);
    moved_to(&shop, &double.url(), "https://mail.shop.example");
    assert_eq!(shop.under_strace(&["run"], "connect", "error=ENETUNREACH"), Some(75));
    assert!(shop.path("spool/order.json").exists(), "an event was taken in offline");
    assert_eq!(shop.read("ledger.json"), ledger);
    assert_eq!(double.posts(), 0);
    // 25 hours later.
    shop.write("stepmail.toml", settings);
    let span = 25 * 3600;
    double.date_off_by(span);
    let mut command = Command::new("faketime");
    command
        .args(["-f", &format!("+{span}"), STEPMAIL, "run", "--json"])
        .current_dir(shop.path(""))
        .env_clear();
    command.env("HOME", shop.path("")).env("RESEND_API_KEY", KEY).env("PATH", std::env::var("PATH").unwrap());
    let ran = Ran::of(&command.output().expect("faketime is needed: apt-get install faketime")).exits(0);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn c010_a_service_that_was_away_for_25_hours_gets_the_mail_afterwards() {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    shop.buys("cs_1", "hanako@example.com", "2026-10-01T00:00:00Z");
    let settings = shop.read("stepmail.toml");
    let closed = { Double::new().url() };
    std::thread::sleep(std::time::Duration::from_millis(100));
    for (url, hour) in [(closed, 1), (double.url().replace("http://", "https://"), 2)] {
        shop.write("stepmail.toml", settings.replace(&double.url(), &url));
        shop.run(&format!("2026-10-01T{hour:02}:00:00Z")).exits(75).says("no connection");
        assert_eq!(shop.step("cs_1", "d0"), "pending", "nothing left, so nothing may have");
    }
    shop.write("stepmail.toml", settings);
    assert_eq!(shop.run("2026-10-02T02:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn now_is_refused_where_mails_can_leave() {
    let (double, shop) = shop();
    moved_to(&shop, &double.url(), "https://mail.shop.example");
    let before = shop.everything();
    for args in [
        &["run", "--now", "2026-10-01T01:00:00Z"][..],
        &["run", "--json", "--now", "2026-10-01T01:00:00Z"],
        &["mark-stopped", "cs_1", "--now", "2026-10-01T01:00:00Z"],
        &["reconcile", "--now", "2026-10-01T01:00:00Z"],
        &["ingest", "events.jsonl", "--now", "2026-10-01T01:00:00Z"],
    ] {
        let ran = shop.stepmail(args).exits(2).says("--now is for rehearsals");
        assert_eq!(ran.stdout, "");
    }
    assert_eq!(shop.everything(), before);
    shop.stepmail(&["run", "--dry-run", "--now", "2027-01-01T00:00:00Z", "--events", "events.jsonl"])
        .exits(0)
        .says("would go  d0   cs_1");
    shop.stepmail(&["status", "--now", "2027-01-01T00:00:00Z"]).exits(0);
}

#[test]
fn c011_without_a_key_nothing_is_touched_and_the_place_is_named_and_not_its_content() {
    let (double, mut shop) = shop();
    let before = shop.everything();
    for (value, said) in [
        (None, "RESEND_API_KEY"),
        (Some(""), "is empty"),
        (Some("   "), "is empty"),
        (Some("sk_live_12345678"), "`re_`"),
    ] {
        shop.without_variable("RESEND_API_KEY");
        if let Some(value) = value {
            shop.variable("RESEND_API_KEY", value);
        }
        let ran = run(&shop).exits(78).says(said);
        assert!(!ran.stdout.contains("12345678") && !ran.stderr.contains("12345678"));
        assert_eq!(shop.everything(), before);
    }
    shop.stepmail(&["status"]).exits(0);
    assert_eq!(double.requests().len(), 0);
}

#[test]
fn the_examples_names_do_not_leave_with_real_mails() {
    let (double, shop) = shop();
    let settings = shop.read("stepmail.toml");
    shop.write("stepmail.toml", settings.replace(&double.url(), "https://mail.shop.example"));
    let before = shop.everything();
    run(&shop).exits(78).says("mail.from").says("example's values");
    assert_eq!(shop.everything(), before);
}

#[test]
fn a_proxy_in_the_environment_leads_nothing_away_from_this_machine() {
    let (double, mut shop) = shop();
    let proxy = Double::new();
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"] {
        shop.variable(name, &proxy.url());
    }
    assert_eq!(run(&shop).exits(0).mails(), ["pp:cs_1:d0 sent"]);
    assert_eq!((proxy.requests().len(), double.posts()), (0, 1));
}

#[test]
fn a_key_comes_from_a_file_a_command_or_a_credential() {
    for place in ["file", "command", "credential"] {
        let (double, mut shop) = shop();
        shop.without_variable("RESEND_API_KEY");
        shop.write("keys/resend_api_key", format!("  {KEY}\n"));
        let mode = |mode| {
            let path = shop.path("keys/resend_api_key");
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(0o600);
        let add = |line: &str| {
            let settings = shop.read("stepmail.toml").replace("[resend]\n", &format!("[resend]\n{line}\n"));
            shop.write("stepmail.toml", settings);
        };
        match place {
            "file" => {
                add("api_key_file = \"keys/resend_api_key\"");
                mode(0o644);
                run(&shop).exits(78).says("chmod 600");
                mode(0o600);
            }
            "command" => add("api_key_command = [\"/bin/cat\", \"keys/resend_api_key\"]"),
            _ => {
                let folder = shop.path("keys").display().to_string();
                shop.variable("CREDENTIALS_DIRECTORY", &folder);
            }
        }
        assert_eq!(run(&shop).exits(0).mails(), ["pp:cs_1:d0 sent"], "{place}");
        drop(double);
    }
}

#[test]
fn check_says_whether_key_domain_and_rights_will_do_and_sends_nothing() {
    let (double, mut shop) = shop();
    let check = |shop: &Shop| shop.stepmail(&["check"]).hides_addresses();
    let before = shop.everything();
    check(&shop)
        .exits(0)
        .says("may send mails and read what became of them")
        .says("mails from example.com are taken");
    double.domain("example.com", "pending");
    check(&shop).exits(1).says("not verified (`pending`)");
    double.domain("mail.example.com", "verified");
    check(&shop).exits(1).says("does not have the domain");
    double.may_only_send(true);
    check(&shop).exits(0).says("not read what became of them");
    double.may_only_send(false);
    double.domain("example.com", "verified");
    double.date_off_by(3600);
    check(&shop).exits(1).says("apart");
    double.date_off_by(0);
    double.for_reads(refuse(401, "invalid_api_key", "API key is invalid"));
    check(&shop).exits(1).says("refuses the key");
    double.for_reads(Act::Raw(200, "text/html", b"<h1>Welcome</h1>".into()));
    check(&shop).exits(1).says("it is no list of mails");
    double.for_reads(refuse(503, "application_error", "no"));
    check(&shop).exits(75).says("cannot be asked");
    shop.without_variable("RESEND_API_KEY");
    check(&shop).exits(78).says("RESEND_API_KEY");
    assert_eq!(shop.everything(), before);
    assert!(double.requests().iter().all(|seen| seen.method == "GET"));
}

/// The README's "Real mails", typed line by line, with a service on this machine.
#[test]
fn a_newcomer_sends_the_first_real_mail_with_the_readmes_lines() {
    let double = Double::new();
    double.domain("shop.example", "verified");
    let shop = Shop::bare();
    shop.stepmail(&["init", "--templates"]).exits(0);
    let types = |marker: &str, input: &str| {
        let mut shell = Command::new("sh");
        shell
            .args(["-ec", block(marker)])
            .current_dir(shop.path(""))
            .env_clear()
            .env("HOME", shop.path("home"));
        let program = std::path::Path::new(STEPMAIL).parent().unwrap().display();
        shell.env("PATH", format!("{program}:/usr/bin:/bin"));
        shell.stdin(std::process::Stdio::piped());
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes());
        Ran::of(&child.wait_with_output().unwrap())
    };
    types("first mail", "").exits(0);
    types("key", &format!("{KEY}\n")).exits(0);
    let settings = shop
        .read("stepmail.toml")
        .replace("transport = \"outbox\"", "transport = \"resend\"")
        .replace("# api_key_file = \"resend.key\"", "api_key_file = \"resend.key\"");
    // As the README's step 3 leaves it, but for the names that are still the example's.
    shop.write("stepmail.toml", &settings);
    shop.stepmail(&["run"]).exits(78).says("example's values");
    let settings = settings
        .replace("https://api.resend.com", &double.url())
        .replace("@example.com", "@shop.example")
        .replace("Example Shop", "Aiko's Shop")
        .replace("1-2-3 Example", "1-2-3 Sakura")
        .replace("# login_url = \"https://example.com", "login_url = \"https://shop.example");
    shop.write("stepmail.toml", settings);
    types("check", "")
        .exits(1)
        .says("may send mails and read")
        .says("mails from shop.example are taken")
        .says("adopt --outbox");
    types("keep", "").exits(0);
    types("check", "").exits(0);
    let ran = types("first real mail", "").exits(0);
    let [mail] = &double.deliveries()[..] else { panic!("{}\n{}", ran.stdout, ran.stderr) };
    assert_eq!((mail.key.as_str(), mail.to.as_str()), ("pp:cs_00:d0", "you@example.com"));
    assert!(mail.body["text"].as_str().unwrap().contains("https://shop.example/login"));
    ran.says(&mail.id);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(shop.path("resend.key")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}
