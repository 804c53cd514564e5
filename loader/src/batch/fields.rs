//! From the bytes of a field to the bytes of its row.
//!
//! Rows of fixed size are stored as they are made. Values of varying length are set aside until the whole sample has
//! proved good: room in a slot is given once, and a sample that is replaced shall not have used any.

use super::arrays::{ARRAY_HEADER_BYTES, Sides};
use super::boxes::{BoxValuesRecipe, BoxesRecipe, BoxesWorker};
use super::layout::{Dtype, FieldLayout, RowForm, VALUES_BYTES_MAX};
use super::mask::{ImageForm, MaskRecipe, MaskWorker};
use super::pairs::{self, Leader};
use super::room::Lengths;
use crate::augment::views::Views;
use crate::augment::{Draw, ImageRecipe, ImageWorker};
use crate::decode::npz::NpzReader;
use crate::decode::{npy, text};
use crate::error::{Error, FaultClass, Result, SampleFault};
use crate::plan::trace::RowTrace;
use crate::spec::{ArraySpec, FieldKind, FieldSpec, PixelLayout};

/// Longest text that is tried as a number; longer ones are no number.
const NUMBER_BYTES_MAX: usize = 64;

/// Bytes of a `.npy` besides its elements, generously: what an archive's member may have over the limit of elements.
const NPY_HEADER_BYTES: u64 = 64 << 10;

/// How much larger a compressed array is taken to be than its bytes, where no better is known.
const DEFLATE_RATIO: u64 = 4;

/// A compiled [`FieldSpec`].
#[derive(Debug)]
pub struct FieldRecipe {
    kind: Kind,
    form: RowForm,
    /// Longest value of a varying field, its header included; 0 for rows of fixed size.
    value_max: u64,
    /// The row of a sample that has none of the sources.
    default: Option<Box<[u8]>>,
}

#[derive(Debug)]
enum Kind {
    Image(Box<ImageRecipe>, Option<Leader>),
    Mask(Box<MaskRecipe>),
    Int,
    Float,
    Text,
    Json,
    Bytes,
    Array(ArraySpec),
    Boxes(Box<BoxesRecipe>),
    BoxValues(Box<BoxValuesRecipe>),
}

impl FieldRecipe {
    /// Compiles all fields of a job, each with the layout that it has in a batch of `batch_size` rows. Refused, with
    /// the way out: fields that cannot be, and values that might not fit a batch.
    pub fn compile_all(fields: &[FieldSpec], batch_size: u32) -> Result<(Vec<Self>, Vec<FieldLayout>)> {
        let fields = &pairs::resolve(fields)?[..];
        let compiled = fields.iter().map(|field| Self::compile(field, fields)).collect::<Result<Vec<_>>>()?;
        let (mut recipes, layouts): (Vec<Self>, Vec<_>) = compiled.into_iter().unzip();
        share_pictures(fields, &mut recipes);
        // One row more than there are: the room's end may be left empty by a value that did not fit.
        let row_max = recipes.iter().fold(0_u64, |sum, recipe| sum.saturating_add(recipe.row_max()));
        let most = row_max.saturating_mul(u64::from(batch_size) + 1);
        if most > VALUES_BYTES_MAX {
            let allowed = VALUES_BYTES_MAX / (u64::from(batch_size) + 1);
            return Err(Error::config(format!(
                "{batch_size} rows of values of up to {row_max} bytes might take {most} bytes of a batch's \
                 {VALUES_BYTES_MAX}: lower max_bytes of the fields to {allowed} together, or batch_size"
            )));
        }
        Ok((recipes, layouts))
    }

    fn compile(field: &FieldSpec, fields: &[FieldSpec]) -> Result<(Self, FieldLayout)> {
        let name = &field.name;
        let fixed = |dtype, shape: &[u32]| FieldLayout::new(name, dtype, shape);
        let varying = |dtype, form| FieldLayout::varying(name, dtype, form);
        let (kind, layout, value_max) = match &field.kind {
            FieldKind::Image(spec) => {
                let recipe = ImageRecipe::compile(spec)?;
                let (height, width) = recipe.output_size();
                let shape = match spec.layout {
                    PixelLayout::Nhwc => [height, width, 3],
                    PixelLayout::Nchw => [3, height, width],
                };
                let dtype = recipe.dtype();
                (Kind::Image(Box::new(recipe), Leader::of(spec, fields)), fixed(dtype, &shape)?, 0)
            }
            FieldKind::Mask(spec) => {
                let recipe = MaskRecipe::compile(spec, name, fields)?;
                let layout = recipe.layout(name)?;
                (Kind::Mask(Box::new(recipe)), layout, 0)
            }
            FieldKind::Int => (Kind::Int, fixed(Dtype::Int64, &[])?, 0),
            FieldKind::Float => (Kind::Float, fixed(Dtype::Float64, &[])?, 0),
            FieldKind::Text(spec) => (Kind::Text, varying(Dtype::Uint8, RowForm::Bytes), spec.max_bytes),
            FieldKind::Json(spec) => (Kind::Json, varying(Dtype::Uint8, RowForm::Bytes), spec.max_bytes),
            FieldKind::Bytes(spec) => (Kind::Bytes, varying(Dtype::Uint8, RowForm::Bytes), spec.max_bytes),
            FieldKind::Array(spec) => match &spec.shape {
                Some(shape) => (Kind::Array(spec.clone()), fixed(spec.dtype, shape)?, 0),
                None => (Kind::Array(spec.clone()), varying(spec.dtype, RowForm::Arrays), spec.max_bytes),
            },
            FieldKind::Boxes(spec) => {
                let recipe = BoxesRecipe::compile(spec, name, fields)?;
                let value_max = recipe.value_max();
                (Kind::Boxes(Box::new(recipe)), varying(Dtype::Uint8, RowForm::Bytes), value_max)
            }
            FieldKind::BoxValues(spec) => {
                let recipe = BoxValuesRecipe::compile(spec, name, fields)?;
                (Kind::BoxValues(Box::new(recipe)), varying(spec.dtype, RowForm::Arrays), spec.max_bytes)
            }
        };
        let form = layout.form;
        let header = if form == RowForm::Arrays { ARRAY_HEADER_BYTES as u64 } else { 0 };
        let mut recipe = Self { kind, form, value_max: u64::from(value_max) + header, default: None };
        if let Some(default) = &field.default {
            let row = recipe.default_row(default, &layout).map_err(|fault| {
                Error::config(format!("field {name:?}: the default cannot be a row of it: {}", fault.message))
            })?;
            recipe.default = Some(row.into_boxed_slice());
        }
        Ok((recipe, layout))
    }

    /// The row that `default`, as the job spec has it, stands for.
    fn default_row(&self, default: &[u8], layout: &FieldLayout) -> Result<Vec<u8>, SampleFault> {
        let mut row = Vec::new();
        match &self.kind {
            Kind::Int => row.extend(parse::<i64>(default, "an integer")?.to_ne_bytes()),
            Kind::Float => row.extend(parse::<f64>(default, "a number")?.to_ne_bytes()),
            Kind::Text | Kind::Json | Kind::Bytes => self.append_value(default, &mut row)?,
            Kind::Array(_) if self.form == RowForm::Arrays => {
                row.extend(Sides::new(&[0]).expect("one dimension").to_header());
            }
            // No boxes, whatever the default says.
            Kind::Boxes(_) => {}
            Kind::BoxValues(recipe) => row.extend(recipe.header(0)),
            Kind::Image(..) | Kind::Mask(_) | Kind::Array(_) => {
                if default.len() as u64 != layout.dtype.bytes() {
                    let words = format!("one {} has not {} bytes", layout.dtype.name(), default.len());
                    return Err(SampleFault::new(FaultClass::BadValue, words));
                }
                row = default.repeat((layout.row_bytes / layout.dtype.bytes()) as usize);
            }
        }
        Ok(row)
    }

    /// What a row is in the slot.
    pub fn form(&self) -> RowForm {
        self.form
    }

    /// How late among a row's fields it is made: those that follow an image after it, and what follows boxes after them.
    pub fn turn(&self) -> u8 {
        match &self.kind {
            Kind::Image(_, Some(_)) => 1,
            Kind::Mask(mask) if mask.like().is_some() => 2,
            Kind::Boxes(_) => 2,
            Kind::BoxValues(_) => 3,
            _ => 0,
        }
    }

    /// The row of a sample that has none of the sources, where that is not a fault.
    pub fn default(&self) -> Option<&[u8]> {
        self.default.as_deref()
    }

    /// Most bytes that a row's value takes of a batch, alignment included; 0 for rows of fixed size.
    fn row_max(&self) -> u64 {
        if self.form == RowForm::Fixed { 0 } else { self.value_max + self.form.align() - 1 }
    }

    /// Room in a slot for `rows` values, from the lengths of members of shards; `None` is a missing one.
    pub fn room(&self, rows: u32, members: impl Iterator<Item = Option<u32>>) -> u64 {
        if self.form == RowForm::Fixed {
            return 0;
        }
        let mut lengths = Lengths::default();
        for member in members {
            let value = match (member, &self.default) {
                // A .npy's own header is about as long as ours.
                (Some(len), _) => match &self.kind {
                    Kind::Array(spec) if spec.member.is_some() => u64::from(len) * DEFLATE_RATIO,
                    Kind::Boxes(boxes) => boxes.value_of_member(len.into()),
                    _ => len.into(),
                },
                (None, Some(default)) => default.len() as u64,
                (None, None) => continue,
            };
            lengths.add(value.min(self.value_max).next_multiple_of(self.form.align()));
        }
        lengths.room(rows, self.row_max())
    }

    /// Appends a value of varying length, checked, that needs no worker.
    fn append_value(&self, bytes: &[u8], values: &mut Vec<u8>) -> Result<(), SampleFault> {
        self.check_length(bytes.len() as u64)?;
        match &self.kind {
            Kind::Text => drop(text::check_text(bytes)?),
            Kind::Json => text::check_json(bytes)?,
            _ => {}
        }
        values.extend_from_slice(bytes);
        Ok(())
    }

    fn check_length(&self, bytes: u64) -> Result<(), SampleFault> {
        if bytes <= self.value_max {
            return Ok(());
        }
        let message = format!("{bytes} bytes, the limit is {} (max_bytes)", self.value_max);
        Err(SampleFault::new(FaultClass::TooLarge, message))
    }
}

/// Lets images that are views of the same picture share its decode.
fn share_pictures(fields: &[FieldSpec], recipes: &mut [FieldRecipe]) {
    let mut images: Vec<(&[String], &mut ImageRecipe)> = fields
        .iter()
        .zip(recipes)
        .filter_map(|(field, recipe)| match &mut recipe.kind {
            Kind::Image(image, _) => Some((&*field.sources, &mut **image)),
            _ => None,
        })
        .collect();
    let mut picture = 0;
    while let Some((sources, image)) = images.pop() {
        let is_view =
            |other: &mut (&[String], &mut ImageRecipe)| other.0 == sources && Views::can_share(image, &*other.1);
        let mut views: Vec<_> = images.extract_if(.., is_view).map(|(_, view)| view).collect();
        if !views.is_empty() {
            views.push(image);
            Views::share(picture, &mut views);
            picture += 1;
        }
    }
}

/// One worker's memory for turning bytes into rows; nothing of ours is allocated once it is warm.
pub struct FieldWorker {
    images: ImageWorker,
    masks: MaskWorker,
    boxes: BoxesWorker,
    archives: NpzReader,
    elements: Vec<u8>,
    /// Values of the row that is being made, one after the other, and whose they are.
    values: Vec<u8>,
    value_ends: Vec<(usize, usize)>,
    /// The row's images, by field.
    image_forms: Vec<(usize, ImageForm)>,
    /// Oddities that decoders passed over in the row.
    warnings: u32,
    /// Fields whose images were cut off, and are used because the job says so.
    cut_off: Vec<usize>,
    /// What was drawn for the row.
    trace: RowTrace,
}

impl FieldWorker {
    /// Reserves the memory.
    pub fn new() -> Result<Self> {
        Ok(Self {
            images: ImageWorker::new()?,
            masks: MaskWorker::default(),
            boxes: BoxesWorker::default(),
            archives: NpzReader::default(),
            elements: Vec::new(),
            values: Vec::new(),
            value_ends: Vec::new(),
            image_forms: Vec::new(),
            warnings: 0,
            cut_off: Vec::new(),
            trace: RowTrace::default(),
        })
    }

    /// A new row: nothing is set aside.
    pub fn begin_row(&mut self) {
        self.values.clear();
        self.value_ends.clear();
        self.image_forms.clear();
        self.images.begin_sample();
        self.boxes.begin_row();
        self.warnings = 0;
        self.cut_off.clear();
        self.trace = RowTrace::default();
    }

    /// Turns `bytes` into the row of field number `field`: hands it to `store` where it has a fixed size, sets it aside
    /// for [`FieldWorker::values`] where it varies. A field that follows another comes after it.
    pub fn run(
        &mut self,
        field: usize,
        recipe: &FieldRecipe,
        bytes: &[u8],
        draw: Draw,
        store: impl FnOnce(&[u8]),
    ) -> Result<(), SampleFault> {
        match &recipe.kind {
            Kind::Image(..) if bytes.is_empty() => {
                return Err(SampleFault::new(FaultClass::Empty, "the image has no bytes"));
            }
            Kind::Mask(_) if bytes.is_empty() => {
                return Err(SampleFault::new(FaultClass::Empty, "the mask has no bytes"));
            }
            Kind::Image(image, leader) => {
                store(self.images.run(image, bytes, draw)?);
                let form = ImageForm { size: self.images.size(), orientation: self.images.orientation() };
                if let Some(leader) = leader {
                    let of_leader = self.image_forms.iter().find(|(field, _)| *field == leader.field);
                    leader.check(of_leader.map(|(_, form)| *form), form)?;
                }
                self.image_forms.push((field, form));
                self.trace.parameters(field, self.images.steps());
                self.warnings = self.warnings.saturating_add(self.images.warnings());
                if self.images.is_cut_off() {
                    self.cut_off.push(field);
                }
            }
            Kind::Mask(mask) => {
                let form_of = |image| self.image_forms.iter().find(|(field, _)| *field == image).map(|(_, form)| *form);
                store(self.masks.run(mask, bytes, draw, mask.like().and_then(form_of))?);
                self.trace.parameters(field, self.masks.steps());
            }
            Kind::Int => store(&parse::<i64>(bytes, "an integer")?.to_ne_bytes()),
            Kind::Float => store(&parse::<f64>(bytes, "a number")?.to_ne_bytes()),
            Kind::Text | Kind::Json | Kind::Bytes => {
                recipe.append_value(bytes, &mut self.values)?;
                self.value_ends.push((field, self.values.len()));
            }
            Kind::Array(spec) => self.run_array(field, recipe, spec, bytes, store)?,
            Kind::Boxes(boxes) => self.run_boxes(field, boxes, bytes, draw)?,
            Kind::BoxValues(of_boxes) => {
                self.boxes.run_values(of_boxes, bytes, &mut self.values)?;
                self.value_ends.push((field, self.values.len()));
            }
        }
        Ok(())
    }

    fn run_boxes(&mut self, field: usize, recipe: &BoxesRecipe, bytes: &[u8], draw: Draw) -> Result<(), SampleFault> {
        let image = self.image_forms.iter().find(|(image, _)| *image == recipe.image()).map(|(_, form)| *form);
        self.boxes.run((field, recipe), bytes, &mut self.archives, draw, image, &mut self.values)?;
        self.value_ends.push((field, self.values.len()));
        Ok(())
    }

    fn run_array(
        &mut self,
        field: usize,
        recipe: &FieldRecipe,
        spec: &ArraySpec,
        bytes: &[u8],
        store: impl FnOnce(&[u8]),
    ) -> Result<(), SampleFault> {
        let wanted = spec.shape.as_deref().and_then(Sides::new);
        let bytes_max = wanted.and_then(|sides| sides.bytes(spec.dtype)).unwrap_or(recipe.value_max);
        let bytes = match &spec.member {
            Some(member) => self.archives.member(bytes, member, bytes_max.saturating_add(NPY_HEADER_BYTES))?,
            None => bytes,
        };
        let header = npy::open(bytes)?;
        let found = header.sides.as_slice();
        if header.dtype != spec.dtype || wanted.is_some_and(|wanted| wanted != header.sides) {
            let (have, need) = (header.dtype.name(), spec.dtype.name());
            let shape = spec.shape.as_ref().map_or(String::new(), |shape| format!(" of shape {shape:?}"));
            let message = format!("the array is {have} of shape {found:?}, the field is {need}{shape}");
            return Err(SampleFault::new(FaultClass::BadValue, message));
        }
        if recipe.form == RowForm::Fixed {
            self.elements.clear();
            header.append_elements(bytes, &mut self.elements)?;
            store(&self.elements);
            return Ok(());
        }
        let elements = header.sides.bytes(header.dtype).expect("as many as there are bytes");
        recipe.check_length(elements.saturating_add(ARRAY_HEADER_BYTES as u64))?;
        self.values.extend_from_slice(&header.sides.to_header());
        header.append_elements(bytes, &mut self.values)?;
        self.value_ends.push((field, self.values.len()));
        Ok(())
    }

    /// Takes the field's default for this row, as [`FieldWorker::run`] does a value.
    pub fn run_default(&mut self, field: usize, recipe: &FieldRecipe, default: &[u8], store: impl FnOnce(&[u8])) {
        if recipe.form == RowForm::Fixed {
            store(default);
        } else {
            self.values.extend_from_slice(default);
            self.value_ends.push((field, self.values.len()));
        }
    }

    /// Oddities that were passed over in the row's images, as Pillow does.
    pub fn warnings(&self) -> u32 {
        self.warnings
    }

    /// Fields whose images were cut off, and are used as far as they go because the job says so.
    pub fn cut_off(&self) -> &[usize] {
        &self.cut_off
    }

    /// What was drawn for the row, for its hash.
    pub fn trace(&self) -> &RowTrace {
        &self.trace
    }

    /// The values of varying length that the row has, with the number of their field.
    pub fn values(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let starts = [0].into_iter().chain(self.value_ends.iter().map(|(_, end)| *end));
        self.value_ends.iter().zip(starts).map(|((field, end), start)| (*field, &self.values[start..*end]))
    }
}

fn parse<T: std::str::FromStr>(bytes: &[u8], wanted: &str) -> Result<T, SampleFault> {
    let text = bytes.trim_ascii();
    let value = (text.len() <= NUMBER_BYTES_MAX).then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten();
    value.ok_or_else(|| {
        let shown = String::from_utf8_lossy(&text[..text.len().min(NUMBER_BYTES_MAX)]);
        SampleFault::new(FaultClass::BadValue, format!("expected {wanted}, found {shown:?} ({} bytes)", bytes.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{MaskSpec, ValueSpec};

    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(parse::<i64>(text.as_bytes(), "an integer").ok(), expected, "{text:?}");
    }

    #[test]
    fn labels_are_decimal_integers_with_white_space_around() {
        check("7", Some(7));
        check(" -12\r\n", Some(-12));
        check("9223372036854775807", Some(i64::MAX));
        check("9223372036854775808", None);
        check("7.0", None);
        check("", None);
        check("cat", None);
        check(&"1".repeat(100), None);
    }

    fn field(kind: FieldKind, default: Option<&[u8]>) -> FieldSpec {
        FieldSpec { name: "f".into(), sources: vec!["f".into()], kind, default: default.map(<[u8]>::to_vec) }
    }

    fn text(max_bytes: u32) -> FieldKind {
        FieldKind::Text(ValueSpec { max_bytes })
    }

    fn array(shape: Option<&[u32]>) -> FieldKind {
        let shape = shape.map(<[u32]>::to_vec);
        FieldKind::Array(ArraySpec { member: None, dtype: Dtype::Int16, shape, max_bytes: 100 })
    }

    #[test]
    fn defaults_become_rows() {
        let check = |kind, default: &[u8], expected: Result<&[u8], &str>| match (
            FieldRecipe::compile_all(&[field(kind, Some(default))], 4),
            expected,
        ) {
            (Ok((recipes, _)), Ok(expected)) => assert_eq!(recipes[0].default(), Some(expected)),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        };
        check(FieldKind::Int, b"-1", Ok(&(-1_i64).to_ne_bytes()));
        check(FieldKind::Int, b"none", Err("expected an integer"));
        check(FieldKind::Float, b"nan", Ok(&f64::NAN.to_ne_bytes()));
        check(text(4), b"", Ok(b""));
        check(text(4), b"12345", Err("5 bytes, the limit is 4"));
        check(text(4), b"\xff", Err("not UTF-8"));
        check(FieldKind::Json(ValueSpec { max_bytes: 9 }), b"null", Ok(b"null"));
        check(FieldKind::Json(ValueSpec { max_bytes: 9 }), b"nul", Err("not JSON"));
        check(array(Some(&[2])), &[1, 2], Ok(&[1, 2, 1, 2]));
        check(array(Some(&[2])), &[1], Err("one int16 has not 1 bytes"));
        check(array(None), &[1, 2], Ok(&Sides::new(&[0]).expect("one").to_header()));
    }

    #[test]
    fn values_that_might_not_fit_a_batch_are_refused_at_the_start() {
        let check = |batch_size, max_bytes, fits| {
            let found = FieldRecipe::compile_all(&[field(text(max_bytes), None)], batch_size);
            assert_eq!(found.is_ok(), fits, "{batch_size} x {max_bytes}: {found:?}");
        };
        check(1023, 2 << 20, true);
        check(1024, 2 << 20, false);
        check(1, u32::MAX, false);
        check(1 << 20, 2047, true);
    }

    #[test]
    fn masks_follow_images_only() {
        let mask = |like: &str, dtype, fill| {
            let spec = MaskSpec { transforms: vec![], like: Some(like.into()), dtype, fill, max_pixels: 100 };
            FieldRecipe::compile_all(&[field(FieldKind::Mask(spec), None)], 4).expect_err("no image").to_string()
        };
        assert!(mask("f", Dtype::Uint8, 0).contains("like=\"f\" names no image field"));
        assert!(mask("x", Dtype::Uint8, 256).contains("does not fit uint8"));
        assert!(mask("x", Dtype::Float32, 0).contains("uint8 or int32"));
    }

    #[test]
    fn values_are_set_aside_in_order() {
        let fields = [field(text(9), None), field(array(None), None)];
        let (recipes, _) = FieldRecipe::compile_all(&fields, 4).expect("sound");
        let mut worker = FieldWorker::new().expect("worker");
        let draw = Draw { seed: 0, epoch: 0, sample: 0 };
        for _ in 0..2 {
            worker.begin_row();
            worker.run_default(1, &recipes[1], b"array", |_| panic!("varies"));
            worker.run(0, &recipes[0], b"", draw, |_| panic!("varies")).expect("sound");
            worker.run(0, &recipes[0], b"words", draw, |_| panic!("varies")).expect("sound");
            let expected: [(usize, &[u8]); 3] = [(1, b"array"), (0, b""), (0, b"words")];
            assert!(worker.values().eq(expected));
        }
        let fault = worker.run(0, &recipes[0], b"0123456789", draw, |_| panic!("varies")).expect_err("too long");
        assert_eq!(fault.class, FaultClass::TooLarge);
    }
}
