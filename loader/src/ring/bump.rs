//! Handing out room by moving one word on: the arena of keys and the room for values. Each byte is given once.
//!
//! Generic over the word, so that the model checker runs this very code.

use std::sync::atomic::Ordering;

use super::state::Word;

/// Takes `len` bytes at a multiple of `align` (a power of two) below `limit`; `None`, and nothing is taken, when they
/// do not fit.
///
/// Relaxed: each thread gets bytes of its own, and the slot's publication, which orders what was stored there, is
/// ordered by the caller's own count of rows.
pub fn take(used: &impl Word, len: u64, align: u64, limit: u64) -> Option<u64> {
    debug_assert!(align.is_power_of_two(), "{align}");
    let mut seen = used.load(Ordering::Relaxed);
    loop {
        let start = seen.checked_next_multiple_of(align)?;
        let end = start.checked_add(len).filter(|&end| end <= limit)?;
        match used.compare_exchange(seen, end, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(start),
            Err(found) => seen = found,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn room_is_given_once_and_aligned() {
        let used = AtomicU64::new(0);
        let check = |len, align, expected, used_after| {
            assert_eq!(take(&used, len, align, 100), expected, "{len} bytes at {align}");
            assert_eq!(used.load(Ordering::Relaxed), used_after);
        };
        check(3, 1, Some(0), 3);
        check(0, 64, Some(64), 64);
        check(10, 64, Some(64), 74);
        check(27, 1, None, 74);
        check(1, 64, None, 74);
        check(26, 1, Some(74), 100);
        check(0, 1, Some(100), 100);
        check(u64::MAX, 1, None, 100);
        check(0, 64, None, 100);
    }
}
