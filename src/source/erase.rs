//! R17: an event file without one person's events. It reads the same shapes as `file.rs`, and keeps everybody else's
//! events byte for byte.
//!
//! It leaves out whose events are whose, and the files themselves. What must hold: an event that names the person goes,
//! however it writes the name; another's event stays, whatever stands beside it.

use std::ops::Range;

use serde_json::Value;
use serde_json::value::RawValue;

use super::file::{LISTS_MAX, LONG_SEARCHES_MAX, Scan, is_wide};
use super::json::{self, Fields, Kind};

/// The fields whose text names an event, a purchase, or one of the payment service's ids. Elsewhere the same word may
/// mean anything, and the event is somebody else's.
const IDS: [&str; 7] = ["id", "session", "payment_intent", "invoice", "subscription", "customer", "charge"];

/// The file without the events in which `theirs` knows a name: an address anywhere in the event, or a session, event or
/// other id in a field for one. Pieces that are no JSON go if any word in them is such a name. None if there was nothing
/// of theirs.
///
/// Bytes that are no UTF-8 become replacement characters in a file that is changed; the events that hold them were
/// refused when it was read. A file in UTF-16 or UTF-32, none of which was read, is kept whole or emptied.
#[must_use]
pub fn erase(bytes: &[u8], theirs: &dyn Fn(&str) -> bool) -> Option<Vec<u8>> {
    if is_wide(bytes) {
        let narrow: Vec<u8> = bytes.iter().copied().filter(|&byte| byte != 0).collect();
        return names_in(&String::from_utf8_lossy(&narrow)).any(|name| theirs(&name)).then(Vec::new);
    }
    let text = String::from_utf8_lossy(bytes);
    let cuts = Eraser { theirs }.cuts(&text);
    if cuts.is_empty() {
        return None;
    }
    Some(apply(&text, cuts).into_bytes())
}

/// A piece of the text, and what comes in its place.
type Cut = (Range<usize>, String);

/// What becomes of one value.
enum Fate {
    Stays,
    Goes,
    /// It is a list or a page that held some of theirs.
    Becomes(String),
}

fn apply(text: &str, cuts: Vec<Cut>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (cut, instead) in cuts {
        out.push_str(&text[at..cut.start]);
        out.push_str(&instead);
        at = cut.end;
    }
    out.push_str(&text[at..]);
    out
}

struct Eraser<'a> {
    theirs: &'a dyn Fn(&str) -> bool,
}

impl Eraser<'_> {
    /// Goes through the text as [`Scan::run`] does.
    fn cuts(&self, text: &str) -> Vec<Cut> {
        let rules = super::Rules::plain(true);
        let scan = Scan::new("", text, &rules, false);
        let mut cuts = Vec::new();
        let mut long_searches = 0;
        // A broken document that stays may be broken only because of what comes after it: were that cut out, it might
        // become whole and swallow somebody's event. So something that breaks it likewise is left in its place.
        let mut after_broken = false;
        // A byte-order mark stays where it is.
        let mut at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        while let Some((start, byte)) = scan.next_visible(at) {
            let mut fate = Fate::Stays;
            let mut breaks_with = "!";
            at = match byte {
                b'{' | b'[' => {
                    let bound = if long_searches < LONG_SEARCHES_MAX {
                        text.len()
                    } else {
                        scan.next_beginning(start, false)
                    };
                    let mut values =
                        serde_json::Deserializer::from_str(&text[start..bound]).into_iter::<&RawValue>();
                    match values.next() {
                        Some(Ok(raw)) => {
                            fate = self.fate(raw, 0);
                            breaks_with = r#"{"type":"forgotten"}"#;
                            start + raw.get().len()
                        }
                        Some(Err(error)) => {
                            long_searches += 1;
                            let (_, _, end) = scan.broken(start, &error);
                            fate = self.fate_of_piece(&text[start..end]);
                            after_broken |= matches!(fate, Fate::Stays);
                            end
                        }
                        None => bound,
                    }
                }
                b',' | b']' | b'}' => start + 1,
                _ => {
                    let end = scan.line_end(start);
                    fate = self.fate_of_piece(&text[start..end]);
                    end
                }
            };
            match fate {
                Fate::Stays => {}
                Fate::Goes if after_broken => {
                    let end = start + text[start..at].trim_end().len();
                    cuts.push((start..end, breaks_with.to_owned()));
                }
                Fate::Goes => {
                    // Its line goes with it.
                    let rest = &text[at..scan.line_end(at)];
                    if rest.trim().is_empty() {
                        at += rest.len();
                    }
                    cuts.push((start..at, String::new()));
                }
                Fate::Becomes(instead) => cuts.push((start..at, instead)),
            }
        }
        cuts
    }

    fn fate(&self, raw: &RawValue, depth: usize) -> Fate {
        match json::kind(raw) {
            Kind::List if depth < LISTS_MAX => match json::items(raw) {
                Ok(items) => self.fate_of_list(&items, depth),
                Err(_) => self.fate_of_piece(raw.get()),
            },
            Kind::Object => match Fields::read(raw).ok().and_then(|fields| page(&fields)) {
                Some(data) => self.fate_of_page(raw, data, depth),
                None => self.fate_of_event(raw),
            },
            _ => self.fate_of_piece(raw.get()),
        }
    }

    fn fate_of_list(&self, items: &[&RawValue], depth: usize) -> Fate {
        let mut kept = Vec::with_capacity(items.len());
        let mut changed = false;
        for item in items {
            match self.fate(item, depth + 1) {
                Fate::Stays => kept.push(item.get().to_owned()),
                Fate::Goes => changed = true,
                Fate::Becomes(instead) => {
                    changed = true;
                    kept.push(instead);
                }
            }
        }
        if changed { Fate::Becomes(format!("[{}]", kept.join(",\n"))) } else { Fate::Stays }
    }

    /// A page of the payment service's: only its list changes.
    fn fate_of_page(&self, raw: &RawValue, data: &RawValue, depth: usize) -> Fate {
        let instead = match self.fate(data, depth) {
            Fate::Stays => return Fate::Stays,
            Fate::Goes => "[]".to_owned(),
            Fate::Becomes(instead) => instead,
        };
        // A raw value is a piece of the text itself.
        let start = data.get().as_ptr().addr().saturating_sub(raw.get().as_ptr().addr());
        Fate::Becomes(apply(raw.get(), vec![(start..start + data.get().len(), instead)]))
    }

    fn fate_of_event(&self, raw: &RawValue) -> Fate {
        // A field that stands twice hides the first one from a reader of JSON, so addresses are looked for in the text.
        let mut found = names_in(raw.get()).any(|name| name.contains('@') && (self.theirs)(&name));
        found = found
            || match serde_json::from_str::<Value>(raw.get()) {
                Ok(value) => self.names(&value, false),
                // An odd number or a broken escape somewhere.
                Err(_) => return self.fate_of_piece(raw.get()),
            };
        if found { Fate::Goes } else { Fate::Stays }
    }

    /// Whether a value names the person; `is_id` where it stands in a field for an id.
    fn names(&self, value: &Value, is_id: bool) -> bool {
        match value {
            Value::String(text) => (is_id || text.contains('@')) && (self.theirs)(text),
            Value::Array(items) => items.iter().any(|item| self.names(item, is_id)),
            Value::Object(fields) => {
                fields.iter().any(|(name, value)| self.names(value, IDS.contains(&name.as_str())))
            }
            _ => false,
        }
    }

    fn fate_of_piece(&self, text: &str) -> Fate {
        if names_in(text).any(|name| (self.theirs)(&name)) { Fate::Goes } else { Fate::Stays }
    }
}

/// The list of a page, if it is one.
fn page<'a>(fields: &Fields<'a>) -> Option<&'a RawValue> {
    let is_page = fields.text("object").ok().flatten().is_some_and(|object| object == "list");
    fields.raw("data").filter(|data| is_page && json::kind(data) == Kind::List)
}

/// The words of a text that may be names: addresses, and what a session or an id may look like.
fn names_in(text: &str) -> impl Iterator<Item = String> {
    let text = unescaped(text);
    let apart = |c: char| c.is_whitespace() || c.is_control() || "\"<>()[]{},;:\\|".contains(c);
    let words: Vec<String> = text
        .split(apart)
        .map(|word| word.trim_matches(|c: char| ".!?'`".contains(c)))
        .filter(|word| !word.is_empty())
        .flat_map(|word| {
            // A session may stand in a link.
            let parts = word.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
            [word].into_iter().chain(parts.filter(move |part| !part.is_empty() && part.len() < word.len()))
        })
        .map(str::to_owned)
        .collect();
    words.into_iter()
}

/// JSON's escapes, as far as they can be read; the text may be broken anywhere.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = &rest[at + 1..];
        let code = escape.strip_prefix('u').and_then(|code| code.get(..4));
        let read = code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        let (c, length) = match (read, escape.chars().next()) {
            (Some(c), _) => (c, 5),
            (None, Some('/')) => ('/', 1),
            // A line break, a quote mark, or nonsense: a word ends there.
            (None, Some(c)) => (' ', c.len_utf8()),
            (None, None) => (' ', 0),
        };
        out.push(c);
        rest = &escape[length..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Rules;
    use super::super::parse;
    use super::*;
    use crate::domain::event::Incoming;
    use crate::domain::ids::Address;

    fn hers(name: &str) -> bool {
        let address = name.parse::<Address>().is_ok_and(|a| a.buyer().as_str() == "hanako@example.com");
        address || ["cs_h1", "evt_h1", "pi_h1"].contains(&name)
    }

    fn left(text: &str) -> Option<String> {
        erase(text.as_bytes(), &hers).map(|left| String::from_utf8(left).unwrap())
    }

    fn sale(id: &str, session: &str, email: &str) -> String {
        format!(
            r#"{{"id":"{id}","type":"checkout.completed","session":"{session}","email":"{email}","paid_at":"2026-09-21T01:00:00Z"}}"#
        )
    }

    fn ken() -> String {
        sale("evt_k", "cs_k", "ken@example.com")
    }

    #[test]
    fn r17_her_lines_go_and_the_others_stay_byte_for_byte() {
        let (a, b) = (sale("evt_h2", "cs_h2", "Hanako@Example.com"), sale("x", "cs_h1", "other@example.com"));
        let ken = ken();
        for (file, rest) in [
            (format!("{ken}\n{a}\n{ken}\n"), format!("{ken}\n{ken}\n")),
            (format!("{a}\n{ken}"), ken.clone()),
            (format!("{ken}\r\n{b}\r\n"), format!("{ken}\r\n")),
            (format!("{a}{ken} {b}"), format!("{ken} ")),
            (format!("\u{feff}{a}\n{ken}\n"), format!("\u{feff}{ken}\n")),
            (format!("{a}\n{b}\n"), String::new()),
        ] {
            assert_eq!(left(&file), Some(rest), "{file}");
        }
        assert_eq!(left(&format!("{ken}\n\n{ken}")), None);
        assert_eq!((left(""), left(" \n")), (None, None));
    }

    #[test]
    fn r17_lists_and_pages_keep_their_form_and_the_others() {
        let (her, ken) = (sale("evt_h2", "cs_h2", "hanako@example.com"), ken());
        assert_eq!(left(&format!("[{ken}, {her} ,{ken}]\n")), Some(format!("[{ken},\n{ken}]\n")));
        assert_eq!(left(&format!("[{her}]")), Some("[]".to_owned()));
        assert_eq!(left(&format!("[[{ken}],[{her}]]")), Some(format!("[[{ken}],\n[]]")));
        let page = |data: &str| {
            format!(r#"{{"object":"list","data":[{data}],"has_more":false,"url":"/v1/events"}}"#)
        };
        assert_eq!(left(&page(&format!("{her},{ken}"))), Some(page(&ken)));
        assert_eq!(left(&page(&ken)), None);
        // As deep as lists are read, and deeper, where nothing was.
        assert_eq!(left(&format!("[[[[[{her}]]]]]")), Some("[[[[]]]]".to_owned()));
    }

    #[test]
    fn r17_her_name_is_found_however_it_is_written() {
        for event in [
            r#"{"id":"e","type":"x","email":"hanako\u0040example.com"}"#,
            r#"{"id":"e","type":"x","email":"hanako@example.com","email":"b@example.com"}"#,
            r#"{"id":"e","type":"x","note":"from Hanako <HANAKO@example.com>."}"#,
            r#"{"id":"e","type":"x","n":1e999,"session":"cs_h1"}"#,
            r#"{"id":"e","type":"x","name":"\ud800","email":"hanako@example.com"}"#,
            r#"{"object":"event","id":"evt_x","data":{"object":{"payment_intent":{"id":"pi_h1"}}}}"#,
            r#"{"object":"event","id":"evt_h1"}"#,
            r#"{"hanako@example.com":1}"#,
        ] {
            assert_eq!(left(&format!("{event}\n{}\n", ken())), Some(format!("{}\n", ken())), "{event}");
        }
        // The same word elsewhere, and a longer address, are somebody else's.
        for event in [
            r#"{"id":"e","type":"x","email":"k@example.com","vars":{"code":"cs_h1"}}"#,
            r#"{"id":"e","type":"x","email":"nothanako@example.com"}"#,
            r#"{"id":"e","type":"x","email":"hanako@example.com.example"}"#,
            r#"{"id":"e","type":"x","session":"cs_h11"}"#,
        ] {
            assert_eq!(left(event), None, "{event}");
        }
    }

    #[test]
    fn r17_broken_pieces_that_name_her_go_as_well() {
        let ken = ken();
        for piece in [
            r#"{"id":"e","email":"hanako@example.com""#,
            r#"{"id":"e","email":"hanako\u0040example.com" oops}"#,
            "hanako@example.com paid",
            "see https://example.com/done?session_id=cs_h1",
            "{\n  \"session\": \"cs_h1\",\n  oops\n}",
        ] {
            assert_eq!(left(&format!("{ken}\n{piece}\n{ken}\n")), Some(format!("{ken}\n{ken}\n")), "{piece}");
        }
        assert_eq!(left(&format!("{ken}\n{{\"id\":\"e\",\"email\":\"ken@example.com\"\n")), None);
        let wide = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
        assert_eq!(erase(&wide("{\"email\":\"hanako@example.com\"}"), &hers), Some(Vec::new()));
        assert_eq!(erase(&wide("{\"email\":\"ken@example.com\"}"), &hers), None);
        let mut odd = format!("{ken}\n{{\"email\":\"hanako@example.com\",\"name\":\"").into_bytes();
        odd.extend(b"\xff\"}\n");
        assert_eq!(erase(&odd, &hers), Some(format!("{ken}\n").into_bytes()));
    }

    #[test]
    fn r17_every_form_of_the_payment_service_is_cut_whole() {
        let page = include_str!("../../tests/data/stripe-events/12-2025-11-17.clover-events-list-page.json");
        let all = parse("f", page.as_bytes(), &Rules::plain(false)).unwrap().incoming;
        let id = |n: usize| {
            let page: Value = serde_json::from_str(page).unwrap();
            page["data"][n]["id"].as_str().unwrap().to_owned()
        };
        let one = id(0);
        let left = erase(page.as_bytes(), &|name| name == one).unwrap();
        let rest = parse("f", &left, &Rules::plain(false)).unwrap().incoming;
        assert_eq!(rest, all[1..], "another event was changed");
        assert!(!String::from_utf8(left).unwrap().contains(&one));
    }

    proptest! {
        /// Whatever a file is made of: her names are gone, his events stay, and a second time finds nothing.
        #[test]
        fn r17_whatever_a_file_is_made_of_she_is_gone_and_he_stays(
            pieces in prop::collection::vec((0..8_usize, "[ \n,\\]\\}]{0,3}"), 0..12)
        ) {
            let her = sale("evt_h2", "cs_h2", "hanako@example.com");
            let made = [
                her.clone(), ken(), format!("[{her},{}]", ken()), format!("[{}]", ken()), "{\"a\":".to_owned(),
                "hanako@example.com".to_owned(), "noise".to_owned(), "{}".to_owned(),
            ];
            let text: String =
                pieces.iter().flat_map(|(n, gap)| [made[*n].as_str(), "\n", gap.as_str(), "\n"]).collect();
            let after = left(&text).unwrap_or_else(|| text.clone());
            prop_assert!(!after.contains("hanako@"), "{text}\n---\n{after}");
            prop_assert_eq!(left(&after), None);
            let his = |text: &str| {
                let incoming = parse("f", text.as_bytes(), &Rules::plain(true)).map(|reading| reading.incoming).unwrap_or_default();
                incoming.iter().filter(|i| matches!(i, Incoming::Checkout(c) if c.session.as_str() == "cs_k")).count()
            };
            prop_assert!(his(&after) >= his(&text), "{text}\n---\n{after}");
        }
    }
}
