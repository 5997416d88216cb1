//! The C writer's output compiled for this machine and run as a device: CUDA C++ as C++17 with a
//! short shim, OpenCL C by clang. Sanitizers end the process at the first undefined operation and,
//! for CUDA C++, at the first access outside the process's memory.
//!
//! Many filters are compiled into one program, because starting the compiler takes longer than
//! compiling a filter.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use portcullis_c_writer::{Argument, Kernel, Language, Options, PacketAccess, write};
use portcullis_core::device::{Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, LoadOptions, Session};
use portcullis_core::program::Program;

use crate::launches::{Launcher, Memory};
use crate::synchronous::SynchronousSession;

/// Reason why the device is unavailable.
#[derive(Debug)]
pub enum Unavailable {
    /// No suitable compiler is installed.
    NoCompiler(String),
    /// The source cannot be generated or does not compile: a bug in Portcullis.
    Broken(String),
}

/// A set of compiled filters.
#[derive(Debug)]
pub struct Host {
    info: DeviceInfo,
    options: Options,
    /// Each filter's number, by its source with a common kernel name.
    numbers: HashMap<String, u32>,
    process: Arc<Mutex<Process>>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// Folder of the program, deleted with the device.
    _folder: tempfile::TempDir,
}

impl Process {
    fn ask(&mut self, filter: u32, memory: &mut Memory) -> Result<(), String> {
        let Memory { arena, descriptors, metadata, verdicts, targets, .. } = memory;
        let bytes_of = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let head = [filter, verdicts.len() as u32, arena.len() as u32, metadata.len() as u32 * 4];
        let request = [bytes_of(&head), arena.clone(), bytes_of(descriptors), bytes_of(metadata)].concat();
        let mut answer = vec![0; verdicts.len() * 13 + arena.len()];
        let done = self.input.write_all(&request).and_then(|()| self.input.flush());
        let done = done.and_then(|()| self.output.read_exact(&mut answer));
        done.map_err(|error| {
            let mut report = String::new();
            if let Some(mut errors) = self.child.stderr.take() {
                let _ = errors.read_to_string(&mut report);
            }
            format!("{error}; the process said:\n{report}")
        })?;
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().expect("four bytes"))).collect()
        };
        let count = verdicts.len();
        let (actions, rest) = answer.split_at(count);
        let (to, rest) = rest.split_at(count * 4);
        let (places, after) = rest.split_at(count * 8);
        (*verdicts, *targets, *descriptors, *arena) = (actions.to_vec(), words(to), words(places), after.to_vec());
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the first of these commands that can be started.
fn find(commands: &[&str]) -> Option<String> {
    let works = |command: &&&str| {
        let run = Command::new(command).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    commands.iter().find(works).map(|&command| command.to_owned())
}

/// Returns a clang that compiles OpenCL C, if one is installed.
pub fn clang() -> Option<String> {
    find(&["clang", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14"])
}

fn broken(what: impl std::fmt::Display) -> Unavailable {
    Unavailable::Broken(what.to_string())
}

fn compile(command: &mut Command) -> Result<(), Unavailable> {
    let output = command.output().map_err(broken)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(broken(format!("{command:?}:\n{}", String::from_utf8_lossy(&output.stderr)))),
    }
}

impl Host {
    /// Writes and compiles the filters and starts the program. The kernel names in `options` are
    /// replaced.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub fn new(options: &Options, programs: &[Arc<Program>]) -> Result<Host, Unavailable> {
        let gcc = find(&["g++", "c++", "clang++"])
            .ok_or_else(|| Unavailable::NoCompiler("no g++, c++ or clang++ on this machine".into()))?;
        let opencl = options.language == Language::OpenCl;
        let clang = match opencl {
            true => clang().ok_or_else(|| Unavailable::NoCompiler("no clang on this machine".into()))?,
            false => String::new(),
        };
        let folder = tempfile::tempdir().map_err(broken)?;
        let mut text = String::from(if opencl { include_str!("shim.clh") } else { portcullis_cuda_emulator::SHIM });
        let (mut cases, mut objects, mut numbers) = (String::new(), Vec::new(), HashMap::new());
        for (number, program) in (0u32..).zip(programs) {
            let named = |entry: String| {
                let kernel = write(program, &options.clone().with_entry(entry));
                kernel.map_err(|e| broken(format!("{}: {e}\n{}", program.source().name, program.source().text)))
            };
            if numbers.insert(named(options.entry.clone())?.source, number).is_some() {
                continue;
            }
            let kernel = named(format!("xdp_{number}"))?;
            if opencl {
                let source = folder.path().join(format!("{number}.cl"));
                std::fs::write(&source, &kernel.source).map_err(broken)?;
                let object = source.with_extension("o");
                let target = ["-c", "-O1", "-fPIC", "-target", "x86_64-linux-gnu"];
                let sanitize = ["-fsanitize=undefined", "-fsanitize-trap=undefined"];
                compile(opencl_c(Command::new(&clang).args(target).args(sanitize), &source).arg("-o").arg(&object))?;
                // OpenCL C gives constants at file scope external linkage; export only the kernel
                // of each file.
                let only = format!("--keep-global-symbol={}", kernel.entry);
                compile(Command::new("objcopy").arg(only).arg(&object))?;
                objects.push(object);
                let _ = writeln!(text, "extern \"C\" void {}({});", kernel.entry, parameters(&kernel));
            } else {
                let _ = writeln!(text, "namespace f{number} {{\n{}}}", kernel.source);
            }
            let _ = writeln!(
                cases,
                "    case {number}: {}({}); break;",
                qualified(&kernel, opencl, number),
                call(&kernel, opencl, number)
            );
        }
        text += &items(options, opencl, &cases);
        text += include_str!("runner.cpp");
        let (source, program) = (folder.path().join("filters.cpp"), folder.path().join("filters"));
        std::fs::write(&source, text).map_err(broken)?;
        let sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        // Random filters compare equal values and store unused ones, so not every warning points at
        // the writer.
        let warnings = ["return-type", "sequence-point", "strict-aliasing=2", "uninitialized"];
        let warnings = warnings.map(|warning| format!("-Werror={warning}"));
        // GCC uses types in its alias analysis only from -O2 on.
        compile(
            Command::new(gcc)
                .args(["-std=c++17", "-O1", "-fstrict-aliasing"])
                .args(sanitize)
                .args(warnings)
                .arg(&source)
                .args(objects)
                .arg("-o")
                .arg(&program),
        )?;
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .spawn()
            .map_err(broken)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(broken("no pipes to the program"));
        };
        let name = format!("{} on this machine's processor", options.language);
        Ok(Host {
            info: DeviceInfo {
                id: if opencl { "c-writer:opencl".into() } else { "c-writer:cuda".into() },
                name,
                kind: DeviceKind::Cpu,
                driver: "a C compiler".into(),
                dispatch: Dispatch::COMMON,
                limits: Vec::new(),
            },
            options: options.clone(),
            numbers,
            process: Arc::new(Mutex::new(Process { child, input, output, _folder: folder })),
        })
    }
}

/// Adds the arguments that make clang compile a file as strict OpenCL C 1.2.
pub fn opencl_c<'a>(command: &'a mut Command, source: &Path) -> &'a mut Command {
    let language =
        ["-x", "cl", "-cl-std=CL1.2", "-Xclang", "-fdeclare-opencl-builtins", "-Xclang", "-finclude-default-header"];
    let warnings = ["return-type", "unsequenced", "uninitialized", "incompatible-pointer-types"];
    let warnings = warnings.map(|warning| format!("-Werror={warning}"));
    command.args(language).args(warnings).arg(source)
}

fn parameters(kernel: &Kernel) -> String {
    let of = |argument: &Argument| match argument {
        Argument::Base | Argument::Count => "unsigned int",
        Argument::DescriptorRule => "struct pc_descriptor_rule",
        _ => "void *",
    };
    kernel.arguments.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn qualified(kernel: &Kernel, opencl: bool, number: u32) -> String {
    if opencl { kernel.entry.clone() } else { format!("f{number}::{}", kernel.entry) }
}

fn call(kernel: &Kernel, opencl: bool, number: u32) -> String {
    let of = |argument: &Argument| match argument {
        Argument::Arena { .. } => "arena".into(),
        Argument::Descriptors { .. } if opencl => "descriptors".into(),
        Argument::Descriptors { .. } => format!("(f{number}::pc_descriptor *)descriptors"),
        // A table.
        Argument::DescriptorRule if opencl => "(pc_descriptor_rule){0u, 0u, 0u, 0u}".into(),
        Argument::DescriptorRule => format!("f{number}::pc_descriptor_rule{{0u, 0u, 0u, 0u}}"),
        Argument::Metadata => "metadata".into(),
        Argument::MetadataRule(_) => unreachable!("no test requests it here"),
        Argument::Verdicts => "verdicts".into(),
        Argument::Targets => "targets".into(),
        Argument::Map(_) => "0".into(),
        Argument::Base => "base".into(),
        Argument::Count => "count".to_owned(),
    };
    kernel.arguments.iter().map(of).collect::<Vec<String>>().join(", ")
}

/// Generates the function that loops over all work items of a launch: more items than packets, or
/// just a few if each item processes several packets.
fn items(options: &Options, opencl: bool, cases: &str) -> String {
    let count = if options.grid_stride { "5" } else { "(count + 3) / 4 * 4" };
    let set = match opencl {
        true => "work_item = item; work_items = items;".to_owned(),
        false => "blockDim.x = 1; gridDim.x = items; blockIdx.x = item;".to_owned(),
    };
    format!(
        "static void run(unsigned int filter, unsigned char *arena, unsigned int *descriptors, unsigned int *metadata,\n    \
         unsigned char *verdicts, unsigned int *targets, unsigned int base, unsigned int count) {{\n  unsigned int items = \
         {count};\n  for (unsigned int item = 0; item < items; item++) {{\n    {set}\n    switch (filter) {{\n{cases}    }}\n  \
         }}\n}}\n"
    )
}

impl Device for Host {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let unsupported = |reason: String| DeviceError::Unsupported { device: self.info.id.clone(), reason };
        let source = write(program, &self.options).map_err(|e| unsupported(e.to_string()))?.source;
        // Filters whose packets cannot run in parallel are written with byte access, which loads
        // nearby bytes before it checks the packet's length.
        let bytes = self.options.clone().with_packet_access(PacketAccess::Bytes);
        let side_by_side = self.options.packet_access.is_branch_free()
            && write(program, &bytes).map_err(|e| unsupported(e.to_string()))?.source != source;
        let number = self.numbers.get(&source).copied();
        let number = number.ok_or_else(|| unsupported("it is not among the filters that were compiled".into()))?;
        assert!(!program.has_flows(), "the runner does not group packets by flow");
        let process = self.process.clone();
        let launch = move |memory: &mut Memory| {
            let mut process = process.lock().map_err(|_| "an earlier test broke the process".to_owned())?;
            process.ask(number, memory)
        };
        let mut launcher = Launcher::new(launch);
        launcher.is_aligned = self.options.packet_access == PacketAccess::AlignedWords;
        launcher.places_empty_packets_out_of_bounds = side_by_side;
        Ok(Box::new(SynchronousSession::new(&self.info.id, program, options, launcher)))
    }
}
