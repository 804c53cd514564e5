//! Operations on each pixel's colour, in the arithmetic of torchvision's functional v2 on uint8 tensors: 32-bit floats,
//! cut to whole numbers.
//!
//! Blocks of pixels are taken apart into planes, so that the compiler makes vectors of them; nothing is contracted, so
//! every processor gives the same bytes. torch may contract a multiplication and an addition, which moves a value by one
//! where the exact result is next to a whole number.

use crate::sys::simd::to_byte;

/// Pixels of a block.
const BLOCK: usize = 32;

type Plane = [f32; BLOCK];

/// Applies `change` to blocks of pixels, as planes; what it does at places past the last pixel is lost.
#[inline(always)]
fn by_planes(pixels: &mut [u8], change: impl Fn(&mut [Plane; 3])) {
    let mut planes = [[0.0; BLOCK]; 3];
    let (blocks, rest) = pixels.as_chunks_mut::<{ 3 * BLOCK }>();
    let run = |bytes: &mut [u8; 3 * BLOCK], planes: &mut [Plane; 3]| {
        for index in 0..BLOCK {
            for channel in 0..3 {
                planes[channel][index] = f32::from(bytes[3 * index + channel]);
            }
        }
        change(planes);
        for index in 0..BLOCK {
            for channel in 0..3 {
                bytes[3 * index + channel] = to_byte(planes[channel][index]);
            }
        }
    };
    for block in blocks {
        run(block, &mut planes);
    }
    if !rest.is_empty() {
        let mut block = [0; 3 * BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        run(&mut block, &mut planes);
        rest.copy_from_slice(&block[..rest.len()]);
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
pub fn saturation(pixels: &mut [u8], factor: f32) {
    let share = (1.0 - f64::from(factor)) as f32;
    by_planes(pixels, |planes| {
        for index in 0..BLOCK {
            let grey = luma(planes[0][index], planes[1][index], planes[2][index]) * share;
            for plane in &mut *planes {
                plane[index] = plane[index] * factor + grey;
            }
        }
    });
}

/// The luma in every channel.
#[inline(always)]
pub fn grayscale(pixels: &mut [u8]) {
    by_planes(pixels, |planes| {
        for index in 0..BLOCK {
            let grey = luma(planes[0][index], planes[1][index], planes[2][index]);
            for plane in &mut *planes {
                plane[index] = grey;
            }
        }
    });
}

/// Turns the colour circle by `turn`, within -0.5 to 0.5: to hue, saturation and value and back.
#[inline(always)]
pub fn hue(pixels: &mut [u8], turn: f32) {
    by_planes(pixels, |planes| {
        for index in 0..BLOCK {
            let changed = turned([0, 1, 2].map(|channel| planes[channel][index] * (1.0 / 255.0)), turn);
            for (plane, value) in planes.iter_mut().zip(changed) {
                // torchvision's rule for floats to bytes: all levels get ranges of one width.
                plane[index] = value * (256.0 - 1e-3);
            }
        }
    });
}

/// Numbers that are not negative, and below 256, cut to whole ones.
#[inline(always)]
fn cut(value: f32) -> f32 {
    f32::from(to_byte(value))
}

#[inline(always)]
fn turned([red, green, blue]: [f32; 3], turn: f32) -> [f32; 3] {
    let most = red.max(green).max(blue);
    let least = red.min(green).min(blue);
    let range = most - least;
    let is_grey = range == 0.0;
    let saturation = range / if is_grey { 1.0 } else { most };
    let divisor = if is_grey { 1.0 } else { range };
    let [red_gap, green_gap, blue_gap] = [red, green, blue].map(|value| (most - value) / divisor);
    let from_green = red_gap + 2.0 - blue_gap;
    let from_blue = green_gap + 4.0 - red_gap;
    let sixth = if most == green { from_green } else { from_blue };
    let sixth = if most == red { blue_gap - green_gap } else { sixth };
    let hue = sixth * (1.0 / 6.0) + 1.0;
    let hue = hue - cut(hue) + turn;
    let hue = if hue < 0.0 { hue + 1.0 } else { hue };
    let hue = if hue >= 1.0 { hue - 1.0 } else { hue };
    let place = hue * 6.0;
    let sector = cut(place);
    let part = place - sector;
    let [p, q, t] =
        [(1.0 - saturation) * most, (1.0 - saturation * part) * most, (saturation * part + (1.0 - saturation)) * most]
            .map(|value| value.clamp(0.0, 1.0));
    // Which of the four is red, green, blue in each sixth of the circle: sector 6 is sector 0.
    let at = |zero, one, two, three, four, five| {
        let low = if sector < 1.0 {
            zero
        } else if sector < 2.0 {
            one
        } else {
            two
        };
        let high = if sector < 4.0 {
            three
        } else if sector < 5.0 {
            four
        } else if sector < 6.0 {
            five
        } else {
            zero
        };
        if sector < 3.0 { low } else { high }
    };
    [at(most, q, p, p, t, most), at(t, most, most, q, p, p), at(p, p, t, most, most, q)]
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

/// Each channel stretched to the full range; a channel of one value stays.
pub fn autocontrast(pixels: &mut [u8]) {
    let mut least = [u8::MAX; 3];
    let mut most = [u8::MIN; 3];
    for pixel in pixels.as_chunks::<3>().0 {
        for channel in 0..3 {
            least[channel] = least[channel].min(pixel[channel]);
            most[channel] = most[channel].max(pixel[channel]);
        }
    }
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
