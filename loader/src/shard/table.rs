//! A shard's samples while they are being found: members grouped by key, as columns.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::findings::{Finding, Findings};
use super::format::STORED_BIT;
use super::name;
use super::place::Encoding;
use super::walk::Member;
use crate::error::{Error, Result};
use crate::spec::{DatasetRules, Duplicates, KeyRule};

/// One field of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldCount {
    /// Its name: lower case, without a leading dot.
    pub name: String,
    /// Samples that have it.
    pub samples: u64,
    /// Samples that have it without a byte in it.
    pub empty: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// Bytes of the longest.
    pub bytes_max: u32,
    /// What they are wrapped in.
    #[serde(default)]
    pub encoding: Encoding,
    /// Other names that it goes by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
}

/// The columns. A schema is a list of fields in the order of the members; nearly every shard has one.
#[derive(Debug, Default)]
pub(super) struct Table {
    key_rule: KeyRule,
    duplicates: Duplicates,
    pub(super) member_offsets: Vec<u64>,
    pub(super) member_lens: Vec<u32>,
    /// Per sample, the number of members up to its end.
    pub(super) member_ends: Vec<u32>,
    /// Per sample, its schema.
    pub(super) sample_schemas: Vec<u32>,
    /// Per sample, the bytes of key text up to its end.
    pub(super) key_ends: Vec<u32>,
    pub(super) key_text: String,
    /// Bodies that are kept in the index.
    pub(super) stored: Vec<u8>,
    /// Where ranges of files may end, where that is not the shard's own length.
    pub(super) file_bytes_max: Option<u64>,
    pub(super) fields: Vec<FieldCount>,
    pub(super) schemas: Vec<Vec<u32>>,
    field_numbers: HashMap<String, u32>,
    schema_numbers: HashMap<Vec<u32>, u32>,
    closed_keys: HashSet<Box<str>>,
    open_key: String,
    open_fields: Vec<u32>,
    /// Where the open sample, which is to be left out, had its second member.
    open_dropped: Option<u64>,
}

/// A member's bytes: in the shard's file, or in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Body {
    /// Where they start; with [`STORED_BIT`] set, in the index.
    pub(super) offset: u64,
    /// How many.
    pub(super) len: u32,
}

impl Table {
    /// No samples yet.
    pub(super) fn new(rules: &DatasetRules) -> Self {
        Self { key_rule: rules.key_rule, duplicates: rules.duplicates, ..Self::default() }
    }

    /// Keeps `bytes` in the index.
    pub(super) fn store(&mut self, bytes: &[u8]) -> Body {
        let offset = self.stored.len() as u64 | STORED_BIT;
        self.stored.extend(bytes);
        Body { offset, len: u32::try_from(bytes.len()).expect("a path or a label") }
    }

    /// Samples that are closed.
    pub(super) fn sample_count(&self) -> u64 {
        self.sample_schemas.len() as u64
    }

    /// Adds the next member of the shard at `path`.
    pub(super) fn add(&mut self, path: &Path, member: &Member, findings: &mut Findings) -> Result<()> {
        let parts = match name::split(&member.name, self.key_rule) {
            Ok(parts) => parts,
            Err(litter) => {
                findings.add(litter, member.header_offset, || member.name.clone());
                return Ok(());
            }
        };
        let error = |message: String| Error::shard(path, member.header_offset, message);
        if self.open_fields.is_empty() || parts.key != self.open_key {
            self.close(path, findings)?;
            if self.closed_keys.contains(parts.key.as_str()) {
                return Err(error(format!(
                    "member {:?}: key {:?} comes back after other keys, so its sample would be torn; re-sort the shard \
                     so that the files of a sample follow each other (tar --sort=name), or join them with \
                     unsorted=\"regroup\"",
                    member.name, parts.key
                )));
            }
            self.open_key = parts.key;
        }
        let field = self.field_number(&parts.field, member, findings);
        let len = u32::try_from(member.size).expect("longer members were refused");
        if let Some(place) = self.open_fields.iter().position(|&open| open == field) {
            match self.duplicates {
                Duplicates::Error => {
                    return Err(error(format!(
                        "member {:?}: the sample {:?} has a second member for field {:?}; rename or remove one of them, or \
                         say which counts with duplicates=\"first\", \"last\" or \"drop_sample\"",
                        member.name, self.open_key, parts.field
                    )));
                }
                Duplicates::First | Duplicates::Last => {
                    findings.add(Finding::DuplicateMember, member.header_offset, || member.name.clone());
                    if self.duplicates == Duplicates::Last {
                        self.replace(place, field, member.body_offset, len);
                    }
                }
                Duplicates::DropSample => {
                    self.open_dropped.get_or_insert(member.header_offset);
                }
            }
            return Ok(());
        }
        self.open_fields.push(field);
        self.count_member(field, member.body_offset, len);
        Ok(())
    }

    fn count_member(&mut self, field: u32, offset: u64, len: u32) {
        let count = &mut self.fields[field as usize];
        count.samples += 1;
        count.empty += u64::from(len == 0);
        count.bytes += u64::from(len);
        count.bytes_max = count.bytes_max.max(len);
        self.member_offsets.push(offset);
        self.member_lens.push(len);
    }

    /// Puts another body in the place of the open sample's member number `place`.
    fn replace(&mut self, place: usize, field: u32, offset: u64, len: u32) {
        let at = self.member_offsets.len() - self.open_fields.len() + place;
        let count = &mut self.fields[field as usize];
        let old = std::mem::replace(&mut self.member_lens[at], len);
        self.member_offsets[at] = offset;
        count.empty = count.empty - u64::from(old == 0) + u64::from(len == 0);
        count.bytes = count.bytes - u64::from(old) + u64::from(len);
        count.bytes_max = count.bytes_max.max(len);
    }

    /// Leaves out the open sample, if there is one, which `finding` is about.
    pub(super) fn drop_open(&mut self, finding: Finding, offset: u64, findings: &mut Findings) {
        if self.open_fields.is_empty() {
            return;
        }
        let start = self.member_offsets.len() - self.open_fields.len();
        for (&field, &len) in self.open_fields.iter().zip(&self.member_lens[start..]) {
            let count = &mut self.fields[field as usize];
            count.samples -= 1;
            count.empty -= u64::from(len == 0);
            count.bytes -= u64::from(len);
        }
        self.member_offsets.truncate(start);
        self.member_lens.truncate(start);
        self.open_fields.clear();
        self.open_dropped = None;
        findings.add(finding, offset, || self.open_key.clone());
        self.closed_keys.insert(std::mem::take(&mut self.open_key).into_boxed_str());
    }

    /// Whether the member `name` is not of the open sample.
    pub(super) fn is_complete_before(&self, name: &str) -> bool {
        name::split(name, self.key_rule).is_ok_and(|parts| parts.key != self.open_key)
    }

    /// Closes the open sample, if there is one.
    pub(super) fn close(&mut self, path: &Path, findings: &mut Findings) -> Result<()> {
        if let Some(offset) = self.open_dropped {
            self.drop_open(Finding::DroppedSample, offset, findings);
        }
        if self.open_fields.is_empty() {
            return Ok(());
        }
        let key = self.open_key.clone();
        self.seal().map_err(|message| {
            let offset = self.member_offsets.last().copied().unwrap_or_default();
            Error::shard(path, offset, message)
        })?;
        self.closed_keys.insert(key.into_boxed_str());
        Ok(())
    }

    /// Moves the open sample to the columns.
    fn seal(&mut self) -> Result<(), &'static str> {
        let too_many = |_| "more than 4294967295 members, or bytes of keys, in one shard; split it";
        let member_end = u32::try_from(self.member_offsets.len()).map_err(too_many)?;
        let key_end = u32::try_from(self.key_text.len() + self.open_key.len()).map_err(too_many)?;
        let schema = match self.schema_numbers.get(self.open_fields.as_slice()) {
            Some(schema) => *schema,
            None => {
                let schema = u32::try_from(self.schemas.len()).expect("no more schemas than samples");
                self.schemas.push(self.open_fields.clone());
                self.schema_numbers.insert(self.open_fields.clone(), schema);
                schema
            }
        };
        self.key_text.push_str(&self.open_key);
        self.key_ends.push(key_end);
        self.member_ends.push(member_end);
        self.sample_schemas.push(schema);
        self.open_key.clear();
        self.open_fields.clear();
        Ok(())
    }

    fn field_number(&mut self, field: &str, member: &Member, findings: &mut Findings) -> u32 {
        let number = self.declare(field, &[], Encoding::Plain);
        if name::is_odd(field) {
            findings.add(Finding::OddField, member.header_offset, || member.name.clone());
        }
        number
    }
}

/// Samples that are found whole: records of a database, files of a tree. The caller sees to it that keys are unique where
/// they have to be.
impl Table {
    /// The number of the field `name`, which is new or was declared before.
    pub(super) fn declare(&mut self, name: &str, aliases: &[&str], encoding: Encoding) -> u32 {
        if let Some(number) = self.field_numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.fields.len()).expect("no more fields than members");
        let aliases = aliases.iter().map(|&alias| alias.to_owned()).collect();
        let name = name.to_owned();
        self.field_numbers.insert(name.clone(), number);
        self.fields.push(FieldCount { name, samples: 0, empty: 0, bytes: 0, bytes_max: 0, encoding, aliases });
        number
    }

    /// Adds the sample `key` of the shard at `path` with its members: field, offset, length.
    pub(super) fn push_sample(
        &mut self,
        path: &Path,
        key: &str,
        members: impl Iterator<Item = (u32, u64, u32)>,
    ) -> Result<()> {
        debug_assert!(self.open_fields.is_empty(), "{:?} is open", self.open_key);
        for (field, offset, len) in members {
            self.open_fields.push(field);
            self.count_member(field, offset, len);
        }
        self.open_key.push_str(key);
        self.seal().map_err(|message| Error::shard(path, 0, message))
    }
}
