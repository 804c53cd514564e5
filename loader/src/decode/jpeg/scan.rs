//! The entropy-coded data of a scan, MCU row by MCU row (ITU-T T.81, A.2 and F.2).
//!
//! Rows above those that are wanted are decoded too, since there is no other way to the rows below, and so are the
//! columns to the left and right; their coefficients go nowhere.

use std::ops::Range;

use super::frame::{Component, Frame};
use super::huffman::{Anomaly, Tables};
use super::segment::{Bits, Position, Segment, Window, WindowBytes};

/// Coefficients of a block.
const BLOCK: usize = 64;

/// Most blocks of an MCU: luma of 4x1 or 2x2, and colour.
const UNITS_MAX: usize = 6;

/// Quantised coefficients of the MCUs of a row that are kept.
///
/// Blocks of a component lie row by row; each row has `mcus().len() * h` of them.
#[derive(Debug, Default)]
pub struct McuRow {
    mcus: Range<usize>,
    /// Coefficients in natural order, DC included: the components one after the other.
    blocks: Vec<[i16; BLOCK]>,
    /// Per block, zig-zag positions up to the last that is not zero, 1..=64.
    ends: Vec<u8>,
    /// Where the blocks of each component start, and where the last end.
    starts: [usize; 4],
}

impl McuRow {
    /// Makes room for columns `mcus` of a row of `frame`, all zero. Allocates only where it grows.
    pub fn clear(&mut self, frame: &Frame, mcus: Range<usize>) {
        let mut count = 0;
        for (index, start) in self.starts.iter_mut().enumerate() {
            *start = count;
            if let Some(component) = frame.components[..frame.count].get(index) {
                count += mcus.len() * component.h * component.v;
            }
        }
        self.mcus = mcus;
        if self.blocks.len() < count {
            self.blocks.resize(count, [0; BLOCK]);
            self.ends.resize(count, 1);
        }
        self.blocks[..count].fill([0; BLOCK]);
    }

    /// The columns of MCUs that are kept.
    pub fn mcus(&self) -> Range<usize> {
        self.mcus.clone()
    }

    /// The blocks of a component: quantised coefficients in natural order, the DC difference already summed up.
    pub fn blocks(&self, component: usize) -> &[[i16; BLOCK]] {
        &self.blocks[self.range(component)]
    }

    /// For each block of a component, the zig-zag positions up to the last one that is not zero, 1..=64.
    pub fn ends(&self, component: usize) -> &[u8] {
        &self.ends[self.range(component)]
    }

    /// The same, to be filled.
    pub fn blocks_mut(&mut self, component: usize) -> (&mut [[i16; BLOCK]], &mut [u8]) {
        let range = self.range(component);
        (&mut self.blocks[range.clone()], &mut self.ends[range])
    }

    fn range(&self, component: usize) -> Range<usize> {
        self.starts[component]..self.starts[component + 1]
    }
}

/// A block of each MCU.
#[derive(Debug, Clone, Copy, Default)]
struct Unit {
    component: usize,
    dc_table: usize,
    ac_table: usize,
    /// Where it lies among the blocks that are kept, in the first MCU, and from one MCU to the next.
    first: usize,
    stride: usize,
}

/// Decodes the scans of one file after the other.
#[derive(Default)]
pub struct Scan {
    tables: Tables,
    window: Window,
    position: Position,
    /// The first `unit_count` of them are an MCU.
    units: [Unit; UNITS_MAX],
    unit_count: usize,
    mcus_across: usize,
    restart_interval: usize,
    /// MCUs up to the next restart marker, and its number.
    restart_left: usize,
    restart_number: u8,
    /// DC of the last block of each component.
    predictions: [i32; 3],
}

impl Scan {
    /// Starts at the first row of `frame`. Of rows that are kept, columns `mcus` will be.
    pub fn start(&mut self, frame: &Frame, mcus: Range<usize>, row: &mut McuRow) {
        row.clear(frame, mcus.clone());
        self.unit_count = 0;
        for (index, component) in frame.components[..frame.count].iter().enumerate() {
            let Component { h, v, dc_table, ac_table, .. } = *component;
            self.tables.set_dc(dc_table, frame.dc_codes[dc_table].as_ref().expect("an ordinary frame has its tables"));
            let codes = frame.ac_codes[ac_table].as_ref().expect("an ordinary frame has its tables");
            let ac_table = self.tables.ac(codes);
            for block in 0..h * v {
                let first = row.starts[index] + block / h * mcus.len() * h + block % h;
                self.units[self.unit_count] = Unit { component: index, dc_table, ac_table, first, stride: h };
                self.unit_count += 1;
            }
        }
        self.position = Position::at(frame.scan_start);
        self.mcus_across = frame.mcus_across;
        self.restart_interval = frame.restart_interval;
        self.restart_left = frame.restart_interval;
        self.restart_number = 0;
        self.predictions = [0; 3];
    }

    /// Decodes the next row of MCUs of `file` and keeps the columns of [`Scan::start`].
    pub fn row(&mut self, file: &[u8], frame: &Frame, row: &mut McuRow) -> Result<(), Anomaly> {
        row.clear(frame, row.mcus());
        self.segments(file, row.mcus.clone(), row)
    }

    /// Passes over `count` rows.
    pub fn skip_rows(&mut self, file: &[u8], count: usize) -> Result<(), Anomaly> {
        (0..count).try_for_each(|_| self.segments(file, 0..0, &mut McuRow::default()))
    }

    /// A row of MCUs, segment by segment.
    fn segments(&mut self, file: &[u8], kept: Range<usize>, row: &mut McuRow) -> Result<(), Anomaly> {
        let mut start = 0;
        while start < self.mcus_across {
            let mut end = self.mcus_across;
            if self.restart_interval > 0 {
                if self.restart_left == 0 {
                    self.restart(file)?;
                }
                end = end.min(start + self.restart_left);
                self.restart_left -= end - start;
            }
            // Those before, among, and behind the columns that are kept.
            let [left, right] = [kept.start.clamp(start, end), kept.end.clamp(start, end)];
            self.pass_mcus(file, left - start)?;
            self.keep_mcus(file, right - left, left.saturating_sub(kept.start), row)?;
            self.pass_mcus(file, end - right)?;
            start = end;
        }
        Ok(())
    }

    fn restart(&mut self, file: &[u8]) -> Result<(), Anomaly> {
        let mut segment = Segment::new(file, &mut self.window, self.position);
        if !segment.restart(self.restart_number) {
            return Err(Anomaly);
        }
        self.position = segment.position;
        self.restart_left = self.restart_interval;
        self.restart_number = (self.restart_number + 1) % 8;
        self.predictions = [0; 3];
        Ok(())
    }

    /// The next `count` MCUs of a segment go to `row`, from MCU `first` on.
    fn keep_mcus(&mut self, file: &[u8], count: usize, first: usize, row: &mut McuRow) -> Result<(), Anomaly> {
        self.mcus(file, first..first + count, |tables, unit, mcu, dc, bits, window| {
            let place = unit.first + mcu * unit.stride;
            let (block, end) = (&mut row.blocks[place], &mut row.ends[place]);
            block[0] = dc;
            *end = tables.keep_ac(unit.ac_table, bits, window, block)?;
            Ok(())
        })
    }

    /// The next `count` MCUs of a segment go nowhere.
    fn pass_mcus(&mut self, file: &[u8], count: usize) -> Result<(), Anomaly> {
        self.mcus(file, 0..count, |tables, unit, _, _, bits, window| tables.pass_ac(unit.ac_table, bits, window))
    }

    /// The next MCUs of a segment: calls `block` for each of their blocks, with its number and its DC coefficient, to read the
    /// others.
    #[inline(always)]
    fn mcus(
        &mut self,
        file: &[u8],
        numbers: Range<usize>,
        mut block: impl FnMut(&Tables, &Unit, usize, i16, &mut Bits, &WindowBytes) -> Result<(), Anomaly>,
    ) -> Result<(), Anomaly> {
        let mut segment = Segment::new(file, &mut self.window, self.position);
        let mut bits = segment.position.bits;
        for mcu in numbers {
            for unit in &self.units[..self.unit_count] {
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
