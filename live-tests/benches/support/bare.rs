//! A minimal loop over xsk-rs that receives frames and returns them to the fill ring.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis::packet_io::af_xdp::{Steering, xdp::AttachedProgram};
use portcullis_live_tests::pin_to_processor;
use xsk_rs::config::{BindFlags, Interface, LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::socket::Socket;
use xsk_rs::umem::{Umem, frame::FrameDesc};

/// Number of frames received at a time.
const BURST: usize = 64;

/// Runs the loop at queue 0 of an interface of this thread's namespace, on the second processor,
/// while `measure` runs with a function that returns the number of frames received.
pub fn bare(interface: &str, frames: u32, measure: impl FnOnce(&mut dyn FnMut() -> u64) -> f64) -> f64 {
    let umem = UmemConfig::builder()
        .frame_size(2048.try_into().unwrap())
        .fill_queue_size((frames / 2).try_into().unwrap())
        .comp_queue_size((frames / 4).try_into().unwrap())
        .build()
        .unwrap();
    let (umem, descs) = Umem::new(umem, frames.try_into().unwrap(), false).unwrap();
    let config = SocketConfig::builder()
        .rx_queue_size((frames / 4).try_into().unwrap())
        .tx_queue_size((frames / 4).try_into().unwrap())
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(BindFlags::XDP_USE_NEED_WAKEUP)
        .build();
    let name: Interface = interface.parse().unwrap();
    let begun = Instant::now();
    #[expect(unsafe_code, reason = "xsk-rs")]
    let (_tx, mut rx, rings) = loop {
        // SAFETY: nothing else uses this queue.
        match unsafe { Socket::new(config, &umem, &name, 0) } {
            Ok(made) => break made,
            Err(_) if begun.elapsed() < Duration::from_secs(2) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => panic!("{error}"),
        }
    };
    let (mut fill, _completion) = rings.unwrap();
    let program = AttachedProgram::new(interface, 1, &Steering::Default, &Default::default()).unwrap();
    program.set_socket(0, rx.fd()).unwrap();
    #[expect(unsafe_code, reason = "xsk-rs")]
    // SAFETY: the frames are this UMEM's, and posted once.
    unsafe {
        fill.produce(&descs[..frames as usize / 2])
    };
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (is_over, count) = (&is_over, &count);
        scope.spawn(move || {
            pin_to_processor(1);
            let mut descs = [FrameDesc::default(); BURST];
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: each received frame is returned once.
                #[expect(unsafe_code, reason = "xsk-rs")]
                unsafe {
                    let received = rx.consume(&mut descs);
                    if received == 0 {
                        rx.poll(1).unwrap();
                        continue;
                    }
                    while fill.produce(&descs[..received]) == 0 {}
                    count.fetch_add(received as u64, Ordering::Relaxed);
                }
            }
        });
        let rate = measure(&mut || count.load(Ordering::Relaxed));
        is_over.store(true, Ordering::Relaxed);
        rate
    })
}
