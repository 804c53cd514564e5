//! Memory that is only added to: what was added stays where it is and never changes, so that others can read it while
//! more is added.
#![expect(unsafe_code, reason = "writes to memory of which other parts are being read")]

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::arena::Mapping;

/// Memory is mapped in blocks of this size; the system gives it pages as they are written.
const BLOCK_BYTES: usize = 64 << 20;

/// One owner adds; whoever holds [`StoredBytes`] reads.
#[derive(Debug, Default)]
pub struct Store {
    last: Option<(Arc<Mapping>, usize)>,
}

/// Bytes that were added. They live as long as somebody holds them.
#[derive(Debug, Clone)]
pub struct StoredBytes {
    block: Arc<Mapping>,
    start: u32,
    len: u32,
}

impl Store {
    /// Adds a copy of `bytes`. Fails when the system refuses memory, or for more than 2^32 - 1 bytes.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<StoredBytes> {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let (block, used) = match self.last.take() {
            Some((block, used)) if block.bytes() - used >= bytes.len() => (block, used),
            // The rest of the last block is never written, so it takes no memory.
            _ => {
                let memory = Mapping::new(BLOCK_BYTES.max(bytes.len()))?;
                memory.prefer_huge_pages();
                (Arc::new(memory), 0)
            }
        };
        // SAFETY: `used` is at most the size of the mapping.
        let target = unsafe { block.address().add(used) };
        // SAFETY:
        // - the mapping has room for `bytes` from `target` on, as was seen above;
        // - these bytes have never been handed out: `used` is the end of all that were, only this owner advances it, and a
        //   block is `last` of one store only. So nobody reads or writes them now, and the source lies elsewhere.
        unsafe { target.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
        let start = u32::try_from(used).expect("blocks of more than 2^32 bytes hold one entry");
        self.last = Some((block.clone(), used + bytes.len()));
        Ok(StoredBytes { block, start, len })
    }
}

impl Deref for StoredBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` lies within the block, which lives as long as `self`.
        let address = unsafe { self.block.address().add(self.start as usize) };
        // SAFETY: `len` bytes from there were written before `self` was made, and are never written again. `self` reaches
        // another thread only by means that order that writing before its reading.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), self.len as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_stays() {
        let mut store = Store::default();
        // More than one block, in sizes that do not divide it.
        let entries: Vec<Vec<u8>> = (0..70_u8).map(|mark| vec![mark; 1_000_003 + usize::from(mark)]).collect();
        let stored: Vec<StoredBytes> = entries.iter().map(|bytes| store.add(bytes).expect("memory")).collect();
        let empty = store.add(&[]).expect("memory");
        assert!(empty.is_empty());
        drop(store);
        assert!(entries.iter().zip(&stored).all(|(bytes, stored)| **stored == **bytes));
    }

    #[test]
    fn it_is_read_while_more_is_added() {
        let mut store = Store::default();
        let (send, receive) = std::sync::mpsc::channel::<(u8, StoredBytes)>();
        let reader = std::thread::spawn(move || {
            receive.into_iter().map(|(mark, bytes)| usize::from(bytes.iter().all(|byte| *byte == mark))).sum::<usize>()
        });
        for number in 0..1000_u32 {
            let mark = number as u8;
            let bytes = store.add(&vec![mark; 1 + number as usize * 7]).expect("memory");
            send.send((mark, bytes)).expect("the reader lives");
        }
        drop(send);
        assert_eq!(reader.join().expect("no panic"), 1000);
    }

    #[test]
    fn more_than_a_block() {
        let mut store = Store::default();
        let small = store.add(b"small").expect("memory");
        let large = vec![9; BLOCK_BYTES + 1];
        assert_eq!(*store.add(&large).expect("memory"), *large);
        let after = store.add(b"after").expect("memory");
        assert_eq!((&*small, &*after), (&b"small"[..], &b"after"[..]));
    }
}
