//! Closing batches.

use std::time::{Duration, Instant};

use portcullis_core::packet::Batch;
use portcullis_io::live::{LiveError, Receiver};

use super::sizing::{ArrivalRate, MIN_DELAY, SharedSizing};
use super::{BatchPolicy, MeasurementWindow};

/// How long nothing may happen before somebody looks whether it is to stop.
pub(super) const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Packets that a batch which finds its size may have in any case, where they are there: so many cost little more than one.
const MIN_OPPORTUNISTIC_PACKETS: usize = 256;

/// The time in which no more than one packet comes by a queue, in the mean: ten million a second.
const MIN_PACKET_SPACING: Duration = Duration::from_nanos(100);

/// Gathers packets until a batch is full, or there is no memory for more, or its first packet has waited for long enough.
pub(super) struct BatchAssembler<'a> {
    batching: BatchPolicy,
    shared: &'a SharedSizing,
    rate: ArrivalRate,
    received_packets: usize,
    first: Option<Instant>,
    window: Option<&'a MeasurementWindow>,
    /// Whether packets come for warming up.
    is_warm_up: bool,
    /// When it was last looked whether there is anything.
    last_poll: Instant,
}

/// When a batch is closed.
struct CloseCondition {
    /// As soon as it has so many packets.
    target: usize,
    /// It never has more.
    max_packets: usize,
    delay: Duration,
}

/// What came of a look.
pub(super) enum PollOutcome {
    /// A batch, and when its first packet was received.
    Batch(Batch, FirstPacket),
    /// A batch is not full yet: it is closed at this time.
    Until(Instant),
    /// Nothing has come.
    Nothing,
}

/// A batch's first packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstPacket {
    /// When it was received.
    pub at: Instant,
    /// Whether it came for warming up, and all others with it.
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

    /// When it was last looked whether there is anything.
    pub fn last_poll(&self) -> Instant {
        self.last_poll
    }

    /// Whether batches find their size.
    pub fn is_adaptive(&self) -> bool {
        self.batching.adaptive
    }

    /// Whether packets that come from now on are measured, and those before were not: once.
    pub fn starts_measuring(&mut self) -> bool {
        let starts =
            self.is_warm_up && self.received_packets == 0 && self.window.is_some_and(MeasurementWindow::is_warmed_up);
        self.is_warm_up &= !starts;
        starts
    }

    /// Of so many packets those that may come into this batch.
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

    /// Receives what is there. With `last` what there is makes a batch, however little.
    pub fn poll(&mut self, receiver: &mut dyn Receiver, last: bool) -> Result<PollOutcome, LiveError> {
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
        let waits = self.received_packets < target && now < until && !receiver.is_full() && self.allowance(1) > 0;
        if !last && waits {
            return Ok(PollOutcome::Until(until));
        }
        // Nobody asks for it where nothing waits.
        if self.batching.adaptive || !delay.is_zero() {
            self.shared.set_rate(self.rate.record(self.received_packets, now));
        }
        self.received_packets = 0;
        self.first = None;
        let first = FirstPacket { at: first, is_warm_up: self.is_warm_up };
        Ok(receiver.take_batch().map_or(PollOutcome::Nothing, |batch| PollOutcome::Batch(batch, first)))
    }

    /// Waits for more packets, until a batch is to be closed at the latest, but no longer than [`STOP_POLL_INTERVAL`]: an end may be
    /// wanted meanwhile, or something be done with the session.
    ///
    /// Whoever waits for packets is woken by each, which costs more than the packet does. So this sleeps, and is not woken,
    /// where what may come meanwhile finds room. Where so much comes that the batch will be full before its time, nobody
    /// sleeps for long in any case, and a sleep that lasts too long would cost packets.
    pub fn wait(&self, receiver: &mut dyn Receiver, until: Instant) -> Result<(), LiveError> {
        let left = until.saturating_duration_since(Instant::now());
        let missing = self.close_condition().target.saturating_sub(self.received_packets);
        let room = MIN_PACKET_SPACING.saturating_mul(receiver.backlog_capacity().try_into().unwrap_or(u32::MAX));
        let sleep = left.min(room);
        if sleep < MIN_DELAY || self.shared.rate() * left.as_secs_f64() >= missing as f64 {
            return receiver.wait(left.min(STOP_POLL_INTERVAL));
        }
        std::thread::sleep(sleep.min(STOP_POLL_INTERVAL));
        Ok(())
    }
}
