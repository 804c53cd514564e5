//! Why a moment has no figures: the classes that a person acts upon differently.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What stands between a reader and a GPU's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuFaultKind {
    /// The GPU fell off the bus, or asks to be reset. No data problem: the host's kernel log has an Xid.
    GpuLost,
    /// The driver was updated under the library that is loaded: reload the driver, or reboot.
    DriverMismatch,
    /// No driver is loaded.
    NoDriver,
    /// `libnvidia-ml.so.1` cannot be loaded; a container needs the capability `utility`.
    NoLibrary,
    /// No GPU has the name that was asked for.
    NoSuchGpu,
    /// A call has not come back in time.
    Timeout,
    /// NVML says something else.
    Other,
}

impl GpuFaultKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::GpuLost,
        Self::DriverMismatch,
        Self::NoDriver,
        Self::NoLibrary,
        Self::NoSuchGpu,
        Self::Timeout,
        Self::Other,
    ];

    /// The name under which it is recorded.
    pub fn name(self) -> &'static str {
        match self {
            Self::GpuLost => "gpu-lost",
            Self::DriverMismatch => "driver-mismatch",
            Self::NoDriver => "no-driver",
            Self::NoLibrary => "no-library",
            Self::NoSuchGpu => "no-such-gpu",
            Self::Timeout => "timeout",
            Self::Other => "other",
        }
    }

    /// The kind of that name; [`Self::Other`] for one that a later version wrote.
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Other)
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::GpuLost => "not a data problem: ask for the host's kernel log (Xid), then reset the GPU or the host",
            Self::DriverMismatch => "the driver was updated under running jobs: reload it, or reboot",
            Self::NoDriver => "load the NVIDIA driver",
            Self::NoLibrary => "there is no GPU here, or the container lacks NVIDIA_DRIVER_CAPABILITIES=utility",
            Self::NoSuchGpu => "name a GPU by its UUID or PCI id, as nvidia-smi -L and nvidia-smi -q show them",
            Self::Timeout => {
                "the driver does not answer, which a GPU that is about to be lost does too: look at the kernel log"
            }
            Self::Other => "nvidia-smi may say more",
        }
    }
}

/// A [`GpuFaultKind`] with the words of whoever met it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFault {
    /// What it is.
    pub kind: GpuFaultKind,
    /// What was asked, and what was answered.
    pub words: String,
}

impl fmt::Display for GpuFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}; {}", self.kind.name(), self.words, self.kind.advice())
    }
}
