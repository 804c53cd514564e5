//! Bytes to pixels: a worker's decoder opens a sample, tells its size from the header, then hands the rows of one
//! region on in strips small enough to stay in the cache, as RGB.
//!
//! The format is what the first bytes say, never the name. JPEG is decoded only where the region needs it ([`jpeg`]);
//! every other format is decoded whole by the crate `image` ([`whole`]). Pixels equal Pillow's
//! `Image.open(…).convert("RGB")`, with one intended exception: 16-bit grey is scaled where Pillow clips. EXIF
//! orientation, colour profiles and alpha are ignored, as there.
//!
//! What is no picture has a reader of its own: class numbers ([`mask`]), arrays ([`npy`], [`npz`]), words ([`text`]).

pub mod jpeg;
pub mod mask;
pub mod npy;
pub mod npz;
pub mod sniff;
pub mod text;
pub mod unwrap;
pub mod whole;

use crate::error::{FaultClass, Result, SampleFault};
use sniff::Format;

/// Bytes past a strip's last row that may be read, so that vector loads need no special case at the end of a row.
pub const STRIP_SLACK: usize = 32;

/// Most rows of a strip: a row of blocks of a JPEG without vertical subsampling.
pub const STRIP_ROWS: u32 = 8;

/// A rectangle of an image, in pixels; never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First column.
    pub left: u32,
    /// First row.
    pub top: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Region {
    /// The whole of an image of this size.
    pub fn whole(width: u32, height: u32) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// Whether it is not empty and lies within an image of this size.
    pub fn is_within(&self, width: u32, height: u32) -> bool {
        self.width > 0
            && self.height > 0
            && u64::from(self.left) + u64::from(self.width) <= u64::from(width)
            && u64::from(self.top) + u64::from(self.height) <= u64::from(height)
    }
}

/// Some consecutive rows of a region.
#[derive(Debug, Clone, Copy)]
pub struct Strip<'rows> {
    /// RGB, row after row; [`STRIP_SLACK`] bytes past the last pixel are readable and of no meaning.
    pub bytes: &'rows [u8],
    /// From the start of a row to the start of the next, in bytes.
    pub stride: usize,
    /// Rows, 1 to [`STRIP_ROWS`].
    pub rows: u32,
}

/// A worker's decoder: owns what every image needs, so that a new image allocates nothing of ours.
pub struct Decoder {
    jpeg: jpeg::JpegDecoder,
    whole: whole::WholeDecoder,
}

impl Decoder {
    /// A decoder without an image.
    pub fn new() -> Result<Self> {
        Ok(Self { jpeg: jpeg::JpegDecoder::new()?, whole: whole::WholeDecoder::default() })
    }

    /// Opens a sample: finds its format and reads its header. Images of more than `pixels_max` pixels are refused
    /// before anything is allocated for them.
    pub fn open<'image>(&'image mut self, bytes: &'image [u8], pixels_max: u64) -> Result<Image<'image>, SampleFault> {
        let pixels = match sniff::sniff(bytes)? {
            Format::Jpeg => Pixels::Jpeg(self.jpeg.open(bytes, pixels_max)?),
            Format::Other(format) => Pixels::Whole(self.whole.open(bytes, format, pixels_max)?),
        };
        Ok(Image { pixels })
    }

    /// Oddities that the JPEG decoder passed over in the last JPEG, as Pillow does: bytes before a marker, bad codes.
    pub fn warnings(&self) -> u32 {
        self.jpeg.warnings()
    }
}

/// An opened sample.
pub struct Image<'image> {
    pixels: Pixels<'image>,
}

enum Pixels<'image> {
    Jpeg(jpeg::JpegImage<'image>),
    Whole(whole::WholeImage<'image>),
}

impl<'image> Image<'image> {
    /// (width, height) in pixels.
    pub fn size(&self) -> (u32, u32) {
        match &self.pixels {
            Pixels::Jpeg(image) => image.size(),
            Pixels::Whole(image) => image.size(),
        }
    }

    /// Starts decoding `region`, which lies within the image.
    pub fn region(self, region: Region) -> Result<Strips<'image>, SampleFault> {
        let (width, height) = self.size();
        assert!(region.is_within(width, height), "{region:?} lies within {width}x{height}");
        Ok(match self.pixels {
            Pixels::Jpeg(image) => Strips { rows: Rows::Jpeg(image.region(region)?) },
            Pixels::Whole(image) => Strips::of_pixels(image.pixels()?, width, region),
        })
    }
}

/// The rows of a region, top to bottom.
pub struct Strips<'image> {
    rows: Rows<'image>,
}

enum Rows<'image> {
    Jpeg(jpeg::JpegRows<'image>),
    Pixels { bytes: &'image [u8], stride: usize, rows_left: u32 },
}

impl<'image> Strips<'image> {
    /// The rows of a region of RGB `pixels`, `width` columns wide, with [`STRIP_SLACK`] bytes at the end.
    pub fn of_pixels(pixels: &'image [u8], width: u32, region: Region) -> Self {
        let stride = width as usize * 3;
        let first = region.top as usize * stride + region.left as usize * 3;
        Self { rows: Rows::Pixels { bytes: &pixels[first..], stride, rows_left: region.height } }
    }

    /// The next rows, or `None` after the last.
    pub fn next_strip(&mut self) -> Result<Option<Strip<'_>>, SampleFault> {
        match &mut self.rows {
            Rows::Jpeg(rows) => rows.next_strip(),
            Rows::Pixels { rows_left: 0, .. } => Ok(None),
            Rows::Pixels { bytes, stride, rows_left } => {
                let rows = STRIP_ROWS.min(*rows_left);
                let strip = Strip { bytes, stride: *stride, rows };
                *rows_left -= rows;
                *bytes = bytes.get(rows as usize * *stride..).unwrap_or_default();
                Ok(Some(strip))
            }
        }
    }
}

fn check_size(format: &str, width: u32, height: u32, pixels_max: u64) -> Result<(), SampleFault> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels > pixels_max {
        let message = format!("{format} of {width}x{height} = {pixels} pixels, the limit is {pixels_max} (max_pixels)");
        return Err(SampleFault::new(FaultClass::TooLarge, message));
    }
    if pixels == 0 {
        return Err(SampleFault::new(FaultClass::Corrupt, format!("{format} of {width}x{height} has no pixels")));
    }
    Ok(())
}
