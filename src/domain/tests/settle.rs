//! R7 and R10: what a hand lifts, opens again and settles.

use super::*;
use crate::domain::matter::{Matter, MatterKind};
use crate::domain::settle::{Becomes, Fate, Found, Lifted, Refusal, resolve, resume, unsettled_between};
use CloseReason::{Rejected, Repurchase, Stale, Started, Stopped, UnknownResult};
use Step::{D0, D3, D7, D14};

/// Two days after the payment: d3 is still to come.
fn early() -> Timestamp {
    paid_at() + days(2)
}

fn shop(purchases: impl IntoIterator<Item = Purchase>) -> Shop {
    let mut shop = Shop::new();
    for purchase in purchases {
        shop.record(&[Fact::Admitted { purchase: Box::new(purchase) }]);
    }
    shop
}

/// A purchase whose steps a stop has closed.
fn stopped(session: &str) -> Purchase {
    Step::ALL.into_iter().fold(purchase(session, paid_at()), |p, step| p.with(step, closed(early(), Stopped)))
}

fn by_address() -> Whom {
    Whom::Address(address(BUYER))
}

fn by_session(session: &str) -> Whom {
    Whom::Session(sid(session))
}

/// Lifts a stop, and says what each step that it had closed came to: `cs_1 d3 open`.
fn lifts(shop: &mut Shop, whom: &Whom, now: Timestamp) -> Vec<String> {
    let resumption = resume(&shop.ledger, whom, now);
    shop.record(&resumption.facts);
    let fate = |fate: &Fate| match fate {
        Fate::Reopened => "open",
        Fate::Unknown => "unknown",
        Fate::Over(_) => "over",
    };
    resumption.steps.iter().map(|(s, step, f)| format!("{s} {step} {}", fate(f))).collect()
}

#[test]
fn r7_a_lifted_stop_opens_what_it_closed_while_the_window_lasts() {
    let d3_ends = paid_at() + days(7);
    for (now, d3, d7, d14) in [
        (d3_ends - ONE, "open", "open", "open"),
        (d3_ends, "over", "open", "open"),
        (paid_at() + days(28), "over", "over", "over"),
    ] {
        let mut shop = shop([stopped("cs_1").let_in()]);
        shop.mark(by_session("cs_1"), MarkKind::Stopped, early());
        let steps = [("d3", d3), ("d7", d7), ("d14", d14)].map(|(step, is)| format!("cs_1 {step} {is}"));
        assert_eq!(lifts(&mut shop, &by_session("cs_1"), now), steps);
        // Twice is once.
        assert_eq!(resume(&shop.ledger, &by_session("cs_1"), now).facts, []);
        let expected = if d3 == "open" { "sent pending" } else { "sent stopped" };
        assert!(shop.steps("cs_1", now - days(1)).starts_with(expected));
    }
    // d0 has no window.
    let mut shop = shop([stopped("cs_1")]);
    shop.mark(by_address(), MarkKind::Stopped, early());
    assert_eq!(lifts(&mut shop, &by_address(), paid_at() + days(99))[0], "cs_1 d0 open");
}

#[test]
fn r7_a_step_that_another_stop_holds_stays_closed_until_both_are_lifted() {
    for first in [by_address(), by_session("cs_1")] {
        let mut shop =
            shop([stopped("cs_1").let_in(), stopped("cs_2").again().with(D0, closed(early(), Stopped))]);
        shop.mark(by_address(), MarkKind::Stopped, early());
        shop.mark(by_session("cs_1"), MarkKind::Stopped, early());
        let resumption = resume(&shop.ledger, &first, early());
        let steps = lifts(&mut shop, &first, early());
        if first == by_address() {
            assert_eq!(steps, ["cs_2 d0 open"]);
            assert_eq!(resumption.sessions_stopped, [sid("cs_1")]);
        } else {
            assert!(steps.is_empty() && resumption.buyer_stopped);
        }
        let second = if first == by_address() { by_session("cs_1") } else { by_address() };
        let steps = lifts(&mut shop, &second, early());
        assert!(steps.starts_with(&["cs_1 d3 open".to_owned()]), "{steps:?}");
        assert_eq!(shop.steps("cs_1", early()), "sent pending pending pending");
        assert_eq!(shop.steps("cs_2", early()), "pending repurchase repurchase repurchase");
    }
}

#[test]
fn r7_a_step_whose_outcome_is_unknown_is_not_opened_by_a_lifted_stop() {
    let tried = closed_after(early(), early(), Stopped);
    let mut shop = shop([stopped("cs_1").let_in().with(D3, tried.clone())]);
    shop.mark(by_address(), MarkKind::Stopped, early());
    assert_eq!(
        lifts(&mut shop, &by_address(), early()),
        ["cs_1 d3 unknown", "cs_1 d7 open", "cs_1 d14 open"]
    );
    assert_eq!(shop.purchase("cs_1").steps.d3, tried);
}

#[test]
fn r7_resume_lifts_a_pause_of_a_person_and_nothing_that_is_not_there() {
    let mut paused = buyer([purchase("cs_1", paid_at()).let_in()]);
    paused.paused = Some(mark(early()));
    let mut shop = Shop::new();
    shop.ledger.buyers = super::super::ledger::Buyers::new(vec![paused]).unwrap();
    let of_session = resume(&shop.ledger, &by_session("cs_1"), early());
    assert!(of_session.facts.is_empty() && of_session.buyer_paused);
    let of_buyer = resume(&shop.ledger, &by_address(), early());
    assert_eq!(of_buyer.lifted, Lifted { stop: false, pause: true });
    shop.record(&of_buyer.facts);
    assert!(shop.buyer(BUYER).paused.is_none());
    assert!(resume(&shop.ledger, &by_address(), early()).facts.is_empty());
    assert!(resume(&shop.ledger, &by_session("cs_none"), early()).facts.is_empty());
}

#[test]
fn r7_the_event_of_a_lifted_stop_that_comes_again_stops_nothing() {
    let now = early();
    let refund = || vec![stop("evt_r", now, StopTarget::Session(sid("cs_1")))];
    // The purchase was known, or came after.
    for known in [true, false] {
        let mut shop = Shop::new();
        let purchase = || vec![bought("evt_1", "cs_1", BUYER, paid_at())];
        if known {
            shop.take(now, purchase());
        }
        shop.take(now, refund());
        let told = shop.told();
        assert_eq!(told.is_empty(), known, "{told:?}");
        let resumption = resume(&shop.ledger, &by_session("cs_1"), now);
        shop.record(&resumption.facts);
        assert!(shop.told().is_empty(), "what was told of it is over");
        assert_eq!(shop.take(now, refund()).duplicates, 1);
        if !known {
            shop.take(now, purchase());
        }
        assert_eq!(shop.take(now, refund()).duplicates, 1);
        assert_eq!(shop.steps("cs_1", now), "pending pending pending pending", "known: {known}");
        // Another event is another stop.
        shop.take(now, vec![stop("evt_r2", now, StopTarget::Session(sid("cs_1")))]);
        assert_eq!(shop.steps("cs_1", now), "stopped stopped stopped stopped", "known: {known}");
    }
}

#[test]
fn r7_what_was_told_of_a_stopped_buyers_purchase_is_over_when_it_is_open_again() {
    let mut shop = Shop::new();
    shop.take(early(), vec![bought("evt_1", "cs_1", BUYER, paid_at())]);
    shop.mark(by_address(), MarkKind::Stopped, early());
    shop.take(early(), vec![bought("evt_2", "cs_2", BUYER, early())]);
    assert_eq!(shop.told(), ["stopped_buyer cs_2"]);
    lifts(&mut shop, &by_address(), early());
    assert!(shop.told().is_empty());
    assert_eq!(shop.steps("cs_2", early()), "pending repurchase repurchase repurchase");
}

// Results that a person knows

/// Settles d3 of one purchase; the state it comes to, or why it is refused.
fn settles(state: &StepState, found: &Found, now: Timestamp) -> Result<StepState, Refusal> {
    let mut shop = shop([purchase("cs_1", paid_at()).let_in().with(D3, state.clone())]);
    let settlement = resolve(&shop.ledger, &sid("cs_1"), D3, found, now)?;
    assert_eq!(settlement.facts.is_empty(), settlement.becomes == Becomes::AsItWas, "{state:?} {found:?}");
    shop.record(&settlement.facts);
    let came = shop.purchase("cs_1").steps.d3.clone();
    // Twice is once.
    let again = resolve(&shop.ledger, &sid("cs_1"), D3, found, now).unwrap();
    assert_eq!(again.facts, [], "{state:?} {found:?}");
    Ok(came)
}

#[test]
fn r10_each_state_and_what_a_persons_word_makes_of_it() {
    let tried = paid_at() + days(4);
    let (now, late) = (paid_at() + days(5), paid_at() + days(7));
    let attempt = |reason| closed_after(tried, now, reason);
    let by_hand =
        |id: &str, at, via: &str| StepState::Sent { at, message_id: id.into(), via: via.into(), fate: None };
    let named = Found::Sent(Some("m-1".into()));
    let unnamed = Found::Sent(None);
    let table: Vec<(StepState, Result<StepState, Refusal>, StepState)> = vec![
        // (before, found sent, found unsent in its window)
        (plan(tried), Ok(by_hand("m-1", tried, "post")), StepState::pending()),
        (lost(tried - hours(1), tried), Ok(by_hand("m-1", tried, "post")), StepState::pending()),
        (attempt(UnknownResult), Ok(by_hand("m-1", tried, "post")), StepState::pending()),
        (closed(now, UnknownResult), Ok(by_hand("m-1", now, "by-hand")), StepState::pending()),
        (closed(now, Rejected), Err(Refusal::ServiceSaidNo), StepState::pending()),
        (attempt(Stopped), Ok(by_hand("m-1", tried, "post")), StepState::pending()),
        (attempt(Started), Ok(by_hand("m-1", tried, "post")), closed(now, Started)),
        (attempt(Repurchase), Ok(by_hand("m-1", tried, "post")), closed(now, Repurchase)),
        (StepState::pending(), Err(Refusal::NeverTried), StepState::pending()),
        (refused(2, tried), Err(Refusal::NeverTried), refused(2, tried)),
        (closed(now, Stale), Err(Refusal::NeverTried), closed(now, Stale)),
        (closed(now, Stopped), Err(Refusal::NeverTried), closed(now, Stopped)),
    ];
    for (before, was_sent, unsent) in table {
        assert_eq!(settles(&before, &named, now), was_sent, "{before:?}");
        let unnamed_id = was_sent.map(|state| match state {
            StepState::Sent { at, via, .. } => by_hand("by-hand", at, &via),
            other => other,
        });
        assert_eq!(settles(&before, &unnamed, now), unnamed_id, "{before:?}");
        assert_eq!(settles(&before, &Found::NotSent, late - ONE), Ok(unsent.clone()), "{before:?}");
        // With its window its chance has gone.
        let gone =
            if unsent == StepState::pending() && before != unsent { closed(late, Stale) } else { unsent };
        assert_eq!(settles(&before, &Found::NotSent, late), Ok(gone), "{before:?}");
    }
}

#[test]
fn r10_sent_is_final_and_keeps_its_message_id() {
    let is = sent(early());
    assert_eq!(settles(&is, &Found::NotSent, early()), Err(Refusal::SentIsFinal));
    assert_eq!(settles(&is, &Found::Sent(Some("other".into())), early()), Err(Refusal::OtherId));
    assert_eq!(settles(&is, &Found::Sent(Some("m".into())), early()), Ok(is.clone()));
    assert_eq!(settles(&is, &Found::Sent(None), early()), Ok(is));
    let none = resolve(&Shop::new().ledger, &sid("cs_1"), D3, &Found::NotSent, early());
    assert_eq!(none, Err(Refusal::NotKnown));
}

#[test]
fn r10_a_step_that_never_left_stays_closed_while_a_stop_holds() {
    let tried = closed_after(early(), early(), Stopped);
    for whom in [by_address(), by_session("cs_1")] {
        let mut shop = shop([purchase("cs_1", paid_at()).let_in().with(D3, tried.clone())]);
        shop.mark(whom.clone(), MarkKind::Stopped, early());
        let settled = resolve(&shop.ledger, &sid("cs_1"), D3, &Found::NotSent, early()).unwrap();
        assert_eq!(settled.becomes, Becomes::Closed(Stopped));
        shop.record(&settled.facts);
        // The stop can open it now: nothing of it is out.
        assert_eq!(lifts(&mut shop, &whom, early())[0], "cs_1 d3 open");
    }
}

#[test]
fn r10_what_was_told_of_a_step_is_over_when_it_is_settled() {
    let of = |kind| Matter::new(kind, "cs_1.d3", early(), Some(sid("cs_1")), "…".into());
    for (kind, reason) in [(MatterKind::UnknownResult, UnknownResult), (MatterKind::Rejected, Rejected)] {
        let mut shop = shop([purchase("cs_1", paid_at()).let_in().with(D3, closed(early(), reason))]);
        let other = Matter { subject: "cs_1.d7".into(), ..of(kind) };
        shop.record(&[of(kind), other].map(|matter| Fact::Matter { matter: Box::new(matter) }));
        let settled = resolve(&shop.ledger, &sid("cs_1"), D3, &Found::NotSent, early()).unwrap();
        shop.record(&settled.facts);
        assert_eq!(shop.told(), [format!("{} cs_1.d7", kind.name())]);
    }
}

#[test]
fn r10_a_range_takes_closed_steps_by_their_attempts_and_never_an_open_plan() {
    let tried = paid_at() + days(4);
    // `closed_after` tries for five hours.
    let first = tried - hours(5);
    let picks = |since, until| {
        let shop = shop([
            purchase("cs_1", paid_at())
                .with(D0, closed_after(tried, tried + days(2), UnknownResult))
                .with(D3, plan(tried))
                .with(D7, closed(tried, Rejected))
                .with(D14, closed(tried, Stale)),
            purchase("cs_2", paid_at()).with(D0, sent(tried)).with(D3, closed_after(tried, tried, Stopped)),
        ]);
        let mails = unsettled_between(&shop.ledger, since, until);
        mails.iter().map(|(session, step)| format!("{session} {step}")).collect::<Vec<_>>()
    };
    assert_eq!(picks(first, tried + ONE), ["cs_1 d0", "cs_1 d7", "cs_2 d3"]);
    assert_eq!(picks(tried, tried + ONE), ["cs_1 d0", "cs_1 d7", "cs_2 d3"]);
    assert_eq!(picks(first, first + ONE), ["cs_1 d0", "cs_2 d3"], "the first attempt counts");
    assert!(picks(first - days(1), first).is_empty(), "until is not in the range");
    assert!(picks(tried + ONE, tried + days(9)).is_empty(), "since is");
}
