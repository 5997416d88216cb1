//! Commands that other threads queue for a lane's session while packets flow.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use portcullis_core::device::{DeviceError, FallbackSession, Session};

/// Queue of commands for a lane, which runs them between two batches, or soon if no packets come.
/// Checking for commands costs one atomic load.
#[derive(Default)]
pub struct LaneCommands {
    pending: AtomicBool,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    pending: Vec<LaneCommand>,
    /// Set once the lane has ended.
    closed: bool,
}

/// A function to run on a lane's session, on the lane's thread. Packets wait while it runs.
pub struct LaneCommand {
    /// Whether to complete the batches in flight and execute their verdicts first.
    requires_idle: bool,
    function: CommandFn,
}

type CommandFn = Box<dyn FnOnce(&mut FallbackSession) -> Result<(), DeviceError> + Send>;

impl LaneCommand {
    /// A command that reads or writes the session's maps. Changes take effect for later batches and
    /// for none before. An error ends the lane.
    pub fn access_maps(
        function: impl FnOnce(&mut dyn Session) -> Result<(), DeviceError> + Send + 'static,
    ) -> LaneCommand {
        LaneCommand { requires_idle: false, function: Box::new(move |session| function(session)) }
    }

    /// A command that may replace the lane's session. No batch is in flight then: batches before
    /// have the old session's verdicts, batches after it the new one's. An error ends the lane.
    pub fn replace_session(
        function: impl FnOnce(&mut FallbackSession) -> Result<(), DeviceError> + Send + 'static,
    ) -> LaneCommand {
        LaneCommand { requires_idle: true, function: Box::new(function) }
    }

    pub(super) fn requires_idle(&self) -> bool {
        self.requires_idle
    }

    pub(super) fn execute(self, session: &mut FallbackSession) -> Result<(), DeviceError> {
        (self.function)(session)
    }
}

impl fmt::Debug for LaneCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneCommand").field("requires_idle", &self.requires_idle).finish_non_exhaustive()
    }
}

impl LaneCommands {
    /// Queues a command. It is dropped without running if the lane has ended or ends before.
    pub fn push(&self, command: LaneCommand) {
        let mut state = self.lock();
        if !state.closed {
            state.pending.push(command);
            self.pending.store(true, Ordering::Release);
        }
    }

    /// Whether commands may be queued.
    pub(super) fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Takes all queued commands, oldest first.
    pub(super) fn take(&self) -> Vec<LaneCommand> {
        let mut state = self.lock();
        self.pending.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.pending)
    }

    /// Drops all commands, and those pushed later.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        // Drop after unlocking: dropping a command may wake a thread that pushes another.
        let dropped = std::mem::take(&mut state.pending);
        drop(state);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // The queue is valid after every operation, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LaneCommands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneCommands").field("pending", &self.has_pending()).finish_non_exhaustive()
    }
}
