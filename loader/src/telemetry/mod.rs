//! Counters of the stages, the causes of waiting, a GPU's own figures, and the verdict over all of them.

mod counters;
pub mod gpu;
mod prometheus;
mod recorded;
mod sampler;
pub mod verdict;

pub use counters::{StageFigures, StageState, StreamCounters, StreamFigures, WorkerClock};
pub use prometheus::{MetricsStream, render};
pub use recorded::{Recording, SkippedLines, read_samples, read_steps};
pub use sampler::{WaitCause, WaitSampler};
pub use verdict::{ClientFigures, Summary};
