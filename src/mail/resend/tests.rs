use super::*;

/// Nothing listens where this service is said to be, and there is no key: a request would fail in other words.
fn resend() -> Resend {
    let clock = Clock::new(None);
    let key = Places {
        setting: "resend.api_key",
        what: "key for the service",
        prefixes: &["re_"],
        file: Some("/nowhere/key".into()),
        command: None,
        credential: "resend_api_key",
        variable: "RESEND_API_KEY",
    };
    let base_url = BaseUrl::parse("http://127.0.0.1:9").unwrap();
    Resend::new(ResendSettings { base_url, requests_per_second: 4, key }, &clock)
}

fn frozen(via: &str) -> Frozen {
    Frozen {
        via: via.to_owned(),
        to: "hanako@example.com".parse().unwrap(),
        subject: "Hello".to_owned(),
        body: "From: a whole message of another kind".to_owned(),
        hash: String::new(),
    }
}

#[test]
fn r11_what_was_prepared_for_another_service_is_not_handed_to_this_one() {
    let key = "pp:cs_1:d3".parse().unwrap();
    let outcome = resend().send(&key, &frozen("outbox"));
    let Outcome::RefusedAccount { reason } = outcome else { panic!("{outcome:?}") };
    assert_eq!(reason, "it was prepared for `outbox`, not for resend; this is a fault of stepmail");
    // One of our own gets as far as the key that is not there.
    let outcome = resend().send(&key, &frozen("resend"));
    assert!(
        matches!(&outcome, Outcome::RefusedAccount { reason } if reason.contains("/nowhere/key")),
        "{outcome:?}"
    );
}

#[test]
fn r9_a_mail_leaves_under_a_key_that_the_service_knows_again_or_not_at_all() {
    for (key, expected) in [
        ("pp:cs_1:d3", true),
        ("pp:notice:no_mark.state_dir.1", true),
        ("", false),
        ("pp:cs 1:d3", false),
        ("pp:cs_1:d3\n", false),
        ("pp:髙:d3", false),
    ] {
        assert_eq!(is_sendable(key), expected, "{key:?}");
    }
    assert!(is_sendable(&"x".repeat(256)) && !is_sendable(&"x".repeat(257)));
}
