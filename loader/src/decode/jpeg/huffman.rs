//! Huffman codes (ITU-T T.81, annexes C and F).

/// The codes of a table, as a file defines them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codes {
    /// How many codes there are of 1, 2, … 16 bits.
    lengths: [u8; 16],
    /// Their meanings, shortest first.
    symbols: [u8; 256],
}

impl Codes {
    /// Codes of these lengths, if there can be such: no code is all ones, and there are at most 256.
    pub fn new(lengths: [u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut padded = [0; 256];
        padded.get_mut(..symbols.len())?.copy_from_slice(symbols);
        let mut next = 0u32;
        let mut left = symbols.len();
        for (bits, &count) in (1..).zip(&lengths) {
            next += u32::from(count);
            left = left.checked_sub(usize::from(count))?;
            if next >= 1 << bits && count > 0 {
                return None;
            }
            next <<= 1;
        }
        (left == 0).then_some(Self { lengths, symbols: padded })
    }

    /// How many codes there are.
    fn count(&self) -> usize {
        self.lengths.iter().map(|&count| usize::from(count)).sum()
    }

    /// Whether every symbol is a count of bits, as it must be for DC differences.
    pub fn are_sizes(&self) -> bool {
        self.symbols[..self.count()].iter().all(|&size| size <= 15)
    }
}
