//! Datasets to indexes: which samples there are, and where the bytes of each field lie.
//!
//! Read in the order of the work: [`pattern`] (what the user wrote to paths), [`walk`] over a tar's headers ([`tar`],
//! [`pax`], [`window`]), [`name`] (member names to keys and fields), [`table`] (members to samples), [`format`]
//! (samples to the bytes of an index), [`lmdb`] (the same for databases), [`cache`] (where indexes are kept, and when one is stale), [`join`]
//! (samples of several datasets that share a key), [`Dataset`] (the indexes together) and [`FieldSelector`] (from the fields that a job asks for to byte ranges).
//!
//! Reading those ranges is left to [`crate::read`], their order to [`crate::plan`]. Tools that write shards anew take them
//! in [`parts`].

mod cache;
mod compressed;
mod dataset;
mod findings;
mod format;
mod glob;
mod identity;
mod index;
mod join;
mod kind;
mod labels;
mod lmdb;
mod name;
mod notices;
mod parts;
mod pattern;
mod pax;
mod place;
pub mod probe;
mod regroup;
mod selector;
mod streams;
mod summary;
mod table;
mod tar;
mod tree;
mod walk;
mod window;

pub use cache::cache_folder;
pub use dataset::{Dataset, FileNumber, IndexOptions, IndexProgress};
pub use findings::{Finding, FindingCount};
pub use lmdb::{DatabaseState, LmdbEntry, lmdb_entries};
pub use parts::{MemberHead, Part, PartTaker, ShardState, WholeMember, parts, tar_compression};
pub use pattern::{Expanded, Missing, expand};
pub use place::{ByteRange, Encoding, FieldBytes, Origin};
pub use selector::{FieldSelector, Lacking};
pub use summary::ShardSummary;
pub use table::FieldCount;
pub use tree::Links;
