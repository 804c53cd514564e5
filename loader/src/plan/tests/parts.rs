//! Mixes: exact shares in every window, whole passes, and one line over all epochs.

use super::*;
use crate::spec::MixStop;

fn mixed(sizes: &[(u64, f64)], length: Option<u64>, stop: MixStop) -> Result<Source> {
    let mut first_sample = 0;
    let parts: Vec<MixPart> = sizes
        .iter()
        .map(|&(sample_count, weight)| {
            let part = MixPart { first_sample, sample_count, weight };
            first_sample += sample_count;
            part
        })
        .collect();
    Source::mixed(&parts, length, stop)
}

fn mix_plan(sizes: &[(u64, f64)], length: Option<u64>, order: OrderSpec, left_out: &[u64]) -> Result<Plan> {
    Plan::new(PlanOptions {
        source: mixed(sizes, length, MixStop::First)?,
        order,
        seed: 3,
        partition: Partition::new(0, 1, 1, Tail::Short)?,
        first_samples: &[0],
        left_out,
    })
}

fn part_of(sizes: &[(u64, f64)], sample: u64) -> usize {
    let mut first = 0;
    sizes
        .iter()
        .position(|(count, _)| {
            first += count;
            sample < first
        })
        .expect("a sample of the mix")
}

fn samples(plan: &Plan, epochs: std::ops::Range<u64>) -> Vec<u64> {
    epochs
        .flat_map(|epoch| {
            let epoch = plan.epoch(epoch, 0).unwrap();
            (0..plan.epoch_positions()).map(|position| epoch.sample_at(position).0).collect::<Vec<_>>()
        })
        .collect()
}

fn sizes() -> impl Strategy<Value = Vec<(u64, f64)>> {
    proptest::collection::vec((1_u64..80, 0.02_f64..10.0), 1..7)
}

proptest! {
    #[test]
    fn every_window_has_the_shares(sizes in sizes(), length in 1_u64..2000, from in 0_u64..2000, order in 0_usize..2) {
        let order = [OrderSpec::Global, OrderSpec::Sequential][order];
        let plan = mix_plan(&sizes, Some(length), order, &[]).unwrap();
        let all = samples(&plan, 0..1);
        let from = usize::try_from(from % length).unwrap();
        let total: f64 = sizes.iter().map(|(_, weight)| weight).sum();
        for to in from..all.len() {
            let window = &all[from..to];
            for (part, (_, weight)) in sizes.iter().enumerate() {
                let found = window.iter().filter(|sample| part_of(&sizes, **sample) == part).count() as f64;
                let share = weight / total;
                let expected = window.len() as f64 * share;
                // Whole strata are exact but for the tree's depth (3 here); a torn one at each end has at most all of
                // the part's positions of a stratum, or none.
                let torn = 2.0 * (64.0 * share + 4.0).min(64.0 * (1.0 - share) + 4.0);
                prop_assert!((found - expected).abs() <= 4.0 + torn, "part {part}: {found} of {expected}");
            }
        }
    }

    #[test]
    fn a_part_is_gone_through_whole_before_a_sample_comes_again(
        sizes in sizes(), length in 1_u64..500, order in 0_usize..2, cut in proptest::collection::btree_set(0_u64..300, 0..20)
    ) {
        let order = [OrderSpec::Global, OrderSpec::Sequential][order];
        let left_out: Vec<u64> = cut.into_iter().collect();
        let Ok(plan) = mix_plan(&sizes, Some(length), order, &left_out) else {
            // A part that is all in quarantine.
            return Ok(());
        };
        let epochs = if order == OrderSpec::Sequential { 0..1 } else { 0..4 };
        let mut first = 0;
        let all = samples(&plan, epochs);
        for (count, _) in &sizes {
            let own = first..first + count;
            let kept: std::collections::BTreeSet<u64> = own.clone().filter(|sample| !left_out.contains(sample)).collect();
            let taken: Vec<u64> = all.iter().copied().filter(|sample| own.contains(sample)).collect();
            for pass in taken.chunks(kept.len()) {
                let distinct: std::collections::BTreeSet<u64> = pass.iter().copied().collect();
                prop_assert_eq!(distinct.len(), pass.len(), "a sample again before the pass was over");
                prop_assert!(distinct.is_subset(&kept), "a sample in quarantine");
                prop_assert!(pass.len() < kept.len() || distinct == kept);
            }
            first += count;
        }
    }

    #[test]
    fn quarantine_changes_no_part_of_the_pattern_and_no_relative_order(
        sizes in sizes(), cut in proptest::collection::btree_set(0_u64..300, 1..20)
    ) {
        let left_out: Vec<u64> = cut.into_iter().collect();
        let Ok(with) = mix_plan(&sizes, Some(600), OrderSpec::Global, &left_out) else { return Ok(()) };
        let without = mix_plan(&sizes, Some(600), OrderSpec::Global, &[]).unwrap();
        let (with, without) = (samples(&with, 0..2), samples(&without, 0..2));
        let parts = |samples: &[u64]| samples.iter().map(|sample| part_of(&sizes, *sample)).collect::<Vec<_>>();
        prop_assert_eq!(parts(&with), parts(&without));
        for part in 0..sizes.len() {
            let of_part = |samples: &[u64]| -> Vec<u64> {
                samples.iter().copied().filter(|sample| part_of(&sizes, *sample) == part).collect()
            };
            let expected: Vec<u64> = of_part(&without).into_iter().filter(|sample| !left_out.contains(sample)).collect();
            let found = of_part(&with);
            prop_assert_eq!(&found[..expected.len()], &expected[..]);
        }
    }

    #[test]
    fn ranks_tails_and_resume_are_those_of_any_order(
        sizes in sizes(), length in 8_u64..300, world_size in 1_u32..=8, start in 0_u64..300, tail in tails()
    ) {
        let plan_of = |world_size: u32, tail| {
            let sizes = sizes.clone();
            move |rank| {
                plan_of(mixed(&sizes, Some(length), MixStop::First)?, OrderSpec::Global, Partition::new(rank, world_size, 1, tail)?)
            }
        };
        let start = start % length;
        let one = plan_of(1, Tail::Short)(0).unwrap().epoch(2, 0).unwrap();
        let expected: Vec<u64> = (start..length).map(|position| one.sample_at(position).0).collect();
        let Ok(batches) = rows(plan_of(world_size, tail), world_size, 2, start) else { return Ok(()) };
        let found: Vec<u64> = batches.iter().flatten().filter(|row| row.valid).map(|row| row.sample.0).collect();
        prop_assert_eq!(&found[..], &expected[..found.len()]);
        prop_assert!(tail == Tail::Drop || found.len() == expected.len());
    }
}

fn check_length(sizes: &[(u64, f64)], stop: MixStop, expected: u64) {
    let partition = Partition::new(0, 1, 1, Tail::Short).unwrap();
    let plan = plan_of(mixed(sizes, None, stop).unwrap(), OrderSpec::Global, partition).unwrap();
    assert_eq!(plan.epoch_positions(), expected);
}

#[test]
fn an_epoch_ends_with_its_first_part_or_with_all() {
    check_length(&[(700, 0.7), (900, 0.3)], MixStop::First, 1000);
    check_length(&[(700, 0.7), (900, 0.3)], MixStop::All, 3000);
    check_length(&[(700, 7.0), (300, 3.0)], MixStop::First, 1000);
    check_length(&[(700, 7.0), (300, 3.0)], MixStop::All, 1000);
    check_length(&[(1, 99.0), (1000, 1.0)], MixStop::First, 1);
    check_length(&[(5, 1.0)], MixStop::All, 5);
}

#[test]
fn an_epoch_that_ends_with_its_first_part_repeats_nothing() {
    let plan = mix_plan(&[(700, 0.7), (900, 0.3)], None, OrderSpec::Global, &[]).unwrap();
    let taken = samples(&plan, 0..1);
    let distinct: std::collections::BTreeSet<&u64> = taken.iter().collect();
    assert_eq!((taken.len(), distinct.len()), (1000, 1000));
    // Three epochs take each sample of the second part once.
    let second: Vec<u64> = samples(&plan, 0..3).into_iter().filter(|sample| *sample >= 700).collect();
    assert_eq!(second.len(), 900);
    assert_eq!(second.into_iter().collect::<std::collections::BTreeSet<_>>().len(), 900);
}

#[test]
fn epochs_have_the_shares_exactly() {
    let sizes = [(1000, 0.7), (1000, 0.2), (1000, 0.1)];
    let plan = mix_plan(&sizes, Some(130), OrderSpec::Global, &[]).unwrap();
    for epoch in 0..20 {
        let mut found = [0; 3];
        samples(&plan, epoch..epoch + 1).into_iter().for_each(|sample| found[part_of(&sizes, sample)] += 1);
        assert_eq!(found, [91, 26, 13], "epoch {epoch}");
    }
}

#[test]
fn no_rank_falls_into_step_with_the_parts() {
    // Halves, and every second position: without a shuffle one of them would see one part only.
    let sizes = [(10_000, 1.0), (10_000, 1.0)];
    let plan = mix_plan(&sizes, Some(10_000), OrderSpec::Global, &[]).unwrap();
    let own = samples(&plan, 0..1).into_iter().step_by(2).filter(|sample| *sample < 10_000).count();
    // Hypergeometric in each stratum: spread 2 of 32, so 25 over 156 strata.
    assert!(own.abs_diff(2500) < 120, "{own} of 5000");
}

#[test]
fn refusals_of_mixes_name_the_part() {
    let block = OrderSpec::Block { block_shards: None };
    for (result, words) in [
        (mix_plan(&[(5, 1.0), (0, 1.0)], None, OrderSpec::Global, &[]), "part 1 of the mix has no samples"),
        (mix_plan(&[(2, 1.0), (5, 1.0)], None, OrderSpec::Global, &[0, 1]), "part 0 of the mix has every sample in"),
        (mix_plan(&[(2, 1.0), (5, 1.0)], None, block, &[]), "not a mix"),
        (mix_plan(&[(100, 1.0)], Some(1 << 40), OrderSpec::Global, &[4]), "over the limit"),
        (mix_plan(&[(5, f64::NAN)], None, OrderSpec::Global, &[]), "finite"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let plan = mix_plan(&[(100, 1.0)], None, OrderSpec::Global, &[]).unwrap();
    assert!(plan.epoch(u64::MAX / 10, 0).unwrap_err().to_string().contains("out of range"));
}
