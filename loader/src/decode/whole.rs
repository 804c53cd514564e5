//! Every format but JPEG, decoded whole by the crate `image`, then brought to 8-bit RGB as Pillow's `convert("RGB")`
//! does: palettes looked up, grey repeated, the first frame of an animation. Alpha is dropped, whether it is a channel, a
//! palette's or one transparent colour; or, where the job names a background, the picture is laid over it, as Pillow's
//! `paste` with a mask does.
//!
//! 16 bits become 8 by keeping the upper byte (Pillow does so for colour, and clips grey; we scale both alike).

use std::io::{self, Cursor};

use image::codecs::webp::WebPDecoder;
use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, png::PngDecoder, pnm::PnmDecoder, tiff::TiffDecoder};
use image::error::{ImageError, LimitErrorKind};
use image::{ColorType, ImageDecoder, ImageFormat, Limits};

use crate::error::{FaultClass, SampleFault};

use crate::spec::{DecodeSpec, OrientationRule};

use super::orientation::Orientation;
use super::{ALLOCATION_EXTRA, STRIP_SLACK, check_size};

/// Most bytes of a pixel as decoded: four channels of 32 bits.
const PIXEL_BYTES_MAX: u64 = 16;

/// A worker's memory for images decoded whole.
#[derive(Default)]
pub struct WholeDecoder {
    decoded: Vec<u8>,
    rgb: Vec<u8>,
}

impl WholeDecoder {
    /// Reads the header of `bytes`.
    pub fn open<'image>(
        &'image mut self,
        bytes: &'image [u8],
        format: ImageFormat,
        pixels_max: u64,
        spec: &DecodeSpec,
    ) -> Result<WholeImage<'image>, SampleFault> {
        let name = format!("{format:?}");
        let allocation_max = pixels_max.saturating_mul(PIXEL_BYTES_MAX).saturating_add(ALLOCATION_EXTRA);
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(allocation_max);
        let source = Cursor::new(bytes);
        let mut decoder: Box<dyn ImageDecoder + 'image> = match format {
            ImageFormat::Png => Box::new(PngDecoder::with_limits(source, limits.clone()).map_err(fault(&name))?),
            ImageFormat::WebP => {
                check_riff_length(bytes)?;
                Box::new(WebPDecoder::new(source).map_err(fault(&name))?)
            }
            ImageFormat::Gif => Box::new(GifDecoder::new(source).map_err(fault(&name))?),
            ImageFormat::Bmp => Box::new(BmpDecoder::new(source).map_err(fault(&name))?),
            ImageFormat::Tiff => Box::new(TiffDecoder::new(source).map_err(fault(&name))?),
            ImageFormat::Pnm => Box::new(PnmDecoder::new(source).map_err(fault(&name))?),
            _ => return Err(SampleFault::new(FaultClass::Unsupported, format!("{name} is not decoded"))),
        };
        let (width, height) = decoder.dimensions();
        check_size(&name, width, height, pixels_max)?;
        decoder.set_limits(limits).map_err(fault(&name))?;
        let orientation = match spec.orientation {
            OrientationRule::Ignore => Orientation::UPRIGHT,
            // Metadata that make no sense cost no pixels.
            OrientationRule::Apply => decoder.orientation().map_or(Orientation::UPRIGHT, Orientation::of),
        };
        let WholeDecoder { decoded, rgb } = self;
        Ok(WholeImage { decoder, name, orientation, background: spec.background, decoded, rgb })
    }
}

/// An image whose header has been read.
pub struct WholeImage<'image> {
    decoder: Box<dyn ImageDecoder + 'image>,
    name: String,
    orientation: Orientation,
    background: Option<[u8; 3]>,
    decoded: &'image mut Vec<u8>,
    rgb: &'image mut Vec<u8>,
}

impl<'image> WholeImage<'image> {
    /// (width, height) in pixels, as stored.
    pub fn size(&self) -> (u32, u32) {
        self.decoder.dimensions()
    }

    /// How it is turned before it is looked at.
    pub fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// Decodes all of it: RGB rows without gaps, and [`STRIP_SLACK`] bytes more.
    pub fn pixels(self) -> Result<&'image [u8], SampleFault> {
        let color = self.decoder.color_type();
        let background = self.background;
        let (decoded, rgb, name) = self.decode()?;
        rgb.clear();
        rgb.reserve(decoded.len() / usize::from(color.bytes_per_pixel()) * 3 + STRIP_SLACK);
        to_rgb(color, decoded, background, rgb)
            .map_err(|message| SampleFault::new(FaultClass::Unsupported, format!("{name}: {message}")))?;
        rgb.resize(rgb.len() + STRIP_SLACK, 0);
        Ok(rgb)
    }

    /// Decodes all of it where it is grey, as it is.
    pub fn grey(self) -> Result<Grey<'image>, NotGrey> {
        let form = match self.decoder.color_type() {
            ColorType::L8 => Grey::Narrow,
            ColorType::L16 => Grey::Wide,
            other => return Err(NotGrey::Colour(format!("{other:?}"))),
        };
        let (decoded, ..) = self.decode().map_err(NotGrey::Fault)?;
        Ok(form(decoded))
    }

    /// The decoded bytes, and the memory for what is made of them.
    fn decode(self) -> Result<(&'image [u8], &'image mut Vec<u8>, String), SampleFault> {
        let Ok(bytes) = usize::try_from(self.decoder.total_bytes()) else {
            return Err(SampleFault::new(
                FaultClass::TooLarge,
                format!("{}: {:?}", self.name, self.decoder.dimensions()),
            ));
        };
        self.decoded.clear();
        self.decoded.resize(bytes, 0);
        self.decoder.read_image_boxed(self.decoded).map_err(fault(&self.name))?;
        Ok((self.decoded, self.rgb, self.name))
    }
}

/// Grey samples as decoded, row after row.
#[derive(Debug, Clone, Copy)]
pub enum Grey<'image> {
    /// Of 8 bits.
    Narrow(&'image [u8]),
    /// Of 16 bits, in this machine's byte order.
    Wide(&'image [u8]),
}

/// Why there are no grey samples.
#[derive(Debug)]
pub enum NotGrey {
    /// The image has this kind of pixels.
    Colour(String),
    /// It cannot be decoded.
    Fault(SampleFault),
}

/// Tells a WebP that was cut off from a damaged one: its decoder calls both corrupt.
fn check_riff_length(bytes: &[u8]) -> Result<(), SampleFault> {
    let declared =
        bytes.get(4..8).map_or(0, |length| 8 + u64::from(u32::from_le_bytes(length.try_into().expect("four bytes"))));
    if declared > bytes.len() as u64 {
        let message = format!("WebP: {} bytes of the {declared} that its header declares", bytes.len());
        return Err(SampleFault::new(FaultClass::Truncated, message));
    }
    Ok(())
}

/// Appends `decoded` as RGB, over `background` where there is one.
fn to_rgb(color: ColorType, decoded: &[u8], background: Option<[u8; 3]>, rgb: &mut Vec<u8>) -> Result<(), String> {
    let pixels = decoded.chunks_exact(usize::from(color.bytes_per_pixel()));
    // 16-bit samples come in the machine's order; the upper byte is the value scaled to 8 bits.
    let upper = |pixel: &[u8], sample: usize| pixel[2 * sample + usize::from(cfg!(target_endian = "little"))];
    let mut over = |pixel: [u8; 3], alpha: u8| {
        rgb.extend_from_slice(&background.map_or(pixel, |background| blend(pixel, alpha, background)));
    };
    match color {
        ColorType::Rgb8 => rgb.extend_from_slice(decoded),
        ColorType::Rgba8 => pixels.for_each(|pixel| over([pixel[0], pixel[1], pixel[2]], pixel[3])),
        ColorType::L8 => decoded.iter().for_each(|&grey| rgb.extend_from_slice(&[grey; 3])),
        ColorType::La8 => pixels.for_each(|pixel| over([pixel[0]; 3], pixel[1])),
        ColorType::L16 => pixels.for_each(|pixel| rgb.extend_from_slice(&[upper(pixel, 0); 3])),
        ColorType::La16 => pixels.for_each(|pixel| over([upper(pixel, 0); 3], upper(pixel, 1))),
        ColorType::Rgb16 => pixels.for_each(|pixel| rgb.extend([0, 1, 2].map(|channel| upper(pixel, channel)))),
        ColorType::Rgba16 => {
            pixels.for_each(|pixel| over([0, 1, 2].map(|channel| upper(pixel, channel)), upper(pixel, 3)));
        }
        other => return Err(format!("pixels of kind {other:?} have no 8-bit meaning")),
    }
    Ok(())
}

/// `pixel` over `background`, divided by 255 with the rounding of Pillow's `paste`.
fn blend(pixel: [u8; 3], alpha: u8, background: [u8; 3]) -> [u8; 3] {
    let alpha = u32::from(alpha);
    [0, 1, 2].map(|channel| {
        let sum = u32::from(pixel[channel]) * alpha + u32::from(background[channel]) * (255 - alpha) + 128;
        (((sum >> 8) + sum) >> 8) as u8
    })
}

/// Turns an error of the crate `image` into a fault of a sample of the named format.
fn fault(name: &str) -> impl Fn(ImageError) -> SampleFault {
    move |error| {
        let class = match &error {
            _ if is_early_end(&error) => FaultClass::Truncated,
            ImageError::Unsupported(_) => FaultClass::Unsupported,
            ImageError::Limits(limit) if matches!(limit.kind(), LimitErrorKind::Unsupported { .. }) => {
                FaultClass::Unsupported
            }
            ImageError::Limits(_) => FaultClass::TooLarge,
            _ => FaultClass::Corrupt,
        };
        SampleFault::new(class, format!("{name}: {error}"))
    }
}

/// Whether an error says that the bytes ran out: as such, somewhere in its causes, or only in words (GIF).
fn is_early_end(error: &ImageError) -> bool {
    let is_end = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    if matches!(error, ImageError::IoError(error) if is_end(error)) {
        return true;
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(is_end) {
            return true;
        }
        cause = error.source();
    }
    error.to_string().to_ascii_lowercase().contains("unexpected end of file")
}
