//! From the fields that a job asks for to the byte ranges of a sample, by a table made once.

use std::collections::BTreeMap;

use super::dataset::Dataset;
use super::glob;
use super::join::Join;
use super::labels::Labels;
use super::place::{Encoding, FieldBytes, Origin};
use super::table::FieldCount;
use super::tree::PATH_FIELD;
use crate::error::{Error, Result};
use crate::plan::SampleId;
use crate::spec::JoinPartSpec;

/// Marks a field that samples of a schema do not have.
const ABSENT: Member = Member { place: u32::MAX, encoding: Encoding::Plain, is_label: false };

/// Finds the members of a sample that a job needs. Made by [`Dataset::selector`], for that dataset alone.
#[derive(Debug)]
pub struct FieldSelector {
    /// Asked fields.
    width: usize,
    /// Per asked field the part of the join that supplies it; all are 0 where there is none.
    parts: Vec<usize>,
    /// Per shard, the row of its first schema.
    first_rows: Vec<usize>,
    /// Per schema a row, per asked field the member's place in the sample.
    places: Vec<Member>,
}

/// Samples that lack some fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacking {
    /// Those that lack at least one, ascending.
    pub samples: Vec<u64>,
    /// Per field that was asked about, how many lack it, and the first that does.
    pub fields: Vec<(u64, Option<SampleId>)>,
}

/// The member that supplies a field, or the column of the table of labels.
#[derive(Debug, Clone, Copy)]
struct Member {
    place: u32,
    encoding: Encoding,
    is_label: bool,
}

impl FieldSelector {
    pub(super) fn new(dataset: &Dataset, sources: &[Vec<String>]) -> Result<Self> {
        let found = found_fields(dataset);
        let columns = dataset.labels().map_or(&[][..], Labels::columns);
        if let Some(both) = columns.iter().find(|column| found.contains_key(column.as_str())) {
            return Err(Error::config(format!(
                "both the shards and the table of labels have a field {both:?}: rename the table's column"
            )));
        }
        for asked in sources {
            let present =
                |source: &String| found.keys().any(|field| matches(source, field)) || columns.contains(source);
            if !asked.iter().any(present) {
                return Err(missing(asked, &found, columns, dataset.sample_count()));
            }
        }
        let parts = sources.iter().map(|asked| part_of(dataset.join(), asked)).collect::<Result<Vec<_>>>()?;
        let mut selector = Self { width: sources.len(), parts, first_rows: Vec::new(), places: Vec::new() };
        for shard in 0..dataset.all_shards() {
            let meta = &dataset.index(shard).meta;
            let part = dataset.part_of(shard);
            selector.first_rows.push(selector.places.len() / selector.width.max(1));
            for schema in &meta.schemas {
                let fields: Vec<&FieldCount> = schema.iter().map(|&field| &meta.fields[field as usize]).collect();
                selector.places.extend(sources.iter().map(|asked| find(asked, part, &fields, columns)));
            }
        }
        Ok(selector)
    }

    /// Where `sample` has each asked field: the first source that is there, `None` when none is. `found` has one place
    /// for each list of sources.
    pub fn select(&self, dataset: &Dataset, sample: SampleId, found: &mut [Option<FieldBytes>]) {
        debug_assert_eq!(found.len(), self.width);
        let own = dataset.locate(sample);
        for (field, (found, &part)) in found.iter_mut().zip(&self.parts).enumerate() {
            let Some((shard, local)) = locate(dataset, own, part, sample) else {
                *found = None;
                continue;
            };
            let index = dataset.index(shard);
            let Member { place, encoding, is_label } = self.row(shard, index.schema(local))[field];
            let file = dataset.file_at(shard, local);
            if is_label {
                let range = dataset.labels().and_then(|labels| labels.cell(sample.0, place));
                *found = range.map(|range| FieldBytes { origin: Origin::Labels, file, range, encoding });
                continue;
            }
            *found = (place != ABSENT.place).then(|| {
                let (origin, range) = index.member(local, place);
                FieldBytes { origin, file, range, encoding }
            });
        }
    }

    /// The samples that lack one of the asked fields `wanted`. Shards whose samples are all alike and have them are passed
    /// over.
    pub fn lacking(&self, dataset: &Dataset, wanted: &[usize]) -> Lacking {
        let mut lacking = Lacking { samples: Vec::new(), fields: vec![(0, None); wanted.len()] };
        for (shard, &first) in (0..).zip(dataset.first_samples()) {
            let index = dataset.index(shard);
            let schemas = 0..u32::try_from(index.meta.schemas.len()).expect("no more than samples");
            let may_lack = |schema, field: usize| {
                let member = self.row(shard, schema)[field];
                self.parts[field] > 0 || member.is_label || member.place == ABSENT.place
            };
            if !schemas.into_iter().any(|schema| wanted.iter().any(|&field| may_lack(schema, field))) {
                continue;
            }
            for local in 0..index.sample_count() {
                let sample = SampleId(first + u64::from(local));
                let mut lacks_one = false;
                for ((count, first), &field) in lacking.fields.iter_mut().zip(wanted) {
                    if !self.has(dataset, (shard, local), sample, field) {
                        *count += 1;
                        first.get_or_insert(sample);
                        lacks_one = true;
                    }
                }
                if lacks_one {
                    lacking.samples.push(sample.0);
                }
            }
        }
        lacking
    }

    /// Whether `sample`, which is at `own`, has the asked `field`.
    fn has(&self, dataset: &Dataset, own: (u32, u32), sample: SampleId, field: usize) -> bool {
        let Some((shard, local)) = locate(dataset, own, self.parts[field], sample) else { return false };
        let Member { place, is_label, .. } = self.row(shard, dataset.index(shard).schema(local))[field];
        match is_label {
            true => dataset.labels().is_some_and(|labels| labels.cell(sample.0, place).is_some()),
            false => place != ABSENT.place,
        }
    }

    /// Where samples of a shard's `schema` have each asked field.
    fn row(&self, shard: u32, schema: u32) -> &[Member] {
        let row = self.first_rows[shard as usize] + schema as usize;
        &self.places[row * self.width..][..self.width]
    }
}

/// The shard with what belongs to `sample`, which is at `own`, in a part of a join, and the place in it.
fn locate(dataset: &Dataset, own: (u32, u32), part: usize, sample: SampleId) -> Option<(u32, u32)> {
    if part == 0 {
        return Some(own);
    }
    dataset.join()?.partner(part, sample).map(|partner| dataset.locate(partner))
}

/// The part of a join that all `asked` sources are of; those that are columns of the table of labels go with any.
fn part_of(join: Option<&Join>, asked: &[String]) -> Result<usize> {
    let Some(join) = join else { return Ok(0) };
    let of = |source: &String| join.parts().iter().position(|part| part.own_name(source).is_some());
    let mut parts = asked.iter().filter_map(of);
    let first = parts.next().unwrap_or(0);
    if parts.any(|part| part != first) {
        return Err(Error::config(format!(
            "the sources {} are of several parts of the join: a field has one; make a field of each",
            asked.join(", ")
        )));
    }
    Ok(first)
}

/// The place of the first source that matches in a shard of the `part` of a join, if it is one; among several names that
/// match one pattern, the least.
fn find(asked: &[String], part: Option<&JoinPartSpec>, fields: &[&FieldCount], columns: &[String]) -> Member {
    let find = |source: &String| {
        let own = part.map_or(Some(source.as_str()), |part| part.own_name(source));
        let is_own = |name| own.is_some_and(|own| matches(own, name));
        let matching = (0..).zip(fields).filter(|(_, field)| names(field).any(is_own));
        let member = |(place, field): (u32, &&FieldCount)| Member { place, encoding: field.encoding, is_label: false };
        let column = || (0..).zip(columns).find(|(_, column)| *column == source);
        let label = |(place, _)| Member { place, encoding: Encoding::Plain, is_label: true };
        matching.min_by_key(|(_, field)| &field.name).map(member).or_else(|| column().map(label))
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

fn found_fields(dataset: &Dataset) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for shard in 0..dataset.all_shards() {
        let part = dataset.part_of(shard).map(|part| part.name.as_str());
        for field in dataset.index(shard).meta.fields.iter().filter(|field| field.name != PATH_FIELD) {
            for name in names(field) {
                let name = part.map_or_else(|| name.to_owned(), |part| format!("{part}.{name}"));
                *found.entry(name).or_default() += field.samples;
            }
        }
    }
    found
}

fn missing(asked: &[String], found: &BTreeMap<String, u64>, columns: &[String], samples: u64) -> Error {
    const NAMES_MAX: usize = 20;
    let mut names: Vec<String> =
        found.iter().take(NAMES_MAX).map(|(name, count)| format!("{name} ({count})")).collect();
    if found.len() > NAMES_MAX {
        names.push(format!("and {} more", found.len() - NAMES_MAX));
    }
    if !columns.is_empty() {
        names.push(format!("and from the table {}", columns.join(", ")));
    }
    Error::config(format!(
        "no sample has any of the fields asked for: {}; the {samples} samples have: {}",
        asked.join(", "),
        names.join(", ")
    ))
}
