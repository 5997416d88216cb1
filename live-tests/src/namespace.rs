//! Network namespaces.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

/// Prefix of the names of namespaces; the process id and a counter follow.
const PREFIX: &str = "portcullis";

/// Folder in which `ip netns` keeps named namespaces.
const FOLDER: &str = "/run/netns";

/// A network namespace of a test's own, whose only interface is loopback, which is up. Dropping the
/// last clone removes it with its interfaces and kills the programs running in it, also when a test
/// panics.
///
/// IPv6 addresses are usable at once (no duplicate address detection), no router solicitations are
/// sent, and [`ping`](crate::ping) is permitted.
#[derive(Debug, Clone)]
pub struct Namespace(Arc<Named>);

/// Removes the namespace of this name when dropped.
#[derive(Debug)]
struct Named(String);

impl Namespace {
    /// Creates a namespace. The first call in a process removes what killed processes left behind.
    ///
    /// # Panics
    /// If the system refuses.
    #[expect(clippy::new_without_default, reason = "creates a system object")]
    pub fn new() -> Namespace {
        static FIRST: Once = Once::new();
        FIRST.call_once(remove_leftovers);
        let namespace = Namespace(Arc::new(Named::new().unwrap_or_else(|e| panic!("{e}"))));
        namespace.ip(&["link", "set", "lo", "up"]);
        for kind in ["all", "default"] {
            namespace.sysctl(&format!("net.ipv6.conf.{kind}.accept_dad"), "0");
            namespace.sysctl(&format!("net.ipv6.conf.{kind}.router_solicitations"), "0");
        }
        namespace.sysctl("net.ipv4.ping_group_range", "0 0");
        namespace
    }

    /// Returns the name, as `ip -netns` takes it.
    pub fn name(&self) -> &str {
        &self.0.0
    }

    /// Returns the path to open for `setns`.
    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(self.name())
    }

    /// Runs a function on a new thread inside the namespace. Sockets created there keep belonging
    /// to it. `/proc/sys/net` is the namespace's own; `/sys/class/net` is not.
    ///
    /// # Panics
    /// If `run` panics.
    pub fn run<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let path = self.path();
            let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            // SAFETY: the call takes no memory, and the descriptor is open.
            let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "cannot enter {}: {}", path.display(), std::io::Error::last_os_error());
            run()
        };
        match std::thread::scope(|scope| scope.spawn(enter).join()) {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Returns a command that runs a program in the namespace, with the process id of the child.
    /// Removing the namespace kills programs that still run.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name()]).arg(program);
        command
    }

    /// Runs `ip` on the namespace, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, arguments: &[&str]) -> String {
        let arguments = [&["-netns", self.name()], arguments].concat();
        output(Command::new("ip").args(arguments)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Sets a sysctl of the namespace, such as `net.ipv4.ip_forward`.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn sysctl(&self, name: &str, value: &str) {
        // Interface names may contain dots; callers then separate the parts of the name by slashes.
        let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
        let path = Path::new("/proc/sys").join(path);
        self.run(|| std::fs::write(&path, value).unwrap_or_else(|e| panic!("{}: {e}", path.display())));
    }
}

impl Named {
    fn new() -> Result<Named, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        output(Command::new("ip").args(["netns", "add", &name]))?;
        Ok(Named(name))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            println!("{error}");
        }
    }
}

/// Creates a namespace and removes it, to find out whether tests may.
pub(crate) fn probe() -> Result<(), String> {
    // SAFETY: the call takes no memory and cannot fail.
    match unsafe { libc::geteuid() } {
        0 => Named::new().map(drop),
        _ => Err("network namespaces need root".into()),
    }
}

/// Removes the namespaces of processes that have died without removing them. [`Namespace::new`]
/// calls it once per process.
pub fn remove_leftovers() {
    for entry in std::fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let Some(process) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('-')) else { continue };
        let Some(process) = process.split('-').next().and_then(|process| process.parse::<u32>().ok()) else { continue };
        if !Path::new("/proc").join(process.to_string()).exists() {
            // Ignore errors: another test program may be removing it too.
            let _ = remove(name);
        }
    }
}

/// Kills the processes in a namespace, and removes it.
fn remove(name: &str) -> Result<(), String> {
    for process in output(Command::new("ip").args(["netns", "pids", name]))?.split_whitespace() {
        let process: i32 = process.parse().map_err(|_| format!("`ip netns pids {name}` gives {process}"))?;
        if process != std::process::id() as i32 {
            // SAFETY: the call takes no memory.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
    }
    output(Command::new("ip").args(["netns", "delete", name])).map(drop)
}

/// Runs a program that must succeed, and returns what it prints.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
