//! One bound for the memory that a sidecar takes on behalf of its clients, and who holds how much of it.
//!
//! Each part reserves before it allocates and gives back when it frees. That is an addition to two atomic words; only
//! holders with a name (the rings, which are made once a stream) are on a list under a lock.
//!
//! Within the bound: rings, the memory that reads go to, encoded samples that are kept, shards that are unpacked into
//! memory, and indexes that are not mapped from files. Outside of it, because they are small, bounded by the samples and
//! known only afterwards: stacks, what a worker decodes into, lists of sample numbers, and the one-off memory of batches
//! whose values find no room in their slot, which lives as long as the batch and is counted as spilled bytes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::{Mebibytes, MemoryReport};
use crate::error::{Error, Result};

/// The smallest bound that can be asked for: below it not even the reads have room.
pub const BUDGET_BYTES_MIN: u64 = 16 << 20;

/// What memory is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Slots that clients map.
    Rings,
    /// The arena that reads go to.
    Reads,
    /// Reads that are too long for the arena.
    LongReads,
    /// Encoded samples that are kept.
    Cache,
    /// Compressed shards that are unpacked where files are memory.
    Unpacked,
    /// Indexes that are not mapped from files.
    Indexes,
}

impl Part {
    /// Every part, in the order of the enum.
    pub const ALL: [Self; 6] = [Self::Rings, Self::Reads, Self::LongReads, Self::Cache, Self::Unpacked, Self::Indexes];

    /// The name under which it is metered.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rings => "rings",
            Self::Reads => "reads",
            Self::LongReads => "long_reads",
            Self::Cache => "cache",
            Self::Unpacked => "unpacked",
            Self::Indexes => "indexes",
        }
    }
}

/// The bound, and what is taken of it.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: u64,
    /// Where the bound comes from, for messages.
    origin: String,
    taken_bytes: AtomicU64,
    parts: [AtomicU64; Part::ALL.len()],
    holders: Mutex<Holders>,
}

#[derive(Debug, Default)]
struct Holders {
    next: u64,
    named: Vec<Holder>,
}

#[derive(Debug)]
struct Holder {
    number: u64,
    name: String,
    bytes: u64,
}

/// A part of the budget, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    part: Part,
    bytes: u64,
    holder: Option<u64>,
}

/// There is less than was asked for. In words: have, need, and who holds the rest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("only {} of the memory budget are left ({origin}; {held})", Mebibytes(*.free_bytes))]
pub struct Shortage {
    /// What is left.
    pub free_bytes: u64,
    origin: String,
    held: String,
}

impl Budget {
    /// A bound that somebody chose.
    pub fn chosen(bytes: u64) -> Result<Arc<Self>> {
        if bytes < BUDGET_BYTES_MIN {
            return Err(Error::config(format!(
                "a memory budget of {} is too small: reads alone need {}, and a ring needs the bytes of its batches",
                Mebibytes(bytes),
                Mebibytes(BUDGET_BYTES_MIN)
            )));
        }
        Ok(Self::new(bytes, format!("{} by --memory", Mebibytes(bytes))))
    }

    /// Where nobody chooses: three quarters of what machine and control group have free; the rest is for the trainers and
    /// for what is outside the bound. No bound where the system does not say what is free.
    pub fn of_machine(memory: &MemoryReport) -> Arc<Self> {
        let Some(free_bytes) = memory.free_bytes() else {
            return Self::new(u64::MAX, "nobody knows how much memory there is".to_owned());
        };
        let bytes = (free_bytes / 4 * 3).max(BUDGET_BYTES_MIN);
        let origin = format!("{}, three quarters of what was free at the start: {memory}", Mebibytes(bytes));
        Self::new(bytes, origin)
    }

    /// No bound.
    pub fn unbounded() -> Arc<Self> {
        Self::new(u64::MAX, "no bound".to_owned())
    }

    fn new(limit_bytes: u64, origin: String) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            origin,
            taken_bytes: AtomicU64::new(0),
            parts: Default::default(),
            holders: Mutex::default(),
        })
    }

    /// The bound, if there is one.
    pub fn limit_bytes(&self) -> Option<u64> {
        (self.limit_bytes < u64::MAX).then_some(self.limit_bytes)
    }

    /// What a part holds.
    pub fn taken_by(&self, part: Part) -> u64 {
        self.parts[part as usize].load(Relaxed)
    }

    /// What all parts hold.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Relaxed)
    }

    /// Takes `bytes` for `part`.
    pub fn reserve(self: &Arc<Self>, part: Part, bytes: u64) -> Result<Reservation, Shortage> {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|&sum| sum <= self.limit_bytes);
        // Relaxed: these are sums; the memory itself is handed over by other means.
        if self.taken_bytes.fetch_update(Relaxed, Relaxed, fits).is_err() {
            return Err(self.shortage());
        }
        self.parts[part as usize].fetch_add(bytes, Relaxed);
        Ok(Reservation { budget: self.clone(), part, bytes, holder: None })
    }

    /// As [`Budget::reserve`], for a holder that others are told of.
    pub fn reserve_for(self: &Arc<Self>, part: Part, bytes: u64, name: String) -> Result<Reservation, Shortage> {
        let mut reservation = self.reserve(part, bytes)?;
        let mut holders = self.holders();
        let number = holders.next;
        holders.next += 1;
        holders.named.push(Holder { number, name, bytes });
        reservation.holder = Some(number);
        Ok(reservation)
    }

    #[cold]
    fn shortage(&self) -> Shortage {
        let taken = self.taken_bytes();
        let parts = Part::ALL.into_iter().filter(|&part| self.taken_by(part) > 0);
        let mut held: Vec<String> =
            parts.map(|part| format!("{} hold {}", part.name(), Mebibytes(self.taken_by(part)))).collect();
        let holders = self.holders();
        held.extend(holders.named.iter().map(|Holder { name, bytes, .. }| format!("{name}: {}", Mebibytes(*bytes))));
        let held = if held.is_empty() { "nothing is held".to_owned() } else { held.join(", ") };
        Shortage { free_bytes: self.limit_bytes.saturating_sub(taken), origin: self.origin.clone(), held }
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.origin)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.parts[self.part as usize].fetch_sub(self.bytes, Relaxed);
        self.budget.taken_bytes.fetch_sub(self.bytes, Relaxed);
        if let Some(number) = self.holder {
            self.budget.holders().named.retain(|holder| holder.number != number);
        }
    }
}

/// A number of bytes in words: `1500000`, `512M`, `8G`, `1.5 GiB`. Units are powers of 1024.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let refuse = || Error::config(format!("{text:?} is no number of bytes: write it as in 512M, 8G or 8589934592"));
    let trimmed = text.trim();
    let end = trimmed.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let power = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" if !unit.starts_with('i') => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(refuse()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << power).ok_or_else(refuse);
    }
    let part = number.parse::<f64>().map_err(|_| refuse())? * (1_u64 << power) as f64;
    // Half of the range of u64: beyond it nothing is a number of bytes of this world.
    if power > 0 && part < 9e18 { Ok(part as u64) } else { Err(refuse()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_in_words() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(parse_bytes(text).ok(), expected, "{text:?}");
        };
        check("0", Some(0));
        check("1500000", Some(1_500_000));
        check("512M", Some(512 << 20));
        check("8g", Some(8 << 30));
        check("8 GiB", Some(8 << 30));
        check("8GB", Some(8 << 30));
        check("1.5k", Some(1536));
        check("7b", Some(7));
        check("2T", Some(2 << 40));
        for wrong in ["", "x", "-1", "1.5", "8 Q", "1.2.3G", "ib", "3ib", "99999999999G", "1e30", "G"] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_shortage_names_holders() {
        let budget = Budget::chosen(64 << 20).expect("large enough");
        let reads = budget.reserve(Part::Reads, 32 << 20).expect("room");
        let ring = budget.reserve_for(Part::Rings, 24 << 20, "job \"a\", rank 0".to_owned()).expect("room");
        let shortage = budget.reserve(Part::Rings, 9 << 20).expect_err("no room");
        assert_eq!(shortage.free_bytes, 8 << 20);
        assert_eq!(
            shortage.to_string(),
            "only 8.0 MiB of the memory budget are left (64.0 MiB by --memory; rings hold 24.0 MiB, reads hold 32.0 MiB, \
             job \"a\", rank 0: 24.0 MiB)"
        );
        drop(ring);
        assert_eq!(budget.taken_bytes(), 32 << 20);
        let words = budget.reserve(Part::Rings, 33 << 20).expect_err("no room").to_string();
        assert!(!words.contains("job"), "{words}");
        drop(reads);
        drop(budget.reserve(Part::Rings, 64 << 20).expect("all of it"));
        assert!(Budget::chosen(BUDGET_BYTES_MIN - 1).is_err());
    }

    #[test]
    fn the_share_of_the_machine() {
        let report = |machine_free_bytes| MemoryReport { machine_free_bytes, group: None };
        let limit = |free| Budget::of_machine(&report(free)).limit_bytes();
        assert_eq!(limit(Some(8 << 30)), Some(6 << 30));
        assert_eq!(limit(Some(1 << 20)), Some(BUDGET_BYTES_MIN), "reads have room at least");
        assert_eq!(limit(None), None);
        drop(Budget::unbounded().reserve(Part::Cache, u64::MAX).expect("no bound"));
    }

    proptest! {
        #[test]
        fn never_more_than_the_bound(steps in prop::collection::vec((0_usize..6, 0_u64..20 << 20, any::<prop::sample::Index>()), 1..200)) {
            let budget = Budget::chosen(64 << 20).expect("large enough");
            let mut held: Vec<Reservation> = Vec::new();
            for (part, bytes, index) in steps {
                match budget.reserve(Part::ALL[part], bytes) {
                    Ok(reservation) => held.push(reservation),
                    Err(shortage) => {
                        prop_assert!(shortage.free_bytes < bytes);
                        drop(held.swap_remove(index.index(held.len())));
                    }
                }
                prop_assert!(budget.taken_bytes() <= 64 << 20);
                prop_assert_eq!(budget.taken_bytes(), held.iter().map(|one| one.bytes).sum::<u64>());
                let parts: u64 = Part::ALL.into_iter().map(|part| budget.taken_by(part)).sum();
                prop_assert_eq!(parts, budget.taken_bytes());
            }
        }
    }
}
