//! The order of one epoch: position ↔ place in the source.

use std::sync::Arc;

use super::block::{BlockOrder, Borders};
use super::permutation::Permutation;
use super::random::EpochRandom;

/// How an epoch goes through the places of a source.
#[derive(Debug, Clone)]
pub(super) enum Order {
    Global,
    Block { borders: Borders, block_shards: u32 },
    Sequential,
}

/// An [`Order`] in one epoch.
#[derive(Debug, Clone)]
pub(super) enum EpochOrder {
    Global(Permutation),
    Block(Arc<BlockOrder>),
    Sequential,
}

impl Order {
    /// The order of `count` places in the epoch of `random`.
    pub(super) fn epoch(&self, count: u64, random: EpochRandom) -> EpochOrder {
        match self {
            Self::Global => EpochOrder::Global(Permutation::new(count, random.shuffle_key())),
            Self::Block { borders, block_shards } => {
                EpochOrder::Block(Arc::new(BlockOrder::new(borders.clone(), *block_shards, random)))
            }
            Self::Sequential => EpochOrder::Sequential,
        }
    }
}

impl EpochOrder {
    /// Where in the source the sample at `position` is.
    pub(super) fn place(&self, position: u64) -> u64 {
        match self {
            Self::Global(permutation) => permutation.apply(position),
            Self::Block(order) => order.place(position),
            Self::Sequential => position,
        }
    }

    /// The position of what is at `place` in the source.
    pub(super) fn position(&self, place: u64) -> u64 {
        match self {
            Self::Global(permutation) => permutation.invert(place),
            Self::Block(order) => order.position(place),
            Self::Sequential => place,
        }
    }
}
