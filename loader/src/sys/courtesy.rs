//! Threads that give way: to a trainer's thread that launches kernels a millisecond's delay costs the GPU a millisecond,
//! and decoding has batches in stock.
//!
//! A niced thread gets what others leave over, which on a machine with free cores is as much as before. `SCHED_BATCH` keeps
//! it from interrupting a thread that runs when it wakes up. Both need no privilege.
#![expect(unsafe_code, reason = "sets a scheduling policy, which rustix leaves out")]

use std::fs;
use std::io;

/// The largest step back; Linux knows no more.
pub const NICE_MAX: u32 = 19;

/// What became of the wish to give way, where something of it was refused.
pub fn give_way(nice: u32) -> io::Result<()> {
    if nice == 0 {
        return Ok(());
    }
    let nice = i32::try_from(nice.min(NICE_MAX)).expect("at most 19");
    // Linux has one value a thread, and takes 0 for the calling one.
    if rustix::process::getpriority_process(None)? < nice {
        rustix::process::setpriority_process(None, nice)?;
    }
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live until the call returns; 0 names the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where the kernel groups processes by session and shares the cores between groups, as desktops do, `nice` counts only
/// within one's own group, so the group gives way too. Only the leader of a session does this: others are not alone in it.
pub fn give_way_as_session(nice: u32) -> io::Result<()> {
    if nice == 0 || !leads_a_session() {
        return Ok(());
    }
    match fs::write("/proc/self/autogroup", nice.min(NICE_MAX).to_string()) {
        // A kernel without such groups.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Whether this process leads its session. rustix's call aborts on a session whose leader lives outside the container
/// (process-id namespace), which the kernel numbers 0.
fn leads_a_session() -> bool {
    // SAFETY: the call takes no memory; 0 names the calling process.
    let leader = unsafe { libc::getsid(0) };
    u32::try_from(leader).is_ok_and(|leader| leader == std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nice value and policy of the calling thread, as the kernel tells them.
    fn standing() -> (i32, u32) {
        let stat = fs::read_to_string("/proc/thread-self/stat").expect("procfs");
        // The name in brackets may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        (fields[16].parse().expect("nice"), fields[38].parse().expect("policy"))
    }

    #[test]
    fn a_thread_steps_back_and_never_forward() {
        let (here, _) = standing();
        let check = |nice: u32, expected: i32, policy: u32| {
            let found = std::thread::spawn(move || {
                give_way(nice).expect("no privilege is needed");
                give_way(nice / 2).expect("no privilege is needed");
                standing()
            });
            assert_eq!(found.join().expect("no panic"), (expected.max(here), policy));
        };
        check(0, here, 0);
        check(7, 7, 3);
        check(100, 19, 3);
        assert_eq!(standing().0, here, "this thread is as it was");
    }

    #[test]
    fn one_of_a_session_leaves_it_alone() {
        // Test programs do not lead a session; if this one does, it is alone in it.
        give_way_as_session(0).expect("nothing is done");
        if !leads_a_session() {
            give_way_as_session(19).expect("nothing is done");
        }
    }
}
