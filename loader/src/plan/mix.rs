//! Datasets that are mixed by weight: an endless line of positions, of which an epoch is a stretch.
//!
//! Which part has how many of the first n positions is fixed by [`Shares`]. The positions of an epoch come in strata of
//! [`STRATUM`], the last perhaps shorter, and within each the parts are shuffled, so that ranks do not fall into step
//! with a pattern. Each part goes through its own samples pass after pass, every pass in an order of its own: no sample comes again before all
//! others of its part came. Passes go on over the ends of epochs, so of a large part with a small share one epoch
//! takes some samples and the next epoch others. A sequential mix starts every epoch anew, as sequential orders do.

use std::ops::Range;
use std::sync::Arc;

use super::SampleId;
use super::cuts;
use super::permutation::{GOLDEN, Permutation, below, mix};
use super::random;
use super::shares::Shares;
use crate::error::{Error, Result};
use crate::spec::MixStop;

/// Positions that are shuffled as one.
pub(super) const STRATUM: u64 = 64;

/// Most entries of the tables of cuts of one epoch, 8 bytes each.
const CUTS_MAX: u64 = 4 << 20;

/// Positions that all epochs together may have.
const POSITIONS_MAX: u64 = 1 << 62;

/// One dataset of a mix: consecutive samples of the job's dataset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixPart {
    /// Number of its first sample.
    pub first_sample: u64,
    /// Its samples.
    pub sample_count: u64,
    /// Its share of the positions, relative to the other parts' weights.
    pub weight: f64,
}

#[derive(Debug, Clone)]
struct Part {
    first_sample: u64,
    sample_count: u64,
    /// Which of them are left out, ascending, counted from the first.
    left_out: Vec<u64>,
    share: f64,
}

impl Part {
    /// Samples of one pass.
    fn pass_length(&self) -> u64 {
        self.sample_count - self.left_out.len() as u64
    }
}

/// What a mix is made of.
#[derive(Debug, Clone)]
pub struct Mix {
    parts: Vec<Part>,
    shares: Shares,
    stop: MixStop,
    /// Positions of an epoch; what `stop` says where it is not set.
    length: Option<u64>,
}

impl Mix {
    pub(super) fn new(parts: &[MixPart], length: Option<u64>, stop: MixStop) -> Self {
        let weights: Vec<f64> = parts.iter().map(|part| part.weight).collect();
        let total: f64 = weights.iter().sum();
        let parts = parts.iter().map(|&MixPart { first_sample, sample_count, weight }| Part {
            first_sample,
            sample_count,
            left_out: Vec::new(),
            share: weight / total,
        });
        Self { parts: parts.collect(), shares: Shares::new(&weights), stop, length }
    }

    /// The same mix without the samples `left_out`, ascending.
    pub(super) fn without(mut self, left_out: &[u64]) -> Result<Self> {
        for (number, part) in self.parts.iter_mut().enumerate() {
            let own = part.first_sample..part.first_sample + part.sample_count;
            let from = left_out.partition_point(|sample| *sample < own.start);
            let to = left_out.partition_point(|sample| *sample < own.end);
            part.left_out = left_out[from..to].iter().map(|sample| sample - part.first_sample).collect();
            if part.pass_length() == 0 {
                let left = if part.sample_count == 0 { "has no samples" } else { "has every sample in quarantine" };
                return Err(Error::config(format!("part {number} of the mix {left}: leave it out")));
            }
        }
        Ok(self)
    }

    /// Positions of an epoch.
    pub(super) fn length(&self) -> u64 {
        // A share of 0.7 and 700 samples are 1000 positions, not 999, whatever the last bit of the quotient.
        let passed = self.parts.iter().map(|part| part.pass_length() as f64 / part.share);
        self.length.unwrap_or_else(|| match self.stop {
            MixStop::First => ((passed.fold(f64::INFINITY, f64::min) * (1.0 + 1e-12)).floor() as u64).max(1),
            MixStop::All => (passed.fold(0.0, f64::max) * (1.0 - 1e-12)).ceil() as u64,
        })
    }

    /// One line for each part.
    pub(super) fn describe(&self) -> Vec<String> {
        let length = self.length();
        let line = |(number, part): (usize, &Part)| {
            format!(
                "mix, part {number}: {:.4} of an epoch of {length} positions, which is {:.3} passes over its {} samples",
                part.share,
                length as f64 * part.share / part.pass_length() as f64,
                part.pass_length()
            )
        };
        self.parts.iter().enumerate().map(line).collect()
    }

    /// The stretch that is `epoch`.
    pub(super) fn epoch(&self, epoch: u64, seed: u64, is_sequential: bool) -> Result<MixEpoch> {
        let epoch = if is_sequential { 0 } else { epoch };
        let length = self.length();
        let end = epoch.checked_add(1).and_then(|epochs| epochs.checked_mul(length)).filter(|end| *end < POSITIONS_MAX);
        let end = end.ok_or_else(|| {
            Error::config(format!("epoch {epoch} of {length} positions is out of range: all epochs together have 2^62"))
        })?;
        let stretch = end - length..end;
        let cuts = self.parts.iter().enumerate().map(|(number, part)| {
            let passes = |count| self.shares.count(number, count) / part.pass_length();
            PassCuts::new(part, number as u64, passes(stretch.start)..passes(stretch.end) + 1, seed, is_sequential)
        });
        let cuts = cuts.collect::<Result<_>>()?;
        Ok(MixEpoch { stretch, seed, is_sequential, cuts })
    }

    /// The part at `position` of the `stretch` of the line that is an epoch, and which of its draws this is.
    fn draw_at(&self, seed: u64, stretch: &Range<u64>, position: u64) -> (usize, u64) {
        let wanted = usize::try_from(position % STRATUM).expect("within a stratum");
        let first = stretch.start + position / STRATUM * STRATUM;
        let end = (first + STRATUM).min(stretch.end);
        // For each of the stratum's positions the part, as an entry of `parts`; at most one part for each.
        let mut slots = [0_u8; STRATUM as usize];
        let mut parts = [(0_usize, 0_u64); STRATUM as usize];
        let (mut filled, mut found) = (0, 0);
        self.shares.visit(first..end, &mut |part, draws| {
            let end = filled + usize::try_from(draws.end - draws.start).expect("within a stratum");
            slots[filled..end].fill(u8::try_from(found).expect("fewer than a stratum"));
            parts[found] = (part, draws.start);
            (filled, found) = (end, found + 1);
        });
        // A shuffle from the front: what comes after the wanted place need not be shuffled.
        let mut state = random::mix_stratum_key(seed, first);
        for place in 0..=wanted {
            state = state.wrapping_add(GOLDEN);
            let rest = end - first - place as u64;
            let other = place + usize::try_from(below(mix(state), rest)).expect("within a stratum");
            slots.swap(place, other);
        }
        let (part, first_draw) = parts[slots[wanted] as usize];
        let before = slots[..wanted].iter().filter(|slot| **slot == slots[wanted]).count() as u64;
        (part, first_draw + before)
    }
}

/// One epoch of a mix.
#[derive(Debug, Clone)]
pub(super) struct MixEpoch {
    stretch: Range<u64>,
    seed: u64,
    is_sequential: bool,
    cuts: Arc<[PassCuts]>,
}

impl MixEpoch {
    /// The sample at `position` of the epoch.
    pub(super) fn sample(&self, mix: &Mix, position: u64) -> SampleId {
        let (number, draw) = mix.draw_at(self.seed, &self.stretch, position);
        let part = &mix.parts[number];
        let (pass, rest) = (draw / part.pass_length(), draw % part.pass_length());
        let position = self.cuts[number].restore(pass, rest);
        let place = match self.is_sequential {
            true => position,
            false => part_order(part, number as u64, pass, self.seed).apply(position),
        };
        SampleId(part.first_sample + place)
    }
}

fn part_order(part: &Part, number: u64, pass: u64, seed: u64) -> Permutation {
    Permutation::new(part.sample_count, random::mix_pass_key(seed, number, pass))
}

/// What is cut from a part's passes, in those that an epoch touches.
#[derive(Debug)]
struct PassCuts {
    first_pass: u64,
    cuts_per_pass: usize,
    /// The same in every pass.
    is_one: bool,
    /// Per pass, for each cut how many positions before it stay.
    kept_before: Vec<u64>,
}

impl PassCuts {
    fn new(part: &Part, number: u64, passes: Range<u64>, seed: u64, is_sequential: bool) -> Result<Self> {
        let cuts_per_pass = part.left_out.len();
        let mut kept_before = Vec::new();
        let listed = if is_sequential { passes.start..passes.start + 1 } else { passes.clone() };
        if cuts_per_pass > 0 {
            let entries = (listed.end - listed.start).saturating_mul(cuts_per_pass as u64);
            if entries > CUTS_MAX {
                return Err(Error::config(format!(
                    "part {number} of the mix is gone through {} times an epoch with {cuts_per_pass} samples in quarantine \
                     each, which needs a table of {entries} entries, over the limit of {CUTS_MAX}: give a shorter length=, \
                     or write the part anew without them",
                    passes.end - passes.start
                )));
            }
            for pass in listed {
                let start = kept_before.len();
                if is_sequential {
                    kept_before.extend_from_slice(&part.left_out);
                } else {
                    let order = part_order(part, number, pass, seed);
                    kept_before.extend(part.left_out.iter().map(|&place| order.invert(place)));
                }
                cuts::close_up(&mut kept_before[start..]);
            }
        }
        Ok(Self { first_pass: passes.start, cuts_per_pass, is_one: is_sequential, kept_before })
    }

    /// The position in the whole pass of what is at `position` once the cuts are out.
    fn restore(&self, pass: u64, position: u64) -> u64 {
        let table = if self.is_one { 0 } else { usize::try_from(pass - self.first_pass).expect("a table each") };
        let start = if self.cuts_per_pass == 0 { 0 } else { table * self.cuts_per_pass };
        cuts::restore(&self.kept_before[start..start + self.cuts_per_pass], position)
    }
}
