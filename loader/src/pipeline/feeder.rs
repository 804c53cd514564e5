//! The feeder thread: opens batches on free slots, reads the bytes of their rows, hands them to the workers.
//!
//! It sleeps in one place, [`Reader::wait`], and is woken by finished reads, by clients that give slots back, by
//! workers that made room while it was starved, and by commands.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError};

use super::Waker;
use super::cursor::{Cursor, NextRow};
use super::files::{Acquired, FileTable};
use super::open_batch::OpenBatch;
use super::row::{PARTS_MAX, Part, Parts, RowWork, spans};
use super::stream::{Stream, StreamId};
use crate::error::{Error, FaultClass, Result, SampleFault};
use crate::plan::SampleId;
use crate::read::{Arena, Completion, ReadBuffer, ReadRequest, Reader};
use crate::shard::FileNumber;
use crate::spec::FIELDS_MAX;
use crate::sys::epoll::{Epoll, Trigger};
use crate::telemetry::StageState;

/// Rows of one stream that are read before the next stream is considered.
const RUN_ROWS: u32 = 8;

/// Longest sleep: a wake that got lost costs no more than this.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Key of the waker in the epoll set; streams use their numbers, which start at 1.
const WAKER_KEY: u64 = 0;

/// What the other threads ask of the feeder.
#[derive(Debug)]
pub(super) enum Command {
    Add(Arc<Stream>),
    Seek { stream: StreamId, generation: u32, epoch: u64, position: u64 },
    Remove(StreamId),
    Retry(Retry),
    Shutdown,
}

/// A row whose sample was bad, for which a substitute is to be read.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) batch: Arc<OpenBatch>,
    pub(super) row: u32,
    pub(super) attempt: u32,
}

/// A row with reads in flight.
struct Pending {
    work: RowWork,
    file: FileNumber,
    reads_left: u8,
    offsets: [u64; PARTS_MAX],
    started: Instant,
}

/// Why a row is not read now.
enum Refused {
    /// The arena is full, or too many files are open.
    NoRoom,
    /// Its shard is being unpacked.
    Unpacking,
}

/// Why no more rows are read at the moment.
#[derive(Debug, PartialEq, Eq)]
enum Pause {
    /// Nothing to read: no stream has a free slot.
    Idle,
    /// The queue to the workers, the reader or the arena is full.
    Full,
}

pub(super) struct Feeder {
    reader: Box<dyn Reader>,
    arena: Arena,
    commands: Receiver<Command>,
    work: Sender<RowWork>,
    waker: Arc<Waker>,
    stages: Arc<StageState>,
    epoll: Epoll,
    files: FileTable,
    cursors: Vec<Cursor>,
    retries: VecDeque<Retry>,
    /// Substitutes whose shard is being unpacked.
    retries_waiting: Vec<Retry>,
    pending: Vec<Option<Pending>>,
    vacant: Vec<usize>,
    /// Rows that may be between submission and a worker: pending and queued together.
    queue_rows: u32,
    /// How often reads that had ended were taken in.
    wake: u64,
    running: bool,
}

impl Feeder {
    pub(super) fn new(
        reader: Box<dyn Reader>,
        arena: Arena,
        commands: Receiver<Command>,
        work: Sender<RowWork>,
        waker: Arc<Waker>,
        stages: Arc<StageState>,
        queue_rows: u32,
    ) -> Result<Self> {
        let watch = || -> std::io::Result<Epoll> {
            let epoll = Epoll::new()?;
            epoll.add(waker.event.as_fd(), WAKER_KEY, Trigger::Level)?;
            Ok(epoll)
        };
        let epoll = watch().map_err(|source| Error::system("watch the feeder's wake signal", source))?;
        let files = FileTable::new(waker.clone());
        let rows = queue_rows as usize;
        Ok(Self {
            reader,
            arena,
            commands,
            work,
            waker,
            stages,
            epoll,
            files,
            cursors: Vec::new(),
            retries: VecDeque::new(),
            retries_waiting: Vec::new(),
            pending: (0..rows).map(|_| None).collect(),
            vacant: (0..rows).rev().collect(),
            queue_rows,
            wake: 0,
            running: true,
        })
    }

    /// Works until told to shut down.
    pub(super) fn run(mut self) {
        let mut done = Vec::new();
        while self.running {
            self.handle_commands();
            self.take_unpacked();
            let mut pause = self.read_ahead();
            if pause == Pause::Full {
                // Ask for a wake, then look once more: room that was made in between would wake nobody.
                self.stages.feeder_starved.store(true, Release);
                pause = self.read_ahead();
            }
            if pause == Pause::Idle {
                self.stages.feeder_starved.store(false, Release);
            }
            match self.reader.wait(SLEEP_MAX, self.epoll.as_fd(), &mut done) {
                Ok(true) => self.clear_wakes(),
                Ok(false) => {}
                Err(error) => return self.fail_all(&error),
            }
            self.complete_all(&mut done);
        }
    }

    fn complete_all(&mut self, done: &mut Vec<Completion>) {
        self.wake += 1;
        for completion in done.drain(..) {
            self.complete(completion);
        }
    }

    fn handle_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add(stream) => self.add(stream),
                Command::Seek { stream, generation, epoch, position } => self.seek(stream, generation, epoch, position),
                Command::Remove(stream) => self.remove(stream),
                Command::Retry(retry) => self.retries.push_back(retry),
                Command::Shutdown => self.running = false,
            }
        }
    }

    fn add(&mut self, stream: Arc<Stream>) {
        let watched = self.epoll.add(stream.ring().freed_fd(), stream.id().0, Trigger::Edge);
        match watched.map_err(|source| Error::system("watch a ring", source)).and_then(|()| Cursor::new(stream.clone()))
        {
            Ok(cursor) => self.cursors.push(cursor),
            Err(error) => stream.fail(error),
        }
    }

    fn seek(&mut self, id: StreamId, generation: u32, epoch: u64, position: u64) {
        let Some(cursor) = self.cursors.iter_mut().find(|cursor| cursor.stream().id() == id) else { return };
        if let Err(error) = cursor.seek(generation, epoch, position) {
            cursor.stream().fail(error);
        }
    }

    fn remove(&mut self, id: StreamId) {
        let Some(index) = self.cursors.iter().position(|cursor| cursor.stream().id() == id) else { return };
        let stream = self.cursors.swap_remove(index).stream().clone();
        let _ = self.epoll.remove(stream.ring().freed_fd());
        self.retries.retain(|retry| retry.batch.stream.id() != id);
        self.retries_waiting.retain(|retry| retry.batch.stream.id() != id);
        let shared = self.cursors.iter().any(|cursor| Arc::ptr_eq(cursor.stream().dataset(), stream.dataset()));
        if !shared {
            self.files.close_dataset(stream.dataset(), &mut *self.reader);
        }
    }

    /// Streams and substitutes that waited for a shard to be unpacked go on.
    fn take_unpacked(&mut self) {
        if self.files.take_unpacked(&mut *self.reader) {
            self.cursors.iter_mut().for_each(|cursor| cursor.set_unpacking(false));
            self.retries.extend(self.retries_waiting.drain(..));
        }
    }

    fn clear_wakes(&mut self) {
        // Edge-triggered signals need no reading; every stream is looked at anyway.
        let mut woken = false;
        while self.epoll.wait(Duration::ZERO, |key| woken |= key == WAKER_KEY).is_ok_and(|due| due > 0) && !woken {}
        if woken {
            let _ = self.waker.clear();
        }
    }

    /// Submits reads while there is room and something to read.
    fn read_ahead(&mut self) -> Pause {
        loop {
            if !self.has_room() {
                return Pause::Full;
            }
            if let Some(retry) = self.retries.pop_front() {
                match self.read_substitute(retry) {
                    Ok(()) => {}
                    Err((Refused::NoRoom, retry)) => {
                        self.retries.push_front(retry);
                        return Pause::Full;
                    }
                    Err((Refused::Unpacking, retry)) => self.retries_waiting.push(retry),
                }
                continue;
            }
            let Some(index) = self.neediest() else { return Pause::Idle };
            for _ in 0..RUN_ROWS {
                if !self.has_room() {
                    return Pause::Full;
                }
                match self.cursors[index].next_row(&self.waker) {
                    NextRow::Row { batch, row } => {
                        let sample = batch.plan.row(row).sample;
                        if row == 0 {
                            self.expect_shards(&batch);
                        }
                        if let Err(refused) = self.read_row(batch.clone(), row, 0, sample) {
                            self.cursors[index].put_back(batch, row);
                            match refused {
                                Refused::NoRoom => return Pause::Full,
                                Refused::Unpacking => self.cursors[index].set_unpacking(true),
                            }
                            break;
                        }
                    }
                    NextRow::NoSlot => break,
                    NextRow::Failed(error) => {
                        self.cursors[index].stream().fail(error);
                        break;
                    }
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        let pending = self.pending.len() - self.vacant.len();
        let queued = self.stages.decode_queue.load(Relaxed);
        !self.vacant.is_empty() && u32::try_from(pending).unwrap_or(u32::MAX).saturating_add(queued) < self.queue_rows
    }

    /// The stream with the fewest ready batches among those that have a row to read; the one served longest ago wins
    /// ties.
    fn neediest(&self) -> Option<usize> {
        let mut best: Option<(u32, u64, usize)> = None;
        for (index, cursor) in self.cursors.iter().enumerate() {
            if cursor.stream().is_stopped() || cursor.is_unpacking() {
                continue;
            }
            let ring = cursor.stream().ring();
            let counts = ring.slots_by_state();
            // A broken ring may show no free slot; opening a batch then tells why.
            if !cursor.has_open_batch() && counts.free == 0 && ring.look().is_ok() {
                continue;
            }
            let need = (counts.ready, cursor.last_served(), index);
            if best.is_none_or(|best| need < best) {
                best = Some(need);
            }
        }
        best.map(|(_, _, index)| index)
    }

    /// Has the shards unpacked that come after those of `batch`, where they are compressed.
    fn expect_shards(&mut self, batch: &OpenBatch) {
        let stream = &batch.stream;
        if stream.dataset().first_compressed().is_none() {
            return;
        }
        let epoch = batch.plan.epoch();
        let now = epoch.shards_at(batch.plan.first_position);
        let Some(next) = now.and_then(|now| epoch.shards_at(now.end_position)) else { return };
        for shard in next.shards {
            if let Err(error) = self.files.expect_shard(stream.dataset(), shard, &mut *self.reader) {
                stream.fail(error);
                return;
            }
        }
    }

    fn read_substitute(&mut self, retry: Retry) -> Result<(), (Refused, Retry)> {
        let Retry { batch, row, attempt } = retry;
        let position = batch.plan.row(row).position;
        let epoch = batch.plan.epoch();
        let sample = match batch.stream.dataset().first_compressed() {
            // Another shard would have to be unpacked.
            Some(_) => epoch.substitute_at_hand(position, attempt),
            None => epoch.substitute(position, attempt),
        };
        self.read_row(batch.clone(), row, attempt, sample).map_err(|refused| (refused, Retry { batch, row, attempt }))
    }

    /// Submits the reads of one row; nothing is submitted when there is no room for all of them.
    fn read_row(&mut self, batch: Arc<OpenBatch>, row: u32, attempt: u32, sample: SampleId) -> Result<(), Refused> {
        if batch.is_void() {
            return Ok(());
        }
        let stream = batch.stream.clone();
        let mut fields = [None; FIELDS_MAX];
        let fields = &mut fields[..stream.fields().len()];
        stream.selector().select(stream.dataset(), sample, fields);
        let mut covers = [(0, 0); PARTS_MAX];
        let count = spans(fields, &mut covers);
        let mut work = RowWork { batch, row, attempt, sample, parts: Parts::default(), fault: None };
        if count == 0 {
            self.hand_over(work);
            return Ok(());
        }
        let mut buffers = match self.allocate(&covers[..count]) {
            Ok(Some(buffers)) => buffers,
            Ok(None) => return Err(Refused::NoRoom),
            Err(error) => {
                work.fault = Some(SampleFault::new(FaultClass::TooLarge, error.to_string()));
                self.hand_over(work);
                return Ok(());
            }
        };
        let number = stream.dataset().file_of(sample);
        let file = match self.files.acquire(stream.dataset(), number, &mut *self.reader) {
            Ok(Acquired::File(file)) => file,
            Ok(Acquired::NoRoom) => return Err(Refused::NoRoom),
            Ok(Acquired::Unpacking) => return Err(Refused::Unpacking),
            Err(error) => {
                stream.fail(error);
                return Ok(());
            }
        };
        let slot = self.vacant.pop().expect("the caller looked for room");
        let reads_left = u8::try_from(count).expect("at most PARTS_MAX");
        self.pending[slot] = Some(Pending {
            work,
            file: number,
            reads_left,
            offsets: covers.map(|(start, _)| start),
            started: Instant::now(),
        });
        for (part, (start, end)) in covers[..count].iter().enumerate() {
            let buffer = buffers[part].take().expect("one a span");
            let ticket = (slot * PARTS_MAX + part) as u64;
            self.submit(ReadRequest { file, offset: *start, ticket, buffer });
            stream.counters().read_bytes.fetch_add(end - start, Relaxed);
        }
        Ok(())
    }

    /// One buffer a span, or none at all.
    fn allocate(&mut self, spans: &[(u64, u64)]) -> Result<Option<[Option<ReadBuffer>; PARTS_MAX]>> {
        let mut buffers = [const { None }; PARTS_MAX];
        for (buffer, (start, end)) in buffers.iter_mut().zip(spans) {
            *buffer = self.arena.allocate_at(*start, end - start)?;
            if buffer.is_none() {
                return Ok(None);
            }
        }
        self.stages.oversized_reads.store(self.arena.oversized(), Relaxed);
        Ok(Some(buffers))
    }

    /// Hands a request to the reader, waiting for room in its queue, which holds fewer reads than rows may be pending.
    fn submit(&mut self, mut request: ReadRequest) {
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
    fn complete(&mut self, completion: Completion) {
        let ticket = usize::try_from(completion.ticket).expect("tickets are ours");
        let (slot, part) = (ticket / PARTS_MAX, ticket % PARTS_MAX);
        let pending = self.pending[slot].as_mut().expect("a ticket is in flight once");
        match completion.result {
            Ok(()) => pending.work.parts.set(part, Part { offset: pending.offsets[part], buffer: completion.buffer }),
            Err(error) => pending.work.fault = Some(SampleFault::new(FaultClass::Io, error.to_string())),
        }
        pending.reads_left -= 1;
        let counters = pending.work.batch.stream.counters();
        counters.reads.fetch_add(1, Relaxed);
        self.stages.reads_in_flight.store(self.reader.in_flight(), Relaxed);
        if pending.reads_left > 0 {
            return;
        }
        let pending = self.pending[slot].take().expect("seen above");
        self.vacant.push(slot);
        let stream = &pending.work.batch.stream;
        let elapsed = u64::try_from(pending.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        stream.counters().read_ns.fetch_add(elapsed, Relaxed);
        if let Err(error) = self.files.release(stream.dataset(), pending.file, self.wake, &mut *self.reader) {
            stream.fail(error);
        }
        self.hand_over(pending.work);
    }

    fn hand_over(&mut self, work: RowWork) {
        self.stages.decode_queue.fetch_add(1, Relaxed);
        match self.work.try_send(work) {
            Ok(()) => {}
            // `has_room` keeps pending and queued rows together below the queue's capacity.
            Err(TrySendError::Full(_)) => unreachable!("the queue holds every row that may be under way"),
            Err(TrySendError::Disconnected(_)) => self.running = false,
        }
    }

    fn fail_all(&mut self, error: &Error) {
        for cursor in &self.cursors {
            cursor.stream().fail(Error::Remote { kind: error.kind(), message: format!("the reader failed: {error}") });
        }
        tracing::error!("the reader failed: {error}");
    }
}
