//! What a path is a shard of: found by its first bytes, never by its name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use super::compressed::Compression;
use crate::error::{Error, Result};

/// What a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardKind {
    /// A tar, read in place.
    Tar,
    /// A tar in gzip, zstd or xz.
    CompressedTar(Compression),
    /// An LMDB database: its file, or the folder of its `data.mdb`.
    Lmdb,
    /// A folder of files.
    Tree,
}

/// Bytes that are looked at.
const HEAD_BYTES: usize = 32;

/// Where LMDB's magic number stands in its first page, after the page's head.
const LMDB_MAGIC_OFFSET: usize = 16;

impl ShardKind {
    /// Looks at `path`. What is nothing else is taken for a tar, whose walk then says what is wrong.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(|source| Error::io("find", path, source))?;
        if metadata.is_dir() {
            let is_database = path.join("data.mdb").is_file();
            return Ok(if is_database { Self::Lmdb } else { Self::Tree });
        }
        let mut head = Vec::with_capacity(HEAD_BYTES);
        let read = File::open(path).and_then(|file| file.take(HEAD_BYTES as u64).read_to_end(&mut head));
        read.map_err(|source: io::Error| Error::io("read", path, source))?;
        Ok(match Self::of_head(&head) {
            // Bytes that say nothing: a database that is empty or damaged is told as one.
            Self::Tar if is_named_as_database(path) => Self::Lmdb,
            kind => kind,
        })
    }

    fn of_head(head: &[u8]) -> Self {
        const LMDB_MAGIC: u32 = 0xBEEF_C0DE;
        let magic = head.get(LMDB_MAGIC_OFFSET..LMDB_MAGIC_OFFSET + 4);
        match head {
            [0x1f, 0x8b, ..] => Self::CompressedTar(Compression::Gzip),
            // A frame, or one that is to be skipped, with which pzstd begins.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Self::CompressedTar(Compression::Zstd)
            }
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::CompressedTar(Compression::Xz),
            _ if magic == Some(&LMDB_MAGIC.to_ne_bytes()) => Self::Lmdb,
            _ => Self::Tar,
        }
    }
}

fn is_named_as_database(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "mdb" || extension == "lmdb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_decides() {
        let check = |head: &[u8], expected| assert_eq!(ShardKind::of_head(head), expected, "{head:x?}");
        check(b"", ShardKind::Tar);
        check(b"0001.jpg\0", ShardKind::Tar);
        check(b"\x1f\x8b\x08", ShardKind::CompressedTar(Compression::Gzip));
        check(b"\x28\xb5\x2f\xfd\x04", ShardKind::CompressedTar(Compression::Zstd));
        check(b"\x50\x2a\x4d\x18\x04", ShardKind::CompressedTar(Compression::Zstd));
        check(b"\xfd7zXZ\0\0", ShardKind::CompressedTar(Compression::Xz));
        let mut page = [0; 32];
        page[16..20].copy_from_slice(&0xBEEF_C0DE_u32.to_ne_bytes());
        check(&page, ShardKind::Lmdb);
        check(&page[..19], ShardKind::Tar);
    }
}
