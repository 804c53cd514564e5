//! What benchmarks of cold storage share: an empty page cache, and what a kept run says of the storage.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::{self, said};

/// Writing here empties the page cache; not everyone may.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// How the page cache is emptied before each measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drop {
    /// The whole of it.
    All,
    /// The files' part, by `posix_fadvise`.
    Files,
}

impl Drop {
    /// The thorough way, where it is allowed.
    pub fn usual() -> Self {
        if std::fs::OpenOptions::new().write(true).open(DROP_CACHES).is_ok() { Self::All } else { Self::Files }
    }

    /// From a command line.
    pub fn parse(word: &str) -> Result<Self, String> {
        match word {
            "all" => Ok(Self::All),
            "files" => Ok(Self::Files),
            other => Err(format!("--drop {other}: all or files")),
        }
    }

    /// Empties it.
    pub fn run(self, files: &[PathBuf]) {
        let files = || files.iter().map(|path| File::open(path).expect("open a file"));
        files().for_each(|file| file.sync_all().expect("sync"));
        match self {
            Self::All => std::fs::write(DROP_CACHES, "1").expect("drop the page cache"),
            Self::Files => files().for_each(|file| {
                rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed).expect("drop a file");
            }),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::All => "the whole page cache is dropped (/proc/sys/vm/drop_caches)",
            Self::Files => "the files are dropped from the page cache (posix_fadvise DONTNEED)",
        }
    }
}

/// What `fio --version` says; `None` where there is no fio.
pub fn fio_version() -> Option<String> {
    let output = Command::new("fio").arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Lines for a README: the machine, the storage of `path`, how the cache is emptied, the versions, and the command of `bench`.
pub fn about(bench: &str, path: &Path, drop: Drop, fio: Option<&str>) -> String {
    let storage =
        said("findmnt", &["--noheadings", "--output", "SOURCE,FSTYPE,OPTIONS", "--target", &path.to_string_lossy()]);
    let (cold, fio) = (drop.words(), fio.unwrap_or("no fio"));
    format!("{}\n- Storage: {storage}.\n- Cold: before each measurement {cold}.\n- {fio}.", machine::about(bench))
}
