//! The folder of index files: one per shard, named by the hash of the shard's path.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::rand::GetRandomFlags;

use super::identity::FileState;
use super::index::{IndexBytes, ShardIndex};
use crate::error::Result;
use crate::spec::DatasetRules;
use crate::sys::map::MappedFile;

/// Ending of an index that is being written.
const UNFINISHED: &str = "new";

/// An unfinished index without a writer is swept after this long; before, its writer may not have locked it yet.
const SWEEP_AFTER: Duration = Duration::from_secs(60);

/// The cache folder, or none; then indexes live in memory only.
#[derive(Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
    /// What else than its path the name of a shard's index depends on; empty for the default rules.
    rules: Vec<u8>,
    failure: OnceLock<String>,
    sweep: Once,
}

impl Cache {
    /// Uses `folder`, else the one that the environment names. Missing folders are made, for this user alone.
    pub(super) fn new(folder: Option<&Path>, rules: &DatasetRules) -> Self {
        let folder = cache_folder(folder);
        let rules = rules.of_index();
        let rules = if rules == DatasetRules::default() {
            Vec::new()
        } else {
            serde_json::to_vec(&rules).expect("rules are plain data")
        };
        let cache = Self { folder, rules, failure: OnceLock::new(), sweep: Once::new() };
        match &cache.folder {
            Some(folder) => {
                if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(folder) {
                    cache.fail(folder, &error);
                }
            }
            None => drop(cache.failure.set(
                "indexes are kept in memory only, because neither FEEDLINE_CACHE nor HOME is set: each start indexes again"
                    .to_owned(),
            )),
        }
        cache
    }

    /// The folder, if there is one that can be used.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref().filter(|_| self.failure.get().is_none())
    }

    /// Why indexes could not be kept, if they could not.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// The index of the shard at `path`, if there is one and it was made from this very `state` of `shard`.
    pub(super) fn load(&self, path: &Path, shard: &File, state: FileState) -> Option<ShardIndex> {
        let index_path = self.index_path(path)?;
        let index = match read(&index_path).and_then(|bytes| ShardIndex::new(bytes).map_err(io::Error::other)) {
            Ok(index) => index,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::info!("{}: {error}; indexing again", index_path.display());
                return None;
            }
        };
        let current = index.is_of(path, shard, state);
        if !current {
            tracing::info!("{}: changed since it was indexed; indexing again", path.display());
        }
        current.then_some(index)
    }

    /// Keeps an index, and returns it opened from the cache; from memory when the cache does not take it.
    pub(super) fn keep(&self, path: &Path, bytes: Vec<u8>) -> Result<ShardIndex> {
        if let Some(folder) = &self.folder {
            self.sweep.call_once(|| sweep(folder, SystemTime::now()));
        }
        let stored = self.index_path(path).and_then(|index_path| {
            let stored = write_and_rename(&index_path, &bytes).and_then(|()| read(&index_path));
            stored.inspect_err(|error| self.fail(&index_path, error)).ok()
        });
        // Another process may have put an index of a newer state there meanwhile.
        let bytes = match stored {
            Some(stored) if *stored == *bytes => stored,
            _ => IndexBytes::Owned(bytes),
        };
        Ok(ShardIndex::new(bytes).unwrap_or_else(|reason| unreachable!("a new index is sound: {reason}")))
    }

    /// Removes the index of a shard that has changed in a way that a start would not notice.
    pub(super) fn forget(&self, path: &Path) {
        let Some(index_path) = self.index_path(path) else { return };
        match fs::remove_file(&index_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{}: out of date, and cannot be removed: {error}; remove it", index_path.display());
            }
            _ => {}
        }
    }

    fn index_path(&self, shard: &Path) -> Option<PathBuf> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(shard.as_os_str().as_bytes());
        if !self.rules.is_empty() {
            // No path has a zero byte.
            hasher.update(&[0]).update(&self.rules);
        }
        let name = hasher.finalize().to_hex();
        self.folder.as_ref().map(|folder| folder.join(format!("{name}.index")))
    }

    fn fail(&self, path: &Path, error: &io::Error) {
        let notice = || {
            format!(
                "indexes are kept in memory only, because the cache refuses them: {}: {error}; each start indexes \
                 again; name a writable folder in FEEDLINE_CACHE",
                path.display()
            )
        };
        self.failure.get_or_init(notice);
    }
}

/// The folder that is kept between runs: `chosen`, else the one that the environment names, if any.
pub fn cache_folder(chosen: Option<&Path>) -> Option<PathBuf> {
    chosen.map(Path::to_owned).or_else(|| default_folder(|name| env::var_os(name).map(PathBuf::from)))
}

/// FEEDLINE_CACHE, else the user's cache folder by the XDG rules.
fn default_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|folder| !folder.as_os_str().is_empty());
    // XDG folders that are not absolute are to be ignored.
    let xdg = || set("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
    let home = || set("HOME").map(|home| home.join(".cache"));
    set("FEEDLINE_CACHE").or_else(|| Some(xdg().or_else(home)?.join("feedline")))
}

/// Maps an index file, or reads it where it is not this user's own.
fn read(path: &Path) -> io::Result<IndexBytes> {
    // In a folder that others may write, a pipe of the index's name must not make this wait for its writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a plain file"));
    }
    if let Ok(Some(map)) = MappedFile::open(&file) {
        return Ok(IndexBytes::Mapped(map));
    }
    // Another user's file, an empty one, or too many maps in this process already.
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(IndexBytes::Owned(bytes))
}

/// Writes a new file under a name of its own, then puts it in place in one step.
fn write_and_rename(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Process numbers do not do: containers that share the folder have the same ones.
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
    let temporary = path.with_extension(format!("{:016x}.{UNFINISHED}", u64::from_le_bytes(random)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    // The lock says that the writer lives. Where the file system has none, nobody sweeps.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes the unfinished indexes of writers that died. What cannot be looked at or removed stays.
fn sweep(folder: &Path, now: SystemTime) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == UNFINISHED) && is_abandoned(&path, now).unwrap_or(false) {
            tracing::debug!("{}: its writer is dead; removed", path.display());
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a file is old enough to be locked by its writer, and is not.
fn is_abandoned(path: &Path, now: SystemTime) -> io::Result<bool> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let is_old = now.duration_since(metadata.modified()?).is_ok_and(|age| age > SWEEP_AFTER);
    Ok(metadata.is_file() && is_old && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_indexes_of_dead_writers_are_swept() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let written = |name: &str| File::create(at(name)).expect("made");
        drop((written("a.0123456789abcdef.new"), written("b.index"), written("notes.txt")));
        let locked = written("c.0123456789abcdef.new");
        flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
        fs::create_dir(at("d.new")).expect("made");
        let names = || {
            let entries = fs::read_dir(folder.path()).expect("there");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("read").file_name()).collect();
            names.sort();
            names
        };
        let all = ["a.0123456789abcdef.new", "b.index", "c.0123456789abcdef.new", "d.new", "notes.txt"];
        sweep(folder.path(), SystemTime::now());
        assert_eq!(names(), all, "their writers may be about to lock them");
        sweep(folder.path(), SystemTime::now() + 2 * SWEEP_AFTER);
        assert_eq!(names(), all[1..], "only what nobody writes");
    }

    #[test]
    fn the_folder_comes_from_the_environment() {
        let check = |variables: &[(&str, &str)], expected: Option<&str>| {
            let find =
                |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| PathBuf::from(value));
            assert_eq!(default_folder(find), expected.map(PathBuf::from), "{variables:?}");
        };
        check(&[("FEEDLINE_CACHE", "/c"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/c"));
        check(&[("FEEDLINE_CACHE", ""), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/x/feedline"));
        check(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")], Some("/h/.cache/feedline"));
        check(&[("HOME", "/h")], Some("/h/.cache/feedline"));
        check(&[], None);
    }
}
