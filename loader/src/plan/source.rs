//! Which samples an epoch takes.

use std::sync::Arc;

use super::SampleId;
use super::order::EpochOrder;
use crate::error::{Error, Result};

/// All samples, some of them, or draws by weight.
#[derive(Debug, Clone)]
pub enum Source {
    /// Every sample of the dataset, this many.
    All(u64),
    /// These samples; a number that stands twice is taken twice.
    Indices(Arc<[u64]>),
    /// Draws with replacement.
    Weighted {
        /// Sums of the weights up to each sample, itself included.
        cumulative: Arc<[f64]>,
        /// Draws of an epoch.
        length: u64,
    },
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
        let cumulative: Arc<[f64]> = weights
            .iter()
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let total = cumulative.last().copied().unwrap_or(0.0);
        if !(total > 0.0 && total.is_finite()) {
            return Err(Error::config(format!("the weights add up to {total}: at least one must be positive")));
        }
        Ok(Self::Weighted { cumulative, length })
    }

    /// Positions of an epoch.
    pub(super) fn positions(&self) -> u64 {
        match self {
            Self::All(count) => *count,
            Self::Indices(indices) => indices.len() as u64,
            Self::Weighted { length, .. } => *length,
        }
    }

    /// The sample at `position` of `order`.
    pub(super) fn sample(&self, order: &EpochOrder, position: u64) -> SampleId {
        let place = |count: usize, index: u64| usize::try_from(index).expect("fits, as the list does").min(count - 1);
        SampleId(match self {
            Self::All(_) => order.place(position),
            Self::Indices(indices) => indices[place(indices.len(), order.place(position))],
            Self::Weighted { cumulative, .. } => {
                let wanted = order.draw(position) * cumulative[cumulative.len() - 1];
                // The first whose sum exceeds the wanted one: samples of weight 0 never are.
                place(cumulative.len(), cumulative.partition_point(|sum| *sum <= wanted) as u64) as u64
            }
        })
    }
}
