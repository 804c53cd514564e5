//! What proves which samples a run consumed, and what was done to them: a keyed hash a row, added up.
//!
//! A row's hash covers seed, epoch, global position, sample (number and key), and the parameters that were drawn for it, as
//! the steps that they became. Sums do not depend on the order of their parts, so the sum over all ranks is the same for any
//! number of workers, any world size at which the same positions are consumed, and any interruption. Rows that only fill a
//! batch are left out: how many there are depends on the world size. What blends whole batches (MixUp, CutMix) is a function of
//! a batch's place, not of a sample, and is not covered.
//!
//! The sum is one of two lanes of 64 bits each, so that workers add to a batch's with two atomic additions and no lock.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip128::{Hasher128, SipHasher13};

/// What a row's hash is keyed with; another one for every change of what is hashed or how.
const KEY: (u64, u64) = (u64::from_le_bytes(*b"feedline"), 1);

/// A sum of rows' hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trace(pub [u64; 2]);

impl Trace {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self([0, 1].map(|lane| self.0[lane].wrapping_add(other.0[lane])))
    }
}

impl fmt::Display for Trace {
    /// 32 hexadecimal digits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

/// The sum of a batch that several workers fill.
#[derive(Debug, Default)]
pub struct TraceSum([AtomicU64; 2]);

impl TraceSum {
    /// Adds a row. Relaxed: whoever reads the sum has seen every row's end by other means.
    pub fn add(&self, row: Trace) {
        for (lane, part) in self.0.iter().zip(row.0) {
            lane.fetch_add(part, Ordering::Relaxed);
        }
    }

    /// The sum so far.
    pub fn get(&self) -> Trace {
        Trace([0, 1].map(|lane| self.0[lane].load(Ordering::Relaxed)))
    }
}

/// Which row it is.
#[derive(Debug, Clone, Copy, Hash)]
pub struct RowPlace {
    /// Seed of the job.
    pub seed: u64,
    /// Epoch.
    pub epoch: u64,
    /// Global position in the epoch.
    pub position: u64,
    /// The sample that the row has, a substitute where there is one.
    pub sample: u64,
}

/// A row's hash in the making.
#[derive(Debug, Clone)]
pub struct RowTrace(SipHasher13);

impl Default for RowTrace {
    fn default() -> Self {
        Self(SipHasher13::new_with_keys(KEY.0, KEY.1))
    }
}

impl RowTrace {
    /// Takes in what was drawn for field number `field`.
    pub fn parameters<T: Hash>(&mut self, field: usize, parameters: &[T]) {
        // As u64 on every machine, so that the trace does not depend on the size of pointers.
        self.0.write_u64(field as u64);
        self.0.write_u64(parameters.len() as u64);
        for one in parameters {
            one.hash(&mut self.0);
        }
    }

    /// The hash of the row at `place`, whose sample has `key`.
    pub fn finish(&self, place: RowPlace, key: &str) -> Trace {
        let mut hasher = self.0;
        place.hash(&mut hasher);
        hasher.write(key.as_bytes());
        let hash = hasher.finish128();
        Trace([hash.h1, hash.h2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(position: u64, sample: u64, parameters: &[u32], key: &str) -> Trace {
        let mut trace = RowTrace::default();
        trace.parameters(0, parameters);
        trace.finish(RowPlace { seed: 7, epoch: 1, position, sample }, key)
    }

    #[test]
    fn every_part_counts() {
        let base = row(1, 2, &[3, 4], "a");
        for other in [
            row(2, 2, &[3, 4], "a"),
            row(1, 3, &[3, 4], "a"),
            row(1, 2, &[3, 5], "a"),
            row(1, 2, &[3], "a"),
            row(1, 2, &[3, 4], "b"),
        ] {
            assert_ne!(base, other);
            assert!(base.0[0] != other.0[0] && base.0[1] != other.0[1], "lanes are independent");
        }
        assert_eq!(base, row(1, 2, &[3, 4], "a"));
    }

    #[test]
    fn swapped_samples_change_the_sum() {
        let straight = row(1, 2, &[], "a").plus(row(2, 3, &[], "b"));
        let swapped = row(1, 3, &[], "b").plus(row(2, 2, &[], "a"));
        assert_ne!(straight, swapped);
        assert_eq!(straight, row(2, 3, &[], "b").plus(row(1, 2, &[], "a")));
    }

    #[test]
    fn threads_add_to_one_sum() {
        let sum = TraceSum::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let sum = &sum;
                scope.spawn(move || (0..100).for_each(|position| sum.add(row(thread * 100 + position, 0, &[], "k"))));
            }
        });
        let expected = (0..400).fold(Trace::default(), |sum, position| sum.plus(row(position, 0, &[], "k")));
        assert_eq!(sum.get(), expected);
    }

    /// A change of the hash makes saved states worthless: it needs another key.
    #[test]
    fn the_hash_is_what_it_was() {
        assert_eq!(row(1, 2, &[3, 4], "a").to_string(), "4c7fc070323d538bb0454a924e93696b");
    }
}
