use proptest::strategy::Strategy as _;

use super::*;
use crate::domain::time::Seconds;

const KEY: &str = "re_Abcdefgh_1234567890";

fn key() -> Secret {
    Secret::of(KEY)
}

fn json(status: u16, body: &str) -> Answer {
    let content_type = Some("application/json".to_owned());
    Answer { status, body: Some(body.as_bytes().to_vec()), content_type, ..Answer::default() }
}

fn fault(status: u16, name: &str, message: &str) -> Answer {
    json(status, &serde_json::json!({ "statusCode": status, "name": name, "message": message }).to_string())
}

fn class(answer: &Answer) -> &'static str {
    match classify(answer, &key()) {
        Outcome::Accepted { .. } => "accepted",
        Outcome::NotSent { .. } => "later",
        Outcome::RefusedMail { .. } => "mail",
        Outcome::RefusedAccount { .. } => "account",
        Outcome::Unknown { in_progress: true, .. } => "in progress",
        Outcome::Unknown { .. } => "unknown",
        Outcome::Conflict { .. } => "conflict",
    }
}

fn showable(message: &str, key: &Secret) -> String {
    let message = serde_json::json!({ "message": message }).to_string();
    let reason = Said::of(&json(400, &message), key).reason();
    reason.trim_start_matches("it answered 400").trim_start_matches(": ").to_owned()
}

/// What is kept of an answer.
fn kept(answer: &Answer) -> String {
    Said::of(answer, &key()).reason()
}

/// The stories try the issue's table through the program; these are its neighbours.
#[test]
fn r9_the_status_alone_is_not_enough_and_a_name_that_nobody_knows_is_read_by_its_status() {
    let no_name = |status| class(&fault(status, "", ""));
    for (status, expected) in [
        (400, "mail"),
        (401, "account"),
        (402, "account"),
        (403, "account"),
        (404, "account"),
        (405, "account"),
        (406, "mail"),
        (407, "account"),
        (408, "unknown"),
        (409, "unknown"),
        (410, "mail"),
        (413, "mail"),
        (422, "mail"),
        (425, "unknown"),
        (429, "later"),
        (451, "account"),
        (499, "mail"),
        (500, "unknown"),
        (503, "unknown"),
        (599, "unknown"),
        (204, "unknown"),
        (100, "account"),
        (304, "account"),
    ] {
        assert_eq!(no_name(status), expected, "{status}");
        let html = Answer {
            status,
            body: Some(b"<h1>no</h1>".to_vec()),
            content_type: Some("text/html".to_owned()),
            ..Answer::default()
        };
        assert_eq!(class(&html), expected, "{status} as HTML");
        assert_eq!(class(&Answer { body: None, ..html }), expected, "{status}, cut off");
    }
}

#[test]
fn r9_a_fault_that_is_in_every_mail_is_the_accounts_and_one_of_the_recipient_is_not() {
    for (message, expected) in [
        ("Invalid `from` field. The email address needs to follow the format.", "account"),
        ("Invalid `reply_to` field.", "account"),
        ("Invalid `reply-to` field.", "account"),
        ("The `tags` must be an array", "account"),
        ("Tags should only contain ASCII letters, numbers, underscores, or dashes.", "account"),
        ("The from address is not valid", "account"),
        ("The from field is missing", "account"),
        ("custom headers are malformed", "account"),
        ("API key is invalid", "account"),
        // And what only sounds like it.
        ("Invalid `to` field. Write it as in mails from `from`", "mail"),
        ("Invalid `to` field: mails from here do not reach it", "mail"),
        ("the address was removed from the list", "mail"),
        ("Missing `subject` field", "mail"),
        ("`html` is too long; take the headers out", "mail"),
        ("", "mail"),
    ] {
        assert_eq!(class(&fault(422, "validation_error", message)), expected, "{message}");
    }
}

#[test]
fn c045_c046_only_a_2xx_with_an_id_is_a_mail_that_left() {
    for (body, expected) in [
        (r#"{"id":"4ef9a417"}"#, "accepted"),
        (r#"{"id":"4ef9a417","more":[1]}"#, "accepted"),
        (r#"{"id":5}"#, "unknown"),
        (r#"{"id":"a b"}"#, "unknown"),
        (r#"{"id":"a\nb"}"#, "unknown"),
        (r#"{"data":{"id":"x"}}"#, "unknown"),
        (r#"[{"id":"x"}]"#, "unknown"),
        (r#""id""#, "unknown"),
        ("null", "unknown"),
        ("{", "unknown"),
        ("\u{feff}", "unknown"),
    ] {
        assert_eq!(class(&json(200, body)), expected, "{body}");
    }
    assert_eq!(class(&json(200, &format!(r#"{{"id":"{}"}}"#, "x".repeat(201)))), "unknown");
    assert_eq!(class(&Answer { status: 200, body: Some(vec![0xff, 0xfe]), ..Answer::default() }), "unknown");
    let error = r#"{"error":{"name":"validation_error","message":"API key is invalid"}}"#;
    assert_eq!(class(&json(400, error)), "account", "a fault one level deeper");
}

#[test]
fn c047_how_long_to_wait_comes_along() {
    let answer = Answer { retry_after: Some(Seconds(7)), ..fault(429, "rate_limit_exceeded", "no") };
    let outcome = classify(&answer, &key());
    assert!(matches!(outcome, Outcome::NotSent { retry_after: Some(Seconds(7)), .. }), "{outcome:?}");
}

#[test]
fn c070_c071_what_is_kept_of_an_answer_names_nobody_and_holds_no_key() {
    for (message, shown) in [
        ("The example.com domain is not verified.", "The example.com domain is not verified."),
        ("Invalid `to` field.", "Invalid `to` field."),
        ("You can't do that, can you?", "You can't do that, can you?"),
        ("to hanako@example.com", "to …"),
        ("to hanako%40example.com now", "to … now"),
        ("to <hanako@example.com>, please", "to …, please"),
        ("to \"Hanako Yamada\" there", "to … there"),
        ("to 'Hanako Yamada' there", "to … there"),
        ("to “Hanako Yamada” there", "to … there"),
        ("宛先「花子」は無効", "宛先…は無効"),
        ("宛先ｈａｎａｋｏ＠ｅｘａｍｐｌｅ", "…"),
        ("`Hanako Yamada` is wrong", "… is wrong"),
        ("`hanako1@example.com` is wrong", "… is wrong"),
        ("not closed \"Hanako Yamada", "not closed …"),
        ("key re_Abcdefgh_1234567890 here", "key … here"),
        ("key re_Other_key_of_mine here", "key … here"),
        ("key xre_Abcdefgh_1234567890x here", "key x…x here"),
        ("request 1234567 at 10:20:30", "request … at …"),
        ("status 429", "status 429"),
        ("two\nlines\u{0}", "two lines"),
    ] {
        assert_eq!(showable(message, &key()), shown, "{message}");
    }
    assert_eq!(showable(&"word ".repeat(200), &key()).chars().count(), WORDS_MAX);
    assert_eq!(showable(&"x".repeat(41), &key()), "…");
}

#[test]
fn c070_a_quote_inside_a_quoted_name_does_not_let_the_rest_of_the_name_out() {
    for message in [
        "to 'Conan O'Brien' there",
        "to 'Hanako 'Brien' Yamada' there",
        "to \"Hanako \"Brien\" Yamada\" there",
        "to \"Hanako\" Brien\" there",
        "to ‘Hanako Brien’ there",
        "to «Hanako Brien» there",
        "to 『Hanako Brien』 there",
        "to <Hanako <Brien> Yamada> there",
        "to 「Hanako「Brien」Yamada」 there",
        "You can't write to 'Hanako Brien', can you?",
    ] {
        let shown = showable(message, &key());
        let leaks = ["Hanako", "Conan", "Brien", "Yamada"].iter().any(|name| shown.contains(name));
        assert!(!leaks, "{message}: {shown}");
    }
    assert_eq!(showable("Invalid `to` field, not `from`", &key()), "Invalid `to` field, not `from`");
}

#[test]
fn c071_a_key_that_looks_like_a_name_is_not_kept_as_one() {
    let key = Secret::of("re_abcdefgh_ijk");
    let answer = fault(422, "re_abcdefgh_ijk", "");
    assert_eq!(Said::of(&answer, &key).reason(), "it answered 422");
}

#[test]
fn c047_a_quota_under_another_field_still_stops_the_run_and_is_not_waited_for() {
    let of = |field: &str, name: &str| json(429, &serde_json::json!({ field: name }).to_string());
    assert_eq!(class(&of("type", "daily_quota_exceeded")), "account");
    assert_eq!(class(&of("type", "about:blank")), "later");
    let both = json(429, r#"{"name":"rate_limit_exceeded","type":"daily_quota_exceeded"}"#);
    assert_eq!(class(&both), "later", "`name` comes first");
}

#[test]
fn a_reason_says_status_name_and_words_and_nothing_of_what_is_no_json() {
    let words = "it answered 422 validation_error: Invalid `to` field.";
    assert_eq!(kept(&fault(422, "validation_error", "Invalid `to` field.")), words);
    let html = Answer {
        status: 502,
        body: Some(b"<h1>hanako@example.com</h1>".to_vec()),
        content_type: Some("text/html".to_owned()),
        ..Answer::default()
    };
    assert_eq!(kept(&html), "it answered 502 (text/html)");
    let odd = Answer { content_type: Some("hanako@example.com".to_owned()), ..html };
    assert_eq!(kept(&odd), "it answered 502");
    // What is no name is no name.
    assert_eq!(kept(&fault(422, "Hanako <h@example.com>", "")), "it answered 422");
    assert_eq!(kept(&fault(422, &"x".repeat(65), "")), "it answered 422");
    assert_eq!(kept(&json(200, &format!(r#"{{"id":"{KEY}"}}"#))), "it answered 200");
    let echoed = classify(&json(200, &format!(r#"{{"id":"{KEY}"}}"#)), &key());
    assert_eq!(echoed, Outcome::Accepted { message_id: "…".to_owned() });
}

#[test]
fn r9_equal_faults_of_several_buyers_have_equal_reasons() {
    let to = |who: &str, id: u32| {
        let message = format!("Invalid `to` field \"{who}\" ({who}@example.com), request {id}");
        kept(&fault(422, "validation_error", &message))
    };
    assert_eq!(to("hanako", 123_456), to("taro", 987_654));
}

#[test]
fn r13_a_read_that_the_key_does_not_allow_is_told_from_one_that_failed() {
    let restricted = fault(401, "restricted_api_key", "This API key is restricted to only send emails");
    assert_eq!(read(restricted, &key()), Err(Unreadable::NotAllowed));
    assert!(matches!(read(fault(401, "invalid_api_key", ""), &key()), Err(Unreadable::Failed { .. })));
    assert!(matches!(read(fault(500, "restricted_api_key", ""), &key()), Err(Unreadable::Failed { .. })));
    assert_eq!(read(json(200, "{}"), &key()), Ok(b"{}".to_vec()));
    let cut = Answer { status: 200, ..Answer::default() };
    assert!(
        matches!(read(cut, &key()), Err(Unreadable::Failed { .. })),
        "an answer that was cut off was believed"
    );
}

#[test]
fn r9_a_buyer_with_an_odd_address_or_subject_does_not_stop_the_mails_of_all_others() {
    for message in [
        "Invalid recipient headers@example.com",
        "Invalid recipient tags@example.com",
        "Invalid recipient api_key@example.com",
        "Invalid `to` field: api_key@example.com",
        "Invalid recipient \"Reply-to\" <a@example.com>",
        "Invalid recipient \"reply_to headers\"",
        "Invalid `subject` field: \"Your API key is ready\"",
        "Invalid `subject` field: Your API key is ready",
        "the subject “tags and headers” is too long",
    ] {
        assert_eq!(class(&fault(422, "validation_error", message)), "mail", "{message}");
    }
}

#[test]
fn r9_a_field_that_all_mails_have_is_known_in_any_quotes() {
    for message in [
        "Invalid \"from\" field",
        "Invalid 'reply_to' value",
        "\"tags\" must be an array",
        "Tag \"name\" must be text",
        "The `api_key` is not valid",
        &format!("{} the `from` field", "word ".repeat(60)),
        &format!("API key {KEY} is invalid"),
    ] {
        assert_eq!(class(&fault(422, "validation_error", message)), "account", "{message}");
    }
}

#[test]
fn c070_c071_a_name_or_address_in_another_spelling_is_not_kept() {
    for (message, shown) in [
        ("to 'Conan O'Brien there", "to …"),
        ("to ‘Conan O’Brien there", "to …"),
        ("宛先'花子'は無効", "宛先…は無効"),
        ("to „Hanako Yamada“ there", "to … there"),
        ("to »Hanako Yamada« there", "to … there"),
        ("to ”Hanako Yamada” there", "to … there"),
        ("to ＂Hanako Yamada＂ there", "to … there"),
        ("宛先《花子》は無効", "宛先…は無効"),
        ("to &quot;Hanako Yamada&quot; there", "to … there"),
        ("to &amp;#39;Hanako Yamada&amp;#39; there", "to … there"),
        ("to hanako&#64;example.com", "to …"),
        ("to hanako&commat;example.com", "to …"),
        ("to hanako%2540example.com", "to …"),
        ("to hanako﹫example.com", "to …"),
        ("`Hanako` is wrong", "… is wrong"),
        ("request １２３４５６", "request …"),
        ("a\u{202e}b\u{200b}c", "a b c"),
        ("the users' mails, don't they", "the users' mails, don't they"),
        ("You can’t do that", "You can’t do that"),
    ] {
        assert_eq!(showable(message, &key()), shown, "{message}");
    }
}

#[test]
fn c047_odd_json_is_read_by_its_status_alone() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let wide = serde_json::json!({ "message": "'<\"` ".repeat(50_000) }).to_string();
    for body in [
        "null",
        "true",
        "5",
        "1e999",
        "\"text\"",
        "[]",
        "[null]",
        "{}",
        "{",
        "",
        " ",
        "\u{0}",
        "\u{feff}{}",
        r#"{"name":null,"message":null}"#,
        r#"{"name":["rate_limit_exceeded"],"message":{"a":1}}"#,
        r#"{"error":"rate_limit_exceeded"}"#,
        r#"{"error":null}"#,
        r#"{"name":"rate_limit_exceeded""#,
        r#"{"message":"\ud800"}"#,
        r#"[{"name":"rate_limit_exceeded"}]"#,
        &deep,
        &wide,
    ] {
        let what: String = body.chars().take(60).collect();
        assert_eq!(class(&json(422, body)), "mail", "{what}");
        assert_eq!(class(&json(409, body)), "unknown", "{what}");
        assert_eq!(class(&json(502, body)), "unknown", "{what}");
        let reason = kept(&json(422, body));
        assert!(reason.chars().count() <= 240 && !reason.chars().any(char::is_control), "{what}: {reason}");
    }
    let not_text = Answer { body: Some(b"{\"name\":\"\xff\"}".to_vec()), ..json(422, "") };
    assert_eq!(class(&not_text), "mail");
}

proptest::proptest! {
    /// No answer whatsoever panics, or counts as a mail that left without a 2xx and an id, or shows the key.
    #[test]
    fn r9_no_answer_is_taken_for_more_than_it_is(
        status in 100u16..600,
        body in proptest::option::of(proptest::prop_oneof![
            proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..200),
            "\\{\"(id|name|message|error)\":(\"[a-z_@`'\"<> ]{0,30}\"|null|\\[\\]|\\{\\}|1)\\}".prop_map(String::into_bytes),
            ".{0,80}".prop_map(|text| format!(r#"{{"name":"validation_error","message":{}}}"#, Value::from(text)).into_bytes()),
        ]),
        retry_after in proptest::option::of(0i64..1_000_000),
    ) {
        let answer = Answer { status, body, retry_after: retry_after.map(Seconds), ..Answer::default() };
        let outcome = classify(&answer, &key());
        if let Outcome::Accepted { message_id } = &outcome {
            proptest::prop_assert!((200..300).contains(&status) && !message_id.is_empty());
        }
        let is_unknown = matches!(outcome, Outcome::Unknown { .. });
        proptest::prop_assert!(is_unknown || status < 500);
        let mut echo = answer.clone();
        echo.body = Some(format!(r#"{{"message":"{KEY}"}}"#).into_bytes());
        let said = format!("{outcome:?} {:?}", classify(&echo, &key()));
        proptest::prop_assert!(!said.contains(KEY));
    }

    /// A buyer's name in any quotes, and an address anywhere, do not come through, whatever stands around them.
    #[test]
    fn c070_c071_whatever_a_service_says_around_a_name_the_name_is_not_kept(
        before in "[a-zA-Zäé は、:.,(){}&;%/-]{0,20}",
        after in "[a-zA-Zäé は、:.,(){}&;%/-]{0,20}",
        quotes in proptest::sample::select(vec![
            "\"\"", "``", "<>", "“”", "„“", "«»", "»«", "「」", "『』", "《》", "＂＂", "＜＞",
        ]),
    ) {
        let mut quotes = quotes.chars();
        let (open, close) = (quotes.next().unwrap_or_default(), quotes.next().unwrap_or_default());
        for value in ["Zoë Quux", "山田花子Quux", "O'Quux", "quux@example.com", "Quux 'Q' <quux@example.com>"] {
            let kept = without_persons(&format!("{before}{open}{value}{close}{after}"), &key());
            proptest::prop_assert!(!kept.to_lowercase().contains("quux"), "{}", kept);
        }
        let kept = without_persons(&format!("{before} quux@example.com {after}"), &key());
        proptest::prop_assert!(!kept.contains("quux"), "{}", kept);
    }

    #[test]
    fn any_words_are_one_line_in_which_backquotes_come_in_pairs(message in "(\\PC|[\"'`<>“„‘’「\\\\\n]){0,300}") {
        let words = without_persons(&message, &key());
        proptest::prop_assert!(!words.chars().any(char::is_control) && !words.contains('@'));
        proptest::prop_assert_eq!(words.matches('`').count() % 2, 0);
        proptest::prop_assert!(showable(&message, &key()).chars().count() <= WORDS_MAX);
    }
}
