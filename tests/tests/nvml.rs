//! Promise: whatever a driver does, a reader of its figures gets an answer in time, absent is never zero, and what comes back is
//! sampled again.
//!
//! The driver is `nvml_stub.c`, compiled here and told in a file what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use feedline_loader::telemetry::gpu::{GpuFaultKind, GpuName, GpuSample, LiveOptions, LiveSource};
use feedline_loader::telemetry::verdict::{Timeline, VerdictClass};
use tempfile::TempDir;

const FIRST: &str = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
const SECOND: &str = "GPU-1a2b3c4d-d72c-4106-c12f-20bd9faed9f6";
const PART: &str = "MIG-11112222-3333-4444-5555-666677778888";

/// Longest wait for something that comes at once as a rule.
const PATIENCE: Duration = Duration::from_secs(30);

/// A driver of its own: each test loads another file, so that none sees another's settings.
struct Driver(TempDir);

impl Driver {
    fn new(settings: &str) -> Self {
        let driver = Self(TempDir::new().expect("a folder"));
        driver.tell(settings);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml_stub.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(driver.library()).arg(source).status();
        assert!(built.expect("a C compiler").success());
        driver
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("libnvidia-ml.so.1")
    }

    /// Replaces the settings at once, as another thread reads them.
    fn tell(&self, settings: &str) {
        let (new, path) = (self.0.path().join("new"), self.0.path().join("settings"));
        fs::write(&new, settings).expect("write");
        fs::rename(new, path).expect("rename");
    }

    fn options(&self, gpus: &[&str]) -> LiveOptions {
        LiveOptions {
            gpus: gpus.iter().map(|name| GpuName::parse(name).expect("a name")).collect(),
            interval: Duration::from_millis(20),
            call_limit: Duration::from_millis(300),
            retry: Duration::from_millis(200),
            pid: None,
            library: Some(self.library()),
        }
    }

    fn watch(&self, gpus: &[&str]) -> LiveSource {
        LiveSource::start(self.options(gpus)).expect("a thread")
    }
}

/// The first sample that is as wanted.
fn wait_for(source: &LiveSource, what: &str, is_it: impl Fn(&GpuSample) -> bool) -> GpuSample {
    let until = Instant::now() + PATIENCE;
    let mut last = None;
    while Instant::now() < until {
        if let Some(sample) = source.next(Duration::from_millis(100)) {
            if is_it(&sample) {
                return sample;
            }
            last = Some(sample);
        }
    }
    panic!("no sample with {what}; the last is {last:?}");
}

fn fault(sample: &GpuSample) -> Option<GpuFaultKind> {
    sample.error.as_ref().map(|fault| fault.kind)
}

#[test]
fn every_figure_is_sampled() {
    let driver = Driver::new("util=97\nmemory=40\npower=523000\nreasons=64\nclock=1500\ngraphics=96\nsm=88\n");
    let source = driver.watch(&[FIRST]);
    let sample = wait_for(&source, "counters", |sample| sample.gpm.is_some());
    assert_eq!(sample.uuid.as_deref(), Some(FIRST));
    assert_eq!((sample.gpu_util, sample.mem_util), (Some(97.0), Some(40.0)));
    assert_eq!((sample.power_mw, sample.power_limit_mw), (Some(523_000.0), Some(700_000.0)));
    assert_eq!((sample.sm_mhz, sample.sm_mhz_max, sample.mem_mhz), (Some(1500.0), Some(1980.0), Some(2619.0)));
    assert_eq!((sample.clock_reasons, sample.temp_c), (Some(0x40), Some(55.0)));
    assert_eq!((sample.mem_used, sample.mem_total), (Some(16 << 30), Some(150 << 30)));
    assert_eq!((sample.jpg_util, sample.dec_util), (Some(12.0), Some(3.0)));
    assert_eq!((sample.pcie_gen, sample.pcie_width), (Some(5), Some(16)));
    let gpm = sample.gpm.expect("waited for");
    assert_eq!((gpm.graphics_util, gpm.sm_util), (Some(96.0), Some(88.0)));
    assert_eq!(gpm.fp16_util, None, "a counter that this GPU lacks");
    let slow = wait_for(&source, "throughput", |sample| sample.pcie_rx_kb_s.is_some());
    assert_eq!((slow.pcie_rx_kb_s, slow.pcie_tx_kb_s, slow.pcie_replay), (Some(700_000.0), Some(9_000.0), Some(2)));
    assert_eq!((slow.ecc_corrected, slow.ecc_uncorrected, slow.process_mem), (Some(4), Some(0), Some(3 << 30)));
    assert_eq!(source.dropped(), 0);
}

#[test]
fn the_memory_of_one_process_and_not_of_a_stranger() {
    let driver = Driver::new("");
    let of = |pid: u32| {
        let source = LiveSource::start(LiveOptions { pid: Some(pid), ..driver.options(&[FIRST]) }).expect("a thread");
        wait_for(&source, "throughput", |sample| sample.pcie_rx_kb_s.is_some()).process_mem
    };
    assert_eq!(of(std::process::id()), Some(2 << 30));
    assert_eq!(of(1), None);
}

#[test]
fn what_is_not_supported_is_absent() {
    let driver = Driver::new("absent=util,power,reasons,jpg,gpm,throughput,events,processes,memory_info\n");
    let source = driver.watch(&[FIRST]);
    let sample = wait_for(&source, "a temperature", |sample| sample.temp_c.is_some());
    assert_eq!(sample.error, None);
    assert_eq!((sample.gpu_util, sample.mem_util, sample.power_mw), (None, None, None));
    assert_eq!((sample.clock_reasons, sample.jpg_util, sample.mem_used), (None, None, None));
    let slow = wait_for(&source, "replays", |sample| sample.pcie_replay.is_some());
    assert_eq!((slow.gpm, slow.pcie_rx_kb_s, slow.process_mem), (None, None, None));
    let line = serde_json::to_string(&sample).expect("JSON");
    assert!(!line.contains("gpu_util") && !line.contains("null") && line.contains("temp_c"), "{line}");
}

#[test]
fn counters_that_measured_nothing_are_absent() {
    let driver = Driver::new("nan=1\n");
    let source = driver.watch(&[FIRST]);
    let until = Instant::now() + Duration::from_millis(600);
    while Instant::now() < until {
        if let Some(sample) = source.next(Duration::from_millis(50)) {
            assert_eq!(sample.gpm, None);
        }
    }
    driver.tell("");
    wait_for(&source, "counters", |sample| sample.gpm.is_some());
}

#[test]
fn a_call_that_hangs_is_told_in_time_and_recovers() {
    let driver = Driver::new("");
    let source = driver.watch(&[FIRST]);
    wait_for(&source, "figures", |sample| sample.gpu_util.is_some());
    driver.tell("hang=power\n");
    let hung = wait_for(&source, "a timeout", |sample| fault(sample) == Some(GpuFaultKind::Timeout));
    let words = hung.error.expect("waited for").words;
    assert!(words.starts_with("power: no answer for 0."), "{words}");
    // And the reader's own limit holds meanwhile.
    let began = Instant::now();
    source.next(Duration::from_millis(50));
    assert!(began.elapsed() < Duration::from_secs(2));
    driver.tell("");
    wait_for(&source, "figures", |sample| sample.gpu_util.is_some());
}

#[test]
fn a_source_ends_while_its_driver_hangs() {
    let driver = Driver::new("hang=power\n");
    let source = driver.watch(&[FIRST]);
    wait_for(&source, "a timeout", |sample| fault(sample) == Some(GpuFaultKind::Timeout));
    let began = Instant::now();
    drop(source);
    assert!(began.elapsed() < Duration::from_secs(5));
    driver.tell("");
}

#[test]
fn slow_calls_that_hang_hold_nothing_up() {
    let driver = Driver::new("hang=throughput\n");
    let source = driver.watch(&[FIRST]);
    for _ in 0..20 {
        let sample = wait_for(&source, "figures", |sample| sample.gpu_util.is_some());
        assert_eq!(sample.pcie_rx_kb_s, None);
    }
    driver.tell("");
    wait_for(&source, "throughput", |sample| sample.pcie_rx_kb_s.is_some());
}

#[test]
fn a_lost_gpu_is_named_and_found_again_and_the_other_sampled_meanwhile() {
    let driver = Driver::new("");
    let source = driver.watch(&[]);
    wait_for(&source, "the first", |sample| sample.uuid.as_deref() == Some(FIRST) && sample.gpu_util.is_some());
    driver.tell("lost=1\n");
    let lost = wait_for(&source, "a loss", |sample| fault(sample) == Some(GpuFaultKind::GpuLost));
    assert_eq!((lost.uuid.as_deref(), lost.gpu_util), (Some(FIRST), None));
    for _ in 0..30 {
        wait_for(&source, "the second", |sample| sample.uuid.as_deref() == Some(SECOND) && sample.gpu_util.is_some());
    }
    driver.tell("");
    let back =
        wait_for(&source, "its return", |sample| sample.uuid.as_deref() == Some(FIRST) && sample.error.is_none());
    assert_eq!(back.gpu_util, Some(97.0));
}

#[test]
fn a_gpu_that_is_lost_from_the_start_is_told_and_taken_up_later() {
    let driver = Driver::new("lost=2\n");
    let source = driver.watch(&[]);
    let lost = wait_for(&source, "a loss", |sample| fault(sample) == Some(GpuFaultKind::GpuLost));
    assert_eq!(lost.uuid.as_deref(), Some("NVML's number 0"));
    wait_for(&source, "the first", |sample| sample.uuid.as_deref() == Some(FIRST) && sample.gpu_util.is_some());
    driver.tell("");
    wait_for(&source, "the second", |sample| sample.uuid.as_deref() == Some(SECOND) && sample.gpu_util.is_some());
}

#[test]
fn a_driver_that_was_updated_is_told_and_tried_again() {
    let driver = Driver::new("init=18\n");
    let source = driver.watch(&[FIRST]);
    let sample = wait_for(&source, "a mismatch", |sample| sample.error.is_some());
    assert_eq!(fault(&sample), Some(GpuFaultKind::DriverMismatch));
    driver.tell("");
    wait_for(&source, "figures", |sample| sample.gpu_util.is_some());
}

#[test]
fn no_library_and_no_driver_are_told() {
    let driver = Driver::new("init=9\n");
    let told = wait_for(&driver.watch(&[]), "a fault", |sample| sample.error.is_some());
    assert_eq!(fault(&told), Some(GpuFaultKind::NoDriver));
    let options = LiveOptions { library: Some("/nowhere/libnvidia-ml.so.1".into()), ..driver.options(&[]) };
    let told = wait_for(&LiveSource::start(options).expect("a thread"), "a fault", |sample| sample.error.is_some());
    assert_eq!(fault(&told), Some(GpuFaultKind::NoLibrary));
}

#[test]
fn gpus_are_found_by_every_spelling() {
    let driver = Driver::new("mig=1\n");
    let check = |name: &str, expected: &str| {
        let source = driver.watch(&[name]);
        let sample = wait_for(&source, "a temperature", |sample| sample.temp_c.is_some());
        assert_eq!(sample.uuid.as_deref(), Some(expected), "{name}");
        sample
    };
    check(FIRST, FIRST);
    check("8932F937-d72c-4106-c12f-20bd9faed9f6", FIRST);
    check("GPU-1a2b", SECOND);
    check("3b:00.0", FIRST);
    check("0000:AF:00.0", SECOND);
    // Utilisation of a part, and of a GPU in parts, is unavailable: never zero.
    assert_eq!(check(PART, PART).gpu_util, None);
    let source = driver.watch(&[PART]);
    let part = wait_for(&source, "the part's counters", |sample| sample.gpm.is_some());
    assert_eq!((part.gpu_util, part.gpm.and_then(|gpm| gpm.sm_util)), (None, Some(88.0)));
    let stranger = wait_for(&driver.watch(&["GPU-dead-beef"]), "a fault", |sample| sample.error.is_some());
    assert_eq!(fault(&stranger), Some(GpuFaultKind::NoSuchGpu));
    assert!(stranger.error.expect("waited for").words.contains(FIRST));
}

#[test]
fn an_xid_comes_with_the_next_sample() {
    let driver = Driver::new("");
    let source = driver.watch(&[FIRST]);
    wait_for(&source, "throughput", |sample| sample.pcie_rx_kb_s.is_some());
    driver.tell("xid=79\n");
    let sample = wait_for(&source, "an Xid", |sample| !sample.xid.is_empty());
    assert_eq!(sample.xid, [79]);
}

#[test]
fn live_samples_are_judged() {
    let check = |settings: &str, expected: VerdictClass| {
        let driver = Driver::new(settings);
        let source = driver.watch(&[FIRST]);
        let began = Instant::now();
        let mut samples = Vec::new();
        while began.elapsed() < Duration::from_millis(900) {
            samples.extend(source.next(Duration::from_millis(50)));
        }
        let verdict = Timeline::of(&samples, &[], 5.0).overall.verdict;
        assert_eq!(verdict.class, expected, "{settings}: {}", verdict.words);
    };
    check("", VerdictClass::ComputeBound);
    check("reasons=64\nclock=1200\n", VerdictClass::ThrottledThermal);
    check("graphics=99\nsm=0\nmemory=0\npower=124000\nabsent=throughput\n", VerdictClass::LaunchBound);
    check("memory=0\npower=124000\nabsent=throughput,gpm\n", VerdictClass::FakeBusy);
    check("memory=0\npower=350000\nabsent=throughput,gpm\n", VerdictClass::Unknown);
    check("lost=1\n", VerdictClass::GpuLost);
    check("init=18\n", VerdictClass::Unknown);
}
