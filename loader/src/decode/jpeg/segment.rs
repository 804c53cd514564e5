//! The bytes of an entropy-coded segment (ITU-T T.81, B.1.1.5), without the zero bytes that are stuffed behind 0xff.
//!
//! They are taken in portions that stay in the cache; bits are then read without a look at single bytes.

use super::huffman::BLOCK_BYTES;

/// Bytes of a portion.
const PORTION: usize = 8 << 10;

/// Zero bytes behind the last ones of a segment, so that a block can be read at its end.
const PADDING: usize = BLOCK_BYTES + 16;

/// Bytes that a step of unstuffing may write past those that it keeps.
const WORD: usize = 8;

/// Bytes that are looked at together.
const VECTOR: usize = 32;

/// The next bits, from the top.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bits {
    buffer: u64,
    /// Its lower six bits: bits of `buffer` that are counted as read from the window. Those below them are bits of the next
    /// byte, or zero.
    count: u32,
    /// Where the next byte lies in the window.
    place: u32,
}

impl Bits {
    /// Makes at least 56 bits available. The window has the bytes, see [`Segment::has_block`].
    #[inline(always)]
    pub fn refill(&mut self, window: &WindowBytes) {
        let place = self.place as usize;
        let Some(word) = window.get(place..place + 8).and_then(|word| word.first_chunk()) else { return };
        let count = self.count & 63;
        self.buffer |= u64::from_be_bytes(*word) >> count;
        self.place += (63 - count) >> 3;
        self.count = count | 56;
    }

    /// The next `COUNT` bits.
    #[inline(always)]
    pub fn peek<const COUNT: u32>(&self) -> usize {
        (self.buffer >> (64 - COUNT)) as usize
    }

    /// All bits at hand, from the top.
    pub fn all(&self) -> u64 {
        self.buffer
    }

    /// Goes on by as many bits as the lower six bits of `count` say.
    #[inline(always)]
    pub fn take(&mut self, count: u32) {
        self.buffer = self.buffer.wrapping_shl(count);
        self.count = self.count.wrapping_sub(count);
    }

    /// Takes the value that the next `size` bits mean, at most 15 (T.81, F.2.2.1).
    #[inline(always)]
    pub fn value(&mut self, size: u32) -> i32 {
        let bits = (self.buffer >> 1 >> (63 - size)) as i32;
        let is_negative = i32::from(self.buffer >> 63 == 0);
        self.take(size);
        bits - (is_negative << size) + is_negative
    }

    /// Bits left of a window with `filled` bytes; negative where more were taken than there are.
    fn left(&self, filled: usize) -> isize {
        (8 * filled + (self.count & 63) as usize) as isize - 8 * self.place as isize
    }
}

/// Some bytes of a segment.
pub type WindowBytes = [u8; PORTION + PADDING + WORD];

/// Memory for them.
#[derive(Debug)]
pub struct Window {
    bytes: Box<WindowBytes>,
}

impl Default for Window {
    fn default() -> Self {
        Self { bytes: Box::new([0; _]) }
    }
}

/// Where the reading of a scan stands.
#[derive(Debug, Clone, Copy, Default)]
pub struct Position {
    /// The next bits.
    pub bits: Bits,
    /// Bytes in the window.
    filled: usize,
    /// Whether they are the segment's last.
    is_complete: bool,
    /// Where the next byte lies in the file: that of a marker, when complete.
    source: usize,
}

impl Position {
    /// At the first byte of a segment.
    pub fn at(source: usize) -> Self {
        Self { source, ..Self::default() }
    }
}

/// A segment that is being read.
pub struct Segment<'bytes> {
    /// The whole file.
    file: &'bytes [u8],
    window: &'bytes mut Window,
    /// Kept by the caller from one row to the next.
    pub position: Position,
}

impl<'bytes> Segment<'bytes> {
    /// Goes on reading `file` at `position`, whose window is as it was left.
    pub fn new(file: &'bytes [u8], window: &'bytes mut Window, position: Position) -> Self {
        Self { file, window, position }
    }

    /// The bytes that there are, and more.
    #[inline(always)]
    pub fn window(&self) -> &WindowBytes {
        &self.window.bytes
    }

    /// Whether the window holds a block from `bits` on, or all that is left of the segment and zero bytes. Otherwise there
    /// is need to [`Segment::advance`].
    #[inline(always)]
    pub fn has_block(&self, bits: Bits) -> bool {
        let padding = if self.position.is_complete { PADDING } else { 0 };
        bits.place as usize + BLOCK_BYTES <= self.position.filled + padding
    }

    /// Whether more was read than the segment holds.
    pub fn is_overrun(&self) -> bool {
        self.position.is_complete && self.position.bits.left(self.position.filled) < 0
    }

    /// Takes the next portion into the window; not behind the last.
    #[cold]
    #[inline(never)]
    pub fn advance(&mut self) -> bool {
        let Position { bits, filled, is_complete, source } = &mut self.position;
        if *is_complete {
            return false;
        }
        let window = &mut self.window.bytes[..];
        window.copy_within(bits.place as usize..*filled, 0);
        *filled -= bits.place as usize;
        bits.place = 0;
        let (taken, written, at_marker) = unstuff(&self.file[*source..], &mut window[*filled..PORTION + WORD]);
        *source += taken;
        *filled += written;
        *is_complete = at_marker;
        if at_marker {
            window[*filled..*filled + PADDING].fill(0);
        }
        true
    }

    /// Ends a segment that has been read to its last bits, and stands behind restart marker `number`; not if anything
    /// else comes next.
    pub fn restart(&mut self, number: u8) -> bool {
        while self.advance() {
            if self.position.bits.left(self.position.filled) >= 8 {
                return false;
            }
        }
        let Position { bits, filled, source, .. } = self.position;
        let is_at_end = (0..8).contains(&bits.left(filled));
        let is_restart = self.file.get(source..source + 2) == Some(&[0xff, 0xd0 + number]);
        self.position = Position::at(source + 2);
        is_at_end && is_restart
    }
}

/// Copies a whole segment to `target`, less what is stuffed; returns its length. `target` has room for [`WORD`] bytes more
/// than `source` has.
pub fn unstuff_all(source: &[u8], target: &mut [u8]) -> usize {
    unstuff(source, target).1
}

/// Copies bytes from `source` to `target`, less what is stuffed, up to a marker or the end of either. Returns how many
/// it took and wrote, and whether no more can come. Up to [`WORD`] bytes at the end of `target` are not filled.
fn unstuff(source: &[u8], target: &mut [u8]) -> (usize, usize, bool) {
    let (mut taken, mut written) = (0, 0);
    loop {
        // One 0xff in 256 bytes: most vectors have none.
        while let Some(bytes) = source.get(taken..).and_then(<[u8]>::first_chunk::<VECTOR>)
            && let Some(room) = target.get_mut(written..).and_then(<[u8]>::first_chunk_mut::<VECTOR>)
        {
            *room = *bytes;
            // Without a branch, so that it is done in vectors.
            if bytes.iter().fold(false, |found, &byte| found | (byte == 0xff)) {
                break;
            }
            taken += VECTOR;
            written += VECTOR;
        }
        // Up to the next 0xff, which is written too: data, or the start of a marker.
        loop {
            let Some(room) = target.get_mut(written..).and_then(<[u8]>::first_chunk_mut::<WORD>) else {
                return (taken, written, false);
            };
            if let Some(word) = source.get(taken..).and_then(<[u8]>::first_chunk::<WORD>) {
                *room = *word;
                // The highest bit of a byte tells where its complement is zero.
                let complement = !u64::from_le_bytes(*word);
                let found = complement.wrapping_sub(0x0101_0101_0101_0101) & !complement & 0x8080_8080_8080_8080;
                let plain = found.trailing_zeros() as usize / 8;
                taken += plain;
                written += plain;
                if plain < WORD {
                    break;
                }
            } else {
                let Some(&byte) = source.get(taken) else { return (taken, written, true) };
                room[0] = byte;
                if byte == 0xff {
                    break;
                }
                taken += 1;
                written += 1;
            }
        }
        if source.get(taken + 1) != Some(&0) {
            return (taken, written, true);
        }
        taken += 2;
        written += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `bytes` as a segment, after which comes `marker`.
    fn stuffed(bytes: &[u8], marker: &[u8]) -> Vec<u8> {
        let mut file: Vec<u8> =
            bytes.iter().flat_map(|&byte| [byte, 0].into_iter().take(1 + usize::from(byte == 0xff))).collect();
        file.extend_from_slice(marker);
        file
    }

    /// Reads `count` bytes.
    fn read(segment: &mut Segment<'_>, count: usize) -> Vec<u8> {
        let mut bits = segment.position.bits;
        let bytes = (0..count)
            .map(|_| {
                while !segment.has_block(bits) {
                    segment.position.bits = bits;
                    assert!(segment.advance(), "there is more");
                    bits = segment.position.bits;
                }
                bits.refill(segment.window());
                let byte = bits.peek::<8>() as u8;
                bits.take(8);
                byte
            })
            .collect();
        segment.position.bits = bits;
        bytes
    }

    /// Bytes of which many are 0xff.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![4 => any::<u8>(), 1 => Just(0xff)];
        prop_oneof![prop::collection::vec(byte.clone(), 0..40), prop::collection::vec(byte, 8000..9000)]
    }

    proptest! {
        #[test]
        fn bytes_come_out_as_they_went_in(first in bytes(), second in bytes(), number in 0u8..8) {
            let file = [stuffed(&first, &[0xff, 0xd0 + number]), stuffed(&second, &[0xff, 0xd9])].concat();
            let mut window = Window::default();
            let mut segment = Segment::new(&file, &mut window, Position::at(0));
            prop_assert_eq!(read(&mut segment, first.len()), first);
            prop_assert!(!segment.is_overrun());
            prop_assert!(segment.restart(number));
            prop_assert_eq!(read(&mut segment, second.len()), second);
            prop_assert!(!segment.is_overrun());
            read(&mut segment, 1);
            prop_assert!(segment.is_overrun());
        }

        #[test]
        fn a_restart_is_where_it_belongs(bytes in bytes(), left in 0usize..4, number in 0u8..8, wrong in 1u8..8) {
            let left = left.min(bytes.len());
            let restarts = |file: &[u8], number: u8| {
                let mut window = Window::default();
                let mut segment = Segment::new(file, &mut window, Position::at(0));
                read(&mut segment, bytes.len() - left);
                segment.restart(number)
            };
            let file = stuffed(&bytes, &[0xff, 0xd0 + number, 1, 2, 3]);
            prop_assert_eq!(restarts(&file, number), left == 0);
            prop_assert!(!restarts(&file, (number + wrong) % 8));
            prop_assert!(!restarts(&stuffed(&bytes, &[]), number));
            prop_assert!(!restarts(&stuffed(&bytes, &[0xff, 0xd9]), number));
        }
    }
}
