//! `stepmail.toml`: read strictly, checked when read. It builds each room's own settings; no other room imports it.
//!
//! What is left out has the value of [`SAMPLE`], which `init` writes. Relative paths start at the settings' folder, so
//! that cron and a terminal mean the same files.

mod key;
mod newsletter;
mod resend;
mod stripe;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::domain::ids::Address;
use crate::domain::policy::{Policy, Retention};
use crate::domain::time::Seconds;
use crate::mail::resend::ResendSettings;
use crate::mail::{Language, MailSettings, Sender};
use crate::newsletter::NewsletterSettings;
use crate::secret::Places;
use crate::source::Rules;
use crate::source::stripe::StripeSettings;

/// The name of the settings file.
pub const FILE_NAME: &str = "stepmail.toml";
/// The spool that is meant where the settings name none.
pub const SPOOL: &str = "spool";

/// What `init` writes: every setting with its plain value.
pub const SAMPLE: &str = include_str!("config/stepmail.toml");

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The file they came from; none when the embedded ones serve.
    pub file: Option<PathBuf>,
    /// The folder that relative paths start at.
    pub home: PathBuf,
    /// Mark, installation id.
    pub state_dir: Option<PathBuf>,
    /// Whether a ledger may lie on a network or in a synchronised folder.
    pub allow_shared_folder: bool,
    /// Who writes.
    pub mail: MailSettings,
    /// How mails leave.
    pub transport: TransportName,
    /// The mail service Resend.
    pub resend: ResendSettings,
    /// Where the outbox puts mails.
    pub outbox_dir: Option<PathBuf>,
    /// The seller's own templates.
    pub templates_dir: Option<PathBuf>,
    /// The folder in which other programs put events.
    pub spool_dir: Option<PathBuf>,
    /// R6.
    pub spacing: Seconds,
    /// R4.
    pub max_mails_per_run: usize,
    /// What of the payment service's events counts.
    pub rules: Rules,
    /// The payment service's API; none where the settings have no such section.
    pub stripe: Option<StripeSettings>,
    /// The newsletter; none where the settings have no such section.
    pub newsletter: Option<NewsletterSettings>,
    /// Where the secret of Stripe's webhook is.
    pub webhook: Places,
    /// What every template may use.
    pub vars: BTreeMap<String, String>,
}

/// `mail.transport`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportName {
    /// Each mail a file.
    Outbox,
    /// The mail service of that name.
    Resend,
}

/// A fault in the settings. Nothing is sent with settings that are not understood.
#[derive(Debug, thiserror::Error)]
#[error("settings{place}: {why}; nothing was sent or changed", place = .place.as_ref().map_or(String::new(), |place| format!(" {place}")))]
pub struct ConfigError {
    /// The file and line, where there is one.
    pub place: Option<String>,
    /// What is wrong, the setting named.
    pub why: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    state_dir: Option<String>,
    allow_shared_folder: bool,
    mail: Mail,
    outbox: Folder,
    resend: resend::Section,
    policy: Numbers,
    templates: Folder,
    spool: Folder,
    stripe: Option<stripe::Section>,
    newsletter: Option<newsletter::Section>,
    vars: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Mail {
    from: String,
    reply_to: String,
    operator: String,
    business: String,
    business_address: String,
    language: String,
    transport: String,
}

impl Default for Mail {
    fn default() -> Self {
        Self {
            from: "Example Shop <hello@example.com>".into(),
            reply_to: "hello@example.com".into(),
            operator: "owner@example.com".into(),
            business: "Example Shop".into(),
            business_address: "1-2-3 Example, Tokyo 100-0000, Japan".into(),
            language: "ja".into(),
            transport: "outbox".into(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Folder {
    dir: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Numbers {
    spacing_hours: i64,
    max_mails_per_run: i64,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { spacing_hours: 48, max_mails_per_run: 200 }
    }
}

impl Settings {
    /// Finds and reads the settings: the file named, else `stepmail.toml` here, else the one in the user's
    /// configuration folder, else the embedded ones.
    ///
    /// # Errors
    /// [`ConfigError`] with file, line and setting.
    pub fn load(named: Option<&Path>) -> Result<Self, ConfigError> {
        let user = || {
            let folder = std::env::var_os("XDG_CONFIG_HOME")
                .map(PathBuf::from)
                .or_else(|| Some(home_dir()?.join(".config")));
            folder.map(|folder| folder.join("stepmail").join(FILE_NAME))
        };
        let found = match named {
            Some(path) => Some(path.to_owned()),
            None => Some(PathBuf::from(FILE_NAME)).into_iter().chain(user()).find(|path| is_there(path)),
        };
        let Some(path) = found else { return Self::embedded() };
        let fault = |why: String| ConfigError { place: Some(format!("`{}`", path.display())), why };
        let bytes = std::fs::read(&path).map_err(|error| fault(format!("cannot be read: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|_| fault("are not UTF-8".to_owned()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let home = crate::disk::folder_of(&path).to_owned();
        let mut settings = Self::parse(text, &path.display().to_string(), home)?;
        settings.file = Some(path);
        Ok(settings)
    }

    /// The embedded settings: outbox, built-in templates.
    ///
    /// # Errors
    /// Never, unless the embedded values are broken.
    pub fn embedded() -> Result<Self, ConfigError> {
        let mut settings =
            Self::check(File::default(), PathBuf::from("."), &|why| ConfigError { place: None, why })?;
        // Without settings everything lies beside the ledger (DESIGN R12).
        settings.state_dir = None;
        settings.outbox_dir = None;
        settings.spool_dir = None;
        Ok(settings)
    }

    fn parse(text: &str, name: &str, home: PathBuf) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            // The parser says that a key stands twice, but not which.
            let key = error.span().filter(|_| error.message() == "duplicate key").and_then(|at| text.get(at));
            let key = key.map_or(String::new(), |key| format!(" `{}`", key.trim()));
            ConfigError {
                place: Some(line.map_or(format!("`{name}`"), |line| format!("`{name}` line {line}"))),
                why: format!("{}{key}", without_value(error.message())),
            }
        })?;
        Self::check(file, home, &|why| ConfigError { place: Some(format!("`{name}`")), why })
    }

    fn check(file: File, home: PathBuf, fault: &dyn Fn(String) -> ConfigError) -> Result<Self, ConfigError> {
        let address = |setting: &str, text: &str| {
            text.parse::<Address>().map_err(|error| fault(format!("mail.{setting}: {error}")))
        };
        let filled = |setting: &str, text: &str| {
            let text = text.trim();
            if text.is_empty() || text.chars().any(char::is_control) {
                return Err(fault(format!("{setting} is empty or holds a control character")));
            }
            Ok(text.to_owned())
        };
        let within = |setting: &str, value: i64, least: i64, most: i64| {
            if (least..=most).contains(&value) {
                Ok(value)
            } else {
                Err(fault(format!("{setting} is {value}; it must lie between {least} and {most}")))
            }
        };
        let folder = |text: &Option<String>, setting: &str| match text {
            None => Ok(None),
            Some(text) => resolve(&home, &filled(setting, text)?).map(Some).map_err(fault),
        };
        let transport = match file.mail.transport.as_str() {
            "outbox" => TransportName::Outbox,
            "resend" => TransportName::Resend,
            other => {
                return Err(fault(format!("mail.transport is `{other}`; it must be `outbox` or `resend`")));
            }
        };
        let key_file = folder(&file.resend.api_key_file, "resend.api_key_file")?;
        let resend = file.resend.check(key_file).map_err(fault)?;
        let rules = file.stripe.as_ref().map_or(Ok(Rules::plain(true)), stripe::Section::rules);
        let mut rules = rules.map_err(fault)?;
        let newsletter = match file.newsletter {
            Some(section) => {
                rules.subscriber_id_metadata.clone_from(&section.subscriber_id_metadata);
                let key_file = folder(&section.api_key_file, "newsletter.api_key_file")?;
                Some(section.check(key_file, &resend).map_err(fault)?)
            }
            None => None,
        };
        let stripe = match file.stripe {
            Some(section) => {
                let key_file = folder(&section.api_key_file, "stripe.api_key_file")?;
                let secret_file = folder(&section.webhook_secret_file, "stripe.webhook_secret_file")?;
                Some(section.check([key_file, secret_file]).map_err(fault)?)
            }
            None => None,
        };
        let language = match file.mail.language.as_str() {
            "ja" => Language::Ja,
            "en" => Language::En,
            other => return Err(fault(format!("mail.language is `{other}`; it must be `ja` or `en`"))),
        };
        let spacing = within("policy.spacing_hours", file.policy.spacing_hours, 0, 336)?;
        let most = within("policy.max_mails_per_run", file.policy.max_mails_per_run, 1, 1_000_000)?;
        for name in file.vars.keys() {
            if !is_identifier(name) {
                return Err(fault(format!(
                    "vars.{name} is no name a template can use (letters, digits, `_`)"
                )));
            }
        }
        Ok(Self {
            file: None,
            state_dir: Some(match folder(&file.state_dir, "state_dir")? {
                Some(folder) => folder,
                None => resolve(&home, "~/.local/state/stepmail").map_err(fault)?,
            }),
            allow_shared_folder: file.allow_shared_folder,
            mail: MailSettings {
                from: sender(&file.mail.from).map_err(|why| fault(format!("mail.from: {why}")))?,
                reply_to: address("reply_to", &file.mail.reply_to)?,
                operator: address("operator", &file.mail.operator)?,
                business: filled("mail.business", &file.mail.business)?,
                business_address: filled("mail.business_address", &file.mail.business_address)?,
                language,
            },
            transport,
            resend,
            outbox_dir: Some(folder(&file.outbox.dir, "outbox.dir")?.unwrap_or_else(|| home.join("outbox"))),
            templates_dir: folder(&file.templates.dir, "templates.dir")?,
            spool_dir: Some(folder(&file.spool.dir, "spool.dir")?.unwrap_or_else(|| home.join(SPOOL))),
            spacing: Seconds::hours(spacing),
            max_mails_per_run: usize::try_from(most).unwrap_or(usize::MAX),
            rules,
            newsletter,
            webhook: stripe.as_ref().map_or_else(stripe::webhook, |stripe| stripe.webhook.clone()),
            stripe,
            vars: file.vars,
            home,
        })
    }

    /// The numbers of the rules, for a transport that remembers keys so long.
    #[must_use]
    pub fn policy(&self, retention: Retention) -> Policy {
        Policy { spacing: self.spacing, max_mails_per_run: self.max_mails_per_run, retention }
    }

    /// The seller's values for templates of a language. What is bought has a plain name in each.
    #[must_use]
    pub fn values(&self, language: Language) -> BTreeMap<String, String> {
        let product = match language {
            Language::Ja => "ご購入の商品",
            Language::En => "your purchase",
        };
        let plain = [("product", product), ("login_url", "https://example.com/login")];
        let fixed = [
            ("business", self.mail.business.as_str()),
            ("business_address", self.mail.business_address.as_str()),
            ("reply_to", self.mail.reply_to.as_str()),
        ];
        let own = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
        let mut values: BTreeMap<String, String> = plain.into_iter().map(own).collect();
        values.extend(self.vars.clone());
        values.extend(fixed.into_iter().map(own));
        values
    }

    /// The settings that still have the example's values. Mails to real buyers would carry them.
    #[must_use]
    pub fn placeholders(&self) -> Vec<&'static str> {
        let (mail, example) = (&self.mail, Mail::default());
        let is_example = |text: &str| {
            let text = text.to_ascii_lowercase();
            ["example.com", "example.org", "example.net"].iter().any(|domain| {
                text.split(['@', '/', ':', '?', '#']).any(|part| {
                    part.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                })
            })
        };
        let login_url = self.values(mail.language).get("login_url").is_some_and(|url| is_example(url));
        [
            ("mail.from", is_example(mail.from.address.as_str())),
            ("mail.reply_to", is_example(mail.reply_to.as_str())),
            ("mail.operator", is_example(mail.operator.as_str())),
            ("mail.business", mail.business == example.business),
            ("mail.business_address", mail.business_address == example.business_address),
            ("vars.login_url", login_url),
        ]
        .into_iter()
        .filter_map(|(name, is_placeholder)| is_placeholder.then_some(name))
        .collect()
    }

    /// The folder in which other programs put events. The one that is meant where nothing is said need not be there.
    #[must_use]
    pub fn spool(&self) -> Option<PathBuf> {
        self.spool_dir.clone().filter(|dir| is_there(dir) || *dir != self.home.join(SPOOL))
    }

    /// The ledger these settings mean, unless the command line names one.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.home.join("ledger.json")
    }
}

/// The parser repeats a value of the wrong type, and that may be a key in the wrong place (C070):
/// `invalid type: string "re_…", expected a boolean`.
fn without_value(message: &str) -> String {
    match (message.find(" \""), message.rfind("\", expected")) {
        (Some(start), Some(end)) if start < end => format!("{}{}", &message[..start], &message[end + 1..]),
        _ => message.to_owned(),
    }
}

/// Reads `Name <address>` or a bare address.
fn sender(text: &str) -> Result<Sender, String> {
    let text = text.trim();
    let (name, address) = match text.strip_suffix('>').and_then(|rest| rest.rsplit_once('<')) {
        Some((name, address)) => (name.trim().trim_matches('"').trim(), address),
        None => ("", text),
    };
    if name.chars().any(char::is_control) {
        return Err("the name holds a control character".to_owned());
    }
    let address = address.parse().map_err(|error| format!("{error}"))?;
    Ok(Sender { name: (!name.is_empty()).then(|| name.to_owned()), address })
}

fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn resolve(home: &Path, text: &str) -> Result<PathBuf, String> {
    if let Some(rest) = text.strip_prefix("~/") {
        let user = home_dir()
            .ok_or_else(|| format!("`{text}` needs HOME, which is not set; write the whole path"))?;
        return Ok(user.join(rest));
    }
    Ok(home.join(text))
}

/// Whether anything stands there. What cannot be looked at, or is a link to nowhere, was meant to be the settings: to go
/// on with the embedded ones would write to buyers in the name of Example Shop.
fn is_there(path: &Path) -> bool {
    !matches!(path.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

fn home_dir() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(text, "stepmail.toml", PathBuf::from("/shop")).map_err(|error| error.to_string())
    }

    #[test]
    fn what_init_writes_is_what_is_meant_when_it_is_left_out() {
        let (written, mut left_out) = (parse(SAMPLE).unwrap(), parse("").unwrap());
        // But for one thing: where the section is left out, nobody is asked, whatever keys lie about.
        assert!(left_out.stripe.is_none());
        left_out.stripe.clone_from(&parse("[stripe]").unwrap().stripe);
        assert_eq!(format!("{written:?}"), format!("{left_out:?}"));
        assert_eq!(left_out.outbox_dir.clone().unwrap(), PathBuf::from("/shop/outbox"));
        assert_eq!(left_out.policy(Retention::Forever), Policy::default());
    }

    #[test]
    fn a_fault_names_file_line_and_setting() {
        for (text, said) in [
            ("[mail]\nbussiness = \"x\"", "line 2: unknown field `bussiness`"),
            ("[mail]\nreply_to = \"\"", "mail.reply_to: address is empty"),
            ("[mail]\nfrom = \"Shop <a b@example.com>\"", "mail.from: address has a space"),
            ("[mail]\nlanguage = \"fr\"", "mail.language is `fr`"),
            ("[mail]\ntransport = \"pigeon\"", "mail.transport is `pigeon`"),
            ("[resend]\nbase_url = \"api.resend.com\"", "resend.base_url is no address"),
            ("[resend]\nrequests_per_second = 0", "resend.requests_per_second is 0"),
            ("[resend]\napi_key = \"re_1\"", "line 2: unknown field `api_key`"),
            ("[resend]\napi_key_command = []", "resend.api_key_command is empty"),
            ("[resend]\napi_key_file = \"k\"\napi_key_command = [\"k\"]", "are both set"),
            ("[mail]\nbusiness = \"  \"", "mail.business is empty"),
            ("[policy]\nspacing_hours = -1", "policy.spacing_hours is -1"),
            ("[policy]\nmax_mails_per_run = 0", "policy.max_mails_per_run is 0"),
            ("[policy]\nspacing_hours = \"48\"", "line 2: invalid type"),
            ("[vars]\n\"a b\" = \"x\"", "vars.a b is no name"),
            ("[mail]\nfrom = \"a@b.de\"\nfrom = \"a@b.de\"", "line 3: duplicate key `from`"),
            ("state_dir = \"\"", "state_dir is empty"),
            ("[spool]\ndir = \" \"", "spool.dir is empty"),
            ("state_dir = ", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text:?} gave {error:?}");
            assert!(error.starts_with("settings `stepmail.toml`"), "{error}");
        }
    }

    #[test]
    fn c070_a_key_in_the_wrong_place_is_not_repeated() {
        for text in [
            "[resend]\napi_key_file = \"re_Sentinel_1234\"",
            "[resend]\napi_key_command = [\"re_Sentinel_1234\"]",
            "[resend]\napi_key_command = [\"echo\", \"re_Sentinel_1234\"]",
            "[resend]\napi_key_command = \"re_Sentinel_1234\"",
            "[resend]\napi_key = \"re_Sentinel_1234\"",
            "[resend]\nrequests_per_second = \"re_Sentinel_1234\"",
            "[resend]\nbase_url = \"re_Sentinel_1234\"",
            "[resend]\nbase_url = \"https://re_Sentinel_1234@api.resend.com\"",
            "[resend]\nre_Sentinel_1234",
            "resend = \"re_Sentinel_1234\"",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.contains("Sentinel"), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_left_of_the_example_is_named() {
        let own = "[mail]\nfrom = \"Shop <a@shop.example>\"\nreply_to = \"a@example.com.shop.example\"\n\
                   operator = \"a@notexample.com\"\nbusiness = \"Shop\"\nbusiness_address = \"Kyoto\"\n\
                   [vars]\nlogin_url = \"https://shop.example/login\"\n";
        assert_eq!(parse(own).unwrap().placeholders(), [""; 0]);
        assert_eq!(parse("").unwrap().placeholders().len(), 6);
        let left = own
            .replace("a@shop.example", "a@mail.Example.com")
            .replace("Kyoto", "1-2-3 Example, Tokyo 100-0000, Japan");
        assert_eq!(parse(&left).unwrap().placeholders(), ["mail.from", "mail.business_address"]);
        let left = own.replace("https://shop.example/", "https://example.com:443/");
        assert_eq!(parse(&left).unwrap().placeholders(), ["vars.login_url"]);
    }

    #[test]
    fn a_sender_has_a_name_or_none() {
        assert_eq!(sender("Example Shop <a@example.com>").unwrap().name.as_deref(), Some("Example Shop"));
        assert_eq!(sender("\"Shop, Ltd\" <a@example.com>").unwrap().name.as_deref(), Some("Shop, Ltd"));
        assert_eq!(sender("a@example.com").unwrap().name, None);
        assert!(sender("Shop").is_err());
        assert!(sender("Sh\nop <a@example.com>").is_err());
    }
}
