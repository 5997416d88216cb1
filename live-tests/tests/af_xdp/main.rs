//! AF_XDP sockets in namespaces, with a function as the filter: verdicts seen from the other side
//! of the link, and what a lane does with the packets that there are.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]

mod jumbo;
mod pass;
mod queues;
mod verdicts;

use std::time::Duration;

use portcullis_core::packet::{Action, Batch};
use portcullis_live_tests::Suite;

/// Long enough for whatever is to happen, on a busy machine, too.
const SOON: Duration = Duration::from_secs(20);

/// Long enough to see that nothing happens.
const NOTHING: Duration = Duration::from_millis(300);

/// What a filter returns to send a packet out of another port.
fn redirect(target: u32) -> u32 {
    Action::Redirect as u32 | target << 8
}

/// Returns a filter that gives every packet this verdict.
fn all(action: Action) -> impl Fn(&mut Batch) -> Vec<u32> + Sync {
    move |batch| vec![action as u32; batch.len()]
}

fn begin(name: &'static str) -> Option<Suite> {
    Suite::begin(name, "af-xdp", &["ethtool"])
}
