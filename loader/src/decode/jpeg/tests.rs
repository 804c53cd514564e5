//! JPEGs through both ways.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::writer::{CodeChoice, Numbers, Sketch};
use super::*;
use crate::error::FaultClass;
use crate::spec::Truncated;

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
    let image = decoder.open(bytes, 1 << 24, &DecodeSpec::default())?;
    let (width, height) = image.size();
    let mut rows = image.region(Region::whole(width, height), 1)?;
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
            let words = |found: &Result<Vec<u8>, SampleFault>| found.as_ref().err().map(|fault| fault.message.clone());
            assert_eq!(words(&after), words(&alone), "after {before}");
            assert!(after.ok() == alone.ok(), "other pixels after {before}");
        }
    }
}

/// What becomes of a region: its pixels or the words of a fault, and the warnings.
type Outcome = (Result<Vec<u8>, (FaultClass, String)>, u32);

/// Decodes the part of an image that lies in `part` (left, top, right, bottom, in 1/256).
fn outcome(decoder: &mut JpegDecoder, bytes: &[u8], part: [u32; 4], reduction: u32, spec: &DecodeSpec) -> Outcome {
    let mut decode = || {
        let image = decoder.open(bytes, 1 << 26, spec)?;
        let (width, height) = image.size();
        let (width, height) = (width.div_ceil(reduction), height.div_ceil(reduction));
        let place = |side: u32, part: u32| (u64::from(side) * u64::from(part) / 256) as u32;
        let (left, top) = (place(width - 1, part[0]), place(height - 1, part[1]));
        let (right, bottom) = (place(width, part[2]).max(left + 1), place(height, part[3]).max(top + 1));
        let region = Region { left, top, width: right - left, height: bottom - top };
        let mut rows = image.region(region, reduction)?;
        let mut pixels = Vec::new();
        while let Some(strip) = rows.next_strip()? {
            for row in strip.bytes.chunks(strip.stride).take(strip.rows as usize) {
                pixels.extend_from_slice(&row[..region.width as usize * 3]);
            }
        }
        assert_eq!(pixels.len(), (region.width * region.height * 3) as usize, "{region:?}");
        Ok(pixels)
    };
    let found = decode().map_err(|fault: SampleFault| (fault.class, fault.message));
    (found, decoder.warnings())
}

/// Both ways, kept from file to file.
struct Both {
    own: JpegDecoder,
    library: JpegDecoder,
}

impl Both {
    fn new() -> Self {
        Self { own: JpegDecoder::new().expect("decoder"), library: JpegDecoder::of_library().expect("decoder") }
    }

    /// Compares them; returns whether the engine decoded the part. Of the segments between restart markers it looks at those
    /// that a part needs, so that there it may know of no warning where libjpeg has some; all else is the same.
    fn check(&mut self, name: &str, bytes: &[u8], part: [u32; 4], reduction: u32, spec: &DecodeSpec) -> bool {
        let before = self.own.regions_own();
        let own = outcome(&mut self.own, bytes, part, reduction, spec);
        let library = outcome(&mut self.library, bytes, part, reduction, spec);
        let is_own = self.own.regions_own() > before;
        let passes = is_own && part != WHOLE && Frame::parse(bytes).is_some_and(|frame| frame.restart_interval > 0);
        let warnings = |outcome: &Outcome| if passes && own.1 == 0 { 0 } else { outcome.1 };
        let words = |outcome: &Outcome| (outcome.0.as_ref().map(Vec::len).map_err(Clone::clone), warnings(outcome));
        assert_eq!(words(&own), words(&library), "{name}, {part:?} / {reduction}, {spec:?}");
        if let (Ok(own), Ok(library)) = (&own.0, &library.0) {
            let place = own.iter().zip(library).position(|(own, library)| own != library);
            assert_eq!(place, None, "{name}, {part:?} / {reduction}");
        }
        is_own
    }
}

const WHOLE: [u32; 4] = [0, 0, 256, 256];

fn scaled() -> DecodeSpec {
    DecodeSpec { mode: DecodeMode::Scaled, ..DecodeSpec::default() }
}

/// The JPEGs among the generated images and among those of choices, good and bad.
fn examples() -> Vec<(String, Vec<u8>)> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let mut files: Vec<PathBuf> = ["images", "choices"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(data.join(folder)).expect("a folder"))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jpg"))
        .collect();
    files.sort();
    let name = |path: &Path| path.file_name().expect("a file").to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), std::fs::read(path).expect("a file"))).collect()
}

#[test]
fn generated_images_are_the_same_both_ways() {
    let mut both = Both::new();
    let mut own = Vec::new();
    for (name, bytes) in examples() {
        let lenient = DecodeSpec { truncated: Truncated::Lenient, ..DecodeSpec::default() };
        let fast = DecodeSpec { mode: DecodeMode::Fast, ..DecodeSpec::default() };
        for part in [WHOLE, [100, 30, 200, 90], [0, 128, 10, 140], [250, 250, 256, 256]] {
            if both.check(&name, &bytes, part, 1, &DecodeSpec::default()) && part == WHOLE {
                own.push(name.clone());
            }
            both.check(&name, &bytes, part, 1, &lenient);
            assert!(!both.check(&name, &bytes, part, 1, &fast), "{name}: the fast mode is libjpeg's");
            for reduction in [2, 4, 8] {
                both.check(&name, &bytes, part, reduction, &scaled());
            }
        }
    }
    for name in ["420.jpg", "422.jpg", "440.jpg", "444.jpg", "grey.jpg", "rgb.jpg", "restart.jpg", "420-1x1.jpg"] {
        assert!(own.iter().any(|own| own == name), "{name} is ordinary; those were: {own:?}");
    }
    for name in ["progressive.jpg", "cmyk.jpg", "arithmetic.jpg", "restart-out-of-turn.jpg"] {
        assert!(!own.iter().any(|own| own == name), "{name} is not ordinary");
    }
}

#[test]
fn photos_are_the_same_both_ways() {
    let Some(root) = std::env::var_os("FEEDLINE_PHOTOS") else {
        eprintln!("skipped: FEEDLINE_PHOTOS is not set");
        return;
    };
    let mut both = Both::new();
    let (mut count, mut own) = (0, 0);
    for entry in std::fs::read_dir(Path::new(&root).join("small")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "jpg") {
            continue;
        }
        let (name, bytes) = (path.display().to_string(), std::fs::read(&path).expect("a photo"));
        // Parts that differ from photo to photo.
        let [left, top, right, bottom] = [7, 31, 77, 129].map(|factor| factor * bytes.len() as u32 % 257);
        count += 1;
        own += u32::from(both.check(&name, &bytes, WHOLE, 1, &DecodeSpec::default()));
        both.check(&name, &bytes, [left.min(right), top.min(bottom), left.max(right), top.max(bottom)], 1, &scaled());
        both.check(&name, &bytes, [left.min(right), top.min(bottom), left.max(right), top.max(bottom)], 2, &scaled());
    }
    assert!(own * 10 > count * 9, "{own} of {count} photos are ordinary");
}

/// A small image whose every prefix and every changed bit is tried.
#[test]
fn what_is_cut_off_is_the_same_both_ways() {
    let mut both = Both::new();
    for name in ["420-33x17.jpg", "restart.jpg"] {
        let bytes = example(name);
        let step = bytes.len() / 700 + 1;
        for length in (2..bytes.len()).step_by(step) {
            // Cut off, and cut off before an end marker.
            let cut = &bytes[..length];
            let ended = [cut, b"\xff\xd9"].concat();
            for bytes in [cut, &ended] {
                both.check(name, bytes, WHOLE, 1, &DecodeSpec::default());
                both.check(name, bytes, [90, 90, 256, 160], 1, &DecodeSpec::default());
            }
        }
    }
}

/// A file of any ordinary kind.
fn sketches() -> impl Strategy<Value = Sketch> {
    let sampling = prop::sample::select(vec![(1, 1), (1, 1), (2, 1), (1, 2), (2, 2), (2, 2), (4, 1)]);
    let colour =
        prop::sample::select(vec![frame::Colour::YCbCr, frame::Colour::YCbCr, frame::Colour::Rgb, frame::Colour::Grey]);
    let codes = prop::sample::select(vec![CodeChoice::Usual, CodeChoice::Fitted, CodeChoice::Odd]);
    let size = prop_oneof![(1usize..40, 1usize..40), (1usize..200, 1usize..200)];
    let restart = prop_oneof![Just(0usize), 1usize..9, 9usize..30];
    (size, sampling, colour, codes, restart, 0u32..=8, 1u32..=10, any::<u64>()).prop_map(
        |(size, sampling, colour, codes, restart_interval, density, size_max, seed)| Sketch {
            size,
            sampling,
            colour,
            codes,
            restart_interval,
            density,
            size_max,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_files_are_the_same_both_ways(
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8, any::<bool>()), 1..4),
        corners in [0u32..=256, 0u32..=256, 0u32..=256, 0u32..=256],
        reduction in prop::sample::select(vec![1, 1, 1, 2, 4, 8]),
    ) {
        let files = examples();
        let (name, bytes) = file.get(&files);
        let mut bytes = bytes.clone();
        for (place, bit, in_scan) in changes {
            let scan = if in_scan { Frame::parse(&bytes).map_or(0, |frame| frame.scan_start) } else { 0 };
            if bytes.len() > scan {
                let place = scan + place.index(bytes.len() - scan);
                bytes[place] ^= 1 << bit;
            }
        }
        let [left, top, right, bottom] = corners;
        let part = [left.min(right), top.min(bottom), left.max(right), top.max(bottom)];
        Both::new().check(name, &bytes, part, reduction, &scaled());
    }

    #[test]
    fn written_files_are_the_same_both_ways(
        sketch in sketches(),
        corners in prop::collection::vec([0u32..=256, 0u32..=256, 0u32..=256, 0u32..=256], 1..4),
        reduction in prop::sample::select(vec![1, 1, 1, 2, 4, 8]),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..3),
    ) {
        let bytes = sketch.file();
        let mut both = Both::new();
        let name = format!("{sketch:?}");
        prop_assert!(both.check(&name, &bytes, WHOLE, reduction, &scaled()), "{name} is ordinary");
        let mut damaged = bytes.clone();
        for (place, bit) in flips {
            let place = place.index(bytes.len());
            damaged[place] ^= 1 << bit;
        }
        for [left, top, right, bottom] in corners {
            let part = [left.min(right), top.min(bottom), left.max(right), top.max(bottom)];
            prop_assert!(both.check(&name, &bytes, part, reduction, &scaled()), "{name} is ordinary");
            both.check(&name, &damaged, part, reduction, &scaled());
        }
    }
}

/// Every bit of a small file's data, turned over.
#[test]
fn every_damaged_bit_is_the_same_both_ways() {
    let mut both = Both::new();
    for seed in 0..6 {
        let (sampling, restart_interval) = [((2, 2), 0), ((1, 1), 2), ((2, 1), 1)][seed as usize % 3];
        let sketch = Sketch {
            size: (37, 21),
            sampling,
            colour: frame::Colour::YCbCr,
            codes: if seed < 3 { CodeChoice::Usual } else { CodeChoice::Fitted },
            restart_interval,
            density: 1,
            size_max: 6,
            seed,
        };
        let bytes = sketch.file();
        let scan = Frame::parse(&bytes).expect("an ordinary file").scan_start;
        // The usual tables are long, and others change them.
        let first = if seed < 3 { scan } else { 2 };
        let mut numbers = Numbers(seed);
        for place in first..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << numbers.below(8);
            both.check(&format!("{sketch:?}, byte {place}"), &damaged, WHOLE, 1, &DecodeSpec::default());
            damaged[place] = 0xff;
            both.check(&format!("{sketch:?}, byte {place}"), &damaged, [0, 90, 256, 160], 1, &DecodeSpec::default());
        }
    }
}
