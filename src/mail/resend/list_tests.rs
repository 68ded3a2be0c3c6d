use super::*;
use crate::domain::ids::Step;
use serde_json::json;

fn one(row: &Value) -> Result<Page, String> {
    page(json!({ "object": "list", "has_more": false, "data": [row] }).to_string().as_bytes())
}

fn sound() -> Value {
    json!({
        "id": "4ef9a417-02e9", "to": ["hanako@example.com"], "from": "Shop <a@example.com>",
        "created_at": "2026-10-01 01:00:00.674981+00", "subject": "Hello", "last_event": "delivered",
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut row = sound();
    row[name] = value;
    row
}

#[test]
fn r13_a_page_as_the_service_writes_it() {
    let page = page(json!({ "has_more": true, "data": [sound()], "new": 1 }).to_string().as_bytes()).unwrap();
    assert!(page.more);
    let expected = Listed {
        id: "4ef9a417-02e9".to_owned(),
        to: Some(vec!["hanako@example.com".parse().unwrap()]),
        subject: "Hello".to_owned(),
        created_at: Some(Timestamp::parse("2026-10-01T01:00:00Z").unwrap()),
        fate: Some(FateKind::Delivered),
    };
    assert_eq!(page.mails, [expected]);
}

#[test]
fn r10_a_recipient_in_any_spelling_is_the_buyer_and_one_that_cannot_be_read_may_be_anybody() {
    let to = |value: Value| one(&with("to", value)).unwrap().mails[0].to.clone();
    let buyer = |text: &str| Some(vec![text.parse::<Address>().unwrap().buyer()]);
    for (value, expected) in [
        (json!("Hanako@Example.com"), buyer("hanako@example.com")),
        (json!(["Hanako <hanako@example.com>"]), buyer("hanako@example.com")),
        (json!(["\"Yamada, Hanako\" <hanako@example.com>"]), buyer("hanako@example.com")),
        (json!([" <hanako@example.com> "]), buyer("hanako@example.com")),
        (json!(["\"a..b\"@example.com"]), buyer("a..b@example.com")),
        (json!(["\"a.\"@example.com"]), buyer("a.@example.com")),
        (json!(["hanako@xn--r8jz45g.example.com"]), buyer("hanako@例え.example.com")),
        (json!(["Hanako"]), None),
        (json!(["hanako@example.com", "odd"]), None),
        (json!([5]), None),
        (json!([]), None),
        (json!(null), None),
        (json!({ "address": "hanako@example.com" }), None),
    ] {
        assert_eq!(to(value.clone()), expected, "{value}");
    }
    let mut row = sound();
    row.as_object_mut().unwrap().remove("to");
    assert_eq!(one(&row).unwrap().mails[0].to, None);
}

#[test]
fn r10_a_time_in_any_spelling_and_none_that_was_guessed() {
    for (text, expected) in [
        ("2023-04-03T22:13:42.674981+00:00", Some("2023-04-03T22:13:42Z")),
        ("2023-04-03 22:13:42.674981+00", Some("2023-04-03T22:13:42Z")),
        ("2023-04-03T22:13:42Z", Some("2023-04-03T22:13:42Z")),
        ("2023-04-03 22:13:42+09", Some("2023-04-03T13:13:42Z")),
        ("2023-04-03 22:13:42-05:30", Some("2023-04-04T03:43:42Z")),
        ("2023-04-03 22:13:42", None),
        ("2023-04-03", None),
        ("1680559822", None),
        ("yesterday", None),
        ("", None),
    ] {
        assert_eq!(time(text), expected.map(|text| Timestamp::parse(text).unwrap()), "{text}");
    }
    assert_eq!(one(&with("created_at", json!(1_680_559_822))).unwrap().mails[0].created_at, None);
}

#[test]
fn r13_what_is_on_its_way_says_nothing_yet() {
    for (event, expected) in [
        ("delivered", Some(FateKind::Delivered)),
        ("opened", Some(FateKind::Delivered)),
        ("clicked", Some(FateKind::Delivered)),
        ("bounced", Some(FateKind::Bounced)),
        ("complained", Some(FateKind::Complained)),
        ("suppressed", Some(FateKind::Suppressed)),
        ("failed", Some(FateKind::Failed)),
        ("canceled", Some(FateKind::Failed)),
        ("queued", None),
        ("sent", None),
        ("scheduled", None),
        ("delivery_delayed", None),
        ("", None),
        ("something_new", None),
    ] {
        assert_eq!(fate(event), expected, "{event}");
    }
}

#[test]
fn r10_what_is_no_list_is_no_empty_list() {
    let no_id = with("id", json!(null)).to_string();
    let odd_id = with("id", json!("../x")).to_string();
    for body in [
        "",
        "null",
        "[]",
        "{}",
        "<h1>Welcome</h1>",
        r#"{"data":[]}"#,
        r#"{"data":[],"has_more":"no"}"#,
        r#"{"data":{},"has_more":false}"#,
        r#"{"has_more":false}"#,
        r#"{"data":[5],"has_more":false}"#,
        &format!(r#"{{"data":[{no_id}],"has_more":false}}"#),
        &format!(r#"{{"data":[{odd_id}],"has_more":false}}"#),
    ] {
        assert!(page(body.as_bytes()).is_err(), "{body}");
    }
    assert!(page(br#"{"data":[],"has_more":false}"#).unwrap().mails.is_empty());
    assert!(page(&[0xff]).is_err());
}

#[test]
fn r10_whose_a_mail_is_by_its_tags_alone() {
    let of = |value: Value| {
        let mut row = sound();
        row["tags"] = value;
        tags(row.to_string().as_bytes())
    };
    let ours = json!([{ "name": "step", "value": "d3" }, { "name": "x", "value": "y" }, { "name": "session", "value": "cs_1" }]);
    assert_eq!(of(ours), Ok(Some(Tagged { session: "cs_1".parse().unwrap(), step: Step::D3 })));
    for odd in [
        json!(null),
        json!([]),
        json!("x"),
        json!([{ "name": "session", "value": "cs_1" }]),
        json!([{ "name": "session", "value": "" }, { "name": "step", "value": "d3" }]),
        json!([{ "name": "session", "value": "cs_1" }, { "name": "step", "value": "d4" }]),
        json!([{ "name": "session", "value": 1 }, { "name": "step", "value": "d3" }]),
    ] {
        assert_eq!(of(odd.clone()), Ok(None), "{odd}");
    }
    for body in ["", "{}", "[]", r#"{"message":"not found"}"#] {
        assert!(tags(body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn r10_a_list_that_cannot_be_read_says_which_field_and_not_whose_mail() {
    for (row, field) in [
        (with("id", json!("hanako@example.com")), "no id"),
        (with("id", json!("x".repeat(201))), "no id"),
        (json!("hanako@example.com"), "no id"),
    ] {
        let why = one(&row).unwrap_err();
        assert!(why.contains(field) && !why.contains("hanako"), "{row}: {why}");
    }
    let beside = json!({ "has_more": false, "data": [sound(), with("id", json!(null)), sound()] });
    assert!(page(beside.to_string().as_bytes()).is_err(), "a mail was hidden by sound ones beside it");
}

#[test]
fn r10_more_spellings_of_a_recipient() {
    let to = |value: Value| one(&with("to", value)).unwrap().mails[0].to.clone();
    let buyer = |text: &str| text.parse::<Address>().unwrap().buyer();
    let both = Some(vec![buyer("hanako@example.com"), buyer("taro@example.com")]);
    assert_eq!(to(json!(["hanako@example.com", "Taro <taro@example.com>"])), both);
    for (text, expected) in [
        ("山田 花子 <hanako@example.com>", Some("hanako@example.com")),
        ("\"a <b>\" <hanako@example.com>", Some("hanako@example.com")),
        ("hanako+x@example.com", Some("hanako+x@example.com")),
        ("HANAKO@EXAMPLE.COM\r\n", Some("hanako@example.com")),
        ("Hanako <\"a..b\"@example.com>", Some("a..b@example.com")),
        // Two in one text, comments, half of one: nobody knows, so they may be anybody's.
        ("hanako@example.com, taro@example.com", None),
        ("hanako@example.com (Hanako)", None),
        ("hanako@example.com>", None),
        ("Hanako <>", None),
        ("<", None),
        (">", None),
        ("", None),
    ] {
        assert_eq!(to(json!(text)), expected.map(|text| vec![buyer(text)]), "{text:?}");
    }
}

proptest::proptest! {
    /// No page panics, and none has fewer mails than rows.
    #[test]
    fn r10_no_row_of_a_page_is_lost(
        id in "\\PC{0,8}|[a-z0-9-]{1,8}", to in "\\PC{0,30}|[a-z .<>@\"]{0,20}", at in "\\PC{0,30}|[0-9TZ:. +-]{0,32}",
        event in "[a-z_]{0,20}",
    ) {
        let row = json!({ "id": id, "to": to, "subject": to, "created_at": at, "last_event": event });
        let body = json!({ "has_more": true, "data": [sound(), row] }).to_string();
        if let Ok(page) = page(body.as_bytes()) {
            proptest::prop_assert_eq!(page.mails.len(), 2);
            proptest::prop_assert_eq!(&page.mails[1].id, &id);
            proptest::prop_assert!(page.more && is_id(&id));
        }
    }

    #[test]
    fn no_bytes_whatever_are_a_list_by_chance(body in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..200)) {
        proptest::prop_assert!(page(&body).is_err() && tags(&body).is_err());
    }
}
