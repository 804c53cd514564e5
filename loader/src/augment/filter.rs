//! Operations that mix neighbours: a Gaussian blur, and a sharpness.
//!
//! The blur is two passes of whole numbers: along the rows to 8.6 bits, then along the columns. Each product of a weight is
//! rounded to 16 bits, which processors do sixteen at a time; 12 such roundings of a 64th are far below the half that a value
//! may move by.

use super::geometry::border;
use crate::spec::PaddingMode;
#[cfg(target_arch = "x86_64")]
use crate::sys::simd::Avx2;
use crate::sys::simd::{Path, to_byte};

/// Bits after the point of a weight, and of a value between the passes. All weights add up to one, so that sums fit 16 bits.
const WEIGHT_BITS: u32 = 15;
const VALUE_BITS: u32 = 6;

/// Values of a row that are summed up at once, in registers.
const GROUP: usize = 32;

/// Weights and rows, kept from image to image.
#[derive(Debug, Default)]
pub struct FilterMemory {
    /// Weights along the rows: of the middle, and of each distance from it.
    across: Vec<i16>,
    /// Weights along the columns.
    down: Vec<i16>,
    scratch: Vec<f64>,
    /// One row with its borders, in values of the first pass.
    padded: Vec<i16>,
    /// The image after the first pass, in rows of whole groups.
    between: Vec<i16>,
    /// Where the rows start that a row is made of.
    starts: Vec<usize>,
    /// A row that is being made, of whole groups.
    made: Vec<u8>,
    /// Sums of three values of a column.
    sums: Vec<u16>,
}

impl FilterMemory {
    /// Weights for a kernel of (columns, rows), as torchvision's: the exponential is taken at steps that are shorter
    /// than a pixel by the square root of two, which is the Gaussian's 2 in the exponent.
    pub fn prepare_blur(&mut self, [columns, rows]: [u32; 2], sigma: f64, (width, height): (u32, u32)) {
        for (weights, side) in [(&mut self.across, columns), (&mut self.down, rows)] {
            weigh(weights, &mut self.scratch, side / 2, sigma);
        }
        let stride = stride(width);
        self.padded.clear();
        self.padded.resize(stride + 6 * self.across.len(), 0);
        self.between.resize(stride * height as usize, 0);
        self.made.resize(stride, 0);
    }
}

/// Values of a row of whole groups.
fn stride(width: u32) -> usize {
    (3 * width as usize).next_multiple_of(GROUP)
}

fn weigh(weights: &mut Vec<i16>, scratch: &mut Vec<f64>, radius: u32, sigma: f64) {
    scratch.clear();
    scratch.extend((0..=radius).map(|distance| {
        let deviations = f64::from(distance) / sigma;
        libm::exp(-0.5 * deviations * deviations)
    }));
    let sum = scratch[0] + 2.0 * scratch[1..].iter().sum::<f64>();
    let one = f64::from(1_u32 << WEIGHT_BITS);
    weights.clear();
    weights.extend(scratch.iter().map(|weight| (weight / sum * one).round_ties_even() as i16));
    // The middle takes what rounding left; a weight of one does not fit by one unit.
    let others = weights[1..].iter().map(|&weight| i32::from(weight)).sum::<i32>();
    weights[0] = ((1 << WEIGHT_BITS) - 2 * others).min(i32::from(i16::MAX)) as i16;
}

/// Blurs an RGB image with borders that reflect, by the weights prepared for its size.
pub fn blur(path: Path, source: &[u8], target: &mut [u8], size: (u32, u32), memory: &mut FilterMemory) {
    match path {
        Path::Portable => blur_by(source, target, size, memory, weighted_sum),
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => {
            let avx2 = Avx2::found().expect("a path that this processor has");
            path.run(|| {
                let sum =
                    |weights: &_, values: &_, starts: &_, place| avx2.weighted_sum(weights, values, starts, place);
                blur_by(source, target, size, memory, sum);
            });
        }
    }
}

#[inline(always)]
fn blur_by(
    source: &[u8],
    target: &mut [u8],
    (width, height): (u32, u32),
    memory: &mut FilterMemory,
    weighted_sum: impl Fn(&[i16], &[i16], &[usize], usize) -> [i16; GROUP],
) {
    let (row_bytes, stride) = (3 * width as usize, stride(width));
    let FilterMemory { across, down, padded, between, starts, made, .. } = memory;
    let radius = across.len() - 1;
    starts.clear();
    starts.extend((0..=2 * radius).map(|pixel| 3 * pixel));
    for (row, sums) in source.chunks_exact(row_bytes).zip(between.chunks_exact_mut(stride)) {
        pad_row(row, padded, radius);
        for (place, sums) in (0..stride).step_by(GROUP).zip(sums.as_chunks_mut::<GROUP>().0) {
            *sums = weighted_sum(across, padded, starts, place);
        }
    }
    let radius = down.len() as i64 - 1;
    for (row, target) in target.chunks_exact_mut(row_bytes).enumerate() {
        let start = |distance| border(row as i64 + distance, height, PaddingMode::Reflect) as usize * stride;
        starts.clear();
        starts.extend((-radius..=radius).map(start));
        for (place, bytes) in (0..stride).step_by(GROUP).zip(made.as_chunks_mut::<GROUP>().0) {
            let sums = weighted_sum(down, between, starts, place);
            for (byte, sum) in bytes.iter_mut().zip(sums) {
                *byte = ((sum + (1 << (VALUE_BITS - 1))) >> VALUE_BITS).clamp(0, 255) as u8;
            }
        }
        target.copy_from_slice(&made[..row_bytes]);
    }
}

/// A row with `radius` pixels more at each end.
#[inline(always)]
fn pad_row(row: &[u8], padded: &mut [i16], radius: usize) {
    let widened = |byte: u8| i16::from(byte) << VALUE_BITS;
    let width = (row.len() / 3) as u32;
    for (value, &byte) in padded[3 * radius..].iter_mut().zip(row) {
        *value = widened(byte);
    }
    let pixels = row.as_chunks::<3>().0;
    for distance in 1..=radius {
        let left = pixels[border(-(distance as i64), width, PaddingMode::Reflect) as usize];
        let right = pixels[border(i64::from(width) - 1 + distance as i64, width, PaddingMode::Reflect) as usize];
        padded[3 * (radius - distance)..][..3].copy_from_slice(&left.map(widened));
        padded[3 * (radius + distance - 1) + row.len()..][..3].copy_from_slice(&right.map(widened));
    }
}

/// Of groups of `values`, which start at `place` plus each of `starts`, the middle one times the first weight, and the sum
/// of the two at each distance from it times the next.
#[inline(always)]
fn weighted_sum(weights: &[i16], values: &[i16], starts: &[usize], place: usize) -> [i16; GROUP] {
    let radius = weights.len() - 1;
    let group = |index: usize| &values[starts[index] + place..][..GROUP];
    let mut sums = [0; GROUP];
    for (sum, &value) in sums.iter_mut().zip(group(radius)) {
        *sum = product(value, weights[0]);
    }
    for (distance, &weight) in weights.iter().enumerate().skip(1) {
        for ((sum, &before), &after) in sums.iter_mut().zip(group(radius - distance)).zip(group(radius + distance)) {
            *sum += product(before + after, weight);
        }
    }
    sums
}

/// `value` times a weight, rounded.
#[inline(always)]
fn product(value: i16, weight: i16) -> i16 {
    ((((i32::from(value) * i32::from(weight)) >> (WEIGHT_BITS - 1)) + 1) >> 1) as i16
}

/// `factor` times each value and 1 - `factor` times the mean of its neighbourhood, in which it counts five times; the
/// outermost pixels stay, and so do images of less than three pixels a side.
#[inline(always)]
pub fn sharpness(
    source: &[u8],
    target: &mut [u8],
    (width, height): (u32, u32),
    factor: f32,
    memory: &mut FilterMemory,
) {
    target.copy_from_slice(source);
    if width < 3 || height < 3 {
        return;
    }
    let share = (1.0 - f64::from(factor)) as f32;
    let row_bytes = 3 * width as usize;
    let inner = row_bytes - 6;
    let sums = &mut memory.sums;
    sums.resize(row_bytes, 0);
    for row in 1..height as usize - 1 {
        let rows = &source[(row - 1) * row_bytes..][..3 * row_bytes];
        let (above, rest) = rows.split_at(row_bytes);
        let (middle, below) = rest.split_at(row_bytes);
        for (((sum, &above), &middle), &below) in sums.iter_mut().zip(above).zip(middle).zip(below) {
            *sum = u16::from(above) + u16::from(middle) + u16::from(below);
        }
        let target = &mut target[row * row_bytes + 3..][..inner];
        let (left, centre, right, middle) = (&sums[..inner], &sums[3..][..inner], &sums[6..][..inner], &middle[3..]);
        for index in 0..inner {
            let value = f32::from(middle[index]);
            let total = left[index] + centre[index] + right[index] + 4 * u16::from(middle[index]);
            // No thirteenth is next to a half, so the float rounds as whole numbers would.
            let mean = f32::from(to_byte(f32::from(total) * (1.0 / 13.0) + 0.5));
            target[index] = to_byte(value + (mean - value) * share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_one() {
        for radius in [0, 1, 2, 11, 31, 255] {
            for sigma in [0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 1e6] {
                let mut weights = Vec::new();
                weigh(&mut weights, &mut Vec::new(), radius, sigma);
                let others = weights[1..].iter().map(|&weight| i32::from(weight)).sum::<i32>();
                let sum = i32::from(weights[0]) + 2 * others;
                assert!((0..=1).contains(&((1 << WEIGHT_BITS) - sum)), "{radius} {sigma}: {weights:?}");
                // Nothing wrapped around: the middle is about the largest.
                assert!(weights.iter().all(|&weight| weight >= 0), "{radius} {sigma}: {weights:?}");
            }
        }
    }

    #[test]
    fn one_colour_stays() {
        for value in [0, 1, 254, 255] {
            for size in [(1, 1), (2, 5), (40, 3)] {
                let source = vec![value; 3 * (size.0 * size.1) as usize];
                let mut target = source.clone();
                let mut memory = FilterMemory::default();
                memory.prepare_blur([9, 5], 1.7, size);
                target.fill(7);
                blur(Path::best(), &source, &mut target, size, &mut memory);
                assert_eq!(target, source);
                sharpness(&source, &mut target, size, 3.0, &mut memory);
                assert_eq!(target, source);
            }
        }
    }
}
