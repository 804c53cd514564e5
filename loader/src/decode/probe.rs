//! One call that takes any bytes through every part of the decoder: for tools that look at single images, and for fuzzing.

use crate::error::{Result, SampleFault};
use crate::spec::DecodeSpec;

use super::{Decoder, Reduction, Region};

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// (width, height) in pixels, turned as the choices say.
    pub size: (u32, u32),
    /// How far it was reduced.
    pub reduction: Reduction,
    /// Oddities that were passed over.
    pub warnings: u32,
    /// It was cut off, and decoded as far as it goes.
    pub is_cut_off: bool,
    /// Sum of all values of the pixels.
    pub sum: u64,
}

/// Opens `bytes` and decodes all of it, reduced as a resize to 1x1 would allow.
///
/// # Panics
/// If there is no memory for a decoder.
pub fn probe_and_decode(bytes: &[u8], pixels_max: u64, spec: &DecodeSpec) -> Result<Probe, SampleFault> {
    let mut decoder = Decoder::new().expect("memory for a decoder");
    let image = decoder.open_with(bytes, pixels_max, spec)?;
    let size = image.size();
    let reduction = image.reduction(Region::whole(size.0, size.1), (1, 1));
    let [width, height] = [size.0, size.1].map(|side| side.div_ceil(reduction.factor));
    let mut strips = image.reduced_region(Region::whole(width, height), reduction.factor)?;
    let mut sum = 0;
    while let Some(strip) = strips.next_strip()? {
        for row in strip.bytes.chunks(strip.stride).take(strip.rows as usize) {
            sum += row[..3 * width as usize].iter().map(|&value| u64::from(value)).sum::<u64>();
        }
    }
    drop(strips);
    let (warnings, is_cut_off) = (decoder.warnings(), decoder.is_cut_off());
    Ok(Probe { size, reduction, warnings, is_cut_off, sum })
}
