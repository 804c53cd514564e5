//! Every number at which a verdict turns, and where it comes from. None is fitted to a recording.

/// Waiting, in units of computing, below which a run counts as healthy: the usual reading. As a share of the time, 23 %.
pub const RATIO_HEALTHY: f64 = 0.3;

/// Above it the loader holds the GPU back: the usual reading.
pub const RATIO_HELD_BACK: f64 = 0.8;

/// The least share of time that counts as lost to a pause or to lower clocks. A window of 5 s has some 100 samples, whose
/// share has a standard error of at most 5 %: this is twice that.
pub const LOSS_NOTICED: f64 = 0.1;

/// Waiting below this share is not worth a word about its cause.
pub const WAIT_SHARE_MENTIONED: f64 = 0.05;

/// Above this share of full-ring time the trainer, not the loader, sets the pace.
pub const FULL_SHARE_TRAINER_BOUND: f64 = 0.5;

/// Workers that are busy above this share are what short waits are for.
pub const WORKERS_BUSY: f64 = 0.5;

/// A step is a pause where its computing exceeds the median by this factor of the median. Steps of one model differ by less:
/// by recompiled kernels, or by sequences of several lengths.
pub const PAUSE_FACTOR: f64 = 5.0;

/// And by this many seconds: twice what NVML's utilisation, renewed every 1/6 s at best, can show.
pub const PAUSE_S_MIN: f64 = 0.1;

/// A GPU that was this much less busy in a pause than beside it confirms that the trainer paused, and did not compute.
pub const PAUSE_BUSY_MAX: f64 = 0.5;

/// Share of time with kernels from which on a GPU is always busy. NVML's duty cycle and GPM's counter of a loop without gaps
/// both say more than 95 %.
pub const ALWAYS_BUSY: f64 = 0.9;

/// Multiprocessors with work, as a share of the time in which anything ran, below which next to nothing runs. One block
/// takes one of 20 to 160 multiprocessors, 0.6 to 5 %.
pub const FULLNESS_HOLLOW: f64 = 0.05;

/// Below it kernels leave most multiprocessors empty. NCCL's kernels hold up to 32 of 132 of an H100.
pub const FULLNESS_SMALL: f64 = 0.25;

/// Memory duty cycle, in per cent, below which kernels touch no memory: NVML's resolution.
pub const MEMORY_UNTOUCHED: f64 = 1.0;

/// Traffic from the host, in MiB/s, that only launches or copies make. A launch moves a few hundred bytes to a KiB, and 10 000
/// a second are few for a launch-bound loop; a GPU without either has 1 to 4 MiB/s from the sampling alone.
pub const LAUNCH_TRAFFIC_MIB_S: f64 = 10.0;

/// Share of the range from idle to the power limit below which power is near idle.
pub const POWER_NEAR_IDLE: f64 = 0.1;

/// The same where the limit is not known, as a factor of idle power: limits are three times idle power and more, so a tenth
/// of the range is a fifth of idle power and more.
pub const POWER_NEAR_IDLE_FACTOR: f64 = 1.2;

/// Idle power as a share of the limit where no idle moment was recorded. Data sheets and `nvidia-smi` of boards with a context:
/// 60 of 400 W (A100), 120 of 700 W (H100, H200), 26 of 70 W (T4).
pub const POWER_IDLE_OF_LIMIT: f64 = 0.2;

/// Share of the range from idle to the limit from which on power alone says that a busy GPU works.
pub const POWER_WORKING: f64 = 0.4;

/// The same as a factor of idle power, where the limit is not known.
pub const POWER_WORKING_FACTOR: f64 = 2.0;

/// Power readings are means of a second on recent boards: so long must a GPU idle before its power is idle power.
pub const POWER_SETTLES_S: f64 = 1.0;

/// Memory bandwidth, as a share of its peak while busy, from which on memory sets the pace: Nsight Compute's rule of 60 % for
/// its "speed of light" figures.
pub const MEMORY_BOUND: f64 = 0.6;

/// The same for NVML's duty cycle of memory, which counts time and not bytes: nearly always.
pub const MEMORY_DUTY_BOUND: f64 = 0.8;

/// Memory duty cycle, in per cent, from which on it is evidence that kernels work.
pub const MEMORY_WORKING: f64 = 20.0;

/// Clocks lower by less than this under a power cap are usual at full load, and no fault.
pub const CLOCK_LOSS_USUAL: f64 = 0.05;

/// Copies from page-locked memory reach 80 to 90 % of a link's bandwidth; those from pageable memory pass a buffer of the
/// driver's by one core's copying, at 3 to 12 GB/s. Below this share of the link a copy is of the second kind.
pub const LINK_SHARE_PINNED: f64 = 0.65;

/// Samples below which a figure is not believed.
pub const SAMPLES_MIN: usize = 3;

/// GB/s of one lane by PCIe generation, from the first on, after encoding.
pub const LANE_GB_S: [f64; 6] = [0.25, 0.5, 0.985, 1.969, 3.938, 7.563];

/// Xid of a GPU that fell off the bus (NVIDIA's Xid catalogue).
pub const XID_OFF_THE_BUS: u64 = 79;
