//! A snapshot of an LMDB file, and what keeps it: a read transaction where the lock file can be written, else a watch on
//! the meta pages.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};

use super::meta::{self, Meta};
use crate::error::{Error, Result};
use crate::sys::lmdb::{Environment, Pin, Place};

/// Name of the file in a folder that is a database.
const DATA_FILE: &str = "data.mdb";

/// Name of its lock file.
const LOCK_FILE: &str = "lock.mdb";

/// How often a snapshot is sought that writers do not overtake at once.
const TRIES: u32 = 64;

/// What an index is made of: together with its path, what tells one state of a database from any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotId {
    /// The transaction that made it.
    pub(crate) transaction: u64,
    /// The first page of its main tree; 0 for an empty one.
    pub(crate) root: u64,
    /// The file's inode.
    pub(crate) inode: u64,
}

/// A database as it was opened, for people and for runs that go on later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseState {
    /// Its data file.
    pub path: PathBuf,
    /// The transaction that made the snapshot.
    pub transaction: u64,
    /// The first page of its main tree; 0 for an empty one.
    pub root: u64,
    /// Hash of the samples' keys in their order: where it is the same, the same number is the same sample.
    pub keys: String,
}

/// One state of a database, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Snapshot {
    path: PathBuf,
    file: File,
    inode: u64,
    meta: Meta,
    hold: Hold,
}

/// What keeps the snapshot's pages from being overwritten.
#[derive(Debug)]
enum Hold {
    /// A reader's slot in the lock file. The lease is given up after the pin: fields are dropped in order.
    Pinned { _pin: Arc<Pin>, _lease: Lease },
    /// Nothing, because of this: a moved transaction number is found out afterwards.
    Watched { reason: String },
}

/// The file of the database at `path`, which may be its folder.
pub(crate) fn data_file(path: &Path) -> PathBuf {
    let inside = path.join(DATA_FILE);
    if inside.is_file() { inside } else { path.to_owned() }
}

impl Snapshot {
    /// Takes the newest snapshot of the database whose data file is `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |action| move |source| Error::io(action, path, source);
        let file = File::open(path).map_err(io("open"))?;
        let metadata = file.metadata().map_err(io("look at"))?;
        if metadata.len() == 0 {
            return Err(Error::shard(
                path,
                0,
                "empty LMDB file (0 bytes): its writer never committed, or a copy failed; write it again or leave it out",
            ));
        }
        // Hops between pages would make the kernel read ahead what is then hopped over.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        // Checked before liblmdb sees the file.
        let newest = meta::newest(&read_metas(&file, path)?);
        let unheld = |reason: String| Hold::Watched { reason };
        let lease = match Lease::take(path, &metadata) {
            Ok(lease) => lease,
            Err(error) => {
                let hold = unheld(why_unlocked(&error));
                return Ok(Self { path: path.to_owned(), inode: metadata.ino(), file, meta: newest, hold });
            }
        };
        for _ in 0..TRIES {
            let pin = match lease.pin() {
                Ok(pin) => pin,
                Err(error) => {
                    let meta = meta::newest(&read_metas(&file, path)?);
                    let hold = unheld(why_unlocked(&error));
                    return Ok(Self { path: path.to_owned(), inode: metadata.ino(), file, meta, hold });
                }
            };
            // The meta page of a snapshot is overwritten by the second commit after it.
            if let Some(&meta) = read_metas(&file, path)?.iter().find(|meta| meta.transaction == pin.id()) {
                let hold = Hold::Pinned { _pin: pin, _lease: lease };
                return Ok(Self { path: path.to_owned(), inode: metadata.ino(), file, meta, hold });
            }
        }
        Err(Error::shard(path, 0, format!("no snapshot could be had in {TRIES} tries: a writer commits all the time")))
    }

    /// The data file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Where its trees are.
    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Its identity.
    pub(crate) fn id(&self) -> SnapshotId {
        let root = self.meta.main.root.unwrap_or(0);
        SnapshotId { transaction: self.meta.transaction, root, inode: self.inode }
    }

    /// What users should know of it.
    pub(crate) fn notice(&self) -> Option<String> {
        match &self.hold {
            Hold::Pinned { .. } => None,
            Hold::Watched { reason } => Some(format!(
                "{}: read without a lock, because {reason}; a writer would not see this reader, so the database is \
                 watched, and a change ends the stream",
                self.path.display()
            )),
        }
    }

    /// Whether a change would go unnoticed without [`Snapshot::check`].
    pub(crate) fn is_watched(&self) -> bool {
        matches!(self.hold, Hold::Watched { .. })
    }

    /// Makes sure that what was read before this call was the snapshot.
    pub(crate) fn check(&self) -> Result<()> {
        let Hold::Watched { reason } = &self.hold else { return Ok(()) };
        let found = meta::newest(&read_metas(&self.file, &self.path)?).transaction;
        if found == self.meta.transaction {
            return Ok(());
        }
        Err(Error::shard(
            &self.path,
            0,
            format!(
                "the dataset changed while it was read: transaction {} was opened, now there is {found}; it is read \
                 without a lock, because {reason}; let its writer finish, then start the epoch again",
                self.meta.transaction
            ),
        ))
    }

    /// Makes sure that a file opened under the dataset's path, which has `metadata`, is this one.
    pub(crate) fn check_file(&self, metadata: &Metadata) -> Result<()> {
        if metadata.ino() != self.inode {
            let message = format!(
                "the database was replaced after it was opened (then inode {}, now {}); open the dataset again",
                self.inode,
                metadata.ino()
            );
            return Err(Error::shard(&self.path, 0, message));
        }
        self.check()
    }

    /// Whether this is still the newest snapshot under the path.
    pub(crate) fn is_newest(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode)
            && read_metas(&self.file, &self.path)
                .is_ok_and(|metas| meta::newest(&metas).transaction == self.meta.transaction)
    }
}

fn read_metas(file: &File, path: &Path) -> Result<[Meta; 2]> {
    let read = |file: &File| {
        let bytes = file.metadata()?.len();
        meta::read_metas(file, bytes)
    };
    let metas = read(file).map_err(|source| Error::io("read", path, source))?;
    metas.map_err(|reason| Error::shard(path, 0, reason))
}

fn why_unlocked(error: &io::Error) -> String {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => "its lock file may not be written".into(),
        Some(rustix::io::Errno::ROFS) => "it is on read-only media".into(),
        Some(rustix::io::Errno::NOMEM) => "this process may not map as much memory (ulimit -v)".into(),
        _ => format!("its lock file cannot be used ({error})"),
    }
}

/// One file's environment, shared by all who use the file in this process: a second one would take the lock of the
/// first away with it when it closes.
#[derive(Debug)]
struct Lease {
    file: (u64, u64),
}

#[derive(Debug)]
struct Shared {
    file: (u64, u64),
    environment: Arc<Environment>,
    users: usize,
    /// One slot of the table of readers does for all who read the newest snapshot.
    pin: Weak<Pin>,
}

static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

impl Lease {
    fn take(path: &Path, metadata: &Metadata) -> io::Result<Self> {
        let file = (metadata.dev(), metadata.ino());
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = all.iter_mut().find(|shared| shared.file == file) {
            shared.users += 1;
            return Ok(Self { file });
        }
        let (path, place) = environment_path(path);
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        if !is_own && !lock_file(path, place).exists() {
            // A new one would be this user's, and its owner's writers could not open it.
            return Err(io::Error::other("there is none, and the database is another user's"));
        }
        // Who may read and write the data may do so to the lock.
        let environment = Arc::new(Environment::open(path, place, metadata.mode() & 0o666)?);
        all.push(Shared { file, environment, users: 1, pin: Weak::new() });
        Ok(Self { file })
    }

    /// A read transaction on the newest snapshot: a new one, unless there is one already.
    fn pin(&self) -> io::Result<Arc<Pin>> {
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = all.iter_mut().find(|shared| shared.file == self.file).expect("this lease counts as a user");
        let pin = Arc::new(shared.environment.pin()?);
        if let Some(held) = shared.pin.upgrade().filter(|held| held.id() == pin.id()) {
            return Ok(held);
        }
        shared.pin = Arc::downgrade(&pin);
        Ok(pin)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = all.iter().position(|shared| shared.file == self.file) {
            all[place].users -= 1;
            if all[place].users == 0 {
                // Pins are gone by now, so this closes the environment, while nobody can open the file anew.
                drop(all.swap_remove(place));
            }
        }
    }
}

/// Where liblmdb looks for the lock file.
fn lock_file(path: &Path, place: Place) -> PathBuf {
    match place {
        Place::Folder => path.join(LOCK_FILE),
        Place::File => {
            let mut name = path.as_os_str().to_owned();
            name.push("-lock");
            name.into()
        }
    }
}

/// What liblmdb is given to find the lock file that the writers use.
fn environment_path(data: &Path) -> (&Path, Place) {
    let is_named_so = data.file_name().is_some_and(|name| name == DATA_FILE);
    let own_lock = lock_file(data, Place::File);
    match data.parent() {
        Some(folder) if is_named_so && (lock_file(folder, Place::Folder).exists() || !own_lock.exists()) => {
            (folder, Place::Folder)
        }
        _ => (data, Place::File),
    }
}
