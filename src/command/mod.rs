//! The subcommands, one file each, and what they have in common.

mod adopt;
mod check;
mod desk;
mod forget;
mod ingest;
mod init;
mod mark;
mod newsletter;
mod poll;
mod reconcile;
mod resolve;
mod resume;
mod run;
mod show;
mod status;
mod webhook;

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::{Cli, Command, Global, Ingest};
use crate::clock::Clock;
use crate::config::{ConfigError, Settings, TransportName};
use crate::domain::fact::Whom;
use crate::domain::guard::{Known, MarkSeen};
use crate::domain::ledger::{MarkKind, OUTBOX};
use crate::domain::policy::Policy;
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::mail::{Language, Outbox, Resend, Templates, Transport};
use crate::newsletter::Contacts;
use crate::report::{Style, complain};
use crate::run::Shop;
use crate::source::spool::Manner;
use crate::source::{Reading, Spools, Stripe};
use crate::store::{LockedLedger, Mark, Store, StoreError, View};

/// Carries out a command line and returns how it ended. Errors that a report has not told are returned.
///
/// # Errors
/// What failed, on what, what that means for the mails, and the next step; [`Exit::of`] has its code.
pub fn carry_out(cli: Cli, style: Style) -> anyhow::Result<Exit> {
    let clock = Clock::new(cli.global.now);
    match cli.command {
        Command::Init(init) => init::init(&init, &cli.global, style, &clock),
        Command::Run(run) => run::run(&run, &cli.global, style, &clock),
        Command::Ingest(Ingest { stripe_signature: Some(header), wait, .. }) => {
            Ok(webhook::webhook(&header, wait.seconds, &Place::find(&cli.global, &clock)?, style, &clock))
        }
        Command::Ingest(ingest) => ingest::ingest(&ingest, &Place::find(&cli.global, &clock)?, style, &clock),
        Command::Status(status) => status::status(&status, &Place::find(&cli.global, &clock)?, style, &clock),
        Command::Show(show) => show::show(&show, &Place::find(&cli.global, &clock)?, style, &clock),
        Command::Adopt(adopt) => adopt::adopt(&adopt, &Place::find(&cli.global, &clock)?, style, &clock),
        Command::Check => Ok(check::check(&cli.global, style, &clock)),
        Command::MarkStopped(hand) => {
            mark::mark(MarkKind::Stopped, &hand, &Place::find(&cli.global, &clock)?, style, &clock)
        }
        Command::MarkStarted(hand) => {
            mark::mark(MarkKind::Started, &hand, &Place::find(&cli.global, &clock)?, style, &clock)
        }
        Command::MarkRepurchase(hand) => {
            mark::mark(MarkKind::Repurchase, &hand, &Place::find(&cli.global, &clock)?, style, &clock)
        }
        Command::MarkOutcome(hand) => {
            mark::mark(MarkKind::Outcome, &hand, &Place::find(&cli.global, &clock)?, style, &clock)
        }
        Command::Resume(asked) => resume::resume(&asked, &Place::find(&cli.global, &clock)?, style, &clock),
        Command::Resolve(asked) => {
            resolve::resolve(&asked, &Place::find(&cli.global, &clock)?, style, &clock)
        }
        Command::Reconcile(asked) => {
            reconcile::reconcile(&asked, &Place::find(&cli.global, &clock)?, style, &clock)
        }
        Command::Newsletter(asked) => {
            newsletter::newsletter(&asked, &Place::find(&cli.global, &clock)?, style, &clock)
        }
        Command::Forget(who) => forget::forget(&who, &Place::find(&cli.global, &clock)?, style, &clock),
    }
}

pub use webhook::NotOne;

/// How mails leave.
enum Mailer {
    Outbox(Outbox),
    Resend(Box<Resend>),
}

impl Mailer {
    fn transport(&self) -> &dyn Transport {
        match self {
            Self::Outbox(outbox) => outbox,
            Self::Resend(resend) => &**resend,
        }
    }
}

/// The settings, and where everything lies.
struct Place {
    settings: Settings,
    ledger: PathBuf,
    state_dir: PathBuf,
    outbox_dir: PathBuf,
    mailer: Mailer,
    /// The payment service, where it is to be asked.
    stripe: Option<Stripe>,
    /// The newsletter's contacts, where buyers are to be marked.
    newsletter: Option<Contacts>,
    /// The numbers of the settings, and what the transport adds.
    policy: Policy,
}

impl Place {
    fn find(global: &Global, clock: &Clock) -> anyhow::Result<Self> {
        let settings = Settings::load(global.config.as_deref())?;
        let ledger = global.ledger.clone().unwrap_or_else(|| settings.ledger());
        // Two names of one ledger must not have two outboxes and two state folders beside them.
        let behind_link = ledger.is_symlink().then(|| ledger.canonicalize().ok()).flatten();
        let beside = crate::disk::folder_of(behind_link.as_ref().unwrap_or(&ledger)).to_owned();
        let outbox_dir = settings.outbox_dir.clone().unwrap_or_else(|| beside.join("outbox"));
        let stripe = settings.stripe.clone().filter(|stripe| stripe.key.is_any());
        let stripe = stripe.map(|stripe| Stripe::new(stripe, clock));
        let mailer = match settings.transport {
            TransportName::Outbox => Mailer::Outbox(Outbox::new(&outbox_dir)),
            TransportName::Resend => Mailer::Resend(Box::new(Resend::new(settings.resend.clone(), clock))),
        };
        let mails = match &mailer {
            Mailer::Resend(resend) => Some(resend.service()),
            Mailer::Outbox(_) => None,
        };
        let newsletter = settings.newsletter.clone();
        Ok(Self {
            newsletter: newsletter.map(|newsletter| Contacts::new(newsletter, mails, clock)),
            state_dir: settings.state_dir.clone().unwrap_or_else(|| beside.join(".stepmail")),
            policy: settings.policy(mailer.transport().retention()),
            ledger,
            outbox_dir,
            mailer,
            stripe,
            settings,
        })
    }

    fn transport(&self) -> &dyn Transport {
        self.mailer.transport()
    }

    /// What a run works with.
    fn shop<'a>(&'a self, templates: &'a Templates, clock: &'a Clock) -> Shop<'a> {
        let settings = &self.settings;
        Shop {
            templates,
            transport: self.transport(),
            mail: &settings.mail,
            values: Language::ALL.into_iter().map(|language| (language, settings.values(language))).collect(),
            policy: self.policy.clone(),
            catalogue: Some(Box::new(poll::Counter {
                stripe: self.stripe.as_ref().filter(|stripe| asks(stripe, clock)),
                wanted: &settings.rules.choice.items,
            })),
            newsletter: self.newsletter.as_ref().filter(|_| self.no_marking(clock).is_none()),
            clock,
        }
    }

    /// Makes sure that mails can be sent before anything is done: a key, and settings that are the seller's own. Nothing is
    /// asked of the service.
    ///
    /// # Errors
    /// [`ConfigError`], [`SecretError`](crate::secret::SecretError): no mail may be sent with these settings.
    fn ready(&self) -> anyhow::Result<()> {
        match &self.stripe {
            Some(stripe) => drop(stripe.unlock()?),
            None if !self.settings.rules.choice.items.is_empty() => {
                let why = "stripe.prices and stripe.products need a key, since no event says what was bought; name one, or                            choose by payment_links or metadata";
                let place = self.settings.file.as_ref().map(|file| format!("`{}`", file.display()));
                return Err(ConfigError { place, why: why.to_owned() }.into());
            }
            None => {}
        }
        self.ready_to_mail()
    }

    /// The same for a command that asks the mail service alone.
    fn ready_to_mail(&self) -> anyhow::Result<()> {
        let Mailer::Resend(resend) = &self.mailer else { return Ok(()) };
        let placeholders = self.settings.placeholders();
        if !resend.stays_here() && !placeholders.is_empty() {
            let file = self.settings.file.as_ref().map(|file| format!("`{}`", file.display()));
            return Err(ConfigError {
                place: file,
                why: format!(
                    "{} still have the example's values, and mails would leave with them; put your own there",
                    placeholders.join(", ")
                ),
            }
            .into());
        }
        resend.unlock()?;
        Ok(())
    }

    /// `--now` decides over real mails nowhere.
    ///
    /// # Errors
    /// [`RealTime`].
    fn allows(&self, clock: &Clock) -> Result<(), RealTime> {
        if clock.is_fixed() && !self.transport().stays_here() { Err(RealTime) } else { Ok(()) }
    }

    /// Why no contact is looked up or marked, though the settings say so: a rehearsal must not reach real readers.
    fn no_marking(&self, clock: &Clock) -> Option<&'static str> {
        if self.newsletter.as_ref().is_some_and(Contacts::stays_here) {
            None
        } else if clock.is_fixed() {
            Some("not asked, since --now pretends a time")
        } else if !self.settings.rules.livemode {
            Some("not asked, since stripe.livemode is false: who buys in the test mode is no buyer")
        } else {
            None
        }
    }

    /// While this ledger is ours, other services may be asked.
    fn keep_alive(&self, book: &LockedLedger) {
        if let Some(stripe) = &self.stripe {
            stripe.while_alive(book.pulse());
        }
        if let Some(contacts) = &self.newsletter {
            contacts.while_alive(book.pulse());
        }
    }

    /// Folders of events; none of them may be one in which stepmail keeps its own files.
    fn spools(&self, named: Vec<PathBuf>, manner: Manner) -> Spools {
        let beside = crate::disk::folder_of(&self.ledger);
        let mut ours = vec![
            beside.to_owned(),
            self.settings.home.clone(),
            self.state_dir.clone(),
            self.outbox_dir.clone(),
        ];
        // Where the ledger is reached through a link, the files lie behind it.
        ours.extend(self.ledger.canonicalize().ok().and_then(|ledger| Some(ledger.parent()?.to_owned())));
        ours.extend(self.settings.templates_dir.clone());
        Spools::new(named, &ours, manner, self.settings.rules.clone())
    }

    fn templates(&self) -> Templates {
        match &self.settings.templates_dir {
            Some(folder) => Templates::from_folder(folder),
            None => Templates::builtin(),
        }
    }

    fn store(&self) -> Result<Store, StoreError> {
        Store::new(&self.ledger, &self.state_dir, self.settings.allow_shared_folder)
    }

    /// Looks at the ledger without the lock; writes nothing.
    fn view(&self) -> Result<View, StoreError> {
        let view = self.store()?.view()?;
        for note in &view.notes {
            tracing::warn!("{note}");
        }
        Ok(view)
    }

    /// Takes the lock, and says so when it has to wait.
    fn lock(&self, seconds: u64, clock: &Clock, style: Style) -> anyhow::Result<LockedLedger> {
        self.allows(clock)?;
        let ledger = self.store()?.lock(Duration::from_secs(seconds), clock, |holder| {
            if style != Style::Quiet {
                complain(&format!("stepmail: waiting for another command to end: {holder}"));
            }
        })?;
        for note in ledger.notes() {
            tracing::warn!("{note}");
        }
        Ok(ledger)
    }
}

/// Whether the payment service is asked: a pretended time tells it nothing, and it tells a pretended time nothing.
fn asks(stripe: &Stripe, clock: &Clock) -> bool {
    stripe.stays_here() || !clock.is_fixed()
}

/// The mark knows of every run, the ledger of those that had something to record.
fn last_run(view: &View) -> Option<Timestamp> {
    let by_ledger = view.ledger.last_run.as_ref().map(|run| run.at);
    view.mark.as_ref().and_then(|mark| mark.last_run_at).max(by_ledger)
}

/// Writes the sum of a command, and says what was odd about it. `ran` is the time of a run, none for other commands.
fn finish(book: LockedLedger, ran: Option<Timestamp>) -> Result<(), StoreError> {
    for note in book.finish(ran)?.notes {
        tracing::warn!("{note}");
    }
    Ok(())
}

/// 2026-12-01T00:00:00Z: no clock that is right lies before the day this version was released (R12). To be set anew
/// with every release.
const RELEASED_UNIX: i64 = 1_796_083_200;

/// A pipe cannot be read twice, and whoever wrote into it has no other way to know.
const PIPE_LOST: &str = "the events from standard input were read and not taken in: hand them in again";

/// What the guards know of a ledger besides what it holds.
#[derive(Default)]
struct Seen {
    installation: Option<String>,
    mark: Option<Mark>,
    journal_ahead: bool,
    former: Option<String>,
}

impl Seen {
    fn of(book: &LockedLedger) -> Self {
        Self {
            installation: book.installation().map(str::to_owned),
            mark: book.mark().cloned(),
            journal_ahead: book.journal_ahead(),
            former: in_words(book.former_place()),
        }
    }

    fn in_view(view: &View) -> Self {
        Self {
            installation: view.installation.clone(),
            mark: view.mark.clone(),
            journal_ahead: view.journal_ahead,
            former: in_words(view.former_place()),
        }
    }

    /// Refuses a ledger that was copied here from a place that still holds it.
    fn refuse_copy(&self) -> Result<(), Refused> {
        self.former.as_ref().map_or(Ok(()), |former| {
            Err(Refused {
                why: format!(
                    "this ledger ran at `{former}` before, and is still there: one of the two is a copy, and what is said \
                     to one never reaches the other"
                ),
                next: "say it to the one that runs, or stop that one's schedule and remove or rename it".to_owned(),
            })
        })
    }

    fn known(&self, transport: &dyn Transport, clock: &Clock, clock_accepted: bool) -> Known<'_> {
        let mark = self.mark.as_ref();
        Known {
            installation: self.installation.as_deref(),
            mark: mark.map(|mark| MarkSeen { generation: mark.generation, last_run_at: mark.last_run_at }),
            journal_ahead: self.journal_ahead,
            former: self.former.as_deref(),
            real: transport.name() != OUTBOX,
            released: (!clock.is_fixed()).then(released).flatten(),
            service: None,
            clock_accepted,
        }
    }
}

fn in_words(path: Option<PathBuf>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

fn released() -> Option<Timestamp> {
    Timestamp::from_unix(RELEASED_UNIX).ok()
}

/// How a buyer or session is named in answers. The person at the terminal typed it, so it is not masked.
fn said(whom: &Whom) -> String {
    match whom {
        Whom::Address(address) => address.to_string(),
        Whom::Session(session) => format!("session {session}"),
    }
}

/// The ledger does not know whom a command asks about.
#[derive(Debug, thiserror::Error)]
#[error("{what} is not in `{}`; check the spelling and the ledger", ledger.display())]
pub struct NotKnown {
    what: String,
    ledger: PathBuf,
}

/// A pretended time beside a mail service that is real.
#[derive(Debug, thiserror::Error)]
#[error(
    "--now is for rehearsals: it works with --dry-run, with the outbox, and with a mail service on this machine, and \
     mails can leave by these settings; nothing was sent or changed; leave it out"
)]
pub struct RealTime;

/// A command that was not carried out, since a person must decide or do something first.
#[derive(Debug, thiserror::Error)]
#[error("{why}; nothing was changed; {next}")]
pub struct Refused {
    why: String,
    next: String,
}

/// Says when events were dropped: a newcomer's first events are test events, and nothing else would tell why nothing
/// happens.
fn say_what_was_dropped(reading: &Reading, livemode: bool) {
    if reading.other_mode > 0 {
        tracing::warn!(
            events = reading.other_mode,
            "events of Stripe's {} were dropped, since stripe.livemode is {livemode}",
            if livemode { "test mode" } else { "live mode" }
        );
    }
    if reading.thin > 0 {
        tracing::warn!(events = reading.thin, "thin events were dropped: they do not hold what they tell of");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_date_is_the_one_the_comment_says() {
        assert_eq!(released().unwrap().to_string(), "2026-12-01T00:00:00Z");
    }
}
