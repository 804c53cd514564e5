//! From the fields that a job asks for to the byte ranges of a sample, by a table made once.

use std::collections::BTreeMap;

use super::dataset::Dataset;
use super::glob;
use super::place::{Encoding, FieldBytes};
use super::table::FieldCount;
use crate::error::{Error, Result};
use crate::plan::SampleId;

/// Marks a field that samples of a schema do not have.
const ABSENT: Member = Member { place: u32::MAX, encoding: Encoding::Plain };

/// Finds the members of a sample that a job needs. Made by [`Dataset::selector`], for that dataset alone.
#[derive(Debug)]
pub struct FieldSelector {
    /// Asked fields.
    width: usize,
    /// Per shard, the row of its first schema.
    first_rows: Vec<usize>,
    /// Per schema a row, per asked field the member's place in the sample.
    places: Vec<Member>,
}

/// The member that supplies a field.
#[derive(Debug, Clone, Copy)]
struct Member {
    place: u32,
    encoding: Encoding,
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
                let fields: Vec<&FieldCount> = schema.iter().map(|&field| &meta.fields[field as usize]).collect();
                selector.places.extend(sources.iter().map(|asked| find(asked, &fields)));
            }
        }
        Ok(selector)
    }

    /// Where `sample` has each asked field: the first source that is there, `None` when none is. `found` has one place
    /// for each list of sources.
    pub fn select(&self, dataset: &Dataset, sample: SampleId, found: &mut [Option<FieldBytes>]) {
        debug_assert_eq!(found.len(), self.width);
        let (shard, local) = dataset.locate(sample);
        let index = dataset.index(shard);
        let row = self.first_rows[shard as usize] + index.schema(local) as usize;
        let places = &self.places[row * self.width..][..self.width];
        for (found, &Member { place, encoding }) in found.iter_mut().zip(places) {
            *found = (place != ABSENT.place).then(|| {
                let (origin, range) = index.member(local, place);
                FieldBytes { origin, range, encoding }
            });
        }
    }
}

/// The place of the first source that matches; among several names that match one pattern, the least.
fn find(asked: &[String], fields: &[&FieldCount]) -> Member {
    let find = |source: &String| {
        let matching = (0..).zip(fields).filter(|(_, field)| names(field).any(|name| matches(source, name)));
        matching.min_by_key(|(_, field)| &field.name).map(|(place, field)| Member { place, encoding: field.encoding })
    };
    asked.iter().find_map(find).unwrap_or(ABSENT)
}

/// A source is a field's name, or a pattern (`*.png`).
fn matches(source: &str, field: &str) -> bool {
    source == field || glob::is_pattern(source) && glob::matches(source, field)
}

/// All names that a field goes by.
fn names(field: &FieldCount) -> impl Iterator<Item = &str> {
    std::iter::once(&field.name).chain(&field.aliases).map(String::as_str)
}

fn found_fields(dataset: &Dataset) -> BTreeMap<&str, u64> {
    let mut found = BTreeMap::new();
    for shard in 0..dataset.shard_count() {
        for field in &dataset.index(shard).meta.fields {
            for name in names(field) {
                *found.entry(name).or_default() += field.samples;
            }
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
