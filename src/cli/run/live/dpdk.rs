//! Ports of DPDK.

use std::time::Duration;

use portcullis::io::dpdk::{self, Dpdk, DpdkError, Mempool, Options, Packets, PassTo, PortSpec};
use portcullis::packet::Room;

use super::Needs;
use super::drive::{self, Prepared};
use super::privileges::Admin;
use super::report::Balance;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::cli::run::Args;

/// How long nothing may have come of captures before they are taken to be over: DPDK does not say that they are.
const OVER: Duration = Duration::from_secs(1);

/// Runs a filter on what ports receive.
pub fn run(args: &Args) -> Result<(), Failure> {
    let live = &args.live;
    let port = |option: &str, text: &str| text.parse::<PortSpec>().map_err(|e| usage(option, &e));
    let redirect = |(target, text): &(u32, String)| Ok((*target, port("--redirect", text)?));
    let mut options = Options {
        ports: live.dpdk.iter().map(|text| port("--dpdk", text)).collect::<Result<_, _>>()?,
        queues: live.queues.unwrap_or(1),
        one_lane: false,
        redirect: live.redirect.iter().map(redirect).collect::<Result<_, Failure>>()?,
        pass_to: live.pass_to.as_deref().map(str::parse).transpose().map_err(|e: DpdkError| usage("--pass-to", &e))?,
        eal: match &live.eal {
            None => Vec::new(),
            Some(text) => shlex::split(text).ok_or_else(|| usage("--eal", &"a quotation mark has no other one"))?,
        },
        room: Room::None,
        metadata: false,
        rewrites: false,
        packets: live.frames.unwrap_or(Options::PACKETS),
        mempool: Mempool::Host,
        split: None,
    };
    for (index, port) in options.ports.iter().enumerate() {
        if options.ports[..index].iter().any(|before| before.to_string() == port.to_string()) {
            return Err(usage(&format!("--dpdk {port}"), &"the port is given twice"));
        }
    }
    for (index, (target, port)) in options.redirect.iter().enumerate() {
        if options.redirect[..index].iter().any(|(before, _)| before == target) {
            return Err(usage(&format!("--redirect {target}={port}"), &format!("target {target} is given twice")));
        }
    }
    let mut prepared = Prepared::new(args)?;
    let is_capture = |port: &PortSpec| port.driver() == Some("net_pcap");
    prepared.idle_exit = live.idle_exit.or(options.ports.iter().all(is_capture).then_some(OVER));
    let _run = prepared.span.clone().entered();
    let needs = Needs::of(&prepared.program, args);
    (options.room, options.metadata, options.rewrites) = (needs.room, needs.metadata, needs.rewrites());
    options.one_lane = super::one_lane(args, &prepared.program)?;
    let mut run = dpdk::open(&options).map_err(|error| Failure::Wrong(error.to_string()))?;
    announce(&run, &options);
    let lanes = std::mem::take(&mut run.lanes);
    let ended = drive::drive(args, prepared, lanes, Admin::No, || (), || run.stop())?;
    ended.report(args, Some(balance(run.close())))
}

/// Says what was got.
fn announce(run: &Dpdk, options: &Options) {
    for (index, port) in run.info.iter().enumerate() {
        let [a, b, c, d, e, f] = port.mac;
        let queues = if index < options.ports.len() { port.receive_queues } else { 0 };
        let noun = if queues == 1 { "queue" } else { "queues" };
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        out::note(&format!(
            "{}: port {} of DPDK, {}, {queues} receive {noun}, {mac}",
            port.name, port.number, port.driver
        ));
    }
    match &options.pass_to {
        None => out::note("packets that pass have nowhere to go (--pass-to): they are counted, and dropped"),
        Some(PassTo::Port(port)) => out::note(&format!("packets that pass go out of {port}")),
        Some(PassTo::Tap(interface) | PassTo::VirtioUser(interface)) => out::note(&format!(
            "packets that pass go into the kernel at {interface}, and what it sends there goes out of {}",
            run.info[0].name
        )),
    }
}

/// Whether all memory of packets is accounted for.
fn balance(Packets { all, home }: Packets) -> Balance {
    Balance { all, free: home, receiving: 0, sending: 0, missing: all as isize - home as isize }
}

fn usage(option: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {error}"))
}
