//! Bytes to pixels: a worker's decoder opens a sample, tells its size from the header, then hands the rows of one
//! region on in strips small enough to stay in the cache, as RGB.
//!
//! The format is what the first bytes say, never the name. JPEG is decoded only where the region needs it ([`jpeg`]);
//! every other format is decoded whole by the crate `image` ([`whole`]). Pixels equal Pillow's
//! `Image.open(…).convert("RGB")`, with one intended exception: 16-bit grey is scaled where Pillow clips. Colour
//! profiles are ignored, as there; so are EXIF orientation and alpha, unless [`DecodeSpec`] says otherwise.
//!
//! Limits hold before anything is allocated for an image: its sides and its pixels are those of its header, and what a
//! decoder may take beside them has a bound.
//!
//! What is no picture has a reader of its own: class numbers ([`mask`]), arrays ([`npy`], [`npz`]), words ([`text`]).

pub mod boxes;
#[cfg(test)]
mod choices;
pub mod header;
pub mod jpeg;
mod markers;
pub mod mask;
pub mod npy;
pub mod npz;
pub mod orientation;
pub mod probe;
pub mod sniff;
pub mod text;
pub mod unwrap;
pub mod whole;

use crate::error::{FaultClass, Result, SampleFault};
use crate::spec::{DecodeMode, DecodeSpec, FieldKind, FieldSpec};
use crate::sys::jpeg::library;
use orientation::Orientation;
pub use probe::probe_and_decode;
use sniff::Format;

/// The crate that decodes what is no JPEG.
const WHOLE_LIBRARY: &str = "image 0.25";

/// Longest side of an image.
pub const SIDE_MAX: u32 = 1 << 24;

/// Bytes that a decoder may allocate beyond an image's pixels: tables, chunks of text, a frame's buffer.
const ALLOCATION_EXTRA: u64 = 64 << 20;

/// How often larger a reduced box must be than what a resize makes of it, in each direction.
const REDUCED_MARGIN: u64 = 2;

/// Bytes past a strip's last row that may be read, so that vector loads need no special case at the end of a row.
pub const STRIP_SLACK: usize = 32;

/// Most rows of a strip: a row of blocks of a JPEG without vertical subsampling.
pub const STRIP_ROWS: u32 = 8;

/// A rectangle of an image, in pixels; never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

    /// The smallest one that holds this one and `other`.
    pub fn with(self, other: Self) -> Self {
        let (left, top) = (self.left.min(other.left), self.top.min(other.top));
        let right = (self.left + self.width).max(other.left + other.width);
        let bottom = (self.top + self.height).max(other.top + other.height);
        Self { left, top, width: right - left, height: bottom - top }
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
    turning: Turning,
    /// Whether the last image was a JPEG.
    was_jpeg: bool,
}

/// Memory for pictures that are turned: as stored, and turned.
#[derive(Default)]
struct Turning {
    stored: Vec<u8>,
    turned: Vec<[u8; 3]>,
}

impl Decoder {
    /// A decoder without an image.
    pub fn new() -> Result<Self> {
        Ok(Self::with(jpeg::JpegDecoder::new()?))
    }

    /// One that leaves every JPEG to libjpeg-turbo, to compare with.
    pub fn of_library() -> Result<Self> {
        Ok(Self::with(jpeg::JpegDecoder::of_library()?))
    }

    fn with(jpeg: jpeg::JpegDecoder) -> Self {
        Self { jpeg, whole: whole::WholeDecoder::default(), turning: Turning::default(), was_jpeg: false }
    }

    /// [`Decoder::open_with`] the usual choices.
    pub fn open<'image>(&'image mut self, bytes: &'image [u8], pixels_max: u64) -> Result<Image<'image>, SampleFault> {
        self.open_with(bytes, pixels_max, &DecodeSpec::default())
    }

    /// Opens a sample: finds its format and reads its header. Images of more than `pixels_max` pixels are refused
    /// before anything is allocated for them.
    pub fn open_with<'image>(
        &'image mut self,
        bytes: &'image [u8],
        pixels_max: u64,
        spec: &DecodeSpec,
    ) -> Result<Image<'image>, SampleFault> {
        self.was_jpeg = false;
        let pixels = match sniff::sniff(bytes)? {
            Format::Jpeg => {
                self.was_jpeg = true;
                Pixels::Jpeg(self.jpeg.open(bytes, pixels_max, spec)?)
            }
            Format::Other(format) => Pixels::Whole(self.whole.open(bytes, format, pixels_max, spec)?),
        };
        Ok(Image { pixels, turning: &mut self.turning })
    }

    /// Oddities that were passed over in the last image, as Pillow does: bytes before a marker of a JPEG, bad codes.
    pub fn warnings(&self) -> u32 {
        if self.was_jpeg { self.jpeg.warnings() } else { 0 }
    }

    /// Whether the last image was cut off, and used all the same because the job says so.
    pub fn is_cut_off(&self) -> bool {
        self.was_jpeg && self.jpeg.is_cut_off()
    }
}

/// How far an image is reduced while it is decoded, and where its pixels then lie: place `x` of the image is place
/// `x / factor + shift` of the reduced one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    /// Pixels that become one, in each direction: 1, 2, 4 or 8.
    pub factor: u32,
    /// Across and down, in reduced pixels. Not zero where a picture is mirrored whose side is no multiple of the
    /// factor: then the first of its pixels is one that the image only partly covers.
    pub shift: [f64; 2],
}

impl Reduction {
    /// An image as it is.
    pub const NONE: Self = Self { factor: 1, shift: [0.0; 2] };
}

/// An opened sample.
pub struct Image<'image> {
    pixels: Pixels<'image>,
    turning: &'image mut Turning,
}

enum Pixels<'image> {
    Jpeg(jpeg::JpegImage<'image>),
    Whole(whole::WholeImage<'image>),
}

impl<'image> Image<'image> {
    /// (width, height) in pixels, turned as the job says.
    pub fn size(&self) -> (u32, u32) {
        self.orientation().size(self.stored_size())
    }

    /// (width, height) in pixels, as stored.
    pub fn stored_size(&self) -> (u32, u32) {
        match &self.pixels {
            Pixels::Jpeg(image) => image.size(),
            Pixels::Whole(image) => image.size(),
        }
    }

    /// How it is turned, as the job says.
    pub fn orientation(&self) -> Orientation {
        match &self.pixels {
            Pixels::Jpeg(image) => image.orientation(),
            Pixels::Whole(image) => image.orientation(),
        }
    }

    /// How far the job lets it be reduced where `source`, a part of it, is going to be resized to (width, height).
    pub fn reduction(&self, source: Region, resized: (u32, u32)) -> Reduction {
        let Pixels::Jpeg(image) = &self.pixels else { return Reduction::NONE };
        if image.mode() != DecodeMode::Scaled {
            return Reduction::NONE;
        }
        let fits = |factor: u64| {
            u64::from(source.width) >= factor * REDUCED_MARGIN * u64::from(resized.0)
                && u64::from(source.height) >= factor * REDUCED_MARGIN * u64::from(resized.1)
        };
        let factor = [8, 4, 2].into_iter().find(|&factor| fits(factor.into())).unwrap_or(1);
        let (width, height) = self.size();
        let Orientation { flipped_across, flipped_down, .. } = self.orientation();
        let shift = |side: u32, is_flipped: bool| {
            if is_flipped { f64::from(side.div_ceil(factor)) - f64::from(side) / f64::from(factor) } else { 0.0 }
        };
        Reduction { factor, shift: [shift(width, flipped_across), shift(height, flipped_down)] }
    }

    /// Starts decoding `region`, which lies within the image.
    pub fn region(self, region: Region) -> Result<Strips<'image>, SampleFault> {
        self.reduced_region(region, 1)
    }

    /// Starts decoding `region`, which lies within the image reduced by `factor`.
    pub fn reduced_region(self, region: Region, factor: u32) -> Result<Strips<'image>, SampleFault> {
        let (width, height) = self.size();
        let (width, height) = (width.div_ceil(factor), height.div_ceil(factor));
        assert!(region.is_within(width, height), "{region:?} lies within {width}x{height}");
        let orientation = self.orientation();
        if orientation == Orientation::UPRIGHT {
            return self.pixels.strips(region, factor);
        }
        let stored = orientation.stored(region, (width, height));
        let Turning { stored: pixels, turned } = self.turning;
        let strips = self.pixels.strips(stored, factor)?;
        pixels.clear();
        strips.append_to(pixels, stored.width)?;
        turned.clear();
        orientation.turn(pixels.as_chunks().0, (stored.width, stored.height), turned);
        turned.resize(turned.len() + STRIP_SLACK.div_ceil(3), [0; 3]);
        Ok(Strips::of_pixels(turned.as_flattened(), region.width, Region::whole(region.width, region.height)))
    }
}

impl<'image> Pixels<'image> {
    /// Starts decoding `region` of what is stored, reduced by `factor`.
    fn strips(self, region: Region, factor: u32) -> Result<Strips<'image>, SampleFault> {
        match self {
            Self::Jpeg(image) => Ok(Strips { rows: Rows::Jpeg(image.region(region, factor)?) }),
            Self::Whole(image) => {
                assert_eq!(factor, 1, "only JPEGs are reduced");
                let width = image.size().0;
                Ok(Strips::of_pixels(image.pixels()?, width, region))
            }
        }
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

    /// Appends all rows, `width` columns wide, to `pixels`.
    pub fn append_to(mut self, pixels: &mut Vec<u8>, width: u32) -> Result<(), SampleFault> {
        while let Some(strip) = self.next_strip()? {
            for row in strip.bytes.chunks(strip.stride).take(strip.rows as usize) {
                pixels.extend_from_slice(&row[..3 * width as usize]);
            }
        }
        Ok(())
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
    if width.max(height) > SIDE_MAX {
        let message = format!("{format} of {width}x{height} pixels, the longest side is {SIDE_MAX}");
        return Err(SampleFault::new(FaultClass::TooLarge, message));
    }
    if pixels > pixels_max {
        let message = format!("{format} of {width}x{height} = {pixels} pixels, the limit is {pixels_max} (max_pixels)");
        return Err(SampleFault::new(FaultClass::TooLarge, message));
    }
    if pixels == 0 {
        return Err(SampleFault::new(FaultClass::Corrupt, format!("{format} of {width}x{height} has no pixels")));
    }
    Ok(())
}

/// Who decodes the images of a job, and with which choices: what a run's record needs so that its pixels can be had
/// again.
pub fn identity(fields: &[FieldSpec]) -> String {
    let mut words = format!("{}, {WHOLE_LIBRARY}", library());
    for field in fields {
        if let FieldKind::Image(image) = &field.kind {
            let choices = serde_json::to_string(&image.decode).expect("plain data");
            words.push_str(&format!("; {}: {choices}", field.name));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_names_what_is_linked() {
        let manifest = include_str!("../../Cargo.toml");
        let version = WHOLE_LIBRARY.strip_prefix("image ").expect("a name and a version");
        assert!(manifest.contains(&format!("\nimage = {{ version = \"{version}\"")), "{version}");
        let words = identity(&[]);
        assert!(words.starts_with("libjpeg-turbo 3."), "{words}");
    }
}
