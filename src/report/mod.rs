//! What people and programs read: text and JSON. Nothing here decides.

pub mod check;
pub mod next;
pub mod receipt;
pub mod run;
pub mod show;
pub mod status;
pub mod story;

use std::io::{self, Write};

use serde::Serialize;

/// How much a command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text for people.
    Text,
    /// Only what a person must see.
    Quiet,
    /// One JSON object.
    Json,
}

/// Prints one JSON object.
pub fn print_json(object: &impl Serialize) {
    print(|out| {
        serde_json::to_writer_pretty(&mut *out, object)?;
        writeln!(out)
    });
}

/// Prints on standard output. That nobody reads it (`stepmail status | head`) is no failure: what was done is done, and
/// the exit code says it too. `println!` would panic.
pub fn print(write: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) {
    let _ = write(&mut io::stdout().lock());
}

/// Prints a line on standard error, if anybody reads it.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
