//! The streams that are open, with what the service knows of each beside the stream itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::status::{SlotStatus, StreamStatus};
use crate::pipeline::{Stream, StreamPlace};
use crate::sys::socket::Peer;
use crate::telemetry::StageState;

/// Shortest time over which a rate is measured.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// The open streams.
#[derive(Debug, Default)]
pub(super) struct Registry {
    streams: Mutex<Vec<Registered>>,
}

#[derive(Debug)]
struct Registered {
    stream: Arc<Stream>,
    peer: Peer,
    opened: Instant,
    /// When its dataset's databases were opened, if it has any.
    snapshot: Option<Instant>,
    rate: Rate,
}

/// Rows a second, over the last window.
#[derive(Debug)]
struct Rate {
    rows: u64,
    since: Instant,
    rows_per_s: f64,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self { rows: 0, since: now, rows_per_s: 0.0 }
    }

    fn measure(&mut self, rows: u64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= RATE_WINDOW {
            self.rows_per_s = rows.saturating_sub(self.rows) as f64 / elapsed.as_secs_f64();
            (self.rows, self.since) = (rows, now);
        }
    }
}

impl Registry {
    /// Adds a stream of the client `peer`; `snapshot` is when its databases were opened.
    pub(super) fn add(&self, stream: Arc<Stream>, peer: Peer, snapshot: Option<Instant>) {
        let now = Instant::now();
        self.lock().push(Registered { stream, peer, opened: now, snapshot, rate: Rate::new(now) });
    }

    /// Takes a stream out.
    pub(super) fn remove(&self, stream: &Stream) {
        self.lock().retain(|other| other.stream.id() != stream.id());
    }

    /// All of them.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        self.lock().iter().map(|registered| registered.stream.clone()).collect()
    }

    /// Looks at each, and measures its rate.
    pub(super) fn observe(&self, now: Instant, mut look: impl FnMut(&Stream)) {
        for registered in &mut *self.lock() {
            look(&registered.stream);
            registered.rate.measure(rows(&registered.stream), now);
        }
    }

    /// What there is to tell of each, in the order in which they were opened.
    pub(super) fn status(&self, stages: &StageState) -> Vec<StreamStatus> {
        let now = Instant::now();
        self.lock().iter().map(|registered| registered.status(stages, now)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Registered>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rows(stream: &Stream) -> u64 {
    stream.counters().rows.load(std::sync::atomic::Ordering::Relaxed)
}

impl Registered {
    fn status(&self, stages: &StageState, now: Instant) -> StreamStatus {
        let (stream, spec) = (&self.stream, self.stream.spec());
        let figures = stream.figures(stages);
        let StreamPlace { epoch, batch, position } = stream.place();
        let slots = stream.ring().slots_by_state();
        let open_s = now.saturating_duration_since(self.opened).as_secs_f64();
        StreamStatus {
            job: spec.name.clone(),
            rank: spec.rank,
            world_size: spec.world_size,
            pid: self.peer.pid,
            uid: self.peer.uid,
            open_s,
            shards: stream.dataset().shard_count() as u64,
            samples: stream.dataset().sample_count(),
            epoch,
            position,
            epoch_positions: stream.plan().epoch_positions(),
            batch,
            batches_per_epoch: stream.plan().batch_count(0),
            batch_size: spec.batch_size,
            batches: figures.batches,
            rows: figures.rows,
            rows_per_s: self.rate.rows_per_s,
            rows_per_s_overall: if open_s > 0.0 { figures.rows as f64 / open_s } else { 0.0 },
            waiting_s: figures.waiting_s,
            full_s: figures.full_s,
            slots: SlotStatus { free: slots.free, filling: slots.filling, ready: slots.ready, held: slots.held },
            ring_bytes: stream.ring_bytes(),
            faults: figures.faults,
            replaced: figures.replaced,
            snapshot_age_s: self.snapshot.map(|opened| now.saturating_duration_since(opened).as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_its_window_alone() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rate = Rate::new(start);
        rate.measure(500, at(900));
        assert_eq!(rate.rows_per_s, 0.0, "too short to tell");
        rate.measure(1000, at(2000));
        assert_eq!(rate.rows_per_s, 500.0);
        rate.measure(9000, at(2500));
        assert_eq!(rate.rows_per_s, 500.0, "the last window's");
        rate.measure(1000, at(4000));
        assert_eq!(rate.rows_per_s, 0.0);
    }
}
