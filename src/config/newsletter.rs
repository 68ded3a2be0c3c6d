//! The section `[newsletter]`. Without it there is no such feature.

use std::path::PathBuf;

use serde::Deserialize;

use super::key;
use crate::mail::resend::ResendSettings;
use crate::newsletter::{Confirmed, Mark, NewsletterSettings};
use crate::secret::Places;

const SETTING: &str = "newsletter.api_key";

/// As it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    service: String,
    mark_property: Option<String>,
    mark_segment: Option<String>,
    confirmed_property: Option<String>,
    confirmed_value: Option<String>,
    confirmed_segment: Option<String>,
    pub(super) subscriber_id_metadata: Option<String>,
    on_refund: Option<String>,
    pub(super) api_key_file: Option<String>,
    api_key_command: Option<Vec<String>>,
}

impl Section {
    /// The same, checked. Where the service is, and its key, are `[resend]`'s unless the section has a key of its own.
    /// `key_file` is the path that `api_key_file` means. An error is a reason in words.
    pub(super) fn check(
        self,
        key_file: Option<PathBuf>,
        resend: &ResendSettings,
    ) -> Result<NewsletterSettings, String> {
        if self.service != "resend" {
            return Err(format!("newsletter.service is `{}`; it must be `resend`", self.service));
        }
        key::check(SETTING, "re_", self.api_key_file.as_ref(), self.api_key_command.as_ref())?;
        let key = if self.api_key_file.is_some() || self.api_key_command.is_some() {
            Places { setting: SETTING, file: key_file, command: self.api_key_command, ..resend.key.clone() }
        } else {
            resend.key.clone()
        };
        let either = |what: &str, property: Option<String>, segment: Option<String>, plain: &str| match (
            property, segment,
        ) {
            (Some(_), Some(_)) => Err(format!(
                "newsletter.{what}_property and newsletter.{what}_segment are both set; keep one"
            )),
            (None, Some(segment)) => Ok((None, Some(filled(&format!("{what}_segment"), &segment)?))),
            (property, None) => {
                let name = property.unwrap_or_else(|| plain.to_owned());
                Ok((Some(filled(&format!("{what}_property"), &name)?), None))
            }
        };
        let mark = match either("mark", self.mark_property, self.mark_segment, "purchaser")? {
            (_, Some(segment)) => Mark::Segment(segment),
            (name, None) => Mark::Property(name.unwrap_or_default()),
        };
        let confirmed =
            match either("confirmed", self.confirmed_property, self.confirmed_segment, "confirmed")? {
                (_, Some(_)) if self.confirmed_value.is_some() => {
                    return Err(
                        "newsletter.confirmed_value belongs to confirmed_property, and a segment is set"
                            .to_owned(),
                    );
                }
                (_, Some(segment)) => Confirmed::Segment(segment),
                (name, None) => Confirmed::Property {
                    name: name.unwrap_or_default(),
                    value: filled("confirmed_value", self.confirmed_value.as_deref().unwrap_or("true"))?,
                },
            };
        // A contact that carries the mark would count as confirmed by it.
        let is_same = match (&mark, &confirmed) {
            (Mark::Property(mark), Confirmed::Property { name, .. }) => mark == name,
            (Mark::Segment(mark), Confirmed::Segment(segment)) => mark == segment,
            _ => false,
        };
        if is_same {
            return Err("newsletter: the mark and the sign of a confirmed contact are the same".to_owned());
        }
        let refunds_unmark = match self.on_refund.as_deref() {
            None | Some("keep") => false,
            Some("unmark") => true,
            Some(other) => {
                return Err(format!("newsletter.on_refund is `{other}`; it must be `keep` or `unmark`"));
            }
        };
        Ok(NewsletterSettings {
            base_url: resend.base_url.clone(),
            requests_per_second: resend.requests_per_second,
            key,
            mark,
            confirmed,
            refunds_unmark,
        })
    }
}

fn filled(setting: &str, text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(format!("newsletter.{setting} is empty or holds a control character"));
    }
    Ok(text.to_owned())
}
