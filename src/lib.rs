//! stepmail: up to four mails after a purchase, never twice, never late, never after "stop".
//!
//! The rooms and what may import what are described in `ARCHITECTURE.md`.

pub mod clock;
pub mod disk;
pub mod domain;
pub mod mail;
pub mod source;
pub mod store;
