//! The section `[resend]`.

use std::path::PathBuf;

use serde::Deserialize;

use super::key;
use crate::http::BaseUrl;
use crate::mail::resend::ResendSettings;
use crate::secret::Places;

/// What every key of the service begins with.
const SETTING: &str = "resend.api_key";
const PREFIX: &str = "re_";

/// As it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Section {
    base_url: String,
    requests_per_second: i64,
    pub(super) api_key_file: Option<String>,
    api_key_command: Option<Vec<String>>,
}

impl Default for Section {
    fn default() -> Self {
        Self {
            base_url: "https://api.resend.com".into(),
            requests_per_second: 4,
            api_key_file: None,
            api_key_command: None,
        }
    }
}

impl Section {
    /// The same, checked. `key_file` is the path that `api_key_file` means. An error is a reason in words.
    pub(super) fn check(self, key_file: Option<PathBuf>) -> Result<ResendSettings, String> {
        let base_url =
            BaseUrl::parse(self.base_url.trim()).map_err(|why| format!("resend.base_url {why}"))?;
        let requests_per_second = u32::try_from(self.requests_per_second)
            .ok()
            .filter(|pace| (1..=1000).contains(pace))
            .ok_or_else(|| {
                let pace = self.requests_per_second;
                format!("resend.requests_per_second is {pace}; it must lie between 1 and 1000")
            })?;
        key::check(SETTING, PREFIX, self.api_key_file.as_ref(), self.api_key_command.as_ref())?;
        Ok(ResendSettings {
            base_url,
            requests_per_second,
            key: Places {
                setting: SETTING,
                what: "key for the service",
                prefixes: &[PREFIX],
                file: key_file,
                command: self.api_key_command,
                credential: "resend_api_key",
                variable: "RESEND_API_KEY",
            },
        })
    }
}
