//! The neutral form: purchases and stops in stepmail's own words, for shops whose payment service it does not know.
//!
//! Somebody writes these by hand or by a script of their own, so a field that is not in the form is refused by name: it
//! may be a misspelt one that matters (C061).

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::json::{self, Fault, Fields, Kind, quoted};
use crate::domain::event::{Checkout, Incoming, Payment, StopSignal, StopTarget};
use crate::domain::ids::Address;
use crate::domain::ledger::Refs;
use crate::domain::time::{BadTime, Timestamp};

const CHECKOUT: [&str; 10] =
    ["id", "type", "session", "email", "paid_at", "name", "billing", "subscriber_id", "locale", "vars"];
const STOP: [&str; 6] = ["id", "type", "session", "email", "reason", "at"];

/// What a neutral event says.
pub(super) fn read(event: &Fields<'_>) -> Result<Incoming, Fault> {
    match event.need("type", event.text("type")?)?.as_str() {
        "checkout.completed" => checkout(event),
        "stop" => stop(event),
        _ => Ok(Incoming::Ignored),
    }
}

fn checkout(event: &Fields<'_>) -> Result<Incoming, Fault> {
    only(event, &CHECKOUT)?;
    let address = event.need("email", event.text("email")?)?.parse::<Address>();
    Ok(Incoming::Checkout(Box::new(Checkout {
        event: event.name("id")?,
        at: time(event, "paid_at")?,
        session: event.name("session")?,
        payment: Payment::Paid,
        email_fault: address.as_ref().err().map(ToString::to_string),
        email: address.ok(),
        name: event.filled("name")?,
        locale: event.filled("locale")?,
        billing: event.filled("billing")?,
        subscriber_id: event.filled("subscriber_id")?,
        amount: None,
        refs: Refs::default(),
        vars: vars(event)?,
    })))
}

fn stop(event: &Fields<'_>) -> Result<Incoming, Fault> {
    only(event, &STOP)?;
    let target = match (event.raw("session"), event.raw("email")) {
        (Some(_), None) => StopTarget::Session(event.name("session")?),
        (None, Some(_)) => StopTarget::Buyer(event.name("email")?),
        (None, None) => return Err(Fault("a stop needs `session` or `email`".to_owned())),
        // Both could mean either "this purchase" or "this person"; guessing low would go on mailing.
        (Some(_), Some(_)) => {
            return Err(Fault("a stop names `session` or `email`, not both".to_owned()));
        }
    };
    Ok(Incoming::Stop(StopSignal {
        event: event.name("id")?,
        at: time(event, "at")?,
        reason: event.filled("reason")?.unwrap_or_else(|| "asked".to_owned()),
        target,
        asked: false,
        quiet: false,
    }))
}

/// A time that is missing or odd is a fault, never "now": old records would all be bought today (C029).
fn time(event: &Fields<'_>, name: &str) -> Result<Timestamp, Fault> {
    let text = event.need(name, event.text(name)?)?;
    Timestamp::parse(&text).map_err(|error| match error {
        // Its own message repeats the text, which may be anything.
        BadTime::NotATime(_) => event.fault(name, "is not a time like 2026-09-21T01:00:00Z"),
        BadTime::OutOfRange(_) => event.fault(name, format_args!("is refused: {error}")),
    })
}

fn only(event: &Fields<'_>, known: &[&str]) -> Result<(), Fault> {
    match event.names().find(|name| !known.contains(name)) {
        Some(name) => Err(Fault(format!("{} is no field of this form; is it misspelt?", quoted(name)))),
        None => Ok(()),
    }
}

fn vars(event: &Fields<'_>) -> Result<BTreeMap<String, String>, Fault> {
    let mut vars = BTreeMap::new();
    let Some(given) = event.object("vars")? else { return Ok(vars) };
    for name in given.names() {
        if !is_identifier(name) {
            return Err(Fault(format!(
                "`vars` has {}, which is no name for a value: letters, digits and `_`, at most 64",
                quoted(name)
            )));
        }
        if let Some(raw) = given.raw(name) {
            vars.insert(name.to_owned(), value(raw).map_err(|Fault(why)| given.fault(name, why))?);
        }
    }
    Ok(vars)
}

/// A value for a template: text, or a number or truth value exactly as it was written.
fn value(raw: &RawValue) -> Result<String, Fault> {
    match json::kind(raw) {
        Kind::Text => json::text(raw),
        Kind::Number if !raw.get().parse::<f64>().is_ok_and(f64::is_finite) => {
            Err(Fault("is a number beyond all bounds".to_owned()))
        }
        Kind::List | Kind::Object => Err(Fault("must be text, a number, true or false".to_owned())),
        Kind::Null | Kind::Bool(_) | Kind::Number => Ok(raw.get().to_owned()),
    }
}

/// Whether a template can call a value by this name.
pub(super) fn is_identifier(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming(text: &str) -> Result<Incoming, Fault> {
        let raw: &RawValue = serde_json::from_str(text).unwrap();
        read(&Fields::read(raw).unwrap())
    }

    fn why(text: &str) -> String {
        incoming(text).unwrap_err().0
    }

    /// The five required fields, then `more`; `more` begins with a comma.
    fn sold(more: &str) -> String {
        format!(
            r#"{{"id":"e1","type":"checkout.completed","session":"cs_1","email":"Hanako@example.com","paid_at":"2026-09-21T01:00:00Z"{more}}}"#
        )
    }

    fn checkout_of(text: &str) -> Checkout {
        match incoming(text).unwrap() {
            Incoming::Checkout(checkout) => *checkout,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_purchase_with_all_its_fields_is_read_as_written() {
        let all = sold(
            r#","name":" 買物 花子 ","billing":"new","subscriber_id":"s1","locale":"ja","vars":{"product":"A & B","seats":3,"price":19.80,"big":12345678901234567890,"vip":true,"gone":null}"#,
        );
        let vars = [
            ("big", "12345678901234567890"),
            ("price", "19.80"),
            ("product", "A & B"),
            ("seats", "3"),
            ("vip", "true"),
        ];
        assert_eq!(
            checkout_of(&all),
            Checkout {
                event: "e1".parse().unwrap(),
                at: Timestamp::parse("2026-09-21T01:00:00Z").unwrap(),
                session: "cs_1".parse().unwrap(),
                payment: Payment::Paid,
                email: Some("Hanako@example.com".parse().unwrap()),
                email_fault: None,
                name: Some("買物 花子".to_owned()),
                locale: Some("ja".to_owned()),
                billing: Some("new".to_owned()),
                subscriber_id: Some("s1".to_owned()),
                amount: None,
                refs: Refs::default(),
                vars: vars.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            }
        );
    }

    #[test]
    fn c036_null_and_blank_optional_fields_are_absent() {
        let bare = checkout_of(&sold(""));
        assert_eq!((bare.name.as_ref(), bare.vars.len()), (None, 0));
        for more in [
            r#","name":null,"billing":null,"subscriber_id":null,"locale":null,"vars":null"#,
            r#","name":"","billing":" ","subscriber_id":"\t","locale":"　","vars":{}"#,
        ] {
            assert_eq!(checkout_of(&sold(more)), bare);
        }
    }

    #[test]
    fn c038_c039_a_name_is_data_and_survives_whatever_it_holds() {
        let odd = checkout_of(&sold(r#","name":"<a href=x>{{product}}</a>\r\nBcc: x@example.org""#));
        assert_eq!(odd.name.as_deref(), Some("<a href=x>{{product}}</a>\r\nBcc: x@example.org"));
    }

    #[test]
    fn c029_a_purchase_without_a_time_is_refused_and_never_dated_today() {
        for (time, said) in [
            ("null", "`paid_at` is missing"),
            ("\"\"", "`paid_at` is not a time like 2026-09-21T01:00:00Z"),
            ("\"5/1\"", "`paid_at` is not a time like 2026-09-21T01:00:00Z"),
            ("\"hanako@example.com\"", "`paid_at` is not a time like 2026-09-21T01:00:00Z"),
            ("1771041840", "`paid_at` must be text"),
        ] {
            assert_eq!(why(&sold("").replace("\"2026-09-21T01:00:00Z\"", time)), said, "{time}");
        }
        assert!(why(&sold("").replace("2026-09-21", "1970-01-01")).contains("2000 to 2200"));
        assert_eq!(
            why(r#"{"id":"e1","type":"checkout.completed","session":"cs_1","email":"a@example.com"}"#),
            "`paid_at` is missing"
        );
    }

    #[test]
    fn each_required_field_is_asked_for_by_name() {
        for (from, to, said) in [
            ("\"id\":\"e1\"", "\"id\":null", "`id` is missing"),
            ("\"id\":\"e1\"", "\"id\":5", "`id` must be text"),
            (
                "\"id\":\"e1\"",
                "\"id\":\"e 1\"",
                "`id` is refused: event id may hold only visible ASCII characters",
            ),
            ("\"session\":\"cs_1\"", "\"session\":null", "`session` is missing"),
            (
                "\"session\":\"cs_1\"",
                "\"session\":\"cs:1\"",
                "`session` is refused: session id may hold only A-Z, a-z, 0-9, `_` and `-`",
            ),
            (
                "\"session\":\"cs_1\"",
                "\"session\":\"notice\"",
                "`session` is refused: session id must not be `notice`",
            ),
            ("\"email\":\"Hanako@example.com\"", "\"email\":null", "`email` is missing"),
            ("\"email\":\"Hanako@example.com\"", "\"email\":7", "`email` must be text"),
        ] {
            let text = sold("").replace(from, to);
            assert_ne!(text, sold(""), "{from}");
            assert_eq!(why(&text), said);
        }
    }

    #[test]
    fn c061_a_misspelt_field_is_refused_by_name_and_an_address_as_a_name_is_not_repeated() {
        assert_eq!(
            why(&sold(r#","subscriber":"s1""#)),
            "`subscriber` is no field of this form; is it misspelt?"
        );
        assert_eq!(
            why(&sold(r#","hanako@example.com":1"#)),
            "a field with an odd name is no field of this form; is it misspelt?"
        );
    }

    #[test]
    fn c007_c044_a_bad_address_keeps_the_purchase_and_says_what_is_wrong_without_repeating_it() {
        for bad in [
            "",
            " ",
            "a b@example.com",
            "ｂｕｙｅｒ＠ｅｘａｍｐｌｅ．ｃｏｍ",
            "buyer@example,com",
            "buy\u{200b}er@example.com",
        ] {
            let sale = checkout_of(&sold("").replace("Hanako@example.com", bad));
            assert_eq!(sale.email, None, "{bad:?}");
            let fault = sale.email_fault.unwrap();
            assert!(fault.starts_with("address ") && !fault.contains("buy"), "{fault}");
        }
        let spaced = checkout_of(&sold("").replace("Hanako@example.com", "\u{3000} buyer@example.com "));
        assert_eq!(spaced.email.unwrap().as_str(), "buyer@example.com");
    }

    #[test]
    fn values_that_a_template_cannot_use_are_refused_with_their_name() {
        for (vars, said) in [
            (r#"{"list":[1]}"#, "`vars.list` must be text, a number, true or false"),
            (r#"{"map":{}}"#, "`vars.map` must be text, a number, true or false"),
            (r#"{"n":1e400}"#, "`vars.n` is a number beyond all bounds"),
            (r#"{"s":"\udc00"}"#, "`vars.s` has a broken \\u escape, which stands for no character"),
            (
                r#"{"login-url":"x"}"#,
                "`vars` has `login-url`, which is no name for a value: letters, digits and `_`, at most 64",
            ),
            (
                r#"{"":"x"}"#,
                "`vars` has a field with an odd name, which is no name for a value: letters, digits and `_`, at most 64",
            ),
            (r#"{"a":1,"a":2}"#, "`vars` cannot be read: vars.`a` stands twice"),
            ("[]", "`vars` must be an object"),
        ] {
            assert_eq!(why(&sold(&format!(",\"vars\":{vars}"))), said);
        }
        assert!(is_identifier(&"x".repeat(64)) && !is_identifier(&"x".repeat(65)) && !is_identifier("1x"));
    }

    #[test]
    fn a_stop_names_a_purchase_or_a_person_and_says_when() {
        let stop = |text: &str| match incoming(text).unwrap() {
            Incoming::Stop(stop) => (stop.reason, stop.target),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            stop(
                r#"{"id":"e2","type":"stop","session":"cs_1","reason":"refund","at":"2026-09-21T01:00:00+09:00"}"#
            ),
            ("refund".to_owned(), StopTarget::Session("cs_1".parse().unwrap()))
        );
        assert_eq!(
            stop(
                r#"{"id":"e2","type":"stop","session":null,"email":"A@example.com","at":"2026-09-21T01:00:00Z"}"#
            ),
            ("asked".to_owned(), StopTarget::Buyer("A@example.com".parse().unwrap()))
        );
        for (fields, said) in [
            (r#""at":"2026-09-21T01:00:00Z""#, "a stop needs `session` or `email`"),
            (
                r#""session":"cs_1","email":"a@example.com","at":"2026-09-21T01:00:00Z""#,
                "a stop names `session` or `email`, not both",
            ),
            (r#""session":"cs_1""#, "`at` is missing"),
            (r#""session":"cs_1","at":"yesterday""#, "`at` is not a time like 2026-09-21T01:00:00Z"),
            (r#""email":"a","at":"2026-09-21T01:00:00Z""#, "`email` is refused: address has no @"),
            (r#""session":"cs_1","paid_at":"x""#, "`paid_at` is no field of this form; is it misspelt?"),
        ] {
            assert_eq!(why(&format!(r#"{{"id":"e2","type":"stop",{fields}}}"#)), said);
        }
    }

    #[test]
    fn other_types_are_counted_and_start_nothing() {
        assert_eq!(incoming(r#"{"type":"newsletter.opened","what":[1]}"#), Ok(Incoming::Ignored));
        assert_eq!(why(r#"{"id":"e1"}"#), "`type` is missing");
        assert_eq!(why(r#"{"id":"e1","type":1}"#), "`type` must be text");
    }
}
