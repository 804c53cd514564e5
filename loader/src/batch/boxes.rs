//! The boxes of an image: through its geometry, clipped, and dropped by rule; and values that are dropped along.
//!
//! A row's value in a slot is one record for each box that is kept: left, top, right, bottom as float32, the label as
//! int64, then each extra number as float64.

use super::arrays::{ARRAY_HEADER_BYTES, Sides};
use super::layout::{DIMENSIONS_MAX, Dtype};
use super::mask::ImageForm;
use crate::augment::boxes::MovingBox;
use crate::augment::plan::{self, Sample, Step};
use crate::augment::{Draw, ImageRecipe};
use crate::decode::boxes::{BoxTable, Columns, SIDES};
use crate::decode::npy;
use crate::decode::npz::NpzReader;
use crate::error::{Error, FaultClass, Result, SampleFault};
use crate::spec::{
    BOX_COLUMNS_MAX, BOXES_MAX, BoxFormat, BoxValuesSpec, BoxesSpec, FieldKind, FieldSpec, ImageSpec, Outside,
    PaddingMode, Transform,
};

/// Bytes of a box in a value, besides its extra numbers.
pub const BOX_RECORD_BYTES: usize = SIDES * size_of::<f32>() + size_of::<i64>();

/// Fewest bytes that a box takes in JSON.
const TEXT_BYTES_MIN: u64 = 10;

/// Largest label: beyond, doubles are no longer all integers.
const LABEL_MAX: f64 = (1_u64 << 53) as f64;

/// The label where there is none: 0 is background to most detectors.
const LABEL: f64 = 1.0;

/// A checked [`BoxesSpec`].
#[derive(Debug)]
pub struct BoxesRecipe {
    spec: BoxesSpec,
    columns: Columns,
    /// The image field that the boxes belong to, and what happens to it.
    image: usize,
    transforms: Vec<Transform>,
    view: u16,
    scale: u32,
    pixels_max: u64,
}

impl BoxesRecipe {
    /// Checks `spec`, that of field `name` among `fields`.
    pub fn compile(spec: &BoxesSpec, name: &str, fields: &[FieldSpec]) -> Result<Self> {
        let refuse = |words: String| Error::config(format!("boxes {name:?}: {words}"));
        let of = &spec.of;
        let found = fields.iter().enumerate().find_map(|(place, field)| match &field.kind {
            FieldKind::Image(image) if field.name == *of => Some((place, image)),
            _ => None,
        });
        let (image, ImageSpec { transforms, view, max_pixels, like, .. }) =
            found.ok_or_else(|| refuse(format!("of={of:?} names no image field of this job")))?;
        if let Some(mode) = transforms.iter().find_map(mirroring) {
            return Err(refuse(format!(
                "a border in mode {mode:?} shows objects a second time, which no box says: pad image {of:?} in mode \
                 constant or edge"
            )));
        }
        let columns = Columns::new(spec);
        let names = [Some(&spec.boxes), spec.within.as_ref(), spec.labels.as_ref(), spec.leave_out.as_ref()];
        for own in names.into_iter().flatten().chain(&spec.extra) {
            if own.is_empty() || !own.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
                return Err(refuse(format!("a name is printable ASCII without quotes and backslashes, got {own:?}")));
            }
        }
        if columns.width() > SIDES + BOX_COLUMNS_MAX {
            return Err(refuse(format!("a box has at most {BOX_COLUMNS_MAX} numbers besides its sides")));
        }
        if spec.max_boxes == 0 || spec.max_boxes > BOXES_MAX {
            return Err(refuse(format!("max_boxes is 1 to {BOXES_MAX}, got {}", spec.max_boxes)));
        }
        if ![spec.min_size, spec.min_area].iter().all(|least| *least >= 0.0 && least.is_finite()) {
            let (size, area) = (spec.min_size, spec.min_area);
            return Err(refuse(format!("min_size and min_area are finite and not negative, got {size} and {area}")));
        }
        if !(0.0..=1.0).contains(&spec.min_visibility) {
            return Err(refuse(format!("min_visibility is a share, 0 to 1, got {}", spec.min_visibility)));
        }
        let (transforms, view, pixels_max) = (transforms.clone(), *view, *max_pixels);
        // The image's own check comes with its own words; here it vouches for the plan.
        let pair = like.clone();
        let geometry =
            ImageRecipe::compile(&ImageSpec { transforms: transforms.clone(), like: pair, ..ImageSpec::default() })?;
        Ok(Self { spec: spec.clone(), columns, image, transforms, view, scale: geometry.scale(), pixels_max })
    }

    /// The image field that the boxes belong to.
    pub fn image(&self) -> usize {
        self.image
    }

    /// Longest value of a row.
    pub fn value_max(&self) -> u32 {
        // The limits of both factors keep it far below the type's.
        self.spec.max_boxes * self.record_bytes() as u32
    }

    /// The most that a member of a shard of `bytes` becomes, as it seems from outside.
    pub fn value_of_member(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.record_bytes() as u64) / TEXT_BYTES_MIN
    }

    fn record_bytes(&self) -> usize {
        BOX_RECORD_BYTES + self.spec.extra.len() * size_of::<f64>()
    }

    /// Left, top, right and bottom in pixels of the stored image of (width, height) `size`, as far as they make sense.
    fn edges(&self, sides: &[f64], (width, height): (u32, u32)) -> Result<[f64; 4], &'static str> {
        let scale = if self.spec.normalized { [width.into(), height.into()] } else { [1.0; 2] };
        let [a, b, c, d]: [f64; SIDES] = std::array::from_fn(|side| sides[side] * scale[side % 2]);
        let edges = match self.spec.format {
            BoxFormat::Xyxy => [a, b, c, d],
            BoxFormat::Xywh => [a, b, a + c, b + d],
            BoxFormat::Cxcywh => [a - 0.5 * c, b - 0.5 * d, a + 0.5 * c, b + 0.5 * d],
        };
        let [left, top, right, bottom] = edges;
        if !edges.iter().all(|edge| edge.is_finite()) {
            return Err("its numbers are not finite");
        }
        let is_sized = !matches!(self.spec.format, BoxFormat::Xyxy);
        match (right < left, bottom < top) {
            (true, _) if is_sized => Err("its width is negative"),
            (true, _) => Err("its right edge lies left of the left one (format=\"xywh\" has width and height there)"),
            (_, true) if is_sized => Err("its height is negative"),
            (_, true) => Err("its bottom edge lies above the top one (format=\"xywh\" has width and height there)"),
            _ if self.spec.outside == Outside::Drop => Ok(edges),
            _ if right < 0.0 || bottom < 0.0 || left > width.into() || top > height.into() => {
                Err("it lies outside the image (outside=\"drop\" drops such boxes)")
            }
            _ => Ok(edges),
        }
    }

    /// Whether a box of the output is kept, by its float32 edges.
    fn keeps(&self, edges: [f32; 4], visible: f64) -> bool {
        let [left, top, right, bottom] = edges.map(f64::from);
        let (width, height) = (right - left, bottom - top);
        let BoxesSpec { min_size, min_area, min_visibility, .. } = self.spec;
        let is_large = width >= min_size && height >= min_size && width * height >= min_area;
        is_large && width * height > 0.0 && visible >= min_visibility
    }
}

/// The mode of the first border that shows parts of the image a second time.
fn mirroring(transform: &Transform) -> Option<PaddingMode> {
    match transform {
        Transform::Pad { mode, .. } | Transform::RandomCrop { mode, .. } => {
            matches!(mode, PaddingMode::Reflect | PaddingMode::Symmetric).then_some(*mode)
        }
        Transform::RandomApply { transforms, .. } | Transform::RandomChoice { transforms, .. } => {
            transforms.iter().find_map(mirroring)
        }
        _ => None,
    }
}

/// A checked [`BoxValuesSpec`].
#[derive(Debug)]
pub struct BoxValuesRecipe {
    of: usize,
    of_name: String,
    dtype: Dtype,
    shape: Vec<u32>,
    bytes_max: u64,
}

impl BoxValuesRecipe {
    /// Checks `spec`, that of field `name` among `fields`.
    pub fn compile(spec: &BoxValuesSpec, name: &str, fields: &[FieldSpec]) -> Result<Self> {
        let refuse = |words: String| Error::config(format!("box values {name:?}: {words}"));
        let is_boxes = |field: &FieldSpec| field.name == spec.of && matches!(field.kind, FieldKind::Boxes(_));
        let of = fields.iter().position(is_boxes);
        let of = of.ok_or_else(|| refuse(format!("of={:?} names no field of boxes of this job", spec.of)))?;
        if spec.shape.len() >= DIMENSIONS_MAX {
            return Err(refuse(format!("an entry has at most {} dimensions", DIMENSIONS_MAX - 1)));
        }
        let (of_name, bytes_max) = (spec.of.clone(), spec.max_bytes.into());
        Ok(Self { of, of_name, dtype: spec.dtype, shape: spec.shape.clone(), bytes_max })
    }

    /// The value of a row of `count` entries, up to where they begin.
    pub fn header(&self, count: u32) -> [u8; ARRAY_HEADER_BYTES] {
        let mut sides = [0; DIMENSIONS_MAX];
        sides[0] = count;
        sides[1..=self.shape.len()].copy_from_slice(&self.shape);
        Sides::new(&sides[..=self.shape.len()]).expect("few enough, as was checked").to_header()
    }
}

/// Which boxes of a row were kept.
#[derive(Debug)]
struct Kept {
    /// The field of boxes.
    field: usize,
    /// How many boxes were stored.
    stored: usize,
    /// Where the numbers of those that were kept begin and end.
    numbers: std::ops::Range<usize>,
}

/// One worker's memory for boxes.
#[derive(Default)]
pub struct BoxesWorker {
    table: BoxTable,
    steps: Vec<Step>,
    /// Of each field of boxes of the row which were kept, and their numbers.
    fields: Vec<Kept>,
    kept: Vec<u32>,
    elements: Vec<u8>,
}

impl BoxesWorker {
    /// A new row.
    pub fn begin_row(&mut self) {
        self.fields.clear();
        self.kept.clear();
    }

    /// Reads the boxes of field number `field` from `bytes`, and appends the records of those that `recipe` keeps with
    /// the parameters of `draw`. Without an `image`, which a default stands for, there are none.
    pub fn run(
        &mut self,
        (field, recipe): (usize, &BoxesRecipe),
        bytes: &[u8],
        archives: &mut NpzReader,
        draw: Draw,
        image: Option<ImageForm>,
        values: &mut Vec<u8>,
    ) -> Result<(), SampleFault> {
        self.table.read(bytes, &recipe.columns, archives)?;
        let (rows, first) = (self.table.rows(), self.kept.len());
        if let Some(image) = image.filter(|_| rows > 0) {
            let size = image.orientation.size(image.size);
            let sample = Sample { size, draw, view: recipe.view, scale: recipe.scale, pixels_max: recipe.pixels_max };
            plan::plan(&recipe.transforms, sample, &mut self.steps)?;
            for row in 0..rows {
                self.run_box(recipe, row, image, values)?;
            }
        }
        self.fields.push(Kept { field, stored: rows, numbers: first..self.kept.len() });
        Ok(())
    }

    fn run_box(
        &mut self,
        recipe: &BoxesRecipe,
        row: usize,
        image: ImageForm,
        values: &mut Vec<u8>,
    ) -> Result<(), SampleFault> {
        let numbers = self.table.row(row);
        let (sides, rest) = numbers.split_at(SIDES);
        let fault = |words: &str| bad(format!("box {row} of {}, {numbers:?}: {words}", self.table.rows()));
        let edges = recipe.edges(sides, image.size).map_err(fault)?;
        let (label, rest) = match &recipe.spec.labels {
            Some(_) => (rest[0], &rest[1..]),
            None => (LABEL, rest),
        };
        // The first that does not fit may be the next one, rounded.
        if label.fract() != 0.0 || label.abs() >= LABEL_MAX {
            return Err(fault("its label is no integer of at most 53 bits"));
        }
        let extra = &rest[..recipe.spec.extra.len()];
        match rest.get(extra.len()) {
            Some(flag) if flag.is_nan() => return Err(fault("what would leave it out is no number")),
            Some(flag) if *flag != 0.0 => return Ok(()),
            _ => {}
        }
        let (edges, size) = (image.orientation.turn_box(edges, image.size), image.orientation.size(image.size));
        let Some(made) = MovingBox::of_image(edges, size).and_then(|made| made.follow(&self.steps, size)) else {
            return Ok(());
        };
        let edges = made.edges.map(|edge| edge as f32);
        if recipe.keeps(edges, made.visible) {
            edges.iter().for_each(|edge| values.extend_from_slice(&edge.to_ne_bytes()));
            values.extend_from_slice(&(label as i64).to_ne_bytes());
            extra.iter().for_each(|number| values.extend_from_slice(&number.to_ne_bytes()));
            self.kept.push(row as u32);
        }
        Ok(())
    }

    /// Appends, as an array in a slot, the entries of the array `bytes` whose boxes were kept.
    pub fn run_values(
        &mut self,
        recipe: &BoxValuesRecipe,
        bytes: &[u8],
        values: &mut Vec<u8>,
    ) -> Result<(), SampleFault> {
        let header = npy::open(bytes)?;
        let Some((&count, entry)) = header.sides.as_slice().split_first() else {
            return Err(bad("the array has no dimension, and wants one entry a box"));
        };
        if header.dtype != recipe.dtype || entry != recipe.shape {
            let (have, need) = (header.dtype.name(), recipe.dtype.name());
            let words =
                format!("entries are {have} of shape {entry:?}, the field is {need} of shape {:?}", recipe.shape);
            return Err(bad(words));
        }
        let elements = header.sides.bytes(header.dtype).expect("as many as there are bytes");
        if elements > recipe.bytes_max {
            let words = format!("{elements} bytes, the limit is {} (max_bytes)", recipe.bytes_max);
            return Err(SampleFault::new(FaultClass::TooLarge, words));
        }
        // Boxes that a default stands for are none.
        let kept = self.fields.iter().find(|kept| kept.field == recipe.of);
        let stored = kept.map_or(0, |kept| kept.stored);
        if count as usize != stored {
            return Err(bad(format!("{count} entries for {stored} boxes in {:?}", recipe.of_name)));
        }
        let kept = kept.map_or(&[][..], |kept| &self.kept[kept.numbers.clone()]);
        self.elements.clear();
        header.append_elements(bytes, &mut self.elements)?;
        values.extend_from_slice(&recipe.header(kept.len() as u32));
        let entry_bytes = self.elements.len().checked_div(count as usize).unwrap_or_default();
        for &row in kept {
            values.extend_from_slice(&self.elements[row as usize * entry_bytes..][..entry_bytes]);
        }
        Ok(())
    }
}

fn bad(words: impl Into<String>) -> SampleFault {
    SampleFault::new(FaultClass::BadValue, words)
}

#[cfg(test)]
mod tests;
