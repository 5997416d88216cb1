//! Counters of live packets.

use portcullis_core::packet::Action;

/// Counters of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceivedCounts {
    /// Packets received.
    pub packets: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Packets that arrived in several buffers and were reassembled.
    pub reassembled: u64,
    /// Partial checksums (left to a network card by the sender) that were completed before the
    /// filter.
    pub checksums: u64,
    /// Packets that the kernel dropped because they were not received in time.
    pub dropped_by_kernel: u64,
    /// Packets rejected because they were too long or malformed.
    pub refused: u64,
}

/// Why a packet could not be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The verdict was ABORTED.
    Aborted,
    /// No port is configured for the redirect target.
    NoTarget,
    /// The source cannot transmit: a netfilter queue has no port to send a packet out of.
    CannotTransmit,
    /// The verdict was PASS, but no path into the kernel's stack is configured.
    NoStack,
    /// The transmit queue stayed full for as long as the executor waits.
    NoRoom,
    /// The output interface is down or gone.
    Down,
    /// The packet exceeds the maximum length of its output.
    TooLong,
    /// The system refused the packet.
    Refused,
    /// The device was overloaded.
    Overload,
    /// The device or the lane failed while the packet was in flight.
    Failed,
}

impl Loss {
    /// All reasons, in order.
    pub const ALL: [Loss; 10] = [
        Loss::Aborted,
        Loss::NoTarget,
        Loss::CannotTransmit,
        Loss::NoStack,
        Loss::NoRoom,
        Loss::Down,
        Loss::TooLong,
        Loss::Refused,
        Loss::Overload,
        Loss::Failed,
    ];

    /// A description that follows a number of packets.
    pub fn text(self) -> &'static str {
        match self {
            Loss::Aborted => "aborted by the filter, or out of fuel",
            Loss::NoTarget => "redirected to a target that no interface stands for",
            Loss::CannotTransmit => "cannot be sent where they came from",
            Loss::NoStack => "passed, with no way into the kernel's stack",
            Loss::NoRoom => "no room to send them in time",
            Loss::Down => "the interface that they were to go out of is down or gone",
            Loss::TooLong => "too long for where they were to go",
            Loss::Refused => "refused by the system",
            Loss::Overload => "the device had no time for them",
            Loss::Failed => "on their way when the device or the lane failed",
        }
    }

    /// The label value in metrics and JSON, for example `no_target`.
    pub fn name(self) -> &'static str {
        match self {
            Loss::Aborted => "aborted",
            Loss::NoTarget => "no_target",
            Loss::CannotTransmit => "not_here",
            Loss::NoStack => "no_stack",
            Loss::NoRoom => "no_room",
            Loss::Down => "down",
            Loss::TooLong => "too_long",
            Loss::Refused => "refused",
            Loss::Overload => "overload",
            Loss::Failed => "failed",
        }
    }
}

/// Numbers of lost packets, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses([u64; Loss::ALL.len()]);

impl Losses {
    /// Adds packets lost for a reason.
    pub fn add(&mut self, loss: Loss, packets: u64) {
        self.0[loss as usize] += packets;
    }

    /// Number of packets lost for a reason.
    pub fn of(&self, loss: Loss) -> u64 {
        self.0[loss as usize]
    }

    /// Mutable access to the number of packets lost for a reason.
    pub fn of_mut(&mut self, loss: Loss) -> &mut u64 {
        &mut self.0[loss as usize]
    }

    /// Total number of lost packets.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Counters of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExecutedCounts {
    /// Packets whose verdict was executed, by verdict.
    pub packets: [u64; Action::ALL.len()],
    /// Bytes of these packets, by verdict, as they were sent.
    pub bytes: [u64; Action::ALL.len()],
    /// Packets lost after a forwarding verdict or without a verdict, by reason.
    pub losses: Losses,
    /// Partial checksums that were completed after the filter.
    pub checksums: u64,
    /// Packets from the kernel's stack that were forwarded unfiltered. No other counter includes
    /// them.
    pub from_stack: u64,
    /// Packets from the kernel's stack that were lost, malformed or still queued at the end. No
    /// other counter includes them.
    pub from_stack_lost: u64,
}

impl ExecutedCounts {
    /// Number of packets whose verdict was executed.
    pub fn of(&self, action: Action) -> u64 {
        self.packets[action as usize]
    }

    /// Counts one packet of this length as executed.
    pub fn add(&mut self, action: Action, length: usize) {
        self.packets[action as usize] += 1;
        self.bytes[action as usize] += length as u64;
    }

    /// Total number of packets, executed and lost; each packet is counted once.
    pub fn all(&self) -> u64 {
        self.packets.iter().sum::<u64>() + self.losses.all()
    }
}
