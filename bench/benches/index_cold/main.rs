//! How far from the disk's own speed is the indexing of shards that are not in memory?
//!
//! Unit: samples/s of wall time, COLD page cache, beside the random 4 KiB reads/s that fio gets from the same files in the
//! same run: in as many threads, through the page cache, as the indexer's reads are; and past it by io_uring at that depth,
//! as the device's own figure. A sample of two members, a small one and a photo, takes one such read, as bodies are hopped
//! over. Everything in interleaved rounds, of which the median is taken. Leaves out: warm caches and the start from kept
//! indexes (`index` has those). The photos' bytes are really written: holes would be no disk.
//!
//! `cargo bench -p feedline-bench --bench index_cold -- [--quick] [--shards N] [--samples N] [--photo-bytes N] [--seconds N]
//! [--repeats N] [--threads N] [--folder PATH] [--drop all|files] [--out DIR]`; with `--out` it writes README.md and raw.csv
//! there. By default 1 000 shards of 1 000 samples, 14 GB, kept under target/tmp from one run to the next.

mod fio;
mod lay_out;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use feedline_bench::cold::{Drop, fio_version};
use feedline_bench::machine::out_folder;
use feedline_loader::shard::{Dataset, IndexOptions};

/// What is measured, and how long.
struct Arguments {
    folder: PathBuf,
    shards: u32,
    samples: u32,
    photo_bytes: u32,
    seconds: u64,
    repeats: u32,
    threads: u32,
    drop: Drop,
    out: Option<PathBuf>,
}

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contestant {
    /// The indexer: a read is a sample.
    Index,
    /// fio, through the page cache, in as many threads.
    FioThreads,
    /// fio, past the page cache, by io_uring at that depth.
    FioDirect,
}

impl Contestant {
    const ALL: [Self; 3] = [Self::Index, Self::FioThreads, Self::FioDirect];

    fn name(self) -> &'static str {
        match self {
            Self::Index => "index, samples",
            Self::FioThreads => "fio psync, buffered, 4 KiB reads",
            Self::FioDirect => "fio io_uring, direct, 4 KiB reads",
        }
    }
}

/// One measurement.
struct Outcome {
    contestant: Contestant,
    repeat: u32,
    /// Samples or reads.
    count: u64,
    elapsed: Duration,
    /// How it was made, for people.
    words: String,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64()
    }
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let shards = lay_out::shards(&arguments.folder, arguments.shards, arguments.samples, arguments.photo_bytes);
    let fio = fio_version();
    if fio.is_none() {
        eprintln!("skipped: fio: not installed; only the indexer is measured");
    }
    let contestants: Vec<Contestant> =
        Contestant::ALL.into_iter().filter(|&one| one == Contestant::Index || fio.is_some()).collect();
    let mut outcomes = Vec::new();
    for repeat in 0..arguments.repeats {
        for place in 0..contestants.len() {
            // Each round starts with another contestant, so that none is always the one after the same other.
            let contestant = contestants[(repeat as usize + place) % contestants.len()];
            arguments.drop.run(&shards);
            let measured = match contestant {
                Contestant::Index => Ok(index(&shards, &arguments)),
                Contestant::FioThreads => fio::measure("psync", false, &arguments),
                Contestant::FioDirect => fio::measure("io_uring", true, &arguments),
            };
            match measured {
                Ok((count, elapsed, words)) => {
                    let outcome = Outcome { contestant, repeat, count, elapsed, words };
                    eprintln!("{repeat} {}: {:.0}/s", contestant.name(), outcome.rate());
                    outcomes.push(outcome);
                }
                Err(reason) => eprintln!("skipped: {}: {reason}", contestant.name()),
            }
        }
    }
    let table = report::table(&outcomes);
    println!("{table}");
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder).expect("make the folder");
        let readme = report::readme(&arguments, fio.as_deref(), &outcomes, &table);
        std::fs::write(folder.join("README.md"), readme).expect("write README.md");
        std::fs::write(folder.join("raw.csv"), report::raw(&outcomes)).expect("write raw.csv");
        println!("written to {}", folder.display());
    }
    ExitCode::SUCCESS
}

/// Indexes all shards into an empty cache folder.
fn index(shards: &[PathBuf], arguments: &Arguments) -> (u64, Duration, String) {
    let cache = tempfile::tempdir_in(&arguments.folder).expect("a cache folder");
    let options = IndexOptions {
        cache_dir: Some(cache.path().to_owned()),
        threads: Some(arguments.threads),
        ..IndexOptions::default()
    };
    let started = Instant::now();
    let dataset = Dataset::open(shards, &options, &|_| {}).expect("sound shards");
    let elapsed = started.elapsed();
    let expected = u64::from(arguments.shards) * u64::from(arguments.samples);
    assert_eq!(dataset.sample_count(), expected, "every sample is found");
    let entries = std::fs::read_dir(cache.path()).expect("the cache folder");
    let bytes: u64 = entries.map(|entry| entry.and_then(|entry| entry.metadata()).expect("an index").len()).sum();
    (expected, elapsed, format!("indexes of {:.1} bytes a sample, keys included", bytes as f64 / expected as f64))
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join("index_cold"),
        shards: 1000,
        samples: 1000,
        photo_bytes: 12_000,
        seconds: 10,
        repeats: 5,
        threads: 16,
        drop: Drop::usual(),
        out: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse::<u32>().map_err(|error| format!("{text}: {error}"));
        match word.as_str() {
            // Given by cargo.
            "--bench" => {}
            "--quick" | "--test" => {
                arguments.folder = arguments.folder.with_file_name("index_cold_quick");
                (arguments.shards, arguments.samples, arguments.drop) = (20, 50, Drop::Files);
                (arguments.seconds, arguments.repeats) = (1, 1);
            }
            "--shards" => arguments.shards = number(value()?)?,
            "--samples" => arguments.samples = number(value()?)?,
            "--photo-bytes" => arguments.photo_bytes = number(value()?)?,
            "--seconds" => arguments.seconds = u64::from(number(value()?)?),
            "--repeats" => arguments.repeats = number(value()?)?,
            "--threads" => arguments.threads = number(value()?)?,
            "--folder" => arguments.folder = value()?.into(),
            "--drop" => arguments.drop = Drop::parse(&value()?)?,
            "--out" => arguments.out = Some(out_folder(&value()?)),
            other => return Err(format!("unknown argument {other}; see the head of bench/benches/index_cold/main.rs")),
        }
    }
    Ok(arguments)
}
