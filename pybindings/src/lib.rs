//! The native module of the Python package `feedline`.
//!
//! `wait` is the one door that releases the interpreter lock, `errors` the one map to exceptions, `batch` lends
//! slots through the buffer protocol and DLPack (`dlpack`), `loan` says until when, `page_lock` and `cuda` let a GPU read them, `stream` joins them into an iterator's native half. Everything that a user
//! meets is written in Python, in `python/feedline`.

mod anchor;
mod batch;
mod cuda;
mod dlpack;
mod errors;
mod geometry;
mod loan;
mod page_lock;
mod stream;
mod wait;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use feedline_loader::serve::quarantine::QuarantineList;
use feedline_loader::shard::{Missing, expand};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The native half of feedline: streams of batches from a sidecar.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::anchor::Anchor;
    #[pymodule_export]
    use super::batch::{BatchInfo, Field, Values};
    #[pymodule_export]
    use super::dlpack::View;
    #[pymodule_export]
    use super::geometry::{draw_geometry, draw_steps};
    #[pymodule_export]
    use super::stream::Stream;
    #[pymodule_export]
    use super::{check_spec, expand_shards, read_quarantine, run_command, usable_cores, version};
}

/// The version of the native module.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Runs the `feedline` command with `argv`, the program's name first, and returns its exit status.
#[pyfunction(name = "main")]
fn run_command(py: Python<'_>, argv: Vec<OsString>) -> u8 {
    let status = py.detach(|| feedline_tools::main_from(argv));
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == status).unwrap_or(1)
}

/// Raises ValueError, with the way out, when the job `spec` (JSON) asks for what cannot be.
#[pyfunction]
fn check_spec(py: Python<'_>, spec: &str) -> PyResult<()> {
    stream::parse_spec(py, spec).map(|_| ())
}

/// The shards that `patterns` (paths, braces, globs, ``::`` between, ``@`` before a list) name, in order, as absolute paths;
/// and what is said of those that are missing, where they are to be skipped.
#[pyfunction]
fn expand_shards(
    py: Python<'_>,
    patterns: Vec<String>,
    skip_missing: bool,
) -> PyResult<(Vec<OsString>, Option<String>)> {
    let missing = if skip_missing { Missing::Skip } else { Missing::Error };
    let expanded = expand(&patterns, missing).map_err(|error| errors::to_python(py, &error, None))?;
    Ok((expanded.shards.into_iter().map(PathBuf::into_os_string).collect(), expanded.missing))
}

/// The samples that lists (files of JSON lines, or folders of ``.jsonl`` files) leave out, as bytes that a stream takes,
/// and a hash of which they are.
#[pyfunction]
fn read_quarantine(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<(Bound<'_, PyBytes>, String)> {
    let list = QuarantineList::read(&paths).map_err(|error| errors::to_python(py, &error, None))?;
    Ok((PyBytes::new(py, &list.to_bytes()), list.hash()))
}

/// Cores that this process may use: the least of its affinity, its cpuset and its quota.
#[pyfunction]
fn usable_cores() -> PyResult<u32> {
    Ok(feedline_loader::sys::cores::CoreReport::read()?.usable())
}
