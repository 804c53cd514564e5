//! The two passes of a resize with AVX2: the same integers as the portable ones in [`crate::augment::resize`], since
//! both add exact 32-bit products.
//!
//! A weight of 22 bits comes as two 16-bit parts, so that `pmaddwd` multiplies two source pixels at once: upper and
//! lower products are summed apart and joined before the rounding shift.

#![expect(unsafe_code, reason = "AVX2 loads and stores through pointers, bounds asserted before")]

use std::arch::x86_64::*;

use super::simd::has_avx2;
use crate::augment::axis::{OUTPUT_GROUP, SPLIT_BITS, WEIGHT_BITS, WeightPair};

const ROUND: i32 = 1 << (WEIGHT_BITS - 1);

/// Bytes past the last source pixel that the horizontal pass may read, and past the last output that it may write.
pub const PASS_SLACK: usize = 16;

/// What the horizontal pass does to each row.
#[derive(Debug, Clone, Copy)]
pub struct Horizontal<'axis> {
    /// For each output its first source pixel; whole groups of [`OUTPUT_GROUP`].
    pub first: &'axis [u32],
    /// `pair_count` pairs for each output.
    pub pairs: &'axis [WeightPair],
    /// Pairs of an output.
    pub pair_count: usize,
    /// Distance of the colour planes in an output row; `None`: interleaved.
    pub plane_stride: Option<usize>,
}

type HorizontalPass = unsafe fn(Horizontal<'_>, [*const u8; 2], [*mut u8; 2]);
type VerticalPass = unsafe fn(&[WeightPair], &[[usize; 2]], &[u8], &mut [u8]);

/// Resamples rows of RGB. Row r is read at `source[r * source_stride..]` and written at `target[target_rows[r]..]`; it
/// may be written up to [`PASS_SLACK`] bytes past its last output.
pub fn horizontal(job: Horizontal<'_>, source: &[u8], source_stride: usize, target: &mut [u8], target_rows: &[usize]) {
    assert!(has_avx2(), "called only where AVX2 is");
    let rows = target_rows.len();
    let outputs = job.first.len();
    assert!(rows > 0 && outputs > 0 && outputs.is_multiple_of(OUTPUT_GROUP) && job.pair_count > 0);
    assert_eq!(job.pairs.len(), outputs * job.pair_count);
    // A load takes 16 bytes from a pair's first pixel, at most 2 * pair_count - 2 pixels after the output's first.
    let last_first = job.first.iter().copied().max().unwrap_or_default() as usize;
    let row_reach = 3 * (last_first + 2 * job.pair_count - 2) + 16;
    assert!((rows - 1) * source_stride + row_reach <= source.len(), "source rows hold every weighted pixel");
    // A group of outputs writes 16 bytes at its first output (interleaved), or 4 bytes into each of three planes.
    let row_extent = match job.plane_stride {
        None => (outputs - OUTPUT_GROUP) * 3 + 16,
        Some(stride) => 2 * stride + outputs,
    };
    let last_row = target_rows.iter().copied().max().unwrap_or_default();
    assert!(last_row + row_extent <= target.len(), "target rows hold every output");

    let pass = match (job.pair_count, job.plane_stride) {
        (1, None) => horizontal_rows::<1, false> as HorizontalPass,
        (2, None) => horizontal_rows::<2, false>,
        (_, None) => horizontal_rows::<0, false>,
        (1, Some(_)) => horizontal_rows::<1, true>,
        (2, Some(_)) => horizontal_rows::<2, true>,
        (_, Some(_)) => horizontal_rows::<0, true>,
    };
    for row in (0..rows).step_by(2) {
        // An odd last row is made twice, in the same place.
        let pair = [row, (row + 1).min(rows - 1)];
        let sources = pair.map(|row| source.as_ptr().wrapping_add(row * source_stride));
        let targets = pair.map(|row| target.as_mut_ptr().wrapping_add(target_rows[row]));
        // SAFETY:
        // - AVX2 is there, by the first assert;
        // - each source pointer is readable for `row_reach` bytes and each target pointer writable for `row_extent`
        //   bytes, by the asserts above; `source` and `target` are distinct borrows;
        // - `first` holds whole groups, and `pairs` holds `pair_count` pairs for each of `first`.
        unsafe { pass(job, sources, targets) };
    }
}

/// Resamples two rows, one in each half of a vector. `PAIRS` is the number of pairs where it is 1 or 2, else 0.
///
/// # Safety
/// As argued at the only call.
#[target_feature(enable = "avx2")]
unsafe fn horizontal_rows<const PAIRS: usize, const PLANAR: bool>(
    job: Horizontal<'_>,
    sources: [*const u8; 2],
    targets: [*mut u8; 2],
) {
    let pair_count = if PAIRS == 0 { job.pair_count } else { PAIRS };
    let compact = if PLANAR {
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1)
    } else {
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)
    };
    let compact = _mm256_broadcastsi128_si256(compact);
    let plane_stride = job.plane_stride.unwrap_or_default();
    let groups = job.first.as_chunks::<OUTPUT_GROUP>().0.iter().zip(job.pairs.chunks_exact(OUTPUT_GROUP * pair_count));
    for (group, (first, pairs)) in groups.enumerate() {
        let mut pixels = [_mm256_setzero_si256(); OUTPUT_GROUP];
        for ((pixel, first), pairs) in pixels.iter_mut().zip(first).zip(pairs.chunks_exact(pair_count)) {
            let places = sources.map(|source| source.wrapping_add(3 * *first as usize));
            // SAFETY: each row is readable from the output's first pixel for what its pairs reach.
            *pixel = unsafe { output_of_rows(places, pairs) };
        }
        let words0 = _mm256_packus_epi32(pixels[0], pixels[1]);
        let words1 = _mm256_packus_epi32(pixels[2], pixels[3]);
        let bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words0, words1), compact);
        let rows = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
        for (target, bytes) in targets.into_iter().zip(rows) {
            if PLANAR {
                let planes = [_mm_cvtsi128_si32(bytes), _mm_extract_epi32::<1>(bytes), _mm_extract_epi32::<2>(bytes)];
                for (plane, four) in planes.into_iter().enumerate() {
                    let place: *mut i32 = target.wrapping_add(plane * plane_stride + OUTPUT_GROUP * group).cast();
                    // SAFETY: four bytes inside the row's extent, by the caller's contract.
                    unsafe { place.write_unaligned(four) };
                }
            } else {
                let place = target.wrapping_add(3 * OUTPUT_GROUP * group).cast();
                // SAFETY: 16 bytes from the group's first output are inside the row's extent.
                unsafe { _mm_storeu_si128(place, bytes) };
            }
        }
    }
}

/// One output of two rows: red, green, blue, nothing, as 32-bit integers.
///
/// # Safety
/// From each place on, 16 bytes from the first pixel of each pair are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn output_of_rows(places: [*const u8; 2], pairs: &[WeightPair]) -> __m256i {
    // Words of two neighbouring pixels side by side, channel by channel: of pixels 0 and 1, of pixels 2 and 3.
    let pixels01 = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    let pixels23 = _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    let arrange = [pixels01, pixels23].map(|half| _mm256_broadcastsi128_si256(half));
    let mut upper = _mm256_setzero_si256();
    let mut lower = _mm256_set1_epi32(ROUND);
    // One load serves two pairs.
    for (index, pairs) in pairs.chunks(2).enumerate() {
        let [row0, row1] = places.map(|place| place.wrapping_add(12 * index).cast());
        // SAFETY: 16 bytes from the first pixel of a pair are readable, by the caller's contract.
        let half0 = unsafe { _mm_loadu_si128(row0) };
        // SAFETY: likewise.
        let half1 = unsafe { _mm_loadu_si128(row1) };
        let loaded = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(half0), half1);
        for (pair, arrange) in pairs.iter().zip(arrange) {
            let words = _mm256_shuffle_epi8(loaded, arrange);
            upper = _mm256_add_epi32(upper, _mm256_madd_epi16(words, weights(&pair.upper)));
            lower = _mm256_add_epi32(lower, _mm256_madd_epi16(words, weights(&pair.lower)));
        }
    }
    join(upper, lower)
}

/// Two weights in every pair of words.
#[inline]
#[target_feature(enable = "avx2")]
fn weights(words: &[i16; 2]) -> __m256i {
    // SAFETY: four bytes are readable at a borrow of two words. A load of its own, so that it becomes a broadcast from
    // memory; upper and lower weights loaded together would have to be taken apart again.
    _mm256_broadcastd_epi32(unsafe { _mm_loadu_si32(words.as_ptr().cast()) })
}

/// Upper and lower sums put together and rounded.
#[inline]
#[target_feature(enable = "avx2")]
fn join(upper: __m256i, lower: __m256i) -> __m256i {
    let sum = _mm256_add_epi32(_mm256_slli_epi32::<{ SPLIT_BITS as i32 }>(upper), lower);
    // Arithmetic, since sums of cubic weights may be negative; packing clips them.
    _mm256_srai_epi32::<{ WEIGHT_BITS as i32 }>(sum)
}

/// Bytes that the vertical pass makes at once; shorter outputs take the portable pass.
pub const COLUMNS_AT_ONCE: usize = 32;

/// Sums rows of bytes by weight. `rows` says where the two rows of each pair start in `source`.
pub fn vertical(pairs: &[WeightPair], rows: &[[usize; 2]], source: &[u8], target: &mut [u8]) {
    assert!(has_avx2(), "called only where AVX2 is");
    assert!(target.len() >= COLUMNS_AT_ONCE, "an output fills a vector");
    assert_eq!(pairs.len(), rows.len());
    let last_row = rows.iter().flatten().copied().max().expect("at least one pair");
    assert!(last_row + target.len() <= source.len(), "rows hold every column");
    let pass = match pairs.len() {
        1 => vertical_columns::<1> as VerticalPass,
        2 => vertical_columns::<2>,
        _ => vertical_columns::<0>,
    };
    // SAFETY: AVX2 is there, every row is readable for as many bytes as `target` has, and the pairs are as many as the
    // pass takes, all by the asserts and the match.
    unsafe { pass(pairs, rows, source, target) };
}

/// # Safety
/// As argued at the only call. `PAIRS` is the number of pairs where it is 1 or 2, else 0.
#[target_feature(enable = "avx2")]
unsafe fn vertical_columns<const PAIRS: usize>(
    pairs: &[WeightPair],
    rows: &[[usize; 2]],
    source: &[u8],
    target: &mut [u8],
) {
    let zero = _mm256_setzero_si256();
    let pair_count = if PAIRS == 0 { pairs.len() } else { PAIRS };
    let mut column = 0;
    while column < target.len() {
        // The last vector overlaps the one before where the length is no multiple.
        column = column.min(target.len() - COLUMNS_AT_ONCE);
        let mut upper = [zero; 4];
        let mut lower = [_mm256_set1_epi32(ROUND); 4];
        for index in 0..pair_count {
            let pair = &pairs[index];
            let (upper_weights, lower_weights) = (weights(&pair.upper), weights(&pair.lower));
            let [row0, row1] = rows[index].map(|row| source.as_ptr().wrapping_add(row + column));
            // SAFETY: 32 bytes from `column` are within the row.
            let bytes0 = unsafe { _mm256_loadu_si256(row0.cast()) };
            // SAFETY: likewise.
            let bytes1 = unsafe { _mm256_loadu_si256(row1.cast()) };
            let low = _mm256_unpacklo_epi8(bytes0, bytes1);
            let high = _mm256_unpackhi_epi8(bytes0, bytes1);
            let words = [
                _mm256_unpacklo_epi8(low, zero),
                _mm256_unpackhi_epi8(low, zero),
                _mm256_unpacklo_epi8(high, zero),
                _mm256_unpackhi_epi8(high, zero),
            ];
            for part in 0..4 {
                upper[part] = _mm256_add_epi32(upper[part], _mm256_madd_epi16(words[part], upper_weights));
                lower[part] = _mm256_add_epi32(lower[part], _mm256_madd_epi16(words[part], lower_weights));
            }
        }
        let sums: [__m256i; 4] = std::array::from_fn(|part| join(upper[part], lower[part]));
        let words0 = _mm256_packus_epi32(sums[0], sums[1]);
        let words1 = _mm256_packus_epi32(sums[2], sums[3]);
        let bytes = _mm256_packus_epi16(words0, words1);
        let place = target.as_mut_ptr().wrapping_add(column).cast();
        // SAFETY: `column + 32` is at most the target's length.
        unsafe { _mm256_storeu_si256(place, bytes) };
        column += COLUMNS_AT_ONCE;
    }
}
