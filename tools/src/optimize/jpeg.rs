//! JPEGs written anew by several threads, within a bound of memory for all.

use crossbeam_channel::{Receiver, Sender, bounded};
use feedline_loader::Result;
use feedline_loader::sys::memory::MemoryReport;
use feedline_loader::transcode::{JpegFile, Markers, Refusal, Transcoder};

use super::gate::Gate;

/// Memory for coefficients, of all workers: a quarter of what is free, within these bounds.
const COEFFICIENTS_MIN: u64 = 512 << 20;
const COEFFICIENTS_MAX: u64 = 16 << 30;

/// Writes JPEGs anew, some at once; more threads than that wait for their turn.
pub struct JpegOptimizer {
    markers: Markers,
    coefficients: Gate,
    transcoders: (Sender<Transcoder>, Receiver<Transcoder>),
}

/// A transcoder that comes back to the others, even where a thread panics.
struct Lent<'a> {
    transcoder: Option<Transcoder>,
    others: &'a Sender<Transcoder>,
}

impl JpegOptimizer {
    /// One that keeps `markers`, for `workers` JPEGs at once.
    pub fn new(markers: Markers, workers: u32) -> Result<Self> {
        let free = MemoryReport::read().free_bytes();
        let limit = free.map_or(COEFFICIENTS_MIN, |free| (free / 4).clamp(COEFFICIENTS_MIN, COEFFICIENTS_MAX));
        let transcoders = bounded(workers as usize);
        for _ in 0..workers {
            transcoders.0.send(Transcoder::new()?).expect("there is room for each, and a receiver");
        }
        Ok(Self { markers, coefficients: Gate::new(limit), transcoders })
    }

    /// How many are written anew at once.
    pub fn workers(&self) -> usize {
        self.transcoders.0.capacity().unwrap_or(1)
    }

    /// `bytes` written anew.
    pub fn optimize(&self, bytes: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
        let file = JpegFile::parse(bytes)?;
        let (others, idle) = &self.transcoders;
        let transcoder = idle.recv().expect("there is a sender");
        let mut lent = Lent { transcoder: Some(transcoder), others };
        // Those of the file, and those of what is written, which are read for comparison.
        let memory = 2 * file.coefficient_bytes();
        self.coefficients.take(memory);
        let optimized = lent.transcoder.as_mut().expect("until the drop").optimize(&file, self.markers);
        self.coefficients.give_back(memory);
        optimized
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let transcoder = self.transcoder.take().expect("dropped once");
        self.others.send(transcoder).expect("it has a place, and there is a receiver");
    }
}
