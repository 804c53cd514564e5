//! Counters that the data path adds to: relaxed atomics, one add a row, never a lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::sampler::WaitCause;
use crate::error::FaultClass;
use crate::sys::budget::{Budget, Part};

/// Counters of one stream.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Rows stored into slots.
    pub rows: AtomicU64,
    /// Batches published.
    pub batches: AtomicU64,
    /// Bytes asked of the reader.
    pub read_bytes: AtomicU64,
    /// Reads completed.
    pub reads: AtomicU64,
    /// Rows whose encoded bytes were kept in memory, and not read.
    pub cached_rows: AtomicU64,
    /// Their bytes.
    pub cached_bytes: AtomicU64,
    /// Time that reads of this stream were in flight, summed over reads, in nanoseconds.
    pub read_ns: AtomicU64,
    /// Time that workers spent on rows of this stream, in nanoseconds.
    pub decode_ns: AtomicU64,
    /// Rows that a substitute fills.
    pub replaced: AtomicU64,
    /// Rows in which a missing field has its default.
    pub defaulted: AtomicU64,
    /// Rows with a JPEG in which oddities were passed over, as Pillow does: bytes before a marker, bad codes.
    pub odd: AtomicU64,
    /// Batches whose values found no room in their slot.
    pub spilled_batches: AtomicU64,
    /// Bytes of those values.
    pub spilled_bytes: AtomicU64,
    /// Bad samples by class, in the order of [`FaultClass::ALL`].
    pub faults: [AtomicU64; FaultClass::ALL.len()],
    /// Sampled waiting time by cause, in the order of [`WaitCause::ALL`], in nanoseconds.
    pub waiting_ns: [AtomicU64; WaitCause::ALL.len()],
    /// Sampled time during which no slot was free because the trainer had batches in stock, in nanoseconds.
    pub full_ns: AtomicU64,
    /// All sampled time, in nanoseconds.
    pub sampled_ns: AtomicU64,
}

impl StreamCounters {
    /// The figures at this moment.
    pub fn figures(&self) -> StreamFigures {
        let seconds = |ns: &AtomicU64| ns.load(Relaxed) as f64 / 1e9;
        StreamFigures {
            rows: self.rows.load(Relaxed),
            batches: self.batches.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            reads: self.reads.load(Relaxed),
            cached_rows: self.cached_rows.load(Relaxed),
            cached_bytes: self.cached_bytes.load(Relaxed),
            read_s: seconds(&self.read_ns),
            decode_s: seconds(&self.decode_ns),
            replaced: self.replaced.load(Relaxed),
            defaulted: self.defaulted.load(Relaxed),
            odd: self.odd.load(Relaxed),
            spilled_batches: self.spilled_batches.load(Relaxed),
            spilled_bytes: self.spilled_bytes.load(Relaxed),
            faults: FaultClass::ALL
                .iter()
                .zip(&self.faults)
                .filter(|(_, count)| count.load(Relaxed) > 0)
                .map(|(class, count)| (class.name().to_owned(), count.load(Relaxed)))
                .collect(),
            waiting_s: WaitCause::ALL
                .iter()
                .zip(&self.waiting_ns)
                .map(|(cause, ns)| (cause.name().to_owned(), seconds(ns)))
                .collect(),
            full_s: seconds(&self.full_ns),
            sampled_s: seconds(&self.sampled_ns),
            stages: StageFigures::default(),
        }
    }
}

/// [`StreamCounters`] as they travel, with the state of the sidecar's stages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamFigures {
    /// Rows stored into slots.
    pub rows: u64,
    /// Batches published.
    pub batches: u64,
    /// Bytes asked of the reader.
    pub read_bytes: u64,
    /// Reads completed.
    pub reads: u64,
    /// Rows whose encoded bytes were kept in memory, and not read.
    #[serde(default)]
    pub cached_rows: u64,
    /// Their bytes.
    #[serde(default)]
    pub cached_bytes: u64,
    /// Seconds that reads were in flight, summed over reads.
    pub read_s: f64,
    /// Seconds that workers spent, summed over workers.
    pub decode_s: f64,
    /// Rows that a substitute fills.
    pub replaced: u64,
    /// Rows in which a missing field has its default.
    #[serde(default)]
    pub defaulted: u64,
    /// Rows with a JPEG in which oddities were passed over, as Pillow does: bytes before a marker, bad codes.
    #[serde(default)]
    pub odd: u64,
    /// Batches whose values found no room in their slot.
    #[serde(default)]
    pub spilled_batches: u64,
    /// Bytes of those values.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// Bad samples by class.
    pub faults: BTreeMap<String, u64>,
    /// Seconds of waiting by cause, sampled.
    pub waiting_s: BTreeMap<String, f64>,
    /// Seconds during which the ring was full of ready batches, sampled.
    pub full_s: f64,
    /// Seconds that the samples cover.
    pub sampled_s: f64,
    /// The stages, shared by all streams.
    pub stages: StageFigures,
}

impl StreamFigures {
    /// The growth since `base`, an earlier look at the same stream. States of the moment stay as they are.
    pub fn since(&self, base: &Self) -> Self {
        let grown = |now: &BTreeMap<String, f64>, then: &BTreeMap<String, f64>| {
            now.iter().map(|(name, value)| (name.clone(), value - then.get(name).copied().unwrap_or(0.0))).collect()
        };
        Self {
            rows: self.rows.saturating_sub(base.rows),
            batches: self.batches.saturating_sub(base.batches),
            read_bytes: self.read_bytes.saturating_sub(base.read_bytes),
            reads: self.reads.saturating_sub(base.reads),
            cached_rows: self.cached_rows.saturating_sub(base.cached_rows),
            cached_bytes: self.cached_bytes.saturating_sub(base.cached_bytes),
            read_s: self.read_s - base.read_s,
            decode_s: self.decode_s - base.decode_s,
            replaced: self.replaced.saturating_sub(base.replaced),
            defaulted: self.defaulted.saturating_sub(base.defaulted),
            odd: self.odd.saturating_sub(base.odd),
            spilled_batches: self.spilled_batches.saturating_sub(base.spilled_batches),
            spilled_bytes: self.spilled_bytes.saturating_sub(base.spilled_bytes),
            faults: self
                .faults
                .iter()
                .map(|(class, count)| {
                    (class.clone(), count.saturating_sub(base.faults.get(class).copied().unwrap_or(0)))
                })
                .filter(|(_, count)| *count > 0)
                .collect(),
            waiting_s: grown(&self.waiting_s, &base.waiting_s),
            full_s: self.full_s - base.full_s,
            sampled_s: self.sampled_s - base.sampled_s,
            stages: self.stages.clone(),
        }
    }
}

/// The stages that all streams of a sidecar share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageFigures {
    /// Decode threads.
    pub workers: u32,
    /// Seconds that decode threads were busy, summed.
    pub busy_s: f64,
    /// Seconds since the sidecar started.
    pub uptime_s: f64,
    /// Reads in flight now.
    pub reads_in_flight: u32,
    /// Rows waiting for a worker now.
    pub decode_queue: u32,
    /// Reads that found no room in the arena and used memory of their own.
    pub oversized_reads: u64,
    /// Encoded samples that are kept in memory, with what their table takes, in bytes.
    #[serde(default)]
    pub cached_bytes: u64,
    /// How many pieces of samples they are.
    #[serde(default)]
    pub cached_spans: u64,
    /// Memory that is reserved, in bytes, by part.
    #[serde(default)]
    pub memory_bytes: BTreeMap<String, u64>,
    /// The bound of their sum, if there is one.
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
}

/// The state of the stages at this moment, written by feeder and workers, read by the sampler.
#[derive(Debug)]
pub struct StageState {
    /// Reads submitted and not completed.
    pub reads_in_flight: AtomicU32,
    /// Rows read and not yet taken by a worker.
    pub decode_queue: AtomicU32,
    /// Workers on a row.
    pub workers_busy: AtomicU32,
    /// Reads larger than the arena serves.
    pub oversized_reads: AtomicU64,
    /// Encoded samples that are kept in memory, with what their table takes.
    pub cached_bytes: AtomicU64,
    /// How many pieces of samples they are.
    pub cached_spans: AtomicU64,
    /// The bound of memory, and who holds it.
    pub budget: Arc<Budget>,
    /// Time that workers were busy, summed, in nanoseconds.
    pub busy_ns: AtomicU64,
    /// Decode threads.
    pub workers: u32,
    /// The feeder waits for room, or for a stream's turn, and wants to be woken once fewer rows than this wait for a worker; 0
    /// for no wish.
    pub wake_below: AtomicU32,
    /// Turns of the feeder's loop; it makes some every second, whatever there is to do.
    pub feeder_turns: AtomicU64,
    /// Reads that ended and rows that workers were done with, together.
    pub steps_done: AtomicU64,
    started: Instant,
}

impl StageState {
    /// Idle stages with `workers` decode threads, without a bound of memory.
    pub fn new(workers: u32) -> Self {
        Self::within(workers, Budget::unbounded())
    }

    /// Idle stages with `workers` decode threads, within `budget`.
    pub fn within(workers: u32, budget: Arc<Budget>) -> Self {
        Self {
            cached_bytes: AtomicU64::new(0),
            cached_spans: AtomicU64::new(0),
            budget,
            reads_in_flight: AtomicU32::new(0),
            decode_queue: AtomicU32::new(0),
            workers_busy: AtomicU32::new(0),
            oversized_reads: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            workers,
            wake_below: AtomicU32::new(0),
            feeder_turns: AtomicU64::new(0),
            steps_done: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    /// The figures at this moment.
    pub fn figures(&self) -> StageFigures {
        StageFigures {
            workers: self.workers,
            busy_s: self.busy_ns.load(Relaxed) as f64 / 1e9,
            uptime_s: self.started.elapsed().as_secs_f64(),
            reads_in_flight: self.reads_in_flight.load(Relaxed),
            decode_queue: self.decode_queue.load(Relaxed),
            oversized_reads: self.oversized_reads.load(Relaxed),
            cached_bytes: self.cached_bytes.load(Relaxed),
            cached_spans: self.cached_spans.load(Relaxed),
            memory_bytes: Part::ALL.iter().map(|part| (part.name().to_owned(), self.budget.taken_by(*part))).collect(),
            memory_limit_bytes: self.budget.limit_bytes(),
        }
    }
}

/// Measures one row's time at a worker and adds it up when dropped.
#[derive(Debug)]
pub struct WorkerClock<'a> {
    stages: &'a StageState,
    stream: &'a StreamCounters,
    started: Instant,
}

impl<'a> WorkerClock<'a> {
    /// A worker takes a row of `stream`.
    pub fn start(stages: &'a StageState, stream: &'a StreamCounters) -> Self {
        stages.workers_busy.fetch_add(1, Relaxed);
        Self { stages, stream, started: Instant::now() }
    }
}

impl Drop for WorkerClock<'_> {
    fn drop(&mut self) {
        let ns = nanoseconds(self.started.elapsed());
        self.stages.busy_ns.fetch_add(ns, Relaxed);
        self.stream.decode_ns.fetch_add(ns, Relaxed);
        self.stages.workers_busy.fetch_sub(1, Relaxed);
    }
}

/// A duration in nanoseconds, saturating after five centuries.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
