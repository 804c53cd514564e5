//! A folder to write shards in, and what is read of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use feedline_loader::plan::SampleId;
use feedline_loader::shard::{ByteRange, Dataset, FieldBytes, Finding, IndexOptions};
use feedline_loader::{Error, Result};
use tempfile::TempDir;

/// A sample as (key, field → bytes).
pub type Sample = (String, BTreeMap<String, Vec<u8>>);

/// A folder for shards, with a cache folder in it.
pub struct Bench {
    folder: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn options(&self) -> IndexOptions {
        IndexOptions { cache_dir: Some(self.at("cache/deep")), ..IndexOptions::default() }
    }

    pub fn open(&self, names: &[&str]) -> Result<Dataset> {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.at(name)).collect();
        Dataset::open(&paths, &self.options(), &|_| {})
    }

    /// Writes a shard with the `tar` crate.
    pub fn write(&self, name: &str, members: &[(&str, &[u8])]) -> PathBuf {
        fs::write(self.at(name), archive(members)).expect("written");
        self.at(name)
    }

    /// Runs a writer in this folder; `false`, said aloud, when it is not installed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> bool {
        match Command::new(program).args(arguments).current_dir(self.folder.path()).output() {
            Ok(output) => {
                assert!(
                    output.status.success(),
                    "{program} {arguments:?}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                true
            }
            Err(error) => {
                eprintln!("skipped: {program}: {error}");
                false
            }
        }
    }

    pub fn python(&self, script: &str) -> bool {
        let prelude = "import io, sys, tarfile\n\
             def T(path, members, **options):\n\
             \x20   with tarfile.open(path, 'w', **options) as out:\n\
             \x20       for name, body in members:\n\
             \x20           info = tarfile.TarInfo(name); info.size = len(body); info.mtime = 1.5\n\
             \x20           out.addfile(info, io.BytesIO(body))\n";
        self.run("python3", &["-c", &format!("{prelude}{script}")])
    }

    /// GNU tar, whose options other tars do not have.
    pub fn gnu_tar(&self, arguments: &[&str]) -> bool {
        let version = Command::new("tar").arg("--version").output();
        if !version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("GNU")) {
            eprintln!("skipped: GNU tar is not installed");
            return false;
        }
        self.run("tar", arguments)
    }
}

/// An archive by the `tar` crate.
pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, body) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(body.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *body).expect("in memory");
    }
    builder.into_inner().expect("in memory")
}

/// Every sample, its bytes read from where the index says.
pub fn samples(dataset: &Dataset) -> Vec<Sample> {
    let names: Vec<String> = {
        let shards = (0..dataset.shard_count()).flat_map(|shard| dataset.shard_summary(shard, 0).fields);
        let names: BTreeMap<String, ()> = shards.map(|field| (field.name, ())).collect();
        names.into_keys().collect()
    };
    let sources: Vec<Vec<String>> = names.iter().map(|name| vec![name.clone()]).collect();
    let selector = dataset.selector(&sources).expect("fields that are there");
    let read = |sample: u64| {
        let sample = SampleId(sample);
        let file = File::open(dataset.shard_path(dataset.locate(sample).0)).expect("still there");
        let mut ranges = vec![None; names.len()];
        selector.select(dataset, sample, &mut ranges);
        let bytes = |field: FieldBytes| {
            let (_, ByteRange { offset, len }) = field.in_file().expect("a tar has all bytes itself");
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, offset).expect("inside the shard");
            bytes
        };
        let fields = names.iter().zip(ranges).filter_map(|(name, range)| Some((name.clone(), bytes(range?))));
        (dataset.with_key(sample, str::to_owned), fields.collect())
    };
    (0..dataset.sample_count()).map(read).collect()
}

pub fn sample(key: &str, fields: &[(&str, &[u8])]) -> Sample {
    (key.to_owned(), fields.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect())
}

pub fn findings(dataset: &Dataset, shard: u32) -> Vec<(Finding, u64)> {
    dataset.shard_summary(shard, 0).findings.into_iter().map(|found| (found.finding, found.count)).collect()
}

/// Opening fails with an `Error::Shard` that holds `part`; returns its offset.
pub fn refused(bench: &Bench, name: &str, part: &str) -> u64 {
    match bench.open(&[name]) {
        Err(Error::Shard { path, offset, message }) => {
            assert_eq!(path, bench.at(name));
            assert!(message.contains(part), "{message}");
            offset
        }
        other => panic!("{name}: expected {part:?}, got {other:?}"),
    }
}
