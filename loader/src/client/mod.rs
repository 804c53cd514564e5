//! The trainer's end: opens a stream at a sidecar, waits for batches, and lends them out.
//!
//! No thread and no process lives here: everything happens in the calling thread. Waiting is cut into slices of
//! [`WAIT_SLICE`], between which the caller's `poll` runs (signals) and the sidecar's life is checked.

mod connection;
mod lease;
mod status;
mod stream;

use std::time::Duration;

pub use connection::Anchor;
pub use lease::Lease;
pub use status::status;
pub use stream::{Attachments, Stream};

use crate::error::Result;

/// Longest time between two calls of a waiting caller's `poll`.
pub const WAIT_SLICE: Duration = Duration::from_millis(50);

/// What a call waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum Waiting {
    /// The sidecar's answer to a hello.
    Connect,
    /// The index of the dataset.
    Index {
        /// Shards that are done.
        shards_done: u64,
        /// All shards.
        shards_total: u64,
        /// Samples found so far.
        samples: u64,
    },
    /// A batch.
    Batch {
        /// Epoch that it belongs to.
        epoch: u64,
        /// Its number among this rank's batches since the epoch's start (or since the position resumed from).
        batch: u64,
        /// Slots that hold a finished batch.
        slots_ready: u32,
        /// Slots that the caller's tensors hold.
        slots_held: u32,
        /// All slots.
        slot_count: u32,
    },
    /// The sidecar's counters.
    Figures,
    /// What the sidecar does.
    Status,
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect => write!(formatter, "the sidecar's answer"),
            Self::Index { shards_done, shards_total, samples } => {
                write!(formatter, "the index: {shards_done} of {shards_total} shards done, {samples} samples so far")
            }
            Self::Batch { epoch, batch, slots_ready, slots_held, slot_count } => write!(
                formatter,
                "batch {batch} of epoch {epoch}: {slots_ready} of {slot_count} slots ready, {slots_held} held by the trainer"
            ),
            Self::Figures => write!(formatter, "the sidecar's figures"),
            Self::Status => write!(formatter, "the sidecar's status"),
        }
    }
}

/// Called between the slices of a wait with what is waited for and for how long so far; an error ends the wait.
pub type Poll<'a> = dyn FnMut(&Waiting, Duration) -> Result<()> + 'a;
