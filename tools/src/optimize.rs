//! `feedline optimize`: shards whose JPEGs are written anew without loss, so that less of each has to be decoded.
//!
//! [`pool`] reads, writes and verifies ([`jpeg`]), within the bounds of [`gate`]; [`tally`] counts; [`set`] is the folder of shards: what
//! of an interrupted run is kept, and when a shard gets its name. How a JPEG is written anew is in
//! [`feedline_loader::transcode`].

mod gate;
pub mod jpeg;
mod pool;
mod set;
pub mod tally;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use feedline_loader::shard::{Missing, ShardState, expand, tar_compression};
use feedline_loader::sys::cores::CoreReport;
use feedline_loader::transcode::Markers;
use feedline_loader::{Error, Result};
use serde::Serialize;

use self::set::{OptimizedSet, ShardRecord, is_free_name};
use self::tally::Tally;
use crate::bars::Bars;
use crate::output::{Bytes, counted, print_report};

/// Write the JPEGs of shards anew without loss, for faster decoding.
///
/// Every ordinary JPEG gets Huffman codes of its own and a restart marker at the end of each row of blocks, so that a crop
/// needs only a part of it decoded; files become some 3 % smaller. Pixels stay the same in any decoder: each file is read
/// again and compared, every coefficient and quantisation step, before its shard gets a name. Damaged and unusual JPEGs are
/// copied as they are, and named in the report. Nothing else in the shards changes: order, names, modes, times, other files.
///
/// SHARD is a tar, a pattern (braces as in train-{000000..000099}.tar, * ? […], several joined by ::) or a folder of tars.
/// Compressed ones are read and written plain. OUT gets shards of the same names, classes.json if there is one, and
/// manifest.json (sizes, BLAKE3, and what became of the JPEGs). Nothing is overwritten. Run it again to continue a run that was
/// interrupted; the shards come out the same, byte for byte, as they do for any number of workers.
#[derive(Debug, Args)]
pub struct OptimizeArguments {
    /// Shards, patterns, or folders of shards.
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<String>,
    /// Folder for the new shards; made if it is missing.
    out: PathBuf,
    /// Application data and comments that JPEGs keep.
    #[arg(long, value_enum, default_value_t = MarkersArgument::All)]
    markers: MarkersArgument,
    /// Threads that write JPEGs anew [default: one for each usable core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Option<u32>,
    /// Report as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// [`Markers`] as an argument.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum MarkersArgument {
    /// All of it, and what lies behind the image: no decoder of any kind shows or finds anything else.
    All,
    /// What changes how decoders show the image: JFIF, Adobe, EXIF, ICC profile, orientation in XMP. Thumbnails, comments
    /// and further pictures in the file go.
    Needed,
    /// JFIF and Adobe, without which colours would be others. Orientation and ICC profile go: who uses them shows others.
    None,
}

impl From<MarkersArgument> for Markers {
    fn from(argument: MarkersArgument) -> Self {
        match argument {
            MarkersArgument::All => Self::All,
            MarkersArgument::Needed => Self::Needed,
            MarkersArgument::None => Self::None,
        }
    }
}

/// Members that the report names for each reason; the manifest has more.
pub const NAMED_MAX: usize = 10;

/// A shard that shall be written anew.
pub struct Source {
    path: PathBuf,
    /// The name that it gets in OUT.
    name: String,
    state: ShardState,
}

/// What was done.
#[derive(Debug, Serialize)]
struct OptimizeReport {
    out: PathBuf,
    shards: u64,
    /// Of them, those that an earlier run had written.
    kept: u64,
    /// Shards that could not be read, with the reason.
    failed: Vec<Failed>,
    markers: Markers,
    workers: u32,
    /// Of all shards, kept ones too: their tars, unpacked.
    bytes_before: u64,
    bytes_after: u64,
    /// Of all shards, too.
    #[serde(flatten)]
    tally: Tally,
    seconds: f64,
    /// Of this run alone.
    jpegs_per_second: f64,
    notices: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Failed {
    shard: String,
    error: String,
}

/// Writes anew, then reports.
pub fn run(arguments: &OptimizeArguments) -> Result<()> {
    let started = Instant::now();
    let markers = Markers::from(arguments.markers);
    let workers = workers(arguments.workers)?;
    refuse_inside(&arguments.shards, &arguments.out)?;
    let sources = sources(&arguments.shards)?;
    refuse_same_folder(&sources, &arguments.out)?;
    let bars = Bars::new(arguments.json);
    let set = OptimizedSet::open(&arguments.out, &sources)?;
    let (kept, wanted) = sort_out(&set, &sources, markers, &bars)?;

    let need: u64 = wanted.iter().map(|source| source.state.bytes).sum();
    set.folder().check_space(&counted(wanted.len() as u64, "shard"), need)?;
    set.copy_classes(&sources[0].path)?;
    let bar = bars.optimizing(need);
    let began = Instant::now();
    let rate = |jpegs: u64| jpegs as f64 / began.elapsed().as_secs_f64().max(1e-6);
    let jpegs_done = std::cell::Cell::new(0);
    let outcome = pool::optimize(&wanted, &set, markers, workers, &|bytes, jpegs| {
        jpegs_done.set(jpegs_done.get() + jpegs);
        bar.inc(bytes);
        bar.set_message(format!("{:.0}", rate(jpegs_done.get())));
    })?;
    bar.finish_and_clear();

    let mut tally = Tally::default();
    let all = || kept.iter().chain(&outcome.written);
    all().for_each(|(name, record)| tally.add(&record.tally, name, NAMED_MAX));
    let report = OptimizeReport {
        out: arguments.out.clone(),
        shards: (kept.len() + outcome.written.len()) as u64,
        kept: kept.len() as u64,
        failed: outcome.failed.iter().map(Failed::from).collect(),
        markers,
        workers,
        bytes_before: all().map(|(_, record)| record.bytes_before).sum(),
        bytes_after: all().map(|(_, record)| record.bytes).sum(),
        notices: tally.notice().into_iter().collect(),
        tally,
        seconds: started.elapsed().as_secs_f64(),
        jpegs_per_second: rate(jpegs_done.get()),
    };
    set.finish(outcome.written)?;
    print_report(&report, arguments.json)?;
    // The report has them all; the exit status and a line go with the first.
    outcome.failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// The number of workers: as asked, or one for each core that may be used.
pub fn workers(asked: Option<u32>) -> Result<u32> {
    match asked {
        Some(workers) => Ok(workers),
        None => {
            let cores = CoreReport::read().map_err(|error| Error::system("count the usable cores", error))?;
            Ok(cores.usable())
        }
    }
}

/// Nothing is written into a folder that is read.
fn refuse_inside(shards: &[String], out: &Path) -> Result<()> {
    let absolute = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path));
    let Ok(target) = absolute(out) else { return Ok(()) };
    let mut folders = shards.iter().map(Path::new).filter(|path| path.is_dir());
    match folders.find(|folder| absolute(folder).is_ok_and(|folder| target.starts_with(folder))) {
        None => Ok(()),
        Some(folder) => Err(Error::config(format!(
            "OUT {} lies in {}, which is read: choose a folder outside",
            out.display(),
            folder.display()
        ))),
    }
}

fn refuse_same_folder(sources: &[Source], out: &Path) -> Result<()> {
    let Ok(out) = out.canonicalize() else { return Ok(()) };
    let is_there =
        |source: &&Source| source.path.parent().and_then(|parent| parent.canonicalize().ok()) == Some(out.clone());
    match sources.iter().find(is_there) {
        None => Ok(()),
        Some(source) => Err(Error::config(format!(
            "OUT {} is the folder of {}, and new shards get the same names: choose another folder",
            out.display(),
            source.path.display()
        ))),
    }
}

/// The shards that `patterns` name, each with a name of its own.
fn sources(patterns: &[String]) -> Result<Vec<Source>> {
    let mut taken: HashMap<String, PathBuf> = HashMap::new();
    let mut sources = Vec::new();
    for path in expand(patterns, Missing::Error)?.shards {
        let compression = tar_compression(&path)?;
        let name = path.file_name().and_then(|name| name.to_str()).map(|name| plain_name(name, compression.is_some()));
        let name = name
            .filter(|name| is_free_name(name))
            .ok_or_else(|| Error::config(format!("{}: no name for a shard in OUT: rename it", path.display())))?;
        if let Some(other) = taken.insert(name.clone(), path.clone()) {
            return Err(Error::config(format!(
                "{} and {} would both be {name} in OUT: write them to two folders",
                other.display(),
                path.display()
            )));
        }
        sources.push(Source { state: ShardState::of(&path)?, path, name });
    }
    Ok(sources)
}

/// The name of a shard when it is not compressed.
fn plain_name(name: &str, is_compressed: bool) -> String {
    const ENDINGS: [(&str, &str); 7] = [
        (".tar.gz", ".tar"),
        (".tgz", ".tar"),
        (".tar.zst", ".tar"),
        (".tzst", ".tar"),
        (".tar.xz", ".tar"),
        (".txz", ".tar"),
        (".tar.zstd", ".tar"),
    ];
    let ending = ENDINGS.iter().filter(|_| is_compressed).find_map(|(old, new)| Some((name.strip_suffix(old)?, new)));
    ending.map_or_else(|| name.to_owned(), |(stem, new)| format!("{stem}{new}"))
}

/// Shards that an earlier run has written, and those that are to be.
type SortedOut<'a> = (Vec<(String, ShardRecord)>, Vec<&'a Source>);

fn sort_out<'a>(set: &OptimizedSet, sources: &'a [Source], markers: Markers, bars: &Bars) -> Result<SortedOut<'a>> {
    let bar = bars.checking();
    let (mut kept, mut wanted) = (Vec::new(), Vec::new());
    for source in sources {
        match set.kept(source, markers, |bytes| bar.inc(bytes))? {
            Some(record) => kept.push((source.name.clone(), record.clone())),
            None => wanted.push(source),
        }
    }
    bar.finish_and_clear();
    Ok((kept, wanted))
}

impl From<&(String, Error)> for Failed {
    fn from((shard, error): &(String, Error)) -> Self {
        Self { shard: shard.clone(), error: error.to_string() }
    }
}

impl fmt::Display for OptimizeReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{} in {}, {} before, {} after, in {:.1} s ({:.0} JPEGs/s)",
            counted(self.shards, "shard"),
            self.out.display(),
            Bytes(self.bytes_before),
            Bytes(self.bytes_after),
            self.seconds,
            self.jpegs_per_second,
        )?;
        if self.kept > 0 {
            writeln!(
                formatter,
                "  {} of an earlier run kept, after a look at every byte",
                counted(self.kept, "shard")
            )?;
        }
        self.tally.lines().iter().try_for_each(|line| writeln!(formatter, "  {line}"))?;
        self.failed.iter().try_for_each(|Failed { error, .. }| writeln!(formatter, "  not written: {error}"))?;
        self.notices.iter().try_for_each(|notice| writeln!(formatter, "  notice: {notice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_what_says_compressed() {
        let check = |name: &str, is_compressed, expected: &str| assert_eq!(plain_name(name, is_compressed), expected);
        check("a.tar", false, "a.tar");
        check("a.tar.gz", true, "a.tar");
        check("a.tgz", true, "a.tar");
        check("a.tar.zst", true, "a.tar");
        // Compressed whatever its name says, and the other way round.
        check("a.tar", true, "a.tar");
        check("a.tar.gz", false, "a.tar.gz");
    }
}
