//! Coefficients of rows of MCUs, on their way from the entropy decoder to the pixels.

use std::ops::Range;

use super::frame::Frame;

/// Coefficients of a block.
const BLOCK: usize = 64;

/// Quantised coefficients of the MCUs that are kept, of one row of MCUs or of several below each other.
///
/// Blocks of a component lie row by row; each row has `mcus().len() * h` of them. Where there are several rows of MCUs,
/// their blocks of the same place lie side by side, since they are decoded together.
#[derive(Debug, Default)]
pub struct McuRows {
    mcus: Range<usize>,
    count: usize,
    /// Coefficients in natural order, DC included: the components one after the other.
    blocks: Vec<[i16; BLOCK]>,
    /// The places where the blocks of each component start, and where the last end.
    starts: [usize; 4],
}

impl McuRows {
    /// Makes room for columns `mcus` of `count` rows of `frame`; what the blocks hold is left over from others. Allocates
    /// only where it grows.
    pub fn start(&mut self, frame: &Frame, mcus: Range<usize>, count: usize) {
        let mut places = 0;
        for (index, start) in self.starts.iter_mut().enumerate() {
            *start = places;
            if let Some(component) = frame.components[..frame.count].get(index) {
                places += mcus.len() * component.h * component.v;
            }
        }
        self.mcus = mcus;
        self.set_count(count);
    }

    /// Makes room for another number of rows.
    pub fn set_count(&mut self, count: usize) {
        self.count = count;
        let blocks = self.starts[3] * count;
        if self.blocks.len() < blocks {
            self.blocks.resize(blocks, [0; BLOCK]);
        }
    }

    /// The columns of MCUs that are kept.
    pub fn mcus(&self) -> Range<usize> {
        self.mcus.clone()
    }

    /// How many rows of MCUs there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The place of a component's first block.
    pub fn first(&self, component: usize) -> usize {
        self.starts[component]
    }

    /// The blocks of row `row`, of a component: quantised coefficients in natural order, the DC difference already
    /// summed up.
    pub fn blocks(&self, component: usize, row: usize) -> Blocks<'_> {
        let places = self.starts[component]..self.starts[component + 1];
        let blocks = &self.blocks[places.start * self.count..places.end * self.count];
        Blocks { blocks: blocks.get(row..).unwrap_or_default(), step: self.count }
    }

    /// A block of a row of MCUs, to be filled.
    pub fn block_mut(&mut self, place: usize, row: usize) -> &mut [i16; BLOCK] {
        &mut self.blocks[place * self.count + row]
    }

    /// The blocks of the same place in `N` rows, which are all there are.
    pub fn column_mut<const N: usize>(&mut self, place: usize) -> &mut [[i16; BLOCK]; N] {
        assert_eq!(self.count, N, "as many rows as are decoded together");
        &mut self.blocks.as_chunks_mut().0[place]
    }
}

/// A row of blocks.
#[derive(Debug, Clone, Copy)]
pub struct Blocks<'blocks> {
    blocks: &'blocks [[i16; BLOCK]],
    /// From one to the next.
    step: usize,
}

impl<'blocks> Blocks<'blocks> {
    /// Blocks that lie side by side.
    pub fn of(blocks: &'blocks [[i16; BLOCK]]) -> Self {
        Self { blocks, step: 1 }
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.blocks.len().div_ceil(self.step)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.blocks.is_empty()
    }

    /// Those in a range.
    pub fn range(self, range: Range<usize>) -> Self {
        let end = (range.end * self.step).min(self.blocks.len());
        Self { blocks: &self.blocks[range.start * self.step..end], step: self.step }
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = &'blocks [i16; BLOCK]> {
        self.blocks.iter().step_by(self.step)
    }

    /// Two by two, and whether the second counts: an odd last one stands twice.
    pub fn pairs(self) -> impl Iterator<Item = ([&'blocks [i16; BLOCK]; 2], bool)> {
        self.blocks.chunks(2 * self.step).map(move |pair| match pair.get(self.step) {
            Some(second) => ([&pair[0], second], true),
            None => ([&pair[0]; 2], false),
        })
    }
}
