//! Huffman codes and the blocks that they code (ITU-T T.81, annexes C and F).
//!
//! A table of AC codes has an entry for each of the next [`AC_BITS`] bits: how many of them a symbol takes together with
//! the value behind it, how far it advances in the block, and that value. So most symbols cost one look-up, and the next
//! look-up waits for nothing but the shift by that many bits. One branch, on the position, finds all that is special: the
//! end of the block, its last coefficient, and symbols that are longer than a look-up (3 %), of which the entry still
//! tells the code where that is short enough.

use std::ops::Range;

use super::frame::NATURAL_ORDER;
use super::segment::{Bits, WindowBytes};

/// Bits of a look-up. More make tables that push other things out of the cache.
const AC_BITS: u32 = 11;

/// The same for the codes of DC differences, which come without their values.
const DC_BITS: u32 = 9;

/// Look-ups for which a refilled bit buffer has bits enough.
const SYMBOLS_PER_REFILL: u32 = 56 / AC_BITS;

/// Tables of a kind.
const TABLES: usize = 4;

/// In an entry of an AC table: bits taken up to bit 5, then flags, from bit 8 how far to advance, from bit 16 the value.
const SLOW: u32 = 1 << 6;
const END_OF_BLOCK: u32 = 1 << 7;
const ADVANCE_SHIFT: u32 = 8;
const ADVANCE_MASK: u32 = 0xff;
const VALUE_SHIFT: u32 = 16;

/// How far a special entry advances: out of the block. Of a slow one the value is the symbol, and from bit 8 the bits of
/// its code, 0 where that is longer than a look-up.
const SPECIAL: u32 = 64 << ADVANCE_SHIFT;

/// Last zig-zag position of a block.
const LAST: u32 = 63;

/// Most bytes that a block takes, and that are looked at behind it: each coefficient a code of 16 bits and a value of 15.
pub const BLOCK_BYTES: usize = 64 * 31 / 8 + 16;

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

    /// Calls `entries` for each code of at most `bits_max` bits: with its symbol, its bits, and the values of `bits_max`
    /// bits that start with it.
    fn each_short(&self, bits_max: u32, mut entries: impl FnMut(u8, u32, Range<usize>)) {
        for (bits, first, index, count) in self.lengths().take_while(|length| length.0 <= bits_max) {
            let span = 1 << (bits_max - bits);
            for (code, &symbol) in (first..first + count).zip(&self.symbols[index..]) {
                let start = code as usize * span;
                entries(symbol, bits, start..start + span);
            }
        }
    }

    /// The symbol that `bits`, from the top, start with, and the length of its code.
    fn search(&self, bits: u64) -> Option<(u8, u32)> {
        self.lengths().find_map(|(length, first, index, count)| {
            let offset = ((bits >> (64 - length)) as u32).wrapping_sub(first);
            (offset < count).then(|| (self.symbols[index + offset as usize], length))
        })
    }
}

/// Tables of a file's codes. One that is the same as in the file before is kept.
pub struct Tables {
    dc: Box<[[u16; 1 << DC_BITS]; TABLES]>,
    dc_codes: [Option<Codes>; TABLES],
    ac: Box<[[u32; 1 << AC_BITS]; TABLES]>,
    ac_codes: [Option<Codes>; TABLES],
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            dc: Box::new([[0; _]; _]),
            dc_codes: [const { None }; TABLES],
            ac: Box::new([[0; _]; _]),
            ac_codes: [const { None }; TABLES],
        }
    }
}

impl Tables {
    /// Makes DC table `index` that of `codes`.
    pub fn set_dc(&mut self, index: usize, codes: &Codes) {
        if self.dc_codes[index].as_ref() == Some(codes) {
            return;
        }
        self.dc[index].fill(0);
        codes.each_short(DC_BITS, |size, bits, span| {
            self.dc[index][span].fill(bits as u16 | u16::from(size) << 8);
        });
        self.dc_codes[index] = Some(codes.clone());
    }

    /// Makes AC table `index` that of `codes`.
    pub fn set_ac(&mut self, index: usize, codes: &Codes) {
        if self.ac_codes[index].as_ref() == Some(codes) {
            return;
        }
        self.ac[index].fill(SLOW | SPECIAL);
        codes.each_short(AC_BITS, |symbol, bits, span| fill(&mut self.ac[index][span], symbol, bits));
        self.ac_codes[index] = Some(codes.clone());
    }

    /// Decodes the difference of a DC coefficient.
    #[inline(always)]
    pub fn dc(&self, table: usize, bits: &mut Bits, window: &WindowBytes) -> Result<i32, Anomaly> {
        bits.refill(window);
        let entry = u32::from(self.dc[table][bits.peek::<DC_BITS>()]);
        let (mut length, mut size) = (entry & 0xff, entry >> 8);
        if length == 0 {
            let (symbol, known) = search(self.dc_codes[table].as_ref(), bits.all()).ok_or(Anomaly)?;
            (length, size) = (known, symbol.into());
        }
        bits.take(length);
        Ok(bits.value(size))
    }

    /// Decodes the AC coefficients of a block that is all zero. Returns the zig-zag positions up to its last coefficient.
    #[inline(always)]
    pub fn ac(
        &self,
        table: usize,
        bits: &mut Bits,
        window: &WindowBytes,
        block: &mut [i16; 64],
    ) -> Result<u8, Anomaly> {
        let entries = &self.ac[table];
        let mut position = 0;
        loop {
            bits.refill(window);
            for _ in 0..SYMBOLS_PER_REFILL {
                let entry = entries[bits.peek::<AC_BITS>()];
                let next = position + (entry >> ADVANCE_SHIFT & ADVANCE_MASK);
                if next < LAST {
                    bits.take(entry);
                    set(block, next, (entry >> VALUE_SHIFT) as i16);
                    position = next;
                    continue;
                }
                if entry & END_OF_BLOCK != 0 {
                    bits.take(entry);
                    return Ok(position as u8 + 1);
                }
                if entry & SLOW == 0 {
                    // The last coefficient, or one behind it.
                    bits.take(entry);
                    set(block, next, (entry >> VALUE_SHIFT) as i16);
                    return if next == LAST { Ok(64) } else { Err(Anomaly) };
                }
                bits.refill(window);
                let known = entry >> VALUE_SHIFT;
                let (symbol, length) = if known != 0 {
                    (known as u8, known >> 8)
                } else {
                    search(self.ac_codes[table].as_ref(), bits.all()).ok_or(Anomaly)?
                };
                bits.take(length);
                let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
                if size == 0 && run != 15 {
                    return Ok(position as u8 + 1);
                }
                position += run + 1;
                if position > LAST {
                    return Err(Anomaly);
                }
                set(block, position, bits.value(size) as i16);
                if position == LAST {
                    return Ok(64);
                }
                break;
            }
        }
    }
}

/// Sets the coefficient at a zig-zag position.
#[inline(always)]
fn set(block: &mut [i16; 64], position: u32, value: i16) {
    // Both masks change nothing: they stand for the checks of an index.
    block[usize::from(NATURAL_ORDER[(position & LAST) as usize] & 63)] = value;
}

#[cold]
#[inline(never)]
fn search(codes: Option<&Codes>, bits: u64) -> Option<(u8, u32)> {
    codes?.search(bits)
}

/// Fills the entries that start with the code of `symbol`, of `bits` bits.
fn fill(entries: &mut [u32], symbol: u8, bits: u32) {
    let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
    let advance = (run + 1) << ADVANCE_SHIFT;
    if size == 0 {
        // libjpeg takes every run without a value, but that of 16, as the end of the block.
        entries.fill(if run == 15 { bits | advance } else { bits | END_OF_BLOCK | SPECIAL });
    } else if bits + size > AC_BITS {
        entries.fill(SLOW | SPECIAL | (u32::from(symbol) | bits << 8) << VALUE_SHIFT);
    } else {
        let span = entries.len() >> size;
        for (value, entries) in (0..).zip(entries.chunks_exact_mut(span)) {
            let value = u32::from(extend(value, size) as u16) << VALUE_SHIFT;
            entries.fill((bits + size) | advance | value);
        }
    }
}

/// The value that `size` bits mean (T.81, F.2.2.1).
fn extend(bits: u32, size: u32) -> i32 {
    let is_negative = bits < 1 << (size - 1);
    bits as i32 - if is_negative { (1 << size) - 1 } else { 0 }
}
