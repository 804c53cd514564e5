//! A mapping of memory that another process writes too.
//!
//! Hands out pointers and no references to bytes: the other side may change them at any time.
#![expect(unsafe_code, reason = "mmap and munmap")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use shared_memory::Shmem;

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
    /// The segment that the mapping belongs to, where that has a name: dropped, it unmaps and unlinks.
    named: Option<ManuallyDrop<Segment>>,
}

/// A named segment's owner.
struct Segment(Shmem);

impl std::fmt::Debug for Segment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.0.get_os_id())
    }
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
        let mapping = Self { start, bytes, owner: std::process::id(), named: None };
        mapping.set_on_fork(on_fork)?;
        Ok(mapping)
    }

    /// Takes over the mapping of a named segment, with its name: both go when this is dropped.
    pub fn of_segment(segment: Shmem, on_fork: OnFork) -> io::Result<Self> {
        let start = NonNull::new(segment.as_ptr()).expect("the kernel never places a mapping at 0 by itself");
        let (bytes, named) = (segment.len(), Some(ManuallyDrop::new(Segment(segment))));
        let mapping = Self { start, bytes, owner: std::process::id(), named };
        mapping.set_on_fork(on_fork)?;
        Ok(mapping)
    }

    fn set_on_fork(&self, on_fork: OnFork) -> io::Result<()> {
        if on_fork == OnFork::Leave {
            // SAFETY: changes only what a later fork copies; `owner` keeps a child from using or unmapping the range.
            unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, Advice::LinuxDontFork) }?;
        }
        Ok(())
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
        if let Some(segment) = &mut self.named {
            // SAFETY: dropped once, here, in the process that made it; nobody can use `start` after us, as below.
            return unsafe { ManuallyDrop::drop(segment) };
        }
        // SAFETY: the range is ours since `map`, and nobody can use `start` after us: pointers are only used under
        // a borrow or an `Arc` of the mapping's owner.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own range: {unmapped:?}");
    }
}
