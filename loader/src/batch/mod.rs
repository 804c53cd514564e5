//! What a batch looks like in a slot: [`layout`] says where each field, row and key lies, [`room`] how much there is for
//! values of varying length, [`arrays`] how one that has a shape begins; [`FieldRecipe`] says how the bytes of a shard
//! become the bytes of a row.
//!
//! Leaves the memory itself, and who may touch it when, to [`crate::ring`].

pub mod arrays;
mod boxes;
mod fields;
pub mod layout;
mod mask;
mod pairs;
pub mod room;

pub use boxes::BOX_RECORD_BYTES;
pub use fields::{FieldRecipe, FieldWorker};
pub use layout::{BatchLayout, Dtype, FieldLayout, LayoutHash, REPORT_BYTES_MAX, RowEntry, RowForm};
