//! Reads through io_uring: one ring, one system call to submit, wait and be woken.
//!
//! The ring itself, and who owns a buffer when, is in `sys::uring`; here are slots, files, and what follows from a
//! read's result.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::files::FileSet;
use super::progress::{Faults, Progress, Step};
use super::refusal::errno_name;
use super::{Arena, Completion, FileId, ReadBuffer, ReadRequest, Reader, ReaderReport};
use crate::error::{Error, Result};
use crate::sys::memory::Mebibytes;
use crate::sys::uring::{self, Event, Refusal, Ring, RingFile, TaskRun};

/// Places in the table of registered files. Files beyond it are read by descriptor.
const REGISTERED_FILES: u32 = 1024;

/// Most memory that is registered where no limit says less: the lowest addresses are used most, more gains little.
const REGISTERED_BYTES_MAX: usize = 64 << 20;

/// Less than this is not worth the trouble.
const REGISTERED_BYTES_MIN: usize = 1 << 20;

/// The fewest reads in flight that are still better than a pool of threads.
const DEPTH_MIN: u32 = 8;

/// A ring that was just closed gives its memory back a little later, so want of memory may pass.
const SETUP_ATTEMPTS: u32 = 5;
const SETUP_PAUSE: Duration = Duration::from_millis(20);

/// The kernel may refuse to take more requests this many times in a row, a millisecond apart.
const BUSY_MAX: u32 = 1000;
const BUSY_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct UringReader {
    /// First, so that it is drained while the files of its reads are open.
    ring: Ring,
    files: FileSet,
    registered_files: u32,
    slots: Vec<Option<Operation>>,
    vacant: Vec<u32>,
    in_flight: u32,
    /// Reads that could not be started.
    failed: Vec<Completion>,
    /// Reads that go on later, with their buffers.
    paused: VecDeque<Paused>,
    busy: u32,
    report: ReaderReport,
    faults: Faults,
}

#[derive(Debug)]
struct Operation {
    ticket: u64,
    file: FileId,
    progress: Progress,
}

#[derive(Debug)]
struct Paused {
    due: Instant,
    slot: u32,
    buffer: ReadBuffer,
}

impl UringReader {
    /// A reader if this process can have a ring, with as much of the optional parts as the system grants.
    pub(super) fn new(arena: &Arena, depth: u32) -> Result<Self, Refusal> {
        let task_run = usable_task_run()?;
        let (mut ring, queue) = set_up(depth, task_run)?;
        let mut notes = Vec::new();
        if queue < depth {
            notes.push(format!("a queue of {depth} was refused for want of memory"));
        }
        let registered_files = register_files(&mut ring, &mut notes);
        register_memory(&mut ring, arena, &mut notes);
        let registered_bytes = ring.registered_bytes();
        Ok(Self {
            ring,
            files: FileSet::default(),
            registered_files,
            slots: (0..queue).map(|_| None).collect(),
            vacant: (0..queue).rev().collect(),
            in_flight: 0,
            failed: Vec::new(),
            paused: VecDeque::with_capacity(queue as usize),
            busy: 0,
            report: ReaderReport::Uring { queue, task_run, registered_files, registered_bytes, notes },
            faults: Faults::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Without registered files and buffers, as where the system grants neither.
    #[cfg(test)]
    pub(super) fn plain(depth: u32, task_run: TaskRun) -> Result<Self, Refusal> {
        uring::probe(task_run)?;
        let arena = Arena::new(1).expect("a page");
        let mut reader = Self::new(&arena, depth)?;
        reader.ring = Ring::new(depth, task_run)?;
        reader.registered_files = 0;
        Ok(reader)
    }

    /// Hands the rest of a slot's read to the ring; when that is full, a little later.
    fn read_on(&mut self, slot: u32, buffer: ReadBuffer) {
        let operation = self.slots[slot as usize].as_ref().expect("a read in flight has a slot");
        let place = operation.file.place();
        let file = if place < self.registered_files {
            RingFile::Registered(place)
        } else {
            RingFile::Descriptor(self.files.of_read(operation.file).as_fd())
        };
        let (offset, filled) = (operation.progress.offset(), operation.progress.filled());
        if let Err(buffer) = self.ring.read(slot, file, offset, buffer, filled) {
            self.paused.push_back(Paused { due: Instant::now(), slot, buffer });
        }
    }

    /// Reads on where a pause is over; returns when the next pause will be.
    fn resume(&mut self, now: Instant) -> Option<Instant> {
        for _ in 0..self.paused.len() {
            let paused = self.paused.pop_front().expect("counted");
            if paused.due <= now {
                self.read_on(paused.slot, paused.buffer);
            } else {
                self.paused.push_back(paused);
            }
        }
        self.paused.iter().map(|paused| paused.due).min()
    }

    /// Takes what the ring has; true if the watched descriptor was readable.
    fn take_events(&mut self, done: &mut Vec<Completion>) -> Result<bool> {
        let mut woken = false;
        while let Some(event) = self.ring.next_event() {
            match event {
                Event::Read { slot, buffer, result } => self.advance(slot, buffer, result, done),
                Event::Woken => woken = true,
                Event::WatchFailed(source) => return Err(Error::system("watch the reader's wake signal", source)),
            }
        }
        Ok(woken)
    }

    fn advance(&mut self, slot: u32, buffer: ReadBuffer, result: io::Result<u32>, done: &mut Vec<Completion>) {
        let operation = self.slots[slot as usize].as_mut().expect("a read in flight has a slot");
        let result = match operation.progress.advance(self.faults.apply(result)) {
            Step::Again(pause) if pause.is_zero() => return self.read_on(slot, buffer),
            Step::Again(pause) => {
                return self.paused.push_back(Paused { due: Instant::now() + pause, slot, buffer });
            }
            Step::Done => Ok(()),
            Step::Failed(error) => Err(error),
        };
        let Operation { ticket, file, .. } = self.slots[slot as usize].take().expect("seen above");
        self.vacant.push(slot);
        self.in_flight -= 1;
        if self.files.end_read(file) {
            self.unregister(file);
        }
        done.push(Completion { ticket, buffer, result });
    }

    fn unregister(&mut self, file: FileId) {
        if file.place() < self.registered_files
            && let Err(error) = self.ring.set_file(file.place(), None)
        {
            // The place is set anew before it is used again; until then the file stays open in the table.
            tracing::warn!("cannot take a file out of io_uring's table: {error}");
        }
    }

    fn enter(&mut self, timeout: Duration) -> Result<()> {
        match self.ring.enter(timeout) {
            Ok(()) => self.busy = 0,
            Err(error) if uring::is_busy(&error) && self.busy < BUSY_MAX => {
                self.busy += 1;
                // Taking events makes room; when there are none, only time does.
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(source) => return Err(Error::system("submit reads to io_uring", source)),
        }
        Ok(())
    }
}

impl Reader for UringReader {
    fn add_file(&mut self, file: OwnedFd) -> Result<FileId> {
        let id = self.files.add(file);
        if id.place() < self.registered_files {
            self.files.begin_read(id).expect("just added");
            let set = self.ring.set_file(id.place(), Some(self.files.of_read(id).as_fd()));
            self.files.end_read(id);
            if let Err(source) = set {
                self.files.remove(id);
                return Err(Error::system("register a file with io_uring", source));
            }
        }
        Ok(id)
    }

    fn remove_file(&mut self, file: FileId) {
        if self.files.remove(file) {
            self.unregister(file);
        }
    }

    fn submit(&mut self, request: ReadRequest) -> std::result::Result<(), ReadRequest> {
        if self.in_flight as usize >= self.slots.len() {
            return Err(request);
        }
        self.in_flight += 1;
        let progress = Progress::new(&request).and_then(|progress| {
            self.files.begin_read(request.file)?;
            Ok(progress)
        });
        let ReadRequest { file, ticket, buffer, .. } = request;
        match progress {
            Ok(progress) => {
                let slot = self.vacant.pop().expect("as many as reads in flight");
                self.slots[slot as usize] = Some(Operation { ticket, file, progress });
                self.read_on(slot, buffer);
            }
            Err(error) => self.failed.push(Completion { ticket, buffer, result: Err(error) }),
        }
        Ok(())
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>, done: &mut Vec<Completion>) -> Result<bool> {
        let mut now = Instant::now();
        let deadline = now.checked_add(timeout);
        let before = done.len();
        loop {
            self.in_flight -= u32::try_from(self.failed.len()).expect("at most the depth");
            done.append(&mut self.failed);
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(now));
            let mut sleep = left;
            if let Some(due) = self.resume(now) {
                sleep = sleep.min(due.saturating_duration_since(now));
            }
            if !self.ring.watch(wake) || done.len() > before {
                sleep = Duration::ZERO;
            }
            self.enter(sleep)?;
            let woken = self.take_events(done)?;
            if woken || done.len() > before || left.is_zero() {
                return Ok(woken);
            }
            now = Instant::now();
        }
    }

    fn describe(&self) -> ReaderReport {
        self.report.clone()
    }
}

/// The best way to run a ring that this kernel has.
fn usable_task_run() -> Result<TaskRun, Refusal> {
    let mut outcome = uring::probe(TaskRun::ALL[0]).map(|()| TaskRun::ALL[0]);
    for task_run in &TaskRun::ALL[1..] {
        match outcome {
            // Only an unknown flag says that another way may work.
            Err(refusal) if refusal.source.raw_os_error() == Some(libc::EINVAL) => {
                outcome = uring::probe(*task_run).map(|()| *task_run);
            }
            settled => return settled,
        }
    }
    outcome
}

/// The ring with `depth` slots, or fewer when memory is short.
fn set_up(depth: u32, task_run: TaskRun) -> Result<(Ring, u32), Refusal> {
    let mut queue = depth;
    loop {
        let mut attempts = 1;
        let refusal = loop {
            match Ring::new(queue, task_run) {
                Ok(ring) => return Ok((ring, queue)),
                Err(refusal) if is_memory_short(&refusal) && attempts < SETUP_ATTEMPTS => {
                    attempts += 1;
                    std::thread::sleep(SETUP_PAUSE);
                }
                Err(refusal) => break refusal,
            }
        };
        if !is_memory_short(&refusal) || queue / 2 < DEPTH_MIN {
            return Err(refusal);
        }
        queue /= 2;
    }
}

fn is_memory_short(refusal: &Refusal) -> bool {
    refusal.source.raw_os_error() == Some(libc::ENOMEM)
}

fn register_files(ring: &mut Ring, notes: &mut Vec<String>) -> u32 {
    // The kernel takes no larger table than the process may have descriptors.
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| u32::try_from(limit).ok());
    let count = REGISTERED_FILES.min(limit.unwrap_or(u32::MAX));
    match ring.register_files(count) {
        Ok(()) => count,
        Err(error) => {
            notes.push(format!("no registered files ({})", errno_name(&error)));
            0
        }
    }
}

fn register_memory(ring: &mut Ring, arena: &Arena, notes: &mut Vec<String>) {
    let wanted = arena.bytes().min(REGISTERED_BYTES_MAX);
    let limit = memlock_limit_bytes();
    // An eighth of the limit is left for the rings and others of the same user, who share it.
    let mut bytes = limit.map_or(wanted, |limit| wanted.min(limit - limit / 8));
    let smallest = REGISTERED_BYTES_MIN.min(wanted);
    let mut refused = None;
    while bytes >= smallest {
        match ring.register_memory(arena, bytes) {
            Ok(()) => return,
            Err(error) => {
                let short = error.raw_os_error() == Some(libc::ENOMEM);
                refused = Some(error);
                if !short {
                    break;
                }
            }
        }
        bytes /= 2;
    }
    let why = refused.map_or("too low".to_owned(), |error| errno_name(&error));
    let limit = limit.map_or("none".to_owned(), |limit| Mebibytes(limit as u64).to_string());
    notes.push(format!("no registered buffers (limit on locked memory, ulimit -l: {limit}: {why})"));
}

/// How much this process's user may lock, `None` without a limit.
fn memlock_limit_bytes() -> Option<usize> {
    let privileged = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::IPC_LOCK));
    if privileged {
        return None;
    }
    getrlimit(Resource::Memlock).current.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX))
}
