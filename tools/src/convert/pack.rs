//! Packing: in which order, into how many shards, and the loop that does it.

use std::io;
use std::path::Path;
use std::thread;

use crossbeam_channel::bounded;
use feedline_loader::transcode::{Refusal, is_jpeg};
use feedline_loader::{Error, Result};
use serde::Serialize;

use super::key::key_of;
use super::magic::{ImageType, sniff};
use super::read::{ReadAhead, Request, Shared};
use super::scan::{Entry, LeftOut, Reason, Scan, Tally};
use super::set::{ShardRecord, ShardSet};
use super::shard::{ShardWriter, WrittenShard, sample_bytes, trailer_bytes};
use crate::optimize::jpeg::JpegOptimizer;
use crate::optimize::tally::Tally as OptimizeTally;
use crate::output::counted;

/// Threads that read ahead: enough to keep a disk busy, few enough for a small machine.
const READER_THREADS: usize = 8;

/// Order of the samples over the shards.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// By class, folder and name.
    Sorted,
    /// By a hash keyed with the seed, so that one file more or less leaves the others' order as it was.
    Shuffled {
        /// The key.
        seed: u64,
    },
}

/// Where a shard ends.
#[derive(Debug, Clone, Copy)]
pub enum ShardRule {
    /// Before it would exceed so many bytes.
    Bytes(u64),
    /// After so many samples.
    Samples(u64),
}

impl ShardRule {
    /// Whether a shard of `samples` is full for one more, with which it would have `bytes`.
    fn is_full(self, samples: u64, bytes: u64) -> bool {
        samples > 0
            && match self {
                Self::Bytes(most) => bytes > most,
                Self::Samples(most) => samples >= most,
            }
    }
}

/// The places of `entries` in the order in which they are packed.
pub fn order_of(entries: &[Entry], order: Order) -> Vec<u32> {
    let places = 0..u32::try_from(entries.len()).expect("a file list of 2^32 entries does not fit in memory");
    let Order::Shuffled { seed } = order else { return places.collect() };
    let mut key = *b"feedline convert: sample order  ";
    key[24..].copy_from_slice(&seed.to_le_bytes());
    let hash = |place: u32| {
        let path = entries[place as usize].relative.as_os_str().as_encoded_bytes();
        let hash = blake3::keyed_hash(&key, path);
        u128::from_le_bytes(hash.as_bytes()[..16].try_into().expect("a hash has 32 bytes"))
    };
    let mut keyed: Vec<(u128, u32)> = places.map(|place| (hash(place), place)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, place)| place).collect()
}

/// What packing will take, from names and sizes alone.
#[derive(Debug)]
pub struct Forecast {
    /// Bytes of all images.
    pub image_bytes: u64,
    /// Bytes of all shards.
    pub shard_bytes: u64,
    /// How many shards.
    pub shards: u64,
}

impl Forecast {
    /// Of packing `entries` in the order of `sequence`.
    pub fn of(entries: &[Entry], sequence: &[u32], rule: ShardRule) -> Self {
        let (mut image_bytes, mut member_bytes, mut shards) = (0, 0, 0);
        let (mut samples_here, mut bytes_here) = (0, 0);
        for &place in sequence {
            let entry = &entries[place as usize];
            let bytes = sample_bytes(&key_of(&entry.relative, entry.key_form), "jpg", entry.bytes, entry.label);
            if shards == 0 || rule.is_full(samples_here, bytes_here + bytes + trailer_bytes(1)) {
                shards += 1;
                (samples_here, bytes_here) = (0, 0);
            }
            samples_here += 1;
            bytes_here += bytes;
            image_bytes += entry.bytes;
            member_bytes += bytes;
        }
        Self { image_bytes, shard_bytes: member_bytes + trailer_bytes(shards), shards }
    }
}

/// How many files that should be samples may turn out not to be.
#[derive(Debug)]
pub struct Budget {
    share: f64,
    most: u64,
    candidates: u64,
}

impl Budget {
    /// `share` of the files of `scan` that should be samples.
    pub fn new(share: f64, scan: &Scan) -> Self {
        let candidates = scan.entries.len() as u64 + scan.left_out.faults();
        Self { share, most: (candidates as f64 * share) as u64, candidates }
    }

    /// Refuses when more are bad, with the table of reasons.
    pub fn check(&self, left_out: &LeftOut) -> Result<()> {
        let bad = left_out.faults();
        if bad <= self.most {
            return Ok(());
        }
        let rows: String = left_out
            .iter()
            .filter(|(reason, _)| reason.is_fault())
            .map(|(reason, tally)| format!("\n  {:>8}  {:<12}  first: {}", tally.count, reason.name(), tally.first))
            .collect();
        Err(Error::Budget {
            message: format!(
                "{bad} of {} cannot be packed, the budget of {} allows {}; nothing was written:{rows}\n\
                 Mend or move these files, or allow more with --error-budget",
                counted(self.candidates, "image file"),
                self.share,
                self.most
            ),
        })
    }
}

/// What was packed.
#[derive(Debug)]
pub struct Packed {
    /// Samples in all shards.
    pub samples: u64,
    /// Bytes of their images.
    pub image_bytes: u64,
    /// Samples of each class.
    pub class_samples: Vec<u64>,
    /// The scan's, and files that turned out bad when read.
    pub left_out: LeftOut,
    /// Files whose extension says another kind than their content.
    pub mistaken_extension: Option<Tally>,
    /// The shards in order.
    pub shards: Vec<ShardRecord>,
    /// What became of JPEGs that were to be written anew.
    pub optimized: Option<OptimizeTally>,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// A file's contents as they are packed.
struct Content {
    data: io::Result<Vec<u8>>,
    /// Of a JPEG that was to be written anew: the bytes that it had, or why it is as it was.
    optimized: Option<std::result::Result<u64, Refusal>>,
}

/// What is packed, and how.
pub struct Packing<'a> {
    /// The tree.
    pub folder: &'a Path,
    /// What it holds.
    pub scan: &'a Scan,
    /// The order of its entries.
    pub sequence: &'a [u32],
    /// Where a shard ends.
    pub rule: ShardRule,
    /// Writes JPEGs anew, if that is wanted.
    pub optimizer: Option<JpegOptimizer>,
}

/// Packs a tree into shards under temporary names, synced; [`ShardSet::commit`] gives them their final ones.
pub fn pack(packing: &Packing<'_>, budget: &Budget, set: &ShardSet, progress: impl Fn(u64)) -> Result<Packed> {
    let &Packing { folder, scan, sequence, rule, ref optimizer } = packing;
    let optimizer = optimizer.as_ref();
    let request = |place: usize| {
        let entry = &scan.entries[sequence[place] as usize];
        Request { path: folder.join(&entry.relative), bytes: entry.bytes }
    };
    let shared = Shared::new();
    // More threads may wait for files than write JPEGs anew at once.
    let threads = READER_THREADS.max(optimizer.map_or(0, JpegOptimizer::workers));
    let makers = (0..threads).map(|_| move |data| content_of(data, optimizer));
    thread::scope(|scope| {
        let mut reader = ReadAhead::start(scope, &shared, makers, sequence.len(), request);
        // Each shard is synced while the next one is written.
        let (finished, to_sync) = bounded::<WrittenShard>(1);
        let syncing = scope.spawn(move || to_sync.into_iter().map(|shard| set.sync(shard)).collect::<Result<Vec<_>>>());
        let mut packer = Packer {
            packed: Packed {
                samples: 0,
                image_bytes: 0,
                class_samples: vec![0; scan.classes.len()],
                left_out: scan.left_out.clone(),
                mistaken_extension: None,
                shards: Vec::new(),
                optimized: optimizer.map(|_| OptimizeTally::default()),
                notices: Vec::new(),
            },
            rule,
            set,
            writer: None,
            shards_started: 0,
            finish: |shard| finished.send(shard).is_ok(),
            large: 0,
        };
        let mut written = Ok(());
        for &place in sequence {
            let entry = &scan.entries[place as usize];
            let content = reader.next(entry.bytes).map_err(|error| Error::system("read ahead", error));
            written = content
                .and_then(|content| packer.add(entry, content))
                .and_then(|()| budget.check(&packer.packed.left_out));
            progress(entry.bytes);
            if written.is_err() {
                break;
            }
        }
        let packed = written.and_then(|()| packer.end());
        drop(finished);
        drop(reader);
        let synced = syncing.join().expect("syncing files does not panic");
        // A failed sync ends the writer too, with less to say: the sync's reason comes first.
        let shards = synced?;
        Ok(Packed { shards, ..packed? })
    })
}

/// What is packed of a file.
fn content_of(data: io::Result<Vec<u8>>, optimizer: Option<&JpegOptimizer>) -> Content {
    match (data, optimizer) {
        (Ok(bytes), Some(optimizer)) if is_jpeg(&bytes) => match optimizer.optimize(&bytes) {
            Ok(new) => Content { data: Ok(new), optimized: Some(Ok(bytes.len() as u64)) },
            Err(refusal) => Content { data: Ok(bytes), optimized: Some(Err(refusal)) },
        },
        (data, _) => Content { data, optimized: None },
    }
}

struct Packer<'set, F> {
    packed: Packed,
    rule: ShardRule,
    set: &'set ShardSet,
    writer: Option<ShardWriter>,
    shards_started: u64,
    finish: F,
    large: u64,
}

impl<F: Fn(WrittenShard) -> bool> Packer<'_, F> {
    fn add(&mut self, entry: &Entry, content: Content) -> Result<()> {
        let path = || entry.relative.display().to_string();
        let (data, kind) = match judge(content.data) {
            Ok(image) => image,
            Err((reason, detail)) => {
                self.packed.left_out.add(reason, || path() + &detail);
                return Ok(());
            }
        };
        if !kind.agrees_with(&entry.relative) {
            let first = || Tally { count: 0, first: format!("{} is {}", path(), kind.extension) };
            self.packed.mistaken_extension.get_or_insert_with(first).count += 1;
        }
        if let (Some(tally), Some(optimized)) = (&mut self.packed.optimized, content.optimized) {
            match optimized {
                Ok(before) => tally.add_optimized(before, data.len() as u64),
                Err(refusal) => tally.add_copied(path(), refusal),
            }
        }
        let key = key_of(&entry.relative, entry.key_form);
        let bytes = sample_bytes(&key, kind.extension, data.len() as u64, entry.label);
        let writer = self.writer_for(bytes)?;
        writer.add_sample(&key, kind.extension, &data, entry.label)?;
        self.packed.samples += 1;
        self.packed.image_bytes += data.len() as u64;
        self.packed.class_samples[entry.label as usize] += 1;
        Ok(())
    }

    /// The shard that a sample of `bytes` goes to.
    fn writer_for(&mut self, bytes: u64) -> Result<&mut ShardWriter> {
        if let Some(full) = self.writer.take_if(|writer| self.rule.is_full(writer.samples(), writer.bytes_with(bytes)))
        {
            self.hand_over(full)?;
        }
        if self.writer.is_none() {
            let path = self.set.temporary_path(self.shards_started);
            self.shards_started += 1;
            self.writer = Some(ShardWriter::create(path)?);
        }
        let writer = self.writer.as_mut().expect("made above");
        if matches!(self.rule, ShardRule::Bytes(most) if writer.bytes_with(bytes) > most) {
            self.large += 1;
        }
        Ok(writer)
    }

    fn hand_over(&self, writer: ShardWriter) -> Result<()> {
        match (self.finish)(writer.finish()?) {
            true => Ok(()),
            false => Err(Error::system("sync a shard", io::Error::other("an earlier shard failed"))),
        }
    }

    fn end(mut self) -> Result<Packed> {
        if let Some(last) = self.writer.take() {
            self.hand_over(last)?;
        }
        if self.packed.samples == 0 {
            return Err(Error::config("no file of the tree is an image: nothing was written"));
        }
        let empty = self.packed.class_samples.iter().filter(|&&samples| samples == 0).count() as u64;
        if empty > 0 {
            self.packed.notices.push(format!("{} without a usable image keep their labels", counted(empty, "class")));
        }
        self.packed.notices.extend(self.packed.optimized.as_ref().and_then(OptimizeTally::notice));
        if self.large > 0 {
            self.packed
                .notices
                .push(format!("{} larger than the shard size, alone in a shard", counted(self.large, "sample")));
        }
        Ok(self.packed)
    }
}

/// Whether what was read is an image; if not, why, and what the report adds to the path.
fn judge(data: io::Result<Vec<u8>>) -> std::result::Result<(Vec<u8>, ImageType), (Reason, String)> {
    match data {
        Err(error) => Err((Reason::Unreadable, format!(": {error}"))),
        Ok(data) if data.is_empty() => Err((Reason::Empty, String::new())),
        Ok(data) => match sniff(&data) {
            Some(kind) => Ok((data, kind)),
            None => {
                let start = data[..data.len().min(8)].escape_ascii();
                Err((Reason::NotAnImage, format!(": starts with \"{start}\"")))
            }
        },
    }
}
