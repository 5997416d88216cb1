//! What the CPU device says of itself.

use portcullis_core::device::{DeviceInfo, DeviceKind, Dispatch, READS_IN_PLACE};

/// The processor's name where the system tells it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Describes the host's processor.
pub(crate) fn info() -> DeviceInfo {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    DeviceInfo {
        id: "cpu".into(),
        name: processor().unwrap_or_else(|| std::env::consts::ARCH.to_string()),
        kind: DeviceKind::Cpu,
        driver: format!("Cranelift {}", cranelift_codegen::VERSION),
        dispatch: Dispatch::COMMON,
        limits: vec![
            ("threads", threads.to_string()),
            ("64-bit integers", "native".into()),
            (READS_IN_PLACE, "yes".into()),
        ],
    }
}
