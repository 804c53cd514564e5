//! Which reader is wished for, and which one it became.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::sys::memory::Mebibytes;
use crate::sys::uring::TaskRun;

/// Which reader to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReaderChoice {
    /// io_uring, past the page cache once the files are larger than the memory; or pread where io_uring cannot be had.
    #[default]
    Auto,
    /// io_uring through the page cache, or an error that says why not.
    Uring,
    /// io_uring past the page cache on every mount that allows it, or an error that says why there is no io_uring.
    UringDirect,
    /// A pool of threads that call pread.
    Pread,
    /// A pool of threads that copy from maps of the files: not for files that others may change, see
    /// [`ReaderChoice::is_for_private_use`].
    Mmap,
}

impl ReaderChoice {
    const ALL: [(&'static str, Self); 5] = [
        ("auto", Self::Auto),
        ("uring", Self::Uring),
        ("uring-direct", Self::UringDirect),
        ("pread", Self::Pread),
        ("mmap", Self::Mmap),
    ];

    /// True when a service that several users share must not use it: what happens to a mapped file happens to all.
    pub fn is_for_private_use(self) -> bool {
        self == Self::Mmap
    }
}

const NAMES: &str = "auto, uring, uring-direct, pread or mmap";

impl FromStr for ReaderChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text).map(|(_, choice)| choice);
        found.ok_or_else(|| Error::config(format!("there is no reader {text:?}: choose {NAMES}")))
    }
}

impl fmt::Display for ReaderChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = Self::ALL.into_iter().find(|(_, choice)| choice == self).expect("all are listed");
        formatter.write_str(name)
    }
}

/// Which backend a reader has, with what, and why. Its words are for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReaderReport {
    /// io_uring.
    Uring {
        /// Reads in flight at most.
        queue: u32,
        /// When completions are worked on.
        task_run: TaskRun,
        /// Places in the table of registered files; files beyond it are read by descriptor.
        registered_files: u32,
        /// Bytes of the arena that are registered.
        registered_bytes: usize,
        /// Which files are read past the page cache; `None` when that was not asked for.
        direct: Option<DirectReport>,
        /// What could not be had and why, as clauses.
        notes: Vec<String>,
    },
    /// Threads that call pread.
    Pread {
        /// Threads at most; they are started as they are needed.
        threads: u32,
        /// Why it is not io_uring; `None` when pread was asked for.
        fallback: Option<String>,
    },
    /// Threads that copy from maps.
    Mmap {
        /// Threads at most; they are started as they are needed.
        threads: u32,
    },
}

/// Which files a reader reads directly, past the page cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectReport {
    /// None, until the files together are larger than the memory that can be had.
    NotYet {
        /// That memory, if anybody knows.
        memory_bytes: Option<u64>,
    },
    /// Those on mounts that allow it: all mounts on which a file was opened.
    Mounts(Vec<MountReport>),
}

/// How the files of one mount are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountReport {
    /// Where it is mounted.
    pub point: String,
    /// Directly in blocks of so many bytes, or why through the page cache.
    pub how: std::result::Result<u32, String>,
}

/// A report that can be read while its reader works. It changes when a mount is first used and when one turns out not
/// to allow direct reads, never per read.
#[derive(Debug)]
pub struct LiveReport(Mutex<ReaderReport>);

impl LiveReport {
    pub(super) fn new(report: ReaderReport) -> Self {
        Self(Mutex::new(report))
    }

    /// The report at this moment.
    pub fn read(&self) -> ReaderReport {
        self.lock().clone()
    }

    pub(super) fn set_direct(&self, report: DirectReport) {
        if let ReaderReport::Uring { direct, .. } = &mut *self.lock() {
            *direct = Some(report);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReaderReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaderReport {
    /// The backend's name: `io_uring`, `pread` or `mmap`.
    pub fn backend(&self) -> &'static str {
        match self {
            Self::Uring { .. } => "io_uring",
            Self::Pread { .. } => "pread",
            Self::Mmap { .. } => "mmap",
        }
    }
}

impl fmt::Display for ReaderReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.backend();
        match self {
            Self::Uring { queue, registered_files, registered_bytes, direct, notes, .. } => {
                write!(formatter, "{name} (queue {queue}")?;
                let mebibytes = *registered_bytes as f64 / f64::from(1 << 20);
                // Whole numbers without a fraction, small ones with what they need.
                let buffers = format!("{} MiB of buffers", (mebibytes * 100.0).round() / 100.0);
                match (*registered_files > 0, *registered_bytes > 0) {
                    (true, true) => write!(formatter, ", registered files and {buffers}")?,
                    (true, false) => write!(formatter, ", registered files")?,
                    (false, true) => write!(formatter, ", registered {buffers}")?,
                    (false, false) => {}
                }
                formatter.write_str(")")?;
                if let Some(direct) = direct {
                    write!(formatter, "; {direct}")?;
                }
                if !notes.is_empty() {
                    write!(formatter, ": {}", notes.join("; "))?;
                }
                Ok(())
            }
            Self::Pread { threads, fallback } => {
                write!(formatter, "{name} ({})", counted(*threads))?;
                match fallback {
                    Some(reason) => write!(formatter, ": io_uring is not available: {reason}"),
                    None => Ok(()),
                }
            }
            Self::Mmap { threads } => write!(formatter, "{name} ({})", counted(*threads)),
        }
    }
}

fn counted(threads: u32) -> String {
    format!("{threads} {}", if threads == 1 { "thread" } else { "threads" })
}

impl fmt::Display for DirectReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet { memory_bytes: Some(bytes) } => {
                write!(formatter, "through the page cache while the files fit the memory of {}", Mebibytes(*bytes))
            }
            Self::NotYet { memory_bytes: None } => formatter.write_str("through the page cache"),
            Self::Mounts(mounts) if mounts.is_empty() => formatter.write_str("past the page cache where mounts allow"),
            Self::Mounts(mounts) => {
                for (index, MountReport { point, how }) in mounts.iter().enumerate() {
                    formatter.write_str(if index > 0 { ", " } else { "" })?;
                    match how {
                        Ok(bytes) => write!(formatter, "{point} past the page cache (blocks of {bytes} bytes)")?,
                        Err(why) => write!(formatter, "{point} through the page cache ({why})")?,
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_and_their_names() {
        for (name, choice) in ReaderChoice::ALL {
            assert_eq!(name.parse::<ReaderChoice>().expect("a name"), choice);
            assert_eq!(choice.to_string(), name);
        }
        let error = "aio".parse::<ReaderChoice>().expect_err("no such reader");
        assert_eq!(error.to_string(), "there is no reader \"aio\": choose auto, uring, uring-direct, pread or mmap");
        assert!(ReaderChoice::ALL.iter().all(|(name, _)| NAMES.contains(name)));
    }

    #[test]
    fn words() {
        let uring = |registered_files, registered_bytes, notes: &[&str]| ReaderReport::Uring {
            queue: 64,
            task_run: TaskRun::Deferred,
            registered_files,
            registered_bytes,
            direct: None,
            notes: notes.iter().map(|&note| note.to_owned()).collect(),
        };
        let check = |report: ReaderReport, words: &str| assert_eq!(report.to_string(), words);
        check(uring(1024, 7 << 20, &[]), "io_uring (queue 64, registered files and 7 MiB of buffers)");
        check(uring(1024, 0, &["no buffers"]), "io_uring (queue 64, registered files): no buffers");
        check(uring(0, 1 << 19, &["a", "b"]), "io_uring (queue 64, registered 0.5 MiB of buffers): a; b");
        check(uring(0, 0, &[]), "io_uring (queue 64)");
        check(ReaderReport::Pread { threads: 16, fallback: None }, "pread (16 threads)");
        check(ReaderReport::Mmap { threads: 2 }, "mmap (2 threads)");
        let live = LiveReport::new(uring(0, 0, &["a"]));
        let check_direct = |direct, words: &str| {
            live.set_direct(direct);
            assert_eq!(live.read().to_string(), format!("io_uring (queue 64); {words}: a"));
        };
        check_direct(DirectReport::NotYet { memory_bytes: None }, "through the page cache");
        check_direct(
            DirectReport::NotYet { memory_bytes: Some(3 << 20) },
            "through the page cache while the files fit the memory of 3.0 MiB",
        );
        let mount = |point: &str, how| MountReport { point: point.to_owned(), how };
        check_direct(DirectReport::Mounts(Vec::new()), "past the page cache where mounts allow");
        check_direct(
            DirectReport::Mounts(vec![mount("/", Ok(512)), mount("/proc", Err("open says EINVAL".to_owned()))]),
            "/ past the page cache (blocks of 512 bytes), /proc through the page cache (open says EINVAL)",
        );
        check(
            ReaderReport::Pread { threads: 1, fallback: Some("no kernel".to_owned()) },
            "pread (1 thread): io_uring is not available: no kernel",
        );
    }
}
