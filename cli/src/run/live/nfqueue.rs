//! `run --nfqueue`: live packets from netfilter queues.

use portcullis::packet_io::live::Lane;
use portcullis::packet_io::nfqueue::{self, QueueOptions};

use super::CaptureRequirements;
use super::drive::{self, Prepared};
use super::privileges::Admin;
use crate::failure::Failure;
use crate::out;
use crate::run::{Args, BatchSize};

/// Runs the filter on the packets that the kernel asks a verdict for.
pub fn run(args: &Args) -> Result<(), Failure> {
    let queues = &args.live.nfqueue;
    for (index, queue) in queues.iter().enumerate() {
        if queues[..index].contains(queue) {
            return Err(Failure::Usage(format!("--nfqueue {queue}: the queue is given twice")));
        }
    }
    let prepared = Prepared::new(args)?;
    super::refuse_copies("--nfqueue", &prepared.program)?;
    let _run = prepared.span.clone().entered();
    let CaptureRequirements { room, metadata, writes } =
        CaptureRequirements::of(&prepared.program, args.live.control.is_some());
    if queues.len() > 1 && !prepared.program.maps().is_empty() {
        let what = "a filter with maps takes one queue, in which all packets share its maps; have one rule send all packets to it";
        return Err(Failure::Usage(format!("--nfqueue: {what}")));
    }
    let mut lanes = Vec::new();
    for (port, queue) in (0..).zip(queues) {
        let mut options = QueueOptions::default()
            .with_queue(*queue)
            .with_room(room)
            .with_writes(writes)
            .with_fail_open(args.live.fail_open)
            .with_port(port)
            .with_metadata(metadata);
        if let Some(BatchSize::Packets(batch)) = args.batch {
            options.batch = batch as usize;
        }
        let (receiver, executor) = nfqueue::open(&options).map_err(|error| Failure::Error(error.to_string()))?;
        out::note(&format!("queue {queue}: taking packets"));
        lanes.push(Lane {
            name: format!("queue {queue}"),
            memory: None,
            receiver: Box::new(receiver),
            executor: Box::new(executor),
        });
    }
    // Packets that still arrive at the end get the fallback verdict.
    drive::drive(args, prepared, lanes, Admin::Always, || (), || ())?.report(args, None)
}
