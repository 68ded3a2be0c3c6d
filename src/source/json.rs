//! One JSON object, opened field by field.
//!
//! An object is cut into names and raw values; a value is read only when somebody asks for it. So a number that no
//! machine can hold or a broken escape in a field that nobody reads costs nobody a mail, while in a field that matters
//! it spoils that event and no other. A name that stands twice is refused in every object that is opened: the last
//! one must not win in silence (C060). Numbers stay as they were written (C066).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, MapAccess};
use serde_json::value::RawValue;

use crate::domain::ids::BadName;

/// Why an object cannot be what it claims to be: a field and the kind of fault, never what the field held.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault(pub(super) String);

/// The fields of one object.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    /// Where this object stands in the event (`data.object.`), for messages.
    path: String,
    map: BTreeMap<String, &'a RawValue>,
}

/// What a raw value is, told by its first byte; the syntax has been checked when it was cut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Number,
    Text,
    List,
    Object,
}

pub(super) fn kind(raw: &RawValue) -> Kind {
    match raw.get().as_bytes().first() {
        Some(b'n') => Kind::Null,
        Some(b't') => Kind::Bool(true),
        Some(b'f') => Kind::Bool(false),
        Some(b'"') => Kind::Text,
        Some(b'[') => Kind::List,
        Some(b'{') => Kind::Object,
        _ => Kind::Number,
    }
}

/// A field's name in quotes, if it can be repeated: a name that is no plain word may be somebody's address.
pub(super) fn quoted(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    let word = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if word && name.len() <= 64 && name.bytes().all(plain) {
        format!("`{name}`")
    } else {
        "a field with an odd name".to_owned()
    }
}

/// A fault of the parser without its place: within one value, line and column would mislead.
pub(super) fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// Reads the items of a list, each still raw.
pub(super) fn items(raw: &RawValue) -> Result<Vec<&RawValue>, Fault> {
    serde_json::from_str(raw.get()).map_err(|error| Fault(without_place(&error)))
}

/// Reads a text value.
pub(super) fn text(raw: &RawValue) -> Result<String, Fault> {
    if kind(raw) != Kind::Text {
        return Err(Fault("must be text".to_owned()));
    }
    // The parser's own word for it (`lone leading surrogate in hex escape`) tells a shop owner nothing.
    serde_json::from_str(raw.get())
        .map_err(|_| Fault("has a broken \\u escape, which stands for no character".to_owned()))
}

impl<'a> Fields<'a> {
    /// Opens an object.
    pub(super) fn read(raw: &'a RawValue) -> Result<Self, Fault> {
        Self::read_at(String::new(), raw)
    }

    fn read_at(path: String, raw: &'a RawValue) -> Result<Self, Fault> {
        match serde_json::from_str::<Names<'a>>(raw.get()) {
            Ok(Names(map)) => Ok(Self { path, map }),
            Err(error) => Err(Fault(format!("{path}{}", without_place(&error)))),
        }
    }

    /// The names in this object.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// The value of a field; `null` is the same as absent.
    pub(super) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.map.get(name).copied().filter(|raw| kind(raw) != Kind::Null)
    }

    /// A fault of one field.
    pub(super) fn fault(&self, name: &str, why: impl fmt::Display) -> Fault {
        Fault(format!("`{}{name}` {why}", self.path))
    }

    /// Insists that a field was there.
    pub(super) fn need<T>(&self, name: &str, value: Option<T>) -> Result<T, Fault> {
        value.ok_or_else(|| self.fault(name, "is missing"))
    }

    /// A text, as it stands.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Fault> {
        let read = |raw| text(raw).map_err(|Fault(why)| self.fault(name, why));
        self.raw(name).map(read).transpose()
    }

    /// A text without outer white space; one of nothing else is the same as absent (C036).
    pub(super) fn filled(&self, name: &str) -> Result<Option<String>, Fault> {
        let text = self.text(name)?;
        Ok(text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned))
    }

    /// A name of the domain: an event id, a session id, an address.
    pub(super) fn name<T: FromStr<Err = BadName>>(&self, name: &str) -> Result<T, Fault> {
        let text = self.need(name, self.text(name)?)?;
        text.parse().map_err(|error| self.fault(name, format_args!("is refused: {error}")))
    }

    /// A whole number. `1e3`, `1.0` and `"1"` are none: a service that begins to write those has changed its form.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, Fault> {
        let read = |raw: &RawValue| raw.get().parse().map_err(|_| self.fault(name, "must be a whole number"));
        self.raw(name).map(read).transpose()
    }

    /// True or false, as JSON writes them.
    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, Fault> {
        match self.raw(name).map(kind) {
            None => Ok(None),
            Some(Kind::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(self.fault(name, "must be true or false")),
        }
    }

    /// An object within this one.
    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, Fault> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        if kind(raw) != Kind::Object {
            return Err(self.fault(name, "must be an object"));
        }
        Self::read_at(format!("{}{name}.", self.path), raw)
            .map(Some)
            .map_err(|Fault(why)| self.fault(name, format_args!("cannot be read: {why}")))
    }
}

/// Names and raw values of an object, each name once.
struct Names<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> Deserialize<'de> for Names<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Names<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Names<'de>, A::Error> {
                let mut map = BTreeMap::new();
                while let Some((name, value)) = access.next_entry::<String, &'de RawValue>()? {
                    let said = map.contains_key(&name).then(|| quoted(&name));
                    if let Some(said) = said {
                        return Err(de::Error::custom(format_args!("{said} stands twice")));
                    }
                    map.insert(name, value);
                }
                Ok(Names(map))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn c060_a_name_written_twice_is_refused_and_an_odd_name_is_not_repeated() {
        let why = |text| Fields::read(raw(text)).unwrap_err().0;
        assert_eq!(why(r#"{"email":"a","email":"b"}"#), "`email` stands twice");
        assert_eq!(why(r#"{"email":"a","\u0065mail":"b"}"#), "`email` stands twice");
        assert_eq!(why(r#"{"a@example.com":1,"a@example.com":1}"#), "a field with an odd name stands twice");
        let outer = Fields::read(raw(r#"{"data":{"id":1,"id":2}}"#)).unwrap();
        assert_eq!(outer.object("data").unwrap_err().0, "`data` cannot be read: data.`id` stands twice");
    }

    #[test]
    fn c066_only_plain_whole_numbers_are_numbers() {
        for (text, number) in [("1", Some(1)), ("-5", Some(-5)), ("null", None)] {
            let text = format!("{{\"n\":{text}}}");
            assert_eq!(Fields::read(raw(&text)).unwrap().integer("n"), Ok(number));
        }
        for text in ["1.0", "1e3", "1e400", "\"1\"", "true", "[1]", "12345678901234567890"] {
            let text = format!("{{\"n\":{text}}}");
            let read = Fields::read(raw(&text)).unwrap().integer("n");
            assert_eq!(read, Err(Fault("`n` must be a whole number".to_owned())), "{text}");
        }
    }

    #[test]
    fn c066_a_lone_surrogate_spoils_only_the_field_that_holds_it() {
        let fields = Fields::read(raw(r#"{"name":"\ud800","id":"e1","pair":"\ud83d\ude00"}"#)).unwrap();
        assert!(fields.text("name").unwrap_err().0.starts_with("`name` has a broken"));
        assert_eq!(fields.text("id").unwrap().as_deref(), Some("e1"));
        assert_eq!(fields.text("pair").unwrap().as_deref(), Some("😀"));
    }
}
