//! What became of live packets, in numbers.

use portcullis_core::packet::Action;

/// What a receiver has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceivedCounts {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets in several pieces, which were put together.
    pub reassembled: u64,
    /// Checksums that the sender had left to its network card, and that were completed before the filter.
    pub checksums: u64,
    /// Packets that the kernel dropped because nobody took them in time.
    pub dropped_by_kernel: u64,
    /// Packets that were too long, or made no sense.
    pub refused: u64,
}

/// Why a packet that was to go somewhere went nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Its verdict was ABORTED.
    Aborted,
    /// Nothing stands behind the target that it was redirected to.
    NoTarget,
    /// Its source cannot carry out the verdict: there is no port that a packet of a netfilter queue could go out of.
    CannotTransmit,
    /// It was to be passed, and there is no way into the kernel's stack.
    NoStack,
    /// There was no room to send it, for as long as anybody wanted to wait.
    NoRoom,
    /// The interface that it was to go out of is down, or gone.
    Down,
    /// It is longer than where it was to go takes.
    TooLong,
    /// The system refused it.
    Refused,
    /// The device had no time for it.
    Overload,
    /// It was in its lane when the lane failed: received, and not through yet.
    Failed,
}

impl Loss {
    /// All of them, in order.
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

    /// In words, behind a number of packets.
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
            Loss::Failed => "on their way when the lane failed",
        }
    }

    /// For labels: `no_target`.
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

/// How many packets were lost, by the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses([u64; Loss::ALL.len()]);

impl Losses {
    /// Adds packets.
    pub fn add(&mut self, loss: Loss, packets: u64) {
        self.0[loss as usize] += packets;
    }

    /// The packets lost for one reason.
    pub fn of(&self, loss: Loss) -> u64 {
        self.0[loss as usize]
    }

    /// The same, to be changed.
    pub fn of_mut(&mut self, loss: Loss) -> &mut u64 {
        &mut self.0[loss as usize]
    }

    /// The packets lost in all.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// What an executor has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExecutedCounts {
    /// Packets whose verdict was carried out, by the verdict.
    pub packets: [u64; Action::ALL.len()],
    /// Their bytes, as they went out.
    pub bytes: [u64; Action::ALL.len()],
    /// Packets that went nowhere against their verdict, or for want of one.
    pub losses: Losses,
    /// Checksums that the sender had left to its network card, and that were completed after the filter.
    pub checksums: u64,
    /// Packets that came from where those go that pass, and went out unfiltered. They are in no other count.
    pub from_stack: u64,
    /// Packets that came from there and were lost: they made no sense, or had not left in the end. They are in no other count.
    pub from_stack_lost: u64,
}

impl ExecutedCounts {
    /// Packets whose verdict was carried out.
    pub fn of(&self, action: Action) -> u64 {
        self.packets[action as usize]
    }

    /// Adds a packet of this length whose verdict was carried out.
    pub fn add(&mut self, action: Action, length: usize) {
        self.packets[action as usize] += 1;
        self.bytes[action as usize] += length as u64;
    }

    /// Every packet is in here once.
    pub fn all(&self) -> u64 {
        self.packets.iter().sum::<u64>() + self.losses.all()
    }
}
