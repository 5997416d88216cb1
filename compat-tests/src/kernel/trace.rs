//! What programs print, as the kernel has it: in an instance of its tracing of our own, which has
//! this thread's prints alone.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a line of a print has before the text.
const MARK: &str = "bpf_trace_printk: ";

/// An instance of the kernel's tracing.
#[derive(Debug)]
pub struct Trace {
    instance: PathBuf,
    pipe: fs::File,
    /// Where the kernel's files are that were not there before.
    mounted: Option<tempfile::TempDir>,
}

impl Trace {
    /// Has this thread's prints come here.
    ///
    /// # Errors
    /// The kernel's files of tracing are not there, and cannot be mounted.
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
            // SAFETY: it asks for this thread's number.
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
        // An instance that is still read stays.
        if let Ok(other) = fs::File::open("/dev/null") {
            self.pipe = other;
        }
        let _ = fs::remove_dir(&self.instance);
        self.mounted.iter().for_each(|folder| unmount(folder.path()));
    }
}

fn mount(at: &Path) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: all texts end with a zero, and there is no data.
    let done = unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), c"tracefs".as_ptr(), 0, std::ptr::null()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn unmount(at: &Path) {
    if let Ok(at) = CString::new(at.as_os_str().as_bytes()) {
        // SAFETY: the text ends with a zero.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    }
}
