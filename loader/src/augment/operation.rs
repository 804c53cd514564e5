//! Operations on a whole image, their parameters drawn: what a resample cannot do.
//!
//! Colours are changed in place; what mixes neighbours or moves pixels writes a second image. Both are small and stay
//! in the cache.

use serde::Serialize;

use super::filter::{self, FilterMemory};
use super::geometry::{Window, border};
use super::philox::OperationStream;
use super::{colour, warp};
use crate::spec::{Channels, Interpolation, PaddingMode};
use crate::sys::simd::Path;
use crate::sys::simd::to_byte;

/// One operation on an RGB image.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Every value times the factor.
    Brightness(f32),
    /// Away from (over 1) or towards (below 1) the mean of the luma.
    Contrast(f32),
    /// Away from or towards the pixel's luma.
    Saturation(f32),
    /// Around the colour circle, in turns.
    Hue(f32),
    /// The luma in every channel.
    Grayscale,
    /// Values of at least this inverted.
    Solarize(f32),
    /// So many upper bits kept.
    Posterize(u32),
    /// Each channel's histogram made even.
    Equalize,
    /// Each channel stretched to the full range.
    Autocontrast,
    /// Inverted.
    Invert,
    /// Away from or towards the softened image.
    Sharpness(f32),
    /// Blurred.
    Blur {
        /// Columns and rows of the kernel.
        kernel: [u32; 2],
        /// Standard deviation, in pixels.
        sigma: f64,
    },
    /// A box painted over.
    Erase(Erase),
    /// Pixels moved freely.
    Warp(Warp),
    /// A window of the image with borders that mirror it.
    Extend(Extend),
}

/// A box that is painted over.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Erase {
    /// First column.
    pub left: u32,
    /// First row.
    pub top: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Its colour; `None`: noise.
    pub value: Option<[f32; 3]>,
    /// Where noise comes from.
    #[serde(skip)]
    pub noise: OperationStream,
}

/// Where each pixel comes from: pixel middles (x + 0.5, y + 0.5) are mapped by a projection.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Warp {
    /// (a x + b y + c) / (g x + h y + 1), (d x + e y + f) / (g x + h y + 1), in the order of the alphabet.
    pub coefficients: [f64; 8],
    /// How pixels are picked.
    pub interpolation: Interpolation,
    /// Colour of what comes from outside.
    pub fill: Option<Channels>,
}

/// A window of an endless image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Extend {
    /// The window; it may reach beyond the image.
    pub window: Window,
    /// What lies there.
    pub mode: PaddingMode,
}

/// Memory that operations share.
#[derive(Debug, Default)]
pub struct OperationMemory {
    filter: FilterMemory,
    columns: Vec<u32>,
}

impl Operation {
    /// Size of the output for an image of `size`.
    pub fn output(&self, size: (u32, u32)) -> (u32, u32) {
        match self {
            Self::Extend(extend) => (extend.window.width, extend.window.height),
            _ => size,
        }
    }

    /// Carries it out on `pixels`, an RGB image of (width, height) `size`; `second` is room for a second image, and
    /// `pixels` holds the output afterwards.
    pub fn run(
        &self,
        path: Path,
        pixels: &mut Vec<u8>,
        second: &mut Vec<u8>,
        size: (u32, u32),
        memory: &mut OperationMemory,
    ) {
        let (width, height) = self.output(size);
        let mut into_second = |make: &mut dyn FnMut(&[u8], &mut [u8])| {
            second.resize(3 * width as usize * height as usize, 0);
            make(pixels, second);
            std::mem::swap(pixels, second);
        };
        match *self {
            Self::Brightness(factor) => path.run(|| colour::brightness(pixels, factor)),
            Self::Contrast(factor) => path.run(|| colour::contrast(pixels, factor)),
            Self::Saturation(factor) => colour::saturation(path, pixels, factor),
            Self::Hue(turn) => colour::hue(path, pixels, turn),
            Self::Grayscale => colour::grayscale(path, pixels),
            Self::Solarize(threshold) => path.run(|| colour::solarize(pixels, threshold)),
            Self::Posterize(bits) => path.run(|| colour::posterize(pixels, bits)),
            Self::Invert => path.run(|| colour::invert(pixels)),
            Self::Equalize => colour::equalize(pixels),
            Self::Autocontrast => path.run(|| colour::autocontrast(pixels)),
            Self::Erase(erase) => erase.run(pixels, width),
            Self::Sharpness(factor) => into_second(&mut |source, target| {
                path.run(|| filter::sharpness(source, target, size, factor, &mut memory.filter));
            }),
            Self::Blur { kernel, sigma } => into_second(&mut |source, target| {
                memory.filter.prepare_blur(kernel, sigma, size);
                filter::blur(path, source, target, size, &mut memory.filter);
            }),
            Self::Warp(warp) => into_second(&mut |source, target| {
                warp::run(path, &warp, source, size, target);
            }),
            Self::Extend(extend) => into_second(&mut |source, target| {
                extend.run(source.as_chunks::<3>().0, size, target.as_chunks_mut::<3>().0, &mut memory.columns);
            }),
        }
    }
}

impl Erase {
    /// Paints the box over in an RGB image; noise is even over all values.
    fn run(&self, pixels: &mut [u8], width: u32) {
        let mut noise = Noise::new(self.noise);
        for row in self.rows(width) {
            let row = &mut pixels[3 * row.start..3 * row.end];
            match self.value {
                Some(value) => {
                    let value = value.map(to_byte);
                    row.as_chunks_mut::<3>().0.fill(value);
                }
                None => row.iter_mut().for_each(|byte| *byte = noise.byte()),
            }
        }
    }

    /// The pixels of each row of the box, in an image of so many columns.
    pub fn rows(&self, width: u32) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let Self { left, top, width: columns, height: rows, .. } = *self;
        (top..top + rows).map(move |row| {
            let start = row as usize * width as usize + left as usize;
            start..start + columns as usize
        })
    }
}

/// Random bytes of one operation.
pub struct Noise {
    stream: OperationStream,
    block: u64,
    bytes: [u8; 32],
    next: usize,
}

/// First block of noise; those before are parameters.
const NOISE_BLOCK: u64 = 1 << 32;

impl Noise {
    /// The noise of a stream, from its start.
    pub fn new(stream: OperationStream) -> Self {
        Self { stream, block: NOISE_BLOCK, bytes: [0; 32], next: 32 }
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        if self.next == self.bytes.len() {
            for (bytes, word) in self.bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.stream.block(self.block)) {
                *bytes = word.to_le_bytes();
            }
            self.block += 1;
            self.next = 0;
        }
        self.next += 1;
        self.bytes[self.next - 1]
    }
}

impl Extend {
    /// Cuts the window out of `source`; `columns` is room for where its columns come from.
    pub fn run<T: Copy>(&self, source: &[T], (width, height): (u32, u32), target: &mut [T], columns: &mut Vec<u32>) {
        let Self { window, mode } = *self;
        columns.clear();
        columns.extend((0..i64::from(window.width)).map(|column| border(window.left + column, width, mode)));
        for (row, target) in target.chunks_exact_mut(window.width as usize).enumerate() {
            let row = border(window.top + row as i64, height, mode) as usize * width as usize;
            let source = &source[row..row + width as usize];
            for (pixel, &column) in target.iter_mut().zip(&*columns) {
                *pixel = source[column as usize];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Draw;
    use super::super::warp::affine;
    use super::*;

    fn stream() -> OperationStream {
        Draw { seed: 1, epoch: 2, sample: 3 }.operation(4)
    }

    fn warp() -> impl Strategy<Value = Operation> {
        let interpolation = prop::sample::select(vec![Interpolation::Nearest, Interpolation::Bilinear]);
        let fill = prop::sample::select(vec![None, Some([200, 3, 77])]);
        (interpolation, fill, -360.0..360.0f64, -0.01..0.01f64).prop_map(|(interpolation, fill, angle, depth)| {
            let mut coefficients = affine((30, 20), None, angle, [3.0, -2.0], 0.7, [10.0, -5.0]);
            // Half of them are true projections.
            coefficients[6] = depth.max(0.0);
            Operation::Warp(Warp { coefficients, interpolation, fill })
        })
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let mode = prop::sample::select(vec![PaddingMode::Edge, PaddingMode::Reflect, PaddingMode::Symmetric]);
        prop_oneof![
            (0.0..5.0f32).prop_map(Operation::Brightness),
            (0.0..5.0f32).prop_map(Operation::Contrast),
            (0.0..5.0f32).prop_map(Operation::Saturation),
            (-0.5..=0.5f32).prop_map(Operation::Hue),
            Just(Operation::Grayscale),
            (0.0..=255.0f32).prop_map(Operation::Solarize),
            (0..=8u32).prop_map(Operation::Posterize),
            Just(Operation::Equalize),
            Just(Operation::Autocontrast),
            Just(Operation::Invert),
            (0.0..5.0f32).prop_map(Operation::Sharpness),
            (0..12u32, 0..12u32, 0.05..9.0f64)
                .prop_map(|(one, two, sigma)| Operation::Blur { kernel: [2 * one + 1, 2 * two + 1], sigma }),
            warp(),
            (-40..40i64, -40..40i64, 1..50u32, 1..50u32, mode).prop_map(|(left, top, width, height, mode)| {
                Operation::Extend(Extend { window: Window { left, top, width, height }, mode })
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_path_gives_the_same_bytes(
            operations in prop::collection::vec(operation(), 1..5),
            first in (1..70u32, 1..30u32),
            seed in any::<u64>(),
        ) {
            if Path::best() == Path::Portable {
                eprintln!("skipped: the vector path, this processor has none");
            }
            let mut noise = Noise::new(Draw { seed, epoch: 0, sample: 0 }.operation(0));
            let image: Vec<u8> = (0..3 * first.0 * first.1).map(|_| noise.byte()).collect();
            let results = [Path::Portable, Path::best()].map(|path| {
                let (mut pixels, mut second, mut size) = (image.clone(), Vec::new(), first);
                // Memory that another image has used.
                let mut memory = OperationMemory::default();
                for _ in 0..2 {
                    (pixels, size) = (image.clone(), first);
                    for operation in &operations {
                        operation.run(path, &mut pixels, &mut second, size, &mut memory);
                        size = operation.output(size);
                    }
                }
                (pixels, size)
            });
            let (width, height) = results[0].1;
            prop_assert_eq!(results[0].0.len(), 3 * (width * height) as usize);
            prop_assert!(results[0] == results[1], "paths differ");
        }
    }

    #[test]
    fn boxes_are_painted_over() {
        let check = |value: Option<[f32; 3]>| {
            let erase = Erase { left: 1, top: 2, width: 3, height: 2, value, noise: stream() };
            let mut pixels = vec![7; 3 * 5 * 6];
            let run = |pixels: &mut Vec<u8>| {
                let mut memory = OperationMemory::default();
                Operation::Erase(erase).run(Path::Portable, pixels, &mut Vec::new(), (5, 6), &mut memory);
            };
            run(&mut pixels);
            for (index, pixel) in pixels.as_chunks::<3>().0.iter().enumerate() {
                let is_inside = (1..4).contains(&(index % 5)) && (2..4).contains(&(index / 5));
                assert!(is_inside || *pixel == [7; 3], "{index}");
                if let Some(value) = value.filter(|_| is_inside) {
                    assert_eq!(*pixel, value.map(|value| value as u8));
                }
            }
            let mut again = vec![7; 3 * 5 * 6];
            run(&mut again);
            assert_eq!(pixels, again);
            pixels
        };
        check(Some([1.0, 2.9, 255.0]));
        let noise = check(None);
        assert!(noise.iter().filter(|&&byte| byte != 7).count() > 10);
    }
}
