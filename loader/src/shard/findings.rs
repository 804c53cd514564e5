//! What was skipped, refused or odd in a shard: by class, counted, with the first example.

use serde::{Deserialize, Serialize};

/// A class of things found in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// A directory; skipped.
    Directory,
    /// A companion file of macOS (`._name`); skipped.
    AppleDouble,
    /// Other litter of desktops; skipped.
    DesktopLitter,
    /// A member named `__like_this__`, or a volume label; skipped.
    Meta,
    /// A member whose name has no extension, hence no field; skipped.
    NoExtension,
    /// A hard link; refused.
    HardLink,
    /// A symbolic link; refused.
    SymbolicLink,
    /// A device; refused.
    Device,
    /// A named pipe; refused.
    Fifo,
    /// A file stored with holes; refused.
    Sparse,
    /// A member of 4 GiB or more; refused.
    TooLong,
    /// A type flag that no tar standard names; refused.
    UnknownType,
    /// A field's name that looks like a part of the base name; taken as it is.
    OddField,
    /// A name that is no UTF-8; its odd bytes are written `\xNN`.
    NotUtf8,
    /// No zero block closes the archive.
    NoEndMarker,
    /// Another archive follows the end of one; read as well.
    Concatenated,
    /// Bytes follow the end that are no archive.
    TrailingJunk,
    /// An archive without a single sample.
    NoSamples,
    /// A second member of a sample for one field; by the rule it or the first does not count.
    DuplicateMember,
    /// A sample with two members for one field; left out by the rule.
    DroppedSample,
    /// A sample whose members did not follow each other; joined by the rule.
    Regrouped,
    /// A shard that is cut off or damaged; what lies behind is left out by the rule.
    RestSkipped,
    /// A file of a folder that is no image by its ending; skipped.
    NoImage,
    /// A file whose name is no UTF-8; skipped.
    NotUtf8Skipped,
    /// A class's folder without images.
    EmptyFolder,
    /// A link out of the folders that may be read; skipped.
    OutsideLink,
    /// A link to nothing; skipped.
    DeadLink,
    /// A sample that the damage of its shard may have cut short; left out by the rule.
    CutSample,
    /// A database inside a database; not read.
    SubDatabase,
    /// A stated number of samples that is not the number of keys.
    StatedCount,
    /// A number in a row of numbered keys that is not there.
    NumberGap,
    /// A number after the stated count; left out.
    AfterCount,
    /// A number with an image and no label, or the other way round.
    HalfSample,
    /// A key without a number, among numbered ones; left out.
    StrayKey,
    /// A key that the meta file does not list; left out.
    NotListed,
    /// A line of the meta file without a key, or the second one for a key.
    ListedTwiceOrMissing,
    /// A line of the meta file with a size that is not the image's; some images are looked at.
    ListedSize,
}

impl Finding {
    /// What was found, what was done, and what to do about it.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Directory => "directories, skipped",
            Self::AppleDouble => "macOS companion files (._name), skipped",
            Self::DesktopLitter => "files of desktops (.DS_Store, Thumbs.db, __MACOSX), skipped",
            Self::Meta => "members about the archive itself (__name__, volume labels), skipped",
            Self::NoExtension => "members without an extension, skipped",
            Self::HardLink => "hard links, refused (pack with tar --hard-dereference)",
            Self::SymbolicLink => "symbolic links, refused (pack with tar --dereference)",
            Self::Device => "device nodes, refused",
            Self::Fifo => "named pipes, refused",
            Self::Sparse => "sparse files, refused (pack without tar --sparse)",
            Self::TooLong => "members of 4 GiB or more, refused (split them)",
            Self::UnknownType => "members of an unknown type, refused",
            Self::OddField => {
                "field names that start with a digit or have white space (the field starts at the first dot)"
            }
            Self::NotUtf8 => "names that are not UTF-8 (odd bytes are written \\xNN)",
            Self::NoEndMarker => "archives without an end marker (was the writer closed?)",
            Self::Concatenated => "archives after the end of another, read as well",
            Self::TrailingJunk => "ends of an archive with bytes after them that are no tar, ignored",
            Self::NoSamples => "archives without samples",
            Self::DuplicateMember => "second members of a sample for one field, one of the two not used",
            Self::DroppedSample => "samples with two members for one field, left out",
            Self::Regrouped => "samples whose members do not follow each other, joined",
            Self::RestSkipped => "damaged shards, not used from the damage on (the samples behind it are not counted)",
            Self::NoImage => "files that are no images by their ending, skipped",
            Self::NotUtf8Skipped => "files whose names are not UTF-8, skipped",
            Self::EmptyFolder => "class folders without images",
            Self::OutsideLink => "links that lead out of the folder, skipped as this sidecar serves several users",
            Self::DeadLink => "links to nothing, skipped",
            Self::CutSample => "samples at the damage of their shard, left out",
            Self::SubDatabase => "databases inside a database, not read (choose one with database=)",
            Self::StatedCount => "stated numbers of samples that are not the number of keys",
            Self::NumberGap => "numbers without a key, among numbered keys",
            Self::AfterCount => "numbered keys after the stated number of samples, left out",
            Self::HalfSample => "numbers with an image and no label, or with a label and no image",
            Self::StrayKey => "keys without a number, among numbered ones, left out",
            Self::NotListed => "keys that meta_info.txt does not list, left out",
            Self::ListedTwiceOrMissing => "lines of meta_info.txt without a key, or the second for one",
            Self::ListedSize => {
                "lines of meta_info.txt with a size that is not the image's, of those that were looked at (was it made of other \
                 images?)"
            }
        }
    }

    /// Whether users are told about it unasked; directories are part of any ordinary tar.
    pub(super) fn is_notable(self) -> bool {
        self != Self::Directory
    }
}

/// How often one class was found in one shard, and where first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingCount {
    /// The class.
    pub finding: Finding,
    /// How many.
    pub count: u64,
    /// Where the first one is, in bytes.
    pub offset: u64,
    /// The first one's name, or its first bytes.
    pub example: String,
}

/// The classes found so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Findings {
    counts: Vec<FindingCount>,
}

impl Findings {
    /// Counts one more.
    pub(super) fn add(&mut self, finding: Finding, offset: u64, example: impl FnOnce() -> String) {
        match self.counts.iter_mut().find(|count| count.finding == finding) {
            Some(count) => count.count += 1,
            None => self.counts.push(FindingCount { finding, count: 1, offset, example: example() }),
        }
    }

    /// Adds what was found elsewhere.
    pub(super) fn join(&mut self, others: Self) {
        for other in others.counts {
            match self.counts.iter_mut().find(|count| count.finding == other.finding) {
                Some(count) => count.count += other.count,
                None => self.counts.push(other),
            }
        }
    }

    /// Counts `count` more.
    pub(super) fn add_many(&mut self, finding: Finding, count: u64, offset: u64, example: impl FnOnce() -> String) {
        self.add(finding, offset, example);
        if let Some(counted) = self.counts.iter_mut().find(|counted| counted.finding == finding) {
            counted.count = counted.count.saturating_add(count - 1);
        }
    }

    /// The counts, in the order of the enum.
    pub(super) fn into_counts(mut self) -> Vec<FindingCount> {
        self.counts.sort_by_key(|count| count.finding);
        self.counts
    }
}
