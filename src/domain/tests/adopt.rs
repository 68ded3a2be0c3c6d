//! R12: which mails may have left in a time the ledger knows nothing of, and what a trial counts for.

use super::*;
use crate::domain::adopt::{Trial, doubts, end_trial, gap, has_trial, may_have_left, what_fits};
use crate::domain::guard::{Known, guard};
use crate::domain::ledger::{Gap, OUTBOX};
use crate::domain::matter::MatterKind;
use Step::{D0, D3, D7, D14};

fn trial_sent(at: Timestamp) -> StepState {
    StepState::Sent { at, message_id: "<m@example.com>".into(), via: OUTBOX.into(), fate: None }
}

fn shop(buyers: impl IntoIterator<Item = Buyer>) -> Ledger {
    let mut ledger = Ledger::empty(paid_at() - days(100), None);
    ledger.buyers = super::super::ledger::Buyers::new(buyers.into_iter().collect()).unwrap();
    ledger
}

fn keys(facts: &[Fact]) -> Vec<String> {
    let key = |fact: &Fact| match fact {
        Fact::MayHaveLeft { key, .. } | Fact::TrialUndone { key } => Some(key.to_string()),
        _ => None,
    };
    facts.iter().filter_map(key).collect()
}

/// What an older ledger of one buyer closes, when nothing is known from `since` to `until` (days after the payment).
fn doubted(buyer: Buyer, since: i64, until: i64) -> Vec<String> {
    let gap = Gap { since: paid_at() + days(since), until: paid_at() + days(until) };
    let ledger = shop([buyer]);
    let facts = doubts(&ledger, gap, &Policy::default());
    let mut after = ledger;
    for fact in &facts {
        apply(&mut after, fact).unwrap();
    }
    assert!(doubts(&after, gap, &Policy::default()).is_empty(), "twice is once");
    keys(&facts)
}

#[test]
fn r12_a_mail_may_have_left_if_its_window_touches_the_time_nobody_knows() {
    let gap = |since, until| Gap { since: paid_at() + since, until: paid_at() + until };
    for (step, since, until, may) in [
        (D0, days(0), days(0), true),
        (D0, days(90), days(100), true),
        (D3, days(0), minus(days(3), ONE), false),
        (D3, days(0), days(3), true),
        (D3, minus(days(7), ONE), days(9), true),
        (D3, days(7), days(9), false),
        (D7, days(8), days(9), true),
        (D14, days(1), days(60), true),
        (D14, days(28), days(60), false),
    ] {
        assert_eq!(may_have_left(paid_at(), step, &gap(since, until)), may, "{step} {since:?} {until:?}");
    }
}

#[test]
fn r12_an_older_ledger_closes_what_could_have_left_and_nothing_else() {
    let bought = || purchase("cs_1", paid_at());
    assert_eq!(doubted(buyer([bought()]), 1, 2), ["pp:cs_1:d0"]);
    assert_eq!(doubted(buyer([bought().let_in()]), 1, 2), [""; 0]);
    assert_eq!(doubted(buyer([bought().let_in()]), 1, 8), ["pp:cs_1:d3", "pp:cs_1:d7"]);
    // An open plan may have left before, and its answer may have come since.
    assert_eq!(doubted(buyer([bought().let_in().with(D3, plan(paid_at() + days(3)))]), 3, 4), ["pp:cs_1:d3"]);
    // What was settled before the ledger was kept did not leave after it.
    let stopped = Buyer { stopped: Some(mark(paid_at())), ..buyer([bought().let_in()]) };
    assert_eq!(doubted(stopped, 1, 20), [""; 0]);
    let started = Buyer { started: Some(mark(paid_at())), ..buyer([bought().let_in()]) };
    assert_eq!(doubted(started, 1, 8), ["pp:cs_1:d7"]);
    assert_eq!(doubted(buyer([bought().again()]), 1, 20), ["pp:cs_1:d0"]);
    let history = Purchase { kind: Kind::History, ..bought() };
    assert_eq!(doubted(buyer([history]), 1, 20), [""; 0]);
}

#[test]
fn r6_what_may_have_left_counts_for_the_two_days() {
    let gap = Gap { since: paid_at(), until: paid_at() + days(8) };
    let mut ledger = shop([buyer([purchase("cs_1", paid_at()).let_in()])]);
    for fact in doubts(&ledger, gap, &Policy::default()) {
        apply(&mut ledger, &fact).unwrap();
    }
    let at =
        |days_later: i64| ask(&ledger.buyers.all()[0], &Policy::default(), paid_at() + days(days_later)).mail;
    assert_eq!(at(9), None);
    assert_eq!(at(14).map(|due| due.step), Some(D14));
}

#[test]
fn r12_a_purchase_that_is_told_again_is_mailed_only_what_cannot_have_left() {
    let at = paid_at();
    let told = |paid: Timestamp| {
        let mut shop = Shop::new();
        shop.ledger.gap = Some(Gap { since: at, until: at + days(8) });
        shop.take(at + days(9), vec![Incoming::Checkout(Box::new(checkout("evt_1", "cs_1", BUYER, paid)))]);
        let states: Vec<_> = shop.purchase("cs_1").steps.iter().map(|(_, state)| state.is_open()).collect();
        (states, shop.ledger.matter(MatterKind::Adopted, "cs_1").is_some())
    };
    assert_eq!(told(at), (vec![false, false, false, true], true));
    assert_eq!(told(at + days(7)), (vec![false, true, true, true], true));
    // A purchase may be dated up to ten minutes ahead of the clock that sent its d0.
    let ahead = at + days(8) + Seconds::minutes(10);
    assert_eq!(told(ahead), (vec![false, true, true, true], true));
    assert_eq!(told(ahead + ONE), (vec![true; 4], false));
}

#[test]
fn r12_the_time_nobody_knows_begins_with_the_newest_thing_recorded() {
    let now = paid_at() + days(8);
    assert_eq!(gap(&shop([]), now), Gap { since: paid_at() - days(100), until: now });
    let known = shop([buyer([purchase("cs_1", paid_at()).let_in().with(D3, sent(paid_at() + days(3)))])]);
    assert_eq!(gap(&known, now), Gap { since: paid_at() + days(3), until: now });
}

#[test]
fn c062_a_newer_journal_gives_what_the_older_ledger_can_hold() {
    let ledger = shop([buyer([purchase("cs_1", paid_at()).let_in()])]);
    let sent = |session| Fact::Sent {
        key: key(session, D3),
        at: paid_at() + days(3),
        message_id: "m".into(),
        via: "x".into(),
    };
    let unknown_purchase = Fact::Admitted { purchase: Box::new(purchase("cs_9", paid_at())) };
    assert_eq!(what_fits(&ledger, &[sent("cs_1"), sent("cs_2")]), [sent("cs_1")]);
    let all = [unknown_purchase, sent("cs_9")];
    assert_eq!(what_fits(&ledger, &all), all, "a fact may need the one before it");
}

#[test]
fn r12_real_mails_wait_until_a_person_says_what_the_trial_counts_for() {
    let at = paid_at();
    let mut ledger =
        shop([buyer([purchase("cs_1", at).with(D0, trial_sent(at)).with(D3, trial_sent(at + days(3)))])]);
    let known = |real| Known { real, ..Known::default() };
    let kinds = |ledger: &Ledger, real| -> Vec<MatterKind> {
        guard(ledger, &known(real), at + days(8)).into_iter().map(|held| held.kind).collect()
    };
    assert_eq!(kinds(&ledger, true), [MatterKind::Trial]);
    assert_eq!(kinds(&ledger, false), []);
    assert!(has_trial(&ledger));

    let now = at + days(8);
    assert_eq!(keys(&end_trial(&ledger, Trial::Keep, now)), [""; 0]);
    assert_eq!(keys(&end_trial(&ledger, Trial::Reopen, now)), ["pp:cs_1:d0"], "d3 would be late");
    assert_eq!(keys(&end_trial(&ledger, Trial::Reopen, at + days(4))), ["pp:cs_1:d0", "pp:cs_1:d3"]);
    let planned = ledger.clone();
    for fact in end_trial(&ledger, Trial::Reopen, now) {
        apply(&mut ledger, &fact).unwrap();
    }
    assert_eq!(kinds(&ledger, true), []);
    assert!(ledger.buyers.all()[0].purchases[0].steps.d0.is_open());
    assert!(!ledger.buyers.all()[0].purchases[0].steps.d3.is_open());
    // A later trial is one again; a mail that left for real is final, whatever is said of trials.
    let later =
        Fact::Sent { key: key("cs_1", D0), at: now + ONE, message_id: "m".into(), via: OUTBOX.into() };
    apply(&mut ledger, &later).unwrap();
    assert_eq!(kinds(&ledger, true), [MatterKind::Trial]);
    let mut real = planned;
    for fact in [
        Fact::Planned { key: key("cs_1", D7), at: now, message: Box::new(frozen()) },
        Fact::Sent { key: key("cs_1", D7), at: now, message_id: "m".into(), via: "post".into() },
    ] {
        apply(&mut real, &fact).unwrap();
    }
    let before = real.clone();
    apply(&mut real, &Fact::TrialUndone { key: key("cs_1", D7) }).unwrap();
    assert_eq!(real, before);
}

#[test]
fn r12_a_stop_that_may_have_been_lifted_meanwhile_opens_nothing_again() {
    let gap = Gap { since: paid_at() + days(1), until: paid_at() + days(5) };
    let stopped = |purchase: Purchase| Purchase { stopped: Some(mark(paid_at())), ..purchase };
    let by_stop =
        |step: Step, bought: Purchase| bought.with(step, closed(paid_at() + ONE, CloseReason::Stopped));
    // Stopped before the copy was made: d3 may have left since, d14 cannot have.
    let bought = stopped(by_stop(D14, by_stop(D3, purchase("cs_1", paid_at()).let_in())));
    let mut ledger = shop([buyer([bought])]);
    ledger.gap = Some(gap);
    let whom = Whom::Session(sid("cs_1"));
    for fact in crate::domain::settle::resume(&ledger, &whom, gap.until + ONE).facts {
        apply(&mut ledger, &fact).unwrap();
    }
    let steps = &ledger.buyers.all()[0].purchases[0].steps;
    assert!(!steps.d3.is_open() && steps.d14.is_open(), "{steps:?}");
    assert_eq!(steps.d3.last_left_at(), Some(gap.until), "the two days count from the end of that time");

    // Told again, and stopped again by hand before: the same.
    let mut shop = Shop::new();
    shop.ledger.gap = Some(gap);
    shop.mark(whom.clone(), MarkKind::Stopped, gap.until + ONE);
    let event = Incoming::Checkout(Box::new(checkout("evt_1", "cs_1", BUYER, paid_at())));
    shop.take(gap.until + days(1), vec![event]);
    let facts = crate::domain::settle::resume(&shop.ledger, &whom, gap.until + days(2)).facts;
    shop.record(&facts);
    let open: Vec<bool> = shop.purchase("cs_1").steps.iter().map(|(_, state)| state.is_open()).collect();
    assert_eq!(open, [false, false, true, true]);
}

#[test]
fn r12_what_was_refused_or_unknown_before_may_have_been_tried_again_since() {
    let bought = || purchase("cs_1", paid_at()).let_in();
    let rejected = bought().with(D3, closed(paid_at() + days(3), CloseReason::Rejected));
    assert_eq!(doubted(buyer([rejected.clone()]), 3, 4), ["pp:cs_1:d3"]);
    assert_eq!(doubted(buyer([rejected]), 7, 9), ["pp:cs_1:d7"], "its window had ended");
    let unknown = closed_after(paid_at() + days(3), paid_at() + days(4), CloseReason::UnknownResult);
    assert_eq!(doubted(buyer([bought().with(D3, unknown)]), 4, 5), ["pp:cs_1:d3"]);
}

#[test]
fn r12_an_accepted_clock_ends_no_matter_of_mails_that_are_still_in_doubt() {
    let gap = Gap { since: paid_at(), until: paid_at() + days(400) };
    let mut ledger = shop([buyer([purchase("cs_1", paid_at())])]);
    let mut facts = doubts(&ledger, gap, &Policy::default());
    facts.push(Fact::Adopted { installation: None, path: None, gap: Some(gap) });
    facts.push(Fact::ClockAccepted { now: paid_at() + days(9) });
    facts.push(Fact::FoundUnsent { key: key("cs_1", D0), at: paid_at() + days(9), closed: None });
    for fact in &facts {
        apply(&mut ledger, fact).unwrap();
    }
    assert_eq!(crate::domain::adopt::settled(&ledger), []);
}
