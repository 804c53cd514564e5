//! Draws with replacement, by weight.

use super::random::EpochRandom;
use crate::error::{Error, Result};

/// What an epoch draws from.
#[derive(Debug, Clone)]
pub struct Draws {
    /// Sums of the weights up to each sample, itself included.
    cumulative: Vec<f64>,
    length: u64,
    /// Samples that are left out, ascending, and the sums without their weights; both empty where there are none.
    left_out: Vec<u64>,
    kept: Vec<f64>,
}

impl Draws {
    pub(super) fn new(weights: &[f64], length: u64) -> Result<Self> {
        let cumulative = sums(weights.iter().copied());
        check_total(&cumulative, "the weights")?;
        Ok(Self { cumulative, length, left_out: Vec::new(), kept: Vec::new() })
    }

    /// The same draws, but a position that drew one of `left_out` (ascending) draws again among the others.
    pub(super) fn without(self, left_out: &[u64]) -> Result<Self> {
        if left_out.is_empty() {
            return Ok(self);
        }
        let mut before = 0.0;
        let weights = (0..).zip(&self.cumulative).map(|(sample, &sum)| {
            let weight = sum - std::mem::replace(&mut before, sum);
            if left_out.binary_search(&sample).is_ok() { 0.0 } else { weight }
        });
        let kept = sums(weights);
        check_total(&kept, "the weights of the samples that the quarantine leaves")?;
        Ok(Self { left_out: left_out.to_vec(), kept, ..self })
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The sample at `position`.
    pub(super) fn sample(&self, random: EpochRandom, position: u64) -> u64 {
        let sample = pick(&self.cumulative, random.draw(position));
        if self.left_out.binary_search(&sample).is_ok() {
            return pick(&self.kept, random.redraw(position));
        }
        sample
    }
}

fn sums(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let add = |sum: &mut f64, weight| {
        *sum += weight;
        Some(*sum)
    };
    weights.scan(0.0, add).collect()
}

fn check_total(cumulative: &[f64], what: &str) -> Result<()> {
    let total = cumulative.last().copied().unwrap_or(0.0);
    if total > 0.0 && total.is_finite() {
        return Ok(());
    }
    Err(Error::config(format!("{what} add up to {total}: at least one must be positive")))
}

/// The first sample whose sum exceeds the share `at` of the total: samples of weight 0 never are.
fn pick(cumulative: &[f64], at: f64) -> u64 {
    let wanted = at * cumulative[cumulative.len() - 1];
    cumulative.partition_point(|sum| *sum <= wanted).min(cumulative.len() - 1) as u64
}
