//! Which file, in which state, an index was made from.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, StatxFlags};

use super::tar::BLOCK_BYTES;
use super::window::ReadAt;

/// What `stat` tells of a shard, as far as it changes when the shard does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileState {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// Seconds and nanoseconds of the last change of the contents.
    pub(super) modified: (i64, i64),
    /// Seconds and nanoseconds of the last change of the inode.
    pub(super) changed: (i64, i64),
}

impl FileState {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// The state of an open file, after reads of it. What is cached of a remote file is taken: it is as new as the bytes
    /// that were read, and nothing is sent.
    pub(super) fn after_reads(file: BorrowedFd<'_>) -> io::Result<Self> {
        let wanted = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
        match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted) {
            Ok(found) => Ok(Self {
                inode: found.stx_ino,
                bytes: found.stx_size,
                modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec.into()),
                changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec.into()),
            }),
            // Sandboxes of older programs do not know this call.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM | rustix::io::Errno::INVAL) => {
                let found = rustix::fs::fstat(file)?;
                Ok(Self {
                    inode: found.st_ino,
                    bytes: found.st_size.cast_unsigned(),
                    modified: (found.st_mtime, found.st_mtime_nsec.cast_signed()),
                    changed: (found.st_ctime, found.st_ctime_nsec.cast_signed()),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether this is the same contents: a change of the inode alone (a rename, a new mode) does not count.
    pub(super) fn same_contents(&self, other: &Self) -> bool {
        (self.inode, self.bytes, self.modified) == (other.inode, other.bytes, other.modified)
    }
}

impl fmt::Display for FileState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inode, bytes, modified: (seconds, nanoseconds), .. } = self;
        write!(formatter, "inode {inode}, {bytes} bytes, written at {seconds}.{nanoseconds:09}")
    }
}

/// A shard's state, and a fingerprint of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) state: FileState,
    /// Where the last header is; 0 in an archive without any.
    pub(super) last_header: u64,
    /// BLAKE3 of the first and the last header.
    pub(super) header_hash: [u8; 32],
}

impl Identity {
    /// Reads the ends of `source`, which is in `state`.
    pub(super) fn read<S: ReadAt + ?Sized>(source: &S, state: FileState, last_header: u64) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        for offset in [0, last_header] {
            let mut block = [0; BLOCK_BYTES as usize];
            let mut filled = 0;
            while filled < block.len() {
                match source.read_at(&mut block[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            hasher.update(&block[..filled]);
        }
        Ok(Self { state, last_header, header_hash: *hasher.finalize().as_bytes() })
    }
}
