//! Placeholder
pub mod jpeg;
#[cfg(target_arch = "x86_64")]
pub mod simd_resize;
