//! Capabilities of the process, dropped once they are no longer needed.
//!
//! Capabilities belong to threads, and a new thread inherits those of its creator. So they are
//! dropped before the threads start that handle packets or requests.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use portcullis::packet_io::resolved_path;
use portcullis::pipeline::live::metrics::server::Address;
use portcullis::reason;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::failure::Failure;
use crate::out;
use crate::run::Args;

/// Why CAP_NET_ADMIN is needed during the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// The run does not need the capability.
    No,
    /// The run removes the interfaces it has created when it ends.
    AtEnd,
    /// The kernel checks the capability for each verdict.
    #[cfg_attr(not(feature = "nfqueue"), expect(dead_code, reason = "only netfilter queues need it"))]
    Always,
}

/// Capabilities to open other users' files. Those that the run's files need are kept.
const FILES: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::FOWNER);

/// Drops for good all capabilities that this thread, and threads started from now on, no longer
/// need.
pub fn drop_capabilities(args: &Args, admin: Admin) -> Result<(), Failure> {
    let failed =
        |error: rustix::io::Errno| Failure::Error(format!("giving up capabilities: {}", reason(&error.into())));
    // Also for programs that are executed from here on.
    set_no_new_privs(true).map_err(failed)?;
    let all = capabilities(None).map_err(failed)?.permitted;
    let without = CapabilitySets { effective: all - FILES, permitted: all, inheritable: CapabilitySet::empty() };
    set_capabilities(None, without).map_err(failed)?;
    let mut kept = all & required_capabilities(args);
    if admin != Admin::No {
        kept |= all & CapabilitySet::NET_ADMIN;
    }
    keep(kept).map_err(failed)?;
    if !all.is_empty() {
        out::note(&describe(kept, admin));
    }
    Ok(())
}

/// Drops CAP_NET_ADMIN on a thread that does not do the clean-up at the end.
pub fn drop_net_admin() -> Result<(), Failure> {
    let kept = capabilities(None).map(|it| it.permitted - CapabilitySet::NET_ADMIN).and_then(keep);
    kept.map_err(|error| Failure::Error(format!("giving up capabilities: {}", reason(&error.into()))))
}

fn keep(kept: CapabilitySet) -> rustix::io::Result<()> {
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}

/// Describes the capabilities that were kept, and their purpose.
fn describe(kept: CapabilitySet, admin: Admin) -> String {
    let network = match admin {
        Admin::AtEnd => "to remove the interfaces it has created",
        Admin::No | Admin::Always => "for verdicts",
    };
    let names = [
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", network),
        (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "to write files in other users' folders"),
        (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", "to read other users' files"),
        (CapabilitySet::FOWNER, "CAP_FOWNER", "to replace other users' files"),
    ];
    let names = names.iter().filter(|(capability, ..)| kept.contains(*capability));
    let names: Vec<String> = names.map(|(_, name, what)| format!("{name} ({what})")).collect();
    if names.is_empty() {
        return "capabilities: all dropped".into();
    }
    format!("capabilities: all dropped except {}", names.join(", "))
}

/// Returns the capabilities that the run's files need. Must be called without [`FILES`].
fn required_capabilities(args: &Args) -> CapabilitySet {
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
        needed |= capabilities_to_replace(&path);
    }
    if needed.contains(CapabilitySet::DAC_OVERRIDE) {
        // DAC_OVERRIDE includes reading.
        needed -= CapabilitySet::DAC_READ_SEARCH;
    }
    needed
}

/// Returns the capabilities needed to replace or create a file.
fn capabilities_to_replace(path: &Path) -> CapabilitySet {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let existing = path.symlink_metadata();
    let may = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS) != Err(rustix::io::Errno::ACCESS);
    let mut needed = CapabilitySet::empty();
    if !may(&folder, Access::WRITE_OK | Access::EXEC_OK) || (existing.is_ok() && !may(path, Access::WRITE_OK)) {
        needed |= CapabilitySet::DAC_OVERRIDE;
    }
    let user = rustix::process::geteuid().as_raw();
    if let (Ok(folder), Ok(file)) = (folder.metadata(), existing) {
        // In a sticky folder (S_ISVTX) only its owner may replace a file.
        let is_sticky = folder.mode() & 0o1000 != 0;
        if is_sticky && folder.uid() != user && file.uid() != user {
            needed |= CapabilitySet::FOWNER;
        }
    }
    needed
}
