//! Inverse transforms to 4 or 2 samples a side with AVX2: the same integers as the portable ones in
//! [`crate::decode::jpeg::pixels::reduced`]. Two blocks at once, as in [`super::idct`].

#![expect(unsafe_code, reason = "AVX2 loads and stores through pointers, bounds asserted before")]

use std::arch::x86_64::*;

use super::idct::{dequantised, exceeds, transposed};
use super::weights;
use crate::decode::jpeg::mcu_rows::Blocks;
use crate::decode::jpeg::pixels::idct::{CONST_BITS, Dequantiser};
use crate::decode::jpeg::pixels::reduced::{
    self, EVEN_OF_26, INNER_OF_1357, OUTER_OF_1357, SHIFTS_OF_2, SHIFTS_OF_4, TWO_OF_1357,
};
use crate::sys::simd::has_avx2;

/// Transforms a row of blocks: block b to the 4 columns from `4 * b` of 4 rows that are `stride` apart. Four columns
/// behind the last block may be overwritten.
pub fn row_of_4(blocks: Blocks<'_>, table: &Dequantiser, samples: &mut [u8], stride: usize) {
    assert!(has_avx2(), "called only where AVX2 is");
    let columns = 4 * blocks.len().next_multiple_of(2);
    assert!(columns <= stride && 3 * stride + columns <= samples.len(), "the samples have room");

    /// # Safety
    /// As argued at the only call.
    #[target_feature(enable = "avx2")]
    unsafe fn kernel(blocks: Blocks<'_>, table: &Dequantiser, samples: &mut [u8], stride: usize) {
        // An odd last block is made twice, the second time behind the row.
        for (index, (blocks, has_second)) in blocks.pairs().enumerate() {
            let Some(rows) = pair_of_4(blocks, table) else {
                for (half, block) in blocks.into_iter().take(1 + usize::from(has_second)).enumerate() {
                    reduced::block_of_4(block, table, &mut samples[8 * index + 4 * half..], stride);
                }
                continue;
            };
            let target = samples.as_mut_ptr().wrapping_add(8 * index);
            for (pair, rows) in rows.into_iter().enumerate() {
                let [upper, lower] = [2 * pair, 2 * pair + 1].map(|row| target.wrapping_add(row * stride).cast());
                let rows = _mm_castsi128_pd(rows);
                // SAFETY: eight columns of row `2 * pair` are inside the samples, by the asserts.
                unsafe { _mm_storel_pd(upper, rows) };
                // SAFETY: likewise of the next row.
                unsafe { _mm_storeh_pd(lower, rows) };
            }
        }
    }
    // SAFETY: AVX2 is there, and each pair of blocks may write 8 columns of 4 rows, by the asserts.
    unsafe { kernel(blocks, table, samples, stride) };
}

/// Two blocks: rows 0 and 1 of samples, then 2 and 3; a row holds four samples of the first and four of the second.
/// `None` where the library wraps.
#[inline]
#[target_feature(enable = "avx2")]
fn pair_of_4(blocks: [&[i16; 64]; 2], table: &Dequantiser) -> Option<[__m128i; 2]> {
    let mut x = [_mm256_setzero_si256(); 8];
    for (index, row) in x.iter_mut().enumerate() {
        *row = dequantised(blocks, table, index);
    }
    if exceeds([x[0]; 2], 1 << 13) {
        return None;
    }
    let low = sums_of_4::<{ SHIFTS_OF_4[0] }>([
        _mm256_unpacklo_epi16(x[0], x[4]),
        _mm256_unpacklo_epi16(x[2], x[6]),
        _mm256_unpacklo_epi16(x[1], x[3]),
        _mm256_unpacklo_epi16(x[5], x[7]),
    ]);
    let high = sums_of_4::<{ SHIFTS_OF_4[0] }>([
        _mm256_unpackhi_epi16(x[0], x[4]),
        _mm256_unpackhi_epi16(x[2], x[6]),
        _mm256_unpackhi_epi16(x[1], x[3]),
        _mm256_unpackhi_epi16(x[5], x[7]),
    ]);
    // The columns of each row as the pairs that the second pass takes: 0 and 4, 2 and 6, 1 and 3, 5 and 7.
    let arrange = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    let mut rows = [_mm256_setzero_si256(); 4];
    for (row, (low, high)) in rows.iter_mut().zip(low.into_iter().zip(high)) {
        *row = _mm256_shuffle_epi8(_mm256_packs_epi32(low, high), arrange);
    }
    let columns = sums_of_4::<{ SHIFTS_OF_4[1] }>(transposed(rows));
    let bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(columns[0], columns[1]), _mm256_packs_epi32(columns[2], columns[3]));
    let bytes = _mm256_add_epi8(bytes, _mm256_set1_epi8(-128));
    let to_rows = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    let rows = _mm256_shuffle_epi8(bytes, to_rows);
    let (first, second) = (_mm256_castsi256_si128(rows), _mm256_extracti128_si256::<1>(rows));
    Some([_mm_unpacklo_epi32(first, second), _mm_unpackhi_epi32(first, second)])
}

/// Eight inverse transforms to four values, scaled down.
#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_4<const SHIFT: i32>([x04, x26, x13, x57]: [__m256i; 4]) -> [__m256i; 4] {
    let round = _mm256_set1_epi32(1 << (SHIFT - 1));
    let [outer1, outer3, outer5, outer7] = OUTER_OF_1357;
    let [inner1, inner3, inner5, inner7] = INNER_OF_1357;
    // Input 4 is left out.
    let zero = _mm256_add_epi32(_mm256_madd_epi16(x04, weights([1 << (CONST_BITS + 1), 0])), round);
    let even = _mm256_madd_epi16(x26, weights(EVEN_OF_26));
    let outer = _mm256_add_epi32(
        _mm256_madd_epi16(x13, weights([outer1, outer3])),
        _mm256_madd_epi16(x57, weights([outer5, outer7])),
    );
    let inner = _mm256_add_epi32(
        _mm256_madd_epi16(x13, weights([inner1, inner3])),
        _mm256_madd_epi16(x57, weights([inner5, inner7])),
    );
    let (upper, lower) = (_mm256_add_epi32(zero, even), _mm256_sub_epi32(zero, even));
    [
        _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(upper, outer)),
        _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(lower, inner)),
        _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(lower, inner)),
        _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(upper, outer)),
    ]
}

/// Transforms a row of blocks: block b to the 2 columns from `2 * b` of 2 rows that are `stride` apart. Two columns behind
/// the last block may be overwritten.
pub fn row_of_2(blocks: Blocks<'_>, table: &Dequantiser, samples: &mut [u8], stride: usize) {
    assert!(has_avx2(), "called only where AVX2 is");
    let columns = 2 * blocks.len().next_multiple_of(2);
    assert!(columns <= stride && stride + columns <= samples.len(), "the samples have room");
    let (first, second) = samples.split_at_mut(stride);
    let rows = first.as_chunks_mut().0.iter_mut().zip(second.as_chunks_mut().0);
    for ((blocks, _), (first, second)) in blocks.pairs().zip(rows) {
        // SAFETY: AVX2 is there, by the assert.
        [*first, *second] = unsafe { pair_of_2(blocks, table) };
    }
}

/// Two blocks: two rows of samples, each two of the first and two of the second.
#[inline]
#[target_feature(enable = "avx2")]
fn pair_of_2(blocks: [&[i16; 64]; 2], table: &Dequantiser) -> [[u8; 4]; 2] {
    let [weight1, weight3, weight5, weight7] = TWO_OF_1357;
    let mut x = [_mm256_setzero_si256(); 5];
    for (row, index) in x.iter_mut().zip([0, 1, 3, 5, 7]) {
        *row = dequantised(blocks, table, index);
    }
    let zero = _mm256_setzero_si256();
    let sums = |x0: __m256i, x13: __m256i, x57: __m256i| {
        let even = _mm256_srai_epi32::<{ 16 - CONST_BITS - 2 }>(x0);
        let even = _mm256_add_epi32(even, _mm256_set1_epi32(1 << (SHIFTS_OF_2[0] - 1)));
        let odd = _mm256_add_epi32(
            _mm256_madd_epi16(x13, weights([weight1, weight3])),
            _mm256_madd_epi16(x57, weights([weight5, weight7])),
        );
        [
            _mm256_srai_epi32::<{ SHIFTS_OF_2[0] }>(_mm256_add_epi32(even, odd)),
            _mm256_srai_epi32::<{ SHIFTS_OF_2[0] }>(_mm256_sub_epi32(even, odd)),
        ]
    };
    let low =
        sums(_mm256_unpacklo_epi16(zero, x[0]), _mm256_unpacklo_epi16(x[1], x[2]), _mm256_unpacklo_epi16(x[3], x[4]));
    let high =
        sums(_mm256_unpackhi_epi16(zero, x[0]), _mm256_unpackhi_epi16(x[1], x[2]), _mm256_unpackhi_epi16(x[3], x[4]));
    // Every second column counts, and the first, which stays in 32 bits.
    let [weight1, weight3, weight5, weight7] = TWO_OF_1357.map(|weight| weight as i16);
    let odd_weights = _mm_setr_epi16(0, weight1, 0, weight3, 0, weight5, 0, weight7);
    let odd_weights = _mm256_broadcastsi128_si256(odd_weights);
    let products0 = _mm256_madd_epi16(_mm256_packs_epi32(low[0], high[0]), odd_weights);
    let products1 = _mm256_madd_epi16(_mm256_packs_epi32(low[1], high[1]), odd_weights);
    let odd = _mm256_hadd_epi32(products0, products1);
    let odd = _mm256_hadd_epi32(odd, odd);
    let even = _mm256_slli_epi32::<{ CONST_BITS + 2 }>(_mm256_unpacklo_epi32(low[0], low[1]));
    let even = _mm256_add_epi32(even, _mm256_set1_epi32(1 << (SHIFTS_OF_2[1] - 1)));
    let left = _mm256_srai_epi32::<{ SHIFTS_OF_2[1] }>(_mm256_add_epi32(even, odd));
    let right = _mm256_srai_epi32::<{ SHIFTS_OF_2[1] }>(_mm256_sub_epi32(even, odd));
    let words = _mm256_packs_epi32(_mm256_unpacklo_epi32(left, right), zero);
    let bytes = _mm256_add_epi8(_mm256_packs_epi16(words, zero), _mm256_set1_epi8(-128));
    let [a, b, c, d] = _mm256_extract_epi32::<0>(bytes).to_le_bytes();
    let [e, f, g, h] = _mm256_extract_epi32::<4>(bytes).to_le_bytes();
    [[a, b, e, f], [c, d, g, h]]
}
