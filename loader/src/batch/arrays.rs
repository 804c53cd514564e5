//! An array with its own shape, as a value in a slot: its shape in a header of one cache line, then its elements in
//! C order.
//!
//! ```text
//!  0  u32        number of dimensions
//!  4  u32 × 8    sides, 0 where there is none
//! 36  zeros
//! 64  elements
//! ```

use super::layout::{DIMENSIONS_MAX, Dtype};
use crate::error::{Error, Result};

/// Bytes before the elements.
pub const ARRAY_HEADER_BYTES: usize = 64;

const _: () = assert!(4 + 4 * DIMENSIONS_MAX <= ARRAY_HEADER_BYTES);

/// Sides of an array, without an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sides {
    count: usize,
    sides: [u32; DIMENSIONS_MAX],
}

impl Sides {
    /// `None` for more than [`DIMENSIONS_MAX`].
    pub fn new(sides: &[u32]) -> Option<Self> {
        let mut all = [0; DIMENSIONS_MAX];
        all.get_mut(..sides.len())?.copy_from_slice(sides);
        Some(Self { count: sides.len(), sides: all })
    }

    /// The sides.
    pub fn as_slice(&self) -> &[u32] {
        &self.sides[..self.count]
    }

    /// Bytes of that many elements of `dtype`; `None` on overflow.
    pub fn bytes(&self, dtype: Dtype) -> Option<u64> {
        let mut bytes = dtype.bytes();
        for &side in self.as_slice() {
            bytes = bytes.checked_mul(u64::from(side))?;
        }
        Some(bytes)
    }

    /// As a value begins.
    pub fn to_header(&self) -> [u8; ARRAY_HEADER_BYTES] {
        let mut header = [0; ARRAY_HEADER_BYTES];
        let words = [self.count as u32].into_iter().chain(self.sides);
        for (place, word) in header.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        header
    }

    /// Reads the header of a value of `value_bytes` in all, and refuses one that does not describe them.
    pub fn from_header(header: &[u8; ARRAY_HEADER_BYTES], value_bytes: usize, dtype: Dtype) -> Result<Self> {
        let word = |index: usize| u32::from_ne_bytes(header[index * 4..][..4].try_into().expect("4 bytes"));
        let sides: [u32; DIMENSIONS_MAX] = std::array::from_fn(|index| word(index + 1));
        let count = word(0) as usize;
        let found = sides.get(..count).and_then(Self::new);
        let described = found.and_then(|sides| sides.bytes(dtype)?.checked_add(ARRAY_HEADER_BYTES as u64));
        match found {
            Some(sides) if described == Some(value_bytes as u64) => Ok(sides),
            _ => Err(Error::protocol(format!(
                "an array of {count} dimensions {sides:?} of {} in {value_bytes} bytes of shared memory",
                dtype.name()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(count: u32, sides: &[u32], value_bytes: usize, expected: Option<&[u32]>) {
        let mut header = [0; ARRAY_HEADER_BYTES];
        header[..4].copy_from_slice(&count.to_ne_bytes());
        for (index, side) in sides.iter().enumerate() {
            header[4 + index * 4..][..4].copy_from_slice(&side.to_ne_bytes());
        }
        let found = Sides::from_header(&header, value_bytes, Dtype::Float32).ok();
        assert_eq!(found.as_ref().map(Sides::as_slice), expected, "{count} {sides:?} in {value_bytes}");
    }

    #[test]
    fn headers_that_do_not_describe_their_value_are_refused() {
        check(0, &[], 68, Some(&[]));
        check(2, &[3, 5], 64 + 60, Some(&[3, 5]));
        check(1, &[0], 64, Some(&[0]));
        check(2, &[3, 5], 64 + 59, None);
        check(8, &[1; 8], 68, Some(&[1; 8]));
        check(9, &[1; 8], 68, None);
        check(u32::MAX, &[], 68, None);
        check(8, &[u32::MAX; 8], 64, None);
        check(1, &[15], 63, None);
    }

    proptest! {
        #[test]
        fn sides_survive(sides in prop::collection::vec(0_u32..9, 0..=8)) {
            let given = Sides::new(&sides).expect("few");
            let bytes = given.bytes(Dtype::Int16).expect("small") as usize;
            let found = Sides::from_header(&given.to_header(), ARRAY_HEADER_BYTES + bytes, Dtype::Int16);
            prop_assert_eq!(found.expect("as made"), given);
        }
    }
}
