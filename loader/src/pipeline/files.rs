//! Open files of datasets: at most a fixed number at once, the one that was used longest ago closed first.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Result;
use crate::read::{FileId, Reader};
use crate::shard::{Dataset, FileNumber};

/// Files open at once: a quarter of the descriptors that a process may have by default.
const OPEN_MAX: usize = 256;

/// A file of one of the datasets.
type FileKey = (usize, FileNumber);

#[derive(Debug)]
struct OpenFile {
    file: FileId,
    reads: u32,
    last_use: u64,
}

/// The table of open files.
#[derive(Debug, Default)]
pub(super) struct FileTable {
    open: HashMap<FileKey, OpenFile>,
    clock: u64,
}

impl FileTable {
    /// File `number` of `dataset`, opened if it was not, with one read counted on it; `None` when too many files have
    /// reads in flight.
    pub(super) fn acquire(
        &mut self,
        dataset: &Arc<Dataset>,
        number: FileNumber,
        reader: &mut dyn Reader,
    ) -> Result<Option<FileId>> {
        self.clock += 1;
        let key = file_key(dataset, number);
        if let Some(open) = self.open.get_mut(&key) {
            open.reads += 1;
            open.last_use = self.clock;
            return Ok(Some(open.file));
        }
        if self.open.len() >= OPEN_MAX && !self.close_oldest(reader) {
            return Ok(None);
        }
        let file = reader.add_file(dataset.open_file(number)?.into())?;
        self.open.insert(key, OpenFile { file, reads: 1, last_use: self.clock });
        Ok(Some(file))
    }

    /// A read of file `number` of `dataset` is done.
    pub(super) fn release(&mut self, dataset: &Arc<Dataset>, number: FileNumber) {
        if let Some(open) = self.open.get_mut(&file_key(dataset, number)) {
            open.reads -= 1;
        }
    }

    /// Closes the files of `dataset`, whose last stream has ended, except those with reads in flight.
    pub(super) fn close_dataset(&mut self, dataset: &Arc<Dataset>, reader: &mut dyn Reader) {
        let address = Arc::as_ptr(dataset).addr();
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

/// Datasets are known by their address; the feeder keeps every one alive whose files are open.
fn file_key(dataset: &Arc<Dataset>, number: FileNumber) -> FileKey {
    (Arc::as_ptr(dataset).addr(), number)
}
