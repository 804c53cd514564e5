//! A GPU's figures as they come: one thread that asks, and a reader who never waits for the driver.
//!
//! A call that does not come back is the thread's trouble: the reader is told after the time limit, and again until it does. A
//! GPU that is lost, or a driver that was updated, is told with every sample and tried again at growing intervals, with NVML
//! loaded afresh; the other GPUs are sampled meanwhile.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};

use super::fault::{GpuFault, GpuFaultKind};
use super::name::{GpuIdentity, GpuName};
use super::sample::GpuSample;
use super::session::{self, Watched};
use super::slow::SlowLane;
use crate::error::{Error, Result};

/// Samples that wait for a reader: a minute of one GPU.
const QUEUE_SAMPLES: usize = 1024;

/// Longest time between two tries at a GPU or driver that is not there.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What is sampled, and how patiently.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// The GPUs; none means all.
    pub gpus: Vec<GpuName>,
    /// Time between samples.
    pub interval: Duration,
    /// Longest time that a call may take before it is told.
    pub call_limit: Duration,
    /// Time to the first retry of what is not there; doubled with each.
    pub retry: Duration,
    /// The process whose memory is told.
    pub pid: Option<u32>,
    /// The library, where it is not `libnvidia-ml.so.1` of the loader's path.
    pub library: Option<PathBuf>,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            gpus: Vec::new(),
            interval: Duration::from_millis(100),
            call_limit: Duration::from_secs(2),
            retry: Duration::from_secs(2),
            pid: None,
            library: None,
        }
    }
}

/// Which call is under way, and since when.
#[derive(Debug, Default)]
pub(super) struct CallClock(Mutex<Option<(&'static str, Instant)>>);

impl CallClock {
    /// Makes a call that is seen from outside until it comes back.
    pub fn call<T>(&self, name: &'static str, call: impl FnOnce() -> T) -> T {
        self.set(Some((name, Instant::now())));
        let done = call();
        self.set(None);
        done
    }

    fn set(&self, now: Option<(&'static str, Instant)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// The call that has taken longer than `limit`, if one has.
    fn overdue(&self, limit: Duration) -> Option<(&'static str, Duration)> {
        let (name, since) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some((name, since.elapsed())).filter(|(_, taken)| *taken > limit)
    }
}

/// What thread and reader share.
#[derive(Debug)]
struct Shared {
    options: LiveOptions,
    started: Instant,
    clock: CallClock,
    stop: AtomicBool,
    dropped: AtomicU64,
}

impl Shared {
    fn t(&self) -> f64 {
        (self.started.elapsed().as_secs_f64() * 1e4).round() / 1e4
    }
}

/// A running sampler. It ends when dropped.
#[derive(Debug)]
pub struct LiveSource {
    shared: Arc<Shared>,
    samples: Receiver<GpuSample>,
    thread: Option<JoinHandle<()>>,
}

impl LiveSource {
    /// Starts the sampler's thread. That NVML is missing is told by the samples.
    ///
    /// # Errors
    ///
    /// [`Error::System`] where no thread can be started.
    pub fn start(options: LiveOptions) -> Result<Self> {
        let (sender, samples) = bounded(QUEUE_SAMPLES);
        let shared = Arc::new(Shared {
            options,
            started: Instant::now(),
            clock: CallClock::default(),
            stop: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("feedline-nvml".into())
            .spawn(move || run(&theirs, &sender))
            .map_err(|source| Error::system("start the GPU sampler", source))?;
        Ok(Self { shared, samples, thread: Some(thread) })
    }

    /// The next sample, waited for at most `timeout`; None if there is none. While a call of the driver is overdue, each
    /// wait of an interval ends with a sample that says so.
    pub fn next(&self, timeout: Duration) -> Option<GpuSample> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.samples.recv_timeout(left.min(self.shared.options.interval)) {
                Ok(sample) => return Some(sample),
                Err(RecvTimeoutError::Timeout) => {}
                // The thread ends before its source only where a library breaks its own rules.
                Err(RecvTimeoutError::Disconnected) => {
                    thread::sleep(left.min(self.shared.options.interval));
                    let words = "the sampler's thread has ended".to_owned();
                    return Some(self.faulty(GpuFault { kind: GpuFaultKind::Other, words }));
                }
            }
            if let Some((name, taken)) = self.shared.clock.overdue(self.shared.options.call_limit) {
                let words = format!("{name}: no answer for {:.1} s", taken.as_secs_f64());
                return Some(self.faulty(GpuFault { kind: GpuFaultKind::Timeout, words }));
            }
            if left.is_zero() {
                return None;
            }
        }
    }

    fn faulty(&self, fault: GpuFault) -> GpuSample {
        GpuSample { t: self.shared.t(), error: Some(fault), ..GpuSample::default() }
    }

    /// Samples that nobody took in time, and that are lost.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for LiveSource {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        let until = Instant::now() + self.shared.options.call_limit;
        while !thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        // A thread that hangs in the driver is left to it.
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

/// The thread: sessions of NVML, one after the other.
fn run(shared: &Shared, out: &Sender<GpuSample>) {
    let mut known: Vec<GpuIdentity> = Vec::new();
    let mut retry = shared.options.retry;
    while !shared.stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        match session::open(shared.options.library.as_deref(), &shared.clock) {
            Ok(nvml) => {
                if sample_all(shared, out, Arc::new(nvml), &mut known, retry) {
                    retry = shared.options.retry;
                    continue;
                }
            }
            Err(fault) => tell_until(shared, out, &known, &fault, began + retry),
        }
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// Says `fault` of every GPU that is known, at each interval until `until`.
fn tell_until(shared: &Shared, out: &Sender<GpuSample>, known: &[GpuIdentity], fault: &GpuFault, until: Instant) {
    let mut tick = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) && Instant::now() < until {
        let uuids: Vec<Option<String>> = match known {
            [] => vec![None],
            gpus => gpus.iter().map(|gpu| Some(gpu.uuid.clone())).collect(),
        };
        for uuid in uuids {
            send(shared, out, GpuSample { t: shared.t(), uuid, error: Some(fault.clone()), ..GpuSample::default() });
        }
        wait(shared, &mut tick);
    }
}

/// Samples until the end, or until a GPU that is not there is to be tried again. Whether all were there for a while.
fn sample_all(
    shared: &Shared,
    out: &Sender<GpuSample>,
    nvml: Arc<nvml_wrapper::Nvml>,
    known: &mut Vec<GpuIdentity>,
    retry: Duration,
) -> bool {
    let mut missing = Vec::new();
    if known.is_empty() {
        let all;
        (all, missing) = session::identities(&nvml, &shared.clock);
        let nothing = || GpuFault { kind: GpuFaultKind::NoSuchGpu, words: "NVML counts no GPU".to_owned() };
        match session::choose(&all, &shared.options.gpus) {
            Ok(chosen) if !chosen.is_empty() => *known = chosen,
            // The GPU that was named may be the one that does not say its name.
            chosen => {
                let fault = missing.pop().map(|(_, fault)| fault).or(chosen.err()).unwrap_or_else(nothing);
                tell_until(shared, out, &[], &fault, Instant::now() + retry);
                return false;
            }
        }
        if !shared.options.gpus.is_empty() {
            missing.clear();
        }
    }
    let slow = SlowLane::start(Arc::clone(&nvml), known.clone(), shared.options.pid);
    let mut watched: Vec<Result<Watched<'_>, GpuFault>> =
        known.iter().map(|gpu| Watched::open(&nvml, gpu, &shared.clock)).collect();
    let began = Instant::now();
    let mut failed = (!missing.is_empty() || !watched.iter().all(Result::is_ok)).then_some(began);
    let mut tick = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        for (gpu, state) in known.iter().zip(&mut watched) {
            let mut sample = match state {
                Ok(watched) => watched.sample(shared.t(), &shared.clock),
                Err(fault) => GpuSample {
                    t: shared.t(),
                    uuid: Some(gpu.uuid.clone()),
                    error: Some(fault.clone()),
                    ..GpuSample::default()
                },
            };
            if let (Some(fault), true) = (&sample.error, state.is_ok()) {
                *state = Err(fault.clone());
                failed.get_or_insert_with(Instant::now);
            }
            slow.fill(&mut sample);
            send(shared, out, sample);
        }
        for (name, fault) in &missing {
            let (uuid, error) = (Some(name.clone()), Some(fault.clone()));
            send(shared, out, GpuSample { t: shared.t(), uuid, error, ..GpuSample::default() });
        }
        if failed.is_some_and(|failed| failed.elapsed() >= retry) {
            if !missing.is_empty() {
                // All are counted anew, in the hope that those say their names then.
                known.clear();
            }
            break;
        }
        wait(shared, &mut tick);
    }
    // All was well for a while: what failed then is tried again soon.
    failed.is_none_or(|failed| failed - began > retry)
}

fn send(shared: &Shared, out: &Sender<GpuSample>, sample: GpuSample) {
    if let Err(TrySendError::Full(_)) = out.try_send(sample) {
        shared.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits for the next interval; those that a slow call missed are left out.
fn wait(shared: &Shared, tick: &mut Instant) {
    let now = Instant::now();
    *tick += shared.options.interval;
    if *tick <= now {
        *tick = now + shared.options.interval;
    }
    while !shared.stop.load(Ordering::Relaxed) {
        let left = tick.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}
