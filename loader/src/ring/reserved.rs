//! What the rings of this process may still take: a client can punch holes into its ring, and the pages that are gone
//! come back with the sidecar's next store. Memory that is free only because of holes is therefore not free for another
//! ring. Without this, a client could make room, have others fill it, and leave the sidecar to the kernel's
//! out-of-memory killer at its next batch: in a control group at its limit a store is answered by `SIGKILL`, which no
//! handler can turn away.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The memory of every live ring.
static RINGS: Mutex<Vec<Weak<OwnedFd>>> = Mutex::new(Vec::new());

/// Keeps the memory of a ring among those that [`missing_bytes`] looks at, as long as it lives.
#[derive(Debug)]
pub(super) struct Reserved {
    /// Never read: the list holds only weak references.
    _memory: Arc<OwnedFd>,
}

impl Reserved {
    pub(super) fn new(memory: BorrowedFd<'_>) -> io::Result<Self> {
        let memory = Arc::new(memory.try_clone_to_owned()?);
        let mut rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
        rings.retain(|ring| ring.strong_count() > 0);
        rings.push(Arc::downgrade(&memory));
        Ok(Self { _memory: memory })
    }
}

/// Bytes of live rings that have no page at present.
pub(super) fn missing_bytes() -> u64 {
    /// Unit of `st_blocks`, whatever the file system.
    const BLOCK_BYTES: u64 = 512;
    let rings = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = rings.iter().filter_map(Weak::upgrade).map(|memory| {
        let Ok(stat) = rustix::fs::fstat(&*memory) else { return 0 };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        size.saturating_sub(u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES)
    });
    missing.sum()
}
