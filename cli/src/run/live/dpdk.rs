//! `run --dpdk`: live packets from DPDK ports.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis::packet_io::dpdk::{
    self, Dpdk, DpdkError, HeaderSplit, MbufCounts, Mempool, Options, PassTarget, PortSpec, WrittenCaptures,
};

use super::CaptureRequirements;
use super::drive::{self, Prepared};
use super::privileges::Admin;
use super::report::Balance;
use crate::failure::{FAILED, Failure};
use crate::out;
use crate::run::Args;

/// Idle time after which captures count as read to the end: DPDK does not report that.
const CAPTURE_IDLE_EXIT: Duration = Duration::from_secs(1);

/// Runs the filter on the packets that ports receive.
pub fn run(args: &Args) -> Result<(), Failure> {
    let live = &args.live;
    let mut options = Options::new(ports("--dpdk", &live.dpdk)?)
        .with_queues(live.queues.unwrap_or(1))
        .with_redirect(redirects(&live.redirect)?)
        .with_eal(eal(live.eal.as_deref())?)
        .with_pass_to(
            live.pass_to.as_deref().map(str::parse).transpose().map_err(|e: DpdkError| usage("--pass-to", &e))?,
        )
        .with_packets(live.frames.unwrap_or(Options::PACKETS));
    let mut prepared = Prepared::new(args)?;
    super::refuse_copies("--dpdk", &prepared.program)?;
    prepared.idle_exit = live.idle_exit.or(default_idle_exit(&options.ports));
    let _run = prepared.span.clone().entered();
    let needs = CaptureRequirements::of(&prepared.program, live.control.is_some());
    (options.room, options.metadata, options.rewrites) = (needs.room, needs.metadata, needs.rewrites());
    live.mempool.apply(&mut options, &prepared.program, prepared.device(), live.control.is_some())?;
    options.one_lane = super::one_lane(args, &prepared.program)?;
    warn_about_truncated_captures(&options);
    let mut run = dpdk::open(&options).map_err(failure)?;
    announce(&run, &options);
    let names: Vec<String> = run.info.iter().filter_map(|port| port.interface.clone()).collect();
    let links = || super::links(names.iter().map(String::as_str));
    let lanes = std::mem::take(&mut run.lanes);
    let ended = drive::drive(args, prepared, lanes, Admin::No, links, || run.stop())?;
    let written = run.written();
    let reported = ended.report(args, Some(balance(run.close())));
    reported.and(check(&written))
}

/// Warns about captures that will not be read to their ends.
pub fn warn_about_truncated_captures(options: &Options) {
    dpdk::find_damaged_captures(options).iter().for_each(|capture| out::warn(&capture.to_string()));
}

/// Maps an error of opening ports to an exit code and message.
pub fn failure(error: DpdkError) -> Failure {
    match error {
        DpdkError::Argument { .. } => usage("--eal", &error),
        DpdkError::SameFile { .. } => Failure::Usage(error.to_string()),
        error => Failure::Error(error.to_string()),
    }
}

/// Checks that output captures contain all packets that were sent to them.
fn check(written: &[WrittenCaptures]) -> Result<(), Failure> {
    let wrong: Vec<DpdkError> = written.iter().filter_map(|written| written.check().err()).collect();
    wrong.iter().for_each(|error| out::error(&error.to_string()));
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Silent(FAILED)) }
}

/// Parses the ports of an option, which must differ.
pub fn ports(option: &str, texts: &[String]) -> Result<Vec<PortSpec>, Failure> {
    let ports = texts.iter().map(|text| text.parse().map_err(|error| usage(option, &error)));
    let ports: Vec<PortSpec> = ports.collect::<Result<_, _>>()?;
    for (index, port) in ports.iter().enumerate() {
        if ports[..index].iter().any(|before| before.to_string() == port.to_string()) {
            return Err(usage(&format!("{option} {port}"), &"the port is given twice"));
        }
    }
    Ok(ports)
}

/// Parses the ports that packets are redirected to.
pub fn redirects(given: &[(u32, String)]) -> Result<Vec<(u32, PortSpec)>, Failure> {
    let port = |text: &str| text.parse::<PortSpec>().map_err(|error| usage("--redirect", &error));
    let redirects: Vec<_> =
        given.iter().map(|(target, text)| Ok((*target, port(text)?))).collect::<Result<_, Failure>>()?;
    for (index, (target, port)) in redirects.iter().enumerate() {
        if redirects[..index].iter().any(|(before, _)| before == target) {
            return Err(usage(&format!("--redirect {target}={port}"), &format!("target {target} is given twice")));
        }
    }
    Ok(redirects)
}

/// Splits the argument of `--eal` into words as a shell does.
pub fn eal(text: Option<&str>) -> Result<Vec<String>, Failure> {
    let split = text.map(|text| shlex::split(text).ok_or_else(|| usage("--eal", &"a quotation mark is not closed")));
    split.transpose().map(Option::unwrap_or_default)
}

/// Whether a port is a capture file.
pub fn is_capture(port: &PortSpec) -> bool {
    port.driver() == Some("net_pcap")
}

/// Default of `--idle-exit`: a limit only if all ports are captures.
pub fn default_idle_exit(ports: &[PortSpec]) -> Option<Duration> {
    ports.iter().all(is_capture).then_some(CAPTURE_IDLE_EXIT)
}

/// Prints how the ports were set up.
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
    if let Some(gpu) = &run.gpu {
        let name = gpu.title();
        let place = match (&options.mempool, options.split) {
            (Mempool::Gpu(_), None) => "packets are in its memory".to_owned(),
            (Mempool::Gpu(_), Some(bytes)) => format!("packets' bytes from {bytes} on are in its memory"),
            _ => "it reads packets in host memory".to_owned(),
        };
        out::note(&format!("GPU {name}, number {} of DPDK: {place}", gpu.number));
    }
    let copied =
        run.info.iter().filter(|port| port.splitting == Some(HeaderSplit::Software)).map(|port| port.driver.as_str());
    let copied: BTreeSet<&str> = copied.collect();
    if !copied.is_empty() {
        let drivers = Vec::from_iter(copied).join(", ");
        out::note(&format!("{drivers}: cannot split packets in hardware, so they are split by copying"));
    }
    match &options.pass_to {
        None => out::note("packets that pass are counted and dropped; --pass-to would send them on"),
        Some(PassTarget::Port(port)) => out::note(&format!("packets that pass go out of {port}")),
        Some(PassTarget::Tap(interface) | PassTarget::VirtioUser(interface)) => out::note(&format!(
            "packets that pass go into the kernel at {interface}, and what it sends there goes out of {}",
            run.info[0].name
        )),
    }
}

/// Converts the mbuf counts for the report.
pub fn balance(MbufCounts { total, free, kept_by_driver }: MbufCounts) -> Balance {
    let missing = total as isize - (free + kept_by_driver) as isize;
    Balance { all: total, free, receiving: kept_by_driver, missing, ..Balance::default() }
}

fn usage(option: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {error}"))
}
