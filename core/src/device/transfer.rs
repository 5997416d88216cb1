//! Transfers, how packets reach a device, and statistics of the transfers made.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;
use std::time::Duration;

use super::{DeviceError, LoadOptions};

/// How packets reach a device other than the host's processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Transfer {
    /// The cheapest transfer, chosen per batch ([`super::transfer_planner::plan_transfer`]).
    #[default]
    Auto,
    /// Whole packets: in one copy together with the bytes between them, or packet by packet if
    /// those bytes belong to others.
    Whole,
    /// The window of each packet that the filter may access, gathered by the host.
    Window,
    /// No copy: the device accesses the packets in place, in its own memory or the host's.
    Imported,
}

impl Transfer {
    /// All transfers.
    pub const ALL: [Transfer; 4] = [Transfer::Auto, Transfer::Whole, Transfer::Window, Transfer::Imported];

    /// The argument of `--transfer`.
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

/// Error of parsing a [`Transfer`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown transfer `{name}`; known are auto, whole, window and imported")]
pub struct UnknownTransfer {
    /// The unknown name, escaped.
    pub name: String,
}

impl FromStr for Transfer {
    type Err = UnknownTransfer;

    fn from_str(text: &str) -> Result<Transfer, UnknownTransfer> {
        let transfer = Transfer::ALL.into_iter().find(|transfer| transfer.name() == text);
        transfer.ok_or_else(|| UnknownTransfer { name: text.escape_debug().to_string() })
    }
}

impl LoadOptions {
    /// Refuses transfers that copy packets, for devices that filter them in host memory.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if a copy was requested.
    pub fn refuse_copies(&self, device: &str) -> Result<(), DeviceError> {
        match self.transfer {
            Transfer::Auto | Transfer::Imported => Ok(()),
            Transfer::Whole | Transfer::Window => Err(DeviceError::Unsupported {
                device: device.into(),
                reason: format!(
                    "the transfer `{}` was requested, but the device filters packets in place; use `imported` or `auto`",
                    self.transfer
                ),
            }),
        }
    }
}

/// The clock that a time was measured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// The host's clock: from the moment the device was free for the work, as far as the host
    /// knows, until the host saw it finish. Includes copies made by the same launch, and waking the
    /// host.
    #[default]
    Host,
    /// The device's clock, which measures the work alone.
    Device,
}

/// Number of batches per kind of transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferCounts {
    /// The filter accesses no packet bytes, so nothing was transferred.
    pub unseen: u64,
    /// Packets were in the device's own memory.
    pub resident: u64,
    /// The device accessed packets in host memory.
    pub imported: u64,
    /// Packets were copied whole.
    pub whole: u64,
    /// The windows of packets were gathered.
    pub window: u64,
}

/// Time and bytes of a session's completed batches, per stage. Recorded only with
/// [`record_stages`](super::MeasureOptions::record_stages). Batches in flight overlap, so the times
/// may add up to more than the elapsed time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stages {
    /// Host time for copying packets, or their windows, to where the device reads or copies them.
    pub gather: Duration,
    /// Copying that to the device, with descriptors and metadata: on the device's clock if it has
    /// one, else the host's time for recording and queueing it, without gathering.
    pub upload: Duration,
    /// Running the filter.
    pub kernel: Duration,
    /// Copying results and changed packets back, on the device's clock; zero without one, because
    /// it is part of `kernel` then.
    pub download: Duration,
    /// Host time for converting results to verdicts and writing changed bytes into the batch.
    pub verdicts: Duration,
    /// The clock that measured `kernel`.
    pub clock: Clock,
    /// Bytes copied for the device to read: packets, descriptors, metadata. Bytes that it accesses
    /// in place, in host or device memory, do not count.
    pub bytes_to_device: u64,
    /// Bytes copied back: verdicts, targets, descriptors and packets.
    pub bytes_to_host: u64,
    /// Number of completed batches.
    pub batches: u64,
    /// Number of packets in them.
    pub packets: u64,
    /// The kind of transfer of each batch.
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

/// Sums of both; the clock is the device's only if it is in both.
impl AddAssign for Stages {
    fn add_assign(&mut self, other: Stages) {
        let is_empty = self.batches == 0;
        self.gather += other.gather;
        self.upload += other.upload;
        self.kernel += other.kernel;
        self.download += other.download;
        self.verdicts += other.verdicts;
        self.clock = if is_empty || self.clock == other.clock { other.clock } else { Clock::Host };
        self.bytes_to_device += other.bytes_to_device;
        self.bytes_to_host += other.bytes_to_host;
        self.batches += other.batches;
        self.packets += other.packets;
        self.transfers += other.transfers;
    }
}

impl Stages {
    /// Adds a batch that was filtered in host memory, for devices without other stages.
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
    fn names_parse_to_the_transfer_that_prints_them() {
        for transfer in Transfer::ALL {
            assert_eq!(transfer.to_string().parse(), Ok(transfer));
        }
        let error = "Whole\n".parse::<Transfer>().unwrap_err().to_string();
        assert_eq!(error, "unknown transfer `Whole\\n`; known are auto, whole, window and imported");
    }

    #[test]
    fn sums_have_the_device_clock_only_if_both_have_it() {
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
