//! Weighted sums of rows with AVX2.

#![expect(unsafe_code, reason = "target features, and loads and stores of whole arrays")]

use std::arch::x86_64::*;

use super::simd::Avx2;

/// Values that are summed up at once.
pub const GROUP: usize = 32;

impl Avx2 {
    /// What [`crate::augment::filter`] computes one value at a time: of groups of `values`, which start at `place` plus each
    /// of `starts`, the middle one times the first weight, and the sum of the two at each distance from it times the next;
    /// each product rounded to whole numbers of 2^15.
    #[inline(always)]
    pub fn weighted_sum(self, weights: &[i16], values: &[i16], starts: &[usize], place: usize) -> [i16; GROUP] {
        // SAFETY: AVX2 is there, of which this is the proof.
        unsafe { weighted_sum(weights, values, starts, place) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn weighted_sum(weights: &[i16], values: &[i16], starts: &[usize], place: usize) -> [i16; GROUP] {
    let (middle, others) = weights.split_first().expect("there is a weight");
    let (before, after) = starts.split_at(others.len());
    let (first, after) = after.split_first().expect("an odd number of groups");
    let load = |start: usize| load(values[start + place..].first_chunk().expect("rows consist of whole groups"));
    let weight = _mm256_set1_epi16(*middle);
    let [low, high] = load(*first);
    let mut sums = [_mm256_mulhrs_epi16(low, weight), _mm256_mulhrs_epi16(high, weight)];
    for ((&before, &after), &weight) in before.iter().rev().zip(after).zip(others) {
        let weight = _mm256_set1_epi16(weight);
        let (before, after) = (load(before), load(after));
        for (sum, (before, after)) in sums.iter_mut().zip(before.into_iter().zip(after)) {
            *sum = _mm256_add_epi16(*sum, _mm256_mulhrs_epi16(_mm256_add_epi16(before, after), weight));
        }
    }
    let mut values = [0; GROUP];
    for (values, sum) in values.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
        // SAFETY: 16 values have room for a vector.
        unsafe { _mm256_storeu_si256(values.as_mut_ptr().cast(), sum) };
    }
    values
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(group: &[i16; GROUP]) -> [__m256i; 2] {
    let (low, high) = group.split_at(16);
    // SAFETY: 16 values are a vector.
    [low, high].map(|half| unsafe { _mm256_loadu_si256(half.as_ptr().cast()) })
}
