//! Philox4x64-10, the counter-based generator of "Parallel Random Numbers: As Easy as 1, 2, 3" (Salmon et al., SC 2011).
//!
//! A block of four words is a pure function of key and counter, so the parameters of any operation on any sample can be
//! had in any order, by any thread. [`OperationStream`] fixes which part of the counter means what.

const MULTIPLIERS: [u64; 2] = [0xD2E7_470E_E14C_6C93, 0xCA5A_8263_9512_1157];
const WEYL: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B];
const ROUNDS: usize = 10;

/// Second word of the key of augmentations, so that other uses of the same seed get streams of their own.
const AUGMENT_KEY: u64 = u64::from_le_bytes(*b"augment\0");

/// The block of `counter` under `key`. NumPy's `Philox(counter=c, key=k)` starts with the block of `c + 1`.
pub fn philox4x64(mut counter: [u64; 4], mut key: [u64; 2]) -> [u64; 4] {
    let wide = |multiplier: u64, word: u64| {
        let product = u128::from(multiplier) * u128::from(word);
        ((product >> 64) as u64, product as u64)
    };
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let (high0, low0) = wide(MULTIPLIERS[0], counter[0]);
        let (high1, low1) = wide(MULTIPLIERS[1], counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
    }
    counter
}

/// What the parameters of a sample are drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// The job's seed.
    pub seed: u64,
    /// The epoch's number.
    pub epoch: u64,
    /// The sample's number in the dataset.
    pub sample: u64,
}

impl Draw {
    /// The stream of the operation at `index` in the list of transforms.
    pub fn operation(self, index: usize) -> OperationStream {
        self.operation_at(OperationPath::of(0, index))
    }

    /// The stream of the operation at `path`.
    pub fn operation_at(self, path: OperationPath) -> OperationStream {
        OperationStream { draw: self, operation: path.0 }
    }
}

/// Deepest list of transforms within a list.
pub const NESTING_MAX: u32 = 2;

/// Most transforms of a list.
pub const LIST_LENGTH_MAX: usize = (1 << 16) - 2;

/// Where an operation stands: its place in the list of transforms, in a list within that, and the view. 16 bits each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationPath(u64);

impl OperationPath {
    /// Place `index` of the list of view number `view`.
    pub fn of(view: u16, index: usize) -> Self {
        Self(u64::from(view) << 48 | index as u64)
    }

    /// Place `index` of the list that the operation here has, which is at `depth` (1 to [`NESTING_MAX`]).
    pub fn child(self, depth: u32, index: usize) -> Self {
        Self(self.0 | (index as u64 + 1) << (16 * depth))
    }
}

/// The random numbers of one operation on one sample in one epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OperationStream {
    draw: Draw,
    operation: u64,
}

impl OperationStream {
    /// The four words number `block`.
    pub fn block(self, block: u64) -> [u64; 4] {
        let Draw { seed, epoch, sample } = self.draw;
        philox4x64([block, self.operation, sample, epoch], [seed, AUGMENT_KEY])
    }
}

/// A word as a number in [0, 1): its upper 53 bits.
pub fn unit(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A word as a number in [low, high).
pub fn uniform(word: u64, low: f64, high: f64) -> f64 {
    low + unit(word) * (high - low)
}

/// A word as an integer in 0..count; `count` is small beside 2^64, so the bias is beyond notice.
pub fn below(word: u64, count: u32) -> u32 {
    ((u128::from(word) * u128::from(count)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.random.Philox(counter=…, key=…).random_raw(8)`, NumPy 2.4.6.
    fn check(counter: [u64; 4], key: [u64; 2], expected: [u64; 8]) {
        let mut counter = counter;
        for words in expected.chunks(4) {
            for word in &mut counter {
                *word = word.wrapping_add(1);
                if *word != 0 {
                    break;
                }
            }
            assert_eq!(philox4x64(counter, key), words);
        }
    }

    #[test]
    fn equals_numpy() {
        check(
            [0, 0, 0, 0],
            [0, 0],
            [
                0x02f4ba6408e4d89b,
                0x3dd62b0b9ca8c5b2,
                0x1c8667a55d902e79,
                0x907d7a052fd5b4dc,
                0x809bf322883987c3,
                0x471128b9e807f7dd,
                0xf250ba0dbec065b7,
                0xfc6ed66767a457bc,
            ],
        );
        check(
            [41, 7, 5, 3],
            [0x123456789abcdef, 0xfedcba9876543210],
            [
                0xbf0d6b37c2244c6c,
                0x57cb3530cfba8b67,
                0x0d65cec79646fdc3,
                0x5664cbe348c46cd8,
                0x2e37d2a1cd02b34e,
                0x8371018717997983,
                0x68825139f2198e11,
                0x933ad5bf29933910,
            ],
        );
        check(
            [u64::MAX, 0, 0, 0],
            [1, 2],
            [
                0x93baf02a9b6e1e64,
                0xc291f37088c2bdef,
                0xb1363d2ce37f4eae,
                0xf20b54a1cecf0a14,
                0x57bf6a7a1189e4da,
                0xe8a3ffc1f36ae07e,
                0xd0a3cbc2a98ae4cb,
                0x28d6c889bddcf2b8,
            ],
        );
    }

    #[test]
    fn streams_differ_in_every_part() {
        let base = Draw { seed: 1, epoch: 2, sample: 3 };
        let blocks = [
            base.operation(0).block(0),
            base.operation(0).block(1),
            base.operation(1).block(0),
            base.operation_at(OperationPath::of(1, 0)).block(0),
            base.operation_at(OperationPath::of(0, 0).child(1, 0)).block(0),
            base.operation_at(OperationPath::of(0, 0).child(1, 1)).block(0),
            base.operation_at(OperationPath::of(0, 0).child(1, 0).child(2, 0)).block(0),
            Draw { seed: 2, ..base }.operation(0).block(0),
            Draw { epoch: 3, ..base }.operation(0).block(0),
            Draw { sample: 4, ..base }.operation(0).block(0),
        ];
        for (index, block) in blocks.iter().enumerate() {
            assert!(!blocks[..index].contains(block), "stream {index} repeats another");
        }
        assert_eq!(blocks[0], base.operation(0).block(0));
    }

    #[test]
    fn words_become_numbers_within_bounds() {
        assert_eq!(unit(0), 0.0);
        assert!(unit(u64::MAX) < 1.0);
        assert_eq!(below(u64::MAX, 7), 6);
        assert_eq!(below(0, 7), 0);
        assert_eq!(uniform(0, 0.25, 0.75), 0.25);
    }
}
