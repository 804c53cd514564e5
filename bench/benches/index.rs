//! What does opening a dataset cost, and what does finding a sample in it?
//!
//! - `index/build`: samples/s, from tar to index, page cache warm, nothing written. Bodies are 100 kB like photos and
//!   mostly holes, so no disk is measured: a cold index is bounded by random reads of a page a sample.
//! - `index/open`: ms for 1 000 shards whose indexes are in the cache, page cache warm: the check at each start.
//! - `index/select`: ns for the byte ranges of two fields of a random sample; `index/key`: ns for its key. The indexes
//!   fit into the processor's outer cache; larger ones cost a miss or two more.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use feedline_loader::plan::SampleId;
use feedline_loader::shard::{Dataset, IndexOptions};

const PHOTO_BYTES: u64 = 100_000;

/// A shard of `samples` photos with labels; the photos' bytes are holes.
fn write_shard(path: &Path, shard: u32, samples: u32) {
    let file = File::create(path).expect("a new file");
    let mut offset = 0;
    let mut add = |name: String, size: u64| {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).expect("short");
        header.set_size(size);
        header.set_cksum();
        file.write_all_at(header.as_bytes(), offset).expect("room");
        offset += 512 + size.next_multiple_of(512);
    };
    for sample in 0..samples {
        add(format!("{shard:04}/{sample:06}.cls"), 3);
        add(format!("{shard:04}/{sample:06}.jpg"), PHOTO_BYTES);
    }
    file.set_len(offset + 1024).expect("room");
}

fn write_shards(folder: &Path, shards: u32, samples: u32) -> Vec<PathBuf> {
    let write = |shard| {
        let path = folder.join(format!("{shard:04}.tar"));
        write_shard(&path, shard, samples);
        path
    };
    (0..shards).map(write).collect()
}

fn open(shards: &[PathBuf], cache_dir: &Path) -> Dataset {
    let options = IndexOptions { cache_dir: Some(cache_dir.to_owned()), ..IndexOptions::default() };
    Dataset::open(shards, &options, &|_| {}).expect("sound shards")
}

fn build(criterion: &mut Criterion) {
    const SHARDS: u32 = 8;
    const SAMPLES: u32 = 2000;
    let folder = tempfile::tempdir().expect("a folder");
    let shards = write_shards(folder.path(), SHARDS, SAMPLES);
    // A folder that cannot be: every open builds.
    let no_cache = shards[0].join("none");
    let mut group = criterion.benchmark_group("index/build");
    group.throughput(Throughput::Elements(u64::from(SHARDS * SAMPLES)));
    group.bench_function("photo and label", |bencher| bencher.iter(|| open(&shards, &no_cache)));
    group.finish();
}

fn use_index(criterion: &mut Criterion) {
    const SHARDS: u32 = 1000;
    const SAMPLES: u32 = 100;
    let folder = tempfile::tempdir().expect("a folder");
    let shards = write_shards(folder.path(), SHARDS, SAMPLES);
    let cache = folder.path().join("cache");
    let dataset = open(&shards, &cache);
    criterion.bench_function("index/open/1000 shards", |bencher| bencher.iter(|| open(&shards, &cache)));

    let selector = dataset.selector(&[vec!["jpg".to_owned()], vec!["cls".to_owned()]]).expect("fields");
    let mut sample = SampleId(0);
    // A step that shares no factor with the number of samples meets all of them, far apart.
    let mut next = move || {
        sample = SampleId((sample.0 + 61_803) % u64::from(SHARDS * SAMPLES));
        sample
    };
    criterion.bench_function("index/select/2 fields", |bencher| {
        let mut ranges = [None; 2];
        bencher.iter(|| {
            selector.select(&dataset, next(), &mut ranges);
            black_box(ranges);
        });
    });
    criterion.bench_function("index/key", |bencher| {
        bencher.iter(|| dataset.with_key(next(), |key| black_box(key.len())));
    });
}

criterion_group!(benches, build, use_index);
criterion_main!(benches);
