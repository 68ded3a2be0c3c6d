//! The README's commands, run as they stand there: a newcomer types nothing else.

use std::path::Path;
use std::process::Command;

use crate::shop::{Ran, STEPMAIL, Shop};

const README: &str = include_str!("../../README.md");

/// The fenced block that follows a marker.
pub(crate) fn block(marker: &str) -> &'static str {
    let (_, after) =
        README.split_once(&format!("<!-- {marker} -->\n")).unwrap_or_else(|| panic!("no <!-- {marker} -->"));
    let (_, inside) = after.split_once('\n').unwrap();
    // Within a list it is indented.
    let end = ["\n```", "\n   ```"].into_iter().filter_map(|fence| inside.find(fence)).min().unwrap();
    &inside[..end]
}

/// A fresh clone, as far as the commands need it.
fn clone() -> Shop {
    let shop = Shop::bare();
    shop.write("ledger.example.json", include_str!("../../ledger.example.json"));
    shop
}

/// Runs a command of the README, with the built program in place of `cargo run --`.
fn types(shop: &Shop, command: &str) -> Ran {
    let command = command.replace("cargo run --", STEPMAIL);
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).current_dir(shop.path("")).env_clear().env("HOME", shop.path("home"));
    let program = Path::new(STEPMAIL).parent().unwrap().display();
    shell.env("PATH", format!("{program}:/usr/bin:/bin"));
    Ran::of(&shell.output().unwrap())
}

#[test]
fn a_newcomer_sees_all_four_kinds_of_mail_after_one_command() {
    let shop = clone();
    let command = block("main job");
    assert_eq!(command.lines().count(), 1, "the main job is one line");
    let ran = types(&shop, command).exits(0);
    assert_eq!(ran.stdout.trim_end(), block("main job output").trim_end());
    for step in ["d0", "d3", "d7", "d14"] {
        assert!(
            shop.outbox().iter().any(|key| key.ends_with(&format!(":{step}"))),
            "no {step} in the outbox"
        );
    }
    // The open plan of the example was sent with the bytes it was planned with.
    let planned = include_str!("../../ledger.example.json");
    let planned: serde_json::Value = serde_json::from_str(planned).unwrap();
    let buyers = planned["buyers"].as_array().unwrap();
    let yuki = buyers.iter().find(|buyer| buyer["address"] == "yuki@example.com").unwrap();
    assert_eq!(
        shop.mail("cs_yuki", "d0"),
        yuki["purchases"][0]["steps"]["d0"]["message"]["body"].as_str().unwrap()
    );
}

#[test]
fn a_newcomer_who_types_it_twice_doubles_nothing() {
    let shop = clone();
    types(&shop, block("main job")).exits(0);
    let mails = shop.outbox();
    let files: Vec<_> =
        shop.everything().into_iter().filter(|(path, _)| path.starts_with(shop.path("outbox"))).collect();
    types(&shop, block("main job")).exits(0);
    assert_eq!(mails, shop.outbox());
    let again: Vec<_> =
        shop.everything().into_iter().filter(|(path, _)| path.starts_with(shop.path("outbox"))).collect();
    assert_eq!(files, again);
}

#[test]
fn status_explains_every_purchase_of_the_example() {
    let shop = clone();
    types(&shop, block("main job")).exits(0);
    let status = types(&shop, block("status")).exits(0);
    for buyer in shop.ledger()["buyers"].as_array().unwrap() {
        for purchase in buyer["purchases"].as_array().unwrap() {
            assert!(status.stdout.contains(purchase["session"].as_str().unwrap()));
        }
    }
    for said in [
        "closed 2026-10-08T09:00:00Z: stopped",
        "closed 2026-10-08T09:00:00Z: started",
        "repurchase",
        "unknown_result",
        "waits for its payment",
    ] {
        assert!(status.stdout.contains(said), "`{said}` is not explained in\n{}", status.stdout);
    }
}

#[test]
fn the_commands_of_the_set_up_work_in_this_order() {
    let shop = Shop::bare();
    shop.write("home/.keep", "");
    types(&shop, &format!("{STEPMAIL} init --templates")).exits(0).says("made  ./stepmail.toml");
    let (_, set_up) = README.split_once("## Set up your shop\n").unwrap();
    let (set_up, _) = set_up.split_once("\n## ").unwrap();
    let events = set_up.lines().map(str::trim).filter(|line| line.starts_with('{'));
    let events: String = events.flat_map(|line| [line, "\n"]).collect();
    assert_eq!(events.lines().count(), 2, "a purchase and a stop");
    shop.write("events.jsonl", events);
    // Written later than the day of the README's purchase: by default that one is history.
    types(&shop, &format!("{STEPMAIL} run --dry-run --events events.jsonl"))
        .exits(0)
        .says("1 from before go-live");
    types(&shop, &format!("{STEPMAIL} run --events events.jsonl")).exits(0);
    types(&shop, &format!("{STEPMAIL} status")).exits(0);
    types(&shop, &format!("{STEPMAIL} run -q --events events.jsonl")).exits(0);
    assert!(shop.outbox().is_empty());
    // `init` again keeps everything.
    types(&shop, &format!("{STEPMAIL} init --templates")).exits(0).says("kept  ./ledger.json");
}

#[test]
fn the_first_mail_comes_within_minutes_as_it_is_typed() {
    let shop = Shop::bare();
    shop.write("home/.keep", "");
    types(&shop, &format!("{STEPMAIL} init --templates")).exits(0);
    types(&shop, block("first mail"))
        .exits(0)
        .says("took in   1 purchase")
        .says("sent      d0   cs_0")
        .says("To: you@example.com")
        .says("d3: from ");
    assert_eq!(shop.outbox(), ["pp:cs_0:d0"]);
}

#[test]
fn every_setting_and_exit_code_stands_in_the_readme() {
    let help = Shop::bare().stepmail(&["--help"]).exits(0).stdout;
    for code in ["0", "1", "2", "65", "66", "73", "75", "78"] {
        assert!(README.contains(&format!("\n| {code} | ")), "exit code {code} is not in the README");
        assert!(help.contains(&format!("  {code} ")), "exit code {code} is not in --help");
    }
    let sample = include_str!("../../src/config/stepmail.toml");
    for line in sample.lines().filter_map(|line| line.split_once(" = ")) {
        let name = line.0.trim_start_matches("# ");
        assert!(README.contains(name), "setting {name} is not in the README");
    }
}
