//! JPEG, decoded only where a region needs it: columns outside are not transformed, rows above are only
//! entropy-decoded, or not even that, and decoding stops at the last row.
//!
//! Pixels equal a full decode by libjpeg-turbo bit for bit (accurate integer transform, interpolated colour). A reduced
//! image is one whose blocks are transformed to 4, 2 or 1 values a side instead of 8. A region of it equals that part of
//! the reduced whole, too.
//!
//! There are two ways. Ordinary files ([`frame`]) take our own: codes to coefficients of rows of MCUs ([`scan`]), then
//! to pixels ([`pixels`]). It decodes nothing that is odd in any way: then, and for every other file, libjpeg-turbo decodes
//! the region ([`turbo`]), from its start, and what had been handed on already is the same. So faults, warnings and pixels
//! are always those of libjpeg-turbo, with one exception below.
//!
//! # How codes become coefficients
//!
//! Entropy decoding is most of the work, and it is one long chain: a code is found only where the one before it ends.
//!
//! - *One stream* ([`huffman`], [`segment`]): the bytes are rid of stuffing first, a vector at a time, so that bits are
//!   taken without a look at each byte; a look-up takes up to two symbols with their values, or, in blocks that nobody
//!   needs, as many as fit. Files without restart markers are decoded so, down to the last row that libjpeg reads.
//! - *Segments* ([`restarts`]): restart markers cut the chain. One pass over the bytes finds them; then only the segments that
//!   hold needed MCUs are decoded, each up to its last needed MCU. Where a row is a segment, that is nothing above the
//!   region, and in its rows nothing to the right of it.
//! - *Lockstep* ([`lockstep`]): segments that start at the same column of up to four rows are decoded together, their
//!   chains side by side in one run of instructions.
//!
//! What that brings, in ms of CPU time a photo (256 photos of 192 kpx and 108 kB on average, three quarters 4:4:4; an AMD
//! EPYC of the Zen 4 kind, two cores that others used too; `bench/benches/jpeg_stages.rs`, group `entropy`, and
//! `decode.rs`; two, three and five rows by a changed build):
//!
//! | codes of all rows | ms | of libjpeg-turbo's |
//! |---|---|---|
//! | libjpeg-turbo, `decode_mcu` of every MCU | 0.79 | 1 |
//! | one stream, coefficients kept: pairs of symbols | 0.57 | 0.72 |
//! | one stream, passed over: whole runs of symbols | 0.41 | 0.52 |
//! | restart rows, one by one | 0.56 | 0.70 |
//! | restart rows, 2, 3, **4**, 5 in lockstep | 0.50, 0.42, **0.40**, 0.40 | 0.63, 0.52, **0.51**, 0.51 |
//! | finding the segments, part of the above | 0.005 | 0.01 |
//!
//! | pixels | libjpeg-turbo | ours | ours, with restart rows |
//! |---|---|---|---|
//! | whole photo | 1.19 | 0.76 | 0.58 |
//! | box of RandomResizedCrop | 0.89 | 0.55 | 0.33 |
//!
//! # How damage is judged
//!
//! As Pillow judges it: data that end before an end-of-image marker are refused as truncated, whatever the region (or,
//! where the job says so, decoded and marked as lenient); contradictions inside (a bad code, a restart marker out of turn, an
//! end marker that comes early) decode to what libjpeg makes of them, and are counted as warnings.
//!
//! The exception: in files with restart markers, what lies in segments that a region does not need, and in a segment behind
//! the last MCU that it needs, is not looked at. Damage there goes without the warnings that libjpeg-turbo, which decodes
//! all rows above and whole rows, counts. The region's pixels are the same: all markers down to the last row that
//! libjpeg reads have to be there and in turn (else it decodes the file), and from such a marker on libjpeg, too, decodes
//! afresh, whatever came before. A region that is the whole image has every warning.

pub mod frame;
pub mod huffman;
pub mod lockstep;
pub mod mcu_rows;
pub mod pixels;
pub mod restarts;
pub mod scan;
pub mod segment;
#[cfg(test)]
mod tests;
mod turbo;
#[cfg(test)]
mod writer;

use std::ops::Range;

use super::orientation::Orientation;
use super::{Region, Strip};
use crate::error::{Result, SampleFault};
use crate::spec::{DecodeMode, DecodeSpec};
use frame::Frame;
use huffman::Anomaly;
use mcu_rows::McuRows;
use scan::{Needed, Scan};
use turbo::{TurboDecoder, TurboImage, TurboRows};

/// A worker's JPEG decoder.
pub struct JpegDecoder {
    turbo: TurboDecoder,
    engine: Option<Engine>,
}

/// Our own way: memory and state, kept from image to image.
#[derive(Default)]
struct Engine {
    /// The last header.
    frame: Option<Frame>,
    scan: Scan,
    rows: McuRows,
    pixels: pixels::Rows,
    /// Regions that it decoded to their end.
    regions: u64,
}

impl JpegDecoder {
    /// A decoder without an image. On other machines than x86-64 libjpeg-turbo decodes everything: its vectors there treat
    /// coefficients out of range in a way of their own, and the engine has none for them.
    pub fn new() -> Result<Self> {
        let engine = cfg!(target_arch = "x86_64").then(Engine::default);
        Ok(Self { turbo: TurboDecoder::new()?, engine })
    }

    /// One that leaves everything to libjpeg-turbo, to compare with.
    pub fn of_library() -> Result<Self> {
        Ok(Self { turbo: TurboDecoder::new()?, engine: None })
    }

    /// Reads the header of `bytes`.
    pub fn open<'image>(
        &'image mut self,
        bytes: &'image [u8],
        pixels_max: u64,
        spec: &DecodeSpec,
    ) -> Result<JpegImage<'image>, SampleFault> {
        let turbo = self.turbo.open(bytes, pixels_max, spec)?;
        // The fast mode has a transform of its own; and of what is cut off, libjpeg knows how it goes on.
        let is_ordinary = spec.mode != DecodeMode::Fast && !turbo.is_cut_off();
        Ok(JpegImage { turbo, bytes, engine: self.engine.as_mut().filter(|_| is_ordinary) })
    }

    /// Oddities passed over in the last image.
    pub fn warnings(&self) -> u32 {
        self.turbo.warnings()
    }

    /// Whether the last image was cut off and opened all the same.
    pub fn is_cut_off(&self) -> bool {
        self.turbo.is_cut_off()
    }

    /// How often memory for images was taken from the system; it stays the same once the largest image was seen.
    pub fn allocations(&self) -> u64 {
        self.turbo.allocations()
    }

    /// Rows of MCUs that were decoded several at once, between restart markers.
    pub fn rows_in_lockstep(&self) -> u64 {
        self.engine.as_ref().map_or(0, |engine| engine.scan.rows_in_lockstep())
    }

    /// Regions that were decoded without libjpeg.
    pub fn regions_own(&self) -> u64 {
        self.engine.as_ref().map_or(0, |engine| engine.regions)
    }
}

/// A JPEG whose header has been read.
pub struct JpegImage<'image> {
    turbo: TurboImage<'image>,
    bytes: &'image [u8],
    engine: Option<&'image mut Engine>,
}

impl<'image> JpegImage<'image> {
    /// (width, height) in pixels, as stored.
    pub fn size(&self) -> (u32, u32) {
        self.turbo.size()
    }

    /// How it is turned before it is looked at.
    pub fn orientation(&self) -> Orientation {
        self.turbo.orientation()
    }

    /// How faithfully it is decoded.
    pub fn mode(&self) -> DecodeMode {
        self.turbo.mode()
    }

    /// Starts decoding `region`, which lies within the image reduced by `reduction`.
    pub fn region(self, region: Region, reduction: u32) -> Result<JpegRows<'image>, SampleFault> {
        let Self { turbo, bytes, engine } = self;
        let own = engine.and_then(|engine| OwnRows::start(engine, bytes, turbo.size(), region, reduction));
        let way = match own {
            Some(own) => Way::Own(own, Some(turbo)),
            None => Way::Turbo(turbo.region(region, reduction)?),
        };
        Ok(JpegRows { way, region, reduction })
    }
}

/// The rows of a region of a JPEG, top to bottom.
pub struct JpegRows<'image> {
    way: Way<'image>,
    region: Region,
    reduction: u32,
}

enum Way<'image> {
    /// With the image that libjpeg would go on with.
    Own(OwnRows<'image>, Option<TurboImage<'image>>),
    Turbo(TurboRows<'image>),
}

impl JpegRows<'_> {
    /// The next rows, or `None` after the last.
    pub fn next_strip(&mut self) -> Result<Option<Strip<'_>>, SampleFault> {
        if let Way::Own(own, turbo) = &mut self.way
            && own.prepare_strip() == Err(Anomaly)
        {
            let turbo = turbo.take().expect("there is one anomaly, then libjpeg");
            let rows_done = own.rows_done;
            let mut rows = turbo.region(self.region, self.reduction)?;
            rows.pass(rows_done)?;
            self.way = Way::Turbo(rows);
        }
        match &mut self.way {
            Way::Own(own, _) => Ok(own.take_strip()),
            Way::Turbo(rows) => rows.next_strip(),
        }
    }
}

/// Rows that the engine decodes.
struct OwnRows<'image> {
    engine: &'image mut Engine,
    bytes: &'image [u8],
    /// Rows of MCUs that are left to be decoded.
    mcu_rows: usize,
    /// Those that are decoded and not yet pixels.
    decoded: Range<usize>,
    rows_done: u32,
}

impl<'image> OwnRows<'image> {
    /// Starts with a region of the image, which libjpeg takes as one of `size`, if it is an ordinary one.
    fn start(
        engine: &'image mut Engine,
        bytes: &'image [u8],
        size: (u32, u32),
        region: Region,
        reduction: u32,
    ) -> Option<Self> {
        let frame = &*engine.frame.insert(Frame::parse(bytes)?);
        if (frame.width, frame.height) != (size.0 as usize, size.1 as usize) {
            return None;
        }
        let (down, across) = engine.pixels.start(frame, region, reduction);
        let last = (region.top + region.height) as usize - 1;
        let rows_read = frame.mcu_rows_read(last, reduction as usize, engine.pixels.looks_beside()).max(down.end);
        let mcu_rows = down.len();
        let needed = Needed { rows: down, columns: across, rows_read };
        engine.scan.start(bytes, frame, needed, &mut engine.rows).ok()?;
        Some(Self { engine, bytes, mcu_rows, decoded: 0..0, rows_done: 0 })
    }

    /// Decodes rows of MCUs until there are rows of pixels, or no more.
    fn prepare_strip(&mut self) -> Result<(), Anomaly> {
        let Engine { scan, rows, pixels, regions, .. } = &mut *self.engine;
        while !pixels.has_rows() {
            if self.decoded.is_empty() {
                if self.mcu_rows == 0 {
                    break;
                }
                scan.next_rows(self.bytes, rows)?;
                self.decoded = 0..rows.count();
                self.mcu_rows -= rows.count();
                *regions += u64::from(self.mcu_rows == 0);
            }
            pixels.push(rows, self.decoded.start);
            self.decoded.start += 1;
        }
        Ok(())
    }

    fn take_strip(&mut self) -> Option<Strip<'_>> {
        let strip = self.engine.pixels.next_strip()?;
        self.rows_done += strip.rows;
        Some(strip)
    }
}
