//! What lets plain code be compiled for a processor's vectors: a door into AVX2, and conversions to bytes that need no
//! test per value.
//!
//! The same code compiled twice does the same IEEE and integer operations in the same order, since the compiler neither
//! reorders nor contracts them: the bytes are the same.

#![expect(unsafe_code, reason = "target features, and conversions whose range was checked")]

/// Runs `kernel`, compiled with AVX2 as far as it is inlined here.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn with_avx2<R>(kernel: impl FnOnce() -> R) -> R {
    #[target_feature(enable = "avx2")]
    fn compiled<R>(kernel: impl FnOnce() -> R) -> R {
        kernel()
    }
    assert!(is_x86_feature_detected!("avx2"), "called only where AVX2 is");
    // SAFETY: AVX2 is there, by the assert.
    unsafe { compiled(kernel) }
}

/// `value` cut to a whole number and to 0..=255; what is no number is 0.
#[inline(always)]
pub fn to_byte(value: f32) -> u8 {
    // Not `clamp`, which would keep what is no number.
    #[expect(clippy::manual_clamp, reason = "max and min turn what is no number into 0")]
    let value = value.max(0.0).min(255.0);
    // SAFETY: within the range of an i32 and a number, by the line above.
    let whole: i32 = unsafe { value.to_int_unchecked() };
    whole as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut() {
        for (value, expected) in [
            (-1.0, 0),
            (0.99, 0),
            (1.0, 1),
            (254.999, 254),
            (255.5, 255),
            (f32::INFINITY, 255),
            (f32::NEG_INFINITY, 0),
            (f32::NAN, 0),
        ] {
            assert_eq!(to_byte(value), expected, "{value}");
        }
    }
}
