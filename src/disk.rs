//! Durable files: the only place that renames.
//!
//! Promised, once a function here has returned: the new content survives a power cut, and at no instant in between does
//! anybody see a half-written file under the final name. Not promised: anything about a disk that lies about `fsync`,
//! or about network folders (the store refuses those).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

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

/// Looks whether this user may write to a file, or make files in a folder. Nothing is written: that a disk is full is not
/// seen.
///
/// # Errors
/// The file or folder named, with what a try would meet.
pub fn may_write(path: &Path) -> Result<(), FileError> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let wanted = if path.is_dir() { Access::WRITE_OK | Access::EXEC_OK } else { Access::WRITE_OK };
    accessat(CWD, path, wanted, AtFlags::EACCESS).map_err(io::Error::from).naming("write", path)
}

/// Looks whether [`make_folder`] could make a folder, or files could be made in it if it is there. Nothing is written.
///
/// # Errors
/// The folder, or the part of its path that stands in the way.
pub fn may_make_folder(path: &Path) -> Result<(), FileError> {
    let there = |part: &&Path| part.symlink_metadata().is_ok();
    // What remains of a relative path at its beginning is the folder we are in.
    let nearest = path.ancestors().filter(|part| !part.as_os_str().is_empty()).find(there);
    let nearest = nearest.unwrap_or(Path::new("."));
    if !nearest.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory)).naming("make files in", nearest);
    }
    may_write(nearest)
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

/// Gives the file `from` the name `to` if nothing has that name: one step, in which the file always has exactly one of
/// the two names, and nothing is overwritten. (A second name and then the removal of the first would do harm here:
/// whoever puts a new file under the old name in between would lose it.)
///
/// Not promised: that the new name survives a power cut. That takes [`sync_folder`] on both folders, once for many files.
///
/// # Errors
/// The file named, under its old name.
pub fn move_new(from: &Path, to: &Path) -> Result<Created, FileError> {
    let moved = match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => move_onto_placeholder(from, to),
        moved => moved.map_err(io::Error::from),
    };
    match moved {
        Ok(()) => Ok(Created::New),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Created::AlreadyThere),
        Err(error) => Err(error).naming("move", from),
    }
}

/// Does what [`move_new`] does where the file system cannot: takes the name with an empty file first. A crash in between
/// leaves that empty file, and `from` as it was.
#[expect(clippy::disallowed_methods, reason = "what is replaced is the empty file made a line before")]
fn move_onto_placeholder(from: &Path, to: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(to)?;
    fs::rename(from, to).inspect_err(|_| {
        // Best effort: an empty file holds no event.
        let _ = fs::remove_file(to);
    })
}

/// Puts a word for people at `path` if nothing is there. Not promised: that it survives a power cut.
///
/// # Errors
/// The file named, which is not there then.
pub fn leave_word(path: &Path, text: &str) -> Result<Created, FileError> {
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Created::AlreadyThere),
        opened => opened.naming("create", path)?,
    };
    let written = file.write_all(text.as_bytes()).naming("write", path);
    if written.is_err() {
        // Best effort: half a word is worse than none.
        let _ = fs::remove_file(path);
    }
    written.map(|()| Created::New)
}

/// Opens for reading what other programs put somewhere: a link is not followed, and a pipe does not make us wait. What
/// it is, its metadata says.
///
/// # Errors
/// Whatever the system says; a link is an error.
pub fn open_as_it_is(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Makes the names in a folder durable.
///
/// # Errors
/// The folder named.
pub fn sync_folder(folder: &Path) -> Result<(), FileError> {
    File::open(folder).and_then(|folder| folder.sync_all()).naming("sync the folder", folder)
}

/// Makes the names in the folder of `path` durable.
///
/// # Errors
/// The folder named.
pub fn sync_folder_of(path: &Path) -> Result<(), FileError> {
    sync_folder(folder_of(path))
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
    fn a_move_overwrites_nothing_whatever_the_file_system_can() {
        let plain: fn(&Path, &Path) -> Created = |from, to| move_new(from, to).unwrap();
        let onto_placeholder = |from: &Path, to: &Path| match move_onto_placeholder(from, to) {
            Ok(()) => Created::New,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Created::AlreadyThere,
            Err(error) => panic!("{error}"),
        };
        for way in [plain, onto_placeholder] {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            for name in ["a", "b"] {
                assert_eq!(leave_word(&at(name), name).unwrap(), Created::New);
            }
            assert_eq!(way(&at("a"), &at("b")), Created::AlreadyThere);
            assert_eq!(leave_word(&at("b"), "c").unwrap(), Created::AlreadyThere);
            assert_eq!(way(&at("a"), &at("c")), Created::New);
            assert!(!at("a").exists(), "two names");
            assert_eq!(
                (fs::read(at("b")).unwrap(), fs::read(at("c")).unwrap()),
                (b"b".to_vec(), b"a".to_vec())
            );
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(move_onto_placeholder(&folder.path().join("gone"), &folder.path().join("a")).is_err());
        assert!(!folder.path().join("a").exists(), "the placeholder stayed");
    }

    #[test]
    fn a_link_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        leave_word(&folder.path().join("a"), "a").unwrap();
        std::os::unix::fs::symlink("a", folder.path().join("b")).unwrap();
        assert!(open_as_it_is(&folder.path().join("a")).is_ok());
        assert!(open_as_it_is(&folder.path().join("b")).is_err());
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
    fn what_stands_in_the_way_of_a_folder_is_named_and_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        File::create(at("file")).unwrap();
        may_make_folder(&at("a/b/c")).unwrap();
        may_make_folder(folder.path()).unwrap();
        may_make_folder(Path::new("nowhere/at/all")).unwrap();
        let error = may_make_folder(&at("file/a")).unwrap_err();
        assert_eq!(error.path, at("file"));
        may_write(&at("file")).unwrap();
        assert!(may_write(&at("gone")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a look made something");
    }

    #[test]
    fn an_error_names_the_file() {
        let error = create(Path::new("/nowhere/at/all"), b"", PRIVATE).unwrap_err();
        assert!(error.to_string().starts_with("cannot write beside `/nowhere/at/all`: "), "{error}");
    }
}
