//! What a run does with a service that asks to wait, has a clock, and can be asked about its mails.

use super::*;

fn later(retry_after: Option<i64>) -> Outcome {
    Outcome::NotSent { reason: "too many requests".to_owned(), retry_after: retry_after.map(Seconds) }
}

/// A mail to the buyer of `cs_0`, as the service lists it.
fn listed(id: &str, at: &str, fate: Option<FateKind>) -> Listed {
    let to = Some(vec!["b0@example.com".parse().unwrap()]);
    Listed {
        id: id.to_owned(),
        to,
        subject: "About your purchase".to_owned(),
        created_at: Some(time(at)),
        fate,
    }
}

fn tagged(session: &str, step: Step) -> Tagged {
    Tagged { session: session.parse().unwrap(), step }
}

/// Somebody else's mail, which shows how far back the list goes.
fn old(at: &str) -> (Listed, Option<Tagged>) {
    let to = Some(vec!["somebody@example.com".parse().unwrap()]);
    let (id, subject) = (format!("old {at}"), "else".to_owned());
    (Listed { id, to, subject, created_at: Some(time(at)), fate: None }, None)
}

fn results(report: &RunReport) -> Vec<crate::domain::outcome::MailResult> {
    report.mails.iter().map(|mail| mail.result).collect()
}

#[test]
fn c047_a_mail_that_was_to_come_later_is_tried_again_within_seconds_and_no_more_than_three_times() {
    use crate::domain::outcome::MailResult::{Deferred, Sent};
    let service = Script::new(vec![later(None), later(Some(2))]);
    let mut page = shop_of(1, &service);
    assert_eq!(results(&run_at(&mut page, &service, "2026-10-01T01:00:00Z")), [Sent]);
    assert_eq!(service.keys().len(), 3);
    let bodies: Vec<String> = service.asked.borrow().iter().map(|(_, body)| body.clone()).collect();
    assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]), "other bytes");

    let service = Script::new((0..4).map(|_| later(None)).collect());
    let mut page = shop_of(1, &service);
    let report = run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    assert_eq!((results(&report), u8::from(report.exit)), (vec![Deferred], 75));
    assert_eq!(service.keys().len(), 4);
    assert_eq!(*d0(&page, "cs_0"), StepState::pending(), "nothing left, so nothing is planned");
}

#[test]
fn c047_a_service_that_wants_an_hour_ends_the_sending_and_is_told_apart_from_a_refusal() {
    let service = Script::new(vec![later(Some(3600))]);
    let mut page = shop_of(3, &service);
    let report = run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    assert_eq!((service.keys().len(), u8::from(report.exit)), (1, 75));
    assert!(report.stopped_early.unwrap().contains("2026-10-01T02:00:00Z"));
    assert_eq!(run_at(&mut page, &service, "2026-10-01T02:00:00Z").mails.len(), 3);
}

#[test]
fn c054_a_mail_that_is_still_being_worked_on_is_asked_for_again_with_the_same_key() {
    use crate::domain::outcome::MailResult::Sent;
    let busy = || Outcome::Unknown { reason: "in progress".to_owned(), in_progress: true };
    let service = Script::new(vec![busy(), busy()]);
    let mut page = shop_of(1, &service);
    assert_eq!(results(&run_at(&mut page, &service, "2026-10-01T01:00:00Z")), [Sent]);
    assert_eq!(service.keys(), ["pp:cs_0:d0"; 3]);

    // And if it stays so, the plan stays: a later "no" says nothing about the first try.
    let service = Script::new(vec![busy(), later(None), later(None), later(None)]);
    let mut page = shop_of(1, &service);
    run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    assert!(matches!(d0(&page, "cs_0"), StepState::Planned { first_unknown_at: Some(_), .. }));
}

#[test]
fn c006_a_run_that_is_made_to_wait_past_the_margin_sends_nothing_under_that_key() {
    let clock = Clock::new(None);
    let start = clock.moment().now;
    let mut service = Script::new(vec![unknown()]);
    let mut page = shop_of(1, &service);
    // An attempt got no answer 23 h 40 min ago.
    let ago = (start - Seconds::hours(23) - Seconds::minutes(40)).to_string();
    page.0.go_live = time("2026-01-01T00:00:00Z");
    run_at(&mut page, &service, &ago);
    assert_eq!(service.keys().len(), 1);
    // Meanwhile somebody bought, whose mail goes first, and takes six minutes.
    let event = format!(
        r#"{{"id":"e9","type":"checkout.completed","session":"cs_9","email":"b9@example.com","paid_at":"{ago}"}}"#
    );
    let batch = source::parse("events", event.as_bytes(), &source::Rules::plain(true)).unwrap().incoming;
    intake::take_in(&mut page, batch, start, &mut RunReport::new(false)).unwrap();
    service.slow = Some((clock.clone(), 6 * 60));
    let (_, report) = run_by(&mut page, &service, &clock, Known::default());
    assert_eq!(
        service.keys(),
        ["pp:cs_0:d0", "pp:cs_9:d0"],
        "asked after the service may have forgotten the key"
    );
    assert!(report.closed.is_empty(), "the next run closes it");

    // The same when the service asks for the pause itself.
    let mut service = Script::new(vec![unknown(), later(Some(60)), later(Some(60)), later(Some(60))]);
    let mut page = shop_of(1, &service);
    page.0.go_live = time("2026-01-01T00:00:00Z");
    let clock = Clock::new(None);
    run_at(
        &mut page,
        &service,
        &(clock.moment().now - Seconds::hours(23) - Seconds::minutes(43)).to_string(),
    );
    service.slow = Some((clock.clone(), 30));
    run_by(&mut page, &service, &clock, Known::default());
    assert_eq!(service.keys().len(), 3, "90 s after 23 h 43 min nothing may be asked any more");
}

#[test]
fn r9_after_twenty_minutes_the_rest_waits_for_the_next_hour() {
    let clock = Clock::new(None);
    let now = clock.moment().now;
    let mut service = Script::default();
    let mut page = shop_of(5, &service);
    page.0.go_live = time("2026-01-01T00:00:00Z");
    service.slow = Some((clock.clone(), 9 * 60));
    let (_, report) = run_by(&mut page, &service, &clock, Known::default());
    assert_eq!((service.keys().len(), u8::from(report.exit)), (3, 75), "{now}");
    assert!(report.stopped_early.unwrap().contains("20 minutes"));
}

#[test]
fn r12_offline_nothing_is_closed_sent_or_written_and_a_run_without_work_asks_nobody() {
    let clock = Clock::new(None);
    let mut service =
        Script { time: Some(Err(NoClock::Offline("no connection".to_owned()))), ..Script::default() };
    let mut page = shop_of(1, &service);
    let before = page.0.clone();
    let (ended, report) = run_by(&mut page, &service, &clock, Known::default());
    assert_eq!((ended, u8::from(report.exit), service.keys().len()), (Ended::Held, 75, 0));
    assert!(report.stopped_early.unwrap().contains("no connection"));
    assert_eq!(page.0, before, "an offline run wrote something");

    service.time = Some(Err(NoClock::Undated));
    let (ended, report) = run_by(&mut page, &service, &clock, Known::default());
    assert_eq!((ended, u8::from(report.exit), service.keys().len()), (Ended::Held, 75, 0));
    assert!(report.stopped_early.unwrap().contains("without a Date"));

    service.time = Some(Ok(clock.moment().now));
    let (ended, report) = run_by(&mut page, &service, &clock, Known::default());
    assert_eq!((ended, u8::from(report.exit), service.keys().len()), (Ended::Done, 0, 1));
    let asked = service.times_asked.get();
    run_by(&mut page, &service, &clock, Known::default());
    assert_eq!(service.times_asked.get(), asked, "a run with nothing to do asked for the time");
}

#[test]
fn r12_a_clock_that_no_service_agrees_with_holds_the_run_and_the_operator_is_told_once() {
    let clock = Clock::new(None);
    let apart = clock.moment().now + Seconds::minutes(11);
    let service = Script { time: Some(Ok(apart)), ..Script::default() };
    let mut page = shop_of(1, &service);
    for _ in 0..2 {
        let (ended, report) = run_by(&mut page, &service, &clock, Known::default());
        assert_eq!(
            (ended, u8::from(report.exit), kinds(&report)),
            (Ended::Held, 1, vec![MatterKind::ClockBehind])
        );
    }
    assert!(service.keys().is_empty());
    let accepted = Known { clock_accepted: true, ..Known::default() };
    assert_eq!(run_by(&mut page, &service, &clock, accepted).0, Ended::Done);
    assert_eq!(service.keys().len(), 1);
}

/// What the list shows, in words and in mails, and what becomes of the mail.
type Row = (&'static str, Vec<(Listed, Option<Tagged>)>, &'static str);

#[test]
fn r10_a_lost_answer_is_looked_up_before_its_step_is_closed() {
    // After a day, what the list shows, and what becomes of the mail that may have left at 01:00.
    let ours = || (listed("m1", "2026-10-01T01:00:02Z", None), Some(tagged("cs_0", Step::D0)));
    let other_step = || (listed("m2", "2026-10-01T01:00:02Z", None), Some(tagged("cs_0", Step::D3)));
    let untagged = || (listed("m3", "2026-10-01T01:00:02Z", None), None);
    let nameless = || (Listed { subject: String::new(), ..listed("m4", "2026-10-01T01:00:02Z", None) }, None);
    let before = || old("2026-10-01T00:49:59Z");
    let just_not = || old("2026-10-01T00:50:00Z");
    let table: [Row; 9] = [
        ("it is there", vec![ours(), before()], "sent"),
        ("it is there, and the list ends", vec![ours()], "sent"),
        ("another of our mails, and the list goes back far enough", vec![other_step(), before()], "anew"),
        ("nothing, and the list goes back far enough", vec![before()], "anew"),
        ("nothing, and the list ends ten minutes before", vec![just_not()], "unknown_result"),
        ("nothing at all", vec![], "unknown_result"),
        ("a mail that says not whose it is", vec![untagged(), before()], "unknown_result"),
        (
            "one whose subject cannot be read and that says not whose it is",
            vec![nameless(), before()],
            "unknown_result",
        ),
        ("it stands behind another", vec![other_step(), untagged(), ours(), before()], "sent"),
    ];
    for (what, mails, becomes) in table {
        let service = Script::listing(vec![unknown()], mails);
        let mut page = shop_of(1, &service);
        run_at(&mut page, &service, "2026-10-01T01:00:00Z");
        if let StepState::Planned { message, .. } = d0(&page, "cs_0") {
            // The subject that the service lists is the one that was sent.
            for (mail, _) in &mut *service.list.as_ref().unwrap().mails.borrow_mut() {
                if mail.id == "m3" {
                    mail.subject.clone_from(&message.subject);
                }
            }
        }
        let report = run_at(&mut page, &service, "2026-10-02T01:00:00Z");
        let asked = service.asked.borrow();
        match becomes {
            "sent" => {
                assert!(
                    matches!(d0(&page, "cs_0"), StepState::Sent { message_id, .. } if message_id == "m1"),
                    "{what}"
                );
                assert_eq!((asked.len(), u8::from(report.exit)), (1, 0), "{what}: asked again");
            }
            "anew" => {
                assert!(
                    matches!(d0(&page, "cs_0"), StepState::Sent { .. }),
                    "{what}: {:?}",
                    d0(&page, "cs_0")
                );
                assert_eq!(asked.len(), 2, "{what}");
                assert_eq!(asked[0], asked[1], "{what}: another key or other bytes");
            }
            _ => {
                assert!(
                    matches!(d0(&page, "cs_0"), StepState::Closed { reason: CloseReason::UnknownResult, .. }),
                    "{what}: {:?}",
                    d0(&page, "cs_0")
                );
                assert_eq!(kinds(&report), [MatterKind::UnknownResult], "{what}");
                assert_eq!(service.keys().len(), 1, "{what}: asked again");
            }
        }
    }
}

#[test]
fn r10_a_list_that_cannot_be_read_or_is_another_accounts_proves_nothing() {
    let closed = |page: &Sheet| {
        matches!(d0(page, "cs_0"), StepState::Closed { reason: CloseReason::UnknownResult, .. })
    };
    let far_back = || old("2026-10-01T00:00:00Z");
    // Not allowed, broken, pages that repeat.
    let broken: [fn(&List); 2] = [
        |list| *list.fails.borrow_mut() = Some(Unreadable::NotAllowed),
        |list| {
            *list.fails.borrow_mut() =
                Some(Unreadable::Failed { reason: "500".to_owned(), retry_after: None });
        },
    ];
    for break_it in broken {
        let service = Script::listing(vec![unknown()], vec![far_back()]);
        break_it(service.list.as_ref().unwrap());
        let mut page = shop_of(1, &service);
        run_at(&mut page, &service, "2026-10-01T01:00:00Z");
        run_at(&mut page, &service, "2026-10-02T01:00:00Z");
        assert!(closed(&page) && service.keys().len() == 1);
    }
    let mut service = Script::listing(vec![unknown()], vec![old("2026-10-01T20:00:00Z"), far_back()]);
    let list = service.list.as_mut().unwrap();
    (list.per_page, list.repeats) = (1, true);
    let mut page = shop_of(1, &service);
    run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    run_at(&mut page, &service, "2026-10-02T01:00:00Z");
    assert!(closed(&page), "a page that repeats was taken for the end");

    // A second buyer's mail was accepted; the list that is read does not have it.
    let service = Script::listing(vec![unknown()], vec![far_back()]);
    let mut page = shop_of(2, &service);
    run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    run_at(&mut page, &service, "2026-10-02T01:00:00Z");
    assert!(closed(&page), "the list of another account was believed");
    let theirs = (listed("id of pp:cs_1:d0", "2026-10-01T01:00:05Z", None), Some(tagged("cs_1", Step::D0)));
    let service = Script::listing(vec![unknown()], vec![theirs, far_back()]);
    let mut page = shop_of(2, &service);
    run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    run_at(&mut page, &service, "2026-10-02T01:00:00Z");
    assert!(matches!(d0(&page, "cs_0"), StepState::Sent { .. }));
}

#[test]
fn r10_a_list_that_stumbles_once_leaves_nothing_to_a_person() {
    let ours = (listed("m1", "2026-10-01T01:00:02Z", None), Some(tagged("cs_0", Step::D0)));
    for (stumbles, becomes) in [(2, "sent"), (3, "unknown_result")] {
        let service = Script::listing(vec![unknown()], vec![ours.clone()]);
        let mut page = shop_of(1, &service);
        run_at(&mut page, &service, "2026-10-01T01:00:00Z");
        service.list.as_ref().unwrap().stumbles.set(stumbles);
        run_at(&mut page, &service, "2026-10-02T01:00:00Z");
        let is = match d0(&page, "cs_0") {
            StepState::Sent { .. } => "sent",
            StepState::Closed { reason, .. } => reason.name(),
            _ => "open",
        };
        assert_eq!(is, becomes, "after {stumbles} answers that were none");
    }
}

#[test]
fn r12_a_line_that_stumbles_for_a_second_does_not_cost_the_hour() {
    let clock = Clock::new(None);
    for (stumbles, ended) in [(2, Ended::Done), (3, Ended::Held)] {
        let time = Some(Ok(clock.moment().now));
        let service = Script { time, offline: Cell::new(stumbles), ..Script::default() };
        let mut page = shop_of(1, &service);
        assert_eq!(run_by(&mut page, &service, &clock, Known::default()).0, ended, "{stumbles}");
    }
}

#[test]
fn r9_a_conflict_whose_mail_is_in_the_list_was_sent() {
    let conflict = || Outcome::Conflict { reason: "other content".to_owned() };
    let ours = (listed("m1", "2026-10-01T00:10:00Z", None), Some(tagged("cs_0", Step::D0)));
    let service = Script::listing(vec![conflict()], vec![ours]);
    let mut page = shop_of(1, &service);
    let report = run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    assert!(matches!(d0(&page, "cs_0"), StepState::Sent { message_id, .. } if message_id == "m1"));
    assert_eq!(u8::from(report.exit), 0);
    let service = Script::listing(vec![conflict()], vec![old("2026-09-29T00:00:00Z")]);
    let mut page = shop_of(1, &service);
    assert_eq!(kinds(&run_at(&mut page, &service, "2026-10-01T01:00:00Z")), [MatterKind::UnknownResult]);
}

/// A shop whose first buyer's d0 was accepted, with that mail in the service's list.
fn accepted_with(fate: Option<FateKind>) -> (Sheet, Script) {
    let mail = (listed("id of pp:cs_0:d0", "2026-10-01T01:00:01Z", fate), Some(tagged("cs_0", Step::D0)));
    let service = Script::listing(Vec::new(), vec![mail, old("2026-09-01T00:00:00Z")]);
    let mut page = shop_of(1, &service);
    run_at(&mut page, &service, "2026-10-01T01:00:00Z");
    (page, service)
}

#[test]
fn r13_a_mail_that_bounced_or_was_called_spam_stops_the_buyer_and_a_human_is_told_once() {
    for (fate, kind) in
        [(FateKind::Bounced, MatterKind::Bounced), (FateKind::Complained, MatterKind::Complained)]
    {
        let (mut page, service) = accepted_with(Some(fate));
        let report = run_at(&mut page, &service, "2026-10-01T02:00:00Z");
        assert_eq!(kinds(&report), [kind]);
        let stopped = page.0.buyers.all()[0].stopped.clone().unwrap();
        assert_eq!(stopped.reason.as_deref(), Some(fate.name()));
        let closed: Vec<CloseReason> = report.closed.iter().map(|closed| closed.reason).collect();
        assert_eq!(closed, [CloseReason::Stopped; 3]);
        assert!(kinds(&run_at(&mut page, &service, "2026-10-01T03:00:00Z")).is_empty());
        let pages = service.list.as_ref().unwrap().pages.get();
        run_at(&mut page, &service, "2026-10-01T04:00:00Z");
        assert_eq!(service.list.as_ref().unwrap().pages.get(), pages, "a final fate is asked for again");
    }
}

#[test]
fn r13_delivered_is_no_end_a_complaint_can_follow() {
    let (mut page, service) = accepted_with(Some(FateKind::Delivered));
    assert!(kinds(&run_at(&mut page, &service, "2026-10-01T02:00:00Z")).is_empty());
    assert!(
        matches!(d0(&page, "cs_0"), StepState::Sent { fate: Some(fate), .. } if fate.what == FateKind::Delivered)
    );
    service.list.as_ref().unwrap().mails.borrow_mut()[0].0.fate = Some(FateKind::Complained);
    assert_eq!(kinds(&run_at(&mut page, &service, "2026-10-03T02:00:00Z")), [MatterKind::Complained]);
}

#[test]
fn r13_a_d0_that_the_service_did_not_send_is_told_and_stops_nobody() {
    for fate in [FateKind::Suppressed, FateKind::Failed] {
        let (mut page, service) = accepted_with(Some(fate));
        assert_eq!(kinds(&run_at(&mut page, &service, "2026-10-01T02:00:00Z")), [MatterKind::NotDelivered]);
        assert!(page.0.buyers.all()[0].stopped.is_none());
    }
}

#[test]
fn r13_fates_are_asked_for_by_the_page_for_seven_days_and_not_with_a_key_that_may_not_read() {
    let (mut page, service) = accepted_with(None);
    let list = service.list.as_ref().unwrap();
    let pages = list.pages.get();
    run_at(&mut page, &service, "2026-10-03T01:00:00Z");
    assert_eq!(list.pages.get(), pages + 1);
    *list.fails.borrow_mut() = Some(Unreadable::NotAllowed);
    assert_eq!(u8::from(run_at(&mut page, &service, "2026-10-04T01:00:00Z").exit), 0);
    *list.fails.borrow_mut() = None;
    let pages = list.pages.get();
    run_at(&mut page, &service, "2026-11-01T01:00:01Z");
    assert_eq!(list.pages.get(), pages);
}

#[test]
fn a_service_whose_bounces_cannot_be_read_for_six_hours_lets_only_d0_leave() {
    let (mut page, service) = accepted_with(None);
    run_at(&mut page, &service, "2026-10-03T20:00:00Z");
    let failed = Unreadable::Failed { reason: "503".to_owned(), retry_after: None };
    *service.list.as_ref().unwrap().fails.borrow_mut() = Some(failed);
    // Somebody buys; d3 of the first buyer opens on the 4th at 00:00:00.
    let event = r#"{"id":"e9","type":"checkout.completed","session":"cs_9","email":"b9@example.com","paid_at":"2026-10-04T01:00:00Z"}"#;
    let batch = source::parse("events", event.as_bytes(), &source::Rules::plain(true)).unwrap().incoming;
    intake::take_in(&mut page, batch, time("2026-10-04T01:00:00Z"), &mut RunReport::new(false)).unwrap();
    let report = run_at(&mut page, &service, "2026-10-04T02:00:01Z");
    assert_eq!(service.keys()[1..], ["pp:cs_9:d0"], "d3 left though a bounce may have gone unread");
    assert_eq!(u8::from(report.exit), 75);
    assert!(report.stopped_early.unwrap().contains("only d0 leaves"));
    *service.list.as_ref().unwrap().fails.borrow_mut() = None;
    run_at(&mut page, &service, "2026-10-04T03:00:00Z");
    assert_eq!(service.keys()[2..], ["pp:cs_0:d3"]);
}

#[test]
fn r15_everything_new_is_told_in_one_mail_and_one_that_got_lost_is_repeated_as_it_was() {
    let no = |what: &str| Outcome::RefusedMail { reason: what.to_owned() };
    let service = Script::new((0..2).flat_map(|_| [no("a"), no("b"), no("c")]).collect());
    let mut page = shop_of(3, &service);
    for now in ["2026-10-01T01:00:00Z", "2026-10-01T02:00:00Z"] {
        run_at(&mut page, &service, now);
    }
    *service.answers.borrow_mut() = vec![no("c"), no("b"), no("a")];
    *service.notices.borrow_mut() = vec![unknown(), unknown()];
    let third = run_at(&mut page, &service, "2026-10-01T03:00:00Z");
    assert_eq!(kinds(&third), [MatterKind::Rejected; 3]);
    assert_eq!((service.notices().len(), third.untold), (1, 3), "three matters, one mail");
    // A fourth matter comes up while the mail's fate is unknown.
    let late = Matter::new(
        MatterKind::PartialRefund,
        "evt_1",
        time("2026-10-01T03:30:00Z"),
        None,
        "late".to_owned(),
    );
    page.record(&[Fact::Matter { matter: Box::new(late) }]).unwrap();
    assert_eq!(run_at(&mut page, &service, "2026-10-01T04:00:00Z").untold, 4);
    assert_eq!(run_at(&mut page, &service, "2026-10-01T05:00:00Z").untold, 1, "one mail per run");
    assert_eq!(run_at(&mut page, &service, "2026-10-01T06:00:00Z").untold, 0);
    assert_eq!(run_at(&mut page, &service, "2026-10-01T07:00:00Z").untold, 0);
    let asked = service.asked.borrow();
    let notices: Vec<_> = asked.iter().filter(|(key, _)| key.contains("notice")).collect();
    assert_eq!(notices.len(), 4);
    assert!(notices[0] == notices[1] && notices[1] == notices[2], "a lost notice was not repeated as it was");
    assert!(notices[3].1.contains("late") && !notices[3].1.contains("refused"), "{}", notices[3].1);
    assert!(page.0.matters.iter().all(|matter| !matter.notice.is_open() && matter.told_with.is_none()));
    assert_eq!(service.keys().len(), 9, "a notice that failed repeated a buyer's mail");
}
