//! Waiting on a word of memory that several processes share.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The word no longer held the value, or somebody woke us; look again.
    Woken,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while `word` holds `seen`, at most for `timeout`. Wakes may be spurious.
pub fn wait(word: &AtomicU32, seen: u32, timeout: Duration) -> io::Result<Wait> {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
    // Not PRIVATE: the waker may be in another process.
    match futex::wait(word, Flags::empty(), seen, Some(&timeout)) {
        Ok(()) | Err(Errno::AGAIN) => Ok(Wait::Woken),
        Err(Errno::TIMEDOUT) => Ok(Wait::TimedOut),
        Err(Errno::INTR) => Ok(Wait::Interrupted),
        Err(error) => Err(error.into()),
    }
}

/// Wakes everybody who sleeps on `word`.
pub fn wake_all(word: &AtomicU32) -> io::Result<()> {
    futex::wake(word, Flags::empty(), i32::MAX as u32)?;
    Ok(())
}
