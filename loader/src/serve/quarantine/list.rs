//! A list of samples to leave out, as JSON lines: the form in which they are proposed.
//!
//! An entry names its sample by shard and key, which hold however the dataset is put together. The offset of a field's
//! bytes, where it is given, tells that the shard is still the one that was judged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, FaultClass, Result};
use crate::plan::SampleId;
use crate::shard::Dataset;

/// Longest list in bytes.
pub const LIST_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a hash, printed as twice as many digits.
const HASH_BYTES: usize = 16;

/// Entries that an error or a notice names; the others are counted.
const NAMED_MAX: usize = 5;

/// One line; a proposal has more members, which say why.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    shard: String,
    key: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    offset: u64,
    #[serde(default, skip_serializing)]
    class: Option<FaultClass>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(offset: &u64) -> bool {
    *offset == 0
}

/// Samples to leave out, by shard and key; the order of the lines and repetitions do not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuarantineList {
    /// Shard → key → offsets at which a member must have its bytes. No member has them at 0: a header comes first.
    shards: BTreeMap<String, BTreeMap<String, BTreeSet<u64>>>,
}

/// A list, found in a dataset.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The samples, ascending.
    pub samples: Vec<u64>,
    /// What users should know.
    pub notices: Vec<String>,
}

impl LeftOut {
    /// Adds what is left out for another reason; a sample that both leave out is left out once.
    pub fn join(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.samples.sort_unstable();
        self.samples.dedup();
        self.notices.extend(other.notices);
    }
}

impl QuarantineList {
    /// Reads lists; of a folder, every `.jsonl` file.
    pub fn read(paths: &[PathBuf]) -> Result<Self> {
        let mut list = Self::default();
        for path in paths {
            let metadata = fs::metadata(path).map_err(|source| Error::io("find", path, source))?;
            for file in if metadata.is_dir() { lists_in(path)? } else { vec![path.clone()] } {
                let bytes = fs::read(&file).map_err(|source| Error::io("read", &file, source))?;
                list.add(&bytes, &file)?;
            }
        }
        Ok(list)
    }

    /// Reads what [`QuarantineList::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut list = Self::default();
        list.add(bytes, Path::new("the attached quarantine"))?;
        Ok(list)
    }

    fn add(&mut self, bytes: &[u8], from: &Path) -> Result<()> {
        let refuse = |line: usize, what: String| Error::config(format!("{}, line {line}: {what}", from.display()));
        if bytes.len() as u64 > LIST_BYTES_MAX {
            return Err(refuse(1, format!("the list has {} bytes, over the limit of {LIST_BYTES_MAX}", bytes.len())));
        }
        // As editors of Windows save texts.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
            if text.trim_ascii().is_empty() {
                continue;
            }
            let entry: Entry = serde_json::from_slice(text).map_err(|error| {
                refuse(line, format!("not an entry of a quarantine, which has at least \"shard\" and \"key\": {error}"))
            })?;
            if entry.class == Some(FaultClass::Io) {
                return Err(refuse(
                    line,
                    format!(
                        "key {:?} is blamed for a read error, which is no fault of a sample: remove the line",
                        entry.key
                    ),
                ));
            }
            let offsets = self.shards.entry(entry.shard).or_default().entry(entry.key).or_default();
            offsets.extend((entry.offset > 0).then_some(entry.offset));
        }
        Ok(())
    }

    /// The list as JSON lines, one for each sample and offset, sorted.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (shard, key, offsets) in self.entries() {
            let offsets = if offsets.is_empty() { BTreeSet::from([0]) } else { offsets.clone() };
            for offset in offsets {
                let entry = Entry { shard: shard.to_owned(), key: key.to_owned(), offset, class: None };
                serde_json::to_writer(&mut bytes, &entry).expect("an entry is plain data");
                bytes.push(b'\n');
            }
        }
        bytes
    }

    /// A hash of which samples are left out.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (shard, key, _) in self.entries() {
            for text in [shard, key] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        hasher.finalize().to_hex()[..2 * HASH_BYTES].to_owned()
    }

    /// Samples on the list.
    pub fn len(&self) -> usize {
        self.shards.values().map(BTreeMap::len).sum()
    }

    /// Whether it names no sample.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Finds the samples in `dataset`. Entries of shards that it does not have are told in the notices.
    ///
    /// # Errors
    /// [`Error::Config`], with the first few by name, when a shard no longer has an entry's key, or has other bytes
    /// where the entry's were.
    pub fn find_in(&self, dataset: &Dataset) -> Result<LeftOut> {
        let mut found = LeftOut::default();
        let (mut stale, mut stale_count) = (Vec::new(), 0);
        let mut met = BTreeSet::new();
        for shard in 0..dataset.shard_count() {
            let path = dataset.shard_path(shard).display().to_string();
            let Some(keys) = self.shards.get(&path) else { continue };
            let mut missing: BTreeMap<&str, &BTreeSet<u64>> =
                keys.iter().map(|(key, offsets)| (key.as_str(), offsets)).collect();
            let mut complain = |key: &str, what: String| {
                stale_count += 1;
                if stale.len() < NAMED_MAX {
                    stale.push(format!("{path}: key {key:?}: {what}"));
                }
            };
            for sample in samples_of(dataset, shard) {
                let Some((key, offsets)) = dataset.with_key(SampleId(sample), |key| missing.remove_entry(key)) else {
                    continue;
                };
                match offsets.iter().find(|&&offset| !dataset.has_member_at(SampleId(sample), offset)) {
                    None => found.samples.push(sample),
                    Some(offset) => complain(key, format!("none of its members is at byte {offset} any more")),
                }
            }
            for key in missing.keys() {
                complain(key, "the shard has no such key".to_owned());
            }
            met.insert(path);
        }
        if stale_count > 0 {
            return Err(self.stale(&stale, stale_count));
        }
        found.notices = self.notices(&found.samples, &met);
        Ok(found)
    }

    fn stale(&self, named: &[String], count: usize) -> Error {
        let mut message = format!(
            "{count} of {} entries of the quarantine do not fit their shards, which changed since: remove these lines, or \
             make the list anew",
            self.len()
        );
        for entry in named {
            let _ = write!(message, "\n  {entry}");
        }
        if count > named.len() {
            let _ = write!(message, "\n  and {} more", count - named.len());
        }
        Error::config(message)
    }

    fn notices(&self, samples: &[u64], met: &BTreeSet<String>) -> Vec<String> {
        let mut notices =
            vec![format!("quarantine {}: {} samples are left out of every epoch", self.hash(), samples.len())];
        let others = self.entries().filter(|(shard, ..)| !met.contains(*shard));
        let count = others.clone().count();
        if let Some((shard, key, _)) = others.clone().next() {
            notices.push(format!(
                "{count} entries of the quarantine name shards that this job does not have; the first: {shard}, key {key:?}"
            ));
        }
        notices
    }

    fn entries(&self) -> impl Iterator<Item = (&str, &str, &BTreeSet<u64>)> + Clone {
        self.shards
            .iter()
            .flat_map(|(shard, keys)| keys.iter().map(move |(key, offsets)| (shard.as_str(), key.as_str(), offsets)))
    }
}

fn samples_of(dataset: &Dataset, shard: u32) -> std::ops::Range<u64> {
    let firsts = dataset.first_samples();
    let end = firsts.get(shard as usize + 1).copied().unwrap_or_else(|| dataset.sample_count());
    firsts[shard as usize]..end
}

fn lists_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let entries = entries.map_err(|source| Error::io("list", folder, source))?;
    let files = entries.into_iter().map(|entry| entry.path());
    let mut lists: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")).collect();
    lists.sort();
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::IndexOptions;

    fn list(text: &str) -> Result<QuarantineList> {
        QuarantineList::from_bytes(text.as_bytes())
    }

    #[test]
    fn the_hash_is_of_the_samples_alone() {
        let one = list("{\"shard\":\"/a\",\"key\":\"1\"}\n{\"shard\":\"/b\",\"key\":\"2\",\"offset\":512}\n").unwrap();
        let other = "\n{\"shard\":\"/b\",\"key\":\"2\",\"class\":\"corrupt\",\"row\":3}\n{\"shard\":\"/a\",\"key\":\"1\"}\n\
                     {\"shard\":\"/a\",\"key\":\"1\"}";
        assert_eq!(one.hash(), list(other).unwrap().hash());
        assert_eq!((one.len(), one.hash().len()), (2, 32));
        assert_ne!(one.hash(), list("{\"shard\":\"/a\",\"key\":\"1\"}").unwrap().hash());
        assert_ne!(one.hash(), list("").unwrap().hash());
        assert_eq!(QuarantineList::from_bytes(&one.to_bytes()).unwrap(), one);
        let marked = "\u{feff}{\"shard\":\"/a\",\"key\":\"1\"}\r\n{\"shard\":\"/b\",\"key\":\"2\"}\r\n";
        assert_eq!(list(marked).unwrap().hash(), one.hash(), "a byte-order mark is no part of the list");
    }

    fn check_refused(text: &str, words: &str) {
        let error = list(text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn what_is_no_entry_is_refused_with_its_line() {
        check_refused("{\"shard\":\"/a\",\"key\":\"1\"}\n{\"shard\":\"/a\"}", "line 2");
        check_refused("photo.jpg", "at least \"shard\" and \"key\"");
        check_refused("{\"shard\":\"/a\",\"key\":\"1\",\"class\":\"io\"}", "read error");
    }

    /// A shard of `keys`, one member of 5 bytes each: bytes at 512, 1536, ….
    fn dataset(folder: &Path, keys: &[&str]) -> (Dataset, String) {
        let path = folder.join("a.tar");
        let mut tar = tar::Builder::new(fs::File::create(&path).unwrap());
        for key in keys {
            let mut header = tar::Header::new_ustar();
            header.set_size(5);
            header.set_cksum();
            tar.append_data(&mut header, format!("{key}.txt"), &b"bytes"[..]).unwrap();
        }
        tar.finish().unwrap();
        let options = IndexOptions { cache_dir: Some(folder.join("cache")), ..IndexOptions::default() };
        let shard = path.display().to_string();
        (Dataset::open(&[path], &options, &|_| {}).unwrap(), shard)
    }

    #[test]
    fn entries_are_found_by_shard_and_key() {
        let folder = tempfile::tempdir().unwrap();
        let (dataset, shard) = dataset(folder.path(), &["x", "y", "z"]);
        let entry = |key: &str, offset: u64| format!("{{\"shard\":{shard:?},\"key\":{key:?},\"offset\":{offset}}}\n");
        let found = list(&(entry("z", 2560) + &entry("x", 0))).unwrap().find_in(&dataset).unwrap();
        assert_eq!(found.samples, [0, 2]);
        assert!(found.notices.len() == 1 && found.notices[0].contains("2 samples"), "{:?}", found.notices);

        let foreign = "{\"shard\":\"/other.tar\",\"key\":\"q\"}\n";
        let found = list(&(entry("y", 1536) + foreign)).unwrap().find_in(&dataset).unwrap();
        assert_eq!(found.samples, [1]);
        assert!(
            found.notices[1].contains("1 entries") && found.notices[1].contains("/other.tar"),
            "{:?}",
            found.notices
        );

        let error = list(&(entry("x", 700) + &entry("gone", 0))).unwrap().find_in(&dataset).unwrap_err().to_string();
        for words in
            ["2 of 2 entries", "\"x\": none of its members is at byte 700", "\"gone\": the shard has no such key"]
        {
            assert!(error.contains(words), "{error}");
        }
    }
}
