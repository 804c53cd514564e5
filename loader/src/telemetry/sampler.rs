//! Cuts a waiting client's time by cause: every tick the state of the stages is looked at, and the tick's length
//! goes to the cause that the state shows.
//!
//! The client measures exactly *how long* it waits; the sampler says *what for*. Sampling keeps the data path free
//! of it and costs some microseconds a tick.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::counters::{StageState, StreamCounters, nanoseconds};
use crate::ring::SlotCounts;

/// What a waiting client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitCause {
    /// Reads are in flight and workers are idle.
    Storage,
    /// Every worker is busy, or rows wait for one.
    Decode,
    /// The trainer holds every slot.
    Slots,
    /// None of the stages has anything to do yet: a stream starts or seeks.
    Start,
}

impl WaitCause {
    /// Every cause, in the order of the counters.
    pub const ALL: [Self; 4] = [Self::Storage, Self::Decode, Self::Slots, Self::Start];

    /// The name under which it is counted.
    pub fn name(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Decode => "decode",
            Self::Slots => "slots",
            Self::Start => "start",
        }
    }

    /// The cause that the state of stages and slots shows.
    pub fn of(stages: &StageState, slots: SlotCounts) -> Self {
        let busy = stages.workers_busy.load(Relaxed);
        if slots.held > 0 && slots.free == 0 && slots.filling == 0 && slots.ready == 0 {
            Self::Slots
        } else if busy >= stages.workers || stages.decode_queue.load(Relaxed) > 0 {
            Self::Decode
        } else if stages.reads_in_flight.load(Relaxed) > 0 {
            Self::Storage
        } else if busy > 0 {
            // The last rows of a batch: workers idle because nothing more may be read before a slot is free.
            Self::Decode
        } else {
            Self::Start
        }
    }
}

/// Keeps the time of the last tick.
#[derive(Debug)]
pub struct WaitSampler {
    last: Instant,
}

impl WaitSampler {
    /// Time between ticks: fine enough for a share within a per cent after some seconds.
    pub const TICK: Duration = Duration::from_millis(10);

    /// Starts at `now`.
    pub fn new(now: Instant) -> Self {
        Self { last: now }
    }

    /// Ends a tick at `now`; the duration to attribute.
    pub fn tick(&mut self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.last);
        self.last = now;
        elapsed
    }

    /// Attributes `elapsed` for one stream.
    pub fn attribute(
        elapsed: Duration,
        client_waiting: bool,
        slots: SlotCounts,
        stages: &StageState,
        counters: &StreamCounters,
    ) {
        let ns = nanoseconds(elapsed);
        counters.sampled_ns.fetch_add(ns, Relaxed);
        if client_waiting && slots.ready == 0 {
            counters.waiting_ns[WaitCause::of(stages, slots) as usize].fetch_add(ns, Relaxed);
        } else if slots.free == 0 && slots.filling == 0 {
            counters.full_ns.fetch_add(ns, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reads: u32, queue: u32, busy: u32, slots: SlotCounts, expected: WaitCause) {
        let stages = StageState::new(2);
        stages.reads_in_flight.store(reads, Relaxed);
        stages.decode_queue.store(queue, Relaxed);
        stages.workers_busy.store(busy, Relaxed);
        assert_eq!(WaitCause::of(&stages, slots), expected);
    }

    #[test]
    fn causes_follow_from_the_stages() {
        let filling = SlotCounts { free: 1, filling: 3, ready: 0, held: 0 };
        let held = SlotCounts { free: 0, filling: 0, ready: 0, held: 4 };
        check(8, 0, 0, filling, WaitCause::Storage);
        check(8, 0, 1, filling, WaitCause::Storage);
        check(8, 0, 2, filling, WaitCause::Decode);
        check(0, 5, 1, filling, WaitCause::Decode);
        check(0, 0, 1, filling, WaitCause::Decode);
        check(0, 0, 0, held, WaitCause::Slots);
        check(0, 0, 0, filling, WaitCause::Start);
    }

    #[test]
    fn time_goes_to_one_place_only() {
        let (stages, counters) = (StageState::new(1), StreamCounters::default());
        stages.reads_in_flight.store(1, Relaxed);
        let tick = Duration::from_secs(1);
        let empty = SlotCounts { free: 2, filling: 2, ready: 0, held: 0 };
        let full = SlotCounts { free: 0, filling: 0, ready: 3, held: 1 };
        WaitSampler::attribute(tick, true, empty, &stages, &counters);
        WaitSampler::attribute(tick, false, full, &stages, &counters);
        WaitSampler::attribute(tick, false, empty, &stages, &counters);
        let figures = counters.figures();
        assert_eq!(figures.waiting_s["storage"], 1.0);
        assert_eq!((figures.full_s, figures.sampled_s), (1.0, 3.0));
    }
}
