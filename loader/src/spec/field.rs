//! What a field of a batch is made of, and how images are decoded for it.

use serde::{Deserialize, Serialize};

use super::{BoxValuesSpec, BoxesSpec, Transform};
use crate::batch::Dtype;

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
    /// What a row gets whose sample has none of the sources. `None`: such a sample is bad. Numbers, texts, JSON and
    /// bytes: what the member would hold. Images, masks and arrays of fixed shape: one element in this machine's byte
    /// order, repeated. Arrays of varying shape: anything, for an array of no elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Vec<u8>>,
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
    /// UTF-8, of any length up to a limit; checked.
    Text(ValueSpec),
    /// JSON as Python's `json` reads it (NaN and Infinity too); checked, delivered as its bytes.
    Json(ValueSpec),
    /// Bytes as they are.
    Bytes(ValueSpec),
    /// A NumPy array, `.npy` or a member of `.npz`.
    Array(ArraySpec),
    /// Class numbers, (height, width) a row, resampled to the nearest pixel only.
    Mask(MaskSpec),
    /// Boxes of an image, any number a row.
    Boxes(BoxesSpec),
    /// An array with one entry a box.
    BoxValues(BoxValuesSpec),
}

/// A value of any length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueSpec {
    /// Longer values are bad samples, in bytes.
    pub max_bytes: u32,
}

/// A NumPy array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArraySpec {
    /// The member of an `.npz` to take; `None`: the bytes are an `.npy`.
    pub member: Option<String>,
    /// Element type; arrays of another are bad samples.
    pub dtype: Dtype,
    /// Shape of each array; `None`: each has its own.
    pub shape: Option<Vec<u32>>,
    /// Where each has its own shape: larger ones are bad samples, in bytes.
    pub max_bytes: u32,
}

/// A mask of class numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskSpec {
    /// Operations in order, as those of an image; of resizes only the geometry counts. Empty with `like`.
    pub transforms: Vec<Transform>,
    /// The image field whose transforms and random draws this mask shares.
    pub like: Option<String>,
    /// [`Dtype::Uint8`], or [`Dtype::Int32`], which 16-bit masks need.
    pub dtype: Dtype,
    /// Class number of what a crop adds where the mask is smaller.
    pub fill: u16,
    /// Masks of more pixels are refused from their header.
    pub max_pixels: u64,
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
    /// Number of the view: images of one sample whose transforms are alike differ in their draws by this.
    #[serde(default)]
    pub view: u16,
    /// The image of a pair whose transforms, draws and view this one shares; it then has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<LikeSpec>,
    /// How bytes become pixels, where there is a choice.
    #[serde(default)]
    pub decode: DecodeSpec,
}

impl Default for ImageSpec {
    fn default() -> Self {
        Self {
            transforms: Vec::new(),
            layout: PixelLayout::Nhwc,
            max_pixels: 1 << 28,
            view: 0,
            like: None,
            decode: DecodeSpec::default(),
        }
    }
}

/// Which image another follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LikeSpec {
    /// Its field.
    pub image: String,
    /// How many times larger the follower is, in each direction: every box, size and place of the other times this.
    pub scale: u32,
}

/// How the bytes of an image become pixels, where there is a choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeSpec {
    /// How faithfully JPEGs are decoded.
    pub mode: DecodeMode,
    /// What becomes of JPEGs that are cut off.
    pub truncated: Truncated,
    /// Whether the orientation that a camera noted turns the picture.
    pub orientation: OrientationRule,
    /// The colour behind transparent pixels; without one alpha is dropped.
    pub background: Option<[u8; 3]>,
}

/// How faithfully JPEGs are decoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecodeMode {
    /// Bit for bit as Pillow does.
    #[default]
    Exact,
    /// Reduced while decoding, by 2, 4 or 8, where the box that a resize takes stays at least twice as large as what it
    /// makes of it, and the resize is bilinear with antialias; else exact.
    Scaled,
    /// The fast inverse transform, and colours that are repeated instead of interpolated.
    Fast,
}

/// What becomes of JPEGs that are cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncated {
    /// They are bad samples.
    #[default]
    Fault,
    /// They are decoded as far as they go, the rest is grey; each is counted, and named in its batch's report.
    Lenient,
}

/// Whether the orientation in an image's EXIF data turns it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrientationRule {
    /// Pixels stay as they are stored, as with torchvision and Pillow.
    #[default]
    Ignore,
    /// The picture is turned before anything else, and so are masks that follow it.
    Apply,
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
