//! The weights of a resize along one axis.
//!
//! They are Pillow's, bit for bit: double-precision weights of a triangle (or of a cubic curve) scaled to the step
//! between outputs, at least one source pixel, normalised, rounded to 22 bits after the point (`precompute_coeffs` and
//! `normalize_coeffs_8bpc` in Pillow's `Resample.c`). Weights that round to zero at either end are left out, which
//! changes no sum. Without antialias the triangle keeps the width of one source pixel, as torch's does.

use std::ops::Range;

use crate::spec::Resampling;

/// Bits after the point of a weight.
pub const WEIGHT_BITS: u32 = 22;

/// A weight is an upper part, times 2 to this power, and a lower part: each fits the signed 16 bits that vector
/// multiplication takes, and no precision is lost.
pub const SPLIT_BITS: u32 = 8;

/// The weights of two neighbouring source pixels, split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WeightPair {
    /// Upper parts.
    pub upper: [i16; 2],
    /// Lower parts, 0 to 255.
    pub lower: [i16; 2],
}

impl WeightPair {
    fn new(weights: [i32; 2]) -> Self {
        let upper = weights.map(|weight| (weight >> SPLIT_BITS) as i16);
        let lower = weights.map(|weight| (weight & ((1 << SPLIT_BITS) - 1)) as i16);
        Self { upper, lower }
    }

    /// Both weights whole.
    pub fn weights(self) -> [i32; 2] {
        [0, 1].map(|index| (i32::from(self.upper[index]) << SPLIT_BITS) + i32::from(self.lower[index]))
    }
}

/// Outputs are listed in groups of so many, as a vector pass takes them; the last group is filled up with outputs that
/// have no weight.
pub const OUTPUT_GROUP: usize = 4;

/// The part of an axis that is resized: it may start and end within a pixel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Pixels that it touches; only these have weights.
    pub pixels: u32,
    /// Where it starts within the first of them.
    pub start: f64,
    /// Its length in pixels.
    pub length: f64,
}

impl Span {
    /// So many whole pixels.
    pub fn whole(pixels: u32) -> Self {
        Self { pixels, start: 0.0, length: pixels.into() }
    }

    /// What `length` pixels from `start` on are in an image of which `factor` pixels, a power of two, became one, and
    /// which lies `shift` further: the first pixel that the span touches, and the span from there.
    pub fn reduced(start: u32, length: u32, factor: u32, shift: f64) -> (u32, Self) {
        // Exact: the factor is a power of two.
        let from = f64::from(start) / f64::from(factor) + shift;
        let span = f64::from(length) / f64::from(factor);
        let first = from.floor();
        (first as u32, Self { pixels: ((from + span).ceil() - first) as u32, start: from - first, length: span })
    }
}

/// For each output position of a range: where its source pixels start, and their weights.
#[derive(Debug, Default)]
pub struct Axis {
    /// First and one past the last source pixel that any output needs.
    source: Range<u32>,
    output_count: usize,
    /// For each listed output its first source pixel, counted from the start of `source`.
    first: Vec<u32>,
    /// For each output one past its last source pixel, counted likewise.
    ends: Vec<u32>,
    /// `pair_count` pairs for each listed output, zero weights at the end (or, at the far border, at the start).
    pairs: Vec<WeightPair>,
    pair_count: usize,
    /// Whether every output is its own source pixel.
    is_copy: bool,
    rows: WeightRows,
}

/// The weights of each output as whole numbers, a row each. Before and after each row lie as many zeros as a row may
/// be read beyond its ends.
#[derive(Debug, Default)]
struct WeightRows {
    weights: Vec<i32>,
    margin: usize,
    row_length: usize,
    /// For each output where its first weight that is not zero lies in `weights`.
    starts: Vec<usize>,
    scratch: Vec<f64>,
}

impl Axis {
    /// Prepares outputs `range` of `source_length` pixels resized to `target_length`; `mirrored` lists them from the
    /// last to the first. Nothing may be empty.
    pub fn prepare(
        &mut self,
        source_length: u32,
        target_length: u32,
        range: Range<u32>,
        mirrored: bool,
        resampling: Resampling,
    ) {
        self.prepare_span(Span::whole(source_length), target_length, range, mirrored, resampling);
    }

    /// [`Axis::prepare`] for a source that starts or ends within a pixel. Nearest picks take whole pixels.
    pub fn prepare_span(
        &mut self,
        source: Span,
        target_length: u32,
        range: Range<u32>,
        mirrored: bool,
        resampling: Resampling,
    ) {
        assert!(source.pixels > 0 && range.start < range.end && range.end <= target_length);
        self.is_copy = source == Span::whole(target_length) && !mirrored;
        self.output_count = range.len();
        match resampling {
            Resampling::Bilinear => {
                let curve = Curve { support: 1.0, is_widened: true, weight: triangle };
                self.weigh(source, target_length, range, mirrored, &curve);
            }
            Resampling::BilinearAliased => {
                let curve = Curve { support: 1.0, is_widened: false, weight: triangle };
                self.weigh(source, target_length, range, mirrored, &curve);
            }
            Resampling::Bicubic => {
                let curve = Curve { support: 2.0, is_widened: true, weight: cubic };
                self.weigh(source, target_length, range, mirrored, &curve);
            }
            Resampling::Nearest => {
                assert!(source == Span::whole(source.pixels), "nearest picks take whole pixels");
                self.pick(source.pixels, target_length, range, mirrored);
            }
        }
        let start = self.first.iter().copied().min().expect("the range is not empty");
        let end = self.ends.iter().copied().max().expect("the range is not empty");
        self.source = start..end;
        self.pair();
    }

    /// Fills `first`, `ends` and `rows`.
    #[inline]
    fn weigh<F: Fn(f64) -> f64>(
        &mut self,
        source: Span,
        target_length: u32,
        range: Range<u32>,
        mirrored: bool,
        curve: &Curve<F>,
    ) {
        let scale = source.length / f64::from(target_length);
        let filter_scale = if curve.is_widened { scale.max(1.0) } else { 1.0 };
        let support = curve.support * filter_scale;
        let inverse = 1.0 / filter_scale;
        let one = f64::from(1u32 << WEIGHT_BITS);
        self.rows.prepare(range.len(), support.ceil() as usize * 2 + 1);
        self.first.clear();
        self.ends.clear();
        for index in 0..range.len() {
            let output = if mirrored { range.end - 1 - index as u32 } else { range.start + index as u32 };
            let center = source.start + (f64::from(output) + 0.5) * scale;
            // The casts cut towards zero, and to zero below it, as the original's cast and test do.
            let first = (center - support + 0.5) as u32;
            let end = ((center + support + 0.5) as u32).min(source.pixels);
            let (scratch, row) = self.rows.row(index, (end - first) as usize);
            let mut sum = 0.0;
            for (weight, source) in scratch.iter_mut().zip(first..) {
                *weight = (curve.weight)(((f64::from(source) - center + 0.5) * inverse).abs());
                sum += *weight;
            }
            // The sum is not zero: the pixel under the centre always has a weight.
            for (fixed, weight) in row.iter_mut().zip(&*scratch) {
                *fixed = (0.5_f64.copysign(*weight) + *weight / sum * one) as i32;
            }
            // The outermost pixels, which the triangle may only touch, can have a weight that rounds to nothing.
            let leading = u32::from(row[0] == 0);
            let trailing = u32::from(row[row.len() - 1] == 0);
            self.rows.start_at(index, leading as usize);
            self.first.push(first + leading);
            self.ends.push(end - trailing);
        }
    }

    /// Fills `first`, `ends` and `rows` for outputs that are one source pixel each.
    fn pick(&mut self, source_length: u32, target_length: u32, range: Range<u32>, mirrored: bool) {
        self.rows.prepare(range.len(), 1);
        self.first.clear();
        self.first.extend(nearest(0, source_length, target_length, (range.start, range.len() as u32)));
        if mirrored {
            self.first.reverse();
        }
        self.ends.clear();
        for (index, &first) in self.first.iter().enumerate() {
            self.rows.row(index, 1).1[0] = 1 << WEIGHT_BITS;
            self.rows.start_at(index, 0);
            self.ends.push(first + 1);
        }
    }

    /// Fills `pairs`, and makes `first` and `ends` count from the start of `source`.
    fn pair(&mut self) {
        let counts = self.first.iter().zip(&self.ends).map(|(first, end)| end - first);
        let count_max = counts.max().expect("the range is not empty");
        self.pair_count = count_max.div_ceil(2) as usize;
        let width = self.source.end - self.source.start;
        let taps = 2 * self.pair_count;
        self.pairs.clear();
        for ((first, end), &start) in self.first.iter_mut().zip(&mut self.ends).zip(&self.rows.starts) {
            *first -= self.source.start;
            *end -= self.source.start;
            // Pairs never reach past the source if it is wide enough: at the far border they start earlier.
            let shift = (*first + taps as u32).saturating_sub(width).min(*first);
            *first -= shift;
            let weights = &self.rows.weights[start - shift as usize..][..taps];
            self.pairs.extend(weights.chunks_exact(2).map(|pair| WeightPair::new([pair[0], pair[1]])));
        }
        let listed = self.output_count.next_multiple_of(OUTPUT_GROUP);
        self.first.resize(listed, 0);
        self.pairs.resize(listed * self.pair_count, WeightPair::default());
    }

    /// Source pixels that the outputs need.
    pub fn source(&self) -> Range<u32> {
        self.source.clone()
    }

    /// Number of outputs, at least 1.
    pub fn output_count(&self) -> usize {
        self.output_count
    }

    /// For each listed output the source pixel of its first weight, from the start of [`Axis::source`].
    pub fn first(&self) -> &[u32] {
        &self.first
    }

    /// Pairs of weights of an output.
    pub fn pair_count(&self) -> usize {
        self.pair_count
    }

    /// The pairs of every listed output, one after the other.
    pub fn pairs(&self) -> &[WeightPair] {
        &self.pairs
    }

    /// One past the last source pixel that an output needs, from the start of [`Axis::source`].
    pub fn end_of(&self, output: usize) -> u32 {
        self.ends[output]
    }

    /// The pairs that an output needs.
    pub fn pairs_of(&self, output: usize) -> &[WeightPair] {
        let pairs = (self.ends[output] - self.first[output]).div_ceil(2) as usize;
        &self.pairs[output * self.pair_count..][..pairs]
    }

    /// Whether every output is its own source pixel.
    pub fn is_copy(&self) -> bool {
        self.is_copy
    }
}

/// A curve of weights over the distance from the middle.
struct Curve<F> {
    /// Where it ends.
    support: f64,
    /// Whether it is widened to the step between outputs.
    is_widened: bool,
    weight: F,
}

#[inline(always)]
fn triangle(distance: f64) -> f64 {
    if distance < 1.0 { 1.0 - distance } else { 0.0 }
}

/// The cubic convolution of Keys (1981) with a = -0.5, in the order of operations of Pillow's `bicubic_filter`.
#[inline(always)]
fn cubic(distance: f64) -> f64 {
    const A: f64 = -0.5;
    if distance < 1.0 {
        ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0
    } else if distance < 2.0 {
        (((distance - 5.0) * distance + 8.0) * distance - 4.0) * A
    } else {
        0.0
    }
}

/// Of a length of `from` pixels at `start`, resized to `to`: the source pixels under the middle of outputs `first` ..
/// `first + count`. Pillow adds the step up, pixel by pixel, and so must we.
pub fn nearest(start: u32, from: u32, to: u32, (first, count): (u32, u32)) -> impl Iterator<Item = u32> {
    let step = f64::from(from) / f64::from(to);
    let mut place = f64::from(start) + step * 0.5;
    for _ in 0..first {
        place += step;
    }
    let last = start + from - 1;
    (0..count).map(move |_| {
        // Sums of rounded steps may end a hair past the last pixel.
        let pixel = (place as u32).min(last);
        place += step;
        pixel
    })
}

impl WeightRows {
    /// Makes room for `count` rows of up to `taps` weights, all zero.
    fn prepare(&mut self, count: usize, taps: usize) {
        self.margin = taps + 1;
        self.row_length = self.margin + taps;
        self.weights.clear();
        self.weights.resize(count * self.row_length + self.margin, 0);
        self.starts.clear();
        self.scratch.resize(taps, 0.0);
    }

    /// Room for `count` weights of an output: before, and after rounding.
    fn row(&mut self, index: usize, count: usize) -> (&mut [f64], &mut [i32]) {
        let start = index * self.row_length + self.margin;
        (&mut self.scratch[..count], &mut self.weights[start..][..count])
    }

    /// Notes how many zeros the row of an output starts with.
    fn start_at(&mut self, index: usize, leading: usize) {
        self.starts.push(index * self.row_length + self.margin + leading);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: u32, target: u32, range: Range<u32>, mirrored: bool, resampling: Resampling) {
        let mut axis = Axis::default();
        axis.prepare(source, target, range.clone(), mirrored, resampling);
        let width = axis.source().end - axis.source().start;
        assert_eq!(axis.output_count(), range.len());
        assert!(axis.source().end <= source);
        for output in 0..axis.output_count() {
            let case = format!("output {output} of {source} -> {target}, {range:?}");
            let pairs = axis.pairs_of(output);
            let sum: i32 = pairs.iter().flat_map(|pair| pair.weights()).sum();
            assert!((sum - (1 << WEIGHT_BITS)).abs() <= pairs.len() as i32, "{case}: weights add up to {sum}");
            assert!(axis.first()[output] < axis.end_of(output) && axis.end_of(output) <= width, "{case}");
            let reach = axis.first()[output] + 2 * axis.pair_count() as u32;
            assert!(reach <= width || axis.first()[output] == 0, "{case}: reads up to {reach} of {width}");
        }
    }

    #[test]
    fn weights_add_up_and_stay_inside() {
        for source in [1, 2, 3, 5, 17, 223, 224, 225, 448, 500, 4096] {
            for target in [1, 2, 3, 7, 224, 256] {
                for resampling in
                    [Resampling::Bilinear, Resampling::BilinearAliased, Resampling::Bicubic, Resampling::Nearest]
                {
                    check(source, target, 0..target, false, resampling);
                    check(source, target, 0..target, true, resampling);
                    check(source, target, target / 2..target, false, resampling);
                }
            }
        }
    }

    #[test]
    fn mirroring_reverses_the_outputs() {
        let (mut straight, mut mirrored) = (Axis::default(), Axis::default());
        straight.prepare(300, 224, 0..224, false, Resampling::Bicubic);
        mirrored.prepare(300, 224, 0..224, true, Resampling::Bicubic);
        for output in 0..224 {
            assert_eq!(straight.pairs_of(output), mirrored.pairs_of(223 - output));
        }
    }

    #[test]
    fn equal_lengths_copy() {
        let mut axis = Axis::default();
        axis.prepare(5, 5, 1..4, false, Resampling::Bilinear);
        assert!(axis.is_copy());
        assert_eq!(axis.source(), 1..4);
        assert_eq!(axis.pair_count(), 1);
        assert_eq!(axis.pairs_of(2)[0].weights(), [0, 1 << WEIGHT_BITS]);
    }
}
