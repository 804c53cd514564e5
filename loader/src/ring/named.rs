//! Rings with names: for readers that cannot be handed a descriptor.
//!
//! A ring is two segments, `NAME.slots` and `NAME.control`, both mode 0600. `NAME` is
//! `/feedline.JOB.RANK.PID.START.NUMBER`: the job's name in lower-case letters, digits and dashes, its rank, the
//! sidecar's process and when that started (ticks since boot), and which of its rings this is. Whoever attaches finds in
//! the control memory, beside what every ring has there, a description in JSON ([`Description`]).
//!
//! A name could outlive a sidecar that is killed. So the owner holds a lock on its control segment, which ends with its
//! process, and [`sweep`] takes away what is this user's, not locked, and named after a process that is gone or another
//! by now. It runs when a service starts and before a ring is made. Both conditions must hold: a process of another pid
//! namespace that shares the folder looks gone, and a ring in the making is not locked yet.
//!
//! Named memory cannot be sealed: every process of this user may cut it. The sidecar survives that, and ends the stream.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Serialize;

use super::layout;
use crate::batch::BatchLayout;
use crate::error::{Error, Result};
use crate::sys::memory::Mebibytes;
use crate::sys::segment;
use crate::sys::shared::{OnFork, SharedMapping};

/// Longest part of a name that the job gives.
const JOB_BYTES_MAX: usize = 64;

/// First part of every name.
const PREFIX: &str = "feedline";

const SLOTS_PART: &str = "slots";
const CONTROL_PART: &str = "control";

/// What a named ring is called after, and what its readers are told.
#[derive(Debug, Clone, Copy)]
pub struct Label<'a> {
    /// The job's name.
    pub job: &'a str,
    /// Its rank.
    pub rank: u32,
    /// This rank's batches of a whole epoch.
    pub batches_per_epoch: u64,
}

/// What a reader that attaches by name finds in the control memory, as JSON.
#[derive(Debug, Serialize)]
struct Description<'a> {
    /// Version of the control memory.
    version: u32,
    /// The job's name as it was given.
    job: &'a str,
    rank: u32,
    /// Name of the segment with the slots.
    slots_segment: &'a str,
    slot_count: u32,
    /// The process that fills the ring.
    sidecar_pid: u32,
    batches_per_epoch: u64,
    layout: &'a BatchLayout,
}

/// Which ring of which process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RingName {
    job: String,
    rank: u32,
    pid: u32,
    start_ticks: u64,
    number: u32,
}

impl std::fmt::Display for RingName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { job, rank, pid, start_ticks, number } = self;
        write!(formatter, "/{PREFIX}.{job}.{rank}.{pid}.{start_ticks}.{number}")
    }
}

impl RingName {
    /// A name that no other ring has.
    fn new(label: &Label<'_>) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let start_ticks = start_ticks(pid).ok_or_else(|| Error::Resources {
            message: format!(
                "a named ring is called after when its process started, and /proc/{pid}/stat does not say"
            ),
        })?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { job: slug(label.job), rank: label.rank, pid, start_ticks, number })
    }

    /// From the name of a file; `None` when it is no part of a ring.
    fn of_file(file: &str) -> Option<Self> {
        let mut parts = file.split('.');
        let mut next = || parts.next();
        if next()? != PREFIX {
            return None;
        }
        let job = next()?.to_owned();
        let (rank, pid, start_ticks, number) =
            (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
        let is_part = matches!(next()?, SLOTS_PART | CONTROL_PART) && next().is_none();
        is_part.then_some(Self { job, rank, pid, start_ticks, number })
    }

    /// Whether the process that it is called after is there, as far as this pid namespace shows.
    fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }
}

/// The memory of a named ring, reserved and mapped; its names go with it.
#[derive(Debug)]
pub(super) struct NamedMemory {
    pub(super) name: String,
    pub(super) slots: SharedMapping,
    pub(super) control: SharedMapping,
    /// Further descriptors of the two, for the client and for looking at holes.
    pub(super) slots_memory: OwnedFd,
    pub(super) control_memory: OwnedFd,
    pub(super) description: Vec<u8>,
    /// Held by nobody else, so that it ends with this process.
    pub(super) alive: OwnedFd,
}

impl NamedMemory {
    /// Makes the segments of a ring of `slot_count` slots.
    pub(super) fn create(layout: &BatchLayout, slot_count: u32, label: &Label<'_>) -> Result<Self> {
        sweep();
        let ring = RingName::new(label)?;
        let name = ring.to_string();
        let (slots_name, control_name) = (format!("{name}.{SLOTS_PART}"), format!("{name}.{CONTROL_PART}"));
        let description = serde_json::to_vec(&Description {
            version: layout::VERSION,
            job: label.job,
            rank: label.rank,
            slots_segment: &slots_name,
            slot_count,
            sidecar_pid: ring.pid,
            batches_per_epoch: label.batches_per_epoch,
            layout,
        })
        .map_err(|error| Error::protocol(format!("cannot describe a ring: {error}")))?;
        let description_bytes = u32::try_from(description.len())
            .map_err(|_| Error::config(format!("the description of the ring takes {} bytes", description.len())))?;
        let slots_bytes = layout.slot_bytes * u64::from(slot_count);
        let control_bytes = layout::Control::bytes_with(slot_count, description_bytes);
        check_room(slots_bytes + control_bytes)?;
        let create = |name: &str, bytes: u64| -> Result<(SharedMapping, OwnedFd)> {
            let bytes = usize::try_from(bytes).map_err(|_| Error::config("a ring larger than the address space"))?;
            let make = || {
                let mapping = SharedMapping::of_segment(segment::create_reserved(name, bytes)?, OnFork::Leave)?;
                Ok((mapping, segment::open(name)?))
            };
            make().map_err(|error| refusal(name, slots_bytes + control_bytes, error))
        };
        let (slots, slots_memory) = create(&slots_name, slots_bytes)?;
        let (control, control_memory) = create(&control_name, control_bytes)?;
        let mark = || {
            let alive = segment::open(&control_name)?;
            let is_marked = segment::mark_alive(&alive)?;
            if is_marked { Ok(alive) } else { Err(io::Error::other("another process holds its lock")) }
        };
        let alive = mark().map_err(|error| refusal(&control_name, slots_bytes + control_bytes, error))?;
        Ok(Self { name, slots, control, slots_memory, control_memory, description, alive })
    }
}

/// Refuses what the folder of the segments cannot hold, before anything is made.
fn check_room(needed_bytes: u64) -> Result<()> {
    let free = segment::free_bytes().map_err(|error| Error::Resources {
        message: format!(
            "a named ring lies in {}, which cannot be looked at: {error}; mount a tmpfs there, or use ring=\"memfd\"",
            segment::FOLDER
        ),
    })?;
    match free {
        Some(free_bytes) if free_bytes < needed_bytes => Err(no_room(needed_bytes, &Mebibytes(free_bytes).to_string())),
        _ => Ok(()),
    }
}

fn no_room(needed_bytes: u64, have: &str) -> Error {
    Error::Resources {
        message: format!(
            "the named ring needs {} in {}, which has {have} free: raise its size (docker run --shm-size=…, a larger \
             emptyDir of medium Memory, or mount -o remount,size=… {}), lower slots or batch_size, or use ring=\"memfd\", \
             which does not lie there",
            Mebibytes(needed_bytes),
            segment::FOLDER,
            segment::FOLDER
        ),
    }
}

/// Why a segment could not be made, with the way out.
fn refusal(name: &str, needed_bytes: u64, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::ENOMEM) => no_room(needed_bytes, "less"),
        Some(libc::EEXIST) => Error::Resources {
            message: format!(
                "{}{name} is there already{}, and is nobody's to take over: remove it, or give the job another name",
                segment::FOLDER,
                owner(name)
            ),
        },
        _ => Error::Resources {
            message: format!("cannot make {}{name} for a named ring: {error}; or use ring=\"memfd\"", segment::FOLDER),
        },
    }
}

/// Words for who made a file.
fn owner(name: &str) -> String {
    use std::os::unix::fs::MetadataExt;
    let path = Path::new(segment::FOLDER).join(name.trim_start_matches('/'));
    fs::symlink_metadata(path).map_or_else(|_| String::new(), |found| format!(", made by uid {}", found.uid()))
}

/// Takes away what rings of dead processes of this user left behind; returns how many segments that were.
pub fn sweep() -> u32 {
    let Ok(entries) = fs::read_dir(segment::FOLDER) else { return 0 };
    let mut swept = 0;
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(file) = file.to_str() else { continue };
        let Some(ring) = RingName::of_file(file).filter(|ring| !ring.is_alive()) else { continue };
        if is_abandoned(&ring) && segment::unlink(&format!("/{file}")).is_ok() {
            tracing::info!("took away {}/{file}, which process {} left behind", segment::FOLDER, ring.pid);
            swept += 1;
        }
    }
    swept
}

/// Whether a ring is this user's and nobody holds its lock. A ring without control segment was never finished, or is
/// half swept.
fn is_abandoned(ring: &RingName) -> bool {
    match segment::open(&format!("{ring}.{CONTROL_PART}")) {
        Ok(control) => segment::mark_alive(&control).unwrap_or(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => segment::open(&format!("{ring}.{SLOTS_PART}")).is_ok(),
        Err(_) => false,
    }
}

/// When a living process started, in ticks since boot; `None` when there is none of this number, or it only waits for
/// its parent to look at its end.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in brackets that may hold anything; the state comes after it, the start is field 22.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A job's name as part of a file's name.
fn slug(job: &str) -> String {
    let mut slug = String::new();
    for letter in job.chars().take(JOB_BYTES_MAX) {
        slug.push(if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' });
    }
    if slug.is_empty() { "job".to_owned() } else { slug }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let label = Label { job: "Train/ImageNet 1k.ü", rank: 3, batches_per_epoch: 7 };
        let name = RingName::new(&label).expect("named");
        assert_eq!(name.job, "train-imagenet-1k--");
        assert!(name.is_alive());
        let check = |file: &str, expected: Option<&RingName>| {
            assert_eq!(RingName::of_file(file).as_ref(), expected, "{file}");
        };
        let file = name.to_string().trim_start_matches('/').to_owned();
        check(&format!("{file}.slots"), Some(&name));
        check(&format!("{file}.control"), Some(&name));
        check(&file, None);
        check(&format!("{file}.control.x"), None);
        check(&format!("{file}.other"), None);
        check("feedline.job.0.1.slots", None);
        check("feedline.job.0.-1.2.3.slots", None);
        check("sem.feedline", None);
        check("", None);
        assert_ne!(RingName::new(&label).expect("named"), name, "one each");
    }

    #[test]
    fn slugs_are_safe() {
        let check = |job: &str, expected: &str| assert_eq!(slug(job), expected);
        check("", "job");
        check("../../etc", "------etc");
        check(&"x".repeat(300), &"x".repeat(JOB_BYTES_MAX));
    }

    #[test]
    fn a_process_is_alive_by_number_and_start() {
        let own = std::process::id();
        let ticks = start_ticks(own).expect("this process lives");
        let name = |pid, start_ticks| RingName { job: "job".into(), rank: 0, pid, start_ticks, number: 0 };
        assert!(name(own, ticks).is_alive());
        assert!(!name(own, ticks + 1).is_alive(), "another process of that number");
        assert!(!name(u32::MAX, ticks).is_alive());
        let mut child = std::process::Command::new("true").spawn().expect("start");
        let pid = child.id();
        let started = start_ticks(pid);
        // Ended and not waited for, which only the state tells.
        while start_ticks(pid).is_some() {
            std::thread::yield_now();
        }
        assert!(!name(pid, started.unwrap_or(0)).is_alive());
        child.wait().expect("wait");
    }

    #[test]
    fn only_what_the_dead_left_is_swept() {
        let dead = RingName { job: "swept".into(), rank: 0, pid: u32::MAX, start_ticks: 1, number: std::process::id() };
        let lives = RingName {
            pid: std::process::id(),
            start_ticks: start_ticks(std::process::id()).expect("lives"),
            ..dead.clone()
        };
        let make = |name: &RingName, part: &str| {
            let segment = segment::create_reserved(&format!("{name}.{part}"), 1 << 16).expect("create");
            // Left behind, as by a kill.
            std::mem::forget(segment);
        };
        let is_there = |name: &RingName, part: &str| segment::open(&format!("{name}.{part}")).is_ok();
        for name in [&dead, &lives] {
            make(name, SLOTS_PART);
            make(name, CONTROL_PART);
        }
        let control = segment::open(&format!("{dead}.{CONTROL_PART}")).expect("open");
        assert!(segment::mark_alive(&control).expect("mark"));
        sweep();
        assert!(is_there(&dead, SLOTS_PART) && is_there(&dead, CONTROL_PART), "its owner lives in another namespace");
        drop(control);
        sweep();
        assert!(!is_there(&dead, SLOTS_PART) && !is_there(&dead, CONTROL_PART));
        assert!(is_there(&lives, SLOTS_PART) && is_there(&lives, CONTROL_PART));
        for part in [SLOTS_PART, CONTROL_PART] {
            segment::unlink(&format!("{lives}.{part}")).expect("unlink");
        }
    }
}
