//! A keyed permutation of 0..n in constant memory.
//!
//! A Feistel network over a mixed radix: the number is written as (left, right) with left below `a` and right below
//! `b`, `a * b >= n`, and each round adds a keyed hash of one half to the other, modulo its radix. Every round can be
//! undone, so the whole is a permutation of 0..a*b; results of n and above are put through again (cycle walking),
//! which happens to fewer than one in sqrt(n). Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002.

/// Rounds; four already pass the shuffle tests here, eight cost 30 ns.
const ROUNDS: usize = 8;

/// Smallest radix of a half. Below it the halves hold too few values to mix: with radices 1 and 3 only rotations would
/// come out. Small counts are walked down to from a larger range instead.
const RADIX_MIN: u64 = 16;

/// A permutation of 0..n.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permutation {
    count: u64,
    left_radix: u64,
    right_radix: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of 0..`count` that `key` picks.
    pub(super) fn new(count: u64, key: u64) -> Self {
        let left_radix = count.isqrt().max(RADIX_MIN);
        let right_radix = count.div_ceil(left_radix).max(RADIX_MIN);
        let mut state = key;
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        });
        Self { count, left_radix, right_radix, keys }
    }

    /// Where `index` goes. `index` is below the count.
    pub(super) fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.count);
        let mut value = index;
        loop {
            value = self.once(value);
            if value < self.count {
                return value;
            }
        }
    }

    /// Which index goes to `place`, which is below the count: [`Permutation::apply`] undone.
    pub(super) fn invert(&self, place: u64) -> u64 {
        debug_assert!(place < self.count);
        let mut value = place;
        loop {
            value = self.once_back(value);
            if value < self.count {
                return value;
            }
        }
    }

    fn once(&self, value: u64) -> u64 {
        let (mut left, mut right) = (value / self.right_radix, value % self.right_radix);
        for pair in self.keys.chunks_exact(2) {
            left = add(left, below(mix(right ^ pair[0]), self.left_radix), self.left_radix);
            right = add(right, below(mix(left ^ pair[1]), self.right_radix), self.right_radix);
        }
        left * self.right_radix + right
    }

    fn once_back(&self, value: u64) -> u64 {
        let (mut left, mut right) = (value / self.right_radix, value % self.right_radix);
        for pair in self.keys.chunks_exact(2).rev() {
            right = subtract(right, below(mix(left ^ pair[1]), self.right_radix), self.right_radix);
            left = subtract(left, below(mix(right ^ pair[0]), self.left_radix), self.left_radix);
        }
        left * self.right_radix + right
    }
}

/// 2^64 divided by the golden ratio: the step of Steele, Lea and Flood's SplitMix64 (2014).
pub(super) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser: every bit of the result depends on every bit of `value`.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A hash of several numbers, in order.
pub(super) fn mix_all(values: &[u64]) -> u64 {
    values.iter().fold(GOLDEN, |state, value| mix(state.wrapping_add(GOLDEN) ^ mix(value.wrapping_add(GOLDEN))))
}

/// Scales a hash to 0..`bound`; biased by less than bound / 2^64.
pub(super) fn below(hash: u64, bound: u64) -> u64 {
    u64::try_from((u128::from(hash) * u128::from(bound)) >> 64).expect("below a u64")
}

/// (value + step) modulo `radix`, both below it.
fn add(value: u64, step: u64, radix: u64) -> u64 {
    let sum = value + step;
    if sum >= radix { sum - radix } else { sum }
}

/// (value - step) modulo `radix`, both below it.
fn subtract(value: u64, step: u64, radix: u64) -> u64 {
    if value >= step { value - step } else { value + radix - step }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn small_counts_are_permuted(count in 1_u64..3000, key: u64) {
            let permutation = Permutation::new(count, key);
            let mut seen = vec![false; usize::try_from(count).unwrap()];
            for index in 0..count {
                let place = usize::try_from(permutation.apply(index)).unwrap();
                prop_assert!(!std::mem::replace(&mut seen[place], true), "{place} is hit twice");
                prop_assert_eq!(permutation.invert(place as u64), index);
            }
        }

        #[test]
        fn large_counts_stay_in_range_and_neighbours_part(count in 1_u64 << 20..1 << 44, key: u64, index: u64) {
            let permutation = Permutation::new(count, key);
            let index = index % (count - 1);
            let (here, there) = (permutation.apply(index), permutation.apply(index + 1));
            prop_assert!(here < count && there < count && here != there);
            prop_assert_eq!((permutation.invert(here), permutation.invert(there)), (index, index + 1));
        }
    }

    #[test]
    fn a_shuffle_moves_samples_a_third_of_the_way() {
        let count = 10_000_u64;
        let permutation = Permutation::new(count, 7);
        let moved: u64 = (0..count).map(|index| index.abs_diff(permutation.apply(index))).sum();
        let mean = moved as f64 / count as f64;
        // A uniform permutation has mean displacement (n - 1/n) / 3, spread about n / (2.5 sqrt(n)).
        assert!((3200.0..3470.0).contains(&mean), "mean displacement {mean}");
    }

    #[test]
    fn every_place_is_equally_likely() {
        // Chi-square of where index 3 of 10 goes, over 20 000 keys: 9 degrees of freedom, 99.9 % below 27.9.
        for index in 0..10 {
            let mut hits = [0_u32; 10];
            for key in 0..20_000 {
                hits[usize::try_from(Permutation::new(10, mix_all(&[key, 5])).apply(index)).unwrap()] += 1;
            }
            let chi: f64 = hits.iter().map(|&hit| (f64::from(hit) - 2000.0).powi(2) / 2000.0).sum();
            assert!(chi < 27.9, "index {index}: chi-square {chi}, {hits:?}");
        }
    }

    #[test]
    fn pairs_are_equally_likely() {
        // Where indices 0 and 1 go, over 200 draws a pair: chi-square within 4.5 spreads of its degrees of freedom.
        for count in [2_u64, 3, 4, 5, 7, 9, 12, 25, 60] {
            let pairs = count * (count - 1);
            let mut hits = std::collections::BTreeMap::<(u64, u64), u32>::new();
            for key in 0..200 * pairs {
                let permutation = Permutation::new(count, mix_all(&[key, 9]));
                *hits.entry((permutation.apply(0), permutation.apply(1))).or_default() += 1;
            }
            let missing = pairs - hits.len() as u64;
            let chi: f64 = hits.values().map(|&hit| (f64::from(hit) - 200.0).powi(2) / 200.0).sum::<f64>()
                + 200.0 * missing as f64;
            let freedom = (pairs - 1) as f64;
            assert!(
                (chi - freedom) / (2.0 * freedom).sqrt() < 4.5,
                "{count}: chi-square {chi} at {freedom} degrees of freedom"
            );
        }
    }
}
