//! One run, in DESIGN 4's order: guards, stops and purchases, decisions, mails, notices.
//!
//! A run writes facts into a [`Book`]: the locked ledger, where each is durable before the next step, or one in memory.
//! A dry run is the same code over the latter, so it cannot say something else than the run that follows it.

pub mod book;
mod close;
mod deliver;
mod feed;
mod intake;
mod listing;
mod marks;
mod notify;
mod pause;
mod readback;
mod send;
mod sort;
mod truth;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::domain::decide::{Due, counts_for_brake, decide, mails_allowed, sort_for_sending};
use crate::domain::event::Incoming;
use crate::domain::fact::Fact;
use crate::domain::guard::{Held, Known, ServiceClock, guard};
use crate::domain::ids::Step;
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::policy::Policy;
use crate::domain::time::Timestamp;
use crate::mail::{Language, MailSettings, NoClock, Templates, Transport};
use crate::newsletter::Contacts;
use crate::report::run::{Hold, Notice, RunReport};
use crate::store::StoreError;

pub use book::{Book, DryBook};
pub use feed::Feed;
pub use intake::{take_in, take_in_all};
pub use listing::Listing;
pub use send::names_brought;
pub use sort::Catalogue;
pub use truth::ask;

/// How long a run may send (DESIGN 4): a lock that is silent for 30 minutes is reclaimed, and the next hour comes.
const SENDING_MAX: Duration = Duration::from_secs(20 * 60);

/// What a run works with, besides the book.
pub struct Shop<'a> {
    /// The texts.
    pub templates: &'a Templates,
    /// The mail service.
    pub transport: &'a dyn Transport,
    /// Who writes.
    pub mail: &'a MailSettings,
    /// The seller's values for templates, by language.
    pub values: BTreeMap<Language, BTreeMap<String, String>>,
    /// The numbers of the rules, with the transport's retention.
    pub policy: Policy,
    /// Who knows what was bought; none where nobody is asked.
    pub catalogue: Option<Box<dyn Catalogue + 'a>>,
    /// The newsletter's contacts; none where the settings have no such section.
    pub newsletter: Option<&'a Contacts>,
    /// The clock.
    pub clock: &'a Clock,
}

impl Shop<'_> {
    fn values_for(&self, language: Language) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.values.get(&language).unwrap_or(&NONE)
    }
}

/// What is asked of a run.
pub struct Task<'a> {
    /// What the sources yielded that can be read without changing anything.
    pub batch: Vec<Incoming>,
    /// How the sources of stops that were asked could be read.
    pub readings: Vec<Asked>,
    /// The sources that are changed by taking from them.
    pub feed: &'a mut dyn Feed,
    /// R4: a human's go for so many mails.
    pub allow: Option<usize>,
    /// What the guards know.
    pub known: Known<'a>,
    /// When the clock was read.
    pub moment: Moment,
}

/// A source of stops that was asked before the run.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its name in the mark.
    pub source: &'static str,
    /// Why it could not be read; none where it was.
    pub failed: Option<Unread>,
    /// Until when it was read; none: until now.
    pub until: Option<Timestamp>,
    /// What lies between the last good reading and this, where the source no longer knows all of it.
    pub missed: Option<(Timestamp, Timestamp)>,
}

/// Why a source could not be read.
#[derive(Clone, Debug)]
pub enum Unread {
    /// The next run asks again.
    Later(String),
    /// A person must act: its key, or what the key may do.
    Refused(String),
}

impl Unread {
    /// In words.
    #[must_use]
    pub fn why(&self) -> &str {
        match self {
            Self::Later(why) | Self::Refused(why) => why,
        }
    }
}

/// How a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A guard holds it: nothing was recorded, and no mark is to be written.
    Held,
    /// Everything was done that could be.
    Done,
}

/// Runs, and says what it did. Sources that could not be read, and the end of the book, are the caller's.
///
/// # Errors
/// [`StoreError`] when something could not be recorded. What was done until then is in `report`.
pub fn run(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    task: Task<'_>,
    report: &mut RunReport,
) -> Result<Ended, StoreError> {
    let now = task.moment.now;
    let mut task = task;
    let held = match ask_the_time(book, shop, &mut task)? {
        Ok(held) => held,
        Err(no_clock) => {
            notify::no_clock(&no_clock, !task.batch.is_empty(), report);
            return Ok(Ended::Held);
        }
    };
    if !held.is_empty() {
        notify::guards(book, shop, &held, now, !task.batch.is_empty(), report);
        return Ok(Ended::Held);
    }
    notify::guards_passed(book);
    book.consolidate()?;
    if task.known.clock_accepted && book.ledger().newest_recorded().is_some_and(|newest| newest > now) {
        close::close_plans_from_ahead(book, shop, now, report)?;
        book.record(&[Fact::ClockAccepted { now }])?;
    }
    if let Some(mails) = task.allow {
        book.record(&[Fact::Allowed { at: now, mails }])?;
    }
    let mut listing = Listing::of(shop);
    let unread = readback::read_back(book, shop, listing.as_mut(), &task, report)?;
    let may_act = task.known.service.is_some() || !needs_time(shop, &task);
    take_in_all(book, task.batch, task.feed, shop.clock, now, report)?;
    // A reading moves on when all it gave is durable.
    let mut unread = unread;
    for asked in &task.readings {
        let only_d0 = readback::note(book, asked, now, report)?;
        unread = unread.or(only_d0);
    }
    sort::sort(book, shop, now, report)?;
    let mut mails = if may_act {
        close::close_what_is_over(book, shop, listing.as_mut(), now, report)?;
        due(book, shop, now)
    } else {
        // Nothing was due when the run began. A file that came in since waits for a run that knows the time.
        if has_due(book, shop, now) {
            report.stop_early(
                "events came in at the last moment; what is due because of them waits for the next run",
            );
        }
        Vec::new()
    };
    if let Some(why) = unread {
        // Said though nothing is due: a source that is silent for hours must not pass for one that has no news.
        mails.retain(|mail| mail.step == Step::D0);
        report.stop_early(&why);
    }
    let braked = brake(book, shop, &mut mails, now, report)?;
    let sending = send::send(book, shop, &mails, braked, task.moment, report)?;
    marks::mark(book, shop, now, report)?;
    notify::tell(book, shop, task.moment, &sending, report)?;

    // Its first run must say whose a ledger is: a copy made now is to be noticed.
    let is_new = book.ledger().last_run.is_none();
    if is_new || book.has_recorded() || book.owes_last_run(now) {
        let installation = task.known.installation.map(str::to_owned);
        let path = book.path().to_str().map(str::to_owned);
        book.record(&[Fact::Ran { at: now, installation, path }])?;
    }
    Ok(Ended::Done)
}

/// R12: names the guards that hold this run, after asking the mail service for its clock where that is needed: by a run
/// that would close or send something, and by one after a long pause.
///
/// # Errors
/// [`StoreError`]: the ledger is no longer ours.
fn ask_the_time(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    task: &mut Task<'_>,
) -> Result<Result<Vec<Held>, NoClock>, StoreError> {
    let now = task.moment.now;
    let held = guard(book.ledger(), &task.known, now);
    let is_a_pause = !held.is_empty() && held.iter().all(|held| held.kind == MatterKind::ClockAhead);
    let has_work = || !task.batch.is_empty() || task.feed.may_have_some() || has_due(book, shop, now);
    let is_told = task.known.service.is_some();
    if is_told || !needs_time(shop, task) || !(is_a_pause || held.is_empty() && has_work()) {
        return Ok(Ok(held));
    }
    if !shop.transport.keeps_time() {
        let failed = task.readings.iter().find_map(|asked| asked.failed.as_ref());
        let why = failed.map_or_else(String::new, |failed| failed.why().to_owned());
        return Ok(if is_a_pause { Ok(held) } else { Err(NoClock::Offline(why)) });
    }
    let mut said = shop.transport.service_clock();
    // A line that stumbles for a second should not cost the hour.
    for seconds in [1, 2] {
        if !matches!(said, Err(NoClock::Offline(_))) {
            break;
        }
        let wait = Duration::from_secs(seconds);
        pause::pause(book, shop, wait, shop.clock.running() + SENDING_MAX)?;
        said = shop.transport.service_clock();
    }
    Ok(match said {
        Ok(said) => {
            task.known.service = Some(ServiceClock { said, ours: shop.clock.later(task.moment) });
            Ok(guard(book.ledger(), &task.known, now))
        }
        Err(_) if is_a_pause => Ok(held),
        Err(no_clock) => Err(no_clock),
    })
}

/// Whether a run must have seen a service's clock before it closes or sends. A pretended `now` agrees with no clock, and
/// one that a human accepted needs no second witness.
fn needs_time(shop: &Shop<'_>, task: &Task<'_>) -> bool {
    let is_any = shop.transport.keeps_time() || !task.readings.is_empty();
    is_any && !shop.clock.is_fixed() && !task.known.clock_accepted
}

fn has_due(book: &dyn Book, shop: &Shop<'_>, now: Timestamp) -> bool {
    book.ledger().buyers.all().iter().any(|buyer| {
        let decision = decide(buyer, &shop.policy, now);
        decision.mail.is_some() || !decision.closings.is_empty()
    })
}

/// The mails that may leave at `now`, in the order of sending.
fn due(book: &dyn Book, shop: &Shop<'_>, now: Timestamp) -> Vec<Due> {
    let buyers = book.ledger().buyers.all().iter();
    let mut mails: Vec<Due> = buyers.filter_map(|buyer| decide(buyer, &shop.policy, now).mail).collect();
    sort_for_sending(&mut mails);
    mails
}

/// R4: with too many mails due, none of those the brake counts is sent. Says whether it holds.
fn brake(
    book: &mut dyn Book,
    shop: &Shop<'_>,
    mails: &mut Vec<Due>,
    now: Timestamp,
    report: &mut RunReport,
) -> Result<bool, StoreError> {
    let counted = mails.iter().filter(|mail| counts_for_brake(mail, now)).count();
    let allowed = mails_allowed(&shop.policy, book.ledger().allowed.as_ref(), now);
    if counted <= allowed {
        over(book, MatterKind::Brake, "run")?;
        return Ok(false);
    }
    mails.retain(|mail| !counts_for_brake(mail, now));
    report.held_by.push(Hold::Brake);
    let text = format!(
        "{counted} mails are due, and a run sends at most {allowed} unasked; none of them was sent; look at them with \
         `stepmail run --dry-run --allow {counted}`, and if they are right, run `stepmail run --allow {counted}`"
    );
    report.stop_early(&text);
    raise(book, Matter::new(MatterKind::Brake, "run", now, None, text), report)?;
    Ok(true)
}

/// Writes a matter into the ledger and the report, unless it is known.
fn raise(book: &mut dyn Book, matter: Matter, report: &mut RunReport) -> Result<(), StoreError> {
    if book.ledger().matter(matter.kind, &matter.subject).is_some() {
        return Ok(());
    }
    report.notices.push(Notice::of(&matter));
    book.record(&[Fact::Matter { matter: Box::new(matter) }])
}

/// Notes that a condition has ended.
fn over(book: &mut dyn Book, kind: MatterKind, subject: &str) -> Result<(), StoreError> {
    if book.ledger().matter(kind, subject).is_none() {
        return Ok(());
    }
    book.record(&[Fact::MatterOver { kind, subject: subject.to_owned() }])
}

#[cfg(test)]
mod tests;
