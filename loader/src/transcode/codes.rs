//! Huffman codes that fit a file: the shortest possible ones of at most 16 bits.

use crate::sys::transcode::{CodeTable, CodeTables, Counts};

/// Most bits of a code in a JPEG.
const BITS_MAX: usize = 16;

/// The tables for symbols that occur so often.
pub(super) fn fitted(counts: &Counts) -> CodeTables {
    CodeTables { dc: [&counts.dc[0], &counts.dc[1]].map(table), ac: [&counts.ac[0], &counts.ac[1]].map(table) }
}

fn table(counts: &[u32; 256]) -> CodeTable {
    // The code of ones alone is none in a JPEG. It goes to a place of its own that never occurs, the first of all here,
    // which so gets a code as long as any.
    let mut leaves = vec![(0, None)];
    let used = (0_u8..=255).zip(counts).filter(|&(_, &count)| count > 0);
    leaves.extend(used.map(|(symbol, &count)| (u64::from(count), Some(symbol))));
    leaves.sort_by_key(|&(count, _)| count);
    let lengths = lengths(&leaves.iter().map(|&(count, _)| count).collect::<Vec<_>>());

    let mut coded: Vec<(usize, u8)> =
        leaves.iter().zip(lengths).filter_map(|(&(_, symbol), length)| Some((length, symbol?))).collect();
    coded.sort_unstable();
    let mut table = CodeTable { counts: [0; BITS_MAX], symbols: [0; 256] };
    for (place, (length, symbol)) in coded.into_iter().enumerate() {
        table.counts[length - 1] += 1;
        table.symbols[place] = symbol;
    }
    table
}

/// The lengths of the codes of leaves that occur `counts` times, in rising order. The algorithm is package-merge: L. Larmore,
/// D. Hirschberg, "A fast algorithm for optimal length-limited Huffman codes", J. ACM 37 (1990).
fn lengths(counts: &[u64]) -> Vec<usize> {
    // Of each length's list, the weights, and whether they are those of leaves or of packages of two of the list before.
    let mut lists: Vec<Vec<(u64, bool)>> = Vec::with_capacity(BITS_MAX);
    let leaves: Vec<(u64, bool)> = counts.iter().map(|&count| (count, true)).collect();
    for _ in 0..BITS_MAX {
        let packages = lists.last().map_or(&[][..], |list| list.as_slice()).chunks_exact(2);
        let mut list: Vec<(u64, bool)> = packages.map(|pair| (pair[0].0 + pair[1].0, false)).collect();
        list.extend_from_slice(&leaves);
        // Stable, and fast as it is made of two runs that are sorted. Packages come first among equals.
        list.sort_by_key(|&(count, _)| count);
        lists.push(list);
    }
    let mut lengths = vec![0; counts.len()];
    let mut taken = 2 * counts.len() - 2;
    for list in lists.iter().rev() {
        let leaves = list[..taken].iter().filter(|&&(_, is_leaf)| is_leaf).count();
        lengths[..leaves].iter_mut().for_each(|length| *length += 1);
        taken = 2 * (taken - leaves);
    }
    lengths
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bits that all symbols take.
    fn bits(counts: &[u32; 256], table: &CodeTable) -> u64 {
        let lengths = (1_u64..).zip(table.counts).flat_map(|(length, count)| std::iter::repeat_n(length, count.into()));
        lengths.zip(table.symbols).map(|(length, symbol)| length * u64::from(counts[usize::from(symbol)])).sum()
    }

    fn counts(of: impl IntoIterator<Item = (u8, u32)>) -> [u32; 256] {
        let mut counts = [0; 256];
        of.into_iter().for_each(|(symbol, count)| counts[usize::from(symbol)] = count);
        counts
    }

    #[test]
    fn codes_are_the_shortest() {
        let check = |of: &[(u8, u32)], expected: &[u8], symbols: &[u8]| {
            let table = table(&counts(of.iter().copied()));
            assert_eq!(table.counts[..expected.len()], *expected, "{of:?}");
            assert!(table.counts[expected.len()..].iter().all(|&count| count == 0), "{of:?}");
            assert_eq!(table.symbols[..symbols.len()], *symbols, "{of:?}");
        };
        check(&[], &[], &[]);
        check(&[(7, 9)], &[1], &[7]);
        check(&[(7, 1), (3, 1)], &[1, 1], &[7, 3]);
        check(&[(1, 100), (2, 50), (3, 25), (4, 12)], &[1, 1, 1, 1], &[1, 2, 3, 4]);
    }

    #[test]
    fn no_code_is_longer_than_16_bits() {
        let fibonacci = |place: u8| (0..place).fold((1_u32, 1_u32), |(low, high), _| (high, low + high)).0;
        let steep = counts((0..40).map(|place| (place, fibonacci(place))));
        let table = table(&steep);
        assert_eq!(table.counts.iter().map(|&count| u32::from(count)).sum::<u32>(), 40);
        assert!(table.counts[15] > 1);
    }

    proptest! {
        #[test]
        fn any_counts_give_codes(of in prop::collection::btree_map(any::<u8>(), 1..100_000_u32, 1..=256)) {
            let counts = counts(of.iter().map(|(&symbol, &count)| (symbol, count)));
            let table = table(&counts);
            let coded: usize = table.counts.iter().map(|&count| usize::from(count)).sum();
            let mut symbols = table.symbols[..coded].to_vec();
            symbols.sort_unstable();
            prop_assert_eq!(symbols, of.keys().copied().collect::<Vec<_>>());
            // Kraft's sum: with the code of ones alone, at the longest length, they fill all places.
            let sum: u64 = (1..).zip(table.counts).map(|(length, count)| u64::from(count) << (16 - length)).sum();
            let longest = table.counts.iter().rposition(|&count| count > 0).expect("a code") + 1;
            prop_assert_eq!(sum + (1 << (16 - longest)), 1 << 16);
            // No code is better than entropy, nor worse by more than a bit and the place that is lost.
            let total: u64 = of.values().map(|&count| u64::from(count)).sum();
            let entropy: f64 = of
                .values()
                .map(|&count| f64::from(count) * (total as f64 / f64::from(count)).log2())
                .sum();
            let found = bits(&counts, &table) as f64;
            prop_assert!(found + 1e-6 >= entropy && found <= entropy + 1.1 * total as f64, "{found} {entropy}");
        }
    }
}
