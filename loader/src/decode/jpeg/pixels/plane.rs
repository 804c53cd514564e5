//! One component's samples: which of its blocks a region needs, and where they lie.

use std::ops::Range;

use super::idct::{self, Dequantiser};
use super::upsample::{Sources, Upsampling};
use super::{BLOCK, Frame, McuRows, grow};
use crate::sys::simd::Path;

/// Bytes before the first sample of a row, of which the last is the sample's neighbour at the left border.
const MARGIN: usize = 32;

/// Bytes after the last sample of a row: for its neighbour, a block too many, and whole vectors.
const SLACK: usize = 96;

/// A component's samples of the current row of MCUs, as far as the region needs them.
#[derive(Debug, Default)]
pub(super) struct Plane {
    /// How it grows to the size of the image.
    pub(super) upsampling: Upsampling,
    table: Dequantiser,
    /// Row 0 is the last of the row of MCUs before, where it is kept.
    samples: Vec<u8>,
    stride: usize,
    /// Its columns and rows in the whole image.
    size: [usize; 2],
    /// Columns of blocks in the whole image that are transformed.
    blocks: Range<usize>,
    /// Rows of samples in the whole image that are needed.
    rows: Range<usize>,
    /// Blocks of an MCU, across and down.
    factors: [usize; 2],
    /// Columns and rows of samples that a block becomes: 8 unless the image is reduced.
    side: usize,
    /// Whether the last row of samples is kept for the next row of MCUs.
    pub(super) keeps_last: bool,
}

impl Plane {
    /// Sets up a component of an image whose blocks are reduced to `side` samples, and of which `pixels` are wanted then:
    /// columns and rows.
    pub(super) fn start(&mut self, frame: &Frame, component: usize, side: usize, pixels: [Range<usize>; 2]) {
        let component = &frame.components[component];
        let (factors, factors_max) = ([component.h, component.v], [frame.h_max, frame.v_max]);
        // A component of lower resolution is reduced less, as long as that leaves whole factors.
        self.side = side;
        let divides =
            |side_next: usize, axis: usize| (factors_max[axis] * side).is_multiple_of(factors[axis] * side_next);
        while self.side < BLOCK && divides(2 * self.side, 0) && divides(2 * self.side, 1) {
            self.side *= 2;
        }
        let growth = [0, 1].map(|axis| factors_max[axis] * side / (factors[axis] * self.side));
        let stored = [frame.width, frame.height];
        let size = |axis: usize| (stored[axis] * factors[axis] * self.side).div_ceil(factors_max[axis] * BLOCK);
        self.size = [size(0), size(1)];
        self.upsampling = Upsampling::of(growth, self.size[0], side > 1);
        self.factors = factors;
        self.table = Dequantiser::new(&component.quant);
        let [columns, rows] = [0, 1].map(|axis| samples_of(&pixels[axis], self.upsampling, axis, self.size[axis]));
        self.blocks = columns.start / self.side..columns.end.div_ceil(self.side);
        self.rows = rows;
        self.stride = (MARGIN + self.side * self.blocks.len() + SLACK).next_multiple_of(64);
        let rows_held = 1 + self.mcu_rows();
        grow(&mut self.samples, rows_held * self.stride);
    }

    /// Rows of samples of a row of MCUs.
    fn mcu_rows(&self) -> usize {
        self.side * self.factors[1]
    }

    /// MCUs that hold what is needed, across and down.
    pub(super) fn mcus(&self) -> [Range<usize>; 2] {
        let across = self.blocks.start / self.factors[0]..self.blocks.end.div_ceil(self.factors[0]);
        let down = self.rows.start / self.mcu_rows()..self.rows.end.div_ceil(self.mcu_rows());
        [across, down]
    }

    /// Transforms what is needed of row `mcu_row` of MCUs, of which this is component `component`; of `mcus` it is the row
    /// of that number.
    pub(super) fn fill(&mut self, path: Path, mcu_row: usize, (mcus, row): (&McuRows, usize), component: usize) {
        let blocks = mcus.blocks(component, row);
        let blocks_across = mcus.mcus().len() * self.factors[0];
        let first = self.blocks.start - mcus.mcus().start * self.factors[0];
        if self.keeps_last {
            let last = self.mcu_rows() * self.stride;
            self.samples.copy_within(last..last + self.stride, 0);
        }
        for block_row in 0..self.factors[1] {
            let row = mcu_row * self.mcu_rows() + self.side * block_row;
            if row >= self.rows.end || row + self.side <= self.rows.start {
                continue;
            }
            let needed = blocks_across * block_row + first..blocks_across * block_row + first + self.blocks.len();
            let start = (1 + self.side * block_row) * self.stride;
            let samples = &mut self.samples[start + MARGIN..start + self.side * self.stride];
            idct::block_row(path, self.side, blocks.range(needed), &self.table, samples, self.stride);
            if self.upsampling.looks_beside()[0] {
                self.extend(start);
            }
        }
    }

    /// Repeats the outermost columns of the component in the rows of a block, which start at byte `start`.
    fn extend(&mut self, start: usize) {
        let first = self.side * self.blocks.start;
        let last = MARGIN + self.size[0] - 1 - first;
        for row in self.samples[start..].chunks_exact_mut(self.stride).take(self.side) {
            if first == 0 {
                row[MARGIN - 1] = row[MARGIN];
            }
            if let Some([sample, beside]) = row.get_mut(last..last + 2) {
                *beside = *sample;
            }
        }
    }

    /// What row `row` of pixels is made of, from sample `column` on, where row `mcu_row` of MCUs came last.
    pub(super) fn sources(&self, row: usize, column: usize, mcu_row: usize) -> Sources<'_> {
        let factor = self.upsampling.factors()[1];
        let near = row / factor;
        let is_far_above = row.is_multiple_of(2);
        let far = match self.upsampling.looks_beside()[1] {
            false => near,
            true if is_far_above => near.saturating_sub(1),
            true => (near + 1).min(self.size[1] - 1),
        };
        let row_at = |row: usize| {
            let place = row + 1 - mcu_row * self.mcu_rows();
            let start = place * self.stride + MARGIN + column - self.side * self.blocks.start - 1;
            &self.samples[start..(place + 1) * self.stride]
        };
        Sources { near: row_at(near), far: row_at(far), is_far_above }
    }
}

/// The samples that `pixels` need along an axis on which the component has `size` of them.
fn samples_of(pixels: &Range<usize>, upsampling: Upsampling, axis: usize, size: usize) -> Range<usize> {
    let factor = upsampling.factors()[axis];
    if !upsampling.looks_beside()[axis] {
        return pixels.start / factor..pixels.end.div_ceil(factor);
    }
    // An even pixel looks at the sample before its own, an odd one at the sample after.
    let last = pixels.end - 1;
    pixels.start.saturating_sub(1) / factor..(last.div_ceil(factor) + 1).min(size)
}
