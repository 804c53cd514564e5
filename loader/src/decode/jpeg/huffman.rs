//! Huffman codes and the blocks that they code (ITU-T T.81, annexes C and F).
//!
//! A look-up takes as many whole symbols as fit in the next bits: where a block is kept, up to two, with the values behind
//! them; where it is passed over, up to its end. The next look-up waits for nothing but the shift by the bits that they
//! took. One branch, on the position in the block, finds all that is special: the end of the block, its last
//! coefficient, and symbols that do not fit (3 %). Those are read one by one.
//!
//! Kept blocks of one symbol a look-up, of 11 or 12 bits, took 8 and 17 % longer, on the photos of [`super`]'s table.

use std::hint::select_unpredictable;
use std::ops::Range;

use super::frame::NATURAL_ORDER;
use super::segment::{Bits, WindowBytes};

/// Bits of a look-up of symbols. More make tables that push other things out of the cache.
const KEEP_BITS: u32 = 11;
const PASS_BITS: u32 = 12;

/// Bits of a look-up of a code alone.
const CODE_BITS: u32 = 9;

/// Tables of DC codes that a file may have.
const TABLES: usize = 4;

/// AC tables that are kept: the usual ones among those of files that have their own.
const AC_TABLES: usize = 8;

/// In an entry for symbols: the bits that they take, up to bit 5, then flags, from bit 8 how far they advance. Special
/// entries advance by [`SPECIAL`] in addition, out of the block.
const SLOW: u32 = 1 << 6;
const END_OF_BLOCK: u32 = 1 << 7;
const ADVANCE_SHIFT: u32 = 8;
const ADVANCE_MASK: u32 = 0x7f;
const SPECIAL: u32 = 64 << ADVANCE_SHIFT;

/// In an entry for symbols that are kept: from bit 15 how far the first advances, from bit 20 its value, from bit 26 the
/// value of the second. If there is one alone, it is both; if the second is the end of the block, its value is 1; if the
/// first is, it is a 0 at the next position, and the value of the second is 0.
const FIRST_SHIFT: u32 = 15;
const FIRST_MASK: u32 = 31;
const FIRST_VALUE: u32 = 20;
const SECOND_VALUE: u32 = 26;
const VALUE_BITS: u32 = 6;
const VALUE_MASK: u32 = (1 << VALUE_BITS) - 1;

/// Bits of the largest value that fits there.
const SIZE_MAX: u32 = 5;

/// Entries in whose place no symbol fits.
const KEEP_SLOW: u32 = SLOW | SPECIAL;
const PASS_SLOW: u16 = (SLOW | SPECIAL) as u16;

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

    /// How many codes there are of each length, and their meanings.
    #[cfg(test)]
    pub(super) fn parts(&self) -> ([u8; 16], Vec<u8>) {
        (self.lengths, self.symbols[..self.count()].to_vec())
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
    pub(super) fn each_short(&self, bits_max: u32, mut entries: impl FnMut(u8, u32, Range<usize>)) {
        for (bits, first, index, count) in self.lengths().take_while(|length| length.0 <= bits_max) {
            let span = 1 << (bits_max - bits);
            for (code, &symbol) in (first..first + count).zip(&self.symbols[index..]) {
                let start = code as usize * span;
                entries(symbol, bits, start..start + span);
            }
        }
    }
}

/// Codes alone.
pub(super) struct CodeTable {
    /// For what the next [`CODE_BITS`] bits start with: the symbol from bit 8, and the bits of its code below; or 0.
    short: [u16; 1 << CODE_BITS],
    /// For longer codes, by length: the first 16 bits that start with none of that length or less, and the index of a symbol
    /// less its code.
    limits: [(u32, usize); 17],
    codes: Option<Codes>,
}

impl Default for CodeTable {
    fn default() -> Self {
        Self { short: [0; _], limits: [(0, 0); _], codes: None }
    }
}

impl CodeTable {
    /// Whether it is that of `codes`.
    pub(super) fn is_of(&self, codes: &Codes) -> bool {
        self.codes.as_ref() == Some(codes)
    }

    /// Makes it that of `codes`.
    pub(super) fn set(&mut self, codes: &Codes) {
        self.short.fill(0);
        codes.each_short(CODE_BITS, |symbol, bits, span| {
            self.short[span].fill(u16::from(symbol) << 8 | bits as u16);
        });
        for (bits, first, index, count) in codes.lengths() {
            self.limits[bits as usize] = ((first + count) << (16 - bits), index.wrapping_sub(first as usize));
        }
        self.codes = Some(codes.clone());
    }

    /// Takes a code; returns its symbol.
    #[inline(always)]
    fn take(&self, bits: &mut Bits) -> Result<u8, Anomaly> {
        let (symbol, length) = self.first(bits.all())?;
        bits.take(length);
        Ok(symbol)
    }

    /// The code at the top of `bits`: its symbol and its length.
    #[inline(always)]
    pub(super) fn first(&self, bits: u64) -> Result<(u8, u32), Anomaly> {
        let entry = self.short[(bits >> (64 - CODE_BITS)) as usize];
        match entry {
            0 => self.search(bits).ok_or(Anomaly),
            _ => Ok(((entry >> 8) as u8, u32::from(entry & 0xff))),
        }
    }

    #[cold]
    #[inline(never)]
    fn search(&self, bits: u64) -> Option<(u8, u32)> {
        let next = (bits >> 48) as u32;
        let length = (CODE_BITS as usize + 1..=16).find(|&length| next < self.limits[length].0)?;
        let index = self.limits[length].1.wrapping_add((next >> (16 - length)) as usize);
        let symbol = self.codes.as_ref()?.symbols.get(index)?;
        Some((*symbol, length as u32))
    }
}

/// Tables of codes. Files share them, so several are kept.
#[derive(Default)]
pub struct Tables {
    dc: [CodeTable; TABLES],
    ac: [AcTable; AC_TABLES],
    /// Counts requests for AC tables.
    requests: u64,
}

struct AcTable {
    codes: CodeTable,
    /// The last request for it.
    requested: u64,
    keep: Box<[u32; 1 << KEEP_BITS]>,
    pass: Box<[u16; 1 << PASS_BITS]>,
}

impl Default for AcTable {
    fn default() -> Self {
        Self { codes: CodeTable::default(), requested: 0, keep: Box::new([0; _]), pass: Box::new([0; _]) }
    }
}

impl Tables {
    /// Makes DC table `index` that of `codes`.
    pub fn set_dc(&mut self, index: usize, codes: &Codes) {
        if !self.dc[index].is_of(codes) {
            self.dc[index].set(codes);
        }
    }

    /// The index of an AC table of `codes`. It lives as long as no other [`AC_TABLES`] are asked for.
    pub fn ac(&mut self, codes: &Codes) -> usize {
        let known = self.ac.iter().position(|table| table.codes.is_of(codes));
        let index = known.unwrap_or_else(|| {
            let oldest = (0..AC_TABLES).min_by_key(|&index| self.ac[index].requested).expect("there are tables");
            let table = &mut self.ac[oldest];
            table.codes.set(codes);
            fill_keep(&mut table.keep, codes);
            fill_pass(&mut table.pass, codes);
            oldest
        });
        self.requests += 1;
        self.ac[index].requested = self.requests;
        index
    }

    /// Decodes the difference of a DC coefficient.
    #[inline(always)]
    pub fn dc(&self, table: usize, bits: &mut Bits, window: &WindowBytes) -> Result<i32, Anomaly> {
        bits.refill(window);
        let size = self.dc[table].take(bits)?;
        Ok(bits.value(size.into()))
    }

    /// Decodes the AC coefficients of a block that is all zero.
    #[inline(always)]
    pub fn keep_ac(
        &self,
        table: usize,
        bits: &mut Bits,
        window: &WindowBytes,
        block: &mut [i16; 64],
    ) -> Result<(), Anomaly> {
        let AcTable { codes, keep, .. } = &self.ac[table];
        let mut position = 0;
        loop {
            bits.refill(window);
            for _ in 0..56 / KEEP_BITS {
                let entry = keep[bits.peek::<KEEP_BITS>()];
                let next = position + (entry >> ADVANCE_SHIFT & ADVANCE_MASK);
                let first = position + (entry >> FIRST_SHIFT & FIRST_MASK);
                let values = [(entry << VALUE_BITS) as i32 >> (32 - VALUE_BITS), entry as i32 >> (32 - VALUE_BITS)];
                if next < LAST {
                    bits.take(entry);
                    set(block, first, values[0] as i16);
                    set(block, next, values[1] as i16);
                    position = next;
                    continue;
                }
                if entry & END_OF_BLOCK != 0 {
                    let end = first + values[1] as u32;
                    // Behind the last coefficient there is no end of the block.
                    if end <= LAST {
                        bits.take(entry);
                        set(block, first, values[0] as i16);
                        return Ok(());
                    }
                }
                bits.refill(window);
                let symbol = codes.take(bits)?;
                let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
                if is_end(symbol) {
                    return Ok(());
                }
                position += run + 1;
                if position > LAST {
                    return Err(Anomaly);
                }
                set(block, position, bits.value(size) as i16);
                if position == LAST {
                    return Ok(());
                }
                break;
            }
        }
    }

    /// Passes over the AC coefficients of a block.
    #[inline(always)]
    pub fn pass_ac(&self, table: usize, bits: &mut Bits, window: &WindowBytes) -> Result<(), Anomaly> {
        let AcTable { codes, pass, .. } = &self.ac[table];
        let mut position = 0;
        loop {
            bits.refill(window);
            for _ in 0..56 / PASS_BITS {
                let entry = u32::from(pass[bits.peek::<PASS_BITS>()]);
                let next = position + (entry >> ADVANCE_SHIFT);
                if next < LAST {
                    bits.take(entry);
                    position = next;
                    continue;
                }
                if entry & END_OF_BLOCK != 0 && next < 64 + LAST {
                    bits.take(entry);
                    return Ok(());
                }
                bits.refill(window);
                let symbol = codes.take(bits)?;
                if is_end(symbol) {
                    return Ok(());
                }
                bits.take(u32::from(symbol & 15));
                position += u32::from(symbol >> 4) + 1;
                if position >= LAST {
                    return if position == LAST { Ok(()) } else { Err(Anomaly) };
                }
                break;
            }
        }
    }
}

/// Whether a symbol ends its block: libjpeg takes every run without a value so, but that of 16.
pub(super) fn is_end(symbol: u8) -> bool {
    symbol & 15 == 0 && symbol != 0xf0
}

/// Sets the coefficient at a zig-zag position.
#[inline(always)]
fn set(block: &mut [i16; 64], position: u32, value: i16) {
    // Both masks change nothing: they stand for the checks of an index.
    block[usize::from(NATURAL_ORDER[(position & LAST) as usize] & 63)] = value;
}

/// Fills a table for blocks that are kept.
fn fill_keep(entries: &mut [u32; 1 << KEEP_BITS], codes: &Codes) {
    // A symbol alone, as an entry, and what it adds to the entry of a symbol before it.
    let mut alone = [KEEP_SLOW; 1 << KEEP_BITS];
    let mut added = [63; 1 << KEEP_BITS];
    codes.each_short(KEEP_BITS, |symbol, bits, span| {
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        let (alone, added) = (&mut alone[span.clone()], &mut added[span]);
        if is_end(symbol) {
            alone.fill(bits | END_OF_BLOCK | SPECIAL | 1 << FIRST_SHIFT);
            added.fill(bits | END_OF_BLOCK | SPECIAL | 1 << SECOND_VALUE);
        } else if bits + size <= KEEP_BITS && size <= SIZE_MAX {
            let span = alone.len() >> size;
            let both = (bits + size) | (run + 1) << ADVANCE_SHIFT;
            for (value, places) in (0..).zip((0..alone.len()).step_by(span)) {
                let value = if size > 0 { extend(value, size) as u32 } else { 0 };
                let first = (run + 1) << FIRST_SHIFT | (value & VALUE_MASK) << FIRST_VALUE;
                alone[places..places + span].fill(both | first | value << SECOND_VALUE);
                added[places..places + span].fill(both | value << SECOND_VALUE);
            }
        }
    });
    for (index, (entry, &first)) in entries.iter_mut().zip(&alone).enumerate() {
        let bits = first & 63;
        let second = added[index << bits & ((1 << KEEP_BITS) - 1)];
        let is_pair = (first & (SLOW | END_OF_BLOCK) == 0) & (bits + (second & 63) <= KEEP_BITS);
        // The value of the first is no longer that of both.
        let pair = (first & ((1 << SECOND_VALUE) - 1)).wrapping_add(second);
        *entry = select_unpredictable(is_pair, pair, first);
    }
}

/// Fills a table for passing over blocks. What follows a symbol is an entry of a table for as many bits as it leaves, so
/// tables are made for 0, 1, … bits, each from those before it.
fn fill_pass(entries: &mut [u16; 1 << PASS_BITS], codes: &Codes) {
    // That for `count` bits starts at its number of entries.
    let mut tables = [PASS_SLOW; 2 << PASS_BITS];
    for count in 1..=PASS_BITS {
        let (before, table) = tables.split_at_mut(1 << count);
        codes.each_short(count, |symbol, bits, span| {
            let (run, size) = (u16::from(symbol >> 4), u32::from(symbol & 15));
            let table = &mut table[span];
            if is_end(symbol) {
                table.fill(bits as u16 | (END_OF_BLOCK | SPECIAL) as u16);
            } else if let Some(left) = count.checked_sub(bits + size) {
                let symbol = (bits + size) as u16 | (run + 1) << ADVANCE_SHIFT;
                let follows = &before[1 << left..2 << left];
                for table in table.chunks_exact_mut(follows.len()) {
                    for (entry, &next) in table.iter_mut().zip(follows) {
                        // Not if nothing fits, or if they cannot be of one block.
                        let both = next + symbol;
                        let is_one = next == PASS_SLOW || both & (63 << ADVANCE_SHIFT) < symbol & (63 << ADVANCE_SHIFT);
                        *entry = if is_one { symbol } else { both };
                    }
                }
            }
        });
    }
    entries.copy_from_slice(&tables[1 << PASS_BITS..]);
}

/// The value that `size` bits mean (T.81, F.2.2.1).
pub(super) fn extend(bits: u32, size: u32) -> i32 {
    let is_negative = bits < 1 << (size - 1);
    bits as i32 - if is_negative { (1 << size) - 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths as counts of codes of 1, 2, … bits; what the next 16 bits mean, with the bits of the code, 0 for nothing.
    fn check(counts: &[u8], symbols: &[u8], expected: Option<&[(u16, u8, u32)]>) {
        let mut lengths = [0; 16];
        lengths[..counts.len()].copy_from_slice(counts);
        let codes = Codes::new(lengths, symbols);
        assert_eq!(codes.is_some(), expected.is_some(), "{counts:?}");
        for (next, symbol, length) in expected.unwrap_or_default() {
            let mut table = CodeTable::default();
            table.set(codes.as_ref().expect("checked before"));
            let bits = u64::from(*next) << 48;
            let entry = table.short[(bits >> (64 - CODE_BITS)) as usize];
            let found = match entry {
                0 => table.search(bits),
                _ => Some(((entry >> 8) as u8, u32::from(entry & 0xff))),
            };
            assert_eq!(found, (*length > 0).then_some((*symbol, *length)), "{counts:?}, {next:#b}");
        }
    }

    #[test]
    fn codes_are_those_that_can_be() {
        check(&[1, 1], &[7, 8], Some(&[(0, 7, 1), (0b10 << 14, 8, 2), (0b11 << 14, 0, 0)]));
        // No code is all ones.
        check(&[2], &[7, 8], None);
        check(&[1, 2], &[7, 8, 9], None);
        check(&[1, 1], &[7], None);
        check(&[1, 1], &[7, 8, 9], None);
        check(&[0; 16], &[], Some(&[(0, 0, 0), (0xffff, 0, 0)]));
        let symbols: Vec<u8> = (0..16).collect();
        let found = [(0xfffe, 15, 16), (0xfffc, 14, 15), (0xffff, 0, 0), (0xff00, 8, 9), (0xff80, 9, 10)];
        check(&[1; 16], &symbols, Some(&found));
    }
}
