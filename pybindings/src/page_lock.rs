//! Page-locks a ring, so that the device reads it by itself: in chunks of whole slots, as much as the driver allows.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::cuda::{Context, LockedRange, Refusal};

/// Chunks are at most this large, or one slot: fewer calls, but no refusal of the whole because of its size.
const CHUNK_BYTES: usize = 256 << 20;

/// The driver's number for memory that somebody has registered before.
const ALREADY_REGISTERED: u32 = 712;

/// The driver's number for a want of memory: a smaller chunk may still go.
const OUT_OF_MEMORY: u32 = 2;

/// What is page-locked of a ring, until dropped.
#[derive(Debug, Default)]
pub struct PageLock {
    ranges: Vec<LockedRange>,
}

/// How far page-locking got.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that the device can read by itself.
    pub locked_bytes: usize,
    /// Why that is not all, or not our doing.
    pub refusal: Option<Refusal>,
}

impl PageLock {
    /// Page-locks the ring of slots of `slot_bytes` that starts at `start`, `bytes` long, which outlives the result.
    pub fn of_ring(context: &Arc<Context>, start: NonNull<u8>, bytes: usize, slot_bytes: usize) -> (Self, Outcome) {
        let mut ranges = Vec::new();
        let outcome = lock_chunks(bytes, slot_bytes, |offset, chunk| {
            // Arithmetic on the address: nothing here reads the memory.
            let first = start.map_addr(|address| address.checked_add(offset).expect("within a mapping"));
            ranges.push(LockedRange::register(context, first, chunk)?);
            Ok(())
        });
        (Self { ranges }, outcome)
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// Calls `lock` with the offset and size of chunk after chunk, halves them where memory is short, and stops where the
/// driver wants no more.
fn lock_chunks(bytes: usize, slot_bytes: usize, mut lock: impl FnMut(usize, usize) -> Result<(), Refusal>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut chunk_slots = (CHUNK_BYTES / slot_bytes).max(1);
    let mut offset = 0;
    while offset < bytes {
        let chunk = (chunk_slots * slot_bytes).min(bytes - offset);
        match lock(offset, chunk) {
            Ok(()) => outcome.locked_bytes += chunk,
            Err(refusal) if refusal.code() == ALREADY_REGISTERED => {
                // The device reads it by itself, and who has locked it will undo it.
                outcome.locked_bytes += chunk;
                outcome.refusal = Some(refusal);
            }
            Err(refusal) if refusal.code() == OUT_OF_MEMORY && chunk > slot_bytes => {
                chunk_slots = (chunk / slot_bytes / 2).max(1);
                continue;
            }
            Err(refusal) => {
                outcome.refusal = Some(refusal);
                break;
            }
        }
        offset += chunk;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: u32) -> Refusal {
        Refusal::Failed { call: "cuMemHostRegister", code }
    }

    #[test]
    fn chunks_of_whole_slots_step_down() {
        const MIB: usize = 1 << 20;
        let check = |slots: usize, slot_mib: usize, limit_mib: usize, locked_mib: usize| {
            let mut locked = Vec::new();
            let outcome = lock_chunks(slots * slot_mib * MIB, slot_mib * MIB, |offset, chunk| {
                let so_far: usize = locked.iter().map(|(_, bytes)| bytes).sum();
                assert!(offset % (slot_mib * MIB) == 0 && chunk % (slot_mib * MIB) == 0, "{offset} {chunk}");
                if so_far + chunk > limit_mib * MIB {
                    return Err(refusal(OUT_OF_MEMORY));
                }
                locked.push((offset, chunk));
                Ok(())
            });
            assert_eq!(outcome.locked_bytes, locked_mib * MIB, "{slots} slots of {slot_mib} MiB, {limit_mib} allowed");
            assert_eq!(outcome.refusal.is_some(), locked_mib < slots * slot_mib);
        };
        check(8, 20, 1000, 160);
        check(8, 20, 64, 60);
        check(8, 300, 1000, 900);
        check(8, 20, 0, 0);
        check(64, 7, 301, 301);
    }

    #[test]
    fn other_refusals_end_it() {
        let check = |code, locked_bytes, calls| {
            let mut count = 0;
            let outcome = lock_chunks(4 << 30, 1 << 30, |_, _| {
                count += 1;
                Err(refusal(code))
            });
            assert_eq!((outcome.locked_bytes, count), (locked_bytes, calls), "{code}");
            assert_eq!(outcome.refusal, Some(refusal(code)));
        };
        check(801, 0, 1);
        check(1, 0, 1);
        check(ALREADY_REGISTERED, 4 << 30, 4);
    }
}
