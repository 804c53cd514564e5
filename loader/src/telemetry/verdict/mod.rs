//! The verdict: a pure function of what a loader, a trainer's steps and a GPU's samples say of a window of time.
//!
//! [`Stalls`] is the host's side, [`GpuReading`] the GPU's; either may be missing, and the verdict says what it rests on. Each
//! side offers findings, every one with the share of the time that it costs; the costliest is the verdict and the others
//! stand beside it. Utilisation alone never makes a run healthy. The limits are in [`limits`].
//!
//! Two figures are kept apart: *loader wait* (`wait_share`), which Python may spend while the GPU still computes, and *GPU
//! starved* (`starved_share`), which is never more than the GPU's counters leave idle.

mod class;
mod findings;
mod host;
pub mod limits;
mod reading;
mod summary;
mod timeline;
mod words;

use serde::Serialize;

pub use class::{Confidence, VerdictClass};
pub use host::{Pauses, Stalls, Step};
pub use reading::{GpuReading, GpuReference, Throttle};
pub use summary::{ClientFigures, Summary, judge_epoch};
pub use timeline::{Timeline, WindowVerdict};

use findings::Shares;
use limits::{RATIO_HEALTHY, RATIO_HELD_BACK};

/// What is known of a window.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window<'a> {
    /// The host's side.
    pub stalls: Option<&'a Stalls>,
    /// The GPU's side.
    pub gpu: Option<&'a GpuReading>,
}

/// One reason why time is lost, or that none is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What it is.
    pub class: VerdictClass,
    /// Share of the time that it costs, 0 to 1.
    pub loss_share: f64,
    /// By how much the run would be faster at most without it, as a factor; None where nothing says.
    pub gain: Option<f64>,
    /// How sure it is.
    pub confidence: Confidence,
    /// What it rests on, and what to do.
    pub words: String,
}

/// A figure that the verdict rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// Its name, with the unit last.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
}

/// What limits the run, and why that is thought.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What limits the run.
    pub class: VerdictClass,
    /// Whether nothing is wrong.
    pub is_healthy: bool,
    /// Loader wait: share of the time in which a batch was waited for, 0 to 1; None where that was not measured.
    pub wait_share: Option<f64>,
    /// Share of the time in which the GPU stood idle for want of a batch or its copy; None where the host's side is missing.
    pub starved_share: Option<f64>,
    /// The most that share can be, from the GPU alone.
    pub starved_share_max: Option<f64>,
    /// Waiting in units of computing.
    pub wait_to_compute: Option<f64>,
    /// By how much the run would be faster at most, as a factor.
    pub gain: Option<f64>,
    /// How sure the class is.
    pub confidence: Confidence,
    /// The figures.
    pub evidence: Vec<Evidence>,
    /// What else costs time.
    pub also: Vec<Finding>,
    /// Which sides were measured.
    pub rests_on: &'static str,
    /// The verdict for a person, with the numbers it rests on and what to do.
    pub words: String,
}

/// Judges a window.
pub fn judge(window: Window<'_>) -> Verdict {
    let shares = Shares::of(window);
    let mut found = findings::all(window, &shares);
    // The costliest first; among equals the order in which they were found, which is that of their certainty.
    found.sort_by(|a, b| b.loss_share.total_cmp(&a.loss_share));
    let first = found.remove(0);
    Verdict {
        class: first.class,
        is_healthy: first.class.is_healthy(),
        wait_share: shares.wait,
        starved_share: shares.starved,
        starved_share_max: shares.starved.is_none().then_some(shares.idle).flatten(),
        wait_to_compute: shares.ratio,
        gain: first.gain,
        confidence: first.confidence,
        evidence: words::evidence(window, &shares),
        also: found,
        words: first.words,
        rests_on: shares.rests_on,
    }
}

/// How the ratio of waiting to computing is usually read.
pub fn usual_reading(ratio: f64) -> &'static str {
    if ratio < RATIO_HEALTHY {
        "healthy, below 0.3"
    } else if ratio <= RATIO_HELD_BACK {
        "held back in part, between 0.3 and 0.8"
    } else {
        "held back, above 0.8"
    }
}

#[cfg(test)]
mod tests;
