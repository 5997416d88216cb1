//! Frames at the kernel's full rate: the kernel runs an XDP program that transmits its packet over
//! frames of its own (`BPF_F_TEST_XDP_LIVE_FRAMES`, Documentation/bpf/bpf_prog_run.rst; Linux
//! 5.18).
#![allow(unsafe_code)]

use std::io::Error;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use libbpf_sys as bpf;

use crate::kernel_xdp::{KernelXdp, index};
use crate::veth::End;

/// Frames of a call: more than anybody waits for. A call begins and ends with waits for all
/// processors (`synchronize_rcu`, tens of milliseconds), so that calls one after the other would be
/// bursts, in whose pauses every receiver catches up.
const A_CALL: i32 = i32::MAX;

/// Has a call end. Nobody else wants it, and it is not passed on to programs that are started.
const INTERRUPT: i32 = libc::SIGURG;

/// Sends a frame out of an end of a link, again and again, until it is dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Begins, on the first processor. Somebody has to receive by XDP at the other end.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn start(end: &End, frame: &[u8]) -> Flood {
        listen();
        let stop = Arc::<AtomicBool>::default();
        let (name, frame, stopped) = (end.name(), frame.to_vec(), stop.clone());
        // A thread is where the one is that starts it.
        let thread = end.namespace().run(|| {
            let (program, index) = (KernelXdp::new(bpf::XDP_TX), index(name));
            std::thread::spawn(move || {
                on_processor(0);
                without_real_time();
                while !stopped.load(Ordering::Relaxed) {
                    run(&program, index, &frame);
                }
            })
        });
        Flood { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        // It may have looked at `stop`, and not called yet.
        while !thread.is_finished() {
            // SAFETY: the thread has not been joined, and the signal has a handler.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), INTERRUPT) };
            sleep(Duration::from_millis(1));
        }
        // Its panic has been printed.
        let _ = thread.join();
    }
}

/// Gives the signal a handler, as what is ignored interrupts nothing.
fn listen() {
    static ONCE: Once = Once::new();
    extern "C" fn nothing(_: i32) {}
    ONCE.call_once(|| {
        // SAFETY: all bytes zero are an action without flags, so that calls are not begun again;
        // its handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(i32) as libc::sighandler_t;
            libc::sigaction(INTERRUPT, &raw const action, std::ptr::null_mut());
        }
    });
}

fn run(program: &KernelXdp, interface: u32, frame: &[u8]) {
    let mut context = bpf::xdp_md { data_end: frame.len() as u32, ingress_ifindex: interface, ..Default::default() };
    let mut options = bpf::bpf_test_run_opts {
        sz: size_of::<bpf::bpf_test_run_opts>() as bpf::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: (&raw mut context).cast(),
        ctx_size_in: size_of::<bpf::xdp_md>() as u32,
        repeat: A_CALL,
        flags: bpf::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: 64,
        ..Default::default()
    };
    // SAFETY: frame, context and options outlive the call, and are as long as they say.
    let result = unsafe { bpf::bpf_prog_test_run_opts(program.fd(), &raw mut options) };
    assert!(
        matches!(-result, 0 | libc::EINTR),
        "running a program over live frames: {}",
        Error::from_raw_os_error(-result)
    );
}

/// Takes the right to a processor before all else from the calling thread: what sends without a
/// pause in the kernel, and may not be interrupted, leaves nothing for the kernel's own threads.
fn without_real_time() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const none) };
}

/// Keeps the calling thread on a processor. Where it cannot be, it stays where it is.
pub fn on_processor(number: usize) {
    // SAFETY: all bytes zero are a set of no processors, of which one is added whose number fits;
    // the set outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(number % libc::CPU_SETSIZE as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
