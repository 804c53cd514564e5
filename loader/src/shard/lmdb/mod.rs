//! LMDB databases as shards: a value is one range of bytes of the data file.
//!
//! Read in this order: [`snapshot`] (which state is read, and what keeps it), [`meta`], [`page`] and [`walk`] (from the
//! file to its keys, by `pread` and with every number checked), [`keys`], [`profile`] (what keys and values mean) and
//! [`samples`] (keys to samples, in their [`order`]). liblmdb itself only holds the snapshot.

mod keys;
mod meta;
mod order;
mod page;
mod profile;
mod samples;
mod snapshot;
mod walk;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::findings::{Finding, Findings};
use super::format::{self, Meta};
use super::identity::{FileState, Identity};
use super::table::{FieldCount, Table};
use super::window::UntilStopped;
use crate::error::{Error, Result};
use crate::spec::DatasetRules;

pub use snapshot::DatabaseState;
pub(super) use snapshot::{Snapshot, SnapshotId, data_file};

use keys::Keys;
use meta::{Database, INTEGER_KEY};
use walk::{Entry, PageSource, Tree, WalkError};

/// Most databases inside a database that are named.
const DATABASES_MAX: usize = 64;

/// Keys between two reports of progress.
const REPORT_KEYS: usize = 4096;

/// A key of a database and where its value lies in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LmdbEntry {
    /// The key.
    pub key: Vec<u8>,
    /// Where the value starts, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// Every entry of a database, or of the database `inside` it, given the bytes of its file: the walk behind an index, for
/// tools and tests. Whatever the bytes, the result is an error or ranges that lie within them.
pub fn lmdb_entries(file: &[u8], inside: Option<&str>) -> Result<Vec<LmdbEntry>, String> {
    let file_bytes = file.len() as u64;
    let metas = meta::read_metas(file, file_bytes).map_err(|error| error.to_string())??;
    let tree = Tree { source: file, file_bytes, meta: meta::newest(&metas) };
    let mut entries = Vec::new();
    let read = |database: &Database, entries: &mut Vec<LmdbEntry>| {
        tree.walk(database, &mut |entry| {
            if entry.database.is_none() {
                entries.push(LmdbEntry { key: entry.key.to_vec(), offset: entry.offset, len: entry.len });
            }
            Ok(())
        })
    };
    let walked = match inside {
        None => read(&tree.meta.main, &mut entries),
        Some(name) => find_database(&tree, name).and_then(|database| match database {
            Some(database) => read(&database, &mut entries),
            None => Ok(()),
        }),
    };
    walked.map(|()| entries).map_err(|error| match error {
        WalkError::Io(error) => error.to_string(),
        WalkError::Damage { offset, message } => format!("at byte {offset}: {message}"),
    })
}

/// Finds the samples of a database and returns the bytes of its index. Ends soon, with an error, once `stop` is set.
pub(super) fn build(
    path: &Path,
    snapshot: &Snapshot,
    state: FileState,
    rules: &DatasetRules,
    report: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<u8>> {
    let source = snapshot.file();
    let io = |source| Error::io("read", path, source);
    let file_bytes = source.metadata().map_err(io)?.len();
    let tree = Tree { source: &UntilStopped { source, stop }, file_bytes, meta: *snapshot.meta() };
    let (mut table, mut findings) = (Table::default(), Findings::default());
    let walked = collect(path, &tree, rules, &mut findings, report);
    // What a writer did meanwhile looks like damage.
    snapshot.check()?;
    let (mut keys, flags, which) = walked?;
    let found = profile::find(path, source, &keys, rules.profile)?;
    let stated = match keys.stated_count(source).map_err(io)? {
        Some((name, Ok(count))) => Some((name, count)),
        Some((name, Err(value))) => {
            findings.add(Finding::StatedCount, 0, || format!("{name} is {value}, which is no number"));
            None
        }
        None => None,
    };
    let maker = samples::Rules {
        path,
        source,
        profile: found.profile,
        key_order: rules.key_order,
        stated,
        integer_keys: flags & INTEGER_KEY != 0,
    };
    let order = maker.apply(&mut keys, &mut table, &mut findings)?;
    if table.sample_count() == 0 {
        findings.add(Finding::NoSamples, 0, String::new);
    }
    report(table.sample_count());
    table.file_bytes_max = Some(file_bytes);
    let names = |field: &FieldCount| [std::slice::from_ref(&field.name), &field.aliases].concat().join(" = ");
    let fields: Vec<String> = table.fields.iter().map(names).collect();
    let note = format!(
        "LMDB{which} read with profile=\"{}\" ({}), {order}; fields: {}",
        found.profile.name(),
        found.reason,
        fields.join(", ")
    );
    snapshot.check()?;
    // The second "header" is the other meta page, so that both are part of the fingerprint.
    let identity = Identity::read(source, state, u64::from(tree.meta.page_bytes)).map_err(io)?;
    let meta =
        Meta { findings: findings.into_counts(), snapshot: Some(snapshot.id()), notes: vec![note], ..Meta::default() };
    Ok(format::encode(&table, &identity, meta))
}

/// Walks over the database that the rules choose. Returns its keys, its flags, and its name for people.
fn collect<S: PageSource + ?Sized>(
    path: &Path,
    tree: &Tree<'_, S>,
    rules: &DatasetRules,
    findings: &mut Findings,
    report: &(dyn Fn(u64) + Sync),
) -> Result<(Keys, u16, String)> {
    let told = |error| match error {
        WalkError::Io(source) => Error::io("read", path, source),
        WalkError::Damage { offset, message } => Error::shard(path, offset, message),
    };
    let main = tree.meta.main;
    let mut read = |database: &Database, databases: &mut Vec<String>| {
        let mut keys = Keys::default();
        let walked = tree.walk(database, &mut |entry: Entry<'_>| {
            if entry.database.is_some() {
                let name = || String::from_utf8_lossy(entry.key).into_owned();
                findings.add(Finding::SubDatabase, entry.offset, name);
                if databases.len() < DATABASES_MAX {
                    databases.push(name());
                }
                return Ok(());
            }
            keys.add(entry.key, entry.offset, entry.len);
            if keys.records.len().is_multiple_of(REPORT_KEYS) {
                report(keys.records.len() as u64);
            }
            Ok(())
        });
        walked.map(|()| keys)
    };
    if let Some(name) = &rules.database {
        let Some(database) = find_database(tree, name).map_err(told)? else {
            let mut databases = Vec::new();
            read(&main, &mut databases).map_err(told)?;
            return Err(Error::config(format!(
                "{}: there is no database {name:?} in it; it has {}",
                path.display(),
                if databases.is_empty() { "none inside: leave database= out".into() } else { databases.join(", ") }
            )));
        };
        let keys = read(&database, &mut Vec::new()).map_err(told)?;
        return Ok((keys, database.flags, format!(" database {name:?}")));
    }
    let mut databases = Vec::new();
    let keys = read(&main, &mut databases).map_err(told)?;
    if databases.is_empty() || !keys.records.is_empty() {
        return Ok((keys, main.flags, String::new()));
    }
    let [name] = &databases[..] else {
        return Err(Error::config(format!(
            "{}: it has several databases inside and no values of its own; choose one with database=: {}",
            path.display(),
            databases.join(", ")
        )));
    };
    let database = find_database(tree, name).map_err(told)?;
    let database =
        database.ok_or_else(|| Error::shard(path, 0, format!("database {name:?} has a name that is no text")))?;
    let keys = read(&database, &mut Vec::new()).map_err(told)?;
    Ok((keys, database.flags, format!(" database {name:?}, the only one inside,")))
}

/// The record of the database `name` inside the main one.
fn find_database<S: PageSource + ?Sized>(tree: &Tree<'_, S>, name: &str) -> Result<Option<Database>, WalkError> {
    let mut found = None;
    tree.walk(&tree.meta.main, &mut |entry| {
        if let Some(record) = entry.database.filter(|_| entry.key == name.as_bytes()) {
            let number = entry.offset / u64::from(tree.meta.page_bytes);
            let database = Database::parse(record);
            found = Some(database.map_err(|reason| tree.damage(number, format!("database {name:?}: {reason}")))?);
        }
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests;
