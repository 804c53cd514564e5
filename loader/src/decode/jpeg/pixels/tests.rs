//! Images made of chosen coefficients, decoded here and by libjpeg-turbo.

use proptest::prelude::*;

use super::*;
use crate::decode::jpeg::JpegDecoder;
use crate::decode::jpeg::frame::NATURAL_ORDER;
use crate::spec::DecodeSpec;

/// An image as coefficients.
#[derive(Debug, Clone)]
struct Picture {
    size: [usize; 2],
    /// Blocks of an MCU of each component.
    sampling: Vec<[usize; 2]>,
    colour: Colour,
    quant: Vec<[u16; 64]>,
    /// Of each component rows of blocks, whole MCUs.
    blocks: Vec<Vec<[i16; 64]>>,
}

impl Picture {
    /// Without coefficients.
    fn new(size: [usize; 2], luma: [usize; 2], colour: Colour, quant: Vec<[u16; 64]>) -> Self {
        let sampling = match colour {
            Colour::Grey => vec![[1, 1]],
            _ => vec![luma, [1, 1], [1, 1]],
        };
        let mut picture = Self { size, sampling, colour, quant, blocks: Vec::new() };
        let mcus = picture.mcus();
        let blocks = |factors: &[usize; 2]| vec![[0; 64]; mcus[0] * factors[0] * mcus[1] * factors[1]];
        picture.blocks = picture.sampling.iter().map(blocks).collect();
        picture
    }

    /// MCUs across and down.
    fn mcus(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.size[axis].div_ceil(BLOCK * self.sampling[0][axis]))
    }

    /// The blocks of one component in an MCU, row by row.
    fn mcu(&self, component: usize, across: usize, down: usize) -> impl Iterator<Item = &[i16; 64]> {
        let [h, v] = self.sampling[component];
        let stride = self.mcus()[0] * h;
        (0..v * h).map(move |block| {
            let place = (down * v + block / h) * stride + across * h + block % h;
            &self.blocks[component][place]
        })
    }

    /// As a file: extended sequential, since steps have 16 bits; codes of 8 and 9 bits for runs, of 5 bits for DC.
    fn file(&self) -> Vec<u8> {
        let count = self.sampling.len() as u8;
        let mut file = vec![0xff, 0xd8];
        if self.colour == Colour::Rgb {
            segment(&mut file, 0xee, b"Adobe\0\x64\0\0\0\0\0");
        }
        for (table, steps) in self.quant.iter().enumerate() {
            let mut body = vec![0x10 | table as u8];
            body.extend(NATURAL_ORDER.iter().flat_map(|&place| steps[usize::from(place)].to_be_bytes()));
            segment(&mut file, 0xdb, &body);
        }
        let [width, height] = self.size.map(|side| (side as u16).to_be_bytes());
        let mut body = vec![8, height[0], height[1], width[0], width[1], count];
        for (index, [h, v]) in self.sampling.iter().enumerate() {
            body.extend([index as u8 + 1, (h << 4 | v) as u8, index as u8]);
        }
        segment(&mut file, 0xc1, &body);
        let lengths = |counts: [u8; 3]| [&[0; 4], &counts[..1], &[0; 2], &counts[1..], &[0; 7]].concat();
        segment(&mut file, 0xc4, &[vec![0x00], lengths([16, 0, 0]), (0..16).collect()].concat());
        segment(&mut file, 0xc4, &[vec![0x10], lengths([0, 128, 128]), (0..=255).collect()].concat());
        let mut body = vec![count];
        (1..=count).for_each(|id| body.extend([id, 0]));
        body.extend([0, 63, 0]);
        segment(&mut file, 0xda, &body);

        let mut bits = Bits::default();
        let mut dc = [0; 3];
        let [across, down] = self.mcus();
        for mcu in 0..across * down {
            for (component, dc) in dc.iter_mut().enumerate().take(self.sampling.len()) {
                self.mcu(component, mcu % across, mcu / across).for_each(|block| bits.block(block, dc));
            }
        }
        file.extend(bits.finished());
        file.extend([0xff, 0xd9]);
        file
    }

    /// Its pixels by libjpeg-turbo, reduced.
    fn reference(&self, file: &[u8], reduction: u32) -> Vec<u8> {
        let mut decoder = JpegDecoder::of_library().expect("decoder");
        let image = decoder.open(file, 1 << 24, &DecodeSpec::default()).expect("opens");
        let [width, height] = self.size.map(|side| (side as u32).div_ceil(reduction));
        let mut rows = image.region(Region::whole(width, height), reduction).expect("starts");
        let mut pixels = Vec::new();
        while let Some(strip) = rows.next_strip().expect("decodes") {
            append(&mut pixels, &strip, width as usize);
        }
        drop(rows);
        assert_eq!(decoder.warnings(), 0);
        pixels
    }

    /// A region of its pixels, reduced.
    fn region(&self, rows: &mut Rows, frame: &Frame, region: Region, reduction: u32) -> Vec<u8> {
        let (down, across) = rows.start(frame, region, reduction);
        let mut mcus = McuRows::default();
        let mut pixels = Vec::new();
        for down in down {
            mcus.start(frame, across.clone(), 1);
            for component in 0..frame.count {
                let [h, v] = self.sampling[component];
                let stride = across.len() * h;
                let first = mcus.first(component);
                for (column, across) in across.clone().enumerate() {
                    for (index, block) in self.mcu(component, across, down).enumerate().take(h * v) {
                        let place = index / h * stride + column * h + index % h;
                        *mcus.block_mut(first + place, 0) = *block;
                    }
                }
            }
            rows.push(&mcus, 0);
            while let Some(strip) = rows.next_strip() {
                append(&mut pixels, &strip, region.width as usize);
            }
        }
        pixels
    }

    /// Compares regions, by all paths, with what libjpeg-turbo makes of the whole.
    fn check(&self, rows: &mut [Rows], regions: &[Region], reduction: u32) {
        let file = self.file();
        let frame = Frame::parse(&file).expect("an ordinary file");
        let whole = self.reference(&file, reduction);
        let columns = self.size[0].div_ceil(reduction as usize);
        for region in regions {
            let [left, top, width, height] =
                [region.left, region.top, region.width, region.height].map(|it| it as usize);
            let expected: Vec<u8> = (top..top + height)
                .flat_map(|row| &whole[3 * (row * columns + left)..][..3 * width])
                .copied()
                .collect();
            for rows in &mut *rows {
                let pixels = self.region(rows, &frame, *region, reduction);
                let differing = pixels.iter().zip(&expected).position(|(own, other)| own != other);
                assert!(pixels == expected, "{region:?} of 1/{reduction} by {:?}: byte {differing:?}", rows.path);
            }
        }
    }
}

fn segment(file: &mut Vec<u8>, marker: u8, body: &[u8]) {
    file.extend([0xff, marker]);
    file.extend((body.len() as u16 + 2).to_be_bytes());
    file.extend(body);
}

fn append(pixels: &mut Vec<u8>, strip: &Strip<'_>, width: usize) {
    assert!(strip.rows >= 1 && strip.rows <= STRIP_ROWS);
    assert!(strip.bytes.len() >= (strip.rows as usize - 1) * strip.stride + 3 * width + STRIP_SLACK, "slack");
    for row in 0..strip.rows as usize {
        pixels.extend_from_slice(&strip.bytes[row * strip.stride..][..3 * width]);
    }
}

/// Entropy-coded data in the making.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    held: u64,
    count: u32,
}

impl Bits {
    fn push(&mut self, bits: u32, count: u32) {
        self.held = self.held << count | u64::from(bits);
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            let byte = (self.held >> self.count) as u8;
            self.bytes.push(byte);
            if byte == 0xff {
                self.bytes.push(0);
            }
        }
    }

    /// The bits of a value after its size.
    fn value(&mut self, value: i32, size: u32) {
        let bits = if value < 0 { value - 1 } else { value };
        self.push(bits as u32 & ((1 << size) - 1), size);
    }

    fn symbol(&mut self, symbol: u32) {
        if symbol < 128 { self.push(symbol, 8) } else { self.push(symbol + 128, 9) }
    }

    fn block(&mut self, block: &[i16; 64], dc: &mut i32) {
        let size = |value: i32| 32 - value.unsigned_abs().leading_zeros();
        let difference = i32::from(block[0]) - *dc;
        *dc = block[0].into();
        self.push(size(difference), 5);
        self.value(difference, size(difference));
        let mut run = 0;
        for place in &NATURAL_ORDER[1..] {
            let value = i32::from(block[usize::from(*place)]);
            if value == 0 {
                run += 1;
                continue;
            }
            (0..run / 16).for_each(|_| self.symbol(0xf0));
            self.symbol((run % 16) << 4 | size(value));
            self.value(value, size(value));
            run = 0;
        }
        if run > 0 {
            self.symbol(0);
        }
    }

    fn finished(mut self) -> Vec<u8> {
        self.push(0x7f, 7);
        self.bytes
    }
}

/// A stream of numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// What coefficients are like.
#[derive(Debug, Clone, Copy)]
struct Texture {
    /// Bits of a coefficient, without its sign.
    bits: u32,
    /// Bits of a step.
    step_bits: u32,
}

/// The paths that this machine has.
fn all_paths() -> Vec<Rows> {
    let mut paths = vec![Path::Portable, Path::best()];
    paths.dedup();
    paths.into_iter().map(Rows::new).collect()
}

fn random(size: [usize; 2], luma: [usize; 2], colour: Colour, texture: Texture, numbers: &mut Numbers) -> Picture {
    let count = if colour == Colour::Grey { 1 } else { 3 };
    let quant =
        (0..count).map(|_| std::array::from_fn(|_| 1 + (numbers.below(1 << texture.step_bits)) as u16)).collect();
    let mut picture = Picture::new(size, luma, colour, quant);
    for block in picture.blocks.iter_mut().flatten() {
        // Blocks of every kind: flat, of one row, of a few coefficients, of many.
        let end = match numbers.below(4) {
            0 => 1,
            1 => 1 + numbers.below(10),
            _ => 1 + numbers.below(64),
        };
        let row_only = numbers.below(5) == 0;
        for (place, &natural) in NATURAL_ORDER.iter().enumerate().take(end) {
            if (row_only && natural >= 8) || numbers.below(3) == 0 {
                continue;
            }
            // Differences of DC have 15 bits, so a DC has 14.
            let bits = if place == 0 { texture.bits.min(14) } else { texture.bits };
            let value = numbers.below(1 << bits) as i16;
            block[usize::from(natural)] = if numbers.below(2) == 0 { value } else { -value };
        }
    }
    picture
}

fn colours() -> impl Strategy<Value = Colour> {
    prop_oneof![1 => Just(Colour::Grey), 3 => Just(Colour::YCbCr), 1 => Just(Colour::Rgb)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn regions_are_those_of_the_library(
        width in 1usize..90,
        height in 1usize..70,
        luma in prop::sample::select(vec![[1, 1], [2, 1], [1, 2], [2, 2], [4, 1]]),
        colour in colours(),
        bits in 0u32..=15,
        step_bits in 0u32..16,
        reduction in prop::sample::select(vec![1, 1, 2, 4, 8]),
        seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        // Mostly values as files have them, some that go beyond 16 bits.
        let texture = if numbers.below(3) > 0 {
            Texture { bits: bits.min(7), step_bits: step_bits.min(4) }
        } else {
            Texture { bits, step_bits }
        };
        let picture = random([width, height], luma, colour, texture, &mut numbers);
        let [width, height] = [width, height].map(|side| side.div_ceil(reduction as usize));
        let mut regions = vec![Region::whole(width as u32, height as u32)];
        for _ in 0..12 {
            let (left, top) = (numbers.below(width), numbers.below(height));
            let (right, bottom) = (left + numbers.below(width - left), top + numbers.below(height - top));
            let [left, top, right, bottom] = [left, top, right, bottom].map(|it| it as u32);
            regions.push(Region { left, top, width: right + 1 - left, height: bottom + 1 - top });
        }
        picture.check(&mut all_paths(), &regions, reduction);
    }
}

#[test]
fn every_colour_is_the_librarys() {
    // Flat blocks, one for every pair of colour differences, each with its luminance.
    let mut picture = Picture::new([2048, 2048], [1, 1], Colour::YCbCr, vec![[8; 64]; 3]);
    let mut numbers = Numbers(7);
    for pair in 0..1 << 16 {
        let [blue, red] = [pair & 0xff, pair >> 8];
        for (component, value) in [numbers.below(256), blue, red].into_iter().enumerate() {
            picture.blocks[component][pair][0] = value as i16 - 128;
        }
    }
    picture.check(&mut all_paths(), &[Region::whole(2048, 2048)], 1);
}

#[test]
fn rows_keep_nothing_of_an_image_before() {
    let mut numbers = Numbers(1);
    let mut rows = all_paths();
    let texture = Texture { bits: 6, step_bits: 3 };
    for (size, luma, colour) in [
        ([200, 100], [2, 2], Colour::YCbCr),
        ([3, 5], [2, 2], Colour::YCbCr),
        ([64, 64], [1, 1], Colour::Rgb),
        ([4, 90], [2, 1], Colour::YCbCr),
        ([5, 33], [2, 2], Colour::YCbCr),
        ([100, 40], [1, 1], Colour::Grey),
        ([100, 40], [4, 1], Colour::YCbCr),
        ([33, 47], [1, 2], Colour::YCbCr),
    ] {
        let picture = random(size, luma, colour, texture, &mut numbers);
        picture.check(&mut rows, &[Region::whole(size[0] as u32, size[1] as u32)], 1);
    }
}
