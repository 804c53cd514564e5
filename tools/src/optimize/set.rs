//! The folder of shards that are written anew. Each gets its final name as soon as it is on the disk, and a line in a journal
//! before that; the manifest takes the journal's place at the end. A run that was interrupted is so continued: what the
//! journal or the manifest knows, and is still what they say, is kept.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use feedline_loader::shard::ShardState;
use feedline_loader::transcode::Markers;
use feedline_loader::{Error, Result};
use serde::{Deserialize, Serialize};

use super::Source;
use super::tally::Tally;
use crate::folder::{CLASSES, OutFolder, parse_classes, temporary_name};
use crate::hashed_file::WrittenFile;

/// The set's name in the manifest.
const SET: &str = "optimized";

/// The journal: a record of a shard a line.
const JOURNAL: &str = ".optimized.journal";

/// Bytes hashed at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// What the manifest says of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// The file that it was made from.
    pub source: ShardState,
    /// Which markers were kept.
    pub markers: Markers,
    /// Size of the tar before, unpacked.
    pub bytes_before: u64,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of the whole file, in hexadecimal.
    pub blake3: String,
    /// What became of its JPEGs.
    pub tally: Tally,
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
struct Line {
    file: String,
    record: ShardRecord,
}

/// What the manifest says of the set, by shard.
#[derive(Default, Serialize, Deserialize)]
struct SetRecord {
    shards: BTreeMap<String, ShardRecord>,
}

/// The folder, its lock and its journal.
pub struct OptimizedSet {
    folder: OutFolder,
    journal: File,
    records: BTreeMap<String, ShardRecord>,
    /// Final names of the shards of this run.
    names: Vec<String>,
}

impl OptimizedSet {
    /// Makes and locks `out`, for the shards of `sources`.
    pub fn open(out: &Path, sources: &[Source]) -> Result<Self> {
        let folder = OutFolder::open(out)?;
        let mut shards: SetRecord = match folder.read_manifest()?.sets.remove(SET) {
            None => SetRecord::default(),
            Some(value) => serde_json::from_value(value).map_err(|error| {
                Error::config(format!(
                    "{}: its manifest is of another version ({error}): choose another OUT",
                    out.display()
                ))
            })?,
        };
        let path = out.join(JOURNAL);
        let journal = open_journal(&path, &mut shards.shards).map_err(|error| Error::io("read", &path, error))?;
        let names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
        let set = Self { folder, journal, records: shards.shards, names };
        set.remove_temporaries();
        Ok(set)
    }

    /// The folder.
    pub fn folder(&self) -> &OutFolder {
        &self.folder
    }

    /// The record of the shard of `source` if an earlier run has written it, after a look at every byte; `progress` is told
    /// how many. A file that is there and is not what this run would write is refused.
    pub fn kept(&self, source: &Source, markers: Markers, progress: impl Fn(u64)) -> Result<Option<&ShardRecord>> {
        let path = self.folder.path().join(&source.name);
        if !path.exists() {
            return Ok(None);
        }
        let refused = |what: &str| {
            let message = format!("{what}, and nothing is overwritten: choose another OUT, or delete it");
            Err(Error::io("write", &path, io::Error::new(io::ErrorKind::AlreadyExists, message)))
        };
        let Some(record) = self.records.get(&source.name) else {
            return refused("it is there already, and not by this command");
        };
        if record.source != source.state {
            return refused("it was made from another file, or that was changed since");
        }
        if record.markers != markers {
            return refused("it was written with another choice of --markers");
        }
        let (bytes, blake3) = hash(&path, progress).map_err(|error| Error::io("read", &path, error))?;
        if (bytes, &blake3) != (record.bytes, &record.blake3) {
            return refused("it is not what the manifest says, so it was changed since");
        }
        Ok(Some(record))
    }

    /// Gives a complete shard its final name, once it and its line in the journal are on the disk.
    pub fn publish(&self, name: &str, shard: &WrittenFile, record: &ShardRecord) -> Result<()> {
        shard.sync()?;
        let line = Line { file: name.to_owned(), record: record.clone() };
        let mut text = serde_json::to_vec(&line).map_err(|error| Error::system("write JSON", error))?;
        text.push(b'\n');
        (&self.journal)
            .write_all(&text)
            .and_then(|()| self.journal.sync_data())
            .map_err(|error| Error::io("write", &self.folder.path().join(JOURNAL), error))?;
        self.folder.place(name)?;
        self.folder.sync()
    }

    /// Copies the class list beside `shard`, by which labels have names.
    pub fn copy_classes(&self, shard: &Path) -> Result<()> {
        let Ok(text) = fs::read(shard.with_file_name(CLASSES)) else { return Ok(()) };
        parse_classes(&text).map_or(Ok(()), |classes| self.folder.write_classes(&classes, &text))
    }

    /// Writes the manifest, with the shards of `written` too, in place of the journal.
    pub fn finish(mut self, written: Vec<(String, ShardRecord)>) -> Result<()> {
        self.records.extend(written);
        // A record without its file is of a run that ended between the two.
        let shards = std::mem::take(&mut self.records);
        let shards = shards.into_iter().filter(|(name, _)| self.folder.path().join(name).exists()).collect();
        self.folder.record_set(SET, &SetRecord { shards })?;
        let path = self.folder.path().join(JOURNAL);
        fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        self.folder.sync()
    }

    fn remove_temporaries(&self) {
        self.folder.remove_temporaries(|name| self.names.iter().any(|ours| ours == name));
    }
}

impl Drop for OptimizedSet {
    fn drop(&mut self) {
        self.remove_temporaries();
        // An empty journal says nothing.
        if self.journal.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            let _ = fs::remove_file(self.folder.path().join(JOURNAL));
        }
    }
}

/// Opens the journal for appending, and takes up what it says. A line that was cut off is cut away.
fn open_journal(path: &Path, records: &mut BTreeMap<String, ShardRecord>) -> io::Result<File> {
    let mut journal = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let mut text = Vec::new();
    journal.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    journal.set_len(whole as u64)?;
    for line in text[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let Line { file, record } = serde_json::from_slice(line)?;
        records.insert(file, record);
    }
    Ok(journal)
}

/// Size and BLAKE3 of the file at `path`.
fn hash(path: &Path, progress: impl Fn(u64)) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok((bytes, hasher.finalize().to_hex().to_string())),
            Ok(count) => {
                hasher.update(&chunk[..count]);
                bytes += count as u64;
                progress(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether `name` may be a shard's: no other file of the folder has it.
pub fn is_free_name(name: &str) -> bool {
    ![CLASSES, "manifest.json", JOURNAL].contains(&name) && !name.starts_with('.') && temporary_name(name).len() < 256
}
