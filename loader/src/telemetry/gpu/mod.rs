//! What a GPU says of itself: samples of NVML's figures, live or from a recording, and the names by which GPUs are found.
//!
//! Every figure is optional, and one that is absent is never zero. Nothing here is on the data path: [`LiveSource`]
//! starts its threads when it is asked for, and whoever reads from it never waits for the driver. What the figures mean
//! is left to [`verdict`](super::verdict).

mod fault;
mod live;
mod name;
mod sample;
mod session;
mod slow;

pub use fault::{GpuFault, GpuFaultKind};
pub use live::{LiveOptions, LiveSource};
pub use name::{GpuIdentity, GpuName};
pub use sample::{Gpm, GpuSample, clock_reasons};
