//! Keys of services: where they come from, and that nobody sees them (DURABILITY, R17).
//!
//! A place that is named or is there, and cannot be used, is a fault and never passed over: the next place may hold the
//! key of somebody else.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::clock::Clock;

/// No key is longer, and no file or command that holds one says more.
const READ_MAX: u64 = 4096;
/// The characters of a key.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=200;
/// A command that asks somebody for a password would wait for ever.
const COMMAND_MAX: Duration = Duration::from_secs(20);

/// A key. It shows itself to no `Debug`, error or log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The key itself, for the one header it goes into.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A key that was not read from any place.
    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// A text without the key, should a service have put it there.
    #[must_use]
    pub fn hide(&self, text: &str) -> String {
        text.replace(&self.0, "…")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The places a key may come from; the first that is there is taken.
#[derive(Clone, Debug)]
pub struct Places {
    /// The setting, which `_file` or `_command` is put behind: `resend.api_key`.
    pub setting: &'static str,
    /// What it is, for messages: `key for the service`.
    pub what: &'static str,
    /// What every such key begins with, one or another: `re_`.
    pub prefixes: &'static [&'static str],
    /// `…_file`.
    pub file: Option<PathBuf>,
    /// `…_command`: program and arguments, no shell.
    pub command: Option<Vec<String>>,
    /// The name in `$CREDENTIALS_DIRECTORY`: `resend_api_key`.
    pub credential: &'static str,
    /// The variable in the environment: `RESEND_API_KEY`.
    pub variable: &'static str,
}

/// Why there is no key. Names the place, never the value.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{why}; nothing was sent or changed")]
pub struct SecretError {
    /// The place, what is wrong with it, and what to do.
    pub why: String,
}

/// A key, and where it was found, in words for `check`.
#[derive(Clone, Debug)]
pub struct Found {
    /// The key.
    pub secret: Secret,
    /// "`/etc/stepmail/key`", "the variable `RESEND_API_KEY`".
    pub place: String,
}

/// Who may have a hand in a file that holds a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// We alone.
    Us,
    /// systemd, which hands credentials over: as ours with mode 0400, or as root's with an ACL for us, which reads as 0440.
    Systemd,
}

impl Places {
    /// Whether there is a place that should hold a key.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.is_any_with(&|name| std::env::var_os(name))
    }

    fn is_any_with(&self, env: &dyn Fn(&str) -> Option<OsString>) -> bool {
        self.file.is_some()
            || self.command.is_some()
            || self.credential(env).is_some()
            || env(self.variable).is_some()
    }

    /// The file in the folder of systemd's credentials. Others may be there, and not this one; where that cannot be told, it
    /// counts as there.
    fn credential(&self, env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let folder = env("CREDENTIALS_DIRECTORY").filter(|folder| !folder.is_empty())?;
        let path = Path::new(&folder).join(self.credential);
        let is_absent =
            path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        (!is_absent).then_some(path)
    }

    /// Reads the key.
    ///
    /// # Errors
    /// [`SecretError`] where no place has one, or the first that has one cannot be used.
    pub fn read(&self, clock: &Clock) -> Result<Found, SecretError> {
        self.read_with(&|name| std::env::var_os(name), COMMAND_MAX, clock)
    }

    fn read_with(
        &self,
        env: &dyn Fn(&str) -> Option<OsString>,
        limit: Duration,
        clock: &Clock,
    ) -> Result<Found, SecretError> {
        let setting = self.setting;
        if let Some(path) = &self.file {
            return self.of_file(path, &format!("{setting}_file `{}`", path.display()), Owner::Us);
        }
        if let Some(command) = &self.command {
            let place = format!("{setting}_command `{}`", command.first().map_or("", String::as_str));
            let text = output_of(command, limit, clock).map_err(|why| fault(&place, &why))?;
            return self.found(&text, place);
        }
        if let Some(path) = self.credential(env) {
            return self.of_file(&path, &format!("the credential `{}`", path.display()), Owner::Systemd);
        }
        let Some(text) = env(self.variable) else {
            return Err(SecretError {
                why: format!(
                    "no {}: name a file in {setting}_file (yours alone, mode 600), or a command in \
                     {setting}_command, or set {}",
                    self.what, self.variable
                ),
            });
        };
        let place = format!("the variable `{}`", self.variable);
        let Ok(text) = text.into_string() else { return Err(fault(&place, "is no text")) };
        self.found(text.as_bytes(), place)
    }

    fn of_file(&self, path: &Path, place: &str, owner: Owner) -> Result<Found, SecretError> {
        let text = contents(path, owner).map_err(|why| fault(place, &why))?;
        self.found(&text, place.to_owned())
    }

    /// Trims what was found and looks at its shape.
    fn found(&self, text: &[u8], place: String) -> Result<Found, SecretError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let key = std::str::from_utf8(text).map(str::trim);
        let wrong = match key {
            Err(_) => "is no text".to_owned(),
            Ok("") => "is empty".to_owned(),
            Ok(key) if key.lines().count() > 1 => {
                "holds more than one line; it must hold the key alone".to_owned()
            }
            Ok(key) if !self.prefixes.iter().any(|prefix| key.starts_with(prefix)) => {
                let prefixes: Vec<String> =
                    self.prefixes.iter().map(|prefix| format!("`{prefix}`")).collect();
                format!("holds something that does not begin with {}", prefixes.join(" or "))
            }
            Ok(key) if !key.chars().all(is_plain) => {
                "holds a character that no key has (a quote? a blank?)".to_owned()
            }
            Ok(key) if !LENGTHS.contains(&key.len()) => {
                format!("holds {} characters; was the key cut?", key.len())
            }
            Ok(key) => return Ok(Found { secret: Secret(key.to_owned()), place }),
        };
        Err(fault(&place, &wrong))
    }
}

fn fault(place: &str, why: &str) -> SecretError {
    SecretError { why: format!("{place} {why}") }
}

/// The content of a file that nobody else may read.
fn contents(path: &Path, owner: Owner) -> Result<Vec<u8>, String> {
    // A pipe would hold us up, so it is looked at before it is opened; then again, since it may be another by then.
    let meta = fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    if !meta.is_file() {
        return Err("is no file".to_owned());
    }
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let meta = file.metadata().map_err(|error| format!("cannot be read: {error}"))?;
    let us = rustix::process::geteuid().as_raw();
    let is_ours = meta.uid() == us || owner == Owner::Systemd && meta.uid() == 0;
    let forbidden = if owner == Owner::Systemd { 0o027 } else { 0o077 };
    if !meta.is_file() || !is_ours {
        return Err(
            "belongs to another user; the key must be in a file of the user who runs stepmail".to_owned()
        );
    }
    if meta.mode() & forbidden != 0 {
        return Err("may be read by others; `chmod 600` it".to_owned());
    }
    let mut text = Vec::new();
    file.take(READ_MAX + 1).read_to_end(&mut text).map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > READ_MAX { Err("is too long to be a key".to_owned()) } else { Ok(text) }
}

/// What a command says, which is never shown. Neither it nor what it starts can hold us up for longer than `limit`.
fn output_of(command: &[String], limit: Duration, clock: &Clock) -> Result<Vec<u8>, String> {
    let Some((program, arguments)) = command.split_first() else { return Err("is empty".to_owned()) };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    let mut out = child.stdout.take();
    if let Some(out) = &out {
        let flags = fcntl_getfl(out).map_err(|error| format!("cannot be read: {error}"))?;
        fcntl_setfl(out, flags | OFlags::NONBLOCK).map_err(|error| format!("cannot be read: {error}"))?;
    }
    let (started, mut text, mut ended) = (clock.running(), Vec::new(), None);
    let result = loop {
        let mut piece = [0; 1024];
        match out.as_mut().map_or(Ok(0), |out| out.read(&mut piece)) {
            // The end of what it says; a child of its child may keep the pipe open, and has nothing to say to us.
            Ok(0) => out = None,
            Ok(read) => {
                text.extend_from_slice(&piece[..read]);
                if text.len() as u64 > READ_MAX {
                    break Err("says too much for a key".to_owned());
                }
                continue;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if ended.is_some() {
                    out = None;
                }
            }
            Err(error) => break Err(format!("cannot be read: {error}")),
        }
        match ended {
            Some(true) if out.is_none() => break Ok(text),
            Some(_) => {}
            None => match child.try_wait() {
                Ok(Some(status)) if status.success() => ended = Some(true),
                Ok(Some(status)) => break Err(format!("failed ({status}); run it by hand to see why")),
                Ok(None) if clock.running().saturating_sub(started) > limit => {
                    break Err(format!(
                        "did not end within {} s; it must not ask for a password",
                        limit.as_secs()
                    ));
                }
                Ok(None) => clock.wait_a_little(),
                Err(error) => break Err(format!("cannot be waited for: {error}")),
            },
        }
    };
    if result.is_err() {
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
    result
}

#[cfg(test)]
#[path = "secret_tests.rs"]
mod tests;
