//! Quarantine: what is left out is cut from the order, and nothing else changes.

use std::collections::BTreeSet;

use super::*;

fn quarantined(samples: u64, order: OrderSpec, left_out: &[u64], partition: Partition) -> Result<Plan> {
    let firsts: Vec<u64> = (0..samples).step_by(17).collect();
    Plan::new(PlanOptions {
        source: Source::all(samples)?,
        order,
        seed: 9,
        partition,
        first_samples: &firsts,
        left_out,
    })
}

fn orders() -> impl Strategy<Value = OrderSpec> {
    prop_oneof![
        Just(OrderSpec::Global),
        Just(OrderSpec::Sequential),
        (1_u32..5).prop_map(|shards| OrderSpec::Block { block_shards: Some(shards) })
    ]
}

fn order_of(plan: &Plan, epoch: u64) -> Vec<u64> {
    let epoch = plan.epoch(epoch, 0).unwrap();
    (0..plan.epoch_positions()).map(|position| epoch.sample_at(position).0).collect()
}

proptest! {
    #[test]
    fn all_others_keep_their_relative_order(
        samples in 1_u64..200, order in orders(), cut in proptest::collection::vec(0_u64..220, 0..40), epoch in 0_u64..3
    ) {
        let one = Partition::new(0, 1, 1, Tail::Short).unwrap();
        let set: BTreeSet<u64> = cut.iter().copied().collect();
        let whole = order_of(&quarantined(samples, order, &[], one).unwrap(), epoch);
        let expected: Vec<u64> = whole.into_iter().filter(|sample| !set.contains(sample)).collect();
        match quarantined(samples, order, &cut, one) {
            Ok(plan) => prop_assert_eq!(order_of(&plan, epoch), expected),
            Err(error) => prop_assert!(expected.is_empty() && error.to_string().contains("no sample is left")),
        }
    }

    #[test]
    fn the_union_over_ranks_is_the_dataset_without_it(
        samples in 1_u64..200, order in orders(), cut in proptest::collection::btree_set(0_u64..200, 0..40),
        world_size in 1_u32..=8, batch_size in 1_u32..9, tail in tails()
    ) {
        let cut: Vec<u64> = cut.into_iter().collect();
        let plan_of = |rank| quarantined(samples, order, &cut, Partition::new(rank, world_size, batch_size, tail)?);
        let kept: BTreeSet<u64> = (0..samples).filter(|sample| !cut.contains(sample)).collect();
        let Ok(batches) = rows(plan_of, world_size, 1, 0) else {
            prop_assert!(kept.is_empty() || plan(kept.len() as u64, world_size, batch_size, tail)(0).is_err());
            return Ok(());
        };
        let valid = counts(batches.iter().flatten().filter(|row| row.valid));
        let all = counts(batches.iter().flatten());
        prop_assert!(valid.values().all(|count| *count == 1), "a sample twice");
        let found: BTreeSet<u64> = all.keys().copied().collect();
        let global_batch = u64::from(world_size * batch_size);
        if tail == Tail::Drop {
            prop_assert!(found.is_subset(&kept));
            prop_assert_eq!(valid.len() as u64, kept.len() as u64 / global_batch * global_batch);
        } else {
            prop_assert_eq!(found, kept);
        }
    }

    #[test]
    fn no_substitute_is_in_quarantine(samples in 2_u64..100, order in orders(), position in 0_u64..100, attempt in 1_u32..10) {
        let cut: Vec<u64> = (0..samples).filter(|sample| sample % 3 != 1).collect();
        let plan = quarantined(samples, order, &cut, Partition::new(0, 1, 1, Tail::Short).unwrap()).unwrap();
        let substitute = plan.epoch(0, 0).unwrap().substitute(position % plan.epoch_positions(), attempt);
        prop_assert_eq!(substitute.0 % 3, 1);
    }
}

#[test]
fn a_subset_loses_each_of_its_repeats() {
    let partition = Partition::new(0, 1, 1, Tail::Short).unwrap();
    let source = Source::indices(vec![5, 2, 5, 8, 0], 10).unwrap();
    let options = PlanOptions {
        source,
        order: OrderSpec::Sequential,
        seed: 0,
        partition,
        first_samples: &[0],
        left_out: &[5, 9],
    };
    assert_eq!(order_of(&Plan::new(options).unwrap(), 0), [2, 8, 0]);
}

#[test]
fn a_draw_of_a_sample_in_quarantine_is_drawn_again_and_no_other() {
    let partition = Partition::new(0, 1, 1, Tail::Short).unwrap();
    let draws = |left_out: &[u64]| {
        let source = Source::weighted(vec![1.0, 2.0, 1.0, 0.0], 4, 20_000).unwrap();
        let options =
            PlanOptions { source, order: OrderSpec::Global, seed: 1, partition, first_samples: &[0], left_out };
        Plan::new(options).map(|plan| order_of(&plan, 0))
    };
    let (whole, rest) = (draws(&[]).unwrap(), draws(&[1]).unwrap());
    let mut hits = [0_u32; 4];
    for (before, after) in whole.iter().zip(&rest) {
        assert!(before == after || *before == 1, "a good draw changed");
        hits[usize::try_from(*after).unwrap()] += 1;
    }
    // Binomial(20 000, 1/2): spread 71.
    assert!(hits[1] == 0 && hits[3] == 0 && hits[0].abs_diff(10_000) < 300, "{hits:?}");
    assert!(draws(&[0, 1, 2]).unwrap_err().to_string().contains("quarantine leaves"));
}
