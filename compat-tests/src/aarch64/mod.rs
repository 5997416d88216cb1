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
use portcullis_core::program::Program;
use portcullis_cpu::cross::{ContextPointers, MachineCode, compile_machine_code};
use portcullis_cpu::{Processor, Style};

use crate::launches::{Launcher, Memory};
use crate::synchronous::SynchronousSession;
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
        let mut emulated = Emulated::new(code, program).map_err(failed)?;
        let launcher = Launcher::new(move |memory| emulated.launch(memory));
        Ok(Box::new(SynchronousSession::new(ID, program, options, launcher)))
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

    /// Sends a batch to the process and receives its results.
    fn launch(&mut self, memory: &mut Memory) -> Result<(), String> {
        let Memory { arena, descriptors, metadata, verdicts, targets, maps } = memory;
        let mut message = Message { bytes: self.image.call(0, [0; 2], verdicts.len()) };
        let bytes_of = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let map_places: Vec<u64> = maps.iter().map(|map| message.put(bytes_of(map))).collect();
        let pointers = ContextPointers {
            maps: message.put(map_places.iter().flat_map(|place| place.to_le_bytes())),
            descriptors: message.put(bytes_of(descriptors)),
            metadata: message.put(bytes_of(metadata)),
            verdicts: message.put(verdicts.iter().copied()),
            targets: message.put(bytes_of(targets)),
            resized: message.put(bytes_of(descriptors)),
            arena: message.put(arena.iter().copied()),
            tables: 0,
        };
        let contexts = self.image.tables.map(|tables| message.put(ContextPointers { tables, ..pointers }.to_bytes()));
        let end = message.bytes.len();
        if end > MEMORY {
            return Err(format!("{end} bytes are more than the process has: {MEMORY}"));
        }
        let call = self.image.call(end as u64, contexts, verdicts.len());
        message.bytes[..call.len()].copy_from_slice(&call);

        let sent = self.input.write_all(&message.bytes).and_then(|()| self.input.flush());
        let answered = sent.and_then(|()| self.output.read_exact(&mut message.bytes));
        if let Err(error) = answered {
            let _ = self.process.kill();
            return Err(format!("{COMMAND}: {error}; {:?}", self.process.wait()));
        }
        maps.iter_mut().zip(map_places).for_each(|(map, place)| message.copy_words(place, map));
        message.copy_words(pointers.targets, targets);
        if self.moves {
            message.copy_words(pointers.resized, descriptors);
        }
        *verdicts = message.bytes_at(pointers.verdicts, verdicts.len()).to_vec();
        *arena = message.bytes_at(pointers.arena, arena.len()).to_vec();
        Ok(())
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
struct Message {
    bytes: Vec<u8>,
}

impl Message {
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

    fn bytes_at(&self, place: u64, length: usize) -> &[u8] {
        &self.bytes[(place - DATA) as usize..][..length]
    }

    fn copy_words(&self, place: u64, words: &mut [u32]) {
        let bytes = self.bytes_at(place, 4 * words.len());
        words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
    }
}
