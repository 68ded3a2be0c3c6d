//! A message as RFC 5322 wants it: multipart/alternative, seven bits, CRLF, and the same bytes for the same message.
//!
//! Boundary and Message-ID are made from the key here; left alone, mail-builder takes clock and chance for them. No
//! header name and no Message-ID ever comes from data.

use std::fmt::Write as _;

use mail_builder::MessageBuilder;
use mail_builder::headers::HeaderType;
use mail_builder::headers::address::Address as Mailbox;
use mail_builder::headers::content_type::ContentType;
use mail_builder::headers::date::Date;
use mail_builder::headers::raw::Raw;
use mail_builder::headers::text::Text;
use mail_builder::mime::MimePart;

use super::{Message, clean, hash, link};
use crate::domain::ids::{IdempotencyKey, Step};

/// The header that says whose file it is, where a file system takes `cs_A` and `cs_a` for one name.
pub(super) const KEY_HEADER: &str = "X-Stepmail-Key";

/// The most bytes a line of a mail may have, without CRLF.
const LINE_MAX: usize = 998;

/// The whole message. An error is a reason in words.
pub(super) fn compose(message: &Message) -> Result<String, String> {
    let key = message.key.to_string();
    let subject = clean::line(&message.subject);
    if subject.is_empty() {
        return Err("the subject is empty".to_owned());
    }
    let name = message.from.name.as_deref().map(clean::name).filter(|name| !name.is_empty());
    let boundary = format!("stepmail-{}", &hash(&[&key, &message.content_hash()])[..32]);
    let parts = vec![
        MimePart::new("text/plain", message.text.as_str()),
        MimePart::new("text/html", message.html.as_str()),
    ];
    let mut builder = MessageBuilder::new()
        .header("Date", Date::new(message.date.unix()))
        .header("Message-ID", raw(message_id(message)))
        .header("From", Mailbox::new_address(name, message.from.address.for_header()))
        .header("Reply-To", raw(message.reply_to.for_header()))
        .header("To", raw(message.to.for_header()))
        .header("Subject", subject_header(subject))
        .header("Auto-Submitted", raw("auto-generated"))
        .header(KEY_HEADER, raw(key));
    if let Some(stop) = stop_header(message) {
        builder = builder.header("List-Unsubscribe", raw(stop));
    }
    let content = ContentType::new("multipart/alternative").attribute("boundary", boundary);
    let mail = builder
        .header("MIME-Version", raw("1.0"))
        .body(MimePart::new(content, parts))
        .write_to_string()
        .map_err(|error| error.to_string())?;
    // What any mail server takes. Nothing known breaks this; a file that did would be refused days later, elsewhere.
    if !mail.is_ascii() || mail.split("\r\n").any(|line| line.len() > LINE_MAX || line.contains(['\r', '\n']))
    {
        return Err("it has no seven-bit form".to_owned());
    }
    Ok(mail)
}

/// mail-builder encodes what needs it, but lets ASCII pass that looks encoded already: a reader would see it decoded.
fn subject_header(subject: String) -> HeaderType<'static> {
    if !(subject.is_ascii() && subject.contains("=?")) {
        return Text::new(subject).into();
    }
    let word = |bytes: &[u8]| {
        let mut word = "=?utf-8?Q?".to_owned();
        for byte in bytes {
            let _ = write!(word, "={byte:02X}");
        }
        word + "?="
    };
    // 20 bytes become an encoded word of 72 characters; RFC 2047 allows 75.
    raw(subject.as_bytes().chunks(20).map(word).collect::<Vec<_>>().join(" "))
}

fn raw<'x>(text: impl Into<std::borrow::Cow<'x, str>>) -> HeaderType<'x> {
    Raw::new(text).into()
}

/// `<…@the sender's domain>`, from key and date alone.
fn message_id(message: &Message) -> String {
    let address = message.from.address.for_header();
    let domain = address.rsplit_once('@').map_or("localhost", |(_, domain)| domain);
    format!(
        "<{}@{domain}>",
        &hash(&["message-id", &message.key.to_string(), &message.date.to_string()])[..40]
    )
}

/// `List-Unsubscribe`, for the mails that a reader must be able to refuse.
pub(super) fn stop_header(message: &Message) -> Option<String> {
    let refusable = matches!(message.key, IdempotencyKey::Step(_, Step::D3 | Step::D7 | Step::D14));
    refusable.then(|| format!("<{}>", stop_link(message)))
}

/// The address that stops the mails, as RFC 6068 wants it.
fn stop_link(message: &Message) -> String {
    let mut url = "mailto:".to_owned();
    link::encode(&message.reply_to.for_header(), |b| b"-._~@!$'*".contains(&b), &mut url);
    url.push_str("?subject=stop");
    url
}

/// The value of a header of a whole message, unfolded.
pub(super) fn header(mail: &str, name: &str) -> Option<String> {
    let head = mail.split("\r\n\r\n").next().unwrap_or_default();
    let head = head.split("\n\n").next().unwrap_or_default();
    let mut lines = head.lines().skip_while(|line| !is_header(line, name));
    let mut value = lines.next()?.get(name.len() + 1..)?.trim().to_owned();
    for more in lines.take_while(|line| line.starts_with([' ', '\t'])) {
        value.push_str(more.trim());
    }
    Some(value).filter(|value| !value.is_empty())
}

fn is_header(line: &str, name: &str) -> bool {
    line.as_bytes().get(name.len()) == Some(&b':')
        && line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
}

#[cfg(test)]
#[path = "mime_tests.rs"]
pub(super) mod tests;
