//! What a GPU did over a window: its samples' means, with what can and cannot be said from them.

use super::host::median;
use super::limits::*;
use crate::telemetry::gpu::{GpuFault, GpuFaultKind, GpuSample, clock_reasons};

/// What a whole recording, or a run so far, says of a GPU: against it windows are read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuReference {
    /// Power in watts while nothing ran.
    pub idle_w: Option<f64>,
    /// The highest clock that multiprocessors can have or were seen with, in MHz.
    pub sm_mhz_max: Option<f64>,
}

impl GpuReference {
    /// Finds the lowest power of idle stretches that lasted, and the highest clock, of one GPU's samples by time.
    pub fn of(samples: &[GpuSample]) -> Self {
        let mut reference = Self::default();
        let mut idle_since: Option<f64> = None;
        for sample in samples {
            let highest = sample.sm_mhz_max.or(sample.sm_mhz);
            reference.sm_mhz_max = max(reference.sm_mhz_max, highest);
            idle_since = if is_idle(sample) == Some(true) { idle_since.or(Some(sample.t)) } else { None };
            if let (Some(since), Some(power_mw)) = (idle_since, sample.power_mw)
                && sample.t - since >= POWER_SETTLES_S
            {
                let watts = power_mw / 1e3;
                reference.idle_w = Some(reference.idle_w.map_or(watts, |least| least.min(watts)));
            }
        }
        reference
    }
}

/// Which clocks were lowered, for how long, and by how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throttle {
    /// The bits of [`clock_reasons`] that were set.
    pub bits: u64,
    /// Share of the samples that had one of them.
    pub share: f64,
    /// By which share the clock was below its highest meanwhile, where known.
    pub clock_loss: Option<f64>,
}

/// Means over a window. Shares are 0 to 1.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuReading {
    /// Samples with figures.
    pub samples: usize,
    /// Share of samples that have an error instead, and the last of these.
    pub fault: Option<(f64, GpuFault)>,
    /// Xid errors.
    pub xids: Vec<u64>,
    /// NVML's duty cycle of kernels.
    pub util: Option<f64>,
    /// NVML's duty cycle of memory, in per cent.
    pub mem_util: Option<f64>,
    /// GPM: any kernel ran.
    pub graphics: Option<f64>,
    /// GPM: multiprocessors with work.
    pub sm: Option<f64>,
    /// GPM: tensor pipes.
    pub tensor: Option<f64>,
    /// GPM: bandwidth of device memory.
    pub dram: Option<f64>,
    /// From host to GPU, in MiB/s.
    pub received_mib_s: Option<f64>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Watts.
    pub power_limit_w: Option<f64>,
    /// Watts while idle, where such a moment was recorded.
    pub idle_w: Option<f64>,
    /// MHz.
    pub sm_mhz: Option<f64>,
    /// Highest temperature, in degrees Celsius.
    pub temp_c: Option<f64>,
    /// PCIe packets that were sent again meanwhile: a link that errs is slow.
    pub replays: Option<f64>,
    /// Memory errors that came up meanwhile and were not corrected.
    pub ecc_uncorrected: Option<f64>,
    /// Lowered clocks.
    pub throttle: Option<Throttle>,
    /// GB/s that the link in use can carry, and whether it is less than it could be.
    pub link: Option<(f64, bool)>,
    /// Nothing ran in any sample.
    pub is_idle: bool,
}

impl GpuReading {
    /// Reads the samples of a window.
    pub fn of(samples: &[GpuSample], reference: &GpuReference) -> Self {
        let weights = weights(samples);
        let mean = |figure: &dyn Fn(&GpuSample) -> Option<f64>| {
            let present: Vec<(f64, f64)> =
                samples.iter().zip(&weights).filter_map(|(sample, weight)| Some((figure(sample)?, *weight))).collect();
            let total: f64 = present.iter().map(|(_, weight)| weight).sum();
            (present.len() >= SAMPLES_MIN && total > 0.0)
                .then(|| present.iter().map(|(value, weight)| value * weight).sum::<f64>() / total)
        };
        let share = |figure: &dyn Fn(&GpuSample) -> Option<f64>| mean(figure).map(|percent| percent / 100.0);
        let faults: Vec<&GpuFault> = samples.iter().filter_map(|sample| sample.error.as_ref()).collect();
        let fault = faults.last().map(|last| (faults.len() as f64 / samples.len() as f64, (*last).clone()));
        let idle: Vec<bool> = samples.iter().filter_map(is_idle).collect();
        Self {
            samples: samples.len() - faults.len(),
            fault,
            xids: samples.iter().flat_map(|sample| sample.xid.iter().copied()).collect(),
            util: share(&|sample| sample.gpu_util),
            mem_util: mean(&|sample| sample.mem_util),
            graphics: share(&|sample| sample.gpm?.graphics_util),
            sm: share(&|sample| sample.gpm?.sm_util),
            tensor: share(&|sample| sample.gpm?.tensor_util),
            dram: share(&|sample| sample.gpm?.dram_bw_util),
            received_mib_s: mean(&|sample| sample.gpm?.pcie_rx_mib_s)
                .or_else(|| mean(&|sample| sample.pcie_rx_kb_s).map(|kb_s| kb_s * 1e3 / f64::from(1 << 20))),
            power_w: mean(&|sample| sample.power_mw).map(|milliwatts| milliwatts / 1e3),
            power_limit_w: samples.iter().rev().find_map(|sample| sample.power_limit_mw).map(|limit_mw| limit_mw / 1e3),
            idle_w: reference.idle_w,
            sm_mhz: mean(&|sample| sample.sm_mhz),
            temp_c: samples.iter().filter_map(|sample| sample.temp_c).reduce(f64::max),
            replays: growth(samples, |sample| sample.pcie_replay),
            ecc_uncorrected: growth(samples, |sample| sample.ecc_uncorrected),
            throttle: throttle(samples, reference),
            link: link(samples),
            is_idle: idle.len() >= SAMPLES_MIN && idle.iter().all(|is_idle| *is_idle),
        }
    }

    /// Whether any figure says what the GPU did.
    pub fn has_figures(&self) -> bool {
        self.busy().is_some() || self.power_w.is_some() || self.throttle.is_some()
    }

    /// Share of the time in which anything ran; GPM's counter before NVML's duty cycle.
    pub fn busy(&self) -> Option<f64> {
        self.graphics.or(self.util)
    }

    /// Share of the multiprocessors that had work while anything ran.
    pub fn fullness(&self) -> Option<f64> {
        let (sm, graphics) = (self.sm?, self.graphics?);
        (graphics > 0.01).then(|| (sm / graphics).min(1.0))
    }

    /// Bandwidth of memory while anything ran, as a share of its peak.
    pub fn dram_while_busy(&self) -> Option<f64> {
        let (dram, graphics) = (self.dram?, self.graphics?);
        (graphics > 0.01).then(|| (dram / graphics).min(1.0))
    }

    /// Whether power says that next to nothing works.
    pub fn is_power_near_idle(&self) -> Option<bool> {
        self.power_test(POWER_NEAR_IDLE, POWER_NEAR_IDLE_FACTOR).map(|is_above| !is_above)
    }

    /// Whether power alone says that a busy GPU works.
    pub fn is_power_working(&self) -> Option<bool> {
        self.power_test(POWER_WORKING, POWER_WORKING_FACTOR)
    }

    /// Whether power is above `range_share` of the range from idle to the limit, or above `factor` times idle power where
    /// the limit is not known.
    fn power_test(&self, range_share: f64, factor: f64) -> Option<bool> {
        let power_w = self.power_w?;
        match (self.power_limit_w, self.idle_w) {
            (Some(limit_w), idle_w) => {
                let idle_w = idle_w.unwrap_or(limit_w * POWER_IDLE_OF_LIMIT);
                Some(power_w > idle_w + range_share * (limit_w - idle_w))
            }
            (None, Some(idle_w)) => Some(power_w > idle_w * factor),
            (None, None) => None,
        }
    }

    /// Whether the GPU is gone, from the share of samples that say so or an Xid.
    pub fn is_lost(&self) -> bool {
        let is_lost =
            matches!(&self.fault, Some((share, fault)) if fault.kind == GpuFaultKind::GpuLost && *share > LOSS_NOTICED);
        is_lost || (self.xids.contains(&XID_OFF_THE_BUS) && self.samples < SAMPLES_MIN)
    }
}

/// Whether nothing ran. GPM's counter has a floor of some thousandths of a per cent.
pub(super) fn is_idle(sample: &GpuSample) -> Option<bool> {
    let graphics = sample.gpm.and_then(|gpm| gpm.graphics_util);
    match (graphics, sample.gpu_util) {
        (None, None) => None,
        (graphics, util) => Some(graphics.unwrap_or(0.0) < 0.05 && util.unwrap_or(0.0) == 0.0),
    }
}

/// The time that each sample stands for: since the one before, or the usual distance where that one is far.
fn weights(samples: &[GpuSample]) -> Vec<f64> {
    let distances: Vec<f64> = samples.windows(2).map(|pair| pair[1].t - pair[0].t).collect();
    let usual_s = median(distances.iter().copied()).max(1e-3);
    std::iter::once(usual_s)
        .chain(distances.iter().map(|distance_s| distance_s.min(5.0 * usual_s)))
        .take(samples.len())
        .collect()
}

fn throttle(samples: &[GpuSample], reference: &GpuReference) -> Option<Throttle> {
    const BITS: u64 = clock_reasons::SOFTWARE_POWER_CAP
        | clock_reasons::HARDWARE_SLOWDOWN
        | clock_reasons::SOFTWARE_THERMAL
        | clock_reasons::HARDWARE_THERMAL
        | clock_reasons::HARDWARE_POWER_BRAKE;
    let known: Vec<(u64, Option<f64>)> =
        samples.iter().filter_map(|sample| Some((sample.clock_reasons? & BITS, sample.sm_mhz))).collect();
    let lowered: Vec<(u64, Option<f64>)> = known.iter().copied().filter(|(bits, _)| *bits != 0).collect();
    if known.len() < SAMPLES_MIN || lowered.is_empty() {
        return None;
    }
    let clocks: Vec<f64> = lowered.iter().filter_map(|(_, sm_mhz)| *sm_mhz).collect();
    let clock_loss = reference.sm_mhz_max.filter(|_| !clocks.is_empty()).map(|highest| {
        let mean = clocks.iter().sum::<f64>() / clocks.len() as f64;
        (1.0 - mean / highest).max(0.0)
    });
    // A clock that was never seen higher, on a GPU whose highest is not recorded, shows no loss and does not disprove one.
    let is_proven =
        samples.iter().any(|sample| sample.sm_mhz_max.is_some()) || clock_loss.is_some_and(|loss| loss > 0.0);
    Some(Throttle {
        bits: lowered.iter().fold(0, |all, (bits, _)| all | bits),
        share: lowered.len() as f64 / known.len() as f64,
        clock_loss: clock_loss.filter(|_| is_proven),
    })
}

/// By how much a counter grew. One that was set back, with its driver, counts from zero again.
fn growth(samples: &[GpuSample], counter: impl Fn(&GpuSample) -> Option<u64>) -> Option<f64> {
    let counts: Vec<u64> = samples.iter().filter_map(counter).collect();
    let grown = counts.windows(2).map(|pair| if pair[1] >= pair[0] { pair[1] - pair[0] } else { pair[1] } as f64).sum();
    (!counts.is_empty()).then_some(grown)
}

fn link(samples: &[GpuSample]) -> Option<(f64, bool)> {
    // The best that was seen: an idle link saves power at a lower generation.
    let best = samples.iter().filter_map(|sample| Some((sample.pcie_gen?, sample.pcie_width?))).max()?;
    let lane_gb_s = LANE_GB_S.get(usize::try_from(best.0.checked_sub(1)?).ok()?)?;
    let is_below = samples.iter().any(|sample| {
        sample.pcie_gen_max.is_some_and(|most| best.0 < most) || sample.pcie_width_max.is_some_and(|most| best.1 < most)
    });
    Some((lane_gb_s * best.1.min(32) as f64, is_below))
}

fn max(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_power_is_taken_once_it_settled() {
        let sample = |t: f64, util: f64, watts: f64| GpuSample {
            t,
            gpu_util: Some(util),
            power_mw: Some(watts * 1e3),
            ..GpuSample::default()
        };
        let check = |samples: &[GpuSample], expected: Option<f64>| {
            assert_eq!(GpuReference::of(samples).idle_w, expected, "{samples:?}");
        };
        check(&[sample(0.0, 0.0, 100.0), sample(1.0, 0.0, 101.0)], Some(101.0));
        check(&[sample(0.0, 99.0, 500.0), sample(0.5, 0.0, 300.0), sample(1.0, 0.0, 200.0)], None);
        check(&[sample(0.0, 99.0, 100.0), sample(5.0, 99.0, 100.0)], None);
    }

    #[test]
    fn power_is_read_against_what_is_known() {
        let check = |power_w: f64,
                     limit_w: Option<f64>,
                     idle_w: Option<f64>,
                     near_idle: Option<bool>,
                     working: Option<bool>| {
            let reading =
                GpuReading { power_w: Some(power_w), power_limit_w: limit_w, idle_w, ..GpuReading::default() };
            assert_eq!((reading.is_power_near_idle(), reading.is_power_working()), (near_idle, working), "{power_w}");
        };
        check(125.0, Some(700.0), Some(124.0), Some(true), Some(false));
        check(550.0, Some(700.0), None, Some(false), Some(true));
        check(350.0, Some(700.0), None, Some(false), Some(false));
        check(125.0, None, Some(124.0), Some(true), Some(false));
        check(300.0, None, Some(124.0), Some(false), Some(true));
        check(300.0, None, None, None, None);
    }

    #[test]
    fn a_link_is_what_it_was_at_best() {
        let sample = |generation, width| GpuSample {
            pcie_gen: Some(generation),
            pcie_width: Some(width),
            pcie_gen_max: Some(5),
            pcie_width_max: Some(16),
            ..GpuSample::default()
        };
        let check = |samples: &[GpuSample], expected: Option<(i64, bool)>| {
            assert_eq!(link(samples).map(|(gb_s, is_below)| (gb_s.round() as i64, is_below)), expected);
        };
        check(&[sample(1, 16), sample(5, 16)], Some((63, false)));
        check(&[sample(5, 4)], Some((16, true)));
        check(&[sample(0, 16)], None);
        check(&[sample(99, 16)], None);
        check(&[GpuSample::default()], None);
    }
}
