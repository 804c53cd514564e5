//! Inverse transforms, two blocks at once, one in each half of a vector: a row of eight 16-bit values of the first beside
//! the same row of the second. Nothing then has to cross the halves before the bytes are stored.

#![expect(unsafe_code, reason = "AVX2 loads and stores through pointers, bounds asserted before")]

use std::arch::x86_64::*;

use super::weights;
use crate::decode::jpeg::mcu_rows::Blocks;
use crate::decode::jpeg::pixels::idct::{self, Dequantiser};
use crate::sys::simd::has_avx2;

/// Transforms a row of blocks to samples: block b to the 8 columns from `8 * b` of 8 rows that are `stride` apart. Eight
/// columns behind the last block may be overwritten.
pub fn row(blocks: Blocks<'_>, table: &Dequantiser, samples: &mut [u8], stride: usize) {
    assert!(has_avx2(), "called only where AVX2 is");
    let columns = 8 * blocks.len().next_multiple_of(2);
    assert!(columns <= stride && 7 * stride + columns <= samples.len(), "the samples have room");
    // SAFETY: AVX2 is there, and each pair of blocks may write 16 columns of 8 rows, by the asserts.
    unsafe { idct_pairs(blocks, table, samples, stride) };
}

/// # Safety
/// As argued at the only call.
#[target_feature(enable = "avx2")]
unsafe fn idct_pairs(blocks: Blocks<'_>, table: &Dequantiser, samples: &mut [u8], stride: usize) {
    // An odd last block is made twice, the second time behind the row.
    for (index, (blocks, has_second)) in blocks.pairs().enumerate() {
        let target = samples.as_mut_ptr().wrapping_add(16 * index);
        let rows = match extent(blocks) {
            Extent::First => {
                let [first, second] = blocks.map(|block| idct::flat_sample(block[0], table.first()));
                let row = _mm_unpacklo_epi64(_mm_set1_epi8(first as i8), _mm_set1_epi8(second as i8));
                Some([_mm256_broadcastsi128_si256(row); 4])
            }
            Extent::Corner => idct_sparse(blocks, table),
            Extent::Whole => idct_full(blocks, table),
        };
        if let Some(rows) = rows {
            for (pair, rows) in rows.into_iter().enumerate() {
                let [upper, lower] = [2 * pair, 2 * pair + 1].map(|row| target.wrapping_add(row * stride).cast());
                let (first, second) = (_mm256_castsi256_si128(rows), _mm256_extracti128_si256::<1>(rows));
                // SAFETY: 16 columns of row `2 * pair` are inside the samples, by the caller's contract.
                unsafe { _mm_storeu_si128(upper, first) };
                // SAFETY: likewise of the next row.
                unsafe { _mm_storeu_si128(lower, second) };
            }
        } else {
            for (half, block) in blocks.into_iter().take(1 + usize::from(has_second)).enumerate() {
                idct::block(block, table, &mut samples[16 * index + 8 * half..], stride);
            }
        }
    }
}

/// Where the coefficients of two blocks lie that are not zero.
enum Extent {
    First,
    /// The first four rows and columns.
    Corner,
    Whole,
}

#[inline]
#[target_feature(enable = "avx2")]
fn extent(blocks: [&[i16; 64]; 2]) -> Extent {
    // Two rows of each block at a time.
    let rows = |pair: usize| {
        let [first, second]: [&[i16; 16]; 2] = blocks.map(|block| &block.as_chunks().0[pair]);
        // SAFETY: 16 coefficients are readable at a borrow of them.
        let first = unsafe { _mm256_loadu_si256(first.as_ptr().cast()) };
        // SAFETY: likewise.
        let second = unsafe { _mm256_loadu_si256(second.as_ptr().cast()) };
        _mm256_or_si256(first, second)
    };
    let (rows01, rows23) = (rows(0), rows(1));
    let lower = _mm256_or_si256(rows(2), rows(3));
    let right = _mm256_and_si256(_mm256_or_si256(rows01, rows23), _mm256_setr_epi64x(0, -1, 0, -1));
    let outside = _mm256_or_si256(lower, right);
    if _mm256_testz_si256(outside, outside) == 0 {
        return Extent::Whole;
    }
    let others = _mm256_or_si256(rows23, _mm256_and_si256(rows01, _mm256_setr_epi64x(!0xffff, -1, -1, -1)));
    if _mm256_testz_si256(others, others) == 0 { Extent::Corner } else { Extent::First }
}

/// A row of two blocks, dequantised.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn dequantised(blocks: [&[i16; 64]; 2], table: &Dequantiser, row: usize) -> __m256i {
    let [first, second]: [&[i16; 8]; 2] = [&blocks[0].as_chunks().0[row], &blocks[1].as_chunks().0[row]];
    // SAFETY: eight coefficients are readable at a borrow of them.
    let first = unsafe { _mm_loadu_si128(first.as_ptr().cast()) };
    // SAFETY: likewise.
    let second = unsafe { _mm_loadu_si128(second.as_ptr().cast()) };
    // SAFETY: 16 steps are readable at a borrow of them.
    let steps = unsafe { _mm256_loadu_si256(table.rows[row].as_ptr().cast()) };
    _mm256_mullo_epi16(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second), steps)
}

/// Whether some word is not in `-limit..limit`, a power of two.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn exceeds(words: [__m256i; 2], limit: i16) -> bool {
    let limit = _mm256_set1_epi16(limit);
    let shifted = _mm256_or_si256(_mm256_add_epi16(words[0], limit), _mm256_add_epi16(words[1], limit));
    // Below twice the limit as numbers without a sign.
    let beyond = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_add_epi16(limit, limit));
    _mm256_testz_si256(shifted, beyond) == 0
}

/// Two blocks: rows 0 and 1 of samples, 2 and 3, …; a row holds eight samples of the first and eight of the second.
/// `None` where the library wraps, which this does not.
#[inline]
#[target_feature(enable = "avx2")]
fn idct_full(blocks: [&[i16; 64]; 2], table: &Dequantiser) -> Option<[__m256i; 4]> {
    let mut x = [_mm256_setzero_si256(); 8];
    for (index, row) in x.iter_mut().enumerate() {
        *row = dequantised(blocks, table, index);
    }
    if exceeds([x[0], x[4]], 1 << 13) {
        return None;
    }
    let low = half_full::<{ idct::SHIFT_COLUMNS }>([
        _mm256_unpacklo_epi16(x[0], x[4]),
        _mm256_unpacklo_epi16(x[2], x[6]),
        _mm256_unpacklo_epi16(x[7], x[1]),
        _mm256_unpacklo_epi16(x[3], x[5]),
    ]);
    let high = half_full::<{ idct::SHIFT_COLUMNS }>([
        _mm256_unpackhi_epi16(x[0], x[4]),
        _mm256_unpackhi_epi16(x[2], x[6]),
        _mm256_unpackhi_epi16(x[7], x[1]),
        _mm256_unpackhi_epi16(x[3], x[5]),
    ]);
    // The columns of each row as the pairs that the second pass takes: 0 and 4, 2 and 6, 7 and 1, 3 and 5.
    let arrange = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 14, 15, 2, 3, 6, 7, 10, 11));
    for (row, (low, high)) in x.iter_mut().zip(low.into_iter().zip(high)) {
        let low = _mm256_srai_epi32::<{ idct::SHIFT_COLUMNS }>(low);
        let high = _mm256_srai_epi32::<{ idct::SHIFT_COLUMNS }>(high);
        *row = _mm256_shuffle_epi8(_mm256_packs_epi32(low, high), arrange);
    }
    let even = transposed([x[0], x[2], x[4], x[6]]);
    let odd = transposed([x[1], x[3], x[5], x[7]]);
    if exceeds([even[0], odd[0]], 1 << 14) {
        return None;
    }
    let even = half_full::<{ idct::SHIFT_ROWS }>(even);
    let odd = half_full::<{ idct::SHIFT_ROWS }>(odd);
    Some(to_bytes(even, odd))
}

/// Four rows of four pairs, in each half, to four columns.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transposed(rows: [__m256i; 4]) -> [__m256i; 4] {
    let low01 = _mm256_unpacklo_epi32(rows[0], rows[1]);
    let high01 = _mm256_unpackhi_epi32(rows[0], rows[1]);
    let low23 = _mm256_unpacklo_epi32(rows[2], rows[3]);
    let high23 = _mm256_unpackhi_epi32(rows[2], rows[3]);
    [
        _mm256_unpacklo_epi64(low01, low23),
        _mm256_unpackhi_epi64(low01, low23),
        _mm256_unpacklo_epi64(high01, high23),
        _mm256_unpackhi_epi64(high01, high23),
    ]
}

/// Eight inverse transforms of eight values, given as pairs of words and not yet scaled down; what `SHIFT` will round is
/// added.
#[inline]
#[target_feature(enable = "avx2")]
fn half_full<const SHIFT: i32>([x04, x26, x71, x35]: [__m256i; 4]) -> [__m256i; 8] {
    use idct::*;
    let round = _mm256_set1_epi32(1 << (SHIFT - 1));
    let even0 = _mm256_add_epi32(_mm256_madd_epi16(x04, weights([ONE, ONE])), round);
    let even1 = _mm256_add_epi32(_mm256_madd_epi16(x04, weights([ONE, -ONE])), round);
    let even2 = _mm256_madd_epi16(x26, weights([F_0_541, F_0_541 - F_1_847]));
    let even3 = _mm256_madd_epi16(x26, weights([F_0_541 + F_0_765, F_0_541]));
    let z34 = _mm256_add_epi16(x71, x35);
    let z3 = _mm256_madd_epi16(z34, weights([F_1_175 - F_1_961, F_1_175]));
    let z4 = _mm256_madd_epi16(z34, weights([F_1_175, F_1_175 - F_0_390]));
    let odd0 = _mm256_add_epi32(_mm256_madd_epi16(x71, weights([F_0_298 - F_0_899, -F_0_899])), z3);
    let odd1 = _mm256_add_epi32(_mm256_madd_epi16(x35, weights([-F_2_562, F_2_053 - F_2_562])), z4);
    let odd2 = _mm256_add_epi32(_mm256_madd_epi16(x35, weights([F_3_072 - F_2_562, -F_2_562])), z3);
    let odd3 = _mm256_add_epi32(_mm256_madd_epi16(x71, weights([-F_0_899, F_1_501 - F_0_899])), z4);
    let even = [
        _mm256_add_epi32(even0, even3),
        _mm256_add_epi32(even1, even2),
        _mm256_sub_epi32(even1, even2),
        _mm256_sub_epi32(even0, even3),
    ];
    butterfly(even, [odd3, odd2, odd1, odd0])
}

/// Even and odd parts joined.
#[inline]
#[target_feature(enable = "avx2")]
fn butterfly(even: [__m256i; 4], odd: [__m256i; 4]) -> [__m256i; 8] {
    let mut values = [_mm256_setzero_si256(); 8];
    for index in 0..4 {
        values[index] = _mm256_add_epi32(even[index], odd[index]);
        values[7 - index] = _mm256_sub_epi32(even[index], odd[index]);
    }
    values
}

/// [`idct_full`] of blocks whose coefficients all lie in the first four rows and columns.
#[inline]
#[target_feature(enable = "avx2")]
fn idct_sparse(blocks: [&[i16; 64]; 2], table: &Dequantiser) -> Option<[__m256i; 4]> {
    let mut x = [_mm256_setzero_si256(); 4];
    for (index, row) in x.iter_mut().enumerate() {
        *row = dequantised(blocks, table, index);
    }
    if exceeds([x[0]; 2], 1 << 13) {
        return None;
    }
    let mut rows =
        half_sparse::<{ idct::SHIFT_COLUMNS }>(_mm256_unpacklo_epi16(x[0], x[2]), _mm256_unpacklo_epi16(x[1], x[3]));
    for row in &mut rows {
        *row = _mm256_srai_epi32::<{ idct::SHIFT_COLUMNS }>(*row);
    }
    // Two rows of four values in each half become pairs of columns 0 and 2, then pairs of columns 1 and 3.
    let arrange = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    let rows02 = _mm256_shuffle_epi8(_mm256_packs_epi32(rows[0], rows[2]), arrange);
    let rows46 = _mm256_shuffle_epi8(_mm256_packs_epi32(rows[4], rows[6]), arrange);
    let rows13 = _mm256_shuffle_epi8(_mm256_packs_epi32(rows[1], rows[3]), arrange);
    let rows57 = _mm256_shuffle_epi8(_mm256_packs_epi32(rows[5], rows[7]), arrange);
    let even = half_sparse::<{ idct::SHIFT_ROWS }>(
        _mm256_unpacklo_epi64(rows02, rows46),
        _mm256_unpackhi_epi64(rows02, rows46),
    );
    let odd = half_sparse::<{ idct::SHIFT_ROWS }>(
        _mm256_unpacklo_epi64(rows13, rows57),
        _mm256_unpackhi_epi64(rows13, rows57),
    );
    Some(to_bytes(even, odd))
}

/// [`half_full`] where the inputs 4 to 7 are zero, which leaves one product of pairs for each part.
#[inline]
#[target_feature(enable = "avx2")]
fn half_sparse<const SHIFT: i32>(x02: __m256i, x13: __m256i) -> [__m256i; 8] {
    use idct::*;
    let round = _mm256_set1_epi32(1 << (SHIFT - 1));
    let even = [[ONE, F_0_541 + F_0_765], [ONE, F_0_541], [ONE, -F_0_541], [ONE, -F_0_541 - F_0_765]];
    let odd = [
        [F_1_501 - F_0_899 + F_1_175 - F_0_390, F_1_175],
        [F_1_175, F_3_072 - F_2_562 + F_1_175 - F_1_961],
        [F_1_175 - F_0_390, F_1_175 - F_2_562],
        [F_1_175 - F_0_899, F_1_175 - F_1_961],
    ];
    let mut evens = [_mm256_setzero_si256(); 4];
    let mut odds = evens;
    for index in 0..4 {
        evens[index] = _mm256_add_epi32(_mm256_madd_epi16(x02, weights(even[index])), round);
        odds[index] = _mm256_madd_epi16(x13, weights(odd[index]));
    }
    butterfly(evens, odds)
}

/// Columns of samples around zero, those of even and of odd rows, not yet scaled down, to rows of bytes around 128: two
/// rows of 16 bytes a vector.
#[inline]
#[target_feature(enable = "avx2")]
fn to_bytes(even: [__m256i; 8], odd: [__m256i; 8]) -> [__m256i; 4] {
    let mut columns = even;
    for (column, odd) in columns.iter_mut().zip(odd) {
        // The upper halves side by side; then a product that shifts, since the ports of shifts are busy.
        let words = _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(*column), odd);
        *column = _mm256_mulhi_epi16(words, _mm256_set1_epi16(1 << (32 - idct::SHIFT_ROWS)));
    }
    let columns04 = _mm256_packs_epi16(columns[0], columns[4]);
    let columns15 = _mm256_packs_epi16(columns[1], columns[5]);
    let columns26 = _mm256_packs_epi16(columns[2], columns[6]);
    let columns37 = _mm256_packs_epi16(columns[3], columns[7]);
    let columns01 = _mm256_unpacklo_epi8(columns04, columns15);
    let columns45 = _mm256_unpackhi_epi8(columns04, columns15);
    let columns23 = _mm256_unpacklo_epi8(columns26, columns37);
    let columns67 = _mm256_unpackhi_epi8(columns26, columns37);
    let top0123 = _mm256_unpacklo_epi16(columns01, columns23);
    let bottom0123 = _mm256_unpackhi_epi16(columns01, columns23);
    let top4567 = _mm256_unpacklo_epi16(columns45, columns67);
    let bottom4567 = _mm256_unpackhi_epi16(columns45, columns67);
    let mut rows = [
        _mm256_unpacklo_epi32(top0123, top4567),
        _mm256_unpackhi_epi32(top0123, top4567),
        _mm256_unpacklo_epi32(bottom0123, bottom4567),
        _mm256_unpackhi_epi32(bottom0123, bottom4567),
    ];
    for rows in &mut rows {
        // Two rows of the first block, then two of the second, become row after row.
        let bytes = _mm256_add_epi8(*rows, _mm256_set1_epi8(-128));
        *rows = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
    }
    rows
}
