//! `portcullis run` on live packets.

#[cfg(all(target_os = "linux", feature = "af-xdp"))]
mod af_xdp;
mod args;
#[cfg(all(target_os = "linux", feature = "live"))]
mod control;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub mod dpdk;
#[cfg(all(target_os = "linux", feature = "live"))]
pub mod drive;
#[cfg(all(target_os = "linux", feature = "live"))]
pub mod lane_sessions;
#[cfg(all(target_os = "linux", feature = "live"))]
mod log;
pub mod mempool;
#[cfg(all(target_os = "linux", feature = "nfqueue"))]
mod nfqueue;
#[cfg(all(target_os = "linux", feature = "live"))]
mod privileges;
#[cfg(all(target_os = "linux", feature = "live"))]
pub mod report;
#[cfg(all(target_os = "linux", feature = "live"))]
mod stats;

pub use args::{LiveArgs, SOURCES, duration, frames, processor, redirect};

#[cfg(all(target_os = "linux", feature = "live"))]
use portcullis::packet::ResizeRoom;
#[cfg(all(target_os = "linux", feature = "live"))]
use portcullis::pipeline::Broadcasts;
#[cfg(all(target_os = "linux", any(feature = "af-xdp", feature = "dpdk")))]
use portcullis::pipeline::live::link_monitor::LinkMonitor;
#[cfg(all(target_os = "linux", feature = "live"))]
use portcullis::program::{Program, facts::Window};

use super::Args;
use crate::failure::Failure;
#[cfg(all(target_os = "linux", any(feature = "af-xdp", feature = "dpdk")))]
use crate::out;

/// Runs the filter on the source that the arguments name.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.live {
        LiveArgs { nfqueue, .. } if !nfqueue.is_empty() => by_nfqueue(args),
        LiveArgs { dpdk, .. } if !dpdk.is_empty() => by_dpdk(args),
        _ => by_af_xdp(args),
    }
}

/// Requirements of a filter on received packets.
#[cfg(all(target_os = "linux", feature = "live"))]
pub struct CaptureRequirements {
    /// Headroom and tailroom.
    pub room: ResizeRoom,
    /// Whether port, time and length on the wire are recorded for each packet.
    pub metadata: bool,
    /// The part of a packet that may be written.
    writes: Window,
}

#[cfg(all(target_os = "linux", feature = "live"))]
impl CaptureRequirements {
    /// Returns the requirements of the filter or, with `any`, those of every filter that a reload
    /// may load.
    pub fn of(program: &Program, any: bool) -> CaptureRequirements {
        let facts = program.facts();
        CaptureRequirements {
            room: if any || facts.changes_length { ResizeRoom::Both } else { ResizeRoom::None },
            metadata: any || facts.uses_metadata || Broadcasts::needs_ingress_port(program),
            writes: if any { Window::WholePacket } else { facts.writes },
        }
    }

    /// Whether packets may be modified.
    #[cfg(any(feature = "af-xdp", feature = "dpdk"))]
    pub fn rewrites(&self) -> bool {
        self.room == ResizeRoom::Both || self.writes.max_bytes() > 0
    }
}

/// Whether one lane has all queues. A filter with maps needs that, because one session has its
/// maps.
#[cfg(all(target_os = "linux", any(feature = "af-xdp", feature = "dpdk")))]
fn one_lane(args: &Args, program: &Program) -> Result<bool, Failure> {
    match (args.live.lanes.as_deref(), program.maps().is_empty()) {
        (Some("each"), false) => {
            let what = "the filter has maps, which all packets share, and they take one lane; leave the option out";
            Err(Failure::Usage(format!("--lanes each: {what}")))
        }
        (Some("one"), _) | (None, false) => Ok(true),
        _ => Ok(false),
    }
}

/// Refuses filters that send a packet to several ports, for sources that cannot copy packets.
#[cfg(all(target_os = "linux", any(feature = "nfqueue", feature = "dpdk")))]
fn refuse_copies(option: &str, program: &Program) -> Result<(), Failure> {
    match Broadcasts::from_program(program) {
        None => Ok(()),
        Some(_) => {
            let what =
                "the filter redirects packets to all devices of a map (BPF_F_BROADCAST), which --af-xdp and --read can";
            Err(Failure::Usage(format!("{option}: {what}")))
        }
    }
}

/// Reports when links go up or down, until it is dropped. The run goes on without it if links
/// cannot be watched.
#[cfg(all(target_os = "linux", any(feature = "af-xdp", feature = "dpdk")))]
fn links<'n>(interfaces: impl IntoIterator<Item = &'n str>) -> Option<LinkMonitor> {
    LinkMonitor::watch(interfaces).inspect_err(|error| out::warn(&error.to_string())).ok()
}

#[cfg(all(target_os = "linux", feature = "dpdk"))]
fn by_dpdk(args: &Args) -> Result<(), Failure> {
    dpdk::run(args)
}

#[cfg(not(all(target_os = "linux", feature = "dpdk")))]
fn by_dpdk(_: &Args) -> Result<(), Failure> {
    Err(missing("--dpdk", "dpdk"))
}

#[cfg(all(target_os = "linux", feature = "af-xdp"))]
fn by_af_xdp(args: &Args) -> Result<(), Failure> {
    af_xdp::run(args)
}

#[cfg(not(all(target_os = "linux", feature = "af-xdp")))]
fn by_af_xdp(_: &Args) -> Result<(), Failure> {
    Err(missing("--af-xdp (-i)", "af-xdp"))
}

#[cfg(all(target_os = "linux", feature = "nfqueue"))]
fn by_nfqueue(args: &Args) -> Result<(), Failure> {
    nfqueue::run(args)
}

#[cfg(not(all(target_os = "linux", feature = "nfqueue")))]
fn by_nfqueue(_: &Args) -> Result<(), Failure> {
    Err(missing("--nfqueue", "nfqueue"))
}

/// The error for an option that this build does not support.
#[cfg(not(all(target_os = "linux", feature = "af-xdp", feature = "nfqueue", feature = "dpdk")))]
pub fn missing(option: &str, feature: &str) -> Failure {
    Failure::Usage(if cfg!(target_os = "linux") {
        format!("{option}: this program was built without it; build it with `--features {feature}`")
    } else {
        format!("{option}: supported on Linux only")
    })
}
