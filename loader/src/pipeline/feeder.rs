//! The feeder thread: opens batches on free slots, reads the bytes of their rows, hands them to the workers.
//!
//! It sleeps in one place, [`Reader::wait`], and is woken by finished reads, by clients that give slots back, by
//! workers that made room while it was starved, and by commands.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

mod reads;

use super::Waker;
use super::cache::EncodedCache;
use super::cursor::{Cursor, NextRow};
use super::files::FileTable;
use super::open_batch::OpenBatch;
use super::row::{PARTS_MAX, RowWork, Span};
use super::stream::{Stream, StreamId};
use super::turns::{self, Clock, Need};
use crate::error::{Error, Result};
use crate::read::{Arena, Completion, Reader};
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
    Seek {
        stream: StreamId,
        generation: u32,
        epoch: u64,
        position: u64,
    },
    Remove(StreamId),
    /// Open no more batches, whatever comes.
    Drain,
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
    spans: [Span; PARTS_MAX],
    span_count: u8,
    reads_left: u8,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// Nothing to read: no stream has a free slot.
    Idle,
    /// The queue to the workers, the reader or the arena is full.
    Full,
    /// Those that want rows have as many under way as they may.
    Enough,
}

/// The stream whose turn it is.
enum Turn {
    /// This one, with at most so many rows under way.
    Of(usize, u32),
    /// Those that want rows have as many under way as they may.
    Enough,
    /// Nobody wants rows.
    Nobody,
}

/// What a feeder is made of.
pub(super) struct FeederParts {
    pub(super) reader: Box<dyn Reader>,
    pub(super) arena: Arena,
    pub(super) cache: EncodedCache,
    pub(super) commands: Receiver<Command>,
    pub(super) work: Sender<RowWork>,
    pub(super) waker: Arc<Waker>,
    pub(super) stages: Arc<StageState>,
    /// Rows that may be between submission and a worker.
    pub(super) queue_rows: u32,
}

pub(super) struct Feeder {
    reader: Box<dyn Reader>,
    arena: Arena,
    cache: EncodedCache,
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
    clock: Clock,
    /// Rows that may be between submission and a worker: pending and queued together.
    queue_rows: u32,
    /// How often reads that had ended were taken in.
    wake: u64,
    draining: bool,
    running: bool,
}

impl Feeder {
    pub(super) fn new(parts: FeederParts) -> Result<Self> {
        let FeederParts { reader, arena, cache, commands, work, waker, stages, queue_rows } = parts;
        let watch = || -> std::io::Result<Epoll> {
            let epoll = Epoll::new()?;
            epoll.add(waker.event.as_fd(), WAKER_KEY, Trigger::Level)?;
            Ok(epoll)
        };
        let epoll = watch().map_err(|source| Error::system("watch the feeder's wake signal", source))?;
        let files = FileTable::new(waker.clone(), stages.budget.clone());
        let clock = Clock::new(stages.workers);
        let rows = queue_rows as usize;
        Ok(Self {
            reader,
            arena,
            cache,
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
            clock,
            queue_rows,
            wake: 0,
            draining: false,
            running: true,
        })
    }

    /// Works until told to shut down.
    pub(super) fn run(mut self) {
        let mut done = Vec::new();
        while self.running {
            self.stages.feeder_turns.fetch_add(1, Relaxed);
            self.handle_commands();
            self.take_unpacked();
            self.cache.expire(Instant::now());
            let mut pause = self.read_ahead();
            self.ask_for_wake(pause);
            if pause != Pause::Idle {
                // Once more: room that was made in between would wake nobody. Pairs with the fence in `Worker::wake_feeder`:
                // either that sees the wish, or this sees the room.
                fence(SeqCst);
                pause = self.read_ahead();
                self.ask_for_wake(pause);
            }
            match self.reader.wait(SLEEP_MAX, self.epoll.as_fd(), &mut done) {
                Ok(true) => self.clear_wakes(),
                Ok(false) => {}
                Err(error) => return self.fail_all(&error),
            }
            self.complete_all(&mut done);
        }
    }

    /// Asks to be woken when half of what waits for a worker now has gone, or half of the queue: one wake for many rows.
    fn ask_for_wake(&self, pause: Pause) {
        let below = match pause {
            Pause::Idle => 0,
            Pause::Full => self.queue_rows / 2 + 1,
            Pause::Enough => self.stages.decode_queue.load(Relaxed) / 2 + 1,
        };
        self.stages.wake_below.store(below, Release);
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
                Command::Drain => self.drain(),
                Command::Retry(retry) => self.retries.push_back(retry),
                Command::Shutdown => self.running = false,
            }
        }
    }

    fn add(&mut self, stream: Arc<Stream>) {
        let watched = self.epoll.add(stream.ring().freed_fd(), stream.id().0, Trigger::Edge);
        match watched.map_err(|source| Error::system("watch a ring", source)).and_then(|()| Cursor::new(stream.clone()))
        {
            Ok(cursor) => {
                self.cache.join(stream.dataset(), stream.index_memory());
                self.cursors.push(cursor);
            }
            Err(error) => return stream.fail(error),
        }
        if self.draining {
            self.drain();
        }
    }

    /// What is begun is finished, and nothing else begins.
    fn drain(&mut self) {
        self.draining = true;
        for cursor in &mut self.cursors {
            if let Err(error) = cursor.drain() {
                cursor.stream().fail(error);
            }
        }
    }

    fn seek(&mut self, id: StreamId, generation: u32, epoch: u64, position: u64) {
        let Some(cursor) = self.cursors.iter_mut().find(|cursor| cursor.stream().id() == id) else { return };
        let mut sought = cursor.seek(generation, epoch, position);
        if self.draining {
            sought = sought.and_then(|()| cursor.drain());
        }
        if let Err(error) = sought {
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
            self.cache.leave(stream.dataset(), Instant::now());
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
            let (index, rows_max) = match self.neediest() {
                Turn::Of(index, rows_max) => (index, rows_max),
                Turn::Enough => return Pause::Enough,
                Turn::Nobody => return Pause::Idle,
            };
            for _ in 0..RUN_ROWS {
                if !self.has_room() {
                    return Pause::Full;
                }
                if self.cursors[index].stream().under_way().rows() >= rows_max {
                    break;
                }
                match self.cursors[index].next_row(&self.waker) {
                    NextRow::Row { batch, row } => {
                        let sample = batch.plan.row(row).sample;
                        if row == 0 {
                            self.begin_batch(&batch);
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

    /// The stream with the fewest ready batches; the one that workers have spent the least time on wins ties. If that one has
    /// as many rows under way as it may, the others get their turn only where workers would have nothing to do otherwise.
    fn neediest(&mut self) -> Turn {
        // A stream whose rows are all under way wants its share of the next moment, too.
        let (mut wanting, mut active) = (false, 0);
        for cursor in &mut self.cursors {
            let is_wanting = cursor.look();
            wanting |= is_wanting;
            active += u32::from(is_wanting || cursor.is_under_way());
        }
        let bytes_max = if active > 1 { self.arena.bytes() as u64 / 2 } else { u64::MAX };
        let mut neediest: Option<Need> = None;
        let mut best: Option<(Need, usize, u32)> = None;
        for (index, cursor) in self.cursors.iter_mut().enumerate() {
            if !cursor.is_wanting() || cursor.stream().under_way().bytes() >= bytes_max {
                continue;
            }
            let rows_max = turns::rows_max(self.queue_rows, self.stages.workers, active, cursor.charge().row_ns());
            let need = Need { ready: cursor.ready_batches(), service_ns: cursor.service_ns(&self.clock) };
            if neediest.is_none_or(|other| need < other) {
                neediest = Some(need);
            }
            let is_free = cursor.stream().under_way().rows() < rows_max;
            if is_free && best.is_none_or(|(best, _, _)| need < best) {
                best = Some((need, index, rows_max));
            }
        }
        let provided = self.stages.workers_busy.load(Relaxed) + self.stages.decode_queue.load(Relaxed);
        let must_wait = provided >= self.stages.workers;
        match best {
            Some((need, ..)) if must_wait && neediest.is_some_and(|other| other < need) => Turn::Enough,
            Some((need, index, rows_max)) => {
                self.clock.advance(need.service_ns);
                Turn::Of(index, rows_max)
            }
            None if wanting => Turn::Enough,
            None => Turn::Nobody,
        }
    }

    /// Before the first row of `batch`: has its epoch's files looked at again, and the shards unpacked that come after its
    /// own, where they are compressed.
    fn begin_batch(&mut self, batch: &OpenBatch) {
        let stream = &batch.stream;
        if batch.place.batch_index == 0 {
            self.cache.begin_epoch(stream.dataset());
        }
        if stream.dataset().first_compressed().is_none() {
            return;
        }
        let epoch = batch.plan.epoch();
        let now = epoch.shards_at(batch.plan.first_position);
        let Some(next) = now.and_then(|now| epoch.shards_at(now.end_position)) else { return };
        for shard in next.shards {
            if self.cache.holds_shard(stream.dataset(), shard) {
                continue;
            }
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

    fn fail_all(&mut self, error: &Error) {
        for cursor in &self.cursors {
            cursor.stream().fail(Error::Remote { kind: error.kind(), message: format!("the reader failed: {error}") });
        }
        tracing::error!("the reader failed: {error}");
    }
}
