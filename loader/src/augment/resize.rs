//! The resample: rows come in from the decoder strip by strip, each is resized horizontally into a small ring of rows,
//! and an output row is summed vertically as soon as its last source row is there. The source is read once, and
//! nothing of full size lies in between.
//!
//! Results are Pillow's bit for bit: exact sums of 22-bit weights, rounded to 8 bits after each pass. The portable
//! pass and the vector pass ([`crate::sys::simd_resize`]) add the same integers, so every CPU gives the same bytes.

use crate::decode::{Reduction, Region, STRIP_ROWS, Strips};
use crate::error::{FaultClass, SampleFault};
use crate::spec::PixelLayout;
use crate::sys::simd::Path;
#[cfg(target_arch = "x86_64")]
use crate::sys::simd_resize;

use super::axis::{Axis, Span, WEIGHT_BITS, WeightPair};
use super::geometry::{Stage, Window};

/// Slack at the end of a ring row: a vector pass may write so much past the last output.
const ROW_SLACK: usize = 32;

/// Most bytes of the ring. Only a shrink by a factor of thousands could need more.
const RING_BYTES_MAX: usize = 64 << 20;

/// Tables and the ring of rows, reused from image to image.
pub struct Resampler {
    path: Path,
    horizontal: Axis,
    vertical: Axis,
    ring: Ring,
    pair_rows: Vec<[usize; 2]>,
    is_upside_down: bool,
}

/// Where a resample's output goes.
#[derive(Debug)]
pub struct Target<'pixels> {
    /// The whole output image, zeroed where nothing is written.
    pub pixels: &'pixels mut [u8],
    /// Its columns.
    pub width: u32,
    /// Its rows.
    pub height: u32,
    /// Order of its axes.
    pub layout: PixelLayout,
}

/// Horizontally resized rows; row r lies at place r modulo the capacity.
#[derive(Debug, Default)]
struct Ring {
    bytes: Vec<u8>,
    stride: usize,
    mask: u32,
    /// Distance of the colour planes in a row; `None`: interleaved.
    plane_stride: Option<usize>,
}

impl Ring {
    /// Makes room for rows of `width` pixels, of which `rows_kept` are needed beside a new strip.
    fn prepare(&mut self, width: usize, layout: PixelLayout, rows_kept: u32) -> Result<(), SampleFault> {
        let round = |bytes: usize| (bytes + ROW_SLACK).next_multiple_of(ROW_SLACK);
        self.plane_stride = (layout == PixelLayout::Nchw).then(|| round(width));
        self.stride = self.plane_stride.map_or_else(|| round(3 * width), |stride| 3 * stride);
        let capacity = (rows_kept + STRIP_ROWS).next_power_of_two();
        self.mask = capacity - 1;
        let bytes = capacity as usize * self.stride;
        if bytes > RING_BYTES_MAX {
            let message = format!("shrinking it takes {bytes} bytes at once, the limit is {RING_BYTES_MAX}");
            return Err(SampleFault::new(FaultClass::TooLarge, message));
        }
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
        Ok(())
    }

    fn place(&self, row: u32) -> usize {
        (row & self.mask) as usize * self.stride
    }
}

impl Resampler {
    /// A resampler that computes by `path`.
    pub fn new(path: Path) -> Self {
        Self {
            path,
            horizontal: Axis::default(),
            vertical: Axis::default(),
            ring: Ring::default(),
            pair_rows: Vec::new(),
            is_upside_down: false,
        }
    }

    /// Prepares a stage with something visible; says which region of the source image its rows must come from.
    pub fn prepare(&mut self, stage: &Stage, visible: Window, layout: PixelLayout) -> Result<Region, SampleFault> {
        self.prepare_reduced(stage, Reduction::NONE, visible, layout)
    }

    /// [`Resampler::prepare`] for a source that is reduced; the region is one of the reduced image.
    pub fn prepare_reduced(
        &mut self,
        stage: &Stage,
        reduction: Reduction,
        visible: Window,
        layout: PixelLayout,
    ) -> Result<Region, SampleFault> {
        let (resized_width, resized_height) = stage.resized;
        // Something visible lies within the resized image, so its place is not negative.
        let columns = visible.left as u32..visible.left as u32 + visible.width;
        let rows = visible.top as u32..visible.top as u32 + visible.height;
        let span = |start: u32, length: u32, shift: f64| Span::reduced(start, length, reduction.factor, shift);
        let (left, across) = span(stage.source.left, stage.source.width, reduction.shift[0]);
        let (top, down) = span(stage.source.top, stage.source.height, reduction.shift[1]);
        let resampling = stage.resampling;
        self.horizontal.prepare_span(across, resized_width, columns, stage.mirrored, resampling);
        self.vertical.prepare_span(down, resized_height, rows, false, resampling);
        self.is_upside_down = stage.upside_down;
        self.ring.prepare(self.horizontal.output_count(), layout, 2 * self.vertical.pair_count() as u32)?;
        let (columns, rows) = (self.horizontal.source(), self.vertical.source());
        Ok(Region {
            left: left + columns.start,
            top: top + rows.start,
            width: columns.end - columns.start,
            height: rows.end - rows.start,
        })
    }

    /// Resamples the rows of the prepared region into `target`, its top left corner at `left`, `top`.
    pub fn run(
        &mut self,
        strips: &mut Strips<'_>,
        target: &mut Target<'_>,
        (left, top): (u32, u32),
    ) -> Result<(), SampleFault> {
        let outputs = self.vertical.output_count();
        let mut rows_in = 0;
        let mut next = 0;
        while next < outputs {
            let strip = strips.next_strip()?.expect("the region has every row that the outputs need");
            self.take_rows(strip.bytes, strip.stride, rows_in..rows_in + strip.rows);
            rows_in += strip.rows;
            while next < outputs && self.vertical.end_of(next) <= rows_in {
                let row = if self.is_upside_down { outputs - 1 - next } else { next };
                self.give_row(next, target, left, top + row as u32);
                next += 1;
            }
        }
        Ok(())
    }

    /// The horizontal pass: source rows into the ring.
    fn take_rows(&mut self, source: &[u8], stride: usize, rows: std::ops::Range<u32>) {
        let mut places = [0; STRIP_ROWS as usize];
        let places = &mut places[..rows.len()];
        for (place, row) in places.iter_mut().zip(rows) {
            *place = self.ring.place(row);
        }
        let axis = &self.horizontal;
        if axis.is_copy() && self.ring.plane_stride.is_none() {
            for (index, &place) in places.iter().enumerate() {
                let bytes = 3 * axis.output_count();
                self.ring.bytes[place..place + bytes].copy_from_slice(&source[index * stride..][..bytes]);
            }
            return;
        }
        match self.path {
            Path::Portable => {
                for (index, &place) in places.iter().enumerate() {
                    let target = &mut self.ring.bytes[place..place + self.ring.stride];
                    horizontal_portable(axis, &source[index * stride..], target, self.ring.plane_stride);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => {
                let job = simd_resize::Horizontal {
                    first: axis.first(),
                    pairs: axis.pairs(),
                    pair_count: axis.pair_count(),
                    plane_stride: self.ring.plane_stride,
                };
                simd_resize::horizontal(job, source, stride, &mut self.ring.bytes, places);
            }
        }
    }

    /// The vertical pass: output row `index` from the ring into row `top` of the target.
    fn give_row(&mut self, index: usize, target: &mut Target<'_>, left: u32, top: u32) {
        let axis = &self.vertical;
        let first = axis.first()[index];
        let pairs = axis.pairs_of(index);
        self.pair_rows.clear();
        for pair in 0..pairs.len() as u32 {
            let row = first + 2 * pair;
            self.pair_rows.push([self.ring.place(row), self.ring.place(row + 1)]);
        }
        let columns = self.horizontal.output_count();
        let row_start = top as usize * target.width as usize + left as usize;
        match self.ring.plane_stride {
            None => {
                let row = &mut target.pixels[3 * row_start..][..3 * columns];
                vertical_pass(self.path, pairs, &self.pair_rows, &self.ring.bytes, row);
            }
            Some(plane_stride) => {
                let plane_bytes = target.width as usize * target.height as usize;
                for plane in 0..3 {
                    let row = &mut target.pixels[plane * plane_bytes + row_start..][..columns];
                    let source = &self.ring.bytes[plane * plane_stride..];
                    vertical_pass(self.path, pairs, &self.pair_rows, source, row);
                }
            }
        }
    }
}

fn vertical_pass(path: Path, pairs: &[WeightPair], rows: &[[usize; 2]], source: &[u8], target: &mut [u8]) {
    if let ([pair], [[row0, row1]]) = (pairs, rows) {
        let whole = 1 << WEIGHT_BITS;
        match pair.weights() {
            [weight, 0] if weight == whole => return target.copy_from_slice(&source[*row0..][..target.len()]),
            [0, weight] if weight == whole => return target.copy_from_slice(&source[*row1..][..target.len()]),
            _ => {}
        }
    }
    match path {
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 if target.len() >= simd_resize::COLUMNS_AT_ONCE => {
            simd_resize::vertical(pairs, rows, source, target);
        }
        _ => vertical_portable(pairs, rows, source, target),
    }
}

/// Half of the last place that the shift cuts off.
const ROUND: i32 = 1 << (WEIGHT_BITS - 1);

fn horizontal_portable(axis: &Axis, source: &[u8], target: &mut [u8], plane_stride: Option<usize>) {
    for (output, &first) in axis.first()[..axis.output_count()].iter().enumerate() {
        let mut sums = [ROUND; 3];
        for (pair, pixels) in axis.pairs_of(output).iter().zip(source[3 * first as usize..].chunks_exact(6)) {
            let [weight0, weight1] = pair.weights();
            for (channel, sum) in sums.iter_mut().enumerate() {
                *sum += weight0 * i32::from(pixels[channel]) + weight1 * i32::from(pixels[3 + channel]);
            }
        }
        for (channel, sum) in sums.into_iter().enumerate() {
            let place = plane_stride.map_or(3 * output + channel, |stride| channel * stride + output);
            target[place] = clip(sum);
        }
    }
}

fn vertical_portable(pairs: &[WeightPair], rows: &[[usize; 2]], source: &[u8], target: &mut [u8]) {
    for (column, byte) in target.iter_mut().enumerate() {
        let mut sum = ROUND;
        for (pair, row) in pairs.iter().zip(rows) {
            let [weight0, weight1] = pair.weights();
            sum += weight0 * i32::from(source[row[0] + column]) + weight1 * i32::from(source[row[1] + column]);
        }
        *byte = clip(sum);
    }
}

/// Cubic weights may be negative, and all add up to one only within rounding, so both bounds can be passed.
fn clip(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}
