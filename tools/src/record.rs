//! `feedline record`: writes what a GPU says of itself, one JSON object a sample, until it is interrupted.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use feedline_loader::telemetry::gpu::{GpuFaultKind, GpuName, LiveOptions, LiveSource};
use feedline_loader::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Record a GPU's utilisation, power, clocks and counters, for `feedline verdict`.
///
/// Ends with the process that --pid names, after --seconds, or when interrupted. A figure that the GPU does not give is left
/// out of its line; when the driver does not answer, or the GPU is lost, the line says that, and recording goes on.
#[derive(Debug, Args)]
pub struct RecordArguments {
    /// Record until this process ends, and how much GPU memory it has.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pid: Option<u32>,
    /// Where to write; it is replaced [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Milliseconds between samples.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    interval: u64,
    /// Record so long.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// A GPU, by UUID or PCI id; may be given several times [default: all].
    #[arg(long, value_name = "UUID")]
    gpu: Vec<String>,
}

/// Longest time in which the end of the watched process is not noticed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Samples until it is over.
pub fn run(arguments: &RecordArguments) -> Result<()> {
    let gpus = arguments.gpu.iter().map(|name| GpuName::parse(name)).collect::<Result<Vec<_>>>()?;
    let watched = arguments.pid.map(watched_process).transpose()?;
    let (mut out, name): (Box<dyn Write>, PathBuf) = match &arguments.out {
        Some(path) => (Box::new(File::create(path).map_err(|source| Error::io("create", path, source))?), path.clone()),
        None => (Box::new(io::stdout().lock()), "standard output".into()),
    };
    let interval = Duration::from_millis(arguments.interval);
    let source = LiveSource::start(LiveOptions { gpus, interval, pid: arguments.pid, ..LiveOptions::default() })?;
    let until = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut told: Option<GpuFaultKind> = None;
    while until.is_none_or(|until| Instant::now() < until) && watched.as_ref().is_none_or(is_running) {
        let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()).min(LOOK_EVERY));
        let Some(sample) = source.next(left) else { continue };
        let kind = sample.error.as_ref().map(|fault| fault.kind);
        if kind != told {
            match &sample.error {
                Some(fault) => eprintln!("feedline: at {:.1} s: {fault}", sample.t),
                None => eprintln!("feedline: at {:.1} s: the GPU answers again", sample.t),
            }
            told = kind;
        }
        let mut line = serde_json::to_vec(&sample).expect("samples have string keys");
        line.push(b'\n');
        // Line by line, so that a recording that is ended anyhow is whole up to its last.
        match out.write_all(&line).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|source| Error::io("write", &name, source))?,
        }
    }
    match source.dropped() {
        0 => Ok(()),
        count => Err(Error::system(
            "keep up with the samples",
            io::Error::other(format!("{count} of them were lost: write to a faster place, or less often (--interval)")),
        )),
    }
}

/// A handle of the process, which another one of the same number later is not.
fn watched_process(pid: u32) -> Result<OwnedFd> {
    let there = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH);
    there.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())).map_err(|error| match error {
        rustix::io::Errno::SRCH => Error::config(format!("--pid {pid}: there is no such process")),
        other => Error::system("watch the process of --pid", other),
    })
}

/// Whether it runs: its handle can be read once it does not.
fn is_running(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(ready) if ready > 0)
}
