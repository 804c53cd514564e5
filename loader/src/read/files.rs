//! The files of a reader: numbered places, each taken again only after its last read has ended.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::mounts::DirectFile;

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
    /// The same file for reads past the page cache.
    direct: Option<DirectFile>,
    /// Number of its mount.
    mount: usize,
    reads: u32,
    removed: bool,
}

impl FileId {
    /// Its place in the reader's table, as small as the table allows.
    pub(super) fn place(self) -> u32 {
        self.place
    }
}

impl Place {
    fn vacant(generation: u32) -> Self {
        Self { generation, file: None, direct: None, mount: 0, reads: 0, removed: false }
    }
}

impl FileSet {
    /// Takes a file that lies on this mount.
    pub(super) fn add(&mut self, file: OwnedFd, mount: usize) -> FileId {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place::vacant(0));
            u32::try_from(self.places.len() - 1).expect("fewer than a process can open")
        });
        let entry = &mut self.places[place as usize];
        (entry.file, entry.mount) = (Some(Arc::new(file)), mount);
        FileId { place, generation: entry.generation }
    }

    /// Removes a file; true if it was closed, false if that waits for its reads (or there is no such file).
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

    /// All files that are known, but those that only wait for their last reads.
    pub(super) fn all(&self) -> Vec<FileId> {
        let places = self.places.iter().zip(0..);
        let known = places.filter(|(place, _)| place.file.is_some() && !place.removed);
        known.map(|(place, number)| FileId { place: number, generation: place.generation }).collect()
    }

    /// Adds a descriptor for direct reads.
    pub(super) fn set_direct(&mut self, id: FileId, direct: DirectFile) {
        self.places[id.place as usize].direct = Some(direct);
    }

    /// The file's descriptor for direct reads, if it has one.
    pub(super) fn direct(&self, id: FileId) -> Option<&DirectFile> {
        self.places[id.place as usize].direct.as_ref()
    }

    /// The number of the file's mount.
    pub(super) fn mount(&self, id: FileId) -> usize {
        self.places[id.place as usize].mount
    }

    /// Says of which file an error speaks: its path, where the system still knows one.
    pub(super) fn name_in(&self, id: FileId, error: io::Error) -> io::Error {
        named(self.of_read(id), &error)
    }

    /// The descriptor of a file that was just added or has a read on it.
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
            *place = Place::vacant(place.generation.wrapping_add(1));
            self.vacant.push(number);
        }
        over
    }
}

/// The error with the path of its file in front.
pub(super) fn named(file: &OwnedFd, error: &io::Error) -> io::Error {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = fs::read_link(link).map_or("an unknown file".to_owned(), |path| path.display().to_string());
    io::Error::new(error.kind(), format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::eventfd;

    #[test]
    fn a_place_is_taken_again_after_its_last_read() {
        let mut files = FileSet::default();
        let file = || eventfd::create().expect("eventfd");
        let first = files.add(file(), 0);
        files.begin_read(first).expect("known");
        let weak = Arc::downgrade(files.of_read(first));
        assert!(!files.remove(first), "a read is in flight");
        assert!(weak.upgrade().is_some());
        assert!(files.begin_read(first).is_err(), "removed");
        assert_ne!(files.add(file(), 0).place(), first.place());
        assert!(files.end_read(first));
        assert!(weak.upgrade().is_none(), "closed");
        let second = files.add(file(), 0);
        assert_eq!(second.place(), first.place());
        assert_ne!(second, first);
        assert!(files.begin_read(first).is_err(), "a number of the past");
        assert!(!files.remove(first), "a number of the past");
        assert!(files.remove(second));
    }
}
