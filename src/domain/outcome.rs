//! R9: what a mail service's answer means, and what follows from it. No service is named here.

use std::time::Duration;

use super::fact::Fact;
use super::ids::IdempotencyKey;
use super::ledger::{CloseReason, StepState};
use super::policy::Retention;
use super::time::{Seconds, Timestamp};

/// Every answer of a mail service, and every failure to get one, is one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The service took the mail and gave it an id.
    Accepted {
        /// The service's id.
        message_id: String,
    },
    /// Nothing left this machine, or the service asked to come later.
    NotSent {
        /// Why, without personal data.
        reason: String,
        /// How long the service asked to wait.
        retry_after: Option<Seconds>,
    },
    /// The service refuses this mail; others may go.
    RefusedMail {
        /// The service's reason, without personal data.
        reason: String,
    },
    /// The service refuses everything of this account, or the sender's settings are wrong.
    RefusedAccount {
        /// The service's reason, without personal data.
        reason: String,
    },
    /// The mail may have left.
    Unknown {
        /// What happened, without personal data.
        reason: String,
        /// The service says that the first try of this key is still being worked on.
        in_progress: bool,
    },
    /// The key is known to the service with another content: an earlier body was taken.
    Conflict {
        /// The service's reason, without personal data.
        reason: String,
    },
}

impl Outcome {
    /// The mail may have left, and nothing more is known.
    #[must_use]
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into(), in_progress: false }
    }
}

/// How often the same content may be refused before its step is closed.
const REFUSALS_MAX: u32 = 3;
/// So many unknown or network outcomes in a row end the sending of a run.
const TROUBLES_MAX: u32 = 5;
/// The same refusal for so many buyers running is about the account, not about them.
const EQUAL_REFUSALS_MAX: u32 = 3;

/// What is recorded after an attempt, and how it is called in reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// To be recorded before anything else is sent.
    pub facts: Vec<Fact>,
    /// For the report.
    pub result: MailResult,
    /// The step was closed for a human to look at.
    pub closed: Option<CloseReason>,
}

/// The word for a mail in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MailResult {
    /// A dry run would send it.
    WouldSend,
    /// Accepted.
    Sent,
    /// Did not leave; a later run tries.
    Deferred,
    /// The service refuses this mail.
    Refused,
    /// May have left.
    Unknown,
}

/// What follows from an attempt made at `at` on the plan in `state`. `retry` says that the plan had been tried before
/// this run: then an attempt of it may have arrived, and a "no" to this one says nothing about that.
#[must_use]
pub fn settle(
    key: &IdempotencyKey,
    state: &StepState,
    retry: bool,
    retention: Retention,
    outcome: &Outcome,
    at: Timestamp,
) -> Settled {
    let key = key.clone();
    let maybe_arrived = retry || matches!(state, StepState::Planned { first_unknown_at: Some(_), .. });
    let settled = |facts, result, closed| Settled { facts, result, closed };
    match outcome {
        Outcome::Accepted { message_id } => {
            let via = match state {
                StepState::Planned { message, .. } => message.via.clone(),
                _ => String::new(),
            };
            settled(vec![Fact::Sent { key, at, message_id: message_id.clone(), via }], MailResult::Sent, None)
        }
        Outcome::NotSent { .. } | Outcome::RefusedAccount { .. } if maybe_arrived => {
            settled(Vec::new(), MailResult::Deferred, None)
        }
        Outcome::NotSent { .. } | Outcome::RefusedAccount { .. } => {
            settled(vec![Fact::NotSent { key }], MailResult::Deferred, None)
        }
        Outcome::RefusedMail { .. } if maybe_arrived => settled(Vec::new(), MailResult::Refused, None),
        Outcome::RefusedMail { reason } => {
            let hash = match state {
                StepState::Planned { message, .. } => message.hash.clone(),
                _ => String::new(),
            };
            let before =
                state.refusals().filter(|refused| refused.hash == hash).map_or(0, |refused| refused.count);
            let mut facts = vec![Fact::Refused { key: key.clone(), at, hash, reason: reason.clone() }];
            let closed = (before + 1 >= REFUSALS_MAX).then_some(CloseReason::Rejected);
            facts.extend(closed.map(|reason| Fact::Closed { key, at, reason }));
            settled(facts, MailResult::Refused, closed)
        }
        Outcome::Unknown { .. } => {
            let mut facts = vec![Fact::Unknown { key: key.clone(), at }];
            // A service that knows no keys would send the mail a second time.
            let closed = (retention == Retention::For(Seconds(0))).then_some(CloseReason::UnknownResult);
            facts.extend(closed.map(|reason| Fact::Closed { key, at, reason }));
            settled(facts, MailResult::Unknown, closed)
        }
        Outcome::Conflict { .. } => {
            let reason = CloseReason::UnknownResult;
            let facts = vec![Fact::Unknown { key: key.clone(), at }, Fact::Closed { key, at, reason }];
            settled(facts, MailResult::Unknown, Some(reason))
        }
    }
}

/// Watches the outcomes of a run for signs that it should stop sending.
#[derive(Debug, Default)]
pub struct Streak {
    troubles: u32,
    refusal: Option<(String, u32)>,
}

/// A service that asks for a longer pause than this ends the sending of a run; the next hour comes soon enough.
pub const PAUSE_MAX: Seconds = Seconds(60);
/// How long to wait before each further try within a run.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// The short tries of one mail within a run, always with the same key and the same bytes.
#[derive(Debug, Default)]
pub struct Retries(usize);

impl Retries {
    /// How long to wait before the mail is tried again in this run; none where its outcome is to be settled. Only two
    /// answers promise something within seconds: "later", of which nothing left, and "the first try is still being
    /// worked on". `jitter` lies between 0 and 1, so that two programs that were refused together do not come back
    /// together.
    pub fn after(&mut self, outcome: &Outcome, jitter: f64) -> Option<Duration> {
        let plain = *PAUSES.get(self.0)?;
        let pause = match outcome {
            Outcome::NotSent { retry_after: Some(asked), .. } if *asked > PAUSE_MAX => return None,
            Outcome::NotSent { retry_after: Some(asked), .. } => {
                Duration::from_secs(asked.0.max(0).unsigned_abs()) + plain.mul_f64(jitter / 2.0)
            }
            Outcome::NotSent { .. } => plain.mul_f64(0.5 + jitter),
            Outcome::Unknown { in_progress: true, .. } => plain + plain.mul_f64(jitter / 2.0),
            _ => return None,
        };
        self.0 += 1;
        Some(pause)
    }
}

/// Why a run stops sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopSending {
    /// The mail service asks for a pause that is too long to wait for.
    Wait(Seconds),
    /// The mail service refuses the account, in these words.
    Account(String),
    /// Five unknown or network outcomes in a row; the last one's reason.
    Trouble(String),
}

impl Streak {
    /// Takes an outcome, and returns it as it is to be treated: the third equal refusal running is about the account.
    pub fn see(&mut self, outcome: Outcome) -> (Outcome, Option<StopSending>) {
        match &outcome {
            Outcome::Unknown { reason, .. } | Outcome::NotSent { reason, .. } => {
                self.troubles += 1;
                if let Outcome::NotSent { retry_after: Some(asked), .. } = outcome
                    && asked > PAUSE_MAX
                {
                    return (outcome, Some(StopSending::Wait(asked)));
                }
                let stop = (self.troubles >= TROUBLES_MAX).then(|| StopSending::Trouble(reason.clone()));
                return (outcome, stop);
            }
            Outcome::RefusedAccount { reason } => {
                let stop = StopSending::Account(reason.clone());
                return (outcome, Some(stop));
            }
            Outcome::RefusedMail { reason } => {
                self.troubles = 0;
                let equal = match &self.refusal {
                    Some((before, count)) if before == reason => count + 1,
                    _ => 1,
                };
                self.refusal = Some((reason.clone(), equal));
                if equal >= EQUAL_REFUSALS_MAX {
                    let reason = reason.clone();
                    return (
                        Outcome::RefusedAccount { reason: reason.clone() },
                        Some(StopSending::Account(reason)),
                    );
                }
            }
            Outcome::Accepted { .. } | Outcome::Conflict { .. } => *self = Self::default(),
        }
        (outcome, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::Step;
    use crate::domain::ledger::{Frozen, Refusals};

    fn time(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn plan(unknown_before: bool, refusals: u32) -> StepState {
        let at = time("2026-09-21T01:00:00Z");
        StepState::Planned {
            at,
            first_unknown_at: unknown_before.then_some(at),
            last_unknown_at: unknown_before.then_some(at),
            message: Box::new(Frozen {
                via: "post".into(),
                to: "a@example.com".parse().unwrap(),
                subject: "s".into(),
                body: "b".into(),
                hash: "h".into(),
            }),
            refused: (refusals > 0).then(|| Refusals {
                count: refusals,
                hash: "h".into(),
                at,
                reason: "no".into(),
            }),
        }
    }

    fn names(settled: &Settled) -> Vec<&'static str> {
        let name = |fact: &Fact| match fact {
            Fact::Sent { .. } => "sent",
            Fact::NotSent { .. } => "not_sent",
            Fact::Refused { .. } => "refused",
            Fact::Unknown { .. } => "unknown",
            Fact::Closed { reason, .. } => reason.name(),
            _ => "other",
        };
        settled.facts.iter().map(name).collect()
    }

    #[test]
    fn r9_what_follows_from_each_outcome() {
        let key = IdempotencyKey::Step("cs_1".parse().unwrap(), Step::D3);
        let reason = || "why".to_owned();
        let outcomes = [
            Outcome::Accepted { message_id: "m".into() },
            Outcome::NotSent { reason: reason(), retry_after: None },
            Outcome::RefusedMail { reason: reason() },
            Outcome::RefusedAccount { reason: reason() },
            Outcome::unknown(reason()),
            Outcome::Conflict { reason: reason() },
        ];
        // Per outcome: on a fresh plan; once an attempt may have arrived.
        let table: [(&[&str], &[&str]); 6] = [
            (&["sent"], &["sent"]),
            (&["not_sent"], &[]),
            (&["refused"], &[]),
            (&["not_sent"], &[]),
            (&["unknown"], &["unknown"]),
            (&["unknown", "unknown_result"], &["unknown", "unknown_result"]),
        ];
        let day = Retention::For(Seconds::days(1));
        let at = time("2026-09-21T02:00:00Z");
        for (outcome, (fresh, before)) in outcomes.iter().zip(table) {
            assert_eq!(
                names(&settle(&key, &plan(false, 0), false, day, outcome, at)),
                fresh,
                "{outcome:?}, fresh"
            );
            assert_eq!(
                names(&settle(&key, &plan(true, 0), false, day, outcome, at)),
                before,
                "{outcome:?}, unknown before"
            );
            assert_eq!(
                names(&settle(&key, &plan(false, 0), true, day, outcome, at)),
                before,
                "{outcome:?}, plan found"
            );
        }
    }

    #[test]
    fn r9_the_third_refusal_of_the_same_content_closes_the_step() {
        let key = IdempotencyKey::Step("cs_1".parse().unwrap(), Step::D3);
        let no = Outcome::RefusedMail { reason: "no".into() };
        let at = time("2026-09-21T02:00:00Z");
        let closed =
            |refusals| settle(&key, &plan(false, refusals), false, Retention::Forever, &no, at).closed;
        assert_eq!(closed(1), None);
        assert_eq!(closed(2), Some(CloseReason::Rejected));
    }

    #[test]
    fn r9_a_service_without_keys_gets_one_try() {
        let key = IdempotencyKey::Step("cs_1".parse().unwrap(), Step::D3);
        let lost = Outcome::unknown("lost");
        let settled = settle(
            &key,
            &plan(false, 0),
            false,
            Retention::For(Seconds(0)),
            &lost,
            time("2026-09-21T02:00:00Z"),
        );
        assert_eq!(names(&settled), ["unknown", "unknown_result"]);
    }

    #[test]
    fn r9_c047_only_what_promises_something_within_seconds_is_tried_again_in_the_same_run() {
        let later =
            |after: Option<i64>| Outcome::NotSent { reason: "429".into(), retry_after: after.map(Seconds) };
        let waits = |outcome: &Outcome, jitter: f64| {
            let mut retries = Retries::default();
            let pauses = std::iter::from_fn(|| retries.after(outcome, jitter));
            pauses.map(|pause| pause.as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(waits(&later(None), 0.5), [1000, 2000, 4000]);
        assert_eq!(waits(&later(None), 0.0), [500, 1000, 2000]);
        assert_eq!(waits(&later(Some(2)), 0.0), [2000; 3]);
        assert_eq!(waits(&later(Some(60)), 1.0), [60_500, 61_000, 62_000]);
        assert_eq!(waits(&later(Some(61)), 0.0), [0_u128; 0]);
        let busy = Outcome::Unknown { reason: "409".into(), in_progress: true };
        assert_eq!(waits(&busy, 0.0), [1000, 2000, 4000]);
        assert_eq!(waits(&Outcome::unknown("lost"), 0.0), [0_u128; 0]);
        for settled in [
            Outcome::Accepted { message_id: "m".into() },
            Outcome::RefusedMail { reason: "no".into() },
            Outcome::RefusedAccount { reason: "no".into() },
            Outcome::Conflict { reason: "no".into() },
        ] {
            assert_eq!(waits(&settled, 0.0), [0_u128; 0], "{settled:?}");
        }
    }

    #[test]
    fn r9_a_service_that_wants_an_hour_gets_it() {
        let later = |seconds| Outcome::NotSent { reason: "429".into(), retry_after: Some(Seconds(seconds)) };
        assert_eq!(Streak::default().see(later(60)).1, None);
        assert_eq!(Streak::default().see(later(3600)).1, Some(StopSending::Wait(Seconds(3600))));
    }

    #[test]
    fn r9_five_troubles_in_a_row_end_the_sending_and_one_success_between_does_not() {
        let lost = || Outcome::unknown("lost");
        let mut streak = Streak::default();
        for _ in 0..4 {
            assert_eq!(streak.see(lost()).1, None);
        }
        assert_eq!(streak.see(Outcome::Accepted { message_id: "m".into() }).1, None);
        for _ in 0..4 {
            assert_eq!(streak.see(lost()).1, None);
        }
        let offline = Outcome::NotSent { reason: "offline".into(), retry_after: None };
        assert_eq!(streak.see(offline).1, Some(StopSending::Trouble("offline".into())));
    }

    #[test]
    fn r9_the_same_refusal_for_three_buyers_running_is_about_the_account() {
        let no = |reason: &str| Outcome::RefusedMail { reason: reason.into() };
        let mut streak = Streak::default();
        assert_eq!(streak.see(no("bad from")).1, None);
        assert_eq!(streak.see(no("bad to")).1, None);
        assert_eq!(streak.see(no("bad from")).1, None);
        assert_eq!(streak.see(no("bad from")).1, None);
        let (outcome, stop) = streak.see(no("bad from"));
        assert_eq!(outcome, Outcome::RefusedAccount { reason: "bad from".into() });
        assert_eq!(stop, Some(StopSending::Account("bad from".into())));
    }
}
