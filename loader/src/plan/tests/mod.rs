//! The plan's promises: every sample exactly once, whatever the ranks, the tail and the place of resume.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

mod orders;
mod parts;
mod quarantine;

/// Rows of all ranks: (sample, valid) in order of ranks, batch by batch.
fn rows(plan_of: impl Fn(u32) -> Result<Plan>, world_size: u32, epoch: u64, start: u64) -> Result<Vec<Vec<RowPlan>>> {
    let plans = (0..world_size).map(|rank| plan_of(rank)?.epoch(epoch, start)).collect::<Result<Vec<_>>>()?;
    let count = plans[0].batch_count();
    assert!(plans.iter().all(|plan| plan.batch_count() == count), "ranks take different numbers of steps");
    Ok((0..count)
        .map(|index| {
            plans
                .iter()
                .flat_map(|plan| {
                    let batch = plan.batch(index);
                    assert!(batch.row_count > 0, "an empty batch");
                    (0..batch.row_count).map(move |row| batch.row(row)).collect::<Vec<_>>()
                })
                .collect()
        })
        .collect())
}

fn plan(samples: u64, world_size: u32, batch_size: u32, tail: Tail) -> impl Fn(u32) -> Result<Plan> {
    move |rank| {
        let partition = Partition::new(rank, world_size, batch_size, tail)?;
        plan_of(Source::all(samples)?, OrderSpec::Global, partition)
    }
}

fn plan_of(source: Source, order: OrderSpec, partition: Partition) -> Result<Plan> {
    Plan::new(PlanOptions { source, order, seed: 42, partition, first_samples: &[0], left_out: &[] })
}

fn counts<'a>(rows: impl IntoIterator<Item = &'a RowPlan>) -> BTreeMap<u64, u32> {
    let mut counts = BTreeMap::new();
    rows.into_iter().for_each(|row| *counts.entry(row.sample.0).or_default() += 1);
    counts
}

fn tails() -> impl Strategy<Value = Tail> {
    prop_oneof![Just(Tail::Short), Just(Tail::Drop), Just(Tail::Pad)]
}

proptest! {
    #[test]
    fn the_union_over_ranks_is_what_the_tail_says(
        samples in 1_u64..400, world_size in 1_u32..=8, batch_size in 1_u32..20, tail in tails(), epoch in 0_u64..3
    ) {
        let plan_of = plan(samples, world_size, batch_size, tail);
        let global_batch = u64::from(world_size * batch_size);
        let Ok(batches) = rows(&plan_of, world_size, epoch, 0) else {
            let rest = samples % global_batch;
            let refused = match tail {
                Tail::Drop => samples < global_batch,
                Tail::Short => rest > 0 && rest < u64::from(world_size),
                Tail::Pad => false,
            };
            prop_assert!(refused, "refused without a reason");
            return Ok(());
        };
        let all = counts(batches.iter().flatten());
        let valid = counts(batches.iter().flatten().filter(|row| row.valid));
        prop_assert!(valid.values().all(|count| *count == 1), "a sample twice");
        prop_assert_eq!(valid.len() as u64, if tail == Tail::Drop { samples / global_batch * global_batch } else { samples });
        let rows: u64 = all.values().map(|count| u64::from(*count)).sum();
        let one = plan_of(0).unwrap();
        prop_assert_eq!(rows, samples - one.left_out() + one.repeated());
        for batch in &batches[..batches.len() - 1] {
            prop_assert_eq!(batch.len() as u64, global_batch);
        }
    }

    #[test]
    fn the_order_is_the_same_at_an_equal_global_batch(samples in 24_u64..300, epoch in 0_u64..3) {
        let wide = rows(plan(samples, 8, 3, Tail::Drop), 8, epoch, 0).unwrap();
        for (world_size, batch_size) in [(1, 24), (2, 12), (3, 8), (4, 6)] {
            prop_assert_eq!(&wide, &rows(plan(samples, world_size, batch_size, Tail::Drop), world_size, epoch, 0).unwrap());
        }
    }

    #[test]
    fn a_resumed_epoch_is_the_rest_of_the_order(samples in 2_u64..300, start in 0_u64..300, tail in tails()) {
        let start = start.min(samples);
        let whole = rows(plan(samples, 1, 1, Tail::Short), 1, 5, 0).unwrap();
        let expected: Vec<_> = whole.iter().flatten().skip(usize::try_from(start).unwrap()).copied().collect();
        let resumed = plan(samples, 2, 1, tail)(0).and_then(|plan| plan.epoch(5, start));
        prop_assume!(resumed.is_ok());
        let rows: Vec<_> = rows(plan(samples, 2, 1, tail), 2, 5, start).unwrap().into_iter().flatten().collect();
        let valid: Vec<_> = rows.into_iter().filter(|row| row.valid).collect();
        prop_assert_eq!(&valid[..], &expected[..valid.len()]);
        prop_assert!(expected.len() - valid.len() < 2, "more than a tail is missing");
    }

    #[test]
    fn substitutes_depend_on_nothing_but_their_place(samples in 1_u64..100, position in 0_u64..100, attempt in 1_u32..10) {
        let position = position % samples;
        let alone = plan(samples, 1, 1, Tail::Pad)(0).unwrap().epoch(1, 0).unwrap().substitute(position, attempt);
        let other = plan(samples, 4, 2, Tail::Pad)(3).unwrap().epoch(1, 0).unwrap().substitute(position, attempt);
        prop_assert_eq!(alone, other);
        prop_assert!(alone.0 < samples);
    }
}

/// Steps and rows per rank.
fn check(samples: u64, world_size: u32, batch_size: u32, tail: Tail, expected: &[&[u32]]) {
    let found: Vec<Vec<u32>> = (0..world_size)
        .map(|rank| {
            let epoch = plan(samples, world_size, batch_size, tail)(rank).unwrap().epoch(0, 0).unwrap();
            (0..epoch.batch_count()).map(|index| epoch.batch(index).row_count).collect()
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn tails_by_example() {
    check(10, 3, 2, Tail::Short, &[&[2, 2], &[2, 1], &[2, 1]]);
    check(10, 3, 2, Tail::Drop, &[&[2], &[2], &[2]]);
    check(10, 3, 2, Tail::Pad, &[&[2, 2], &[2, 2], &[2, 2]]);
    check(7, 1, 3, Tail::Short, &[&[3, 3, 1]]);
    check(1, 1, 3, Tail::Pad, &[&[3]]);
}

#[test]
fn epochs_differ_and_repeat() {
    let order = |epoch| rows(plan(100, 1, 10, Tail::Short), 1, epoch, 0).unwrap();
    assert_eq!(order(0), order(0));
    assert_ne!(order(0), order(1));
}

#[test]
fn refusals_name_the_way_out() {
    let refusal =
        |samples, world_size, batch_size, tail| plan(samples, world_size, batch_size, tail)(0).unwrap_err().to_string();
    assert!(refusal(10, 1, 11, Tail::Drop).contains("drop_last=False"));
    assert!(refusal(9, 4, 2, Tail::Short).contains("tail=\"pad\""));
    assert!(Source::all(0).is_err());
    assert!(Source::indices(vec![5], 5).unwrap_err().to_string().contains("0 to 4"));
    assert!(Source::weighted(vec![0.0; 3], 3, 3).is_err());
    assert!(Source::weighted(vec![1.0, f64::NAN], 2, 2).is_err());
}

#[test]
fn a_subset_takes_only_its_samples() {
    let source = Source::indices(vec![7, 3, 9], 10).unwrap();
    let partition = Partition::new(0, 1, 2, Tail::Short).unwrap();
    let sequential = plan_of(source, OrderSpec::Sequential, partition).unwrap().epoch(0, 0).unwrap();
    let samples: Vec<u64> = (0..3).map(|position| sequential.sample_at(position).0).collect();
    assert_eq!(samples, [7, 3, 9]);
}

#[test]
fn weights_are_shares() {
    let source = Source::weighted(vec![1.0, 0.0, 3.0], 3, 40_000).unwrap();
    let partition = Partition::new(0, 1, 100, Tail::Short).unwrap();
    let epoch = plan_of(source, OrderSpec::Global, partition).unwrap().epoch(0, 0).unwrap();
    let mut hits = [0_u32; 3];
    (0..40_000).for_each(|position| hits[usize::try_from(epoch.sample_at(position).0).unwrap()] += 1);
    // Binomial(40 000, 1/4): spread 87.
    assert!(hits[1] == 0 && hits[0].abs_diff(10_000) < 350, "{hits:?}");
}
