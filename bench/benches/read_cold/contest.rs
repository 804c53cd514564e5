//! Who is measured, and how one of our readers is.

use std::fmt;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use feedline_loader::read::{Arena, Completion, Pace, ReadRequest, ReaderChoice, open_paced_reader};
use feedline_loader::sys::epoll::Epoll;
use rustix::time::{ClockId, clock_gettime};

use crate::fio;

/// Bytes of each read.
pub const READ_BYTES: u64 = 128 << 10;

/// Where unaligned reads begin, after the border of a block.
const SHIFT: u64 = 777;

/// Who reads.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// fio with this engine, into huge pages or the usual ones.
    Fio { engine: &'static str, huge_pages: bool },
    /// One of our readers, from places that are multiples of the read's size or not.
    Reader { choice: ReaderChoice, pace: Pace, aligned: bool },
}

/// Who reads, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Contestant {
    pub program: Program,
    /// Past the page cache.
    pub direct: bool,
    /// Reads in flight at most.
    pub depth: u32,
}

/// What is to be read.
pub struct Task<'a> {
    pub path: &'a Path,
    pub file_bytes: u64,
    pub limit: Duration,
    pub seed: u64,
}

/// What one measurement gave.
#[derive(Debug, Clone)]
pub struct Measured {
    pub bytes: u64,
    pub elapsed: Duration,
    /// CPU time of the process that reads.
    pub cpu: Duration,
    /// What it says about itself.
    pub words: String,
}

/// A measurement of the run.
pub struct Outcome {
    pub contestant: Contestant,
    pub repeat: u32,
    pub measured: Measured,
}

impl Measured {
    /// Megabytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.elapsed.as_secs_f64()
    }
}

impl Contestant {
    /// Its name, without depth and directness.
    pub fn name(&self) -> String {
        match &self.program {
            Program::Fio { engine, huge_pages: false } => format!("fio {engine}"),
            Program::Fio { engine, huge_pages: true } => format!("fio {engine}, huge pages"),
            Program::Reader { choice, pace, aligned } => {
                let pace = if *pace == Pace::Adaptive { ", adaptive" } else { "" };
                let aligned = if *aligned { "" } else { ", unaligned" };
                format!("{choice}{pace}{aligned}")
            }
        }
    }

    pub fn measure(&self, task: &Task<'_>) -> Result<Measured, String> {
        match self.program {
            Program::Fio { engine, huge_pages } => fio::measure(engine, huge_pages, self.direct, self.depth, task),
            Program::Reader { choice, pace, aligned } => read(choice, pace, aligned, self.depth, task),
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.direct { "direct" } else { "buffered" };
        write!(formatter, "{}, {way}, depth {}", self.name(), self.depth)
    }
}

/// The numbers below `count` in a random order, without keeping them: a full-period congruence over the next power of
/// two, of which those beyond are left out.
fn shuffled(count: u64, seed: u64) -> impl Iterator<Item = u64> {
    let modulus = count.next_power_of_two();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) % modulus;
    (0..modulus)
        .map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) % modulus;
            // The low bits of a congruence repeat soon: mixed by steps that can be undone, so that each comes once.
            let half = modulus.trailing_zeros() / 2 + 1;
            let mixed = (state ^ state >> half).wrapping_mul(0xD134_2543_DE82_EF95) % modulus;
            mixed ^ mixed >> half
        })
        .filter(move |&number| number < count)
}

fn read(choice: ReaderChoice, pace: Pace, aligned: bool, depth: u32, task: &Task<'_>) -> Result<Measured, String> {
    let text = |error: feedline_loader::Error| error.to_string();
    let mut arena = Arena::new(32 << 20).map_err(text)?;
    let mut reader = open_paced_reader(choice, &arena, depth, pace).map_err(text)?;
    let file = File::open(task.path).map_err(|error| error.to_string())?;
    let id = reader.add_file(file.into()).map_err(text)?;
    let words = reader.describe().to_string();
    let wake = Epoll::new().map_err(|error| error.to_string())?;
    let shift = if aligned { 0 } else { SHIFT };
    let mut offsets = shuffled(task.file_bytes / READ_BYTES - 1, task.seed).map(|number| number * READ_BYTES + shift);
    let mut done: Vec<Completion> = Vec::with_capacity(depth as usize);
    let (start, cpu_before) = (Instant::now(), cpu());
    let (mut bytes, mut over) = (0, false);
    loop {
        while !over && reader.in_flight() < depth {
            let Some(offset) = offsets.next().filter(|_| start.elapsed() < task.limit) else {
                over = true;
                break;
            };
            let buffer = arena.allocate_at(offset, READ_BYTES).map_err(text)?.ok_or("the arena is full")?;
            reader.submit(ReadRequest { file: id, offset, ticket: 0, buffer }).map_err(|_| "the reader is full")?;
        }
        if reader.in_flight() == 0 {
            break;
        }
        reader.wait(Duration::from_secs(10), wake.as_fd(), &mut done).map_err(text)?;
        for completion in done.drain(..) {
            completion.result.map_err(|error| error.to_string())?;
            bytes += READ_BYTES;
        }
    }
    Ok(Measured { bytes, elapsed: start.elapsed(), cpu: cpu() - cpu_before, words })
}

/// CPU time of this process, the kernel's work for it included.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
