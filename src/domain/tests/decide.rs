//! R5 to R7: what a run does for one buyer, on both sides of every boundary.

use super::*;
use crate::domain::decide::{Due, Verdict, Wait, counts_for_brake, mails_allowed, sort_for_sending, verdict};
use crate::domain::ledger::Allowed;

use CloseReason::{History, Rejected, Repurchase, Started, Stopped, UnknownResult};
use Step::{D0, D3, D7, D14};

fn free() -> Policy {
    Policy::default()
}

#[test]
fn r5_each_step_leaves_only_inside_its_window_to_the_second() {
    let buyer = buyer([purchase("cs_1", paid_at()).let_in()]);
    let table: [(Seconds, &[&str]); 10] = [
        (Seconds(0), &[]),
        (minus(days(3), ONE), &[]),
        (days(3), &["send cs_1:d3"]),
        (minus(days(7), ONE), &["send cs_1:d3"]),
        (days(7), &["close cs_1:d3 stale", "send cs_1:d7"]),
        (minus(days(14), ONE), &["close cs_1:d3 stale", "send cs_1:d7"]),
        (days(14), &["close cs_1:d3 stale", "close cs_1:d7 stale", "send cs_1:d14"]),
        (minus(days(28), ONE), &["close cs_1:d3 stale", "close cs_1:d7 stale", "send cs_1:d14"]),
        (days(28), &["close cs_1:d3 stale", "close cs_1:d7 stale", "close cs_1:d14 stale"]),
        (days(400), &["close cs_1:d3 stale", "close cs_1:d7 stale", "close cs_1:d14 stale"]),
    ];
    for (elapsed, expected) in table {
        assert_eq!(does(&buyer, &free(), paid_at() + elapsed), expected, "{elapsed} after payment");
    }
    assert_eq!(
        verdict(&buyer, &buyer.purchases[0], D3, &free(), paid_at() + minus(days(3), ONE)),
        Verdict::Wait(Wait::Window(paid_at() + days(3)))
    );
}

#[test]
fn r5_the_way_in_leaves_at_once_and_even_after_a_year() {
    let buyer = buyer([purchase("cs_1", paid_at())]);
    assert_eq!(does(&buyer, &free(), paid_at()), ["send cs_1:d0"]);
    // R12 admits what is dated up to ten minutes ahead.
    assert_eq!(does(&buyer, &free(), paid_at() - Seconds::minutes(10)), ["send cs_1:d0"]);
    assert_eq!(
        does(&buyer, &free(), paid_at() + days(365)),
        ["close cs_1:d3 stale", "close cs_1:d7 stale", "close cs_1:d14 stale", "send cs_1:d0"]
    );
}

#[test]
fn c026_month_and_year_ends_and_leap_days_are_counted_in_elapsed_days() {
    // Paid, and the second at which d3, d7 and d14 open and d14 closes.
    let table = [
        (
            "2027-01-31T23:30:00Z",
            ["2027-02-03T23:30:00Z", "2027-02-07T23:30:00Z", "2027-02-14T23:30:00Z", "2027-02-28T23:30:00Z"],
        ),
        (
            "2027-02-28T00:00:00Z",
            ["2027-03-03T00:00:00Z", "2027-03-07T00:00:00Z", "2027-03-14T00:00:00Z", "2027-03-28T00:00:00Z"],
        ),
        (
            "2028-02-29T12:00:00Z",
            ["2028-03-03T12:00:00Z", "2028-03-07T12:00:00Z", "2028-03-14T12:00:00Z", "2028-03-28T12:00:00Z"],
        ),
        (
            "2027-12-31T15:30:00Z",
            ["2028-01-03T15:30:00Z", "2028-01-07T15:30:00Z", "2028-01-14T15:30:00Z", "2028-01-28T15:30:00Z"],
        ),
    ];
    for (paid, edges) in table {
        let buyer = buyer([purchase("cs_1", t(paid)).let_in()]);
        for (edge, (before, after)) in edges.into_iter().zip([
            (None, Some(D3)),
            (Some(D3), Some(D7)),
            (Some(D7), Some(D14)),
            (Some(D14), None),
        ]) {
            let step = |now| ask(&buyer, &free(), now).mail.map(|mail| mail.step);
            assert_eq!(step(t(edge) - ONE), before, "paid {paid}, a second before {edge}");
            assert_eq!(step(t(edge)), after, "paid {paid}, at {edge}");
        }
    }
}

#[test]
fn c022_c023_the_zone_in_which_a_time_is_written_changes_nothing() {
    // Half past midnight on the 1st in Tokyo; New York's clocks go back on 1 November 2026.
    for (paid, now) in [
        ("2026-10-30T00:30:00+09:00", "2026-11-02T00:30:00+09:00"),
        ("2026-10-29T15:30:00Z", "2026-11-01T15:30:00Z"),
        ("2026-10-29T11:30:00-04:00", "2026-11-01T10:30:00-05:00"),
    ] {
        let buyer = buyer([purchase("cs_1", t(paid)).let_in()]);
        assert_eq!(does(&buyer, &free(), t(now)), ["send cs_1:d3"], "{now}");
        assert_eq!(does(&buyer, &free(), t(now) - ONE), Vec::<String>::new(), "{now} less a second");
    }
}

#[test]
fn r6_a_later_mail_keeps_exactly_two_days_from_every_mail_that_left_or_may_have() {
    let now = paid_at() + days(5);
    let left = now - hours(48);
    let table: [(&str, StepState, bool); 10] = [
        ("sent", sent(left), true),
        ("a plan without a result", plan(left), true),
        ("a lost answer", lost(left, left), true),
        ("the last of several lost answers", lost(left - hours(20), left), true),
        ("closed by a stop after an attempt", closed_after(left, now, Stopped), true),
        ("closed after 24 hours", closed_after(left, now, UnknownResult), true),
        ("closed as started after an attempt", closed_after(left, now, Started), true),
        ("closed without an attempt", closed(left, Stopped), false),
        ("rejected", closed(left, Rejected), false),
        ("refused", refused(1, left), false),
    ];
    for (what, state, counts) in table {
        // The other mail belongs to another purchase; d7 of it, so that it is no way in that would hold all.
        let other = purchase("cs_0", paid_at() - days(5)).let_in().with(D7, state);
        let buyer = buyer([other, purchase("cs_1", paid_at()).let_in()]);
        let stands = |now| verdict(&buyer, &buyer.purchases[1], D3, &free(), now);
        assert_eq!(stands(now), Verdict::Due { retry: false }, "{what}, 48 hours ago");
        let expected = if counts { Verdict::Wait(Wait::Spacing(now)) } else { Verdict::Due { retry: false } };
        assert_eq!(stands(now - ONE), expected, "{what}, a second less than 48 hours ago");
    }
}

#[test]
fn r6_the_spacing_holds_inside_one_purchase_too() {
    // d0 waited two days for a template to be mended, and left on the second day and a bit.
    let late = paid_at() + days(2);
    let buyer = buyer([purchase("cs_1", paid_at()).with(D0, sent(late))]);
    assert_eq!(does(&buyer, &free(), late + minus(hours(48), ONE)), Vec::<String>::new());
    assert_eq!(does(&buyer, &free(), late + hours(48)), ["send cs_1:d3"]);
}

#[test]
fn r6_a_plans_own_attempts_do_not_hold_its_retry_but_other_mails_do() {
    let now = paid_at() + days(4);
    for own in [plan(now - hours(1)), lost(now - hours(5), now - ONE), lost(now, now)] {
        let of = |other: Timestamp| {
            buyer([
                purchase("cs_1", paid_at()).let_in().with(D3, own.clone()),
                purchase("cs_2", other).again().let_in(),
            ])
        };
        assert_eq!(does(&of(now - hours(48)), &free(), now), ["retry cs_1:d3"], "{own:?}");
        assert_eq!(does(&of(now - minus(hours(48), ONE)), &free(), now), Vec::<String>::new(), "{own:?}");
    }
}

#[test]
fn r6_the_way_in_ignores_the_spacing_but_counts_for_the_others() {
    let d3_left = paid_at() + days(6);
    let second = purchase("cs_2", d3_left + ONE).again();
    let first = purchase("cs_1", paid_at()).let_in().with(D3, sent(d3_left));
    let before = buyer([first.clone(), second.clone()]);
    assert_eq!(does(&before, &free(), d3_left + ONE), ["send cs_2:d0"]);
    let after = buyer([first, second.let_in()]);
    assert_eq!(does(&after, &free(), d3_left + hours(48)), Vec::<String>::new());
    assert_eq!(does(&after, &free(), d3_left + ONE + hours(48)), ["send cs_1:d7"]);
}

#[test]
fn c006_a_lost_answer_is_asked_again_until_a_quarter_hour_before_the_service_forgets() {
    let first = paid_at() + days(3);
    let end = minus(hours(24), Seconds::minutes(15));
    let day = remembers(days(1));
    for state in [plan(first), lost(first, first), lost(first, first + hours(20))] {
        // d0 too, though it has no window.
        for step in [D0, D3] {
            let mut purchase = purchase("cs_1", paid_at()).let_in().with(step, state.clone());
            if step == D0 {
                purchase = purchase.with(D3, closed(first, Started));
            }
            let buyer = buyer([purchase]);
            let tried = does(&buyer, &day, first + minus(end, ONE));
            assert_eq!(tried, [format!("retry cs_1:{step}")], "23:44:59, {state:?}");
            let over = does(&buyer, &day, first + end);
            assert_eq!(over, [format!("close cs_1:{step} unknown_result")], "23:45:00, {state:?}");
        }
    }
}

#[test]
fn r9_the_day_counts_from_the_first_lost_answer_not_from_the_plan_or_the_last() {
    let state = StepState::Planned {
        at: paid_at() - hours(3),
        first_unknown_at: Some(paid_at()),
        last_unknown_at: Some(paid_at() + hours(9)),
        message: Box::new(frozen()),
        refused: None,
    };
    let buyer = buyer([purchase("cs_1", paid_at()).with(D0, state)]);
    let end = paid_at() + minus(hours(24), Seconds::minutes(15));
    assert_eq!(does(&buyer, &remembers(days(1)), end - ONE), ["retry cs_1:d0"]);
    assert_eq!(does(&buyer, &remembers(days(1)), end), ["close cs_1:d0 unknown_result"]);
}

#[test]
fn r9_a_service_without_keys_is_never_asked_twice_and_the_outbox_always() {
    let buyer = buyer([purchase("cs_1", paid_at()).with(D0, plan(paid_at()))]);
    assert_eq!(does(&buyer, &remembers(Seconds(0)), paid_at()), ["close cs_1:d0 unknown_result"]);
    let year = ask(&buyer, &free(), paid_at() + days(365));
    assert!(year.mail.is_some_and(|mail| mail.retry && mail.step == D0));
}

#[test]
fn r9_an_open_plan_is_not_tried_after_its_window_and_is_not_called_stale() {
    for (step, end) in [(D3, 7), (D7, 14), (D14, 28)] {
        let end = paid_at() + days(end);
        let mut purchase = purchase("cs_1", paid_at()).let_in();
        for other in [D3, D7, D14] {
            purchase = purchase.with(other, closed(paid_at(), Rejected));
        }
        let buyer = buyer([purchase.with(step, lost(end - hours(2), end - hours(1)))]);
        assert_eq!(does(&buyer, &free(), end - ONE), [format!("retry cs_1:{step}")]);
        assert_eq!(does(&buyer, &free(), end), [format!("close cs_1:{step} unknown_result")]);
    }
}

/// Every combination of what may be true of one step, against the order in which R7 names the reasons.
#[test]
fn r7_reasons_go_in_the_written_order_in_every_combination() {
    let policy = remembers(days(1));
    for bits in 0u32..1 << 9 {
        let on = |bit: u32| bits & (1 << bit) != 0;
        let [history, repurchase, bought_before, stopped_buyer, stopped_session] = [0, 1, 2, 3, 4].map(on);
        let [started_buyer, started_session, over, planned] = [5, 6, 7, 8].map(on);
        if history && (repurchase || planned) {
            continue; // One purchase has one kind, and history is never planned.
        }
        for step in [D0, D3, D7] {
            let opens = if step == D7 { days(7) } else { days(3) };
            // For a plan, "over" is the end of 24 hours; else the end of the window.
            let now = match (over, step, planned) {
                (false, ..) => paid_at() + opens + hours(2),
                (true, _, true) => paid_at() + opens + hours(30),
                (true, ..) => paid_at() + days(20),
            };
            let mut purchase = purchase("cs_1", paid_at()).let_in();
            for other in [D3, D7, D14] {
                purchase = purchase.with(other, closed(paid_at(), Rejected));
            }
            let state = if planned { plan(paid_at() + opens + hours(1)) } else { StepState::pending() };
            purchase = purchase.with(step, state);
            purchase.kind = match (history, repurchase) {
                (true, _) => Kind::History,
                (_, true) => Kind::Repurchase,
                _ => Kind::First,
            };
            purchase.stopped = stopped_session.then(|| mark(paid_at()));
            purchase.started = started_session.then(|| mark(paid_at()));
            let mut buyer = buyer([purchase]);
            buyer.stopped = stopped_buyer.then(|| mark(paid_at()));
            buyer.started = started_buyer.then(|| mark(paid_at()));
            buyer.bought_before = bought_before.then(|| mark(paid_at()));

            let stopped = stopped_buyer || stopped_session;
            let started = (started_buyer || started_session) && step == D3;
            let again = (repurchase || bought_before) && step != D0;
            let order = if planned {
                vec![(stopped, Stopped), (started, Started), (again, Repurchase), (over, UnknownResult)]
            } else {
                let too_late = over && step != D0;
                vec![
                    (history, History),
                    (again, Repurchase),
                    (stopped, Stopped),
                    (started, Started),
                    (too_late, CloseReason::Stale),
                ]
            };
            let expected = match order.into_iter().find(|(holds, _)| *holds) {
                Some((_, reason)) => format!("close cs_1:{step} {}", reason.name()),
                None => format!("{} cs_1:{step}", if planned { "retry" } else { "send" }),
            };
            assert_eq!(does(&buyer, &policy, now), [expected], "combination {bits:09b}");
        }
    }
}

#[test]
fn c018_nothing_follows_a_stop_on_day_five() {
    let mut buyer = buyer([purchase("cs_1", paid_at()).let_in().with(D3, sent(paid_at() + days(3)))]);
    buyer.purchases[0].stopped = Some(mark(paid_at() + days(5)));
    for day in 5..30 {
        assert_eq!(
            does(&buyer, &free(), paid_at() + days(day)),
            ["close cs_1:d7 stopped", "close cs_1:d14 stopped"],
            "day {day}"
        );
    }
}

#[test]
fn c019_a_stop_by_address_ends_both_purchases_and_a_stop_by_session_only_that_one() {
    let now = paid_at() + days(7);
    let both = || {
        buyer([
            purchase("cs_1", paid_at()).let_in().with(D3, sent(paid_at() + days(3))),
            purchase("cs_2", now).again(),
        ])
    };
    let mut by_address = both();
    by_address.stopped = Some(mark(now));
    assert_eq!(
        does(&by_address, &free(), now),
        ["close cs_1:d7 stopped", "close cs_1:d14 stopped", "close cs_2:d0 stopped"]
    );
    let mut by_first = both();
    by_first.purchases[0].stopped = Some(mark(now));
    assert_eq!(
        does(&by_first, &free(), now),
        ["close cs_1:d7 stopped", "close cs_1:d14 stopped", "send cs_2:d0"]
    );
    // The way in of the stopped session does not hold the other sequence, even in the run that closes it.
    let mut by_second = both();
    by_second.purchases[1].stopped = Some(mark(now));
    assert_eq!(does(&by_second, &free(), now), ["close cs_2:d0 stopped", "send cs_1:d7"]);
}

#[test]
fn c020_a_stop_ends_an_open_plan_without_a_retry() {
    let now = paid_at() + days(4);
    for step in [D0, D3] {
        let mut purchase =
            purchase("cs_1", paid_at()).let_in().with(step, lost(now - hours(2), now - hours(1)));
        for rest in [D3, D7, D14].into_iter().filter(|rest| *rest != step) {
            purchase = purchase.with(rest, closed(now, Rejected));
        }
        let mut buyer = buyer([purchase]);
        buyer.stopped = Some(mark(now));
        assert_eq!(does(&buyer, &free(), now), [format!("close cs_1:{step} stopped")]);
    }
}

#[test]
fn r7_one_who_has_started_gets_no_d3_and_all_the_rest() {
    let now = paid_at() + days(3);
    for by_address in [true, false] {
        for state in [StepState::pending(), plan(now - hours(1)), lost(now - hours(2), now - hours(1))] {
            let mut buyer = buyer([purchase("cs_1", paid_at()).let_in().with(D3, state)]);
            if by_address {
                buyer.started = Some(mark(now));
            } else {
                buyer.purchases[0].started = Some(mark(now));
            }
            assert_eq!(does(&buyer, &free(), now), ["close cs_1:d3 started"]);
            buyer.purchases[0].steps.d3 = closed(now, Started);
            assert_eq!(does(&buyer, &free(), paid_at() + days(7)), ["send cs_1:d7"]);
            buyer.purchases[0].steps.d7 = sent(paid_at() + days(7));
            assert_eq!(does(&buyer, &free(), paid_at() + days(14)), ["send cs_1:d14"]);
            buyer.purchases[0].steps.d0 = StepState::pending();
            assert_eq!(does(&buyer, &free(), paid_at() + days(14)), ["send cs_1:d0"]);
        }
    }
}

#[test]
fn r7_a_paused_buyer_gets_the_way_in_alone_and_windows_go_on_counting() {
    let mut buyer = buyer([purchase("cs_1", paid_at()).let_in()]);
    buyer.paused = Some(mark(paid_at()));
    let now = paid_at() + days(3);
    assert_eq!(does(&buyer, &free(), now), Vec::<String>::new());
    assert_eq!(verdict(&buyer, &buyer.purchases[0], D3, &free(), now), Verdict::Wait(Wait::Paused));
    // An open plan is a d3 like any other: no retry, but its 24 hours run out.
    buyer.purchases[0].steps.d3 = plan(now);
    assert_eq!(does(&buyer, &remembers(days(1)), now + hours(1)), Vec::<String>::new());
    assert_eq!(does(&buyer, &remembers(days(1)), now + hours(24)), ["close cs_1:d3 unknown_result"]);
    buyer.purchases[0].steps.d3 = StepState::pending();
    assert_eq!(does(&buyer, &free(), paid_at() + days(7)), ["close cs_1:d3 stale"]);
    assert_eq!(
        does(&buyer, &free(), paid_at() + days(28)),
        ["close cs_1:d3 stale", "close cs_1:d7 stale", "close cs_1:d14 stale"]
    );
    buyer.purchases.push(purchase("cs_2", now).again());
    assert_eq!(does(&buyer, &free(), now), ["send cs_2:d0"]);
}

#[test]
fn c032_after_a_pause_one_mail_comes_and_no_burst() {
    // Stopped on day 1, taken back on day 15.
    let mut buyer = buyer([purchase("cs_1", paid_at()).let_in()]);
    buyer.paused = Some(mark(paid_at() + days(1)));
    let now = paid_at() + days(15);
    assert_eq!(does(&buyer, &free(), now), ["close cs_1:d3 stale", "close cs_1:d7 stale"]);
    buyer.paused = None;
    assert_eq!(does(&buyer, &free(), now), ["close cs_1:d3 stale", "close cs_1:d7 stale", "send cs_1:d14"]);
}

#[test]
fn r6_a_way_in_that_has_not_left_holds_the_later_mails_of_the_buyer() {
    let now = paid_at() + days(3);
    let table = [
        ("pending", StepState::pending(), "send"),
        ("refused twice", refused(2, now - hours(1)), "send"),
        ("planned", plan(now - hours(1)), "retry"),
        ("lost", lost(now - hours(3), now - hours(1)), "retry"),
    ];
    for (what, state, verb) in table {
        let own = buyer([purchase("cs_1", paid_at()).with(D0, state.clone())]);
        assert_eq!(does(&own, &free(), now), [format!("{verb} cs_1:d0")], "{what}");
        let wait = Verdict::Wait(Wait::UnsentD0);
        assert_eq!(verdict(&own, &own.purchases[0], D3, &free(), now), wait, "{what}");
        let other = buyer([
            purchase("cs_1", paid_at()).let_in(),
            purchase("cs_2", now - hours(50)).again().with(D0, state),
        ]);
        assert_eq!(does(&other, &free(), now), [format!("{verb} cs_2:d0")], "{what}, of another purchase");
        assert_eq!(verdict(&other, &other.purchases[0], D3, &free(), now), wait, "{what}");
    }
    for reason in [Rejected, UnknownResult, Stopped] {
        let settled = buyer([purchase("cs_1", paid_at()).with(D0, closed(paid_at(), reason))]);
        assert_eq!(does(&settled, &free(), now), ["send cs_1:d3"], "{reason:?}");
    }
}

#[test]
fn r6_one_mail_a_run_and_in_the_order_of_preference() {
    let now = paid_at() + days(8);
    let second = |session: &str, ago: i64| purchase(session, now - hours(ago)).again();
    // Everything at once: two ways in (one planned), an open plan, and a new step of another purchase.
    let full = buyer([
        purchase("cs_1", paid_at()).let_in().with(D3, closed(now, Started)),
        purchase("cs_2", now - days(4)).with(D0, sent(now - days(3))).with(D3, plan(now - hours(1))),
        second("cs_4", 5),
        second("cs_3", 5).with(D0, plan(now - hours(1))),
        second("cs_0", 4),
    ]);
    let mut buyer = full;
    let mut order = Vec::new();
    while let Some(mail) = ask(&buyer, &Policy { spacing: Seconds(0), ..free() }, now).mail {
        order.push(format!("{}:{}", mail.session, mail.step));
        let purchase = buyer.purchases.iter_mut().find(|p| p.session == mail.session).unwrap();
        *purchase.steps.get_mut(mail.step) = sent(now);
    }
    // By payment, then by session; whether one is a retry says nothing among the ways in.
    assert_eq!(order, ["cs_3:d0", "cs_4:d0", "cs_0:d0", "cs_2:d3", "cs_1:d7"]);
}

#[test]
fn r3_one_who_bought_before_the_ledger_gets_the_way_in_alone() {
    let mut buyer = buyer([purchase("cs_1", paid_at())]);
    buyer.bought_before = Some(mark(paid_at()));
    assert_eq!(
        does(&buyer, &free(), paid_at()),
        ["close cs_1:d3 repurchase", "close cs_1:d7 repurchase", "close cs_1:d14 repurchase", "send cs_1:d0"]
    );
}

#[test]
fn r3_a_purchase_marked_as_repurchase_ends_even_an_open_plan_and_keeps_its_attempt() {
    let now = paid_at() + days(4);
    let mut shop = Shop::new();
    let planned = purchase("cs_1", paid_at()).let_in().with(D3, lost(now - hours(2), now - hours(1)));
    shop.record(&[Fact::Admitted { purchase: Box::new(planned) }]);
    shop.mark(Whom::Session(sid("cs_1")), MarkKind::Repurchase, now);
    assert_eq!(
        does(shop.buyer(BUYER), &free(), now),
        ["close cs_1:d3 repurchase", "close cs_1:d7 repurchase", "close cs_1:d14 repurchase"]
    );
    assert_eq!(shop.steps("cs_1", now), "sent repurchase repurchase repurchase");
    assert_eq!(shop.purchase("cs_1").steps.d3.last_left_at(), Some(now - hours(1)));
    // Marking twice changes nothing (C030).
    let once = shop.ledger.clone();
    shop.mark(Whom::Session(sid("cs_1")), MarkKind::Repurchase, now + hours(1));
    assert_eq!(shop.ledger, once);
}

#[test]
fn c008_after_days_without_a_run_a_step_leaves_inside_its_window_or_not_at_all() {
    let buyer = |d3| buyer([purchase("cs_1", paid_at()).let_in().with(D3, d3)]);
    // A: the next run comes at 23:00 on day 6; d7 then waits for its two days.
    let late = paid_at() + days(6) + hours(23);
    assert_eq!(does(&buyer(StepState::pending()), &free(), late), ["send cs_1:d3"]);
    assert_eq!(does(&buyer(sent(late)), &free(), late + minus(hours(48), ONE)), Vec::<String>::new());
    assert_eq!(does(&buyer(sent(late)), &free(), late + hours(48)), ["send cs_1:d7"]);
    // B: at 01:00 on day 7.
    assert_eq!(
        does(&buyer(StepState::pending()), &free(), paid_at() + days(7) + hours(1)),
        ["close cs_1:d3 stale", "send cs_1:d7"]
    );
}

#[test]
fn c025_twelve_runs_in_a_minute_after_ten_days_send_one_mail() {
    let mut shop = Shop::new();
    shop.record(&[Fact::Admitted { purchase: Box::new(purchase("cs_1", paid_at()).let_in()) }]);
    let mut mails = Vec::new();
    for run in 0..12 {
        let now = paid_at() + days(10) + Seconds(5 * run);
        shop.steps("cs_1", now);
        if let Some(mail) = ask(shop.buyer(BUYER), &free(), now).mail {
            let key = IdempotencyKey::Step(mail.session, mail.step);
            mails.push(key.to_string());
            shop.record(&[Fact::Sent { key, at: now, message_id: "m".into(), via: "post".into() }]);
        }
    }
    assert_eq!(mails, ["pp:cs_1:d7"]);
}

fn due(session: &str, step: Step, retry: bool, paid: Timestamp) -> Due {
    let end = match step {
        D0 => None,
        D3 => Some(paid + days(7)),
        D7 => Some(paid + days(14)),
        D14 => Some(paid + days(28)),
    };
    Due { session: sid(session), step, retry, paid_at: paid, closes: end }
}

#[test]
fn over_all_buyers_the_way_in_goes_first_then_what_ends_soonest_then_retries() {
    let at = |n: i64| paid_at() + days(n);
    let mut mails = vec![
        due("cs_9", D0, true, at(0)),
        due("cs_8", D3, true, at(0)),
        due("cs_7", D14, false, at(0)),
        due("cs_6", D3, false, at(20)),
        due("cs_5", D7, false, at(13)),
        due("cs_4", D0, false, at(25)),
        due("cs_3", D0, false, at(24)),
        due("cs_2", D3, false, at(20)),
    ];
    sort_for_sending(&mut mails);
    let order: Vec<_> = mails.iter().map(|mail| mail.session.as_str()).collect();
    // cs_2, cs_5, cs_6 end on day 27, cs_7 on day 28.
    assert_eq!(order, ["cs_3", "cs_4", "cs_2", "cs_5", "cs_6", "cs_7", "cs_9", "cs_8"]);
}

#[test]
fn r4_the_brake_counts_old_ways_in_and_later_steps_but_neither_fresh_ones_nor_retries() {
    let now = paid_at();
    let table = [
        (D0, false, days(0), false),
        (D0, false, days(1), false),
        (D0, false, plus(days(1), ONE), true),
        (D0, true, days(300), false),
        (D3, false, days(3), true),
        (D14, false, days(20), true),
        (D3, true, days(3), false),
    ];
    for (step, retry, age, counts) in table {
        let mail = due("cs_1", step, retry, now - age);
        assert_eq!(counts_for_brake(&mail, now), counts, "{step}, retry {retry}, {age} old");
    }
}

#[test]
fn r4_a_humans_go_holds_for_a_day_and_never_lowers_the_limit() {
    let policy = Policy { max_mails_per_run: 200, ..free() };
    let go = |mails| Allowed { at: paid_at(), mails };
    assert_eq!(mails_allowed(&policy, None, paid_at()), 200);
    assert_eq!(mails_allowed(&policy, Some(&go(300)), paid_at()), 300);
    assert_eq!(mails_allowed(&policy, Some(&go(300)), paid_at() + days(1) - ONE), 300);
    assert_eq!(mails_allowed(&policy, Some(&go(300)), paid_at() + days(1)), 200);
    assert_eq!(mails_allowed(&policy, Some(&go(5)), paid_at()), 200);
}
