//! What a shard holds, for people.

use std::path::PathBuf;

use super::dataset::Dataset;
use super::findings::FindingCount;
use super::table::FieldCount;

/// One shard, as `feedline inspect` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSummary {
    /// Its path.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Samples in it.
    pub samples: u32,
    /// Members that belong to samples.
    pub members: u32,
    /// Length of its index.
    pub index_bytes: u64,
    /// The fields, in the order of their first member.
    pub fields: Vec<FieldCount>,
    /// The first keys.
    pub first_keys: Vec<String>,
    /// What was skipped, refused or odd.
    pub findings: Vec<FindingCount>,
}

impl Dataset {
    /// Sums up shard number `shard`, with at most `keys_max` keys.
    pub fn shard_summary(&self, shard: u32, keys_max: u32) -> ShardSummary {
        let index = self.index(shard);
        let keys = (0..index.sample_count().min(keys_max)).map(|sample| index.key(sample).to_owned());
        ShardSummary {
            path: self.shard_path(shard).to_owned(),
            bytes: index.identity.state.bytes,
            samples: index.sample_count(),
            members: index.member_count(),
            index_bytes: index.index_bytes(),
            fields: index.meta.fields.clone(),
            first_keys: keys.collect(),
            findings: index.meta.findings.clone(),
        }
    }
}
