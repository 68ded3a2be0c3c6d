//! The values a template may use, and whose they are.

use std::collections::BTreeMap;
use std::fmt;

use super::clean;

/// The sender's own words about himself; no event may replace them.
const SENDERS: [&str; 3] = ["business", "business_address", "reply_to"];

/// Names to text: the seller's settings, and what came with the purchase. All of it cleaned.
///
/// What came with the purchase goes first, but for the sender block (`business`, `business_address`, `reply_to`).
/// `name` is always there, empty where the buyer gave none; it never comes from the settings.
#[derive(Clone, Default)]
pub struct Values {
    settings: BTreeMap<String, String>,
    event: BTreeMap<String, String>,
}

impl Values {
    /// Takes the seller's values (`product`, `login_url`, `business`, `business_address`, `reply_to`, `[vars]`) and
    /// those of one purchase (`name` and the event's own).
    #[must_use]
    pub fn new(settings: &BTreeMap<String, String>, event: &BTreeMap<String, String>) -> Self {
        let settings = settings.iter().map(|(key, text)| (key.clone(), clean::line(text))).collect();
        let mut event: BTreeMap<String, String> = event
            .iter()
            .filter(|(key, _)| !SENDERS.contains(&key.as_str()))
            .map(|(key, text)| {
                (key.clone(), if key == "name" { clean::name(text) } else { clean::line(text) })
            })
            .collect();
        event.entry("name".to_owned()).or_default();
        Self { settings, event }
    }

    /// The value of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.event.get(name).or_else(|| self.settings.get(name)).map(String::as_str)
    }

    /// All names with their values.
    pub(super) fn all(&self) -> BTreeMap<&str, &str> {
        let pairs = self.settings.iter().chain(&self.event);
        pairs.map(|(key, text)| (key.as_str(), text.as_str())).collect()
    }

    /// The same with neutral words in place of what came with the purchase (R11): a buyer's odd name must not look
    /// like a left-over placeholder. Numbers stay numbers, so that a template may count with them.
    pub(super) fn neutral(&self) -> Self {
        let neutral = |text: &String| match text.as_str() {
            "" => String::new(),
            text if text.parse::<f64>().is_ok() => text.to_owned(),
            text if text.starts_with("https://") => "https://example.com/word".to_owned(),
            _ => "word".to_owned(),
        };
        let event = self.event.iter().map(|(key, text)| (key.clone(), neutral(text))).collect();
        Self { settings: self.settings.clone(), event }
    }

    /// The same for a buyer of that name.
    pub(super) fn named(mut self, name: &str) -> Self {
        self.event.insert("name".to_owned(), name.to_owned());
        self
    }

    /// Whether this text is a web address that a variable named `…_url` holds: such a one may become a link by itself.
    pub(super) fn is_url(&self, text: &str) -> bool {
        text.starts_with("https://")
            && self.all().iter().any(|(key, value)| key.ends_with("_url") && *value == text)
    }
}

impl fmt::Debug for Values {
    /// The names only: the values are somebody's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.all().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_purchase_goes_before_the_settings_but_never_names_the_sender() {
        let values = Values::new(
            &map(&[("product", "Tool"), ("business", "Shop"), ("name", "Nobody")]),
            &map(&[("product", "Other\n tool"), ("business", "Evil")]),
        );
        assert_eq!(values.get("product"), Some("Other tool"));
        assert_eq!(values.get("business"), Some("Shop"));
        assert_eq!(
            values.get("name"),
            Some(""),
            "a name in the settings would greet every nameless buyer with it"
        );
        assert_eq!(values.get("plan"), None);
        assert!(!format!("{values:?}").contains("Shop"));
    }

    #[test]
    fn neutral_words_stand_for_what_came_with_the_purchase_only() {
        let values = Values::new(
            &map(&[("product", "{{x}}")]),
            &map(&[("name", "*|X|*"), ("seats", "3"), ("login_url", "https://a.example/%7B%7B")]),
        )
        .neutral();
        assert_eq!(values.get("product"), Some("{{x}}"));
        assert_eq!(values.get("name"), Some("word"));
        assert_eq!(values.get("seats"), Some("3"));
        assert_eq!(values.get("login_url"), Some("https://example.com/word"));
    }
}
