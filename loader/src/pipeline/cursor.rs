//! Where the feeder stands in a stream: the batch that is open and the row that comes next.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::open_batch::{BatchPlace, OpenBatch};
use super::stream::StreamEvent;
use super::turns::{Charge, Clock};
use super::{Stream, Waker};
use crate::error::{Error, Result};
use crate::plan::EpochPlan;
use crate::ring::{BatchTicket, SlotCounts};

/// The feeder's place in one stream.
#[derive(Debug)]
pub(super) struct Cursor {
    stream: Arc<Stream>,
    generation: u32,
    epoch: u64,
    plan: EpochPlan,
    /// Number of the next batch to open, in the epoch and since the seek.
    batch_index: u64,
    sequence: u64,
    open: Option<(Arc<OpenBatch>, u32)>,
    /// Worker time that it is charged with beside its rows', because it wanted none while others had theirs.
    credit_ns: u64,
    is_unpacking: bool,
    /// At the last look.
    slots: SlotCounts,
    /// The client was seen to have broken the ring.
    is_broken: bool,
    /// The end of the last drain that was told; no batch is opened any more.
    drained_at: Option<BatchTicket>,
}

/// What [`Cursor::next_row`] found.
pub(super) enum NextRow {
    /// A row to read.
    Row {
        /// Its batch.
        batch: Arc<OpenBatch>,
        /// Its number in it.
        row: u32,
    },
    /// No slot is free.
    NoSlot,
    /// The client broke its ring.
    Failed(Error),
}

impl Cursor {
    /// At the start of epoch 0.
    pub(super) fn new(stream: Arc<Stream>) -> Result<Self> {
        let plan = stream.plan().epoch(0, 0)?;
        Ok(Self {
            stream,
            generation: 0,
            epoch: 0,
            plan,
            batch_index: 0,
            sequence: 0,
            open: None,
            credit_ns: 0,
            is_unpacking: false,
            slots: SlotCounts::default(),
            is_broken: false,
            drained_at: None,
        })
    }

    pub(super) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Looks at its slots; whether it has rows to hand out.
    pub(super) fn look(&mut self) -> bool {
        let ring = self.stream.ring();
        self.slots = ring.slots_by_state();
        // A broken ring may show no free slot; opening a batch then tells why.
        self.is_broken = self.open.is_none() && self.slots.free == 0 && ring.look().is_err();
        self.is_wanting()
    }

    /// Whether it had rows to hand out at the last look.
    pub(super) fn is_wanting(&self) -> bool {
        !self.stream.is_stopped()
            && !self.is_unpacking
            && (self.open.is_some() || ((self.slots.free > 0 || self.is_broken) && !self.is_draining()))
    }

    /// Whether rows of it are between here and the workers, or with them.
    pub(super) fn is_under_way(&self) -> bool {
        self.stream.under_way().rows() > 0
    }

    /// Batches that waited for the client at the last look, less the one that it takes where it sleeps for want of one.
    pub(super) fn ready_batches(&self) -> u32 {
        self.slots.ready.saturating_sub(u32::from(self.stream.ring().client_waiting()))
    }

    /// Worker time that its rows took and take.
    pub(super) fn charge(&self) -> Charge {
        let counters = self.stream.counters();
        Charge {
            spent_ns: counters.decode_ns.load(Relaxed),
            rows_done: counters.rows.load(Relaxed),
            rows_under_way: self.stream.under_way().rows(),
        }
    }

    /// Its turn in terms of worker time, brought up to where the slowest may be. A job of priority 2 is charged half.
    pub(super) fn service_ns(&mut self, clock: &Clock) -> u64 {
        let total = (self.charge().total_ns() as f64 / self.stream.spec().priority) as u64;
        self.credit_ns += clock.overdue(total.saturating_add(self.credit_ns));
        total.saturating_add(self.credit_ns)
    }

    /// Whether no batch is opened any more.
    pub(super) fn is_draining(&self) -> bool {
        self.drained_at.is_some()
    }

    /// Opens no more batches, and tells the connection which would have been next.
    pub(super) fn drain(&mut self) -> Result<()> {
        let end = BatchTicket::new(self.generation, self.sequence)?;
        if self.drained_at.replace(end) != Some(end) {
            self.stream.tell(StreamEvent::Drains { end });
        }
        Ok(())
    }

    /// Sets whether the next row waits for its shard to be unpacked.
    pub(super) fn set_unpacking(&mut self, is_unpacking: bool) {
        self.is_unpacking = is_unpacking;
    }

    /// Goes to `position` of `epoch`. What was opened before is void.
    pub(super) fn seek(&mut self, generation: u32, epoch: u64, position: u64) -> Result<()> {
        if generation <= self.generation {
            return Err(Error::protocol(format!("generation {generation} comes after {}", self.generation)));
        }
        self.plan = self.stream.plan().epoch(epoch, position)?;
        self.generation = generation;
        self.epoch = epoch;
        self.batch_index = 0;
        self.sequence = 0;
        self.stream.set_generation(generation);
        self.stream.places().sought(epoch, position);
        self.open = None;
        self.is_unpacking = false;
        self.stream.ring().reclaim_ready(generation);
        Ok(())
    }

    /// The next row in plan order, opening a batch where needed.
    pub(super) fn next_row(&mut self, waker: &Arc<Waker>) -> NextRow {
        if self.open.is_none() {
            match self.open_batch(waker) {
                Ok(Some(batch)) => self.open = Some((batch, 0)),
                Ok(None) => return NextRow::NoSlot,
                Err(error) => return NextRow::Failed(error),
            }
        }
        let (batch, row) = self.open.take().expect("opened above");
        if row + 1 < batch.plan.row_count {
            self.open = Some((batch.clone(), row + 1));
        }
        NextRow::Row { batch, row }
    }

    /// Takes back the row that [`Cursor::next_row`] gave last.
    pub(super) fn put_back(&mut self, batch: Arc<OpenBatch>, row: u32) {
        self.open = Some((batch, row));
    }

    fn open_batch(&mut self, waker: &Arc<Waker>) -> Result<Option<Arc<OpenBatch>>> {
        if self.is_draining() {
            return Ok(None);
        }
        let acquired = self.stream.ring().acquire();
        let slot = acquired.map_err(|fault| Error::protocol(format!("the client broke its ring: {fault}")))?;
        let Some(slot) = slot else { return Ok(None) };
        while self.batch_index == self.plan.batch_count() {
            self.epoch += 1;
            self.batch_index = 0;
            self.plan = self.stream.plan().epoch(self.epoch, 0)?;
        }
        let place = BatchPlace {
            ticket: BatchTicket::new(self.generation, self.sequence)?,
            epoch: self.epoch,
            batch_index: self.batch_index,
        };
        let plan = self.plan.batch(self.batch_index);
        self.batch_index += 1;
        self.sequence += 1;
        self.stream.places().opened(place.epoch, place.batch_index, plan.end_position());
        Ok(Some(Arc::new(OpenBatch::new(self.stream.clone(), slot, plan, place, waker.clone()))))
    }
}
