//! Byte ranges to bytes: many reads in flight at once, through io_uring where it can be had, else by a pool of threads
//! that call pread; or, when asked for, past the page cache or from maps. All give the same bytes and the same errors.
//!
//! A read is a move: the buffer goes into the request, belongs to the reader while the read is in flight, and comes back
//! with its completion. What to read, and when, is the business of the caller.

mod depth;
mod direct;
mod files;
mod mounts;
mod pool;
mod progress;
mod refusal;
mod report;
#[cfg(test)]
mod tests;
mod uring;

use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
pub use crate::sys::arena::{Arena, OVERSIZED_BYTES_MAX, READ_BYTES_MAX, ReadBuffer};
pub use files::FileId;
pub use report::{DirectReport, LiveReport, MountReport, ReaderChoice, ReaderReport};

use depth::{Depth, Gate};
use mounts::DirectPolicy;
use pool::{PreadPool, Source};
use uring::UringReader;

/// Most reads that one reader has in flight.
pub const DEPTH_MAX: u32 = 4096;

/// Bytes to be read: as many as the buffer has.
#[derive(Debug)]
pub struct ReadRequest {
    /// From which file.
    pub file: FileId,
    /// From which byte of it.
    pub offset: u64,
    /// The caller's mark, given back with the completion.
    pub ticket: u64,
    /// To where, and how many.
    pub buffer: ReadBuffer,
}

/// A read that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The request's mark.
    pub ticket: u64,
    /// The request's buffer. After an error its bytes mean nothing.
    pub buffer: ReadBuffer,
    /// Success means that every byte was read.
    pub result: io::Result<()>,
}

/// Reads byte ranges; used by one thread, which may be another than the one that opened it.
///
/// Dropping a reader waits for its reads in flight (a bounded time, after which their memory stays allocated).
pub trait Reader: Send + Debug {
    /// Makes a file known; the reader keeps it open until it is removed.
    fn add_file(&mut self, file: OwnedFd) -> Result<FileId>;

    /// Forgets a file; it is closed when the last of its reads has ended.
    fn remove_file(&mut self, file: FileId);

    /// A file that was added and not removed.
    fn file(&self, file: FileId) -> BorrowedFd<'_>;

    /// Starts a read, at the latest with the next [`Reader::wait`]. As many reads as the reader is deep may be in
    /// flight; one more is handed back.
    fn submit(&mut self, request: ReadRequest) -> std::result::Result<(), ReadRequest>;

    /// Reads submitted and not yet completed.
    fn in_flight(&self) -> u32;

    /// Sleeps until a read has ended, `wake` is readable or `timeout` is over, and appends what has ended to `done`.
    ///
    /// True when `wake` was seen readable: the caller makes it silent before the next call. `wake` is the same open
    /// descriptor in every call.
    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>, done: &mut Vec<Completion>) -> Result<bool>;

    /// Which backend it is, with what, and why; it can be kept while the reader works on another thread.
    fn report(&self) -> &Arc<LiveReport>;

    /// The report at this moment.
    fn describe(&self) -> ReaderReport {
        self.report().read()
    }
}

/// Whether the number of reads that a device gets at once follows its throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// As many as the device profits from, up to the reader's depth; the others wait in the reader.
    #[default]
    Adaptive,
    /// As many as the reader is deep.
    Fixed,
}

impl Pace {
    /// The gate to one device with at most `depth` reads inside and `capacity` before it.
    fn gate<T>(self, depth: u32, capacity: u32) -> Gate<T> {
        let depth = match self {
            Self::Adaptive => Depth::adaptive(depth),
            Self::Fixed => Depth::fixed(depth),
        };
        Gate::new(depth, capacity)
    }
}

/// Opens a reader with at most `depth` reads in flight into buffers of `arena`.
pub fn open_reader(choice: ReaderChoice, arena: &Arena, depth: u32) -> Result<Box<dyn Reader>> {
    open_paced_reader(choice, arena, depth, Pace::default())
}

/// As [`open_reader`], at a pace of one's own.
pub fn open_paced_reader(choice: ReaderChoice, arena: &Arena, depth: u32, pace: Pace) -> Result<Box<dyn Reader>> {
    if !(1..=DEPTH_MAX).contains(&depth) {
        return Err(Error::config(format!(
            "a reader with {depth} reads in flight cannot be made: between 1 and {DEPTH_MAX}"
        )));
    }
    let policy = match choice {
        ReaderChoice::Pread => return Ok(Box::new(PreadPool::new(depth, pace, Source::Pread { fallback: None })?)),
        ReaderChoice::Mmap => return Ok(Box::new(PreadPool::new(depth, pace, Source::Map)?)),
        ReaderChoice::Auto => DirectPolicy::WhenLarger,
        ReaderChoice::Uring => DirectPolicy::Never,
        ReaderChoice::UringDirect => DirectPolicy::Always,
    };
    match UringReader::new(arena, depth, pace, policy) {
        Ok(reader) => Ok(Box::new(reader)),
        Err(refusal) if choice == ReaderChoice::Auto => {
            let fallback = Some(refusal::explain(&refusal));
            Ok(Box::new(PreadPool::new(depth, pace, Source::Pread { fallback })?))
        }
        Err(refusal) => Err(Error::config(format!(
            "io_uring was asked for but is not available: {}; choose auto or pread",
            refusal::explain(&refusal)
        ))),
    }
}
