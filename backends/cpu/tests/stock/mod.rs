//! The stock filters, and packets for them.

use std::path::Path;
use std::sync::Arc;

use portcullis_core::diagnostics::Source;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_opencl_c as opencl_c;
use portcullis_opencl_c::files::NoIncludes;
use portcullis_wgsl as wgsl;

/// Returns the WGSL source of a stock filter.
#[allow(dead_code, reason = "not every test needs it")]
pub fn text(name: &str) -> String {
    let path = format!("{}/../../shaders/{name}.wgsl", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Compiles each filter in each language; returns them with their file names.
pub fn stock() -> Vec<(String, Arc<Program>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shaders");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let options = ProgramOptions::default();
        let source = |text| Source::new(name.clone(), text);
        let program = match path.extension().and_then(|e| e.to_str()) {
            Some("wgsl") => wgsl::compile(&source(std::fs::read_to_string(&path).unwrap()), &options),
            Some("cl") => {
                opencl_c::compile(&source(std::fs::read_to_string(&path).unwrap()), &options, &mut NoIncludes)
            }
            _ => continue,
        };
        all.push((name, Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())))));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// A linear congruential generator.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below 2^31.
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

/// IPv4 and IPv6 packets, some with VLAN tags, options, or cut off, and packets that are neither.
pub fn packets() -> Vec<Vec<u8>> {
    let mut random = Random(7);
    let mut all = Vec::new();
    for i in 0..600_u32 {
        let length = if i % 5 == 0 { random.next() % 70 } else { 40 + random.next() % 100 };
        let mut packet: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let mut put = |at: usize, byte: u8| {
            if let Some(place) = packet.get_mut(at) {
                *place = byte;
            }
        };
        if i % 7 != 0 {
            let vlan = usize::from(i % 11 == 0) * 4;
            if vlan > 0 {
                put(12, 0x81);
                put(13, 0);
            }
            put(12 + vlan, 8);
            put(13 + vlan, 0);
            let options = if i % 3 == 0 { 5 + random.next() as u8 % 11 } else { 5 };
            put(14 + vlan, 0x40 | options);
            put(20 + vlan, 0);
            put(21 + vlan, 0);
            put(23 + vlan, if i % 2 == 0 { 6 } else { 17 });
            put(26 + vlan, 10);
            put(30 + vlan, 192);
            let ports = 14 + vlan + 4 * usize::from(options);
            put(ports, 0);
            put(ports + 1, [53, 80, 22, 67][i as usize % 4]);
            put(ports + 2, 0);
            put(ports + 3, [80, 53, 23, 80][i as usize / 4 % 4]);
        } else if i % 2 == 0 {
            put(12, 0x86);
            put(13, 0xdd);
            put(20, 6);
        }
        all.push(packet);
    }
    all
}
