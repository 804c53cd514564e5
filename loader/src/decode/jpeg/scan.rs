//! The entropy-coded data of a scan, MCU row by MCU row.

use std::ops::Range;

use super::frame::Frame;

/// Quantised coefficients of the MCUs of a row that are kept.
///
/// Blocks of a component lie row by row; each row has `mcus().len() * h` of them.
#[derive(Debug, Default)]
pub struct McuRow {
    mcus: Range<usize>,
    /// Coefficients in natural order, DC included: the components one after the other.
    blocks: Vec<[i16; 64]>,
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
        self.blocks.clear();
        self.blocks.resize(count, [0; 64]);
        self.ends.clear();
        self.ends.resize(count, 1);
    }

    /// The columns of MCUs that are kept.
    pub fn mcus(&self) -> Range<usize> {
        self.mcus.clone()
    }

    /// The blocks of a component: quantised coefficients in natural order, the DC difference already summed up.
    pub fn blocks(&self, component: usize) -> &[[i16; 64]] {
        &self.blocks[self.range(component)]
    }

    /// For each block of a component, the zig-zag positions up to the last one that is not zero, 1..=64.
    pub fn ends(&self, component: usize) -> &[u8] {
        &self.ends[self.range(component)]
    }

    /// The same, to be filled.
    pub fn blocks_mut(&mut self, component: usize) -> (&mut [[i16; 64]], &mut [u8]) {
        let range = self.range(component);
        (&mut self.blocks[range.clone()], &mut self.ends[range])
    }

    fn range(&self, component: usize) -> Range<usize> {
        self.starts[component]..self.starts[component + 1]
    }
}
