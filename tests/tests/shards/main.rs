//! Shards as real writers make them: GNU tar, Python's tarfile in its three formats, and the `tar` crate. Each is
//! indexed, and what the index says is read back and compared. Writers that are missing are skipped by name.

mod bench;
mod damage;
mod dataset;
mod policies;
mod tree;
mod writers;
