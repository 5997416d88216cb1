//! `portcullis selftest --af-xdp`: tests the AF_XDP modes of a network interface.

use portcullis::packet_io::af_xdp::Steering;
use portcullis_conformance::af_xdp::{
    self, EXPERIMENTAL_ETHERTYPE, FRAMES_PER_QUEUE, ModeCounters, Options, Outcome, Report,
};

use super::Args;
use crate::failure::{FAILED, Failure, INTERRUPTED};
use crate::out;
use crate::run::interrupt::Interrupt;

/// Tests an interface and delivers the report.
pub fn run(args: &Args, interface: &str) -> Result<(), Failure> {
    let usage = |option: &str, error: &dyn std::fmt::Display| Failure::Usage(format!("{option}: {error}"));
    let link = &args.link;
    let options = Options {
        port: interface.parse().map_err(|error| usage("--af-xdp", &error))?,
        take: match &link.only {
            Some(rules) => Some(Steering::Only(rules.parse().map_err(|error| usage("--only", &error))?)),
            None => link.all.then_some(Steering::All),
        },
        time: link.duration,
        send: link.send,
    };
    let interrupt = Interrupt::default();
    interrupt.listen_always();
    interrupt.begin();
    let name = &options.port.interface;
    if let Some(steer) = &options.take {
        let ssh = std::env::var_os("SSH_CONNECTION").map_or("", |_| " You are logged in over a network.");
        out::warn(&format!(
            "{name}: these packets are received and returned to the kernel's stack: {steer}. If that fails, \
             connections over this interface hang until the test ends.{ssh} Ctrl-C ends it"
        ));
    }
    out::note(&format!("{name}: the driver may reset the interface for each mode, and lose the link for some seconds"));
    let mut observe = |mode: &str| out::note(&format!("{name}: testing {mode}"));
    let report = af_xdp::run(&options, &interrupt.stop, &mut observe).map_err(|e| Failure::Error(e.to_string()))?;
    let json = serde_json::to_string_pretty(&report).expect("a report serialises") + "\n";
    let is_whole = !interrupt.stop.is_cancelled();
    out::write_report(args.json.as_deref(), json, text(&report, &options, is_whole))?;
    match (is_whole, report.passed()) {
        (false, _) => Err(Failure::Silent(INTERRUPTED)),
        (true, true) => Ok(()),
        (true, false) => Err(Failure::Silent(FAILED)),
    }
}

fn text(report: &Report, options: &Options, is_whole: bool) -> String {
    let Report { interface, mtu, .. } = report;
    let driver = report.driver.as_deref().unwrap_or("unknown driver");
    let link = if report.has_link { "link up" } else { "link down" };
    let mut text = format!("{interface}: {}, MTU {mtu}, {link}\n", out::printable(driver));
    let head = ["mode", "frames", "queues", "arrived", "received", "rate", "dropped", "passed", "sent", "missing"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut remarks = Vec::new();
    for mode_report in &report.modes {
        let frames = if mode_report.zero_copy { "zero copy" } else { "copied" };
        let mut row = vec![mode_report.mode.to_owned(), frames.to_owned()];
        match &mode_report.outcome {
            Outcome::Completed(numbers) => row.extend(cells(numbers)),
            Outcome::NotOffered { reason } => {
                row.push("unsupported".into());
                remarks.push(format!("{} mode, {frames}: {reason}", mode_report.mode));
            }
            Outcome::Failed { reason } => {
                row.push("failed".into());
                remarks.push(format!("{} mode, {frames}: {reason}", mode_report.mode));
            }
        }
        row.resize(head.len(), String::new());
        rows.push(row);
    }
    text += &out::table(rows, &[3, 4, 5, 6, 7, 8, 9]);
    for remark in remarks {
        text += &format!("{}\n", out::printable(&remark));
    }
    text += &match &options.take {
        None => format!(
            "received: only frames of EtherType {EXPERIMENTAL_ETHERTYPE:#06x}; --only RULES or --all receives others, \
             and returns them to the kernel's stack\n"
        ),
        Some(steer) => format!("received, and returned to the kernel's stack: {steer}\n"),
    };
    let ran = |mode: &af_xdp::ModeReport| matches!(&mode.outcome, Outcome::Completed(numbers) if numbers.sent > 0);
    text += &match options.send {
        true if !report.modes.iter().any(ran) => "sent: nothing, as no mode worked\n".to_owned(),
        false => "sent: nothing; --send sends some frames from each queue to the interface itself\n".to_owned(),
        true => format!(
            "sent: {FRAMES_PER_QUEUE} frames out of each queue, of EtherType {EXPERIMENTAL_ETHERTYPE:#06x}, to the interface itself\n"
        ),
    };
    if report.loses_vlan_tags {
        text += &format!(
            "rx-vlan-offload is on: VLAN tags are removed before XDP sees the packets; `ethtool -K {interface} rxvlan off` \
             keeps them\n"
        );
    }
    text += &match &report.changed {
        None => format!("{interface} is unchanged\n"),
        Some(what) => format!("{interface} has changed: {}\n", out::printable(what)),
    };
    text + match (is_whole, report.passed()) {
        (false, _) => "selftest interrupted\n",
        (true, true) => "selftest passed\n",
        (true, false) => "selftest failed\n",
    }
}

/// Formats the cells of a row, from the queues on.
fn cells(numbers: &ModeCounters) -> [String; 8] {
    let ModeCounters { queues, arrived, received, mpps, dropped_by_kernel, passed, sent, .. } = numbers;
    let queues: Vec<String> = queues.iter().map(u32::to_string).collect();
    let grouped = |number: &u64| out::grouped(*number);
    let sent = match numbers.not_completed {
        0 => grouped(sent),
        stuck => format!("{} ({stuck} stuck)", grouped(sent)),
    };
    let [arrived, received, dropped, passed] = [arrived, received, dropped_by_kernel, passed].map(grouped);
    let missing = format!("{} of {}", numbers.frames_missing, out::grouped(numbers.frames));
    [queues.join(","), arrived, received, out::rate_cell(mpps * 1e6, "pps"), dropped, passed, sent, missing]
}
