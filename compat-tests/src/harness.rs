//! Compares one filter on one device with the reference interpreter, packet by packet: verdicts,
//! lengths and bytes.

use std::fmt;
use std::sync::{Arc, OnceLock};

use portcullis_core::device::{Device, DeviceError, LoadOptions};
use portcullis_core::interp::{InterpError, Interpreter};
use portcullis_core::packet::{Batch, ResizeRoom, Verdict};
use portcullis_core::program::Program;

use crate::{devices, layouts, texts};

/// A difference between a device and the reference, with everything needed to reproduce it.
#[derive(Debug)]
pub struct Mismatch {
    /// The device's id.
    pub device: String,
    /// The filter's name.
    pub name: String,
    /// The filter's source.
    pub filter: String,
    /// The kind of difference.
    pub kind: MismatchKind,
}

/// Kind of a [`Mismatch`].
#[derive(Debug)]
pub enum MismatchKind {
    /// The reference interpreter cannot run the filter.
    Reference(InterpError),
    /// The device refused the filter or a batch, or failed.
    Device(DeviceError),
    /// The device and the reference disagree on a packet.
    Packet {
        /// Number of packets in the batch.
        batch: usize,
        /// The packet's index in the batch.
        index: usize,
        /// The packet as it arrived.
        packet: Vec<u8>,
        /// The device's verdict and packet.
        got: (Verdict, Vec<u8>),
        /// The reference's verdict and packet.
        want: (Verdict, Vec<u8>),
    },
    /// The device wrote to the byte at this offset of the arena, which belongs to no packet.
    StrayWrite(usize),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { device, name, filter, kind } = self;
        match kind {
            MismatchKind::Reference(error) => writeln!(f, "the reference cannot run {name}: {error}")?,
            MismatchKind::StrayWrite(at) => {
                writeln!(f, "{device} writes outside the packets with {name}, at byte {at}")?
            }
            MismatchKind::Device(error) => writeln!(f, "{device} cannot run {name}: {error}")?,
            MismatchKind::Packet { batch, index, packet, got, want } => {
                writeln!(f, "{device} differs on {name}, packet {index} of a batch of {batch}")?;
                writeln!(f, "  packet {} bytes {}", packet.len(), hex(packet))?;
                writeln!(f, "  got    {:?}, {} bytes {}", got.0, got.1.len(), hex(&got.1))?;
                writeln!(f, "  want   {:?}, {} bytes {}", want.0, want.1.len(), hex(&want.1))?;
            }
        }
        writeln!(f, "{filter}")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The reference's verdict and packet for each input packet.
type Outcomes = Result<Vec<(Verdict, Vec<u8>)>, InterpError>;

/// A filter and packets for it, with the reference's results, which are computed once for all
/// devices.
#[derive(Debug)]
pub struct Case {
    program: Arc<Program>,
    packets: Vec<Vec<u8>>,
    outcomes: OnceLock<Outcomes>,
}

impl Case {
    /// Creates a case from a filter and its packets.
    pub fn new(program: Arc<Program>, packets: Vec<Vec<u8>>) -> Case {
        Case { program, packets, outcomes: OnceLock::new() }
    }

    /// Returns the filter.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns the packets.
    pub fn packets(&self) -> &[Vec<u8>] {
        &self.packets
    }

    fn outcomes(&self) -> &Outcomes {
        self.outcomes.get_or_init(|| {
            let reference = Interpreter::new(&self.program)?;
            let one = |(i, packet): (u32, &Vec<u8>)| {
                let outcome = reference.run(packet, &layouts::metadata(i))?;
                Ok((outcome.verdict, outcome.packet))
            };
            (0..).zip(&self.packets).map(one).collect()
        })
    }

    /// Runs the packets on `device` in batches of each of the sizes, and compares every packet with
    /// the reference's result.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, device: &dyn Device, batches: &[usize]) -> Result<(), Box<Mismatch>> {
        let (program, packets) = (&self.program, &self.packets);
        let mismatch = |kind| {
            Box::new(Mismatch {
                device: device.info().id.clone(),
                name: program.source().name.clone(),
                filter: program.source().text.to_string(),
                kind,
            })
        };
        let outcomes = self.outcomes().as_ref().map_err(|e| mismatch(MismatchKind::Reference(e.clone())))?;
        let mut session =
            device.load(program, &LoadOptions::default()).map_err(|e| mismatch(MismatchKind::Device(e)))?;
        // Packets without resize room are laid out more tightly, but a filter that changes lengths
        // needs the room.
        let rooms: &[ResizeRoom] =
            if program.facts().changes_length { &[ResizeRoom::Both] } else { &[ResizeRoom::None, ResizeRoom::Both] };
        for (&size, &room) in batches.iter().flat_map(|size| rooms.iter().map(move |room| (size, room))) {
            let size = size.max(1);
            let (batches, guarded) = layouts::batches(packets, size, room);
            for ((part, outcomes), batch) in packets.chunks(size).zip(outcomes.chunks(size)).zip(batches) {
                let done = session.run(batch).map_err(|e| mismatch(MismatchKind::Device(e)))?;
                for (index, (packet, want)) in part.iter().zip(outcomes).enumerate() {
                    let got = (done.verdicts.get(index), done.batch.packet(index));
                    if got != (want.0, want.1.as_slice()) {
                        return Err(mismatch(MismatchKind::Packet {
                            batch: part.len(),
                            index,
                            packet: packet.clone(),
                            got: (got.0, got.1.to_vec()),
                            want: want.clone(),
                        }));
                    }
                }
            }
            if let Some(at) = guarded.stray_write() {
                return Err(mismatch(MismatchKind::StrayWrite(at)));
            }
        }
        Ok(())
    }
}

/// Compares one filter on one device, as [`Case::compare`].
///
/// # Errors
/// The first difference.
pub fn compare(
    program: &Arc<Program>,
    device: &dyn Device,
    packets: &[Vec<u8>],
    batches: &[usize],
) -> Result<(), Box<Mismatch>> {
    Case::new(program.clone(), packets.to_vec()).compare(device, batches)
}

/// Compares WGSL filters on every device with the reference, and the targets of their redirects
/// with models, since the interpreter itself may be wrong. A device with a slow compiler runs about
/// `most` of the filters.
///
/// # Panics
/// At the first difference.
pub fn compare_with_models<M: Fn(&[u8]) -> u32>(
    suite: &str,
    filters: impl Iterator<Item = (String, M)>,
    packets: &[Vec<u8>],
    most: usize,
) {
    let case = |(text, model): (String, M)| (Case::new(texts::in_wgsl(suite, &text), packets.to_vec()), model);
    let cases: Vec<_> = filters.map(case).collect();
    devices::on_each(suite, |device| {
        for (case, model) in devices::share(device, &cases, most) {
            case.compare(&**device, &[packets.len()]).unwrap_or_else(|m| panic!("{m}"));
            let mut session = device.load(case.program(), &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            let batch = Batch::from_packets(packets).expect("the packets fit into one batch");
            let done = session.run(batch).unwrap_or_else(|e| panic!("{e}"));
            for (packet, verdict) in packets.iter().zip(done.verdicts.iter()) {
                let text = &case.program().source().text;
                assert_eq!(verdict.to_return() >> 8, model(packet), "{packet:?}\n{text}");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_core::device::noop::NoopDevice;
    use portcullis_core::interp::InterpDevice;

    #[test]
    fn a_wrong_verdict_is_reported_with_filter_and_packet() {
        let program = texts::in_wgsl("x.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }");
        let packets = [vec![2], vec![2], vec![1, 0xab]];
        let mismatch = compare(&program, &NoopDevice::new(), &packets, &[2]).unwrap_err();
        let report = mismatch.to_string();
        for part in [
            "noop differs on x.wgsl, packet 0 of a batch of 1",
            "2 bytes 01ab",
            "got    Pass",
            "want   Drop",
            "load_u8",
        ] {
            assert!(report.contains(part), "{report}");
        }
        compare(&program, &InterpDevice::new(), &packets, &[1, 2, 100]).unwrap_or_else(|m| panic!("{m}"));
    }

    #[test]
    fn wrong_bytes_are_detected_if_the_verdict_is_right() {
        let program =
            texts::in_wgsl("x.wgsl", "fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 1u, 7u); return XDP_PASS; }");
        let mismatch = compare(&program, &NoopDevice::new(), &[vec![1], vec![1, 2]], &[8]).unwrap_err();
        assert!(matches!(mismatch.kind, MismatchKind::Packet { index: 1, .. }), "{mismatch}");
    }
}
