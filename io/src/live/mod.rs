//! Live packets: how they come in, and how verdicts on them are carried out.
//!
//! ```text
//! Receiver ──batches──► a device's session ──done──► Executor
//!     ▲                                                 │
//!     └──────── memory that packets were in ◄───────────┘
//! ```
//!
//! A [`Receiver`] and an [`Executor`] make a lane, which has one or more of a port's queues. The two may be driven from
//! different threads. What the executor needs to know of a batch beside its packets comes with it, as its
//! [source_data](portcullis_core::packet::Companion), and so does the memory: a batch that is dropped anywhere gives its
//! memory back.

#[cfg(any(feature = "af-xdp", feature = "dpdk"))]
pub(crate) mod capabilities;
pub mod checksum;
mod count;
#[cfg(any(feature = "af-xdp", feature = "nfqueue"))]
mod holder;
#[cfg(any(feature = "af-xdp", feature = "dpdk"))]
pub mod link;
#[cfg(feature = "live")]
pub mod sighup;
#[cfg(any(feature = "af-xdp", feature = "dpdk"))]
pub(crate) mod tun;

use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "live")]
use std::time::SystemTime;

use portcullis_core::device::Completion;
use portcullis_core::packet::{Batch, Span};

use crate::RedirectGroups;

pub use count::{ExecutedCounts, Loss, Losses, ReceivedCounts};
#[cfg(any(feature = "af-xdp", feature = "nfqueue"))]
pub use holder::OwnerProcess;

/// Nanoseconds since 1970, for metadata. A clock before that is none.
#[cfg(feature = "live")]
pub(crate) fn nanoseconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Takes live packets and gathers them into batches.
pub trait Receiver: Send {
    /// Takes what is there, up to `most` packets, into the batch that is being gathered, without waiting. Gives their
    /// number.
    ///
    /// # Errors
    /// [`LiveError`]: nothing more will come.
    fn receive(&mut self, most: usize) -> Result<usize, LiveError>;

    /// Waits until there may be packets, for this long at most; it may come back sooner for no reason.
    ///
    /// # Errors
    /// [`LiveError`]: nothing more will come.
    fn wait(&mut self, most: Duration) -> Result<(), LiveError>;

    /// How many packets may come while nobody looks, from when nothing more was there to be received, before any is lost; 0
    /// where packets only come while somebody waits for them.
    fn backlog_capacity(&self) -> usize {
        0
    }

    /// Whether no more should be gathered: what comes needs the memory that is left, or there is none, until the batch is
    /// closed.
    fn is_full(&self) -> bool {
        false
    }

    /// The packets that were gathered, in the order in which they came; `None` where there are none.
    fn take_batch(&mut self) -> Option<Batch>;

    /// What came in and what did not, up to now.
    fn received(&mut self) -> ReceivedCounts;
}

/// Carries out verdicts.
pub trait Executor: Send {
    /// Carries out the verdicts on a batch that this executor's receiver made.
    ///
    /// # Errors
    /// [`LiveError`]: the lane is of no more use. A packet that cannot be sent is none, but a [`Loss`].
    fn execute(&mut self, done: Completion) -> Result<(), LiveError>;

    /// Says what targets stand for that stand for several ports, for the batches that are carried out from now on. Whoever
    /// does not carry them out loses those packets, as others that go to targets for which nothing stands.
    fn set_redirect_groups(&mut self, several: &Arc<RedirectGroups>) {
        let _ = several;
    }

    /// Does what is to be done though no batch came: brings home what others are through with, and sends what waited. To be
    /// called again and again.
    ///
    /// # Errors
    /// As [`Executor::execute`].
    fn poll(&mut self) -> Result<(), LiveError>;

    /// Whether something waits to be sent, or to come home, so that [`Executor::poll`] is of use soon.
    fn is_busy(&self) -> bool;

    /// Ends it: no more batches come, to this lane's receiver either. Hears what the system has yet to say of verdicts, so that
    /// [`Executor::executed`] is final. What it refuses now and had been counted as carried out becomes a loss, the one case in
    /// which a count goes down.
    ///
    /// # Errors
    /// As [`Executor::execute`].
    fn finish(&mut self) -> Result<(), LiveError> {
        Ok(())
    }

    /// What became of packets, up to now. These counts only grow, until [`Executor::finish`]. What the system may yet refuse is
    /// in them after the next [`Executor::poll`].
    fn executed(&self) -> &ExecutedCounts;
}

/// What packets of some queues come in by, and what carries out the verdicts on them.
pub struct Lane {
    /// The queues: `eth0:0`.
    pub name: String,
    /// The memory that packets come into, where it is the same as long as the lane is there: what a device should be shown
    /// before the first packet ([`Session::import`](portcullis_core::device::Session::import)).
    pub memory: Option<Arc<Span>>,
    /// Where packets come in.
    pub receiver: Box<dyn Receiver>,
    /// Where they go.
    pub executor: Box<dyn Executor>,
}

/// Why a lane can go on no longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The interface is gone.
    #[error("{interface}: the interface is gone")]
    Gone {
        /// Its name.
        interface: String,
    },
    /// The system refused something.
    #[error("{what}: {}", portcullis_core::reason(.error))]
    System {
        /// What was to be done, on what: `eth0, queue 3: waiting for packets`.
        what: String,
        /// The system's.
        error: std::io::Error,
    },
    /// There is no memory for packets.
    #[error(transparent)]
    Memory(#[from] portcullis_core::packet::ArenaError),
}
