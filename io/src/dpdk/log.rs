//! What DPDK has to say.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::Mutex;

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
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().map(|line| line.trim_start_matches("EAL: ").trim());
        lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}
