//! The sidecar's end of a ring: makes it, lends slots to be filled, and watches what comes back.
//!
//! One feeder thread acquires; what is done with a slot then is in [`super::writable`]. Nothing here waits: a full ring
//! is `None`, and [`RingWriter::freed_fd`] says when to look again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::doorbell::Doorbell;
use super::layout::Control;
use super::named::{Label, NamedMemory};
use super::reserved::{self, Reserved};
use super::state::{self, Lent};
use super::writable::WritableSlot;
use super::{BatchTicket, RingFault, SlotIndex};
use crate::batch::BatchLayout;
use crate::error::{Error, Result};
use crate::spec::SLOTS_MAX;
use crate::sys::memory::{Mebibytes, MemoryReport};
use crate::sys::shared::{OnFork, SharedMapping};
use crate::sys::sigbus::Guard;
use crate::sys::{eventfd, futex, memfd};

/// What the client needs of a ring.
#[derive(Debug)]
pub struct RingDescriptors {
    /// The slots.
    pub payload: OwnedFd,
    /// The control memory.
    pub control: OwnedFd,
    /// The client signals this eventfd when it gives a slot back.
    pub freed: OwnedFd,
}

/// How many slots are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCounts {
    /// Nobody's.
    pub free: u32,
    /// Being filled.
    pub filling: u32,
    /// Waiting to be taken.
    pub ready: u32,
    /// With the client.
    pub held: u32,
}

/// The sidecar's own word on a slot; the client cannot reach it.
pub(super) const PRIVATE_FREE: u8 = 0;
pub(super) const PRIVATE_FILLING: u8 = 1;
pub(super) const PRIVATE_LENT: u8 = 2;

/// What the sidecar alone knows of a slot.
#[derive(Debug)]
pub(super) struct PrivateSlot {
    pub(super) life: AtomicU8,
    /// Packed ticket (generation, sequence) of the batch that is lent; read only when `life` says so.
    pub(super) ticket: AtomicU64,
    /// Bytes of the arena that keys have taken.
    pub(super) arena_used: AtomicU64,
    /// Bytes of the room for values that are taken.
    pub(super) values_used: AtomicU64,
    /// True while a thread stores into the row: two at once would be a data race, so the second panics.
    pub(super) row_busy: Box<[AtomicBool]>,
}

/// The sidecar's end.
#[derive(Debug)]
pub struct RingWriter {
    // The thread goes before the guards, and those before the mappings that they guard: fields drop in this order.
    doorbell: Option<Doorbell>,
    payload_guard: Guard,
    control_guard: Guard,
    pub(super) payload: SharedMapping,
    pub(super) control: Arc<Control>,
    freed: OwnedFd,
    layout: BatchLayout,
    pub(super) slots: Box<[PrivateSlot]>,
    /// The first broken state word, as (slot + 1, found, expected); 0 in the first for none.
    broken: [AtomicU64; 3],
    name: Option<Name>,
    _reserved: Reserved,
}

/// What a named ring has beside others.
#[derive(Debug)]
struct Name {
    name: String,
    /// See [`super::named`].
    _alive: OwnedFd,
}

impl RingWriter {
    /// Makes a ring with all its memory reserved.
    ///
    /// Refuses with [`Error::Resources`] before any page is touched when the machine or the control group cannot hold
    /// it.
    pub fn create(layout: &BatchLayout, slot_count: u32) -> Result<(Self, RingDescriptors)> {
        Self::create_within(layout, slot_count, &MemoryReport::read())
    }

    pub(super) fn create_within(
        layout: &BatchLayout,
        slot_count: u32,
        memory: &MemoryReport,
    ) -> Result<(Self, RingDescriptors)> {
        let payload_bytes = check_memory(layout, slot_count, memory)?;
        let reserve = |name: &str, bytes: u64| {
            memfd::create_reserved(name, bytes).map_err(|error| match error.raw_os_error() {
                Some(libc::ENOSPC | libc::ENOMEM) => {
                    refusal(layout, slot_count, memory, &format!("reserving it failed: {error}"))
                }
                _ => Error::system("make shared memory for a ring", error),
            })
        };
        let payload = reserve("feedline-payload", payload_bytes)?;
        let control = reserve("feedline-control", Control::bytes(slot_count))?;
        let (freed, own_freed) = make_freed()?;
        let writer = Self::over(layout, slot_count, payload.as_fd(), control.as_fd(), own_freed)
            .map_err(|error| Error::system("map a ring", error))?;
        Ok((writer, RingDescriptors { payload, control, freed }))
    }

    /// Makes a ring in named segments, which others of this user can attach to, with all its memory reserved.
    ///
    /// Refuses as [`RingWriter::create`] does, and when the file system of named segments cannot hold it.
    pub fn create_named(layout: &BatchLayout, slot_count: u32, label: &Label<'_>) -> Result<(Self, RingDescriptors)> {
        check_memory(layout, slot_count, &MemoryReport::read())?;
        let NamedMemory { name, slots, control, slots_memory, control_memory, description, alive } =
            NamedMemory::create(layout, slot_count, label)?;
        let (freed, own_freed) = make_freed()?;
        let heard = freed.try_clone().map_err(|error| Error::system("duplicate an eventfd", error))?;
        let make = || {
            let reserved = Reserved::new(slots_memory.as_fd())?;
            let control = Control::over(control, slot_count);
            let mut writer = Self::in_memory(layout, slots, control, own_freed, reserved, &description)?;
            writer.name = Some(Name { name, _alive: alive });
            writer.doorbell = Some(Doorbell::start(Arc::clone(&writer.control), heard)?);
            Ok(writer)
        };
        let writer = make().map_err(|error: std::io::Error| Error::system("map a named ring", error))?;
        Ok((writer, RingDescriptors { payload: slots_memory, control: control_memory, freed }))
    }

    /// A ring in given memory of the right size.
    pub(super) fn over(
        layout: &BatchLayout,
        slot_count: u32,
        payload: BorrowedFd<'_>,
        control: BorrowedFd<'_>,
        freed: OwnedFd,
    ) -> std::io::Result<Self> {
        let payload_bytes = usize::try_from(layout.slot_bytes).map_err(std::io::Error::other)? * slot_count as usize;
        let reserved = Reserved::new(payload)?;
        let payload = SharedMapping::map(payload, payload_bytes, OnFork::Leave)?;
        let control = Control::map(control, slot_count, OnFork::Leave)?;
        Self::in_memory(layout, payload, control, freed, reserved, &[])
    }

    fn in_memory(
        layout: &BatchLayout,
        payload: SharedMapping,
        control: Control,
        freed: OwnedFd,
        reserved: Reserved,
        description: &[u8],
    ) -> std::io::Result<Self> {
        let (payload_guard, control_guard) = (Guard::of(&payload)?, Guard::of(control.mapping())?);
        control.initialise(layout.slot_bytes, layout.layout_hash(), description);
        let slots = (0..control.slot_count())
            .map(|_| PrivateSlot {
                life: AtomicU8::new(PRIVATE_FREE),
                ticket: AtomicU64::new(0),
                arena_used: AtomicU64::new(0),
                values_used: AtomicU64::new(0),
                row_busy: (0..layout.batch_size).map(|_| AtomicBool::new(false)).collect(),
            })
            .collect();
        Ok(Self {
            doorbell: None,
            payload_guard,
            control_guard,
            payload,
            control: Arc::new(control),
            freed,
            layout: layout.clone(),
            slots,
            broken: Default::default(),
            name: None,
            _reserved: reserved,
        })
    }

    /// The name of a named ring: its segments are this and `.slots` or `.control`.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| name.name.as_str())
    }

    /// Tells readers that nothing more will be published, and wakes them.
    pub fn end(&self) {
        // Release: pairs with the Acquire of a reader, which then looks once more for what was published before.
        self.control.sidecar().ended.store(1, Ordering::Release);
        self.bump();
    }

    /// A free slot, if there is one. Called by one thread at a time; it never waits.
    pub fn acquire(self: &Arc<Self>) -> Result<Option<WritableSlot>, RingFault> {
        self.check()?;
        for index in 0..self.control.slot_count() {
            if self.collect(index)? != PRIVATE_FREE {
                continue;
            }
            let slot = &self.slots[index as usize];
            state::acquire(&self.control.slot(index).state).map_err(|found| self.fault(index, found, state::FREE))?;
            slot.life.store(PRIVATE_FILLING, Ordering::Relaxed);
            slot.arena_used.store(0, Ordering::Relaxed);
            slot.values_used.store(0, Ordering::Relaxed);
            return Ok(Some(WritableSlot::new(Arc::clone(self), index)));
        }
        Ok(None)
    }

    /// Looks whether the client broke the ring, as [`RingWriter::acquire`] would, and takes no slot. Called by the thread
    /// that acquires: of a ring without a free slot it wants none, and would never find out.
    pub fn look(&self) -> Result<(), RingFault> {
        self.check()?;
        (0..self.control.slot_count()).try_for_each(|index| self.collect(index).map(drop))
    }

    /// Looks whether a lent slot came back, and returns the sidecar's word on it.
    fn collect(&self, index: u32) -> Result<u8, RingFault> {
        let slot = &self.slots[index as usize];
        // Acquire: pairs with the Release in `publish`, which sets the ticket, and in `WritableSlot::drop`.
        let life = slot.life.load(Ordering::Acquire);
        if life != PRIVATE_LENT {
            return Ok(life);
        }
        let ticket = unpack(slot.ticket.load(Ordering::Relaxed));
        match state::observe(&self.control.slot(index).state, ticket) {
            Ok(Lent::Free) => {
                slot.life.store(PRIVATE_FREE, Ordering::Relaxed);
                Ok(PRIVATE_FREE)
            }
            Ok(Lent::Filling | Lent::Ready | Lent::Held) => Ok(PRIVATE_LENT),
            Err(found) => Err(self.fault(index, found, state::ready(ticket))),
        }
    }

    /// Readable when the client has given back a slot. Watch it edge-triggered and never read it: the client shares
    /// it, and could make a read block. What the sidecar itself frees (a dropped [`WritableSlot`],
    /// [`RingWriter::reclaim_ready`]) is not told here.
    pub fn freed_fd(&self) -> BorrowedFd<'_> {
        self.freed.as_fd()
    }

    /// Whether the client says that it sleeps for want of a batch. For telemetry only.
    pub fn client_waiting(&self) -> bool {
        self.control.client().waiting.load(Ordering::Relaxed) != 0
    }

    /// How many slots are in each state now. A slot with a broken word counts as held.
    pub fn slots_by_state(&self) -> SlotCounts {
        let mut counts = SlotCounts::default();
        for (index, slot) in self.slots.iter().enumerate() {
            let count = match slot.life.load(Ordering::Acquire) {
                PRIVATE_FREE => &mut counts.free,
                PRIVATE_FILLING => &mut counts.filling,
                _ => {
                    let ticket = unpack(slot.ticket.load(Ordering::Relaxed));
                    match state::observe(&self.control.slot(index as u32).state, ticket) {
                        Ok(Lent::Free) => &mut counts.free,
                        Ok(Lent::Filling) => &mut counts.filling,
                        Ok(Lent::Ready) => &mut counts.ready,
                        // From another thread than the feeder's, a slot in the making of its next batch looks broken.
                        Ok(Lent::Held) | Err(_) => &mut counts.held,
                    }
                }
            };
            *count += 1;
        }
        counts
    }

    /// Tells the client that a message lies in the socket, and wakes it.
    pub fn notify_events(&self) {
        // Release: pairs with the Acquire in `RingReader::events`; the message was sent before.
        self.control.sidecar().events.fetch_add(1, Ordering::Release);
        self.bump();
    }

    /// Begins stream `older_than_generation`: takes back every batch that waits and belongs to an older one; those that the client took first stay with
    /// it. Returns how many.
    pub fn reclaim_ready(&self, older_than_generation: u32) -> u32 {
        // Release: pairs with the Acquire of a reader that no message tells of the seek.
        self.control.sidecar().generation.store(older_than_generation, Ordering::Release);
        self.bump();
        let mut reclaimed = 0;
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.life.load(Ordering::Acquire) != PRIVATE_LENT {
                continue;
            }
            let ticket = unpack(slot.ticket.load(Ordering::Relaxed));
            // `life` stays: `collect` finds the word free, as if the client had given the slot back.
            if ticket.generation < older_than_generation
                && state::reclaim(&self.control.slot(index as u32).state, ticket)
            {
                reclaimed += 1;
            }
        }
        reclaimed
    }

    /// Whether the client has broken the ring: [`RingWriter::acquire`] says how.
    pub fn poisoned(&self) -> bool {
        self.check().is_err()
    }

    /// How many slots there are.
    pub fn slot_count(&self) -> u32 {
        self.control.slot_count()
    }

    /// What a slot looks like.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// The first fault, if any.
    pub fn check(&self) -> Result<(), RingFault> {
        let pages = self.payload_guard.faults() + self.control_guard.faults();
        if pages > 0 {
            return Err(RingFault::Memory { pages });
        }
        // Acquire: pairs with the Release in `fault`.
        match self.broken[0].load(Ordering::Acquire) {
            0 => Ok(()),
            slot => Err(RingFault::State {
                slot: SlotIndex((slot - 1) as u32),
                found: self.broken[1].load(Ordering::Relaxed),
                expected: self.broken[2].load(Ordering::Relaxed),
            }),
        }
    }

    /// Notes a broken state word. A lost page explains it better if there is one.
    pub(super) fn fault(&self, index: u32, found: u64, expected: u64) -> RingFault {
        if self.broken[0].load(Ordering::Relaxed) == 0 {
            self.broken[1].store(found, Ordering::Relaxed);
            self.broken[2].store(expected, Ordering::Relaxed);
            self.broken[0].store(u64::from(index) + 1, Ordering::Release);
        }
        self.check().err().unwrap_or(RingFault::State { slot: SlotIndex(index), found, expected })
    }

    /// Wakes a waiting client.
    pub(super) fn bump(&self) {
        let signal = &self.control.sidecar().ready_signal;
        // Release: pairs with the Acquire in `RingReader::signal`. Who sees the new value sees what was published
        // before it; who does not is kept from sleeping by the futex's own comparison.
        signal.fetch_add(1, Ordering::Release);
        // Waking can fail for a broken address only, and this one is mapped.
        let woken = futex::wake_all(signal);
        debug_assert!(woken.is_ok(), "{woken:?}");
    }
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        self.end();
    }
}

/// Refuses what memory cannot hold, before any page is touched; else the bytes of all slots.
fn check_memory(layout: &BatchLayout, slot_count: u32, memory: &MemoryReport) -> Result<u64> {
    if slot_count == 0 || slot_count > SLOTS_MAX {
        return Err(Error::config(format!("a ring has 1 to {SLOTS_MAX} slots, got {slot_count}")));
    }
    let payload_bytes = layout
        .slot_bytes
        .checked_mul(u64::from(slot_count))
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| Error::config(format!("{slot_count} slots of {} bytes overflow", layout.slot_bytes)))?;
    let missing_bytes = reserved::missing_bytes();
    let free_bytes = memory.free_bytes().map(|bytes| bytes.saturating_sub(missing_bytes));
    let needed_bytes = payload_bytes.saturating_add(Control::bytes(slot_count));
    if let Some(free_bytes) = free_bytes.filter(|&free| free < needed_bytes) {
        let holes = match missing_bytes {
            0 => String::new(),
            bytes => format!(", as holes that clients made in other rings will take {} back", Mebibytes(bytes)),
        };
        let reason = format!("only {} can be had{holes}", Mebibytes(free_bytes));
        return Err(refusal(layout, slot_count, memory, &reason));
    }
    Ok(payload_bytes)
}

fn refusal(layout: &BatchLayout, slot_count: u32, memory: &MemoryReport, reason: &str) -> Error {
    Error::Resources {
        message: format!(
            "the ring needs {slot_count} slots x {} = {}, but {reason} ({memory}): lower the number of slots or the batch \
             size, or raise the memory limit",
            Mebibytes(layout.slot_bytes),
            Mebibytes(layout.slot_bytes * u64::from(slot_count))
        ),
    }
}

/// The client's descriptor of what it signals when it gives a slot back, and the sidecar's.
fn make_freed() -> Result<(OwnedFd, OwnedFd)> {
    let freed = eventfd::create().map_err(|error| Error::system("make an eventfd", error))?;
    let own_freed = freed.try_clone().map_err(|error| Error::system("duplicate an eventfd", error))?;
    Ok((freed, own_freed))
}

pub(super) fn pack(ticket: BatchTicket) -> u64 {
    u64::from(ticket.generation) << 32 | u64::from(ticket.sequence)
}

fn unpack(word: u64) -> BatchTicket {
    BatchTicket { generation: (word >> 32) as u32, sequence: word as u32 }
}
