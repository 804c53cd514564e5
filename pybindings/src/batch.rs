//! Batches as Python sees them: fields as buffers, values of varying length, and the words that belong to a batch.
//!
//! A [`Field`] is an exporter of Python's buffer protocol. Whatever is made from it (a tensor, an array, any view of
//! them) keeps the field alive, the field keeps the lease, and the lease keeps the slot: the slot goes back when the
//! last view is dead. Unsafe code is here, in `dlpack` and in `cuda` alone.
#![expect(unsafe_code, reason = "the buffer protocol hands raw memory to Python")]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, PoisonError};

use feedline_loader::batch::arrays::ARRAY_HEADER_BYTES;
use feedline_loader::batch::{BOX_RECORD_BYTES, Dtype, RowEntry};
use feedline_loader::client::Lease;
use feedline_loader::{Error, Result};
use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors::to_python;
use crate::loan::Loan;

/// 64 bytes on a cache line: what private memory is made of, so that copies are aligned as slots are. Python writes
/// to them while Rust holds the box, hence the atomics.
#[repr(align(64))]
struct CacheLine(#[expect(dead_code, reason = "reached by pointer only")] [AtomicU8; 64]);

enum Memory {
    /// Field number `index` of a slot.
    Slot { lease: Arc<Loan>, index: usize },
    /// The elements of an array among the values of a slot, or of its spill.
    Element { lease: Arc<Loan>, entry: RowEntry },
    /// A copy.
    Private(Arc<Lines>),
}

/// Keeps a field's memory.
pub enum Keeper {
    /// In a slot.
    Slot(Arc<Loan>),
    /// A copy.
    Private(Arc<Lines>),
}

/// Private memory of some bytes, in whole cache lines, the rest zero.
pub struct Lines {
    lines: Box<[CacheLine]>,
    bytes: usize,
}

impl Lines {
    /// Zeros, then whatever `fill` makes of them.
    fn filled(bytes: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let lines = bytes.div_ceil(size_of::<CacheLine>());
        let mut lines: Box<[CacheLine]> =
            (0..lines).map(|_| CacheLine([const { AtomicU8::new(0) }; size_of::<CacheLine>()])).collect();
        // SAFETY:
        // - the box is at least `bytes` bytes of atomics long, which have the layout of bytes;
        // - nobody else has it yet, so an exclusive view lasts as long as this call.
        let view = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), bytes) };
        fill(view)?;
        Ok(Self { lines, bytes })
    }

    /// The bytes, before anybody else has the memory.
    fn as_slice(&self) -> &[u8] {
        // SAFETY:
        // - the box is at least `bytes` bytes long;
        // - only `Field` gives the memory to others, and it takes the lines by value.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<u8>(), self.bytes) }
    }
}

/// One field of one batch: `bytes` bytes, writable, exported through the buffer protocol.
#[pyclass(frozen, module = "feedline._native")]
pub struct Field {
    memory: Memory,
    bytes: usize,
}

impl Field {
    /// The first `bytes` of field `index`, in place.
    pub fn borrowed(lease: &Arc<Loan>, index: usize, bytes: usize) -> Self {
        Self { memory: Memory::Slot { lease: Arc::clone(lease), index }, bytes }
    }

    /// The first `bytes` of field `index` of `lease`, copied out.
    pub fn copied(lease: &Lease, index: usize, bytes: usize) -> Result<Self> {
        let (source, source_bytes) = lease.field(index)?;
        assert!(bytes <= source_bytes, "a field of {source_bytes} bytes was asked for {bytes}");
        let mut lines = Box::<[CacheLine]>::new_uninit_slice(bytes.div_ceil(size_of::<CacheLine>()));
        let target = lines.as_mut_ptr().cast::<u8>();
        // SAFETY:
        // - `source` is valid for `source_bytes` bytes while `lease` lives, and `bytes` is no more: the assert above;
        // - `target` is a fresh allocation of at least `bytes` bytes, so the two cannot overlap;
        // - the sidecar does not write to a slot that a lease holds.
        unsafe { source.as_ptr().copy_to_nonoverlapping(target, bytes) };
        let tail = lines.len() * size_of::<CacheLine>() - bytes;
        // SAFETY: the allocation ends `tail` bytes after `target + bytes`.
        let rest = unsafe { target.add(bytes) };
        // SAFETY: `rest` has `tail` bytes before the allocation's end.
        unsafe { rest.write_bytes(0, tail) };
        // SAFETY: the copy and the zeros after it have written every byte, and any bytes are a `CacheLine`.
        let lines = unsafe { lines.assume_init() };
        Ok(Self { memory: Memory::Private(Arc::new(Lines { lines, bytes })), bytes })
    }

    fn private(lines: Lines) -> Self {
        let bytes = lines.bytes;
        Self { memory: Memory::Private(Arc::new(lines)), bytes }
    }

    /// The batch that it lies in, unless it is a copy.
    pub fn loan(&self) -> Option<&Arc<Loan>> {
        match &self.memory {
            Memory::Slot { lease, .. } | Memory::Element { lease, .. } => Some(lease),
            Memory::Private(_) => None,
        }
    }

    /// What keeps its memory, without Python.
    pub fn keeper(&self) -> Keeper {
        match &self.memory {
            Memory::Slot { lease, .. } | Memory::Element { lease, .. } => Keeper::Slot(Arc::clone(lease)),
            Memory::Private(lines) => Keeper::Private(Arc::clone(lines)),
        }
    }

    /// Size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// First byte; an error in a forked child, where the ring is not mapped.
    pub fn start(&self) -> Result<NonNull<u8>> {
        match &self.memory {
            Memory::Slot { lease, index } => Ok(lease.field(*index)?.0),
            Memory::Element { lease, entry } => {
                let first = lease.value(*entry)?;
                // SAFETY: the value's size was checked against its header, so it is at least that long.
                Ok(unsafe { first.add(ARRAY_HEADER_BYTES) })
            }
            Memory::Private(lines) => Ok(NonNull::from(&*lines.lines).cast()),
        }
    }
}

#[pymethods]
impl Field {
    fn __len__(&self) -> usize {
        self.bytes
    }

    /// Whether this is a copy, which holds no slot.
    #[getter]
    fn is_private(&self) -> bool {
        matches!(self.memory, Memory::Private(_))
    }

    // The safety contract is the interpreter's: `view` is null or a Py_buffer to be filled in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("a buffer was asked for without a place to describe it"));
        }
        let field = slf.get();
        let start = field.start().map_err(|error| PyBufferError::new_err(error.to_string()))?.as_ptr().cast::<c_void>();
        let bytes = ffi::Py_ssize_t::try_from(field.bytes).expect("an allocation fits isize");
        // SAFETY:
        // - `view` is not null, and the interpreter vouches for it otherwise;
        // - `start` is valid for reads and writes of `bytes` bytes while `slf` lives, because `slf` owns the lease or
        //   the copy, and PyBuffer_FillInfo gives the view a reference to `slf`;
        // - a private copy is made of atomics, so that writing through a shared reference is allowed.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes, 0, flags) };
        if status == -1 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

/// The values of one field of varying length of one batch, in private memory: a copy, in plan order, because workers
/// finish in any order and so the rows lie scattered in the slot.
#[pyclass(frozen, module = "feedline._native")]
pub struct Values {
    /// `None` once [`Values::ragged`] has given them away.
    gathered: Mutex<Option<(Lines, Vec<i64>)>>,
}

impl Values {
    /// Copies the values of field `index` out of the slot.
    pub fn gathered(lease: &Lease, index: usize) -> Result<Self> {
        let entries = lease.entries(index)?;
        let mut offsets = Vec::with_capacity(entries.len() + 1);
        let mut end = 0_usize;
        offsets.push(0);
        for entry in &entries {
            end += entry.len as usize;
            offsets.push(i64::try_from(end).expect("memory ends before that"));
        }
        let values = Lines::filled(end, |mut rest| {
            for entry in &entries {
                let target;
                (target, rest) = rest.split_at_mut(entry.len as usize);
                lease.copy_value(*entry, target)?;
            }
            Ok(())
        })?;
        Ok(Self { gathered: Mutex::new(Some((values, offsets))) })
    }

    fn each<T>(&self, mut make: impl FnMut(&[u8]) -> PyResult<T>) -> PyResult<Vec<T>> {
        let gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let (values, offsets) = gathered.as_ref().ok_or_else(given_away)?;
        let row = |pair: &[i64]| make(&values.as_slice()[pair[0] as usize..pair[1] as usize]);
        offsets.windows(2).map(row).collect()
    }
}

fn given_away() -> PyErr {
    PyRuntimeError::new_err("these values have been given away as tensors")
}

#[pymethods]
impl Values {
    /// One str a row.
    fn texts(&self, py: Python<'_>) -> PyResult<Vec<Py<PyString>>> {
        self.each(|bytes| {
            let text = std::str::from_utf8(bytes).map_err(|error| {
                to_python(py, &Error::protocol(format!("a text in a batch is not UTF-8: {error}")), None)
            })?;
            Ok(PyString::new(py, text).unbind())
        })
    }

    /// One bytes object a row.
    fn chunks(&self, py: Python<'_>) -> PyResult<Vec<Py<PyBytes>>> {
        self.each(|bytes| Ok(PyBytes::new(py, bytes).unbind()))
    }

    /// All bytes, row after row, and where each row starts, int64, one more than rows. Once: the memory is given away.
    fn ragged(&self, py: Python<'_>) -> PyResult<(Field, Field)> {
        let gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (values, offsets) = gathered.ok_or_else(given_away)?;
        let offsets = numbers(&offsets).map_err(|error| to_python(py, &error, None))?;
        Ok((Field::private(values), Field::private(offsets)))
    }

    /// Of a field of boxes with so many extra numbers each: all boxes row after row, float32 (total, 4); where each row
    /// starts among them, int64, one more than rows; their labels, int64 (total,); their extra numbers, float64 (total,
    /// extra). Once: the memory is given away.
    fn boxes(&self, py: Python<'_>, extra: usize) -> PyResult<(Field, Field, Field, Field)> {
        let gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (values, offsets) = gathered.ok_or_else(given_away)?;
        split_boxes(values.as_slice(), &offsets, extra)
            .map(|fields| fields.map(Field::private).into())
            .map_err(|error| to_python(py, &error, None))
    }
}

fn numbers(numbers: &[i64]) -> Result<Lines> {
    Lines::filled(size_of_val(numbers), |view| {
        for (place, number) in view.chunks_exact_mut(size_of::<i64>()).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        Ok(())
    })
}

/// The records of boxes, parted: sides, offsets in boxes, labels, extra numbers.
fn split_boxes(records: &[u8], offsets: &[i64], extra: usize) -> Result<[Lines; 4]> {
    let record = BOX_RECORD_BYTES + extra * size_of::<f64>();
    if let Some(odd) = offsets.iter().find(|offset| !(**offset as usize).is_multiple_of(record)) {
        return Err(Error::protocol(format!("boxes of {record} bytes each end at byte {odd} of a batch")));
    }
    let offsets: Vec<i64> = offsets.iter().map(|offset| offset / record as i64).collect();
    let part = |start: usize, bytes: usize| {
        Lines::filled(records.len() / record * bytes, |view| {
            // No numbers, no chunks.
            for (place, record) in view.chunks_exact_mut(bytes.max(1)).zip(records.chunks_exact(record)) {
                place.copy_from_slice(&record[start..start + bytes]);
            }
            Ok(())
        })
    };
    let sides = BOX_RECORD_BYTES - size_of::<i64>();
    Ok([
        part(0, sides)?,
        numbers(&offsets)?,
        part(sides, size_of::<i64>())?,
        part(BOX_RECORD_BYTES, extra * size_of::<f64>())?,
    ])
}

/// One array a row: its shape, and its elements.
pub type Arrays = Vec<(Vec<u32>, Field)>;

/// The arrays of field `index`, whose elements are of `dtype`: in place where `is_borrowed`, else copied out.
pub fn arrays(lease: &Arc<Loan>, index: usize, dtype: Dtype, is_borrowed: bool) -> Result<Arrays> {
    let array = |entry: RowEntry| {
        let sides = lease.array_sides(entry, dtype)?;
        let bytes = entry.len as usize - ARRAY_HEADER_BYTES;
        let field = if is_borrowed {
            Field { memory: Memory::Element { lease: Arc::clone(lease), entry }, bytes }
        } else {
            let mut value = vec![0; entry.len as usize];
            lease.copy_value(entry, &mut value)?;
            Field::private(Lines::filled(bytes, |view| {
                view.copy_from_slice(&value[ARRAY_HEADER_BYTES..]);
                Ok(())
            })?)
        };
        Ok((sides.as_slice().to_vec(), field))
    };
    lease.entries(index)?.into_iter().map(array).collect()
}

/// What a batch holds of one field.
#[derive(IntoPyObject)]
pub enum Delivered {
    /// Rows of fixed size.
    Field(Field),
    /// Rows of varying length.
    Values(Values),
    /// Arrays of varying shape.
    Arrays(Arrays),
}

/// Keys, marks and faults of a batch.
#[derive(Clone)]
struct Words {
    keys: Vec<String>,
    valid: Vec<bool>,
    report: String,
}

impl Words {
    fn read(lease: &Lease) -> Result<Self> {
        let report = serde_json::to_string(&lease.report()?)
            .map_err(|error| Error::protocol(format!("cannot encode a report: {error}")))?;
        Ok(Self { keys: lease.keys()?, valid: lease.valid()?, report })
    }
}

/// Where the words are: in the slot until asked for, or taken out of it.
enum WordsPlace {
    Slot(Arc<Loan>),
    Private(Words),
}

/// What a batch says about itself beside its tensors.
#[pyclass(frozen, module = "feedline._native")]
pub struct BatchInfo {
    /// Epoch number.
    #[pyo3(get)]
    epoch: u64,
    /// Global position of the epoch at which the global batch starts.
    #[pyo3(get)]
    position: u64,
    /// Global position at which the next global batch starts.
    #[pyo3(get)]
    end_position: u64,
    /// The sum of the rows' hashes, in two lanes of 64 bits.
    #[pyo3(get)]
    trace: (u64, u64),
    /// Rows of this batch.
    #[pyo3(get)]
    rows: u32,
    /// How many of the rows are substitutes for bad samples.
    #[pyo3(get)]
    fault_count: u32,
    /// Whether a field lies in the ring, so that the batch holds a slot.
    #[pyo3(get)]
    is_borrowed: bool,
    /// Whether the batch came as a private copy because too many slots were held.
    #[pyo3(get)]
    is_overflow: bool,
    /// Bytes of values of varying length for which the slot had no room; they came in memory of their own.
    #[pyo3(get)]
    spilled_bytes: u32,
    words: WordsPlace,
}

impl BatchInfo {
    /// Describes the batch of `lease`. Its words stay in the slot until asked for where the batch holds it anyway.
    pub fn new(lease: Arc<Loan>, is_borrowed: bool, is_overflow: bool) -> Result<Self> {
        Ok(Self {
            epoch: lease.epoch(),
            position: lease.position(),
            end_position: lease.end_position(),
            trace: lease.trace().0.into(),
            rows: lease.rows(),
            fault_count: lease.fault_count(),
            is_borrowed,
            is_overflow,
            spilled_bytes: lease.spill_bytes(),
            words: if is_borrowed { WordsPlace::Slot(lease) } else { WordsPlace::Private(Words::read(&lease)?) },
        })
    }
}

#[pymethods]
impl BatchInfo {
    /// Has the slot's return wait for what is queued on the CUDA stream of handle `stream` when the batch is dead.
    fn release_after(&self, stream: u64) {
        if let WordsPlace::Slot(loan) = &self.words {
            loan.release_after(stream);
        }
    }

    /// The keys of the samples, whether each row counts (false for the repeats of ``tail="pad"``), and the faults as a
    /// JSON list. Read from the slot, which this object then still holds.
    fn words(&self, py: Python<'_>) -> PyResult<(Vec<String>, Vec<bool>, String)> {
        let words = match &self.words {
            WordsPlace::Slot(lease) => Words::read(lease).map_err(|error| to_python(py, &error, None))?,
            WordsPlace::Private(words) => words.clone(),
        };
        Ok((words.keys, words.valid, words.report))
    }
}
