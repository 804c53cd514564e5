//! How long does each stage of decoding a JPEG take, beside the same stage of libjpeg-turbo?
//!
//! Unit: criterion's element rate is blocks, samples or pixels a second. Everything is in the nearest cache and every
//! block of a benchmark is of one kind: all 64 coefficients, the first ten, the first. Time is the thread's CPU time.
//! Leaves out: memory, and how well a processor guesses which kind of block comes next.
//!
//! Entropy decoding is measured on the photos of `FEEDLINE_PHOTOS` (folder `small`; else the generated ones) and its
//! rate is photos a second, all rows of each: passed over (but for the last MCU), kept, and in lockstep where the same photos
//! have a restart marker after every row of MCUs. Beside it libjpeg-turbo passes over all rows and decodes the last.

#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "calls single stages of libjpeg-turbo"))]

mod photos;
mod thread_time;

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use feedline_loader::decode::Region;
use feedline_loader::decode::jpeg::JpegDecoder;
use feedline_loader::decode::jpeg::frame::Frame;
use feedline_loader::decode::jpeg::mcu_rows::{Blocks, McuRows};
use feedline_loader::decode::jpeg::pixels::colour;
use feedline_loader::decode::jpeg::pixels::idct::{self, Dequantiser};
use feedline_loader::decode::jpeg::pixels::upsample::{self, Sources, Upsampling};
use feedline_loader::decode::jpeg::scan::{Needed, Scan};
use feedline_loader::spec::DecodeSpec;
use feedline_loader::sys::simd::Path;
use thread_time::ThreadTime;

/// Blocks of a row, and pixels of one.
const BLOCKS: usize = 64;
const PIXELS: usize = 8 * BLOCKS;

/// From a row of samples to the next.
const STRIDE: usize = PIXELS + 128;

/// A row of blocks whose first `end` coefficients are not zero.
fn blocks(end: u8) -> Vec<[i16; 64]> {
    let in_use = |place: usize| match end {
        1 => place == 0,
        10 => place / 8 + place % 8 < 4,
        _ => true,
    };
    let value = |block: usize, place: usize| ((place * 7 + block * 13) % 31) as i16 - 15;
    let block = |block: usize| std::array::from_fn(|place| if in_use(place) { value(block, place) } else { 0 });
    (0..BLOCKS).map(block).collect()
}

fn samples(step: usize) -> Vec<u8> {
    (0..STRIDE).map(|place| (place * step) as u8).collect()
}

/// The paths of this machine, by name.
fn paths() -> Vec<(&'static str, Path)> {
    let mut paths = vec![("portable", Path::Portable)];
    if Path::best() != Path::Portable {
        paths.push(("vectors", Path::best()));
    }
    paths
}

fn inverse_transform(criterion: &mut Criterion<ThreadTime>) {
    let table = Dequantiser::new(&[3; 64]);
    let mut target = vec![0; 8 * STRIDE];
    for side in [8, 4, 2] {
        for end in [64, 10, 1] {
            let mut group = criterion.benchmark_group(format!("idct{side}_end{end}"));
            group.throughput(Throughput::Elements(BLOCKS as u64));
            let blocks = blocks(end);
            for (name, path) in paths() {
                group.bench_function(name, |bencher| {
                    bencher.iter(|| {
                        idct::block_row(path, side, Blocks::of(&blocks), &table, black_box(&mut target), STRIDE);
                    });
                });
            }
            #[cfg(target_arch = "x86_64")]
            if Path::best() == Path::Avx2 {
                let library = library::InverseTransform::new(side, 3, &blocks);
                group.bench_function("libjpeg-turbo", |bencher| {
                    bencher.iter(|| library.block_row(black_box(&mut target)));
                });
            }
        }
    }
}

fn upsampling(criterion: &mut Criterion<ThreadTime>) {
    let (near, far) = (samples(7), samples(13));
    let mut target = vec![0; 2 * STRIDE];
    for (name, upsampling) in
        [("h2v1", Upsampling::DoubleAcross), ("h1v2", Upsampling::DoubleDown), ("h2v2", Upsampling::DoubleBoth)]
    {
        let mut group = criterion.benchmark_group(name);
        let factor = upsampling.factors()[0];
        group.throughput(Throughput::Elements(PIXELS as u64));
        for (name, path) in paths() {
            let sources = Sources { near: &near, far: &far, is_far_above: true };
            group.bench_function(name, |bencher| {
                bencher.iter(|| upsample::row(path, upsampling, sources, black_box(&mut target), PIXELS / factor));
            });
        }
    }
}

fn colours(criterion: &mut Criterion<ThreadTime>) {
    let planes = [samples(7), samples(13), samples(29)];
    let planes = [&planes[0][..], &planes[1][..], &planes[2][..]];
    let mut group = criterion.benchmark_group("ycc_to_rgb");
    group.throughput(Throughput::Elements(PIXELS as u64));
    for (name, path) in paths() {
        // A fresh target each time, as a strip is: the library stores past the cache.
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || vec![0; 3 * PIXELS + 96],
                |target| colour::ycc_row(path, planes, target, PIXELS),
                BatchSize::SmallInput,
            );
        });
    }
    #[cfg(target_arch = "x86_64")]
    if Path::best() == Path::Avx2 {
        group.bench_function("libjpeg-turbo", |bencher| {
            bencher.iter_batched_ref(
                || vec![0; 3 * PIXELS + 96],
                |target| library::ycc_row(planes, target),
                BatchSize::SmallInput,
            );
        });
    }
}

/// A photo that the engine decodes.
struct Photo {
    bytes: Vec<u8>,
    frame: Frame,
}

fn ordinary(bytes: Vec<u8>) -> Option<Photo> {
    let frame = Frame::parse(&bytes)?;
    Some(Photo { bytes, frame })
}

/// Decodes the codes of rows `first..` of MCUs, from column `column` on; those before are passed over.
fn decode_entropy(scan: &mut Scan, rows: &mut McuRows, photo: &Photo, first: usize, column: usize) {
    let Photo { bytes, frame } = photo;
    let needed =
        Needed { rows: first..frame.mcus_down, columns: column..frame.mcus_across, rows_read: frame.mcus_down };
    let mut left = needed.rows.len();
    scan.start(bytes, frame, needed, rows).expect("a good photo");
    while left > 0 {
        scan.next_rows(bytes, rows).expect("a good photo");
        left -= rows.count();
        black_box(&mut *rows);
    }
}

fn entropy(criterion: &mut Criterion<ThreadTime>) {
    let plain: Vec<Photo> = photos::files("small")
        .iter()
        .filter_map(|path| ordinary(std::fs::read(path).expect("a readable photo")))
        .collect();
    let marked: Vec<Photo> =
        plain.iter().filter_map(|photo| ordinary(photos::restarts::with_restart_rows(&photo.bytes)?)).collect();
    assert_eq!(plain.len(), marked.len(), "ordinary photos stay so");
    let mut group = criterion.benchmark_group("entropy");
    group.throughput(Throughput::Elements(plain.len() as u64)).sample_size(10);
    let (mut scan, mut rows) = (Scan::default(), McuRows::default());
    group.bench_function("passed", |bencher| {
        bencher.iter(|| {
            for photo in &plain {
                let last = (photo.frame.mcus_down - 1, photo.frame.mcus_across - 1);
                decode_entropy(&mut scan, &mut rows, photo, last.0, last.1);
            }
        });
    });
    for (name, photos) in [("kept", &plain), ("lockstep", &marked)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| photos.iter().for_each(|photo| decode_entropy(&mut scan, &mut rows, photo, 0, 0)));
        });
    }
    let mut decoder = JpegDecoder::of_library().expect("a decoder");
    for (name, photos) in [("libjpeg-turbo", &plain), ("libjpeg-turbo_with_restarts", &marked)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| photos.iter().for_each(|photo| last_row(&mut decoder, photo)));
        });
    }
}

/// libjpeg-turbo decodes the codes of all rows, and the pixels of the last.
fn last_row(decoder: &mut JpegDecoder, photo: &Photo) {
    let image = decoder.open(&photo.bytes, 1 << 28, &DecodeSpec::default()).expect("a good photo");
    let (width, height) = image.size();
    let region = Region { left: 0, top: height - 1, width, height: 1 };
    let mut rows = image.region(region, 1).expect("a good photo");
    while let Some(strip) = rows.next_strip().expect("a good photo") {
        black_box(strip.bytes[0]);
    }
}

/// libjpeg-turbo's own stages, which its SIMD exports.
#[cfg(target_arch = "x86_64")]
mod library {
    use super::{PIXELS, STRIDE};

    type Transform = unsafe extern "C" fn(*const i16, *const i16, *const *mut u8, u32);

    unsafe extern "C" {
        fn jsimd_idct_islow_avx2(steps: *const i16, block: *const i16, rows: *const *mut u8, column: u32);
        fn jsimd_idct_4x4_sse2(steps: *const i16, block: *const i16, rows: *const *mut u8, column: u32);
        fn jsimd_idct_2x2_sse2(steps: *const i16, block: *const i16, rows: *const *mut u8, column: u32);
        fn jsimd_ycc_rgb_convert_avx2(
            width: u32,
            planes: *const *const *const u8,
            row: u32,
            targets: *const *mut u8,
            count: i32,
        );
    }

    /// Coefficients, or steps, where its vector loads want them.
    #[derive(Clone, Copy)]
    #[repr(align(32))]
    struct Aligned([i16; 64]);

    pub struct InverseTransform {
        side: usize,
        steps: Aligned,
        blocks: Vec<Aligned>,
        transform: Transform,
    }

    impl InverseTransform {
        pub fn new(side: usize, step: i16, blocks: &[[i16; 64]]) -> Self {
            let transform: Transform = match side {
                8 => jsimd_idct_islow_avx2,
                4 => jsimd_idct_4x4_sse2,
                _ => jsimd_idct_2x2_sse2,
            };
            let blocks = blocks.iter().copied().map(Aligned).collect();
            Self { side, steps: Aligned([step; 64]), blocks, transform }
        }

        pub fn block_row(&self, target: &mut [u8]) {
            assert!(
                target.len() >= self.side * STRIDE && self.side * self.blocks.len() <= STRIDE,
                "the samples have room"
            );
            let rows: [*mut u8; 8] = std::array::from_fn(|row| target.as_mut_ptr().wrapping_add(row * STRIDE));
            for (index, block) in self.blocks.iter().enumerate() {
                let column = (self.side * index) as u32;
                // SAFETY: it reads 64 steps and 64 coefficients, aligned, and writes `side` bytes of `side` rows from
                // `column`, inside the target by the assert.
                unsafe { (self.transform)(self.steps.0.as_ptr(), block.0.as_ptr(), rows.as_ptr(), column) };
            }
        }
    }

    pub fn ycc_row(planes: [&[u8]; 3], target: &mut [u8]) {
        assert!(planes.iter().all(|plane| plane.len() >= PIXELS + 32) && target.len() >= 3 * PIXELS);
        let rows = planes.map(|plane| [plane.as_ptr()]);
        let rows = [rows[0].as_ptr(), rows[1].as_ptr(), rows[2].as_ptr()];
        let targets = [target.as_mut_ptr()];
        // SAFETY: it reads whole vectors of each plane and writes three bytes a pixel, inside them by the assert.
        unsafe { jsimd_ycc_rgb_convert_avx2(PIXELS as u32, rows.as_ptr(), 0, targets.as_ptr(), 1) };
    }
}

criterion_group! {
    name = stages;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = inverse_transform, upsampling, colours, entropy
}
criterion_main!(stages);
