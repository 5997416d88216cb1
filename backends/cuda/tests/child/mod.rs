//! Runs a test again in a child process that finds the emulated libraries in place of the driver.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod batches;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::interp::InterpDevice;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cuda::CudaDevice;
use portcullis_cuda_emulator::{BEHAVIOUR, Unavailable};
use portcullis_wgsl as wgsl;

/// Environment variable that is set in the child process.
pub const CHILD: &str = "PORTCULLIS_TEST_CUDA";

/// Message that the emulated driver prints if something was not released.
const LEAK_MESSAGE: &str = "left in a context";

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test of this file in a child process with the emulated driver, which lacks these
/// functions and behaves as asked. `None` if the driver cannot be built on this machine.
pub fn run_child_without(test: &str, behaviour: &str, without: &[&str], variables: &[(&str, &str)]) -> Option<Output> {
    let folder = match portcullis_cuda_emulator::build(Path::new(env!("CARGO_TARGET_TMPDIR")), without) {
        Ok(folder) => folder,
        Err(Unavailable::NotSupported(reason)) => {
            println!("skipped: {reason}");
            return None;
        }
        Err(broken) => panic!("{broken}"),
    };
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env(BEHAVIOUR, behaviour);
    child.env("LD_LIBRARY_PATH", folder).env("PORTCULLIS_CACHE", "");
    for name in ["CUDA_VISIBLE_DEVICES", "PORTCULLIS_NVRTC", "PORTCULLIS_CUBINS"] {
        child.env_remove(name);
    }
    child.envs(variables.iter().copied());
    Some(child.output().unwrap())
}

pub fn run_child(test: &str, behaviour: &str) -> Option<Output> {
    run_child_without(test, behaviour, &[], &[])
}

/// Runs the test in a child process, which must succeed and release everything.
pub fn child_passes(test: &str, behaviour: &str) {
    child_passes_with(test, behaviour, &[]);
}

/// Like [`child_passes`], with a cache of compiled code.
pub fn child_passes_with_cache(test: &str) {
    let cache = tempfile::tempdir().unwrap();
    child_passes_with(test, "", &[("PORTCULLIS_CACHE", cache.path().to_str().unwrap())]);
}

pub fn child_passes_with(test: &str, behaviour: &str, variables: &[(&str, &str)]) {
    let Some(error) = child_succeeds(test, behaviour, variables) else { return };
    assert!(!error.contains(LEAK_MESSAGE) && !error.contains("a context was left"), "{error}");
}

/// Runs the test in a child process, which must succeed; returns what it has printed to stderr.
pub fn child_succeeds(test: &str, behaviour: &str, variables: &[(&str, &str)]) -> Option<String> {
    let child = run_child_without(test, behaviour, &[], variables)?;
    Some(stderr_of_success(&child, &format!("{variables:?}")))
}

/// Returns what a child that must have succeeded has printed to stderr.
fn stderr_of_success(child: &Output, what: &str) -> String {
    let error = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success(), "{what}: {}\n{error}", String::from_utf8_lossy(&child.stdout));
    error
}

/// Returns what the child has reported between `<<` and `>>`.
pub fn reported(child: &Output) -> String {
    let error = stderr_of_success(child, "a report");
    let text = error.split_once("<<").and_then(|(_, rest)| rest.split_once(">>"));
    text.unwrap_or_else(|| panic!("nothing reported: {error}")).0.to_owned()
}

pub fn program(body: &str) -> Arc<Program> {
    compiled(&format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}"))
}

pub fn compiled(text: &str) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())))
}

/// Loads a program into the reference interpreter.
pub fn reference(program: &Arc<Program>) -> Box<dyn Session> {
    InterpDevice::new().load(program, &LoadOptions::default()).unwrap()
}

pub fn device() -> CudaDevice {
    portcullis_cuda::probe().unwrap().remove(0)
}

/// Called in the child: reports a result to the parent.
pub fn report(what: impl std::fmt::Display) {
    eprintln!("<<{what}>>");
}
