//! Operations that mix neighbours: a Gaussian blur, and a sharpness.
//!
//! The blur is two passes of 16-bit weights, whole numbers only: along the rows to 8.8 bits, then along the columns.

use super::geometry::border;
use crate::spec::PaddingMode;
use crate::sys::simd::to_byte;

/// Bits after the point of a weight. All weights add up to one exactly, so that sums of 8.8-bit values fit 32 bits.
const WEIGHT_BITS: u32 = 16;

/// Weights and rows, kept from image to image.
#[derive(Debug, Default)]
pub struct FilterMemory {
    /// Weights along the rows: of the middle, and of each distance from it.
    across: Vec<u32>,
    /// Weights along the columns.
    down: Vec<u32>,
    scratch: Vec<f64>,
    /// One row with its borders.
    padded: Vec<u8>,
    /// The image after the first pass.
    between: Vec<u16>,
    /// Sums of one row that is being made.
    totals: Vec<u32>,
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
        let stride = 3 * width as usize;
        self.padded.clear();
        self.padded.resize(stride + 6 * self.across.len(), 0);
        self.between.resize(stride * height as usize, 0);
        self.totals.resize(stride, 0);
    }
}

fn weigh(weights: &mut Vec<u32>, scratch: &mut Vec<f64>, radius: u32, sigma: f64) {
    scratch.clear();
    scratch.extend((0..=radius).map(|distance| {
        let deviations = f64::from(distance) / sigma;
        libm::exp(-0.5 * deviations * deviations)
    }));
    let sum = scratch[0] + 2.0 * scratch[1..].iter().sum::<f64>();
    let one = f64::from(1_u32 << WEIGHT_BITS);
    weights.clear();
    weights.extend(scratch.iter().map(|weight| (weight / sum * one).round_ties_even() as u32));
    // The middle takes what rounding left, a few units at most.
    weights[0] = (1 << WEIGHT_BITS) - 2 * weights[1..].iter().sum::<u32>();
}

/// Blurs an RGB image with borders that reflect, by the weights prepared for its size.
#[inline(always)]
pub fn blur(source: &[u8], target: &mut [u8], (width, height): (u32, u32), memory: &mut FilterMemory) {
    let row_bytes = 3 * width as usize;
    let stride = row_bytes;
    let FilterMemory { across, down, padded, between, totals, .. } = memory;
    let radius = across.len() - 1;
    for (row, sums) in source.chunks_exact(row_bytes).zip(between.chunks_exact_mut(stride)) {
        pad_row(row, padded, radius);
        blur_row(across, padded, totals, sums);
    }
    for (row, target) in target.chunks_exact_mut(row_bytes).enumerate() {
        let line = |distance: i64| {
            let row = border(row as i64 + distance, height, PaddingMode::Reflect) as usize;
            &between[row * stride..][..stride]
        };
        blur_column(down, line, totals, target);
    }
}

/// A row with `radius` pixels more at each end.
#[inline(always)]
fn pad_row(row: &[u8], padded: &mut [u8], radius: usize) {
    let width = (row.len() / 3) as u32;
    padded[3 * radius..][..row.len()].copy_from_slice(row);
    let pixels = row.as_chunks::<3>().0;
    for distance in 1..=radius {
        let left = pixels[border(-(distance as i64), width, PaddingMode::Reflect) as usize];
        let right = pixels[border(i64::from(width) - 1 + distance as i64, width, PaddingMode::Reflect) as usize];
        padded[3 * (radius - distance)..][..3].copy_from_slice(&left);
        padded[3 * (radius + distance - 1) + row.len()..][..3].copy_from_slice(&right);
    }
}

#[inline(always)]
fn blur_row(weights: &[u32], padded: &[u8], totals: &mut [u32], sums: &mut [u16]) {
    let radius = weights.len() - 1;
    // Half of the last place that the shift cuts off.
    start(totals, weights[0], &padded[3 * radius..], 1 << 7);
    for (distance, &weight) in weights.iter().enumerate().skip(1) {
        add(totals, weight, &padded[3 * (radius - distance)..], &padded[3 * (radius + distance)..]);
    }
    for (sum, total) in sums.iter_mut().zip(&*totals) {
        *sum = (total >> 8) as u16;
    }
}

#[inline(always)]
fn blur_column<'rows>(weights: &[u32], line: impl Fn(i64) -> &'rows [u16], totals: &mut [u32], target: &mut [u8]) {
    start(totals, weights[0], line(0), 1 << 23);
    for (distance, &weight) in weights.iter().enumerate().skip(1) {
        add(totals, weight, line(-(distance as i64)), line(distance as i64));
    }
    for (byte, total) in target.iter_mut().zip(&*totals) {
        *byte = (total >> 24) as u8;
    }
}

/// Totals of the middle value alone. Loops over whole rows, which become vectors.
#[inline(always)]
fn start<T: Copy + Into<u32>>(totals: &mut [u32], weight: u32, middle: &[T], half: u32) {
    for (total, &value) in totals.iter_mut().zip(middle) {
        *total = half + weight * value.into();
    }
}

/// Adds two values at one distance.
#[inline(always)]
fn add<T: Copy + Into<u32>>(totals: &mut [u32], weight: u32, before: &[T], after: &[T]) {
    for ((total, &before), &after) in totals.iter_mut().zip(before).zip(after) {
        *total += weight * (before.into() + after.into());
    }
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
                assert_eq!(weights[0] + 2 * weights[1..].iter().sum::<u32>(), 1 << WEIGHT_BITS, "{radius} {sigma}");
                // Nothing wrapped around: the middle is about the largest.
                assert!(weights[0] <= 1 << WEIGHT_BITS, "{radius} {sigma}: {weights:?}");
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
                blur(&source, &mut target, size, &mut memory);
                assert_eq!(target, source);
                sharpness(&source, &mut target, size, 3.0, &mut memory);
                assert_eq!(target, source);
            }
        }
    }
}
