//! Counters of the stages, the causes of waiting, and the verdict over both.

mod counters;
mod prometheus;
mod sampler;
mod verdict;

pub use counters::{StageFigures, StageState, StreamCounters, StreamFigures, WorkerClock};
pub use prometheus::{MetricsStream, render};
pub use sampler::{WaitCause, WaitSampler};
pub use verdict::{ClientFigures, Summary, Verdict, VerdictClass, judge};
