//! The recordings of a real GPU, as they are and perturbed: each has its class, and its starved share within five points.

use std::path::PathBuf;

use crate::telemetry::gpu::{Gpm, GpuSample};
use crate::telemetry::verdict::{Step, Timeline, VerdictClass, VerdictClass::*};
use crate::telemetry::{read_samples, read_steps};

/// What a case's README says: its class, the classes that the GPU's side alone allows, and the starved share.
const TRUTH: [(&str, VerdictClass, &[VerdictClass], f64); 10] = [
    ("idle", Idle, &[Idle], 1.0),
    ("fed_resnet50", ComputeBound, &[ComputeBound], 0.0),
    ("starved_ratio0.15", ComputeBound, &[ComputeBound], 0.13),
    ("starved_ratio1", Starved, &[Underused], 0.5),
    ("starved_ratio4", Starved, &[Underused], 0.8),
    ("h2d_pinned_uint8", ComputeBound, &[ComputeBound], 0.0),
    ("launch_bound", LaunchBound, &[LaunchBound], 0.0),
    ("spin_one_thread", FakeBusy, &[FakeBusy], 0.0),
    ("memory_bound", MemoryBound, &[MemoryBound], 0.0),
    ("checkpoint_pause", TrainerPause, &[ComputeBound, Underused], 0.0),
];

/// Samples and steps of each case, or a visible skip.
fn traces() -> Option<Vec<(Vec<GpuSample>, Vec<Step>)>> {
    let beside = || Some(PathBuf::from(std::env::var_os("FEEDLINE_PHOTOS")?).parent()?.join("nvml-traces"));
    let named = std::env::var_os("FEEDLINE_TRACES").map(PathBuf::from);
    let Some(folder) = named.or_else(|| beside().filter(|folder| folder.is_dir())) else {
        println!("skipped: no FEEDLINE_TRACES with recordings of a real GPU");
        return None;
    };
    let open = |name: String| {
        let path = folder.join(name);
        let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (text, path)
    };
    let read = |case: &str| {
        let (samples, path) = open(format!("{case}.nvml.jsonl"));
        let samples = read_samples(samples.as_slice(), &path).unwrap();
        let (steps, path) = open(format!("{case}.steps.jsonl"));
        let steps = read_steps(steps.as_slice(), &path).unwrap();
        assert_eq!((samples.skipped.count, steps.skipped.count), (0, 0), "{case}");
        (samples.records, steps.records)
    };
    Some(TRUTH.iter().map(|(case, ..)| read(case)).collect())
}

/// Every case under a perturbation: what it does to samples and to steps.
fn check(name: &str, samples_of: impl Fn(&[GpuSample]) -> Vec<GpuSample>, steps_of: impl Fn(&[Step]) -> Vec<Step>) {
    let Some(traces) = traces() else { return };
    let mut wrong = Vec::new();
    for ((case, class, _, starved), (samples, steps)) in TRUTH.iter().zip(&traces) {
        let verdict = Timeline::of(&samples_of(samples), &steps_of(steps), 5.0).overall.verdict;
        let is_far = verdict.starved_share.is_none_or(|share| (share - starved).abs() > 0.05);
        if verdict.class != *class || is_far {
            wrong.push(format!("{case}: {:?}, starved {:?}: {}", verdict.class, verdict.starved_share, verdict.words));
        }
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

/// The same by the GPU's side alone.
fn check_gpu(name: &str, samples_of: impl Fn(&[GpuSample]) -> Vec<GpuSample>) {
    let Some(traces) = traces() else { return };
    for ((case, _, allowed, _), (samples, _)) in TRUTH.iter().zip(&traces) {
        let verdict = Timeline::of(&samples_of(samples), &[], 5.0).overall.verdict;
        assert!(allowed.contains(&verdict.class), "{name}, {case}: {:?}: {}", verdict.class, verdict.words);
        assert_eq!(verdict.starved_share, None, "{case}");
    }
}

/// A number in [0, 1) from two, always the same.
fn drawn(seed: u64, at: usize) -> f64 {
    let mut bits = (seed << 32) ^ at as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for factor in [0xbf58_476d_1ce4_e5b9_u64, 0x94d0_49bb_1331_11eb] {
        bits = (bits ^ (bits >> 30)).wrapping_mul(factor);
    }
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

fn each<T: Clone>(change: impl Fn(usize, &mut T)) -> impl Fn(&[T]) -> Vec<T> {
    move |all| {
        let mut all = all.to_vec();
        all.iter_mut().enumerate().for_each(|(at, one)| change(at, one));
        all
    }
}

fn without_gpm(all: &[GpuSample]) -> Vec<GpuSample> {
    each(|_, sample: &mut GpuSample| sample.gpm = None)(all)
}

#[test]
fn as_recorded() {
    check("as recorded", <[_]>::to_vec, <[_]>::to_vec);
    check_gpu("as recorded", <[_]>::to_vec);
}

#[test]
fn windows_agree_with_the_whole() {
    let Some(traces) = traces() else { return };
    for ((case, class, ..), (samples, steps)) in TRUTH.iter().zip(&traces) {
        for window in Timeline::of(samples, steps, 2.0).windows {
            let is_right = window.verdict.class == *class
                // Between its pauses a run with pauses is a run without.
                || (*case == "checkpoint_pause" && window.verdict.class == ComputeBound);
            assert!(
                is_right,
                "{case} from {:.1} s: {:?}: {}",
                window.from_s, window.verdict.class, window.verdict.words
            );
        }
    }
}

#[test]
fn thinned() {
    for every in [2, 3, 5] {
        check(
            "thinned",
            |all| all.iter().step_by(every).cloned().collect(),
            |all| all.iter().step_by(every.min(3)).cloned().collect(),
        );
        check_gpu("thinned", |all| all.iter().step_by(every).cloned().collect());
    }
}

#[test]
fn with_holes() {
    for seed in 0..5 {
        let keep = move |at: usize, share: f64| drawn(seed, at) < share;
        check(
            "with holes",
            |all| all.iter().enumerate().filter(|(at, _)| keep(*at, 0.6)).map(|(_, one)| one.clone()).collect(),
            |all| all.to_vec(),
        );
    }
}

#[test]
fn cut() {
    // The first seconds alone, and without those in which nothing ran: there is no idle power to compare with.
    check(
        "end cut",
        |all| all.iter().filter(|sample| sample.t < 7.5).cloned().collect(),
        |all| all.iter().filter(|step| step.t < 7.5).cloned().collect(),
    );
    check(
        "start cut",
        |all| all.iter().filter(|sample| sample.t > 3.0).cloned().collect(),
        |all| all.iter().filter(|step| step.t > 3.0).cloned().collect(),
    );
    check_gpu("start cut", |all| all.iter().filter(|sample| sample.t > 3.0).cloned().collect());
}

#[test]
fn blurred() {
    for seed in 0..5 {
        let factor = move |at: usize| 0.9 + 0.2 * drawn(seed, at);
        let blur = move |at: usize, value: &mut Option<f64>, most: f64| {
            *value = value.map(|value| (value * factor(at)).min(most));
        };
        check(
            "blurred",
            each(move |at, sample: &mut GpuSample| {
                blur(at, &mut sample.gpu_util, 100.0);
                blur(at + 1, &mut sample.mem_util, 100.0);
                blur(at + 2, &mut sample.power_mw, 1e9);
                if let Some(gpm) = &mut sample.gpm {
                    let values = gpm.values();
                    *gpm = Gpm::new(std::array::from_fn(|counter| {
                        values[counter]
                            .map(|value| (value * factor(at + counter)).min(if counter < 7 { 100.0 } else { 1e9 }))
                    }));
                }
            }),
            each(move |at, step: &mut Step| {
                let wait_s = step.wait_s.unwrap();
                let blurred_s = wait_s * factor(at);
                step.step_s = step.step_s.map(|step_s| (step_s - wait_s) * factor(at + 1) + blurred_s);
                step.wait_s = Some(blurred_s);
            }),
        );
    }
}

#[test]
fn without_some_figures() {
    check("no counters", without_gpm, <[_]>::to_vec);
    check_gpu("no counters", without_gpm);
    check("no power", each(|_, sample: &mut GpuSample| sample.power_mw = None), <[_]>::to_vec);
    check(
        "no clocks",
        each(|_, sample: &mut GpuSample| (sample.sm_mhz, sample.clock_reasons) = (None, None)),
        <[_]>::to_vec,
    );
    check(
        "no utilisation",
        each(|_, sample: &mut GpuSample| (sample.gpu_util, sample.mem_util) = (None, None)),
        <[_]>::to_vec,
    );
    check("no memory", each(|_, sample: &mut GpuSample| sample.mem_util = None), <[_]>::to_vec);
    check(
        "no bandwidth",
        each(|_, sample: &mut GpuSample| {
            if let Some(gpm) = &mut sample.gpm {
                gpm.dram_bw_util = None;
            }
        }),
        <[_]>::to_vec,
    );
    check("no copies", <[_]>::to_vec, each(|_, step: &mut Step| step.h2d_s = None));
}

#[test]
fn shares_by_steps_alone() {
    let Some(traces) = traces() else { return };
    for ((case, class, _, starved), (_, steps)) in TRUTH.iter().zip(&traces) {
        let verdict = Timeline::of(&[], steps, 5.0).overall.verdict;
        let expected = match class {
            Idle | Starved => Starved,
            TrainerPause => TrainerPause,
            _ => Fed,
        };
        assert_eq!(verdict.class, expected, "{case}: {}", verdict.words);
        assert!((verdict.starved_share.unwrap() - starved).abs() < 0.05, "{case}: {}", verdict.words);
        assert_eq!(verdict.rests_on, "the loader's side only", "{case}");
    }
}
