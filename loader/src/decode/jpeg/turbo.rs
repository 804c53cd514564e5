//! The way of libjpeg-turbo, for every JPEG that it decodes.
//!
//! Interpolating subsampled colour ("fancy upsampling") looks one colour sample to each side, so a region grows by what
//! a sample covers before libjpeg is told; libjpeg takes care of the rows itself. Block smoothing, which libjpeg applies
//! to progressive files that lack their last scans, looks two blocks further; those regions grow by more.

use crate::decode::orientation::Orientation;
use crate::decode::{ALLOCATION_EXTRA, Region, STRIP_ROWS, STRIP_SLACK, Strip, check_size, markers};
use crate::error::{FaultClass, Result, SampleFault};
use crate::spec::{DecodeMode, DecodeSpec, OrientationRule, Truncated};
use crate::sys::jpeg::{Codec, Opened, Settings};

/// Most bytes of a pixel while it is decoded: the coefficients of four components.
const PIXEL_BYTES_MAX: u64 = 8;

/// Colour samples that interpolation needs to each side.
const INTERPOLATION_MARGIN: u32 = 2;

/// The same where block smoothing may apply, in colour samples: two blocks and a bit.
const SMOOTHING_MARGIN: u32 = 24;

/// A worker's JPEG decoder.
pub struct TurboDecoder {
    codec: Codec,
    strip: Vec<u8>,
    cmyk: Vec<u8>,
    /// Whether libjpeg has seen the last image: it may have been refused before.
    is_seen: bool,
    is_cut_off: bool,
}

impl TurboDecoder {
    /// A decoder without an image.
    pub fn new() -> Result<Self> {
        Ok(Self { codec: Codec::new()?, strip: Vec::new(), cmyk: Vec::new(), is_seen: false, is_cut_off: false })
    }

    /// Reads the header of `bytes`.
    pub fn open<'image>(
        &'image mut self,
        bytes: &'image [u8],
        pixels_max: u64,
        spec: &DecodeSpec,
    ) -> Result<TurboImage<'image>, SampleFault> {
        self.is_seen = false;
        self.is_cut_off = false;
        if let Some(name) = markers::refused_coding(bytes) {
            return Err(unsupported(format!("{name} is not decoded")));
        }
        let memory_max = pixels_max.saturating_mul(PIXEL_BYTES_MAX).saturating_add(ALLOCATION_EXTRA);
        self.is_seen = true;
        let mut opened = self.codec.open(bytes, memory_max)?;
        let header = *opened.header();
        check_size("JPEG", header.width, header.height, pixels_max)?;
        if header.precision != 8 {
            return Err(unsupported(format!("samples of {} bits are not decoded, only 8", header.precision)));
        }
        if !matches!(header.components, 1 | 3 | 4) {
            return Err(unsupported(format!("{} colour components, only 1, 3 or 4 are decoded", header.components)));
        }
        if !has_end_marker(&bytes[header.scan_offset as usize..]) {
            if spec.truncated == Truncated::Fault {
                let message = format!("JPEG: no end-of-image marker in {} bytes", bytes.len());
                return Err(SampleFault::new(FaultClass::Truncated, message));
            }
            self.is_cut_off = true;
            opened.allow_end();
        }
        let orientation = match spec.orientation {
            OrientationRule::Ignore => Orientation::UPRIGHT,
            OrientationRule::Apply => markers::exif(bytes).map_or(Orientation::UPRIGHT, Orientation::of_exif),
        };
        Ok(TurboImage {
            opened,
            mode: spec.mode,
            orientation,
            is_cut_off: self.is_cut_off,
            strip: &mut self.strip,
            cmyk: &mut self.cmyk,
        })
    }

    /// Oddities passed over in the last image.
    pub fn warnings(&self) -> u32 {
        if self.is_seen { self.codec.warnings() } else { 0 }
    }

    /// Whether the last image was cut off and opened all the same.
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// How often memory for images was taken from the system; it stays the same once the largest image was seen.
    pub fn allocations(&self) -> u64 {
        self.codec.allocations()
    }
}

fn unsupported(message: String) -> SampleFault {
    SampleFault::new(FaultClass::Unsupported, format!("JPEG: {message}"))
}

/// Whether an end-of-image marker follows. Inside entropy-coded data a 0xff byte is never followed by 0xd9.
fn has_end_marker(scans: &[u8]) -> bool {
    scans.ends_with(&[0xff, 0xd9]) || scans.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

/// A JPEG whose header has been read.
pub struct TurboImage<'image> {
    opened: Opened<'image>,
    mode: DecodeMode,
    orientation: Orientation,
    is_cut_off: bool,
    strip: &'image mut Vec<u8>,
    cmyk: &'image mut Vec<u8>,
}

impl<'image> TurboImage<'image> {
    /// (width, height) in pixels, as stored.
    pub fn size(&self) -> (u32, u32) {
        (self.opened.header().width, self.opened.header().height)
    }

    /// Whether it ends too early.
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// How it is turned before it is looked at.
    pub fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// How faithfully it is decoded.
    pub fn mode(&self) -> DecodeMode {
        self.mode
    }

    /// Starts decoding `region`, which lies within the image reduced by `reduction`.
    pub fn region(mut self, region: Region, reduction: u32) -> Result<TurboRows<'image>, SampleFault> {
        let header = *self.opened.header();
        let samples = if header.multiple_scans != 0 { SMOOTHING_MARGIN } else { INTERPOLATION_MARGIN };
        let margin = samples * header.sampling_max;
        let left = region.left.saturating_sub(margin);
        let right = header.width.div_ceil(reduction).min(region.left + region.width + margin);
        // Where scans are missing, the fast way of libjpeg leaves rows of the image before in what it gives.
        let is_fast = self.mode == DecodeMode::Fast && !(self.is_cut_off && header.multiple_scans != 0);
        let settings = Settings { reduction, fast: u32::from(is_fast) };
        let (left, width) = self.opened.start(settings, (left, right - left), region.top)?;

        let rows = STRIP_ROWS as usize;
        let stride = width as usize * 3;
        self.strip.resize(rows * stride + STRIP_SLACK, 0);
        if header.components == 4 {
            self.cmyk.resize(rows * width as usize * 4, 0);
        }
        let first = (region.left - left) as usize * 3;
        let cmyk = (header.components == 4).then_some(self.cmyk);
        Ok(TurboRows { opened: self.opened, strip: self.strip, cmyk, stride, first, rows_left: region.height })
    }
}

/// The rows of a region of a JPEG, top to bottom.
pub struct TurboRows<'image> {
    opened: Opened<'image>,
    strip: &'image mut Vec<u8>,
    /// Where four components are decoded to, before they become RGB.
    cmyk: Option<&'image mut Vec<u8>>,
    stride: usize,
    /// Where the region starts in a row, in bytes.
    first: usize,
    rows_left: u32,
}

impl TurboRows<'_> {
    /// Decodes `count` rows and forgets them.
    pub fn pass(&mut self, count: u32) -> Result<(), SampleFault> {
        let rows_after = self.rows_left - count;
        while self.rows_left > rows_after {
            self.strip_of((self.rows_left - rows_after).min(STRIP_ROWS))?;
        }
        Ok(())
    }

    /// The next rows, or `None` after the last.
    pub fn next_strip(&mut self) -> Result<Option<Strip<'_>>, SampleFault> {
        let rows = STRIP_ROWS.min(self.rows_left);
        if rows == 0 {
            return Ok(None);
        }
        self.strip_of(rows)?;
        Ok(Some(Strip { bytes: &self.strip[self.first..], stride: self.stride, rows }))
    }

    /// Decodes the next `rows` rows into the strip.
    fn strip_of(&mut self, rows: u32) -> Result<(), SampleFault> {
        self.rows_left -= rows;
        match &mut self.cmyk {
            None => self.opened.rows(self.strip, self.stride, rows)?,
            Some(cmyk) => {
                let stride = self.stride / 3 * 4;
                self.opened.rows(cmyk, stride, rows)?;
                inverted_cmyk_to_rgb(&cmyk[..rows as usize * stride], self.strip);
            }
        }
        Ok(())
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
