//! The `feedline` command as a library, so that the Python wheel carries it too.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command with `arguments`, the program's name first.
pub fn main_from(_arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::SUCCESS
}
