//! What streams take of the machine: memory of the budget for their rings and for the index of their dataset, which they
//! share; and cores.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::crew::Crew;
use crate::error::{Error, Result};
use crate::shard::Dataset;
use crate::sys::budget::{Budget, Part, Reservation, Shortage};
use crate::sys::memory::Mebibytes;

/// The budget, and the indexes that are in use, by the numbers of their datasets.
#[derive(Debug)]
pub(super) struct Holdings {
    budget: Arc<Budget>,
    indexes: Mutex<HashMap<u64, Weak<Reservation>>>,
    crew: Crew,
}

impl Holdings {
    pub(super) fn new(budget: Arc<Budget>, crew: Crew) -> Self {
        Self { budget, indexes: Mutex::default(), crew }
    }

    /// The decode threads.
    pub(super) fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Cores that they may use.
    pub(super) fn allowed_cores(&self) -> &[u32] {
        self.crew.allowed()
    }

    /// Room for a ring; `name` tells others whose it is.
    pub(super) fn ring(&self, bytes: u64, name: String) -> Result<Reservation, Shortage> {
        self.budget.reserve_for(Part::Rings, bytes, name)
    }

    /// Room for the index of `dataset`, the same for all of its streams. It is there already, as nobody knows how large an
    /// index is before it is built; one that does not fit is not used.
    pub(super) fn index(&self, dataset: &Dataset) -> Result<Arc<Reservation>> {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.retain(|_, reservation| reservation.strong_count() > 0);
        if let Some(shared) = indexes.get(&dataset.number()).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        let bytes = dataset.memory_bytes();
        let reservation = self.budget.reserve(Part::Indexes, bytes).map_err(|shortage| Error::Resources {
            message: format!(
                "the index of {} and its other shards takes {}, but {shortage}: give the sidecar a folder for indexes that it \
                 can write to (--cache-dir), or raise --memory",
                dataset.shard_path(0).display(),
                Mebibytes(bytes)
            ),
        })?;
        let reservation = Arc::new(reservation);
        indexes.insert(dataset.number(), Arc::downgrade(&reservation));
        Ok(reservation)
    }
}
