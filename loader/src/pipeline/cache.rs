//! Encoded bytes of samples, kept in memory, so that later epochs need not read them.
//!
//! Nothing is put out to make room: each sample is used once an epoch, in an order of its own, so by the time a sample
//! comes again the least recently used ones are those that come next, and a cache that replaces would hit nothing. One that
//! holds what came first hits as large a share as it holds. All streams of a dataset share its cache, whatever their rank
//! or job. It outlives the last of them for a while, so that a trainer can be started again; and it goes when a file has
//! changed, or when another dataset wants the room of one that nobody uses.
//!
//! One thread, the feeder, owns all of this. Workers read from what is kept without asking ([`StoredBytes`]).
//!
//! The page cache does the same for reads that go through it, and better where memory is scarce. This cache is for reads
//! past the page cache, for network file systems that drop it, and for shards that would be unpacked again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::row::{PARTS_MAX, Span};
use crate::plan::SampleId;
use crate::shard::{Dataset, FileNumber};
use crate::sys::budget::Reservation;
use crate::sys::memory::Mebibytes;
use crate::sys::store::{Store, StoredBytes};
use crate::telemetry::StageState;

/// How long samples are kept after the last stream of their dataset has ended.
const GRACE: Duration = Duration::from_secs(60);

/// What the entry of one sample costs beside its bytes: its place in a table that is at worst half empty.
const ENTRY_BYTES: u64 = 112;

/// What is kept of one sample.
pub(super) type KeptParts = [Option<StoredBytes>; PARTS_MAX];

/// The caches of all datasets, within one capacity.
pub(super) struct EncodedCache {
    capacity_bytes: u64,
    datasets: Vec<DatasetCache>,
    stages: Arc<StageState>,
    _reservation: Option<Reservation>,
}

struct DatasetCache {
    /// Keeps the dataset open, so that one who opens it again within the grace gets the same.
    dataset: Arc<Dataset>,
    _index: Arc<Reservation>,
    /// Since when no stream uses it.
    idle_since: Option<Instant>,
    store: Store,
    /// By sample, file and first byte.
    entries: HashMap<(u64, FileNumber, u64), StoredBytes>,
    /// Samples by shard.
    shard_samples: HashMap<u32, u64>,
    held_bytes: u64,
    /// How many epochs any stream has begun.
    epochs: u64,
    /// In which of them a file was last looked at.
    looked: HashMap<FileNumber, u64>,
}

impl EncodedCache {
    /// A cache of `capacity_bytes`, which `reservation` has taken from the budget; of 0 bytes, it keeps nothing.
    pub(super) fn new(capacity_bytes: u64, reservation: Option<Reservation>, stages: Arc<StageState>) -> Self {
        Self { capacity_bytes, datasets: Vec::new(), stages, _reservation: reservation }
    }

    /// Whether it keeps anything at all.
    pub(super) fn is_wanted(&self) -> bool {
        self.capacity_bytes > 0
    }

    /// A stream of `dataset` begins; `index` is the memory of its index.
    pub(super) fn join(&mut self, dataset: &Arc<Dataset>, index: &Arc<Reservation>) {
        if !self.is_wanted() {
            return;
        }
        match self.find_mut(dataset) {
            Some(found) => found.idle_since = None,
            None => self.datasets.push(DatasetCache::new(dataset.clone(), index.clone())),
        }
    }

    /// The last stream of `dataset` has ended.
    pub(super) fn leave(&mut self, dataset: &Dataset, now: Instant) {
        if let Some(found) = self.find_mut(dataset) {
            found.idle_since = Some(now);
        }
    }

    /// Gives up what nobody has used for the grace.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.datasets.is_empty() {
            return;
        }
        let is_kept = |since: Instant| now.saturating_duration_since(since) < GRACE;
        self.datasets.retain(|cache| cache.idle_since.is_none_or(is_kept));
        self.report();
    }

    /// A stream of `dataset` begins an epoch, so its files are to be looked at again.
    pub(super) fn begin_epoch(&mut self, dataset: &Dataset) {
        if let Some(found) = self.find_mut(dataset) {
            found.epochs += 1;
        }
    }

    /// What is kept of `sample`, if all of `spans` are.
    pub(super) fn get(&self, dataset: &Dataset, sample: SampleId, spans: &[Span]) -> Option<KeptParts> {
        let cache = self.datasets.iter().find(|cache| cache.dataset.number() == dataset.number())?;
        let mut kept = KeptParts::default();
        for (part, Span { file, start, end }) in kept.iter_mut().zip(spans) {
            let bytes =
                cache.entries.get(&(sample.0, *file, *start)).filter(|bytes| bytes.len() as u64 >= end - start)?;
            *part = Some(bytes.clone());
        }
        Some(kept)
    }

    /// Whether the file is to be looked at before what is kept of it is used: once an epoch of any stream.
    pub(super) fn must_look(&mut self, dataset: &Dataset, file: FileNumber) -> bool {
        let Some(cache) = self.find_mut(dataset) else { return false };
        let epochs = cache.epochs;
        cache.looked.insert(file, epochs).is_none_or(|last| last < epochs)
    }

    /// Keeps what was read of a sample, if there is room for all of it: spans by their first byte.
    pub(super) fn keep<'a>(
        &mut self,
        dataset: &Dataset,
        sample: SampleId,
        spans: impl Iterator<Item = (FileNumber, u64, &'a [u8])> + Clone,
    ) {
        let needed: u64 = spans.clone().map(|(_, _, bytes)| bytes.len() as u64 + ENTRY_BYTES).sum();
        if needed == 0 || needed > self.capacity_bytes {
            return;
        }
        while self.held_bytes() + needed > self.capacity_bytes {
            if !self.give_up_idle() {
                return;
            }
        }
        let Some(cache) = self.find_mut(dataset) else { return };
        let mut is_known = false;
        for (file, start, bytes) in spans {
            if cache.entries.contains_key(&(sample.0, file, start)) {
                // Another stream has kept it, or as much of it as its fields need.
                is_known = true;
                continue;
            }
            match cache.store.add(bytes) {
                Ok(stored) => cache.entries.insert((sample.0, file, start), stored),
                Err(error) => {
                    let held = self.held_bytes();
                    tracing::warn!("the cache of encoded samples keeps no more than {}: {error}", Mebibytes(held));
                    self.capacity_bytes = held.max(1);
                    return;
                }
            };
            cache.held_bytes += bytes.len() as u64 + ENTRY_BYTES;
        }
        if !is_known {
            let (shard, _) = dataset.locate(sample);
            *cache.shard_samples.entry(shard).or_default() += 1;
        }
        self.report();
    }

    /// Whether something is kept of every one of the shard's samples.
    pub(super) fn holds_shard(&self, dataset: &Dataset, shard: u32) -> bool {
        let found = self.datasets.iter().find(|cache| cache.dataset.number() == dataset.number());
        let Some(held) = found.and_then(|cache| cache.shard_samples.get(&shard)) else { return false };
        let firsts = dataset.first_samples();
        let end = firsts.get(shard as usize + 1).copied().unwrap_or(dataset.sample_count());
        *held >= end - firsts[shard as usize]
    }

    /// A file of `dataset` is no longer what was indexed: nothing of it is used any more.
    pub(super) fn forget(&mut self, dataset: &Dataset) {
        self.datasets.retain(|cache| cache.dataset.number() != dataset.number());
        self.report();
    }

    /// Gives up the dataset that nobody has used for longest; false where all are in use.
    fn give_up_idle(&mut self) -> bool {
        let idle = self.datasets.iter().enumerate().filter_map(|(index, cache)| Some((cache.idle_since?, index)));
        let Some((_, index)) = idle.min() else { return false };
        self.datasets.swap_remove(index);
        true
    }

    fn find_mut(&mut self, dataset: &Dataset) -> Option<&mut DatasetCache> {
        self.datasets.iter_mut().find(|cache| cache.dataset.number() == dataset.number())
    }

    fn held_bytes(&self) -> u64 {
        self.datasets.iter().map(|cache| cache.held_bytes).sum()
    }

    fn report(&self) {
        self.stages.cached_bytes.store(self.held_bytes(), Relaxed);
        self.stages.cached_spans.store(self.datasets.iter().map(|cache| cache.entries.len() as u64).sum(), Relaxed);
    }
}

impl DatasetCache {
    fn new(dataset: Arc<Dataset>, index: Arc<Reservation>) -> Self {
        Self {
            dataset,
            _index: index,
            idle_since: None,
            store: Store::default(),
            entries: HashMap::new(),
            shard_samples: HashMap::new(),
            held_bytes: 0,
            epochs: 0,
            looked: HashMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::shard::IndexOptions;
    use crate::sys::budget::{Budget, Part};

    const FILE: FileNumber = FileNumber { shard: 0, file: 0 };

    /// A dataset of two shards with three samples each.
    fn dataset(folder: &Path) -> Arc<Dataset> {
        let shards: Vec<_> = ["a.tar", "b.tar"].into_iter().map(|name| folder.join(name)).collect();
        for shard in &shards {
            let mut tar = tar::Builder::new(fs::File::create(shard).expect("a file"));
            for name in ["0.txt", "1.txt", "2.txt"] {
                let mut header = tar::Header::new_ustar();
                header.set_size(600);
                header.set_cksum();
                tar.append_data(&mut header, name, &[7; 600][..]).expect("written");
            }
            tar.finish().expect("written");
        }
        let options = IndexOptions { cache_dir: Some(folder.join("cache")), ..IndexOptions::default() };
        Arc::new(Dataset::open(&shards, &options, &|_| {}).expect("sound"))
    }

    fn cache(capacity_bytes: u64) -> EncodedCache {
        EncodedCache::new(capacity_bytes, None, Arc::new(StageState::new(1)))
    }

    fn join(cache: &mut EncodedCache, dataset: &Arc<Dataset>) {
        let index = Budget::unbounded().reserve(Part::Indexes, dataset.memory_bytes()).expect("no bound");
        cache.join(dataset, &Arc::new(index));
    }

    fn keep(cache: &mut EncodedCache, dataset: &Dataset, sample: u64, start: u64, bytes: &[u8]) {
        cache.keep(dataset, SampleId(sample), std::iter::once((FILE, start, bytes)));
    }

    fn holds(cache: &EncodedCache, dataset: &Dataset, sample: u64, spans: &[(u64, u64)]) -> bool {
        let spans: Vec<Span> = spans.iter().map(|&(start, end)| Span { file: FILE, start, end }).collect();
        cache.get(dataset, SampleId(sample), &spans).is_some()
    }

    #[test]
    fn it_keeps_what_came_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let dataset = dataset(folder.path());
        let mut cache = cache(2 * (600 + ENTRY_BYTES) + 10);
        join(&mut cache, &dataset);
        for sample in 0..6 {
            keep(&mut cache, &dataset, sample, 512, &[sample as u8; 600]);
        }
        let held: Vec<bool> = (0..6).map(|sample| holds(&cache, &dataset, sample, &[(512, 1112)])).collect();
        assert_eq!(held, [true, true, false, false, false, false]);
        let kept = cache.get(&dataset, SampleId(1), &[Span { file: FILE, start: 512, end: 1112 }]).expect("kept");
        assert!(kept[0].as_ref().is_some_and(|bytes| **bytes == [1; 600]) && kept[1].is_none());
        // A shorter span of it is there too; a longer one, or one that starts elsewhere, is not, nor a second one.
        assert!(holds(&cache, &dataset, 1, &[(512, 600)]));
        assert!(!holds(&cache, &dataset, 1, &[(512, 1113)]));
        assert!(!holds(&cache, &dataset, 1, &[(513, 600)]));
        assert!(!holds(&cache, &dataset, 1, &[(512, 600), (5000, 5001)]));
        assert_eq!(cache.stages.cached_bytes.load(Relaxed), 2 * (600 + ENTRY_BYTES));
        assert_eq!(cache.stages.cached_spans.load(Relaxed), 2);
    }

    #[test]
    fn all_of_a_sample_or_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let dataset = dataset(folder.path());
        let mut cache = cache(300 + 2 * ENTRY_BYTES);
        join(&mut cache, &dataset);
        let bytes = [5; 200];
        cache.keep(&dataset, SampleId(0), [(FILE, 0, &bytes[..]), (FILE, 900, &bytes[..])].into_iter());
        assert!(!holds(&cache, &dataset, 0, &[(0, 200)]) && cache.held_bytes() == 0);
        cache.keep(&dataset, SampleId(0), [(FILE, 0, &bytes[..]), (FILE, 900, &bytes[..100])].into_iter());
        assert!(holds(&cache, &dataset, 0, &[(0, 200), (900, 1000)]));
        assert_eq!(cache.datasets[0].shard_samples[&0], 1, "one sample, of two spans");
    }

    #[test]
    fn whole_shards_are_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let dataset = dataset(folder.path());
        let mut cache = cache(1 << 20);
        join(&mut cache, &dataset);
        for sample in [3, 4, 0, 4, 5] {
            assert!(!cache.holds_shard(&dataset, 1), "before {sample}");
            keep(&mut cache, &dataset, sample, 512, &[1; 10]);
        }
        assert!(cache.holds_shard(&dataset, 1) && !cache.holds_shard(&dataset, 0));
    }

    #[test]
    fn it_outlives_its_streams_for_a_while() {
        let folder = tempfile::tempdir().expect("a folder");
        let dataset = dataset(folder.path());
        let mut cache = cache(1 << 20);
        join(&mut cache, &dataset);
        keep(&mut cache, &dataset, 0, 0, &[1; 100]);
        let start = Instant::now();
        cache.expire(start + 2 * GRACE);
        assert!(holds(&cache, &dataset, 0, &[(0, 100)]), "in use");
        cache.leave(&dataset, start);
        cache.expire(start + GRACE / 2);
        join(&mut cache, &dataset);
        cache.expire(start + 2 * GRACE);
        assert!(holds(&cache, &dataset, 0, &[(0, 100)]), "in use again");
        cache.leave(&dataset, start);
        cache.expire(start + GRACE);
        assert!(!holds(&cache, &dataset, 0, &[(0, 100)]));
        assert_eq!(cache.stages.cached_bytes.load(Relaxed), 0);
        assert_eq!(Arc::strong_count(&dataset), 1, "it is not kept open");
    }

    #[test]
    fn the_unused_make_room_for_the_used() {
        let (one, two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (one, two) = (dataset(one.path()), dataset(two.path()));
        let mut cache = cache(1000 + ENTRY_BYTES);
        join(&mut cache, &one);
        join(&mut cache, &two);
        keep(&mut cache, &one, 0, 0, &[1; 900]);
        keep(&mut cache, &two, 0, 0, &[2; 900]);
        assert!(holds(&cache, &one, 0, &[(0, 900)]) && !holds(&cache, &two, 0, &[(0, 900)]), "both are in use");
        cache.leave(&one, Instant::now());
        keep(&mut cache, &two, 0, 0, &[2; 1001]);
        assert!(holds(&cache, &one, 0, &[(0, 900)]), "it would not fit anyway");
        keep(&mut cache, &two, 0, 0, &[2; 900]);
        assert!(!holds(&cache, &one, 0, &[(0, 900)]) && holds(&cache, &two, 0, &[(0, 900)]));
    }

    #[test]
    fn files_are_looked_at_once_an_epoch() {
        let folder = tempfile::tempdir().expect("a folder");
        let dataset = dataset(folder.path());
        let mut cache = cache(1 << 20);
        join(&mut cache, &dataset);
        let file = |shard| FileNumber { shard, file: 0 };
        cache.begin_epoch(&dataset);
        assert!(cache.must_look(&dataset, file(0)) && cache.must_look(&dataset, file(1)));
        assert!(!cache.must_look(&dataset, file(0)) && !cache.must_look(&dataset, file(1)));
        cache.begin_epoch(&dataset);
        assert!(cache.must_look(&dataset, file(1)) && !cache.must_look(&dataset, file(1)));
        keep(&mut cache, &dataset, 0, 0, &[1; 100]);
        cache.forget(&dataset);
        assert!(!holds(&cache, &dataset, 0, &[(0, 100)]));
        keep(&mut cache, &dataset, 0, 0, &[1; 100]);
        assert!(!holds(&cache, &dataset, 0, &[(0, 100)]), "what is forgotten stays so until a stream begins");
    }

    #[test]
    fn off_is_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let dataset = dataset(folder.path());
        let mut cache = cache(0);
        join(&mut cache, &dataset);
        keep(&mut cache, &dataset, 0, 0, &[1; 100]);
        assert!(!holds(&cache, &dataset, 0, &[(0, 100)]) && cache.datasets.is_empty());
    }
}
