//! Boxes of an image, as a client names them, and values that belong to them.

use serde::{Deserialize, Serialize};

use crate::batch::Dtype;

/// Most numbers of a box besides its sides: its label, and what else is kept or looked at.
pub const BOX_COLUMNS_MAX: usize = 16;

/// Most boxes of a sample that a job may ask for.
pub const BOXES_MAX: u32 = 1 << 20;

/// The boxes of an image: where they are found, and which of them are kept.
///
/// A value is JSON, a `.npy` or a `.npz`, told apart by the first bytes. JSON is a list of rows of numbers, a list of
/// objects, or an object with a list for each column; a `.npy` is rows of numbers, a `.npz` has an array for each column.
/// A row of numbers has the box, the label where there is one, the extra numbers and that of `leave_out`, in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoxesSpec {
    /// The image field that they belong to: they go where its transforms take them.
    pub of: String,
    /// What the four numbers of a box are.
    pub format: BoxFormat,
    /// Whether they are shares of the image's width and height.
    pub normalized: bool,
    /// In JSON, the member of the outermost object that holds the boxes.
    pub within: Option<String>,
    /// Name of a box in its object, or of the column.
    pub boxes: String,
    /// Name of the label in its object, or of the column; without one every label is 1.
    pub labels: Option<String>,
    /// Names of further numbers that are kept.
    pub extra: Vec<String>,
    /// Name of a number that, where it is not 0, leaves its box out.
    pub leave_out: Option<String>,
    /// What becomes of a box that lies outside the image altogether.
    pub outside: Outside,
    /// Shortest side of a box that is kept, in pixels of the output.
    pub min_size: f64,
    /// Smallest area of a box that is kept, in pixels of the output.
    pub min_area: f64,
    /// Smallest share of a box that is kept, of what it was in the image.
    pub min_visibility: f64,
    /// Samples of more boxes are bad.
    pub max_boxes: u32,
}

/// What the four numbers of a box are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxFormat {
    /// Left, top, right, bottom.
    Xyxy,
    /// Left, top, width, height.
    Xywh,
    /// Middle across, middle down, width, height.
    Cxcywh,
}

/// What becomes of a box that lies outside its image altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outside {
    /// The sample is bad.
    Fault,
    /// The box is dropped, as one that a crop has cut away.
    Drop,
}

/// An array with one entry a box, of which those of the boxes that are kept are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoxValuesSpec {
    /// The field of boxes that it belongs to.
    pub of: String,
    /// Element type; arrays of another are bad samples.
    pub dtype: Dtype,
    /// Shape of one entry.
    pub shape: Vec<u32>,
    /// Larger arrays are bad samples, in bytes.
    pub max_bytes: u32,
}
