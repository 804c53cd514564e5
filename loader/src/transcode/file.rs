//! What a JPEG file is made of, segment by segment to its end. Stricter than any decoder: what some would pass over is
//! refused, since it could not be carried over faithfully.

use memchr::memchr;

use super::{COEFFICIENT_BYTES_MAX, Markers, Reason, Refusal};

/// Whether `bytes` begin as a JPEG does.
pub fn is_jpeg(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xd8, 0xff])
}

/// A file of one image that is coded sequentially or progressively with Huffman codes, in samples of 8 bits.
#[derive(Debug)]
pub struct JpegFile<'a> {
    bytes: &'a [u8],
    /// Application data and comments before the first scan, with their markers and lengths.
    applications: Vec<&'a [u8]>,
    coefficient_bytes: u64,
    end: usize,
}

/// The frame header.
struct Frame {
    is_progressive: bool,
    components: Vec<Component>,
    coefficient_bytes: u64,
}

struct Component {
    id: u8,
    scans: u32,
}

impl<'a> JpegFile<'a> {
    /// Walks the segments and scans of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        if !is_jpeg(bytes) {
            return Err(damaged(0, "no start-of-image marker"));
        }
        let mut walk = Walk { bytes, offset: 2 };
        let mut applications = Vec::new();
        let mut frame: Option<Frame> = None;
        let mut has_scan = false;
        loop {
            let (start, marker) = walk.marker()?;
            match marker {
                0xd9 => break,
                0x00..=0x01 | 0xd0..=0xd8 => return Err(damaged(start, format!("marker {marker:#04x} out of place"))),
                _ => {}
            }
            let content = walk.segment()?;
            match marker {
                0xda => {
                    let frame = frame.as_mut().ok_or_else(|| damaged(start, "a scan before the frame header"))?;
                    frame.count_scan(start, content)?;
                    has_scan = true;
                    walk.skip_coded_data()?;
                }
                0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                    if frame.is_some() {
                        return Err(damaged(start, "a second frame header"));
                    }
                    frame = Some(Frame::parse(start, marker, content)?);
                }
                0xe0..=0xef | 0xfe if has_scan => {
                    let message = format!("byte {start}: application data or a comment between scans");
                    return Err(Refusal::new(Reason::Unusual, message));
                }
                0xe0..=0xef | 0xfe => applications.push(&bytes[walk.offset - content.len() - 4..walk.offset]),
                // Huffman and quantisation tables, and the restart interval.
                0xc4 | 0xdb | 0xdd => {}
                0xcc => return Err(Refusal::new(Reason::Arithmetic, "conditioning of arithmetic codes")),
                _ => {
                    return Err(Refusal::new(Reason::Unusual, format!("byte {start}: marker {marker:#04x}")));
                }
            }
        }
        let end = walk.offset;
        let frame = frame.ok_or_else(|| damaged(end, "no frame header"))?;
        frame.check_scans(end)?;
        Ok(Self { bytes, applications, coefficient_bytes: frame.coefficient_bytes, end })
    }

    /// The whole file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes that the image's coefficients take in memory.
    pub fn coefficient_bytes(&self) -> u64 {
        self.coefficient_bytes
    }

    /// Where the image ends: behind its end-of-image marker, in bytes.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Whether a multi-picture segment gives the places of other pictures.
    pub(super) fn has_several_pictures(&self) -> bool {
        self.applications.iter().any(|segment| segment[1] == 0xe2 && segment[4..].starts_with(b"MPF\0"))
    }

    /// The segments that are kept, with their markers and lengths.
    pub(super) fn kept(&self, markers: Markers) -> impl Iterator<Item = &'a [u8]> {
        self.applications.iter().copied().filter(move |segment| markers.keeps(segment[1], &segment[4..]))
    }

    /// What is kept of the bytes behind the image.
    pub(super) fn behind(&self, markers: Markers) -> &'a [u8] {
        if markers == Markers::All { &self.bytes[self.end..] } else { &[] }
    }
}

impl Frame {
    fn parse(start: usize, marker: u8, content: &[u8]) -> Result<Self, Refusal> {
        let refused = |reason, message: &str| Err(Refusal::new(reason, format!("SOF{}: {message}", marker - 0xc0)));
        match marker {
            0xc0..=0xc2 => {}
            0xc9 | 0xca => return refused(Reason::Arithmetic, "coded arithmetically"),
            _ => return refused(Reason::OtherCoding, "lossless or hierarchical"),
        }
        let &[precision, height_high, height_low, width_high, width_low, count, ref rest @ ..] = content else {
            return Err(damaged(start, "a frame header of too few bytes"));
        };
        if precision != 8 {
            return refused(Reason::Precision, &format!("samples of {precision} bits"));
        }
        if !matches!(count, 1 | 3 | 4) {
            return refused(Reason::Components, &format!("{count} components"));
        }
        if rest.len() != 3 * usize::from(count) {
            return Err(damaged(start, format!("{count} components in a frame header of {} bytes", content.len())));
        }
        let height = u64::from(u16::from_be_bytes([height_high, height_low]));
        let width = u64::from(u16::from_be_bytes([width_high, width_low]));
        if height == 0 || width == 0 {
            return refused(Reason::Unusual, &format!("{width}x{height} pixels"));
        }
        let factors =
            rest.chunks_exact(3).map(|component| (u64::from(component[1] >> 4), u64::from(component[1] & 15)));
        if factors.clone().any(|(across, down)| !(1..=4).contains(&across) || !(1..=4).contains(&down)) {
            return Err(damaged(start, "a sampling factor that is not 1 to 4"));
        }
        let across_max = factors.clone().map(|(across, _)| across).max().unwrap_or(1);
        let down_max = factors.clone().map(|(_, down)| down).max().unwrap_or(1);
        let mcus = width.div_ceil(8 * across_max) * height.div_ceil(8 * down_max);
        // Coefficients are of 16 bits, 64 to the block.
        let coefficient_bytes = factors.map(|(across, down)| mcus * across * down * 128).sum();
        if coefficient_bytes > COEFFICIENT_BYTES_MAX {
            let message = format!("coefficients of {coefficient_bytes} bytes, the most is {COEFFICIENT_BYTES_MAX}");
            return Err(Refusal::new(Reason::TooLarge, message));
        }
        let components = rest.chunks_exact(3).map(|component| Component { id: component[0], scans: 0 }).collect();
        Ok(Self { is_progressive: marker == 0xc2, components, coefficient_bytes })
    }

    fn count_scan(&mut self, start: usize, content: &[u8]) -> Result<(), Refusal> {
        let count = content.first().map_or(0, |&count| usize::from(count));
        if count == 0 || content.len() != 4 + 2 * count {
            return Err(damaged(start, format!("{count} components in a scan header of {} bytes", content.len())));
        }
        for selector in content[1..].chunks_exact(2).take(count) {
            let component = self.components.iter_mut().find(|component| component.id == selector[0]);
            let component = component.ok_or_else(|| damaged(start, format!("no component {}", selector[0])))?;
            component.scans += 1;
        }
        Ok(())
    }

    /// A sequential file has each component in one scan: decoders differ in what they make of two.
    fn check_scans(&self, end: usize) -> Result<(), Refusal> {
        for (number, component) in self.components.iter().enumerate() {
            if self.components[..number].iter().any(|other| other.id == component.id) {
                return Err(Refusal::new(Reason::Unusual, format!("two components of number {}", component.id)));
            }
            if component.scans == 0 {
                return Err(Refusal::new(Reason::Incomplete, format!("component {} is in no scan", component.id)));
            }
            if !self.is_progressive && component.scans > 1 {
                let message = format!("byte {end}: component {} is in {} scans", component.id, component.scans);
                return Err(Refusal::new(Reason::Unusual, message));
            }
        }
        Ok(())
    }
}

/// A walk over markers, segments and coded data.
struct Walk<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Walk<'a> {
    /// The next marker, which must be right here behind no more than fill bytes, and where it begins.
    fn marker(&mut self) -> Result<(usize, u8), Refusal> {
        let start = self.offset;
        loop {
            match self.bytes.get(self.offset..self.offset + 2) {
                None => return Err(self.truncated()),
                Some([0xff, 0xff]) => self.offset += 1,
                Some(&[0xff, marker]) => {
                    self.offset += 2;
                    return Ok((start, marker));
                }
                Some(_) => return Err(damaged(self.offset, "bytes that are no marker")),
            }
        }
    }

    /// The content of the segment behind a marker.
    fn segment(&mut self) -> Result<&'a [u8], Refusal> {
        let rest = &self.bytes[self.offset..];
        let &[high, low, ..] = rest else { return Err(self.truncated()) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length < 2 {
            return Err(damaged(self.offset, format!("a segment of {length} bytes")));
        }
        let content = rest.get(2..length).ok_or_else(|| self.truncated())?;
        self.offset += length;
        Ok(content)
    }

    /// Moves on to the marker behind the data of a scan.
    fn skip_coded_data(&mut self) -> Result<(), Refusal> {
        loop {
            let rest = &self.bytes[self.offset..];
            let place = memchr(0xff, rest).ok_or_else(|| self.truncated())?;
            match rest.get(place + 1) {
                None => return Err(self.truncated()),
                // A byte of data that is 0xff, or a restart marker.
                Some(0x00 | 0xd0..=0xd7) => self.offset += place + 2,
                Some(0xff) => self.offset += place + 1,
                Some(_) => {
                    self.offset += place;
                    return Ok(());
                }
            }
        }
    }

    fn truncated(&self) -> Refusal {
        let message = format!("the data end at byte {} before an end-of-image marker", self.bytes.len());
        Refusal::new(Reason::Truncated, message)
    }
}

fn damaged(offset: usize, message: impl std::fmt::Display) -> Refusal {
    Refusal::new(Reason::Damaged, format!("byte {offset}: {message}"))
}
