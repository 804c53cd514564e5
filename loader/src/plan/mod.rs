//! Which sample is where in an epoch: a pure function, with no list and no I/O.
//!
//! One global order of positions 0, 1, 2, … is fixed by seed and epoch ([`order`](self)). Global batches are cut from
//! it one after the other, and each rank takes its contiguous part of every one ([`Partition`]). So the order depends
//! neither on threads nor, at an equal global batch, on the number of ranks; and where to resume is one number.

mod order;
mod partition;
mod permutation;
mod source;

use std::sync::Arc;

pub use partition::Partition;
pub use source::Source;

use crate::error::{Error, Result};
use crate::spec::{OrderSpec, Tail};
use order::EpochOrder;

/// Number of a sample in its dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleId(pub u64);

/// The plan of a job at one rank, for all epochs.
#[derive(Debug, Clone)]
pub struct Plan {
    job: Arc<Job>,
}

#[derive(Debug)]
struct Job {
    source: Source,
    order: OrderSpec,
    seed: u64,
    partition: Partition,
}

impl Plan {
    /// A plan over `source`.
    ///
    /// # Errors
    /// [`Error::Config`] when an epoch would have no batch, or a rank none of the last.
    pub fn new(source: Source, order: OrderSpec, seed: u64, partition: Partition) -> Result<Self> {
        partition.check(source.positions(), 0)?;
        Ok(Self { job: Arc::new(Job { source, order, seed, partition }) })
    }

    /// Positions of an epoch's order, before the tail rule.
    pub fn epoch_positions(&self) -> u64 {
        self.job.source.positions()
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
        let order = EpochOrder::new(self.epoch_positions(), self.job.order, self.job.seed, epoch);
        Ok(EpochPlan { job: self.job.clone(), order, start })
    }
}

/// The plan of one epoch at one rank.
#[derive(Debug, Clone)]
pub struct EpochPlan {
    job: Arc<Job>,
    order: EpochOrder,
    start: u64,
}

impl EpochPlan {
    /// This rank's batches.
    pub fn batch_count(&self) -> u64 {
        self.job.partition.batch_count(self.job.source.positions(), self.start)
    }

    /// Batch `index` of this rank, counted from where the epoch was started.
    pub fn batch(&self, index: u64) -> BatchPlan {
        let positions = self.job.source.positions();
        let rows = self.job.partition.rows(positions, self.start, index);
        BatchPlan {
            first_position: rows.first_position,
            row_count: rows.row_count,
            end_position: rows.end_position,
            epoch: self.clone(),
        }
    }

    /// The sample at `position` of the global order.
    pub fn sample_at(&self, position: u64) -> SampleId {
        self.job.source.sample(&self.order, position)
    }

    /// The sample that takes the row at `position` after `attempt` samples (1 and up) could not be used. A function of
    /// seed, epoch, position and attempt alone, so that timing never changes a batch.
    pub fn substitute(&self, position: u64, attempt: u32) -> SampleId {
        self.sample_at(self.order.substitute(position, attempt))
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

    /// Row `row`, below [`BatchPlan::row_count`].
    pub fn row(&self, row: u32) -> RowPlan {
        assert!(row < self.row_count, "row {row} of a batch of {}", self.row_count);
        let positions = self.epoch.job.source.positions();
        let unwrapped = self.first_position + u64::from(row);
        let position = unwrapped % positions;
        RowPlan { position, sample: self.epoch.sample_at(position), valid: unwrapped < positions }
    }
}

#[cfg(test)]
mod tests;
