//! A test once more, in a process of its own that finds the emulated libraries where a driver's would be.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use portcullis_core::diagnostics::Source;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cuda_emulator::{BEHAVIOUR, Unavailable};
use portcullis_wgsl as wgsl;

/// Set in the child, which is the test again.
pub const CHILD: &str = "PORTCULLIS_TEST_CUDA";

/// What the driver prints where something was not released.
const LEFT: &str = "left in a context";

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test of this file in a process that has the emulated driver, without these functions and with this
/// behaviour. `None` where there can be none.
pub fn again_without(test: &str, behaviour: &str, without: &[&str], variables: &[(&str, &str)]) -> Option<Output> {
    let folder = match portcullis_cuda_emulator::build(Path::new(env!("CARGO_TARGET_TMPDIR")), without) {
        Ok(folder) => folder,
        Err(Unavailable::Here(reason)) => {
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

pub fn again(test: &str, behaviour: &str) -> Option<Output> {
    again_without(test, behaviour, &[], &[])
}

/// Runs the test in a child, which has to succeed and to release everything.
pub fn passes(test: &str, behaviour: &str) {
    passes_with(test, behaviour, &[]);
}

pub fn passes_with(test: &str, behaviour: &str, variables: &[(&str, &str)]) {
    let Some(child) = again_without(test, behaviour, &[], variables) else { return };
    let error = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}\n{error}", String::from_utf8_lossy(&child.stdout));
    assert!(!error.contains(LEFT) && !error.contains("a context was left"), "{error}");
}

/// What the child has said between `<<` and `>>`.
pub fn said(child: &Output) -> String {
    let error = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}\n{error}", String::from_utf8_lossy(&child.stdout));
    let text = error.split_once("<<").and_then(|(_, rest)| rest.split_once(">>"));
    text.unwrap_or_else(|| panic!("nothing said: {error}")).0.to_owned()
}

pub fn program(body: &str) -> Arc<Program> {
    let text = format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}");
    let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())))
}

/// The child's part: says what it finds.
pub fn say(what: impl std::fmt::Display) {
    eprintln!("<<{what}>>");
}
