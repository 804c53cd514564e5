//! How much room for values of varying length a slot gets: from the lengths of a sample of the dataset, so much that
//! batches seldom spill, and little more.
//!
//! The sum of N lengths lies within four standard deviations of N means in all but a few of 10 000 batches, whatever
//! the lengths' distribution, as long as N is not tiny; the longest seen comes on top for when it is.

use super::layout::{FIELD_ALIGN_BYTES, VALUES_BYTES_MAX};

/// Samples whose lengths are looked at, spread evenly over the dataset.
pub const LENGTHS_MAX: u64 = 4096;

/// Standard deviations of a batch's sum that there is room for.
const DEVIATIONS: f64 = 4.0;

/// Lengths of one field's values, in the form that a slot holds them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lengths {
    count: u64,
    sum: f64,
    squares: f64,
    longest: u64,
}

impl Lengths {
    /// Counts one value of `bytes`.
    pub fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.sum += bytes as f64;
        self.squares += bytes as f64 * bytes as f64;
        self.longest = self.longest.max(bytes);
    }

    /// Bytes that `rows` values want, at most `rows` times `row_max`.
    pub fn room(&self, rows: u32, row_max: u64) -> u64 {
        let most = u64::from(rows).saturating_mul(row_max);
        if self.count == 0 {
            return 0;
        }
        let (rows, count) = (f64::from(rows), self.count as f64);
        let mean = self.sum / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        let spread = if variance > 0.0 { DEVIATIONS * (variance * rows).sqrt() + self.longest as f64 } else { 0.0 };
        // Float to integer saturates.
        ((rows * mean + spread).ceil() as u64).min(most)
    }
}

/// The room for all fields' values together, whole lines.
pub fn total(rooms: impl Iterator<Item = u64>) -> u32 {
    let sum = rooms.fold(0, u64::saturating_add).min(VALUES_BYTES_MAX);
    u32::try_from(sum.next_multiple_of(FIELD_ALIGN_BYTES)).expect("the limit is a multiple, and 31-bit")
}

/// The samples to look at, of `count`.
pub fn spread(count: u64) -> impl Iterator<Item = u64> {
    let looked_at = count.min(LENGTHS_MAX);
    (0..looked_at).map(move |index| (u128::from(index) * u128::from(count) / u128::from(looked_at)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lengths: &[u64], rows: u32, row_max: u64, expected: u64) {
        let mut all = Lengths::default();
        lengths.iter().for_each(|&length| all.add(length));
        assert_eq!(all.room(rows, row_max), expected, "{lengths:?}, {rows} rows of at most {row_max}");
    }

    #[test]
    fn room_by_mean_spread_and_longest() {
        check(&[], 100, 100, 0);
        check(&[7, 7, 7], 100, 100, 700);
        // Mean 5, standard deviation 5: 500 + 4 x 50 + 10.
        check(&[0, 10], 100, 100, 710);
        check(&[0, 10], 1, 100, 5 + 20 + 10);
        check(&[0, 10], 100, 6, 600);
        check(&[u64::MAX], u32::MAX, u64::MAX, u64::MAX);
    }

    #[test]
    fn totals_are_whole_lines_below_the_limit() {
        assert_eq!(total([].into_iter()), 0);
        assert_eq!(total([1, 64].into_iter()), 128);
        assert_eq!(u64::from(total([u64::MAX, 5].into_iter())), VALUES_BYTES_MAX);
    }

    #[test]
    fn the_samples_looked_at_are_spread() {
        assert_eq!(spread(0).count(), 0);
        assert_eq!(spread(3).collect::<Vec<_>>(), [0, 1, 2]);
        let many: Vec<u64> = spread(1 << 62).collect();
        assert_eq!((many.len(), many[1]), (4096, 1 << 50));
    }
}
