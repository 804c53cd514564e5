//! RGB to three planes with AVX2, 32 pixels at once, and back.

#![expect(unsafe_code, reason = "AVX2 loads and stores through pointers, bounds asserted before")]

use std::arch::x86_64::*;

use super::simd::has_avx2;
use super::simd_jpeg::colour::store_interleaved;

/// Pixels that are taken apart at once.
pub const GROUP: usize = 32;

/// Calls `change` with the planes of each group of pixels, and stores what it makes of them. `change` should be inlined.
#[inline(always)]
pub fn by_planes(groups: &mut [[u8; 3 * GROUP]], change: impl Fn([[u8; GROUP]; 3]) -> [[u8; GROUP]; 3]) {
    #[target_feature(enable = "avx2")]
    fn kernel(groups: &mut [[u8; 3 * GROUP]], change: impl Fn([[u8; GROUP]; 3]) -> [[u8; GROUP]; 3]) {
        for group in groups {
            let mut planes = [[0; GROUP]; 3];
            for (plane, vector) in planes.iter_mut().zip(planes_of(group)) {
                // SAFETY: a plane has room for 32 bytes.
                unsafe { _mm256_storeu_si256(plane.as_mut_ptr().cast(), vector) };
            }
            // SAFETY: a plane has 32 bytes.
            let vectors = change(planes).map(|plane| unsafe { _mm256_loadu_si256(plane.as_ptr().cast()) });
            // SAFETY: a group has room for 96 bytes.
            unsafe { store_interleaved(group, 0, vectors) };
        }
    }
    assert!(has_avx2(), "called only where AVX2 is");
    // SAFETY: AVX2 is there, by the assert.
    unsafe { kernel(groups, change) };
}

/// Red, green and blue of 32 pixels.
#[inline]
#[target_feature(enable = "avx2")]
fn planes_of(group: &[u8; 3 * GROUP]) -> [__m256i; 3] {
    let part = |index: usize| {
        // SAFETY: 96 bytes are three vectors.
        unsafe { _mm256_loadu_si256(group.as_ptr().wrapping_add(32 * index).cast()) }
    };
    let parts = [part(0), part(1), part(2)];
    // The lower halves hold the first 16 pixels, the upper ones the others.
    let start = _mm256_permute2x128_si256::<0x30>(parts[0], parts[1]);
    let middle = _mm256_permute2x128_si256::<0x21>(parts[0], parts[2]);
    let end = _mm256_permute2x128_si256::<0x30>(parts[1], parts[2]);
    // Every third byte is of one colour, and those of a colour lie at different places (mod 16) of the three.
    let second = _mm_setr_epi8(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0);
    let third = _mm_setr_epi8(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0);
    let (second, third) = (_mm256_broadcastsi128_si256(second), _mm256_broadcastsi128_si256(third));
    let red = _mm256_blendv_epi8(_mm256_blendv_epi8(start, end, second), middle, third);
    let green = _mm256_blendv_epi8(_mm256_blendv_epi8(middle, start, second), end, third);
    let blue = _mm256_blendv_epi8(_mm256_blendv_epi8(end, middle, second), start, third);
    let red_places = _mm_setr_epi8(0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13);
    let green_places = _mm_setr_epi8(1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14);
    let blue_places = _mm_setr_epi8(2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15);
    [
        _mm256_shuffle_epi8(red, _mm256_broadcastsi128_si256(red_places)),
        _mm256_shuffle_epi8(green, _mm256_broadcastsi128_si256(green_places)),
        _mm256_shuffle_epi8(blue, _mm256_broadcastsi128_si256(blue_places)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_come_apart_and_together() {
        if !has_avx2() {
            eprintln!("skipped: planes_come_apart_and_together, there is no AVX2");
            return;
        }
        let mut groups: [[u8; 96]; 2] =
            std::array::from_fn(|group| std::array::from_fn(|place| (96 * group + place) as u8));
        let original = groups;
        by_planes(&mut groups, |planes| {
            for (channel, plane) in planes.iter().enumerate() {
                for (pixel, &byte) in plane.iter().enumerate() {
                    assert_eq!(usize::from(byte) % 96, 3 * pixel + channel);
                }
            }
            planes.map(|plane| plane.map(|byte| 255 - byte))
        });
        assert_eq!(groups, original.map(|group| group.map(|byte| 255 - byte)));
    }
}
