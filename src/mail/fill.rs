//! Filling a template without letting the values be read as anything: the engine sees the true values (so that
//! conditions and filters work), but what it would print becomes an alphanumeric stand-in. Markdown is read with the
//! stand-ins in place, and only the finished text gets the values.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::{Environment, ErrorKind, Value};

use super::values::Values;

/// A mail with more values than this is a runaway loop.
const VALUES_MAX: usize = 9_999;
/// Digits of the number in a stand-in.
const DIGITS: usize = 6;

const REFUSED_NONE: &str = "an expression gives `none`";
const REFUSED_CAPTURE: &str = "`{% filter %}` and `{% set %}` around text with values are not supported";
const REFUSED_LOOP: &str = "a loop prints too many values";

/// Why a template cannot be filled. Names no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unfilled {
    /// The variable, where it is one.
    pub(super) variable: Option<String>,
    /// In words.
    pub(super) reason: String,
}

impl Unfilled {
    fn new(reason: impl Into<String>) -> Self {
        Self { variable: None, reason: reason.into() }
    }
}

/// A filled template: text with stand-ins, and what they stand for.
pub(super) struct Filled {
    pub(super) text: String,
    mark: String,
    values: Vec<String>,
}

/// A part of a filled text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// From the template.
    Literal(&'a str),
    /// Printed by an expression.
    Value(&'a str),
}

/// A source the engine can read, with the variables it uses anywhere (also in branches that are not taken), by name.
pub(super) struct Parsed {
    source: String,
    variables: Vec<String>,
}

impl Parsed {
    pub(super) fn new(source: &str) -> Result<Self, Unfilled> {
        let environment = environment();
        let template = environment.template_from_str(source).map_err(|error| engine_fault(&error))?;
        let known: Vec<&str> = environment.globals().map(|(name, _)| name).collect();
        let mut variables: Vec<String> = template.undeclared_variables(false).into_iter().collect();
        variables.retain(|name| !known.contains(&name.as_str()));
        variables.sort_unstable();
        Ok(Self { source: source.to_owned(), variables })
    }

    /// Whether it uses that variable.
    pub(super) fn uses(&self, variable: &str) -> bool {
        self.variables.iter().any(|name| name == variable)
    }
}

/// Fills a source with `values`, every variable of which must be known and, but for `name`, not empty.
pub(super) fn fill(parsed: &Parsed, values: &Values) -> Result<Filled, Unfilled> {
    let source = parsed.source.as_str();
    for name in &parsed.variables {
        let fault = match values.get(name) {
            None => "has no value",
            Some("") if name != "name" => "is empty",
            Some(_) => continue,
        };
        return Err(Unfilled {
            reason: format!("the variable `{name}` {fault}"),
            variable: Some(name.clone()),
        });
    }
    let all = values.all();
    let mark = free_mark(source, &all);
    let printed: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut environment = environment();
    environment.set_formatter({
        let (mark, printed) = (mark.clone(), Arc::clone(&printed));
        move |out, _, value| {
            let text = match value {
                value if value.is_undefined() => return Err(ErrorKind::UndefinedError.into()),
                value if value.is_none() => return Err(refusal(REFUSED_NONE)),
                value => value.to_string(),
            };
            // Only a captured block can hold a stand-in; filters would tear it apart.
            if text.to_ascii_lowercase().contains(&mark) {
                return Err(refusal(REFUSED_CAPTURE));
            }
            let mut printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
            if printed.len() >= VALUES_MAX {
                return Err(refusal(REFUSED_LOOP));
            }
            write!(out, "{}", stand_in(&mark, printed.len()))?;
            printed.push(text);
            Ok(())
        }
    });
    let template = environment.template_from_str(source).map_err(|error| engine_fault(&error))?;
    let text = template.render(Value::from_pairs(all)).map_err(|error| engine_fault(&error))?;
    let values = std::mem::take(&mut *printed.lock().unwrap_or_else(PoisonError::into_inner));
    let filled = Filled { text, mark, values };
    let whole = filled.numbers().eq(0..filled.values.len());
    if !whole {
        return Err(Unfilled::new(REFUSED_CAPTURE));
    }
    Ok(filled.without_empty_greeting())
}

impl Filled {
    /// Cuts a part of the filled text at its stand-ins.
    pub(super) fn pieces<'a>(&'a self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((at, number, end)) = self.next(rest) {
            if at > 0 {
                pieces.push(Piece::Literal(&rest[..at]));
            }
            pieces.push(Piece::Value(&self.values[number]));
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest));
        }
        pieces
    }

    /// The text with its values, for a place where nothing needs escaping.
    pub(super) fn plain(&self, text: &str) -> String {
        self.pieces(text)
            .into_iter()
            .map(|piece| match piece {
                Piece::Literal(text) | Piece::Value(text) => text,
            })
            .collect()
    }

    /// The text with `{{…}}` for each value: for telling people about it.
    pub(super) fn masked(&self, text: &str) -> String {
        self.pieces(text)
            .into_iter()
            .map(|piece| match piece {
                Piece::Literal(text) => text,
                Piece::Value(_) => "{{…}}",
            })
            .collect()
    }

    /// Where the next stand-in of a text begins, which one it is, and where it ends.
    fn next(&self, text: &str) -> Option<(usize, usize, usize)> {
        let mut from = 0;
        while let Some(at) = text[from..].find(&self.mark).map(|at| from + at) {
            let digits = at + self.mark.len();
            let number = text.get(digits..digits + DIGITS).and_then(|digits| digits.parse().ok());
            match number.filter(|number| *number < self.values.len()) {
                Some(number) => {
                    return Some((at, number, digits + DIGITS + 1))
                        .filter(|(_, _, end)| text.is_char_boundary(*end));
                }
                None => from = digits,
            }
        }
        None
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        let mut rest = self.text.as_str();
        std::iter::from_fn(move || {
            let (_, number, end) = self.next(rest)?;
            rest = &rest[end..];
            Some(number)
        })
    }

    /// Mends the places where an empty name was printed without a fallback, so that no bare ` 様`, `Hello ,` or
    /// `Dear ,` leaves (C036). The stand-in itself stays, so the Markdown around it is read as ever.
    fn without_empty_greeting(mut self) -> Self {
        let mut text = String::with_capacity(self.text.len());
        let filled = std::mem::take(&mut self.text);
        let mut rest = filled.as_str();
        while let Some((at, number, end)) = self.next(rest) {
            text.push_str(&rest[..at]);
            let after = &rest[end..];
            let mut skip = 0;
            if self.values[number].is_empty() {
                let beyond = after.trim_start_matches([' ', '\u{3000}']);
                if ["様", "さま", "さん"].iter().any(|honorific| beyond.starts_with(honorific)) {
                    "お客".clone_into(&mut self.values[number]);
                    skip = after.len() - beyond.len();
                } else if text.ends_with("Dear ") {
                    "customer".clone_into(&mut self.values[number]);
                } else if text.is_empty() || text.ends_with('\n') {
                    skip = after.len() - after.trim_start_matches([',', '、', '，', ' ', '\u{3000}']).len();
                } else if after.is_empty()
                    || after.starts_with(|c: char| c.is_whitespace() || ",.!?:;、。，！？：".contains(c))
                {
                    text.truncate(text.trim_end_matches([' ', '\u{3000}']).len());
                }
            }
            text.push_str(&rest[at..end]);
            rest = &rest[end + skip..];
        }
        text.push_str(rest);
        self.text = text;
        self
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    // Every value is escaped exactly once, later: these three must not do it a second time.
    for name in ["escape", "e", "safe"] {
        environment.add_filter(name, |value: Value| value);
    }
    environment
}

fn refusal(reason: &'static str) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, reason)
}

/// What the engine says, without anything that might be a value.
fn engine_fault(error: &minijinja::Error) -> Unfilled {
    let detail = match error.kind() {
        ErrorKind::SyntaxError
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::MissingArgument
        | ErrorKind::TooManyArguments => error.detail(),
        // Its own words about an operation may hold a value; ours do not.
        ErrorKind::InvalidOperation => {
            error.detail().filter(|detail| [REFUSED_NONE, REFUSED_CAPTURE, REFUSED_LOOP].contains(detail))
        }
        _ => None,
    };
    let mut reason = error.kind().to_string();
    if let Some(detail) = detail {
        let _ = write!(reason, ": {detail}");
    }
    if let Some(line) = error.line() {
        let _ = write!(reason, " (line {line})");
    }
    Unfilled::new(reason)
}

fn stand_in(mark: &str, number: usize) -> String {
    format!("{mark}{number:0DIGITS$}x")
}

/// A beginning for stand-ins that occurs neither in the template nor in any value.
fn free_mark(source: &str, values: &BTreeMap<&str, &str>) -> String {
    let source = source.to_ascii_lowercase();
    let taken = |mark: &str| {
        source.contains(mark) || values.values().any(|text| text.to_ascii_lowercase().contains(mark))
    };
    let mut salt = 0_u32;
    loop {
        let mark = format!("smv{salt}q");
        if !taken(&mark) {
            return mark;
        }
        salt += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        let event = pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        Values::new(&BTreeMap::new(), &event)
    }

    fn plain(source: &str, pairs: &[(&str, &str)]) -> Result<String, Unfilled> {
        Parsed::new(source)
            .and_then(|parsed| fill(&parsed, &values(pairs)))
            .map(|filled| filled.plain(&filled.text))
    }

    #[test]
    fn conditions_and_filters_see_the_true_values() {
        for (source, name, text) in [
            ("{% if name %}{{ name }} 様{% else %}お客様{% endif %}", "花子", "花子 様"),
            ("{% if name %}{{ name }} 様{% else %}お客様{% endif %}", "", "お客様"),
            ("{{ name|upper }}!", "hanako", "HANAKO!"),
            ("{{ name|e }}{{ name|safe }}", "<b>", "<b><b>"),
            ("{{ 'a' }}{{ 1 + 1 }}", "", "a2"),
            ("{% set n = name %}{{ n }}", "x", "x"),
            ("{% for i in range(3) %}{{ i }}{% endfor %}", "", "012"),
        ] {
            assert_eq!(plain(source, &[("name", name)]).unwrap(), text, "{source}");
        }
    }

    #[test]
    fn c038_a_value_is_never_template_source_nor_a_stand_in() {
        for odd in ["{{product}}", "{% if %}", "smv0q000000x", "SMV0Q000001X smv1q", "*|X|*"] {
            assert_eq!(plain("a {{ name }} b", &[("name", odd)]).unwrap(), format!("a {odd} b"));
        }
        assert_eq!(plain("smv0q000000x {{ name }} smv1q", &[("name", "N")]).unwrap(), "smv0q000000x N smv1q");
    }

    #[test]
    fn c036_a_variable_without_a_value_is_named_wherever_it_stands() {
        for source in
            ["{{ nam }}", "{% if name %}{{ nam }}{% endif %}", "{% if nam is defined %}x{% endif %}"]
        {
            let fault = plain(source, &[]).unwrap_err();
            assert_eq!(fault.variable.as_deref(), Some("nam"), "{source}");
        }
        let fault = plain("{{ product }}", &[("product", " ")]).unwrap_err();
        assert_eq!(fault.reason, "the variable `product` is empty");
        assert!(plain("{{ none }}", &[]).is_err());
    }

    #[test]
    fn c036_an_empty_name_leaves_no_bare_greeting() {
        for (source, text) in [
            ("{{ name }} 様\n\n本文", "お客様\n\n本文"),
            ("{{ name }}様", "お客様"),
            ("Hello {{ name }},\n\nx", "Hello,\n\nx"),
            ("Dear {{ name }},", "Dear customer,"),
            ("{{ name }}, thank you", "thank you"),
            ("Thank you {{ name }}", "Thank you"),
        ] {
            assert_eq!(plain(source, &[]).unwrap(), text, "{source}");
        }
    }

    #[test]
    fn a_block_that_would_tear_a_stand_in_is_refused() {
        for source in [
            "{% filter upper %}{{ name }}{% endfilter %}",
            "{% set x %}{{ name }}{% endset %}{{ x }}",
            "{% set x %}{{ name }}{% endset %}",
            "{% filter truncate(2) %}{{ name }}{% endfilter %}",
        ] {
            let fault = plain(source, &[("name", "N")]).unwrap_err();
            assert!(
                fault.reason.contains("not supported") || fault.reason.contains("unknown"),
                "{source}: {fault:?}"
            );
        }
    }

    #[test]
    fn an_error_of_the_engine_never_tells_a_value() {
        for source in
            ["{{ name|int }}", "{{ name + 1 }}", "{{ name.x.y }}", "{{ name() }}", "{{ name|nofilter }}"]
        {
            let fault = plain(source, &[("name", "Hanako")]).unwrap_err();
            assert!(!fault.reason.contains("Hanako"), "{fault:?}");
        }
        assert!(plain("{% for i in range(20000) %}{{ i }}{% endfor %}", &[]).is_err());
    }
}
