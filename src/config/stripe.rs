//! The section `[stripe]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::key;
use crate::http::BaseUrl;
use crate::secret::Places;
use crate::source::stripe::StripeSettings;
use crate::source::{Choice, Rules};

const KEY: &str = "stripe.api_key";
const WEBHOOK: &str = "stripe.webhook_secret";

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
    payment_links: Option<Vec<String>>,
    prices: Option<Vec<String>>,
    products: Option<Vec<String>>,
    modes: Option<Vec<String>>,
    metadata: BTreeMap<String, String>,
    pub(super) webhook_secret_file: Option<String>,
    webhook_secret_command: Option<Vec<String>>,
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
            payment_links: None,
            prices: None,
            products: None,
            modes: None,
            metadata: BTreeMap::new(),
            webhook_secret_file: None,
            webhook_secret_command: None,
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
            choice: self.choice()?,
            subscriber_id_metadata: None,
        })
    }

    /// A misspelt id would shut out every buyer, and say nothing.
    fn choice(&self) -> Result<Choice, String> {
        let ids = |setting: &str, list: &Option<Vec<String>>, prefix: &str| {
            let Some(list) = list else { return Ok(Vec::new()) };
            if list.is_empty() {
                return Err(format!("stripe.{setting} is empty, so that nothing would count; leave it out"));
            }
            let is_odd = |id: &&String| {
                let rest = id.strip_prefix(prefix).unwrap_or_default();
                rest.is_empty() || !rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            };
            match list.iter().find(is_odd) {
                Some(odd) => Err(format!("stripe.{setting} has `{odd}`; an id begins with `{prefix}`")),
                None => Ok(list.clone()),
            }
        };
        let modes = self.modes.clone().unwrap_or_default();
        if self.modes.as_ref().is_some_and(Vec::is_empty) {
            return Err("stripe.modes is empty, so that nothing would count; leave it out".to_owned());
        }
        if let Some(odd) = modes.iter().find(|mode| !["payment", "subscription"].contains(&mode.as_str())) {
            return Err(format!("stripe.modes has `{odd}`; it may have `payment` and `subscription`"));
        }
        let mut items = ids("prices", &self.prices, "price_")?;
        // Older prices are called plans; products of those days have names of the seller's own.
        let products = self.products.clone().unwrap_or_default();
        if self.products.as_ref().is_some_and(Vec::is_empty) || products.iter().any(|id| id.trim().is_empty())
        {
            return Err("stripe.products is empty, so that nothing would count; leave it out".to_owned());
        }
        items.extend(products);
        Ok(Choice {
            payment_links: ids("payment_links", &self.payment_links, "plink_")?,
            modes,
            metadata: self.metadata.clone(),
            items,
        })
    }

    /// The same, checked. `files` are the paths that `api_key_file` and `webhook_secret_file` mean. An error is a reason in
    /// words.
    pub(super) fn check(self, files: [Option<PathBuf>; 2]) -> Result<StripeSettings, String> {
        let base_url =
            BaseUrl::parse(self.base_url.trim()).map_err(|why| format!("stripe.base_url {why}"))?;
        for prefix in ["rk_", "sk_"] {
            key::check(KEY, prefix, self.api_key_file.as_ref(), self.api_key_command.as_ref())?;
        }
        let (file, command) = (self.webhook_secret_file.as_ref(), self.webhook_secret_command.as_ref());
        key::check(WEBHOOK, "whsec_", file, command)?;
        let [key_file, secret_file] = files;
        Ok(StripeSettings {
            base_url,
            rules: self.rules()?,
            key: Places {
                setting: KEY,
                what: "key for the service",
                // A key of the other mode would read the other mode's events, and none of ours.
                prefixes: if self.livemode { &["rk_live_", "sk_live_"] } else { &["rk_test_", "sk_test_"] },
                file: key_file,
                command: self.api_key_command,
                credential: "stripe_api_key",
                variable: "STRIPE_API_KEY",
            },
            webhook: Places { file: secret_file, command: self.webhook_secret_command, ..webhook() },
        })
    }
}

/// Where the secret of a webhook is, where the settings do not name a place.
pub(super) fn webhook() -> Places {
    Places {
        setting: WEBHOOK,
        what: "secret of the webhook",
        prefixes: &["whsec_"],
        file: None,
        command: None,
        credential: "stripe_webhook_secret",
        variable: "STRIPE_WEBHOOK_SECRET",
    }
}
