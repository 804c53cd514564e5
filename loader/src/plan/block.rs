//! The order for slow storage: shards shuffled, and the samples of a few consecutive ones permuted as one.
//!
//! Reads then stay within a few shards at a time, which disks and network storage like. Memory grows with the number
//! of shards, never with that of samples, and a look-up is two binary searches over the shards.

use std::sync::Arc;

use super::permutation::Permutation;
use super::random::EpochRandom;

/// Samples that a block shall have at least, where the user does not say how many shards it has: enough that a batch
/// of some hundred rarely holds two neighbours. It depends on the dataset alone, so that a run that is resumed with
/// other ranks or another batch size finds the same order.
pub(super) const BLOCK_SAMPLES: u64 = 16_384;

/// Where each shard's samples begin.
#[derive(Debug, Clone)]
pub(super) struct Borders {
    /// The first place of each shard, and at the end the number of places.
    places: Arc<[u64]>,
}

impl Borders {
    /// Shards that begin at `first_places`, over `count` places in all.
    pub(super) fn new(first_places: impl Iterator<Item = u64>, count: u64) -> Self {
        let places: Arc<[u64]> = first_places.chain([count]).collect();
        debug_assert!(places.is_sorted(), "shards follow each other");
        Self { places }
    }

    pub(super) fn shard_count(&self) -> u64 {
        self.places.len() as u64 - 1
    }

    /// The shard that holds `place`. Shards without samples begin where the next one does, and hold none.
    pub(super) fn shard_of(&self, place: u64) -> u64 {
        self.places.partition_point(|&first| first <= place) as u64 - 1
    }

    /// The first place of `shard`; of the number of shards, the number of places.
    pub(super) fn first(&self, shard: u64) -> u64 {
        self.places[usize::try_from(shard).expect("shards fit memory")]
    }

    pub(super) fn is_empty(&self, shard: u64) -> bool {
        self.first(shard) == self.first(shard + 1)
    }

    /// Shards of a block where the user does not say: as many as hold [`BLOCK_SAMPLES`] on average.
    pub(super) fn default_block(&self) -> u32 {
        let count = self.first(self.shard_count());
        let filled = (0..self.shard_count()).filter(|&shard| !self.is_empty(shard)).count() as u64;
        let shards = (BLOCK_SAMPLES * filled).div_ceil(count.max(1)).clamp(1, self.shard_count().max(1));
        u32::try_from(shards).unwrap_or(u32::MAX)
    }
}

/// Block order of one epoch.
#[derive(Debug)]
pub(super) struct BlockOrder {
    borders: Borders,
    block_shards: u64,
    random: EpochRandom,
    shards: Permutation,
    /// Where each shard of the shuffled order begins, and at the end the number of positions.
    starts: Vec<u64>,
}

/// A block: consecutive shards of the shuffled order, and the positions that they take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    number: u64,
    /// Its shards' numbers in the shuffled order.
    pub(super) ranks: std::ops::Range<u64>,
    pub(super) positions: std::ops::Range<u64>,
}

impl BlockOrder {
    pub(super) fn new(borders: Borders, block_shards: u32, random: EpochRandom) -> Self {
        let shards = Permutation::new(borders.shard_count(), random.shard_order_key());
        let mut starts = Vec::with_capacity(borders.places.len());
        let mut start = 0;
        for rank in 0..borders.shard_count() {
            starts.push(start);
            let shard = shards.apply(rank);
            start += borders.first(shard + 1) - borders.first(shard);
        }
        starts.push(start);
        Self { borders, block_shards: u64::from(block_shards), random, shards, starts }
    }

    /// Where in the dataset the sample at `position` is.
    pub(super) fn place(&self, position: u64) -> u64 {
        let block = self.block_at(position);
        let within = self.permutation(&block).apply(position - block.positions.start);
        let target = block.positions.start + within;
        let rank = self.rank_at(target);
        self.borders.first(self.shards.apply(rank)) + target - self.start(rank)
    }

    /// The position of the sample at `place`.
    pub(super) fn position(&self, place: u64) -> u64 {
        let shard = self.borders.shard_of(place);
        let rank = self.shards.invert(shard);
        let target = self.start(rank) + place - self.borders.first(shard);
        let block = self.block_of(rank);
        block.positions.start + self.permutation(&block).invert(target - block.positions.start)
    }

    /// The block that `position` lies in.
    pub(super) fn block_at(&self, position: u64) -> Block {
        self.block_of(self.rank_at(position))
    }

    /// The shards of `block` that have samples.
    pub(super) fn shards_of(&self, block: &Block) -> impl Iterator<Item = u64> {
        block.ranks.clone().map(|rank| self.shards.apply(rank)).filter(|&shard| !self.borders.is_empty(shard))
    }

    fn block_of(&self, rank: u64) -> Block {
        let number = rank / self.block_shards;
        let first = number * self.block_shards;
        let end = (first + self.block_shards).min(self.borders.shard_count());
        Block { number, ranks: first..end, positions: self.start(first)..self.start(end) }
    }

    fn permutation(&self, block: &Block) -> Permutation {
        Permutation::new(block.positions.end - block.positions.start, self.random.block_key(block.number))
    }

    fn rank_at(&self, position: u64) -> u64 {
        self.starts.partition_point(|&start| start <= position) as u64 - 1
    }

    fn start(&self, rank: u64) -> u64 {
        self.starts[usize::try_from(rank).expect("shards fit memory")]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn borders(sizes: &[u64]) -> Borders {
        let firsts = (0..sizes.len()).map(|shard| sizes[..shard].iter().sum());
        Borders::new(firsts, sizes.iter().sum())
    }

    proptest! {
        #[test]
        fn every_place_has_one_position(
            sizes in proptest::collection::vec(0_u64..40, 1..20), block_shards in 1_u32..25, seed: u64, epoch in 0_u64..3
        ) {
            let borders = borders(&sizes);
            let count: u64 = sizes.iter().sum();
            let order = BlockOrder::new(borders.clone(), block_shards, EpochRandom { seed, epoch });
            let mut seen = vec![false; usize::try_from(count).unwrap()];
            for position in 0..count {
                let place = order.place(position);
                prop_assert!(!std::mem::replace(&mut seen[usize::try_from(place).unwrap()], true), "{place} comes twice");
                prop_assert_eq!(order.position(place), position);
                let block = order.block_at(position);
                prop_assert!(block.positions.contains(&position));
                let shards: Vec<u64> = order.shards_of(&block).collect();
                prop_assert!(shards.len() <= block_shards as usize);
                prop_assert!(shards.contains(&borders.shard_of(place)), "position {position} leaves its block");
            }
        }
    }

    fn check_default(sizes: &[u64], expected: u32) {
        assert_eq!(borders(sizes).default_block(), expected);
    }

    #[test]
    fn blocks_hold_enough_samples_by_default() {
        check_default(&[1000; 100], 17);
        check_default(&[20_000; 10], 1);
        check_default(&[10; 5], 5);
        check_default(&[0, 8192, 0, 8192, 8192, 8192], 2);
        check_default(&[0], 1);
    }
}
