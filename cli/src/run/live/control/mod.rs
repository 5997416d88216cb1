//! `--control`: a socket on which a live run serves `portcullis ctl`. `portcullis::control` defines
//! the protocol.

mod server;
mod service;

pub use server::Server;
pub use service::{LaneStatus, Live};
