//! The files of a reader: numbered places, each taken again only after its last read has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A file that a reader knows. The number of a removed file never names another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    place: u32,
    generation: u32,
}

/// The open files by place.
#[derive(Debug, Default)]
pub(super) struct FileSet {
    places: Vec<Place>,
    vacant: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    /// How many files have had this place before.
    generation: u32,
    file: Option<Arc<OwnedFd>>,
    reads: u32,
    removed: bool,
}

impl FileId {
    /// Its place in the reader's table, as small as the table allows.
    pub(super) fn place(self) -> u32 {
        self.place
    }
}

impl FileSet {
    pub(super) fn add(&mut self, file: OwnedFd) -> FileId {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, file: None, reads: 0, removed: false });
            u32::try_from(self.places.len() - 1).expect("fewer than a process can open")
        });
        let entry = &mut self.places[place as usize];
        entry.file = Some(Arc::new(file));
        FileId { place, generation: entry.generation }
    }

    /// Removes a file; true if it was closed, false if that waits for its reads.
    pub(super) fn remove(&mut self, id: FileId) -> bool {
        let Some(place) = self.place(id) else { return false };
        place.removed = true;
        self.close_if_over(id.place)
    }

    /// Counts one read on the file, until [`FileSet::end_read`].
    pub(super) fn begin_read(&mut self, id: FileId) -> io::Result<()> {
        let place = self.place(id).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the file is not, or no longer, one of this reader's")
        })?;
        place.reads += 1;
        Ok(())
    }

    /// The file of a read that has begun.
    pub(super) fn of_read(&self, id: FileId) -> &Arc<OwnedFd> {
        self.places[id.place as usize].file.as_ref().expect("open while a read is counted on it")
    }

    /// True if that was the last read of a removed file, which is closed now.
    pub(super) fn end_read(&mut self, id: FileId) -> bool {
        self.places[id.place as usize].reads -= 1;
        self.close_if_over(id.place)
    }

    fn place(&mut self, id: FileId) -> Option<&mut Place> {
        let place = self.places.get_mut(id.place as usize)?;
        (place.generation == id.generation && place.file.is_some() && !place.removed).then_some(place)
    }

    fn close_if_over(&mut self, number: u32) -> bool {
        let place = &mut self.places[number as usize];
        let over = place.removed && place.reads == 0;
        if over {
            *place = Place { generation: place.generation.wrapping_add(1), file: None, reads: 0, removed: false };
            self.vacant.push(number);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::eventfd;

    #[test]
    fn a_place_is_taken_again_after_its_last_read() {
        let mut files = FileSet::default();
        let file = || eventfd::create().expect("eventfd");
        let first = files.add(file());
        files.begin_read(first).expect("known");
        let weak = Arc::downgrade(files.of_read(first));
        assert!(!files.remove(first), "a read is in flight");
        assert!(weak.upgrade().is_some());
        assert!(files.begin_read(first).is_err(), "removed");
        assert_ne!(files.add(file()).place(), first.place());
        assert!(files.end_read(first));
        assert!(weak.upgrade().is_none(), "closed");
        let second = files.add(file());
        assert_eq!(second.place(), first.place());
        assert_ne!(second, first);
        assert!(files.begin_read(first).is_err(), "a number of the past");
        assert!(!files.remove(first), "a number of the past");
        assert!(files.remove(second));
    }
}
