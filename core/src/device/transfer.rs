//! How packets get to a device: what may be asked for, and what was done and measured.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;
use std::time::Duration;

use super::{DeviceError, LoadOptions};

/// How packets get to a device that is not the host's processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Transfer {
    /// By whichever way costs least, batch by batch ([`super::transfer_planner::plan_transfer`]).
    #[default]
    Auto,
    /// Every packet whole: in one copy with what lies between, or, where that is others', each by itself.
    Whole,
    /// Of each packet what the filter may read or write, gathered by the host.
    Window,
    /// Not at all: the device reads packets where they lie, in its own memory or in the host's.
    Imported,
}

impl Transfer {
    /// All of them.
    pub const ALL: [Transfer; 4] = [Transfer::Auto, Transfer::Whole, Transfer::Window, Transfer::Imported];

    /// What `--transfer` takes.
    pub fn name(self) -> &'static str {
        match self {
            Transfer::Auto => "auto",
            Transfer::Whole => "whole",
            Transfer::Window => "window",
            Transfer::Imported => "imported",
        }
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no transfer has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no transfer `{asked}`; there are auto, whole, window and imported")]
pub struct UnknownTransfer {
    /// What was asked for.
    pub asked: String,
}

impl FromStr for Transfer {
    type Err = UnknownTransfer;

    fn from_str(text: &str) -> Result<Transfer, UnknownTransfer> {
        let found = Transfer::ALL.into_iter().find(|transfer| transfer.name() == text);
        found.ok_or_else(|| UnknownTransfer { asked: text.escape_debug().to_string() })
    }
}

impl LoadOptions {
    /// Refuses to copy packets: for devices that filter them in the host's memory.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where a copy was asked for.
    pub fn refuse_copies(&self, device: &str) -> Result<(), DeviceError> {
        match self.transfer {
            Transfer::Auto | Transfer::Imported => Ok(()),
            Transfer::Whole | Transfer::Window => Err(DeviceError::Unsupported {
                device: device.into(),
                reason: format!(
                    "the transfer `{}` was asked for, and packets are filtered where they lie: take `imported` or `auto`",
                    self.transfer
                ),
            }),
        }
    }
}

/// Whose clock a time was taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// The host's: from when the device was free for the work, as far as the host knows, until the host saw its end. What
    /// is copied in and out for the same launch, and waking the host, is in it.
    #[default]
    Host,
    /// The device's own: nothing but the work.
    Device,
}

/// By which transfer batches came, each counted once. Those whose packets a filter does not look at are `without_access`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferCounts {
    /// No packet was looked at, and none was brought.
    pub unseen: u64,
    /// Packets lay in the device's own memory.
    pub resident: u64,
    /// Packets lay in the host's memory, where the device read them.
    pub imported: u64,
    /// Packets were copied whole.
    pub whole: u64,
    /// What the filter may read was gathered.
    pub window: u64,
}

/// What became of a session's time and bytes, from its first batch on, of the batches that are complete. Only with
/// [`LoadOptions::record_stages`]. Times of several batches that are under way at once overlap: their sum may be more than what the
/// clock on the wall has seen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stages {
    /// The host's time for copying packets, or their windows, to where the device copies them from, or reads them.
    pub gather: Duration,
    /// Bringing that to the device, with descriptors and metadata: on the device's clock where there is one, else the host's
    /// time for making and queueing it, gathering left out.
    pub upload: Duration,
    /// Running the filter.
    pub kernel: Duration,
    /// Bringing answers and changed packets back, on the device's clock; zero where there is none, since it is in `kernel` then.
    pub download: Duration,
    /// The host's time for making verdicts of the answers, and for writing changed bytes into the batch.
    pub verdicts: Duration,
    /// Whose clock `kernel` was taken on.
    pub clock: Clock,
    /// Bytes that were copied for the device to read: packets, descriptors, metadata. What it reads of the host's memory by
    /// itself is not counted, nor is anything of a batch in its own.
    pub bytes_to_device: u64,
    /// Bytes that were copied back: verdicts, targets, ends and packets.
    pub bytes_to_host: u64,
    /// Batches that are complete.
    pub batches: u64,
    /// Their packets.
    pub packets: u64,
    /// How they came.
    pub transfers: TransferCounts,
}

impl AddAssign for TransferCounts {
    fn add_assign(&mut self, other: TransferCounts) {
        self.unseen += other.unseen;
        self.resident += other.resident;
        self.imported += other.imported;
        self.whole += other.whole;
        self.window += other.window;
    }
}

/// The times of both; the device's clock only where both have it.
impl AddAssign for Stages {
    fn add_assign(&mut self, other: Stages) {
        let fresh = self.batches == 0;
        self.gather += other.gather;
        self.upload += other.upload;
        self.kernel += other.kernel;
        self.download += other.download;
        self.verdicts += other.verdicts;
        self.clock = if fresh || self.clock == other.clock { other.clock } else { Clock::Host };
        self.bytes_to_device += other.bytes_to_device;
        self.bytes_to_host += other.bytes_to_host;
        self.batches += other.batches;
        self.packets += other.packets;
        self.transfers += other.transfers;
    }
}

impl Stages {
    /// Adds a batch that was filtered in the host's memory in so much time: for devices that have nothing else to tell.
    pub fn record_batch(&mut self, packets: usize, kernel: Duration) {
        self.kernel += kernel;
        self.batches += 1;
        self.packets += packets as u64;
        self.transfers.imported += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_they_are_written() {
        for transfer in Transfer::ALL {
            assert_eq!(transfer.to_string().parse(), Ok(transfer));
        }
        let error = "Whole\n".parse::<Transfer>().unwrap_err().to_string();
        assert_eq!(error, "there is no transfer `Whole\\n`; there are auto, whole, window and imported");
    }

    #[test]
    fn sums_are_of_the_same_clock_only_where_both_are() {
        let of =
            |clock, kernel| Stages { clock, kernel: Duration::from_nanos(kernel), batches: 1, ..Stages::default() };
        let mut sum = Stages::default();
        sum += of(Clock::Device, 3);
        assert_eq!((sum.clock, sum.kernel), (Clock::Device, Duration::from_nanos(3)));
        sum += of(Clock::Device, 4);
        assert_eq!(sum.clock, Clock::Device);
        sum += of(Clock::Host, 5);
        assert_eq!((sum.clock, sum.kernel, sum.batches), (Clock::Host, Duration::from_nanos(12), 3));
    }
}
