//! Hears of slots that come back to a named ring: its reader has no eventfd, only a word in the control memory.
//!
//! One thread a named ring sleeps on that word and passes each change on to the ring's eventfd, which the feeder watches
//! as it does for every ring. Should the word be lost or lie, nothing hangs: the feeder looks at all slots ten times a
//! second anyway.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::layout::Control;
use crate::sys::{eventfd, futex};

/// Longest sleep between two looks at whether the ring is gone.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// The thread; it ends with this.
#[derive(Debug)]
pub(super) struct Doorbell {
    control: Arc<Control>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Doorbell {
    /// Starts to listen on `control` and to signal `freed`.
    pub(super) fn start(control: Arc<Control>, freed: OwnedFd) -> io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let (heard, stop) = (Arc::clone(&control), Arc::clone(&stopped));
        // Now and not in the thread, which may begin to run after the first slot has come back.
        let seen = control.client().freed_signal.load(Ordering::Acquire);
        let thread = std::thread::Builder::new()
            .name("feedline-bell".to_owned())
            .spawn(move || listen(&heard, seen, &freed, &stop))?;
        Ok(Self { control, stopped, thread: Some(thread) })
    }
}

fn listen(control: &Control, mut seen: u32, freed: &OwnedFd, stopped: &AtomicBool) {
    let word = &control.client().freed_signal;
    while !stopped.load(Ordering::Acquire) {
        let waited = futex::wait(word, seen, LOOK_AFTER);
        let now = word.load(Ordering::Acquire);
        if now != seen || waited.is_err() {
            seen = now;
            let _ = eventfd::signal(freed.as_fd());
        }
        if waited.is_err() {
            // The page is lost: the feeder finds that out.
            return;
        }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        let word = &self.control.client().freed_signal;
        word.fetch_add(1, Ordering::Release);
        let _ = futex::wake_all(word);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
