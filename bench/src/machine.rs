//! What a kept report says of where it was made.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that `--out` names. Cargo runs a benchmark in its package's folder; whoever typed it stood in the project's.
pub fn out_folder(word: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(word)
}

/// Lines for a README: the machine, the commit, and the command of `bench`.
pub fn about(bench: &str) -> String {
    let line = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let value = |line: &str| line.strip_prefix(name)?.split_once(':').map(|(_, value)| value.trim().to_owned());
        text.lines().find_map(value).unwrap_or("unknown".to_owned())
    };
    format!(
        "- Machine: {cores} cores of {model}, {memory} of memory; Linux {kernel}.\n\
         - Commit {commit}.\n\
         - Command: `cargo bench -p feedline-bench --bench {bench} -- {command}`",
        cores = std::thread::available_parallelism().map_or(0, usize::from),
        model = line("/proc/cpuinfo", "model name"),
        memory = line("/proc/meminfo", "MemTotal"),
        kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        commit = said("git", &["describe", "--always", "--dirty"]),
        command = std::env::args().skip(1).filter(|word| word != "--bench").collect::<Vec<_>>().join(" "),
    )
}

/// What a program says in one line.
pub(crate) fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().ok().filter(|output| output.status.success());
    output.map_or("unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
