//! How many reads one device gets at once: more only while that brings more bytes a second.
//!
//! A disk without moving parts wants many at once, a rotating one or one with a cap on its operations may serve fewer
//! bytes the more it is asked. So the limit climbs by doubling from a modest start as long as throughput rises with it,
//! and when the first step up brings nothing, tries fewer. Only spans in which reads had to wait for the limit count;
//! while the device keeps up with what is asked, its limit says nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Reads at once at the start.
const START: u32 = 8;

/// A step up is kept when it brings so much more.
const GAIN_MIN: f64 = 1.03;

/// A step down is kept when it brings so much more: fewer reads at once are no aim of their own.
const GAIN_DOWN_MIN: f64 = 1.10;

/// A settled limit is tried again when throughput has changed by so much: other data, another load, a cache that filled.
const CHANGE_MIN: f64 = 1.5;

/// A span is measured over at least so many rounds of the limit and so long.
const ROUNDS_MIN: u64 = 4;
const SPAN_MIN: Duration = Duration::from_millis(50);

/// The limit of one device, and what it is judged by.
#[derive(Debug)]
pub(super) struct Depth {
    limit: u32,
    max: u32,
    phase: Phase,
    span: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// It stays as it was made.
    Fixed,
    /// The limit is new, and nothing is known of fewer or more.
    First,
    /// One step up from the limit `from`, which brought `rate`; `first` if that was the first step.
    Up { from: u32, rate: f64, first: bool },
    /// One step down from there.
    Down { from: u32, rate: f64 },
    /// Neither more nor fewer are better; `rate` is `None` until it was measured at this limit.
    Settled { rate: Option<f64> },
}

/// Reads that have ended since `start`, all of them with others waiting.
#[derive(Debug)]
struct Span {
    start: Instant,
    reads: u64,
    bytes: u64,
}

impl Depth {
    /// A limit that adapts between 1 and `max`.
    pub(super) fn adaptive(max: u32) -> Self {
        let phase = if max == 1 { Phase::Fixed } else { Phase::First };
        Self { limit: START.min(max), max, phase, span: None }
    }

    /// A limit that stays.
    pub(super) fn fixed(max: u32) -> Self {
        Self { limit: max, max, phase: Phase::Fixed, span: None }
    }

    /// Reads that may be in flight at once.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// A read of so many bytes has ended by `now`; `waited` if another one waits for its place.
    pub(super) fn ended(&mut self, bytes: u32, waited: bool, now: Instant) {
        if self.phase == Phase::Fixed {
            return;
        }
        if !waited {
            self.span = None;
            return;
        }
        let Some(span) = &mut self.span else {
            self.span = Some(Span { start: now, reads: 0, bytes: 0 });
            return;
        };
        span.reads += 1;
        span.bytes += u64::from(bytes);
        let elapsed = now.saturating_duration_since(span.start);
        if span.reads >= ROUNDS_MIN * u64::from(self.limit) && elapsed >= SPAN_MIN {
            let rate = span.bytes as f64 / elapsed.as_secs_f64();
            let before = self.limit;
            (self.limit, self.phase) = self.judge(rate);
            if self.limit != before {
                tracing::debug!("{before} reads at once: {:.1} MB/s; now {}", rate / 1e6, self.limit);
            }
            self.span = None;
        }
    }

    /// The next limit after this one has brought `rate`.
    fn judge(&self, rate: f64) -> (u32, Phase) {
        let limit = self.limit;
        let (more, fewer) = ((limit * 2).min(self.max), (limit / 2).max(1));
        let settled = Phase::Settled { rate: Some(rate) };
        match self.phase {
            Phase::Fixed => (limit, Phase::Fixed),
            Phase::First if more > limit => (more, Phase::Up { from: limit, rate, first: true }),
            Phase::First => (fewer, Phase::Down { from: limit, rate }),
            Phase::Up { rate: before, .. } if rate >= before * GAIN_MIN => {
                if more > limit {
                    (more, Phase::Up { from: limit, rate, first: false })
                } else {
                    (limit, settled)
                }
            }
            Phase::Up { from, rate: before, first: true } if from > 1 => {
                (from / 2, Phase::Down { from, rate: before.max(rate) })
            }
            Phase::Down { rate: before, .. } if rate >= before * GAIN_DOWN_MIN => {
                if limit > 1 {
                    (fewer, Phase::Down { from: limit, rate })
                } else {
                    (limit, settled)
                }
            }
            Phase::Up { from, .. } | Phase::Down { from, .. } => (from, Phase::Settled { rate: None }),
            Phase::Settled { rate: None } => (limit, settled),
            Phase::Settled { rate: Some(before) } if rate > before * CHANGE_MIN || rate * CHANGE_MIN < before => {
                (limit, Phase::First)
            }
            Phase::Settled { .. } => (limit, self.phase),
        }
    }
}

/// The way to one device: as many reads pass as its limit says, the others wait in order.
#[derive(Debug)]
pub(super) struct Gate<T> {
    depth: Depth,
    inside: u32,
    waiting: VecDeque<T>,
}

impl<T> Gate<T> {
    /// A gate before which at most `capacity` reads wait.
    pub(super) fn new(depth: Depth, capacity: u32) -> Self {
        Self { depth, inside: 0, waiting: VecDeque::with_capacity(capacity as usize) }
    }

    /// Lets a read pass, or keeps it.
    pub(super) fn enter(&mut self, read: T) -> Option<T> {
        self.waiting.push_back(read);
        self.next()
    }

    /// The next read that may pass.
    pub(super) fn next(&mut self) -> Option<T> {
        if self.inside >= self.depth.limit() {
            return None;
        }
        let read = self.waiting.pop_front()?;
        self.inside += 1;
        Some(read)
    }

    /// A read of so many bytes that had passed has ended by `now`.
    pub(super) fn leave(&mut self, bytes: u32, now: Instant) {
        self.inside -= 1;
        self.depth.ended(bytes, !self.waiting.is_empty(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads of 100 kB from a device that is always asked for more than it may get, for 20 s of its time. `device_s` is
    /// the time that a read takes when so many are in flight. Returns the limits that were in force, in order.
    fn limits(mut depth: Depth, device_s: impl Fn(u32, u64) -> f64) -> Vec<u32> {
        let start = Instant::now();
        let (mut now, mut limits) = (start, vec![depth.limit()]);
        for read in 0.. {
            now += Duration::from_secs_f64(device_s(depth.limit(), read));
            depth.ended(100_000, true, now);
            if limits.last() != Some(&depth.limit()) {
                limits.push(depth.limit());
            }
            if now - start > Duration::from_secs(20) {
                break;
            }
        }
        limits
    }

    #[test]
    fn it_climbs_as_long_as_that_pays() {
        // A device of so many independent parts, each taking 5 ms a read.
        let parts = |parts: u32| move |limit: u32, _| 0.005 / f64::from(limit.min(parts));
        assert_eq!(limits(Depth::adaptive(64), parts(64)), [8, 16, 32, 64]);
        assert_eq!(limits(Depth::adaptive(64), parts(1000)), [8, 16, 32, 64]);
        assert_eq!(limits(Depth::adaptive(64), parts(16)), [8, 16, 32, 16]);
        assert_eq!(limits(Depth::adaptive(48), parts(1000)), [8, 16, 32, 48]);
        assert_eq!(limits(Depth::adaptive(48), parts(32)), [8, 16, 32, 48, 32]);
        // Eight are enough, and fewer are no better.
        assert_eq!(limits(Depth::adaptive(64), parts(8)), [8, 16, 4, 8]);
        assert_eq!(limits(Depth::adaptive(64), parts(1)), [8, 16, 4, 8]);
        assert_eq!(limits(Depth::adaptive(5), parts(5)), [5, 2, 5]);
        assert_eq!(limits(Depth::adaptive(1), parts(5)), [1]);
        assert_eq!(limits(Depth::fixed(32), parts(5)), [32]);
    }

    #[test]
    fn it_falls_where_more_make_it_worse() {
        // Operations that are capped: above four at once, each further one costs.
        let capped = |limit: u32, _| 0.001 * f64::from(limit.max(4)) / 4.0;
        assert_eq!(limits(Depth::adaptive(64), capped), [8, 16, 4, 2, 4]);
        // A rotating disk that serves whatever is in flight in turn: with several, nearly every read is of another
        // stream than the one before and costs 10 ms; alone, a stream has eight in a row.
        let rotating = |limit: u32, read: u64| {
            let switches = if limit == 1 { read.is_multiple_of(8) } else { !read.is_multiple_of(u64::from(limit)) };
            if switches { 0.011 } else { 0.001 }
        };
        assert_eq!(limits(Depth::adaptive(64), rotating).last(), Some(&1));
    }

    #[test]
    fn it_looks_again_when_the_device_has_changed() {
        // Slow and serial at first; after 400 reads, fast and parallel.
        let changes = |limit: u32, read: u64| if read < 400 { 0.01 } else { 0.004 / f64::from(limit) };
        assert_eq!(limits(Depth::adaptive(32), changes), [8, 16, 4, 8, 16, 32]);
    }

    #[test]
    fn spans_without_waiting_reads_say_nothing() {
        let mut depth = Depth::adaptive(64);
        let mut now = Instant::now();
        for read in 0..10_000 {
            now += Duration::from_millis(1);
            depth.ended(1000, read % 7 != 0, now);
        }
        assert_eq!(depth.limit(), START);
    }

    #[test]
    fn a_gate_keeps_order_and_limit() {
        let mut gate = Gate::new(Depth::fixed(2), 4);
        let now = Instant::now();
        assert_eq!([gate.enter(1), gate.enter(2), gate.enter(3), gate.enter(4)], [Some(1), Some(2), None, None]);
        assert_eq!(gate.next(), None);
        gate.leave(10, now);
        assert_eq!([gate.next(), gate.next()], [Some(3), None]);
        gate.leave(10, now);
        // One that comes later stands behind those that wait.
        assert_eq!([gate.enter(5), gate.enter(6)], [Some(4), None]);
        gate.leave(10, now);
        gate.leave(10, now);
        assert_eq!([gate.next(), gate.next(), gate.next()], [Some(5), Some(6), None]);
    }
}
