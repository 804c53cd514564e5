//! The order of keys. Pure.

use std::cmp::Ordering;

/// Compares texts with the numbers in them by value: `a2` before `a10`. Texts that differ only in leading zeros are told
/// apart at last by their bytes.
pub(super) fn natural(left: &[u8], right: &[u8]) -> Ordering {
    let (mut a, mut b) = (left, right);
    loop {
        match (a.first(), b.first()) {
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (number_a, rest_a) = split_number(a);
                let (number_b, rest_b) = split_number(b);
                let by_value = number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b));
                if by_value != Ordering::Equal {
                    return by_value;
                }
                (a, b) = (rest_a, rest_b);
            }
            (Some(x), Some(y)) if x == y => (a, b) = (&a[1..], &b[1..]),
            (Some(x), Some(y)) => return x.cmp(y),
            (None, None) => return left.cmp(right),
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
        }
    }
}

/// The digits at the start, without leading zeros, and the rest.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    let zeros = number.iter().take_while(|&&byte| byte == b'0').count();
    (&number[zeros..], rest)
}

/// Whether the keys are plain numbers, which their writer counted up.
pub(super) fn is_number(key: &[u8]) -> bool {
    !key.is_empty() && key.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_by_value() {
        let check = |sorted: &[&str]| {
            let mut found = sorted.to_vec();
            found.reverse();
            found.sort_by(|a, b| natural(a.as_bytes(), b.as_bytes()));
            assert_eq!(found, sorted);
        };
        check(&["0", "1", "2", "10", "11"]);
        check(&["0", "00", "01", "1", "2", "10"]);
        check(&["", "a", "a1b", "a1b0", "a2", "a10", "b"]);
        check(&["12345678901234567890122", "12345678901234567890123"]);
    }
}
