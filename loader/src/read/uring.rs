//! Reads through io_uring: one ring, one system call to submit, wait and be woken.
//!
//! The ring itself, and who owns a buffer when, is in `sys::uring`; here are slots, files, and what follows from a
//! read's result. Which reads go past the page cache is decided in `mounts`, how many go at once to one device in
//! `depth`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::depth::Gate;
use super::direct;
use super::files::FileSet;
use super::mounts::{DirectPolicy, Mounts};
use super::progress::{self, Faults, Progress, Step};
use super::refusal::errno_name;
use super::{Arena, Completion, FileId, LiveReport, Pace, ReadBuffer, ReadRequest, Reader, ReaderReport};
use crate::error::{Error, Result};
use crate::sys::memory::Mebibytes;
use crate::sys::uring::{self, Event, Refusal, Ring, RingFile, TaskRun};

/// Places in the table of registered files, two a file. Files beyond it are read by descriptor.
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
    mounts: Mounts,
    /// One a mount, by its number.
    gates: Vec<Gate<(u32, ReadBuffer)>>,
    pace: Pace,
    report: Arc<LiveReport>,
    faults: Faults,
}

#[derive(Debug)]
struct Operation {
    ticket: u64,
    file: FileId,
    progress: Progress,
    /// It is read past the page cache.
    direct: bool,
    /// It was, and this came of it; now it is repeated through the page cache.
    refused: Option<io::Error>,
}

#[derive(Debug)]
struct Paused {
    due: Instant,
    slot: u32,
    buffer: ReadBuffer,
}

impl UringReader {
    /// A reader if this process can have a ring, with as much of the optional parts as the system grants.
    pub(super) fn new(arena: &Arena, depth: u32, pace: Pace, policy: DirectPolicy) -> Result<Self, Refusal> {
        let task_run = usable_task_run()?;
        let (mut ring, queue) = set_up(depth, task_run)?;
        let mut notes = Vec::new();
        if queue < depth {
            notes.push(format!("a queue of {depth} was refused for want of memory"));
        }
        let registered_files = register_files(&mut ring, &mut notes);
        register_memory(&mut ring, arena, &mut notes);
        let registered_bytes = ring.registered_bytes();
        let report = ReaderReport::Uring { queue, task_run, registered_files, registered_bytes, direct: None, notes };
        let report = Arc::new(LiveReport::new(report));
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
            mounts: Mounts::new(policy, report.clone()),
            gates: Vec::new(),
            pace,
            report,
            faults: Faults::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// With another source for the memory that can be had.
    #[cfg(test)]
    pub(super) fn with_memory(mut self, memory: fn() -> Option<u64>) -> Self {
        self.mounts = Mounts::with_memory(DirectPolicy::WhenLarger, self.report.clone(), memory);
        self
    }

    /// Without registered files and buffers, as where the system grants neither.
    #[cfg(test)]
    pub(super) fn plain(depth: u32, task_run: TaskRun) -> Result<Self, Refusal> {
        uring::probe(task_run)?;
        let arena = Arena::new(1).expect("a page");
        let mut reader = Self::new(&arena, depth, Pace::Fixed, DirectPolicy::Never)?;
        reader.ring = Ring::new(depth, task_run)?;
        reader.registered_files = 0;
        Ok(reader)
    }

    /// Hands the rest of a slot's read to the ring; when that is full, a little later.
    fn read_on(&mut self, slot: u32, buffer: ReadBuffer) {
        let Operation { file, progress, direct, .. } =
            self.slots[slot as usize].as_ref().expect("a read in flight has a slot");
        let descriptor = match self.files.direct(*file) {
            Some(past_cache) if *direct => &past_cache.file,
            _ => self.files.of_read(*file),
        };
        let place = table_place(*file, *direct);
        let from = if place < self.registered_files {
            RingFile::Registered(place)
        } else {
            RingFile::Descriptor(descriptor.as_fd())
        };
        if let Err(buffer) = self.ring.read(slot, from, progress.offset(), buffer, progress.window(), progress.filled())
        {
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
    fn take_events(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool> {
        let mut woken = false;
        while let Some(event) = self.ring.next_event() {
            match event {
                Event::Read { slot, buffer, result } => self.advance(slot, buffer, result, now, done),
                Event::Woken => woken = true,
                Event::WatchFailed(source) => return Err(Error::system("watch the reader's wake signal", source)),
            }
        }
        Ok(woken)
    }

    fn advance(
        &mut self,
        slot: u32,
        buffer: ReadBuffer,
        result: io::Result<u32>,
        now: Instant,
        done: &mut Vec<Completion>,
    ) {
        let operation = self.slots[slot as usize].as_mut().expect("a read in flight has a slot");
        let result = match operation.step(self.faults.apply(result, operation.direct)) {
            Step::Again(pause) if pause.is_zero() => return self.read_on(slot, buffer),
            Step::Again(pause) => return self.paused.push_back(Paused { due: now + pause, slot, buffer }),
            Step::Done => Ok(()),
            Step::Failed(error) => Err(error),
            Step::Exhausted(error) => Err(self.files.name_in(operation.file, error)),
        };
        let Operation { ticket, file, refused, .. } = self.slots[slot as usize].take().expect("seen above");
        let mount = self.files.mount(file);
        if let (Ok(()), Some(error)) = (&result, refused) {
            self.mounts.revoke(mount, &error);
        }
        self.vacant.push(slot);
        self.in_flight -= 1;
        if self.files.end_read(file) {
            self.unregister(file);
        }
        self.gates[mount].leave(buffer.len(), now);
        while let Some((slot, buffer)) = self.gates[mount].next() {
            self.read_on(slot, buffer);
        }
        done.push(Completion { ticket, buffer, result });
    }

    /// Starts a read, or has it wait for its turn.
    fn start(&mut self, mut operation: Operation, offset: u64, buffer: ReadBuffer) {
        let mount = self.files.mount(operation.file);
        if self.mounts.is_direct(mount, buffer.len())
            && let Some(past_cache) = self.files.direct(operation.file)
            && let Some(window) = buffer.whole_blocks(offset, past_cache.block_bytes)
        {
            operation.progress.widen(window);
            operation.direct = true;
        }
        let slot = self.vacant.pop().expect("as many as reads in flight");
        self.slots[slot as usize] = Some(operation);
        if let Some((slot, buffer)) = self.gates[mount].enter((slot, buffer)) {
            self.read_on(slot, buffer);
        }
    }

    /// Opens a known file for direct reads too, where that is wanted and can be.
    fn open_direct(&mut self, id: FileId) {
        let file = self.files.of_read(id);
        let facts = direct::look_at(file.as_fd()).ok();
        let opened = facts.and_then(|facts| self.mounts.open_direct(self.files.mount(id), file.as_fd(), &facts));
        let Some(opened) = opened else { return };
        if let Err(error) = self.register(id, true, opened.file.as_fd()) {
            tracing::warn!("a file is read through the page cache: cannot register it with io_uring: {error}");
            return;
        }
        self.files.set_direct(id, opened);
    }

    fn register(&mut self, id: FileId, direct: bool, file: BorrowedFd<'_>) -> io::Result<()> {
        let place = table_place(id, direct);
        if place < self.registered_files { self.ring.set_file(place, Some(file)) } else { Ok(()) }
    }

    fn unregister(&mut self, file: FileId) {
        for place in [table_place(file, false), table_place(file, true)] {
            if place < self.registered_files
                && let Err(error) = self.ring.set_file(place, None)
            {
                // The place is set anew before it is used again; until then the file stays open in the table.
                tracing::warn!("cannot take a file out of io_uring's table: {error}");
            }
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
        let facts = direct::look_at(file.as_fd()).ok();
        let mount = self.mounts.number(facts.as_ref());
        let queue = u32::try_from(self.slots.len()).expect("at most DEPTH_MAX");
        self.gates.resize_with(self.mounts.count(), || self.pace.gate(queue, queue));
        let id = self.files.add(file, mount);
        let file = self.files.of_read(id).clone();
        if let Err(source) = self.register(id, false, file.as_fd()) {
            self.files.remove(id);
            return Err(Error::system("register a file with io_uring", source));
        }
        if facts.is_some_and(|facts| self.mounts.count_file(&facts)) {
            self.files.all().into_iter().for_each(|id| self.open_direct(id));
        } else {
            self.open_direct(id);
        }
        Ok(id)
    }

    fn remove_file(&mut self, file: FileId) {
        if self.files.remove(file) {
            self.unregister(file);
        }
    }

    fn file(&self, file: FileId) -> BorrowedFd<'_> {
        self.files.of_read(file).as_fd()
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
                let operation = Operation { ticket, file, progress, direct: false, refused: None };
                self.start(operation, request.offset, buffer);
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
            now = Instant::now();
            let woken = self.take_events(now, done)?;
            if woken || done.len() > before || left.is_zero() {
                return Ok(woken);
            }
        }
    }

    fn report(&self) -> &Arc<LiveReport> {
        &self.report
    }
}

impl Operation {
    /// What follows from a result. What a direct read did not bring, the page cache does: it alone tells the end of a
    /// file inside a block from a broken disk, and a mount without direct reads from both.
    fn step(&mut self, result: io::Result<u32>) -> Step {
        match result {
            Err(error) if self.direct && !progress::is_passing(&error) => {
                self.direct = false;
                self.refused = Some(error);
                Step::Again(Duration::ZERO)
            }
            result => {
                self.direct &= result.is_err();
                self.progress.advance(result)
            }
        }
    }
}

/// Where a file is in the table of registered files.
fn table_place(file: FileId, direct: bool) -> u32 {
    file.place().saturating_mul(2).saturating_add(u32::from(direct))
}

/// The best way to run a ring that this kernel and its guards let work.
fn usable_task_run() -> Result<TaskRun, Refusal> {
    let try_out = |task_run| patiently(|| uring::probe(task_run)).map(|()| task_run);
    let mut outcome = try_out(TaskRun::ALL[0]);
    for task_run in &TaskRun::ALL[1..] {
        match outcome {
            // An unknown flag, or a sandbox that forbids the registering which only the first way needs.
            Err(Refusal { call, source })
                if source.raw_os_error() == Some(libc::EINVAL) || call == "io_uring_register" =>
            {
                outcome = try_out(*task_run);
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
        match patiently(|| Ring::new(queue, task_run)) {
            Ok(ring) => return Ok((ring, queue)),
            Err(refusal) if !is_memory_short(&refusal) || queue / 2 < DEPTH_MIN => return Err(refusal),
            Err(_) => queue /= 2,
        }
    }
}

/// Once more, a little later, where memory is short.
fn patiently<T>(mut make: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
    for _ in 1..SETUP_ATTEMPTS {
        match make() {
            Err(refusal) if is_memory_short(&refusal) => std::thread::sleep(SETUP_PAUSE),
            settled => return settled,
        }
    }
    make()
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
    notes.push(match (refused, limit) {
        // Anything else is not about memory.
        (Some(error), _) if error.raw_os_error() != Some(libc::ENOMEM) => {
            format!("no registered buffers ({})", errno_name(&error))
        }
        (Some(_), None) => "no registered buffers (ENOMEM, though there is no limit on locked memory)".to_owned(),
        (_, limit) => {
            let limit = Mebibytes(limit.unwrap_or(0) as u64);
            format!("no registered buffers (the limit on locked memory, ulimit -l, is {limit})")
        }
    });
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
