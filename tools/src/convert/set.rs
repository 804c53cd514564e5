//! The set of shards that a tree becomes: none has its final name before all are on the disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use feedline_loader::transcode::Markers;
use feedline_loader::{Error, Result};
use serde::Serialize;

use super::pack::{Forecast, Order};
use super::scan::{LeftOut, Tally};
use super::shard::WrittenShard;
use crate::folder::{OutFolder, final_name, json};
use crate::optimize::tally::Tally as OptimizeTally;
use crate::output::counted;

/// A set of shards that is being written; dropped before its commit, it leaves nothing behind.
#[derive(Debug)]
pub struct ShardSet {
    folder: OutFolder,
    prefix: String,
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
    /// Of JPEGs that were written anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimized: Option<OptimizeRecord>,
    /// The shards in order.
    pub shards: Vec<ShardRecord>,
}

/// What the manifest says of JPEGs that were written anew.
#[derive(Debug, Serialize)]
pub struct OptimizeRecord {
    /// Which markers were kept.
    pub markers: Markers,
    /// What became of them.
    #[serde(flatten)]
    pub tally: OptimizeTally,
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

impl ShardSet {
    /// Makes and locks `out`, and refuses it when it holds shards of `prefix` already or lies inside `source`.
    pub fn open(out: &Path, prefix: &str, source: &Path) -> Result<Self> {
        let made = !out.exists();
        let folder = OutFolder::open(out)?;
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
        let set = Self { folder, prefix: prefix.to_owned() };
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
        self.folder.path().join(name).display().to_string()
    }

    /// Refuses when the file system has less room than `forecast` needs.
    pub fn check_space(&self, forecast: &Forecast) -> Result<()> {
        self.folder.check_space(&counted(forecast.shards, "shard"), forecast.shard_bytes)
    }

    /// Where shard `number` lies until the commit.
    pub fn temporary_path(&self, number: u64) -> PathBuf {
        self.folder.temporary_path(&self.file_name(number))
    }

    /// Waits until a shard is on the disk.
    pub fn sync(&self, shard: WrittenShard) -> Result<ShardRecord> {
        let WrittenShard { file, samples } = shard;
        file.sync()?;
        let temporary = file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Ok(ShardRecord { file: final_name(temporary).to_owned(), samples, bytes: file.bytes, blake3: file.blake3 })
    }

    /// Gives every shard its final name, then writes the classes and the manifest.
    pub fn commit(self, classes: &[String], record: SetRecord) -> Result<()> {
        self.folder.write_classes(classes, &json(&classes)?)?;
        for shard in &record.shards {
            self.folder.place(&shard.file)?;
        }
        self.folder.record_set(&self.prefix, &record)
    }

    fn file_name(&self, number: u64) -> String {
        format!("{}-{number:06}.tar", self.prefix)
    }

    fn refuse_existing(&self) -> Result<()> {
        let shards = self.folder.names()?.filter(|name| self.is_shard(name)).count() as u64;
        if shards > 0 {
            return Err(self.refusal(format!("{} of prefix {:?}", counted(shards, "shard"), self.prefix)));
        }
        if self.folder.read_manifest()?.sets.contains_key(&self.prefix) {
            return Err(self.refusal(format!("a manifest with the set {:?}", self.prefix)));
        }
        Ok(())
    }

    fn refusal(&self, what: String) -> Error {
        let message =
            format!("it holds {what}, and nothing is overwritten: choose another OUT or --prefix, or delete them");
        Error::io("write to", self.folder.path(), io::Error::new(io::ErrorKind::AlreadyExists, message))
    }

    fn is_shard(&self, name: &str) -> bool {
        let number = name.strip_prefix(&self.prefix).and_then(|rest| rest.strip_prefix('-'));
        number
            .and_then(|rest| rest.strip_suffix(".tar"))
            .is_some_and(|digits| digits.len() >= 6 && digits.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// What a broken run of this prefix left.
    fn remove_temporaries(&self) {
        self.folder.remove_temporaries(|name| self.is_shard(name));
    }
}

impl Drop for ShardSet {
    fn drop(&mut self) {
        self.remove_temporaries();
    }
}
