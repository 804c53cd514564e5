//! Where a trainer stands in its epoch, as far as the sidecar can know it: which of the opened batches it has taken.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A place in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamPlace {
    /// Epoch.
    pub epoch: u64,
    /// The batch's number in it, counted from where the epoch was started.
    pub batch: u64,
    /// Global position at which a resume with this batch would start.
    pub position: u64,
}

/// The places of the batches that were opened last, as many as there are slots.
#[derive(Debug)]
pub(super) struct Places {
    // Taken once a batch by the feeder, and by whoever asks for the status.
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    opened: VecDeque<StreamPlace>,
    slots: usize,
    /// The place after the last opened batch.
    end: StreamPlace,
}

impl Places {
    pub(super) fn new(slots: u32) -> Self {
        let slots = slots as usize;
        let opened = VecDeque::with_capacity(slots);
        Self { inner: Mutex::new(Inner { opened, slots, end: StreamPlace::default() }) }
    }

    /// The batch was opened that follows the last one; a resume after it starts at `end_position`.
    pub(super) fn opened(&self, epoch: u64, batch: u64, end_position: u64) {
        let mut inner = self.lock();
        let position = if epoch == inner.end.epoch { inner.end.position } else { 0 };
        if inner.opened.len() == inner.slots {
            inner.opened.pop_front();
        }
        inner.opened.push_back(StreamPlace { epoch, batch, position });
        inner.end = StreamPlace { epoch, batch: batch + 1, position: end_position };
    }

    /// The stream was sent to `position` of `epoch`.
    pub(super) fn sought(&self, epoch: u64, position: u64) {
        let mut inner = self.lock();
        inner.opened.clear();
        inner.end = StreamPlace { epoch, batch: 0, position };
    }

    /// The place of the trainer, who has not taken the last `count` opened batches.
    pub(super) fn behind(&self, count: u32) -> StreamPlace {
        let inner = self.lock();
        // The slots are counted at another moment than this: more may be said to be untaken than were opened.
        let first = inner.opened.len().saturating_sub(count as usize);
        inner.opened.get(first).copied().unwrap_or(inner.end)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_is_behind_what_it_has_not_taken() {
        let places = Places::new(3);
        let check = |count, epoch, batch, position| {
            assert_eq!(places.behind(count), StreamPlace { epoch, batch, position }, "{count} not taken");
        };
        check(0, 0, 0, 0);
        places.sought(2, 40);
        check(0, 2, 0, 40);
        check(2, 2, 0, 40);
        for batch in 0..4 {
            places.opened(2, batch, 50 + 10 * batch);
        }
        check(0, 2, 4, 80);
        check(1, 2, 3, 70);
        check(3, 2, 1, 50);
        // Only three are remembered: a ring of three slots holds no more.
        check(4, 2, 1, 50);
        places.opened(3, 0, 10);
        check(1, 3, 0, 0);
        check(2, 2, 3, 70);
        places.sought(0, 0);
        check(3, 0, 0, 0);
    }
}
