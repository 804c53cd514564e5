//! The entropy-coded data of a scan, MCU row by MCU row (ITU-T T.81, A.2 and F.2).
//!
//! Without restart markers there is no way to a row but through all those above it: they are decoded too, and so are the
//! columns to the left and right; their coefficients go nowhere. Where there are markers ([`super::restarts`]), decoding
//! starts behind the last before what is needed, and leaves a row behind its last column. Where segments begin with rows,
//! several rows are decoded at once ([`super::lockstep`]).

use std::ops::Range;

use super::frame::{Component, Frame};
use super::huffman::{Anomaly, Tables};
use super::lockstep::{LANES_MAX, Lockstep, Mcus};
use super::mcu_rows::McuRows;
use super::restarts::Restarts;
use super::segment::{Bits, Position, Segment, Window, WindowBytes};

/// Most blocks of an MCU: luma of 4x1 or 2x2, and colour.
const UNITS_MAX: usize = 6;

/// A block of each MCU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unit {
    /// Whose block it is.
    pub component: usize,
    /// Which codes it has.
    pub dc_table: usize,
    /// Which codes it has.
    pub ac_table: usize,
    /// Where it lies among the blocks that are kept, in the first MCU, …
    pub first: usize,
    /// … and from one MCU to the next.
    pub stride: usize,
}

/// What is needed of a scan, in MCUs.
#[derive(Debug, Clone)]
pub struct Needed {
    /// Rows that are kept.
    pub rows: Range<usize>,
    /// Columns that are kept.
    pub columns: Range<usize>,
    /// Rows that libjpeg reads, at least those up to the last that is kept. Where it would find something odd, so do we.
    pub rows_read: usize,
}

/// Decodes the scans of one file after the other.
#[derive(Default)]
pub struct Scan {
    /// The first `unit_count` of them are an MCU.
    units: [Unit; UNITS_MAX],
    unit_count: usize,
    mcus_across: usize,
    restart_interval: usize,
    restarts: Restarts,
    /// Rows that are left to be kept, and the first that libjpeg does not read.
    rows: Range<usize>,
    rows_read: usize,
    lockstep: Lockstep,
    /// Whether it decodes this scan.
    in_lockstep: bool,
    /// Rows that it decoded so far, of all scans.
    rows_in_lockstep: u64,
    stream: Stream,
}

/// Where one decoder stands that goes through a scan alone.
#[derive(Default)]
struct Stream {
    tables: Tables,
    window: Window,
    position: Position,
    /// DC of the last block of each component.
    predictions: [i32; 3],
    /// The next MCU, counted through the whole scan, and the segment that it stands in, or at the end of.
    mcu: usize,
    segment: usize,
}

impl Scan {
    /// Starts with a part of the scan of `file`.
    pub fn start(&mut self, file: &[u8], frame: &Frame, needed: Needed, rows: &mut McuRows) -> Result<(), Anomaly> {
        let Needed { rows: needed_rows, columns, rows_read } = needed;
        self.mcus_across = frame.mcus_across;
        self.restart_interval = frame.restart_interval;
        if self.restart_interval > 0 {
            let segments = (rows_read * self.mcus_across).div_ceil(self.restart_interval);
            self.restarts.find(file, frame.scan_start, segments)?;
        }
        self.in_lockstep = needed_rows.len() > 1
            && self.restart_interval > 0
            && self.mcus_across.is_multiple_of(self.restart_interval);
        self.rows = needed_rows;
        self.rows_read = rows_read;
        self.stream.position = Position::at(frame.scan_start);
        self.stream.predictions = [0; 3];
        (self.stream.mcu, self.stream.segment) = (0, 0);
        rows.start(frame, columns, 1);
        self.set_units(frame, rows);
        Ok(())
    }

    fn set_units(&mut self, frame: &Frame, rows: &McuRows) {
        self.unit_count = 0;
        for (index, component) in frame.components[..frame.count].iter().enumerate() {
            let Component { h, v, dc_table, mut ac_table, .. } = *component;
            let [dc_codes, ac_codes] = [&frame.dc_codes[dc_table], &frame.ac_codes[ac_table]]
                .map(|codes| codes.as_ref().expect("an ordinary frame has its tables"));
            if self.in_lockstep {
                self.lockstep.set_dc(dc_table, dc_codes);
                self.lockstep.set_ac(ac_table, ac_codes);
            } else {
                self.stream.tables.set_dc(dc_table, dc_codes);
                ac_table = self.stream.tables.ac(ac_codes);
            }
            for block in 0..h * v {
                let first = rows.first(index) + block / h * rows.mcus().len() * h + block % h;
                self.units[self.unit_count] = Unit { component: index, dc_table, ac_table, first, stride: h };
                self.unit_count += 1;
            }
        }
    }

    /// Decodes the next rows of MCUs of `file` that are to be kept: one or more, as `rows` then tells.
    pub fn next_rows(&mut self, file: &[u8], rows: &mut McuRows) -> Result<(), Anomaly> {
        if self.in_lockstep {
            // Groups of equal sizes, as nearly as can be, so that no row is left over.
            let count = self.rows.len().div_ceil(self.rows.len().div_ceil(LANES_MAX));
            rows.set_count(count);
            self.lockstep_rows(file, count, rows)?;
            self.rows.start += count;
            self.rows_in_lockstep += count as u64;
            return Ok(());
        }
        let start = self.rows.start * self.mcus_across;
        let columns = rows.mcus();
        self.jump(start + columns.start);
        self.advance(file, start + columns.start, None)?;
        self.advance(file, start + columns.end, Some(rows))?;
        self.rows.start += 1;
        if self.rows.is_empty() {
            self.pass_below(file)?;
        }
        Ok(())
    }

    /// How many rows of MCUs were decoded together with others, in all scans.
    pub fn rows_in_lockstep(&self) -> u64 {
        self.rows_in_lockstep
    }

    /// Decodes `count` rows at once, one segment of each after the other.
    fn lockstep_rows(&mut self, file: &[u8], count: usize, rows: &mut McuRows) -> Result<(), Anomaly> {
        let interval = self.restart_interval;
        let segments_across = self.mcus_across / interval;
        let columns = rows.mcus();
        for across in columns.start / interval..columns.end.div_ceil(interval) {
            let mut segments = [const { 0..0 }; LANES_MAX];
            for (row, bytes) in (self.rows.start..).zip(&mut segments[..count]) {
                *bytes = self.restarts.bytes(row * segments_across + across);
            }
            let start = across * interval;
            let end = columns.end.min(start + interval);
            let kept = columns.start.max(start);
            let is_whole = end == start + interval;
            // What is left behind the last MCU that libjpeg reads, it does not see.
            let last = (self.rows.start + count - 1) * segments_across + across;
            let seen = if last + 1 < self.restarts.count() { count } else { count - 1 };
            let mcus = Mcus {
                kept: kept - start..end - start,
                first: kept - columns.start,
                to_the_end: if is_whole { seen } else { 0 },
            };
            self.lockstep.decode(file, &segments[..count], &self.units[..self.unit_count], &mcus, rows)?;
        }
        Ok(())
    }

    /// Goes on with the segment of MCU `mcu`, if that is not the current one or follows it at once.
    fn jump(&mut self, mcu: usize) {
        let Some(segment) = mcu.checked_div(self.restart_interval) else { return };
        let stream = &mut self.stream;
        if segment > stream.segment && mcu > stream.mcu {
            stream.position = Position::at(self.restarts.bytes(segment).start);
            stream.predictions = [0; 3];
            (stream.mcu, stream.segment) = (segment * self.restart_interval, segment);
        }
    }

    /// Decodes up to MCU `end`, into `rows` if there are such, whose first column comes next.
    fn advance(&mut self, file: &[u8], end: usize, mut rows: Option<&mut McuRows>) -> Result<(), Anomaly> {
        let units = &self.units[..self.unit_count];
        let first = self.stream.mcu;
        while self.stream.mcu < end {
            let mut segment_end = end;
            if self.restart_interval > 0 {
                if self.stream.mcu == (self.stream.segment + 1) * self.restart_interval {
                    self.stream.restart(file)?;
                }
                segment_end = end.min((self.stream.segment + 1) * self.restart_interval);
            }
            let mcus = self.stream.mcu..segment_end;
            match &mut rows {
                Some(rows) => self.stream.keep_mcus(file, units, mcus.start - first..mcus.end - first, rows)?,
                None => self.stream.pass_mcus(file, units, mcus.len())?,
            }
            self.stream.mcu = segment_end;
        }
        Ok(())
    }

    /// Looks at what libjpeg reads behind the last MCU that is kept: all of it, where there are no restart markers, else
    /// whether a segment that ends there does so as it should.
    fn pass_below(&mut self, file: &[u8]) -> Result<(), Anomaly> {
        if self.restart_interval == 0 {
            return self.advance(file, self.rows_read * self.mcus_across, None);
        }
        let next = self.stream.segment + 1;
        if self.stream.mcu == next * self.restart_interval && next < self.restarts.count() {
            self.stream.restart(file)?;
        }
        Ok(())
    }
}

impl Stream {
    /// Goes on with the next segment, if it is at the end of one.
    fn restart(&mut self, file: &[u8]) -> Result<(), Anomaly> {
        let mut segment = Segment::new(file, &mut self.window, self.position);
        if !segment.restart((self.segment % 8) as u8) {
            return Err(Anomaly);
        }
        self.position = segment.position;
        self.segment += 1;
        self.predictions = [0; 3];
        Ok(())
    }

    /// The next MCUs of a segment go to `rows`, where they have these numbers.
    fn keep_mcus(
        &mut self,
        file: &[u8],
        units: &[Unit],
        numbers: Range<usize>,
        rows: &mut McuRows,
    ) -> Result<(), Anomaly> {
        self.mcus(file, units, numbers, |tables, unit, mcu, dc, bits, window| {
            let block = rows.block_mut(unit.first + mcu * unit.stride, 0);
            *block = [0; 64];
            block[0] = dc;
            tables.keep_ac(unit.ac_table, bits, window, block)
        })
    }

    /// The next `count` MCUs of a segment go nowhere.
    fn pass_mcus(&mut self, file: &[u8], units: &[Unit], count: usize) -> Result<(), Anomaly> {
        self.mcus(file, units, 0..count, |tables, unit, _, _, bits, window| tables.pass_ac(unit.ac_table, bits, window))
    }

    /// The next MCUs of a segment: calls `block` for each of their blocks, with its number and its DC coefficient, to read the
    /// others.
    #[inline(always)]
    fn mcus(
        &mut self,
        file: &[u8],
        units: &[Unit],
        numbers: Range<usize>,
        mut block: impl FnMut(&Tables, &Unit, usize, i16, &mut Bits, &WindowBytes) -> Result<(), Anomaly>,
    ) -> Result<(), Anomaly> {
        let mut segment = Segment::new(file, &mut self.window, self.position);
        let mut bits = segment.position.bits;
        for mcu in numbers {
            for unit in units {
                if !segment.has_block(bits) {
                    segment.position.bits = bits;
                    if !segment.advance() {
                        return Err(Anomaly);
                    }
                    bits = segment.position.bits;
                }
                let window = segment.window();
                let prediction = &mut self.predictions[unit.component];
                *prediction += self.tables.dc(unit.dc_table, &mut bits, window)?;
                let dc = i16::try_from(*prediction).map_err(|_| Anomaly)?;
                block(&self.tables, unit, mcu, dc, &mut bits, window)?;
            }
        }
        segment.position.bits = bits;
        if segment.is_overrun() {
            return Err(Anomaly);
        }
        self.position = segment.position;
        Ok(())
    }
}
