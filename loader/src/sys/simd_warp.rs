//! A pixel of four with AVX2.

#![expect(unsafe_code, reason = "target features")]

use std::arch::x86_64::*;

use super::simd::Avx2;

impl Avx2 {
    /// Two pixels side by side from the start of `above` and of `below`, mixed by weights `across` and `down`: those of the
    /// first of each, and of the second, in parts of 2^11. What [`crate::augment::warp`] computes one channel at a time.
    #[inline(always)]
    pub fn mix(self, above: [u8; 8], below: [u8; 8], across: [u32; 2], down: [u32; 2]) -> [u8; 3] {
        // SAFETY: AVX2 is there, of which this is the proof.
        unsafe { mix(above, below, across, down) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn mix(above: [u8; 8], below: [u8; 8], across: [u32; 2], down: [u32; 2]) -> [u8; 3] {
    // Words: the first and the second red, green and blue.
    let pairs = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    let across = _mm_set1_epi32((across[1] << 16 | across[0]) as i32);
    let row = |pixels: [u8; 8], weight: u32| {
        let pixels = _mm_shuffle_epi8(_mm_cvtsi64_si128(i64::from_le_bytes(pixels)), pairs);
        _mm_mullo_epi32(_mm_madd_epi16(pixels, across), _mm_set1_epi32(weight as i32))
    };
    let sum = _mm_add_epi32(_mm_add_epi32(row(above, down[0]), row(below, down[1])), _mm_set1_epi32(1 << 21));
    let bytes = _mm_shuffle_epi8(_mm_srli_epi32::<22>(sum), _mm_cvtsi32_si128(0x0c08_0400));
    let [red, green, blue, _] = (_mm_cvtsi128_si32(bytes) as u32).to_le_bytes();
    [red, green, blue]
}
