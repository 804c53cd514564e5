//! The inverse transform: accurate integers ("islow"), after Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT
//! algorithms with 11 multiplications" (ICASSP 1989), with constants of 13 fractional bits; columns first, whose
//! results keep 2 fractional bits. ITU-T T.81 A.3.3 leaves the arithmetic open; this is libjpeg-turbo's, bit for bit.
//!
//! libjpeg-turbo computes in 16-bit lanes on x86-64, and damaged or odd files make values that do not fit. What it then
//! does is done here as well: products and sums of inputs wrap, results of a pass saturate, except in blocks whose
//! coefficients all lie in the first row, where the columns wrap.

use super::reduced;
use crate::decode::jpeg::mcu_rows::Blocks;
use crate::sys::simd::Path;
#[cfg(target_arch = "x86_64")]
use crate::sys::simd_jpeg;

/// Fractional bits of the constants.
pub const CONST_BITS: i32 = 13;

/// Fractional bits that the first pass leaves in its results.
pub const PASS_BITS: i32 = 2;

/// What the first pass, over columns, scales down by.
pub const SHIFT_COLUMNS: i32 = CONST_BITS - PASS_BITS;

/// What the second pass, over rows, scales down by; 3 for the size of the transform.
pub const SHIFT_ROWS: i32 = CONST_BITS + PASS_BITS + 3;

/// One, as a constant.
pub const ONE: i32 = 1 << CONST_BITS;

/// Of a rotation: 0.298631336.
pub const F_0_298: i32 = 2446;
/// Of a rotation: 0.390180644.
pub const F_0_390: i32 = 3196;
/// Of a rotation: 0.541196100.
pub const F_0_541: i32 = 4433;
/// Of a rotation: 0.765366865.
pub const F_0_765: i32 = 6270;
/// Of a rotation: 0.899976223.
pub const F_0_899: i32 = 7373;
/// Of a rotation: 1.175875602.
pub const F_1_175: i32 = 9633;
/// Of a rotation: 1.501321110.
pub const F_1_501: i32 = 12299;
/// Of a rotation: 1.847759065.
pub const F_1_847: i32 = 15137;
/// Of a rotation: 1.961570560.
pub const F_1_961: i32 = 16069;
/// Of a rotation: 2.053119869.
pub const F_2_053: i32 = 16819;
/// Of a rotation: 2.562915447.
pub const F_2_562: i32 = 20995;
/// Of a rotation: 3.072711026.
pub const F_3_072: i32 = 25172;

/// A quantisation table as the transform reads it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
pub struct Dequantiser {
    /// Rows of steps, each twice, for two blocks side by side. Steps of 16 bits are taken modulo 2^16, as the products
    /// are.
    pub rows: [[i16; 16]; 8],
}

impl Dequantiser {
    /// Of a table in row-major order.
    pub fn new(steps: &[u16; 64]) -> Self {
        let steps = steps.as_chunks::<8>().0;
        Self { rows: std::array::from_fn(|row| std::array::from_fn(|column| steps[row][column % 8] as i16)) }
    }

    /// A dequantised coefficient.
    pub fn value(&self, coefficients: &[i16; 64], row: usize, column: usize) -> i16 {
        coefficients[8 * row + column].wrapping_mul(self.rows[row][column])
    }

    /// The step of the DC coefficient.
    pub fn first(&self) -> i16 {
        self.rows[0][0]
    }
}

/// Transforms a row of blocks to samples: block b to the `side` columns from `side * b` of as many rows that are `stride`
/// apart. `side`: 8, or 4, 2, 1 for a reduced image. 16 columns behind the last block may be overwritten.
pub fn block_row(path: Path, side: usize, blocks: Blocks<'_>, table: &Dequantiser, samples: &mut [u8], stride: usize) {
    let each = |samples: &mut [u8], block: fn(&[i16; 64], &Dequantiser, &mut [u8], usize)| {
        for (index, coefficients) in blocks.iter().enumerate() {
            block(coefficients, table, &mut samples[side * index..], stride);
        }
    };
    match (side, path) {
        (8, Path::Portable) => each(samples, block),
        (4, Path::Portable) => each(samples, reduced::block_of_4),
        (2, Path::Portable) => each(samples, reduced::block_of_2),
        (1, _) => each(samples, reduced::block_of_1),
        #[cfg(target_arch = "x86_64")]
        (8, Path::Avx2) => simd_jpeg::idct::row(blocks, table, samples, stride),
        #[cfg(target_arch = "x86_64")]
        (4, Path::Avx2) => simd_jpeg::reduced::row_of_4(blocks, table, samples, stride),
        #[cfg(target_arch = "x86_64")]
        (2, Path::Avx2) => simd_jpeg::reduced::row_of_2(blocks, table, samples, stride),
        _ => unreachable!("a side that blocks have"),
    }
}

/// The sample of a block that has only its DC coefficient.
pub fn flat_sample(coefficient: i16, step: i16) -> u8 {
    let value = i32::from(coefficient.wrapping_mul(step) << PASS_BITS);
    to_sample((value + (1 << (PASS_BITS + 2))) >> (PASS_BITS + 3))
}

/// A value around zero as a sample.
pub fn to_sample(value: i32) -> u8 {
    (value.clamp(-128, 127) + 128) as u8
}

/// Transforms one block to 8 columns of 8 rows that are `stride` apart.
pub fn block(coefficients: &[i16; 64], table: &Dequantiser, samples: &mut [u8], stride: usize) {
    let is_one_row = coefficients[8..].iter().all(|&coefficient| coefficient == 0);
    let mut columns = [[0; 8]; 8];
    for (column, values) in columns.iter_mut().enumerate() {
        *values = match is_one_row {
            true => [table.value(coefficients, 0, column) << PASS_BITS; 8],
            false => transform::<SHIFT_COLUMNS>(std::array::from_fn(|row| table.value(coefficients, row, column))),
        };
    }
    for row in 0..8 {
        let values = transform::<SHIFT_ROWS>(columns.map(|column| column[row]));
        let target = &mut samples[row * stride..][..8];
        for (sample, value) in target.iter_mut().zip(values) {
            *sample = to_sample(value.into());
        }
    }
}

/// Eight values transformed, scaled down and saturated.
fn transform<const SHIFT: i32>(x: [i16; 8]) -> [i16; 8] {
    let wide = |sum: i16| i32::from(sum);
    let dot = |a: i16, b: i16, weights: [i32; 2]| wide(a) * weights[0] + wide(b) * weights[1];
    let (even0, even1) = (wide(x[0].wrapping_add(x[4])) << CONST_BITS, wide(x[0].wrapping_sub(x[4])) << CONST_BITS);
    let even2 = dot(x[2], x[6], [F_0_541, F_0_541 - F_1_847]);
    let even3 = dot(x[2], x[6], [F_0_541 + F_0_765, F_0_541]);
    let even = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];

    let (sum37, sum15) = (x[7].wrapping_add(x[3]), x[5].wrapping_add(x[1]));
    let z3 = dot(sum37, sum15, [F_1_175 - F_1_961, F_1_175]);
    let z4 = dot(sum37, sum15, [F_1_175, F_1_175 - F_0_390]);
    let odd = [
        dot(x[7], x[1], [-F_0_899, F_1_501 - F_0_899]) + z4,
        dot(x[5], x[3], [-F_2_562, F_3_072 - F_2_562]) + z3,
        dot(x[5], x[3], [F_2_053 - F_2_562, -F_2_562]) + z4,
        dot(x[7], x[1], [F_0_298 - F_0_899, -F_0_899]) + z3,
    ];
    std::array::from_fn(|index| {
        let sum = match index {
            0..4 => even[index].wrapping_add(odd[index]),
            _ => even[7 - index].wrapping_sub(odd[7 - index]),
        };
        let scaled = sum.wrapping_add(1 << (SHIFT - 1)) >> SHIFT;
        scaled.clamp(i16::MIN.into(), i16::MAX.into()) as i16
    })
}
