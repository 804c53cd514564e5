//! Placeholder

/// How byte ranges are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderChoice {
    /// io_uring where the kernel has it.
    Auto,
    /// io_uring or an error.
    Uring,
    /// The pread pool.
    Pread,
}
