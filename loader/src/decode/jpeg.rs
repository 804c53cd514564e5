//! JPEG, decoded only where a region needs it: columns outside are not transformed, rows above are only
//! entropy-decoded, and decoding stops at the last row.
//!
//! Pixels equal a full decode bit for bit. Interpolating subsampled colour ("fancy upsampling") looks one colour
//! sample to each side, so a region grows by what a sample covers before libjpeg is told; libjpeg takes care of the
//! rows itself. Block smoothing, which libjpeg applies to progressive files that lack their last scans, looks two
//! blocks further; those regions grow by more.
//!
//! Damage is judged as Pillow judges it: data that end before an end-of-image marker are refused as truncated,
//! whatever the region; contradictions inside (a bad code, a restart marker out of turn, an end marker that comes
//! early) decode to what libjpeg makes of them, and are counted as warnings.

use crate::error::{FaultClass, Result, SampleFault};
use crate::sys::jpeg::{Codec, Opened};

use super::{Region, STRIP_ROWS, STRIP_SLACK, Strip, check_size};

/// Colour samples that interpolation needs to each side.
const INTERPOLATION_MARGIN: u32 = 2;

/// The same where block smoothing may apply, in colour samples: two blocks and a bit.
const SMOOTHING_MARGIN: u32 = 24;

/// A worker's JPEG decoder.
pub struct JpegDecoder {
    codec: Codec,
    strip: Vec<u8>,
    cmyk: Vec<u8>,
}

impl JpegDecoder {
    /// A decoder without an image.
    pub fn new() -> Result<Self> {
        Ok(Self { codec: Codec::new()?, strip: Vec::new(), cmyk: Vec::new() })
    }

    /// Reads the header of `bytes`.
    pub fn open<'image>(
        &'image mut self,
        bytes: &'image [u8],
        pixels_max: u64,
    ) -> Result<JpegImage<'image>, SampleFault> {
        let frame = Frame::find(bytes);
        if let Some(name) = frame.as_ref().and_then(Frame::refused) {
            return Err(unsupported(format!("{name} is not decoded")));
        }
        let opened = self.codec.open(bytes)?;
        let header = *opened.header();
        check_size("JPEG", header.width, header.height, pixels_max)?;
        if header.precision != 8 {
            return Err(unsupported(format!("samples of {} bits are not decoded, only 8", header.precision)));
        }
        if !matches!(header.components, 1 | 3 | 4) {
            return Err(unsupported(format!("{} colour components, only 1, 3 or 4 are decoded", header.components)));
        }
        if !has_end_marker(&bytes[header.scan_offset as usize..]) {
            let message = format!("JPEG: no end-of-image marker in {} bytes", bytes.len());
            return Err(SampleFault::new(FaultClass::Truncated, message));
        }
        Ok(JpegImage { opened, strip: &mut self.strip, cmyk: &mut self.cmyk })
    }

    /// Oddities passed over in the last image.
    pub fn warnings(&self) -> u32 {
        self.codec.warnings()
    }
}

fn unsupported(message: String) -> SampleFault {
    SampleFault::new(FaultClass::Unsupported, format!("JPEG: {message}"))
}

/// Whether an end-of-image marker follows. Inside entropy-coded data a 0xff byte is never followed by 0xd9.
fn has_end_marker(scans: &[u8]) -> bool {
    scans.ends_with(&[0xff, 0xd9]) || scans.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

/// The frame header, for what libjpeg does not tell: the kind of coding, by name.
struct Frame {
    marker: u8,
    precision: u8,
}

impl Frame {
    /// Walks the markers up to the frame header; `None` where the walk loses its way, which libjpeg then judges.
    fn find(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(2..)?;
        loop {
            let start = rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff))?;
            let marker = rest[start + 1];
            rest = &rest[start + 2..];
            match marker {
                0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                    return Some(Self { marker, precision: *rest.get(2)? });
                }
                0xda => return None,
                0x01 | 0xd0..=0xd8 => {}
                _ => rest = rest.get(usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])).max(2)..)?,
            }
        }
    }

    fn refused(&self) -> Option<String> {
        let kind = match self.marker {
            0xc3 => "SOF3 (lossless)",
            0xc5 => "SOF5 (hierarchical)",
            0xc6 => "SOF6 (hierarchical progressive)",
            0xc7 => "SOF7 (hierarchical lossless)",
            0xcb => "SOF11 (lossless, arithmetic)",
            0xcd..=0xcf => "SOF13-15 (hierarchical, arithmetic)",
            _ if self.precision != 8 => {
                let number = self.marker - 0xc0;
                return Some(format!("SOF{number} with samples of {} bits", self.precision));
            }
            _ => return None,
        };
        Some(kind.into())
    }
}

/// A JPEG whose header has been read.
pub struct JpegImage<'image> {
    opened: Opened<'image>,
    strip: &'image mut Vec<u8>,
    cmyk: &'image mut Vec<u8>,
}

impl<'image> JpegImage<'image> {
    /// (width, height) in pixels.
    pub fn size(&self) -> (u32, u32) {
        (self.opened.header().width, self.opened.header().height)
    }

    /// Starts decoding `region`, which lies within the image.
    pub fn region(mut self, region: Region) -> Result<JpegRows<'image>, SampleFault> {
        let header = *self.opened.header();
        let samples = if header.multiple_scans != 0 { SMOOTHING_MARGIN } else { INTERPOLATION_MARGIN };
        let margin = samples * header.sampling_max;
        let left = region.left.saturating_sub(margin);
        let right = header.width.min(region.left + region.width + margin);
        let (left, width) = self.opened.start(left, right - left, region.top)?;

        let rows = STRIP_ROWS as usize;
        let stride = width as usize * 3;
        self.strip.resize(rows * stride + STRIP_SLACK, 0);
        if header.components == 4 {
            self.cmyk.resize(rows * width as usize * 4, 0);
        }
        let first = (region.left - left) as usize * 3;
        let cmyk = (header.components == 4).then_some(self.cmyk);
        Ok(JpegRows { opened: self.opened, strip: self.strip, cmyk, stride, first, rows_left: region.height })
    }
}

/// The rows of a region of a JPEG, top to bottom.
pub struct JpegRows<'image> {
    opened: Opened<'image>,
    strip: &'image mut Vec<u8>,
    /// Where four components are decoded to, before they become RGB.
    cmyk: Option<&'image mut Vec<u8>>,
    stride: usize,
    /// Where the region starts in a row, in bytes.
    first: usize,
    rows_left: u32,
}

impl JpegRows<'_> {
    /// The next rows, or `None` after the last.
    pub fn next_strip(&mut self) -> Result<Option<Strip<'_>>, SampleFault> {
        let rows = STRIP_ROWS.min(self.rows_left);
        if rows == 0 {
            return Ok(None);
        }
        self.rows_left -= rows;
        match &mut self.cmyk {
            None => self.opened.rows(self.strip, self.stride, rows)?,
            Some(cmyk) => {
                let stride = self.stride / 3 * 4;
                self.opened.rows(cmyk, stride, rows)?;
                inverted_cmyk_to_rgb(&cmyk[..rows as usize * stride], self.strip);
            }
        }
        Ok(Some(Strip { bytes: &self.strip[self.first..], stride: self.stride, rows }))
    }
}

/// Pillow's way with four components: it takes every such file as inverted (Adobe's habit), whatever its markers say,
/// then multiplies the inks, rounding as its MULDIV255 does.
fn inverted_cmyk_to_rgb(cmyk: &[u8], rgb: &mut [u8]) {
    for (inks, pixel) in cmyk.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        let light = u32::from(inks[3]);
        for channel in 0..3 {
            let product = u32::from(255 - inks[channel]) * light + 128;
            let absorbed = ((product >> 8) + product) >> 8;
            pixel[channel] = light.saturating_sub(absorbed) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn example(name: &str) -> Vec<u8> {
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/images").join(name)).expect("example")
    }

    /// `bytes` with the segments before the first scan that `marker` starts turned into comments.
    fn without(marker: u8, bytes: &[u8]) -> Vec<u8> {
        let (mut bytes, mut place) = (bytes.to_vec(), 2);
        while bytes[place + 1] != 0xda {
            if bytes[place + 1] == marker {
                bytes[place + 1] = 0xfe;
            }
            place += 2 + usize::from(u16::from_be_bytes([bytes[place + 2], bytes[place + 3]]));
        }
        bytes
    }

    fn pixels(decoder: &mut JpegDecoder, bytes: &[u8]) -> Result<Vec<u8>, SampleFault> {
        let image = decoder.open(bytes, 1 << 24)?;
        let (width, height) = image.size();
        let mut rows = image.region(Region::whole(width, height))?;
        let mut pixels = Vec::new();
        while let Some(strip) = rows.next_strip()? {
            for row in 0..strip.rows as usize {
                pixels.extend_from_slice(&strip.bytes[row * strip.stride..][..width as usize * 3]);
            }
        }
        Ok(pixels)
    }

    #[test]
    fn an_image_takes_nothing_from_those_before_it() {
        let fresh = |bytes: &[u8]| pixels(&mut JpegDecoder::new().expect("decoder"), bytes);
        let whole = example("420.jpg");
        // Frames of Motion JPEG leave the usual code tables out; libjpeg has them.
        let (no_codes, no_quantization) = (without(0xc4, &whole), without(0xdb, &whole));
        assert_eq!(fresh(&no_codes).expect("frame"), fresh(&whole).expect("whole"));
        assert_eq!(fresh(&no_quantization).expect_err("no table").class, FaultClass::Corrupt);

        let mut decoder = JpegDecoder::new().expect("decoder");
        for before in ["progressive.jpg", "444.jpg", "cmyk.jpg", "grey.jpg"] {
            for bytes in [&whole, &no_codes, &no_quantization] {
                pixels(&mut decoder, &example(before)).expect("decodes");
                let (after, alone) = (pixels(&mut decoder, bytes), fresh(bytes));
                let words =
                    |found: &Result<Vec<u8>, SampleFault>| found.as_ref().err().map(|fault| fault.message.clone());
                assert_eq!(words(&after), words(&alone), "after {before}");
                assert!(after.ok() == alone.ok(), "other pixels after {before}");
            }
        }
    }
}
