//! JPEGs written anew without loss, for faster decoding: one baseline scan, Huffman tables made for the file, and a restart
//! marker at the end of each row of MCUs, so that a decoder can start at any of them.
//!
//! [`JpegFile`] tells what a file is made of, [`Markers`] which of its application data go with it, and [`Transcoder`] writes
//! it (with the codes of [`codes`]), reads what it has written, and compares: every coefficient, quantisation step, component and fact that decides about
//! colours must be the same. Whatever is odd in any way is refused with a [`Reason`]; such a file is better left as it is.
//!
//! Padding of the last MCUs, which no decoder shows, is libjpeg's own afterwards.

mod codes;
mod file;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::file::{JpegFile, is_jpeg};
use crate::error::{FaultClass, Result, SampleFault};
use crate::sys::transcode::Codec;

/// Most bytes that the coefficients of an image may take; it takes twice as many to write and to check it.
pub const COEFFICIENT_BYTES_MAX: u64 = 256 << 20;

/// What libjpeg may take beside the coefficients.
const SLACK_BYTES: u64 = 16 << 20;

/// Which application data and comments a file keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Markers {
    /// All, and what lies behind the image.
    All,
    /// Those that change what decoders show: JFIF, Adobe, EXIF, ICC, and XMP that has an orientation.
    Needed,
    /// Those that decide how components become colours: JFIF and Adobe. An orientation and a colour profile are lost.
    None,
}

impl Markers {
    /// Whether the segment of `marker` with `content` is kept.
    fn keeps(self, marker: u8, content: &[u8]) -> bool {
        const ORIENTATION: &[u8] = b"tiff:Orientation";
        match (self, marker) {
            (Self::All, _) => true,
            // Extensions of JFIF hold thumbnails.
            (_, 0xe0) => !content.starts_with(b"JFXX\0"),
            (_, 0xee) => true,
            (Self::None, _) => false,
            (_, 0xe1) if content.starts_with(b"Exif\0") => true,
            // Pillow takes the orientation from there when EXIF has none.
            (_, 0xe1) => content.windows(ORIENTATION.len()).any(|window| window == ORIENTATION),
            (_, 0xe2) => content.starts_with(b"ICC_PROFILE\0"),
            _ => false,
        }
    }
}

/// Why a JPEG is not written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The data end before the image does.
    Truncated,
    /// The data contradict themselves; libjpeg decodes some of these with warnings.
    Damaged,
    /// Scans of a progressive file, or of a component, are missing: decoders smooth what they show of it.
    Incomplete,
    /// Coded arithmetically.
    Arithmetic,
    /// Lossless, or hierarchical.
    OtherCoding,
    /// Samples of more than 8 bits.
    Precision,
    /// Neither 1, 3 nor 4 components.
    Components,
    /// Its segments number other pictures by their place in the file, which would move.
    SeveralPictures,
    /// Sound perhaps, but nothing that one baseline scan can say: tables that change between scans, segments where decoders
    /// do not look for them, sampling factors of over 10 blocks.
    Unusual,
    /// Its coefficients take over [`COEFFICIENT_BYTES_MAX`].
    TooLarge,
    /// What was written is not the same. This should not be.
    Unverified,
}

impl Reason {
    /// The name under which it is counted.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Damaged => "damaged",
            Self::Incomplete => "incomplete",
            Self::Arithmetic => "arithmetic",
            Self::OtherCoding => "other-coding",
            Self::Precision => "precision",
            Self::Components => "components",
            Self::SeveralPictures => "several-pictures",
            Self::Unusual => "unusual",
            Self::TooLarge => "too-large",
            Self::Unverified => "unverified",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// That a JPEG is not written anew, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Refusal {
    /// The kind of reason, counted under its name.
    pub reason: Reason,
    /// Details: the value found, where.
    pub message: String,
}

impl Refusal {
    /// A refusal for `reason`; `message` says what was found.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    fn of_read(fault: SampleFault) -> Self {
        let reason = match fault.class {
            FaultClass::Truncated => Reason::Truncated,
            FaultClass::Unsupported => Reason::Unusual,
            FaultClass::TooLarge => Reason::TooLarge,
            _ => Reason::Damaged,
        };
        Self::new(reason, fault.message)
    }
}

/// Writes JPEGs anew, one after the other.
pub struct Transcoder {
    codec: Codec,
}

impl Transcoder {
    /// One without a file.
    pub fn new() -> Result<Self> {
        Ok(Self { codec: Codec::new()? })
    }

    /// The bytes of `file` written anew, and verified. The same file and choice give the same bytes.
    pub fn optimize(&mut self, file: &JpegFile<'_>, markers: Markers) -> Result<Vec<u8>, Refusal> {
        if markers == Markers::All && file.has_several_pictures() {
            let message = "an MPF segment gives the places of other pictures in the file; fewer markers may be kept";
            return Err(Refusal::new(Reason::SeveralPictures, message));
        }
        let memory_max = usize::try_from(file.coefficient_bytes() + SLACK_BYTES).unwrap_or(usize::MAX);
        let mut old = self.codec.read(file.bytes(), memory_max).map_err(Refusal::of_read)?;
        let facts = *old.facts();
        if facts.warnings > 0 {
            let message = format!("libjpeg passes over {} oddities in it", facts.warnings);
            return Err(Refusal::new(Reason::Damaged, message));
        }
        if facts.is_complete == 0 {
            return Err(Refusal::new(Reason::Incomplete, "scans are missing, and decoders smooth what there is"));
        }
        if facts.end != file.end() as u64 {
            let message = format!("libjpeg reads {} bytes, its segments end at {}", facts.end, file.end());
            return Err(Refusal::new(Reason::Unusual, message));
        }

        let mut new = Vec::with_capacity(file.bytes().len() + file.bytes().len() / 8);
        new.extend_from_slice(&[0xff, 0xd8]);
        file.kept(markers).for_each(|segment| new.extend_from_slice(segment));
        old.write(codes::fitted, &mut new).map_err(|fault| Refusal::new(Reason::Unusual, fault.message))?;
        new.extend_from_slice(file.behind(markers));
        old.compare(&new).map_err(|fault| Refusal::new(Reason::Unverified, fault.message))?;
        compare_segments(file, &new, markers)?;
        Ok(new)
    }
}

/// Checks that `new` has the segments of `file` that it shall have, in their order, and no other.
fn compare_segments(file: &JpegFile<'_>, new: &[u8], markers: Markers) -> Result<(), Refusal> {
    let unverified = |message: String| Refusal::new(Reason::Unverified, message);
    let found = JpegFile::parse(new).map_err(|refusal| unverified(refusal.message))?;
    if !found.kept(Markers::All).eq(file.kept(markers)) || found.behind(Markers::All) != file.behind(markers) {
        return Err(unverified("segments differ".into()));
    }
    Ok(())
}
