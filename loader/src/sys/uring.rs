//! One io_uring ring for reads into [`ReadBuffer`]s, and for noticing when a descriptor becomes readable.
//!
//! A buffer belongs to the ring from [`Ring::read`] until its event is taken from [`Ring::next_event`]; a ring that is
//! dropped first waits for its reads. What to do about errors and short reads is left to the caller.
#![expect(unsafe_code, reason = "the kernel writes to memory named in a queue entry")]

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::arena::{Arena, ReadBuffer, Shared, Window};
use super::eventfd;

/// Longest wait for reads in flight when a ring is dropped. Local storage answers in milliseconds; behind a network
/// that is gone, reads can hang for ever.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Entries beyond one a read: a watch, the removal of an old one, a cancellation.
const SPARE_ENTRIES: u32 = 4;

/// Marks the entries that are not reads; their low bits tell one watch from another.
const WATCH: u64 = 1 << 63;

/// The entries whose completions say nothing: removals and cancellations.
const SILENT: u64 = u64::MAX;

/// When the kernel does its part of finishing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskRun {
    /// When the one thread that submits enters the kernel to wait (Linux 6.1).
    Deferred,
    /// When the thread enters the kernel for whatever reason (Linux 5.19).
    Cooperative,
    /// At once, by interrupting the thread.
    Interrupting,
}

impl TaskRun {
    /// The best first.
    pub const ALL: [Self; 3] = [Self::Deferred, Self::Cooperative, Self::Interrupting];
}

/// What the system refused, and how.
#[derive(Debug)]
pub struct Refusal {
    /// The call, or what of it.
    pub call: &'static str,
    /// The system's reason.
    pub source: io::Error,
}

impl Refusal {
    fn new(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { call, source }
    }
}

/// The file of a read.
#[derive(Debug, Clone, Copy)]
pub enum RingFile<'a> {
    /// By its place in the registered table.
    Registered(u32),
    /// By its descriptor, which stays open until the read's event.
    Descriptor(BorrowedFd<'a>),
}

/// Something that has happened.
#[derive(Debug)]
pub enum Event {
    /// The read in this slot has ended.
    Read {
        /// The number given to [`Ring::read`].
        slot: u32,
        /// Its buffer, back from the kernel.
        buffer: ReadBuffer,
        /// How many bytes it brought.
        result: io::Result<u32>,
    },
    /// The watched descriptor is readable; the watch has ended with that.
    Woken,
    /// The descriptor could not be watched.
    WatchFailed(io::Error),
}

/// The ring. It works on the thread that first enters it (with [`TaskRun::Deferred`] the kernel insists).
pub struct Ring {
    ring: IoUring,
    task_run: TaskRun,
    enabled: bool,
    /// The buffers that the kernel has, by slot.
    buffers: Vec<Option<ReadBuffer>>,
    in_flight: u32,
    registered: Option<Registered>,
    /// The watched descriptor, `None` while no watch is armed, and the number of the latest watch.
    watched: Option<RawFd>,
    watch_number: u64,
}

/// The part of the arena that the kernel keeps pinned.
struct Registered {
    range: Range<usize>,
    /// Keeps the mapping in its place as long as the ring lives.
    _memory: Arc<Shared>,
}

impl Ring {
    /// A ring for as many reads at once as there are `slots`.
    pub fn new(slots: u32, task_run: TaskRun) -> Result<Self, Refusal> {
        let mut builder = IoUring::builder();
        builder.setup_clamp();
        match task_run {
            // Disabled at first: the thread that enables it becomes the one that submits.
            TaskRun::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_r_disabled()
            }
            TaskRun::Cooperative => builder.setup_coop_taskrun().setup_taskrun_flag(),
            TaskRun::Interrupting => &mut builder,
        };
        let ring = builder.build(slots + SPARE_ENTRIES).map_err(Refusal::new("io_uring_setup"))?;
        // Linux 5.11, the youngest of what is needed.
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            let source = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(Refusal { call: "io_uring with timed waits", source });
        }
        Ok(Self {
            ring,
            task_run,
            enabled: task_run != TaskRun::Deferred,
            buffers: (0..slots).map(|_| None).collect(),
            in_flight: 0,
            registered: None,
            watched: None,
            watch_number: 0,
        })
    }

    /// Makes a table of `count` files, all vacant.
    pub fn register_files(&mut self, count: u32) -> io::Result<()> {
        match self.ring.submitter().register_files_sparse(count) {
            // Before Linux 5.19: a table of no files.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.ring.submitter().register_files(&vec![-1; count as usize])
            }
            result => result,
        }
    }

    /// Sets or clears a place in the table.
    pub fn set_file(&mut self, place: u32, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let descriptor = file.map_or(-1, |file| file.as_raw_fd());
        self.ring.submitter().register_files_update(place, &[descriptor]).map(drop)
    }

    /// Pins the first `bytes` of the arena, so that reads into them need not look up their pages.
    pub fn register_memory(&mut self, arena: &Arena, bytes: usize) -> io::Result<()> {
        let (start, arena_bytes) = arena.shared().memory();
        let bytes = bytes.min(arena_bytes);
        let part = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes };
        // SAFETY: the mapping is held below until the ring is gone.
        unsafe { self.ring.submitter().register_buffers(&[part]) }?;
        let start = start.addr().get();
        self.registered = Some(Registered { range: start..start + bytes, _memory: arena.shared().clone() });
        Ok(())
    }

    /// Bytes of the arena that are registered.
    pub fn registered_bytes(&self) -> usize {
        self.registered.as_ref().map_or(0, |registered| registered.range.len())
    }

    /// Reads from `offset` into the buffer's `window` from its byte `filled` on, with the next [`Ring::enter`]. The
    /// buffer comes back when the queue is full.
    ///
    /// # Panics
    /// If there is a read in `slot` already, or the buffer's memory does not hold the window.
    pub fn read(
        &mut self,
        slot: u32,
        file: RingFile<'_>,
        offset: u64,
        mut buffer: ReadBuffer,
        window: Window,
        filled: u32,
    ) -> Result<(), ReadBuffer> {
        let place = &mut self.buffers[slot as usize];
        assert!(place.is_none(), "slot {slot} has a read in flight");
        let len = window.len.checked_sub(filled).expect("no more is filled than the window has");
        // SAFETY: `filled` is at most the window's length.
        let target = unsafe { buffer.address(window).add(filled as usize) };
        let start = target.addr().get();
        let fixed = self
            .registered
            .as_ref()
            .is_some_and(|part| part.range.start <= start && start + len as usize <= part.range.end);
        let target = target.as_ptr();
        let entry = match (file, fixed) {
            (RingFile::Registered(file), true) => {
                opcode::ReadFixed::new(Fixed(file), target, len, 0).offset(offset).build()
            }
            (RingFile::Registered(file), false) => opcode::Read::new(Fixed(file), target, len).offset(offset).build(),
            (RingFile::Descriptor(file), true) => {
                opcode::ReadFixed::new(Fd(file.as_raw_fd()), target, len, 0).offset(offset).build()
            }
            (RingFile::Descriptor(file), false) => {
                opcode::Read::new(Fd(file.as_raw_fd()), target, len).offset(offset).build()
            }
        };
        if !self.push(entry.user_data(u64::from(slot))) {
            return Err(buffer);
        }
        self.buffers[slot as usize] = Some(buffer);
        self.in_flight += 1;
        Ok(())
    }

    /// Reads that the kernel has, or will have with the next [`Ring::enter`].
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Has [`Event::Woken`] happen when `file` is or becomes readable. A watch on another descriptor ends.
    ///
    /// False when the queue is full: enter, then try again.
    pub fn watch(&mut self, file: BorrowedFd<'_>) -> bool {
        let descriptor = file.as_raw_fd();
        if self.watched == Some(descriptor) {
            return true;
        }
        if self.watched.is_some() {
            if !self.push(opcode::PollRemove::new(WATCH | self.watch_number).build().user_data(SILENT)) {
                return false;
            }
            self.watched = None;
        }
        let entry = opcode::PollAdd::new(Fd(descriptor), libc::POLLIN as u32).build();
        if !self.push(entry.user_data(WATCH | (self.watch_number + 1))) {
            return false;
        }
        self.watch_number += 1;
        self.watched = Some(descriptor);
        true
    }

    /// True when entries wait for [`Ring::enter`].
    pub fn has_submissions(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Submits what waits, then sleeps until something has happened or `timeout` is over; a signal also ends it.
    pub fn enter(&mut self, timeout: Duration) -> io::Result<()> {
        self.enable()?;
        let timeout = Timespec::from(timeout);
        match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Makes this thread the one that submits, if there is none yet.
    fn enable(&mut self) -> io::Result<()> {
        if !self.enabled {
            self.ring.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        Ok(())
    }

    /// The next thing that has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let entry = self.ring.completion().next()?;
            let result = u32::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            let number = entry.user_data();
            if number & WATCH == 0 {
                let slot = u32::try_from(number).expect("a slot's number");
                let buffer = self.buffers[slot as usize].take().expect("one completion a read");
                self.in_flight -= 1;
                return Some(Event::Read { slot, buffer, result });
            }
            // Watches that were replaced, removals and cancellations say nothing.
            if number == WATCH | self.watch_number && self.watched.is_some() {
                self.watched = None;
                return Some(match result {
                    Ok(_) => Event::Woken,
                    Err(error) => Event::WatchFailed(error),
                });
            }
        }
    }

    fn push(&mut self, entry: squeue::Entry) -> bool {
        // SAFETY: a read's buffer is held in `buffers` until its completion, a registered one is held by `registered`;
        // a stale or wrong descriptor is an error of the kernel's, or reads another file into our own buffer.
        unsafe { self.ring.submission().push(&entry) }.is_ok()
    }

    /// Waits until the kernel has given every buffer back; false when it did not within `limit`.
    fn drain(&mut self, limit: Duration) -> bool {
        // What was never enabled has given nothing to the kernel.
        if self.in_flight == 0 || !self.enabled {
            return true;
        }
        let deadline = Instant::now() + limit;
        // Ends reads that wait for data to come; before Linux 5.19 it is an error that says nothing. Reads from a disk
        // run to their end.
        let _ = self.push(opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(SILENT));
        while self.in_flight > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.enter(left.min(Duration::from_millis(100))) {
                Err(error) if !is_busy(&error) => return false,
                _ => {}
            }
            while self.next_event().is_some() {}
            if left.is_zero() {
                return self.in_flight == 0;
            }
        }
        true
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.drain(DRAIN_MAX) {
            return;
        }
        tracing::error!(
            "{} reads did not end within {DRAIN_MAX:?}; their memory is left to the kernel until the process ends",
            self.in_flight
        );
        // Never freed: the kernel may still write there.
        self.buffers.drain(..).for_each(std::mem::forget);
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Ring")
            .field("task_run", &self.task_run)
            .field("slots", &self.buffers.len())
            .field("in_flight", &self.in_flight)
            .field("registered_bytes", &self.registered_bytes())
            .finish_non_exhaustive()
    }
}

/// True when the kernel could not take more just now: take events, then enter again.
pub fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
}

/// Makes a ring and uses everything of it that reading needs.
pub fn probe(task_run: TaskRun) -> Result<(), Refusal> {
    /// Nothing here waits for a device.
    const LIMIT: Duration = Duration::from_secs(5);
    const WORDS: &[u8] = b"io_uring reads";

    let mut ring = Ring::new(1, task_run)?;
    ring.enable().map_err(Refusal::new("io_uring_register"))?;
    let prepare = || -> io::Result<_> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("feedline-probe", flags)?;
        rustix::io::pwrite(&file, WORDS, 0)?;
        let event = eventfd::create()?;
        eventfd::signal(event.as_fd())?;
        let mut arena = Arena::new(WORDS.len()).map_err(io::Error::other)?;
        let buffer = arena.allocate(WORDS.len() as u64).map_err(io::Error::other)?;
        Ok((file, event, buffer.expect("the arena is empty")))
    };
    let (file, event, buffer) = prepare().map_err(Refusal::new("what the io_uring probe needs"))?;
    let window = buffer.exact();
    ring.read(0, RingFile::Descriptor(file.as_fd()), 0, buffer, window, 0).expect("the queue is empty");
    assert!(ring.watch(event.as_fd()), "the queue has spare entries");
    let deadline = Instant::now() + LIMIT;
    let (mut read, mut woken) = (false, false);
    while !(read && woken) {
        let left = deadline.saturating_duration_since(Instant::now());
        ring.enter(left).map_err(Refusal::new("io_uring_enter"))?;
        while let Some(event) = ring.next_event() {
            match event {
                Event::Read { buffer, result, .. } => {
                    result.map_err(Refusal::new("a read by io_uring"))?;
                    if buffer.as_slice() != WORDS {
                        let source = io::Error::from(io::ErrorKind::InvalidData);
                        return Err(Refusal { call: "a read by io_uring", source });
                    }
                    read = true;
                }
                Event::Woken => woken = true,
                Event::WatchFailed(source) => return Err(Refusal { call: "a poll by io_uring", source }),
            }
        }
        if left.is_zero() {
            return Err(Refusal { call: "a read by io_uring", source: io::Error::from(io::ErrorKind::TimedOut) });
        }
    }
    Ok(())
}
