//! Segments that lie below each other, decoded together: one block of each, then the next.
//!
//! A look-up waits for the shift of the one before it, and that takes longer than a core needs to begin a dozen others.
//! So the symbols of several segments are taken in turn, in one straight run of instructions, until all of them have
//! reached the end of their block; one that is done before the others idles, by a conditional move. Blocks below each
//! other are alike, so that they seldom idle for long (1.4 steps for each symbol, idle ones and the rest of a run
//! included), and the one branch that is hard to foresee, out of the block, is shared.
//!
//! What was tried beside it, on the photos and the machine of [`super`]'s table, where it takes 0.40 to 0.41 ms a photo:
//! look-ups of 11 or 13 bits instead of 12 (0.42, 0.41; of shorter ones more symbols do not fit, longer ones push each other
//! out of the cache); five symbols of 11 bits before more bits are taken (0.45); a counter of bits in place of the one
//! behind them (0.45); the lanes as elements of arrays (0.42); no check of the bounds of a refill, by unsafe code (1 %); DC
//! look-ups of 8, 9, 11 or 12 bits instead of 10 (no difference, or slower); processors' BMI2 instructions (1 %).

mod table;

use std::hint::select_unpredictable;
use std::num::NonZero;
use std::ops::Range;

use super::huffman::{Anomaly, Codes, is_end};
use super::mcu_rows::McuRows;
use super::scan::Unit;
use super::segment::unstuff_all;
use table::{AC_BITS, ADVANCE_SHIFT, DC_BITS, IDLE, PLACES, SLOW, Table, store, value_of};

/// Most segments that are decoded together.
pub const LANES_MAX: usize = 4;

/// Symbols that are taken before more bits are: as many as surely fit in the 56 that are there.
const SYMBOLS: u32 = 4;

/// Position of a block that is done, when more bits are taken.
const DONE: u32 = 128;

/// The position in a block up to which symbols are taken.
const IN_BLOCK: u32 = 63;

/// Bytes behind those of a segment that a look at its end may read.
const PADDING: usize = 32;

/// Where a lane stands in the scratch memory.
#[derive(Debug, Clone, Copy)]
struct Lane {
    /// The next bits, from the top; behind those of the word that was read last, a one.
    buffer: u64,
    /// Where that word lies.
    place: u32,
}

impl Lane {
    fn at(place: usize) -> Self {
        Self { buffer: 1, place: place as u32 }
    }

    /// Bits from the start of the memory.
    fn position(self) -> usize {
        8 * self.place as usize + self.buffer.trailing_zeros() as usize
    }

    /// Makes at least 56 bits available.
    #[inline(always)]
    fn refill(&mut self, bytes: &[u8]) -> Result<(), Anomaly> {
        let taken = NonZero::new(self.buffer).ok_or(Anomaly)?.trailing_zeros();
        self.place += taken / 8;
        let place = self.place as usize;
        let word = bytes.get(place..place + 8).and_then(<[u8]>::first_chunk).ok_or(Anomaly)?;
        self.buffer = (u64::from_be_bytes(*word) | 1) << (taken % 8);
        Ok(())
    }
}

/// Memory and tables, kept from image to image.
#[derive(Default)]
pub struct Lockstep {
    dc: [Table<{ 1 << DC_BITS }>; 4],
    ac: [Table<{ 1 << AC_BITS }>; 4],
    /// The bytes of segments, unstuffed, one after the other.
    bytes: Vec<u8>,
}

/// Some MCUs of every segment.
pub struct Mcus {
    /// Those that are decoded start with the segment; these are kept.
    pub kept: Range<usize>,
    /// Which of those in [`McuRows`] the first of them is.
    pub first: usize,
    /// Of so many of the segments, the first ones, nothing may be left behind them.
    pub to_the_end: usize,
}

impl Lockstep {
    /// Makes the tables of a file's components.
    pub fn set_dc(&mut self, index: usize, codes: &Codes) {
        self.dc[index].set(codes, false);
    }

    /// The same.
    pub fn set_ac(&mut self, index: usize, codes: &Codes) {
        self.ac[index].set(codes, true);
    }

    /// Decodes segments, which are those bytes of `file`, into as many rows of MCUs.
    pub fn decode(
        &mut self,
        file: &[u8],
        segments: &[Range<usize>],
        units: &[Unit],
        mcus: &Mcus,
        rows: &mut McuRows,
    ) -> Result<(), Anomaly> {
        match segments {
            [a, b] => self.decode_lanes([a, b], file, units, mcus, rows),
            [a, b, c] => self.decode_lanes([a, b, c], file, units, mcus, rows),
            [a, b, c, d] => self.decode_lanes([a, b, c, d], file, units, mcus, rows),
            _ => unreachable!("two to four rows are decoded together"),
        }
    }

    /// Alone, the compiler finds registers for the lanes.
    #[inline(never)]
    fn decode_lanes<const N: usize>(
        &mut self,
        segments: [&Range<usize>; N],
        file: &[u8],
        units: &[Unit],
        mcus: &Mcus,
        rows: &mut McuRows,
    ) -> Result<(), Anomaly>
    where
        [Lane; N]: Lanes<N>,
    {
        let mut ends = [0; N];
        let mut lanes = [Lane::at(0); N];
        let room = segments.iter().map(|segment| segment.len() + PADDING).sum();
        if u32::try_from(room).is_err() {
            return Err(Anomaly);
        }
        if self.bytes.len() < room {
            self.bytes.resize(room, 0);
        }
        let mut start = 0;
        for (lane, segment) in segments.into_iter().enumerate() {
            lanes[lane] = Lane::at(start);
            let length = unstuff_all(&file[segment.clone()], &mut self.bytes[start..]);
            ends[lane] = start + length;
            self.bytes[start + length..start + length + PADDING].fill(0);
            start += length + PADDING;
        }
        let bytes = &self.bytes[..start];
        let mut predictions = [[0; N]; 3];
        let mut passed = [[0; 64]; N];
        for mcu in 0..mcus.kept.end {
            for unit in units {
                let blocks = match mcu.checked_sub(mcus.kept.start) {
                    Some(kept) => {
                        let blocks = rows.column_mut(unit.first + (mcus.first + kept) * unit.stride);
                        *blocks = [[0; 64]; N];
                        blocks
                    }
                    None => &mut passed,
                };
                let (dc, ac) = (&self.dc[unit.dc_table], &self.ac[unit.ac_table]);
                let predictions = &mut predictions[unit.component];
                for (lane, prediction) in lanes.iter_mut().zip(&mut *predictions) {
                    *prediction += difference(dc, lane, bytes)?;
                }
                lanes.coefficients(ac, bytes, blocks)?;
                for (block, prediction) in blocks.iter_mut().zip(*predictions) {
                    block[0] = i16::try_from(prediction).map_err(|_| Anomaly)?;
                }
            }
        }
        for (index, (lane, end)) in lanes.into_iter().zip(ends).enumerate() {
            let left = (8 * end).checked_sub(lane.position()).ok_or(Anomaly)?;
            if index < mcus.to_the_end && left >= 8 {
                return Err(Anomaly);
            }
        }
        Ok(())
    }
}

/// Takes the difference of a DC coefficient.
#[inline(always)]
fn difference(table: &Table<{ 1 << DC_BITS }>, lane: &mut Lane, bytes: &[u8]) -> Result<i32, Anomaly> {
    lane.refill(bytes)?;
    let entry = table.entry(lane.buffer);
    if entry >> ADVANCE_SHIFT == SLOW {
        let (_, value, buffer) = table.slow(entry, lane.buffer)?;
        lane.buffer = buffer;
        return Ok(value);
    }
    lane.buffer = lane.buffer.wrapping_shl(entry);
    Ok(value_of(entry).into())
}

/// So many lanes.
trait Lanes<const N: usize> {
    /// Takes the AC coefficients of a block of each.
    fn coefficients(
        &mut self,
        table: &Table<{ 1 << AC_BITS }>,
        bytes: &[u8],
        blocks: &mut [[i16; 64]; N],
    ) -> Result<(), Anomaly>;
}

// A variable for each lane: where they were elements of arrays, the compiler kept them in memory, and all took a twentieth
// longer.
macro_rules! lanes {
    ($count:literal: $($lane:literal $it:ident $position:ident)+) => {
        impl Lanes<$count> for [Lane; $count] {
            #[inline(always)]
            fn coefficients(
                &mut self,
                table: &Table<{ 1 << AC_BITS }>,
                bytes: &[u8],
                blocks: &mut [[i16; 64]; $count],
            ) -> Result<(), Anomaly> {
                let [$(mut $it),+] = *self;
                $(let mut $position = 1;)+
                loop {
                    $($it.refill(bytes)?;)+
                    for _ in 0..SYMBOLS {
                        $(
                            let entry = table.entry($it.buffer);
                            let entry = select_unpredictable($position > IN_BLOCK, IDLE << ADVANCE_SHIFT, entry);
                            $it.buffer = $it.buffer.wrapping_shl(entry);
                            $position = ($position + (entry >> ADVANCE_SHIFT)) % PLACES.len() as u32;
                            store(&mut blocks[$lane], $position, value_of(entry));
                        )+
                    }
                    if ($($position)|+) & SLOW != 0 {
                        $(
                            if $position & SLOW != 0 {
                                ($it, $position) = slow_symbol(table, $it, $position, bytes, &mut blocks[$lane])?;
                            }
                        )+
                    }
                    if $(($position > IN_BLOCK))&+ {
                        break;
                    }
                    $($position = select_unpredictable($position > IN_BLOCK, DONE, $position);)+
                }
                *self = [$($it),+];
                Ok(())
            }
        }
    };
}

lanes!(2: 0 lane0 position0 1 lane1 position1);
lanes!(3: 0 lane0 position0 1 lane1 position1 2 lane2 position2);
lanes!(4: 0 lane0 position0 1 lane1 position1 2 lane2 position2 3 lane3 position3);

/// Takes a symbol that did not fit.
#[inline(never)]
fn slow_symbol(
    table: &Table<{ 1 << AC_BITS }>,
    mut lane: Lane,
    position: u32,
    bytes: &[u8],
    block: &mut [i16; 64],
) -> Result<(Lane, u32), Anomaly> {
    lane.refill(bytes)?;
    let entry = table.entry(lane.buffer);
    let (symbol, value, buffer) = table.slow(entry, lane.buffer)?;
    lane.buffer = buffer;
    if is_end(symbol) {
        return Ok((lane, DONE));
    }
    // Idle steps count whole blocks.
    let position = (position - SLOW) % 64 + u32::from(symbol >> 4) + 1;
    store(block, position, value as i16);
    Ok((lane, position))
}
