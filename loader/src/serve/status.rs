//! What a running service tells of itself: `feedline status`, and its JSON.
//!
//! Names are stable: a later version may add some, and takes none away.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::telemetry::StageFigures;

/// A service at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Where it listens.
    pub socket: PathBuf,
    /// `serving`, or `draining` while it shuts down.
    pub state: ServiceState,
    /// Whether it ends with its last client.
    pub private: bool,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Decode threads.
    pub workers: u32,
    /// How shards are read, and why so.
    pub reader: String,
    /// What it takes of the machine's memory.
    pub memory: MemoryStatus,
    /// Who is connected.
    pub connections: ConnectionStatus,
    /// The stages that all streams share.
    pub stages: StageFigures,
    /// The open streams, the oldest first.
    pub streams: Vec<StreamStatus>,
}

/// Whether a service takes in new streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// It does.
    Serving,
    /// It finishes what is begun, and ends.
    Draining,
}

/// Memory of a service, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Resident, rings and mapped files included (`VmRSS`).
    pub resident_bytes: u64,
    /// Resident and its own: heap, stacks, the arena (`RssAnon`).
    pub anonymous_bytes: u64,
    /// Resident and shared, the touched part of the rings (`RssShmem`).
    pub shared_bytes: u64,
    /// Slots of all rings, reserved when each stream was opened.
    pub ring_bytes: u64,
    /// The arena between read and decode.
    pub arena_bytes: u64,
}

/// Connections of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Open now, the one that asks not counted.
    pub open: u32,
    /// Most at a time.
    pub limit: u32,
    /// Refused since the start, because there were too many.
    pub refused: u64,
}

/// One stream at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamStatus {
    /// The job's name.
    pub job: String,
    /// The client's number.
    pub rank: u32,
    /// Of how many.
    pub world_size: u32,
    /// The client's process in the service's pid namespace; null where it has no number there.
    pub pid: Option<i32>,
    /// The client's user.
    pub uid: u32,
    /// Seconds since it was opened.
    pub open_s: f64,
    /// Shards of its dataset.
    pub shards: u64,
    /// Samples of its dataset.
    pub samples: u64,
    /// Epoch of the next batch that the trainer takes.
    pub epoch: u64,
    /// Global position of that batch: where a resume would go on.
    pub position: u64,
    /// Positions of a whole epoch.
    pub epoch_positions: u64,
    /// That batch's number, counted from where the epoch was started.
    pub batch: u64,
    /// This rank's batches of a whole epoch.
    pub batches_per_epoch: u64,
    /// Rows of a full batch.
    pub batch_size: u32,
    /// Batches published since it was opened.
    pub batches: u64,
    /// Rows made since it was opened.
    pub rows: u64,
    /// Rows a second over the last second or two.
    pub rows_per_s: f64,
    /// Rows a second since it was opened.
    pub rows_per_s_overall: f64,
    /// Seconds that the trainer waited, by cause: storage, decode, slots, start.
    pub waiting_s: BTreeMap<String, f64>,
    /// Seconds during which every slot was ready or held: the trainer was the slower one.
    pub full_s: f64,
    /// Slots by state.
    pub slots: SlotStatus,
    /// Bytes of its slots.
    pub ring_bytes: u64,
    /// Bad samples by class.
    pub faults: BTreeMap<String, u64>,
    /// Rows that a substitute fills.
    pub replaced: u64,
    /// Seconds since the snapshot of its LMDB databases was taken; null where it has none.
    pub snapshot_age_s: Option<f64>,
}

/// Slots of a ring by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// Nobody's.
    pub free: u32,
    /// Being filled.
    pub filling: u32,
    /// Waiting for the trainer.
    pub ready: u32,
    /// With the trainer.
    pub held: u32,
}

impl MemoryStatus {
    /// This process's, as the kernel tells; zeros where it does not.
    pub(super) fn of_process(ring_bytes: u64, arena_bytes: u64) -> Self {
        Self::parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), ring_bytes, arena_bytes)
    }

    fn parse(status: &str, ring_bytes: u64, arena_bytes: u64) -> Self {
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
        };
        Self {
            resident_bytes: value("VmRSS"),
            anonymous_bytes: value("RssAnon"),
            shared_bytes: value("RssShmem"),
            ring_bytes,
            arena_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernel_s_words() {
        let text = "Name:\tfeedline\nVmRSS:\t   20480 kB\nRssAnon:\t    1024 kB\nRssShmem:\t     512 kB\n";
        let expected = MemoryStatus {
            resident_bytes: 20 << 20,
            anonymous_bytes: 1 << 20,
            shared_bytes: 512 << 10,
            ring_bytes: 7,
            arena_bytes: 8,
        };
        assert_eq!(MemoryStatus::parse(text, 7, 8), expected);
        assert_eq!(MemoryStatus::parse("", 0, 0), MemoryStatus::default());
        let own = MemoryStatus::of_process(0, 0);
        assert!(own.resident_bytes >= own.anonymous_bytes && own.anonymous_bytes > 0, "{own:?}");
    }
}
