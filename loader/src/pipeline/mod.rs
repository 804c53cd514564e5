//! The data path: streams in, finished batches in their rings out.
//!
//! Read it in this order:
//! - [`Stream`]: one job at one rank: dataset, plan, fields, ring;
//! - [`feeder`](self): one thread opens batches on free slots and reads the bytes of their rows, in plan order, the
//!   stream with the emptiest ring first ([`turns`](self)), unless they are kept from an earlier epoch ([`cache`](self));
//! - [`worker`](self): a pool of threads turns a row's bytes into pixels and stores them at the row's place;
//! - [`OpenBatch`](self): counts its rows; the worker that stores the last one publishes the slot.
//!
//! Between feeder and workers lies one queue of fixed capacity, and rows know their place, so nothing is ordered,
//! collated or copied afterwards. Per row there is no lock; a batch and a fault may allocate.
//!
//! Memory is taken from one [`Budget`]. Threads are as many as workers, one feeder, up to 16 where shards are read by
//! pread, and two that unpack shards once one is compressed. Descriptors are a fixed number, six a stream, and those of at
//! most 256 files, twice where they are read past the page cache.

mod cache;
mod crew;
mod cursor;
mod faults;
mod feeder;
mod files;
mod holdings;
mod open_batch;
mod places;
mod pulse;
mod row;
mod stream;
mod turns;
mod under_way;
mod unpacker;
mod worker;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;

pub use faults::{FaultLedger, FaultTotals};
pub use places::StreamPlace;
pub use pulse::Pulse;
pub use stream::{Stream, StreamEvent, StreamEvents, StreamOptions};

use crate::error::{Error, Result};
use crate::read::{Arena, LiveReport, ReaderChoice, open_reader};
use crate::ring::RingDescriptors;
use crate::sys::budget::{Budget, Part};
use crate::sys::courtesy;
use crate::sys::eventfd;
use crate::sys::memory::{Mebibytes, MemoryReport};
use crate::telemetry::StageState;
use cache::EncodedCache;
use crew::Crew;
use feeder::{Command, Feeder, FeederParts};
use holdings::Holdings;

/// Reads that may be in flight at once. Enough to keep an NVMe disk busy; a page cache needs fewer.
const QUEUE_DEPTH: u32 = 64;

/// Memory for bytes between read and decode.
const ARENA_BYTES: u64 = 32 << 20;

/// Of a small budget, the arena takes this part at most, so that there is room for rings.
const ARENA_SHARE: u64 = 4;

/// Rows that may wait for a worker, for each worker: enough that a worker never waits for the feeder's turn.
const QUEUED_ROWS_PER_WORKER: u32 = 16;

/// What a pipeline is made of.
#[derive(Debug, Clone, Copy)]
pub struct PipelineOptions {
    /// Decode threads, at least 1.
    pub workers: u32,
    /// How shards are read.
    pub reader: ReaderChoice,
    /// How far decode threads step back for others, 0 to [`courtesy::NICE_MAX`].
    pub nice: u32,
    /// Bound of rings, reads, caches, unpacked shards and indexes together, in bytes; three quarters of what machine and
    /// control group have free when not given.
    pub memory_bytes: Option<u64>,
    /// Of it, for encoded samples that are kept for later epochs; 0 for none.
    pub cache_bytes: u64,
}

/// The threads that all streams share. Dropping it ends them; open streams then get nothing more.
#[derive(Debug)]
pub struct Pipeline {
    commands: Sender<Command>,
    waker: Arc<Waker>,
    stages: Arc<StageState>,
    reader: Arc<LiveReport>,
    holdings: Holdings,
    feeder: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    abandoned: AtomicBool,
    /// Streams that have ended and may have rows under way, whose memory is not free yet.
    ending: Mutex<Vec<Weak<()>>>,
}

impl Pipeline {
    /// Starts the threads.
    pub fn start(options: PipelineOptions) -> Result<Self> {
        let workers = options.workers.max(1);
        if let Err(error) = courtesy::give_way_as_session(options.nice) {
            tracing::info!("this session does not give way to trainers: {error}");
        }
        let waker = Arc::new(Waker::new()?);
        let budget = match options.memory_bytes {
            Some(bytes) => Budget::chosen(bytes)?,
            None => Budget::of_machine(&MemoryReport::read()),
        };
        let stages = Arc::new(StageState::within(workers, budget.clone()));
        let arena_bytes = ARENA_BYTES.min(budget.limit_bytes().unwrap_or(u64::MAX) / ARENA_SHARE);
        let arena = Arena::within(usize::try_from(arena_bytes).expect("at most ARENA_BYTES"), &budget)?;
        let cache = open_cache(options.cache_bytes, &budget, &stages)?;
        let reader = open_reader(options.reader, &arena, QUEUE_DEPTH)?;
        let report = reader.report().clone();

        let (commands, received) = crossbeam_channel::unbounded();
        let queue_rows = workers * QUEUED_ROWS_PER_WORKER;
        let (work, queue) = crossbeam_channel::bounded(queue_rows as usize);
        let (started, thread_ids) = crossbeam_channel::bounded(workers as usize);
        let threads = (0..workers)
            .map(|number| {
                let worker = worker::Worker::new(queue.clone(), stages.clone(), commands.clone(), waker.clone())?;
                let started = started.clone();
                spawn(format!("feedline-work{number}"), move || {
                    // Whoever asked may have failed meanwhile.
                    let _ = started.send(rustix::thread::gettid());
                    if let Err(error) = courtesy::give_way(options.nice) {
                        tracing::info!("a decode thread does not give way to trainers: {error}");
                    }
                    worker.run();
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let parts = FeederParts {
            reader,
            arena,
            cache,
            commands: received,
            work,
            waker: waker.clone(),
            stages: stages.clone(),
            queue_rows,
        };
        let feeder = Feeder::new(parts)?;
        let run = move || {
            if std::panic::catch_unwind(AssertUnwindSafe(move || feeder.run())).is_err() {
                // Nobody would fill a ring any more, and every client would wait for its time-out. The hook has told why.
                std::process::abort();
            }
        };
        let feeder = spawn("feedline-feeder".to_owned(), run)?;
        drop(started);
        let holdings = Holdings::new(budget, Crew::new(thread_ids.iter().take(workers as usize).collect()));
        Ok(Self {
            commands,
            waker,
            stages,
            reader: report,
            holdings,
            feeder: Some(feeder),
            workers: threads,
            abandoned: false.into(),
            ending: Mutex::default(),
        })
    }

    /// Compiles a job and reserves its ring; the descriptors are for the client. [`Pipeline::add`] begins to fill it.
    pub fn open(&self, options: StreamOptions) -> Result<(Arc<Stream>, RingDescriptors)> {
        Stream::new(options, &self.holdings)
    }

    /// Begins to fill `stream`'s ring, from the start of epoch 0.
    pub fn add(&self, stream: Arc<Stream>) {
        self.holdings.crew().add(stream.id(), stream.placement());
        self.command(Command::Add(stream));
    }

    /// Fills from `position` of `epoch` on, as `generation`; older batches are void.
    pub fn seek(&self, stream: &Arc<Stream>, generation: u32, epoch: u64, position: u64) {
        self.command(Command::Seek { stream: stream.id(), generation, epoch, position });
    }

    /// Ends `stream`: its rows in flight are finished and thrown away, then its ring is unmapped.
    pub fn remove(&self, stream: &Arc<Stream>) {
        stream.stop();
        self.holdings.crew().remove(stream.id());
        self.command(Command::Remove(stream.id()));
    }

    /// As [`Pipeline::remove`], for one that nobody else holds.
    pub fn release(&self, stream: Arc<Stream>) {
        self.remove(&stream);
        self.ending().push(stream.gone());
    }

    /// Whether memory of released streams is about to come back: that takes as long as a row at a worker, and whoever
    /// opens a stream waits for it rather than being refused.
    pub fn is_clearing(&self) -> bool {
        let mut ending = self.ending();
        ending.retain(|stream| stream.strong_count() > 0);
        !ending.is_empty()
    }

    fn ending(&self) -> MutexGuard<'_, Vec<Weak<()>>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens no more batches for any stream. Those that are open are finished; each stream tells where it ends by
    /// [`StreamEvent::Drains`], again after each seek.
    pub fn drain(&self) {
        self.command(Command::Drain);
    }

    /// Its end will not wait for its threads, one of which may be stuck: the process is about to end.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// A sign of life.
    pub fn pulse(&self) -> Pulse {
        Pulse::of(&self.stages)
    }

    /// Bytes of memory for what is between read and decode.
    pub fn arena_bytes(&self) -> u64 {
        self.stages.budget.taken_by(Part::Reads)
    }

    /// The state of the stages.
    pub fn stages(&self) -> &Arc<StageState> {
        &self.stages
    }

    /// How shards are read at present, and why so.
    pub fn reader(&self) -> String {
        self.reader.read().to_string()
    }

    fn command(&self, command: Command) {
        // The feeder is gone only while the process ends.
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.command(Command::Shutdown);
        if *self.abandoned.get_mut() {
            return;
        }
        // The feeder ends first: it drops the queue's only sender, which ends the workers.
        if let Some(feeder) = self.feeder.take() {
            let _ = feeder.join();
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// The cache of encoded samples, whose memory is taken at once: what it holds is then never another's.
fn open_cache(bytes: u64, budget: &Arc<Budget>, stages: &Arc<StageState>) -> Result<EncodedCache> {
    if bytes == 0 {
        return Ok(EncodedCache::new(0, None, stages.clone()));
    }
    let reservation = budget.reserve(Part::Cache, bytes).map_err(|shortage| Error::Resources {
        message: format!(
            "the cache of encoded samples is to have {}, but {shortage}: lower --cache, or raise --memory",
            Mebibytes(bytes)
        ),
    })?;
    Ok(EncodedCache::new(bytes, Some(reservation), stages.clone()))
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(body).map_err(|source| Error::system("start a thread", source))
}

/// Wakes the feeder from any thread; wakes that come before it looks are one.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    pending: AtomicBool,
}

impl Waker {
    fn new() -> Result<Self> {
        let event = eventfd::create().map_err(|source| Error::system("make an eventfd", source))?;
        Ok(Self { event, pending: AtomicBool::new(false) })
    }

    /// Makes the feeder look at its commands, slots and queues.
    pub(crate) fn wake(&self) {
        // AcqRel: what this thread did before is seen by the feeder, whose `clear` reads the flag.
        if !self.pending.swap(true, Ordering::AcqRel) {
            let _ = eventfd::signal(self.event.as_fd());
        }
    }

    /// The feeder looks now.
    fn clear(&self) -> io::Result<()> {
        eventfd::clear(self.event.as_fd())?;
        // After the descriptor: a wake in between signals again.
        self.pending.store(false, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(memory_bytes: Option<u64>, cache_bytes: u64) -> PipelineOptions {
        PipelineOptions { workers: 3, reader: ReaderChoice::Auto, nice: 0, memory_bytes, cache_bytes }
    }

    #[test]
    fn it_starts_and_ends_with_its_threads() {
        let pipeline = Pipeline::start(options(Some(64 << 20), 8 << 20)).expect("the machine has as much");
        let figures = pipeline.stages().figures();
        assert_eq!((figures.workers, figures.memory_limit_bytes), (3, Some(64 << 20)));
        assert_eq!((figures.memory_bytes["reads"], figures.memory_bytes["cache"]), (16 << 20, 8 << 20));
        let budget = pipeline.stages().budget.clone();
        drop(pipeline);
        assert_eq!(budget.taken_bytes(), 0, "all is given back");
    }

    #[test]
    fn what_does_not_fit_is_refused_at_the_start() {
        let check = |memory_bytes, cache_bytes, words: &str| {
            let error = Pipeline::start(options(memory_bytes, cache_bytes)).expect_err("refused").to_string();
            assert!(error.contains(words), "{error}");
        };
        check(Some(1 << 20), 0, "a memory budget of 1.0 MiB is too small");
        check(Some(64 << 20), 60 << 20, "is to have 60.0 MiB, but only 48.0 MiB");
        check(None, 1 << 50, "lower --cache, or raise --memory");
    }
}
