//! JPEG, decoded only where a region needs it.

pub mod frame;
pub mod huffman;
pub mod pixels;
pub mod scan;
mod segment;
mod turbo;

pub use turbo::{JpegDecoder, JpegImage, JpegRows};
