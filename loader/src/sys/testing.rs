//! What tests do to their own process, always in a child: [`in_child`] runs a test once more as a process of its own.
#![expect(unsafe_code, reason = "filters system calls, sets timers and handlers")]

use std::io;
use std::process::Command;

/// Names the test that runs as a child.
const CHILD: &str = "FEEDLINE_TEST_CHILD";

/// Runs the test of this name (`module::tests::name`) in a child process, where this returns true and the test does its
/// work; the parent fails if the child does.
pub(crate) fn in_child(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some_and(|name| name == test) {
        return true;
    }
    let program = std::env::current_exe().expect("this test binary");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    let output = command.output().expect("start the child");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && words.contains("1 passed"),
        "the child of {test} ended with {}:\n{words}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// From now on, `io_uring_setup` fails with `errno` in this thread and those that it starts.
pub(crate) fn deny_io_uring(errno: u16) -> io::Result<()> {
    deny(libc::SYS_io_uring_setup, None, errno)
}

/// From now on, registering with a ring so (the call's second argument), or in any way, fails with `errno` in this thread
/// and those that it starts.
pub(crate) fn deny_registering(what: Option<u32>, errno: u16) -> io::Result<()> {
    deny(libc::SYS_io_uring_register, what, errno)
}

/// Installs a filter that refuses one system call, or only those calls whose second argument is as given.
fn deny(call: libc::c_long, second_argument: Option<u32>, errno: u16) -> io::Result<()> {
    /// Where `seccomp_data` has the call's number, and the lower half of its second argument.
    const NUMBER: u32 = 0;
    const SECOND: u32 = if cfg!(target_endian = "little") { 24 } else { 28 };
    let operation = |code: u32, jump_true, jump_false, value| libc::sock_filter {
        code: u16::try_from(code).expect("operations have 16 bits"),
        jt: jump_true,
        jf: jump_false,
        k: value,
    };
    let load = |place| operation(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, place);
    let allow_unless = |value, skipped| operation(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skipped, value);
    let give = |value| operation(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let call = u32::try_from(call).expect("a small number");
    let mut operations = match second_argument {
        None => vec![load(NUMBER), allow_unless(call, 1)],
        Some(value) => vec![load(NUMBER), allow_unless(call, 3), load(SECOND), allow_unless(value, 1)],
    };
    operations.extend([give(libc::SECCOMP_RET_ERRNO | u32::from(errno)), give(libc::SECCOMP_RET_ALLOW)]);
    let len = u16::try_from(operations.len()).expect("a few");
    let program = libc::sock_fprog { len, filter: operations.as_mut_ptr() };
    // SAFETY: takes plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the kernel copies the program, which lives until the end of this function.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
}

/// From now on, a signal interrupts this process's system calls every so many microseconds.
pub(crate) fn interrupt_every(microseconds: i64) -> io::Result<()> {
    extern "C" fn ignore(_signal: libc::c_int) {}
    // SAFETY: all zeros is a valid sigaction: no flags (no restart of calls), an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, and the action is initialised.
    check(unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) })?;
    let period = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: period, it_value: period };
    // SAFETY: the timer is initialised and copied.
    check(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) })
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
