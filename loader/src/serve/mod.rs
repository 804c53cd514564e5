//! The service.

pub mod protocol;
