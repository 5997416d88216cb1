//! Maintainers' tasks: `cargo xtask TASK`.

mod bundle;
mod executables;
#[cfg(test)]
mod imports;
mod prose;
mod test;
mod wheels;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const USAGE: &str = "\
Usage: cargo xtask TASK

Tasks:
  test [--require NAME,...] [--intel]
           run everything that a change must pass: format, prose, lints, feature sets, documentation,
           and all tests; in release the self-test, the tests of the program and of the CPU backend,
           and the README's first command. On Debian it installs what the tests need, after naming it,
           if permitted, and fetches NVIDIA's compilers with pip into target/wheels
           --require  fail if one of these is missing: a device (cpu, cuda, wgpu, opencl), a tool (nvrtc,
                      oclgrind, qemu-aarch64, emulated-cuda, tcpdump, bpftool), a kernel that loads BPF
                      (kernel-bpf), a clang that compiles it (clang-bpf), a live source (af-xdp, nfqueue,
                      dpdk) or libpcap for expressions (pcap-expr). Others that are missing are listed
                      with the reason
           --intel    also fetch Intel's OpenCL for CPUs, and test it beside the other devices
  gpu-bundle [DIR]
           create a folder (target/gpu-bundle) to try Portcullis on another machine's NVIDIA GPU, and pack
           it into DIR.tar.gz: program, suites, loaders, compiled filters, and gpu-check.sh, which writes
           one JSON file
  prose    check comments, docs and names: openings, columns, vague names, pages without a reader
  samples  regenerate samples/mixed.pcap
  package  build every published crate from its package (slow)
";

/// Features of release builds and of tests in release: every backend without build-time
/// requirements.
const FEATURES: [&str; 2] = ["--features", "opencl"];

/// A task of the command line.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Test(test::Options),
    GpuBundle(Option<PathBuf>),
    Prose,
    Samples,
    Package,
    Help,
}

/// Parses the command line; `None` if it is not understood.
fn parse(arguments: &[&str]) -> Option<Task> {
    let (task, rest) = match arguments {
        [] => return Some(Task::Help),
        [task, rest @ ..] => (*task, rest),
    };
    match (task, rest) {
        ("test", _) => test::Options::parse(rest).map(Task::Test),
        ("gpu-bundle", []) => Some(Task::GpuBundle(None)),
        ("gpu-bundle", [folder]) if !folder.starts_with('-') => Some(Task::GpuBundle(Some(folder.into()))),
        ("prose", []) => Some(Task::Prose),
        ("samples", []) => Some(Task::Samples),
        ("package", []) => Some(Task::Package),
        ("help" | "--help" | "-h", []) => Some(Task::Help),
        _ => None,
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(task) = parse(&arguments) else {
        eprint!("xtask: unknown arguments `{}`\n\n{USAGE}", arguments.join(" "));
        return ExitCode::from(2);
    };
    let result = match task {
        Task::Test(options) => test::run(&options),
        Task::GpuBundle(folder) => bundle::run(folder.as_deref()),
        Task::Prose => prose::check(&root()),
        Task::Samples => write_sample(),
        Task::Package => test::package(),
        Task::Help => {
            print!("{USAGE}");
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Regenerates the capture that comes with the project.
fn write_sample() -> Result<(), String> {
    let root = root();
    let mut command = cargo(&root);
    command.args(["run", "--quiet", "--package", "portcullis-io", "--example", "sample", "--", "samples/mixed.pcap"]);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cannot write the sample: cargo ends with {status}")),
        Err(error) => Err(format!("cargo does not start: {error}")),
    }
}

/// Returns the repository's root folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

/// Returns a command for the cargo that runs this program, in the repository's root and without
/// input.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// Returns the path of a shared library in the system's folders.
fn find_library(name: &str) -> Option<PathBuf> {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/lib64",
        "/usr/local/lib",
    ];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|file| file.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_parsed_or_refused() {
        let test = |require: &str, intel| {
            let require = require.split_terminator(',').map(str::to_owned).collect();
            Some(Task::Test(test::Options { require, intel }))
        };
        for (line, task) in [
            ("", Some(Task::Help)),
            ("--help", Some(Task::Help)),
            ("prose", Some(Task::Prose)),
            ("samples", Some(Task::Samples)),
            ("test", test("", false)),
            ("test --intel", test("", true)),
            ("test --require cpu,wgpu --intel", test("cpu,wgpu", true)),
            ("test --intel --require opencl", test("opencl", true)),
            ("test --require", None),
            ("test --require af-xdp,nfqueue,dpdk", test("af-xdp,nfqueue,dpdk", false)),
            ("test --require pcap-expr,tcpdump", test("pcap-expr,tcpdump", false)),
            ("test --require cpu,", None),
            ("test --require gpu", None),
            ("test --all", None),
            ("gpu-bundle", Some(Task::GpuBundle(None))),
            ("gpu-bundle /tmp/x", Some(Task::GpuBundle(Some("/tmp/x".into())))),
            ("gpu-bundle --help", None),
            ("gpu-bundle a b", None),
            ("samples --intel", None),
            ("tests", None),
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(parse(&words), task, "{line}");
        }
    }
}
