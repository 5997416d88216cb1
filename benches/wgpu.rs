//! Compares end-to-end throughput of wgpu devices with that of their kernels: `cargo bench --bench
//! wgpu`.
//!
//! Both sides run in turn over the same kind of traffic, 1 Mi packets of 64 bytes in memory that
//! the device has imported if its driver can. End to end is a session with several batches in
//! flight: descriptors in, kernel, verdict columns out. Kernel only is launches over packets and
//! descriptors that are already in place, four per submission.
//!
//! Filters that write get a copy of their packets and are shown for comparison: imported memory is
//! only read in place.

mod support;

use portcullis_core::device::{Device, Imported, LoadOptions};
use portcullis_wgpu::WgpuDevice;
use portcullis_wgpu::measure::KernelTimer;

use support::device::{DEPTH, FILTERS, batches, round};
use support::{LENGTH, ReusedBatch, Sample, Table, Traffic, is_test_run, sample_in_turn, stock, time};

/// Launches per submission of the kernel-only side.
const LAUNCHES: u32 = 4;

fn measure(device: &WgpuDevice, count: usize, rounds: usize) {
    let info = device.info();
    let mut table = Table::new(&format!("{}: {}", info.id, info.name), "end to end", "kernel only");
    let mut sent = batches(count);
    let resident = ReusedBatch::new(support::batch(Traffic::Mixed, count, LENGTH));
    for name in FILTERS {
        let program = stock(name);
        let options = LoadOptions::default().with_depth(DEPTH);
        let mut session = device.load(&program, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut kernel = KernelTimer::load(device, &program).unwrap_or_else(|e| panic!("{name}: {e}"));
        let imported = session.import(sent[0].span()).expect("the device does not fail");
        let mut launch =
            || resident.lend(|batch| kernel.time(batch, LAUNCHES).unwrap_or_else(|e| panic!("{name}: {e}")));
        let pair = sample_in_turn(rounds, || time(|| round(&mut *session, &mut sent)), || Sample::wall(launch()));
        let memory = if imported == Imported::InPlace { "in place" } else { "copied" };
        table.rates(&format!("{name}, {memory}"), count, pair);
    }
    table.print();
}

fn main() {
    support::restore_sigpipe();
    let (count, rounds) = if is_test_run() { (1 << 10, 1) } else { (1 << 20, 15) };
    match portcullis_wgpu::probe() {
        Ok(devices) => devices.iter().for_each(|device| measure(device, count, rounds)),
        Err(error) => println!("nothing to measure: {error}"),
    }
}
