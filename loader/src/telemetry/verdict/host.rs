//! Where the trainer's time went: waiting, copying, pausing, computing.

use std::collections::BTreeMap;

use super::limits::{PAUSE_BUSY_MAX, PAUSE_FACTOR, PAUSE_S_MIN};
use crate::telemetry::gpu::GpuSample;

/// One training step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// Seconds at its end, on the samples' clock.
    pub t: f64,
    /// Seconds that it waited for its batch.
    pub wait_s: Option<f64>,
    /// Seconds in the call that copies to the device.
    pub h2d_s: Option<f64>,
    /// Seconds of the whole step.
    pub step_s: Option<f64>,
    /// What the wait was for, in seconds by cause, where a loader says so; `copy` among them.
    pub waiting_s: BTreeMap<String, f64>,
    /// Decode threads.
    pub workers: Option<u32>,
    /// Bytes read during the step.
    pub read_bytes: Option<u64>,
    /// Bytes copied to the device.
    pub h2d_bytes: Option<u64>,
}

impl Step {
    /// A part of the step that ends at `t` seconds, all its figures in proportion.
    pub(super) fn scaled(&self, part: f64, t: f64) -> Self {
        let seconds = |figure: Option<f64>| figure.map(|seconds| seconds * part);
        let bytes = |figure: Option<u64>| figure.map(|bytes| (bytes as f64 * part) as u64);
        Self {
            t,
            wait_s: seconds(self.wait_s),
            h2d_s: seconds(self.h2d_s),
            step_s: seconds(self.step_s),
            waiting_s: self.waiting_s.iter().map(|(cause, seconds)| (cause.clone(), seconds * part)).collect(),
            workers: self.workers,
            read_bytes: bytes(self.read_bytes),
            h2d_bytes: bytes(self.h2d_bytes),
        }
    }
}

/// What a loader measured over a window: how long was waited, and what for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stalls {
    /// Length of the window in seconds.
    pub wall_s: f64,
    /// Of which a batch was waited for, where that was measured.
    pub waited_s: Option<f64>,
    /// Of which copies were waited for.
    pub copied_s: f64,
    /// Of which the trainer did something else than its usual step.
    pub paused_s: f64,
    /// Seconds from the request to the first batch.
    pub first_batch_s: f64,
    /// Seconds of waiting by cause, as the sampler names them.
    pub waiting_s: BTreeMap<String, f64>,
    /// Share of the time with every slot ready or held.
    pub full_share: Option<f64>,
    /// Decode threads.
    pub workers: Option<u32>,
    /// Share of the time that they worked for this stream.
    pub workers_busy: Option<f64>,
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Reads in flight at the window's end.
    pub reads_in_flight: Option<u32>,
    /// Bytes copied to the device.
    pub h2d_bytes: Option<u64>,
    /// Pauses, their longest in seconds, and the median of the other steps.
    pub pauses: Option<Pauses>,
}

/// Steps that took much longer than others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pauses {
    /// How many.
    pub count: usize,
    /// The longest, in seconds.
    pub longest_s: f64,
    /// Median step without its waiting, in seconds.
    pub usual_s: f64,
}

impl Stalls {
    /// Sums steps up; `samples` of the GPU tell long steps of computing from pauses.
    ///
    /// Time between steps that is no pause is left out, as it is where a recording of steps was thinned.
    ///
    /// Returns `None` where no step says how long it was.
    pub fn of_steps(steps: &[Step], samples: &[GpuSample]) -> Option<Self> {
        let timed: Vec<(&Step, f64, f64)> = steps.iter().filter_map(split).collect();
        if timed.is_empty() {
            return None;
        }
        let usual_s = median(timed.iter().map(|(_, _, computed_s)| *computed_s));
        let usual_step_s = median(timed.iter().map(|(_, step_s, _)| *step_s));
        let gaps: Vec<(f64, f64)> = timed
            .windows(2)
            .map(|pair| (pair[1].0.t - pair[1].1, (pair[1].0.t - pair[1].1 - pair[0].0.t).max(0.0)))
            .collect();
        // Lines of a thinned recording lie some steps apart: that is no pause.
        let usual_gap_s = median(gaps.iter().map(|(_, gap_s)| *gap_s));

        let mut pauses = Pauses { count: 0, longest_s: 0.0, usual_s };
        let mut excess_s = |end: f64, length_s: f64, usual_s: f64, long_s: f64| {
            let excess_s = length_s - usual_s;
            if excess_s <= PAUSE_S_MIN || length_s <= long_s || was_busy(samples, end - length_s, end) {
                return 0.0;
            }
            pauses.count += 1;
            pauses.longest_s = pauses.longest_s.max(length_s);
            excess_s
        };
        let within_s: f64 = timed
            .iter()
            .map(|(step, _, computed_s)| excess_s(step.t, *computed_s, usual_s, PAUSE_FACTOR * usual_s))
            .sum();
        let between_s: f64 = gaps
            .iter()
            .map(|(end, gap_s)| excess_s(*end, *gap_s, usual_gap_s, PAUSE_FACTOR * (usual_gap_s + usual_step_s)))
            .sum();
        let steps_s: f64 = timed.iter().map(|(_, step_s, _)| step_s).sum();
        let mut stalls = Self { wall_s: steps_s + between_s, paused_s: within_s + between_s, ..Self::default() };
        let sum = |figure: fn(&Step) -> Option<f64>| timed.iter().filter_map(|(step, ..)| figure(step)).sum::<f64>();
        let waited_for_copies_s = sum(|step| step.waiting_s.get("copy").copied());
        stalls.copied_s = sum(|step| step.h2d_s) + waited_for_copies_s;
        if timed.iter().any(|(step, ..)| step.wait_s.is_some()) {
            stalls.waited_s = Some((sum(|step| step.wait_s) - waited_for_copies_s).max(0.0));
        }
        for (step, ..) in &timed {
            for (cause, seconds) in step.waiting_s.iter().filter(|(cause, _)| *cause != "copy") {
                *stalls.waiting_s.entry(cause.clone()).or_default() += seconds;
            }
        }
        let bytes = |figure: fn(&Step) -> Option<u64>| {
            let mut all = timed.iter().filter_map(|(step, ..)| figure(step)).peekable();
            all.peek().is_some().then(|| all.fold(0, u64::saturating_add))
        };
        stalls.read_bytes = bytes(|step| step.read_bytes);
        stalls.h2d_bytes = bytes(|step| step.h2d_bytes);
        stalls.workers = timed.iter().rev().find_map(|(step, ..)| step.workers);
        stalls.pauses = (pauses.count > 0).then_some(pauses);
        Some(stalls)
    }

    /// `seconds` as a share of the window.
    pub fn share(&self, seconds: f64) -> f64 {
        if self.wall_s > 0.0 { (seconds / self.wall_s).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// A step with its length and the part of it that is neither waiting nor copying, in seconds.
fn split(step: &Step) -> Option<(&Step, f64, f64)> {
    let step_s = step.step_s?;
    let other_s = step.wait_s.unwrap_or(0.0) + step.h2d_s.unwrap_or(0.0);
    Some((step, step_s, (step_s - other_s).max(0.0)))
}

/// Whether the GPU computed from `from` to `to` about as much as otherwise: what looks like a pause was a long step then.
fn was_busy(samples: &[GpuSample], from: f64, to: f64) -> bool {
    let busy = |is_inside: bool| {
        let shares: Vec<f64> = samples
            .iter()
            .filter(|sample| (from < sample.t && sample.t <= to) == is_inside)
            .filter_map(|sample| sample.gpm.and_then(|gpm| gpm.graphics_util).or(sample.gpu_util))
            .collect();
        (shares.len() > 1).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    };
    matches!((busy(true), busy(false)), (Some(inside), Some(outside)) if inside > outside * PAUSE_BUSY_MAX)
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(count: usize, wait_s: f64, step_s: f64) -> Vec<Step> {
        (1..=count)
            .map(|at| Step { t: at as f64 * step_s, wait_s: Some(wait_s), step_s: Some(step_s), ..Step::default() })
            .collect()
    }

    #[test]
    fn thinned_steps_have_the_same_shares() {
        let all = steps(120, 0.02, 0.05);
        for every in [1, 2, 3, 7] {
            let thinned: Vec<Step> = all.iter().step_by(every).cloned().collect();
            let stalls = Stalls::of_steps(&thinned, &[]).unwrap();
            assert!((stalls.share(stalls.waited_s.unwrap()) - 0.4).abs() < 1e-9, "{every}");
            assert_eq!(stalls.pauses, None, "{every}");
        }
    }

    #[test]
    fn pauses_count_within_steps_and_between() {
        let mut within = steps(100, 0.0, 0.05);
        within.iter_mut().skip(50).for_each(|step| step.t += 2.0);
        let mut between = within.clone();
        within[50].step_s = Some(2.05);
        between[50].step_s = Some(0.05);
        for steps in [within, between] {
            let stalls = Stalls::of_steps(&steps, &[]).unwrap();
            assert!((stalls.share(stalls.paused_s) - 2.0 / 7.0).abs() < 0.01, "{stalls:?}");
            assert_eq!(stalls.pauses.unwrap().count, 1);
        }
    }

    #[test]
    fn a_long_step_on_a_busy_gpu_is_no_pause() {
        let mut long = steps(100, 0.0, 0.05);
        long.iter_mut().skip(50).for_each(|step| step.t += 2.0);
        long[50].step_s = Some(2.05);
        let samples = |pause_util: f64| -> Vec<GpuSample> {
            (0..70)
                .map(|at| {
                    let t = f64::from(at) * 0.1;
                    let gpu_util = Some(if (2.5..4.6).contains(&t) { pause_util } else { 95.0 });
                    GpuSample { t, gpu_util, ..GpuSample::default() }
                })
                .collect()
        };
        assert_eq!(Stalls::of_steps(&long, &samples(90.0)).unwrap().paused_s, 0.0);
        assert!(Stalls::of_steps(&long, &samples(0.0)).unwrap().paused_s > 1.9);
    }

    #[test]
    fn what_steps_do_not_say_is_absent() {
        let mut steps = steps(10, 0.0, 0.1);
        steps.iter_mut().for_each(|step| step.wait_s = None);
        assert_eq!(Stalls::of_steps(&steps, &[]).unwrap().waited_s, None);
        steps.iter_mut().for_each(|step| step.step_s = None);
        assert_eq!(Stalls::of_steps(&steps, &[]), None);
    }
}
