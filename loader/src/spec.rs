//! The job spec: what a client asks of the sidecar, as versioned JSON.
//!
//! Everything here is data. [`JobSpec::check`] refuses what cannot be before anything is opened; the modules that
//! act on a part compile it into a type of their own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

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
    /// Whether the epoch's order is a permutation or the dataset's own.
    pub order: OrderSpec,
    /// Seed of the order and of every augmentation.
    pub seed: u64,
    /// This client's number among `world_size`.
    pub rank: u32,
    /// How many clients share the epoch.
    pub world_size: u32,
    /// What becomes of samples that do not fill a global batch.
    pub tail: Tail,
    /// Positions of an epoch, when samples are drawn by weight; otherwise the number of samples.
    pub epoch_length: Option<u64>,
    /// What becomes of a sample that cannot be used.
    pub on_error: OnError,
    /// Share of bad samples over which the run stops.
    pub error_budget: f64,
    /// Slots of the ring.
    pub slots: u32,
}

/// How shards are understood, where there is a choice. An index depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetRules {
    /// What the keys and values of an LMDB database mean.
    pub profile: Profile,
    /// The database to read, where an LMDB file has several inside.
    pub database: Option<String>,
    /// The order of the samples of an LMDB database.
    pub key_order: KeyOrder,
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

/// Order of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderSpec {
    /// A permutation of all samples, keyed by seed and epoch.
    Shuffled,
    /// The dataset's own order.
    Sequential,
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

/// One tensor of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldSpec {
    /// Its name in the batch.
    pub name: String,
    /// Names of shard members that can supply it, lower case, without a leading dot; the first present wins.
    pub sources: Vec<String>,
    /// What it becomes.
    pub kind: FieldKind,
}

/// What a field's bytes become.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    /// uint8 pixels, (height, width, 3) a row.
    Image(ImageSpec),
    /// One int64 a row, written in decimal, surrounding white space ignored.
    Int,
    /// One float64 a row, written in decimal, surrounding white space ignored.
    Float,
}

/// How an image is decoded and augmented.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Operations in order; together they must fix the output size.
    pub transforms: Vec<Transform>,
    /// Order of the axes in memory.
    pub layout: PixelLayout,
    /// Images of more pixels are refused from their header.
    pub max_pixels: u64,
}

/// Order of the axes of an image in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PixelLayout {
    /// (height, width, channel): torch's channels_last.
    Nhwc,
    /// (channel, height, width).
    Nchw,
}

/// One augmentation; names and semantics of torchvision v2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// A random box of the image, resized (bilinear, antialias).
    RandomResizedCrop {
        /// (height, width) of the output.
        size: [u32; 2],
        /// Range of the box's share of the image's area.
        scale: [f64; 2],
        /// Range of the box's width / height, drawn uniformly in its logarithm.
        ratio: [f64; 2],
    },
    /// The whole image resized (bilinear, antialias).
    Resize {
        /// The size it gets.
        to: ResizeTo,
    },
    /// The middle of the image, padded with zeros where the image is smaller.
    CenterCrop {
        /// (height, width) of the output.
        size: [u32; 2],
    },
    /// Mirrored left to right with probability `p`.
    RandomHorizontalFlip {
        /// Probability.
        p: f64,
    },
}

/// Target of a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeTo {
    /// The shorter side gets this length, the other keeps the ratio (rounded down, as torchvision does).
    ShortSide(u32),
    /// (height, width), whatever the ratio.
    Exact([u32; 2]),
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
        if self.epoch_length == Some(0) {
            return refuse("epoch_length must be at least 1".into());
        }
        self.check_fields()
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
        Ok(())
    }
}
