//! What a value must look like before it reaches a header or a text.
//!
//! The rule, for names, product titles, subjects and every other value alike: control characters, line and paragraph
//! separators, bidi controls, zero-width and blank-looking characters become a space; white space is collapsed (a run
//! of ideographic spaces stays one ideographic space, as in 山田　花子) and trimmed. A zero-width joiner stays where it
//! joins emoji, and the tag characters of a flag stay behind that flag; else a family emoji in a product title would
//! fall apart. What is left empty is absent.

use crate::domain::ids::Address;

/// The most characters a name may have.
const NAME_MAX: usize = 64;

const JOINER: char = '\u{200d}';
const IDEOGRAPHIC_SPACE: char = '\u{3000}';

/// One line of visible text, by the rule above.
#[must_use]
pub fn line(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut gap: Option<char> = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let last = if gap.is_none() { clean.chars().next_back() } else { None };
        let kept = match c {
            JOINER => last.is_some_and(joins) && chars.peek().is_some_and(|next| is_emoji(*next)),
            '\u{e0020}'..='\u{e007f}' => {
                last.is_some_and(|last| last == '\u{1f3f4}' || ('\u{e0020}'..='\u{e007f}').contains(&last))
            }
            _ => !(c.is_control() || c.is_whitespace() || is_invisible(c)),
        };
        if kept {
            clean.extend(gap.take().filter(|_| !clean.is_empty()));
            clean.push(c);
        } else {
            gap = Some(match gap {
                None | Some(IDEOGRAPHIC_SPACE) if c == IDEOGRAPHIC_SPACE => IDEOGRAPHIC_SPACE,
                _ => ' ',
            });
        }
    }
    clean
}

/// A buyer's name fit for a greeting: one line, at most 64 characters.
///
/// Empty where there is none to greet with: nothing visible, a word by which programs say "nothing" (`null`,
/// `undefined`, `None`), or a mail address instead of a name (C036, C041).
#[must_use]
pub fn name(text: &str) -> String {
    let clean = line(text);
    if matches!(clean.as_str(), "null" | "(null)" | "undefined" | "None" | "nil" | "NaN")
        || clean.parse::<Address>().is_ok()
    {
        return String::new();
    }
    shorten(&clean, NAME_MAX).trim_end().to_owned()
}

/// The first `max` characters, fewer where a cut there would part a letter from its marks or an emoji from itself.
#[must_use]
pub fn shorten(text: &str, max: usize) -> &str {
    let starts: Vec<(usize, char)> = text.char_indices().collect();
    let Some(&(hard, _)) = starts.get(max) else { return text };
    let safe = (1..=max).rev().find(|&at| {
        let (before, after) = (starts[at - 1].1, starts[at].1);
        let flags = starts[..at].iter().rev().take_while(|(_, c)| is_regional(*c)).count();
        before != JOINER && !is_extending(after) && !(is_regional(after) && flags % 2 == 1)
    });
    // Nothing but marks: then any place is as good as another.
    let end = safe.map_or(hard, |at| starts[at].0);
    &text[..end]
}

/// Characters that show nothing, or turn the direction of what follows.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e001f}')
}

/// Whether a joiner after this character may join emoji.
fn joins(c: char) -> bool {
    is_emoji(c) || c == '\u{fe0f}' || ('\u{1f3fb}'..='\u{1f3ff}').contains(&c)
}

fn is_emoji(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{23ff}' | '\u{2600}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}'
        | '\u{1f000}'..='\u{1faff}')
}

fn is_regional(c: char) -> bool {
    ('\u{1f1e6}'..='\u{1f1ff}').contains(&c)
}

/// Marks that belong to the character before them: the usual ranges, not all of Unicode.
fn is_extending(c: char) -> bool {
    matches!(c,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{591}'..='\u{5bd}' | '\u{610}'..='\u{61a}'
        | '\u{64b}'..='\u{65f}' | '\u{900}'..='\u{903}' | '\u{93a}'..='\u{94f}' | '\u{e31}' | '\u{e34}'..='\u{e3a}'
        | '\u{e47}'..='\u{e4e}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | JOINER
        | '\u{20d0}'..='\u{20ff}' | '\u{3099}' | '\u{309a}' | '\u{fe00}'..='\u{fe0f}' | '\u{fe20}'..='\u{fe2f}'
        | '\u{ff9e}' | '\u{ff9f}' | '\u{1f3fb}'..='\u{1f3ff}' | '\u{e0020}'..='\u{e007f}'
        | '\u{e0100}'..='\u{e01ef}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c039_no_value_breaks_a_line() {
        for (raw, clean) in [
            ("花子\nBcc: x@example.org", "花子 Bcc: x@example.org"),
            ("a\r\nb\tc\u{2028}d\u{85}e\u{0}f", "a b c d e f"),
            ("  a   b  ", "a b"),
            ("a\u{202e}b\u{200b}c\u{feff}", "a b c"),
            ("\u{200b}\u{3164}\u{2800}", ""),
            ("山田\u{3000}花子", "山田\u{3000}花子"),
            ("\u{3000}山田\u{3000}\u{3000}花子\u{3000}", "山田\u{3000}花子"),
            ("山田\u{3000} 花子", "山田 花子"),
        ] {
            assert_eq!(line(raw), clean, "{raw:?}");
        }
    }

    #[test]
    fn c042_c043_old_characters_and_joined_emoji_stay_as_they_are() {
        for same in [
            "髙﨑①㈱",
            "～ −",
            "ｶﾞｷﾞ",
            "か\u{3099}",
            "🇯🇵",
            "👨‍👩‍👧‍👦 家族",
            "👩🏽‍💻",
            "🏳️‍🌈",
            "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
        ] {
            assert_eq!(line(same), same);
        }
        assert_eq!(line("a\u{200d}b"), "a b", "a joiner between letters joins nothing a buyer sees");
        assert_eq!(line("a\u{e0041}"), "a");
    }

    #[test]
    fn c036_c041_what_is_no_name_is_absent() {
        for none in ["", "   ", "\u{3000}", "null", "undefined", "None", "x.sample99@example.com"] {
            assert_eq!(name(none), "", "{none:?}");
        }
        assert_eq!(name("Nonesuch"), "Nonesuch");
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        assert_eq!(name(&"あ".repeat(64)), "あ".repeat(64));
        assert_eq!(name(&"あ".repeat(65)), "あ".repeat(64));
        let marked = format!("{}か\u{3099}", "あ".repeat(63));
        assert_eq!(name(&marked), "あ".repeat(63), "か would have lost its mark");
        let family = format!("{}👨‍👩‍👧", "あ".repeat(61));
        assert_eq!(name(&family), "あ".repeat(61));
        let flags = format!("{}🇯🇵", "あ".repeat(63));
        assert_eq!(name(&flags), "あ".repeat(63));
        assert_eq!(shorten(&"\u{300}".repeat(80), 64).chars().count(), 64);
        assert_eq!(name(&format!("{} {}", "a".repeat(63), "b")), "a".repeat(63));
    }
}
