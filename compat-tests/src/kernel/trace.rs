//! Reads what programs print, from a tracefs instance that contains the prints of this thread only.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Marker that precedes the text in a line of the trace.
const MARK: &str = "bpf_trace_printk: ";

/// A tracefs instance.
#[derive(Debug)]
pub struct Trace {
    instance: PathBuf,
    pipe: fs::File,
    /// Mount point of tracefs, if this process mounted it.
    mounted: Option<tempfile::TempDir>,
}

impl Trace {
    /// Opens an instance that receives this thread's prints.
    ///
    /// # Errors
    /// If tracefs is not mounted and cannot be mounted.
    pub fn open() -> io::Result<Trace> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let own = Path::new("/sys/kernel/tracing");
        let (folder, mounted) = match own.join("instances").exists() {
            true => (own.to_owned(), None),
            false => {
                let folder = tempfile::tempdir()?;
                mount(folder.path())?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let instance = folder.join(format!("instances/portcullis-{}-{number}", std::process::id()));
        let pipe = fs::create_dir(&instance).and_then(|()| {
            // SAFETY: `gettid` takes no arguments and cannot fail.
            let thread = unsafe { libc::gettid() };
            fs::write(instance.join("set_event_pid"), thread.to_string())?;
            fs::write(instance.join("events/bpf_trace/bpf_trace_printk/enable"), "1")?;
            fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(instance.join("trace_pipe"))
        });
        match pipe {
            Ok(pipe) => Ok(Trace { instance, pipe, mounted }),
            Err(error) => {
                let _ = fs::remove_dir(&instance);
                mounted.iter().for_each(|folder| unmount(folder.path()));
                Err(error)
            }
        }
    }

    /// Returns the new lines, without line ends.
    pub fn read(&self) -> Vec<String> {
        let mut text = Vec::new();
        let mut part = [0; 1 << 14];
        while let Ok(count) = (&self.pipe).read(&mut part) {
            if count == 0 {
                break;
            }
            text.extend_from_slice(&part[..count]);
        }
        let text = String::from_utf8_lossy(&text);
        text.lines().filter_map(|line| Some(line[line.find(MARK)? + MARK.len()..].to_owned())).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::write(self.instance.join("events/bpf_trace/bpf_trace_printk/enable"), "0");
        // Close the pipe first: an instance with an open reader cannot be removed.
        if let Ok(other) = fs::File::open("/dev/null") {
            self.pipe = other;
        }
        let _ = fs::remove_dir(&self.instance);
        self.mounted.iter().for_each(|folder| unmount(folder.path()));
    }
}

fn mount(at: &Path) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: all strings are NUL-terminated, and the data pointer may be null.
    let done = unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), c"tracefs".as_ptr(), 0, std::ptr::null()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn unmount(at: &Path) {
    if let Ok(at) = CString::new(at.as_os_str().as_bytes()) {
        // SAFETY: the path is NUL-terminated.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    }
}
