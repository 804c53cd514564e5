//! A mapping of memory that another process writes too.
//!
//! Hands out pointers and no references to bytes: the other side may change them at any time.
#![expect(unsafe_code, reason = "mmap and munmap")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Whether children made by fork get the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFork {
    /// The child shares it.
    Keep,
    /// The child has a hole in its place: nobody may touch it there.
    Leave,
}

/// Shared memory at a fixed address, for reading and writing, until dropped.
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    bytes: usize,
    owner: u32,
}

// SAFETY: the mapping belongs to the process, not to a thread; the type itself gives out only a pointer.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; no method writes through `&self`.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `bytes` of `memory`. The caller has checked that it is that long and stays so, or is prepared
    /// for `SIGBUS`.
    pub fn map(memory: BorrowedFd<'_>, bytes: usize, on_fork: OnFork) -> io::Result<Self> {
        // SAFETY: a new mapping at a place that the kernel chooses replaces nothing.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                memory,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).expect("the kernel never places a mapping at 0 by itself");
        let mapping = Self { start, bytes, owner: std::process::id() };
        if on_fork == OnFork::Leave {
            // SAFETY: changes only what a later fork copies; `owner` keeps a child from using or unmapping the range.
            unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
        }
        Ok(mapping)
    }

    /// First byte; page-aligned.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Id of the process that made the mapping.
    pub fn owner(&self) -> u32 {
        self.owner
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // In a forked child the range may belong to somebody else by now.
        if std::process::id() != self.owner {
            return;
        }
        // SAFETY: the range is ours since `map`, and nobody can use `start` after us: pointers are only used under
        // a borrow or an `Arc` of the mapping's owner.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own range: {unmapped:?}");
    }
}
