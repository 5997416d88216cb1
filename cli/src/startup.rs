//! Process state that has to be read or set before the program starts its work.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether the program was started with standard output closed (`>&-`).
///
/// Rust's runtime opens `/dev/null` in its place before `main`, so that writes would seem to
/// succeed. After that, a closed standard output cannot be distinguished from one redirected to
/// `/dev/null` on purpose.
pub fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}

/// Makes a write beyond the limit on file sizes (`ulimit -f`) fail with EFBIG. By default SIGXFSZ
/// ends the program there, without a message and with temporary files left behind.
pub fn ignore_sigxfsz() {
    // SAFETY: an ignored signal runs no code of this process.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Initialiser that the loader runs before Rust's runtime opens `/dev/null` for closed descriptors.
#[cfg(unix)]
#[used]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn before_main() {
        // SAFETY: F_GETFD reads a flag of the descriptor, and fails with EBADF if it is not open.
        let is_open = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } >= 0;
        STDOUT_WAS_CLOSED.store(!is_open, Ordering::Relaxed);
    }
    before_main
};
