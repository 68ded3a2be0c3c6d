//! Which purchases are meant, where a shop sells other things too.

use std::collections::BTreeMap;

use super::super::json::{self, Fault, Fields, Kind};
use super::{metadata, reference};

/// The seller's choice. What is not set rules nothing out; all that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// `plink_…`: bought through one of these.
    pub payment_links: Vec<String>,
    /// `payment`, `subscription`: bought in one of these ways.
    pub modes: Vec<String>,
    /// The session's metadata has each of these.
    pub metadata: BTreeMap<String, String>,
    /// `price_…` and `prod_…`: one of these was bought. No event tells that, so the service is asked.
    pub items: Vec<String>,
}

/// What the choice makes of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    Yes,
    No,
    /// Its line items must be looked at.
    ByItems,
}

impl Choice {
    /// Whether everything counts.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Which purchases count, for people.
    #[must_use]
    pub fn in_words(&self) -> String {
        let list =
            |what: &str, ids: &[String]| (!ids.is_empty()).then(|| format!("{what} {}", ids.join(" or ")));
        let pairs: Vec<String> =
            self.metadata.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let said: Vec<String> = [
            list("bought through", &self.payment_links),
            list("in mode", &self.modes),
            (!pairs.is_empty()).then(|| format!("with metadata {}", pairs.join(" and "))),
            list("of", &self.items),
        ]
        .into_iter()
        .flatten()
        .collect();
        if said.is_empty() { "all".to_owned() } else { format!("those {}", said.join(", and ")) }
    }

    pub(super) fn of(&self, session: &Fields<'_>) -> Result<Chosen, Fault> {
        let is_one =
            |list: &[String], id: Option<String>| list.is_empty() || id.is_some_and(|id| list.contains(&id));
        let fits = is_one(&self.payment_links, reference(session, "payment_link")?)
            && is_one(&self.modes, session.text("mode")?)
            && self.has_metadata(session)?;
        Ok(match (fits, self.items.is_empty()) {
            (false, _) => Chosen::No,
            (true, true) => Chosen::Yes,
            (true, false) => Chosen::ByItems,
        })
    }

    fn has_metadata(&self, session: &Fields<'_>) -> Result<bool, Fault> {
        if self.metadata.is_empty() {
            return Ok(true);
        }
        let Some(metadata) = metadata(session)? else { return Ok(false) };
        for (name, wanted) in &self.metadata {
            if metadata.raw(name).map(json::kind) != Some(Kind::Text)
                || metadata.text(name)?.as_ref() != Some(wanted)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
