//! Netfilter queues (nfnetlink_queue): the kernel sends packets to a process and waits for
//! verdicts.
//!
//! A firewall rule sends packets here (`-j NFQUEUE --queue-num 0`, see docs/guide/nfqueue.md), and
//! each waits in the kernel until it gets a verdict. [`open`] binds a queue and returns the two
//! halves of its lane, for two threads:
//!
//! - [`QueueReceiver`] receives many messages per system call, directly into an arena. Packets are
//!   filtered where they were received; an Ethernet header for the filter overwrites the bytes of
//!   the message before the packet.
//! - [`QueueExecutor`] sends verdicts, batched into as few messages as possible.
//!
//! **The Ethernet header** has the sender's MAC address if the kernel knows it (for received
//! packets from links with 6-byte addresses) and zeros otherwise, zeros as the destination, and the
//! EtherType. The kernel's packet is whatever follows the first 14 bytes of what the filter leaves,
//! wherever it moved the start: changes to these 14 bytes have no effect.
//!
//! **Verdicts.** PASS accepts a packet, and replaces its bytes if the filter changed them. DROP
//! drops it. All other verdicts drop it too and count as a [`Loss`](crate::live::Loss). A packet
//! without a verdict, because its batch was dropped, gets the fallback verdict: accept with
//! [`QueueOptions::fail_open`], drop without.
//!
//! **Segmentation offload.** Packets may exceed the link's MTU, up to 64 KiB: locally generated
//! ones are only segmented on transmission, and received ones may have been coalesced. They are
//! delivered whole ([`QueueOptions::gso`]), with one verdict for all segments, except to filters
//! that change packet lengths: a packet of another length could not be segmented correctly any
//! more. Their checksums, and those of other locally generated packets, may be partial. A filter
//! that only reads sees the partial checksum, and the kernel completes it later. For a filter that
//! may write, the checksum is completed first: the filter may then update it incrementally, and the
//! kernel treats the returned packet's checksum as complete.

mod error;
mod executor;
mod memory;
pub mod message;
mod message_buffer;
mod pending;
mod queue;
mod receiver;
mod socket;
#[cfg(test)]
mod tests;
mod verdict_datagram;

use std::sync::Arc;

use portcullis_core::packet::{MIN_PACKET_LENGTH, ResizeRoom};
use portcullis_core::program::facts::Window;

pub use error::{NfqueueError, queue_range};
pub use executor::QueueExecutor;
pub use receiver::QueueReceiver;

use message::{Config, MAX_PAYLOAD};
use message_buffer::Layout;
use queue::Queue;

/// Length of the header put before a packet: two addresses and an EtherType.
const ETHERNET_HEADER: usize = MIN_PACKET_LENGTH as usize;

/// Configuration of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Queue number in the firewall rule.
    pub queue: u16,
    /// Maximum number of packets in a batch.
    pub batch: usize,
    /// Whether the filter changes packet lengths. If so, the kernel segments packets before it
    /// queues them.
    pub room: ResizeRoom,
    /// The bytes that the filter may change
    /// ([`Facts::writes`](portcullis_core::program::facts::Facts::writes)). They are copied on
    /// arrival and compared before the verdict, which is cheap for filters that only write headers:
    /// only packets that really changed are copied back into the kernel.
    pub writes: Window,
    /// Maximum number of bytes of a packet, without the Ethernet header, that are copied to the
    /// filter; the rest stays in the kernel. This saves most of the copying of long packets for
    /// filters that only read headers. A packet that was not copied completely cannot be changed.
    pub copy_range: u32,
    /// Whether packets longer than the MTU are delivered whole. Ignored with [`ResizeRoom::Both`].
    pub gso: bool,
    /// Whether packets without a verdict are accepted: because the queue is full, or because their
    /// batch was dropped. If no process has bound the queue, the rule decides (`--queue-bypass`).
    pub fail_open: bool,
    /// Maximum number of packets that wait for verdicts in the kernel.
    pub max_length: u32,
    /// Size of the socket's receive buffer in bytes. The system's limit (`net.core.rmem_max`) does
    /// not apply to processes with CAP_NET_ADMIN.
    pub receive_buffer: usize,
    /// Port number in packets' metadata.
    pub port: u32,
    /// Whether packets have metadata: original length, port, and time of arrival.
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

impl QueueOptions {
    /// Sets [`QueueOptions::queue`].
    #[must_use]
    pub fn with_queue(self, queue: u16) -> QueueOptions {
        QueueOptions { queue, ..self }
    }

    /// Sets [`QueueOptions::batch`].
    #[must_use]
    pub fn with_batch(self, batch: usize) -> QueueOptions {
        QueueOptions { batch, ..self }
    }

    /// Sets [`QueueOptions::room`].
    #[must_use]
    pub fn with_room(self, room: ResizeRoom) -> QueueOptions {
        QueueOptions { room, ..self }
    }

    /// Sets [`QueueOptions::writes`].
    #[must_use]
    pub fn with_writes(self, writes: Window) -> QueueOptions {
        QueueOptions { writes, ..self }
    }

    /// Sets [`QueueOptions::copy_range`].
    #[must_use]
    pub fn with_copy_range(self, copy_range: u32) -> QueueOptions {
        QueueOptions { copy_range, ..self }
    }

    /// Sets [`QueueOptions::gso`].
    #[must_use]
    pub fn with_gso(self, gso: bool) -> QueueOptions {
        QueueOptions { gso, ..self }
    }

    /// Sets [`QueueOptions::fail_open`].
    #[must_use]
    pub fn with_fail_open(self, fail_open: bool) -> QueueOptions {
        QueueOptions { fail_open, ..self }
    }

    /// Sets [`QueueOptions::max_length`].
    #[must_use]
    pub fn with_max_length(self, max_length: u32) -> QueueOptions {
        QueueOptions { max_length, ..self }
    }

    /// Sets [`QueueOptions::receive_buffer`].
    #[must_use]
    pub fn with_receive_buffer(self, receive_buffer: usize) -> QueueOptions {
        QueueOptions { receive_buffer, ..self }
    }

    /// Sets [`QueueOptions::port`].
    #[must_use]
    pub fn with_port(self, port: u32) -> QueueOptions {
        QueueOptions { port, ..self }
    }

    /// Sets [`QueueOptions::metadata`].
    #[must_use]
    pub fn with_metadata(self, metadata: bool) -> QueueOptions {
        QueueOptions { metadata, ..self }
    }
}

/// Binds a queue.
///
/// The queue is unbound when both halves and all batches are dropped.
///
/// # Errors
/// [`NfqueueError`] names the next step.
pub fn open(options: &QueueOptions) -> Result<(QueueReceiver, QueueExecutor), NfqueueError> {
    let number = options.queue;
    for (is_wrong, what) in [
        (options.batch == 0, "a batch size of 0 packets"),
        (options.max_length == 0, "a maximum of 0 waiting packets"),
        (options.copy_range == 0, "a copy range of 0 bytes, which leaves nothing to filter"),
    ] {
        if is_wrong {
            return Err(NfqueueError::Option { queue: number, what });
        }
    }
    let copy_range = options.copy_range.min(MAX_PAYLOAD as u32);
    let layout = Layout::new(options.batch, options.room, copy_range as usize);
    // Allocate before binding, so that no packet waits for a batch that cannot be built.
    let arena = memory::arena(layout.arena()).map_err(|error| NfqueueError::Memory { queue: number, error })?;
    let gso = options.gso && options.room == ResizeRoom::None;
    let config = Config { copy_range, max_length: options.max_length, fail_open: options.fail_open, gso };
    let queue = Arc::new(Queue::bind(number, &config, options.receive_buffer)?);
    let receiver = QueueReceiver::new(queue.clone(), *options, layout, arena);
    Ok((receiver, QueueExecutor::new(queue, *options)))
}
