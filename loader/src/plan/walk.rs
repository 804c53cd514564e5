//! From a position to its sample: a source, gone through in an order, with cuts.

use std::ops::Range;
use std::sync::Arc;

use super::block::Borders;
use super::cuts::Cuts;
use super::draws::Draws;
use super::figure::ShuffleFigure;
use super::mix::{Mix, MixEpoch};
use super::order::{EpochOrder, Order};
use super::random::EpochRandom;
use super::{SampleId, ShardStretch, Source};
use crate::error::{Error, Result};
use crate::spec::OrderSpec;

/// How all epochs of a job go.
#[derive(Debug)]
pub(super) enum Walk {
    /// Each place of a list, or of the dataset, once.
    Places {
        /// The samples at the places; `None` where places are samples.
        indices: Option<Arc<[u64]>>,
        count: u64,
        order: Order,
        /// Where the shards begin, in terms of places; `None` for a list in an order of its own.
        borders: Option<Borders>,
        /// Places that are cut, ascending.
        cut: Vec<u64>,
    },
    Draws(Arc<Draws>),
    Mixed {
        mix: Arc<Mix>,
        is_sequential: bool,
    },
}

/// How one epoch goes.
#[derive(Debug, Clone)]
pub(super) enum EpochWalk {
    Places { order: EpochOrder, cuts: Cuts },
    Draws(EpochRandom),
    Mixed(MixEpoch),
}

impl Walk {
    pub(super) fn new(source: Source, order: OrderSpec, first_samples: &[u64], left_out: &[u64]) -> Result<Self> {
        let mut left_out = left_out.to_vec();
        left_out.sort_unstable();
        left_out.dedup();
        Ok(match source {
            Source::All(count) => {
                left_out.truncate(left_out.partition_point(|sample| *sample < count));
                let borders = (!first_samples.is_empty())
                    .then(|| Borders::new(first_samples.iter().map(|&first| first.min(count)), count));
                Self::Places { indices: None, count, order: compile(order, borders.as_ref())?, borders, cut: left_out }
            }
            Source::Indices(indices) => Self::over_indices(indices, order, first_samples, &left_out)?,
            Source::Weighted(draws) => {
                if order != OrderSpec::Global {
                    return Err(Error::config(
                        "weights= draws at random from the whole dataset: leave order= out, or use indices= for a subset",
                    ));
                }
                Self::Draws(Arc::new(Arc::unwrap_or_clone(draws).without(&left_out)?))
            }
            Source::Mixed(mix) => {
                if matches!(order, OrderSpec::Block { .. }) {
                    return Err(Error::config("order=\"block\" goes through one dataset, not a mix"));
                }
                let mix = Arc::new(Arc::unwrap_or_clone(mix).without(&left_out)?);
                Self::Mixed { mix, is_sequential: order == OrderSpec::Sequential }
            }
        })
    }

    fn over_indices(indices: Arc<[u64]>, order: OrderSpec, first_samples: &[u64], left_out: &[u64]) -> Result<Self> {
        let count = indices.len() as u64;
        let (indices, borders) = if matches!(order, OrderSpec::Block { .. }) {
            // By shards, as blocks are; a list of numbers says which samples are taken, not in which order.
            let mut sorted = indices.to_vec();
            sorted.sort_unstable();
            let first = |first_sample: &u64| sorted.partition_point(|index| index < first_sample) as u64;
            let borders = (!first_samples.is_empty()).then(|| Borders::new(first_samples.iter().map(first), count));
            (sorted.into(), borders)
        } else {
            (indices, None)
        };
        let is_cut = |index: &u64| left_out.binary_search(index).is_ok();
        let cut = (0..).zip(indices.iter()).filter(|(_, index)| is_cut(index)).map(|(place, _)| place).collect();
        Ok(Self::Places { order: compile(order, borders.as_ref())?, indices: Some(indices), count, borders, cut })
    }

    /// Positions of an epoch.
    pub(super) fn positions(&self) -> u64 {
        match self {
            Self::Places { count, cut, .. } => count - cut.len() as u64,
            Self::Draws(draws) => draws.length(),
            Self::Mixed { mix, .. } => mix.length(),
        }
    }

    pub(super) fn epoch(&self, random: EpochRandom) -> Result<EpochWalk> {
        Ok(match self {
            Self::Places { count, order, cut, .. } => {
                let order = order.epoch(*count, random);
                let cuts = Cuts::new(cut.iter().map(|&place| order.position(place)).collect());
                EpochWalk::Places { order, cuts }
            }
            Self::Draws(_) => EpochWalk::Draws(random),
            Self::Mixed { mix, is_sequential } => {
                EpochWalk::Mixed(mix.epoch(random.epoch, random.seed, *is_sequential)?)
            }
        })
    }

    /// The sample at `position` of `epoch`, which this walk made.
    pub(super) fn sample(&self, epoch: &EpochWalk, position: u64) -> SampleId {
        match (self, epoch) {
            (Self::Places { indices, .. }, EpochWalk::Places { order, cuts }) => {
                let place = order.place(cuts.restore(position));
                SampleId(match indices {
                    Some(indices) => indices[usize::try_from(place).expect("fits, as the list does")],
                    None => place,
                })
            }
            (Self::Draws(draws), EpochWalk::Draws(random)) => SampleId(draws.sample(*random, position)),
            (Self::Mixed { mix, .. }, EpochWalk::Mixed(epoch)) => epoch.sample(mix, position),
            _ => unreachable!("an epoch belongs to the walk that made it"),
        }
    }

    pub(super) fn shards_at(&self, epoch: &EpochWalk, position: u64) -> Option<ShardStretch> {
        let (Self::Places { borders: Some(borders), .. }, EpochWalk::Places { order, cuts }) = (self, epoch) else {
            return None;
        };
        let (shards, end): (Vec<u64>, u64) = match order {
            EpochOrder::Global(_) => return None,
            EpochOrder::Block(order) => {
                let block = order.block_at(cuts.restore(position));
                (order.shards_of(&block).collect(), block.positions.end)
            }
            EpochOrder::Sequential => {
                let shard = borders.shard_of(cuts.restore(position));
                (vec![shard], borders.first(shard + 1))
            }
        };
        let shards = shards.into_iter().map(|shard| u32::try_from(shard).expect("shards are counted in 32 bits"));
        Some(ShardStretch { shards: shards.collect(), end_position: cuts.closed(end) })
    }

    /// The positions around `position` whose samples lie in the same few shards, where the order goes by shards.
    pub(super) fn neighbours(&self, epoch: &EpochWalk, position: u64) -> Option<Range<u64>> {
        let (Self::Places { borders: Some(borders), .. }, EpochWalk::Places { order, cuts }) = (self, epoch) else {
            return None;
        };
        let whole = match order {
            EpochOrder::Global(_) => return None,
            EpochOrder::Block(order) => order.block_at(cuts.restore(position)).positions,
            EpochOrder::Sequential => {
                let shard = borders.shard_of(cuts.restore(position));
                borders.first(shard)..borders.first(shard + 1)
            }
        };
        Some(cuts.closed(whole.start)..cuts.closed(whole.end))
    }

    pub(super) fn block_shards(&self) -> Option<u32> {
        match self {
            Self::Places { order: Order::Block { block_shards, .. }, .. } => Some(*block_shards),
            Self::Places { order: Order::Sequential, borders: Some(_), .. } => Some(1),
            Self::Places { .. } | Self::Draws(_) | Self::Mixed { .. } => None,
        }
    }

    pub(super) fn shuffle_figure(&self, seed: u64) -> Option<ShuffleFigure> {
        match self {
            Self::Places { order: order @ Order::Block { .. }, count, .. } => {
                ShuffleFigure::of(&order.epoch(*count, EpochRandom { seed, epoch: 0 }), *count)
            }
            Self::Places { .. } | Self::Draws(_) | Self::Mixed { .. } => None,
        }
    }

    pub(super) fn notices(&self, seed: u64) -> Vec<String> {
        match self {
            Self::Mixed { mix, .. } => mix.describe(),
            Self::Places { order: Order::Block { borders, block_shards }, count, .. } => {
                let figure = self.shuffle_figure(seed).map_or_else(String::new, |figure| {
                    let ShuffleFigure { displacement, separation, sampled } = figure;
                    format!(
                        "; of what a true shuffle does, samples move {displacement:.2} and neighbours part {separation:.3} \
                         (epoch 0, {sampled} of {count} samples looked at)"
                    )
                });
                let (block, shards) = (u64::from(*block_shards), borders.shard_count());
                vec![format!(
                    "order=\"block\": {block} of {shards} shards at a time, about {} samples, are permuted as one{figure}",
                    u128::from(*count) * u128::from(block) / u128::from(shards)
                )]
            }
            Self::Places { .. } | Self::Draws(_) => Vec::new(),
        }
    }
}

fn compile(order: OrderSpec, borders: Option<&Borders>) -> Result<Order> {
    Ok(match (order, borders) {
        (OrderSpec::Global, _) => Order::Global,
        (OrderSpec::Sequential, _) => Order::Sequential,
        (OrderSpec::Block { block_shards }, Some(borders)) => {
            let block_shards = block_shards.unwrap_or_else(|| borders.default_block());
            if block_shards == 0 {
                return Err(Error::config("block_shards must be at least 1"));
            }
            let shards = u32::try_from(borders.shard_count()).unwrap_or(u32::MAX);
            Order::Block { borders: borders.clone(), block_shards: block_shards.min(shards) }
        }
        (OrderSpec::Block { .. }, None) => {
            return Err(Error::config("order=\"block\" needs the shards of the dataset, and none are known"));
        }
    })
}
