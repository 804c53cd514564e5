//! Where each output pixel comes from: transforms, the image's size and a sample's random streams become boxes.
//!
//! Pure arithmetic, the same on every CPU: IEEE operations, and `libm` for exp and log. Semantics are those of
//! torchvision's transforms v2. A chain of transforms is folded into as few [`Stage`]s as possible, each one resample:
//! crops and flips never cost a pass, and what later transforms cut away is never computed.

use crate::decode::Region;
use crate::error::{FaultClass, SampleFault};
use crate::spec::{ResizeTo, Transform};

use super::philox::{Draw, OperationStream, below, uniform, unit};

/// Attempts of RandomResizedCrop at a box that fits, before it falls back to the middle.
const CROP_ATTEMPTS: u64 = 10;

/// Longest side that a resize may ask for, before its window is cut out.
const SIDE_MAX: u64 = 1 << 30;

/// A rectangle in a resized image, which may reach beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First column; negative where the output is padded.
    pub left: i64,
    /// First row.
    pub top: i64,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Window {
    fn whole(width: u32, height: u32) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// What both have in common.
    fn common(self, other: Self) -> Option<Self> {
        let left = self.left.max(other.left);
        let top = self.top.max(other.top);
        let right = (self.left + i64::from(self.width)).min(other.left + i64::from(other.width));
        let bottom = (self.top + i64::from(self.height)).min(other.top + i64::from(other.height));
        let width = u32::try_from(right - left).ok().filter(|&width| width > 0)?;
        let height = u32::try_from(bottom - top).ok().filter(|&height| height > 0)?;
        Some(Self { left, top, width, height })
    }
}

/// One resample: a region of the source is resized, a window of the result is kept, perhaps mirrored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Part of the source image (for the first stage the decoded one, then the output of the stage before).
    pub source: Region,
    /// (width, height) that the region is resized to.
    pub resized: (u32, u32),
    /// The output, in coordinates of the resized region, before mirroring.
    pub window: Window,
    /// Where the output has pixels; elsewhere it is zero. `None`: it is all padding.
    pub visible: Option<Window>,
    /// Whether the output is mirrored left to right.
    pub mirrored: bool,
}

impl Stage {
    /// An image as it is.
    fn of_image(width: u32, height: u32) -> Self {
        let whole = Window::whole(width, height);
        let source = Region::whole(width, height);
        Self { source, resized: (width, height), window: whole, visible: Some(whole), mirrored: false }
    }

    /// (width, height) of the output.
    pub fn output(&self) -> (u32, u32) {
        (self.window.width, self.window.height)
    }

    /// Whether it only crops, so that another crop or a resize can join it.
    fn is_plain(&self) -> bool {
        self.resized == (self.source.width, self.source.height) && self.visible == Some(self.window)
    }

    /// Narrows the output to a window given in the output's coordinates.
    fn narrow(&mut self, inner: Window) {
        let left =
            if self.mirrored { i64::from(self.window.width) - inner.left - i64::from(inner.width) } else { inner.left };
        let window = Window { left: self.window.left + left, top: self.window.top + inner.top, ..inner };
        self.window = window;
        self.visible = self.visible.and_then(|visible| visible.common(window));
    }

    /// Resizes the output of a plain stage.
    fn resize(&mut self, width: u32, height: u32) {
        // A plain window lies within the source.
        self.source = Region {
            left: self.source.left + self.window.left as u32,
            top: self.source.top + self.window.top as u32,
            width: self.window.width,
            height: self.window.height,
        };
        self.resized = (width, height);
        self.window = Window::whole(width, height);
        self.visible = Some(self.window);
    }
}

/// Appends to `stages` what `transforms` make of an image of `width` x `height`. At least one stage.
pub fn plan(
    transforms: &[Transform],
    (width, height): (u32, u32),
    draw: Draw,
    pixels_max: u64,
    stages: &mut Vec<Stage>,
) -> Result<(), SampleFault> {
    stages.clear();
    let mut stage = Stage::of_image(width, height);
    for (index, transform) in transforms.iter().enumerate() {
        let stream = draw.operation(index);
        let (width, height) = stage.output();
        match *transform {
            Transform::RandomResizedCrop { size: [to_height, to_width], scale, ratio } => {
                let crop = random_box((width, height), scale, ratio, stream);
                if !stage.is_plain() {
                    stages.push(stage);
                    stage = Stage::of_image(width, height);
                }
                stage.narrow(crop);
                stage.resize(to_width, to_height);
            }
            Transform::Resize { to } => {
                let (to_width, to_height) = resized_size((width, height), to)?;
                if (to_width, to_height) != (width, height) {
                    if !stage.is_plain() {
                        stages.push(stage);
                        stage = Stage::of_image(width, height);
                    }
                    stage.resize(to_width, to_height);
                }
            }
            Transform::CenterCrop { size: [to_height, to_width] } => {
                stage.narrow(Window {
                    left: center(width, to_width),
                    top: center(height, to_height),
                    width: to_width,
                    height: to_height,
                });
            }
            Transform::RandomHorizontalFlip { p } => stage.mirrored ^= unit(stream.block(0)[0]) < p,
        }
    }
    stages.push(stage);
    narrow_to_need(stages);
    check_stages(stages, pixels_max)
}

/// Makes every stage compute only what the next one reads.
fn narrow_to_need(stages: &mut [Stage]) {
    for index in (1..stages.len()).rev() {
        let need = stages[index].source;
        stages[index - 1].narrow(Window {
            left: need.left.into(),
            top: need.top.into(),
            width: need.width,
            height: need.height,
        });
        stages[index].source = Region::whole(need.width, need.height);
    }
}

/// Refuses intermediate images over the limit; the last stage's size is the job's own.
fn check_stages(stages: &[Stage], pixels_max: u64) -> Result<(), SampleFault> {
    for stage in &stages[..stages.len() - 1] {
        let (width, height) = stage.output();
        let pixels = u64::from(width) * u64::from(height);
        if pixels > pixels_max {
            let message =
                format!("a transform makes {width}x{height} = {pixels} pixels, the limit is {pixels_max} (max_pixels)");
            return Err(SampleFault::new(FaultClass::TooLarge, message));
        }
    }
    Ok(())
}

/// The box of RandomResizedCrop. One block of random words an attempt: area, ratio, top, left.
fn random_box((width, height): (u32, u32), scale: [f64; 2], ratio: [f64; 2], stream: OperationStream) -> Window {
    let area = f64::from(width) * f64::from(height);
    let log_ratio = [libm::log(ratio[0]), libm::log(ratio[1])];
    for attempt in 0..CROP_ATTEMPTS {
        let words = stream.block(attempt);
        let target_area = area * uniform(words[0], scale[0], scale[1]);
        let aspect = libm::exp(uniform(words[1], log_ratio[0], log_ratio[1]));
        let crop_width = (target_area * aspect).sqrt().round_ties_even();
        let crop_height = (target_area / aspect).sqrt().round_ties_even();
        if crop_width >= 1.0 && crop_width <= width.into() && crop_height >= 1.0 && crop_height <= height.into() {
            let (crop_width, crop_height) = (crop_width as u32, crop_height as u32);
            let top = below(words[2], height - crop_height + 1);
            let left = below(words[3], width - crop_width + 1);
            return Window { left: left.into(), top: top.into(), width: crop_width, height: crop_height };
        }
    }
    middle_box((width, height), ratio)
}

/// The largest middle box within the bounds of the ratio.
fn middle_box((width, height): (u32, u32), ratio: [f64; 2]) -> Window {
    let in_ratio = f64::from(width) / f64::from(height);
    let side = |length: f64, longest: u32| length.round_ties_even().clamp(1.0, longest.into()) as u32;
    let (crop_width, crop_height) = if in_ratio < ratio[0] {
        (width, side(f64::from(width) / ratio[0], height))
    } else if in_ratio > ratio[1] {
        (side(f64::from(height) * ratio[1], width), height)
    } else {
        (width, height)
    };
    Window {
        left: ((width - crop_width) / 2).into(),
        top: ((height - crop_height) / 2).into(),
        width: crop_width,
        height: crop_height,
    }
}

/// (width, height) of a resize; the longer side is cut to whole pixels, and no side vanishes.
pub fn resized_size((width, height): (u32, u32), to: ResizeTo) -> Result<(u32, u32), SampleFault> {
    let (to_width, to_height) = match to {
        ResizeTo::Exact([to_height, to_width]) => (u64::from(to_width), u64::from(to_height)),
        ResizeTo::ShortSide(short) => {
            let long = |of: u32, beside: u32| (f64::from(short) * f64::from(of) / f64::from(beside)) as u64;
            if width <= height { (short.into(), long(height, width)) } else { (long(width, height), short.into()) }
        }
    };
    if to_width.max(to_height) > SIDE_MAX {
        let message = format!("{width}x{height} resized to {to_width}x{to_height}: the longest side is {SIDE_MAX}");
        return Err(SampleFault::new(FaultClass::TooLarge, message));
    }
    Ok((to_width.max(1) as u32, to_height.max(1) as u32))
}

/// Where a centred crop of `crop` pixels starts in `length` pixels; negative where it pads.
fn center(length: u32, crop: u32) -> i64 {
    if crop > length {
        -i64::from((crop - length) / 2)
    } else {
        (f64::from(length - crop) / 2.0).round_ties_even() as i64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DRAW: Draw = Draw { seed: 11, epoch: 0, sample: 7 };

    fn random_resized_crop(size: u32) -> Transform {
        Transform::RandomResizedCrop { size: [size; 2], scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }
    }

    fn stages(transforms: &[Transform], size: (u32, u32)) -> Vec<Stage> {
        let mut stages = Vec::new();
        plan(transforms, size, DRAW, 1 << 28, &mut stages).expect("within the limits");
        stages
    }

    fn check_resized(size: (u32, u32), to: ResizeTo, expected: (u32, u32)) {
        assert_eq!(resized_size(size, to).expect("within the limits"), expected, "{size:?} to {to:?}");
    }

    #[test]
    fn resize_keeps_the_ratio_and_rounds_down() {
        check_resized((500, 375), ResizeTo::ShortSide(256), (341, 256));
        check_resized((375, 500), ResizeTo::ShortSide(256), (256, 341));
        check_resized((256, 256), ResizeTo::ShortSide(256), (256, 256));
        check_resized((1, 1024), ResizeTo::ShortSide(256), (256, 262_144));
        check_resized((1024, 1), ResizeTo::Exact([224, 224]), (224, 224));
        assert!(resized_size((1, 60_000_000), ResizeTo::ShortSide(256)).is_err());
    }

    #[test]
    fn centre_rounds_half_to_even_and_pads() {
        for (length, crop, expected) in
            [(341, 224, 58), (227, 224, 2), (225, 224, 0), (224, 224, 0), (223, 224, 0), (221, 224, -1), (1, 4, -1)]
        {
            assert_eq!(center(length, crop), expected, "{crop} in {length}");
        }
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
        let chain = [Transform::Resize { to: ResizeTo::ShortSide(256) }, Transform::CenterCrop { size: [224, 224] }];
        let found = stages(&chain, (500, 375));
        let window = Window { left: 58, top: 16, width: 224, height: 224 };
        let expected = Stage {
            source: Region::whole(500, 375),
            resized: (341, 256),
            window,
            visible: Some(window),
            mirrored: false,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_resample_after_a_resample_reads_only_what_it_needs() {
        let found = stages(&[Transform::Resize { to: ResizeTo::ShortSide(512) }, random_resized_crop(224)], (500, 375));
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
    fn narrow_images_fall_back_to_the_middle() {
        assert_eq!(middle_box((1, 1024), [0.75, 4.0 / 3.0]), Window { left: 0, top: 511, width: 1, height: 1 });
        assert_eq!(middle_box((1024, 1), [0.75, 4.0 / 3.0]), Window { left: 511, top: 0, width: 1, height: 1 });
        assert_eq!(middle_box((1, 1), [10.0, 20.0]), Window::whole(1, 1));
    }

    fn transform() -> impl Strategy<Value = Transform> {
        let side = 1..600u32;
        prop_oneof![
            (side.clone(), side.clone(), 0.001..1.0f64, 0.05..1.0f64).prop_map(|(height, width, area, ratio)| {
                Transform::RandomResizedCrop { size: [height, width], scale: [area, 1.0], ratio: [ratio, 1.0 / ratio] }
            }),
            side.clone().prop_map(|short| Transform::Resize { to: ResizeTo::ShortSide(short) }),
            (side.clone(), side.clone())
                .prop_map(|(height, width)| Transform::Resize { to: ResizeTo::Exact([height, width]) }),
            (side.clone(), side).prop_map(|(height, width)| Transform::CenterCrop { size: [height, width] }),
            (0.0..1.0f64).prop_map(|p| Transform::RandomHorizontalFlip { p }),
        ]
    }

    proptest! {
        #[test]
        fn boxes_lie_within_their_image(
            size in (1..=4096u32, 1..=4096u32),
            chain in prop::collection::vec(transform(), 1..5),
            (seed, epoch, sample) in any::<(u64, u64, u64)>(),
        ) {
            let mut stages = Vec::new();
            let limit = u64::MAX;
            plan(&chain, size, Draw { seed, epoch, sample }, limit, &mut stages).expect("no limit");
            let mut source = size;
            for stage in &stages {
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

        #[test]
        fn random_boxes_keep_to_their_image(
            size in (1..=4096u32, 1..=4096u32),
            (seed, sample) in any::<(u64, u64)>(),
        ) {
            let stream = Draw { seed, epoch: 0, sample }.operation(0);
            let crop = random_box(size, [0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0], stream);
            prop_assert_eq!(crop.common(Window::whole(size.0, size.1)), Some(crop));
        }
    }
}
