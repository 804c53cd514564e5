//! Shared helpers of the benchmarks.

pub mod cold;
pub mod machine;
