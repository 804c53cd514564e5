//! One loaded NVML: finds GPUs by name and asks them for samples.
//!
//! A figure that the GPU, the driver or the permissions do not give is absent. What ends all figures, a lost GPU above all, is
//! a [`GpuFault`], and then nothing else is asked.

use std::path::Path;
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::{Device, Nvml};

use super::fault::{GpuFault, GpuFaultKind};
use super::live::CallClock;
use super::name::{GpuIdentity, GpuName};
use super::sample::{Gpm, GpuSample};
use crate::sys::nvml as raw;

/// The library's names: what drivers install, then what their development packages add.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// GPM's counters advance every 100 ms; a reading sooner than that measures nothing.
const GPM_INTERVAL: Duration = Duration::from_millis(110);

/// The counters that are read, in the order of [`Gpm::NAMES`].
const GPM_METRICS: [GpmMetricId; 9] = [
    GpmMetricId::GraphicsUtil,
    GpmMetricId::SmUtil,
    GpmMetricId::SmOccupancy,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::DramBwUtil,
    GpmMetricId::Fp32Util,
    GpmMetricId::Fp16Util,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::PcieRxPerSec,
];

/// Loads the library and starts it.
pub(super) fn open(library: Option<&Path>, clock: &CallClock) -> Result<Nvml, GpuFault> {
    let names: Vec<&Path> = library.map_or_else(|| LIBRARIES.iter().map(Path::new).collect(), |path| vec![path]);
    let mut last = None;
    for name in names {
        match clock.call("start", || Nvml::builder().lib_path(name.as_os_str()).init()) {
            Ok(nvml) => return Ok(nvml),
            // The other name would find the same driver.
            Err(error) if !matches!(error, NvmlError::LibloadingError(_)) => return Err(fault("start", &error)),
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(fault("load", &last.expect("there is a name")))
}

/// What an error of `action` amounts to.
pub(super) fn fault(action: &str, error: &NvmlError) -> GpuFault {
    let kind = match error {
        NvmlError::GpuLost | NvmlError::ResetRequired => GpuFaultKind::GpuLost,
        NvmlError::LibRmVersionMismatch => GpuFaultKind::DriverMismatch,
        NvmlError::DriverNotLoaded => GpuFaultKind::NoDriver,
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => GpuFaultKind::NoLibrary,
        NvmlError::NotFound => GpuFaultKind::NoSuchGpu,
        NvmlError::Timeout => GpuFaultKind::Timeout,
        _ => GpuFaultKind::Other,
    };
    GpuFault { kind, words: format!("{action}: {error}") }
}

/// Whether an error says that nothing more can be asked of this GPU for now.
pub(super) fn ends_all(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::GpuLost
            | NvmlError::ResetRequired
            | NvmlError::LibRmVersionMismatch
            | NvmlError::DriverNotLoaded
            | NvmlError::Uninitialized
    )
}

/// All GPUs, and the parts of those that are in parts; and those that do not say their names, with what they say instead.
pub(super) fn identities(nvml: &Nvml, clock: &CallClock) -> (Vec<GpuIdentity>, Vec<(String, GpuFault)>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let count = match clock.call("device count", || nvml.device_count()) {
        Ok(count) => count,
        Err(error) => return (found, vec![("all".to_owned(), fault("device count", &error))]),
    };
    for index in 0..count {
        let identity = clock.call("device identity", || {
            let device = nvml.device_by_index(index)?;
            let model = device.name().unwrap_or_default();
            let pci = device.pci_info().map(|pci| pci.bus_id).unwrap_or_default();
            Ok::<_, NvmlError>((GpuIdentity { uuid: device.uuid()?, pci, model }, device))
        });
        match identity {
            Ok((identity, device)) => {
                let parts = clock.call("MIG parts", || device.mig_device_count()).unwrap_or(0);
                found.push(identity);
                for part in 0..parts {
                    if let Ok(uuid) = clock.call("MIG part", || device.mig_device_by_index(part)?.uuid()) {
                        let model = found.last().map(|whole| whole.model.clone()).unwrap_or_default();
                        found.push(GpuIdentity { uuid, pci: String::new(), model });
                    }
                }
            }
            Err(error) => missing.push((format!("NVML's number {index}"), fault("device identity", &error))),
        }
    }
    (found, missing)
}

/// The GPUs that are asked for; without names every whole one.
pub(super) fn choose(all: &[GpuIdentity], names: &[GpuName]) -> Result<Vec<GpuIdentity>, GpuFault> {
    if names.is_empty() {
        return Ok(all.iter().filter(|identity| !identity.uuid.starts_with("MIG-")).cloned().collect());
    }
    let find = |name: &GpuName| name.find(all).map(|at| all[at].clone());
    let found: crate::Result<Vec<GpuIdentity>> = names.iter().map(find).collect();
    found.map_err(|error| GpuFault { kind: GpuFaultKind::NoSuchGpu, words: error.to_string() })
}

/// A GPU that is being sampled.
pub(super) struct Watched<'nvml> {
    nvml: &'nvml Nvml,
    pub(super) device: Device<'nvml>,
    uuid: String,
    gpm: Option<GpmReader<'nvml>>,
}

/// Performance counters, which are differences of two readings.
struct GpmReader<'nvml> {
    /// The whole GPU and the part's number, of a part.
    part: Option<(Device<'nvml>, u32)>,
    last: Option<(Instant, GpmSample<'nvml>)>,
}

impl<'nvml> Watched<'nvml> {
    pub fn open(nvml: &'nvml Nvml, identity: &GpuIdentity, clock: &CallClock) -> Result<Self, GpuFault> {
        let device = clock
            .call("device handle", || nvml.device_by_uuid(identity.uuid.as_str()))
            .map_err(|error| fault("device handle", &error))?;
        let part = clock
            .call("MIG part", || {
                Ok::<_, NvmlError>((device.mig_parent_device()?, raw::gpu_instance_id(nvml, &device)?))
            })
            .ok();
        let whole = part.as_ref().map_or(&device, |(whole, _)| whole);
        let has_gpm = clock.call("GPM support", || whole.gpm_support()).unwrap_or(false);
        let gpm = has_gpm.then_some(GpmReader { part, last: None });
        Ok(Self { nvml, device, uuid: identity.uuid.clone(), gpm })
    }

    /// Everything that is told at once, at `t` seconds.
    pub fn sample(&mut self, t: f64, clock: &CallClock) -> GpuSample {
        let mut asked = Asked { clock, fault: None };
        let device = &self.device;
        let mut sample = GpuSample { t, uuid: Some(self.uuid.clone()), ..GpuSample::default() };
        if let Some(utilization) = asked.ask("utilisation", || device.utilization_rates()) {
            sample.gpu_util = Some(f64::from(utilization.gpu));
            sample.mem_util = Some(f64::from(utilization.memory));
        }
        sample.power_mw = asked.ask("power", || device.power_usage()).map(f64::from);
        sample.power_limit_mw = asked.ask("power limit", || device.enforced_power_limit()).map(f64::from);
        sample.sm_mhz = asked.ask("SM clock", || device.clock_info(Clock::SM)).map(f64::from);
        sample.sm_mhz_max = asked.ask("highest SM clock", || device.max_clock_info(Clock::SM)).map(f64::from);
        sample.mem_mhz = asked.ask("memory clock", || device.clock_info(Clock::Memory)).map(f64::from);
        sample.clock_reasons = asked.ask("clock reasons", || device.current_throttle_reasons()).map(|bits| bits.bits());
        if let Some(memory) = asked.ask("memory", || device.memory_info()) {
            sample.mem_used = Some(memory.used);
            sample.mem_total = Some(memory.total);
        }
        sample.temp_c = asked.ask("temperature", || device.temperature(TemperatureSensor::Gpu)).map(f64::from);
        sample.jpg_util = asked.ask("JPEG engine", || raw::jpg_utilization(self.nvml, device)).map(f64::from);
        sample.dec_util =
            asked.ask("video decoder", || device.decoder_utilization()).map(|share| share.utilization.into());
        sample.pcie_gen = asked.ask("PCIe generation", || device.current_pcie_link_gen()).map(u64::from);
        sample.pcie_gen_max = asked.ask("highest PCIe generation", || device.max_pcie_link_gen()).map(u64::from);
        sample.pcie_width = asked.ask("PCIe width", || device.current_pcie_link_width()).map(u64::from);
        sample.pcie_width_max = asked.ask("greatest PCIe width", || device.max_pcie_link_width()).map(u64::from);
        if let Some(gpm) = &mut self.gpm {
            sample.gpm = gpm.read(self.nvml, device, &mut asked, sample.gpu_util);
        }
        match asked.fault {
            None => sample,
            error => GpuSample { t, uuid: sample.uuid, error, ..GpuSample::default() },
        }
    }
}

impl<'nvml> GpmReader<'nvml> {
    fn read(
        &mut self,
        nvml: &'nvml Nvml,
        device: &Device<'nvml>,
        asked: &mut Asked<'_>,
        util: Option<f64>,
    ) -> Option<Gpm> {
        if self.last.as_ref().is_some_and(|(taken, _)| taken.elapsed() < GPM_INTERVAL) {
            return None;
        }
        let now = asked.ask("GPM sample", || match &self.part {
            Some((whole, id)) => whole.gpm_mig_sample(*id),
            None => device.gpm_sample(),
        })?;
        let counters = self
            .last
            .as_ref()
            .and_then(|(_, last)| asked.ask("GPM counters", || gpm_metrics_get(nvml, last, &now, &GPM_METRICS)));
        self.last = Some((Instant::now(), now));
        let mut values = [None; GPM_METRICS.len()];
        let mut has_nan = false;
        for (value, counter) in values.iter_mut().zip(counters?) {
            let counter = counter.ok().map(|counter| counter.value);
            has_nan |= counter.is_some_and(f64::is_nan);
            // A thousandth is finer than the counters are, and shorter to write.
            *value = counter.filter(|counter| counter.is_finite()).map(|counter| (counter * 1e3).round() / 1e3);
        }
        let gpm = Gpm::new(values);
        (!gpm.is_void(has_nan, util)).then_some(gpm)
    }
}

/// Asks one figure after the other until one answer ends all.
pub(super) struct Asked<'a> {
    pub clock: &'a CallClock,
    pub fault: Option<GpuFault>,
}

impl Asked<'_> {
    pub fn ask<T>(&mut self, name: &'static str, call: impl FnOnce() -> Result<T, NvmlError>) -> Option<T> {
        if self.fault.is_some() {
            return None;
        }
        match self.clock.call(name, call) {
            Ok(figure) => Some(figure),
            Err(error) if ends_all(&error) => {
                self.fault = Some(fault(name, &error));
                None
            }
            Err(_) => None,
        }
    }
}
