//! A stream of batches, opened at a sidecar: the native half of a Python iterator.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, TryLockError};

use feedline_loader::Error;
use feedline_loader::batch::{Dtype, FieldRecipe, RowForm};
use feedline_loader::client::{self, Attachments, Lease};
use feedline_loader::spec::JobSpec;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::batch::{BatchInfo, Delivered, Field, Values, arrays};
use crate::cuda::{self, Context, Refusal};
use crate::errors::{Place, named, to_python};
use crate::loan::{Loan, Park, return_after, sweep};
use crate::page_lock::PageLock;
use crate::wait::{timeout, wait};

/// Fields of fewer bytes a batch are copied out, so that keeping labels or keys never keeps a slot.
const COPY_BELOW_BYTES: u64 = 64 << 10;

/// Slots that stay with the sidecar: one to fill while another is ready.
const SLOTS_KEPT: u32 = 2;

/// When the fields of a batch are copied out of their slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZeroCopy {
    /// When the trainer holds all slots but two.
    Auto,
    /// Never: then an error says so.
    Strict,
    /// Always.
    Copy,
}

/// One field's place in a batch.
struct FieldShape {
    row_bytes: usize,
    is_small: bool,
    form: RowForm,
    dtype: Dtype,
}

struct Inner {
    stream: client::Stream,
    fields: Vec<FieldShape>,
    zero_copy: ZeroCopy,
    place: Place,
    /// A batch that could not be handed over, because the rule is strict and too many slots are held.
    waiting: Option<Lease>,
    reader: Reader,
}

/// Who reads the slots.
enum Reader {
    /// The trainer alone: a copy to a device is over when its call returns.
    Trainer,
    /// A GPU too, by copies that the trainer queues.
    Streams(Arc<Park>),
    /// A GPU alone, by copies that `copy_to_device` queues.
    Device(Arc<Context>),
}

/// What becomes of a batch that arrives while `slots_held` slots, its own included, are out.
#[derive(Debug, PartialEq, Eq)]
enum Delivery {
    Borrowed,
    Copied { is_overflow: bool },
    Refused,
}

impl Delivery {
    fn of(zero_copy: ZeroCopy, slots_held: u32, slot_count: u32) -> Self {
        let is_overflow = slots_held > slot_count.saturating_sub(SLOTS_KEPT);
        match zero_copy {
            ZeroCopy::Copy => Self::Copied { is_overflow: false },
            ZeroCopy::Auto if is_overflow => Self::Copied { is_overflow: true },
            ZeroCopy::Strict if is_overflow => Self::Refused,
            ZeroCopy::Auto | ZeroCopy::Strict => Self::Borrowed,
        }
    }
}

/// One connection to a sidecar that delivers one rank's batches in plan order.
#[pyclass(frozen, weakref, module = "feedline._native")]
pub struct Stream {
    inner: Mutex<Option<Inner>>,
}

impl Stream {
    /// Runs `work` on the open stream. Another thread inside it is an error, never a wait: it might hold this one's lock.
    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> PyResult<T>) -> PyResult<T> {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyRuntimeError::new_err(
                    "another thread is waiting on this iterator: give each thread an iterator of its own, or a lock",
                ));
            }
        };
        match inner.as_mut() {
            Some(inner) => work(inner),
            None => Err(PyRuntimeError::new_err("this stream is closed: start a new iteration over the loader")),
        }
    }
}

#[pymethods]
impl Stream {
    /// Opens a stream at the sidecar that listens on `socket`.
    ///
    /// Args:
    ///     socket: The sidecar's Unix socket.
    ///     spec: The job as JSON.
    ///     indices: Buffer of uint64 sample numbers that the dataset is cut down to.
    ///     weights: Buffer of float64, one a sample, for drawing with replacement.
    ///     timeout_s: Longest wait without any progress, in seconds.
    ///     zero_copy: ``auto``, ``strict`` or ``copy``.
    ///     quarantine: Samples to leave out, as `read_quarantine` gives them; their hash is in the spec.
    #[new]
    #[pyo3(signature = (socket, spec, indices, weights, timeout_s, zero_copy, quarantine = None))]
    #[expect(clippy::too_many_arguments, reason = "one caller, in Python, which names its values")]
    fn open(
        py: Python<'_>,
        socket: PathBuf,
        spec: &str,
        indices: Option<PyBuffer<u64>>,
        weights: Option<PyBuffer<f64>>,
        timeout_s: f64,
        zero_copy: &str,
        quarantine: Option<PyBackedBytes>,
    ) -> PyResult<Self> {
        let zero_copy = match zero_copy {
            "auto" => ZeroCopy::Auto,
            "strict" => ZeroCopy::Strict,
            "copy" => ZeroCopy::Copy,
            other => {
                return Err(PyValueError::new_err(format!(
                    "zero_copy must be \"auto\", \"strict\" or \"copy\", got {other:?}"
                )));
            }
        };
        let spec = parse_spec(py, spec)?;
        let indices = indices.map(|buffer| buffer.to_vec(py)).transpose()?;
        let weights = weights.map(|buffer| buffer.to_vec(py)).transpose()?;
        let stream = wait(py, None, |poll| {
            let attachments = Attachments {
                indices: indices.as_deref(),
                weights: weights.as_deref(),
                quarantine: quarantine.as_deref(),
            };
            client::Stream::open(&socket, &spec, attachments, timeout(timeout_s), poll)
        })?;
        let layout = &stream.info().layout;
        let fields = layout
            .fields
            .iter()
            .map(|field| FieldShape {
                row_bytes: usize::try_from(field.row_bytes).expect("a slot is mapped, so its parts fit usize"),
                is_small: match field.form {
                    RowForm::Fixed => field.row_bytes * u64::from(layout.batch_size) < COPY_BELOW_BYTES,
                    // Gathered, which is a copy.
                    RowForm::Bytes => true,
                    // By the room that was made for them, so that it does not change from batch to batch.
                    RowForm::Arrays => u64::from(layout.values_bytes) < COPY_BELOW_BYTES,
                },
                form: field.form,
                dtype: field.dtype,
            })
            .collect();
        let place = Place { epoch: 0, position: 0 };
        let inner = Inner { stream, fields, zero_copy, place, waiting: None, reader: Reader::Trainer };
        Ok(Self { inner: Mutex::new(Some(inner)) })
    }

    /// What the sidecar says about this stream, as JSON.
    fn info(&self) -> PyResult<String> {
        self.with(|inner| {
            serde_json::to_string(inner.stream.info())
                .map_err(|error| PyRuntimeError::new_err(format!("cannot encode the stream's description: {error}")))
        })
    }

    /// Delivers `epoch` from global sample `position` on.
    fn seek(&self, py: Python<'_>, epoch: u64, position: u64) -> PyResult<()> {
        self.with(|inner| {
            inner.waiting = None;
            inner.place = Place { epoch, position };
            inner.stream.start_window();
            inner.stream.seek(epoch, position).map_err(|error| to_python(py, &error, Some(inner.place)))
        })
    }

    /// Waits until the sidecar has begun what `seek` asked for, so that a named ring shows its readers nothing older.
    fn settle(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        self.with(|inner| {
            let stream = &mut inner.stream;
            wait(py, Some(inner.place), |poll| stream.settle(timeout(timeout_s), poll))
        })
    }

    /// The next batch as (info, fields), or None at the end of the epoch. A field is a `Field` where its rows have one
    /// size, `Values` where they are bytes of any length, a list of (shape, `Field`) where they are arrays of any shape.
    /// `current` is the handle of the CUDA stream that is current, where the ring is page-locked: slots of dead batches go
    /// back when it has done what is queued on it now.
    #[pyo3(signature = (timeout_s, current = None))]
    fn next(
        &self,
        py: Python<'_>,
        timeout_s: f64,
        current: Option<u64>,
    ) -> PyResult<Option<(BatchInfo, Vec<Delivered>)>> {
        self.with(|inner| {
            if let (Reader::Streams(park), Some(current)) = (&inner.reader, current) {
                park.collect(current).map_err(|refusal| refused(py, &refusal))?;
            }
            let lease = match inner.waiting.take() {
                Some(lease) => lease,
                None => {
                    let stream = &mut inner.stream;
                    match wait(py, Some(inner.place), |poll| stream.next(timeout(timeout_s), poll))? {
                        Some(lease) => lease,
                        None => return Ok(None),
                    }
                }
            };
            inner.deliver(py, lease).map(Some)
        })
    }

    /// Whether a batch of this epoch is there, so that `next` would not wait.
    fn has_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(|inner| {
            let is_ready = inner.waiting.is_some()
                || inner.stream.has_ready().map_err(|error| to_python(py, &error, Some(inner.place)))?;
            Ok(is_ready)
        })
    }

    /// Page-locks the ring, once, so that CUDA device number `device` reads it by itself.
    ///
    /// Args:
    ///     device: The device's number among those that are visible.
    ///     is_device_alone: Whether `copy_to_device` takes every batch; else the trainer's own copies are reckoned with.
    /// Returns:
    ///     Bytes that are page-locked, bytes of the ring, and why that is not all, in words.
    fn page_lock(
        &self,
        py: Python<'_>,
        device: i32,
        is_device_alone: bool,
    ) -> PyResult<(usize, usize, Option<String>)> {
        self.with(|inner| {
            sweep();
            let ring = inner.stream.ring();
            let (start, bytes) = ring.payload().map_err(|error| to_python(py, &error, None))?;
            let context = match Context::primary(device) {
                Ok(context) => context,
                Err(refusal) if is_device_alone => return Err(refused(py, &refusal)),
                Err(refusal) => return Ok((0, bytes, Some(refusal.to_string()))),
            };
            let slot_bytes = bytes / ring.slot_count() as usize;
            let (lock, outcome) = PageLock::of_ring(&context, start, bytes, slot_bytes);
            if !lock.is_empty() && ring.keep_until_unmapped(Box::new(lock)).is_err() {
                return Err(PyRuntimeError::new_err("this ring has been page-locked before"));
            }
            inner.reader = if is_device_alone {
                Reader::Device(context)
            } else if outcome.locked_bytes > 0 {
                Reader::Streams(Park::new(context).map_err(|refusal| refused(py, &refusal))?)
            } else {
                Reader::Trainer
            };
            Ok((outcome.locked_bytes, bytes, outcome.refusal.map(|refusal| refusal.to_string())))
        })
    }

    /// Queues copies of `fields`, all of one batch, to the device addresses `targets` on the CUDA stream of handle
    /// `stream`. The batch's slot goes back when they are done.
    fn copy_to_device(
        &self,
        py: Python<'_>,
        fields: Vec<Bound<'_, Field>>,
        targets: Vec<u64>,
        stream: u64,
    ) -> PyResult<()> {
        self.with(|inner| {
            let Reader::Device(context) = &inner.reader else {
                return Err(PyRuntimeError::new_err("page_lock(device, True) comes before copies to a device"));
            };
            let Some(loan) = fields.iter().find_map(|field| field.get().loan()).map(Arc::clone) else { return Ok(()) };
            let copies = fields
                .iter()
                .zip(&targets)
                .map(|(field, &target)| {
                    let source = field.get().start()?;
                    Ok(cuda::Copy { target, source, bytes: field.get().bytes() })
                })
                .collect::<Result<Vec<_>, Error>>()
                .map_err(|error| to_python(py, &error, None))?;
            // Without the interpreter's lock: a copy from memory that is not page-locked takes its time.
            let queued = py.detach(move || {
                cuda::copy(context, stream, &copies)?;
                return_after(context, stream, loan)
            });
            queued.map_err(|refusal| refused(py, &refusal))
        })
    }

    /// What was measured since the epoch began, as JSON: waits, rates, faults and the verdict.
    fn summary(&self, py: Python<'_>, timeout_s: f64) -> PyResult<String> {
        self.with(|inner| {
            let stream = &mut inner.stream;
            let summary = wait(py, Some(inner.place), |poll| stream.summary(timeout(timeout_s), poll))?;
            serde_json::to_string(&summary)
                .map_err(|error| PyRuntimeError::new_err(format!("cannot encode a summary: {error}")))
        })
    }

    /// Raises what happened to the stream or its sidecar since the last batch, if anything.
    fn check_alive(&self, py: Python<'_>) -> PyResult<()> {
        self.with(|inner| inner.stream.check_alive().map_err(|error| to_python(py, &error, Some(inner.place))))
    }

    /// Ends the stream; tensors made from its batches stay valid.
    fn close(&self, py: Python<'_>) {
        if let Ok(mut inner) = self.inner.try_lock() {
            let inner = inner.take();
            py.detach(|| {
                drop(inner);
                sweep();
            });
        }
    }
}

impl Inner {
    fn deliver(&mut self, py: Python<'_>, lease: Lease) -> PyResult<(BatchInfo, Vec<Delivered>)> {
        let (slots_held, slot_count) = (self.stream.slots_held(), self.stream.info().slot_count);
        let is_for_device = matches!(self.reader, Reader::Device(_));
        // The device gives slots back by itself.
        let delivery =
            if is_for_device { Delivery::Borrowed } else { Delivery::of(self.zero_copy, slots_held, slot_count) };
        if delivery == Delivery::Refused {
            self.waiting = Some(lease);
            return Err(named(
                py,
                "SlotsHeldError",
                format!(
                    "{} of {slot_count} slots are held by live batches, and zero_copy=\"strict\" forbids copies: let go of \
                     earlier batches, raise slots=, or use zero_copy=\"auto\"; the next batch is kept until then",
                    slots_held - 1
                ),
            ));
        }
        self.place = Place { epoch: lease.epoch(), position: lease.end_position() };
        let rows = lease.rows() as usize;
        let is_overflow = delivery == Delivery::Copied { is_overflow: true };
        let is_borrowed =
            !is_for_device && delivery == Delivery::Borrowed && self.fields.iter().any(|field| !field.is_small);
        // What is copied out is read by no stream.
        let park = match &self.reader {
            Reader::Streams(park) if is_borrowed => Some(Arc::clone(park)),
            _ => None,
        };
        let lease = Loan::new(lease, park);
        let field_of = |(index, field): (usize, &FieldShape)| {
            let bytes = field.row_bytes * rows;
            let is_in_place = (!field.is_small || is_for_device) && delivery == Delivery::Borrowed;
            Ok(match field.form {
                RowForm::Fixed if is_in_place => Delivered::Field(Field::borrowed(&lease, index, bytes)),
                RowForm::Fixed => Delivered::Field(Field::copied(&lease, index, bytes)?),
                RowForm::Bytes => Delivered::Values(Values::gathered(&lease, index)?),
                RowForm::Arrays => {
                    Delivered::Arrays(arrays(&lease, index, field.dtype, is_in_place && !is_for_device)?)
                }
            })
        };
        let raise = |error: Error| to_python(py, &error, None);
        let fields = self.fields.iter().enumerate().map(field_of).collect::<Result<Vec<_>, Error>>().map_err(raise)?;
        let info = BatchInfo::new(lease, is_borrowed, is_overflow).map_err(raise)?;
        Ok((info, fields))
    }
}

/// What the driver refused, as an exception.
fn refused(py: Python<'_>, refusal: &Refusal) -> PyErr {
    named(py, "ResourceError", refusal.to_string())
}

/// A job spec from JSON, checked.
pub fn parse_spec(py: Python<'_>, spec: &str) -> PyResult<JobSpec> {
    let spec: JobSpec = serde_json::from_str(spec)
        .map_err(|error| PyValueError::new_err(format!("the job spec is malformed: {error}")))?;
    check(&spec).map_err(|error| to_python(py, &error, None))?;
    Ok(spec)
}

fn check(spec: &JobSpec) -> Result<(), Error> {
    spec.check()?;
    FieldRecipe::compile_all(&spec.fields, spec.batch_size).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sidecar_keeps_two_slots() {
        let check = |zero_copy, slots_held, expected| {
            assert_eq!(Delivery::of(zero_copy, slots_held, 8), expected, "{zero_copy:?} with {slots_held} of 8");
        };
        check(ZeroCopy::Auto, 1, Delivery::Borrowed);
        check(ZeroCopy::Auto, 6, Delivery::Borrowed);
        check(ZeroCopy::Auto, 7, Delivery::Copied { is_overflow: true });
        check(ZeroCopy::Strict, 6, Delivery::Borrowed);
        check(ZeroCopy::Strict, 7, Delivery::Refused);
        check(ZeroCopy::Copy, 1, Delivery::Copied { is_overflow: false });
        check(ZeroCopy::Copy, 8, Delivery::Copied { is_overflow: false });
    }
}
