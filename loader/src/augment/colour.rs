//! Operations on each pixel's colour, in the arithmetic of torchvision's functional v2 on uint8 tensors: 32-bit floats,
//! cut to whole numbers.
//!
//! Blocks of pixels are taken apart into planes, so that the compiler makes vectors of them; nothing is contracted, so
//! every processor gives the same bytes. torch may contract a multiplication and an addition, which moves a value by one
//! where the exact result is next to a whole number.

use crate::sys::simd::{Path, to_byte};

/// Pixels of a block.
const BLOCK: usize = 32;

type Plane = [f32; BLOCK];

/// What becomes of the planes of a block. A trait and no closure, so that it is compiled for each path.
trait Change: Copy {
    fn change(self, planes: &mut [Plane; 3]);
}

/// Applies `change` to blocks of pixels, as planes; what it does at places past the last pixel is lost.
#[inline(always)]
fn by_planes(path: Path, pixels: &mut [u8], change: impl Change) {
    let (blocks, rest) = pixels.as_chunks_mut::<{ 3 * BLOCK }>();
    match path {
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => crate::sys::simd_rgb::by_planes(blocks, |bytes| changed(bytes, change)),
        Path::Portable => blocks.iter_mut().for_each(|block| of_planes(block, |bytes| changed(bytes, change))),
    }
    if !rest.is_empty() {
        let mut block = [0; 3 * BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        of_planes(&mut block, |bytes| changed(bytes, change));
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

#[inline(always)]
fn changed(mut bytes: [[u8; BLOCK]; 3], change: impl Change) -> [[u8; BLOCK]; 3] {
    let mut planes = [[0.0; BLOCK]; 3];
    for (plane, bytes) in planes.iter_mut().zip(&bytes) {
        for (value, &byte) in plane.iter_mut().zip(bytes) {
            *value = f32::from(byte);
        }
    }
    change.change(&mut planes);
    for (plane, bytes) in planes.iter().zip(&mut bytes) {
        for (&value, byte) in plane.iter().zip(bytes) {
            *byte = to_byte(value);
        }
    }
    bytes
}

/// Makes of a block what `change` makes of its planes.
#[inline(always)]
fn of_planes(block: &mut [u8; 3 * BLOCK], change: impl Fn([[u8; BLOCK]; 3]) -> [[u8; BLOCK]; 3]) {
    let mut planes = [[0; BLOCK]; 3];
    for (channel, plane) in planes.iter_mut().enumerate() {
        for (index, byte) in plane.iter_mut().enumerate() {
            *byte = block[3 * index + channel];
        }
    }
    planes = change(planes);
    for (channel, plane) in planes.iter().enumerate() {
        for (index, &byte) in plane.iter().enumerate() {
            block[3 * index + channel] = byte;
        }
    }
}

/// The luma of ITU-R 601 with torchvision's weights, which add up to 0.9999, cut to a whole number.
#[inline(always)]
fn luma(red: f32, green: f32, blue: f32) -> f32 {
    f32::from(to_byte(red * 0.2989 + green * 0.587 + blue * 0.114))
}

/// Every value times `factor`.
#[inline(always)]
pub fn brightness(pixels: &mut [u8], factor: f32) {
    for byte in pixels {
        *byte = to_byte(f32::from(*byte) * factor);
    }
}

/// `factor` times each value and 1 - `factor` times the mean luma.
#[inline(always)]
pub fn contrast(pixels: &mut [u8], factor: f32) {
    let mean = luma_mean(pixels) as f32;
    let share = mean * (1.0 - f64::from(factor)) as f32;
    for byte in pixels {
        *byte = to_byte(f32::from(*byte) * factor + share);
    }
}

#[inline(always)]
fn luma_mean(pixels: &[u8]) -> f64 {
    let mut sum = 0_u64;
    let (blocks, rest) = pixels.as_chunks::<{ 3 * BLOCK }>();
    for block in blocks {
        let mut lumas = [0_u32; BLOCK];
        for (index, luma_sum) in lumas.iter_mut().enumerate() {
            let [red, green, blue] = [0, 1, 2].map(|channel| f32::from(block[3 * index + channel]));
            *luma_sum = u32::from(to_byte(red * 0.2989 + green * 0.587 + blue * 0.114));
        }
        sum += u64::from(lumas.iter().sum::<u32>());
    }
    for &[red, green, blue] in rest.as_chunks::<3>().0 {
        sum += luma(red.into(), green.into(), blue.into()) as u64;
    }
    sum as f64 / (pixels.len() / 3) as f64
}

/// `factor` times each value and 1 - `factor` times the pixel's luma.
#[inline(always)]
pub fn saturation(path: Path, pixels: &mut [u8], factor: f32) {
    by_planes(path, pixels, Saturation { factor, share: (1.0 - f64::from(factor)) as f32 });
}

#[derive(Clone, Copy)]
struct Saturation {
    factor: f32,
    share: f32,
}

impl Change for Saturation {
    #[inline(always)]
    fn change(self, planes: &mut [Plane; 3]) {
        for index in 0..BLOCK {
            let grey = luma(planes[0][index], planes[1][index], planes[2][index]) * self.share;
            for plane in &mut *planes {
                plane[index] = plane[index] * self.factor + grey;
            }
        }
    }
}

/// The luma in every channel.
#[inline(always)]
pub fn grayscale(path: Path, pixels: &mut [u8]) {
    by_planes(path, pixels, Grayscale);
}

#[derive(Clone, Copy)]
struct Grayscale;

impl Change for Grayscale {
    #[inline(always)]
    fn change(self, planes: &mut [Plane; 3]) {
        for index in 0..BLOCK {
            let grey = luma(planes[0][index], planes[1][index], planes[2][index]);
            for plane in &mut *planes {
                plane[index] = grey;
            }
        }
    }
}

/// Turns the colour circle by `turn`, within -0.5 to 0.5.
///
/// torchvision goes to hue, saturation and value and back by a table of the circle's sixths. Each channel of the result
/// is the value less a share of the range, and that share a trapezoid over the circle, displaced from channel to channel:
/// the same numbers without the saturation, with one division, and without a choice.
#[inline(always)]
pub fn hue(path: Path, pixels: &mut [u8], turn: f32) {
    by_planes(path, pixels, Hue { sixths: turn * 6.0 });
}

#[derive(Clone, Copy)]
struct Hue {
    sixths: f32,
}

impl Change for Hue {
    #[inline(always)]
    fn change(self, planes: &mut [Plane; 3]) {
        for index in 0..BLOCK {
            let [red, green, blue] = [planes[0][index], planes[1][index], planes[2][index]];
            let most = red.max(green).max(blue);
            let range = most - red.min(green).min(blue);
            let scale = 1.0 / if range == 0.0 { 1.0 } else { range };
            let from_green = (blue - red) * scale + 2.0;
            let from_blue = (red - green) * scale + 4.0;
            let sixth = if most == green { from_green } else { from_blue };
            let sixth = if most == red { (green - blue) * scale } else { sixth };
            let sixth = around(around(sixth + self.sixths + 6.0));
            for (plane, place) in planes.iter_mut().zip([5.0, 3.0, 1.0]) {
                let place = around(sixth + place);
                // Not `min`, which would look for what is no number.
                let share = if place < 2.0 { place } else { 4.0 - place };
                let share = if share > 1.0 { 1.0 } else { share };
                let share = if share < 0.0 { 0.0 } else { share };
                // torchvision's rule for floats to bytes: all levels get ranges of one width.
                plane[index] = (most - range * share) * ((256.0 - 1e-3) / 255.0);
            }
        }
    }
}

/// A place on a circle of six, of one below twelve.
#[inline(always)]
fn around(place: f32) -> f32 {
    place - if place >= 6.0 { 6.0 } else { 0.0 }
}

/// Values of at least `threshold` inverted.
#[inline(always)]
pub fn solarize(pixels: &mut [u8], threshold: f32) {
    // From the first whole number on that is not below the threshold.
    let first = threshold.clamp(0.0, 256.0).ceil() as u16;
    let Ok(first) = u8::try_from(first) else { return };
    for byte in pixels {
        *byte = if *byte >= first { 255 - *byte } else { *byte };
    }
}

/// The upper `bits` of each value kept.
#[inline(always)]
pub fn posterize(pixels: &mut [u8], bits: u32) {
    let mask = !(0xFF_u32 >> bits) as u8;
    for byte in pixels {
        *byte &= mask;
    }
}

/// Every value inverted.
#[inline(always)]
pub fn invert(pixels: &mut [u8]) {
    for byte in pixels {
        *byte = 255 - *byte;
    }
}

type Tables = [[u8; 256]; 3];

fn look_up(pixels: &mut [u8], tables: &Tables) {
    for pixel in pixels.as_chunks_mut::<3>().0 {
        for (byte, table) in pixel.iter_mut().zip(tables) {
            *byte = table[*byte as usize];
        }
    }
}

fn identity() -> [u8; 256] {
    std::array::from_fn(|value| value as u8)
}

/// How often each value occurs in each channel.
fn histograms(pixels: &[u8]) -> [[u32; 256]; 3] {
    let mut counts = [[0_u32; 256]; 3];
    // Neighbours are often equal, and counting one place twice in a row is slow: they take turns.
    let mut others = [[0_u32; 256]; 3];
    let (pairs, rest) = pixels.as_chunks::<6>();
    for pair in pairs {
        for channel in 0..3 {
            counts[channel][pair[channel] as usize] += 1;
            others[channel][pair[3 + channel] as usize] += 1;
        }
    }
    for (channel, &byte) in rest.iter().enumerate() {
        counts[channel][byte as usize] += 1;
    }
    for (counts, others) in counts.iter_mut().zip(&others) {
        for (count, other) in counts.iter_mut().zip(others) {
            *count += other;
        }
    }
    counts
}

/// Each channel's histogram made even, by Pillow's rule, whole numbers only.
pub fn equalize(pixels: &mut [u8]) {
    let mut tables = [identity(); 3];
    for (table, counts) in tables.iter_mut().zip(histograms(pixels)) {
        let last = counts.iter().rposition(|&count| count > 0).map_or(0, |last| counts[last]);
        let step = (counts.iter().sum::<u32>() - last) / 255;
        if step == 0 {
            continue;
        }
        let mut sum = step / 2;
        for (entry, count) in table.iter_mut().zip(counts) {
            *entry = (sum / step).min(255) as u8;
            sum += count;
        }
    }
    look_up(pixels, &tables);
}

/// The least and the largest value of each channel.
#[inline(always)]
fn extremes(pixels: &[u8]) -> ([u8; 3], [u8; 3]) {
    const LANES: usize = 3 * BLOCK;
    let (mut least, mut most) = ([u8::MAX; LANES], [u8::MIN; LANES]);
    let (blocks, rest) = pixels.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            least[lane] = least[lane].min(block[lane]);
            most[lane] = most[lane].max(block[lane]);
        }
    }
    for (lane, &byte) in rest.iter().enumerate() {
        least[lane] = least[lane].min(byte);
        most[lane] = most[lane].max(byte);
    }
    let of = |channel: usize, values: &[u8; LANES], choose: fn(u8, u8) -> u8| {
        values.iter().skip(channel).step_by(3).copied().reduce(choose).expect("there are lanes")
    };
    ([0, 1, 2].map(|channel| of(channel, &least, u8::min)), [0, 1, 2].map(|channel| of(channel, &most, u8::max)))
}

/// Each channel stretched to the full range; a channel of one value stays.
#[inline(always)]
pub fn autocontrast(pixels: &mut [u8]) {
    let (least, most) = extremes(pixels);
    let mut tables = [identity(); 3];
    for ((table, least), most) in tables.iter_mut().zip(least).zip(most) {
        if least < most {
            let inverse_scale = f32::from(most - least) * (1.0 / 255.0);
            for (value, entry) in table.iter_mut().enumerate() {
                *entry = to_byte((value as f32 - f32::from(least)) / inverse_scale);
            }
        }
    }
    look_up(pixels, &tables);
}
