//! Where a ledger lies: its canonical path, the files beside it, and whether it may be used there at all.
//!
//! It looks and never writes. What must hold: one ledger is known by one path, so that it has one lock and one journal
//! (a symlinked ledger was otherwise mailed twice, DURABILITY 1.1).

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::{NOTHING_DONE, StoreError};
use serde::Deserialize;

use crate::disk::{self, FileError};
use crate::domain::ledger::Ledger;

/// The paths of one ledger.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) ledger: PathBuf,
    pub(super) journal: PathBuf,
    pub(super) backup: PathBuf,
    pub(super) lock: PathBuf,
    allow_shared_folder: bool,
}

impl Place {
    /// Finds a ledger, through links if need be.
    pub(super) fn find(ledger: &Path, allow_shared_folder: bool) -> Result<Self, StoreError> {
        let canonical = fs::canonicalize(ledger).map_err(|error| no_path(ledger, error))?;
        Ok(Self {
            journal: beside(&canonical, ".journal"),
            backup: beside(&canonical, ".bak"),
            lock: beside(&canonical, ".lock"),
            ledger: canonical,
            allow_shared_folder,
        })
    }

    /// Looks whether the ledger may be used where it lies.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let metadata = fs::symlink_metadata(&self.ledger).map_err(|error| no_path(&self.ledger, error))?;
        is_plain_file(&self.ledger, &metadata)?;
        self.check_owner(&metadata)?;
        self.check_links(&metadata)?;
        if self.allow_shared_folder {
            return Ok(());
        }
        let next = "keep it on a disk of this machine, or set `allow_shared_folder = true` where only one machine ever \
                    runs stepmail on it";
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if let Some(kind) = network_kind(&mounts, disk::folder_of(&self.ledger)) {
            let why = format!("it lies on a network folder ({kind}), where a lock may hold nobody off");
            return Err(StoreError::refused(&self.ledger, &why, next));
        }
        if let Some(name) = sync_folder(disk::folder_of(&self.ledger)) {
            let why = format!(
                "it lies in `{name}`, a folder that is synchronised with other machines: an old version may come back"
            );
            return Err(StoreError::refused(&self.ledger, &why, next));
        }
        Ok(())
    }

    fn check_owner(&self, metadata: &Metadata) -> Result<(), StoreError> {
        let (owner, me) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != me {
            // C063: run once with sudo, the file would belong to root and every later run fail.
            let why = format!("it belongs to user {owner}, and this is user {me}");
            return Err(StoreError::refused(&self.ledger, &why, "run stepmail as the ledger's owner"));
        }
        if metadata.mode() & 0o200 == 0 {
            let next = format!(
                "`chmod u+w {}` if it is to be used again",
                self.ledger.file_name().unwrap_or_default().display()
            );
            return Err(StoreError::refused(&self.ledger, "it is read-only", &next));
        }
        Ok(())
    }

    /// A second name under which the ledger could be opened has a second lock: two runs would mail from one ledger.
    /// Names of our own making do not count: the `.bak` of a run that died between giving it and the rename, and the
    /// temporary file of an `init` that died before removing it.
    fn check_links(&self, metadata: &Metadata) -> Result<(), StoreError> {
        if metadata.nlink() <= 1 {
            return Ok(());
        }
        let same = |path: &Path| {
            fs::symlink_metadata(path)
                .is_ok_and(|other| other.ino() == metadata.ino() && other.dev() == metadata.dev())
        };
        let ours = disk::left_overs(&self.ledger).into_iter().chain([self.backup.clone()]);
        let known = 1 + ours.filter(|path| same(path)).count() as u64;
        if metadata.nlink() <= known {
            return Ok(());
        }
        let next = "remove the other name (`find -samefile` shows it), or make it a copy";
        Err(StoreError::refused(&self.ledger, "it has a second name (a hard link)", next))
    }
}

/// Refuses what is no regular file, before anybody opens it: opening a pipe would wait for ever.
pub(super) fn is_plain_file(path: &Path, metadata: &Metadata) -> Result<(), StoreError> {
    if metadata.is_file() {
        return Ok(());
    }
    let why = if metadata.is_dir() { "it is a folder" } else { "it is no regular file" };
    Err(StoreError::damaged_ledger(path, why))
}

/// Where a ledger ran before, if that is another place than `path` and still holds it.
pub(super) fn former(path: &Path, ledger: &Ledger) -> Option<PathBuf> {
    /// Enough to tell whose it is; the rest may be of any version.
    #[derive(Deserialize)]
    struct Named {
        ledger_id: Option<String>,
    }
    let former = PathBuf::from(ledger.last_run.as_ref()?.path.as_ref()?);
    if former == path || !fs::symlink_metadata(&former).ok()?.is_file() {
        return None;
    }
    let there: Named = serde_json::from_slice(&fs::read(&former).ok()?).ok()?;
    (there.ledger_id == ledger.ledger_id).then_some(former)
}

fn no_path(path: &Path, error: io::Error) -> StoreError {
    // `FilesystemLoop` is not stable yet, so a link in a circle is known by its words being neither of these and by
    // the link itself being there; for the seller it is a link that leads nowhere.
    let nowhere = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || (error.kind() != io::ErrorKind::PermissionDenied
            && fs::symlink_metadata(path).is_ok_and(|link| link.is_symlink()));
    if nowhere {
        return StoreError::missing(path);
    }
    let error = FileError { doing: "find ledger", path: path.to_owned(), source: error };
    StoreError::file(&error, NOTHING_DONE)
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// The kind of network file system that a folder lies on, read from Linux's list of mounts. Elsewhere the list is
/// empty, and only names of folders are known.
fn network_kind<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    const NETWORK: [&str; 15] = [
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "fuse.sshfs",
        "fuse.rclone",
        "fuse.davfs2",
        "fuse.glusterfs",
        "davfs",
        "ncpfs",
    ];
    let mut nearest: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(point) = before.split(' ').nth(4) else { continue };
        let Some(kind) = after.split(' ').next() else { continue };
        let point = PathBuf::from(unescape(point));
        let depth = point.components().count();
        // Of two mounts on one point the later hides the earlier.
        if folder.starts_with(&point) && nearest.is_none_or(|(deepest, _)| depth >= deepest) {
            nearest = Some((depth, kind));
        }
    }
    nearest.map(|(_, kind)| kind).filter(|kind| NETWORK.contains(kind))
}

/// Reads the octal escapes (`\040` for a space) of Linux's list of mounts.
fn unescape(text: &str) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = bytes
            .get(i + 1..i + 4)
            .filter(|_| bytes[i] == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(code.unwrap_or(bytes[i]));
        i += if code.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(out)
}

/// The name of the synchronised folder that a folder lies in.
fn sync_folder(folder: &Path) -> Option<String> {
    folder.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).find(|name| {
        matches!(
            name.as_str(),
            "Mobile Documents" | "CloudStorage" | "Dropbox" | "Google Drive" | "GoogleDrive"
        ) || name.starts_with("Dropbox (")
            || name.starts_with("OneDrive")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 27 0:40 / /home/shop rw - nfs4 server:/home rw
41 40 8:2 / /home/shop/local rw - ext4 /dev/sdb1 rw
42 27 0:42 / /mnt/My\\040Share rw - cifs //nas/share rw
43 27 0:43 / /srv rw - fuse.sshfs me@host: rw
44 27 8:3 / /srv rw - xfs /dev/sdc1 rw
nonsense
45 27 - broken
";

    #[test]
    fn a_ledger_on_a_network_folder_is_found_by_its_nearest_mount() {
        for (folder, kind) in [
            ("/home/shop", Some("nfs4")),
            ("/home/shop/stepmail", Some("nfs4")),
            ("/home/shopping", None),
            ("/home/shop/local/x", None),
            ("/mnt/My Share/a", Some("cifs")),
            ("/srv/stepmail", None),
            ("/", None),
        ] {
            assert_eq!(network_kind(MOUNTS, Path::new(folder)), kind, "{folder}");
        }
        assert_eq!(network_kind("", Path::new("/home")), None);
    }

    #[test]
    fn a_synchronised_folder_is_found_by_a_whole_name() {
        for (folder, found) in [
            ("/Users/a/Library/Mobile Documents/com~apple~CloudDocs", true),
            ("/Users/a/Library/CloudStorage/GoogleDrive-a/x", true),
            ("/home/a/Dropbox/shop", true),
            ("/home/a/Dropbox (Personal)/shop", true),
            ("/home/a/OneDrive - Shop/x", true),
            ("/home/a/Google Drive", true),
            ("/home/a/Dropboxes", false),
            ("/home/a/shop", false),
        ] {
            assert_eq!(sync_folder(Path::new(folder)).is_some(), found, "{folder}");
        }
    }

    #[test]
    fn odd_escapes_in_the_list_of_mounts_are_read_as_they_stand() {
        for (text, read) in
            [("/a\\040b", "/a b"), ("/a\\", "/a\\"), ("/a\\9zz", "/a\\9zz"), ("\\777", "\\777")]
        {
            assert_eq!(unescape(text), read);
        }
    }
}
