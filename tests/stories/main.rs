//! Stories: the real program, an empty folder, a cleared environment, a fixed `now`. A buyer, a purchase, what happens,
//! and what must not.

#![expect(clippy::unwrap_used, reason = "a story that cannot go on fails")]

mod bad_input;
mod check;
mod choice;
mod crash;
mod double;
mod forget;
mod gap;
mod guards;
mod hand;
mod intake;
mod lock;
mod mending;
mod moving;
mod newsletter;
mod readme;
mod refunds;
mod resend;
mod rules;
mod service;
mod settle;
mod shop;
mod spool;
mod stripe;
mod texts;
mod truth;
mod units;
mod webhook;
