//! How near do the readers come to fio on files that are not in memory?
//!
//! Unit: MB/s (10^6 bytes) of wall time, 128 KiB at random places of one file, each place once, COLD page cache. fio's
//! io_uring engine, with registered buffers and files (and in a row of its own with huge pages), beside each reader at the same depth and directness; everything
//! in one interleaved run, of which the median is taken. Leaves out: decoding, several files, warm caches (`read` has
//! those). The readers' adaptive depth is a row of its own; in all others the depth is fixed.
//!
//! `cargo bench -p feedline-bench --bench read_cold -- [--quick] [--gib N] [--seconds N] [--repeats N] [--depths 1,8,32]
//! [--file PATH] [--drop all|files] [--out DIR]`; with `--out` it writes README.md and raw.csv there. Without fio only
//! the readers are measured.

mod contest;
mod fio;
mod report;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use contest::{Contestant, Outcome, Program, Task};
use feedline_bench::cold::{Drop, fio_version};
use feedline_bench::machine::out_folder;
use feedline_loader::read::{Pace, ReaderChoice};

/// What is measured, and how long.
struct Arguments {
    file: PathBuf,
    file_bytes: u64,
    seconds: u64,
    repeats: u32,
    depths: Vec<u32>,
    drop: Drop,
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    lay_out(&arguments.file, arguments.file_bytes);
    let fio = fio_version();
    if fio.is_none() {
        eprintln!("skipped: fio: not installed; only the readers are measured");
    }
    let with_huge_pages = fio.is_some() && fio::has_huge_pages();
    if !with_huge_pages {
        eprintln!("skipped: fio into huge pages: there is no fio, or transparent_hugepage is never");
    }
    let contestants = contestants(&arguments.depths, fio.is_some(), with_huge_pages);
    let mut outcomes: Vec<Outcome> = Vec::new();
    for repeat in 0..arguments.repeats {
        // Each round starts with another contestant, so that none is always the one after the same other.
        let first = repeat as usize * contestants.len() / arguments.repeats as usize;
        for index in 0..contestants.len() {
            let contestant = &contestants[(first + index) % contestants.len()];
            arguments.drop.run(std::slice::from_ref(&arguments.file));
            let task = Task {
                path: &arguments.file,
                file_bytes: arguments.file_bytes,
                limit: Duration::from_secs(arguments.seconds),
                seed: u64::from(repeat) + 1,
            };
            match contestant.measure(&task) {
                Ok(measured) => {
                    eprintln!("{repeat} {contestant}: {:.0} MB/s", measured.rate());
                    outcomes.push(Outcome { contestant: contestant.clone(), repeat, measured });
                }
                Err(reason) => eprintln!("skipped: {contestant}: {reason}"),
            }
        }
    }
    let tables = report::tables(&contestants, &outcomes);
    println!("{tables}");
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder).expect("make the folder");
        let readme = report::readme(&arguments, fio.as_deref(), &outcomes, &tables);
        std::fs::write(folder.join("README.md"), readme).expect("write README.md");
        std::fs::write(folder.join("raw.csv"), report::raw(&outcomes)).expect("write raw.csv");
        println!("written to {}", folder.display());
    }
    ExitCode::SUCCESS
}

/// fio and the readers at each depth and directness, then those that have no counterpart.
fn contestants(depths: &[u32], with_fio: bool, with_huge_pages: bool) -> Vec<Contestant> {
    let mut all = Vec::new();
    for direct in [true, false] {
        for &depth in depths {
            let mut add = |program| all.push(Contestant { program, direct, depth });
            let ours = |choice| Program::Reader { choice, pace: Pace::Fixed, aligned: true };
            if with_fio {
                add(Program::Fio { engine: "io_uring", huge_pages: false });
            }
            if with_huge_pages && direct {
                add(Program::Fio { engine: "io_uring", huge_pages: true });
            }
            if direct {
                add(ours(ReaderChoice::UringDirect));
            } else {
                add(ours(ReaderChoice::Uring));
                add(ours(ReaderChoice::Pread));
                add(ours(ReaderChoice::Mmap));
            }
        }
    }
    let most = depths.iter().copied().max().unwrap_or(1);
    let choice = |direct| if direct { ReaderChoice::UringDirect } else { ReaderChoice::Uring };
    for direct in [true, false] {
        let adaptive = Program::Reader { choice: choice(direct), pace: Pace::Adaptive, aligned: true };
        all.push(Contestant { program: adaptive, direct, depth: most });
        let unaligned = Program::Reader { choice: choice(direct), pace: Pace::Fixed, aligned: false };
        all.push(Contestant { program: unaligned, direct, depth: most });
    }
    if with_fio {
        all.push(Contestant { program: Program::Fio { engine: "mmap", huge_pages: false }, direct: false, depth: 1 });
    }
    all
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        file: Path::new(env!("CARGO_TARGET_TMPDIR")).join("read_cold.bin"),
        file_bytes: 4 << 30,
        seconds: 4,
        repeats: 5,
        depths: vec![1, 8, 32],
        drop: Drop::usual(),
        out: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse::<u32>().map_err(|error| format!("{text}: {error}"));
        match word.as_str() {
            // Given by cargo.
            "--bench" => {}
            "--quick" | "--test" => {
                arguments.file = arguments.file.with_file_name("read_cold_quick.bin");
                (arguments.file_bytes, arguments.seconds, arguments.repeats) = (64 << 20, 1, 1);
                (arguments.depths, arguments.drop) = (vec![8], Drop::Files);
            }
            "--gib" => arguments.file_bytes = u64::from(number(value()?)?) << 30,
            "--seconds" => arguments.seconds = u64::from(number(value()?)?),
            "--repeats" => arguments.repeats = number(value()?)?,
            "--depths" => {
                arguments.depths = value()?.split(',').map(|text| number(text.to_owned())).collect::<Result<_, _>>()?
            }
            "--file" => arguments.file = value()?.into(),
            "--drop" => arguments.drop = Drop::parse(&value()?)?,
            "--out" => arguments.out = Some(out_folder(&value()?)),
            other => return Err(format!("unknown argument {other}; see the head of bench/benches/read_cold/main.rs")),
        }
    }
    Ok(arguments)
}

/// The file to read, of bytes that do not compress; kept from one run to the next.
fn lay_out(path: &Path, bytes: u64) {
    if path.metadata().is_ok_and(|metadata| metadata.len() == bytes) {
        return;
    }
    eprintln!("laying out {} MiB at {}", bytes >> 20, path.display());
    let mut file = File::create(path).expect("create the file");
    let mut state = 1_u64;
    let mut block = vec![0_u8; 1 << 20];
    for _ in 0..bytes >> 20 {
        for chunk in block.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
        file.write_all(&block).expect("write the file");
    }
    file.sync_all().expect("sync the file");
}
