//! Whether the threads of the data path go on: what a watchdog asks.

use std::sync::atomic::Ordering::Relaxed;

use crate::telemetry::StageState;

/// The state of the data path at one moment, to be compared with a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    feeder_turns: u64,
    steps_done: u64,
    under_way: u32,
}

impl Pulse {
    pub(super) fn of(stages: &StageState) -> Self {
        let under_way = [&stages.reads_in_flight, &stages.decode_queue, &stages.workers_busy];
        Self {
            feeder_turns: stages.feeder_turns.load(Relaxed),
            steps_done: stages.steps_done.load(Relaxed),
            under_way: under_way.iter().map(|count| count.load(Relaxed)).fold(0, u32::saturating_add),
        }
    }

    /// Whether something went on since `earlier`, which is at least a second ago: the feeder, which never sleeps that
    /// long, and, where reads or rows were under way then and are now, a read or a row.
    pub fn goes_on_since(&self, earlier: &Self) -> bool {
        let is_busy = self.under_way > 0 && earlier.under_way > 0;
        self.feeder_turns != earlier.feeder_turns && (!is_busy || self.steps_done != earlier.steps_done)
    }

    /// What has stopped, where nothing goes on.
    pub fn stuck_words(&self, earlier: &Self) -> &'static str {
        if self.feeder_turns == earlier.feeder_turns { "the feeder" } else { "every read and every worker" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(earlier: (u64, u64, u32), now: (u64, u64, u32), expected: bool) {
        let pulse = |(feeder_turns, steps_done, under_way)| Pulse { feeder_turns, steps_done, under_way };
        assert_eq!(pulse(now).goes_on_since(&pulse(earlier)), expected, "{earlier:?} to {now:?}");
    }

    #[test]
    fn idle_is_alive_and_stuck_is_not() {
        // Nothing to do.
        check((10, 5, 0), (20, 5, 0), true);
        // Rows came, or went.
        check((10, 5, 0), (20, 5, 3), true);
        check((10, 5, 3), (20, 5, 0), true);
        // Rows go on.
        check((10, 5, 3), (20, 6, 3), true);
        // Rows are under way and none goes on: workers are stuck, or the storage is.
        check((10, 5, 3), (20, 5, 3), false);
        // The feeder is stuck, whatever the workers do.
        check((10, 5, 0), (10, 5, 0), false);
        check((10, 5, 3), (10, 9, 3), false);
    }

    #[test]
    fn the_words_name_what_is_stuck() {
        let [earlier, now] = [1, 1].map(|feeder_turns| Pulse { feeder_turns, steps_done: 4, under_way: 2 });
        assert_eq!(now.stuck_words(&earlier), "the feeder");
        assert_eq!(Pulse { feeder_turns: 2, ..now }.stuck_words(&earlier), "every read and every worker");
    }
}
