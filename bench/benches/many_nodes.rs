//! Does one plan serve 1 000 nodes of 8 ranks over 10^9 samples, and what does that take?
//!
//! Simulates every rank of a run: each makes its own plan, as in a process of its own, and walks all of its rows. The run is
//! interrupted twice at some step, and goes on with another number of ranks at an equal global batch. Checked: all ranks have
//! equally many steps, known before the first; every sample is taken exactly once (a bit a sample); positions, samples and
//! rows add up to the same sums as for one rank alone (what the trace hash proves of real runs). Unit: seconds to make a
//! rank's plan and epoch, nanoseconds a row, and resident memory a rank's plan adds. The check's own bits are counted apart.
//!
//! `cargo bench -p feedline-bench --bench many_nodes -- [--quick] [--samples N] [--ranks N] [--out DIR]`; `--quick`: 10^6
//! samples. It ends with status 1 when anything is wrong.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use feedline_bench::machine::{about, out_folder};
use feedline_loader::plan::{Partition, Plan, PlanOptions, Source};
use feedline_loader::spec::{OrderSpec, Tail};

const SEED: u64 = 17;
const EPOCH: u64 = 2;

/// Rows of a global batch for each rank of the first world; divisible by what the worlds change by.
const BATCH: u32 = 120;

struct Arguments {
    samples: u64,
    ranks: u32,
    out: Option<PathBuf>,
}

/// A stretch of the run between two interruptions.
#[derive(Clone, Copy)]
struct Stretch {
    ranks: u32,
    batch_size: u32,
    start: u64,
    /// Steps until the interruption; all that are left in the last.
    steps: Option<u64>,
}

/// What all ranks of a stretch found.
struct Found {
    stretch: Stretch,
    steps: u64,
    rows: u64,
    end: u64,
    plan_time: Duration,
    wall: Duration,
    twice: u64,
    unequal: bool,
}

fn plan(samples: u64, rank: u32, stretch: &Stretch, tail: Tail) -> Plan {
    let partition = Partition::new(rank, stretch.ranks, stretch.batch_size, tail).expect("a rank");
    let source = Source::All(samples);
    let options =
        PlanOptions { source, order: OrderSpec::Global, seed: SEED, partition, first_samples: &[0], left_out: &[] };
    Plan::new(options).expect("a plan")
}

/// Walks all ranks of a stretch, with as many threads as there are cores.
fn walk(samples: u64, stretch: Stretch, seen: &[AtomicU64]) -> Found {
    let next = AtomicU32::new(0);
    let (rows, twice, plan_ns) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (least, most, end) = (AtomicU64::new(u64::MAX), AtomicU64::new(0), AtomicU64::new(0));
    let started = Instant::now();
    let work = || loop {
        let rank = next.fetch_add(1, Relaxed);
        if rank >= stretch.ranks {
            return;
        }
        let planning = Instant::now();
        let epoch = plan(samples, rank, &stretch, Tail::Short).epoch(EPOCH, stretch.start).expect("an epoch");
        plan_ns.fetch_add(u64::try_from(planning.elapsed().as_nanos()).unwrap_or(u64::MAX), Relaxed);
        let steps = stretch.steps.unwrap_or_else(|| epoch.batch_count());
        least.fetch_min(steps, Relaxed);
        most.fetch_max(steps, Relaxed);
        for step in 0..steps {
            let batch = epoch.batch(step);
            for row in 0..batch.row_count {
                let sample = batch.row(row).sample.0;
                let bit = 1 << (sample % 64);
                let before = seen[(sample / 64) as usize].fetch_or(bit, Relaxed);
                twice.fetch_add(u64::from(before & bit != 0), Relaxed);
            }
            rows.fetch_add(batch.row_count.into(), Relaxed);
            end.fetch_max(batch.end_position(), Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    Found {
        stretch,
        steps: least.load(Relaxed),
        rows: rows.load(Relaxed),
        end: end.load(Relaxed),
        plan_time: Duration::from_nanos(plan_ns.load(Relaxed) / u64::from(stretch.ranks)),
        wall: started.elapsed(),
        twice: twice.load(Relaxed),
        unequal: least.load(Relaxed) != most.load(Relaxed),
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    pages * rustix::param::page_size() as u64
}

/// Bytes that the plans and epochs of all ranks of a node add, alive together.
fn bytes_of_plans(samples: u64, stretch: &Stretch, ranks: u32) -> u64 {
    let before = resident();
    let plans: Vec<_> =
        (0..ranks).map(|rank| plan(samples, rank, stretch, Tail::Short).epoch(EPOCH, 0).expect("an epoch")).collect();
    let bytes = resident().saturating_sub(before) / u64::from(ranks);
    drop(plans);
    bytes
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let Arguments { samples, ranks, .. } = arguments;
    let global_batch = u64::from(ranks) * u64::from(BATCH);
    let whole = samples.div_ceil(global_batch);
    let cut = |part: u64| (whole * part / 3).max(1);
    let worlds = [
        Stretch { ranks, batch_size: BATCH, start: 0, steps: Some(cut(1)) },
        Stretch { ranks: ranks / 2, batch_size: BATCH * 2, start: cut(1) * global_batch, steps: Some(cut(2) - cut(1)) },
        Stretch { ranks: ranks / 8 * 5, batch_size: BATCH / 5 * 8, start: cut(2) * global_batch, steps: None },
    ];
    let plan_bytes = bytes_of_plans(samples, &worlds[0], ranks);
    let seen: Vec<AtomicU64> = (0..samples.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
    let found: Vec<Found> = worlds.into_iter().map(|stretch| walk(samples, stretch, &seen)).collect();

    let once: u64 = seen.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum();
    let twice: u64 = found.iter().map(|one| one.twice).sum();
    let steps: u64 = found.iter().map(|one| one.steps).sum();
    let unequal = found.iter().filter(|one| one.unequal).count();
    let resumed = found.windows(2).all(|pair| pair[0].end == pair[1].stretch.start);
    let right = once == samples && twice == 0 && unequal == 0 && resumed && steps == whole;
    let report = report(&arguments, &found, plan_bytes, (once, twice, whole, right));
    print!("{report}");
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder).expect("the folder for the report");
        std::fs::write(folder.join("README.md"), &report).expect("the report");
    }
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(
    arguments: &Arguments,
    found: &[Found],
    plan_bytes: u64,
    (once, twice, whole, right): (u64, u64, u64, bool),
) -> String {
    let Arguments { samples, ranks, .. } = arguments;
    let mut text = format!(
        "# One plan for {} nodes of 8 ranks\n\n{samples} samples, {whole} steps an epoch; every rank of the run is simulated.\n\n\
         {}\n\n| ranks | rows a rank and step | from position | steps, the same at every rank | rows | plan and epoch, a \
         rank | wall | a row, all threads |\n|---|---|---|---|---|---|---|---|\n",
        ranks / 8,
        about("many_nodes")
    );
    for one in found {
        let Stretch { ranks, batch_size, start, .. } = one.stretch;
        let per_row = one.wall.as_nanos() as f64 / one.rows.max(1) as f64;
        let _ = writeln!(
            text,
            "| {ranks} | {batch_size} | {start} | {}{} | {} | {:.1} us | {:.1} s | {per_row:.1} ns |",
            one.steps,
            if one.unequal { " (UNEQUAL)" } else { "" },
            one.rows,
            one.plan_time.as_secs_f64() * 1e6,
            one.wall.as_secs_f64(),
        );
    }
    let _ = writeln!(
        text,
        "\n{once} of {samples} samples taken, {twice} of them more than once. A rank's plan and epoch take {plan_bytes} bytes. {}",
        if right { "Every sample exactly once, every rank equally many steps." } else { "WRONG." }
    );
    text
}

fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    // Not a multiple of anything, so that the last step is short.
    let mut arguments = Arguments { samples: 1_000_000_007, ranks: 8000, out: None };
    let mut words = words.filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--quick" | "--test" => (arguments.samples, arguments.ranks) = (5_000_011, 8000),
            "--samples" => arguments.samples = value()?.parse().map_err(|error| format!("{word}: {error}"))?,
            "--ranks" => arguments.ranks = value()?.parse().map_err(|error| format!("{word}: {error}"))?,
            "--out" => arguments.out = Some(out_folder(&value()?)),
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    if arguments.ranks == 0 || !arguments.ranks.is_multiple_of(8) {
        return Err(format!("--ranks is a multiple of 8, got {}", arguments.ranks));
    }
    Ok(arguments)
}
