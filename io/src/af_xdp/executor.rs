//! Applies verdicts to the packets of an AF_XDP lane: drops them, transmits them on a port, or
//! injects them into the kernel's stack.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_core::device::Completion;
use portcullis_core::packet::{Action, BatchParts, Verdict};

use super::frame_pool::{BatchBuffers, BatchFrames, FramePool};
use super::stack::{InjectionPoint, StackInjector};
use super::tx::{Tx, TxBatch};
use super::umem::{Frame, HEADROOM, PacketMemory, Umem};
use crate::RedirectGroups;
use crate::live::{ExecutedCounts, Executor, LiveError, Loss, checksum};

/// A transmitting half, shared by lanes.
pub(crate) type SharedTx = Arc<Mutex<Tx>>;

/// How passed packets get into the kernel's stack.
#[derive(Debug, Clone)]
pub(crate) enum StackOutput {
    /// They are dropped.
    Disabled,
    /// Transmitted into a veth pair.
    Port(SharedTx),
    /// Written to a TAP interface.
    Tap(Arc<StackInjector>),
}

/// Outputs of a lane.
#[derive(Debug, Default)]
pub(crate) struct LaneOutputs {
    /// Ingress port, which TX sends to, for each of the lane's queues.
    pub tx_by_queue: Vec<SharedTx>,
    /// Port of each redirect target.
    pub redirect: Vec<(u32, SharedTx)>,
    /// Path of passed packets into the kernel's stack, for each of the lane's queues.
    pub stack: Vec<StackOutput>,
}

/// Destination of a packet.
#[derive(Debug, Clone, Copy)]
enum Destination {
    /// Dropped.
    Dropped,
    /// The output with this index.
    Output(usize),
    /// The TAP interface with this index.
    Tap(usize),
}

/// An output port with the packets queued for it.
#[derive(Debug)]
struct Output {
    port: SharedTx,
    action: Action,
    max_length: usize,
    multi_buffer: bool,
    out: TxBatch,
}

/// Executes the verdicts on a lane's packets.
#[derive(Debug)]
pub(crate) struct XdpExecutor {
    umem: Arc<Umem>,
    pool: Arc<FramePool>,
    lane: usize,
    /// Whether partial checksums are completed here because the receiver has not done so.
    completes_checksums: bool,
    outputs: Vec<Output>,
    /// Index of the TX output for each of the lane's queues.
    tx_by_queue: Vec<usize>,
    stack: Vec<Destination>,
    taps: Vec<Arc<StackInjector>>,
    redirect: Vec<(u32, usize)>,
    /// Memory to release with the batch.
    to_release: Vec<PacketMemory>,
    copy_frames: Vec<Frame>,
    /// Redirect targets that stand for groups of ports.
    redirect_groups: Option<Arc<RedirectGroups>>,
    /// Outputs of a packet that goes to a group; kept for its capacity.
    group_outputs: Vec<usize>,
    counts: ExecutedCounts,
}

impl XdpExecutor {
    pub fn new(
        umem: Arc<Umem>,
        pool: Arc<FramePool>,
        lane: usize,
        completes_checksums: bool,
        lane_outputs: LaneOutputs,
    ) -> XdpExecutor {
        let mut outputs: Vec<Output> = Vec::new();
        let mut add_output = |port: SharedTx, action| {
            let (max_length, multi_buffer) = {
                let tx = lock(&port);
                (tx.max_length(), tx.supports_multi_buffer())
            };
            outputs.push(Output { port, action, max_length, multi_buffer, out: TxBatch::default() });
            outputs.len() - 1
        };
        let tx_by_queue = lane_outputs.tx_by_queue.into_iter().map(|port| add_output(port, Action::Tx)).collect();
        let mut taps = Vec::new();
        let stack = lane_outputs.stack.into_iter().map(|path| match path {
            StackOutput::Disabled => Destination::Dropped,
            StackOutput::Port(port) => Destination::Output(add_output(port, Action::Pass)),
            StackOutput::Tap(tap) => {
                taps.push(tap);
                Destination::Tap(taps.len() - 1)
            }
        });
        let stack = stack.collect();
        let redirect = lane_outputs
            .redirect
            .into_iter()
            .map(|(target, port)| (target, add_output(port, Action::Redirect)))
            .collect();
        XdpExecutor {
            umem,
            pool,
            lane,
            completes_checksums,
            outputs,
            tx_by_queue,
            stack,
            taps,
            redirect,
            to_release: Vec::new(),
            copy_frames: Vec::new(),
            redirect_groups: None,
            group_outputs: Vec::new(),
            counts: ExecutedCounts::default(),
        }
    }

    /// Returns a packet's destination, or why it cannot be delivered.
    fn destination(&self, verdict: Verdict, queue: usize) -> Result<Destination, Loss> {
        match verdict {
            Verdict::Aborted => Err(Loss::Aborted),
            Verdict::Drop => Ok(Destination::Dropped),
            Verdict::Pass => match self.stack[queue] {
                Destination::Dropped => Err(Loss::NoStack),
                output => Ok(output),
            },
            Verdict::Tx => Ok(Destination::Output(self.tx_by_queue[queue])),
            Verdict::Redirect(target) => {
                let found = self.redirect.iter().find(|(number, _)| *number == target);
                found.map(|(_, output)| Destination::Output(*output)).ok_or(Loss::NoTarget)
            }
        }
    }

    /// Writes a packet to a TAP interface.
    fn write(&mut self, tap: usize, memory: PacketMemory, offset: usize, length: usize) {
        let bytes = self.umem.packet_bytes(&memory, offset, length);
        let written = match self.taps[tap].injection_point() {
            InjectionPoint::Tap(tap) => tap.write(bytes).is_ok(),
            InjectionPoint::Veth(_) => false,
        };
        match written {
            true => self.counts.add(Action::Pass, length),
            false => self.counts.losses.add(Loss::Refused, 1),
        }
        self.to_release.push(memory);
    }

    /// Queues a packet for an output; its memory goes with it or is released.
    fn queue_packet(&mut self, output: usize, memory: PacketMemory, offset: usize, length: usize) {
        let Output { max_length, out, .. } = &mut self.outputs[output];
        match memory {
            PacketMemory::Frame(frame) if length <= self.umem.room(&frame) && length <= *max_length => {
                self.umem.move_to_packet_offset(&frame, offset, length);
                out.push([self.umem.packet(frame, length)], length);
            }
            // The packet was reassembled, or has outgrown its frame.
            memory => {
                self.queue_copy(output, &memory, offset, length);
                self.to_release.push(memory);
            }
        }
    }

    /// Queues a copy of a packet for an output.
    fn queue_copy(&mut self, output: usize, memory: &PacketMemory, offset: usize, length: usize) {
        let Output { max_length, multi_buffer, out, .. } = &mut self.outputs[output];
        let room = self.umem.frame_size() - HEADROOM;
        let count = length.div_ceil(room).max(1);
        if length > *max_length || count > 1 && !*multi_buffer {
            self.counts.losses.add(Loss::TooLong, 1);
            return;
        }
        self.copy_frames.clear();
        self.pool.take_frames(self.lane, count, &mut self.copy_frames);
        if self.copy_frames.len() < count {
            self.counts.losses.add(Loss::NoRoom, 1);
            self.to_release.extend(self.copy_frames.drain(..).map(PacketMemory::Frame));
            return;
        }
        let bytes = self.umem.packet_bytes(memory, offset, length);
        let umem = &self.umem;
        let frames = self.copy_frames.drain(..).zip(bytes.chunks(room)).map(|(frame, part)| {
            let mut frame = umem.reset(frame);
            umem.bytes_mut(&mut frame)[..part.len()].copy_from_slice(part);
            umem.packet(frame, part.len())
        });
        out.push(frames, length);
    }

    /// Whether the packet's target is a group; if so, sets `self.group_outputs` to its outputs.
    fn resolve_group(&mut self, verdict: Verdict, ingress: u32) -> bool {
        let (Verdict::Redirect(target), Some(redirect_groups)) = (verdict, &self.redirect_groups) else { return false };
        let Some(ports) = redirect_groups.ports(target, ingress) else { return false };
        self.group_outputs.clear();
        for port in ports {
            match self.redirect.iter().find(|(number, _)| *number == port) {
                Some((_, output)) => self.group_outputs.push(*output),
                None => self.counts.losses.add(Loss::NoTarget, 1),
            }
        }
        true
    }

    /// Queues a packet for all outputs in `self.group_outputs`: copies, and for the last one the
    /// packet itself.
    fn queue_to_group(&mut self, memory: PacketMemory, offset: usize, length: usize) {
        let group_outputs = std::mem::take(&mut self.group_outputs);
        match group_outputs.split_last() {
            Some((last, others)) => {
                others.iter().for_each(|output| self.queue_copy(*output, &memory, offset, length));
                self.queue_packet(*last, memory, offset, length);
            }
            None => self.to_release.push(memory),
        }
        self.group_outputs = group_outputs;
    }

    /// Transmits the queued packets of every output.
    fn send(&mut self) {
        for Output { port, action, out, .. } in &mut self.outputs {
            if out.is_empty() {
                continue;
            }
            let sent = lock(port).send(out);
            self.counts.packets[*action as usize] += sent.packets;
            self.counts.bytes[*action as usize] += sent.bytes;
            self.counts.losses.add(Loss::NoRoom, sent.no_room);
            self.counts.losses.add(Loss::Down, sent.down);
        }
    }
}

impl Executor for XdpExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        let Completion { batch, verdicts, .. } = done;
        let parts = batch.into_parts::<BatchFrames>().expect("a batch of this executor's receiver");
        let BatchParts { source_data: frames, descriptors, metadata } = parts;
        let (mut memory, queues) = frames.into_parts();
        for (index, (mut memory, descriptor)) in memory.drain(..).zip(&descriptors).enumerate() {
            let queue = queues.get(index).map_or(0, |queue| usize::from(*queue));
            let (offset, length) = (descriptor.offset as usize, descriptor.length as usize);
            let ingress = metadata.get(index).map_or(u32::MAX, |metadata| metadata.port);
            let verdict = verdicts.get(index);
            let is_group = self.resolve_group(verdict, ingress);
            let output = if is_group { Ok(Destination::Dropped) } else { self.destination(verdict, queue) };
            if self.completes_checksums
                && (is_group || matches!(output, Ok(Destination::Output(_) | Destination::Tap(_))))
            {
                let bytes = self.umem.packet_bytes_mut(&mut memory, offset, length);
                self.counts.checksums += u64::from(checksum::complete(bytes));
            }
            match output {
                _ if is_group => self.queue_to_group(memory, offset, length),
                Ok(Destination::Output(output)) => self.queue_packet(output, memory, offset, length),
                Ok(Destination::Tap(tap)) => self.write(tap, memory, offset, length),
                Ok(Destination::Dropped) => {
                    self.counts.add(Action::Drop, length);
                    self.to_release.push(memory);
                }
                Err(loss) => {
                    self.counts.losses.add(loss, 1);
                    self.to_release.push(memory);
                }
            }
        }
        let buffers = BatchBuffers { descriptors, metadata, memory, queues, ..BatchBuffers::default() };
        self.pool.recycle_batch_buffers(self.lane, buffers);
        self.pool.release(self.to_release.drain(..));
        self.send();
        Ok(())
    }

    fn set_redirect_groups(&mut self, redirect_groups: &Arc<RedirectGroups>) {
        self.redirect_groups = Some(redirect_groups.clone());
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        for output in &self.outputs {
            lock(&output.port).poll();
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.outputs.iter().any(|output| lock(&output.port).is_busy())
    }

    fn executed(&self) -> &ExecutedCounts {
        &self.counts
    }
}

fn lock(port: &SharedTx) -> MutexGuard<'_, Tx> {
    // The rings stay consistent even if another user panicked.
    port.lock().unwrap_or_else(PoisonError::into_inner)
}
