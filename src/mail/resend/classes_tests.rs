//! The issue's table of classes (R9), one line per row.

use super::*;

const KEY: &str = "re_Abcdefgh_1234567890";
const HTML: &str = "<html><body>hanako@example.com is not welcome</body></html>";

struct Row {
    status: u16,
    body: &'static str,
    class: &'static str,
    /// What the reason says, beside the status.
    says: &'static str,
}

const fn row(status: u16, body: &'static str, class: &'static str, says: &'static str) -> Row {
    Row { status, body, class, says }
}

/// The service's own shape of a fault, with its documented words.
macro_rules! fault {
    ($name:literal, $message:literal) => {
        concat!(r#"{"statusCode":0,"name":""#, $name, r#"","message":""#, $message, r#""}"#)
    };
}

const ROWS: &[Row] = &[
    row(200, r#"{"id":"4ef9a417-02e9-4d39-ad75-9611e0fcc33c"}"#, "accepted", ""),
    row(201, r#"{"id":"4ef9a417"}"#, "accepted", ""),
    // The account.
    row(
        401,
        fault!("missing_api_key", "Missing API key in the authorization header."),
        "account",
        "Missing API key",
    ),
    row(400, fault!("validation_error", "API key is invalid"), "account", "API key is invalid"),
    row(401, fault!("validation_error", "API key is invalid"), "account", "API key is invalid"),
    row(403, fault!("validation_error", "API key is invalid"), "account", "API key is invalid"),
    row(403, fault!("invalid_api_key", "API key is invalid"), "account", "invalid_api_key"),
    row(403, fault!("suspended_api_key", "The key is suspended"), "account", "suspended_api_key"),
    row(403, fault!("invalid_permission", "No"), "account", "invalid_permission"),
    row(403, fault!("restricted_api_key", "This key may not do that"), "account", "restricted_api_key"),
    row(401, fault!("restricted_api_key", "This key may not do that"), "account", "restricted_api_key"),
    row(
        403,
        fault!("validation_error", "The shop.example domain is not verified."),
        "account",
        "domain is not verified",
    ),
    row(
        403,
        fault!(
            "validation_error",
            "You can only send testing emails to your own email address (hanako@example.com)."
        ),
        "account",
        "your own email address …",
    ),
    row(422, fault!("validation_error", "Invalid `from` field."), "account", "Invalid `from` field."),
    row(400, fault!("validation_error", "Invalid `reply_to` field."), "account", "Invalid `reply_to` field."),
    row(422, fault!("validation_error", "Invalid `headers` field."), "account", "Invalid `headers` field."),
    row(422, fault!("validation_error", "Invalid `tags` field."), "account", "Invalid `tags` field."),
    row(422, fault!("invalid_from_address", "No"), "account", "invalid_from_address"),
    row(429, fault!("daily_quota_exceeded", "You have reached it"), "account", "daily_quota_exceeded"),
    row(429, fault!("monthly_quota_exceeded", "You have reached it"), "account", "monthly_quota_exceeded"),
    row(451, fault!("security_error", "We may have found a security issue"), "account", "security issue"),
    // A fault of the program or its settings.
    row(
        400,
        fault!("invalid_idempotency_key", "Between 1 and 256 characters"),
        "account",
        "a fault of stepmail",
    ),
    row(404, fault!("not_found", "The requested endpoint does not exist"), "account", "resend.base_url"),
    row(404, HTML, "account", "resend.base_url"),
    row(405, fault!("method_not_allowed", "No"), "account", "resend.base_url"),
    row(403, HTML, "account", "between here and the service"),
    row(403, "", "account", "between here and the service"),
    // This mail.
    row(400, fault!("validation_error", "Something is missing"), "mail", "Something is missing"),
    row(422, fault!("validation_error", "Invalid `to` field."), "mail", "Invalid `to` field."),
    row(422, fault!("invalid_attachment", "No"), "mail", "invalid_attachment"),
    row(422, fault!("invalid_parameter", "No"), "mail", "invalid_parameter"),
    row(422, fault!("missing_required_field", "Missing `subject`"), "mail", "Missing `subject`"),
    row(413, HTML, "mail", "413"),
    row(418, fault!("teapot", "No"), "mail", "teapot"),
    // Later.
    row(429, fault!("rate_limit_exceeded", "Too many requests"), "later", "rate_limit_exceeded"),
    row(429, fault!("something_new", "Too many"), "later", "something_new"),
    row(429, HTML, "later", "429"),
    row(429, "", "later", "429"),
    // Unknown.
    row(
        409,
        fault!("concurrent_idempotent_requests", "In progress"),
        "in progress",
        "concurrent_idempotent_requests",
    ),
    row(409, fault!("something_new", "No"), "unknown", "something_new"),
    row(500, fault!("application_error", "An unexpected error occurred"), "unknown", "application_error"),
    row(500, fault!("validation_error", "API key is invalid"), "unknown", "500"),
    row(503, fault!("rate_limit_exceeded", "No"), "unknown", "503"),
    row(502, HTML, "unknown", "502"),
    row(504, "", "unknown", "504"),
    row(200, "{}", "unknown", "no message id"),
    row(200, "[]", "unknown", "no message id"),
    row(200, "", "unknown", "no message id"),
    row(200, r#"{"id":""}"#, "unknown", "no message id"),
    row(200, r#"{"id":null}"#, "unknown", "no message id"),
    row(
        200,
        r#"{"data":null,"error":{"name":"validation_error","message":"No"}}"#,
        "unknown",
        "no message id",
    ),
    row(202, HTML, "unknown", "no message id"),
    // A redirect is never followed.
    row(301, "", "account", "resend.base_url"),
    row(302, HTML, "account", "resend.base_url"),
    row(307, r#"{"id":"4ef9a417"}"#, "account", "resend.base_url"),
    // Conflict.
    row(
        409,
        fault!("invalid_idempotent_request", "Same key, other body"),
        "conflict",
        "invalid_idempotent_request",
    ),
];

#[test]
fn r9_each_answer_of_the_service_has_its_class_and_the_operator_can_read_which_it_was() {
    for Row { status, body, class, says } in ROWS {
        let answer = Answer { status: *status, body: Some(body.as_bytes().to_vec()), ..Answer::default() };
        let (found, reason) = match classify(&answer, &Secret::of(KEY)) {
            Outcome::Accepted { message_id } => {
                assert!(body.contains(&message_id), "{body}");
                ("accepted", String::new())
            }
            Outcome::NotSent { reason, .. } => ("later", reason),
            Outcome::RefusedMail { reason } => ("mail", reason),
            Outcome::RefusedAccount { reason } => ("account", reason),
            Outcome::Unknown { reason, in_progress: true } => ("in progress", reason),
            Outcome::Unknown { reason, in_progress: false } => ("unknown", reason),
            Outcome::Conflict { reason } => ("conflict", reason),
        };
        let row = format!("{status} {body}: {found}: {reason}");
        assert_eq!(found, *class, "{row}");
        assert!(reason.contains(says), "does not say `{says}`: {row}");
        assert!(found == "accepted" || reason.contains(&status.to_string()), "no status: {row}");
        assert!(!reason.contains("hanako") && !reason.contains('@'), "names a buyer: {row}");
        assert!(!reason.contains('<'), "quotes HTML: {row}");
    }
}
