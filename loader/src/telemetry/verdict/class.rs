//! What a window of time is found to be: the one list of causes, from the sampler's to the GPU's.

use serde::{Deserialize, Serialize};

use crate::telemetry::sampler::WaitCause;

/// What limits the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictClass {
    /// Batches are there when asked for; loader and trainer are about even.
    Fed,
    /// Batches pile up: the trainer sets the pace. What it does with its time, only a GPU's figures tell.
    TrainerBound,
    /// The GPU computes most of the time, and multiprocessors have work.
    ComputeBound,
    /// The GPU is busy, and its memory sets the pace.
    MemoryBound,
    /// The GPU is busy and works; its counters do not say at what.
    Healthy,
    /// The trainer waits for batches; the cause was not recorded.
    Starved,
    /// The trainer waits for reads.
    WaitingOnStorage,
    /// The trainer waits for workers.
    WaitingOnDecode,
    /// The trainer holds so many batches that none can be filled.
    WaitingOnSlots,
    /// The trainer waits for copies to the GPU; their rate was not recorded.
    WaitingOnCopy,
    /// Copies are slower than the link: from memory that is not page-locked.
    WaitingOnPageableCopy,
    /// Copies are as fast as the link, or the link runs below what it can.
    WaitingOnPcie,
    /// Most of the waiting was for the first batch.
    StartUp,
    /// The trainer itself pauses now and then: checkpoints, logging, evaluation on the host.
    TrainerPause,
    /// Kernels are so small that to launch them takes the time.
    LaunchBound,
    /// The GPU idles between kernels although data are there: it is waited for, or waits for other GPUs.
    SyncBound,
    /// A kernel runs all the time and does next to nothing: it spins, or hangs.
    FakeBusy,
    /// Clocks are lowered for power.
    ThrottledPower,
    /// Clocks are lowered for heat.
    ThrottledThermal,
    /// Hardware lowers clocks and does not say whether for power or for heat.
    ThrottledHardware,
    /// The GPU is gone.
    GpuLost,
    /// Nothing ran on the GPU.
    Idle,
    /// The GPU idles part of the time, and nothing recorded says what for.
    Underused,
    /// Too little was measured.
    Unknown,
}

impl VerdictClass {
    /// Waiting for what the sampler saw.
    pub fn waiting_on(cause: WaitCause) -> Self {
        match cause {
            WaitCause::Storage => Self::WaitingOnStorage,
            WaitCause::Decode => Self::WaitingOnDecode,
            WaitCause::Slots => Self::WaitingOnSlots,
            WaitCause::Start => Self::StartUp,
        }
    }

    /// Whether the run is as fast as its GPU lets it be, or its loader does all it can.
    pub fn is_healthy(self) -> bool {
        matches!(self, Self::Fed | Self::TrainerBound | Self::ComputeBound | Self::MemoryBound | Self::Healthy)
    }

    /// The class in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Fed => "fed",
            Self::TrainerBound => "trainer-bound",
            Self::ComputeBound => "healthy, compute-bound",
            Self::MemoryBound => "healthy, memory-bound",
            Self::Healthy => "healthy",
            Self::Starved => "starved",
            Self::WaitingOnStorage => "waiting on storage",
            Self::WaitingOnDecode => "waiting on decode",
            Self::WaitingOnSlots => "waiting on slots",
            Self::WaitingOnCopy => "waiting on copies to the GPU",
            Self::WaitingOnPageableCopy => "waiting on copies from pageable memory",
            Self::WaitingOnPcie => "waiting on copies, limited by PCIe",
            Self::StartUp => "start-up",
            Self::TrainerPause => "trainer pauses",
            Self::LaunchBound => "launch-bound",
            Self::SyncBound => "synchronisation-bound",
            Self::FakeBusy => "fake busy",
            Self::ThrottledPower => "throttled by power",
            Self::ThrottledThermal => "throttled by heat",
            Self::ThrottledHardware => "throttled by hardware",
            Self::GpuLost => "GPU lost",
            Self::Idle => "idle",
            Self::Underused => "underused",
            Self::Unknown => "unknown",
        }
    }
}

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Sources contradict each other, or one weak figure is all there is.
    Low,
    /// One source, or a derived figure.
    Medium,
    /// Independent sources agree.
    High,
}

impl Confidence {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}
