//! The CPU backend's AArch64 code as a device: cross-compiled here and run under QEMU's user-mode
//! emulator.
//!
//! The emulator does not run a compiled AArch64 program but a generated ELF image: a loop that
//! reads a batch from its standard input, calls the filter's functions and writes the batch back.
//! So the tests need no cross toolchain.

mod image;

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, DeviceLimit, Dispatch, InPlaceReads, LoadOptions, Session,
};
use portcullis_core::packet::{Descriptor, Metadata, READABLE_PAST_END, RESIZE_ROOM};
use portcullis_core::program::Program;
use portcullis_cpu::cross::{ContextPointers, MachineCode, compile_machine_code};
use portcullis_cpu::vector::interp::{Outcome, Packet};
use portcullis_cpu::{Processor, Style};

use crate::synchronous::{Execute, SynchronousSession};
use image::{DATA, Image, MEMORY};

const ID: &str = "aarch64";

/// Name of the emulator's executable.
const COMMAND: &str = "qemu-aarch64";

/// The emulated AArch64 device.
#[derive(Debug)]
pub struct Aarch64 {
    info: DeviceInfo,
    style: Style,
}

impl Aarch64 {
    /// Returns a device whose code has the given style, or `None` if the emulator is not installed.
    pub fn find(style: Style) -> Option<Aarch64> {
        let output = Command::new(COMMAND).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().filter(|_| output.status.success())?.to_owned();
        let info = DeviceInfo {
            id: format!("{ID} ({})", style.name()),
            name: version.clone(),
            kind: DeviceKind::Cpu,
            driver: version,
            dispatch: Dispatch::COMMON,
            limits: vec![DeviceLimit::new("threads", "1"), DeviceLimit::ReadsInPlace(InPlaceReads::Always)],
        };
        Some(Aarch64 { info, style })
    }
}

impl Device for Aarch64 {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let code = compile_machine_code(program, self.style, Processor::Aarch64)?;
        let failed =
            |error: io::Error| DeviceError::Failed { device: ID.into(), reason: format!("{COMMAND}: {error}") };
        let emulated = Emulated::new(code, program).map_err(failed)?;
        Ok(Box::new(SynchronousSession::new(ID, program, options, emulated)))
    }
}

/// A filter loaded into an emulator process.
struct Emulated {
    process: Child,
    input: ChildStdin,
    output: ChildStdout,
    image: Image,
    /// Set if the filter may move the packets' ends.
    moves: bool,
}

impl Emulated {
    fn new(code: MachineCode, program: &Program) -> io::Result<Emulated> {
        let image = Image::of(&code);
        // The file is deleted once it has been read. The emulator exits without a message if a file
        // is not executable.
        let owner = std::fs::Permissions::from_mode(0o700);
        let file =
            tempfile::Builder::new().prefix("portcullis-aarch64-").permissions(owner).tempfile()?.into_temp_path();
        std::fs::write(&file, &image.bytes)?;
        let mut process = Command::new(COMMAND).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(mut input), Some(mut output)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both are pipes")
        };
        // Send an empty batch: its answer proves that the emulator has read the file.
        let nothing = image.call(0, [0; 2], 0);
        input.write_all(&nothing)?;
        output.read_exact(&mut vec![0; nothing.len()])?;
        Ok(Emulated { process, input, output, image, moves: program.facts().changes_length })
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        // The filter may be in an endless loop, so the process would not exit by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Memory contents to send to the process, laid out for the address at which it will appear there.
struct Memory {
    bytes: Vec<u8>,
}

impl Memory {
    /// Aligns the end of the memory to a cache line and returns its address in the process.
    fn place(&mut self) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(64), 0);
        DATA + self.bytes.len() as u64
    }

    fn put(&mut self, bytes: impl IntoIterator<Item = u8>) -> u64 {
        let place = self.place();
        self.bytes.extend(bytes);
        place
    }
}

/// Fill byte of the arena outside packets.
const BESIDE: u8 = 0xa5;

impl Execute for Emulated {
    fn execute(&mut self, packets: &[Packet<'_>], maps: &mut [Vec<u32>]) -> Result<Vec<Outcome>, String> {
        let mut memory = Memory { bytes: self.image.call(0, [0; 2], packets.len()) };
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let room = if self.moves { RESIZE_ROOM as usize } else { 0 };
        let (mut arena, mut descriptors) = (Vec::new(), Vec::new());
        for (packet, _) in packets {
            arena.resize(arena.len() + room, BESIDE);
            descriptors.push(Descriptor { offset: arena.len() as u32, length: packet.len() as u32 });
            arena.extend_from_slice(packet);
            arena.resize(arena.len().next_multiple_of(4) + room, BESIDE);
        }
        arena.resize(arena.len() + READABLE_PAST_END, BESIDE);
        let column = |descriptors: &[Descriptor]| -> Vec<u8> {
            descriptors.iter().flat_map(|d| [d.offset, d.length]).flat_map(u32::to_le_bytes).collect()
        };

        let map_places: Vec<u64> = maps.iter().map(|map| memory.put(words(map))).collect();
        let pointers = ContextPointers {
            maps: memory.put(map_places.iter().flat_map(|place| place.to_le_bytes())),
            descriptors: memory.put(column(&descriptors)),
            metadata: memory.put(packets.iter().flat_map(|(_, metadata): &(_, &Metadata)| metadata.to_bytes())),
            verdicts: memory.put(vec![0xee; packets.len()]),
            targets: memory.put(vec![0; 4 * packets.len()]),
            resized: memory.put(column(&descriptors)),
            arena: memory.put(arena.iter().copied()),
            tables: 0,
        };
        let contexts = self.image.tables.map(|tables| memory.put(ContextPointers { tables, ..pointers }.to_bytes()));
        let end = memory.bytes.len();
        if end > MEMORY {
            return Err(format!("{end} bytes are more than the process has: {MEMORY}"));
        }
        let call = self.image.call(end as u64, contexts, packets.len());
        memory.bytes[..call.len()].copy_from_slice(&call);

        let sent = self.input.write_all(&memory.bytes).and_then(|()| self.input.flush());
        let answered = sent.and_then(|()| self.output.read_exact(&mut memory.bytes));
        if let Err(error) = answered {
            let _ = self.process.kill();
            return Err(format!("{COMMAND}: {error}; {:?}", self.process.wait()));
        }
        let at = |place: u64, bytes: usize| &memory.bytes[(place - DATA) as usize..][..bytes];
        let word = |place: u64, index: usize| {
            let bytes = at(place + 4 * index as u64, 4);
            u32::from_le_bytes(bytes.try_into().unwrap_or_else(|_| unreachable!("four of them")))
        };
        for (map, place) in maps.iter_mut().zip(map_places) {
            map.iter_mut().enumerate().for_each(|(index, to)| *to = word(place, index));
        }
        let after = at(pointers.arena, arena.len());
        if !self.moves {
            stays_inside(&descriptors, after)?;
        }
        let outcome = |(index, old): (usize, &Descriptor)| {
            let (start, length) = match self.moves {
                true => (word(pointers.resized, 2 * index), word(pointers.resized, 2 * index + 1)),
                false => (old.offset, old.length),
            };
            let packet = after.get(start as usize..).and_then(|bytes| bytes.get(..length as usize));
            Ok(Outcome {
                verdict: u32::from(at(pointers.verdicts, packets.len())[index]) | word(pointers.targets, index) << 8,
                packet: packet.ok_or_else(|| format!("packet {index} has left the arena"))?.to_vec(),
                start: start.wrapping_sub(old.offset).cast_signed(),
            })
        };
        descriptors.iter().enumerate().map(outcome).collect()
    }
}

/// Checks that the bytes between packets are unchanged.
fn stays_inside(descriptors: &[Descriptor], arena: &[u8]) -> Result<(), String> {
    let mut end = 0;
    for d in descriptors.iter().copied().chain([Descriptor { offset: arena.len() as u32, length: 0 }]) {
        if let Some(at) = arena[end..d.offset as usize].iter().position(|&byte| byte != BESIDE) {
            return Err(format!("write outside the packets, at byte {} of the arena", end + at));
        }
        end = (d.offset + d.length) as usize;
    }
    Ok(())
}
