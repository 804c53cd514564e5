//! The entropy-coded data of a scan, MCU row by MCU row (ITU-T T.81, A.2 and F.2).
//!
//! Rows above those that are wanted are decoded too, since there is no other way to the rows below; of them, and of the
//! columns to the left and right, only the DC differences are kept, which the blocks that are wanted build on.

use std::ops::Range;

use super::frame::Frame;
use super::huffman::{Anomaly, Kind, Step, Tables, decode_blocks};
use super::segment::{Position, Segment, Window};

/// Coefficients of a block.
const BLOCK: usize = 64;

/// Quantised coefficients of the MCUs of a row that are kept.
///
/// Blocks of a component lie row by row; each row has `mcus().len() * h` of them.
#[derive(Debug, Default)]
pub struct McuRow {
    mcus: Range<usize>,
    /// Coefficients in natural order, DC included: the components one after the other, and behind them room for what
    /// of blocks that are not kept must be looked at.
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
        // The first coefficient of each block of the row, and a block.
        let spare = (frame.mcus_across * frame.blocks_per_mcu()).div_ceil(BLOCK) + 1;
        if self.blocks.len() < count + spare {
            self.blocks.resize(count + spare, [0; BLOCK]);
            self.ends.resize(count + spare, 1);
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

    fn spare_start(&self) -> usize {
        self.starts[3] * BLOCK
    }
}

/// Decodes the scans of one file after the other.
#[derive(Default)]
pub struct Scan {
    tables: Tables,
    window: Window,
    position: Position,
    /// Blocks of an MCU row in the order of the file, and one more: for a row of which columns are kept, and for one
    /// that is passed over.
    steps: Vec<Step>,
    steps_passed: Vec<Step>,
    /// Positions of each block of a row.
    ends: Vec<u8>,
    /// Component of each block of an MCU.
    membership: Vec<u8>,
    first_dc: u16,
    blocks_across: usize,
    restart_interval: usize,
    /// MCUs up to the next restart marker, and its number.
    restart_left: usize,
    restart_number: u8,
    /// DC of the last block of each component.
    predictions: [i32; 3],
    passed: McuRow,
}

impl Scan {
    /// Starts at the first row of `frame`. Of rows that are kept, columns `mcus` will be.
    pub fn start(&mut self, frame: &Frame, mcus: Range<usize>, row: &mut McuRow) {
        let components = &frame.components[..frame.count];
        for component in components {
            let (dc, ac) = (component.dc_table, component.ac_table);
            self.tables.set(Kind::Dc, dc, frame.dc_codes[dc].as_ref().expect("an ordinary frame has its tables"));
            self.tables.set(Kind::Ac, ac, frame.ac_codes[ac].as_ref().expect("an ordinary frame has its tables"));
        }
        self.position = Position::at(frame.scan_start);
        self.membership.clear();
        for (index, component) in components.iter().enumerate() {
            self.membership.extend(std::iter::repeat_n(index as u8, component.h * component.v));
        }
        self.blocks_across = frame.mcus_across * self.membership.len();
        self.first_dc = Tables::base(Kind::Dc, components[0].dc_table);
        self.restart_interval = frame.restart_interval;
        self.restart_left = frame.restart_interval;
        self.restart_number = 0;
        self.predictions = [0; 3];
        self.ends.resize(self.ends.len().max(self.blocks_across + 1), 0);

        row.clear(frame, mcus.clone());
        self.passed.clear(frame, 0..0);
        lay_out(&mut self.steps, frame, mcus, row);
        lay_out(&mut self.steps_passed, frame, 0..0, &self.passed);
    }

    /// Decodes the next row of MCUs of `file` and keeps the columns of [`Scan::start`].
    pub fn row(&mut self, file: &[u8], frame: &Frame, row: &mut McuRow) -> Result<(), Anomaly> {
        let mut steps = std::mem::take(&mut self.steps);
        row.clear(frame, row.mcus());
        let done = self.blocks(file, &mut steps, row);
        self.steps = steps;
        done
    }

    /// Passes over `count` rows.
    pub fn skip_rows(&mut self, file: &[u8], count: usize) -> Result<(), Anomaly> {
        let (mut steps, mut row) = (std::mem::take(&mut self.steps_passed), std::mem::take(&mut self.passed));
        let done = (0..count).try_for_each(|_| self.blocks(file, &mut steps, &mut row));
        (self.steps_passed, self.passed) = (steps, row);
        done
    }

    /// The blocks of a row, segment by segment.
    fn blocks(&mut self, file: &[u8], steps: &mut [Step], row: &mut McuRow) -> Result<(), Anomaly> {
        let mut segment = Segment::new(file, &mut self.window, self.position);
        let mut start = 0;
        while start < self.blocks_across {
            let mut end = self.blocks_across;
            if self.restart_interval > 0 {
                if self.restart_left == 0 {
                    if !segment.restart(self.restart_number) {
                        return Err(Anomaly);
                    }
                    self.restart_left = self.restart_interval;
                    self.restart_number = (self.restart_number + 1) % 8;
                    self.predictions = [0; 3];
                }
                let mcus = ((end - start) / self.membership.len()).min(self.restart_left);
                self.restart_left -= mcus;
                end = start + mcus * self.membership.len();
            }
            let coefficients = row.blocks.as_flattened_mut();
            let ends = &mut self.ends[start..];
            decode_blocks(&self.tables, &mut segment, self.first_dc, &mut steps[start..=end], coefficients, ends)?;
            if segment.is_overrun() {
                return Err(Anomaly);
            }
            for (mcu, ends) in steps[start..end].chunks(self.membership.len()).zip(ends.chunks(self.membership.len())) {
                for ((step, &end), &component) in mcu.iter().zip(ends).zip(&self.membership) {
                    let prediction = &mut self.predictions[usize::from(component)];
                    let first = &mut coefficients[step.place as usize];
                    *prediction += i32::from(*first);
                    *first = i16::try_from(*prediction).map_err(|_| Anomaly)?;
                    row.ends[step.place as usize / BLOCK] = end;
                }
            }
            start = end;
        }
        self.position = segment.position;
        Ok(())
    }
}

/// Where the blocks of an MCU row go. Blocks that are not kept lie over one another, each a coefficient after the one
/// before it.
fn lay_out(steps: &mut Vec<Step>, frame: &Frame, mcus: Range<usize>, row: &McuRow) {
    steps.clear();
    let components = &frame.components[..frame.count];
    for mcu in 0..frame.mcus_across {
        for (index, component) in components.iter().enumerate() {
            let dc = Tables::base(Kind::Dc, component.dc_table);
            if let Some(last) = steps.last_mut() {
                last.next_dc = dc;
            }
            for down in 0..component.v {
                for across in 0..component.h {
                    let place = if mcus.contains(&mcu) {
                        let block_row = row.starts[index] + down * mcus.len() * component.h;
                        (block_row + (mcu - mcus.start) * component.h + across) * BLOCK
                    } else {
                        row.spare_start() + steps.len()
                    };
                    let ac = Tables::base(Kind::Ac, component.ac_table);
                    steps.push(Step { place: place as u32, ac, next_dc: dc });
                }
            }
        }
    }
    if let Some(last) = steps.last_mut() {
        last.next_dc = Tables::base(Kind::Dc, components[0].dc_table);
    }
    steps.push(Step::default());
}
