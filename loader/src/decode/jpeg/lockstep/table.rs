//! Look-ups of the lanes: whole symbols with their values, and the places where they go.

use super::super::frame::NATURAL_ORDER;
use super::super::huffman::{Anomaly, CodeTable, Codes, extend, is_end};

/// Bits of a look-up.
pub(super) const AC_BITS: u32 = 12;
pub(super) const DC_BITS: u32 = 10;

/// In an entry: the bits that it takes, up to bit 5, then its value in 16 bits, and how far it advances at the top.
const VALUE_SHIFT: u32 = 6;
pub(super) const ADVANCE_SHIFT: u32 = 22;

/// What the end of a block, an idle step and a symbol that does not fit advance by. Positions up to 63 go on;
/// those up to 79 lie beyond the block, where libjpeg stores the coefficients of a run that is too long at its last
/// position; all others tell what came before. Those from `SLOW` on wait to be read by another way.
const END_OF_BLOCK: u32 = 128;
pub(super) const IDLE: u32 = 64;
pub(super) const SLOW: u32 = 512;

/// Where the coefficient goes that reaches a position, which is one further than its own. Slot 0 takes what is none; the
/// DC coefficient is stored there at last.
pub(super) const PLACES: [u8; 1 << 10] = {
    let mut places = [0; 1 << 10];
    let mut position = 1;
    while position < 80 {
        places[position] = if position <= 64 { NATURAL_ORDER[position - 1] } else { 63 };
        position += 1;
    }
    places
};

/// Codes with their values, for all that fits in so many bits.
pub(super) struct Table<const ENTRIES: usize> {
    codes: CodeTable,
    entries: Box<[u32; ENTRIES]>,
}

impl<const ENTRIES: usize> Default for Table<ENTRIES> {
    fn default() -> Self {
        Self { codes: CodeTable::default(), entries: Box::new([0; _]) }
    }
}

impl<const ENTRIES: usize> Table<ENTRIES> {
    const BITS: u32 = ENTRIES.ilog2();

    /// Makes it that of `codes`. A symbol is a run and the size of a value; that of a DC difference has no run.
    pub(super) fn set(&mut self, codes: &Codes, is_ac: bool) {
        if self.codes.is_of(codes) {
            return;
        }
        self.codes.set(codes);
        self.entries.fill(SLOW << ADVANCE_SHIFT);
        codes.each_short(Self::BITS, |symbol, bits, span| {
            let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
            let entries = &mut self.entries[span];
            if is_ac && is_end(symbol) {
                entries.fill(bits | END_OF_BLOCK << ADVANCE_SHIFT);
            } else if bits + size > Self::BITS {
                entries.fill(SLOW << ADVANCE_SHIFT | bits << VALUE_SHIFT | u32::from(symbol) << (VALUE_SHIFT + 8));
            } else {
                let both = (bits + size) | (run + 1) << ADVANCE_SHIFT;
                let span = entries.len() >> size;
                for (value, entries) in (0..).zip(entries.chunks_exact_mut(span)) {
                    let value = if size > 0 { extend(value, size) } else { 0 };
                    entries.fill(both | u32::from(value as u16) << VALUE_SHIFT);
                }
            }
        });
    }

    #[inline(always)]
    pub(super) fn entry(&self, buffer: u64) -> u32 {
        self.entries[(buffer >> (64 - Self::BITS)) as usize]
    }

    /// A symbol whose entry is `entry`, which does not hold it all: the symbol, its value, and the bits behind them.
    /// `buffer` has 31 bits at least.
    #[inline(always)]
    pub(super) fn slow(&self, entry: u32, buffer: u64) -> Result<(u8, i32, u64), Anomaly> {
        let (symbol, length) = match (entry >> VALUE_SHIFT & 0xff, (entry >> (VALUE_SHIFT + 8)) as u8) {
            (0, _) => self.codes.first(buffer)?,
            (length, symbol) => (symbol, length),
        };
        let buffer = buffer << length;
        let size = u32::from(symbol & 15);
        let bits = (buffer >> 1 >> (63 - size)) as i32;
        let is_negative = i32::from(buffer >> 63 == 0);
        Ok((symbol, bits - (is_negative << size) + is_negative, buffer << size))
    }
}

/// The value in an entry.
#[inline(always)]
pub(super) fn value_of(entry: u32) -> i16 {
    (entry >> VALUE_SHIFT) as i16
}

/// Stores what reaches a position.
#[inline(always)]
pub(super) fn store(block: &mut [i16; 64], position: u32, value: i16) {
    // Both masks change nothing: they stand for the checks of an index.
    block[usize::from(PLACES[position as usize & (PLACES.len() - 1)] & 63)] = value;
}
