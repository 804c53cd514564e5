//! Measurements by fio.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::Arguments;

/// Random reads of 4 KiB all over the shards: how many, in what time, by which command. As many are under way as the
/// indexer has threads, in threads of their own where the engine waits for each.
pub fn measure(engine: &str, direct: bool, arguments: &Arguments) -> Result<(u64, Duration, String), String> {
    let (jobs, depth) = if engine == "psync" { (arguments.threads, 1) } else { (1, arguments.threads) };
    let mut command = Command::new("fio");
    command.args(["--name=read", "--rw=randread", "--readonly", "--bs=4k", "--output-format=json", "--invalidate=0"]);
    command.arg(format!("--opendir={}", arguments.folder.join("shards").display()));
    command.args(["--file_service_type=random", "--time_based", "--group_reporting", "--norandommap"]);
    command.args([format!("--ioengine={engine}"), format!("--iodepth={depth}")]);
    command.args(["--thread".to_owned(), format!("--numjobs={jobs}"), format!("--direct={}", u8::from(direct))]);
    command.arg(format!("--runtime={}", arguments.seconds));
    // The report is for other machines than this.
    let words = format!("{command:?}").replace('"', "").replace(&arguments.folder.display().to_string(), "FOLDER");
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // Notes come before the report.
    let start = text.find('{').ok_or("fio says nothing")?;
    let said: Value = serde_json::from_str(&text[start..]).map_err(|error| error.to_string())?;
    let read = &said["jobs"][0]["read"];
    let count = read["total_ios"].as_u64().ok_or("fio does not say how often it has read")?;
    let runtime = read["runtime"].as_f64().ok_or("fio does not say how long it has read")?;
    Ok((count, Duration::from_secs_f64(runtime / 1e3), words))
}
