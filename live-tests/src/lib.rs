//! Whether live traffic is treated as it should be: by a real kernel, in network namespaces that a
//! test makes and that go with it, so that nothing is sent anywhere else.
//!
//! - [`Suite`]: whether tests can be run here, and a note of what became of them;
//! - [`Namespace`]: a network of a test's own, entered by threads and programs;
//! - [`Veth`]: a link between two of them;
//! - [`PacketSocket`]: frames, byte for byte, sent and received at a link's end;
//! - [`frames`]: what to send there;
//! - [`ping`], [`tcp_echo`]: whether somebody answers, and what connections carry;
//! - `run_lanes`: AF_XDP sockets at work, with a function as the filter;
//! - [`Child`]: a test as a process of its own, to be killed.
//!
//! What cannot be set up is an error of the test or of the machine, and panics with what the system
//! said.
//!
//! ```no_run
//! use std::time::Duration;
//! use portcullis_live_tests::{Namespace, Suite, Veth, ping};
//!
//! let Some(_suite) = Suite::begin("links", "af-xdp", &[]) else { return };
//! let (left, right) = (Namespace::new(), Namespace::new());
//! let veth = Veth::between(&left, &right).mtu(9000).make();
//! assert!(ping(&left, veth.right.ipv4().into(), Duration::from_secs(5)));
//! ```
#![cfg(target_os = "linux")]

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
mod suite;
mod tcp;
mod veth;

use std::time::{Duration, Instant};

pub use child::Child;
#[cfg(feature = "bench")]
pub use flood::{Flood, on_processor};
#[cfg(feature = "bench")]
pub use kernel_xdp::KernelXdp;
#[cfg(feature = "af-xdp")]
pub use lanes::{FinishedRun, lane_options, run_lanes};
pub use namespace::{Namespace, remove_leftovers};
pub use packet_socket::{Checksum, Frame, PacketSocket};
pub use ping::ping;
pub use suite::Suite;
pub use tcp::tcp_echo;
pub use veth::{End, Options, Veth};

/// Waits until something is so.
///
/// # Panics
/// When it is not so after this long; `what` says what was waited for.
pub fn wait_until(what: &str, most: Duration, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < most, "after {most:?} still not: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
