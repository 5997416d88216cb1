//! The transfer planner: where a kernel is to find a batch's packets, and why there.

use std::fmt;

use super::Transfer;
use super::chunk::{self, AccessNeeds, PacketLayout};
use crate::packet::{Batch, gather};

/// How a device reaches a batch's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryReach {
    /// Not by itself: the host copies.
    Unreachable,
    /// The host's memory, over a bus: it copies from there by itself, and kernels read there.
    Bus,
    /// The host's memory, which kernels may as well work on as on any other.
    Shared,
    /// Its own memory.
    DeviceLocal,
}

/// What a device has to do with a batch's memory.
#[derive(Debug)]
pub struct BatchMemory<I> {
    /// How it reaches that.
    pub reach: MemoryReach,
    /// What it needs to know of memory that it reaches.
    pub import: Option<I>,
    /// Where packets are not gathered, kernels count on them to begin at words, but for those of filters that move packets.
    pub word_aligned_only: bool,
    /// It has no way to copy packets together with what lies between.
    pub gather_only: bool,
}

impl<I> BatchMemory<I> {
    /// Memory that a device does not reach.
    pub fn unreachable() -> BatchMemory<I> {
        BatchMemory { reach: MemoryReach::Unreachable, import: None, word_aligned_only: false, gather_only: false }
    }
}

/// How a cost is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostSource {
    /// It was not measured here.
    Assumed,
    /// It was measured in this run,
    Measured,
    /// and before it.
    Cached,
}

/// What moving bytes costs on a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransferCosts {
    /// Bytes that a device's bus brings in a nanosecond; infinite where there is none, and what the host writes is where the
    /// device reads it.
    pub bus_bytes_per_ns: f64,
    /// Bytes that the host copies in a nanosecond, one behind the other, from memory.
    pub copy_bytes_per_ns: f64,
    /// Nanoseconds that gathering [`REFERENCE_WINDOW`] bytes of a packet takes the host where packets lie close together,
    pub gather_packed_ns: f64,
    /// and where they lie more than [`FAR_STRIDE`] bytes apart.
    pub gather_slots_ns: f64,
    /// How the bus is known,
    pub bus_source: CostSource,
    /// and the rest.
    pub host_source: CostSource,
}

/// Packets further apart than this do not share pages, and hardware fetches none of them ahead.
pub const FAR_STRIDE: u64 = 1024;

/// Bytes of the window that gathering takes so long for; longer ones take as much longer.
pub const REFERENCE_WINDOW: f64 = 64.0;

impl TransferCosts {
    /// One core and a PCIe gen 4 bus of 16 lanes (docs/design.md, section 7), where nothing was measured.
    pub const GEN4: TransferCosts = TransferCosts {
        bus_bytes_per_ns: 25.0,
        copy_bytes_per_ns: 10.0,
        gather_packed_ns: 3.0,
        gather_slots_ns: 8.0,
        bus_source: CostSource::Assumed,
        host_source: CostSource::Assumed,
    };

    /// What the host's share costs on this machine, measured now, in some milliseconds, and the bus of [`TransferCosts::GEN4`].
    pub fn measure() -> TransferCosts {
        measure::measure_host()
    }

    /// The same machine, and a device whose memory is the host's.
    pub fn without_bus(self) -> TransferCosts {
        TransferCosts { bus_bytes_per_ns: f64::INFINITY, ..self }
    }
}

impl fmt::Display for TransferCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = |known| match known {
            CostSource::Assumed => "assumed",
            CostSource::Measured => "measured",
            CostSource::Cached => "measured before",
        };
        match self.bus_bytes_per_ns.is_finite() {
            true => write!(f, "a bus of {:.1} bytes/ns ({}), ", self.bus_bytes_per_ns, how(self.bus_source))?,
            false => f.write_str("no bus, ")?,
        }
        write!(
            f,
            "copying {:.1} bytes/ns, gathering 64 bytes of a packet {:.1} ns, from slots {:.1} ns ({})",
            self.copy_bytes_per_ns,
            self.gather_packed_ns,
            self.gather_slots_ns,
            how(self.host_source)
        )
    }
}

/// Both ways of copying a packet, on average over a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostEstimate {
    /// Bytes from one packet's start to the next one's.
    pub stride: f64,
    /// Nanoseconds for those.
    pub whole_ns: f64,
    /// Bytes that the filter may read or write.
    pub window: f64,
    /// Nanoseconds for gathering and bringing them.
    pub window_ns: f64,
    /// Nanoseconds of that for gathering.
    pub gather_ns: f64,
    /// What they were reckoned with.
    pub costs: TransferCosts,
}

/// Why packets are where they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PlanReason {
    /// The filter looks at none.
    NoAccess,
    /// It was asked for.
    Requested,
    /// The device reaches them there, and nothing has to be moved.
    Reachable,
    /// They lie in frames of their own, written by others and in no cache: the device has thousands of reads under way where the
    /// host would wait for each.
    SeparateFrames,
    /// What lies between is others', and is not to be copied.
    Scattered,
    /// Kernels count on words, at which not all packets begin.
    Misaligned,
    /// The device has no other way.
    GatherOnly,
    /// That takes less time.
    Cheaper(CostEstimate),
}

/// Where a kernel is to find a batch's packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransferPlan {
    /// Where they lie.
    pub layout: PacketLayout,
    /// What is copied of each, where they are copied one by one.
    pub needs: AccessNeeds,
    /// How the device reaches them.
    pub reach: MemoryReach,
    /// Why.
    pub reason: PlanReason,
}

impl TransferPlan {
    /// Of a filter that looks at no packet.
    pub fn without_access(needs: AccessNeeds) -> TransferPlan {
        TransferPlan {
            layout: PacketLayout::NoAccess,
            needs,
            reach: MemoryReach::Unreachable,
            reason: PlanReason::NoAccess,
        }
    }

    /// The transfer that this is: `None` where nothing is transferred since no packet is looked at.
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
            (None, _) => return f.write_str("nothing is transferred: the filter looks at no packet"),
            (Some(Transfer::Imported), MemoryReach::DeviceLocal) => {
                f.write_str("resident: packets are in the device's own memory")?
            }
            (Some(Transfer::Imported), MemoryReach::Bus) => {
                f.write_str("imported: the device reads packets over the bus")?
            }
            (Some(Transfer::Imported), _) => f.write_str("imported: the device works on the host's memory")?,
            (Some(Transfer::Window), _) => {
                write!(f, "window: {} bytes of each packet are gathered", self.needs.window)?
            }
            (Some(_), _) if self.layout == PacketLayout::Packed => {
                f.write_str("whole: each packet is copied by itself")?
            }
            (Some(_), _) => f.write_str("whole: packets are copied as they lie")?,
        }
        match self.reason {
            PlanReason::NoAccess | PlanReason::Reachable => Ok(()),
            PlanReason::Requested => f.write_str("; it was asked for"),
            PlanReason::SeparateFrames => {
                f.write_str("; they lie in frames of their own, which the host would wait for one by one")
            }
            PlanReason::Scattered => f.write_str("; what lies between them is others'"),
            PlanReason::Misaligned => f.write_str("; not all of them begin at multiples of 4 bytes"),
            PlanReason::GatherOnly => f.write_str("; the device takes them in no other way"),
            PlanReason::Cheaper(CostEstimate { stride, whole_ns, window, window_ns, gather_ns, .. }) => write!(
                f,
                "; a packet whole is {stride:.0} bytes and {whole_ns:.1} ns, its window {window:.0} bytes and {window_ns:.1} ns, \
                 of which gathering is {gather_ns:.1}"
            ),
        }
    }
}

/// What a batch's packets are like, as far as it matters here.
#[derive(Clone, Copy)]
struct BatchScan {
    aligned: bool,
    window: u64,
    extent: u64,
    packets: u64,
}

impl BatchScan {
    fn of(batch: &Batch, needs: AccessNeeds) -> BatchScan {
        // One pass, without branches: it is most of what the host does for a packet.
        let (mut offsets, mut window) = (0, 0_u64);
        for d in batch.descriptors() {
            offsets |= if d.length > 0 { d.offset } else { 0 };
            window += u64::from(needs.of(d.length));
        }
        let packets = batch.len() as u64;
        let extent = chunk::extent(batch, 0..batch.len(), needs).map_or(0, |all| all.end - all.start);
        BatchScan { aligned: offsets % 4 == 0, window: window + packets * 2 * needs.margin(), extent, packets }
    }

    /// Whether windows lie in rows of one length: where that takes little more room than the packets do.
    fn fits_rows(&self, needs: AccessNeeds) -> bool {
        let rows = self.packets * gather::stride(needs.window) as u64;
        // A packet takes whole words either way.
        !needs.room && (1..u32::MAX).contains(&needs.window) && 4 * rows <= 5 * (self.window + 3 * self.packets)
    }

    /// Both ways of copying, where the device copies from the host's memory by itself or not.
    fn estimate(&self, reach: MemoryReach, costs: &TransferCosts) -> CostEstimate {
        let packets = (self.packets as f64).max(1.0);
        let (stride, window) = (self.extent as f64 / packets, self.window as f64 / packets);
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

/// Decides where a kernel finds the packets of a batch, which is not empty and of which it sees packets.
///
/// The rule: what the device reaches as if it were its own stays where it is. Frames that it reaches over a bus too. Else packets
/// are copied by whichever way takes less time, all told: whole, which is the bytes from one packet to the next over the bus,
/// and copying them to where the device copies from, unless it reaches them; or their windows, which is gathering those and
/// bringing fewer bytes over the bus. `costs` are asked for only then.
///
/// # Errors
/// Why [`Transfer::Imported`] is not to be had for the batch.
pub fn plan_transfer<I>(
    batch: &Batch,
    needs: AccessNeeds,
    site: &BatchMemory<I>,
    requested: Transfer,
    costs: impl FnOnce() -> TransferCosts,
) -> Result<TransferPlan, &'static str> {
    let (reach, reached) = (site.reach, site.reach != MemoryReach::Unreachable);
    let plan = |layout, needs, reason| Ok(TransferPlan { layout, needs, reach, reason });
    // Without a look at the packets, where that says nothing.
    let looked = (site.word_aligned_only && !needs.room).then(|| BatchScan::of(batch, needs));
    let aligned = looked.as_ref().is_none_or(|scan| scan.aligned);
    let scan = || looked.unwrap_or_else(|| BatchScan::of(batch, needs));
    let gathered = |scan: &BatchScan| if scan.fits_rows(needs) { PacketLayout::Rows } else { PacketLayout::Packed };
    let whole = AccessNeeds { window: u32::MAX, ..needs };
    match requested {
        Transfer::Imported if !reached => return Err("the device does not reach their memory by itself"),
        Transfer::Imported if !aligned => {
            return Err("the device takes packets where they lie only if all begin at multiples of 4 bytes");
        }
        Transfer::Imported => return plan(PacketLayout::InPlace, needs, PlanReason::Requested),
        Transfer::Window => return plan(gathered(&scan()), needs, PlanReason::Requested),
        Transfer::Whole if site.gather_only || batch.is_scattered() || !aligned => {
            return plan(PacketLayout::Packed, whole, PlanReason::Requested);
        }
        Transfer::Whole => return plan(PacketLayout::Copied, needs, PlanReason::Requested),
        Transfer::Auto => {}
    }
    if aligned && matches!(reach, MemoryReach::DeviceLocal | MemoryReach::Shared) {
        return plan(PacketLayout::InPlace, needs, PlanReason::Reachable);
    }
    match () {
        () if !aligned => plan(gathered(&scan()), needs, PlanReason::Misaligned),
        () if site.gather_only => plan(gathered(&scan()), needs, PlanReason::GatherOnly),
        () if batch.is_scattered() && reached => plan(PacketLayout::InPlace, needs, PlanReason::SeparateFrames),
        () if batch.is_scattered() => plan(gathered(&scan()), needs, PlanReason::Scattered),
        () => {
            let scan = scan();
            let estimate = scan.estimate(reach, &costs());
            let layout = if estimate.whole_ns > estimate.window_ns { gathered(&scan) } else { PacketLayout::Copied };
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

    /// As of a GPU that takes packets by words.
    fn site(reach: MemoryReach) -> BatchMemory<()> {
        BatchMemory { reach, word_aligned_only: true, ..BatchMemory::unreachable() }
    }

    fn batch(stride: u32, first: u32, length: u32) -> Batch {
        let descriptors = (0..100).map(|i| Descriptor { offset: first + i * stride, length }).collect();
        BatchCutter::new(Arena::new(1 << 20).unwrap(), None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()
    }

    fn layout(batch: &Batch, needs: AccessNeeds, reach: MemoryReach) -> PacketLayout {
        let plan = plan_transfer(batch, needs, &site(reach), Transfer::Auto, || TransferCosts::GEN4).unwrap();
        if plan.layout == PacketLayout::Rows { PacketLayout::Packed } else { plan.layout }
    }

    #[test]
    fn packets_in_frames_are_read_where_they_are() {
        let frames = Batch::in_frames(&vec![vec![0; 60]; 10]).unwrap();
        for needs in [HEADERS, MOVES] {
            assert_eq!(layout(&frames, needs, MemoryReach::Bus), PacketLayout::InPlace);
            assert_eq!(layout(&frames, needs, MemoryReach::Unreachable), PacketLayout::Packed);
        }
    }

    #[test]
    fn packets_in_the_devices_own_memory_stay_there() {
        for (stride, first, length) in [(64, 0, 60), (2112, 0, 1500), (320, 128, 60)] {
            assert_eq!(layout(&batch(stride, first, length), HEADERS, MemoryReach::DeviceLocal), PacketLayout::InPlace);
        }
        // Filters that move packets take them wherever they begin; others count on words.
        assert_eq!(layout(&batch(320, 130, 60), MOVES, MemoryReach::DeviceLocal), PacketLayout::InPlace);
        assert_eq!(layout(&batch(320, 130, 60), HEADERS, MemoryReach::DeviceLocal), PacketLayout::Packed);
        assert_eq!(layout(&batch(64, 2, 60), HEADERS, MemoryReach::Bus), PacketLayout::Packed);
        assert_eq!(layout(&batch(320, 130, 60), MOVES, MemoryReach::Bus), PacketLayout::Copied);
        // Where kernels take them at any byte there is nothing against it.
        let bytes = BatchMemory { word_aligned_only: false, ..site(MemoryReach::Shared) };
        let plan = plan_transfer(&batch(64, 2, 60), HEADERS, &bytes, Transfer::Auto, || TransferCosts::GEN4).unwrap();
        assert_eq!((plan.layout, plan.reason), (PacketLayout::InPlace, PlanReason::Reachable));
    }

    /// The rule in whole tenths of nanoseconds: (bytes to the next packet, its length, the window, bytes of the bus in a
    /// nanosecond, of a copy, gathering, gathering from slots), and which of the two is cheaper where the device copies from
    /// the host's memory, and where the host does.
    #[test]
    fn windows_are_gathered_where_that_takes_less_time() {
        let table = [
            // 54 bytes wanted and the 75 that the bus brings meanwhile.
            (128, 60, 54, 25, 10, 30, 80, PacketLayout::Copied, PacketLayout::Packed),
            (132, 60, 54, 25, 10, 30, 80, PacketLayout::Packed, PacketLayout::Packed),
            // What is wanted is what is there.
            (64, 64, 64, 25, 64, 30, 80, PacketLayout::Copied, PacketLayout::Copied),
            // 64 over the bus and through the host, 2.56 + 6.4, against 1.36 + 3.
            (64, 60, 34, 25, 10, 30, 80, PacketLayout::Copied, PacketLayout::Packed),
            // Slots: 2,112 bytes are 84.5 ns, the window 2.2 and 8.
            (2112, 1500, 54, 25, 10, 30, 80, PacketLayout::Packed, PacketLayout::Packed),
            // A bus that takes less for them than gathering does, 2.1 against 8.05; the host's copy takes 211.
            (2112, 1500, 54, 1000, 10, 30, 80, PacketLayout::Copied, PacketLayout::Packed),
            // A window of 1,280 bytes takes twenty times as long as one of 64: 60 ns, and 51 on the bus, against 61.
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
            // Of so many packets the last one ends earlier, which says little.
            let descriptors = (0..1000).map(|i| Descriptor { offset: i * stride, length }).collect();
            let arena = Arena::new(4 << 20).unwrap();
            let batch = BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap();
            for (reach, wanted) in [(MemoryReach::Bus, by_device), (MemoryReach::Unreachable, by_host)] {
                let needs = AccessNeeds { window, room: false };
                let plan = plan_transfer(&batch, needs, &site(reach), Transfer::Auto, || costs).unwrap();
                let wanted = if wanted == PacketLayout::Packed { PacketLayout::Rows } else { wanted };
                assert_eq!(plan.layout, wanted, "{stride} {length} {window} {reach:?}: {plan}");
            }
        }
    }

    #[test]
    fn rows_are_for_packets_that_fill_them() {
        let layout = |short: usize, long: usize, window| {
            let lengths = [vec![60_u32; short], vec![1500; long]].concat();
            let packets: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length as usize]).collect();
            let (batch, needs) = (Batch::from_packets(&packets).unwrap(), AccessNeeds { window, room: false });
            plan_transfer(&batch, needs, &site(MemoryReach::Unreachable), Transfer::Window, || TransferCosts::GEN4)
                .unwrap()
                .layout
        };
        assert_eq!((layout(10, 10, 54), layout(10, 10, 60)), (PacketLayout::Rows, PacketLayout::Rows));
        // Twenty rows of 1,400 bytes, 28,000, for 14,600 and the words' ends.
        assert_eq!((layout(10, 10, 1400), layout(1, 19, 1400)), (PacketLayout::Packed, PacketLayout::Rows));
        // What moves, and what has no window, has no row.
        assert_eq!(layout(0, 10, u32::MAX), PacketLayout::Packed);
    }

    #[test]
    fn what_is_asked_for_is_had_or_refused() {
        let (packed, frames) = (batch(64, 0, 60), Batch::in_frames(&vec![vec![0; 60]; 10]).unwrap());
        let of = |batch: &Batch, reach, transfer| {
            plan_transfer(batch, HEADERS, &site(reach), transfer, || TransferCosts::GEN4)
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
                        assert!(
                            reach == MemoryReach::Unreachable
                                && reason == "the device does not reach their memory by itself"
                        )
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
        let one_by_one = BatchMemory { gather_only: true, ..site(MemoryReach::Unreachable) };
        let plan = plan_transfer(&packed, HEADERS, &one_by_one, Transfer::Whole, || TransferCosts::GEN4).unwrap();
        assert_eq!((plan.layout, plan.needs.window), (PacketLayout::Packed, u32::MAX));
    }
}
