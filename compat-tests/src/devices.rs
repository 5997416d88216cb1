//! The devices that a suite runs on, and a note of what became of each.

use std::io::Write;
use std::sync::Arc;

use portcullis::device::Device;
use portcullis_cpu::{Cpu, Style};

/// Devices whose absence fails the tests, with commas between: `cpu,wgpu`.
pub const REQUIRE: &str = "PORTCULLIS_REQUIRE";

/// A folder for notes on what ran where; `cargo xtask test` makes a table of them.
pub const RECORDS: &str = "PORTCULLIS_TEST_RECORDS";

/// Runs `suite` on every device that there is: the interpreter, the CPU, whatever wgpu finds. A
/// device that is missing is printed with the reason, and fails the test where [`REQUIRE`] names it.
///
/// # Panics
/// When `suite` does, and when a required device is missing. Then the other devices still had
/// their turn.
pub fn on_each(name: &str, mut suite: impl FnMut(&Arc<dyn Device>)) {
    let required = std::env::var(REQUIRE).unwrap_or_default();
    let mut failures = Vec::new();
    for backend in portcullis::devices::backends().iter().filter(|b| b.name != "noop") {
        match backend.probe() {
            Ok(devices) => {
                for device in devices {
                    let info = device.info();
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        suite(&device);
                        variants(backend.name, &info.id).iter().for_each(&mut suite);
                    }));
                    record(name, &info.id, if outcome.is_ok() { "passed" } else { "failed" }, &info.name);
                    if outcome.is_err() {
                        failures.push(format!("{} fails {name}", info.id));
                    }
                }
            }
            Err(reason) if required.split(',').any(|r| r.trim() == backend.name) => {
                record(name, backend.name, "failed", &reason.to_string());
                failures.push(format!("{} is required and missing: {reason}", backend.name));
            }
            Err(reason) => record(name, backend.name, "skipped", &reason.to_string()),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("; "));
}

/// What a device would otherwise choose between by the clock, or by what else the machine has: each
/// must be right alone.
fn variants(backend: &str, id: &str) -> Vec<Arc<dyn Device>> {
    match backend {
        "cpu" => [Style::BranchFree, Style::Branching].map(|style| Arc::new(Cpu::with_style(style)) as _).to_vec(),
        // How packets get to a GPU that has memory of its own, on devices that have not.
        "opencl" => {
            let mut devices =
                portcullis::opencl::probe().unwrap_or_else(|e| panic!("{id} was there before: {e}")).into_iter();
            let device = devices.find(|device| device.info().id == id).unwrap_or_else(|| panic!("{id} is gone"));
            vec![Arc::new(device.apart())]
        }
        _ => Vec::new(),
    }
}

/// Notes how a suite ended on a device (`passed`, `failed` or `skipped`), and prints it.
pub fn record(suite: &str, device: &str, outcome: &str, remark: &str) {
    println!("{suite}: {device}: {outcome} ({remark})");
    let Some(folder) = std::env::var_os(RECORDS) else { return };
    let line = format!("{suite}\t{device}\t{outcome}\t{}\n", remark.replace(['\t', '\n', '\r'], " "));
    let file = std::path::Path::new(&folder).join(format!("{}.tsv", std::process::id()));
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(&file);
    // One write a line: tests of a process run on several threads.
    opened.and_then(|mut f| f.write_all(line.as_bytes())).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}
