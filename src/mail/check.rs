//! R11: nothing may leave with a placeholder of any tool still in it.
//!
//! Looked for in the template itself (every branch) and in a rendering where the buyer's own values are neutral
//! words, never in the mail as the buyer gets it: an odd name holds nothing.

/// Tags by which newsletter tools put in their way out. In a mail to one buyer they mean a text was copied from there.
const NEWSLETTER_TAGS: [&str; 12] = [
    "unsubscribe_url",
    "unsubscribe_link",
    "unsubscribe-url",
    "unsubscribeurl",
    "unsubscribelink",
    "unsub_link",
    "unsubscribe_href",
    "list_unsubscribe",
    "{$unsubscribe",
    "[unsubscribe",
    "opt_out_url",
    "optout_url",
];

/// Marks that are a fault wherever they stand.
const MARKS: [&str; 12] = ["{{", "}}", "{%", "%}", "{#", "｛｛", "｝｝", "｛%", "｛％", "｛#", "{ {", "} }"];

/// The first placeholder left in a text, as it is spelt there: plain, percent-encoded or HTML-escaped.
#[must_use]
pub fn leftover(text: &str) -> Option<String> {
    if let Some(found) = plain(text).or_else(|| percent_words(text)) {
        return Some(found);
    }
    let mut decoded = text.to_owned();
    for _ in 0..3 {
        let next = percent_decoded(&unescaped(&decoded));
        if next == decoded {
            return None;
        }
        decoded = next;
        if let Some(found) = plain(&decoded) {
            return Some(found);
        }
    }
    None
}

/// The same for a template's source: what the engine itself will evaluate is taken out first. Gives the line too.
#[must_use]
pub fn leftover_in_source(source: &str) -> Option<(usize, String)> {
    if let Some(at) = source.find("{{{").or_else(|| source.find("}}}")) {
        return Some((line_of(source, at), snippet(&source[at..])));
    }
    let text = without_tags(source);
    text.lines().enumerate().find_map(|(at, line)| leftover(line).map(|found| (at + 1, found)))
}

fn plain(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let mark = MARKS.iter().chain(&NEWSLETTER_TAGS).filter_map(|mark| lower.find(mark)).min();
    if let Some(at) = mark {
        return Some(snippet(&text[at..]));
    }
    [("*|", "|*", 80), ("[[", "]]", 80), ("<%", "%>", 120), ("${", "}", 80), ("#{", "}", 80)]
        .into_iter()
        .find_map(|(open, close, longest)| {
            between(text, open, close, longest, |inner| !inner.trim().is_empty())
        })
        .or_else(|| between(text, "{", "}", 60, is_word))
        .or_else(|| between(text, "<<", ">>", 60, is_word))
        .or_else(|| between(text, "##", "##", 60, is_word))
}

/// `open … close` on one line, with something between that `fits`.
fn between(
    text: &str,
    open: &str,
    close: &str,
    longest: usize,
    fits: impl Fn(&str) -> bool,
) -> Option<String> {
    text.match_indices(open).find_map(|(at, _)| {
        let rest = &text[at + open.len()..];
        let end = rest.find(close)?;
        let inner = &rest[..end];
        (inner.len() <= longest && !inner.contains('\n') && fits(inner))
            .then(|| format!("{open}{inner}{close}"))
    })
}

/// A name as programs give them: letters, digits, `_`, `.`, `$`, spaces inside.
fn is_word(inner: &str) -> bool {
    let inner = inner.trim();
    inner.starts_with(|c: char| c.is_ascii_alphabetic() || c == '$' || c == '_')
        && inner.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.$ -".contains(&b))
}

/// `%name%`, but neither prose (`100% sure, 50%`) nor a percent-encoded address (`%E3%81%82`).
fn percent_words(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let hex_at =
        |at: usize| bytes.get(at + 1..at + 3).is_some_and(|pair| pair.iter().all(u8::is_ascii_hexdigit));
    let signs: Vec<usize> = text.match_indices('%').map(|(at, _)| at).collect();
    signs.windows(2).find_map(|pair| {
        let (open, close) = (pair[0], pair[1]);
        let inner = &text[open + 1..close];
        let word = inner.len() >= 2
            && inner.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && inner.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        let after_number = open > 0 && bytes[open - 1].is_ascii_digit();
        let encoded = hex_at(open) && (hex_at(close) || inner.len() == 2);
        (word && !after_number && !encoded).then(|| format!("%{inner}%"))
    })
}

/// Takes out `{{ … }}`, `{% … %}` and `{# … #}`, keeping the line breaks.
fn without_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        text.push_str(before);
        let close = match tag.as_bytes().get(1) {
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            Some(b'#') => "#}",
            _ => "",
        };
        let end = if close.is_empty() { None } else { tag[2..].find(close).map(|end| end + 2 + close.len()) };
        let Some(end) = end else {
            text.push('{');
            rest = &tag[1..];
            continue;
        };
        text.extend(tag[..end].chars().filter(|c| *c == '\n'));
        rest = &tag[end..];
    }
    text.push_str(rest);
    text
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = text
            .get(at + 1..at + 3)
            .filter(|pair| bytes[at] == b'%' && pair.bytes().all(|b| b.is_ascii_hexdigit()));
        if let Some(byte) = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            decoded.push(byte);
            at += 3;
        } else {
            decoded.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Undoes the HTML escapes a placeholder could hide behind.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let entity = rest[1..].find(';').filter(|end| *end <= 10).map(|end| &rest[1..=end]);
        let c = entity.and_then(|entity| match entity {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "lbrace" | "lcub" => Some('{'),
            "rbrace" | "rcub" => Some('}'),
            "lsqb" | "lbrack" => Some('['),
            "rsqb" | "rbrack" => Some(']'),
            "ast" => Some('*'),
            "vert" | "verbar" => Some('|'),
            "percnt" => Some('%'),
            "dollar" => Some('$'),
            entity => {
                let number = entity.strip_prefix('#')?;
                let hex = number.strip_prefix(['x', 'X']);
                char::from_u32(
                    hex.map_or_else(|| number.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())?,
                )
            }
        });
        if let (Some(c), Some(entity)) = (c, entity) {
            plain.push(c);
            rest = &rest[entity.len() + 2..];
        } else {
            plain.push('&');
            rest = &rest[1..];
        }
    }
    plain.push_str(rest);
    plain
}

/// The beginning of a text, short enough for a sentence about it.
fn snippet(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(30).collect()
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c037_a_placeholder_of_any_tool_is_found_in_every_spelling() {
        for text in [
            "a {{ x }}",
            "a }} b",
            "{{{unsubscribe_url}}}",
            "{% if x %}",
            "{# note #}",
            "*|FNAME|*",
            "*|UNSUB|*",
            "%unsubscribe_url%",
            "%recipient.name%",
            "%%first_name%%",
            "Hi %FIRSTNAME%,",
            "%email%",
            "%date% b",
            "[[first name]]",
            "<% name %>",
            "<%= name %>",
            "${name}",
            "#{name}",
            "｛｛ name ｝｝",
            "｛% if %｝",
            "https://example.com/?n=%7B%7Bname%7D%7D",
            "https://example.com/%7b%7bname",
            "&#123;&#123;name&#125;&#125;",
            "&lbrace;&lbrace;name",
            "&#x7b;{name}}",
            "%257B%257Bname%257D%257D",
            "{$unsubscribe}",
            "[unsubscribe]",
            "{first_name}",
            "{ first name }",
            "<<First Name>>",
            "##NAME##",
            "{ { name } }",
            "&lt;%= name %&gt;",
            "%5B%5Bname%5D%5D",
            "href=\"%2A%7CUNSUB%7C%2A\"",
            "https://example.com/?u=%25unsubscribe_url%25",
        ] {
            assert!(leftover(text).is_some(), "{text} was not found");
        }
    }

    #[test]
    fn ordinary_prose_is_no_placeholder() {
        for text in [
            "",
            "100% sure, and 50% of it",
            "売上が100%増え、50%減った",
            "5%off%",
            "100%安心%",
            "https://example.com/%E3%81%82%E3%82%81?a=b%20c",
            "a [link] b",
            "[1]",
            "a * b | c * d",
            "cost: $5 {approx. 3 €}",
            "x < y > z",
            "<< 戻る",
            "C# と F#",
            "100 % of x % y",
            "unsubscribe by replying",
            "配信停止",
            "Tom & Jerry &c;",
            "{}",
            "a % b % c",
            "「50%」と「60%」",
            "if a < b then",
            "## Heading",
        ] {
            assert_eq!(leftover(text), None, "{text}");
        }
    }

    #[test]
    fn the_source_is_checked_in_every_branch_but_not_for_its_own_tags() {
        assert_eq!(leftover_in_source("Hi {{ name }}{# *|X|* #}\n{% if x %}a{% endif %}"), None);
        assert_eq!(leftover_in_source("a\n{% if x %}*|X|*{% endif %}"), Some((2, "*|X|*".to_owned())));
        assert_eq!(leftover_in_source("a\n\n{{{ name }}}").map(|(line, _)| line), Some(3));
        assert_eq!(leftover_in_source("{{ a\n}}\n%name%"), Some((3, "%name%".to_owned())));
        assert!(leftover_in_source("{{ never closed").is_some());
    }
}
