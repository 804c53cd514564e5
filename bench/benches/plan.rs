//! What does it cost to know which sample comes next?
//!
//! - `plan/position/…`: ns for the sample at a position of an epoch of 10^9, positions in order as a rank takes them; 10^7
//!   for draws by weight, which keep 8 bytes a sample. Shards: 10 000, in blocks of the default size.
//! - `plan/position/…-quarantine`: with 1 000 samples left out.
//! - `plan/epoch/…`: µs to start an epoch, or to seek in it.
//!
//! All but the weights (80 MB, whose binary search waits for memory) fits the processor's outer cache, which a busy
//! sidecar does not leave to the plan.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use feedline_loader::plan::{MixPart, Partition, Plan, PlanOptions, Source};
use feedline_loader::spec::{MixStop, OrderSpec, Tail};

const SAMPLES: u64 = 1_000_000_000;
const SHARDS: u64 = 10_000;

fn plan(source: Source, order: OrderSpec, left_out: &[u64]) -> Plan {
    let first_samples: Vec<u64> = (0..SHARDS).map(|shard| shard * (SAMPLES / SHARDS)).collect();
    let partition = Partition::new(0, 8, 256, Tail::Short).expect("a rank");
    let options = PlanOptions { source, order, seed: 1, partition, first_samples: &first_samples, left_out };
    Plan::new(options).expect("a plan")
}

fn mix(parts: u64) -> Source {
    let count = SAMPLES / parts;
    let part = |number| MixPart { first_sample: number * count, sample_count: count, weight: 1.0 + number as f64 };
    Source::mixed(&(0..parts).map(part).collect::<Vec<_>>(), Some(SAMPLES), MixStop::First).expect("a mix")
}

fn plans() -> Vec<(&'static str, Plan)> {
    let left_out: Vec<u64> = (0..1000).map(|number| number * 999_983).collect();
    let block = OrderSpec::Block { block_shards: None };
    let weights = (0..10_000_000).map(|number| f64::from(number % 10)).collect();
    let weighted = Source::weighted(weights, 10_000_000, SAMPLES).expect("weights");
    let all = || Source::All(SAMPLES);
    vec![
        ("global", plan(all(), OrderSpec::Global, &[])),
        ("global-quarantine", plan(all(), OrderSpec::Global, &left_out)),
        ("block", plan(all(), block, &[])),
        ("block-quarantine", plan(all(), block, &left_out)),
        ("sequential", plan(all(), OrderSpec::Sequential, &[])),
        ("weighted", plan(weighted, OrderSpec::Global, &[])),
        ("mix-2", plan(mix(2), OrderSpec::Global, &[])),
        ("mix-2-quarantine", plan(mix(2), OrderSpec::Global, &left_out)),
        ("mix-64", plan(mix(64), OrderSpec::Global, &[])),
    ]
}

fn position(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan/position");
    for (name, plan) in plans() {
        let epoch = plan.epoch(3, 0).expect("an epoch");
        let mut position = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                position = (position + 1) % (SAMPLES / 2);
                black_box(epoch.sample_at(black_box(position)))
            });
        });
    }
    group.finish();
}

fn epoch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan/epoch");
    for (name, plan) in plans() {
        let mut epoch = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                epoch += 1;
                black_box(plan.epoch(black_box(epoch), 12_345).expect("an epoch"))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, position, epoch);
criterion_main!(benches);
