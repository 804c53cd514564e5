//! Small reads at growing offsets of a file: a window that is read ahead only as far as it pays.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::tar::BLOCK_BYTES;

/// Window after a hop over a body: a header, and the headers of small members that may follow it.
const HOP_BYTES: u64 = 2048;

/// A hop up to this far is reading on: the bytes between cost less than another read does.
const NEAR_BYTES: u64 = 32 << 10;

/// Windows end at multiples of this, the page.
const PAGE_BYTES: u64 = 4096;

/// Largest window, reached by reading on without far hops.
const WINDOW_BYTES_MAX: u64 = 256 << 10;

/// Something that can be read at an offset.
pub(super) trait ReadAt {
    /// Reads some bytes at `offset`; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Where the first byte from `offset` on may be that is no zero, as far as that is known without reading.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn next_data(&self, offset: u64) -> u64 {
        // The position that this moves is used by nobody. Not all file systems know their holes.
        match rustix::fs::seek(self, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => u64::MAX,
            Err(_) => offset,
        }
    }
}

/// A source that fails once `stop` is set: nobody wants what is read any more.
#[derive(Debug)]
pub(super) struct UntilStopped<'a, S: ?Sized> {
    pub(super) source: &'a S,
    pub(super) stop: &'a AtomicBool,
}

impl<S: ReadAt + ?Sized> ReadAt for UntilStopped<'_, S> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        check_wanted(self.stop)?;
        self.source.read_at(buffer, offset)
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.source.next_data(offset)
    }
}

/// An error once `stop` is set.
pub(super) fn check_wanted(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) { Err(io::Error::other("nobody waits for it any more")) } else { Ok(()) }
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
            let is_near = (self.start..=end.saturating_add(NEAR_BYTES)).contains(&offset);
            self.grown_bytes = if is_near { (self.grown_bytes * 2).min(WINDOW_BYTES_MAX) } else { HOP_BYTES };
            self.fill(offset, self.grown_bytes.max(count as u64), count)?;
        }
        let from = usize::try_from(offset - self.start).expect("inside the window");
        let rest = &self.bytes[from..];
        Ok(&rest[..count.min(rest.len())])
    }

    /// As [`ReadAt::next_data`].
    pub(super) fn next_data(&self, offset: u64) -> u64 {
        self.source.next_data(offset)
    }

    /// Moves the window to `offset`, at least `bytes_min` long unless the end comes first. An error behind the first
    /// `bytes_wanted` is left to who wants what is there.
    fn fill(&mut self, offset: u64, bytes_min: u64, bytes_wanted: usize) -> io::Result<()> {
        let end = offset.saturating_add(bytes_min).checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        self.start = offset;
        self.bytes.resize(usize::try_from(end - offset).map_err(io::Error::other)?, 0);
        let mut filled = 0;
        while filled < self.bytes.len() {
            match self.source.read_at(&mut self.bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if filled >= bytes_wanted => break,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_of_files_are_known() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 30).expect("sparse");
        file.write_all_at(b"data", 1 << 20).expect("written");
        let found = file.next_data(0);
        // A file system that knows no holes says that there is data everywhere.
        assert!(found == 0 || (found <= 1 << 20 && found > (1 << 20) - (64 << 10)), "{found}");
        assert_eq!(file.next_data(1 << 20), 1 << 20);
        let behind = (1 << 20) + (64 << 10);
        assert!([u64::MAX, behind].contains(&file.next_data(behind)));
    }

    #[test]
    fn a_window_grows_while_hops_are_near() {
        struct Counting(std::cell::Cell<u32>);
        impl ReadAt for Counting {
            fn read_at(&self, buffer: &mut [u8], _: u64) -> io::Result<usize> {
                self.0.set(self.0.get() + 1);
                Ok(buffer.len())
            }
        }
        let reads = |hop: u64| {
            let source = Counting(0.into());
            let mut window = Window::new(&source);
            for sample in 0..100 {
                assert_eq!(window.block(sample * hop).expect("endless").len(), 512);
            }
            source.0.get()
        };
        assert!(reads(512) < 10, "{}", reads(512));
        assert!(reads(12 << 10) < 15, "{}", reads(12 << 10));
        assert_eq!(reads(64 << 10), 100);
    }

    #[test]
    fn an_error_ahead_is_told_when_it_is_reached() {
        struct Failing;
        impl ReadAt for Failing {
            fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
                let rest = usize::try_from(1000_u64.saturating_sub(offset)).expect("small");
                if rest == 0 { Err(io::Error::other("damaged")) } else { [7; 1000][..rest].read_at(buffer, 0) }
            }
        }
        let mut window = Window::new(&Failing);
        assert_eq!(window.block(0).expect("before it"), [7; 512]);
        assert_eq!(window.bytes(900, 100).expect("before it"), [7; 100]);
        assert!(window.block(512).is_err() && window.bytes(900, 101).is_err() && window.bytes(1000, 1).is_err());
    }

    #[test]
    fn what_nobody_waits_for_is_not_read() {
        let stop = AtomicBool::new(false);
        let source = UntilStopped { source: &b"bytes"[..], stop: &stop };
        assert_eq!(source.read_at(&mut [0; 9], 1).expect("wanted"), 4);
        stop.store(true, Ordering::Relaxed);
        assert!(source.read_at(&mut [0; 9], 1).expect_err("not wanted").to_string().contains("nobody waits"));
    }
}
