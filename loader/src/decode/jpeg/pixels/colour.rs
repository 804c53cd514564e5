//! Components to RGB: YCbCr by ITU-R BT.601 at full range (JFIF), in the 16-bit fixed point of libjpeg-turbo, bit for
//! bit.

use crate::sys::simd::Path;
#[cfg(target_arch = "x86_64")]
use crate::sys::simd_jpeg;

/// Fractional bits of the weights.
const SCALE_BITS: i32 = 16;

/// Halves are rounded up.
const HALF: i32 = 1 << (SCALE_BITS - 1);

// Weights of Cr in red, of Cb in blue, of Cr and Cb in green.
const RED_OF_RED: i32 = 91881;
const BLUE_OF_BLUE: i32 = 116130;
const GREEN_OF_RED: i32 = -46802;
const GREEN_OF_BLUE: i32 = -22554;

/// Makes `count` pixels of YCbCr.
pub fn ycc_row(path: Path, planes: [&[u8]; 3], target: &mut [u8], count: usize) {
    match path {
        Path::Portable => {
            let planes = planes.map(|plane| plane[..count].iter());
            let [luma, blue, red] = planes;
            for (((luma, blue), red), pixel) in luma.zip(blue).zip(red).zip(target.as_chunks_mut::<3>().0) {
                *pixel = ycc_pixel([*luma, *blue, *red]);
            }
        }
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => simd_jpeg::colour::ycc_to_rgb(planes, target, count),
    }
}

fn ycc_pixel(pixel: [u8; 3]) -> [u8; 3] {
    let [luma, blue, red] = pixel.map(i32::from);
    let (blue, red) = (blue - 128, red - 128);
    let above = |sum: i32| (luma + ((sum + HALF) >> SCALE_BITS)).clamp(0, 255) as u8;
    [above(RED_OF_RED * red), above(GREEN_OF_BLUE * blue + GREEN_OF_RED * red), above(BLUE_OF_BLUE * blue)]
}

/// Makes `count` pixels of three planes that are red, green and blue, or all the same.
pub fn rgb_row(path: Path, planes: [&[u8]; 3], target: &mut [u8], count: usize) {
    match path {
        Path::Portable => {
            let [red, green, blue] = planes.map(|plane| plane[..count].iter());
            for (((red, green), blue), pixel) in red.zip(green).zip(blue).zip(target.as_chunks_mut::<3>().0) {
                *pixel = [*red, *green, *blue];
            }
        }
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => simd_jpeg::colour::interleave(planes, target, count),
    }
}
