//! Which samples an epoch takes.

use std::sync::Arc;

use super::draws::Draws;
use super::mix::{Mix, MixPart};
use crate::error::{Error, Result};
use crate::spec::MixStop;

/// All samples, some of them, draws by weight, or a mix of datasets.
#[derive(Debug, Clone)]
pub enum Source {
    /// Every sample of the dataset, this many.
    All(u64),
    /// These samples; a number that stands twice is taken twice.
    Indices(Arc<[u64]>),
    /// Draws with replacement.
    Weighted(Arc<Draws>),
    /// Several datasets, by weight.
    Mixed(Arc<Mix>),
}

impl Source {
    /// Every one of `sample_count` samples.
    pub fn all(sample_count: u64) -> Result<Self> {
        if sample_count == 0 {
            return Err(Error::config("the dataset has no samples"));
        }
        Ok(Self::All(sample_count))
    }

    /// The samples with these numbers, in this order where the epoch is not shuffled.
    pub fn indices(indices: Vec<u64>, sample_count: u64) -> Result<Self> {
        if indices.is_empty() {
            return Err(Error::config("indices= is empty: name at least one sample"));
        }
        if let Some(beyond) = indices.iter().find(|index| **index >= sample_count) {
            return Err(Error::config(format!(
                "indices= has {beyond}, and the dataset has samples 0 to {}",
                sample_count - 1
            )));
        }
        Ok(Self::Indices(indices.into()))
    }

    /// `length` draws, sample i with probability weights\[i\] / sum.
    pub fn weighted(weights: Vec<f64>, sample_count: u64, length: u64) -> Result<Self> {
        if weights.len() as u64 != sample_count {
            return Err(Error::config(format!(
                "weights= has {} entries for {sample_count} samples: give one each",
                weights.len()
            )));
        }
        if let Some((index, weight)) =
            weights.iter().enumerate().find(|(_, weight)| !weight.is_finite() || **weight < 0.0)
        {
            return Err(Error::config(format!("weights[{index}] is {weight}: weights are finite and not negative")));
        }
        if length == 0 {
            return Err(Error::config("an epoch of weighted draws needs a length of at least 1"));
        }
        Ok(Self::Weighted(Arc::new(Draws::new(&weights, length)?)))
    }

    /// `parts` by weight, `length` positions an epoch or as many as `stop` says. Weights are positive and finite.
    pub fn mixed(parts: &[MixPart], length: Option<u64>, stop: MixStop) -> Result<Self> {
        if parts.is_empty() || parts.iter().any(|part| !(part.weight.is_finite() && part.weight > 0.0)) {
            return Err(Error::config("a mix needs at least one part, and weights that are finite and above 0"));
        }
        // Refuses parts without samples.
        Ok(Self::Mixed(Arc::new(Mix::new(parts, length, stop).without(&[])?)))
    }

    /// Whether a sample may come more than once an epoch by design.
    pub fn repeats(&self) -> bool {
        matches!(self, Self::Weighted(_) | Self::Mixed(_))
    }
}
