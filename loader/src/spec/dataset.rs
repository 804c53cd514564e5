//! What a dataset is taken for: its labels, keys and conventions, and what is done about damage.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::JoinSpec;

/// How shards are understood, where there is a choice. An index depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetRules {
    /// Where a member's name is cut into key and field.
    pub key_rule: KeyRule,
    /// A second member of a sample for one field.
    pub duplicates: Duplicates,
    /// Members of a sample that do not follow each other.
    pub unsorted: Unsorted,
    /// A shard that is cut off or damaged.
    pub damaged: Damaged,
    /// What the keys and values of an LMDB database mean.
    pub profile: Profile,
    /// The database to read, where an LMDB file has several inside.
    pub database: Option<String>,
    /// The order of the samples of an LMDB database.
    pub key_order: KeyOrder,
    /// A table of labels, joined by key.
    pub labels: Option<LabelTable>,
    /// Datasets that are joined by key: the job's shards are then those of its parts, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinSpec>,
}

impl DatasetRules {
    /// The part that the index of a shard depends on.
    pub fn of_index(&self) -> Self {
        Self { labels: None, join: None, ..self.clone() }
    }
}

/// A table beside a dataset, whose columns are fields.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelTable {
    /// Its file: `.csv`, `.tsv`, `.jsonl` or `.ndjson`.
    pub path: PathBuf,
    /// The column with the samples' keys; else the first, or `key` in JSON lines.
    pub key: Option<String>,
}

/// Where a member's name is cut into key and field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRule {
    /// At the first dot of the last path component: WebDataset's rule.
    #[default]
    FirstDot,
    /// At the last dot, for base names that have dots of their own.
    LastDot,
}

/// What becomes of a second member of a sample for one field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// The shard is refused.
    #[default]
    Error,
    /// The first counts.
    First,
    /// The last counts.
    Last,
    /// The sample is left out.
    DropSample,
}

/// What becomes of members of a sample that do not follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsorted {
    /// The shard is refused.
    #[default]
    Error,
    /// They are joined, at the place of the first.
    Regroup,
}

/// What becomes of a shard that is cut off or damaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damaged {
    /// The dataset is refused.
    #[default]
    Error,
    /// The samples before the damage are used.
    SkipRest,
}

/// Conventions for the keys and values of an LMDB database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Found from the keys and a few values.
    #[default]
    Auto,
    /// Key to image.
    Plain,
    /// `image-000000001`, `label-000000001`, `num-samples`.
    TextRecognition,
    /// Images, listed by a `meta_info.txt` beside them.
    SuperResolution,
    /// Caffe Datums.
    Datum,
    /// Images under hashes.
    Lsun,
    /// Serialised tuples of an image and a label.
    Folder,
    /// Images, and their number under `length`.
    LengthKeys,
    /// Graphs of atoms, which are not read.
    OpenCatalyst,
}

/// The order of the samples of an LMDB database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyOrder {
    /// That of the meta file, where the profile has one; natural where all keys are numbers; else that of the bytes.
    #[default]
    Auto,
    /// Numbers in keys count by their value: `2` before `10`.
    Natural,
    /// As the database keeps them.
    Bytes,
    /// That of `meta_info.txt`.
    MetaFile,
}
