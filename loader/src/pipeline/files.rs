//! Open shards: at most a fixed number at once, the one that was used longest ago closed first.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::read::{FileId, Reader};
use crate::shard::Dataset;

/// Shards open at once: a quarter of the descriptors that a process may have by default.
const OPEN_MAX: usize = 256;

/// A shard of one of the datasets.
type ShardKey = (usize, u32);

#[derive(Debug)]
struct OpenShard {
    file: FileId,
    reads: u32,
    last_use: u64,
}

/// The table of open shards.
#[derive(Debug, Default)]
pub(super) struct FileTable {
    open: HashMap<ShardKey, OpenShard>,
    clock: u64,
}

impl FileTable {
    /// Shard `number` of `dataset`, opened if it was not, with one read counted on it; `None` when too many shards
    /// have reads in flight.
    pub(super) fn acquire(
        &mut self,
        dataset: &Arc<Dataset>,
        number: u32,
        reader: &mut dyn Reader,
    ) -> Result<Option<FileId>> {
        self.clock += 1;
        let key = shard_key(dataset, number);
        if let Some(shard) = self.open.get_mut(&key) {
            shard.reads += 1;
            shard.last_use = self.clock;
            return Ok(Some(shard.file));
        }
        if self.open.len() >= OPEN_MAX && !self.close_oldest(reader) {
            return Ok(None);
        }
        let file = reader.add_file(open_checked(dataset, number)?)?;
        self.open.insert(key, OpenShard { file, reads: 1, last_use: self.clock });
        Ok(Some(file))
    }

    /// A read of shard `number` of `dataset` is done.
    pub(super) fn release(&mut self, dataset: &Arc<Dataset>, number: u32) {
        if let Some(shard) = self.open.get_mut(&shard_key(dataset, number)) {
            shard.reads -= 1;
        }
    }

    /// Closes the shards of `dataset`, whose last stream has ended, except those with reads in flight.
    pub(super) fn close_dataset(&mut self, dataset: &Arc<Dataset>, reader: &mut dyn Reader) {
        let address = shard_key(dataset, 0).0;
        self.open.retain(|key, shard| {
            let keep = key.0 != address || shard.reads > 0;
            if !keep {
                reader.remove_file(shard.file);
            }
            keep
        });
    }

    fn close_oldest(&mut self, reader: &mut dyn Reader) -> bool {
        let idle = self.open.iter().filter(|(_, shard)| shard.reads == 0);
        let Some(key) = idle.min_by_key(|(_, shard)| shard.last_use).map(|(key, _)| *key) else {
            return false;
        };
        let shard = self.open.remove(&key).expect("found above");
        reader.remove_file(shard.file);
        true
    }
}

/// Datasets are known by their address; the feeder keeps every one alive whose shards are open.
fn shard_key(dataset: &Arc<Dataset>, number: u32) -> ShardKey {
    (Arc::as_ptr(dataset).addr(), number)
}

/// Opens a shard and makes sure that it is the one that was indexed.
fn open_checked(dataset: &Dataset, number: u32) -> Result<OwnedFd> {
    let path = dataset.shard_path(number);
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    let metadata = file.metadata().map_err(|source| Error::io("look at", path, source))?;
    dataset.check_file(number, &metadata)?;
    Ok(file.into())
}
