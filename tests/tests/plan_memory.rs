//! An epoch of 10^9 samples is planned, sought in and walked in memory that does not grow with it.
//!
//! The only test of its binary: it looks at the whole process. A list would take 8 GB, one bit a sample 125 MB.

use std::fs;

use feedline_loader::plan::{MixPart, Partition, Plan, PlanOptions, Source};
use feedline_loader::spec::{MixStop, OrderSpec, Tail};

const SAMPLES: u64 = 1_000_000_000;
const SHARDS: u64 = 10_000;

/// A kilobyte figure of this process, in bytes.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a known figure");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<u64>().expect("a number") * 1024
}

/// Plans at eight ranks, and looks at 100 000 rows all over three epochs.
fn use_plan(source: &Source, order: OrderSpec, first_samples: &[u64], left_out: &[u64]) -> u64 {
    let mut sum = 0;
    for rank in 0..8 {
        let partition = Partition::new(rank, 8, 256, Tail::Short).expect("a rank");
        let source = source.clone();
        let plan =
            Plan::new(PlanOptions { source, order, seed: 1, partition, first_samples, left_out }).expect("a plan");
        for epoch in 0..3 {
            let whole = plan.epoch(epoch, 0).expect("an epoch");
            let rest = plan.epoch(epoch, plan.epoch_positions() / 3 * 2).expect("the rest of one");
            for index in 0..16 {
                for plan in [&whole, &rest] {
                    let batch = plan.batch(index * (plan.batch_count() / 16));
                    sum += (0..batch.row_count).map(|row| batch.row(row).sample.0).sum::<u64>();
                }
            }
        }
    }
    sum
}

#[test]
fn memory_does_not_grow_with_the_samples() {
    let first_samples: Vec<u64> = (0..SHARDS).map(|shard| shard * (SAMPLES / SHARDS)).collect();
    let left_out: Vec<u64> = (0..1000).map(|number| number * 999_983).collect();
    let part = |first_sample, sample_count, weight| MixPart { first_sample, sample_count, weight };
    let parts = [part(0, SAMPLES / 4, 0.6), part(SAMPLES / 4, SAMPLES / 4 * 3, 0.4)];
    let mix = Source::mixed(&parts, Some(SAMPLES), MixStop::First).expect("a mix");
    // What needs no memory by itself: the first use of the reader of figures.
    status("VmHWM");
    let (resident, mapped) = (status("VmHWM"), status("VmPeak"));
    for (source, order) in [
        (Source::All(SAMPLES), OrderSpec::Global),
        (Source::All(SAMPLES), OrderSpec::Block { block_shards: None }),
        (Source::All(SAMPLES), OrderSpec::Sequential),
        (mix, OrderSpec::Global),
    ] {
        for left_out in [&[], &left_out[..]] {
            assert_ne!(use_plan(&source, order, &first_samples, left_out), 0);
        }
    }
    let (resident, mapped) = (status("VmHWM") - resident, status("VmPeak") - mapped);
    assert!(resident < 4 << 20, "{resident} bytes more resident");
    assert!(mapped < SAMPLES / 8, "{mapped} bytes more mapped: one bit a sample, or more");
}
