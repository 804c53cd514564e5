//! `feedline status`: asks running sidecars what they do.
//!
//! The JSON is `{"sidecars": […], "silent": […]}`: what each told, as
//! [`ServiceStatus`] describes it and `tools/deploy/STATUS.md` lists it, and the sockets at which nobody answered.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use feedline_loader::serve::status::ServiceStatus;
use feedline_loader::{Error, Result, client};
use serde::Serialize;

use crate::status_table::{Paint, render};

/// Longest wait for one sidecar's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Show what running sidecars do: jobs, ranks, positions, rates, waiting, memory.
///
/// Asks the sidecar at --socket, else at FEEDLINE_SOCKET, else all that listen in this user's runtime folder. Fails where
/// none answers.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Socket of the sidecar.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one JSON value, with --watch one a line.
    #[arg(long)]
    json: bool,
    /// Ask again every SECONDS [default: 2] until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    watch: Option<u64>,
}

/// What was found out.
#[derive(Debug, Serialize)]
struct Found {
    sidecars: Vec<ServiceStatus>,
    silent: Vec<Silent>,
}

/// A socket at which nobody answered.
#[derive(Debug, Serialize)]
struct Silent {
    socket: PathBuf,
    reason: String,
}

/// Asks, prints, and with `--watch` begins anew.
pub fn run(arguments: &StatusArguments) -> Result<()> {
    let is_terminal = io::stdout().is_terminal();
    let paint = if is_terminal && std::env::var_os("NO_COLOR").is_none() { Paint::Colours } else { Paint::Plain };
    loop {
        let found = ask(arguments.socket.as_deref())?;
        let mut text = if arguments.json {
            serde_json::to_string(&found).expect("reports have string keys and finite numbers")
        } else {
            render(&found.sidecars, paint)
        };
        if arguments.watch.is_some() && is_terminal && !arguments.json {
            // Home, and clear what is there.
            text.insert_str(0, "\x1b[H\x1b[2J");
        }
        let mut stdout = io::stdout().lock();
        match writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush()) {
            // Whoever read it has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|source| Error::system("write the status", source))?,
        }
        if !arguments.json {
            for Silent { socket, reason } in &found.silent {
                eprintln!("{}: {reason}", socket.display());
            }
        }
        let Some(seconds) = arguments.watch else { return Ok(()) };
        thread::sleep(Duration::from_secs(seconds));
    }
}

/// Asks the sidecar that is named, or all that can be found. Fails where none answers.
fn ask(socket: Option<&Path>) -> Result<Found> {
    let answer = |path: &Path| client::status(path, ANSWER_TIMEOUT, &mut |_, _| Ok(()));
    let named = socket
        .map(Path::to_owned)
        .or_else(|| std::env::var_os("FEEDLINE_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from));
    if let Some(path) = named {
        return Ok(Found { sidecars: vec![answer(&path)?], silent: Vec::new() });
    }
    let folders = runtime_folders();
    let mut found = Found { sidecars: Vec::new(), silent: Vec::new() };
    for socket in folders.iter().flat_map(|folder| sockets_in(folder)) {
        match answer(&socket) {
            Ok(status) => found.sidecars.push(status),
            Err(error) => found.silent.push(Silent { socket, reason: error.to_string() }),
        }
    }
    if !found.sidecars.is_empty() {
        return Ok(found);
    }
    let looked: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let silent: String =
        found.silent.iter().map(|silent| format!("; {}: {}", silent.socket.display(), silent.reason)).collect();
    Err(Error::SidecarExit {
        message: format!(
            "no sidecar answers in {}{silent}; name the socket of one by --socket or FEEDLINE_SOCKET, or start one with \
             `feedline serve --socket PATH`",
            looked.join(" or ")
        ),
    })
}

/// Where sidecars of this user listen, unless they are told otherwise; as the Python package has it.
fn runtime_folders() -> Vec<PathBuf> {
    let own = PathBuf::from(format!("/tmp/feedline-{}", rustix::process::geteuid().as_raw()));
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|base| base.is_absolute());
    base.map(|base| base.join("feedline")).into_iter().chain([own]).collect()
}

/// The sockets in `folder`, by name.
fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut sockets: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "sock")).collect();
    sockets.sort();
    sockets
}
