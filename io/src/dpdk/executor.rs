//! The executor of a DPDK lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_core::device::Completion;
use portcullis_core::packet::{Action, BatchParts, Descriptor, MetadataAccumulator, ResizeRoom, Verdict, Verdicts};
use portcullis_dpdk_sys as sys;

use super::eal::register_this_thread;
use super::memory::{BatchBuffers, BatchMbufs, Mbufs, Memory};
use super::stack_forwarder::StackForwarder;
use super::tx_queue::{SharedTxQueue, lock};
use crate::live::{ExecutedCounts, Executor, LiveError, Loss, checksum};

/// How long a batch waits for room in the TX queue before its rest is dropped.
const TX_WAIT: Duration = Duration::from_millis(1);

/// Maximum burst size.
const BURST: usize = 512;

/// Outputs of a lane.
#[derive(Debug, Default)]
pub(super) struct LaneOutputs {
    /// Ingress port, which TX sends to, for each of the lane's queues.
    pub back: Vec<SharedTxQueue>,
    /// Port of each redirect target.
    pub redirect: Vec<(u32, SharedTxQueue)>,
    /// Destination of passed packets.
    pub stack: Option<SharedTxQueue>,
    /// Forwarder of packets received from the destination of passed packets.
    pub stack_forwarder: Option<StackForwarder>,
}

/// An output for packets with one kind of verdict.
#[derive(Debug)]
struct Output {
    port: SharedTxQueue,
    action: Action,
    /// Whether the last wait for room timed out and nothing was sent since.
    is_stuck: bool,
}

/// Packets of a batch with the same output.
#[derive(Debug, Default)]
struct TxBurst {
    mbufs: Mbufs,
    bytes: u64,
}

/// Index of a packet's burst: 0 for packets to be freed, n + 1 for output n.
type BurstIndex = usize;

const TO_FREE: BurstIndex = 0;

/// Executes the verdicts on a lane's packets.
#[derive(Debug)]
pub(super) struct DpdkExecutor {
    memory: Arc<Memory>,
    room: ResizeRoom,
    /// Whether partial checksums are completed here.
    completes: bool,
    outputs: Vec<Output>,
    /// Bursts of the current batch, by [`BurstIndex`].
    bursts: Vec<TxBurst>,
    /// For each of the lane's queues, the burst of each action except redirects.
    bursts_by_queue: Vec<[BurstIndex; Action::ALL.len()]>,
    redirect: Vec<(u32, BurstIndex)>,
    /// The loss of passed packets if there is no destination for them.
    no_stack_loss: Option<Loss>,
    stack_forwarder: Option<StackForwarder>,
    executed: ExecutedCounts,
    /// Packets that the receiver has counted as received and then dropped, for lack of a FREE item
    /// in the communication list.
    dropped: Arc<AtomicU64>,
}

impl DpdkExecutor {
    pub fn new(
        memory: Arc<Memory>,
        room: ResizeRoom,
        completes: bool,
        lane_outputs: LaneOutputs,
        dropped: Arc<AtomicU64>,
    ) -> DpdkExecutor {
        let mut outputs = Vec::new();
        let mut add_output = |port: SharedTxQueue, action| {
            outputs.push(Output { port, action, is_stuck: false });
            outputs.len()
        };
        let back: Vec<BurstIndex> = lane_outputs.back.into_iter().map(|port| add_output(port, Action::Tx)).collect();
        let redirect = lane_outputs
            .redirect
            .into_iter()
            .map(|(target, port)| (target, add_output(port, Action::Redirect)))
            .collect();
        let stack = lane_outputs.stack.map(|port| add_output(port, Action::Pass));
        let by_queue = back.into_iter().map(|back| {
            let mut by_action = [TO_FREE; Action::ALL.len()];
            by_action[Action::Tx as usize] = back;
            by_action[Action::Pass as usize] = stack.unwrap_or(TO_FREE);
            by_action
        });
        DpdkExecutor {
            memory,
            room,
            completes,
            bursts: (0..=outputs.len()).map(|_| TxBurst::default()).collect(),
            outputs,
            bursts_by_queue: by_queue.collect(),
            redirect,
            no_stack_loss: stack.is_none().then_some(Loss::NoStack),
            stack_forwarder: lane_outputs.stack_forwarder,
            executed: ExecutedCounts::default(),
            dropped,
        }
    }

    fn count_dropped(&mut self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        self.executed.losses.add(Loss::Overload, dropped);
    }

    /// Burst for a packet from one of the lane's queues.
    fn burst(&self, action: Action, target: u32, queue: usize) -> BurstIndex {
        match action {
            Action::Redirect => self.target(target).unwrap_or(TO_FREE),
            action => self.bursts_by_queue[queue][action as usize],
        }
    }

    fn target(&self, target: u32) -> Option<BurstIndex> {
        self.redirect.iter().find(|(number, _)| *number == target).map(|(_, burst)| *burst)
    }

    /// The loss of packets with this verdict and burst, if they cannot be delivered.
    fn loss(&self, action: Action, burst: BurstIndex) -> Option<Loss> {
        match action {
            Action::Aborted => Some(Loss::Aborted),
            Action::Pass => self.no_stack_loss,
            Action::Redirect => (burst == TO_FREE).then_some(Loss::NoTarget),
            Action::Drop | Action::Tx => None,
        }
    }

    /// Executes the same verdict on all packets.
    fn execute_all(&mut self, action: Action, burst: BurstIndex, mbufs: &mut Mbufs, descriptors: &[Descriptor]) {
        let count = mbufs.len() as u64;
        match (self.loss(action, burst), burst.checked_sub(1)) {
            (Some(loss), _) => self.executed.losses.add(loss, count),
            (None, Some(output)) => self.outputs[output].send(mbufs, bytes(descriptors), &mut self.executed),
            (None, None) => {
                self.executed.packets[action as usize] += count;
                self.executed.bytes[action as usize] += bytes(descriptors);
            }
        }
        mbufs.free();
    }

    /// Distributes packets to bursts by their verdicts, and sends the bursts.
    fn execute_each(&mut self, verdicts: &Verdicts, batch_mbufs: &mut BatchMbufs, descriptors: &[Descriptor]) {
        let counts = verdicts.counts();
        let (mut dropped, mut nowhere) = (0, 0);
        let actions = verdicts.actions();
        // Branch-free except for redirects: verdicts are unpredictable.
        for (index, (mbuf, descriptor)) in batch_mbufs.mbufs.drain().zip(descriptors).enumerate() {
            let action = usize::from(actions[index]);
            let action = if action > Action::Redirect as usize { Action::Aborted as usize } else { action };
            let queue = batch_mbufs.queues.get(index).map_or(0, |queue| usize::from(*queue));
            let mut burst = self.bursts_by_queue[queue][action];
            if action == Action::Redirect as usize {
                let target = verdicts.targets().get(index).copied().unwrap_or(0);
                burst = self.target(target).unwrap_or(TO_FREE);
                nowhere += u64::from(burst == TO_FREE);
            }
            let length = u64::from(descriptor.length);
            dropped += if action == Action::Drop as usize { length } else { 0 };
            let tx_burst = &mut self.bursts[burst];
            tx_burst.bytes += length;
            tx_burst.mbufs.push(mbuf);
        }
        let ExecutedCounts { packets, bytes, losses, .. } = &mut self.executed;
        packets[Action::Drop as usize] += counts.drop;
        bytes[Action::Drop as usize] += dropped;
        losses.add(Loss::Aborted, counts.aborted);
        losses.add(Loss::NoTarget, nowhere);
        if let Some(loss) = self.no_stack_loss {
            losses.add(loss, counts.pass);
        }
        let (to_free, bursts) = self.bursts.split_first_mut().expect("the first burst is the one to free");
        to_free.mbufs.free();
        to_free.bytes = 0;
        for (output, TxBurst { mbufs, bytes }) in self.outputs.iter_mut().zip(bursts) {
            output.send(mbufs, std::mem::take(bytes), &mut self.executed);
            mbufs.free();
        }
    }

    /// Completes the checksums of packets that will be sent.
    #[cold]
    fn complete(&mut self, verdicts: &Verdicts, queues: &[u16], descriptors: &[Descriptor]) {
        let base = self.memory.span.as_ptr();
        for (index, descriptor) in descriptors.iter().enumerate() {
            let queue = queues.get(index).map_or(0, |queue| usize::from(*queue));
            let (verdict, mut target) = (verdicts.get(index), 0);
            if let Verdict::Redirect(to) = verdict {
                target = to;
            }
            if self.burst(verdict.action(), target, queue) != TO_FREE {
                // SAFETY: the packet is owned here, and descriptor at this location.
                let bytes = unsafe {
                    std::slice::from_raw_parts_mut(base.add(descriptor.offset as usize), descriptor.length as usize)
                };
                self.executed.checksums += u64::from(checksum::complete(bytes));
            }
        }
    }
}

impl Executor for DpdkExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        register_this_thread();
        let Completion { batch, verdicts, .. } = done;
        let parts = batch.into_parts::<BatchMbufs>().expect("a batch of this executor's receiver");
        let BatchParts { source_data: mut batch_mbufs, descriptors, metadata } = parts;
        // The GPU has finished with the packets.
        if let Some(ready) = batch_mbufs.comm_list_item.take() {
            ready.finish(true).cleanup();
        }
        self.count_dropped();
        if self.room == ResizeRoom::Both {
            // SAFETY: the mbufs are owned here, and each packet descriptor in its own buffer: a
            // filter moves it by at most its room (`Batch::resize`). `pc_lies` has the layout of
            // `Descriptor`.
            unsafe {
                let locations = descriptors.as_ptr().cast::<sys::pc_lies>();
                sys::pc_settle(
                    self.memory.to_shim(self.room),
                    batch_mbufs.mbufs.as_mut_ptr(),
                    locations,
                    batch_mbufs.mbufs.len(),
                );
            }
        }
        if self.completes {
            self.complete(&verdicts, &batch_mbufs.queues, &descriptors);
        }
        match common_verdict(&verdicts, &batch_mbufs.queues) {
            Some((action, target, queue)) => {
                let burst = self.burst(action, target, queue);
                self.execute_all(action, burst, &mut batch_mbufs.mbufs, &descriptors);
            }
            None => self.execute_each(&verdicts, &mut batch_mbufs, &descriptors),
        }
        let metadata_summary = MetadataAccumulator::default();
        self.memory.recycle_batch_buffers(BatchBuffers { batch_mbufs, descriptors, metadata, metadata_summary });
        self.poll()
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        if let Some(burst) = &mut self.stack_forwarder {
            register_this_thread();
            burst.poll(&mut self.executed);
        }
        self.count_dropped();
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LiveError> {
        if let Some(burst) = &mut self.stack_forwarder {
            burst.finish(&mut self.executed);
        }
        self.count_dropped();
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.stack_forwarder.as_ref().is_some_and(StackForwarder::is_busy)
    }

    fn executed(&self) -> &ExecutedCounts {
        &self.executed
    }
}

impl Output {
    /// Sends packets of `bytes` bytes in total, or as many as the queue takes within `TX_WAIT`; the
    /// others stay in `mbufs`.
    fn send(&mut self, mbufs: &mut Mbufs, bytes: u64, executed: &mut ExecutedCounts) {
        if mbufs.is_empty() {
            return;
        }
        let queue = lock(&self.port);
        let (all, mut sent) = (mbufs.len(), 0);
        let mut waiting: Option<Instant> = None;
        while sent < all {
            let count = (all - sent).min(BURST);
            // SAFETY: the mbufs are owned here, as many as stated from `sent` on, and the queue is
            // locked.
            let took = unsafe { sys::pc_send(queue.port, queue.queue, mbufs.as_mut_ptr().add(sent), count as u16) };
            sent += usize::from(took);
            if took > 0 {
                (waiting, self.is_stuck) = (None, false);
                continue;
            }
            let since = *waiting.get_or_insert_with(Instant::now);
            if self.is_stuck || since.elapsed() >= TX_WAIT {
                self.is_stuck = true;
                break;
            }
            std::hint::spin_loop();
        }
        drop(queue);
        // SAFETY: the driver owns these mbufs now.
        unsafe { mbufs.forget_first(sent) };
        executed.packets[self.action as usize] += sent as u64;
        executed.bytes[self.action as usize] += bytes - mbufs.bytes();
        executed.losses.add(Loss::NoRoom, mbufs.len() as u64);
    }
}

/// Returns action, target and ingress queue if they are the same for all packets, as far as they
/// determine the output.
fn common_verdict(verdicts: &Verdicts, queues: &[u16]) -> Option<(Action, u32, usize)> {
    fn same<T: Copy + Default + PartialEq>(all: &[T]) -> Option<T> {
        let first = all.first().copied().unwrap_or_default();
        // Without early output, so that the loop vectorises.
        all.iter().fold(true, |same, one| same & (*one == first)).then_some(first)
    }
    let action = Action::from_byte(same(verdicts.actions())?)?;
    let target = if action == Action::Redirect { same(verdicts.targets())? } else { 0 };
    let queue = if action == Action::Tx { same(queues)? } else { 0 };
    Some((action, target, queue.into()))
}

fn bytes(descriptors: &[Descriptor]) -> u64 {
    descriptors.iter().map(|descriptor| u64::from(descriptor.length)).sum()
}
