//! Long work beside the control plane, on a thread of its own.

use std::thread;

use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// Does `work`, which `what` names for messages ("builds an index"), on a new thread. Where the system has no room for
/// one, that is an error like any other: tokio's own pool would panic.
pub(super) async fn beside<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (done, outcome) = oneshot::channel();
    let body = move || {
        // Whoever asked may have gone.
        let _ = done.send(work());
    };
    let thread = thread::Builder::new().name("feedline-beside".into()).spawn(body);
    thread.map_err(|source| no_thread(what, &source))?;
    let lost =
        |_| Error::protocol(format!("a bug in Feedline: the thread that {what} panicked, as the sidecar's log tells"));
    outcome.await.map_err(lost)?
}

fn no_thread(what: &str, source: &std::io::Error) -> Error {
    let message = format!(
        "the sidecar has no room for a thread that {what}: {source}; raise its limit of memory (ulimit -v, the control \
         group's) or of processes (ulimit -u)"
    );
    Error::Resources { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(beside("is tested", work))
    }

    #[test]
    fn what_the_work_gives_is_given_and_a_panic_is_told() {
        assert_eq!(outcome(|| Ok(7)).expect("well"), 7);
        assert!(matches!(outcome::<()>(|| Err(Error::Interrupted)), Err(Error::Interrupted)));
        let lost = outcome::<()>(|| panic!("on purpose")).expect_err("it panicked").to_string();
        assert!(lost.contains("the thread that is tested panicked"), "{lost}");
        let refused = no_thread("is tested", &std::io::Error::from_raw_os_error(11)).to_string();
        assert!(refused.contains("(os error 11)") && refused.contains("ulimit -u"), "{refused}");
    }
}
