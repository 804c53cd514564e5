//! Random numbers as hashes: a function of what they are for and nothing else.

use super::permutation::{below, mix_all};

/// Tells the uses of one seed apart.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Shuffle = 1,
    Draw = 2,
    Substitute = 3,
    ShardOrder = 4,
    Block = 5,
    Redraw = 6,
    MixStratum = 7,
    MixPass = 8,
}

/// The randomness of one epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct EpochRandom {
    pub(super) seed: u64,
    pub(super) epoch: u64,
}

impl EpochRandom {
    /// Key of the permutation of all samples.
    pub(super) fn shuffle_key(self) -> u64 {
        mix_all(&[Purpose::Shuffle as u64, self.seed, self.epoch])
    }

    /// Key of the permutation of all shards.
    pub(super) fn shard_order_key(self) -> u64 {
        mix_all(&[Purpose::ShardOrder as u64, self.seed, self.epoch])
    }

    /// Key of the permutation within a block of shards.
    pub(super) fn block_key(self, block: u64) -> u64 {
        mix_all(&[Purpose::Block as u64, self.seed, self.epoch, block])
    }

    /// A number in [0, 1) for a draw with replacement at `position`.
    pub(super) fn draw(self, position: u64) -> f64 {
        unit(mix_all(&[Purpose::Draw as u64, self.seed, self.epoch, position]))
    }

    /// Another one, for where the first draw gave a sample that is left out.
    pub(super) fn redraw(self, position: u64) -> f64 {
        unit(mix_all(&[Purpose::Redraw as u64, self.seed, self.epoch, position]))
    }

    /// The position, of `positions`, whose sample replaces the one at `position` for the `attempt`th time.
    pub(super) fn substitute(self, positions: u64, position: u64, attempt: u32) -> u64 {
        let hash = mix_all(&[Purpose::Substitute as u64, self.seed, self.epoch, position, u64::from(attempt)]);
        below(hash, positions)
    }
}

/// Key of the order within the stratum of a mix that begins at `position` of its line.
pub(super) fn mix_stratum_key(seed: u64, position: u64) -> u64 {
    mix_all(&[Purpose::MixStratum as u64, seed, position])
}

/// Key of the permutation of a part of a mix, in its `pass`th pass.
pub(super) fn mix_pass_key(seed: u64, part: u64, pass: u64) -> u64 {
    mix_all(&[Purpose::MixPass as u64, seed, part, pass])
}

/// 53 random bits as a number in [0, 1).
fn unit(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}
