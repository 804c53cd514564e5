//! Writes a JPEG anew, without loss: a restart marker after every row of MCUs, and codes that fit the file.

#![expect(unsafe_code, reason = "calls libjpeg-turbo's transcoder")]

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

const TJINIT_TRANSFORM: c_int = 2;
const TJPARAM_OPTIMIZE: c_int = 11;
const TJPARAM_RESTARTROWS: c_int = 19;

/// turbojpeg.h: a region that is cropped (none), an operation (none), options (none), and a filter with its data (none).
#[repr(C)]
struct Transform {
    region: [c_int; 4],
    operation: c_int,
    options: c_int,
    data: *mut c_void,
    filter: *const c_void,
}

unsafe extern "C" {
    fn tj3Init(kind: c_int) -> *mut c_void;
    fn tj3Destroy(handle: *mut c_void);
    fn tj3Set(handle: *mut c_void, parameter: c_int, value: c_int) -> c_int;
    fn tj3Transform(
        handle: *mut c_void,
        bytes: *const u8,
        length: usize,
        count: c_int,
        targets: *mut *mut u8,
        lengths: *mut usize,
        transforms: *const Transform,
    ) -> c_int;
    fn tj3Free(buffer: *mut c_void);
}

/// The same image with restart markers; `None` where libjpeg-turbo refuses it or warns about it.
pub fn with_restart_rows(bytes: &[u8]) -> Option<Vec<u8>> {
    // SAFETY: it has no preconditions.
    let handle = NonNull::new(unsafe { tj3Init(TJINIT_TRANSFORM) })?;
    for (parameter, value) in [(TJPARAM_OPTIMIZE, 1), (TJPARAM_RESTARTROWS, 1)] {
        // SAFETY: the handle is alive.
        assert_eq!(unsafe { tj3Set(handle.as_ptr(), parameter, value) }, 0, "a parameter of transcoding");
    }
    let transform = Transform { region: [0; 4], operation: 0, options: 0, data: ptr::null_mut(), filter: ptr::null() };
    let (mut target, mut length) = (ptr::null_mut::<u8>(), 0);
    // SAFETY: the bytes are readable; there is one target, which it allocates, one length and one transform.
    let status =
        unsafe { tj3Transform(handle.as_ptr(), bytes.as_ptr(), bytes.len(), 1, &mut target, &mut length, &transform) };
    let written = (status == 0 && !target.is_null()).then(|| {
        // SAFETY: it succeeded, so the target has so many bytes.
        unsafe { std::slice::from_raw_parts(target, length) }.to_vec()
    });
    // SAFETY: the target is null or its own, and is not used again.
    unsafe { tj3Free(target.cast()) };
    // SAFETY: the handle is alive, and is not used again.
    unsafe { tj3Destroy(handle.as_ptr()) };
    written
}
