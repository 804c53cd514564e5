//! A dataset: the indexes of its shards, one after the other.

use std::fs::{self, File, Metadata};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use super::cache::Cache;
use super::compressed;
use super::identity::FileState;
use super::index::{self, ShardIndex};
use super::join::Join;
use super::kind::ShardKind;
use super::labels::Labels;
use super::lmdb::{self, DatabaseState, Snapshot, SnapshotId};
use super::pattern;
use super::place::{FieldBytes, Origin};
use super::selector::FieldSelector;
use super::tree::{self, Links};
use crate::error::{Error, Result};
use crate::plan::SampleId;
use crate::spec::{DatasetRules, JoinPartSpec, JoinSpec};

/// Threads that index. They wait for the disk more than they compute, so their number is a queue depth.
const THREADS: u32 = 16;

/// What statfs calls tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// How a dataset is opened.
#[derive(Debug, Clone, Default)]
pub struct IndexOptions {
    /// Where indexes are kept; by default `$FEEDLINE_CACHE`, else the user's cache folder.
    pub cache_dir: Option<PathBuf>,
    /// Shards indexed at once; 16 by default.
    pub threads: Option<u32>,
    /// How shards are understood.
    pub rules: DatasetRules,
    /// Whether links may lead out of a folder of files.
    pub links: Links,
}

/// How far the opening of a dataset is.
#[derive(Debug, Clone, Copy)]
pub struct IndexProgress {
    /// Shards whose index is there.
    pub shards_done: u64,
    /// Shards of the dataset.
    pub shards_total: u64,
    /// Samples found so far.
    pub samples: u64,
}

/// One file of a dataset: a shard's own (0), or one of the many of a shard that is a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileNumber {
    /// The shard.
    pub shard: u32,
    /// The file in it.
    pub file: u32,
}

/// A shard's index and, of a database, the snapshot that it is of.
type Opened = (ShardIndex, Option<Snapshot>);

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) index: ShardIndex,
    /// What keeps a database as it was indexed.
    pub(super) snapshot: Option<Snapshot>,
}

impl Shard {
    fn database(&self) -> Option<DatabaseState> {
        let SnapshotId { transaction, root, .. } = self.snapshot.as_ref()?.id();
        Some(DatabaseState { path: self.path.clone(), transaction, root, keys: self.index.keys_hash() })
    }
}

/// All samples of a list of shards: shard by shard, in the order of the members.
#[derive(Debug)]
pub struct Dataset {
    number: u64,
    /// Those that have the samples; in a join, behind them those of the other parts, whose samples are numbered on.
    pub(super) shards: Vec<Shard>,
    /// How many shards have the samples.
    pub(super) own_shards: usize,
    /// Per shard, the number of its first sample.
    first_samples: Vec<u64>,
    /// Samples of the own shards, and of all.
    sample_count: u64,
    number_count: u64,
    key_bytes_max: u32,
    pub(super) notices: Vec<String>,
    databases: Vec<DatabaseState>,
    links: Links,
    labels: Option<(PathBuf, Labels)>,
    join: Option<Join>,
    /// Where its indexes are kept.
    cache: Cache,
    /// Where compressed shards are unpacked.
    pub(super) unpack_folder: PathBuf,
    /// A file of a tree was found to be another than was listed.
    is_outdated: AtomicBool,
    /// After the last database that no lock keeps; 0 where there is none.
    watched_end: usize,
}

impl Dataset {
    /// Opens the index of each shard, or makes it where there is none or the shard has changed. `progress` is called
    /// from several threads.
    pub fn open(shards: &[PathBuf], options: &IndexOptions, progress: &(dyn Fn(IndexProgress) + Sync)) -> Result<Self> {
        Self::open_until(shards, options, progress, &AtomicBool::new(false))
    }

    /// As [`Dataset::open`]; ends soon, with an error, once `stop` is set.
    pub fn open_until(
        shards: &[PathBuf],
        options: &IndexOptions,
        progress: &(dyn Fn(IndexProgress) + Sync),
        stop: &AtomicBool,
    ) -> Result<Self> {
        let absolute = |path: &PathBuf| {
            let path = std::path::absolute(path).map_err(|source| Error::io("find", path, source))?;
            Ok(lmdb::data_file(&path))
        };
        let paths = shards.iter().map(absolute).collect::<Result<Vec<_>>>()?;
        if paths.is_empty() {
            return Err(Error::config("a dataset needs at least one shard"));
        }
        pattern::check_files(&paths)?;
        let cache = Cache::new(options.cache_dir.as_deref(), &options.rules);
        let indexes = open_all(&paths, options, &cache, progress, stop)?;
        let own_shards = match &options.rules.join {
            Some(join) => {
                join.check(paths.len())?;
                join.parts[0].shards as usize
            }
            None => paths.len(),
        };
        let mut dataset = Self::of_indexes(paths, indexes, own_shards, options.links, cache);
        dataset.notices.extend(dataset.cache.failure().map(str::to_owned));
        if dataset.sample_count == 0 {
            return Err(dataset.no_samples());
        }
        if let Some(join) = &options.rules.join {
            dataset.add_parts(join)?;
        }
        if let Some(table) = &options.rules.labels {
            let keys = dataset.keys(0..dataset.own_shards).map(|(_, key)| key);
            let labels = Labels::open(table, options.rules.key_rule, keys)?;
            dataset.notices.extend(labels.notices.iter().cloned());
            dataset.labels = Some((table.path.clone(), labels));
        }
        Ok(dataset)
    }

    /// The first `own_shards` have the samples.
    fn of_indexes(paths: Vec<PathBuf>, indexes: Vec<Opened>, own_shards: usize, links: Links, cache: Cache) -> Self {
        let mut number_count = 0;
        let mut first_samples = Vec::with_capacity(indexes.len());
        for (index, _) in &indexes {
            first_samples.push(number_count);
            number_count += u64::from(index.sample_count());
        }
        let sample_count = first_samples.get(own_shards).copied().unwrap_or(number_count);
        let own = &indexes[..own_shards];
        let key_bytes_max = own.iter().map(|(index, _)| index.key_bytes_max()).max().unwrap_or(0);
        let shards = paths.into_iter().zip(indexes);
        let shards: Vec<Shard> = shards.map(|(path, (index, snapshot))| Shard { path, index, snapshot }).collect();
        let is_watched = |shard: &Shard| shard.snapshot.as_ref().is_some_and(Snapshot::is_watched);
        let watched_end = shards.iter().rposition(is_watched).map_or(0, |last| last + 1);
        let unpack_folder = cache.folder().map_or_else(std::env::temp_dir, Path::to_owned);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut dataset = Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            shards,
            own_shards,
            first_samples,
            sample_count,
            number_count,
            key_bytes_max,
            notices: Vec::new(),
            databases: Vec::new(),
            links,
            labels: None,
            join: None,
            cache,
            unpack_folder,
            is_outdated: AtomicBool::new(false),
            watched_end,
        };
        dataset.databases = dataset.shards.iter().filter_map(Shard::database).collect();
        dataset.notices = dataset.first_notices();
        dataset
    }

    /// Pairs the samples with those of the other parts.
    fn add_parts(&mut self, spec: &JoinSpec) -> Result<()> {
        if let Some(compressed) = self.first_compressed() {
            return Err(Error::config(format!(
                "{} is compressed, and the parts of a join are read in each other's order: write it as a plain tar, for \
                 example by `feedline convert`",
                compressed.display()
            )));
        }
        let mut end = 0;
        let keys = spec.parts.iter().map(|part| {
            let start = end;
            end += part.shards as usize;
            self.keys(start..end)
        });
        let join = Join::new(spec, keys.collect())?;
        self.notices.extend(join.notice.clone());
        self.join = Some(join);
        Ok(())
    }

    /// The samples of some shards with their numbers, in order.
    fn keys(&self, shards: Range<usize>) -> impl Iterator<Item = (u64, &str)> + Clone {
        let indexes = self.shards[shards.clone()].iter().zip(&self.first_samples[shards]);
        indexes.flat_map(|(Shard { index, .. }, first)| {
            (0..index.sample_count()).map(move |local| (first + u64::from(local), index.key(local)))
        })
    }

    /// A number that no other dataset of this process ever had: an address comes again.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its samples; of a join those of the first part.
    pub fn sample_count(&self) -> u64 {
        self.sample_count
    }

    /// Shards that have its samples, those without samples included.
    pub fn shard_count(&self) -> u32 {
        shard_number(self.own_shards)
    }

    /// All shards, those of the other parts of a join included.
    pub(super) fn all_shards(&self) -> u32 {
        shard_number(self.shards.len())
    }

    /// Per shard that has samples of it, the number of its first.
    pub fn first_samples(&self) -> &[u64] {
        &self.first_samples[..self.own_shards]
    }

    /// The join, if it is one.
    pub(super) fn join(&self) -> Option<&Join> {
        self.join.as_ref()
    }

    /// The part of the join that `shard` belongs to.
    pub(super) fn part_of(&self, shard: u32) -> Option<&JoinPartSpec> {
        let mut end = 0;
        self.join()?.parts().iter().find(|part| {
            end += part.shards;
            shard < end
        })
    }

    /// Samples that lack a part of the join, ascending: an epoch leaves them out.
    pub fn unpaired(&self) -> &[u64] {
        self.join.as_ref().map_or(&[], Join::unpaired)
    }

    /// Whether a member of `sample` has its bytes at `offset` of the shard.
    pub fn has_member_at(&self, sample: SampleId, offset: u64) -> bool {
        let (shard, local) = self.locate(sample);
        let index = self.index(shard);
        let members = index.meta.schemas[index.schema(local) as usize].len();
        (0..members as u32).any(|place| index.member(local, place).1.offset == offset)
    }

    /// Absolute path of a shard.
    pub fn shard_path(&self, shard: u32) -> &Path {
        &self.shards[shard as usize].path
    }

    /// The shard that holds `sample`, and its number in it.
    pub fn locate(&self, sample: SampleId) -> (u32, u32) {
        assert!(sample.0 < self.number_count, "sample {} of {}", sample.0, self.number_count);
        // Shards without samples start where the next one does; the last that starts at or before is the one.
        let shard = self.first_samples.partition_point(|&first| first <= sample.0) - 1;
        let local = u32::try_from(sample.0 - self.first_samples[shard]).expect("a shard counts its samples in 32 bits");
        (shard as u32, local)
    }

    /// Calls `use_key` with the sample's key.
    pub fn with_key<R>(&self, sample: SampleId, use_key: impl FnOnce(&str) -> R) -> R {
        let (shard, local) = self.locate(sample);
        use_key(self.index(shard).key(local))
    }

    /// The bytes of a field that are in memory; `None` when they are in its file.
    pub fn stored(&self, field: &FieldBytes) -> Option<&[u8]> {
        match field.origin {
            Origin::File => None,
            Origin::Index => Some(self.index(field.file.shard).stored(field.range)),
            Origin::Labels => self.labels().map(|labels| labels.bytes(field.range)),
        }
    }

    /// The table of labels, if there is one.
    pub(super) fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref().map(|(_, labels)| labels)
    }

    /// Path of the table of labels, if there is one.
    pub fn table_path(&self) -> Option<&Path> {
        self.labels.as_ref().map(|(path, _)| path.as_path())
    }

    /// Length of the longest key.
    pub fn key_bytes_max(&self) -> u32 {
        self.key_bytes_max
    }

    /// The databases among the shards, as they were opened.
    pub fn databases(&self) -> Vec<DatabaseState> {
        self.databases.clone()
    }

    /// What users should know: what was skipped or refused, how often and where first; why indexes are not kept.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Names of the classes, where the dataset is one folder of files.
    pub fn classes(&self) -> Option<&[String]> {
        match &self.shards[..self.own_shards] {
            [Shard { index, .. }] => index.meta.classes.as_deref(),
            _ => None,
        }
    }

    /// Whether each shard is still as it was indexed, as far as `stat` can tell.
    pub fn is_current(&self) -> bool {
        let is_current = |shard: &Shard| match &shard.snapshot {
            Some(snapshot) => snapshot.is_newest(),
            None => {
                let state = fs::metadata(&shard.path).map(|metadata| FileState::of(&metadata));
                state.is_ok_and(|state| shard.index.is_current(&shard.path, state))
            }
        };
        !self.is_outdated.load(Ordering::Relaxed)
            && self.labels.as_ref().is_none_or(|(path, labels)| labels.is_of(path))
            && self.shards.iter().all(is_current)
    }

    /// The first shard that is compressed, if one is.
    pub fn first_compressed(&self) -> Option<&Path> {
        self.shards.iter().find(|shard| shard.index.compression().is_some()).map(|shard| shard.path.as_path())
    }

    /// Whether opening a file of `shard` takes as long as unpacking it.
    pub fn is_compressed(&self, shard: u32) -> bool {
        self.index(shard).compression().is_some()
    }

    /// Unpacks a compressed shard into an unnamed file, as far as it has samples, and makes sure that it is the one that was
    /// indexed. Ends early, with an error, once `stop` is set.
    pub fn unpack(&self, shard: u32, stop: &AtomicBool) -> Result<File> {
        let Shard { path, index, .. } = &self.shards[shard as usize];
        let file = self.open_whole(shard)?;
        let Some(compression) = index.compression() else { return Ok(file) };
        let io = |source| Error::io("look at", path, source);
        let packed = file.try_clone().map_err(io)?;
        let unpacked = compressed::unpack(path, packed, compression, &self.unpack_folder, index.file_end(), stop);
        // What a writer did meanwhile looks like damage.
        self.check_file(shard, &file.metadata().map_err(io)?)?;
        unpacked
    }

    /// Memory that `shard` takes while it is unpacked: none where the folder that it is unpacked into is on a disk.
    pub fn unpacked_memory_bytes(&self, shard: u32) -> u64 {
        let is_memory = rustix::fs::statfs(&self.unpack_folder)
            .is_ok_and(|found| MEMORY_FILE_SYSTEMS.contains(&(found.f_type as u32)));
        if is_memory && self.is_compressed(shard) { self.index(shard).file_end() } else { 0 }
    }

    /// Memory of its indexes and labels, but for those that are mapped from files, which the system can drop.
    pub fn memory_bytes(&self) -> u64 {
        let owned = self.shards.iter().map(|shard| shard.index.owned_bytes()).sum::<u64>();
        let labels = self.labels().map_or(0, Labels::memory_bytes);
        let firsts = size_of_val(self.first_samples.as_slice()) + size_of_val(self.shards.as_slice());
        owned + labels + firsts as u64
    }

    /// The file that holds the bytes of `sample`.
    pub fn file_of(&self, sample: SampleId) -> FileNumber {
        let (shard, local) = self.locate(sample);
        self.file_at(shard, local)
    }

    /// The file that holds the bytes of sample `local` of `shard`.
    pub(super) fn file_at(&self, shard: u32, local: u32) -> FileNumber {
        FileNumber { shard, file: if self.index(shard).is_tree() { local + 1 } else { 0 } }
    }

    /// Opens a file of the dataset, and makes sure that it is the one that was indexed.
    pub fn open_file(&self, FileNumber { shard, file }: FileNumber) -> Result<File> {
        let path = self.shard_path(shard);
        if let Some(file) = file.checked_sub(1).and_then(|local| self.index(shard).file(local)) {
            return tree::open_file(path, file, self.links).inspect_err(|error| self.forget_changed(path, error));
        }
        self.open_whole(shard)
    }

    fn open_whole(&self, shard: u32) -> Result<File> {
        let path = self.shard_path(shard);
        let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
        let metadata = file.metadata().map_err(|source| Error::io("look at", path, source))?;
        self.check_file(shard, &metadata)?;
        Ok(file)
    }

    /// Checks that an opened shard, which has `metadata`, is the one that was indexed.
    pub fn check_file(&self, shard: u32, metadata: &Metadata) -> Result<()> {
        let Shard { path, index, snapshot } = &self.shards[shard as usize];
        if let Some(snapshot) = snapshot {
            return snapshot.check_file(metadata);
        }
        same_shard(path, index.identity.state, FileState::of(metadata))
    }

    /// Makes sure that `file`, the open `number`, was still what was indexed when it was read: to be asked after the reads,
    /// before what was read is used.
    pub fn check_read(&self, FileNumber { shard, file: number }: FileNumber, file: BorrowedFd<'_>) -> Result<()> {
        let Shard { path, index, snapshot } = &self.shards[shard as usize];
        if snapshot.is_some() || index.compression().is_some() {
            // What keeps a database is asked in `check_snapshots`; what was unpacked is nobody else's.
            return Ok(());
        }
        let found = FileState::after_reads(file).map_err(|source| Error::io("look at", path, source))?;
        match number.checked_sub(1).and_then(|local| index.file(local)) {
            Some(file) => tree::check_same(path, file, found).inspect_err(|error| self.forget_changed(path, error)),
            None => same_shard(path, index.identity.state, found),
        }
    }

    /// A file of the tree at `path` changed, which its folders do not tell: the tree has to be listed again.
    #[cold]
    fn forget_changed(&self, path: &Path, error: &Error) {
        if matches!(error, Error::Shard { .. }) {
            self.is_outdated.store(true, Ordering::Relaxed);
            self.cache.forget(path);
        }
    }

    /// Makes sure that nothing was overwritten of the databases that no lock keeps: to be asked after the reads, before
    /// what was read is used.
    pub fn check_snapshots(&self) -> Result<()> {
        self.shards
            .iter()
            .take(self.watched_end)
            .filter_map(|shard| shard.snapshot.as_ref())
            .try_for_each(Snapshot::check)
    }

    /// Prepares the look-up of fields: for each, the names that can supply it, the first present winning. A name may
    /// be a pattern (`*`, `?`, `[…]`). Refused when no sample at all has one of them.
    pub fn selector(&self, sources: &[Vec<String>]) -> Result<FieldSelector> {
        FieldSelector::new(self, sources)
    }

    pub(super) fn index(&self, shard: u32) -> &ShardIndex {
        &self.shards[shard as usize].index
    }
}

fn shard_number(count: usize) -> u32 {
    u32::try_from(count).expect("fewer shards than 2^32 fit into memory")
}

/// Makes sure that a shard has the contents that were indexed.
fn same_shard(path: &Path, indexed: FileState, found: FileState) -> Result<()> {
    if indexed.same_contents(&found) {
        return Ok(());
    }
    Err(Error::shard(
        path,
        0,
        format!("the shard changed after it was indexed (then {indexed}; now {found}); open the dataset again"),
    ))
}

/// Opens or makes all indexes. Of several errors, the one of the earliest shard is returned.
fn open_all(
    paths: &[PathBuf],
    options: &IndexOptions,
    cache: &Cache,
    progress: &(dyn Fn(IndexProgress) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<Opened>> {
    let slots: Vec<OnceLock<Result<Opened>>> = paths.iter().map(|_| OnceLock::new()).collect();
    let (next, shards_done, samples) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let has_failed = AtomicBool::new(false);
    let report = |shards_done| {
        let samples = samples.load(Ordering::Relaxed);
        progress(IndexProgress { shards_done, shards_total: paths.len() as u64, samples });
    };
    let work = || {
        while !has_failed.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = paths.get(number) else { break };
            let counted = AtomicU64::new(0);
            let count = |found: u64| {
                let before = counted.fetch_max(found, Ordering::Relaxed);
                samples.fetch_add(found.saturating_sub(before), Ordering::Relaxed);
            };
            let found_some = |found| {
                count(found);
                report(shards_done.load(Ordering::Relaxed));
            };
            let index = open_one(path, options, cache, &found_some, stop);
            if let Ok((index, _)) = &index {
                count(u64::from(index.sample_count()));
            }
            has_failed.fetch_or(index.is_err(), Ordering::Relaxed);
            slots[number].set(index).expect("each number is drawn once");
            report(shards_done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    let threads = (options.threads.unwrap_or(THREADS).max(1) as usize).min(paths.len());
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system has no room for more threads, fewer do it.
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    // Numbers are drawn in order, so every shard before a failed one was opened too.
    let opened = slots.into_iter().map_while(OnceLock::into_inner).collect::<Result<Vec<_>>>()?;
    if opened.len() < paths.len() { Err(Error::Interrupted) } else { Ok(opened) }
}

fn open_one(
    path: &Path,
    options: &IndexOptions,
    cache: &Cache,
    report: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Opened> {
    let is_database = ShardKind::of(path)? == ShardKind::Lmdb;
    let snapshot = is_database.then(|| Snapshot::open(path)).transpose()?;
    let (file, state) = index::open_shard(path)?;
    let id = snapshot.as_ref().map(Snapshot::id);
    let index = match cache.load(path, &file, state).filter(|index| index.meta.snapshot == id) {
        Some(index) => index,
        None => cache.keep(path, index::build(path, &file, state, snapshot.as_ref(), options, report, stop)?)?,
    };
    Ok((index, snapshot))
}
