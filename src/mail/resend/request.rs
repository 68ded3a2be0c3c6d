//! The body of `POST /emails`: the same bytes for the same message. Its time is the service's to set, and not in it.

use serde::Serialize;

use crate::domain::ids::IdempotencyKey;
use crate::mail::{Message, clean, mime};

#[derive(Serialize)]
struct Body<'a> {
    from: String,
    to: [String; 1],
    subject: String,
    html: &'a str,
    text: &'a str,
    reply_to: String,
    headers: Headers,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<Tag>,
}

/// Their names never come from data.
#[derive(Serialize)]
struct Headers {
    #[serde(rename = "Auto-Submitted")]
    auto_submitted: &'static str,
    #[serde(rename = "List-Unsubscribe", skip_serializing_if = "Option::is_none")]
    list_unsubscribe: Option<String>,
}

/// By these a mail is found again whose answer was lost. The key itself would not do: tags have no colon.
#[derive(Serialize)]
struct Tag {
    name: &'static str,
    value: String,
}

/// The whole body. An error is a reason in words.
pub(super) fn body(message: &Message) -> Result<String, String> {
    let subject = clean::line(&message.subject);
    if subject.is_empty() {
        return Err("the subject is empty".to_owned());
    }
    let tags = match &message.key {
        IdempotencyKey::Step(session, step) => vec![
            Tag { name: "session", value: session.to_string() },
            Tag { name: "step", value: step.to_string() },
        ],
        IdempotencyKey::Notice(_) => Vec::new(),
    };
    let body = Body {
        from: sender(message),
        to: [message.to.for_header()],
        subject,
        html: &message.html,
        text: &message.text,
        reply_to: message.reply_to.for_header(),
        headers: Headers { auto_submitted: "auto-generated", list_unsubscribe: mime::stop_header(message) },
        tags,
    };
    serde_json::to_string(&body).map_err(|error| error.to_string())
}

/// `"Name" <address>`. The service encodes names itself (C043).
fn sender(message: &Message) -> String {
    let address = message.from.address.for_header();
    let name = message.from.name.as_deref().map(clean::name).filter(|name| !name.is_empty());
    match name {
        Some(name) => format!("\"{}\" <{address}>", name.replace('\\', "\\\\").replace('"', "\\\"")),
        None => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::matter::{Matter, MatterKind};
    use crate::domain::time::Timestamp;
    use crate::mail::{Sender, notice};
    use serde_json::{Value, json};

    fn message(key: &str) -> Message {
        Message {
            key: key.parse().unwrap(),
            date: Timestamp::parse("2026-10-01T00:00:00Z").unwrap(),
            from: Sender {
                name: Some("髙﨑\\ \"Shop\"\n".to_owned()),
                address: "hello@example.com".parse().unwrap(),
            },
            reply_to: "hello@example.com".parse().unwrap(),
            to: "Hana..Ko@example.com".parse().unwrap(),
            subject: "使えましたか 👨‍👩‍👧 \"x\"".to_owned(),
            text: "text".to_owned(),
            html: "<p>html</p>".to_owned(),
        }
    }

    fn parsed(key: &str) -> Value {
        serde_json::from_str(&body(&message(key)).unwrap()).unwrap()
    }

    #[test]
    fn c015_c043_one_recipient_a_plain_subject_and_nothing_that_was_not_meant() {
        let expected = json!({
            "from": "\"髙﨑\\\\ \\\"Shop\\\"\" <hello@example.com>",
            "to": ["\"Hana..Ko\"@example.com"],
            "subject": "使えましたか 👨‍👩‍👧 \"x\"",
            "html": "<p>html</p>",
            "text": "text",
            "reply_to": "hello@example.com",
            "headers": {
                "Auto-Submitted": "auto-generated",
                "List-Unsubscribe": "<mailto:hello@example.com?subject=stop>",
            },
            "tags": [{ "name": "session", "value": "cs_1" }, { "name": "step", "value": "d3" }],
        });
        assert_eq!(parsed("pp:cs_1:d3"), expected);
        // d0 is like a receipt.
        assert_eq!(parsed("pp:cs_1:d0")["headers"], json!({ "Auto-Submitted": "auto-generated" }));
    }

    #[test]
    fn r11_the_same_message_is_the_same_bytes_on_another_day() {
        let later = Timestamp::parse("2026-10-02T00:00:00Z").unwrap();
        let first = body(&message("pp:cs_1:d3")).unwrap();
        assert_eq!(first, body(&Message { date: later, ..message("pp:cs_1:d3") }).unwrap());
        assert_ne!(first, body(&message("pp:cs_1:d7")).unwrap());
    }

    #[test]
    fn a_notice_goes_to_the_operator_and_carries_no_tags() {
        let at = Timestamp::parse("2026-10-01T00:00:00Z").unwrap();
        let matter = Matter::new(MatterKind::NoMark, "state_dir", at, None, "look".to_owned());
        let from = Sender { name: None, address: "hello@example.com".parse().unwrap() };
        let notice = notice(&[matter], &from, &"owner@example.com".parse().unwrap(), at).unwrap();
        let body: Value = serde_json::from_str(&body(&notice).unwrap()).unwrap();
        assert_eq!(
            (&body["from"], &body["to"]),
            (&json!("hello@example.com"), &json!(["owner@example.com"]))
        );
        assert!(body.get("tags").is_none());
    }

    #[test]
    fn a_mail_without_a_subject_is_not_sent() {
        assert!(body(&Message { subject: "\u{200b}\n".to_owned(), ..message("pp:cs_1:d3") }).is_err());
    }
}
