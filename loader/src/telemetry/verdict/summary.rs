//! A loader's own window: what the client measured and the sidecar counted, judged without a GPU.

use serde::{Deserialize, Serialize};

use super::host::Stalls;
use super::{Verdict, Window, judge};
use crate::telemetry::counters::StreamFigures;

/// What the client measured over a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientFigures {
    /// Length of the window in seconds.
    pub wall_s: f64,
    /// Of which `next` was blocked with no batch ready.
    pub waited_s: f64,
    /// Batches taken.
    pub batches: u64,
    /// Rows taken.
    pub rows: u64,
    /// Seconds from the request to the first batch of the window.
    pub first_batch_s: f64,
}

/// Everything about a window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// What the client measured.
    pub client: ClientFigures,
    /// What the sidecar counted in the window.
    pub sidecar: StreamFigures,
    /// Rows a second of the window.
    pub images_per_s: f64,
    /// The reading of both.
    pub verdict: Verdict,
}

impl Summary {
    /// Judges a window.
    pub fn new(client: ClientFigures, sidecar: StreamFigures) -> Self {
        let images_per_s = if client.wall_s > 0.0 { client.rows as f64 / client.wall_s } else { 0.0 };
        let verdict = judge_epoch(&client, &sidecar);
        Self { client, sidecar, images_per_s, verdict }
    }
}

/// Judges a window from the client's and the sidecar's figures of it.
pub fn judge_epoch(client: &ClientFigures, sidecar: &StreamFigures) -> Verdict {
    if client.wall_s <= 0.0 || client.batches == 0 {
        let words = "unknown: no batch was taken".to_owned();
        return Verdict { words, ..judge(Window::default()) };
    }
    judge(Window { stalls: Some(&stalls(client, sidecar)), gpu: None })
}

fn stalls(client: &ClientFigures, sidecar: &StreamFigures) -> Stalls {
    let workers = sidecar.stages.workers;
    Stalls {
        wall_s: client.wall_s,
        waited_s: Some(client.waited_s),
        first_batch_s: client.first_batch_s,
        waiting_s: sidecar.waiting_s.clone(),
        full_share: (sidecar.sampled_s > 0.0).then(|| sidecar.full_s / sidecar.sampled_s),
        workers: (workers > 0).then_some(workers),
        workers_busy: (workers > 0).then(|| sidecar.decode_s / client.wall_s / f64::from(workers)),
        read_bytes: Some(sidecar.read_bytes),
        reads_in_flight: Some(sidecar.stages.reads_in_flight),
        ..Stalls::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::counters::StageFigures;
    use crate::telemetry::verdict::VerdictClass;

    fn check(waited_s: f64, first_batch_s: f64, waiting: &[(&str, f64)], full_s: f64, expected: VerdictClass) {
        let client = ClientFigures { wall_s: 10.0, waited_s, batches: 100, rows: 25_600, first_batch_s };
        let sidecar = StreamFigures {
            waiting_s: waiting.iter().map(|(cause, seconds)| ((*cause).to_owned(), *seconds)).collect(),
            full_s,
            sampled_s: 10.0,
            ..StreamFigures::default()
        };
        let verdict = judge_epoch(&client, &sidecar);
        assert_eq!(verdict.class, expected, "{}", verdict.words);
    }

    #[test]
    fn verdicts() {
        check(0.1, 0.05, &[], 9.0, VerdictClass::TrainerBound);
        check(0.1, 0.05, &[], 1.0, VerdictClass::Fed);
        check(6.0, 0.1, &[("decode", 5.0), ("storage", 1.0)], 0.0, VerdictClass::WaitingOnDecode);
        check(6.0, 0.1, &[("decode", 1.0), ("storage", 5.0)], 0.0, VerdictClass::WaitingOnStorage);
        check(6.0, 0.1, &[("slots", 5.0)], 0.0, VerdictClass::WaitingOnSlots);
        check(6.0, 5.0, &[("decode", 5.0)], 0.0, VerdictClass::StartUp);
        check(6.0, 0.1, &[], 0.0, VerdictClass::Starved);
        // 0.25 of computing: below the usual 0.3.
        check(2.0, 0.1, &[("decode", 2.0)], 0.0, VerdictClass::Fed);
        check(2.5, 0.1, &[("decode", 2.0)], 0.0, VerdictClass::WaitingOnDecode);
    }

    #[test]
    fn waits_that_escape_the_sampler_are_for_busy_workers() {
        let client = ClientFigures { wall_s: 10.0, waited_s: 6.0, batches: 100, rows: 100, first_batch_s: 0.1 };
        let sidecar = StreamFigures {
            decode_s: 36.0,
            stages: StageFigures { workers: 4, ..StageFigures::default() },
            ..StreamFigures::default()
        };
        let verdict = judge_epoch(&client, &sidecar);
        assert_eq!(verdict.class, VerdictClass::WaitingOnDecode);
        assert!(verdict.words.contains("4 worker(s) are busy; 6 more cores"), "{}", verdict.words);
    }

    #[test]
    fn nothing_taken_is_unknown() {
        assert_eq!(judge_epoch(&ClientFigures::default(), &StreamFigures::default()).class, VerdictClass::Unknown);
    }
}
