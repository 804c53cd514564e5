//! What a batch looks like in a slot: [`layout`] says where each field, row and key lies, [`FieldRecipe`] how the
//! bytes of a shard become the bytes of a row.
//!
//! Leaves the memory itself, and who may touch it when, to [`crate::ring`].

mod fields;
pub mod layout;

pub use fields::{FieldRecipe, FieldWorker};
pub use layout::{BatchLayout, Dtype, FieldLayout, KeyEntry, LayoutHash, REPORT_BYTES_MAX};
