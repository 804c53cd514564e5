//! The slow lane: calls that take 20 ms or wait, on a thread of their own beside the sampler's.
//!
//! PCIe throughput is measured by the driver over 20 ms, once for each direction; Xid events are waited for; error counts and
//! process lists go through the kernel. Each result is handed over once, with the next sample.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, PcieUtilCounter};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::event::EventSet;

use super::live::CallClock;
use super::name::GpuIdentity;
use super::sample::GpuSample;
use super::session::{Asked, Watched};

/// Time between two rounds, and the longest wait for an event: four samples at the usual interval.
const ROUND: Duration = Duration::from_millis(300);

/// Longest wait for the end of a lane whose calls do not come back.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Figures that came in since the last sample, by UUID.
type Figures = HashMap<String, GpuSample>;

/// The thread, while an NVML is loaded.
pub(super) struct SlowLane {
    figures: Arc<Mutex<Figures>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlowLane {
    /// Starts the lane for GPUs of `nvml`; `pid` is the process whose memory is told, instead of the sum of all.
    pub fn start(nvml: Arc<Nvml>, gpus: Vec<GpuIdentity>, pid: Option<u32>) -> Self {
        let figures = Arc::new(Mutex::new(Figures::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (out, stopped) = (Arc::clone(&figures), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("feedline-nvml-slow".into())
            .spawn(move || run(&nvml, &gpus, pid, &out, &stopped))
            // Without it only its own figures are absent.
            .ok();
        Self { figures, stop, thread }
    }

    /// Adds what came in to `sample`.
    pub fn fill(&self, sample: &mut GpuSample) {
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slow) = sample.uuid.as_ref().and_then(|uuid| figures.remove(uuid)) {
            sample.xid = slow.xid;
            if sample.error.is_none() {
                sample.pcie_rx_kb_s = slow.pcie_rx_kb_s;
                sample.pcie_tx_kb_s = slow.pcie_tx_kb_s;
                sample.pcie_replay = slow.pcie_replay;
                sample.ecc_corrected = slow.ecc_corrected;
                sample.ecc_uncorrected = slow.ecc_uncorrected;
                sample.process_mem = slow.process_mem;
            }
        }
    }
}

impl Drop for SlowLane {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + END_TIMEOUT;
        while !thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        // One that hangs in the driver keeps its library, and ends with the call.
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

fn run(nvml: &Nvml, gpus: &[GpuIdentity], pid: Option<u32>, out: &Mutex<Figures>, stop: &AtomicBool) {
    let clock = CallClock::default();
    let watched: Vec<(&GpuIdentity, Watched<'_>)> =
        gpus.iter().filter_map(|gpu| Some((gpu, Watched::open(nvml, gpu, &clock).ok()?))).collect();
    let events = watch_xids(nvml, &watched);
    while !stop.load(Ordering::Relaxed) {
        for (gpu, watched) in &watched {
            let slow = ask(watched, pid, &clock);
            let mut figures = out.lock().unwrap_or_else(PoisonError::into_inner);
            let xid = figures.remove(&gpu.uuid).map(|before| before.xid).unwrap_or_default();
            figures.insert(gpu.uuid.clone(), GpuSample { xid, ..slow });
        }
        wait_for_xids(events.as_ref(), out, stop);
    }
}

fn ask(watched: &Watched<'_>, pid: Option<u32>, clock: &CallClock) -> GpuSample {
    let device = &watched.device;
    let mut asked = Asked { clock, fault: None };
    let mut throughput =
        |counter: PcieUtilCounter| asked.ask("PCIe throughput", || device.pcie_throughput(counter)).map(f64::from);
    let (received, sent) = (throughput(PcieUtilCounter::Receive), throughput(PcieUtilCounter::Send));
    let mut errors =
        |kind: MemoryError| asked.ask("ECC errors", || device.total_ecc_errors(kind, EccCounter::Volatile));
    let (corrected, uncorrected) = (errors(MemoryError::Corrected), errors(MemoryError::Uncorrected));
    GpuSample {
        pcie_rx_kb_s: received,
        pcie_tx_kb_s: sent,
        ecc_corrected: corrected,
        ecc_uncorrected: uncorrected,
        pcie_replay: asked.ask("PCIe replays", || device.pcie_replay_counter()).map(u64::from),
        // Process ids may be of another namespace: then the one that is watched is not found, and nothing is said of it.
        process_mem: asked.ask("processes", || device.running_compute_processes()).and_then(|processes| {
            let ours = processes.iter().filter(|process| pid.is_none_or(|pid| process.pid == pid));
            let known: Vec<u64> = ours
                .filter_map(|process| match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                })
                .collect();
            (!known.is_empty()).then(|| known.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)))
        }),
        ..GpuSample::default()
    }
}

/// Xid events of all GPUs, where NVML and permissions allow it.
fn watch_xids<'nvml>(nvml: &'nvml Nvml, watched: &[(&GpuIdentity, Watched<'nvml>)]) -> Option<EventSet<'nvml>> {
    watched.iter().try_fold(nvml.create_event_set().ok()?, |set, (_, watched)| {
        watched.device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()
    })
}

/// Waits out the round, and notes Xid events meanwhile.
fn wait_for_xids(events: Option<&EventSet<'_>>, out: &Mutex<Figures>, stop: &AtomicBool) {
    let until = Instant::now() + ROUND;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.load(Ordering::Relaxed) {
            return;
        }
        let event = events.map(|events| events.wait(u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)));
        match event {
            Some(Ok(event)) => {
                if let (Some(XidError::Value(code)), Ok(uuid)) = (event.event_data, event.device.uuid()) {
                    let mut figures = out.lock().unwrap_or_else(PoisonError::into_inner);
                    figures.entry(uuid).or_default().xid.push(code);
                }
            }
            // No event, or no way to hear of one: a failing wait returns at once, and is not asked again in this round.
            Some(Err(_)) | None => {
                thread::sleep(left.min(ROUND / 4));
            }
        }
    }
}
