//! Recordings of GPUs and steps: any bytes are records, skipped lines or an error; whatever was read can be judged, with
//! shares from 0 to 1, and what is written of it is read again.
#![no_main]

use std::path::Path;

use feedline_loader::telemetry::verdict::Timeline;
use feedline_loader::telemetry::{read_samples, read_steps};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzzed");
    // One input is both files, one after the other, as its lines are of both kinds.
    let samples = read_samples(bytes, path).map(|recording| recording.records).unwrap_or_default();
    let steps = read_steps(bytes, path).map(|recording| recording.records).unwrap_or_default();
    let written: Vec<u8> = samples
        .iter()
        .flat_map(|sample| [serde_json::to_vec(sample).expect("finite numbers"), b"\n".to_vec()].concat())
        .collect();
    let again = read_samples(written.as_slice(), path).map(|recording| recording.records).unwrap_or_default();
    assert_eq!(again.len(), samples.len());

    for (samples, steps) in [(&samples[..], &steps[..]), (&samples[..], &[]), (&[], &steps[..])] {
        // A window as long as the run, or a hundredth of it: recordings of centuries have no more windows either.
        let ends = samples.iter().map(|sample| sample.t).chain(steps.iter().map(|step| step.t));
        let length_s = ends.clone().fold(0.0, f64::max) - ends.fold(0.0, f64::min);
        for window_s in [length_s + 1.0, length_s / 100.0 + 1.0] {
            let timeline = Timeline::of(samples, steps, window_s);
            for window in timeline.windows.iter().chain([&timeline.overall]) {
                let verdict = &window.verdict;
                for share in [verdict.wait_share, verdict.starved_share, verdict.starved_share_max] {
                    assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{verdict:?}");
                }
                assert!(verdict.evidence.iter().all(|evidence| evidence.value.is_finite()), "{verdict:?}");
            }
        }
    }
});
