//! What the service's answers mean. A page that is not understood is no empty page, and no answer is "no such contact" but the
//! one that says so.

use serde_json::Value;

use super::ContactError;
use crate::http::Answer;

/// The body of an answer; none where there is no such thing.
pub(super) fn classify(answer: Answer) -> Result<Option<Vec<u8>>, ContactError> {
    let name = answer.word(&["name", "type"]);
    let why = match &name {
        Some(name) => format!("the service answered {} {name}", answer.status),
        None => format!("the service answered {}", answer.status),
    };
    match (answer.status, name.as_deref(), answer.body) {
        (200..=299, _, Some(body)) => Ok(Some(body)),
        (200..=299, _, None) => Err(ContactError::Failed("its answer was cut off".to_owned())),
        (401, Some("restricted_api_key"), _) => Err(ContactError::Refused(
            "the key may send mails and nothing else; contacts need one with full access".to_owned(),
        )),
        (404, Some("not_found"), _) => Ok(None),
        (404 | 408 | 409 | 425 | 429 | 500.., ..) => Err(ContactError::Failed(why)),
        (400..=499, ..) => Err(ContactError::Refused(why)),
        _ => Err(ContactError::Failed(why)),
    }
}

/// The rows of a page, and the id that the next one begins after.
pub(super) fn page(body: &[u8]) -> Result<(Vec<Value>, Option<String>), ContactError> {
    let odd = |what: &str| ContactError::Failed(format!("its list cannot be read: {what}"));
    let mut value: Value = serde_json::from_slice(body).map_err(|_| odd("it is no JSON"))?;
    let more = value.get("has_more").and_then(Value::as_bool);
    let more = more.ok_or_else(|| odd("`has_more` is neither true nor false"))?;
    let Some(Value::Array(rows)) = value.get_mut("data").map(Value::take) else {
        return Err(odd("`data` is no array"));
    };
    let last = rows.last().and_then(|row| row.get("id")).and_then(Value::as_str).map(str::to_owned);
    match (more, last) {
        (false, _) => Ok((rows, None)),
        (true, Some(last)) => Ok((rows, Some(last))),
        (true, None) => Err(odd("a page is empty, and more are to follow")),
    }
}

/// A property's value as text, be it plain or wrapped (`{"type": …, "value": …}`); none where the contact has no such one.
pub(super) fn property(contact: &Value, name: &str) -> Result<Option<String>, ContactError> {
    let properties = match contact.get("properties") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(properties)) => properties,
        Some(_) => return Err(ContactError::Failed("a contact's properties cannot be read".to_owned())),
    };
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    match properties.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(wrapped)) => match wrapped.get("value") {
            None | Some(Value::Null) => Ok(None),
            Some(value) => plain(value).map(Some).ok_or_else(unreadable),
        },
        Some(value) => plain(value).map(Some).ok_or_else(unreadable),
    }
}

fn unreadable() -> ContactError {
    ContactError::Failed("a property of a contact cannot be read".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn c079_a_page_that_is_not_understood_is_no_empty_page() {
        let odd = |body: &str| page(body.as_bytes()).unwrap_err().to_string();
        for body in
            ["", "[]", "{}", r#"{"data":[]}"#, r#"{"has_more":false}"#, r#"{"data":{},"has_more":false}"#]
        {
            assert!(odd(body).contains("cannot be read"), "{body}");
        }
        assert!(odd(r#"{"data":[],"has_more":true}"#).contains("empty, and more"));
        assert_eq!(page(br#"{"data":[],"has_more":false}"#).unwrap(), (vec![], None));
        let short = page(br#"{"data":[{"id":"c1"}],"has_more":true}"#).unwrap();
        assert_eq!(short, (vec![json!({ "id": "c1" })], Some("c1".to_owned())));
    }

    #[test]
    fn a_property_is_read_plain_and_wrapped_and_what_is_neither_is_not_guessed() {
        let of = |value: Value| property(&json!({ "properties": { "p": value } }), "p");
        for value in [
            json!("true"),
            json!(true),
            json!({ "type": "string", "value": "true" }),
            json!({ "value": true }),
        ] {
            assert_eq!(of(value).unwrap().as_deref(), Some("true"));
        }
        assert_eq!(of(json!({ "type": "number", "value": 3 })).unwrap().as_deref(), Some("3"));
        for value in [json!(null), json!({ "type": "string", "value": null }), json!({})] {
            assert_eq!(of(value).unwrap(), None);
        }
        assert!(of(json!([true])).is_err() && of(json!({ "value": ["true"] })).is_err());
        assert_eq!(property(&json!({}), "p").unwrap(), None);
        assert!(property(&json!({ "properties": [] }), "p").is_err());
    }

    #[test]
    fn only_the_answer_that_says_so_is_no_such_contact() {
        let answer = |status, body: &str| Answer { status, body: Some(body.into()), ..Answer::default() };
        assert_eq!(classify(answer(404, r#"{"name":"not_found"}"#)), Ok(None));
        // A proxy's page.
        assert!(matches!(classify(answer(404, "<h1>Not found</h1>")), Err(ContactError::Failed(_))));
        for (status, name) in
            [(401, "restricted_api_key"), (403, "invalid_api_key"), (422, "validation_error")]
        {
            let told = classify(answer(status, &format!(r#"{{"name":"{name}"}}"#)));
            assert!(matches!(told, Err(ContactError::Refused(_))), "{status}");
        }
        for status in [302, 408, 409, 429, 500, 503] {
            assert!(matches!(classify(answer(status, "{}")), Err(ContactError::Failed(_))), "{status}");
        }
    }
}
