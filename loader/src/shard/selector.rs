//! From the fields that a job asks for to the byte ranges of a sample, by a table made once.

use std::collections::BTreeMap;

use super::ByteRange;
use super::dataset::Dataset;
use super::glob;
use crate::error::{Error, Result};
use crate::plan::SampleId;

/// Marks a field that samples of a schema do not have.
const ABSENT: u32 = u32::MAX;

/// Finds the members of a sample that a job needs. Made by [`Dataset::selector`], for that dataset alone.
#[derive(Debug)]
pub struct FieldSelector {
    /// Asked fields.
    width: usize,
    /// Per shard, the row of its first schema.
    first_rows: Vec<usize>,
    /// Per schema a row, per asked field the member's place in the sample.
    places: Vec<u32>,
}

impl FieldSelector {
    pub(super) fn new(dataset: &Dataset, sources: &[Vec<String>]) -> Result<Self> {
        let found = found_fields(dataset);
        for asked in sources {
            let present = |source: &String| found.keys().any(|field| matches(source, field));
            if !asked.iter().any(present) {
                return Err(missing(asked, &found, dataset.sample_count()));
            }
        }
        let mut selector = Self { width: sources.len(), first_rows: Vec::new(), places: Vec::new() };
        for shard in 0..dataset.shard_count() {
            let meta = &dataset.index(shard).meta;
            selector.first_rows.push(selector.places.len() / selector.width.max(1));
            for schema in &meta.schemas {
                let names: Vec<&str> = schema.iter().map(|&field| meta.fields[field as usize].name.as_str()).collect();
                selector.places.extend(sources.iter().map(|asked| place(asked, &names)));
            }
        }
        Ok(selector)
    }

    /// Where `sample` has each asked field: the first source that is there, `None` when none is. `ranges` has one
    /// place for each list of sources.
    pub fn select(&self, dataset: &Dataset, sample: SampleId, ranges: &mut [Option<ByteRange>]) {
        debug_assert_eq!(ranges.len(), self.width);
        let (shard, local) = dataset.locate(sample);
        let index = dataset.index(shard);
        let row = self.first_rows[shard as usize] + index.schema(local) as usize;
        let places = &self.places[row * self.width..][..self.width];
        for (range, &place) in ranges.iter_mut().zip(places) {
            *range = (place != ABSENT).then(|| index.member(local, place));
        }
    }
}

/// The place of the first source that matches; among several names that match one pattern, the least.
fn place(asked: &[String], names: &[&str]) -> u32 {
    let find = |source: &String| {
        let matching = names.iter().enumerate().filter(|(_, name)| matches(source, name));
        matching.min_by_key(|(_, name)| **name).map(|(place, _)| place)
    };
    asked.iter().find_map(find).map_or(ABSENT, |place| u32::try_from(place).expect("members of a sample"))
}

/// A source is a field's name, or a pattern (`*.png`).
fn matches(source: &str, field: &str) -> bool {
    source == field || glob::is_pattern(source) && glob::matches(source, field)
}

fn found_fields(dataset: &Dataset) -> BTreeMap<&str, u64> {
    let mut found = BTreeMap::new();
    for shard in 0..dataset.shard_count() {
        for field in &dataset.index(shard).meta.fields {
            *found.entry(field.name.as_str()).or_default() += field.samples;
        }
    }
    found
}

fn missing(asked: &[String], found: &BTreeMap<&str, u64>, samples: u64) -> Error {
    const NAMES_MAX: usize = 20;
    let mut names: Vec<String> =
        found.iter().take(NAMES_MAX).map(|(name, count)| format!("{name} ({count})")).collect();
    if found.len() > NAMES_MAX {
        names.push(format!("and {} more", found.len() - NAMES_MAX));
    }
    Error::config(format!(
        "no sample has any of the fields asked for: {}; the {samples} samples have: {}",
        asked.join(", "),
        names.join(", ")
    ))
}
