//! What a job may choose about decoding, against Pillow and djpeg, over `tests/data/choices` (made by
//! `tests/data/make_choices.py`); and that a decoder's past, and any damage, change nothing.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde::Deserialize;

use crate::error::{FaultClass, SampleFault};
use crate::spec::{DecodeMode, DecodeSpec, OrientationRule, Truncated};

use super::{Decoder, Image, Reduction, Region, probe_and_decode};

const PIXELS_MAX: u64 = 1 << 22;

#[derive(Deserialize)]
struct Case {
    file: String,
    decode: DecodeSpec,
    reduction: u32,
    pixels: Option<String>,
    #[serde(default)]
    difference: u8,
    fault: Option<FaultClass>,
    #[serde(default)]
    words: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/choices")
}

fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn cases() -> Vec<Case> {
    serde_json::from_slice(&read("choices.json")).expect("choices.json parses")
}

/// Every file, good or bad, here and among the images that need no choice.
fn files() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for folder in [folder(), folder().join("../images")] {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            if !name.contains("reference") && !name.ends_with(".json") {
                files.push((name, std::fs::read(&path).expect("a file")));
            }
        }
    }
    files.sort();
    files
}

/// The pixels of `region` of an image reduced by `factor`.
fn pixels(image: Image<'_>, region: Region, factor: u32) -> Result<Vec<u8>, SampleFault> {
    let mut strips = image.reduced_region(region, factor)?;
    let mut pixels = Vec::new();
    while let Some(strip) = strips.next_strip()? {
        for row in strip.bytes.chunks(strip.stride).take(strip.rows as usize) {
            pixels.extend_from_slice(&row[..3 * region.width as usize]);
        }
    }
    Ok(pixels)
}

fn whole(image: &Image<'_>, factor: u32) -> Region {
    let (width, height) = image.size();
    Region::whole(width.div_ceil(factor), height.div_ceil(factor))
}

/// Size and pixels of all of an image.
fn decode(
    decoder: &mut Decoder,
    bytes: &[u8],
    spec: &DecodeSpec,
    factor: u32,
) -> Result<(Region, Vec<u8>), SampleFault> {
    let image = decoder.open_with(bytes, PIXELS_MAX, spec)?;
    let region = whole(&image, factor);
    Ok((region, pixels(image, region, factor)?))
}

#[test]
fn choices_equal_pillow_and_djpeg() {
    let mut decoder = Decoder::new().expect("a decoder");
    for Case { file, decode: spec, reduction, pixels, difference, fault, words } in cases() {
        let found = decode(&mut decoder, &read(&file), &spec, reduction);
        let Some(reference) = pixels else {
            let found = found.expect_err(&file);
            assert_eq!(Some(found.class), fault, "{file}: {found}");
            assert!(found.message.contains(&words), "{file}: {found}");
            continue;
        };
        let (size, found) = found.unwrap_or_else(|fault| panic!("{file}, {spec:?}: {fault}"));
        let cut_off = decoder.is_cut_off();
        let (expected_size, expected) =
            decode(&mut decoder, &read(&reference), &DecodeSpec::default(), 1).expect("reference pixels");
        assert_eq!(size, expected_size, "{file}, {spec:?}");
        let most = found.iter().zip(&expected).map(|(found, expected)| found.abs_diff(*expected)).max();
        assert!(most <= Some(difference), "{file}, {spec:?}, reduced by {reduction}: differs by {most:?}");
        assert_eq!(cut_off, spec.truncated == Truncated::Lenient && !file.ends_with("420.jpg"), "{file}");
    }
}

#[test]
fn a_region_is_cut_from_the_whole_whatever_the_choice() {
    let mut decoder = Decoder::new().expect("a decoder");
    for case in cases().iter().filter(|case| case.pixels.is_some()) {
        let bytes = read(&case.file);
        let (size, all) = decode(&mut decoder, &bytes, &case.decode, case.reduction).expect("a good image");
        for seed in 0..12_u32 {
            let cut = |length: u32, word: u32| {
                let start = word % length;
                (start, 1 + (word / length) % (length - start))
            };
            let (left, width) = cut(size.width, seed.wrapping_mul(2_654_435_761) >> 7);
            let (top, height) = cut(size.height, seed.wrapping_mul(2_246_822_519) >> 9);
            let region = Region { left, top, width, height };
            let image = decoder.open_with(&bytes, PIXELS_MAX, &case.decode).expect("a good image");
            let found = pixels(image, region, case.reduction).expect("a good image");
            let rows = all.chunks(3 * size.width as usize).skip(top as usize).take(height as usize);
            let expected: Vec<u8> =
                rows.flat_map(|row| &row[3 * left as usize..][..3 * width as usize]).copied().collect();
            assert!(found == expected, "{}, {:?}, by {}: {region:?}", case.file, case.decode, case.reduction);
        }
    }
}

/// The reduction of a box of `source` pixels that becomes `resized`.
fn check_reduction(mode: DecodeMode, source: (u32, u32), resized: (u32, u32), expected: u32) {
    let mut decoder = Decoder::new().expect("a decoder");
    let bytes = read("444.jpg");
    let spec = DecodeSpec { mode, ..DecodeSpec::default() };
    let image = decoder.open_with(&bytes, PIXELS_MAX, &spec).expect("a good image");
    let found = image.reduction(Region::whole(source.0, source.1), resized);
    assert_eq!(found, Reduction { factor: expected, ..Reduction::NONE }, "{source:?} to {resized:?}");
}

#[test]
fn a_reduced_box_is_twice_the_target_at_least() {
    check_reduction(DecodeMode::Scaled, (895, 896), (224, 224), 1);
    check_reduction(DecodeMode::Scaled, (896, 896), (224, 224), 2);
    check_reduction(DecodeMode::Scaled, (9000, 1792), (224, 224), 4);
    check_reduction(DecodeMode::Scaled, (9000, 9000), (224, 1000), 4);
    check_reduction(DecodeMode::Scaled, (100_000, 100_000), (224, 224), 8);
    check_reduction(DecodeMode::Exact, (100_000, 100_000), (224, 224), 1);
    check_reduction(DecodeMode::Fast, (100_000, 100_000), (224, 224), 1);
}

#[test]
fn a_mirrored_side_that_is_no_multiple_shifts_the_pixels() {
    let spec = DecodeSpec { mode: DecodeMode::Scaled, orientation: OrientationRule::Apply, ..DecodeSpec::default() };
    // Stored as 45x31: turned by 90 degrees, the stored bottom is the left side.
    for (file, shift) in [
        ("orientation-1.jpg", [0.0, 0.0]),
        ("orientation-2.jpg", [0.375, 0.0]),
        ("orientation-6.jpg", [0.125, 0.0]),
        ("orientation-8.jpg", [0.0, 0.375]),
    ] {
        let (mut decoder, bytes) = (Decoder::new().expect("a decoder"), read(file));
        let image = decoder.open_with(&bytes, PIXELS_MAX, &spec).expect("a good image");
        let reduction = image.reduction(Region::whole(31, 31), (1, 1));
        assert_eq!(reduction, Reduction { factor: 8, shift }, "{file}");
    }
}

/// Every choice that changes the way through the decoder.
fn specs() -> [DecodeSpec; 3] {
    let (truncated, orientation) = (Truncated::Lenient, OrientationRule::Apply);
    [
        DecodeSpec::default(),
        DecodeSpec { mode: DecodeMode::Fast, truncated, ..DecodeSpec::default() },
        DecodeSpec { mode: DecodeMode::Scaled, truncated, orientation, background: Some([1, 2, 3]) },
    ]
}

#[test]
fn memory_for_jpegs_is_taken_once() {
    let mut decoder = Decoder::new().expect("a decoder");
    let files = files();
    let mut pass = || {
        for (_, bytes) in &files {
            for spec in specs() {
                let _ = decode(&mut decoder, bytes, &spec, 1);
            }
        }
        decoder.jpeg.allocations()
    };
    // The first pass finds how much is needed, the second takes it in one piece.
    let warm = [pass(), pass()];
    assert!(warm[0] > 0);
    assert_eq!(pass(), warm[1], "a decoder that has seen every image takes no more");
}

/// What became of an image, faults and their words included.
fn outcome(decoder: &mut Decoder, bytes: &[u8], spec: &DecodeSpec) -> Result<(Region, Vec<u8>, u32, bool), String> {
    let decoded = decode(decoder, bytes, spec, 1).map_err(|fault| fault.to_string())?;
    Ok((decoded.0, decoded.1, decoder.warnings(), decoder.is_cut_off()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Damaged images end, and an image after others is what it is alone.
    #[test]
    fn damage_ends_and_stays_with_its_image(
        first in any::<prop::sample::Index>(),
        second in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in 0.2..1.5f64,
        spec in prop::sample::select(specs().to_vec()),
    ) {
        let files = files();
        let (_, before) = first.get(&files);
        let (name, bytes) = second.get(&files);
        let mut bytes = bytes.clone();
        for (place, value) in flips {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] ^= value;
            }
        }
        bytes.truncate((bytes.len() as f64 * keep) as usize);
        let mut decoder = Decoder::new().expect("a decoder");
        let _ = outcome(&mut decoder, before, &spec);
        let found = outcome(&mut decoder, &bytes, &spec);
        let alone = outcome(&mut Decoder::new().expect("a decoder"), &bytes, &spec);
        prop_assert!(found == alone, "{name}: {:?} and {:?}", found.err(), alone.err());
        let probed = probe_and_decode(&bytes, PIXELS_MAX, &DecodeSpec { mode: DecodeMode::Exact, ..spec });
        if spec.mode == DecodeMode::Exact {
            let sum = |pixels: &[u8]| pixels.iter().map(|&value| u64::from(value)).sum::<u64>();
            let expected = alone.map(|(_, pixels, warnings, cut_off)| (sum(&pixels), warnings, cut_off));
            let probed = probed.map(|probe| (probe.sum, probe.warnings, probe.is_cut_off));
            prop_assert_eq!(probed.map_err(|fault| fault.to_string()), expected);
        }
    }
}
