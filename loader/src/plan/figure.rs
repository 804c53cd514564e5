//! How well an order shuffles, in two figures.

use super::order::EpochOrder;

/// Samples that are looked at; all of them where there are no more.
const SAMPLES_MAX: u64 = 10_000;

/// What an order does to the dataset's own; both figures are shares of what a true shuffle does on average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShuffleFigure {
    /// How far samples move, against (n² - 1) / 3n.
    pub displacement: f64,
    /// How far samples that lie next to each other in the dataset come to be apart, against (n + 1) / 3. This is what
    /// a buffer that is too small, or a block that is, leaves low.
    pub separation: f64,
    /// Samples that were looked at, evenly over the dataset.
    pub sampled: u64,
}

impl ShuffleFigure {
    /// The figures of `order` over `count` places; `None` where there is nothing to shuffle.
    pub(super) fn of(order: &EpochOrder, count: u64) -> Option<Self> {
        if count < 2 {
            return None;
        }
        let sampled = count.min(SAMPLES_MAX);
        let (mut moved, mut apart, mut pairs) = (0_u128, 0_u128, 0_u64);
        for number in 0..sampled {
            let place = u64::try_from(u128::from(number) * u128::from(count) / u128::from(sampled)).expect("a place");
            let position = order.position(place);
            moved += u128::from(position.abs_diff(place));
            if place + 1 < count {
                apart += u128::from(position.abs_diff(order.position(place + 1)));
                pairs += 1;
            }
        }
        let n = count as f64;
        Some(Self {
            displacement: moved as f64 / sampled as f64 / ((n * n - 1.0) / (3.0 * n)),
            separation: apart as f64 / pairs.max(1) as f64 / ((n + 1.0) / 3.0),
            sampled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::block::{BlockOrder, Borders};
    use crate::plan::permutation::Permutation;
    use crate::plan::random::EpochRandom;

    fn blocks(shards: u64, shard_samples: u64, block_shards: u32) -> EpochOrder {
        let borders = Borders::new((0..shards).map(|shard| shard * shard_samples), shards * shard_samples);
        EpochOrder::Block(BlockOrder::new(borders, block_shards, EpochRandom { seed: 3, epoch: 1 }).into())
    }

    fn check(order: &EpochOrder, count: u64, displacement: std::ops::Range<f64>, separation: std::ops::Range<f64>) {
        let figure = ShuffleFigure::of(order, count).unwrap();
        assert!(displacement.contains(&figure.displacement) && separation.contains(&figure.separation), "{figure:?}");
        assert_eq!(figure.sampled, count.min(10_000));
    }

    #[test]
    fn figures_by_example() {
        check(&EpochOrder::Sequential, 10_000, 0.0..1e-9, 2e-4..4e-4);
        check(&EpochOrder::Global(Permutation::new(10_000, 7)), 10_000, 0.96..1.04, 0.96..1.04);
        check(&EpochOrder::Global(Permutation::new(1 << 40, 7)), 1 << 40, 0.96..1.04, 0.96..1.04);
        // Samples of a block lie within it: a tenth of the dataset, and pairs over its border elsewhere.
        check(&blocks(100, 100, 10), 10_000, 0.85..1.15, 0.09..0.12);
        check(&blocks(100, 100, 100), 10_000, 0.96..1.04, 0.96..1.04);
        check(&blocks(1, 5000, 1), 5000, 0.96..1.04, 0.96..1.04);
    }

    #[test]
    fn one_sample_has_no_figure() {
        assert_eq!(ShuffleFigure::of(&EpochOrder::Sequential, 1), None);
    }
}
