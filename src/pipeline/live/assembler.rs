//! Assembles received packets into batches and decides when a batch is closed.

use std::time::{Duration, Instant};

use portcullis_core::packet::Batch;
use portcullis_io::live::{LiveError, Receiver};

use super::sizing::{ArrivalRate, MIN_DELAY, SharedSizing};
use super::{BatchPolicy, MeasurementWindow};

/// Longest wait before a thread checks again whether it is to stop.
pub(super) const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Packets that an adaptive batch may always have if they are already queued: that many cost little
/// more than one.
const MIN_OPPORTUNISTIC_PACKETS: usize = 256;

/// Minimum mean time between packets of a queue: ten million packets per second.
const MIN_PACKET_SPACING: Duration = Duration::from_nanos(100);

/// Collects packets until the batch is full, the receiver has no memory for more, or the first
/// packet has waited long enough.
pub(super) struct BatchAssembler<'a> {
    batching: BatchPolicy,
    shared: &'a SharedSizing,
    rate: ArrivalRate,
    received_packets: usize,
    first: Option<Instant>,
    window: Option<&'a MeasurementWindow>,
    /// Whether packets belong to the warm-up.
    is_warm_up: bool,
    /// When the receiver was last polled.
    last_poll: Instant,
}

/// When a batch is closed.
struct CloseCondition {
    /// Number of packets at which it is closed at once.
    target: usize,
    /// Maximum number of packets.
    max_packets: usize,
    delay: Duration,
}

/// Result of polling the receiver.
pub(super) enum PollOutcome {
    /// A closed batch and the arrival of its first packet.
    Batch(Batch, FirstPacket),
    /// A batch is open and will be closed at this time.
    Until(Instant),
    /// No packet is waiting.
    Nothing,
}

/// Arrival of a batch's first packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstPacket {
    /// When it was received.
    pub at: Instant,
    /// Whether the batch belongs to the warm-up.
    pub is_warm_up: bool,
}

impl<'a> BatchAssembler<'a> {
    pub fn new(
        batching: BatchPolicy,
        shared: &'a SharedSizing,
        window: Option<&'a MeasurementWindow>,
    ) -> BatchAssembler<'a> {
        let batching = BatchPolicy { max_packets: batching.max_packets.max(1), ..batching };
        let (is_warm_up, now) = (window.is_some(), Instant::now());
        BatchAssembler {
            batching,
            shared,
            rate: ArrivalRate::new(now),
            received_packets: 0,
            first: None,
            window,
            is_warm_up,
            last_poll: now,
        }
    }

    /// Returns when the receiver was last polled.
    pub fn last_poll(&self) -> Instant {
        self.last_poll
    }

    /// Whether batch sizes adapt to the load.
    pub fn is_adaptive(&self) -> bool {
        self.batching.adaptive
    }

    /// Returns true once, when the warm-up is over and packets are measured from now on.
    pub fn starts_measuring(&mut self) -> bool {
        let starts =
            self.is_warm_up && self.received_packets == 0 && self.window.is_some_and(MeasurementWindow::is_warmed_up);
        self.is_warm_up &= !starts;
        starts
    }

    /// Limits `packets` to what the measurement window lets into this batch.
    fn allowance(&self, packets: usize) -> usize {
        self.window.map_or(packets, |window| window.allowance(packets, self.is_warm_up))
    }

    fn close_condition(&self) -> CloseCondition {
        let BatchPolicy { max_packets, delay, adaptive } = self.batching;
        if !adaptive {
            return CloseCondition { target: max_packets, max_packets, delay };
        }
        let (target, delay) = self.shared.target();
        CloseCondition { target, max_packets: target.max(MIN_OPPORTUNISTIC_PACKETS).min(max_packets), delay }
    }

    /// Receives the packets that are queued. With `is_last`, closes the batch however few it has.
    pub fn poll(&mut self, receiver: &mut dyn Receiver, is_last: bool) -> Result<PollOutcome, LiveError> {
        let CloseCondition { target, max_packets, delay } = self.close_condition();
        let received = match self.allowance(max_packets.saturating_sub(self.received_packets)) {
            0 => 0,
            allowance => receiver.receive(allowance)?,
        };
        let now = Instant::now();
        self.last_poll = now;
        if received > 0 {
            if let Some(window) = self.window {
                window.record_received(received);
            }
            self.received_packets += received;
            self.first.get_or_insert(now);
        }
        let Some(first) = self.first else { return Ok(PollOutcome::Nothing) };
        let until = first + delay;
        let keeps_waiting =
            self.received_packets < target && now < until && !receiver.is_full() && self.allowance(1) > 0;
        if !is_last && keeps_waiting {
            return Ok(PollOutcome::Until(until));
        }
        // The rate is used only if batches wait for packets.
        if self.batching.adaptive || !delay.is_zero() {
            self.shared.set_rate(self.rate.record(self.received_packets, now));
        }
        self.received_packets = 0;
        self.first = None;
        let first = FirstPacket { at: first, is_warm_up: self.is_warm_up };
        Ok(receiver.take_batch().map_or(PollOutcome::Nothing, |batch| PollOutcome::Batch(batch, first)))
    }

    /// Waits for more packets until the batch is to be closed, but for at most
    /// [`STOP_POLL_INTERVAL`] so that a stop or a command is noticed.
    ///
    /// Being woken by each packet would cost more than the packet itself. So this sleeps without
    /// being woken if the RX ring can hold what may arrive meanwhile. At rates that fill the batch
    /// before its time the wait is short anyway, and oversleeping would lose packets, so it waits
    /// for packets then.
    pub fn wait(&self, receiver: &mut dyn Receiver, until: Instant) -> Result<(), LiveError> {
        let left = until.saturating_duration_since(Instant::now());
        let missing = self.close_condition().target.saturating_sub(self.received_packets);
        let time_to_fill_ring =
            MIN_PACKET_SPACING.saturating_mul(receiver.backlog_capacity().try_into().unwrap_or(u32::MAX));
        let sleep = left.min(time_to_fill_ring);
        if sleep < MIN_DELAY || self.shared.rate() * left.as_secs_f64() >= missing as f64 {
            return receiver.wait(left.min(STOP_POLL_INTERVAL));
        }
        std::thread::sleep(sleep.min(STOP_POLL_INTERVAL));
        Ok(())
    }
}
