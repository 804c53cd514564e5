//! How many bytes a second does one feeding thread get through each reader, at various depths?
//!
//! Unit: bytes read per second of wall time (criterion's throughput), 128 KiB at random offsets of one file of 256 MiB,
//! WARM page cache: the cost of asking, copying and waking, not of a device. Leaves out: cold reads, direct I/O, several
//! files, decoding, and the CPU time of the pool's threads (with io_uring the copy is on the feeding thread, so one core
//! does it all). A single thread that calls pread in a loop is beside them as the simplest thing that could be done.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use feedline_loader::read::{Arena, Completion, ReadRequest, ReaderChoice, open_reader};
use feedline_loader::sys::epoll::Epoll;

const FILE_BYTES: u64 = 256 << 20;
const READ_BYTES: u64 = 128 << 10;
/// Reads of one measured round.
const READS: u64 = 256;

/// Pseudo-random offsets, the same for everybody.
fn offsets() -> impl Iterator<Item = u64> {
    let mut state = 0_u64;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((state >> 20) % (FILE_BYTES - READ_BYTES))
    })
}

fn warm_file() -> File {
    let mut file = tempfile::tempfile().expect("temporary file");
    let block: Vec<u8> = (0..1_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&block).expect("write");
    }
    file
}

fn read_warm(criterion: &mut Criterion) {
    let file = warm_file();
    let mut group = criterion.benchmark_group("read_128KiB_warm");
    group.throughput(Throughput::Bytes(READS * READ_BYTES));
    group.bench_function("pread_loop", |bencher| {
        let mut buffer = vec![0; READ_BYTES as usize];
        let mut offsets = offsets();
        bencher.iter(|| {
            for offset in offsets.by_ref().take(READS as usize) {
                file.read_exact_at(&mut buffer, offset).expect("inside");
            }
        });
    });
    for choice in [ReaderChoice::Uring, ReaderChoice::Pread] {
        for depth in [1, 8, 64] {
            let mut arena = Arena::new(64 << 20).expect("arena");
            let mut reader = match open_reader(choice, &arena, depth) {
                Ok(reader) => reader,
                Err(error) => {
                    eprintln!("skipped: {error}");
                    break;
                }
            };
            eprintln!("{}", reader.describe());
            let id = reader.add_file(file.try_clone().expect("descriptor").into()).expect("add");
            let wake = Epoll::new().expect("epoll");
            let mut offsets = offsets();
            let mut done: Vec<Completion> = Vec::new();
            group.bench_function(BenchmarkId::new(choice.to_string(), depth), |bencher| {
                bencher.iter(|| {
                    let (mut started, mut ended) = (0, 0);
                    while ended < READS {
                        while started < READS && reader.in_flight() < depth {
                            let buffer = arena.allocate(READ_BYTES).expect("allowed").expect("room");
                            let offset = offsets.next().expect("endless");
                            let request = ReadRequest { file: id, offset, ticket: started, buffer };
                            reader.submit(request).expect("below its depth");
                            started += 1;
                        }
                        reader.wait(Duration::from_secs(10), wake.as_fd(), &mut done).expect("wait");
                        for completion in done.drain(..) {
                            completion.result.expect("inside");
                            ended += 1;
                        }
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, read_warm);
criterion_main!(benches);
