//! From a row to its bytes: what of it is kept already, where the rest lies, and what comes back.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crossbeam_channel::TrySendError;

use super::{Feeder, Pending, Refused, SLEEP_MAX};
use crate::error::{FaultClass, Result, SampleFault};
use crate::pipeline::cache::KeptParts;
use crate::pipeline::files::Acquired;
use crate::pipeline::open_batch::OpenBatch;
use crate::pipeline::row::{self, PARTS_MAX, Part, PartBytes, Parts, RowWork, Span};
use crate::pipeline::under_way::RowUnderWay;
use crate::plan::SampleId;
use crate::read::{Completion, FileId, READ_BYTES_MAX, ReadBuffer, ReadRequest};
use crate::shard::Dataset;
use crate::spec::FIELDS_MAX;

impl Feeder {
    /// Submits the reads of one row; nothing is submitted when there is no room for all of them.
    pub(super) fn read_row(
        &mut self,
        batch: Arc<OpenBatch>,
        row: u32,
        attempt: u32,
        sample: SampleId,
    ) -> Result<(), Refused> {
        if batch.is_void() {
            return Ok(());
        }
        let stream = batch.stream.clone();
        let mut places = [None; FIELDS_MAX];
        let fields = &mut places[..stream.fields().len()];
        stream.selector().select(stream.dataset(), sample, fields);
        let mut spans = [Span::EMPTY; PARTS_MAX];
        let count = row::spans(fields, &mut spans);
        let covers = &spans[..count];
        let row_work = |arena_bytes| RowWork {
            _under_way: RowUnderWay::new(stream.clone(), arena_bytes),
            batch,
            row,
            attempt,
            sample,
            places,
            parts: Parts::default(),
            fault: None,
        };
        if count == 0 {
            self.hand_over(row_work(0));
            return Ok(());
        }
        if let Some(kept) = self.cache.get(stream.dataset(), sample, covers) {
            let mut work = row_work(0);
            self.use_kept(&mut work, covers, kept);
            self.hand_over(work);
            return Ok(());
        }
        let mut buffers = match self.allocate(covers) {
            Ok(Some(buffers)) => buffers,
            Ok(None) => return Err(Refused::NoRoom),
            Err(error) if covers.iter().any(|span| span.end - span.start > u64::from(READ_BYTES_MAX)) => {
                let mut work = row_work(0);
                work.fault = Some(SampleFault::new(FaultClass::TooLarge, error.to_string()));
                self.hand_over(work);
                return Ok(());
            }
            // It depends on the moment, not on the sample.
            Err(error) => {
                stream.fail(error);
                return Ok(());
            }
        };
        let files = match self.acquire(stream.dataset(), covers) {
            Ok(Ok(files)) => files,
            Ok(Err(refused)) => return Err(refused),
            Err(error) => {
                stream.fail(error);
                return Ok(());
            }
        };
        let slot = self.vacant.pop().expect("the caller looked for room");
        let span_count = u8::try_from(count).expect("at most PARTS_MAX");
        let arena_bytes =
            buffers.iter().flatten().filter(|buffer| buffer.is_of_arena()).map(|buffer| buffer.len()).sum::<u32>();
        self.pending[slot] = Some(Pending {
            work: row_work(arena_bytes.into()),
            spans,
            span_count,
            reads_left: span_count,
            started: Instant::now(),
        });
        for (part, span) in covers.iter().enumerate() {
            let buffer = buffers[part].take().expect("one a span");
            let file = files[part].expect("one a span");
            let ticket = (slot * PARTS_MAX + part) as u64;
            self.submit(ReadRequest { file, offset: span.start, ticket, buffer });
            stream.counters().read_bytes.fetch_add(span.end - span.start, Relaxed);
        }
        Ok(())
    }

    /// A row whose bytes are kept, unless one of its files has changed since.
    fn use_kept(&mut self, work: &mut RowWork, covers: &[Span], kept: KeptParts) {
        let stream = work.batch.stream.clone();
        for span in covers {
            if self.cache.must_look(stream.dataset(), span.file)
                && let Err(error) = stream.dataset().open_file(span.file)
            {
                self.cache.forget(stream.dataset());
                return stream.fail(error);
            }
        }
        let mut bytes = 0;
        for (part, (kept, span)) in kept.into_iter().flatten().zip(covers).enumerate() {
            work.parts.set(part, Part { file: span.file, offset: span.start, bytes: PartBytes::Kept(kept) });
            bytes += span.end - span.start;
        }
        stream.counters().cached_rows.fetch_add(1, Relaxed);
        stream.counters().cached_bytes.fetch_add(bytes, Relaxed);
    }

    /// Keeps what was read of a sample, if that is wanted and nothing was written over meanwhile.
    fn keep(&mut self, work: &RowWork) -> Result<()> {
        let dataset = work.batch.stream.dataset();
        if work.fault.is_some() || !self.cache.is_wanted() {
            return Ok(());
        }
        dataset.check_snapshots()?;
        self.cache.keep(dataset, work.sample, work.parts.iter());
        Ok(())
    }

    /// The open file of each span, with one read counted on it; none at all when one has no room or is not there yet.
    fn acquire(
        &mut self,
        dataset: &Arc<Dataset>,
        spans: &[Span],
    ) -> Result<Result<[Option<FileId>; PARTS_MAX], Refused>> {
        let mut files = [None; PARTS_MAX];
        for (place, span) in spans.iter().enumerate() {
            let refused = match self.files.acquire(dataset, span.file, &mut *self.reader) {
                Ok(Acquired::File(file)) => {
                    files[place] = Some(file);
                    continue;
                }
                Ok(Acquired::NoRoom) => Ok(Err(Refused::NoRoom)),
                Ok(Acquired::Unpacking) => Ok(Err(Refused::Unpacking)),
                Err(error) => Err(error),
            };
            spans[..place].iter().for_each(|span| self.files.give_up(dataset, span.file));
            return refused;
        }
        Ok(Ok(files))
    }

    /// One buffer a span, or none at all.
    fn allocate(&mut self, spans: &[Span]) -> Result<Option<[Option<ReadBuffer>; PARTS_MAX]>> {
        let mut buffers = [const { None }; PARTS_MAX];
        for (buffer, span) in buffers.iter_mut().zip(spans) {
            *buffer = self.arena.allocate_at(span.start, span.end - span.start)?;
            if buffer.is_none() {
                return Ok(None);
            }
        }
        self.stages.oversized_reads.store(self.arena.oversized(), Relaxed);
        Ok(Some(buffers))
    }

    /// Hands a request to the reader, waiting for room in its queue, which holds fewer reads than rows may be pending.
    pub(super) fn submit(&mut self, mut request: ReadRequest) {
        let mut done = Vec::new();
        while let Err(refused) = self.reader.submit(request) {
            request = refused;
            // A wake that comes meanwhile stays readable until `clear_wakes`, so none is lost here.
            if let Err(error) = self.reader.wait(SLEEP_MAX, self.epoll.as_fd(), &mut done) {
                let result = Err(std::io::Error::other(error));
                self.wake += 1;
                return self.complete(Completion { ticket: request.ticket, buffer: request.buffer, result });
            }
            self.complete_all(&mut done);
        }
        self.stages.reads_in_flight.store(self.reader.in_flight(), Relaxed);
    }

    /// A read is done: the row goes to the workers once all of its reads are.
    pub(super) fn complete(&mut self, completion: Completion) {
        let ticket = usize::try_from(completion.ticket).expect("tickets are ours");
        let (slot, part) = (ticket / PARTS_MAX, ticket % PARTS_MAX);
        let pending = self.pending[slot].as_mut().expect("a ticket is in flight once");
        match completion.result {
            Ok(()) => {
                let Span { file, start: offset, .. } = pending.spans[part];
                pending.work.parts.set(part, Part { file, offset, bytes: PartBytes::Read(completion.buffer) });
            }
            Err(error) => pending.work.fault = Some(SampleFault::new(FaultClass::Io, error.to_string())),
        }
        pending.reads_left -= 1;
        let counters = pending.work.batch.stream.counters();
        counters.reads.fetch_add(1, Relaxed);
        self.stages.steps_done.fetch_add(1, Relaxed);
        self.stages.reads_in_flight.store(self.reader.in_flight(), Relaxed);
        if pending.reads_left > 0 {
            return;
        }
        let pending = self.pending[slot].take().expect("seen above");
        self.vacant.push(slot);
        let stream = &pending.work.batch.stream;
        let elapsed = u64::try_from(pending.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        stream.counters().read_ns.fetch_add(elapsed, Relaxed);
        let mut unchanged = Ok(());
        for span in &pending.spans[..pending.span_count.into()] {
            unchanged = unchanged.and(self.files.release(stream.dataset(), span.file, self.wake, &mut *self.reader));
        }
        if let Err(error) = unchanged.and_then(|()| self.keep(&pending.work)) {
            self.cache.forget(stream.dataset());
            stream.fail(error);
        }
        self.hand_over(pending.work);
    }

    pub(super) fn hand_over(&mut self, work: RowWork) {
        self.stages.decode_queue.fetch_add(1, Relaxed);
        match self.work.try_send(work) {
            Ok(()) => {}
            // `has_room` keeps pending and queued rows together below the queue's capacity.
            Err(TrySendError::Full(_)) => unreachable!("the queue holds every row that may be under way"),
            Err(TrySendError::Disconnected(_)) => self.running = false,
        }
    }
}
