//! The service: lends streams to clients over a Unix socket.
//!
//! tokio serves this control plane and nothing else: [`protocol`] is what travels, [`connection`] one client's life,
//! [`beside`] the work that takes long, [`datasets`] the indexes that clients share, [`metrics`] the counters over HTTP. The data path is
//! [`crate::pipeline`]'s threads.

mod beside;
mod connection;
mod datasets;
mod lacking;
mod metrics;
pub mod protocol;
pub mod quarantine;
mod socket;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::pipeline::{Pipeline, PipelineOptions, Stream};
use crate::read::ReaderChoice;
use crate::ring::named;
use crate::shard::Links;
use crate::sys::cores::CoreReport;
use crate::telemetry::WaitSampler;
use datasets::Datasets;

/// How long a private sidecar waits for its first client.
const FIRST_CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a private sidecar outlives its last client, so that a trainer can close one stream and open another.
const LAST_CLIENT_GRACE: Duration = Duration::from_secs(1);

/// What a sidecar is told at its start.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where it listens.
    pub socket: PathBuf,
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
struct Service {
    options: ServeOptions,
    pipeline: Pipeline,
    workers: u32,
    datasets: Arc<Datasets>,
    streams: std::sync::Mutex<Vec<Arc<Stream>>>,
    /// Number of connected clients.
    clients: watch::Sender<usize>,
}

/// Serves until SIGTERM or SIGINT comes, or, when private, until the last client has gone. `ready` is called once it
/// listens.
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
    let cores = CoreReport::read().map_err(|source| Error::system("count the usable cores", source))?;
    let workers = options.workers.unwrap_or_else(|| cores.usable().saturating_sub(1)).max(1);
    let (listener, _socket_file) = socket::listen(&options.socket)?;
    let metrics_listener = match options.metrics {
        Some(address) => Some(metrics::listen(address).await?),
        None => None,
    };
    named::sweep();
    let pipeline = Pipeline::start(PipelineOptions {
        workers,
        reader: options.reader,
        nice: options.nice,
        memory_bytes: options.memory_bytes,
        cache_bytes: options.cache_bytes,
    })?;
    let report = ServeReport {
        listening: options.socket.clone(),
        metrics: metrics_listener.as_ref().and_then(|listener| listener.local_addr().ok()),
        pid: std::process::id(),
        workers,
        cores: cores.to_string(),
        reader: pipeline.reader(),
        memory: pipeline.stages().budget.to_string(),
        version: env!("CARGO_PKG_VERSION"),
    };
    let (clients, _) = watch::channel(0);
    let service = Arc::new(Service {
        // Where clients may only name what lies in some folders, links do not lead out of those.
        datasets: Arc::new(Datasets::new(
            options.cache_dir.clone(),
            if options.allow_roots.is_empty() { Links::Followed } else { Links::Confined },
        )),
        options,
        pipeline,
        workers,
        streams: std::sync::Mutex::default(),
        clients,
    });
    ready(&report);

    if let Some(listener) = metrics_listener {
        tokio::spawn(metrics::serve(listener, service.clone()));
    }
    tokio::spawn(sample_waits(service.clone()));
    let end = tokio::select! {
        accepted = accept(&listener, &service) => accepted,
        stopped = stop_signal() => stopped,
        () = last_client_gone(&service), if service.options.private => Ok(()),
    };
    for stream in service.open_streams() {
        service.pipeline.remove(&stream);
    }
    end
}

/// Accepts clients for ever.
async fn accept(listener: &tokio::net::UnixListener, service: &Arc<Service>) -> Result<()> {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                tokio::spawn(connection::serve(socket, service.clone()));
            }
            Err(error) => {
                // Out of descriptors, most likely: those that are connected go on, and some will close.
                tracing::warn!("cannot accept a client: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn stop_signal() -> Result<()> {
    let listen = |kind| signal(kind).map_err(|source| Error::system("listen for signals", source));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("terminated"),
        _ = interrupt.recv() => tracing::info!("interrupted"),
    }
    Ok(())
}

/// Returns when a private sidecar has nobody to serve.
async fn last_client_gone(service: &Service) {
    let mut clients = service.clients.subscribe();
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
    let mut clients = service.clients.subscribe();
    let mut sampler = WaitSampler::new(Instant::now());
    loop {
        if *clients.borrow() == 0 {
            let _ = clients.wait_for(|count| *count > 0).await;
            sampler = WaitSampler::new(Instant::now());
        }
        ticks.tick().await;
        let elapsed = sampler.tick(Instant::now());
        let stages = service.pipeline.stages();
        for stream in &*service.lock_streams() {
            let ring = stream.ring();
            WaitSampler::attribute(elapsed, ring.client_waiting(), ring.slots_by_state(), stages, stream.counters());
        }
    }
}

impl Service {
    fn lock_streams(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Stream>>> {
        self.streams.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn open_streams(&self) -> Vec<Arc<Stream>> {
        self.lock_streams().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_service_maps_no_files() {
        let folder = tempfile::tempdir().expect("folder");
        let options = ServeOptions {
            socket: folder.path().join("socket"),
            workers: Some(1),
            reader: ReaderChoice::Mmap,
            nice: 0,
            memory_bytes: None,
            cache_bytes: 0,
            metrics: None,
            private: false,
            cache_dir: None,
            allow_roots: Vec::new(),
            allow_uids: Vec::new(),
        };
        let error = serve(options, |_| panic!("it must not be ready")).expect_err("refused").to_string();
        assert!(error.starts_with("the reader mmap is for private sidecars"), "{error}");
    }
}
