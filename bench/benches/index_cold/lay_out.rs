//! Shards of photos with labels, of bytes that are on the disk.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// The shards in `folder`; those that are there with the right length are kept.
pub fn shards(folder: &Path, shards: u32, samples: u32, photo_bytes: u32) -> Vec<PathBuf> {
    let folder = folder.join("shards");
    fs::create_dir_all(&folder).expect("make the folder");
    let sample_bytes = 1024 + 512 + u64::from(photo_bytes).next_multiple_of(512);
    let shard_bytes = sample_bytes * u64::from(samples) + 1024;
    let paths: Vec<PathBuf> = (0..shards).map(|shard| folder.join(format!("{shard:06}.tar"))).collect();
    // fio reads whatever lies there.
    for entry in fs::read_dir(&folder).expect("list the folder") {
        let path = entry.expect("list the folder").path();
        if !paths.contains(&path) {
            fs::remove_file(path).expect("remove a shard of another run");
        }
    }
    let noise = noise(photo_bytes as usize + 4096);
    let is_there = |path: &Path| fs::metadata(path).is_ok_and(|metadata| metadata.len() == shard_bytes);
    let missing: Vec<(u32, &PathBuf)> = (0..).zip(&paths).filter(|(_, path)| !is_there(path)).collect();
    if !missing.is_empty() {
        let mib = (missing.len() as u64 * shard_bytes) >> 20;
        eprintln!("laying out {} shards, {mib} MiB, in {}", missing.len(), folder.display());
    }
    for (shard, path) in missing {
        write(path, shard, samples, &noise, photo_bytes as usize).expect("write a shard");
    }
    paths
}

fn write(path: &Path, shard: u32, samples: u32, noise: &[u8], photo_bytes: usize) -> std::io::Result<()> {
    let mut tar = tar::Builder::new(BufWriter::with_capacity(1 << 20, File::create(path)?));
    for sample in 0..samples {
        let from = (shard + sample) as usize % 4096;
        for (ending, body) in [("cls", &b"123"[..]), ("jpg", &noise[from..from + photo_bytes])] {
            let mut header = tar::Header::new_ustar();
            header.set_size(body.len() as u64);
            tar.append_data(&mut header, format!("{shard:04}/{sample:06}.{ending}"), body)?;
        }
    }
    let mut file = tar.into_inner()?;
    file.flush()?;
    file.get_ref().sync_all()
}

/// Bytes that do not compress.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}
