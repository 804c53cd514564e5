//! The findings: what each side's figures amount to, with the share of the time that it costs.

use super::class::{Confidence, VerdictClass};
use super::host::Stalls;
use super::limits::*;
use super::reading::{GpuReading, Throttle};
use super::words;
use super::{Finding, Window};
use crate::telemetry::gpu::clock_reasons;
use crate::telemetry::sampler::WaitCause;

/// The window's time, split. All are 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shares {
    /// A batch was waited for.
    pub wait: Option<f64>,
    /// A copy was.
    pub copy: f64,
    /// The trainer paused.
    pub pause: f64,
    /// The GPU stood idle for want of a batch or its copy.
    pub starved: Option<f64>,
    /// Waiting in units of computing.
    pub ratio: Option<f64>,
    /// Nothing ran on the GPU.
    pub idle: Option<f64>,
    /// What is left for computing.
    pub rest: f64,
    /// Share of that in which anything ran on the GPU.
    pub busy: Option<f64>,
    /// Which sides were measured.
    pub rests_on: &'static str,
}

impl Shares {
    pub fn of(window: Window<'_>) -> Self {
        let (mut shares, stalls) = (Self::default(), window.stalls);
        let gpu = window.gpu.filter(|gpu| gpu.samples > 0);
        if let Some(stalls) = stalls {
            shares.wait = stalls.waited_s.map(|waited_s| stalls.share(waited_s));
            shares.copy = stalls.share(stalls.copied_s);
            shares.pause = stalls.share(stalls.paused_s);
        }
        let busy = gpu.and_then(GpuReading::busy);
        shares.idle = busy.map(|busy| 1.0 - busy);
        shares.starved = shares.wait.map(|wait| {
            let held_up = (wait + shares.copy).min(1.0 - shares.pause);
            // Python runs ahead: a wait during which the GPU computes costs nothing. Only GPM's counter is fine enough to say
            // so, where it differs by more than a window can show, and only of a GPU that works: a spinning kernel is no
            // reason not to be starved.
            let works = |gpu: &GpuReading| gpu.fullness().is_some_and(|full| full > FULLNESS_SMALL);
            let idle = gpu.filter(|gpu| works(gpu)).and_then(|gpu| gpu.graphics).map(|worked| 1.0 - worked);
            idle.filter(|idle| held_up - idle > LOSS_NOTICED).unwrap_or(held_up)
        });
        shares.rest = (1.0 - shares.starved.unwrap_or(0.0) - shares.pause).max(0.0);
        shares.ratio = shares.starved.map(|starved| starved / shares.rest.max(1e-3));
        shares.busy = busy.map(|busy| (busy / shares.rest.max(0.05)).min(1.0));
        shares.rests_on = match (stalls.is_some(), gpu.is_some_and(GpuReading::has_figures)) {
            (true, true) => "the loader's side and the GPU's",
            (true, false) => "the loader's side only",
            (false, true) => "the GPU's side only",
            (false, false) => "nothing",
        };
        shares
    }

    /// Whether waiting counts: the usual rule.
    fn is_starved(&self) -> bool {
        self.ratio.is_some_and(|ratio| ratio >= RATIO_HEALTHY)
    }
}

/// Everything that costs time; where nothing does, what keeps the run busy. Never empty.
pub(super) fn all(window: Window<'_>, shares: &Shares) -> Vec<Finding> {
    let gpu = window.gpu.filter(|gpu| gpu.samples > 0);
    if let Some(gpu) = window.gpu.filter(|gpu| gpu.is_lost()) {
        return vec![finding(VerdictClass::GpuLost, 1.0, None, Confidence::High, words::lost(gpu))];
    }
    // What a loader or a pause explains is named after that, though nothing ran meanwhile.
    let is_explained = shares.pause > 0.5
        || (shares.is_starved() && window.stalls.is_some_and(|stalls| waiting_class(stalls) != VerdictClass::Starved));
    if let Some(gpu) = gpu.filter(|gpu| gpu.is_idle && !is_explained) {
        return vec![idle(gpu, window.stalls, shares)];
    }
    let mut found = Vec::new();
    if let Some(stalls) = window.stalls.filter(|_| shares.is_starved()) {
        found.push(starved(stalls, window.gpu, shares));
    }
    if let Some(stalls) = window.stalls.filter(|_| shares.pause >= LOSS_NOTICED) {
        let confidence =
            if gpu.is_some_and(|gpu| gpu.busy().is_some()) { Confidence::High } else { Confidence::Medium };
        found.push(finding(
            VerdictClass::TrainerPause,
            shares.pause,
            gain(shares.pause),
            confidence,
            words::pause(stalls, shares),
        ));
    }
    if let Some(gpu) = gpu {
        found.extend(gpu.throttle.and_then(|throttle| throttled(gpu, throttle)));
        found.extend(gpu_gaps(gpu, window.stalls.is_some(), shares));
    }
    if found.is_empty() {
        found.push(healthy(window, gpu, shares));
    }
    found
}

fn finding(class: VerdictClass, loss_share: f64, gain: Option<f64>, confidence: Confidence, words: String) -> Finding {
    Finding { class, loss_share, gain, confidence, words }
}

/// The factor by which a run without a loss of `share` would be faster.
fn gain(share: f64) -> Option<f64> {
    (share < 0.995).then(|| 1.0 / (1.0 - share))
}

fn idle(gpu: &GpuReading, stalls: Option<&Stalls>, shares: &Shares) -> Finding {
    // Steps that do not wait, beside a GPU that does nothing, are computed elsewhere.
    let is_elsewhere = stalls.is_some() && shares.starved.is_some_and(|starved| starved < 0.5);
    let confidence = if is_elsewhere { Confidence::Low } else { Confidence::High };
    finding(VerdictClass::Idle, 1.0, None, confidence, words::idle(gpu, shares, is_elsewhere))
}

fn starved(stalls: &Stalls, gpu: Option<&GpuReading>, shares: &Shares) -> Finding {
    let share = shares.starved.unwrap_or(0.0);
    let class = if shares.copy > shares.wait.unwrap_or(0.0) { copy_class(stalls, gpu) } else { waiting_class(stalls) };
    let confidence = match shares.idle {
        // The GPU idled as long as was waited, within what a window can show.
        Some(idle) if idle >= share - LOSS_NOTICED => Confidence::High,
        Some(_) => Confidence::Low,
        None => Confidence::Medium,
    };
    finding(class, share, gain(share), confidence, words::starved(class, stalls, gpu, shares))
}

/// What was waited for longest; where the sampler saw none of the waits, workers that were busy tell.
fn waiting_class(stalls: &Stalls) -> VerdictClass {
    if stalls.first_batch_s > stalls.waited_s.unwrap_or(0.0) / 2.0 {
        return VerdictClass::StartUp;
    }
    let seconds = |cause: WaitCause| stalls.waiting_s.get(cause.name()).copied().unwrap_or(0.0);
    let longest = [WaitCause::Decode, WaitCause::Storage, WaitCause::Slots, WaitCause::Start]
        .into_iter()
        .reduce(|best, next| if seconds(next) > seconds(best) { next } else { best });
    match longest.filter(|cause| seconds(*cause) > 0.0) {
        Some(cause) => VerdictClass::waiting_on(cause),
        None if stalls.workers_busy.is_some_and(|busy| busy > WORKERS_BUSY) => VerdictClass::WaitingOnDecode,
        None => VerdictClass::Starved,
    }
}

fn copy_class(stalls: &Stalls, gpu: Option<&GpuReading>) -> VerdictClass {
    let Some((link_gb_s, is_below)) = gpu.and_then(|gpu| gpu.link) else { return VerdictClass::WaitingOnCopy };
    match words::copy_gb_s(stalls, gpu) {
        _ if is_below => VerdictClass::WaitingOnPcie,
        Some(gb_s) if gb_s < link_gb_s * LINK_SHARE_PINNED => VerdictClass::WaitingOnPageableCopy,
        Some(_) => VerdictClass::WaitingOnPcie,
        None => VerdictClass::WaitingOnCopy,
    }
}

fn throttled(gpu: &GpuReading, throttle: Throttle) -> Option<Finding> {
    const THERMAL: u64 = clock_reasons::SOFTWARE_THERMAL | clock_reasons::HARDWARE_THERMAL;
    const POWER: u64 = clock_reasons::SOFTWARE_POWER_CAP | clock_reasons::HARDWARE_POWER_BRAKE;
    // A full load at the power limit loses some clock by design.
    let is_usual = throttle.bits == clock_reasons::SOFTWARE_POWER_CAP
        && throttle.clock_loss.is_some_and(|loss| loss < CLOCK_LOSS_USUAL);
    if throttle.share < LOSS_NOTICED || is_usual {
        return None;
    }
    // Heat first: it is the one that gets worse.
    let class = match throttle.bits {
        bits if bits & THERMAL != 0 => VerdictClass::ThrottledThermal,
        bits if bits & POWER != 0 => VerdictClass::ThrottledPower,
        _ => VerdictClass::ThrottledHardware,
    };
    let loss = throttle.clock_loss.map(|loss| loss * throttle.share);
    let confidence =
        if throttle.clock_loss.is_some_and(|loss| loss > 0.0) { Confidence::High } else { Confidence::Medium };
    Some(finding(class, loss.unwrap_or(LOSS_NOTICED), loss.and_then(gain), confidence, words::throttled(gpu, throttle)))
}

/// Kernels that do next to nothing, that are too small, or that have gaps between them.
fn gpu_gaps(gpu: &GpuReading, has_steps: bool, shares: &Shares) -> Option<Finding> {
    let busy = shares.busy?;
    // With the little computing that is left beside waits and pauses, nothing can be said of it.
    if shares.rest < LOSS_NOTICED {
        return None;
    }
    let is_always_busy = busy >= ALWAYS_BUSY;
    let has_launches = gpu.received_mib_s.is_some_and(|mib_s| mib_s > LAUNCH_TRAFFIC_MIB_S);
    if let Some(confidence) = hollow(gpu) {
        let lost = shares.rest * (1.0 - gpu.sm.unwrap_or(0.0)).max(0.0);
        let class = if is_always_busy && !has_launches { VerdictClass::FakeBusy } else { VerdictClass::LaunchBound };
        let gain = if class == VerdictClass::LaunchBound { gain(shares.rest * (1.0 - busy)) } else { None };
        return Some(finding(class, lost, gain, confidence, words::hollow(class, gpu, shares)));
    }
    let idle_share = shares.rest * (1.0 - busy);
    if gpu.fullness().is_some_and(|fullness| fullness < FULLNESS_SMALL) && gpu.is_power_working() != Some(true) {
        // Few multiprocessors hold something: kernels of collectives that wait for other GPUs, or small kernels one by one.
        let class = if is_always_busy && !has_launches { VerdictClass::SyncBound } else { VerdictClass::LaunchBound };
        let lost = shares.rest * (1.0 - gpu.sm.unwrap_or(0.0));
        return Some(finding(class, lost, gain(idle_share), Confidence::Low, words::hollow(class, gpu, shares)));
    }
    if (1.0 - busy) / busy.max(1e-3) < RATIO_HEALTHY {
        return None;
    }
    if !has_steps {
        let confidence = if gpu.graphics.is_some() { Confidence::Medium } else { Confidence::Low };
        return Some(finding(
            VerdictClass::Underused,
            idle_share,
            gain(idle_share),
            confidence,
            words::underused(gpu, shares),
        ));
    }
    if shares.wait.is_none() {
        return Some(finding(
            VerdictClass::Underused,
            idle_share,
            gain(idle_share),
            Confidence::Low,
            words::underused(gpu, shares),
        ));
    }
    let confidence = if gpu.fullness().is_some() { Confidence::Medium } else { Confidence::Low };
    Some(finding(VerdictClass::SyncBound, idle_share, gain(idle_share), confidence, words::gaps(gpu, shares)))
}

/// Whether kernels do next to nothing, and how sure that is. Multiprocessors' activity decides where it is known;
/// otherwise memory that is not touched and power near idle have to agree, or one of them stands alone.
fn hollow(gpu: &GpuReading) -> Option<Confidence> {
    let is_untouched = gpu.mem_util.map(|percent| percent < MEMORY_UNTOUCHED);
    let others = [is_untouched, gpu.is_power_near_idle()];
    let (agree, disagree) = (others.contains(&Some(true)), others.contains(&Some(false)));
    match gpu.fullness() {
        Some(fullness) if fullness < FULLNESS_HOLLOW => {
            Some(if disagree { Confidence::Medium } else { Confidence::High })
        }
        Some(_) => None,
        None if disagree || !agree => None,
        None if others.iter().all(Option::is_some) => Some(Confidence::Medium),
        None => Some(Confidence::Low),
    }
}

/// Nothing costs time: what keeps the run busy, as far as it is known.
fn healthy(window: Window<'_>, gpu: Option<&GpuReading>, shares: &Shares) -> Finding {
    let by_gpu = gpu.filter(|_| shares.busy.is_some()).and_then(working);
    let (class, confidence) = match (by_gpu, window.stalls) {
        (Some(found), _) => found,
        (None, Some(stalls)) if stalls.waited_s.is_some() => match stalls.full_share {
            Some(share) if share > FULL_SHARE_TRAINER_BOUND => (VerdictClass::TrainerBound, Confidence::Medium),
            // Utilisation says that the GPU is busy, and nothing that it works.
            _ if shares.busy.is_some() => (VerdictClass::TrainerBound, Confidence::Low),
            _ => (VerdictClass::Fed, Confidence::Medium),
        },
        _ => (VerdictClass::Unknown, Confidence::Low),
    };
    finding(class, 0.0, None, confidence, words::healthy(class, window, shares))
}

/// What a busy GPU works at, if anything besides its utilisation says that it works.
fn working(gpu: &GpuReading) -> Option<(VerdictClass, Confidence)> {
    if let Some(dram) = gpu.dram_while_busy() {
        let class = if dram >= MEMORY_BOUND { VerdictClass::MemoryBound } else { VerdictClass::ComputeBound };
        return Some((class, if gpu.sm.is_some() { Confidence::High } else { Confidence::Medium }));
    }
    let duty = gpu.mem_util.zip(gpu.util).map(|(memory, util)| memory / 100.0 / util.max(0.01));
    let by_duty = match duty {
        Some(duty) if duty >= MEMORY_DUTY_BOUND => VerdictClass::MemoryBound,
        Some(_) => VerdictClass::ComputeBound,
        None => VerdictClass::Healthy,
    };
    match (gpu.is_power_working(), gpu.mem_util) {
        // Multiprocessors have work: the GPU would not be here otherwise.
        _ if gpu.fullness().is_some() => Some((by_duty, Confidence::Medium)),
        (Some(true), _) => Some((by_duty, Confidence::Medium)),
        (Some(false), _) => None,
        (None, Some(memory)) if memory >= MEMORY_WORKING => Some((by_duty, Confidence::Low)),
        (None, _) => None,
    }
}
