//! A shop over 35 days with everything that can go wrong, and what its buyers find in their mailboxes.
//!
//! The mail service is a plain model: it delivers a key once as long as it remembers it, and its answers get lost. The
//! run is the shortest one that keeps R8. What is asserted is written down here again, from DESIGN and not from the code.

use std::collections::HashMap;

use super::*;
use crate::domain::adopt;
use crate::domain::decide::{Closing, Due, sort_for_sending};
use crate::domain::outcome::{Outcome, settle};
use crate::domain::settle::{Found, is_unsettled, resolve, resume};
use crate::domain::truth::{Truth, settle_plan};
use proptest::prelude::*;

/// What becomes of one attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Accepted,
    /// Delivered, but the answer never comes.
    AnswerLost,
    /// The request itself is lost on the way.
    RequestLost,
    NotSent,
    RefusedMail,
    RefusedAccount,
    /// The process dies between saving the plan and sending.
    DiesBefore,
    /// The process dies between sending and saving the result.
    DiesAfter,
}

#[derive(Clone, Debug, PartialEq)]
struct Delivery {
    session: SessionId,
    step: Step,
    at: Timestamp,
    buyer: String,
}

/// Something that is said at a time: by an event, or by a hand.
#[derive(Clone, Debug)]
enum Said {
    Event(Incoming),
    Hand(Whom, MarkKind),
    /// R7: a stop is lifted.
    Resume(Whom),
    /// R10: somebody looks into the mailboxes, and says of every mail in doubt what became of it.
    Resolve,
    /// The ledger is copied.
    Backup,
    /// R12: the ledger is lost, the copy is put back and adopted, and everything said since is said again.
    PutBack,
}

#[derive(Clone, Debug)]
struct Story {
    /// When it reaches the shop, and what.
    said: Vec<(Timestamp, Said)>,
    runs: Vec<Timestamp>,
    fates: Vec<Fate>,
    /// What the policy says of the service's memory, and the truth.
    retention: Retention,
    memory: Option<Seconds>,
    /// Whether the service has a list that tells the truth.
    lists: bool,
}

struct Play {
    shop: Shop,
    policy: Policy,
    memory: Option<Seconds>,
    lists: bool,
    /// The service: when it first took a key, and with which body.
    taken: HashMap<String, (Timestamp, String)>,
    fates: Vec<Fate>,
    attempts: usize,
    deliveries: Vec<Delivery>,
    stopped: Vec<Whom>,
    /// A copy of the ledger, and how much had been said when it was made.
    backup: Option<(Ledger, usize)>,
}

fn start() -> Timestamp {
    t("2026-09-01T00:00:00Z")
}

impl Play {
    /// Plays a story; `backwards` turns each batch of events around.
    fn of(story: &Story, backwards: bool) -> Self {
        let mut play = Self {
            shop: Shop::new(),
            policy: Policy { retention: story.retention, ..Policy::default() },
            memory: story.memory,
            lists: story.lists,
            taken: HashMap::new(),
            fates: story.fates.clone(),
            attempts: 0,
            deliveries: Vec::new(),
            stopped: Vec::new(),
            backup: None,
        };
        let mut done = 0;
        for &now in &story.runs {
            let fresh = story.said[done..].iter().take_while(|(at, _)| *at <= now).count();
            let mut batch = Vec::new();
            for (n, (at, said)) in story.said[..done + fresh].iter().enumerate().skip(done) {
                match said {
                    Said::Backup => play.backup = Some((play.shop.ledger.clone(), done)),
                    Said::PutBack => {
                        if let Some(since) = play.put_back(*at) {
                            for (at, said) in &story.said[since..n] {
                                play.say(said, *at, &mut batch);
                            }
                        }
                    }
                    Said::Resolve => play.resolve(*at),
                    said => play.say(said, *at, &mut batch),
                }
            }
            done += fresh;
            if backwards {
                batch.reverse();
            }
            play.run(now, batch);
        }
        play
    }

    fn say(&mut self, said: &Said, at: Timestamp, batch: &mut Vec<Incoming>) {
        match said {
            Said::Event(event) => batch.push(event.clone()),
            Said::Hand(whom, mark) => self.hand(whom, *mark, at),
            Said::Resume(whom) => {
                let resumption = resume(&self.shop.ledger, whom, at);
                self.shop.record(&resumption.facts);
                self.stopped.retain(|stopped| stopped != whom);
            }
            // What was found out about a ledger that is lost says nothing of the one in its place.
            Said::Resolve | Said::Backup | Said::PutBack => {}
        }
    }

    /// Says how much had been said when the copy was made.
    fn put_back(&mut self, at: Timestamp) -> Option<usize> {
        let (ledger, since) = self.backup.clone()?;
        self.shop.ledger = ledger;
        let gap = adopt::gap(&self.shop.ledger, at);
        let doubts = adopt::doubts(&self.shop.ledger, gap, &self.policy);
        self.shop.record(&doubts);
        self.shop.record(&[Fact::Adopted { installation: None, path: None, gap: Some(gap) }]);
        Some(since)
    }

    fn resolve(&mut self, at: Timestamp) {
        let purchases = self.shop.ledger.buyers.all().iter().flat_map(|buyer| &buyer.purchases);
        let steps =
            purchases.flat_map(|p| p.steps.iter().map(move |(step, state)| (p.session.clone(), step, state)));
        let doubted: Vec<(SessionId, Step)> = steps
            .filter(|(.., state)| is_unsettled(state) && !state.is_open())
            .map(|(session, step, _)| (session, step))
            .collect();
        for (session, step) in doubted {
            let came = self.deliveries.iter().any(|d| d.session == session && d.step == step);
            let found = if came { Found::Sent(None) } else { Found::NotSent };
            // A rejected mail can have come by an earlier try whose answer was lost; that one stays as it is.
            if let Ok(settlement) = resolve(&self.shop.ledger, &session, step, &found, at) {
                self.shop.record(&settlement.facts);
            }
        }
    }

    fn hand(&mut self, whom: &Whom, mark: MarkKind, at: Timestamp) {
        self.shop.mark(whom.clone(), mark, at);
        if mark == MarkKind::Stopped {
            self.stopped.push(whom.clone());
        }
    }

    fn run(&mut self, now: Timestamp, batch: Vec<Incoming>) {
        for event in &batch {
            if let Incoming::Stop(StopSignal { target: StopTarget::Session(session), .. }) = event {
                self.stopped.push(Whom::Session(session.clone()));
            }
        }
        self.shop.take(now, batch);
        let buyers = self.shop.ledger.buyers.all();
        let closings = buyers.iter().flat_map(|buyer| ask(buyer, &self.policy, now).closings);
        for closing in closings.collect::<Vec<_>>() {
            let told = self.ask_the_service(&closing);
            let (session, step) = (&closing.session, closing.step);
            let retention = self.policy.retention;
            let facts = settle_plan(&self.shop.ledger, session, step, &told, retention, now);
            let facts = facts.unwrap_or_else(|| {
                let key = IdempotencyKey::Step(session.clone(), step);
                vec![Fact::Closed { key, at: now, reason: closing.reason }]
            });
            self.shop.record(&facts);
        }

        let mut mails = Vec::new();
        for buyer in self.shop.ledger.buyers.all() {
            let decision = ask(buyer, &self.policy, now);
            assert_eq!(decision.closings, [], "what is over is closed at once");
            mails.extend(decision.mail);
        }
        sort_for_sending(&mut mails);
        for mail in mails {
            if !self.send(&mail, now) {
                return;
            }
        }
    }

    /// R10: what the service's list proves of a mail that may have left.
    fn ask_the_service(&self, closing: &Closing) -> Truth {
        if closing.reason != CloseReason::UnknownResult || !self.lists {
            return Truth::NotKnown("why".to_owned());
        }
        let mut came = self.deliveries.iter();
        if came.any(|d| d.session == closing.session && d.step == closing.step) {
            Truth::Sent { id: "m".to_owned(), at: None }
        } else {
            Truth::NotSent
        }
    }

    /// One plan, one request, one result. False: the process died.
    fn send(&mut self, mail: &Due, now: Timestamp) -> bool {
        let key = IdempotencyKey::Step(mail.session.clone(), mail.step);
        if mail.retry {
            // Written ahead, as the plan of a first attempt is: this attempt may arrive and the process die.
            self.shop.record(&[Fact::Unknown { key: key.clone(), at: now }]);
        } else {
            // What the templates say changes with time; a retry must bring the same bytes.
            let message = Box::new(Frozen { body: now.to_string(), ..frozen() });
            self.shop.record(&[Fact::Planned { key: key.clone(), at: now, message }]);
        }
        let state = self.shop.purchase(mail.session.as_str()).steps.get(mail.step).clone();
        let StepState::Planned { message, .. } = &state else { panic!("sent without a plan: {state:?}") };
        let fate = self.fates[self.attempts % self.fates.len()];
        self.attempts += 1;
        let why = || String::from("why");
        let outcome = match fate {
            Fate::DiesBefore => return false,
            Fate::RequestLost => Outcome::unknown(why()),
            Fate::NotSent => Outcome::NotSent { reason: why(), retry_after: None },
            Fate::RefusedAccount => Outcome::RefusedAccount { reason: why() },
            // A key that the service has taken is answered as before.
            Fate::RefusedMail if !self.remembers(&key, now) => Outcome::RefusedMail { reason: why() },
            Fate::RefusedMail | Fate::Accepted | Fate::AnswerLost | Fate::DiesAfter => {
                self.reaches_the_service(&key, mail, &message.body, now);
                match fate {
                    Fate::DiesAfter => return false,
                    Fate::AnswerLost => Outcome::unknown(why()),
                    _ => Outcome::Accepted { message_id: "m".into() },
                }
            }
        };
        let settled = settle(&key, &state, mail.retry, self.policy.retention, &outcome, now);
        self.shop.record(&settled.facts);
        true
    }

    fn remembers(&self, key: &IdempotencyKey, now: Timestamp) -> bool {
        let taken = self.taken.get(&key.to_string());
        taken.is_some_and(|(at, _)| self.memory.is_none_or(|memory| now - *at < memory))
    }

    fn reaches_the_service(&mut self, key: &IdempotencyKey, mail: &Due, body: &str, now: Timestamp) {
        if self.remembers(key, now) {
            assert_eq!(self.taken[&key.to_string()].1, body, "R11: {key} came again with other bytes");
        } else {
            self.taken.insert(key.to_string(), (now, body.to_owned()));
            self.delivered(mail, now);
        }
    }

    /// The buyer finds a mail: was it right to send it?
    fn delivered(&mut self, mail: &Due, now: Timestamp) {
        let (session, step) = (&mail.session, mail.step);
        let (buyer, purchase) = self.shop.ledger.buyers.purchase(session).unwrap();
        let what = format!("{session} {step} at {now}, paid {}", purchase.paid_at);
        let same = |d: &&Delivery| d.session == *session && d.step == step;
        assert_eq!(self.deliveries.iter().find(same), None, "never twice: {what}");

        let stopped = self.stopped.iter().any(|whom| match whom {
            Whom::Session(stopped) => stopped == session,
            Whom::Address(address) => address.buyer() == buyer.address,
        });
        assert!(!stopped, "R7: never after a stop: {what}");
        assert_ne!(purchase.kind, Kind::History, "R4: never for history: {what}");

        let elapsed = (now - purchase.paid_at).0;
        let day = 86_400;
        let window = match step {
            Step::D0 => i64::MIN..i64::MAX,
            Step::D3 => 3 * day..7 * day,
            Step::D7 => 7 * day..14 * day,
            Step::D14 => 14 * day..28 * day,
        };
        assert!(window.contains(&elapsed), "R5: never early, never late: {what}");
        if step != Step::D0 {
            for other in self.deliveries.iter().filter(|d| d.buyer == buyer.address.as_str()) {
                assert!((now - other.at).0 >= 2 * day, "R6: {what} is too close to {other:?}");
            }
            let again = purchase.kind == Kind::Repurchase || buyer.bought_before.is_some();
            assert!(!again, "R3: a repurchase gets d0 only: {what}");
            for other in &buyer.purchases {
                let open = other.steps.d0.is_open() && other.kind != Kind::History;
                assert!(!open, "R6: {what} before the way in of {}", other.session);
            }
        }
        let buyer = buyer.address.as_str().to_owned();
        self.deliveries.push(Delivery { session: session.clone(), step, at: now, buyer });
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        5 => Just(Fate::Accepted),
        2 => Just(Fate::AnswerLost),
        1 => Just(Fate::RequestLost),
        1 => Just(Fate::NotSent),
        1 => Just(Fate::RefusedMail),
        1 => Just(Fate::RefusedAccount),
        1 => Just(Fate::DiesBefore),
        2 => Just(Fate::DiesAfter),
    ]
}

/// Runs about every hour for 35 days, with pauses of hours and of days.
fn runs() -> impl Strategy<Value = Vec<Timestamp>> {
    let gap = prop_oneof![70 => 3_300i64..3_900, 3 => 7_200i64..90_000, 1 => 86_400i64..800_000];
    prop::collection::vec(gap, 200..900).prop_map(|gaps| {
        let end = start() + days(35);
        let mut now = start();
        let next = gaps.into_iter().map(|gap| {
            now = now + Seconds(gap);
            now
        });
        next.take_while(|now| *now < end).collect()
    })
}

/// One buyer with up to three purchases: when each is paid, whether it waits for its money, how late the event comes.
fn person(n: usize) -> impl Strategy<Value = Vec<(Timestamp, Said)>> {
    let purchase = (-40_000i64..1_500_000, any::<bool>(), prop_oneof![3 => 0i64..60, 1 => 0i64..400_000]);
    let mark = (0i64..2_500_000, 0..4usize, 0..9u8);
    let marks = prop_oneof![2 => Just(Vec::new()), 3 => prop::collection::vec(mark, 1..3)];
    (prop::collection::vec(purchase, 1..=3), marks).prop_map(move |(purchases, marks)| {
        let mut said = Vec::new();
        for (p, (paid, waits, delay)) in purchases.into_iter().enumerate() {
            let at = start() + Seconds(paid);
            // The same person in another letter case.
            let email = format!("{}{n}@example.com", if p % 2 == 0 { "b" } else { "B" });
            let session = format!("cs_{n}_{p}");
            if waits {
                let before =
                    unpaid(&format!("evt_{n}_{p}_w"), &session, &email, at - hours(5), Payment::Unpaid);
                said.push((at - hours(5), Said::Event(before)));
            }
            let event = bought(&format!("evt_{n}_{p}"), &session, &email, at);
            said.push((at + Seconds(delay), Said::Event(event)));
        }
        for (m, (after, p, kind)) in marks.into_iter().enumerate() {
            let at = start() + Seconds(after);
            let session = sid(&format!("cs_{n}_{p}"));
            // The fourth session never comes; the address stands for the person.
            let whom = if p == 3 {
                Whom::Address(address(&format!("b{n}@example.com")))
            } else {
                Whom::Session(session.clone())
            };
            let what = match kind {
                0 | 1 => Said::Hand(whom, MarkKind::Stopped),
                2 => Said::Event(stop(&format!("stop_{n}_{m}"), at, StopTarget::Session(session))),
                3 | 4 => Said::Hand(whom, MarkKind::Started),
                5 | 6 => Said::Resume(whom),
                _ => Said::Hand(whom, MarkKind::Repurchase),
            };
            said.push((at, what));
        }
        said
    })
}

fn story() -> impl Strategy<Value = Story> {
    let service = prop_oneof![
        // The service remembers a day, and the policy knows it.
        6 => Just((Retention::For(days(1)), Some(days(1)))),
        1 => Just((Retention::Forever, None)),
        // No keys at all: each request is a mail.
        2 => Just((Retention::For(Seconds(0)), Some(Seconds(0)))),
    ];
    let at = 0i64..2_800_000;
    let mishap = prop_oneof![2 => Just(Said::Resolve), 1 => Just(Said::Backup), 1 => Just(Said::PutBack)];
    let mishaps = prop_oneof![
        1 => Just(Vec::new()),
        2 => prop::collection::vec((at.prop_map(|after| start() + Seconds(after)), mishap), 1..6),
    ];
    let people = (person(0), person(1), person(2), mishaps).prop_map(|(a, b, c, d)| {
        let mut said = [a, b, c, d].concat();
        said.sort_by_key(|(at, _)| *at);
        said
    });
    (people, runs(), prop::collection::vec(fate(), 1..40), service, any::<bool>()).prop_map(
        |(said, runs, fates, (retention, memory), lists)| Story {
            said,
            runs,
            fates,
            retention,
            memory,
            lists,
        },
    )
}

/// The last attempt is what the spacing counts from, and a retry that dies unrecorded is one: it is written ahead.
#[test]
fn r6_a_retry_that_arrives_and_dies_still_keeps_the_next_mail_two_days_away() {
    let at = |h: i64| start() + hours(h);
    let story = Story {
        said: vec![
            (at(0), Said::Event(bought("evt_1", "cs_1", BUYER, at(0)))),
            (at(48), Said::Event(bought("evt_2", "cs_2", BUYER, at(48)))),
            (at(71), Said::Hand(Whom::Session(sid("cs_2")), MarkKind::Stopped)),
        ],
        runs: [0, 48, 70, 72, 96, 117, 118].map(at).to_vec(),
        // d0 of cs_1, d0 of cs_2 twice, d3 of cs_1.
        fates: vec![Fate::Accepted, Fate::RequestLost, Fate::DiesAfter, Fate::Accepted],
        retention: Retention::For(days(1)),
        memory: Some(days(1)),
        lists: false,
    };
    let came: Vec<_> = Play::of(&story, false)
        .deliveries
        .iter()
        .map(|d| (d.session.to_string(), d.step, (d.at - start()).0 / 3_600))
        .collect();
    let cs = |n: u8| format!("cs_{n}");
    assert_eq!(came, [(cs(1), Step::D0, 0), (cs(2), Step::D0, 70), (cs(1), Step::D3, 118)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The promises are asserted at each delivery.
    #[test]
    fn never_early_never_late_never_twice_never_after_a_stop(story in story()) {
        let play = Play::of(&story, false);
        // R1: the order inside a batch changes nothing.
        let turned = Play::of(&story, true);
        prop_assert_eq!(play.deliveries, turned.deliveries);
    }

    /// And the mails do come: a test that sends nothing keeps every promise above.
    #[test]
    fn a_buyer_whose_mails_are_accepted_gets_all_four_at_the_first_run_that_may(
        paid in 0i64..400_000, jitter in prop::collection::vec(3_300i64..3_900, 900),
    ) {
        let paid = start() + Seconds(paid);
        let mut now = start();
        let runs: Vec<_> = jitter.into_iter().map(|gap| { now = now + Seconds(gap); now }).collect();
        let story = Story {
            said: vec![(paid, Said::Event(bought("evt_1", "cs_1", BUYER, paid)))],
            runs: runs.clone(),
            fates: vec![Fate::Accepted],
            retention: Retention::For(days(1)),
            memory: Some(days(1)),
            lists: false,
        };
        let play = Play::of(&story, false);
        let came: Vec<_> = play.deliveries.iter().map(|d| (d.step, d.at)).collect();
        let first = |span| runs.iter().copied().find(|run| *run >= paid + span).unwrap();
        let due = [(Step::D0, 0), (Step::D3, 3), (Step::D7, 7), (Step::D14, 14)];
        prop_assert_eq!(came, due.map(|(step, n)| (step, first(days(n)))));
    }

    /// R9, C006: whatever happens to one mail, it is delivered once at most, and a mail that left is never lost from sight.
    #[test]
    fn c006_a_mail_that_left_is_sent_or_waits_for_a_human(
        fates in prop::collection::vec(fate(), 1..30), gaps in prop::collection::vec(600i64..40_000, 60),
        lists in any::<bool>(),
    ) {
        let mut now = start();
        let runs: Vec<_> = gaps.into_iter().map(|gap| { now = now + Seconds(gap); now }).collect();
        let story = Story {
            said: vec![(start(), Said::Event(bought("evt_1", "cs_1", BUYER, start())))],
            runs,
            fates,
            retention: Retention::For(days(1)),
            memory: Some(days(1)),
            lists,
        };
        let play = Play::of(&story, false);
        for (step, state) in play.shop.purchase("cs_1").steps.iter() {
            let left = play.deliveries.iter().any(|d| d.step == step);
            let known = match state {
                StepState::Sent { .. } => left,
                StepState::Closed { reason: CloseReason::UnknownResult, .. } => !lists,
                StepState::Planned { .. } => true,
                StepState::Pending { .. } | StepState::Closed { .. } => !left,
            };
            prop_assert!(known, "{} {:?}, left: {}", step, state, left);
        }
    }
}
