//! The CUDA driver, where there is one: contexts, copies and calls that come after work on the device.
//!
//! Raw declarations are cudarc's. Here a status becomes a `Result`, and every handle has an owner. Nothing here waits for
//! the device.
#![expect(unsafe_code, reason = "calls of a C library")]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;

/// Why the driver did not do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no driver, or none that can be used; in words.
    NoDriver(String),
    /// A call failed.
    Failed {
        /// Its name.
        call: &'static str,
        /// The driver's number.
        code: u32,
    },
}

impl Refusal {
    /// The driver's number; 0 where there is no driver.
    pub fn code(&self) -> u32 {
        match self {
            Self::NoDriver(_) => 0,
            Self::Failed { code, .. } => *code,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, code) = match self {
            Self::NoDriver(words) => return formatter.write_str(words),
            Self::Failed { call, code } => (call, code),
        };
        let words = match code {
            1 => "invalid value: this memory cannot be page-locked here",
            2 => {
                "out of memory: the driver, or a limit of this container or machine, allows no more page-locked memory"
            }
            3 => "not initialised: a child that was forked after CUDA was initialised cannot use it",
            34 => "a stub library of the toolkit was loaded in place of the driver",
            100 => "no device: no GPU is visible to this process",
            101 => "invalid device: there is no GPU of this number",
            201 => "invalid context: the device was reset",
            712 => "already page-locked: another library of this process has done so",
            801 => "not supported: this driver cannot page-lock such memory, as under some kinds of virtualisation",
            _ => "see CUresult in the driver's manual",
        };
        write!(formatter, "{call}: CUDA error {code}, {words}")
    }
}

/// What is called, for the probe: cudarc panics where the library or one of these is missing.
const SYMBOLS: [&str; 16] = [
    "cuInit",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoDAsync_v2",
    "cuLaunchHostFunc",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
];

fn checked(call: &'static str, status: sys::CUresult) -> Result<(), Refusal> {
    if status == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Refusal::Failed { call, code: status as u32 }) }
}

/// Makes sure that there is a driver, and initialises it, which makes no context.
fn driver() -> Result<(), Refusal> {
    static PROBED: OnceLock<Result<(), Refusal>> = OnceLock::new();
    PROBED
        .get_or_init(|| {
            probe()?;
            // SAFETY: no argument matters; the symbol is there, by the probe.
            checked("cuInit", unsafe { sys::cuInit(0) })
        })
        .clone()
}

fn probe() -> Result<(), Refusal> {
    // SAFETY: the driver's initialisers are fit to run at any time, as every CUDA program runs them.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    let library = library.map_err(|error| Refusal::NoDriver(format!("there is no NVIDIA driver here: {error}")))?;
    for name in SYMBOLS {
        // SAFETY: the symbol is only looked for, so its type does not matter.
        let found = unsafe { library.get::<*const c_void>(name.as_bytes()) };
        found.map_err(|_| Refusal::NoDriver(format!("the NVIDIA driver is too old: libcuda.so.1 lacks {name}")))?;
    }
    // It stays, as it is cudarc's from here on.
    std::mem::forget(library);
    Ok(())
}

/// A device's primary context: the one that torch and every other library of the process use.
#[derive(Debug)]
pub struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    pid: u32,
}

// SAFETY: a context handle may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Context {}

impl Context {
    /// The primary context of device `ordinal`, as CUDA_VISIBLE_DEVICES numbers them; made if nobody has yet.
    pub fn primary(ordinal: i32) -> Result<Arc<Self>, Refusal> {
        driver()?;
        let mut device = 0;
        // SAFETY: `device` is a place for the answer.
        checked("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, c_int::from(ordinal)) })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a place for the answer, `device` the driver's own.
        checked("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) })?;
        Ok(Arc::new(Self { raw, device, pid: std::process::id() }))
    }

    /// Whether this is the process that made it: a forked child must not call the driver.
    fn is_own(&self) -> bool {
        std::process::id() == self.pid
    }

    /// Makes the context current for this thread until the result is dropped.
    fn enter(&self) -> Result<Entered<'_>, Refusal> {
        if !self.is_own() {
            return Err(Refusal::Failed { call: "cuCtxPushCurrent", code: 3 });
        }
        // SAFETY: the context is alive, as it is retained.
        checked("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.raw) })?;
        Ok(Entered(self))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: retained once, released once. At the end of a process the driver may be gone and says so.
            let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

struct Entered<'a>(#[expect(dead_code, reason = "keeps the context alive")] &'a Context);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: pops what `enter` pushed on this thread: the guard is not Send, as it borrows and is never stored.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

/// Host memory that is page-locked until dropped.
#[derive(Debug)]
pub struct LockedRange {
    context: Arc<Context>,
    start: NonNull<u8>,
}

// SAFETY: only the address is used, as a name for the driver.
unsafe impl Send for LockedRange {}
// SAFETY: as above.
unsafe impl Sync for LockedRange {}

impl LockedRange {
    /// Page-locks `bytes` from `start` on, for every context. The memory must outlive the result.
    pub fn register(context: &Arc<Context>, start: NonNull<u8>, bytes: usize) -> Result<Self, Refusal> {
        const PORTABLE: u32 = 1;
        let _entered = context.enter()?;
        // SAFETY: the range is mapped, by the caller's contract; registering does not read or write it.
        let status = unsafe { sys::cuMemHostRegister_v2(start.as_ptr().cast(), bytes, PORTABLE) };
        checked("cuMemHostRegister", status)?;
        Ok(Self { context: Arc::clone(context), start })
    }
}

impl Drop for LockedRange {
    fn drop(&mut self) {
        // At the end of a process the driver may be gone: then there is nothing left to undo.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: registered by `register`, undone once; the memory is still mapped.
            let _ = unsafe { sys::cuMemHostUnregister(self.start.as_ptr().cast()) };
        }
    }
}

/// One copy to the device.
#[derive(Debug, Clone, Copy)]
pub struct Copy {
    /// Device address.
    pub target: u64,
    /// Host address.
    pub source: NonNull<u8>,
    /// Size.
    pub bytes: usize,
}

// SAFETY: only addresses; who makes one vouches for what they point to.
unsafe impl Send for Copy {}

/// Queues copies on `stream`, in order. Sources must stay as they are until the stream has done them, targets are device
/// memory of at least that size.
pub fn copy(context: &Context, stream: u64, copies: &[Copy]) -> Result<(), Refusal> {
    let _entered = context.enter()?;
    for copy in copies {
        // SAFETY: addresses and sizes are the caller's, by this function's contract; the stream is torch's.
        let status = unsafe {
            sys::cuMemcpyHtoDAsync_v2(copy.target, copy.source.as_ptr().cast(), copy.bytes, stream as sys::CUstream)
        };
        checked("cuMemcpyHtoDAsync", status)?;
    }
    Ok(())
}

/// Something to call when a stream gets there. It must not call the driver, and it must not block.
pub trait Callback: Send + Sync {
    /// The call, from a thread of the driver.
    fn call(&self);
}

/// Has `callback` called when `stream` has done what is queued on it now. On an error it is never called.
pub fn call_after<T: Callback>(context: &Context, stream: u64, callback: Arc<T>) -> Result<(), Refusal> {
    unsafe extern "C" fn trampoline<T: Callback>(data: *mut c_void) {
        // SAFETY: `data` is from the `into_raw` below, and the driver calls once.
        let callback = unsafe { Arc::from_raw(data.cast::<T>().cast_const()) };
        callback.call();
    }
    let _entered = context.enter()?;
    let data = Arc::into_raw(callback);
    // SAFETY: the trampoline takes what `data` is.
    let status =
        unsafe { sys::cuLaunchHostFunc(stream as sys::CUstream, Some(trampoline::<T>), data.cast_mut().cast()) };
    checked("cuLaunchHostFunc", status).inspect_err(|_| {
        // SAFETY: the driver has refused the call, so `data` is still ours.
        drop(unsafe { Arc::from_raw(data) });
    })
}

/// A stream of our own that follows others: calls on it hold up nobody's kernels.
#[derive(Debug)]
pub struct Follower {
    context: Arc<Context>,
    stream: sys::CUstream,
    event: sys::CUevent,
}

// SAFETY: handles may be used from any thread.
unsafe impl Send for Follower {}
// SAFETY: as above; `call_after` records and waits under the caller's lock.
unsafe impl Sync for Follower {}

impl Follower {
    /// A new stream.
    pub fn new(context: Arc<Context>) -> Result<Self, Refusal> {
        const NON_BLOCKING: u32 = 1;
        const DISABLE_TIMING: u32 = 2;
        let (mut stream, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
        {
            let _entered = context.enter()?;
            // SAFETY: `event` is a place for the answer.
            checked("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, DISABLE_TIMING) })?;
            // SAFETY: `stream` is a place for the answer.
            checked("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, NON_BLOCKING) })?;
        }
        Ok(Self { context, stream, event })
    }

    /// Has `callback` called when each of `streams` has done what is queued on it now.
    pub fn call_after<T: Callback>(&self, streams: &[u64], callback: Arc<T>) -> Result<(), Refusal> {
        {
            let _entered = self.context.enter()?;
            for &stream in streams {
                // SAFETY: the event is ours, the stream torch's or the default one.
                checked("cuEventRecord", unsafe { sys::cuEventRecord(self.event, stream as sys::CUstream) })?;
                // SAFETY: both are ours. The wait is for the record above, whatever is recorded later.
                checked("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.stream, self.event, 0) })?;
            }
        }
        call_after(&self.context, self.stream as u64, callback)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: ours; the driver finishes what is queued before it lets go of the stream.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
            // SAFETY: ours, and nothing is recorded on it any more.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_words() {
        let check = |code, words: &str| {
            let said = Refusal::Failed { call: "cuMemHostRegister", code }.to_string();
            assert!(said.contains(words) && said.contains(&code.to_string()), "{said}");
        };
        check(1, "invalid value");
        check(2, "out of memory");
        check(712, "already page-locked");
        check(801, "not supported");
        check(999, "CUresult");
    }
}
