//! `forget`: erases a person from everything stepmail keeps, and says what it cannot reach (R17).

use serde::Serialize;

use crate::cli::Forget;
use crate::clock::Clock;
use crate::disk::FileError;
use crate::domain::fact::Whom;
use crate::domain::forgotten::Forgotten;
use crate::domain::ledger::Ledger;
use crate::exit::Exit;
use crate::mail::Outbox;
use crate::report::Style;
use crate::source::spool;
use crate::store::Forgot;

use super::desk::Answer;
use super::{Place, said};

/// What the answer ends with.
const NOT_REACHED: &str = "not reached: what the mail service and the payment service keep, files of events outside the spool, your own \
                           backups and copies of the ledger (one that is put back here forgets again), and mails that \
                           were delivered";

/// What was erased, for programs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Counts {
    purchases: usize,
    waiting: usize,
    /// Stops and marks for the future.
    marks: usize,
    matters: usize,
    /// In the outbox, notices too.
    mails: usize,
    /// Of events, in the spool.
    files: usize,
}

pub(super) fn forget(asked: &Forget, place: &Place, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let mut answer = Answer::new("forget", place, asked.how, clock.now())?;
    if asked.how.dry_run {
        let mut view = place.view()?;
        let forgot = view.forget(&asked.who, clock.now())?;
        let swept = sweep(place, &view.ledger, forgot.as_ref(), true);
        answer.changed = has_changed(forgot.as_ref(), &swept);
        tell(&mut answer, &asked.who, &view.ledger.forgotten, forgot, &swept);
    } else {
        let mut book = place.lock(asked.how.wait.seconds, clock, style)?;
        let forgot = book.forget(&asked.who, clock.now())?;
        let swept = sweep(place, book.ledger(), forgot.as_ref(), false);
        answer.changed = has_changed(forgot.as_ref(), &swept);
        tell(&mut answer, &asked.who, &book.ledger().forgotten, forgot, &swept);
        super::finish(book, None)?;
    }
    answer.print(style);
    Ok(answer.exit)
}

/// What a dead command left to be written is no doing of this one.
fn has_changed(forgot: Option<&Forgot>, swept: &Swept) -> bool {
    forgot.is_some_and(|forgot| forgot.changed) || swept.is_something()
}

/// What was erased outside the ledger.
#[derive(Default)]
struct Swept {
    mails: usize,
    files: usize,
    failures: Vec<FileError>,
}

impl Swept {
    fn is_something(&self) -> bool {
        self.mails + self.files > 0
    }
}

/// Mails and files of events come after the ledger: as long as it knew their purchases, a run could have written them
/// anew.
fn sweep(place: &Place, ledger: &Ledger, forgot: Option<&Forgot>, dry: bool) -> Swept {
    if forgot.is_none() {
        return Swept::default();
    }
    // Whatever sends the mails now: the outbox of a trial may still be there.
    let outbox = Outbox::new(&place.outbox_dir).erase(&|key| ledger.forgotten.knows_mail(key), dry);
    let theirs = |text: &str| ledger.has_forgotten(text);
    // In a file that was not taken in yet, the address may be that of a new purchase.
    let waiting = |text: &str| !text.contains('@') && theirs(text);
    let spool = place
        .settings
        .spool()
        .map(|folder| spool::erase(&folder, &theirs, &waiting, dry))
        .unwrap_or_default();
    Swept {
        mails: outbox.mails,
        files: spool.files,
        failures: outbox.failures.into_iter().chain(spool.failures).collect(),
    }
}

fn tell(answer: &mut Answer, whom: &Whom, forgotten: &Forgotten, forgot: Option<Forgot>, swept: &Swept) {
    let who = said(whom);
    let Some(Forgot { theirs, before, erased, .. }) = forgot else {
        answer.says.push(format!(
            "{who} is not in {}; nothing was erased. Check the spelling and the ledger.",
            answer.ledger()
        ));
        answer.exit = Exit::Look;
        return;
    };
    let counts = Counts {
        purchases: erased.purchases,
        waiting: erased.waiting,
        marks: erased.marks,
        matters: erased.matters,
        mails: swept.mails,
        files: swept.files,
    };
    let person = match whom {
        Whom::Address(_) => who,
        Whom::Session(session) => format!("the buyer of session {session}"),
    };
    let gone = counts.in_words();
    answer.says.push(match (before, gone.is_empty()) {
        (None, true) => format!("{person} is forgotten"),
        (None, false) => format!("{person} is forgotten: {gone} erased"),
        (Some(at), true) => format!("{person} was forgotten before, at {at}; nothing had come back"),
        (Some(at), false) => {
            format!("{person} was forgotten before, at {at}; erased what had come since: {gone}")
        }
    });
    for left in &theirs.may_have_left {
        answer.says.push(format!(
            "{} of session {} was planned at {} and may have left; it is not tried again",
            left.step, left.session, left.at
        ));
    }
    answer.says.push(NOT_REACHED.to_owned());
    for failure in &swept.failures {
        answer.says.push(format!("{failure}; mend that and say `forget` again: it erases what is left"));
        answer.exit = Exit::CannotWrite;
    }
    answer.next.push(
        "the next run sends this person nothing, and the same purchases start nothing again".to_owned(),
    );
    let stopped = forgotten.person(whom).is_some_and(|person| person.is_stopped().is_some());
    answer.next.push(if stopped {
        "this person was stopped: a new purchase gets nothing either, and is told".to_owned()
    } else {
        "a new purchase counts as a repurchase and gets d0 only".to_owned()
    });
    answer.erased = Some(counts);
}

impl Counts {
    fn in_words(self) -> String {
        let many = |n: usize, one: &str, more: &str| match n {
            0 => None,
            1 => Some(format!("1 {one}")),
            n => Some(format!("{n} {more}")),
        };
        let parts = [
            many(self.purchases, "purchase", "purchases"),
            many(self.waiting, "checkout", "checkouts"),
            many(self.marks, "stop or mark", "stops or marks"),
            many(self.matters, "matter", "matters"),
            many(self.mails, "mail in the outbox", "mails in the outbox"),
            many(self.files, "file of events", "files of events"),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}
