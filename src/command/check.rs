//! `check`: everything a run needs, looked at without running. It takes no lock and writes not one byte; of a mail service
//! it asks what can be asked without sending or changing anything.
//!
//! It has no rules of its own: what it calls a fault is what a run would refuse or be held by, asked of the same code, and
//! goes on after one as far as it can, so that a shop is mended in one go.

use std::collections::BTreeSet;
use std::path::Path;

use crate::cli::Global;
use crate::clock::Clock;
use crate::disk;
use crate::domain::guard::{ServiceClock, guard};
use crate::domain::ledger::Ledger;
use crate::domain::matter::MatterKind;
use crate::domain::time::{Seconds, Timestamp};
use crate::exit::Exit;
use crate::mail::Language;
use crate::mail::resend::{DomainSeen, Rights};
use crate::newsletter::ContactError;
use crate::report::Style;
use crate::report::check::{CheckReport, Item};
use crate::run::names_brought;
use crate::source::PollError;
use crate::source::spool::{Manner, REASON, REJECTED, rejected};
use crate::store::{LockSeen, StateSeen, Store, StoreError, StoreErrorKind, View, look_at_state};

use super::{Mailer, Place, Seen};

/// A schedule that runs every hour is late after this: one run may fall into sleep or find the lock held.
const LATE: Seconds = Seconds::hours(3);

pub(super) fn check(global: &Global, style: Style, clock: &Clock) -> Exit {
    let now = clock.now();
    let mut report = CheckReport::new(now);
    match Place::find(global, clock) {
        Ok(place) => everything(&place, clock, now, &mut report),
        Err(error) => {
            let text = format!("{error}; mend that first: without settings nothing else can be looked at");
            report.fault(Item::Settings, Exit::of(&error), text);
        }
    }
    report.print(style);
    report.exit
}

/// In the order in which a run meets it, so that the first fault is the one a run would end with.
fn everything(place: &Place, clock: &Clock, now: Timestamp, report: &mut CheckReport) {
    settings(place, report);
    mail(place, report);
    stripe(place, clock, report);
    newsletter(place, clock, report);
    let store = open(place, report);
    state(place, report);
    if let Some(store) = &store {
        lock(store, clock, report);
    }
    // A state folder that cannot be read has been told; the ledger cannot be looked at beside it.
    let view = store.filter(|_| !report.has_fault(Item::State)).and_then(|store| ledger(&store, report));
    guards(place, view.as_ref(), clock, now, report);
    if let Some(view) = &view {
        match view.room_to_send() {
            Ok(()) => report.ok(Item::Disk, "has room for the results of a run"),
            Err(error) => refused(report, Item::Disk, &error),
        }
    }
    templates(place, view.as_ref(), report);
    spool(place, view.as_ref(), clock, report);
    if matches!(place.mailer, Mailer::Outbox(_)) {
        outbox(&place.outbox_dir, report);
    }
    if let Some(view) = &view {
        last_run(view, now, report);
        matters(&view.ledger, report);
    } else {
        for item in [Item::Disk, Item::LastRun, Item::Matters] {
            report.skip(item, "not looked at, since there is no ledger that can be read");
        }
    }
}

fn refused(report: &mut CheckReport, item: Item, error: &StoreError) {
    report.fault(item, error.kind().into(), error.to_string());
}

fn settings(place: &Place, report: &mut CheckReport) {
    let named = place.settings.file.as_ref().map(|file| format!("`{}`", file.display()));
    report
        .ok(Item::Settings, named.clone().unwrap_or_else(|| "no file; the built-in values serve".to_owned()));
    let file = named.unwrap_or_else(|| "a `stepmail.toml` (`stepmail init` writes one)".to_owned());
    let placeholders = place.settings.placeholders();
    if !placeholders.is_empty() && !place.transport().stays_here() {
        let text = format!(
            "{} still have the example's values, and mails would leave with them, so none does; put your own into {file}",
            placeholders.join(", ")
        );
        report.fault(Item::Settings, Exit::Settings, text);
    } else if !placeholders.is_empty() {
        let text = format!(
            "{} still have the example's values; put your own into {file} before mails go to real buyers",
            placeholders.join(", ")
        );
        report.warn(Item::Settings, text);
    }
}

/// Whether the mail service will take mails, as far as it tells without one.
fn mail(place: &Place, report: &mut CheckReport) {
    let Mailer::Resend(resend) = &place.mailer else { return };
    let found = resend.unlock().map(str::to_owned).unwrap_or_default();
    let look = resend.look(&place.settings.mail.from.address);
    match look.rights {
        Rights::Full => report.ok(
            Item::Mail,
            format!("resend; the key in {found} may send mails and read what became of them"),
        ),
        Rights::SendOnly => report.ok(
            Item::Mail,
            format!(
                "resend; the key in {found} may send mails and not read what became of them: bounces and complaints stop \
                 nobody, and lost answers are for you to look up; a key with full access can do both. Whether the domain is \
                 verified, the first mail will tell"
            ),
        ),
        Rights::Refused(reason) => {
            let text = format!(
                "resend refuses the key in {found}: {reason}; no mail leaves; make a new key there, or put the right one there"
            );
            report.fault(Item::Mail, Exit::Look, text);
        }
        Rights::NotKnown(reason) => {
            let text = format!("resend cannot be asked: {reason}; runs close and send nothing until it can");
            report.fault(Item::Mail, Exit::Later, text);
        }
        Rights::NoKey(error) => report.fault(Item::Mail, Exit::Settings, error.to_string()),
    }
    let from = place.settings.mail.from.address.buyer();
    let domain = from.as_str().rsplit_once('@').map_or("", |(_, domain)| domain);
    let refused = |report: &mut CheckReport, why: &str| {
        let text = format!(
            "mails from {domain} (mail.from) are refused: {why}; add the domain at resend and verify it there, or write from \
             one that is verified"
        );
        report.fault(Item::Mail, Exit::Look, text);
    };
    match look.domain {
        Some(DomainSeen::Verified) => report.ok(Item::Mail, format!("mails from {domain} are taken")),
        Some(DomainSeen::Not(status)) => {
            refused(report, &format!("the domain is there, and not verified (`{status}`)"));
        }
        Some(DomainSeen::Absent) => refused(report, "the account of this key does not have the domain"),
        Some(DomainSeen::NotKnown(why)) => {
            report.warn(Item::Mail, format!("whether mails from {domain} are taken is not known: {why}"));
        }
        None => {}
    }
}

/// Whether the newsletter's contacts can be read. Whether they can be marked is seen at the first mark only.
fn newsletter(place: &Place, clock: &Clock, report: &mut CheckReport) {
    let Some(contacts) = &place.newsletter else { return };
    let found = match contacts.unlock() {
        Ok(found) => found.to_owned(),
        Err(error) => return report.fault(Item::Newsletter, Exit::Settings, error.to_string()),
    };
    if let Some(why) = place.no_marking(clock) {
        return report.skip(Item::Newsletter, why);
    }
    match contacts.page(None) {
        Ok(_) => report.ok(Item::Newsletter, format!("with the key in {found} contacts may be read")),
        Err(ContactError::Refused(why)) => {
            let text = format!(
                "contacts may not be read with the key in {found} ({why}); nobody is marked until that is mended"
            );
            report.fault(Item::Newsletter, Exit::Look, text);
        }
        Err(ContactError::Failed(why)) => {
            let text = format!("the contacts cannot be read ({why}); every run tries again");
            report.fault(Item::Newsletter, Exit::Later, text);
        }
    }
}

/// Whether the payment service can be read: everything that tells of purchases and stops, thing by thing.
fn stripe(place: &Place, clock: &Clock, report: &mut CheckReport) {
    let Some(stripe) = &place.stripe else { return };
    let found = match stripe.unlock() {
        Ok(found) => found.to_owned(),
        Err(error) => return report.fault(Item::Stripe, Exit::Settings, error.to_string()),
    };
    if clock.is_fixed() && !stripe.stays_here() {
        return report.skip(Item::Stripe, "not asked, since --now pretends a time");
    }
    if stripe.key_is_too_strong() {
        let text = format!(
            "the key in {found} can move money; a restricted one (rk_…) that may only read is enough, and better to lose"
        );
        report.warn(Item::Stripe, text);
    }
    match stripe.look() {
        Ok(missing) if missing.is_empty() => {
            report.ok(Item::Stripe, format!("the key in {found} may read what tells of purchases and stops"));
            // A choice that fits nothing looks like a day without sales.
            report.ok(
                Item::Stripe,
                format!("purchases that count: {}", place.settings.rules.choice.in_words()),
            );
        }
        Ok(missing) => {
            for (what, error) in missing {
                let text = format!(
                    "the key in {found} may not read {what} ({error}); what happens to them would go unnoticed; allow it there"
                );
                report.fault(Item::Stripe, Exit::Look, text);
            }
        }
        Err(error @ PollError::Refused(_)) => {
            let text = format!(
                "{error}; neither purchases nor refunds are learned of; put another key into {found}"
            );
            report.fault(Item::Stripe, Exit::Look, text);
        }
        Err(error) => {
            report.fault(Item::Stripe, Exit::Later, format!("{error}; the next run asks again"));
        }
    }
}

/// Where the ledger lies. If only its folder's kind is against it, the rest is looked at all the same.
fn open(place: &Place, report: &mut CheckReport) -> Option<Store> {
    let error = match place.store() {
        Ok(store) => {
            let folder = disk::folder_of(store.path());
            match disk::may_write(folder) {
                Ok(()) => report.ok(Item::Folder, format!("`{}` may hold a ledger", folder.display())),
                Err(error) => cannot_write(report, Item::Folder, Exit::CannotWrite, &error),
            }
            return Some(store);
        }
        Err(error) => error,
    };
    let item = match error.kind() {
        StoreErrorKind::Missing | StoreErrorKind::Damaged => Item::Ledger,
        _ => Item::Folder,
    };
    refused(report, item, &error);
    Store::new(&place.ledger, &place.state_dir, true).ok()
}

fn cannot_write(report: &mut CheckReport, item: Item, exit: Exit, error: &disk::FileError) {
    let text = format!("{error}; run stepmail as the user it belongs to, on a disk that can be written");
    report.fault(item, exit, text);
}

/// R12: who we are, and whether a mark can be kept.
fn state(place: &Place, report: &mut CheckReport) {
    let folder = place.state_dir.display();
    match look_at_state(&place.state_dir) {
        Ok(StateSeen::Known(id)) => {
            report.ok(Item::State, format!("`{folder}`, installation {}", &id[..8]));
        }
        Ok(StateSeen::New) => report.ok(Item::State, format!("`{folder}` is made by the first run")),
        Ok(StateSeen::Unusable(why)) => {
            let text = format!(
                "{why}; runs go on, but a copy of the ledger or a backup that is put back is not noticed; make the \
                 folder writable"
            );
            report.warn(Item::State, text);
        }
        Err(error) => refused(report, Item::State, &error),
    }
}

fn lock(store: &Store, clock: &Clock, report: &mut CheckReport) {
    match store.look_at_lock(clock) {
        Ok(LockSeen::Free) => report.ok(Item::Lock, "free"),
        Ok(LockSeen::Held(holder)) => {
            report.ok(Item::Lock, format!("a command is at work: {holder}"));
        }
        Ok(LockSeen::LeftBehind(holder)) => {
            let text = format!(
                "left by a command that did not end as it should ({holder}); the next one takes over"
            );
            report.ok(Item::Lock, text);
        }
        Ok(LockSeen::Silent(holder)) => {
            let process = holder.who.as_ref().map_or_else(String::new, |who| format!(" {}", who.pid));
            let text = format!(
                "`{}` is held in silence ({holder}): that command hangs, or died; if process{process} is still \
                 stepmail, end it, and the next run takes over",
                holder.lock.display()
            );
            report.fault(Item::Lock, Exit::Look, text);
        }
        Ok(LockSeen::Foreign(holder)) => {
            let text = format!(
                "`{}` is not of this installation ({holder}), and counts as held until it has been silent for 30 \
                 minutes; see that no other machine works on this ledger",
                holder.lock.display()
            );
            report.warn(Item::Lock, text);
        }
        // Told with the state folder, whose id is needed here.
        Err(_) if report.has_fault(Item::State) => {}
        Err(error) => refused(report, Item::Lock, &error),
    }
}

fn ledger(store: &Store, report: &mut CheckReport) -> Option<View> {
    let view = match store.view() {
        Ok(view) => view,
        // A folder that must not hold it was told already.
        Err(_) if report.has_fault(Item::Folder) => return None,
        Err(error) => {
            refused(report, Item::Ledger, &error);
            return None;
        }
    };
    let purchases: usize = view.ledger.buyers.all().iter().map(|buyer| buyer.purchases.len()).sum();
    report.ok(
        Item::Ledger,
        format!(
            "`{}`, generation {}; buyers {}, purchases {purchases}; live since {}",
            store.path().display(),
            view.ledger.generation,
            view.ledger.buyers.len(),
            view.ledger.go_live
        ),
    );
    if view.unsaved > 0 {
        let text = format!(
            "its journal has {} record(s) of a command that is at work, or died: nothing of them is lost, the next run \
             takes them in",
            view.unsaved
        );
        report.ok(Item::Ledger, text);
    }
    for note in &view.notes {
        report.ok(Item::Ledger, note.as_str());
    }
    Some(view)
}

/// R12, by the run's own guards. Without a ledger what can be known of the clock is known.
fn guards(place: &Place, view: Option<&View>, clock: &Clock, now: Timestamp, report: &mut CheckReport) {
    let seen = view.map_or_else(Seen::default, Seen::in_view);
    let mut known = seen.known(place.transport(), clock, false);
    if place.transport().keeps_time() && !clock.is_fixed() {
        // A service that cannot be asked was told as such.
        let said = place.transport().service_clock().ok();
        known.service = said.map(|said| ServiceClock { said, ours: clock.now() });
    }
    let nothing = Ledger::empty(now, None);
    for held in guard(view.map_or(&nothing, |view| &view.ledger), &known, now) {
        let item = match held.kind {
            MatterKind::OtherInstallation => Item::State,
            MatterKind::Restored | MatterKind::Trial => Item::Ledger,
            _ => Item::Clock,
        };
        report.fault(item, Exit::Look, held.text);
    }
    if !report.has_fault(Item::Clock) {
        report.ok(Item::Clock, now.to_string());
    }
}

/// R11: every text in every language this shop writes in, filled as a run fills it.
fn templates(place: &Place, view: Option<&View>, report: &mut CheckReport) {
    let settings = &place.settings;
    let templates = place.templates();
    let brought = view.map_or_else(BTreeSet::new, |view| names_brought(&view.ledger));
    let own = settings.mail.language;
    let faults = templates.faults_offered(own, |language| settings.values(language), &brought);
    for fault in &faults {
        report.fault(Item::Templates, Exit::Look, format!("{fault}; its mails are held until it is mended"));
    }
    if faults.is_empty() {
        let offered: Vec<&str> = Language::ALL
            .into_iter()
            .filter(|language| *language == own || templates.offers(*language))
            .map(Language::name)
            .collect();
        let source = settings
            .templates_dir
            .as_ref()
            .map_or_else(|| "built in".to_owned(), |folder| format!("`{}`", folder.display()));
        report.ok(Item::Templates, format!("{source}; d0, d3, d7, d14 in {}", offered.join(" and ")));
    }
}

/// Where other programs put events. A run says each time that it cannot read there, and ends with 65.
fn spool(place: &Place, view: Option<&View>, clock: &Clock, report: &mut CheckReport) {
    let Some(folder) = place.settings.spool() else {
        report.ok(Item::Spool, "none; events come by --events only");
        return;
    };
    let named = folder.display();
    if !folder.is_dir() {
        let text = format!(
            "`{named}` is no folder; events that were put there are not taken in; make it, or name another"
        );
        return report.fault(Item::Spool, Exit::Damaged, text);
    }
    if let Err(error) = disk::may_write(&folder) {
        return cannot_write(report, Item::Spool, Exit::Damaged, &error);
    }
    // What a run would find there, and read where it lies.
    let Some(view) = view else {
        return report.ok(Item::Spool, format!("`{named}`; its files are not looked at without a ledger"));
    };
    let mut seen = place.spools(vec![folder.clone()], Manner::Look);
    seen.take(view.ledger.ledger_id.as_deref(), clock.machine());
    seen.admitted(&|_| false);
    let waiting = match seen.waiting().len() {
        0 => String::new(),
        count => {
            format!("; {count} file(s) without a line break at the end wait until they are 5 minutes old")
        }
    };
    let troubles = seen.told();
    for text in &troubles {
        report.fault(Item::Spool, Exit::Damaged, text);
    }
    match rejected(&folder) {
        0 if !troubles.is_empty() && waiting.is_empty() => {}
        0 => report.ok(Item::Spool, format!("`{named}`{waiting}")),
        count => report.warn(
            Item::Spool,
            format!(
                "`{named}/{REJECTED}` holds {count} file(s) of which something could not be read; a `{REASON}` beside \
                 each says what; mend it and move it back{waiting}"
            ),
        ),
    }
}

/// A mail that finds no folder waits for the next run, with 75.
fn outbox(folder: &Path, report: &mut CheckReport) {
    match disk::may_make_folder(folder) {
        Ok(()) => report.ok(Item::Outbox, format!("`{}`", folder.display())),
        Err(error) => cannot_write(report, Item::Outbox, Exit::Later, &error),
    }
}

fn last_run(view: &View, now: Timestamp, report: &mut CheckReport) {
    let schedule = "is the schedule on? See \"Every hour\" in the README";
    match super::last_run(view) {
        None => report.warn(Item::LastRun, format!("never yet; {schedule}")),
        Some(at) if now - at > LATE => {
            report.warn(Item::LastRun, format!("{} ago, at {at}; {schedule}", now - at));
        }
        // A time that lies ahead is the clock's matter.
        Some(at) if at > now => report.ok(Item::LastRun, format!("at {at}")),
        Some(at) => report.ok(Item::LastRun, format!("{} ago, at {at}", now - at)),
    }
}

fn matters(ledger: &Ledger, report: &mut CheckReport) {
    let all = ledger.matters.len();
    let untold = ledger.matters.iter().filter(|matter| matter.notice.is_open()).count();
    let unsettled = ledger.matters.iter().filter(|matter| matter.is_unsettled()).count();
    if untold + unsettled > 0 {
        let text = format!(
            "{all} for a person to know, {untold} of them not told yet, {unsettled} to be settled; `stepmail status` shows \
             them"
        );
        report.warn(Item::Matters, text);
    } else if all > 0 {
        report.ok(
            Item::Matters,
            format!("nothing waits for a person; {all} were told, `stepmail status` shows them"),
        );
    } else {
        report.ok(Item::Matters, "nothing waits for a person");
    }
}
