//! Live packets: the interface between packet I/O and the pipeline.
//!
//! ```text
//! Receiver ──batches──► a device's session ──verdicts──► Executor
//!     ▲                                                     │
//!     └──────────── packet memory, recycled ◄───────────────┘
//! ```
//!
//! A [`Receiver`] and an [`Executor`] form a lane, which serves one or more queues of a port; they
//! may run on different threads. What the executor needs to know about a batch travels with it as
//! its [source data](portcullis_core::packet::SourceData). So does the ownership of the packet
//! memory: a batch dropped anywhere releases its memory.

#[cfg(any(feature = "af-xdp", feature = "dpdk"))]
pub(crate) mod capabilities;
pub mod checksum;
mod counters;
#[cfg(any(feature = "af-xdp", feature = "dpdk"))]
pub mod link;
#[cfg(any(feature = "af-xdp", feature = "nfqueue"))]
mod owner_process;
#[cfg(feature = "live")]
#[cfg(any(feature = "af-xdp", feature = "dpdk"))]
pub(crate) mod tun;

use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "live")]
use std::time::SystemTime;

use portcullis_core::device::Completion;
use portcullis_core::packet::{Batch, Span};

use crate::RedirectGroups;

pub use counters::{ExecutedCounts, Loss, Losses, ReceivedCounts};
#[cfg(any(feature = "af-xdp", feature = "nfqueue"))]
pub use owner_process::OwnerProcess;

/// Nanoseconds since the Unix epoch, for metadata; 0 if the clock is set before it.
#[cfg(feature = "live")]
pub(crate) fn nanoseconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Receives live packets and collects them into batches.
pub trait Receiver: Send {
    /// Adds available packets, at most `max`, to the open batch without blocking; returns their
    /// number.
    ///
    /// # Errors
    /// [`LiveError`]; no more packets follow.
    fn receive(&mut self, max: usize) -> Result<usize, LiveError>;

    /// Blocks until packets may be available, at most for `max`; may return early for no reason.
    ///
    /// # Errors
    /// [`LiveError`]; no more packets follow.
    fn wait(&mut self, max: Duration) -> Result<(), LiveError>;

    /// Number of packets that the source can queue while nobody receives, starting from an empty
    /// queue, before packets are lost; 0 if packets arrive only during [`Receiver::wait`].
    fn backlog_capacity(&self) -> usize {
        0
    }

    /// Whether the open batch should be taken before receiving more, because its memory is used up
    /// or the rest is needed for reception.
    fn is_full(&self) -> bool {
        false
    }

    /// Takes the open batch, packets in order of arrival; `None` if it is empty.
    fn take_batch(&mut self) -> Option<Batch>;

    /// Counters up to now.
    fn received(&mut self) -> ReceivedCounts;
}

/// Executes verdicts.
pub trait Executor: Send {
    /// Executes the verdicts on a batch from this executor's receiver.
    ///
    /// # Errors
    /// [`LiveError`]; the lane is unusable. A packet that cannot be sent is not an error but a
    /// [`Loss`].
    fn execute(&mut self, done: Completion) -> Result<(), LiveError>;

    /// Sets the redirect targets that stand for groups of ports, for batches executed from now on.
    /// An executor that does not implement this loses packets to such targets like those to unknown
    /// ones.
    fn set_redirect_groups(&mut self, several: &Arc<RedirectGroups>) {
        let _ = several;
    }

    /// Does pending work: reclaims completed buffers and sends queued packets. Call it regularly,
    /// also when no batch arrives.
    ///
    /// # Errors
    /// As [`Executor::execute`].
    fn poll(&mut self) -> Result<(), LiveError>;

    /// Whether buffers or packets are pending, so that [`Executor::poll`] should be called soon.
    fn is_busy(&self) -> bool;

    /// Ends the lane: neither receiver nor executor is used again. Collects the system's pending
    /// reports, after which [`Executor::executed`] is final. A packet that was counted as executed
    /// and is now reported as refused becomes a loss, the only case in which a counter decreases.
    ///
    /// # Errors
    /// As [`Executor::execute`].
    fn finish(&mut self) -> Result<(), LiveError> {
        Ok(())
    }

    /// Counters up to now. They only grow, until [`Executor::finish`]. Packets that the system
    /// might still refuse are included after the next [`Executor::poll`].
    fn executed(&self) -> &ExecutedCounts;
}

/// A receiver and an executor for some queues of one or more ports.
pub struct Lane {
    /// The queues, for example `eth0:0`.
    pub name: String,
    /// The memory that packets are received into, if it stays the same for the lane's lifetime:
    /// devices can import it before the first packet
    /// ([`Session::import`](portcullis_core::device::Session::import)).
    pub memory: Option<Arc<Span>>,
    /// Receives packets.
    pub receiver: Box<dyn Receiver>,
    /// Executes the verdicts on them.
    pub executor: Box<dyn Executor>,
}

/// Why a lane cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The interface was removed.
    #[error("{interface}: the interface is gone")]
    Gone {
        /// The interface's name.
        interface: String,
    },
    /// The system refused an operation.
    #[error("{what}: {}", portcullis_core::reason(.error))]
    System {
        /// The object and the operation, for example `eth0, queue 3: waiting for packets`.
        what: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// No memory for packets.
    #[error(transparent)]
    Memory(#[from] portcullis_core::packet::ArenaError),
}
