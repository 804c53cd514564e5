//! What streams take from the memory budget: their rings, and the index of their dataset, which they share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::shard::Dataset;
use crate::sys::budget::{Budget, Part, Reservation, Shortage};
use crate::sys::memory::Mebibytes;

/// The budget, and the indexes that are in use, by the numbers of their datasets.
#[derive(Debug)]
pub(super) struct Holdings {
    budget: Arc<Budget>,
    indexes: Mutex<HashMap<u64, Weak<Reservation>>>,
}

impl Holdings {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, indexes: Mutex::default() }
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
