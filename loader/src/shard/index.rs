//! One shard's index: built from the shard, or opened from the cache.

use std::fs::{File, Metadata};
use std::ops::Deref;
use std::path::Path;

use super::format::{self, Columns, Meta};
use super::identity::{FileState, Identity};
use super::kind::ShardKind;
use super::lmdb::{self, Snapshot};
use super::place::{ByteRange, Origin};
use super::table::Table;
use super::walk::Walk;
use crate::error::{Error, Result};
use crate::spec::DatasetRules;
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

    pub(super) fn key(&self, sample: u32) -> &str {
        self.columns.key(&self.bytes, sample)
    }

    pub(super) fn schema(&self, sample: u32) -> u32 {
        self.columns.schema(&self.bytes, sample)
    }

    /// The member in place `position` of the sample's schema.
    pub(super) fn member(&self, sample: u32, position: u32) -> (Origin, ByteRange) {
        let start = self.columns.member_start(&self.bytes, sample);
        self.columns.member(&self.bytes, start + position)
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

/// Finds the samples of a shard and returns the bytes of its index. `report` is told the samples found so far.
pub(super) fn build(
    path: &Path,
    file: &File,
    state: FileState,
    snapshot: Option<&Snapshot>,
    rules: &DatasetRules,
    report: &mut dyn FnMut(u64),
) -> Result<Vec<u8>> {
    match ShardKind::of(path)? {
        // The walk names the compression.
        ShardKind::Tar | ShardKind::CompressedTar(_) => build_tar(path, file, state, report),
        ShardKind::Lmdb => match snapshot {
            Some(snapshot) => lmdb::build(path, snapshot, state, rules, report),
            None => Err(Error::shard(path, 0, "a database was put here while the dataset was opened; open it again")),
        },
        ShardKind::Tree => Err(Error::config(format!("{} is a folder: name its shards", path.display()))),
    }
}

/// Walks over a tar's headers.
fn build_tar(path: &Path, file: &File, state: FileState, report: &mut dyn FnMut(u64)) -> Result<Vec<u8>> {
    if state.bytes == 0 {
        return Err(Error::shard(
            path,
            0,
            "the file is empty (0 bytes), as a failed download leaves it; fetch it again or leave it out",
        ));
    }
    // Hops would make the kernel read ahead what is then hopped over. Not all file systems take the advice.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    let mut walk = Walk::new(path, file, state.bytes);
    let mut table = Table::default();
    let mut members = 0_u64;
    while let Some(member) = walk.next_member()? {
        table.add(path, &member, &mut walk.findings)?;
        members += 1;
        if members.is_multiple_of(REPORT_MEMBERS) {
            report(table.sample_count());
        }
    }
    table.close(path)?;
    report(table.sample_count());
    let identity = Identity::read(file, state, walk.last_header().unwrap_or(0));
    let identity = identity.map_err(|source| Error::io("read", path, source))?;
    if FileState::of(&metadata(file, path)?) != state {
        return Err(Error::shard(
            path,
            0,
            "the shard changed while it was being indexed; start again when its writer is done",
        ));
    }
    Ok(format::encode(&table, &identity, walk.finish(table.sample_count())))
}

fn metadata(file: &File, path: &Path) -> Result<Metadata> {
    file.metadata().map_err(|source| Error::io("stat", path, source))
}
