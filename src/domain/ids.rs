//! The names of things: sessions, events, people, steps, and the key that makes asking twice send once.
//!
//! Each is checked once, where it enters. What could identify a person hides itself in `Debug`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is no name of its kind. Never repeats the text itself: it may be somebody's address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {why}")]
pub struct BadName {
    /// What was being read: `session id`, `address` …
    pub what: &'static str,
    /// What is wrong with it.
    pub why: String,
}

fn bad<T>(what: &'static str, why: impl Into<String>) -> Result<T, BadName> {
    Err(BadName { what, why: why.into() })
}

/// Reads a text newtype through its own check, and writes it as text.
macro_rules! text_serde {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.to_string()
            }
        }
    };
}

/// One checkout session of the payment service; the identity of a purchase.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = BadName;
    /// DESIGN 2: 1 to 200 of `[A-Za-z0-9_-]`, not `notice` (that word begins the keys of notices).
    fn from_str(text: &str) -> Result<Self, BadName> {
        if text.is_empty() || text.len() > 200 {
            return bad("session id", "must have 1 to 200 characters");
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return bad("session id", "may hold only A-Z, a-z, 0-9, `_` and `-`");
        }
        if text == "notice" {
            return bad("session id", "must not be `notice`");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
text_serde!(SessionId);

/// One message of the payment service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventId(String);

impl EventId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EventId {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        if text.is_empty() || text.len() > 255 {
            return bad("event id", "must have 1 to 255 characters");
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return bad("event id", "may hold only visible ASCII characters");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
text_serde!(EventId);

/// A mail address as the buyer wrote it, less outer white space. Mails go here; [`BuyerId`] tells people apart.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(String);

impl Address {
    /// The address as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn split(&self) -> (&str, &str) {
        self.0.rsplit_once('@').unwrap_or((&self.0, ""))
    }

    /// Who this is: lower case, and the domain in the form DNS uses. Dots and plus parts stay (C017).
    #[must_use]
    pub fn buyer(&self) -> BuyerId {
        let (local, domain) = self.split();
        let domain = idna::domain_to_ascii(domain).unwrap_or_else(|_| domain.to_lowercase());
        BuyerId(format!("{}@{domain}", local.to_ascii_lowercase()))
    }

    /// The form for a mail's header: A-labels in the domain, and the local part quoted where RFC 5322 wants it
    /// (old Japanese carrier addresses such as `a..b@` and `a.@` exist and are deliverable so).
    #[must_use]
    pub fn for_header(&self) -> String {
        let (local, written) = self.split();
        // `idna` would change the case too, and a mail goes to the address as it was written.
        let domain = if written.is_ascii() { None } else { idna::domain_to_ascii(written).ok() };
        let domain = domain.unwrap_or_else(|| written.to_owned());
        let odd = local.starts_with('.') || local.ends_with('.') || local.contains("..");
        if odd { format!("\"{local}\"@{domain}") } else { format!("{local}@{domain}") }
    }

    /// A form for reports and logs that does not give the address away: `h…@e….com`.
    #[must_use]
    pub fn masked(&self) -> String {
        mask(&self.0)
    }
}

impl FromStr for Address {
    type Err = BadName;
    /// Accepts what a mail service can deliver to, and nothing that could be read in two ways: one `@`, an ASCII
    /// local part, a domain with a dot. Full-width letters, inner spaces, control and zero-width characters are
    /// refused rather than guessed at (C044).
    fn from_str(text: &str) -> Result<Self, BadName> {
        const WHAT: &str = "address";
        // U+3000 is white space to a Japanese keyboard and to `trim` alike; other outer spaces too.
        let text = text.trim();
        if text.is_empty() {
            return bad(WHAT, "is empty");
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return bad(WHAT, "has a space or a control character inside");
        }
        let Some((local, domain)) = text.rsplit_once('@') else {
            return bad(WHAT, "has no @");
        };
        if local.is_empty() || domain.is_empty() {
            return bad(WHAT, "lacks the part before or after @");
        }
        if !local.is_ascii() {
            return bad(
                WHAT,
                "has letters outside ASCII before the @, which mail services cannot deliver to",
            );
        }
        if local.len() > 64 || text.len() > 254 {
            return bad(WHAT, "is too long");
        }
        let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
        if quoted {
            if local[1..local.len() - 1].contains(['"', '\\']) {
                return bad(WHAT, "has a quote mark or backslash inside its quotes");
            }
        } else if !local.bytes().all(|b| b.is_ascii_alphanumeric() || b".!#$%&'*+/=?^_`{|}~-".contains(&b)) {
            return bad(WHAT, "has a character before the @ that no address may hold");
        }
        check_domain(domain)?;
        Ok(Self(text.to_owned()))
    }
}

fn check_domain(domain: &str) -> Result<(), BadName> {
    const WHAT: &str = "address";
    let Ok(ascii) = idna::domain_to_ascii_strict(domain) else {
        return bad(WHAT, "has a domain that cannot exist");
    };
    // A domain that IDNA would change (full-width letters, an ideographic full stop, a zero-width character) was
    // mistyped; what was meant is for a person to say.
    if !domain.is_ascii() && idna::domain_to_unicode(&ascii).0 != domain.to_lowercase() {
        return bad(WHAT, "has full-width or invisible characters after the @");
    }
    let labels: Vec<&str> = ascii.split('.').collect();
    if labels.len() < 2 || labels.iter().any(|label| label.is_empty()) {
        return bad(WHAT, "has a domain without a dot, or with an empty part");
    }
    if labels.last().is_some_and(|top| top.bytes().all(|b| b.is_ascii_digit())) {
        return bad(WHAT, "has a number for a domain");
    }
    Ok(())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked())
    }
}
text_serde!(Address);

/// A person, as far as stepmail knows people: one mail address, compared without regard to case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BuyerId(String);

impl BuyerId {
    /// The normalised address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// See [`Address::masked`].
    #[must_use]
    pub fn masked(&self) -> String {
        mask(&self.0)
    }
}

impl FromStr for BuyerId {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        Ok(text.parse::<Address>()?.buyer())
    }
}

impl fmt::Display for BuyerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BuyerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked())
    }
}
text_serde!(BuyerId);

fn mask(address: &str) -> String {
    let first = |part: &str| part.chars().next().map_or(String::new(), |c| format!("{c}…"));
    let (local, domain) = address.rsplit_once('@').unwrap_or((address, ""));
    let (name, top) = domain.rsplit_once('.').unwrap_or((domain, ""));
    format!("{}@{}.{top}", first(local), first(name))
}

/// One of the four mails after a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The way in, at once.
    D0,
    /// Where did you stop?
    D3,
    /// Was the first result usable?
    D7,
    /// Could you use it again?
    D14,
}

impl Step {
    /// All four, in the order of days.
    pub const ALL: [Self; 4] = [Self::D0, Self::D3, Self::D7, Self::D14];

    /// `d0` … `d14`, as in keys and file names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::D0 => "d0",
            Self::D3 => "d3",
            Self::D7 => "d7",
            Self::D14 => "d14",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Step {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        match Self::ALL.into_iter().find(|step| step.name() == text) {
            Some(step) => Ok(step),
            None => bad("step", "must be d0, d3, d7 or d14"),
        }
    }
}

/// Names one mail to the mail service, so that asking twice sends once.
///
/// Derived from the ledger alone: the run after a crash must arrive at the same key. `pp:<session>:dN` for a buyer's
/// mail (the whole program rests on this form), `pp:notice:<id>` for a notice to the operator (R15).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum IdempotencyKey {
    /// A buyer's mail.
    Step(SessionId, Step),
    /// A notice to the operator, by the id of its matter.
    Notice(String),
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(session, step) => write!(f, "pp:{session}:{step}"),
            Self::Notice(id) => write!(f, "pp:notice:{id}"),
        }
    }
}

impl FromStr for IdempotencyKey {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        let Some((session, last)) = text.strip_prefix("pp:").and_then(|rest| rest.split_once(':')) else {
            return bad("key", "must look like pp:<session>:d3");
        };
        if session != "notice" {
            return Ok(Self::Step(session.parse()?, last.parse()?));
        }
        // A notice's id becomes a file name and a header value of the mail service.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        if last.is_empty() || text.len() > 256 || !last.bytes().all(plain) || last.starts_with('.') {
            return bad("key", "has a notice id with characters that cannot stand in a key");
        }
        Ok(Self::Notice(last.to_owned()))
    }
}
text_serde!(IdempotencyKey);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_has_exactly_the_promised_form() {
        let key = IdempotencyKey::Step("cs_123".parse().unwrap(), Step::D3);
        assert_eq!(key.to_string(), "pp:cs_123:d3");
        assert_eq!("pp:cs_123:d3".parse::<IdempotencyKey>().unwrap(), key);
        for bad in [
            "pp:cs_123:d5",
            "pp::d3",
            "pp:notice:",
            "pp:notice:a/b",
            "pp:notice:..",
            "cs_123:d3",
            "pp:cs 1:d3",
        ] {
            assert!(bad.parse::<IdempotencyKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn session_ids_outside_the_alphabet_are_refused() {
        for good in ["cs_1", "a", "A-b_9", &"x".repeat(200)] {
            assert!(good.parse::<SessionId>().is_ok(), "{good}");
        }
        for bad in ["", "notice", "cs 1", "cs:1", "cs/1", "cs\n1", "ｃｓ", "../x", &"x".repeat(201)] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn c016_c017_letter_case_is_one_person_but_dots_and_plus_parts_are_others() {
        let who = |text: &str| text.parse::<Address>().unwrap().buyer();
        assert_eq!(who(" Buyer@Example.com "), who("buyer@example.com"));
        assert_eq!(who("x@bücher.example"), who("x@xn--bcher-kva.example"));
        assert_ne!(who("a.b@example.com"), who("ab@example.com"));
        assert_ne!(who("ab+shop@example.com"), who("ab@example.com"));
        assert_eq!("Ab+Shop@Example.com".parse::<Address>().unwrap().as_str(), "Ab+Shop@Example.com");
    }

    #[test]
    fn c044_mistyped_addresses_are_refused_and_old_carrier_addresses_are_not() {
        for bad in [
            "",
            " ",
            "a",
            "a@",
            "@example.com",
            "a b@example.com",
            "a@exa mple.com",
            "a\t@example.com",
            "a\u{0}@example.com",
            "a\r\nBcc: x@example.org",
            "ｂｕｙｅｒ＠ｅｘａｍｐｌｅ．ｃｏｍ",
            "buyer@ｅｘａｍｐｌｅ.com",
            "buyer@example。com",
            "buyer@example,com",
            "a@b@example.com",
            "buy\u{200b}er@example.com",
            "buyer@exam\u{200b}ple.com",
            "太郎@example.com",
            "buyer@example\u{3000}.com",
            "a@localhost",
            "a@example..com",
            "a@.example.com",
            "a@127.0.0.1",
            "a@[127.0.0.1]",
            "a,b@example.com",
            "<a@example.com>",
            "a@-example.com",
            "a@exa_mple.com",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?} was taken for an address");
        }
        for good in [
            "a@example.com",
            "a..b@example.com",
            "a.@example.com",
            ".a@example.com",
            "o'neil+x@sub.example.co.jp",
            "\u{3000}a@example.com\u{3000}",
            "a@日本語.example",
        ] {
            assert!(good.parse::<Address>().is_ok(), "{good:?} was refused");
        }
        let header = |text: &str| text.parse::<Address>().unwrap().for_header();
        assert_eq!(header("a..b@example.com"), "\"a..b\"@example.com");
        assert_eq!(header("A.B@Example.com"), "A.B@Example.com");
        assert_eq!(header("a@日本語.example"), "a@xn--wgv71a119e.example");
    }

    #[test]
    fn an_address_hides_itself_in_debug() {
        let address: Address = "hanako@example.com".parse().unwrap();
        assert_eq!(format!("{address:?} {:?}", address.buyer()), "h…@e….com h…@e….com");
    }
}
