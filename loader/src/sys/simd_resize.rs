//! The two passes of a resize with AVX2: the same integers as the portable ones in [`crate::augment::resize`], since
//! both add exact 32-bit products.
//!
//! A weight of 22 bits comes as two 16-bit parts, so that `pmaddwd` multiplies two source pixels at once: upper and
//! lower products are summed apart and joined before the rounding shift.

#![expect(unsafe_code, reason = "AVX2 loads and stores through pointers, bounds asserted before")]

use std::arch::x86_64::*;

use crate::augment::axis::{SPLIT_BITS, WEIGHT_BITS, WeightPair};

const ROUND: i32 = 1 << (WEIGHT_BITS - 1);

/// Outputs that the horizontal pass makes at once.
pub const OUTPUTS_AT_ONCE: usize = 4;

/// Source rows that the horizontal pass reads at once.
pub const ROWS_AT_ONCE: usize = 4;

/// Bytes past the last source pixel that the horizontal pass may read, and past the last output that it may write.
pub const PASS_SLACK: usize = 16;

/// Whether this processor has what the functions here need.
pub fn is_supported() -> bool {
    is_x86_feature_detected!("avx2")
}

/// What the horizontal pass does to each row.
#[derive(Debug, Clone, Copy)]
pub struct Horizontal<'axis> {
    /// For each output its first source pixel.
    pub first: &'axis [u32],
    /// `pair_count` pairs for each output.
    pub pairs: &'axis [WeightPair],
    /// Pairs of an output.
    pub pair_count: usize,
    /// Distance of the colour planes in an output row; `None`: interleaved.
    pub plane_stride: Option<usize>,
}

type HorizontalPass = unsafe fn(Horizontal<'_>, [*const u8; ROWS_AT_ONCE], [*mut u8; ROWS_AT_ONCE]);
type VerticalPass = unsafe fn(&[WeightPair], &[[usize; 2]], &[u8], &mut [u8]);

/// Resamples `rows` rows of RGB. Row r is read at `source[r * source_stride..]` and written at
/// `target[target_rows[r]..]`; a row may be written up to [`PASS_SLACK`] bytes past its last output.
pub fn horizontal(job: Horizontal<'_>, source: &[u8], source_stride: usize, target: &mut [u8], target_rows: &[usize]) {
    assert!(is_supported(), "called only where AVX2 is");
    let rows = target_rows.len();
    let outputs = job.first.len();
    assert!(rows > 0 && outputs > 0 && job.pair_count > 0);
    assert_eq!(job.pairs.len(), outputs * job.pair_count);
    // A group reads 16 bytes at its first pixel; the last pair's pixels are at most 2 * pair_count - 2 further on.
    let last_first = job.first.iter().copied().max().unwrap_or_default() as usize;
    let row_reach = 3 * (last_first + 2 * job.pair_count - 2) + 16;
    assert!((rows - 1) * source_stride + row_reach <= source.len(), "source rows hold every weighted pixel");
    // A group of outputs writes 16 bytes at its first output (interleaved), or 4 bytes into each of three planes.
    let groups = outputs.div_ceil(OUTPUTS_AT_ONCE);
    let row_extent = match job.plane_stride {
        None => (groups - 1) * OUTPUTS_AT_ONCE * 3 + 16,
        Some(stride) => 2 * stride + groups * OUTPUTS_AT_ONCE,
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
    for start in (0..rows).step_by(ROWS_AT_ONCE) {
        // Fewer rows than are read at once: the last one is made again in its own place.
        let row = |index: usize| (start + index).min(rows - 1);
        let sources: [*const u8; ROWS_AT_ONCE] =
            std::array::from_fn(|index| source.as_ptr().wrapping_add(row(index) * source_stride));
        let targets: [*mut u8; ROWS_AT_ONCE] =
            std::array::from_fn(|index| target.as_mut_ptr().wrapping_add(target_rows[row(index)]));
        // SAFETY:
        // - AVX2 is there, by the first assert;
        // - each source pointer is readable for `row_reach` bytes and each target pointer writable for `row_extent`
        //   bytes, by the asserts above; `source` and `target` are distinct borrows;
        // - `pairs` holds `pair_count` pairs for each of `first`.
        unsafe { pass(job, sources, targets) };
    }
}

/// Resamples four rows. `PAIRS` is the number of pairs where it is 1 or 2, else 0.
///
/// # Safety
/// As argued at the only call.
#[target_feature(enable = "avx2")]
unsafe fn horizontal_rows<const PAIRS: usize, const PLANAR: bool>(
    job: Horizontal<'_>,
    sources: [*const u8; ROWS_AT_ONCE],
    targets: [*mut u8; ROWS_AT_ONCE],
) {
    let pair_count = if PAIRS == 0 { job.pair_count } else { PAIRS };
    let compact = if PLANAR {
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1))
    } else {
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1))
    };
    let plane_stride = job.plane_stride.unwrap_or_default();
    for (group, firsts) in job.first.chunks(OUTPUTS_AT_ONCE).enumerate() {
        let output = group * OUTPUTS_AT_ONCE;
        let mut upper_rows = [_mm256_setzero_si256(); OUTPUTS_AT_ONCE];
        let mut lower_rows = [_mm256_setzero_si256(); OUTPUTS_AT_ONCE];
        for index in 0..OUTPUTS_AT_ONCE {
            // A group that sticks out repeats its last output in the slack.
            let index_inside = index.min(firsts.len() - 1);
            let offset = 3 * firsts[index_inside] as usize;
            let pairs = &job.pairs[(output + index_inside) * pair_count..][..pair_count];
            // SAFETY: the offset and the pairs stay within the caller's reach.
            (upper_rows[index], lower_rows[index]) = unsafe { output_of_rows::<PAIRS>(sources, offset, pairs) };
        }
        for (half, pixels) in [upper_rows, lower_rows].into_iter().enumerate() {
            let words0 = _mm256_packus_epi32(pixels[0], pixels[1]);
            let words1 = _mm256_packus_epi32(pixels[2], pixels[3]);
            let bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words0, words1), compact);
            let rows = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
            for (row, bytes) in rows.into_iter().enumerate() {
                let target = targets[2 * half + row];
                if PLANAR {
                    let planes =
                        [_mm_cvtsi128_si32(bytes), _mm_extract_epi32::<1>(bytes), _mm_extract_epi32::<2>(bytes)];
                    for (plane, four) in planes.into_iter().enumerate() {
                        let place: *mut i32 = target.wrapping_add(plane * plane_stride + output).cast();
                        // SAFETY: four bytes inside the row's extent, by the caller's contract.
                        unsafe { place.write_unaligned(four) };
                    }
                } else {
                    let place = target.wrapping_add(3 * output).cast();
                    // SAFETY: 16 bytes from the group's first output are inside the row's extent.
                    unsafe { _mm_storeu_si128(place, bytes) };
                }
            }
        }
    }
}

/// One output of four rows: red, green, blue, nothing, as 32-bit integers; rows 0 and 1, then rows 2 and 3.
///
/// # Safety
/// Each source is readable from `offset` for what [`horizontal`] asserts.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn output_of_rows<const PAIRS: usize>(
    sources: [*const u8; ROWS_AT_ONCE],
    offset: usize,
    pairs: &[WeightPair],
) -> (__m256i, __m256i) {
    // Words of two neighbouring pixels side by side, channel by channel; of pixels 0 and 1, of pixels 2 and 3.
    let pixels01 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    let pixels23 =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    let mut upper = [_mm256_setzero_si256(); 2];
    let mut lower = [_mm256_set1_epi32(ROUND); 2];
    let mut index = 0;
    while index < pairs.len() {
        let place = offset + 6 * index;
        let rows = sources.map(|source| source.wrapping_add(place));
        // SAFETY: 16 bytes from the first pixel of a pair are within reach.
        let rows01 = unsafe { load_rows(rows[0], rows[1]) };
        // SAFETY: likewise.
        let rows23 = unsafe { load_rows(rows[2], rows[3]) };
        let loaded = [rows01, rows23];
        add_pair(&mut upper, &mut lower, loaded, pixels01, pairs[index]);
        if PAIRS != 1 && index + 1 < pairs.len() {
            add_pair(&mut upper, &mut lower, loaded, pixels23, pairs[index + 1]);
        }
        index += 2;
    }
    let join = |upper, lower| {
        let sum = _mm256_add_epi32(_mm256_slli_epi32::<{ SPLIT_BITS as i32 }>(upper), lower);
        _mm256_srli_epi32::<{ WEIGHT_BITS as i32 }>(sum)
    };
    (join(upper[0], lower[0]), join(upper[1], lower[1]))
}

/// Adds the products of a pair of pixels of four rows.
#[inline]
#[target_feature(enable = "avx2")]
fn add_pair(
    upper: &mut [__m256i; 2],
    lower: &mut [__m256i; 2],
    loaded: [__m256i; 2],
    arrange: __m256i,
    pair: WeightPair,
) {
    let upper_weights = _mm256_set1_epi32(joined(pair.upper));
    let lower_weights = _mm256_set1_epi32(joined(pair.lower));
    for rows in 0..2 {
        let words = _mm256_shuffle_epi8(loaded[rows], arrange);
        upper[rows] = _mm256_add_epi32(upper[rows], _mm256_madd_epi16(words, upper_weights));
        lower[rows] = _mm256_add_epi32(lower[rows], _mm256_madd_epi16(words, lower_weights));
    }
}

/// Two words as the 32 bits that they are in memory.
#[inline]
fn joined(words: [i16; 2]) -> i32 {
    i32::from(words[0] as u16) | i32::from(words[1]) << 16
}

/// 16 bytes of one row and 16 of another.
///
/// # Safety
/// Both are readable for 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_rows(row0: *const u8, row1: *const u8) -> __m256i {
    // SAFETY: the caller's contract; the load may be unaligned.
    let low = unsafe { _mm_loadu_si128(row0.cast()) };
    // SAFETY: likewise.
    let high = unsafe { _mm_loadu_si128(row1.cast()) };
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
}

/// Bytes that the vertical pass makes at once; shorter outputs take the portable pass.
pub const COLUMNS_AT_ONCE: usize = 32;

/// Sums rows of bytes by weight. `rows` says where the two rows of each pair start in `source`.
pub fn vertical(pairs: &[WeightPair], rows: &[[usize; 2]], source: &[u8], target: &mut [u8]) {
    assert!(is_supported(), "called only where AVX2 is");
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
            let pair = pairs[index];
            let upper_weights = _mm256_set1_epi32(joined(pair.upper));
            let lower_weights = _mm256_set1_epi32(joined(pair.lower));
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
        let join = |part: usize| {
            let sum = _mm256_add_epi32(_mm256_slli_epi32::<{ SPLIT_BITS as i32 }>(upper[part]), lower[part]);
            _mm256_srli_epi32::<{ WEIGHT_BITS as i32 }>(sum)
        };
        let words0 = _mm256_packus_epi32(join(0), join(1));
        let words1 = _mm256_packus_epi32(join(2), join(3));
        let bytes = _mm256_packus_epi16(words0, words1);
        let place = target.as_mut_ptr().wrapping_add(column).cast();
        // SAFETY: `column + 32` is at most the target's length.
        unsafe { _mm256_storeu_si256(place, bytes) };
        column += COLUMNS_AT_ONCE;
    }
}
