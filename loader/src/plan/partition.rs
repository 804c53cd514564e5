//! A rank's share of an epoch.

use crate::error::{Error, Result};
use crate::spec::Tail;

/// Which part of every global batch a rank takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    rank: u32,
    world_size: u32,
    batch_size: u32,
    tail: Tail,
}

/// The rows of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) first_position: u64,
    pub(super) row_count: u32,
    pub(super) end_position: u64,
}

impl Partition {
    /// Rank `rank` of `world_size`, `batch_size` rows a rank.
    pub fn new(rank: u32, world_size: u32, batch_size: u32, tail: Tail) -> Result<Self> {
        if rank >= world_size || batch_size == 0 {
            return Err(Error::config(format!(
                "rank must be below world_size and batch_size at least 1, got rank {rank}, world_size {world_size}, \
                 batch_size {batch_size}"
            )));
        }
        Ok(Self { rank, world_size, batch_size, tail })
    }

    /// Rows of a global batch.
    pub fn global_batch(&self) -> u64 {
        u64::from(self.batch_size) * u64::from(self.world_size)
    }

    /// The rule for the last samples.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// Refuses an epoch of `positions` from `start` that gives no batch, or a rank none of the last.
    pub(super) fn check(&self, positions: u64, start: u64) -> Result<()> {
        if self.batch_count(positions, start) == 0 {
            return Err(Error::config(format!(
                "an epoch of {positions} samples has no batch of {} (batch_size {} x world_size {}) when the tail is dropped: \
                 use a smaller batch_size, or drop_last=False",
                self.global_batch(),
                self.batch_size,
                self.world_size
            )));
        }
        self.check_tail(positions, start)
    }

    /// Refuses a last global batch that leaves a rank without a row.
    pub(super) fn check_tail(&self, positions: u64, start: u64) -> Result<()> {
        let tail = (positions - start) % self.global_batch();
        if self.tail == Tail::Short && tail > 0 && tail < u64::from(self.world_size) {
            return Err(Error::config(format!(
                "the last global batch has {tail} sample(s) for {} ranks, so a rank would get none and the others would wait \
                 for it: use drop_last=True, or tail=\"pad\"",
                self.world_size
            )));
        }
        Ok(())
    }

    /// Batches of each rank from `start` to the end of an epoch of `positions`.
    pub(super) fn batch_count(&self, positions: u64, start: u64) -> u64 {
        let remaining = positions.saturating_sub(start);
        match self.tail {
            Tail::Drop => remaining / self.global_batch(),
            Tail::Short | Tail::Pad => remaining.div_ceil(self.global_batch()),
        }
    }

    /// The rows of batch `index` of this rank, in an epoch of `positions` from `start`.
    pub(super) fn rows(&self, positions: u64, start: u64, index: u64) -> Rows {
        let global_first = start + index * self.global_batch();
        let global_rows = self.global_batch().min(positions - global_first);
        let (rank, world_size, batch_size) =
            (u64::from(self.rank), u64::from(self.world_size), u64::from(self.batch_size));
        let (offset, rows) = if global_rows == self.global_batch() || self.tail == Tail::Pad {
            (rank * batch_size, batch_size)
        } else {
            let (share, rest) = (global_rows / world_size, global_rows % world_size);
            (rank * share + rank.min(rest), share + u64::from(rank < rest))
        };
        Rows {
            first_position: global_first + offset,
            row_count: u32::try_from(rows).expect("at most batch_size"),
            end_position: global_first + global_rows,
        }
    }
}
