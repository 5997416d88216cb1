//! `run --af-xdp`: live packets from AF_XDP sockets.

use portcullis::packet_io::af_xdp::StackDevice;
use portcullis::packet_io::af_xdp::xdp::Mode;
use portcullis::packet_io::af_xdp::{self, AfXdp, BusyPoll, CopyMode, FrameCounts, LaneLayout, Options, Steering};
use portcullis::packet_io::live::link::Interface;

use super::CaptureRequirements;
use super::drive::{self, Prepared};
use super::privileges::Admin;
use super::report::Balance;
use crate::failure::Failure;
use crate::out;
use crate::run::Args;

/// Maximum number of packets that one poll receives.
const BUDGET: u32 = 64;

/// Runs the filter on the packets that interfaces receive.
pub fn run(args: &Args) -> Result<(), Failure> {
    let live = &args.live;
    let ports =
        live.af_xdp.iter().map(|text| text.parse()).collect::<Result<_, _>>().map_err(|e| usage("--af-xdp", &e))?;
    let stack = match live.stack.as_str() {
        "veth" => Some(StackDevice::Veth),
        "tap" => Some(StackDevice::Tap),
        "none" => None,
        _ => Some(StackDevice::Auto),
    };
    let steer = match &live.only {
        Some(rules) => Steering::Only(rules.parse().map_err(|error| usage("--only", &error))?),
        None if live.all => Steering::All,
        None => Steering::Default,
    };
    let mode = live.xdp_mode.as_deref().map(|mode| if mode == "skb" { Mode::Skb } else { Mode::Native });
    let copying = match (live.zero_copy, live.copy) {
        (true, _) => CopyMode::ZeroCopy,
        (_, true) => CopyMode::Copy,
        _ => CopyMode::Auto,
    };
    let mut options = Options::new(ports)
        .with_redirect(live.redirect.clone())
        .with_stack(stack)
        .with_steer(steer)
        .with_mode(mode)
        .with_copying(copying)
        .with_busy_poll(live.busy_poll.map(|microseconds| BusyPoll { microseconds, budget: BUDGET }))
        .with_huge_pages(live.huge_pages)
        .with_frames(live.frames.unwrap_or(Options::FRAMES));
    for (index, port) in options.ports.iter().enumerate() {
        if options.ports[..index].iter().any(|before| before.interface == port.interface) {
            let what = "the interface is given twice; give all of its queues at once, as eth0:0-3";
            return Err(Failure::Usage(format!("--af-xdp {port}: {what}")));
        }
    }
    for (index, (target, interface)) in options.redirect.iter().enumerate() {
        if options.redirect[..index].iter().any(|(before, _)| before == target) {
            return Err(Failure::Usage(format!("--redirect {target}={interface}: target {target} is given twice")));
        }
    }
    let prepared = Prepared::new(args)?;
    // XDP programs redirect by the kernel's interface numbers.
    options.by_interface = portcullis::frontend::xdp::ObjectInfo::of(&prepared.program).is_some();
    if options.by_interface {
        add_interface_targets(&mut options, args.maps.kernel_routes.is_some())?;
    }
    let _run = prepared.span.clone().entered();
    let needs = CaptureRequirements::of(&prepared.program, live.control.is_some());
    (options.room, options.metadata, options.rewrites) = (needs.room, needs.metadata, needs.rewrites());
    options.lanes = if super::one_lane(args, &prepared.program)? { LaneLayout::Shared } else { LaneLayout::PerQueue };
    let mut run = af_xdp::open(&options).map_err(|error| Failure::Error(error.to_string()))?;
    announce(&run);
    let names: Vec<String> = run.ports.iter().map(|port| port.interface.clone()).collect();
    let links = || super::links(names.iter().map(String::as_str));
    let lanes = std::mem::take(&mut run.lanes);
    let admin = if run.ports.iter().any(|port| port.stack.is_some()) { Admin::AtEnd } else { Admin::No };
    let ended = drive::drive(args, prepared, lanes, admin, links, || run.detach())?;
    ended.report(args, Some(balance(run.frame_audit.frames())))
}

/// Makes the interfaces of the run, and those of `--redirect`, targets by their kernel numbers too.
/// An explicit `--redirect` for a number takes precedence, unless routes are the kernel's, which
/// contain its numbers.
fn add_interface_targets(options: &mut Options, has_routes: bool) -> Result<(), Failure> {
    let ports = options.ports.iter().map(|port| &port.interface);
    let names: Vec<String> = ports.chain(options.redirect.iter().map(|(_, interface)| interface)).cloned().collect();
    for name in names {
        let index = Interface::find(&name).map_err(|error| Failure::Error(error.to_string()))?.index;
        match options.redirect.iter().find(|(target, _)| *target == index) {
            None => options.redirect.push((index, name)),
            Some((_, other)) if *other == name || !has_routes => {}
            Some((_, other)) => {
                let what = format!("with --kernel-routes, {index} is the kernel's number of {name}");
                return Err(Failure::Usage(format!("--redirect {index}={other}: {what}")));
            }
        }
    }
    Ok(())
}

/// Prints how the sockets were set up.
fn announce(run: &AfXdp) {
    for port in &run.ports {
        let copying = if port.is_zero_copy { "zero copy" } else { "copied" };
        let queues: Vec<String> = port.queues.iter().map(u32::to_string).collect();
        let noun = if queues.len() == 1 { "queue" } else { "queues" };
        let (interface, queues, mode) = (&port.interface, queues.join(","), port.mode.name());
        let text = format!("{interface}: {noun} {queues}, {mode} mode, {copying}");
        if out::live::is_logging() {
            // Structured, for readers of the log.
            tracing::info!(target: "portcullis", %interface, %queues, mode, zero_copy = port.is_zero_copy, "{text}");
        } else {
            out::note(&text);
        }
        match &port.stack {
            Some(way) => out::note(&format!("{}: packets that pass go into the kernel ({way})", port.interface)),
            None => out::note(&format!("{}: packets that pass are dropped", port.interface)),
        }
        if port.loses_vlan_tags {
            let name = &port.interface;
            out::warn(&format!(
                "{name}: VLAN tags are taken out of packets before the filter sees them (rx-vlan-offload), and are lost to what is \
                 sent on; `ethtool -K {name} rxvlan off` leaves them in"
            ));
        }
        if let Some(why) = &port.not_native {
            out::note(&format!("{}: {why}", port.interface));
        }
        if port.mode == Mode::Skb {
            let name = &port.interface;
            out::note(&format!(
                "{name}: in this mode the kernel may merge received packets (GRO, LRO, TSO), and drops those of more than {} \
                 bytes; `ethtool -K {name} gro off lro off` stops that, and if {name} is one end of a veth pair, `tso off gso \
                 off` at the other end",
                port.longest
            ));
        }
    }
}

/// Converts the frame counts for the report.
fn balance(frames: FrameCounts) -> Balance {
    let FrameCounts { total, free, rx, tx } = frames;
    Balance { all: total, free, receiving: rx, sending: tx, missing: frames.in_batches(), ..Balance::default() }
}

fn usage(option: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {error}"))
}
