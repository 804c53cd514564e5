//! A mask's bytes to its row: the geometry of an image's transforms, with class numbers that are picked, never mixed.
//!
//! Each output pixel takes the number of the source pixel under its middle, with the arithmetic of Pillow's
//! `Image.resize(size, NEAREST, box)`, to the last bit: a sum of steps in double precision, rounded down.

use super::layout::{Dtype, FieldLayout};
use crate::augment::axis::nearest;
use crate::augment::geometry::Stage;
use crate::augment::operation::Operation;
use crate::augment::plan::{self, Sample, Step};
use crate::augment::warp;
use crate::augment::{Draw, ImageRecipe};
use crate::decode::mask::MaskDecoder;
use crate::decode::orientation::Orientation;
use crate::error::{Error, FaultClass, Result, SampleFault};
use crate::spec::{FieldKind, FieldSpec, ImageSpec, MaskSpec, Transform};

/// A checked [`MaskSpec`].
#[derive(Debug)]
pub struct MaskRecipe {
    transforms: Vec<Transform>,
    /// The image field that it follows.
    like: Option<usize>,
    height: u32,
    width: u32,
    dtype: Dtype,
    fill: u16,
    max_pixels: u64,
    view: u16,
    /// That of the image that it follows.
    scale: u32,
}

impl MaskRecipe {
    /// Checks `spec`, that of field `name` among `fields`.
    pub fn compile(spec: &MaskSpec, name: &str, fields: &[FieldSpec]) -> Result<Self> {
        let refuse = |words: String| Error::config(format!("mask {name:?}: {words}"));
        if !matches!(spec.dtype, Dtype::Uint8 | Dtype::Int32) {
            return Err(refuse(format!("dtype is uint8 or int32, got {}", spec.dtype.name())));
        }
        if spec.dtype == Dtype::Uint8 && spec.fill > u8::MAX.into() {
            return Err(refuse(format!("fill {} does not fit uint8: take dtype int32", spec.fill)));
        }
        let like = spec.like.as_ref().map(|like| {
            let image = fields.iter().position(|field| field.name == *like).filter(|&place| is_image(&fields[place]));
            image.ok_or_else(|| refuse(format!("like={like:?} names no image field of this job")))
        });
        let like = like.transpose()?;
        let (transforms, view, pair) = match like {
            Some(_) if !spec.transforms.is_empty() => {
                return Err(refuse("like= takes the image's transforms: leave those of the mask out".into()));
            }
            Some(place) => match &fields[place].kind {
                FieldKind::Image(image) => (&image.transforms, image.view, image.like.clone()),
                _ => unreachable!("found as an image above"),
            },
            None => (&spec.transforms, 0, None),
        };
        let geometry = ImageSpec {
            transforms: transforms.clone(),
            max_pixels: spec.max_pixels,
            like: pair,
            ..ImageSpec::default()
        };
        let geometry = ImageRecipe::compile(&geometry)?;
        let ((height, width), scale) = (geometry.output_size(), geometry.scale());
        let (dtype, fill, max_pixels) = (spec.dtype, spec.fill, spec.max_pixels);
        Ok(Self { transforms: transforms.clone(), like, height, width, dtype, fill, max_pixels, view, scale })
    }

    /// What a row is in the slot.
    pub fn layout(&self, name: &str) -> Result<FieldLayout> {
        FieldLayout::new(name, self.dtype, [self.height, self.width])
    }

    /// The image field whose size a mask must have.
    pub fn like(&self) -> Option<usize> {
        self.like
    }
}

fn is_image(field: &FieldSpec) -> bool {
    matches!(field.kind, FieldKind::Image(_))
}

/// What a mask must know of the image that it follows.
#[derive(Debug, Clone, Copy)]
pub struct ImageForm {
    /// (width, height) in pixels, as stored.
    pub size: (u32, u32),
    /// How it was turned before any transform; its mask is turned alike.
    pub orientation: Orientation,
}

/// One worker's memory for masks.
#[derive(Default)]
pub struct MaskWorker {
    decoder: MaskDecoder,
    steps: Vec<Step>,
    columns: Vec<u32>,
    turned: Vec<u16>,
    planes: [Vec<u16>; 2],
    row: Vec<u8>,
}

impl MaskWorker {
    /// Decodes `bytes` and carries out `recipe` with the parameters of `draw`; `image` is what is known of the image
    /// that the mask belongs to. Returns the finished row.
    pub fn run(
        &mut self,
        recipe: &MaskRecipe,
        bytes: &[u8],
        draw: Draw,
        image: Option<ImageForm>,
    ) -> Result<&[u8], SampleFault> {
        let plane = self.decoder.decode(bytes, recipe.max_pixels)?;
        if plane.is_wide && recipe.dtype == Dtype::Uint8 {
            let words = "the mask has 16 bits a pixel, which uint8 cannot hold: take dtype int32";
            return Err(SampleFault::new(FaultClass::Unsupported, words));
        }
        let mut size = (plane.width, plane.height);
        let mut source = plane.numbers;
        if let Some(ImageForm { size: image_size, orientation }) = image {
            check_size(size, image_size, orientation)?;
            if orientation != Orientation::UPRIGHT {
                self.turned.clear();
                orientation.turn(source, size, &mut self.turned);
                source = &self.turned;
                size = orientation.size(size);
            }
        }
        let sample = Sample { size, draw, view: recipe.view, scale: recipe.scale, pixels_max: recipe.max_pixels };
        plan::plan(&recipe.transforms, sample, &mut self.steps)?;
        let [read, written] = &mut self.planes;
        // The decoded mask is read in place, by the first step, which is a resample.
        let mut decoded = Some(source);
        for step in &self.steps {
            let source = decoded.unwrap_or(read);
            let output = match step {
                Step::Resample(stage) => {
                    pick(source, size.0, stage, recipe.fill, &mut self.columns, written);
                    stage.output()
                }
                Step::Operation(operation) => {
                    let output = operation.output(size);
                    written.resize(output.0 as usize * output.1 as usize, 0);
                    match operation {
                        Operation::Warp(warp) => warp::nearest(warp, source, size, written, recipe.fill),
                        Operation::Extend(extend) => extend.run(source, size, written, &mut self.columns),
                        // Colours, and what is painted over the image alone.
                        _ => continue,
                    }
                    output
                }
                Step::EraseFloats(_) => continue,
            };
            std::mem::swap(read, written);
            (decoded, size) = (None, output);
        }
        self.row.clear();
        match recipe.dtype {
            // Fits: 16-bit masks were refused above.
            Dtype::Uint8 => self.row.extend(read.iter().map(|&number| number as u8)),
            _ => read.iter().for_each(|&number| self.row.extend_from_slice(&i32::from(number).to_ne_bytes())),
        }
        Ok(&self.row)
    }

    /// What was done to the last mask.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

/// Refuses a mask whose size is not that of its image as stored.
fn check_size(size: (u32, u32), image_size: (u32, u32), orientation: Orientation) -> Result<(), SampleFault> {
    if size == image_size {
        return Ok(());
    }
    let mut message = format!("the mask has {}x{} pixels, its image {}x{}", size.0, size.1, image_size.0, image_size.1);
    if orientation.size(image_size) == size {
        message.push_str(
            " as stored: its EXIF orientation turns both, and the mask seems to be turned already; store both in one \
             orientation",
        );
    }
    Err(SampleFault::new(FaultClass::Corrupt, message))
}

/// Makes the output of one stage.
fn pick(source: &[u16], source_width: u32, stage: &Stage, fill: u16, columns: &mut Vec<u32>, output: &mut Vec<u16>) {
    let Stage { source: region, resized, window, visible, mirrored, upside_down, .. } = *stage;
    output.clear();
    output.resize(window.width as usize * window.height as usize, fill);
    let Some(visible) = visible else { return };
    // What is visible lies within the resized region.
    let across = (visible.left as u32, visible.width);
    let down = (visible.top as u32, visible.height);
    columns.clear();
    columns.extend(nearest(region.left, region.width, resized.0, across));
    if mirrored {
        columns.reverse();
    }
    let before = visible.left - window.left;
    let after = i64::from(window.width) - before - i64::from(visible.width);
    let left = if mirrored { after } else { before } as usize;
    let top = (visible.top - window.top) as usize;
    for (index, y) in nearest(region.top, region.height, resized.1, down).enumerate() {
        let row = if upside_down { window.height as usize - 1 - (top + index) } else { top + index };
        let row = &mut output[row * window.width as usize..][..window.width as usize];
        let line = &source[y as usize * source_width as usize..][..source_width as usize];
        for (&x, target) in columns.iter().zip(&mut row[left..]) {
            *target = line[x as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::geometry::Window;

    fn check(from: u32, to: u32, expected: &[u32]) {
        let found: Vec<u32> = nearest(0, from, to, (0, to)).collect();
        assert_eq!(found, expected, "{from} to {to}");
        let shifted: Vec<u32> = nearest(7, from, to, (1, to - 1)).collect();
        assert!(shifted.iter().zip(&expected[1..]).all(|(found, expected)| *found == expected + 7), "{shifted:?}");
    }

    #[test]
    fn the_pixel_under_the_middle() {
        check(4, 4, &[0, 1, 2, 3]);
        check(4, 2, &[1, 3]);
        check(2, 4, &[0, 0, 1, 1]);
        check(5, 3, &[0, 2, 4]);
        check(1, 3, &[0, 0, 0]);
    }

    #[test]
    fn windows_are_cut_padded_and_mirrored() {
        let source: Vec<u16> = (0..12).collect();
        let mut stage = Stage {
            window: Window { left: -1, top: 1, width: 3, height: 3 },
            visible: Some(Window { left: 0, top: 1, width: 2, height: 2 }),
            ..Stage::of_image(4, 3)
        };
        let mut output = Vec::new();
        pick(&source, 4, &stage, 99, &mut Vec::new(), &mut output);
        assert_eq!(output, [99, 4, 5, 99, 8, 9, 99, 99, 99]);
        stage.mirrored = true;
        pick(&source, 4, &stage, 99, &mut Vec::new(), &mut output);
        assert_eq!(output, [5, 4, 99, 9, 8, 99, 99, 99, 99]);
        stage.upside_down = true;
        pick(&source, 4, &stage, 99, &mut Vec::new(), &mut output);
        assert_eq!(output, [99, 99, 99, 9, 8, 99, 5, 4, 99]);
        stage.visible = None;
        pick(&source, 4, &stage, 99, &mut Vec::new(), &mut output);
        assert_eq!(output, [99; 9]);
    }
}
