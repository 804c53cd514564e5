//! One shard's index: built from the shard, or opened from the cache.

use std::fs::{File, Metadata};
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::compressed::{Compression, Forwards};
use super::dataset::IndexOptions;
use super::findings::{Finding, FindingCount};
use super::format::{self, Columns, Meta};
use super::identity::{FileState, Identity};
use super::kind::ShardKind;
use super::lmdb::{self, Snapshot};
use super::place::{ByteRange, Origin};
use super::regroup;
use super::table::Table;
use super::tar::BLOCK_BYTES;
use super::tree::{self, Links, Tree, TreeFile};
use super::walk::{Member, Walk};
use super::window::{ReadAt, UntilStopped};
use crate::error::{Error, Result};
use crate::spec::{Damaged, DatasetRules, Unsorted};
use crate::sys::map::MappedFile;

/// Members between two reports of progress.
const REPORT_MEMBERS: u64 = 256;

/// An index's bytes.
#[derive(Debug)]
pub(super) enum IndexBytes {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

impl Deref for IndexBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A shard's samples, checked.
#[derive(Debug)]
pub(super) struct ShardIndex {
    bytes: IndexBytes,
    columns: Columns,
    pub(super) identity: Identity,
    pub(super) meta: Meta,
}

impl ShardIndex {
    /// Checks `bytes`; the error says why they are no index.
    pub(super) fn new(bytes: IndexBytes) -> Result<Self, String> {
        let (identity, columns, meta) = format::parse(&bytes)?;
        Ok(Self { bytes, columns, identity, meta })
    }

    pub(super) fn sample_count(&self) -> u32 {
        self.columns.samples
    }

    pub(super) fn member_count(&self) -> u32 {
        self.columns.members
    }

    pub(super) fn key_bytes_max(&self) -> u32 {
        self.columns.key_bytes_max
    }

    /// Bytes of the index.
    pub(super) fn index_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Of them, what is not mapped from a file.
    pub(super) fn owned_bytes(&self) -> u64 {
        match &self.bytes {
            IndexBytes::Mapped(_) => 0,
            IndexBytes::Owned(bytes) => bytes.capacity() as u64,
        }
    }

    pub(super) fn key(&self, sample: u32) -> &str {
        self.columns.key(&self.bytes, sample)
    }

    /// A hash of all keys in their order.
    pub(super) fn keys_hash(&self) -> String {
        self.columns.keys_hash(&self.bytes)
    }

    pub(super) fn schema(&self, sample: u32) -> u32 {
        self.columns.schema(&self.bytes, sample)
    }

    /// The member in place `position` of the sample's schema.
    pub(super) fn member(&self, sample: u32, position: u32) -> (Origin, ByteRange) {
        let start = self.columns.member_start(&self.bytes, sample);
        self.columns.member(&self.bytes, start + position)
    }

    /// Where the last byte of all members in the shard's file lies, or behind it.
    pub(super) fn file_end(&self) -> u64 {
        let members = (0..self.member_count()).map(|member| self.columns.member(&self.bytes, member));
        let ends =
            members.filter(|(origin, _)| *origin == Origin::File).map(|(_, range)| range.offset + u64::from(range.len));
        ends.max().unwrap_or(0)
    }

    /// Whether the shard at `path`, now in `state`, is still what it was, as far as `stat` can tell.
    pub(super) fn is_current(&self, path: &Path, state: FileState) -> bool {
        let folders = || tree::identity(path, state, &self.meta.folders).is_ok_and(|now| now == self.identity);
        state == self.identity.state && (!self.is_tree() || folders())
    }

    /// Whether the shard at `path`, open as `file` and in `state`, is still what it was.
    pub(super) fn is_of(&self, path: &Path, file: &File, state: FileState) -> bool {
        let current = if self.meta.folders.is_empty() {
            Identity::read(file, state, self.identity.last_header)
        } else {
            tree::identity(path, state, &self.meta.folders)
        };
        self.identity.state == state && current.is_ok_and(|current| current == self.identity)
    }

    /// The file of `sample` in a shard that is a folder; `None` in any other shard.
    pub(super) fn file(&self, sample: u32) -> Option<TreeFile<'_>> {
        if !self.is_tree() {
            return None;
        }
        let schema = &self.meta.schemas[self.schema(sample) as usize];
        let place = |wanted: bool| {
            let is_path = |field: &u32| self.meta.fields[*field as usize].name == tree::PATH_FIELD;
            let place = schema.iter().position(|field| is_path(field) == wanted)?;
            Some(self.member(sample, u32::try_from(place).ok()?).1)
        };
        TreeFile::decode(self.stored(place(true)?), place(false)?.len)
    }

    /// How the shard is compressed, if it is.
    pub(super) fn compression(&self) -> Option<Compression> {
        self.meta.compression
    }

    /// Whether the shard is a folder, so that each sample has a file of its own.
    pub(super) fn is_tree(&self) -> bool {
        !self.meta.folders.is_empty()
    }

    /// The bytes of a range whose origin is the index.
    pub(super) fn stored(&self, range: ByteRange) -> &[u8] {
        self.columns.stored(&self.bytes, range)
    }
}

/// Opens a shard and tells its state.
pub(super) fn open_shard(path: &Path) -> Result<(File, FileState)> {
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    let metadata = metadata(&file, path)?;
    Ok((file, FileState::of(&metadata)))
}

/// Finds the samples of a shard and returns the bytes of its index. `report` is told the samples found so far; ends soon,
/// with an error, once `stop` is set.
pub(super) fn build(
    path: &Path,
    file: &File,
    state: FileState,
    snapshot: Option<&Snapshot>,
    options: &IndexOptions,
    report: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<u8>> {
    let rules = &options.rules;
    match ShardKind::of(path)? {
        ShardKind::Tar => build_tar(path, file, state, rules, report, stop),
        ShardKind::CompressedTar(compression) => build_compressed(path, file, state, compression, rules, report, stop),
        ShardKind::Lmdb => match snapshot {
            Some(snapshot) => lmdb::build(path, snapshot, state, rules, report, stop),
            None => Err(Error::shard(path, 0, "a database was put here while the dataset was opened; open it again")),
        },
        ShardKind::Tree => build_tree(path, state, options.links, report, stop),
    }
}

/// Walks over a tar's headers.
fn build_tar(
    path: &Path,
    file: &File,
    state: FileState,
    rules: &DatasetRules,
    report: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<u8>> {
    // Hops would make the kernel read ahead what is then hopped over. Not all file systems take the advice.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    let source = UntilStopped { source: file, stop };
    let (table, findings, last_header) = walk_tar(Walk::new(path, &source, state.bytes), path, rules, report)?;
    let identity = identity(path, file, state, last_header)?;
    Ok(format::encode(&table, &identity, Meta { findings, ..Meta::default() }))
}

/// Walks over what a compressed tar unpacks to.
fn build_compressed(
    path: &Path,
    file: &File,
    state: FileState,
    compression: Compression,
    rules: &DatasetRules,
    report: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<u8>> {
    /// Far behind any end; what lies behind the real one is told by the reader.
    const UNPACKED_BYTES_MAX: u64 = u64::MAX >> 1;
    let file_again = file.try_clone().map_err(|source| Error::io("unpack", path, source))?;
    let unpacked = Forwards::new(file_again, compression, stop);
    let walk = Walk::new(path, &unpacked, UNPACKED_BYTES_MAX);
    let (mut table, findings, _) = walk_tar(walk, path, rules, report)?;
    table.file_bytes_max = Some(UNPACKED_BYTES_MAX);
    // The ends of the file itself.
    let identity = identity(path, file, state, state.bytes.saturating_sub(BLOCK_BYTES))?;
    Ok(format::encode(&table, &identity, Meta { findings, compression: Some(compression), ..Meta::default() }))
}

/// The samples that a walk finds, what is said about the shard, and where its last header is.
fn walk_tar<S: ReadAt + ?Sized>(
    mut walk: Walk<'_, S>,
    path: &Path,
    rules: &DatasetRules,
    report: &(dyn Fn(u64) + Sync),
) -> Result<(Table, Vec<FindingCount>, u64)> {
    let mut table = Table::new(rules);
    let damage = match rules.unsorted {
        Unsorted::Error => add_as_found(&mut walk, path, rules, &mut table, report)?,
        Unsorted::Regroup => add_regrouped(&mut walk, path, rules, &mut table, report)?,
    };
    if let Some(Damage { offset, message }) = damage {
        // The end of the archive, or a member of another sample, tells that the open one is complete.
        let is_followed = || walk.cut_member.as_deref().is_some_and(|member| table.is_complete_before(member));
        if walk.has_ended || is_followed() {
            table.close(path, &mut walk.findings)?;
        }
        table.drop_open(Finding::CutSample, offset, &mut walk.findings);
        walk.findings.add(Finding::RestSkipped, offset, || message);
    }
    table.close(path, &mut walk.findings)?;
    report(table.sample_count());
    let last_header = walk.last_header().unwrap_or(0);
    let findings = walk.finish(table.sample_count());
    Ok((table, findings, last_header))
}

/// The identity of a shard that must not have changed since it was in `state`.
fn identity(path: &Path, file: &File, state: FileState, last_header: u64) -> Result<Identity> {
    let identity = Identity::read(file, state, last_header);
    let identity = identity.map_err(|source| Error::io("read", path, source))?;
    if FileState::of(&metadata(file, path)?) != state {
        return Err(Error::shard(
            path,
            0,
            "the shard changed while it was being indexed; start again when its writer is done",
        ));
    }
    Ok(identity)
}

/// Lists a folder of files.
fn build_tree(
    path: &Path,
    state: FileState,
    links: Links,
    report: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<u8>> {
    let Tree { table, mut findings, classes, folders } = tree::build(path, links, report, stop)?;
    if table.sample_count() == 0 {
        findings.add(Finding::NoSamples, 0, String::new);
    }
    let identity = tree::identity(path, state, &folders).map_err(|source| Error::io("look at", path, source))?;
    let classes = (!classes.is_empty()).then_some(classes);
    let meta = Meta { findings: findings.into_counts(), folders, classes, ..Meta::default() };
    Ok(format::encode(&table, &identity, meta))
}

/// What ends a shard early, where the rule is to use what lies before it.
struct Damage {
    offset: u64,
    message: String,
}

/// What comes next in a shard.
enum Step {
    Member(Member),
    End,
    Damage(Damage),
}

fn step<S: ReadAt + ?Sized>(walk: &mut Walk<'_, S>, rule: Damaged) -> Result<Step> {
    match walk.next_member() {
        Ok(Some(member)) => Ok(Step::Member(member)),
        Ok(None) => Ok(Step::End),
        Err(Error::Shard { offset, message, .. }) if rule == Damaged::SkipRest => {
            Ok(Step::Damage(Damage { offset, message }))
        }
        Err(error) => Err(error),
    }
}

/// Adds the members as they come.
fn add_as_found<S: ReadAt + ?Sized>(
    walk: &mut Walk<'_, S>,
    path: &Path,
    rules: &DatasetRules,
    table: &mut Table,
    report: &(dyn Fn(u64) + Sync),
) -> Result<Option<Damage>> {
    for number in 1_u64.. {
        match step(walk, rules.damaged)? {
            Step::Member(member) => table.add(path, &member, &mut walk.findings)?,
            Step::End => break,
            Step::Damage(damage) => return Ok(Some(damage)),
        }
        if number.is_multiple_of(REPORT_MEMBERS) {
            report(table.sample_count());
        }
    }
    Ok(None)
}

/// Finds all members before any is added.
fn add_regrouped<S: ReadAt + ?Sized>(
    walk: &mut Walk<'_, S>,
    path: &Path,
    rules: &DatasetRules,
    table: &mut Table,
    report: &(dyn Fn(u64) + Sync),
) -> Result<Option<Damage>> {
    let mut members = Vec::new();
    let damage = loop {
        match step(walk, rules.damaged)? {
            Step::Member(member) => members.push(member),
            Step::End => break None,
            Step::Damage(damage) => break Some(damage),
        }
        if (members.len() as u64).is_multiple_of(REPORT_MEMBERS) {
            // Samples are not known yet; every report is a sign of life.
            report(0);
        }
    };
    for member in regroup::by_key(members, rules.key_rule, &mut walk.findings) {
        table.add(path, &member, &mut walk.findings)?;
    }
    Ok(damage)
}

fn metadata(file: &File, path: &Path) -> Result<Metadata> {
    file.metadata().map_err(|source| Error::io("stat", path, source))
}
