//! What DPDK has to say.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;

use libc::c_int;
use portcullis_dpdk_sys as sys;

/// Bytes that are kept at most: a driver may repeat itself.
const MOST: u64 = 1 << 20;

/// Takes DPDK's log, which otherwise goes to standard error and to syslog: the reason of an error stands there alone.
#[derive(Debug)]
pub(super) struct Log(Mutex<File>);

impl Log {
    /// Has DPDK write here from now on, as long as the process lives.
    pub fn take() -> std::io::Result<Log> {
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe { libc::memfd_create(c"dpdk log".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: it was just made, and is nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        let writing = file.try_clone()?.into_raw_fd();
        // SAFETY: the descriptor is the stream's from now on. It is never closed, as DPDK may write as long as the process lives.
        // Without a buffer, what was written can be read at once. "a": it goes on at the end, also after the file was cut.
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

    /// What was written since it was last asked for, without what leads each line (`EAL: `).
    pub fn lines(&self) -> Vec<String> {
        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut text = Vec::new();
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.by_ref().take(MOST).read_to_end(&mut text));
        let _ = read.and_then(|_| file.set_len(0));
        worth_quoting(&String::from_utf8_lossy(&text))
    }

    /// Has standard error be written here, and standard output nowhere, for as long as DPDK begins: what is wrong with its options
    /// stands there alone, and so do all that it has.
    pub fn quiet(&self) -> std::io::Result<Quiet> {
        let null = File::options().write(true).open("/dev/null")?;
        let log = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(Quiet([divert(libc::STDOUT_FILENO, &null), divert(libc::STDERR_FILENO, &log)]))
    }
}

/// Standard output and standard error as they were; it puts them back.
pub(super) struct Quiet([Option<(c_int, OwnedFd)>; 2]);

impl Drop for Quiet {
    fn drop(&mut self) {
        // What the C library has still to write.
        // SAFETY: it flushes all its streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        for (descriptor, before) in self.0.iter().flatten() {
            // SAFETY: both are open, and the one is what it was again.
            unsafe { libc::dup2(before.as_raw_fd(), *descriptor) };
        }
    }
}

/// Has one of the two be another file; none where it is not open.
fn divert(descriptor: c_int, to: &File) -> Option<(c_int, OwnedFd)> {
    // SAFETY: it makes another descriptor for what is open there, if anything.
    let before = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
    if before < 0 {
        return None;
    }
    // SAFETY: it was just made, and is nobody else's.
    let before = unsafe { OwnedFd::from_raw_fd(before) };
    // SAFETY: both are open.
    unsafe { libc::dup2(to.as_raw_fd(), descriptor) };
    Some((descriptor, before))
}

/// Lines without what leads them (`EAL: `, the function that says it), and without those that say no more than that something failed, or
/// what went well.
fn worth_quoting(text: &str) -> Vec<String> {
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
    fn what_is_quoted_says_something() {
        let text = "EAL: Detected CPU lcores: 2\nEAL: FATAL: Cannot init memory\n\nportcullis: unrecognized option '--x'\n\
            portcullis: unrecognized option '--x'\nopen_single_tx_pcap(): Couldn't open /x for writing.\n\
            EAL: Driver cannot attach the device (net_pcap0)\nvdev_probe(): failed (really): no";
        let want = ["unrecognized option '--x'", "Couldn't open /x for writing", "failed (really): no"];
        assert_eq!(worth_quoting(text), want);
    }
}
