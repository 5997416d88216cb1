//! Network namespaces.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

/// What names of namespaces begin with; then come the process and a number.
const PREFIX: &str = "portcullis";

/// Where `ip netns` keeps namespaces by name.
const FOLDER: &str = "/run/netns";

/// A network namespace of a test's own, with only the loopback interface, which is up. Dropping the
/// last clone removes it, also when a test panics, with its interfaces and the programs still
/// running in it.
///
/// In it, IPv6 addresses are there at once (no duplicate address detection), nobody asks for
/// routers, and [`ping`](crate::ping) may.
#[derive(Debug, Clone)]
pub struct Namespace(Arc<Named>);

/// A namespace that is removed.
#[derive(Debug)]
struct Named(String);

impl Namespace {
    /// A new one. The first of a process removes what killed processes left behind.
    ///
    /// # Panics
    /// When the system refuses.
    #[expect(clippy::new_without_default, reason = "it makes something")]
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

    /// Returns the name, as for `ip -netns`.
    pub fn name(&self) -> &str {
        &self.0.0
    }

    /// What stands for it in the file system, for `setns`.
    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(self.name())
    }

    /// Runs something on a thread that has entered the namespace. Sockets that are made there stay
    /// in it wherever they go. `/proc/sys/net` is the namespace's own; `/sys/class/net` is not.
    ///
    /// # Panics
    /// As `run` does.
    pub fn run<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let path = self.path();
            let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            // SAFETY: it takes no memory; the descriptor is open.
            let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "cannot enter {}: {}", path.display(), std::io::Error::last_os_error());
            run()
        };
        match std::thread::scope(|scope| scope.spawn(enter).join()) {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// A program to be run in the namespace. Its process id is the one that the child has. What
    /// still runs when the namespace is removed is killed.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name()]).arg(program);
        command
    }

    /// Runs `ip` on the namespace, and gives what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, arguments: &[&str]) -> String {
        let arguments = [&["-netns", self.name()], arguments].concat();
        output(Command::new("ip").args(arguments)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Sets a variable of the namespace's, such as `net.ipv4.ip_forward`.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn sysctl(&self, name: &str, value: &str) {
        // Names of interfaces may have dots in them; where the folders part, there is a slash then.
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

/// Makes a namespace and removes it: whether tests can.
pub(crate) fn attempt() -> Result<(), String> {
    // SAFETY: it only gives a number.
    match unsafe { libc::geteuid() } {
        0 => Named::new().map(drop),
        _ => Err("network namespaces need root".into()),
    }
}

/// Removes the namespaces of processes that are no more, which had no time to do it.
/// [`Namespace::new`] does so.
pub fn remove_leftovers() {
    for entry in std::fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let Some(process) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('-')) else { continue };
        let Some(process) = process.split('-').next().and_then(|process| process.parse::<u32>().ok()) else { continue };
        if !Path::new("/proc").join(process.to_string()).exists() {
            // Another test program may be at it, too.
            let _ = remove(name);
        }
    }
}

/// Kills what runs in a namespace, and removes it.
fn remove(name: &str) -> Result<(), String> {
    for process in output(Command::new("ip").args(["netns", "pids", name]))?.split_whitespace() {
        let process: i32 = process.parse().map_err(|_| format!("`ip netns pids {name}` gives {process}"))?;
        if process != std::process::id() as i32 {
            // SAFETY: it takes no memory.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
    }
    output(Command::new("ip").args(["netns", "delete", name])).map(drop)
}

/// What a program that must succeed prints.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
