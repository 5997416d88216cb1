//! Closing batches.

use std::time::{Duration, Instant};

use portcullis_core::packet::Batch;
use portcullis_io::live::{LiveError, Receiver};

use super::sizing::{Rate, Shared, WORTH};
use super::{Closing, Meter};

/// How long nothing may happen before somebody looks whether it is to stop.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// Packets that a batch which finds its size may have in any case, where they are there: so many cost little more than one.
const AT_ONCE: usize = 256;

/// The time in which no more than one packet comes by a queue, in the mean: ten million a second.
const APART: Duration = Duration::from_nanos(100);

/// Gathers packets until a batch is full, or there is no memory for more, or its first packet has waited for long enough.
pub(super) struct Batcher<'a> {
    closing: Closing,
    shared: &'a Shared,
    rate: Rate,
    gathered: usize,
    first: Option<Instant>,
    meter: Option<&'a Meter>,
    /// Whether packets come for warming up.
    is_warm_up: bool,
    /// When it was last looked whether there is anything.
    looked: Instant,
}

/// When a batch is closed.
struct Goal {
    /// As soon as it has so many packets.
    enough: usize,
    /// It never has more.
    most: usize,
    delay: Duration,
}

/// What came of a look.
pub(super) enum Look {
    /// A batch, and when its first packet was received.
    Batch(Batch, First),
    /// A batch is not full yet: it is closed at this time.
    Until(Instant),
    /// Nothing has come.
    Nothing,
}

/// A batch's first packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct First {
    /// When it was received.
    pub at: Instant,
    /// Whether it came for warming up, and all others with it.
    pub is_warm_up: bool,
}

impl<'a> Batcher<'a> {
    pub fn new(closing: Closing, shared: &'a Shared, meter: Option<&'a Meter>) -> Batcher<'a> {
        let closing = Closing { most: closing.most.max(1), ..closing };
        let (is_warm_up, now) = (meter.is_some(), Instant::now());
        Batcher { closing, shared, rate: Rate::new(now), gathered: 0, first: None, meter, is_warm_up, looked: now }
    }

    /// When it was last looked whether there is anything.
    pub fn looked(&self) -> Instant {
        self.looked
    }

    /// Whether batches find their size.
    pub fn finds_size(&self) -> bool {
        self.closing.auto
    }

    /// Whether packets that come from now on are measured, and those before were not: once.
    pub fn begins(&mut self) -> bool {
        let begins = self.is_warm_up && self.gathered == 0 && self.meter.is_some_and(Meter::is_warm);
        self.is_warm_up &= !begins;
        begins
    }

    /// Of so many packets those that may come into this batch.
    fn allowed(&self, packets: usize) -> usize {
        self.meter.map_or(packets, |meter| meter.allowed(packets, self.is_warm_up))
    }

    fn goal(&self) -> Goal {
        let Closing { most, delay, auto } = self.closing;
        if !auto {
            return Goal { enough: most, most, delay };
        }
        let (enough, delay) = self.shared.wanted();
        Goal { enough, most: enough.max(AT_ONCE).min(most), delay }
    }

    /// Receives what is there. With `last` what there is makes a batch, however little.
    pub fn look(&mut self, receiver: &mut dyn Receiver, last: bool) -> Result<Look, LiveError> {
        let Goal { enough, most, delay } = self.goal();
        let came = match self.allowed(most.saturating_sub(self.gathered)) {
            0 => 0,
            allowed => receiver.receive(allowed)?,
        };
        let now = Instant::now();
        self.looked = now;
        if came > 0 {
            if let Some(meter) = self.meter {
                meter.took(came);
            }
            self.gathered += came;
            self.first.get_or_insert(now);
        }
        let Some(first) = self.first else { return Ok(Look::Nothing) };
        let until = first + delay;
        let waits = self.gathered < enough && now < until && !receiver.is_full() && self.allowed(1) > 0;
        if !last && waits {
            return Ok(Look::Until(until));
        }
        // Nobody asks for it where nothing waits.
        if self.closing.auto || !delay.is_zero() {
            self.shared.set_rate(self.rate.note(self.gathered, now));
        }
        self.gathered = 0;
        self.first = None;
        let first = First { at: first, is_warm_up: self.is_warm_up };
        Ok(receiver.take_batch().map_or(Look::Nothing, |batch| Look::Batch(batch, first)))
    }

    /// Waits for more packets, until a batch is to be closed at the latest, but no longer than [`PATIENCE`]: an end may be
    /// wanted meanwhile, or something be done with the session.
    ///
    /// Whoever waits for packets is woken by each, which costs more than the packet does. So this sleeps, and is not woken,
    /// where what may come meanwhile finds room. Where so much comes that the batch will be full before its time, nobody
    /// sleeps for long in any case, and a sleep that lasts too long would cost packets.
    pub fn wait(&self, receiver: &mut dyn Receiver, until: Instant) -> Result<(), LiveError> {
        let left = until.saturating_duration_since(Instant::now());
        let missing = self.goal().enough.saturating_sub(self.gathered);
        let room = APART.saturating_mul(receiver.backlog_capacity().try_into().unwrap_or(u32::MAX));
        let sleep = left.min(room);
        if sleep < WORTH || self.shared.rate() * left.as_secs_f64() >= missing as f64 {
            return receiver.wait(left.min(PATIENCE));
        }
        std::thread::sleep(sleep.min(PATIENCE));
        Ok(())
    }
}
