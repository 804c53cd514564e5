//! JPEGs through both ways.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::writer::{CodeChoice, Numbers, Sketch, with_restarts};
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

#[test]
fn a_refused_image_has_no_warnings_of_the_one_before_it() {
    let mut decoder = JpegDecoder::new().expect("decoder");
    pixels(&mut decoder, &example("restart-out-of-turn.jpg")).expect("decodes");
    assert!(decoder.warnings() > 0);
    // Samples of no bits: libjpeg is not asked.
    let mut refused = example("420.jpg");
    let frame = refused.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
    refused[frame + 4] = 0;
    assert_eq!(pixels(&mut decoder, &refused).expect_err("refused").class, FaultClass::Unsupported);
    assert_eq!(decoder.warnings(), 0);
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

/// Photos written anew with restart markers: the pixels of all of them, by both ways, are still the same.
#[test]
fn photos_with_restarts_are_the_same_both_ways() {
    let Some(root) = std::env::var_os("FEEDLINE_PHOTOS") else {
        eprintln!("skipped: FEEDLINE_PHOTOS is not set");
        return;
    };
    let mut both = Both::new();
    let mut together = 0;
    let files = std::fs::read_dir(Path::new(&root).join("small")).expect("a folder");
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jpg"));
    paths.sort();
    for (index, path) in paths.iter().enumerate() {
        let (name, bytes) = (path.display().to_string(), std::fs::read(path).expect("a photo"));
        let Some(frame) = Frame::parse(&bytes) else { continue };
        let others = [Restarts::PartOfRow(index), Restarts::Rows(2), Restarts::Mcus(1 + index), Restarts::Rows(5)];
        for (restarts, part) in [Restarts::Rows(1), others[index % 4]].into_iter().zip([3, 11]) {
            let interval = restarts.interval(frame.mcus_across);
            let name = format!("{name}, markers every {interval} MCUs");
            let written = with_restarts(&bytes, interval);
            let rows_before = both.own.rows_in_lockstep();
            assert!(both.check(&name, &written, WHOLE, 1, &DecodeSpec::default()), "{name} is ordinary");
            let rows = both.own.rows_in_lockstep() - rows_before;
            let are_together = frame.mcus_down > 1 && frame.mcus_across.is_multiple_of(interval);
            assert_eq!(rows, if are_together { frame.mcus_down as u64 } else { 0 }, "{name}");
            together += u32::from(rows > 0);
            let before = outcome(&mut both.library, &bytes, WHOLE, 1, &DecodeSpec::default());
            let after = outcome(&mut both.own, &written, WHOLE, 1, &DecodeSpec::default());
            assert!(before == after, "{name}: nothing is lost");
            let [left, top, right, bottom] = [7, 31, 77, 129].map(|factor| factor * part * bytes.len() as u32 % 257);
            let part = [left.min(right), top.min(bottom), left.max(right), top.max(bottom)];
            for reduction in [1, 2, 4, 8] {
                assert!(both.check(&name, &written, part, reduction, &scaled()), "{name} is ordinary");
            }
        }
    }
    assert!(together as usize > paths.len() * 9 / 10, "rows of most photos are decoded together: {together}");
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
    (size, sampling, colour, codes, restarts(), 0u32..=8, 1u32..=10, any::<u64>()).prop_map(
        |(size, sampling, colour, codes, restarts, density, size_max, seed)| {
            let across = size.0.div_ceil(if colour == frame::Colour::Grey { 8 } else { 8 * sampling.0 });
            let restart_interval = restarts.interval(across);
            Sketch { size, sampling, colour, codes, restart_interval, density, size_max, seed }
        },
    )
}

/// How far apart restart markers are.
#[derive(Debug, Clone, Copy)]
enum Restarts {
    None,
    Mcus(usize),
    /// So many rows of MCUs.
    Rows(usize),
    /// The so manieth of those parts of a row that leave no rest.
    PartOfRow(usize),
}

impl Restarts {
    fn interval(self, across: usize) -> usize {
        let parts = |part: usize| (1..=across).filter(|part| across.is_multiple_of(*part)).cycle().nth(part);
        match self {
            Self::None => 0,
            Self::Mcus(count) => count,
            Self::Rows(count) => count * across,
            Self::PartOfRow(part) => parts(part).expect("a row has an MCU"),
        }
    }
}

fn restarts() -> impl Strategy<Value = Restarts> {
    prop_oneof![
        1 => Just(Restarts::None),
        1 => (1usize..30).prop_map(Restarts::Mcus),
        3 => Just(Restarts::Rows(1)),
        1 => (2usize..5).prop_map(Restarts::Rows),
        2 => (0usize..6).prop_map(Restarts::PartOfRow),
    ]
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
        let frame = Frame::parse(&bytes).expect("an ordinary file");
        let begins_rows = frame.restart_interval > 0 && frame.mcus_across.is_multiple_of(frame.restart_interval);
        let together = if begins_rows && frame.mcus_down > 1 { frame.mcus_down } else { 0 };
        prop_assert_eq!(both.own.rows_in_lockstep(), together as u64, "{}", name);
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

/// What may become of the restart markers of a file, whose places are given.
#[derive(Debug, Clone, Copy)]
enum MarkerDamage {
    Missing,
    Twice,
    Swapped,
    OtherNumber(u8),
    /// Some other marker, or a 0xff of padding.
    Other(u8),
    /// Bytes before it are lost, …
    Short(usize),
    /// … or too many.
    Long(u8),
}

impl MarkerDamage {
    fn apply(self, file: &mut Vec<u8>, place: usize, next: usize) {
        match self {
            Self::Missing => drop(file.drain(place..place + 2)),
            Self::Twice => drop(file.splice(place..place, [file[place], file[place + 1]])),
            Self::Swapped => file.swap(place + 1, next + 1),
            Self::OtherNumber(by) => file[place + 1] = 0xd0 + (file[place + 1] - 0xd0 + by) % 8,
            Self::Other(marker) => file[place + 1] = marker,
            Self::Short(count) => drop(file.drain(place.saturating_sub(count).max(2)..place)),
            Self::Long(byte) => drop(file.splice(place..place, [byte & 0xfe, byte])),
        }
    }
}

fn marker_damage() -> impl Strategy<Value = MarkerDamage> {
    prop_oneof![
        Just(MarkerDamage::Missing),
        Just(MarkerDamage::Twice),
        Just(MarkerDamage::Swapped),
        (1u8..8).prop_map(MarkerDamage::OtherNumber),
        prop::sample::select(vec![0xff, 0xd9, 0xd8, 0xfe, 0xda, 0x01]).prop_map(MarkerDamage::Other),
        (1usize..12).prop_map(MarkerDamage::Short),
        any::<u8>().prop_map(MarkerDamage::Long),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn damaged_restarts_are_the_same_both_ways(
        sketch in sketches(),
        interval in restarts(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), marker_damage()), 1..3),
        corners in prop::collection::vec([0u32..=256, 0u32..=256, 0u32..=256, 0u32..=256], 1..4),
    ) {
        let across = Frame::parse(&sketch.file()).expect("an ordinary file").mcus_across;
        let sketch = Sketch { restart_interval: interval.interval(across), density: 1, ..sketch };
        let mut bytes = sketch.file();
        let name = format!("{sketch:?}, {damage:?}");
        for (place, damage) in damage {
            let scan = Frame::parse(&bytes).map_or(0, |frame| frame.scan_start);
            let is_marker = |place: &usize| bytes[*place] == 0xff && (0xd0..0xd8).contains(&bytes[*place + 1]);
            let markers: Vec<usize> = (scan..bytes.len() - 1).filter(is_marker).collect();
            if markers.is_empty() {
                continue;
            }
            let index = place.index(markers.len());
            damage.apply(&mut bytes, markers[index], markers[(index + 1) % markers.len()]);
        }
        let mut both = Both::new();
        both.check(&name, &bytes, WHOLE, 1, &scaled());
        for [left, top, right, bottom] in corners {
            both.check(&name, &bytes, [left.min(right), top.min(bottom), left.max(right), top.max(bottom)], 1, &scaled());
        }
    }
}

/// Damage between two restart markers is noticed where a part needs what is there, and nowhere else.
#[test]
fn segments_that_are_not_needed_are_not_looked_at() {
    let sketch = Sketch {
        size: (100, 160),
        sampling: (1, 1),
        colour: frame::Colour::YCbCr,
        codes: CodeChoice::Fitted,
        restart_interval: 13,
        density: 2,
        size_max: 5,
        seed: 3,
    };
    let bytes = sketch.file();
    let scan = Frame::parse(&bytes).expect("an ordinary file").scan_start;
    let markers: Vec<usize> =
        (scan..bytes.len() - 1).filter(|&place| bytes[place] == 0xff && bytes[place + 1] & 0xf8 == 0xd0).collect();
    assert_eq!(markers.len(), 19, "a marker between two of 20 rows");
    // The last bytes of row 9 are lost, which libjpeg warns about.
    let mut damaged = bytes.clone();
    damaged.drain(markers[9] - 9..markers[9]);
    let mut both = Both::new();
    let rows = |first: u32, end: u32| [0, 256 * first / 20 + 1, 256, 256 * end / 20];
    for (part, is_noticed) in [
        (WHOLE, true),
        (rows(9, 10), true),
        (rows(3, 12), true),
        (rows(0, 9), false),
        (rows(11, 20), false),
        ([0, 0, 100, 256], false),
    ] {
        let is_own = both.check("a short row", &damaged, part, 1, &DecodeSpec::default());
        assert_eq!(is_own, !is_noticed, "{part:?}");
        let own = outcome(&mut both.own, &damaged, part, 1, &DecodeSpec::default());
        assert_eq!(own.1 > 0, is_noticed, "{part:?}");
        if !is_noticed {
            let good = outcome(&mut both.library, &bytes, part, 1, &DecodeSpec::default());
            assert!(own.0 == good.0, "{part:?}: the pixels of the file before the damage");
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
