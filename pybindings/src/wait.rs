//! The one door through which a call leaves Python's interpreter lock to wait.
//!
//! While a call waits, the engine calls back at least every 100 ms: signals are looked at, so that Ctrl-C works, and
//! a wait of ten seconds says what it waits for, then at doubling intervals.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use feedline_loader::client::{Poll, Waiting};
use feedline_loader::{Error, Result};
use pyo3::prelude::*;

use crate::errors::{Place, to_python};

/// A wait speaks up after this long, then at doubling intervals.
const SPEAK_AFTER: Duration = Duration::from_secs(10);

/// Longest time-out in seconds: over three hundred years, which every clock can still add to now.
const TIMEOUT_S_MAX: f64 = 1e10;

/// A time-out that came from Python, where infinity means no limit.
pub fn timeout(seconds: f64) -> Duration {
    Duration::from_secs_f64(if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, TIMEOUT_S_MAX) })
}

/// Runs `work` without the interpreter lock; `place` says where a stream stood, should the sidecar be gone.
pub fn wait<T: Send>(
    py: Python<'_>,
    place: Option<Place>,
    work: impl FnOnce(&mut Poll<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let mut voice = Voice::default();
    let mut bar = IndexBar::default();
    let outcome = py.detach(|| {
        work(&mut |waiting, waited| {
            Python::attach(|py| {
                py.check_signals()?;
                bar.show(waiting);
                if voice.speaks(waited) { log(py, waiting, waited) } else { Ok(()) }
            })
            .map_err(|exception| {
                raised = Some(exception);
                Error::Interrupted
            })
        })
    });
    match raised {
        Some(exception) => Err(exception),
        None => outcome.map_err(|error| to_python(py, &error, place)),
    }
}

/// When a wait has last spoken.
#[derive(Default)]
struct Voice {
    waited: Duration,
    spoken: Duration,
}

impl Voice {
    /// Whether a wait that has now lasted `waited` since its last progress has something to say.
    fn speaks(&mut self, waited: Duration) -> bool {
        if waited < self.waited {
            self.spoken = Duration::ZERO;
        }
        self.waited = waited;
        let due = waited >= SPEAK_AFTER.max(self.spoken * 2);
        if due {
            self.spoken = waited;
        }
        due
    }
}

/// A line on the terminal, where there is one, that says how far an index is.
#[derive(Default)]
struct IndexBar {
    is_shown: bool,
}

impl IndexBar {
    const WIDTH: usize = 30;

    fn show(&mut self, waiting: &Waiting) {
        let Waiting::Index { shards_done, shards_total, samples } = *waiting else { return };
        let mut terminal = std::io::stderr();
        if shards_total == 0 || !terminal.is_terminal() {
            return;
        }
        let share = shards_done as f64 / shards_total as f64;
        let filled = "#".repeat((share * Self::WIDTH as f64) as usize);
        self.is_shown = true;
        let width = Self::WIDTH;
        // A terminal that is gone is no reason to fail.
        let _ =
            write!(terminal, "\rindexing [{filled:<width$}] {shards_done} of {shards_total} shards, {samples} samples");
        let _ = terminal.flush();
    }
}

impl Drop for IndexBar {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn log(py: Python<'_>, waiting: &Waiting, waited: Duration) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("feedline",))?;
    logger.call_method1("warning", ("waiting for %s s: %s", waited.as_secs(), waiting.to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_speaks_after_ten_seconds_then_at_doubling_intervals() {
        let mut voice = Voice::default();
        let spoken: Vec<u64> = (0..200).filter(|&second| voice.speaks(Duration::from_secs(second))).collect();
        assert_eq!(spoken, [10, 20, 40, 80, 160]);
    }

    #[test]
    fn progress_starts_the_intervals_anew() {
        let mut voice = Voice::default();
        assert!(voice.speaks(Duration::from_secs(15)));
        assert!(!voice.speaks(Duration::from_secs(1)));
        assert!(!voice.speaks(Duration::from_secs(9)));
        assert!(voice.speaks(Duration::from_secs(10)));
    }

    #[test]
    fn any_number_is_a_time_out() {
        let check = |seconds, expected| assert_eq!(timeout(seconds), expected, "{seconds}");
        check(0.5, Duration::from_millis(500));
        check(-1.0, Duration::ZERO);
        check(f64::NAN, Duration::ZERO);
        check(f64::INFINITY, Duration::from_secs(10_000_000_000));
    }
}
