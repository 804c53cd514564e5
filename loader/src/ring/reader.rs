//! The client's end of a ring: maps it, takes batches, gives slots back, and sleeps when there is nothing.
//!
//! Everything read from the control memory is checked before it is used as a size or an offset. In a process forked
//! from the one that mapped the ring nothing works: the memory is not there.
#![expect(unsafe_code, reason = "reads memory that the sidecar shares")]

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::layout::{ArenaUse, Control};
use super::writer::{RingDescriptors, pack};
use super::{BatchDescriptor, BatchTicket, SlotIndex, state};
use crate::batch::{BatchLayout, RowEntry, RowForm};
use crate::error::{Error, Result};
use crate::spec::SLOTS_MAX;
use crate::sys::shared::{OnFork, SharedMapping};
use crate::sys::sigbus::Guard;
use crate::sys::{eventfd, futex, memfd};

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Something happened, or a signal handler ran: look again.
    Signalled,
    /// The time is over.
    TimedOut,
}

/// The client's end.
#[derive(Debug)]
pub struct RingReader {
    /// Dropped before the payload is unmapped, as fields are dropped in order.
    guard: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Where the ring has a name, others can cut its memory: then the loss of pages is survived, and told.
    lost: Option<[Guard; 2]>,
    payload: SharedMapping,
    control: Control,
    freed: OwnedFd,
    layout: BatchLayout,
    slots_held: AtomicU32,
}

impl RingReader {
    /// Maps a received ring after checking that it is what `layout` says and can not shrink.
    pub fn map(descriptors: RingDescriptors, layout: &BatchLayout, slot_count: u32) -> Result<Arc<Self>> {
        Self::map_checked(descriptors, layout, slot_count, Memory::Sealed)
    }

    /// Maps a received named ring, which can shrink: lost pages are replaced by zeros, and end it with an error.
    ///
    /// One process takes its batches; the first [`RingReader::take`] makes that this one, or refuses.
    pub fn map_named(descriptors: RingDescriptors, layout: &BatchLayout, slot_count: u32) -> Result<Arc<Self>> {
        Self::map_checked(descriptors, layout, slot_count, Memory::Named)
    }

    fn map_checked(
        descriptors: RingDescriptors,
        layout: &BatchLayout,
        slot_count: u32,
        kind: Memory,
    ) -> Result<Arc<Self>> {
        layout.check()?;
        if slot_count == 0 || slot_count > SLOTS_MAX {
            return Err(Error::protocol(format!("a ring has 1 to {SLOTS_MAX} slots, got {slot_count}")));
        }
        let RingDescriptors { payload, control, freed } = descriptors;
        let payload_bytes = layout
            .slot_bytes
            .checked_mul(u64::from(slot_count))
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| Error::protocol(format!("{slot_count} slots of {} bytes overflow", layout.slot_bytes)))?;
        let check = |memory: &OwnedFd, bytes: u64| {
            let checked = match kind {
                Memory::Sealed => memfd::check_sealed(memory.as_fd(), bytes),
                Memory::Named => memfd::check_size(memory.as_fd(), bytes),
            };
            checked.map_err(|error| Error::protocol(format!("refused the ring's memory: {error}")))
        };
        check(&payload, payload_bytes)?;
        check(&control, Control::bytes(slot_count))?;
        let map = |error| Error::system("map the ring", error);
        let control = Control::map(control.as_fd(), slot_count, OnFork::Leave).map_err(map)?;
        let payload = SharedMapping::map(payload.as_fd(), payload_bytes as usize, OnFork::Leave).map_err(map)?;
        let lost = match kind {
            Memory::Sealed => None,
            Memory::Named => Some([Guard::of(&payload).map_err(map)?, Guard::of(control.mapping()).map_err(map)?]),
        };
        // Guarded already: this is the first look inside.
        control.verify(layout.slot_bytes, layout.layout_hash())?;
        let (guard, slots_held) = (OnceLock::new(), AtomicU32::new(0));
        Ok(Arc::new(Self { guard, lost, payload, control, freed, layout: layout.clone(), slots_held }))
    }

    /// The batch `ticket`, if it is ready. Gives back what waits of older streams on the way.
    pub fn take(self: &Arc<Self>, ticket: BatchTicket) -> Result<Option<HeldSlot>> {
        self.check_owner()?;
        if let Some(lost) = &self.lost {
            self.claim(lost, ticket)?;
        }
        let mut taken = None;
        for index in 0..self.control.slot_count() {
            let record = self.control.slot(index);
            let found = record.state.load(Ordering::Relaxed);
            if taken.is_none() && state::take(&record.state, ticket) {
                self.slots_held.fetch_add(1, Ordering::Relaxed);
                // Owned from here on: an error below gives the slot back.
                taken = Some(HeldSlot { ring: Arc::clone(self), index, ticket, batch: None, spill: None });
            } else if state::ready_generation(found).is_some_and(|generation| generation < ticket.generation)
                && state::discard(&record.state, found)
            {
                self.signal_freed();
            }
        }
        let Some(mut slot) = taken else { return Ok(None) };
        if self.lost.is_some() {
            // Release: for another that goes on from here, should this process end.
            self.control.client().next_ticket.store(pack(ticket) + 1, Ordering::Release);
        }
        let record = self.control.slot(slot.index);
        slot.batch = Some(record.read(ticket, &self.layout)?);
        Ok(Some(slot))
    }

    /// Makes this process the one that takes the batches of a named ring, and checks that all of it is there.
    fn claim(&self, lost: &[Guard; 2], ticket: BatchTicket) -> Result<()> {
        let own = std::process::id();
        let consumer = &self.control.client().consumer;
        let found = consumer.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        let pages: u32 = lost.iter().map(Guard::faults).sum();
        match found {
            _ if pages > 0 => Err(Error::protocol(format!(
                "{pages} pages of the named ring's memory were lost before {ticket}: another process of this user cut it; \
                 open a new one"
            ))),
            Err(other) if other != own => Err(Error::config(format!(
                "process {other} takes the batches of this named ring: one process does; open another stream here"
            ))),
            _ => Ok(()),
        }
    }

    /// The number to give to [`RingReader::wait`]. Read it *before* [`RingReader::take`] and
    /// [`RingReader::events`]: what comes after the reading ends the wait.
    pub fn signal(&self) -> u32 {
        if self.check_owner().is_err() {
            return 0;
        }
        // Acquire: pairs with the Release in `RingWriter::bump`.
        self.control.sidecar().ready_signal.load(Ordering::Acquire)
    }

    /// Sleeps until the signal differs from `seen`, or for `timeout`. A sidecar that was killed cannot wake anybody:
    /// wait in short turns, and look at the socket between them.
    pub fn wait(&self, seen: u32, timeout: Duration) -> Result<WaitOutcome> {
        self.check_owner()?;
        let waiting = &self.control.client().waiting;
        waiting.store(1, Ordering::Relaxed);
        let outcome = futex::wait(&self.control.sidecar().ready_signal, seen, timeout);
        waiting.store(0, Ordering::Relaxed);
        match outcome.map_err(|error| Error::system("wait for a batch", error))? {
            futex::Wait::Woken | futex::Wait::Interrupted => Ok(WaitOutcome::Signalled),
            futex::Wait::TimedOut => Ok(WaitOutcome::TimedOut),
        }
    }

    /// Grows when the sidecar has sent a message over the socket.
    pub fn events(&self) -> u32 {
        if self.check_owner().is_err() {
            return 0;
        }
        // Acquire: pairs with the Release in `RingWriter::notify_events`.
        self.control.sidecar().events.load(Ordering::Acquire)
    }

    /// The stream that batches belong to now, as the sidecar says.
    pub fn generation(&self) -> u32 {
        if self.check_owner().is_err() {
            return 0;
        }
        // Acquire: pairs with the Release in `RingWriter::reclaim_ready`.
        self.control.sidecar().generation.load(Ordering::Acquire)
    }

    /// Slots that hold a finished batch which nobody has taken yet.
    pub fn slots_ready(&self) -> u32 {
        if self.check_owner().is_err() {
            return 0;
        }
        let ready =
            |index: &u32| state::ready_generation(self.control.slot(*index).state.load(Ordering::Relaxed)).is_some();
        (0..self.control.slot_count()).filter(ready).count() as u32
    }

    /// Slots that this process has not yet given back.
    pub fn slots_held(&self) -> u32 {
        self.slots_held.load(Ordering::Relaxed)
    }

    /// How many slots there are.
    pub fn slot_count(&self) -> u32 {
        self.control.slot_count()
    }

    /// What a slot looks like.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// First byte and size of all slots together, for page-locking.
    pub fn payload(&self) -> Result<(NonNull<u8>, usize)> {
        self.check_owner()?;
        Ok((self.payload.start(), self.payload.bytes()))
    }

    /// Keeps `guard` until just before the payload is unmapped: what undoes its page-locking. Once; later ones come back.
    pub fn keep_until_unmapped(&self, guard: Box<dyn Any + Send + Sync>) -> Result<(), Box<dyn Any + Send + Sync>> {
        self.guard.set(guard)
    }

    /// Whether a guard is kept.
    pub fn has_guard(&self) -> bool {
        self.guard.get().is_some()
    }

    /// Refuses in a process forked from the one that mapped the ring.
    pub fn check_owner(&self) -> Result<()> {
        let (owner, here) = (self.payload.owner(), std::process::id());
        if owner == here {
            return Ok(());
        }
        Err(Error::config(format!(
            "this batch or ring belongs to process {owner} and cannot be used in process {here}, which was forked from \
             it: copy what the child needs before the fork, or make a new iterator in the child"
        )))
    }

    fn signal_freed(&self) {
        // Fails only when the descriptor is no eventfd; the sidecar looks again at its next chance anyway.
        let signalled = eventfd::signal(self.freed.as_fd());
        debug_assert!(signalled.is_ok(), "{signalled:?}");
    }
}

/// What keeps the memory of a ring as long as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// The kernel: its size is sealed.
    Sealed,
    /// Nobody.
    Named,
}

/// A batch that this process holds; dropped, its slot goes back to the sidecar.
#[derive(Debug)]
pub struct HeldSlot {
    ring: Arc<RingReader>,
    index: u32,
    ticket: BatchTicket,
    /// Set by `take` before anybody else sees the slot.
    batch: Option<(BatchDescriptor, ArenaUse)>,
    spill: Option<SharedMapping>,
}

impl HeldSlot {
    /// Which slot it is.
    pub fn index(&self) -> SlotIndex {
        SlotIndex(self.index)
    }

    /// The ring that it belongs to.
    pub fn ring(&self) -> &Arc<RingReader> {
        &self.ring
    }

    /// What the sidecar says about the batch.
    pub fn descriptor(&self) -> BatchDescriptor {
        self.batch().0
    }

    /// First byte and size of a field: the rows that the batch has, one after the other. Valid while `self` lives, in
    /// this process; to be read and written by pointer.
    pub fn field(&self, field: usize) -> Result<(NonNull<u8>, usize)> {
        self.ring.check_owner()?;
        let place = &self.ring.layout.fields[field];
        let bytes = place.row_bytes * u64::from(self.descriptor().row_count);
        Ok((self.place(place.offset, bytes), bytes as usize))
    }

    /// Copies a field's rows, all that the batch has, into private memory of exactly their size.
    pub fn copy_field(&self, field: usize, target: &mut [u8]) -> Result<()> {
        let (_, bytes) = self.field(field)?;
        assert!(target.len() == bytes, "field {field}: {} bytes for {bytes}", target.len());
        self.copy_out(self.ring.layout.fields[field].offset, target);
        Ok(())
    }

    /// The key of a row; empty when it has none.
    pub fn key(&self, row: u32) -> Result<String> {
        self.ring.check_owner()?;
        self.check_row(row);
        self.key_of(row)
    }

    /// The keys of all rows.
    pub fn keys(&self) -> Result<Vec<String>> {
        self.ring.check_owner()?;
        (0..self.descriptor().row_count).map(|row| self.key_of(row)).collect()
    }

    fn key_of(&self, row: u32) -> Result<String> {
        let mut word = [0; 8];
        self.copy_out(self.ring.layout.entries_offset + u64::from(row) * 8, &mut word);
        let entry = RowEntry::from_word(u64::from_ne_bytes(word));
        if entry == RowEntry::NONE {
            return Ok(String::new());
        }
        let used = self.batch().1.used;
        if entry.offset.checked_add(entry.len).is_none_or(|end| end > used) {
            return Err(Error::protocol(format!(
                "{}: the key of row {row} is said to lie at {} + {} of {used} bytes",
                self.ticket, entry.offset, entry.len
            )));
        }
        let mut key = vec![0; entry.len as usize];
        self.copy_out(self.ring.layout.arena_offset + u64::from(entry.offset), &mut key);
        Ok(into_text(key))
    }

    /// Whether the row is a sample of the epoch, not a repeat that fills the batch.
    pub fn valid(&self, row: u32) -> Result<bool> {
        self.ring.check_owner()?;
        self.check_row(row);
        let mut byte = [0];
        self.copy_out(self.ring.layout.valid_offset + u64::from(row), &mut byte);
        Ok(byte[0] != 0)
    }

    /// For each row, whether it is a sample of the epoch.
    pub fn valid_rows(&self) -> Result<Vec<bool>> {
        self.ring.check_owner()?;
        let mut bytes = vec![0; self.descriptor().row_count as usize];
        self.copy_out(self.ring.layout.valid_offset, &mut bytes);
        Ok(bytes.into_iter().map(|byte| byte != 0).collect())
    }

    /// The batch's fault report, empty when it has none.
    pub fn report(&self) -> Result<Vec<u8>> {
        self.ring.check_owner()?;
        let arena = self.batch().1;
        let mut report = vec![0; arena.report_bytes as usize];
        self.copy_out(self.ring.layout.arena_offset + u64::from(arena.report_offset), &mut report);
        Ok(report)
    }

    /// Bytes of values that found no room in the slot; where there are any, [`HeldSlot::attach_spill`] comes before the
    /// first look at values.
    pub fn spill_bytes(&self) -> u32 {
        self.batch().1.spill_bytes
    }

    /// Maps the memory that holds those values, after checking that it is of that size and can not shrink. It is
    /// unmapped with the slot's release.
    pub fn attach_spill(&mut self, memory: BorrowedFd<'_>) -> Result<()> {
        self.ring.check_owner()?;
        let bytes = self.spill_bytes();
        memfd::check_sealed(memory, bytes.into())
            .map_err(|error| Error::protocol(format!("{}: refused the spilled values: {error}", self.ticket)))?;
        let mapping = SharedMapping::map(memory, bytes as usize, OnFork::Leave)
            .map_err(|error| Error::system("map spilled values", error))?;
        self.spill = Some(mapping);
        Ok(())
    }

    /// Where the values of a field of varying rows lie, row by row, each checked to end within the slot's values or
    /// within the spill.
    pub fn entries(&self, field: usize) -> Result<Vec<RowEntry>> {
        self.ring.check_owner()?;
        let place = &self.ring.layout.fields[field];
        assert!(place.form != RowForm::Fixed, "field {field} has rows of fixed size");
        let mut words = vec![0; self.descriptor().row_count as usize * 8];
        self.copy_out(place.offset, &mut words);
        let mut entries = Vec::with_capacity(words.len() / 8);
        for (row, word) in words.chunks_exact(8).enumerate() {
            let entry = RowEntry::from_word(u64::from_ne_bytes(word.try_into().expect("8 bytes")));
            self.check_entry(field, row, entry)?;
            entries.push(entry);
        }
        Ok(entries)
    }

    fn check_entry(&self, field: usize, row: usize, entry: RowEntry) -> Result<()> {
        let (room, arena) = (self.ring.layout.values_bytes, self.batch().1);
        let mapped = self.spill.as_ref().map_or(0, SharedMapping::bytes);
        let (start, limit) = match entry.offset.checked_sub(room) {
            // An empty value may lie at the very end of the room.
            Some(start) if start > 0 || mapped > 0 => (start as usize, mapped),
            _ => (entry.offset as usize, arena.values_used as usize),
        };
        let align = self.ring.layout.fields[field].form.align();
        let is_within = start.checked_add(entry.len as usize).is_some_and(|end| end <= limit);
        if is_within && u64::from(entry.offset).is_multiple_of(align) {
            return Ok(());
        }
        Err(Error::protocol(format!(
            "{}: the value of row {row}, field {field}, is said to lie at {} + {}: of {} bytes in the slot's {room} and \
             {mapped} spilled ones",
            self.ticket, entry.offset, entry.len, arena.values_used
        )))
    }

    /// First byte of a value. Valid while `self` lives, in this process; to be read and written by pointer.
    ///
    /// # Panics
    /// If `entry` is none of [`HeldSlot::entries`].
    pub fn value(&self, entry: RowEntry) -> Result<NonNull<u8>> {
        self.ring.check_owner()?;
        let (room, len) = (self.ring.layout.values_bytes, u64::from(entry.len));
        match (&self.spill, entry.offset.checked_sub(room)) {
            (Some(spill), Some(start)) => {
                let end = u64::from(start) + len;
                assert!(end <= spill.bytes() as u64, "{start} + {len} of {} spilled bytes", spill.bytes());
                // SAFETY: within the mapping, by the assert above.
                Ok(unsafe { spill.start().add(start as usize) })
            }
            _ => {
                assert!(u64::from(entry.offset) + len <= room.into(), "{} + {len} of {room}", entry.offset);
                Ok(self.place(self.ring.layout.values_offset + u64::from(entry.offset), len))
            }
        }
    }

    /// Copies a value into private memory of exactly its size.
    ///
    /// # Panics
    /// As [`HeldSlot::value`], or if the sizes differ.
    pub fn copy_value(&self, entry: RowEntry, target: &mut [u8]) -> Result<()> {
        let bytes = target.len();
        assert!(bytes == entry.len as usize, "{bytes} bytes for a value of {}", entry.len);
        let source = self.value(entry)?;
        // SAFETY:
        // - `source` is valid for `bytes`, by `value`, and `target` is private memory: no overlap;
        // - while the slot is held the sidecar does not write it, and it has sealed and let go of the spill.
        unsafe { source.copy_to_nonoverlapping(NonNull::from(target).cast(), bytes) };
        Ok(())
    }

    fn batch(&self) -> &(BatchDescriptor, ArenaUse) {
        self.batch.as_ref().expect("set by `take`")
    }

    fn check_row(&self, row: u32) {
        let rows = self.descriptor().row_count;
        assert!(row < rows, "row {row} of {rows}");
    }

    fn place(&self, start: u64, bytes: u64) -> NonNull<u8> {
        let slot_bytes = self.ring.layout.slot_bytes;
        assert!(start.checked_add(bytes).is_some_and(|end| end <= slot_bytes), "{start} + {bytes} of {slot_bytes}");
        let offset = u64::from(self.index) * slot_bytes + start;
        // SAFETY: the payload is `slot_count` times `slot_bytes` long, the index is below `slot_count`, and the range
        // ends within its slot by the assert above; the whole size fits an isize, by `map`.
        unsafe { self.ring.payload.start().add(offset as usize) }
    }

    fn copy_out(&self, start: u64, target: &mut [u8]) {
        let bytes = target.len();
        let source = self.place(start, bytes as u64);
        // SAFETY:
        // - `source` is valid for `bytes`, by `place`, and `target` is private memory: no overlap;
        // - while the slot is held the sidecar does not write it.
        unsafe { source.copy_to_nonoverlapping(NonNull::from(target).cast(), bytes) };
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        // A forked child has a copy of this object, but not of the memory.
        if self.ring.check_owner().is_err() {
            return;
        }
        let released = state::release(&self.ring.control.slot(self.index).state, self.ticket);
        // A named ring's word may be lost, or another process's work.
        debug_assert!(released.is_ok() || self.ring.lost.is_some(), "slot {}: held, yet {released:x?}", self.index);
        self.ring.slots_held.fetch_sub(1, Ordering::Relaxed);
        self.ring.signal_freed();
    }
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
