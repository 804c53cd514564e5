//! Samples that runs leave out: proposed by one run, taken up by a later one that names the list.
//!
//! A list never changes under a run: the client reads it once, its hash goes into the job and into the state of a
//! loader, and what the run itself discovers only goes to [`proposals`](self) for the next one.

mod list;
mod proposals;

pub use list::{LeftOut, QuarantineList};
pub(super) use proposals::Proposals;
