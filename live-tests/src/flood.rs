//! As many frames as a kernel can send: an XDP program that sends its packet, run by the kernel itself over frames of its own
//! (`BPF_F_TEST_XDP_LIVE_FRAMES`, Documentation/bpf/bpf_prog_run.rst; Linux 5.18).
#![allow(unsafe_code)]

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use libbpf_sys as bpf;

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
    /// Begins. Somebody has to receive by XDP at the other end.
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
                    let (program, index) = (load(), index(&name));
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

fn index(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).expect("a name");
    // SAFETY: the name ends with a zero byte, and is read only.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Returns `XDP_TX`.
fn load() -> OwnedFd {
    let code: [u64; 2] = [0xb7 | 3 << 32, 0x95];
    // SAFETY: an instruction is eight bytes, of which there are as many as is said; there are no options.
    let made = unsafe {
        bpf::bpf_prog_load(
            bpf::BPF_PROG_TYPE_XDP,
            c"flood".as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as bpf::size_t,
            std::ptr::null_mut(),
        )
    };
    assert!(made >= 0, "loading a program: {}", Error::from_raw_os_error(-made));
    // SAFETY: it was just made, and is nobody else's.
    unsafe { OwnedFd::from_raw_fd(made) }
}

fn run(program: &OwnedFd, interface: u32, frame: &[u8]) {
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
    let result = unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert!(result == 0, "running a program over live frames: {}", Error::from_raw_os_error(-result));
}
