//! The service. Minimal form for building the command; the real one replaces this file.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::error::Result;

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The Unix socket to listen on.
    pub socket: PathBuf,
    /// Decode threads.
    pub workers: Option<u32>,
    /// How byte ranges are read.
    pub reader: crate::read::ReaderChoice,
    /// Where to answer for metrics over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Ends with its users.
    pub private: bool,
    /// Where index files go.
    pub cache_dir: Option<PathBuf>,
    /// Folders that clients may read from.
    pub allow_roots: Vec<PathBuf>,
    /// Users that may connect besides the service's own.
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
    /// How shards are read, and why so.
    pub reader: String,
    /// Its version.
    pub version: &'static str,
}

/// Serves until it is told to stop.
pub fn serve(options: ServeOptions, ready: impl FnOnce(&ServeReport)) -> Result<()> {
    ready(&ServeReport {
        listening: options.socket,
        metrics: options.metrics,
        pid: std::process::id(),
        workers: options.workers.unwrap_or(1),
        reader: "none".into(),
        version: env!("CARGO_PKG_VERSION"),
    });
    Ok(())
}
