//! How long does one core need from a photo's bytes to its finished row, and where does the time go?
//!
//! Unit: one iteration is every photo of the set once; criterion's element rate is photos a second. The photos are those of
//! `FEEDLINE_PHOTOS` (its folder `small`, then `large`), else the generated ones of `tests/data/images`; their bytes are
//! in memory. Time is the thread's CPU time, so that a neighbour on the machine matters little. Each photo gets its own
//! RandomResizedCrop box to 224x224, the same in every benchmark. `entropy` is what no decoder can do without: the
//! codes of all rows down to the end of the box, of which nothing is transformed. Names that end in `libjpeg` leave every
//! JPEG to libjpeg-turbo; the others decode ordinary ones themselves. `photos_with_restarts` are the same photos, written
//! anew without loss, with a restart marker after every row of MCUs. Leaves out: reading, and the copy into a slot.

mod photos;
mod thread_time;

use std::hint::black_box;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use feedline_loader::augment::geometry::Stage;
use feedline_loader::augment::resize::{Resampler, Target};
use feedline_loader::augment::{Draw, ImageRecipe, ImageWorker};
use feedline_loader::decode::{Decoder, Region, STRIP_SLACK, Strips};
use feedline_loader::spec::{DecodeMode, DecodeSpec, ImageSpec, PixelLayout, Resampling, Transform};
use feedline_loader::sys::simd;
use thread_time::ThreadTime;

const PIXELS_MAX: u64 = 1 << 28;
const SIDE: u32 = 224;

struct Photo {
    bytes: Vec<u8>,
    draw: Draw,
    size: (u32, u32),
    stage: Stage,
}

fn recipe(layout: PixelLayout, mode: DecodeMode) -> ImageRecipe {
    let transforms = vec![
        Transform::RandomResizedCrop {
            size: [SIDE, SIDE],
            scale: [0.08, 1.0],
            ratio: [3.0 / 4.0, 4.0 / 3.0],
            resampling: Resampling::Bilinear,
        },
        Transform::RandomHorizontalFlip { p: 0.5 },
    ];
    let decode = DecodeSpec { mode, ..DecodeSpec::default() };
    ImageRecipe::compile(&ImageSpec { transforms, layout, max_pixels: PIXELS_MAX, decode, ..ImageSpec::default() })
        .expect("a fixed size")
}

fn load(decoder: &mut Decoder, folder: &str) -> Vec<Photo> {
    let recipe = recipe(PixelLayout::Nhwc, DecodeMode::Exact);
    let mut photos = Vec::new();
    for (index, path) in photos::files(folder).into_iter().enumerate() {
        let bytes = std::fs::read(&path).expect("a readable photo");
        let draw = Draw { seed: 0, epoch: 0, sample: index as u64 };
        // Among the generated images are some that must be refused.
        let Ok(size) = decoder.open(&bytes, PIXELS_MAX).map(|image| image.size()) else { continue };
        let stage = recipe.stages(size.0, size.1, draw).expect("within the limits")[0];
        photos.push(Photo { bytes, draw, size, stage });
    }
    photos
}

/// Decodes the photo's box in a mode, reduced as far as it lets; returns a byte of each strip.
fn decode_box(decoder: &mut Decoder, photo: &Photo, mode: DecodeMode) -> u8 {
    let spec = DecodeSpec { mode, ..DecodeSpec::default() };
    let image = decoder.open_with(&photo.bytes, PIXELS_MAX, &spec).expect("a good photo");
    let Region { left, top, width, height } = photo.stage.source;
    let factor = image.reduction(photo.stage.source, photo.stage.resized).factor;
    let (right, bottom) = ((left + width).div_ceil(factor), (top + height).div_ceil(factor));
    let (left, top) = (left / factor, top / factor);
    let region = Region { left, top, width: right - left, height: bottom - top };
    let mut strips = image.reduced_region(region, factor).expect("a good photo");
    let mut sum = 0u8;
    while let Some(strip) = strips.next_strip().expect("a good photo") {
        sum = sum.wrapping_add(strip.bytes[0]);
    }
    sum
}

/// The last pixel of the photo's box: all rows above are only entropy-decoded.
fn last_pixel(photo: &Photo) -> Region {
    let Region { left, top, height, .. } = photo.stage.source;
    Region { left, top: top + height - 1, width: 1, height: 1 }
}

/// Decodes a region; returns a byte of each strip, so that nothing is optimised away.
fn decode(decoder: &mut Decoder, photo: &Photo, region: Region) -> u8 {
    let mut strips =
        decoder.open(&photo.bytes, PIXELS_MAX).and_then(|image| image.region(region)).expect("a good photo");
    let mut sum = 0u8;
    while let Some(strip) = strips.next_strip().expect("a good photo") {
        sum = sum.wrapping_add(strip.bytes[0]);
    }
    sum
}

/// The pixels of a photo's box, with slack at the end.
fn box_pixels(decoder: &mut Decoder, photo: &Photo) -> Vec<u8> {
    let region = photo.stage.source;
    let mut strips =
        decoder.open(&photo.bytes, PIXELS_MAX).and_then(|image| image.region(region)).expect("a good photo");
    let mut pixels = Vec::new();
    while let Some(strip) = strips.next_strip().expect("a good photo") {
        for row in 0..strip.rows as usize {
            pixels.extend_from_slice(&strip.bytes[row * strip.stride..][..3 * region.width as usize]);
        }
    }
    pixels.extend_from_slice(&[0; STRIP_SLACK]);
    pixels
}

fn benchmarks(criterion: &mut Criterion<ThreadTime>) {
    let mut decoder = Decoder::new().expect("a decoder");
    let photos = load(&mut decoder, "small");
    let mut group = criterion.benchmark_group("photos");
    group.throughput(Throughput::Elements(photos.len() as u64)).sample_size(10);

    let mut library = Decoder::of_library().expect("a decoder");
    decode_whole(&mut group, [&mut decoder, &mut library], &photos);
    decode_boxes(&mut group, [&mut decoder, &mut library], &photos);

    let boxes: Vec<Vec<u8>> = photos.iter().map(|photo| box_pixels(&mut decoder, photo)).collect();
    let mut output = vec![0; (SIDE * SIDE * 3) as usize];
    let layouts = [("resize_box", PixelLayout::Nhwc), ("resize_box_nchw", PixelLayout::Nchw)];
    for (name, layout) in layouts {
        let mut resampler = Resampler::new(simd::Path::best());
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for (photo, pixels) in photos.iter().zip(&boxes) {
                    let Region { width, height, .. } = photo.stage.source;
                    let stage = Stage { source: Region::whole(width, height), ..photo.stage };
                    let region = resampler.prepare(&stage, stage.window, layout).expect("within the limits");
                    let mut strips = Strips::of_pixels(pixels, width, region);
                    let mut target = Target { pixels: &mut output, width: SIDE, height: SIDE, layout };
                    resampler.run(&mut strips, &mut target, (0, 0)).expect("pixels in memory");
                }
                black_box(&mut output);
            });
        });
    }
    group.bench_function("resize_box_fast_image_resize", |bencher| {
        let mut resizer = Resizer::new();
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        let mut output = Image::new(SIDE, SIDE, PixelType::U8x3);
        bencher.iter(|| {
            for (photo, pixels) in photos.iter().zip(&boxes) {
                let Region { width, height, .. } = photo.stage.source;
                let pixels = &pixels[..pixels.len() - STRIP_SLACK];
                let source = ImageRef::new(width, height, pixels, PixelType::U8x3).expect("a whole image");
                resizer.resize(&source, &mut output, &options).expect("same pixel types");
            }
            black_box(&mut output);
        });
    });

    rows(&mut group, &photos, "row_nchw", &recipe(PixelLayout::Nchw, DecodeMode::Exact));
    rows_in_modes(&mut group, &photos);
    group.finish();
}

type Group<'a> = BenchmarkGroup<'a, ThreadTime>;

/// Whole photos, by us and by libjpeg alone.
fn decode_whole(group: &mut Group<'_>, decoders: [&mut Decoder; 2], photos: &[Photo]) {
    for (decoder, name) in decoders.into_iter().zip(["decode_whole", "decode_whole_libjpeg"]) {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for photo in photos {
                    black_box(decode(decoder, photo, Region::whole(photo.size.0, photo.size.1)));
                }
            });
        });
    }
}

/// The boxes in each mode, and what of it is entropy decoding; by us and by libjpeg alone.
fn decode_boxes(group: &mut Group<'_>, decoders: [&mut Decoder; 2], photos: &[Photo]) {
    for (decoder, by) in decoders.into_iter().zip(["", "_libjpeg"]) {
        group.bench_function(format!("entropy{by}"), |bencher| {
            bencher.iter(|| {
                for photo in photos {
                    black_box(decode(decoder, photo, last_pixel(photo)));
                }
            });
        });
        for (name, mode) in [
            ("decode_box", DecodeMode::Exact),
            ("decode_box_scaled", DecodeMode::Scaled),
            ("decode_box_fast", DecodeMode::Fast),
        ] {
            group.bench_function(format!("{name}{by}"), |bencher| {
                bencher.iter(|| {
                    for photo in photos {
                        black_box(decode_box(decoder, photo, mode));
                    }
                });
            });
        }
    }
}

/// From bytes to finished rows.
fn rows(group: &mut Group<'_>, photos: &[Photo], name: &str, recipe: &ImageRecipe) {
    let mut worker = ImageWorker::new().expect("a worker");
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            for photo in photos {
                black_box(worker.run(recipe, &photo.bytes, photo.draw).expect("a good photo"));
            }
        });
    });
}

fn rows_in_modes(group: &mut Group<'_>, photos: &[Photo]) {
    for (name, mode) in [("row", DecodeMode::Exact), ("row_scaled", DecodeMode::Scaled), ("row_fast", DecodeMode::Fast)]
    {
        rows(group, photos, name, &recipe(PixelLayout::Nhwc, mode));
    }
}

/// Photos of many megapixels: how far regions and reductions go.
fn large(criterion: &mut Criterion<ThreadTime>) {
    let mut decoder = Decoder::new().expect("a decoder");
    let photos = load(&mut decoder, "large");
    if photos.is_empty() {
        return;
    }
    let mut group = criterion.benchmark_group("large_photos");
    group.throughput(Throughput::Elements(photos.len() as u64)).sample_size(10);
    let mut library = Decoder::of_library().expect("a decoder");
    decode_boxes(&mut group, [&mut decoder, &mut library], &photos);
    rows_in_modes(&mut group, &photos);
    group.finish();
}

/// The same photos with a restart marker after every row of MCUs.
fn with_restarts(criterion: &mut Criterion<ThreadTime>) {
    let mut decoder = Decoder::new().expect("a decoder");
    let mut photos = load(&mut decoder, "small");
    photos.retain_mut(|photo| {
        let written = photos::restarts::with_restart_rows(&photo.bytes);
        written.map(|bytes| photo.bytes = bytes).is_some()
    });
    let mut group = criterion.benchmark_group("photos_with_restarts");
    group.throughput(Throughput::Elements(photos.len() as u64)).sample_size(10);
    let mut library = Decoder::of_library().expect("a decoder");
    decode_whole(&mut group, [&mut decoder, &mut library], &photos);
    decode_boxes(&mut group, [&mut decoder, &mut library], &photos);
    rows_in_modes(&mut group, &photos);
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = benchmarks, with_restarts, large
}
criterion_main!(benches);
