//! One moment of one GPU.

use serde::Serialize;

use super::fault::GpuFault;

/// Bits of NVML's clocks-event reasons (nvml.h, `nvmlClocksEventReason*`).
pub mod clock_reasons {
    /// Clocks are lowered so that the power limit holds.
    pub const SOFTWARE_POWER_CAP: u64 = 0x4;
    /// Hardware lowered clocks by half or more: too hot, a power brake, or too fast a rise of power.
    pub const HARDWARE_SLOWDOWN: u64 = 0x8;
    /// The driver lowered clocks because GPU or memory are too warm.
    pub const SOFTWARE_THERMAL: u64 = 0x20;
    /// Hardware lowered clocks because it is too hot.
    pub const HARDWARE_THERMAL: u64 = 0x40;
    /// The power supply asked for lower clocks.
    pub const HARDWARE_POWER_BRAKE: u64 = 0x80;
}

/// What NVML says at one moment. Shares are per cent, as NVML gives them; what it did not say is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GpuSample {
    /// Seconds since the recording, or the run, began.
    pub t: f64,
    /// The GPU's UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Share of time in which any kernel ran. It says nothing of how much of the GPU that kernel used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_util: Option<f64>,
    /// Share of time in which memory was read or written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_util: Option<f64>,
    /// Power in milliwatts; on recent GPUs the mean of the last second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<f64>,
    /// The limit that is enforced, in milliwatts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_mw: Option<f64>,
    /// Clock of the multiprocessors in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<f64>,
    /// The highest that it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz_max: Option<f64>,
    /// Clock of the memory in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_mhz: Option<f64>,
    /// Why clocks are what they are: bits of [`clock_reasons`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_reasons: Option<u64>,
    /// Device memory in use, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_used: Option<u64>,
    /// Device memory there is, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_total: Option<u64>,
    /// Memory of the process that is watched or, where none is, of all processes, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_mem: Option<u64>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temp_c: Option<f64>,
    /// Busy share of the JPEG engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jpg_util: Option<f64>,
    /// Busy share of the video decoder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dec_util: Option<f64>,
    /// PCIe generation in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_gen: Option<u64>,
    /// The highest that GPU and host agree on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_gen_max: Option<u64>,
    /// PCIe lanes in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u64>,
    /// The most that GPU and slot have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width_max: Option<u64>,
    /// Packets sent again, since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_replay: Option<u64>,
    /// Kilobytes a second from host to GPU, over the 20 ms that the call takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_rx_kb_s: Option<f64>,
    /// Kilobytes a second from GPU to host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_tx_kb_s: Option<f64>,
    /// Memory errors that were corrected, since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    /// Memory errors that were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Xid errors since the last sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub xid: Vec<u64>,
    /// Counters of the time since the last sample, where the GPU has them (Hopper and later).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpm: Option<Gpm>,
    /// Why this moment has no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<GpuFault>,
}

/// GPU performance monitoring: shares in per cent of the interval between two of its readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Gpm {
    /// Time in which the compute or graphics engine was active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graphics_util: Option<f64>,
    /// Time in which multiprocessors had a warp, averaged over multiprocessors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_util: Option<f64>,
    /// Warps that were active, of those that multiprocessors can hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_occupancy: Option<f64>,
    /// Time in which tensor pipes were active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_util: Option<f64>,
    /// Bandwidth of device memory that was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram_bw_util: Option<f64>,
    /// Time in which FP32 pipes were active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp32_util: Option<f64>,
    /// Time in which FP16 pipes were active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp16_util: Option<f64>,
    /// From GPU to host, in MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_tx_mib_s: Option<f64>,
    /// From host to GPU, in MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_rx_mib_s: Option<f64>,
}

impl Gpm {
    /// The names of all counters, in the order of [`Self::values`].
    pub const NAMES: [&'static str; 9] = [
        "graphics_util",
        "sm_util",
        "sm_occupancy",
        "tensor_util",
        "dram_bw_util",
        "fp32_util",
        "fp16_util",
        "pcie_tx_mib_s",
        "pcie_rx_mib_s",
    ];

    /// Counters in the order of [`Self::NAMES`].
    pub fn new(values: [Option<f64>; 9]) -> Self {
        let [graphics_util, sm_util, sm_occupancy, tensor_util, dram_bw_util, fp32_util, fp16_util, sent, received] =
            values;
        Self {
            graphics_util,
            sm_util,
            sm_occupancy,
            tensor_util,
            dram_bw_util,
            fp32_util,
            fp16_util,
            pcie_tx_mib_s: sent,
            pcie_rx_mib_s: received,
        }
    }

    /// The counters in the order of [`Self::NAMES`].
    pub fn values(&self) -> [Option<f64>; 9] {
        [
            self.graphics_util,
            self.sm_util,
            self.sm_occupancy,
            self.tensor_util,
            self.dram_bw_util,
            self.fp32_util,
            self.fp16_util,
            self.pcie_tx_mib_s,
            self.pcie_rx_mib_s,
        ]
    }

    /// Whether nothing was measured, although zeros were delivered: two readings of one moment, as NVML gives them when
    /// asked sooner than its counters advance (about 100 ms).
    ///
    /// Ratios over no time are NaN (`has_nan`) or zero. A zero PCIe rate is no measurement either: to read the counters
    /// is traffic. And a GPU whose kernels ran (`gpu_util` above zero) was not without them.
    pub fn is_void(&self, has_nan: bool, gpu_util: Option<f64>) -> bool {
        let mut present = self.values().into_iter().flatten().peekable();
        if present.peek().is_none() {
            return true;
        }
        let has_link = self.pcie_rx_mib_s.is_some() || self.pcie_tx_mib_s.is_some();
        present.all(|value| value == 0.0) && (has_nan || has_link || gpu_util.is_some_and(|util| util > 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_that_nobody_measured_are_void() {
        let check = |values: &[(usize, f64)], has_nan: bool, gpu_util: Option<f64>, expected: bool| {
            let mut all = [None; 9];
            values.iter().for_each(|(at, value)| all[*at] = Some(*value));
            assert_eq!(Gpm::new(all).is_void(has_nan, gpu_util), expected, "{values:?} {has_nan} {gpu_util:?}");
        };
        check(&[(0, 0.0), (1, 0.0), (7, 0.0), (8, 0.0)], true, Some(98.0), true);
        check(&[(0, 0.0), (1, 0.0), (7, 0.0), (8, 0.0)], false, None, true);
        check(&[(0, 0.0), (1, 0.0)], false, Some(98.0), true);
        check(&[(0, 0.0), (1, 0.0)], false, Some(0.0), false);
        check(&[(0, 0.0), (1, 0.0)], false, None, false);
        check(&[(0, 0.006), (1, 0.0), (8, 0.0)], false, None, false);
        check(&[(0, 97.0), (1, 90.0)], true, None, false);
        check(&[], false, None, true);
    }
}
