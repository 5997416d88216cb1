//! Finding the process that owns an exclusive kernel resource.

use std::fmt;
use std::fs::read_link;
use std::path::Path;

/// A process that owns a kernel resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerProcess {
    /// Process ID in this process's PID namespace.
    pub pid: u32,
    /// Command name, for example `portcullis`.
    pub name: String,
}

impl fmt::Display for OwnerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

impl OwnerProcess {
    /// Finds the process with this netlink socket, given by protocol and port ID, in the calling
    /// thread's network namespace: from `/proc/net/netlink` (`netlink_native_seq_show`,
    /// `net/netlink/af_netlink.c`) and the links in `/proc/*/fd`. `None` if it is not visible to
    /// this process.
    #[cfg(feature = "nfqueue")]
    pub(crate) fn of_netlink(protocol: i32, port: u32) -> Option<OwnerProcess> {
        let table = std::fs::read_to_string("/proc/thread-self/net/netlink").ok()?;
        let socket = format!("socket:[{}]", netlink_inode(&table, protocol, port)?);
        find(|folder, file| read_link(folder.join("fd").join(file)).is_ok_and(|to| to.as_os_str() == socket.as_str()))
    }

    /// Finds the process that holds the BPF link of the XDP program at this interface of the
    /// calling thread's network namespace, from `/proc/*/fdinfo` (`bpf_xdp_link_show_fdinfo`,
    /// `net/core/dev.c`). `None` if it is not visible to this process, or the program was attached
    /// without a link.
    #[cfg(feature = "af-xdp")]
    pub(crate) fn of_xdp_program(interface: &std::ffi::CStr) -> Option<OwnerProcess> {
        // SAFETY: the name is zero-terminated and outlives the call.
        #[expect(unsafe_code, reason = "a libc call")]
        let index = unsafe { libc::if_nametoindex(interface.as_ptr()) };
        let here = read_link("/proc/thread-self/ns/net").ok()?;
        find(|folder, file| {
            // Interface indexes repeat across namespaces.
            let is_here = || read_link(folder.join("ns/net")).is_ok_and(|there| there == here);
            let info = std::fs::read_to_string(folder.join("fdinfo").join(file)).unwrap_or_default();
            index != 0 && is_xdp_link(&info, index) && is_here()
        })
    }
}

/// Finds the first process with an open file that satisfies `matches`, which gets the process's
/// folder in `/proc` and the file's descriptor number.
fn find(mut matches: impl FnMut(&Path, &Path) -> bool) -> Option<OwnerProcess> {
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let folder = entry.path();
        // Skip processes of other users, and processes that exit meanwhile.
        let files = std::fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
        if files.into_iter().any(|file| matches(&folder, Path::new(&file.file_name()))) {
            let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
            // A process can set its own name: strip control characters.
            let name = name.trim_end().chars().filter(|c| !c.is_control()).collect();
            return Some(OwnerProcess { pid, name });
        }
    }
    None
}

/// Finds a socket's inode in `sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode`, where `Eth` is
/// the protocol and `Pid` the port ID.
#[cfg(feature = "nfqueue")]
fn netlink_inode(table: &str, protocol: i32, port: u32) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.parse() == Ok(protocol) && fields.get(2)?.parse() == Ok(port);
        fields.get(9).filter(|_| is_it)?.parse().ok()
    })
}

/// Whether an open file is a BPF link of an XDP program at this interface.
#[cfg(feature = "af-xdp")]
fn is_xdp_link(info: &str, index: u32) -> bool {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    field("link_type") == Some("xdp") && field("ifindex").and_then(|it| it.parse().ok()) == Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "nfqueue")]
    #[test]
    fn a_socket_is_found_by_its_protocol_and_port() {
        let table = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
00000000d1e9f1a6 0   4242       00000000 0        0        0     2        0        100
00000000d1e9f1a7 12  4294963199 00000000 0        0        0     2        0        101
00000000d1e9f1a8 12  4242       00000000 0        0        0     2        0        102
00000000d1e9f1a9 12
";
        assert_eq!(netlink_inode(table, 12, 4242), Some(102));
        assert_eq!(netlink_inode(table, 12, 4_294_963_199), Some(101));
        assert_eq!(netlink_inode(table, 12, 7), None);
        assert_eq!(netlink_inode("", 12, 7), None);
    }

    #[cfg(feature = "af-xdp")]
    #[test]
    fn only_xdp_links_of_the_interface_match() {
        let info = "pos:\t0\nflags:\t02000000\nlink_type:\txdp\nlink_id:\t4\nprog_id:\t15562\nifindex:\t3\n";
        assert!(is_xdp_link(info, 3));
        assert!(!is_xdp_link(info, 4) && !is_xdp_link(&info.replace("xdp", "tcx"), 3) && !is_xdp_link("", 3));
    }
}
