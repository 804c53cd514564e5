//! The control memory: a wire format between two processes of perhaps different builds.
//!
//! Numbers are of the machine's own byte order; offsets and sizes are bytes.
//!
//! ```text
//!    0  Header, written once by the sidecar before anybody else looks
//!         0  u64  magic "FEEDLINE"; stored last
//!         8  u32  version
//!        12  u32  slot_count
//!        16  u64  slot_bytes
//!        24  u32  description_offset: JSON about the ring, for readers that no message reaches; see `named`
//!        28  u32  description_bytes; 0 where there is none
//!        32  u64 × 4  BLAKE3 of the batch layout
//!   64  SidecarSignals, written by the sidecar
//!        64  u32  ready_signal: grows with every published batch, and with the three words below; futex, shared
//!        68  u32  events: grows when a message for the client lies in the socket
//!        72  u32  ended: 1 when nothing more will be published
//!        76  u32  generation: the stream that batches belong to now; grows with every seek
//!  128  ClientSignals, written by the one that takes batches
//!       128  u32  waiting: 1 while it sleeps for want of a batch, else 0
//!       132  u32  freed_signal: grows when it gave a slot back and has no eventfd to say so; futex, shared
//!       136  u32  consumer: its process, 0 for nobody yet
//!       140  u32  zero
//!       144  u64  next_ticket: generation (high half) and sequence (low half) of the batch that it takes next
//!  192  SlotRecord × slot_count
//!         0  u64  state: bits 0-3 state (1 free, 2 filling, 3 ready, 4 held), 4-35 sequence, 36-63 generation; the last
//!                 two are 0 in a slot that is free or filling
//!         8  u64 × 2  trace: the sum of the rows' hashes
//!        64  u64  epoch
//!        72  u64  batch_index in the epoch
//!        80  u64  first_position, 88 u64 end_position: in global samples
//!        96  u32  row_count, 100 u32 status (1 ok, 2 failed: no rows, the report says why)
//!       104  u32  fault_count, 108 u32 arena_used
//!       112  u32  report_offset in the arena, 116 u32 report_bytes (JSON; 0 for none)
//!       120  u32  values_used, 124 u32 spill_bytes: values that lie in memory which only a socket brings
//! 192 + 128 × slot_count  the description
//! ```
//!
//! Slot `i` of the payload starts at `i × slot_bytes`. Taking a batch is a compare-and-swap of its state word from ready
//! to held with Acquire; giving it back one from held to free (1) with Release, then a bump of `freed_signal` with a
//! futex wake, or a write to the eventfd. Waiting: load `ready_signal` with Acquire, look at the slots, sleep on it while
//! it has that value, in turns of at most 100 ms, as a sidecar that was killed wakes nobody.
//!
//! Every word is atomic: either side may find any value there at any time. Each line has one side that writes it in
//! normal life, so that the sides do not fight over it; only a slot's state line is both's.
#![expect(unsafe_code, reason = "views a mapping as atomics")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{BatchDescriptor, BatchStatus, BatchTicket};
use crate::batch::layout::VALUES_BYTES_MAX;
use crate::batch::{BatchLayout, LayoutHash};
use crate::error::{Error, Result};
use crate::plan::trace::Trace;
use crate::sys::shared::{OnFork, SharedMapping};

/// `FEEDLINE` in ASCII, as the first eight bytes in memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FEEDLINE");

/// Version of everything in this file and of the meaning of state words.
pub const VERSION: u32 = 3;

const PAGE_BYTES: u64 = 64 << 10;

/// What the ring is.
#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    slot_count: AtomicU32,
    slot_bytes: AtomicU64,
    description_offset: AtomicU32,
    description_bytes: AtomicU32,
    layout_hash: [AtomicU64; 4],
}

/// The sidecar's words that a client waits on.
#[repr(C, align(64))]
pub struct SidecarSignals {
    /// Grows when a batch was published or an event counted; the futex.
    pub ready_signal: AtomicU32,
    /// Grows when a message for the client lies in the socket.
    pub events: AtomicU32,
    /// 1 when nothing more will be published.
    pub ended: AtomicU32,
    /// The stream that batches belong to now.
    pub generation: AtomicU32,
    padding: [AtomicU32; 12],
}

/// The client's words.
#[repr(C, align(64))]
pub struct ClientSignals {
    /// 1 while the client sleeps for want of a batch, else 0.
    pub waiting: AtomicU32,
    /// Grows when a slot was given back by a client without the eventfd; a futex of the sidecar's.
    pub freed_signal: AtomicU32,
    /// The process that takes the batches of a named ring, 0 for nobody yet.
    pub consumer: AtomicU32,
    reserved: AtomicU32,
    /// What the consumer of a named ring takes next: generation in the high half, sequence in the low one.
    pub next_ticket: AtomicU64,
    padding: [AtomicU64; 5],
}

/// One slot.
#[repr(C, align(64))]
pub struct SlotRecord {
    /// See [`super::state`].
    pub state: AtomicU64,
    /// [`BatchDescriptor::trace`], for which the next line has no room; written and stable as that.
    trace: [AtomicU64; 2],
    padding: [AtomicU64; 5],
    /// Written before `state` becomes ready, stable until it becomes free.
    descriptor: DescriptorLine,
}

#[repr(C, align(64))]
struct DescriptorLine {
    epoch: AtomicU64,
    batch_index: AtomicU64,
    first_position: AtomicU64,
    end_position: AtomicU64,
    row_count: AtomicU32,
    status: AtomicU32,
    fault_count: AtomicU32,
    arena_used: AtomicU32,
    report_offset: AtomicU32,
    report_bytes: AtomicU32,
    values_used: AtomicU32,
    spill_bytes: AtomicU32,
}

const _: () = assert!(size_of::<Header>() == 64);
const _: () = assert!(size_of::<SidecarSignals>() == 64);
const _: () = assert!(size_of::<ClientSignals>() == 64);
const _: () = assert!(std::mem::offset_of!(ClientSignals, next_ticket) == 16);
const _: () = assert!(size_of::<DescriptorLine>() == 64);
const _: () = assert!(size_of::<SlotRecord>() == 128);

const SIDECAR_OFFSET: usize = 64;
const CLIENT_OFFSET: usize = 128;
const SLOTS_OFFSET: usize = 192;

const STATUS_OK: u32 = 1;
const STATUS_FAILED: u32 = 2;

/// Where a batch's variable parts lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArenaUse {
    /// Bytes that keys and report take.
    pub used: u32,
    /// First byte of the report.
    pub report_offset: u32,
    /// Its bytes; 0 without one.
    pub report_bytes: u32,
    /// Bytes that values take of their room in the slot.
    pub values_used: u32,
    /// Bytes of values that lie in memory of the batch's own; 0 when all fit the slot.
    pub spill_bytes: u32,
}

impl SlotRecord {
    /// Sidecar, while the slot is filling. The state's Release orders these stores.
    pub fn write(&self, batch: &BatchDescriptor, arena: ArenaUse) {
        let line = &self.descriptor;
        line.epoch.store(batch.epoch, Ordering::Relaxed);
        line.batch_index.store(batch.batch_index, Ordering::Relaxed);
        line.first_position.store(batch.first_position, Ordering::Relaxed);
        line.end_position.store(batch.end_position, Ordering::Relaxed);
        line.row_count.store(batch.row_count, Ordering::Relaxed);
        let status = match batch.status {
            BatchStatus::Ok => STATUS_OK,
            BatchStatus::Failed => STATUS_FAILED,
        };
        line.status.store(status, Ordering::Relaxed);
        line.fault_count.store(batch.fault_count, Ordering::Relaxed);
        line.arena_used.store(arena.used, Ordering::Relaxed);
        line.report_offset.store(arena.report_offset, Ordering::Relaxed);
        line.report_bytes.store(arena.report_bytes, Ordering::Relaxed);
        line.values_used.store(arena.values_used, Ordering::Relaxed);
        line.spill_bytes.store(arena.spill_bytes, Ordering::Relaxed);
        for (word, lane) in self.trace.iter().zip(batch.trace.0) {
            word.store(lane, Ordering::Relaxed);
        }
    }

    /// Client, after it took `ticket`: a copy, checked against the layout's limits.
    pub fn read(&self, ticket: BatchTicket, layout: &BatchLayout) -> Result<(BatchDescriptor, ArenaUse)> {
        let line = &self.descriptor;
        let broken = |what: &str, found: u32, limit: u32| {
            Error::protocol(format!("{ticket}: {what} {found} in shared memory, allowed is {limit}"))
        };
        let status = match line.status.load(Ordering::Relaxed) {
            STATUS_OK => BatchStatus::Ok,
            STATUS_FAILED => BatchStatus::Failed,
            found => return Err(broken("status", found, STATUS_FAILED)),
        };
        let batch = BatchDescriptor {
            ticket,
            epoch: line.epoch.load(Ordering::Relaxed),
            batch_index: line.batch_index.load(Ordering::Relaxed),
            first_position: line.first_position.load(Ordering::Relaxed),
            end_position: line.end_position.load(Ordering::Relaxed),
            row_count: line.row_count.load(Ordering::Relaxed),
            status,
            fault_count: line.fault_count.load(Ordering::Relaxed),
            trace: Trace([0, 1].map(|lane| self.trace[lane].load(Ordering::Relaxed))),
        };
        let arena = ArenaUse {
            used: line.arena_used.load(Ordering::Relaxed),
            report_offset: line.report_offset.load(Ordering::Relaxed),
            report_bytes: line.report_bytes.load(Ordering::Relaxed),
            values_used: line.values_used.load(Ordering::Relaxed),
            spill_bytes: line.spill_bytes.load(Ordering::Relaxed),
        };
        let spill_max = VALUES_BYTES_MAX as u32;
        for (what, found, limit) in [
            ("row count", batch.row_count, layout.batch_size),
            ("arena use", arena.used, layout.arena_bytes),
            ("use of the room for values", arena.values_used, layout.values_bytes),
            ("spill", arena.spill_bytes, spill_max),
        ] {
            if found > limit {
                return Err(broken(what, found, limit));
            }
        }
        match arena.report_offset.checked_add(arena.report_bytes) {
            Some(end) if end <= arena.used => Ok((batch, arena)),
            _ => Err(broken("report at", arena.report_offset, arena.used)),
        }
    }
}

/// The mapped control memory.
#[derive(Debug)]
pub struct Control {
    mapping: SharedMapping,
    slot_count: u32,
}

impl Control {
    /// Size of the control memory for `slot_count` slots without a description: whole pages of any kernel.
    pub fn bytes(slot_count: u32) -> u64 {
        Self::bytes_with(slot_count, 0)
    }

    /// Size of the control memory for `slot_count` slots and a description: whole pages of any kernel.
    pub fn bytes_with(slot_count: u32, description_bytes: u32) -> u64 {
        (Self::description_offset(slot_count) + u64::from(description_bytes)).next_multiple_of(PAGE_BYTES)
    }

    fn description_offset(slot_count: u32) -> u64 {
        SLOTS_OFFSET as u64 + u64::from(slot_count) * size_of::<SlotRecord>() as u64
    }

    /// Maps control memory of at least [`Control::bytes`].
    pub fn map(memory: BorrowedFd<'_>, slot_count: u32, on_fork: OnFork) -> io::Result<Self> {
        let bytes = usize::try_from(Self::bytes(slot_count)).map_err(io::Error::other)?;
        Ok(Self { mapping: SharedMapping::map(memory, bytes, on_fork)?, slot_count })
    }

    /// Takes a mapping of at least [`Control::bytes`].
    pub(super) fn over(mapping: SharedMapping, slot_count: u32) -> Self {
        assert!(mapping.bytes() as u64 >= Self::bytes(slot_count), "{} bytes of control memory", mapping.bytes());
        Self { mapping, slot_count }
    }

    /// Sidecar: fills fresh memory; every slot is free. The memory has room for the description, which may be empty.
    pub fn initialise(&self, slot_bytes: u64, layout_hash: LayoutHash, description: &[u8]) {
        let offset = Self::description_offset(self.slot_count) as usize;
        assert!(offset + description.len() <= self.mapping.bytes(), "a description of {} bytes", description.len());
        // SAFETY: within the mapping, by the assert above.
        let place = unsafe { self.mapping.start().add(offset) };
        // SAFETY: `place` is valid for that many bytes, by the assert above, and `description` is private memory.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(description).cast(), description.len()) };
        let header = self.header();
        // Both small: a description has its bound, and there are few slots.
        header.description_offset.store(offset as u32, Ordering::Relaxed);
        header.description_bytes.store(description.len() as u32, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.slot_count.store(self.slot_count, Ordering::Relaxed);
        header.slot_bytes.store(slot_bytes, Ordering::Relaxed);
        for (word, hash) in header.layout_hash.iter().zip(hash_words(layout_hash)) {
            word.store(hash, Ordering::Relaxed);
        }
        for slot in 0..self.slot_count {
            self.slot(slot).state.store(super::state::FREE, Ordering::Relaxed);
        }
        // Release: pairs with an Acquire of whoever attaches by name, and so can come at any time.
        header.magic.store(MAGIC, Ordering::Release);
    }

    /// Client: refuses a ring that means other bytes than we do.
    pub fn verify(&self, slot_bytes: u64, layout_hash: LayoutHash) -> Result<()> {
        let header = self.header();
        let equal = |what: &str, found: u64, expected: u64| {
            if found == expected {
                return Ok(());
            }
            Err(Error::protocol(format!(
                "the ring's {what} is {found:#x}, expected {expected:#x}: install the same Feedline on both sides"
            )))
        };
        // Acquire: pairs with the Release in `initialise`.
        equal("magic", header.magic.load(Ordering::Acquire), MAGIC)?;
        equal("version", header.version.load(Ordering::Relaxed).into(), VERSION.into())?;
        equal("slot count", header.slot_count.load(Ordering::Relaxed).into(), self.slot_count.into())?;
        equal("slot size", header.slot_bytes.load(Ordering::Relaxed), slot_bytes)?;
        for (word, hash) in header.layout_hash.iter().zip(hash_words(layout_hash)) {
            equal("layout hash", word.load(Ordering::Relaxed), hash)?;
        }
        Ok(())
    }

    /// How many slots there are.
    pub fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Addresses of the control memory.
    pub fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }

    fn header(&self) -> &Header {
        // SAFETY: see `at`; 64 bytes at 0.
        unsafe { self.at(0) }
    }

    /// The words that the sidecar bumps.
    pub fn sidecar(&self) -> &SidecarSignals {
        // SAFETY: see `at`; 64 bytes at 64.
        unsafe { self.at(SIDECAR_OFFSET) }
    }

    /// The words that the client writes.
    pub fn client(&self) -> &ClientSignals {
        // SAFETY: see `at`; 64 bytes at 128.
        unsafe { self.at(CLIENT_OFFSET) }
    }

    /// The record of a slot.
    pub fn slot(&self, index: u32) -> &SlotRecord {
        assert!(index < self.slot_count, "slot {index} of {}", self.slot_count);
        // SAFETY: see `at`; `Control::bytes` has room for `slot_count` records, and the index is below it.
        unsafe { self.at(SLOTS_OFFSET + index as usize * size_of::<SlotRecord>()) }
    }

    /// # Safety
    /// `T` consists of atomics only, `offset` is a multiple of its alignment, and `T` ends within the mapping.
    unsafe fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.mapping.bytes());
        // SAFETY: within the mapping, by the caller's word.
        let place = unsafe { self.mapping.start().add(offset) };
        // SAFETY:
        // - the mapping is page-aligned and lives as long as `self`, the offset keeps the alignment;
        // - every bit pattern is a valid atomic, and atomics may be changed from outside behind a shared reference.
        unsafe { place.cast::<T>().as_ref() }
    }
}

fn hash_words(hash: LayoutHash) -> [u64; 4] {
    let word = |index: usize| {
        let bytes = hash.0[index * 8..][..8].try_into().expect("8 bytes");
        u64::from_le_bytes(bytes)
    };
    [word(0), word(1), word(2), word(3)]
}
