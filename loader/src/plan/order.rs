//! The global order of one epoch.

use super::permutation::{Permutation, below, mix_all};
use crate::spec::OrderSpec;

/// Tells the uses of one (seed, epoch) apart.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Shuffle = 1,
    Draw = 2,
    Substitute = 3,
}

/// Position in the epoch → place in the source.
#[derive(Debug, Clone, Copy)]
pub(super) struct EpochOrder {
    positions: u64,
    seed: u64,
    epoch: u64,
    shuffle: Option<Permutation>,
}

impl EpochOrder {
    pub(super) fn new(positions: u64, order: OrderSpec, seed: u64, epoch: u64) -> Self {
        let shuffle = match order {
            OrderSpec::Shuffled => Some(Permutation::new(positions, mix_all(&[Purpose::Shuffle as u64, seed, epoch]))),
            OrderSpec::Sequential => None,
        };
        Self { positions, seed, epoch, shuffle }
    }

    /// Where in the source the sample at `position` is.
    pub(super) fn place(&self, position: u64) -> u64 {
        self.shuffle.map_or(position, |permutation| permutation.apply(position))
    }

    /// 53 random bits as a number in [0, 1), for a draw with replacement at `position`.
    pub(super) fn draw(&self, position: u64) -> f64 {
        let hash = mix_all(&[Purpose::Draw as u64, self.seed, self.epoch, position]);
        (hash >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The position whose sample replaces the one at `position`, for the `attempt`th time.
    pub(super) fn substitute(&self, position: u64, attempt: u32) -> u64 {
        let hash = mix_all(&[Purpose::Substitute as u64, self.seed, self.epoch, position, u64::from(attempt)]);
        below(hash, self.positions)
    }
}
