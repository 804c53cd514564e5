//! From transforms, an image's size and a sample's random streams to the steps that make its row.
//!
//! Which recipes fuse: crops, paddings of one colour, flips and one resize are one [`Stage`], whatever their order, and
//! the first stage is made while its region is decoded, strip by strip. So RandomResizedCrop with flips, Resize with
//! CenterCrop, and RandomCrop with padding and flips are a single pass from bytes to row. A second resize, a mirroring
//! border or an operation on colours ends a stage; a stage that is followed by another computes only what that one
//! reads. Operations run one after the other on the whole image, which is small where a crop to the output's size comes
//! first, as recipes have it. Conversion to floats, Normalize and the change of layout are one last pass.

use crate::decode::Region;
use crate::error::{FaultClass, SampleFault};
use crate::spec::{Channels, PaddingMode, Resampling, Transform, WarpSpec};

use super::geometry::{self, Stage, Window, random_box, random_window};
use super::operation::{Erase, Extend, Operation, Warp};
use super::philox::{Draw, OperationPath, OperationStream, below, uniform, unit};
use super::{pair, policy, warp};

/// Attempts of RandomErasing at a box that fits.
const ERASE_ATTEMPTS: u64 = 10;

/// One pass over an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// A resample; the first step is one, and reads the decoded image.
    Resample(Stage),
    /// An operation on the whole image.
    Operation(Operation),
    /// A box painted over after the conversion to floats.
    EraseFloats(Erase),
}

/// What a plan is made for.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// (width, height) of the decoded image.
    pub size: (u32, u32),
    /// What its parameters are drawn from.
    pub draw: Draw,
    /// Number of its view.
    pub view: u16,
    /// How many times larger it is than the image of its pair that the transforms are written for; 1 for any other.
    pub scale: u32,
    /// Most pixels of an image between two steps.
    pub pixels_max: u64,
}

/// Fills `steps` with what `transforms` make of a sample. At least one step.
pub fn plan(transforms: &[Transform], sample: Sample, steps: &mut Vec<Step>) -> Result<(), SampleFault> {
    steps.clear();
    let size = pair::smaller(sample.size, sample.scale)?;
    let (width, height) = size;
    let mut planner = Planner {
        draw: sample.draw,
        source: size,
        stage: Stage::of_image(width, height),
        steps,
        is_float: false,
        pixels_max: sample.pixels_max,
    };
    for (index, transform) in transforms.iter().enumerate() {
        planner.add(transform, OperationPath::of(sample.view, index), 0)?;
    }
    planner.end_stage();
    narrow_to_need(steps);
    pair::enlarge(steps, sample.scale);
    check_sizes(steps, sample.pixels_max)
}

struct Planner<'steps> {
    draw: Draw,
    /// (width, height) of the image that `stage` reads.
    source: (u32, u32),
    /// The stage that is not in `steps` yet.
    stage: Stage,
    steps: &'steps mut Vec<Step>,
    /// Whether values are floats by now.
    is_float: bool,
    pixels_max: u64,
}

impl Planner<'_> {
    fn size(&self) -> (u32, u32) {
        self.stage.output()
    }

    fn add(&mut self, transform: &Transform, path: OperationPath, depth: u32) -> Result<(), SampleFault> {
        let stream = self.draw.operation_at(path);
        let happens = |p: f64| unit(stream.block(0)[0]) < p;
        match *transform {
            Transform::RandomResizedCrop { size: [height, width], scale, ratio, resampling } => {
                let crop = random_box(self.size(), scale, ratio, stream);
                self.resize(Some(crop), (width, height), resampling);
            }
            Transform::Resize { to, resampling } => {
                let to = geometry::resized_size(self.size(), to)?;
                if to != self.size() {
                    self.resize(None, to, resampling);
                }
            }
            Transform::CenterCrop { size: [to_height, to_width] } => {
                let (width, height) = self.size();
                let (left, top) = (geometry::center(width, to_width), geometry::center(height, to_height));
                self.narrow(Window { left, top, width: to_width, height: to_height }, [0; 3], PaddingMode::Constant);
            }
            Transform::RandomCrop { size, padding, pad_if_needed, fill, mode } => {
                let window = random_window(self.size(), size, padding, pad_if_needed, stream)?;
                self.narrow(window, fill, mode);
            }
            Transform::Pad { padding: [left, top, right, bottom], fill, mode } => {
                let (width, height) = self.size();
                let window = Window {
                    left: -i64::from(left),
                    top: -i64::from(top),
                    width: width + left + right,
                    height: height + top + bottom,
                };
                self.check_size(window.width, window.height)?;
                self.narrow(window, fill, mode);
            }
            Transform::RandomHorizontalFlip { p } => self.stage.mirrored ^= happens(p),
            Transform::RandomVerticalFlip { p } => self.stage.upside_down ^= happens(p),
            Transform::RandomApply { ref transforms, p } => {
                if happens(p) {
                    for (index, transform) in transforms.iter().enumerate() {
                        self.add(transform, path.child(depth + 1, index), depth + 1)?;
                    }
                }
            }
            Transform::RandomChoice { ref transforms, ref p } => {
                let index = choose(p, unit(stream.block(0)[0]));
                self.add(&transforms[index], path.child(depth + 1, index), depth + 1)?;
            }
            Transform::ToDtype { .. } => self.is_float = true,
            // Part of the conversion.
            Transform::Normalize { .. } => {}
            Transform::RandomErasing { p, scale, ratio, value } => {
                if happens(p)
                    && let Some(erase) = random_erase(self.size(), scale, ratio, value, stream)
                {
                    if self.is_float {
                        self.end_stage();
                        self.steps.push(Step::EraseFloats(erase));
                    } else {
                        self.operation(Operation::Erase(erase));
                    }
                }
            }
            _ => self.add_operations(transform, stream),
        }
        Ok(())
    }

    /// Adds a transform that is a list of operations on the whole image.
    fn add_operations(&mut self, transform: &Transform, stream: OperationStream) {
        let size = self.size();
        let happens = |p: f64| unit(stream.block(0)[0]) < p;
        let mut once = |operation: Operation, p: f64| {
            if happens(p) {
                self.operation(operation);
            }
        };
        match *transform {
            Transform::RandomGrayscale { p } => once(Operation::Grayscale, p),
            Transform::RandomSolarize { threshold, p } => once(Operation::Solarize(threshold as f32), p),
            Transform::RandomPosterize { bits, p } => once(Operation::Posterize(bits), p),
            Transform::RandomEqualize { p } => once(Operation::Equalize, p),
            Transform::RandomAutocontrast { p } => once(Operation::Autocontrast, p),
            Transform::RandomAdjustSharpness { factor, p } => once(Operation::Sharpness(factor as f32), p),
            Transform::RandomInvert { p } => once(Operation::Invert, p),
            Transform::GaussianBlur { kernel, sigma: [low, high] } => {
                let sigma = uniform(stream.block(0)[0], low, high);
                self.operation(Operation::Blur { kernel, sigma });
            }
            Transform::ColorJitter { brightness, contrast, saturation, hue } => {
                for operation in jitter([brightness, contrast, saturation, hue], stream).into_iter().flatten() {
                    self.operation(operation);
                }
            }
            Transform::RandomRotation { degrees: [low, high], warp } => {
                // torchvision's rotate turns the other way than its affine.
                let angle = -uniform(stream.block(0)[0], low, high);
                self.warp(warp::affine(size, warp.center, angle, [0.0; 2], 1.0, [0.0; 2]), warp);
            }
            Transform::RandomAffine { degrees, translate, scale, shear, warp } => {
                self.warp(random_affine(size, degrees, translate, scale, shear, warp.center, stream), warp);
            }
            Transform::RandomPerspective { distortion, p, warp } => {
                if happens(p) {
                    self.warp(random_perspective(size, distortion, stream), warp);
                }
            }
            Transform::AutoAugment { policy, warp } => {
                policy::auto_augment(policy, &warp, size, stream, |operation| self.operation(operation));
            }
            Transform::RandAugment { operations, magnitude, bins, warp } => {
                policy::rand_augment(operations, magnitude, bins, &warp, size, stream, |operation| {
                    self.operation(operation);
                });
            }
            Transform::TrivialAugmentWide { bins, warp } => {
                if let Some(operation) = policy::trivial_augment(bins, &warp, size, stream) {
                    self.operation(operation);
                }
            }
            _ => unreachable!("{transform:?} is no list of operations"),
        }
    }

    fn resize(&mut self, crop: Option<Window>, (width, height): (u32, u32), resampling: Resampling) {
        if !self.stage.is_plain() {
            self.end_stage();
        }
        if let Some(crop) = crop {
            self.stage.narrow(crop, [0; 3]);
        }
        self.stage.resize(width, height, resampling);
    }

    fn narrow(&mut self, window: Window, fill: Channels, mode: PaddingMode) {
        let (width, height) = self.size();
        let reaches_out = window.common(Window::whole(width, height)) != Some(window);
        if reaches_out && mode != PaddingMode::Constant {
            return self.operation(Operation::Extend(Extend { window, mode }));
        }
        if !self.stage.can_narrow(window, fill) {
            self.end_stage();
        }
        self.stage.narrow(window, fill);
    }

    fn warp(&mut self, coefficients: [f64; 8], spec: WarpSpec) {
        self.operation(Operation::Warp(Warp { coefficients, interpolation: spec.interpolation, fill: spec.fill }));
    }

    fn operation(&mut self, operation: Operation) {
        self.end_stage();
        let size = operation.output(self.size());
        self.start_stage(size);
        self.steps.push(Step::Operation(operation));
    }

    /// Puts the stage into the list, unless it does nothing, and starts another.
    fn end_stage(&mut self) {
        let (width, height) = self.source;
        if self.steps.is_empty() || !self.stage.is_identity(width, height) {
            self.steps.push(Step::Resample(self.stage));
        }
        self.start_stage(self.size());
    }

    fn start_stage(&mut self, size: (u32, u32)) {
        self.source = size;
        self.stage = Stage::of_image(size.0, size.1);
    }

    fn check_size(&self, width: u32, height: u32) -> Result<(), SampleFault> {
        check_pixels(width, height, self.pixels_max)
    }
}

/// Makes every stage that is followed by another compute only what that one reads.
fn narrow_to_need(steps: &mut [Step]) {
    for index in (1..steps.len()).rev() {
        let [.., Step::Resample(before), Step::Resample(after)] = &mut steps[..=index] else { continue };
        let need = after.source;
        let window = Window { left: need.left.into(), top: need.top.into(), width: need.width, height: need.height };
        let fill = before.fill;
        before.narrow(window, fill);
        after.source = Region::whole(need.width, need.height);
    }
}

/// Refuses intermediate images over the limit; the last one's size is the job's own.
fn check_sizes(steps: &[Step], pixels_max: u64) -> Result<(), SampleFault> {
    for step in &steps[..steps.len() - 1] {
        if let Step::Resample(stage) = step {
            let (width, height) = stage.output();
            check_pixels(width, height, pixels_max)?;
        }
    }
    Ok(())
}

fn check_pixels(width: u32, height: u32, pixels_max: u64) -> Result<(), SampleFault> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels > pixels_max {
        let message =
            format!("a transform makes {width}x{height} = {pixels} pixels, the limit is {pixels_max} (max_pixels)");
        return Err(SampleFault::new(FaultClass::TooLarge, message));
    }
    Ok(())
}

/// The place in a list of weights where `point`, 0 to 1, of their sum lies.
fn choose(weights: &[f64], point: f64) -> usize {
    let mut left = point * weights.iter().sum::<f64>();
    let last = weights.iter().rposition(|&weight| weight > 0.0).unwrap_or_default();
    weights[..last]
        .iter()
        .position(|weight| {
            left -= weight;
            left < 0.0
        })
        .unwrap_or(last)
}

/// ColorJitter's operations in their order. Block 0: the factors; block 1: the order.
fn jitter(ranges: [Option<[f64; 2]>; 4], stream: OperationStream) -> [Option<Operation>; 4] {
    let factors = stream.block(0);
    let make = [Operation::Brightness, Operation::Contrast, Operation::Saturation, Operation::Hue];
    let mut operations: [Option<Operation>; 4] = std::array::from_fn(|index| {
        ranges[index].map(|[low, high]| make[index](uniform(factors[index], low, high) as f32))
    });
    for (index, word) in stream.block(1).into_iter().enumerate() {
        operations.swap(index, index + below(word, 4 - index as u32) as usize);
    }
    operations
}

/// RandomAffine's map. Block 0: angle, scale, shear x, shear y; block 1: shift right, shift down.
fn random_affine(
    (width, height): (u32, u32),
    degrees: [f64; 2],
    translate: Option<[f64; 2]>,
    scale: Option<[f64; 2]>,
    shear: Option<[f64; 4]>,
    centre: Option<[f64; 2]>,
    stream: OperationStream,
) -> [f64; 8] {
    let words = stream.block(0);
    let draw = |index: usize, range: [f64; 2]| uniform(words[index], range[0], range[1]);
    let angle = draw(0, degrees);
    let scale = scale.map_or(1.0, |range| draw(1, range));
    let shear =
        shear.map_or([0.0; 2], |[low_x, high_x, low_y, high_y]| [draw(2, [low_x, high_x]), draw(3, [low_y, high_y])]);
    let shifts = stream.block(1);
    let shift = |index: usize, side: u32| {
        translate.map_or(0.0, |share| {
            let most = share[index] * f64::from(side);
            uniform(shifts[index], -most, most).round_ties_even()
        })
    };
    warp::affine((width, height), centre, angle, [shift(0, width), shift(1, height)], scale, shear)
}

/// RandomPerspective's map. Blocks 1 and 2: x and y of the corners, clockwise from the upper left.
fn random_perspective((width, height): (u32, u32), distortion: f64, stream: OperationStream) -> [f64; 8] {
    let bounds = [width, height].map(|side| (distortion * f64::from(side / 2)) as u32 + 1);
    let words = [stream.block(1), stream.block(2)];
    let far = [width - 1, height - 1];
    let ends: [[f64; 2]; 4] = std::array::from_fn(|corner| {
        let is_far = [corner == 1 || corner == 2, corner >= 2];
        std::array::from_fn(|axis| {
            let shift = below(words[corner / 2][2 * (corner % 2) + axis], bounds[axis]);
            f64::from(if is_far[axis] { far[axis] - shift } else { shift })
        })
    });
    let [right, down] = far.map(f64::from);
    let starts = [[0.0, 0.0], [right, 0.0], [right, down], [0.0, down]];
    // Corners that fall together, in images of a few pixels, leave the image as it is.
    warp::perspective(ends, starts).unwrap_or([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
}

/// RandomErasing's box, smaller than the image in both directions. Block 1 + i: area, ratio, top, left of attempt i.
fn random_erase(
    (width, height): (u32, u32),
    scale: [f64; 2],
    ratio: [f64; 2],
    value: Option<[f32; 3]>,
    stream: OperationStream,
) -> Option<Erase> {
    let area = f64::from(width) * f64::from(height);
    let log_ratio = ratio.map(libm::log);
    for attempt in 0..ERASE_ATTEMPTS {
        let words = stream.block(1 + attempt);
        let erase_area = area * uniform(words[0], scale[0], scale[1]);
        let aspect = libm::exp(uniform(words[1], log_ratio[0], log_ratio[1]));
        let rows = (erase_area * aspect).sqrt().round_ties_even();
        let columns = (erase_area / aspect).sqrt().round_ties_even();
        if rows < height.into() && columns < width.into() {
            let (rows, columns) = (rows as u32, columns as u32);
            let top = below(words[2], height - rows + 1);
            let left = below(words[3], width - columns + 1);
            return Some(Erase { left, top, width: columns, height: rows, value, noise: stream });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spec::ResizeTo;

    const DRAW: Draw = Draw { seed: 11, epoch: 0, sample: 7 };

    fn steps(transforms: &[Transform], size: (u32, u32)) -> Vec<Step> {
        let mut steps = Vec::new();
        let sample = Sample { size, draw: DRAW, view: 0, scale: 1, pixels_max: 1 << 28 };
        plan(transforms, sample, &mut steps).expect("within the limits");
        steps
    }

    fn stages(transforms: &[Transform], size: (u32, u32)) -> Vec<Stage> {
        let stage = |step| match step {
            Step::Resample(stage) => stage,
            other => panic!("{other:?}"),
        };
        steps(transforms, size).into_iter().map(stage).collect()
    }

    fn random_resized_crop(size: u32) -> Transform {
        let resampling = Resampling::Bilinear;
        Transform::RandomResizedCrop { size: [size; 2], scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0], resampling }
    }

    fn resize(to: ResizeTo) -> Transform {
        Transform::Resize { to, resampling: Resampling::Bilinear }
    }

    fn padded_crop(side: u32, padding: u32, fill: u8, mode: PaddingMode) -> Transform {
        Transform::RandomCrop { size: [side; 2], padding: [padding; 4], pad_if_needed: false, fill: [fill; 3], mode }
    }

    #[test]
    fn crop_and_flip_are_one_stage() {
        let flip = Transform::RandomHorizontalFlip { p: 1.0 };
        let found = stages(&[random_resized_crop(224), flip.clone()], (500, 375));
        assert_eq!(found.len(), 1);
        assert!(found[0].mirrored);
        // Flipping first mirrors the box, not the draw.
        let flipped = stages(&[flip, random_resized_crop(224)], (500, 375));
        assert_eq!(flipped.len(), 1);
        assert_eq!(flipped[0].resized, (224, 224));
    }

    #[test]
    fn resize_and_centre_crop_are_one_stage() {
        let chain = [resize(ResizeTo::ShortSide(256)), Transform::CenterCrop { size: [224, 224] }];
        let found = stages(&chain, (500, 375));
        let window = Window { left: 58, top: 16, width: 224, height: 224 };
        let expected = Stage {
            source: Region::whole(500, 375),
            resized: (341, 256),
            window,
            visible: Some(window),
            ..Stage::of_image(500, 375)
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_resample_after_a_resample_reads_only_what_it_needs() {
        let found = stages(&[resize(ResizeTo::ShortSide(512)), random_resized_crop(224)], (500, 375));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].resized, (682, 512));
        assert_eq!(found[1].source, Region::whole(found[0].window.width, found[0].window.height));
        assert!(found[0].window.width < 682 || found[0].window.height < 512);
    }

    #[test]
    fn what_a_crop_cut_away_does_not_come_back() {
        let chain = [Transform::CenterCrop { size: [2, 2] }, Transform::CenterCrop { size: [6, 6] }];
        let found = stages(&chain, (4, 4));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].window, Window { left: -1, top: -1, width: 6, height: 6 });
        assert_eq!(found[0].visible, Some(Window { left: 1, top: 1, width: 2, height: 2 }));
    }

    #[test]
    fn padded_crops_and_flips_are_one_stage() {
        let flips = [Transform::RandomHorizontalFlip { p: 1.0 }, Transform::RandomVerticalFlip { p: 1.0 }];
        let chain = [padded_crop(32, 4, 9, PaddingMode::Constant), flips[0].clone(), flips[1].clone()];
        let [stage] = stages(&chain, (32, 32))[..] else { panic!("one stage") };
        assert!(stage.mirrored && stage.upside_down);
        assert_eq!(stage.fill, [9; 3]);
        // Borders of two colours are two stages; those that mirror are an operation, unless nothing of them shows.
        let two = [padded_crop(40, 4, 9, PaddingMode::Constant), padded_crop(48, 4, 8, PaddingMode::Constant)];
        assert_eq!(stages(&two, (32, 32)).len(), 2);
        let mirrored = [padded_crop(40, 4, 0, PaddingMode::Reflect)];
        assert!(matches!(steps(&mirrored, (32, 32))[..], [Step::Resample(_), Step::Operation(Operation::Extend(_))]));
        assert_eq!(stages(&[padded_crop(8, 0, 0, PaddingMode::Reflect)], (32, 32)).len(), 1);
    }

    #[test]
    fn operations_end_a_stage() {
        let chain = [
            random_resized_crop(224),
            Transform::RandomInvert { p: 1.0 },
            Transform::RandomInvert { p: 0.0 },
            Transform::RandomHorizontalFlip { p: 1.0 },
        ];
        let found = steps(&chain, (500, 375));
        assert!(matches!(
            found[..],
            [Step::Resample(_), Step::Operation(Operation::Invert), Step::Resample(Stage { mirrored: true, .. })]
        ));
        // Without a flip nothing follows the operation.
        assert_eq!(steps(&chain[..3], (500, 375)).len(), 2);
    }

    #[test]
    fn lists_within_lists_have_streams_of_their_own() {
        let jitter =
            Transform::ColorJitter { brightness: Some([0.5, 1.5]), contrast: None, saturation: None, hue: None };
        let list = |p| Transform::RandomApply { transforms: vec![jitter.clone(), jitter.clone()], p };
        assert_eq!(steps(&[list(0.0)], (8, 8)).len(), 1);
        let nested = Transform::RandomChoice { transforms: vec![list(1.0), list(1.0)], p: vec![0.0, 2.0] };
        let found = steps(&[jitter.clone(), list(1.0), nested], (8, 8));
        assert_eq!(found.len(), 6);
        for (index, step) in found.iter().enumerate() {
            assert!(!found[..index].contains(step), "{step:?} is drawn twice");
        }
    }

    #[test]
    fn weights_choose() {
        for (weights, point, expected) in [
            (vec![1.0, 1.0], 0.0, 0),
            (vec![1.0, 1.0], 0.5, 1),
            (vec![0.0, 1.0, 0.0], 0.0, 1),
            (vec![0.0, 1.0, 0.0], 0.999_999, 1),
            (vec![1.0, 2.0, 1.0], 0.74, 1),
            (vec![1.0, 2.0, 1.0], 0.76, 2),
        ] {
            assert_eq!(choose(&weights, point), expected, "{weights:?} {point}");
        }
    }

    fn transform() -> impl Strategy<Value = Transform> {
        let side = 1..600u32;
        prop_oneof![
            (side.clone(), side.clone(), 0.001..1.0f64, 0.05..1.0f64).prop_map(|(height, width, area, ratio)| {
                Transform::RandomResizedCrop {
                    size: [height, width],
                    scale: [area, 1.0],
                    ratio: [ratio, 1.0 / ratio],
                    resampling: Resampling::Bilinear,
                }
            }),
            side.clone().prop_map(|short| resize(ResizeTo::ShortSide(short))),
            (side.clone(), side.clone()).prop_map(|(height, width)| resize(ResizeTo::Exact([height, width]))),
            (side.clone(), side).prop_map(|(height, width)| Transform::CenterCrop { size: [height, width] }),
            (0.0..1.0f64).prop_map(|p| Transform::RandomHorizontalFlip { p }),
            (0.0..1.0f64).prop_map(|p| Transform::RandomVerticalFlip { p }),
            (0..9u32, 0..9u32, 0..2u8).prop_map(|(one, two, fill)| Transform::Pad {
                padding: [one, two, two, one],
                fill: [fill; 3],
                mode: PaddingMode::Constant,
            }),
        ]
    }

    proptest! {
        #[test]
        fn boxes_lie_within_their_image(
            size in (1..=4096u32, 1..=4096u32),
            chain in prop::collection::vec(transform(), 1..5),
            (seed, epoch, sample) in any::<(u64, u64, u64)>(),
        ) {
            let mut steps = Vec::new();
            let sample = Sample { size, draw: Draw { seed, epoch, sample }, view: 0, scale: 1, pixels_max: u64::MAX };
            plan(&chain, sample, &mut steps).expect("no limit");
            let mut source = size;
            for step in &steps {
                let Step::Resample(stage) = step else { panic!("only resamples") };
                prop_assert!(stage.source.is_within(source.0, source.1), "{stage:?} in {source:?}");
                prop_assert!(stage.resized.0 >= 1 && stage.resized.1 >= 1);
                prop_assert!(stage.window.width >= 1 && stage.window.height >= 1);
                if let Some(visible) = stage.visible {
                    let resized = Window::whole(stage.resized.0, stage.resized.1);
                    prop_assert_eq!(visible.common(resized), Some(visible));
                    prop_assert_eq!(visible.common(stage.window), Some(visible));
                }
                source = stage.output();
            }
        }
    }
}
