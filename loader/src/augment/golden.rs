//! Pixels against Pillow's, over the images of `tests/data/images` (made by `tests/data/make_golden.py`), and
//! self-consistency over those and, where `FEEDLINE_PHOTOS` names a folder, over real photos.

use std::path::{Path as FilePath, PathBuf};

use proptest::prelude::*;
use serde::Deserialize;

use crate::decode::{Decoder, Reduction, Region};
use crate::error::{FaultClass, SampleFault};
use crate::spec::{ImageSpec, PixelLayout, Resampling, ResizeTo, Transform};

use super::geometry::{Stage, Window};
use super::philox::{below, philox4x64};
use super::plan::{self, Sample, Step};
use super::{Draw, ImageRecipe, ImageWorker, Source};
use crate::sys::simd::Path;

const PIXELS_MAX: u64 = 1 << 26;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
    resamples: Vec<Resample>,
}

#[derive(Deserialize)]
struct Case {
    file: String,
    pixels: Option<String>,
    difference: Option<u8>,
    fault: Option<FaultClass>,
    words: Option<String>,
}

#[derive(Deserialize)]
struct Resample {
    file: String,
    #[serde(rename = "box")]
    source: [u32; 4],
    size: [u32; 2],
    mirrored: bool,
    pixels: String,
}

fn folder() -> PathBuf {
    FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/images")
}

fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn golden() -> Golden {
    serde_json::from_slice(&read("golden.json")).expect("golden.json parses")
}

/// Real photos, or nothing with a visible notice.
fn photos(test: &str) -> Vec<PathBuf> {
    let Some(root) = std::env::var_os("FEEDLINE_PHOTOS") else {
        eprintln!("skipped: {test} over photos, FEEDLINE_PHOTOS is not set");
        return Vec::new();
    };
    let folder = FilePath::new(&root).join("small");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jpg"));
    paths.sort();
    paths
}

/// Files that decode: the golden ones and the photos.
pub(super) fn decodable(test: &str) -> Vec<(String, Vec<u8>)> {
    let golden = golden();
    let cases = golden.cases.iter().filter(|case| case.pixels.is_some()).map(|case| case.file.clone());
    let resamples = golden.resamples.iter().map(|case| case.file.clone());
    let mut names: Vec<String> = cases.chain(resamples).collect();
    names.sort();
    names.dedup();
    let mut files: Vec<_> = names.into_iter().map(|name| (name.clone(), read(&name))).collect();
    for path in photos(test) {
        files.push((path.display().to_string(), std::fs::read(&path).expect("a readable photo")));
    }
    files
}

/// (width, height) and RGB of a region, or of the whole image.
fn decode(decoder: &mut Decoder, bytes: &[u8], region: Option<Region>) -> Result<((u32, u32), Vec<u8>), SampleFault> {
    let image = decoder.open(bytes, PIXELS_MAX)?;
    let size = image.size();
    let region = region.unwrap_or(Region::whole(size.0, size.1));
    let mut strips = image.region(region)?;
    let mut pixels = Vec::new();
    while let Some(strip) = strips.next_strip()? {
        for row in 0..strip.rows as usize {
            pixels.extend_from_slice(&strip.bytes[row * strip.stride..][..3 * region.width as usize]);
        }
    }
    Ok((size, pixels))
}

fn cut((width, _): (u32, u32), pixels: &[u8], region: Region) -> Vec<u8> {
    let row = |row: u32| &pixels[3 * (row as usize * width as usize + region.left as usize)..];
    (region.top..region.top + region.height).flat_map(|top| &row(top)[..3 * region.width as usize]).copied().collect()
}

/// Largest difference, and how many values differ.
fn difference(found: &[u8], expected: &[u8]) -> (u8, usize) {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(found, expected)| found.abs_diff(*expected));
    (differences.clone().max().unwrap_or(0), differences.filter(|&difference| difference > 0).count())
}

/// A box of an image that is a function of `seed`; small ones and ones at the borders are not rare.
fn random_region((width, height): (u32, u32), seed: u64) -> Region {
    let words = philox4x64([seed, 0, 0, 0], [0, 0]);
    let span = |length: u32, words: [u64; 2]| {
        let size = 1 + below(words[0], if words[0] & 1 == 0 { length } else { length.min(9) });
        let start = below(words[1], length - size + 1);
        let start = if words[1] & 7 == 0 { 0 } else { start };
        (if words[1] & 7 == 1 { length - size } else { start }, size)
    };
    let (left, region_width) = span(width, [words[0], words[1]]);
    let (top, region_height) = span(height, [words[2], words[3]]);
    Region { left, top, width: region_width, height: region_height }
}

#[test]
fn decoding_equals_pillow() {
    let mut decoder = Decoder::new().expect("a decoder");
    for case in golden().cases {
        let found = decode(&mut decoder, &read(&case.file), None);
        match (case.pixels, case.fault) {
            (Some(reference), _) => {
                let (size, found) = found.unwrap_or_else(|fault| panic!("{}: {fault}", case.file));
                let (reference_size, expected) =
                    decode(&mut decoder, &read(&reference), None).expect("reference pixels");
                assert_eq!(size, reference_size, "{}", case.file);
                let (most, count) = difference(&found, &expected);
                assert!(most <= case.difference.unwrap_or(0), "{}: {count} values differ, by up to {most}", case.file);
            }
            (None, fault) => {
                let found = found.expect_err(&case.file);
                assert_eq!(Some(found.class), fault, "{}: {found}", case.file);
                let words = case.words.unwrap_or_default();
                assert!(found.message.contains(&words), "{}: {found}", case.file);
            }
        }
    }
}

#[test]
fn a_region_is_cut_from_the_whole() {
    let mut decoder = Decoder::new().expect("a decoder");
    for (name, bytes) in decodable("a_region_is_cut_from_the_whole") {
        let (size, whole) = decode(&mut decoder, &bytes, None).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        for seed in 0..40 {
            let region = random_region(size, seed);
            let (_, found) = decode(&mut decoder, &bytes, Some(region)).expect("what decodes whole decodes in part");
            assert!(found == cut(size, &whole, region), "{name}: {region:?} of {size:?}");
        }
    }
}

/// A stage that resizes a box of the source.
fn box_stage([left, top, width, height]: [u32; 4], [to_height, to_width]: [u32; 2], mirrored: bool) -> Stage {
    let window = Window { left: 0, top: 0, width: to_width, height: to_height };
    Stage {
        source: Region { left, top, width, height },
        resized: (to_width, to_height),
        window,
        visible: Some(window),
        mirrored,
        ..Stage::of_image(to_width, to_height)
    }
}

fn run_stage(worker: &mut ImageWorker, bytes: &[u8], stage: Stage, layout: PixelLayout) -> Vec<u8> {
    let image = worker.decoder.open(bytes, PIXELS_MAX).expect("a good image");
    let pixels = worker.runner.run(Source::Image(image), &[Step::Resample(stage)], layout, None);
    pixels.expect("a stage over a good image").to_vec()
}

fn interleaved(planes: &[u8]) -> Vec<u8> {
    let (red, rest) = planes.split_at(planes.len() / 3);
    let (green, blue) = rest.split_at(rest.len() / 2);
    red.iter().zip(green).zip(blue).flat_map(|((red, green), blue)| [*red, *green, *blue]).collect()
}

fn paths() -> Vec<Path> {
    let mut paths = vec![Path::Portable];
    if Path::best() != Path::Portable {
        paths.push(Path::best());
    } else {
        eprintln!("skipped: the vector path, this processor has none");
    }
    paths
}

#[test]
fn resizing_equals_pillow() {
    let mut decoder = Decoder::new().expect("a decoder");
    for path in paths() {
        let mut worker = ImageWorker::with_path(path).expect("a worker");
        for case in golden().resamples {
            let (_, expected) = decode(&mut decoder, &read(&case.pixels), None).expect("reference pixels");
            let stage = box_stage(case.source, case.size, case.mirrored);
            let bytes = read(&case.file);
            let found = run_stage(&mut worker, &bytes, stage, PixelLayout::Nhwc);
            let (most, count) = difference(&found, &expected);
            assert_eq!((most, count), (0, 0), "{path:?}: {} {stage:?}", case.file);
            let planes = run_stage(&mut worker, &bytes, stage, PixelLayout::Nchw);
            assert!(interleaved(&planes) == found, "{path:?}: planes of {} {stage:?}", case.file);
        }
    }
}

/// What a chain of transforms gives when each is carried out alone on whole images.
fn run_one_by_one(pixels: Vec<u8>, size: (u32, u32), transforms: &[Transform], draw: Draw) -> Vec<u8> {
    let mut resampler = super::Resampler::new(Path::Portable);
    let (mut pixels, mut size) = (pixels, size);
    for index in 0..transforms.len() {
        // Every transform keeps its place in the list, since its stream depends on it.
        let mut alone = vec![Transform::RandomHorizontalFlip { p: 0.0 }; transforms.len()];
        alone[index] = transforms[index].clone();
        let mut steps = Vec::new();
        let sample = Sample { size, draw, view: 0, scale: 1, pixels_max: PIXELS_MAX };
        plan::plan(&alone, sample, &mut steps).expect("within the limits");
        let [Step::Resample(stage)] = steps[..] else { panic!("one transform is one stage") };
        pixels.resize(pixels.len() + crate::decode::STRIP_SLACK, 0);
        let mut output = Vec::new();
        let rows = |region| Ok(crate::decode::Strips::of_pixels(&pixels, size.0, region));
        super::run_stage(&mut resampler, &stage, Reduction::NONE, PixelLayout::Nhwc, &mut output, rows)
            .expect("a stage over pixels");
        pixels = output;
        size = stage.output();
    }
    pixels
}

/// Not the nearest pixel: where two are equally near, a mirrored resize picks the other one. Its picks are compared with
/// Pillow's by the Python tests.
fn resampling() -> impl Strategy<Value = Resampling> {
    prop::sample::select(vec![Resampling::Bilinear, Resampling::BilinearAliased, Resampling::Bicubic])
}

fn transform() -> impl Strategy<Value = Transform> {
    let side = 1..80u32;
    prop_oneof![
        (side.clone(), side.clone(), 0.01..1.0f64, 0.3..1.0f64, resampling()).prop_map(
            |(height, width, area, ratio, resampling)| {
                Transform::RandomResizedCrop {
                    size: [height, width],
                    scale: [area, 1.0],
                    ratio: [ratio, 1.0 / ratio],
                    resampling,
                }
            }
        ),
        (side.clone(), resampling())
            .prop_map(|(short, resampling)| Transform::Resize { to: ResizeTo::ShortSide(short), resampling }),
        (side.clone(), side.clone(), resampling()).prop_map(|(height, width, resampling)| Transform::Resize {
            to: ResizeTo::Exact([height, width]),
            resampling
        }),
        (side.clone(), side).prop_map(|(height, width)| Transform::CenterCrop { size: [height, width] }),
        (0.0..1.0f64).prop_map(|p| Transform::RandomHorizontalFlip { p }),
        (0.0..1.0f64).prop_map(|p| Transform::RandomVerticalFlip { p }),
    ]
}

proptest! {
    /// A folded chain equals its transforms one by one; only a flip before a resize may move a last bit, since
    /// mirrored weights are rounded from the other side.
    #[test]
    fn folding_changes_nothing(
        chain in prop::collection::vec(transform(), 1..5),
        last in 1..60u32,
        seed in any::<u64>(),
        file in prop::sample::select(vec!["420.jpg", "444.jpg", "rgb.png", "420-1x37.jpg", "cmyk.jpg"]),
        layout in prop::sample::select(vec![PixelLayout::Nhwc, PixelLayout::Nchw]),
    ) {
        let mut transforms = chain;
        transforms.push(Transform::CenterCrop { size: [last, last] });
        let draw = Draw { seed, epoch: 1, sample: 2 };
        let bytes = read(file);
        let spec = ImageSpec { transforms: transforms.clone(), layout, max_pixels: PIXELS_MAX, ..ImageSpec::default() };
        let recipe = ImageRecipe::compile(&spec).expect("the last transform fixes the size");
        let mut found = Vec::new();
        for path in paths() {
            let mut worker = ImageWorker::with_path(path).expect("a worker");
            let pixels = worker.run(&recipe, &bytes, draw).expect("a good image");
            prop_assert_eq!(pixels.len(), recipe.row_bytes());
            found.push(pixels.to_vec());
        }
        prop_assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "paths differ");
        let found = if layout == PixelLayout::Nchw { interleaved(&found[0]) } else { found[0].clone() };
        let (size, whole) = decode(&mut Decoder::new().expect("a decoder"), &bytes, None).expect("a good image");
        let expected = run_one_by_one(whole, size, &transforms, draw);
        let (most, _) = difference(&found, &expected);
        prop_assert!(most <= 1, "{transforms:?} on {file}: differs by {most}");
    }
}

#[test]
fn strips_and_paths_give_the_same_pixels() {
    let mut decoder = Decoder::new().expect("a decoder");
    let mut workers: Vec<_> = paths().into_iter().map(|path| ImageWorker::with_path(path).expect("a worker")).collect();
    for (index, (name, bytes)) in decodable("strips_and_paths_give_the_same_pixels").into_iter().enumerate() {
        let (size, whole) = decode(&mut decoder, &bytes, None).expect("a good image");
        let transforms = [
            Transform::RandomResizedCrop {
                size: [224, 224],
                scale: [0.08, 1.0],
                ratio: [0.75, 4.0 / 3.0],
                resampling: Resampling::Bilinear,
            },
            Transform::RandomHorizontalFlip { p: 0.5 },
        ];
        let draw = Draw { seed: 5, epoch: 0, sample: index as u64 };
        let expected = run_one_by_one(whole, size, &transforms, draw);
        let spec = ImageSpec {
            transforms: transforms.to_vec(),
            layout: PixelLayout::Nhwc,
            max_pixels: PIXELS_MAX,
            ..ImageSpec::default()
        };
        let recipe = ImageRecipe::compile(&spec).expect("a fixed size");
        for worker in &mut workers {
            let found = worker.run(&recipe, &bytes, draw).expect("a good image");
            let (most, count) = difference(found, &expected);
            assert_eq!((most, count), (0, 0), "{name}");
        }
    }
}

#[test]
fn oddities_are_counted() {
    let mut worker = ImageWorker::new().expect("a worker");
    let resize = Transform::Resize { to: ResizeTo::Exact([8, 8]), resampling: Resampling::Bilinear };
    let spec = ImageSpec {
        transforms: vec![resize],
        layout: PixelLayout::Nhwc,
        max_pixels: PIXELS_MAX,
        ..ImageSpec::default()
    };
    let recipe = ImageRecipe::compile(&spec).expect("a fixed size");
    let draw = Draw { seed: 0, epoch: 0, sample: 0 };
    for (file, is_odd) in
        [("420.jpg", false), ("junk-before-marker.jpg", true), ("damaged.jpg", true), ("444.jpg", false)]
    {
        worker.run(&recipe, &read(file), draw).expect("a decodable image");
        assert_eq!(worker.warnings() > 0, is_odd, "{file}");
    }
}
