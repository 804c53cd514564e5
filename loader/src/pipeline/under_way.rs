//! What of a stream is between feeder and worker: counted by the feeder, counted down wherever a row ends.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::Stream;

/// Counters of one stream.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    rows: AtomicU32,
    bytes: AtomicU64,
}

impl UnderWay {
    /// Rows whose reading has begun and that no worker is done with.
    pub(super) fn rows(&self) -> u32 {
        self.rows.load(Relaxed)
    }

    /// Bytes of the arena that they hold.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// One row under way, until this is dropped.
#[derive(Debug)]
pub struct RowUnderWay {
    stream: Arc<Stream>,
    bytes: u64,
}

impl RowUnderWay {
    /// A row of `stream` that holds `bytes` of the arena.
    pub(super) fn new(stream: Arc<Stream>, bytes: u64) -> Self {
        stream.under_way().rows.fetch_add(1, Relaxed);
        stream.under_way().bytes.fetch_add(bytes, Relaxed);
        Self { stream, bytes }
    }
}

impl Drop for RowUnderWay {
    fn drop(&mut self) {
        self.stream.under_way().rows.fetch_sub(1, Relaxed);
        self.stream.under_way().bytes.fetch_sub(self.bytes, Relaxed);
    }
}
