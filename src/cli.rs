//! The command line. Parsing validates and touches nothing: no file, no network.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::domain::fact::Whom;
use crate::domain::ids::{Address, SessionId};
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
    /// Tell the whole story of one buyer or purchase
    Show(Show),
    /// Send nothing more to a buyer, or for one purchase
    MarkStopped(Hand),
    /// Note that a buyer has started, so that d3 is not needed
    MarkStarted(Hand),
    /// Note that a purchase is a repurchase, or that a buyer bought before this ledger existed: d0 only
    MarkRepurchase(Hand),
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
    /// Take in the events of this file first (`-` is standard input); may be given several times
    #[arg(long, value_name = "PATH")]
    pub events: Vec<PathBuf>,
    /// Wait so many seconds for another command to end
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// Let up to N mails leave per run for the next 24 hours, though the brake would hold them
    #[arg(long, value_name = "N")]
    pub allow: Option<usize>,
    /// Trust the clock for this run, though a guard doubts it
    #[arg(long)]
    pub accept_clock: bool,
}

/// `ingest`
#[derive(Debug, Args)]
pub struct Ingest {
    /// A file of events, or `-` for standard input
    pub path: PathBuf,
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
    /// A mail address or a checkout session
    #[arg(value_name = "EMAIL|SESSION", value_parser = whom)]
    pub who: Whom,
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
        use clap::CommandFactory;
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
