//! The section `[stripe]`.

use std::path::PathBuf;

use serde::Deserialize;

use super::key;
use crate::http::BaseUrl;
use crate::secret::Places;
use crate::source::Rules;
use crate::source::poll::StripeSettings;

/// As it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Section {
    pub(super) livemode: bool,
    base_url: String,
    pub(super) api_key_file: Option<String>,
    api_key_command: Option<Vec<String>>,
    on_cancel_scheduled: String,
    on_partial_refund: String,
}

impl Default for Section {
    fn default() -> Self {
        Self {
            livemode: true,
            base_url: "https://api.stripe.com".into(),
            api_key_file: None,
            api_key_command: None,
            on_cancel_scheduled: "stop".into(),
            on_partial_refund: "continue".into(),
        }
    }
}

impl Section {
    /// What of the events counts, whether they come by the API or by files.
    pub(super) fn rules(&self) -> Result<Rules, String> {
        let stops = |setting: &str, value: &str| match value {
            "stop" => Ok(true),
            "continue" => Ok(false),
            other => Err(format!("stripe.{setting} is `{other}`; it must be `stop` or `continue`")),
        };
        Ok(Rules {
            livemode: self.livemode,
            cancel_scheduled_stops: stops("on_cancel_scheduled", &self.on_cancel_scheduled)?,
            partial_refund_stops: stops("on_partial_refund", &self.on_partial_refund)?,
        })
    }

    /// The same, checked. `key_file` is the path that `api_key_file` means. An error is a reason in words.
    pub(super) fn check(self, key_file: Option<PathBuf>) -> Result<StripeSettings, String> {
        let base_url =
            BaseUrl::parse(self.base_url.trim()).map_err(|why| format!("stripe.base_url {why}"))?;
        for prefix in ["rk_", "sk_"] {
            key::check("stripe", prefix, self.api_key_file.as_ref(), self.api_key_command.as_ref())?;
        }
        Ok(StripeSettings {
            base_url,
            rules: self.rules()?,
            key: Places {
                section: "stripe",
                // A key of the other mode would read the other mode's events, and none of ours.
                prefixes: if self.livemode { &["rk_live_", "sk_live_"] } else { &["rk_test_", "sk_test_"] },
                file: key_file,
                command: self.api_key_command,
                credential: "stripe_api_key",
                variable: "STRIPE_API_KEY",
            },
        })
    }
}
