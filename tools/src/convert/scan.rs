//! Walks a class-per-folder tree: which files become samples, which do not and why.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use feedline_loader::{Error, Result};
use serde::Serialize;
use walkdir::WalkDir;

use super::key::{KeyForm, choose_forms};
use super::magic::is_candidate;

/// Why a file is not packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Its name or a folder's on the way starts with a dot.
    Hidden,
    /// What desktops leave behind: `Thumbs.db`, `desktop.ini`, `__MACOSX`.
    Litter,
    /// It lies beside the class folders, not in one.
    OutsideClass,
    /// Its extension is no image's.
    OtherType,
    /// Neither a file nor a folder (a socket, a pipe), or a link that leads back to a folder above it.
    Special,
    /// It should be an image, and has no bytes.
    Empty,
    /// It should be an image, and cannot be read.
    Unreadable,
    /// It should be an image, and starts like none.
    NotAnImage,
}

impl Reason {
    /// Whether it counts against the error budget: the file was meant to be a sample.
    pub fn is_fault(self) -> bool {
        matches!(self, Self::Empty | Self::Unreadable | Self::NotAnImage)
    }

    /// The name under which it is counted.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::Litter => "litter",
            Self::OutsideClass => "outside-class",
            Self::OtherType => "other-type",
            Self::Special => "special",
            Self::Empty => "empty",
            Self::Unreadable => "unreadable",
            Self::NotAnImage => "not-an-image",
        }
    }
}

/// How many files share a fate, and the first of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// The first one's path below the folder, with the system's reason where there is one.
    pub first: String,
}

/// Files that were left out, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct LeftOut(BTreeMap<Reason, Tally>);

impl LeftOut {
    /// Counts one more; `what` is kept if it is the first.
    pub fn add(&mut self, reason: Reason, what: impl FnOnce() -> String) {
        self.0.entry(reason).or_insert_with(|| Tally { count: 0, first: what() }).count += 1;
    }

    /// How many were meant to be samples.
    pub fn faults(&self) -> u64 {
        self.iter().filter(|(reason, _)| reason.is_fault()).map(|(_, tally)| tally.count).sum()
    }

    /// The reasons that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, &Tally)> {
        self.0.iter().map(|(&reason, tally)| (reason, tally))
    }
}

/// A file that becomes a sample.
#[derive(Debug)]
pub struct Entry {
    /// Its path below the folder.
    pub relative: PathBuf,
    /// Its size when it was seen.
    pub bytes: u64,
    /// Its class: an index into [`Scan::classes`].
    pub label: u32,
    /// The form of its key.
    pub key_form: KeyForm,
}

/// What a tree holds.
#[derive(Debug)]
pub struct Scan {
    /// Names of the class folders, sorted; the place is the label.
    pub classes: Vec<String>,
    /// Samples, sorted by class, folder and name.
    pub entries: Vec<Entry>,
    /// What is not among them.
    pub left_out: LeftOut,
}

/// Walks `folder`, following links as torchvision does.
pub fn scan(folder: &Path, mut seen: impl FnMut()) -> Result<Scan> {
    let mut left_out = LeftOut::default();
    let classes = find_classes(folder, &mut left_out)?;
    let mut entries = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let label = u32::try_from(label).map_err(|_| Error::config("more than 2^32 classes"))?;
        let start = entries.len();
        walk_class(folder, class, label, &mut entries, &mut left_out, &mut seen)?;
        sort_and_name(&mut entries[start..]);
    }
    Ok(Scan { classes, entries, left_out })
}

fn find_classes(folder: &Path, left_out: &mut LeftOut) -> Result<Vec<String>> {
    let mut classes = Vec::new();
    for item in fs::read_dir(folder).map_err(|error| Error::io("read folder", folder, error))? {
        let item = item.map_err(|error| Error::io("read folder", folder, error))?;
        let name = item.file_name();
        let show = || name.to_string_lossy().into_owned();
        if let Some(reason) = unwanted(&name) {
            left_out.add(reason, show);
        } else if !item.path().is_dir() {
            left_out.add(Reason::OutsideClass, show);
        } else if let Some(name) = name.to_str() {
            classes.push(name.to_owned());
        } else {
            return Err(Error::config(format!(
                "the class folder {} has a name that is not UTF-8, so classes.json could not hold it: rename it",
                item.path().display()
            )));
        }
    }
    if classes.is_empty() {
        return Err(Error::config(format!(
            "{} has no class folders: expected one folder per class with the images inside, as in {}/cat/1.jpg",
            folder.display(),
            folder.display()
        )));
    }
    classes.sort_unstable();
    Ok(classes)
}

fn walk_class(
    folder: &Path,
    class: &str,
    label: u32,
    entries: &mut Vec<Entry>,
    left_out: &mut LeftOut,
    seen: &mut impl FnMut(),
) -> Result<()> {
    let below = |path: &Path| path.strip_prefix(folder).unwrap_or(path).to_owned();
    let mut walk = WalkDir::new(folder.join(class)).min_depth(1).follow_links(true).into_iter();
    while let Some(item) = walk.next() {
        let item = match item {
            Ok(item) => item,
            Err(error) => {
                judge_failed_step(&error, below, left_out)?;
                continue;
            }
        };
        let show = || below(item.path()).display().to_string();
        if let Some(reason) = unwanted(item.file_name()) {
            left_out.add(reason, show);
            if item.file_type().is_dir() {
                walk.skip_current_dir();
            }
        } else if item.file_type().is_dir() {
        } else if !item.file_type().is_file() {
            left_out.add(Reason::Special, show);
        } else if !is_candidate(item.path()) {
            left_out.add(Reason::OtherType, show);
        } else {
            let bytes = match item.metadata() {
                Ok(metadata) => metadata.len(),
                Err(error) => {
                    left_out.add(Reason::Unreadable, || format!("{}: {error}", show()));
                    continue;
                }
            };
            if bytes == 0 {
                left_out.add(Reason::Empty, show);
                continue;
            }
            entries.push(Entry { relative: below(item.path()), bytes, label, key_form: KeyForm::Stem });
            seen();
        }
    }
    Ok(())
}

/// A link that leads nowhere is one file less; a folder that cannot be read hides an unknown number, so it ends the run.
fn judge_failed_step(error: &walkdir::Error, below: impl Fn(&Path) -> PathBuf, left_out: &mut LeftOut) -> Result<()> {
    let path = error.path().unwrap_or(Path::new("?"));
    if error.loop_ancestor().is_some() {
        left_out.add(Reason::Special, || below(path).display().to_string());
    } else if path.is_symlink() && !path.is_dir() {
        let (reason, cause) = match is_candidate(path) {
            true => (Reason::Unreadable, format!(": {error}")),
            false => (Reason::OtherType, String::new()),
        };
        left_out.add(reason, || format!("{}{cause}", below(path).display()));
    } else {
        let cause = error.io_error().map_or_else(
            || std::io::Error::other(error.to_string()),
            |cause| std::io::Error::new(cause.kind(), cause.to_string()),
        );
        return Err(Error::io("read", path, cause));
    }
    Ok(())
}

fn unwanted(name: &OsStr) -> Option<Reason> {
    match name.as_bytes() {
        b"__MACOSX" | b"Thumbs.db" | b"ehthumbs.db" | b"desktop.ini" | b"Icon\r" => Some(Reason::Litter),
        bytes if bytes.starts_with(b".") => Some(Reason::Hidden),
        _ => None,
    }
}

/// Puts the files of one class in torchvision's order (folder, then name) and gives equal stems their whole names.
fn sort_and_name(entries: &mut [Entry]) {
    entries.sort_unstable_by(|left, right| place(&left.relative).cmp(&place(&right.relative)));
    for siblings in entries.chunk_by_mut(|left, right| left.relative.parent() == right.relative.parent()) {
        let names: Vec<&OsStr> = siblings.iter().filter_map(|entry| entry.relative.file_name()).collect();
        let forms = choose_forms(&names);
        for (entry, form) in siblings.iter_mut().zip(forms) {
            entry.key_form = form;
        }
    }
}

fn place(relative: &Path) -> (&[u8], &[u8]) {
    let folder = relative.parent().unwrap_or(Path::new("")).as_os_str();
    (folder.as_bytes(), relative.file_name().unwrap_or_default().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, data) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, data).unwrap();
        }
        folder
    }

    #[test]
    fn classes_and_samples_are_those_of_image_folder() {
        let folder = tree(&[
            ("b/2.jpg", b"x"),
            ("b/10.JPG", b"x"),
            ("b/sub/1.png", b"x"),
            ("b/sub/deep/1.png", b"x"),
            ("b/sub-a/1.png", b"x"),
            ("a/1.webp", b"x"),
            ("a/1.tiff", b"x"),
        ]);
        let scan = scan(folder.path(), || {}).unwrap();
        assert_eq!(scan.classes, ["a", "b"]);
        let found: Vec<_> = scan.entries.iter().map(|e| (e.relative.to_str().unwrap(), e.label, e.key_form)).collect();
        assert_eq!(
            found,
            [
                ("a/1.tiff", 0, KeyForm::Whole),
                ("a/1.webp", 0, KeyForm::Whole),
                ("b/10.JPG", 1, KeyForm::Stem),
                ("b/2.jpg", 1, KeyForm::Stem),
                ("b/sub/1.png", 1, KeyForm::Stem),
                ("b/sub-a/1.png", 1, KeyForm::Stem),
                ("b/sub/deep/1.png", 1, KeyForm::Stem),
            ]
        );
        assert_eq!(scan.left_out, LeftOut::default());
    }

    #[test]
    fn every_other_file_has_a_reason() {
        let folder = tree(&[
            ("a/1.jpg", b"x"),
            ("a/.hidden.jpg", b"x"),
            ("a/.cache/2.jpg", b"x"),
            ("a/Thumbs.db", b"x"),
            ("a/notes.txt", b"x"),
            ("a/empty.jpg", b""),
            ("README.md", b"x"),
            (".git/config", b"x"),
            ("__MACOSX/1.jpg", b"x"),
        ]);
        std::os::unix::fs::symlink("nowhere", folder.path().join("a/gone.jpg")).unwrap();
        std::os::unix::fs::symlink("..", folder.path().join("a/loop")).unwrap();
        let scan = scan(folder.path(), || {}).unwrap();
        assert_eq!(scan.entries.len(), 1);
        let counts: Vec<_> = scan.left_out.iter().map(|(reason, tally)| (reason.name(), tally.count)).collect();
        assert_eq!(
            counts,
            [
                ("hidden", 3),
                ("litter", 2),
                ("outside-class", 1),
                ("other-type", 1),
                ("special", 1),
                ("empty", 1),
                ("unreadable", 1),
            ]
        );
        assert_eq!(scan.left_out.faults(), 2);
    }

    #[test]
    fn a_folder_without_classes_is_refused() {
        let folder = tree(&[("1.jpg", b"x")]);
        let refusal = scan(folder.path(), || {}).unwrap_err().to_string();
        assert!(refusal.contains("one folder per class"), "{refusal}");
    }
}
