//! The one map from the engine's errors to Python's exceptions.
//!
//! Built-in exceptions where they fit, the tree of `feedline.errors` for the rest. The classes live in Python, where
//! users meet them.

use feedline_loader::Error;
use feedline_loader::error::ErrorKind;
use pyo3::exceptions::{PyInterruptedError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Where a stream stood when it failed: what `SidecarExitError` carries for a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Epoch number.
    pub epoch: u64,
    /// Global samples of it that were handed over.
    pub position: u64,
}

/// The exception for `error`; `place` becomes attributes of a [`ErrorKind::SidecarExit`].
pub fn to_python(py: Python<'_>, error: &Error, place: Option<Place>) -> PyErr {
    let message = error.to_string();
    let class = match error.kind() {
        ErrorKind::Config => return PyValueError::new_err(message),
        ErrorKind::Io => return os_error(error, message),
        ErrorKind::Interrupted => return PyInterruptedError::new_err(message),
        ErrorKind::Resources => "ResourceError",
        ErrorKind::Stalled => "StallError",
        ErrorKind::SidecarExit => "SidecarExitError",
        ErrorKind::Sample => "SampleError",
        ErrorKind::Budget => "BudgetError",
        ErrorKind::Shard => "ShardError",
        ErrorKind::Protocol => "ProtocolError",
    };
    let place = place.filter(|_| error.kind() == ErrorKind::SidecarExit);
    raise(py, class, message, place).unwrap_or_else(|failure| failure)
}

/// The exception `feedline.errors.{class}` with `message`.
pub fn named(py: Python<'_>, class: &str, message: String) -> PyErr {
    raise(py, class, message, None).unwrap_or_else(|failure| failure)
}

fn raise(py: Python<'_>, class: &str, message: String, place: Option<Place>) -> PyResult<PyErr> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || PyModule::import(py, "feedline.errors").map(Bound::unbind))?;
    let class = module.bind(py).getattr(class)?.cast_into::<PyType>()?;
    let exception = class.call1((message,))?;
    if let Some(place) = place {
        exception.setattr("epoch", place.epoch)?;
        exception.setattr("position", place.position)?;
    }
    Ok(PyErr::from_value(exception))
}

/// `OSError` with the system's number, so that Python picks the subclass (`FileNotFoundError`, `PermissionError`, …).
fn os_error(error: &Error, message: String) -> PyErr {
    let number = match error {
        Error::Io { source, .. } | Error::System { source, .. } => source.raw_os_error(),
        _ => number_in(&message),
    };
    match number {
        Some(number) => PyOSError::new_err((number, message)),
        None => PyOSError::new_err(message),
    }
}

/// The number that `std::io::Error` writes at the end of its words: all that is left of it after a socket.
fn number_in(message: &str) -> Option<i32> {
    let (_, rest) = message.rsplit_once("(os error ")?;
    rest.split_once(')')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_number_survives_the_socket() {
        let check = |message: &str, number| assert_eq!(number_in(message), number, "{message}");
        check("cannot open /a.tar: No such file or directory (os error 2)", Some(2));
        check("cannot read /a (os error 3)/b.tar: Permission denied (os error 13)", Some(13));
        check("cannot open /a.tar: it is a folder", None);
        check("cannot open /a.tar: (os error x)", None);
        check("(os error 5", None);
    }
}
