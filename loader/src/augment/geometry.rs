//! Where each output pixel comes from, for what a resample can do: boxes, sizes, windows, mirrors.
//!
//! Pure arithmetic, the same on every CPU: IEEE operations, and `libm` for exp and log. Semantics are those of
//! torchvision's transforms v2.

use serde::Serialize;

use crate::decode::Region;
use crate::error::{FaultClass, SampleFault};
use crate::spec::{Channels, PaddingMode, Resampling, ResizeTo};

use super::philox::{OperationStream, below, uniform};

/// Attempts of RandomResizedCrop at a box that fits, before it falls back to the middle.
const CROP_ATTEMPTS: u64 = 10;

/// Longest side that a resize may ask for, before its window is cut out.
const SIDE_MAX: u64 = 1 << 30;

/// A rectangle in a resized image, which may reach beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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
    /// The whole of an image of this size.
    pub fn whole(width: u32, height: u32) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// What both have in common.
    pub fn common(self, other: Self) -> Option<Self> {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stage {
    /// Part of the source image (for the first stage the decoded one, then the output of the stage before).
    pub source: Region,
    /// (width, height) that the region is resized to.
    pub resized: (u32, u32),
    /// The output, in coordinates of the resized region, before mirroring.
    pub window: Window,
    /// Where the output has pixels; elsewhere it has the colour `fill`. `None`: it is all padding.
    pub visible: Option<Window>,
    /// Colour of the padding.
    pub fill: Channels,
    /// Whether the output is mirrored left to right.
    pub mirrored: bool,
    /// Whether the output is mirrored top to bottom.
    pub upside_down: bool,
    /// How pixels are mixed.
    pub resampling: Resampling,
}

impl Stage {
    /// An image as it is.
    pub fn of_image(width: u32, height: u32) -> Self {
        let whole = Window::whole(width, height);
        let source = Region::whole(width, height);
        Self {
            source,
            resized: (width, height),
            window: whole,
            visible: Some(whole),
            fill: [0; 3],
            mirrored: false,
            upside_down: false,
            resampling: Resampling::Bilinear,
        }
    }

    /// (width, height) of the output.
    pub fn output(&self) -> (u32, u32) {
        (self.window.width, self.window.height)
    }

    /// Whether it gives its source, which is the whole of an image of this size, back.
    pub fn is_identity(&self, width: u32, height: u32) -> bool {
        *self == Self { fill: self.fill, resampling: self.resampling, ..Self::of_image(width, height) }
    }

    /// Whether it only crops, so that another crop or a resize can join it.
    pub fn is_plain(&self) -> bool {
        self.resized == (self.source.width, self.source.height) && self.visible == Some(self.window)
    }

    /// Whether narrowing it to `inner` is possible: its padding has one colour.
    pub fn can_narrow(&self, inner: Window, fill: Channels) -> bool {
        let (width, height) = self.output();
        self.visible == Some(self.window)
            || self.fill == fill
            || inner.common(Window::whole(width, height)) == Some(inner)
    }

    /// Narrows the output to a window given in the output's coordinates; where that reaches beyond, it is padded with
    /// `fill`.
    pub fn narrow(&mut self, inner: Window, fill: Channels) {
        if self.visible == Some(self.window) {
            self.fill = fill;
        }
        let left =
            if self.mirrored { i64::from(self.window.width) - inner.left - i64::from(inner.width) } else { inner.left };
        let top = if self.upside_down {
            i64::from(self.window.height) - inner.top - i64::from(inner.height)
        } else {
            inner.top
        };
        let window = Window { left: self.window.left + left, top: self.window.top + top, ..inner };
        self.window = window;
        self.visible = self.visible.and_then(|visible| visible.common(window));
    }

    /// Resizes the output of a plain stage.
    pub fn resize(&mut self, width: u32, height: u32, resampling: Resampling) {
        self.resampling = resampling;
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

/// The box of RandomResizedCrop. One block of random words an attempt: area, ratio, top, left.
pub fn random_box((width, height): (u32, u32), scale: [f64; 2], ratio: [f64; 2], stream: OperationStream) -> Window {
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
pub fn center(length: u32, crop: u32) -> i64 {
    if crop > length {
        -i64::from((crop - length) / 2)
    } else {
        (f64::from(length - crop) / 2.0).round_ties_even() as i64
    }
}

/// The window of RandomCrop in an image of `width` x `height`, which may reach beyond it: with `padding` (left, top,
/// right, bottom) added, and twice what is still missing with `pad_if_needed`, as torchvision does. Words: top, left.
pub fn random_window(
    (width, height): (u32, u32),
    [to_height, to_width]: [u32; 2],
    padding: [u32; 4],
    pad_if_needed: bool,
    stream: OperationStream,
) -> Result<Window, SampleFault> {
    let words = stream.block(0);
    let [left, top, right, bottom] = padding;
    let place = |length: u32, before: u32, after: u32, crop: u32, word: u64| {
        let mut before = i64::from(before);
        let mut padded = i64::from(length) + before + i64::from(after);
        let missing = i64::from(crop) - padded;
        if missing > 0 {
            if !pad_if_needed {
                return Err(padded);
            }
            before += missing;
            padded += 2 * missing;
        }
        // Sides and paddings are limited, so this fits.
        Ok(i64::from(below(word, (padded - i64::from(crop) + 1) as u32)) - before)
    };
    let too_small = |padded: i64| {
        let message = format!(
            "RandomCrop takes {to_width}x{to_height} pixels, the image has {width}x{height}, one side {padded} with its \
             padding: give pad_if_needed=True, or Resize first"
        );
        SampleFault::new(FaultClass::Unsupported, message)
    };
    let top = place(height, top, bottom, to_height, words[0]).map_err(too_small)?;
    let left = place(width, left, right, to_width, words[1]).map_err(too_small)?;
    Ok(Window { left, top, width: to_width, height: to_height })
}

/// The pixel of a length of `length` that a border shows at `place`, which may lie outside.
pub fn border(place: i64, length: u32, mode: PaddingMode) -> u32 {
    let length = i64::from(length);
    let pixel = match mode {
        PaddingMode::Constant | PaddingMode::Edge => place.clamp(0, length - 1),
        PaddingMode::Reflect if length == 1 => 0,
        PaddingMode::Reflect => {
            let turn = place.rem_euclid(2 * (length - 1));
            turn.min(2 * (length - 1) - turn)
        }
        PaddingMode::Symmetric => {
            let turn = place.rem_euclid(2 * length);
            turn.min(2 * length - 1 - turn)
        }
    };
    pixel as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::philox::Draw;
    use super::*;

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
    fn narrow_images_fall_back_to_the_middle() {
        assert_eq!(middle_box((1, 1024), [0.75, 4.0 / 3.0]), Window { left: 0, top: 511, width: 1, height: 1 });
        assert_eq!(middle_box((1024, 1), [0.75, 4.0 / 3.0]), Window { left: 511, top: 0, width: 1, height: 1 });
        assert_eq!(middle_box((1, 1), [10.0, 20.0]), Window::whole(1, 1));
    }

    #[test]
    fn borders_are_those_of_numpy_pad() {
        let check = |mode, expected: [u32; 9]| {
            let found: Vec<u32> = (-3..6).map(|place| border(place, 3, mode)).collect();
            assert_eq!(found, expected, "{mode:?}");
            assert_eq!(border(-2, 1, mode), 0);
        };
        check(PaddingMode::Edge, [0, 0, 0, 0, 1, 2, 2, 2, 2]);
        check(PaddingMode::Reflect, [1, 2, 1, 0, 1, 2, 1, 0, 1]);
        check(PaddingMode::Symmetric, [2, 1, 0, 0, 1, 2, 2, 1, 0]);
    }

    #[test]
    fn crops_lie_within_the_padded_image() {
        let stream = |sample| Draw { seed: 1, epoch: 0, sample }.operation(0);
        for sample in 0..200 {
            let window = random_window((32, 20), [32, 32], [4; 4], true, stream(sample)).expect("padded");
            assert!((-4..=4).contains(&window.left), "{window:?}");
            // 32 - (20 + 8) = 4 are missing, so 8 are added on each side.
            assert!((-8..=-4).contains(&window.top), "{window:?}");
        }
        let fault = random_window((32, 20), [32, 32], [4; 4], false, stream(0)).expect_err("28 rows");
        assert!(fault.message.contains("one side 28"), "{fault}");
    }

    proptest! {
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
