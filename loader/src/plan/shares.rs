//! Shares of an endless line of positions, as exact as whole numbers allow, without a table.
//!
//! The parts are the leaves of a balanced tree. Each inner node gives its left side a fixed share of what it gets
//! itself: of the first n, round(n * share). Rounded so, the left count never falls and grows by at most one a
//! position, as does what remains for the right, so every position has one part. A node is off by at most one half
//! from its share of what it got, hence a part by at most half the tree's depth from its share of the line.

use std::ops::Range;

/// Divides positions among parts by weight.
#[derive(Debug, Clone)]
pub(super) struct Shares {
    /// For each inner node, named by the first part of its right side, the left side's share times 2^64. Entry 0 is
    /// not used.
    left: Vec<u64>,
}

impl Shares {
    /// Shares by `weights`, each positive and finite.
    pub(super) fn new(weights: &[f64]) -> Self {
        let mut shares = Self { left: vec![0; weights.len()] };
        shares.fill(weights, 0..weights.len());
        shares
    }

    fn fill(&mut self, weights: &[f64], parts: Range<usize>) -> f64 {
        if parts.len() == 1 {
            return weights[parts.start];
        }
        let middle = parts.start.midpoint(parts.end);
        let left = self.fill(weights, parts.start..middle);
        let right = self.fill(weights, middle..parts.end);
        // The cast saturates: a share next to 1 becomes the greatest below it.
        self.left[middle] = (left / (left + right) * 2_f64.powi(64)) as u64;
        left + right
    }

    /// How many of the first `count` positions belong to `part`.
    pub(super) fn count(&self, part: usize, mut count: u64) -> u64 {
        let mut parts = 0..self.left.len();
        while parts.len() > 1 {
            let middle = parts.start.midpoint(parts.end);
            let left = self.left_of(middle, count);
            if part < middle {
                (parts.end, count) = (middle, left);
            } else {
                (parts.start, count) = (middle, count - left);
            }
        }
        count
    }

    /// Calls `visit` with each part that has some of `positions`, and which of its own they are.
    pub(super) fn visit(&self, positions: Range<u64>, visit: &mut impl FnMut(usize, Range<u64>)) {
        self.visit_node(0..self.left.len(), positions, visit);
    }

    fn visit_node(&self, parts: Range<usize>, counts: Range<u64>, visit: &mut impl FnMut(usize, Range<u64>)) {
        if counts.is_empty() {
            return;
        }
        if parts.len() == 1 {
            return visit(parts.start, counts);
        }
        let middle = parts.start.midpoint(parts.end);
        let left = self.left_of(middle, counts.start)..self.left_of(middle, counts.end);
        let right = counts.start - left.start..counts.end - left.end;
        self.visit_node(parts.start..middle, left, visit);
        self.visit_node(middle..parts.end, right, visit);
    }

    fn left_of(&self, middle: usize, count: u64) -> u64 {
        let product = u128::from(count) * u128::from(self.left[middle]);
        u64::try_from((product + (1 << 63)) >> 64).expect("at most the count")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_add_up_grow_and_keep_to_the_shares(
            weights in proptest::collection::vec(0.001_f64..1000.0, 1..40), from in 0_u64..1 << 50, len in 0_u64..200
        ) {
            let shares = Shares::new(&weights);
            let total: f64 = weights.iter().sum();
            let depth = f64::from(weights.len().next_power_of_two().ilog2());
            let at = |count| (0..weights.len()).map(|part| shares.count(part, count)).collect::<Vec<_>>();
            let (before, after) = (at(from), at(from + len));
            prop_assert_eq!(before.iter().sum::<u64>(), from);
            for (part, weight) in weights.iter().enumerate() {
                prop_assert!(before[part] <= after[part], "part {part} loses positions");
                // Sums of f64 are off by some 2^-52 of 2^50 positions.
                let found = (after[part] - before[part]) as f64;
                prop_assert!((found - len as f64 * weight / total).abs() <= depth + 1.0, "part {part} got {found} of {len}");
            }
            let mut visited = vec![0..0; weights.len()];
            shares.visit(from..from + len, &mut |part, counts| visited[part] = counts);
            for (part, counts) in visited.into_iter().enumerate() {
                prop_assert!(counts.is_empty() && before[part] == after[part] || counts == (before[part]..after[part]));
            }
        }
    }

    #[test]
    fn two_parts_are_never_off_by_more_than_one_half() {
        let shares = Shares::new(&[0.7, 0.3]);
        for count in 0..10_000 {
            let off = (shares.count(0, count) as f64 - count as f64 * 0.7).abs();
            assert!(off <= 0.5 + 1e-9, "{off} after {count}");
        }
    }
}
