//! What users are told of a dataset when it is opened: findings of all shards, summed up, and how shards were understood.

use std::collections::BTreeMap;
use std::path::Path;

use super::dataset::{Dataset, Shard};
use super::findings::Finding;
use super::lmdb::Snapshot;
use crate::error::Error;

impl Dataset {
    /// All that indexes and snapshots tell.
    pub(super) fn first_notices(&self) -> Vec<String> {
        let mut notices = self.findings();
        notices.extend(self.shards.iter().filter_map(|shard| shard.snapshot.as_ref().and_then(Snapshot::notice)));
        notices.extend(self.notes());
        notices.extend(self.repeated_shards());
        notices.extend(self.compressed_words());
        notices
    }

    /// One line for each class of findings.
    fn findings(&self) -> Vec<String> {
        struct Sum<'a> {
            count: u64,
            shards: u64,
            path: &'a Path,
            offset: u64,
            example: &'a str,
        }
        let mut sums = BTreeMap::<Finding, Sum<'_>>::new();
        for Shard { path, index, .. } in &self.shards {
            for found in index.meta.findings.iter().filter(|found| found.finding.is_notable()) {
                let first = Sum { count: 0, shards: 0, path, offset: found.offset, example: &found.example };
                let sum = sums.entry(found.finding).or_insert(first);
                sum.count += found.count;
                sum.shards += 1;
            }
        }
        let line = |(finding, Sum { count, shards, path, offset, example }): (Finding, Sum<'_>)| {
            let (total, path) = (self.shards.len(), path.display());
            let comma = if example.is_empty() { "" } else { ", " };
            let what = finding.describe();
            format!("{what}: {count}, in {shards} of {total} shards; the first: {path}, byte {offset}{comma}{example}")
        };
        sums.into_iter().map(line).collect()
    }

    /// How shards were understood: one line for all that were alike.
    fn notes(&self) -> Vec<String> {
        let mut alike = BTreeMap::<&str, (usize, &Path)>::new();
        for Shard { path, index, .. } in &self.shards {
            for note in &index.meta.notes {
                alike.entry(note).or_insert((0, path)).0 += 1;
            }
        }
        let total = self.shards.len();
        let line = |(note, (count, path)): (&str, (usize, &Path))| match total {
            1 => format!("{}: {note}", path.display()),
            _ => format!("{note}: {count} of {total} shards; the first: {}", path.display()),
        };
        alike.into_iter().map(line).collect()
    }

    fn repeated_shards(&self) -> Option<String> {
        let mut paths: Vec<&Path> = self.shards.iter().map(|shard| shard.path.as_path()).collect();
        paths.sort_unstable();
        let repeated: Vec<&Path> = paths.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        let first = repeated.first()?;
        Some(format!(
            "{} shards are listed more than once, so their samples are too; the first: {}",
            repeated.len(),
            first.display()
        ))
    }

    pub(super) fn no_samples(&self) -> Error {
        let mut message = format!("there is not one sample in {} shards", self.own_shards);
        for notice in &self.notices {
            message.push_str("; ");
            message.push_str(notice);
        }
        Error::config(message)
    }

    fn compressed_words(&self) -> Option<String> {
        let count = self.shards.iter().filter(|shard| shard.index.compression().is_some()).count();
        let first = self.shards.iter().find_map(|shard| shard.index.compression())?;
        Some(format!(
            "{count} of {} shards are compressed ({}): each is unpacked into {} before it is read, which costs time and space \
             in every epoch; write them as plain tars with `feedline convert`",
            self.shards.len(),
            first.name(),
            self.unpack_folder.display()
        ))
    }
}
