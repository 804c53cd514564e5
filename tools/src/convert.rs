//! `feedline convert`: a class-per-folder tree becomes WebDataset shards.
//!
//! [`scan`] finds classes and samples, [`key`] names them, [`pack`] reads them ahead ([`read`]), looks at what they are
//! ([`magic`]) and writes them ([`shard`]); [`set`] is the folder of shards: its lock, its temporary names, its
//! manifest. Nothing appears under its final name before everything is on the disk.

mod key;
mod magic;
mod pack;
mod read;
mod scan;
mod set;
mod shard;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use feedline_loader::transcode::Markers;
use feedline_loader::{Error, Result};
use serde::Serialize;

use self::pack::{Forecast, Order, Packing, ShardRule, order_of};
use self::scan::{LeftOut, Scan, Tally, scan};
use self::set::{ClassRecord, OptimizeRecord, SetRecord, ShardSet};
use crate::bars::Bars;
use crate::optimize::jpeg::JpegOptimizer;
use crate::optimize::tally::Tally as OptimizeTally;
use crate::optimize::{self, MarkersArgument, NAMED_MAX};
use crate::output::{Bytes, counted, parse_bytes, print_report};

/// Pack a class-per-folder tree of images into WebDataset shards.
///
/// FOLDER holds one folder per class, as for torchvision's ImageFolder; OUT gets PREFIX-000000.tar and so on,
/// classes.json (the classes in order of their labels) and manifest.json (counts, sizes and BLAKE3 of each shard).
/// The same tree, options and version give the same bytes. Existing shards are never overwritten.
///
/// A sample is KEY.jpg (or what the file truly is, by its content) and KEY.cls (the label in decimal). KEY is the path
/// below FOLDER without the extension, percent-encoded where dots, control characters or a percent sign are in it.
#[derive(Debug, Args)]
pub struct ConvertArguments {
    /// One folder per class, images at any depth inside.
    folder: PathBuf,
    /// Folder for the shards; made if it is missing.
    out: PathBuf,
    /// Size that a shard stays below, as in 256M or 1G [default: 256M].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "samples_per_shard")]
    shard_size: Option<u64>,
    /// Samples in each shard but the last.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples_per_shard: Option<u64>,
    /// First part of the shards' names [default: FOLDER's own name].
    #[arg(long, value_name = "NAME")]
    prefix: Option<String>,
    /// Seed of the order in which samples lie in the shards.
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with = "no_shuffle")]
    shuffle_seed: u64,
    /// Keep the sorted order: shards then hold few classes each, which block-wise shuffling cannot mend.
    #[arg(long)]
    no_shuffle: bool,
    /// Share of empty, unreadable or mistaken files over which nothing is packed.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    error_budget: f64,
    /// Write JPEGs anew without loss, for faster decoding: as feedline optimize does.
    #[arg(long)]
    optimize: bool,
    /// Application data and comments that JPEGs keep.
    #[arg(long, value_enum, default_value_t = MarkersArgument::All, requires = "optimize")]
    markers: MarkersArgument,
    /// Threads that write JPEGs anew at once [default: one for each usable core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), requires = "optimize")]
    workers: Option<u32>,
    /// Report as one line of JSON.
    #[arg(long)]
    json: bool,
}

const SHARD_BYTES_DEFAULT: u64 = 256 << 20;

/// What was done.
#[derive(Debug, Serialize)]
struct ConvertReport {
    pattern: String,
    classes: u64,
    samples: u64,
    image_bytes: u64,
    shards: u64,
    shard_bytes: u64,
    seconds: f64,
    left_out: LeftOut,
    /// Files whose extension says another kind than their content; packed as what they are.
    mistaken_extension: Option<Tally>,
    /// Of JPEGs that were to be written anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    optimized: Option<OptimizeTally>,
    notices: Vec<String>,
}

/// Packs, then reports.
pub fn run(arguments: &ConvertArguments) -> Result<()> {
    let started = Instant::now();
    let rule = match (arguments.samples_per_shard, arguments.shard_size) {
        (Some(samples), _) => ShardRule::Samples(samples),
        (None, bytes) => ShardRule::Bytes(bytes.unwrap_or(SHARD_BYTES_DEFAULT)),
    };
    let order = if arguments.no_shuffle { Order::Sorted } else { Order::Shuffled { seed: arguments.shuffle_seed } };
    if !(0.0..=1.0).contains(&arguments.error_budget) {
        return Err(Error::config(format!("--error-budget is a share, 0 to 1, got {}", arguments.error_budget)));
    }
    let prefix = choose_prefix(arguments)?;
    let markers = Markers::from(arguments.markers);
    let bars = Bars::new(arguments.json);

    let scan = scan_tree(&arguments.folder, &bars)?;
    let budget = pack::Budget::new(arguments.error_budget, &scan);
    budget.check(&scan.left_out)?;
    refuse_empty_classes(&scan)?;
    let set = ShardSet::open(&arguments.out, &prefix, &arguments.folder)?;
    let sequence = order_of(&scan.entries, order);
    let forecast = Forecast::of(&scan.entries, &sequence, rule);
    set.check_space(&forecast)?;

    let optimizer = match arguments.optimize {
        true => Some(JpegOptimizer::new(markers, optimize::workers(arguments.workers)?)?),
        false => None,
    };
    let bar = bars.packing(forecast.image_bytes);
    let packing = Packing { folder: &arguments.folder, scan: &scan, sequence: &sequence, rule, optimizer };
    let packed = pack::pack(&packing, &budget, &set, |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();

    let record = SetRecord {
        order,
        samples: packed.samples,
        image_bytes: packed.image_bytes,
        classes: scan.classes.iter().zip(&packed.class_samples).map(ClassRecord::from).collect(),
        left_out: packed.left_out.clone(),
        mistaken_extension: packed.mistaken_extension.clone(),
        optimized: packed.optimized.clone().map(|tally| OptimizeRecord { markers, tally }),
        shards: packed.shards,
    };
    let report = ConvertReport {
        pattern: set.pattern(record.shards.len()),
        classes: scan.classes.len() as u64,
        samples: record.samples,
        image_bytes: record.image_bytes,
        shards: record.shards.len() as u64,
        shard_bytes: record.shards.iter().map(|shard| shard.bytes).sum(),
        seconds: 0.0,
        left_out: packed.left_out,
        mistaken_extension: packed.mistaken_extension,
        optimized: packed.optimized.map(|tally| tally.shortened(NAMED_MAX)),
        notices: packed.notices,
    };
    set.commit(&scan.classes, record)?;
    print_report(&ConvertReport { seconds: started.elapsed().as_secs_f64(), ..report }, arguments.json)
}

fn scan_tree(folder: &Path, bars: &Bars) -> Result<Scan> {
    if !folder.is_dir() {
        return Err(Error::config(format!(
            "{} is no folder: name one that holds a folder per class",
            folder.display()
        )));
    }
    let spinner = bars.scanning();
    let found = scan(folder, || spinner.inc(1));
    spinner.finish_and_clear();
    found
}

/// A class without samples would keep a label that nothing has; leaving it out would shift the labels after it.
fn refuse_empty_classes(scan: &Scan) -> Result<()> {
    let mut has_samples = vec![false; scan.classes.len()];
    scan.entries.iter().for_each(|entry| has_samples[entry.label as usize] = true);
    let empty: Vec<&str> =
        scan.classes.iter().zip(has_samples).filter(|(_, has)| !has).map(|(name, _)| name.as_str()).collect();
    if empty.is_empty() {
        return Ok(());
    }
    let named = empty.iter().take(5).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = if empty.len() > 5 { ", …" } else { "" };
    Err(Error::config(format!(
        "{} of {} without a single image: {named}{more}. Move the empty folder away, or put its images in",
        counted(empty.len() as u64, "class"),
        scan.classes.len()
    )))
}

fn choose_prefix(arguments: &ConvertArguments) -> Result<String> {
    let is_plain = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    match &arguments.prefix {
        Some(prefix) if is_plain(prefix) => Ok(prefix.clone()),
        Some(prefix) => Err(Error::config(format!(
            "--prefix {prefix:?}: use letters, digits, - and _ only, so that patterns can name the shards"
        ))),
        None => {
            let folder = arguments.folder.canonicalize().ok();
            let own = folder.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
            Ok(own.filter(|name| is_plain(name)).unwrap_or("shard").to_owned())
        }
    }
}

impl fmt::Display for ConvertReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "packed {} of {} into {}, {}, in {:.1} s ({}/s)",
            counted(self.samples, "sample"),
            counted(self.classes, "class"),
            counted(self.shards, "shard"),
            Bytes(self.shard_bytes),
            self.seconds,
            Bytes((self.shard_bytes as f64 / self.seconds.max(1e-6)) as u64),
        )?;
        writeln!(formatter, "  {}", self.pattern)?;
        for (reason, tally) in self.left_out.iter() {
            writeln!(formatter, "  left out: {} {} (first: {})", tally.count, reason.name(), tally.first)?;
        }
        if let Some(tally) = &self.mistaken_extension {
            writeln!(
                formatter,
                "  packed as what they are, not as their extension says: {} (first: {})",
                tally.count, tally.first
            )?;
        }
        let lines = self.optimized.iter().flat_map(OptimizeTally::lines);
        lines.into_iter().try_for_each(|line| writeln!(formatter, "  {line}"))?;
        self.notices.iter().try_for_each(|notice| writeln!(formatter, "  notice: {notice}"))
    }
}
