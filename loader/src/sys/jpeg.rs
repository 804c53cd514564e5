//! libjpeg-turbo behind three layers: the raw declarations of `jpeg_shim.c`, its status as a fault, and a safe owner.
//!
//! One owner decodes many images, one after the other. Which part of an image is decoded, and how its colours come out,
//! is decided in [`crate::decode`].

#![expect(unsafe_code, reason = "calls the C shim around libjpeg, which owns its memory")]

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::NonNull;

// Named so that the library is linked: the shim's symbols live in it.
use turbojpeg_sys as _;

use crate::error::{Error, FaultClass, Result, SampleFault};

/// What the header of a JPEG says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Colour components: 1, 3 or 4 in files that are decoded.
    pub components: u32,
    /// Bits of a sample.
    pub precision: u32,
    /// Largest horizontal sampling factor, in 1..=4: columns of pixels that a subsampled column covers.
    pub sampling_max: u32,
    /// 1 when every coefficient is read before the first row comes out (progressive), else 0.
    pub multiple_scans: u32,
    /// Where the entropy-coded data of the first scan start, in bytes.
    pub scan_offset: u64,
}

/// How an image is decoded. Mirrors the shim's struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// Pixels of the file that become one in each direction: 1, 2, 4 or 8.
    pub reduction: u32,
    /// 1 for the fast inverse transform, and colours that are repeated instead of interpolated; else 0.
    pub fast: u32,
}

#[repr(C)]
struct Shim {
    _opaque: [u8; 0],
    _not_send_by_default: PhantomData<*mut u8>,
}

unsafe extern "C" {
    fn feedline_jpeg_new() -> *mut Shim;
    fn feedline_jpeg_free(shim: *mut Shim);
    fn feedline_jpeg_message(shim: *const Shim) -> *const c_char;
    fn feedline_jpeg_warnings(shim: *const Shim) -> u32;
    fn feedline_jpeg_reset(shim: *mut Shim);
    fn feedline_jpeg_library() -> *const c_char;
    fn feedline_jpeg_allocations(shim: *const Shim) -> u64;
    fn feedline_jpeg_open(
        shim: *mut Shim,
        bytes: *const u8,
        length: usize,
        memory_max: usize,
        header: *mut Header,
    ) -> c_int;
    fn feedline_jpeg_allow_end(shim: *mut Shim);
    fn feedline_jpeg_start(
        shim: *mut Shim,
        settings: *const Settings,
        left: *mut u32,
        width: *mut u32,
        top: u32,
    ) -> c_int;
    fn feedline_jpeg_rows(shim: *mut Shim, rows: *mut u8, stride: usize, count: u32) -> c_int;
}

/// The library, by name and version.
pub fn library() -> &'static str {
    // SAFETY: no arguments, no state.
    let text = unsafe { feedline_jpeg_library() };
    // SAFETY: it is a literal, ended by a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().expect("a version is ASCII")
}

/// Owner of one libjpeg decoder, kept by a worker.
pub struct Codec {
    shim: NonNull<Shim>,
}

// SAFETY: the shim has no thread-local state and no other owner; libjpeg keeps none outside its object.
unsafe impl Send for Codec {}

impl Codec {
    /// A decoder without an image.
    pub fn new() -> Result<Self> {
        // SAFETY: no arguments; null means that there was no memory, or that header and library disagree in version.
        let shim = unsafe { feedline_jpeg_new() };
        let shim = NonNull::new(shim)
            .ok_or_else(|| Error::Resources { message: "cannot create a JPEG decoder: out of memory".into() })?;
        Ok(Self { shim })
    }

    /// Reads the header of `bytes`, for decoding within `memory_max` bytes. The image it returns borrows them, so they
    /// outlive every read.
    pub fn open<'image>(&'image mut self, bytes: &'image [u8], memory_max: u64) -> Result<Opened<'image>, SampleFault> {
        let mut header = Header::default();
        let memory_max = usize::try_from(memory_max).unwrap_or(usize::MAX);
        let (shim, length) = (self.shim.as_ptr(), bytes.len());
        // SAFETY: `bytes` stay borrowed as long as the `Opened`, whose drop makes the shim forget them; on failure the
        // shim does not touch them again before the next open.
        let status = unsafe { feedline_jpeg_open(shim, bytes.as_ptr(), length, memory_max, &raw mut header) };
        self.check(status)?;
        Ok(Opened { codec: self, header, rows_left: None, row_bytes: 0 })
    }

    /// How often memory for images was taken from the system; it stays the same once the largest image was seen.
    pub fn allocations(&self) -> u64 {
        // SAFETY: the shim is alive as long as `self`.
        unsafe { feedline_jpeg_allocations(self.shim.as_ptr()) }
    }

    /// Warnings that libjpeg gave over the last image: bytes before a marker, a restart marker out of turn, bad codes.
    pub fn warnings(&self) -> u32 {
        // SAFETY: the shim is alive as long as `self`.
        unsafe { feedline_jpeg_warnings(self.shim.as_ptr()) }
    }

    fn check(&self, status: c_int) -> Result<(), SampleFault> {
        let Some(class) = class_of(status) else { return Ok(()) };
        // SAFETY: the shim is alive as long as `self`.
        let message = unsafe { feedline_jpeg_message(self.shim.as_ptr()) };
        // SAFETY: the message is an array inside the shim, always ended by a zero byte.
        let message = unsafe { CStr::from_ptr(message) };
        Err(SampleFault::new(class, format!("JPEG: {}", message.to_string_lossy())))
    }
}

/// The fault that a status of the shims is; `None` when all went well. The numbers are those of
/// `enum feedline_jpeg_status`.
pub(super) fn class_of(status: c_int) -> Option<FaultClass> {
    match status {
        0 => None,
        1 => Some(FaultClass::Truncated),
        3 => Some(FaultClass::Unsupported),
        4 => Some(FaultClass::TooLarge),
        _ => Some(FaultClass::Corrupt),
    }
}

impl Drop for Codec {
    fn drop(&mut self) {
        // SAFETY: the shim came from `feedline_jpeg_new` and is freed once.
        unsafe { feedline_jpeg_free(self.shim.as_ptr()) };
    }
}

/// An image whose header has been read; dropped, libjpeg forgets it.
pub struct Opened<'image> {
    codec: &'image mut Codec,
    header: Header,
    rows_left: Option<u32>,
    row_bytes: usize,
}

impl Opened<'_> {
    /// What the header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// From here on, data that end too early are no fault: what is missing is grey, as libjpeg makes it.
    pub fn allow_end(&mut self) {
        // SAFETY: the shim is alive; it only sets a flag.
        unsafe { feedline_jpeg_allow_end(self.codec.shim.as_ptr()) };
    }

    /// Starts decoding at row `top`, columns `left..left + width`, in reduced pixels. Returns the first column and the
    /// width that rows will have: the left border moves to a block border.
    pub fn start(
        &mut self,
        settings: Settings,
        (left, width): (u32, u32),
        top: u32,
    ) -> Result<(u32, u32), SampleFault> {
        assert!(self.rows_left.is_none(), "decoding starts once");
        assert!(matches!(settings.reduction, 1 | 2 | 4 | 8), "a reduction that libjpeg has");
        let whole = [self.header.width, self.header.height].map(|side| side.div_ceil(settings.reduction));
        assert!(width > 0 && u64::from(left) + u64::from(width) <= u64::from(whole[0]), "columns in the image");
        assert!(top < whole[1], "first row in the image");
        let (mut first, mut columns) = (left, width);
        let shim = self.codec.shim.as_ptr();
        // SAFETY: the pointers are to locals; the shim holds an open image, and its ranges are those asserted above.
        let status = unsafe { feedline_jpeg_start(shim, &raw const settings, &raw mut first, &raw mut columns, top) };
        self.codec.check(status)?;
        self.rows_left = Some(whole[1] - top);
        self.row_bytes = columns as usize * if self.header.components == 4 { 4 } else { 3 };
        Ok((first, columns))
    }

    /// Decodes the next `count` rows into `rows`, `stride` bytes apart.
    pub fn rows(&mut self, rows: &mut [u8], stride: usize, count: u32) -> Result<(), SampleFault> {
        let left = self.rows_left.expect("decoding has started");
        assert!(count > 0 && count <= left, "rows in the image");
        assert!(stride >= self.row_bytes, "a row fits its stride");
        assert!((count as usize - 1) * stride + self.row_bytes <= rows.len(), "the rows fit");
        self.rows_left = Some(left - count);
        // SAFETY: the shim writes `row_bytes` at each of `count` places `stride` apart, inside `rows` by the asserts.
        let status = unsafe { feedline_jpeg_rows(self.codec.shim.as_ptr(), rows.as_mut_ptr(), stride, count) };
        self.codec.check(status)
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // SAFETY: the shim is alive; aborting is allowed in every state and forgets the borrowed bytes.
        unsafe { feedline_jpeg_reset(self.codec.shim.as_ptr()) };
    }
}
