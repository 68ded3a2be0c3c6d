//! Durable files: the only place that renames.
//!
//! Promised, once a function here has returned: the new content survives a power cut, and at no instant in between does
//! anybody see a half-written file under the final name. Not promised: anything about a disk that lies about `fsync`,
//! or about network folders (the store refuses those).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How the names of our temporary files begin, so that left-overs of a dead process can be told from other files. The
/// name of the file they are to become follows, so that one ledger's sweep leaves its neighbour's work alone.
const TEMPORARY: &str = ".stepmail-";
/// How many random letters and digits end such a name.
const RANDOM: usize = 6;

/// Readable and writable by the owner only (R17).
pub const PRIVATE: u32 = 0o600;

/// A failure on a named file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} `{}`: {source}", path.display())]
pub struct FileError {
    /// What was being done: `read`, `write` …
    pub doing: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// Adds what was being done to which file to an error of the system.
pub trait Naming<T> {
    /// # Errors
    /// The same failure, with names.
    fn naming(self, doing: &'static str, path: &Path) -> Result<T, FileError>;
}

impl<T> Naming<T> for io::Result<T> {
    fn naming(self, doing: &'static str, path: &Path) -> Result<T, FileError> {
        self.map_err(|source| FileError { doing, path: path.to_owned(), source })
    }
}

/// Puts `content` in place of `path`, whole or not at all.
///
/// `before_rename` runs when the new content is durable beside the old one: the last moment to look at the old file or
/// to give it a second name.
///
/// # Errors
/// The file named, unchanged in every case but a failure of the last folder sync, where the new content is in place
/// and may or may not survive a power cut.
pub fn replace(
    path: &Path,
    content: &[u8],
    mode: u32,
    before_rename: impl FnOnce() -> Result<(), FileError>,
) -> Result<(), FileError> {
    replace_seen(path, content, mode, before_rename).map(drop)
}

/// Does what [`replace`] does, and gives back what the new file was like before anybody else could see it: a file at
/// `path` that differs from it was changed since.
///
/// # Errors
/// Those of [`replace`].
pub fn replace_seen(
    path: &Path,
    content: &[u8],
    mode: u32,
    before_rename: impl FnOnce() -> Result<(), FileError>,
) -> Result<fs::Metadata, FileError> {
    let temporary = write_beside(path, content, mode)?;
    let seen = temporary.as_file().metadata().naming("look at the new version of", path)?;
    before_rename()?;
    temporary.persist(path).map_err(|error| error.error).naming("replace", path)?;
    sync_folder_of(path)?;
    Ok(seen)
}

/// What became of an exclusive creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The file is there, with this content.
    New,
    /// A file of that name was there before and is unchanged.
    AlreadyThere,
}

/// Puts `content` at `path` if nothing is there: never half-written, never over another file.
///
/// # Errors
/// The file named. After a failure of the folder sync the file may be there all the same.
pub fn create(path: &Path, content: &[u8], mode: u32) -> Result<Created, FileError> {
    let temporary = write_beside(path, content, mode)?;
    match temporary.persist_noclobber(path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => return Ok(Created::AlreadyThere),
        Err(error) => return Err(error.error).naming("create", path),
    }
    sync_folder_of(path)?;
    Ok(Created::New)
}

fn write_beside(path: &Path, content: &[u8], mode: u32) -> Result<tempfile::NamedTempFile, FileError> {
    let mut temporary = tempfile::Builder::new()
        .prefix(&temporary_prefix(path))
        .rand_bytes(RANDOM)
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))
        .tempfile_in(folder_of(path))
        .naming("write beside", path)?;
    temporary.write_all(content).naming("write beside", path)?;
    temporary.as_file().sync_all().naming("sync a new version of", path)?;
    Ok(temporary)
}

/// Makes a folder and its parents, for the owner only, and makes the new names durable.
///
/// # Errors
/// The folder named.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_folder(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other.naming("make the folder", path),
    }?;
    sync_folder_of(path)
}

/// Removes a file and makes that durable; a file that is not there is no error.
///
/// # Errors
/// The file named.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.naming("remove", path)?,
    }
    sync_folder_of(path)
}

/// Gives `path` the second name `other`, whatever had that name before; where the file system knows no second names, a
/// copy.
///
/// # Errors
/// The new name.
pub fn keep_as(path: &Path, other: &Path) -> Result<(), FileError> {
    match fs::remove_file(other) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).naming("replace", other),
        _ => {}
    }
    if fs::hard_link(path, other).is_err() {
        let content = fs::read(path).naming("read", path)?;
        let mut copy = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(PRIVATE)
            .open(other)
            .naming("create", other)?;
        copy.write_all(&content).and_then(|()| copy.sync_all()).naming("write", other)?;
    }
    Ok(())
}

/// Makes the names in the folder of `path` durable.
///
/// # Errors
/// The folder named.
pub fn sync_folder_of(path: &Path) -> Result<(), FileError> {
    let folder = folder_of(path);
    File::open(folder).and_then(|folder| folder.sync_all()).naming("sync the folder", folder)
}

/// Removes what dead processes left half-written of this one file. To be called under the lock that guards it.
pub fn sweep(path: &Path) {
    for left_over in left_overs(path) {
        // Best effort: a left-over does no harm but take room.
        let _ = fs::remove_file(left_over);
    }
}

/// The temporary files of dead (or living) processes that were to become this file.
#[must_use]
pub fn left_overs(path: &Path) -> Vec<PathBuf> {
    let prefix = temporary_prefix(path);
    let Ok(entries) = fs::read_dir(folder_of(path)) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.to_str().and_then(|name| name.strip_prefix(&prefix)).is_some_and(|random| {
                random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric())
            })
        })
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path())
        .collect()
}

/// Whether a file of this name is one that never became what it was to be, or is just being written.
#[must_use]
pub fn is_left_over(name: &str) -> bool {
    name.strip_prefix(TEMPORARY).and_then(|rest| rest.rsplit_once('-')).is_some_and(|(_, random)| {
        random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric())
    })
}

fn temporary_prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A name may have 255 bytes at most; a very long one is cut, not refused.
    let name: String = name.chars().take(50).collect();
    format!("{TEMPORARY}{name}-")
}

/// The folder a file lies in; a bare name lies here.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_created_once_and_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(create(&path, b"one", PRIVATE).unwrap(), Created::New);
        assert_eq!(create(&path, b"two", PRIVATE).unwrap(), Created::AlreadyThere);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        replace(&path, b"three", PRIVATE, || keep_as(&path, &folder.path().join("a.bak"))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::read(folder.path().join("a.bak")).unwrap(), b"one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "a temporary file was left");
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_sweep_takes_the_left_overs_of_one_file_only() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in [".stepmail-a-AbC123", ".stepmail-a-b-AbC123", ".stepmail-a-AbC12", "a", "AbC123"] {
            File::create(at(name)).unwrap();
        }
        fs::create_dir(at(".stepmail-a-Folder")).unwrap();
        assert!(
            is_left_over(".stepmail-a-AbC123") && !is_left_over(".stepmail-a-AbC12") && !is_left_over("a")
        );
        sweep(&at("a"));
        assert!(!at(".stepmail-a-AbC123").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5, "a sweep took more than its own");
        let unfinished = write_beside(&at("b"), b"", PRIVATE).unwrap();
        assert_eq!(left_overs(&at("b")), [unfinished.path()]);
    }

    #[test]
    fn an_error_names_the_file() {
        let error = create(Path::new("/nowhere/at/all"), b"", PRIVATE).unwrap_err();
        assert!(error.to_string().starts_with("cannot write beside `/nowhere/at/all`: "), "{error}");
    }
}
