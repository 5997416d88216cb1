//! OpenCL devices whose compilers build a filter's own source.

use std::fmt::Write as _;

use portcullis::backend::opencl::measure::VendorKernel;
use portcullis::backend::opencl::{OpenClDevice, probe};
use portcullis::device::DeviceError;
use portcullis_core::packet::Metadata;

use super::{Answer, Unavailable, Unit};

/// Bytes before a packet in its slot.
const HEAD: usize = 1024;

/// Default number of unused bytes after a packet in its slot.
const BEHIND: usize = 1024;

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
        let compiled = Compiled::new(device, filters, longest, BEHIND)?;
        for number in 0..filters.len() {
            answers.push(compiled.answers(number, packets)?);
        }
    }
    Ok(answers)
}

/// Filters compiled into one kernel.
pub struct Compiled {
    kernel: VendorKernel,
    /// Bytes per slot, which holds a packet and its surroundings.
    slot: usize,
}

impl Compiled {
    /// Compiles filters for packets of up to `longest` bytes. Filters may read up to `behind` bytes
    /// past a packet's end.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub fn new(
        device: &OpenClDevice,
        filters: &[Unit],
        longest: usize,
        behind: usize,
    ) -> Result<Compiled, Unavailable> {
        let slot = (HEAD + longest + behind.max(BEHIND)).next_power_of_two();
        let kernel = VendorKernel::compile(device, &kernel(filters, slot), "pc_run").map_err(failed)?;
        Ok(Compiled { kernel, slot })
    }

    /// Runs the filter with this index on every packet.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub fn answers(&self, number: usize, packets: &[Packet<'_>]) -> Result<Vec<Answer>, Unavailable> {
        // Twice the memory plus one slot, so that the device can align the slots.
        let mut memory = vec![0; (2 * packets.len() + 1) * self.slot];
        for (bytes, packet) in memory.chunks_mut(self.slot).zip(packets) {
            lay_out(bytes, packet, number as u32);
        }
        self.kernel.run(&mut memory, packets.len()).map_err(failed)?;
        Ok(memory.chunks(self.slot).zip(packets).map(|(bytes, _)| answer(bytes)).collect())
    }
}

fn failed(error: DeviceError) -> Unavailable {
    Unavailable::Failed(error.to_string())
}

/// Writes a slot in the layout of `struct pc_slot`.
fn lay_out(slot: &mut [u8], packet: &Packet<'_>, number: u32) {
    slot.fill(packet.fill);
    let Metadata { wire_length, port, time_ms, .. } = packet.metadata;
    let words = [number, packet.bytes.len() as u32, wire_length, port, time_ms, 0];
    let times = [packet.metadata.time_low, packet.metadata.time_high];
    let ends = [0, 0, u32::from(packet.fill)];
    let words = words.iter().chain(&times).chain(&ends);
    for (to, word) in slot.chunks_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    slot[HEAD..HEAD + packet.bytes.len()].copy_from_slice(packet.bytes);
}

fn answer(slot: &[u8]) -> Answer {
    let word = |at: usize| u32::from_le_bytes(slot[4 * at..4 * at + 4].try_into().expect("four bytes"));
    let length = (word(1) as usize).min(slot.len() - HEAD);
    Answer { value: word(5), packet: slot[HEAD..HEAD + length].to_vec() }
}

fn kernel(filters: &[Unit], slot: usize) -> String {
    let mut text = format!(
        "#define PC_SLOT {slot}\n#define PC_HEAD {HEAD}\n{}\n{}",
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
        let _ = writeln!(text, "    case {number}: state->verdict = xdp_filter_{number}(pkt, state->length); break;");
    }
    text += "    }\n    for (size_t i = 0; i < PC_SLOT; i++)\n        mine[i] = slot[i];\n}\n";
    text
}
