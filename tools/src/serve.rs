//! `feedline serve`: the sidecar in the foreground. The service itself is the engine's; here are its arguments and its log.

use std::fmt;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use feedline_loader::Result;
use feedline_loader::read::ReaderChoice;
use feedline_loader::serve::{Limits, ServeOptions, ServeReport, serve};
use feedline_loader::sys::budget::parse_bytes;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::output::{counted, print_report};
use crate::serve_file::ServeFile;

/// Run the sidecar: serve batches to training processes of this machine over a Unix socket.
///
/// Prints one line once it is ready. Logs go to standard error; FEEDLINE_LOG sets what they hold, as in
/// FEEDLINE_LOG=debug. On SIGTERM or SIGINT it finishes the batches that are begun, tells the clients where to resume,
/// and ends; a second signal ends it at once.
#[derive(Debug, Default, Args)]
pub struct ServeArguments {
    /// File of options in TOML, by the names of these; what is given here wins over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Socket to listen on; clients name it by `sidecar=` or FEEDLINE_SOCKET. Not needed where the file has it, or where a
    /// systemd socket unit does.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Decode threads [default: the usable cores less one, at least one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: Option<u32>,
    /// How shards are read [default: auto].
    #[arg(long, value_enum)]
    reader: Option<Reader>,
    /// How far decode threads step back when trainers want the same cores: 0 (not at all) to 19 [default: 10]. They get what
    /// is left over, which on free cores is as much as before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=19))]
    nice: Option<u32>,
    /// Most memory for rings, reads, caches, unpacked shards and indexes together, as in 8G [default: three quarters of what
    /// machine and control group have free at the start].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<u64>,
    /// Of it, for encoded samples that are kept for later epochs, as in 4G [default: 0]: for shards past the page cache, on
    /// network file systems, or compressed; the page cache does it for others.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    cache: Option<u64>,
    /// Answer Prometheus at http://ADDR/metrics, as in 127.0.0.1:9184.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// End when the last client is gone; log warnings only; announce readiness as JSON.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    private: Option<bool>,
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
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    json: Option<bool>,
    /// Longest time for the batches that are begun when a signal ends the service [default: 30].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86400))]
    drain_timeout: Option<u32>,
    /// Most connections at a time [default: 1024].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    connections: Option<u32>,
    /// Most connections of one user [default: an equal share for each user that may connect].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    connections_per_uid: Option<u32>,
    /// A client says hello within this time [default: 10].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    hello_timeout: Option<u32>,
    /// A client without a stream says something within this time [default: 60].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86400))]
    idle_timeout: Option<u32>,
}

/// How shards are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reader {
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

impl ServeArguments {
    /// What the command line leaves open is taken from `file`.
    fn or(self, file: ServeFile) -> (ServeOptions, bool) {
        let or_list = |own: Vec<PathBuf>, other| if own.is_empty() { other } else { own };
        let seconds = |own: Option<u32>, other: Option<u32>, default| {
            own.or(other).map_or(default, |seconds| Duration::from_secs(seconds.into()))
        };
        let (unset, allow_uids) = (ServeOptions::default(), file.allow_uid.iter().map(|uid| uid.0).collect());
        let json = self.json.or(file.json).unwrap_or(false);
        let options = ServeOptions {
            socket: self.socket.or(file.socket),
            workers: self.workers.or(file.workers.map(|count| count.0)),
            reader: self.reader.or(file.reader).map_or(unset.reader, ReaderChoice::from),
            nice: self.nice.or(file.nice.map(|nice| nice.0)).unwrap_or(unset.nice),
            memory_bytes: self.memory.or(file.memory.map(|size| size.0)),
            cache_bytes: self.cache.or(file.cache.map(|size| size.0)).unwrap_or(unset.cache_bytes),
            metrics: self.metrics.or(file.metrics),
            private: self.private.or(file.private).unwrap_or(false),
            cache_dir: self.cache_dir.or(file.cache_dir),
            allow_roots: or_list(self.allow_roots, file.allow_root),
            allow_uids: if self.allow_uids.is_empty() { allow_uids } else { self.allow_uids },
            drain_timeout: seconds(self.drain_timeout, file.drain_timeout.map(|s| s.0), unset.drain_timeout),
            limits: Limits {
                connections: self
                    .connections
                    .or(file.connections.map(|count| count.0))
                    .unwrap_or(unset.limits.connections),
                connections_per_uid: self.connections_per_uid.or(file.connections_per_uid.map(|count| count.0)),
                hello_timeout: seconds(self.hello_timeout, file.hello_timeout.map(|s| s.0), unset.limits.hello_timeout),
                idle_timeout: seconds(self.idle_timeout, file.idle_timeout.map(|s| s.0), unset.limits.idle_timeout),
            },
        };
        (options, json)
    }
}

/// Serves until a signal, or with `--private` until the last client is gone.
pub fn run(arguments: ServeArguments) -> Result<()> {
    let file = arguments.config.as_deref().map(ServeFile::read).transpose()?.unwrap_or_default();
    let (options, json) = arguments.or(file);
    log_to_stderr(if options.private { LevelFilter::WARN } else { LevelFilter::INFO });
    let json = options.private || json;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve_file::Whole;

    fn file() -> ServeFile {
        ServeFile {
            socket: Some("/file.sock".into()),
            workers: Some(Whole(3)),
            reader: Some(Reader::Pread),
            allow_root: vec!["/file".into()],
            allow_uid: vec![Whole(7)],
            json: Some(true),
            drain_timeout: Some(Whole(5)),
            connections: Some(Whole(9)),
            hello_timeout: Some(Whole(2)),
            ..ServeFile::default()
        }
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let (options, json) = ServeArguments::default().or(file());
        assert_eq!(options.socket, Some("/file.sock".into()));
        assert_eq!((options.workers, options.reader, json), (Some(3), ReaderChoice::Pread, true));
        assert_eq!((options.allow_roots, options.allow_uids), (vec!["/file".into()], vec![7]));
        assert_eq!((options.drain_timeout, options.limits.connections), (Duration::from_secs(5), 9));
        assert_eq!(options.limits.hello_timeout, Duration::from_secs(2));
        assert_eq!(options.limits.idle_timeout, Limits::default().idle_timeout);

        let arguments = ServeArguments {
            socket: Some("/line.sock".into()),
            workers: Some(1),
            reader: Some(Reader::Auto),
            allow_roots: vec!["/line".into()],
            allow_uids: vec![8],
            json: Some(false),
            drain_timeout: Some(0),
            connections: Some(4),
            hello_timeout: Some(1),
            ..ServeArguments::default()
        };
        let (options, json) = arguments.or(file());
        assert_eq!(options.socket, Some("/line.sock".into()));
        assert_eq!((options.workers, options.reader, json), (Some(1), ReaderChoice::Auto, false));
        assert_eq!((options.allow_roots, options.allow_uids), (vec!["/line".into()], vec![8]));
        assert_eq!((options.drain_timeout, options.limits.connections), (Duration::ZERO, 4));
        assert_eq!(options.limits.hello_timeout, Duration::from_secs(1));
    }
}
