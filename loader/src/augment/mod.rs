//! A sample's bytes to its row's finished pixels: [`ImageRecipe`] is an [`ImageSpec`] that has been checked,
//! [`ImageWorker`] carries it out.
//!
//! [`philox`] supplies the random numbers, [`plan`] turns transforms into steps (and says which recipes fuse),
//! [`geometry`] has the boxes, [`axis`] the weights, and [`resize`] makes pixels from the strips that
//! [`crate::decode`] hands on. [`operation`] does what a resample cannot ([`colour`], [`filter`], [`warp`], the
//! [`policy`] of AutoAugment and its like), [`finish`] makes floats and planes. [`pair`] is for images of twice the size. [`boxes`] go where the pixels go.
//! Everything a sample needs stays in its worker's memory.

pub mod axis;
pub mod boxes;
mod check;
pub mod colour;
pub mod filter;
pub mod finish;
pub mod geometry;
#[cfg(test)]
mod golden;
pub mod operation;
pub mod pair;
pub mod philox;
pub mod plan;
pub mod policy;
pub mod resize;
mod trace;
pub mod views;
pub mod warp;

use std::sync::Arc;

use crate::batch::Dtype;
use crate::decode::orientation::Orientation;
use crate::decode::{Decoder, Reduction, Region, STRIP_SLACK, Strips};
use crate::error::{Error, Result, SampleFault};
use crate::spec::{FloatType, ImageSpec, PixelLayout, Resampling, Transform};

use crate::sys::simd::Path;
use finish::Finish;
use geometry::Stage;
use operation::OperationMemory;
pub use philox::Draw;
use plan::{Sample, Step};
use resize::{Resampler, Target};
use views::{Picture, Views};

/// Longest side of an output.
pub const OUTPUT_SIDE_MAX: u32 = 1 << 14;

/// A checked image spec: its output size is fixed and its arguments make sense.
#[derive(Debug, Clone)]
pub struct ImageRecipe {
    spec: ImageSpec,
    height: u32,
    width: u32,
    /// How many times larger the image is than that of its pair whose transforms it shares.
    scale: u32,
    /// Conversion to floats, where there is one.
    finish: Option<Box<Finish>>,
    /// Those that are made of the same picture, this one included.
    views: Option<Arc<Views>>,
}

impl ImageRecipe {
    /// Checks `spec`. Refused, with the way out: transforms that do not fix the output size, sizes and ranges that
    /// cannot be.
    pub fn compile(spec: &ImageSpec) -> Result<Self> {
        if spec.max_pixels == 0 {
            return Err(Error::config("max_pixels must be at least 1"));
        }
        let scale = spec.like.as_ref().map_or(1, |like| like.scale);
        let [height, width] = check::check_list(&spec.transforms)?.map(|side| side.saturating_mul(scale));
        if height.max(width) > OUTPUT_SIDE_MAX {
            return Err(Error::config(format!(
                "an output of {width}x{height} pixels, {scale} times that of its pair: a side has at most {OUTPUT_SIDE_MAX}"
            )));
        }
        let finish = Finish::of(&spec.transforms).map(Box::new);
        Ok(Self { spec: spec.clone(), height, width, scale, finish, views: None })
    }

    /// (height, width) of a row's image.
    pub fn output_size(&self) -> (u32, u32) {
        (self.height, self.width)
    }

    /// Type of a row's values.
    pub fn dtype(&self) -> Dtype {
        match self.finish.as_ref().map(|finish| finish.dtype()) {
            None => Dtype::Uint8,
            Some(FloatType::Float32) => Dtype::Float32,
            Some(FloatType::Float16) => Dtype::Float16,
            Some(FloatType::Bfloat16) => Dtype::Bfloat16,
        }
    }

    /// Bytes of a row: height x width x 3 values.
    pub fn row_bytes(&self) -> usize {
        self.height as usize * self.width as usize * 3 * self.dtype().bytes() as usize
    }

    /// How many times larger the image is than that of its pair whose transforms it shares; 1 for any other.
    pub fn scale(&self) -> u32 {
        self.scale
    }

    /// Its transforms, whose draws a mask can share.
    pub fn transforms(&self) -> &[Transform] {
        &self.spec.transforms
    }

    /// What the recipe does to an image of this size in this draw, without an image.
    pub fn steps(&self, width: u32, height: u32, draw: Draw) -> Result<Vec<Step>, SampleFault> {
        let mut steps = Vec::new();
        plan::plan(&self.spec.transforms, self.sample((width, height), draw), &mut steps)?;
        Ok(steps)
    }

    /// Of [`ImageRecipe::steps`] the resamples.
    pub fn stages(&self, width: u32, height: u32, draw: Draw) -> Result<Vec<Stage>, SampleFault> {
        let stage = |step| match step {
            Step::Resample(stage) => Some(stage),
            _ => None,
        };
        Ok(self.steps(width, height, draw)?.into_iter().filter_map(stage).collect())
    }

    fn sample(&self, size: (u32, u32), draw: Draw) -> Sample {
        Sample { size, draw, view: self.spec.view, scale: self.scale, pixels_max: self.spec.max_pixels }
    }
}

/// One thread's memory and decoders for carrying recipes out; reused from sample to sample.
pub struct ImageWorker {
    decoder: Decoder,
    picture: Picture,
    steps: Vec<Step>,
    runner: StepRunner,
    size: (u32, u32),
    orientation: Orientation,
    warnings: u32,
    is_cut_off: bool,
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
            picture: Picture::default(),
            steps: Vec::new(),
            runner: StepRunner {
                path,
                resampler: Resampler::new(path),
                images: Images::default(),
                memory: OperationMemory::default(),
                finished: Vec::new(),
            },
            size: (0, 0),
            orientation: Orientation::UPRIGHT,
            warnings: 0,
            is_cut_off: false,
        })
    }

    /// The next images are those of another sample.
    pub fn begin_sample(&mut self) {
        self.picture.forget();
    }

    /// Decodes `bytes` and carries out `recipe` with the parameters of `draw`. Returns the row's finished pixels,
    /// [`ImageRecipe::row_bytes`] of them, in this worker's memory. Views of one picture decode it once a sample.
    pub fn run(&mut self, recipe: &ImageRecipe, bytes: &[u8], draw: Draw) -> Result<&[u8], SampleFault> {
        let spec = &recipe.spec;
        let source = match &recipe.views {
            Some(views) => Source::Picture(self.picture.of(views, &mut self.decoder, &mut self.steps, bytes, draw)?),
            None => Source::Image(self.decoder.open_with(bytes, spec.max_pixels, &spec.decode)?),
        };
        let size;
        (size, self.size, self.orientation) = match &source {
            Source::Picture(picture) => (picture.size, picture.stored_size, picture.orientation),
            Source::Image(image) => (image.size(), image.stored_size(), image.orientation()),
        };
        plan::plan(&spec.transforms, recipe.sample(size, draw), &mut self.steps)?;
        let pixels = self.runner.run(source, &self.steps, spec.layout, recipe.finish.as_deref())?;
        (self.warnings, self.is_cut_off) = match &recipe.views {
            Some(_) => (self.picture.warnings, self.picture.is_cut_off),
            None => (self.decoder.warnings(), self.decoder.is_cut_off()),
        };
        debug_assert_eq!(pixels.len(), recipe.row_bytes());
        Ok(pixels)
    }

    /// (width, height) of the last image as stored, before it was turned or transformed.
    pub fn size(&self) -> (u32, u32) {
        self.size
    }

    /// What was done to the last image.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// How the last image was turned, as its recipe says, before any transform.
    pub fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// Whether the last image was cut off, and used as far as it goes because its recipe says so.
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// Oddities of the last JPEG that were passed over, as Pillow does: bytes before a marker, damaged codes.
    pub fn warnings(&self) -> u32 {
        self.warnings
    }
}

/// What the first step reads.
enum Source<'image> {
    /// An image that is decoded as far as the step needs it.
    Image(crate::decode::Image<'image>),
    /// A picture that was decoded for several views.
    Picture(&'image Picture),
}

/// Carries out the steps of a plan.
struct StepRunner {
    path: Path,
    resampler: Resampler,
    images: Images,
    memory: OperationMemory,
    /// Floats, or planes, where the last step did not make them.
    finished: Vec<u8>,
}

/// The image between two steps, and room for the next.
#[derive(Default)]
struct Images {
    current: Vec<u8>,
    next: Vec<u8>,
    /// (width, height) of the current one.
    size: (u32, u32),
}

impl StepRunner {
    /// Makes a row's pixels of `source`.
    fn run(
        &mut self,
        source: Source<'_>,
        steps: &[Step],
        layout: PixelLayout,
        finish: Option<&Finish>,
    ) -> Result<&[u8], SampleFault> {
        let Self { path, resampler, images, memory, finished } = self;
        let mut source = Some(source);
        let mut is_planar = false;
        for (index, step) in steps.iter().enumerate() {
            match step {
                Step::Resample(stage) => {
                    // Only the last step may make planes: what follows reads pixels.
                    is_planar = layout == PixelLayout::Nchw && finish.is_none() && index + 1 == steps.len();
                    let layout = if is_planar { PixelLayout::Nchw } else { PixelLayout::Nhwc };
                    images.resample(resampler, stage, layout, source.take())?;
                }
                Step::Operation(operation) => images.operate(operation, *path, memory),
                // After the conversion, below.
                Step::EraseFloats(_) => {}
            }
        }
        let wanted = if is_planar { PixelLayout::Nhwc } else { layout };
        match (finish, wanted) {
            (None, PixelLayout::Nhwc) => return Ok(&images.current),
            (None, PixelLayout::Nchw) => path.run(|| finish::to_planes(&images.current, finished)),
            (Some(finish), layout) => {
                path.run(|| finish.run(&images.current, layout, finished));
                for step in steps {
                    if let Step::EraseFloats(erase) = step {
                        finish.erase(erase, finished, images.size, layout);
                    }
                }
            }
        }
        Ok(finished)
    }
}

impl Images {
    /// Makes the output of one stage from `source`, or from the current image.
    fn resample(
        &mut self,
        resampler: &mut Resampler,
        stage: &Stage,
        layout: PixelLayout,
        source: Option<Source<'_>>,
    ) -> Result<(), SampleFault> {
        let Self { current, next, size } = self;
        match source {
            Some(Source::Image(image)) => {
                // What a reduction does to other curves is neither measured nor bounded, so they read the exact image.
                let reduction = match stage.resampling {
                    Resampling::Bilinear => image.reduction(stage.source, stage.resized),
                    _ => Reduction::NONE,
                };
                let rows = |region| image.reduced_region(region, reduction.factor);
                run_stage(resampler, stage, reduction, layout, next, rows)?;
            }
            Some(Source::Picture(picture)) => {
                let rows = |region| Ok(picture.strips(region));
                run_stage(resampler, stage, Reduction::NONE, layout, next, rows)?;
            }
            None => {
                let pixel_bytes = current.len();
                current.resize(pixel_bytes + STRIP_SLACK, 0);
                let rows = |region| Ok(Strips::of_pixels(current, size.0, region));
                run_stage(resampler, stage, Reduction::NONE, layout, next, rows)?;
            }
        }
        std::mem::swap(current, next);
        *size = stage.output();
        Ok(())
    }

    fn operate(&mut self, operation: &operation::Operation, path: Path, memory: &mut OperationMemory) {
        operation.run(path, &mut self.current, &mut self.next, self.size, memory);
        self.size = operation.output(self.size);
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
        match layout {
            PixelLayout::Nhwc => pixels.as_chunks_mut::<3>().0.fill(stage.fill),
            PixelLayout::Nchw => {
                let planes = pixels.chunks_exact_mut(width as usize * height as usize);
                planes.zip(stage.fill).for_each(|(plane, value)| plane.fill(value));
            }
        }
    }
    let Some(visible) = stage.visible else {
        return Ok(());
    };
    let region = resampler.prepare_reduced(stage, reduction, visible, layout)?;
    // The output is mirrored with its padding; what is visible lies within the window.
    let before = visible.left - stage.window.left;
    let after = i64::from(width) - before - i64::from(visible.width);
    let left = if stage.mirrored { after } else { before };
    let above = visible.top - stage.window.top;
    let below = i64::from(height) - above - i64::from(visible.height);
    let top = if stage.upside_down { below } else { above };
    let mut target = Target { pixels, width, height, layout };
    resampler.run(&mut rows(region)?, &mut target, (left as u32, top as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{PaddingMode, Resampling, ResizeTo};

    fn spec(transforms: &[Transform]) -> ImageSpec {
        ImageSpec { transforms: transforms.to_vec(), max_pixels: 1 << 26, ..ImageSpec::default() }
    }

    const SHORT: Transform = Transform::Resize { to: ResizeTo::ShortSide(256), resampling: Resampling::Bilinear };
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
        check_size(
            &[Transform::Resize { to: ResizeTo::Exact([10, 20]), resampling: Resampling::Nearest }, FLIP],
            (10, 20),
        );
        check_refused(&[SHORT], "add CenterCrop");
        check_refused(&[SHORT, FLIP], "only the shorter side");
        check_refused(&[FLIP], "no transform fixes the size");
        check_refused(&[], "no transform fixes the size");
        check_refused(&[Transform::CenterCrop { size: [0, 5] }], "got 0");
        check_refused(&[CENTER, Transform::RandomHorizontalFlip { p: 1.5 }], "got 1.5");
        let crop = |scale, ratio| Transform::RandomResizedCrop {
            size: [224, 224],
            scale,
            ratio,
            resampling: Resampling::Bilinear,
        };
        check_refused(&[crop([0.5, 0.1], [0.75, 1.3])], "low <= high");
        check_refused(&[crop([0.5, 1.0], [0.0, 1.3])], "0 < low");
        check_refused(&[crop([f64::NAN, 1.0], [0.7, 1.3])], "scale");
        check_refused(&[Transform::CenterCrop { size: [1, 16_000] }, SHORT], "16384");
    }

    fn pad(padding: [u32; 4]) -> Transform {
        Transform::Pad { padding, fill: [0; 3], mode: PaddingMode::Edge }
    }

    const FLOAT: Transform = Transform::ToDtype { dtype: FloatType::Bfloat16, scale: true };
    const NORMAL: Transform = Transform::Normalize { mean: [0.5; 3], std: [0.2; 3] };

    #[test]
    fn lists_within_lists_keep_the_size() {
        let apply = |transforms: &[Transform]| Transform::RandomApply { transforms: transforms.to_vec(), p: 0.5 };
        let choice = |transforms: &[Transform]| Transform::RandomChoice {
            transforms: transforms.to_vec(),
            p: vec![1.0; transforms.len()],
        };
        check_size(&[CENTER, pad([1, 2, 3, 4])], (230, 196));
        check_size(&[CENTER, apply(&[FLIP, FLIP])], (224, 192));
        check_size(&[CENTER, apply(&[pad([1; 4])]), CENTER], (224, 192));
        check_size(&[choice(&[CENTER, CENTER])], (224, 192));
        check_refused(&[CENTER, apply(&[pad([1; 4])])], "no transform fixes the size");
        check_refused(&[choice(&[CENTER, SHORT])], "no transform fixes the size");
        check_refused(&[CENTER, apply(&[apply(&[apply(&[FLIP])])])], "2 deep");
        check_refused(&[CENTER, apply(&[])], "at least one");
        check_refused(&[CENTER, Transform::RandomChoice { transforms: vec![FLIP], p: vec![] }], "1 transforms and 0");
        check_refused(&[CENTER, Transform::RandomChoice { transforms: vec![FLIP], p: vec![0.0] }], "above 0");
    }

    #[test]
    fn floats_come_last() {
        let recipe = ImageRecipe::compile(&spec(&[CENTER, FLOAT, NORMAL])).expect("sound");
        assert_eq!(recipe.row_bytes(), 224 * 192 * 3 * 2);
        check_refused(&[CENTER, NORMAL], "ToDtype");
        check_refused(&[CENTER, FLOAT, FLIP], "only Normalize and RandomErasing");
        check_refused(&[FLOAT, CENTER], "only Normalize and RandomErasing");
        check_refused(&[CENTER, FLOAT, FLOAT], "only Normalize and RandomErasing");
        check_refused(&[CENTER, Transform::RandomApply { transforms: vec![FLOAT], p: 1.0 }], "within another");
        check_refused(&[CENTER, FLOAT, Transform::Normalize { mean: [0.0; 3], std: [0.0; 3] }], "not 0");
    }

    #[test]
    fn arguments_make_sense() {
        let warp = crate::spec::WarpSpec::default();
        for (transform, words) in [
            (Transform::RandomSolarize { threshold: 256.0, p: 0.5 }, "at most 255"),
            (Transform::RandomPosterize { bits: 9, p: 0.5 }, "0 to 8"),
            (Transform::RandomAdjustSharpness { factor: -1.0, p: 0.5 }, "not negative"),
            (Transform::GaussianBlur { kernel: [4, 3], sigma: [0.1, 2.0] }, "odd"),
            (Transform::GaussianBlur { kernel: [3, 3], sigma: [0.0, 2.0] }, "sigma"),
            (Transform::RandAugment { operations: 2, magnitude: 31, bins: 31, warp }, "below"),
            (Transform::TrivialAugmentWide { bins: 1, warp }, "at least 2"),
            (Transform::RandomRotation { degrees: [3.0, 2.0], warp }, "degrees"),
            (Transform::RandomPerspective { distortion: 1.5, p: 0.5, warp }, "0 to 1"),
            (
                Transform::RandomAffine {
                    degrees: [0.0; 2],
                    translate: None,
                    scale: Some([0.0, 1.0]),
                    shear: None,
                    warp,
                },
                "scale",
            ),
            (
                Transform::ColorJitter { brightness: Some([-1.0, 1.0]), contrast: None, saturation: None, hue: None },
                "brightness",
            ),
            (
                Transform::ColorJitter { brightness: None, contrast: None, saturation: None, hue: Some([-0.6, 0.1]) },
                "hue",
            ),
            (Transform::RandomErasing { p: 0.5, scale: [0.1, 1.1], ratio: [0.3, 3.3], value: None }, "scale"),
        ] {
            check_refused(&[CENTER, transform], words);
        }
    }
}
