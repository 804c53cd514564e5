//! What lets plain code be compiled for a processor's vectors: a door into AVX2, and conversions to bytes that need no
//! test per value.
//!
//! The same code compiled twice does the same IEEE and integer operations in the same order, since the compiler neither
//! reorders nor contracts them: the bytes are the same.
//!
//! There is no path for AVX-512. Of a core's time under RandomResizedCrop(224) resizing takes 13.1 %, inverse transforms
//! 7.0 and colours with upsampling 3.8 (`bench/runs/2026-11-30-epyc-2core-recipes`); vectors of twice the width could at
//! most halve that, so by kernel they bring 6.5, 3.5 and 1.9 % of the whole if loads, shuffles and memory cost nothing. The
//! rest, entropy decoding above all, is no work for vectors. On aarch64 the portable code is compiled with NEON, which
//! every such processor has.

#![expect(unsafe_code, reason = "target features, and conversions whose range was checked")]

/// How work on pixels is computed; the result is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Plain integer code.
    Portable,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Path {
    /// The fastest that this processor has.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            return Self::Avx2;
        }
        Self::Portable
    }

    /// Runs code that is compiled for this path: `kernel` and what it calls should be inlined.
    #[inline(always)]
    pub fn run<R>(self, kernel: impl FnOnce() -> R) -> R {
        match self {
            Self::Portable => kernel(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => with_avx2(kernel),
        }
    }
}

/// Proof that this processor has AVX2, for operations on single vectors.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The proof, where it holds.
    pub fn found() -> Option<Self> {
        has_avx2().then_some(Self(()))
    }
}

/// Whether this processor has AVX2.
#[cfg(target_arch = "x86_64")]
pub fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Runs `kernel`, compiled with AVX2 as far as it is inlined here.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn with_avx2<R>(kernel: impl FnOnce() -> R) -> R {
    #[target_feature(enable = "avx2")]
    fn compiled<R>(kernel: impl FnOnce() -> R) -> R {
        kernel()
    }
    assert!(has_avx2(), "called only where AVX2 is");
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
