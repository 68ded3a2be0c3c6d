//! Events from a file or standard input, in any of the shapes such files have: one document, a list, a page of Stripe's
//! API, JSON lines, several documents one after another, and all of these mixed.
//!
//! The text is read as a stream of JSON values. Where that fails, the broken piece is set aside as one
//! [`Incoming::Invalid`] and reading goes on at the next line where a document can begin; only if no event at all was
//! found is the whole input refused. Every list and object is first cut out by its syntax alone and then read, so that
//! one event's odd content is that event's fault.

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::json::{self, Fault, Fields, Kind};
use super::{Reading, Rules, SourceError, neutral, stripe};
use crate::domain::event::{Incoming, Invalid};

/// How many broken documents may be searched to the end of the input for where they go wrong. Afterwards each is looked
/// at only up to the next line where one can begin: otherwise a large file of nothing but `[` would take for ever.
pub(super) const LONG_SEARCHES_MAX: usize = 16;

/// What standard input is called.
const PIPE: &str = "standard input";

/// What is wrong where neither an object nor a list begins.
const EXPECTED: &str = "expected an event object or a list";

/// How deep lists and pages may stand in each other (`jq --slurp` over pages makes two).
pub(super) const LISTS_MAX: usize = 4;

/// Reads one event file. Stripe's events of the other mode than the rules' are counted and dropped.
///
/// # Errors
/// [`SourceError`] if the file cannot be read, or holds no event and something that is none.
pub fn read_file(path: &Path, rules: &Rules) -> Result<Reading, SourceError> {
    let name = path.display().to_string();
    match std::fs::read(path) {
        Ok(bytes) => parse(&name, &bytes, rules),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => Err(SourceError::Folder { name }),
        Err(source) => Err(SourceError::Io { name, source }),
    }
}

/// Reads standard input to its end; see [`read_file`].
///
/// # Errors
/// As [`read_file`].
pub fn read_stdin(rules: &Rules) -> Result<Reading, SourceError> {
    parse(PIPE, &read_pipe()?, rules)
}

/// Reads standard input to its end, as it is.
///
/// # Errors
/// [`SourceError::Io`].
pub fn read_pipe() -> Result<Vec<u8>, SourceError> {
    let mut bytes = Vec::new();
    match io::stdin().lock().read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(SourceError::Io { name: PIPE.to_owned(), source }),
    }
}

/// Reads the events in `bytes`; `name` is for messages. Empty, or nothing but white space, is no event and no fault.
///
/// # Errors
/// [`SourceError`] if something is wrong with the text and not one event was found in it.
pub fn parse(name: &str, bytes: &[u8], rules: &Rules) -> Result<Reading, SourceError> {
    if is_wide(bytes) {
        return Err(SourceError::Wide { name: name.to_owned() });
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match str::from_utf8(bytes) {
        Ok(text) => Scan::new(name, text, rules, false).run(),
        Err(fault) => {
            // The replacement characters keep every line where it is; the events that hold one are refused one by one.
            let text = String::from_utf8_lossy(bytes);
            Scan::new(name, &text, rules, true).run().map_err(|_| not_utf8(name, bytes, fault.valid_up_to()))
        }
    }
}

fn not_utf8(name: &str, bytes: &[u8], at: usize) -> SourceError {
    let before = String::from_utf8_lossy(bytes.get(..at).unwrap_or_default());
    let last = before.rsplit('\n').next().map_or(0, str::len);
    SourceError::NotUtf8 { name: name.to_owned(), line: before.matches('\n').count() + 1, column: last + 1 }
}

/// Whether this is UTF-16 or UTF-32: by its mark, or by every other byte of the beginning being zero.
pub(super) fn is_wide(bytes: &[u8]) -> bool {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 0, 0xfe, 0xff, ..] => true,
        [a, 0, b, 0, ..] | [0, a, 0, b, ..] => *a != 0 && *b != 0,
        _ => false,
    }
}

/// The first fault of the syntax.
struct Broken {
    why: String,
    line: usize,
    column: usize,
    /// The broken piece.
    at: usize,
    end: usize,
    /// Whether it, or a later one, has become an `Invalid`.
    told: bool,
}

/// A text on the way through it.
pub(super) struct Scan<'a> {
    name: &'a str,
    text: &'a str,
    rules: &'a Rules,
    /// Whether bytes that were not UTF-8 have been replaced.
    lossy: bool,
    reading: Reading,
    /// Whether anything was found that is meant to be an event.
    found: bool,
    first: Option<Broken>,
    /// An offset and its line, which only move on.
    cursor: (usize, usize),
}

impl<'a> Scan<'a> {
    pub(super) fn new(name: &'a str, text: &'a str, rules: &'a Rules, lossy: bool) -> Self {
        Self {
            name,
            text,
            rules,
            lossy,
            reading: Reading::default(),
            found: false,
            first: None,
            cursor: (0, 1),
        }
    }

    fn run(mut self) -> Result<Reading, SourceError> {
        let mut at = 0;
        let mut long_searches = 0;
        while let Some((start, byte)) = self.next_visible(at) {
            at = match byte {
                b'{' | b'[' => {
                    let end = if long_searches < LONG_SEARCHES_MAX {
                        self.text.len()
                    } else {
                        self.next_beginning(start, false)
                    };
                    let mut values = serde_json::Deserializer::from_str(&self.text[start..end])
                        .into_iter::<&'a RawValue>();
                    match values.next() {
                        Some(Ok(raw)) => {
                            self.take(raw, 0);
                            start + raw.get().len()
                        }
                        Some(Err(error)) => {
                            long_searches += 1;
                            self.set_aside(start, &error)
                        }
                        None => end,
                    }
                }
                // Left over from a list that is broken elsewhere, or a slip between two documents.
                b',' | b']' | b'}' => {
                    self.note(start, start + 1, || (EXPECTED.to_owned(), 1, 1));
                    start + 1
                }
                _ => {
                    let end = self.line_end(start);
                    if !is_chatter(&self.text[start..end]) {
                        self.note(start, end, || (EXPECTED.to_owned(), 1, 1));
                        self.tell(start, end, EXPECTED.to_owned());
                    }
                    end
                }
            };
        }
        self.finish()
    }

    fn finish(mut self) -> Result<Reading, SourceError> {
        let refused = |name: &str, why, line, column| {
            Err(SourceError::NotJson { name: name.to_owned(), why, line, column })
        };
        match self.first.take() {
            Some(first) if !self.found => refused(self.name, first.why, first.line, first.column),
            // `parse` says this in other words: there is not one event that is UTF-8.
            None if !self.found && self.lossy => refused(self.name, "not UTF-8".to_owned(), 1, 1),
            // All events could be read, yet something was missing or too much: more may have stood there.
            Some(first) if !first.told => {
                let why = format!("is no JSON: {} at line {}", first.why, first.line);
                // Back to the beginning of the text.
                self.cursor = (0, 1);
                self.tell(first.at, first.end, why);
                Ok(self.reading)
            }
            _ => Ok(self.reading),
        }
    }

    /// The first byte from `at` on that is not white space, and its place.
    pub(super) fn next_visible(&self, at: usize) -> Option<(usize, u8)> {
        let rest = self.text.as_bytes().get(at..)?;
        let skip = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))?;
        Some((at + skip, rest[skip]))
    }

    /// The offset behind the line that holds `at`.
    pub(super) fn line_end(&self, at: usize) -> usize {
        self.text[at..].find('\n').map_or(self.text.len(), |found| at + found + 1)
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |found| found + 1)
    }

    /// The line of an offset; offsets are asked for in rising order, so that the text is counted once.
    fn line_of(&mut self, at: usize) -> usize {
        let (from, line) = self.cursor;
        if let Some(between) = self.text.get(from..at) {
            self.cursor = (at, line + between.matches('\n').count());
        }
        self.cursor.1
    }

    /// Where reading can go on after the broken document at `at`: the next line that begins with `{` or `[` no deeper
    /// than this one did, so that the inside of an indented document is not taken for further documents. If it broke on
    /// its own first line (JSON lines), the next line at all that does not look like the inside of a document.
    pub(super) fn next_beginning(&self, at: usize, on_its_line: bool) -> usize {
        let depth = at - self.line_start(at);
        let mut end = self.line_end(at);
        while end < self.text.len() {
            match self.next_visible(end) {
                None => return self.text.len(),
                Some((start, b'{' | b'[')) if start - self.line_start(start) <= depth => {
                    return self.line_start(start);
                }
                Some((start, byte)) if on_its_line && start == self.line_start(start) => {
                    if !matches!(byte, b'}' | b']') {
                        return start;
                    }
                    end = self.line_end(start);
                }
                Some((start, _)) => end = self.line_end(start),
            }
        }
        end
    }

    /// Where the broken document at `at` goes wrong, by line and column from there, and where reading can go on.
    pub(super) fn broken(&self, at: usize, error: &serde_json::Error) -> (usize, usize, usize) {
        let (mut line, mut column) = (error.line(), error.column());
        if column == 0 && line > 1 {
            // The parser has stepped over the line break that it complains of.
            line -= 1;
            column = self.text[at..].split('\n').nth(line - 1).map_or(0, str::len) + 1;
        }
        (line, column, self.next_beginning(at, line == 1))
    }

    /// Sets the broken document at `at` aside and says where to go on.
    fn set_aside(&mut self, at: usize, error: &serde_json::Error) -> usize {
        let (line, column, end) = self.broken(at, error);
        let why = json::without_place(error);
        self.note(at, end, || (why.clone(), line, column));
        let only_brackets = |byte| matches!(byte, b'{' | b'[' | b' ' | b'\t' | b'\r' | b'\n');
        if !self.text[at..end].bytes().all(only_brackets) {
            let line = self.line_of(at) + line - 1;
            self.tell(at, end, format!("is no JSON: {why} at line {line}"));
        }
        end
    }

    /// Remembers the first fault. `said` counts line and column from `at`.
    fn note(&mut self, at: usize, end: usize, said: impl FnOnce() -> (String, usize, usize)) {
        if self.first.is_none() {
            let (why, line, column) = said();
            let before = if line == 1 { at - self.line_start(at) } else { 0 };
            let line = self.line_of(at) + line - 1;
            self.first = Some(Broken { why, line, column: column + before, at, end, told: false });
        }
    }

    /// Yields a piece of text that is no JSON.
    fn tell(&mut self, at: usize, end: usize, why: String) {
        if let Some(first) = &mut self.first {
            first.told = true;
        }
        let text = self.text[at..end].trim_end();
        self.invalid(subject_of(text.as_bytes()), at, why);
    }

    fn invalid(&mut self, subject: String, at: usize, why: String) {
        let line = self.line_of(at);
        let place = format!("{} line {line}", self.name);
        self.reading.incoming.push(Incoming::Invalid(Invalid { subject, place, why }));
    }

    /// Takes a whole value: an event, a page, or a list of them.
    fn take(&mut self, raw: &'a RawValue, depth: usize) {
        let result = match json::kind(raw) {
            Kind::List if depth < LISTS_MAX => json::items(raw).map(|items| self.take_all(items, depth)),
            Kind::List => Err(Fault("lists stand too deep in each other".to_owned())),
            Kind::Object => match Fields::read(raw) {
                Ok(fields) => return self.take_object(raw, &fields, depth),
                Err(fault) => Err(fault),
            },
            _ => Err(Fault("is no event object".to_owned())),
        };
        if let Err(fault) = result {
            self.refuse(raw, None, fault);
        }
    }

    fn take_all(&mut self, items: Vec<&'a RawValue>, depth: usize) {
        for item in items {
            self.take(item, depth + 1);
        }
    }

    fn take_object(&mut self, raw: &'a RawValue, fields: &Fields<'a>, depth: usize) {
        let result = match fields.text("object") {
            Ok(Some(object)) if object == "list" => match fields.raw("data") {
                Some(data) if json::kind(data) == Kind::List => {
                    self.found = true;
                    return self.take(data, depth);
                }
                _ => Err(fields.fault("data", "must be a list")),
            },
            Ok(Some(object)) if object == "event" => self.event(raw, |rules| stripe::read(fields, rules)),
            Ok(Some(object)) if object == "v2.core.event" => {
                self.found = true;
                self.reading.thin += 1;
                Ok(Incoming::Ignored)
            }
            Ok(None) if fields.raw("type").is_some() => self.event(raw, |_| neutral::read(fields).map(Some)),
            Ok(_) => Err(Fault(
                "is neither an event of Stripe's, nor a page of them, nor a neutral event".to_owned(),
            )),
            Err(fault) => Err(fault),
        };
        match result {
            Ok(incoming) => self.reading.incoming.push(incoming),
            Err(fault) => self.refuse(raw, Some(fields), fault),
        }
    }

    fn event(
        &mut self,
        raw: &RawValue,
        read: impl FnOnce(&Rules) -> Result<Option<Incoming>, Fault>,
    ) -> Result<Incoming, Fault> {
        if self.lossy && raw.get().contains(char::REPLACEMENT_CHARACTER) {
            return Err(Fault("holds bytes that are not UTF-8".to_owned()));
        }
        self.found = true;
        Ok(read(self.rules)?.unwrap_or_else(|| {
            self.reading.other_mode += 1;
            Incoming::Ignored
        }))
    }

    fn refuse(&mut self, raw: &'a RawValue, fields: Option<&Fields<'_>>, Fault(why): Fault) {
        let id = fields.and_then(|fields| fields.text("id").ok().flatten()).filter(|id| is_subject(id));
        let subject = id.unwrap_or_else(|| subject_of(raw.get().as_bytes()));
        // A raw value is a piece of the text itself.
        let at = raw.get().as_ptr().addr().saturating_sub(self.text.as_ptr().addr());
        self.invalid(subject, at, why);
    }
}

/// Whether a line is what Stripe's own program (`stripe listen --print-json`) says of itself between the events that it prints.
fn is_chatter(line: &str) -> bool {
    let words = line.trim_start_matches(['>', ' ', '⣾', '⣽', '⣻', '⢿', '⡿', '⣟', '⣯', '⣷']);
    let says = [
        "Ready! ",
        "Getting ready...",
        "Session expired, reconnecting...",
        "A newer version of the Stripe CLI",
    ];
    // `2026-10-01 09:00:00  <--  [200] POST http://… [evt_…]`: what became of an event that was passed on.
    let is_dated =
        words.get(..19).is_some_and(|time| time.bytes().all(|b| b.is_ascii_digit() || b"- :T".contains(&b)));
    says.iter().any(|said| words.starts_with(said))
        || is_dated && (words.contains(" <-- ") || words.contains(" --> "))
}

/// Whether an event's id can name a matter, whose id becomes a file name and a header value.
fn is_subject(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=200).contains(&id.len()) && id.bytes().all(plain)
}

/// Names a piece of text by what it holds, so that the same bad line is the same matter wherever it stands.
pub(super) fn subject_of(text: &[u8]) -> String {
    let mut subject = "x-".to_owned();
    for byte in Sha256::digest(text).iter().take(8) {
        // Writing into a text cannot fail.
        let _ = write!(subject, "{byte:02x}");
    }
    subject
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A neutral purchase on one line.
    fn sale(id: &str) -> String {
        format!(
            r#"{{"id":"{id}","type":"checkout.completed","session":"cs_{id}","email":"hanako@example.com","paid_at":"2026-09-21T01:00:00Z","name":"Hanako"}}"#
        )
    }

    fn read(text: impl AsRef<[u8]>) -> Reading {
        parse("f", text.as_ref(), &Rules::plain(true)).unwrap()
    }

    /// What came out, shortly: the event's id for a purchase, `line: why` for what is invalid.
    fn said(reading: &Reading) -> Vec<String> {
        let say = |incoming: &Incoming| match incoming {
            Incoming::Checkout(checkout) => checkout.event.to_string(),
            Incoming::Invalid(invalid) => {
                format!("{}: {}", invalid.place.strip_prefix("f line ").unwrap(), invalid.why)
            }
            Incoming::Ignored => "ignored".to_owned(),
            other => format!("{other:?}"),
        };
        reading.incoming.iter().map(say).collect()
    }

    fn refusal(text: impl AsRef<[u8]>) -> String {
        parse("f", text.as_ref(), &Rules::plain(true)).unwrap_err().to_string()
    }

    fn subjects(reading: &Reading) -> Vec<&str> {
        fn subject(incoming: &Incoming) -> Option<&str> {
            match incoming {
                Incoming::Invalid(invalid) => Some(&invalid.subject),
                _ => None,
            }
        }
        reading.incoming.iter().filter_map(subject).collect()
    }

    #[test]
    fn c058_every_shape_of_file_gives_the_same_purchases() {
        let (a, b, c) = (sale("a"), sale("b"), sale("c"));
        let pretty = |text: &str| {
            serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(text).unwrap()).unwrap()
        };
        let lines = format!("{a}\n{b}\n{c}\n");
        for text in [
            format!("[{a},{b},{c}]"),
            pretty(&format!("[{a},{b},{c}]")),
            format!(r#"{{"object":"list","data":[{a},{b},{c}],"has_more":false,"url":"/v1/events"}}"#),
            format!(r#"[{{"data":[{a},{b}],"object":"list"}},{{"object":"list","data":[{c}]}}]"#),
            format!("[[{a}],[[{b},{c}]]]"),
            lines.clone(),
            lines.trim_end().to_owned(),
            lines.replace('\n', "\r\n"),
            lines.replace('\n', "\r"),
            format!("\u{feff}{lines}"),
            format!("\u{feff}{}", lines.replace('\n', "\r\n")),
            format!("{a}{b}{c}"),
            format!("\n\n {a}\t{b}\n\n\n{c} \n "),
            format!("{}\n{}\n{}", pretty(&a), pretty(&b), pretty(&c)),
            format!("{}\n[{b}]\n{c}", pretty(&a)),
        ] {
            assert_eq!(said(&read(&text)), ["a", "b", "c"], "{text}");
        }
        assert_eq!(said(&read(&a)), ["a"]);
    }

    #[test]
    fn an_empty_file_is_no_event_and_no_fault() {
        for text in [
            "",
            " ",
            "\n",
            "\r\n\t \n",
            "\u{feff}",
            "\u{feff}\n",
            "[]",
            "[[]]",
            r#"{"object":"list","data":[]}"#,
        ] {
            assert_eq!(read(text), Reading::default(), "{text:?}");
        }
        assert_eq!(read(vec![b' '; 100_000_000]), Reading::default());
    }

    #[test]
    fn c003_the_same_event_four_times_is_yielded_four_times_for_the_ledger_to_tell() {
        let text = format!("{}\n", sale("a")).repeat(4);
        assert_eq!(said(&read(text)), ["a"; 4]);
    }

    #[test]
    fn c007_one_bad_line_first_in_the_middle_or_last_blocks_nobody() {
        let bad = r#"{"id":"bad","type":"checkout.completed","session":"cs 1","email":"hanako@example.com"}"#;
        for broken in [
            "{\"id\":\"x\",",
            "not json",
            "{]",
            "{\"id\": NaN}",
            "\0\0\0",
            bad,
            "{\"foo\":1}",
            "42",
            "{\"a\":",
        ] {
            for place in 0..=4 {
                let mut lines: Vec<String> = ["a", "b", "c", "d"].map(sale).into();
                lines.insert(place, broken.to_owned());
                for text in [lines.join("\n"), lines.join("\r\n") + "\r\n"] {
                    let reading = read(&text);
                    let mut got = said(&reading);
                    assert_eq!(got.len(), 5, "{broken} {place} {got:?}");
                    let fault = got.remove(place);
                    assert_eq!(got, ["a", "b", "c", "d"], "{broken}");
                    assert!(fault.starts_with(&format!("{}: ", place + 1)), "{fault}");
                    assert!(!fault.contains("hanako"), "{fault}");
                }
            }
        }
    }

    #[test]
    fn c007_one_bad_object_in_a_list_blocks_nobody() {
        for bad in
            ["{}", "1", "null", "\"x\"", "{\"type\":1}", "{\"id\":1,\"id\":2}", r#"{"object":"invoice"}"#]
        {
            let reading = read(format!("[{},\n{bad},{}]", sale("a"), sale("b")));
            let got = said(&reading);
            assert_eq!((got[0].as_str(), got[2].as_str(), got.len()), ("a", "b", 3), "{bad}");
            assert!(got[1].starts_with("2: "), "{got:?}");
        }
    }

    #[test]
    fn a_list_that_breaks_between_its_lines_still_yields_its_whole_objects() {
        let broken = format!("[\n{},\n{{\"id\":}},\n{}\n]\n", sale("a"), sale("b"));
        assert_eq!(said(&read(broken)), ["a", "3: is no JSON: expected value at line 3", "b"]);
        let unclosed = format!("[\n{},\n{}\n", sale("a"), sale("b"));
        assert_eq!(said(&read(unclosed)), ["a", "b", "1: is no JSON: EOF while parsing a list at line 3"]);
        let commas = format!("{},\n{},\n", sale("a"), sale("b"));
        assert_eq!(
            said(&read(commas)),
            ["a", "b", "1: is no JSON: expected an event object or a list at line 1"]
        );
    }

    #[test]
    fn a_broken_document_of_many_lines_is_one_matter_not_twenty() {
        let broken =
            "{\n  \"id\": \"x\",\n  \"vars\": {\n    \"a\" 1\n  },\n  \"session\": [\n    {\n    }\n  ]\n}\n";
        let reading = read(format!("{}\n{broken}{}\n", sale("a"), sale("b")));
        assert_eq!(said(&reading), ["a", "2: is no JSON: expected `:` at line 5", "b"]);
        let first_line = "{ \"id\": x,\n  \"session\": 1\n}\n";
        let reading = read(format!("{}\n{first_line}{}\n", sale("a"), sale("b")));
        assert_eq!(said(&reading), ["a", "2: is no JSON: expected value at line 2", "b"]);
    }

    #[test]
    fn a_truncated_last_line_is_said_and_the_lines_before_it_count() {
        let whole = sale("b");
        for cut in 1..whole.len() {
            let reading = read(format!("{}\n{}", sale("a"), &whole[..cut]));
            let got = said(&reading);
            assert_eq!((got[0].as_str(), got.len()), ("a", 2), "{cut}: {got:?}");
            assert!(got[1].starts_with("2: is no JSON: EOF"), "{cut}: {got:?}");
        }
    }

    #[test]
    fn c059_merge_markers_are_named_and_what_stands_between_them_is_read() {
        let text = format!("<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n", sale("a"), sale("b"));
        let why = EXPECTED;
        assert_eq!(
            said(&read(text)),
            [&format!("1: {why}"), "a", &format!("3: {why}"), "b", &format!("5: {why}")]
        );
        let inside = sale("a").replace(',', ",\n<<<<<<< HEAD\n");
        assert_eq!(
            refusal(inside),
            "cannot read events `f`: key must be a string at line 2 column 1; nothing of this file was taken in; mend it and run again"
        );
    }

    #[test]
    fn c059_a_second_whole_object_behind_the_first_is_read_and_other_text_is_said() {
        assert_eq!(said(&read(format!("{} {}", sale("a"), sale("b")))), ["a", "b"]);
        let junk = format!("{} \"stopped\": true}}", sale("a"));
        assert_eq!(said(&read(junk)), ["a", "1: expected an event object or a list"]);
    }

    #[test]
    fn a_file_without_any_event_is_refused_whole_with_line_and_column() {
        for (text, said) in [
            ("hello", "expected an event object or a list at line 1 column 1"),
            ("\n\n  hello", "expected an event object or a list at line 3 column 3"),
            ("id,email\n1,hanako@example.com", "expected an event object or a list at line 1 column 1"),
            ("42", "expected an event object or a list at line 1 column 1"),
            ("\0\0\0\0", "expected an event object or a list at line 1 column 1"),
            ("[1,2", "EOF while parsing a list at line 1 column 4"),
            ("{\n\"id\": \"e\"\n  \"x\": 1\n}", "expected `,` or `}` at line 3 column 3"),
            (
                "  {\"a\":\n\"x\n\"}",
                "control character (\\u0000-\\u001F) found while parsing a string at line 2 column 2",
            ),
            ("<!DOCTYPE html><p>502</p>", "expected an event object or a list at line 1 column 1"),
        ] {
            let whole = format!(
                "cannot read events `f`: {said}; nothing of this file was taken in; mend it and run again"
            );
            assert_eq!(refusal(text), whole, "{text:?}");
        }
    }

    #[test]
    fn c058_utf_16_is_refused_by_name_and_another_encoding_costs_only_its_own_events() {
        let wide = |big: bool, mark: bool| -> Vec<u8> {
            let mark = if mark { "\u{feff}" } else { "" };
            let units = format!("{mark}{}", sale("a"));
            units.encode_utf16().flat_map(|u| if big { u.to_be_bytes() } else { u.to_le_bytes() }).collect()
        };
        for (big, mark) in [(false, false), (false, true), (true, false), (true, true)] {
            assert!(refusal(wide(big, mark)).contains("it is UTF-16"), "{big} {mark}");
        }
        // 買物 in Shift_JIS; the second in Latin-1.
        for name in [&b"\x94\x83\x95\xa8"[..], b"Ren\xe9"] {
            let mut bad = sale("b").into_bytes();
            let at = bad.windows(6).position(|six| six == b"Hanako").unwrap();
            bad.splice(at..at + 6, name.iter().copied());
            let text = [sale("a").as_bytes(), b"\n", &bad, b"\n", sale("c").as_bytes()].concat();
            let reading = read(text);
            assert_eq!(said(&reading), ["a", "2: holds bytes that are not UTF-8", "c"]);
            assert_eq!(subjects(&reading), ["b"]);
            assert!(refusal(&bad).contains("not UTF-8 at line 1 column "), "{}", refusal(&bad));
        }
        assert!(refusal(b"\n\n ab\xff").contains("not UTF-8 at line 3 column 4;"));
        // A genuine replacement character in a file that is UTF-8 is a character like any other.
        assert_eq!(said(&read(sale("a").replace("Hanako", "\u{fffd}"))), ["a"]);
    }

    #[test]
    fn the_same_bad_line_is_the_same_matter_wherever_it_stands() {
        let once = read(format!("{}\nnot json\n", sale("a")));
        let again = read(format!("{}\r\n{}\r\n  not json", sale("a"), sale("b")));
        assert_eq!(subjects(&once), subjects(&again));
        let subject = subjects(&once)[0];
        assert!(subject.len() == 18 && subject.starts_with("x-"), "{subject}");
        // An event's id is the better name, where it can be one.
        let named = |id: &str| read(format!("{{\"type\":\"stop\",\"id\":{id}}}"));
        assert_eq!(subjects(&named("\"evt_1\"")), ["evt_1"]);
        for id in [
            "\"hanako@example.com\"",
            "\"\"",
            "1",
            "null",
            "\"a b\"",
            "\"\\ud800\"",
            &format!("{:?}", "x".repeat(201)),
        ] {
            assert!(subjects(&named(id))[0].starts_with("x-"), "{id}");
        }
        assert!(subjects(&read(r#"{"id":"a","id":"a","type":"stop"}"#))[0].starts_with("x-"));
    }

    #[test]
    fn c066_numbers_no_machine_can_hold_and_broken_escapes_spoil_one_event_only() {
        let with =
            |name: &str| format!("[{},{},{}]", sale("a"), sale("b").replace("\"Hanako\"", name), sale("c"));
        for (name, why) in [
            ("\"\\ud800\"", "1: `name` has a broken \\u escape, which stands for no character"),
            ("1e400", "1: `name` must be text"),
            ("[[1e400]]", "1: `name` must be text"),
        ] {
            assert_eq!(said(&read(with(name))), ["a", why, "c"]);
        }
        assert!(refusal(with("NaN")).contains("expected value at line 1"));
        assert!(refusal(with("-Infinity")).contains("invalid number at line 1"));
    }

    #[test]
    fn deep_nesting_is_refused_and_never_overflows() {
        let deep = |open: &str, close: &str| format!("{}{}", open.repeat(50_000), close.repeat(50_000));
        assert_eq!(said(&read(deep("[", "]"))), ["1: lists stand too deep in each other"]);
        let nested = sale("a").replace("\"Hanako\"", &deep("[", "]"));
        assert_eq!(said(&read(nested)), ["1: `name` must be text"]);
        let pages = deep(r#"{"object":"list","data":["#, "]}");
        assert_eq!(said(&read(pages)), ["1: lists stand too deep in each other"]);
        assert!(refusal("[".repeat(50_000)).contains("EOF while parsing"));
        assert!(refusal("[\n".repeat(50_000)).contains("EOF while parsing"));
        assert!(refusal("{\"a\":\n".repeat(50_000)).contains("EOF while parsing"));
        assert!(refusal(",".repeat(1_000_000)).contains("expected an event"));
    }

    #[test]
    fn an_event_of_two_megabytes_is_an_event() {
        let big = sale("a")
            .replace("\"Hanako\"", &format!("\"Hanako\",\"vars\":{{\"note\":\"{}\"}}", "x".repeat(2 << 20)));
        assert_eq!(said(&read(big)), ["a"]);
    }

    #[test]
    fn a_missing_file_and_a_folder_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = read_file(folder.path(), &Rules::plain(true)).unwrap_err().to_string();
        assert!(
            error.contains("is a folder") && error.contains(&folder.path().display().to_string()),
            "{error}"
        );
        let missing = folder.path().join("none.json");
        let error = read_file(&missing, &Rules::plain(true)).unwrap_err().to_string();
        assert!(error.contains("none.json`: No such file"), "{error}");
        let mut file = tempfile::NamedTempFile::new_in(&folder).unwrap();
        io::Write::write_all(&mut file, sale("a").as_bytes()).unwrap();
        assert_eq!(said(&read_file(file.path(), &Rules::plain(true)).unwrap()), ["a"]);
    }

    /// Whatever comes out, a matter must be able to bear it, and it must not give the buyer away.
    fn check(bytes: &[u8]) {
        let said = match parse("f", bytes, &Rules::plain(false)) {
            Err(error) => vec![error.to_string()],
            Ok(reading) => {
                for subject in subjects(&reading) {
                    assert!(is_subject(subject), "{subject}");
                }
                said(&reading).into_iter().filter(|text| text.contains(": ")).collect()
            }
        };
        assert!(!said.iter().any(|text| text.contains("anako") || text.contains("xample.com")), "{said:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            check(&bytes);
        }

        #[test]
        fn no_text_of_json_pieces_makes_it_panic(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\n", "  ", "\"id\"", "\"object\":\"event\"", "\"object\":\"list\"",
                "\"data\":", "null", "1e999", "\"\\ud800\"", "\0", "é", "\r\n", "\"", "\\",
            ]), 0..60)
        ) {
            check(pieces.concat().as_bytes());
        }

        #[test]
        fn a_damaged_event_never_makes_it_panic_or_gives_the_buyer_away(
            which in 0..3_usize,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_usize), 1..6)
        ) {
            let konbini = include_bytes!(
                "../../tests/data/stripe-events/06-DERIVED-checkout.session.completed-unpaid-konbini.json"
            );
            let lines = format!("{}\n{}\n", sale("a"), sale("b"));
            let mut bytes = [&konbini[..], lines.as_bytes(), sale("c").as_bytes()][which].to_vec();
            for (at, byte, kind) in damage {
                let at = at.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
                match kind {
                    _ if bytes.is_empty() => {}
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    2 => bytes.truncate(at),
                    _ => drop(bytes.remove(at)),
                }
            }
            check(&bytes);
        }

        #[test]
        fn the_order_of_lines_changes_only_the_order(order in Just((0..8).collect::<Vec<u32>>()).prop_shuffle()) {
            let line = |n: &u32| match n {
                0 => "not json".to_owned(),
                1 => "{\"id\":\"e\",".to_owned(),
                n => sale(&n.to_string()),
            };
            let text: Vec<String> = order.iter().map(line).collect();
            let reading = read(text.join("\n"));
            let expected: Vec<String> = order.iter().filter(|n| **n > 1).map(ToString::to_string).collect();
            let (sales, faults): (Vec<_>, Vec<_>) = said(&reading).into_iter().partition(|text| !text.contains(": "));
            prop_assert_eq!(sales, expected);
            // Two broken neighbours may be one piece.
            prop_assert!(matches!(faults.len(), 1 | 2), "{:?}", faults);
        }
    }
}
