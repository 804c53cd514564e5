//! `feedline verdict`: what recorded samples of a GPU and recorded steps of its trainer say.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use clap::Args;
use feedline_loader::telemetry::gpu::{GpuIdentity, GpuName, GpuSample};
use feedline_loader::telemetry::verdict::{Step, Timeline, WindowVerdict};
use feedline_loader::telemetry::{Recording, read_samples, read_steps};
use feedline_loader::{Error, Result};
use serde::Serialize;

use crate::output::{counted, print_report};

/// Say what limits a training run, from recordings of its GPU and its steps.
///
/// Reads what `feedline record` writes, and a file with one JSON object a step: `t`, the seconds at its end, `step_s`, `wait_s`
/// (for its batch) and `h2d_s` (in the copy to the device); `waiting_s` may split the wait by cause. Either file may be missing,
/// and the verdict says what it rests on.
#[derive(Debug, Args)]
pub struct VerdictArguments {
    /// Recorded samples, as JSON lines.
    #[arg(long, value_name = "FILE", required_unless_present = "steps")]
    nvml: Option<PathBuf>,
    /// Recorded steps, as JSON lines.
    #[arg(long, value_name = "FILE")]
    steps: Option<PathBuf>,
    /// The GPU, by UUID or PCI id, where the samples are of several [default: each].
    #[arg(long, value_name = "UUID")]
    gpu: Option<String>,
    /// Length of a window in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = window_seconds)]
    window: f64,
    /// Report as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The verdicts.
#[derive(Debug, Serialize)]
struct VerdictReport {
    gpus: Vec<GpuVerdict>,
    notices: Vec<String>,
}

/// The verdicts over one GPU.
#[derive(Debug, Serialize)]
struct GpuVerdict {
    /// None where samples do not name their GPU, or there are none.
    uuid: Option<String>,
    #[serde(flatten)]
    timeline: Timeline,
}

/// Reads, judges, prints.
pub fn run(arguments: &VerdictArguments) -> Result<()> {
    let mut notices = Vec::new();
    let samples = arguments.nvml.as_deref().map(|path| load(path, read_samples, &mut notices)).transpose()?;
    let steps = arguments.steps.as_deref().map(|path| load(path, read_steps, &mut notices)).transpose()?;
    let steps: Vec<Step> = steps.unwrap_or_default();
    let by_gpu = chosen(by_gpu(samples.unwrap_or_default()), arguments.gpu.as_deref())?;
    let gpus = by_gpu
        .into_iter()
        .map(|(uuid, samples)| GpuVerdict { uuid, timeline: Timeline::of(&samples, &steps, arguments.window) })
        .collect();
    print_report(&VerdictReport { gpus, notices }, arguments.json)
}

fn window_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("a window has 0.1 to 1000000 seconds".to_owned()),
    }
}

fn load<T>(
    path: &Path,
    read: impl Fn(BufReader<File>, &Path) -> Result<Recording<T>>,
    notices: &mut Vec<String>,
) -> Result<Vec<T>> {
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    let Recording { records, skipped } = read(BufReader::new(file), path)?;
    if let Some((line, why)) = skipped.first {
        notices.push(format!(
            "{}: {} skipped, the first is line {line}: {why}",
            path.display(),
            counted(skipped.count, "line")
        ));
    }
    if records.is_empty() {
        notices.push(format!("{}: nothing was recorded", path.display()));
    }
    Ok(records)
}

/// Samples by the GPU that they name. Those that name none, as when the driver does not answer, are of every GPU.
fn by_gpu(samples: Vec<GpuSample>) -> BTreeMap<Option<String>, Vec<GpuSample>> {
    let mut all: BTreeMap<Option<String>, Vec<GpuSample>> = BTreeMap::new();
    for sample in samples {
        all.entry(sample.uuid.clone()).or_default().push(sample);
    }
    if all.len() > 1
        && let Some(unnamed) = all.remove(&None)
    {
        for samples in all.values_mut() {
            samples.extend(unnamed.iter().cloned());
            samples.sort_by(|a, b| a.t.total_cmp(&b.t));
        }
    }
    if all.is_empty() {
        all.insert(None, Vec::new());
    }
    all
}

fn chosen(
    mut all: BTreeMap<Option<String>, Vec<GpuSample>>,
    name: Option<&str>,
) -> Result<BTreeMap<Option<String>, Vec<GpuSample>>> {
    let Some(name) = name else { return Ok(all) };
    let identities: Vec<GpuIdentity> =
        all.keys().flatten().map(|uuid| GpuIdentity { uuid: uuid.clone(), ..GpuIdentity::default() }).collect();
    let at = GpuName::parse(name)?.find(&identities)?;
    all.retain(|uuid, _| uuid.as_ref() == Some(&identities[at].uuid));
    Ok(all)
}

impl fmt::Display for VerdictReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for GpuVerdict { uuid, timeline } in &self.gpus {
            if let Some(uuid) = uuid {
                writeln!(formatter, "{uuid}")?;
            }
            for window in timeline.windows.iter().filter(|_| timeline.windows.len() > 1) {
                writeln!(formatter, "{:>7.1} to {:>6.1} s  {}", window.from_s, window.to_s, headline(window))?;
            }
            let WindowVerdict { from_s, to_s, verdict } = &timeline.overall;
            writeln!(formatter, "over all, {:.1} s  {}", to_s - from_s, headline(&timeline.overall))?;
            writeln!(formatter, "  {}", verdict.words)?;
            for other in &verdict.also {
                writeln!(formatter, "  also {:.1} %: {}", other.loss_share * 100.0, other.words)?;
            }
            if let Some(gain) = verdict.gain {
                writeln!(formatter, "  expected without it: up to {gain:.2} times as fast")?;
            }
            writeln!(formatter, "  rests on {}", verdict.rests_on)?;
            for notice in &timeline.notices {
                writeln!(formatter, "  note: {notice}")?;
            }
        }
        self.notices.iter().try_for_each(|notice| writeln!(formatter, "note: {notice}"))
    }
}

/// Class, starved share and confidence.
fn headline(window: &WindowVerdict) -> String {
    let verdict = &window.verdict;
    let starved = match (verdict.starved_share, verdict.starved_share_max) {
        (Some(share), _) => format!("starved {:.1} %", share * 100.0),
        (None, Some(most)) => format!("starved at most {:.1} %", most * 100.0),
        (None, None) => "starved: not measured".to_owned(),
    };
    format!("{}; {starved}; confidence {}", verdict.class.words(), verdict.confidence.name())
}
