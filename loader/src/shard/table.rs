//! A shard's samples while they are being found: members grouped by key, as columns.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::findings::{Finding, Findings};
use super::lmdb::SnapshotId;
use super::name;
use super::place::Encoding;
use super::walk::Member;
use crate::error::{Error, Result};

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
    /// The snapshot of a database that it was made of.
    pub(super) snapshot: Option<SnapshotId>,
    /// What users should know of how the shard was understood.
    pub(super) notes: Vec<String>,
    pub(super) fields: Vec<FieldCount>,
    pub(super) schemas: Vec<Vec<u32>>,
    field_numbers: HashMap<String, u32>,
    schema_numbers: HashMap<Vec<u32>, u32>,
    closed_keys: HashSet<Box<str>>,
    open_key: String,
    open_fields: Vec<u32>,
}

impl Table {
    /// Samples that are closed.
    pub(super) fn sample_count(&self) -> u64 {
        self.sample_schemas.len() as u64
    }

    /// Adds the next member of the shard at `path`.
    pub(super) fn add(&mut self, path: &Path, member: &Member, findings: &mut Findings) -> Result<()> {
        let parts = match name::split(&member.name) {
            Ok(parts) => parts,
            Err(litter) => {
                findings.add(litter, member.header_offset, || member.name.clone());
                return Ok(());
            }
        };
        let error = |message: String| Error::shard(path, member.header_offset, message);
        if self.open_fields.is_empty() || parts.key != self.open_key {
            self.close(path)?;
            if self.closed_keys.contains(parts.key.as_str()) {
                return Err(error(format!(
                    "member {:?}: key {:?} comes back after other keys, so its sample would be torn; re-sort the shard \
                     so that the files of a sample follow each other (tar --sort=name)",
                    member.name, parts.key
                )));
            }
            self.open_key = parts.key;
        }
        let field = self.field_number(&parts.field, member, findings);
        if self.open_fields.contains(&field) {
            return Err(error(format!(
                "member {:?}: the sample {:?} has a second member for field {:?}; rename or remove one of them",
                member.name, self.open_key, parts.field
            )));
        }
        let len = u32::try_from(member.size).expect("longer members were refused");
        let count = &mut self.fields[field as usize];
        count.samples += 1;
        count.empty += u64::from(len == 0);
        count.bytes += u64::from(len);
        count.bytes_max = count.bytes_max.max(len);
        self.open_fields.push(field);
        self.member_offsets.push(member.body_offset);
        self.member_lens.push(len);
        Ok(())
    }

    /// Closes the open sample, if there is one.
    pub(super) fn close(&mut self, path: &Path) -> Result<()> {
        if self.open_fields.is_empty() {
            return Ok(());
        }
        let too_many = |_| {
            let offset = self.member_offsets.last().copied().unwrap_or_default();
            Error::shard(path, offset, "more than 4294967295 members, or bytes of keys, in one shard; split it")
        };
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
        self.closed_keys.insert(std::mem::take(&mut self.open_key).into_boxed_str());
        self.open_fields.clear();
        Ok(())
    }

    fn field_number(&mut self, field: &str, member: &Member, findings: &mut Findings) -> u32 {
        let number = match self.field_numbers.get(field) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.fields.len()).expect("no more fields than members");
                self.fields.push(FieldCount {
                    name: field.to_owned(),
                    samples: 0,
                    empty: 0,
                    bytes: 0,
                    bytes_max: 0,
                    encoding: Encoding::Plain,
                    aliases: Vec::new(),
                });
                self.field_numbers.insert(field.to_owned(), number);
                number
            }
        };
        if name::is_odd(field) {
            findings.add(Finding::OddField, member.header_offset, || member.name.clone());
        }
        number
    }
}

/// Samples that are found whole: records of a database.
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
        for (field, offset, len) in members {
            let count = &mut self.fields[field as usize];
            count.samples += 1;
            count.empty += u64::from(len == 0);
            count.bytes += u64::from(len);
            count.bytes_max = count.bytes_max.max(len);
            self.open_fields.push(field);
            self.member_offsets.push(offset);
            self.member_lens.push(len);
        }
        self.open_key.push_str(key);
        self.close(path)?;
        // A database has each key once.
        self.closed_keys.clear();
        Ok(())
    }
}
