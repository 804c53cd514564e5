//! The only raw calls: small safe wrappers, each about one thing of the kernel or of a C library.
//!
//! Wrappers return `io::Result`; what an error means to the user is said by the caller.

pub mod arena;
pub mod budget;
pub mod cgroup;
pub mod cores;
pub mod courtesy;
pub mod epoll;
pub mod eventfd;
pub mod futex;
pub mod inherited;
pub mod jpeg;
pub mod lmdb;
pub mod map;
pub mod memfd;
pub mod memory;
pub mod nvml;
pub mod segment;
pub mod shared;
pub mod sigbus;
pub mod simd;
#[cfg(target_arch = "x86_64")]
pub mod simd_blur;
#[cfg(target_arch = "x86_64")]
pub mod simd_jpeg;
#[cfg(target_arch = "x86_64")]
pub mod simd_resize;
#[cfg(target_arch = "x86_64")]
pub mod simd_rgb;
#[cfg(target_arch = "x86_64")]
pub mod simd_warp;
pub mod socket;
pub mod store;
#[cfg(test)]
pub(crate) mod testing;
pub mod topology;
pub mod transcode;
pub mod uring;
pub mod watch;
