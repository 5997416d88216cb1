//! What this process may do that others may not: given up once what needs it is done.
//!
//! Capabilities are a thread's, and those that it starts have what it has then. So this is done
//! before there are threads that see a packet or a request.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use portcullis::io::resolved_path;
use portcullis::pipeline::live::metrics::server::Address;
use portcullis::reason;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::failure::Failure;
use crate::out;
use crate::run::Args;

/// What CAP_NET_ADMIN is needed for while packets flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// Nothing.
    No,
    /// Interfaces that were made are to be removed in the end.
    AtEnd,
    /// The kernel asks for it with every verdict.
    #[cfg_attr(not(feature = "nfqueue"), expect(dead_code, reason = "netfilter queues alone do"))]
    Always,
}

/// The capabilities that open files of others, of which those are kept that the run's files need.
const FILES: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::FOWNER);

/// Gives up what this thread, and those that it starts from now on, needs no longer, for good.
pub fn give_up(args: &Args, admin: Admin) -> Result<(), Failure> {
    let failed =
        |error: rustix::io::Errno| Failure::Wrong(format!("giving up capabilities: {}", reason(&error.into())));
    // Whatever is executed from here on gets no more than there is.
    set_no_new_privs(true).map_err(failed)?;
    let all = capabilities(None).map_err(failed)?.permitted;
    let without = CapabilitySets { effective: all - FILES, permitted: all, inheritable: CapabilitySet::empty() };
    set_capabilities(None, without).map_err(failed)?;
    let mut kept = all & needed(args);
    if admin != Admin::No {
        kept |= all & CapabilitySet::NET_ADMIN;
    }
    keep(kept).map_err(failed)?;
    if !all.is_empty() {
        out::note(&told(kept, admin));
    }
    Ok(())
}

/// Gives up what is kept for the end only: the calling thread is not the one that sees to it.
pub fn give_up_admin() -> Result<(), Failure> {
    let kept = capabilities(None).map(|it| it.permitted - CapabilitySet::NET_ADMIN).and_then(keep);
    kept.map_err(|error| Failure::Wrong(format!("giving up capabilities: {}", reason(&error.into()))))
}

fn keep(kept: CapabilitySet) -> rustix::io::Result<()> {
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}

/// Describes the capabilities that were kept, and their purpose.
fn told(kept: CapabilitySet, admin: Admin) -> String {
    let network = match admin {
        Admin::AtEnd => "to remove the interfaces that were made",
        Admin::No | Admin::Always => "for verdicts",
    };
    let names = [
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", network),
        (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "to write files in folders of others"),
        (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", "to read files of others"),
        (CapabilitySet::FOWNER, "CAP_FOWNER", "to replace files of others"),
    ];
    let names = names.iter().filter(|(capability, ..)| kept.contains(*capability));
    let names: Vec<String> = names.map(|(_, name, what)| format!("{name} ({what})")).collect();
    if names.is_empty() {
        return "capabilities: all given up".into();
    }
    format!("capabilities: all given up but {}", names.join(", "))
}

/// What a run's files need, as it shows without the capabilities that open files of others.
fn needed(args: &Args) -> CapabilitySet {
    let mut needed = CapabilitySet::empty();
    let read = args.maps.map.iter().chain(&args.maps.watch_map).map(|it| &it.file).chain(&args.maps.state);
    for path in read.map(|file| resolved_path(file)) {
        if accessat(CWD, &path, Access::READ_OK, AtFlags::EACCESS) == Err(rustix::io::Errno::ACCESS) {
            needed |= CapabilitySet::DAC_READ_SEARCH;
        }
    }
    let dumps = args.maps.dump_map.iter().map(|it| &it.file).filter(|file| *file != Path::new("-"));
    let written = dumps.chain(&args.maps.state).map(|file| resolved_path(file));
    let metrics = args.live.metrics.as_deref().and_then(|at| match Address::try_from(at) {
        Ok(Address::Unix(path)) => Some(path),
        _ => None,
    });
    for path in written.chain(args.live.control.clone()).chain(metrics) {
        needed |= to_replace(&path);
    }
    if needed.contains(CapabilitySet::DAC_OVERRIDE) {
        // Who may write all may read all.
        needed -= CapabilitySet::DAC_READ_SEARCH;
    }
    needed
}

/// Returns the capabilities needed to replace or create a file.
fn to_replace(path: &Path) -> CapabilitySet {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let is_there = path.symlink_metadata();
    let may = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS) != Err(rustix::io::Errno::ACCESS);
    let mut needed = CapabilitySet::empty();
    if !may(&folder, Access::WRITE_OK | Access::EXEC_OK) || (is_there.is_ok() && !may(path, Access::WRITE_OK)) {
        needed |= CapabilitySet::DAC_OVERRIDE;
    }
    let user = rustix::process::geteuid().as_raw();
    if let (Ok(folder), Ok(there)) = (folder.metadata(), is_there) {
        // Where the folder is for all to write in, files are their owners' to replace (S_ISVTX).
        let is_sticky = folder.mode() & 0o1000 != 0;
        if is_sticky && folder.uid() != user && there.uid() != user {
            needed |= CapabilitySet::FOWNER;
        }
    }
    needed
}
