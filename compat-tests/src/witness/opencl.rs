//! OpenCL devices whose compilers build a filter's own source.

use std::fmt::Write as _;

use portcullis::backend::opencl::measure::VendorKernel;
use portcullis::backend::opencl::{OpenClDevice, probe};
use portcullis::device::DeviceError;
use portcullis_core::packet::{Metadata, RESIZE_ROOM};

use super::{Answer, Unavailable, Unit};

/// Default number of bytes before and, unused, behind a packet in its slot.
const MARGIN: usize = 1024;

/// Filters per kernel: a compromise between long compilations and many compilations.
const TOGETHER: usize = 25;

/// An input packet and the fill of the memory around it.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// Packet bytes.
    pub bytes: &'a [u8],
    /// See [`Metadata`].
    pub metadata: Metadata,
    /// Fill byte around the packet.
    pub fill: u8,
}

/// Returns the OpenCL devices.
///
/// # Errors
/// If there are none.
pub fn devices() -> Result<Vec<OpenClDevice>, Unavailable> {
    probe().map_err(|missing| Unavailable::Missing(missing.to_string()))
}

/// Runs every filter on every packet; the results are ordered by filter, then by packet.
///
/// # Errors
/// See [`Unavailable`].
pub fn answers(
    device: &OpenClDevice,
    filters: &[Unit],
    packets: &[Packet<'_>],
) -> Result<Vec<Vec<Answer>>, Unavailable> {
    let longest = packets.iter().map(|packet| packet.bytes.len()).max().unwrap_or(0);
    let mut answers = Vec::with_capacity(filters.len());
    for filters in filters.chunks(TOGETHER) {
        let compiled = Compiled::new(device, filters, Slots::new(longest, MARGIN))?;
        for number in 0..filters.len() {
            answers.push(compiled.answers(number, packets)?);
        }
    }
    Ok(answers)
}

/// Layout of the memory that a kernel runs over: a slot for each packet and its surroundings
/// (`struct pc_slot`), then as many to which the kernel copies them, as it can align those.
#[derive(Debug, Clone, Copy)]
pub struct Slots {
    /// Bytes before a packet in its slot.
    head: usize,
    /// Bytes per slot.
    size: usize,
    /// Bytes behind a packet that filters may read.
    behind: usize,
}

impl Slots {
    /// Lays out packets of up to `longest` bytes, of which filters may read up to `behind` bytes
    /// past the end. Packets are aligned for any type.
    pub fn new(longest: usize, behind: usize) -> Slots {
        let behind = behind.max(MARGIN);
        Slots { head: MARGIN, size: (MARGIN + longest + behind).next_power_of_two(), behind }
    }

    /// Lays out packets at odd addresses, for filters that rely on no alignment.
    pub fn at_odd_addresses(longest: usize, behind: usize) -> Slots {
        let slots = Slots::new(longest + 1, behind);
        Slots { head: slots.head + 1, ..slots }
    }

    /// Lays out packets of up to `longest` bytes at odd addresses, as close together as filters
    /// allow that read up to `behind` bytes past the end, for slow devices. The bytes behind a
    /// packet may be those of others.
    pub fn close_together(longest: usize, behind: usize) -> Slots {
        let head = RESIZE_ROOM as usize + 1;
        Slots { head, size: (head + longest + RESIZE_ROOM as usize).next_power_of_two(), behind }
    }

    /// Returns the memory for these packets, each with the number of the filter to run.
    pub fn memory(&self, packets: &[(usize, Packet<'_>)]) -> Vec<u8> {
        let mut memory = vec![0; (2 * packets.len() + 1) * self.size + self.behind];
        for (bytes, (number, packet)) in memory.chunks_mut(self.size).zip(packets) {
            self.lay_out(bytes, packet, *number as u32);
        }
        memory
    }

    /// Writes a slot in the layout of `struct pc_slot`.
    fn lay_out(&self, slot: &mut [u8], packet: &Packet<'_>, number: u32) {
        slot.fill(packet.fill);
        let Metadata { wire_length, port, time_ms, .. } = packet.metadata;
        let words = [number, packet.bytes.len() as u32, wire_length, port, time_ms, 0];
        let times = [packet.metadata.time_low, packet.metadata.time_high];
        let ends = [0, 0, u32::from(packet.fill)];
        let words = words.iter().chain(&times).chain(&ends);
        for (to, word) in slot.chunks_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        slot[self.head..self.head + packet.bytes.len()].copy_from_slice(packet.bytes);
    }

    fn answer(&self, slot: &[u8]) -> Answer {
        let word = |at: usize| u32::from_le_bytes(slot[4 * at..4 * at + 4].try_into().expect("four bytes"));
        let length = (word(1) as usize).min(slot.len() - self.head);
        Answer { value: word(5), packet: slot[self.head..self.head + length].to_vec() }
    }

    /// Returns the source of a kernel [`KERNEL`] that runs filters over such memory, one work item
    /// per packet.
    pub fn kernel(&self, filters: &[Unit]) -> String {
        let mut text = format!(
            "#define PC_SLOT {}\n#define PC_HEAD {}\n{}\n{}",
            self.size,
            self.head,
            include_str!("../../../include/portcullis.h"),
            include_str!("bodies.clh")
        );
        for (number, filter) in filters.iter().enumerate() {
            text += &filter.numbered(number);
        }
        text += "
__kernel void pc_run(__global uchar *memory)
{
    size_t item = get_global_id(0), end = (size_t)memory + get_global_size(0) * PC_SLOT;
    __global uchar *mine = memory + item * PC_SLOT;
    __global uchar *slot = (__global uchar *)((end + PC_SLOT - 1 & ~(size_t)(PC_SLOT - 1)) + item * PC_SLOT);
    for (size_t i = 0; i < PC_SLOT; i++)
        slot[i] = mine[i];
    __global struct pc_slot *state = pc_slot_of(slot);
    __global uchar *pkt = pc_first(slot);
    switch (state->filter) {
";
        for number in 0..filters.len() {
            let _ =
                writeln!(text, "    case {number}: state->verdict = xdp_filter_{number}(pkt, state->length); break;");
        }
        text += "    }\n    for (size_t i = 0; i < PC_SLOT; i++)\n        mine[i] = slot[i];\n}\n";
        text
    }
}

/// Name of the kernel that [`Slots::kernel`] returns. Its only argument is the memory.
pub const KERNEL: &str = "pc_run";

/// Filters compiled into one kernel.
pub struct Compiled {
    kernel: VendorKernel,
    slots: Slots,
}

impl Compiled {
    /// Compiles filters.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub fn new(device: &OpenClDevice, filters: &[Unit], slots: Slots) -> Result<Compiled, Unavailable> {
        let kernel = VendorKernel::compile(device, &slots.kernel(filters), KERNEL).map_err(failed)?;
        Ok(Compiled { kernel, slots })
    }

    /// Runs the filter with this index on every packet.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub fn answers(&self, number: usize, packets: &[Packet<'_>]) -> Result<Vec<Answer>, Unavailable> {
        let packets: Vec<_> = packets.iter().map(|packet| (number, *packet)).collect();
        let mut memory = self.slots.memory(&packets);
        self.kernel.run(&mut memory, packets.len()).map_err(failed)?;
        Ok(memory.chunks(self.slots.size).zip(packets).map(|(bytes, _)| self.slots.answer(bytes)).collect())
    }
}

fn failed(error: DeviceError) -> Unavailable {
    Unavailable::Failed(error.to_string())
}
