//! The `feedline` command; all of it lives in the library, which the Python wheel carries too.

use std::process::ExitCode;

fn main() -> ExitCode {
    feedline_tools::main_from(std::env::args_os())
}
