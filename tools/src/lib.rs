//! The `feedline` command as a library, so that the Python wheel carries it too.
//!
//! One file per subcommand. Reports go to standard output, in words or with `--json` as one JSON value; logs, progress
//! and errors go to standard error. Exit codes: 0 done, 1 it failed, 2 the arguments ask for something that cannot be.

mod bars;
mod convert;
mod folder;
mod hashed_file;
mod inspect;
mod optimize;
mod output;
mod record;
mod serve;
mod serve_file;
mod status;
mod status_table;
mod verdict;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use feedline_loader::error::ErrorKind;

/// Feeds GPUs: reads training shards, decodes and augments them, hands finished batches to PyTorch.
#[derive(Debug, Parser)]
#[command(name = "feedline", bin_name = "feedline", version, propagate_version = true, max_term_width = 120)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::ServeArguments>),
    Status(status::StatusArguments),
    Convert(convert::ConvertArguments),
    Optimize(optimize::OptimizeArguments),
    Inspect(inspect::InspectArguments),
    Record(record::RecordArguments),
    Verdict(verdict::VerdictArguments),
}

/// Runs the command with `arguments`, the program's name first.
pub fn main_from(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(refusal) => {
            // Help and version are refusals too, with exit code 0; a closed pipe is no failure of theirs.
            let _ = refusal.print();
            return ExitCode::from(u8::try_from(refusal.exit_code()).unwrap_or(2));
        }
    };
    let done = match arguments.command {
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Optimize(arguments) => optimize::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::Verdict(arguments) => verdict::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("feedline: {error}");
            ExitCode::from(if error.kind() == ErrorKind::Config { 2 } else { 1 })
        }
    }
}
