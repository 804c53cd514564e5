//! One row on its way from the shard to its place in a slot.

use std::sync::Arc;

use super::open_batch::OpenBatch;
use super::under_way::RowUnderWay;
use crate::error::SampleFault;
use crate::plan::SampleId;
use crate::read::ReadBuffer;
use crate::shard::{ByteRange, FieldBytes};
use crate::sys::store::StoredBytes;

/// Most separate reads of one row. Fields lie next to each other in a shard, so one is the rule.
pub const PARTS_MAX: usize = 4;

/// Gaps up to this many bytes are read along: cheaper than a second read on every storage.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// Bytes of a shard.
#[derive(Debug)]
pub struct Part {
    /// Where they start in the shard.
    pub offset: u64,
    /// The bytes.
    pub bytes: PartBytes,
}

/// Where the bytes of a part are.
#[derive(Debug)]
pub enum PartBytes {
    /// They were read.
    Read(ReadBuffer),
    /// They were kept from an earlier epoch.
    Kept(StoredBytes),
}

impl PartBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Read(buffer) => buffer.as_slice(),
            Self::Kept(bytes) => bytes,
        }
    }
}

/// The bytes of a row's fields.
#[derive(Debug, Default)]
pub struct Parts([Option<Part>; PARTS_MAX]);

impl Parts {
    /// Stores part `index`.
    pub fn set(&mut self, index: usize, part: Part) {
        self.0[index] = Some(part);
    }

    /// All parts.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> + Clone {
        self.0.iter().flatten().map(|part| (part.offset, part.bytes.as_slice()))
    }

    /// The bytes of `range`, if they were read.
    pub fn bytes(&self, range: ByteRange) -> Option<&[u8]> {
        self.iter().find_map(|(offset, bytes)| {
            let start = usize::try_from(range.offset.checked_sub(offset)?).ok()?;
            bytes.get(start..start.checked_add(range.len as usize)?)
        })
    }
}

/// A row whose bytes are there, for a worker.
#[derive(Debug)]
pub struct RowWork {
    /// Where the row belongs.
    pub batch: Arc<OpenBatch>,
    /// Row of the batch.
    pub row: u32,
    /// How many samples were tried for this row before.
    pub attempt: u32,
    /// The sample.
    pub sample: SampleId,
    /// Its bytes.
    pub parts: Parts,
    /// Why they could not be read.
    pub fault: Option<SampleFault>,
    /// Counts the row among those of its stream that are under way. Last, so that its bytes are free before that.
    pub _under_way: RowUnderWay,
}

/// The reads that cover what of `fields` is in the sample's file: near ranges merged, at most [`PARTS_MAX`].
pub fn spans(fields: &[Option<FieldBytes>], spans: &mut [(u64, u64); PARTS_MAX]) -> usize {
    let mut count = 0;
    for range in fields.iter().flatten().filter_map(FieldBytes::in_file).filter(|range| range.len > 0) {
        let (start, end) = (range.offset, range.offset + u64::from(range.len));
        let near = spans[..count].iter_mut().find(|(other_start, other_end)| {
            start <= other_end.saturating_add(GAP_BYTES_MAX) && *other_start <= end.saturating_add(GAP_BYTES_MAX)
        });
        if let Some(near) = near {
            *near = (near.0.min(start), near.1.max(end));
        } else if count < PARTS_MAX {
            spans[count] = (start, end);
            count += 1;
        } else {
            let last = &mut spans[count - 1];
            *last = (last.0.min(start), last.1.max(end));
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::{Encoding, Origin};

    fn check(ranges: &[(u64, u32)], expected: &[(u64, u64)]) {
        let field = |&(offset, len)| {
            let range = ByteRange { offset, len };
            Some(FieldBytes { origin: Origin::File, range, encoding: Encoding::Plain })
        };
        let fields: Vec<_> = ranges.iter().map(field).collect();
        let mut out = [(0, 0); PARTS_MAX];
        let count = spans(&fields, &mut out);
        assert_eq!(&out[..count], expected);
    }

    #[test]
    fn near_ranges_become_one_read() {
        check(&[(512, 1000), (2048, 2)], &[(512, 2050)]);
        check(&[(2048, 2), (512, 1000)], &[(512, 2050)]);
        check(&[(0, 10), (1 << 20, 10)], &[(0, 10), (1 << 20, (1 << 20) + 10)]);
        check(&[(0, 0)], &[]);
        let far: Vec<(u64, u32)> = (0..6).map(|index| (index << 20, 8)).collect();
        check(&far, &[(0, 8), (1 << 20, (1 << 20) + 8), (2 << 20, (2 << 20) + 8), (3 << 20, (5 << 20) + 8)]);
    }
}
