//! A bound on what is in memory at once: who wants more waits until something was given back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// So many bytes, and no more.
pub struct Gate {
    limit: u64,
    taken: Mutex<u64>,
    changed: Condvar,
    stopped: AtomicBool,
}

impl Gate {
    /// Lets `limit` bytes through.
    pub fn new(limit: u64) -> Self {
        Self { limit, taken: Mutex::new(0), changed: Condvar::new(), stopped: AtomicBool::new(false) }
    }

    /// Takes `bytes` when there is room; what is larger than the limit is alone. False once stopped.
    pub fn take(&self, bytes: u64) -> bool {
        let mut taken = self.lock();
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return false;
            }
            if *taken == 0 || *taken + bytes <= self.limit {
                *taken += bytes;
                return true;
            }
            taken = self.changed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives `bytes` back that were taken.
    pub fn give_back(&self, bytes: u64) {
        *self.lock() -= bytes;
        self.changed.notify_all();
    }

    /// Ends all waits, now and later.
    pub fn stop(&self) {
        let taken = self.lock();
        self.stopped.store(true, Ordering::Relaxed);
        drop(taken);
        self.changed.notify_all();
    }

    /// Set once it is stopped.
    pub fn stopped(&self) -> &AtomicBool {
        &self.stopped
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        // Nothing under this lock can panic half-way.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let (gate, inside, most) = (Gate::new(10), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (gate, inside, most) = (&gate, &inside, &most);
                scope.spawn(move || {
                    for turn in 0..500 {
                        let bytes = (thread + turn) % 6 + 1;
                        assert!(gate.take(bytes));
                        most.fetch_max(inside.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
                        inside.fetch_sub(bytes, Ordering::SeqCst);
                        gate.give_back(bytes);
                    }
                });
            }
        });
        assert!((6..=10).contains(&most.into_inner()));
        assert!(gate.take(100), "alone");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.take(1));
            gate.stop();
            assert!(!waiting.join().expect("no panic"));
        });
        assert!(!gate.take(0));
    }
}
