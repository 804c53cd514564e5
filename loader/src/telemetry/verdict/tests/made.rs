//! Made-up windows: one for each class, and the cases of public bug reports.

use std::collections::BTreeMap;

use crate::telemetry::gpu::{Gpm, GpuFault, GpuFaultKind, GpuSample, clock_reasons};
use crate::telemetry::verdict::{Confidence, Stalls, Step, Timeline, Verdict, VerdictClass, VerdictClass::*};

/// A GPU's state; `None` is not told.
#[derive(Clone, Copy)]
struct Gpu {
    util: Option<f64>,
    memory: Option<f64>,
    watts: Option<f64>,
    limit_w: Option<f64>,
    /// Graphics, SM and memory bandwidth.
    gpm: Option<(f64, f64, f64)>,
    received_mib_s: Option<f64>,
    reasons: Option<u64>,
    mhz: Option<f64>,
    mhz_max: Option<f64>,
    link: Option<(u64, u64)>,
}

/// Computing at full load on a board of 700 W.
const FULL: Gpu = Gpu {
    util: Some(97.0),
    memory: Some(55.0),
    watts: Some(580.0),
    limit_w: Some(700.0),
    gpm: Some((97.0, 88.0, 45.0)),
    received_mib_s: Some(50.0),
    reasons: Some(0),
    mhz: Some(1980.0),
    mhz_max: Some(1980.0),
    link: Some((5, 16)),
};

/// Nothing is told.
const SILENT: Gpu = Gpu {
    util: None,
    memory: None,
    watts: None,
    limit_w: None,
    gpm: None,
    received_mib_s: None,
    reasons: None,
    mhz: None,
    mhz_max: None,
    link: None,
};

impl Gpu {
    fn sample(self, t: f64) -> GpuSample {
        GpuSample {
            t,
            gpu_util: self.util,
            mem_util: self.memory,
            power_mw: self.watts.map(|watts| watts * 1e3),
            power_limit_mw: self.limit_w.map(|watts| watts * 1e3),
            sm_mhz: self.mhz,
            sm_mhz_max: self.mhz_max,
            clock_reasons: self.reasons,
            pcie_gen: self.link.map(|link| link.0),
            pcie_width: self.link.map(|link| link.1),
            pcie_gen_max: self.link.map(|_| 5),
            pcie_width_max: self.link.map(|_| 16),
            gpm: self.gpm.map(|(graphics, sm, dram)| Gpm {
                graphics_util: Some(graphics),
                sm_util: Some(sm),
                dram_bw_util: Some(dram),
                pcie_rx_mib_s: self.received_mib_s,
                ..Gpm::default()
            }),
            ..GpuSample::default()
        }
    }

    /// Five seconds of it.
    fn samples(self) -> Vec<GpuSample> {
        (0..=50).map(|at| self.sample(f64::from(at) * 0.1)).collect()
    }
}

/// Five seconds of steps of 0.1 s, of which `wait_s` were waited and `h2d_s` copied.
fn steps(wait_s: f64, h2d_s: f64) -> Vec<Step> {
    (1..=50)
        .map(|at| Step {
            t: f64::from(at) * 0.1,
            wait_s: Some(wait_s),
            h2d_s: Some(h2d_s),
            step_s: Some(0.1),
            ..Step::default()
        })
        .collect()
}

fn overall(samples: &[GpuSample], steps: &[Step]) -> Verdict {
    Timeline::of(samples, steps, 5.0).overall.verdict
}

fn check(gpu: Gpu, steps: &[Step], class: VerdictClass, confidence: Confidence) -> Verdict {
    let verdict = overall(&gpu.samples(), steps);
    assert_eq!((verdict.class, verdict.confidence), (class, confidence), "{}", verdict.words);
    verdict
}

#[test]
fn a_working_gpu_is_healthy_by_more_than_its_utilisation() {
    let fed = steps(0.0, 0.0);
    check(FULL, &fed, ComputeBound, Confidence::High);
    check(FULL, &[], ComputeBound, Confidence::High);
    check(Gpu { gpm: Some((98.0, 96.0, 86.0)), ..FULL }, &fed, MemoryBound, Confidence::High);
    check(Gpu { gpm: None, ..FULL }, &fed, ComputeBound, Confidence::Medium);
    check(Gpu { gpm: None, memory: Some(95.0), ..FULL }, &fed, MemoryBound, Confidence::Medium);
    check(Gpu { gpm: None, watts: None, limit_w: None, ..FULL }, &fed, ComputeBound, Confidence::Low);
}

#[test]
fn utilisation_alone_never_means_healthy() {
    // Case 88: 97 %, half of the power.
    let half = Gpu { gpm: None, memory: None, watts: Some(350.0), ..FULL };
    check(half, &[], Unknown, Confidence::Low);
    check(half, &steps(0.0, 0.0), TrainerBound, Confidence::Low);
    // And an empty ring beside it.
    check(half, &steps(0.06, 0.0), Starved, Confidence::Low);
    check(Gpu { util: Some(100.0), ..SILENT }, &[], Unknown, Confidence::Low);
}

#[test]
fn a_hollow_kernel_is_fake_busy() {
    let spin =
        Gpu { memory: Some(0.0), watts: Some(125.0), gpm: Some((99.5, 0.75, 0.0)), received_mib_s: Some(1.0), ..FULL };
    check(spin, &steps(0.0, 0.0), FakeBusy, Confidence::High);
    check(spin, &[], FakeBusy, Confidence::High);
    check(Gpu { gpm: None, ..spin }, &[], FakeBusy, Confidence::Medium);
    check(Gpu { gpm: None, memory: None, ..spin }, &[], FakeBusy, Confidence::Low);
    check(Gpu { gpm: None, watts: None, ..spin }, &[], FakeBusy, Confidence::Low);
    // A GPU that computes for the loader's waits beside: the spinning kernel is no work, and the ring is empty.
    check(spin, &steps(0.02, 0.0), FakeBusy, Confidence::High);
    // Tiny kernels back to back are launched, which is traffic.
    check(Gpu { received_mib_s: Some(180.0), ..spin }, &steps(0.0, 0.0), LaunchBound, Confidence::High);
}

#[test]
fn gaps_between_kernels_are_launches_or_synchronisation() {
    let tiny = Gpu { util: Some(22.0), memory: Some(0.0), watts: Some(125.0), gpm: Some((22.0, 0.03, 0.0)), ..FULL };
    check(tiny, &steps(0.0, 0.0), LaunchBound, Confidence::High);
    check(tiny, &[], LaunchBound, Confidence::High);
    check(Gpu { gpm: None, ..tiny }, &[], LaunchBound, Confidence::Medium);
    let gaps = Gpu { util: Some(50.0), memory: Some(28.0), watts: Some(340.0), gpm: Some((50.0, 45.0, 22.0)), ..FULL };
    check(gaps, &steps(0.0, 0.0), SyncBound, Confidence::Medium);
    // Without steps nobody knows what for.
    let verdict = check(gaps, &[], Underused, Confidence::Medium);
    assert_eq!(verdict.starved_share, None);
    assert!((verdict.starved_share_max.unwrap() - 0.5).abs() < 0.01);
    // Few multiprocessors, always: collectives.
    let collective = Gpu { gpm: Some((99.0, 12.0, 1.0)), watts: Some(200.0), received_mib_s: Some(2.0), ..FULL };
    check(collective, &steps(0.0, 0.0), SyncBound, Confidence::Low);
}

#[test]
fn starving_has_the_loaders_cause() {
    let gpu = Gpu { util: Some(40.0), memory: Some(22.0), watts: Some(300.0), gpm: Some((40.0, 36.0, 18.0)), ..FULL };
    let cause = |name: &str| {
        let mut steps = steps(0.06, 0.0);
        for step in &mut steps {
            step.waiting_s = BTreeMap::from([(name.to_owned(), 0.05)]);
            step.workers = Some(10);
            step.read_bytes = Some(1_000_000);
        }
        steps
    };
    let decode = check(gpu, &cause("decode"), WaitingOnDecode, Confidence::High);
    assert!(decode.words.contains("15 more cores or `feedline convert --optimize`"), "{}", decode.words);
    assert!((decode.starved_share.unwrap() - 0.6).abs() < 0.01 && (decode.gain.unwrap() - 2.5).abs() < 0.1);
    let storage = check(gpu, &cause("storage"), WaitingOnStorage, Confidence::High);
    assert!(storage.words.contains("reads deliver 10 MB/s and would have to deliver 25"), "{}", storage.words);
    check(gpu, &cause("slots"), WaitingOnSlots, Confidence::High);
    check(gpu, &cause("start"), StartUp, Confidence::High);
    check(gpu, &steps(0.06, 0.0), Starved, Confidence::High);
    // Nothing ran at all, and the loader knows why.
    let still = Gpu { util: Some(0.0), gpm: Some((0.0, 0.0, 0.0)), ..gpu };
    check(still, &cause("storage"), WaitingOnStorage, Confidence::High);
    check(still, &steps(0.0999, 0.0), Idle, Confidence::High);
    // By the loader's side only.
    let alone = check(SILENT, &cause("decode"), WaitingOnDecode, Confidence::Medium);
    assert_eq!(alone.rests_on, "the loader's side only");
    assert_eq!(overall(&[], &cause("decode")).rests_on, "the loader's side only");
}

#[test]
fn a_wait_that_the_gpu_spent_computing_is_no_starving() {
    // Python ran ahead: it was blocked for 60 % of the time, and the GPU never idled.
    let verdict = check(FULL, &steps(0.06, 0.0), ComputeBound, Confidence::High);
    assert!((verdict.wait_share.unwrap() - 0.6).abs() < 0.01);
    assert!(verdict.starved_share.unwrap() < 0.04);
    assert!(verdict.words.contains("GPU starved 3.0 %"), "{}", verdict.words);
}

#[test]
fn the_usual_rule_decides_what_counts() {
    for (wait_s, expected) in [(0.0, Fed), (0.0225, Fed), (0.0235, Starved), (0.05, Starved)] {
        assert_eq!(overall(&[], &steps(wait_s, 0.0)).class, expected, "{wait_s}");
    }
    let words = |wait_s: f64| overall(&[], &steps(wait_s, 0.0)).words;
    assert!(words(0.01).contains("0.11 of computing: healthy, below 0.3"), "{}", words(0.01));
    assert!(words(0.06).contains("1.50 of computing: held back, above 0.8"), "{}", words(0.06));
}

#[test]
fn copies_are_pageable_or_the_links() {
    let gpu = |gb_s: f64, link| Gpu {
        util: Some(55.0),
        gpm: Some((55.0, 50.0, 20.0)),
        // Copies take 40 % of the time.
        received_mib_s: Some(gb_s * 0.4 * 1e9 / f64::from(1 << 20)),
        link,
        ..FULL
    };
    let copying = steps(0.0, 0.04);
    let verdict = check(gpu(9.0, Some((5, 16))), &copying, WaitingOnPageableCopy, Confidence::High);
    assert!(verdict.words.contains("copies take 40.0 % at 9.0 GB/s of the link's 63"), "{}", verdict.words);
    check(gpu(52.0, Some((5, 16))), &copying, WaitingOnPcie, Confidence::High);
    let slow = check(gpu(3.0, Some((1, 16))), &copying, WaitingOnPcie, Confidence::High);
    assert!(slow.words.contains("the link runs below"), "{}", slow.words);
    check(gpu(9.0, None), &copying, WaitingOnCopy, Confidence::High);
    assert_eq!(overall(&[], &copying).class, WaitingOnCopy);
}

#[test]
fn lowered_clocks_are_throttling_unless_they_are_usual() {
    let fed = steps(0.0, 0.0);
    let with = |reasons: u64, mhz: f64| Gpu { reasons: Some(reasons), mhz: Some(mhz), ..FULL };
    // Case 87: the thermal bit, and a full ring.
    let hot = check(with(clock_reasons::HARDWARE_THERMAL, 1200.0), &fed, ThrottledThermal, Confidence::High);
    assert!(
        hot.words
            .contains("throttled, not starved: hardware thermal slowdown 100.0 % of the time, SM clock 39.4 % lower"),
        "{}",
        hot.words
    );
    assert!((hot.gain.unwrap() - 1.65).abs() < 0.01);
    check(with(clock_reasons::SOFTWARE_THERMAL, 1980.0), &fed, ThrottledThermal, Confidence::Medium);
    check(with(clock_reasons::SOFTWARE_POWER_CAP, 1300.0), &fed, ThrottledPower, Confidence::High);
    check(with(clock_reasons::HARDWARE_POWER_BRAKE, 1300.0), &fed, ThrottledPower, Confidence::High);
    check(with(clock_reasons::HARDWARE_SLOWDOWN, 900.0), &fed, ThrottledHardware, Confidence::High);
    check(with(clock_reasons::SOFTWARE_POWER_CAP, 1930.0), &fed, ComputeBound, Confidence::High);
    let unknown = Gpu { mhz: None, mhz_max: None, ..with(clock_reasons::SOFTWARE_POWER_CAP, 0.0) };
    check(unknown, &fed, ThrottledPower, Confidence::Medium);
    // Application clocks and an idle GPU are no throttling.
    check(with(0x3, 1200.0), &fed, ComputeBound, Confidence::High);
}

#[test]
fn the_costlier_cause_is_the_verdict_and_the_other_stands_beside() {
    let gpu = Gpu {
        util: Some(40.0),
        gpm: Some((40.0, 36.0, 18.0)),
        reasons: Some(clock_reasons::SOFTWARE_THERMAL),
        mhz: Some(1700.0),
        ..FULL
    };
    let verdict = check(gpu, &steps(0.06, 0.0), Starved, Confidence::High);
    assert_eq!(verdict.also.iter().map(|other| other.class).collect::<Vec<_>>(), [ThrottledThermal]);
}

#[test]
fn a_lost_gpu_is_named_and_no_data_problem() {
    let fault = |kind: GpuFaultKind| Some(GpuFault { kind, words: "power: device fell off the bus".into() });
    let mut samples = FULL.samples();
    for sample in &mut samples[30..] {
        *sample = GpuSample { t: sample.t, error: fault(GpuFaultKind::GpuLost), ..GpuSample::default() };
    }
    let lost = overall(&samples, &steps(0.0, 0.0)[..29]);
    assert_eq!(lost.class, GpuLost, "{}", lost.words);
    assert!(lost.words.contains("not a data problem"), "{}", lost.words);
    // A driver that does not answer leaves the loader's side.
    for sample in &mut samples {
        *sample = GpuSample { t: sample.t, error: fault(GpuFaultKind::DriverMismatch), ..GpuSample::default() };
    }
    assert_eq!(overall(&samples, &steps(0.06, 0.0)).class, Starved);
    let alone = overall(&samples, &[]);
    assert_eq!(alone.class, Unknown);
    assert!(alone.words.contains("driver-mismatch"), "{}", alone.words);
}

#[test]
fn a_hang_after_the_last_step_counts() {
    let spin =
        Gpu { memory: Some(0.0), watts: Some(125.0), gpm: Some((99.5, 0.75, 0.0)), received_mib_s: Some(1.0), ..FULL };
    let mut samples = FULL.samples();
    samples.extend((51..600).map(|at| spin.sample(f64::from(at) * 0.1)));
    let timeline = Timeline::of(&samples, &steps(0.0, 0.0), 5.0);
    assert_eq!(timeline.overall.verdict.class, FakeBusy, "{}", timeline.overall.verdict.words);
    assert_eq!(timeline.windows[0].verdict.class, ComputeBound);
    assert!(timeline.notices[0].contains("the last step ended 54.9 s before"), "{:?}", timeline.notices);
}

#[test]
fn nothing_is_unknown() {
    for (samples, steps) in [(vec![], vec![]), (SILENT.samples(), vec![]), (vec![], vec![Step::default()])] {
        let verdict = overall(&samples, &steps);
        assert_eq!((verdict.class, verdict.confidence), (Unknown, Confidence::Low), "{}", verdict.words);
    }
    assert_eq!(Stalls::default().share(1.0), 0.0);
}

#[test]
fn steps_beside_an_idle_gpu_are_computed_elsewhere() {
    let still = Gpu { util: Some(0.0), memory: Some(0.0), gpm: Some((0.006, 0.0, 0.0)), watts: Some(124.0), ..FULL };
    let verdict = check(still, &steps(0.0, 0.0), Idle, Confidence::Low);
    assert!(verdict.words.contains("is it the right one?"), "{}", verdict.words);
}
