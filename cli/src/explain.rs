//! `run --explain` and `check --explain`: how packets reach a device, and why.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::time::Duration;

use portcullis::device::chunk::AccessNeeds;
use portcullis::device::transfer_planner::{self, BatchMemory, MemoryReach, PlanReason, TransferPlan};
use portcullis::device::{Clock, Session, Stages, Transfer, TransferCosts};
use portcullis::packet::{Arena, BatchCutter, Descriptor, RESIZE_ROOM, ResizeRoom};
use portcullis::program::Program;

use super::out;

/// The explanation of one decision: a title and its lines.
#[derive(Debug)]
pub struct Section {
    title: &'static str,
    lines: Vec<String>,
}

/// Formats sections as text that ends in a newline.
pub fn text(sections: &[Section]) -> String {
    let mut text = String::new();
    for Section { title, lines } in sections {
        writeln!(text, "{title}:").expect("writing to a String cannot fail");
        lines.iter().for_each(|line| writeln!(text, "  {line}").expect("writing to a String cannot fail"));
    }
    text
}

/// Example batches: distance between packet starts, and packet length, in bytes.
const BATCHES: [(u32, u32); 4] = [(64, 60), (512, 508), (1500, 1500), (2112, 1500)];

/// Explains how packets of this filter would be transferred to a GPU on this machine.
pub fn transfer_of_filter(program: &Program) -> Section {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let (needs, costs) = (AccessNeeds::of_program(program), portcullis_cache::costs::host_costs(threads));
    let mut lines = vec![format!("this machine: {costs}")];
    for (reach, what) in [
        (MemoryReach::Bus, "by a GPU that reads the host's memory"),
        (MemoryReach::Unreachable, "by a GPU that the host copies for"),
    ] {
        for (stride, length) in BATCHES {
            let plan_text =
                plan(needs, reach, stride, length, costs).map_or_else(|| "no memory to try".into(), |p| p.to_string());
            lines.push(format!("{length} bytes every {stride}, {what}: {plan_text}"));
        }
    }
    Section { title: "transfer", lines }
}

fn plan(
    needs: AccessNeeds,
    reach: MemoryReach,
    stride: u32,
    length: u32,
    costs: TransferCosts,
) -> Option<TransferPlan> {
    if needs.window == 0 {
        return Some(TransferPlan::without_access(needs));
    }
    const PACKETS: u32 = 64;
    // Filters that change lengths need headroom and tailroom around each packet.
    let (stride, first) = if needs.room { (stride + 2 * RESIZE_ROOM, RESIZE_ROOM) } else { (stride, 0) };
    let descriptors = (0..PACKETS).map(|i| Descriptor { offset: first + i * stride, length }).collect();
    let arena = Arena::new((PACKETS * stride + 2 * first) as usize).ok()?;
    let room = if needs.room { ResizeRoom::Both } else { ResizeRoom::None };
    let batch = BatchCutter::new(arena, None).cut_batch(descriptors, vec![], room).ok()?;
    let site = BatchMemory::<()> { reach, word_aligned_only: true, ..BatchMemory::unreachable() };
    transfer_planner::plan_transfer(&batch, needs, &site, Transfer::Auto, || costs).ok()
}

/// Explains how packets were transferred to a session's device.
pub fn transfer_of_run(session: &dyn Session) -> Section {
    let mut lines = Vec::new();
    match session.transfer_plan() {
        Some(plan) => {
            if let PlanReason::Cheaper(estimate) = plan.reason {
                lines.push(format!("this machine: {}", estimate.costs));
            }
            lines.push(format!("the last batch: {plan}"));
        }
        None => lines.push("no choice: the device filters packets in place".into()),
    }
    if let Some(stages) = session.stages().filter(|stages| stages.batches > 0) {
        lines.extend(stages_of(&stages));
    }
    Section { title: "transfer", lines }
}

fn stages_of(stages: &Stages) -> [String; 3] {
    let taken = stages.transfers;
    let counts = [
        (taken.unseen, "unseen"),
        (taken.resident, "resident"),
        (taken.imported, "imported"),
        (taken.whole, "whole"),
        (taken.window, "window"),
    ];
    let list = |parts: Vec<String>| parts.join(", ");
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let times = [
        ("gather", stages.gather),
        ("upload", stages.upload),
        ("kernel", stages.kernel),
        ("download", stages.download),
        ("verdicts", stages.verdicts),
    ];
    let each = |time: Duration| time.as_nanos() as f64 / (stages.packets as f64).max(1.0);
    let clock = match stages.clock {
        Clock::Device => "the device's clock",
        Clock::Host => "the host's clock",
    };
    let number = |count: u64| out::grouped(count);
    let each_of = |(name, time): (&str, Duration)| format!("{name} {:.2}", each(time));
    [
        format!("batches: {}", list(counts.map(|(count, name)| format!("{} {name}", number(count))).collect())),
        format!(
            "copied: {} bytes to the device, {} back",
            number(stages.bytes_to_device),
            number(stages.bytes_to_host)
        ),
        format!("ns a packet: {} (kernel by {clock})", list(times.into_iter().map(each_of).collect())),
    ]
}

/// Prints sections to standard error.
pub fn note(sections: &[Section]) {
    out::note(text(sections).trim_end());
}
