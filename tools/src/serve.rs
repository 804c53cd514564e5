//! `feedline serve`: the sidecar in the foreground. The service itself is the engine's; here are its arguments and its log.

use std::fmt;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use feedline_loader::Result;
use feedline_loader::read::ReaderChoice;
use feedline_loader::serve::{ServeOptions, ServeReport, serve};
use feedline_loader::sys::budget::parse_bytes;
use serde::Serialize;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::output::{counted, print_report};

/// Run the sidecar: serve batches to training processes of this machine over a Unix socket.
///
/// Prints one line once it is ready. Logs go to standard error; FEEDLINE_LOG sets what they hold, as in
/// FEEDLINE_LOG=debug.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Socket to listen on; clients name it by `sidecar=` or FEEDLINE_SOCKET.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Decode threads [default: the usable cores less one, at least one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: Option<u32>,
    /// How shards are read.
    #[arg(long, value_enum, default_value_t = Reader::Auto)]
    reader: Reader,
    /// How far decode threads step back when trainers want the same cores: 0 (not at all) to 19. They get what is left
    /// over, which on free cores is as much as before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=19), default_value = "10")]
    nice: u32,
    /// Most memory for rings, reads, caches, unpacked shards and indexes together, as in 8G [default: three quarters of what
    /// machine and control group have free at the start].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<u64>,
    /// Of it, for encoded samples that are kept for later epochs, as in 4G: for shards past the page cache, on network file
    /// systems, or compressed; the page cache does it for others.
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "0")]
    cache: u64,
    /// Answer Prometheus at http://ADDR/metrics, as in 127.0.0.1:9184.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// End when the last client is gone; log warnings only; announce readiness as JSON.
    #[arg(long)]
    private: bool,
    /// Folder for index files [default: the user's cache folder].
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Serve only shards below DIR; may be given several times [default: whatever this user may read].
    #[arg(long = "allow-root", value_name = "DIR")]
    allow_roots: Vec<PathBuf>,
    /// Admit clients of this user too; may be given several times.
    #[arg(long = "allow-uid", value_name = "UID")]
    allow_uids: Vec<u32>,
    /// Announce readiness as one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reader {
    /// io_uring where this machine lets it work, past the page cache once the shards are larger than the memory;
    /// otherwise a pool of pread threads.
    Auto,
    /// io_uring through the page cache, or an error that says why not.
    Uring,
    /// io_uring past the page cache on every mount that allows it, or an error that says why there is no io_uring.
    UringDirect,
    /// A pool of pread threads.
    Pread,
    /// A pool of threads that copy from mapped shards; with --private only.
    Mmap,
}

impl From<Reader> for ReaderChoice {
    fn from(reader: Reader) -> Self {
        match reader {
            Reader::Auto => Self::Auto,
            Reader::Uring => Self::Uring,
            Reader::UringDirect => Self::UringDirect,
            Reader::Pread => Self::Pread,
            Reader::Mmap => Self::Mmap,
        }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

/// Serves until a signal, or with `--private` until the last client is gone.
pub fn run(arguments: ServeArguments) -> Result<()> {
    log_to_stderr(if arguments.private { LevelFilter::WARN } else { LevelFilter::INFO });
    let json = arguments.private || arguments.json;
    let options = ServeOptions {
        socket: arguments.socket,
        workers: arguments.workers,
        reader: arguments.reader.into(),
        nice: arguments.nice,
        memory_bytes: arguments.memory,
        cache_bytes: arguments.cache,
        metrics: arguments.metrics,
        private: arguments.private,
        cache_dir: arguments.cache_dir,
        allow_roots: arguments.allow_roots,
        allow_uids: arguments.allow_uids,
    };
    serve(options, |report| {
        if let Err(error) = print_report(&Announcement(report), json) {
            tracing::warn!("nobody was told that the service is ready: {error}");
        }
    })
}

/// The one line that says that clients may come.
#[derive(Serialize)]
#[serde(transparent)]
struct Announcement<'report>(&'report ServeReport);

impl fmt::Display for Announcement<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServeReport { listening, metrics, workers, cores, reader, memory, .. } = self.0;
        let threads = counted(u64::from(*workers), "decode thread");
        write!(formatter, "serving on {}: {threads} on {cores}; {reader}; memory: {memory}", listening.display())?;
        metrics.map_or(Ok(()), |address| write!(formatter, "; metrics at http://{address}/metrics"))
    }
}

fn log_to_stderr(default: LevelFilter) {
    let filter =
        EnvFilter::builder().with_default_directive(default.into()).with_env_var("FEEDLINE_LOG").from_env_lossy();
    // Where the process that carries this library has a log already, that one stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
