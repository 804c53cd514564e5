//! A slot in the sidecar's hands: rows are stored by any number of threads, and the last of them publishes.
#![expect(unsafe_code, reason = "stores into memory that the client shares")]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::layout::ArenaUse;
use super::spill::{SealedSpill, Spill};
use super::writer::{PRIVATE_FREE, PRIVATE_LENT, PrivateSlot, RingWriter, pack};
use super::{BatchDescriptor, SlotIndex, bump, state};
use crate::batch::layout::VALUES_BYTES_MAX;
use crate::batch::{BatchLayout, RowEntry, RowForm};

/// A slot that its holders alone may write. Dropped unpublished, it is free again.
#[derive(Debug)]
pub struct WritableSlot {
    ring: Arc<RingWriter>,
    index: u32,
    published: AtomicBool,
    spill: Spill,
}

impl WritableSlot {
    /// Which one it is.
    pub fn index(&self) -> SlotIndex {
        SlotIndex(self.index)
    }

    /// The ring that it belongs to.
    pub fn ring(&self) -> &Arc<RingWriter> {
        &self.ring
    }

    /// What the slot looks like.
    pub fn layout(&self) -> &BatchLayout {
        self.ring.layout()
    }

    /// Copies one row into its place. Rows may be stored by several threads at once, each row by one at a time, and
    /// again as often as needed.
    ///
    /// # Panics
    /// If field or row is none of the layout's, `bytes` is not exactly a row, the slot is published, or another
    /// thread is storing into the same row.
    pub fn store(&self, field: usize, row: u32, bytes: &[u8]) {
        let row_bytes = self.ring.layout().fields[field].row_bytes;
        assert!(bytes.len() as u64 == row_bytes, "field {field}: {} bytes for a row of {row_bytes}", bytes.len());
        self.store_strip(field, row, 0, bytes);
    }

    /// Copies a part of a row, `offset` bytes from its start; otherwise as [`WritableSlot::store`].
    pub fn store_strip(&self, field: usize, row: u32, offset: usize, bytes: &[u8]) {
        let layout = self.ring.layout();
        let place = &layout.fields[field];
        assert!(row < layout.batch_size, "row {row} of {}", layout.batch_size);
        let end = (offset as u64).checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= place.row_bytes), "{offset} + {} of {}", bytes.len(), place.row_bytes);
        let start = place.offset + u64::from(row) * place.row_bytes + offset as u64;
        let _busy = self.enter(row);
        self.copy_in(start, bytes);
    }

    /// Stores the key of a row; false, and the row has none, when the arena is full. Each call takes new room, also for
    /// a row that had a key already.
    ///
    /// # Panics
    /// As [`WritableSlot::store`].
    pub fn store_key(&self, row: u32, key: &str) -> bool {
        let layout = self.ring.layout();
        assert!(row < layout.batch_size, "row {row} of {}", layout.batch_size);
        let _busy = self.enter(row);
        let taken = bump::take(&self.private().arena_used, key.len() as u64, 1, layout.keys_bytes().into());
        // Both below the arena's size, which is 32-bit.
        let entry = taken.map_or(RowEntry::NONE, |offset| RowEntry { offset: offset as u32, len: key.len() as u32 });
        if let Some(offset) = taken {
            self.copy_in(layout.arena_offset + offset, key.as_bytes());
        }
        self.copy_in(layout.entries_offset + u64::from(row) * 8, &entry.to_word().to_ne_bytes());
        taken.is_some()
    }

    /// Stores the value of a row of a field of varying rows: in the slot where there is room, else in the batch's
    /// spill. Each call takes new room, also for a row that had a value already.
    ///
    /// # Errors
    /// The system has no memory for the spill, or the batch's values are over
    /// [`crate::batch::layout::VALUES_BYTES_MAX`].
    ///
    /// # Panics
    /// If the field's rows do not vary, the spill is sealed, or as [`WritableSlot::store`].
    pub fn store_value(&self, field: usize, row: u32, bytes: &[u8]) -> io::Result<()> {
        let layout = self.ring.layout();
        let place = &layout.fields[field];
        assert!(place.form != RowForm::Fixed, "field {field} has rows of fixed size");
        assert!(row < layout.batch_size, "row {row} of {}", layout.batch_size);
        let _busy = self.enter(row);
        let (len, align) = (bytes.len() as u64, place.form.align());
        let room = u64::from(layout.values_bytes);
        let offset = match bump::take(&self.private().values_used, len, align, room) {
            Some(offset) => {
                self.copy_in(layout.values_offset + offset, bytes);
                offset
            }
            None => room + self.spill.store(bytes, align, VALUES_BYTES_MAX - room)?,
        };
        // Both below VALUES_BYTES_MAX, which is 31-bit.
        let entry = RowEntry { offset: offset as u32, len: len as u32 };
        self.copy_in(place.offset + u64::from(row) * place.row_bytes, &entry.to_word().to_ne_bytes());
        Ok(())
    }

    /// Fixes the size of the batch's spill, if it has one, for [`WritableSlot::publish`]; every value must be stored.
    /// The memory is for the client, which needs it before it reads the batch.
    pub fn seal_spill(&self) -> io::Result<Option<SealedSpill>> {
        self.spill.seal()
    }

    /// Says whether the row is a sample of the epoch (true unless said otherwise) or a repeat that fills the batch.
    ///
    /// # Panics
    /// As [`WritableSlot::store`].
    pub fn set_valid(&self, row: u32, valid: bool) {
        let layout = self.ring.layout();
        assert!(row < layout.batch_size, "row {row} of {}", layout.batch_size);
        let _busy = self.enter(row);
        self.copy_in(layout.valid_offset + u64::from(row), &[u8::from(valid)]);
    }

    /// Hands the batch to the client: every store must be done, by all threads. `report` is kept as it is, at most
    /// [`crate::batch::REPORT_BYTES_MAX`] bytes. A spill must have been sealed.
    ///
    /// If the client has broken the slot's state word, nothing is published and the next
    /// [`RingWriter::acquire`] tells.
    ///
    /// # Panics
    /// If called twice, with a spill that is not sealed, or the descriptor or the report is over the layout's bounds.
    pub fn publish(&self, descriptor: BatchDescriptor, report: Option<&[u8]>) {
        let layout = self.ring.layout();
        let report = report.unwrap_or(&[]);
        assert!(descriptor.row_count <= layout.batch_size, "{} rows of {}", descriptor.row_count, layout.batch_size);
        let private = self.private();
        // Both are bounded by the layout's sizes, which are 32-bit.
        let report_offset = private.arena_used.load(Ordering::Relaxed) as u32;
        let values_used = private.values_used.load(Ordering::Relaxed) as u32;
        let spill_bytes = self.spill.sealed_bytes();
        let room = layout.arena_bytes - report_offset;
        assert!(report.len() as u64 <= u64::from(room), "a report of {} bytes, room is {room}", report.len());
        let twice = self.published.swap(true, Ordering::AcqRel);
        assert!(!twice, "slot {} published twice", self.index);
        self.copy_in(layout.arena_offset + u64::from(report_offset), report);
        let report_bytes = report.len() as u32;
        let record = self.ring.control.slot(self.index);
        let used = report_offset + report_bytes;
        record.write(&descriptor, ArenaUse { used, report_offset, report_bytes, values_used, spill_bytes });
        private.ticket.store(pack(descriptor.ticket), Ordering::Relaxed);
        // Before the word: once that is ready the client may give the slot back, and the feeder that it wakes must find
        // the slot lent. Release: pairs with the Acquire in `collect`.
        private.life.store(PRIVATE_LENT, Ordering::Release);
        match state::publish(&record.state, descriptor.ticket) {
            Ok(()) => self.ring.bump(),
            // The slot stays lent for ever: the ring is at its end.
            Err(found) => drop(self.ring.fault(self.index, found, state::FILLING)),
        }
    }

    /// A slot that is ours to fill, with nothing in it.
    pub(super) fn new(ring: Arc<RingWriter>, index: u32) -> Self {
        let slot = Self { ring, index, published: AtomicBool::new(false), spill: Spill::default() };
        slot.reset_rows();
        slot
    }

    /// Every row valid and without a key, whatever the slot held before.
    fn reset_rows(&self) {
        let layout = self.ring.layout();
        let rows = u64::from(layout.batch_size);
        self.fill(layout.valid_offset, 1, rows);
        self.fill(layout.entries_offset, 0xff, rows * 8);
    }

    fn private(&self) -> &PrivateSlot {
        &self.ring.slots[self.index as usize]
    }

    /// Claims the row for one thread's store.
    fn enter(&self, row: u32) -> RowBusy<'_> {
        let busy = &self.private().row_busy[row as usize];
        // Acquire: pairs with the Release in `RowBusy::drop`, so that a row's stores come one after the other.
        assert!(!busy.swap(true, Ordering::Acquire), "two threads store into row {row} of slot {}", self.index);
        let claimed = RowBusy(busy);
        assert!(!self.published.load(Ordering::Relaxed), "store into slot {} after it was published", self.index);
        claimed
    }

    /// A pointer to `bytes` bytes of this slot from `start`.
    fn place(&self, start: u64, bytes: u64) -> NonNull<u8> {
        let slot_bytes = self.ring.layout().slot_bytes;
        assert!(start.checked_add(bytes).is_some_and(|end| end <= slot_bytes), "{start} + {bytes} of {slot_bytes}");
        let offset = u64::from(self.index) * slot_bytes + start;
        // SAFETY: the payload is `slot_count` times `slot_bytes` long, the index is below `slot_count`, and the range
        // ends within its slot by the assert above; the whole size fits an isize, by `create`.
        unsafe { self.ring.payload.start().add(offset as usize) }
    }

    fn copy_in(&self, start: u64, source: &[u8]) {
        let target = self.place(start, source.len() as u64);
        // SAFETY:
        // - `target` is valid for `source.len()` bytes, by `place`;
        // - `source` is private memory, so the two ranges cannot overlap;
        // - no other thread of ours writes there: rows are claimed, arena bytes are handed out once, and the report
        //   goes behind them in the one call of `publish`. What the client does there at the same time changes its
        //   own batch only: nothing is read back.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(source).cast(), source.len()) };
    }

    fn fill(&self, start: u64, value: u8, bytes: u64) {
        let target = self.place(start, bytes);
        // SAFETY: valid for `bytes`, by `place`; called before anybody else has the slot.
        unsafe { target.write_bytes(value, bytes as usize) };
    }
}

impl Drop for WritableSlot {
    fn drop(&mut self) {
        if *self.published.get_mut() {
            return;
        }
        match state::abandon(&self.ring.control.slot(self.index).state) {
            // Release: pairs with the Acquire in `collect`; the feeder fills the slot next.
            Ok(()) => self.private().life.store(PRIVATE_FREE, Ordering::Release),
            Err(found) => drop(self.ring.fault(self.index, found, state::FILLING)),
        }
    }
}

/// A row that one thread stores into.
struct RowBusy<'a>(&'a AtomicBool);

impl Drop for RowBusy<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `enter`.
        self.0.store(false, Ordering::Release);
    }
}
