//! `adopt`: a person says that this ledger is the one to go on with, though it is a copy, or older than one that was
//! lost, or a trial that becomes real (R12).

use crate::cli;
use crate::clock::Clock;
use crate::domain::adopt::{Trial, doubts, end_trial, gap, what_fits};
use crate::domain::decide::decide;
use crate::domain::fact::{Fact, apply};
use crate::domain::guard::{Held, guard};
use crate::domain::ids::{IdempotencyKey, SessionId, Step};
use crate::domain::ledger::{Gap, Ledger, OUTBOX};
use crate::domain::matter::MatterKind;
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::report::Style;
use crate::store::LockedLedger;

use super::desk::Answer;
use super::reconcile::ask_about;
use super::{Place, Refused, Seen};

/// More keys than this in one line are not read by anybody.
const LISTED_MAX: usize = 20;

pub(super) fn adopt(asked: &cli::Adopt, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let book =
        if asked.how.dry_run { None } else { Some(place.lock(asked.how.wait.seconds, clock, style)?) };
    let now = clock.now();
    let (ledger, seen, beyond) = if let Some(book) = &book {
        (book.ledger().clone(), Seen::of(book), book.beyond().to_vec())
    } else {
        let view = place.view()?;
        let seen = Seen::in_view(&view);
        (view.ledger, seen, view.beyond)
    };
    let mut answer = Answer::new("adopt", place, asked.how, now)?;
    let held = guard(&ledger, &seen.known(place.transport(), clock, asked.accept_clock), now);
    let (path, outbox) = (answer.ledger().to_owned(), asked.outbox.map(Trial::from));
    let change = Change::of(asked, &ledger, &seen, &held)?;

    let mut facts = Vec::new();
    let mut after = ledger.clone();
    let mut add = |after: &mut Ledger, more: Vec<Fact>| {
        for fact in &more {
            // Each was found to fit this very ledger.
            let _ = apply(after, fact);
        }
        facts.extend(more);
    };
    if change != Change::Nothing && ledger.newest_recorded().is_some_and(|newest| newest > now) {
        // Only with an accepted clock; else it was refused.
        add(&mut after, vec![Fact::ClockAccepted { now }]);
    }
    if change != Change::Nothing {
        add(&mut after, what_fits(&ledger, &beyond));
        // What it holds of people who were forgotten since goes with the saving.
        after.erase_forgotten();
        let gap = (change == Change::Older).then(|| gap(&ledger, now));
        let closed = gap.map_or(Vec::new(), |gap| doubts(&after, gap, &place.policy));
        answer.says.extend(say_change(&ledger, gap, &closed));
        add(&mut after, closed);
        let installation = seen.installation.clone();
        add(&mut after, vec![Fact::Adopted { installation, path: Some(path), gap }]);
    }
    if let Some(trial) = outbox {
        let ended = end_trial(&after, trial, now);
        answer.says.push(say_trial(trial, &ended, place.transport().name() == OUTBOX));
        add(&mut after, ended);
    }
    answer.changed = !facts.is_empty();
    if !answer.changed && outbox.is_none() {
        answer
            .says
            .push("nothing to adopt: this ledger is the newest here, and no other place runs it".to_owned());
    }
    answer.next = say_next(&after, place, &seen, clock, now);
    if let Some(book) = book {
        let told = write(book, &facts, asked.accept_clock.then_some(now), place, clock)?;
        answer.says.extend(told);
    }
    answer.print(style);
    Ok(answer.exit)
}

/// Records what was adopted, and then asks the mail service about what may have left, where it can be asked. Whatever
/// becomes of that, the ledger is adopted.
fn write(
    mut book: LockedLedger,
    facts: &[Fact],
    accepted: Option<Timestamp>,
    place: &Place,
    clock: &Clock,
) -> anyhow::Result<Vec<String>> {
    if facts.is_empty() {
        book.abandon();
        return Ok(Vec::new());
    }
    if let Some(now) = accepted {
        book.lower_mark(now);
    }
    book.adopt(facts)?;
    let doubted: Vec<(SessionId, Step)> = facts.iter().filter_map(doubted).collect();
    let mut says = Vec::new();
    if !doubted.is_empty() && place.transport().archive().is_some() {
        let templates = place.templates();
        let asked = place
            .ready_to_mail()
            .and_then(|()| ask_about(&mut book, &place.shop(&templates, clock), &doubted, clock.now()));
        match asked {
            Ok(told) => says.extend(told.says),
            Err(error) => says.push(format!("the mail service was not asked about them: {error}")),
        }
        says.push(
            "`stepmail reconcile` asks the mail service again; ten minutes from now it can tell more"
                .to_owned(),
        );
    }
    super::finish(book, None)?;
    Ok(says)
}

fn doubted(fact: &Fact) -> Option<(SessionId, Step)> {
    match fact {
        Fact::MayHaveLeft { key: IdempotencyKey::Step(session, step), .. } => Some((session.clone(), *step)),
        _ => None,
    }
}

impl From<cli::Trial> for Trial {
    fn from(asked: cli::Trial) -> Self {
        match asked {
            cli::Trial::Keep => Self::Keep,
            cli::Trial::Reopen => Self::Reopen,
        }
    }
}

/// What there is to adopt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Nothing,
    /// The newest version, in another place.
    Newest,
    /// A version that was newest once.
    Older,
}

impl Change {
    fn of(asked: &cli::Adopt, ledger: &Ledger, seen: &Seen, held: &[Held]) -> Result<Self, Refused> {
        let holds = |kind| held.iter().any(|held| held.kind == kind);
        seen.refuse_copy()?;
        if let Some(clock) = held.iter().find(|held| held.is_of_the_clock()) {
            return Err(Refused {
                why: format!("the clock decides what may have left, and {}", clock.text),
                next: "set the clock, or adopt with --accept-clock if it is right".to_owned(),
            });
        }
        let restored = holds(MatterKind::Restored);
        if restored && asked.newest {
            return Err(Refused {
                why: "a newer version of this ledger ran here".to_owned(),
                next: "put that one back, or, if it is lost, run `stepmail adopt` without --newest"
                    .to_owned(),
            });
        }
        if restored {
            return Ok(Self::Older);
        }
        let last_run = ledger.last_run.as_ref().map(|run| run.at);
        let known = seen.mark.as_ref().and_then(|mark| mark.last_run_at);
        if let (true, Some(known)) = (asked.newest, known.filter(|known| Some(*known) > last_run)) {
            return Err(Refused {
                why: format!(
                    "a version of this ledger ran here later, at {known}, than the last run that this one knows"
                ),
                next: "put that one back, or, if it is lost, say `--older`".to_owned(),
            });
        }
        let other = holds(MatterKind::OtherInstallation);
        match (other, asked.newest, asked.older) {
            (true, true, _) => Ok(Self::Newest),
            // It only closes, so a person may always say it; but twice is once.
            (_, _, true) if !other && is_adopted(ledger) => Ok(Self::Nothing),
            (_, _, true) => Ok(Self::Older),
            (true, false, false) if asked.outbox.is_none() => Err(Refused {
                why: format!(
                    "another installation ran this ledger last{}, and only you can know whether it sent anything after \
                     this copy was made",
                    ledger.last_run.as_ref().map_or(String::new(), |run| format!(", at {}", run.at))
                ),
                next: "say `--newest` if it did not (a move to a new machine), `--older` if it may have (a backup)"
                    .to_owned(),
            }),
            _ => Ok(Self::Nothing),
        }
    }
}

/// Whether nothing was recorded since the ledger was adopted in place of a newer one.
fn is_adopted(ledger: &Ledger) -> bool {
    ledger.gap.is_some_and(|gap| ledger.newest_recorded().is_none_or(|newest| newest <= gap.until))
}

fn say_change(ledger: &Ledger, gap: Option<Gap>, closed: &[Fact]) -> Vec<String> {
    let mut says = Vec::new();
    says.push(match gap {
        None => "this installation runs the ledger from now on, and goes on where it stood".to_owned(),
        Some(gap) => format!(
            "this installation runs the ledger from now on (generation {}); it knows nothing of the time from {} to {}",
            ledger.generation, gap.since, gap.until
        ),
    });
    let Some(gap) = gap else { return says };
    let keys: Vec<&IdempotencyKey> = closed
        .iter()
        .filter_map(|fact| match fact {
            Fact::MayHaveLeft { key, .. } => Some(key),
            _ => None,
        })
        .collect();
    if keys.is_empty() {
        says.push("no mail on record can have left in that time".to_owned());
    } else {
        let listed: Vec<String> = keys.iter().take(LISTED_MAX).map(ToString::to_string).collect();
        let more = keys.len() - listed.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        says.push(format!(
            "may have left in that time, and closed as unknown_result: {}{more}",
            listed.join(" ")
        ));
        says.push("settle them with `stepmail resolve`, by key or by --since and --until".to_owned());
    }
    says.push(format!(
        "hand in the events since {} again, and set again by hand what you marked since; of purchases that are new to \
         this ledger, what may have left already is closed and told",
        gap.since
    ));
    says
}

fn say_trial(trial: Trial, ended: &[Fact], still_outbox: bool) -> String {
    if ended.is_empty() {
        return "no mail on record was taken by the outbox alone".to_owned();
    }
    let reopened = ended.len() - 1;
    let what = match trial {
        Trial::Keep => "what the outbox took so far counts as sent".to_owned(),
        Trial::Reopen => format!(
            "of what the outbox took so far, {reopened} mails are to be sent again; the rest counts as sent, since its \
             window has ended"
        ),
    };
    let still = if still_outbox {
        "; mail.transport is still `outbox`, so what it takes from now on is a trial again"
    } else {
        ""
    };
    format!("{what}{still}")
}

fn say_next(after: &Ledger, place: &Place, seen: &Seen, clock: &Clock, now: Timestamp) -> Vec<String> {
    let seen =
        Seen { mark: None, journal_ahead: false, former: None, installation: seen.installation.clone() };
    let still = guard(after, &seen.known(place.transport(), clock, false), now);
    if !still.is_empty() {
        return still.into_iter().map(|held| format!("the next run is held: {}", held.text)).collect();
    }
    let due =
        after.buyers.all().iter().filter(|buyer| decide(buyer, &place.policy, now).mail.is_some()).count();
    vec![match due {
        0 => "the next run has no mail to send".to_owned(),
        due => format!("the next run has {due} mails to send; `stepmail run --dry-run` shows them"),
    }]
}
