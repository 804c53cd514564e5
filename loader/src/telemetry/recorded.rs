//! Recordings as JSON lines: samples of a GPU, and steps of a trainer, one object a line.
//!
//! Names are those of [`GpuSample`] and [`Step`]. A figure that is missing, null, NaN (which Python's `json` writes bare), no
//! number or out of its range is absent. Lines that are no such object are counted and told, and too many of them are an
//! error. GPM counters that measured nothing are absent too, whatever zeros stand there.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, Read as _};
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::gpu::{Gpm, GpuFault, GpuFaultKind, GpuSample};
use super::sampler::WaitCause;
use super::verdict::Step;
use crate::error::{Error, Result};

/// Longest line; one of ours has less than 2 KiB.
const LINE_BYTES_MAX: u64 = 256 << 10;

/// Share of lines that may be unreadable. A recording that was cut has one such line.
const SKIPPED_SHARE_MAX: f64 = 0.05;

/// Latest time in a recording, in seconds: some three hundred years, beyond which differences lose their fractions.
const TIME_S_MAX: f64 = 1e10;

/// What a file held, in the order of time.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording<T> {
    /// Its lines.
    pub records: Vec<T>,
    /// What of it could not be used.
    pub skipped: SkippedLines,
}

impl<T> Default for Recording<T> {
    fn default() -> Self {
        Self { records: Vec::new(), skipped: SkippedLines::default() }
    }
}

/// Lines that could not be used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SkippedLines {
    /// How many.
    pub count: u64,
    /// The first: its number from 1, and why.
    pub first: Option<(u64, String)>,
}

/// Reads samples of GPUs, sorted by time.
///
/// # Errors
///
/// [`Error::Io`] where `reader` fails; [`Error::Shard`] where no line, or more than one of twenty, is a sample. `path` is for
/// messages.
pub fn read_samples(reader: impl BufRead, path: &Path) -> Result<Recording<GpuSample>> {
    read(reader, path, "sample of a GPU", |object| {
        let sample = sample(object)?;
        Ok((sample.t, sample))
    })
}

/// Reads steps of a trainer, sorted by time.
///
/// # Errors
///
/// As [`read_samples`].
pub fn read_steps(reader: impl BufRead, path: &Path) -> Result<Recording<Step>> {
    read(reader, path, "step", |object| {
        let step = step(object)?;
        Ok((step.t, step))
    })
}

fn read<T>(
    mut reader: impl BufRead,
    path: &Path,
    noun: &str,
    parse: impl Fn(&Map<String, Value>) -> Result<(f64, T), String>,
) -> Result<Recording<T>> {
    let mut timed: Vec<(f64, T)> = Vec::new();
    let mut skipped = SkippedLines::default();
    let (mut number, mut offset, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        let bytes = reader
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .map_err(|source| Error::io("read", path, source))?;
        if bytes == 0 {
            break;
        }
        if bytes as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            return Err(Error::shard(
                path,
                offset,
                format!("a line has more than {LINE_BYTES_MAX} bytes: not JSON lines"),
            ));
        }
        number += 1;
        offset += bytes as u64;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match object(&line).and_then(|object| parse(&object)) {
            Ok(record) => timed.push(record),
            Err(why) => {
                skipped.count += 1;
                skipped.first.get_or_insert((number, why));
            }
        }
    }
    let allowed = ((timed.len() as f64 * SKIPPED_SHARE_MAX) as u64).max(1);
    if (timed.is_empty() && number > 0) || skipped.count > allowed {
        let why = skipped.first.map_or_else(String::new, |(line, why)| format!("; line {line}: {why}"));
        let message =
            format!("{} of {number} lines are no {noun}{why}; `feedline record` writes what is wanted", skipped.count);
        return Err(Error::shard(path, 0, message));
    }
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(Recording { records: timed.into_iter().map(|(_, record)| record).collect(), skipped })
}

/// A line's object. Bare NaN and infinities, which Python writes, become null.
fn object(line: &[u8]) -> Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
    match serde_json::from_str(&without_nan(text)) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("it is no JSON object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// `text` with null in place of NaN, Infinity and -Infinity outside strings.
fn without_nan(text: &str) -> Cow<'_, str> {
    if !text.contains("NaN") && !text.contains("Infinity") {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut in_string) = (text, false);
    while let Some(first) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !in_string && rest.starts_with(word));
        if let Some(word) = word {
            out.push_str("null");
            rest = &rest[word.len()..];
            continue;
        }
        let escaped = in_string && first == '\\';
        in_string ^= first == '"';
        let taken = if escaped { 1 + rest[1..].chars().next().map_or(0, char::len_utf8) } else { first.len_utf8() };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    Cow::Owned(out)
}

fn sample(object: &Map<String, Value>) -> Result<GpuSample, String> {
    let gpu_util = percent(object, "gpu_util");
    let whole = |name: &str| object.get(name).and_then(Value::as_u64);
    let amount = |name: &str| within(object, name, 0.0, 1e12);
    Ok(GpuSample {
        t: time(object)?,
        uuid: object.get("uuid").and_then(Value::as_str).map(str::to_owned),
        gpu_util,
        mem_util: percent(object, "mem_util"),
        power_mw: within(object, "power_mw", 1.0, 1e8),
        power_limit_mw: within(object, "power_limit_mw", 1.0, 1e8),
        sm_mhz: within(object, "sm_mhz", 1.0, 1e5),
        sm_mhz_max: within(object, "sm_mhz_max", 1.0, 1e5),
        mem_mhz: within(object, "mem_mhz", 1.0, 1e5),
        clock_reasons: whole("clock_reasons"),
        mem_used: whole("mem_used"),
        mem_total: whole("mem_total"),
        process_mem: whole("process_mem"),
        temp_c: within(object, "temp_c", -50.0, 250.0),
        jpg_util: percent(object, "jpg_util"),
        dec_util: percent(object, "dec_util"),
        pcie_gen: whole("pcie_gen"),
        pcie_gen_max: whole("pcie_gen_max"),
        pcie_width: whole("pcie_width"),
        pcie_width_max: whole("pcie_width_max"),
        pcie_replay: whole("pcie_replay"),
        pcie_rx_kb_s: amount("pcie_rx_kb_s"),
        pcie_tx_kb_s: amount("pcie_tx_kb_s"),
        ecc_corrected: whole("ecc_corrected"),
        ecc_uncorrected: whole("ecc_uncorrected"),
        xid: object
            .get("xid")
            .and_then(Value::as_array)
            .map(|codes| codes.iter().filter_map(Value::as_u64).collect())
            .unwrap_or_default(),
        gpm: object.get("gpm").and_then(Value::as_object).and_then(|counters| gpm(counters, gpu_util)),
        error: object.get("error").and_then(Value::as_object).map(|error| {
            let word = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
            GpuFault { kind: GpuFaultKind::named(word("kind")), words: word("words").to_owned() }
        }),
    })
}

fn gpm(counters: &Map<String, Value>, gpu_util: Option<f64>) -> Option<Gpm> {
    let has_nan = Gpm::NAMES.iter().any(|name| counters.get(*name).is_some_and(Value::is_null));
    let gpm = Gpm::new(Gpm::NAMES.map(|name| match name {
        "pcie_tx_mib_s" | "pcie_rx_mib_s" => within(counters, name, 0.0, 1e9),
        _ => percent(counters, name),
    }));
    (!gpm.is_void(has_nan, gpu_util)).then_some(gpm)
}

fn step(object: &Map<String, Value>) -> Result<Step, String> {
    let seconds = |name: &str| within(object, name, 0.0, TIME_S_MAX);
    let waiting_s: BTreeMap<String, f64> = object
        .get("waiting_s")
        .and_then(Value::as_object)
        .map(|causes| {
            let known = WaitCause::ALL.iter().map(|cause| cause.name());
            known.filter_map(|name| Some((name.to_owned(), within(causes, name, 0.0, TIME_S_MAX)?))).collect()
        })
        .unwrap_or_default();
    Ok(Step {
        t: time(object)?,
        wait_s: seconds("wait_s"),
        h2d_s: seconds("h2d_s"),
        step_s: seconds("step_s"),
        waiting_s,
        workers: object.get("workers").and_then(Value::as_u64).and_then(|workers| u32::try_from(workers).ok()),
        read_bytes: object.get("read_bytes").and_then(Value::as_u64),
        h2d_bytes: object.get("h2d_bytes").and_then(Value::as_u64),
    })
}

fn time(object: &Map<String, Value>) -> Result<f64, String> {
    within(object, "t", -TIME_S_MAX, TIME_S_MAX).ok_or_else(|| "it has no time `t` in seconds".to_owned())
}

/// A share in per cent. NVML's counters exceed 100 by their rounding, never by a tenth.
fn percent(object: &Map<String, Value>, name: &str) -> Option<f64> {
    within(object, name, 0.0, 110.0).map(|share| share.min(100.0))
}

fn within(object: &Map<String, Value>, name: &str, low: f64, high: f64) -> Option<f64> {
    object.get(name).and_then(Value::as_f64).filter(|value| (low..=high).contains(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(text: &str) -> Result<Recording<GpuSample>> {
        read_samples(text.as_bytes(), Path::new("x.jsonl"))
    }

    #[test]
    fn absent_is_not_zero() {
        let text = r#"{"t": 1, "gpu_util": 0, "mem_util": null, "power_mw": "N/A", "temp_c": NaN, "sm_mhz": -Infinity, "jpg_util": 400}"#;
        let read = samples(text).unwrap().records;
        assert_eq!(read, [GpuSample { t: 1.0, gpu_util: Some(0.0), ..GpuSample::default() }]);
    }

    #[test]
    fn counters_that_measured_nothing_are_absent() {
        let text = r#"{"t": 1, "gpu_util": 98, "gpm": {"graphics_util": 0.0, "sm_util": 0.0, "dram_bw_util": NaN}}
{"t": 2, "gpu_util": 98, "gpm": {"graphics_util": 97.5, "sm_util": 90.0, "dram_bw_util": NaN}}"#;
        let read = samples(text).unwrap().records;
        assert_eq!(read[0].gpm, None);
        let gpm = read[1].gpm.unwrap();
        assert_eq!((gpm.graphics_util, gpm.sm_util, gpm.dram_bw_util), (Some(97.5), Some(90.0), None));
    }

    #[test]
    fn nan_is_replaced_outside_strings_only() {
        let check = |text: &str, expected: &str| assert_eq!(without_nan(text), expected);
        check(r#"{"a": NaN, "b": [-Infinity, Infinity]}"#, r#"{"a": null, "b": [null, null]}"#);
        check(r#"{"NaN": "NaN \" NaN", "b": NaN}"#, r#"{"NaN": "NaN \" NaN", "b": null}"#);
        check(r#"{"é": "\é NaN"#, r#"{"é": "\é NaN"#);
    }

    #[test]
    fn a_cut_line_is_told_and_rubbish_is_refused() {
        let cut = samples("{\"t\": 2}\n\n{\"t\": 1}\n{\"t\": 3, \"gpu").unwrap();
        assert_eq!(cut.records.iter().map(|sample| sample.t).collect::<Vec<_>>(), [1.0, 2.0]);
        assert_eq!((cut.skipped.count, cut.skipped.first.unwrap().0), (1, 4));
        assert!(samples("").unwrap().records.is_empty());
        let refused = samples("t,gpu_util\n1,2\n").unwrap_err().to_string();
        assert!(refused.contains("2 of 2 lines are no sample of a GPU; line 1"), "{refused}");
        assert!(samples("[1]\n{\"t\": 1}\n{\"no\": 1}\n").is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        let sample = GpuSample {
            t: 1.5,
            uuid: Some("GPU-1".into()),
            clock_reasons: Some(0x40),
            xid: vec![79],
            gpm: Some(Gpm { sm_util: Some(12.5), pcie_rx_mib_s: Some(3.0), ..Gpm::default() }),
            error: Some(GpuFault { kind: GpuFaultKind::GpuLost, words: "power: lost".into() }),
            ..GpuSample::default()
        };
        let text = serde_json::to_string(&sample).unwrap();
        assert_eq!(samples(&text).unwrap().records, [sample], "{text}");
    }

    #[test]
    fn steps_carry_causes() {
        let text = r#"{"t": 2, "wait_s": 0.5, "step_s": 1, "waiting_s": {"decode": 0.4, "whim": 1}, "workers": 4}"#;
        let step = read_steps(text.as_bytes(), Path::new("x")).unwrap().records.remove(0);
        assert_eq!((step.wait_s, step.h2d_s, step.workers), (Some(0.5), None, Some(4)));
        assert_eq!(step.waiting_s, BTreeMap::from([("decode".to_owned(), 0.4)]));
    }
}
