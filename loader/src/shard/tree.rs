//! A folder of plain images as a shard: a sample a file, its class the folder of the first level that holds it.
//!
//! Classes are the folders of the first level in the order of their names, numbered from 0, as torchvision's ImageFolder
//! numbers them. A sample has the field of its ending (`jpg`), and `cls`, its class in decimal, unless it lies in the
//! folder itself. Hidden files and other endings are skipped and counted.
//!
//! An index is current while the folders are: a file that comes or goes changes its folder. A file that is written in place
//! does not, and to look at each at every start would be to list the tree again; so each is compared, length and time, when
//! it is opened and after it was read.

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

/// The field with a sample's [`TreeFile`], without its length.
pub(super) const PATH_FIELD: &str = "__path__";

/// A file's time of change: seconds and nanoseconds.
type Modified = (i64, i64);

/// Bytes of a [`Modified`] before a path.
const MODIFIED_BYTES: usize = 16;

/// A file of a tree as it was listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeFile<'a> {
    /// Its path, relative to the tree.
    pub(super) path: &'a str,
    /// Its length in bytes.
    pub(super) bytes: u32,
    /// When it was last written.
    pub(super) modified: Modified,
}

impl<'a> TreeFile<'a> {
    /// What is kept in an index beside the length.
    fn encode(path: &str, modified: Modified) -> Vec<u8> {
        [&modified.0.to_le_bytes()[..], &modified.1.to_le_bytes(), path.as_bytes()].concat()
    }

    /// Reads what [`TreeFile::encode`] wrote.
    pub(super) fn decode(stored: &'a [u8], bytes: u32) -> Option<Self> {
        let (modified, path) = stored.split_at_checked(MODIFIED_BYTES)?;
        let word = |at: usize| i64::from_le_bytes(modified[at..at + 8].try_into().expect("8 bytes"));
        Some(Self { path: std::str::from_utf8(path).ok()?, bytes, modified: (word(0), word(8)) })
    }
}

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

/// A file in a folder. Files are sorted by their names, which are unique.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    name: String,
    bytes: u64,
    modified: Modified,
}

/// One folder's entries.
#[derive(Debug, Default)]
struct Listing {
    files: Vec<Listed>,
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
fn add_file(tree: &mut Tree, folder: &str, files: &[Listed], place: usize, class: Option<Body>) -> Result<()> {
    let Listed { name, bytes, modified } = &files[place];
    let path = joined(folder, name);
    let Ok(len) = u32::try_from(*bytes) else {
        tree.findings.add(Finding::TooLong, 0, || path);
        return Ok(());
    };
    let (stem, ending) = split_ending(name).expect("chosen by its ending");
    // Two images of one name and different endings are two samples, and keys tell them apart.
    let shares_stem = |other: &Listed| split_ending(&other.name).is_some_and(|(other, _)| other == stem);
    let is_shared = place.checked_sub(1).is_some_and(|before| shares_stem(&files[before]))
        || files.get(place + 1).is_some_and(shares_stem);
    let key = if is_shared { path.clone() } else { joined(folder, stem) };
    let stored_path = tree.table.store(&TreeFile::encode(&path, *modified));
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
            let modified = (metadata.mtime(), metadata.mtime_nsec());
            listing.files.push(Listed { name, bytes: metadata.len(), modified });
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

/// Opens a file of the tree, which must be as it was listed.
pub(super) fn open_file(root: &Path, listed: TreeFile<'_>, links: Links) -> Result<File> {
    let whole = root.join(listed.path);
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
    check_same(root, listed, FileState::of(&metadata))?;
    Ok(file)
}

/// Makes sure that a file of the tree, which was found as `found`, is as it was listed.
pub(super) fn check_same(root: &Path, listed: TreeFile<'_>, found: FileState) -> Result<()> {
    let TreeFile { path, bytes, modified } = listed;
    if (u64::from(bytes), modified) == (found.bytes, found.modified) {
        return Ok(());
    }
    let written = |(seconds, nanoseconds): Modified| format!("{seconds}.{nanoseconds:09}");
    let message = format!(
        "the file changed after it was indexed: then {bytes} bytes, written at {}, now {} bytes, written at {}; open the \
         dataset again",
        written(modified),
        found.bytes,
        written(found.modified)
    );
    Err(Error::shard(root.join(path), 0, message))
}
