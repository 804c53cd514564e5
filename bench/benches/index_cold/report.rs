//! The table, the README and the raw figures of a run.

use std::fmt::Write as _;

use feedline_bench::cold::about;

use crate::{Arguments, Contestant, Outcome};

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    values.sort_by(f64::total_cmp);
    let median = *values.get(values.len() / 2)?;
    Some((median, values[0], values[values.len() - 1]))
}

fn of(outcomes: &[Outcome], contestant: Contestant) -> impl Iterator<Item = &Outcome> {
    outcomes.iter().filter(move |outcome| outcome.contestant == contestant)
}

/// The index's rate to another's within the same round, where the machine was in the same mood.
fn ratio(outcomes: &[Outcome], other: Contestant) -> Option<(f64, f64, f64)> {
    let rate_in = |repeat| of(outcomes, other).find(|outcome| outcome.repeat == repeat).map(Outcome::rate);
    spread(
        of(outcomes, Contestant::Index).filter_map(|outcome| Some(outcome.rate() / rate_in(outcome.repeat)?)).collect(),
    )
}

/// One row a contestant, in Markdown.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = "| Cold page cache | a second, median (least to most) | index to it |\n|---|---|---|\n".to_owned();
    for contestant in Contestant::ALL {
        let Some((median, least, most)) = spread(of(outcomes, contestant).map(Outcome::rate).collect()) else {
            let _ = writeln!(text, "| {} | not measured | |", contestant.name());
            continue;
        };
        let ratio = ratio(outcomes, contestant).filter(|_| contestant != Contestant::Index);
        let ratio = ratio.map_or(String::new(), |(median, least, most)| {
            format!("{:.0} % ({:.0} to {:.0})", median * 100.0, least * 100.0, most * 100.0)
        });
        let _ = writeln!(text, "| {} | {median:.0} ({least:.0} to {most:.0}) | {ratio} |", contestant.name());
    }
    text.trim_end().to_owned()
}

/// The page that explains a kept run.
pub fn readme(arguments: &Arguments, fio: Option<&str>, outcomes: &[Outcome], table: &str) -> String {
    let made = |contestant| of(outcomes, contestant).next().map_or("", |outcome| outcome.words.as_str());
    format!(
        "# Indexing beside fio, cold page cache\n\n\
         Question: how far from the disk's own speed is the indexing of shards that are not in memory? {shards} shards of \
         {samples} samples, a label of 3 bytes and a photo of {photo_bytes} each, {threads} threads; fio reads for {seconds} s; \
         {repeats} rounds, interleaved.\n\n\
         {about}\n\
         - fio: `{threads_command}`, `{direct_command}`\n\n\
         {table}\n\n\
         A sample of two members is one read of a page or two, the label and the headers around it; photos that are shorter \
         than a hop pays are read through. The ratios are medians of those within each round. The index: {index}.\n",
        about = about("index_cold", &arguments.folder, arguments.drop, fio),
        shards = arguments.shards,
        samples = arguments.samples,
        photo_bytes = arguments.photo_bytes,
        threads = arguments.threads,
        seconds = arguments.seconds,
        repeats = arguments.repeats,
        threads_command = made(Contestant::FioThreads),
        direct_command = made(Contestant::FioDirect),
        index = made(Contestant::Index),
    )
}

/// Every measurement, one a line.
pub fn raw(outcomes: &[Outcome]) -> String {
    let mut text = "round,contestant,count,seconds,per_s\n".to_owned();
    for outcome in outcomes {
        let (name, seconds) = (outcome.contestant.name().replace(", ", " "), outcome.elapsed.as_secs_f64());
        let _ = writeln!(text, "{},{name},{},{seconds:.6},{:.1}", outcome.repeat, outcome.count, outcome.rate());
    }
    text
}
