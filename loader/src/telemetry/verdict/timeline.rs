//! A whole recording: which part of it is the run, its windows, and the verdict over all.

use serde::Serialize;

use super::host::{Stalls, Step, median};
use super::limits::LOSS_NOTICED;
use super::reading::{GpuReading, GpuReference, is_idle};
use super::{Verdict, VerdictClass, Window, judge};
use crate::telemetry::gpu::GpuSample;

/// Seconds after the last step that utilisation may still tell of it: NVML renews it every second at worst.
const UTIL_LAGS_S: f64 = 2.0;

/// Most windows of a recording: a day of 5 s each has 17 280. Beyond, windows are longer.
const WINDOWS_MAX: f64 = 20_000.0;

/// A verdict and the time that it is about.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowVerdict {
    /// Its beginning in seconds.
    pub from_s: f64,
    /// Its end in seconds.
    pub to_s: f64,
    /// What was found.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// What a recording says of one GPU and its trainer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    /// The verdict over the run.
    pub overall: WindowVerdict,
    /// The windows in order.
    pub windows: Vec<WindowVerdict>,
    /// What a reader has to know beside.
    pub notices: Vec<String>,
}

impl Timeline {
    /// Judges `samples` of one GPU and `steps` of its trainer, both in the order of time, in windows of `window_s` seconds.
    ///
    /// The run lasts from the first step to the last or, without steps, from the first moment in which anything ran to the
    /// last. What the GPU does after the last step counts if it goes on: a kernel that hangs, or a GPU that is lost.
    pub fn of(samples: &[GpuSample], steps: &[Step], window_s: f64) -> Self {
        let reference = GpuReference::of(samples);
        let mut notices = Vec::new();
        let (from_s, to_s) = span(samples, steps, &mut notices);
        let judge_span = |from_s: f64, to_s: f64, has_from: bool| {
            let start = samples.partition_point(|sample| sample.t < from_s || (sample.t == from_s && !has_from));
            let samples = &samples[start..];
            let samples = &samples[..samples.partition_point(|sample| sample.t <= to_s)];
            let stalls = Stalls::of_steps(&clipped(steps, from_s, to_s), samples);
            let gpu = (!samples.is_empty()).then(|| GpuReading::of(samples, &reference));
            let verdict = judge(Window { stalls: stalls.as_ref(), gpu: gpu.as_ref() });
            WindowVerdict { from_s, to_s, verdict }
        };
        let count = ((to_s - from_s) / window_s.max(0.1)).round().clamp(1.0, WINDOWS_MAX);
        let length_s = (to_s - from_s) / count;
        let windows: Vec<WindowVerdict> = (0..count as u32)
            .map(|at| {
                let from_s = from_s + f64::from(at) * length_s;
                // The last ends where the run does, whatever sums round to.
                let end_s = if f64::from(at) + 1.0 == count { to_s } else { from_s + length_s };
                judge_span(from_s, end_s, at == 0)
            })
            .collect();
        let mut overall = judge_span(from_s, to_s, true);
        if let Some(worst) = worst(&windows, overall.verdict.class) {
            let seconds: f64 = windows
                .iter()
                .filter(|each| each.verdict.class == worst.verdict.class)
                .map(|each| each.to_s - each.from_s)
                .sum();
            overall.verdict = Verdict {
                words: format!("{}; so for {seconds:.1} of {:.1} s", worst.verdict.words, to_s - from_s),
                starved_share: overall.verdict.starved_share,
                wait_share: overall.verdict.wait_share,
                wait_to_compute: overall.verdict.wait_to_compute,
                ..worst.verdict.clone()
            };
        }
        Self { overall, windows, notices }
    }
}

/// A state that a mean over the run hides, and that ends runs: a GPU that is lost or hangs for more than a tenth of the time.
fn worst(windows: &[WindowVerdict], overall: VerdictClass) -> Option<&WindowVerdict> {
    [VerdictClass::GpuLost, VerdictClass::FakeBusy].into_iter().filter(|class| *class != overall).find_map(|class| {
        let mut hit = windows.iter().filter(|each| each.verdict.class == class);
        let last = hit.clone().next_back()?;
        let share = hit.by_ref().count() as f64 / windows.len() as f64;
        (share >= LOSS_NOTICED).then_some(last)
    })
}

fn span(samples: &[GpuSample], steps: &[Step], notices: &mut Vec<String>) -> (f64, f64) {
    let active = |sample: &&GpuSample| is_idle(sample) == Some(false) || sample.error.is_some();
    let last_active = samples.iter().rev().find(active).map(|sample| sample.t);
    if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
        let from_s = first.t - first.step_s.unwrap_or(0.0);
        let usual_s = median(steps.iter().filter_map(|step| step.step_s));
        let patience_s = UTIL_LAGS_S.max(5.0 * usual_s);
        if !samples.is_empty() && samples.iter().all(|sample| sample.t < from_s || sample.t > last.t) {
            notices.push(
                "no sample of the GPU falls between the first step and the last: are both clocks the same?".into(),
            );
        }
        return match last_active.filter(|active_s| *active_s > last.t + patience_s) {
            Some(active_s) => {
                notices.push(format!("the last step ended {:.1} s before the GPU's last activity", active_s - last.t));
                (from_s, active_s)
            }
            None => (from_s, last.t),
        };
    }
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return (0.0, 0.0) };
    match (samples.iter().find(active), last_active) {
        (Some(first_active), Some(last_active)) if last_active > first_active.t => {
            let (before_s, after_s) = (first_active.t - first.t, last.t - last_active);
            if before_s + after_s > 0.5 {
                notices.push(format!(
                    "left out: {before_s:.1} s before anything ran on the GPU, and {after_s:.1} s after"
                ));
            }
            (first_active.t, last_active)
        }
        _ => (first.t, last.t),
    }
}

/// The parts of steps that lie in a window: a pause that crosses its border counts on both sides.
fn clipped(steps: &[Step], from_s: f64, to_s: f64) -> Vec<Step> {
    let mut inside = Vec::new();
    for step in &steps[steps.partition_point(|step| step.t <= from_s)..] {
        let Some(step_s) = step.step_s.filter(|step_s| *step_s > 0.0) else {
            if step.t <= to_s {
                inside.push(step.clone());
            }
            continue;
        };
        let begin_s = step.t - step_s;
        if begin_s >= to_s {
            break;
        }
        let part = ((step.t.min(to_s) - begin_s.max(from_s)) / step_s).clamp(0.0, 1.0);
        inside.push(step.scaled(part, step.t.min(to_s)));
    }
    inside
}
