//! AF_XDP sockets in namespaces, with a function as the filter: verdicts as the other end of the
//! link sees them, and the lanes' own counters.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]

mod jumbo;
mod pass;
mod queues;
mod verdicts;

use std::time::Duration;

use portcullis_core::packet::{Action, Batch};
use portcullis_live_tests::frames::{EXPERIMENTAL_ETHERTYPE, swap_addresses};
use portcullis_live_tests::{PacketSocket, QUIET_TIME, Suite, TIMEOUT};

/// Returns the return value that sends a packet out of another port.
fn redirect(target: u32) -> u32 {
    Action::Redirect as u32 | target << 8
}

/// Returns a filter with this verdict for every packet.
fn all(action: Action) -> impl Fn(&mut Batch) -> Vec<u32> + Sync {
    move |batch| vec![action as u32; batch.len()]
}

/// Returns the next frame of a test, waiting up to `timeout` for it; others are discarded.
fn receive(socket: &mut PacketSocket, timeout: Duration) -> Option<Vec<u8>> {
    Some(socket.receive_where(timeout, |frame| frame.ether_type() == EXPERIMENTAL_ETHERTYPE)?.bytes)
}

fn swap_all_addresses(batch: &mut Batch) {
    (0..batch.len()).for_each(|index| swap_addresses(batch.packet_mut(index)));
}

fn begin(name: &'static str) -> Option<Suite> {
    Suite::begin(name, "af-xdp", &["ethtool"])
}
