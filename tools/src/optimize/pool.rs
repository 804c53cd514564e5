//! Writes shards anew: one thread cuts them into parts, workers write the JPEGs anew, and the parts are joined in their order.
//! What is in memory at once is bounded, and no byte depends on the number of workers.

use std::collections::HashMap;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use feedline_loader::shard::{MemberHead, Part, PartTaker, ShardState, WholeMember, parts};
use feedline_loader::transcode::{Markers, Reason, Refusal, is_jpeg};
use feedline_loader::{Error, Result};

use super::Source;
use super::gate::Gate;
use super::jpeg::JpegOptimizer;
use super::set::{OptimizedSet, ShardRecord};
use super::tally::Tally;
use crate::hashed_file::{HashedFile, WrittenFile};

/// Bytes that are read and not yet written, without any worker and for each.
const AHEAD_BYTES: u64 = 64 << 20;
const AHEAD_WORKER_BYTES: u64 = 16 << 20;

/// What a part takes beside its bytes.
const PART_BYTES: u64 = 1 << 10;

/// Longest JPEG that is read whole.
const JPEG_BYTES_MAX: u64 = 256 << 20;

/// What came of the shards.
pub struct Outcome {
    /// Those that were published, in the order of the sources.
    pub written: Vec<(String, ShardRecord)>,
    /// Those that could not be read, and why.
    pub failed: Vec<(String, Error)>,
}

/// Writes every one of `sources` anew into `set`. `progress` is told bytes of the sources and JPEGs, as they are done.
pub fn optimize(
    sources: &[&Source],
    set: &OptimizedSet,
    markers: Markers,
    workers: u32,
    progress: &dyn Fn(u64, u64),
) -> Result<Outcome> {
    let ahead = Gate::new(AHEAD_BYTES + u64::from(workers) * AHEAD_WORKER_BYTES);
    let optimizer = JpegOptimizer::new(markers, workers)?;
    thread::scope(|scope| {
        let (jobs, to_do) = unbounded::<Job>();
        let (pieces, arrivals) = unbounded::<Numbered>();
        for _ in 0..workers {
            let (to_do, pieces, ahead, optimizer) = (to_do.clone(), pieces.clone(), &ahead, &optimizer);
            scope.spawn(move || {
                let _stop = StopOnPanic(ahead);
                for Job { number, cost, member } in to_do {
                    let arrival = Arrival::Piece(piece_of(optimizer, member));
                    if pieces.send(Numbered { number, cost, arrival }).is_err() {
                        break;
                    }
                }
            });
        }
        drop(to_do);
        let reader = &ahead;
        scope.spawn(move || read(sources, reader, jobs, pieces));

        // Each shard is synced while the next one is written.
        let (finished, to_publish) = bounded::<Finished>(1);
        let publishing = scope.spawn(move || publish(to_publish, set));
        let joined = Joiner { sources, set, markers, ahead: &ahead, progress, finished }.run(arrivals);
        ahead.stop();
        let published = publishing.join().expect("publishing does not panic");
        // A shard that cannot be published ends the joining too, with less to say: that reason comes first.
        Ok(Outcome { written: published?, failed: joined? })
    })
}

/// A member written anew, or as it is.
fn piece_of(optimizer: &JpegOptimizer, member: WholeMember) -> Piece {
    let before = member.body().len() as u64;
    match optimizer.optimize(member.body()) {
        Ok(body) => Piece::Optimized { bytes: member.with_body(&body), before, after: body.len() as u64 },
        Err(refusal) => Piece::Copied { name: member.name.clone(), refusal, bytes: member.into_bytes() },
    }
}

/// A JPEG for a worker.
struct Job {
    number: u64,
    cost: u64,
    member: WholeMember,
}

/// A piece with its place among all, and what it took of the memory.
struct Numbered {
    number: u64,
    cost: u64,
    arrival: Arrival,
}

enum Piece {
    /// Bytes that are passed on.
    Bytes(Vec<u8>),
    /// A member that was written anew.
    Optimized { bytes: Vec<u8>, before: u64, after: u64 },
    /// A JPEG that stays as it is; its bytes may come in other pieces.
    Copied { name: String, refusal: Refusal, bytes: Vec<u8> },
}

/// What the joiner gets.
enum Arrival {
    Piece(Piece),
    /// The end of a shard.
    End(Result<ShardState>),
}

/// Wakes whoever waits when a worker dies, so that its panic is seen and not a hang.
struct StopOnPanic<'a>(&'a Gate);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

/// Cuts the shards into parts, and hands them on as far as there is room.
fn read(sources: &[&Source], ahead: &Gate, jobs: Sender<Job>, pieces: Sender<Numbered>) {
    let mut cutter = Cutter { ahead, jobs, pieces, number: 0 };
    for source in sources {
        let end = parts(&source.path, ahead.stopped(), &mut cutter);
        if cutter.hand_on(0, Arrival::End(end)).is_err() {
            return;
        }
    }
}

struct Cutter<'a> {
    ahead: &'a Gate,
    jobs: Sender<Job>,
    pieces: Sender<Numbered>,
    number: u64,
}

impl Cutter<'_> {
    fn hand_on(&mut self, cost: u64, arrival: Arrival) -> Result<()> {
        let number = self.number;
        self.number += 1;
        self.pieces.send(Numbered { number, cost, arrival }).map_err(|_| gone())
    }
}

impl PartTaker for Cutter<'_> {
    fn wants(&mut self, head: &MemberHead<'_>) -> bool {
        if !is_jpeg(head.start) {
            return false;
        }
        let refusal = if head.has_size_record {
            Refusal::new(Reason::Unusual, "its length stands in an extended header of the tar")
        } else if head.size > JPEG_BYTES_MAX {
            Refusal::new(Reason::TooLarge, format!("{} bytes, at most {JPEG_BYTES_MAX} are read", head.size))
        } else {
            return true;
        };
        // That nobody listens is seen at the next part.
        let piece = Piece::Copied { name: head.name.to_owned(), refusal, bytes: Vec::new() };
        let _ = self.hand_on(0, Arrival::Piece(piece));
        false
    }

    fn take(&mut self, part: Part) -> Result<()> {
        // A JPEG is in memory twice: as it was, and written anew.
        let cost = PART_BYTES
            + match &part {
                Part::Bytes(bytes) => bytes.len() as u64,
                Part::Member(member) => 2 * member.body().len() as u64,
            };
        if !self.ahead.take(cost) {
            return Err(gone());
        }
        match part {
            Part::Bytes(bytes) => self.hand_on(cost, Arrival::Piece(Piece::Bytes(bytes))),
            Part::Member(member) => {
                let number = self.number;
                self.number += 1;
                self.jobs.send(Job { number, cost, member }).map_err(|_| gone())
            }
        }
    }
}

/// Never told: whoever is gone had a reason, and that is.
fn gone() -> Error {
    Error::system("go on", std::io::Error::other("the writer of the shards has stopped"))
}

/// A complete shard on its way to its final name.
struct Finished {
    name: String,
    shard: WrittenFile,
    record: ShardRecord,
}

fn publish(to_publish: Receiver<Finished>, set: &OptimizedSet) -> Result<Vec<(String, ShardRecord)>> {
    let published = to_publish.into_iter().map(|Finished { name, shard, record }| {
        set.publish(&name, &shard, &record)?;
        Ok((name, record))
    });
    published.collect()
}

/// Joins the pieces of all shards in their order.
struct Joiner<'a> {
    sources: &'a [&'a Source],
    set: &'a OptimizedSet,
    markers: Markers,
    ahead: &'a Gate,
    progress: &'a dyn Fn(u64, u64),
    finished: Sender<Finished>,
}

impl Joiner<'_> {
    /// Returns the shards that could not be read.
    fn run(self, arrivals: Receiver<Numbered>) -> Result<Vec<(String, Error)>> {
        let mut early = HashMap::new();
        let mut next = 0;
        let mut failed = Vec::new();
        for source in self.sources {
            let mut file = HashedFile::create(self.set.folder().temporary_path(&source.name))?;
            let (mut tally, mut bytes_before) = (Tally::default(), 0);
            let end = loop {
                let Numbered { cost, arrival, .. } = in_order(&arrivals, &mut early, &mut next)?;
                match arrival {
                    Arrival::End(end) => break end,
                    Arrival::Piece(piece) => bytes_before += self.add(piece, &mut file, &mut tally)?,
                }
                self.ahead.give_back(cost);
            };
            match end {
                Ok(state) => self.finish(source, state, file, (tally, bytes_before))?,
                // What was written of it stays under its temporary name, which the set removes.
                Err(error) => failed.push((source.name.clone(), error)),
            }
        }
        Ok(failed)
    }

    /// Writes a piece; returns how many bytes of the shard it stands for.
    fn add(&self, piece: Piece, file: &mut HashedFile, tally: &mut Tally) -> Result<u64> {
        let (bytes, bytes_before, jpegs) = match piece {
            Piece::Optimized { bytes, before, after } => {
                tally.add_optimized(before, after);
                (bytes, BLOCK_BYTES + before.next_multiple_of(BLOCK_BYTES), 1)
            }
            Piece::Copied { name, refusal, bytes } => {
                tally.add_copied(name, refusal);
                let before = bytes.len() as u64;
                (bytes, before, 1)
            }
            Piece::Bytes(bytes) => {
                let before = bytes.len() as u64;
                (bytes, before, 0)
            }
        };
        file.write(&bytes)?;
        (self.progress)(bytes_before, jpegs);
        Ok(bytes_before)
    }

    fn finish(&self, source: &Source, state: ShardState, file: HashedFile, done: (Tally, u64)) -> Result<()> {
        let shard = file.finish()?;
        let (bytes, blake3) = (shard.bytes, shard.blake3.clone());
        let (tally, bytes_before) = done;
        let record = ShardRecord { source: state, markers: self.markers, bytes_before, bytes, blake3, tally };
        let finished = Finished { name: source.name.clone(), shard, record };
        self.finished.send(finished).map_err(|_| gone())
    }
}

/// Headers and bodies of a tar start at multiples of this.
const BLOCK_BYTES: u64 = 512;

/// The next piece by number; those that come before their turn wait in `early`.
fn in_order(arrivals: &Receiver<Numbered>, early: &mut HashMap<u64, Numbered>, next: &mut u64) -> Result<Numbered> {
    let found = loop {
        if let Some(found) = early.remove(next) {
            break found;
        }
        let arrived = arrivals
            .recv()
            .map_err(|_| Error::system("write shards anew", std::io::Error::other("a worker thread has died")))?;
        early.insert(arrived.number, arrived);
    };
    *next += 1;
    Ok(found)
}
