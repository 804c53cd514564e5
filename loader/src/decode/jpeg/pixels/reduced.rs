//! Inverse transforms to 4, 2 or 1 samples a side, for images reduced while they are decoded: the transform of eight with
//! its higher frequencies left out, as libjpeg-turbo has it (jidctred), bit for bit.
//!
//! As with [`super::idct`], what does not fit 16 bits becomes what the library makes of it on x86-64.

use super::idct::{CONST_BITS, Dequantiser, PASS_BITS, to_sample};

/// What the two passes to 4 samples scale down by.
pub const SHIFTS_OF_4: [i32; 2] = [CONST_BITS - PASS_BITS + 1, CONST_BITS + PASS_BITS + 3 + 1];

/// What the two passes to 2 samples scale down by.
pub const SHIFTS_OF_2: [i32; 2] = [CONST_BITS - PASS_BITS + 2, CONST_BITS + PASS_BITS + 3 + 2];

/// Inputs 2 and 6 in the even part of four.
pub const EVEN_OF_26: [i32; 2] = [15137, -6270];

/// Inputs 1, 3, 5 and 7 in the outer and in the inner samples of four.
pub const OUTER_OF_1357: [i32; 4] = [20995, 7373, -4926, -4176];
#[expect(missing_docs, reason = "with the one before")]
pub const INNER_OF_1357: [i32; 4] = [8697, -17799, 11893, -1730];

/// Inputs 1, 3, 5 and 7 in two samples.
pub const TWO_OF_1357: [i32; 4] = [29692, -10426, 6967, -5906];

/// Transforms one block to 4 columns of 4 rows.
pub fn block_of_4(coefficients: &[i16; 64], table: &Dequantiser, samples: &mut [u8], stride: usize) {
    let rows = coefficients.as_chunks::<8>().0;
    // The row that is left out does not count.
    let is_one_row = (1..8).filter(|&row| row != 4).all(|row| rows[row] == [0; 8]);
    let mut columns = [[0; 4]; 8];
    for (column, values) in columns.iter_mut().enumerate() {
        *values = match is_one_row {
            true => [table.value(coefficients, 0, column) << PASS_BITS; 4],
            false => {
                let sums = sums_of_4(std::array::from_fn(|row| table.value(coefficients, row, column)));
                sums.map(|sum| saturated(sum, SHIFTS_OF_4[0]))
            }
        };
    }
    for row in 0..4 {
        let sums = sums_of_4(columns.map(|column| column[row]));
        for (sample, sum) in samples[row * stride..].iter_mut().zip(sums) {
            *sample = to_sample(saturated(sum, SHIFTS_OF_4[1]).into());
        }
    }
}

fn sums_of_4(x: [i16; 8]) -> [i32; 4] {
    let x = x.map(i32::from);
    let zero = x[0] << (CONST_BITS + 1);
    let even = x[2] * EVEN_OF_26[0] + x[6] * EVEN_OF_26[1];
    let [upper, lower] = [zero + even, zero - even];
    let [outer, inner] = [dot(x, OUTER_OF_1357), dot(x, INNER_OF_1357)];
    [upper.wrapping_add(outer), lower.wrapping_add(inner), lower.wrapping_sub(inner), upper.wrapping_sub(outer)]
}

fn dot(x: [i32; 8], weights: [i32; 4]) -> i32 {
    (0..4).map(|index| x[2 * index + 1] * weights[index]).sum()
}

fn rounded(sum: i32, shift: i32) -> i32 {
    sum.wrapping_add(1 << (shift - 1)) >> shift
}

fn saturated(sum: i32, shift: i32) -> i16 {
    rounded(sum, shift).clamp(i16::MIN.into(), i16::MAX.into()) as i16
}

/// Transforms one block to 2 columns of 2 rows.
pub fn block_of_2(coefficients: &[i16; 64], table: &Dequantiser, samples: &mut [u8], stride: usize) {
    let mut first = [0; 2];
    let mut rows = [[0; 8]; 2];
    for column in [0, 1, 3, 5, 7] {
        let x = std::array::from_fn(|row| i32::from(table.value(coefficients, row, column)));
        let (even, odd) = (x[0] << (CONST_BITS + 2), dot(x, TWO_OF_1357));
        let sums = [even.wrapping_add(odd), even.wrapping_sub(odd)];
        if column == 0 {
            // The library keeps these in 32 bits.
            first = sums.map(|sum| rounded(sum, SHIFTS_OF_2[0]));
        }
        (0..2).for_each(|row| rows[row][column] = saturated(sums[row], SHIFTS_OF_2[0]).into());
    }
    for row in 0..2 {
        let (even, odd) = (first[row] << (CONST_BITS + 2), dot(rows[row], TWO_OF_1357));
        let sums = [even.wrapping_add(odd), even.wrapping_sub(odd)];
        for (sample, sum) in samples[row * stride..].iter_mut().zip(sums) {
            *sample = to_sample(rounded(sum, SHIFTS_OF_2[1]));
        }
    }
}

/// Transforms one block to its mean.
pub fn block_of_1(coefficients: &[i16; 64], table: &Dequantiser, samples: &mut [u8], _stride: usize) {
    let value = rounded(i32::from(coefficients[0]) * i32::from(table.first()), 3);
    // The library limits by a table of 1024 values, modulo which they are taken.
    let value = (value & 1023) - if value & 512 == 0 { 0 } else { 1024 };
    samples[0] = to_sample(value);
}
