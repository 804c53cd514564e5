//! One row on its way from the shard to its place in a slot.

use std::sync::Arc;

use super::open_batch::OpenBatch;
use super::under_way::RowUnderWay;
use crate::error::SampleFault;
use crate::plan::SampleId;
use crate::read::ReadBuffer;
use crate::shard::{FieldBytes, FileNumber};
use crate::spec::{FIELDS_MAX, JOIN_PARTS_MAX};
use crate::sys::store::StoredBytes;

/// Most separate reads of one row. Fields lie next to each other in a shard, so one is the rule, or one a part of a join.
pub const PARTS_MAX: usize = 4;

// Every file of a row has a read of its own.
const _: () = assert!(JOIN_PARTS_MAX <= PARTS_MAX);

/// Gaps up to this many bytes are read along: cheaper than a second read on every storage.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// A run of bytes of a file, to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The file.
    pub file: FileNumber,
    /// Where they start.
    pub start: u64,
    /// Where they end.
    pub end: u64,
}

impl Span {
    /// No bytes.
    pub const EMPTY: Self = Self { file: FileNumber { shard: 0, file: 0 }, start: 0, end: 0 };
}

/// Bytes of a file.
#[derive(Debug)]
pub struct Part {
    /// The file.
    pub file: FileNumber,
    /// Where they start in it.
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

    /// All parts: file, where they start in it, and the bytes.
    pub fn iter(&self) -> impl Iterator<Item = (FileNumber, u64, &[u8])> + Clone {
        self.0.iter().flatten().map(|part| (part.file, part.offset, part.bytes.as_slice()))
    }

    /// The bytes of `field`, if they were read.
    pub fn bytes(&self, field: &FieldBytes) -> Option<&[u8]> {
        let range = field.range;
        self.iter().filter(|(file, ..)| *file == field.file).find_map(|(_, offset, bytes)| {
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
    /// Where its fields lie, in the order of the stream's; `None` beyond.
    pub places: [Option<FieldBytes>; FIELDS_MAX],
    /// Its bytes.
    pub parts: Parts,
    /// Why they could not be read.
    pub fault: Option<SampleFault>,
    /// Counts the row among those of its stream that are under way. Last, so that its bytes are free before that.
    pub _under_way: RowUnderWay,
}

/// The reads that cover what of `fields` is in files: near ranges of one file merged, at most [`PARTS_MAX`] of at most as
/// many files.
pub fn spans(fields: &[Option<FieldBytes>], spans: &mut [Span; PARTS_MAX]) -> usize {
    let ranges = || fields.iter().flatten().filter_map(FieldBytes::in_file).filter(|(_, range)| range.len > 0);
    let is_first = |place: usize, file| ranges().take(place).all(|(other, _)| other != file);
    let files = ranges().enumerate().filter(|(place, (file, _))| is_first(*place, *file)).count();
    let of_file_max = PARTS_MAX / files.max(1);
    let mut count = 0;
    for (file, range) in ranges() {
        let (start, end) = (range.offset, range.offset + u64::from(range.len));
        let own = || spans[..count].iter().enumerate().filter(|(_, span)| span.file == file);
        let near = own().find(|(_, span)| {
            start <= span.end.saturating_add(GAP_BYTES_MAX) && span.start <= end.saturating_add(GAP_BYTES_MAX)
        });
        let is_full = own().count() == of_file_max;
        match near.or_else(|| own().next_back().filter(|_| is_full)) {
            Some((place, &span)) => {
                spans[place] = Span { file, start: span.start.min(start), end: span.end.max(end) };
            }
            None => {
                spans[count] = Span { file, start, end };
                count += 1;
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::{ByteRange, Encoding, Origin};

    /// Ranges as (shard, offset, length), reads as (shard, start, end).
    fn check(ranges: &[(u32, u64, u32)], expected: &[(u32, u64, u64)]) {
        let field = |&(shard, offset, len)| {
            let (file, range) = (FileNumber { shard, file: 0 }, ByteRange { offset, len });
            Some(FieldBytes { origin: Origin::File, file, range, encoding: Encoding::Plain })
        };
        let fields: Vec<_> = ranges.iter().map(field).collect();
        let mut out = [Span::EMPTY; PARTS_MAX];
        let count = spans(&fields, &mut out);
        let found: Vec<_> = out[..count].iter().map(|span| (span.file.shard, span.start, span.end)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn near_ranges_become_one_read() {
        check(&[(0, 512, 1000), (0, 2048, 2)], &[(0, 512, 2050)]);
        check(&[(0, 2048, 2), (0, 512, 1000)], &[(0, 512, 2050)]);
        check(&[(0, 0, 10), (0, 1 << 20, 10)], &[(0, 0, 10), (0, 1 << 20, (1 << 20) + 10)]);
        check(&[(0, 0, 0)], &[]);
        let far: Vec<(u32, u64, u32)> = (0..6).map(|index| (0, index << 20, 8)).collect();
        let mega = 1 << 20;
        let rest = (0, 3 * mega, 5 * mega + 8);
        check(&far, &[(0, 0, 8), (0, mega, mega + 8), (0, 2 * mega, 2 * mega + 8), rest]);
    }

    #[test]
    fn every_file_has_reads_of_its_own() {
        check(&[(0, 512, 10), (1, 512, 20)], &[(0, 512, 522), (1, 512, 532)]);
        check(&[(7, 0, 10), (2, 0, 9), (7, 20, 10), (2, 30, 1)], &[(7, 0, 30), (2, 0, 31)]);
        let mega = 1 << 20;
        let far: Vec<(u32, u64, u32)> = (0..6).map(|index| (index as u32 % 2, index << 20, 8)).collect();
        let both = [(0, 0, 8), (1, mega, mega + 8), (0, 2 * mega, 4 * mega + 8), (1, 3 * mega, 5 * mega + 8)];
        check(&far, &both);
        let four: Vec<(u32, u64, u32)> = (0..8).map(|index| (index as u32 % 4, index << 20, 8)).collect();
        let wide: Vec<_> =
            (0..4).map(|shard| (shard, u64::from(shard) << 20, ((u64::from(shard) + 4) << 20) + 8)).collect();
        check(&four, &wide);
    }
}
