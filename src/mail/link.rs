//! Addresses of links: only `https` and `mailto`, absolute, and safe to stand in a text and in an attribute.

use super::fill::{Filled, Piece};
use crate::domain::ids::Address;

/// Puts the values into a link's address. One at its very beginning is taken for (the beginning of) an address; any
/// other is one component, so a name with `&` or `?` cannot add anything to the query.
pub(super) fn resolve(url: &str, filled: &Filled) -> Result<String, String> {
    let mut resolved = String::with_capacity(url.len());
    for piece in filled.pieces(url) {
        match piece {
            Piece::Value(value) if !resolved.is_empty() => {
                encode(value, |b| b"-._~@".contains(&b), &mut resolved);
            }
            Piece::Literal(part) | Piece::Value(part) => {
                encode(part, |b| b"-._~:/?#[]@!$&'()*+,;=%".contains(&b), &mut resolved);
            }
        }
    }
    let resolved = with_ascii_host(url, filled).unwrap_or(resolved);
    if is_absolute(&resolved) {
        Ok(resolved)
    } else {
        Err(format!("the link `{}` is not an absolute https or mailto address", filled.masked(url)))
    }
}

/// Whether this is `https://` with a host (and no user name, which is a trick), or `mailto:` with an address.
pub(super) fn is_absolute(url: &str) -> bool {
    let lower = url.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("https://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (name, port) = host.split_once(':').unwrap_or((host, "0"));
        return name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            && !port.is_empty()
            && port.bytes().all(|b| b.is_ascii_digit());
    }
    lower.strip_prefix("mailto:").is_some_and(|rest| {
        let address = rest.split('?').next().unwrap_or_default();
        address.parse::<Address>().is_ok() && !address.contains(char::is_whitespace)
    })
}

/// A host in other letters, in the form DNS uses; percent signs cannot stand in a host.
fn with_ascii_host(url: &str, filled: &Filled) -> Option<String> {
    let plain = filled.plain(url);
    let rest =
        plain.get(..8).filter(|scheme| scheme.eq_ignore_ascii_case("https://")).map(|_| &plain[8..])?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // Where a value stands after the beginning, `resolve` has to encode it as a component.
    let later_value = filled.pieces(url).iter().skip(1).any(|piece| matches!(piece, Piece::Value(_)));
    if rest[..end].is_ascii() || later_value {
        return None;
    }
    let mut resolved = format!("https://{}", idna::domain_to_ascii(&rest[..end]).ok()?);
    encode(&rest[end..], |b| b"-._~:/?#[]@!$&'()*+,;=%".contains(&b), &mut resolved);
    Some(resolved)
}

/// Appends `text` with every byte percent-encoded that is neither a letter or digit nor in `plain`.
pub(super) fn encode(text: &str, plain: impl Fn(u8) -> bool, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || plain(b) {
            out.push(char::from(b));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(b >> 4)]));
            out.push(char::from(HEX[usize::from(b & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_https_and_mailto_are_links() {
        for good in [
            "https://example.com",
            "https://example.com:8443/a?b=c#d",
            "HTTPS://example.com/",
            "mailto:a@example.com?subject=stop",
        ] {
            assert!(is_absolute(good), "{good}");
        }
        for bad in [
            "",
            "/login",
            "login",
            "#top",
            "//example.com",
            "http://example.com",
            "https:/example.com",
            "https://",
            "https:///x",
            "https://user@example.com/",
            "https://example.com:x/",
            "https://exa%6Dple.com/",
            "javascript:alert(1)",
            "data:text/html,x",
            "mailto:",
            "mailto:a",
            "ftp://example.com",
        ] {
            assert!(!is_absolute(bad), "{bad}");
        }
    }
}
