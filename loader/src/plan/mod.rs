//! Which sample is where in an epoch: a pure function, with no list and no I/O.
//!
//! One global order of positions 0, 1, 2, … is fixed by seed and epoch ([`order`](self)): a permutation of all samples,
//! one by [`block`]s of shards, the dataset's own, draws by weight ([`draws`]), or a [`mix`] of datasets. Samples in
//! quarantine are [`cuts`] in it. Global batches are taken from what remains one after the other, and each rank takes its
//! contiguous part of every one ([`Partition`]). So the order depends neither on threads nor, at an equal global batch,
//! on the number of ranks; and where to resume is one number. No memory grows with the number of samples: all of it is
//! what the caller gave (indices, weights, quarantine), and in block order some bytes a shard.

mod block;
mod cuts;
mod draws;
mod figure;
mod mix;
mod order;
mod partition;
mod permutation;
mod random;
mod shares;
mod source;
pub mod trace;
mod walk;

use std::ops::Range;
use std::sync::Arc;

pub use draws::Draws;
pub use figure::ShuffleFigure;
pub use mix::{Mix, MixPart};
pub use partition::Partition;
pub use source::Source;

use crate::error::{Error, Result};
use crate::spec::{OrderSpec, Tail};
use random::EpochRandom;
use walk::{EpochWalk, Walk};

/// Number of a sample in its dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleId(pub u64);

/// What a plan is made of.
#[derive(Debug, Clone)]
pub struct PlanOptions<'a> {
    /// Which samples an epoch takes.
    pub source: Source,
    /// How it goes through them.
    pub order: OrderSpec,
    /// Seed of all randomness.
    pub seed: u64,
    /// This rank's share.
    pub partition: Partition,
    /// The number of each shard's first sample, for orders that go by shards.
    pub first_samples: &'a [u64],
    /// Samples in quarantine, in any order: they are cut from the order, in which all others keep their relative place.
    pub left_out: &'a [u64],
}

/// Substitutes that are sought in the shards at hand. Few: where most samples there are bad, many bad ones in a row would end
/// the run.
const NEAR_ATTEMPTS: u32 = 4;

/// The plan of a job at one rank, for all epochs.
#[derive(Debug, Clone)]
pub struct Plan {
    job: Arc<Job>,
}

#[derive(Debug)]
struct Job {
    walk: Walk,
    positions: u64,
    seed: u64,
    partition: Partition,
}

impl Plan {
    /// A plan of `options`.
    ///
    /// # Errors
    /// [`Error::Config`] when an epoch would have no batch, or a rank none of the last; when the order does not go with
    /// the source; when the quarantine leaves nothing.
    pub fn new(options: PlanOptions<'_>) -> Result<Self> {
        let PlanOptions { source, order, seed, partition, first_samples, left_out } = options;
        let walk = Walk::new(source, order, first_samples, left_out)?;
        let positions = walk.positions();
        if positions == 0 {
            return Err(Error::config(
                "no sample is left: the quarantine, or missing=\"drop\", leaves out every one; mend the data, or leave out fewer",
            ));
        }
        partition.check(positions, 0)?;
        let plan = Self { job: Arc::new(Job { walk, positions, seed, partition }) };
        // What an epoch may refuse is refused at the start.
        plan.epoch(0, 0)?;
        Ok(plan)
    }

    /// Positions of an epoch's order, before the tail rule.
    pub fn epoch_positions(&self) -> u64 {
        self.job.positions
    }

    /// In how many shards each stretch of the order lies, where it goes by shards: 1 and up in block order, 1 in the
    /// dataset's own. `None` where the next sample may be in any shard.
    pub fn block_shards(&self) -> Option<u32> {
        self.job.walk.block_shards()
    }

    /// How well a block order shuffles, in epoch 0.
    pub fn shuffle_figure(&self) -> Option<ShuffleFigure> {
        self.job.walk.shuffle_figure(self.job.seed)
    }

    /// What users should know of the order.
    pub fn notices(&self) -> Vec<String> {
        self.job.walk.notices(self.job.seed)
    }

    /// This rank's batches from global position `start` to the end of an epoch.
    pub fn batch_count(&self, start: u64) -> u64 {
        self.job.partition.batch_count(self.epoch_positions(), start)
    }

    /// Positions at the end of a whole epoch that the tail rule leaves out.
    pub fn left_out(&self) -> u64 {
        match self.job.partition.tail() {
            Tail::Drop => self.epoch_positions() % self.job.partition.global_batch(),
            Tail::Short | Tail::Pad => 0,
        }
    }

    /// Rows of a whole epoch, over all ranks, that the tail rule repeats.
    pub fn repeated(&self) -> u64 {
        match self.job.partition.tail() {
            Tail::Pad => {
                let global_batch = self.job.partition.global_batch();
                (global_batch - self.epoch_positions() % global_batch) % global_batch
            }
            Tail::Short | Tail::Drop => 0,
        }
    }

    /// The plan of one epoch from global position `start` on; 0 is the whole epoch.
    pub fn epoch(&self, epoch: u64, start: u64) -> Result<EpochPlan> {
        if start > self.epoch_positions() {
            return Err(Error::config(format!(
                "position {start} is past the end of an epoch of {} samples",
                self.epoch_positions()
            )));
        }
        if start > 0 {
            self.job.partition.check_tail(self.epoch_positions(), start)?;
        }
        let random = EpochRandom { seed: self.job.seed, epoch };
        let walk = self.job.walk.epoch(random)?;
        Ok(EpochPlan { job: self.job.clone(), random, walk, start })
    }
}

/// The plan of one epoch at one rank.
#[derive(Debug, Clone)]
pub struct EpochPlan {
    job: Arc<Job>,
    random: EpochRandom,
    walk: EpochWalk,
    start: u64,
}

/// A stretch of positions whose samples all lie in a few shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStretch {
    /// The shards, in the order in which they were shuffled; those without samples are left out.
    pub shards: Vec<u32>,
    /// The position after its last.
    pub end_position: u64,
}

impl EpochPlan {
    /// This rank's batches.
    pub fn batch_count(&self) -> u64 {
        self.job.partition.batch_count(self.job.positions, self.start)
    }

    /// Batch `index` of this rank, counted from where the epoch was started.
    pub fn batch(&self, index: u64) -> BatchPlan {
        let rows = self.job.partition.rows(self.job.positions, self.start, index);
        BatchPlan {
            first_position: rows.first_position,
            row_count: rows.row_count,
            end_position: rows.end_position,
            epoch: self.clone(),
        }
    }

    /// The sample at `position` of the global order.
    pub fn sample_at(&self, position: u64) -> SampleId {
        self.job.walk.sample(&self.walk, position)
    }

    /// Where the samples from `position` on lie, for reading ahead of the order. `None` where they may lie anywhere
    /// ([`Plan::block_shards`]), and past the epoch's end.
    pub fn shards_at(&self, position: u64) -> Option<ShardStretch> {
        if position >= self.job.positions {
            return None;
        }
        self.job.walk.shards_at(&self.walk, position)
    }

    /// The sample that takes the row at `position` after `attempt` samples (1 and up) could not be used. A function of
    /// seed, epoch, position and attempt alone, so that timing never changes a batch.
    pub fn substitute(&self, position: u64, attempt: u32) -> SampleId {
        self.substitute_within(0..self.job.positions, position, attempt)
    }

    /// As [`EpochPlan::substitute`], for shards that cost a lot to be read from at all: where the order goes by shards, the
    /// first few attempts keep to those at hand.
    pub fn substitute_at_hand(&self, position: u64, attempt: u32) -> SampleId {
        let near = self.job.walk.neighbours(&self.walk, position).filter(|near| near.end - near.start > 1);
        let near = near.filter(|_| attempt <= NEAR_ATTEMPTS);
        self.substitute_within(near.unwrap_or(0..self.job.positions), position, attempt)
    }

    fn substitute_within(&self, positions: Range<u64>, position: u64, attempt: u32) -> SampleId {
        let place = self.random.substitute(positions.end - positions.start, position, attempt);
        self.sample_at(positions.start + place)
    }
}

/// One batch of one rank.
#[derive(Debug, Clone)]
pub struct BatchPlan {
    /// Global position of its first row.
    pub first_position: u64,
    /// Its rows.
    pub row_count: u32,
    end_position: u64,
    epoch: EpochPlan,
}

/// One row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlan {
    /// Its place in the epoch's global order.
    pub position: u64,
    /// The sample there.
    pub sample: SampleId,
    /// False for a row that only fills the last batch with a repeat.
    pub valid: bool,
}

impl BatchPlan {
    /// Global position after the whole global batch: where to resume once this batch is consumed.
    pub fn end_position(&self) -> u64 {
        self.end_position
    }

    /// The plan of its epoch.
    pub fn epoch(&self) -> &EpochPlan {
        &self.epoch
    }

    /// Row `row`, below [`BatchPlan::row_count`].
    pub fn row(&self, row: u32) -> RowPlan {
        assert!(row < self.row_count, "row {row} of a batch of {}", self.row_count);
        let positions = self.epoch.job.positions;
        let unwrapped = self.first_position + u64::from(row);
        let position = unwrapped % positions;
        RowPlan { position, sample: self.epoch.sample_at(position), valid: unwrapped < positions }
    }
}

#[cfg(test)]
mod tests;
