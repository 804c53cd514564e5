//! How long does each operation on a finished crop take on one core?
//!
//! Unit: one iteration is one image of 224x224 pixels; what comes out is time an image. The picture is smooth with noise.
//! Each operation runs over and over on its own output, with fixed parameters, on the fastest path and on the portable
//! one; `plan` is what drawing a sample's parameters takes. Leaves out: decoding, resizing, and the copy into a slot.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use feedline_loader::augment::operation::{Operation, OperationMemory, Warp};
use feedline_loader::augment::plan::{self, Sample};
use feedline_loader::augment::{Draw, finish, finish::Finish, warp};
use feedline_loader::spec::{FloatType, Interpolation, PixelLayout, Resampling, Transform, WarpSpec};
use feedline_loader::sys::simd::Path;

const SIDE: u32 = 224;

/// A smooth picture with noise.
fn picture() -> Vec<u8> {
    let mut state = 1_u32;
    let mut pixels = Vec::with_capacity((3 * SIDE * SIDE) as usize);
    for row in 0..SIDE {
        for column in 0..SIDE {
            for channel in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                pixels.push((row / 2 + column / (2 + channel) + (state >> 28)) as u8);
            }
        }
    }
    pixels
}

fn operations() -> Vec<(&'static str, Operation)> {
    let warp = |interpolation, coefficients| Operation::Warp(Warp { coefficients, interpolation, fill: None });
    let rotation = warp::affine((SIDE, SIDE), None, 20.0, [0.0; 2], 1.0, [0.0; 2]);
    let mut perspective = rotation;
    perspective[6] = 1e-4;
    vec![
        ("brightness", Operation::Brightness(1.2)),
        ("contrast", Operation::Contrast(1.2)),
        ("saturation", Operation::Saturation(1.2)),
        ("hue", Operation::Hue(0.1)),
        ("grayscale", Operation::Grayscale),
        ("solarize", Operation::Solarize(128.0)),
        ("posterize", Operation::Posterize(4)),
        ("invert", Operation::Invert),
        ("equalize", Operation::Equalize),
        ("autocontrast", Operation::Autocontrast),
        ("sharpness", Operation::Sharpness(1.5)),
        ("blur_3", Operation::Blur { kernel: [3; 2], sigma: 1.0 }),
        ("blur_23", Operation::Blur { kernel: [23; 2], sigma: 1.0 }),
        ("rotate_nearest", warp(Interpolation::Nearest, rotation)),
        ("rotate_bilinear", warp(Interpolation::Bilinear, rotation)),
        ("perspective_nearest", warp(Interpolation::Nearest, perspective)),
        ("perspective_bilinear", warp(Interpolation::Bilinear, perspective)),
    ]
}

fn benchmarks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("image_224");
    group.sample_size(20);
    let size = (SIDE, SIDE);
    for (name, operation) in operations() {
        for (path_name, path) in [("", Path::best()), ("_portable", Path::Portable)] {
            let (mut pixels, mut second) = (picture(), Vec::new());
            let mut memory = OperationMemory::default();
            group.bench_function(format!("{name}{path_name}"), |bencher| {
                bencher.iter(|| operation.run(path, black_box(&mut pixels), &mut second, size, &mut memory));
            });
        }
    }
    let pixels = picture();
    let mut row = Vec::new();
    group.bench_function("to_planes", |bencher| {
        bencher.iter(|| Path::best().run(|| finish::to_planes(black_box(&pixels), &mut row)));
    });
    for dtype in [FloatType::Float32, FloatType::Bfloat16] {
        let convert = [
            Transform::ToDtype { dtype, scale: true },
            Transform::Normalize { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] },
        ];
        let finish = Finish::of(&convert).expect("floats");
        for layout in [PixelLayout::Nhwc, PixelLayout::Nchw] {
            group.bench_function(format!("normalize_{dtype:?}_{layout:?}").to_lowercase(), |bencher| {
                bencher.iter(|| Path::best().run(|| finish.run(black_box(&pixels), layout, &mut row)));
            });
        }
    }
    group.finish();

    let mut group = criterion.benchmark_group("plan");
    group.sample_size(20);
    let crop = Transform::RandomResizedCrop {
        size: [SIDE; 2],
        scale: [0.08, 1.0],
        ratio: [3.0 / 4.0, 4.0 / 3.0],
        resampling: Resampling::Bilinear,
    };
    let flip = Transform::RandomHorizontalFlip { p: 0.5 };
    let random = Transform::RandAugment { operations: 2, magnitude: 9, bins: 31, warp: WarpSpec::default() };
    for (name, transforms) in
        [("crop_flip", vec![crop.clone(), flip.clone()]), ("crop_flip_rand_augment", vec![crop, flip, random])]
    {
        let mut steps = Vec::new();
        let mut number = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                number += 1;
                let draw = Draw { seed: 0, epoch: 0, sample: number };
                let sample = Sample { size: (500, 375), draw, view: 0, scale: 1, pixels_max: 1 << 28 };
                plan::plan(black_box(&transforms), sample, &mut steps).expect("within the limits");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, benchmarks);
criterion_main!(benches);
