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

/// What came up.
#[derive(Debug, Clone, Serialize)]
pub struct ServeReport {
    /// The socket.
    pub socket: PathBuf,
}

impl std::fmt::Display for ServeReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "serving on {}", self.socket.display())
    }
}

/// Serves until it is told to stop.
pub fn serve(options: ServeOptions, ready: impl FnOnce(&ServeReport)) -> Result<()> {
    ready(&ServeReport { socket: options.socket });
    Ok(())
}
