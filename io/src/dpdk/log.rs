//! Capturing DPDK's log.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;

use libc::c_int;
use portcullis_dpdk_sys as sys;

/// Maximum number of bytes read: a driver may repeat itself.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// Captures DPDK's log, which would otherwise go to standard error and syslog, for error messages:
/// only the log has the reason of many errors.
#[derive(Debug)]
pub(super) struct Log(Mutex<File>);

impl Log {
    /// Redirects DPDK's log here, until the process exits.
    pub fn take() -> std::io::Result<Log> {
        // SAFETY: the name is zero-terminated.
        let fd = unsafe { libc::memfd_create(c"dpdk log".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created; nothing else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        let writing = file.try_clone()?.into_raw_fd();
        // SAFETY: the stream takes over the descriptor and is never closed, because DPDK may write
        // until the process exits. Unbuffered, so that messages can be read at once; mode "a", so
        // that writing continues at the end after truncation.
        unsafe {
            let stream = libc::fdopen(writing, c"a".as_ptr());
            if stream.is_null() {
                return Err(std::io::Error::last_os_error());
            }
            libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0);
            sys::rte_openlog_stream(stream.cast());
        }
        Ok(Log(Mutex::new(file)))
    }

    /// Takes the lines written since the last call, without prefixes such as `EAL: `.
    pub fn lines(&self) -> Vec<String> {
        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut text = Vec::new();
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.by_ref().take(MAX_LOG_BYTES).read_to_end(&mut text));
        let _ = read.and_then(|_| file.set_len(0));
        informative_lines(&String::from_utf8_lossy(&text))
    }

    /// Redirects standard error here and standard output to /dev/null during initialisation: errors
    /// about EAL options go to standard error only, and so does the complete list of options.
    pub fn redirect_stdio(&self) -> std::io::Result<StdioRedirect> {
        let null = File::options().write(true).open("/dev/null")?;
        let log = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(StdioRedirect([
            redirect_descriptor(libc::STDOUT_FILENO, &null),
            redirect_descriptor(libc::STDERR_FILENO, &log),
        ]))
    }
}

/// Redirected standard output and standard error, restored on drop.
pub(super) struct StdioRedirect([Option<(c_int, OwnedFd)>; 2]);

impl Drop for StdioRedirect {
    fn drop(&mut self) {
        // Flush the C library's buffers. SAFETY: null flushes all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        for (descriptor, before) in self.0.iter().flatten() {
            // SAFETY: both descriptors are open.
            unsafe { libc::dup2(before.as_raw_fd(), *descriptor) };
        }
    }
}

/// Redirects a standard descriptor to another file and returns the original; `None` if it is not
/// open.
fn redirect_descriptor(descriptor: c_int, to: &File) -> Option<(c_int, OwnedFd)> {
    // SAFETY: fcntl only duplicates the descriptor, or fails.
    let before = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
    if before < 0 {
        return None;
    }
    // SAFETY: the descriptor was just created; nothing else owns it.
    let before = unsafe { OwnedFd::from_raw_fd(before) };
    // SAFETY: both descriptors are open.
    unsafe { libc::dup2(to.as_raw_fd(), descriptor) };
    Some((descriptor, before))
}

/// Lines without prefixes (`EAL: `, the function's name), and without those that only say that
/// something failed or what succeeded.
fn informative_lines(text: &str) -> Vec<String> {
    const NOISE: [&str; 12] = [
        "Detected CPU lcores",
        "Detected NUMA nodes",
        "Detected shared linkage",
        "Detected static linkage",
        "Selected IOVA mode",
        "Multi-process socket",
        "Physical addresses are unavailable",
        "VFIO support initialized",
        "Driver cannot attach the device",
        "Failed to attach device on primary process",
        "FATAL: ",
        "Invalid 'command line' arguments",
    ];
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line.trim_start_matches("EAL: ").trim_start_matches("portcullis: ").trim();
        let line = match line.split_once("(): ") {
            Some((function, rest)) if function.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') => rest,
            _ => line,
        };
        let is_noise = line.is_empty() || NOISE.iter().any(|noise| line.starts_with(noise));
        if !is_noise && lines.iter().all(|before| before != line) {
            lines.push(line.trim_end_matches('.').to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_informative_lines_are_quoted() {
        let text = "EAL: Detected CPU lcores: 2\nEAL: FATAL: Cannot init memory\n\nportcullis: unrecognized option '--x'\n\
            portcullis: unrecognized option '--x'\nopen_single_tx_pcap(): Couldn't open /x for writing.\n\
            EAL: Driver cannot attach the device (net_pcap0)\nvdev_probe(): failed (really): no";
        let want = ["unrecognized option '--x'", "Couldn't open /x for writing", "failed (really): no"];
        assert_eq!(informative_lines(text), want);
    }
}
