//! The connection that keeps a private sidecar alive between streams.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use feedline_loader::client;
use pyo3::prelude::*;

use crate::wait::wait;

/// Keeps a private sidecar alive while this object lives, and tells whether it still is.
#[pyclass(frozen, module = "feedline._native")]
pub struct Anchor {
    inner: Mutex<client::Anchor>,
    /// The sidecar's process, for messages.
    #[pyo3(get)]
    sidecar_pid: u32,
}

#[pymethods]
impl Anchor {
    /// Connects to the sidecar that listens on `socket`.
    #[new]
    fn connect(py: Python<'_>, socket: PathBuf) -> PyResult<Self> {
        let anchor = wait(py, None, |poll| client::Anchor::connect(&socket, poll))?;
        let sidecar_pid = anchor.sidecar_pid();
        Ok(Self { inner: Mutex::new(anchor), sidecar_pid })
    }

    /// Whether the sidecar has not closed this connection.
    fn is_alive(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).is_alive()
    }
}
