//! Subsampled rows doubled. Bytes of two rows, or of two neighbours, stand side by side, so that one product of pairs
//! weighs and adds them.

#![expect(unsafe_code, reason = "AVX2 loads and stores through pointers, bounds asserted before")]

use std::arch::x86_64::*;

use super::{GROUP, load, store};
use crate::sys::simd::has_avx2;

/// Doubles `count` samples across and, between two rows, down: `near[1..]` and `far[1..]` are the samples, with a
/// neighbour on each side. All rows have room for whole groups.
pub fn double_both(near: &[u8], far: &[u8], target: &mut [u8], count: usize) {
    assert!(has_avx2(), "called only where AVX2 is");
    let whole = count.next_multiple_of(GROUP);
    assert!(near.len().min(far.len()) >= whole + 2 && target.len() >= 2 * whole, "rows hold whole groups");

    /// # Safety
    /// As argued at the only call.
    #[target_feature(enable = "avx2")]
    unsafe fn kernel(near: &[u8], far: &[u8], target: &mut [u8], whole: usize) {
        let nearest = _mm256_set1_epi16(9 | 3 << 8);
        let beside = _mm256_set1_epi16(3 | 1 << 8);
        for place in (0..whole).step_by(GROUP) {
            let mut rows = [[_mm256_setzero_si256(); 2]; 3];
            for (shift, pair) in rows.iter_mut().enumerate() {
                // SAFETY: `place + shift + 32` is at most `whole + 2`.
                let near = unsafe { load(near, place + shift) };
                // SAFETY: likewise.
                let far = unsafe { load(far, place + shift) };
                *pair = [_mm256_unpacklo_epi8(near, far), _mm256_unpackhi_epi8(near, far)];
            }
            let [left, centre, right] = rows;
            let mut halves = [_mm256_setzero_si256(); 2];
            for (half, pixels) in halves.iter_mut().enumerate() {
                let centre = _mm256_maddubs_epi16(centre[half], nearest);
                let even = _mm256_add_epi16(centre, _mm256_maddubs_epi16(left[half], beside));
                let odd = _mm256_add_epi16(centre, _mm256_maddubs_epi16(right[half], beside));
                let even = _mm256_srli_epi16::<4>(_mm256_add_epi16(even, _mm256_set1_epi16(8)));
                let odd = _mm256_slli_epi16::<4>(_mm256_add_epi16(odd, _mm256_set1_epi16(7)));
                *pixels = _mm256_or_si256(even, _mm256_and_si256(odd, _mm256_set1_epi16(-256)));
            }
            // SAFETY: `2 * place + 64` is at most `2 * whole`.
            unsafe { store_doubled(target, 2 * place, halves) };
        }
    }
    // SAFETY: AVX2 is there, and the rows hold what the kernel reads and writes, by the asserts.
    unsafe { kernel(near, far, target, whole) };
}

/// Stores 64 bytes, whose quarters are those of the two vectors in turn.
///
/// # Safety
/// `place + 64 <= row.len()`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_doubled(row: &mut [u8], place: usize, [low, high]: [__m256i; 2]) {
    let first = _mm256_permute2x128_si256::<0x20>(low, high);
    let second = _mm256_permute2x128_si256::<0x31>(low, high);
    // SAFETY: by the caller's contract.
    unsafe { store(row, place, first) };
    // SAFETY: likewise.
    unsafe { store(row, place + 32, second) };
}

/// Doubles `count` samples across: `row[1..]` are the samples, with a neighbour on each side. Both rows have room for
/// whole groups.
pub fn double_across(row: &[u8], target: &mut [u8], count: usize) {
    assert!(has_avx2(), "called only where AVX2 is");
    let whole = count.next_multiple_of(GROUP);
    assert!(row.len() >= whole + 2 && target.len() >= 2 * whole, "rows hold whole groups");

    /// # Safety
    /// As argued at the only call.
    #[target_feature(enable = "avx2")]
    unsafe fn kernel(row: &[u8], target: &mut [u8], whole: usize) {
        let beside = _mm256_set1_epi16(3 | 1 << 8);
        for place in (0..whole).step_by(GROUP) {
            let mut loaded = [_mm256_setzero_si256(); 3];
            for (shift, samples) in loaded.iter_mut().enumerate() {
                // SAFETY: `place + shift + 32` is at most `whole + 2`.
                *samples = unsafe { load(row, place + shift) };
            }
            let [left, centre, right] = loaded;
            let join = |even: __m256i, odd: __m256i| {
                let even = _mm256_add_epi16(_mm256_maddubs_epi16(even, beside), _mm256_set1_epi16(1));
                let odd = _mm256_add_epi16(_mm256_maddubs_epi16(odd, beside), _mm256_set1_epi16(2));
                let odd = _mm256_and_si256(_mm256_slli_epi16::<6>(odd), _mm256_set1_epi16(-256));
                _mm256_or_si256(_mm256_srli_epi16::<2>(even), odd)
            };
            let halves = [
                join(_mm256_unpacklo_epi8(centre, left), _mm256_unpacklo_epi8(centre, right)),
                join(_mm256_unpackhi_epi8(centre, left), _mm256_unpackhi_epi8(centre, right)),
            ];
            // SAFETY: `2 * place + 64` is at most `2 * whole`.
            unsafe { store_doubled(target, 2 * place, halves) };
        }
    }
    // SAFETY: AVX2 is there, and the rows hold what the kernel reads and writes, by the asserts.
    unsafe { kernel(row, target, whole) };
}

/// A row of `count` samples between two rows. All have room for whole groups.
pub fn double_down(near: &[u8], far: &[u8], bias: u8, target: &mut [u8], count: usize) {
    assert!(has_avx2(), "called only where AVX2 is");
    let whole = count.next_multiple_of(GROUP);
    assert!(near.len().min(far.len()).min(target.len()) >= whole, "rows hold whole groups");

    /// # Safety
    /// As argued at the only call.
    #[target_feature(enable = "avx2")]
    unsafe fn kernel(near: &[u8], far: &[u8], bias: u8, target: &mut [u8], whole: usize) {
        let bias = _mm256_set1_epi16(bias.into());
        let join = |pairs: __m256i| {
            let sum = _mm256_maddubs_epi16(pairs, _mm256_set1_epi16(3 | 1 << 8));
            _mm256_srli_epi16::<2>(_mm256_add_epi16(sum, bias))
        };
        for place in (0..whole).step_by(GROUP) {
            // SAFETY: `place + 32` is at most `whole`.
            let near = unsafe { load(near, place) };
            // SAFETY: likewise.
            let far = unsafe { load(far, place) };
            let (low, high) = (_mm256_unpacklo_epi8(near, far), _mm256_unpackhi_epi8(near, far));
            let pixels = _mm256_packus_epi16(join(low), join(high));
            // SAFETY: likewise.
            unsafe { store(target, place, pixels) };
        }
    }
    // SAFETY: AVX2 is there, and the rows hold what the kernel reads and writes, by the asserts.
    unsafe { kernel(near, far, bias, target, whole) };
}
