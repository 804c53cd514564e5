//! The ring: finished batches in memory that the sidecar and one client share.
//!
//! [`RingWriter`] is the sidecar's end, [`RingReader`] the client's. A slot is free → filling → ready → held → free;
//! [`state`] is that life as arithmetic on one word, [`layout`] the bytes on the wire, [`bump`] how room of varying size
//! is handed out, [`named`] rings that are found by name. Values for which a slot has no room lie in memory made for that batch alone, its spill; it is sealed,
//! passed to the client, and gone with the batch. What a batch looks like inside a slot is [`crate::batch`]'s, how the descriptors travel is [`crate::serve`]'s.
//!
//! The sidecar trusts nothing that it reads back: what it needs to know about a slot it keeps in private memory, and a
//! state word that can not be is a [`RingFault`], which ends that client and nobody else.

pub mod bump;
mod doorbell;
pub mod layout;
pub mod named;
mod reader;
mod reserved;
mod spill;
pub mod state;
mod writable;
mod writer;

#[cfg(test)]
mod model;
#[cfg(test)]
mod named_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod value_tests;

pub use reader::{HeldSlot, RingReader, WaitOutcome};
pub use spill::SealedSpill;
pub use writable::WritableSlot;
pub use writer::{RingDescriptors, RingWriter, SlotCounts};

use crate::error::{Error, Result};
use crate::plan::trace::Trace;

/// Number of a slot in its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

impl std::fmt::Display for SlotIndex {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Which batch a slot holds: the number of the client's stream, and of the batch in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchTicket {
    generation: u32,
    sequence: u32,
}

impl BatchTicket {
    /// Most streams that one ring can serve, one after the other.
    pub const GENERATION_MAX: u32 = (1 << 28) - 1;

    /// Most batches of one stream.
    pub const SEQUENCE_MAX: u64 = u32::MAX as u64;

    /// Batch `sequence` of stream `generation`.
    pub fn new(generation: u32, sequence: u64) -> Result<Self> {
        if generation > Self::GENERATION_MAX {
            return Err(Error::protocol(format!(
                "generation {generation} is over {}: open a new connection",
                Self::GENERATION_MAX
            )));
        }
        let sequence = u32::try_from(sequence).map_err(|_| {
            Error::protocol(format!("batch {sequence} of a stream is over {}: start a new one", Self::SEQUENCE_MAX))
        })?;
        Ok(Self { generation, sequence })
    }

    /// The stream's number; a larger one is later.
    pub fn generation(self) -> u32 {
        self.generation
    }

    /// The batch's number in the stream, from 0.
    pub fn sequence(self) -> u64 {
        u64::from(self.sequence)
    }
}

impl std::fmt::Display for BatchTicket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "batch {} of stream {}", self.sequence, self.generation)
    }
}

/// How a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchStatus {
    /// Its rows are there.
    Ok,
    /// It has no rows; the report says why.
    Failed,
}

/// What there is to know about a batch beside its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchDescriptor {
    /// Which one it is.
    pub ticket: BatchTicket,
    /// Epoch that it belongs to.
    pub epoch: u64,
    /// Its number in the epoch.
    pub batch_index: u64,
    /// Position in the epoch at which it starts.
    pub first_position: u64,
    /// Position at which the next one starts: where to resume after this batch.
    pub end_position: u64,
    /// Rows that it has; at most the layout's batch size.
    pub row_count: u32,
    /// Whether there are rows.
    pub status: BatchStatus,
    /// Samples that could not be used.
    pub fault_count: u32,
    /// The sum of the rows' hashes.
    pub trace: Trace,
}

/// The client broke the ring's rules, or its memory is lost: end that client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// A state word holds what no rightful client writes there.
    #[error("slot {slot}: state word {found:#018x} cannot follow {expected:#018x}")]
    State {
        /// The slot.
        slot: SlotIndex,
        /// What its word holds.
        found: u64,
        /// What the sidecar had written.
        expected: u64,
    },
    /// Pages of the ring were taken away (a hole was punched, or memory ran out).
    #[error("{pages} pages of the ring's memory were lost")]
    Memory {
        /// How many were missed so far.
        pages: u32,
    },
}

impl From<RingFault> for Error {
    fn from(fault: RingFault) -> Self {
        Self::protocol(format!("shared memory ring: {fault}"))
    }
}
