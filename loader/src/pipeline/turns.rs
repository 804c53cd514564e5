//! Whose rows come next, and how many rows of one stream may be under way: arithmetic on what is known of each.
//!
//! The emptiest ring comes first. Among equals it is the stream that workers have spent the least time on, so that a job
//! of large photographs and one of small ones get equal shares of the cores rather than equal numbers of rows; a job's
//! priority weighs its share. While several streams want rows, each may have no more rows under way than workers finish in a
//! moment: rows wait in one queue, first come first served, and slow ones in front would otherwise hold up all others.

/// Work of one stream that may wait for each worker while other streams want rows too, in nanoseconds.
const QUEUED_NS: u64 = 20_000_000;

/// Rows of one stream for each worker that may be under way in any case: one at work, and one that comes next.
const ROWS_MIN: u32 = 2;

/// What a row takes before any of its stream is done, in nanoseconds.
const ROW_NS_UNKNOWN: u64 = 5_000_000;

/// How far a stream can fall behind the others and still catch up, in nanoseconds of each worker: whoever wanted nothing
/// for an hour does not then get an hour of all cores.
const LAG_NS: u64 = 100_000_000;

/// What counts of a stream that wants rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Need {
    /// Batches that wait for the client.
    pub(super) ready: u32,
    /// Worker time that it had, those of rows under way included.
    pub(super) service_ns: u64,
}

/// Worker time that a stream is charged with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Charge {
    /// Spent on its rows.
    pub(super) spent_ns: u64,
    /// Its rows that are done.
    pub(super) rows_done: u64,
    /// Its rows under way.
    pub(super) rows_under_way: u32,
}

impl Charge {
    /// What a row takes.
    pub(super) fn row_ns(self) -> u64 {
        self.spent_ns.checked_div(self.rows_done).unwrap_or(ROW_NS_UNKNOWN)
    }

    /// Spent, and about to be.
    pub(super) fn total_ns(self) -> u64 {
        self.spent_ns.saturating_add(self.row_ns().saturating_mul(u64::from(self.rows_under_way)))
    }
}

/// Rows of one stream that may be under way: of a queue of `queue_rows` for `workers`, while `active` streams want rows or
/// have some there.
pub(super) fn rows_max(queue_rows: u32, workers: u32, active: u32, row_ns: u64) -> u32 {
    if active <= 1 {
        return queue_rows;
    }
    let least = ROWS_MIN.saturating_mul(workers);
    let moment = u32::try_from(QUEUED_NS / row_ns.max(1)).unwrap_or(u32::MAX).saturating_mul(workers);
    moment.min(queue_rows / active).max(least).min(queue_rows)
}

/// The time that turns are counted in: as far as the stream that was served last.
#[derive(Debug)]
pub(super) struct Clock {
    now_ns: u64,
    lag_ns: u64,
}

impl Clock {
    pub(super) fn new(workers: u32) -> Self {
        Self { now_ns: 0, lag_ns: LAG_NS * u64::from(workers) }
    }

    /// What has to be added to a stream's time, that it has no more to catch up than it may.
    pub(super) fn overdue(&self, service_ns: u64) -> u64 {
        self.now_ns.saturating_sub(self.lag_ns).saturating_sub(service_ns)
    }

    /// A stream was chosen.
    pub(super) fn advance(&mut self, service_ns: u64) {
        self.now_ns = self.now_ns.max(service_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn shares_of_the_queue() {
        let check =
            |active, row_ns, expected| assert_eq!(rows_max(64, 4, active, row_ns), expected, "{active} {row_ns}");
        check(1, 500 * MS, 64);
        // Rows that take a millisecond: half of the queue each.
        check(2, MS, 32);
        check(4, MS, 16);
        // Rows of 5 ms: 4 for each worker.
        check(2, 5 * MS, 16);
        // Slow rows: one at work and one that waits, for each worker.
        check(2, 500 * MS, 8);
        check(1000, MS, 8);
        check(2, 0, 32);
        assert_eq!(rows_max(4, 4, 2, MS), 4, "never more than the queue");
    }

    #[test]
    fn the_charge_of_rows_under_way() {
        let charge = Charge { spent_ns: 100 * MS, rows_done: 10, rows_under_way: 3 };
        assert_eq!(charge.total_ns(), 130 * MS);
        assert_eq!(Charge { rows_under_way: 2, ..Charge::default() }.total_ns(), 2 * ROW_NS_UNKNOWN);
    }

    /// Serves the neediest of streams with rows of these lengths, all rings empty, and returns how long each was served.
    fn serve(row_ns: &[u64], joins_at: &[usize], rounds: usize) -> Vec<u64> {
        let mut clock = Clock::new(1);
        let mut service: Vec<u64> = vec![0; row_ns.len()];
        let mut spent = service.clone();
        for round in 0..rounds {
            let wanting = (0..row_ns.len()).filter(|&stream| joins_at[stream] <= round);
            let needs: Vec<(Need, usize)> = wanting
                .map(|stream| {
                    service[stream] += clock.overdue(service[stream]);
                    (Need { ready: 0, service_ns: service[stream] }, stream)
                })
                .collect();
            let &(need, chosen) = needs.iter().min().expect("one wants");
            clock.advance(need.service_ns);
            service[chosen] += row_ns[chosen];
            spent[chosen] += row_ns[chosen];
        }
        spent
    }

    #[test]
    fn equal_times_for_unequal_rows() {
        let spent = serve(&[100 * MS, MS], &[0, 0], 10_000);
        let share = spent[1] as f64 / spent[0] as f64;
        assert!((0.9..1.1).contains(&share), "{spent:?}");
    }

    #[test]
    fn who_comes_late_catches_up_a_moment_only() {
        // The late one is served alone for as long as it may lag, no longer; then they take turns.
        let spent = serve(&[MS, MS], &[0, 10_000], 11_000);
        assert!((500 * MS..700 * MS).contains(&spent[1]), "{spent:?}");
    }

    #[test]
    fn an_empty_ring_comes_before_everything() {
        let empty = Need { ready: 0, service_ns: u64::MAX };
        let stocked = Need { ready: 1, service_ns: 0 };
        assert!(empty < stocked);
    }
}
