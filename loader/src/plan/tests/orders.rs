//! Block order keeps every promise of the global one, and the promise of its blocks.

use super::*;

/// Shards of some sizes, empty ones among them, at least one sample in all.
fn shards() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(prop_oneof![2 => Just(0_u64), 5 => 1_u64..60], 1..15)
        .prop_filter("no samples", |sizes| sizes.iter().sum::<u64>() > 0)
}

fn firsts(sizes: &[u64]) -> Vec<u64> {
    (0..sizes.len()).map(|shard| sizes[..shard].iter().sum()).collect()
}

fn block_plan(
    sizes: &[u64],
    block_shards: Option<u32>,
    world_size: u32,
    batch_size: u32,
    tail: Tail,
) -> impl Fn(u32) -> Result<Plan> {
    move |rank| {
        Plan::new(PlanOptions {
            source: Source::all(sizes.iter().sum())?,
            order: OrderSpec::Block { block_shards },
            seed: 7,
            partition: Partition::new(rank, world_size, batch_size, tail)?,
            first_samples: &firsts(sizes),
            left_out: &[],
        })
    }
}

proptest! {
    #[test]
    fn the_union_over_ranks_is_the_dataset(
        sizes in shards(), block_shards in 1_u32..6, world_size in 1_u32..=8, batch_size in 1_u32..20, tail in tails(),
        epoch in 0_u64..3
    ) {
        let samples: u64 = sizes.iter().sum();
        let plan_of = block_plan(&sizes, Some(block_shards), world_size, batch_size, tail);
        let Ok(batches) = rows(&plan_of, world_size, epoch, 0) else {
            // Refusals are those of the partition, and have their test.
            prop_assert!(plan(samples, world_size, batch_size, tail)(0).is_err());
            return Ok(());
        };
        let valid = counts(batches.iter().flatten().filter(|row| row.valid));
        prop_assert!(valid.values().all(|count| *count == 1), "a sample twice");
        let global_batch = u64::from(world_size * batch_size);
        prop_assert_eq!(valid.len() as u64, if tail == Tail::Drop { samples / global_batch * global_batch } else { samples });
        prop_assert!(valid.keys().all(|sample| *sample < samples));
    }

    #[test]
    fn a_resumed_epoch_is_the_rest_of_the_order(sizes in shards(), start in 0_u64..900, world_size in 1_u32..=8) {
        let samples: u64 = sizes.iter().sum();
        let start = start % (samples + 1);
        let whole = rows(block_plan(&sizes, Some(3), 1, 1, Tail::Short), 1, 5, 0).unwrap();
        let expected: Vec<u64> =
            whole.iter().flatten().skip(usize::try_from(start).unwrap()).map(|row| row.sample.0).collect();
        let resumed = rows(block_plan(&sizes, Some(3), world_size, 1, Tail::Pad), world_size, 5, start).unwrap();
        let found: Vec<u64> = resumed.iter().flatten().filter(|row| row.valid).map(|row| row.sample.0).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn samples_lie_in_the_shards_of_their_stretch(
        sizes in shards(), block_shards in proptest::option::of(1_u32..6), epoch in 0_u64..3
    ) {
        let plan = block_plan(&sizes, block_shards, 1, 1, Tail::Short)(0).unwrap();
        let firsts = firsts(&sizes);
        let epoch = plan.epoch(epoch, 0).unwrap();
        let mut position = 0;
        let mut used = Vec::new();
        while position < plan.epoch_positions() {
            let stretch = epoch.shards_at(position).unwrap();
            prop_assert!(stretch.end_position > position);
            prop_assert!(stretch.shards.len() as u64 <= u64::from(plan.block_shards().unwrap()));
            for position in position..stretch.end_position {
                let sample = epoch.sample_at(position).0;
                let shard = firsts.partition_point(|first| *first <= sample) - 1;
                prop_assert!(stretch.shards.contains(&u32::try_from(shard).unwrap()));
                prop_assert_eq!(&epoch.shards_at(position).unwrap(), &stretch);
            }
            used.extend(stretch.shards);
            position = stretch.end_position;
        }
        used.sort_unstable();
        let filled: Vec<u32> =
            (0..).zip(&sizes).filter(|(_, size)| **size > 0).map(|(shard, _)| shard).collect();
        prop_assert_eq!(used, filled, "each shard is gone through in one stretch");
    }

    #[test]
    fn the_first_substitutes_come_from_the_shards_at_hand(
        sizes in shards(), block_shards in proptest::option::of(1_u32..6), position in 0_u64..900, attempt in 1_u32..=NEAR_ATTEMPTS,
        left_out in proptest::collection::vec(0_u64..900, 0..10)
    ) {
        let samples: u64 = sizes.iter().sum();
        let order = block_shards.map_or(OrderSpec::Sequential, |count| OrderSpec::Block { block_shards: Some(count) });
        let firsts = firsts(&sizes);
        let plan = Plan::new(PlanOptions {
            source: Source::all(samples).unwrap(),
            order,
            seed: 3,
            partition: Partition::new(0, 1, 1, Tail::Short).unwrap(),
            first_samples: &firsts,
            left_out: &left_out,
        });
        prop_assume!(plan.is_ok());
        let epoch = plan.unwrap().epoch(2, 0).unwrap();
        let position = position % epoch.job.positions;
        let stretch = epoch.shards_at(position).unwrap();
        let is_alone = (0..epoch.job.positions).filter(|&other| epoch.shards_at(other).unwrap() == stretch).count() == 1;
        let substitute = epoch.substitute_at_hand(position, attempt);
        prop_assert!(!left_out.contains(&substitute.0));
        let shard = u32::try_from(firsts.partition_point(|first| *first <= substitute.0) - 1).unwrap();
        prop_assert!(is_alone || stretch.shards.contains(&shard), "{} for position {position}", substitute.0);
    }
}

#[test]
fn where_all_samples_at_hand_are_bad_substitutes_come_from_elsewhere() {
    let epoch = block_plan(&[10; 50], Some(1), 1, 1, Tail::Short)(0).unwrap().epoch(0, 0).unwrap();
    let at_hand = epoch.shards_at(7).unwrap().shards;
    let shard = |attempt| u32::try_from(epoch.substitute_at_hand(7, attempt).0 / 10).unwrap();
    assert!((1..=NEAR_ATTEMPTS).all(|attempt| at_hand == [shard(attempt)]));
    assert!((NEAR_ATTEMPTS + 1..NEAR_ATTEMPTS + 9).any(|attempt| at_hand != [shard(attempt)]));
    // A shard with one sample has no other.
    let alone = block_plan(&[1; 50], Some(1), 1, 1, Tail::Short)(0).unwrap().epoch(0, 0).unwrap();
    assert!((1..9).any(|attempt| alone.substitute_at_hand(7, attempt) != alone.sample_at(7)));
}

#[test]
fn blocks_of_a_subset_take_its_samples_shard_by_shard() {
    let indices: Vec<u64> = vec![95, 3, 12, 13, 14, 55, 50, 99, 1];
    let plan = Plan::new(PlanOptions {
        source: Source::indices(indices.clone(), 100).unwrap(),
        order: OrderSpec::Block { block_shards: Some(1) },
        seed: 1,
        partition: Partition::new(0, 1, 1, Tail::Short).unwrap(),
        first_samples: &[0, 10, 20, 50, 60],
        left_out: &[],
    })
    .unwrap();
    let epoch = plan.epoch(0, 0).unwrap();
    let found: Vec<u64> = (0..9).map(|position| epoch.sample_at(position).0).collect();
    let mut shards: Vec<u64> =
        found.iter().map(|sample| if *sample < 50 { sample / 10 } else { *sample / 40 }).collect();
    shards.dedup();
    assert_eq!(shards.len(), 4, "{found:?}");
    assert_eq!(found.iter().copied().collect::<std::collections::BTreeSet<_>>(), indices.into_iter().collect());
}

#[test]
fn epochs_shuffle_shards_and_samples_anew() {
    let plan = block_plan(&[100; 10], Some(2), 1, 1, Tail::Short)(0).unwrap();
    let stretches = |epoch| plan.epoch(epoch, 0).unwrap().shards_at(0).unwrap().shards;
    let sample = |epoch| plan.epoch(epoch, 0).unwrap().sample_at(0);
    assert!((1..6).any(|epoch| stretches(epoch) != stretches(0)));
    assert!((1..6).any(|epoch| sample(epoch) != sample(0)));
    assert_eq!(stretches(4), stretches(4));
}

#[test]
fn the_notice_tells_the_figures() {
    let plan = block_plan(&[1000; 64], None, 1, 1, Tail::Short)(0).unwrap();
    let notices = plan.notices();
    assert!(notices.len() == 1 && notices[0].contains("17 of 64 shards") && notices[0].contains("17000 samples"));
    let figure = plan.shuffle_figure().unwrap();
    assert!(notices[0].contains(&format!("samples move {:.2}", figure.displacement)), "{notices:?}");
    assert!(figure.separation < 0.35, "{figure:?}");
    assert!(
        plan_of(Source::All(10), OrderSpec::Global, Partition::new(0, 1, 1, Tail::Pad).unwrap())
            .unwrap()
            .notices()
            .is_empty()
    );
}

#[test]
fn the_datasets_own_order_lies_shard_by_shard() {
    let partition = Partition::new(0, 1, 1, Tail::Short).unwrap();
    let plan = Plan::new(PlanOptions {
        source: Source::All(10),
        order: OrderSpec::Sequential,
        seed: 0,
        partition,
        first_samples: &[0, 4, 4],
        left_out: &[5],
    })
    .unwrap();
    let epoch = plan.epoch(3, 0).unwrap();
    let stretch = |position| epoch.shards_at(position).unwrap();
    assert_eq!(stretch(3), ShardStretch { shards: vec![0], end_position: 4 });
    assert_eq!(stretch(4), ShardStretch { shards: vec![2], end_position: 9 });
    assert_eq!(plan.block_shards(), Some(1));
}

#[test]
fn orders_that_do_not_go_with_their_source_are_refused() {
    let partition = Partition::new(0, 1, 1, Tail::Short).unwrap();
    let block = OrderSpec::Block { block_shards: None };
    for (source, order, words) in [
        (Source::weighted(vec![1.0], 1, 1).unwrap(), block, "leave order= out"),
        (Source::weighted(vec![1.0], 1, 1).unwrap(), OrderSpec::Sequential, "leave order= out"),
        (Source::All(5), OrderSpec::Block { block_shards: Some(0) }, "at least 1"),
    ] {
        let error = plan_of(source, order, partition).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn no_shards_lie_past_the_end() {
    for order in [OrderSpec::Sequential, OrderSpec::Block { block_shards: Some(2) }] {
        let sizes = [3, 0, 4, 5];
        let plan = Plan::new(PlanOptions {
            source: Source::all(12).unwrap(),
            order,
            seed: 7,
            partition: Partition::new(0, 1, 4, Tail::Short).unwrap(),
            first_samples: &firsts(&sizes),
            left_out: &[],
        })
        .expect("a plan");
        let epoch = plan.epoch(0, 0).expect("an epoch");
        let mut position = 0;
        let mut seen = Vec::new();
        while let Some(stretch) = epoch.shards_at(position) {
            assert!(stretch.end_position > position, "{order:?}");
            seen.extend(stretch.shards);
            position = stretch.end_position;
        }
        seen.sort_unstable();
        assert_eq!((position, seen), (12, vec![0, 2, 3]), "{order:?}");
        assert!(epoch.shards_at(u64::MAX).is_none());
    }
}
