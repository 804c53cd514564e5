//! Masks: one class number a pixel, exactly as stored.
//!
//! A PNG gives its palette's indices, or its grey values at the depth that they have (1 and 2 bits too: a number is a
//! class, not a brightness, so nothing is scaled). Other lossless formats give their grey values. Whatever has colours,
//! or was lossily compressed, is refused by name: its numbers would no longer be those that somebody painted.

use std::io::{self, Cursor};

use image::ImageFormat;
use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Transformations};

use super::sniff::{Format, sniff};
use super::whole::{Grey, WholeDecoder};
use super::{ALLOCATION_EXTRA, check_size, whole};
use crate::error::{FaultClass, SampleFault};
use crate::spec::DecodeSpec;

/// A worker's memory for masks.
#[derive(Default)]
pub struct MaskDecoder {
    whole: WholeDecoder,
    packed: Vec<u8>,
    plane: Vec<u16>,
}

/// A decoded mask.
#[derive(Debug, Clone, Copy)]
pub struct Plane<'mask> {
    /// Class numbers, row after row.
    pub numbers: &'mask [u16],
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The numbers come from 16-bit samples.
    pub is_wide: bool,
}

impl MaskDecoder {
    /// Decodes `bytes`; masks of more than `pixels_max` pixels are refused from their header.
    pub fn decode(&mut self, bytes: &[u8], pixels_max: u64) -> Result<Plane<'_>, SampleFault> {
        let (width, height, is_wide) = match sniff(bytes)? {
            Format::Jpeg => {
                let words = "a JPEG changes the numbers of a mask: write masks as PNG";
                return Err(SampleFault::new(FaultClass::Unsupported, words));
            }
            Format::Other(ImageFormat::Png) => self.decode_png(bytes, pixels_max)?,
            Format::Other(format) => self.decode_grey(bytes, format, pixels_max)?,
        };
        Ok(Plane { numbers: &self.plane, width, height, is_wide })
    }

    fn decode_png(&mut self, bytes: &[u8], pixels_max: u64) -> Result<(u32, u32, bool), SampleFault> {
        let limit = pixels_max.saturating_mul(2).saturating_add(ALLOCATION_EXTRA);
        let limits = Limits { bytes: usize::try_from(limit).unwrap_or(usize::MAX) };
        let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
        decoder.set_transformations(Transformations::IDENTITY);
        let mut reader = decoder.read_info().map_err(png_fault)?;
        let info = reader.info();
        let (width, height, color, depth) = (info.width, info.height, info.color_type, info.bit_depth);
        check_size("PNG", width, height, pixels_max)?;
        if !matches!(color, ColorType::Indexed | ColorType::Grayscale) {
            return Err(coloured("PNG", &format!("{color:?}")));
        }
        let packed_bytes = reader.output_buffer_size().expect("checked against the limit of pixels");
        self.packed.clear();
        self.packed.resize(packed_bytes, 0);
        let stride = reader.next_frame(&mut self.packed).map_err(png_fault)?.line_size;
        self.plane.clear();
        self.plane.reserve(width as usize * height as usize);
        for row in self.packed.chunks_exact(stride).take(height as usize) {
            unpack(row, depth, width as usize, &mut self.plane);
        }
        Ok((width, height, depth == BitDepth::Sixteen))
    }

    fn decode_grey(
        &mut self,
        bytes: &[u8],
        format: ImageFormat,
        pixels_max: u64,
    ) -> Result<(u32, u32, bool), SampleFault> {
        let image = self.whole.open(bytes, format, pixels_max, &DecodeSpec::default())?;
        let (width, height) = image.size();
        let grey = image.grey().map_err(|found| match found {
            whole::NotGrey::Colour(color) => coloured(&format!("{format:?}"), &color),
            whole::NotGrey::Fault(fault) => fault,
        })?;
        self.plane.clear();
        match grey {
            Grey::Narrow(bytes) => self.plane.extend(bytes.iter().map(|&number| u16::from(number))),
            Grey::Wide(bytes) => {
                let number = |pair: &[u8]| u16::from_ne_bytes([pair[0], pair[1]]);
                self.plane.extend(bytes.chunks_exact(2).map(number));
            }
        }
        Ok((width, height, matches!(grey, Grey::Wide(_))))
    }
}

fn coloured(format: &str, color: &str) -> SampleFault {
    let message = format!(
        "a mask has one number a pixel, and this {format} is {color}: write it as a PNG with a palette or in grey"
    );
    SampleFault::new(FaultClass::Unsupported, message)
}

/// Appends the `width` numbers of a packed row.
fn unpack(row: &[u8], depth: BitDepth, width: usize, plane: &mut Vec<u16>) {
    match depth {
        BitDepth::Sixteen => plane.extend(row.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))),
        BitDepth::Eight => plane.extend(row.iter().map(|&number| u16::from(number))),
        BitDepth::One | BitDepth::Two | BitDepth::Four => {
            let bits = depth as usize;
            let mask = (1 << bits) - 1;
            // The leftmost pixel has the highest bits.
            let number = |x: usize| row[x * bits / 8] >> (8 - bits - x * bits % 8) & mask;
            plane.extend((0..width).map(|x| u16::from(number(x))));
        }
    }
}

fn png_fault(error: DecodingError) -> SampleFault {
    let class = match &error {
        DecodingError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => FaultClass::Truncated,
        DecodingError::LimitsExceeded => FaultClass::TooLarge,
        _ => FaultClass::Corrupt,
    };
    SampleFault::new(class, format!("PNG: {error}"))
}
