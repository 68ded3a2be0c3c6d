//! A buyer who also reads the seller's newsletter carries the purchaser mark there, and nobody else is touched (R14, R15).

use serde_json::{Value, json};

use crate::double::{Act, Double, contact, refuse};
use crate::shop::{Ran, Shop};

const PAID: &str = "2026-10-01T00:00:00Z";
const FIRST: &str = "2026-10-01T01:00:00Z";
const SECOND: &str = "2026-10-01T02:00:00Z";
const THIRD: &str = "2026-10-01T03:00:00Z";

fn shop_with(section: &str) -> (Double, Shop) {
    let double = Double::new();
    let shop = Shop::with_service(&double);
    let settings = shop.read("stepmail.toml");
    shop.write("stepmail.toml", format!("{settings}\n[newsletter]\nservice = \"resend\"\n{section}\n"));
    (double, shop)
}

fn shop() -> (Double, Shop) {
    shop_with("")
}

fn run(double: &Double, shop: &Shop, now: &str) -> Ran {
    double.set_now(now);
    shop.run(now).hides_addresses()
}

fn confirmed(id: &str, email: &str) -> Value {
    contact(id, email, &json!({ "confirmed": "true", "city": "Tokyo" }))
}

fn standing(shop: &Shop, session: &str) -> Value {
    let ledger = shop.ledger();
    let buyers = ledger["buyers"].as_array().unwrap();
    let mut purchases = buyers.iter().flat_map(|buyer| buyer["purchases"].as_array().unwrap());
    purchases.find(|purchase| purchase["session"] == session).unwrap()["newsletter"].clone()
}

fn is_marked(double: &Double, id: &str) -> bool {
    let value = &double.contact(id)["properties"]["purchaser"];
    value == "true" || value["value"] == "true"
}

#[test]
fn c078_a_confirmed_reader_who_buys_is_marked_once_and_nothing_else_of_the_contact_is_touched() {
    let (double, shop) = shop();
    double.has_contact(confirmed("c_other", "other@example.com"));
    double.has_contact(confirmed("c_1", "Hanako@Example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    let ran = run(&double, &shop, FIRST).exits(0);
    assert_eq!((ran.mails(), ran.notices()), (vec!["pp:cs_1:d0 sent".to_owned()], vec![]));
    assert_eq!(ran.json()["marks"], json!([{ "session": "cs_1", "marked": true }]));
    assert!(is_marked(&double, "c_1") && !is_marked(&double, "c_other"));
    assert_eq!(standing(&shop, "cs_1"), json!({ "state": "marked", "at": FIRST, "contact": "c_1" }));
    let asked = double.about_contacts().len();
    assert_eq!(run(&double, &shop, SECOND).exits(0).json()["marks"], Value::Null);
    assert_eq!((double.about_contacts().len(), double.only_marks()), (asked, 1), "looked up again");
    shop.stepmail(&["show", "cs_1"]).says("contact c_1 carries the purchaser mark");
}

#[test]
fn c080_whoever_is_not_exactly_one_confirmed_subscriber_is_not_marked_and_that_is_told_once() {
    let unsubscribed = |id: &str| {
        let mut contact = confirmed(id, "hanako@example.com");
        contact["unsubscribed"] = true.into();
        contact
    };
    let with = |properties: Value| contact("c_1", "hanako@example.com", &properties);
    for (contacts, reason) in [
        (vec![unsubscribed("c_1")], "unsubscribed"),
        (vec![with(json!({}))], "unconfirmed"),
        (vec![with(json!({ "confirmed": "pending" }))], "unconfirmed"),
        (vec![with(json!({ "confirmed": { "type": "string", "value": null } }))], "unconfirmed"),
        (vec![with(json!({ "confirmed": false }))], "unconfirmed"),
        (vec![confirmed("c_1", "hanako@example.com"), confirmed("c_2", "HANAKO@example.com")], "several"),
        // One confirmed and one unsubscribed are two: a human decides.
        (vec![confirmed("c_1", "Hanako@example.com"), unsubscribed("c_2")], "several"),
        (vec![confirmed("c_9", "somebody@example.com")], "none"),
        (vec![], "none"),
    ] {
        let (double, shop) = shop();
        for contact in contacts {
            double.has_contact(contact);
        }
        shop.buys("cs_1", "hanako@example.com", PAID);
        let ran = run(&double, &shop, FIRST).exits(1);
        let kind = if reason == "none" { "newsletter_none" } else { "newsletter" };
        assert_eq!(
            (ran.mails(), ran.notices()),
            (vec!["pp:cs_1:d0 sent".to_owned()], vec![kind.to_owned()]),
            "{reason}"
        );
        assert_eq!(standing(&shop, "cs_1")["reason"], reason);
        assert!(run(&double, &shop, SECOND).exits(0).notices().is_empty(), "told again: {reason}");
        assert_eq!(double.only_marks(), 0, "{reason}");
    }
}

#[test]
fn a_property_counts_plain_and_wrapped_and_a_mark_that_is_there_is_not_set_again() {
    for value in [
        json!("true"),
        json!(true),
        json!({ "type": "string", "value": "true" }),
        json!({ "type": "boolean", "value": true }),
    ] {
        let (double, shop) = shop();
        double.has_contact(contact("c_1", "hanako@example.com", &json!({ "confirmed": value })));
        double.has_contact(contact(
            "c_2",
            "taro@example.com",
            &json!({ "confirmed": value, "purchaser": value }),
        ));
        shop.buys("cs_1", "hanako@example.com", PAID).buys("cs_2", "taro@example.com", PAID);
        run(&double, &shop, FIRST).exits(0);
        assert!(is_marked(&double, "c_1"));
        assert_eq!(double.only_marks(), 1, "{value}");
        assert_eq!(standing(&shop, "cs_2")["state"], "marked");
    }
}

#[test]
fn a_subscriber_id_alone_says_who_it_is_and_an_address_then_says_nothing() {
    let own = |id: &str| json!({ "id": "e1", "type": "checkout.completed", "session": "cs_1", "email": "hanako@example.com", "paid_at": PAID, "subscriber_id": id });
    let (double, shop) = shop();
    double.has_contact(confirmed("c_address", "hanako@example.com"));
    double.has_contact(confirmed("c_id", "hanako.private@example.com"));
    shop.event(&own("c_id").to_string());
    run(&double, &shop, FIRST).exits(0);
    assert!(is_marked(&double, "c_id") && !is_marked(&double, "c_address"));
    assert!(
        !double.about_contacts().iter().any(|seen| seen.path.starts_with("/contacts?")),
        "the list was read"
    );
    // One that nobody has, an address in its place, and what would be another path.
    for id in ["c_gone", "hanako@example.com", "..", ".", "c_address/segments/s", "?limit=1", "花"] {
        let (double, shop) = self::shop();
        double.has_contact(confirmed("c_address", "hanako@example.com"));
        shop.event(&own(id).to_string());
        let ran = run(&double, &shop, FIRST).exits(1);
        assert_eq!((ran.notices(), double.only_marks()), (vec!["newsletter_none".to_owned()], 0), "{id}");
    }
}

#[test]
fn the_seller_says_which_metadata_holds_the_subscriber_id() {
    for (setting, marked) in [("", "c_reference"), ("subscriber_id_metadata = \"reader\"", "c_metadata")] {
        let (double, shop) = shop_with(setting);
        double
            .has_contact(confirmed("c_reference", "a@example.com"))
            .has_contact(confirmed("c_metadata", "b@example.com"));
        let mut bought = crate::double::paid("cs_1", "hanako@example.com", PAID);
        bought["data"]["object"]["client_reference_id"] = "c_reference".into();
        bought["data"]["object"]["metadata"] = json!({ "reader": "c_metadata" });
        shop.event(&bought.to_string());
        run(&double, &shop, FIRST).exits(0);
        assert!(is_marked(&double, marked), "{setting}");
        assert_eq!(double.only_marks(), 1);
    }
}

#[test]
fn c079_a_contact_on_page_three_is_found_and_a_list_that_is_not_whole_proves_nothing() {
    let (double, shop) = shop();
    for n in 0..205 {
        double.has_contact(confirmed(&format!("c_{n}"), &format!("reader{n}@example.com")));
    }
    double.has_contact(confirmed("c_hanako", "hanako@example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    let no = || Act::Raw(500, "application/json", b"{}".into());
    double.contacts_next(Act::Accept).contacts_next(no());
    let ran = run(&double, &shop, FIRST).exits(0);
    assert_eq!((ran.mails().len(), ran.notices()), (1, vec![]));
    assert_eq!(standing(&shop, "cs_1"), json!({ "state": "not_known", "since": FIRST }));
    // Pages that come back short, an empty one with more to follow, half an answer.
    double.contacts_by_pages_of(40);
    double.contacts_next(Act::Accept).contacts_next(Act::Raw(
        200,
        "application/json",
        br#"{"data":[],"has_more":true}"#.into(),
    ));
    run(&double, &shop, SECOND).exits(0);
    double.contacts_next(Act::Accept).contacts_next(Act::HalfAnAnswer);
    run(&double, &shop, THIRD).exits(0);
    assert_eq!(standing(&shop, "cs_1"), json!({ "state": "not_known", "since": FIRST }));
    run(&double, &shop, "2026-10-01T04:00:00Z").exits(0);
    assert!(is_marked(&double, "c_hanako"));
    assert_eq!(double.only_marks(), 1);
}

#[test]
fn contacts_that_cannot_be_read_for_a_day_are_told_once_and_the_mails_go_on() {
    for repeats in [false, true] {
        let (double, shop) = shop();
        double
            .has_contact(confirmed("c_1", "hanako@example.com"))
            .has_contact(confirmed("c_2", "x@example.com"));
        shop.buys("cs_1", "hanako@example.com", PAID);
        if repeats {
            double.contacts_by_pages_of(1);
            double.contacts_repeat();
        } else {
            double.contacts_always(Some(Act::Raw(503, "application/json", b"{}".into())));
        }
        let mut told = Vec::new();
        for hour in 1..48 {
            let now = format!("2026-10-0{}T{:02}:00:00Z", 1 + hour / 24, hour % 24);
            let ran = run(&double, &shop, &now);
            told.extend(ran.notices().into_iter().map(|kind| (hour, kind)));
            if hour == 2 {
                let ledger = shop.read("ledger.json");
                run(&double, &shop, &now);
                assert_eq!(shop.read("ledger.json"), ledger, "an hour without news wrote the ledger");
            }
        }
        assert_eq!(told, [(25, "newsletter".to_owned())], "repeats: {repeats}");
        assert_eq!(double.only_marks(), 0);
        if !repeats {
            double.contacts_always(None);
            run(&double, &shop, "2026-10-03T00:00:00Z").exits(0);
            assert!(is_marked(&double, "c_1"));
            assert!(
                !shop.ledger()["matters"].to_string().contains("cannot be read"),
                "it is over and still a matter"
            );
        }
    }
}

#[test]
fn c081_a_buyer_who_reads_no_newsletter_is_told_of_once_in_48_hours_though_the_notice_fails_at_first() {
    let (double, shop) = shop();
    shop.buys("cs_1", "hanako@example.com", PAID);
    double.for_notices(Act::Raw(500, "application/json", b"{}".into()));
    let mut told = 0;
    for hour in 1..49 {
        let now = format!("2026-10-0{}T{:02}:00:00Z", 1 + hour / 24, hour % 24);
        told += run(&double, &shop, &now).notices().len();
        if hour == 3 {
            double.is_well();
        }
    }
    assert_eq!(told, 1);
    let notices = double.notices();
    assert_eq!(notices.len(), 1, "the operator's mailbox");
    assert!(notices[0].body["text"].as_str().unwrap().contains("cs_1"));
    assert_eq!(double.about_contacts().len(), 1, "asked again for somebody who was not found");
}

#[test]
fn buyers_of_one_day_who_read_no_newsletter_are_told_of_together() {
    let (double, shop) = shop();
    for n in 0..30 {
        shop.buys(&format!("cs_{n}"), &format!("b{n}@example.com"), PAID);
    }
    let ran = run(&double, &shop, FIRST).exits(1);
    assert_eq!(ran.notices(), ["newsletter_none"]);
    assert!(ran.stdout.contains("30 purchases") && ran.stdout.contains("and 10 more"), "{}", ran.stdout);
    shop.buys("cs_a", "a@example.com", SECOND);
    assert!(run(&double, &shop, THIRD).exits(0).notices().is_empty(), "a second notice on one day");
    shop.buys("cs_b", "b@example.com", THIRD);
    run(&double, &shop, "2026-10-01T04:00:00Z").exits(0);
    let ran = run(&double, &shop, "2026-10-02T02:00:00Z").exits(1);
    assert_eq!(ran.notices(), ["newsletter_none"]);
    assert!(ran.stdout.contains("2 purchases") && ran.stdout.contains("cs_a, cs_b"), "{}", ran.stdout);
    assert!(run(&double, &shop, "2026-10-03T03:00:00Z").notices().is_empty());
}

#[test]
fn a_key_that_may_only_send_is_told_at_once_and_the_mails_leave() {
    let (double, shop) = shop();
    double.may_only_send(true);
    shop.buys("cs_1", "hanako@example.com", PAID);
    let ran = run(&double, &shop, FIRST).exits(1).says("full access");
    assert_eq!(
        (ran.mails(), ran.notices()),
        (vec!["pp:cs_1:d0 sent".to_owned()], vec!["newsletter".to_owned()])
    );
    assert!(run(&double, &shop, SECOND).notices().is_empty(), "told again");
    shop.stepmail(&["check"]).says("full access");
    double.may_only_send(false);
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    run(&double, &shop, THIRD).exits(0);
    assert!(is_marked(&double, "c_1"));
    shop.stepmail(&["check"]).says("contacts may be read");
}

#[test]
fn a_mail_that_fails_holds_no_mark_and_a_mark_that_fails_holds_no_mail() {
    let (double, shop) = shop();
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    double.always(refuse(422, "validation_error", "no"));
    let ran = run(&double, &shop, FIRST);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 refused"]);
    assert!(is_marked(&double, "c_1"), "the mail was refused, and the mark waited for it");
    double.is_well();
    double.contacts_always(Some(Act::Drop));
    shop.buys("cs_2", "taro@example.com", PAID);
    let ran = run(&double, &shop, SECOND);
    assert_eq!(ran.mails(), ["pp:cs_1:d0 sent", "pp:cs_2:d0 sent"]);
}

#[test]
fn an_update_whose_answer_is_lost_or_that_does_not_show_is_asked_for_again() {
    let (double, shop) = shop();
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    // List, contact, and the update is done but its answer is lost.
    double
        .contacts_next(Act::Accept)
        .contacts_next(Act::Accept)
        .contacts_next(Act::AcceptThen(Box::new(Act::Drop)));
    run(&double, &shop, FIRST).exits(0);
    assert_eq!(standing(&shop, "cs_1")["state"], "not_known");
    run(&double, &shop, SECOND).exits(0);
    assert_eq!(standing(&shop, "cs_1")["state"], "marked");
    assert_eq!(double.only_marks(), 1, "it was there already");

    let (double, shop) = self::shop();
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    double.contacts_forget_marks(true);
    run(&double, &shop, FIRST).exits(0);
    assert_eq!(standing(&shop, "cs_1")["state"], "not_known", "believed without looking");
    double.contacts_forget_marks(false);
    run(&double, &shop, SECOND).exits(0);
    assert_eq!(standing(&shop, "cs_1")["state"], "marked");
}

/// C078: some services put a contact back on the list when anything of it is written.
#[test]
fn a_service_that_changes_the_subscription_with_the_mark_is_noticed() {
    let (double, shop) = shop();
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    double.contacts_resubscribe();
    run(&double, &shop, FIRST).says("subscription");
    assert_eq!(standing(&shop, "cs_1")["state"], "not_known");
}

#[test]
fn an_answer_about_a_contact_that_cannot_be_read_marks_nobody() {
    for body in [
        "{}",
        "[]",
        "<h1>",
        r#"{"id":"c_1"}"#,
        r#"{"id":"c_1","unsubscribed":"false"}"#,
        r#"{"id":"c_1","unsubscribed":false,"properties":[]}"#,
    ] {
        let (double, shop) = shop();
        double.has_contact(confirmed("c_1", "hanako@example.com"));
        shop.buys("cs_1", "hanako@example.com", PAID);
        double.contacts_next(Act::Accept).contacts_next(Act::Raw(200, "application/json", body.into()));
        run(&double, &shop, FIRST).exits(0);
        assert_eq!(
            (standing(&shop, "cs_1")["state"].clone(), double.only_marks()),
            (json!("not_known"), 0),
            "{body}"
        );
    }
    // Deleted between the list and the look at it.
    let (double, shop) = shop();
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    double.contacts_next(Act::Accept).contacts_next(refuse(404, "not_found", "Contact not found"));
    run(&double, &shop, FIRST).exits(0);
    assert_eq!(standing(&shop, "cs_1")["state"], "not_known");
    double.forget_contact("c_1");
    run(&double, &shop, SECOND).exits(1);
    assert_eq!(standing(&shop, "cs_1")["reason"], "none");
}

#[test]
fn a_person_says_which_contact_it_is_or_that_none_is() {
    let (double, shop) = shop();
    double
        .has_contact(confirmed("c_1", "hanako@example.com"))
        .has_contact(confirmed("c_2", "Hanako@example.com"));
    let mut gone = contact("c_3", "private@example.com", &json!({}));
    gone["unsubscribed"] = true.into();
    double.has_contact(gone);
    shop.buys("cs_1", "hanako@example.com", PAID).buys("cs_2", "taro@example.com", PAID);
    run(&double, &shop, FIRST).exits(1);
    let say = |words: &[&str]| shop.stepmail(&[words, &["--now", SECOND]].concat());
    say(&["newsletter", "link", "cs_1", "c_3", "--dry-run"]).exits(0).says("marks contact c_3");
    assert_eq!(standing(&shop, "cs_1")["reason"], "several");
    say(&["newsletter", "link", "cs_1", "c_3"]).exits(0);
    say(&["newsletter", "ignore", "cs_2"]).exits(0).says("no contact is marked");
    say(&["newsletter", "ignore", "cs_2"]).exits(0).says("already");
    assert!(!shop.ledger()["matters"].to_string().contains("several"), "settled, and still a matter");
    let ran = run(&double, &shop, THIRD).exits(0);
    // The person knows; that contact is marked as it is, and stays unsubscribed.
    assert_eq!(ran.json()["marks"], json!([{ "session": "cs_1", "marked": true }]));
    assert!(is_marked(&double, "c_3") && double.contact("c_3")["unsubscribed"] == true);
    assert_eq!((double.only_marks(), standing(&shop, "cs_2")["reason"].clone()), (1, json!("ignored")));
    say(&["newsletter", "link", "cs_1", "c_3"]).exits(0).says("already");
    say(&["newsletter", "link", "cs_9", "c_3"]).exits(1).says("is not in");
    say(&["newsletter", "link", "cs_1", "hanako@example.com"]).exits(2);
    // A contact that is not there.
    say(&["newsletter", "link", "cs_2", "c_9"]).exits(0);
    run(&double, &shop, "2026-10-02T04:00:00Z").exits(1);
    assert_eq!(standing(&shop, "cs_2")["reason"], "none");
}

#[test]
fn a_refund_takes_the_mark_away_only_where_the_seller_says_so_and_only_with_the_last_purchase() {
    for (setting, stays) in [("", true), ("on_refund = \"unmark\"", false)] {
        let (double, shop) = shop_with(setting);
        double.has_contact(confirmed("c_1", "hanako@example.com"));
        shop.buys("cs_1", "hanako@example.com", PAID).buys("cs_2", "hanako@example.com", FIRST);
        run(&double, &shop, SECOND).exits(0);
        assert!(is_marked(&double, "c_1"));
        let refund = |n: u8| {
            shop.event(&format!(
                r#"{{"id":"r{n}","type":"stop","session":"cs_{n}","reason":"refund","at":"{SECOND}"}}"#
            ));
        };
        refund(1);
        run(&double, &shop, THIRD).exits(0);
        assert!(is_marked(&double, "c_1"), "another purchase stands");
        refund(2);
        let ran = run(&double, &shop, "2026-10-01T04:00:00Z").exits(0);
        assert_eq!(is_marked(&double, "c_1"), stays, "{setting}");
        let asked = double.about_contacts().len();
        run(&double, &shop, "2026-10-01T05:00:00Z").exits(0);
        assert_eq!(double.about_contacts().len(), asked, "{setting}: {}", ran.stdout);
        double.only_marks();
        // Who asked for no more mails is a buyer all the same.
        shop.stepmail(&["mark-stopped", "hanako@example.com", "--now", "2026-10-01T06:00:00Z"]).exits(0);
        run(&double, &shop, "2026-10-01T07:00:00Z").exits(0);
        assert_eq!(is_marked(&double, "c_1"), stays);
    }
}

#[test]
fn a_mark_and_a_confirmation_may_be_segments() {
    let (double, shop) = shop_with(
        "mark_segment = \"seg-buyers\"\nconfirmed_segment = \"seg-confirmed\"\non_refund = \"unmark\"",
    );
    double.has_segment("seg-buyers");
    let mut reader = contact("c_1", "hanako@example.com", &json!({}));
    reader["segments"] = json!(["seg-a", "seg-confirmed", "seg-b"]);
    double.has_contact(reader).has_contact(contact(
        "c_2",
        "taro@example.com",
        &json!({ "confirmed": "true" }),
    ));
    double.contacts_by_pages_of(1);
    shop.buys("cs_1", "hanako@example.com", PAID).buys("cs_2", "taro@example.com", PAID);
    run(&double, &shop, FIRST).exits(1);
    assert_eq!(double.contact("c_1")["segments"], json!(["seg-a", "seg-confirmed", "seg-b", "seg-buyers"]));
    assert_eq!((standing(&shop, "cs_2")["reason"].clone(), double.only_marks()), (json!("unconfirmed"), 1));
    shop.event(&format!(r#"{{"id":"r1","type":"stop","session":"cs_1","reason":"refund","at":"{SECOND}"}}"#));
    run(&double, &shop, SECOND).exits(0);
    assert_eq!(double.contact("c_1")["segments"], json!(["seg-a", "seg-confirmed", "seg-b"]));
    // A segment that is not there is the settings' fault.
    let (double, shop) = shop_with("mark_segment = \"seg-gone\"");
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    assert_eq!(run(&double, &shop, FIRST).exits(1).says("no such segment").notices(), ["newsletter"]);
}

#[test]
fn without_the_section_nobody_is_asked_and_odd_settings_are_refused() {
    let double = Double::new();
    let plain = Shop::with_service(&double);
    plain.buys("cs_1", "hanako@example.com", PAID);
    run(&double, &plain, FIRST).exits(0);
    assert!(double.about_contacts().is_empty());
    plain.stepmail(&["newsletter", "ignore", "cs_1"]).exits(1).says("no [newsletter]");
    for (section, said) in [
        ("mark_property = \"a\"\nmark_segment = \"b\"", "both set"),
        ("confirmed_property = \"a\"\nconfirmed_segment = \"b\"", "both set"),
        ("confirmed_segment = \"b\"\nconfirmed_value = \"c\"", "confirmed_value"),
        ("mark_property = \"confirmed\"", "are the same"),
        ("mark_property = \"\"", "mark_property is empty"),
        ("on_refund = \"forget\"", "on_refund"),
        ("mark = \"x\"", "mark"),
        ("api_key_command = [\"re_123456789012\"]", "holds a key"),
    ] {
        let (double, shop) = shop_with(section);
        shop.run(FIRST).exits(78).says(said);
        assert!(double.requests().is_empty());
    }
    let (_, shop) = shop();
    let settings = shop.read("stepmail.toml").replace("service = \"resend\"", "service = \"mailchimp\"");
    shop.write("stepmail.toml", settings);
    shop.run(FIRST).exits(78).says("newsletter.service");
}

#[test]
fn the_outbox_can_be_tried_with_the_newsletter_and_a_dry_run_asks_and_marks_nobody() {
    let (double, shop) = shop();
    let settings = shop.read("stepmail.toml").replace("transport = \"resend\"", "transport = \"outbox\"");
    shop.write("stepmail.toml", settings);
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    shop.buys("cs_1", "hanako@example.com", PAID);
    shop.dry_run(FIRST).exits(0);
    assert!(double.about_contacts().is_empty());
    run(&double, &shop, FIRST).exits(0);
    assert!(is_marked(&double, "c_1") && shop.outbox().len() == 1);
}

#[test]
fn the_pace_is_one_for_mails_and_contacts() {
    let (double, shop) = shop();
    let settings =
        shop.read("stepmail.toml").replace("requests_per_second = 1000", "requests_per_second = 5");
    shop.write("stepmail.toml", settings);
    double.limit(5);
    for n in 0..6 {
        double.has_contact(confirmed(&format!("c_{n}"), &format!("b{n}@example.com")));
        shop.buys(&format!("cs_{n}"), &format!("b{n}@example.com"), PAID);
    }
    let ran = run(&double, &shop, FIRST).exits(0);
    double.only_marks();
    assert_eq!((ran.mails().len(), ran.json()["marks"].as_array().unwrap().len()), (6, 6));
    assert!((0..6).all(|n| is_marked(&double, &format!("c_{n}"))), "the service's limit was passed");
}

#[test]
fn r17_who_is_forgotten_is_in_no_notice_and_no_mark_of_the_ledger() {
    let (double, shop) = shop();
    double.has_contact(confirmed("c_1", "hanako@example.com"));
    shop.buys("cs_marked", "hanako@example.com", PAID).buys("cs_none", "taro@example.com", PAID);
    shop.buys("cs_stays", "ume@example.com", PAID);
    run(&double, &shop, FIRST).exits(1);
    std::fs::remove_file(shop.path("events.jsonl")).unwrap();
    for who in ["hanako@example.com", "taro@example.com"] {
        shop.stepmail(&["forget", who, "--now", SECOND]).exits(0);
    }
    for (path, bytes) in shop.everything() {
        let text = String::from_utf8_lossy(&bytes);
        for gone in ["cs_marked", "cs_none", "c_1", "hanako", "taro"] {
            assert!(!text.contains(gone), "{gone} in {}", path.display());
        }
    }
    assert!(shop.read("ledger.json").contains("cs_stays"));
    assert!(is_marked(&double, "c_1"), "what the newsletter keeps is the seller's to erase there");
}

/// The settings of a rehearsal: the payment service's test mode, and the seller's real newsletter.
#[test]
fn a_purchase_of_the_test_mode_marks_no_real_reader() {
    let (double, shop) = shop();
    let settings = shop.read("stepmail.toml").replace("transport = \"resend\"", "transport = \"outbox\"");
    // A service that is not on this machine, and that nobody reaches.
    shop.write("stepmail.toml", settings.replace(&double.url(), "https://contacts.shop.example"));
    let ago = (stepmail::clock::Clock::new(None).machine() - stepmail::domain::time::Seconds::minutes(5))
        .to_string();
    shop.buys("cs_1", "hanako@example.com", &ago);
    let ran = shop.stepmail(&["run", "--json", "--events", "events.jsonl"]).exits(0);
    assert_eq!((ran.mails(), standing(&shop, "cs_1")), (vec!["pp:cs_1:d0 sent".to_owned()], Value::Null));
    shop.stepmail(&["check"]).says("who buys in the test mode is no buyer");
    let settings = shop.read("stepmail.toml").replace("livemode = false", "livemode = true");
    shop.write("stepmail.toml", settings);
    shop.stepmail(&["run"]).exits(0);
    assert_eq!(standing(&shop, "cs_1")["state"], "not_known", "a real purchase is looked up");
}

#[test]
fn one_contact_that_the_service_stumbles_over_costs_nobody_else_the_mark() {
    let (double, shop) = shop();
    for n in 1..4 {
        double.has_contact(confirmed(&format!("c_{n}"), &format!("b{n}@example.com")));
        shop.buys(&format!("cs_{n}"), &format!("b{n}@example.com"), PAID);
    }
    for (status, body) in [(500, "{}"), (422, r#"{"name":"validation_error"}"#)] {
        double.contacts_next(Act::Accept).contacts_next(Act::Raw(status, "application/json", body.into()));
        run(&double, &shop, if status == 500 { FIRST } else { SECOND });
        assert!(!is_marked(&double, "c_1"));
        assert_eq!(standing(&shop, "cs_1")["state"], "not_known");
        for n in 2..4 {
            assert_eq!(standing(&shop, &format!("cs_{n}"))["state"], "marked", "{status}");
        }
    }
    run(&double, &shop, THIRD);
    assert!(is_marked(&double, "c_1"));
    assert_eq!(double.only_marks(), 3);
}
