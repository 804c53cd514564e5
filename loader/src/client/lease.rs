//! A borrowed batch.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::batch::arrays::{ARRAY_HEADER_BYTES, Sides};
use crate::batch::{Dtype, RowEntry};
use crate::error::{Error, FaultReport, Result};
use crate::plan::trace::Trace;
use crate::ring::{BatchDescriptor, HeldSlot, RingReader};

/// One batch in shared memory; dropping it gives the slot back to the sidecar.
#[derive(Debug)]
pub struct Lease {
    slot: HeldSlot,
    descriptor: BatchDescriptor,
}

impl Lease {
    pub(super) fn new(slot: HeldSlot) -> Self {
        let descriptor = slot.descriptor();
        Self { slot, descriptor }
    }

    /// The ring that the batch lies in, which outlives the lease for whoever keeps this.
    pub fn ring(&self) -> &Arc<RingReader> {
        self.slot.ring()
    }

    /// Rows of the batch.
    pub fn rows(&self) -> u32 {
        self.descriptor.row_count
    }

    /// Epoch that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.descriptor.epoch
    }

    /// Its number among this rank's batches since the epoch's start, or since the position resumed from.
    pub fn batch(&self) -> u64 {
        self.descriptor.batch_index
    }

    /// Global position of its first row.
    pub fn position(&self) -> u64 {
        self.descriptor.first_position
    }

    /// Global position after the whole global batch: where to resume when this batch is consumed.
    pub fn end_position(&self) -> u64 {
        self.descriptor.end_position
    }

    /// The sum of the rows' hashes, as [`crate::plan::trace`] has it.
    pub fn trace(&self) -> Trace {
        self.descriptor.trace
    }

    /// Where field `index` starts and how many bytes [`Lease::rows`] rows of it take. The memory is shared with the
    /// sidecar and valid while this lease lives.
    pub fn field(&self, index: usize) -> Result<(NonNull<u8>, usize)> {
        self.slot.field(index)
    }

    /// Bytes of the batch's values that its slot had no room for: they lie in memory of their own, which this lease
    /// holds too.
    pub fn spill_bytes(&self) -> u32 {
        self.slot.spill_bytes()
    }

    /// Where the values of field `index`, whose rows vary, lie, row by row; each checked.
    pub fn entries(&self, index: usize) -> Result<Vec<RowEntry>> {
        self.slot.entries(index)
    }

    /// First byte of a value that [`Lease::entries`] told of. The memory is shared with the sidecar and valid while
    /// this lease lives.
    pub fn value(&self, entry: RowEntry) -> Result<NonNull<u8>> {
        self.slot.value(entry)
    }

    /// Copies a value that [`Lease::entries`] told of into memory of exactly its size.
    pub fn copy_value(&self, entry: RowEntry, target: &mut [u8]) -> Result<()> {
        self.slot.copy_value(entry, target)
    }

    /// The shape of a value that is an array of `dtype`, whose elements start [`ARRAY_HEADER_BYTES`] after its first
    /// byte; checked against the value's size.
    pub fn array_sides(&self, entry: RowEntry, dtype: Dtype) -> Result<Sides> {
        let mut header = [0; ARRAY_HEADER_BYTES];
        if (entry.len as usize) < ARRAY_HEADER_BYTES {
            return Err(Error::protocol(format!("an array of {} bytes has no header", entry.len)));
        }
        self.slot.copy_value(RowEntry { len: ARRAY_HEADER_BYTES as u32, ..entry }, &mut header)?;
        Sides::from_header(&header, entry.len as usize, dtype)
    }

    /// The sample keys, row by row.
    pub fn keys(&self) -> Result<Vec<String>> {
        self.slot.keys()
    }

    /// Whether each row counts; rows that pad the last batch do not.
    pub fn valid(&self) -> Result<Vec<bool>> {
        self.slot.valid_rows()
    }

    /// How many of its samples could not be used; their rows hold substitutes.
    pub fn fault_count(&self) -> u32 {
        self.descriptor.fault_count
    }

    /// The samples that could not be used. When the list does not fit the slot, it holds the first of them.
    pub fn report(&self) -> Result<Vec<FaultReport>> {
        let json = self.slot.report()?;
        if json.is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&json).map_err(|error| Error::protocol(format!("a batch's report is no JSON: {error}")))
    }
}
