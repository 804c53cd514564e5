//! Rows of three planes to RGB.

#![expect(unsafe_code, reason = "AVX2 loads and stores through pointers, bounds asserted before")]

use std::arch::x86_64::*;

use super::{GROUP, load, store, weights};
use crate::sys::simd::has_avx2;

/// YCbCr to RGB, `count` pixels. All rows have room for whole groups.
pub fn ycc_to_rgb([luma, blue, red]: [&[u8]; 3], target: &mut [u8], count: usize) {
    assert!(has_avx2(), "called only where AVX2 is");
    let whole = count.next_multiple_of(GROUP);
    assert!(luma.len().min(blue.len()).min(red.len()) >= whole && target.len() >= 3 * whole, "rows hold whole groups");

    /// # Safety
    /// As argued at the only call.
    #[target_feature(enable = "avx2")]
    unsafe fn kernel([luma, blue, red]: [&[u8]; 3], target: &mut [u8], whole: usize) {
        let zero = _mm256_setzero_si256();
        for place in (0..whole).step_by(GROUP) {
            // SAFETY: `place + 32` is at most `whole`.
            let luma = unsafe { load(luma, place) };
            // SAFETY: likewise.
            let blue = unsafe { load(blue, place) };
            // SAFETY: likewise.
            let red = unsafe { load(red, place) };
            let low = rgb_words(
                _mm256_unpacklo_epi8(luma, zero),
                _mm256_unpacklo_epi8(blue, zero),
                _mm256_unpacklo_epi8(red, zero),
            );
            let high = rgb_words(
                _mm256_unpackhi_epi8(luma, zero),
                _mm256_unpackhi_epi8(blue, zero),
                _mm256_unpackhi_epi8(red, zero),
            );
            let colours = [
                _mm256_packus_epi16(low[0], high[0]),
                _mm256_packus_epi16(low[1], high[1]),
                _mm256_packus_epi16(low[2], high[2]),
            ];
            // SAFETY: `3 * place + 96` is at most `3 * whole`.
            unsafe { store_interleaved(target, 3 * place, colours) };
        }
    }
    // SAFETY: AVX2 is there, and the rows hold what the kernel reads and writes, by the asserts.
    unsafe { kernel([luma, blue, red], target, whole) };
}

/// 16 pixels of YCbCr to red, green and blue, which may lie beyond bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn rgb_words(luma: __m256i, blue: __m256i, red: __m256i) -> [__m256i; 3] {
    let centre = _mm256_set1_epi16(128);
    let (blue, red) = (_mm256_sub_epi16(blue, centre), _mm256_sub_epi16(red, centre));
    // What 1.402 and 1.772 are above one, in 15 bits: rounded products are the library's for every byte.
    let red_product = _mm256_mulhrs_epi16(red, _mm256_set1_epi16(13173));
    let blue_product = _mm256_mulhrs_epi16(blue, _mm256_set1_epi16(25297));
    // -0.34414, and what -0.71414 is above minus one.
    let green_weights = weights([-22554, 18734]);
    let half = _mm256_set1_epi32(1 << 15);
    let low = _mm256_madd_epi16(_mm256_unpacklo_epi16(blue, red), green_weights);
    let high = _mm256_madd_epi16(_mm256_unpackhi_epi16(blue, red), green_weights);
    let low = _mm256_srai_epi32::<16>(_mm256_add_epi32(low, half));
    let high = _mm256_srai_epi32::<16>(_mm256_add_epi32(high, half));
    let green_product = _mm256_packs_epi32(low, high);
    [
        _mm256_add_epi16(_mm256_add_epi16(luma, red), red_product),
        _mm256_add_epi16(_mm256_sub_epi16(luma, red), green_product),
        _mm256_add_epi16(_mm256_add_epi16(luma, blue), blue_product),
    ]
}

/// Three planes to RGB, `count` pixels. All rows have room for whole groups.
pub fn interleave(planes: [&[u8]; 3], target: &mut [u8], count: usize) {
    assert!(has_avx2(), "called only where AVX2 is");
    let whole = count.next_multiple_of(GROUP);
    assert!(planes.iter().all(|plane| plane.len() >= whole) && target.len() >= 3 * whole, "rows hold whole groups");

    /// # Safety
    /// As argued at the only call.
    #[target_feature(enable = "avx2")]
    unsafe fn kernel(planes: [&[u8]; 3], target: &mut [u8], whole: usize) {
        for place in (0..whole).step_by(GROUP) {
            let mut colours = [_mm256_setzero_si256(); 3];
            for (colour, plane) in colours.iter_mut().zip(planes) {
                // SAFETY: `place + 32` is at most `whole`.
                *colour = unsafe { load(plane, place) };
            }
            // SAFETY: `3 * place + 96` is at most `3 * whole`.
            unsafe { store_interleaved(target, 3 * place, colours) };
        }
    }
    // SAFETY: AVX2 is there, and the rows hold what the kernel reads and writes, by the asserts.
    unsafe { kernel(planes, target, whole) };
}

/// Stores 32 pixels.
///
/// # Safety
/// `place + 96 <= row.len()`.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::sys) unsafe fn store_interleaved(row: &mut [u8], place: usize, colours: [__m256i; 3]) {
    // Every byte goes to the place (mod 16) where it belongs in one of the three vectors of a half; then each vector
    // takes every third byte of each colour.
    let [red, green, blue] = colours;
    let red_places = _mm_setr_epi8(0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10, 5);
    let green_places = _mm_setr_epi8(5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10);
    let blue_places = _mm_setr_epi8(10, 5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15);
    let red = _mm256_shuffle_epi8(red, _mm256_broadcastsi128_si256(red_places));
    let green = _mm256_shuffle_epi8(green, _mm256_broadcastsi128_si256(green_places));
    let blue = _mm256_shuffle_epi8(blue, _mm256_broadcastsi128_si256(blue_places));
    let second = _mm_setr_epi8(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0);
    let third = _mm_setr_epi8(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0);
    let (second, third) = (_mm256_broadcastsi128_si256(second), _mm256_broadcastsi128_si256(third));
    let start = _mm256_blendv_epi8(_mm256_blendv_epi8(red, green, second), blue, third);
    let middle = _mm256_blendv_epi8(_mm256_blendv_epi8(green, blue, second), red, third);
    let end = _mm256_blendv_epi8(_mm256_blendv_epi8(blue, red, second), green, third);
    let parts = [
        _mm256_permute2x128_si256::<0x20>(start, middle),
        _mm256_permute2x128_si256::<0x30>(end, start),
        _mm256_permute2x128_si256::<0x31>(middle, end),
    ];
    for (index, part) in parts.into_iter().enumerate() {
        // SAFETY: 96 bytes have room, by the caller's contract.
        unsafe { store(row, place + 32 * index, part) };
    }
}
