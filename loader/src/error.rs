//! The one error type. Variants part by what the caller can do about them.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, where, how much, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked for something that cannot be: fix the argument that the message names.
    #[error("{message}")]
    Config {
        /// What is wrong and how to mend it.
        message: String,
    },

    /// A shard's structure is damaged: mend or leave out the shard.
    #[error("{path}: at byte {offset}: {message}", path = path.display())]
    Shard {
        /// The shard.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// What was found there, with have and need.
        message: String,
    },

    /// A sample cannot be used and the job's rule is to stop.
    #[error("bad sample: {report}")]
    Sample {
        /// Which sample, and why.
        report: FaultReport,
    },

    /// More samples were bad than the budget allows: look at the table, mend the data or raise the budget.
    #[error("{message}")]
    Budget {
        /// The table of reasons.
        message: String,
    },

    /// The system refused an operation on a file.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// The verb: open, read, map, rename.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },

    /// The system refused an operation that has no path.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },

    /// The machine or a limit cannot hold what was asked: the message has the sum and the ways out.
    #[error("{message}")]
    Resources {
        /// Need, have, and the fixes.
        message: String,
    },

    /// The sidecar is alive but behind: wait longer, or look at the stall metrics.
    #[error("stalled: {message}")]
    Stalled {
        /// How long, and what was waited for.
        message: String,
    },

    /// The sidecar is gone: start it again and resume at the position in the message.
    #[error("{message}")]
    SidecarExit {
        /// How it ended, and where to resume.
        message: String,
    },

    /// The peer broke the protocol or speaks another version: use matching versions.
    #[error("protocol: {message}")]
    Protocol {
        /// What was received and what was expected.
        message: String,
    },

    /// The sidecar reported an error; `kind` says what the caller can do.
    #[error("{message}")]
    Remote {
        /// Which variant it was at the sidecar.
        kind: ErrorKind,
        /// Its words.
        message: String,
    },

    /// The wait was ended from outside (a signal handler raised).
    #[error("interrupted")]
    Interrupted,
}

/// The variants of [`Error`] as they travel between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each names the variant of Error that it stands for")]
pub enum ErrorKind {
    Config,
    Shard,
    Sample,
    Budget,
    Io,
    Resources,
    Stalled,
    SidecarExit,
    Protocol,
    Interrupted,
}

impl Error {
    /// An argument is wrong; `message` says which and how to mend it.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config { message: message.into() }
    }

    /// A shard is damaged at `offset`.
    pub fn shard(path: impl Into<PathBuf>, offset: u64, message: impl Into<String>) -> Self {
        Self::Shard { path: path.into(), offset, message: message.into() }
    }

    /// The system refused `action` on `path`.
    pub fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }

    /// The system refused `action`.
    pub fn system(action: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { action, source: source.into() }
    }

    /// The peer broke the protocol.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::Protocol { message: message.into() }
    }

    /// What the caller can do, as a word that travels.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config { .. } => ErrorKind::Config,
            Self::Shard { .. } => ErrorKind::Shard,
            Self::Sample { .. } => ErrorKind::Sample,
            Self::Budget { .. } => ErrorKind::Budget,
            Self::Io { .. } | Self::System { .. } => ErrorKind::Io,
            Self::Resources { .. } => ErrorKind::Resources,
            Self::Stalled { .. } => ErrorKind::Stalled,
            Self::SidecarExit { .. } => ErrorKind::SidecarExit,
            Self::Protocol { .. } => ErrorKind::Protocol,
            Self::Remote { kind, .. } => *kind,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}

/// Why one sample cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {message}")]
pub struct SampleFault {
    /// The kind of fault, counted under this name.
    pub class: FaultClass,
    /// Details: have and need, the value found.
    pub message: String,
}

impl SampleFault {
    /// A fault of `class`; `message` says what was found.
    pub fn new(class: FaultClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into() }
    }
}

/// The kinds of faults that a sample can have. Only I/O faults never qualify for quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// A field that the job asks for is not in the sample.
    MissingField,
    /// The field has no bytes.
    Empty,
    /// The bytes are of a format or a variant that is not decoded (HEIF, 12-bit or lossless JPEG, …).
    Unsupported,
    /// The data end too early.
    Truncated,
    /// The data contradict themselves.
    Corrupt,
    /// More pixels or bytes than the limit.
    TooLarge,
    /// A value that does not parse (a label that is no integer).
    BadValue,
    /// A value is serialised in another way than its dataset says, or in one that is never read.
    WrongWrapper,
    /// The system failed to read the bytes.
    Io,
    /// The data end too early, and the row has what there was because the job says so: no bad sample, and outside the
    /// budget, but counted and reported.
    Lenient,
}

impl FaultClass {
    /// Every class, in the order of the enum; `self as usize` is the place in it.
    pub const ALL: [Self; 10] = [
        Self::MissingField,
        Self::Empty,
        Self::Unsupported,
        Self::Truncated,
        Self::Corrupt,
        Self::TooLarge,
        Self::BadValue,
        Self::WrongWrapper,
        Self::Io,
        Self::Lenient,
    ];

    /// The name under which it is counted.
    pub fn name(self) -> &'static str {
        match self {
            Self::MissingField => "missing-field",
            Self::Empty => "empty",
            Self::Unsupported => "unsupported",
            Self::Truncated => "truncated",
            Self::Corrupt => "corrupt",
            Self::TooLarge => "too-large",
            Self::BadValue => "bad-value",
            Self::WrongWrapper => "wrong-wrapper",
            Self::Io => "io",
            Self::Lenient => "lenient",
        }
    }
}

impl std::fmt::Display for FaultClass {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// One bad sample, located: what a batch's report, the log and the quarantine proposal hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// The kind of fault.
    pub class: FaultClass,
    /// The shard's path.
    pub shard: String,
    /// The sample's key.
    pub key: String,
    /// The field that failed, empty when the whole sample did.
    pub field: String,
    /// Where the field's bytes start in the shard.
    pub offset: u64,
    /// Details.
    pub message: String,
    /// The sample's number in the dataset.
    pub sample: u64,
    /// The row of the batch that a substitute fills.
    pub row: u32,
}

impl std::fmt::Display for FaultReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { class, shard, key, field, offset, message, .. } = self;
        write!(formatter, "{shard}: key {key:?}, field {field:?}, byte {offset}: {class}: {message}")
    }
}
