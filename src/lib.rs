//! stepmail: up to four mails after a purchase, never twice, never late, never after "stop".
//!
//! The rooms and what may import what are described in `ARCHITECTURE.md`.

pub mod cli;
pub mod clock;
pub mod command;
pub mod config;
pub mod disk;
pub mod domain;
pub mod exit;
pub mod http;
pub mod mail;
pub mod newsletter;
pub mod report;
pub mod run;
pub mod secret;
pub mod source;
pub mod store;
