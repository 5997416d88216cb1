//! Runs the C writer's OpenCL C under Oclgrind, which interprets a kernel and reports accesses out
//! of bounds, misaligned accesses and data races between work items. The tests use its runner for
//! single kernels: its OpenCL implementation (21.10) runs nothing before somebody waits for a
//! queue, which sessions never do.

use std::fmt::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use portcullis_c_writer::{Argument, Kernel, Language, Options, PacketAccess, write};
use portcullis_core::device::{Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, LoadOptions, Session};
use portcullis_core::program::Program;

use crate::launches::{Launcher, Memory};
use crate::synchronous::SynchronousSession;

const COMMAND: &str = "oclgrind-kernel";

/// Work items per group; small, so that a batch has many groups.
const GROUP: usize = 8;

/// Function that changes a kernel's source before it runs.
pub type Edit = fn(&str) -> String;

/// The Oclgrind device.
#[derive(Debug)]
pub struct Oclgrind {
    info: DeviceInfo,
    edit: Edit,
    races: bool,
    access: PacketAccess,
}

impl Oclgrind {
    /// Returns the device, or `None` if Oclgrind is not installed.
    pub fn find() -> Option<Oclgrind> {
        let output = Command::new(COMMAND).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().find(|line| line.starts_with("Oclgrind"))?;
        let info = DeviceInfo {
            id: "oclgrind".into(),
            name: version.to_owned(),
            kind: DeviceKind::Cpu,
            driver: version.to_owned(),
            dispatch: Dispatch::COMMON,
            limits: Vec::new(),
        };
        Some(Oclgrind { info, edit: str::to_owned, races: true, access: PacketAccess::default() })
    }

    /// Sets how kernels access packets.
    #[must_use]
    pub fn with_packet_access(self, access: PacketAccess) -> Oclgrind {
        Oclgrind { access, ..self }
    }

    /// Disables the race detector; accesses out of bounds are still reported.
    #[must_use]
    pub fn without_races(self) -> Oclgrind {
        Oclgrind { races: false, ..self }
    }

    /// Changes every kernel's source, to test that faults are detected.
    #[must_use]
    pub fn with_edit(self, edit: Edit) -> Oclgrind {
        Oclgrind { edit, ..self }
    }
}

impl Device for Oclgrind {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let unsupported = |reason: String| DeviceError::Unsupported { device: self.info.id.clone(), reason };
        let options_of_kernel = Options::new(Language::OpenCl).with_packet_access(self.access);
        let mut kernel = write(program, &options_of_kernel).map_err(|e| unsupported(e.to_string()))?;
        kernel.source = (self.edit)(&kernel.source);
        assert!(!program.has_flows(), "the simulation does not group packets by flow");
        let races = self.races;
        let launch = move |memory: &mut Memory| {
            // Use two launches, so that the second does not begin with packet 0.
            let count = memory.verdicts.len();
            let first = count / 3;
            run(&kernel, races, memory, 0, first)?;
            run(&kernel, races, memory, first, count - first)
        };
        Ok(Box::new(SynchronousSession::new(&self.info.id, program, options, Launcher::new(launch))))
    }
}

/// Runs one launch. Any report by Oclgrind is an error.
fn run(kernel: &Kernel, races: bool, memory: &mut Memory, base: usize, count: usize) -> Result<(), String> {
    if count == 0 {
        return Ok(());
    }
    let printed = simulate(&kernel.source, races, &simulation(kernel, memory, base, count))?;
    take(kernel, memory, &printed)
}

/// Runs a kernel whose only argument is `memory`, with `items` work items.
///
/// # Errors
/// Any report by Oclgrind.
pub fn run_over_memory(source: &str, name: &str, memory: &[u8], items: usize) -> Result<(), String> {
    let mut simulation = format!("kernel.cl\n{name}\n{items} 1 1\n1 1 1\n");
    bytes(&mut simulation, memory, false);
    simulate(source, false, &simulation).map(|_| ())
}

/// Runs a simulation of a source and returns what Oclgrind prints. Any report is an error.
fn simulate(source: &str, races: bool, simulation: &str) -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(text)?;
    std::fs::write(folder.path().join("kernel.cl"), source).map_err(text)?;
    std::fs::write(folder.path().join("kernel.sim"), simulation).map_err(text)?;
    // Disable optimisation: clang might remove an access before Oclgrind can check it.
    let options = ["--build-options", "-cl-std=CL1.2 -w -cl-opt-disable", "kernel.sim"];
    let mut command = Command::new(COMMAND);
    let output = command
        .args(races.then_some("--data-races"))
        .args(options)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .map_err(text)?;
    let said = String::from_utf8_lossy(&output.stderr);
    // clang prints the number of warnings even if `-w` suppresses them.
    let is_report = |line: &str| !line.trim().is_empty() && !line.ends_with(" generated.");
    if !output.status.success() || said.lines().any(is_report) {
        return Err(format!("Oclgrind ended with {}:\n{said}\n{source}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns Oclgrind's description of a launch: the kernel, the number of work items, and the
/// arguments with their contents (the manual page, "info oclgrind-kernel").
fn simulation(kernel: &Kernel, memory: &Memory, base: usize, count: usize) -> String {
    let items = count.div_ceil(kernel.packets_per_item as usize).next_multiple_of(GROUP);
    let mut text = format!("kernel.cl\n{}\n{items} 1 1\n{GROUP} 1 1\n", kernel.entry);
    for argument in &kernel.arguments {
        match argument {
            Argument::Arena { writes } => bytes(&mut text, &memory.arena, *writes),
            Argument::Descriptors { writes } => words(&mut text, &memory.descriptors, *writes),
            // A table.
            Argument::DescriptorRule => words(&mut text, &[0; 4], false),
            Argument::MetadataRule(_) => unreachable!("no test requests it here"),
            Argument::Metadata => words(&mut text, &memory.metadata, false),
            Argument::Verdicts => bytes(&mut text, &memory.verdicts, true),
            Argument::Targets => words(&mut text, &memory.targets, true),
            Argument::Map(number) => words(&mut text, &memory.maps[*number as usize], true),
            Argument::Base => words(&mut text, &[base as u32], false),
            Argument::Count => words(&mut text, &[count as u32], false),
        }
    }
    text
}

fn bytes(text: &mut String, bytes: &[u8], dump: bool) {
    let values = bytes.iter().map(|byte| format!("{byte:x} ")).collect::<String>();
    put(text, bytes.len(), "uchar", dump, &values);
}

fn words(text: &mut String, words: &[u32], dump: bool) {
    let values = words.iter().map(|word| format!("{word:x} ")).collect::<String>();
    put(text, words.len() * 4, "uint", dump, &values);
}

fn put(text: &mut String, size: usize, ty: &str, dump: bool, values: &str) {
    let dump = if dump { " dump" } else { "" };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "<size={size} {ty} hex{dump}>\n{values}");
}

/// Parses the buffers that Oclgrind prints after a launch: for each a line with the argument's name
/// and size, then a line per element.
fn take(kernel: &Kernel, memory: &mut Memory, printed: &str) -> Result<(), String> {
    let mut buffers: Vec<Vec<u32>> = Vec::new();
    for line in printed.lines() {
        if line.starts_with("Argument '") {
            buffers.push(Vec::new());
        } else if let Some((_, value)) = line.split_once("] = 0x") {
            let value = u32::from_str_radix(value.trim(), 16).map_err(|error| format!("{line}: {error}"))?;
            buffers.last_mut().ok_or("a value of no argument")?.push(value);
        }
    }
    let mut buffers = buffers.into_iter();
    for argument in &kernel.arguments {
        let mut next = |length: usize| {
            let buffer = buffers.next().filter(|buffer| buffer.len() == length);
            buffer.ok_or_else(|| format!("Oclgrind does not print {argument:?} as it should:\n{printed}"))
        };
        let bytes = |words: Vec<u32>| words.into_iter().map(|word| word as u8).collect();
        match argument {
            Argument::Arena { writes: true } => memory.arena = bytes(next(memory.arena.len())?),
            Argument::Descriptors { writes: true } => memory.descriptors = next(memory.descriptors.len())?,
            Argument::Verdicts => memory.verdicts = bytes(next(memory.verdicts.len())?),
            Argument::Targets => memory.targets = next(memory.targets.len())?,
            Argument::Map(number) => {
                let words = &mut memory.maps[*number as usize];
                *words = next(words.len())?;
            }
            _ => {}
        }
    }
    Ok(())
}
