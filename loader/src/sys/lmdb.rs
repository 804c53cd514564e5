//! liblmdb, for one thing only: a read transaction that keeps writers from using the pages of a snapshot again.
//!
//! Pages are read elsewhere, by `pread`. liblmdb maps the file, but nothing here touches the map beyond its two meta
//! pages, which the caller has checked.
#![expect(unsafe_code, reason = "liblmdb is a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use lmdb_sys as raw;

/// An open environment: read-only, with its lock file.
#[derive(Debug)]
pub struct Environment {
    env: NonNull<raw::MDB_env>,
    /// liblmdb's calls on an environment are made one at a time.
    calls: Mutex<()>,
}

// SAFETY: liblmdb's environments may be used from any thread; MDB_NOTLS ties readers to transactions, not to threads.
unsafe impl Send for Environment {}

// SAFETY: as above; `calls` is held in every call that is not documented as safe for concurrent use.
unsafe impl Sync for Environment {}

/// A read transaction: while it lives, no writer that honours the lock file overwrites the snapshot's pages.
#[derive(Debug)]
pub struct Pin {
    transaction: NonNull<raw::MDB_txn>,
    id: u64,
    environment: Arc<Environment>,
}

// SAFETY: under MDB_NOTLS a read transaction may move between threads.
unsafe impl Send for Pin {}

// SAFETY: a shared `Pin` gives only the number that was copied out when it was made.
unsafe impl Sync for Pin {}

/// The path is a file of its own, whose lock file is `<path>-lock`, or a folder with `data.mdb` and `lock.mdb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A folder.
    Folder,
    /// A file.
    File,
}

impl Environment {
    /// Opens the database at `path`. Slots of readers that are dead are cleared. `lock_mode` is given to a new lock file.
    ///
    /// A process must not open one file twice at the same time: closing either would let go of the lock of both.
    pub fn open(path: &Path, place: Place, lock_mode: u32) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut env = ptr::null_mut();
        // SAFETY: `env` is a place for the handle.
        check(unsafe { raw::mdb_env_create(&raw mut env) })?;
        let env = NonNull::new(env).ok_or_else(|| io::Error::other("liblmdb made no environment"))?;
        // From here on, dropping closes the handle, which liblmdb asks for after a failed open too.
        let environment = Self { env, calls: Mutex::new(()) };
        // The least: liblmdb then maps what is committed, and no more.
        // SAFETY: the handle is live and not open yet.
        check(unsafe { raw::mdb_env_set_mapsize(env.as_ptr(), 1) })?;
        let folder_flag = if place == Place::File { raw::MDB_NOSUBDIR } else { 0 };
        let flags = raw::MDB_RDONLY | raw::MDB_NOTLS | raw::MDB_NORDAHEAD | folder_flag;
        // SAFETY: the handle is live, the path ends with a zero byte.
        check(unsafe {
            raw::mdb_env_open(env.as_ptr(), path.as_ptr(), flags as c_uint, lock_mode as raw::mdb_mode_t)
        })?;
        environment.clear_dead_readers()?;
        Ok(environment)
    }

    /// Frees the slots of readers whose process is gone.
    fn clear_dead_readers(&self) -> io::Result<()> {
        let mut dead: c_int = 0;
        // SAFETY: the environment is open, `dead` is a place for the count.
        check(unsafe { raw::mdb_reader_check(self.env.as_ptr(), &raw mut dead) })
    }

    /// Begins a read transaction on the newest snapshot. An error when there is no lock file to announce it in.
    pub fn pin(self: &Arc<Self>) -> io::Result<Pin> {
        let mut pin = Pin { transaction: self.begin()?, id: 0, environment: self.clone() };
        // SAFETY: the transaction is live.
        pin.id = unsafe { raw::mdb_txn_id(pin.transaction.as_ptr()) } as u64;
        // On read-only media liblmdb goes on without a lock file, and says nothing.
        if self.reader_count()? == 0 {
            return Err(io::Error::from(rustix::io::Errno::ROFS));
        }
        Ok(pin)
    }

    fn begin(&self) -> io::Result<NonNull<raw::MDB_txn>> {
        let _call = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let mut transaction = ptr::null_mut();
        // SAFETY: the environment is open, `transaction` is a place for the handle.
        let status =
            unsafe { raw::mdb_txn_begin(self.env.as_ptr(), ptr::null_mut(), raw::MDB_RDONLY, &raw mut transaction) };
        if status == raw::MDB_READERS_FULL {
            return Err(io::Error::other(format!("the table of readers is full: {}", self.readers())));
        }
        check(status)?;
        NonNull::new(transaction).ok_or_else(|| io::Error::other("liblmdb began no transaction"))
    }

    /// Slots of the table of readers that were ever taken since it was made.
    fn reader_count(&self) -> io::Result<u32> {
        let mut info = raw::MDB_envinfo {
            me_mapaddr: ptr::null_mut(),
            me_mapsize: 0,
            me_last_pgno: 0,
            me_last_txnid: 0,
            me_maxreaders: 0,
            me_numreaders: 0,
        };
        // SAFETY: the environment is open, `info` is a place for its figures.
        check(unsafe { raw::mdb_env_info(self.env.as_ptr(), &raw mut info) })?;
        Ok(info.me_numreaders)
    }

    /// The processes that hold slots, as liblmdb lists them: number, thread, transaction.
    fn readers(&self) -> String {
        unsafe extern "C" fn append(line: *const c_char, context: *mut c_void) -> c_int {
            // SAFETY: `context` is the text below, which nothing else uses during the call.
            let text = unsafe { &mut *context.cast::<String>() };
            // SAFETY: liblmdb hands over a line that ends with a zero byte.
            let line = unsafe { CStr::from_ptr(line) };
            if text.len() < 512 {
                text.push_str(line.to_string_lossy().trim());
                text.push_str("; ");
            }
            0
        }
        let mut text = String::new();
        // SAFETY: the environment is open; `append` is called during the call only, with the text as its context.
        let _ = unsafe { raw::mdb_reader_list(self.env.as_ptr(), Some(append), (&raw mut text).cast()) };
        text
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and every transaction holds an `Arc` of the environment, so none is left.
        unsafe { raw::mdb_env_close(self.env.as_ptr()) }
    }
}

impl Pin {
    /// The transaction that the snapshot is of.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _call = self.environment.calls.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the transaction is live, and its environment is dropped after this.
        unsafe { raw::mdb_txn_abort(self.transaction.as_ptr()) }
    }
}

/// Positive statuses are errno, negative ones liblmdb's own.
fn check(status: c_int) -> io::Result<()> {
    match status {
        raw::MDB_SUCCESS => Ok(()),
        errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
        own => {
            // SAFETY: it only looks the status up.
            let text = unsafe { raw::mdb_strerror(own) };
            // SAFETY: liblmdb's texts for its own statuses are static, and end with a zero byte.
            let text = unsafe { CStr::from_ptr(text) };
            Err(io::Error::other(text.to_string_lossy().into_owned()))
        }
    }
}
