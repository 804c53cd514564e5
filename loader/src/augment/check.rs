//! Refuses lists of transforms that cannot be, with the way out, and finds the output size that they fix.

use super::philox::{LIST_LENGTH_MAX, NESTING_MAX};
use super::{OUTPUT_SIDE_MAX, geometry};
use crate::error::{Error, Result};
use crate::spec::{ResizeTo, Transform, WarpSpec};

/// Longest side of a blur's kernel.
const KERNEL_MAX: u32 = 1023;

/// Most operations of RandAugment.
const OPERATIONS_MAX: u32 = 64;

/// Largest factor of brightness and its like, which keeps sums exact enough to be worth having.
const FACTOR_MAX: f64 = 65_536.0;

/// Smallest and largest scale of an affine map.
const SCALES: [f64; 2] = [1.0 / 4096.0, 4096.0];

/// Checks the transforms of an image; returns the (height, width) that they fix.
pub fn check_list(transforms: &[Transform]) -> Result<[u32; 2]> {
    if transforms.len() > LIST_LENGTH_MAX {
        return Err(Error::config(format!(
            "a list has at most {LIST_LENGTH_MAX} transforms, got {}",
            transforms.len()
        )));
    }
    let mut size = None;
    let mut is_float = false;
    for transform in transforms {
        check(transform, 0)?;
        match transform {
            Transform::ToDtype { .. } if !is_float => is_float = true,
            Transform::Normalize { .. } if !is_float => {
                return Err(Error::config(
                    "Normalize needs floating-point values: put ToDtype(torch.float32, scale=True) before it",
                ));
            }
            Transform::Normalize { .. } | Transform::RandomErasing { .. } => {}
            _ if is_float => {
                return Err(Error::config(format!(
                    "only Normalize and RandomErasing may follow ToDtype, got {}: move ToDtype to the end",
                    name_of(transform)
                )));
            }
            _ => {}
        }
        size = size_after(transform, size)?;
    }
    size.ok_or_else(|| {
        let why = if transforms.iter().any(|transform| matches!(transform, Transform::Resize { .. })) {
            "Resize(n) fixes only the shorter side"
        } else {
            "no transform fixes the size"
        };
        Error::config(format!(
            "the rows of a batch need one size, but {why}: add CenterCrop(n) or RandomResizedCrop(n), or give Resize \
             both sides, Resize((height, width))"
        ))
    })
}

/// The (height, width) after a transform, where it is known before.
fn size_after(transform: &Transform, size: Option<[u32; 2]>) -> Result<Option<[u32; 2]>> {
    Ok(match *transform {
        Transform::RandomResizedCrop { size, .. }
        | Transform::CenterCrop { size }
        | Transform::RandomCrop { size, .. }
        | Transform::Resize { to: ResizeTo::Exact(size), .. } => Some(size),
        Transform::Resize { to: ResizeTo::ShortSide(short), .. } => {
            size.map(|[height, width]| short_side(height, width, short)).transpose()?
        }
        Transform::Pad { padding: [left, top, right, bottom], .. } => match size {
            Some([height, width]) => {
                let size = [height + top + bottom, width + left + right];
                check_sides("Pad", &size)?;
                Some(size)
            }
            None => None,
        },
        Transform::RandomApply { ref transforms, .. } => {
            let mut after = size;
            for transform in transforms {
                after = size_after(transform, after)?;
            }
            if after == size { size } else { None }
        }
        Transform::RandomChoice { ref transforms, .. } => {
            let first = size_after(&transforms[0], size)?;
            for transform in &transforms[1..] {
                if size_after(transform, size)? != first {
                    return Ok(None);
                }
            }
            first
        }
        _ => size,
    })
}

/// Output size of a resize of the shorter side, where the size before is fixed.
fn short_side(height: u32, width: u32, short: u32) -> Result<[u32; 2]> {
    let size = geometry::resized_size((width, height), ResizeTo::ShortSide(short));
    let (width, height) = size.map_err(|fault| Error::config(format!("Resize: {}", fault.message)))?;
    check_sides("Resize", &[height, width])?;
    Ok([height, width])
}

fn check_sides(name: &str, sides: &[u32]) -> Result<()> {
    match sides.iter().find(|side| !(1..=OUTPUT_SIDE_MAX).contains(*side)) {
        Some(side) => Err(Error::config(format!("{name}: a side must be 1 to {OUTPUT_SIDE_MAX} pixels, got {side}"))),
        None => Ok(()),
    }
}

fn name_of(transform: &Transform) -> String {
    let shown = format!("{transform:?}");
    shown.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// Refuses arguments that cannot be; `depth` lists are around.
fn check(transform: &Transform, depth: u32) -> Result<()> {
    let name = name_of(transform);
    let refuse = |words: String| Err(Error::config(format!("{name}: {words}")));
    // Every range and probability first, then what is particular.
    let numbers = Numbers { name: &name };
    match *transform {
        Transform::RandomResizedCrop { size, scale, ratio, .. } => {
            check_sides(&name, &size)?;
            let is_range = |[low, high]: [f64; 2]| low > 0.0 && low <= high && high.is_finite();
            if !is_range(scale) || !is_range(ratio) {
                return refuse(format!(
                    "scale and ratio are (low, high) with 0 < low <= high, got scale {scale:?}, ratio {ratio:?}"
                ));
            }
            Ok(())
        }
        Transform::Resize { to: ResizeTo::Exact(size), .. } | Transform::CenterCrop { size } => {
            check_sides(&name, &size)
        }
        Transform::Resize { to: ResizeTo::ShortSide(short), .. } => check_sides(&name, &[short]),
        Transform::RandomCrop { size, padding, .. } => {
            check_sides(&name, &size)?;
            check_padding(&name, padding)
        }
        Transform::Pad { padding, .. } => check_padding(&name, padding),
        Transform::RandomHorizontalFlip { p }
        | Transform::RandomVerticalFlip { p }
        | Transform::RandomGrayscale { p }
        | Transform::RandomEqualize { p }
        | Transform::RandomAutocontrast { p }
        | Transform::RandomInvert { p } => numbers.probability(p),
        Transform::ColorJitter { brightness, contrast, saturation, hue } => {
            for (word, range) in [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)] {
                range.map_or(Ok(()), |range| numbers.range(word, range, [0.0, FACTOR_MAX]))?;
            }
            hue.map_or(Ok(()), |range| numbers.range("hue", range, [-0.5, 0.5]))
        }
        Transform::GaussianBlur { kernel, sigma } => {
            if kernel.iter().any(|side| side % 2 == 0 || *side > KERNEL_MAX) {
                return refuse(format!("sides of a kernel are odd and at most {KERNEL_MAX}, got {kernel:?}"));
            }
            numbers.range("sigma", sigma, [f64::MIN_POSITIVE, 1e9])
        }
        Transform::RandomErasing { p, scale, ratio, value } => {
            numbers.probability(p)?;
            numbers.range("scale", scale, [0.0, 1.0])?;
            numbers.range("ratio", ratio, [f64::MIN_POSITIVE, 1e9])?;
            match value {
                Some(value) if !value.iter().all(|value| value.is_finite()) => {
                    refuse(format!("value is a finite number a channel, got {value:?}"))
                }
                _ => Ok(()),
            }
        }
        Transform::RandomSolarize { threshold, p } => {
            if !(0.0..=255.0).contains(&threshold) {
                return refuse(format!("threshold is at least 0 and at most 255, got {threshold}"));
            }
            numbers.probability(p)
        }
        Transform::RandomPosterize { bits, p } => {
            if bits > 8 {
                return refuse(format!("bits is 0 to 8, got {bits}"));
            }
            numbers.probability(p)
        }
        Transform::RandomAdjustSharpness { factor, p } => {
            if !(0.0..=FACTOR_MAX).contains(&factor) {
                return refuse(format!("sharpness_factor is not negative and at most {FACTOR_MAX}, got {factor}"));
            }
            numbers.probability(p)
        }
        Transform::RandomRotation { degrees, warp } => {
            numbers.range("degrees", degrees, [-1e9, 1e9])?;
            check_warp(&name, &warp)
        }
        Transform::RandomAffine { degrees, translate, scale, shear, warp } => {
            numbers.range("degrees", degrees, [-1e9, 1e9])?;
            for share in translate.into_iter().flatten() {
                numbers.range("translate", [0.0, share], [0.0, 1.0])?;
            }
            scale.map_or(Ok(()), |range| numbers.range("scale", range, SCALES))?;
            if let Some([low_x, high_x, low_y, high_y]) = shear {
                numbers.range("shear", [low_x, high_x], [-1e9, 1e9])?;
                numbers.range("shear", [low_y, high_y], [-1e9, 1e9])?;
            }
            check_warp(&name, &warp)
        }
        Transform::RandomPerspective { distortion, p, warp } => {
            numbers.range("distortion_scale", [0.0, distortion], [0.0, 1.0])?;
            numbers.probability(p)?;
            check_warp(&name, &warp)
        }
        Transform::AutoAugment { warp, .. } => check_warp(&name, &warp),
        Transform::RandAugment { operations, magnitude, bins, warp } => {
            if bins < 2 || magnitude >= bins || operations > OPERATIONS_MAX {
                return refuse(format!(
                    "magnitude is below num_magnitude_bins (at least 2), num_ops at most {OPERATIONS_MAX}, got magnitude \
                     {magnitude}, {bins} bins, {operations} operations"
                ));
            }
            check_warp(&name, &warp)
        }
        Transform::TrivialAugmentWide { bins, warp } => {
            if bins < 2 {
                return refuse(format!("num_magnitude_bins is at least 2, got {bins}"));
            }
            check_warp(&name, &warp)
        }
        Transform::RandomApply { ref transforms, p } => {
            check_nested(&name, transforms, depth)?;
            numbers.probability(p)
        }
        Transform::RandomChoice { ref transforms, ref p } => {
            check_nested(&name, transforms, depth)?;
            if p.len() != transforms.len() {
                return refuse(format!("one weight each, got {} transforms and {} weights", transforms.len(), p.len()));
            }
            if !p.iter().all(|weight| *weight >= 0.0 && weight.is_finite()) || p.iter().sum::<f64>() <= 0.0 {
                return refuse(format!("weights are not negative, and one is above 0, got {p:?}"));
            }
            Ok(())
        }
        Transform::ToDtype { .. } => Ok(()),
        Transform::Normalize { mean, std } => {
            if !mean.iter().all(|mean| mean.is_finite()) || !std.iter().all(|std| std.is_finite() && *std != 0.0) {
                return refuse(format!("mean and std are finite and std is not 0, got {mean:?} and {std:?}"));
            }
            Ok(())
        }
    }
}

/// Checks of numbers of one transform.
struct Numbers<'name> {
    name: &'name str,
}

impl Numbers<'_> {
    fn probability(&self, p: f64) -> Result<()> {
        if (0.0..=1.0).contains(&p) {
            return Ok(());
        }
        Err(Error::config(format!("{}: p is a probability, 0 to 1, got {p}", self.name)))
    }

    /// A range within another.
    fn range(&self, word: &str, [low, high]: [f64; 2], [least, most]: [f64; 2]) -> Result<()> {
        if least <= low && low <= high && high <= most {
            return Ok(());
        }
        Err(Error::config(format!(
            "{}: {word} is (low, high) with low <= high, within {least:e} to {most:e} (0 to 1 for shares), got ({low}, {high})",
            self.name
        )))
    }
}

fn check_padding(name: &str, padding: [u32; 4]) -> Result<()> {
    if let Some(side) = padding.iter().find(|side| **side > OUTPUT_SIDE_MAX) {
        return Err(Error::config(format!("{name}: padding is at most {OUTPUT_SIDE_MAX} pixels a side, got {side}")));
    }
    Ok(())
}

fn check_warp(name: &str, warp: &WarpSpec) -> Result<()> {
    match warp.center {
        Some(center) if !center.iter().all(|place| place.is_finite()) => {
            Err(Error::config(format!("{name}: center is (x, y), finite, got {center:?}")))
        }
        _ => Ok(()),
    }
}

fn check_nested(name: &str, transforms: &[Transform], depth: u32) -> Result<()> {
    let refuse = |words: String| Err(Error::config(format!("{name}: {words}")));
    if depth == NESTING_MAX {
        return refuse(format!("lists of transforms are at most {NESTING_MAX} deep"));
    }
    if transforms.is_empty() || transforms.len() > LIST_LENGTH_MAX {
        return refuse(format!("at least one transform and at most {LIST_LENGTH_MAX}, got {}", transforms.len()));
    }
    for transform in transforms {
        if matches!(transform, Transform::ToDtype { .. } | Transform::Normalize { .. }) {
            return refuse(format!("{} is for every row: it cannot be within another transform", name_of(transform)));
        }
        check(transform, depth + 1)?;
    }
    Ok(())
}
