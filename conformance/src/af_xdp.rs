//! Self-test of a network card through AF_XDP, without a peer. It reports the XDP modes and copy
//! modes that the driver offers, the receive rate, and whether every queue gets a socket, every
//! transmitted frame completes, no frame is lost and the interface is restored.

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Completion, StageTimes};
use portcullis_core::packet::{Action, Verdicts};
use portcullis_io::af_xdp::StackDevice;
use portcullis_io::af_xdp::xdp::{Mode, program_at};
use portcullis_io::af_xdp::{self, AfXdp, BpfError, CopyMode, PortSpec, Steering, XdpError};
use portcullis_io::live::link::Interface;
use portcullis_io::live::{Lane, LiveError};
use serde::Serialize;

/// EtherType of test frames: one for local experiments (IEEE 802), to which no kernel or router
/// replies.
pub const EXPERIMENTAL_ETHERTYPE: u16 = 0x88b5;

/// Number of test frames transmitted per queue.
pub const FRAMES_PER_QUEUE: usize = 64;

/// Packets per batch.
const BATCH: usize = 64;

/// Maximum time for an interface to regain its link: drivers set queues up again for a program and
/// for sockets.
const LINK_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum time for frames to be transmitted.
const TRANSMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait for the last packets after the program is detached.
const RECEIVE_GRACE: Duration = Duration::from_millis(50);

/// Options of the self-test.
#[derive(Debug, Clone)]
pub struct Options {
    /// The interface and its queues.
    pub port: PortSpec,
    /// Packets to receive; all of them are passed to the kernel's stack. If `None`, only frames of
    /// [`EXPERIMENTAL_ETHERTYPE`] are received, and dropped.
    pub take: Option<Steering>,
    /// How long to receive in each mode.
    pub time: Duration,
    /// Whether to transmit frames of [`EXPERIMENTAL_ETHERTYPE`], [`FRAMES_PER_QUEUE`] per queue,
    /// from the interface's MAC address to itself.
    pub send: bool,
}

/// Results of the self-test of a network card.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// Name of the interface.
    pub interface: String,
    /// Name of its driver, if known.
    pub driver: Option<String>,
    /// Maximum length of a packet in bytes, without its Ethernet header.
    pub mtu: u32,
    /// Whether the interface had a link.
    pub has_link: bool,
    /// Whether the driver removes VLAN tags before XDP sees the packets.
    pub loses_vlan_tags: bool,
    /// Description of the packets that were received.
    pub taken: String,
    /// Results by mode.
    #[serde(rename = "ways")]
    pub modes: Vec<ModeReport>,
    /// Difference from the state before the test; `None` if there is none.
    pub changed: Option<String>,
}

/// Result of one combination of XDP mode and copy mode.
#[derive(Debug, Clone, Serialize)]
pub struct ModeReport {
    /// XDP mode: `native` or `skb`.
    pub mode: &'static str,
    /// Whether the driver writes frames into the UMEM itself.
    pub zero_copy: bool,
    /// Result of the mode.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Result of testing one mode.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The mode works.
    #[serde(rename = "ran")]
    Completed(ModeCounters),
    /// The driver or the kernel does not support the mode.
    NotOffered {
        /// Message of the driver or the kernel.
        reason: String,
    },
    /// The mode should work but failed.
    Failed {
        /// Description of the failure.
        reason: String,
    },
}

/// Counters of a mode's run.
#[derive(Debug, Clone, Serialize)]
pub struct ModeCounters {
    /// Queues, each of which had a socket.
    pub queues: Vec<u32>,
    /// Time spent receiving, in seconds.
    pub seconds: f64,
    /// Packets that arrived at the interface according to its driver, whoever received them.
    pub arrived: u64,
    /// Packets received by the self-test.
    pub received: u64,
    /// Bytes in these packets.
    pub bytes: u64,
    /// Receive rate in millions of packets per second.
    pub mpps: f64,
    /// Packets that the kernel dropped because a ring was full.
    pub dropped_by_kernel: u64,
    /// Packets passed to the kernel's stack.
    pub passed: u64,
    /// Frames submitted for transmission.
    pub sent: u64,
    /// Frames whose transmission did not complete.
    pub not_completed: u64,
    /// Frames of the UMEM.
    pub frames: u64,
    /// Frames that are in no pool or ring at the end.
    pub frames_missing: i64,
}

impl ModeCounters {
    /// Whether all frames are accounted for and every transmission completed.
    pub fn is_good(&self) -> bool {
        self.frames_missing == 0 && self.not_completed == 0
    }
}

impl Report {
    /// Returns whether the interface passed: at least one mode is offered, every mode offered
    /// works, and the interface is restored.
    pub fn passed(&self) -> bool {
        let is_good = |mode: &ModeReport| match &mode.outcome {
            Outcome::Completed(numbers) => numbers.is_good(),
            Outcome::NotOffered { .. } => true,
            Outcome::Failed { .. } => false,
        };
        let ran = |mode: &ModeReport| matches!(mode.outcome, Outcome::Completed(_));
        self.modes.iter().all(is_good) && self.modes.iter().any(ran) && self.changed.is_none()
    }
}

/// Tests an interface of this thread's network namespace, and calls `observe` with each mode before
/// testing it. Cancelling `stop` ends the test soon; the modes not tested are then missing from the
/// report.
///
/// # Errors
/// If no mode can be tested: the interface or its queues do not exist, another process uses them,
/// or a capability is missing.
pub fn run(options: &Options, stop: &CancelToken, observe: &mut dyn FnMut(&str)) -> Result<Report, XdpError> {
    let before = Interface::find(&options.port.interface)?;
    let program_before = program_at(before.index);
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        interface: before.name.clone(),
        driver: before.driver.clone(),
        mtu: before.mtu,
        has_link: before.has_link,
        loses_vlan_tags: before.loses_vlan_tags(),
        taken: options.take.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
        modes: Vec::new(),
        changed: None,
    };
    for (mode, copying) in
        [(Mode::Native, CopyMode::ZeroCopy), (Mode::Native, CopyMode::Copy), (Mode::Skb, CopyMode::Copy)]
    {
        if stop.is_cancelled() {
            break;
        }
        let zero_copy = copying == CopyMode::ZeroCopy;
        observe(&format!("{} mode, {}", mode.name(), if zero_copy { "zero copy" } else { "copied" }));
        let outcome = match test_mode(options, &before, mode, copying, stop) {
            Ok(numbers) => Outcome::Completed(numbers),
            Err(ModeError::Open(error)) if affects_every_mode(&error) => return Err(error),
            Err(ModeError::Open(error)) => classify_refusal(&error),
            Err(error) => Outcome::Failed { reason: error.to_string() },
        };
        report.modes.push(ModeReport { mode: mode.name(), zero_copy, outcome });
        // The driver may have reset the interface; every mode starts from the same state.
        wait_for_link(&before, stop);
    }
    report.changed = describe_change(&before, program_before);
    Ok(report)
}

/// Why a mode's test failed.
#[derive(Debug, thiserror::Error)]
enum ModeError {
    #[error(transparent)]
    Open(#[from] XdpError),
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error("its thread died (a fault of this program; please report it)")]
    Panicked,
}

/// Classifies the error of opening a port in a mode.
fn classify_refusal(error: &XdpError) -> Outcome {
    match error {
        // Reported without the error's own advice, which concerns ordinary runs.
        XdpError::NoZeroCopy { .. } => Outcome::NotOffered { reason: "the driver has no zero-copy mode".into() },
        XdpError::Program(BpfError::NotNative { .. }) => Outcome::NotOffered { reason: error.to_string() },
        _ => Outcome::Failed { reason: error.to_string() },
    }
}

/// Whether the error would occur in every mode.
fn affects_every_mode(error: &XdpError) -> bool {
    let program = |error: &BpfError| matches!(error, BpfError::NotPermitted { .. } | BpfError::Occupied { .. });
    match error {
        XdpError::Program(error) => program(error),
        // Another process still uses the queue after several attempts.
        XdpError::Socket { error, .. } => matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::PermissionDenied),
        XdpError::NoQueue { .. } | XdpError::Link(_) => true,
        _ => false,
    }
}

fn test_mode(
    options: &Options,
    before: &Interface,
    mode: Mode,
    copying: CopyMode,
    stop: &CancelToken,
) -> Result<ModeCounters, ModeError> {
    let rules = format!("ethertype/{EXPERIMENTAL_ETHERTYPE:#06x}");
    let experimental_only = || Steering::Only(rules.parse().expect("a rule"));
    let opened = af_xdp::Options::new(vec![options.port.clone()])
        .with_stack(options.take.as_ref().map(|_| StackDevice::Auto))
        .with_steer(options.take.clone().unwrap_or_else(experimental_only))
        .with_mode(mode)
        .with_copying(copying);
    let mut run = af_xdp::open(&opened)?;
    wait_for_link(before, stop);
    let arrived = || read_arrived_packets(&before.name).unwrap_or(0);
    let (begun, arrived_before) = (Instant::now(), arrived());
    let sent = match (options.send, before.mac) {
        (true, Some(mac)) => run.send(&frame(mac), FRAMES_PER_QUEUE),
        _ => 0,
    };
    let verdict = if options.take.is_some() { Action::Pass } else { Action::Drop };
    let end = CancelToken::new();
    let mut lanes = std::mem::take(&mut run.lanes);
    let mut seconds = 0.0;
    let driven = thread::scope(|scope| {
        let end = &end;
        let threads: Vec<_> = lanes.iter_mut().map(|lane| scope.spawn(move || drive(lane, verdict, end))).collect();
        while begun.elapsed() < options.time && !stop.is_cancelled() && threads.iter().all(|it| !it.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        seconds = begun.elapsed().as_secs_f64();
        run.detach();
        end.cancel();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| ModeError::Panicked)?.map_err(ModeError::from))
    });
    let arrived = arrived().saturating_sub(arrived_before);
    let received: Vec<_> = lanes.iter_mut().map(|lane| lane.receiver.received()).collect();
    let passed = lanes.iter().map(|lane| lane.executor.executed().of(Action::Pass)).sum();
    driven?;
    drop(lanes);
    Ok(collect_counters(&run, (seconds, arrived, sent, passed), &received))
}

fn collect_counters(
    run: &AfXdp,
    (seconds, arrived, sent, passed): (f64, u64, u64, u64),
    received: &[portcullis_io::live::ReceivedCounts],
) -> ModeCounters {
    let sum = |of: fn(&portcullis_io::live::ReceivedCounts) -> u64| received.iter().map(of).sum::<u64>();
    let frames = run.frame_audit.frames();
    let packets = sum(|it| it.packets);
    ModeCounters {
        queues: run.ports.iter().flat_map(|port| port.queues.iter().copied()).collect(),
        seconds,
        arrived,
        received: packets,
        bytes: sum(|it| it.bytes),
        mpps: if seconds > 0.0 { packets as f64 / seconds / 1e6 } else { 0.0 },
        dropped_by_kernel: sum(|it| it.dropped_by_kernel),
        passed,
        sent,
        not_completed: frames.tx as u64,
        frames: frames.total as u64,
        frames_missing: frames.in_batches() as i64,
    }
}

/// Gives all packets the verdict `verdict`. Ends after `end` is cancelled, once no packets arrive
/// and all transmissions have completed, or their time has run out.
fn drive(lane: &mut Lane, verdict: Action, end: &CancelToken) -> Result<(), LiveError> {
    let mut ending: Option<Instant> = None;
    loop {
        let packets = lane.receiver.receive(BATCH)?;
        if let Some(batch) = lane.receiver.take_batch() {
            let verdicts = Verdicts::new(vec![verdict as u8; batch.len()], Vec::new());
            lane.executor.execute(Completion { batch, verdicts, times: StageTimes::default() })?;
        }
        lane.executor.poll()?;
        if end.is_cancelled() {
            let since = ending.get_or_insert_with(Instant::now).elapsed();
            let is_drained = !lane.executor.is_busy() || since > TRANSMIT_TIMEOUT;
            if packets == 0 && since > RECEIVE_GRACE && is_drained || since > 2 * TRANSMIT_TIMEOUT {
                return Ok(());
            }
        }
        if packets == 0 {
            lane.receiver.wait(Duration::from_millis(1))?;
        }
    }
}

/// Returns a frame from the interface to itself, which a switch does not forward, since it arrives
/// at the port of its destination.
fn frame(mac: [u8; 6]) -> Vec<u8> {
    let mut frame = [&mac[..], &mac, &EXPERIMENTAL_ETHERTYPE.to_be_bytes(), b"portcullis selftest"].concat();
    // Minimum length of an Ethernet frame, without its checksum.
    frame.resize(60, 0);
    frame
}

/// Waits until an interface that had a link has it again.
fn wait_for_link(before: &Interface, stop: &CancelToken) {
    let begun = Instant::now();
    let is_there = || Interface::find(&before.name).map_or(true, |now| now.has_link);
    while before.has_link && !is_there() && begun.elapsed() < LINK_TIMEOUT && !stop.is_cancelled() {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of packets that have arrived at an interface: its second column in `dev`
/// (proc_net(5)).
fn read_arrived_packets(interface: &str) -> Option<u64> {
    // The file of this thread's network namespace.
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    let mut numbers =
        table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?.split_whitespace();
    numbers.nth(1)?.parse().ok()
}

/// Returns how an interface differs from its state before the test.
fn describe_change(before: &Interface, program_before: Option<u32>) -> Option<String> {
    let now = match Interface::find(&before.name) {
        Ok(now) => now,
        Err(error) => return Some(error.to_string()),
    };
    let program = match program_at(before.index) {
        now if now == program_before => None,
        Some(number) => Some(format!("it has the XDP program {number}")),
        None => Some("the XDP program that it had is gone".into()),
    };
    let differs = (now != *before).then(|| format!("it was {before:?}, and is {now:?}"));
    program.or(differs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: Vec<Outcome>) -> Report {
        Report {
            version: "1",
            interface: "eth0".into(),
            driver: None,
            mtu: 1500,
            has_link: true,
            loses_vlan_tags: false,
            taken: "none".into(),
            modes: outcomes
                .into_iter()
                .map(|outcome| ModeReport { mode: "native", zero_copy: true, outcome })
                .collect(),
            changed: None,
        }
    }

    fn ran(not_completed: u64, frames_missing: i64) -> Outcome {
        Outcome::Completed(ModeCounters {
            queues: vec![0],
            seconds: 1.0,
            arrived: 0,
            received: 0,
            bytes: 0,
            mpps: 0.0,
            dropped_by_kernel: 0,
            passed: 0,
            sent: 64,
            not_completed,
            frames: 8192,
            frames_missing,
        })
    }

    #[test]
    fn missing_frames_fail_the_test_and_modes_not_offered_do_not() {
        let refused = Outcome::NotOffered { reason: "no".into() };
        let failed = Outcome::Failed { reason: "no".into() };
        assert!(report(vec![refused.clone(), ran(0, 0)]).passed());
        assert!(!report(vec![refused.clone()]).passed(), "nothing ran");
        assert!(!report(vec![failed, ran(0, 0)]).passed());
        assert!(!report(vec![ran(0, 0), ran(1, 0)]).passed());
        assert!(!report(vec![ran(0, -1)]).passed());
        let changed = Report { changed: Some("MTU".into()), ..report(vec![ran(0, 0)]) };
        assert!(!changed.passed());
        let json = serde_json::to_value(report(vec![refused])).unwrap();
        assert_eq!(json["ways"][0]["outcome"], "not_offered");
    }

    #[test]
    fn packets_that_arrived_at_the_loopback_interface_are_counted() {
        assert!(read_arrived_packets("lo").is_some() && read_arrived_packets("l").is_none());
    }
}
