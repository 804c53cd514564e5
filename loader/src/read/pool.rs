//! Reads by a pool of threads that call pread: for where io_uring cannot be had. Or that copy from maps of the files, and
//! call pread for what a map does not give (then the system says why).
//!
//! Threads start when there is a read and none is idle. Requests and results go through bounded queues; the waiting
//! thread is signalled only when it sleeps.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use crossbeam_queue::ArrayQueue;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::depth::Gate;
use super::direct;
use super::files::{self, FileSet};
use super::mounts::{DirectPolicy, Mounts};
use super::progress::{Faults, Progress, Step};
use super::{Completion, FileId, LiveReport, Pace, ReadBuffer, ReadRequest, Reader, ReaderReport};
use crate::error::{Error, Result};
use crate::sys::eventfd;
use crate::sys::map::GuardedMap;
use crate::sys::uring::DRAIN_MAX;

/// More threads than this gain nothing on any storage that was measured, and each costs a stack.
const THREADS_MAX: u32 = 16;

/// Where the threads take the bytes from.
#[derive(Debug)]
pub(super) enum Source {
    /// From the system; `fallback` is why not through io_uring.
    Pread { fallback: Option<String> },
    /// From maps.
    Map,
}

#[derive(Debug)]
pub(super) struct PreadPool {
    depth: u32,
    threads_max: u32,
    files: FileSet,
    mounts: Mounts,
    /// One a mount, by its number.
    gates: Vec<Gate<Job>>,
    pace: Pace,
    /// By the place of their files, where files are mapped.
    maps: Option<Vec<Option<Arc<GuardedMap>>>>,
    report: Arc<LiveReport>,
    in_flight: u32,
    /// Reads that could not be started.
    failed: Vec<Completion>,
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    waiting: Receiver<Job>,
    threads: Vec<JoinHandle<()>>,
    /// Reports "disconnected" when every thread has ended.
    ended: Receiver<Infallible>,
    alive: Option<Sender<Infallible>>,
    faults: Faults,
}

/// A read on its way to a thread.
#[derive(Debug)]
struct Job {
    file: FileId,
    descriptor: Arc<OwnedFd>,
    map: Option<Arc<GuardedMap>>,
    progress: Progress,
    ticket: u64,
    buffer: ReadBuffer,
}

/// What the threads and the reader share.
#[derive(Debug)]
struct Shared {
    /// Has a place for every read in flight.
    done: ArrayQueue<(FileId, Completion)>,
    /// The reader sleeps, or is about to, and wants a signal.
    sleeping: AtomicBool,
    event: OwnedFd,
    stopping: AtomicBool,
}

impl PreadPool {
    /// A pool for `depth` reads at once.
    pub(super) fn new(depth: u32, pace: Pace, source: Source) -> Result<Self> {
        let event = eventfd::create().map_err(|source| Error::system("make the reader's signal", source))?;
        let (jobs, waiting) = crossbeam_channel::bounded(depth as usize);
        let (alive, ended) = crossbeam_channel::bounded(0);
        let shared = Arc::new(Shared {
            done: ArrayQueue::new(depth as usize),
            sleeping: AtomicBool::new(false),
            event,
            stopping: AtomicBool::new(false),
        });
        let threads_max = depth.min(THREADS_MAX);
        let (maps, report) = match source {
            Source::Pread { fallback } => (None, ReaderReport::Pread { threads: threads_max, fallback }),
            Source::Map => (Some(Vec::new()), ReaderReport::Mmap { threads: threads_max }),
        };
        let report = Arc::new(LiveReport::new(report));
        Ok(Self {
            depth,
            threads_max,
            files: FileSet::default(),
            mounts: Mounts::new(DirectPolicy::Never, report.clone()),
            gates: Vec::new(),
            pace,
            maps,
            report,
            in_flight: 0,
            failed: Vec::new(),
            shared,
            jobs: Some(jobs),
            waiting,
            threads: Vec::new(),
            ended,
            alive: Some(alive),
            faults: Faults::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Starts one more thread if every one may be busy. Fewer threads than wished are only slower, none is an error.
    fn ensure_threads(&mut self) -> io::Result<()> {
        let count = u32::try_from(self.threads.len()).expect("at most THREADS_MAX");
        if count >= self.threads_max || count >= self.in_flight {
            return Ok(());
        }
        let (jobs, shared, faults) = (self.waiting.clone(), self.shared.clone(), self.faults.clone());
        let alive = self.alive.clone();
        let body = move || {
            let _alive = alive;
            for job in jobs {
                if shared.stopping.load(Ordering::Relaxed) {
                    break;
                }
                shared.finish(job, &faults);
            }
        };
        match std::thread::Builder::new().name(format!("read-{count}")).spawn(body) {
            Ok(thread) => self.threads.push(thread),
            Err(error) if count == 0 => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// One system call: sleeps until something has ended, at most for `timeout`; true if `wake` is readable.
    fn sleep(&self, timeout: Duration, wake: BorrowedFd<'_>) -> io::Result<bool> {
        let Shared { done, sleeping, event, .. } = &*self.shared;
        sleeping.store(true, Ordering::Relaxed);
        // The pair of the fence in `push`.
        fence(Ordering::SeqCst);
        let nothing = done.is_empty() && self.failed.is_empty();
        let timeout = if nothing { timeout } else { Duration::ZERO };
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        let mut descriptors = [PollFd::from_borrowed_fd(wake, PollFlags::IN), PollFd::new(event, PollFlags::IN)];
        let result = poll(&mut descriptors, Some(&timeout));
        sleeping.store(false, Ordering::Relaxed);
        match result {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let [wake, signal] = descriptors.map(|descriptor| descriptor.revents());
        if signal.contains(PollFlags::IN) {
            eventfd::clear(event.as_fd())?;
        }
        if wake.contains(PollFlags::NVAL) {
            return Err(Errno::BADF.into());
        }
        Ok(!wake.is_empty())
    }

    fn take_completions(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        done.append(&mut self.failed);
        // The clock is asked once for all, and not for none.
        let mut now = None;
        while let Some((file, completion)) = self.shared.done.pop() {
            let mount = self.files.mount(file);
            if self.files.end_read(file) {
                self.unmap(file);
            }
            let gate = &mut self.gates[mount];
            gate.leave(completion.buffer.len(), *now.get_or_insert_with(Instant::now));
            while let Some(job) = gate.next() {
                Self::send(&self.jobs, job);
            }
            done.push(completion);
        }
        self.in_flight -= u32::try_from(done.len() - before).expect("at most the depth");
    }

    /// Starts the read, or says why that cannot be.
    fn start(&mut self, request: ReadRequest) -> Result<(), (ReadRequest, io::Error)> {
        let prepared = Progress::new(&request).and_then(|progress| {
            self.ensure_threads()?;
            self.files.begin_read(request.file)?;
            Ok(progress)
        });
        let progress = match prepared {
            Ok(progress) => progress,
            Err(error) => return Err((request, error)),
        };
        let ReadRequest { file, ticket, buffer, .. } = request;
        let descriptor = self.files.of_read(file).clone();
        let map = self.maps.as_ref().and_then(|maps| maps.get(file.place() as usize)?.clone());
        let mount = self.files.mount(file);
        if let Some(job) = self.gates[mount].enter(Job { file, descriptor, map, progress, ticket, buffer }) {
            Self::send(&self.jobs, job);
        }
        Ok(())
    }

    fn send(jobs: &Option<Sender<Job>>, job: Job) {
        let jobs = jobs.as_ref().expect("there until the drop");
        // Cannot be full: it has a place for every read in flight. Cannot be disconnected: `waiting` is ours.
        jobs.try_send(job).expect("room for every read in flight");
    }

    /// Maps the file, where that is how files are read; one that cannot be mapped is read by pread.
    fn map(&mut self, id: FileId) {
        let Some(maps) = &mut self.maps else { return };
        let map = GuardedMap::open(self.files.of_read(id).as_fd()).unwrap_or_else(|error| {
            tracing::warn!("a file is read by pread, as it cannot be mapped: {error}");
            None
        });
        let place = id.place() as usize;
        maps.resize_with(maps.len().max(place + 1), || None);
        maps[place] = map.map(Arc::new);
    }

    fn unmap(&mut self, id: FileId) {
        if let Some(map) = self.maps.as_mut().and_then(|maps| maps.get_mut(id.place() as usize)) {
            *map = None;
        }
    }
}

impl Shared {
    /// Reads to the end or to an error, on a thread of the pool.
    fn finish(&self, job: Job, faults: &Faults) {
        let Job { file, descriptor, map, mut progress, ticket, mut buffer } = job;
        let result = loop {
            let rest = &mut buffer.as_mut_slice()[progress.filled() as usize..];
            let offset = progress.offset();
            let copied = map.as_ref().is_some_and(|map| map.copy_into(descriptor.as_fd(), offset, rest));
            let result = if copied { Ok(rest.len()) } else { rustix::io::pread(&*descriptor, rest, offset) };
            let result = result.map(|bytes| u32::try_from(bytes).expect("no more than the buffer has"));
            match progress.advance(faults.apply(result.map_err(io::Error::from), false)) {
                Step::Done => break Ok(()),
                Step::Again(pause) => {
                    if self.stopping.load(Ordering::Relaxed) {
                        break Err(io::Error::from(io::ErrorKind::Interrupted));
                    }
                    if !pause.is_zero() {
                        std::thread::sleep(pause);
                    }
                }
                Step::Failed(error) => break Err(error),
                Step::Exhausted(error) => break Err(files::named(&descriptor, &error)),
            }
        };
        // Before the completion is known: a removed file is closed when its last read is.
        drop((map, descriptor));
        self.push(file, Completion { ticket, buffer, result });
    }

    fn push(&self, file: FileId, completion: Completion) {
        self.done.push((file, completion)).expect("room for every read in flight");
        // The pair of the fence in `wait`: either we see that it sleeps, or it sees what we pushed.
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::Relaxed) {
            // Only a signal to a full counter fails, and that is readable.
            let _ = eventfd::signal(self.event.as_fd());
        }
    }
}

impl Reader for PreadPool {
    fn add_file(&mut self, file: OwnedFd) -> Result<FileId> {
        let facts = direct::look_at(file.as_fd()).ok();
        let mount = self.mounts.number(facts.as_ref());
        let (threads, depth) = (self.threads_max, self.depth);
        self.gates.resize_with(self.mounts.count(), || self.pace.gate(threads, depth));
        let id = self.files.add(file, mount);
        self.map(id);
        Ok(id)
    }

    fn remove_file(&mut self, file: FileId) {
        if self.files.remove(file) {
            self.unmap(file);
        }
    }

    fn file(&self, file: FileId) -> BorrowedFd<'_> {
        self.files.of_read(file).as_fd()
    }

    fn submit(&mut self, request: ReadRequest) -> std::result::Result<(), ReadRequest> {
        if self.in_flight >= self.depth {
            return Err(request);
        }
        self.in_flight += 1;
        if let Err((request, error)) = self.start(request) {
            let ReadRequest { ticket, buffer, .. } = request;
            self.failed.push(Completion { ticket, buffer, result: Err(error) });
        }
        Ok(())
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>, done: &mut Vec<Completion>) -> Result<bool> {
        let deadline = Instant::now().checked_add(timeout);
        let before = done.len();
        loop {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => timeout,
            };
            let woken = self.sleep(left, wake).map_err(|source| Error::system("wait for reads", source))?;
            self.take_completions(done);
            if woken || done.len() > before || left.is_zero() {
                return Ok(woken);
            }
        }
    }

    fn report(&self) -> &Arc<LiveReport> {
        &self.report
    }
}

impl Drop for PreadPool {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.jobs = None;
        self.alive = None;
        match self.ended.recv_timeout(DRAIN_MAX) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!("reads did not end within {DRAIN_MAX:?}; their threads and memory are left to them")
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                for thread in self.threads.drain(..) {
                    let ended = thread.join();
                    debug_assert!(ended.is_ok(), "a thread of the pool panicked");
                }
            }
        }
    }
}
