//! What a batch looks like in a slot: [`layout`] says where each field, row and key lies.
//!
//! Leaves the memory itself, and who may touch it when, to [`crate::ring`].

pub mod layout;

pub use layout::{BatchLayout, Dtype, FieldLayout, KeyEntry, LayoutHash, REPORT_BYTES_MAX};
