//! A sample's bytes to its row's finished pixels: [`ImageRecipe`] is an [`ImageSpec`] that has been checked,
//! [`ImageWorker`] carries it out.
//!
//! [`philox`] supplies the random numbers, [`geometry`] turns them into boxes, [`axis`] into weights, and [`resize`]
//! makes pixels from the strips that [`crate::decode`] hands on. Everything a sample needs stays in its worker's memory.

pub mod axis;
pub mod geometry;
#[cfg(test)]
mod golden;
pub mod philox;
pub mod resize;

use crate::decode::orientation::Orientation;
use crate::decode::{Decoder, Reduction, Region, STRIP_SLACK, Strips};
use crate::error::{Error, Result, SampleFault};
use crate::spec::{DecodeSpec, ImageSpec, PixelLayout, ResizeTo, Transform};

use geometry::Stage;
pub use philox::Draw;
use resize::{Path, Resampler, Target};

/// Longest side of an output.
pub const OUTPUT_SIDE_MAX: u32 = 1 << 14;

/// A checked image spec: its output size is fixed and its arguments make sense.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRecipe {
    spec: ImageSpec,
    height: u32,
    width: u32,
}

impl ImageRecipe {
    /// Checks `spec`. Refused, with the way out: transforms that do not fix the output size, sizes and ranges that
    /// cannot be.
    pub fn compile(spec: &ImageSpec) -> Result<Self> {
        if spec.max_pixels == 0 {
            return Err(Error::config("max_pixels must be at least 1"));
        }
        let mut size = None;
        for transform in &spec.transforms {
            check_transform(transform)?;
            size = match *transform {
                Transform::RandomResizedCrop { size, .. } | Transform::CenterCrop { size } => Some(size),
                Transform::Resize { to: ResizeTo::Exact(size) } => Some(size),
                Transform::Resize { to: ResizeTo::ShortSide(short) } => {
                    size.map(|[height, width]| short_side(height, width, short)).transpose()?
                }
                Transform::RandomHorizontalFlip { .. } => size,
            };
        }
        let Some([height, width]) = size else {
            let why = if spec.transforms.iter().any(|transform| matches!(transform, Transform::Resize { .. })) {
                "Resize(n) fixes only the shorter side"
            } else {
                "no transform fixes the size"
            };
            return Err(Error::config(format!(
                "the rows of a batch need one size, but {why}: add CenterCrop(n) or RandomResizedCrop(n), or give \
                 Resize both sides, Resize((height, width))"
            )));
        };
        Ok(Self { spec: spec.clone(), height, width })
    }

    /// (height, width) of a row's image.
    pub fn output_size(&self) -> (u32, u32) {
        (self.height, self.width)
    }

    /// Bytes of a row: height x width x 3.
    pub fn row_bytes(&self) -> usize {
        self.height as usize * self.width as usize * 3
    }

    /// Its transforms, whose draws a mask can share.
    pub fn transforms(&self) -> &[Transform] {
        &self.spec.transforms
    }

    /// What the recipe does to an image of this size in this draw, without an image: the boxes, one stage a resample.
    pub fn stages(&self, width: u32, height: u32, draw: Draw) -> Result<Vec<Stage>, SampleFault> {
        let mut stages = Vec::new();
        geometry::plan(&self.spec.transforms, (width, height), draw, self.spec.max_pixels, &mut stages)?;
        Ok(stages)
    }
}

/// Refuses arguments that cannot be.
fn check_transform(transform: &Transform) -> Result<()> {
    let check_size = |name: &str, sides: &[u32]| match sides.iter().find(|side| !(1..=OUTPUT_SIDE_MAX).contains(*side))
    {
        Some(side) => Err(Error::config(format!("{name}: a side must be 1 to {OUTPUT_SIDE_MAX} pixels, got {side}"))),
        None => Ok(()),
    };
    match *transform {
        Transform::RandomResizedCrop { size, scale, ratio } => {
            check_size("RandomResizedCrop", &size)?;
            let is_range = |[low, high]: [f64; 2]| low > 0.0 && low <= high && high.is_finite();
            if !is_range(scale) || !is_range(ratio) {
                return Err(Error::config(format!(
                    "RandomResizedCrop: scale and ratio are (low, high) with 0 < low <= high, got scale {scale:?}, ratio \
                     {ratio:?}"
                )));
            }
            Ok(())
        }
        Transform::Resize { to: ResizeTo::Exact(size) } => check_size("Resize", &size),
        Transform::Resize { to: ResizeTo::ShortSide(short) } => check_size("Resize", &[short]),
        Transform::CenterCrop { size } => check_size("CenterCrop", &size),
        Transform::RandomHorizontalFlip { p } if (0.0..=1.0).contains(&p) => Ok(()),
        Transform::RandomHorizontalFlip { p } => {
            Err(Error::config(format!("RandomHorizontalFlip: p is a probability, 0 to 1, got {p}")))
        }
    }
}

/// Output size of a resize of the shorter side, where the size before is fixed.
fn short_side(height: u32, width: u32, short: u32) -> Result<[u32; 2]> {
    let size = geometry::resized_size((width, height), ResizeTo::ShortSide(short));
    let (width, height) = size.map_err(|fault| Error::config(format!("Resize: {}", fault.message)))?;
    check_transform(&Transform::Resize { to: ResizeTo::Exact([height, width]) })?;
    Ok([height, width])
}

/// One thread's memory and decoders for carrying recipes out; reused from sample to sample.
pub struct ImageWorker {
    decoder: Decoder,
    resampler: Resampler,
    stages: Vec<Stage>,
    size: (u32, u32),
    orientation: Orientation,
    output: Vec<u8>,
    /// Images between stages, where a recipe needs more than one resample: read from one, written to the other.
    between: [Vec<u8>; 2],
}

impl ImageWorker {
    /// A worker on the fastest path of this processor.
    pub fn new() -> Result<Self> {
        Self::with_path(Path::best())
    }

    /// A worker on a chosen path; the pixels are the same on each.
    pub fn with_path(path: Path) -> Result<Self> {
        Ok(Self {
            decoder: Decoder::new()?,
            resampler: Resampler::new(path),
            stages: Vec::new(),
            size: (0, 0),
            orientation: Orientation::UPRIGHT,
            output: Vec::new(),
            between: [Vec::new(), Vec::new()],
        })
    }

    /// Decodes `bytes` and carries out `recipe` with the parameters of `draw`. Returns the row's finished pixels,
    /// [`ImageRecipe::row_bytes`] of them, in this worker's memory.
    pub fn run(&mut self, recipe: &ImageRecipe, bytes: &[u8], draw: Draw) -> Result<&[u8], SampleFault> {
        let ImageSpec { transforms, layout, max_pixels, decode } = &recipe.spec;
        let plan = |size, stages: &mut _| geometry::plan(transforms, size, draw, *max_pixels, stages);
        let pixels = self.run_planned(bytes, *layout, *max_pixels, decode, plan)?;
        debug_assert_eq!(pixels.len(), recipe.row_bytes());
        Ok(pixels)
    }

    /// (width, height) of the last image as stored, before it was turned or transformed.
    pub fn size(&self) -> (u32, u32) {
        self.size
    }

    /// How the last image was turned, as its recipe says, before any transform.
    pub fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// Whether the last image was cut off, and used as far as it goes because its recipe says so.
    pub fn is_cut_off(&self) -> bool {
        self.decoder.is_cut_off()
    }

    /// Oddities of the last JPEG that were passed over, as Pillow does: bytes before a marker, damaged codes.
    pub fn warnings(&self) -> u32 {
        self.decoder.warnings()
    }

    /// Decodes `bytes`, lets `plan` fill in the stages for the image's size, and runs them.
    fn run_planned(
        &mut self,
        bytes: &[u8],
        layout: PixelLayout,
        pixels_max: u64,
        decode: &DecodeSpec,
        plan: impl FnOnce((u32, u32), &mut Vec<Stage>) -> Result<(), SampleFault>,
    ) -> Result<&[u8], SampleFault> {
        let Self { decoder, resampler, stages, size, orientation, output, between: [read, written] } = self;
        let image = decoder.open_with(bytes, pixels_max, decode)?;
        (*size, *orientation) = (image.stored_size(), image.orientation());
        plan(image.size(), stages)?;
        let mut image = Some(image);
        for (index, stage) in stages.iter().enumerate() {
            let is_last = index + 1 == stages.len();
            let layout = if is_last { layout } else { PixelLayout::Nhwc };
            let pixels = if is_last { &mut *output } else { &mut *written };
            let image = image.take();
            let reduction =
                image.as_ref().map_or(Reduction::NONE, |image| image.reduction(stage.source, stage.resized));
            let rows = |region| match image {
                Some(image) => image.reduced_region(region, reduction.factor),
                None => Ok(Strips::of_pixels(read, stage.source.width, region)),
            };
            run_stage(resampler, stage, reduction, layout, pixels, rows)?;
            if !is_last {
                written.resize(written.len() + STRIP_SLACK, 0);
                std::mem::swap(read, written);
            }
        }
        Ok(output)
    }
}

/// Makes the output of one stage, all of `pixels`, from the rows of the region that it asks for.
fn run_stage<'rows>(
    resampler: &mut Resampler,
    stage: &Stage,
    reduction: Reduction,
    layout: PixelLayout,
    pixels: &mut Vec<u8>,
    rows: impl FnOnce(Region) -> Result<Strips<'rows>, SampleFault>,
) -> Result<(), SampleFault> {
    let (width, height) = stage.output();
    pixels.resize(width as usize * height as usize * 3, 0);
    if stage.visible != Some(stage.window) {
        pixels.fill(0);
    }
    let Some(visible) = stage.visible else {
        return Ok(());
    };
    let region = resampler.prepare_reduced(stage, reduction, visible, layout)?;
    // The output is mirrored with its padding; what is visible lies within the window.
    let before = visible.left - stage.window.left;
    let after = i64::from(width) - before - i64::from(visible.width);
    let left = if stage.mirrored { after } else { before };
    let top = visible.top - stage.window.top;
    let mut target = Target { pixels, width, height, layout };
    resampler.run(&mut rows(region)?, &mut target, (left as u32, top as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(transforms: &[Transform]) -> ImageSpec {
        ImageSpec {
            transforms: transforms.to_vec(),
            layout: PixelLayout::Nhwc,
            max_pixels: 1 << 26,
            decode: DecodeSpec::default(),
        }
    }

    const SHORT: Transform = Transform::Resize { to: ResizeTo::ShortSide(256) };
    const CENTER: Transform = Transform::CenterCrop { size: [224, 192] };
    const FLIP: Transform = Transform::RandomHorizontalFlip { p: 0.5 };

    fn check_size(transforms: &[Transform], expected: (u32, u32)) {
        let recipe = ImageRecipe::compile(&spec(transforms)).expect("a fixed size");
        assert_eq!(recipe.output_size(), expected);
        assert_eq!(recipe.row_bytes(), expected.0 as usize * expected.1 as usize * 3);
    }

    fn check_refused(transforms: &[Transform], words: &str) {
        let error = ImageRecipe::compile(&spec(transforms)).expect_err("not to be compiled");
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn recipes_fix_their_size() {
        check_size(&[SHORT, CENTER], (224, 192));
        check_size(&[FLIP, CENTER, SHORT], (298, 256));
        check_size(&[Transform::Resize { to: ResizeTo::Exact([10, 20]) }, FLIP], (10, 20));
        check_refused(&[SHORT], "add CenterCrop");
        check_refused(&[SHORT, FLIP], "only the shorter side");
        check_refused(&[FLIP], "no transform fixes the size");
        check_refused(&[], "no transform fixes the size");
        check_refused(&[Transform::CenterCrop { size: [0, 5] }], "got 0");
        check_refused(&[CENTER, Transform::RandomHorizontalFlip { p: 1.5 }], "got 1.5");
        let crop = |scale, ratio| Transform::RandomResizedCrop { size: [224, 224], scale, ratio };
        check_refused(&[crop([0.5, 0.1], [0.75, 1.3])], "low <= high");
        check_refused(&[crop([0.5, 1.0], [0.0, 1.3])], "0 < low");
        check_refused(&[crop([f64::NAN, 1.0], [0.7, 1.3])], "scale");
        check_refused(&[Transform::CenterCrop { size: [1, 16_000] }, SHORT], "16384");
    }
}
