//! A decode thread: takes rows from the queue, stores their pixels at their place.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crossbeam_channel::{Receiver, Sender};

use super::feeder::{Command, Retry};
use super::row::RowWork;
use super::stream::StreamEvent;
use super::{Stream, Waker};
use crate::augment::Draw;
use crate::batch::FieldWorker;
use crate::decode::unwrap::Unwrapper;
use crate::error::{Error, FaultClass, FaultReport, Result, SampleFault};
use crate::plan::trace::{RowPlace, Trace};
use crate::shard::{FieldBytes, Origin};
use crate::telemetry::{StageState, WorkerClock};

/// Samples tried for one row before the run ends: a dataset that bad is no accident.
const ATTEMPTS_MAX: u32 = 100;

/// What a worker owns.
pub(super) struct Worker {
    queue: Receiver<RowWork>,
    stages: Arc<StageState>,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    unwrapper: Unwrapper,
    fields: FieldWorker,
}

/// A fault and where in the sample it is.
struct FieldFault {
    field: usize,
    offset: u64,
    fault: SampleFault,
}

/// Why a row was not made.
enum RowFault {
    /// The sample is bad.
    Field(FieldFault),
    /// There is no memory for its values.
    Spill(io::Error),
}

impl Worker {
    pub(super) fn new(
        queue: Receiver<RowWork>,
        stages: Arc<StageState>,
        commands: Sender<Command>,
        waker: Arc<Waker>,
    ) -> Result<Self> {
        let (unwrapper, fields) = (Unwrapper::default(), FieldWorker::new()?);
        Ok(Self { queue, stages, commands, waker, unwrapper, fields })
    }

    /// Works until the feeder has gone.
    pub(super) fn run(mut self) {
        while let Ok(work) = self.queue.recv() {
            self.stages.decode_queue.fetch_sub(1, Relaxed);
            if work.batch.is_void() {
                // Before the feeder is woken: it looks at what is under way.
                drop(work);
            } else {
                self.work_or_fail(work);
            }
            self.stages.steps_done.fetch_add(1, Relaxed);
            self.wake_feeder();
        }
    }

    /// Works on a row; a panic, which is a bug of ours, ends the stream that the row belongs to, not the others.
    fn work_or_fail(&mut self, work: RowWork) {
        let (stream, sample) = (work.batch.stream.clone(), work.sample);
        if std::panic::catch_unwind(AssertUnwindSafe(|| self.work(work))).is_ok() {
            return;
        }
        let (shard, _) = stream.dataset().locate(sample);
        let place = stream
            .dataset()
            .with_key(sample, |key| format!("{}: key {key:?}", stream.dataset().shard_path(shard).display()));
        stream.fail(Error::protocol(format!(
            "{place}: a bug in Feedline: a worker panicked on this sample, as the sidecar's log tells; leave the sample out, and \
             report the bug with it"
        )));
        // What the panic left behind in the worker's memory is not used again.
        match FieldWorker::new() {
            Ok(fields) => self.fields = fields,
            Err(error) => tracing::error!("a worker goes on with the memory of a panic: {error}"),
        }
    }

    /// The row's buffers are free now and the queue is shorter.
    fn wake_feeder(&self) {
        // Pairs with the fence in `Feeder::run`.
        fence(SeqCst);
        if self.stages.decode_queue.load(Relaxed) < self.stages.wake_below.load(Acquire) {
            self.stages.wake_below.store(0, Release);
            self.waker.wake();
        }
    }

    fn work(&mut self, work: RowWork) {
        let batch = work.batch.clone();
        let stream = &batch.stream;
        let stages = self.stages.clone();
        let clock = WorkerClock::start(&stages, stream.counters());
        let outcome = self.assemble(&work);
        drop(clock);
        match outcome {
            Ok(trace) => {
                stream.counters().rows.fetch_add(1, Relaxed);
                if work.attempt > 0 {
                    stream.counters().replaced.fetch_add(1, Relaxed);
                }
                if self.fields.warnings() > 0 {
                    stream.counters().odd.fetch_add(1, Relaxed);
                }
                for &field in self.fields.cut_off() {
                    note_lenient(&work, field);
                }
                batch.finish_row(trace);
                if let Err(error) = stream.faults().good() {
                    stream.fail(error);
                }
            }
            Err(RowFault::Field(fault)) => self.handle_fault(work, fault),
            Err(RowFault::Spill(error)) => stream.fail(no_room(&error)),
        }
    }

    /// Decodes every field of the row and stores it. Returns what the row adds to the trace.
    fn assemble(&mut self, work: &RowWork) -> Result<Trace, RowFault> {
        let batch = &*work.batch;
        let stream = &*batch.stream;
        let plan = batch.plan.row(work.row);
        let draw = Draw {
            seed: stream.spec().seed,
            epoch: batch.place.epoch,
            sample: stream.draw_number(work.sample.0, plan.position),
        };
        self.fields.begin_row();
        let mut has_default = false;
        for &field in stream.field_order() {
            let recipe = &stream.fields()[field];
            let store = |row: &[u8]| batch.slot.store(field, work.row, row);
            let fault = |offset, fault| RowFault::Field(FieldFault { field, offset, fault });
            let Some(place @ FieldBytes { range, encoding, .. }) = work.places[field] else {
                let default = recipe.default().ok_or_else(|| fault(0, self.missing(stream, field)))?;
                self.fields.run_default(field, recipe, default, store);
                has_default = true;
                continue;
            };
            if let Some(found) = &work.fault {
                return Err(fault(range.offset, found.clone()));
            }
            let bytes = match stream.dataset().stored(&place) {
                Some(stored) => stored,
                None if range.len == 0 => &[],
                None => work.parts.bytes(&place).expect("the feeder read what the selector selects"),
            };
            let bytes = self.unwrapper.unwrap(encoding, bytes).map_err(|found| fault(range.offset, found))?;
            self.fields.run(field, recipe, bytes, draw, store).map_err(|found| fault(range.offset, found))?;
        }
        // The sample is good: only now do its values take room.
        for (field, value) in self.fields.values() {
            batch.slot.store_value(field, work.row, value).map_err(RowFault::Spill)?;
        }
        if has_default {
            stream.counters().defaulted.fetch_add(1, Relaxed);
        }
        batch.slot.set_valid(work.row, plan.valid);
        let trace = stream.dataset().with_key(work.sample, |key| {
            batch.slot.store_key(work.row, key);
            let place = RowPlace { seed: draw.seed, epoch: draw.epoch, position: plan.position, sample: work.sample.0 };
            if plan.valid { self.fields.trace().finish(place, key) } else { Trace::default() }
        });
        Ok(trace)
    }

    #[cold]
    fn missing(&self, stream: &Stream, field: usize) -> SampleFault {
        let sources = stream.spec().fields[field].sources.join(", ");
        SampleFault::new(FaultClass::MissingField, format!("the sample has none of: {sources}"))
    }

    #[cold]
    fn handle_fault(&mut self, work: RowWork, found: FieldFault) {
        let batch = work.batch.clone();
        let stream = &batch.stream;
        // What was read over a writer's shoulder says nothing about the sample.
        if let Err(error) = stream.dataset().check_snapshots() {
            return stream.fail(error);
        }
        let report = report(&work, found);
        stream.counters().faults[report.class as usize].fetch_add(1, Relaxed);
        if report.class == FaultClass::Io {
            // A substitute would depend on the moment; the reader has tried what can be tried.
            stream.fail(Error::Sample { report });
            return;
        }
        match stream.faults().bad(&report) {
            Ok(first) => stream.tell(StreamEvent::Fault { report: report.clone(), first }),
            Err(error) if stream.replaces() => return stream.fail(error),
            Err(_) => {}
        }
        batch.add_fault(report.clone());
        if !stream.replaces() {
            batch.fail();
            batch.finish_row(Trace::default());
        } else if work.attempt >= ATTEMPTS_MAX {
            stream.fail(Error::Sample { report });
        } else {
            let retry = Retry { batch: batch.clone(), row: work.row, attempt: work.attempt + 1 };
            // The feeder is gone only while the process ends.
            let _ = self.commands.send(Command::Retry(retry));
            self.waker.wake();
        }
    }
}

/// Where the fault of a sample is.
#[cold]
fn report(work: &RowWork, found: FieldFault) -> FaultReport {
    let stream = &work.batch.stream;
    let (shard, _) = stream.dataset().locate(work.sample);
    // The shard tells which sample it is; a value of the table, or of another part of a join, is elsewhere.
    let (offset, message) = match (work.places[found.field], stream.dataset().table_path()) {
        (Some(FieldBytes { origin: Origin::Labels, .. }), Some(table)) => {
            (0, format!("{}, in the table {}", found.fault.message, table.display()))
        }
        (Some(FieldBytes { file, .. }), _) if file.shard >= stream.dataset().shard_count() => {
            let path = stream.dataset().shard_path(file.shard).display();
            (0, format!("{}, at byte {} of {path}", found.fault.message, found.offset))
        }
        _ => (found.offset, found.fault.message),
    };
    FaultReport {
        class: found.fault.class,
        shard: stream.dataset().shard_path(shard).display().to_string(),
        key: stream.dataset().with_key(work.sample, str::to_owned),
        field: stream.spec().fields[found.field].name.clone(),
        offset,
        message,
        sample: work.sample.0,
        row: work.row,
    }
}

/// Counts and reports an image that was cut off and is used all the same.
#[cold]
fn note_lenient(work: &RowWork, field: usize) {
    let stream = &work.batch.stream;
    let offset = work.places[field].map_or(0, |place| place.range.offset);
    let words =
        "JPEG: no end-of-image marker: the row has what there is, and grey for the rest (truncated=\"lenient\")";
    let report = report(work, FieldFault { field, offset, fault: SampleFault::new(FaultClass::Lenient, words) });
    let first = stream.counters().faults[FaultClass::Lenient as usize].fetch_add(1, Relaxed) == 0;
    stream.tell(StreamEvent::Fault { report: report.clone(), first });
    work.batch.add_fault(report);
}

/// The system refused memory for values that a slot has no room for.
#[cold]
pub(super) fn no_room(error: &io::Error) -> Error {
    let message = format!(
        "no memory for values that a slot has no room for: {error}; lower batch_size, slots or max_bytes, or raise the \
         memory limit"
    );
    Error::Resources { message }
}
