//! The folder of shards: one writer at a time, temporary names until all is on the disk, a manifest that says what is there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use feedline_loader::{Error, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};
use serde::{Deserialize, Serialize};

use super::pack::{Forecast, Order};
use super::scan::{LeftOut, Tally};
use super::shard::WrittenShard;
use crate::output::{Bytes, counted};

const MANIFEST: &str = "manifest.json";
const MANIFEST_VERSION: u32 = 1;
const CLASSES: &str = "classes.json";

/// A set of shards that is being written; dropped before its commit, it leaves nothing behind.
#[derive(Debug)]
pub struct ShardSet {
    out: PathBuf,
    prefix: String,
    /// Holds the lock on the folder.
    folder: File,
}

/// What the manifest says of one set.
#[derive(Debug, Serialize)]
pub struct SetRecord {
    /// Order of the samples over the shards.
    pub order: Order,
    /// Samples in all shards.
    pub samples: u64,
    /// Bytes of their images.
    pub image_bytes: u64,
    /// Classes in the order of their labels.
    pub classes: Vec<ClassRecord>,
    /// Files that were not packed.
    pub left_out: LeftOut,
    /// Files that were packed as what they are, not as their extension says.
    pub mistaken_extension: Option<Tally>,
    /// The shards in order.
    pub shards: Vec<ShardRecord>,
}

/// What the manifest says of one class.
#[derive(Debug, Serialize)]
pub struct ClassRecord {
    name: String,
    samples: u64,
}

impl From<(&String, &u64)> for ClassRecord {
    fn from((name, &samples): (&String, &u64)) -> Self {
        Self { name: name.clone(), samples }
    }
}

/// What the manifest says of one shard.
#[derive(Debug, Serialize)]
pub struct ShardRecord {
    /// Its name in the folder.
    pub file: String,
    /// Samples in it.
    pub samples: u64,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of the whole file, in hexadecimal.
    pub blake3: String,
}

/// The manifest of a folder; sets of other prefixes stay as they are.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    sets: BTreeMap<String, serde_json::Value>,
}

impl ShardSet {
    /// Makes and locks `out`, and refuses it when it holds shards of `prefix` already or lies inside `source`.
    pub fn open(out: &Path, prefix: &str, source: &Path) -> Result<Self> {
        let made = !out.exists();
        fs::create_dir_all(out).map_err(|error| Error::io("create folder", out, error))?;
        let inside =
            out.canonicalize().is_ok_and(|out| source.canonicalize().is_ok_and(|source| out.starts_with(source)));
        if inside {
            if made {
                let _ = fs::remove_dir(out);
            }
            return Err(Error::config(format!(
                "{} lies inside {}, where it would be a class of the next run: choose a folder outside",
                out.display(),
                source.display()
            )));
        }
        let folder = File::open(out).map_err(|error| Error::io("open folder", out, error))?;
        folder.try_lock().map_err(|error| Error::Resources {
            message: format!("{}: another convert is writing there ({error}): wait for it", out.display()),
        })?;
        let set = Self { out: out.to_owned(), prefix: prefix.to_owned(), folder };
        set.refuse_existing()?;
        set.remove_temporaries();
        Ok(set)
    }

    /// The pattern that names `count` shards of this set.
    pub fn pattern(&self, count: usize) -> String {
        let name = match count {
            1 => self.file_name(0),
            _ => format!("{}-{{{:06}..{:06}}}.tar", self.prefix, 0, count - 1),
        };
        self.out.join(name).display().to_string()
    }

    /// Refuses when the file system has less room than `forecast` needs.
    pub fn check_space(&self, forecast: &Forecast) -> Result<()> {
        let Ok(stat) = statvfs(&self.out) else { return Ok(()) };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if forecast.shard_bytes <= free {
            return Ok(());
        }
        Err(Error::Resources {
            message: format!(
                "{} need {}, but {} has {} free: make {} of room or choose another OUT",
                counted(forecast.shards, "shard"),
                Bytes(forecast.shard_bytes),
                self.out.display(),
                Bytes(free),
                Bytes(forecast.shard_bytes - free),
            ),
        })
    }

    /// Where shard `number` lies until the commit.
    pub fn temporary_path(&self, number: u64) -> PathBuf {
        self.out.join(temporary_name(&self.file_name(number)))
    }

    /// Waits until a shard is on the disk.
    pub fn sync(&self, shard: WrittenShard) -> Result<ShardRecord> {
        shard.file.sync_all().map_err(|error| Error::io("sync", &shard.path, error))?;
        let temporary = shard.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let WrittenShard { samples, bytes, blake3, .. } = shard;
        Ok(ShardRecord { file: final_name(temporary).to_owned(), samples, bytes, blake3 })
    }

    /// Gives every shard its final name, then writes the classes and the manifest.
    pub fn commit(self, classes: &[String], record: SetRecord) -> Result<()> {
        self.write_classes(classes)?;
        for shard in &record.shards {
            self.place(&shard.file)?;
        }
        let mut manifest = self.read_manifest()?;
        let value = serde_json::to_value(&record).map_err(|error| Error::system("write the manifest", error))?;
        manifest.sets.insert(self.prefix.clone(), value);
        self.write_json(MANIFEST, &manifest)?;
        fs::rename(self.out.join(temporary_name(MANIFEST)), self.out.join(MANIFEST))
            .map_err(|error| Error::io("rename to", &self.out.join(MANIFEST), error))?;
        self.folder.sync_all().map_err(|error| Error::io("sync folder", &self.out, error))
    }

    fn file_name(&self, number: u64) -> String {
        format!("{}-{number:06}.tar", self.prefix)
    }

    fn refuse_existing(&self) -> Result<()> {
        let shards = self.names()?.filter(|name| self.is_shard(name)).count() as u64;
        if shards > 0 {
            return Err(self.refusal(format!("{} of prefix {:?}", counted(shards, "shard"), self.prefix)));
        }
        if self.read_manifest()?.sets.contains_key(&self.prefix) {
            return Err(self.refusal(format!("a manifest with the set {:?}", self.prefix)));
        }
        Ok(())
    }

    fn refusal(&self, what: String) -> Error {
        let message =
            format!("it holds {what}, and nothing is overwritten: choose another OUT or --prefix, or delete them");
        Error::io("write to", &self.out, io::Error::new(io::ErrorKind::AlreadyExists, message))
    }

    fn is_shard(&self, name: &str) -> bool {
        let number = name.strip_prefix(&self.prefix).and_then(|rest| rest.strip_prefix('-'));
        number
            .and_then(|rest| rest.strip_suffix(".tar"))
            .is_some_and(|digits| digits.len() >= 6 && digits.bytes().all(|byte| byte.is_ascii_digit()))
    }

    fn names(&self) -> Result<impl Iterator<Item = String> + use<>> {
        let items = fs::read_dir(&self.out).map_err(|error| Error::io("read folder", &self.out, error))?;
        Ok(items.flatten().filter_map(|item| item.file_name().into_string().ok()))
    }

    /// What a broken run of this prefix left; the lock says that none is running.
    fn remove_temporaries(&self) {
        for name in self.names().into_iter().flatten() {
            if temporary_name(final_name(&name)) == name && self.is_shard(final_name(&name)) {
                let _ = fs::remove_file(self.out.join(name));
            }
        }
    }

    /// Gives a file its final name unless that is taken.
    fn place(&self, name: &str) -> Result<()> {
        let (from, to) = (self.out.join(temporary_name(name)), self.out.join(name));
        let moved = match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            // This file system cannot promise it; the folder's lock and a look must do.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if !to.exists() => fs::rename(&from, &to),
            moved => moved.map_err(io::Error::from),
        };
        moved.map_err(|error| Error::io("rename to", &to, error))
    }

    /// Writes the class list, or checks that the one of an earlier set is the same.
    fn write_classes(&self, classes: &[String]) -> Result<()> {
        let path = self.out.join(CLASSES);
        match fs::read(&path) {
            Ok(present) if serde_json::from_slice::<Vec<String>>(&present).is_ok_and(|list| list == classes) => Ok(()),
            Ok(_) => Err(Error::io(
                "replace",
                &path,
                io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "it lists other classes, and labels count from it: choose another OUT",
                ),
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.write_json(CLASSES, &classes)?;
                self.place(CLASSES)
            }
            Err(error) => Err(Error::io("read", &path, error)),
        }
    }

    fn read_manifest(&self) -> Result<Manifest> {
        let path = self.out.join(MANIFEST);
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

    /// Writes `value` under the temporary name of `name`, synced.
    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let path = self.out.join(temporary_name(name));
        let mut text = serde_json::to_string_pretty(value).map_err(|error| Error::system("write JSON", error))?;
        text.push('\n');
        File::create(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .map_err(|error| Error::io("write", &path, error))
    }
}

impl Drop for ShardSet {
    fn drop(&mut self) {
        self.remove_temporaries();
    }
}

fn temporary_name(name: &str) -> String {
    format!(".{name}.partial")
}

fn final_name(temporary: &str) -> &str {
    temporary.strip_prefix('.').and_then(|name| name.strip_suffix(".partial")).unwrap_or(temporary)
}
