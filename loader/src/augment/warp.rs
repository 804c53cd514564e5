//! Rotation, shear, perspective: every output pixel is picked from where a projection says.
//!
//! Places are whole numbers of a 2^-28th of a pixel, weights of a 2^-11th: the same on every processor. Outside lies the
//! fill colour; what it does to the outermost pixels is torchvision's (`_apply_grid_transform`), quirk included: with a
//! fill, the share of the image there counts twice.

use super::operation::Warp;
use crate::spec::Interpolation;
#[cfg(target_arch = "x86_64")]
use crate::sys::simd::Avx2;
use crate::sys::simd::{Path, to_byte};

const PLACE_BITS: u32 = 28;
const WEIGHT_BITS: u32 = 11;

/// Farthest place that is told apart from others, in pixels; all beyond are outside any image.
const FAR: f64 = (1_u64 << 31) as f64;

/// Carries `warp` out on an RGB image.
pub fn run(path: Path, warp: &Warp, source: &[u8], size: (u32, u32), target: &mut [u8]) {
    let target = target.as_chunks_mut::<3>().0;
    match (warp.interpolation, path) {
        (Interpolation::Nearest, path) => path.run(|| {
            nearest(warp, source.as_chunks().0, size, target, warp.fill.unwrap_or_default());
        }),
        (Interpolation::Bilinear, Path::Portable) => bilinear(warp, source, size, target, mix),
        #[cfg(target_arch = "x86_64")]
        (Interpolation::Bilinear, Path::Avx2) => {
            let avx2 = Avx2::found().expect("a path that this processor has");
            path.run(|| {
                bilinear(warp, source, size, target, |above, below, right, down| avx2.mix(above, below, right, down))
            });
        }
    }
}

/// Two pixels from the start of `above` and of `below`, mixed by the weights of the first and the second across and down.
#[inline(always)]
fn mix(above: [u8; 8], below: [u8; 8], across: [u32; 2], down: [u32; 2]) -> [u8; 3] {
    std::array::from_fn(|channel| {
        let [above, below] = [above, below]
            .map(|pixels| u32::from(pixels[channel]) * across[0] + u32::from(pixels[3 + channel]) * across[1]);
        let sum = above * down[0] + below * down[1];
        ((sum + (1 << (2 * WEIGHT_BITS - 1))) >> (2 * WEIGHT_BITS)) as u8
    })
}

/// Picks the nearest pixel, or `fill` from outside.
#[inline(always)]
pub fn nearest<T: Copy>(warp: &Warp, source: &[T], (width, height): (u32, u32), target: &mut [T], fill: T) {
    let half = 1 << (PLACE_BITS - 1);
    for_places(warp, width, target, |(x, y), target| {
        let (column, row) = ((x + half) >> PLACE_BITS, (y + half) >> PLACE_BITS);
        let is_inside = (0..i64::from(width)).contains(&column) && (0..i64::from(height)).contains(&row);
        *target = if is_inside { source[row as usize * width as usize + column as usize] } else { fill };
    });
}

#[inline(always)]
fn bilinear(
    warp: &Warp,
    source: &[u8],
    (width, height): (u32, u32),
    target: &mut [[u8; 3]],
    mix: impl Fn([u8; 8], [u8; 8], [u32; 2], [u32; 2]) -> [u8; 3],
) {
    const ONE: u32 = 1 << WEIGHT_BITS;
    let stride = 3 * width as usize;
    // Two pixels are six bytes, of which eight are read: not the very last ones.
    let mut last = [0; 8];
    last[..6.min(source.len())].copy_from_slice(&source[source.len() - 6.min(source.len())..]);
    for_places(warp, width, target, |(x, y), target| {
        let (column, row) = (x >> PLACE_BITS, y >> PLACE_BITS);
        let weight = |place: i64| ((place >> (PLACE_BITS - WEIGHT_BITS)) & i64::from(ONE - 1)) as u32;
        let (right, down) = (weight(x), weight(y));
        let is_inside = (0..i64::from(width) - 1).contains(&column) && (0..i64::from(height) - 1).contains(&row);
        *target = if is_inside {
            let first = row as usize * stride + 3 * column as usize;
            let above = *source[first..].first_chunk().expect("a row of pixels lies below");
            let below = *source[first + stride..].first_chunk().unwrap_or(&last);
            mix(above, below, [ONE - right, right], [ONE - down, down])
        } else if !((-1..i64::from(width)).contains(&column) && (-1..i64::from(height)).contains(&row)) {
            warp.fill.unwrap_or_default()
        } else {
            at_border(warp, source.as_chunks().0, (width, height), (column, row), (right, down))
        };
    });
}

/// A pixel some of whose four sources lie outside.
#[cold]
fn at_border(
    warp: &Warp,
    source: &[[u8; 3]],
    (width, height): (u32, u32),
    (column, row): (i64, i64),
    (right, down): (u32, u32),
) -> [u8; 3] {
    let mut sums = [0_u32; 3];
    let mut share = 0_u32;
    let one = 1 << WEIGHT_BITS;
    for (row, weight_down) in [(row, one - down), (row + 1, down)] {
        for (column, weight_right) in [(column, one - right), (column + 1, right)] {
            if (0..i64::from(width)).contains(&column) && (0..i64::from(height)).contains(&row) {
                let weight = weight_down * weight_right;
                share += weight;
                for (sum, value) in sums.iter_mut().zip(source[row as usize * width as usize + column as usize]) {
                    *sum += weight * u32::from(value);
                }
            }
        }
    }
    let whole = (1_u32 << (2 * WEIGHT_BITS)) as f32;
    let share = share as f32 / whole;
    std::array::from_fn(|channel| {
        let value = sums[channel] as f32 / whole;
        let value = match warp.fill {
            Some(fill) => (value - f32::from(fill[channel])) * share + f32::from(fill[channel]),
            None => value,
        };
        to_byte(value + 0.5)
    })
}

/// Calls `pick` for each pixel with the place where the projection of its middle lies, as (x, y) from the middle of the
/// first pixel.
#[inline(always)]
fn for_places<T>(warp: &Warp, width: u32, target: &mut [T], mut pick: impl FnMut((i64, i64), &mut T)) {
    let [a, b, c, d, e, f, g, h] = warp.coefficients;
    let fixed = |place: f64| (place.clamp(-FAR, FAR) * (1_u64 << PLACE_BITS) as f64) as i64;
    for (row, target) in target.chunks_exact_mut(width as usize).enumerate() {
        let y = row as f64 + 0.5;
        if g == 0.0 && h == 0.0 {
            let mut place = [a * 0.5 + b * y + c - 0.5, d * 0.5 + e * y + f - 0.5].map(fixed);
            let step = [fixed(a), fixed(d)];
            for pixel in target {
                pick((place[0], place[1]), pixel);
                // Steps of a row that starts far away may run on past the last number; that is outside too.
                place = [0, 1].map(|axis| place[axis].saturating_add(step[axis]));
            }
        } else {
            for (column, pixel) in target.iter_mut().enumerate() {
                let x = column as f64 + 0.5;
                let scale = 1.0 / (g * x + h * y + 1.0);
                let place = [(a * x + b * y + c) * scale - 0.5, (d * x + e * y + f) * scale - 0.5];
                // What is no number becomes 0: only at a depth of 0, of which there is at most a line.
                pick((fixed(place[0]), fixed(place[1])), pixel);
            }
        }
    }
}

/// The inverse of an affine map, from output to source, in the coordinates of a [`Warp`]: torchvision's
/// `_get_inverse_affine_matrix` about `centre`, angles in degrees.
pub fn affine(
    (width, height): (u32, u32),
    centre: Option<[f64; 2]>,
    angle: f64,
    translate: [f64; 2],
    scale: f64,
    shear: [f64; 2],
) -> [f64; 8] {
    let middle = [f64::from(width) * 0.5, f64::from(height) * 0.5];
    let [cx, cy] = centre.map_or([0.0; 2], |[x, y]| [x - middle[0], y - middle[1]]);
    let radians = |degrees: f64| degrees * (std::f64::consts::PI / 180.0);
    let (turn, shear_x, shear_y) = (radians(angle), radians(shear[0]), radians(shear[1]));
    let (cosine, tangent) = (libm::cos(shear_y), libm::tan(shear_x));
    let a = libm::cos(turn - shear_y) / cosine;
    let b = -(a * tangent + libm::sin(turn));
    let c = libm::sin(turn - shear_y) / cosine;
    let d = libm::cos(turn) - c * tangent;
    let [right, down] = [cx + translate[0], cy + translate[1]];
    let matrix = [d / scale, -b / scale, -c / scale, a / scale];
    let x = cx - matrix[0] * right - matrix[1] * down;
    let y = cy - matrix[2] * right - matrix[3] * down;
    // From coordinates about the middle of the image to those from its corner.
    let x = x + middle[0] - matrix[0] * middle[0] - matrix[1] * middle[1];
    let y = y + middle[1] - matrix[2] * middle[0] - matrix[3] * middle[1];
    [matrix[0], matrix[1], x, matrix[2], matrix[3], y, 0.0, 0.0]
}

/// The projection that takes the four points `from` to `to`. `None`: there is none, as where two of `from` are one
/// point.
pub fn perspective(from: [[f64; 2]; 4], to: [[f64; 2]; 4]) -> Option<[f64; 8]> {
    let mut rows = [[0.0; 9]; 8];
    for (index, ([x, y], [to_x, to_y])) in from.into_iter().zip(to).enumerate() {
        rows[2 * index] = [x, y, 1.0, 0.0, 0.0, 0.0, -to_x * x, -to_x * y, to_x];
        rows[2 * index + 1] = [0.0, 0.0, 0.0, x, y, 1.0, -to_y * x, -to_y * y, to_y];
    }
    for column in 0..8 {
        let pivot = (column..8).max_by(|&one, &other| rows[one][column].abs().total_cmp(&rows[other][column].abs()))?;
        rows.swap(column, pivot);
        if rows[column][column].abs() < 1e-9 {
            return None;
        }
        let done = rows[column];
        for (index, row) in rows.iter_mut().enumerate() {
            if index != column {
                let factor = row[column] / done[column];
                for (value, done) in row.iter_mut().zip(done) {
                    *value -= factor * done;
                }
            }
        }
    }
    Some(std::array::from_fn(|index| rows[index][8] / rows[index][index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: [u16; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

    fn check(coefficients: [f64; 8], size: (u32, u32), expected: &[u16]) {
        let warp = Warp { coefficients, interpolation: Interpolation::Nearest, fill: None };
        let mut found = vec![0; expected.len()];
        nearest(&warp, &NUMBERS[..expected.len()], size, &mut found, 99);
        assert_eq!(found, expected, "{coefficients:?}");
    }

    #[test]
    fn rotations_and_shifts_move_whole_pixels() {
        check(affine((4, 3), None, 0.0, [0.0; 2], 1.0, [0.0; 2]), (4, 3), &NUMBERS);
        check(affine((4, 3), None, 0.0, [1.0, 0.0], 1.0, [0.0; 2]), (4, 3), &[99, 0, 1, 2, 99, 4, 5, 6, 99, 8, 9, 10]);
        check(affine((3, 3), None, 90.0, [0.0; 2], 1.0, [0.0; 2]), (3, 3), &[6, 3, 0, 7, 4, 1, 8, 5, 2]);
        check(affine((3, 3), None, 180.0, [0.0; 2], 1.0, [0.0; 2]), (3, 3), &[8, 7, 6, 5, 4, 3, 2, 1, 0]);
        check(affine((3, 3), Some([0.0, 0.0]), 180.0, [0.0; 2], 1.0, [0.0; 2]), (3, 3), &[99; 9]);
    }

    #[test]
    fn projections_take_points_to_points() {
        let corners = [[0.0, 0.0], [9.0, 0.0], [9.0, 5.0], [0.0, 5.0]];
        let moved = [[1.0, 0.5], [8.0, 1.0], [7.5, 4.0], [0.0, 5.0]];
        let [a, b, c, d, e, f, g, h] = perspective(moved, corners).expect("a projection");
        for ([x, y], [to_x, to_y]) in moved.into_iter().zip(corners) {
            let depth = g * x + h * y + 1.0;
            assert!(((a * x + b * y + c) / depth - to_x).abs() < 1e-9);
            assert!(((d * x + e * y + f) / depth - to_y).abs() < 1e-9);
        }
        assert_eq!(perspective([[0.0; 2]; 4], corners), None);
    }

    #[test]
    fn far_places_are_outside() {
        for coefficient in [f64::MAX, f64::NEG_INFINITY, -1e300] {
            check([coefficient, 1.0, coefficient, 1.0, coefficient, 1.0, 0.0, 0.0], (4, 3), &[99; 12]);
            check([coefficient, 0.0, 1.0, 1.0, coefficient, 1.0, 1e-9, 0.0], (4, 3), &[99; 12]);
        }
    }
}
