//! libjpeg-turbo's transcoder behind three layers: the raw declarations of `transcode_shim.c`, its status as a fault, and
//! a safe owner.
//!
//! It writes the coefficients of a JPEG again and compares what it wrote with what it read. Which files may be written
//! anew, and which of their markers go with them, is decided in [`crate::transcode`].

#![expect(unsafe_code, reason = "calls the C shim around libjpeg, which owns its memory")]

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;

use super::jpeg::class_of;
use crate::error::{Error, Result, SampleFault};

/// What was found when all coefficients had been read. Mirrors the shim's struct.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Facts {
    /// Where the file ends: behind its end-of-image marker, in bytes.
    pub end: u64,
    /// Oddities that libjpeg passed over.
    pub warnings: u32,
    /// 1 when every bit of every coefficient of every component was there, else 0.
    pub is_complete: u32,
}

/// How often each symbol occurs, by number of its table. Mirrors the shim's struct.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Sizes of differences of DC coefficients.
    pub dc: [[u32; 256]; 2],
    /// Runs of zeros with sizes of AC coefficients.
    pub ac: [[u32; 256]; 2],
}

/// A table of codes as the file format has it. Mirrors the shim's struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CodeTable {
    /// How many codes there are of 1 to 16 bits.
    pub counts: [u8; 16],
    /// The symbols, in the order of their codes.
    pub symbols: [u8; 256],
}

/// The tables of a file. Mirrors the shim's struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CodeTables {
    /// For differences of DC coefficients.
    pub dc: [CodeTable; 2],
    /// For AC coefficients.
    pub ac: [CodeTable; 2],
}

#[repr(C)]
struct Shim {
    _opaque: [u8; 0],
    _not_send_by_default: PhantomData<*mut u8>,
}

unsafe extern "C" {
    fn feedline_transcoder_new() -> *mut Shim;
    fn feedline_transcoder_free(shim: *mut Shim);
    fn feedline_transcoder_message(shim: *const Shim) -> *const c_char;
    fn feedline_transcoder_reset(shim: *mut Shim);
    fn feedline_transcoder_read(
        shim: *mut Shim,
        bytes: *const u8,
        length: usize,
        memory_max: usize,
        facts: *mut Facts,
    ) -> c_int;
    fn feedline_transcoder_count(shim: *mut Shim, counts: *mut Counts) -> c_int;
    fn feedline_transcoder_write(
        shim: *mut Shim,
        tables: *const CodeTables,
        bytes: *mut *const u8,
        length: *mut usize,
    ) -> c_int;
    fn feedline_transcoder_check(shim: *mut Shim, bytes: *const u8, length: usize, memory_max: usize) -> c_int;
}

/// Owner of two decoders and a writer, kept by a thread for one file after the other.
pub struct Codec {
    shim: NonNull<Shim>,
}

// SAFETY: the shim has no thread-local state and no other owner; libjpeg keeps none outside its objects.
unsafe impl Send for Codec {}

impl Codec {
    /// A transcoder without a file.
    pub fn new() -> Result<Self> {
        // SAFETY: no arguments; null means that there was no memory, or that header and library disagree in version.
        let shim = unsafe { feedline_transcoder_new() };
        let shim = NonNull::new(shim)
            .ok_or_else(|| Error::Resources { message: "cannot create a JPEG transcoder: out of memory".into() })?;
        Ok(Self { shim })
    }

    /// Reads all coefficients of `bytes` within `memory_max` bytes of memory. What it returns borrows them, so they
    /// outlive every read.
    pub fn read<'file>(
        &'file mut self,
        bytes: &'file [u8],
        memory_max: usize,
    ) -> Result<Coefficients<'file>, SampleFault> {
        let mut facts = Facts::default();
        let (shim, length) = (self.shim.as_ptr(), bytes.len());
        // SAFETY: `bytes` stay borrowed as long as the `Coefficients`, whose drop makes the shim forget them; on failure
        // the shim does not touch them again before the next read.
        let status = unsafe { feedline_transcoder_read(shim, bytes.as_ptr(), length, memory_max, &raw mut facts) };
        self.check(status)?;
        Ok(Coefficients { codec: self, facts, memory_max })
    }

    fn check(&self, status: c_int) -> Result<(), SampleFault> {
        let Some(class) = class_of(status) else { return Ok(()) };
        // SAFETY: the shim is alive as long as `self`.
        let message = unsafe { feedline_transcoder_message(self.shim.as_ptr()) };
        // SAFETY: the message is an array inside the shim, always ended by a zero byte.
        let message = unsafe { CStr::from_ptr(message) };
        Err(SampleFault::new(class, format!("JPEG: {}", message.to_string_lossy())))
    }
}

impl Drop for Codec {
    fn drop(&mut self) {
        // SAFETY: the shim came from `feedline_transcoder_new` and is freed once.
        unsafe { feedline_transcoder_free(self.shim.as_ptr()) };
    }
}

/// The coefficients of a file; dropped, libjpeg forgets them.
pub struct Coefficients<'file> {
    codec: &'file mut Codec,
    facts: Facts,
    memory_max: usize,
}

impl Coefficients<'_> {
    /// What was found on reading them.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Writes them to the end of `file`, with the codes that `choose` makes for their symbols: all of a JPEG but its
    /// start-of-image marker and the markers of applications.
    pub fn write(&mut self, choose: impl FnOnce(&Counts) -> CodeTables, file: &mut Vec<u8>) -> Result<(), SampleFault> {
        let shim = self.codec.shim.as_ptr();
        let mut counts = Counts { dc: [[0; 256]; 2], ac: [[0; 256]; 2] };
        // SAFETY: the pointer is to a local of the mirrored layout; the shim holds the coefficients that it read.
        let status = unsafe { feedline_transcoder_count(shim, &raw mut counts) };
        self.codec.check(status)?;
        let tables = choose(&counts);
        let (mut bytes, mut length) = (ptr::null(), 0);
        // SAFETY: the pointers are to locals; the shim has counted, so its writer is prepared. Tables that cannot be are
        // refused by libjpeg.
        let status = unsafe { feedline_transcoder_write(shim, &raw const tables, &raw mut bytes, &raw mut length) };
        self.codec.check(status)?;
        // SAFETY: on success `bytes` are `length` initialised bytes of the shim's buffer, which stay in place until the
        // next call of the shim: none happens while this borrow lives.
        let written = unsafe { slice::from_raw_parts(bytes, length) };
        file.extend_from_slice(&written[2..]);
        Ok(())
    }

    /// Reads `file`, which was written from them, and compares: every coefficient, quantisation step and fact of the header
    /// must be the same.
    pub fn compare(&mut self, file: &[u8]) -> Result<(), SampleFault> {
        let (shim, length) = (self.codec.shim.as_ptr(), file.len());
        // SAFETY: the shim reads `file` during this call; later calls only make it forget where it was.
        let status = unsafe { feedline_transcoder_check(shim, file.as_ptr(), length, self.memory_max) };
        self.codec.check(status)
    }
}

impl Drop for Coefficients<'_> {
    fn drop(&mut self) {
        // SAFETY: the shim is alive; a reset is allowed in every state and forgets the borrowed bytes.
        unsafe { feedline_transcoder_reset(self.codec.shim.as_ptr()) };
    }
}
