//! Coefficients of rows of MCUs to the rows of a region in RGB: inverse transform, upsampling, colour.
//!
//! Only what the region needs is transformed: its blocks, and those that hold the colour samples beside it which
//! interpolation looks at. A row of MCUs is transformed into planes that stay in the cache; then each row of pixels is
//! upsampled and coloured at once. Where colour is interpolated down, the last row of pixels waits for the next row of
//! MCUs, so one row of samples is kept.

pub mod colour;
pub mod idct;
mod plane;
pub mod reduced;
pub mod upsample;

use std::ops::Range;

use super::frame::{Colour, Frame};
use super::mcu_rows::McuRows;
use crate::decode::{Region, STRIP_ROWS, STRIP_SLACK, Strip};
use crate::sys::simd::Path;
use plane::Plane;
use upsample::Upsampling;

/// Columns and rows of a block.
const BLOCK: usize = 8;

/// Pixels that are coloured at once: rows of pixels have room for whole groups.
const GROUP: usize = 32;

/// A worker's second half of a JPEG decoder: memory and state, reused from image to image.
pub struct Rows {
    path: Path,
    planes: [Plane; 3],
    count: usize,
    colour: Colour,
    /// Rows of pixels made of components that grow, each from its first sample's pixels on.
    grown: [Vec<u8>; 3],
    strip: Vec<u8>,
    stride: usize,
    /// Columns and rows of pixels of the region.
    columns: Range<usize>,
    rows: Range<usize>,
    /// Rows of pixels of the whole image, and of a row of MCUs; rows that the last row of MCUs leaves to the next.
    height: usize,
    mcu_height: usize,
    rows_kept: usize,
    /// The next row of MCUs.
    mcu_row: usize,
    /// The next row of pixels, and the first that needs more MCUs.
    row: usize,
    row_ready: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Self::new(Path::best())
    }
}

impl Rows {
    /// Without an image.
    pub fn new(path: Path) -> Self {
        Self {
            path,
            planes: Default::default(),
            count: 0,
            colour: Colour::Grey,
            grown: Default::default(),
            strip: Vec::new(),
            stride: 0,
            columns: 0..0,
            rows: 0..0,
            height: 0,
            mcu_height: 0,
            rows_kept: 0,
            mcu_row: 0,
            row: 0,
            row_ready: 0,
        }
    }

    /// Starts with a region of an image reduced by `reduction`: 1, 2, 4 or 8. Returns the rows and the columns of MCUs that
    /// it needs.
    pub fn start(&mut self, frame: &Frame, region: Region, reduction: u32) -> (Range<usize>, Range<usize>) {
        assert!(matches!(reduction, 1 | 2 | 4 | 8), "a reduction that blocks have");
        let reduction = reduction as usize;
        let side = BLOCK / reduction;
        let [left, top, width, height] = [region.left, region.top, region.width, region.height].map(|it| it as usize);
        self.height = frame.height.div_ceil(reduction);
        assert!(width > 0 && left + width <= frame.width.div_ceil(reduction), "columns in the image");
        assert!(height > 0 && top + height <= self.height, "rows in the image");
        (self.columns, self.rows) = (left..left + width, top..top + height);
        (self.count, self.colour) = (frame.count, frame.colour);
        self.mcu_height = side * frame.v_max;
        let (mut first, mut end) = ([usize::MAX; 2], [0; 2]);
        let mut keeps_last = false;
        for (component, plane) in self.planes.iter_mut().enumerate().take(frame.count) {
            plane.start(frame, component, side, [self.columns.clone(), self.rows.clone()]);
            keeps_last |= plane.upsampling.looks_beside()[1];
            for (axis, mcus) in plane.mcus().into_iter().enumerate() {
                first[axis] = first[axis].min(mcus.start);
                end[axis] = end[axis].max(mcus.end);
            }
        }
        // Where one row of pixels waits, a row of samples of every component is kept.
        self.rows_kept = keeps_last.into();
        self.planes.iter_mut().for_each(|plane| plane.keeps_last = keeps_last);
        let pixels = width.next_multiple_of(GROUP);
        self.stride = 3 * pixels;
        grow(&mut self.strip, STRIP_ROWS as usize * self.stride + STRIP_SLACK);
        self.grown.iter_mut().for_each(|grown| grow(grown, pixels + 4 * GROUP));
        self.mcu_row = first[1];
        self.row = top;
        self.row_ready = top;
        (first[1]..end[1], first[0]..end[0])
    }

    /// Takes the next row of MCUs, row `row` of `rows`. All strips of those before were taken.
    pub fn push(&mut self, rows: &McuRows, row: usize) {
        assert_eq!(self.row, self.row_ready, "rows that were not taken");
        for (component, plane) in self.planes.iter_mut().enumerate().take(self.count) {
            plane.fill(self.path, self.mcu_row, (rows, row), component);
        }
        self.mcu_row += 1;
        let reached = self.mcu_row * self.mcu_height;
        let ready = if reached >= self.height { self.height } else { reached - self.rows_kept };
        self.row_ready = ready.clamp(self.row, self.rows.end);
    }

    /// Whether there are rows to take.
    pub fn has_rows(&self) -> bool {
        self.row < self.row_ready
    }

    /// Whether a row of pixels depends on the row of samples above or below it.
    pub fn looks_beside(&self) -> bool {
        self.rows_kept > 0
    }

    /// The next rows of the region. `None`: they need the next row of MCUs, or there are none.
    pub fn next_strip(&mut self) -> Option<Strip<'_>> {
        let rows = (self.row_ready - self.row).min(STRIP_ROWS as usize);
        if rows == 0 {
            return None;
        }
        for index in 0..rows {
            self.make_row(index);
        }
        self.row += rows;
        Some(Strip { bytes: &self.strip, stride: self.stride, rows: rows as u32 })
    }

    /// Makes row `index` of a strip.
    fn make_row(&mut self, index: usize) {
        let (row, mcu_row, width) = (self.row + index, self.mcu_row - 1, self.columns.len());
        let mut planes: [&[u8]; 3] = [&[]; 3];
        for ((plane, grown), pixels) in self.planes.iter().zip(&mut self.grown).zip(&mut planes).take(self.count) {
            let factor = plane.upsampling.factors()[0];
            let column = self.columns.start / factor;
            let sources = plane.sources(row, column, mcu_row);
            *pixels = if plane.upsampling == Upsampling::None {
                &sources.near[1..]
            } else {
                let count = self.columns.end.div_ceil(factor) - column;
                upsample::row(self.path, plane.upsampling, sources, grown, count);
                &grown[self.columns.start - factor * column..]
            };
        }
        let target = &mut self.strip[index * self.stride..];
        match self.colour {
            Colour::YCbCr => colour::ycc_row(self.path, planes, target, width),
            Colour::Rgb => colour::rgb_row(self.path, planes, target, width),
            Colour::Grey => colour::rgb_row(self.path, [planes[0]; 3], target, width),
        }
    }
}

/// Makes `bytes` at least so long.
fn grow(bytes: &mut Vec<u8>, length: usize) {
    if bytes.len() < length {
        bytes.resize(length, 0);
    }
}

#[cfg(test)]
mod tests;
