//! The native module.
