//! The verdict: a pure function of what the client measured and what the sidecar counted.

use serde::{Deserialize, Serialize};

use super::counters::StreamFigures;

/// Below this share of waiting a loader counts as keeping up; the reading that "wait-to-compute below 0.05" gives.
const WAIT_SHARE_FED: f64 = 0.05;

/// Above this share of full-ring time the trainer, not the loader, sets the pace.
const FULL_SHARE_TRAINER_BOUND: f64 = 0.5;

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

/// What limits the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictClass {
    /// Batches are there when asked for; loader and trainer are about even.
    Fed,
    /// Batches pile up: the trainer sets the pace.
    TrainerBound,
    /// The trainer waits for reads.
    WaitingOnStorage,
    /// The trainer waits for workers.
    WaitingOnDecode,
    /// The trainer holds so many batches that none can be filled.
    WaitingOnSlots,
    /// Most of the waiting was for the first batch.
    StartUp,
    /// Nothing was measured.
    Unknown,
}

/// One line for a person, and its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What limits the run.
    pub class: VerdictClass,
    /// Share of the window spent waiting, 0 to 1.
    pub wait_share: f64,
    /// The verdict in words, with the numbers it rests on and what to do.
    pub words: String,
}

/// Everything about a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
        let verdict = judge(&client, &sidecar);
        Self { client, sidecar, images_per_s, verdict }
    }
}

/// Judges a window from the client's and the sidecar's figures of it.
pub fn judge(client: &ClientFigures, sidecar: &StreamFigures) -> Verdict {
    if client.wall_s <= 0.0 || client.batches == 0 {
        let words = "unknown: no batch was taken".to_owned();
        return Verdict { class: VerdictClass::Unknown, wait_share: 0.0, words };
    }
    let wait_share = (client.waited_s / client.wall_s).clamp(0.0, 1.0);
    let class = classify(client, sidecar, wait_share);
    Verdict { class, wait_share, words: words(class, wait_share, client, sidecar) }
}

fn classify(client: &ClientFigures, sidecar: &StreamFigures, wait_share: f64) -> VerdictClass {
    if wait_share < WAIT_SHARE_FED {
        let full_share = if sidecar.sampled_s > 0.0 { sidecar.full_s / sidecar.sampled_s } else { 0.0 };
        return if full_share > FULL_SHARE_TRAINER_BOUND { VerdictClass::TrainerBound } else { VerdictClass::Fed };
    }
    if client.first_batch_s > client.waited_s / 2.0 {
        return VerdictClass::StartUp;
    }
    let waiting = |cause: &str| sidecar.waiting_s.get(cause).copied().unwrap_or(0.0);
    let ranked = [
        (waiting("decode"), VerdictClass::WaitingOnDecode),
        (waiting("storage"), VerdictClass::WaitingOnStorage),
        (waiting("slots"), VerdictClass::WaitingOnSlots),
        (waiting("start"), VerdictClass::StartUp),
    ];
    let (longest, class) =
        ranked.into_iter().reduce(|best, next| if next.0 > best.0 { next } else { best }).expect("four causes");
    // Waits shorter than a tick may escape the sampler; workers that were busy most of the time then tell.
    if longest > 0.0 { class } else { VerdictClass::WaitingOnDecode }
}

fn words(class: VerdictClass, wait_share: f64, client: &ClientFigures, sidecar: &StreamFigures) -> String {
    let waited =
        format!("{:.1} % of the time waiting ({:.2} of {:.2} s)", wait_share * 100.0, client.waited_s, client.wall_s);
    let workers = sidecar.stages.workers;
    match class {
        VerdictClass::Fed => format!("fed: {waited}; loader and trainer keep pace"),
        VerdictClass::TrainerBound => format!("trainer-bound: {waited}; batches are ready before they are asked for"),
        VerdictClass::WaitingOnStorage => {
            let rate = if client.wall_s > 0.0 { sidecar.read_bytes as f64 / client.wall_s / 1e6 } else { 0.0 };
            format!(
                "waiting on storage: {waited}; reads deliver {rate:.0} MB/s; faster or local storage would help, or order='block'"
            )
        }
        VerdictClass::WaitingOnDecode => {
            format!(
                "waiting on decode: {waited}; {workers} worker(s) are busy; more cores or smaller images would help"
            )
        }
        VerdictClass::WaitingOnSlots => {
            format!("waiting on slots: {waited}; the trainer holds every batch; release batches or raise slots=")
        }
        VerdictClass::StartUp => {
            format!(
                "start-up: {waited}, of which {:.2} s for the first batch; a longer run tells more",
                client.first_batch_s
            )
        }
        VerdictClass::Unknown => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(waited_s: f64, first_batch_s: f64, waiting: &[(&str, f64)], full_s: f64, expected: VerdictClass) {
        let client = ClientFigures { wall_s: 10.0, waited_s, batches: 100, rows: 25_600, first_batch_s };
        let sidecar = StreamFigures {
            waiting_s: waiting.iter().map(|(cause, seconds)| ((*cause).to_owned(), *seconds)).collect(),
            full_s,
            sampled_s: 10.0,
            ..StreamFigures::default()
        };
        let verdict = judge(&client, &sidecar);
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
    }

    #[test]
    fn nothing_taken_is_unknown() {
        assert_eq!(judge(&ClientFigures::default(), &StreamFigures::default()).class, VerdictClass::Unknown);
    }
}
