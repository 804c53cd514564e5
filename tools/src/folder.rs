//! A folder that shards are written to: one writer at a time, temporary names until a file is on the disk, nothing replaced,
//! a manifest that says what is there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use feedline_loader::{Error, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};
use serde::{Deserialize, Serialize};

use crate::output::Bytes;

/// The classes in the order of their labels, beside the shards.
pub const CLASSES: &str = "classes.json";

const MANIFEST: &str = "manifest.json";
const MANIFEST_VERSION: u32 = 1;

/// The manifest of a folder; each set of shards has a value of its own.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    /// What is said of each set, by name.
    pub sets: BTreeMap<String, serde_json::Value>,
}

/// A folder with its lock.
#[derive(Debug)]
pub struct OutFolder {
    path: PathBuf,
    /// Holds the lock.
    folder: File,
}

impl OutFolder {
    /// Makes and locks `path`.
    pub fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(|error| Error::io("create folder", path, error))?;
        let folder = File::open(path).map_err(|error| Error::io("open folder", path, error))?;
        folder.try_lock().map_err(|error| Error::Resources {
            message: format!("{}: another convert or optimize is writing there ({error}): wait for it", path.display()),
        })?;
        Ok(Self { path: path.to_owned(), folder })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses when the file system has less room than `need` bytes for `what`.
    pub fn check_space(&self, what: &str, need: u64) -> Result<()> {
        let Ok(stat) = statvfs(&self.path) else { return Ok(()) };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if need <= free {
            return Ok(());
        }
        Err(Error::Resources {
            message: format!(
                "{what} need {}, but {} has {} free: make {} of room or choose another OUT",
                Bytes(need),
                self.path.display(),
                Bytes(free),
                Bytes(need - free),
            ),
        })
    }

    /// Where the file `name` lies until it is placed.
    pub fn temporary_path(&self, name: &str) -> PathBuf {
        self.path.join(temporary_name(name))
    }

    /// Names of all that is in it.
    pub fn names(&self) -> Result<impl Iterator<Item = String> + use<>> {
        let items = fs::read_dir(&self.path).map_err(|error| Error::io("read folder", &self.path, error))?;
        Ok(items.flatten().filter_map(|item| item.file_name().into_string().ok()))
    }

    /// Removes temporary files whose final names are `ours`: the lock says that nobody writes them.
    pub fn remove_temporaries(&self, ours: impl Fn(&str) -> bool) {
        for name in self.names().into_iter().flatten() {
            if temporary_name(final_name(&name)) == name && ours(final_name(&name)) {
                let _ = fs::remove_file(self.path.join(name));
            }
        }
    }

    /// Gives a file its final name unless that is taken.
    pub fn place(&self, name: &str) -> Result<()> {
        let (from, to) = (self.temporary_path(name), self.path.join(name));
        let moved = match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            // This file system cannot promise it; the folder's lock and a look must do.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if !to.exists() => fs::rename(&from, &to),
            moved => moved.map_err(io::Error::from),
        };
        moved.map_err(|error| Error::io("rename to", &to, error))
    }

    /// Writes a class list, of the bytes `text`, unless one with the same classes is there.
    pub fn write_classes(&self, classes: &[String], text: &[u8]) -> Result<()> {
        let path = self.path.join(CLASSES);
        match fs::read(&path) {
            Ok(present) if parse_classes(&present).is_some_and(|list| list == classes) => Ok(()),
            Ok(_) => Err(Error::io(
                "replace",
                &path,
                io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "it lists other classes, and labels count from it: choose another OUT",
                ),
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.write(CLASSES, text)?;
                self.place(CLASSES)
            }
            Err(error) => Err(Error::io("read", &path, error)),
        }
    }

    /// The manifest, an empty one if there is none.
    pub fn read_manifest(&self) -> Result<Manifest> {
        let path = self.path.join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Manifest { version: MANIFEST_VERSION, sets: BTreeMap::new() });
            }
            Err(error) => return Err(Error::io("read", &path, error)),
        };
        let unknown = |what: String| {
            Error::io("extend", &path, io::Error::new(io::ErrorKind::AlreadyExists, what + ": choose another OUT"))
        };
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| unknown(format!("it is no manifest of shards ({error})")))?;
        if manifest.version != MANIFEST_VERSION {
            let found = manifest.version;
            return Err(unknown(format!("its version is {found}, this command writes {MANIFEST_VERSION}")));
        }
        Ok(manifest)
    }

    /// Puts what is said of the set `name` into the manifest.
    pub fn record_set(&self, name: &str, set: &impl Serialize) -> Result<()> {
        let mut manifest = self.read_manifest()?;
        let value = serde_json::to_value(set).map_err(|error| Error::system("write the manifest", error))?;
        manifest.sets.insert(name.to_owned(), value);
        self.write(MANIFEST, &json(&manifest)?)?;
        fs::rename(self.temporary_path(MANIFEST), self.path.join(MANIFEST))
            .map_err(|error| Error::io("rename to", &self.path.join(MANIFEST), error))?;
        self.sync()
    }

    /// Waits until new names are on the disk.
    pub fn sync(&self) -> Result<()> {
        self.folder.sync_all().map_err(|error| Error::io("sync folder", &self.path, error))
    }

    /// Writes `text` under the temporary name of `name`, synced.
    fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        let path = self.temporary_path(name);
        File::create(&path)
            .and_then(|mut file| file.write_all(text).and_then(|()| file.sync_all()))
            .map_err(|error| Error::io("write", &path, error))
    }
}

/// `value` as the text of a file.
pub fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::system("write JSON", error))?;
    text.push(b'\n');
    Ok(text)
}

/// The classes that the text of a class list names.
pub fn parse_classes(text: &[u8]) -> Option<Vec<String>> {
    serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)).ok()
}

/// The name that a file has until it is placed.
pub fn temporary_name(name: &str) -> String {
    format!(".{name}.partial")
}

/// The name that a file with this temporary name will have.
pub fn final_name(temporary: &str) -> &str {
    temporary.strip_prefix('.').and_then(|name| name.strip_suffix(".partial")).unwrap_or(temporary)
}
