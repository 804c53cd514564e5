//! Open files of datasets: at most a fixed number at once, the one that was used longest ago closed first. Compressed
//! shards are files once they are unpacked, which other threads do.

use std::collections::HashMap;
use std::sync::Arc;

use super::Waker;
use super::unpacker::{Unpacker, Wanted};
use crate::error::{Error, Result};
use crate::read::{FileId, Reader};
use crate::shard::{Dataset, FileNumber};
use crate::sys::budget::{Budget, Part, Reservation};
use crate::sys::memory::Mebibytes;

/// Files open at once: a quarter of the descriptors that a process may have by default.
const OPEN_MAX: usize = 256;

/// Unpacked shards at once, those on their way included: each takes room on disk.
const UNPACKED_MAX: usize = 16;

/// A file of one of the datasets: the dataset's number, and the file's in it.
type FileKey = (u64, FileNumber);

#[derive(Debug)]
struct OpenFile {
    file: FileId,
    reads: u32,
    last_use: u64,
    /// After which wake of the feeder it was last looked at.
    checked: u64,
    /// It is a compressed shard's, with the memory that it takes.
    unpacked: Option<Room>,
    /// Its dataset has no stream any more: it is closed with its last read.
    is_closing: bool,
}

impl OpenFile {
    fn new(file: FileId, reads: u32, last_use: u64, unpacked: Option<Room>) -> Self {
        Self { file, reads, last_use, checked: 0, unpacked, is_closing: false }
    }
}

/// Memory of an unpacked shard, where the folder that it is unpacked into is memory.
type Room = Option<Reservation>;

#[derive(Debug)]
enum Entry {
    Open(OpenFile),
    /// On its way.
    Unpacking(Room),
    /// It could not be unpacked; whoever asks next is told.
    Failed(Error),
}

/// What [`FileTable::acquire`] found.
pub(super) enum Acquired {
    /// An open file, with one read counted on it.
    File(FileId),
    /// Too many files have reads in flight.
    NoRoom,
    /// The shard is being unpacked; the feeder is woken when that is done.
    Unpacking,
}

/// The table of open files.
pub(super) struct FileTable {
    entries: HashMap<FileKey, Entry>,
    clock: u64,
    waker: Arc<Waker>,
    unpacker: Option<Unpacker>,
    budget: Arc<Budget>,
}

impl FileTable {
    /// No open files. `waker` is woken by shards that are unpacked, whose memory is `budget`'s.
    pub(super) fn new(waker: Arc<Waker>, budget: Arc<Budget>) -> Self {
        Self { entries: HashMap::new(), clock: 0, waker, unpacker: None, budget }
    }

    /// File `number` of `dataset`, opened if it was not, with one read counted on it.
    pub(super) fn acquire(
        &mut self,
        dataset: &Arc<Dataset>,
        number: FileNumber,
        reader: &mut dyn Reader,
    ) -> Result<Acquired> {
        self.clock += 1;
        let key = file_key(dataset, number);
        match self.entries.get_mut(&key) {
            Some(Entry::Open(open)) => {
                open.reads += 1;
                open.last_use = self.clock;
                open.is_closing = false;
                return Ok(Acquired::File(open.file));
            }
            Some(Entry::Unpacking(_)) => return Ok(Acquired::Unpacking),
            Some(Entry::Failed(_)) => {
                let Some(Entry::Failed(error)) = self.entries.remove(&key) else { unreachable!("seen above") };
                return Err(error);
            }
            None => {}
        }
        if dataset.is_compressed(number.shard) {
            let started = self.unpack(dataset, number, reader)?;
            return Ok(if started { Acquired::Unpacking } else { Acquired::NoRoom });
        }
        if self.entries.len() >= OPEN_MAX && !self.close_oldest(reader, |_| true) {
            return Ok(Acquired::NoRoom);
        }
        let file = reader.add_file(dataset.open_file(number)?.into())?;
        self.entries.insert(key, Entry::Open(OpenFile::new(file, 1, self.clock, None)));
        Ok(Acquired::File(file))
    }

    /// Has a shard unpacked that will be asked for soon, if it is compressed and there is room.
    pub(super) fn expect_shard(&mut self, dataset: &Arc<Dataset>, shard: u32, reader: &mut dyn Reader) -> Result<()> {
        let number = FileNumber { shard, file: 0 };
        if dataset.is_compressed(shard) && !self.entries.contains_key(&file_key(dataset, number)) {
            self.unpack(dataset, number, reader)?;
        }
        Ok(())
    }

    /// Starts to unpack a shard; `false` when there is no room for one more.
    fn unpack(&mut self, dataset: &Arc<Dataset>, number: FileNumber, reader: &mut dyn Reader) -> Result<bool> {
        let is_unpacked = |entry: &Entry| match entry {
            Entry::Open(open) => open.unpacked.is_some(),
            Entry::Unpacking(_) => true,
            Entry::Failed(_) => false,
        };
        let count = self.entries.values().filter(|entry| is_unpacked(entry)).count();
        if count >= UNPACKED_MAX && !self.close_oldest(reader, |open| open.unpacked.is_some()) {
            return Ok(false);
        }
        let Some(room) = self.unpacked_room(dataset, number.shard, reader)? else { return Ok(false) };
        let unpacker = match &self.unpacker {
            Some(unpacker) => unpacker,
            None => self.unpacker.insert(Unpacker::start(UNPACKED_MAX, &self.waker)?),
        };
        if !unpacker.want(Wanted { dataset: dataset.clone(), shard: number.shard }) {
            return Ok(false);
        }
        self.entries.insert(file_key(dataset, number), Entry::Unpacking(room));
        Ok(true)
    }

    /// Room for a shard that is to be unpacked; `None` when others have to be done with theirs first.
    fn unpacked_room(&mut self, dataset: &Dataset, shard: u32, reader: &mut dyn Reader) -> Result<Option<Room>> {
        let bytes = dataset.unpacked_memory_bytes(shard);
        if bytes == 0 {
            return Ok(Some(None));
        }
        loop {
            let shortage = match self.budget.reserve(Part::Unpacked, bytes) {
                Ok(room) => return Ok(Some(Some(room))),
                Err(shortage) => shortage,
            };
            if self.close_oldest(reader, |open| open.unpacked.is_some()) {
                continue;
            }
            if self.budget.taken_by(Part::Unpacked) > 0 {
                return Ok(None);
            }
            let path = dataset.shard_path(shard).display();
            return Err(Error::Resources {
                message: format!(
                    "{path} takes {} of memory when it is unpacked, but {shortage}: raise --memory, name a folder on a disk \
                     with --cache-dir, or write plain tars, for example by `feedline convert`",
                    Mebibytes(bytes)
                ),
            });
        }
    }

    /// Takes in the shards that were unpacked meanwhile; whether there were any.
    pub(super) fn take_unpacked(&mut self, reader: &mut dyn Reader) -> bool {
        let Some(unpacker) = &self.unpacker else { return false };
        let mut any = false;
        while let Some(done) = unpacker.next_done() {
            any = true;
            let key = file_key(&done.wanted.dataset, FileNumber { shard: done.wanted.shard, file: 0 });
            // A dataset that was closed meanwhile has no entry; opened again meanwhile, it may have asked twice.
            let Some(entry @ Entry::Unpacking(_)) = self.entries.get_mut(&key) else { continue };
            let Entry::Unpacking(room) = entry else { unreachable!("seen above") };
            let room = room.take();
            self.clock += 1;
            *entry = match done.file.and_then(|file| reader.add_file(file.into())) {
                Ok(file) => Entry::Open(OpenFile::new(file, 0, self.clock, Some(room))),
                Err(error) => Entry::Failed(error),
            };
        }
        any
    }

    /// A read of file `number` of `dataset` is done. An error says that the file is no longer what was indexed, so that
    /// what was read means nothing. Reads that ended before the same `wake` of the feeder, which counts from 1, share one
    /// look at the file.
    pub(super) fn release(
        &mut self,
        dataset: &Dataset,
        number: FileNumber,
        wake: u64,
        reader: &mut dyn Reader,
    ) -> Result<()> {
        let key = file_key(dataset, number);
        let Some(Entry::Open(open)) = self.entries.get_mut(&key) else { return Ok(()) };
        open.reads -= 1;
        let mut outcome = Ok(());
        if open.checked != wake {
            outcome = dataset.check_read(number, reader.file(open.file));
            open.checked = if outcome.is_ok() { wake } else { 0 };
        }
        if open.is_closing && open.reads == 0 {
            reader.remove_file(open.file);
            self.entries.remove(&key);
        }
        outcome
    }

    /// A read that was counted on file `number` of `dataset` does not take place.
    pub(super) fn give_up(&mut self, dataset: &Dataset, number: FileNumber) {
        if let Some(Entry::Open(open)) = self.entries.get_mut(&file_key(dataset, number)) {
            open.reads -= 1;
        }
    }

    /// Closes the files of `dataset`, whose last stream has ended; those with reads in flight after the last of them.
    pub(super) fn close_dataset(&mut self, dataset: &Arc<Dataset>, reader: &mut dyn Reader) {
        self.entries.retain(|key, entry| match entry {
            _ if key.0 != dataset.number() => true,
            Entry::Open(open) if open.reads > 0 => {
                open.is_closing = true;
                true
            }
            Entry::Open(open) => {
                reader.remove_file(open.file);
                false
            }
            Entry::Unpacking(_) | Entry::Failed(_) => false,
        });
    }

    fn close_oldest(&mut self, reader: &mut dyn Reader, may_close: impl Fn(&OpenFile) -> bool) -> bool {
        let idle = self.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Open(open) if open.reads == 0 && may_close(open) => Some((*key, open.last_use, open.file)),
            _ => None,
        });
        let Some((key, _, file)) = idle.min_by_key(|(_, last_use, _)| *last_use) else { return false };
        self.entries.remove(&key);
        reader.remove_file(file);
        true
    }
}

fn file_key(dataset: &Dataset, number: FileNumber) -> FileKey {
    (dataset.number(), number)
}
