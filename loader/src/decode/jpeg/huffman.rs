//! Huffman codes and the blocks that they code (ITU-T T.81, annexes C and F).
//!
//! A table has an entry for each of the next [`LOOKUP_BITS`] bits: how many of them a symbol takes together with the
//! value that follows it, how far it advances in the block, and that value. A symbol so costs one look-up. What does not
//! fit (3 % of symbols) takes a slower way.
//!
//! A processor mispredicts the end of nearly every block, since no pattern says when it comes. So the ends are no branch
//! here: the entry of an end-of-block code selects the table, the place and the position of the next block, and the
//! loop goes on over all blocks of a row. It stops at a table whose entries all take the slow way.

use std::hint::select_unpredictable;

use super::frame::NATURAL_ORDER;
use super::segment::Segment;

/// Bits of a look-up. More make tables that push other things out of the cache.
pub const LOOKUP_BITS: u32 = 11;

/// Entries of a table.
const ENTRIES: usize = 1 << LOOKUP_BITS;

/// Symbols for which a refilled bit buffer has bits enough.
const SYMBOLS_PER_REFILL: usize = 56 / LOOKUP_BITS as usize;

/// Tables of a kind.
const KIND_TABLES: usize = 4;

/// The table that ends a run of blocks.
const STOP: u16 = (2 * KIND_TABLES * ENTRIES) as u16;

/// In an entry: bits taken, how far to advance from bit 8, end of block, value from bit 16.
const ADVANCE_SHIFT: u32 = 8;
const ADVANCE_MASK: u32 = 0x7f;
const END_OF_BLOCK: u32 = 1 << 15;
const VALUE_SHIFT: u32 = 16;

/// In an entry: the slow way. The value is then the symbol, and above it the bits of its code, 0 where they are unknown.
const SLOW: u32 = 64 << ADVANCE_SHIFT;

/// In an entry of the table [`STOP`].
const STOP_ENTRY: u32 = SLOW | 0xffff << VALUE_SHIFT;

/// Last zig-zag position of a block.
const LAST: u32 = 63;

/// Something that an ordinary file does not have. libjpeg judges it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anomaly;

/// The codes of a table, as a file defines them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codes {
    /// How many codes there are of 1, 2, … 16 bits.
    lengths: [u8; 16],
    /// Their meanings, shortest first.
    symbols: [u8; 256],
}

impl Codes {
    /// Codes of these lengths, if there can be such: no code is all ones, and there are at most 256.
    pub fn new(lengths: [u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut padded = [0; 256];
        padded.get_mut(..symbols.len())?.copy_from_slice(symbols);
        let codes = Self { lengths, symbols: padded };
        let fits = codes.lengths().all(|(bits, first, _, count)| count == 0 || (first + count) >> bits == 0);
        (fits && codes.count() == symbols.len()).then_some(codes)
    }

    /// For each length in bits: the first code, the index of its symbol, and how many codes there are.
    fn lengths(&self) -> impl Iterator<Item = (u32, u32, usize, u32)> {
        (1..).zip(self.lengths).scan((0u32, 0), |(next, index), (bits, count)| {
            let item = (bits, *next, *index, u32::from(count));
            *next = (*next + u32::from(count)) << 1;
            *index += usize::from(count);
            Some(item)
        })
    }

    /// How many codes there are.
    fn count(&self) -> usize {
        self.lengths.iter().map(|&count| usize::from(count)).sum()
    }

    /// Whether every symbol is a count of bits, as it must be for DC differences.
    pub fn are_sizes(&self) -> bool {
        self.symbols[..self.count()].iter().all(|&size| size <= 15)
    }

    /// The symbol that `bits`, from the top, start with, and the length of its code.
    fn search(&self, bits: u64) -> Option<(u8, u32)> {
        self.lengths().find_map(|(length, first, index, count)| {
            let offset = ((bits >> (64 - length)) as u32).wrapping_sub(first);
            (offset < count).then(|| (self.symbols[index + offset as usize], length))
        })
    }
}

/// What codes are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Differences of the first coefficients.
    Dc,
    /// All other coefficients.
    Ac,
}

/// Entries of all tables of a file. A table that is the same as in the file before is kept.
pub struct Tables {
    entries: Box<[u32; (2 * KIND_TABLES + 1) * ENTRIES]>,
    codes: [Option<Codes>; 2 * KIND_TABLES],
}

impl Default for Tables {
    fn default() -> Self {
        let mut entries = Box::new([0; (2 * KIND_TABLES + 1) * ENTRIES]);
        entries[usize::from(STOP)..].fill(STOP_ENTRY);
        Self { entries, codes: [const { None }; 2 * KIND_TABLES] }
    }
}

impl Tables {
    /// Where the entries of table `index` of a kind start.
    pub fn base(kind: Kind, index: usize) -> u16 {
        let kind = if kind == Kind::Dc { 0 } else { KIND_TABLES };
        ((kind + index) * ENTRIES) as u16
    }

    /// Makes table `index` of a kind that of `codes`.
    pub fn set(&mut self, kind: Kind, index: usize, codes: &Codes) {
        let base = usize::from(Self::base(kind, index));
        let kept = &mut self.codes[base / ENTRIES];
        if kept.as_ref() == Some(codes) {
            return;
        }
        let entries = &mut self.entries[base..][..ENTRIES];
        entries.fill(SLOW);
        for (bits, first, index, count) in codes.lengths().take_while(|length| length.0 <= LOOKUP_BITS) {
            for (offset, &symbol) in (0..count).zip(&codes.symbols[index..]) {
                let span = 1 << (LOOKUP_BITS - bits);
                let start = ((first + offset) as usize) * span;
                fill(&mut entries[start..start + span], kind, symbol, bits);
            }
        }
        *kept = Some(codes.clone());
    }
}

/// Fills the entries that start with one code, of `bits` bits.
fn fill(entries: &mut [u32], kind: Kind, symbol: u8, bits: u32) {
    let (run, size) = match kind {
        Kind::Dc => (0, u32::from(symbol)),
        Kind::Ac => (u32::from(symbol >> 4), u32::from(symbol & 15)),
    };
    let advance = if kind == Kind::Dc { 0 } else { run + 1 };
    if size == 0 {
        // libjpeg takes every run without a value, but that of 16, as the end of the block.
        let entry = match kind {
            Kind::Ac if run != 15 => bits | 1 << ADVANCE_SHIFT | END_OF_BLOCK,
            _ => bits | advance << ADVANCE_SHIFT,
        };
        entries.fill(entry);
    } else if bits + size > LOOKUP_BITS {
        entries.fill(SLOW | (u32::from(symbol) | bits << 8) << VALUE_SHIFT);
    } else {
        let span = entries.len() >> size;
        for (value, entries) in (0..).zip(entries.chunks_exact_mut(span)) {
            let value = extend(value, size) as u16;
            entries.fill((bits + size) | advance << ADVANCE_SHIFT | u32::from(value) << VALUE_SHIFT);
        }
    }
}

/// The value that `size` bits mean (T.81, F.2.2.1).
fn extend(bits: u32, size: u32) -> i32 {
    let is_negative = bits < 1 << (size - 1);
    bits as i32 - if is_negative { (1 << size) - 1 } else { 0 }
}

/// Where the coefficients of a block go, and which tables are next.
#[derive(Debug, Clone, Copy, Default)]
pub struct Step {
    /// Place of its first coefficient.
    pub place: u32,
    /// Table of its AC codes.
    pub ac: u16,
    /// Table of the DC codes of the block after it.
    pub next_dc: u16,
}

/// Zig-zag position to place in a block; of the positions up to 63 alone, but indexed without a check.
const PLACES: [u8; 256] = {
    let mut places = [0; 256];
    let mut position = 0;
    while position < NATURAL_ORDER.len() {
        places[position] = NATURAL_ORDER[position];
        position += 1;
    }
    places
};

/// Where decoding stands between two symbols.
#[derive(Clone, Copy)]
struct State {
    /// The table that the next symbol is of.
    base: u16,
    /// Zig-zag position of the last symbol.
    position: u32,
    /// The block.
    block: usize,
}

/// Decodes one block for each of `steps`, which have one more behind them. Coefficients, DC differences among them, go
/// to their places among `coefficients`, where the places of others are left as they are; the zig-zag positions that a
/// block needs go to its place among `ends`.
///
/// A block whose coefficients are not wanted may share all places but its first with blocks that come later: what of it
/// lies there is overwritten by them.
pub fn decode_blocks(
    tables: &Tables,
    segment: &mut Segment<'_>,
    first_dc: u16,
    steps: &mut [Step],
    coefficients: &mut [i16],
    ends: &mut [u8],
) -> Result<(), Anomaly> {
    let count = steps.len() - 1;
    let before = std::mem::replace(&mut steps[count - 1].next_dc, STOP);
    let mut state = State { base: first_dc, position: 0, block: 0 };
    let done = loop {
        let entry = match decode_quick(tables, segment, &mut state, steps, coefficients, ends) {
            Some(STOP_ENTRY) => break Ok(()),
            Some(entry) => entry,
            None if segment.advance() => continue,
            None => break Err(Anomaly),
        };
        if let Err(anomaly) = decode_slowly(entry, tables, segment, &mut state, steps, coefficients, ends) {
            break Err(anomaly);
        }
    };
    steps[count - 1].next_dc = before;
    done
}

/// Decodes symbols up to one that needs the slow way, whose entry is returned; nothing is when bytes are missing.
#[inline(always)]
fn decode_quick(
    tables: &Tables,
    segment: &mut Segment<'_>,
    state: &mut State,
    steps: &[Step],
    coefficients: &mut [i16],
    ends: &mut [u8],
) -> Option<u32> {
    let entries = &tables.entries[..];
    let State { base, mut position, mut block } = *state;
    let mut base = usize::from(base);
    let Step { place, ac, next_dc } = steps[block];
    let (mut place, mut ac, mut next_dc) = (place as usize, usize::from(ac), usize::from(next_dc));
    let (window, mut bits) = segment.bits();
    let slow = 'symbols: loop {
        if !bits.refill(window) {
            break None;
        }
        for _ in 0..SYMBOLS_PER_REFILL {
            let entry = entries[base + bits.peek(LOOKUP_BITS)];
            let next = position + (entry >> ADVANCE_SHIFT & ADVANCE_MASK);
            if next >= LAST {
                break 'symbols Some(entry);
            }
            bits.take(entry);
            coefficients[place + usize::from(PLACES[usize::from(next as u8)])] = (entry >> VALUE_SHIFT) as i16;
            ends[block] = next as u8;
            let is_end = entry & END_OF_BLOCK != 0;
            base = select_unpredictable(is_end, next_dc, ac);
            position = select_unpredictable(is_end, 0, next);
            block += usize::from(is_end);
            let step = steps[block];
            (place, ac, next_dc) = (step.place as usize, usize::from(step.ac), usize::from(step.next_dc));
        }
    };
    *state = State { base: base as u16, position, block };
    segment.set_bits(bits);
    slow
}

/// Decodes the symbol of `entry`: one that a look-up cannot hold, or the last of its block.
#[cold]
#[inline(never)]
fn decode_slowly(
    entry: u32,
    tables: &Tables,
    segment: &mut Segment<'_>,
    state: &mut State,
    steps: &[Step],
    coefficients: &mut [i16],
    ends: &mut [u8],
) -> Result<(), Anomaly> {
    let (window, mut bits) = segment.bits();
    if !bits.refill(window) {
        // The same symbol again, once there are bytes.
        return if segment.advance() { Ok(()) } else { Err(Anomaly) };
    }
    let step = steps[state.block];
    let (run, size, value) = if entry & SLOW == 0 {
        bits.take(entry);
        let advance = entry >> ADVANCE_SHIFT & ADVANCE_MASK;
        let is_end = entry & END_OF_BLOCK != 0;
        (advance.wrapping_sub(1), u32::from(!is_end), (entry >> VALUE_SHIFT) as i16)
    } else {
        let (symbol, length) = match entry >> VALUE_SHIFT {
            0 => {
                tables.codes[usize::from(state.base) / ENTRIES].as_ref().and_then(|codes| codes.search(bits.peek_all()))
            }
            known => Some((known as u8, known >> 8)),
        }
        .ok_or(Anomaly)?;
        bits.take(length);
        let size = u32::from(symbol & 15);
        let value = if size > 0 { extend(bits.peek(size) as u32, size) } else { 0 };
        bits.take(size);
        (u32::from(symbol >> 4), size, value as i16)
    };
    segment.set_bits(bits);
    let is_dc = usize::from(state.base) < KIND_TABLES * ENTRIES;
    if is_dc {
        coefficients[step.place as usize] = value;
        *state = State { base: step.ac, ..*state };
        return Ok(());
    }
    let is_end = size == 0 && run != 15;
    if !is_end {
        state.position += run + 1;
        if state.position > LAST {
            return Err(Anomaly);
        }
        coefficients[step.place as usize + usize::from(NATURAL_ORDER[state.position as usize])] = value;
    }
    if is_end || state.position == LAST {
        ends[state.block] = state.position as u8 + 1;
        *state = State { base: step.next_dc, position: 0, block: state.block + 1 };
    } else {
        ends[state.block] = state.position as u8;
        state.base = step.ac;
    }
    Ok(())
}
