//! The job spec: what a client asks of the sidecar, as versioned JSON.
//!
//! Everything here is data. [`JobSpec::check`] refuses what cannot be before anything is opened; the modules that
//! act on a part compile it into a type of their own.

mod boxes;
mod dataset;
mod field;
mod join;
mod transforms;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub use boxes::{BOX_COLUMNS_MAX, BOXES_MAX, BoxFormat, BoxValuesSpec, BoxesSpec, Outside};
pub use dataset::{Damaged, DatasetRules, Duplicates, KeyOrder, KeyRule, LabelTable, Profile, Unsorted};
pub use field::{
    ArraySpec, DecodeMode, DecodeSpec, FieldKind, FieldSpec, ImageSpec, LikeSpec, MaskSpec, OrientationRule,
    PixelLayout, Truncated, ValueSpec,
};
pub use join::{JOIN_PARTS_MAX, JoinPartSpec, JoinSpec, Unpaired};
pub use transforms::{
    Channels, FloatType, Interpolation, PaddingMode, Policy, Resampling, ResizeTo, Transform, WarpSpec,
};

/// Version of the spec; a sidecar refuses another one by name.
pub const SPEC_VERSION: u32 = 1;

/// Most rows of a batch.
pub const BATCH_SIZE_MAX: u32 = 1 << 20;

/// Most fields of a job.
pub const FIELDS_MAX: usize = 32;

/// Most slots of a ring.
pub const SLOTS_MAX: u32 = 64;

/// Fewest slots of a ring: one held, one ready, one filling, and one for the private-copy rule to act on.
pub const SLOTS_MIN: u32 = 4;

/// Least and largest priority of a job; 1 is usual.
pub const PRIORITY_MIN: f64 = 0.01;
/// See [`PRIORITY_MIN`].
pub const PRIORITY_MAX: f64 = 100.0;

fn usual_priority() -> f64 {
    1.0
}

/// Most datasets of a mix.
pub const MIX_PARTS_MAX: usize = 1024;

/// What a client asks for: which samples, in which order, as which tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// [`SPEC_VERSION`].
    pub version: u32,
    /// A name for logs and metrics.
    pub name: String,
    /// Absolute paths of the shards, in order.
    pub shards: Vec<PathBuf>,
    /// How they are understood.
    #[serde(default)]
    pub rules: DatasetRules,
    /// The tensors of a batch, in the order in which the batch presents them.
    pub fields: Vec<FieldSpec>,
    /// Rows of a batch, per rank.
    pub batch_size: u32,
    /// How an epoch goes through the samples.
    pub order: OrderSpec,
    /// Seed of the order and of every augmentation.
    pub seed: u64,
    /// This client's number among `world_size`.
    pub rank: u32,
    /// How many clients share the epoch.
    pub world_size: u32,
    /// What becomes of samples that do not fill a global batch.
    pub tail: Tail,
    /// Positions of an epoch, when samples are drawn by weight or datasets are mixed; otherwise the number of samples.
    pub epoch_length: Option<u64>,
    /// Datasets that are mixed: `shards` are then those of its parts, one after the other.
    #[serde(default)]
    pub mix: Option<MixSpec>,
    /// Hash of the list of samples that are left out, where there is one; the list travels beside the spec.
    #[serde(default)]
    pub quarantine: Option<String>,
    /// Names of fields without any of which a sample is left out of every epoch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop_missing: Vec<String>,
    /// Share of the sidecar's workers beside those of other jobs: one of 2 gets twice as much of their time as one of 1.
    #[serde(default = "usual_priority")]
    pub priority: f64,
    /// PCI id of the GPU that batches go to, where it is known: the ring lies on its memory node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_pci: Option<String>,
    /// What becomes of a sample that cannot be used.
    pub on_error: OnError,
    /// Share of bad samples over which the run stops.
    pub error_budget: f64,
    /// Slots of the ring.
    pub slots: u32,
    /// Where the ring lies.
    #[serde(default)]
    pub ring: RingKind,
}

/// Where a ring lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingKind {
    /// In sealed memory without a name, which travels over the socket.
    #[default]
    Memfd,
    /// In named segments of POSIX shared memory, for readers that cannot be handed a descriptor.
    Named,
}

/// Order of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderSpec {
    /// A permutation of all samples, keyed by seed and epoch.
    Global,
    /// Shards in an order keyed by seed and epoch; the samples of some consecutive shards of it are permuted as one.
    Block {
        /// How many shards that is; chosen by the samples they hold where it is not said.
        block_shards: Option<u32>,
    },
    /// The dataset's own order.
    Sequential,
}

/// Datasets that are mixed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixSpec {
    /// The parts, in the order of their shards.
    pub parts: Vec<MixPartSpec>,
    /// Where an epoch ends that has no `epoch_length`.
    pub stop: MixStop,
}

/// One dataset of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixPartSpec {
    /// How many of the job's shards belong to it.
    pub shards: u32,
    /// Its share of the positions, relative to the other parts' weights.
    pub weight: f64,
}

/// Where an epoch of a mix ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixStop {
    /// When the first part has been gone through.
    First,
    /// When every part has been gone through at least once.
    All,
}

/// What becomes of the last global batch when the samples do not fill it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// It is split over the ranks; nothing is repeated, nothing left out.
    Short,
    /// It is left out.
    Drop,
    /// It is filled with samples from the start of the epoch's order, marked as not valid.
    Pad,
}

/// What becomes of a sample that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Another sample takes its row; the fault is counted and named in the batch's report.
    Replace,
    /// The batch that holds it raises.
    Raise,
}

impl JobSpec {
    /// Refuses what cannot be, with the way out. Says nothing about whether the shards exist.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::config(message));
        if self.version != SPEC_VERSION {
            return refuse(format!(
                "the job spec has version {}, this sidecar speaks {SPEC_VERSION}: install the same Feedline on both sides",
                self.version
            ));
        }
        if self.shards.is_empty() {
            return refuse("no shards: the pattern matched nothing".into());
        }
        if let Some(relative) = self.shards.iter().find(|path| !path.is_absolute()) {
            return refuse(format!("shard paths must be absolute, got {}", relative.display()));
        }
        if self.batch_size == 0 || self.batch_size > BATCH_SIZE_MAX {
            return refuse(format!("batch_size must be 1 to {BATCH_SIZE_MAX}, got {}", self.batch_size));
        }
        if self.world_size == 0 || self.rank >= self.world_size {
            return refuse(format!(
                "rank must be below world_size, got rank {} of world_size {}",
                self.rank, self.world_size
            ));
        }
        if !(SLOTS_MIN..=SLOTS_MAX).contains(&self.slots) {
            return refuse(format!("slots must be {SLOTS_MIN} to {SLOTS_MAX}, got {}", self.slots));
        }
        if !(0.0..=1.0).contains(&self.error_budget) {
            return refuse(format!("error_budget is a share, 0 to 1, got {}", self.error_budget));
        }
        if !(PRIORITY_MIN..=PRIORITY_MAX).contains(&self.priority) {
            return refuse(format!("priority must be {PRIORITY_MIN} to {PRIORITY_MAX}, got {}", self.priority));
        }
        if self.epoch_length == Some(0) {
            return refuse("epoch_length must be at least 1".into());
        }
        if self.order == (OrderSpec::Block { block_shards: Some(0) }) {
            return refuse("block_shards must be at least 1".into());
        }
        if let Some(mix) = &self.mix {
            self.check_mix(mix)?;
        }
        if let Some(join) = &self.rules.join {
            join.check(self.shards.len())?;
            if self.mix.is_some() {
                return refuse(
                    "a job is a Mix or a Join, not both: mix datasets that are joined by a loader each".into(),
                );
            }
        }
        self.check_fields()
    }

    fn check_mix(&self, mix: &MixSpec) -> Result<()> {
        let refuse = |message: String| Err(Error::config(message));
        if mix.parts.is_empty() || mix.parts.len() > MIX_PARTS_MAX {
            return refuse(format!("a mix has 1 to {MIX_PARTS_MAX} parts, got {}", mix.parts.len()));
        }
        if let Some((number, part)) =
            mix.parts.iter().enumerate().find(|(_, part)| !(part.weight.is_finite() && part.weight > 0.0))
        {
            return refuse(format!(
                "part {number} of the mix has weight {}: weights are finite and above 0; leave out a part that is not wanted",
                part.weight
            ));
        }
        let shards: u64 = mix.parts.iter().map(|part| u64::from(part.shards)).sum();
        if shards != self.shards.len() as u64 || mix.parts.iter().any(|part| part.shards == 0) {
            return refuse(format!(
                "the parts of the mix have {shards} shards, at least one each, and the job names {}",
                self.shards.len()
            ));
        }
        if matches!(self.order, OrderSpec::Block { .. }) {
            return refuse(
                "order=\"block\" goes through one dataset, not a Mix: use order=\"global\", or a loader for each dataset".into(),
            );
        }
        Ok(())
    }

    fn check_fields(&self) -> Result<()> {
        if self.fields.is_empty() || self.fields.len() > FIELDS_MAX {
            return Err(Error::config(format!("a job has 1 to {FIELDS_MAX} fields, got {}", self.fields.len())));
        }
        for (index, field) in self.fields.iter().enumerate() {
            if field.sources.is_empty() || field.sources.iter().any(String::is_empty) {
                return Err(Error::config(format!("field {:?} names no shard member to read from", field.name)));
            }
            if self.fields[..index].iter().any(|other| other.name == field.name) {
                return Err(Error::config(format!("field {:?} is named twice", field.name)));
            }
        }
        for name in &self.drop_missing {
            match self.fields.iter().find(|field| field.name == *name) {
                None => return Err(Error::config(format!("missing= names {name:?}, which is no field of the job"))),
                Some(field) if field.default.is_some() => {
                    return Err(Error::config(format!(
                        "field {name:?} has a default, so no sample lacks it: leave default= or missing=\"drop\" out"
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}
