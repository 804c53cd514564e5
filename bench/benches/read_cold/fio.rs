//! Measurements by fio.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::contest::{Measured, READ_BYTES, Task};

/// Makes glibc's `malloc`, from which fio has its buffers, ask for transparent huge pages, and in blocks large enough.
const HUGE_PAGES: &str = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.top_pad=67108864";

/// Whether programs can have transparent huge pages when they ask for them.
pub fn has_huge_pages() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    setting.contains("[always]") || setting.contains("[madvise]")
}

pub fn measure(engine: &str, huge_pages: bool, direct: bool, depth: u32, task: &Task<'_>) -> Result<Measured, String> {
    let mut command = Command::new("fio");
    command.args(["--name=read", "--rw=randread", "--readonly", "--output-format=json", "--invalidate=0"]);
    command.arg(format!("--filename={}", task.path.display()));
    command.args([format!("--size={}", task.file_bytes), format!("--bs={READ_BYTES}")]);
    command.args([format!("--ioengine={engine}"), format!("--iodepth={depth}")]);
    command.args([format!("--direct={}", u8::from(direct)), format!("--runtime={}", task.limit.as_secs())]);
    command.arg(format!("--randseed={}", task.seed));
    if engine == "io_uring" {
        command.args(["--fixedbufs=1", "--registerfiles=1"]);
    }
    if huge_pages {
        // A thread has its memory from an arena of its own, which starts at the border of a huge page.
        command.env("GLIBC_TUNABLES", HUGE_PAGES).arg("--thread");
    }
    let words = format!("{command:?}").replace('"', "");
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let said: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let job = &said["jobs"][0];
    let (read, number) = (&job["read"], |value: &Value| value.as_f64().ok_or(format!("fio says {value}")));
    let elapsed = Duration::from_secs_f64(number(&read["runtime"])? / 1e3);
    let percent = number(&job["usr_cpu"])? + number(&job["sys_cpu"])?;
    let bytes = read["io_bytes"].as_u64().ok_or("fio does not say how much it has read")?;
    Ok(Measured { bytes, elapsed, cpu: elapsed.mul_f64(percent / 100.0), words })
}
