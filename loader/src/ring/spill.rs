//! The spill: memory made for one batch whose values of varying length are more than its slot has room for.
//!
//! Rare by the choice of the room, and counted, so it may lock and allocate. The sidecar writes it by `pwrite` and
//! never maps it: what a client does to it later cannot reach the sidecar.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::sys::memfd;

/// A batch's spill while the batch is being filled; empty as a rule.
#[derive(Debug, Default)]
pub(super) struct Spill {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    memory: Option<Arc<OwnedFd>>,
    used: u64,
    is_sealed: bool,
}

/// A spill of fixed size, for the client.
#[derive(Debug, Clone)]
pub struct SealedSpill {
    /// The memory, sealed at `bytes`.
    pub memory: Arc<OwnedFd>,
    /// Its size.
    pub bytes: u32,
}

impl Spill {
    /// Stores `bytes` at a multiple of `align` below `limit` and returns where.
    pub(super) fn store(&self, bytes: &[u8], align: u64, limit: u64) -> io::Result<u64> {
        let (memory, offset) = self.take(bytes.len() as u64, align, limit)?;
        memfd::write_at(memory.as_fd(), bytes, offset)?;
        Ok(offset)
    }

    fn take(&self, len: u64, align: u64, limit: u64) -> io::Result<(Arc<OwnedFd>, u64)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!state.is_sealed, "a value came after the spill was sealed");
        let offset = state.used.next_multiple_of(align);
        let end = offset.checked_add(len).filter(|&end| end <= limit).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::StorageFull,
                format!("a value of {len} bytes after {} spilled ones is over the {limit} of a batch", state.used),
            )
        })?;
        let memory = match &state.memory {
            Some(memory) => Arc::clone(memory),
            None => Arc::clone(state.memory.insert(Arc::new(memfd::create_growing("feedline-spill")?))),
        };
        // At least one byte, so that a batch has a spill exactly if this is not 0.
        state.used = end.max(1);
        Ok((memory, offset))
    }

    /// Fixes the size, if there is anything.
    pub(super) fn seal(&self) -> io::Result<Option<SealedSpill>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(memory) = state.memory.clone() else { return Ok(None) };
        if !state.is_sealed {
            memfd::seal(memory.as_fd(), state.used)?;
            state.is_sealed = true;
        }
        let bytes = u32::try_from(state.used).expect("the limit of a batch is 31-bit");
        Ok(Some(SealedSpill { memory, bytes }))
    }

    /// Bytes for the batch's descriptor.
    ///
    /// # Panics
    /// If there are some and they are not sealed.
    pub(super) fn sealed_bytes(&self) -> u32 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(state.is_sealed || state.memory.is_none(), "a batch is published before its spill is sealed");
        u32::try_from(state.used).expect("the limit of a batch is 31-bit")
    }
}
