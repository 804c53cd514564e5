//! A batch that is being filled: its slot, and how many rows are still missing.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::stream::StreamEvent;
use super::worker::no_room;
use super::{Stream, Waker};
use crate::batch::REPORT_BYTES_MAX;
use crate::error::FaultReport;
use crate::plan::BatchPlan;
use crate::plan::trace::{Trace, TraceSum};
use crate::ring::{BatchDescriptor, BatchStatus, BatchTicket, WritableSlot};

/// Shared by the feeder, which hands out its rows, and the workers, which store them.
#[derive(Debug)]
pub struct OpenBatch {
    pub(super) stream: Arc<Stream>,
    pub(super) slot: WritableSlot,
    pub(super) plan: BatchPlan,
    pub(super) place: BatchPlace,
    remaining: AtomicU32,
    failed: AtomicBool,
    published: AtomicBool,
    faults: Mutex<Vec<FaultReport>>,
    trace: TraceSum,
    waker: Arc<Waker>,
}

/// Where a batch stands in its stream.
#[derive(Debug, Clone, Copy)]
pub struct BatchPlace {
    /// The seek that it belongs to, and its number since then, over all epochs.
    pub ticket: BatchTicket,
    /// Epoch.
    pub epoch: u64,
    /// Number in the epoch.
    pub batch_index: u64,
}

impl OpenBatch {
    pub(super) fn new(
        stream: Arc<Stream>,
        slot: WritableSlot,
        plan: BatchPlan,
        place: BatchPlace,
        waker: Arc<Waker>,
    ) -> Self {
        let remaining = AtomicU32::new(plan.row_count);
        let (failed, published) = (AtomicBool::new(false), AtomicBool::new(false));
        let (faults, trace) = (Mutex::new(Vec::new()), TraceSum::default());
        Self { stream, slot, plan, place, remaining, failed, published, faults, trace, waker }
    }

    /// Nobody waits for it any more: the stream ended or was sent elsewhere.
    pub(super) fn is_void(&self) -> bool {
        self.stream.is_stopped() || self.stream.generation() != self.place.ticket.generation()
    }

    /// Notes a bad sample of this batch.
    pub(super) fn add_fault(&self, report: FaultReport) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(report);
    }

    /// The batch will raise at the client instead of giving rows.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// A row is stored, or given up in a batch that fails; `trace` is its part. The last one publishes.
    pub(super) fn finish_row(&self, trace: Trace) {
        self.trace.add(trace);
        // AcqRel: the one who sees 1 sees every other worker's stores, and `publish` releases them to the client.
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 && !self.is_void() {
            // Every read of the batch is done: what no lock keeps was still there then, or the batch is no good.
            match self.stream.dataset().check_snapshots() {
                Ok(()) => self.publish(),
                Err(error) => self.stream.fail(error),
            }
        }
    }

    fn publish(&self) {
        match self.slot.seal_spill() {
            Ok(None) => {}
            Ok(Some(spill)) => {
                let counters = self.stream.counters();
                counters.spilled_batches.fetch_add(1, Ordering::Relaxed);
                counters.spilled_bytes.fetch_add(spill.bytes.into(), Ordering::Relaxed);
                // Told before the batch is there, so that a client which sees the batch need only wait for the memory.
                self.stream.tell(StreamEvent::Spilled { ticket: self.place.ticket, spill });
            }
            Err(error) => return self.stream.fail(no_room(&error)),
        }
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        // Workers finish in any order; the report must not depend on it.
        faults.sort_by_key(|fault| (fault.row, fault.sample));
        let report = (!faults.is_empty()).then(|| self.fitting_report(&faults));
        let failed = self.failed.load(Ordering::Relaxed);
        self.slot.publish(
            BatchDescriptor {
                ticket: self.place.ticket,
                epoch: self.place.epoch,
                batch_index: self.place.batch_index,
                first_position: self.plan.first_position,
                end_position: self.plan.end_position(),
                row_count: self.plan.row_count,
                status: if failed { BatchStatus::Failed } else { BatchStatus::Ok },
                fault_count: u32::try_from(faults.len()).unwrap_or(u32::MAX),
                trace: if failed { Trace::default() } else { self.trace.get() },
            },
            report.as_deref(),
        );
        self.published.store(true, Ordering::Relaxed);
        self.stream.counters().batches.fetch_add(1, Ordering::Relaxed);
    }

    /// As many faults as fit, as JSON. The count beside it tells of the rest.
    fn fitting_report(&self, faults: &[FaultReport]) -> Vec<u8> {
        let room = REPORT_BYTES_MAX;
        let mut count = faults.len();
        loop {
            let json = serde_json::to_vec(&faults[..count]).expect("reports are plain data");
            if json.len() <= room || count == 0 {
                return json;
            }
            count /= 2;
        }
    }
}

impl Drop for OpenBatch {
    fn drop(&mut self) {
        // The slot of a void batch goes back to free right after this; the feeder must look for it.
        if !*self.published.get_mut() {
            self.waker.wake();
        }
    }
}
