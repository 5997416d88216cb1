//! Shared by the tests of this crate.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom, Verdict};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgpu::WgpuDevice;
use portcullis_wgsl as wgsl;

/// All devices. Without any, prints the reason and returns none, unless `PORTCULLIS_REQUIRE` lists
/// `wgpu`.
pub fn devices() -> Vec<WgpuDevice> {
    match portcullis_wgpu::probe() {
        Ok(devices) => devices,
        Err(error) => {
            let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|device| device.trim() == "wgpu"), "wgpu is required: {error}");
            println!("skipped: {error}");
            Vec::new()
        }
    }
}

pub fn program_with(text: &str, options: &ProgramOptions) -> Arc<Program> {
    Arc::new(wgsl::compile(&Source::new("test.wgsl", text), options).unwrap_or_else(|e| panic!("{}", e.render())))
}

pub fn program(text: &str) -> Arc<Program> {
    program_with(text, &ProgramOptions::default())
}

pub fn load(device: &WgpuDevice, program: &Arc<Program>) -> Box<dyn Session> {
    device.load(program, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", device.info().id))
}

/// Runs a batch, and returns verdicts and packets.
pub fn run_batch(device: &WgpuDevice, program: &Arc<Program>, batch: Batch) -> (Vec<Verdict>, Vec<Vec<u8>>) {
    let done = load(device, program).run(batch).unwrap_or_else(|e| panic!("{}: {e}", device.info().id));
    assert_eq!(done.verdicts.len(), done.batch.len());
    (done.verdicts.iter().collect(), done.batch.packets().map(<[u8]>::to_vec).collect())
}

/// Runs packets in a batch of their own.
pub fn run(device: &WgpuDevice, text: &str, packets: &[Vec<u8>]) -> (Vec<Verdict>, Vec<Vec<u8>>) {
    run_batch(device, &program(text), Batch::from_packets(packets).unwrap())
}

/// A batch of `count` packets of `length` bytes, `stride` bytes apart from byte `start` on, filled
/// by `fill`.
pub fn strided(
    count: usize,
    length: usize,
    start: usize,
    stride: usize,
    mut fill: impl FnMut(usize, &mut [u8]),
) -> Batch {
    let mut arena = Arena::new(start + count * stride + length).unwrap();
    let mut descriptors = Vec::with_capacity(count);
    for index in 0..count {
        let offset = start + index * stride;
        fill(index, &mut arena[offset..offset + length]);
        descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
    }
    BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()
}

/// An Ethernet, IPv4, TCP frame to port `dport` of `length` bytes, at least 54.
pub fn tcp(dport: u16, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(length as u16 - 14).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 1, 2, 3, 10, 4, 5, 6]);
    frame[34..36].copy_from_slice(&40_000u16.to_be_bytes());
    frame[36..38].copy_from_slice(&dport.to_be_bytes());
    frame
}
