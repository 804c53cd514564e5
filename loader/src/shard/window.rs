//! Small reads at growing offsets of a file: a window that is read ahead only as far as it pays.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::tar::BLOCK_BYTES;

/// Window after a hop over a body: a header, and the headers of small members that may follow it.
const HOP_BYTES: u64 = 2048;

/// Windows end at multiples of this, the page.
const PAGE_BYTES: u64 = 4096;

/// Largest window, reached by reading on without hops.
const WINDOW_BYTES_MAX: u64 = 256 << 10;

/// Something that can be read at an offset.
pub(super) trait ReadAt {
    /// Reads some bytes at `offset`; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// The window over `source`.
#[derive(Debug)]
pub(super) struct Window<'a, S: ?Sized> {
    source: &'a S,
    start: u64,
    bytes: Vec<u8>,
    grown_bytes: u64,
}

impl<'a, S: ReadAt + ?Sized> Window<'a, S> {
    pub(super) fn new(source: &'a S) -> Self {
        Self { source, start: 0, bytes: Vec::new(), grown_bytes: HOP_BYTES }
    }

    /// The block at `offset`, or the bytes before the end where there are fewer.
    pub(super) fn block(&mut self, offset: u64) -> io::Result<&[u8]> {
        self.bytes(offset, BLOCK_BYTES as usize)
    }

    /// `count` bytes at `offset`, or those before the end where there are fewer.
    pub(super) fn bytes(&mut self, offset: u64, count: usize) -> io::Result<&[u8]> {
        let end = self.start + self.bytes.len() as u64;
        if offset < self.start || offset.saturating_add(count as u64) > end {
            let adjacent = (self.start..=end).contains(&offset);
            self.grown_bytes = if adjacent { (self.grown_bytes * 2).min(WINDOW_BYTES_MAX) } else { HOP_BYTES };
            self.fill(offset, self.grown_bytes.max(count as u64))?;
        }
        let from = usize::try_from(offset - self.start).expect("inside the window");
        let rest = &self.bytes[from..];
        Ok(&rest[..count.min(rest.len())])
    }

    /// Moves the window to `offset`, at least `bytes_min` long unless the end comes first.
    fn fill(&mut self, offset: u64, bytes_min: u64) -> io::Result<()> {
        let end = offset.saturating_add(bytes_min).checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        self.start = offset;
        self.bytes.resize(usize::try_from(end - offset).map_err(io::Error::other)?, 0);
        let mut filled = 0;
        while filled < self.bytes.len() {
            match self.source.read_at(&mut self.bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.bytes.clear();
                    return Err(error);
                }
            }
        }
        self.bytes.truncate(filled);
        Ok(())
    }
}
