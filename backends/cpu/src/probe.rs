//! Describes the host's processor.

use portcullis_core::device::{DeviceInfo, DeviceKind, DeviceLimit, Dispatch, InPlaceReads};

/// Returns the processor's model name from `/proc/cpuinfo`, if there is one.
fn processor_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Returns id, name, driver and limits of the CPU device.
pub(crate) fn info() -> DeviceInfo {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    DeviceInfo {
        id: "cpu".into(),
        name: processor_name().unwrap_or_else(|| std::env::consts::ARCH.to_string()),
        kind: DeviceKind::Cpu,
        driver: format!("Cranelift {}", cranelift_codegen::VERSION),
        dispatch: Dispatch::COMMON,
        limits: vec![
            DeviceLimit::new("threads", threads.to_string()),
            DeviceLimit::new("64-bit integers", "native"),
            DeviceLimit::ReadsInPlace(InPlaceReads::Always),
        ],
    }
}
