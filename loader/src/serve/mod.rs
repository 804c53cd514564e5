//! The service: lends streams to clients over a Unix socket.
//!
//! tokio serves this control plane and nothing else: [`protocol`] is what travels, [`connection`] one client's life,
//! [`beside`] the work that takes long, [`datasets`] the indexes that clients share, [`registry`] the open streams,
//! [`limits`] how many may come, [`drain`] the end, [`status`] and [`metrics`] what the service tells of itself,
//! [`activation`], [`notify`] and [`watchdog`] its dealings with a service manager. The data path is
//! [`crate::pipeline`]'s threads.

mod activation;
mod beside;
mod connection;
mod datasets;
mod drain;
mod lacking;
mod limits;
mod metrics;
mod notify;
pub mod protocol;
pub mod quarantine;
mod registry;
mod socket;
pub mod status;
mod watchdog;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::net::UnixListener;

pub use drain::DRAIN_TIMEOUT;
pub use limits::Limits;

use crate::error::{Error, Result};
use crate::pipeline::{Pipeline, PipelineOptions};
use crate::read::ReaderChoice;
use crate::ring::named;
use crate::shard::Links;
use crate::sys::cores::CoreReport;
use crate::sys::socket::Peer;
use crate::telemetry::WaitSampler;
use datasets::Datasets;
use drain::{Drain, StopSignals};
use limits::Admissions;
use notify::Notifier;
use registry::Registry;
use socket::Listening;
use status::{ConnectionStatus, MemoryStatus, ServiceState, ServiceStatus};

/// How far decode threads step back where nobody says.
pub const NICE: u32 = 10;

/// How long a private sidecar waits for its first client.
const FIRST_CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a private sidecar outlives its last client, so that a trainer can close one stream and open another.
const LAST_CLIENT_GRACE: Duration = Duration::from_secs(1);

/// What a sidecar is told at its start.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where it listens; where the service manager does already when not given.
    pub socket: Option<PathBuf>,
    /// Decode threads; the usable cores less one when not given, at least 1.
    pub workers: Option<u32>,
    /// How shards are read.
    pub reader: ReaderChoice,
    /// How far decode threads step back for others, as [`PipelineOptions::nice`].
    pub nice: u32,
    /// Bound of the memory that it takes, as [`PipelineOptions::memory_bytes`].
    pub memory_bytes: Option<u64>,
    /// Memory for encoded samples that are kept, as [`PipelineOptions::cache_bytes`].
    pub cache_bytes: u64,
    /// Where it serves metrics over HTTP.
    pub metrics: Option<SocketAddr>,
    /// It ends with its last client.
    pub private: bool,
    /// Where indexes are kept; the user's cache folder when not given.
    pub cache_dir: Option<PathBuf>,
    /// Folders that shards must lie in; anywhere when empty.
    pub allow_roots: Vec<PathBuf>,
    /// Users that may connect, beside its own.
    pub allow_uids: Vec<u32>,
    /// How long its end may take to finish open batches.
    pub drain_timeout: Duration,
    /// Bounds on connections.
    pub limits: Limits,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            socket: None,
            workers: None,
            reader: ReaderChoice::Auto,
            nice: NICE,
            memory_bytes: None,
            cache_bytes: 0,
            metrics: None,
            private: false,
            cache_dir: None,
            allow_roots: Vec::new(),
            allow_uids: Vec::new(),
            drain_timeout: DRAIN_TIMEOUT,
            limits: Limits::default(),
        }
    }
}

/// What a sidecar is, once it listens.
#[derive(Debug, Clone, Serialize)]
pub struct ServeReport {
    /// Where it listens.
    pub listening: PathBuf,
    /// Where metrics are, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Its process.
    pub pid: u32,
    /// Decode threads.
    pub workers: u32,
    /// How many cores it may use, and the limits that say so.
    pub cores: String,
    /// How shards are read, and why so.
    pub reader: String,
    /// Bound of the memory that it reserves, and where it comes from.
    pub memory: String,
    /// Its version.
    pub version: &'static str,
}

/// What all connections share.
#[derive(Debug)]
struct Service {
    options: ServeOptions,
    socket: PathBuf,
    started: Instant,
    pipeline: Pipeline,
    workers: u32,
    datasets: Arc<Datasets>,
    streams: Registry,
    admissions: Arc<Admissions>,
    drain: Drain,
    notifier: Notifier,
}

/// Serves until SIGTERM or SIGINT comes, or, when private, until the last client has gone. `ready` is called once it
/// listens. After a signal, batches that are begun are finished and handed over; a second one ends it at once.
pub fn serve(options: ServeOptions, ready: impl FnOnce(&ServeReport)) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("feedline-index")
        .build()
        .map_err(|source| Error::system("start the control plane", source))?;
    let served = runtime.block_on(run(options, ready));
    // An index that is still being built has nobody left to wait for it.
    runtime.shutdown_background();
    served
}

async fn run(options: ServeOptions, ready: impl FnOnce(&ServeReport)) -> Result<()> {
    if options.reader.is_for_private_use() && !options.private {
        return Err(Error::config(format!(
            "the reader {} is for private sidecars: what happens to a mapped file would happen to every client; choose \
             auto, uring, uring-direct or pread",
            options.reader
        )));
    }
    // A trainer may be a service itself, and its private sidecar has its environment: the manager's words are not for it.
    let notifier = if options.private { Notifier::none() } else { Notifier::from_environment() };
    let cores = CoreReport::read().map_err(|source| Error::system("count the usable cores", source))?;
    let workers = options.workers.unwrap_or_else(|| cores.usable().saturating_sub(1)).max(1);
    let listening = socket::listen(&options)?;
    let Listening { listener, path, file } = &listening;
    let metrics_listener = match options.metrics {
        Some(address) => Some(metrics::listen(address).await?),
        None => None,
    };
    named::sweep();
    let mut signals = StopSignals::listen()?;
    let limits = options.limits.within_descriptors();
    let pipeline = Pipeline::start(PipelineOptions {
        workers,
        reader: options.reader,
        nice: options.nice,
        memory_bytes: options.memory_bytes,
        cache_bytes: options.cache_bytes,
    })?;
    let report = ServeReport {
        listening: path.clone(),
        metrics: metrics_listener.as_ref().and_then(|listener| listener.local_addr().ok()),
        pid: std::process::id(),
        workers,
        cores: cores.to_string(),
        reader: pipeline.reader(),
        memory: pipeline.stages().budget.to_string(),
        version: env!("CARGO_PKG_VERSION"),
    };
    let service = Arc::new(Service {
        // Where clients may only name what lies in some folders, links do not lead out of those.
        datasets: Arc::new(Datasets::new(
            options.cache_dir.clone(),
            if options.allow_roots.is_empty() { Links::Followed } else { Links::Confined },
        )),
        admissions: Admissions::new(limits, 1 + options.allow_uids.len()),
        options,
        socket: path.clone(),
        started: Instant::now(),
        pipeline,
        workers,
        streams: Registry::default(),
        drain: Drain::new(),
        notifier,
    });
    ready(&report);
    service.notifier.ready(&service.words());

    if let Some(listener) = metrics_listener {
        tokio::spawn(metrics::serve(listener, service.clone()));
    }
    tokio::spawn(sample_waits(service.clone()));
    if service.notifier.is_heard() {
        tokio::spawn(watchdog::tell_status(service.clone()));
    }
    if let Some(interval) = service.notifier.pulse_interval() {
        tokio::spawn(watchdog::keep_alive(service.clone(), interval));
    }
    let stopped = tokio::select! {
        () = accept(listener, &service) => None,
        signal = signals.next() => Some(signal),
        () = last_client_gone(&service), if service.options.private => None,
    };
    if let Some(signal) = stopped {
        drain::drain(&service, signal, file.as_ref().map(|_| listener), &mut signals).await;
    }
    for stream in service.streams.streams() {
        service.pipeline.remove(&stream);
    }
    Ok(())
}

/// Accepts clients for ever.
async fn accept(listener: &UnixListener, service: &Arc<Service>) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => connection::admit(socket, service),
            Err(error) => {
                // Out of descriptors, most likely: those that are connected go on, and some will close.
                tracing::warn!("cannot accept a client: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Returns when a private sidecar has nobody to serve.
async fn last_client_gone(service: &Service) {
    let mut clients = service.admissions.subscribe();
    let first = clients.wait_for(|count| *count > 0);
    if tokio::time::timeout(FIRST_CLIENT_TIMEOUT, first).await.is_err() {
        tracing::warn!("no client came within {} s", FIRST_CLIENT_TIMEOUT.as_secs());
        return;
    }
    loop {
        // The sender lives in the service, so waiting cannot fail.
        let _ = clients.wait_for(|count| *count == 0).await;
        let another = clients.wait_for(|count| *count > 0);
        if tokio::time::timeout(LAST_CLIENT_GRACE, another).await.is_err() {
            return;
        }
    }
}

/// Attributes the waiting of clients to its causes, while there are streams.
async fn sample_waits(service: Arc<Service>) {
    let mut ticks = tokio::time::interval(WaitSampler::TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut clients = service.admissions.subscribe();
    let mut sampler = WaitSampler::new(Instant::now());
    loop {
        if *clients.borrow() == 0 {
            let _ = clients.wait_for(|count| *count > 0).await;
            sampler = WaitSampler::new(Instant::now());
        }
        ticks.tick().await;
        let now = Instant::now();
        let elapsed = sampler.tick(now);
        let stages = service.pipeline.stages();
        service.streams.observe(now, |stream| {
            let ring = stream.ring();
            WaitSampler::attribute(elapsed, ring.client_waiting(), ring.slots_by_state(), stages, stream.counters());
        });
    }
}

impl Service {
    /// Whether users of id `uid` may connect.
    fn check_user(&self, peer: Peer) -> Result<()> {
        let own = rustix::process::geteuid().as_raw();
        if peer.uid == own || self.options.allow_uids.contains(&peer.uid) {
            return Ok(());
        }
        tracing::warn!("refused a client of uid {}", peer.uid);
        Err(Error::config(format!(
            "this sidecar serves uid {own}, not uid {}: ask its operator for --allow-uid",
            peer.uid
        )))
    }

    /// One line on what it does.
    fn words(&self) -> String {
        let streams = self.streams.status(self.pipeline.stages());
        let rows_per_s: f64 = streams.iter().map(|stream| stream.rows_per_s).sum();
        let (connections, _, _) = self.admissions.counts();
        format!("{connections} connections, {} streams, {rows_per_s:.0} rows/s", streams.len())
    }

    /// What it tells a client that asks.
    fn status(&self) -> ServiceStatus {
        let stages = self.pipeline.stages();
        let streams = self.streams.status(stages);
        let ring_bytes = streams.iter().map(|stream| stream.ring_bytes).sum();
        let (open, limit, refused) = self.admissions.counts();
        ServiceStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            socket: self.socket.clone(),
            state: if self.drain.reason().is_some() { ServiceState::Draining } else { ServiceState::Serving },
            private: self.options.private,
            uptime_s: self.started.elapsed().as_secs_f64(),
            workers: self.workers,
            reader: self.pipeline.reader(),
            memory: MemoryStatus::of_process(ring_bytes, self.pipeline.arena_bytes()),
            connections: ConnectionStatus { open: open.saturating_sub(1), limit, refused },
            stages: stages.figures(),
            streams,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_service_maps_no_files() {
        let folder = tempfile::tempdir().expect("folder");
        let options = ServeOptions {
            socket: Some(folder.path().join("socket")),
            workers: Some(1),
            reader: ReaderChoice::Mmap,
            ..ServeOptions::default()
        };
        let error = serve(options, |_| panic!("it must not be ready")).expect_err("refused").to_string();
        assert!(error.starts_with("the reader mmap is for private sidecars"), "{error}");
    }

    #[test]
    fn a_service_without_a_socket_says_where_one_comes_from() {
        let error =
            serve(ServeOptions::default(), |_| panic!("it must not be ready")).expect_err("refused").to_string();
        for way in ["--socket", "--config", "systemd"] {
            assert!(error.contains(way), "{error}");
        }
    }
}
