//! A folder of plain images as a shard: a sample a file, its class the folder of the first level that holds it.
//!
//! Classes are the folders of the first level in the order of their names, numbered from 0, as torchvision's ImageFolder
//! numbers them. A sample has the field of its ending (`jpg`), and `cls`, its class in decimal, unless it lies in the
//! folder itself. Hidden files and other endings are skipped and counted.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::findings::{Finding, Findings};
use super::identity::{FileState, Identity};
use super::place::Encoding;
use super::table::{Body, Table};
use super::window::check_wanted;
use crate::error::{Error, Result};

/// Endings that are taken for images.
const IMAGE_ENDINGS: [&str; 11] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif", "avif"];

/// The field with the path of a sample's file, relative to the tree.
pub(super) const PATH_FIELD: &str = "__path__";

/// The field with a sample's class.
const CLASS_FIELD: &str = "cls";

/// Folders that are listed at once: listing waits for the disk more than it computes.
const THREADS: usize = 16;

/// What a tree holds beside its samples.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) table: Table,
    pub(super) findings: Findings,
    /// Names of the classes, in order.
    pub(super) classes: Vec<String>,
    /// All folders, relative to the root, in order.
    pub(super) folders: Vec<String>,
}

/// Whether links may lead out of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Links {
    /// They are followed, wherever they lead.
    #[default]
    Followed,
    /// Those that lead out are skipped.
    Confined,
}

/// One folder's entries.
#[derive(Debug, Default)]
struct Listing {
    /// Name and length.
    files: Vec<(String, u64)>,
    folders: Vec<String>,
    findings: Findings,
}

/// Lists the tree below `root`. Ends soon, with an error, once `stop` is set.
pub(super) fn build(root: &Path, links: Links, report: &(dyn Fn(u64) + Sync), stop: &AtomicBool) -> Result<Tree> {
    let walked = walk(root, links, report, stop)?;
    let mut tree =
        Tree { table: Table::default(), findings: Findings::default(), classes: Vec::new(), folders: Vec::new() };
    let mut folders: Vec<(String, Listing)> = walked;
    folders.sort_by(|(one, _), (other, _)| one.cmp(other));
    tree.classes = classes(&folders);
    let class_texts: Vec<Body> =
        (0..tree.classes.len()).map(|class| tree.table.store(class.to_string().as_bytes())).collect();
    for (folder, listing) in &mut folders {
        let class = folder
            .split('/')
            .next()
            .and_then(|first| tree.classes.binary_search_by(|name| name.as_str().cmp(first)).ok());
        tree.findings.join(std::mem::take(&mut listing.findings));
        listing.files.sort();
        for place in 0..listing.files.len() {
            add_file(&mut tree, folder, &listing.files, place, class.map(|class| class_texts[class]))?;
        }
        if class.is_some() && !folder.contains('/') && listing.files.is_empty() && listing.folders.is_empty() {
            tree.findings.add(Finding::EmptyFolder, 0, || folder.clone());
        }
    }
    tree.table.file_bytes_max = Some(u64::from(u32::MAX));
    tree.folders = folders.into_iter().map(|(folder, _)| folder).collect();
    Ok(tree)
}

fn classes(folders: &[(String, Listing)]) -> Vec<String> {
    let mut classes: Vec<String> = folders
        .iter()
        .filter(|(folder, _)| !folder.is_empty() && !folder.contains('/'))
        .map(|(folder, _)| folder.clone())
        .collect();
    classes.sort_unstable();
    classes
}

/// Adds the file in place `place` of its folder's sorted `files`.
fn add_file(tree: &mut Tree, folder: &str, files: &[(String, u64)], place: usize, class: Option<Body>) -> Result<()> {
    let (name, bytes) = &files[place];
    let path = joined(folder, name);
    let Ok(len) = u32::try_from(*bytes) else {
        tree.findings.add(Finding::TooLong, 0, || path);
        return Ok(());
    };
    let (stem, ending) = split_ending(name).expect("chosen by its ending");
    // Two images of one name and different endings are two samples, and keys tell them apart.
    let shares_stem = |other: &(String, u64)| split_ending(&other.0).is_some_and(|(other, _)| other == stem);
    let is_shared = place.checked_sub(1).is_some_and(|before| shares_stem(&files[before]))
        || files.get(place + 1).is_some_and(shares_stem);
    let key = if is_shared { path.clone() } else { joined(folder, stem) };
    let stored_path = tree.table.store(path.as_bytes());
    let image = Body { offset: 0, len };
    let ending = ending.to_lowercase();
    let members = [(ending.as_str(), Some(image)), (CLASS_FIELD, class), (PATH_FIELD, Some(stored_path))];
    let declared = members.map(|(field, body)| (tree.table.declare(field, &[], Encoding::Plain), body));
    let members =
        declared.into_iter().filter_map(|(field, body)| body.map(|Body { offset, len }| (field, offset, len)));
    tree.table.push_sample(Path::new(&path), &key, members)
}

fn joined(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// The name before an image's ending, and the ending.
fn split_ending(name: &str) -> Option<(&str, &str)> {
    let (stem, ending) = name.rsplit_once('.')?;
    let is_image = IMAGE_ENDINGS.iter().any(|known| known.eq_ignore_ascii_case(ending));
    (is_image && !stem.is_empty()).then_some((stem, ending))
}

/// All folders with their listings, in no order. Folders of one level are listed at once.
fn walk(root: &Path, links: Links, report: &(dyn Fn(u64) + Sync), stop: &AtomicBool) -> Result<Vec<(String, Listing)>> {
    let home = fs::canonicalize(root).map_err(|source| Error::io("find", root, source))?;
    let files = AtomicU64::new(0);
    let mut seen = HashSet::new();
    let mut walked: Vec<(String, Listing)> = Vec::new();
    let mut level = vec![String::new()];
    while !level.is_empty() {
        // A link to a folder above would go on for ever: each folder is listed once.
        let mut fresh = Vec::with_capacity(level.len());
        for folder in level {
            let path = root.join(&folder);
            let metadata = fs::metadata(&path).map_err(|source| Error::io("look at", &path, source))?;
            if seen.insert((metadata.dev(), metadata.ino())) {
                fresh.push(folder);
            }
        }
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(fresh.len()));
        let work = || {
            while let Some(folder) = fresh.get(next.fetch_add(1, Ordering::Relaxed)) {
                let listing = list(root, &home, folder, links, stop);
                if let Ok(listing) = &listing {
                    let added = listing.files.len() as u64;
                    report(files.fetch_add(added, Ordering::Relaxed) + added);
                }
                done.lock().expect("no panic holds it").push((folder.clone(), listing));
            }
        };
        thread::scope(|scope| {
            for _ in 1..THREADS.min(fresh.len()) {
                // Where the system has no room for more threads, fewer do it.
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        level = Vec::new();
        for (folder, listing) in done.into_inner().expect("no panic holds it") {
            let listing = listing?;
            level.extend(listing.folders.iter().map(|name| joined(&folder, name)));
            walked.push((folder, listing));
        }
        level.sort_unstable();
    }
    Ok(walked)
}

/// One folder's images and folders.
fn list(root: &Path, home: &Path, folder: &str, links: Links, stop: &AtomicBool) -> Result<Listing> {
    let path = root.join(folder);
    let fail = |source: io::Error| Error::io("list", &path, source);
    let mut listing = Listing::default();
    for entry in fs::read_dir(&path).map_err(fail)? {
        let entry = check_wanted(stop).and(entry).map_err(fail)?;
        let shown = || joined(folder, &entry.file_name().to_string_lossy());
        let Ok(name) = entry.file_name().into_string() else {
            listing.findings.add(Finding::NotUtf8Skipped, 0, shown);
            continue;
        };
        let mut metadata = entry.metadata().map_err(fail)?;
        if metadata.is_symlink() {
            match follow(&entry.path(), home, links) {
                Ok(target) => metadata = target,
                Err(finding) => {
                    listing.findings.add(finding, 0, shown);
                    continue;
                }
            }
        }
        if name.starts_with('.') {
            listing.findings.add(Finding::DesktopLitter, 0, shown);
        } else if metadata.is_dir() {
            listing.folders.push(name);
        } else if !metadata.is_file() || split_ending(&name).is_none() {
            listing.findings.add(Finding::NoImage, 0, shown);
        } else {
            listing.files.push((name, metadata.len()));
        }
    }
    Ok(listing)
}

fn follow(path: &Path, home: &Path, links: Links) -> Result<Metadata, Finding> {
    let target = fs::canonicalize(path).map_err(|_| Finding::DeadLink)?;
    if links == Links::Confined && !target.starts_with(home) {
        return Err(Finding::OutsideLink);
    }
    fs::metadata(target).map_err(|_| Finding::DeadLink)
}

/// The state of a tree whose folders are `folders`: a file that comes or goes changes its folder.
pub(super) fn identity(root: &Path, state: FileState, folders: &[String]) -> io::Result<Identity> {
    let mut hasher = blake3::Hasher::new();
    for folder in folders {
        let metadata = fs::metadata(root.join(folder))?;
        hasher.update(folder.as_bytes());
        for value in [metadata.ino(), metadata.mtime().cast_unsigned(), metadata.mtime_nsec().cast_unsigned()] {
            hasher.update(&value.to_le_bytes());
        }
    }
    Ok(Identity { state, last_header: 0, header_hash: *hasher.finalize().as_bytes() })
}

/// Opens the file at `path` in the tree; it must still be `bytes` long.
pub(super) fn open_file(root: &Path, path: &str, bytes: u64, links: Links) -> Result<File> {
    let whole = root.join(path);
    let fail = |source: io::Error| Error::io("open", &whole, source);
    // A pipe that took the file's place must not make this wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file: File = match links {
        Links::Followed => rustix::fs::open(&whole, flags, Mode::empty()).map_err(|error| fail(error.into()))?.into(),
        Links::Confined => {
            let home = fs::canonicalize(root).map_err(|source| Error::io("find", root, source))?;
            let folder = File::open(&home).map_err(|source| Error::io("open", root, source))?;
            // Links are resolved first, as absolute ones that lead into the tree are sound; what is opened then may not
            // leave it, whatever was put in its place meanwhile.
            let target = fs::canonicalize(&whole).map_err(fail)?;
            let inside =
                target.strip_prefix(&home).map_err(|_| fail(io::Error::other("it leads out of the folder")))?;
            rustix::fs::openat2(folder.as_fd(), inside, flags, Mode::empty(), ResolveFlags::BENEATH)
                .map_err(|error| fail(error.into()))?
                .into()
        }
    };
    let metadata = file.metadata().map_err(fail)?;
    if !metadata.is_file() {
        return Err(Error::shard(
            &whole,
            0,
            "it was a file when it was indexed, and is none any more; open the dataset again",
        ));
    }
    check_length(root, path, bytes, metadata.len())?;
    Ok(file)
}

/// Makes sure that the file at `path` in the tree, indexed with `bytes`, has as many still.
pub(super) fn check_length(root: &Path, path: &str, bytes: u64, found: u64) -> Result<()> {
    if bytes == found {
        return Ok(());
    }
    Err(Error::shard(
        root.join(path),
        0,
        format!("the file changed after it was indexed: then {bytes} bytes, now {found}; open the dataset again"),
    ))
}
