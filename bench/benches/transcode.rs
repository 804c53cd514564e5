//! How long does one core need to write a photo anew without loss, and to verify it?
//!
//! Unit: one iteration is every photo of the set once; criterion's element rate is photos a second. The photos are those of
//! `FEEDLINE_PHOTOS` (its folder `small`), else the generated ones of `tests/data/images`; their bytes are in memory. Time
//! is the thread's CPU time. `parse` walks a file's segments, `read` decodes its coefficients too, `optimize` also writes
//! them, reads what was written and compares. Leaves out: reading and writing shards.

mod thread_time;

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use feedline_loader::sys::transcode::Codec;
use feedline_loader::transcode::{JpegFile, Markers, Transcoder};
use thread_time::ThreadTime;

fn photos() -> Vec<Vec<u8>> {
    let folder = match std::env::var_os("FEEDLINE_PHOTOS") {
        Some(root) => Path::new(&root).join("small"),
        None => {
            eprintln!("FEEDLINE_PHOTOS is not set: the generated images are measured");
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/images")
        }
    };
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut transcoder = Transcoder::new().expect("a transcoder");
    let files = entries.map(|entry| std::fs::read(entry.expect("a folder entry").path()).expect("a readable photo"));
    // Among the generated images are some that must be refused.
    files
        .filter(|bytes| JpegFile::parse(bytes).is_ok_and(|file| transcoder.optimize(&file, Markers::All).is_ok()))
        .collect()
}

fn benchmarks(criterion: &mut Criterion<ThreadTime>) {
    let photos = photos();
    let parsed = |bytes| JpegFile::parse(bytes).expect("a good photo");
    let mut group = criterion.benchmark_group("transcode");
    group.throughput(Throughput::Elements(photos.len() as u64)).sample_size(10);
    group.bench_function("parse", |bencher| {
        bencher.iter(|| photos.iter().map(|bytes| parsed(black_box(bytes)).end()).sum::<usize>());
    });
    let mut codec = Codec::new().expect("a codec");
    group.bench_function("read", |bencher| {
        bencher.iter(|| {
            for bytes in &photos {
                black_box(codec.read(bytes, 1 << 28).expect("a good photo").facts());
            }
        });
    });
    let mut transcoder = Transcoder::new().expect("a transcoder");
    group.bench_function("optimize", |bencher| {
        bencher.iter(|| {
            for bytes in &photos {
                black_box(transcoder.optimize(&parsed(bytes), Markers::All).expect("a good photo"));
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = benchmarks
}
criterion_main!(benches);
