//! Positions that are cut from an order, so that all others move up and keep their relative order.

use std::sync::Arc;

/// Cut positions of one order.
#[derive(Debug, Clone)]
pub(super) struct Cuts {
    /// For each cut in order of positions, how many positions before it stay. Never falls.
    kept_before: Arc<[u64]>,
}

impl Cuts {
    /// Cuts `positions`, in any order, each once.
    pub(super) fn new(mut positions: Vec<u64>) -> Self {
        close_up(&mut positions);
        Self { kept_before: positions.into() }
    }

    /// The position in the whole order of what is at `position` once the cuts are out.
    pub(super) fn restore(&self, position: u64) -> u64 {
        restore(&self.kept_before, position)
    }

    /// Where the whole order's `position` comes to be once the cuts are out, or would, where it is cut itself.
    pub(super) fn closed(&self, position: u64) -> u64 {
        let mut before = 0;
        let mut after = self.kept_before.len();
        while before < after {
            let middle = before.midpoint(after);
            if self.kept_before[middle] + (middle as u64) < position { before = middle + 1 } else { after = middle }
        }
        position - before as u64
    }
}

/// Turns cut positions into counts of what stays before each.
pub(super) fn close_up(positions: &mut [u64]) {
    positions.sort_unstable();
    debug_assert!(positions.windows(2).all(|pair| pair[0] < pair[1]), "a position is cut twice");
    for (cuts, position) in (0..).zip(positions) {
        *position -= cuts;
    }
}

/// [`Cuts::restore`] over counts that [`close_up`] made.
pub(super) fn restore(kept_before: &[u64], position: u64) -> u64 {
    position + kept_before.partition_point(|&kept| kept <= position) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_stays_keeps_its_order(count in 1_u64..200, cut in proptest::collection::btree_set(0_u64..200, 0..60)) {
            let cut: BTreeSet<u64> = cut.into_iter().filter(|position| *position < count).collect();
            let cuts = Cuts::new(cut.iter().rev().copied().collect());
            let stays: Vec<u64> = (0..count).filter(|position| !cut.contains(position)).collect();
            let restored: Vec<u64> = (0..stays.len() as u64).map(|position| cuts.restore(position)).collect();
            prop_assert_eq!(&restored, &stays);
            for position in 0..=count {
                let before = stays.iter().filter(|other| **other < position).count() as u64;
                prop_assert_eq!(cuts.closed(position), before);
            }
        }
    }
}
