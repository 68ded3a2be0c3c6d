//! The command line. Parsing validates and touches nothing: no file, no network.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::domain::fact::Whom;
use crate::domain::ids::{Address, IdempotencyKey, SessionId};
use crate::domain::time::Timestamp;

/// Send each buyer up to four mails after a purchase: never twice, never late, never after "stop"
///
/// Started every hour by cron, launchd or a systemd timer. Everything it knows is in one JSON ledger.
#[derive(Debug, Parser)]
#[command(name = "stepmail", version, max_term_width = 100, after_long_help = EXIT_CODES)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   a person must look: a matter was raised or could not be told, or a guard or the brake holds the run
  2   wrong usage
  65  the ledger or an input is damaged
  66  there is no ledger
  73  cannot write
  75  try again later: another command holds the lock, or a mail could not be handed over
  78  the settings are wrong";

/// No mail service's ids are longer.
const MESSAGE_ID_MAX: usize = 200;

/// What holds for every command.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Read the settings from FILE [default: stepmail.toml here, else in the user's configuration folder]
    #[arg(long, global = true, value_name = "FILE", env = "STEPMAIL_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Use this ledger [default: ledger.json beside the settings]
    #[arg(long, global = true, value_name = "FILE", env = "STEPMAIL_LEDGER", hide_env_values = true)]
    pub ledger: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more on standard error; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Say only what a person must see
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Take TIME for now, as in 2026-10-08T09:00:00Z; only where no mail can leave the machine
    #[arg(long, global = true, value_name = "TIME", value_parser = Timestamp::parse)]
    pub now: Option<Timestamp>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write settings and an empty ledger; nothing that exists is overwritten
    Init(Init),
    /// Take in events, close what is over, send what is due
    Run(Run),
    /// Take in purchases and stops; send nothing
    Ingest(Ingest),
    /// Show where every purchase stands and what comes next
    Status(Status),
    /// Tell the whole story of one buyer, purchase or mail
    Show(Show),
    /// Look at settings, texts, ledger, disk and clock; send nothing and change nothing
    Check,
    /// Send nothing more to a buyer, or for one purchase
    MarkStopped(Hand),
    /// Note that a buyer has started, so that d3 is not needed
    MarkStarted(Hand),
    /// Note that a purchase is a repurchase, or that a buyer bought before this ledger existed: d0 only
    MarkRepurchase(Hand),
    /// Note that a buyer has reached the goal; it changes no mail
    MarkOutcome(Hand),
    /// Lift a stop or a pause, and open again what the stop had closed
    Resume(Resume),
    /// Say what became of mails whose result is unknown, and try rejected ones again
    Resolve(Resolve),
    /// Ask the mail service about mails that were closed with an unknown result
    ///
    /// What it has taken counts as sent; what it proves never to have taken is open again. Nothing is sent by this.
    Reconcile(Reconcile),
    /// Go on with a ledger that is a copy, or older than one that was lost, or a trial that becomes real
    ///
    /// A run that finds a copy of the ledger, or a backup that was put back, sends nothing until this is said. Of a ledger
    /// that is not the newest, whatever may have left meanwhile is closed as `unknown_result`, and `resolve` settles it.
    Adopt(Adopt),
    /// Say which contact of the newsletter a buyer is, or that none is
    Newsletter(Newsletter),
    /// Erase a buyer from everything stepmail keeps
    ///
    /// Address, name and mails go from the ledger, its journal and its backup, and from the outbox. What stays are keyed
    /// hashes in the ledger and the state folder, so that the same purchases start nothing again.
    Forget(Forget),
}

/// `init`
#[derive(Debug, Args)]
pub struct Init {
    /// The folder to set up
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Purchases paid before TIME are history and get no mail [default: now]
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub go_live: Option<Timestamp>,
    /// Write the built-in templates for editing
    #[arg(long)]
    pub templates: bool,
}

/// `run`
#[derive(Debug, Args)]
pub struct Run {
    /// Say what would be sent; send nothing and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Take in the events of this file first, or of each file in this folder; may be given several times
    ///
    /// `-` is standard input. A folder is a spool: each file in it is read once and moved to `done` in it, or to
    /// `rejected` with the reason beside it.
    #[arg(long, value_name = "PATH")]
    pub events: Vec<PathBuf>,
    /// Wait so many seconds for another command to end
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// Let up to N mails leave per run for the next 24 hours, though the brake would hold them
    #[arg(long, value_name = "N")]
    pub allow: Option<usize>,
    /// Ask the payment service for everything since TIME once more; what is known counts once
    ///
    /// What was paid before go-live becomes history, so that its buyers count as having bought. Also the way back after a
    /// wrong choice of products in the settings.
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub backfill: Option<Timestamp>,
    /// Trust the clock for this run, though a guard doubts it
    #[arg(long)]
    pub accept_clock: bool,
}

/// `ingest`
#[derive(Debug, Args)]
pub struct Ingest {
    /// A file of events, a folder of such files (each is moved to `done` in it), or `-` for standard input
    pub path: PathBuf,
    /// Take standard input for the body of a Stripe webhook, signed by this header; answer with a receipt in JSON
    ///
    /// HEADER is the request's `Stripe-Signature`, and the body must come byte for byte as it was sent. The secret is looked
    /// for in `stripe.webhook_secret_file`, `stripe.webhook_secret_command`, the credential `stripe_webhook_secret` and the
    /// variable `STRIPE_WEBHOOK_SECRET`.
    #[arg(long, value_name = "HEADER")]
    pub stripe_signature: Option<String>,
    /// How long to wait for another command to end
    #[command(flatten)]
    pub wait: Wait,
}

/// How long a hand command waits.
#[derive(Debug, Clone, Copy, Args)]
pub struct Wait {
    /// Wait so many seconds for another command to end
    #[arg(long = "wait", value_name = "SECONDS", default_value_t = 1800)]
    pub seconds: u64,
}

/// `newsletter`
#[derive(Debug, Args)]
pub struct Newsletter {
    /// What is said.
    #[command(subcommand)]
    pub ask: NewsletterAsk,
}

/// What a person says of a buyer's contact.
#[derive(Debug, Subcommand)]
pub enum NewsletterAsk {
    /// This contact is the buyer: the next run sets the purchaser mark, whatever else the contact is
    Link {
        /// The checkout session
        session: SessionId,
        /// The contact's id at the newsletter's service
        #[arg(value_parser = contact_id)]
        contact: String,
        /// How it is done.
        #[command(flatten)]
        how: How,
    },
    /// No contact is to be marked for this purchase
    Ignore {
        /// The checkout session
        session: SessionId,
        /// How it is done.
        #[command(flatten)]
        how: How,
    },
}

fn contact_id(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if (1..=200).contains(&text.len()) && text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("a contact's id has letters, digits, `-` and `_` only; look it up in the service's list"
            .to_owned())
    }
}

/// `status`
#[derive(Debug, Args)]
pub struct Status {
    /// Also list purchases that were settled long ago
    #[arg(long)]
    pub all: bool,
}

/// `show`
#[derive(Debug, Args)]
pub struct Show {
    /// A mail address, a checkout session, the key of a mail (`pp:cs_1:d3`), or its message id
    #[arg(value_name = "EMAIL|SESSION|KEY|MESSAGE-ID", value_parser = sought)]
    pub what: Sought,
}

/// What a story is asked of.
#[derive(Debug, Clone)]
pub enum Sought {
    /// A mail, by its key.
    Key(IdempotencyKey),
    /// A mail by its message id, or else a person or a purchase.
    Text {
        /// As it was typed.
        text: String,
        /// Whom it names, if it names one.
        whom: Option<Whom>,
    },
}

/// The marks.
#[derive(Debug, Args)]
pub struct Hand {
    /// A mail address or a checkout session
    #[arg(value_name = "EMAIL|SESSION", value_parser = whom)]
    pub who: Whom,
    /// Why, for your own memory
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// What every hand command can be told
    #[command(flatten)]
    pub how: How,
}

/// `adopt`
#[derive(Debug, Args)]
pub struct Adopt {
    /// No mail left after this copy was made: everything goes on where it stood
    #[arg(long, conflicts_with = "older")]
    pub newest: bool,
    /// Mails may have left after this copy or backup was made: close those rather than send them twice
    #[arg(long)]
    pub older: bool,
    /// Trust the clock, though a guard doubts it
    #[arg(long)]
    pub accept_clock: bool,
    /// What mails that only the outbox took count for, now that mails are to leave for real
    #[arg(long, value_name = "WHAT")]
    pub outbox: Option<Trial>,
    /// What every hand command can be told
    #[command(flatten)]
    pub how: How,
}

/// What becomes of mails that only the outbox took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Trial {
    /// They count as sent
    Keep,
    /// They are sent to their buyers, while their windows last
    Reopen,
}

/// `resume`
#[derive(Debug, Args)]
pub struct Resume {
    /// A mail address or a checkout session; only its own stop is lifted
    #[arg(value_name = "EMAIL|SESSION", value_parser = whom)]
    pub who: Whom,
    /// What every hand command can be told
    #[command(flatten)]
    pub how: How,
}

/// `forget`
#[derive(Debug, Args)]
pub struct Forget {
    /// The buyer's mail address, or one of their checkout sessions
    #[arg(value_name = "EMAIL|SESSION", value_parser = whom)]
    pub who: Whom,
    /// What every hand command can be told
    #[command(flatten)]
    pub how: How,
}

/// `resolve`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["keys", "since", "until"]))]
#[command(group = ArgGroup::new("found").required(true).args(["sent", "not_sent"]))]
pub struct Resolve {
    /// Mails by their keys, as in `pp:cs_1:d3`
    #[arg(value_name = "KEY", value_parser = step_key, conflicts_with_all = ["since", "until"])]
    pub keys: Vec<IdempotencyKey>,
    /// All closed ones that were tried at or after TIME, with --until
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse, requires = "until")]
    pub since: Option<Timestamp>,
    /// All closed ones that were tried before TIME, with --since
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse, requires = "since")]
    pub until: Option<Timestamp>,
    /// They were sent; for one key the mail service's message id may follow
    #[arg(long, value_name = "ID", num_args = 0..=1, value_parser = message_id)]
    pub sent: Option<Option<String>>,
    /// They never left: those whose window has not ended are sent again
    #[arg(long)]
    pub not_sent: bool,
    /// What every hand command can be told
    #[command(flatten)]
    pub how: How,
}

/// `reconcile`
#[derive(Debug, Args)]
pub struct Reconcile {
    /// Mails by their keys, as in `pp:cs_1:d3` [default: all that are closed with an unknown result]
    #[arg(value_name = "KEY", value_parser = step_key)]
    pub keys: Vec<IdempotencyKey>,
    /// What every hand command can be told
    #[command(flatten)]
    pub how: How,
}

/// What every hand command can be told.
#[derive(Debug, Clone, Copy, Args)]
pub struct How {
    /// Say what would be changed; take no lock and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How long to wait for another command to end
    #[command(flatten)]
    pub wait: Wait,
}

impl Cli {
    /// Checks what no single argument shows.
    ///
    /// # Errors
    /// Wrong usage, to be printed by clap.
    pub fn check(&self) -> Result<(), clap::Error> {
        let wrong = |kind, text: &str| Err(Self::command().error(kind, text));
        if let Command::Ingest(Ingest { path, stripe_signature: Some(_), .. }) = &self.command
            && path.as_os_str() != "-"
        {
            return wrong(
                ErrorKind::ArgumentConflict,
                "--stripe-signature signs the body on standard input; give `-` for the path",
            );
        }
        let Command::Resolve(asked) = &self.command else { return Ok(()) };
        if asked.sent.as_ref().is_some_and(Option::is_some) && asked.keys.len() != 1 {
            return wrong(
                ErrorKind::ArgumentConflict,
                "a message id after --sent belongs to exactly one key; leave it out for several",
            );
        }
        match (asked.since, asked.until) {
            (Some(since), Some(until)) if since >= until => {
                wrong(ErrorKind::ValueValidation, "--since must lie before --until")
            }
            _ => Ok(()),
        }
    }
}

/// What begins like a key is one.
fn sought(text: &str) -> Result<Sought, String> {
    if text.starts_with("pp:") {
        return text.parse::<IdempotencyKey>().map(Sought::Key).map_err(|error| error.to_string());
    }
    match whom(text) {
        Ok(whom) => Ok(Sought::Text { text: text.to_owned(), whom: Some(whom) }),
        // A message id need be no address: `abc@x`, or one in angle brackets.
        Err(_) if looks_like_message_id(text) => Ok(Sought::Text { text: text.to_owned(), whom: None }),
        Err(error) => Err(error),
    }
}

/// Something on both sides of one `@`, and no blanks.
fn looks_like_message_id(text: &str) -> bool {
    let is_plain = text.chars().all(|c| c.is_ascii_graphic());
    let two = text
        .split_once('@')
        .is_some_and(|(id, domain)| !id.is_empty() && !domain.is_empty() && !domain.contains('@'));
    is_plain && two
}

/// The key of a buyer's mail.
fn step_key(text: &str) -> Result<IdempotencyKey, String> {
    match text.parse::<IdempotencyKey>() {
        Ok(IdempotencyKey::Notice(_)) => {
            Err("is the key of a notice to you; only mails to buyers have a result to settle".to_owned())
        }
        Ok(key) => Ok(key),
        Err(error) => Err(error.to_string()),
    }
}

/// A mail service's message id: it ends up in the ledger and in reports.
fn message_id(text: &str) -> Result<String, String> {
    if text.trim_start().starts_with("pp:") {
        return Err("looks like a key; put the keys before --sent".to_owned());
    }
    if text.trim() != text || text.is_empty() || text.chars().any(char::is_control) {
        return Err("a message id is one line, without control characters or outer spaces".to_owned());
    }
    if text.chars().count() > MESSAGE_ID_MAX {
        return Err(format!("a message id has at most {MESSAGE_ID_MAX} characters"));
    }
    Ok(text.to_owned())
}

/// What holds an `@` is an address, anything else a session.
fn whom(text: &str) -> Result<Whom, String> {
    if text.contains(['@', '＠']) {
        text.parse::<Address>().map(Whom::Address).map_err(|error| error.to_string())
    } else {
        text.parse::<SessionId>().map(Whom::Session).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_person_or_a_purchase_is_told_apart_by_the_at_sign() {
        assert!(matches!(whom("a@example.com"), Ok(Whom::Address(_))));
        assert!(matches!(whom("cs_1"), Ok(Whom::Session(_))));
        assert!(whom("a@").is_err());
        assert!(whom("cs 1").is_err());
    }
}
