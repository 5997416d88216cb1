//! As many frames as a kernel can send: an XDP program that sends its packet, run by the kernel itself over frames of its own
//! (`BPF_F_TEST_XDP_LIVE_FRAMES`, Documentation/bpf/bpf_prog_run.rst; Linux 5.18).
#![allow(unsafe_code)]

use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use libbpf_sys as bpf;

use crate::kernel_xdp::{KernelXdp, index};
use crate::veth::End;

/// Frames of a call, after which it is looked whether there are enough.
const A_CALL: u32 = 1 << 15;

/// Sends a frame out of an end of a link, again and again, until it is dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Begins, on the first processor. Somebody has to receive by XDP at the other end.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn start(end: &End, frame: &[u8]) -> Flood {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (namespace, name, frame) = (end.namespace().clone(), end.name().to_owned(), frame.to_vec());
        let thread = std::thread::spawn({
            let (stop, sent) = (stop.clone(), sent.clone());
            move || {
                namespace.run(|| {
                    on_processor(0);
                    let (program, index) = (KernelXdp::new(bpf::XDP_TX), index(&name));
                    while !stop.load(Ordering::Relaxed) {
                        run(&program, index, &frame);
                        sent.fetch_add(A_CALL.into(), Ordering::Relaxed);
                    }
                });
            }
        });
        Flood { stop, sent, thread: Some(thread) }
    }

    /// Frames that were sent until now, whether anybody had room for them or not.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

fn run(program: &KernelXdp, interface: u32, frame: &[u8]) {
    let mut context = bpf::xdp_md { data_end: frame.len() as u32, ingress_ifindex: interface, ..Default::default() };
    let mut options = bpf::bpf_test_run_opts {
        sz: size_of::<bpf::bpf_test_run_opts>() as bpf::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: (&raw mut context).cast(),
        ctx_size_in: size_of::<bpf::xdp_md>() as u32,
        repeat: A_CALL as i32,
        flags: bpf::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: 64,
        ..Default::default()
    };
    // SAFETY: frame, context and options outlive the call, and are as long as they say.
    let result = unsafe { bpf::bpf_prog_test_run_opts(program.fd(), &raw mut options) };
    assert!(result == 0, "running a program over live frames: {}", Error::from_raw_os_error(-result));
}

/// Keeps the calling thread on a processor. Where it cannot be, it stays where it is.
pub fn on_processor(number: usize) {
    // SAFETY: all bytes zero are a set of no processors, of which one is added whose number fits; the set outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(number % libc::CPU_SETSIZE as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
