//! The photos that benchmarks decode, and the same with restart markers.

pub mod restarts;

use std::path::{Path, PathBuf};

/// The photos of a folder of `FEEDLINE_PHOTOS`; of small ones there is always a set, if only a generated one.
pub fn files(folder: &str) -> Vec<PathBuf> {
    let folder = match std::env::var_os("FEEDLINE_PHOTOS") {
        Some(root) => Path::new(&root).join(folder),
        None if folder != "small" => {
            eprintln!("skipped: {folder} photos, FEEDLINE_PHOTOS is not set");
            return Vec::new();
        }
        None => {
            eprintln!("FEEDLINE_PHOTOS is not set: the generated images are measured");
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/images")
        }
    };
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jpg"));
    files.sort();
    files
}
