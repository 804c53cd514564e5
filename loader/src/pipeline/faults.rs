//! The ledger of bad samples: every one counted and classed, the first of each class kept, and a budget.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, FaultClass, FaultReport};

/// Bad samples one after the other that end a run whatever the budget.
const FAULTS_IN_A_ROW_MAX: u32 = 100;

/// Samples after which the budget is judged, or an epoch where that is shorter.
const SAMPLES_JUDGED_MIN: u64 = 1000;

/// Counts of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultTotals {
    /// Bad samples of the class.
    pub count: u64,
    /// The first of them.
    pub first: FaultReport,
}

/// Bad samples of one stream.
#[derive(Debug)]
pub struct FaultLedger {
    budget: f64,
    judged_after: u64,
    tried: AtomicU64,
    bad: AtomicU64,
    in_a_row: AtomicU32,
    classes: Mutex<BTreeMap<FaultClass, FaultTotals>>,
}

impl FaultLedger {
    /// A ledger that allows the share `budget` of bad samples in epochs of `epoch_rows` rows.
    pub fn new(budget: f64, epoch_rows: u64) -> Self {
        Self {
            budget,
            judged_after: epoch_rows.clamp(1, SAMPLES_JUDGED_MIN),
            tried: AtomicU64::new(0),
            bad: AtomicU64::new(0),
            in_a_row: AtomicU32::new(0),
            classes: Mutex::new(BTreeMap::new()),
        }
    }

    /// A sample was good. Judges the budget when it is time; an error ends the run.
    pub fn good(&self) -> Result<(), Error> {
        // A plain load first: a store by every worker at every row would bounce the cache line.
        if self.in_a_row.load(Relaxed) != 0 {
            self.in_a_row.store(0, Relaxed);
        }
        let tried = self.tried.fetch_add(1, Relaxed) + 1;
        if tried == self.judged_after { self.judge(tried) } else { Ok(()) }
    }

    /// A sample was bad. The first of its class is kept and true is returned for it; an error ends the run.
    pub fn bad(&self, report: &FaultReport) -> Result<bool, Error> {
        let tried = self.tried.fetch_add(1, Relaxed) + 1;
        self.bad.fetch_add(1, Relaxed);
        let in_a_row = self.in_a_row.fetch_add(1, Relaxed) + 1;
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = classes.entry(report.class).or_insert_with(|| FaultTotals { count: 0, first: report.clone() });
        totals.count += 1;
        let first = totals.count == 1;
        drop(classes);
        if in_a_row >= FAULTS_IN_A_ROW_MAX {
            return Err(self.over(tried, &format!("{in_a_row} samples in a row could not be used")));
        }
        if tried >= self.judged_after {
            self.judge(tried)?;
        }
        Ok(first)
    }

    /// What was counted, by class.
    pub fn totals(&self) -> BTreeMap<FaultClass, FaultTotals> {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn judge(&self, tried: u64) -> Result<(), Error> {
        let bad = self.bad.load(Relaxed);
        if bad as f64 <= self.budget * tried as f64 {
            return Ok(());
        }
        let headline = format!(
            "{bad} of {tried} samples could not be used, over the budget of {:.2} % (error_budget={})",
            self.budget * 100.0,
            self.budget
        );
        Err(self.over(tried, &headline))
    }

    fn over(&self, tried: u64, headline: &str) -> Error {
        let mut message =
            format!("{headline}; mend the data, or raise the budget\n  class          count  first example");
        for (class, totals) in self.totals() {
            let _ = write!(message, "\n  {:<13} {:>6}  {}", class.name(), totals.count, totals.first);
        }
        let _ = write!(message, "\n  samples tried: {tried}");
        Error::Budget { message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(class: FaultClass) -> FaultReport {
        let text = || "x".to_owned();
        FaultReport { class, shard: text(), key: text(), field: text(), offset: 1, message: text(), sample: 2, row: 3 }
    }

    /// Tries `samples` of which every `bad_every`th is bad; true if the run survives.
    fn check(budget: f64, epoch_rows: u64, samples: u64, bad_every: u64, survives: bool) {
        let ledger = FaultLedger::new(budget, epoch_rows);
        let outcome = (1..=samples).try_for_each(|number| {
            if number % bad_every == 0 { ledger.bad(&report(FaultClass::Corrupt)).map(drop) } else { ledger.good() }
        });
        assert_eq!(outcome.is_ok(), survives, "{outcome:?}");
    }

    #[test]
    fn the_budget_is_judged_after_a_thousand_samples_or_an_epoch() {
        check(0.01, 10_000, 999, 2, true);
        check(0.01, 10_000, 1000, 2, false);
        check(0.01, 10_000, 5000, 200, true);
        check(0.01, 100, 99, 10, true);
        check(0.01, 100, 100, 10, false);
        check(1.0, 100, 1000, 2, true);
    }

    #[test]
    fn a_hundred_in_a_row_end_it_at_once() {
        check(1.0, 10_000, 99, 1, true);
        check(1.0, 10_000, 100, 1, false);
    }

    #[test]
    fn the_table_has_classes_counts_and_examples() {
        let ledger = FaultLedger::new(0.0, 2);
        assert!(ledger.bad(&report(FaultClass::Empty)).unwrap());
        let message = ledger.bad(&report(FaultClass::Truncated)).unwrap_err().to_string();
        assert!(message.contains("empty") && message.contains("truncated") && message.contains("2 of 2"), "{message}");
    }
}
