//! Which reader is wished for, and which one it became.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::sys::uring::TaskRun;

/// Which reader to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReaderChoice {
    /// io_uring, or pread where it cannot be had.
    #[default]
    Auto,
    /// io_uring, or an error that says why not.
    Uring,
    /// A pool of threads that call pread.
    Pread,
}

impl ReaderChoice {
    const ALL: [(&'static str, Self); 3] = [("auto", Self::Auto), ("uring", Self::Uring), ("pread", Self::Pread)];
}

impl FromStr for ReaderChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text).map(|(_, choice)| choice);
        found.ok_or_else(|| Error::config(format!("there is no reader {text:?}: choose auto, uring or pread")))
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
}

impl ReaderReport {
    /// The backend's name: `io_uring` or `pread`.
    pub fn backend(&self) -> &'static str {
        match self {
            Self::Uring { .. } => "io_uring",
            Self::Pread { .. } => "pread",
        }
    }
}

impl fmt::Display for ReaderReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.backend();
        match self {
            Self::Uring { queue, registered_files, registered_bytes, notes, .. } => {
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
                if !notes.is_empty() {
                    write!(formatter, ": {}", notes.join("; "))?;
                }
                Ok(())
            }
            Self::Pread { threads, fallback } => {
                write!(formatter, "{name} ({threads} {})", if *threads == 1 { "thread" } else { "threads" })?;
                match fallback {
                    Some(reason) => write!(formatter, ": io_uring is not available: {reason}"),
                    None => Ok(()),
                }
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
        let error = "mmap".parse::<ReaderChoice>().expect_err("no such reader");
        assert_eq!(error.to_string(), "there is no reader \"mmap\": choose auto, uring or pread");
    }

    #[test]
    fn words() {
        let uring = |registered_files, registered_bytes, notes: &[&str]| ReaderReport::Uring {
            queue: 64,
            task_run: TaskRun::Deferred,
            registered_files,
            registered_bytes,
            notes: notes.iter().map(|&note| note.to_owned()).collect(),
        };
        let check = |report: ReaderReport, words: &str| assert_eq!(report.to_string(), words);
        check(uring(1024, 7 << 20, &[]), "io_uring (queue 64, registered files and 7 MiB of buffers)");
        check(uring(1024, 0, &["no buffers"]), "io_uring (queue 64, registered files): no buffers");
        check(uring(0, 1 << 19, &["a", "b"]), "io_uring (queue 64, registered 0.5 MiB of buffers): a; b");
        check(uring(0, 0, &[]), "io_uring (queue 64)");
        check(ReaderReport::Pread { threads: 16, fallback: None }, "pread (16 threads)");
        check(
            ReaderReport::Pread { threads: 1, fallback: Some("no kernel".to_owned()) },
            "pread (1 thread): io_uring is not available: no kernel",
        );
    }
}
