//! Sends frames at the kernel's full rate. An XDP program that returns XDP_TX runs over frames of
//! the kernel's own (`BPF_F_TEST_XDP_LIVE_FRAMES`, Documentation/bpf/bpf_prog_run.rst; Linux 5.18).
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

/// Frames per call: more than a run ever sends. A call starts and ends with `synchronize_rcu`, tens
/// of milliseconds each, so that several calls would be bursts with pauses in which every receiver
/// catches up.
const FRAMES_PER_CALL: i32 = i32::MAX;

/// Signal that interrupts a call. No other code uses it, and handlers are not inherited by programs
/// that are started.
const INTERRUPT: i32 = libc::SIGURG;

/// Sends one frame out of an end of a link repeatedly, until dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Starts sending on the first processor. The other end must receive by XDP.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn start(end: &End, frame: &[u8]) -> Flood {
        handle_interrupt();
        let stop = Arc::<AtomicBool>::default();
        let (name, frame, stopped) = (end.name(), frame.to_vec(), stop.clone());
        // A spawned thread starts in its parent's network namespace.
        let thread = end.namespace().run(|| {
            let (program, index) = (KernelXdp::new(bpf::XDP_TX), index(name));
            std::thread::spawn(move || {
                pin_to_processor(0);
                use_default_scheduling();
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
        // The thread may have read `stop` before it was set, and not have entered the call yet:
        // signal until it ends.
        while !thread.is_finished() {
            // SAFETY: the thread has not been joined, and the signal has a handler.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), INTERRUPT) };
            sleep(Duration::from_millis(1));
        }
        // A panic of the thread has been printed already.
        let _ = thread.join();
    }
}

/// Installs a handler for the signal: an ignored signal interrupts no call.
fn handle_interrupt() {
    static ONCE: Once = Once::new();
    extern "C" fn nothing(_: i32) {}
    ONCE.call_once(|| {
        // SAFETY: a zeroed action is valid and has no flags, so calls are not restarted; the
        // handler does nothing.
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
        repeat: FRAMES_PER_CALL,
        flags: bpf::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: 64,
        ..Default::default()
    };
    // SAFETY: frame, context and options outlive the call and have the stated lengths.
    let result = unsafe { bpf::bpf_prog_test_run_opts(program.fd(), &raw mut options) };
    assert!(
        matches!(-result, 0 | libc::EINTR),
        "running a program over live frames: {}",
        Error::from_raw_os_error(-result)
    );
}

/// Returns the calling thread to the default scheduling class: a real-time thread that sends in the
/// kernel without a pause would starve the kernel's own threads.
fn use_default_scheduling() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const none) };
}

/// Pins the calling thread to a processor; does nothing if the system refuses.
pub fn pin_to_processor(number: usize) {
    // SAFETY: a zeroed set is valid and empty, the number is below its size, and the set outlives
    // the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(number % libc::CPU_SETSIZE as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
