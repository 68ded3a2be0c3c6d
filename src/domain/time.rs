//! Instants as the ledger knows them: whole seconds of UTC, within sane years.
//!
//! Whole seconds, because every rule is written to the second and a ledger is read by people. The range keeps
//! arithmetic on instants from ever overflowing, and turns the usual slip (`created` in milliseconds) into an error.

use std::fmt;
use std::ops::{Add, Sub};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// 2000-01-01T00:00:00Z
const EARLIEST: i64 = 946_684_800;
/// 2200-01-01T00:00:00Z
const LATEST: i64 = 7_258_118_400;

/// A whole second of UTC between the years 2000 and 2200.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// A number that cannot be an instant of a purchase or a mail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTime {
    /// Not RFC 3339.
    #[error("`{0}` is not a time like 2026-09-21T01:00:00Z")]
    NotATime(String),
    /// Outside 2000 to 2200, with a hint where it looks like milliseconds.
    #[error("{0} lies outside the years 2000 to 2200{hint}", hint = if *.0 > LATEST { " (seconds are expected; this looks like milliseconds)" } else { "" })]
    OutOfRange(i64),
}

impl Timestamp {
    /// Reads seconds since 1970.
    ///
    /// # Errors
    /// [`BadTime::OutOfRange`] outside 2000 to 2200.
    pub fn from_unix(seconds: i64) -> Result<Self, BadTime> {
        if (EARLIEST..LATEST).contains(&seconds) {
            Ok(Self(seconds))
        } else {
            Err(BadTime::OutOfRange(seconds))
        }
    }

    /// Reads RFC 3339 with any offset; a fraction of a second is dropped.
    ///
    /// # Errors
    /// [`BadTime`] when the text is no such time.
    pub fn parse(text: &str) -> Result<Self, BadTime> {
        let time = DateTime::parse_from_rfc3339(text)
            .map_err(|_| BadTime::NotATime(text.chars().take(40).collect()))?;
        Self::from_unix(time.timestamp())
    }

    /// Takes a reading of the machine's clock in seconds since 1970; a clock outside 2000 to 2200 counts as its nearest end, where the
    /// clock guard holds the run.
    #[must_use]
    pub fn from_clock(seconds: i64) -> Self {
        Self(seconds.clamp(EARLIEST, LATEST - 1))
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn unix(self) -> i64 {
        self.0
    }

    /// The same instant for chrono.
    #[must_use]
    pub fn to_chrono(self) -> DateTime<Utc> {
        DateTime::from_timestamp(self.0, 0).unwrap_or_default()
    }

    /// Reads `2026-09-21T01:00:00Z` without the general parser. A ledger holds several hundred thousand of these.
    fn parse_plain(text: &str) -> Option<Self> {
        let b = text.as_bytes();
        if b.len() != 20
            || b[4] != b'-'
            || b[7] != b'-'
            || b[10] != b'T'
            || b[13] != b':'
            || b[16] != b':'
            || b[19] != b'Z'
        {
            return None;
        }
        let number = |from: usize, to: usize| {
            b[from..to]
                .iter()
                .try_fold(0u32, |sum, d| d.is_ascii_digit().then(|| sum * 10 + u32::from(d - b'0')))
        };
        let date = chrono::NaiveDate::from_ymd_opt(
            i32::try_from(number(0, 4)?).ok()?,
            number(5, 7)?,
            number(8, 10)?,
        )?;
        let time = date.and_hms_opt(number(11, 13)?, number(14, 16)?, number(17, 19)?)?;
        Self::from_unix(time.and_utc().timestamp()).ok()
    }
}

/// A span of seconds; the unit of every window.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seconds(pub i64);

impl Seconds {
    /// `n` minutes.
    #[must_use]
    pub const fn minutes(n: i64) -> Self {
        Self(n * 60)
    }

    /// `n` hours.
    #[must_use]
    pub const fn hours(n: i64) -> Self {
        Self(n * 3_600)
    }

    /// `n` days of 24 hours (DESIGN 2: no calendar, no time zone).
    #[must_use]
    pub const fn days(n: i64) -> Self {
        Self(n * 86_400)
    }
}

impl Add<Seconds> for Timestamp {
    type Output = Self;
    fn add(self, span: Seconds) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Seconds> for Timestamp {
    type Output = Self;
    fn sub(self, span: Seconds) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Sub for Timestamp {
    type Output = Seconds;
    fn sub(self, earlier: Self) -> Seconds {
        Seconds(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_chrono().to_rfc3339_opts(SecondsFormat::Secs, true))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Seconds {
    /// Says a span as people do: the two largest units (`2 d 3 h`, `47 min`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0.abs();
        let (days, hours, minutes) = (s / 86_400, s % 86_400 / 3_600, s % 3_600 / 60);
        match (days, hours, minutes) {
            (0, 0, 0) => write!(f, "{s} s"),
            (0, 0, m) => write!(f, "{m} min"),
            (0, h, 0) => write!(f, "{h} h"),
            (0, h, m) => write!(f, "{h} h {m} min"),
            (d, 0, _) => write!(f, "{d} d"),
            (d, h, _) => write!(f, "{d} d {h} h"),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Timestamp;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time like \"2026-09-21T01:00:00Z\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
                match Timestamp::parse_plain(text) {
                    Some(time) => Ok(time),
                    None => Timestamp::parse(text).map_err(E::custom),
                }
            }
        }
        d.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_strictly_and_written_plainly() {
        let read = |text: &str| serde_json::from_str::<Timestamp>(&format!("{text:?}"));
        assert_eq!(read("2026-09-21T01:00:00Z").unwrap().to_string(), "2026-09-21T01:00:00Z");
        assert_eq!(read("2026-09-21T10:00:00+09:00").unwrap().to_string(), "2026-09-21T01:00:00Z");
        assert_eq!(read("2026-09-21T01:00:00.999Z").unwrap().to_string(), "2026-09-21T01:00:00Z");
        assert_eq!(read("2028-02-29T00:00:00Z").unwrap().to_string(), "2028-02-29T00:00:00Z");
        for bad in [
            "2027-02-29",
            "2027-02-29T00:00:00Z",
            "5/1",
            "",
            "2026-09-21 01:00",
            "1999-12-31T23:59:59Z",
            "58000-01-01T00:00:00Z",
        ] {
            assert!(read(bad).is_err(), "{bad} was read as a time");
        }
    }

    #[test]
    fn milliseconds_are_named_as_such() {
        assert!(Timestamp::from_unix(1_771_041_840).is_ok());
        let error = Timestamp::from_unix(1_771_041_840_000).unwrap_err();
        assert!(error.to_string().contains("milliseconds"), "{error}");
        assert!(!Timestamp::from_unix(-5).unwrap_err().to_string().contains("milliseconds"));
    }

    #[test]
    fn spans_are_said_in_two_units() {
        for (span, said) in [
            (Seconds(59), "59 s"),
            (Seconds(60), "1 min"),
            (Seconds::hours(2), "2 h"),
            (Seconds(9_000), "2 h 30 min"),
            (Seconds::days(3), "3 d"),
            (Seconds(183_600), "2 d 3 h"),
        ] {
            assert_eq!(span.to_string(), said);
        }
    }
}
