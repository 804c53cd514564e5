//! Subsampled components to the size of the image, row by row, as libjpeg-turbo does it: between samples by a triangle
//! filter ("fancy"), whose nearest sample weighs three quarters, where a component is halved; else by repetition.
//!
//! Beyond its border a component goes on as its outermost sample. What the border is tells its own size, not the size of
//! its blocks.

use crate::sys::simd::Path;
#[cfg(target_arch = "x86_64")]
use crate::sys::simd_jpeg;

/// How a component grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upsampling {
    /// It has the size of the image.
    #[default]
    None,
    /// Interpolated across.
    DoubleAcross,
    /// Interpolated down.
    DoubleDown,
    /// Interpolated both ways.
    DoubleBoth,
    /// Repeated so many times across and down.
    Repeat([usize; 2]),
}

impl Upsampling {
    /// What libjpeg-turbo chooses for a component `width` samples wide that covers `factors` pixels a sample.
    /// `interpolates`: where it interpolates at all.
    pub fn of(factors: [usize; 2], width: usize, interpolates: bool) -> Self {
        match factors {
            [1, 1] => Self::None,
            [1, 2] if interpolates => Self::DoubleDown,
            [2, 1] if interpolates && width > 2 => Self::DoubleAcross,
            [2, 2] if interpolates && width > 2 => Self::DoubleBoth,
            _ => Self::Repeat(factors),
        }
    }

    /// Pixels of a sample, across and down.
    pub fn factors(self) -> [usize; 2] {
        match self {
            Self::None => [1, 1],
            Self::DoubleAcross => [2, 1],
            Self::DoubleDown => [1, 2],
            Self::DoubleBoth => [2, 2],
            Self::Repeat(factors) => factors,
        }
    }

    /// Whether samples beside the one that covers a pixel are looked at, across and down.
    pub fn looks_beside(self) -> [bool; 2] {
        [matches!(self, Self::DoubleAcross | Self::DoubleBoth), matches!(self, Self::DoubleDown | Self::DoubleBoth)]
    }
}

/// The rows of samples that a row of pixels is made of. Each starts one sample to the left of the first that is used.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'rows> {
    /// The row that covers the pixels.
    pub near: &'rows [u8],
    /// The next nearest; the same row where rows beside are not looked at.
    pub far: &'rows [u8],
    /// Whether `far` lies above.
    pub is_far_above: bool,
}

/// Makes a row of pixels of `count` samples: `factor` times as many.
pub fn row(path: Path, upsampling: Upsampling, sources: Sources<'_>, target: &mut [u8], count: usize) {
    let Sources { near, far, is_far_above } = sources;
    // Halves are rounded up and down in turn.
    let bias = if is_far_above { 1 } else { 2 };
    match (upsampling, path) {
        (Upsampling::None, _) => target[..count].copy_from_slice(&near[1..=count]),
        (Upsampling::Repeat([factor, _]), _) => {
            for (pixels, sample) in target.chunks_exact_mut(factor).zip(&near[1..=count]) {
                pixels.fill(*sample);
            }
        }
        (Upsampling::DoubleAcross, Path::Portable) => double_across(near, target, count),
        (Upsampling::DoubleDown, Path::Portable) => double_down(near, far, bias, target, count),
        (Upsampling::DoubleBoth, Path::Portable) => double_both(near, far, target, count),
        #[cfg(target_arch = "x86_64")]
        (Upsampling::DoubleAcross, Path::Avx2) => simd_jpeg::upsample::double_across(near, target, count),
        #[cfg(target_arch = "x86_64")]
        (Upsampling::DoubleDown, Path::Avx2) => {
            simd_jpeg::upsample::double_down(&near[1..], &far[1..], bias, target, count)
        }
        #[cfg(target_arch = "x86_64")]
        (Upsampling::DoubleBoth, Path::Avx2) => simd_jpeg::upsample::double_both(near, far, target, count),
    }
}

fn double_across(row: &[u8], target: &mut [u8], count: usize) {
    let windows = row[..count + 2].windows(3);
    for (window, pixels) in windows.zip(target.as_chunks_mut::<2>().0) {
        let [left, centre, right] = [0, 1, 2].map(|place| u16::from(window[place]));
        *pixels = [((3 * centre + left + 1) >> 2) as u8, ((3 * centre + right + 2) >> 2) as u8];
    }
}

fn double_down(near: &[u8], far: &[u8], bias: u8, target: &mut [u8], count: usize) {
    for ((near, far), pixel) in near[1..=count].iter().zip(&far[1..=count]).zip(target) {
        *pixel = ((3 * u16::from(*near) + u16::from(*far) + u16::from(bias)) >> 2) as u8;
    }
}

fn double_both(near: &[u8], far: &[u8], target: &mut [u8], count: usize) {
    let windows = near[..count + 2].windows(3).zip(far[..count + 2].windows(3));
    for ((near, far), pixels) in windows.zip(target.as_chunks_mut::<2>().0) {
        let [left, centre, right] = [0, 1, 2].map(|place| 3 * u16::from(near[place]) + u16::from(far[place]));
        *pixels = [((3 * centre + left + 8) >> 4) as u8, ((3 * centre + right + 7) >> 4) as u8];
    }
}
