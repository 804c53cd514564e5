//! Feedline's engine: shards in, finished batches in shared memory out.
//!
//! Read the modules in the order a sample meets them: [`shard`] (dataset to index), [`plan`] (which sample is
//! where in an epoch), [`read`] (byte ranges to bytes), [`decode`] (bytes to pixels), [`augment`] (pixels to the
//! row's pixels), [`batch`] (the row's place in a slot), [`ring`] (the slot's life in shared memory).
//! [`pipeline`] joins them, [`serve`] lends them to clients over a socket, [`client`] is the other end of that
//! socket, [`telemetry`] counts and judges, and [`sys`] holds the raw calls. [`transcode`] is for the tools that write
//! datasets anew.

pub mod augment;
pub mod batch;
pub mod client;
pub mod decode;
pub mod error;
pub mod pipeline;
pub mod plan;
pub mod read;
pub mod ring;
pub mod serve;
pub mod shard;
pub mod spec;
pub mod sys;
pub mod telemetry;
pub mod transcode;

pub use error::{Error, Result};
