//! The rules, and nothing else: no file, no network, no clock, no chance. `now` comes in as an argument.
//!
//! The rest of the program brings events and a ledger here, and carries out what comes back. It imports nothing of
//! ours; everything else may import it.

pub mod admit;
pub mod adopt;
pub mod decide;
pub mod erase;
pub mod event;
pub mod fact;
pub mod fate;
pub mod forgotten;
pub mod guard;
pub mod ids;
pub mod keyed;
pub mod ledger;
pub mod loose;
pub mod matter;
pub mod newsletter;
pub mod outcome;
pub mod policy;
pub mod receipt;
pub mod settle;
pub mod silence;
pub mod time;
pub mod truth;

#[cfg(test)]
mod tests;
