//! The tables, the README and the raw figures of a run.

use std::fmt::Write as _;

use feedline_bench::cold::about;

use crate::Arguments;
use crate::contest::{Contestant, Outcome, Program};

/// Median, least and most.
struct Spread(f64, f64, f64);

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = if values.len().is_multiple_of(2) { (values[middle - 1] + upper) / 2.0 } else { upper };
        Some(Self(median, values[0], values[values.len() - 1]))
    }
}

fn spread(outcomes: &[Outcome], contestant: &Contestant, figure: impl Fn(&Outcome) -> f64) -> Option<Spread> {
    Spread::of(outcomes.iter().filter(|outcome| outcome.contestant == *contestant).map(figure).collect())
}

/// Ratios to the faster of fio's rows within the same round, where the machine was in the same mood.
fn ratio(outcomes: &[Outcome], contestant: &Contestant) -> Option<Spread> {
    let best = |repeat| {
        let same_task = |other: &Contestant| (other.direct, other.depth) == (contestant.direct, contestant.depth);
        let is_fio = |other: &Contestant| matches!(other.program, Program::Fio { engine: "io_uring", .. });
        let all = outcomes.iter().filter(|outcome| outcome.repeat == repeat);
        let fio = all.filter(|outcome| is_fio(&outcome.contestant) && same_task(&outcome.contestant));
        fio.map(|outcome| outcome.measured.rate()).max_by(f64::total_cmp)
    };
    let own = outcomes.iter().filter(|outcome| outcome.contestant == *contestant);
    Spread::of(own.filter_map(|outcome| Some(outcome.measured.rate() / best(outcome.repeat)?)).collect())
}

/// One row a contestant, in Markdown.
pub fn tables(contestants: &[Contestant], outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for (direct, title) in [(true, "Past the page cache"), (false, "Through the page cache")] {
        let _ = writeln!(text, "| {title} | depth | MB/s, median (least to most) | to fio, same depth | CPU-s a GB |");
        let _ = writeln!(text, "|---|---|---|---|---|");
        for contestant in contestants.iter().filter(|contestant| contestant.direct == direct) {
            let Some(Spread(median, least, most)) = spread(outcomes, contestant, |outcome| outcome.measured.rate())
            else {
                let _ = writeln!(text, "| {} | {} | not measured | | |", contestant.name(), contestant.depth);
                continue;
            };
            let ratio = ratio(outcomes, contestant).map_or(String::new(), |Spread(median, least, most)| {
                format!("{:.0} % ({:.0} to {:.0})", median * 100.0, least * 100.0, most * 100.0)
            });
            let cpu = spread(outcomes, contestant, |outcome| {
                outcome.measured.cpu.as_secs_f64() / (outcome.measured.bytes as f64 / 1e9)
            });
            let cpu = cpu.map_or(String::new(), |Spread(median, ..)| format!("{median:.2}"));
            let (name, depth) = (contestant.name(), contestant.depth);
            let _ = writeln!(text, "| {name} | {depth} | {median:.0} ({least:.0} to {most:.0}) | {ratio} | {cpu} |");
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

/// The page that explains a kept run.
pub fn readme(arguments: &Arguments, fio: Option<&str>, outcomes: &[Outcome], tables: &str) -> String {
    let file = arguments.file.display().to_string();
    let mut reports: Vec<String> = outcomes
        .iter()
        .filter(|outcome| outcome.repeat == 0 && matches!(outcome.contestant.program, Program::Reader { .. }))
        .map(|outcome| format!("- {}: {}", outcome.contestant, outcome.measured.words))
        .collect();
    reports.dedup();
    let fio_command = outcomes.iter().find(|outcome| matches!(outcome.contestant.program, Program::Fio { .. }));
    format!(
        "# Readers beside fio, cold page cache\n\n\
         Question: how near do the readers come to fio on files that are not in memory? 128 KiB at random places of one \
         file of {gib:.2} GiB, each place once; {seconds} s a measurement or the whole file, {repeats} rounds, \
         interleaved.\n\n\
         {about}\n\
         - fio, as in: `{fio_command}`\n\n\
         {tables}\n\n\
         The ratio is to the faster of fio's rows, the median of those within each round. The readers' memory consists of \
         huge pages where the system grants them, fio's only where its row says so: into those, a direct read is one \
         piece for the device instead of one a page. CPU is that of the reading process, the kernel's work for \
         it included as far as the kernel counts it there.\n\n\
         What the readers say of themselves:\n\n{reports}\n",
        about = about("read_cold", &arguments.file, arguments.drop, fio),
        gib = arguments.file_bytes as f64 / f64::from(1 << 30),
        seconds = arguments.seconds,
        repeats = arguments.repeats,
        fio_command = fio_command.map_or("", |outcome| outcome.measured.words.as_str()).replace(&file, "FILE"),
        reports = reports.join("\n"),
    )
}

/// Every measurement, one a line.
pub fn raw(outcomes: &[Outcome]) -> String {
    let mut text = "round,contestant,direct,depth,bytes,seconds,cpu_seconds,mb_per_s\n".to_owned();
    for Outcome { contestant, repeat, measured } in outcomes {
        let (seconds, cpu) = (measured.elapsed.as_secs_f64(), measured.cpu.as_secs_f64());
        let (name, direct, depth) = (contestant.name().replace(", ", " "), contestant.direct, contestant.depth);
        let _ = writeln!(
            text,
            "{repeat},{name},{direct},{depth},{},{seconds:.6},{cpu:.6},{:.1}",
            measured.bytes,
            measured.rate()
        );
    }
    text
}
