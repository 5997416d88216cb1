//! What others want done with a lane's session while packets flow.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use portcullis_core::device::{DeviceError, Session};

/// Orders for a lane, which it carries out between two batches, or soon where no packets come. Looking whether there are
/// any is one load.
#[derive(Default)]
pub struct LaneCommands {
    waiting: AtomicBool,
    orders: Mutex<Orders>,
}

#[derive(Default)]
struct Orders {
    waiting: Vec<LaneCommand>,
    /// The lane has ended.
    closed: bool,
}

/// Something to be done with a lane's session, on the lane's thread: packets wait meanwhile.
pub struct LaneCommand {
    /// Whether the batches in flight come home first, and their verdicts are carried out.
    idle: bool,
    work: Work,
}

type Work = Box<dyn FnOnce(&mut Box<dyn Session>) -> Result<(), DeviceError> + Send>;

impl LaneCommand {
    /// Looks at the session's maps or changes them: what is done is there for the batches behind this, and for none before.
    /// An error ends the lane.
    pub fn access_maps(work: impl FnOnce(&mut dyn Session) -> Result<(), DeviceError> + Send + 'static) -> LaneCommand {
        LaneCommand { idle: false, work: Box::new(move |session| work(&mut **session)) }
    }

    /// May put another session in the place of the lane's. No batch is in flight: those before have the old session's
    /// verdicts, and those behind the new one's. An error ends the lane.
    pub fn replace_session(
        work: impl FnOnce(&mut Box<dyn Session>) -> Result<(), DeviceError> + Send + 'static,
    ) -> LaneCommand {
        LaneCommand { idle: true, work: Box::new(work) }
    }

    pub(super) fn requires_idle(&self) -> bool {
        self.idle
    }

    pub(super) fn execute(self, session: &mut Box<dyn Session>) -> Result<(), DeviceError> {
        (self.work)(session)
    }
}

impl fmt::Debug for LaneCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order").field("idle", &self.idle).finish_non_exhaustive()
    }
}

impl LaneCommands {
    /// Leaves an order. One that is not carried out, since the lane has ended or ends before, is dropped.
    pub fn push(&self, order: LaneCommand) {
        let mut orders = self.lock();
        if !orders.closed {
            orders.waiting.push(order);
            self.waiting.store(true, Ordering::Release);
        }
    }

    /// Whether there may be orders.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// All orders, the oldest first.
    pub(super) fn take(&self) -> Vec<LaneCommand> {
        let mut orders = self.lock();
        self.waiting.store(false, Ordering::Relaxed);
        std::mem::take(&mut orders.waiting)
    }

    /// Drops all orders, those of later, too.
    pub(super) fn close(&self) {
        let mut orders = self.lock();
        orders.closed = true;
        // Not while it is locked: whoever waits for one may ask for another.
        let dropped = std::mem::take(&mut orders.waiting);
        drop(orders);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        // They are whole whoever died meanwhile.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LaneCommands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.is_waiting()).finish_non_exhaustive()
    }
}
