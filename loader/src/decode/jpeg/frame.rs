//! What the header of an ordinary JPEG says (ITU-T T.81, annex B), for the engine of our own.
//!
//! Ordinary means: baseline or extended sequential, Huffman-coded, 8 bits, all components in one scan, luma sampled up
//! to 4x1 or 2x2, and nothing that libjpeg would warn about. Whatever is not is `None`, and libjpeg's.

use super::huffman::Codes;

/// Longest side that libjpeg decodes.
const SIDE_MAX: usize = 65_500;

/// Zig-zag position to place in a block, row by row (T.81, figure A.6).
pub const NATURAL_ORDER: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// Tables of a kind that a file may have.
const TABLES: usize = 4;

/// What the samples of a file's components mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// One component, luminance.
    Grey,
    /// Luminance and two colour differences (JFIF).
    YCbCr,
    /// Red, green, blue as they are.
    Rgb,
}

/// One component of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Component {
    /// Blocks of an MCU across.
    pub h: usize,
    /// Blocks of an MCU down.
    pub v: usize,
    /// Quantisation, row by row.
    pub quant: [u16; 64],
    /// Which table its DC codes are of.
    pub dc_table: usize,
    /// Which table its AC codes are of.
    pub ac_table: usize,
}

impl Component {
    const NONE: Self = Self { h: 1, v: 1, quant: [0; 64], dc_table: 0, ac_table: 0 };
}

/// An ordinary file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Columns of pixels.
    pub width: usize,
    /// Rows of pixels.
    pub height: usize,
    /// The first `count` of them are the file's.
    pub components: [Component; 3],
    /// Components: 1 or 3.
    pub count: usize,
    /// Largest `h` of a component.
    pub h_max: usize,
    /// Largest `v` of a component.
    pub v_max: usize,
    /// MCUs of a row.
    pub mcus_across: usize,
    /// Rows of MCUs.
    pub mcus_down: usize,
    /// MCUs between restart markers, or 0.
    pub restart_interval: usize,
    /// What the samples mean.
    pub colour: Colour,
    /// Where the entropy-coded data start, in bytes.
    pub scan_start: usize,
    /// MCU rows that libjpeg reads at once: more than one where a file of one component says that it is subsampled.
    pub rows_at_once: usize,
    /// DC codes by table.
    pub dc_codes: [Option<Codes>; TABLES],
    /// AC codes by table.
    pub ac_codes: [Option<Codes>; TABLES],
}

impl Frame {
    /// Reads the header of `bytes`, if it is an ordinary one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = Bytes(bytes);
        if rest.array()? != [0xff, 0xd8] {
            return None;
        }
        let mut header = Header::default();
        loop {
            if rest.byte()? != 0xff {
                return None;
            }
            // Further 0xff bytes before a marker are padding.
            let mut marker = rest.byte()?;
            while marker == 0xff {
                marker = rest.byte()?;
            }
            let length = usize::from(rest.word()?).checked_sub(2)?;
            let mut segment = Bytes(rest.take(length)?);
            match marker {
                0xc0 | 0xc1 => header.frame(&mut segment)?,
                0xc4 => header.codes(&mut segment)?,
                0xdb => header.quantisation(&mut segment)?,
                0xdd => header.restart_interval = segment.word()?.into(),
                0xe0 => header.app0(segment.take_all())?,
                0xee => header.app14(segment.take_all()),
                0xe1..=0xef | 0xfe => _ = segment.take_all(),
                0xda => return header.scan(&mut segment, bytes.len() - rest.0.len()),
                _ => return None,
            }
            if !segment.0.is_empty() {
                return None;
            }
        }
    }

    /// Blocks of an MCU.
    pub fn blocks_per_mcu(&self) -> usize {
        self.components[..self.count].iter().map(|component| component.h * component.v).sum()
    }

    /// How many rows of MCUs libjpeg has read when it hands out row `row` of pixels of the image reduced by `reduction`.
    /// Where interpolation looks at the row beside, the last rows of an MCU row wait for the next.
    pub fn mcu_rows_read(&self, row: usize, reduction: usize, looks_beside: bool) -> usize {
        let ahead = if looks_beside { self.v_max } else { 0 };
        let rows = (row + ahead) / (8 / reduction * self.v_max) + 1;
        rows.next_multiple_of(self.rows_at_once).min(self.mcus_down)
    }
}

/// What the segments have said so far.
#[derive(Default)]
struct Header {
    size: Option<(usize, usize)>,
    /// For each component its number, sampling across and down, and table of quantisation.
    components: [[u8; 4]; 3],
    count: usize,
    quant: [Option<[u16; 64]>; TABLES],
    dc_codes: [Option<Codes>; TABLES],
    ac_codes: [Option<Codes>; TABLES],
    restart_interval: usize,
    is_jfif: bool,
    adobe_transform: Option<u8>,
}

impl Header {
    fn frame(&mut self, segment: &mut Bytes<'_>) -> Option<()> {
        let precision = segment.byte()?;
        let (height, width, count) = (segment.word()?.into(), segment.word()?.into(), segment.byte()?);
        let fits = |side: usize| (1..=SIDE_MAX).contains(&side);
        if self.size.is_some() || precision != 8 || !matches!(count, 1 | 3) || !fits(width) || !fits(height) {
            return None;
        }
        self.size = Some((width, height));
        self.count = count.into();
        for component in &mut self.components[..self.count] {
            let [id, sampling, quant] = segment.array()?;
            *component = [id, sampling >> 4, sampling & 15, quant];
        }
        Some(())
    }

    fn quantisation(&mut self, segment: &mut Bytes<'_>) -> Option<()> {
        while !segment.0.is_empty() {
            let kind = segment.byte()?;
            let table = self.quant.get_mut(usize::from(kind & 15))?.insert([0; 64]);
            for place in NATURAL_ORDER {
                table[usize::from(place)] = if kind >> 4 == 0 { segment.byte()?.into() } else { segment.word()? };
            }
        }
        Some(())
    }

    fn codes(&mut self, segment: &mut Bytes<'_>) -> Option<()> {
        while !segment.0.is_empty() {
            let kind = segment.byte()?;
            let lengths: [u8; 16] = segment.array()?;
            let symbols = segment.take(lengths.iter().map(|&count| usize::from(count)).sum())?;
            let tables = if kind & 0x10 == 0 { &mut self.dc_codes } else { &mut self.ac_codes };
            *tables.get_mut(usize::from(kind & !0x10))? = Some(Codes::new(lengths, symbols)?);
        }
        Some(())
    }

    fn app0(&mut self, segment: &[u8]) -> Option<()> {
        if segment.len() >= 14 && segment.starts_with(b"JFIF\0") {
            self.is_jfif = true;
            // libjpeg warns about other versions.
            return (segment[5] == 1).then_some(());
        }
        Some(())
    }

    fn app14(&mut self, segment: &[u8]) {
        if segment.len() >= 12 && segment.starts_with(b"Adobe") {
            self.adobe_transform = Some(segment[11]);
        }
    }

    /// As libjpeg guesses it.
    fn colour(&self) -> Option<Colour> {
        match (self.count, self.adobe_transform) {
            (1, _) => Some(Colour::Grey),
            _ if self.is_jfif => Some(Colour::YCbCr),
            (_, Some(0)) => Some(Colour::Rgb),
            (_, Some(1)) => Some(Colour::YCbCr),
            (_, Some(_)) => None,
            _ if self.components.iter().map(|component| component[0]).eq(*b"RGB") => Some(Colour::Rgb),
            _ => Some(Colour::YCbCr),
        }
    }

    fn scan(self, segment: &mut Bytes<'_>, scan_start: usize) -> Option<Frame> {
        let (width, height) = self.size?;
        let count = self.count;
        if usize::from(segment.byte()?) != count {
            return None;
        }
        let mut components = [Component::NONE; 3];
        for (index, &[id, h, v, quant]) in self.components[..count].iter().enumerate() {
            let [scan_id, tables] = segment.array()?;
            let is_new = self.components[..index].iter().all(|other| other[0] != id);
            if scan_id != id || !is_new || !(1..=4).contains(&h) || !(1..=4).contains(&v) {
                return None;
            }
            let (dc_table, ac_table) = (usize::from(tables >> 4), usize::from(tables & 15));
            if !self.dc_codes.get(dc_table)?.as_ref()?.are_sizes() {
                return None;
            }
            self.ac_codes.get(ac_table)?.as_ref()?;
            let quant = (*self.quant.get(usize::from(quant))?)?;
            components[index] = Component { h: h.into(), v: v.into(), quant, dc_table, ac_table };
        }
        if segment.array()? != [0, 63, 0] || !segment.0.is_empty() {
            return None;
        }
        let colour = self.colour()?;
        let mut rows_at_once = 1;
        let sampling = components.map(|component| (component.h, component.v));
        if count == 1 {
            // Its scan is not interleaved: an MCU is a block, whatever the sampling.
            rows_at_once = components[0].v;
            (components[0].h, components[0].v) = (1, 1);
        } else if !matches!(sampling[0], (1 | 2, 1 | 2) | (4, 1)) || sampling[1..] != [(1, 1); 2] {
            return None;
        }
        let (h_max, v_max) = (components[0].h, components[0].v);
        Some(Frame {
            width,
            height,
            components,
            count,
            h_max,
            v_max,
            mcus_across: width.div_ceil(8 * h_max),
            mcus_down: height.div_ceil(8 * v_max),
            restart_interval: self.restart_interval,
            colour,
            scan_start,
            rows_at_once,
            dc_codes: self.dc_codes,
            ac_codes: self.ac_codes,
        })
    }
}

/// Bytes that are read from the front.
struct Bytes<'bytes>(&'bytes [u8]);

impl<'bytes> Bytes<'bytes> {
    fn take(&mut self, count: usize) -> Option<&'bytes [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn take_all(&mut self) -> &'bytes [u8] {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
}
