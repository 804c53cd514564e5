//! `feedline inspect`: what shards hold, as the engine's own index sees them.

use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use feedline_loader::Result;
use feedline_loader::shard::{Dataset, FieldCount, FindingCount, IndexOptions, Missing, ShardSummary, expand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::output::{Bytes, counted, print_report};

/// Show what shards hold: samples, fields, sizes, first keys, and what was skipped or odd.
///
/// Builds the index of a shard where there is none yet, as training would.
#[derive(Debug, Args)]
pub struct InspectArguments {
    /// Shards or patterns: braces as in train-{000000..000099}.tar, * ? […], several joined by ::.
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<String>,
    /// First keys to show of each shard.
    #[arg(long, value_name = "N", default_value_t = 3)]
    keys: u32,
    /// Folder for index files [default: the user's cache folder].
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Report as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Rows of the table of shards; the report in JSON has them all.
const SHARD_ROWS_MAX: usize = 20;

/// What the shards hold.
#[derive(Debug, Serialize)]
struct InspectReport {
    samples: u64,
    bytes: u64,
    /// Over all shards, in the order in which they first occur.
    fields: Vec<FieldCount>,
    shards: Vec<ShardRow>,
    notices: Vec<String>,
}

/// What one shard holds.
#[derive(Debug, Serialize)]
struct ShardRow {
    path: PathBuf,
    bytes: u64,
    samples: u32,
    members: u32,
    index_bytes: u64,
    fields: Vec<FieldCount>,
    first_keys: Vec<String>,
    findings: Vec<FindingCount>,
}

impl From<ShardSummary> for ShardRow {
    fn from(summary: ShardSummary) -> Self {
        let ShardSummary { path, bytes, samples, members, index_bytes, fields, first_keys, findings } = summary;
        Self { path, bytes, samples, members, index_bytes, fields, first_keys, findings }
    }
}

/// Indexes, then reports.
pub fn run(arguments: &InspectArguments) -> Result<()> {
    let shards = expand(&arguments.shards, Missing::Error)?.shards;
    let bar = indexing_bar(shards.len() as u64, !arguments.json);
    let options = IndexOptions { cache_dir: arguments.cache_dir.clone(), ..IndexOptions::default() };
    let dataset = Dataset::open(&shards, &options, &|progress| {
        bar.set_position(progress.shards_done);
        bar.set_message(counted(progress.samples, "sample"));
    })?;
    bar.finish_and_clear();

    let shards: Vec<ShardRow> =
        (0..dataset.shard_count()).map(|shard| ShardRow::from(dataset.shard_summary(shard, arguments.keys))).collect();
    let report = InspectReport {
        samples: dataset.sample_count(),
        bytes: shards.iter().map(|shard| shard.bytes).sum(),
        fields: sum_fields(&shards),
        shards,
        notices: dataset.notices().to_vec(),
    };
    print_report(&report, arguments.json)
}

fn indexing_bar(shards: u64, shown: bool) -> ProgressBar {
    let bar = ProgressBar::new(shards);
    if !shown || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        return bar;
    }
    let template = "indexing {wide_bar} {human_pos} of {human_len} shards, {msg}, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn sum_fields(shards: &[ShardRow]) -> Vec<FieldCount> {
    let mut sums: Vec<FieldCount> = Vec::new();
    for field in shards.iter().flat_map(|shard| &shard.fields) {
        match sums.iter_mut().find(|sum| sum.name == field.name) {
            Some(sum) => {
                sum.samples += field.samples;
                sum.empty += field.empty;
                sum.bytes += field.bytes;
            }
            None => sums.push(field.clone()),
        }
    }
    sums
}

impl fmt::Display for InspectReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = counted(self.shards.len() as u64, "shard");
        writeln!(formatter, "{shards}, {}, {}", counted(self.samples, "sample"), Bytes(self.bytes))?;
        writeln!(formatter)?;
        write_table(formatter, &self.field_rows(), &[0])?;
        writeln!(formatter)?;
        write_table(formatter, &self.shard_rows(), &[0, 3])?;
        if self.shards.len() > SHARD_ROWS_MAX {
            writeln!(formatter, "… and {} more (--json has them all)", self.shards.len() - SHARD_ROWS_MAX)?;
        }
        self.notices.iter().try_for_each(|notice| writeln!(formatter, "notice: {notice}"))
    }
}

impl InspectReport {
    fn field_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["field", "samples", "missing", "empty", "size", "mean"].map(str::to_owned).to_vec()];
        rows.extend(self.fields.iter().map(|field| {
            vec![
                field.name.clone(),
                field.samples.to_string(),
                (self.samples - field.samples).to_string(),
                field.empty.to_string(),
                Bytes(field.bytes).to_string(),
                Bytes(field.bytes / field.samples.max(1)).to_string(),
            ]
        }));
        rows
    }

    fn shard_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["shard", "samples", "size", "first keys"].map(str::to_owned).to_vec()];
        rows.extend(self.shards.iter().take(SHARD_ROWS_MAX).map(|shard| {
            let name = shard.path.file_name().map_or(shard.path.as_path(), Path::new);
            vec![
                name.display().to_string(),
                shard.samples.to_string(),
                Bytes(shard.bytes).to_string(),
                shard.first_keys.join(" "),
            ]
        }));
        rows
    }
}

/// Columns as wide as their widest cell: words to the left, as the columns of `words` are, numbers to the right.
fn write_table(formatter: &mut fmt::Formatter<'_>, rows: &[Vec<String>], words: &[usize]) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(column, (cell, &width))| {
                    if words.contains(&column) { format!("{cell:width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        writeln!(formatter, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}
