//! Bad samples that a run met, proposed for the quarantine of later runs.
//!
//! A proposal changes nothing in the run that makes it: which samples an epoch takes is fixed at the start. Each bad
//! sample becomes one line of JSON in a file named after its shard; I/O faults say nothing about a sample and are left
//! out.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, FaultClass, FaultReport, Result};
use crate::shard::cache_folder;

/// Most samples that one stream proposes; a dataset with more needs mending, not a list.
const PROPOSALS_MAX: usize = 100_000;

/// The proposals of one stream.
#[derive(Debug)]
pub(in crate::serve) struct Proposals {
    folder: Option<PathBuf>,
    seen: HashSet<u64>,
}

impl Proposals {
    pub(in crate::serve) fn new(cache_dir: Option<&Path>) -> Self {
        Self { folder: cache_folder(cache_dir).map(|folder| folder.join("quarantine")), seen: HashSet::new() }
    }

    /// Proposes the sample of `report`, unless this stream did so before.
    pub(in crate::serve) fn add(&mut self, report: &FaultReport) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let is_unfit = matches!(report.class, FaultClass::Io | FaultClass::Lenient);
        if is_unfit || self.seen.len() >= PROPOSALS_MAX || !self.seen.insert(report.sample) {
            return Ok(());
        }
        let (path, mut file) = open(folder, &report.shard)?;
        if self.seen.len() == 1 {
            tracing::info!("bad samples are proposed for quarantine in {}", path.display());
        }
        let mut line = serde_json::to_vec(report).expect("a report is plain data");
        line.push(b'\n');
        // One write a line: several processes may append to one file.
        file.write_all(&line).map_err(|source| Error::io("write to", &path, source))
    }
}

fn open(folder: &Path, shard: &str) -> Result<(PathBuf, File)> {
    std::fs::create_dir_all(folder).map_err(|source| Error::io("make", folder, source))?;
    let name = blake3::hash(shard.as_bytes()).to_hex();
    let path = folder.join(format!("{}.jsonl", &name[..32]));
    let file =
        OpenOptions::new().create(true).append(true).open(&path).map_err(|source| Error::io("open", &path, source))?;
    Ok((path, file))
}
