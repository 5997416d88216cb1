//! The transfer planner: decides per batch where a kernel finds the packets, by a cost model.

use std::fmt;
use std::num::NonZeroUsize;

use super::Transfer;
use super::chunk::{self, AccessNeeds, PacketLayout};
use crate::packet::{Batch, gather};

/// How a device reaches a batch's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryReach {
    /// The device cannot reach it; the host copies.
    Unreachable,
    /// Host memory over a bus: the device copies from it by DMA, and kernels can access it.
    Bus,
    /// Host memory that kernels access as fast as any other.
    Shared,
    /// The device's own memory.
    DeviceLocal,
}

/// A device's access to the memory of one batch.
#[derive(Debug)]
pub struct BatchMemory<I> {
    /// How the device reaches the memory.
    pub reach: MemoryReach,
    /// The backend's handle on memory that the device reaches.
    pub import: Option<I>,
    /// Unless packets are gathered or resized, kernels require those with bytes to start at
    /// multiples of 4 bytes.
    pub word_aligned_only: bool,
    /// The device can only gather: it cannot copy packets together with the bytes between them.
    pub gather_only: bool,
}

impl<I> BatchMemory<I> {
    /// Memory that the device cannot reach.
    pub fn unreachable() -> BatchMemory<I> {
        BatchMemory { reach: MemoryReach::Unreachable, import: None, word_aligned_only: false, gather_only: false }
    }
}

/// Where the value of a cost comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostSource {
    /// A default.
    Assumed,
    /// Measured in this run.
    Measured,
    /// Measured in an earlier run.
    Cached,
}

/// Cost model for moving bytes on a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransferCosts {
    /// Bandwidth of the device's bus in bytes per nanosecond; infinite if the device reads host
    /// memory directly.
    pub bus_bytes_per_ns: f64,
    /// Bandwidth of a sequential copy by the host, from uncached memory, in bytes per nanosecond.
    pub copy_bytes_per_ns: f64,
    /// Time in nanoseconds in which the host gathers [`REFERENCE_WINDOW`] bytes of a packet if
    /// packets are close together.
    pub gather_packed_ns: f64,
    /// Time in nanoseconds for the same if packets are more than [`FAR_STRIDE`] bytes apart.
    pub gather_slots_ns: f64,
    /// Source of the bus bandwidth.
    pub bus_source: CostSource,
    /// Source of the other costs.
    pub host_source: CostSource,
}

/// Distance between packets, in bytes, above which they share no pages and the hardware prefetcher
/// fetches none of them.
pub const FAR_STRIDE: u64 = 1024;

/// Window in bytes that the gathering costs are measured for; larger windows cost proportionally
/// more.
pub const REFERENCE_WINDOW: f64 = 64.0;

impl TransferCosts {
    /// Defaults: one core and a PCIe 4.0 x16 bus.
    pub const GEN4: TransferCosts = TransferCosts {
        bus_bytes_per_ns: 25.0,
        copy_bytes_per_ns: 10.0,
        gather_packed_ns: 3.0,
        gather_slots_ns: 8.0,
        bus_source: CostSource::Assumed,
        host_source: CostSource::Assumed,
    };

    /// Measures the host's costs with this many threads, in a few milliseconds; the bus is that of
    /// [`TransferCosts::GEN4`].
    pub fn measure(threads: NonZeroUsize) -> TransferCosts {
        measure::measure_host(threads)
    }

    /// Replaces the bus by direct access, for a device that shares the host's memory.
    pub fn without_bus(self) -> TransferCosts {
        TransferCosts { bus_bytes_per_ns: f64::INFINITY, ..self }
    }
}

impl fmt::Display for TransferCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |source| match source {
            CostSource::Assumed => "assumed",
            CostSource::Measured => "measured",
            CostSource::Cached => "measured earlier",
        };
        match self.bus_bytes_per_ns.is_finite() {
            true => write!(f, "bus {:.1} bytes/ns ({}), ", self.bus_bytes_per_ns, name(self.bus_source))?,
            false => f.write_str("no bus, ")?,
        }
        write!(
            f,
            "host copy {:.1} bytes/ns, gathering 64 bytes per packet {:.1} ns, from slots {:.1} ns ({})",
            self.copy_bytes_per_ns,
            self.gather_packed_ns,
            self.gather_slots_ns,
            name(self.host_source)
        )
    }
}

/// Predicted cost of copying whole packets and of gathering windows, as the mean per packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostEstimate {
    /// Distance in bytes from one packet to the next.
    pub stride: f64,
    /// Time in nanoseconds to copy that many bytes.
    pub whole_ns: f64,
    /// Bytes that the filter may access.
    pub window: f64,
    /// Time in nanoseconds to gather and transfer them.
    pub window_ns: f64,
    /// Share of `window_ns` that is gathering.
    pub gather_ns: f64,
    /// The costs that the estimate is based on.
    pub costs: TransferCosts,
}

/// The reason for a plan's layout.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum PlanReason {
    /// The filter accesses no packet bytes.
    NoAccess,
    /// The caller requested it.
    Requested,
    /// The device reaches the packets in place without a penalty.
    Reachable,
    /// The packets are in separate frames and in no cache. A device has thousands of reads in
    /// flight, where the host would stall on each.
    SeparateFrames,
    /// The bytes between the packets belong to others and must not be copied.
    Scattered,
    /// Some packets do not start at a multiple of 4 bytes, as kernels require.
    Misaligned,
    /// The device can only gather.
    GatherOnly,
    /// The cheaper of whole packets and windows.
    Cheaper(CostEstimate),
    /// The fastest in trials with earlier batches of the session.
    Measured(MeasuredTimes),
}

/// Times of a session's own batches by each transfer, in nanoseconds per packet; `None` for
/// transfers that its batches cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeasuredTimes {
    /// By [`Transfer::Whole`].
    pub whole_ns: Option<f64>,
    /// By [`Transfer::Window`].
    pub window_ns: Option<f64>,
    /// By [`Transfer::Imported`].
    pub imported_ns: Option<f64>,
}

/// Where a kernel finds a batch's packets, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransferPlan {
    /// The layout of the packets.
    pub layout: PacketLayout,
    /// The window to copy of each packet, if packets are copied one by one.
    pub needs: AccessNeeds,
    /// How the device reaches the batch's memory.
    pub reach: MemoryReach,
    /// The reason for the layout.
    pub reason: PlanReason,
}

impl TransferPlan {
    /// The plan for a filter that accesses no packet bytes.
    pub fn without_access(needs: AccessNeeds) -> TransferPlan {
        TransferPlan {
            layout: PacketLayout::NoAccess,
            needs,
            reach: MemoryReach::Unreachable,
            reason: PlanReason::NoAccess,
        }
    }

    /// The transfer that this amounts to; `None` if nothing is transferred.
    pub fn transfer(&self) -> Option<Transfer> {
        match self.layout {
            PacketLayout::NoAccess => None,
            PacketLayout::InPlace => Some(Transfer::Imported),
            PacketLayout::Copied => Some(Transfer::Whole),
            PacketLayout::Packed if self.needs.window == u32::MAX => Some(Transfer::Whole),
            PacketLayout::Packed | PacketLayout::Rows => Some(Transfer::Window),
        }
    }
}

impl fmt::Display for TransferPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.transfer(), self.reach) {
            (None, _) => return f.write_str("no transfer: the filter accesses no packet bytes"),
            (Some(Transfer::Imported), MemoryReach::DeviceLocal) => {
                f.write_str("resident: packets are in the device's own memory")?
            }
            (Some(Transfer::Imported), MemoryReach::Bus) => {
                f.write_str("imported: the device reads packets over the bus")?
            }
            (Some(Transfer::Imported), _) => f.write_str("imported: the device accesses packets in host memory")?,
            (Some(Transfer::Window), _) => {
                write!(f, "window: the first {} bytes of each packet are gathered", self.needs.window)?
            }
            (Some(_), _) if self.layout == PacketLayout::Packed => {
                f.write_str("whole: packets are copied one by one")?
            }
            (Some(_), _) => f.write_str("whole: packets are copied as one range")?,
        }
        match self.reason {
            PlanReason::NoAccess | PlanReason::Reachable => Ok(()),
            PlanReason::Requested => f.write_str("; as requested"),
            PlanReason::SeparateFrames => {
                f.write_str("; they are in separate, uncached frames, and the host would stall on each")
            }
            PlanReason::Scattered => f.write_str("; the bytes between them belong to others"),
            PlanReason::Misaligned => f.write_str("; not all of them start at a multiple of 4 bytes"),
            PlanReason::GatherOnly => f.write_str("; the device supports no other transfer"),
            PlanReason::Cheaper(CostEstimate { stride, whole_ns, window, window_ns, gather_ns, .. }) => write!(
                f,
                "; per packet, copying it whole takes {whole_ns:.1} ns ({stride:.0} bytes), its window {window_ns:.1} ns \
                 ({window:.0} bytes, {gather_ns:.1} ns of it gathering)"
            ),
            PlanReason::Measured(MeasuredTimes { whole_ns, window_ns, imported_ns }) => {
                f.write_str("; the fastest of")?;
                let times = [("whole", whole_ns), ("window", window_ns), ("imported", imported_ns)];
                for (number, (name, ns)) in times.iter().filter_map(|(name, ns)| Some((name, (*ns)?))).enumerate() {
                    write!(f, "{} {name} {ns:.2} ns", if number == 0 { "" } else { "," })?;
                }
                f.write_str(" a packet, measured in this session")
            }
        }
    }
}

/// Sizes of a batch that the decision depends on.
struct BatchSizes<'a> {
    batch: &'a Batch,
    needs: AccessNeeds,
    packets: u64,
    /// Bytes to copy if packets are copied one by one.
    window: u64,
}

impl BatchSizes<'_> {
    fn of(batch: &Batch, needs: AccessNeeds) -> BatchSizes<'_> {
        let packets = batch.len() as u64;
        let window = batch.summary().window_bytes(batch.descriptors(), needs.window) + packets * 2 * needs.room_bytes();
        BatchSizes { batch, needs, packets, window }
    }

    /// Whether rows of equal stride take at most 25 % more memory than packing the windows.
    fn fits_rows(&self) -> bool {
        let needs = self.needs;
        let rows = self.packets * gather::stride(needs.window) as u64;
        // Either way a packet takes whole words.
        !needs.room && (1..u32::MAX).contains(&needs.window) && 4 * rows <= 5 * (self.window + 3 * self.packets)
    }

    /// Estimates both ways of copying.
    fn estimate(&self, reach: MemoryReach, costs: &TransferCosts) -> CostEstimate {
        let packets = (self.packets as f64).max(1.0);
        let extent = chunk::extent(self.batch, 0..self.batch.len(), self.needs).map_or(0, |all| all.end - all.start);
        let (stride, window) = (extent as f64 / packets, self.window as f64 / packets);
        let copy = if reach == MemoryReach::Bus { 0.0 } else { stride / costs.copy_bytes_per_ns };
        let gather_ns = if stride > FAR_STRIDE as f64 { costs.gather_slots_ns } else { costs.gather_packed_ns };
        let gather_ns = gather_ns * (window / REFERENCE_WINDOW).max(1.0);
        CostEstimate {
            stride,
            whole_ns: stride / costs.bus_bytes_per_ns + copy,
            window,
            window_ns: window / costs.bus_bytes_per_ns + gather_ns,
            gather_ns,
            costs: *costs,
        }
    }
}

/// Decides where a kernel finds the packets of a batch. The batch is not empty, and the kernel
/// accesses packet bytes.
///
/// Packets stay in place if the device reaches them without a penalty, or if they are in separate
/// frames that it reaches over a bus. Otherwise the cheaper way of copying wins. Copying whole
/// packets moves the bytes from one packet to the next over the bus, after a copy by the host
/// unless the device reaches the memory. Copying windows costs gathering, but moves fewer bytes
/// over the bus. `costs` is called only for that comparison.
///
/// # Errors
/// The reason why the batch cannot be filtered with [`Transfer::Imported`].
pub fn plan_transfer<I>(
    batch: &Batch,
    needs: AccessNeeds,
    memory: &BatchMemory<I>,
    requested: Transfer,
    costs: impl FnOnce() -> TransferCosts,
) -> Result<TransferPlan, &'static str> {
    let (reach, is_reachable) = (memory.reach, memory.reach != MemoryReach::Unreachable);
    let plan = |layout, needs, reason| Ok(TransferPlan { layout, needs, reach, reason });
    let aligned = !memory.word_aligned_only || needs.room || batch.summary().is_word_aligned;
    let sizes = || BatchSizes::of(batch, needs);
    let gather_layout = || if sizes().fits_rows() { PacketLayout::Rows } else { PacketLayout::Packed };
    let whole = AccessNeeds { window: u32::MAX, ..needs };
    match requested {
        Transfer::Imported if !is_reachable => return Err("the device cannot access their memory"),
        Transfer::Imported if !aligned => {
            return Err("the device filters packets in place only if all of them start at multiples of 4 bytes");
        }
        Transfer::Imported => return plan(PacketLayout::InPlace, needs, PlanReason::Requested),
        Transfer::Window => return plan(gather_layout(), needs, PlanReason::Requested),
        Transfer::Whole if memory.gather_only || batch.is_scattered() || !aligned => {
            return plan(PacketLayout::Packed, whole, PlanReason::Requested);
        }
        Transfer::Whole => return plan(PacketLayout::Copied, needs, PlanReason::Requested),
        Transfer::Auto => {}
    }
    if aligned && matches!(reach, MemoryReach::DeviceLocal | MemoryReach::Shared) {
        return plan(PacketLayout::InPlace, needs, PlanReason::Reachable);
    }
    match () {
        () if !aligned => plan(gather_layout(), needs, PlanReason::Misaligned),
        () if memory.gather_only => plan(gather_layout(), needs, PlanReason::GatherOnly),
        () if batch.is_scattered() && is_reachable => plan(PacketLayout::InPlace, needs, PlanReason::SeparateFrames),
        () if batch.is_scattered() => plan(gather_layout(), needs, PlanReason::Scattered),
        () => {
            let estimate = sizes().estimate(reach, &costs());
            let layout = if estimate.whole_ns > estimate.window_ns { gather_layout() } else { PacketLayout::Copied };
            plan(layout, needs, PlanReason::Cheaper(estimate))
        }
    }
}

mod measure;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Arena, BatchCutter, Descriptor, ResizeRoom};

    const HEADERS: AccessNeeds = AccessNeeds { window: 54, room: false };
    const MOVES: AccessNeeds = AccessNeeds { window: u32::MAX, room: true };

    /// Returns memory as a GPU sees it whose kernels require word alignment.
    fn memory(reach: MemoryReach) -> BatchMemory<()> {
        BatchMemory { reach, word_aligned_only: true, ..BatchMemory::unreachable() }
    }

    fn batch(stride: u32, first: u32, length: u32) -> Batch {
        let descriptors = (0..100).map(|i| Descriptor { offset: first + i * stride, length }).collect();
        BatchCutter::new(Arena::new(1 << 20).unwrap(), None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()
    }

    fn layout(batch: &Batch, needs: AccessNeeds, reach: MemoryReach) -> PacketLayout {
        let plan = plan_transfer(batch, needs, &memory(reach), Transfer::Auto, || TransferCosts::GEN4).unwrap();
        if plan.layout == PacketLayout::Rows { PacketLayout::Packed } else { plan.layout }
    }

    #[test]
    fn packets_in_frames_are_filtered_in_place_over_a_bus() {
        let frames = Batch::in_frames(&vec![vec![0; 60]; 10]).unwrap();
        for needs in [HEADERS, MOVES] {
            assert_eq!(layout(&frames, needs, MemoryReach::Bus), PacketLayout::InPlace);
            assert_eq!(layout(&frames, needs, MemoryReach::Unreachable), PacketLayout::Packed);
        }
    }

    #[test]
    fn packets_in_device_memory_stay_there() {
        for (stride, first, length) in [(64, 0, 60), (2112, 0, 1500), (320, 128, 60)] {
            assert_eq!(layout(&batch(stride, first, length), HEADERS, MemoryReach::DeviceLocal), PacketLayout::InPlace);
        }
        // Filters that resize packets accept any alignment; others need words.
        assert_eq!(layout(&batch(320, 130, 60), MOVES, MemoryReach::DeviceLocal), PacketLayout::InPlace);
        assert_eq!(layout(&batch(320, 130, 60), HEADERS, MemoryReach::DeviceLocal), PacketLayout::Packed);
        assert_eq!(layout(&batch(64, 2, 60), HEADERS, MemoryReach::Bus), PacketLayout::Packed);
        assert_eq!(layout(&batch(320, 130, 60), MOVES, MemoryReach::Bus), PacketLayout::Copied);
        // Without alignment requirements nothing prevents filtering in place.
        let bytes = BatchMemory { word_aligned_only: false, ..memory(MemoryReach::Shared) };
        let plan = plan_transfer(&batch(64, 2, 60), HEADERS, &bytes, Transfer::Auto, || TransferCosts::GEN4).unwrap();
        assert_eq!((plan.layout, plan.reason), (PacketLayout::InPlace, PlanReason::Reachable));
    }

    /// Each row has, in tenths of a nanosecond where it is a time: stride, packet length, window,
    /// bus and copy bandwidth in bytes per nanosecond, gathering of adjacent packets and of slots;
    /// then the cheaper layout if the device copies from host memory, and if the host copies.
    #[test]
    fn the_cheaper_of_window_and_whole_is_chosen() {
        let table = [
            // 54 bytes of window, and the 75 bytes that the bus moves during gathering.
            (128, 60, 54, 25, 10, 30, 80, PacketLayout::Copied, PacketLayout::Packed),
            (132, 60, 54, 25, 10, 30, 80, PacketLayout::Packed, PacketLayout::Packed),
            // The window is the whole packet.
            (64, 64, 64, 25, 64, 30, 80, PacketLayout::Copied, PacketLayout::Copied),
            // Whole: 64 bytes over the bus and through the host, 2.56 + 6.4; window: 1.36 + 3.
            (64, 60, 34, 25, 10, 30, 80, PacketLayout::Copied, PacketLayout::Packed),
            // Slots: 2,112 bytes are 84.5 ns, the window 2.2 + 8.
            (2112, 1500, 54, 25, 10, 30, 80, PacketLayout::Packed, PacketLayout::Packed),
            // A bus faster than gathering: 2.1 against 8.05; the host's copy takes 211.
            (2112, 1500, 54, 1000, 10, 30, 80, PacketLayout::Copied, PacketLayout::Packed),
            // A window of 1,280 bytes costs 20 times that of 64: 60 + 51 on the bus, against 61.
            (1524, 1500, 1280, 25, 10, 30, 30, PacketLayout::Copied, PacketLayout::Packed),
        ];
        for (stride, length, window, bus, copy, packed, slots, by_device, by_host) in table {
            let costs = TransferCosts {
                bus_bytes_per_ns: bus.into(),
                copy_bytes_per_ns: copy.into(),
                gather_packed_ns: f64::from(packed) / 10.0,
                gather_slots_ns: f64::from(slots) / 10.0,
                ..TransferCosts::GEN4
            };
            // With this many packets the shorter end of the last one is negligible.
            let descriptors = (0..1000).map(|i| Descriptor { offset: i * stride, length }).collect();
            let arena = Arena::new(4 << 20).unwrap();
            let batch = BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap();
            for (reach, wanted) in [(MemoryReach::Bus, by_device), (MemoryReach::Unreachable, by_host)] {
                let needs = AccessNeeds { window, room: false };
                let plan = plan_transfer(&batch, needs, &memory(reach), Transfer::Auto, || costs).unwrap();
                let wanted = if wanted == PacketLayout::Packed { PacketLayout::Rows } else { wanted };
                assert_eq!(plan.layout, wanted, "{stride} {length} {window} {reach:?}: {plan}");
            }
        }
    }

    #[test]
    fn rows_are_used_for_packets_that_fill_them() {
        let layout = |short: usize, long: usize, window| {
            let lengths = [vec![60_u32; short], vec![1500; long]].concat();
            let packets: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length as usize]).collect();
            let (batch, needs) = (Batch::from_packets(&packets).unwrap(), AccessNeeds { window, room: false });
            plan_transfer(&batch, needs, &memory(MemoryReach::Unreachable), Transfer::Window, || TransferCosts::GEN4)
                .unwrap()
                .layout
        };
        assert_eq!((layout(10, 10, 54), layout(10, 10, 60)), (PacketLayout::Rows, PacketLayout::Rows));
        // Twenty rows of 1,400 bytes are 28,000 bytes, for 14,600 bytes of windows, rounded up to
        // words.
        assert_eq!((layout(10, 10, 1400), layout(1, 19, 1400)), (PacketLayout::Packed, PacketLayout::Rows));
        // Filters without a window, or that resize packets, use no rows.
        assert_eq!(layout(0, 10, u32::MAX), PacketLayout::Packed);
    }

    #[test]
    fn requested_transfers_are_made_or_refused() {
        let (packed, frames) = (batch(64, 0, 60), Batch::in_frames(&vec![vec![0; 60]; 10]).unwrap());
        let of = |batch: &Batch, reach, transfer| {
            plan_transfer(batch, HEADERS, &memory(reach), transfer, || TransferCosts::GEN4)
                .map(|plan| (plan.layout, plan.transfer()))
        };
        for reach in [MemoryReach::Unreachable, MemoryReach::Bus, MemoryReach::Shared, MemoryReach::DeviceLocal] {
            for batch in [&packed, &frames] {
                let window = of(batch, reach, Transfer::Window);
                assert_eq!(window, Ok((PacketLayout::Rows, Some(Transfer::Window))));
                let layout = if batch.is_scattered() { PacketLayout::Packed } else { PacketLayout::Copied };
                assert_eq!(of(batch, reach, Transfer::Whole), Ok((layout, Some(Transfer::Whole))));
                match of(batch, reach, Transfer::Imported) {
                    Ok(plan) => {
                        assert!(
                            reach != MemoryReach::Unreachable
                                && plan == (PacketLayout::InPlace, Some(Transfer::Imported))
                        )
                    }
                    Err(reason) => {
                        assert!(reach == MemoryReach::Unreachable && reason == "the device cannot access their memory")
                    }
                }
            }
        }
        let off = of(&batch(64, 2, 60), MemoryReach::DeviceLocal, Transfer::Imported).unwrap_err();
        assert!(off.contains("multiples of 4 bytes"), "{off}");
        assert_eq!(
            of(&batch(64, 2, 60), MemoryReach::Bus, Transfer::Whole),
            Ok((PacketLayout::Packed, Some(Transfer::Whole)))
        );
        let one_by_one = BatchMemory { gather_only: true, ..memory(MemoryReach::Unreachable) };
        let plan = plan_transfer(&packed, HEADERS, &one_by_one, Transfer::Whole, || TransferCosts::GEN4).unwrap();
        assert_eq!((plan.layout, plan.needs.window), (PacketLayout::Packed, u32::MAX));
    }
}
