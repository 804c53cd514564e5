//! The pixel stages of the JPEG engine with AVX2: the same integers as the portable ones in
//! [`crate::decode::jpeg::pixels`], which say what each stage computes.
//!
//! Kernels are plain functions all the way down: what closures hold is passed in memory where they are not inlined.

#![expect(unsafe_code, reason = "AVX2 loads and stores through pointers, bounds asserted before")]

pub mod colour;
pub mod idct;
pub mod reduced;
pub mod upsample;

use std::arch::x86_64::*;

/// Samples that an upsampling kernel makes from at once, and pixels that a colour kernel makes at once.
pub const GROUP: usize = 32;

/// 32 bytes of `row` from `place`.
///
/// # Safety
/// `place + 32 <= row.len()`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(row: &[u8], place: usize) -> __m256i {
    debug_assert!(place + 32 <= row.len());
    // SAFETY: readable, by the caller's contract.
    unsafe { _mm256_loadu_si256(row.as_ptr().wrapping_add(place).cast()) }
}

/// Stores 32 bytes into `row` at `place`.
///
/// # Safety
/// `place + 32 <= row.len()`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(row: &mut [u8], place: usize, bytes: __m256i) {
    debug_assert!(place + 32 <= row.len());
    // SAFETY: writable, by the caller's contract.
    unsafe { _mm256_storeu_si256(row.as_mut_ptr().wrapping_add(place).cast(), bytes) };
}

/// Two weights in every pair of words.
#[inline]
#[target_feature(enable = "avx2")]
fn weights([low, high]: [i32; 2]) -> __m256i {
    _mm256_set1_epi32(high << 16 | low & 0xffff)
}
