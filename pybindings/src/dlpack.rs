//! Fields as DLPack capsules: shape, strides and memory in one call, which torch makes a tensor of without another.
//!
//! The structures are those of DLPack 0.8 and before (`dltensor`), which every framework takes. A tensor keeps the batch's
//! loan and no Python object, so that a framework may let go of it from any thread.
#![expect(unsafe_code, reason = "DLPack hands raw memory to other libraries")]

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use feedline_loader::Error;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::batch::{Field, Keeper};
use crate::errors::to_python;

const NAME: &CStr = c"dltensor";

/// `DLTensor`, on the host.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, and after it what it points to.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    _form: Arc<Form>,
    _keeper: Keeper,
}

/// Shape, strides in elements, and type.
struct Form {
    shape: Vec<i64>,
    strides: Vec<i64>,
    code: u8,
    bits: u8,
    bytes: usize,
}

/// What fields look like as tensors; made once, used for every batch.
#[pyclass(frozen, module = "feedline._native")]
pub struct View {
    form: Arc<Form>,
}

#[pymethods]
impl View {
    /// A view of `dtype`, as NumPy names it, with `shape` and `strides` in elements.
    #[new]
    fn new(dtype: &str, shape: Vec<i64>, strides: Vec<i64>) -> PyResult<Self> {
        let (code, bits) =
            type_of(dtype).ok_or_else(|| PyValueError::new_err(format!("no DLPack type is known for {dtype}")))?;
        let last = shape.iter().zip(&strides).try_fold(0_i64, |last, (&side, &stride)| {
            last.checked_add(side.checked_sub(1)?.checked_mul(stride)?).filter(|_| side > 0 && stride >= 0)
        });
        let bytes = last
            .filter(|_| shape.len() == strides.len())
            .and_then(|last| usize::try_from(last).ok()?.checked_add(1)?.checked_mul(usize::from(bits) / 8))
            .ok_or_else(|| PyValueError::new_err(format!("shape {shape:?} and strides {strides:?} cannot be")))?;
        Ok(Self { form: Arc::new(Form { shape, strides, code, bits, bytes }) })
    }

    /// A capsule of `field` in this form, for `from_dlpack`; it and what is made of it keep the memory.
    fn capsule<'py>(&self, field: &Bound<'py, Field>) -> PyResult<Bound<'py, PyAny>> {
        let py = field.py();
        let (form, bytes) = (&self.form, field.get().bytes());
        if form.bytes > bytes {
            return Err(PyValueError::new_err(format!("a field of {bytes} bytes was asked for {}", form.bytes)));
        }
        let start = field.get().start().map_err(|error: Error| to_python(py, &error, None))?;
        let tensor = Tensor {
            data: start.as_ptr().cast(),
            device_type: 1,
            device_id: 0,
            ndim: form.shape.len() as i32,
            code: form.code,
            bits: form.bits,
            lanes: 1,
            // Consumers read them only; the form lives as long as the tensor.
            shape: form.shape.as_ptr().cast_mut(),
            strides: form.strides.as_ptr().cast_mut(),
            byte_offset: 0,
        };
        let managed = Box::into_raw(Box::new(Managed {
            tensor,
            manager: std::ptr::null_mut(),
            deleter: Some(delete),
            _form: Arc::clone(form),
            _keeper: field.get().keeper(),
        }));
        // SAFETY: the name is a constant, the pointer not null, and the destructor takes what is made here.
        let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(destroy)) };
        // SAFETY: a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.inspect_err(|_| {
            // SAFETY: no capsule took it.
            drop(unsafe { Box::from_raw(managed) });
        })
    }
}

/// DLPack's code and bits of a type.
fn type_of(dtype: &str) -> Option<(u8, u8)> {
    if dtype == "bool" {
        return Some((6, 8));
    }
    let digits = dtype.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let code = match &dtype[..dtype.len() - digits.len()] {
        "int" => 0,
        "uint" => 1,
        "float" => 2,
        "bfloat" => 4,
        _ => return None,
    };
    Some((code, digits.parse().ok()?))
}

/// Called by the consumer, from any thread, once.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: from `Box::into_raw` in `capsule`; the consumer calls once.
    drop(unsafe { Box::from_raw(managed) });
}

/// Called by Python when the capsule dies; a consumed one has another name.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls with the capsule, and the name is a constant.
    if unsafe { ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) } == 1 {
        // SAFETY: valid, as was just asked.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()) };
        // SAFETY: nobody has consumed it, so it is still ours.
        unsafe { delete(managed.cast()) };
    }
}
