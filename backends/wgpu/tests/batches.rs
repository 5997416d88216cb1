//! Batches that depend on what the device can bind. All other tests of batches are in
//! `compat-tests/tests/batches.rs`, for every device.

mod common;

use common::{devices, load, program, program_with, strided};
use portcullis_core::device::{Device, DeviceError, DeviceKind, Imported, InPlaceReads, LoadOptions};
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::ProgramOptions;

/// Redirects to the number in the first four bytes.
const NUMBER: &str = "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_be32(pkt, 0u)); }";

/// Adds one to the number in the last four bytes.
const COUNT: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        let at = pkt_len(pkt) - 4u;
        store_be32(pkt, at, load_be32(pkt, at) + 1u);
        return XDP_TX;
    }";

fn numbers(count: usize, length: usize, start: usize, stride: usize) -> Batch {
    strided(count, length, start, stride, |i, packet| packet[..4].copy_from_slice(&(i as u32).to_be_bytes()))
}

#[test]
fn batches_larger_than_a_binding_are_split() {
    // 300 MiB: more than the 128 MiB that lavapipe, and WebGPU by default, can bind.
    let (count, stride) = (75_000, 4200);
    for device in devices() {
        let mut session = load(&device, &program(NUMBER));
        let batch = numbers(count, 4000, 3, stride);
        let imported = session.import(batch.span()).unwrap();
        let done = session.run(batch).unwrap();
        assert!(done.verdicts.iter().enumerate().all(|(i, v)| v == Verdict::Redirect(i as u32)), "{imported:?}");

        let mut batch = strided(count, 4000, 1, stride, |i, packet| {
            packet[3996..].copy_from_slice(&(i as u32).to_be_bytes());
        });
        for round in 1..3u32 {
            let done = load(&device, &program(COUNT)).run(batch).unwrap();
            for (i, packet) in done.batch.packets().enumerate() {
                assert_eq!(packet[3996..], (i as u32 + round).to_be_bytes());
            }
            batch = done.batch;
        }
    }
}

#[test]
fn only_filters_that_do_not_write_read_in_place() {
    for device in devices() {
        let batch = numbers(10, 60, 0, 64);
        let imported = load(&device, &program(COUNT)).import(batch.span()).unwrap();
        assert_eq!(imported, Imported::Copied);
        let imported = load(&device, &program(NUMBER)).import(batch.span()).unwrap();
        let in_place = device.info().in_place_reads() == InPlaceReads::Always;
        assert_eq!(imported, if in_place { Imported::InPlace } else { Imported::Copied });
    }
}

/// Uses up its fuel on every packet.
const BURN: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        var x = load_le32(pkt, 0u);
        loop { x = x * 1664525u + 1013904223u; if x == load_le32(pkt, 4u) + 0x80000000u { break; } }
        return select(XDP_PASS, XDP_DROP, x == 7u);
    }";

#[test]
fn software_devices_refuse_loops_that_they_would_cut_short() {
    for device in devices() {
        let program = program_with(BURN, &ProgramOptions::default().with_fuel(70_000));
        let loaded = device.load(&program, &LoadOptions::default());
        if device.info().kind == DeviceKind::Software {
            let Err(error) = loaded else { panic!("the filter was accepted") };
            assert!(matches!(&error, DeviceError::Unsupported { reason, .. } if reason.contains("65000")), "{error}");
        } else {
            assert!(loaded.is_ok());
        }
    }
}

#[test]
fn software_devices_refuse_filters_that_take_minutes_to_compile() {
    // Each helper calls the one below it twice.
    let doubling = |depth: u32| {
        let mut text = String::from("fn f0(pkt: u32, a: u32) -> u32 { return a * 31u + load_u8(pkt, a & 63u); }\n");
        for i in 1..depth {
            let below = i - 1;
            text += &format!("fn f{i}(pkt: u32, a: u32) -> u32 {{ return f{below}(pkt, f{below}(pkt, a)); }}\n");
        }
        program(&format!("{text} fn xdp_filter(pkt: u32) -> u32 {{ return f{}(pkt, 1u) & 1u; }}", depth - 1))
    };
    for device in devices() {
        if device.info().kind != DeviceKind::Software {
            println!("skipped on {}: it has a compiler that may be faster", device.info().id);
            continue;
        }
        load(&device, &doubling(4));
        let Err(error) = device.load(&doubling(12), &LoadOptions::default()) else { panic!("the filter was accepted") };
        let said = |reason: &str| reason.contains("expressions") && reason.contains("--device cpu");
        assert!(matches!(&error, DeviceError::Unsupported { reason, .. } if said(reason)), "{error}");
    }
}

#[test]
fn a_packet_larger_than_a_binding_is_refused() {
    for device in devices() {
        if device.info().kind != DeviceKind::Software {
            println!("skipped on {}: it may bind whatever fits into an arena", device.info().id);
            continue;
        }
        let batch = numbers(1, 130 << 20, 0, 130 << 20);
        let refused = load(&device, &program(NUMBER)).submit(batch).unwrap_err();
        assert!(matches!(&refused.error, DeviceError::Refused(text) if text.contains("136314880 bytes")), "{refused}");
        assert_eq!(refused.batch.len(), 1);
    }
}
