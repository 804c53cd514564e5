//! What follows from the result of one attempt at a read: it is done, goes on, or has failed. The same for every
//! backend.

use std::io;
use std::time::Duration;

use super::ReadRequest;
use crate::sys::arena::Window;

/// Attempts in a row that bring nothing (`EAGAIN`, `EINTR`) before a read fails; their pauses add up to 1.8 s.
const FRUITLESS_MAX: u32 = 16;

/// The first attempts follow at once, the next ones after 1 ms, 2 ms and so on, up to this.
const PAUSE_MAX: Duration = Duration::from_millis(256);

/// Fruitless attempts that are repeated without a pause.
const FRUITLESS_FREE: u32 = 2;

/// Short reads may be as many as these, and one more for every [`SHORT_BYTES`] of the range: a file system that gives
/// less at a time is broken.
const SHORT_MAX: u32 = 64;
const SHORT_BYTES: u32 = 512;

/// How far a read has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// What was asked for.
    offset: u64,
    len: u32,
    /// What is read for it: the same, or more at both ends.
    window: Window,
    /// Bytes of the window that are there.
    filled: u32,
    fruitless: u32,
    short: u32,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Step {
    /// Every byte is there.
    Done,
    /// Read the rest, after a pause.
    Again(Duration),
    /// Give up: the storage says no.
    Failed(io::Error),
    /// Give up: patience has ended. The file is to be named.
    Exhausted(io::Error),
}

impl Progress {
    /// The range of `request`, of which nothing is read yet.
    pub(super) fn new(request: &ReadRequest) -> io::Result<Self> {
        let (offset, len) = (request.offset, request.buffer.len());
        // The kernel's offsets are signed; io_uring takes -1 for "wherever the file stands".
        if offset.checked_add(u64::from(len)).is_none_or(|end| i64::try_from(end).is_err()) {
            let message = format!("no file has {len} bytes at byte {offset}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Self { offset, len, window: request.buffer.exact(), filled: 0, fruitless: 0, short: 0 })
    }

    /// Reads `window` for the range, of which nothing is read yet.
    pub(super) fn widen(&mut self, window: Window) {
        debug_assert!(self.filled == 0 && window.len - window.lead >= self.len);
        self.window = window;
    }

    /// What is read.
    pub(super) fn window(&self) -> Window {
        self.window
    }

    /// Bytes of the window that are there already.
    pub(super) fn filled(&self) -> u32 {
        self.filled
    }

    /// Where in the file the rest starts.
    pub(super) fn offset(&self) -> u64 {
        self.offset - u64::from(self.window.lead) + u64::from(self.filled)
    }

    /// Bytes asked for that are there.
    fn have(&self) -> u32 {
        self.filled.saturating_sub(self.window.lead).min(self.len)
    }

    /// Takes the result of an attempt at the rest.
    pub(super) fn advance(&mut self, result: io::Result<u32>) -> Step {
        match result {
            Ok(bytes) => self.gained(bytes),
            Err(error) if is_passing(&error) => {
                self.fruitless += 1;
                if self.fruitless > FRUITLESS_MAX {
                    let (have, Self { offset, len, .. }) = (self.have(), self);
                    let message = format!(
                        "the storage gave {have} of {len} bytes at byte {offset}, then refused {FRUITLESS_MAX} times \
                         in a row: {error}"
                    );
                    return Step::Exhausted(io::Error::new(error.kind(), message));
                }
                let doublings = self.fruitless.checked_sub(FRUITLESS_FREE + 1);
                let pause = doublings.map_or(Duration::ZERO, |doublings| Duration::from_millis(1 << doublings.min(16)));
                Step::Again(pause.min(PAUSE_MAX))
            }
            Err(error) => Step::Failed(error),
        }
    }

    fn gained(&mut self, bytes: u32) -> Step {
        self.filled += bytes;
        assert!(self.filled <= self.window.len, "the kernel read {} bytes of {}", self.filled, self.window.len);
        // The end of a file may cut the window short, but not the range.
        if self.filled >= self.window.lead + self.len {
            return Step::Done;
        }
        let (have, Self { offset, len, .. }) = (self.have(), *self);
        if bytes == 0 {
            let message = format!("the file ends too early: have {have} of {len} bytes at byte {offset}");
            return Step::Failed(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        self.fruitless = 0;
        self.short += 1;
        if self.short > SHORT_MAX + len / SHORT_BYTES {
            let message = format!("the storage took {} reads for {have} of {len} bytes at byte {offset}", self.short);
            return Step::Exhausted(io::Error::other(message));
        }
        Step::Again(Duration::ZERO)
    }
}

/// True for errors after which the same attempt may succeed.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// In tests, every so many results are replaced by `EAGAIN` and by short reads in turn (with 1, all by `EAGAIN`), and
/// direct reads are refused once so many have succeeded. Otherwise nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    #[cfg(test)]
    pub(super) every: u64,
    #[cfg(test)]
    pub(super) direct_reads_max: Option<u64>,
    #[cfg(test)]
    pub(super) results: std::sync::Arc<std::sync::atomic::AtomicU64>,
    #[cfg(test)]
    pub(super) direct_reads: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl Faults {
    #[cfg(not(test))]
    pub(super) fn apply(&self, result: io::Result<u32>, _direct: bool) -> io::Result<u32> {
        result
    }

    #[cfg(test)]
    pub(super) fn apply(&self, result: io::Result<u32>, direct: bool) -> io::Result<u32> {
        use std::sync::atomic::Ordering::Relaxed;
        let number = self.results.fetch_add(1, Relaxed) + 1;
        if direct && self.direct_reads_max.is_some_and(|max| self.direct_reads.load(Relaxed) >= max) {
            return Err(io::Error::from(rustix::io::Errno::INVAL));
        }
        if direct {
            self.direct_reads.fetch_add(1, Relaxed);
        }
        match (self.every > 0 && number.is_multiple_of(self.every), result) {
            (true, Ok(bytes)) if bytes > 1 && self.every > 1 && (number / self.every).is_multiple_of(2) => {
                Ok(bytes / 2)
            }
            (true, Ok(_)) => Err(io::Error::from(rustix::io::Errno::AGAIN)),
            (_, result) => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(len: u32) -> Progress {
        Progress { offset: 1000, len, window: Window { lead: 0, len }, filled: 0, fruitless: 0, short: 0 }
    }

    fn errno(error: rustix::io::Errno) -> io::Result<u32> {
        Err(error.into())
    }

    /// The steps that these results lead to, in short words.
    fn check(len: u32, results: Vec<io::Result<u32>>, expected: &str) {
        let mut progress = progress(len);
        let steps: Vec<String> = results
            .into_iter()
            .map(|result| match progress.advance(result) {
                Step::Done => "done".to_owned(),
                Step::Again(pause) => format!("again {}", pause.as_millis()),
                Step::Failed(error) | Step::Exhausted(error) => error.to_string(),
            })
            .collect();
        assert_eq!(steps.join(", "), expected);
    }

    #[test]
    fn a_window_wider_than_the_range() {
        let check = |len, window, results: &[u32], expected: &[Option<u64>]| {
            let mut read = progress(len);
            read.widen(window);
            assert_eq!(read.offset(), 1000 - u64::from(window.lead));
            // Where each next attempt starts; `None` when it is done.
            let steps = results.iter().map(|&bytes| match read.advance(Ok(bytes)) {
                Step::Done => None,
                Step::Again(_) => Some(read.offset()),
                Step::Failed(error) | Step::Exhausted(error) => panic!("{error}"),
            });
            assert_eq!(steps.collect::<Vec<_>>(), expected);
        };
        let window = Window { lead: 488, len: 1024 };
        check(24, window, &[1024], &[None]);
        // The file ends inside the window, right after the range.
        check(24, window, &[512], &[None]);
        check(25, window, &[512, 1], &[Some(1024), None]);
        check(100, window, &[100, 500], &[Some(612), None]);
        let mut read = progress(100);
        read.widen(window);
        assert!(matches!(read.advance(Ok(500)), Step::Again(_)));
        let Step::Failed(error) = read.advance(Ok(0)) else { panic!("the file has ended") };
        assert_eq!(error.to_string(), "the file ends too early: have 12 of 100 bytes at byte 1000");
    }

    #[test]
    fn steps() {
        use rustix::io::Errno;
        check(0, vec![Ok(0)], "done");
        check(10, vec![Ok(10)], "done");
        check(10, vec![Ok(4), Ok(6)], "again 0, done");
        check(10, vec![Ok(4), Ok(0)], "again 0, the file ends too early: have 4 of 10 bytes at byte 1000");
        check(10, vec![errno(Errno::AGAIN), errno(Errno::INTR), errno(Errno::AGAIN)], "again 0, again 0, again 1");
        check(10, vec![errno(Errno::IO)], "Input/output error (os error 5)");
    }

    #[test]
    fn patience_ends() {
        let mut read = progress(10);
        let mut pauses = Duration::ZERO;
        let error = loop {
            match read.advance(errno(rustix::io::Errno::AGAIN)) {
                Step::Again(pause) => pauses += pause,
                Step::Exhausted(error) => break error,
                Step::Failed(error) => panic!("{error}"),
                Step::Done => panic!("nothing was read"),
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains("refused 16 times"), "{error}");
        assert!(pauses > Duration::from_secs(1) && pauses < Duration::from_secs(3), "{pauses:?}");
        // Progress renews it.
        let mut read = progress(10);
        for _ in 0..9 {
            for _ in 0..FRUITLESS_MAX {
                assert!(matches!(read.advance(errno(rustix::io::Errno::AGAIN)), Step::Again(_)));
            }
            assert!(matches!(read.advance(Ok(1)), Step::Again(_)));
        }
        assert!(matches!(read.advance(Ok(1)), Step::Done));
        let mut drip = progress(100_000);
        let steps = (0..).take_while(|_| matches!(drip.advance(Ok(1)), Step::Again(_))).count();
        assert_eq!(steps, 64 + 195);
    }
}
