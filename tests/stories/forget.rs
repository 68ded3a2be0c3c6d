//! A buyer asks to be forgotten (R17): nothing of them stays, nothing starts again, and nobody else loses anything.

use serde_json::{Value, json};
use std::fs;

use crate::shop::{Ran, Shop};

const HANAKO: &str = "hanako@example.com";
const KEN: &str = r#"{"id":"evt_ken","type":"checkout.completed","session":"cs_ken","email":"ken@example.com","paid_at":"2026-10-01T00:00:00Z","name":"Ken"}"#;
/// By what Hanako could be found: the address in any writing, the name, her sessions and ids.
const TRACES: [&str; 8] =
    ["hanako@", "Hanako", "花子", "cs_hana", "evt_cs_hana", "pi_hana", "=E8=8A=B1=E5=AD=90", "6Iqx5a2Q"];

/// Hanako bought twice and Ken once; the mails of the first days have left.
fn shop() -> Shop {
    let shop = Shop::new();
    shop.event(&hanako("cs_hana1", "2026-10-01T00:00:00Z"))
        .event(&hanako("cs_hana2", "2026-10-01T00:30:00Z"));
    shop.event(KEN);
    for now in ["2026-10-01T01:00:00Z", "2026-10-01T02:00:00Z", "2026-10-04T02:00:00Z"] {
        shop.run(now).exits(0);
    }
    // One matter that is told, and one flag.
    shop.event(r#"{"id":"evt_cs_hana9","type":"checkout.completed","session":"cs_hana1","email":"other@example.com","paid_at":"2026-10-01T00:00:00Z"}"#);
    shop.run("2026-10-06T02:00:00Z").exits(1);
    shop.stepmail(&[
        "mark-started",
        "cs_hana1",
        "--reason",
        "Hanako said so",
        "--now",
        "2026-10-06T03:00:00Z",
    ])
    .exits(0);
    assert_eq!(shop.steps("cs_ken"), ["sent", "sent", "pending", "pending"]);
    assert!(shop.outbox().contains(&"pp:cs_hana1:d3".into()) && shop.notices().len() == 1);
    // What the spool keeps: a file of hers alone, one with others, and one that a person is to mend.
    shop.write("spool/done/hana.jsonl", hanako("cs_hana1", "2026-10-01T00:00:00Z") + "\n");
    shop.write("spool/done/all.jsonl", format!("{}\n{KEN}\n", hanako("cs_hana2", "2026-10-01T00:30:00Z")));
    shop.write("spool/rejected/bad.jsonl", format!("{KEN}\n{{\"email\":\"{HANAKO}\n"));
    shop.write("spool/rejected/bad.jsonl.reason", "line 2\n");
    shop
}

fn hanako(session: &str, paid_at: &str) -> String {
    format!(
        r#"{{"id":"evt_{session}","type":"checkout.completed","session":"{session}","email":"Hanako@example.com","paid_at":"{paid_at}","name":"花子 Hanako"}}"#
    )
}

/// Where something of Hanako can still be read. The events file is the seller's own.
fn found(shop: &Shop) -> Vec<String> {
    let mut found = Vec::new();
    for (path, content) in shop.everything() {
        let name = path.strip_prefix(shop.path("")).unwrap().display().to_string();
        let text = format!("{name}\n{}", String::from_utf8_lossy(&content));
        if name != "events.jsonl" {
            found.extend(
                TRACES
                    .iter()
                    .filter(|trace| text.contains(**trace))
                    .map(|trace| format!("{trace} in {name}")),
            );
        }
    }
    found
}

#[track_caller]
fn is_gone(shop: &Shop, when: &str) {
    assert_eq!(found(shop), Vec::<String>::new(), "{when}");
}

fn forget(shop: &Shop, now: &str) -> Ran {
    shop.stepmail(&["forget", HANAKO, "--now", now])
}

fn rest(shop: &Shop) -> (Value, Vec<String>) {
    (shop.purchase("cs_ken"), shop.outbox().into_iter().filter(|key| key.contains("cs_ken")).collect())
}

#[test]
fn c072_who_was_forgotten_is_nowhere_any_more_and_the_others_lost_nothing() {
    let shop = shop();
    for file in ["ledger.json", "ledger.json.bak", "outbox/pp.cs_hana1.d0.eml"] {
        assert!(
            found(&shop).iter().any(|at| at.ends_with(file)),
            "the story looks in the wrong place: {file}"
        );
    }
    let before = rest(&shop);
    let said = forget(&shop, "2026-10-06T04:00:00Z").exits(0).says("2 purchases");
    let said = said.says("1 matter").says("your own backups").says("counts as a repurchase");
    assert!(said.stderr.is_empty(), "{}", said.stderr);
    is_gone(&shop, "after forget");
    assert_eq!(rest(&shop), before);
    let mode =
        |name: &str| std::os::unix::fs::MetadataExt::mode(&fs::metadata(shop.path(name)).unwrap()) & 0o777;
    assert_eq!((mode("ledger.json.bak"), mode("state/forgotten")), (0o600, 0o700));
    let list = fs::read_dir(shop.path("state/forgotten")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&fs::metadata(list).unwrap()) & 0o777, 0o600);

    // The same events again, for the rest of the month: nothing of hers, everything of his.
    for (now, mails) in [
        ("2026-10-06T05:00:00Z", vec![]),
        ("2026-10-08T05:00:00Z", vec!["pp:cs_ken:d7 sent"]),
        ("2026-10-15T05:00:00Z", vec!["pp:cs_ken:d14 sent"]),
        ("2026-10-29T05:00:00Z", vec![]),
    ] {
        let ran = shop.run(now).exits(0).hides_addresses();
        assert_eq!(ran.mails(), mails, "{now}");
        assert!(ran.closed().is_empty() && ran.notices().is_empty(), "{}", ran.stdout);
        is_gone(&shop, now);
    }
    assert_eq!(shop.run("2026-10-29T06:00:00Z").json()["ingested"]["duplicates"], 4);
}

#[test]
fn r17_twice_is_once_and_the_second_time_says_so() {
    let shop = shop();
    forget(&shop, "2026-10-06T04:00:00Z").exits(0);
    let once = shop.kept();
    forget(&shop, "2026-10-06T05:00:00Z")
        .exits(0)
        .says("was forgotten before, at 2026-10-06T04:00:00Z; nothing");
    let again =
        shop.stepmail(&["forget", "cs_hana2", "--json", "--now", "2026-10-06T06:00:00Z"]).exits(0).json();
    assert_eq!((&again["changed"], &again["erased"]["mails"]), (&json!(false), &json!(0)));
    assert_eq!(shop.kept(), once);

    // What has come back meanwhile is swept: a mail, and a backup put back.
    shop.write("outbox/pp.cs_hana1.d0.eml", "X-Stepmail-Key: pp:cs_hana1:d0\n\nDear Hanako");
    shop.write("outbox/.stepmail-pp.cs_hana1.d3.eml-AbC123", "X-Stepmail-Key: pp:cs_hana1:d3\n\nDear Hanako");
    shop.write("outbox/.stepmail-pp.cs_other.d3.eml-AbC123", "X-Stepmail-Key: pp:cs_other:d3\n\nDear Emma");
    forget(&shop, "2026-10-06T07:00:00Z").exits(0).says("erased what had come since: 1 mail in the outbox");
    is_gone(&shop, "after a mail came back");
    assert!(shop.path("outbox/.stepmail-pp.cs_other.d3.eml-AbC123").exists(), "another's mail was taken");
    shop.write("ledger.json.bak", self::shop().read("ledger.json"));
    forget(&shop, "2026-10-06T08:00:00Z").exits(0);
    is_gone(&shop, "after a backup came back");
    shop.write("ledger.json.bak", "half a ledger of Hanako@example.com");
    forget(&shop, "2026-10-06T08:00:00Z").exits(0);
    is_gone(&shop, "after a broken backup came back");
    // Nobody can know in which writing a broken backup speaks of her.
    let broken = r#"{"name": "Hanako", "email": "Hanako\u0040example.com"#;
    let forget_again = |how: &[&str]| {
        let args = ["forget", HANAKO, "--json", "--now", "2026-10-06T09:00:00Z"];
        shop.stepmail(&[&args, how].concat()).exits(0).json()["changed"].clone()
    };
    assert_eq!(forget_again(&[]), false);
    shop.write("ledger.json.bak", broken);
    assert_eq!(
        (forget_again(&["--dry-run"]), shop.read("ledger.json.bak")),
        (true.into(), broken.to_owned())
    );
    assert_eq!(forget_again(&[]), true);
    is_gone(&shop, "after a backup of her name alone came back");
}

#[test]
fn what_a_dead_run_left_to_be_saved_is_not_what_forget_changed() {
    let shop = shop();
    // A run dies when it is about to write the ledger.
    shop.under_strace(&["run", "--now", "2026-10-08T02:00:00Z"], "linkat", "signal=KILL:when=1");
    assert!(shop.path("ledger.json.journal").exists());
    for how in [&["--dry-run"][..], &[]] {
        let args = ["forget", "nobody@example.com", "--json", "--now", "2026-10-08T03:00:00Z"];
        let said = shop.stepmail(&[&args, how].concat()).exits(1).json();
        assert_eq!(said["changed"], false, "{how:?}");
    }
}

#[test]
fn r17_by_session_means_its_buyer() {
    let shop = shop();
    let said =
        shop.stepmail(&["forget", "cs_hana2", "--json", "--now", "2026-10-06T04:00:00Z"]).exits(0).json();
    assert_eq!(
        (&said["command"], &said["erased"]["purchases"], &said["changed"]),
        (&json!("forget"), &json!(2), &json!(true))
    );
    is_gone(&shop, "after forget by session");
    forget(&shop, "2026-10-06T05:00:00Z").exits(0).says("was forgotten before");
}

#[test]
fn r17_somebody_nobody_knows_is_not_put_on_the_list() {
    let shop = shop();
    let before = shop.kept();
    for who in ["hanaco@example.com", "cs_none"] {
        shop.stepmail(&["forget", who, "--now", "2026-10-06T04:00:00Z"])
            .exits(1)
            .says("Check the spelling")
            .says(who);
    }
    assert_eq!(shop.kept(), before);
}

#[test]
fn r17_a_dry_run_of_forget_says_the_same_and_changes_not_one_byte() {
    let shop = shop();
    let before = shop.everything();
    let args = ["forget", HANAKO, "--now", "2026-10-06T04:00:00Z"];
    let dry = shop.stepmail(&[&args[..], &["--dry-run"]].concat()).exits(0).says("nothing was changed");
    assert_eq!(shop.everything(), before);
    let quiet = shop.stepmail(&[&args[..], &["--dry-run", "-q"]].concat()).exits(0);
    assert!(quiet.stdout.is_empty() && quiet.stderr.is_empty());
    let real = shop.stepmail(&args).exits(0);
    assert!(dry.stdout.ends_with(&real.stdout), "{}\n{}", dry.stdout, real.stdout);
}

#[test]
fn r17_a_new_session_is_a_repurchase_and_can_be_forgotten_again() {
    let shop = shop();
    forget(&shop, "2026-10-06T04:00:00Z").exits(0);
    shop.event(&hanako("cs_hana3", "2026-10-07T00:00:00Z"));
    let ran = shop.run("2026-10-07T01:00:00Z").exits(0).hides_addresses();
    assert_eq!(ran.mails(), ["pp:cs_hana3:d0 sent"]);
    assert_eq!(shop.steps("cs_hana3"), ["sent", "repurchase", "repurchase", "repurchase"]);
    assert!(shop.mail("cs_hana3", "d0").contains("Hanako@example.com"));
    assert!(shop.purchase("cs_hana1").is_null(), "the old purchase came back");
    // A flag for one who is here again is an ordinary flag.
    shop.stepmail(&["mark-stopped", HANAKO, "--now", "2026-10-07T02:00:00Z"]).exits(0).says("is stopped");
    forget(&shop, "2026-10-07T03:00:00Z")
        .exits(0)
        .says("erased what had come since: 1 purchase")
        .says("was stopped");
    is_gone(&shop, "after the second forget");
    assert_eq!(shop.ledger()["forgotten"]["people"].as_array().unwrap().len(), 1);
    assert!(shop.run("2026-10-07T04:00:00Z").exits(0).mails().is_empty());
}

#[test]
fn r17_a_stop_outlives_being_forgotten() {
    for when in ["before", "after", "event"] {
        let shop = shop();
        let stop = ["mark-stopped", HANAKO, "--now", "2026-10-06T04:00:00Z"];
        if when == "before" {
            shop.stepmail(&stop).exits(0);
        }
        forget(&shop, "2026-10-06T05:00:00Z").exits(0);
        match when {
            "after" => {
                shop.stepmail(&stop).exits(0).says("was forgotten").says("a new purchase gets nothing");
                shop.stepmail(&stop).exits(0).says("nothing changed");
            }
            "event" => {
                shop.event(r#"{"id":"evt_stop","type":"stop","email":"HANAKO@example.com","at":"2026-10-06T05:30:00Z"}"#);
                assert_eq!(shop.run("2026-10-06T06:00:00Z").exits(0).json()["ingested"]["stops"], 1);
                assert_eq!(shop.run("2026-10-06T07:00:00Z").exits(0).json()["ingested"]["stops"], 0);
            }
            _ => {}
        }
        is_gone(&shop, when);
        shop.run("2026-10-06T08:00:00Z").exits(0);
        shop.event(&hanako("cs_hana3", "2026-10-07T00:00:00Z"));
        let ran = shop.run("2026-10-07T01:00:00Z").exits(1).hides_addresses();
        assert_eq!((ran.mails().len(), ran.notices()), (0, vec!["stopped_buyer".into()]), "{when}");
        assert_eq!(shop.steps("cs_hana3"), ["stopped", "repurchase", "repurchase", "repurchase"], "{when}");
        shop.stepmail(&["show", HANAKO]).exits(0).says("buyer stopped");
    }
}

#[test]
fn r17_marks_for_the_forgotten_bring_nobody_back() {
    let shop = shop();
    forget(&shop, "2026-10-06T04:00:00Z").exits(0);
    let before = shop.kept();
    for (command, who) in [
        ("mark-started", HANAKO),
        ("mark-repurchase", HANAKO),
        ("mark-started", "cs_hana1"),
        ("mark-stopped", "cs_hana2"),
        ("mark-repurchase", "cs_hana1"),
    ] {
        shop.stepmail(&[command, who, "--now", "2026-10-06T05:00:00Z"])
            .exits(0)
            .says("forgotten")
            .says("nothing changed");
    }
    assert_eq!(shop.kept(), before);
    shop.stepmail(&["show", HANAKO]).exits(0).says("was forgotten");
    let status = shop.stepmail(&["status", "--all", "--now", "2026-10-06T05:00:00Z"]).exits(0);
    assert!(!status.stdout.contains("cs_hana"), "{}", status.stdout);
}

/// A refund of Stripe's.
fn refund(event: &str, payment_intent: &str, customer: &str) -> String {
    json!({ "object": "event", "id": event, "type": "charge.refunded", "livemode": false, "created": 1_791_331_200,
        "data": { "object": { "object": "charge", "payment_intent": payment_intent, "customer": customer, "refunded": true,
        "billing_details": { "email": HANAKO, "name": "Hanako" } } } })
    .to_string()
}

fn paid(event: &str, session: &str, payment_intent: &str, created: u64) -> String {
    json!({ "object": "event", "id": event, "type": "checkout.session.completed", "livemode": false, "created": created,
        "data": { "object": { "object": "checkout.session", "id": session, "mode": "payment", "payment_status": "paid",
        "payment_intent": payment_intent, "customer": "cus_hana", "customer_details": { "email": HANAKO, "name": "Hanako" } } } })
    .to_string()
}

#[test]
fn r17_a_refund_that_comes_later_is_known_as_theirs_and_tells_nobody() {
    let shop = Shop::new();
    shop.event(&paid("evt_cs_hana1", "cs_hana1", "pi_hana1", 1_790_812_800));
    shop.run("2026-10-01T01:00:00Z").exits(0);
    forget(&shop, "2026-10-02T00:00:00Z").exits(0);
    shop.event(&refund("evt_cs_hana_r1", "pi_hana1", "cus_hana"));
    let ran = shop.run("2026-10-08T01:00:00Z").exits(0);
    assert_eq!(
        (&ran.json()["ingested"]["stops"], &ran.json()["ingested"]["duplicates"]),
        (&json!(0), &json!(2))
    );
    is_gone(&shop, "after the refund");

    // A refund of a purchase that has not come yet, by the same customer: it is stopped when it comes, and until then
    // nothing of the customer stands in the ledger.
    shop.event(&refund("evt_cs_hana_r2", "pi_hana2", "cus_hana"));
    let ran = shop.run("2026-10-08T02:00:00Z").exits(0);
    assert_eq!((&ran.json()["ingested"]["stops"], ran.notices().len()), (&json!(1), 0));
    is_gone(&shop, "after the second refund");
    assert!(!shop.read("ledger.json").contains("cus_hana"));
    assert_eq!(shop.run("2026-10-08T03:00:00Z").exits(0).json()["ingested"]["stops"], 0);
    shop.event(&paid("evt_cs_hana2", "cs_hana2", "pi_hana2", 1_791_331_000));
    assert!(
        shop.run("2026-10-08T04:00:00Z").exits(0).mails().is_empty(),
        "refunded, and mailed all the same"
    );
    assert_eq!(shop.step("cs_hana2", "d0"), "stopped");
    // Another purchase of the same customer is not.
    shop.event(&paid("evt_cs_hana3", "cs_hana3", "pi_hana3", 1_791_417_600));
    assert_eq!(shop.run("2026-10-08T05:00:00Z").exits(0).mails(), ["pp:cs_hana3:d0 sent"]);
}

#[test]
fn r17_a_checkout_that_waits_is_forgotten_and_its_late_payment_starts_nothing() {
    let shop = Shop::new();
    let unpaid =
        paid("evt_cs_hana1", "cs_hana1", "pi_hana1", 1_790_812_800).replace("\"paid\"", "\"unpaid\"");
    // Without an address nothing but the session is known.
    let nameless = paid("evt_cs_hana2", "cs_hana2", "pi_hana2", 1_790_812_800).replace(HANAKO, "");
    shop.event(&unpaid).event(&nameless);
    shop.run("2026-10-01T01:00:00Z").exits(1);
    forget(&shop, "2026-10-02T00:00:00Z").exits(0).says("1 checkout");
    shop.stepmail(&["forget", "cs_hana2", "--now", "2026-10-02T00:00:00Z"])
        .exits(0)
        .says("1 checkout")
        .says("1 matter");
    is_gone(&shop, "after both");
    let late = paid("evt_cs_hana3", "cs_hana1", "pi_hana1", 1_790_899_200)
        .replace("checkout.session.completed", "checkout.session.async_payment_succeeded");
    shop.event(&late).event(&paid("evt_cs_hana4", "cs_hana2", "pi_hana2", 1_790_899_200));
    let ran = shop.run("2026-10-02T01:00:00Z").exits(0);
    assert_eq!((&ran.json()["ingested"]["duplicates"], ran.mails().len()), (&json!(4), 0));
    is_gone(&shop, "after the payment");
}

#[test]
fn c073_a_restored_ledger_forgets_again() {
    let shop = shop();
    let old = shop.read("ledger.json");
    let before = rest(&shop);
    forget(&shop, "2026-10-06T04:00:00Z").exits(0);
    shop.run("2026-10-06T05:00:00Z").exits(0);
    shop.write("ledger.json", &old);

    let status = shop.stepmail(&["status", "--all", "--now", "2026-10-06T06:00:00Z"]).exits(0);
    assert!(!status.stdout.contains("cs_hana"), "{}", status.stdout);
    assert!(status.stdout.contains("cs_ken"));
    // The guard holds it, and writes nothing.
    let held = shop.run("2026-10-08T06:00:00Z").exits(1).hides_addresses();
    assert_eq!((held.notices(), held.mails().len()), (vec!["restored".into()], 0));
    assert_eq!(shop.read("ledger.json"), old);
    forget(&shop, "2026-10-08T06:30:00Z").exits(1).says("put the newest ledger back");

    // With the mark gone as well, nothing says that it is old; she stays forgotten all the same.
    fs::remove_dir_all(shop.path("state/marks")).unwrap();
    let ran = shop.run("2026-10-08T07:00:00Z").exits(0);
    assert_eq!(ran.mails(), ["pp:cs_ken:d7 sent"]);
    is_gone(&shop, "after the run over the restored ledger");
    assert_eq!(
        (rest(&shop).0["steps"]["d3"].clone(), shop.step("cs_ken", "d7")),
        (before.0["steps"]["d3"].clone(), "sent".into())
    );
    assert_eq!(shop.ledger()["forgotten"]["people"].as_array().unwrap().len(), 1);
}

#[test]
fn c073_a_hand_command_over_a_restored_ledger_forgets_again_before_it_records() {
    let shop = shop();
    let old = shop.read("ledger.json");
    forget(&shop, "2026-10-06T04:00:00Z").exits(0);
    shop.write("ledger.json", &old);
    fs::remove_dir_all(shop.path("state/marks")).unwrap();
    shop.stepmail(&["mark-stopped", "ken@example.com", "--now", "2026-10-06T05:00:00Z"]).exits(0);
    is_gone(&shop, "after a mark");
    assert_eq!(
        shop.run("2026-10-06T06:00:00Z").exits(0).closed(),
        ["cs_ken d7 stopped", "cs_ken d14 stopped"]
    );
}

#[test]
fn c073_a_ledger_whose_key_is_missing_or_wrong_is_refused_and_left_as_it_is() {
    let shop = shop();
    forget(&shop, "2026-10-06T04:00:00Z").exits(0);
    let list = fs::read_dir(shop.path("state/forgotten")).unwrap().next().unwrap().unwrap().path();
    let name = list.strip_prefix(shop.path("")).unwrap().to_str().unwrap().to_owned();
    let good = shop.read(&name);
    for bad in [
        None,
        Some("{}".to_owned()),
        Some(String::new()),
        Some(good.replace('a', "A")),
        Some(another_key(&good)),
    ] {
        match &bad {
            None => fs::remove_file(&list).unwrap(),
            Some(bad) => shop.write(&name, bad),
        }
        let before = shop.kept();
        for args in [
            &["run", "--events", "events.jsonl"][..],
            &["run", "--dry-run"],
            &["status"],
            &["show", "cs_ken"],
            &["mark-stopped", "cs_ken"],
            &["forget", "ken@example.com"],
        ] {
            let args = [args, &["--now", "2026-10-08T04:00:00Z"]].concat();
            let ran = shop.stepmail(&args).exits(65).hides_addresses().says("nothing was sent").says("back");
            assert!(
                !ran.stderr.contains(&good[good.find("\"key\":\"").unwrap() + 7..][..64]),
                "the key was said"
            );
        }
        assert_eq!(shop.kept(), before, "{bad:?}");
    }
    shop.write(&name, good);
    assert_eq!(shop.run("2026-10-08T05:00:00Z").exits(0).mails(), ["pp:cs_ken:d7 sent"]);
}

fn another_key(list: &str) -> String {
    let mut list: Value = serde_json::from_str(list).unwrap();
    list["key"] = "0".repeat(64).into();
    list.to_string()
}

#[test]
fn r17_where_no_list_can_be_kept_nobody_is_forgotten() {
    let shop = shop();
    shop.rename("state", "state.away");
    shop.write("state", "no folder");
    // Without marks the installation is unknown; the ledger alone is trusted.
    let before = shop.kept();
    for dry in [&[][..], &["--dry-run"]] {
        let args = [&["forget", HANAKO, "--now", "2026-10-06T04:00:00Z"][..], dry].concat();
        shop.stepmail(&args).exits(73).says("nothing was changed").says("make the state folder writable");
    }
    assert_eq!(shop.kept(), before);
}

#[test]
fn r17_an_outbox_that_cannot_be_read_is_said_and_the_rest_is_done() {
    let shop = shop();
    shop.rename("outbox", "outbox.away");
    shop.write("outbox", "no folder");
    forget(&shop, "2026-10-06T04:00:00Z").exits(73).says("outbox").says("forget` again");
    assert!(found(&shop).iter().all(|at| at.contains("outbox.away")), "{:?}", found(&shop));
    fs::remove_file(shop.path("outbox")).unwrap();
    shop.rename("outbox.away", "outbox");
    forget(&shop, "2026-10-06T05:00:00Z").exits(0).says("mails in the outbox");
    is_gone(&shop, "after the second try");
}

#[test]
fn r17_what_a_dead_command_left_in_its_journal_goes_as_well() {
    let shop = shop();
    shop.event(&hanako("cs_hana3", "2026-10-06T03:30:00Z"));
    // It dies with the plan of her mail in the journal.
    let args = ["run", "--now", "2026-10-06T04:00:00Z", "--events", "events.jsonl"];
    shop.under_strace(&args, "fdatasync", "signal=KILL:when=1");
    assert!(found(&shop).iter().any(|at| at.ends_with("ledger.json.journal")), "{:?}", found(&shop));
    shop.write("ledger.json-x", "a neighbour");
    forget(&shop, "2026-10-06T05:00:00Z").exits(0).says("3 purchases").says("may have left");
    is_gone(&shop, "after forget");
    assert!(shop.run("2026-10-06T06:00:00Z").exits(0).mails().is_empty());
    assert!(!shop.path("ledger.json.journal").exists());
}

#[test]
fn r17_a_ledger_made_by_hand_can_forget() {
    let shop = Shop::new();
    shop.write("ledger.json", include_str!("../../ledger.example.json"));
    let before = shop.ledger()["buyers"].as_array().unwrap().len();
    shop.stepmail(&["forget", "Kenji@example.com", "--now", "2026-10-08T09:00:00Z"])
        .exits(0)
        .says("1 purchase");
    assert_eq!(shop.ledger()["buyers"].as_array().unwrap().len(), before - 1);
    assert!(shop.ledger()["ledger_id"].is_string());
    for (path, content) in shop.everything() {
        assert!(!String::from_utf8_lossy(&content).contains("kenji"), "{}", path.display());
    }
    assert!(!shop.run("2026-10-08T09:00:00Z").mails().iter().any(|mail| mail.contains("kenji")));
}

/// A copy of a shop's folder, so that it need not be made anew for every death. A ledger remembers where it ran, and one
/// that is still there is noticed, so the copy is told of its own place.
fn copy_of(shop: &Shop) -> Shop {
    let copy = Shop::bare();
    let place = |shop: &Shop| shop.path("").canonicalize().unwrap().display().to_string();
    let (here, there) = (place(shop), place(&copy));
    for (path, content) in shop.everything() {
        let name = path.strip_prefix(shop.path("")).unwrap().to_str().unwrap().to_owned();
        match String::from_utf8(content) {
            Ok(text) if name.starts_with("ledger.json") => copy.write(&name, text.replace(&here, &there)),
            Ok(text) => copy.write(&name, text),
            Err(bytes) => copy.write(&name, bytes.into_bytes()),
        }
    }
    copy
}

#[test]
fn r17_killed_at_any_write_sync_or_rename_the_next_one_finishes_and_nobody_comes_back() {
    let shop = shop();
    let before = rest(&shop);
    let args = ["forget", HANAKO, "--now", "2026-10-06T04:00:00Z"];
    for syscall in ["fsync", "rename", "renameat2", "linkat", "pwrite64", "write", "unlink", "openat"] {
        for k in 1.. {
            let shop = copy_of(&shop);
            let died = shop.under_strace(&args, syscall, &format!("signal=KILL:when={k}")) != Some(0);
            let when = format!("died at {syscall} {k}");
            // Whether or not the next run knows of it: nothing more is sent to somebody on the list.
            let listed = shop.path("state/forgotten").exists()
                && fs::read_dir(shop.path("state/forgotten"))
                    .unwrap()
                    .any(|entry| entry.unwrap().path().extension() == Some("json".as_ref()));
            let ran = shop.run("2026-10-06T05:00:00Z").exits(0);
            assert!(ran.mails().is_empty(), "{when}");
            let in_ledger = |at: &String| at.contains(" in ledger.json") || at.contains(" in .stepmail");
            assert!(!listed || !found(&shop).iter().any(in_ledger), "{when}: {:?}", found(&shop));
            forget(&shop, "2026-10-06T06:00:00Z").exits(0);
            is_gone(&shop, &when);
            assert_eq!(rest(&shop), before, "{when}");
            assert!(shop.run("2026-10-06T07:00:00Z").exits(0).mails().is_empty(), "{when}");
            if !died {
                break;
            }
            assert!(k < 400, "{syscall} never ends");
        }
    }
}

#[test]
fn r17_the_spool_keeps_the_others_events_and_takes_none_of_hers_in_again() {
    let shop = shop();
    // Her old event waits once more, and a new purchase of hers with it.
    let again = hanako("cs_again", "2026-10-06T03:30:00Z");
    shop.write("spool/wait.jsonl", format!("{}\n{again}\n", hanako("cs_hana1", "2026-10-01T00:00:00Z")));
    let before = shop.kept();
    let dry =
        shop.stepmail(&["forget", HANAKO, "--dry-run", "--json", "--now", "2026-10-06T04:00:00Z"]).exits(0);
    assert_eq!(dry.json()["erased"]["files"], 4);
    assert_eq!(shop.kept(), before);
    let said = forget(&shop, "2026-10-06T04:00:00Z").exits(0).says("4 files of events");
    said.says("files of events outside the spool");
    assert!(!shop.path("spool/done/hana.jsonl").exists());
    assert_eq!(shop.read("spool/done/all.jsonl"), format!("{KEN}\n"));
    assert_eq!(shop.read("spool/rejected/bad.jsonl").trim(), KEN);
    assert_eq!(shop.read("spool/wait.jsonl"), format!("{again}\n"), "a new purchase was lost");
    assert_eq!(
        shop.stepmail(&["run", "--json", "--now", "2026-10-06T05:00:00Z"]).exits(0).mails(),
        ["pp:cs_again:d0 sent"]
    );
    assert_eq!(
        shop.read("spool/done/wait.jsonl"),
        format!("{again}\n"),
        "she is known again by what she bought"
    );
    // The payment service sends the old events once more: nothing starts, and nothing of them is kept.
    shop.write("spool/old.jsonl", hanako("cs_hana1", "2026-10-01T00:00:00Z") + "\n");
    shop.write("spool/old-and-ken.jsonl", format!("{KEN}\n{}\n", hanako("cs_hana2", "2026-10-01T00:30:00Z")));
    let ran = shop.stepmail(&["run", "--json", "--now", "2026-10-06T06:00:00Z"]).exits(0);
    assert_eq!((ran.mails().len(), ran.json()["ingested"]["duplicates"].clone()), (0, 3.into()));
    assert!(!shop.path("spool/done/old.jsonl").exists());
    assert_eq!(shop.read("spool/done/old-and-ken.jsonl"), format!("{KEN}\n"));
    forget(&shop, "2026-10-06T07:00:00Z").exits(0);
    is_gone(&shop, "after she was forgotten twice");
}

#[test]
fn r17_a_stop_outlives_being_forgotten_until_it_is_lifted() {
    let shop = shop();
    shop.stepmail(&["mark-stopped", HANAKO, "--now", "2026-10-06T03:10:00Z"]).exits(0);
    let older = shop.read("ledger.json");
    forget(&shop, "2026-10-06T04:00:00Z").exits(0);
    let resume = ["resume", HANAKO, "--now", "2026-10-06T05:00:00Z"];
    shop.stepmail(&[&resume[..], &["--dry-run"]].concat()).exits(0).says("is no longer stopped");
    shop.stepmail(&resume).exits(0).says("is no longer stopped");
    shop.stepmail(&resume).exits(0).says("nothing changed");
    shop.stepmail(&["show", HANAKO, "--now", "2026-10-06T05:00:00Z"])
        .exits(0)
        .says("was forgotten at 2026-10-06T04:00:00Z");
    shop.stepmail(&["show", "cs_hana1", "--json", "--now", "2026-10-06T05:00:00Z"])
        .exits(0)
        .says("forgotten_at");
    is_gone(&shop, "after the stop was lifted");
    // A restored ledger brings the stop back no more than it brings her back.
    shop.write("ledger.json", &older);
    shop.stepmail(&["adopt", "--now", "2026-10-06T05:10:00Z"]).exits(0);
    fs::remove_file(shop.path("ledger.json.bak")).unwrap();
    is_gone(&shop, "after an older ledger was adopted");
    shop.event(&hanako("cs_hana_new", "2026-10-06T05:30:00Z"));
    assert_eq!(shop.run("2026-10-06T06:00:00Z").mails(), ["pp:cs_hana_new:d0 sent"]);
    // And a new stop is one.
    forget(&shop, "2026-10-06T07:00:00Z").exits(0);
    shop.stepmail(&["mark-stopped", HANAKO, "--now", "2026-10-06T08:00:00Z"]).exits(0);
    shop.event(&hanako("cs_hana_last", "2026-10-06T08:30:00Z"));
    assert!(shop.run("2026-10-06T09:00:00Z").mails().is_empty());
}

#[test]
fn r17_a_stop_that_was_lifted_before_does_not_come_back_with_being_forgotten() {
    let shop = shop();
    shop.stepmail(&["mark-stopped", HANAKO, "--now", "2026-10-06T03:10:00Z"]).exits(0);
    shop.run("2026-10-06T03:20:00Z");
    let older = shop.read("ledger.json");
    // The version before, beside the ledger, still has the stop.
    shop.stepmail(&["resume", HANAKO, "--now", "2026-10-06T03:30:00Z"]).exits(0);
    forget(&shop, "2026-10-06T04:00:00Z")
        .exits(0)
        .says("a new purchase counts as a repurchase and gets d0 only");
    shop.write("ledger.json", older);
    shop.stepmail(&["adopt", "--now", "2026-10-06T05:00:00Z"]).exits(0);
    // Stopped now, whatever was before, and said twice: she stays stopped.
    for hour in ["06", "07"] {
        forget(&shop, &format!("2026-10-06T{hour}:00:00Z")).exits(0).says("gets d0 only");
    }
    shop.stepmail(&["mark-stopped", HANAKO, "--now", "2026-10-06T08:00:00Z"]).exits(0);
    forget(&shop, "2026-10-06T09:00:00Z").exits(0).says("a new purchase gets nothing either");
}

#[test]
fn r17_a_disk_that_fails_in_mid_forget_is_said_and_the_next_one_finishes() {
    let shop = shop();
    let before = rest(&shop);
    let args = ["forget", HANAKO, "--now", "2026-10-06T04:00:00Z"];
    for syscall in ["fsync", "rename", "unlink"] {
        for k in 1.. {
            let shop = copy_of(&shop);
            let code = shop.under_strace(&args, syscall, &format!("error=EIO:when={k}"));
            assert!(matches!(code, Some(0 | 73)), "{syscall} {k}: {code:?}");
            forget(&shop, "2026-10-06T06:00:00Z").exits(0);
            is_gone(&shop, &format!("{syscall} {k} failed"));
            assert_eq!(rest(&shop), before, "{syscall} {k}");
            if code == Some(0) && k > 12 {
                break;
            }
            assert!(k < 400, "{syscall} never ends");
        }
    }
}

#[test]
fn r17_a_note_for_a_purchase_that_never_came_is_erased_by_its_session() {
    let shop = Shop::new();
    shop.stepmail(&["mark-started", "cs_q", "--reason", "Hanako rang", "--now", "2026-10-01T00:00:00Z"])
        .exits(1);
    let args = ["forget", "cs_q", "--now", "2026-10-01T01:00:00Z"];
    shop.stepmail(&[&args[..], &["--dry-run"]].concat()).exits(0).says("1 stop or mark");
    shop.stepmail(&args).exits(0).says("1 stop or mark erased");
    for file in ["ledger.json", "ledger.json.bak"] {
        let text = shop.read(file);
        assert!(!text.contains("Hanako") && !text.contains("cs_q"), "{file}: {text}");
    }
    // The session starts nothing any more.
    shop.buys("cs_q", HANAKO, "2026-10-01T00:30:00Z");
    assert!(shop.run("2026-10-01T02:00:00Z").exits(0).mails().is_empty());
}

#[test]
fn r17_what_was_said_of_others_does_not_name_her_any_more() {
    let shop = shop();
    let mark = |command: &str, whom: &str, reason: &str| {
        shop.stepmail(&[command, whom, "--reason", reason, "--now", "2026-10-06T03:10:00Z"])
    };
    mark("mark-started", "ken@example.com", "works with <hanako@EXAMPLE.com>, he says").exits(0);
    mark("mark-outcome", "cs_ken", "花子さんhanako@example.comから").exits(0);
    mark("mark-started", "cs_future", "for mailto:hanako@example.com.").exits(1);
    mark("mark-stopped", "cs_later", "see emma@example.com").exits(1);
    forget(&shop, "2026-10-06T04:00:00Z").exits(0);
    is_gone(&shop, "after she was named in others' reasons");
    let ledger = shop.ledger().to_string();
    assert!(ledger.contains("see emma@example.com"), "another's reason was taken: {ledger}");
    assert!(shop.purchase("cs_ken")["outcome"]["at"].is_string(), "the flag went with its reason");
}
