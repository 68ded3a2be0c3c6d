//! The bytes a mail server would have been handed.

use super::*;
use crate::domain::time::Timestamp;
use crate::mail::Sender;

pub(in crate::mail) fn message(key: &str, to: &str, subject: &str) -> Message {
    Message {
        key: key.parse().unwrap(),
        date: Timestamp::parse("2026-09-21T01:00:00Z").unwrap(),
        from: Sender { name: Some("見本商店".to_owned()), address: "hello@example.com".parse().unwrap() },
        reply_to: "hello@example.com".parse().unwrap(),
        to: to.parse().unwrap(),
        subject: subject.to_owned(),
        text: "花子 様\n\nこんにちは。\n.\nFrom here\n".to_owned(),
        html: format!("<!DOCTYPE html>\n<p>{}</p>\n", "あ".repeat(1_500)),
    }
}

fn made(subject: &str) -> String {
    compose(&message("pp:cs_1:d3", "buyer@example.com", subject)).unwrap()
}

/// The encoded words of a header, each decoded by itself: a character cut in two would not be UTF-8.
fn decoded(value: &str) -> String {
    let mut text = String::new();
    for word in value.split_whitespace() {
        let word_of = |charset: &str| word.strip_prefix(charset).and_then(|word| word.strip_suffix("?="));
        let Some(inner) = word_of("=?utf-8?").or_else(|| word_of("=?us-ascii?")) else {
            text.push_str(word);
            text.push(' ');
            continue;
        };
        let (how, data) = inner.split_once('?').unwrap();
        let bytes = match how {
            "B" => base64(data),
            "Q" => quoted(data),
            other => panic!("encoding {other}"),
        };
        text.push_str(&String::from_utf8(bytes).expect("a character was cut in two"));
    }
    text.trim_end().to_owned()
}

fn base64(data: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u32> = data
        .bytes()
        .filter(|b| *b != b'=')
        .map(|b| u32::try_from(DIGITS.iter().position(|d| *d == b).unwrap()).unwrap())
        .collect();
    bits.chunks(4)
        .flat_map(|four| {
            let sum = four.iter().fold(0, |sum, six| sum << 6 | six) << (6 * (4 - four.len()));
            sum.to_be_bytes()[1..four.len()].to_vec()
        })
        .collect()
}

fn quoted(data: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = data.bytes();
    while let Some(b) = rest.next() {
        bytes.push(match b {
            b'_' => b' ',
            b'=' => {
                let pair: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&pair, 16).unwrap()
            }
            b => b,
        });
    }
    bytes
}

fn head(mail: &str) -> &str {
    mail.split("\r\n\r\n").next().unwrap()
}

fn unfolded(mail: &str, name: &str) -> String {
    let head = head(mail).replace("\r\n ", " ").replace("\r\n\t", " ");
    let line = head.lines().find(|line| is_header(line, name)).unwrap();
    line[name.len() + 1..].trim().to_owned()
}

#[test]
fn c043_a_subject_is_encoded_once_and_never_cut_inside_a_character() {
    for subject in [
        "plain".to_owned(),
        "🎁 present".to_owned(),
        "👨‍👩‍👧‍👦".to_owned(),
        "あ".repeat(200),
        "a あ".repeat(60),
        "あ a🎁".repeat(40),
        "=?utf-8?B?44GC?=".to_owned(),
        "é".repeat(100),
        "a".repeat(900),
        "=?".repeat(50) + "あ",
    ] {
        let mail = made(&subject);
        assert_eq!(
            decoded(&unfolded(&mail, "Subject")).replace(' ', ""),
            subject.replace(' ', ""),
            "{}",
            head(&mail)
        );
        assert!(head(&mail).lines().all(|line| line.len() <= 998));
        if subject.chars().all(|c| !c.is_ascii()) {
            assert!(head(&mail).lines().all(|line| line.len() <= 78), "{}", head(&mail));
        }
    }
}

#[test]
fn c015_c039_a_mail_has_one_recipient_and_only_our_headers() {
    let mail = made("a\r\nBcc: x@example.org");
    let names: Vec<&str> = head(&mail)
        .lines()
        .filter(|line| !line.starts_with([' ', '\t']))
        .map(|line| line.split(':').next().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "Date",
            "Message-ID",
            "From",
            "Reply-To",
            "To",
            "Subject",
            "Auto-Submitted",
            "X-Stepmail-Key",
            "List-Unsubscribe",
            "MIME-Version",
            "Content-Type"
        ]
    );
    assert_eq!(header(&mail, "to").as_deref(), Some("buyer@example.com"));
    assert_eq!(header(&mail, "Date").as_deref(), Some("Mon, 21 Sep 2026 01:00:00 +0000"));
    assert_eq!(header(&mail, "List-Unsubscribe").as_deref(), Some("<mailto:hello@example.com?subject=stop>"));
    assert_eq!(header(&mail, "Auto-Submitted").as_deref(), Some("auto-generated"));
    assert_eq!(header(&mail, KEY_HEADER).as_deref(), Some("pp:cs_1:d3"));
    let id = header(&mail, "Message-ID").unwrap();
    assert!(id.starts_with('<') && id.ends_with("@example.com>") && !id.contains("cs_1"), "{id}");
    assert_eq!(decoded(&unfolded(&mail, "From").replace("<hello", "hello")), "見本商店hello@example.com>");
}

#[test]
fn old_carrier_addresses_and_odd_senders_are_written_as_the_grammar_wants() {
    let mut odd = message("pp:cs_1:d7", "a..b@example.com", "s");
    odd.from = Sender {
        name: Some("Evil\r\nBcc: x@example.org, \"Q\" <q@example.org>".to_owned()),
        address: "a@日本語.example".parse().unwrap(),
    };
    odd.reply_to = "o'neil+x/y?z&w=%@example.com".parse().unwrap();
    let mail = compose(&odd).unwrap();
    assert_eq!(unfolded(&mail, "To"), "\"a..b\"@example.com");
    assert!(unfolded(&mail, "From").ends_with("<a@xn--wgv71a119e.example>"), "{}", unfolded(&mail, "From"));
    assert!(unfolded(&mail, "Message-ID").ends_with("@xn--wgv71a119e.example>"));
    assert_eq!(
        unfolded(&mail, "List-Unsubscribe"),
        "<mailto:o'neil%2Bx%2Fy%3Fz%26w%3D%25@example.com?subject=stop>"
    );
    assert!(!head(&mail).contains("\nBcc"));
    odd.from.name = Some("\u{200b}".to_owned());
    assert_eq!(unfolded(&compose(&odd).unwrap(), "From"), "<a@xn--wgv71a119e.example>");
}

#[test]
fn only_d3_d7_and_d14_carry_the_way_out() {
    for (key, way_out) in [
        ("pp:cs_1:d0", false),
        ("pp:cs_1:d3", true),
        ("pp:cs_1:d7", true),
        ("pp:cs_1:d14", true),
        ("pp:notice:brake.x.1", false),
    ] {
        let mail = compose(&message(key, "buyer@example.com", "s")).unwrap();
        assert_eq!(header(&mail, "List-Unsubscribe").is_some(), way_out, "{key}");
    }
}

#[test]
fn the_same_message_is_the_same_seven_bit_bytes() {
    let key = format!("pp:{}:d14", "x".repeat(200));
    let long = message(&key, &format!("{}@example.com", "b".repeat(64)), "s");
    let mail = compose(&long).unwrap();
    assert_eq!(mail, compose(&long).unwrap());
    assert!(mail.is_ascii() && !mail.replace("\r\n", "").contains(['\r', '\n']));
    assert_eq!(header(&mail, KEY_HEADER), Some(key));
    let mut later = long.clone();
    later.date = Timestamp::parse("2026-09-21T02:00:00Z").unwrap();
    assert_eq!(later.content_hash(), long.content_hash());
    assert_ne!(header(&compose(&later).unwrap(), "Message-ID"), header(&mail, "Message-ID"));
    later.text.push('x');
    assert_ne!(later.content_hash(), long.content_hash());
    assert!(!format!("{long:?}").contains("花子") && !format!("{long:?}").contains("bbb"));
}

#[test]
fn both_parts_come_back_as_they_were() {
    let given = message("pp:cs_1:d0", "buyer@example.com", "s");
    let mail = compose(&given).unwrap();
    let content = unfolded(&mail, "Content-Type");
    let boundary = content.split("boundary=\"").nth(1).unwrap().trim_end_matches('"');
    let parts: Vec<&str> = mail.split(&format!("--{boundary}")).collect();
    assert_eq!(parts.len(), 4, "before, text, HTML, after");
    for (part, kind, text) in [(parts[1], "text/plain", &given.text), (parts[2], "text/html", &given.html)] {
        let (head, body) = part.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Type: {kind}; charset=\"utf-8\"")), "{head}");
        let bytes = if head.contains("base64") {
            base64(&body.replace("\r\n", ""))
        } else {
            quoted(&body.trim_end_matches("\r\n").replace("=\r\n", "").replace('_', "=5F"))
        };
        assert_eq!(String::from_utf8(bytes).unwrap().replace("\r\n", "\n").trim_end(), text.trim_end());
    }
}
