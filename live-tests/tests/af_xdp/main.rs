//! AF_XDP sockets in namespaces, with a function as the filter: verdicts as the other end of the
//! link sees them, and the lanes' own counters.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]

mod jumbo;
mod pass;
mod queues;
mod verdicts;

use std::time::Duration;

use portcullis_core::packet::{Action, Batch};
use portcullis_live_tests::Suite;

/// Timeout for what must happen; long, as the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Time in which nothing must happen.
const QUIET_TIME: Duration = Duration::from_millis(300);

/// Returns the return value that sends a packet out of another port.
fn redirect(target: u32) -> u32 {
    Action::Redirect as u32 | target << 8
}

/// Returns a filter with this verdict for every packet.
fn all(action: Action) -> impl Fn(&mut Batch) -> Vec<u32> + Sync {
    move |batch| vec![action as u32; batch.len()]
}

fn begin(name: &'static str) -> Option<Suite> {
    Suite::begin(name, "af-xdp", &["ethtool"])
}
