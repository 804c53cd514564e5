//! Verdicts for a person: the numbers that they rest on, and what to do.

use super::class::VerdictClass;
use super::host::Stalls;
use super::limits::{ALWAYS_BUSY, LINK_SHARE_PINNED, WAIT_SHARE_MENTIONED};
use super::reading::{GpuReading, Throttle};
use super::{Evidence, Shares, Window, usual_reading};
use crate::telemetry::gpu::{GpuFaultKind, clock_reasons};

/// A share in per cent.
fn percent(share: f64) -> String {
    // One multiprocessor of 132, and less, is not nothing.
    let digits = if share > 0.0 && share < 0.01 { 2 } else { 1 };
    format!("{:.digits$} %", share * 100.0)
}

/// All figures that there are.
pub(super) fn evidence(window: Window<'_>, shares: &Shares) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    let mut note = |name: &'static str, value: Option<f64>| {
        if let Some(value) = value {
            evidence.push(Evidence { name, value });
        }
    };
    if let Some(stalls) = window.stalls {
        note("wait_share", shares.wait);
        note("copy_share", Some(shares.copy));
        note("pause_share", Some(shares.pause));
        note("window_s", Some(stalls.wall_s));
        note("step_usual_s", stalls.pauses.map(|pauses| pauses.usual_s));
        note("workers", stalls.workers.map(f64::from));
        note("workers_busy_share", stalls.workers_busy);
        note(
            "read_mb_s",
            stalls.read_bytes.filter(|_| stalls.wall_s > 0.0).map(|bytes| bytes as f64 / stalls.wall_s / 1e6),
        );
        note("reads_in_flight", stalls.reads_in_flight.map(f64::from));
        note("ring_full_share", stalls.full_share);
    }
    if let Some(gpu) = window.gpu {
        note("gpu_samples", Some(gpu.samples as f64));
        note("gpu_util_share", gpu.util);
        note("mem_util_share", gpu.mem_util.map(|share| share / 100.0));
        note("graphics_share", gpu.graphics);
        note("sm_share", gpu.sm);
        note("tensor_share", gpu.tensor);
        note("dram_share", gpu.dram);
        note("pcie_received_mib_s", gpu.received_mib_s);
        note("power_w", gpu.power_w);
        note("power_idle_w", gpu.idle_w);
        note("power_limit_w", gpu.power_limit_w);
        note("sm_mhz", gpu.sm_mhz);
        note("temp_c_max", gpu.temp_c);
        note("throttled_share", gpu.throttle.map(|throttle| throttle.share));
        note("clock_loss_share", gpu.throttle.and_then(|throttle| throttle.clock_loss));
        note("pcie_replays", gpu.replays);
        note("ecc_uncorrected", gpu.ecc_uncorrected);
        note("gpu_fault_share", gpu.fault.as_ref().map(|(share, _)| *share));
    }
    evidence
}

/// What the GPU's figures are, in a row.
fn gpu_figures(gpu: &GpuReading) -> String {
    let mut parts = Vec::new();
    let mut note = |name: &str, share: Option<f64>| {
        if let Some(share) = share {
            parts.push(format!("{name} {}", percent(share)));
        }
    };
    note("utilisation", gpu.util);
    note("SM activity", gpu.sm);
    note("memory bandwidth", gpu.dram);
    if gpu.dram.is_none() {
        note("memory duty cycle", gpu.mem_util.map(|share| share / 100.0));
    }
    note("tensor activity", gpu.tensor);
    if let Some(watts) = gpu.power_w {
        let limit = gpu.power_limit_w.map(|limit_w| format!(" of {limit_w:.0}")).unwrap_or_default();
        let idle = gpu.idle_w.map(|idle_w| format!(" ({idle_w:.0} idle)")).unwrap_or_default();
        parts.push(format!("{watts:.0}{limit} W{idle}"));
    }
    if let Some((share, fault)) = &gpu.fault {
        parts.push(format!("no figures {} of the time: {fault}", percent(*share)));
    }
    if !gpu.xids.is_empty() {
        parts.push(format!("Xid {:?}", gpu.xids));
    }
    if parts.is_empty() { "no figures".to_owned() } else { parts.join(", ") }
}

/// How long was waited, of what.
fn waited(stalls: &Stalls, shares: &Shares) -> String {
    let Some(waited_s) = stalls.waited_s else { return "waits were not recorded".to_owned() };
    let ratio =
        shares.ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} of computing: {}", usual_reading(ratio)));
    let starved = shares.starved.unwrap_or(0.0);
    // Both figures where they differ, and never one for the other.
    let gpu_starved = if (starved - stalls.share(waited_s)).abs() > 0.02 {
        format!("; GPU starved {}", percent(starved))
    } else {
        String::new()
    };
    format!(
        "{} of the time waiting ({waited_s:.2} of {:.2} s){gpu_starved}{ratio}",
        percent(stalls.share(waited_s)),
        stalls.wall_s
    )
}

pub(super) fn lost(gpu: &GpuReading) -> String {
    let said = match &gpu.fault {
        Some((share, fault)) if fault.kind == GpuFaultKind::GpuLost => {
            format!("{} of the time: {}", percent(*share), fault.words)
        }
        _ => format!("Xid {:?}", gpu.xids),
    };
    format!("GPU lost: {said}; {}", GpuFaultKind::GpuLost.advice())
}

pub(super) fn idle(gpu: &GpuReading, shares: &Shares, is_elsewhere: bool) -> String {
    let figures = gpu_figures(gpu);
    match shares.starved {
        _ if is_elsewhere => {
            format!("idle: steps go on, and no kernel ran on this GPU ({figures}); is it the right one?")
        }
        Some(starved) => format!(
            "idle: no kernel ran ({figures}); starved {} of the time, there was nothing to do",
            percent(starved)
        ),
        None => format!("idle: no kernel ran ({figures})"),
    }
}

pub(super) fn starved(class: VerdictClass, stalls: &Stalls, gpu: Option<&GpuReading>, shares: &Shares) -> String {
    let waited = waited(stalls, shares);
    let share = shares.starved.unwrap_or(0.0);
    let faster = 1.0 / (1.0 - share).max(0.005);
    let advice = match class {
        VerdictClass::WaitingOnStorage => {
            let now = stalls.read_bytes.filter(|_| stalls.wall_s > 0.0).map(|bytes| bytes as f64 / stalls.wall_s / 1e6);
            let rate = now.map_or_else(String::new, |now| {
                format!("reads deliver {now:.0} MB/s and would have to deliver {:.0}", now * faster)
            });
            let depth = stalls.reads_in_flight.map_or_else(String::new, |reads| format!(", {reads} in flight"));
            format!("{rate}{depth}; faster or local storage would help, or order='block'")
        }
        VerdictClass::WaitingOnDecode => match stalls.workers.filter(|workers| *workers > 0) {
            Some(workers) => {
                let more = (f64::from(workers) * share / (1.0 - share).max(0.01)).ceil();
                format!(
                    "{workers} worker(s) are busy; {more:.0} more cores or `feedline convert --optimize` would end it"
                )
            }
            None => "more cores or `feedline convert --optimize` would end it".to_owned(),
        },
        VerdictClass::WaitingOnSlots => "the trainer holds every batch; release batches or raise slots=".to_owned(),
        VerdictClass::StartUp => {
            format!("of which {:.2} s for the first batch; a longer run tells more", stalls.first_batch_s)
        }
        VerdictClass::WaitingOnCopy | VerdictClass::WaitingOnPageableCopy | VerdictClass::WaitingOnPcie => {
            copy_advice(class, stalls, gpu, shares)
        }
        _ => "what for was not recorded: Feedline's own line after an epoch says it".to_owned(),
    };
    let figures = gpu.map_or_else(String::new, |gpu| format!("; {}", gpu_figures(gpu)));
    format!("{}: {waited}; {advice}{figures}", class.words())
}

fn copy_advice(class: VerdictClass, stalls: &Stalls, gpu: Option<&GpuReading>, shares: &Shares) -> String {
    let rate = copy_gb_s(stalls, gpu).map_or_else(String::new, |gb_s| format!(" at {gb_s:.1} GB/s"));
    let link = gpu.and_then(|gpu| gpu.link);
    let of = link.map_or_else(String::new, |(gb_s, _)| format!(" of the link's {gb_s:.0}"));
    let what = match class {
        VerdictClass::WaitingOnPageableCopy => {
            format!(
                "page-locked memory reaches {:.0} % of a link and more: pin_memory=True or device=\"cuda\"",
                LINK_SHARE_PINNED * 100.0
            )
        }
        VerdictClass::WaitingOnPcie if link.is_some_and(|(_, is_below)| is_below) => {
            "the link runs below what GPU and slot can: reseat the board, or look at the BIOS and at pcie_replay"
                .to_owned()
        }
        VerdictClass::WaitingOnPcie => {
            "copy uint8 and normalise on the GPU, or copy ahead with device=\"cuda\"".to_owned()
        }
        _ => "page-locked memory and copies ahead (device=\"cuda\") would help".to_owned(),
    };
    format!("copies take {}{rate}{of}; {what}", percent(shares.copy))
}

/// GB/s while copying: from the bytes that the steps name, else from the link's mean traffic.
pub(super) fn copy_gb_s(stalls: &Stalls, gpu: Option<&GpuReading>) -> Option<f64> {
    if stalls.copied_s <= 0.0 {
        return None;
    }
    let bytes = stalls.h2d_bytes.map(|bytes| bytes as f64);
    let by_link = || Some(gpu?.received_mib_s? * f64::from(1 << 20) * stalls.wall_s);
    bytes.or_else(by_link).map(|bytes| bytes / stalls.copied_s / 1e9)
}

pub(super) fn pause(stalls: &Stalls, shares: &Shares) -> String {
    let pauses = stalls.pauses.map_or_else(String::new, |pauses| {
        format!(": {} of up to {:.2} s, where a step takes {:.3} s", pauses.count, pauses.longest_s, pauses.usual_s)
    });
    format!(
        "trainer pauses {} of the time{pauses}; not for want of data: checkpoints, logging or evaluation in the loop. Save in \
         another thread, or less often; {}",
        percent(shares.pause),
        waited(stalls, shares)
    )
}

pub(super) fn throttled(gpu: &GpuReading, throttle: Throttle) -> String {
    let names = [
        (clock_reasons::SOFTWARE_THERMAL, "software thermal slowdown"),
        (clock_reasons::HARDWARE_THERMAL, "hardware thermal slowdown"),
        (clock_reasons::SOFTWARE_POWER_CAP, "software power cap"),
        (clock_reasons::HARDWARE_POWER_BRAKE, "hardware power brake"),
        (clock_reasons::HARDWARE_SLOWDOWN, "hardware slowdown"),
    ];
    let which: Vec<&str> = names.iter().filter(|(bit, _)| throttle.bits & bit != 0).map(|(_, name)| *name).collect();
    let loss = throttle.clock_loss.map_or_else(String::new, |loss| format!(", SM clock {} lower", percent(loss)));
    let temperature = gpu.temp_c.map_or_else(String::new, |degrees| format!(", {degrees:.0} °C"));
    let advice = if throttle.bits & (clock_reasons::SOFTWARE_THERMAL | clock_reasons::HARDWARE_THERMAL) != 0 {
        "look at fans, air flow and inlet temperature"
    } else {
        "look at the power limit (nvidia-smi -q -d POWER) and the power supply"
    };
    format!(
        "throttled, not starved: {} {} of the time{loss}{temperature}; {advice}; {}",
        which.join(", "),
        percent(throttle.share),
        gpu_figures(gpu)
    )
}

pub(super) fn hollow(class: VerdictClass, gpu: &GpuReading, shares: &Shares) -> String {
    let busy = percent(shares.busy.unwrap_or(0.0));
    let figures = gpu_figures(gpu);
    match class {
        VerdictClass::FakeBusy => format!(
            "fake busy: a kernel runs {busy} of the time and does next to nothing ({figures}); it spins or hangs: a deadlocked \
             collective, or one thread's loop; py-spy dump and NCCL_DEBUG=INFO say where"
        ),
        VerdictClass::SyncBound => format!(
            "synchronisation-bound: kernels hold a few multiprocessors all the time ({figures}), as collectives do that wait for \
             other GPUs; compare the ranks' step times"
        ),
        _ => format!(
            "launch-bound: kernels run {busy} of the computing time and hardly fill the GPU ({figures}); larger batches, \
             torch.compile or CUDA graphs would help"
        ),
    }
}

pub(super) fn gaps(gpu: &GpuReading, shares: &Shares) -> String {
    format!(
        "synchronisation-bound: data are there, and the GPU idles {} of the computing time between kernels that fill it ({}); \
         .item(), .cpu() and printing a loss wait for the GPU, and Python takes time to go on",
        percent(1.0 - shares.busy.unwrap_or(0.0)),
        gpu_figures(gpu)
    )
}

pub(super) fn underused(gpu: &GpuReading, shares: &Shares) -> String {
    format!(
        "underused: the GPU idles {} of the time ({}); without step times nobody can say whether for data, for the trainer or \
         for other GPUs",
        percent(shares.idle.unwrap_or(0.0)),
        gpu_figures(gpu)
    )
}

pub(super) fn healthy(class: VerdictClass, window: Window<'_>, shares: &Shares) -> String {
    let Window { stalls, gpu } = window;
    let figures = gpu.map_or_else(String::new, |gpu| format!("; {}", gpu_figures(gpu)));
    let waited = stalls.map_or_else(String::new, |stalls| format!(": {}", waited(stalls, shares)));
    let cause = match stalls.filter(|_| shares.wait.is_some_and(|wait| wait >= WAIT_SHARE_MENTIONED)) {
        Some(stalls) => most_waited_for(stalls).map_or_else(String::new, |cause| format!(", mostly for {cause}")),
        None => String::new(),
    };
    match class {
        VerdictClass::Fed => format!("fed{waited}{cause}; loader and trainer keep pace{figures}"),
        VerdictClass::TrainerBound if shares.busy.is_some_and(|busy| busy >= ALWAYS_BUSY) => format!(
            "trainer-bound{waited}{cause}; batches are there; whether the GPU works well, utilisation alone does not say{figures}"
        ),
        VerdictClass::TrainerBound => {
            format!("trainer-bound{waited}{cause}; batches are ready before they are asked for{figures}")
        }
        VerdictClass::Unknown => {
            let why = if shares.busy.is_some() {
                "utilisation says only that some kernel ran"
            } else {
                "too little was measured"
            };
            format!("unknown{waited}: {why}{figures}")
        }
        _ => format!("{}{waited}{cause}{figures}", class.words()),
    }
}

/// The cause with most of the waiting.
fn most_waited_for(stalls: &Stalls) -> Option<&str> {
    let most = stalls.waiting_s.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    (*most.1 > 0.0).then_some(most.0.as_str())
}
