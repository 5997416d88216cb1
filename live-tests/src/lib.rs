//! Tests with live traffic: a real kernel, network namespaces that each test creates and removes,
//! and nothing sent anywhere else.
//!
//! - [`Suite`]: decides whether tests can run here, and records how they ended;
//! - [`Namespace`]: a network namespace of the test's own, which threads and programs can enter;
//! - [`Veth`]: a link between two namespaces; [`create_link`] creates all three;
//! - [`Bridge`]: two networks, and packet sockets that carry frames between them;
//! - [`PacketSocket`]: sends and receives frames, byte for byte, at an end of a link;
//! - [`frames`]: builds frames to send;
//! - [`ping`], [`tcp_echo`]: check that a peer answers, and that connections carry data;
//! - `run_lanes`: runs AF_XDP sockets with a function as the filter;
//! - [`Child`]: runs a test as a process of its own, to be killed.
//!
//! If something cannot be set up, that is an error of the test or of the machine: these functions
//! panic with the system's message.
//!
//! ```no_run
//! use std::time::Duration;
//! use portcullis_live_tests::{Suite, create_link_with, ping};
//!
//! let Some(_suite) = Suite::begin("links", "af-xdp", &[]) else { return };
//! let (left, _right, veth) = create_link_with(|link| link.mtu(9000));
//! assert!(ping(&left, veth.right.ipv4().into(), Duration::from_secs(5)));
//! ```
#![cfg(target_os = "linux")]

mod bridge;
mod child;
#[cfg(feature = "bench")]
mod flood;
pub mod frames;
#[cfg(feature = "bench")]
mod kernel_xdp;
#[cfg(feature = "af-xdp")]
mod lanes;
mod namespace;
mod packet_socket;
mod ping;
#[path = "../../compat-tests/src/records.rs"]
mod records;
mod suite;
mod tcp;
mod veth;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use bridge::Bridge;
pub use child::Child;
#[cfg(feature = "bench")]
pub use flood::{Flood, pin_to_processor};
#[cfg(feature = "bench")]
pub use kernel_xdp::KernelXdp;
#[cfg(feature = "af-xdp")]
pub use lanes::{FinishedRun, lane_options, run_lanes};
pub use namespace::{Namespace, remove_leftovers};
pub use packet_socket::{Checksum, Frame, PacketSocket};
pub use ping::ping;
pub use suite::Suite;
pub use tcp::tcp_echo;
pub use veth::{End, Options, Veth, create_link, create_link_with};

/// Timeout for what must happen; long, as the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Time in which nothing must happen.
pub const QUIET_TIME: Duration = Duration::from_millis(300);

/// Drops all capabilities of this thread, irrevocably: capset(2), whose structures libc does not
/// define.
///
/// # Panics
/// If the kernel refuses the call.
#[expect(unsafe_code, reason = "capset(2)")]
pub fn drop_capabilities() {
    // `struct __user_cap_header_struct` with _LINUX_CAPABILITY_VERSION_3, and two of `struct
    // __user_cap_data_struct`.
    let (header, data) = ([0x2008_0522u32, 0], [0u32; 6]);
    // SAFETY: both have the length that this version requires.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Sets a flag when it is dropped: threads that poll the flag end even if the test panics.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold within `timeout`; `what` names it in the message.
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < timeout, "not within {timeout:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
