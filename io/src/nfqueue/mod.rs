//! Netfilter queues: packets for which the kernel itself asks for a verdict, on Linux.
//!
//! A rule of the firewall sends packets here (`-j NFQUEUE --queue-num 0`, see docs/nfqueue.md), and each waits in the kernel
//! until its verdict is given. [`open`] takes a queue and gives the two halves of its lane, for two threads:
//!
//! - [`QueueReceiver`] receives many messages with one call, straight into an arena. A packet stays where it was received;
//!   an Ethernet header for the filter is written over what lies in front of it in the message.
//! - [`QueueExecutor`] gives verdicts, as many as it can with one message.
//!
//! **The Ethernet header** has the sender's address where the kernel knows it (on the way in, from a link with addresses of
//! 6 bytes), and zeros else; zeros for the receiver's; and the EtherType. The packet is what lies behind the first 14 bytes
//! that a filter leaves, wherever it moved its beginning to: what it writes to these bytes is lost.
//!
//! **Verdicts.** PASS accepts a packet, and gives it the bytes that it has now where these are others. DROP drops it. So does
//! everything else, counted as a [`Loss`](crate::live::Loss). A packet that gets no verdict, since its batch was dropped
//! anywhere, gets the fallback verdict: accepted with [`QueueOptions::fail_open`], dropped without.
//!
//! **Segments.** The kernel's own packets may be longer than what a link takes, up to 64 KiB, and are cut only when they are
//! sent; what came in may have been put together. Such packets come as they are ([`QueueOptions::gso`]), and one verdict does
//! for all of it, except for filters that change lengths: a packet of another length could no longer be cut where it has to be.
//! Their checksums, and those of other packets that were made on this machine, may be left to the network card. A filter that
//! only reads sees them so, and the kernel completes them later. For one that may write they are completed before it sees
//! them: it may then update them by the difference, and the kernel takes what comes back for complete.

mod answers;
mod error;
mod executor;
mod frames;
mod memory;
pub mod message;
mod queue;
mod receiver;
mod socket;
#[cfg(test)]
mod tests;
mod tickets;

use std::sync::Arc;

use portcullis_core::packet::{MIN_PACKET_LENGTH, ResizeRoom};
use portcullis_core::program::facts::Window;

pub use error::{NfqueueError, queue_range};
pub use executor::QueueExecutor;
pub use receiver::QueueReceiver;

use frames::Layout;
use message::{Config, MAX_PAYLOAD};
use queue::Queue;

/// What is put in front of a packet: two addresses and an EtherType.
const ETHERNET_HEADER: usize = MIN_PACKET_LENGTH as usize;

/// How a queue is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// Its number, as the rule has it.
    pub queue: u16,
    /// Packets in a batch, at most.
    pub batch: usize,
    /// Whether the filter changes lengths. Packets longer than a link takes are then cut before they come.
    pub room: ResizeRoom,
    /// The bytes that the filter may change ([`Facts::writes`](portcullis_core::program::facts::Facts::writes)). What there is of
    /// them in each packet is copied when it comes, and compared when it goes back, which for a filter that writes to headers
    /// only costs little: only a packet that has really changed is copied back into the kernel.
    pub writes: Window,
    /// Bytes of a packet, the Ethernet header not counted, that the filter gets at most; the rest stays in the kernel. For
    /// filters that read headers only this saves most of the copying of long packets. One that is not there as a whole cannot
    /// be changed.
    pub copy_range: u32,
    /// Whether packets that are longer than a link takes come as they are. Not with [`ResizeRoom::Both`].
    pub gso: bool,
    /// Whether packets are accepted where nobody can give a verdict on them: the queue is full, or they are in a batch that
    /// was dropped. Where no program has the queue, the rule decides (`--queue-bypass`).
    pub fail_open: bool,
    /// Packets that may wait for verdicts in the kernel.
    pub max_length: u32,
    /// Bytes of messages that may wait to be received. The system's limit (`net.core.rmem_max`) does not count for who has
    /// CAP_NET_ADMIN.
    pub receive_buffer: usize,
    /// The port that packets' metadata names.
    pub port: u32,
    /// Whether packets have metadata: their whole length, the port, and when they arrived.
    pub metadata: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            queue: 0,
            batch: 1024,
            room: ResizeRoom::None,
            writes: Window::WholePacket,
            copy_range: u32::MAX,
            gso: true,
            fail_open: false,
            max_length: 8192,
            receive_buffer: 32 << 20,
            port: 0,
            metadata: true,
        }
    }
}

/// Takes a queue.
///
/// The queue is given up when both halves and all batches are gone.
///
/// # Errors
/// [`NfqueueError`], which says what to do.
pub fn open(options: &QueueOptions) -> Result<(QueueReceiver, QueueExecutor), NfqueueError> {
    let number = options.queue;
    for (is_wrong, what) in [
        (options.batch == 0, "a batch of 0 packets"),
        (options.max_length == 0, "a queue in which 0 packets may wait"),
        (options.copy_range == 0, "0 bytes of each packet, of which a filter could see nothing"),
    ] {
        if is_wrong {
            return Err(NfqueueError::Option { queue: number, what });
        }
    }
    let copy_range = options.copy_range.min(MAX_PAYLOAD as u32);
    let layout = Layout::new(options.batch, options.room, copy_range as usize);
    // Before the queue is taken, so that no packet waits for a batch that cannot be.
    let arena = memory::arena(layout.arena()).map_err(|error| NfqueueError::Memory { queue: number, error })?;
    let gso = options.gso && options.room == ResizeRoom::None;
    let config = Config { copy_range, max_length: options.max_length, fail_open: options.fail_open, gso };
    let queue = Arc::new(Queue::take(number, &config, options.receive_buffer)?);
    let receiver = QueueReceiver::new(queue.clone(), *options, layout, arena);
    Ok((receiver, QueueExecutor::new(queue, *options)))
}
