//! Where the bytes of one field of one sample are, and what they are wrapped in.

use serde::{Deserialize, Serialize};

use super::dataset::FileNumber;

/// A run of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// Where they start.
    pub offset: u64,
    /// How many.
    pub len: u32,
}

/// What a range of bytes is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A file, to be read: see [`FieldBytes::file`].
    File,
    /// The shard's index, which is in memory: see [`super::Dataset::stored`].
    Index,
    /// The table of labels, which is in memory as well.
    Labels,
}

/// What the bytes of a field are wrapped in, which a worker takes off before the field is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Nothing: the bytes are the field.
    #[default]
    Plain,
    /// The value of a database, taken as it is unless it is plainly serialised.
    Value,
    /// The element of this number of a serialised tuple.
    Element(u8),
    /// The image of a Caffe Datum.
    DatumImage,
    /// The label of a Caffe Datum.
    DatumLabel,
}

/// The bytes of one field of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldBytes {
    /// What `range` is a part of.
    pub origin: Origin,
    /// The file that has the sample, or the part of it that the field belongs to, and the bytes unless they are elsewhere.
    pub file: FileNumber,
    /// Where in it.
    pub range: ByteRange,
    /// What they are wrapped in.
    pub encoding: Encoding,
}

impl FieldBytes {
    /// The file and the range of it to read, if the bytes are there.
    pub fn in_file(&self) -> Option<(FileNumber, ByteRange)> {
        (self.origin == Origin::File).then_some((self.file, self.range))
    }
}
