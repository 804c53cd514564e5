//! Compressed tars: read forwards for the index, and unpacked whole before samples are read.
//!
//! There is no random access to a compressed stream, so offsets in such a shard's index count unpacked bytes, and the
//! shard is unpacked into an unnamed file of the cache folder before its samples are read. Shards should be few at a time
//! then: orders that go by shards see to it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::streams::Streams;
use super::window::{ReadAt, check_wanted};
use crate::error::{Error, Result};

/// How a tar is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Compression {
    Gzip,
    Zstd,
    Xz,
}

/// Unpacked bytes that can be looked back at: more than the largest window of headers.
const LOOK_BACK_BYTES: usize = 1 << 20;

/// Bytes unpacked at a time.
const CHUNK_BYTES: usize = 256 << 10;

impl Compression {
    /// Its name, for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        }
    }

    /// Whether a stream may begin with this byte.
    pub(super) const fn begins_with(self, byte: u8) -> bool {
        match self {
            Self::Gzip => byte == 0x1f,
            // A frame, or one that is to be skipped.
            Self::Zstd => matches!(byte, 0x28 | 0x50..=0x5f),
            Self::Xz => byte == 0xfd,
        }
    }
}

/// A compressed file, read at growing offsets of its unpacked bytes.
pub(super) struct Forwards<'a> {
    state: RefCell<State<'a>>,
    /// Set when nobody wants the bytes any more.
    stop: &'a AtomicBool,
}

struct State<'a> {
    unpacked: Streams<'a>,
    /// The last bytes that were unpacked, and where they start.
    recent: Vec<u8>,
    recent_offset: u64,
    is_over: bool,
}

impl<'a> Forwards<'a> {
    /// Starts at the first byte. Reads fail once `stop` is set.
    pub(super) fn new(file: File, compression: Compression, stop: &'a AtomicBool) -> Self {
        let unpacked = Streams::new(file, compression, stop);
        let state = State { unpacked, recent: Vec::new(), recent_offset: 0, is_over: false };
        Self { state: RefCell::new(state), stop }
    }
}

impl State<'_> {
    fn end(&self) -> u64 {
        self.recent_offset + self.recent.len() as u64
    }

    /// Unpacks some more, forgetting what lies too far back.
    fn advance(&mut self) -> io::Result<()> {
        if self.recent.len() >= LOOK_BACK_BYTES + CHUNK_BYTES {
            let forgotten = self.recent.len() - LOOK_BACK_BYTES;
            self.recent.drain(..forgotten);
            self.recent_offset += forgotten as u64;
        }
        let start = self.recent.len();
        self.recent.resize(start + CHUNK_BYTES, 0);
        let read = loop {
            match self.unpacked.read(&mut self.recent[start..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.recent.truncate(start + *read.as_ref().unwrap_or(&0));
        // An error that is not the system's is the stream's.
        let count = read.map_err(|error| match error.raw_os_error() {
            Some(_) => error,
            None => io::Error::new(io::ErrorKind::InvalidData, format!("the compressed stream is damaged: {error}")),
        })?;
        self.is_over = count == 0;
        Ok(())
    }
}

impl ReadAt for Forwards<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = &mut *self.state.borrow_mut();
        while state.end() <= offset && !state.is_over {
            check_wanted(self.stop)?;
            state.advance()?;
        }
        if offset > state.end() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the unpacked shard is cut off: it ends at byte {}", state.end()),
            ));
        }
        let Some(start) = offset.checked_sub(state.recent_offset) else {
            return Err(io::Error::other("a compressed shard can only be read forwards"));
        };
        let found = &state.recent[usize::try_from(start).expect("within the recent bytes")..];
        let count = found.len().min(buffer.len());
        buffer[..count].copy_from_slice(&found[..count]);
        Ok(count)
    }
}

/// Unpacks the shard at `path`, open as `file`, into an unnamed file of `folder`: at least its first `bytes_wanted` bytes,
/// so that neither damage behind the samples nor what was joined on to fill a disk matters. Ends early, with an error, once
/// `stop` is set.
pub(super) fn unpack(
    path: &Path,
    file: File,
    compression: Compression,
    folder: &Path,
    bytes_wanted: u64,
    stop: &AtomicBool,
) -> Result<File> {
    let fail = |action, source| Error::io(action, path, source);
    let mut target = tempfile::tempfile_in(folder).map_err(|source| Error::io("make a file in", folder, source))?;
    let mut unpacked = Streams::new(file, compression, stop);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    while bytes < bytes_wanted {
        if stop.load(Ordering::Relaxed) {
            return Err(fail("unpack", io::Error::other("the sidecar ends")));
        }
        let count = match unpacked.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(fail("unpack", source)),
        };
        target.write_all(&chunk[..count]).map_err(|source| {
            Error::io("unpack a compressed shard into (FEEDLINE_CACHE names another folder)", folder, source)
        })?;
        bytes += count as u64;
    }
    if bytes < bytes_wanted {
        let message = format!("the unpacked shard ends at byte {bytes}, its samples at byte {bytes_wanted}");
        return Err(Error::shard(path, bytes, message));
    }
    Ok(target)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::shard) fn packed(compression: Compression, bytes: &[u8]) -> Vec<u8> {
        match compression {
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(bytes).expect("in memory");
                encoder.finish().expect("in memory")
            }
            Compression::Zstd => zstd::stream::encode_all(bytes, 1).expect("in memory"),
            Compression::Xz => {
                let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
                encoder.write_all(bytes).expect("in memory");
                encoder.finish().expect("in memory")
            }
        }
    }

    fn file(bytes: &[u8]) -> File {
        use std::io::Seek;
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        file.rewind().expect("a plain file");
        file
    }

    #[test]
    fn streams_are_read_forwards_and_unpacked_whole() {
        let bytes: Vec<u8> = (0..5_000_000_u32).map(|place| (place / 7 % 251) as u8).collect();
        for compression in [Compression::Gzip, Compression::Zstd, Compression::Xz] {
            // Two streams, one after the other, as parallel compressors write them.
            let (front, back) = bytes.split_at(3_000_001);
            let packed = [packed(compression, front), packed(compression, back)].concat();
            let go = AtomicBool::new(false);
            let forwards = Forwards::new(file(&packed), compression, &go);
            for offset in [0, 10, 512, 300_000, 299_000, 2_999_990, 4_999_000, 4_999_999, 5_000_000] {
                let mut found = [0; 600];
                let mut count = 0;
                while count < found.len() {
                    match forwards.read_at(&mut found[count..], (offset + count) as u64).expect("read") {
                        0 => break,
                        more => count += more,
                    }
                }
                let end = bytes.len().min(offset + 600);
                assert_eq!(found[..count], bytes[offset..end], "{compression:?} {offset}");
            }
            assert!(forwards.read_at(&mut [0; 8], 5_000_001).is_err());
            assert!(forwards.read_at(&mut [0; 8], 0).is_err());

            let folder = tempfile::tempdir().expect("a folder");
            let path = Path::new("/s.tar.x");
            let end = bytes.len() as u64;
            let unpacked = unpack(path, file(&packed), compression, folder.path(), end, &go).expect("sound");
            assert_eq!(unpacked.metadata().expect("there").len(), bytes.len() as u64);
            let cut = &packed[..packed.len() * 7 / 8];
            let refused = unpack(path, file(cut), compression, folder.path(), end, &go);
            assert!(refused.expect_err("cut").to_string().contains("cannot unpack /s.tar.x"));
            let damaged_behind = unpack(path, file(cut), compression, folder.path(), 1_000_000, &go);
            assert!((1_000_000..end).contains(&damaged_behind.expect("enough").metadata().expect("there").len()));
            let short = unpack(path, file(&packed), compression, folder.path(), end + 1, &go);
            assert!(short.expect_err("short").to_string().contains("ends at byte 5000000"));
            let stop = AtomicBool::new(true);
            assert!(unpack(path, file(&packed), compression, folder.path(), end, &stop).is_err());
            assert!(Forwards::new(file(&packed), compression, &stop).read_at(&mut [0; 8], 0).is_err());
            assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
        }
    }
}
